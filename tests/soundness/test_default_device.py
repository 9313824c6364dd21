"""Where tensors are made that the function names no device for; `meta` stands for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from .runner import Holder, call, check

Body = Callable[[Any, Any], Any]
ARRAY = np.arange(3.0)

BODIES: dict[str, tuple[Body, dict[str, Any]]] = {
    "tensor": (lambda a, s: torch.tensor(a), {"hits": 4}),
    "tensor of a dtype": (lambda a, s: torch.tensor(a, dtype=torch.float16), {"hits": 4}),
    "tensor on the cpu": (lambda a, s: torch.tensor(a, device="cpu") + 1, {"hits": 4}),
    "as_tensor": (lambda a, s: torch.as_tensor(a), {"hits": 4}),
    "as_tensor of a dtype": (lambda a, s: torch.as_tensor(a, dtype=torch.float32), {"hits": 4}),
    "as_tensor on the cpu": (lambda a, s: torch.as_tensor(a, device=torch.device("cpu")) * 2, {"hits": 4}),
    "from_numpy": (lambda a, s: torch.from_numpy(a) * 2, {"hits": 4}),
    "Tensor": (lambda a, s: torch.Tensor(a), {"hits": 4}),
    "FloatTensor": (lambda a, s: torch.FloatTensor(a) + 1, {"hits": 4}),
    "new array": (lambda a, s: torch.as_tensor(np.random.rand(3)), {"hits": 4}),
    "new array copied": (lambda a, s: torch.tensor(np.random.rand(3)), {"hits": 4}),
    "number": (lambda a, s: torch.tensor(s.number), {"hits": 3}),
    "numbers": (lambda a, s: torch.tensor([s.number, 1.0]), {"hits": 3}),
    "numbers as a tensor": (lambda a, s: torch.as_tensor([s.number, 2.0, s.number]), {"hits": 3}),
    "full": (lambda a, s: torch.full((2,), s.number), {"hits": 3}),
    "ones": (lambda a, s: torch.ones(3), {"hits": 4}),
    "sizes": (lambda a, s: torch.zeros(len(a), a.size), {"hits": 4}),
    "new of another": (lambda a, s: torch.from_numpy(a).new_tensor([1.0, s.number]), {"hits": 3}),
}


def case(body: Body, inside: bool) -> Callable[..., Any]:
    def make(trace: Any) -> Any:
        np.random.seed(0)
        state = Holder(number=0.5)

        def plain(a: Any) -> Any:
            return body(a, state)

        def switching(a: Any) -> Any:
            with torch.device("meta"):
                return body(a, state)

        def change() -> None:
            state.number = 1.5

        steps = [call(ARRAY + i) for i in range(4)] + [change] + [call(ARRAY - i) for i in range(3)]
        if not inside:
            return trace(plain), [lambda: torch.set_default_device("meta"), *steps]
        return trace(switching), steps

    return make


@pytest.mark.parametrize("name", BODIES)
def test_set_around_the_calls(name: str) -> None:
    body, expected = BODIES[name]
    check(case(body, False), **expected)


@pytest.mark.parametrize("name", BODIES)
def test_set_inside(name: str) -> None:
    body, expected = BODIES[name]
    check(case(body, True), **expected)


@pytest.mark.parametrize("name", BODIES)
def test_switched_between_the_calls(name: str) -> None:
    body, expected = BODIES[name]

    def make(trace: Any) -> Any:
        function, steps = case(body, False)(trace)
        other = [call(ARRAY), call(ARRAY), lambda: torch.set_default_device("meta"), call(ARRAY), call(ARRAY)]
        return function, [*other, lambda: torch.set_default_device("cpu"), call(ARRAY), call(ARRAY), *steps]

    check(make, **expected)
