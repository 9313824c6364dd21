"""Recording ahead of time, and checking recordings: `trace`, `trace_module`, `verify`."""

from __future__ import annotations

import collections
import contextlib
import difflib
import dis
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from lazytrace._torch import tree_flatten
from lazytrace.api import traced
from lazytrace.checks import (
    checkpoint_streams,
    checkpoint_tensors,
    clone_inputs,
    differences,
    is_array,
    is_leaf,
    slots_of,
)
from lazytrace.errors import (
    NotTraceableError,
    TracingCheckError,
    UntraceableError,
    check_failed,
    not_replayed,
)
from lazytrace.function import handle
from lazytrace.originals import BUILTINS
from lazytrace.recorded import Trace

__builtins__ = BUILTINS


@dataclass(frozen=True)
class Verification:
    """What `verify` has compared.

    `outputs`, `arguments`, `state` and `gradients` count the tensors and values that were compared.

    >>> verify(traced(lambda x: x.relu()), torch.ones(2)).outputs
    1
    """

    outputs: int
    arguments: int
    state: int
    gradients: int


@dataclass
class _Outcome:
    """What one run gave and left behind."""

    result: Any
    arguments: Any
    state: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    random: torch.Tensor
    raised: str = ""
    parts: tuple[str, ...] = field(default=("result", "arguments", "state", "gradients"), repr=False)

    def differences(self, other: _Outcome, rtol: float | None, atol: float | None) -> Iterator[str]:
        if self.raised != other.raised:
            yield f"raises {self.raised or 'nothing'} and {other.raised or 'nothing'}"
        for name in self.parts:
            words = {"gradients": "gradient of "}.get(name, name)
            one, two = getattr(self, name), getattr(other, name)
            yield from differences(words, one, two, rtol=rtol, atol=atol)
        if not torch.equal(self.random, other.random):
            yield "the random stream: the replay draws other numbers, or another number of them"


def _plain(function: Any) -> Callable[..., Any]:
    return handle(function).original


def _is_library(name: str | None) -> bool:
    package = (name or "").partition(".")[0]
    file = getattr(sys.modules.get(name or ""), "__file__", None) or ""
    known = package in ("torch", "numpy", "lazytrace") or package in sys.stdlib_module_names
    return known or "site-packages" in file


