"""Copies that a function makes of tensors, containers and modules, where what they share changes."""

from __future__ import annotations

import collections
import copy
import dataclasses

import pytest
import torch

from tests.soundness.runner import Cases, Holder, X, around, call, check

cases = Cases()


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


# ---------------------------------------------------------------- tensors
@cases(hits=3)
def a_tensor_that_is_passed(trace):
    def step(x):
        y = copy.deepcopy(x)
        y.add_(1)
        return x, y

    return trace(step), [call(X()), call(X() * 2), call(X() * 3), call(X() * 4)]


@cases(hits=3)
def how_often_copies_were_written_to(trace):
    held = [X(), torch.ones(2, 3).t(), torch.ones(())]
    step = trace(lambda x: (*copy.deepcopy(held), copy.deepcopy(x), x + 1))

    def shown(x):
        made = step(x)
        return made, [one._version for one in made]

    return shown, [call(torch.ones(2, n)) for n in (3, 3, 4, 5, 6)]


@cases(hits=2)
def a_tensor_whose_memory_others_share_later(trace):
    def step(x, y):
        return copy.deepcopy([x, y, x])

    memory = torch.arange(6.0)
    return (
        trace(step),
        [
            *[call(X() * k, X()) for k in (1, 2, 3)],
            call(memory, memory.view(6)),  # one copy of the memory for both
            call(memory[:3].clone(), memory[3:].clone()),
            call(memory[:3], memory[3:]),  # the copies are views of one memory
            call(memory[:3], X()),
            call(X(), X()),
        ],
    )


@cases(hits=1)
def memory_that_copies_share(trace):
    """Where some of it cannot be cloned, all of it is copied as torch does."""
    memory = torch.arange(12.0)
    held = Holder(a=X(), b=X(), c=X())

    def step(x):
        a, b, c = copy.deepcopy([held.a, held.b, held.c])
        a.add_(1)
        b.add_(10)
        return a, b, c, x

    def change(**parts):
        return lambda: held.__dict__.update(parts)

    changes = [
        {"a": memory, "b": memory[:3]},
        {"c": memory[1:4]},
        {"a": memory.view(3, 4), "b": memory.view(3, 4).t()},
        {"a": X(), "b": X() * 2},
        {"b": memory, "c": memory},
        {"a": memory[:3], "b": memory[3:6], "c": X()},
    ]
    steps = [one for parts in changes for one in (change(**parts), call(X()), call(X()))]
    return trace(step), [call(X()), call(X()), *steps]


@cases(hits=2)
def memory_that_comes_to_be_shared(trace):
    """All look as they did: only what is behind them has changed."""
    memory = torch.arange(3.0)
    held = Holder(a=X(), b=X() * 2)

    def step(x):
        a, b = copy.deepcopy([held.a, held.b])
        a.add_(1)
        return a, b, x

    def share():
        held.a, held.b = memory, memory.view(3)

    def widen():
        held.a, held.b = torch.arange(6.0)[:3], X()

    def give():
        held.a, held.b = X(), X() * 2
        held.a.grad = X() * 3

    steps = [call(X()), call(X()), call(X())]
    return trace(step), [*steps, share, *steps, widen, *steps, give, *steps]


@cases(hits=2)
def the_same_tensor_twice(trace):
    def step(x):
        a, b = copy.deepcopy((x, x))
        a.mul_(2)
        return a, b

    return trace(step), [call(X()), call(X() * 2), call(X() * 3)]


@cases(hits=1)
def tensors_with_strides(trace):
    def step(x):
        return copy.deepcopy({"x": x})

    wide = torch.arange(12.0).view(3, 4)
    return trace(step), [
        *around(lambda: None, wide.t().clone(memory_format=torch.preserve_format)),
        call(wide[:, :2]),
        call(wide[:, :2]),
        call(wide.expand(2, 3, 4)),
        call(wide.expand(2, 3, 4)),
        call(torch.empty(0)),
        call(torch.empty(0)),
    ]


