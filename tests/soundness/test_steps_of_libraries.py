"""What steps of training programs do between the lines: modules that are moved, signatures that are asked,
memory that is written to at sizes that values decide."""

from __future__ import annotations

import collections
import importlib
import inspect
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


def trained(body, *, steps=8, rows=lambda i: 6):
    """A step of SGD over a network, of the loss that `body(net, x)` gives, on batches of `rows(i)` rows."""

    def make(trace):
        torch.manual_seed(0)
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = body(net, x)
            loss.backward()
            optimizer.step()
            return loss.item()

        return trace(step), [call(torch.randn(rows(i), 4)) for i in range(steps)], lambda: net

    make.__name__ = body.__name__
    return make


# ---------------------------------------------------------------- modules that are moved to where they are
def is_moved(net, x):
    return net.to("cpu")(x).pow(2).sum()


def is_converted_twice(net, x):
    return net.float().to(torch.float32)(x).pow(2).sum()


def is_asked_behind_a_region(net, x):
    with torch.no_grad():
        w = net.weight.to("cpu")
    torch._has_compatible_shallow_copy_type(net.weight, w)
    return net(x).pow(2).sum()


def is_asked_inside_a_region(net, x):
    loss = net(x).pow(2).sum()
    with torch.no_grad():
        torch._has_compatible_shallow_copy_type(net.weight, x)
        scale = net.weight.sum()
    return loss * (1 + scale.requires_grad)


for body in (is_moved, is_converted_twice, is_asked_behind_a_region, is_asked_inside_a_region):
    cases(trained(body), hits=6)


# ---------------------------------------------------------------- dicts behind proxies
def proxies(kind):
    """The entries of a dict that an object shows by a proxy, which others change."""

    def make(trace):
        inner = kind(a=2.0, b=3.0)
        state = types.SimpleNamespace(shown=types.MappingProxyType(inner))

        def scaled(x):
            shown = state.shown
            return x * sum(shown[k] for k in shown if k in shown) * len(shown) + ("c" in shown)

        steps = [call(X(3)), call(X(3))]
        for change in (
            lambda: inner.update(a=5.0),
            lambda: inner.update(c=1.0),
            lambda: inner.pop("a"),
            lambda: setattr(state, "shown", types.MappingProxyType(kind(z=7.0))),
            lambda: setattr(state, "shown", {"z": 8.0}),
        ):
            steps += around(change, X(3))
        return trace(scaled), steps, lambda: (dict(inner), dict(state.shown))

    make.__name__ = f"proxies_of_{kind.__name__}"
    return make


cases(proxies(dict), hits=6)
cases(proxies(collections.OrderedDict), hits=6)


@cases(hits=6)
def parameters_of_a_signature(trace):
    """Which keywords a function takes, as torchmetrics asks before it updates a metric."""

    class Metric:
        def __init__(self):
            self.signature = inspect.signature(self.update)

        def update(self, preds, target, weight=None):
            return (preds - target).abs().mean()

        def filtered(self, **kwargs):
            kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            known = self.signature.parameters
            taken = {k: v for k, v in kwargs.items() if k in known and known[k].kind not in kinds}
            if any(one.kind == inspect.Parameter.VAR_KEYWORD for one in known.values()):
                return kwargs
            return taken

    metric = Metric()

    def step(x, y):
        return metric.update(x, y, **metric.filtered(weight=x, other=y))

    return trace(step), [call(X(3), X(3) + i) for i in range(7)]


@cases(eager="reads")
def a_proxy_of_a_class(trace):
    class Settings:
        scale = 2.0

    state = types.SimpleNamespace(shown=Settings.__dict__)

    def step(x):
        Settings.scale = Settings.scale * 2
        return x * state.shown["scale"]

    return trace(step), [call(X(3)) for _ in range(4)], lambda: Settings.scale


@cases(hits=3)
def a_dict_that_is_written_to_behind_its_proxy(trace):
    inner = {"a": 2.0}
    state = types.SimpleNamespace(shown=types.MappingProxyType(inner))

    def step(x):
        before = state.shown["a"]
        inner["a"] = before + 1.0
        return x * state.shown["a"] - before

    def back():
        inner["a"] = 2.0

    return trace(step), [call(X(3)), back] * 6, lambda: inner


