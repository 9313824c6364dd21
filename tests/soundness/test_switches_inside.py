"""Switches of torch.backends that the function sets for a while: what runs in between sees them."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import ctc_loss, scaled_dot_product_attention

import lazytrace
from lazytrace import traced
from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()
B, C = torch.backends, torch._C

# Getter, setter, another value than that of the start.
SWITCHES = {
    "cudnn.enabled": (C._get_cudnn_enabled, C._set_cudnn_enabled, False),
    "cudnn.benchmark": (C._get_cudnn_benchmark, C._set_cudnn_benchmark, True),
    "cudnn.deterministic": (C._get_cudnn_deterministic, C._set_cudnn_deterministic, True),
    "cudnn.allow_tf32": (C._get_cudnn_allow_tf32, C._set_cudnn_allow_tf32, False),
    "cudnn.depthwise_kernel": (C._get_cudnn_depthwise_kernel, C._set_cudnn_depthwise_kernel, "native"),
    "sdp.flash": (C._get_flash_sdp_enabled, C._set_sdp_use_flash, False),
    "sdp.mem_efficient": (C._get_mem_efficient_sdp_enabled, C._set_sdp_use_mem_efficient, False),
    "sdp.math": (C._get_math_sdp_enabled, C._set_sdp_use_math, False),
    "sdp.cudnn": (C._get_cudnn_sdp_enabled, C._set_sdp_use_cudnn, False),
    "sdp.overrideable": (C._get_overrideable_sdp_enabled, C._set_sdp_use_overrideable, False),
    "sdp.math_fp16_bf16_reduction": (
        C._get_math_sdp_allow_fp16_bf16_reduction,
        C._set_math_sdp_allow_fp16_bf16_reduction,
        True,
    ),
}


def precision():
    return C._get_fp32_precision_getter("cuda", "all")


def held():
    """All of them, as they are now."""
    return [str(get()) for get, _, _ in SWITCHES.values()] + [precision()]


START = {name: get() for name, (get, _, _) in SWITCHES.items()}


def restore():
    """As torch starts, but for what its own context managers leave behind."""
    for name, (_, put, _) in SWITCHES.items():
        put(START[name])
    C._set_fp32_precision_setter("cuda", "all", "none")


@pytest.fixture(autouse=True)
def put_back():
    yield
    restore()


def case(**expected):
    """A case that finds them as they are at the start, whatever the other run has left."""

    def define(make):
        @functools.wraps(make)
        def fresh(trace):
            restore()
            return make(trace)

        cases(fresh, **expected)
        return fresh

    return define


def number_held() -> float:
    """A number that is another one where any of them is."""
    texts = "".join(held())
    return float(sum(ord(letter) * (i % 89 + 1) for i, letter in enumerate(texts)) % 9973)


LIBRARY = torch.library.Library("lazytrace_switches", "DEF")
LIBRARY.define("seen(Tensor x) -> Tensor")
# Its kernel is Python code, which sees the switches as they are while it runs.
LIBRARY.impl("seen", lambda x: x.detach() + number_held(), "CompositeExplicitAutograd")
seen = torch.ops.lazytrace_switches.seen


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_set_for_a_while(name):
    get, put, other = SWITCHES[name]

    def make(trace):
        restore()

        def fn(x):
            y = seen(x)
            before = get()
            put(other)
            z = seen(x)
            put(before)
            return y, z, seen(x * 2)

        return trace(fn), [call(X()), call(X()), lambda: put(other), call(X()), call(X())], held

    check(make, hits=2)


@case(hits=2)
def a_precision(trace):
    """Given and set by names."""

    def fn(x):
        before = C._get_fp32_precision_getter("cuda", "all")
        C._set_fp32_precision_setter("cuda", "all", "tf32")
        y = seen(x)
        C._set_fp32_precision_setter("cuda", "all", before)
        return y, seen(x)

    return trace(fn), around(lambda: C._set_fp32_precision_setter("cuda", "all", "ieee"), X()), held


@case(eager="calls _get_fp32_precision_getter()")
def another_precision(trace):
    def fn(x):
        return seen(x), C._get_fp32_precision_getter("mkldnn", "conv")

    return trace(fn), [call(X()), call(X())], held


@case(hits=2)
def flags_of_cudnn(trace):
    """As losses of speech models are called."""

    def fn(scores, marks):
        with torch.backends.cudnn.flags(enabled=False):
            loss = ctc_loss(
                scores.log_softmax(-1), marks, torch.tensor([9, 9]), torch.tensor([4, 3]), zero_infinity=True
            )
            inside = seen(scores)
        loss.backward()
        return loss.detach(), inside, seen(scores), B.cudnn.enabled

    marks = torch.tensor([[1, 2, 3, 1], [2, 2, 1, 3]])
    # The first call leaves the precisions of cudnn set, as torch's own context manager does.
    return trace(fn), [call(X(9, 2, 4, grad=True), marks) for _ in range(4)], held


@case(hits=2)
def flags_by_an_argument(trace):
    def fn(x, enabled):
        with torch.backends.cudnn.flags(enabled=enabled, deterministic=not enabled):
            with torch.backends.cudnn.flags(enabled=not enabled, benchmark=True):
                y = seen(x), B.cudnn.enabled
            return *y, seen(x), B.cudnn.enabled

    steps = [call(X(), True), call(X(), False), call(X(), True), call(X(), False)]
    return trace(fn), steps, held


@case(hits=3)
def kernels_of_attention(trace):
    def fn(q, k):
        with sdpa_kernel(SDPBackend.MATH):
            y = scaled_dot_product_attention(q, k, k)
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
            z = scaled_dot_product_attention(q, k, k)
        with torch.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False):
            seen_inside = seen(q)
        return y, z, seen_inside, scaled_dot_product_attention(q, k, k)

    return trace(fn), [call(X(1, 2, 5, 8), X(1, 2, 7, 8)) for _ in range(4)], held


@case(hits=2)
def a_kernel_held_in_state(trace):
    """Another member is another value."""
    state = {"kernel": SDPBackend.MATH}

    def fn(x):
        with sdpa_kernel(state["kernel"]):
            return seen(x), state["kernel"] == SDPBackend.MATH

    return trace(fn), around(lambda: state.update(kernel=SDPBackend.FLASH_ATTENTION), X()), held


@case(eager="calls torch._C._get_sdp_priority_order()")
def an_order_of_kernels(trace):
    def fn(q):
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
            return scaled_dot_product_attention(q, q, q)

    return trace(fn), [call(X(1, 2, 5, 8)), call(X(1, 2, 5, 8))], held


@case(eager="leaves-modes")
def one_that_stays(trace):
    def fn(x):
        C._set_cudnn_benchmark(True)
        return seen(x)

    def off():
        C._set_cudnn_benchmark(False)

    return trace(fn), [call(X()), off, call(X()), off, call(X())], held


@case(eager="calls _get_cudnn_allow_tf32()")
def one_that_cannot_be_asked(trace):
    """torch raises where the older switch and the newer precisions contradict each other."""
    C._set_fp32_precision_setter("cuda", "conv", "ieee")

    def fn(x):
        try:
            return x * C._get_cudnn_allow_tf32()
        except RuntimeError:
            return x * 3

    back = lambda: C._set_cudnn_allow_tf32(True)  # noqa: E731
    return trace(fn), [call(X()), call(X()), back, call(X()), call(X())], precision


@case(eager="calls _set_cudnn_enabled()")
def one_that_is_set_wrongly(trace):
    def fn(x):
        try:
            C._set_cudnn_enabled(1)
        except RuntimeError:
            return x * 2
        return x

    return trace(fn), [call(X()), call(X())], held


@case(hits=2)
def the_way_out_by_an_error(trace):
    def fn(x):
        with torch.backends.cudnn.flags(enabled=False):
            y = seen(x)
            if y.sum() > 1e6:
                raise ValueError("too large")
        return seen(y)

    steps = [call(X()), call(X()), call(X() * 1e9), call(X()), call(X() * 1e9)]
    return trace(fn), steps, held


@case(hits=2)
def the_way_out_in_the_middle(trace):
    """A replay that stops there goes on under the switches that the function has set."""

    def fn(x):
        with torch.backends.cudnn.flags(enabled=False, deterministic=True):
            y = seen(x)
            if y.sum() > 1e6:
                y = seen(y) - 1
            z = seen(y)
        return y, z, seen(z)

    steps = [call(X()), call(X()), call(X() * 1e9), call(X() * 1e9), call(X()), call(X() * 1e9)]
    return trace(fn), steps, held


@pytest.mark.parametrize("inside", [True, False])
def test_a_backward_pass(inside):
    """It runs under the switches of where it is asked for."""

    def make(trace):
        restore()
        w = X(4, grad=True)

        def fn(x):
            with torch.backends.cudnn.flags(enabled=False):
                loss = (seen(x) * w * w).sum()
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
            with torch.no_grad():
                w.sub_(w.grad, alpha=1e-5)
            return loss.detach()

        return trace(fn), [call(X(4)) for _ in range(6)], lambda: (held(), w, w.grad)

    check(make, hits=3)


@case(hits=2)
def asked_by_a_hook(trace):
    """What the program has set for a while is no change of what the call found."""

    def fn(x):
        w = torch.ones(3, requires_grad=True)
        w.register_hook(lambda gradient: gradient * (1 if torch.backends.cudnn.enabled else 5))
        with torch.backends.cudnn.flags(enabled=False):
            (w * x).sum().backward()
        return w.grad

    return trace(fn), around(lambda: C._set_cudnn_benchmark(True), X()), held


@case(hits=2)
def changed_between_calls(trace):
    """What the function never asks for is nobody's business; what it puts back by value is."""

    def fn(x):
        before = C._get_cudnn_depthwise_kernel()
        C._set_cudnn_depthwise_kernel("native")
        y = seen(x)
        C._set_cudnn_depthwise_kernel(before)
        return y, seen(x)

    return trace(fn), around(lambda: C._set_cudnn_depthwise_kernel("cudnn"), X()), held


