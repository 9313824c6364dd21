"""Hooks on gradients that read state and run operators alone: training steps that call them become flat."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms

cases = Cases()


class Net(nn.Module):
    """What the hooks find."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 2)
        self.register_buffer("mask", (torch.arange(24.0).view(4, 6) % 3 > 0).float())
        self.scale, self.state, self.on = 0.5, Holder(k=2.0), True
        self.seen, self.handles, self.last = [], [], None


def makes(body, prepare=None, change=None, at=ENOUGH, count=ENOUGH + 5, optimizer=None):
    """Whole steps of `body(net, x)`, and a change of what its hooks are, or find, once they are flat."""
    optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, 0.1))

    def make(trace):
        torch.manual_seed(3)
        net = Net()
        opt = optimizer(net.parameters())
        if prepare is not None:
            prepare(net)

        @trace
        def step(x):
            opt.zero_grad()
            loss = body(net, x)
            opt.step()
            return loss

        steps = [call(torch.randn(5, 4)) for _ in range(count)]
        if change is not None:
            steps[at:at] = [lambda: change(net)]
        gradients = lambda: [p.grad for p in net.parameters()]  # noqa: E731
        more = lambda: [len(net.seen), net.last, torch.get_rng_state()]  # noqa: E731
        return step, steps, lambda: [*net.parameters(), gradients(), more()]

    return make


def forward(net, x, hooks=()):
    hidden = net.a(x).tanh()
    for hook in hooks:
        hidden.register_hook(hook)
    return net.c(net.b(hidden).sin()).square().mean()


def plain(net, x):
    loss = forward(net, x)
    loss.backward()
    return loss.detach()


# ---------------------------------------------------------------- hooks on parameters


def clamps(net):
    return lambda g: g.clamp(-0.01, 0.01)


def scales(net):
    return lambda g: g * net.scale


def scales_by_state(net):
    return lambda g: g * net.state.k if net.on else None


def masks(net):
    return lambda g: g * net.mask


def masks_by_closure(net):
    mask = net.mask.clone()
    return lambda g: g.mul(mask)


def decays(net):
    return lambda g: g + 0.01 * net.b.weight


def adds_noise(net):
    return lambda g: g + 0.1 * torch.randn_like(g)


def gives_nothing(net):
    return lambda g: None


def normalizes(net):
    def hook(g):
        with torch.no_grad():
            size = g.norm() + 1e-6
        return g / size

    return hook


def writes_in_place(net):
    return lambda g: g.mul_(2.0)


def makes_a_literal(net):
    return lambda g: g * torch.tensor(2.0)


def is_a_method(net):
    class Scaler:
        def __init__(self):
            self.k = 3.0

        def __call__(self, g):
            return g * self.k

        def hook(self, g):
            return self(g)

    return Scaler().hook


class Scaler:
    """Is called by its class."""

    how = 1.0

    def __init__(self, net):
        self.net, self.k = net, 0.5

    def __call__(self, g):
        return g * self.k * self.how + self.net.scale

    def times(self, k, g):
        return g * k * self.k


class Halver(Scaler):
    def __call__(self, g):
        return g * 0.5 + self.k


def is_an_object(net):
    return Scaler(net)


def is_a_partial_of_an_object(net):
    return functools.partial(Scaler(net))


def is_a_partial_of_a_method(net):
    return functools.partial(Scaler(net).times, 3.0)


def is_a_partial_of_state(net):
    return functools.partial(lambda mask, g, other: g * mask + other.scale, net.mask, other=net)


def is_a_partial(net):
    def hook(scale, on, g):
        return g * scale if on else None

    return functools.partial(hook, 0.5, net.on)


HOOKS = [
    *(is_an_object, is_a_partial, is_a_partial_of_an_object, is_a_partial_of_a_method, is_a_partial_of_state),
    *(clamps, scales, scales_by_state, masks, masks_by_closure, decays, adds_noise, gives_nothing),
    *(normalizes, writes_in_place, makes_a_literal, is_a_method),
]


def on_weight(hook):
    return lambda net: net.handles.append(net.b.weight.register_hook(hook(net)))


@pytest.mark.parametrize("hook", HOOKS, ids=[hook.__name__ for hook in HOOKS])
def test_of_a_parameter(hook):
    made = makes(plain, on_weight(hook))
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