def counts_behind_a_proxy():
    """A function that counts in an attribute, and reads that through a proxy of the namespace."""
    thing = types.SimpleNamespace(a=2.0)
    state = types.SimpleNamespace(shown=types.MappingProxyType(thing.__dict__))

    def step(x):
        thing.a = thing.a + 1.0
        return x * state.shown["a"]

    return step, thing


@cases(recordings=4)
def a_namespace_behind_a_proxy_goes_on(trace):
    """What the attribute was before the call is not what the proxy shows behind the write."""
    step, thing = counts_behind_a_proxy()
    return trace(step), [call(X(3))] * 4, lambda: thing.a


def kept_view(of):
    """The view is read before anything else leads to its dict."""

    def make(trace):
        counts = {"a": 2.0}
        state = types.SimpleNamespace(view=of(counts))

        def step(x, n):
            before = list(state.view)
            counts["a"] = n
            return x * 2, before, list(state.view)

        steps = [call(X(3), 3), call(X(3), 3), lambda: counts.update(b=3.0), call(X(3), 3), call(X(3), 4)]
        return trace(step), steps, lambda: counts

    return make


@pytest.mark.parametrize("of", [dict.keys, dict.values, dict.items])
def test_a_view_that_is_read_before_its_dict_is_found(of):
    check(kept_view(of), recordings=4)


@cases(hits=5)
def a_namespace_behind_a_proxy(trace):
    step, thing = counts_behind_a_proxy()

    def back():
        thing.a = 2.0

    return trace(step), [call(X(3)), back] * 6, lambda: thing.a


# ---------------------------------------------------------------- memory of the call's own, at all sizes
def divides_a_part(net, x):
    parts = net(x[x[:, 0] > -0.3]).reshape(-1, 2, 2)
    first = parts[..., :1]
    first /= 3.0
    return parts.pow(2).sum()


def fills_a_diagonal(net, x):
    kept = x[x[:, 0] > -0.3]
    same = (kept[:, :1] > kept[:, 0]).byte()
    same.fill_diagonal_(0)
    return net(kept).pow(2).sum() * same.sum()


def normalizes_in_place(net, x):
    out = nn.functional.layer_norm(net(x[x[:, 0] > -0.3]), (4,))
    out = nn.functional.leaky_relu_(nn.functional.dropout(out, 0.1).contiguous(), 0.1)
    return out.pow(2).sum()


def converts_to_what_it_is(net, x):
    kept = x[x[:, 0] > -0.3]
    same = kept.float().contiguous()
    same.mul_(2.0)
    return net(kept).pow(2).sum() + same.sum()


def behind_a_change(body):
    """The same after something that cannot be undone."""

    def changed(net, x):
        with torch.no_grad():
            net.bias.mul_(0.9)
        return body(net, x)

    changed.__name__ = f"{body.__name__}_behind_a_change"
    return changed


for body in (divides_a_part, fills_a_diagonal, normalizes_in_place, converts_to_what_it_is):
    cases(trained(body, steps=10, rows=lambda i: 12), hits=6)
    cases(trained(behind_a_change(body), steps=10, rows=lambda i: 12), hits=6)


def may_be_the_argument(convert):
    """What is a copy at some sizes and the argument at others is written to."""

    def make(trace):
        w = nn.Parameter(torch.ones(4))

        def step(x):
            with torch.no_grad():
                w.mul_(0.5)
                y = convert(x)
                y.mul_(2.0)
            return y + w, x

        def batch(i):
            wide = torch.arange(24.0).reshape(4, 6)
            return wide[:, : 2 + i].t()[:2].t().contiguous() if i % 3 else wide[:, : 2 + i]

        return trace(step), [call(batch(i).t()[:, :4]) for i in range(5)], lambda: w

    make.__name__ = f"may_be_the_argument_{convert.__name__}"
    return make


def contiguous(x):
    return x.contiguous()


def as_channels(x):
    return x[None, None].to(memory_format=torch.channels_last)


def as_float(x):
    return x.to(torch.float32)


cases(may_be_the_argument(contiguous), hits=1, eager="sizes-memory")
cases(may_be_the_argument(as_channels), hits=1, eager="sizes-memory")
cases(may_be_the_argument(as_float), hits=3)


