"""Grad mode, inference mode, autocast, defaults, devices, deterministic flags: around the call and inside."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

from tests.soundness.runner import Cases, X, call, check, restore

cases = Cases()


def under(context, function):
    """Calls `function` inside a context."""

    def use(*args):
        with context():
            return function(*args)

    return use


def toggled(name, context, function, x=lambda: X(grad=True), **expected):
    def make(trace):
        fn = trace(function)
        inside = under(context, fn)
        a = x()
        return fn, [call(a), call(a), call(a).of(inside), call(a).of(inside), call(a), call(a).of(inside)]

    make.__name__ = name
    cases(make, **(expected or {"hits": 2}))


def linear(x):
    return torch.nn.functional.linear(x, torch.ones(2, 3)) * 2


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


toggled("no_grad", torch.no_grad, lambda x: x * 2)
toggled("enable_grad", torch.enable_grad, lambda x: x * 2)
toggled("inference_mode", torch.inference_mode, lambda x: (x * 2, x[1:], torch.tensor([1.0])))
toggled("autocast", autocast, lambda x: x @ torch.ones(3, 2))
toggled("autocast_half", lambda: torch.autocast("cpu", dtype=torch.float16), linear)
toggled("autocast_off_in_on", lambda: torch.autocast("cpu", enabled=False), linear)
toggled("device_context", lambda: torch.device("meta"), lambda x: torch.zeros(2), hits=2)
toggled(
    "anomaly_read",
    lambda: torch.autograd.set_detect_anomaly(True),
    lambda x: x * 2 if torch.is_anomaly_enabled() else x * 3,
)
toggled("mode_read", torch.no_grad, lambda x: x * 2 if torch.is_grad_enabled() else x * 3)
toggled(
    "inference_mode_read",
    torch.inference_mode,
    lambda x: x * 2 if torch.is_inference_mode_enabled() else x * 3,
)
toggled("autocast_read", autocast, lambda x: x * 2 if torch.is_autocast_enabled("cpu") else x * 3)


@contextlib.contextmanager
def default_dtype(dtype=torch.float64):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def debug_mode():
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


toggled(
    "default_dtype",
    default_dtype,
    lambda x: (torch.zeros(2), torch.tensor(1.0), x.sum() + torch.tensor([1.0])),
)
toggled("default_dtype_read", default_dtype, lambda x: x.to(torch.get_default_dtype()))
toggled("default_device", default_device, lambda x: torch.zeros(2), hits=2)
toggled(
    "default_device_read",
    default_device,
    lambda x: str(torch.get_default_device()),
    hits=2,
    eager="calls .__get__() of a getset_descriptor",
)
toggled(
    "deterministic", deterministic, lambda x: x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3
)
toggled("deterministic_debug", debug_mode, lambda x: x * (2 + torch.get_deterministic_debug_mode()), hits=1)
toggled(
    "threads_read",
    contextlib.nullcontext,
    lambda x: x * torch.get_num_threads(),
    eager="calls-unseen-function",
)
toggled(
    "mkldnn_flags",
    lambda: torch.backends.mkldnn.flags(enabled=False),
    lambda x: x * 2 if torch.backends.mkldnn.enabled else x * 3,
    hits=1,
)


def inside(name, function, x=lambda: X(grad=True), **expected):
    def make(trace):
        a = x()
        return trace(function), [call(a), restore, call(a), restore, call(a)]

    make.__name__ = name
    cases(make, **(expected or {"hits": 2}))


def part_without_grad(x):
    with torch.no_grad():
        y = x * 2
    return y + x


def grad_again_inside(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
        return y, z


@torch.no_grad()
def decorated(x):
    return x * 2


def inference_part(x):
    with torch.inference_mode():
        y = x.detach() * 2
    return y, y.is_inference()


def literal_in_inference_mode(x):
    with torch.inference_mode():
        return torch.tensor([1.0, 2.0])


def literal_without_grad(x):
    with torch.no_grad():
        t = torch.tensor([1.0, 2.0, 3.0])
        v = x[1:]
    return t * x, v


def autocast_region(x):
    with autocast():
        y = x @ torch.ones(3, 2)
        with torch.autocast("cpu", enabled=False):
            z = x @ torch.ones(3, 2)
    return y, z, x @ torch.ones(3, 2)


def autocast_decorated():
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def fn(x):
        return x @ torch.ones(3, 2)

    return fn


def leaves_grad_off(x):
    torch.set_grad_enabled(False)
    return x * 2


def leaves_grad_on(x):
    torch.set_grad_enabled(True)
    return x * 2


def leaves_autocast_on(x):
    torch.set_autocast_enabled("cpu", True)
    return x * 2


def leaves_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    return torch.zeros(2)


def leaves_deterministic(x):
    torch.use_deterministic_algorithms(True)
    return x * 2


def leaves_precision(x):
    torch.set_float32_matmul_precision("medium")
    return x * 2


def reads_precision(x):
    return x * (2 if torch.get_float32_matmul_precision() == "highest" else 3)


def leaves_backend_flag(x):
    torch.backends.mkldnn.enabled = False
    return x * 2


def leaves_anomaly(x):
    torch.autograd.set_detect_anomaly(True)
    return x * 2


def backend_flags_inside(x):
    with torch.backends.mkldnn.flags(enabled=False):
        return x @ torch.ones(3, 2), torch.backends.mkldnn.enabled


def device_inside(x):
    with torch.device("cpu"):
        return torch.zeros(2) + x[:2]


def set_grad_by_flag(x):
    with torch.set_grad_enabled(x.shape[0] > 5):
        return x * 2


def warned(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x * 2


inside("part_without_grad", part_without_grad)
inside("grad_again_inside", grad_again_inside)
inside("decorated_no_grad", decorated)
inside("inference_part", inference_part)
inside("literal_in_inference_mode", literal_in_inference_mode)
inside("literal_without_grad", literal_without_grad)
inside("autocast_region", autocast_region)
inside("autocast_decorated", autocast_decorated())
inside("leaves_grad_off", leaves_grad_off, eager="leaves-modes")
inside("leaves_autocast_on", leaves_autocast_on, eager="leaves-modes")
inside(
    "leaves_default_dtype",
    leaves_default_dtype,
    eager="calls-unseen-function",
)
inside(
    "leaves_deterministic",
    leaves_deterministic,
    eager="calls-unseen-function",
)
inside(
    "leaves_precision",
    leaves_precision,
    eager="calls-unseen-function",
)
inside(
    "reads_precision",
    reads_precision,
    eager="calls-unseen-function",
)
inside("leaves_backend_flag", leaves_backend_flag, eager="calls torch._C._set_mkldnn_enabled()")
inside(
    "leaves_anomaly",
    leaves_anomaly,
    eager="calls-unseen-function",
)
inside("backend_flags_inside", backend_flags_inside, eager="calls-unseen-function")
inside("device_inside", device_inside)
inside("set_grad_by_flag", set_grad_by_flag)
inside("warnings_caught", warned)


@cases(hits=2, eager="anomaly-mode")
def anomaly_mode_notes_stacks(trace):
    """Where a graph is made, torch writes down the place of each operator, which a replay would not have."""
    w = X(grad=True)
    fn = trace(lambda x: (x * w).sum())

    def use(x):
        with torch.autograd.set_detect_anomaly(True), torch.no_grad():
            without = fn(x)
        with torch.autograd.set_detect_anomaly(True):
            loss = fn(x)
            (grad,) = torch.autograd.grad(loss, w)
        return loss, grad, without

    return use, [call(X())] * 3


@cases(eager="leaves-modes")
def leaves_grad_on_under_no_grad(trace):
    fn = trace(leaves_grad_on)

    def use(x):
        with torch.no_grad():
            y = fn(x)
            return y, torch.is_grad_enabled(), x * 2

    return use, [call(X(grad=True))] * 3


@cases(eager="leaves-modes")
def grad_switched_off_and_seen_by_the_next_call(trace):
    fn = trace(leaves_grad_off)

    def use(x):
        fn(x)
        y = x * 3
        torch.set_grad_enabled(True)
        return y

    return use, [call(X(grad=True))] * 3


@cases(hits=2)
def inference_tensors_as_arguments(trace):
    with torch.inference_mode():
        inference = torch.ones(3)
    fn = trace(lambda x: (x * 2, x.is_inference()))
    return fn, [call(X()), call(X()), call(inference), call(inference)]


# The plain call raises, so there is nothing to replay.
@cases(eager="raised")
def inference_tensor_written_outside(trace):
    with torch.inference_mode():
        inference = torch.ones(3)

    def fn(x):
        x.add_(1)
        return x

    return trace(fn), [call(inference), call(inference)]


@cases(hits=5)
def autocast_weight_changed_between(trace):
    w = torch.ones(3, 2, requires_grad=True)
    fn = trace(lambda x: x @ w)

    def use(x):
        with autocast():
            return fn(x), fn(x)

    def change():
        with torch.no_grad():
            w.mul_(3)

    return use, [call(X()), call(X()), change, call(X())], lambda: w


@cases(hits=4)
def weight_cast_before_a_side_exit(trace):
    """Once in the caller's region, where eager casts it: gradients are added up in that order."""
    w = torch.nn.Parameter(torch.linspace(-1, 2, 9).view(3, 3))
    state = {"mean": 0.0}

    def fn(x):
        h = torch.nn.functional.linear(x, torch.cat([w, w, w]))[:, :3]
        h = torch.nn.functional.linear(h, w)
        state["mean"] = h.detach().mean().item()
        return h * 2 if state["mean"] > 0 else h

    step = trace(fn)

    def use(x):
        w.grad = None
        with autocast():
            loss = step(x).float().square().sum()
        loss.backward()
        return w.grad.clone(), w.grad._version  # how many of the sums were made in place

    return use, [call(k * torch.ones(2, 3)) for k in (1, 1, -1, -1, 1, -1, 1, 1)], lambda: (w, state)