def on_all(net):
    for p in net.parameters():
        p.register_hook(lambda g: g * net.scale)
        p.register_hook(lambda g: g + 1e-3)


def adam(parameters):
    return torch.optim.Adam(parameters, 0.01)


def test_several_of_each_parameter():
    made = makes(plain, on_all, optimizer=adam, count=ENOUGH + 8)
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


# ---------------------------------------------------------------- set by the call
def inside(hook):
    def body(net, x):
        loss = forward(net, x, [hook(net)])
        loss.backward()
        return loss.detach()

    return body


INSIDE = {
    "partial": is_a_partial,
    "object": is_an_object,
    "object_in_a_partial": is_a_partial_of_an_object,
    "clamps": lambda net: lambda g: g.clamp(-0.01, 0.01),
    "scales": scales,
    "by_state": scales_by_state,
    "noise": adds_noise,
    "nothing": gives_nothing,
    "normalizes": normalizes,
}


@pytest.mark.parametrize("name", INSIDE)
def test_set_inside(name):
    made = makes(inside(INSIDE[name]))
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


def of_what_was_drawn(net, x):
    drop = (torch.rand(6) > 0.3).float()
    loss = forward(net, x, [lambda g: g * drop, lambda g: g + drop.mean()])
    loss.backward()
    return loss.detach()


def on_a_leaf_of_the_call(net, x):
    x = x.clone().requires_grad_()
    x.register_hook(lambda g: g * 2)
    loss = forward(net, x)
    loss.backward()
    return x.grad


def asks_for_gradients(net, x):
    x = x.clone().requires_grad_()
    hidden = net.a(x).tanh()
    hidden.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g + 1)
    (grad,) = torch.autograd.grad(net.c(net.b(hidden)).sum(), x)
    loss = forward(net, x + grad)
    loss.backward()
    return loss.detach()


def passes_twice(net, x):
    loss = forward(net, x, [lambda g: g * net.scale])
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def accumulates(net, x):
    for part in x.split(3):
        forward(net, part, [lambda g: g * net.scale]).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    return x.sum()


def on_what_leads_nowhere(net, x):
    net.a(x).register_hook(lambda g: g * 2)
    return plain(net, x)


@pytest.mark.parametrize(
    "body",
    [of_what_was_drawn, on_a_leaf_of_the_call, asks_for_gradients, passes_twice, accumulates],
    ids=lambda body: body.__name__,
)
def test_in_other_steps(body):
    made = makes(body, on_all)
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


def test_on_what_leads_nowhere():
    check(makes(on_what_leads_nowhere, on_all), hits=ENOUGH)


def gives_what_is_hooked(net, x):
    hidden = net.a(x).tanh()
    hidden.register_hook(lambda g: g * 2)
    net.c(net.b(hidden)).sum().backward()
    return hidden


def test_what_has_a_hook_leaves_the_function():
    def make(trace):
        torch.manual_seed(3)
        net = Net()
        step = trace(lambda x: gives_what_is_hooked(net, x))
        hooks = lambda x: len(step(x)._backward_hooks)  # noqa: E731
        return hooks, [call(torch.randn(5, 4)) for _ in range(ENOUGH + 5)]

    agree(make)


# ---------------------------------------------------------------- behind what is added, and of modules
def halves(p):
    p.grad.mul_(0.5)


def replaces(p):
    p.grad = p.grad.clamp(-0.01, 0.01)


def takes_away(p):
    p.grad = None


