"""Calls that stay whole inside a program: `script_if_tracing` and `opaque`."""

from __future__ import annotations

import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
import wrapt

from lazytrace._native import available, core
from lazytrace._torch import is_jit_tracing
from lazytrace.errors import NotTraceableError, not_callable


class OpaqueFunction(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A function that a recording does not look into: its call is one step, made again at each replay."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function; inside a recording the call becomes one step."""
        if not available() or not core.is_recording():
            return self.__wrapped__(*args, **kwargs)
        return core.opaque_call(self, "__lazytrace_step__", self.__lazytrace_step__, args, kwargs, True)

    def __lazytrace_step__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # Bound like a function: at a replay the class still has this object, and the instance is an argument.
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> str:
        return str(self.__qualname__)


class OpaqueStatic(OpaqueFunction):
    """An opaque static method."""

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self


class ScriptedFunction(OpaqueFunction):
    """The same, compiled with `torch.jit.script` where TorchScript takes the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._self_lock = threading.Lock()
        self._self_scripted: Callable[..., Any] | None = None
        self._self_why = ""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function; inside a recording, or under `torch.jit.trace`, the call becomes one step."""
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
            if self._self_scripted is None:
                self._self_scripted, self._self_why = _script(self.__wrapped__)
            return self._self_scripted


def _script(function: Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    """(what runs inside a program, why it is not scripted)."""
    script = getattr(torch.jit, "script", None)
    if script is None:
        return function, "this torch has no torch.jit.script"
    try:
        with warnings.catch_warnings():
            # This call is ours, not the user's: that TorchScript is deprecated is not news to them.
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted: Callable[..., Any] = script(function)
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


def opaque(function: Callable[..., Any]) -> OpaqueFunction:
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
    """
    if isinstance(function, staticmethod):
        return OpaqueStatic(function.__func__)
    if not callable(function):
        raise NotTraceableError(not_callable(function, "opaque"))
    return OpaqueFunction(function)
