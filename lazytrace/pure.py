"""Custom functions of autograd whose code comes to operators of torch, and to nothing else.

A program may go without the Python of such a function: which operators it runs on which tensors, in the
forward and in the backward pass, follows from its arguments and from what its code finds under the names
that it reads. Its bytecode says whether it is one. Whatever is not known to be harmless makes it a function
like any other, which is called.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import math
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional
import torch.utils.checkpoint
from torch.autograd.function import Function

from lazytrace import _torch
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

__all__ = ["Forward", "Read", "forward_alone", "reads_of", "switches_of_checkpoint"]


class Read(NamedTuple):
    """Something that the code of a function finds: `name` of `owner`.

    `kind` is "class" (an attribute of a class), "function" (defaults and globals), "holder" (the same, and
    what its closure holds), "global" (of a function, or a builtin), "module" (an attribute) or "tensor" (a
    method or an attribute of tensors).
    """

    kind: str
    owner: Any
    name: str


class _Wrapper(NamedTuple):
    """A function that is Python code around operators, as torch has it: what it finds under which names."""

    function: Any
    code: CodeType
    around: list[Read]  # decorators, that hold it
    found: list[tuple[Read, object]]


class _Other(Exception):
    """The code may do more than run operators."""


class _Ctx:
    """Marks the first argument of the methods of a function on the stack."""


class _Fresh:
    """Marks what the code has just made: nobody else shows its memory."""


class _FloatInfo:
    """Marks `torch.finfo` and what it gives: the limits of a dtype, which a signature holds."""


class _Limit:
    """Marks a number that is one of these."""


class _Tensor:
    """Marks `torch.tensor`, which is no operator: what it is given must be the same at each call."""


class _Literal:
    """Marks a constant of the code."""


class _Whole:
    """Marks one that is a whole number."""


class _Softmax:
    """Marks a function that warns where it is not told which dimension is meant."""


class _Class:
    """Marks the class of the function, which its static methods are found in."""


class _Local(NamedTuple):
    """Marks what a local variable holds."""

    name: str


class _Called(NamedTuple):
    """Marks a function or a method that is to be called: the operator with this name, or "" of another."""

    name: str


# Functions of torch that are no operators, and the marks of them.
_OTHERS: Final = {
    "finfo": (torch.finfo, _FloatInfo),
    "tensor": (torch.tensor, _Tensor),
    "as_tensor": (torch.as_tensor, _Tensor),
}
# Functions of torch.nn.functional that are Python code around operators, and write to nothing they are given.
_SOFTMAX: Final = ("softmax", "log_softmax", "softmin")
_WRAPPERS: Final = (*_SOFTMAX, "pad", "softsign", "tanhshrink", "sigmoid", "tanh", "layer_norm")
# Names of arguments that a call may not give: memory to write to, and who is blamed for a missing dimension.
_ODD_ARGUMENTS: Final = frozenset(("out", "_stacklevel"))
# Marks of what is known by where it stands.
_OF_ONE_PLACE: Final = (_Ctx, _FloatInfo, _Tensor, _Class, _Softmax)
# What may stand under the name of a global.
_MODULES: Final = (
    *(torch, torch.nn, torch.nn.functional, math),
    *(torch.linalg, torch.special, torch.fft),
)
_BUILTINS: Final = frozenset(
    (
        *("abs", "all", "any", "bool", "enumerate", "float", "int", "isinstance", "len", "list"),
        *("max", "min"),
        *("pow", "range", "reversed", "round", "slice", "sum", "tuple", "zip"),
        *("AssertionError", "IndexError", "NotImplementedError", "RuntimeError", "TypeError", "ValueError"),
    )
)
_CONSTANTS: Final = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.device, torch.layout),
)
# Attributes of tensors, sizes and tuples that are no operators, and say nothing but what a signature holds.
_LOOKS: Final = frozenset(
    (
        *("T", "H", "mT", "mH", "shape", "dtype", "device", "layout", "ndim", "real", "imag"),
        *("is_cuda", "is_cpu", "requires_grad", "size", "dim", "numel", "nelement", "stride"),
        *("ndimension", "is_contiguous", "element_size", "get_device", "is_floating_point"),
        *("is_complex", "float", "double", "half", "bfloat16", "long", "int", "bool", "short"),
        *("char", "byte", "type", "type_as", "to", "count"),
    )
)
_OF_CTX: Final = frozenset(
    (
        *("save_for_backward", "saved_tensors", "needs_input_grad", "mark_non_differentiable"),
        *("set_materialize_grads",),
    )
)
# What a class statement puts into a class by itself, and torch into that of a function.
_OF_CLASSES: Final = frozenset(
    (
        *("__module__", "__qualname__", "__doc__", "__annotations__", "__firstlineno__"),
        *("__static_attributes__", "__dict__", "__weakref__", "_backward_cls"),
        *("_autograd_function_id",),
        "symbolic",  # called by exporters to ONNX alone
        *("vmap", "generate_vmap_rule"),  # asked for under transforms of torch.func alone
    )
)
_OWN_METHODS: Final = frozenset(("forward", "backward", "setup_context"))
# Methods of what checkpointing enters.
_AROUND: Final = ("__init__", "__enter__", "__exit__")
# What `torch.finfo(dtype)` says.
_LIMITS: Final = frozenset(("min", "max", "eps", "tiny", "smallest_normal", "resolution"))
# Special methods that instructions and builtins come to.
_ARITHMETIC: Final = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lshift", "rshift"),
)
_OTHER_SPECIAL: Final = (
    *("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "invert", "abs", "bool", "float"),
    *("int", "index", "len", "iter", "reversed", "getitem", "setitem", "contains"),
)
_SPECIAL: Final = (
    *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r", "i")),
    *(f"__{name}__" for name in _OTHER_SPECIAL),
)
# opcode: how many values it takes from the stack and puts there; what depends on its argument is in `_Walk`.
_PLAIN: Final = {
    **dict.fromkeys(("RESUME", "NOP", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "DELETE_FAST"), (0, 0)),
    **dict.fromkeys(("LOAD_ASSERTION_ERROR", "PUSH_NULL"), (0, 1)),
    **dict.fromkeys(("POP_TOP", "LIST_EXTEND"), (1, 0)),
    **dict.fromkeys(("TO_BOOL", "UNARY_NOT", "LIST_TO_TUPLE"), (1, 1)),
    **dict.fromkeys(("COMPARE_OP", "IS_OP", "CONTAINS_OP", "BINARY_SUBSCR"), (2, 1)),
    "BINARY_SLICE": (3, 1),
}
_ENDS: Final = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS")


def reads_of(function: type) -> list[Read] | None:
    """What the code of a custom `autograd.Function` finds, or None where it may do more than run operators.

    >>> class Double(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x + x
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         print("a side effect")
    ...         return gradient * 2
    >>> reads_of(Double) is None
    True
    """
    try:
        return _reads_of(function)
    except (_Other, IndexError):  # or the code takes more from the stack than is known to be there
        return None


class Forward(NamedTuple):
    """What a custom function comes to without a backward pass, and what that was found by."""

    forward: FunctionType
    reads: list[Read]


def forward_alone(function: type, args: tuple[Any, ...]) -> Forward | None:
    """The forward method of a custom function that does nothing else under vmap; None of most.

    >>> forward_alone(torch.autograd.Function, (torch.ones(2),)) is None
    True
    """
    if function is not _torch.plain_index_function() or len(args) != 2 or not isinstance(args[1], list):
        return None
    tensors = (args[0], *args[1])
    if not all(isinstance(one, torch.Tensor) and _torch.belongs_to_plain_vmap(one) for one in tensors):
        return None
    body: FunctionType = function.forward  # type: ignore[attr-defined]
    reads = [Read("class", function, name) for name in _torch.NAMES_OF_FUNCTIONS]
    bodies = (body, function.setup_context)  # type: ignore[attr-defined]
    return Forward(body, [*reads, *(Read("function", one, "") for one in bodies)])


def switches_of_checkpoint() -> list[Read]:
    """What activation checkpointing finds beside its arguments.

    >>> [read.name for read in switches_of_checkpoint()][:2]
    ['_checkpoint_debug_enabled', '_enable_checkpoint_early_stop']
    """
    reads = [Read("module", torch.utils.checkpoint, name) for name in _torch.CHECKPOINT_SWITCHES]
    reads += [Read("module", torch, name) for name in ("get_rng_state", "set_rng_state")]
    around = (torch.no_grad, torch.enable_grad, torch.autograd.graph.saved_tensors_hooks)
    return reads + [Read("class", cls, name) for cls in around for name in _AROUND]


def _reads_of(function: type) -> list[Read]:
    backward_class = _torch.backward_class(function)
    if backward_class is None or not all(_torch.has_own(backward_class, name) for name in _OF_CTX):
        raise _Other
    own = [cls for cls in function.__mro__ if cls not in Function.__mro__]
    methods = {name for cls in own for name in vars(cls)} - _OF_CLASSES
    helpers = {name for name in methods - _OWN_METHODS if _is_helper(function, name)}
    methods -= helpers
    if not {"forward", "backward"} <= methods <= _OWN_METHODS:
        raise _Other
    scan = _Scan(function, helpers)
    scan.reads += [Read("class", function, name) for name in _torch.NAMES_OF_FUNCTIONS]
    scan.reads += [Read("class", backward_class, name) for name in _OF_CTX]
    if _torch.passes_on(function):
        known = (function.forward, function.backward)  # type: ignore[attr-defined]
        return [*scan.reads, *(Read("function", body, "") for body in known)]
    bodies = {name: scan.body_of(function, name) for name in sorted(methods)}
    for body in bodies.values():
        scan.ctx_names |= _stored_on_ctx(body.__code__, backward_class)
    for name, body in bodies.items():
        scan.walk(body, has_ctx=name != "forward" or "setup_context" not in methods)
    scan.read_as_it_was(_SPECIAL_READS)
    for special in _SPECIAL_WRAPPED:
        scan.read_wrapper(special)
    return list(dict.fromkeys(scan.reads))


def _is_helper(function: type, name: str) -> bool:
    """Whether it is a static method of the user's, which its other methods may call."""
    found = next(vars(cls)[name] for cls in function.__mro__ if name in vars(cls))
    return isinstance(found, staticmethod) and not hasattr(Function, name)


def _what_is_found(read: Read) -> object:
    if read.kind == "global":
        found = read.owner.__globals__
        return found[read.name] if read.name in found else getattr(builtins, read.name, None)
    return getattr(read.owner, read.name, None)


def _wrapper(function: FunctionType) -> _Wrapper:
    body, around, reads = function, [], []
    while hasattr(body, "__wrapped__"):
        around.append(Read("holder", body, ""))
        body = body.__wrapped__
    for one in body.__code__.co_names:
        if one in body.__globals__ or hasattr(builtins, one):
            reads.append(Read("global", body, one))
        reads += [
            Read("module", module, one) for module in _torch.MODULES_UNDER_PYTHON if one in vars(module)
        ]
        if hasattr(torch.Tensor, one):
            reads.append(Read("tensor", torch.Tensor, one))
    return _Wrapper(body, body.__code__, around, [(read, _what_is_found(read)) for read in reads])


_LOOKS_FOUND: Final = {name: getattr(torch.Tensor, name, None) for name in _LOOKS}
_WRAPPED: Final = {name: _wrapper(getattr(torch.nn.functional, name)) for name in _WRAPPERS}
# Special methods of tensors, of which some are such code, too.
_SPECIAL_READS: Final = [
    (read, _what_is_found(read)) for read in (Read("tensor", torch.Tensor, name) for name in _SPECIAL)
]
_SPECIAL_WRAPPED: Final = [
    _wrapper(one)
    for one in dict.fromkeys(value for _, value in _SPECIAL_READS)
    if isinstance(one, FunctionType) and isinstance(inspect.unwrap(one), FunctionType)
]


def _is_constant(value: object) -> bool:
    """Whether nothing can be done with it but to read it."""
    return all(map(_is_constant, value)) if type(value) is tuple else type(value) in _CONSTANTS


def _stored_on_ctx(code: CodeType, backward_class: type) -> set[str]:
    names = {found.argval for found in dis.get_instructions(code) if found.opname == "STORE_ATTR"}
    if any(hasattr(backward_class, name) or name.startswith("_") for name in names):
        raise _Other
    return names


class _Scan:
    """The methods of one function, and the functions that they call."""

    def __init__(self, function: type, helpers: set[str]) -> None:
        self.function = function
        self.helpers = helpers
        self.reads: list[Read] = []
        self.ctx_names: set[str] = set()
        self._met: set[FunctionType] = set()

    def body_of(self, function: type, name: str) -> FunctionType:
        """The Python function behind a static method."""
        found = next(vars(cls)[name] for cls in function.__mro__ if name in vars(cls))
        body = found.__func__ if isinstance(found, staticmethod) else None
        inner = _torch.differentiated_once(body)
        if inner is not None:
            self.reads.append(Read("holder", body, ""))
            body = inner
        if not isinstance(body, FunctionType):
            raise _Other
        self.reads.append(Read("function", body, ""))
        return body

    def walk(self, function: FunctionType, has_ctx: bool) -> None:
        code = function.__code__
        odd = code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
        keywords = any(
            isinstance(one, tuple) and not _ODD_ARGUMENTS.isdisjoint(one) for one in code.co_consts
        )
        if odd or keywords or code.co_freevars or code.co_cellvars or code.co_exceptiontable:
            raise _Other
        self._must_have_constant_defaults(function)
        _Walk(self, function, has_ctx).run()

    def find_global(self, function: FunctionType, name: str) -> object:
        """What the name stands for, as a mark on the stack."""
        self.reads.append(Read("global", function, name))
        if name not in function.__globals__:
            if name not in _BUILTINS or getattr(builtins, name, None) is not BUILTINS[name]:
                raise _Other
            return _Called("")
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, FunctionType):
            return self._called(value)
        return _Class if value is self.function else self._constant(value)

    def _called(self, function: FunctionType) -> _Called:
        if function not in self._met:
            self._met.add(function)
            self.reads.append(Read("function", function, ""))
            self.walk(function, has_ctx=False)
        return _Called("")

    def find_helper(self, name: str) -> object:
        """What a static method of the function is, as a mark on the stack."""
        if name not in self.helpers:
            raise _Other
        self.reads.append(Read("class", self.function, name))
        return self._called(self.body_of(self.function, name))

    def find_in_module(self, module: ModuleType, name: str) -> object:
        """What an attribute of a module is, as a mark on the stack."""
        self.reads.append(Read("module", module, name))
        value = vars(module).get(name)
        if isinstance(value, ModuleType):
            return self._module(value)
        if module is math and isinstance(value, BuiltinFunctionType):
            return _Called("")
        other, mark = _OTHERS.get(name, (None, None))
        if module is torch and other is not None and value is other:
            return mark
        if not name.endswith("_") and _torch.is_native_function(name, value):
            return _Called(name)
        native = _torch.native_name_in(module, name, value)
        if native is not None:
            return _Called(native)
        if module is torch.nn.functional and name in _WRAPPERS and isinstance(value, FunctionType):
            if value is not _WRAPPED[name].function:
                raise _Other
            self.read_wrapper(_WRAPPED[name])
            return _Softmax if name in _SOFTMAX else _Called("")
        return self._constant(value)

    def read_wrapper(self, known: _Wrapper) -> None:
        """Find what its code finds, which is what torch has put there."""
        if known.function.__code__ is not known.code:
            raise _Other
        self._must_have_constant_defaults(known.function)
        self.reads += [*known.around, Read("function", known.function, "")]
        self.read_as_it_was(known.found)

    def read_as_it_was(self, found: list[tuple[Read, object]]) -> None:
        """Read what must be what torch has put there."""
        if not all(_what_is_found(read) is value for read, value in found):
            raise _Other
        self.reads += [read for read, _ in found]

    @staticmethod
    def _must_have_constant_defaults(function: FunctionType) -> None:
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        if not all(map(_is_constant, defaults)):  # it may be called, or changed
            raise _Other

    def find_attribute(self, name: str) -> object:
        """The mark of what an attribute of a tensor, a tuple or a number is."""
        looks = name in _LOOKS and getattr(torch.Tensor, name, None) is _LOOKS_FOUND[name]
        if not looks and not _torch.is_native_method(name):
            raise _Other
        self.reads.append(Read("tensor", torch.Tensor, name))
        return _Called(name)

    def _module(self, module: ModuleType) -> ModuleType:
        if not any(module is one for one in _MODULES):
            raise _Other
        return module

    def _constant(self, value: object) -> object:
        if type(value) not in _CONSTANTS:
            raise _Other
        return None


