"""Numbers that are passed, and numbers in state, where they are aliased, exchanged, written or misused."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import math
import random
import statistics
import types
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lazytrace
from lazytrace import traced
from tests.soundness.runner import Cases, agree, call, check

cases = Cases()


class Whole(int):
    pass


class Broken(float):
    pass


class Kind(enum.IntEnum):
    ONE = 1


# Next to each other are values that one recording must tell apart, and values that it may not.
VALUES = [
    *(1, 2, 3, 4.0, 5.0, True, False, 0, 1, np.float64(2.5), np.int64(3), Whole(4), Broken(2.0), Kind.ONE),
    *(5, 6, 2**70, 7, -0.0, 0.0, math.inf, math.nan, 2**63 - 1, -(2**63), 2**62, 8, "a", 9, None),
    *(10, 11.5, 12.5, 1 + 2j, 13),
]


def ones():
    return torch.ones(2)


def between(changes):
    """A call after each change."""
    return [step for change in changes for step in (change, call(ones()))]


def assigned(target, name, values):
    return [lambda value=value: setattr(target, name, value) for value in values]


def entered(target, key, values):
    return [lambda value=value: target.__setitem__(key, value) for value in values]


# ---------------------------------------------------------------- of other types
@cases(hits=40)
def values_of_other_types_in_an_attribute(trace):
    state = types.SimpleNamespace(n=0)

    def run(x):
        try:
            return x * state.n, state.n, type(state.n).__name__
        except TypeError as error:
            return str(error)

    return trace(run), between(assigned(state, "n", VALUES * 2))


@cases(hits=40)
def arguments_of_other_types(trace):
    def run(x, n):
        try:
            return x * n, n, type(n).__name__, n + 1
        except TypeError as error:
            return str(error)

    return trace(run), [call(ones(), value) for value in VALUES * 2]


# Not among the cases: what is caught says more than the number once it is stored.
def test_misused():
    def run(x, n):
        use = {3: lambda: n(x), 4: lambda: n + "a", 5: lambda: n.foo, 6: lambda: n[0], 7: lambda: len(n)}
        try:
            return use.get(n, lambda: x * n)()
        except (TypeError, AttributeError) as error:
            return type(error).__name__, str(error)

    agree(lambda trace: (trace(run), [call(ones(), i) for i in range(9)] * 2))


# ---------------------------------------------------------------- aliases
@cases(hits=6)
def one_number_in_two_places(trace):
    a = types.SimpleNamespace(n=1000)
    b = types.SimpleNamespace(n=a.n)

    def run(x):
        a.n = a.n + 1
        return x * a.n + b.n

    def both(value, other):
        def change():
            a.n, b.n = value, other

        return change

    pairs = ((1, 1), (2, 2), (3, 4), (4, 5), (5, 5), (1, 2), (1, 1)) * 2
    return trace(run), between(both(*pair) for pair in pairs), lambda: (a.n, b.n)


@cases(hits=5)
def two_objects_that_become_one(trace):
    box = types.SimpleNamespace(a=types.SimpleNamespace(n=1), b=types.SimpleNamespace(n=1))

    def run(x):
        box.a.n += 1
        return x * box.b.n + box.a.n

    def one():
        box.b = box.a

    def two():
        box.b = types.SimpleNamespace(n=7)

    def nothing():
        pass

    changes = [nothing] * 4 + [one, nothing, nothing, two, nothing, nothing, one, nothing]
    return trace(run), between(changes), lambda: (box.a.n, box.b.n)


@cases(hits=3)
def fields_of_a_named_tuple_with_one_value(trace):
    Pair = collections.namedtuple("Pair", "a b")
    state = types.SimpleNamespace(pair=Pair(5, 5))
    pairs = (Pair(5, 5), Pair(6, 5), Pair(5, 6), Pair(7, 7), Pair(5, 7), Pair(7, 5)) * 2
    run = trace(lambda x: x * state.pair.b + state.pair.a * 2 + state.pair[1])
    return run, between(assigned(state, "pair", pairs))


@cases(hits=3)
def entries_of_a_tuple_with_one_value(trace):
    state = types.SimpleNamespace(pair=(5, 5))
    pairs = ((5, 5), (6, 5), (5, 6), (7, 7), (5, 7), (7, 5)) * 2
    return trace(lambda x: x * state.pair[1] + state.pair[0] * 2), between(assigned(state, "pair", pairs))


# ---------------------------------------------------------------- places that come and go
@cases(hits=5)
def an_attribute_that_is_deleted_or_becomes_a_property(trace):
    class Holder:
        n = 3

    holder = Holder()

    def delete():
        holder.__dict__.pop("n", None)

    def hide():
        Holder.n = property(lambda self: 42.0)

    def show():
        Holder.n = 4

    def put(value):
        return lambda: holder.__dict__.__setitem__("n", value)

    changes = [delete, put(1), put(2), put(3), delete, put(5), hide, put(6), delete, show, put(7), put(8)]
    return trace(lambda x: x * holder.n), between([*changes, delete])


@cases(hits=8)
def a_number_that_is_written_between_two_reads(trace):
    state = types.SimpleNamespace(n=1.0)

    def run(x):
        a = state.n
        state.n = 10.0
        b = state.n
        state.n = a * 2
        return x * a + b + state.n

    return trace(run), [call(ones()) for _ in range(12)], lambda: state.n


@cases(hits=8)
def a_constant_that_is_written_over_it(trace):
    table = {"n": 1}

    def run(x):
        y = x * table["n"]
        table["n"] = 5
        return y

    return trace(run), between(entered(table, "n", (1, 2, 3, 5, 5, 6, 5) * 2)), lambda: dict(table)


@cases(hits=14)
def a_counter_that_starts_over(trace):
    state = types.SimpleNamespace(n=0)

    def run(x):
        state.n += 1
        if state.n >= 4:
            state.n = 0
        return x * state.n

    return trace(run), [call(ones()) for _ in range(20)], lambda: state.n


@cases(hits=5)
def a_list_that_is_read_as_a_whole_too(trace):
    numbers = [1, 2, 3]

    def run(x):
        return x * numbers[0] + sum(numbers) + numbers[1:][0] + max(numbers) + numbers[0]

    def to(*values):
        return lambda: numbers.__setitem__(slice(None), values)

    changes = [to(1, 2, 3), to(2, 2, 3), to(3, 2, 3), to(4, 2, 3), to(4, 3, 3), to(2, 2, 2), to(4, 2, 3)]
    return trace(run), between(changes * 2)


@cases(hits=5)
def one_place_read_in_many_ways(trace):
    state = types.SimpleNamespace(n=1)

    def run(x):
        class Body:
            k = state.n

        lazy = sum(state.n for _ in range(3)) + [state.n * i for i in range(3)][2] + (lambda: state.n)()
        plain = getattr(state, "n") + state.n + state.__dict__["n"] + vars(state).get("n", 0)  # noqa: B009
        return x * lazy + plain + Body.k

    return trace(run), between(assigned(state, "n", (1, 2, 3, 4, 2, 3, 4) * 2))


@cases(hits=4)
def numbers_as_keys(trace):
    table = {1: 10, 2: 20, 3: 30, 1.5: 7}
    state = types.SimpleNamespace(k=1)

    def run(x, n):
        return x * table[n] + table.get(state.k, 0), {n: state.k}, len({n, state.k})

    steps = []
    for i in range(12):
        steps += [*assigned(state, "k", [i % 4]), call(ones(), (1, 2, 3, 1.5)[i % 4])]
    return trace(run), steps


# ---------------------------------------------------------------- where they stand
@cases(hits=6)
def keyword_only_and_positional_only(trace):
    def run(x, /, *, n=1, m):
        return x * n + m, n, m

    return trace(run), [call(ones(), m=i) if i % 2 else call(ones(), n=i, m=i * 2.0) for i in range(12)]


@cases(hits=6)
def stars(trace):
    def run(*args, **kwargs):
        return args[0] * args[1] + sum(kwargs.values()), args[1:], kwargs

    return trace(run), [call(ones(), i, q=i + 1, r=i * 0.5) for i in range(10)]


@cases(hits=6)
def a_traced_function_inside(trace):
    state = types.SimpleNamespace(n=1)
    inner = trace(lambda x, k: x * k + state.n)

    def run(x, k):
        state.n += 1
        return inner(x, k * state.n) + inner(x, 2)

    return trace(run), [call(ones(), i + 0.5) for i in range(10)], lambda: state.n


@cases(hits=8)
def a_default_of_a_method_that_counts(trace):
    class Counter:
        def __init__(self):
            self.k = 0

        @trace
        def run(self, x, n=2):
            self.k += n
            return x * self.k

    both = Counter(), Counter()
    steps = [call(ones(), *([i] if i % 2 else [])).of(both[i % 3 == 0].run) for i in range(16)]
    return both[0].run, steps, lambda: [counter.k for counter in both]


@cases(hits=5)
def counters_of_a_module(trace):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.steps, self.temperature = 0, 1.0

        def forward(self, x, scale=1.0):
            self.steps += 1
            self.temperature *= 0.9
            return x * self.weight * self.temperature * scale + self.steps

    model = Model()
    run = trace(model)
    steps = [call(ones(), scale=i * 0.25) if i % 3 else call(ones()) for i in range(14)]
    return run, steps, lambda: (model.steps, model.temperature)


@cases(hits=5)
def fields_of_a_dataclass(trace):
    @dataclasses.dataclass
    class Options:
        lr: float = 0.1
        n: int = 0

    options = Options()

    def run(x):
        options.n += 1
        return x * options.lr + options.n

    values = (0.1, 0.2, 0.3, 0.4, 1, 2, 0.5, 0.6, 0.7)
    return trace(run), between(assigned(options, "lr", values)), lambda: options


@cases(hits=5)
def an_argument_that_is_stored(trace):
    state = types.SimpleNamespace(last=None, all=[])

    def run(x, n):
        state.last = n
        state.all.append((n * 2, {"n": n}))
        return x * n

    numbers = [i * 0.5 for i in range(8)] + [*range(5)]
    return trace(run), [call(ones(), n) for n in numbers], lambda: (state.last, state.all)


@cases(hits=2)
def an_argument_of_an_opaque_function(trace):
    helper = lazytrace.opaque(lambda x, n, all=(), m=1: x * n + m + sum(all))
    state = types.SimpleNamespace(k=1)

    def run(x, n):
        return helper(x, n, [n + 1], m=state.k) * n

    steps = []
    for n in (1, 2, 3, 2, 3, 1, 2, 3, 1, 2, 3):
        steps += [*assigned(state, "k", [n % 2]), call(ones(), n)]
    return trace(run), steps


@cases(hits=2)
def an_argument_of_a_custom_function(trace):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n):
            ctx.n = n
            return x * n

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.n, None

    def run(x, n):
        return Scale.apply(x, n) * n

    return trace(run), [call(ones().requires_grad_(), n) for n in (1, 2, 3, 2, 3, 1, 2, 3, 1, 2, 3)]


# ---------------------------------------------------------------- numbers that say how large something is
@cases(hits=6)
def a_position_in_state(trace):
    state = types.SimpleNamespace(at=1)
    rows = torch.zeros(16, 2)

    def run(x):
        rows[state.at] = x
        state.at += 1
        return rows[: state.at].sum(0), torch.zeros(state.at)

    return trace(run), [call(ones() * i) for i in range(12)], lambda: (state.at, rows)


@cases(hits=5)
def a_length_that_is_passed(trace):
    sizes = (1, 2, 3, 4, 0, 7, 2, 9, 11)
    return trace(lambda x, n: (torch.zeros(n), x.expand(n, 2) * n)), [call(ones(), n) for n in sizes]


@cases(hits=5)
def a_length_and_no_tensor(trace):
    return trace(lambda n: torch.arange(n) * n), [call(n) for n in (1, 2, 3, 4, 0, 7, 2, 9, 11)]


# ---------------------------------------------------------------- dropout and scales
@cases(hits=6)
def a_chance_that_becomes_none(trace):
    def run(x, n):
        return F.dropout(x, n * 0.1), F.dropout(x, n / 10, True, False)

    return trace(run), [call(ones(), n) for n in (3, 2, 1, 2, 0, 1, 0, 4, 5, 0, 10, 3)]


@cases(hits=4)
def a_chance_that_comes_to_be(trace):
    def run(x, n):
        x = x * 1
        x.add_(F.dropout(x, min(0.5, n / 10)))
        return F.alpha_dropout(x, n / 20), torch.feature_dropout(x[None], n / 20, True)

    return trace(run), [call(ones(), n) for n in (0, 1, 2, 3, 0, 0, 5, 7, 0, 9)]


@cases(hits=1)
def a_norm_of_order_zero(trace):
    net = torch.nn.Linear(len(ones()), 3)

    def run(x, n):
        net.zero_grad()
        loss = net(x).norm(n) + torch.linalg.vector_norm(net.weight, n)
        loss.backward()
        return loss.item()

    orders = (0.5, 1.0, 0.0, 1.0, 2.0, 0.0, 0.5)
    return trace(run), [call(ones(), n) for n in orders], lambda: [p.grad for p in net.parameters()]


@cases(recordings=3)
def images_that_are_scaled(trace):
    def run(x, n):
        image = x.expand(1, 2, 4, len(x))
        smooth = F.interpolate(image, scale_factor=(n, 1.5), mode="bilinear")
        return F.interpolate(image, scale_factor=n), F.interpolate(image, scale_factor=[n + 1, n]), smooth

    return trace(run), [call(ones(), n) for n in (2, 3, 4)]


@cases(hits=4)
def images_of_a_size(trace):
    def run(x, n):
        return F.interpolate(x.expand(1, 2, 4, len(x)), size=(n + 3, n))

    return trace(run), [call(ones(), n) for n in (2, 3, 4, 5, 6, 2, 3)]


# ---------------------------------------------------------------- what makes tensors of values
FAR = (1, 2, 3, 2**40, 2**31 + 5, -(2**33), 7, 2**53 + 1, 2**63 - 1, 4)
MAKERS = {
    "tensor": lambda x, n: torch.tensor([n, 2]),
    "tensor_of_floats": lambda x, n: torch.tensor([n, 0.5]),
    "tensor_of_halves": lambda x, n: torch.tensor([n, 2], dtype=torch.half),
    "tensor_of_shorts": lambda x, n: torch.tensor([n, 2], dtype=torch.int32),
    "tensor_of_one": lambda x, n: torch.tensor(n, dtype=torch.int32),
    "tensor_of_one_half": lambda x, n: torch.tensor(n, dtype=torch.bfloat16),
    "tensor_of_rows": lambda x, n: torch.tensor([[n, 1], [2, n]]),
    "as_tensor": lambda x, n: torch.as_tensor([n, 2]),
    "as_tensor_of_one": lambda x, n: torch.as_tensor(n, dtype=torch.uint8),
    "as_tensor_of_a_tuple": lambda x, n: torch.as_tensor((n, 0.5), dtype=torch.float64),
    "asarray": lambda x, n: torch.asarray([n, 2]),
    "new_tensor": lambda x, n: x.new_tensor([n, 2]),
    "new_tensor_bound": lambda x, n: (lambda make: make([n, 2]))(x.new_tensor),
    "new_tensor_by_name": lambda x, n: x.new_tensor(data=n),
    "legacy": lambda x, n: torch.LongTensor([n, 2]),
    "sparse": lambda x, n: torch.sparse_coo_tensor([[0, 1]], [n, 2], (2,)).to_dense(),
    "rows": lambda x, n: torch.sparse_csr_tensor([0, 1, 2], [0, 1], [n, 2]).to_dense(),
    "with_a_huge_int": lambda x, n: torch.tensor([x.sum().item(), n * 2, 2**64]),
    "which_overflows": lambda x, n: torch.tensor([n * 2, 1]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_tensors_made_of_values(name):
    make = MAKERS[name]
    agree(lambda trace: (trace(lambda x, n: (x + 1, make(x, n))), [call(ones(), n) for n in FAR]))


# ---------------------------------------------------------------- what Python would raise
@cases(hits=4)
def a_division_by_zero_that_is_caught(trace):
    state = types.SimpleNamespace(n=3)

    def run(x, k):
        state.n -= 1
        try:
            return x * (10 // state.n) + (k // state.n)
        except ZeroDivisionError as error:
            return str(error), x

    return trace(run), [call(ones(), i) for i in range(10)], lambda: state.n


@cases(hits=3)
def a_division_by_zero_that_is_not(trace):
    state = types.SimpleNamespace(n=3)

    def run(x):
        state.n -= 1
        return x * (10 // state.n)

    return trace(run), [call(ones()) for _ in range(8)], lambda: state.n


@cases(hits=3)
def a_counter_beyond_64_bits(trace):
    state = types.SimpleNamespace(n=2**63 - 8)

    def run(x):
        state.n += 1
        x.add_(1)
        return x, state.n

    return trace(run), [call(ones()) for _ in range(10)], lambda: state.n


@cases(hits=3)
def negative_exponents(trace):
    def run(x, n):
        return x * 2**n, 2**-n, n**2, (-2) ** n if n == int(n) else 0, 10**n

    numbers = (1, 2, 3, -1, -2, 0, 5, 0.5, -0.5, 1.5, 62, 63, 64, -3)
    return trace(run), [call(ones(), n) for n in numbers]


# ---------------------------------------------------------------- what runs again, and has changed less
# The first recording writes a flag before it computes with numbers, so that it asks whether they work out.
# The function that runs again finds the flag as it is.
@cases(hits=3)
def flag_that_was_set_by_the_first_call(trace):
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([w], lr=torch.tensor(0.1), foreach=False)
    (w * 2).sum().backward()
    optimizer.step()

    def run(x):
        optimizer.zero_grad()
        (x * w).sum().backward()
        optimizer.called = True
        optimizer.step()

    return trace(run), [call(torch.ones(3)) for _ in range(5)], lambda: w


# ---------------------------------------------------------------- what is kept of it
def test_counters_of_modules_are_one_recording():
    assert agree(counters_of_a_module).count("recordings") <= 3


def test_a_number_that_is_taken_apart_is_recorded_by_itself():
    state = types.SimpleNamespace(n=0, lr=0.5)
    function = traced(lambda x: x * state.lr if len(f"{state.n}") else x)
    for i in range(40):
        state.n, state.lr = i, i / 8
        assert torch.equal(function(ones()), ones() * state.lr)
    assert len(function.stats().programs) <= 32


def test_the_reason_names_the_number():
    state = types.SimpleNamespace(n=0)

    def run(x, k):
        return x * len(range(state.n)) * len(range(k))

    function = traced(run)
    for i in range(4):
        state.n = i
        function(ones(), 1)
    for k in range(2, 5):
        function(ones(), k)
    texts = [reason.text for reason in function.stats().retrace_reasons]
    assert any("state.n 1 -> 2" in text for text in texts), texts
    assert any(text.startswith("result of k 2 -> 3") for text in texts), texts


def test_numbers_that_differ_are_no_reason_beside_another_one():
    function = traced(lambda x, n: x * n)
    for n in (0.5, 1.5, 2.5):
        function(ones(), n)
    assert function.stats().recordings == 2
    explanation = str(function.explain(ones().double(), 7.5)).splitlines()[0]
    assert "dtype" in explanation, explanation
    assert "7.5" not in explanation, explanation


# ---------------------------------------------------------------- beside numbers of other classes
OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "**": lambda a, b: a**b, "divmod": divmod,
    "<": lambda a, b: (a < b, a <= b, a == b, a != b), "<<": lambda a, b: (a << b, a & b, a | b, a ^ b),
    "max": lambda a, b: (max(a, b), min(a, b, 1.0), sum([a, b])), "@": lambda a, b: a @ b,
    "tuple": lambda a, b: (a, b) < (b, a),
}  # fmt: skip
OTHERS = [
    np.float64(1.5), np.float32(0.5), np.int64(3), np.int32(2), np.bool_(True), np.float64("nan"), Whole(4),
    Broken(2.5), Kind.ONE, Fraction(1, 3), Decimal("0.5"), 1j, True, np.array([1.0, 2.0]),
]  # fmt: skip


def looked_at(function, *args):
    """What is given, with its classes; or what is raised."""
    try:
        found = function(*args)
    except Exception as error:
        return type(error), str(error)
    return [(type(part), repr(part)) for part in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("number", [2, 2.5])
def test_beside_numbers_of_other_classes(name, number):
    operation = OPERATIONS[name]
    for other in OTHERS:
        for swapped in (False, True):
            state = {"number": number}

            def fn(state=state, other=other, swapped=swapped):
                return operation(other, state["number"]) if swapped else operation(state["number"], other)

            function = traced(fn)
            for i in range(4):  # followed from the second value on
                state["number"] = number + i
                assert looked_at(function) == looked_at(fn), (other, swapped, i)


@pytest.mark.parametrize("inside", [lambda x, n: x[n], lambda x, n: x[0:1, n], lambda x, n: put(x, n)])
def test_an_index_beyond_the_end_is_named_as_ever(inside):
    x = torch.arange(9.0).view(3, 3)
    fn = traced(lambda n: inside(x, n))
    for n in (0, 1, 2, 1, 3, 2, -3, -4, 0, 5):
        assert looked_at(fn, n) == looked_at(fn.original, n), n
    assert fn.cache_info().hits


def put(x, n):
    x = x.clone()
    x[n] = 1.0
    return x


@pytest.mark.parametrize("inside", [lambda n: torch.zeros(n), lambda n: torch.ones(3).topk(n), lambda n: ~n])
def test_a_number_of_the_wrong_class_is_named_as_ever(inside):
    fn = traced(inside)
    for n in (1.5, 2.5, 3.5):
        assert looked_at(fn, n) == looked_at(inside, n)


# ---------------------------------------------------------------- what a binding refuses
def in_turns(st, name, values, *args):
    """Three calls that follow the number, then two with each value of the attribute."""
    steps = [call(*args) for _ in range(4)]
    for value in values:
        steps += [lambda value=value: setattr(st, name, value), call(*args), call(*args)]
    return steps


@cases(hits=2)
def shapes_that_a_layer_norm_does_not_take(trace):
    st = types.SimpleNamespace(eps=1e-5, shape=[3])

    def fn(x):
        st.eps = st.eps * 1.5
        return F.layer_norm(x, st.shape, eps=st.eps)

    return trace(fn), in_turns(st, "shape", [[4], 3, "3", [3.0], None], torch.ones(2, 3))


@cases(hits=2)
def flags_that_a_dropout_does_not_take(trace):
    st = types.SimpleNamespace(p=0.2, train=True)

    def fn(x):
        st.p = st.p * 0.9
        return torch.dropout(x, st.p, st.train)

    return trace(fn), in_turns(st, "train", [1, None, "yes", 1.0], torch.ones(9))


@cases(hits=2)
def statistics_that_a_batch_norm_does_not_take(trace):
    st = types.SimpleNamespace(momentum=0.1, mean=torch.zeros(3))

    def fn(x):
        st.momentum = st.momentum * 0.5
        return torch.batch_norm(x, None, None, st.mean, torch.ones(3), True, st.momentum, 1e-5, False)

    others = [torch.zeros(4), None, [0.0], 0.0, np.zeros(3)]
    return trace(fn), in_turns(st, "mean", others, torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 5.0]]))


@cases(hits=2)
def states_that_a_fused_optimizer_does_not_take(trace):
    weights = [torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)

    def fn(x):
        optimizer.zero_grad()
        (weights[0].sum() * x.sum() + weights[1].sum()).backward()
        optimizer.step()
        schedule.step()

    steps = [call(torch.ones(2)) for _ in range(5)]
    return trace(fn), [*steps, lambda: optimizer.state.pop(weights[0]), *steps[:3]], lambda: weights


# ---------------------------------------------------------------- optimizers with a schedule
def options_of_optimizers():
    optim = torch.optim
    for each in (False, True):
        yield optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "foreach": each}
        for kind in (optim.SGD, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad, optim.Adadelta):
            yield kind, {"maximize": True, "foreach": each}
        for kind in (optim.Adam, optim.AdamW):
            yield kind, {"amsgrad": True, "weight_decay": 0.1, "foreach": each}
        for kind in (optim.ASGD, optim.Rprop):
            yield kind, {"foreach": each}
        yield optim.RMSprop, {"centered": True, "momentum": 0.9, "foreach": each}
    for kind in (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad):
        yield kind, {"fused": True}
    yield optim.Adafactor, {}


def run_steps(kind, options, trace, inside=False):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = kind(model.parameters(), lr=0.01, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if inside:
            schedule.step()

    function = traced(step) if trace else step
    for _ in range(10):
        function(torch.randn(5, 3))
        if not inside:
            schedule.step()
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    rate = torch.tensor(optimizer.param_groups[0]["lr"])
    return function, [*model.parameters(), *filter(torch.is_tensor, state), rate]


@pytest.mark.parametrize(("kind", "options"), options_of_optimizers())
def test_optimizers_with_a_schedule(kind, options):
    _, plain = run_steps(kind, options, trace=False)
    function, found = run_steps(kind, options, trace=True)
    assert len(plain) == len(found)
    assert all(map(torch.equal, plain, found))
    stats = function.stats()
    # The state is made at the first step, and RAdam comes to another formula once.
    assert stats.recordings <= 3, stats.retrace_reasons
    assert stats.hits >= 6, stats.eager


def test_a_schedule_inside():
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        _, plain = run_steps(kind, {"foreach": True}, trace=False, inside=True)
        function, found = run_steps(kind, {"foreach": True}, trace=True, inside=True)
        assert all(map(torch.equal, plain, found))
        assert function.stats().recordings <= 3, function.stats().retrace_reasons
        assert function.stats().hits >= 5, function.stats().eager


# ---------------------------------------------------------------- reads that end the recording
# After an in-place change of shape the function cannot be resumed, so a read ends the recording, which makes
# all that Python was given plain numbers: in the middle of the read.
READS = {
    "hash": hash,
    "round": lambda n: round(n, 1),
    "bits": lambda n: n & 3,
    "text": lambda n: f"{n:.3}",
    "repr": repr,
    "fraction": lambda n: n.as_integer_ratio(),
    "whole": lambda n: n.is_integer(),
    "equal": lambda n: n == 2.5,
}


@pytest.mark.parametrize("number", [2.0, 0.0, -2.5, 1e300, math.inf, 3, 1 << 40])
@pytest.mark.parametrize("read", READS)
def test_a_number_is_read_where_its_recording_ends(read, number):
    def ends(x, n, y):
        scaled = x * n
        y.unsqueeze_(0)
        return scaled, READS[read](n), n

    def make(trace):
        fn = trace(ends, dynamic=True)

        def tried(x, n, y):
            try:
                return fn(x, n, y)
            except (TypeError, OverflowError, ValueError, AttributeError) as error:
                return str(error)

        return tried, [call(torch.ones(2), n, torch.ones(2)) for n in (number, 2.5, number)]

    agree(make)


# ---------------------------------------------------------------- the class of a number, asked by C code
ITERABLES = {
    "deque": collections.deque,
    "iterator": iter,
    "reversed": reversed,
    "values": lambda items: dict(enumerate(items)).values(),
    "keys": dict.fromkeys,
    "chain": itertools.chain,
    "list": list,
}
ASKED_FOR_CLASSES = {
    "set": lambda numbers: len(set(map(type, numbers))),
    "groups": lambda numbers: [kind.__name__ for kind, _ in itertools.groupby(numbers, type)],
    "mean": statistics.harmonic_mean,
    "partial": lambda numbers: len(set(map(functools.partial(type), numbers))),
    "made before": lambda numbers: len({*map(type, (number for number in numbers))}),
}


@pytest.mark.parametrize("ask", ASKED_FOR_CLASSES)
@pytest.mark.parametrize("iterable", ITERABLES)
def test_type_is_handed_to_c_code(iterable, ask):
    def step(x):
        return x * 2, ASKED_FOR_CLASSES[ask](ITERABLES[iterable]([x.sum().item(), 1.5, x.max().item()]))

    calls = [call(torch.ones(3) * value) for value in (1.0, 2.0, 0.5, 1.0)]
    check(lambda trace: (trace(step), calls), eager="hands type() to C code")


# ---------------------------------------------------------------- handed on in the place of a number
class Held:
    n = m = 0
    f = rate = 0.0
    applied = None
    rebuilds = 0


def _calling(function, *args, **kwargs):
    return function(*args, **kwargs)


def _with_rate(state, x):
    if state.rate is not state.applied:
        state.applied = state.rate
        state.rebuilds += 1
    return x * state.rate


def _or(default, ask):
    try:
        return ask()
    except (TypeError, ValueError, RuntimeError):
        return default


HANDED_ON = {
    "a keyword of torch.tensor": lambda s, x: (x + 1, _calling(torch.tensor, data=s.n)),
    "a keyword of as_tensor": lambda s, x: (x + 1, _calling(torch.as_tensor, data=[s.n, 1])),
    "deep in lists": lambda s, x: (x + 1, torch.tensor([[[[[s.n]]]]])),
    "new_tensor": lambda s, x: _calling(x.long().new_tensor, data=[[[[s.n]]]]),
    "a list as an index": lambda s, x: x[[s.n, 0]],
    "a list among indices": lambda s, x: x.view(1, 3)[0, [s.n, s.n]],
    "a tuple in a list": lambda s, x: x[[(s.n, 0), (1, 0)]],
    "a list that is set": lambda s, x: x.clone().index_fill_(0, torch.tensor([0]), 2.0) + _set_at(x, [s.n]),
    "in": lambda s, x: (x * s.f, s.f in [s.f, 1.0]),
    "equal tuples": lambda s, x: (x * s.f, (s.f, 1) == (s.f, 1), (s.f, 1) != (s.f, 1)),
    "equal dicts": lambda s, x: (x * s.f, {1: s.f} == {1: s.f}),
    "counted": lambda s, x: (x * s.f, [s.f, 2.0].count(s.f)),
    "is": lambda s, x: (x * s.n, s.n is s.m, s.n is s.n, s.m is not s.n),
    "is, after a branch": lambda s, x: (x * s.n, s.n > 3, s.n is s.m),
    "the same rate": _with_rate,
    "max of one": lambda s, x: x * _or(100.0, lambda: max(*[s.f])),
    "min of one": lambda s, x: x * _or(100.0, lambda: min(*[s.n])),
    "two for sqrt": lambda s, x: x * _or(-1.0, lambda: math.sqrt(abs(s.f), 2.0)),
    "one for atan2": lambda s, x: x * _or(-1.0, lambda: math.atan2(s.f)),
    "isfinite of a tensor": lambda s, x: (x * s.f, math.isfinite((x > 0).any()), math.isinf(x[0])),
    "isnan of many": lambda s, x: (x * s.f, _or("raises", lambda: math.isnan(x))),
}


def _set_at(x, index):
    x = x.clone()
    x[index] = 9.0
    return x


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", HANDED_ON)
def test_numbers_that_are_handed_on(name, dynamic):
    values = [
        (2, 0.5),
        (1, 1.5),
        (0, 0.25),
        (2**32 + 1, math.nan),
        (2**40, math.inf),
        (300, 2.0),
        (-1, math.nan),
    ]

    def make(trace):
        state = Held()

        def become(n, f):
            def change():
                state.n = state.m = n
                state.f = state.rate = f

            return change

        steps = []
        for n, f in values:
            steps += [become(n, f), call(state, torch.arange(3.0)), call(state, torch.arange(3.0))]
        return trace(HANDED_ON[name], dynamic=dynamic), steps, lambda: vars(state)

    agree(make)


# ---------------------------------------------------------------- nan where another number was followed
def goes_on(state, x, n):
    state.total.add_(1)
    y = x * state.scale
    return y * 2 if y.sum() > 0 else y


def masks(state, x, n):
    made = torch.tensor([1.0, 2.0])
    return made[made > n]


def goes_on_with_it(state, x, n):
    state.total.add_(1)
    y = x * n
    if y.sum() > 0:
        y = y + state.scale
    return y, [n] == [n], n in (1.0, n)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("body", [goes_on, masks, goes_on_with_it], ids=lambda one: one.__name__)
def test_a_nan_behind_a_side_exit(body, dynamic):
    """The function runs again over steps that have taken the nan for a number that is followed."""

    def make(trace):
        state = types.SimpleNamespace(scale=1.0, total=torch.zeros(()))
        x = torch.ones(2)

        def become(value):
            def change():
                state.scale = value

            return change

        steps = []
        for value in (0.5, 1.5, 2.5, math.nan, 3.5, math.nan, -1.0, math.nan):
            steps += [become(value), call(state, x, value), call(state, x, value)]
        return trace(body, dynamic=dynamic), steps, lambda: vars(state)

    check(make, hits=3)


def best_of(state):
    state.best = max(state.best, 0.0)


def shares_it(state):
    state.last = state.best


def decays(state):
    state.best = state.best * 0.5


def looks_twice(state):
    state.last = (state.best, state.best > 1, state.best != state.best)


@pytest.mark.parametrize("reads", [best_of, shares_it, decays, looks_twice], ids=lambda one: one.__name__)
def test_a_nan_that_was_recorded_behind_a_side_exit(reads):
    """The function runs again over steps that have compared the nan."""

    def make(trace):
        state = types.SimpleNamespace(best=0.0, noise=0.0, last=None)

        def step(x):
            reads(state)
            state.noise = random.random()
            return x * 2 if x.mean() > 0 else x + 1

        x = torch.ones(2)
        calls = [call(x), lambda: setattr(state, "best", math.nan), *(call(k * x) for k in (-1, 1, -1, 1, 1))]
        calls += [lambda: setattr(state, "best", 2.0), *(call(k * x) for k in (1, -1, 1, -1))]
        return trace(step), calls, lambda: vars(state)

    check(make, hits=2)


BY_LAMBDAS = {
    "index": lambda q, x: x[q, ...],
    "range": lambda q, x: [x] * len(range(q)),
    "int": lambda q, x: x * int(q),
    "float": lambda q, x: x * float(q),
    "sqrt": lambda q, x: x * math.sqrt(q),
    "complex": lambda q, x: x * complex(q).real,
}


@pytest.mark.parametrize("use", BY_LAMBDAS)
def test_special_methods_that_are_called_otherwise(use):
    """C code takes what they give for a number, whatever the function is called."""

    def make(trace):
        class Size:
            def __init__(self, value):
                self.value = value

        Size.__index__ = Size.__int__ = lambda self: self.value
        Size.__float__ = lambda self: float(self.value)
        Size.__complex__ = lambda self: complex(self.value)
        state = types.SimpleNamespace(size=Size(1))

        def change(value):
            return lambda: setattr(state.size, "value", value)

        step = trace(lambda x: BY_LAMBDAS[use](state.size, x))
        calls = [call(torch.arange(4.0)) for _ in range(2)]
        return step, [*calls, change(2), *calls, change(3), *calls, change(7), *calls]

    check(make, hits=2)


ASKED_IN_C = {
    "key": lambda q: {q: 1}[q],
    "get": lambda q: {7: 1}.get(q, 0),
    "member": lambda q: q in {1, 2},
    "hash": lambda q: hash(q) % 7,
    "list": lambda q: list(q),
}


@pytest.mark.parametrize("use", ASKED_IN_C)
def test_special_methods_of_which_c_code_wants_an_int(use):
    def make(trace):
        class Size:
            def __init__(self, value):
                self.value = value

            def __hash__(self):
                return self.value

            def __eq__(self, other):
                return self.value == getattr(other, "value", other)

            def __length_hint__(self):
                return self.value

            def __iter__(self):
                return iter([1, 2])

        state = types.SimpleNamespace(size=Size(1))

        def change(value):
            return lambda: setattr(state.size, "value", value)

        step = trace(lambda x: (x * 2, ASKED_IN_C[use](state.size)))
        calls = [call(ones()) for _ in range(2)]
        return step, [*calls, change(2), *calls, change(3), *calls, change(7), *calls]

    check(make, hits=1)


@cases.parametrize
def test_attacked(make, expected):
    check(make, **expected)
