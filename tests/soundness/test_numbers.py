"""Numbers that differ from call to call: what follows them, what reads them, and what leaves the call."""

from __future__ import annotations

import collections
import copy  # noqa: F401 (the texts below name it)
import dataclasses
import fractions  # noqa: F401 (the texts below name it)
import functools
import json
import marshal  # noqa: F401 (the texts below name it)
import math
import operator  # noqa: F401 (the texts below name it)
import pickle
import struct
import threading
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lazytrace import handle, traced
from tests.soundness.runner import Cases, agree, call, check

cases = Cases()
# Some come again, so that what is read exactly hits too.
FLOATS = (0.5, 1.25, 3.0, -2.5, 7.75, 0.5, 0.1, 1e-9, -2.5, 3.0, 2.0, 100.0, 0.5, 1.25)
ODD = (0.5, math.nan, math.inf, -math.inf, -0.0, 0.0, 1e308, 5e-324, 0.5, math.nan, -0.0, 1e308, 0.0, 2.0)
WHOLE = (3, 5, 0, 1, -2, 7, 3, 5, 2**40, -(2**62), 2**62, 3, 0, 1)


def values(numbers, dtype):
    return [(torch.linspace(-1, 2, 6).view(2, 3), torch.tensor(v, dtype=dtype)) for v in numbers]


def over(function, numbers, dtype=torch.float64, **options):
    def make(trace):
        return trace(function, **options), [call(*args) for args in values(numbers, dtype)]

    return make


def of_text(text):
    """`x` is a tensor, `n` the number that another tensor holds."""
    return eval(f"lambda x, t: (lambda n: {text})(t.item())", globals())


