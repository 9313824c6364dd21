"""Numbers that a class has of its own are followed, as those of objects are; so are the keys of handles."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tests.soundness.runner import call, check


# ---------------------------------------------------------------- counters of classes
def classes():
    class Node:
        count, scale = 0, 0.5

        def __init__(self):
            self.id = Node.count
            Node.count += 1

        def __eq__(self, other):
            return self.id == other.id

        __hash__ = None

        @classmethod
        def more(cls):
            cls.count += 1

    class Derived(Node):
        pass

    return Node, Derived


def counted(node, derived, x):
    node.count += 1
    return x * node.count


def scaled(node, derived, x):
    node.scale *= 1.5
    return x * node.scale


def ids(node, derived, x):
    first, second = node(), node()
    return x * first.id + second.id, second.id


def compared(node, derived, x):
    return x * (2 if node() == node() else 3)


def asked(node, derived, x):
    node.count += 1
    return x * 2 if node.count % 3 else x


def by_a_method(node, derived, x):
    node.more()
    return x + node.count


def in_place(node, derived, x):
    node.scale += 1.0
    try:
        node.scale ^= 1
    except TypeError as error:
        return x, str(error)


def of_a_derived_class(node, derived, x):
    node.count += 1
    return x, derived.count


def by_an_instance(node, derived, x):
    node.count += 1
    return x * derived().count


def set_on(name, value):
    return lambda node, derived: setattr(node, name, value)


def set_below(node, derived):
    derived.count = 3


def takes_away(node, derived):
    del node.count
    node.count = 5


COUNTERS = [
    (counted, [set_on("count", 70), set_on("count", 2.5)], {"hits": 4}),
    (counted, [takes_away, set_on("count", True)], {"hits": 4}),
    (scaled, [set_on("scale", 3.0), set_on("scale", 2)], {"hits": 4}),
    (ids, [set_on("count", 70)], {"hits": 5}),
    (compared, [set_on("count", 70)], {"hits": 5}),
    (asked, [set_on("count", 70)], {"hits": 4}),
    (by_a_method, [set_on("count", 70)], {"hits": 5}),
    (in_place, [set_on("scale", 7.0)], {"recordings": 6}),
    # Which of the classes has it decides what is read: that is read by its value.
    (of_a_derived_class, [set_below], {"recordings": 6}),
    (by_an_instance, [set_on("count", 70)], {"recordings": 6}),
]


@pytest.mark.parametrize(("body", "changes", "expected"), COUNTERS)
def test_counters_of_classes(body, changes, expected):
    def make(trace):
        node, derived = classes()
        step = trace(lambda x: body(node, derived, x))
        steps = [call(torch.arange(1.0, 4.0)) for _ in range(6)]
        for place, change in zip((5, 3), changes, strict=False):
            steps.insert(place, lambda change=change: change(node, derived))
        names = ("count", "scale")
        return step, steps, lambda: [vars(one).get(name) for one in (node, derived) for name in names]

    check(make, **expected)


# ---------------------------------------------------------------- hooks that a call sets and removes
def features(model, x):
    found = []
    handle = model[0].register_forward_hook(lambda module, given, result: found.append(result))
    y = model(x)
    handle.remove()
    return y, found[0]


def doubles(model, x):
    with model[1].register_forward_hook(lambda module, given, result: result * 2):
        return model(x)


def of_all(model, x):
    found = {}
    handles = [
        one.register_forward_hook(lambda module, given, result: found.update({module: result.detach()}))
        for one in model.children()
    ]
    try:
        return model(x).sum(), sum(one.mean() for one in found.values())
    finally:
        for handle in handles:
            handle.remove()


def before(model, x):
    handle = model[2].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    y = model(x)
    handle.remove()
    return y, RemovableHandle.next_id


def of_every_module(model, x):
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, result: result + 1)
    y = model(x)
    handle.remove()
    return y


def number_of_handle(model, x):
    handle = model[0].register_forward_hook(lambda module, given, result: None)
    handle.remove()
    return x * handle.id, handle.id


def whole_step(model, x):
    found = []
    handle = model[1].register_forward_hook(lambda module, given, result: found.append(result.detach()))
    loss = model(x).square().mean()
    handle.remove()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    return loss.detach(), found[0]


def leaves(model, x):
    model[0].register_forward_hook(lambda module, given, result: result + 1)
    return model(x)


def keeps_the_handle(model, x):
    model.kept = model[0].register_forward_hook(lambda module, given, result: result + 1)
    return x


def shows(look):
    def body(model, x):
        handle = model[0].register_forward_hook(lambda module, given, result: result + 1)
        y = model(x) + look(model[0]._forward_hooks)
        handle.remove()
        return y

    return body


def in_a_dict_of_its_own(model, x):
    handle = model[0].register_forward_hook(lambda module, given, result: None)
    model.table[handle.id] = 1
    handle.remove()
    return x * len(model.table)


def on_a_module_of_the_call(model, x):
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, given, result: None)
    return layer(x) + next(iter(layer._forward_hooks))


def count_on(model):
    RemovableHandle.next_id += 5


def start_again(model):
    RemovableHandle.next_id = 3


def hook_before(model):
    model[0].register_forward_hook(lambda module, given, result: result * 5)


def start_again_at_a_hook(model):
    hook_before(model)
    RemovableHandle.next_id -= 3


def hook_under_the_next_number(model):
    model[0]._forward_hooks[RemovableHandle.next_id] = lambda module, given, result: result - 9


REMOVED = [features, doubles, of_all, before, of_every_module, whole_step]


def make_hooks(body, change):
    def make(trace):
        torch.manual_seed(2)
        RemovableHandle.next_id = 40
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        model.table = {}
        step = trace(lambda x: body(model, x))
        steps = [call(torch.randn(2, 4)) for _ in range(9)]
        steps.insert(5, lambda: change(model))
        kinds = ("_forward_hooks", "_forward_pre_hooks")
        hooks = lambda: [list(getattr(one, kind)) for one in model for kind in kinds]  # noqa: E731
        return step, steps, lambda: [hooks(), RemovableHandle.next_id, list(model.table), *model.parameters()]

    return make


@pytest.fixture(autouse=True)
def _numbers_go_on():
    before = RemovableHandle.next_id
    yield
    RemovableHandle.next_id = max(before, RemovableHandle.next_id) + 100


@pytest.mark.parametrize("change", [count_on, start_again])
@pytest.mark.parametrize("body", REMOVED)
def test_hooks_that_are_removed(body, change):
    check(make_hooks(body, change), hits=7)


@pytest.mark.parametrize("change", [hook_before, hook_under_the_next_number, start_again_at_a_hook])
@pytest.mark.parametrize("body", REMOVED)
def test_hooks_that_are_removed_beside_others(body, change):
    """Beside others their numbers are read, as they might be one of them."""
    check(make_hooks(body, change), hits=4)


@pytest.mark.parametrize("change", [count_on, start_again])
def test_the_number_of_a_handle_is_one_like_any_other(change):
    check(make_hooks(number_of_handle, change), hits=7)


LOOKS = {
    "length": len,
    "first": lambda hooks: next(iter(hooks)),
    "sum": sum,
    "text": lambda hooks: len(str(hooks)),
    "compared": lambda hooks: hooks == {},
    "copied": lambda hooks: len(dict(hooks)),
    "member": lambda hooks: 40 in hooks,
}


@pytest.mark.parametrize("body", [leaves, keeps_the_handle, *map(shows, LOOKS.values())])
def test_hooks_that_stay_or_are_looked_at(body):
    check(make_hooks(body, count_on), eager="hook-key")


READ = {in_a_dict_of_its_own: 9, on_a_module_of_the_call: 8}


@pytest.mark.parametrize("body", READ)
def test_keys_that_others_hold_are_read(body):
    check(make_hooks(body, count_on), recordings=READ[body])
