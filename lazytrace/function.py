"""Traced functions: the wrappers that people call, and how they bind, copy and pickle."""

from __future__ import annotations

import builtins
import copy
import inspect
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import wrapt

from lazytrace._native import available, core
from lazytrace._torch import Inlined, is_dynamo_tracing
from lazytrace.buckets import Bucketed
from lazytrace.config import Options
from lazytrace.engine import CacheInfo, Engine, Held, TraceCache
from lazytrace.errors import NotTraceableError, no_forward_of_class, not_traced
from lazytrace.originals import BUILTINS
from lazytrace.programs import exportable
from lazytrace.signature import Parameters, calls_first_argument
from lazytrace.stats import Snapshot, register

if TYPE_CHECKING:
    from lazytrace.explain import Explanation
    from lazytrace.programs import Exportable, Program

__builtins__ = BUILTINS


class Handle:
    """What there is to ask and to tell of a traced function, or of a traced method of one instance.

    A traced function has the same methods itself. Those of a traced module or callable object give way to
    attributes of the same name that the object has; a handle does not.

    >>> import lazytrace
    >>> class Backbone(torch.nn.Linear):
    ...     def freeze(self):
    ...         return "my own"
    >>> net = lazytrace.traced(Backbone(2, 2))
    >>> net.freeze()
    'my own'
    >>> lazytrace.handle(net).freeze()
    """

    def __init__(
        self, engine: Engine, cache: TraceCache, receiver: tuple[Any, ...], plain: Callable[..., Any]
    ) -> None:
        self._engine = engine
        self._cache = cache
        self._receiver = receiver
        self.original = plain

    def cache_info(self) -> CacheInfo:
        """Hits, misses, limit and size, as `functools.lru_cache` has them; the size is this instance's."""
        return self._engine.cache_info(self._cache)

    def cache_clear(self) -> None:
        """Drop all traces; of a bound method, those of its instance."""
        self._engine.clear(self._own_cache())

    def stats(self) -> Snapshot:
        """The counts of this function, over all instances."""
        return self._engine.stats()

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """Whether this call would hit, and if not, every reason; runs nothing and counts nothing."""
        return self._engine.explain(self._cache, (*self._receiver, *args), kwargs)

    def program(self, /, *args: Any, **kwargs: Any) -> Program:
        """The program that these arguments would run, as data.

        See `lazytrace.programs.Program`: inputs, captured state, steps with line and module, reads, writes,
        `listing()` and `to_fx()`. Of several branches it is the one that these arguments take, found by
        running them on copies. Raises `LookupError` when the function has not been recorded with such
        arguments, or not on that branch.
        """
        receiver = self._receiver
        return self._engine.find(self._cache, (*receiver, *args), kwargs, bool(receiver), self._root())

    def _root(self) -> torch.nn.Module | None:
        owner = self._receiver[0] if self._receiver else getattr(self.original, "__self__", self.original)
        return owner if isinstance(owner, torch.nn.Module) else None

    def held(self) -> Iterator[Held]:
        """What the recordings answer, oldest first: a call of zeros for each, and its program.

        Those that the state fits no more are left out. Raises `NotImplementedError` if no call can be made up
        for a recording.

        >>> import lazytrace
        >>> step = lazytrace.traced(lambda x: x * 2)
        >>> _ = step(torch.ones(3))
        >>> [one.args for one in lazytrace.handle(step).held()]
        [(tensor([0., 0., 0.]),)]
        """
        return self._engine.held(self._cache, self._receiver, self._root())

    def graph(self, /, *args: Any, **kwargs: Any) -> torch.fx.GraphModule:
        """The program for these arguments as a `torch.fx.GraphModule` that is called like the function.

        See `Program.to_fx`. Raises `LookupError` when the function has not been recorded with such
        arguments, and `NotImplementedError` with the reason when a graph cannot do the same.
        """
        return self.program(*args, **kwargs).to_fx()

    def exportable(self, /, *args: Any, **kwargs: Any) -> Exportable:
        """Whether the program for these arguments can be exported; if not, each obstacle with its line.

        Raises `LookupError` when the function has not been recorded with such arguments.
        """
        return exportable(self.program(*args, **kwargs))

    def parameters(self) -> list[inspect.Parameter] | None:
        """The parameters that calls bind to, without that of a bound `self`; None where there is no
        telling."""
        found = self._engine.parameters
        declared = found.declared() if found is not None else None
        return declared[bool(self._receiver) :] if declared is not None else None

    def unread(self) -> frozenset[str]:
        """The parameters that the function never reads, which calls may pass anything for.

        >>> import lazytrace
        >>> sorted(lazytrace.handle(lazytrace.traced(lambda x, batch_idx: x * 2)).unread())
        ['batch_idx']
        """
        found = self._engine.parameters
        return found.left_out() if found is not None else frozenset()

    def grown(self) -> frozenset[str]:
        """The parameters of whose lists and dicts a signature holds the class alone, as calls add to them.

        >>> import lazytrace
        >>> lazytrace.handle(lazytrace.traced(lambda x, log: log.append(x))).grown()
        frozenset()
        """
        found = self._engine.parameters
        return found.grown() if found is not None else frozenset()

    def arguments(self, /, *args: Any, **kwargs: Any) -> list[tuple[str, Any]]:
        """What a call passes to each parameter that the function reads, defaults too.

        >>> import lazytrace
        >>> lazytrace.handle(lazytrace.traced(lambda x, k=2: x * k)).arguments(1)
        [('x', 1), ('k', 2)]
        """
        found = self._engine.parameters
        named = found.named((*self._receiver, *args), kwargs, values=True) if found is not None else []
        return named[bool(self._receiver) :]

    def freeze(self, *, state: bool = False) -> None:
        """Record no more: a call that would need a recording raises `RetraceError`, after all guards.

        With `state` the caller promises that state does not change from now on, and the guards on it go, of
        the traces that there are: modules, attributes, globals, closures, code. A change of these is not
        noticed. Parameters, buffers and other tensors stay live, as each call finds them by their paths;
        everything about arguments is guarded as before. Of a bound method its object is state.

        >>> import lazytrace
        >>> class Scaled(torch.nn.Linear):
        ...     scale = 2.0
        ...     def forward(self, x):
        ...         return super().forward(x) * self.scale
        >>> net = lazytrace.traced(Scaled(1, 1, bias=False))
        >>> before = net(torch.ones(1, 1))
        >>> net.freeze(state=True)
        >>> net.scale = 3.0
        >>> torch.equal(net(torch.ones(1, 1)), before)
        True
        """
        self._engine.freeze()
        if state:
            self._engine.promise(self._own_cache(), 1 + len(self._receiver))

    def thaw(self) -> None:
        """Take `freeze` back: record again, and guard all state again."""
        self._engine.frozen = False
        self._engine.doubt()

    def _own_cache(self) -> TraceCache | None:
        """The cache of a bound method's instance; None of a function."""
        return None if self._cache is self._engine.cache else self._cache