@cases(hits=2)
def dispatch_mode_active(trace):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    fn = trace(lambda x: x * 2 + 1)
    return (
        fn,
        [call(X()), call(X()), call(X()).of(under(Count, fn)), call(X()).of(under(Count, fn)), call(X())],
        lambda: list(seen),
    )


@cases(hits=2)
def function_mode_active(trace):
    from torch.overrides import TorchFunctionMode

    seen = []

    class Count(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", "?"))
            return func(*args, **(kwargs or {}))

    fn = trace(lambda x: x * 2 + 1)
    return (
        fn,
        [call(X()), call(X()), call(X()).of(under(Count, fn)), call(X()).of(under(Count, fn)), call(X())],
        lambda: list(seen),
    )


@cases(eager="calls id()")
def dispatch_mode_inside(trace):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def fn(x):
        with Count():
            return x * 2 + 1

    return trace(fn), [call(X())] * 3, lambda: list(seen)


@cases(hits=2)
def function_mode_inside(trace):
    from torch.overrides import TorchFunctionMode

    class Double(TorchFunctionMode):
        factor = 2

        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * self.factor if isinstance(out, torch.Tensor) else out

    def fn(x):
        with Double():
            return torch.sin(x)

    return trace(fn), [call(X()), call(X()), lambda: None, call(X())]


@cases(hits=3)
def another_matmul_precision_between_calls(trace):
    """Read by kernels when they run, and part of no program."""
    fn = trace(lambda x: x @ x.T)

    def use(x, precision):
        torch.set_float32_matmul_precision(precision)
        return fn(x)

    return use, [call(X(), "highest"), call(X(), "medium"), call(X(), "high"), call(X(), "highest")]


# ---------------------------------------------------------------- casts of the caller's autocast
def with_casts(trace, fn, on, off):
    """A weight is written to by each call, while what the caller's autocast has cast of it stays."""
    linear = torch.nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(6.0).reshape(2, 3))

    def step(x):
        return fn(linear, x)

    calls = [call(torch.ones(4, 3) * (i + 1)) for i in range(4)]
    return trace(step), [*calls, on, *calls, off, *calls], lambda: linear.weight


