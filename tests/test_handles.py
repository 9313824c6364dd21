"""What a traced object has under its own names, and how the answers of lazytrace stay in reach."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lazytrace
from lazytrace import NotTraceableError, traced

X = torch.ones(2, 4)
NAMES = (
    *("stats", "graph", "explain", "program", "freeze", "thaw", "original"),
    *("cache_info", "cache_clear", "exportable"),
)
# For the functions of lazytrace that take a traced one; a module has parameters of its own.
OF_HANDLES = ("held", "arguments", "parameters", "unread", "grown")


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.stats = nn.Parameter(torch.zeros(4))
        self.graph = 5

    def freeze(self) -> str:
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        return "frozen by itself"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.stats


def test_attributes_of_a_module_go_before_ours():
    plain = Backbone()
    net = traced(plain)
    net(X), net(X)
    assert net.stats is plain.stats
    assert net.graph == 5
    assert net.freeze() == "frozen by itself"
    assert not any(parameter.requires_grad for parameter in net.parameters())
    assert net(torch.ones(3, 4)).shape == (3, 4)  # it was not ours that froze
    # What the module does not have is ours.
    assert net.original is plain
    assert net.cache_info().currsize == 2
    assert net.explain(torch.ones(3, 4)).hit


def test_a_handle_reaches_ours():
    net = traced(Backbone())
    net(X), net(X)
    handle = lazytrace.handle(net)
    assert (handle.stats().hits, handle.stats().recordings) == (1, 1)
    assert handle.original is net.__wrapped__
    assert len(handle.graph(X).graph.nodes) > 0
    assert handle.program(X).operators > 0
    assert handle.explain(torch.ones(3, 4)).outcome == "record"
    handle.freeze()
    with pytest.raises(lazytrace.RetraceError, match="is frozen"):
        net(torch.ones(3, 4))
    handle.thaw()
    handle.cache_clear()
    assert handle.cache_info().currsize == 0
    net(torch.ones(3, 4))


def test_what_is_assigned_goes_to_the_module():
    plain = nn.Linear(4, 4)
    net = traced(plain)
    net.stats = nn.Parameter(torch.ones(1))
    assert dict(plain.named_parameters())["stats"] is net.stats
    del net.stats
    assert net.stats().calls == 0
    net(X)
    assert net.stats().calls == 1


def test_a_traced_function_inside_does_not_answer_for_the_outer_one():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = traced(nn.Linear(4, 4))

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x)

    net = traced(Outer())
    net(X), net(X)
    assert (net.stats().name, net.stats().recordings) == ("Outer", 1)
    assert (net.inner.stats().name, net.inner.stats().inlined) == ("Linear", 1)


def test_a_handle_of_a_bound_method_is_about_its_instance():
    class Scaler:
        def __init__(self, scale):
            self.scale = scale

        @traced
        def run(self, x):
            return x * self.scale

    first, second = Scaler(2.0), Scaler(3.0)
    first.run(X), first.run(X), second.run(X)
    assert lazytrace.handle(first.run).explain(X).hit
    assert lazytrace.handle(second.run).cache_info().currsize == 1
    lazytrace.handle(first.run).cache_clear()
    assert lazytrace.handle(first.run).explain(X).outcome == "record"
    assert lazytrace.handle(second.run).explain(X).hit
    assert lazytrace.handle(Scaler.run).stats().calls == 3


def test_every_method_of_a_handle_is_one_of_a_traced_function():
    step = traced(lambda x: x * 2)
    handle = lazytrace.handle(step)
    public = {name for name in dir(handle) if not name.startswith("_")}
    assert public == {*NAMES, *OF_HANDLES}
    for name in NAMES:
        assert hasattr(step, name)


def test_a_handle_of_something_plain():
    with pytest.raises(NotTraceableError) as caught:
        lazytrace.handle(3)
    assert str(caught.value) == (
        "handle(3): an object of type int is not traced. Decorate it with lazytrace.traced first."
    )


def test_the_repr_of_a_traced_module_shows_its_modules():
    plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    net = traced(plain)
    assert repr(net) == f"traced({plain!r})"
    assert str(net) == str(plain)
    assert repr(copy.deepcopy(net)) == repr(net)


def test_a_traced_module_can_be_scripted():
    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + 1

    plain = nn.Linear(4, 4)
    with torch.no_grad():
        assert torch.equal(torch.jit.script(traced(plain))(X), plain(X))
        assert torch.equal(torch.jit.script(Outer(traced(plain)))(X), plain(X) + 1)
