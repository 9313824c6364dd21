"""A recorded program as data: where each tensor comes from, what is done to it, and what becomes of it."""

from __future__ import annotations

import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lazytrace.recorded import Trace
from lazytrace.signature import tensors_of

if TYPE_CHECKING:
    from lazytrace._core import Call
    from lazytrace.programs.submodules import Submodules


class Register(NamedTuple):
    """A tensor of the program, by number."""

    number: int

    def __repr__(self) -> str:
        return f"r{self.number}"


@dataclass(frozen=True)
class Meta:
    """What a tensor looked like; `stride` is None of one that has none, sizes are in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    device: torch.device
    requires_grad: bool
    plain: bool = True
    """Whether it is no conjugate, sparse, quantized or other special kind of tensor."""
    keys: int = 0
    """Its dispatch keys, as torch numbers them."""


@dataclass(frozen=True)
class Modes:
    """The modes that operators run in."""

    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    autocast_cache: bool = True
    autocast_region: int = 0
    """The region of its own that it is in, counted from 1: its casts of weights are kept until it ends."""
    switches: tuple[tuple[str, int], ...] = ()
    """Those of `torch.backends` that the function has set: (name, number), `("cudnn.enabled", 0)`."""

    @property
    def key(self) -> tuple[object, ...]:
        """What two modes must have in common for a program to stay in them; what is kept of casts counts in
        autocast only."""
        kept = (self.autocast_cache, self.autocast_region) if self.autocast else None
        return self.grad, self.inference, self.autocast, kept, self.switches


@dataclass(frozen=True)
class Result:
    """What a step gives: `kind` is "register", "list", "read" (a value that Python saw) or "ignored"."""

    kind: str
    register: Register | None
    meta: Meta | None
    value: Any = None
    items: tuple[Result, ...] = ()
    known: bool = False
    """Whether it is a tensor that was there before the step, as in-place operators give."""
    base: Register | None = None
    """The argument whose memory it shows, `distance` elements from where that begins."""
    distance: int = 0

    def registers(self) -> Iterator[Register]:
        """All registers in it."""
        if self.kind == "register" and self.register is not None:
            yield self.register
        for item in self.items:
            yield from item.registers()


@dataclass(frozen=True)
class Generator:
    """A generator of random numbers among the arguments of a step, by the path that a person would write."""

    path: str

    def __str__(self) -> str:
        return self.path


class Argument(NamedTuple):
    """One argument of a step: a Register, a list of Register or None, a Generator, or a plain value."""

    name: str
    keyword_only: bool
    value: Any


class Place(NamedTuple):
    """A line of the user's code; `file` is "" where none is known."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "unknown line"


@dataclass(frozen=True)
class Operation:
    """One step. `kind` is "operator", "literal", "fill", "data", "requires_grad", "gradient", "set_gradient",
    "set_data", "opaque" or "read"."""

    kind: str
    operator: str
    overload: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    modes: Modes
    place: Place
    module: str = ""
    """The path of the module whose `forward` ran, as `layers.0.attn`; "" outside of all modules."""
    modules: tuple[tuple[str, str, int], ...] = ()
    """The modules around it, outermost first, each as (path, type, which call of it, from 0 on)."""
    literal: torch.Tensor | None = None
    random: bool = False
    effect: bool = False
    exit: bool = False
    """Whether another call may find another value or shape here."""
    sizes: bool = False
    """Whether the sizes of its results follow from values."""
    opaque: Opaque | None = None

    def used(self) -> Iterator[Register]:
        """The registers that it takes."""
        for argument in self.arguments:
            values = argument.value if isinstance(argument.value, list) else [argument.value]
            yield from (value for value in values if isinstance(value, Register))
        if self.opaque is not None:
            yield from self.opaque.call.registers()

    def made(self) -> Iterator[Register]:
        """The registers that it gives."""
        for result in self.results:
            yield from result.registers()

    def reads(self) -> tuple[Any, ...]:
        """The values that Python saw of it."""
        return tuple(result.value for result in self.results if result.kind == "read")

    def handle(self) -> Any:
        """The operator itself. Raises `AttributeError` when torch does not know it."""
        namespace, _, name = self.operator.partition("::")
        packet = getattr(getattr(torch.ops, namespace), name)
        return getattr(packet, self.overload or "default")


