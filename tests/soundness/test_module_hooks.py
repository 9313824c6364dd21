"""Backward hooks of modules: called as eager calls them, also where they come and go between calls."""

from __future__ import annotations

import collections
import functools
import warnings

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tests.soundness.runner import Cases, call, check

cases = Cases()

Pair = collections.namedtuple("Pair", "left right")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def doubled(module, given, got):
    return tuple(None if g is None else g * 2 for g in given)


def step_of(net, kind=torch.optim.SGD, rate=0.1):
    """A whole step of training."""
    optimizer = kind(net.parameters(), rate)

    def step(x):
        optimizer.zero_grad()
        value = net(x).square().mean()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def gradients(net):
    return [p.grad for p in net.parameters()], list(net.parameters())


def xs(count=6):
    return [call(torch.randn(4, 3, generator=torch.Generator().manual_seed(i))) for i in range(count)]


@cases(hits=4)
def that_changes_gradients(trace):
    net = model()
    net[1].register_full_backward_hook(doubled)
    return trace(step_of(net)), xs(), lambda: gradients(net)


@cases(hits=4)
def that_only_looks(trace):
    net, seen = model(), []

    def look(module, given, got):
        seen.append((type(module).__name__, [g.clone() for g in given], [g.clone() for g in got]))

    net[2].register_full_backward_hook(look)
    return trace(step_of(net)), xs(), lambda: (gradients(net), seen)


@cases(hits=4)
def before_the_backward_of_the_module(trace):
    net = model()
    net[1].register_full_backward_pre_hook(lambda module, got: (got[0] * 3,))
    net[2].register_full_backward_pre_hook(lambda module, got: None)
    return trace(step_of(net)), xs(), lambda: gradients(net)


@cases(hits=4)
def several_on_each_module(trace):
    net, order = model(), []
    for name, module in net.named_children():
        module.register_full_backward_pre_hook(lambda m, got, name=name: order.append(("before", name)))
        module.register_full_backward_hook(lambda m, given, got, name=name: order.append(("after", name)))
        module.register_full_backward_hook(doubled)
    return trace(step_of(net)), xs(), lambda: (gradients(net), order)


@cases(hits=4)
def of_all_modules(trace):
    net, order = model(), []
    handles = []

    def begin():
        of_all = nn.modules.module.register_module_full_backward_hook
        handles.append(of_all(lambda module, given, got: order.append(type(module).__name__)))

    def end():
        handles.pop().remove()

    return trace(step_of(net)), [*xs(2), begin, *xs(), end, *xs(2)], lambda: (gradients(net), order)


@cases(hits=4)
def of_a_module_whose_input_needs_no_gradient(trace):
    """Torch warns, and calls the hook with None."""
    net, seen = model(), []
    net[0].register_full_backward_hook(lambda m, given, got: seen.append((given, got[0].clone())))
    return trace(step_of(net)), xs(), lambda: (gradients(net), seen)


