"""Calls that stay whole: `script_if_tracing`, `opaque`, own backwards, compiled and unseen code."""

from __future__ import annotations

import ctypes
import re
import sys
import warnings

import pytest
import torch

import lazytrace
from lazytrace import NotTraceableError, opaque, script_if_tracing, traced

X = torch.tensor([-1.0, 0.5, 2.0])


def counts(fn) -> tuple[int, int, int]:
    """(hits, recordings, eager calls)."""
    s = fn.stats()
    return s.hits, s.recordings, s.eager_calls


def shrink(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Halve until the norm is small."""
    while bool(x.norm() > limit):
        x = x * 0.5
    return x


def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0] if bool(x.sum() > 0) else x


# ---------------------------------------------------------------- script_if_tracing
def test_outside_it_is_the_plain_function():
    ran = []

    @script_if_tracing
    def noted(x):
        """Notes."""
        ran.append(x)
        return x * 2

    assert torch.equal(noted(X), X * 2)
    assert len(ran) == 1
    assert ran[0] is X
    assert (noted.__name__, noted.__doc__) == ("noted", "Notes.")


def test_inside_the_loop_stays_alive():
    helper = script_if_tracing(shrink)
    fn = traced(lambda x: helper(x * 1.0, 1.0) + 1)
    for scale in (1.0, 10.0, 0.1, 1000.0, 0.0):
        assert torch.equal(fn(X * scale), shrink(X * scale, 1.0) + 1)
    assert counts(fn) == (3, 2, 0)  # the helper gives its argument, or a new tensor: a branch each
    assert fn.program(X).operators <= 3


def test_scripted_code_runs_without_python():
    ran = []

    def branch(x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x * 2
        return x * 3

    helper = script_if_tracing(branch)
    fn = traced(lambda x: helper(x))
    fn(X)

    def watch(frame, event, arg):
        if frame.f_code is branch.__code__:
            ran.append(event)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        out, negative = fn(X), fn(-X)
    finally:
        sys.setprofile(before)
    assert torch.equal(out, X * 2)
    assert torch.equal(negative, -X * 3)
    assert counts(fn) == (2, 1, 0)
    assert ran == []


def test_gradients_flow_through_it():
    helper = script_if_tracing(shrink)
    fn = traced(lambda x: (helper(x * 3, 1.0) * x).sum())
    for scale in (1.0, 10.0, 0.1):
        x = (X * scale).requires_grad_()
        expected = torch.autograd.grad((shrink(x * 3, 1.0) * x).sum(), x)[0]
        assert torch.equal(torch.autograd.grad(fn(x), x)[0], expected)
    assert counts(fn) == (1, 2, 0)  # the helper gives its argument, or a new tensor: a branch each


def test_what_torchscript_refuses_runs_as_python():
    ran = []

    @script_if_tracing
    def odd(x):
        ran.append(len(ran))
        return {"sum": x * (2 if x.sum() > 0 else 3)}["sum"]

    fn = traced(lambda x: odd(x) + 1, check=False)
    assert torch.equal(fn(X), X * 2 + 1)
    before = len(ran)
    assert torch.equal(fn(-X), -X * 3 + 1)
    assert torch.equal(fn(X), X * 2 + 1)
    assert len(ran) == before + 2
    assert counts(fn) == (2, 1, 0)


def test_gradients_flow_through_python_steps():
    @script_if_tracing
    def odd(x):
        scale = {True: 2, False: 3}[bool(x.sum() > 0)]
        return [x * scale][0]

    fn = traced(lambda x: (odd(x * 5) * x).sum())
    for sign in (1.0, -1.0, 1.0):
        x = (X * sign).requires_grad_()
        scale = 2 if sign > 0 else 3
        assert torch.allclose(torch.autograd.grad(fn(x), x)[0], 10 * scale * x.detach())
    assert fn.stats().hits == 2


def test_another_output_shape_is_right():
    helper = script_if_tracing(positive)
    fn = traced(lambda x: helper(x) * 2 + 1)
    for x in (X, X + 10, -X, X, X + 10, -X):
        assert torch.equal(fn(x), positive(x) * 2 + 1)
    assert fn.stats().hits >= 1


def test_another_output_shape_used_as_a_number_is_right():
    helper = script_if_tracing(positive)
    fn = traced(lambda x: helper(x).sum() * helper(x).shape[0])
    for x in (X, X + 10, -X, X):
        assert torch.equal(fn(x), positive(x).sum() * positive(x).shape[0])


def test_several_results_and_tuples():
    @script_if_tracing
    def both(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = x
        for _ in range(n):
            if bool(y.sum() > 0):
                y = y * 2
        return y, x + y

    @traced
    def fn(x):
        a, b = both(x, 3)
        return a - b

    for x in (X, -X, X * 5):
        assert torch.equal(fn(x), -x)
    assert counts(fn) == (1, 2, 0)  # the helper gives its argument, or a new tensor: a branch each


def test_as_a_decorator_of_recursive_use():
    helper = script_if_tracing(shrink)

    @traced
    def inner(x):
        return helper(x, 1.0) * 2

    @traced
    def outer(x):
        return inner(x) + helper(x, 2.0)

    for x in (X, X * 100, X * 0.01):
        assert torch.equal(outer(x), shrink(x, 1.0) * 2 + shrink(x, 2.0))
    assert counts(outer) == (1, 2, 0)  # the helper gives its argument, or a new tensor: a branch each


@pytest.mark.parametrize("order", ["first", "last"])
def test_exceptions_pass_through(order):
    @script_if_tracing
    def picky(x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() < 0):
            raise ValueError("negative")
        return x * 2

    fn = traced(lambda x: picky(x) + 1)
    if order == "last":
        assert torch.equal(fn(X), X * 2 + 1)
    for _ in range(2):
        with pytest.raises(Exception, match="negative"):
            fn(-X)
        assert not lazytrace.is_tracing()
    assert torch.equal(fn(X), X * 2 + 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_under_jit_trace_the_branch_is_kept():
    ours, theirs = script_if_tracing(shrink), torch.jit.script_if_tracing(shrink)
    graphs = [torch.jit.trace(lambda x, h=helper: h(x, 1.0) + 1, X) for helper in (ours, theirs)]
    for scale in (1.0, 100.0, 0.01):
        expected = shrink(X * scale, 1.0) + 1
        for graph in graphs:
            assert torch.equal(graph(X * scale), expected)
    assert "prim::Loop" in str(graphs[0].inlined_graph)


def test_warnings_of_others_stay_as_they_were():
    helper = script_if_tracing(shrink)
    fn = traced(lambda x: helper(x, 1.0))
    before = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fn(X), shrink(X, 1.0))
    assert list(warnings.filters) == before


@pytest.mark.parametrize("decorate", [script_if_tracing, opaque])
def test_what_cannot_be_called_is_refused(decorate):
    with pytest.raises(NotTraceableError) as caught:
        decorate(3)
    assert "an object of type int cannot be called" in str(caught.value)


def test_refusal_names_the_decorator():
    for decorate in (script_if_tracing, opaque):
        with pytest.raises(NotTraceableError, match=rf"^{decorate.__name__}\(3\): "):
            decorate(3)


def test_where_torchscript_is_gone(monkeypatch):
    monkeypatch.delattr(torch.jit, "script")
    helper = script_if_tracing(shrink)
    fn = traced(lambda x: helper(x, 1.0) + 1)
    for scale in (1.0, 10.0, 0.1):
        assert torch.equal(fn(X * scale), shrink(X * scale, 1.0) + 1)
    assert counts(fn) == (1, 2, 0)  # the helper gives its argument, or a new tensor: a branch each


# ---------------------------------------------------------------- opaque
def test_opaque_side_effects_happen_at_each_call():
    seen = []

    @opaque
    def note(x):
        seen.append(float(x.sum()))

    @traced
    def fn(x):
        note(x)
        return x * 2

    for k in range(1, 5):
        assert torch.equal(fn(X * k), X * k * 2)
    assert seen == [1.5, 3.0, 4.5, 6.0]
    assert counts(fn) == (3, 1, 0)


def test_opaque_sees_values_between_steps_in_order():
    seen = []

    @opaque
    def note(x):
        seen.append(x.tolist())

    @traced
    def fn(x):
        y = x.clone()
        note(y)
        y.add_(1)
        note(y)
        return y

    for _ in range(3):
        seen.clear()
        fn(X)
        assert seen == [X.tolist(), (X + 1).tolist()]
    assert fn.stats().hits == 2


def test_opaque_results_are_followed():
    @opaque
    def numpy_like(x):
        return torch.tensor([v * 2 for v in x.tolist()]), {"low": x.min()}

    @traced
    def fn(x):
        doubled, rest = numpy_like(x)
        return doubled + rest["low"]

    for x in (X, X + 1, X * 3):
        assert torch.equal(fn(x), x * 2 + x.min())
    assert counts(fn) == (2, 1, 0)


def test_opaque_exceptions_pass_through():
    error = KeyError("mine")
    fail = []

    @opaque
    def picky(x):
        if fail:
            raise error
        return x

    fn = traced(lambda x: picky(x) * 2)
    fn(X), fn(X)
    fail.append(1)
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            fn(X)
        assert caught.value is error
        assert torch.is_grad_enabled()
        assert not lazytrace.is_tracing()
    fail.clear()
    assert torch.equal(fn(X), X * 2)


def test_opaque_with_plain_values_and_keywords():
    seen = []

    @opaque
    def note(x, k, *, names=("a",), option=None):
        seen.append((k, names, option))
        return x * k

    @traced
    def fn(x, k):
        return note(x, k, names=["b", "c"], option={"deep": (1, None)})

    for _ in range(2):
        assert torch.equal(fn(X, 2), X * 2)
        assert torch.equal(fn(X, 3.0), X * 3)
    rest = (["b", "c"], {"deep": (1, None)})
    assert seen == [(2, *rest), (3.0, *rest)] * 2
    assert fn.stats().hits == 2


def test_opaque_methods():
    class Logger:
        def __init__(self):
            self.seen = []

        @opaque
        def note(self, x):
            self.seen.append(float(x.sum()))
            return x + len(self.seen)

        @opaque
        @staticmethod
        def double(x):
            return x * 2

    logger = Logger()
    fn = traced(lambda x: logger.note(x) + logger.double(x))
    for k in range(1, 4):
        assert torch.equal(fn(X), X + k + X * 2)
    assert logger.seen == [1.5] * 3
    assert torch.equal(logger.double(X), X * 2)
    assert fn.stats().hits == 2, fn.stats().eager


def test_opaque_outside_is_the_plain_function():
    double = opaque(lambda x: x * 2)
    assert torch.equal(double(X), X * 2)


def test_opaque_gradients_flow():
    double = opaque(lambda x: torch.as_tensor(x * 2))
    fn = traced(lambda x: (double(x) * x).sum())
    for k in (1.0, 2.0, 3.0):
        x = (X * k).requires_grad_()
        assert torch.equal(torch.autograd.grad(fn(x), x)[0], 4 * x.detach())
    assert fn.stats().hits == 2


def test_opaque_writes_to_its_arguments():
    @opaque
    def fill(x, value):
        x.fill_(value)

    @traced
    def fn(x):
        y = torch.empty_like(x)
        fill(y, 3.0)
        return y + x

    for k in range(3):
        assert torch.equal(fn(X + k), X + k + 3)
    assert fn.stats().hits == 2


def test_opaque_other_shape_is_right():
    sizes = [2, 2, 3, 1]
    chosen = iter(sizes)

    @opaque
    def some(x):
        return x[: next(chosen)]

    fn = traced(lambda x: some(x) * 2, check=False)
    for n in sizes:
        assert torch.equal(fn(X), X[:n] * 2)


def test_opaque_numbers_are_read_anew():
    @opaque
    def count(x):
        return int(x.sum())

    fn = traced(lambda x: x * count(x))
    for x in (X, X * 2, X * 4, X):
        assert torch.equal(fn(x), x * int(x.sum()))


def test_opaque_runs_what_is_bound_now():
    factor = 2

    @opaque
    def scaled(x):
        return x * factor

    fn = traced(lambda x: scaled(x) + 1)
    for factor in (2, 2, 3):
        assert torch.equal(fn(X), X * factor + 1)
    assert fn.stats().hits == 2


# ---------------------------------------------------------------- own backwards
class Clipped(torch.autograd.Function):
    """A backward that is not the derivative."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        ctx.save_for_backward(x)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.scale * 100 + x * 0, None


def test_custom_autograd_function_keeps_its_backward():
    fn = traced(lambda x: (Clipped.apply(x * 2, 3.0) + 1).sum())
    for k in (1.0, 2.0, 3.0):
        x = (X * k).requires_grad_()
        out = fn(x)
        assert torch.equal(out, (x * 6 + 1).sum())
        assert torch.equal(torch.autograd.grad(out, x)[0], torch.full((3,), 600.0))
    assert counts(fn) == (2, 1, 0)


def test_custom_autograd_function_without_gradients():
    fn = traced(lambda x: Clipped.apply(x, 3.0))
    for k in (1.0, 2.0, 3.0):
        with torch.no_grad():
            assert torch.equal(fn(X * k), X * k * 3)
    assert counts(fn) == (2, 1, 0)


# ---------------------------------------------------------------- compiled and unseen code
def test_a_compiled_callee_is_one_step():
    compiled = torch.compile(lambda x: torch.tanh(x) * 2 + 1, backend="eager")
    compiled(X)
    fn = traced(lambda x: compiled(x) * 3)
    for k in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        assert torch.allclose(fn(X * k), (torch.tanh(X * k) * 2 + 1) * 3)
    stats = fn.stats()
    assert stats.hits >= 3, stats.eager
    assert fn.program(X).operators <= 2
    assert "opaque" in fn.program(X).listing()
    # What the recording of it has held is gone, and has put nothing back.
    assert "GenericMode" not in str(torch._C._dispatch_tls_local_include_set())


def fill_by_c(t: torch.Tensor, byte: int) -> None:
    ctypes.memset(t.data_ptr(), byte, t.numel() * t.element_size())


@pytest.mark.parametrize("make", [torch.empty, torch.zeros], ids=["empty", "zeros"])
def test_memory_written_by_unseen_code(make):
    @traced
    def fn(x, byte):
        y = make(4, dtype=torch.uint8)
        fill_by_c(y, byte)
        return y + x

    x = torch.ones(4, dtype=torch.uint8)
    for _ in range(3):
        for byte in (7, 9):
            assert fn(x, byte).tolist() == [byte + 1] * 4
    assert fn.stats().hits == 0


def test_arguments_written_by_unseen_code():
    @traced
    def fn(x):
        fill_by_c(x, 5)
        return x * 2

    for _ in range(3):
        x = torch.ones(4, dtype=torch.uint8)
        assert fn(x).tolist() == [10] * 4
        assert x.tolist() == [5] * 4


def test_results_read_by_unseen_code():
    @traced
    def fn(x):
        y = x + 1
        value = ctypes.c_uint8.from_address(y.data_ptr()).value
        return y * value

    for k in (1, 2, 3, 4):
        x = torch.full((4,), k, dtype=torch.uint8)
        assert fn(x).tolist() == [(k + 1) ** 2] * 4


def test_unseen_code_as_an_opaque_step_is_replayed():
    fill = opaque(fill_by_c)

    @traced
    def fn(x, byte):
        y = torch.empty(4, dtype=torch.uint8)
        fill(y, byte)
        return y + x

    x = torch.ones(4, dtype=torch.uint8)
    for _ in range(3):
        for byte in (7, 9):
            assert fn(x, byte).tolist() == [byte + 1] * 4
    assert counts(fn) == (4, 2, 0)


def test_numpy_views_written_behind_the_back():
    @traced
    def fn(x):
        y = torch.empty(3)
        y.numpy()[:] = 4.0
        return y + x

    for k in range(4):
        assert torch.equal(fn(X + k), X + k + 4)


# ---------------------------------------------------------------- opaque(like=...)
def test_what_an_opaque_function_gives_is_told():
    @opaque(like={"a": torch.empty(2), "b": (torch.empty(1, dtype=torch.long),)})
    def parts(x, wrong=""):
        a = x[:, 0] if wrong == "strides" else x[0]
        b = torch.zeros(2 if wrong == "shape" else 1, dtype=torch.int if wrong == "dtype" else torch.long)
        return [a, b] if wrong == "container" else {"a": a, "b": (3 if wrong == "number" else b,)}

    step = traced(lambda x, wrong="": parts(x, wrong)["a"] * 2)
    x = torch.arange(4.0).reshape(2, 2)
    for _ in range(3):
        assert torch.equal(step(x), x[0] * 2)
    assert step.stats().hits == 2
    end = r" Correct like, or leave it out\."
    for wrong, told in (
        ("shape", r"gave int64\[2\] at \['b'\]\[0\], and opaque\(like=\.\.\.\) expected int64\[1\]\."),
        ("dtype", r"gave int32\[1\] at \['b'\]\[0\]"),
        ("strides", r"gave float32\[2\] with strides \[2\] at \['a'\]"),
        ("number", r"gave 3 at "),
        ("container", r"gave list\(\*, \*\), and .* expected dict\['a', 'b'\]\(\*, tuple\(\*\)\)\."),
    ):
        for f in (parts, step):
            with pytest.raises(TypeError, match=r"parts " + told) as caught:
                f(x, wrong)
            assert re.search(end, str(caught.value))
    assert torch.equal(step(x), x[0] * 2)


def test_a_replay_that_gives_something_else_raises():
    size = [2]

    def grows(x):
        return x.new_zeros(size[0])

    told, untold = opaque(grows, like=torch.empty(2)), opaque(grows)
    one, two = (traced(lambda x, f=f: f(x) + 1, name="step") for f in (told, untold))
    for step in (one, two):
        step(X), step(X)
    size[0] = 3
    assert two(X).shape == (3,)
    with pytest.raises(TypeError, match=r"gave float32\[3\]"):
        one(X)


def test_what_is_told_lets_results_go():
    """Nothing is kept for an exit at the step."""

    def peak(function):
        def step(x):
            y = (x * 2).relu() + 1
            return function((y * 3).sum(0, keepdim=True)) + 1

        made = traced(step)
        x = torch.ones(4, 4)
        made(x), made(x)
        assert made.stats().hits == 1
        rows = made.program(x).native.rows()
        at = next(i for i, row in enumerate(rows) if row["kind"] == "opaque")
        return sum(len(row["frees"]) for row in rows[:at])

    assert peak(opaque(lambda y: y * 2, like=torch.empty(1, 4))) > peak(opaque(lambda y: y * 2))


def test_told_where_the_function_cannot_be_resumed():
    """Behind what cannot be resumed, an opaque function that may give anything is refused."""

    class Thing:
        n, w = 0, torch.tensor([-2.0, 1.0])

    def make(**options):
        thing = Thing()
        thing.n = 0

        @opaque
        def spoil(x):
            thing.n += 1
            return x + thing.n

        largest = opaque(lambda x: x[x > 0].sum(), **options)
        return traced(lambda x: largest(spoil(thing.w)) + x if vars(thing) else x), thing

    (told, thing), (untold, other) = make(like=torch.empty(())), make()
    for _ in range(5):
        assert torch.equal(told(X), untold(X))
    assert (thing.n, other.n) == (5, 5)
    assert counts(told) == (4, 1, 0)
    assert {lazytrace.reason_code(reason) for reason in untold.stats().eager} == {"opaque-varies"}


def test_like_is_tensors():
    with pytest.raises(lazytrace.OptionError, match=r"opaque\(like=3\): like must be a tensor"):
        opaque(lambda x: x, like=3)