class _Asking:
    """The methods of a handle, on the traced function itself."""

    __slots__ = ()  # it stands before wrapt's class, whose `__dict__` is that of what is wrapped

    def _self_handle(self) -> Handle:
        raise NotImplementedError

    def cache_info(self) -> CacheInfo:
        """Hits, misses, limit and size, as `functools.lru_cache` has them; the size is this instance's."""
        return self._self_handle().cache_info()

    def cache_clear(self) -> None:
        """Drop all traces; of a bound method, those of its instance."""
        self._self_handle().cache_clear()

    def stats(self) -> Snapshot:
        """The counts of this function, over all instances."""
        return self._self_handle().stats()

    def graph(self, /, *args: Any, **kwargs: Any) -> torch.fx.GraphModule:
        """The program for these arguments as a `torch.fx.GraphModule` that is called like the function.

        See `Program.to_fx`. Raises `LookupError` when the function has not been recorded with such
        arguments, and `NotImplementedError` with the reason when a graph cannot do the same.
        """
        return self._self_handle().graph(*args, **kwargs)

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """Whether this call would hit, and if not, every reason; runs nothing and counts nothing."""
        return self._self_handle().explain(*args, **kwargs)

    def exportable(self, /, *args: Any, **kwargs: Any) -> Exportable:
        """Whether the program for these arguments can be exported; if not, each obstacle with its line.

        Raises `LookupError` when the function has not been recorded with such arguments.
        """
        return self._self_handle().exportable(*args, **kwargs)

    def freeze(self, *, state: bool = False) -> None:
        """Record no more: a call that would need a recording raises `RetraceError`, after all guards.

        With `state` the caller promises that state does not change from now on: see `Handle.freeze`.
        """
        self._self_handle().freeze(state=state)

    def thaw(self) -> None:
        """Take `freeze` back: record again, and guard all state again."""
        self._self_handle().thaw()

    def program(self, /, *args: Any, **kwargs: Any) -> Program:
        """The program that these arguments would run, as data.

        See `lazytrace.programs.Program`: inputs, captured state, steps with line and module, reads, writes,
        `listing()` and `to_fx()`. Of several branches it is the one that these arguments take, found by
        running them on copies. Raises `LookupError` when the function has not been recorded with such
        arguments, or not on that branch.
        """
        return self._self_handle().program(*args, **kwargs)

    @property
    def original(self) -> Callable[..., Any]:
        """The plain function, bound if this is."""
        return self._self_handle().original


