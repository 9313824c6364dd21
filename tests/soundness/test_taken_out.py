"""Attributes that were there before the call, which it takes out and sets again: they lie last then."""

from __future__ import annotations

import functools
import types

import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, calls, check

cases = Cases()


def holder(**more):
    torch.manual_seed(0)
    return Holder(w=torch.randn(3, 3), k=2.0, **more)


def case(expect_hits, steps=None, **more):
    """A function of a holder and `x`; what the holder has, in its order, is compared."""

    def register(body):
        def make(trace):
            state = holder(**more)
            given = steps(state) if steps else calls()
            return trace(lambda x: body(state, x)), given, lambda: list(vars(state).items())

        make.__name__ = body.__name__
        cases(make, **({"hits": expect_hits} if isinstance(expect_hits, int) else {"eager": expect_hits}))
        return body

    return register


# ---------------------------------------------------------------- set again in the end
@case(4)
def another_one_for_a_while(state, x):
    kept = state.w
    del state.w
    state.w = kept * 2
    y = x @ state.w
    del state.w
    state.w = kept
    return y


@case(4)
def a_new_one(state, x):
    kept = state.w
    del state.w
    state.w = kept * 0.5
    return x @ state.w


@case(4)
def missing_for_a_while(state, x):
    kept = state.w
    del state.w
    found = hasattr(state, "w"), getattr(state, "w", None) is None, "w" in vars(state)
    state.w = kept
    return x @ state.w, found


@case(4)
def looked_for_in_vain(state, x):
    kept = state.w
    del state.w
    try:
        y = x @ state.w
    except AttributeError:
        y = x * 2
    state.w = kept
    return y


class WithDefault(Holder):
    k = 5.0


@cases(hits=3)
def its_class_has_one_too(trace):
    state = WithDefault(k=2.0)

    def fn(x):
        kept = state.k
        del state.k
        y = x * state.k
        state.k = kept
        return y * state.k

    def other():
        WithDefault.k = 7.0

    def same():
        WithDefault.k = 5.0

    same()
    return trace(fn), [*calls(3), other, call(X()), *calls(2), same], lambda: list(vars(state).items())


@case(4)
def others_are_set_meanwhile(state, x):
    kept = state.w
    del state.w
    state.new = x.sum()
    state.w = kept
    return x @ state.w


@case(4)
def out_of_the_namespace(state, x):
    names = vars(state)
    kept = names["w"]
    del names["w"]
    names["w"] = kept * 2
    y = x @ state.w
    del names["w"]
    names["w"] = kept
    return y


@case(4)
def out_of_the_namespace_and_asked_for_elsewhere(state, x):
    kept = state.w
    del vars(state)["w"]
    found = hasattr(state, "w")
    state.w = kept
    return x @ state.w, found


@case(4)
def by_delattr(state, x):
    kept = state.w
    delattr(state, "w")
    state.w = kept + 1
    y = x @ state.w
    object.__delattr__(state, "w")
    state.w = kept
    return y


@case(4)
def more_than_once(state, x):
    kept = state.w
    del state.w
    state.w = kept
    del state.w
    state.w = kept + 1
    return x @ state.w


@case(4)
def set_before_it_is_taken_out(state, x):
    state.w = state.w + 1
    kept = state.w
    del state.w
    state.w = kept * 0.5
    return x @ state.w


@case(4, v=torch.eye(3))
def two_that_change_places(state, x):
    a, b = state.w, state.v
    del state.w, state.v
    state.v, state.w = a, b
    return x @ state.w


@case(4)
def a_counter(state, x):
    count = state.k
    del state.k
    state.k = count + 1
    return x * state.k


@case(3, flag=True)
def a_flag(state, x):
    flag = state.flag
    del state.flag
    state.flag = not flag
    return x * (2 if state.flag else 3)


@case(4)
def popped(state, x):
    kept = vars(state).pop("w")
    found = hasattr(state, "w"), vars(state).pop("w", None) is None
    state.w = kept * 2
    return x @ state.w, found


@case(4)
def popped_by_default(state, x):
    kept = state.__dict__.pop("w", None)
    missing = state.__dict__.pop("none", 3.0)
    state.w = kept + missing
    return x @ state.w


