"""What is said of each retrace and of each eager call, word for word, with the place that it is about."""

from __future__ import annotations

import re
import sys
import textwrap

import pytest
import torch
from torch import nn

import lazytrace
from lazytrace import traced
from tests.processes import python

X = torch.tensor([-1.0, 0.5, 2.0])
SCALE = 2.0
WEIGHT = torch.ones(3)


class Settings:
    unit = 1.0

    def __init__(self) -> None:
        self.shift = 1.0


SETTINGS = Settings()


def why(fn) -> list[str]:
    """The retrace reasons, oldest first; every one was caused by one retrace."""
    stats = fn.stats()
    assert not stats.eager, stats.eager
    assert stats.retraces == sum(reason.count for reason in stats.retrace_reasons)
    return [reason.text for reason in stats.retrace_reasons]


def here(fn, offset: int = 0) -> str:
    """file:line of the line that is `offset` lines below the first one, decorators included."""
    return f"test_reasons.py:{fn.__code__.co_firstlineno + offset}"


# ---------------------------------------------------------------- arguments
@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (torch.ones(64, 3), torch.ones(13, 3), "x.shape[0] 64 -> 13"),
        (torch.ones(2, 3), torch.ones(4, 5), "x.shape[0] 2 -> 4; x.shape[1] 3 -> 5"),
        (torch.ones(2, 3), torch.ones(2), "x.ndim 2 -> 1"),
        (torch.ones(3), torch.ones(3).double(), "x.dtype float32 -> float64"),
        (torch.ones(3), torch.ones(3, requires_grad=True), "x.requires_grad False -> True"),
        (torch.ones(3), torch.ones(3).to_sparse(), "x.layout strided -> sparse_coo"),
        (
            torch.ones(2, 3),
            torch.ones(3, 2).t(),
            "x.is_contiguous() True -> False; x.stride() nothing -> (1, 2)",
        ),
        (
            torch.ones(3, requires_grad=True),
            torch.ones(3, requires_grad=True) * 1,
            "x.is_leaf True -> False",
        ),
        (
            torch.ones(3, requires_grad=True),
            nn.Parameter(torch.ones(3)),
            "type(x) Tensor -> Parameter",
        ),
        (2, 3, "x 2 -> 3"),
        (1, True, "x 1 -> True"),
        (1, 1.0, "x 1 -> 1.0"),
        (0.0, -0.0, "x 0.0 -> -0.0"),
        ("a", "b", "x 'a' -> 'b'"),
        (None, 1, "x None -> 1"),
        ([X], [X, X * 1], "len(x) 1 -> 2"),
        ([X], (X,), "type(x) list -> tuple"),
        ({"a": 1}, {"a": 2}, "x['a'] 1 -> 2"),
        ([X, [3]], [X, [4]], "x[1][0] 3 -> 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_changed_argument(first, second, reason):
    @traced
    def step(x, w):
        return (x * 1 if isinstance(x, torch.Tensor) else x), w * 2

    step(first, X)
    step(first, X)
    step(second, X)
    (text,) = why(step) or [""]
    assert set(reason.split("; ")) <= set(text.split("; "))


def test_line_of_the_report():
    @traced(name="line_of_the_report")
    def step(x, w):
        return torch.tanh(x @ w)

    w = torch.ones(3, 3)
    step(torch.ones(64, 3), w)
    step(torch.ones(13, 3), w)
    assert "  line_of_the_report(x, w): x.shape[0] 64 -> 13   x1, " in lazytrace.report()


def test_the_closest_known_signature_explains():
    @traced
    def step(x, k):
        return x * k

    step(torch.ones(64, 3), 1)
    step(torch.ones(64, 3).double(), 2)
    step(torch.ones(13, 3), 1)
    assert why(step)[1] == "x.shape[0] 64 -> 13"
    step(torch.ones(13, 3), 2)
    assert why(step)[2] == "k 1 -> 2"


def test_the_same_reason_is_counted():
    step = traced(lambda x, k: x * k)
    step(X, 1), step(X, 2)
    step.cache_clear()
    step(X, 1), step(X, 2)
    (reason,) = step.stats().retrace_reasons
    assert (reason.text, reason.count) == ("k 1 -> 2", 2)


def test_sharing_of_memory():
    step = traced(lambda x, w: x + w)
    x = X.clone()
    step(x, X.clone())
    step(x, x)
    (text,) = why(step)
    assert text == "memory of w nothing -> shared with x"


def test_defaults_and_star_arguments_have_names():
    @traced(dynamic=False)
    def step(x, *rest, scale=2.0, **named):
        return x * scale * sum(rest) * sum(named.values())

    step(X, 1, a=1), step(X, 2, a=1), step(X, 1, a=2), step(X, 1, a=1, scale=3.0)
    assert why(step) == ["args[0] 1 -> 2", "a 1 -> 2", "scale 2.0 -> 3.0"]


# ---------------------------------------------------------------- ambient state
def test_grad_mode():
    step = traced(lambda x: x * 2)
    step(X)
    with torch.no_grad():
        step(X)
    assert why(step) == ["grad_mode True -> False"]


def test_inference_mode():
    step = traced(lambda x: x * 2)
    with torch.no_grad():
        step(X)
    with torch.inference_mode():
        step(X)
    (text,) = why(step)
    assert "inference_mode False -> True" in text.split("; ")


def test_a_parameter_that_became_a_result(capfd):
    """A tensor with a history has no `.grad` to ask for: torch warns of that."""
    weight = nn.Parameter(torch.ones(3))
    state = {"w": weight}
    f = traced(lambda x: x * state["w"])
    f(torch.ones(3))
    state["w"] = weight * 2
    f(torch.ones(3))
    (reason,) = f.stats().retrace_reasons
    assert "is_leaf True -> False" in reason.text
    assert "leaf" not in capfd.readouterr().err


def test_autocast():
    step = traced(lambda x: x * 2)
    step(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step(X)
    (text,) = why(step)
    assert "autocast" in text
    assert "cpu" in text.lower()
    assert "bfloat16" in text.lower()


def test_default_dtype():
    step = traced(lambda x: x * 2)
    step(X)
    torch.set_default_dtype(torch.float64)
    try:
        step(X)
    finally:
        torch.set_default_dtype(torch.float32)
    (text,) = why(step)
    assert "default_dtype" in text
    assert "64" in text or "ouble" in text


def test_deterministic_algorithms():
    step = traced(lambda x: x * 2)
    step(X)
    torch.use_deterministic_algorithms(True)
    try:
        step(X)
    finally:
        torch.use_deterministic_algorithms(False)
    (text,) = why(step)
    assert "deterministic" in text
    assert text.endswith("False -> True")


# ---------------------------------------------------------------- state
def test_closure():
    scale = 2.0

    @traced
    def step(x):
        return x * scale

    step(X), step(X)
    scale = 3.0
    assert torch.equal(step(X), X * 3)
    assert why(step) == [f"scale 2.0 -> 3.0 (closure of step, {here(step)})"]
    assert f"step(x): scale 2.0 -> 3.0 (closure of step, {here(step)})   x1, " in lazytrace.report()


def test_closure_of_a_helper():
    scale = 2.0

    def helper(x):
        return x * scale

    step = traced(lambda x: helper(x) + 1)
    step(X)
    scale = 3.0
    assert torch.equal(step(X), X * 3 + 1)
    (text,) = why(step)
    assert text == f"scale 2.0 -> 3.0 (closure of helper, {here(helper)})"


def test_global(monkeypatch):
    @traced
    def step(x):
        return x * SCALE

    step(X), step(X)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert torch.equal(step(X), X * 3)
    assert why(step) == ["global SCALE 2.0 -> 3.0"]


def test_attribute_of_a_global(monkeypatch):
    @traced
    def step(x):
        return x + SETTINGS.shift

    step(X), step(X)
    monkeypatch.setattr(SETTINGS, "shift", 5.0)
    assert torch.equal(step(X), X + 5)
    (text,) = why(step)
    assert text == "global SETTINGS.shift 1.0 -> 5.0"


def test_attribute_that_hides_one_of_the_class():
    settings = Settings()

    @traced
    def step(x):
        return x + settings.unit

    step(X), step(X)
    settings.unit = 5.0
    assert torch.equal(step(X), X + 5)
    (text,) = why(step)
    assert text.startswith("settings.unit 1.0 -> 5.0")


def test_attribute_of_self():
    class Net:
        def __init__(self):
            self.scale, self.options = 2.0, {"deep": [1.0]}

        @traced
        def run(self, x):
            return x * self.scale + self.options["deep"][0]

    net = Net()
    net.run(X), net.run(X)
    net.scale = 3.0
    assert torch.equal(net.run(X), X * 3 + 1)
    net.options["deep"][0] = 4.0
    assert torch.equal(net.run(X), X * 3 + 4)
    assert why(Net.run) == ["self.scale 2.0 -> 3.0", "self.options['deep'][0] 1.0 -> 4.0"]


def test_attribute_of_an_argument():
    @traced
    def step(x, settings):
        return x + settings.shift

    settings = Settings()
    step(X, settings)
    settings.shift = 7.0
    assert torch.equal(step(X, settings), X + 7)
    (text,) = why(step)
    assert text == "settings.shift 1.0 -> 7.0"


def test_global_tensor(monkeypatch):
    @traced
    def step(x):
        return x * WEIGHT

    step(X), step(X)
    monkeypatch.setattr(sys.modules[__name__], "WEIGHT", torch.full((1,), 2.0))
    assert torch.equal(step(X), X * 2)
    (text,) = why(step)
    assert text == "global WEIGHT.shape[0] 3 -> 1"


def test_replaced_function(monkeypatch):
    holder = Settings()
    holder.activation = torch.relu
    step = traced(lambda x: holder.activation(x))
    step(X), step(X)
    holder.activation = torch.tanh
    assert torch.equal(step(X), X.tanh())
    (text,) = why(step)
    assert re.fullmatch(r"holder\.activation .*relu.* -> .*tanh.*", text)


@traced
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x) * (1 if self.training else 2)


def test_training():
    net = Net()
    net(X), net(X)
    net.eval()
    net(X)
    assert why(Net.forward) == ["self.training True -> False"]
    assert "  Net.forward: self.training True -> False   x1, " in lazytrace.report()


def test_value_that_a_branch_read():
    @traced
    def step(x):
        if x.sum() > 0:
            return x * 2
        return x * 3

    step(X), step(X), step(-X)
    (text,) = why(step)
    assert text.endswith(f"True -> False ({here(step, 2)})")


def test_recorded_again_after_an_eviction():
    step = traced(lambda x: x * 2, cache_limit=1, dynamic=False)
    step(torch.ones(1)), step(torch.ones(2)), step(torch.ones(1))
    assert why(step) == ["x.shape[0] 1 -> 2", "x.shape[0] 2 -> 1"]


def test_sizes_are_no_reason_beside_another_where_a_program_fits_them_all():
    step = traced(lambda x, k: x * len(k), dynamic=True)
    step(torch.ones(2), "a"), step(torch.ones(3), "a"), step(torch.ones(4), "b")
    assert why(step) == ["k 'a' -> 'b'"]
    (known, _) = step.explain(torch.ones(5), "c").candidates
    assert [str(reason) for reason in known.reasons] == ["k 'b' -> 'c'"]
    apart = traced(lambda x, k: x * len(k), dynamic=False)
    apart(torch.ones(2), "a"), apart(torch.ones(4), "b")
    assert why(apart) == ["x.shape[0] 2 -> 4; k 'a' -> 'b'"]


def test_first_calls_are_no_retraces():
    step = traced(lambda x: x * 2)
    step(X), step(X)
    assert why(step) == []
    assert step.stats().retraces == 0


# ---------------------------------------------------------------- eager calls
def values(x):
    return x * len(x.repeat(99, 1).tolist()[0])


def numpy(x):
    return x * float(x.numpy()[:1].data[0])


def from_numpy(x):
    import numpy as np

    return x * torch.from_numpy(np.frombuffer(bytearray(12), dtype=np.float32))


def helper_in_between(x):
    return values(x) + 1


class Shown:
    def __str__(self):
        return "shown"


def prints(x):
    print(*[Shown()])
    return x * 2


@pytest.mark.parametrize(
    ("function", "reason", "offset"),
    [
        (values, "calls .tolist() of a tensor", 1),
        (numpy, "computes with a numpy array", 1),
    ],
)
def test_eager_reason(function, reason, offset):
    fn = traced(function)
    for _ in range(3):
        assert torch.equal(fn(X), function(X))
    assert fn.stats().eager == {f"{reason} ({here(function, offset)})": 3}


def test_eager_reason_in_a_helper_says_the_line_of_the_helper():
    fn = traced(helper_in_between)
    fn(X)
    assert list(fn.stats().eager) == [f"calls .tolist() of a tensor ({here(values, 1)})"]


@pytest.mark.parametrize("function", [from_numpy, prints])
def test_eager_reasons_say_where(function):
    fn = traced(function)
    for _ in range(2):
        assert torch.equal(fn(X), function(X))
    ((text, count),) = fn.stats().eager.items()
    assert count == 2
    lines = [here(function, offset) for offset in (1, 2, 3)]
    assert any(text.endswith(f"({line})") for line in lines), text


def test_eager_calls_in_the_report():
    fn = traced(values, name="eager_in_the_report")
    fn(X), fn(X)
    line = f"  eager_in_the_report: calls .tolist() of a tensor ({here(values, 1)})   x2"
    assert line in lazytrace.report().splitlines()


# ---------------------------------------------------------------- the report at exit
PROGRAM = """
import torch, lazytrace
from lazytrace import traced

scale = 2.0

@traced
def step(x, w):
    return torch.tanh(x @ w) * scale

@traced
def reads(x):
    return x * len(x.repeat(99, 1).tolist()[0])

@traced(cache_limit=1, dynamic=False)
def small(x):
    return x * 2

@traced
def never(x):
    return x

w = torch.ones(3, 3)
for n in (64, 64, 13):
    step(torch.ones(n, 3), w)
scale = 3.0
step(torch.ones(64, 3), w)
for _ in range(3):
    reads(torch.ones(2))
for n in (1, 2, 1):
    small(torch.ones(n))
print("done")
"""

REPORT = [
    "lazytrace: 3 functions, 10 calls: 1 hit (10.0 %), 6 recordings (4 retraces, {ms}), 3 eager, 0 inlined",
    "step(x, w): x.shape[0] 64 -> 13   x1, {ms}, called at program.py:25",
    "step(x, w): global scale 2.0 -> 3.0   x1, {ms}, called at program.py:27",
    "small(x): x.shape[0] 1 -> 2   x1, {ms}, called at program.py:31",
    "small(x): x.shape[0] 2 -> 1   x1, {ms}, called at program.py:31",
    "reads: calls .tolist() of a tensor (program.py:13)   x3",
    "reads: ran eagerly 3 times, calls .tolist() of a tensor (program.py:13): "
    "move it behind the traced function, or wrap the helper that does it in lazytrace.opaque.",
    "small: cache_limit=1 was reached (2 evictions); cache_limit=2 would have been enough",
]


def at_exit(path, extra: str = "", **variables: str) -> str:
    """What a run of PROGRAM prints to stderr."""
    file = path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM) + extra)
    done = python(str(file), **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    return done.stderr


def without_times(text: str) -> list[str]:
    return [re.sub(r"\d+\.\d ms", "{ms}", line).strip() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("extra", "variables"),
    [("", {"LAZYTRACE_REPORT": "1"}), ("lazytrace.report_at_exit()\n", {})],
    ids=["environment", "function"],
)
def test_report_at_exit(tmp_path, extra, variables):
    lines = without_times(at_exit(tmp_path, extra, **variables))
    for line in REPORT:
        assert line in lines, "\n".join(lines)
    assert not any(line.startswith("never") for line in lines)


def test_nothing_at_exit_unless_asked(tmp_path):
    assert at_exit(tmp_path) == ""
    assert at_exit(tmp_path, "lazytrace.report_at_exit()\nlazytrace.report_at_exit(False)\n") == ""
