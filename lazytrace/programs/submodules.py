"""How many operators of a program belong to each module, and how long they take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lazytrace.checks import clone_tensor
from lazytrace.errors import modules_not_timed
from lazytrace.programs.program import Modes, Operation, Program, Register, Result

_RUNS = ("operator", "literal", "fill", "data", "read")


@dataclass(frozen=True)
class Submodule:
    """A module with all that is inside it; the path "" is the whole function.

    `seconds` is the least of several runs, of operators that are called one by one from Python.
    """

    path: str
    type: str
    operators: int
    seconds: float


class Submodules(tuple[Submodule, ...]):
    """Each module that a program has operators of, in the order of their first ones.

    >>> print(Submodules([Submodule("", "function", 2, 3e-4), Submodule("net.0", "my.Layer", 1, 1e-4)]))
    module  operators     ms  type
                    2  0.300  function
    net.0           1  0.100  my.Layer
    """

    def __str__(self) -> str:
        width = max(len("module"), *(len(one.path) for one in self))
        rows = [f"{'module':{width}}  operators     ms  type"]
        rows += [
            f"{one.path:{width}}  {one.operators:9}  {one.seconds * 1e3:5.3f}  {one.type}" for one in self
        ]
        return "\n".join(rows)


def submodules(program: Program, rounds: int) -> Submodules:
    """The modules of a program; it runs on copies of all tensors, and the random stream is put back."""
    _refuse(program)
    types = {"": "function"}
    counts: dict[str, int] = {}
    for step in program.steps:
        for path, kind in _around(step).items():
            types.setdefault(path, kind)
            counts[path] = counts.get(path, 0) + (step.kind == "operator")
    runs = [_seconds(program) for _ in range(max(rounds, 1))]
    return Submodules(
        Submodule(path, types[path], counts[path], min(run[path] for run in runs)) for path in counts
    )


def _refuse(program: Program) -> None:
    others = [step for step in program.steps if step.kind not in _RUNS]
    switched = [step for step in program.steps if step.modes.switches]
    if others or switched or program.native.follows_numbers:
        why = "it works out numbers"
        if others or switched:
            why = f"a step is no operator ({others[0].place})" if others else "it sets switches of torch"
        raise NotImplementedError(modules_not_timed(program.name, why))


def _around(step: Operation) -> dict[str, str]:
    """Path and type of the modules around a step, and of the function."""
    return {"": "function"} | {path: kind for path, kind, _ in step.modules if path}


def _seconds(program: Program) -> dict[str, float]:
    memo: dict[Any, Any] = {}
    sources = [(one.register, one.tensor) for one in program.inputs]
    sources += [(one.register, one.tensor) for one in program.captures]
    values = {register: clone_tensor(tensor, memo) for register, tensor in sources}
    seconds: dict[str, float] = {}
    with torch.random.fork_rng(devices=[], enabled=program.random):
        for step in program.steps:
            with _in_modes(step.modes):
                start = time.perf_counter()
                _run(step, values)
                taken = time.perf_counter() - start
            for path in _around(step):
                seconds[path] = seconds.get(path, 0.0) + taken
    return seconds


@contextlib.contextmanager
def _in_modes(modes: Modes) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(modes.inference))
        stack.enter_context(torch.set_grad_enabled(modes.grad))
        for device, dtype in modes.autocast:
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=modes.autocast_cache))
        yield


def _run(step: Operation, values: dict[Register, Any]) -> None:
    taken = [_value(one.value, values) for one in step.arguments]
    if step.kind == "literal":
        assert step.literal is not None
        found: Any = step.literal.clone()
    elif step.kind == "fill":
        found = taken[0].copy_(step.literal)
    elif step.kind == "data":
        found = taken[0].detach()
    else:
        named = {
            one.name: value for one, value in zip(step.arguments, taken, strict=True) if one.keyword_only
        }
        plain = [value for one, value in zip(step.arguments, taken, strict=True) if not one.keyword_only]
        found = step.handle()(*plain, **named)
    results = step.results
    for result, one in zip(results, [found] if len(results) == 1 else found or (), strict=False):
        _bind(result, one, values)


def _bind(result: Result, found: Any, values: dict[Register, Any]) -> None:
    if result.register is not None:
        values[result.register] = found
    for item, one in zip(result.items, found if result.items else (), strict=False):
        _bind(item, one, values)


def _value(value: Any, values: dict[Register, Any]) -> Any:
    if isinstance(value, Register):
        return values[value]
    if isinstance(value, list):
        return [_value(one, values) for one in value]
    # A Python number that met a tensor operator: the schema wants the tensor, promotion the number.
    return value.item() if isinstance(value, torch.Tensor) else value