@case(4)
def popped_in_vain(state, x):
    try:
        vars(state).pop("none")
    except KeyError:
        x = x + 1
    return x @ state.w


# ---------------------------------------------------------------- by two ways to one namespace
def two_ways(body, **expected):
    def make(trace):
        state = holder()
        kept = [vars(state)]
        return trace(lambda x: body(state, kept, x)), calls(), lambda: list(vars(state).items())

    make.__name__ = body.__name__
    cases(make, **expected)


def another_name_by_the_other(state, kept, x):
    w = state.w
    del state.w
    kept[0]["new"] = x.sum()
    state.w = w * 2
    return x @ state.w


def missing_by_the_one(state, kept, x):
    w = kept[0].pop("w")
    y = x + getattr(state, "w", 1.0)
    kept[0]["w"] = w
    return y @ state.w


def popped_by_the_other(state, kept, x):
    w = state.w
    del state.w
    state.k = kept[0].pop("k")
    state.w = w * 2
    return x @ state.w


def counted_by_the_other(state, kept, x):
    w = state.w
    del state.w
    found = "w" in kept[0], kept[0].get("w") is None, len(kept[0])
    state.w = w
    return x @ kept[0]["w"], found


def emptied_by_the_other(state, kept, x):
    w = state.w
    del state.w
    state.w = w
    kept[0].clear()
    kept[0].update(w=w, k=3.0)
    return x @ state.w


two_ways(another_name_by_the_other, hits=4)
two_ways(missing_by_the_one, hits=3)
two_ways(popped_by_the_other, eager="calls-method")
two_ways(counted_by_the_other, eager="reads-written")
two_ways(emptied_by_the_other, eager="calls-method")


# ---------------------------------------------------------------- the caller changes what is there
def puts_it_last(state):
    def again():
        state.w = vars(state).pop("w")

    def first():
        rest = [(name, vars(state).pop(name)) for name in list(vars(state)) if name != "w"]
        for name, value in rest:
            setattr(state, name, value)

    return [*calls(3), again, call(X()), first, *calls(2), again, call(X())]


@case(5, steps=puts_it_last)
def wherever_it_lay(state, x):
    kept = state.w
    del state.w
    state.w = kept * 0.5
    return x @ state.w


def takes_it_away(state):
    def gone():
        del state.w

    def there():
        state.w = torch.eye(3)

    return [*calls(3), gone, call(X()), there, *calls(2)]


@case(2, steps=takes_it_away)
def not_there_at_a_call(state, x):
    kept = getattr(state, "w", None)
    if kept is None:
        return x
    del state.w
    state.w = kept
    return x @ state.w


@case(4)
def a_cache(state, x):
    if hasattr(state, "cache"):
        del state.cache
    state.cache = x.sum()
    return x @ state.w + state.cache


# ---------------------------------------------------------------- left halfway
@case(4, steps=lambda _: [call(k * X().abs()) for k in (1, 2, -1, -2, 3, -3)])
def a_branch_in_between(state, x):
    kept = state.w
    del state.w
    state.w = kept + 1
    y = x @ state.w
    if x.sum() > 0:
        y = y * 2
    del state.w
    state.w = kept
    return y


def fails_at_a_call(state):
    def bad():
        state.m = -torch.eye(3)

    def good():
        state.m = torch.eye(3)

    return [*calls(3), bad, call(X()), good, *calls(2), bad, call(X()), good, call(X())]


@case(4, steps=fails_at_a_call, m=torch.eye(3))
def an_operator_raises_in_between(state, x):
    kept = state.w
    del state.w
    try:
        root = torch.linalg.cholesky(state.m)
    finally:
        state.w = kept
    return x @ root


@case(3, steps=fails_at_a_call, m=torch.eye(3))
def an_operator_raises_and_leaves_it_out(state, x):
    kept = getattr(state, "w", None)
    if kept is None:
        state.w = torch.ones(3, 3)
        return x
    del state.w
    root = torch.linalg.cholesky(state.m)
    state.w = kept
    return x @ root