# The value goes to operators, or comes out: one recording serves all values.
FOLLOWED = [
    "x * n",
    "n * x + x - n",
    "x / (n + 0.25)",
    "x + x * -n",
    "x.add(x, alpha=n)",
    "torch.addcdiv(x, x, x + 4, value=-n)",
    "torch.lerp(x, x + 1, n)",
    "x.clamp(max=n)",
    "x.clamp(-abs(n), abs(n) + 1)",
    "torch.full((2,), n)",
    "torch.full_like(x, n)",
    "torch.where(x > 0, x, n)",
    "x.masked_fill(x > 0, n)",
    "x.pow(2) * (n + 1) ** 2",
    "(x > n, x == n, x <= n)",
    "torch.tensor(n)",
    "torch.tensor(n, dtype=torch.float32) + torch.tensor(n, dtype=torch.float64)",
    "x * (n if n is not None else 1.0)",
    "x * (n if isinstance(n, float | int) else 7.0)",
    "x * (1.0 if type(n) is complex else n)",
    "(n, x)",
    "[n * 2, {'n': n, 'all': [n, (n + 1, -n)]}, x * n]",
    "n",
    "(n, n + 1, n - 1, n * 3, -n, abs(n), +n)",
    "x * float(n)",
    "x * (0.9 ** (abs(n) * 1e-3))",
    "x * max(n, n + 1) + min(n * 2, n)",
    "x * sum([n, n, 1.0])",
    "x * math.prod([n, 2.0])",
    "(lambda k: x * k['n'])({'n': n})",
    "(lambda k: x * k[1])([0, n])",
    "x * (lambda *a: a[0] + a[1])(*(n, n))",
    "x.mul(n).add_(n).sub_(n, alpha=2)",
    "torch.zeros(2, 3).fill_(n)",
    "(x * n).sum().item()",
    "(x * n).sum().item() * x",
    "(float(t), float(t) * x)",
    "x * copy.copy(n)",
]
# The same of floats alone.
OF_FLOATS = [
    "x * math.sqrt(abs(n) + 1) + math.exp(-abs(n)) * math.log(abs(n) + 2)",
    "x * math.sin(n) + math.cos(n) * math.tanh(n) + math.atan(n)",
    "x * math.log(abs(n) + 2, 10) + math.log2(abs(n) + 2) + math.log10(abs(n) + 3) + math.log1p(abs(n))",
    "x * math.pow(abs(n) + 1, 0.5) + math.fabs(n) + math.expm1(-abs(n))",
    "(int(n * 4), round(n), math.floor(n), math.ceil(n), math.trunc(n))",
    "x * int(n) + int(t)",
    "(n // 0.75, n % 0.75, divmod(n, 0.75), 5.5 // (abs(n) + 1), 5.5 % (abs(n) + 1))",
    "(n ** 2, n ** 3.0, abs(n) ** 0.5, 2 ** n, 1 / (abs(n) + 1))",
    "x + 1 if math.isfinite(n) else x - 1",
    "(math.isnan(n), math.isinf(n), x)",
    "x * math.asin(n % 1) + math.acos(n % 1) + math.asinh(n) + math.acosh(abs(n) + 1) + math.atanh(n % 1)",
    "x * math.erf(n) + math.erfc(n) + math.gamma(abs(n) % 5 + 0.5) + math.lgamma(abs(n) + 0.5)",
    "x * math.cbrt(n) + math.exp2(n % 3) + math.degrees(n) + math.radians(n)",
    "x * math.hypot(n, 1.0) + math.fmod(n, 0.75) + math.hypot(2, n) + math.fmod(5, abs(n) + 1)",
    "(pow(n, 2), pow(2.0, n), pow(abs(n), 0.5), x)",
    "x.new_tensor(n) * x",
    "x.new_tensor([n, 2.0, 3]) * x",
    "torch.tensor([n, 1.0, 2], device=x.device) * x",
    "torch.tensor([[n], [1]], dtype=torch.float32, device='cpu') * x",
    "(torch.as_tensor(n, device=x.device), torch.as_tensor([n], dtype=torch.float64, device=x.device))",
    "torch.tensor(n, dtype=torch.bfloat16, device=torch.device('cpu')) * x",
]
# Functions of math that are given the tensor itself ask it for a float.
OF_TENSORS = [
    "x * math.exp(-abs(t)) + math.sqrt(abs(t)) + math.log(abs(t) + 2) + math.log(abs(t) + 2, 10)",
    "x * math.pow(abs(t) + 1, 0.5) + math.pow(t, 2) + math.sin(t) + math.tanh(t) + math.degrees(t)",
    "(math.floor(t), math.ceil(t), math.fabs(t), x)",
    "x * math.hypot(t, n) + math.atan2(t, 2.0) + math.copysign(t, -1)",
    "x - 1 if math.isnan(t) or math.isinf(t) else x + 1",
    "x + 1 if math.isfinite(t) else x - 1",
    "x + 1 if math.isclose(t, 1) else x - 1",
]
# Two or three ways hang on it.
COMPARED = [
    "x + 1 if n > 0.75 else x - 1",
    "x + 1 if n == 0.5 else x - 1",
    "x + 1 if n else x - 1",
    "x + 1 if not n else x - 1",
    "x + 1 if 0 <= n < 3 else x - 1",
    "x * (n > 1) + bool(n)",
    "max(n, 1) * x",
    "x if n != n else x + 1",
    "x[: 1 if n < 0 else 2]",
    "x + 1 if math.isclose(n, 0.5) else x - 1",
    "x + 1 if math.isclose(3, n, rel_tol=0.4, abs_tol=0.1) else x - 1",
]
# The value is looked at: each takes a way of its own, and one that comes again hits.
READ = [
    "x * float(np.float64(n))",
    "x * len(json.dumps({'n': n}))",
    "x * len(f'{n}')",
    "(str(n), repr(n), format(n, '.3e'), '%.2f' % n, x)",
    "x * (hash(n) % 7)",
    "x * {0.5: 1.0, 3.0: 2.0}.get(n, 7.0)",
    "x * (2 if n in (0.5, 3.0) else 3)",
    "x * (2 if n in {0.5, 3.0} else 3)",
    "x * len({n: 1})",
    "x * round(n, 2)",
    "(n.is_integer(), n.hex(), n.as_integer_ratio(), x)",
    "(n.real, n.imag, n.conjugate(), x)",
    "x * float(str(n))",
    "x * complex(n, 1).real",
    "x * sorted([n, 2.0, 1.0])[0]",
    "x * functools.reduce(operator.add, [n, 1.0])",
    "x * functools.partial(lambda a, b: a + b, n)(1)",
    "x * math.fsum([n, n])",
    "torch.tensor([n, 1.0])",
    "(pow(7, int(abs(n)) % 5, 3), pow(int(n), 2, 5), x)",
    "x * float(fractions.Fraction(n))",
    "x.index_fill(0, torch.tensor([0]), n)",
    "torch.nn.functional.layer_norm(x, (3,), eps=abs(n))",
    "torch.quantile(x.double(), abs(n) / 200)",
]
# Python hands the value to code that no recording sees into.
REFUSED = [
    "x * pickle.loads(pickle.dumps(n))",
    "x * len(marshal.dumps(n))",
]


@pytest.mark.parametrize("text", FOLLOWED)
def test_followed(text):
    check(over(of_text(text), FLOATS), hits=13, recordings=1)
    check(over(of_text(text), ODD), hits=10)
    check(over(of_text(text), FLOATS, torch.float32), hits=13, recordings=1)
    check(over(of_text(text), WHOLE, torch.int64), hits=8)


@pytest.mark.parametrize("text", OF_FLOATS)
def test_followed_floats(text):
    check(over(of_text(text), FLOATS), hits=12)
    check(over(of_text(text), FLOATS, torch.float32), hits=12)
    check(over(of_text(text), FLOATS, torch.bfloat16), hits=12)


@pytest.mark.parametrize("text", OF_FLOATS)
def test_floats_that_are_out_of_the_ordinary(text):
    check(over(of_text(text), ODD), hits=2)