def _reached(function: types.FunctionType) -> Iterator[Any]:
    """What a function can take state from: its closure, what it wraps, its defaults, and the globals that it
    names, with what it names of modules among them."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield cell.cell_contents
    yield getattr(function, "__wrapped__", None)
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield value
        if isinstance(value, types.ModuleType) and not _is_library(value.__name__):
            yield from (vars(value)[one] for one in sorted(names & vars(value).keys()))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _globals_that_it_sets(function: types.FunctionType) -> set[str]:
    steps = (step for code in _codes(function.__code__) for step in dis.get_instructions(code))
    return {str(step.argval) for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}


_NOTHING: Final = object()


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


_DEEPEST = 12
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, types.CodeType)


class _State:
    """The tensors that a call can change, by name, and what is in its objects, classes and containers.

    What the function, its helpers and the objects among the arguments lead to; not what libraries hold.
    """

    def __init__(self, function: Any, arguments: Any) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._containers: list[Any] = []  # dicts, those of objects among them, lists, sets and deques
        self._slots: list[tuple[Any, str, Any]] = []  # also of classes: (object, name, value)
        self._cells: list[tuple[types.CellType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._arrays: list[Any] = []
        self._seen: dict[int, Any] = {}  # held: an address may be another's later
        self._count = 0  # of what has no name of its own
        plain = _plain(function)
        receiver = getattr(plain, "__self__", plain)
        self._add("", receiver, 0)
        self._add("", plain, 0)
        for leaf in tree_flatten(arguments)[0]:  # of which tensors and arrays are copied for each run
            if not isinstance(leaf, torch.Tensor) and not is_array(leaf):
                self._add(self._name(leaf), leaf, 0)

    def _name(self, holder: Any) -> str:
        self._count += 1
        return "" if isinstance(holder, torch.nn.Module) else f"state{self._count}"

    def _add(self, path: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or depth > _DEEPEST or isinstance(value, types.ModuleType):
            return
        if isinstance(value, _PLAIN):
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            while path in self.tensors:
                path += "'"
            self.tensors[path] = value
        elif is_array(value):
            self._arrays.append(value)
        elif isinstance(value, types.FunctionType):
            if not _is_library(value.__module__):
                self._bindings(value)
                for holder in _reached(value):
                    self._add(self._name(holder), holder, depth + 1)
        elif isinstance(value, types.MethodType):
            self._add(path, value.__self__, depth)
            self._add(path, value.__func__, depth)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._add(self._name(part), part, depth + 1)
        elif isinstance(value, type):
            self._class(path, value, depth)
        elif isinstance(value, torch.nn.Module):
            for prefix, module in value.named_modules():
                self._seen[id(module)] = module
                self._attributes(_joined(path, prefix), module, depth)
        elif isinstance(value, list | tuple | dict | set | collections.deque):
            content = _content(value)
            if not isinstance(value, tuple):
                self._containers.append(value)
            for key, item in content if isinstance(value, dict) else enumerate(content):
                self._add(f"{path}[{key!r}]", item, depth + 1)
        else:
            self._object(path, value, depth)

    def _bindings(self, function: types.FunctionType) -> None:
        """What the variables are that its code may set."""
        self._cells += [(cell, _in_cell(cell)) for cell in function.__closure__ or ()]
        names = function.__globals__
        for name in _globals_that_it_sets(function):
            self._globals.append((names, name, names.get(name, _NOTHING)))

    def _restore_bindings(self) -> None:
        for cell, before in self._cells:
            if before is _NOTHING and _in_cell(cell) is not before:
                del cell.cell_contents
            elif _in_cell(cell) is not before:
                cell.cell_contents = before
        for names, name, before in self._globals:
            if before is _NOTHING:
                names.pop(name, None)
            elif names.get(name, _NOTHING) is not before:
                names[name] = before

    def _object(self, path: str, value: Any, depth: int) -> None:
        if hasattr(value, "__dict__"):
            self._attributes(path, value, depth)
        for name in slots_of(value):
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                self._slots.append((value, name, getattr(value, name)))
                self._add(_joined(path, name), getattr(value, name), depth + 1)
        self._add(path, type(value), depth)

    def _class(self, path: str, cls: type, depth: int) -> None:
        if _is_library(cls.__module__):
            return
        for base in cls.__bases__:
            self._add(path, base, depth)
        for name, item in list(vars(cls).items()):
            if isinstance(item, staticmethod | classmethod):
                item = item.__func__
            elif isinstance(item, property):
                item = item.fget
            elif not isinstance(item, types.FunctionType) and not name.startswith("__"):
                self._slots.append((cls, name, item))
            self._add(_joined(path, name), item, depth + 1)

    def _attributes(self, path: str, value: Any, depth: int) -> None:
        names = vars(value)
        if isinstance(names, dict):
            self._containers.append(names)
        for group in ("_parameters", "_buffers"):
            for name, tensor in (names.get(group) or {}).items():
                if isinstance(tensor, torch.Tensor):
                    self._add(_joined(path, name), tensor, depth + 1)
        for name, item in list(names.items()):
            if name not in ("_parameters", "_buffers", "_modules"):
                self._add(_joined(path, name), item, depth + 1)
        self._add(path, type(value), depth)

    def save(self) -> Callable[[], None]:
        """What puts all of it back, gradients and random streams too."""
        restore_streams = checkpoint_streams()
        restore_tensors = checkpoint_tensors(self.tensors.values())
        containers = [(one, _content(one)) for one in self._containers]
        arrays = [(one, one.copy()) for one in self._arrays]

        def restore() -> None:
            for container, before in containers:
                if not _holds_the_same(container, before):
                    _fill(container, before)
            for owner, name, value in self._slots:
                if getattr(owner, name, self) is not value:
                    setattr(owner, name, value)
            self._restore_bindings()
            for array, before in arrays:
                array[...] = before
            restore_tensors()
            restore_streams()

        return restore


# The methods of these are called, and not those of classes that are made of them: they may do anything.
_BASES: Final = (collections.OrderedDict, dict, list, tuple, set, collections.deque)


def _base(container: Any) -> Any:
    return next(base for base in _BASES if isinstance(container, base))


def _content(container: Any) -> list[Any]:
    base = _base(container)
    return list(base.items(container) if issubclass(base, dict) else base.__iter__(container))


def _fill(container: Any, content: list[Any]) -> None:
    base = _base(container)
    base.clear(container)
    if issubclass(base, dict):
        for key, value in content:
            base.__setitem__(container, key, value)
    else:
        (base.update if base is set else base.extend)(container, content)


def _holds_the_same(container: Any, before: list[Any]) -> bool:
    now = _content(container)
    if len(now) != len(before):
        return False
    if isinstance(container, set):
        return {id(one) for one in now} == {id(one) for one in before}
    if isinstance(container, dict):
        return all(k is m and v is w for (k, v), (m, w) in zip(now, before, strict=True))
    return all(x is y for x, y in zip(now, before, strict=True))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


class _Runs:
    """Runs of one call, each on copies of its arguments and from the same state."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], Any] | None
    ) -> None:
        self.function = function
        self.arguments = args, kwargs
        self._loss = loss
        self._state = _State(function, self.arguments)
        self._restore = self._state.save()

    def run(self, function: Callable[..., Any], *, backward: bool = True) -> _Outcome:
        """What one run gives; all is put back after it."""
        args, kwargs = clone_inputs(self.arguments)
        raised, result = "", None
        try:
            try:
                result = function(*args, **kwargs)
                if backward:
                    self._differentiate(result)
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
            return self._outcome(result, (args, kwargs), raised)
        finally:
            self._restore()

    def _differentiate(self, result: Any) -> None:
        if self._loss is not None:
            total = self._loss(result)
        else:
            leaves = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            # Not the plain sum: its gradient would be 1 everywhere.
            total = sum(t.sin().sum().abs() for t in leaves) if leaves else None
        if isinstance(total, torch.Tensor) and total.requires_grad and torch.is_grad_enabled():
            total.backward()  # type: ignore[no-untyped-call]

    def _outcome(self, result: Any, arguments: Any, raised: str) -> _Outcome:
        inputs = {f"argument {i}": t for i, t in enumerate(tree_flatten(arguments)[0])}
        tensors = {**inputs, **self._state.tensors}
        gradients = {
            name: t.grad.clone() if t.grad is not None else None
            for name, t in tensors.items()
            if isinstance(t, torch.Tensor) and is_leaf(t)
        }
        # What a run returns may be the state itself, which is put back.
        result, arguments, state = clone_inputs((result, arguments, dict(self._state.tensors)))
        return _Outcome(result, arguments, state, gradients, torch.get_rng_state(), raised)


