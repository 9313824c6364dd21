"""The parameters of one function, and the native signature that binds calls to them."""

from __future__ import annotations

import dis
import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lazytrace._native import core
from lazytrace.originals import BUILTINS
from lazytrace.signature.describe import StateArgument

if TYPE_CHECKING:
    from lazytrace._core import Call

__builtins__ = BUILTINS

_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


_READS = ("LOAD_FAST", "LOAD_CLOSURE", "LOAD_DEREF", "LOAD_CLASSDEREF")
# With these, code reads parameters by names that are not in it.
_READ_ALL = frozenset({"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe"})


def unread_parameters(code: types.CodeType) -> tuple[str, ...]:
    """The parameters that the code of a function never reads.

    >>> unread_parameters((lambda batch, batch_idx: batch * 2).__code__)
    ('batch_idx',)
    """
    if not _READ_ALL.isdisjoint(code.co_names):
        return ()
    read = {i.argval for i in dis.get_instructions(code) if i.opname.startswith(_READS)}
    count = code.co_argcount + code.co_kwonlyargcount
    # super() takes the first argument from the frame.
    first = {*code.co_varnames[:1]} if "__class__" in code.co_freevars else set()
    return tuple(name for name in code.co_varnames[:count] if name not in read | first | {*code.co_cellvars})


def calls_first_argument(code: types.CodeType) -> bool:
    """Whether a method calls its own object, as `self(x)` does.

    >>> calls_first_argument((lambda self, x: self(x)).__code__)
    True
    >>> calls_first_argument((lambda self, x: self.forward(x)).__code__)
    False
    """
    steps = [(i.opname, i.argval) for i in dis.get_instructions(code)]
    first = ("LOAD_FAST", code.co_varnames[0]) if code.co_argcount else None
    return any(before == ("PUSH_NULL", None) and step == first for before, step in itertools.pairwise(steps))


def _is_changeable(value: object) -> bool:
    # By identity: a metaclass may compare as it likes.
    return type(value) is list or type(value) is dict


def _lengths(container: list[Any] | dict[Any, Any], met: set[int]) -> Iterator[int]:
    """How long a list or dict is, and those are that lie in it, each of them once."""
    if id(container) in met:
        return
    met.add(id(container))
    yield len(container)
    values = container if type(container) is list else dict.values(container)  # type: ignore[arg-type]
    for value in list(values):
        if _is_changeable(value):
            yield from _lengths(value, met)