def steps_at_once(optimizer):
    def prepare(net):
        optimizers = {p: optimizer([p]) for p in net.parameters()}

        def hook(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in net.parameters():
            p.register_post_accumulate_grad_hook(hook)

    return prepare


class Steps:
    """Optimizers that are called by a class."""

    def __init__(self, net):
        self.optimizers = {p: torch.optim.SGD([p], 0.1) for p in net.parameters()}

    def __call__(self, p):
        self.optimizers[p].step()
        self.optimizers[p].zero_grad()


def steps_of_an_object(net):
    steps = Steps(net)
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(steps)


AFTER = {
    "sgd_of_an_object": steps_of_an_object,
    "halves": lambda net: [p.register_post_accumulate_grad_hook(halves) for p in net.parameters()],
    "replaces": lambda net: net.b.weight.register_post_accumulate_grad_hook(replaces),
    "takes_away": lambda net: net.b.weight.register_post_accumulate_grad_hook(takes_away),
    "sgd_at_once": steps_at_once(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
}


@pytest.mark.parametrize("name", AFTER)
def test_behind_what_is_added(name):
    made = makes(plain, AFTER[name], count=ENOUGH + 8)
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


def test_an_optimizer_that_looks_at_a_number():
    """Adam asks for the count of its parameter, which is more than running operators."""
    prepare = steps_at_once(lambda p: torch.optim.Adam(p, 0.01))
    check(makes(plain, prepare, count=ENOUGH + 8), hits=ENOUGH)


def halved(module, given, got):
    return tuple(None if g is None else g * 0.5 for g in given)


MODULES = {
    "looks": lambda net: net.b.register_full_backward_hook(lambda module, given, got: None),
    "halves": lambda net: net.b.register_full_backward_hook(halved),
    "before": lambda net: net.b.register_full_backward_pre_hook(lambda module, got: (got[0] * net.scale,)),
    "both": lambda net: (
        net.b.register_full_backward_hook(halved),
        net.b.register_full_backward_pre_hook(lambda module, got: (got[0] + 1e-3,)),
        net.c.register_full_backward_hook(halved),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_of_modules(name):
    made = makes(plain, MODULES[name])
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


@pytest.mark.parametrize("action", ["default", "always"])
def test_of_a_module_without_inputs_that_require_gradients(action):
    """Torch warns of them, once unless somebody asks for more."""
    counts = []
    for trace in (lambda f: f, lazytrace.traced):
        torch.manual_seed(3)
        net = Net()
        net.a.register_full_backward_hook(lambda module, given, got: None)

        @trace
        def step(x, net=net):
            net.a.weight.grad = None
            return plain(net, x), net.a.weight.grad

        given = []
        for i in range(ENOUGH + 6):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(action if i != ENOUGH + 2 else "always")
                loss, grad = step(torch.full((5, 4), float(i)))
            given.append((len(caught), loss, grad))
        counts.append(given)
    for eager, traced in zip(*counts, strict=True):
        assert eager[0] == traced[0]
        assert eager[1].equal(traced[1])
        assert eager[2].equal(traced[2])


# ---------------------------------------------------------------- another world once it is flat
def adds_one(net):
    net.b.weight.register_hook(lambda g: g * 3)


def adds_one_elsewhere(net):
    net.a.bias.register_hook(lambda g: g * 3)


def adds_one_behind(net):
    net.a.bias.register_post_accumulate_grad_hook(halves)


def adds_one_to_the_node(net):
    node = net.b.weight.expand_as(net.b.weight).grad_fn.next_functions[0][0]
    net.last = None
    net.node = node
    node.register_hook(lambda given, got: net.seen.append(1))


def adds_one_to_a_module(net):
    net.b.register_full_backward_hook(halved)


def removes(net):
    net.handles.pop().remove()


def sets_again(net):
    hook = next(iter(net.b.weight._backward_hooks.values()))
    net.handles.pop().remove()
    net.handles.append(net.b.weight.register_hook(hook))


def replaced(net):
    net.handles.pop().remove()
    net.handles.append(net.b.weight.register_hook(lambda g: g * 7))


def rebinds(net):
    hook = next(iter(net.b.weight._backward_hooks.values()))
    for cell in hook.__closure__ or ():
        if isinstance(cell.cell_contents, torch.Tensor):
            cell.cell_contents = torch.full((4, 6), 2.0)
        elif isinstance(cell.cell_contents, Net):
            other = Net()
            other.scale = 4.0
            cell.cell_contents = other


def other_code(net):
    hook = next(iter(net.b.weight._backward_hooks.values()))
    getattr(hook, "__func__", hook).__code__ = (lambda *args: args[-1] * 5).__code__


def sets_scale(net):
    net.scale = 3.0


def sets_k(net):
    net.state.k = 3.0


def switches_off(net):
    net.on = False


def changes_the_mask(net):
    net.mask.mul_(2)


def other_mask(net):
    net.mask = torch.full((4, 6), 0.25)


def freezes(net):
    net.b.weight.requires_grad_(False)


def swaps(net):
    net.b.weight = nn.Parameter(torch.ones(4, 6))


def gives_gradients(net):
    for p in net.parameters():
        p.grad = torch.ones_like(p)


def logs(net):
    net.b.weight.register_hook(lambda g: net.seen.append(1))


def raises(net):
    def hook(g):
        raise ValueError("a hook")

    net.b.bias.register_hook(hook)


def gives_another_shape(net):
    def hook(g):  # torch's error has its name
        return g[:1]

    net.b.bias.register_hook(hook)


CHANGES = [
    *(adds_one, adds_one_elsewhere, adds_one_behind, adds_one_to_the_node, adds_one_to_a_module, removes),
    *(sets_again, replaced, sets_scale, sets_k, switches_off, changes_the_mask, other_mask, freezes),
    *(swaps, gives_gradients, logs, raises, gives_another_shape),
]
HELD = [scales, scales_by_state, masks, masks_by_closure]


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
@pytest.mark.parametrize("hook", HELD, ids=[hook.__name__ for hook in HELD])
def test_a_change(change, hook):
    check(makes(plain, on_weight(hook), change), hits=ENOUGH - 2)


@pytest.mark.parametrize("change", [rebinds, other_code], ids=lambda change: change.__name__)
@pytest.mark.parametrize("hook", [*HELD], ids=[hook.__name__ for hook in HELD])
def test_another_closure_or_code(change, hook):
    def outer(net):
        # Code can only be exchanged for some of as many free variables.
        net.handles.append(net.b.weight.register_hook(hook(net)))

    def changes(net):
        try:
            change(net)
        except ValueError:
            replaced(net)

    check(makes(plain, outer, changes), hits=ENOUGH - 2)


def the_hook(net):
    return next(iter(net.b.weight._backward_hooks.values()))


def sets_its_number(net):
    hook = the_hook(net)
    (hook.func if isinstance(hook, functools.partial) else hook).k = 2.0


def sets_that_of_the_class(net):
    Scaler.how = 2.0


def calls_otherwise(net):
    Scaler.__call__ = lambda self, g: g * 7


def is_of_another_class(net):
    hook = the_hook(net)
    (hook.func if isinstance(hook, functools.partial) else hook).__class__ = Halver


def holds_something_else(net):
    """The same partial, of other parts."""
    hook = the_hook(net)
    if isinstance(hook, functools.partial):
        hook.__setstate__((lambda g: g * 9, (), {}, {}))


@pytest.mark.parametrize("hook", [is_an_object, is_a_partial_of_an_object], ids=lambda hook: hook.__name__)
@pytest.mark.parametrize(
    "change",
    [
        *(sets_its_number, sets_that_of_the_class, calls_otherwise, is_of_another_class),
        *(holds_something_else, sets_scale, replaced, removes),
    ],
    ids=lambda change: change.__name__,
)
def test_a_change_of_an_object(hook, change, monkeypatch):
    def fresh(net):
        monkeypatch.setattr(Scaler, "how", 1.0)
        monkeypatch.setattr(Scaler, "__call__", CALLS)
        net.handles.append(net.b.weight.register_hook(hook(net)))

    check(makes(plain, fresh, change), hits=ENOUGH - 2)


CALLS = Scaler.__call__


def sets_what_it_is_given(net):
    the_hook(net).keywords["other"] = Holder(scale=5.0)


@pytest.mark.parametrize(
    "change", [sets_what_it_is_given, changes_the_mask, other_mask, sets_scale], ids=lambda one: one.__name__
)
def test_a_change_of_what_a_partial_is_given(change):
    check(makes(plain, on_weight(is_a_partial_of_state), change), hits=ENOUGH - 2)


def test_an_error_names_an_object_as_torch_does():
    class Wrong:
        def __call__(self, g):
            return g[:1]

    named = Wrong()
    named.__name__ = "of its own"
    texts = []
    for trace in (lambda f: f, lazytrace.traced):
        for hook in (Wrong(), named, functools.partial(lambda g: g[:1])):
            net = Net()
            step = trace(lambda x, net=net: plain(net, x))
            net.b.weight.register_hook(hook)
            with pytest.raises(RuntimeError) as raised:
                step(torch.ones(5, 4))
            texts.append(str(raised.value))
    assert texts[:3] == texts[3:]


def test_the_same_hook_set_anew_before_each_call():
    """Its key among the hooks is another one each time; that is nothing that a pass sees."""

    def make(trace):
        torch.manual_seed(3)
        net = Net()
        hook = masks(net)

        @trace
        def step(x):
            net.b.weight.grad = None
            return plain(net, x)

        def run(x):
            handle = net.b.weight.register_hook(hook)
            try:
                return step(x)
            finally:
                handle.remove()

        return run, [call(torch.randn(5, 4)) for _ in range(ENOUGH + 5)], lambda: net.b.weight.grad

    check(make, hits=ENOUGH)


def test_of_an_argument():
    def make(trace):
        torch.manual_seed(3)
        net = Net()

        @trace
        def step(x):
            loss = forward(net, x)
            loss.backward()
            return loss.detach()

        def run(values, hook):
            x = values.clone().requires_grad_()
            if hook is not None:
                x.register_hook(hook)
            step(x)
            return x.grad

        doubles, triples = (lambda g: g * 2), (lambda g: g * 3)
        hooks = [doubles] * (ENOUGH + 3) + [triples, None, doubles, triples]
        return run, [call(torch.randn(5, 4), hook) for hook in hooks], lambda: list(net.parameters())

    check(make, hits=ENOUGH)


# ---------------------------------------------------------------- ways that hang on values
def raises_at_nans(net):
    def hook(g):
        if torch.isnan(g).any():
            raise ValueError(f"not a number at {net.scale}")

    return hook


def scales_the_large(net):
    return lambda g: g * net.scale if g.norm() > 1e3 else None


def compares(net):
    return lambda g: g * net.scale if torch.equal(g, g.abs()) else g * 3


def asks_twice(net):
    def hook(g):
        if g.abs().max() > 1e3 or torch.allclose(g, torch.zeros_like(g)):
            return g * net.scale
        return g + net.state.k

    return hook


ASKING = [raises_at_nans, scales_the_large, compares, asks_twice]


@pytest.mark.parametrize("where", ["on_weight", "inside"])
@pytest.mark.parametrize("hook", ASKING, ids=[hook.__name__ for hook in ASKING])
def test_that_asks_a_question(hook, where):
    made = makes(plain, on_weight(hook)) if where == "on_weight" else makes(inside(hook))
    assert "flat" in forms(agree(made))
    check(made, hits=ENOUGH)


def block(net, x):
    def run(x):
        return net.a(x).relu() if x.sum() > 0 else net.a(x) * net.scale

    hidden = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
    loss = net.c(net.b(hidden)).square().mean()
    loss.backward()
    return loss.detach()


def with_questions_of_torchs(net, x):
    """Its backward pass asks for zeros."""
    loss = net.c(net.b(net.a(x).cumprod(1)).sin()).square().mean()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("body", [plain, block, with_questions_of_torchs], ids=lambda body: body.__name__)
@pytest.mark.parametrize("hook", ASKING, ids=[hook.__name__ for hook in ASKING])
@pytest.mark.parametrize("seed", range(4))
def test_ways_in_any_order(body, hook, seed):
    """What the other ways find may be another thing by then, as nothing has guarded it."""

    def make(trace):
        generator = torch.Generator().manual_seed(seed)
        draws = lambda n: int(torch.randint(n, (), generator=generator))  # noqa: E731
        torch.manual_seed(3)
        net = Net()
        net.b.weight.register_hook(hook(net))

        @trace
        def step(x):
            net.zero_grad()
            return body(net, x)

        steps, scales = [], []
        for _ in range(30):
            x = torch.randn(5, 4) * (1.0, -1.0, 1e6, 0.0, float("nan"))[draws(5) if draws(3) == 0 else 0]
            scales.append(float(draws(4)))
            steps.append(call(x))
            if draws(6) == 0:
                steps.append(lambda k=scales[-1]: setattr(net, "scale", k))
        return step, steps, lambda: [[p.grad for p in net.parameters()], len(net.seen)]

    agree(make)


def test_a_form_goes_the_way_that_was_watched():
    """Nothing has guarded what the other way reads, so no form is made of it."""
    found = []
    for first in range(1, 5):

        def make(trace, first=first):
            torch.manual_seed(3)
            net = Net()
            hook = lambda g, net=net: net.mask * net.scale if torch.isnan(g).any() else None  # noqa: E731
            net.b.weight.register_hook(hook)

            @trace
            def step(x):
                net.zero_grad()
                return plain(net, x)

            steps = [call(torch.randn(5, 4) * (1.0 if i < first else float("nan"))) for i in range(16)]
            steps[12:12] = [lambda: sets_scale(net)]
            return step, steps, lambda: net.b.weight.grad

        found += forms(agree(make))
    assert any("another way" in form for form in found)


# ---------------------------------------------------------------- what does more is called
def sets_an_attribute(net):
    return lambda g: setattr(net, "last", g.norm())


def appends_by_another_name(net):
    put = getattr(net.seen, "app" + "end")
    return lambda g: put(1)


def looks_at_a_number(net):
    return lambda g: g * 2 if g.sum() else None


def draws_of_torch_by_value(net):
    return lambda g: g[g > 0].sum() + g


def logs_inside(net):
    def hook(g):
        net.seen.append(1)

    return hook


def makes_a_list_a_tensor(net):
    return lambda g: g * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


MORE = [sets_an_attribute, appends_by_another_name, looks_at_a_number, draws_of_torch_by_value, logs_inside]
MORE.append(makes_a_list_a_tensor)


@pytest.mark.parametrize("hook", MORE, ids=[hook.__name__ for hook in MORE])
@pytest.mark.parametrize("where", ["on_weight", "inside"])
def test_what_does_more(hook, where):
    if where == "inside" and hook is appends_by_another_name:
        pytest.skip("a method of C among arguments of a step")
    made = makes(plain, on_weight(hook)) if where == "on_weight" else makes(inside(hook))
    assert "flat" not in forms(agree(made))
    check(made, hits=ENOUGH)


def test_a_number_that_differs_at_each_call():
    def make(trace):
        torch.manual_seed(3)
        net = Net()
        net.b.weight.register_hook(lambda g: g * net.scale)

        @trace
        def step(x):
            net.b.weight.grad = None
            net.scale = net.scale * 0.9
            return plain(net, x)

        return step, [call(torch.randn(5, 4)) for _ in range(ENOUGH + 5)], lambda: net.b.weight.grad

    check(make, hits=ENOUGH - 2)


def test_a_way_that_is_taken_behind_the_pass():
    def body(net, x):
        loss = plain(net, x)
        return loss * 2 if net.b.weight.grad.sum() > 0 else loss

    agree(makes(body, on_all, count=ENOUGH + 12))


@cases(hits=ENOUGH)
def the_list_of_a_hook_of_the_calls(trace):
    torch.manual_seed(3)
    net = Net()

    @trace
    def step(x):
        sizes = []
        loss = forward(net, x, [lambda g: sizes.append(g.shape)])
        loss.backward()
        return loss.detach()

    return step, [call(torch.randn(5, 4)) for _ in range(ENOUGH + 5)], lambda: list(net.parameters())


# ---------------------------------------------------------------- other hooks by now, where none is watched
def is_not_watched(net):
    """What it writes is read by nobody."""
    net.handles.append(net.a.bias.register_hook(lambda g: setattr(net, "last", g.sum())))


def forgets_it(net):
    net.handles.append(net.c.bias.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None)))


def forget_none(net):
    for handle in net.handles:
        handle.remove()


@pytest.mark.parametrize(("before", "change"), [(forgets_it, forget_none), (lambda net: None, forgets_it)])
@pytest.mark.parametrize("of_a_module", [False, True])
def test_other_hooks_beside_what_is_not_watched(before, change, of_a_module):
    """The gradient is there, or not, behind writes to state: nothing could go on from a read of it."""

    def prepare(net):
        is_not_watched(net)
        before(net)
        if of_a_module:
            net.c.register_full_backward_hook(lambda *_: None)

    momentum = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    check(makes(plain, prepare, change, at=7, count=14, optimizer=momentum), hits=6)


class Counts:
    """A hook that is not watched, made anew before each call."""

    def __init__(self, seen):
        self.seen = seen

    def __call__(self, g):
        self.seen.calls += 1
        return g * 2

    def method(self, g):
        return self(g)


def closure_of(seen):
    return lambda g: Counts(seen)(g)


def partial_of(seen):
    return functools.partial(Counts.__call__, Counts(seen))


HOOKS_MADE_ANEW = [Counts, lambda seen: Counts(seen).method, closure_of, partial_of]


@pytest.mark.parametrize("made", HOOKS_MADE_ANEW, ids=["object", "method", "closure", "partial"])
def test_hooks_that_are_not_watched_are_set_anew_before_each_call(made):
    def make(trace):
        torch.manual_seed(3)
        net, seen = nn.Linear(4, 2), Holder(calls=0)

        @trace
        def loss_of(x):
            loss = net(x).square().mean()
            loss.backward()
            return loss.detach()

        def step(x):
            handle = net.weight.register_hook(made(seen))
            try:
                return loss_of(x)
            finally:
                handle.remove()

        steps = [call(torch.randn(3, 4)) for _ in range(12)]
        return step, steps, lambda: [seen, net.weight.grad, net.bias.grad]

    check(make, hits=8)


def test_a_tensor_is_written_where_it_lies_behind_a_step_that_has_touched_something():
    """What was a write when the steps were recorded is one to the function that goes on from them."""

    def make(trace):
        torch.manual_seed(1)
        net = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        seen, found = Holder(calls=0), Holder(large=None)
        net.bias.register_hook(lambda g: setattr(seen, "calls", seen.calls + 1))

        @trace
        def step(x):
            net(x).sin().sum().backward()
            loss = net(x).square().sum()
            loss.backward()
            found.large = loss.item() > 4.0
            return loss.detach()

        inputs = [torch.randn(3, 4) * k for k in (0.1, 0.1, 0.1, 0.1, 9.0, 0.1, 9.0)]
        return step, [call(x) for x in inputs], lambda: [seen, found, net, [p.grad for p in net.parameters()]]

    check(make, hits=1, eager="resumes-after-opaque")


# ---------------------------------------------------------------- behind what cannot be shown before its time
def put_attribute(net):
    net.state.kept = Holder()


def put_entry(net):
    net.names["kept"] = Holder()


def put_item(net):
    net.seen.append(Holder())


def set_cell(net):
    net.keep(Holder())


def set_slot(net):
    net.slots.kept = Holder()


class Slots:
    """A place of another kind."""

    __slots__ = ("factor", "kept")


WRITES = {
    "attribute": (put_attribute, lambda net: 3.0 if net.state.kept is None else 5.0),
    "namespace": (put_attribute, lambda net: float(len(vars(net.state)))),
    "attribute_is_there": (
        put_attribute,
        lambda net: 3.0 if getattr(net.state, "kept", None) is None else 5.0,
    ),
    "entry": (put_entry, lambda net: 5.0 if "kept" in net.names else 3.0),
    "entries": (put_entry, lambda net: float(sum(1 for _ in net.names.values()))),
    "item": (put_item, lambda net: float(len(net.seen))),
    "items": (put_item, lambda net: 2.0 + any(isinstance(one, Holder) for one in net.seen)),
    "cell": (set_cell, lambda net: 3.0 if net.kept() is None else 5.0),
    "slot": (set_slot, lambda net: 3.0 if net.slots.kept is None else 5.0),
    "another_slot": (set_slot, lambda net: net.slots.factor),
}
OTHERS = {
    "attribute": (put_attribute, lambda net: net.state.k),
    "entry": (put_entry, lambda net: net.state.k),
    "item": (put_item, lambda net: float(len(net.names))),
    "cell": (set_cell, lambda net: net.scale),
}


def behind_a_write(write, factor, early=False):
    """Steps whose hook runs behind a write of an object that the call has made, and asks for a factor."""

    def body(net, x):
        before = factor(net) if early else 0.0
        write(net)
        loss = forward(net, x, hooks=[lambda g: g * factor(net)])
        loss.backward()
        clear(net)
        return loss.detach() + before

    def clear(net):
        net.state.kept = None
        net.names.pop("kept", None)
        net.seen.clear()
        net.keep(None)
        net.slots.kept = None

    def prepare(net):
        held = None

        def keep(value):
            nonlocal held
            held = value

        net.keep, net.kept = keep, lambda: held
        net.names, net.slots = {"a": 1, "b": 2}, Slots()
        net.slots.factor = 2.0
        clear(net)

    return makes(body, prepare=prepare)


@pytest.mark.parametrize("name", OTHERS)
def test_hooks_that_ask_for_another_place(name):
    check(behind_a_write(*OTHERS[name]), hits=ENOUGH + 3)


@pytest.mark.parametrize("early", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("name", WRITES)
def test_hooks_that_ask_for_what_was_written(name, early):
    """A replay calls them before it has made the write, so they would find what was there before."""
    check(behind_a_write(*WRITES[name], early), eager="opaque-after-write")


@cases.parametrize
def test_cases(make, expected):
    check(make, **expected)