@pytest.mark.parametrize("text", OF_TENSORS)
def test_of_tensors(text):
    function = of_text(text)
    check(over(function, FLOATS), hits=12)
    check(over(function, FLOATS, torch.float32), hits=12)
    check(over(function, ODD), hits=2)
    check(over(function, WHOLE, torch.int64), hits=6)
    agree(over(function, (True, False, True, False), torch.bool))
    agree(over(function, (0.5, 2.0, 0.5, 0.25), torch.complex64))


@pytest.mark.parametrize("name", ["exp", "isnan", "floor", "log"])
def test_math_of_a_tensor_that_holds_several(name):
    function = getattr(math, name)

    def make(trace):
        def run(x):
            try:
                return function(x)
            except (ValueError, RuntimeError, TypeError) as error:
                return type(error), str(error)

        sizes = ((1,), (1,), (1, 1), (2,), (2,), (0,), (1,), ())
        return trace(run), [call(torch.full(size, 1.5 + i)) for i, size in enumerate(sizes)]

    check(make, hits=1)


@cases(hits=6)
def math_of_a_loss_that_needs_gradients(trace):
    weight = torch.ones(3, requires_grad=True)

    def run(x):
        loss = (weight * x).square().mean()
        if not math.isfinite(loss):
            raise FloatingPointError(f"loss is {loss}")
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None
        return math.exp(loss)

    return trace(run), [call(torch.full((3,), 0.1 * i)) for i in range(8)], lambda: weight.detach().clone()


@pytest.mark.parametrize("text", COMPARED)
def test_compared(text):
    check(over(of_text(text), FLOATS), hits=10)
    check(over(of_text(text), ODD), hits=9)
    check(over(of_text(text), WHOLE, torch.int64), hits=9)


@pytest.mark.parametrize("text", READ)
def test_read(text):
    check(over(of_text(text), FLOATS), hits=2)


@pytest.mark.parametrize("text", [*FOLLOWED, *OF_FLOATS, *COMPARED, *READ])
def test_other_options(text):
    check(over(of_text(text), FLOATS, dynamic=True), hits=2)
    check(over(of_text(text), FLOATS, dynamic=False), hits=2)
    agree(over(of_text(text), (1, 2, 3, 1), torch.int32))
    agree(over(of_text(text), (True, False, True, False), torch.bool))


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    plain, function = of_text(text), traced(of_text(text))
    for args in values(FLOATS, torch.float64):
        assert torch.equal(function(*args), plain(*args))
    assert not function.stats().hits
    assert function.stats().eager


# Not among the cases, which run once more behind a write to state: a replay that finds a nan there cannot
# lead back to the function, and raises ReplayError.
def an_int_of_nan_that_is_caught(trace):
    def run(x, t):
        try:
            return x * int(t)
        except ValueError:
            return x - 1

    numbers = (1.5, math.nan, 2.5, math.nan, 1.5, 2.5, math.nan)
    return trace(run), [call(*args) for args in values(numbers * 2, torch.float32)]


def test_an_int_of_nan_that_is_caught():
    check(an_int_of_nan_that_is_caught, hits=6)


# ---------------------------------------------------------------- arguments
def as_argument(text):
    return eval(f"lambda x, n: {text}", globals())


def with_numbers(function, numbers, **options):
    def make(trace):
        x = torch.linspace(-1, 2, 6).view(2, 3)
        return trace(function, **options), [call(x.clone(), n) for n in numbers]

    return make


MANY = tuple(i / 8 + 0.25 for i in range(20))


@pytest.mark.parametrize("text", FOLLOWED)
def test_arguments_followed(text):
    check(
        with_numbers(as_argument(text.replace("t.item()", "n").replace("(t)", "(n)")), MANY),
        hits=18,
        recordings=2,
    )
    check(with_numbers(as_argument(text.replace("(t)", "(n)")), tuple(range(1, 21))), hits=18, recordings=2)
    agree(
        with_numbers(
            as_argument(text.replace("(t)", "(n)")), (*ODD, *WHOLE, True, False, 2**70, None, "a", 2.0)
        )
    )


@pytest.mark.parametrize("text", [*OF_FLOATS, *COMPARED, *READ])
def test_arguments(text):
    function = as_argument(text.replace("(t)", "(n)"))
    check(with_numbers(function, FLOATS), hits=2)
    check(with_numbers(function, FLOATS, dynamic=True), hits=2)
    check(with_numbers(function, FLOATS, dynamic=False), hits=2)
    # The hash of a nan is an address, and two to the power of a large int fits no memory.
    odd = [n for n in ODD if n == n] if "hash" in text else ODD
    whole = WHOLE if "2 ** n" not in text else (3, 5, 0, 1, -2, 7, 3)
    agree(with_numbers(function, (*odd, *whole, True, 1, 1.0, *([2**70] if whole is WHOLE else []))))


