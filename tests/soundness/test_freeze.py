"""`freeze(state=True)`: what the promise leaves out, what stays guarded, and what stays live."""

from __future__ import annotations

import types

import pytest
import torch

import lazytrace
from lazytrace import RetraceError, handle, trace, traced

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])
SCALE = 2.0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
        self.register_buffer("shift", torch.ones(3))
        self.scale, self.seen, self.calls = 3.0, [], 0

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * self.scale
        return x * SCALE + self.shift


def frozen(net: torch.nn.Module | None = None, x=X) -> tuple[torch.nn.Module, object]:
    net = net if net is not None else Net().eval()
    with torch.no_grad():
        return net, trace(net, x, freeze=True)


def replays(fn, net, x=X) -> bool:
    """Whether a call is a hit with the result of the plain module."""
    hits = handle(fn).stats().hits
    with torch.no_grad():
        same = torch.equal(fn(x), net(x))
    return same and handle(fn).stats().hits == hits + 1


# ---------------------------------------------------------------- what is promised
@pytest.mark.parametrize(
    "change",
    [
        lambda net, patch: setattr(net, "scale", 5.0),
        lambda net, patch: setattr(net.layers[0], "bias", net.layers[0].bias) or setattr(net, "scale", 5.0),
        lambda net, patch: patch.setitem(globals(), "SCALE", 9.0),
        lambda net, patch: patch.setattr(torch.nn.Linear, "forward", lambda self, x: x),
        lambda net, patch: patch.setattr(Net, "forward", lambda self, x: x),
    ],
)
def test_a_change_of_state_is_not_noticed(change, monkeypatch):
    net, fn = frozen()
    with torch.no_grad():
        before = fn(X)
        change(net, monkeypatch)
        hits = handle(fn).stats().hits
        assert torch.equal(fn(X), before)
        assert not torch.equal(net(X), before)
        assert handle(fn).stats().hits == hits + 1
        handle(fn).thaw()
        assert not fn.explain(X).hit
        assert torch.equal(fn(X), net(X))


def test_the_training_flag_is_state():
    net, fn = frozen(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).eval())
    net.train()
    with torch.no_grad():
        assert torch.equal(fn(X), net[0](X))


def test_a_function_and_its_closure():
    factors = {"k": 2.0}
    fn = trace(lambda x: x * factors["k"], X, freeze=True)
    factors["k"] = 3.0
    assert torch.equal(fn(X), X * 2)
    fn.thaw()
    assert torch.equal(fn(X), X * 3)


# ---------------------------------------------------------------- what stays live
def test_parameters_and_buffers_are_live():
    net, fn = frozen()
    with torch.no_grad():
        net.layers[1].weight.mul_(2)
        net.shift.add_(1)
    assert replays(fn, net)
    net.layers[0].weight = torch.nn.Parameter(torch.randn(3, 3))
    assert replays(fn, net)
    net.shift = torch.zeros(3)
    assert replays(fn, net)
    net.load_state_dict({name: t + 1 for name, t in net.state_dict().items()})
    assert replays(fn, net)
    net.layers[0] = torch.nn.Linear(3, 3)
    assert replays(fn, net)


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(
            net.layers[0], "weight", torch.nn.Parameter(torch.ones(3, 3, dtype=torch.double))
        ),
        lambda net: setattr(net, "shift", torch.ones(1)),
        lambda net: delattr(net, "shift"),
        lambda net: net.layers[0].register_parameter("weight", None),
        lambda net: net.layers.__delitem__(1),
        lambda net: net._modules.clear(),
        lambda net: net.__dict__.clear(),
        lambda net: net._modules.update(layers=[1, 2]),
        lambda net: net.__dict__.update(_modules=None),
        lambda net: net.layers[0]._parameters.clear(),
    ],
)
def test_tensors_that_are_gone_or_look_otherwise_are_noticed(change):
    net, fn = frozen()
    change(net)
    with torch.no_grad(), pytest.raises(RetraceError, match="is frozen"):
        fn(X)


def test_what_a_call_writes_is_written():
    class Counts(Net):
        def forward(self, x):
            self.calls += 1
            self.seen.append(x * 2)
            return super().forward(x)

    net = Counts().eval()
    with torch.no_grad():
        fn = traced(net)
        for _ in range(4):
            fn(X)
        hits = fn.stats().hits
        assert hits
        fn.freeze(state=True)
        for _ in range(3):
            fn(X)
    assert fn.stats().hits == hits + 3
    assert net.calls == 7
    assert len(net.seen) == 7
    assert torch.equal(net.seen[6], X * 2)


