"""Sizes that differ from call to call: what follows them, what reads them, and what leaves the call."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import json
import math
import operator
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lazytrace import reason_code, traced
from tests.soundness.operator_sizes import at_other_sizes, difference, outcome
from tests.soundness.runner import Cases, agree, call, check

cases = Cases()
ROOT = Path(__file__).resolve().parents[2]
SIZES = (3, 5, 7, 1, 0, 2, 11, 3, 5, 4, 8, 9, 6, 10)
NAMES = {
    "F": F,
    "collections": collections,
    "copy": copy,
    "functools": functools,
    "json": json,
    "math": math,
    "np": np,
    "operator": operator,
    "pickle": pickle,
    "torch": torch,
}


def at_all_sizes(function, **options):
    def make(trace):
        return trace(function, **options), [call(torch.randn(n, 4)) for n in SIZES]

    return make


def of_text(text):
    return eval(f"lambda x: {text}", dict(NAMES))


# The value goes to operators, or nothing but one branch hangs on it: two recordings or three serve all sizes.
FOLLOWED = [
    # A number on the left of a tensor: methods of the tensor that are written in Python.
    "x.shape[0] - x",
    "x.shape[0] / (x.abs() + 1)",
    "x.shape[0] // (x.abs() + 1)",
    "x.shape[0] % (x.abs() + 1)",
    "x.shape[0] ** x.abs()",
    "x.shape[0] ** -1.0 * x",
    "(x ** 2 + x ** x.shape[0]) // (x.abs() + 1)",
    "0.5 * x.shape[0] ** x",
    # Functions of numpy take an int for the float that it is.
    "x / np.sqrt(x.shape[1])",
    "x * np.log(x.shape[0] + 2) * np.log2(x.shape[0] + 2) / np.log10(x.shape[0] + 2)",
    "x * float(np.sqrt(x.shape[0] + 1))",
    "x[: int(np.ceil((x.shape[0] + 1) / 2))]",
    "x[: int(np.floor((x.shape[0] + 3) / 2))] * np.exp(x.shape[0] / 9)",
    "x * 1 if isinstance(x.shape[0], int) else x",
    "x * 1 if type(x.shape[0]) is int else x * 2",
    "x.view(x.shape[0], -1) * x.shape[0]",
    "(x[:x.shape[0] // 2], x[1:3], x[:5], x[-2:])",
    "x[x.shape[0] - 1] if x.shape[0] else x",
    "x * -x.shape[0] + abs(-x.size(0)) + ~x.size(0)",
    "x * ((x.shape[0] * 2 + 1) // (x.shape[0] + 1) + x.shape[0] % 3 + (x.shape[0] - 1) ** 2)",
    "x[x > 0].sum()",
    "x + 1 if x.shape[0] > 4 else x - 1",
    "x + 1 if x.shape[0] else x - 1",
    "x + 1 if not x.shape[0] else x - 1",
    "x + 1 if x.t().is_contiguous() else x - 1",
    "(x.t().contiguous(), x.contiguous(), x.contiguous() is x)",
    "(torch.full((x.shape[0],), x.shape[0]), torch.arange(x.shape[0]), torch.ones(x.shape))",
    "x * max(x.shape[0], 4) + min(x.shape) + sum(x.shape) + math.prod(x.shape)",
    "x * sum(s for s in x.shape)",
    "x * x.shape.numel()",
    "(lambda f: x * f(0) + f()[0])(x.size)",
    "x * torch.Tensor.size(x, 0)",
    "x * len(x)",
    "x * x.stride(0) + x.t().stride()[0]",
    "(x.squeeze(), x.sum(0, keepdim=True).squeeze())",
    "(torch.cat([x] * 2), torch.stack([x, x], 1).reshape(-1, x.shape[1]))",
    "(F.softmax(x, -1), F.layer_norm(x, (x.shape[-1],)), F.gelu(x))",
    "(F.pad(x, (0, x.shape[0])), x.repeat(x.shape[0] or 1, 1), x.expand(x.shape[0], -1))",
    "(x.roll(x.shape[0] // 2, 0), x.flip(0), x.tril())",
    "torch.einsum('ij,kj->ik', x, x)",
    "x * sum(i * s for i, s in enumerate(x.shape)) + dict(zip('ab', x.shape))['a']",
    "x + 1 if x.shape == (3, 4) else x - 1",
    "x + 1 if x.shape[0] == x.shape[1] else x - 1",
    "(x.to(torch.float64), x.double(), x.type_as(x), x.float(), x.to(x.dtype))",
    "(torch.rand(x.shape[0]), torch.randn_like(x), F.dropout(x, 0.5), torch.randperm(x.shape[0]))",
    "(x > 0).nonzero() * (x > 0).nonzero().shape[0]",
    "torch.zeros(12, x.shape[1]).index_copy(0, torch.arange(x.shape[0]), x)",
    "x.unflatten(0, (x.shape[0], 1)) if x.shape[0] else x",
    # Parameters that are plain ints.
    "F.one_hot(torch.arange(x.shape[0]), num_classes=x.shape[0] + 1)",
    "(torch.linspace(0, 1, x.shape[0]), torch.logspace(0, 1, steps=x.shape[0] + 2, dtype=torch.float64))",
    "(torch.tril_indices(x.shape[0], x.shape[0]), torch.triu_indices(x.shape[0], x.shape[1] + 1, -1))",
    "(torch.tril_indices(x.shape[0], 5), torch.triu_indices(4, x.shape[1], offset=x.shape[0]))",
    "(torch.hann_window(len(x)), torch.hamming_window(len(x) + 2, False), torch.bartlett_window(len(x)))",
    "(torch.fft.fftfreq(x.shape[0] + 1), torch.fft.rfftfreq(n=x.shape[0] + 1, d=2.0))",
    "(torch.ones(15, 15).diagonal(len(x)), torch.ones(15).diag(-len(x)), torch.ones(3).diag_embed(len(x)))",
    "(torch.arange(24.0).unfold(0, x.shape[0] + 1, x.shape[0] + 2), torch.vander(x[:, 0], x.shape[0]))",
    "(F.avg_pool1d(torch.ones(1, 30), len(x) + 1), F.max_pool1d(torch.ones(1, 30), len(x) + 1, 2))",
    "F.avg_pool2d(torch.arange(400.0).view(1, 20, 20), (x.shape[0] + 1, x.shape[1]), stride=x.shape[0] + 3)",
    "F.max_pool2d(torch.arange(400.0).view(1, 20, 20), [x.shape[0] + 1, 5], stride=(5, len(x) + 1))",
    "F.avg_pool2d(x[None] + torch.ones(1, 4, 4), x[None, :1].shape[-2:]) if len(x) in (4, 1) else x",
    "F.avg_pool2d(torch.ones(1, 4, x.shape[0] + 1), torch.ones(4, x.shape[0] + 1).shape)",
    "F.adaptive_avg_pool1d(torch.arange(30.0)[None], x.shape[0] + 1)",
    "F.adaptive_max_pool2d(torch.arange(400.0).view(1, 20, 20), (x.shape[0] + 1, x.shape[1]))",
    "torch.histc(x, bins=x.shape[0] + 1, min=-1, max=1)",
    "F.pixel_shuffle(torch.ones(1, (x.shape[0] + 1) ** 2, 2, 2), x.shape[0] + 1)",
    # What is given to them is converted first.
    "torch.sparse_coo_tensor(torch.ones(2, len(x)).long(), x[:, 0], (len(x) + 2, len(x) + 2)).to_dense()",
    "torch.spmm(torch.sparse_coo_tensor(torch.zeros(2, 0), x[:0, 0], [2 * len(x), len(x)]), x)",
    "torch.sparse.mm(torch.sparse_coo_tensor(torch.zeros(2, 0).int(), x[:0, 0], size=(len(x),) * 2), x)",
    "torch.sparse_coo_tensor(torch.arange(len(x))[None], x, torch.Size([len(x) + 1, 4])).coalesce().values()",
]

# The value is looked at: each size takes a way of its own, and a size that comes again hits.
READ = [
    "x * len(json.dumps({'n': x.shape[0]}))",
    "x * len(json.dumps({'n': x.shape[0]}, sort_keys=True))",
    "x * {3: 1.0, 5: 2.0}.get(x.shape[0], 7.0)",
    "x * (2 if x.shape[0] in {3, 7} else 3)",
    "x * (2 if x.shape[0] in (3, 7) else 3)",
    "x * len('%d' % x.shape[0])",
    "x * len(f'{x.shape[0]:>10}') + len(str(x.shape)) + len(repr(x.shape[0]))",
    "x * (hash(x.shape[0]) % 7)",
    "x * (2 if x.shape[0] is x.size(0) else 3)",
    "(x.shape[0], x.shape, x * 2, [x.numel()], {'a': x.stride()})",
    "x.size()",
    "x * len({x.shape[0]: 1, x.shape[1]: 2}) + sorted({x.shape[0], 4})[0]",
    "x * len(f'{x.shape[0]:d}' + '%s' % x.shape[0] + '{}'.format(x.shape[0]))",
    "x * (x.shape[0] / 2) + math.sqrt(x.shape[0]) + float(x.shape[0])",
    "x * sorted(x.shape)[0]",
    "x * functools.reduce(operator.mul, x.shape, 1)",
    "x * sum(map(int, x.shape))",
    "x * getattr(x, 'sh' + 'ape')[0]",
    "x * operator.attrgetter('shape')(x)[0]",
    "x * sum(map(torch.numel, [x, x]))",
    "[row + 1 for row in x]",
    "x.chunk(2) + x.split(2)",
    "x // (x.shape[0] + 1)",
    "x * x.nbytes",
    "[10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0, 120.0][x.shape[0]] * x",
    "[x] * x.shape[0]",
    "('a' * x.shape[0], x)",
    "torch.ones(24).chunk(x.shape[0] + 1)",
    "x * (x.shape[0].bit_length() + (x.shape[0] & 1) + (x.shape[0] << 1) + x.shape[0].real)",
    "x * ((x.shape[0] + 1) * 10**25 % 7)",
    "x * (x.shape[0] + 1) ** -1 + 2 ** x.shape[0] + pow(x.shape[0], 3, 5)",
    "x * float(str(x.shape[0])) + int(f'{x.shape[0]}')",
    "x * math.log(x.shape[0] + 1) + math.gcd(x.shape[0], 6)",
    "x * len(bytes(x.shape[0])) + ord(chr(x.shape[0] + 65))",
    "torch.tensor([x.shape[0], 1])",
    "x * int(np.int64(x.shape[0]))",
]

# Python hands the value to code that no recording sees into, with or without sizes that are followed.
REFUSED = [
    ("x * (2 if id(x.shape[0]) == id(None) else 3)", ""),
    ("x * pickle.loads(pickle.dumps(x.shape[0]))", "calls-unseen-function"),
]


@pytest.mark.parametrize("text", FOLLOWED)
def test_followed(text):
    check(at_all_sizes(of_text(text)), hits=9)
    check(at_all_sizes(of_text(text), dynamic=True), hits=10)


@pytest.mark.parametrize("text", READ)
def test_read(text):
    check(at_all_sizes(of_text(text), dynamic=True), hits=2)


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[text for text, _ in REFUSED])
def test_refused(text, why):
    plain, function = of_text(text), traced(of_text(text), dynamic=True)
    for n in SIZES:
        x = torch.randn(n, 4)
        assert torch.equal(function(x), plain(x))
    reasons = function.stats().eager
    assert reasons
    assert not function.stats().hits
    assert not why or why in {reason_code(reason.rpartition(" (")[0]) for reason in reasons}, reasons


@cases(hits=9)
def a_closure_over_a_size(trace):
    def run(x):
        n = x.shape[0]

        def inner(y):
            nonlocal n
            n = n + 1
            return y * n

        return inner(x)

    return at_all_sizes(run, dynamic=True)(trace)


@cases(hits=9)
def an_attribute_of_a_new_object(trace):
    class Box:
        pass

    def run(x):
        box = Box()
        box.n = x.shape[0]
        return x * box.n

    return at_all_sizes(run, dynamic=True)(trace)


@cases(hits=9)
def items_that_are_set(trace):
    def run(x):
        y = torch.zeros(x.shape[0] + 1, x.shape[1])
        y[: x.shape[0]] = x
        y[x.shape[0]] = 1
        return y

    return at_all_sizes(run, dynamic=True)(trace)


@cases(hits=9)
def a_write_to_what_is_a_view_at_one_size(trace):
    def run(x):
        y = x.t().reshape(-1)
        y.add_(1)
        return y, x

    return at_all_sizes(run, dynamic=True)(trace)


@cases(hits=9)
def a_write_in_place(trace):
    return at_all_sizes(lambda x: x.add_(x.shape[0]), dynamic=True)(trace)


@cases(hits=2)
def a_shape_that_is_changed_in_place(trace):
    def run(x):
        y = x.clone()
        y.t_()
        return y * y.shape[0], y.shape

    return at_all_sizes(run, dynamic=True)(trace)


@cases(hits=2)
def a_loop_over_a_range(trace):
    def run(x):
        for i in range(x.shape[0]):
            x = x + i
        return x

    return at_all_sizes(run, dynamic=True)(trace)


@cases(hits=2)
def a_size_as_an_index_that_is_too_large(trace):
    def run(x):
        try:
            return [1, 2, 3][x.shape[0]] * x
        except IndexError:
            return x

    return at_all_sizes(run, dynamic=True)(trace)


@cases(hits=3)
def a_size_in_the_result_after_a_write(trace):
    def fn(x):
        rest = x[1:]
        rest.add_(1)
        return rest, x.shape[0]

    return trace(fn, exit_limit=20), [call(torch.ones(n)) for n in (3, 5, 7, 1, 2, 11, 3, 5, 7)]


@cases(hits=2)
def a_size_that_is_kept_after_a_write(trace):
    state = types.SimpleNamespace(total=torch.zeros(()), last=None)

    def fn(x):
        state.total.add_(x.sum())
        state.last = x.shape[0]
        return x * 2

    steps = [call(torch.ones(n)) for n in (3, 5, 7, 1, 2, 11, 3, 5, 7)]
    return trace(fn, exit_limit=20), steps, lambda: vars(state)


@cases(hits=9)
def a_division_by_a_size(trace):
    return at_all_sizes(lambda x: x * (10 // x.shape[0]) if x.shape[0] else x, dynamic=True)(trace)


@cases(hits=2)
def a_division_by_zero(trace):
    return at_all_sizes(lambda x: x * (10 // x.shape[0]), dynamic=True)(trace)


@cases(hits=2)
def sizes_that_are_kept(trace):
    state = types.SimpleNamespace(n=None, all=[], by_size={})

    def run(x):
        state.n = x.shape[0]
        state.all.append(x.shape)
        state.by_size["last"] = (x.size(1), [x.numel()])
        return x * 2

    return *at_all_sizes(run, dynamic=True)(trace), lambda: (state.n, [*map(list, state.all)], state.by_size)


@cases(hits=9)
def a_cache_that_grows(trace):
    state = types.SimpleNamespace(keys=torch.zeros(0, 4))

    def run(x):
        state.keys = torch.cat([state.keys, x])
        return state.keys.sum() * state.keys.shape[0]

    return trace(run), [call(torch.randn(1, 4)) for _ in range(14)], lambda: state.keys


# The second call finds what the first one has put there, of a size that has not been seen to change yet.
@cases(hits=8, recordings=2)
def a_cache_that_the_first_call_makes(trace):
    state = types.SimpleNamespace(keys=None, begun=False)

    def run(state, x):
        state.keys = torch.cat([state.keys, x]) if state.begun else x * 1
        state.begun = True
        return state.keys.sum() * state.keys.shape[0]

    return trace(run), [call(state, torch.randn(1, 4)) for _ in range(10)], lambda: state.keys


# What it carries keeps its size: a recording that follows sizes serves as well.
@cases(hits=8, recordings=2)
def an_average_that_the_first_call_makes(trace):
    state = types.SimpleNamespace(average=None, begun=False)

    def run(state, x):
        state.average = state.average * 0.9 + x * 0.1 if state.begun else x * 1
        state.begun = True
        return state.average - x

    return trace(run), [call(state, torch.randn(1, 4)) for _ in range(10)], lambda: state.average


@cases(hits=9)
def gradients(trace):
    def run(x):
        return (x * x.shape[0]).view(-1).sum() / x.numel() if x.numel() else x.sum()

    return trace(run), [call(torch.randn(n, 4).requires_grad_()) for n in SIZES]


TABLE = [10, 20, 30]


def put_at(x):
    x = x.clone()
    x[3] = 1
    return x


# C code says of some sizes that they are wrong before it calls an operator.
CAUGHT = {
    "index": lambda x: x[3], "negative index": lambda x: x[-4], "ellipsis": lambda x: x[..., 3],
    "assignment": put_at, "of a list": lambda x: TABLE[x.long()], "float": float, "int": int,
    "tensor as an index": lambda x: x[torch.tensor(3)], "format": lambda x: "%f" % x,  # noqa: UP031
    "key": lambda x: sorted(x, key=float), "math": math.sqrt, "floor": math.floor,
    "repeated": lambda x: [1] * x.long(), "complex": complex, "None": lambda x: x[None, 0, 2],
}  # fmt: skip


@pytest.mark.parametrize("name", CAUGHT)
@pytest.mark.parametrize("first", [3, 5, 1])
def test_an_exception_that_follows_from_a_size_is_caught(name, first):
    inside = CAUGHT[name]

    def attempt(x):
        try:
            return inside(x)
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            return str(error)

    def make(trace):
        return trace(attempt, dynamic=True), [call(torch.arange(float(n))) for n in (first, 4, 1, 2, 3, 5, 4)]

    agree(make)


@cases(hits=3)
def data_of_another_size(trace):
    count = torch.zeros(3)

    def fn(x):
        inside = x.data
        count.add_(1)
        return inside

    return trace(fn), [call(torch.ones(n)) for n in (3, 1, 2, 3, 5)], lambda: count


@cases.parametrize
def test_sizes(make, expected):
    check(make, **expected)


def plain_ints(value):
    """All numbers in a value, each of which must be an int and nothing else."""
    if isinstance(value, dict):
        return plain_ints([*value.keys(), *value.values()])
    if isinstance(value, list | tuple):
        return [found for item in value for found in plain_ints(item)]
    return [value] if isinstance(value, int) else []


KEPT = types.SimpleNamespace(n=0, list=[])


@dataclasses.dataclass
class Sized:
    n: int
    shape: torch.Size


def leave(x):
    KEPT.n = x.shape[0]
    KEPT.list.append((x.shape[0] + 1, [x.numel()]))
    return {"n": x.shape[0], x.size(1): [x.shape, x.stride()]}, Sized(x.shape[0] * 2, x.shape), x + 1


# ---------------------------------------------------------------- loops with a stride
def in_chunks(x):
    return torch.cat([x, *(x[i : i + 4].softmax(0) for i in range(0, x.shape[0], 4))])


def in_a_loop(x):
    total = x.sum()
    for i in range(1, len(x), 3):
        total = total + x[i : i + 3].prod() * i
    return total


def between_constants(x):
    ends = [(i, min(i + 8, x.shape[0])) for i in range(0, x.shape[0], 8)]
    return torch.stack([x[a:b].sum() for a, b in ends]) if ends else x


def whose_end_is_asked(x):
    turns = range(0, x.shape[0], 4)
    return x * turns.stop, repr(turns), x.shape[0] in turns


def by_iter(x):
    return x * sum(iter(range(0, x.shape[0], 4))), len(range(0, x.shape[0], 4))


def downwards(x):
    return [x[i] for i in range(x.shape[0] - 1, -1, -2)]


@pytest.mark.parametrize("function", [in_chunks, in_a_loop, between_constants], ids=lambda f: f.__name__)
def test_how_often_a_loop_turns_is_read_and_not_where_it_ends(function):
    check(at_all_sizes(function), hits=7)


@pytest.mark.parametrize("function", [whose_end_is_asked, by_iter, downwards], ids=lambda f: f.__name__)
def test_what_else_a_range_is_for_reads_its_end(function):
    check(at_all_sizes(function), hits=2, recordings=12)


def test_nothing_that_leaves_is_a_carrier():
    function = traced(leave, dynamic=True)
    for n in SIZES:
        out, sized, _ = function(torch.randn(n, 4))
        left = plain_ints([out, sized.n, sized.shape, KEPT.n, KEPT.list])
        assert left
        assert {type(number) for number in left} == {int}
        assert (sized.n, sized.shape, KEPT.n, KEPT.list[-1]) == (2 * n, (n, 4), n, (n + 1, [4 * n]))
        assert not isinstance(KEPT.n, torch.SymInt)


def test_an_exception_leaves_no_carrier():
    seen = []

    def run(x):
        seen.append(x.shape[0])
        raise ValueError(x.shape)

    function = traced(run, dynamic=True)
    with pytest.raises(ValueError, match=r"torch\.Size") as raised:
        function(torch.randn(3, 4))
    assert [type(n) for n in (*seen, *raised.value.args[0])] == [int, int, int]


def test_another_thread_is_given_plain_ints():
    def run(x):
        out = []
        n = x.shape[0]
        thread = threading.Thread(target=lambda: out.append((type(n), n + 1)))
        thread.start()
        thread.join()
        return x * out[0][1], out[0][0]

    function = traced(run, dynamic=True)
    for n in SIZES:
        x = torch.randn(n, 4)
        result, kind = function(x)
        assert torch.equal(result, x * (n + 1))
        assert kind is int


def test_a_size_that_a_hook_of_the_caller_keeps():
    class Keeper(list):
        def append(self, value):
            super().append(value)

    keeper = Keeper()
    function = traced(lambda x: (keeper.append(x.shape[0]), x * 2)[1], dynamic=True)
    for n in SIZES:
        function(torch.randn(n, 4))
    assert list(keeper) == list(SIZES)
    assert {type(n) for n in keeper} == {int}


OPERATORS = [
    "add",
    "bmm",
    "cat",
    "chunk",
    "clamp",
    "cumsum",
    "diff",
    "expand",
    "flatten",
    "gather",
    "index_select",
    "logsumexp",
    "masked_fill",
    "matmul",
    "max",
    "mean",
    "narrow",
    "nn.functional.conv2d",
    "nn.functional.layer_norm",
    "nn.functional.pad",
    "nn.functional.scaled_dot_product_attention",
    "permute",
    "repeat",
    "reshape",
    "roll",
    "select",
    "softmax",
    "sort",
    "split",
    "squeeze",
    "stack",
    "std",
    "sum",
    "take_along_dim",
    "topk",
    "transpose",
    "tril",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
    "where",
]


@pytest.mark.parametrize(("how", "share"), [((), 3), (("--inside",), 3), (("--numbers",), 6)])
def test_operators_at_other_sizes_and_numbers(how, share):
    # In a process of its own: the database of torch's tests sets switches that cannot be set again.
    command = [sys.executable, "-m", "tests.soundness.operator_sizes", "--most", "4", *how, *OPERATORS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(part.split("=") for part in done.stdout.split("\n")[-2].split())
    assert found["wrong"] == "0", done.stdout
    assert int(found["operators"]) >= len(OPERATORS)
    assert int(found["hits"]) > int(found["calls"]) // share


def test_the_check_of_operators_can_fail():
    args = (torch.randn(3, 4),)
    assert at_other_sizes(args, {3: 5})[0].shape == (5, 4)
    assert difference(outcome(torch.sin, args, {}), outcome(torch.cos, args, {}))
    assert not difference(outcome(torch.sin, args, {}), outcome(torch.sin, args, {}))


def _with(made, key, value):
    made[key] = value
    return made


# torch takes the tensor itself for a slice of everything, and its graph says so.
@pytest.mark.parametrize(
    "body",
    [
        lambda w, n: w[:, :n],
        lambda w, n: w[..., n:],
        lambda w, n: w[0, :n],
        lambda w, n: w[n % 3, : w.shape[1] if n > 7 else n],
        lambda w, n: w[None, :, 0:n],
        lambda w, n: w[:n],
        lambda w, n: _with(torch.zeros(3, 9), (slice(None), slice(0, n)), w[:, :n]),
        lambda w, n: _with(torch.zeros(3, 9), (0, slice(n)), w[0, :n]),
        lambda w, n: _with(torch.zeros(3, 9), slice(n), w[:n]),
        lambda w, n: _with(torch.zeros(3, 9), (torch.arange(3) > 0, slice(n)), w[1:, :n]),
    ],
)
def test_slices_of_everything(body):
    def make(trace):
        w = torch.randn(3, 9, requires_grad=True)
        return trace(body), [call(w, n) for n in (2, 4, 5, 6, 9, 1, 9, 12, 0, 3, 0, 3, 9, 7)]

    tracer = agree(make)
    assert tracer.count("hits") >= 5, tracer.account()


CONJUGATES = {
    "conj": lambda x: torch.conj(x) * 2,
    "resolved": lambda x: x.conj().resolve_conj() + 1,
    "negative": lambda x: x.resolve_neg() * 3,
    "itself": lambda x: (x.conj() is x, x.resolve_conj() is x, x * 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("before", ["plain", "conjugate", "imaginary"])
@pytest.mark.parametrize("name", CONJUGATES)
def test_conjugates(name, before, dtype):
    """Of a real tensor it is that tensor, of a complex one a view by an operator of another name."""

    def looks(x):
        if before == "imaginary" and x.is_complex():
            return x.conj().imag
        return x if before == "plain" else x.conj()

    def make(trace):
        return trace(CONJUGATES[name]), [
            call(looks(torch.randn(n, 2, dtype=dtype))) for n in (4, 6, 5, 7, 0, 4)
        ]

    check(make, hits=4, recordings=2)