def test_twenty_floats_and_twenty_ints():
    for numbers in (MANY, range(20)):
        function = traced(lambda x, n: x * n + x.add(x, alpha=n))
        for n in numbers:
            x = torch.randn(3)
            assert torch.equal(function(x, n), function.original(x, n))
        assert (function.stats().recordings, function.stats().hits) == (2, 18)


@pytest.mark.parametrize(("dynamic", "recordings"), [(None, 2), (True, 1), (False, 10)])
def test_the_option_dynamic(dynamic, recordings):
    function = traced(lambda x, n: x * n, dynamic=dynamic)
    for n in MANY[:10]:
        assert torch.equal(function(torch.ones(2), n), torch.ones(2) * n)
    assert function.stats().recordings == recordings


def test_sizes_and_numbers_that_vary():
    function = traced(lambda x, n: x.view(-1) * n + x.shape[0])
    for rows, n in ((2, 0.5), (3, 0.5), (4, 0.5), (2, 1.5), (2, 2.5), (3, 1.5), (7, 9.5), (8, 0.125)):
        x = torch.randn(rows, 2)
        assert torch.equal(function(x, n), function.original(x, n))
    assert function.stats().recordings == 4  # the first, other sizes, other numbers, both
    assert function.stats().hits == 4


@cases(hits=12)
def defaults_keywords_and_stars(trace):
    def run(x, a=2.0, *rest, b=3, **named):
        return x * a + b + sum(rest) + named.get("c", 0)

    x = torch.ones(2)
    steps = []
    for i in range(5):
        steps += [
            call(x),
            call(x, i + 0.5),
            call(x, b=i),
            call(x, i + 0.5, i, i * 2.0, b=i + 7),
            call(x, c=i, a=1.5),
        ]
    return trace(run), steps


@cases(hits=7)
def a_default_that_is_assigned(trace):
    def run(x, a=2.0):
        return x * a

    function = trace(run)

    def assign(value):
        run.__defaults__ = (value,)

    x = torch.ones(2)
    steps = [call(x), call(x, 3.0), call(x), lambda: assign(5.0), call(x), call(x, 2.0), lambda: assign(7.0)]
    return function, [*steps, call(x), call(x), lambda: assign(2.0), call(x), call(x, 11.0)]


@cases(hits=8)
def a_method_with_a_number(trace):
    class Scale:
        def __init__(self, k):
            self.k = k

        @trace
        def run(self, x, n):
            return x * n * self.k

    a, b = Scale(2.0), Scale(3.0)
    x = torch.ones(2)
    return a.run, [call(x, i + 0.5).of((a, b)[i % 2].run) for i in range(12)]


@cases(hits=8)
def an_int_as_a_dimension(trace):
    return trace(lambda x, dim: x.sum(dim)), [call(torch.randn(2, 3, 4), i % 3) for i in range(12)]


@cases(hits=8)
def a_number_inside_a_list(trace):
    return trace(lambda x, n: x * n[0]), [call(torch.ones(2), [float(i % 4)]) for i in range(12)]


@cases(hits=8)
def arguments_of_a_function_without_tensors(trace):
    return trace(lambda n, m: (n * m, torch.full((2,), n / m))), [call(i + 0.5, i + 1) for i in range(10)]


@cases(hits=8)
def an_argument_that_is_written(trace):
    def run(x, n):
        n = n + 1
        n *= 2
        return x * n, n

    return with_numbers(run, MANY[:10])(trace)


@cases(hits=2)
def an_argument_that_says_how_often(trace):
    def run(x, n):
        for i in range(n):
            x = x * (i + n)
        return x

    return with_numbers(run, (1, 2, 3, 2, 1, 3, 2, 1))(trace)


# ---------------------------------------------------------------- numbers in state
@cases(hits=17)
def a_counter(trace):
    state = types.SimpleNamespace(n=0)

    def run(x):
        state.n += 1
        return x * state.n

    return trace(run), [call(torch.ones(2)) for _ in range(20)], lambda: state.n


@cases(hits=17)
def a_counter_that_is_returned(trace):
    class Model:
        def __init__(self):
            self.n, self.scale = 0, 0.5

        @trace
        def run(self, x):
            self.n += 1
            self.scale = self.scale * 0.75
            return x * self.scale, self.n, [self.scale]

    model = Model()
    return model.run, [call(torch.ones(2)) for _ in range(20)], lambda: (model.n, model.scale)


@cases(hits=16)
def a_learning_rate_that_is_scheduled(trace):
    w = torch.ones(3)
    groups = [{"lr": 0.1, "params": [w], "momentum": 0.9}]

    def run(g):
        for group in groups:
            for p in group["params"]:
                p.add_(g, alpha=-group["lr"])

    def schedule():
        groups[0]["lr"] *= 0.9

    steps = [step for _ in range(20) for step in (call(torch.randn(3)), schedule)]
    return trace(run), steps, lambda: (w, groups[0]["lr"])


