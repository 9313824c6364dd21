"""Numbers of numpy's float64 in state, as a schedule with np.cos leaves them in an optimizer."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.runner import X, agree, call, check
from tests.soundness.test_numbers_by_numpy import told

VALUES = (8.0, 9.0, 7.5, 3.0, 0.25, 11.0, 6.0)


def with_state(use, values=VALUES, kind=np.float64):
    """`use(x, st)` at each of the values of `st.n`, which changes between calls."""

    def make(trace):
        st = types.SimpleNamespace(n=kind(values[0]), d={"k": kind(2.0)}, l=[kind(1.5)])
        fn = trace(lambda x: use(x, st))

        def set_and_call(x, value):
            st.n = kind(value)
            return fn(x)

        return set_and_call, [call(X(), value) for value in values], lambda: [told(st.n), st.d, st.l]

    return make


# ---------------------------------------------------------------- schedules
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "Adam for each": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, foreach=False, weight_decay=0.1),
    "fused AdamW": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_schedule_of_numpy(name, inside):
    def make(trace):
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        optimizer = OPTIMIZERS[name](layer.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / 40))
        )

        def step(x):
            optimizer.zero_grad()
            loss = layer(x).square().sum()
            loss.backward()
            optimizer.step()
            if inside:
                schedule.step()
            return loss.detach()

        traced_step = trace(step)

        def both(x):
            loss = traced_step(x)
            if not inside:
                schedule.step()
            return loss

        def rates():
            return [told(group["lr"]) for group in optimizer.param_groups], schedule.last_epoch

        return both, [call(X() * i) for i in range(12)], lambda: [*layer.parameters(), rates()]

    check(make, hits=6)


# ---------------------------------------------------------------- what is computed with them
class Mine(float):
    """Its operators come first where it stands on the left, and give floats."""


OTHERS = {
    "int": lambda x, st: 3,
    "float": lambda x, st: 2.5,
    "bool": lambda x, st: True,
    "float64": lambda x, st: np.float64(1.5),
    "float64 in a dict": lambda x, st: st.d["k"],
    "itself": lambda x, st: st.n,
    "size": lambda x, st: x.shape[0],
    "value": lambda x, st: x[2].item(),
    "float32": lambda x, st: np.float32(1.5),
    "int64": lambda x, st: np.int64(2),
    "of the user's": lambda x, st: Mine(1.5),
}
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "divmod": lambda a, b: divmod(a, b)[1],
}
# Numpy's numbers of other kinds read what they are put together with.
FOLLOWED = [name for name in OTHERS if name not in ("bool", "float32", "int64", "of the user's")]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sign", OPERATIONS)
@pytest.mark.parametrize("other", OTHERS)
def test_operation(other, sign, turned):
    operate, its = OPERATIONS[sign], OTHERS[other]

    def use(x, st):
        a, b = st.n, its(x, st)
        made = operate(b, a) if turned else operate(a, b)
        return told(made), x * float(made)

    if other in FOLLOWED and sign != "divmod":
        check(with_state(use), hits=3)
    else:
        agree(with_state(use))


@pytest.mark.parametrize("sign", OPERATIONS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.filterwarnings("ignore")
def test_odd_values(other, sign):
    """What numpy warns of or raises is a setting of the thread."""
    operate, its = OPERATIONS[sign], OTHERS[other]
    odd = (8.0, 9.0, 0.0, -0.0, -1.5, math.inf, -math.inf, math.nan, 1e300, 1e-300, 5e-324, 7.0, 6.0)

    def make(trace):
        st = types.SimpleNamespace(n=np.float64(8), d={"k": np.float64(2)})

        def use(x):
            a, b = st.n, its(x, st)
            return told(operate(a, b)), told(operate(b, a))

        fn = trace(use)

        def set_and_call(x, value, raises):
            st.n = np.float64(value)
            with np.errstate(all="raise" if raises else "ignore"):
                try:
                    return fn(x)
                except (FloatingPointError, ZeroDivisionError) as error:
                    return str(error)

        return set_and_call, [call(X(), value, raises) for raises in (0, 1, 0) for value in odd]

    agree(make)


def told_error(use):
    try:
        return use()
    except (TypeError, IndexError, ValueError) as error:
        return type(error).__name__, str(error)


ALONE = {
    "-": lambda n: -n,
    "+": lambda n: +n,
    "abs": abs,
    "float": float,
    "int": int,
    "bool": bool,
    "round": round,
    "round to": lambda n: round(n, 1),
    "str": str,
    "repr": repr,
    "format": lambda n: f"{n:.3f}",
    "percent": lambda n: "%.2e" % n,  # noqa: UP031
    "hash": lambda n: hash(n) == hash(float(n)),
    "item": lambda n: n.item(),
    "kind": lambda n: (isinstance(n, float), isinstance(n, np.float64), type(n).__name__, n.dtype.name),
    "floor": math.floor,
    "sqrt": math.sqrt,
    "cosine": np.cos,
    "log": np.log,
    "max": lambda n: max(n, 4.0),
    "min": lambda n: min(4, n),
    "sum": lambda n: sum([n, n, 1.0]),
    "clip": lambda n: np.clip(n, 1.0, 5.0),
    "tensor": lambda n: torch.tensor(n),
    "as tensor": lambda n: (torch.as_tensor(n), torch.as_tensor([n, 1.0]), torch.asarray(n)),
    "index": lambda n: told_error(lambda: X()[n]),
    "index among others": lambda n: told_error(lambda: X()[..., n]),
    "slice": lambda n: told_error(lambda: X()[:n]),
    "size": lambda n: told_error(lambda: torch.zeros(n)),
    "dimension": lambda n: told_error(lambda: X().sum(n)),
    "full": lambda n: torch.full((2,), n),
    "key": lambda n: {n: 1}[float(n)],
    "in": lambda n: n in (8.0, 3.0),
    "list": lambda n: [n, (n, {"a": n})],
    "array": lambda n: np.array([n, 1.0]).sum(),
    "is": lambda n: n is n,
    "branch": lambda n: 1 if n > 7 else 2,
    "truth": lambda n: 1 if n else 2,
    "exponent": lambda n: math.exp(-n),
}


@pytest.mark.parametrize("name", ALONE)
def test_used_alone(name):
    use = ALONE[name]
    agree(with_state(lambda x, st: (use(st.n), x * 2)))


FOLLOWED_ALONE = ["-", "+", "abs", "float", "bool", "branch", "truth", "cosine", "list", "full", "format"]
FOLLOWED_ALONE += ["sqrt", "exponent", "max"]


@pytest.mark.parametrize("name", FOLLOWED_ALONE)
def test_followed_where_it_is_used_alone(name):
    use = ALONE[name]
    check(with_state(lambda x, st: (use(st.n), x * 2)), hits=3)


# ---------------------------------------------------------------- written back
def decays(x, st):
    st.n = st.n * 0.5
    return x * st.n


def decays_in_place(x, st):
    st.n *= 0.5
    st.d["k"] -= 1
    return x * st.n + st.d["k"]


def takes_turns(x, st):
    st.n = float(st.n) if isinstance(st.n, np.float64) else np.float64(st.n)
    return x * st.n


def becomes_numpys(x, st):
    st.d["k"] = np.cos(st.n)
    return x * st.d["k"]


@pytest.mark.parametrize("use", [decays, decays_in_place, becomes_numpys])
def test_written_back(use):
    check(with_state(use), hits=3)


@pytest.mark.parametrize("use", [decays, decays_in_place, takes_turns, becomes_numpys])
def test_counted_on(use):
    def make(trace):
        st = types.SimpleNamespace(n=np.float64(1), d={"k": np.float64(2)}, l=[])
        return (
            trace(lambda x: use(x, st)),
            [call(X()) for _ in range(9)],
            lambda: [told(st.n), told(st.d["k"])],
        )

    check(make, hits=3)


def test_another_kind_of_number():
    kinds = (np.float64, np.float64, np.float64, float, float, np.float64, np.float32, int, np.float64, bool)

    def make(trace):
        st = types.SimpleNamespace(n=np.float64(1))
        fn = trace(lambda x: (told(st.n * 2), x * st.n))

        def set_and_call(x, kind, value):
            st.n = kind(value)
            return fn(x)

        return set_and_call, [call(X(), kind, i) for i, kind in enumerate(kinds + kinds)]

    check(make, hits=3)


def test_in_a_tuple_and_a_list():
    def make(trace):
        st = types.SimpleNamespace(pair=(np.float64(1), 2.0), rates=[np.float64(1)])
        fn = trace(lambda x: (told(st.pair[0] / st.pair[1]), x * st.pair[0] + st.rates[0]))

        def set_and_call(x, value):
            st.pair, st.rates[0] = (np.float64(value), value + 1.0), np.float64(-value)
            return fn(x)

        return set_and_call, [call(X(), float(i)) for i in range(1, 9)]

    check(make, hits=3)