def shown_by_einsum(x):
    return torch.einsum("ij->ij", x)


def product_by_einsum(x):
    return torch.einsum("ij,j->ij", x, torch.ones(x.shape[1]))


cases(may_be_the_argument(shown_by_einsum), hits=1, eager="sizes-memory")
cases(may_be_the_argument(product_by_einsum), hits=3)


class Codebook(nn.Module):
    """Averages of what is given, kept in buffers that are written to by their `.data`."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(4))
        self.register_buffer("total", torch.randn(4, 3))
        self.register_buffer("codes", torch.randn(4, 3))

    def forward(self, x, average):
        index = torch.cdist(x, self.codes).argmin(-1)
        hot = nn.functional.one_hot(index, 4).float()
        with torch.no_grad():
            average(self, hot.sum(0), torch.einsum("nd,nc->cd", x, hot))
        return x + (self.codes[index] - x).detach()


def by_lerp(book, count, total):
    book.count.data.lerp_(count, 0.2)
    book.total.data.lerp_(total.to(book.total), 0.2)
    book.codes.data.copy_(book.total / (book.count[:, None] + 1e-5))


def by_parts(book, count, total):
    book.count.data.mul_(0.8).add_(count, alpha=0.2)
    book.total.data[:, :2].mul_(0.8)
    book.total.data.view(-1).add_(total.view(-1), alpha=0.2)


def by_data_of_others(book, count, total):
    """Memory that is the call's own, or the argument's, by turns."""
    book.count.data = count
    book.count.data.mul_(0.8)
    book.total.data = total * 2
    book.total.data.add_(1)
    total.mul_(0.5)


@pytest.mark.parametrize("average", [by_lerp, by_parts, by_data_of_others], ids=lambda way: way.__name__)
def test_buffers_are_written_by_their_data(average):
    def make(trace):
        torch.manual_seed(0)
        book = Codebook()
        fn = trace(lambda x: book(x, average))
        return (
            fn,
            [call(torch.randn(3 + k % 4, 3)) for k in range(14)],
            lambda: (
                dict(book.named_buffers()),
                [b.data_ptr() == b.data.data_ptr() for b in book.buffers()],
            ),
        )

    check(make, hits=9)


class Experts(nn.Module):
    """A layer of which each row goes through the expert that is chosen for it, as in a switch transformer."""

    def __init__(self):
        super().__init__()
        self.choice = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        routes = self.choice(x).softmax(-1).max(-1)
        rows = [(routes.indices == i).nonzero(as_tuple=True)[0] for i in range(3)]
        counts = x.new_tensor([len(found) for found in rows])
        out = x.new_zeros(x.shape)
        for found, expert in zip(rows, self.experts, strict=True):
            out[found, :] = expert(x[found, :])
        scores = torch.einsum("ih,jh->ij", out * routes.values[:, None], x)
        scores *= 0.5
        return nn.functional.dropout(scores, 0.1) @ x, counts


@cases(hits=6)
def experts_get_rows_by_values(trace):
    torch.manual_seed(0)
    net = nn.ModuleList([Experts(), Experts()])
    optimizer = torch.optim.Adam(net.parameters())

    def step(x):
        optimizer.zero_grad()
        counts = []
        for layer in net:
            x, count = layer(x)
            counts.append(count)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        return loss.item(), counts

    return trace(step), [call(torch.randn(12, 4)) for _ in range(12)], lambda: list(net.parameters())


# ---------------------------------------------------------------- what comes to require gradients in place
def averages_by_data(net, x):
    """An average of values that require gradients, taken on `.data`; behind it is code that could raise."""
    net.average = getattr(net, "average", None)
    if net.average is None:
        net.average = torch.zeros(4, 4)
    average = net.average
    average.data.lerp_(net(x)[:4], 0.1)
    try:
        return net(x).reshape(2, -1).pow(2).sum() + average.sum()
    except IndexError:
        return net(x).sum()


def fills_a_cache(net, x):
    """A buffer of the call's own that is marked for the compiler, as caches of transformers are."""
    cache = torch.zeros(6, 4)
    torch._dynamo.mark_static_address(cache)
    cache.copy_(net(x))
    with torch.no_grad():
        net.bias.mul_(0.9)
    try:
        return cache.reshape(2, -1).pow(2).sum()
    except IndexError:
        return cache.sum()