@cases(hits=6)
def a_number_that_is_read_in_other_ways(trace):
    state = types.SimpleNamespace(n=1.0)
    table = {"n": 1.0}

    def run(x):
        a = state.n * getattr(state, "n") + vars(state)["n"]  # noqa: B009
        b = sum(table.values()) + table["n"] + table.get("n") + max(v for v in table.values())
        return x * a + b

    def change(v):
        def to():
            state.n, table["n"] = v, v * 2

        return to

    steps = [step for v in (1.0, 2.0, 3.0, 2.0, 1.0, 3.0) * 3 for step in (change(v), call(torch.ones(2)))]
    return trace(run), steps


COUNT = 0


@cases(hits=10)
def a_global_that_changes(trace):
    globals()["COUNT"] = 0

    def run(x):
        return x * COUNT + (COUNT + 1)

    def change():
        global COUNT
        COUNT += 1

    return trace(run), [step for _ in range(14) for step in (change, call(torch.ones(2)))]


@cases(hits=10)
def a_cell_that_changes(trace):
    n = 0.5

    def run(x):
        return x * n + n

    def change():
        nonlocal n
        n += 1

    return trace(run), [step for _ in range(14) for step in (change, call(torch.ones(2)))]


@cases(hits=6)
def a_number_in_state_that_changes_its_type(trace):
    state = types.SimpleNamespace(n=1)

    def change(v):
        return lambda: setattr(state, "n", v)

    values = (1, 2, 3, 2.5, 3.5, True, 4, 5.5, None, 6, 7, 2**80, 8, 9, 1.5, 2)
    steps = [step for v in values * 2 for step in (change(v), call(torch.ones(2)))]
    return trace(lambda x: x * (state.n or 1)), steps


@cases(hits=4)
def a_counter_that_says_how_often(trace):
    state = types.SimpleNamespace(n=0)

    def run(x):
        state.n = state.n % 3 + 1
        for _ in range(state.n):
            x = x + 1
        return x if state.n != 2 else x * 2

    return trace(run), [call(torch.ones(2)) for _ in range(30)], lambda: state.n


@cases(hits=9)
def an_exception_midway(trace):
    state = types.SimpleNamespace(n=0)

    def run(x, fails):
        state.n += 1
        if fails:
            raise ValueError(state.n)
        return x * state.n

    return trace(run), [call(torch.ones(2), i % 4 == 3) for i in range(20)], lambda: state.n


@cases(hits=9)
def a_write_between_two_reads(trace):
    state = types.SimpleNamespace(n=1.0, other=None)

    def run(x):
        before = state.n
        state.n = before * 1.5
        state.other = state.n - before
        return x * before + state.n, state.other

    return trace(run), [call(torch.ones(2)) for _ in range(14)], lambda: (state.n, state.other)


def test_counters_are_few_recordings():
    for make in (a_counter, a_counter_that_is_returned, a_learning_rate_that_is_scheduled):
        assert agree(make).count("recordings") <= 3, make.__name__


# ---------------------------------------------------------------- arithmetic, bit for bit
UNARY = [
    "-n", "abs(n)", "int(n)", "round(n)", "math.floor(n)", "math.ceil(n)", "math.trunc(n)", "float(n)",
    *(f"math.{name}(n)" for name in (
        "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "atan", "sinh", "cosh",
        "tanh", "fabs"
    )),
]  # fmt: skip
BINARY = [
    "n + m", "n - m", "n * m", "n / m", "n // m", "n % m", "n ** m", "max(n, m)", "min(n, m)",
    "(n < m, n <= m, n == m, n != m, n > m, n >= m)", "math.pow(n, m)", "math.atan2(n, m)",
    "math.copysign(n, m)", "divmod(n, m)",
]  # fmt: skip


def bits(value):
    """The value with its type, such that equal ones are the same in all bits; nan is nan."""
    if isinstance(value, tuple):
        return tuple(map(bits, value))
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("d", value)
    return (type(value), value)


def outcome(function, *args):
    try:
        return bits(function(*args))
    except (ArithmeticError, ValueError) as error:
        return (type(error), str(error))


def of_two(text):
    return eval(f"lambda t, u: (lambda n, m: {text})(t.item(), u.item())", globals())


ANY_FLOAT = st.floats(width=64)
ANY_INT = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
TRACED = {text: (of_two(text), traced(of_two(text), exit_limit=64)) for text in (*UNARY, *BINARY)}