class _GivesWay:
    """A name of ours that belongs to what is wrapped, if that has such an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ours = getattr(_Asking, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            # torch.jit.script compiles what it finds as a property of a class.
            return self if isinstance(self._ours, property) else self._ours
        found = getattr(instance.__wrapped__, self._name, _NOTHING)
        # Another traced function, to which what is wrapped passes questions on, is not what is asked.
        if found is _NOTHING or issubclass(type(getattr(found, "__self__", found)), _Asking):
            return self._ours.__get__(instance, owner)
        return found

    def __set__(self, instance: Any, value: object) -> None:
        setattr(instance.__wrapped__, self._name, value)

    def __delete__(self, instance: Any) -> None:
        delattr(instance.__wrapped__, self._name)


_NOTHING = object()


if available():
    _Function, _Bound = core.make_wrapper_classes(wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper)
else:
    _Function, _Bound = wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper


class BoundTracedFunction(_Asking, _Bound):  # type: ignore[misc, valid-type]
    """A traced method of one instance or class; made anew at each access, like bound methods are."""

    @property
    def _self_engine(self) -> Engine:
        return self._self_parent._self_engine  # type: ignore[no-any-return]

    def _self_receiver(self) -> object:
        """What the plain function takes as its first argument; None where it takes nothing."""
        kind = self._self_parent._self_kind
        if kind is staticmethod:
            return None
        bound: Any = self.__wrapped__
        return bound.__self__ if kind is classmethod else self._self_instance

    def _self_handle(self) -> Handle:
        engine, receiver = self._self_engine, self._self_receiver()
        cache = engine.cache_of(None if isinstance(receiver, type) else receiver)
        return Handle(engine, cache, () if receiver is None else (receiver,), self.__wrapped__)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method: a hit, a recording, or the plain method."""
        if is_dynamo_tracing():
            return self.__wrapped__(*args, **kwargs)
        receiver = self._self_receiver()
        if receiver is None:
            return self._self_engine.call(None, args, kwargs)
        instance = None if isinstance(receiver, type) else receiver
        return self._self_engine.call(instance, (receiver, *args), kwargs)

    def __copy__(self) -> BoundTracedFunction:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundTracedFunction:
        """The method of a copy of the object, as of plain methods; of functions of a class, the same."""
        receiver = self._self_receiver()
        if receiver is None or isinstance(receiver, type):
            return self
        return self._self_parent.__get__(copy.deepcopy(receiver, memo), self._self_owner)  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        receiver = self._self_receiver()
        return getattr, (self._self_owner if receiver is None else receiver, self.__wrapped__.__name__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


class TracedFunction(_Asking, _Function):  # type: ignore[misc, valid-type]
    """A function that is recorded once per signature and then replayed.

    It is a function in every other respect: name, doc, signature, `isinstance`. It binds as a method, pickles
    by reference, and `copy` and `deepcopy` give back the same object, as they do for functions.
    """

    __bound_function_wrapper__ = BoundTracedFunction
    _torchdynamo_inline = Inlined()

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        super().__init__(function, _unused)
        self._self_kind = type(function) if isinstance(function, classmethod | staticmethod) else None
        self._self_engine = self._self_make_engine(function, options)
        engine = self._self_engine
        if engine.matcher is not None and engine.parameters is not None:
            source, plain = engine.parameters.source(), self._self_kind is None
            core.arm(self, engine, engine.function, source, engine.matcher, plain)
        # Not `self`: the module that is traced may have a `stats` of its own.
        register(engine, engine.last_snapshot(), engine.source, engine.last_programs())

    def _self_make_engine(self, function: Callable[..., Any], options: Options) -> Engine:
        inner = getattr(function, "__func__", function) if self._self_kind else function
        return Engine(inner, options, _short_name(inner), _parameters(inner))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function: a hit, a recording, or the plain function.

        Most calls do not come here: see `core.call_natively` below.
        """
        # torch's compiler reads this line, and looks into the function, not into the engine.
        if is_dynamo_tracing():
            return self.__wrapped__(*args, **kwargs)
        return self._self_engine.call(None, args, kwargs)

    def _self_handle(self) -> Handle:
        return Handle(self._self_engine, self._self_engine.cache, (), self.__wrapped__)

    def __copy__(self) -> TracedFunction:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> TracedFunction:
        return self

    def __reduce__(self) -> Any:
        return str(self.__qualname__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


class TracedCallable(TracedFunction):
    """A traced partial, builtin, bound method or callable object.

    A copy wraps a copy of the object, and starts with no traces. Attributes that the object has are the
    object's, also those that a traced function has: `handle` reaches these.
    """

    cache_info = _GivesWay("cache_info")
    cache_clear = _GivesWay("cache_clear")
    stats = _GivesWay("stats")
    graph = _GivesWay("graph")
    explain = _GivesWay("explain")
    exportable = _GivesWay("exportable")
    freeze = _GivesWay("freeze")
    thaw = _GivesWay("thaw")
    program = _GivesWay("program")
    original = _GivesWay("original")

    def _self_make_engine(self, function: Callable[..., Any], options: Options) -> Engine:
        return Engine(_through(function), options, _short_name(function), _parameters(function))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self  # objects do not bind, functions do

    def __copy__(self) -> TracedCallable:
        return type(self)(copy.copy(self.__wrapped__), self._self_engine.options)

    def __deepcopy__(self, memo: dict[int, object]) -> TracedCallable:
        return type(self)(copy.deepcopy(self.__wrapped__, memo), self._self_engine.options)

    def __reduce__(self) -> Any:
        return type(self), (self.__wrapped__, self._self_engine.options)


# Methods of nn.Module that return the module itself: `traced(net).to("cpu")` must stay traced.
_RETURN_SELF = frozenset(
    {"to", "train", "eval", "cuda", "cpu", "xpu", "ipu", "mtia", "float", "double", "half", "bfloat16"}
    | {"type", "requires_grad_", "apply", "share_memory", "to_empty"}
)


def _forward_of_class(self: Any) -> Any:
    """What `torch.fx` finds: it asks the class of a module for its code, and that is ours."""
    raise NotTraceableError(no_forward_of_class())


class _Forward:
    """The `forward` of the module; asked of the class, something that says why there is none."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return _forward_of_class if instance is None else instance.__wrapped__.forward

    def __set__(self, instance: Any, value: object) -> None:
        instance.__wrapped__.forward = value

    def __delete__(self, instance: Any) -> None:
        del instance.__wrapped__.forward


class TracedModule(TracedCallable):
    """A traced `nn.Module`: calls are traced, hooks included; everything else is the module's own."""

    forward = _Forward()

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        super().__init__(function, options)
        self._self_seen: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name not in _RETURN_SELF:
            self._self_look_at(name, value)
            return value

        def returning_self(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            return self if result is self.__wrapped__ else result

        return returning_self

    def _self_look_at(self, name: str, method: object) -> None:
        """Note a method that calls the module: `self` is the plain one there."""
        if name in self._self_seen or type(method) is not types.MethodType:
            return
        self._self_seen.add(name)
        code = getattr(method.__func__, "__code__", None)
        if method.__self__ is self.__wrapped__ and code is not None and calls_first_argument(code):
            self._self_engine.counters.untraced(f"{type(self.__wrapped__).__name__}.{name}")

    def __iter__(self) -> Iterator[Any]:
        # Python looks it up on the class, where wrapt has none: a traced `Sequential` gives its layers.
        return iter(self.__wrapped__)

    def __repr__(self) -> str:
        return f"traced({self.__wrapped__!r})"


def handle(function: object) -> Handle:
    """The handle of a traced function, method or module; see `Handle`.

    Raises `NotTraceableError` when `function` is none.

    >>> import lazytrace
    >>> net = lazytrace.traced(torch.nn.Linear(2, 2))
    >>> lazytrace.handle(net).stats().calls
    0
    """
    if isinstance(function, Bucketed):
        function = function.__wrapped__
    if not isinstance(function, _Asking):
        raise NotTraceableError(not_traced("handle", function))
    return function._self_handle()


if available():
    for _class in (TracedFunction, TracedCallable, TracedModule, BoundTracedFunction):
        core.call_natively(_class)


def _unused(wrapped: Any, instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # wrapt asks for a wrapper function; the classes above answer calls themselves.
    raise NotImplementedError


def _short_name(function: Any) -> str:
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _parameters(function: Any) -> Parameters | None:
    if not available():
        return None
    if isinstance(function, torch.nn.Module):
        return Parameters(function.forward, whole=False)  # hooks are given the arguments, too
    return Parameters(function)


def _template(self: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    return call


# The file name tells the observer that this is not a part of lazytrace, whose frames it does not watch.
_CODE = _template(None).__code__.replace(co_filename="<lazytrace>")


def _through(self: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function that calls `self`, which a recording then reaches from its closure."""
    names = {"__name__": "<lazytrace>", "__builtins__": builtins}
    return types.FunctionType(_CODE, names, "call", None, (types.CellType(self),))