@dataclass(frozen=True)
class Tree:
    """A value with holes for registers. `kind` is one of "register", "parameter" (a register's tensor as an
    object of this class), "array" (of numpy: a register's memory),
    "constant", "state", "tuple", "list", "dict", "set", "named", "object", "partial", "view" (of a dict),
    "method", "function", "cell" (of a closure), "decorated" (a tensor with attributes), "reference" (a
    weak one) and "same", which stands for a container, an array or a cell that came before."""

    kind: str
    index: int = -1
    value: Any = None
    items: tuple[Tree, ...] = ()

    def registers(self) -> Iterator[Register]:
        """All registers in it, in order."""
        if self.kind in ("register", "parameter", "array"):
            yield Register(self.index)
        for item in self.items:
            yield from item.registers()

    def walk(self) -> Iterator[Tree]:
        """It and all that is in it."""
        yield self
        for item in self.items:
            yield from item.walk()

    def build(
        self, tensor: Callable[[Register], Any], state: Callable[[int], Any] | None = None, outer: int = 0
    ) -> Any:
        """The value, with `tensor` in place of registers. `outer` containers are around it.

        >>> Tree("tuple", items=(Tree("register", 3), Tree("constant", value=2))).build(str)
        ('r3', 2)
        """
        return _Rebuilding(tensor, state, [None] * outer).build(self)


# Nothing can be inside one of these and be it, but each has a number like the containers.
_MADE_OF_PARTS = ("tuple", "named", "partial", "view", "method", "function", "reference")


