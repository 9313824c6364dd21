"""The only file that names what is private in torch, each with the reason why it is needed."""

from __future__ import annotations

import os
import sys
from types import CodeType, FunctionType

import torch
import torch.autograd.graph
import torch.utils.checkpoint
from torch.autograd.function import Function

# Every backward pass that Python asks for goes through it.
run_backward = torch.autograd.graph._engine_run_backward


def opaque_codes() -> list[CodeType]:
    """Code objects of torch whose calls must stay whole in a program.

    `Function.apply` keeps the backward that its class defines; the operators inside would be differentiated
    by themselves.

    >>> [code.co_name for code in opaque_codes()]
    ['apply']
    """
    return [Function.apply.__func__.__code__]  # type: ignore[attr-defined]


def registered_kernels() -> set[str]:
    """The set in which `torch.library` keeps what Python has registered; always the same set.

    The core looks at it to know whether kernels of torch's own operators were replaced.

    >>> type(registered_kernels())
    <class 'set'>
    """
    return torch.library._impls


def _constants(function: object, prefix: str) -> list[CodeType]:
    """The code objects of the functions inside a function whose names begin so."""
    constants = function.__code__.co_consts  # type: ignore[attr-defined]
    return [code for code in constants if isinstance(code, CodeType) and code.co_name.startswith(prefix)]


_OWN_HOOKS = [
    code
    for maker in (
        torch.utils.checkpoint._checkpoint_hook,
        torch.utils.checkpoint._recomputation_hook,
        torch.autograd.graph.save_on_cpu,
    )
    for code in _constants(maker.__init__, "pack_")
]


def is_own_saved_hook(pack: object) -> bool:
    """Whether a hook for saved tensors is torch's own: of activation checkpointing or of `save_on_cpu`.

    These read and write nothing of the user's, so operators may be replayed while they are active.

    >>> is_own_saved_hook(torch.autograd.graph.save_on_cpu().pack_hook)
    True
    >>> is_own_saved_hook(lambda t: t)
    False
    """
    if type(pack) is not FunctionType:
        return False
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None:
        # The hook of a recomputation is wrapped by `torch._dynamo.disable`.
        for code in _constants(compiler.DisableContext.__call__, "_fn"):
            if code is pack.__code__ and "fn" in code.co_freevars:
                inner = pack.__closure__[code.co_freevars.index("fn")].cell_contents  # type: ignore[index]
                return is_own_saved_hook(inner)
    return any(code is pack.__code__ for code in _OWN_HOOKS)


def torch_folder() -> str:
    """The folder of the installed torch, with a separator at its end.

    >>> torch_folder().endswith("torch" + os.sep)
    True
    """
    return os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def is_jit_tracing() -> bool:
    """Whether `torch.jit.trace` is at work in this thread; `torch.jit` does not export its own question.

    >>> is_jit_tracing()
    False
    """
    return torch._C._get_tracing_state() is not None


def swap_tensor_impl(a: torch.Tensor, b: torch.Tensor) -> None:
    """Exchange the tensors behind two Python objects.

    `torch.utils.swap_tensors` is public, but refuses tensors that autograd holds too.

    >>> a, b = torch.ones(1), torch.zeros(1)
    >>> swap_tensor_impl(a, b)
    >>> a
    tensor([0.])
    """
    torch._C._swap_tensor_impl(a, b)