def asks_before_it_fills(net, x):
    """Code that runs again would be told of the flag."""
    cache = torch.zeros(6, 4)
    scale = 3.0 if cache.data.requires_grad or cache.requires_grad else 2.0
    cache.copy_(net(x))
    with torch.no_grad():
        net.bias.mul_(0.9)
    try:
        return cache.reshape(2, -1).pow(2).sum() * scale
    except IndexError:
        return cache.sum()


def branches_behind_data(net, x):
    """What `.data` shows is another tensor when it is asked for again, in code that goes another way."""
    cache = torch.zeros(6, 4)
    before = cache.data
    cache.copy_(net(x))
    with torch.no_grad():
        net.bias.mul_(0.9)
    shown = cache.data
    if cache.sum() > 0:
        return cache.pow(2).sum() * (1 + shown.requires_grad + before.requires_grad)
    return cache.pow(2).sum() * (3 + cache.requires_grad - shown.requires_grad) + before.sum()


def branches_behind_data_that_is_written_to(net, x):
    average = net.weight.detach().clone()
    other = average.data
    other.lerp_(net(x)[:4], 0.5)
    with torch.no_grad():
        net.bias.mul_(0.9)
    if x.sum() > 0:
        return other.pow(2).sum() * (1 + average.data.requires_grad + average.requires_grad)
    return other.pow(2).sum() * (3 + other.requires_grad) + average.sum()


def marks_and_branches(net, x):
    cache = torch.zeros(6, 4)
    cache.kept = 5
    cache.copy_(net(x))
    with torch.no_grad():
        net.bias.mul_(0.9)
    if cache.sum() > 0:
        return cache.pow(2).sum() * cache.kept
    return cache.pow(2).sum() * (3 + cache.requires_grad)


def average_of(net):
    if not hasattr(net, "average"):
        net.average = torch.zeros(4, 4)
    return net.average


def averages_and_branches(net, x):
    """The tensor that `.data` gave is gone before anybody asks, so that code that runs again may go on."""
    average_of(net).data.lerp_(net(x)[:4], 0.1)
    average_of(net).data[1:].add_(net(x)[:3].mean())
    if x.sum() > 0:
        return net(x).pow(2).sum() * (1 + net.average.requires_grad + net.average.data.requires_grad)
    return net(x).pow(2).sum() * (3 - net.average.data.requires_grad) + net.average.sum()


def asks_at_once(net, x):
    scale = 2.0 if average_of(net).data.lerp_(net(x)[:4], 0.1).requires_grad else 3.0
    if x.sum() > 0:
        return net(x).pow(2).sum() * scale
    return net(x).pow(2).sum() - scale


def keeps_it_for_a_while(net, x):
    shown = average_of(net).data
    shown.lerp_(net(x)[:4], 0.1)
    first = net(x).sum() > 0
    scale = 2.0 if shown.requires_grad else 3.0
    del shown
    return net(x).pow(2).sum() * scale if first else net(x).pow(2).sum()


def keeps_a_view(net, x):
    row = average_of(net).data.lerp_(net(x)[:4], 0.1)[0]
    if x.sum() > 0:
        return net(x).pow(2).sum() + row.sum() * (1 + row.requires_grad)
    return net(x).pow(2).sum() - row.sum() * (1 + (row.grad_fn is None))


def keeps_it_on_the_module(net, x):
    net.shown = average_of(net).data.lerp_(net(x)[:4], 0.1)
    if x.sum() > 0:
        return net(x).pow(2).sum() * (1 + net.shown.requires_grad)
    return net(x).pow(2).sum() * (3 + net.shown.requires_grad)


cases(trained(fills_a_cache), hits=6)
cases(trained(marks_and_branches, steps=12), hits=3)
cases(trained(averages_by_data), hits=5)
cases(trained(averages_and_branches, steps=12), hits=3)
for body in (
    asks_at_once,
    keeps_it_for_a_while,
    keeps_a_view,
    keeps_it_on_the_module,
    asks_before_it_fills,
    branches_behind_data,
    branches_behind_data_that_is_written_to,
):
    cases(trained(body), eager="comes to require gradients in place")


