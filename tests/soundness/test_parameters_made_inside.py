"""Parameters and modules that a call makes: copies of models, new layers, leaves of an inner loop."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, X, agree, call, check

cases = Cases()


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


def other(i):
    """An input of its own for each call."""
    return X(4, 3) * (1 + i / 4) - i / 8


def runs(trace, fn, *changes, count=5, watch=lambda: None):
    """`count` calls of different tensors, then for each change that and three more calls."""
    steps = [call(other(i)) for i in range(count)]
    for n, change in enumerate(changes):
        steps += [change, *(call(other(20 + 4 * n + i)) for i in range(3))]
    return trace(fn), steps, watch


def state_of(model):
    return [model, [p.grad for p in model.parameters()], [p.requires_grad for p in model.parameters()]]


@cases(hits=7)
def target_that_is_copied(trace):
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def fn(x):
        target = copy.deepcopy(model)
        with torch.no_grad():
            y = target(x) * 0.9
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    def freeze():
        model[0].weight.requires_grad_(False)

    def replace():
        model[3] = nn.Linear(4, 1)

    return runs(trace, fn, freeze, replace, model.eval, watch=lambda: state_of(model))


@cases(hits=4)
def inner_loop(trace):
    """As Reptile and MAML of first order have it."""
    model = net()
    opt = torch.optim.Adam(model.parameters(), 0.01)

    def fn(x):
        fast = copy.deepcopy(model)
        inner = torch.optim.SGD(fast.parameters(), 0.05)
        for _ in range(2):
            loss = fast(x).pow(2).mean()
            inner.zero_grad()
            loss.backward()
            inner.step()
        opt.zero_grad()
        for p, q in zip(model.parameters(), fast.parameters(), strict=True):
            p.grad = p.data - q.data
        opt.step()
        return loss.item()

    return runs(trace, fn, count=7, watch=lambda: state_of(model))


@cases(hits=4)
def a_layer_that_is_made(trace):
    """Its weights are drawn."""

    def fn(x):
        layer = nn.Linear(3, 2)
        layer(x).sum().backward()
        return layer.weight.grad * 2, layer.weight.sum().item()

    return runs(trace, fn)


@cases(hits=4)
def memory_of_an_argument(trace):
    def fn(x):
        p = nn.Parameter(x)
        with torch.no_grad():
            p.add_(1)
        (p * p).sum().backward()
        return p.grad, p.requires_grad, p.is_leaf, type(p) is nn.Parameter, isinstance(p, nn.Parameter)

    return runs(trace, fn)


@cases(hits=4)
def one_that_is_kept(trace):
    s = Holder(p=None)

    def fn(x):
        s.p = nn.Parameter(x * 2)
        return x

    return runs(trace, fn, watch=lambda: [s.p, type(s.p)])


@cases(hits=4)
def one_that_is_returned(trace):
    return runs(trace, lambda x: [nn.Parameter(x * 2, requires_grad=False)])


@cases(hits=4)
def one_that_is_returned_and_kept(trace):
    s = Holder(p=None, l=[])

    def fn(x):
        s.p = nn.Parameter(x * 2)
        s.l = [s.p, s.p.detach(), s.p.data]
        return s.p, {"a": s.p}, s.p * 2

    return runs(trace, fn, watch=lambda: [s.p, s.l, any(s.p is one for one in s.l)])


@cases(hits=4)
def one_that_has_a_gradient(trace):
    def fn(x):
        p = nn.Parameter(x.mean(0))
        (p * x).sum().backward()
        return p, p.grad

    return runs(trace, fn)


@cases(hits=4)
def one_that_its_own_memory_is_kept_of(trace):
    def fn(x):
        y = x * 2
        p = nn.Parameter(y)
        y += 1
        return p, y

    return runs(trace, fn)


@cases(hits=5)
def codes_that_follow_averages(trace):
    """As the codes of a VQ-VAE do, which are new parameters of a module at each call."""
    codes = nn.Embedding(4, 3)
    encode, decode = nn.Linear(3, 3), nn.Linear(3, 3)
    opt = torch.optim.SGD([*encode.parameters(), *decode.parameters()], 0.1)
    state = nn.Module()
    state.codes, state.sums, state.size = codes, nn.Parameter(torch.randn(4, 3)), torch.ones(4)

    def fn(x):
        z = encode(x)
        near = torch.cdist(z, codes.weight).argmin(1)
        one_hot = torch.zeros(len(x), 4).scatter_(1, near[:, None], 1)
        q = one_hot @ codes.weight
        with torch.no_grad():
            state.size = state.size * 0.9 + 0.1 * one_hot.sum(0)
        state.sums = nn.Parameter(state.sums * 0.9 + 0.1 * (one_hot.t() @ z))
        codes.weight = nn.Parameter(state.sums / state.size[:, None])
        loss = (decode(z + (q - z).detach()) - x).pow(2).mean() + (q.detach() - z).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    def freeze():
        codes.weight.requires_grad_(False)

    return runs(trace, fn, freeze, watch=lambda: [*state_of(state), *state_of(encode), state.size])


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p):
        ctx.save_for_backward(p)
        ctx.kind = type(p).__name__
        return p * p

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g * 2 * p * len(ctx.kind)


class Own(nn.Parameter):
    pass


def frozen(p, x, s):
    q = nn.Parameter(p, requires_grad=False)
    return q.requires_grad, (q * x).sum(), p is q, q.data_ptr() == p.data_ptr()


def of_a_parameter(p, x, s):
    q = nn.Parameter(s.w)
    (q * x.sum()).sum().backward()
    with torch.no_grad():
        q.sub_(q.grad)
    return q.grad is None, s.w.grad is None


def on_both_ways(p, x, s):
    y = p * 2 if p.sum() > 0 else p * 3
    y.sum().backward()
    return p.grad


def raises(p, x, s):
    s.n = p.sum().item()
    (p * x).sum().backward()
    torch.linalg.cholesky(p[:2, :2].detach())
    return p.grad


def by_a_function(p, x, s):
    Squared.apply(p).sum().backward()
    return p.grad, s.n


def by_a_hook(p, x, s):
    p.register_hook(lambda g: g * 2)
    (p * x).sum().backward()
    return p.grad


def changes_its_data(p, x, s):
    p.data = x * 3
    (p * p).sum().backward()
    p.data.mul_(2)
    return p.grad, p * 1


def clears_its_gradient(p, x, s):
    (p * x).sum().backward(retain_graph=False)
    first = p.grad
    p.grad = None
    (p * p).sum().backward()
    return first, p.grad, p.grad is first


def leaves_a_graph(p, x, s):
    return (p * x).sum(), p.detach()


def in_a_list_of_parameters(p, x, s):
    held = nn.ParameterList([p, p, nn.Parameter(x)])
    y = sum(q.sum() for q in held.parameters())
    y.backward()
    return p.grad, len(list(held.parameters()))


def with_an_attribute(p, x, s):
    p.tag = "a"
    return getattr(p, "tag", None), p.sum()


def of_a_class_of_ones_own(p, x, s):
    q = Own(x)
    return type(q).__name__, (q * 2).sum()


def of_whole_numbers(p, x, s):
    try:
        return nn.Parameter(x.long())
    except RuntimeError as error:
        return str(error), nn.Parameter(x.long(), requires_grad=False).sum()


def without_gradients(p, x, s):
    with torch.no_grad():
        q = nn.Parameter(x * 2)
        y = q * 2
    (q * x).sum().backward()
    return y, q.grad


def in_inference(p, x, s):
    with torch.inference_mode():
        q = nn.Parameter(x * 2, requires_grad=False)
        return q * 2


def shown(p, x, s):
    return repr(p), str(p.data)


def of_other_looks(p, x, s):
    a, b = nn.Parameter(x.t()), nn.Parameter(x[0].expand(2, 3))
    c = nn.Parameter(x.double()[1:, 1:])
    (a.sum() * b.sum() * c.sum()).backward()
    return a.grad, b.grad, c.grad


def a_shared_one(p, x, s):
    layer = nn.Linear(3, 3, bias=False)
    twin = nn.Linear(3, 3, bias=False)
    twin.weight = layer.weight
    twin(layer(x)).sum().backward()
    both = copy.deepcopy(nn.ModuleList([layer, twin]))
    return layer.weight.grad, both[0].weight is both[1].weight, len(list(both.parameters()))


def by_its_state(p, x, s):
    layer = nn.Linear(3, 3)
    layer.load_state_dict({"weight": x[:3], "bias": x[0]})
    copied = copy.deepcopy(layer).requires_grad_(False)
    return layer(x).sum(), copied(x), [n for n, q in copied.named_parameters() if q.requires_grad]


def by_optimizers(p, x, s):
    opt = torch.optim.AdamW([{"params": [p], "lr": 0.1}])
    for _ in range(3):
        opt.zero_grad()
        (p * x).pow(2).sum().backward()
        opt.step()
    return p.detach().clone(), len(opt.state)


def handed_to_opaque_code(p, x, s):
    return s.look(p), x


def in_a_transform(p, x, s):
    return torch.func.grad(lambda q: (q * x).sum())(p), torch.func.functional_call(
        s.model, {"weight": p[:3]}, x
    )


ALL = [
    frozen,
    of_a_parameter,
    on_both_ways,
    raises,
    by_a_function,
    by_a_hook,
    changes_its_data,
    clears_its_gradient,
    leaves_a_graph,
    in_a_list_of_parameters,
    with_an_attribute,
    of_a_class_of_ones_own,
    of_whole_numbers,
    without_gradients,
    in_inference,
    shown,
    of_other_looks,
    a_shared_one,
    by_its_state,
    by_optimizers,
    handed_to_opaque_code,
    in_a_transform,
]


@pytest.mark.parametrize("fn", ALL)
@pytest.mark.parametrize("source", ["argument", "made", "state"])
def test_attacks(fn, source):
    def make(trace):
        s = Holder(w=nn.Parameter(X(4, 3)), n=1.0, model=nn.Linear(3, 3))
        look = lambda p: (type(p).__name__, p.requires_grad, p * 2)  # noqa: E731
        s.look = lazytrace.opaque(look) if trace.enabled else look

        def step(x):
            data = {"argument": x, "made": x * 2, "state": s.w}[source]
            return fn(nn.Parameter(data), x, s)

        steps = [call(other(i) * (1, 1, 1, -1)[i % 4]) for i in range(8)]
        again = [call(other(i).requires_grad_()) for i in range(3)]
        return (
            trace(step),
            [*steps, lambda: s.w.requires_grad_(False), *steps, *again],
            lambda: [s.w, s.w.grad, s.n],
        )

    agree(make)


def test_copies_of_models():
    def make(trace):
        model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3))
        model[2].weight = model[0].weight

        def fn(x):
            first, second = copy.deepcopy(model), copy.deepcopy(model[0])
            with torch.no_grad():
                first[0].weight.mul_(2)
            y = first(x).sum() + second(x).sum()
            y.backward()
            return first[2].weight.grad, second.weight.grad, first[2].weight is first[0].weight

        def hook():
            model[0].register_forward_hook(lambda m, args, out: out * 3)

        def tag():
            model[0].weight.tag = "a"

        def extend():
            model.append(nn.Linear(3, 2))

        return runs(trace, fn, model.eval, model.train, hook, extend, tag, watch=lambda: state_of(model))

    agree(make)


def test_sets_that_are_copied():
    def make(trace):
        s = Holder(seen={1, "a", (2, 3)}, more=set())

        def fn(x):
            a, b = copy.deepcopy(s.seen), copy.deepcopy([s.more, s.more])
            a.add(len(a))
            return sorted(map(str, a)), b[0] is b[1], s.more is b[0], b, x * len(a)

        class Sub(set):
            pass

        changes = [lambda: s.seen.add(9), lambda: setattr(s, "more", Sub([1])), lambda: s.seen.clear()]
        return runs(trace, fn, *changes, watch=lambda: [s.seen, s.more])

    agree(make)


def test_a_graph_gives_no_parameters():
    step = lazytrace.traced(lambda x: nn.Parameter(x * 2, requires_grad=False))
    step(X(2)), step(X(2))
    with pytest.raises(NotImplementedError, match=r"returns a parameter that it made\. Return the tensor"):
        step.graph(X(2))


@cases.parametrize
def test_parameters_made_inside(make, expected):
    check(make, **expected)