@cases(hits=1)
def tensors_that_autograd_knows(trace):
    def step(x):
        y = copy.deepcopy(x)
        return y * 2

    leaf = X(grad=True)
    return trace(step), [
        call(X()),
        call(X()),
        call(leaf),
        call(leaf),
        call(leaf * 2),
        call(leaf * 2),
        call(X()),
    ]


@cases(hits=1)
def tensors_with_attributes(trace):
    held = Holder(t=X())

    def step(x):
        return copy.deepcopy(held.t), x * 2

    def note():
        held.t.note = [1]

    return trace(step), [*around(note, X())], lambda: [held.t, getattr(held.t, "note", None)]


@cases(hits=1)
def tensors_with_gradients(trace):
    held = Holder(t=X())

    def step(x):
        return copy.deepcopy(held.t), x * 2

    def give():
        held.t.requires_grad_()
        held.t.grad = X()
        held.t.requires_grad_(False)

    return trace(step), [*around(give, X())], lambda: [held.t, held.t.grad]


@cases(hits=2)
def parameters(trace):
    held = Holder(t=torch.nn.Parameter(X()))

    def step(x):
        p = copy.deepcopy(held.t)
        return type(p), p * x

    return trace(step), [*around(lambda: held.t.requires_grad_(False), X())], lambda: held.t


# ---------------------------------------------------------------- what a model holds
@cases(hits=3)
def the_best_state_so_far(trace):
    held = Holder(model=net(), best=None)

    def step(x):
        held.best = copy.deepcopy(held.model.state_dict())
        return held.model(x)

    def train():
        with torch.no_grad():
            held.model[0].weight.mul_(2)

    x = torch.randn(4, 3)
    return (
        trace(step),
        [call(x), call(x), call(x), train, call(x), call(x), call(x)],
        lambda: [held.best, getattr(held.best, "_metadata", None), held.model.state_dict()],
    )


@cases(hits=1)
def an_ordered_dict_with_attributes(trace):
    held = Holder(d=collections.OrderedDict(a=X(), b=[1]))

    def step(x):
        made = copy.deepcopy(held.d)
        made.move_to_end("a")
        return made, vars(made), x * 2

    def give():
        held.d.note = {"k": [2]}

    def fill():
        held.d["c"] = X() * 2

    steps = [call(X()), call(X()), call(X())]
    return trace(step), [*steps, give, *steps, fill, *steps], lambda: [held.d, vars(held.d)]


class Own(collections.OrderedDict):
    def __reduce__(self):
        return (Own, ([("made", 1)],))


@cases(hits=1)
def ordered_dicts_of_another_class(trace):
    held = Holder(d=collections.OrderedDict(a=1))

    def step(x):
        return copy.deepcopy(held.d), x * 2

    def change():
        held.d = Own(b=2)

    return trace(step), [*around(change, X())], lambda: held.d


@cases(hits=2)
def a_tensor_that_becomes_a_parameter_of_a_copy(trace):
    held = Holder(d={"w": X()})

    def step(x):
        made = copy.deepcopy(held.d)
        return made["w"] * x

    def change():
        held.d["w"] = torch.nn.Parameter(X() * 2)

    return trace(step), [*around(change, X())], lambda: held.d


# ---------------------------------------------------------------- dataclasses
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float
    more: list


@cases(hits=3)
def a_dataclass_as_a_dict(trace):
    def step(x):
        return dataclasses.asdict(Batch(x * 2, 2.0, [x]))

    return trace(step), [call(X() * k) for k in range(1, 6)]


@cases(hits=2)
def a_dataclass_as_a_tuple(trace):
    held = Holder(b=Batch(X(), 1.0, [X()]))

    def step(x):
        return dataclasses.astuple(held.b), x

    def change():
        held.b.more.append(held.b.x)

    steps = [call(X()), call(X()), call(X())]
    return trace(step), [*steps, change, *steps], lambda: [held.b.x, held.b.more]


# ---------------------------------------------------------------- methods that are exchanged
@cases(hits=1)
def a_memo_of_ones_own(trace):
    def step(x):
        memo = {}
        a, b = copy.deepcopy(x, memo), copy.deepcopy(x, memo)
        return a is b, x * 2

    return trace(step), [call(X()), call(X()), call(1), call(1), call(2)]


