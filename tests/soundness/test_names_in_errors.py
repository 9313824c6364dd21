"""What errors of backward passes call a tensor that was written to, where one node stands for the graph."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import call, check
from tests.soundness.test_flat_steps import ENOUGH, forms_of

OPERATORS = {
    "Clamp1": lambda h: h.clamp(-1, 1).exp(),
    "Clamp": lambda h: h.clamp(torch.tensor(-1.0), torch.tensor(1.0)).exp(),
    "Sum1": lambda h: h.sum(0, keepdim=True) + 0 * h,
    "Mean1": lambda h: h.mean(0),
    "Pow1": lambda h: h.exp().pow(torch.tensor(1.5)),
    "Tanh": torch.tanh,
    "Copy": lambda h: torch.zeros(3, 4).copy_(h),
    "Max": lambda h: h.max(1)[0],
    "Squeeze": lambda h: h[None].squeeze(0) * 1,
}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_tensor_has_the_name_that_torch_gives_it(name, which):
    seen = []

    def make(trace):
        w = torch.nn.Parameter(torch.linspace(-0.7, 1.3, 16).view(4, 4))

        def model(x):
            made = OPERATORS[name](torch.sigmoid((x @ w).exp() @ w).neg())
            return (made * made.sin()).tanh(), made

        function = trace(model)

        def step(x, writes):
            results = function(x)
            if writes:
                with torch.no_grad():
                    results[which].add_(1)
                if trace.enabled:
                    seen.extend(forms_of(function))
            results[0].sum().backward()
            found, w.grad = w.grad, None
            return found

        calls = [call(torch.randn(3, 4), False).of(step) for _ in range(ENOUGH)]
        return function, [*calls, call(torch.randn(3, 4), True).of(step)]

    check(make, hits=ENOUGH)
    assert seen[0] == "one node", seen
