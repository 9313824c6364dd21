"""The only file that names what is private in torch, each with the reason why it is needed."""

from __future__ import annotations

import os
from types import CodeType

import torch
from torch.autograd.function import Function


def opaque_codes() -> list[CodeType]:
    """Code objects of torch whose calls must stay whole in a program.

    `Function.apply` keeps the backward that its class defines; the operators inside would be differentiated
    by themselves.

    >>> [code.co_name for code in opaque_codes()]
    ['apply']
    """
    return [Function.apply.__func__.__code__]  # type: ignore[attr-defined]


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
