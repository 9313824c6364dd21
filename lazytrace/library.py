"""What is asked of Python's library aside, while `stand_ins_of_library.py` stands for code of it."""

from __future__ import annotations

import collections
import functools
import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch

from lazytrace._torch import is_zero_tensor
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

# That of all named tuples has the same code.
_RECORD: Final[Any] = collections.namedtuple("_RECORD", "field")
REPLACE: Final[Any] = _RECORD._replace
_ASKS: Final[Any] = type.__subclasscheck__
_NAMES_OF_CLASS: Final[Any] = type.__dir__
_DISPATCHING: Final[Any] = functools.singledispatch(len)
_DISPATCH: Final = _DISPATCHING.__code__.co_freevars.index("dispatch")
_REGISTRY: Final = _DISPATCHING.dispatch.__code__.co_freevars.index("registry")
_CACHE: Final = _DISPATCHING.dispatch.__code__.co_freevars.index("dispatch_cache")
_CACHES: Final = weakref.WeakKeyDictionary
_FIELDS: Final = REPLACE.__code__.co_freevars.index("field_names")


def fields_of(function: Any) -> tuple[str, ...]:
    """The names that the `_replace` of a named tuple takes.

    >>> fields_of(collections.namedtuple("Point", "x y")._replace)
    ('x', 'y')
    """
    fields: tuple[str, ...] = function.__closure__[_FIELDS].cell_contents
    return fields


def is_original(function: Any, module: Any) -> bool:
    """Whether a function, or that of a method, is one that the module defines: who replaces it is left alone.

    Its names do not say that: `functools.wraps` copies them.

    >>> import copy
    >>> replaced = functools.wraps(copy.deepcopy)(lambda value: value)
    >>> is_original(copy.deepcopy, copy), is_original(replaced, copy)
    (True, False)
    """
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and code.co_filename == getattr(module, "__file__", None)


def parts_of(getter: Any) -> tuple[Any, ...]:
    """What an object of the `operator` module was made of: names, or the name of a method and its arguments.

    >>> import operator
    >>> parts_of(operator.attrgetter("a.b", "c")), parts_of(operator.methodcaller("sum", 0))
    (('a.b', 'c'), ('sum', 0))
    """
    made: tuple[Any, ...] = getter.__reduce__()[1]
    return made


def options_of(caller: Any) -> dict[str, Any]:
    """What an `operator.methodcaller` passes by name.

    >>> import operator
    >>> options_of(operator.methodcaller("sum", dim=0))
    {'dim': 0}
    """
    maker = caller.__reduce__()[0]
    return dict(maker.keywords) if isinstance(maker, functools.partial) else {}


def method_of(caller: Any) -> str:
    """The method that an `operator.methodcaller` calls.

    >>> import operator
    >>> method_of(operator.methodcaller("sum", dim=0))
    'sum'
    """
    maker, parts = caller.__reduce__()
    name: str = maker.args[0] if isinstance(maker, functools.partial) else parts[0]
    return name


def arguments_of(caller: Any) -> tuple[Any, ...]:
    """What an `operator.methodcaller` passes by place.

    >>> import operator
    >>> arguments_of(operator.methodcaller("sum", 0, True))
    (0, True)
    """
    maker, parts = caller.__reduce__()
    passed: tuple[Any, ...] = parts if isinstance(maker, functools.partial) else parts[1:]
    return passed


def is_plain_class(cls: Any) -> bool:
    """Whether nobody but `type` says what derives from it.

    >>> import collections.abc
    >>> is_plain_class(int), is_plain_class(collections.abc.Mapping)
    (True, False)
    """
    asks: Any = type(cls).__subclasscheck__
    return asks is _ASKS


def _is_as_made(function: Any) -> bool:
    """Whether a `singledispatch` shows the table that it uses, and keeps what it finds as it is made to."""
    cells = function.__closure__[_DISPATCH].cell_contents.__closure__
    kept = cells[_CACHE].cell_contents
    return dict(function.registry) == cells[_REGISTRY].cell_contents and type(kept) is _CACHES