# ---------------------------------------------------------------- what the class of a weight is called
def asks_for_the_class_by_name(net, x):
    """PEFT asks so whether a weight is quantized."""
    quantized = net.weight.__class__.__name__ in ("Params4bit", "Int8Params")
    return net(x).pow(2).sum() * (1 + (x.__class__ is torch.Tensor) + quantized)


@cases(hits=3)
def weights_of_another_class(trace):
    class Quantized(nn.Parameter):
        pass

    net = nn.Linear(3, 3)
    weights = [nn.Parameter(torch.ones(3, 3)), Quantized(torch.ones(3, 3))]

    def step(x):
        return x @ net.weight * (2.0 if net.weight.__class__.__name__ == "Quantized" else 1.0)

    def change():
        net.weight = weights[net.weight is weights[0]]

    change()
    return trace(step), [call(X(3)), call(X(3)), *around(change, X(3)), *around(change, X(3))]


cases(trained(asks_for_the_class_by_name), hits=6)


# ---------------------------------------------------------------- imports by what is above
@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a function that imports from it when it is called, as diffusers' decorators do."""
    folder = tmp_path / "imported_from_above"
    folder.mkdir()
    (folder / "__init__.py").write_text("FLAG = 2.0\n")
    (folder / "inside.py").write_text(
        "def scaled(x):\n    from . import FLAG\n    from .other import OTHER\n    return x * FLAG + OTHER\n"
    )
    (folder / "other.py").write_text("OTHER = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("imported_from_above.inside")
    for name in [name for name in sys.modules if name.startswith("imported_from_above")]:
        del sys.modules[name]


def test_imports_from_above(package):
    above = sys.modules["imported_from_above"]

    def make(trace):
        above.FLAG = 2.0
        package.__spec__.name = "imported_from_above.inside"

        def change():
            above.FLAG = 5.0

        return trace(package.scaled), [call(X(3)), *around(change, X(3))]

    check(make, hits=2)


# ---------------------------------------------------------------- state that comes to be bit by bit
@cases(hits=5)
def optimizers_that_step_at_each_second_call(trace):
    """As in TD3: what the second optimizer keeps is made at the second call."""
    torch.manual_seed(0)
    critic, actor = nn.Linear(4, 1), nn.Linear(4, 1)
    often, seldom = torch.optim.Adam(critic.parameters()), torch.optim.Adam(actor.parameters())
    state = types.SimpleNamespace(steps=0)

    def step(x):
        state.steps += 1
        for net, optimizer in [(critic, often), (actor, seldom)][: 1 + (state.steps % 2 == 0)]:
            optimizer.zero_grad()
            net(x).pow(2).sum().backward()
            optimizer.step()

    return trace(step), [call(X(3, 4)) for _ in range(12)], lambda: (critic, actor, state)


@cases(hits=8)
def optimizers_that_step_as_the_number_of_the_step_says(trace):
    """As above, where both recordings fail at state that is made, the second one as it follows the number."""
    torch.manual_seed(0)
    critic, actor = nn.Linear(4, 1), nn.Linear(4, 1)
    often, seldom = torch.optim.Adam(critic.parameters()), torch.optim.Adam(actor.parameters())

    def step(x, number):
        often.zero_grad()
        critic(x).pow(2).sum().backward()
        often.step()
        if number % 2 == 0:
            seldom.zero_grad()
            actor(x).pow(2).sum().backward()
            seldom.step()

    return trace(step), [call(X(3, 4), number) for number in range(1, 15)], lambda: (critic, actor)


# ---------------------------------------------------------------- numpy
@cases(hits=6)
def angles_and_multiples(trace):
    state = types.SimpleNamespace(margin=np.radians(28.6), chunks=(4, 6))

    def step(x):
        x = torch.where(x <= np.deg2rad(180) - state.margin, x, x * np.sin(state.margin))
        x = x + np.rint(2.5) - np.trunc(1.5) + np.sign(-3) + np.rad2deg(0.5) + np.degrees(0.25)
        return x * int(np.lcm(*state.chunks)) / int(np.gcd(12, 8))

    return trace(step), [call(X(3)) for _ in range(7)]


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)