class _Walk:
    """One code object, instruction by instruction: what stands on the stack, as far as it matters.

    Jumps go forward only, or back to the head of a `for` that they find as it was left: each instruction is
    met once, with the stack of all ways that lead there.
    """

    def __init__(self, scan: _Scan, function: FunctionType, has_ctx: bool) -> None:
        self.scan = scan
        self.function = function
        code = function.__code__
        arguments = code.co_argcount + code.co_kwonlyargcount
        arguments += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.arguments = set(code.co_varnames[:arguments])
        self.ctx = code.co_varnames[0] if has_ctx and code.co_argcount else None
        self.stack: list[object] | None = []
        self.ahead: dict[int, list[object]] = {}
        self.heads: dict[int, list[object]] = {}
        self.stored: dict[str, list[object]] = {}
        self.written: set[str] = set()

    def run(self) -> None:
        for found in dis.get_instructions(self.function.__code__):
            self._meet(found.offset)
            if self.stack is None:
                continue  # nothing leads there
            name = found.opname
            if name in _PLAIN:
                self._plain(found)
            elif "JUMP" in name:
                self._jump(found)
            elif name in _ENDS:
                self.stack = None
            else:
                step = getattr(self, "_" + name.lower(), None)
                if step is None:
                    raise _Other
                step(found)
        for local in self.written:
            kinds = self.stored.get(local, [None])
            if local in self.arguments or not all(kind is _Fresh for kind in kinds):
                raise _Other

    # ------------------------------------------------------------ the stack
    def _pop(self, count: int) -> list[object]:
        if self.stack is None or len(self.stack) < count:
            raise _Other
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def _push(self, *marks: object) -> None:
        if self.stack is None:
            raise _Other
        self.stack.extend(marks)

    def _meet(self, offset: int) -> None:
        other = self.ahead.pop(offset, None)
        if other is None:
            return
        if self.stack is not None:
            if len(self.stack) != len(other):
                raise _Other
            other = [mark if mark == mate else None for mark, mate in zip(self.stack, other, strict=True)]
        self.stack = other

    def _plain(self, found: dis.Instruction) -> None:
        takes, puts = _PLAIN[found.opname]
        self._pop(takes)
        self._push(*[None] * puts)

    def _jump(self, found: dis.Instruction) -> None:
        target = found.argval
        if self.stack is None:
            raise _Other
        if found.opname == "JUMP_BACKWARD" and self.heads.get(target) == self.stack:
            self.stack = None
            return
        if target <= found.offset:
            raise _Other
        taken = list(self.stack)
        if found.opname.endswith("_OR_POP"):
            self._pop(1)
        elif found.opname.startswith("POP_"):
            self._pop(1)
            taken.pop()
        elif found.opname == "JUMP_FORWARD":
            self.stack = None
        else:
            raise _Other
        self._lead(target, taken)

    def _lead(self, target: int, taken: list[object]) -> None:
        stack, self.stack = self.stack, taken
        self._meet(target)
        self.ahead[target] = self.stack
        self.stack = stack

    def _get_iter(self, found: dis.Instruction) -> None:
        self._must_be_values(self._pop(1))
        self._push(None)

    def _for_iter(self, found: dis.Instruction) -> None:
        if self.stack is None or sys.version_info >= (3, 12):  # which lead to another place behind the loop
            raise _Other
        self.heads[found.offset] = list(self.stack)
        self._lead(found.argval, self.stack[:-1])
        self._push(None)

    def _must_be_fresh(self, mark: object) -> None:
        if isinstance(mark, _Local):
            self.written.add(mark.name)
        elif mark is not _Fresh:
            raise _Other

    @staticmethod
    def _must_be_values(marks: list[object]) -> None:
        """The context, modules and the like are known by where they stand, so they go nowhere else."""
        if any(mark in _OF_ONE_PLACE or isinstance(mark, ModuleType) for mark in marks):
            raise _Other

    # ------------------------------------------------------------ instructions
    def _load_const(self, found: dis.Instruction) -> None:
        self._push(_Whole if type(found.argval) is int else _Literal)

    def _local(self, name: str) -> object:
        return _Ctx if name == self.ctx else _Local(name)

    def _store(self, name: str, mark: object) -> None:
        self._must_be_values([mark])
        if name == self.ctx:
            raise _Other
        self.stored.setdefault(name, []).append(mark)

    def _load_fast(self, found: dis.Instruction) -> None:
        self._push(self._local(found.argval))

    _load_fast_check = _load_fast

    def _store_fast(self, found: dis.Instruction) -> None:
        self._store(found.argval, self._pop(1)[0])

    def _load_fast_load_fast(self, found: dis.Instruction) -> None:
        self._push(*(self._local(name) for name in found.argval))

    def _store_fast_store_fast(self, found: dis.Instruction) -> None:
        for name in found.argval:
            self._store(name, self._pop(1)[0])

    def _store_fast_load_fast(self, found: dis.Instruction) -> None:
        self._store(found.argval[0], self._pop(1)[0])
        self._push(self._local(found.argval[1]))

    def _load_global(self, found: dis.Instruction) -> None:
        mark = self.scan.find_global(self.function, found.argval)
        if not (found.arg or 0) & 1:
            self._push(mark)
        elif sys.version_info >= (3, 13):
            self._push(mark, None)
        else:
            self._push(None, mark)

    def _load_attr(self, found: dis.Instruction) -> None:
        # From 3.12 on it loads methods, too.
        self._attribute(found, 1 + bool(sys.version_info >= (3, 12) and (found.arg or 0) & 1))

    def _load_method(self, found: dis.Instruction) -> None:
        self._attribute(found, 2)

    def _attribute(self, found: dis.Instruction, puts: int) -> None:
        owner, name = self._pop(1)[0], found.argval
        mark: object = None
        if owner is _Ctx:
            if name not in _OF_CTX and name not in self.scan.ctx_names:
                raise _Other
        elif isinstance(owner, ModuleType):
            mark = self.scan.find_in_module(owner, name)
        elif owner is _FloatInfo and name in _LIMITS:
            mark = _Limit
        elif owner is _Class:
            mark = self.scan.find_helper(name)
        elif owner in _OF_ONE_PLACE:
            raise _Other
        else:
            if name.endswith("_"):
                self._must_be_fresh(owner)
            mark = self.scan.find_attribute(name)
        self._push(*[mark] * puts)

    def _store_attr(self, found: dis.Instruction) -> None:
        value, owner = self._pop(2)
        self._must_be_values([value])
        if owner is not _Ctx:
            raise _Other

    def _store_subscr(self, found: dis.Instruction) -> None:
        self._must_be_fresh(self._pop(3)[1])

    def _store_slice(self, found: dis.Instruction) -> None:
        self._must_be_fresh(self._pop(4)[1])

    def _unary_negative(self, found: dis.Instruction) -> None:
        self._pop(1)
        self._push(_Fresh)

    _unary_invert = _unary_negative

    def _binary_op(self, found: dis.Instruction) -> None:
        left = self._pop(2)[0]
        if found.argrepr.endswith("="):
            self._must_be_fresh(left)
        self._push(_Fresh)

    def _call(self, found: dis.Instruction) -> None:
        self._make_call((found.arg or 0) + 2)

    def _call_kw(self, found: dis.Instruction) -> None:
        self._make_call((found.arg or 0) + 3)

    def _make_call(self, takes: int) -> None:
        taken = self._pop(takes)
        if _FloatInfo in taken[:2]:
            self._must_be_values(taken[2:])
            self._push(_FloatInfo)
            return
        if _Tensor in taken[:2] and taken[2:] in ([_Limit], [_Literal], [_Whole]):
            self._push(_Fresh)
            return
        if _Softmax in taken[:2]:
            if taken[3:4] != [_Whole]:  # in the place of the dimension
                raise _Other
            taken[:2] = [None, None]
        self._must_be_values(taken)
        self._push(_Fresh if any(map(self._gives_new, taken[:2])) else None)

    @staticmethod
    def _gives_new(mark: object) -> bool:
        """Whether it gives memory of its own, or what it has written to, which is such memory."""
        return isinstance(mark, _Called) and (mark.name.endswith("_") or _torch.makes_new(mark.name))

    def _build_tuple(self, found: dis.Instruction) -> None:
        self._must_be_values(self._pop(found.arg or 0))
        self._push(None)

    _build_list = _build_slice = _build_tuple

    def _unpack_sequence(self, found: dis.Instruction) -> None:
        self._pop(1)
        self._push(*[None] * (found.arg or 0))

    def _copy(self, found: dis.Instruction) -> None:
        if self.stack is None:
            raise _Other
        self._push(self.stack[-(found.arg or 0)])

    def _swap(self, found: dis.Instruction) -> None:
        if self.stack is None:
            raise _Other
        at = -(found.arg or 0)
        self.stack[-1], self.stack[at] = self.stack[at], self.stack[-1]