def test_training_steps_go_on():
    def make():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(net.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return net, step

    one, plain = make()
    two, step = make()
    fn = traced(step)
    for k in range(12):
        if k == 6:
            fn.freeze(state=True)
            hits = fn.stats().hits
            assert fn.stats().promised > 100
        assert torch.equal(plain(X * k), fn(X * k))
    assert fn.stats().hits == hits + 6
    assert lazytrace.same(one.state_dict(), two.state_dict(), rtol=0, atol=0)


# ---------------------------------------------------------------- what stays guarded
@pytest.mark.parametrize(
    "changed",
    [
        (X.double(), [1.0], "a"),
        (X[:1], [1.0], "a"),
        (X, [2.0], "a"),
        (X, [1.0, 1.0], "a"),
        (X, [1.0], "b"),
        (X, (1.0,), "a"),
    ],
)
def test_arguments_are_guarded(changed):
    fn = trace(lambda x, ks, how: x * ks[0] if how == "a" else x, (X, [1.0], "a"), freeze=True)
    with pytest.raises(RetraceError):
        fn(*changed)
    assert torch.equal(fn(X, [1.0], "a"), X)


def test_objects_among_the_arguments_are_guarded():
    net, fn = Net().eval(), None
    config = types.SimpleNamespace(scale=2.0, layer=net)

    class Config:
        def __init__(self):
            self.scale, self.parts = 2.0, {"net": net}

    config = Config()
    fn = trace(lambda x, config: config.parts["net"](x) * config.scale, (X, config), freeze=True)
    assert fn.stats().promised
    config.scale = 3.0
    with pytest.raises(RetraceError, match=r"config\.scale"):
        fn(X, config)
    config.scale = 2.0
    fn(X, config)
    net.scale = 4.0  # reached through an argument
    with pytest.raises(RetraceError):
        fn(X, config)


def test_modes_are_guarded():
    _, fn = frozen()
    with pytest.raises(RetraceError):
        fn(X)


def test_values_that_decide_are_read():
    fn = trace(lambda x: x * 2 if x.sum() > 0 else x - 1, [X, -X], freeze=True)
    assert torch.equal(fn(X), X * 2)
    assert torch.equal(fn(-X), -X - 1)
    assert fn.stats().hits >= 2


def test_a_parameter_as_the_argument():
    """What was two tensors is one by now."""
    weight = torch.nn.Parameter(torch.ones(3))

    def step(x):
        with torch.no_grad():
            x.add_(1)
            return weight * 1

    fn = trace(step, torch.nn.Parameter(torch.zeros(3)), freeze=True)
    assert torch.equal(fn(weight), torch.full((3,), 2.0))


# ---------------------------------------------------------------- methods, other instances
def test_the_object_of_a_method_is_state():
    class Coder:
        def __init__(self):
            self.scale, self.w = 2.0, torch.ones(3)

        @traced
        def encode(self, x):
            return x * self.scale + self.w

    one, two = Coder(), Coder()
    trace(two.encode, X)
    trace(one.encode, X, freeze=True)
    one.scale = two.scale = 5.0
    one.w = torch.zeros(3)
    assert torch.equal(one.encode(X), X * 2)
    with pytest.raises(RetraceError):  # no recordings, but its guards stand
        two.encode(X)
    one.encode.thaw()
    assert torch.equal(one.encode(X), X * 5)


def test_what_was_promised_goes_with_its_owner():
    import gc
    import weakref

    net, fn = frozen()
    for _ in range(3):
        assert replays(fn, net)
    gone = weakref.ref(net)
    del net, fn
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------- asking
def test_a_frozen_function_is_asked():
    net, fn = frozen()
    with torch.no_grad():
        assert fn.explain(X).hit
        program = fn.program(X)
        assert "layers.0.weight" in [one.name for one in program.captures]
        assert torch.equal(fn.graph(X)(X), net(X))
        net.scale = 4.0
        assert fn.explain(X).hit
        assert lazytrace.export(fn, X).module()(X).shape == X.shape


def test_the_report_says_what_is_promised():
    import json

    _, fn = frozen()
    promised = fn.stats().promised
    guarded = traced(Net().eval())
    with torch.no_grad():
        guarded(X)
    assert promised > 30
    assert f"{promised} guards on state left out" in lazytrace.report(width=200)
    found = json.loads(lazytrace.report(format="json"))["functions"]
    programs = [program for one in found for program in one["programs"] if program["promised"]]
    assert any(program["promised"] == promised for program in programs)
    assert f"({promised} on promised state left out)" in lazytrace.report(format="html")
    fn.thaw()
    assert fn.stats().promised == 0
