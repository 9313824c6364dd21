"""Calls that stay whole inside a program: `script_if_tracing` and `opaque`."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, overload

import torch
import wrapt

from lazytrace._native import available, core
from lazytrace._torch import (
    Inlined,
    is_dynamo_tracing,
    is_jit_tracing,
    tree_leaves_with_path,
    tree_spec_text,
)
from lazytrace.errors import NotTraceableError, OptionError, like_holds_no_tensors, not_alike, not_callable
from lazytrace.locks import new_lock
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

_PARTS = ("__code__", "__defaults__", "__kwdefaults__")


class OpaqueFunction(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A function that a recording does not look into: its call is one step, made again at each replay.

    `like` looks as its result always does; see `opaque`.
    """

    _torchdynamo_inline = Inlined()

    def __init__(self, function: Callable[..., Any], like: Any = None) -> None:
        super().__init__(function)
        self._self_like = like

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function; inside a recording the call becomes one step."""
        if is_dynamo_tracing():  # torch's compiler reads this line, and looks into the function
            return self._torchdynamo_inline(*args, **kwargs)
        if not available() or not core.is_recording():
            return self.__lazytrace_step__(*args, **kwargs)
        step, told = self.__lazytrace_step__, self._self_like is not None
        return core.opaque_call(self, "__lazytrace_step__", step, args, kwargs, True, told)

    def __lazytrace_step__(self, /, *args: Any, **kwargs: Any) -> Any:
        result = self.__wrapped__(*args, **kwargs)
        if self._self_like is not None:
            check = partial(_check_likeness, self.__wrapped__, self._self_like, result)
            core.aside(check) if available() else check()
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # Bound like a function: at a replay the class still has this object, and the instance is an argument.
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> str:
        return str(self.__qualname__)


def _check_likeness(function: Any, like: Any, result: Any) -> None:
    wanted, found = tree_leaves_with_path(like), tree_leaves_with_path(result)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if tree_spec_text(like) != tree_spec_text(result):
        raise TypeError(not_alike(name, "", tree_spec_text(like), tree_spec_text(result)))
    for (path, expected), (_, got) in zip(wanted, found, strict=True):
        if _look(expected) != _look(got):
            raise TypeError(not_alike(name, path, _look(expected), _look(got)))


def _look(value: Any) -> str:
    """`float32[3, 4]`, and what is unusual about it."""
    if not isinstance(value, torch.Tensor):
        return f"{value!r:.80}"
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.layout is not torch.strided:
        text += f" {str(value.layout).removeprefix('torch.')}"
    elif not value.is_contiguous():
        text += f" with strides {list(value.stride())}"
    return text if value.device.type == "cpu" else f"{text} on {value.device}"


class OpaqueStatic(OpaqueFunction):
    """An opaque static method."""

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self


class ScriptedFunction(OpaqueFunction):
    """The same, compiled with `torch.jit.script` where TorchScript takes the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._self_lock = new_lock()
        self._self_scripted: Callable[..., Any] | None = None
        self._self_why = ""
        self._self_parts: tuple[Any, ...] = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function; inside a recording, or under `torch.jit.trace`, the call becomes one step."""
        if is_dynamo_tracing():
            return self._torchdynamo_inline(*args, **kwargs)
        if is_jit_tracing():
            return self._self_script()(*args, **kwargs)
        if not available() or not core.is_recording():
            return self.__wrapped__(*args, **kwargs)
        step = core.aside(self._self_script)
        # Scripted code returns values and writes to tensors, which shows; Python code may do anything.
        return core.opaque_call(self, "__lazytrace_step__", step, args, kwargs, step is self.__wrapped__)

    def __lazytrace_step__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._self_script()(*args, **kwargs)

    def _self_script(self) -> Callable[..., Any]:
        with self._self_lock:
            # A function can be given other code and other defaults.
            parts = tuple(getattr(self.__wrapped__, name, None) for name in _PARTS)
            if self._self_scripted is None or parts != self._self_parts:
                self._self_parts = parts
                self._self_scripted, self._self_why = _script(self.__wrapped__)
            return self._self_scripted


def _copy(function: types.FunctionType) -> Callable[..., Any]:
    """The same function as another object: torch compiles each once, for all who ask."""
    made = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return functools.update_wrapper(
        made, function, ("__module__", "__qualname__", "__annotations__", "__kwdefaults__")
    )


def _script(function: Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    """(what runs inside a program, why it is not scripted)."""
    script = getattr(torch.jit, "script", None)
    if script is None:
        return function, "this torch has no torch.jit.script"
    try:
        with warnings.catch_warnings():
            # This call is ours, not the user's: that TorchScript is deprecated is not news to them.
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted: Callable[..., Any]
            if isinstance(function, types.FunctionType):
                scripted = script(_copy(function))
                if available():
                    core.run_as_written(scripted)
            else:
                scripted = script(function)
            return scripted, ""
    except Exception as error:  # TorchScript raises whatever its frontend stumbles over
        return (
            function,
            f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}",
        )


def script_if_tracing(function: Callable[..., Any]) -> ScriptedFunction:
    """Keep a function's data-dependent control flow alive inside traced functions.

    Outside a recording it is the plain function. Inside, its call is one step of the program: compiled with
    `torch.jit.script` where TorchScript accepts it (no Python runs at replay), otherwise run as Python at
    each replay. Under `torch.jit.trace` it does what `torch.jit.script_if_tracing` does. Gradients flow.
    Raises `NotTraceableError` where `function` cannot be called.

    >>> import torch
    >>> from lazytrace import script_if_tracing, traced
    >>> @script_if_tracing
    ... def shrink(x, limit: float):
    ...     while x.norm() > limit:
    ...         x = x * 0.5
    ...     return x
    >>> step = traced(lambda x: shrink(x, 1.0))
    >>> step(torch.tensor([4.0])), step(torch.tensor([9.0]))
    (tensor([1.]), tensor([0.5625]))
    """
    if not callable(function):
        raise NotTraceableError(not_callable(function, "script_if_tracing"))
    return ScriptedFunction(function)


@overload
def opaque(function: Callable[..., Any], *, like: Any = None) -> OpaqueFunction: ...
@overload
def opaque(function: None = None, *, like: Any = None) -> Callable[[Callable[..., Any]], OpaqueFunction]: ...
def opaque(
    function: Callable[..., Any] | None = None, *, like: Any = None
) -> OpaqueFunction | Callable[[Callable[..., Any]], OpaqueFunction]:
    """Call a function, at each replay too, without looking inside.

    For what a recording cannot see through: compiled code, other libraries, prints. Arguments may be tensors,
    plain values, containers of these, and state; results tensors and containers of tensors. Raises
    `NotTraceableError` where `function` cannot be called.

    >>> import torch
    >>> from lazytrace import opaque, traced
    >>> seen = []
    >>> @opaque
    ... def note(x):
    ...     seen.append(float(x))
    >>> @traced
    ... def double(x):
    ...     note(x)
    ...     return x * 2
    >>> _ = double(torch.tensor(1.0)), double(torch.tensor(2.0))
    >>> seen
    [1.0, 2.0]

    `like` is a tensor, or a container of tensors, that looks as the result always does: dtype, shape,
    strides, device. Each call is compared with it, inside and outside of traced functions, and raises
    `TypeError` where it differs. A replay then need not be ready to leave the program at this step, so it
    keeps fewer results, and the function can be called where it could not be resumed.

    >>> @opaque(like=torch.empty(2))
    ... def two(x):
    ...     return x * 2
    >>> two(torch.ones(3))
    Traceback (most recent call last):
        ...
    TypeError: two gave float32[3], and opaque(like=...) expected float32[2]. Correct like, or leave it out.
    """
    if function is None:
        return partial(opaque, like=like)
    leaves = tree_leaves_with_path(like) if like is not None else []
    if not all(isinstance(leaf, torch.Tensor) for _, leaf in leaves):
        raise OptionError(like_holds_no_tensors(like))
    if isinstance(function, staticmethod):
        return OpaqueStatic(function.__func__, like)
    if not callable(function):
        raise NotTraceableError(not_callable(function, "opaque"))
    return OpaqueFunction(function, like)
