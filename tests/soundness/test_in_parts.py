"""Operators that are recorded as those that they are made of: nobody can tell from what they give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, call, check

cases = Cases()
VALUES = [torch.linspace(-k, 2 - k / 3, 24).reshape(4, 6) for k in range(1, 6)]
WEIGHT, CLASSES = torch.linspace(-1, 1, 24).reshape(4, 6), torch.tensor([1, 5, 2, 0])

# What is called, and an operator that is no step of its program, for it is taken apart.
APART = {
    "lstm cell": (lambda: Calls(nn.LSTMCell(6, 3)), "lstm_cell"),
    "gru cell": (lambda: Calls(nn.GRUCell(6, 3)), "gru_cell"),
    "tanh cell": (lambda: Calls(nn.RNNCell(6, 3)), "rnn_tanh_cell"),
    "relu cell": (lambda: Calls(nn.RNNCell(6, 3, nonlinearity="relu")), "rnn_relu_cell"),
    "cell without bias": (lambda: Calls(nn.LSTMCell(6, 3, bias=False)), "lstm_cell"),
    "lstm": (lambda: Calls(nn.LSTM(6, 3)), " lstm.input"),
    "gru": (lambda: Calls(nn.GRU(6, 3)), "gru.input"),
    "gru of two layers": (lambda: Calls(nn.GRU(6, 3, 2, bidirectional=True)), "gru.input"),
    "tanh": (lambda: Calls(nn.RNN(6, 3)), "rnn_tanh.input"),
    "relu": (lambda: Calls(nn.RNN(6, 3, nonlinearity="relu")), "rnn_relu.input"),
    "projected lstm": (lambda: Calls(nn.LSTM(6, 3, proj_size=2)), " lstm.input"),
    "einsum": (lambda: lambda x: torch.einsum("ij,kj->ik", x, WEIGHT), "einsum"),
    "einsum of three": (lambda: lambda x: torch.einsum("ij,kj,il->kl", x, WEIGHT, x), "einsum"),
    "diagonal": (lambda: lambda x: torch.einsum("ii->i", x[:, :4]), "einsum"),
    "outer": (lambda: lambda x: torch.outer(x[0], x[1]), "outer"),
    "diff": (lambda: lambda x: (torch.diff(x), x.diff(2, 0), (x > 0).diff()), " diff"),
    "hstack": (lambda: lambda x: (torch.hstack([x, x]), torch.hstack([x[0], x[1]])), "hstack"),
    "vstack": (lambda: lambda x: torch.vstack([x, x[0]]), "vstack"),
    "multi_dot": (lambda: lambda x: torch.linalg.multi_dot([x, WEIGHT.t(), x]), "multi_dot"),
    "kron": (lambda: lambda x: torch.kron(x[:2, :2], WEIGHT[:2, :3]), "kron"),
    "cosine": (lambda: lambda x: F.cosine_similarity(x, WEIGHT), "cosine_similarity"),
    "cross entropy": (lambda: lambda x: F.cross_entropy(x, CLASSES), "cross_entropy_loss"),
    "smoothed": (lambda: lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1), "cross_entropy_loss"),
    "of probabilities": (lambda: lambda x: F.cross_entropy(x, WEIGHT.softmax(1)), "cross_entropy_loss"),
    "nll": (lambda: lambda x: F.nll_loss(x, CLASSES, reduction="none"), "nll_loss_nd"),
    "unsafe_chunk": (lambda: lambda x: [one + 1 for one in x.unsafe_chunk(2, 1)], "unsafe_chunk"),
}


class Calls:
    """A module, its weights always the same, of eval or of training."""

    def __init__(self, module, training=False):
        for number, one in enumerate(module.parameters()):
            one.data.copy_(torch.linspace(-1, 1 + number, one.numel()).reshape(one.shape))
        self.module = module.train(training)

    def __call__(self, x):
        return self.module(x)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("name", APART)
def test_what_is_taken_apart(name, mode):
    made, operator = APART[name]

    def make(trace):
        function, around = made(), getattr(torch, mode)

        @trace
        def fn(x):
            with around():
                return function(x)

        return fn, [call(x.clone()) for x in VALUES]

    check(make, hits=4)
    function = made()
    fn = lazytrace.traced(lambda x: function(x))
    with torch.no_grad():
        fn(VALUES[0])
        assert operator not in str(fn.program(VALUES[0]))


@pytest.mark.parametrize("name", APART)
def test_what_is_taken_apart_at_changing_sizes(name):
    made, _ = APART[name]

    def make(trace):
        function = made()
        inner = trace(lambda x: function(x))
        rows = (
            [x[:4] for x in VALUES] if "cell" not in name else [x[:n] for x in VALUES for n in (4, 2, 3, 1)]
        )
        return inner, [lambda: torch.set_grad_enabled(False), *(call(x.clone()) for x in rows * 2)]

    check(make, hits=6)


WHOLE = {
    "with gradients": (lambda m: m, nn.GRUCell(6, 3), VALUES[0]),
    "under autocast": (lambda m: torch.autocast("cpu", torch.bfloat16)(m), nn.GRUCell(6, 3), VALUES[0]),
    "of many places": (lambda m: m, nn.GRU(6, 3), torch.ones(300, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_stays_whole(name):
    around, module, x = WHOLE[name]
    call_module = around(module)
    fn = lazytrace.traced(lambda: call_module(x))
    with torch.set_grad_enabled(name == "with gradients"):
        fn()
        assert "gru" in str(fn.program())


@cases(hits=3)
def lengths_of_a_packed_sequence_are_values(trace):
    module = Calls(nn.GRU(6, 3)).module

    @trace
    def fn(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        return module(packed)[0].data.sum()

    x = torch.linspace(-1, 1, 48).reshape(4, 2, 6)
    several = [torch.tensor(one) for one in ([4, 2], [4, 3], [4, 2], [3, 3], [4, 3], [4, 2], [4, 1])]
    return fn, [lambda: torch.set_grad_enabled(False), *(call(x, one) for one in several)]


@cases(hits=4)
def random_numbers_inside(trace):
    module = Calls(nn.GRU(6, 3, 2, dropout=0.5), training=True).module
    fn = trace(lambda x: module(x)[0])
    return fn, [lambda: torch.set_grad_enabled(False), *(call(x) for x in VALUES)]


@cases(hits=4)
def a_branch_on_what_a_cell_gives(trace):
    module = Calls(nn.LSTMCell(6, 3)).module

    @trace
    def fn(x):
        state = torch.zeros(4, 3), torch.zeros(4, 3)
        for _ in range(3):
            state = module(x, state)
            if state[1].sum() > 0:
                state = module(x + 1, state)
        return state

    return fn, [lambda: torch.set_grad_enabled(False), *(call(x * k) for x in VALUES for k in (1, -1))]


@cases(hits=3)
def it_goes_on_behind_a_write(trace):
    module, seen = Calls(nn.GRUCell(6, 3)).module, Holder(total=torch.zeros(()), calls=0)

    @trace
    def fn(x):
        state = module(x)
        seen.total += state.sum()
        if state.sum() > 1:
            state = module(x, state)
            seen.calls += 1
        return module(x, state)

    steps = [lambda: torch.set_grad_enabled(False), *(call(x * k) for x in VALUES for k in (1, -1))]
    return fn, steps, lambda: seen


def test_no_part_is_a_read():
    """What torch's code asks of dtypes and devices leads nowhere."""
    for name, (made, _) in APART.items():
        function = made()
        fn = lazytrace.traced(lambda x, function=function: function(x))
        with torch.no_grad():
            fn(VALUES[0])
            assert not fn.program(VALUES[0]).reads(), name