def verify(
    function: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Verification:
    """Run a traced function plainly and as a replay, and compare all that they give and leave behind.

    Compared are results, gradients (of `loss(result)`, by default of all results), arguments that were
    written to, tensors of the state (parameters, buffers, tensors that the function or its object can
    reach), and the random stream. Both run on copies of the arguments; state and random stream are put back,
    by value. A call that was not recorded is recorded, which runs the function once more.

    `args` is a tuple, or one argument. For tolerances see `same`; with 0 only equal numbers pass.

    Raises `TracingCheckError` with all differences, and `UntraceableError` when the call is not replayed.

    >>> net = traced(torch.nn.Linear(2, 2))
    >>> verify(net, torch.ones(1, 2))
    Verification(outputs=1, arguments=1, state=2, gradients=2)
    """
    given = args if isinstance(args, tuple) else (args,)
    runs = _Runs(function, given, dict(kwargs or {}), loss)
    plain = runs.run(_plain(function))
    _record(runs, bool(plain.raised))
    hits = handle(function).stats().hits
    replayed = runs.run(function)
    if handle(function).stats().hits == hits and not plain.raised:
        raise UntraceableError(not_replayed(_name(function), _why(function)))
    found = list(plain.differences(replayed, rtol, atol))
    if found:
        raise TracingCheckError(check_failed(_name(function), found, _listings(runs)))
    compared = sum(gradient is not None for gradient in plain.gradients.values())
    outputs, arguments = len(tree_flatten(plain.result)[0]), len(tree_flatten(plain.arguments)[0])
    return Verification(outputs, arguments, len(plain.state), compared)


def _record(runs: _Runs, raises: bool) -> None:
    """Until the call would hit: lazily made state is often there the second time."""
    for _ in range(0 if raises else 3):
        if _is_recorded(runs.function, *clone_inputs(runs.arguments)):
            return
        runs.run(runs.function, backward=False)


def _is_recorded(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the branch that a call takes is."""
    if not handle(function).explain(*args, **kwargs).hit:
        return False
    try:
        handle(function).program(*args, **kwargs)
    except LookupError:
        return False
    return True


def record_ahead(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record a call, unless it would hit, on copies of its arguments; state and random stream are put back.

    Raises `UntraceableError` when it cannot be recorded.
    """
    if _is_recorded(function, args, kwargs):
        return
    runs = _Runs(function, args, kwargs, None)
    _record(runs, False)
    if not _is_recorded(function, args, kwargs):
        raise UntraceableError(not_replayed(_name(function), _why(function)))


def _name(function: Any) -> str:
    return handle(function).stats().name


def _why(function: Any) -> str:
    stats = handle(function).stats()
    last = next((event for event in reversed(stats.events) if event.kind == "eager"), None)
    if last is None:
        return "it is recorded again at each call"
    return "; ".join(str(reason) for reason in last.reasons)


def _listings(runs: _Runs) -> str:
    """What differs between the recording and a new one; "" where they are alike."""
    again = traced(_plain(runs.function), check=False)
    args, kwargs = clone_inputs(runs.arguments)
    try:
        runs.run(again, backward=False)
        one = handle(runs.function).program(*args, **kwargs).trace
        two = handle(again).program(*args, **kwargs).trace
    except (LookupError, RuntimeError, NotImplementedError):
        return ""
    return side_by_side(_steps(one), _steps(two))


_ROWS_AT_MOST = 20


def _steps(trace: Trace) -> list[tuple[str, str]]:
    """Each step as text without its number, and the line of the user's code; then what is returned."""
    steps = [(one.text.partition(" ")[2].strip(), f"{one.place}: {one.source}") for one in trace.steps()]
    return [*steps, (trace.listing().splitlines()[-1], "")]


def side_by_side(one: list[tuple[str, str]], two: list[tuple[str, str]]) -> str:
    """The steps in which two recordings differ, each with its line; "" where they do not.

    >>> print(side_by_side([("mul(r1, 2)", "train.py:4: x * k")], [("mul(r1, 3)", "train.py:4: x * k")]))
      recorded    recorded again
      mul(r1, 2)  mul(r1, 3)      train.py:4: x * k
    """
    left_texts, right_texts = ([text for text, _ in steps] for steps in (one, two))
    matcher = difflib.SequenceMatcher(None, left_texts, right_texts, autojunk=False)
    rows = [("recorded", "recorded again", "")]
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        pairs = itertools.zip_longest(one[i:i_end], two[j:j_end], fillvalue=("", ""))
        rows += [(a, b, where or line) for (a, where), (b, line) in pairs if kind != "equal"]
    if len(rows) == 1:
        return ""
    more = [f"  ... and {len(rows) - 1 - _ROWS_AT_MOST} more"] if len(rows) - 1 > _ROWS_AT_MOST else []
    rows = rows[: 1 + _ROWS_AT_MOST]
    left, right = (max(len(row[side]) for row in rows) for side in (0, 1))
    return "\n".join([f"  {a:{left}}  {b:{right}}  {where}".rstrip() for a, b, where in rows] + more)


def trace(
    function: Any,
    example_inputs: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    check_inputs: Iterable[Any] = (),
    check_trace: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    freeze: bool = False,
    **options: Any,
) -> Any:
    """A traced function that is recorded now, as `torch.jit.trace` gives one.

    `example_inputs` is a tuple of positional arguments, a dict of keyword arguments, one argument, or a list
    of these: then each is recorded. `kwargs` are keyword arguments for all of them. The function runs on
    copies of them, and parameters, buffers, other tensors of its state and the random stream are put back.
    With `check_trace` each recording is checked by `verify`, and so are the calls in `check_inputs`, which
    are recorded where they have to be; `rtol` and `atol` are for these. `options` are those of `traced`.

    With `freeze` no further recordings are made, and you promise that state does not change: guards on it
    are left out, which makes replays faster. Parameters, buffers and other tensors stay live, and everything
    about arguments is guarded. See `freeze(state=True)` of a traced function; `thaw()` takes it back.

    Raises `TracingCheckError` when plain and traced differ, and `UntraceableError` when a call cannot be
    replayed.

    >>> step = trace(lambda x, k: x * k, [(torch.ones(2), 2), (torch.ones(3), 2)], freeze=True)
    >>> step.cache_info().currsize
    2
    """
    made = function if _is_traced(function) else traced(function, **options)
    examples = [example_inputs] if not isinstance(example_inputs, list) else example_inputs
    for example in [] if example_inputs is None and not kwargs else examples:
        _trace_one(made, example, kwargs, check_trace, rtol, atol)
    for example in check_inputs:
        _trace_one(made, example, kwargs, True, rtol, atol)
    if freeze:
        handle(made).freeze(state=True)
    return made


def _is_traced(function: Any) -> bool:
    try:
        handle(function)
    except NotTraceableError:
        return False
    return True


def _trace_one(
    function: Any,
    example: Any,
    kwargs: Mapping[str, Any] | None,
    check: bool,
    rtol: float | None,
    atol: float | None,
) -> None:
    args, named = call_of(example, kwargs)
    if check:
        verify(function, args, named, rtol=rtol, atol=atol)
        return
    record_ahead(function, args, named)


def call_of(example: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call: of a tuple of positional ones, a dict of named ones, or one.

    >>> call_of(3, {"k": 4}), call_of({"x": 3}, None)
    (((3,), {'k': 4}), ((), {'x': 3}))
    """
    if isinstance(example, dict):
        return (), {**example, **(kwargs or {})}
    args = example if isinstance(example, tuple) else () if example is None else (example,)
    return args, dict(kwargs or {})


def trace_module(
    module: torch.nn.Module,
    inputs: Mapping[str, Any],
    *,
    check_inputs: Iterable[Mapping[str, Any]] = (),
    check_trace: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    **options: Any,
) -> torch.nn.Module:
    """Record several methods of a module now; they are traced from then on, for this instance.

    `inputs` has for each method what `trace` takes as `example_inputs`; the same goes for each of
    `check_inputs`. Returns the module. Raises what `trace` raises.

    >>> class Coder(torch.nn.Module):
    ...     def encode(self, x):
    ...         return x * 2
    ...     def decode(self, x):
    ...         return x / 2
    >>> coder = trace_module(Coder(), {"encode": torch.ones(2), "decode": (torch.ones(2),)})
    >>> coder.encode(torch.ones(2)), handle(coder.encode).stats().hits > 0
    (tensor([2., 2.]), True)
    """
    for name, example in inputs.items():
        checks = [one[name] for one in check_inputs if name in one]
        method = trace(
            getattr(module, name),
            example,
            check_inputs=checks,
            check_trace=check_trace,
            rtol=rtol,
            atol=atol,
            **options,
        )
        module.__dict__[name] = method
    return module
