"""The decorator `traced`: what it accepts, and which wrapper each thing gets."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from functools import partial
from typing import Any, overload

import torch

from lazytrace.buckets import Bucketed
from lazytrace.config import Options
from lazytrace.errors import NotTraceableError, coroutine, generator, not_callable
from lazytrace.function import TracedCallable, TracedFunction, TracedModule
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS


@overload
def traced(fn: None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...
@overload
def traced(fn: Callable[..., Any], **options: Any) -> Any: ...
def traced(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Record a function once per input signature, then replay it from C++.

    Bare or with options, on functions, lambdas, partials, methods (plain, class, static), callables,
    `nn.Module` instances, and `nn.Module` classes (whose `forward` is traced).

    Options: `cache_limit` (64 traces), `on_limit` ("evict", "eager" or "raise"), `on_untraceable` ("eager" or
    "raise"), `on_retrace` ("record", "warn" or "raise"), `check` (True: prove each new program by one
    replay), `dynamic` (None: one trace for all sizes from the second size on; True: from the first; False:
    one for each), `buckets` (sizes to pad to, see below), `exit_limit` (8 branches at one place),
    `branch_limit` (32 in one signature), `ignore` ("print", "logging": what a replay leaves out), `backend`
    ("replay", or "eager" to only count), `name` (for reports), `events` (256 of the newest are kept). Raises
    `OptionError` for a wrong option and `NotTraceableError` for what cannot be traced.

    `buckets` pads arguments to few sizes: for each parameter a dimension, the sizes in any order, and what is
    filled in (0 if left out); a size beyond all of them stays. `"return"` is the dimension in which results
    have the size of the first of these parameters, and are cut back to it: one for all tensors, or by their
    structure, with None for what stays as it is; left out, nothing is cut. That the function gives the same
    with the padding, where it matters to you, is your promise: nothing checks it. A result is a view of what
    the function gave, and a function that writes to an argument that was padded raises `OptionError`.

    >>> import torch
    >>> @traced(buckets={"x": (0, (4, 8)), "return": 0}, dynamic=False)
    ... def double(x):
    ...     return x * 2
    >>> [double(torch.ones(rows)).shape[0] for rows in (1, 2, 3, 4, 5, 6, 7)], double.cache_info().misses
    ([1, 2, 3, 4, 5, 6, 7], 2)

    >>> @traced(cache_limit=8)
    ... def step(x, w):
    ...     return torch.tanh(x @ w)
    >>> x, w = torch.ones(2, 3), torch.ones(3, 3)
    >>> torch.equal(step(x, w), step(x, w))
    True
    >>> step.cache_info()
    CacheInfo(hits=1, misses=1, maxsize=8, currsize=1)
    """
    checked = Options.checked(**options)
    if fn is None:
        return partial(_wrap, options=checked)
    return _wrap(fn, options=checked)


def _wrap(fn: Any, *, options: Options) -> Any:
    _refuse(fn)
    if isinstance(fn, Bucketed):
        fn = fn.__wrapped__
    if not options.buckets:
        return _wrap_plain(fn, options)
    if isinstance(fn, type):
        return _wrap_class(fn, options)
    return Bucketed(_wrap_plain(fn, options), options.buckets)


def _wrap_plain(fn: Any, options: Options) -> Any:
    if isinstance(fn, TracedFunction):
        fn = fn.__wrapped__
    if isinstance(fn, type):
        return _wrap_class(fn, options)
    if isinstance(fn, torch.nn.Module):
        return TracedModule(fn, options)
    plain: Any = fn
    if isinstance(fn, types.FunctionType | classmethod | staticmethod):
        return TracedFunction(plain, options)
    return TracedCallable(fn, options)


def _wrap_class(cls: type, options: Options) -> type:
    if not issubclass(cls, torch.nn.Module):
        raise NotTraceableError(
            f"cannot trace the class {cls.__name__}: it is not an nn.Module. "
            "Decorate the methods that compute instead."
        )
    forward: Any = TracedFunction(cls.forward, options)
    if options.buckets:
        forward = Bucketed(forward, options.buckets)
    setattr(cls, "forward", forward)  # noqa: B010 (mypy: methods are not assigned)
    return cls


def _refuse(fn: Any) -> None:
    inner = getattr(fn, "__func__", fn)
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not isinstance(fn, classmethod | staticmethod) and not callable(fn):
        raise NotTraceableError(not_callable(fn))
    inner = _code_behind(inner)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise NotTraceableError(coroutine(fn))
    if inspect.isgeneratorfunction(inner):
        raise NotTraceableError(generator(fn))


def _code_behind(fn: Any) -> Any:
    """What runs when `fn` is called: the forward of modules and their classes, the __call__ of objects."""
    if isinstance(fn, torch.nn.Module) or (isinstance(fn, type) and issubclass(fn, torch.nn.Module)):
        return fn.forward
    return fn if inspect.isroutine(fn) or isinstance(fn, type) else getattr(fn, "__call__", fn)  # noqa: B004