@case(eager="leaves-modes")
def put_back_to_what_it_was_not(trace):
    def fn(x):
        C._set_cudnn_depthwise_kernel("native")
        y = seen(x)
        C._set_cudnn_depthwise_kernel("auto")
        return y

    change = lambda: C._set_cudnn_depthwise_kernel("cudnn")  # noqa: E731
    return trace(fn), [change, call(X()), change, call(X()), change, call(X())], held


@case(hits=2)
def all_sizes(trace):
    def fn(x):
        with torch.backends.cudnn.flags(enabled=False):
            y = x * 2
        return y[: len(x) - 1]

    return trace(fn), [call(X(n)) for n in (3, 4, 5, 6)], held


@case(hits=2)
def set_by_name(trace):
    """The modules of torch.backends set them by descriptors that are written in Python."""

    def fn(x):
        before = B.cudnn.deterministic, B.cudnn.benchmark
        B.cudnn.deterministic, B.cudnn.benchmark = True, not before[1]
        y = seen(x)
        B.cudnn.deterministic, B.cudnn.benchmark = before
        return y, seen(x), B.cudnn.benchmark

    return trace(fn), around(lambda: setattr(B.cudnn, "benchmark", True), X()), held


def flagged(x):
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
        y = seen(x)
    return y, seen(x)


def test_programs_show_them(tmp_path):
    """A listing names them, a saved program keeps them, and what cannot have them says so."""
    flagged(X())  # which leaves the precisions set, as torch's context manager does
    fn = traced(flagged)
    for _ in range(2):
        fn(X())
    program = fn.program(X())
    assert "[cudnn.enabled=0, cudnn.allow_tf32=0]" in str(program)
    assert program.steps[0].modes.switches == (("cudnn.enabled", 0), ("cudnn.allow_tf32", 0))
    assert program.steps[1].modes.switches == ()
    with pytest.raises(NotImplementedError, match=r"runs under a switch of its own, cudnn.enabled"):
        program.to_fx()
    with pytest.raises(NotImplementedError, match="cannot be timed: it sets switches of torch"):
        program.submodules()
    lazytrace.save(fn, tmp_path / "kept.zip", X())
    loaded, before = lazytrace.load(tmp_path / "kept.zip"), held()
    for _ in range(2):
        assert all(map(torch.equal, loaded(X()), flagged(X())))
    assert held() == before


@cases.parametrize
def test_switch_inside(make, expected):
    check(make, **expected)
