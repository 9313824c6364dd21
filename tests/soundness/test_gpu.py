"""What GPUs have of their own: streams, random numbers, CUDA graphs, passes in other threads, precisions.

`LAZYTRACE_TEST_DEVICE=cuda pytest tests/soundness` runs all other cases on a GPU.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lazytrace

from .runner import Cases, Holder, call, check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
cases = Cases()


def G(*shape: int, grad: bool = False) -> torch.Tensor:
    """Random numbers on the GPU."""
    return torch.randn(*shape, device="cuda").requires_grad_(grad)


def batches(count: int = 8) -> list[Any]:
    """Calls with inputs and classes."""
    return [call(G(8, 6), torch.randint(0, 3, (8,), device="cuda")) for _ in range(count)]


def net(drop: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 12), nn.GELU(), nn.Dropout(drop), nn.LayerNorm(12), nn.Linear(12, 3)
    ).cuda()


Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [False, True])
def test_training(name: str, clip: bool) -> None:
    def make(trace: Any) -> Any:
        model = net(0.3)
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        return trace(step), batches(), lambda: [model, [p.grad for p in model.parameters()]]

    check(make, hits=4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    def make(trace: Any) -> Any:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return trace(step), batches(), lambda: model

    check(make, hits=4)


@cases(hits=3)
def scaled_losses(trace: Any) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return trace(step), batches(10), lambda: [model, scaler.get_scale()]


@cases(hits=4)
def the_callers_pass(trace: Any) -> Any:
    model = net()
    return trace(lambda x: model(x)), [call(G(4, 6, grad=True)) for _ in range(8)], lambda: model


@cases(hits=4)
def random_numbers(trace: Any) -> Any:
    return trace(lambda x: F.dropout(x) + torch.rand_like(x) + torch.randn(3, device="cuda")), [
        call(G(2, 3))
    ] * 6


@cases(hits=2)
def numbers_drawn_and_dropped(trace: Any) -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        F.dropout(x)
        torch.rand(3, device="cuda")
        return x * 2

    return trace(f), [call(G(3)) for _ in range(4)]


@cases(hits=2)
def a_generator_of_the_gpu(trace: Any) -> Any:
    generator = torch.Generator("cuda")

    def f(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return x + torch.randn(3, device="cuda", generator=g)

    return trace(f), [call(G(3), generator) for _ in range(4)], lambda: generator.get_state()


@cases(hits=2)
def numbers_of_the_gpu_are_read(trace: Any) -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * x.max().item()
        return -x

    return trace(f), [call(k * torch.ones(3, device="cuda")) for k in (1, 2, -1, 3, -2, 4)]


@cases(hits=2)
def both_devices(trace: Any) -> Any:
    weight = torch.randn(3)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.cpu() * weight
        return y.to(x.device, non_blocking=True) + 1, y

    return trace(f), [call(G(3)) for _ in range(4)]


@cases(hits=2)
def the_other_device(trace: Any) -> Any:
    return trace(lambda x: x * 2 + 1), [call(torch.ones(3)), call(G(3)), call(torch.ones(3)), call(G(3))]


@cases(eager="pass-on-gpu")
def hooks_in_a_pass(trace: Any) -> Any:
    """Autograd calls them in a thread of the device, where nothing sees what they read."""
    state = Holder(seen=[], scale=1.0)
    weight = G(3, grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * weight
        y.register_hook(lambda g: g * state.scale)
        y.sum().backward()
        return y.detach()

    def change() -> None:
        state.scale = 3.0

    x = G(3)
    return (
        trace(f),
        [call(x), call(x), call(x), change, call(x), call(x), call(x)],
        lambda: [weight.grad, state],
    )


@cases(eager="pass-on-gpu")
def a_function_of_its_own_that_reads(trace: Any) -> Any:
    state = Holder(scale=2.0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * state.scale

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * state.scale

    weight = G(3, grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        loss = Scaled.apply(x * weight).sum()
        loss.backward()
        return loss.detach()

    def change() -> None:
        state.scale = 5.0

    x = G(3)
    return trace(f), [call(x), call(x), call(x), change, call(x), call(x)], lambda: [weight.grad, state]


@cases(hits=4)
def a_function_of_its_own(trace: Any) -> Any:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 2

    weight = G(3, grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        loss = Doubled.apply(x * weight).sum()
        loss.backward()
        return loss.detach()

    return trace(f), [call(G(3)) for _ in range(8)], lambda: weight.grad


@cases(eager="transform-on-gpu")
def a_transform(trace: Any) -> Any:
    return trace(lambda x: torch.func.grad(lambda y: (y**3).sum())(x)), [call(G(3)) for _ in range(3)]


@cases(hits=4)
def a_context_variable_that_a_hook_asks(trace: Any) -> Any:
    """A thread of the device has a context of its own."""
    variable: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g * variable.get())
        return y

    variable.set(5.0)
    return trace(f), [call(G(3, grad=True)) for _ in range(6)]


@cases(hits=3)
def a_graph_that_a_pass_builds(trace: Any) -> Any:
    """Its nodes have the numbers of another thread, which order a second pass."""
    weight = G(4, grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = ((x * weight).tanh() * x).sum()
        (g,) = torch.autograd.grad(y, weight, create_graph=True)
        loss = y + (g * g * weight).sum() + g.exp().sum()
        return torch.autograd.grad(loss, weight)[0]

    return trace(f), [call(G(4)) for _ in range(8)]


def signed(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return x + t if x.sum() > 0 else x - t


LITERALS: dict[str, Callable[..., Any]] = {
    "a number": lambda x: x + torch.tensor(2.5, device="cuda"),
    "a list": lambda x: x * torch.tensor([1.0, 2.0, 3.0], device="cuda"),
    "of another dtype": lambda x: x + torch.tensor([1, 2, 3], dtype=torch.float16, device=x.device),
    "as_tensor": lambda x: x - torch.as_tensor([1.0, 0.0, 3.0], device="cuda"),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0, 3.0]) * x,
    "returned": lambda x: torch.tensor([4.0, 5.0], device="cuda"),
    "written to": lambda x: torch.tensor([4.0, 5.0, 6.0], device="cuda").mul_(x),
    "moved": lambda x: torch.tensor([1.0, 2.0, 3.0]).cuda() + x,
    "moved later": lambda x: (torch.tensor([1.0, 2.0]) * 2).to("cuda", torch.float64).sum() + x,
    "a row": lambda x: torch.stack([torch.tensor(1.0), torch.tensor(2.0)]).cuda(),
    "behind a branch": lambda x: x + torch.tensor([1.0] if x.sum() > 0 else [3.0], device="cuda"),
    "before a branch": lambda x: signed(x, torch.tensor([1.0, 2.0, 3.0], device="cuda")),
    "beside a value": lambda x: torch.tensor([2.0, 1.0], device="cuda").sum() * x[0].item(),
}  # fmt: skip


@pytest.mark.parametrize("name", LITERALS)
def test_literals(name: str) -> None:
    def make(trace: Any) -> Any:
        ones = torch.ones(3, device="cuda")
        return trace(LITERALS[name]), [call(k * ones) for k in (1, 2, -1, 3, -2, 4, -3)]

    check(make, hits=2)


@cases(eager="calls torch._C._cuda")
def another_stream(trace: Any) -> Any:
    stream = torch.cuda.Stream()

    def f(x: torch.Tensor) -> torch.Tensor:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x * 2
        torch.cuda.current_stream().wait_stream(stream)
        return y + 1

    return trace(f), [call(G(100, 100)) for _ in range(4)]


@cases.parametrize
def test_cases(make: Any, expected: dict[str, Any]) -> None:
    check(make, **expected)


def test_calls_on_another_stream_are_hits() -> None:
    f = lazytrace.traced(lambda x: (x @ x).relu() + 1)
    x = torch.randn(300, 300, device="cuda")
    expected = (x @ x).relu() + 1
    stream = torch.cuda.Stream()
    for _ in range(8):
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            there = f(x)
        here = f(x)
        torch.cuda.synchronize()
        assert torch.equal(there, expected)
        assert torch.equal(here, expected)
    assert f.stats().hits == 15


def test_a_captured_call_is_eager_and_the_graph_replays() -> None:
    f = lazytrace.traced(lambda x: torch.tanh(x) * 2)
    x = torch.randn(5, device="cuda")
    f(x)
    f(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    x.copy_(torch.arange(5.0))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.tanh(x) * 2)
    assert f.stats().hits == 1
    (reason,) = f.stats().eager
    assert "its stream is being captured into a CUDA graph" in reason
    assert lazytrace.reason_code(reason) == "capturing"
    f(x)
    assert f.stats().hits == 2


def test_the_flat_form_of_a_step_runs_on_the_gpu() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    @lazytrace.traced
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(12):
        step(G(8, 6), torch.randint(0, 3, (8,), device="cuda"))
    assert "flat" in [trace.flat() for trace in step._self_handle()._cache.traces.all()]