class Many(nn.Module):
    """Arguments and results of many kinds."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x, factor, y, *, shift=0.0):
        return Pair(x * self.w * factor + shift, y * 2)


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.many, self.last = Many(), nn.Linear(3, 2)

    def forward(self, x):
        left, right = self.many(x * self.last.weight[0], 2, x, shift=0.5)
        return self.last(left + right)


@cases(hits=4)
def of_a_module_of_many_arguments_and_results(trace):
    torch.manual_seed(0)
    net, seen = Around(), []

    def look(module, given, got):
        seen.append(
            (
                [None if g is None else g.clone() for g in given],
                [None if g is None else g.clone() for g in got],
            )
        )
        return given

    net.many.register_full_backward_hook(look)
    return trace(step_of(net)), xs(), lambda: (gradients(net), seen)


@cases(hits=4)
def of_a_module_that_is_called_twice(trace):
    torch.manual_seed(0)
    layer, seen = nn.Linear(3, 3), []
    layer.register_full_backward_hook(lambda m, given, got: seen.append(got[0].clone()))
    layer.register_full_backward_hook(doubled)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    return trace(step_of(Twice())), xs(), lambda: (gradients(layer), seen)


@cases(hits=4)
def when_only_the_model_is_traced(trace):
    net, seen = model(), []
    net[1].register_full_backward_hook(doubled)
    net[2].register_full_backward_hook(lambda m, given, got: seen.append(got[0].clone()))
    forward = trace(net.forward)

    def step(x):
        net.zero_grad()
        forward(x).square().mean().backward()

    return forward, [call(x.args[0]).of(step) for x in xs()], lambda: (gradients(net), seen)


@cases(hits=4)
def under_a_second_derivative(trace):
    torch.manual_seed(0)
    layer = nn.Tanh()
    layer.register_full_backward_hook(doubled)

    def function(x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(layer(x * 2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return first.detach(), second

    return trace(function), xs()


@cases(hits=3)
def without_gradients(trace):
    net = model()
    net[1].register_full_backward_hook(doubled)

    def function(x):
        with torch.no_grad():
            return net(x)

    return trace(function), xs(4)


@cases(hits=2)
def that_raises(trace):
    net, bad = model(), []

    def refuse(module, given, got):
        if bad:
            raise ValueError("no")

    net[1].register_full_backward_hook(refuse)
    one = xs()
    return (
        trace(step_of(net)),
        [*one[:4], lambda: bad.append(1), *one[:2], bad.clear, *one[:2]],
        lambda: gradients(net),
    )


@cases(hits=2)
def that_gives_too_many(trace):
    net, bad = model(), []
    net[1].register_full_backward_hook(lambda m, given, got: (*given, *given) if bad else None)
    one = xs()
    return trace(step_of(net)), [*one[:4], lambda: bad.append(1), *one[:2]], lambda: gradients(net)


@cases(hits=4)
def that_comes_between_calls(trace):
    net = model()
    one, handles = xs(), []
    steps = [*one[:4], lambda: handles.append(net[1].register_full_backward_hook(doubled)), *one[:4]]
    return trace(step_of(net)), [*steps, lambda: handles.pop().remove(), *one[:2]], lambda: gradients(net)


@cases(hits=2)
def that_is_replaced(trace):
    net = model()
    handles = [net[1].register_full_backward_hook(doubled)]
    one = xs()

    def change():
        handles.pop().remove()
        net[1].register_full_backward_hook(lambda m, given, got: (given[0] * 5,))

    return trace(step_of(net)), [*one[:4], change, *one[:4]], lambda: gradients(net)


@cases(hits=2)
def with_state_of_its_own(trace):
    net, scale = model(), {"by": 2.0}
    net[1].register_full_backward_hook(lambda m, given, got: (given[0] * scale["by"],))
    one = xs()
    return trace(step_of(net)), [*one[:4], lambda: scale.update(by=0.5), *one[:4]], lambda: gradients(net)


class Scales:
    """A hook that is an object."""

    def __init__(self, by):
        self.by, self.seen = by, []

    def __call__(self, module, given, got):
        return (given[0] * self.by,)

    def method(self, module, given, got):
        self.seen.append(got[0].sum().item())
        return (given[0] * self.by,)


def objects(trace, hook_of):
    """Adam reads numbers after the hooks have run."""
    net, scales, one = model(), Scales(2.0), xs()
    net[1].register_full_backward_hook(hook_of(scales))
    steps = [*one[:4], lambda: vars(scales).update(by=0.5), *one[:4]]
    return trace(step_of(net, torch.optim.Adam, 0.01)), steps, lambda: (gradients(net), scales.seen)


@cases(hits=3)
def that_is_an_object(trace):
    return objects(trace, lambda scales: scales)


@cases(hits=3)
def that_is_a_bound_method(trace):
    return objects(trace, lambda scales: scales.method)


@cases(hits=3)
def that_is_a_partial(trace):
    return objects(trace, lambda scales: functools.partial(Scales.method, scales))


@cases(hits=2)
def behind_a_side_exit(trace):
    """The function runs again and is fed: the hooks that the replay has set are not set once more."""
    net, seen = model(), []
    net[0].register_full_backward_pre_hook(lambda m, got: seen.append(got[0].clone()))

    def step(x):
        net.zero_grad()
        out = net(x)
        if out.sum() > 0:
            out = out * 2
        out.square().mean().backward()
        return out.detach()

    up, down = torch.full((4, 3), 2.0), torch.full((4, 3), -2.0)
    return trace(step), [call(up), call(up), call(down), call(up), call(down)], lambda: (gradients(net), seen)


@cases(eager="reads .grad_fn of a tensor")
def behind_something_that_no_replay_can_stop_at(trace):
    """The recording is given up between the inputs and the outputs of the module."""
    net, seen = Around(), []

    class Made(nn.Module):
        def forward(self, x, y):
            return net.many(x, 2, y)[0] * len(x.grad_fn.name())

    made = Made()
    made.register_full_backward_hook(lambda m, given, got: seen.append([g is None for g in given]))

    def step(x):
        net.zero_grad()
        made(x * net.many.w, torch.ones(3)).sum().backward()

    return trace(step), xs(4), lambda: (gradients(net), seen)


@cases(hits=2)
def that_looks_at_its_module(trace):
    net, seen = model(), []

    def look(module, given, got):
        seen.append((len(module._backward_hooks), module.training, module is net[1]))

    net[1].register_full_backward_hook(look)
    one = xs()
    return trace(step_of(net)), [*one[:4], net.eval, *one[:4]], lambda: (gradients(net), seen)


@cases(hits=3)
def that_is_set_inside(trace):
    """Its key is in a dict of the module while the engine calls hooks; they are watched, and do not look."""
    net, first = model(), RemovableHandle.next_id

    def step(x):
        handle = net[1].register_full_backward_hook(doubled)
        net.zero_grad()
        net(x).square().mean().backward()
        handle.remove()

    return trace(step), xs(5), lambda: [gradients(net), RemovableHandle.next_id - first]


@cases(hits=3)
def set_inside_with_others(trace):
    """All count handles: of a module, of what the call has computed, and of a parameter."""
    net, first = model(), RemovableHandle.next_id

    def step(x):
        net.zero_grad()
        with net[1].register_full_backward_hook(doubled), net[0].register_forward_hook(lambda m, i, o: o * 2):
            out = net(x)
            out.register_hook(lambda g: g * 2)
            with net[0].weight.register_hook(lambda g: g + 1):
                out.square().mean().backward()
        return out.detach()

    return trace(step), xs(5), lambda: [gradients(net), RemovableHandle.next_id - first]


@cases(hits=3)
def set_inside_behind_those_of_a_tensor(trace):
    """Torch has counted these by the time that the function counts; who sets one later finds its key free."""
    net, first = model(), RemovableHandle.next_id

    def step(x):
        hidden = net[0](x)
        hidden.register_hook(lambda g: g * 2)
        hidden.register_hook(lambda g: g * 3)
        with net[1].register_forward_pre_hook(lambda m, i: (i[0] * 2,)):
            return net[1](hidden), hidden

    traced = trace(step)

    def call_it(x):
        net.zero_grad()
        out, hidden = traced(x)
        hidden.register_hook(lambda g: g + 1)
        out.sum().backward()

    steps = [one.of(call_it) for one in xs(5)]
    return traced, steps, lambda: [gradients(net), RemovableHandle.next_id - first]


@cases(hits=3)
def set_inside_between_one_of_a_tensor_and_a_pass(trace):
    net, first = model(), RemovableHandle.next_id

    def step(x):
        net.zero_grad()
        hidden = net[0](x)
        hidden.register_hook(lambda g: g * 2)
        with net[1].register_forward_pre_hook(lambda m, i: (i[0] * 2,)):
            loss = net[1](hidden).square().mean()
        loss.backward()
        return loss.detach()

    return trace(step), xs(5), lambda: [gradients(net), RemovableHandle.next_id - first]


@cases(hits=4)
def a_branch_while_one_is_set(trace):
    """The function that runs again sets it once more, under the same number."""
    net, first = model(), RemovableHandle.next_id

    def step(x, times):
        x = x * times
        with net[1].register_full_backward_hook(doubled):
            net.zero_grad()
            loss = net(x).square().mean()
            loss.register_hook(lambda g: g * 3)
            if x.sum().abs() > 100:
                loss = loss * 2
            loss.backward()
        return loss.detach()

    calls = [
        call(torch.ones(4, 3), times) for times in map(torch.tensor, (1.0, 1.0, 1.0, 1e3, 1.0, 1e3, 1e3, 1.0))
    ]
    return trace(step), calls, lambda: [gradients(net), RemovableHandle.next_id - first]


@cases(eager="opaque-after-write")
def set_inside_where_another_may_look(trace):
    net, seen = model(), []

    def step(x):
        with net[1].register_full_backward_hook(lambda m, gi, go: seen.append(len(m._backward_hooks))):
            net.zero_grad()
            net(x).square().mean().backward()

    return trace(step), xs(4), lambda: [gradients(net), seen]


# ---------------------------------------------------------------- forward hooks
def penalized(net):
    """What a critic is trained with: a tensor of the call comes to require gradients in place.

    What backward hooks do cannot be done again.
    """

    def step(x):
        net.zero_grad()
        mixed = (x * 0.5).requires_grad_()
        (slope,) = torch.autograd.grad(net(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        penalty.backward()
        return penalty.detach()

    return step


@cases(hits=4)
def around_what_comes_to_require_gradients(trace):
    """The handler in the call of a module runs hooks that are always called, of which there are none."""
    net = model()
    net[0].register_full_backward_hook(doubled)
    return trace(penalized(net)), xs(), lambda: gradients(net)


@cases(hits=3)
def that_are_always_called(trace):
    net, seen = model(), []
    net[0].register_full_backward_hook(doubled)
    net[0].register_forward_hook(lambda module, args, result: seen.append(result is None), always_call=True)
    return trace(penalized(net)), xs(), lambda: (gradients(net), seen)


@cases(hits=2)
def that_come_to_be_always_called(trace):
    """An exception of the call runs them, which a replay would not."""
    net, seen = model(), []
    net[0].register_full_backward_hook(doubled)

    def always():
        net[0].register_forward_hook(lambda m, args, result: seen.append(result is None), always_call=True)

    wide = call(torch.ones(2, 7))
    one = xs()
    steps = [*one[:4], wide, always, *one[:2], wide]
    return trace(penalized(net)), steps, lambda: (gradients(net), seen)


@cases(hits=2)
def that_run_for_what_a_replay_raises(trace):
    """An operator raises at one call: what was there when the call began decides which hooks run."""
    net, seen = model(), []
    net[1].register_forward_hook(lambda module, args, result: None)
    net.register_forward_hook(lambda module, args, result: seen.append(result is None), always_call=True)

    table = torch.tensor([0, 1])

    class Picks(nn.Module):
        def forward(self, x, index):
            return torch.index_select(net(x), 0, index)

    picks = Picks()
    picks.register_forward_hook(lambda module, args, result: seen.append(result is None), always_call=True)
    one = [call(x.args[0], table) for x in xs(3)]
    bad = call(xs(1)[0].args[0], torch.tensor([0, 9]))
    return trace(lambda x, index: picks(x, index)), [*one, bad, *one[:1]], lambda: seen


@cases.parametrize
def test_module_hooks(make, expected):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        check(make, **expected)
