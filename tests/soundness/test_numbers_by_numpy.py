"""Numbers of a program that numpy's functions are given: they come back as numpy's float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, X, agree, call, check

cases = Cases()


def values(*all_of_them):
    """Calls with tensors of one value each."""
    return [call(torch.full((2,), value)) for value in all_of_them]


def told(value):
    """A number and its class, which an equal one of another kind has not."""
    return value, type(value).__module__, type(value).__name__


FUNCTIONS = [np.log, np.log10, np.log2, np.sqrt, np.exp, np.abs, np.absolute]
FUNCTIONS += [np.log1p, np.expm1, np.sin, np.cos, np.tanh]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_of_one_number(function):
    def make(trace):
        fn = trace(lambda x: told(function(x.mean().item())))
        return fn, values(0.5, 1.5, 3.25, 100.0, 1e-30, 7.0)

    check(make, hits=4, recordings=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_numbers_that_numpy_has_something_to_say_of(function):
    def make(trace):
        fn = trace(lambda x: told(function(x.mean().item())))
        return fn, values(0.5, 1.5, 0.0, -1.0, math.inf, -math.inf, math.nan, 1e30, 800.0, 0.5, 2.0)

    check(make, hits=2)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_settings_for_odd_results(function):
    """What numpy warns of or raises is a setting of the thread."""

    def make(trace):
        fn = trace(lambda x: told(function(x.mean().item())))

        def use(x, raises):
            with np.errstate(all="raise" if raises else "ignore"):
                try:
                    return fn(x)
                except FloatingPointError as error:
                    return str(error)

        steps = ((0.5, 0), (1.5, 0), (2.5, 0), (0.0, 0), (0.0, 1), (-1.0, 1), (-1.0, 0), (1e30, 1), (0.5, 1))
        return use, [call(torch.full((2,), value), raises) for value, raises in steps]

    check(make, hits=2)


@pytest.mark.parametrize("function", [np.log10, np.mean])
def test_number_behind_a_step_of_training(function):
    """The weights have changed by then: the step cannot run again."""

    def make(trace):
        torch.manual_seed(0)
        layer = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)

        def fn(x):
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            value = loss.item()
            return told(function([value, 1] if function is np.mean else value))

        steps = values(1.0, 2.0, 0.5, 1.5, 0.0, 1.0, 2.0)
        with torch.no_grad():
            layer.bias.zero_()
        return trace(fn), steps, lambda: [p.detach().clone() for p in layer.parameters()]

    check(make, hits=3)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 40, 63, 64])
def test_mean_of_so_many(count):
    def make(trace):
        def fn(x):
            found = []
            for i in range(count):
                found.append(x[i].item())
            return told(np.mean(found)), float(np.mean(tuple(found)))

        return trace(fn), [call(torch.randn(count, dtype=torch.float64) * 10**i) for i in range(-3, 4)]

    check(make, hits=4)


OF_SEVERAL = {
    "power": lambda v: np.power(v, 0.5),
    "power of a number": lambda v: np.power(0.9, v),
    "power of a size": lambda v: np.power(v, 3),
    "maximum": lambda v: np.maximum(v, 1),
    "minimum": lambda v: np.minimum(2.5, v),
    "clip": lambda v: np.clip(v, 0, 2),
    "clip to floats": lambda v: np.clip(v, 0.75, v + 1.0),
    "one after the other": lambda v: np.clip(np.power(v, 2.0) * 0.5, 0.1, np.cos(v) + 3),
}


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_function_of_several_numbers(name):
    function = OF_SEVERAL[name]

    def make(trace):
        return trace(lambda x: told(function(x.mean().item()))), values(0.5, 1.5, 3.25, 7.0, 0.5, 2.0, 1.0)

    check(make, hits=4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OF_SEVERAL)
def test_several_numbers_that_numpy_has_something_to_say_of(name):
    function = OF_SEVERAL[name]
    odd = (0.5, 1.5, 0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 1e300, 1e30, 1e-300, 0.5, 2.0)

    def make(trace):
        run = lambda x: told(function(x.mean().item()))  # noqa: E731
        return trace(run), [call(torch.full((2,), v, dtype=torch.float64)) for v in odd]

    agree(make)


WHOLE = {
    "clip": lambda n: np.clip(n, 0, 3),
    "power": lambda n: np.power(n, 2),
    "power of two": lambda n: np.power(2.0, n),
    "maximum": lambda n: np.maximum(n, 2),
    "minimum": lambda n: np.minimum(n, True),
    "array": lambda n: np.clip(np.arange(4.0), 0, n).sum(),
    "out": lambda n: np.maximum(n, 2, np.zeros(())),
    "named": lambda n: np.clip(n, a_min=0, a_max=2.5),
    "none": lambda n: np.clip(n, None, 2.5),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_and_arrays(name):
    """Of ints numpy makes an int, of arrays an array."""

    def make(trace):
        function = WHOLE[name]
        run = trace(lambda x: told(function(x.shape[0])))
        return run, [call(torch.ones(n)) for n in (2, 2, 3, 4, 2)]

    agree(make)


QUESTIONS = [np.isnan, np.isinf, np.isfinite]


@pytest.mark.parametrize("function", QUESTIONS)
def test_question_about_a_number(function):
    def make(trace):
        def fn(x):
            loss = x.mean().item()
            return x * 2 if function(loss) else x * 3, type(function(x.shape[0])).__name__

        steps = values(0.5, 1.5, math.nan, 2.5, math.inf, math.nan, -math.inf, 3.5, 0.0)
        return trace(fn), steps

    check(make, hits=6)


@pytest.mark.parametrize("function", QUESTIONS)
def test_question_about_state(function):
    class State:
        value = 0.5

    def make(trace):
        state = State()

        def put(value):
            state.value = value

        twice = [call(X()) for _ in range(2)]
        odd = (0.5, math.nan, 1.5, math.inf, 2.5, 3.5, -math.inf)
        steps = [one for value in odd for one in (lambda value=value: put(value), *twice)]
        return trace(lambda x: x * 2 if function(state.value) else x), steps

    check(make, hits=7)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_scalars_that_the_function_makes(kind):
    def make(trace):
        fn = trace(lambda x, n: (x * kind(n), told(kind(n)), told(kind(x.shape[0]))))
        return fn, [call(torch.ones(size), n) for size, n in ((2, 1), (2, 1), (3, 1), (3, 2), (3, 2), (2, 1))]

    check(make, hits=2)


@cases(eager="makes a numpy.float32")
def scalar_of_what_numpy_warns_of(trace):
    return trace(lambda x: x * np.float32(1e30)), values(1.0, 2.0)


@pytest.mark.parametrize("name", ["sqrt", "log", "log2", "log10", "exp", "ceil", "floor"])
def test_function_of_a_size(name):
    function = getattr(np, name)

    def make(trace):
        fn = trace(lambda x: (x * function((x.shape[0] + 1) / 2), told(function(x.shape[0] / 3 + 0.5))))
        return fn, [call(torch.ones(size)) for size in (2, 3, 5, 7, 4, 9, 1)]

    check(make, recordings=2, hits=5)


@cases(hits=2)
def rounded_below_zero(trace):
    """Numpy makes -0.0 there."""
    fn = trace(lambda x: (told(np.ceil(x.sum().item())), math.copysign(1.0, np.ceil(x.sum().item()))))
    return fn, values(0.25, 0.25, 0.3, 0.4, -0.25, -0.25, -0.4, 0.0)


@cases(eager="computes with")
def mean_of_many(trace):
    fn = trace(lambda x: told(np.mean([x[i].item() for i in range(129)])))
    return fn, [call(torch.randn(129)) for _ in range(3)]


@cases(hits=2)
def mean_of_ints_and_floats(trace):
    fn = trace(lambda x, n: told(np.mean([n, x.sum().item(), 3, 0.5])))
    return fn, [call(torch.full((2,), float(v)), n) for v, n in ((1, 2), (2, 3), (3, 4), (0.25, 7), (5, -3))]


@cases(hits=3)
def mean_of_zeros(trace):
    fn = trace(lambda x: told(np.mean([x.sum().item(), -0.0])))
    return fn, values(1.0, 2.0, 0.0, -0.0, 3.0, -1.0, 5.0)


@pytest.mark.filterwarnings("ignore")
@cases(hits=2)
def mean_of_infinities(trace):
    fn = trace(lambda x: told(np.mean([x[0].item(), x[1].item()])))
    pairs = (
        (1, 2),
        (3, 4),
        (math.inf, -math.inf),
        (math.inf, 1),
        (math.nan, 1),
        (1e308, 1e308),
        (5, 6),
        (1e-320, 0),
    )
    return fn, [call(torch.tensor(pair, dtype=torch.float64)) for pair in pairs]


@pytest.mark.filterwarnings("ignore")
@cases(hits=1)
def mean_of_nothing(trace):
    return trace(lambda x: (x * 2, str(np.mean([])))), [call(X())] * 3


@cases(hits=2)
def mean_along_an_axis(trace):
    return trace(lambda x: (x * 2, np.mean([1.0, 2.0], axis=0).item())), [call(X())] * 3


OF_WHOLES = {
    "product_of_a_shape": lambda x: np.prod(x.shape),
    "product_of_the_rest": lambda x: int(np.prod(x.shape[1:])),
    "product_of_a_list": lambda x: np.prod([x.shape[0], 2, len(x)]),
    "sum_of_a_shape": lambda x: np.sum(x.shape),
    "one": lambda x: np.prod(x.shape[:1]) + np.sum((x.numel(),)),
    "below_zero": lambda x: np.prod((x.shape[0] - 3, -x.shape[1])),
    "kind": lambda x: type(np.prod(x.shape)).__name__ + type(np.sum(x.shape)).__name__,
    "halved": lambda x: np.prod(x.shape) / 2,
    "as_int": lambda x: x.reshape(-1).reshape(np.prod(x.shape)).shape[0],
    "in_a_shape": lambda x: x.reshape(int(np.prod(x.shape)) // x.shape[0], -1).shape[0],
}


@pytest.mark.parametrize("name", OF_WHOLES)
def test_of_whole_numbers(name):
    """Sizes that are followed: a recording for all."""

    def make(trace):
        compute = OF_WHOLES[name]
        fn = trace(lambda x: (x * 2, compute(x) if name == "kind" else told(compute(x))))
        shapes = [(2, 3), (4, 3), (5, 2), (1, 7), (3, 3), (1, 1), (11, 13), (2, 3)]
        return fn, [call(torch.ones(shape)) for shape in shapes]

    check(make, hits=6, recordings=2)


@cases(hits=4)
def product_that_goes_round(trace):
    """Of int64s it wraps, without a warning."""
    fn = trace(lambda x, n: (x * 2, int(np.prod([n, n, n])), int(np.sum([n, n]))))
    return fn, [call(X(), n) for n in (2, 3, 5, 1 << 20, 1 << 21, 1 << 22, 1 << 62, 7, -(1 << 40), 3)]


@cases(hits=2)
def product_of_floats(trace):
    fn = trace(lambda x: (x * 2, float(np.prod([x.sum().item(), 0.5])), np.prod([1e200, 1e100])))
    return fn, values(1.0, 1.0, 1.0, 2.0, 2.0)


@cases(hits=1)
def product_of_nothing(trace):
    return trace(lambda x: (x * 2, told(np.prod(())), told(np.prod(x.shape[2:])))), [call(X())] * 3


@cases(hits=2)
def mean_of_state(trace):
    history = [1.0, 2.0]
    fn = trace(lambda x: x * float(np.mean(history)))
    return fn, [call(X()), call(X()), lambda: history.__setitem__(0, 5.0), call(X()), call(X())]


@cases(hits=2, recordings=2)
def numbers_of_numpy_beside_one_that_follows(trace):
    history = [1.0, np.float64(2.0), np.float32(3.0)]
    fn = trace(lambda x: (x * float(np.mean(history)), x.sum() + torch.from_numpy(np.array(history))))

    def move():
        history[0] += 1.5

    return fn, [call(X()), move, call(X()), move, call(X()), move, call(X())]


USES = {
    "array": lambda v: told(np.asarray(v).sum()),
    "clipped": lambda v: told(np.clip(v, 0.5, 1.5)),
    "returned": told,
    "in_containers": lambda v: ([v], {"a": v}, (v, v)),
    "as_float": lambda v: told(float(v)),
    "item": lambda v: (told(v.item()), v.dtype),
    "added": lambda v: told(v + 1),
    "added_to": lambda v: told(2.0 - v),
    "with_a_float_of_python": lambda v: told(v * 0.1 + v),
    "times": lambda v: told(-10.0 * v / 3),
    "over_a_number": lambda v: told(1 / v - v / 2),
    "with_another": lambda v: told(v * np.exp(float(v)) - v),
    "less_itself": lambda v: told(v - v),
    "negative": lambda v: told(-v),
    "compared": lambda v: (v > 1, v == v, bool(v), v is None),
    "class": lambda v: (
        isinstance(v, float),
        isinstance(v, np.floating),
        type(v) is np.float64,
        type(v).__name__,
    ),
    "another_function": lambda v: told(np.sqrt(v)),
    "mean_of_means": lambda v: told(np.mean([v, v, 1.0])),
    "key": lambda v: {v: 1},
    "math": lambda v: told(math.exp(v)),
    "largest": lambda v: told(max(v, 1.0)),
    "sorted": lambda v: [told(one) for one in sorted([v, 1.0, v + 2])],
    "sum": lambda v: told(sum([v, v])),
    "tensor": lambda v: (torch.tensor(v), torch.tensor([v, 1.0]), torch.ones(2) * v, v * torch.ones(2)),
    "of_a_size": lambda v: torch.zeros(int(v) + 1),
    "hash": hash,
    "attributes": lambda v: (hasattr(v, "item"), hasattr(v, "other"), callable(v)),
    "power": lambda v: told(v**2),
    "power_of_it": lambda v: told(2.0**v),
    "rest": lambda v: (told(v % 1), told(v // 0.5), told(7 % v)),
    "text": lambda v: (f"{v:.3f}", format(v, ".2e"), "%.1f and %d" % (v, 3)),  # noqa: UP031
    "compared_too": lambda v: (told(v > 1), told(v >= 1), told(v == 2), told(np.float64(1.5) != v)),
}


# What runs eagerly with any of numpy's numbers.
EAGER = {
    "whole": lambda v: (int(v), v.is_integer(), v.as_integer_ratio()),
}


@pytest.mark.parametrize("use", EAGER)
def test_what_is_not_recorded(use):
    def make(trace):
        fn = trace(lambda x: EAGER[use](np.exp(x.mean().item())))
        return fn, [*values(0.5, 0.25, 0.75)]

    check(make, eager="of a float64")


def test_how_a_number_looks():
    def make(trace):
        fn = trace(lambda x: looks(np.exp(x.mean().item())))
        return fn, [*values(0.5, 0.25, 0.75)]

    def looks(v):
        return v.dtype, v.shape, v.ndim, v.size, v.nbytes

    check(make, recordings=3)


READS = {
    "rounded": lambda v: told(round(v, 2)),
    "divmod": lambda v: divmod(v, 1)[0],
    "text": str,
    "more text": lambda v: (str(v), f"{v:.2f}"),
}


@pytest.mark.parametrize("use", READS)
def test_what_takes_the_value(use):
    def make(trace):
        fn = trace(lambda x: READS[use](np.exp(x.mean().item())))
        return fn, [*values(0.5, 0.25, 0.75)]

    check(make, recordings=3)


@pytest.mark.parametrize("use", USES)
def test_what_is_done_with_it(use):
    def make(trace):
        fn = trace(lambda x: USES[use](np.exp(x.mean().item())))
        return fn, [*values(0.5, 0.5, 0.25, 0.75, 1.5, 0.5)] * 2

    check(make, hits=4)


OPERATIONS = {
    "times": lambda v, n: v * n,
    "over": lambda v, n: v / n,
    "under": lambda v, n: n / v,
    "plus": lambda v, n: n + v,
    "minus": lambda v, n: v - n,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_odd_results_of_arithmetic(operation):
    """Too large, too small, none: what numpy does about it is a setting of the thread."""

    def make(trace):
        fn = trace(lambda x, n: told(OPERATIONS[operation](np.exp(x.mean().item()), n)))

        def use(x, n, raises):
            with np.errstate(all="raise" if raises else "ignore"):
                try:
                    return fn(x, n)
                except FloatingPointError as error:
                    return str(error)

        ns = (2.0, 3.0, 5.0, 0.5, 0.0, 1e308, 1e-308, 5e-324, math.inf, -math.inf, math.nan, 3.0)
        pairs = [(n, raises) for n in ns for raises in (False, True)]
        xs = (torch.full((2,), 5.0 + i / 10, dtype=torch.float64) for i in range(len(pairs)))
        return use, [call(x, *pair) for x, pair in zip(xs, pairs, strict=True)]

    check(make, hits=2)


@cases(hits=3)
def kept_in_state(trace):
    state = {"last": np.float64(0), "log": []}

    def fn(x):
        state["last"] = np.exp(x.mean().item())
        state["log"].append(state["last"])
        return x * 2

    return (
        trace(fn),
        values(0.5, 1.5, 2.5, 0.25, 3.0),
        lambda: (told(state["last"]), [told(v) for v in state["log"]]),
    )


@cases(hits=2)
def another_function_under_the_name(trace):
    fn = trace(lambda x: told(np.exp(x.mean().item())))
    usual = np.exp

    def use(x, patched):
        np.exp = np.sqrt if patched else usual
        try:
            return fn(x)
        finally:
            np.exp = usual

    return use, [
        call(torch.full((2,), v), patched) for v, patched in ((0.5, 0), (1.5, 0), (2.5, 1), (3.5, 0))
    ]


@cases.parametrize()
def test_number_by_numpy(make, expected):
    check(make, **expected)