class Unread:
    """The same, worked out when it is asked for first; holds code only, no function.

    >>> Unread(None).names()
    ()
    """

    def __init__(self, code: types.CodeType | None) -> None:
        self._code = code
        self._names: tuple[str, ...] | None = None

    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in order."""
        if self._names is None:
            self._names = unread_parameters(self._code) if self._code is not None else ()
        return self._names


def _signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        # Not through __wrapped__: what counts is how this very function takes its arguments.
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


class Parameters:
    """How calls of one function bind: `f(1, y=2)` and `f(x=1, y=2)` are then one signature.

    >>> def step(x, *, scale=2.0): ...
    >>> str(Parameters(step))
    '(x, scale)'
    """

    def __init__(self, function: Callable[..., Any], *, skip: int = 0, whole: bool = True) -> None:
        """`whole`: nothing but the code of the function gets its arguments."""
        self._function = function
        self._seen: tuple[object, object] = (None, None)
        self._defaults: dict[str, Any] = {}
        found = _signature_of(function)
        self._declared = list(found.parameters.values())[skip:] if found else None
        plain = self._plain()
        self._shape = self._layout()
        self._code = plain.__code__ if plain is not None else None
        self._left_out = frozenset(self.unread().names()) if whole else frozenset()
        self.native = core.Signature(*self._shape, self._code, tuple(self._left_out))
        # Of parameters whose lists and dicts a call has made longer or shorter: the lengths before it.
        self._lengths: dict[str, list[int]] = {}
        self._states: set[str] = set()

    def _layout(self) -> tuple[list[str], int, int, bool, bool]:
        if self._declared is None:
            return [], 0, 0, True, True
        kinds = [p.kind for p in self._declared]
        positional = [p.name for p in self._declared if p.kind in _NAMED]
        keyword_only = [p.name for p in self._declared if p.kind is inspect.Parameter.KEYWORD_ONLY]
        return (
            positional + keyword_only,
            kinds.count(inspect.Parameter.POSITIONAL_ONLY),
            len(positional),
            inspect.Parameter.VAR_POSITIONAL in kinds,
            inspect.Parameter.VAR_KEYWORD in kinds,
        )

    def bind(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        """A call of `function`, which runs what these are the parameters of; None where they do not fit.

        >>> Parameters(len).bind(len, (), {}) is None
        True
        """
        return self.native.bind(function, args, kwargs, self.source())

    def _plain(self) -> types.FunctionType | None:
        inner = getattr(self._function, "__func__", self._function)
        # A signature that was put there says nothing of the parameters and defaults of the code.
        if isinstance(inner, types.FunctionType) and not hasattr(inner, "__signature__"):
            return inner
        return None

    def source(self) -> Any:
        """What the native signature takes defaults from: the function that has them, or a dict by name.

        >>> Parameters(len).source()
        {}
        """
        plain = self._plain()
        return plain if plain is not None else self.defaults()

    def unread(self) -> Unread:
        """Which of them the function never reads.

        >>> Parameters(lambda x, k: x).unread().names()
        ('k',)
        """
        plain = self._plain()
        return Unread(plain.__code__ if plain is not None else None)

    def left_out(self) -> frozenset[str]:
        """The parameters that are no part of a signature: while the function has the code that reads none.

        >>> sorted(Parameters(lambda x, batch_idx: x * 2).left_out())
        ['batch_idx']
        """
        plain = self._plain()
        return self._left_out if plain is not None and plain.__code__ is self._code else frozenset()

    def defaults(self) -> dict[str, Any]:
        """Parameter name -> default, as the function has them now: they can be assigned to."""
        f = self._function
        now = (getattr(f, "__defaults__", None), getattr(f, "__kwdefaults__", None))
        if now[0] is not self._seen[0] or now[1] is not self._seen[1] or now[1]:
            found = _signature_of(f)
            declared = found.parameters.values() if found else ()
            self._defaults = {p.name: p.default for p in declared if p.default is not p.empty}
            self._seen = now
        elif self._seen == (None, None) and self._declared:
            self._defaults = {p.name: p.default for p in self._declared if p.default is not p.empty}
        return self._defaults

    def explicit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with the defaults of now passed: one that is assigned meanwhile makes no difference.

        >>> def step(x, k=2.0, /, y=3.0, *, scale=4.0): ...
        >>> Parameters(step).explicit((1,), {"y": 5.0})
        ((1, 2.0), {'y': 5.0, 'scale': 4.0})
        """
        source = self.source()
        if not isinstance(source, types.FunctionType) or not (source.__defaults__ or source.__kwdefaults__):
            return args, kwargs
        names, positional_only, positional, _, _ = self._shape
        code, defaults, named = source.__code__, source.__defaults__ or (), dict(source.__kwdefaults__ or {})
        count = code.co_argcount + code.co_kwonlyargcount
        if list(code.co_varnames[count - len(names) : count]) != names:
            return args, kwargs  # other code was put there
        all_args, all_kwargs = [*args], {**kwargs}
        for i in range(len(args), positional):
            at = i - (positional - len(defaults))
            if i >= positional_only and names[i] in kwargs:
                continue
            if at < 0:
                return args, kwargs  # one is missing: the function says so
            if i < positional_only:
                all_args.append(defaults[at])
            else:
                all_kwargs[names[i]] = defaults[at]
        for name in names[positional:]:
            if name not in kwargs and name in named:
                all_kwargs[name] = named[name]
        return tuple(all_args), all_kwargs

    def lengths(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any, list[int]]]:
        """The lists and dicts that a call is given, by name, and how long they are, with those inside."""
        named = self.named(args, kwargs)
        return [(name, one, [*_lengths(one, set())]) for name, one in named if _is_changeable(one)]

    def note_changed(self, before: list[tuple[str, Any, list[int]]]) -> None:
        """A call that was recorded has ended: which of its lists and dicts have another length than `before`.

        If this happens at two lengths, the call after it would be another signature, too. So what the
        parameter gets is state from then on.

        >>> parameters = Parameters(lambda x, losses: losses.append(x))
        >>> losses = []
        >>> for x in (1, 2):
        ...     before = parameters.lengths((x, losses), {})
        ...     losses.append(x)
        ...     parameters.note_changed(before)
        >>> parameters.named((3, losses), {})
        [('x', 3), ('losses', StateArgument(value=[1, 2]))]
        """
        for name, value, lengths in before:
            changed = lengths != [*_lengths(value, set())]
            if changed and self._lengths.setdefault(name, lengths) != lengths:
                self._states.add(self._parameter_of(name))
                self.native.take_as_state(self._parameter_of(name))

    def _parameter_of(self, name: str) -> str:
        """What an argument is passed to; "*" where it has no parameter of its own."""
        return name if name in self._shape[0] else "*"

    def _is_state(self, name: str, value: Any) -> bool:
        return self._parameter_of(name) in self._states and _is_changeable(value)

    def grown(self) -> frozenset[str]:
        """The parameters whose lists and dicts are state.

        >>> Parameters(lambda x, losses: losses.append(x)).grown()
        frozenset()
        """
        return frozenset(self._states)

    def named(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, values: bool = False
    ) -> list[tuple[str, Any]]:
        """The arguments of a call as (name, value), in the order in which the native signature walks them.

        What it knows the class of alone is a `StateArgument`, unless their `values` are asked for.
        """
        names, positional_only, positional, star, _ = self._shape
        defaults, rest = self.defaults(), dict(kwargs)
        left_out = self.left_out()
        result = []
        for i, name in enumerate(names):
            if i < positional and i < len(args):
                value = args[i]
            elif i >= positional_only and name in rest:
                value = rest.pop(name)
            else:
                value = defaults.get(name)
            if name not in left_out:
                result.append((name, value))
        if star:
            result += [(f"args[{i}]", value) for i, value in enumerate(args[positional:])]
        result += rest.items()
        if values or not self._states:
            return result
        return [(name, StateArgument(one) if self._is_state(name, one) else one) for name, one in result]

    def spread(self, kwargs: Iterable[str]) -> tuple[str, ...]:
        """The keywords that `**kwargs` takes, in their order.

        >>> Parameters(lambda x, **rest: x).spread({"b": 1, "x": 2, "a": 3})
        ('b', 'a')
        """
        return tuple(name for name in kwargs if name not in self._shape[0])

    def call_of(self, named: Iterable[tuple[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call that passes this, which `named` gave; None to what is left out.

        >>> Parameters(lambda x, unread, *rest, k: x + rest + k).call_of(
        ...     [("x", 1), ("k", 4), ("args[0]", 2), ("args[1]", 3)]
        ... )
        ((1, None, 2, 3), {'k': 4})
        """
        names, _, positional, _, _ = self._shape
        values = dict.fromkeys(names) | dict(named)
        rest = [name for name in values if name.startswith("args[") and name not in names]
        args = tuple(values.pop(name) for name in [*names[:positional], *rest])
        return args, values

    def declared(self) -> list[inspect.Parameter] | None:
        """The parameters as `inspect` has them; None of a callable that does not say.

        >>> [p.name for p in Parameters(lambda x, k: x).declared()]
        ['x', 'k']
        """
        return self._declared

    def positional_names(self, count: int) -> tuple[str, ...]:
        """What the first `count` arguments are called, those of `*args` by their number.

        >>> Parameters(lambda x, *rest: x).positional_names(3)
        ('x', 'args_0', 'args_1')
        """
        names, positional = self._shape[0], self._shape[2]
        return tuple(names[i] if i < positional else f"args_{i - positional}" for i in range(count))

    def __str__(self) -> str:
        if self._declared is None:
            return "(...)"
        stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        return f"({', '.join(stars.get(p.kind, '') + p.name for p in self._declared)})"
