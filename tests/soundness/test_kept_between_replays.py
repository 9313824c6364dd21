"""What replays keep from one to the next: memory of results, tensors of views, counts of writes."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, call, check

cases = Cases()

# A trace is recorded, hit, watched, proved, and from then on flat.
FLAT = 12


class Net(nn.Module):
    """Layers with transposed weights, biases, a normalisation, and two parameters of each size."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.norm(torch.tanh(self.two(torch.tanh(self.one(x))))))


def batches(count=FLAT):
    generator = torch.Generator().manual_seed(3)
    made = []
    for _ in range(count):
        x = torch.randn(5, 4, generator=generator)
        made.append(call(x, torch.randint(0, 3, (5,), generator=generator)))
    return made


def training(trace, clip=None, optimizer=torch.optim.SGD, loss=F.cross_entropy):
    torch.manual_seed(1)
    net = Net()
    opt = optimizer(net.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        value = loss(net(x), y)
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()
        return value

    return net, opt, trace(step)


def seen(net):
    parts = [*net.parameters()]
    return [
        [(p, p._version) for p in parts],
        [None if p.grad is None else (p.grad, p.grad._version, p.grad._is_view()) for p in parts],
    ]


KEEPS = {
    "the gradient": lambda p: p.grad,
    "a view": lambda p: p.grad.view(-1),
    "what is detached": lambda p: p.grad.detach(),
    "the memory": lambda p: p.grad.untyped_storage(),
    "an array": lambda p: p.grad.numpy(),
    "data": lambda p: p.grad.data,
}


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("keeps", KEEPS)
def test_what_the_caller_keeps_of_gradients(keeps, clip):
    def make(trace):
        net, _, step = training(trace, clip)
        kept = []

        def keep():
            kept.append([KEEPS[keeps](p) for p in net.parameters()])

        steps = batches()
        for each in batches(4):
            steps += [keep, each]
        return step, steps, lambda: ([[bytes(memoryview_of(k)) for k in row] for row in kept], seen(net))

    check(make, hits=FLAT)


def memoryview_of(kept):
    if isinstance(kept, torch.Tensor):
        kept = kept.detach().numpy()
    if isinstance(kept, torch.UntypedStorage):
        kept = torch.tensor([], dtype=torch.uint8).set_(kept).numpy()
    return kept.tobytes()


def bias_of_one(net):
    net.one.bias.data = torch.zeros(1).expand(4)


def other_strides(net):
    net.two.weight.data = torch.arange(16.0).view(4, 4).t()


def shared(net):
    net.two.weight.data = net.one.weight.data


def one_bias_in_another(net):
    both = torch.arange(8.0)
    net.one.bias.data, net.two.bias.data = both[:4], both[4:]


def other_gradient(net):
    net.one.weight.grad = torch.ones(4, 4)
    net.two.weight.grad = net.one.weight.grad


def other_parameter(net):
    net.one.weight = nn.Parameter(torch.ones(4, 4))


def hooked(net):
    net.one.weight.register_hook(lambda g: g * 2)


CHANGES = [bias_of_one, other_strides, shared, one_bias_in_another, other_gradient, other_parameter, hooked]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_change_once_it_is_flat(change, optimizer):
    def make(trace):
        net, _, step = training(trace, optimizer=optimizer)
        return step, [*batches(), lambda: change(net), *batches(6)], lambda: seen(net)

    check(make, hits=FLAT - 4)


LOSSES = {
    "sums": lambda s, y: F.cross_entropy(s, y, reduction="sum"),
    "rows": lambda s, y: F.cross_entropy(s, y, reduction="none").square().mean(),
    "an ignored class": lambda s, y: F.cross_entropy(s, y, ignore_index=1),
    "weights": lambda s, y: F.cross_entropy(s, y, weight=torch.tensor([1.0, 2.0, 3.0])),
    "smoothed": lambda s, y: F.cross_entropy(s, y, label_smoothing=0.1),
    "one row": lambda s, y: F.cross_entropy(s[0], y[0]),
    "nll": lambda s, y: F.nll_loss(s.log_softmax(-1), y),
    "double precision": lambda s, y: F.cross_entropy(s.double(), y),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss(loss):
    def make(trace):
        net, _, step = training(trace, loss=LOSSES[loss])
        return step, batches(), lambda: seen(net)

    check(make, hits=FLAT - 4)


# A class that there is none of raises in the middle of the step.
@cases(hits=FLAT)
def raises_in_the_middle(trace):
    net, _, step = training(trace)
    bad = call(torch.ones(5, 4), torch.tensor([0, 1, 2, 7, 0]))
    return step, [*batches(), bad, *batches(3), bad, bad, *batches(3)], lambda: seen(net)


# The step is called by a hook of the same step.
@cases(hits=2)
def calls_itself(trace):
    net, opt, _ = training(lambda step: step)
    depth = [0]

    def step(x, y):
        if depth[0]:
            with torch.no_grad():
                return net.out(torch.tanh(net.one(x)) @ net.two.weight.t()).sum()
        opt.zero_grad()
        hidden = net.one(x)
        hidden.register_hook(again)
        value = F.cross_entropy(net.out(hidden), y)
        value.backward()
        opt.step()
        return value

    def again(gradient):
        depth[0] += 1
        try:
            seen_inside.append(step_of_it(torch.ones(5, 4), torch.zeros(5, dtype=torch.long)))
        finally:
            depth[0] -= 1
        return gradient.t().t()

    seen_inside = []
    step_of_it = trace(step)
    return step_of_it, batches(), lambda: (seen(net), seen_inside[-1:])


# Operators that are told where to write, on shapes at the edge.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 5, 3), (4, 1, 2), (7, 3, 1), (33, 65, 17), (3, 0, 4)])
def test_products_with_a_bias(sizes, dtype):
    rows, inner, columns = sizes

    def make(trace):
        torch.manual_seed(0)
        x, w = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
        biases = [torch.randn(columns).to(dtype), torch.randn(1).to(dtype).expand(columns)]
        biases += [torch.randn(rows, columns).to(dtype), torch.randn(2 * columns).to(dtype)[::2]]

        def fn(x, w, *biases):
            with torch.no_grad():
                made = [torch.addmm(bias, x, w.t()) for bias in biases]
                made += [
                    torch.addmm(biases[0], x, w.t(), beta=0.5),
                    torch.addmm(biases[0], x, w.t(), alpha=2),
                ]
                return [m + 1 for m in made]

        return trace(fn), [call(x, w, *biases) for _ in range(4)]

    check(make, hits=2)


def test_two_threads_train_their_own():
    inputs = [(torch.full((5, 4), 0.1 * k), torch.tensor([0, 1, 2, 0, 1])) for k in range(30)]

    def losses(step):
        return [step(*each).item() for each in inputs]

    def of_threads(steps):
        found = [[] for _ in steps]
        threads = [
            threading.Thread(target=lambda one=one, into=into: into.extend(losses(one)))
            for one, into in zip(steps, found, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    steps = [training(lazytrace.traced)[2] for _ in range(2)]
    expected = losses(training(lambda step: step)[2])
    assert of_threads(steps) == [expected, expected]
    assert all(step.stats().hits > FLAT for step in steps)


def test_memory_of_what_is_gone_is_free():
    net, opt, step = training(lazytrace.traced)
    for each in batches():
        step(*each.args)
    memory = net.one.weight.untyped_storage()._weak_ref()
    del net, opt, step
    gc.collect()
    assert torch.UntypedStorage._expired(memory)
    torch.UntypedStorage._free_weak_ref(memory)


@cases.parametrize
def test_kept_between_replays(make, expected):
    check(make, **expected)
