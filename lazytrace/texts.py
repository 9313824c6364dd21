"""What Python is given in place of texts that it makes of followed numbers: f"loss {loss.item():.3f}"."""

from __future__ import annotations

import json
import math
import operator
import re
import string
import sys
from collections.abc import Callable
from typing import Any

import torch

from lazytrace._native import available, core
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

# A text is made again at each replay, by the function that made it. Whatever looks at its characters reads
# the numbers that it was made of: a text is for logs, and seldom looked at.


def _reading(name: str) -> Callable[..., Any]:
    function = getattr(str, name)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        core.settle_texts(args)
        return function(core.read_carrier(self), *args, **kwargs)

    return read


# Those that give a text for every text, and look at nothing but that and their arguments.
_TEXTS_OF_TEXTS = (
    "capitalize", "casefold", "center", "expandtabs", "ljust", "lower", "lstrip", "removeprefix",
    "removesuffix", "rjust", "rstrip", "strip", "swapcase", "title", "upper", "zfill",
)  # fmt: skip


def _changing(name: str) -> Callable[..., Any]:
    function = getattr(str, name)
    read = _reading(name)

    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = not kwargs and all(type(arg) in (str, int) for arg in args)
        # Of wrong arguments Python raises, whatever the text.
        made = core.follow_text(function, self, *args) if plain else None
        return read(self, *args, **kwargs) if made is None else made

    return change


def _reduce(self: Any, protocol: Any = None) -> Any:
    return str, (core.read_carrier(self),)


def _methods() -> dict[str, Any]:
    own = ("__new__", "__getattribute__", "__doc__", "maketrans")
    return {
        **{name: _reading(name) for name in vars(str) if name not in own and callable(getattr(str, name))},
        "__radd__": lambda self, other: other + core.read_carrier(self),
        "__reduce__": _reduce,
        "__reduce_ex__": _reduce,
        "__module__": "builtins",
        "__name__": "str",
        "__qualname__": "str",
        "__doc__": "A str that was made of followed numbers.",
    }


Text: Any = core.make_text_class(_methods()) if available() else None

_CONVERSIONS: dict[int, Callable[..., str]] = {1: str, 2: repr, 3: ascii}
_FORMAT = torch.Tensor.__format__
_FLOAT = torch.Tensor.__float__


def _is_steady(spec: Any) -> bool:
    """Whether a number of the same type never raises with it, and no setting of the process counts."""
    return type(spec) is str and not {"c", "n"} & set(spec)


# ---------------------------------------------------------------- in place of instructions
def _number(value: Any, text: Any = None) -> Any:
    """What is formatted for it: of a tensor without dimensions its value, as `Tensor.__format__` has it.

    With a `text` that is filled with `value` by `%`, what takes its place there.
    """
    if text is not None:
        return _floats(value, text)
    plain = type(value) is torch.Tensor and torch.Tensor.__format__ is _FORMAT
    if not plain or value.dim() or value.is_meta:
        return value
    return core.item_number(value, torch.Tensor.item)


def _formatted(value: Any, conversion: int, spec: Any) -> Any:
    # A spec of a class of the user's would be asked whether it is empty.
    if issubclass(type(value), torch.Tensor) or type(spec) not in (str, Text, type(None)):
        return None
    if conversion == 1:
        value = _as_written(value)
    if conversion and not (conversion == 1 and type(value) is Text):
        value = core.follow_text(_CONVERSIONS[conversion], value)
    if value is None or (type(value) is Text and not spec):
        return value
    # Numpy writes its floats as it is set to, and with a format as Python does.
    value = _as_written(value) if not spec else core.number_of_scalar(value)
    return core.follow_text(format, value, spec) if _is_steady(spec) else None


def _as_written(value: Any) -> Any:
    """The int for an int64 of numpy's, which are one text, but for its `repr`."""
    number = core.number_of_scalar(value)
    return value if core.is_real_carrier(number) else number


def _joined(*pieces: Any) -> Any:
    return core.follow_text(str.join, "", pieces)


def _added(left: Any, right: Any) -> Any:
    return core.follow_text(operator.add, left, right)


def _floats(right: Any, left: str) -> Any:
    """`right` with the floats of tensors that are written as floats; itself where there are other tensors."""
    values, asked = _fillings(left, right)
    if len(asked) != len(values) or torch.Tensor.__float__ is not _FLOAT:
        return right
    tensors = [isinstance(value, torch.Tensor) for value in values]
    for (_, kind), value, tensor in zip(asked, values, tensors, strict=True):
        if tensor and (type(value) is not torch.Tensor or kind not in "eEfFgG"):
            return right
    made = tuple(
        core.item_number(value, float) if tensor else value
        for value, tensor in zip(values, tensors, strict=True)
    )
    return made if type(right) is tuple else made[0]


# What a `%` in a text asks for: its flags, width and precision, and the conversion.
_ASKED = re.compile(r"%(?:\([^)]*\))?([#0\- +*\d.hlL]*)(.)", re.DOTALL)


def _fillings(left: Any, right: Any) -> tuple[tuple[Any, ...], list[tuple[str, str]]]:
    """The values of `left % right`, and how each is to be written."""
    values = right if type(right) is tuple else (right,)
    return values, [one for one in _ASKED.findall(left) if one[1] != "%"] if type(left) is str else []