class Copied:
    def __init__(self, value):
        self.value = value

    def __deepcopy__(self, memo):
        made = Copied(copy.deepcopy(self.value, memo))
        made.count = len(self.value)
        return made


class Asking:
    def __deepcopy__(self, memo):
        return bool(memo), [*memo], dict(memo)


@cases(hits=3)
def a_memo_that_is_looked_at(trace):
    """It is empty at first."""
    held = Holder(o=Asking())
    return trace(lambda x: (copy.deepcopy(held.o), x * 2)), [call(X() * k) for k in range(4)]


@cases(hits=1)
def objects_that_copy_themselves(trace):
    held = Holder(o=Copied([X()]))

    def step(x):
        made = copy.deepcopy(held.o)
        return made.value, made.count, x * 2

    def change():
        held.o.value.append(X() * 3)

    return trace(step), [*around(change, X())], lambda: held.o.value


# ---------------------------------------------------------------- memory that is copied beside tensors
def sharing(copies):
    """Which of several tensors and storages show the same memory."""
    places = [one.data_ptr() for one in copies]
    return [places.index(place) for place in places]


def beside_their_memory(copied):
    def case(trace):
        step = trace(copied)
        return lambda x: sharing(step(x)), [call(X() * k) for k in range(4)]

    return case


STORAGES = [
    lambda x: copy.deepcopy([x, x.untyped_storage()]),
    lambda x: copy.deepcopy([x.untyped_storage(), x]),
    lambda x: copy.deepcopy((torch.ones(3), x, x.storage(), x.view(-1))),
]


@pytest.mark.parametrize("copied", STORAGES, ids=["behind", "before", "among others"])
def test_a_storage_beside_its_tensor(copied):
    check(beside_their_memory(copied), eager="tensor-escapes")


@pytest.mark.parametrize(("behind", "reason"), [(True, "returns-odd"), (False, "calls-method")])
def test_a_storage_in_state_beside_its_tensor(behind, reason):
    def case(trace):
        held = Holder()
        held.x = torch.arange(4.0)
        held.all = [torch.ones(2), held.x, held.x.untyped_storage()][:: 1 if behind else -1]
        step = trace(lambda: copy.deepcopy(held.all))
        return lambda: sharing(step()), [call(), call(), call()]

    check(case, eager=reason)


@cases(hits=5)
def what_torch_refuses_to_copy_before_a_branch(trace):
    w, refused = torch.ones(3, requires_grad=True), []

    def step(x):
        made = [x * 2, torch.zeros(2, 3)]
        copies = [copy.deepcopy(made[1])]
        made[1].add_(w)  # requires gradients from now on, and was copied before
        for one in (w * x, made[1]):
            try:
                copies.append(copy.deepcopy(one))
            except RuntimeError as error:
                refused.append(str(error)[:40])
        drawn = torch.rand(3)
        copies.append(copy.deepcopy(made[0]))
        return (made[1] * drawn if x.sum() > 0 else made[1] - drawn), copies

    return trace(step), [call(k * torch.ones(2, 3)) for k in (1, 2, -1, 3, -2, -3, 1)], lambda: refused


@cases.parametrize
def test_copies_inside(make, expected):
    check(make, **expected)


WITHOUT_MEMORY = {
    "deepcopy of zeros": (copy.deepcopy, lambda: torch._efficientzerotensor(2)),
    "tolist of zeros": (torch.Tensor.tolist, lambda: torch._efficientzerotensor(2)),
    "deepcopy of a nested one": (copy.deepcopy, lambda: torch.nested.nested_tensor([torch.ones(1)])),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_what_torch_refuses_to_copy(name):
    copied, made = WITHOUT_MEMORY[name]

    def make(trace):
        held = [torch.ones(2)]
        return trace(lambda x: (x * 2, copied(held[0]))), around(lambda: held.__setitem__(0, made()), X())

    check(make, hits=1)


def test_a_memo_in_an_error():
    class Looks:
        __deepcopy__ = staticmethod({}.get)

    def make(trace):
        c = Looks()
        return trace(lambda x: copy.deepcopy(c)), [call(X()), call(X())]

    check(make, eager="raised TypeError")