@settings(max_examples=20, deadline=None)
@given(a=st.one_of(ANY_FLOAT, ANY_INT), b=st.one_of(ANY_FLOAT, ANY_INT))
@pytest.mark.parametrize("text", [*UNARY, *BINARY])
def test_bit_for_bit(text, a, b):
    plain, function = TRACED[text]
    if text == "n ** m" and isinstance(a, int) and isinstance(b, int):
        b %= 70  # the power of a large int takes forever
    args = [torch.tensor(v, dtype=torch.float64 if isinstance(v, float) else torch.int64) for v in (a, b)]
    assert outcome(function, *args) == outcome(plain, *args)
    assert outcome(function, *args) == outcome(plain, *args)


def test_bit_for_bit_is_replayed():
    for text in (*UNARY, *BINARY):
        function = traced(of_two(text))
        for a in (1.5, 2.25, 3.75, 0.125):
            args = torch.tensor(a), torch.tensor(a + 1)
            assert bits(function(*args)) == bits(of_two(text)(*args))
        assert function.stats().hits == 3, text


# ---------------------------------------------------------------- steps of optimizers
def adam(parameters, grads, state, lr):
    for p, g, s in zip(parameters, grads, state, strict=True):
        s["step"] += 1
        s["average"].lerp_(g, 0.1)
        s["square"].mul_(0.999).addcmul_(g, g, value=0.001)
        step = s["step"].item()
        first, second = 1 - 0.9**step, 1 - 0.999**step
        size = lr / first
        denominator = (s["square"].sqrt() / second**0.5).add_(1e-8)
        p.addcdiv_(s["average"], denominator, value=-size)


@cases(hits=11, recordings=1)
def a_step_of_adam(trace):
    parameters = [torch.randn(3, 4), torch.randn(5)]
    state = [
        {"step": torch.tensor(0.0), "average": torch.zeros_like(p), "square": torch.zeros_like(p)}
        for p in parameters
    ]
    run = trace(lambda grads: adam(parameters, grads, state, 1e-2))
    grads = [[torch.randn(3, 4), torch.randn(5)] for _ in range(12)]
    return run, [call(g) for g in grads], lambda: (parameters, state)


@cases(hits=8)
def an_overflow_after_a_change(trace):
    total = torch.zeros(())

    def run(t):
        total.add_(1)
        return 10.0 ** t.item()

    return trace(run), [call(torch.tensor(v)) for v in (1.0, 2.0, 400.0, 3.0, 400.0) * 3], lambda: total


@cases(hits=9)
def an_overflow_that_is_caught(trace):
    total = torch.zeros(())

    def run(t):
        total.add_(1)
        try:
            return 10.0 ** t.item()
        except OverflowError:
            return total * 7

    return trace(run), [call(torch.tensor(v)) for v in (1.0, 2.0, 400.0, 3.0, 400.0) * 3], lambda: total


@cases(hits=6)
def a_root_of_a_negative_number_after_a_change(trace):
    total = torch.zeros(())

    def run(t):
        total.add_(1)
        return t.item() ** 0.5

    return trace(run), [call(torch.tensor(v)) for v in (1.0, 2.0, -4.0, 3.0, -4.0) * 3], lambda: total


@cases(hits=3)
def an_int_beyond_64_bits_after_a_change(trace):
    total = torch.zeros(())

    def run(t):
        total.add_(1)
        return t.item() * 2**40

    return trace(run), [call(torch.tensor(v)) for v in (1, 2, 2**40, 3, 2**40, 1, 2) * 2], lambda: total


@cases(hits=9)
def a_division_by_zero_that_is_caught(trace):
    def run(x, t):
        try:
            return x * (1 / t.item())
        except ZeroDivisionError:
            return x - 1

    return trace(run), [call(*args) for args in values((1.0, 0.0, 2.0, 0.0, 3.0, 4.0) * 2, torch.float64)]


@cases(hits=9)
def a_division_by_zero_that_is_not(trace):
    return over(lambda x, t: x * (1 / t.item()), (1.0, 2.0, 0.0, 3.0, 4.0) * 3)(trace)


# ---------------------------------------------------------------- what stays behind
@cases(hits=13, recordings=1)
def numbers_that_are_kept(trace):
    state = types.SimpleNamespace(last=None, all=[], by_name={})

    def run(x, t):
        state.last = t.item()
        state.all.append(t.item() * 2)
        state.by_name["loss"] = {"value": t.item(), "all": [t.item(), (x.sum().item(),)]}
        return x * 2

    def watch():
        return state.last, list(state.all), state.by_name

    return trace(run), [call(*args) for args in values(FLOATS, torch.float64)], watch


@cases(hits=9)
def a_number_that_is_read_back(trace):
    state = types.SimpleNamespace(last=None)

    def run(x, t):
        state.last = t.item()
        vars(state)["other"] = state.last + 1
        return x * state.last + getattr(state, "last") + vars(state)["other"]  # noqa: B009

    def watch():
        return vars(state)

    return trace(run), [call(*args) for args in values(FLOATS, torch.float64)], watch


@cases(recordings=14)
def a_number_as_a_key(trace):
    state = {}

    def run(x, t):
        state[t.item()] = x.sum()
        return x

    return trace(run), [call(*args) for args in values(FLOATS, torch.float64)], lambda: state