def _filled(left: Any, right: Any) -> Any:
    values, asked = _fillings(left, right)
    if type(right) is dict or len(asked) != len(values):
        return None
    if any("*" in how or kind in _refused(value) for (how, kind), value in zip(asked, values, strict=True)):
        return None
    values = _whole(values, [kind for _, kind in asked])
    if not values and asked:
        return None
    made = tuple(
        core.number_of_scalar(value)
        if kind in "eEfFgG"
        else _as_written(value)
        if kind not in "ra"
        else value
        for (_, kind), value in zip(asked, values, strict=True)
    )
    return core.follow_text(operator.mod, left, made if type(right) is tuple else made[0] if made else right)


def _refused(value: Any) -> str:
    # Few numbers are a character, and no float has such digits.
    return "coxX" if core.is_real_carrier(value) else "c"


def _whole(values: tuple[Any, ...], kinds: list[str]) -> tuple[Any, ...]:
    """`values` with the whole numbers of floats that are written as such; none where one may raise first."""
    cut = [kind in "diu" and core.is_real_carrier(value) for kind, value in zip(kinds, values, strict=True)]
    # Python comes to a nan only when it has written what stands before it, which must not raise.
    steady = all(
        kind in "sra" or not isinstance(value, str) for kind, value in zip(kinds, values, strict=True)
    )
    if any(cut) and not (steady and all(map(_never_raises, kinds, values))):
        return ()
    return tuple(
        math.trunc(core.number_of_scalar(value)) if whole else value
        for whole, value in zip(cut, values, strict=True)
    )


def _never_raises(kind: str, value: Any) -> bool:
    plain = type(value) in (int, float, str, bool, Text) or core.is_real_carrier(value)
    # Nobody asks a whole number of any class how it is written as one.
    return plain or (kind in "diuxX" and issubclass(type(value), int))


# ---------------------------------------------------------------- in place of what is called
def _plainly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    core.settle_texts(args)
    core.settle_texts(kwargs)
    return function(*args, **kwargs)


def _made(function: Callable[..., Any], follow: Callable[..., Any]) -> Callable[..., Any]:
    """In place of a function of one value; options may be anybody's code."""

    def make(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            if function is str and type(args[0]) is Text:
                return args[0]
            made = follow(function, *args)
            if made is not None:
                return made
        return _plainly(function, args, kwargs)

    return make


# Options of `json.dumps` that are values: no code of the user's.
_OPTIONS_OF_JSON = ("indent", "sort_keys", "ensure_ascii", "separators", "allow_nan", "skipkeys")
_KINDS_OF_OPTIONS = (type(None), bool, int, str)


def _is_plain_option(name: str, value: Any) -> bool:
    parts = value if type(value) is tuple else (value,)
    return name in _OPTIONS_OF_JSON and all(type(part) in _KINDS_OF_OPTIONS for part in parts)


def _dump(value: Any, options: tuple[Any, ...]) -> str:
    return json.dumps(value, **dict(options))


def _dumps(*args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and all(_is_plain_option(name, kwargs[name]) for name in kwargs):
        value = args[0]
        made = core.aside(
            lambda: (
                core.follow_text(_dump, value, (*kwargs.items(),))
                if kwargs
                else core.follow_text(json.dumps, value)
            )
        )
        if made is not None:
            return made
    return _plainly(json.dumps, args, kwargs)


def _format(*args: Any, **kwargs: Any) -> Any:
    follows = 0 < len(args) <= 2 and not kwargs
    made = _formatted(args[0], 0, args[1] if len(args) > 1 else "") if follows else None
    return _plainly(format, args, kwargs) if made is None else made


def _is_steady_format(text: Any) -> bool:
    if type(text) is not str:
        return False
    try:
        fields = [field[1:] for field in string.Formatter().parse(text) if field[1] is not None]
    except ValueError:
        return False
    return all(
        (not name or name.isalnum()) and _is_steady(spec) and "{" not in str(spec) for name, spec, _ in fields
    )


def _fill(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return text.format(*args, **kwargs)


def _format_text(*args: Any, **kwargs: Any) -> Any:
    made = None
    if args and _is_steady_format(args[0]):
        values, named = args[1:], kwargs
        if not any(field[3] for field in string.Formatter().parse(args[0])):
            values, named = tuple(map(_number, args[1:])), {k: _number(v) for k, v in kwargs.items()}
        made = core.follow_text(_fill, args[0], values, named)
    return _plainly(str.format, args, kwargs) if made is None else made


def _listed(items: Any) -> list[Any]:
    """What `str.join` makes of what it is given: texts in it that are followed are none to C code."""
    try:
        given = iter(items)
    except TypeError:
        given = None
    if given is None:
        raise TypeError("can only join an iterable")
    return list(given)


def _join(*args: Any, **kwargs: Any) -> Any:
    if len(args) == 2 and type(args[1]) not in (list, tuple) and type(args[0]) in (str, Text):
        args = args[0], _listed(args[1])
    plain = len(args) == 2 and not kwargs and type(args[1]) in (list, tuple)
    made = core.follow_text(str.join, *args) if plain else None
    return _plainly(str.join, args, kwargs) if made is None else made


def configure() -> None:
    """Tell the core of all this, once."""
    made: dict[Any, Any] = {one: _made(one, core.follow_text) for one in (str, repr, ascii)}
    if json.dumps.__code__.co_filename == json.__file__:  # whoever has replaced it is left alone
        made[json.dumps] = _dumps
    callables = {**made, format: _format, str.format: _format_text, str.join: _join}
    # Methods, by name.
    callables |= {sys.intern(name): _changing(name) for name in _TEXTS_OF_TEXTS}
    core.configure_texts(callables, _number, _formatted, _joined, _added, _filled)
