"""Side exits in autocast regions of the function's own.

What a replay has cast of a leaf until it stopped is there where the function goes on by itself: how often a
leaf was cast shows in bits of its gradient. Nothing of it is left behind the region.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from tests.soundness.runner import Cases, call, check, opaque

cases = Cases()

# Which way is taken: often enough one way for hits, then others, and back.
WAYS = (1, 1, 1, 2, 1, 2, 3, 1, 2, 3, 1, 3)


# The same once a step has its flat form.
LONG = (1,) * 10 + WAYS


def autocast(**options):
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def inputs(way, seed):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)), torch.tensor(float(way))


def stepped(trace, body, ways=WAYS):
    """A training step around `body(layer, x, way, total)`, called along the ways."""
    layer, total = nn.Linear(6, 6), torch.zeros(6)

    def step(x, way):
        layer.zero_grad()
        loss = body(layer, x, way, total)
        loss.backward()
        return loss.item()

    steps = [call(*inputs(way, seed)) for seed, way in enumerate(ways)]
    return trace(step), steps, lambda: (list(layer.parameters()), [p.grad for p in layer.parameters()], total)


def choose(way, h):
    if way.item() == 1:
        return h * 3
    return h.tanh() if way.item() == 2 else h.sin()


def around(name, body, ways=WAYS, **expected):
    def make(trace):
        return stepped(trace, body, ways)

    make.__name__ = name
    cases(make, **expected)


def mean(h):
    return h.float().pow(2).mean()


def weights_before_and_behind(layer, x, way, total):
    with autocast():
        return mean(layer(choose(way, layer(x))))


def behind_a_write(layer, x, way, total):
    with autocast():
        h = layer(x)
        total.add_(h.detach().sum(0))
        return mean(layer(choose(way, h)))


def write_before_the_region(layer, x, way, total):
    total.add_(x.sum(0))
    with autocast():
        return mean(layer(choose(way, layer(x))))


def second_region(layer, x, way, total):
    with autocast():
        h = layer(x)
    total.add_(h.detach().sum(0))
    with autocast():
        return mean(layer(choose(way, layer(h.float()))))


def second_region_has_cast_nothing(layer, x, way, total):
    with autocast():
        h = layer(x)
    total.add_(h.detach().sum(0))
    with autocast():
        return mean(layer(choose(way, h.float())))


def between_two_regions(layer, x, way, total):
    with autocast():
        h = layer(x)
        total.add_(h.detach().sum(0))
    h = choose(way, h)
    with autocast():
        return mean(layer(h.float()))


def nested(layer, x, way, total):
    with autocast():
        h = layer(x)
        total.add_(h.detach().sum(0))
        with torch.autocast("cpu", enabled=False):
            h = layer(choose(way, h).float())
        return mean(layer(h))


def inner_region_ends(layer, x, way, total):
    with torch.autocast("cpu", enabled=False):
        with autocast():
            h = layer(x)
            total.add_(h.detach().sum(0))
        return mean(choose(way, layer(h.float())))


def first_used_without_gradients(layer, x, way, total):
    with autocast():
        with torch.no_grad():
            total.add_(layer(x).sum(0))
        return mean(layer(choose(way, x))) + mean(x @ layer.weight.float())


def without_a_cache(layer, x, way, total):
    with autocast(cache_enabled=False):
        h = layer(x)
        total.add_(h.detach().sum(0))
        return mean(layer(choose(way, h)))


def backward_in_the_region(layer, x, way, total):
    with autocast():
        first = mean(layer(x))
        first.backward()
        total.add_(layer.bias.grad)
        return mean(layer(choose(way, x)))


def twice(layer, x, way, total):
    with autocast():
        h = layer(x)
        total.add_(h.detach().sum(0))
        h = choose(way, h)
        h = layer(h)
        total.add_(h.detach().sum(0))
        return mean(layer(choose(way * total.isfinite().all(), h)))


def in_inference_mode(layer, x, way, total):
    """An exit before there is a graph, of a step that is flat by then."""
    with autocast():
        with torch.inference_mode():
            h = layer(x)
            total.add_(h.clone().sum(0))
            scale = choose(way, h).sum().item()
        return mean(layer(x)) * scale


def without_gradients_at_first(layer, x, way, total):
    with autocast():
        with torch.no_grad():
            h = layer(x)
            total.add_(h.sum(0))
            h = choose(way, h)
        return mean(layer(h)) + mean(layer(x))


def in_an_exit_stack(layer, x, way, total):
    with contextlib.ExitStack() as stack:
        stack.enter_context(autocast())
        h = layer(x)
        total.add_(h.detach().sum(0))
        return mean(layer(choose(way, h)))


@autocast()
def decorated(layer, x, way, total):
    h = layer(x)
    total.add_(h.detach().sum(0))
    return mean(layer(choose(way, h)))


def by_the_shape(layer, x, way, total):
    with autocast():
        h = layer(x)
        total.add_(h.detach().sum(0))
        rows = h[torch.arange(5) < way]
        return mean(layer(rows))


around("weights_before_and_behind", weights_before_and_behind, hits=7)
around("behind_a_write", behind_a_write, hits=7)
around("write_before_the_region", write_before_the_region, hits=7)
around("second_region", second_region, hits=7)
around("second_region_has_cast_nothing", second_region_has_cast_nothing, hits=7)
around("between_two_regions", between_two_regions, hits=7)
around("nested", nested, hits=7)
around("inner_region_ends", inner_region_ends, hits=7)
around("first_used_without_gradients", first_used_without_gradients, hits=7)
around("without_a_cache", without_a_cache, hits=7)
around("backward_in_the_region", backward_in_the_region, hits=7)
around("twice", twice, hits=7)
around("in_inference_mode", in_inference_mode, LONG, hits=15)
around("without_gradients_at_first", without_gradients_at_first, LONG, hits=15)
around("in_an_exit_stack", in_an_exit_stack, hits=7)
around("decorated", decorated, hits=7)
around("by_the_shape", by_the_shape, hits=7)


def cleared_by_itself(layer, x, way, total):
    torch.clear_autocast_cache()
    return behind_a_write(layer, x, way, total)


def cleared_outside_of_regions(layer, x, way, total):
    with autocast():
        h = layer(x)
    torch.clear_autocast_cache()
    total.add_(h.detach().sum(0))
    return mean(layer(choose(way, h.float())))


around("cleared_by_itself", cleared_by_itself, eager="read-after-change")
around("cleared_outside_of_regions", cleared_outside_of_regions, hits=7)


class Switch:
    other = 0


def gives_another_look(name, where, give):
    """An opaque function whose result looks otherwise at some calls."""

    def make(trace):
        switch, layer, total = Switch(), nn.Linear(6, 6), torch.zeros(6)
        given = opaque(trace, lambda h: give(h) if switch.other else h * 1)

        def step(x):
            layer.zero_grad()
            if where == "before":
                total.add_(x.sum(0))
            with autocast():
                h = layer(x)
                if where == "inside":
                    total.add_(h.detach().sum(0))
                h = mean(layer(given(h))) + mean(layer(x))
            if where == "behind":
                total.add_(h.detach())
            h.backward()
            return h.item()

        steps = []
        for seed, way in enumerate(WAYS):
            steps += [lambda way=way: setattr(switch, "other", way == 2), call(inputs(way, seed)[0])]
        return (
            trace(step),
            steps,
            lambda: (list(layer.parameters()), [p.grad for p in layer.parameters()], total),
        )

    make.__name__ = f"opaque_gives_{name}_write_{where}"
    cases(make, hits=5)


for place in ("before", "inside", "behind", "nowhere"):
    gives_another_look("another_dtype", place, lambda h: h.double())
    gives_another_look("no_gradients", place, lambda h: h.detach())
    gives_another_look("a_leaf", place, lambda h: h.detach().requires_grad_())


@cases.parametrize
def test_exits_in_regions(make, expected):
    check(make, **expected)