@cases(hits=4)
def behind_a_write_that_ends_resuming(trace):
    module, seen = Calls(nn.GRU(6, 3)).module, Holder(total=torch.zeros(4, 6))

    @trace
    def fn(x):
        seen.total.resize_(4, 6).add_(x)
        return module(x), torch.result_type(x, 1), torch.einsum("ij,kj->ik", x, seen.total)

    return fn, [lambda: torch.set_grad_enabled(False), *(call(x) for x in VALUES)], lambda: seen


@cases(eager="raised")
def an_error_of_its_own_that_is_caught(trace):
    module = Calls(nn.GRUCell(6, 3)).module

    @trace
    def fn(x):
        try:
            return torch.gru_cell(x, torch.zeros(4, 9), *module.parameters())
        except RuntimeError:
            return x * 2

    return fn, [lambda: torch.set_grad_enabled(False), *(call(x) for x in VALUES)]


@cases(recordings=1, hits=4)
def weights_that_are_given_other_values(trace):
    module = Calls(nn.LSTM(6, 3)).module

    def change():
        for one in module.parameters():
            one.data.mul_(-1.5)

    fn = trace(lambda x: module(x))
    steps = [step for x in VALUES for step in (call(x), change)]
    return fn, [lambda: torch.set_grad_enabled(False), *steps]


@cases(hits=3)
def another_way_of_lstm(trace):
    module = Calls(nn.LSTM(6, 3)).module

    def switch():
        torch.backends.mkldnn.enabled = not torch.backends.mkldnn.enabled

    fn = trace(lambda x: module(x))
    steps = [step for x in VALUES for step in (call(x), call(x), switch)]
    return fn, [lambda: torch.set_grad_enabled(False), *steps]


@cases(hits=4)
def what_leaves_from_between(trace):
    module, kept = Calls(nn.LSTMCell(6, 3)).module, Holder(states=[])

    @trace
    def fn(x):
        first = module(x)
        second = module(x, first)
        kept.states = [first[1], second[0]]
        return first[0], second[1]

    return fn, [lambda: torch.set_grad_enabled(False), *(call(x) for x in VALUES)], lambda: kept


@cases(hits=4)
def results_that_are_written_to(trace):
    module = Calls(nn.GRU(6, 3)).module

    @trace
    def fn(x):
        out, last = module(x)
        out.add_(1)
        last[0] += out[-1]
        scores = torch.einsum("ij,kj->ik", out, out)
        scores.fill_diagonal_(0)
        return out, last, scores

    return fn, [lambda: torch.set_grad_enabled(False), *(call(x) for x in VALUES)]


def test_an_operator_of_somebody_elses_runs():
    def product(a, b):
        return (a.unsqueeze(1) * b) + 100

    fn = lazytrace.traced(lambda x: torch.outer(x[0], x[1]))
    with torch.no_grad():
        fn(VALUES[0]), fn(VALUES[0])
        hits = fn.stats().hits
        library = torch.library.Library("aten", "IMPL")
        library.impl("outer", product, "CPU")
        try:
            for x in VALUES:
                assert torch.equal(fn(x), product(x[0], x[1]))
        finally:
            library._destroy()
        assert torch.equal(fn(VALUES[1]), torch.outer(VALUES[1][0], VALUES[1][1]))
        assert hits == 1
        assert fn.stats().hits > hits


@cases.parametrize
def test_in_parts(make, expected):
    check(make, **expected)