def candidates(function: Any, cls: type) -> tuple[type, ...] | None:
    """The classes that a `singledispatch` knows among those that `cls` derives from, in their order.

    None where one of them may say itself what derives from it.

    >>> show = functools.singledispatch(repr)
    >>> _ = show.register(int, hex)
    >>> candidates(show, bool), candidates(show, str)
    ((<class 'int'>, <class 'object'>), (<class 'object'>,))
    """
    if not _is_as_made(function):
        return None
    known = [*function.registry]
    if not all(map(is_plain_class, known)):
        return None
    return tuple(one for one in cls.__mro__ if one in known)


def _keeps_strides(tensor: torch.Tensor) -> bool:
    """Whether `clone()` gives the same strides: entries neither overlap nor leave gaps."""
    if not tensor.numel():
        return tensor.stride() == torch.empty(tensor.shape, device="meta").stride()
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def names_of_class(cls: type) -> tuple[str, ...]:
    """The names of attributes that a class has, with those of its bases.

    >>> "real" in names_of_class(int)
    True
    """
    return (*_NAMES_OF_CLASS(cls),)


def can_be_cloned(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether copies of these that share a memo look as `clone()` makes them.

    `copy.deepcopy` copies all memory behind a tensor, and once for all tensors that share it.

    >>> x = torch.ones(4)
    >>> can_be_cloned([x, torch.zeros(2, 2).t()]), can_be_cloned([x[:2]]), can_be_cloned([x, x.view(2, 2)])
    (True, False, False)
    """
    if torch.overrides.has_torch_function((*tensors,)):  # a mode is told of copies
        return False
    storages = set()
    for tensor in tensors:
        plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
        plain = plain and not tensor.is_nested and not is_zero_tensor(tensor)
        if not plain or tensor.requires_grad or tensor.grad is not None or type(tensor) is not torch.Tensor:
            return False
        if tensor.is_conj() or tensor.is_neg() or tensor.__dict__:
            return False
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # of a transform of torch.func
            return False
        whole = storage.nbytes() == tensor.numel() * tensor.itemsize and not tensor.storage_offset()
        if not whole or not _keeps_strides(tensor) or storage.data_ptr() in storages:
            return False
        storages.add(storage.data_ptr())
    return True


_Tensors = Sequence[torch.Tensor]


def share_clones(
    tensors: Sequence[torch.Tensor], clones: Sequence[torch.Tensor], memo: dict[Any, Any]
) -> None:
    """Have torch's own copies of other tensors share memory with these clones, as the tensors do.

    >>> import copy
    >>> x = torch.ones(4)
    >>> clone, memo = x.clone(), {}
    >>> share_clones([x], [clone], memo)
    >>> copy.deepcopy(x[2:], memo).data_ptr() == clone[2:].data_ptr()
    True
    """
    copied = memo.setdefault("torch", {})  # what UntypedStorage.__deepcopy__ looks into
    for tensor, clone in zip(tensors, clones, strict=True):
        copied[tensor.untyped_storage()._cdata] = clone.untyped_storage()


def mend_clones(copier: Any, tensors: _Tensors, clones: _Tensors) -> None:
    """Make of clones the copies that torch makes.

    >>> memory = torch.arange(4.0)
    >>> tensors = [memory[:2], memory[1:]]
    >>> clones = [one.clone() for one in tensors]
    >>> mend_clones(torch.Tensor.__deepcopy__, tensors, clones)
    >>> clones[0][1] = 7.0
    >>> clones[1]
    tensor([7., 2., 3.])
    """
    memo: dict[Any, Any] = {}
    with torch.no_grad():
        for tensor, clone in zip(tensors, clones, strict=True):
            made = copier(tensor, memo)
            clone.set_(made.untyped_storage(), made.storage_offset(), made.size(), made.stride())
            clone.requires_grad_(made.requires_grad)
            if made.grad is not None:
                clone.grad = made.grad
            clone.__dict__.update(made.__dict__)


def call_quietly(held: Any, name: str, /, *args: Any, **kwargs: Any) -> None:
    """Call a method, and drop what it gives."""
    getattr(held, name)(*args, **kwargs)


def call_with_row(held: Any, name: str, /, *values: Any) -> None:
    """Call a method with a row of values, and drop what it gives."""
    getattr(held, name)(values)


def call_with_dict(held: Any, name: str, keys: tuple[str, ...], /, *values: Any, **kwargs: Any) -> None:
    """Call a method with a dict of values, and drop what it gives."""
    getattr(held, name)(dict(zip(keys, values, strict=True)), **kwargs)
