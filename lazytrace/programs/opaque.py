"""Opaque steps in graphs: each is an operator of its own, which calls the Python function."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import torch

from lazytrace._torch import overload_of, tree_flatten

if TYPE_CHECKING:
    from lazytrace.programs.program import Opaque, Operation, Program

NAMESPACE = "lazytrace_opaque"
_numbers = itertools.count()


# What sets the backward hooks of modules.
_HOOKS = ("BackwardHookFunction", "link_module_hooks")


def stays_python(step: Operation) -> tuple[str, str]:
    """(why, advice) where nothing can hold an opaque step but the process that has recorded it."""
    if step.opaque is not None and overload_of(step.opaque.function) is not None:
        advice = "Hand it on as a graph, or as an exported program."
        if custom_operator_of(step.opaque) is None:
            advice = "Let it give tensors, and no numbers."
        return f"calls the custom operator {step.operator} ({step.place}), which stays Python", advice
    if step.operator in _HOOKS:
        return "has backward hooks of modules", "Take them off, or hand it on as recorded under no_grad()."
    advice = "Take that out of the function, or register it with torch.library.custom_op()."
    return f"calls {step.operator} ({step.place}), which stays Python", advice


def custom_operator_of(opaque: Opaque) -> Any:
    """The operator of `torch.library` that the step calls, if graphs can name it, or None."""
    overload = overload_of(opaque.function)
    if overload is None:
        return None
    given = [str(one.type) for one in overload._schema.returns]
    return overload if given == ["List[Tensor]"] or set(given) <= {"Tensor"} else None


def operator_of(opaque: Opaque, program: Program) -> tuple[Any, torch.library.Library]:
    """The operator that makes the call, from a list of tensors to a list of tensors, and what keeps it
    registered.

    Autograd looks into it: gradients are those of what the function calls.
    """
    name = f"{re.sub(r'[^0-9A-Za-z]+', '_', opaque.name).strip('_') or 'call'}_{next(_numbers)}"
    library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"{name}(Tensor[] tensors) -> Tensor[]")  # type: ignore[no-untyped-call]
    call = _Call(opaque, dict(program.state))
    library.impl(name, call, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
    return getattr(getattr(torch.ops, NAMESPACE), name).default, library


class _Call:
    def __init__(self, opaque: Opaque, state: dict[int, Any]) -> None:
        self._opaque = opaque
        self._state = state

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        left = iter(tensors)
        args, kwargs = self._opaque.call.build(lambda _: next(left), self._state.__getitem__)
        found, _ = tree_flatten(self._opaque.function(*args, **kwargs))
        values = tuple(None if isinstance(one, torch.Tensor) else one for one in found)
        if values != self._opaque.values:
            raise RuntimeError(
                f"{self._opaque.name} gave {values!r} beside its tensors, and the program was recorded for "
                f"{self._opaque.values!r}"
            )
        return [one for one in found if isinstance(one, torch.Tensor)]