def halve(linear):
    with torch.no_grad():
        linear.weight.mul_(0.5)


def around_casts(trace, fn):
    region = autocast()
    return with_casts(trace, fn, region.__enter__, lambda: region.__exit__(None, None, None))


def outside_of_regions(trace, fn):
    def off():
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()

    return with_casts(trace, fn, lambda: torch.set_autocast_enabled("cpu", True), off)


def casts_stay(linear, x):
    first = linear(x)
    halve(linear)
    return first, linear(x)


def casts_are_cleared(linear, x):
    first = linear(x)
    halve(linear)
    torch.clear_autocast_cache()
    return first, linear(x)


def casts_are_cleared_at_the_end(linear, x):
    first = linear(x)
    halve(linear)
    torch.clear_autocast_cache()
    return first


def regions_of_its_own(linear, x):
    with autocast():
        first = linear(x)
    halve(linear)
    with autocast():
        return first, linear(x)


CASTS = [casts_stay, casts_are_cleared, casts_are_cleared_at_the_end, regions_of_its_own]


@pytest.mark.parametrize("fn", CASTS, ids=lambda fn: fn.__name__)
def test_casts_of_the_caller(fn):
    cleared = {"eager": "calls clear_autocast_cache()"} if "cleared" in fn.__name__ else {}
    check(lambda trace: around_casts(trace, fn), hits=6 if cleared else 9, **cleared)


# Outside of all regions nothing clears what was cast, but the end of the next one.
@pytest.mark.parametrize("fn", CASTS, ids=lambda fn: fn.__name__)
def test_autocast_outside_of_regions(fn):
    check(lambda trace: outside_of_regions(trace, fn), hits=6, eager="leaves-modes")


def test_autocast_that_is_switched_inside_and_not_in_a_region():
    def switched(linear, x):
        torch.set_autocast_enabled("cpu", True)
        first = linear(x)
        torch.set_autocast_enabled("cpu", False)
        halve(linear)
        return first

    nothing = lambda: None  # noqa: E731
    check(
        lambda trace: with_casts(trace, switched, nothing, torch.clear_autocast_cache), eager="leaves-modes"
    )


@cases.parametrize
def test_modes(make, expected):
    check(make, **expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, autocast])
def test_default_modes_after_a_replay(context):
    def make(trace):
        def fn(x):
            with context():
                return (x.detach() * 2).sum()

        return trace(fn), [call(X())] * 3

    check(make, hits=2)
