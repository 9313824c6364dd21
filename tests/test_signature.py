"""What makes two calls one signature, and what keeps them apart."""

from __future__ import annotations

import collections
import contextlib
import enum
import math

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lazytrace import traced
from tests.soundness.test_modes import default_dtype, deterministic

X = torch.tensor([-1.0, 0.5, 2.0])
NAN = math.nan


def recordings(fn, *calls) -> int:
    """How many of these calls record; each is a tuple of positional arguments, run twice."""
    for args in calls:
        for _ in range(2):
            fn(*args)
    assert not fn.stats().eager, fn.stats().eager
    assert fn.stats().hits == 2 * len(calls) - fn.stats().recordings
    return fn.stats().recordings


def uses(x, value):
    return x * 1, value


def look(x):
    return x * 2 if isinstance(x, torch.Tensor) else [t * 2 for t in x]


# ---------------------------------------------------------------- binding
def test_spellings_of_one_call():
    @traced
    def step(x, scale=2.0, *, shift=1.0):
        return x * scale + shift

    step(X)
    step(x=X)
    step(X, 2.0)
    step(X, scale=2.0)
    step(shift=1.0, scale=2.0, x=X)
    assert step.cache_info() == (4, 1, 64, 1)
    assert torch.equal(step(X, shift=5.0), X * 2 + 5)
    assert step.stats().recordings == 2


def test_spellings_of_one_method_call():
    class Net:
        @traced
        def run(self, x, scale=2.0):
            return x * scale

    net = Net()
    net.run(X), net.run(x=X, scale=2.0), net.run(X, 2.0)
    assert torch.equal(Net.run(net, X, 2.0), X * 2)
    assert net.run.cache_info().currsize == 1


def test_a_parameter_called_self_by_keyword():
    fn = traced(lambda self, x: self * x)
    for _ in range(2):
        assert torch.equal(fn(self=X, x=2), X * 2)
    assert fn.program(self=X, x=2).operators == 1


def test_positional_only_and_the_same_name_in_the_rest():
    @traced
    def step(x, /, **rest):
        return x * rest["x"]

    for _ in range(2):
        assert torch.equal(step(X, x=3), X * 3)
        assert torch.equal(step(X, x=4), X * 4)
    assert step.cache_info() == (2, 2, 64, 2)


def test_star_arguments():
    @traced
    def total(*xs, **named):
        return sum(xs) + sum(named.values())

    for _ in range(2):
        assert torch.equal(total(X, X * 1), X * 2)
        assert torch.equal(total(X, X * 1, a=X * 1), X * 3)
        assert torch.equal(total(a=X, b=X * 1), X * 2)
    assert total.cache_info() == (3, 3, 64, 3)


def test_order_of_keyword_arguments_where_the_function_can_see_it():
    @traced
    def first(**named):
        return next(iter(named.values())) * 2

    a, b = torch.tensor(1.0), torch.tensor(5.0)
    for _ in range(2):
        assert float(first(a=a, b=b)) == 2.0
        assert float(first(b=b, a=a)) == 10.0


def test_changed_defaults():
    def step(x, scale=2.0, *, shift=1.0):
        return x * scale + shift

    made = traced(step)
    made(X), made(X)
    step.__defaults__ = (3.0,)
    assert torch.equal(made(X), X * 3 + 1)
    step.__kwdefaults__ = {"shift": 4.0}
    assert torch.equal(made(X), X * 3 + 4)
    step.__kwdefaults__["shift"] = 6.0
    assert torch.equal(made(X), X * 3 + 6)


# ---------------------------------------------------------------- plain values
NUMBERS = [True, 1, 1.0, 0, False, 0.0, -0.0, NAN, math.inf, -math.inf, 1j, complex(1, -0.0), 2**70]
PLAIN = [*NUMBERS, "1", "", b"1", None]


def same(a, b) -> bool:
    return type(a) is type(b) and repr(a) == repr(b)


def test_plain_values_are_apart_by_type_and_value():
    fn = traced(uses, dynamic=False)
    for value in PLAIN:
        for _ in range(2):
            assert same(fn(X, value)[1], value)
    assert fn.cache_info()[:2] == (len(PLAIN), len(PLAIN))


