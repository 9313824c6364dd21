"""Finds the C++ core and says what is wrong where it cannot be used."""

from __future__ import annotations

import functools
import os
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from lazytrace import _torch, pure, stand_ins
from lazytrace.errors import ExtensionWarning, missing_extension

if TYPE_CHECKING:
    from lazytrace import _core as core
else:
    core = None

__all__ = ["available", "core", "problem", "version_problem"]

# Reasons for eager calls, as in stats/reasons.py.
NOT_IMPORTED: Final = "lazytrace._core cannot be imported: {}"
OTHER_TORCH: Final = "lazytrace._core was built for torch {}, but torch {} is running"


def version_problem(built_for: str, running: str) -> str:
    """Why an extension built for one torch cannot be used with another; "" where it can.

    >>> version_problem("2.13.0+cpu", "2.13.0+cpu")
    ''
    >>> version_problem("2.12.0", "2.13.0")
    'lazytrace._core was built for torch 2.12.0, but torch 2.13.0 is running'
    """
    if built_for == running:
        return ""
    return OTHER_TORCH.format(built_for, running)


def load() -> str:
    """Import and configure `lazytrace._core`; returns what is wrong with it, or "".

    Nothing is raised: without its core the package still works, and every call runs eagerly.
    """
    try:
        from lazytrace import _core
    except ImportError as error:
        # A symbol that is not found means that the extension was compiled against another torch.
        return NOT_IMPORTED.format(error)
    found = version_problem(_core.torch_version, torch.__version__)
    if not found:
        own = os.path.dirname(os.path.abspath(__file__)) + os.sep
        library = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
        _core.configure(_torch.torch_folder(), own, library, _torch.opaque_codes())
        _core.configure_modules(*_torch.plain_module_codes(), _torch.tracing_state)
        _core.configure_overrides(_torch.registered_kernels())
        _core.configure_saved_hooks(_torch.is_own_saved_hook)
        _core.configure_gradients(
            _torch.run_backward,
            functools.partial(_core.backward_call, _torch.run_backward),
            functools.partial(_core.batched_backward_call, _torch.run_backward),
            _torch.level_of_loggers(),
        )
        _core.configure_pure_functions(pure.reads_of)
        whole: dict[Callable[..., Any], Any] = {
            one: functools.partial(_core.whole_call, one) for one in _torch.whole_functions()
        }
        checkpoint = _torch.checkpoint_function()
        whole[checkpoint] = functools.partial(
            _core.checkpoint_call, checkpoint, pure.switches_of_checkpoint()
        )
        hook = functools.partial(_core.hook_call, _torch.add_hook, _torch.register_hook)
        whole[_torch.register_hook] = hook
        remove = functools.partial(
            _core.unhook_call, _torch.remove_hook, _torch.remove_handle, _torch.hook_place
        )
        _core.configure_unhooking(_torch.remove_handle, remove)
        instead = (stand_ins.setup_input_hook, stand_ins.setup_output_hook)
        whole |= dict(zip(_torch.module_hook_calls(), instead, strict=False))
        whole[_torch.set_input_hook] = functools.partial(_core.module_inputs, _torch.set_input_hook)
        whole[_torch.set_output_hook] = functools.partial(
            _core.module_outputs, _torch.link_module_hooks, _torch.set_output_hook
        )
        _core.configure_whole_calls(whole)
        _core.configure_default_dicts(stand_ins.Filling)
        _core.configure_cached_calls(_cached_step, _given_entry)
        _core.configure_called_objects(_torch.scripted_classes(), _scripted_step, None, None, None)
        operators = _torch.custom_operator_classes()
        _core.configure_called_objects(
            operators,
            _custom_operator_step,
            _torch.is_custom_operator,
            _torch.has_python_kernel,
            _torch.name_of_operator,
        )
        globals()["core"] = _core
    return found


def _cached_step(cached: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The same of a function with a `functools` cache that drops what it has: the call is one step."""
    if isinstance(cached, types.MethodType):
        cached, args = cached.__func__, (cached.__self__, *args)
    return core.opaque_call(cached, "", cached, args, kwargs, True)


def _given_entry(entry: tuple[Any], /, *_: Any) -> Any:
    """What a recording calls in the place of a function with a `functools` cache whose entry is a step."""
    return entry[0]


def _scripted_step(scripted: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What a recording calls in the place of what TorchScript has compiled: it is one step."""
    # Printing its graph runs operators.
    python = core.aside(functools.partial(_torch.runs_python, scripted))
    return core.opaque_call(scripted, "", scripted, args, kwargs, python)


def _custom_operator_step(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The same of what `torch.library.custom_op` has made: all of its kernels are Python."""
    return core.opaque_call(operator, "", operator, args, kwargs, True)


def available() -> bool:
    """Whether the C++ core can be used.

    >>> available() == (problem == "")
    True
    """
    return not problem


problem = load()
if problem:
    warnings.warn(missing_extension(problem), ExtensionWarning, stacklevel=2)