class _Rebuilding:
    def __init__(
        self, tensor: Callable[[Register], Any], state: Callable[[int], Any] | None, made: list[Any]
    ) -> None:
        self._tensor = tensor
        self._state = state
        self._made = made

    def build(self, tree: Tree) -> Any:
        if tree.kind in ("register", "parameter"):
            return self._tensor(Register(tree.index))
        if tree.kind == "constant":
            return tree.value
        if tree.kind == "state":
            if self._state is None:
                raise NotImplementedError("it holds a part of the state")
            return self._state(tree.index)
        if tree.kind == "same":
            return self._made[tree.index]
        make = getattr(self, f"_{tree.kind}")
        return self._after_its_parts(make, tree) if tree.kind in _MADE_OF_PARTS else make(tree)

    def _after_its_parts(self, make: Callable[[Tree], Any], tree: Tree) -> Any:
        at = len(self._made)
        self._made.append(None)
        self._made[at] = make(tree)
        return self._made[at]

    def _note(self, value: Any) -> Any:
        self._made.append(value)
        return value

    def _reference(self, tree: Tree) -> Any:
        return weakref.ref(self.build(tree.items[0]))

    def _array(self, tree: Tree) -> Any:
        return self._note(self._tensor(Register(tree.index)).numpy())

    def _tuple(self, tree: Tree) -> Any:
        return tuple(self.build(item) for item in tree.items)

    def _named(self, tree: Tree) -> Any:
        items = [self.build(item) for item in tree.items]
        make = getattr(tree.value, "_make", tree.value)  # torch's own named tuples take a sequence
        return make(items)

    def _list(self, tree: Tree) -> Any:
        value: list[Any] = self._note([])
        value.extend(self.build(item) for item in tree.items)
        return value

    def _set(self, tree: Tree) -> Any:
        value: set[Any] = self._note(set())
        value.update(self.build(item) for item in tree.items)
        return value

    def _pairs(self, tree: Tree) -> Iterator[tuple[Any, Any]]:
        for i in range(0, len(tree.items) - 1, 2):
            key = self.build(tree.items[i])
            yield key, self.build(tree.items[i + 1])

    def _dict(self, tree: Tree) -> Any:
        value: dict[Any, Any] = self._note({})
        value.update(self._pairs(tree))
        return value

    def _decorated(self, tree: Tree) -> Any:
        tensor, *attributes = (self.build(item) for item in tree.items)
        vars(tensor).update(zip(tree.value, attributes, strict=True))
        return tensor

    def _partial(self, tree: Tree) -> Any:
        function, args, kwargs = (self.build(item) for item in tree.items)
        return tree.value(function, *args, **kwargs)

    def _view(self, tree: Tree) -> Any:
        return getattr(self.build(tree.items[0]), tree.value)()

    def _method(self, tree: Tree) -> Any:
        return MethodType(*(self.build(item) for item in tree.items))

    def _function(self, tree: Tree) -> Any:
        module, defaults, named, *cells = (self.build(item) for item in tree.items)
        made = FunctionType(tree.value, vars(module), argdefs=defaults, closure=tuple(cells))
        made.__kwdefaults__ = named
        return made

    def _cell(self, tree: Tree) -> Any:
        if tree.index < 0:
            return self._after_its_parts(lambda made: CellType(self.build(made.items[0])), tree)
        function = self.build(Tree("state", tree.index))
        return function.__closure__[tree.value]

    def _object(self, tree: Tree) -> Any:
        value = self._note(tree.value.__new__(tree.value))
        state = dict(self._pairs(tree.items[0]))
        if len(tree.items) > 1 and tree.items[1].kind == "dict":
            # Not what the class makes of it; an OrderedDict keeps its order beside the dict.
            base = OrderedDict if isinstance(value, OrderedDict) else dict
            for key, item in self._pairs(tree.items[1]):
                base.__setitem__(value, key, item)
        elif len(tree.items) > 1:
            list.extend(value, [self.build(item) for item in tree.items[1].items])
        for name, item in state.items():
            object.__setattr__(value, name, item)
        return value


def obstacles_of_objects(program: Program) -> Iterator[tuple[str, str]]:
    """(why, advice) of what it takes or gives beside tensors: outside of this process, it has these alone."""
    for one in program.inputs:
        if one.array:
            yield f"takes {one.path}, a numpy array", "Pass torch.from_numpy(array)."
    if any(tree.kind == "array" for tree in program.result.walk()):
        yield "returns a numpy array", "Return the tensor."
    if any(tree.kind == "parameter" for tree in program.result.walk()):
        yield "returns a parameter that it made", "Return the tensor."
    if any(tree.kind == "decorated" for tree in program.result.walk()):
        yield "returns a tensor with attributes", "Set them on what the call gives."


@dataclass(frozen=True)
class Opaque:
    """A call that stays whole: what is called with what, and what it must give."""

    name: str
    function: Any
    call: Tree
    shape: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Input:
    """A tensor among the arguments: its register and the path that a person would write, as
    `batch['mask']`. `array`: it stands for a numpy array of the same memory."""

    register: Register
    path: str
    tensor: torch.Tensor
    array: bool = False


@dataclass(frozen=True)
class Capture:
    """A tensor of the state that the program takes, fetched again at each replay.

    `path` is how the function reaches it (`self.layers[0].weight`), `name` its name in a state_dict
    (`layers.0.weight`), `kind` "parameter", "buffer" or "constant". `argument` names the argument whose
    object holds it, "" where that is the function's own state or the module.
    """

    register: Register
    path: str
    name: str
    kind: str
    tensor: torch.Tensor
    argument: str = ""
    persistent: bool = True


@dataclass(frozen=True)
class Write:
    """A write to Python state after the program: `path` says where, as `self.h`."""

    path: str
    value: Tree