@cases(hits=9)
def memory_that_changes_between_two_items(trace):
    def run(x, t):
        y = t.clone()
        a = y.item()
        y.add_(1)
        return x * a - y.item(), a, y.item()

    return over(run, FLOATS)(trace)


@cases(hits=9)
def a_closure_over_a_number(trace):
    def run(x, t):
        n = t.item()

        def inner(y):
            nonlocal n
            n = n + 1
            return y * n

        return inner(x), n

    return over(run, FLOATS)(trace)


@cases(hits=9)
def an_attribute_of_a_new_object(trace):
    @dataclasses.dataclass
    class Box:
        n: float

    def run(x, t):
        box = Box(t.item())
        box.n += 1
        return x * box.n

    return over(run, FLOATS)(trace)


@cases(hits=9)
def a_number_as_a_size(trace):
    def run(x, t):
        return torch.zeros(t.item()) + torch.arange(t.item()), x.repeat(t.item(), 1)

    return over(run, (3, 4, 5, 3) * 5, torch.int64)(trace)


@cases(hits=9)
def a_number_as_an_index(trace):
    def run(x, t):
        n = t.item()
        return x[n], x[:, : n + 1], [10, 20][n], x.select(0, n)

    return over(run, (0, 1, 0, 1) * 4, torch.int64)(trace)


@cases(hits=9)
def a_loop_over_a_number(trace):
    def run(x, t):
        for i in range(t.item()):
            x = x + i
        return x

    return over(run, (0, 1, 2, 1) * 4, torch.int64)(trace)


@cases(hits=9)
def gradients_through_a_number(trace):
    def run(x, t):
        return x * t.item() + (x * x.sum().item()).exp()

    def make_x():
        return torch.linspace(-1, 1, 4).requires_grad_()

    return trace(run), [call(make_x(), torch.tensor(v)) for v in FLOATS]


@cases(hits=9)
def a_shape_that_follows_from_a_comparison(trace):
    def run(x, t):
        n = t.item()
        return x[x > n], (x > n).sum().item()

    return over(run, FLOATS)(trace)


