"""Lists and dicts that the function makes and that hooks fill, read behind the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, Holder, X, agree, call, check

cases = Cases()


def eight():
    return [call(X(2, 3) * k) for k in (1, -2, 3, 4, -5, 6, 7, -8)]


def of_a_product(body):
    """A function that is given a product with a leaf, whose gradient is compared."""

    def make(trace):
        w = X(3, 3).div(9).requires_grad_()
        return trace(lambda x: body(x, x @ w)), eight(), lambda: w.grad

    return make


def fills_a_list(x, y):
    found = []
    y.register_hook(lambda g: found.append(g.norm()))
    y.sin().register_hook(lambda g: found.append(g))
    y.pow(2).sum().backward()
    return found, torch.stack(found).max(), len(found)


def fills_a_dict(x, y):
    found = {}

    def save(name):
        def hook(g):
            found[name] = g

        return hook

    z = y.sin()
    for name, tensor in {"y": y, "z": z}.items():
        tensor.register_hook(save(name))
    z.sum().backward()
    return found["y"] + found["z"], list(found), found


def fills_what_has_something(x, y):
    """Behind what the function has put there."""
    found = {"y": y.detach(), 1: 2}
    y.register_hook(lambda g: found.__setitem__("g", g))
    y.pow(2).sum().backward()
    found["last"] = 3
    return found["g"] * found["y"], found["last"]


def keeps_the_order_of_keys(x, y):
    found = {"y": y.detach()}
    y.register_hook(lambda g: found.__setitem__("g", g))
    found["before"] = y.detach() * 2
    y.pow(2).sum().backward()
    found["last"] = 3
    return found


def raises_once_it_has_filled_it(x, y):
    found = []

    def hook(g):
        found.append(g)
        if x[0, 0] < 0:
            raise ValueError("below")

    y.register_hook(hook)
    try:
        y.sum().backward()
    except ValueError:
        return found, "raised"
    return found


def fills_one_for_each_call_of_a_helper(x, y):
    def helper(z):
        found = []
        z.register_hook(lambda g: found.append(g * 2))
        z.pow(2).sum().backward(retain_graph=True)
        return found

    first = helper(y)
    return first, helper(y.sin()) if x.sum() > 0 else first


def appends_behind_what_the_function_has_put_in(x, y):
    found = [y.detach()]
    y.register_hook(lambda g: found.append(g))
    y.pow(2).sum().backward()
    return found


def fills_it_with_numbers(x, y):
    found = []
    y.register_hook(lambda g: found.append(g.norm().item()))
    y.pow(2).sum().backward()
    return found[0] * 2


def fills_it_in_two_passes(x, y):
    found = []
    y.register_hook(lambda g: found.append(g * 1))
    y.pow(2).sum().backward(retain_graph=True)
    first = found[0] * 2
    y.sin().sum().backward()
    return first, found[1]


def takes_out_what_another_has_put_in(x, y):
    found = []
    z = y.sin()
    z.register_hook(lambda g: found.append(g))
    y.register_hook(lambda g: g + found.pop())
    z.pow(2).sum().backward()
    return len(found)


def asks_what_is_there(x, y):
    found = []

    def hook(g):
        if len(found) < 1:
            found.append(g)

    z = y.sin()
    y.register_hook(hook)
    z.register_hook(hook)
    z.pow(2).sum().backward()
    return found


def leaves_before(x, y):
    """A side exit between the hook and the pass."""
    found = []
    y.register_hook(lambda g: found.append(g))
    if y.sum() > 0:
        y = y * 2
    y.sum().backward()
    return len(found), [g * 2 for g in found]


def leaves_behind(x, y):
    found = []
    y.register_hook(lambda g: found.append(g))
    y.pow(2).sum().backward()
    return (found[0] * 2 if found[0].sum() > 0 else found[0] * 3), found


def fills_it_at_some_calls(x, y):
    found = []

    def hook(g):
        if x[0, 0] > 0:
            found.append(g)

    before = len(found)
    y.register_hook(hook)
    y.sum().backward()
    return before, len(found), [g * 2 for g in found]


def all_at_once(x, y):
    """By functions of C, which a step hands what it finds."""
    found = []
    y.register_hook(lambda g: found.append(g.norm()))
    y.sin().register_hook(lambda g: found.append(g.max()))
    y.pow(2).sum().backward()
    largest = max(found)
    total = sum(found[-1:]) + sum(found)
    return total, largest is found[0], min(found) * 2, sorted(found), found


def numbers_all_at_once(x, y):
    found = []
    y.register_hook(lambda g: found.append(g.norm().item()))
    y.pow(2).sum().backward()
    return sum(found)


def sums_behind_a_branch(x, y):
    found = []
    y.register_hook(lambda g: found.append(g.norm()))
    y.pow(2).sum().backward()
    if x.sum() > 0:
        return sum(found), sorted(found), found
    return sum(found) + 1, found


def sums_what_it_fills_at_some_calls(x, y):
    found = []

    def hook(g):
        if x[0, 0] > 0:
            found.append(g)

    y.register_hook(hook)
    y.sum().backward()
    return sum(found), max([*found, y.detach()], key=lambda one: float(one.sum()))


def by_defaults(x, y):
    found, also = [], {}
    for tensor in (y, y.sin()):

        def hook(g, found=found, also=also, twice=found):
            twice.append(g)
            also["g"] = g

        tensor.register_hook(hook)
        tensor.pow(2).sum().backward(retain_graph=True)
    return found, also["g"] * 2


def by_defaults_before_a_branch(x, y):
    found = []
    y.register_hook(lambda g, found=found: found.append(g.norm()))
    if x.sum() > 0:
        y = y * 2
    y.sum().backward()
    if found[-1] > 3:
        return found[0] * 2, len(found)
    return found


def by_a_default_of_its_own(x, y):
    def hook(g, found=[]):  # noqa: B006
        found.append(g)

    y.register_hook(hook)
    y.sum().backward()
    return hook.__defaults__[0]


def by_a_default_with_a_name(x, y):
    found = []
    y.register_hook(lambda g, *, found=found: found.append(g))
    y.sum().backward()
    return found[0] * 2


REFUSED = {
    raises_once_it_has_filled_it: "opaque-raised",
    appends_behind_what_the_function_has_put_in: "opaque-rewrites",
    fills_it_in_two_passes: "opaque-varies",
    numbers_all_at_once: "reads a list that an opaque function has changed",
    by_a_default_with_a_name: "reads a list that an opaque function has changed",
}

for one in (
    fills_a_list,
    fills_a_dict,
    fills_what_has_something,
    fills_it_with_numbers,
    takes_out_what_another_has_put_in,
    asks_what_is_there,
    leaves_before,
    leaves_behind,
    fills_it_at_some_calls,
    keeps_the_order_of_keys,
    fills_one_for_each_call_of_a_helper,
    all_at_once,
    sums_behind_a_branch,
    sums_what_it_fills_at_some_calls,
    by_defaults,
    by_a_default_of_its_own,
    by_defaults_before_a_branch,
):
    made = of_a_product(one)
    made.__name__ = one.__name__
    cases(hits=2)(made)

for one, reason in REFUSED.items():
    made = of_a_product(one)
    made.__name__ = one.__name__
    cases(eager=reason)(made)


def small_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


def pictures():
    return [call(torch.randn(2, 1, 4, 4)) for _ in range(5)]


@cases(hits=3)
def hooks_of_a_module_for_a_while(trace):
    """Both kinds, which are still there when the pass comes to them."""
    net = small_net()

    def cam(x):
        values, gradients = [], []
        first = net[0].register_forward_hook(lambda module, given, y: values.append(y))
        second = net[0].register_full_backward_hook(lambda module, g, given: gradients.append(given[0]))
        net(x).max(1)[0].sum().backward()
        first.remove()
        second.remove()
        return (gradients[0].mean((2, 3), keepdim=True) * values[0]).sum(1).relu().detach()

    return trace(cam), pictures(), lambda: [p.grad for p in net.parameters()]


class Cam:
    """Has what its hooks are given, and the handles of these."""

    def __init__(self, layer):
        self.values = self.gradients = None
        self.handles = [
            layer.register_forward_hook(self.keep_values),
            layer.register_full_backward_hook(self.keep_gradients),
        ]

    def keep_values(self, module, given, y):
        self.values = y

    def keep_gradients(self, module, g, given):
        self.gradients = given[0]


@cases(eager="opaque-after-write")
def an_object_with_handles(trace):
    """A number that is followed, that of the handles, meets a recording that has failed."""
    net = small_net()

    def cam(x):
        made = Cam(net[0])
        net(x).sum().backward()
        for handle in made.handles:
            handle.remove()
        return made.gradients * made.values.detach()

    return trace(cam), pictures(), lambda: [p.grad for p in net.parameters()]


@cases(hits=3)
def a_hook_on_what_a_hook_of_a_module_has_kept(trace):
    net = small_net()

    def cam(x):
        found = {}

        def keep(module, given, y):
            found["y"] = y
            y.register_hook(lambda g: found.__setitem__("g", g))

        handle = net[0].register_forward_hook(keep)
        net(x).max(1)[0].sum().backward()
        handle.remove()
        return (found["g"].mean((2, 3), keepdim=True) * found["y"]).sum(1).relu().detach()

    return trace(cam), pictures(), lambda: [p.grad for p in net.parameters()]


@cases(hits=3)
def hooks_on_parameters_for_a_while(trace):
    net = small_net()

    def step(x):
        norms = []
        handles = [p.register_hook(lambda g: norms.append(g.norm())) for p in net.parameters()]
        net.zero_grad()
        net(x).sum().backward()
        for handle in handles:
            handle.remove()
        return torch.stack(norms).max().item()

    return trace(step), pictures(), lambda: [p.grad for p in net.parameters()]


@cases(hits=5)
def stays_in_state(trace):
    """Each call leaves a list of its own, which the next one does not change."""
    w, state, all_lists = X(3, 3).requires_grad_(), Holder(found=None), []

    def step(x):
        found = []
        y = x @ w
        y.register_hook(lambda g: found.append(g.norm()))
        y.pow(2).sum().backward()
        state.found = found

    traced = trace(step)

    def one(x):
        traced(x)
        all_lists.append(state.found)

    return one, eight(), lambda: (w.grad, all_lists, len({id(one) for one in all_lists}))


@cases(hits=5)
def a_hook_that_is_called_once_the_call_has_ended(trace):
    w, kept = X(3, 3).requires_grad_(), []

    def step(x):
        found = {}
        y = x @ w
        y.register_hook(lambda g: found.__setitem__("g", g))
        return y.pow(2).sum(), found

    traced = trace(step)

    def one(x):
        loss, found = traced(x)
        assert not found
        loss.backward()
        kept.append(found)

    return one, eight(), lambda: (w.grad, kept)


@cases(eager="reads-touched")
def it_goes_through_what_it_has_taken_something_out_of(trace):
    """The dict that is state must not move what comes next."""
    w = X(3, 3).requires_grad_()

    def step(x):
        found = {i: x * i for i in range(5)}
        del found[0], found[1]
        met = []
        for key in found:
            y = x @ w
            y.register_hook(lambda g, key=key: found.__setitem__(key, g))
            y.sum().backward()
            met.append(key)
        return met, found[4]

    return trace(step), eight(), lambda: w.grad


def written_before(x, y):
    found = [x.detach()]
    y.register_hook(lambda g: found.append(g) if x.sum() > 0 else None)
    y.sum().backward()
    return found


def read_before(x, y):
    found = {}
    y.register_hook(lambda g: found.update(a=g) if x.sum() > 0 else None)
    empty = not found
    y.sum().backward()
    return empty, found


def gone_through_behind(x, y):
    found = []
    y.register_hook(lambda g: found.append(g) if x.sum() > 0 else None)
    y.sum().backward()
    return [g * 2 for g in found]


def kept_behind(x, y):
    found = []
    y.register_hook(lambda g: found.append(g) if x.sum() > 0 else None)
    y.sum().backward()
    return found


@cases(hits=2)
def a_branch_behind_what_had_something(trace):
    """A function that resumes is fed the pass, and its hooks fill nothing then."""
    state, w = Holder(has={"a": 5.0}), X(3, 3).div(9).requires_grad_()

    def step(x):
        found = dict(state.has)
        y = x @ w
        y.register_hook(lambda g: found.setdefault("z", g))
        y.sum().backward()
        return (x * 2 if x.sum() > 0 else x * 3), w.grad

    return trace(step), eight(), lambda: w.grad


@pytest.mark.parametrize("first", [1, -1])
@pytest.mark.parametrize(
    "body",
    [written_before, read_before, gone_through_behind, kept_behind],
    ids=lambda body: body.__name__,
)
def test_a_hook_that_fills_it_at_some_calls(body, first):
    """In either order: what it does at the first calls it does not at later ones."""

    def make(trace):
        w = X(3, 3).requires_grad_()

        def step(x):
            found = body(x, x @ w)
            gradient, w.grad = w.grad.clone(), None
            return found, gradient

        inputs = [first * sign * (X(3, 3).abs() + 1) for sign in (1, 1, 1, -1, 1, -1, -1)]
        return trace(step), [call(x) for x in inputs], lambda: w.grad

    agree(make)


class Ends:
    """Tells when it goes."""

    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("gone")


class Explained(nn.Module):
    """A network whose hook keeps the gradient of its features beside its layers."""

    def __init__(self):
        super().__init__()
        self.features, self.rest = nn.Linear(3, 4), nn.Linear(4, 2)
        self.kept, self.factor = None, 1.0

    def keep(self, g):
        self.kept = g

    def forward(self, x):
        h = self.features(x)
        h.register_hook(self.keep)
        return self.rest(h.relu()) * self.factor


def explained(trace, body, between=lambda net: None):
    """Calls of `body(net, x)`, with what `between` changes in their midst."""
    torch.manual_seed(3)
    net = Explained()
    steps = eight()
    steps[5:5] = [lambda: between(net)]
    return trace(lambda x: body(net, x)), steps, lambda: (net.kept, [p.grad for p in net.parameters()])


def weighs(net, x):
    net.zero_grad()
    net(x).max(1)[0].sum().backward()
    return net.kept.mean(1)


@cases(hits=6)
def an_attribute_of_the_network_that_was_run(trace):
    """As maps of what a class was found by are computed: layers of the network were read before."""
    return explained(trace, weighs)


@cases(hits=5)
def such_a_network_with_another_factor(trace):
    return explained(trace, weighs, lambda net: setattr(net, "factor", -2.0))


@cases(hits=4)
def such_a_network_with_another_layer(trace):
    return explained(trace, weighs, lambda net: setattr(net, "rest", nn.Linear(4, 3)))


@cases(hits=4)
def such_a_network_with_a_branch_on_what_was_kept(trace):
    def body(net, x):
        weights = weighs(net, x)
        return net.rest(net.features(x).relu()) * 2 if weights.sum() > 0 else weights * net.factor

    return explained(trace, body)


@cases(hits=5)
def such_a_network_whose_parameters_are_gone_through_behind_it(trace):
    def body(net, x):
        net(x).max(1)[0].sum().backward()
        norms = [p.grad.norm() for p in net.parameters()]
        net.zero_grad()
        return net.kept * 2, norms, "kept" in vars(net), "more" in vars(net), net in [net.rest, net]

    return explained(trace, body, lambda net: setattr(net, "more", 1))


@cases(eager="cannot be resumed")
def such_a_network_that_is_looked_through(trace):
    """What the hook has set counts among all that the network has."""

    def body(net, x):
        names = [name for name in vars(net) if not name.startswith("_")]
        return weighs(net, x), names, [name for name in vars(net) if not name.startswith("_")]

    return explained(trace, body, lambda net: setattr(net, "more", 1))


@cases(eager="cannot be resumed")
def such_a_network_whose_gradient_was_read_before(trace):
    def body(net, x):
        before = net.kept
        return weighs(net, x) if before is None else weighs(net, x) + before.mean(1)

    return explained(trace, body)


@cases(eager="late-destructor")
def what_tells_of_its_end(trace):
    """The recording holds the list longer than the function does."""
    w, log = X(3, 3).requires_grad_(), []

    def step(x):
        found = []
        y = x @ w
        y.register_hook(lambda g: found.append(Ends(log)))
        y.sum().backward()
        found = None
        log.append("behind")
        return y.detach()

    return trace(step), eight(), lambda: (w.grad, log)


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