# ---------------------------------------------------------------- what needs eager calls
def sets_it_again(state):
    def leave():
        state.w = torch.eye(3)

    return [one for _ in range(4) for one in (leave, call(X()))]


@case("deletes-attribute", steps=sets_it_again)
def gone_for_good(state, x):
    kept = state.w
    del state.w
    return x @ kept


@case("reads-written")
def the_order_is_asked_for(state, x):
    kept = state.w
    del state.w
    state.w = kept
    return x @ state.w, list(vars(state))


@case("calls-method")
def a_number_is_popped(state, x):
    """C code gives the number itself, which nobody follows: each call would be another recording."""
    count = vars(state).pop("k")
    state.k = count + 1
    return x * count * state.k


@cases(eager="opaque-after-write")
def an_opaque_function_comes_in_between(trace):
    state = holder()

    @lazytrace.opaque
    def look(x):
        return x * len(vars(state))

    def fn(x):
        kept = state.w
        del state.w
        y = look(x)
        state.w = kept
        return y

    return trace(fn), calls(), lambda: list(vars(state))


@cases(eager="opaque-after-write")
def an_opaque_function_comes_behind_it(trace):
    state = holder()

    @lazytrace.opaque
    def look(x):
        return x * list(vars(state)).index("w")

    def fn(x):
        kept = state.w
        del state.w
        state.w = kept
        return look(x)

    return trace(fn), calls(), lambda: list(vars(state))


@cases(eager="deletes-attribute")
def what_a_module_of_python_has(trace):
    """Its functions go on to builtins while it is missing."""
    library = types.ModuleType("library")
    library.w = torch.eye(3)

    def fn(x):
        kept = library.w
        del library.w
        library.w = kept * 2
        return x @ library.w

    return trace(fn), calls(), lambda: list(vars(library))


# ---------------------------------------------------------------- of modules
@cases(hits=4)
def a_property_that_keeps_its_value(trace):
    """As `functools.cached_property` is emptied."""

    class Symmetric(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(9.0).view(3, 3))

        @functools.cached_property
        def both(self):
            return self.weight + self.weight.T

        def forward(self, x):
            y = x @ self.both * self.both.sum()
            self.__dict__.pop("both")
            return y

    module = Symmetric()
    return trace(module), calls(), lambda: list(vars(module))


@cases(hits=4)
def a_step_of_an_inner_loop(trace):
    """As MAML is often written: parameters make room for tensors, and come back."""
    torch.manual_seed(0)
    net = nn.Linear(3, 3)

    def fn(x):
        own = dict(net.named_parameters())
        found = torch.autograd.grad(net(x).pow(2).sum(), [*own.values()])
        for (name, value), grad in zip(own.items(), found, strict=True):
            delattr(net, name)
            setattr(net, name, value - 0.1 * grad)
        y = net(x)
        for name, value in own.items():
            delattr(net, name)
            setattr(net, name, value)
        return y.detach()

    return trace(fn), calls(), lambda: [list(vars(net)), list(net._parameters)]


@cases(hits=4)
def weights_that_are_no_parameters(trace):
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    for name in ("weight", "bias"):
        value = getattr(net, name).detach()
        delattr(net, name)
        setattr(net, name, value)

    def fn(x, scale=2.0):
        own = {}
        for name in ("weight", "bias"):
            own[name] = vars(net)[name]
            del vars(net)[name]
            vars(net)[name] = own[name] * scale
        y = net(x)
        for name, value in own.items():
            del vars(net)[name]
            vars(net)[name] = value
        return y

    return trace(fn), calls(), lambda: list(vars(net))


@cases(hits=4)
def what_is_kept_beside_a_tensor(trace):
    weight = nn.Parameter(torch.ones(3))
    weight.scale = torch.full((3,), 2.0)

    def fn(x):
        kept = weight.scale
        del weight.scale
        found = hasattr(weight, "scale")
        weight.scale = kept * 0.5
        return x * weight * weight.scale, found

    return trace(fn), calls(), lambda: [weight.scale, list(vars(weight))]


@cases.parametrize
def test_what_is_taken_out(make, expected):
    check(make, **expected)