@dataclass(frozen=True, eq=False)
class Program:
    """One recorded program for arguments like those that were asked for.

    Holds the tensors of the arguments and of the state: it keeps them alive.

    >>> from lazytrace import traced
    >>> net = torch.nn.Linear(2, 2)
    >>> step = traced(lambda batch: net(batch["x"]).relu())
    >>> batch = {"x": torch.ones(1, 2)}
    >>> _ = step(batch)
    >>> program = step.program(batch)
    >>> [(one.register, one.path) for one in program.inputs]
    [(r0, "batch['x']")]
    >>> [(one.name, one.kind) for one in program.captures]
    [('net.weight', 'parameter'), ('net.bias', 'parameter')]
    >>> [(one.operator, one.module, one.results[0].meta.shape) for one in program.steps]
    [('aten::linear', 'net', (1, 2)), ('aten::relu', '', (1, 2))]
    """

    trace: Trace
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Input, ...]
    captures: tuple[Capture, ...]
    modes: Modes
    steps: tuple[Operation, ...]
    result: Tree
    writes: tuple[Write, ...]
    positional: tuple[str, ...]
    """The names of the parameters that `args` are passed to."""
    state: dict[int, Any] = field(repr=False)
    root: torch.nn.Module | None = None
    spread: tuple[str, ...] = ()
    """The keyword arguments that `**kwargs` takes: their order is part of the call."""

    @property
    def native(self) -> Any:
        """The trace as the core has it."""
        return self.trace.native

    @property
    def operators(self) -> int:
        """How many operators a replay runs."""
        return self.trace.operators

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return any(step.random for step in self.steps)

    def listing(self) -> str:
        """The program as text: step, results, operator, arguments, and the user's file and line."""
        return self.trace.listing()

    def reads(self) -> tuple[Operation, ...]:
        """The steps whose values Python looked at: a replay compares them."""
        return tuple(step for step in self.steps if step.reads())

    def submodules(self, *, rounds: int = 5) -> Submodules:
        """Operators and seconds of each module, as data and as a table.

        The operators are run one by one on copies of all tensors, `rounds` times, with the random stream put
        back. Raises `NotImplementedError` where there are steps that are no operators.

        >>> from lazytrace import traced
        >>> net = traced(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
        >>> _ = net(torch.ones(1, 2))
        >>> [(one.path, one.operators) for one in net.program(torch.ones(1, 2)).submodules()]
        [('', 2), ('0', 1), ('1', 1)]
        """
        from lazytrace.programs.submodules import submodules

        return submodules(self, rounds)

    def to_fx(self, *, reads: str = "assert", checks: bool = True) -> torch.fx.GraphModule:
        """The program as a `torch.fx.GraphModule` that takes the arguments of the function.

        The tensors of the state are its parameters and buffers: the very tensors, not copies. Regions in
        other modes are calls of `wrap_with_set_grad_enabled` and `wrap_with_autocast`, as torch.export
        writes them; the grad mode at the start is the caller's. A value that Python looked at becomes an
        assertion (`reads="assert"`), unless nothing in the arguments or the state can change it. With
        `reads="drop"` there are no assertions, and a `TracerWarning` names the values; `reads="refuse"`
        raises. With `checks` the graph asserts that its arguments look like those that were recorded.

        Raises `NotImplementedError`, which names what and where, when a graph cannot do the same: it writes
        to
        Python state, serves all sizes, or its result or state cannot be told to a graph.
        """
        from lazytrace.programs.fx import graph_of
        from lazytrace.programs.lost import frozen_reads, warn_of

        made = graph_of(self, reads=reads, checks=checks)
        if reads == "drop":
            warn_of(self, "its graph", frozen_reads(self))
        return made

    def __str__(self) -> str:
        return self.listing()