def test_a_nan_is_the_same_object():
    fn, other = traced(uses), float("nan")
    assert recordings(fn, (X, NAN), (X, other), (X, NAN), (X, -NAN)) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.float32, torch.float64),
        (torch.device("cpu"), torch.device("meta")),
        (torch.strided, torch.sparse_coo),
        (slice(0, 2), slice(0, 3)),
        (slice(0, 2), slice(0, 2, None)),
        (range(3), range(4)),
        (int, float),
        (torch.relu, torch.tanh),
        (..., None),
        (frozenset([1]), frozenset([2])),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_other_values(one, other):
    fn = traced(uses)
    for _ in range(3):
        for value in (one, other):
            out, back = fn(X, value)
            assert back == value
            assert type(back) is type(value)
            assert torch.equal(out, X)


def test_enums():
    class Mode(enum.Enum):
        DOUBLE = 2
        TRIPLE = 3

    fn = traced(lambda x, mode: x * mode.value)
    for _ in range(2):
        assert torch.equal(fn(X, Mode.DOUBLE), X * 2)
        assert torch.equal(fn(X, Mode.TRIPLE), X * 3)


def test_subclasses_of_numbers():
    class Loud(float):
        def __mul__(self, other):
            return other * 100

        __rmul__ = __mul__

    fn = traced(lambda x, k: k * x)
    for _ in range(2):
        assert torch.equal(fn(X, 2.0), X * 2)
        assert torch.equal(fn(X, Loud(2.0)), X * 100)


def test_objects_by_what_is_read_of_them():
    class Config:
        def __init__(self, scale, name):
            self.scale, self.name = scale, name

    fn = traced(lambda x, config: x * config.scale)
    config = Config(2.0, "a")
    fn(X, config), fn(X, config)
    config.name = "b"
    assert torch.equal(fn(X, config), X * 2)
    assert fn.stats().hits == 2
    config.scale = 3.0
    assert torch.equal(fn(X, config), X * 3)
    assert torch.equal(fn(X, Config(5.0, "c")), X * 5)


def test_unhashable_objects():
    class Config:
        __hash__ = None

        def __init__(self, scale):
            self.scale = scale

    fn = traced(lambda x, config: x * config.scale)
    for _ in range(2):
        for scale in (2.0, 3.0):
            assert torch.equal(fn(X, Config(scale)), X * scale)


# ---------------------------------------------------------------- tensors
def non_leaf():
    return X.clone().requires_grad_() * 1


def inference():
    with torch.inference_mode():
        return X.clone()


VARIANTS = {
    "plain": lambda: X.clone(),
    "dtype": lambda: X.double(),
    "shape": lambda: X[:2].clone(),
    "rank": lambda: X.reshape(1, 3).clone(),
    "scalar": lambda: torch.tensor(1.0),
    "empty": lambda: torch.ones(0),
    "strides": lambda: torch.arange(6.0)[::2],
    "expanded": lambda: torch.ones(1).expand(3),
    "requires_grad": lambda: X.clone().requires_grad_(),
    "non-leaf": non_leaf,
    "parameter": lambda: torch.nn.Parameter(X.clone()),
    "frozen parameter": lambda: torch.nn.Parameter(X.clone(), requires_grad=False),
    "complex": lambda: X.to(torch.complex64),
    "conjugate": lambda: X.to(torch.complex64).conj(),
    "negative": lambda: X.to(torch.complex64).conj().imag,
    "inference": inference,
    "integer": lambda: X.int(),
}


def about(t) -> tuple:
    return (
        t.dtype, t.shape, t.stride(), t.device, t.requires_grad, t.grad_fn is None, t.is_conj(), t.is_neg(),
        t.is_inference(),
    )  # fmt: skip


@pytest.mark.parametrize("one", VARIANTS)
@pytest.mark.parametrize("other", ["plain", "requires_grad", "strides", "conjugate"])
def test_kinds_of_tensors_are_apart(one, other):
    if one == other:
        one = "plain" if other != "plain" else "shape"
    fn = traced(lambda x: (x * 2, type(x).__name__, x.is_leaf))
    for _ in range(2):
        for name in (one, other):
            x = VARIANTS[name]()
            out, kind, leaf = fn(x)
            plain = x * 2
            assert about(out) == about(plain)
            assert (kind, leaf) == (type(x).__name__, x.is_leaf)
            assert torch.equal(out, plain)
    assert fn.cache_info() == (2, 2, 64, 2), fn.stats()


