"""What TorchScript has compiled is one step of a program, wherever Python calls it."""

from __future__ import annotations

import functools

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SCRIPTED = "calls a instancemethod"


def script(source: str, name: str = "f") -> torch.jit.ScriptFunction:
    return getattr(torch.jit.CompilationUnit(source), name)


def chooses():
    return script("""
def f(x, k: float = 2.0):
    if bool(x.sum() > 0):
        return x * k
    return -x
""")


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.drop = torch.nn.Dropout(0.5)
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        if bool(x.sum() > 0):
            x = -x
        return self.drop(self.linear(self.norm(x)))

    @torch.jit.export
    def other(self, x):
        return self.linear(x) + 1


def scripted_module(train: bool = True):
    torch.manual_seed(1)
    module = torch.jit.script(Norm().train(train))
    module(torch.ones(2, 3))  # its method is made at the first call
    return module


def rows(*values):
    return [call(torch.full((2, 3), v)) for v in values]


# ---------------------------------------------------------------- functions
@cases(hits=3, recordings=1)
def function_that_decides(trace):
    f = chooses()
    return trace(lambda x: f(x) + 1), rows(1.0, -1.0, 2.0, -3.0)


@cases(hits=2, recordings=1)
def function_with_keywords(trace):
    f = chooses()
    return trace(lambda x: f(x, k=3.0) + 1), rows(1.0, -1.0, 2.0)


@cases(hits=2, recordings=1)
def function_with_arguments_of_a_list(trace):
    f, more = chooses(), [4.0]
    return trace(lambda x: f(x, *more) + 1), rows(1.0, -1.0, 2.0)


@cases(hits=2, recordings=2)
def list_of_arguments_that_changes(trace):
    f, more = chooses(), [4.0]
    steps = rows(1.0, -1.0)
    return trace(lambda x: f(x, *more) + 1), [*steps, lambda: more.__setitem__(0, 5.0), *steps]


@cases(hits=2, recordings=2)
def another_function_in_its_place(trace):
    holder = {"f": chooses()}
    other = script("def f(x):\n    return x * 7\n")
    steps = rows(1.0, -1.0)
    return trace(lambda x: holder["f"](x)), [*steps, lambda: holder.update(f=other), *steps]


@cases(hits=2, recordings=1)
def function_with_gradients(trace):
    f = chooses()
    w = torch.nn.Parameter(torch.ones(3))
    return trace(lambda x: f(x * w)), rows(1.0, -1.0, 2.0), lambda: [w]


@cases(hits=2)
def function_that_gives_a_tuple_and_numbers(trace):
    f = script("def f(x):\n    return x * 2, int(x.size(0)), [x + 1, x - 1]\n")
    return trace(lambda x: f(x)), rows(1.0, -1.0, 2.0)


@cases(hits=2)
def function_whose_number_hangs_on_values(trace):
    f = script("def f(x):\n    return int(x.sum())\n")

    def step(x):
        n = f(x)
        return x * 2 if n > 0 else x - n

    return trace(step), rows(1.0, -1.0, 1.0, -1.0, 2.0, 1.0)


@cases(hits=2, recordings=1)
def function_that_writes_to_its_argument(trace):
    f, state = script("def f(x):\n    return x.add_(1)\n"), torch.zeros(2, 3)
    return trace(lambda x: f(state) + x), rows(1.0, -1.0, 2.0), lambda: state


@cases(hits=2, recordings=1)
def function_that_draws_random_numbers(trace):
    f = script("def f(x):\n    return x + torch.rand_like(x)\n")
    return trace(lambda x: f(x) * 2), rows(1.0, -1.0, 2.0)


@cases(hits=2, recordings=1)
def function_inside_autocast(trace):
    f = script("def f(x):\n    return x @ x.t()\n")

    def step(x):
        with torch.autocast("cpu"):
            return f(x)

    return trace(step), rows(1.0, -1.0, 2.0)


@cases(hits=2, recordings=1)
def function_behind_a_traced_one(trace):
    f = torch.jit.trace(lambda x: x.sin() * 2, torch.ones(2, 3))
    return trace(lambda x: f(x) + 1), rows(1.0, -1.0, 2.0)


@cases(hits=2, recordings=1)
def function_after_a_write_to_state(trace):
    f, kept = chooses(), []

    def step(x):
        kept.append(x * 2)
        return f(x)

    return trace(step), rows(1.0, -1.0, 2.0), lambda: list(kept)


@cases(eager="reads a torch.jit.ScriptFunction")
def function_that_c_code_calls(trace):
    f = chooses()
    return trace(lambda x: list(map(f, [x, -x]))), rows(1.0, -1.0, 2.0)


@cases(eager=SCRIPTED)
def function_behind_a_partial(trace):
    f = functools.partial(chooses(), k=3.0)
    return trace(lambda x: f(x)), rows(1.0, -1.0, 2.0)


@cases(hits=3)
def function_of_different_sizes(trace):
    f = chooses()
    return trace(lambda x: f(x) * x.shape[0]), [call(torch.ones(n, 3)) for n in (2, 3, 4, 5, 2, 4)]