def program_of(
    trace: Trace,
    call: Call,
    *,
    named: list[tuple[str, Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    positional: tuple[str, ...],
    receiver: str,
    root: torch.nn.Module | None,
    spread: tuple[str, ...] = (),
) -> Program:
    """The program of a trace whose guards hold for a call; `receiver` is the parameter of a bound `self`."""
    found = trace.native.found(call)
    if found is None:
        raise LookupError("the state of the function has changed since the question was asked")
    return _Reading(trace, *found, receiver, root).program(named, args, kwargs, positional, spread)


class _Reading:
    """Puts what the core tells of a trace into words and types."""

    def __init__(
        self,
        trace: Trace,
        captured: list[torch.Tensor],
        state: dict[int, Any],
        receiver: str,
        root: torch.nn.Module | None,
    ) -> None:
        self._trace = trace
        self._data = trace.native.data(trace.names)
        self._captured = captured
        self._state = state
        self._receiver = receiver
        self._root = root
        self._modes = [_modes(row) for row in self._data["modes"]]
        self._module_names = {id(m): name for name, m in root.named_modules()} if root is not None else {}
        self._calls: dict[str, int] = {}
        self._scopes = [self._scope(row) for row in self._data["scopes"]]

    def program(
        self,
        named: list[tuple[str, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        positional: tuple[str, ...],
        spread: tuple[str, ...],
    ) -> Program:
        tensors = [one for path, value in named for one in tensors_of(path, value)]
        inputs = tuple(Input(Register(i), *one) for i, one in enumerate(tensors))
        trees = _parts(self._data["result"])
        writes = tuple(
            Write(_write_path(row), tree) for row, tree in zip(self._data["writes"], trees[1:], strict=True)
        )
        return Program(
            *(self._trace, self._trace.names[0], args, kwargs, inputs, tuple(self._captures())),
            *(self._modes[0], tuple(self._steps()), trees[0], writes, positional),
            *(self._state, self._root, spread),
        )

    # ------------------------------------------------------------ state
    def _captures(self) -> Iterator[Capture]:
        names = _StateNames(self._root)
        for slot, register, path, root, _ in sorted(self._data["captures"], key=lambda row: row[0]):
            tensor = self._captured[slot]
            owner = self._trace.names[root] if root > 0 else ""
            argument = "" if owner.partition("[")[0] == self._receiver else owner
            name, kind, persistent = names.of(path, tensor)
            yield Capture(Register(register), path, name, kind, tensor, argument, persistent)

    def _scope(self, row: tuple[int, str, int]) -> tuple[int, str, str, int]:
        parent, path, node = row
        module = self._state.get(node)
        cls = f"{type(module).__module__}.{type(module).__qualname__}" if module is not None else ""
        known = self._module_names.get(id(module))
        name = known if known is not None else dotted(path)
        number = self._calls[name] = self._calls.get(name, -1) + 1
        return parent, name, cls, number

    def _modules(self, scope: int) -> tuple[tuple[str, str, int], ...]:
        found: list[tuple[str, str, int]] = []
        while scope >= 0:
            scope, path, cls, number = self._scopes[scope]
            if cls:
                found.insert(0, (path, cls, number))
        return tuple(found)

    # ------------------------------------------------------------ steps
    def _steps(self) -> Iterator[Operation]:
        modes = self._modes[0]
        for row in self._data["steps"]:
            if row["modes"] >= 0:
                modes = self._modes[row["modes"]]
            yield self._step(row, modes)

    def _step(self, row: dict[str, Any], modes: Modes) -> Operation:
        modules = self._modules(row["scope"])
        name = row["opaque"]["name"] if row["opaque"] is not None else row["operator"]
        return Operation(
            *(row["kind"], name, row["overload"], _arguments(row)),
            *(tuple(_result(one) for one in row["results"]), modes, Place(*row["place"])),
            module=modules[-1][0] if modules else "",
            modules=modules,
            literal=row["literal"],
            random=row["random"],
            effect=row["effect"],
            exit=row["exit"],
            sizes=row["sizes"],
            opaque=self._opaque(row["opaque"]) if row["opaque"] is not None else None,
        )

    def _opaque(self, row: dict[str, Any]) -> Opaque:
        function = _tree(row["function"]).build(lambda register: register, self._state.__getitem__)
        if row["attribute"]:
            function = getattr(function, row["attribute"])
        return Opaque(row["name"], function, _tree(row["call"]), row["shape"], tuple(row["values"]))


class _StateNames:
    """What tensors are called in a state_dict: by the module that is traced, otherwise by their path."""

    def __init__(self, root: torch.nn.Module | None) -> None:
        self._taken: set[str] = set()
        self._known: dict[int, tuple[str, str, bool]] = {}
        if root is None:
            return
        for prefix, module in root.named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                persistent = name not in _non_persistent(module)
                self._known.setdefault(id(buffer), (_join(prefix, name), "buffer", persistent))
            for name, parameter in module.named_parameters(recurse=False):
                self._known.setdefault(id(parameter), (_join(prefix, name), "parameter", True))

    def of(self, path: str, tensor: torch.Tensor) -> tuple[str, str, bool]:
        """(name, kind, whether a state_dict has it)."""
        kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "constant"
        name, kind, persistent = self._known.get(id(tensor), (dotted(path), kind, True))
        unique, number = name, 1
        while unique in self._taken or any(other.startswith(unique + ".") for other in self._taken):
            unique, number = f"{name}_{number}", number + 1
        self._taken.add(unique)
        return unique, kind, persistent


def _non_persistent(module: torch.nn.Module) -> set[str]:
    return set(module.__dict__.get("_non_persistent_buffers_set", ()))


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def dotted(path: str) -> str:
    """A path as a name in a state_dict.

    >>> dotted("self.layers[0].weight"), dotted("global net.weight"), dotted("cache['k']")
    ('layers.0.weight', 'net.weight', 'cache.k')
    """
    words = re.findall(r"\w+", path.removeprefix("global "))
    if len(words) > 1 and words[0] == "self":
        words = words[1:]
    return ".".join(words) or "state"


def _write_path(row: tuple[str, int, str, Any, int]) -> str:
    kind, _, owner, key, index = row
    if kind in ("attribute", "class"):
        return f"{owner}.{key}"
    if kind == "item":
        return f"{owner}[{key!r}]"
    return f"{owner}.append" if kind == "append" else f"{owner}[{index}]" if kind == "at" else owner


def _parts(row: tuple[Any, ...]) -> list[Tree]:
    """The result and what is written: they are one tuple."""
    whole = _tree(row)
    if whole.kind == "constant":
        return [Tree("constant", value=value) for value in whole.value]
    return list(whole.items)


def _tree(row: tuple[Any, ...]) -> Tree:
    kind, index, value, items = row
    return Tree(kind, index, value, tuple(_tree(item) for item in items))


def _modes(row: dict[str, Any]) -> Modes:
    switches = tuple(row["switches"].items())
    return Modes(**(row | {"switches": switches}))


def _meta(row: dict[str, Any] | None) -> Meta | None:
    return Meta(**row) if row is not None else None


def _register(number: int) -> Register | None:
    return Register(number) if number >= 0 else None


def _result(row: dict[str, Any]) -> Result:
    return Result(
        row["kind"],
        _register(row["register"]),
        _meta(row["meta"]),
        row["value"],
        tuple(_result(one) for one in row["list"]),
        row["known"],
        _register(row["base"]),
        row["distance"],
    )


def _arguments(row: dict[str, Any]) -> tuple[Argument, ...]:
    names = [*row["names"], *[("", False)] * len(row["arguments"])]
    return tuple(
        Argument(name, keyword, _value(encoded))
        for (name, keyword), encoded in zip(names, row["arguments"], strict=False)
    )


def _value(encoded: tuple[str, Any]) -> Any:
    kind, value = encoded
    if kind == "register":
        return Register(value)
    if kind == "registers":
        return [_register(number) for number in value]
    return Generator(value) if kind == "generator" else value