@cases.parametrize
def test_numbers(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- nothing that leaves is followed
def numbers_in(value):
    if isinstance(value, dict):
        return numbers_in([*value.keys(), *value.values()])
    if isinstance(value, list | tuple):
        return [found for item in value for found in numbers_in(item)]
    return [value] if isinstance(value, int | float) else []


KEPT = types.SimpleNamespace(n=0.0, list=[])


@dataclasses.dataclass
class Held:
    n: float
    pair: tuple


def leave(x, t, u):
    KEPT.n = t.item()
    KEPT.list.append((t.item() + 1, [u.item(), round(t.item())]))
    return {"n": t.item(), "m": [u.item() * 2, {"k": -t.item()}]}, Held(t.item() * 2, (u.item(), 1)), x + 1


def test_nothing_that_leaves_is_a_carrier():
    function = traced(leave)
    for n in FLOATS:
        out, held, _ = function(torch.ones(2), torch.tensor(n), torch.tensor(round(n)))
        left = numbers_in([out, held.n, held.pair, KEPT.n, KEPT.list])
        assert len(left) > 8
        assert {type(number) for number in left} == {int, float}
        n = torch.tensor(n).item()
        assert (held.n, held.pair, KEPT.n, KEPT.list[-1][0]) == (2 * n, (round(n), 1), n, n + 1)
        assert json.loads(json.dumps(out)) == out
        assert pickle.loads(pickle.dumps(held)) == held
        assert np.array(left).dtype == np.float64
    assert function.stats().hits == len(FLOATS) - 1


def test_an_exception_leaves_no_carrier():
    seen = []

    def run(t):
        seen.append(t.item())
        raise ValueError(t.item() + 1)

    function = traced(run)
    with pytest.raises(ValueError, match=r"^1\.5$") as raised:
        function(torch.tensor(0.5))
    assert [type(n) for n in (*seen, *raised.value.args)] == [float, float]


def test_another_thread_is_given_plain_numbers():
    def run(x, t):
        out = []
        n = t.item()
        thread = threading.Thread(target=lambda: out.append((type(n), n + 1)))
        thread.start()
        thread.join()
        return x * out[0][1], out[0][0]

    function = traced(run)
    for x, t in values(FLOATS, torch.float64):
        result, kind = function(x, t)
        assert torch.equal(result, x * (t.item() + 1))
        assert kind is float


def test_a_number_that_code_of_the_caller_keeps():
    class Keeper(list):
        def append(self, value):
            super().append(value)

    keeper = Keeper()
    function = traced(lambda t: (keeper.append(t.item()), t * 2)[1])
    for n in FLOATS:
        function(torch.tensor(n, dtype=torch.float64))
    assert list(keeper) == list(FLOATS)
    assert {type(n) for n in keeper} == {float}


def test_what_python_sees_of_a_number():
    seen = []

    def run(t):
        n = t.item()
        seen.append((type(n) is float, isinstance(n, float), isinstance(n, int), n.__class__ is float))
        match n:
            case float():
                found = n + 1
        return found

    function = traced(run)
    assert [function(torch.tensor(v)) for v in (0.5, 1.5, 0.5)] == [1.5, 2.5, 1.5]
    assert set(seen) == {(True, True, False, True)}


def test_the_listing_says_how_numbers_come_about():
    function = traced(lambda x, t: x * (1 - 0.9 ** t.item()))
    args = torch.ones(2), torch.tensor(3.0)
    function(*args)
    assert "mul.Tensor(r0, (1 - (0.9 ** item(r1))))" in handle(function).program(*args).listing()
    assert not function.explain(*args).depends


@pytest.mark.parametrize("kind", ["partial", "partial of a method", "partial of a partial"])
def test_a_partial_hands_numbers_on(kind):
    """Schedulers of transformers are partials of a function of the step."""

    class Rule:
        def __call__(self, base, warm, n):
            return self.rate(base, warm, n)

        def rate(self, base, warm, n):
            return base * min(1.0, float(n) / float(max(1, warm)))

    def make(trace):
        rule, state = Rule(), {"n": 0}
        by_kind = {
            "partial": functools.partial(lambda base, warm, n: base * float(n + 1) / warm, 0.5, 4),
            "partial of a method": functools.partial(rule.rate, 0.5, warm=40),
            "partial of a partial": functools.partial(functools.partial(rule.rate, 0.5), 40),
        }
        rate = by_kind[kind]

        def fn(x):
            state["n"] += 1
            return x * (rate(n=state["n"]) if kind == "partial of a method" else rate(state["n"]))

        return trace(fn), [call(torch.ones(3)) for _ in range(8)], lambda: state

    check(make, hits=4)


# ---------------------------------------------------------------- looked up by a function
class Settings:
    limit = 3

    def __init__(self):
        self.rate, self.count = 0.1, 0

    @property
    def twice(self):
        return self.rate * 2

    def __getattr__(self, name):
        return self.rate + 1


LOOKUPS = {
    "get": lambda d, s: d.get("rate"),
    "get with a default": lambda d, s: d.get("rate", 1.0),
    "get bound": lambda d, s: [d.get][0]("rate"),
    "get twice": lambda d, s: d.get("rate") + d.get("count", 0),
    "get of nothing": lambda d, s: d.get("nothing", d.get("rate")),
    "get of an OrderedDict": lambda d, s: s.ordered.get("rate"),
    "get of a defaultdict": lambda d, s: s.default.get("rate", 2.0),
    "setdefault": lambda d, s: d.setdefault("rate", 5.0),
    "getattr": lambda d, s: getattr(s, "rate"),  # noqa: B009
    "getattr with a default": lambda d, s: getattr(s, "count", 7),
    "getattr of a property": lambda d, s: getattr(s, "twice"),  # noqa: B009
    "getattr of nothing": lambda d, s: getattr(s, "nothing", 3.0),
    "getattr of the class": lambda d, s: getattr(s, "limit") * s.rate,  # noqa: B009
    "in a test": lambda d, s: 2.0 if d.get("count") > 4 else d.get("rate"),
    "in a text": lambda d, s: float(f"{d.get('rate'):.3f}"),
    "as a key": lambda d, s: {0.5: 1.0}.get(d.get("rate"), 0.25),
    "by map": lambda d, s: sum(map(d.get, ["rate", "count"])),
    "sometimes there": lambda d, s: d.get("rare", d.get("rate")),
    "which object": lambda d, s: 1.0 if d.get("rate") is d["rate"] else 2.0,
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_number_that_is_looked_up(name):
    look = LOOKUPS[name]

    def make(trace):
        held, settings = {"rate": 0.1, "count": 0}, Settings()
        settings.ordered = collections.OrderedDict(rate=0.1)
        settings.default = collections.defaultdict(float, rate=0.1)

        def fn(x):
            return x * look(held, settings)

        def change(i):
            def to():
                held["rate"] = settings.rate = settings.ordered["rate"] = settings.default["rate"] = 0.5 * i
                held["count"] = settings.count = i
                held.pop("rare", None)
                if i % 3 == 1:
                    held["rare"] = i * 1.5

            return to

        steps = [step for i in range(9) for step in (call(torch.ones(2)), change(i))]
        return trace(fn), steps, lambda: [dict(held)]

    # What C code looks at, or Python code gives to it, has a recording for each value.
    fixed = {"in a text", "as a key", "by map"}
    if name == "which object":
        check(make, eager="compares the identity of two values")
    else:
        check(make, **({"recordings": 9} if name in fixed else {"hits": 4}))