def test_devices_are_apart():
    fn = traced(lambda x: x * 2)
    for _ in range(3):
        assert torch.equal(fn(X), X * 2)
        assert fn(X.to("meta")).device.type == "meta"
    assert fn.stats().hits >= 2


def test_buffers_where_the_function_asks():
    fn = traced(lambda x: x * (2 if isinstance(x, torch.nn.Buffer) else 3))
    for _ in range(2):
        assert torch.equal(fn(X.clone()), X * 3)
        assert torch.equal(fn(torch.nn.Buffer(X.clone())), X * 2)


def test_values_and_names_of_tensors_do_not_matter():
    fn = traced(look)
    assert recordings(fn, (X,), (X + 1,), (torch.zeros(3),), (torch.full((3,), NAN),)) == 1


def test_memory_format():
    fn = traced(lambda x: x.relu())
    x = torch.randn(2, 3, 4, 4)
    last = x.to(memory_format=torch.channels_last)
    for _ in range(2):
        assert fn(x).stride() == (48, 16, 4, 1)
        assert fn(last).is_contiguous(memory_format=torch.channels_last)
    assert fn.stats().recordings == 2


def test_views_in_and_out_of_memory_of_their_own():
    fn = traced(look)
    base = torch.arange(6.0)
    assert recordings(fn, (base[:3],), (base[3:],)) == 1


# ---------------------------------------------------------------- which tensors are the same
def test_the_same_tensor_twice():
    fn = traced(lambda a, b: a.add_(1) + b)
    for _ in range(2):
        x = X.clone()
        assert torch.equal(fn(x, x), (X + 1) * 2)
        assert torch.equal(fn(X.clone(), X.clone()), X * 2 + 1)
    assert fn.cache_info() == (2, 2, 64, 2)


def test_views_that_share_memory():
    fn = traced(lambda a, b: a.add_(1) + b)
    for _ in range(2):
        base = torch.arange(4.0)
        assert torch.equal(fn(base[:3], base[1:]), torch.tensor([1.0 + 2, 2.0 + 3, 3.0 + 3]))
        assert torch.equal(fn(torch.arange(3.0), torch.arange(3.0)), torch.tensor([1.0, 3.0, 5.0]))
        base = torch.arange(3.0)
        assert torch.equal(fn(base, base.view(3)), torch.tensor([2.0, 4.0, 6.0]))
    assert fn.stats().eager == {}
    assert fn.stats().hits == 3


def test_same_pairing_among_three():
    fn = traced(lambda a, b, c: a.add_(1) + b + c)
    for _ in range(2):
        x, y = torch.ones(1), torch.ones(1)
        assert float(fn(x, x, y)) == 5.0
        x, y = torch.ones(1), torch.ones(1)
        assert float(fn(x, y, x)) == 5.0
        x, y = torch.ones(1), torch.ones(1)
        assert float(fn(x, y, y)) == 4.0
    assert fn.cache_info() == (3, 3, 64, 3)


def test_argument_that_is_also_state():
    state = torch.ones(3)

    @traced
    def fn(x):
        x.add_(1)
        return state * 2

    for _ in range(2):
        assert torch.equal(fn(torch.ones(3)), state * 2)
    expected = (state + 1) * 2
    assert torch.equal(fn(state), expected)
    assert torch.equal(fn(state), expected + 2)


# ---------------------------------------------------------------- containers
Pair = collections.namedtuple("Pair", "a b")
Other = collections.namedtuple("Other", "a b")


class Mine(list):
    pass


def nested(x):
    return {"a": [x, (x + 1, {"b": 2})], "c": Pair(x * 2, None)}