@cases(hits=2)
def function_that_raises(trace):
    f = script("def f(x):\n    assert bool(x.sum() > 0), 'negative'\n    return x * 2\n")
    return trace(lambda x: f(x) + 1), rows(1.0, 2.0, -1.0, 1.0)


# ---------------------------------------------------------------- modules
@cases(hits=3, recordings=1)
def module_in_training(trace):
    module = scripted_module()
    return trace(lambda x: module(x) * 2), rows(1.0, -1.0, 2.0, 3.0), lambda: dict(module.named_buffers())


@cases(hits=2)
def module_that_is_traced_itself(trace):
    return trace(scripted_module()), rows(1.0, -1.0, 2.0, 3.0)


@cases(hits=2, recordings=1)
def module_whose_parameters_change(trace):
    module = scripted_module(train=False)

    def change():
        with torch.no_grad():
            module.linear.weight.mul_(2)

    return trace(lambda x: module(x)), [*rows(1.0, -1.0), change, *rows(2.0)]


@cases(hits=1)
def module_that_is_switched(trace):
    module = scripted_module()
    steps = rows(1.0, -1.0)
    return trace(lambda x: module(x)), [*steps, lambda: module.eval(), *steps, *steps]


@cases(hits=1)
def method_of_a_module(trace):
    module = scripted_module()
    module.other(torch.ones(2, 3))
    return trace(lambda x: module.other(x) * 2), rows(1.0, -1.0, 2.0)


@cases(hits=2)
def module_of_jit_trace(trace):
    module = torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(2, 3))
    return trace(lambda x: module(x) * 2), rows(1.0, -1.0, 2.0, 3.0)


@cases(hits=3, recordings=1)
def opaque_module(trace):
    module = lazytrace.opaque(scripted_module())
    return trace(lambda x: module(x) * 2), rows(1.0, -1.0, 2.0, 3.0)


@cases(hits=1)
def module_in_a_training_step(trace):
    module = torch.jit.script(
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    )
    module(torch.ones(2, 3))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(step), rows(1.0, -1.0, 2.0, 3.0, 1.0, 2.0), lambda: list(module.parameters())


# ---------------------------------------------------------------- a function that is given other parts
def scripted(trace, fn):
    return lazytrace.script_if_tracing(fn) if trace.enabled else fn


@cases(hits=4)
def defaults_that_are_replaced(trace):
    def scale(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        return x * k

    step = scripted(trace, scale)
    change = lambda: setattr(scale, "__defaults__", (5.0,))  # noqa: E731
    return trace(lambda x: step(x) + 1), [call(X()), call(X()), change, call(X()), call(X()), call(X())]


@cases(hits=3)
def code_that_is_replaced(trace):
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def other(x: torch.Tensor) -> torch.Tensor:
        return x - 7

    step = scripted(trace, double)
    change = lambda: setattr(double, "__code__", other.__code__)  # noqa: E731
    return trace(lambda x: step(x) + 1), [call(X()), call(X()), change, call(X()), call(X()), call(X())]


# ---------------------------------------------------------------- what TorchScript does by itself
def shift(h: torch.Tensor) -> torch.Tensor:
    if bool(h.sum() > 100):
        return h
    return torch.relu(h * 1.5 - h.shape[0] + 2)


@cases(hits=8)
def casts_of_autocast(trace):
    """TorchScript has its own list of operators that widen."""
    step = scripted(trace, shift)

    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return step(x @ w)

    calls = [call(X(3, 3), X(3, 3)) for _ in range(5)]
    return trace(f), [*calls, *[call(X(3, 3, grad=True), X(3, 3)) for _ in range(5)]]


@cases(hits=4)
def a_region_of_the_caller(trace):
    step = scripted(trace, shift)
    f = trace(lambda x, w: step(x @ w))

    def inside(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return f(x, w)

    return inside, [call(X(3, 3), X(3, 3)) for _ in range(6)]


@cases(hits=8)
def derivatives_that_choose(trace):
    """The derivative of relu takes no part of what comes to it where it is flat, and be it infinite."""
    step = scripted(trace, shift)

    def f(x, w):
        loss = (step(x) * w).sum()
        return torch.autograd.grad(loss, x)[0]

    x = torch.tensor([-3.0, -2.0, 4.0], requires_grad=True)
    weights = [torch.tensor([-1.0, float("inf"), 2.0]), torch.tensor([-2.0, -float("inf"), float("nan")])]
    return trace(f), [call(x, w) for w in weights * 5]


@cases.parametrize
def test_scripted(make, expected):
    check(make, **expected)


def test_a_function_that_others_compile_as_well():
    """What they have is TorchScript's, casts of its own included."""
    step = lazytrace.traced(lambda x: lazytrace.script_if_tracing(shift)(x))
    h, theirs = torch.ones(2, dtype=torch.bfloat16), torch.jit.script(shift)
    step(h)
    with torch.autocast("cpu", torch.bfloat16):
        assert theirs(h).dtype is torch.float32
        assert step(h).dtype is torch.bfloat16


def test_what_a_script_prints_is_printed_once_per_call(capfd):
    f = script("def f(x):\n    print('here')\n    return x * 2\n")
    step = lazytrace.traced(lambda x: f(x))
    for _ in range(3):
        step(torch.ones(2))
    assert step.stats().hits == 2
    assert capfd.readouterr().out.count("here") == 3