def test_nested_containers():
    @traced
    def fn(data):
        x, (y, inner) = data["a"]
        return {"out": [x + y * inner["b"], data["c"].a], "c": data["c"]}

    for _ in range(3):
        out = fn(nested(X))
        assert torch.equal(out["out"][0], X + (X + 1) * 2)
        assert torch.equal(out["out"][1], X * 2)
        assert type(out["c"]) is Pair
    assert fn.cache_info() == (2, 1, 64, 1)
    changed = nested(X)
    changed["a"][1][1]["b"] = 3
    assert torch.equal(fn(changed)["out"][0], X + (X + 1) * 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([X, X * 1], (X, X * 1)),
        ([X, X * 1], Mine([X, X * 1])),
        ((X, X * 1), Pair(X, X * 1)),
        (Pair(X, X * 1), Other(X, X * 1)),
        ([X], [X, X * 1]),
        ([X, [X * 1]], [[X], X * 1]),
        ({"a": X, "b": X * 1}, {"a": X, "c": X * 1}),
        ({"a": X}, collections.OrderedDict(a=X)),
        ({1: X}, {True: X}),
        ({1: X}, {1.0: X}),
        ([], ()),
        ([X, 1], [X, True]),
        ([X, None], [X]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_structures_are_apart(one, other):
    @traced
    def kinds(x, data):
        return x * 2, show(data)

    def show(data):
        if isinstance(data, torch.Tensor):
            return "tensor"
        if isinstance(data, dict):
            return type(data).__name__, tuple((repr(key), show(value)) for key, value in data.items())
        if isinstance(data, list | tuple):
            return type(data).__name__, tuple(show(value) for value in data)
        return repr(data)

    for _ in range(2):
        for data in (one, other):
            assert kinds(X.clone(), data)[1] == show(data)
    assert kinds.stats().hits in (0, 1, 2)


def test_structures_that_differ_record_apart():
    fn = traced(lambda data: [t * 2 for t in data])
    assert recordings(fn, ([X, X * 1],), ((X, X * 1),), ([X],), (Pair(X, X * 1),)) == 4


def test_dict_order():
    fn = traced(lambda data: list(data.values())[0] * 2)  # noqa: RUF015 (what people write)
    a, b = torch.tensor(1.0), torch.tensor(5.0)
    for _ in range(2):
        assert float(fn({"a": a, "b": b})) == 2.0
        assert float(fn({"b": b, "a": a})) == 10.0
    assert fn.stats().hits == 2


# ---------------------------------------------------------------- ambient state
AMBIENT = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast without cache": lambda: torch.autocast("cpu", cache_enabled=False),
    "default dtype": lambda: default_dtype(torch.float64),
    "deterministic": deterministic,
}


@pytest.mark.parametrize("name", AMBIENT)
def test_ambient_state(name):
    def step(x, w):
        return x @ w + x.new_ones(3) * torch.tensor(0.1, device=x.device)

    fn = traced(step)
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, 3)
    for _ in range(3):
        for around in (contextlib.nullcontext, AMBIENT[name]):
            with around():
                expected, out = step(x, w), fn(x, w)
            assert about(out) == about(expected)
            assert torch.equal(out, expected)
    stats = fn.stats()
    assert (stats.hits, stats.recordings, stats.eager) == (4, 2, {})


def test_autocast_dtypes_are_apart():
    fn = traced(lambda x: x @ x)
    x = torch.randn(3, 3)
    for _ in range(2):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert fn(x).dtype is dtype
    assert fn.cache_info() == (2, 2, 64, 2)


def test_default_device_makes_new_tensors_there():
    fn = traced(lambda x: torch.ones(3))
    for _ in range(2):
        assert fn(X).device.type == "cpu"
        with torch.device("meta"):
            assert fn(X).device.type == "meta"


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) + (100 if func is torch.sin else 0)


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) + (100 if func is torch.ops.aten.sin.default else 0)


FUNCTION_MODE = "a torch function mode is active (FunctionMode)"
DISPATCH_MODE = "a torch dispatch mode is active"


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(FunctionMode, FUNCTION_MODE), (DispatchMode, DISPATCH_MODE)],
    ids=["function", "dispatch"],
)
@pytest.mark.parametrize("function", [torch.sin, lambda x: torch.sin(x)], ids=["builtin", "function"])
def test_active_modes_run_eagerly(function, mode, reason):
    fn = traced(function)
    fn(X), fn(X)
    for _ in range(3):
        with mode():
            out = fn(X)
        assert torch.equal(out, X.sin() + 100)
    assert fn.stats().eager == {reason: 3}
    assert torch.equal(fn(X), X.sin())
    assert fn.stats().hits == 2


def test_mode_around_the_first_call_leaves_no_trace():
    fn = traced(lambda x: torch.sin(x))
    with FunctionMode():
        fn(X)
    assert fn.cache_info().currsize == 0
    assert torch.equal(fn(X), X.sin())
