"""What training loops do to modules: buffers and parameters assigned, objects told apart by what they are."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, X, agree, around, call, check

cases = Cases()


def all_of(*modules):
    """Everything that modules hold, registered or not."""
    return lambda: [
        (m._parameters, m._buffers, sorted(m._non_persistent_buffers_set), sorted(vars(m))) for m in modules
    ]


class Running(nn.Module):
    """Keeps a mean in a buffer that is assigned anew."""

    def __init__(self, persistent=True):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3), persistent=persistent)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x
        return x - self.mean


# ---------------------------------------------------------------- buffers and parameters
@cases(hits=5)
def buffer_assigned(trace):
    m = Running()
    return trace(m.forward), [call(k * X()) for k in range(6)], all_of(m)


@cases(hits=5)
def non_persistent_buffer_assigned(trace):
    m = Running(persistent=False)
    return trace(m.forward), [call(k * X()) for k in range(6)], all_of(m)


@cases(hits=2)
def buffer_becomes_non_persistent(trace):
    m = Running()
    return trace(m.forward), around(lambda: m._non_persistent_buffers_set.add("mean"), X()), all_of(m)


@cases(hits=2)
def buffer_deleted_between(trace):
    m = Running()

    def change():
        del m.mean
        m.mean = torch.ones(3)  # no buffer any more

    return trace(m.forward), around(change, X()), all_of(m)


@cases(hits=2)
def buffer_becomes_none(trace):
    m = nn.Module()
    m.register_buffer("seen", torch.zeros(3))

    def fn(x):
        last = m.seen
        m.seen = x if last is not None else None
        return x if last is None else x + last

    def change():
        m.seen = None

    return trace(fn), around(change, X()), all_of(m)


@cases(hits=1)
def buffer_shared_with_another_module(trace):
    m, other = Running(), Running()
    other.mean = m.mean

    def fn(x):
        return m(x) + other.mean

    def change():
        other._buffers = m._buffers

    return trace(fn), around(change, X()), all_of(m, other)


@cases(hits=2)
def buffer_assigned_and_then_raised(trace):
    m = Running()

    def fn(x):
        m.mean = x + 1
        if x.sum() > 10:
            raise ValueError("too large")
        return m.mean * 2

    return trace(fn), [call(X()), call(X()), call(X() * 100), call(X()), call(X())], all_of(m)


@cases(hits=2)
def setattr_overridden_later(trace):
    class Net(Running):
        pass

    m = Net()

    def change():
        def __setattr__(self, name, value):
            nn.Module.__setattr__(self, name, value * 2 if name == "mean" else value)

        Net.__setattr__ = __setattr__

    return trace(m.forward), around(change, X()), all_of(m)


@cases(hits=2)
def registration_hook_later(trace):
    m = Running()
    handles = []

    def change():
        handles.append(
            nn.modules.module.register_module_buffer_registration_hook(lambda _, name, value: value + 1)
        )

    steps = [*around(change, X()), lambda: handles.pop().remove()]
    return trace(m.forward), steps, all_of(m)


@cases(hits=3)
def buffer_registered_again(trace):
    m = nn.Module()

    def fn(x):
        m.register_buffer("cache", x * 2, persistent=False)
        return m.cache + 1

    return trace(fn), [call(k * X()) for k in range(5)], all_of(m)


@cases(hits=2)
def buffer_registered_again_as_persistent(trace):
    m = nn.Module()

    def fn(x):
        m.register_buffer("cache", x * 2)
        return m.cache + 1

    def change():
        m._non_persistent_buffers_set.add("cache")

    return trace(fn), [call(X()), *around(change, X())], all_of(m)


@cases(hits=4)
def parameter_assigned(trace):
    m = nn.Linear(3, 3)
    kept = nn.Parameter(torch.eye(3))

    def fn(x):
        m.weight = kept
        return m(x)

    return trace(fn), [call(k * X()) for k in range(5)], all_of(m)


@cases(hits=1, eager="raised ValueError")
def parameter_assigned_that_gets_a_history(trace):
    m = nn.Linear(3, 3)
    kept = nn.Parameter(torch.eye(3))

    def fn(x):
        m.weight = kept
        return m(x)

    def change():
        kept.requires_grad_(False)
        kept.mul_(torch.ones(3, 3, requires_grad=True))  # torch refuses a parameter with a history

    return trace(fn), around(change, X()), all_of(m)


@cases(hits=1, eager="reads .grad_fn of a tensor")
def asks_for_a_history(trace):
    w = torch.ones(3, requires_grad=True)
    state = {"w": w}

    def fn(x):
        return x * 2 if state["w"].grad_fn is None else x * 3

    return trace(fn), around(lambda: state.update(w=w * 1), X())


@cases(hits=3)
def asks_an_argument_for_a_history(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        return x * 2 if x.grad_fn is None else x * 3

    return trace(fn), [call(w), call(w), call(w * 1), call(w * 1), call(w)]


@cases(hits=4)
def asks_results_for_a_history(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        with torch.set_grad_enabled(bool(x.sum() > 0)):
            h = x * w
        if x.grad_fn is not None or w.view(3).grad_fn is None:
            return x
        return (h * 2 if h.grad_fn is None else h * 3), h.grad_fn is not None

    return trace(fn), [call(torch.full((3,), k)) for k in (1.0, 2.0, -1.0, -2.0, 3.0, -3.0)]


@cases(hits=3)
def asks_what_is_detached_for_a_history(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        h = x * w
        h.sum().backward()
        before = h.grad_fn is None
        h.detach_()
        return before, h.grad_fn is None

    return trace(fn), [call(X())] * 5, lambda: w.grad


@cases(eager="reads-of-tensor")
def keeps_a_history(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        node = (x * w).grad_fn
        return node is None

    return trace(fn), [call(X())] * 3


@cases(eager="reads-of-tensor")
def asks_whether_a_history_is_true(trace):
    class Never(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

        def __bool__(self):
            return False

    def fn(x):
        return x * 2 if Never.apply(x).grad_fn else x * 3

    return trace(fn), [call(X(grad=True))] * 3


# ---------------------------------------------------------------- members of sets
@cases(hits=3)
def member_of_a_set(trace):
    names = {"a", "b"}
    return (
        trace(lambda x, n: x * 2 if n in names else x * 3),
        [*around(lambda: names.discard("a"), X(), "a"), call(X(), "c"), call(X(), "c")],
    )


@cases(hits=3)
def member_of_a_set_that_has_others(trace):
    names = {"a"}
    return trace(lambda x: x * 2 if "a" in names else x * 3), around(lambda: names.add("z"), X())


@cases(hits=2)
def member_that_is_another_number(trace):
    numbers = {1}
    found = lambda x: (x, [1 in numbers, True in numbers, 1.0 in numbers, 2 in numbers])  # noqa: E731

    def change():
        numbers.clear()
        numbers.add(2)

    return trace(found), around(change, X())


@cases(eager="as a key")
def member_with_an_equality_of_its_own(trace):
    class Any_:
        equal = True

        def __eq__(self, other):
            return Any_.equal

        def __hash__(self):
            return hash("a")

    names = {Any_()}

    def change():
        Any_.equal = False

    return trace(lambda x: x * 2 if "a" in names else x * 3), around(change, X())


@cases(hits=2)
def frozen_members(trace):
    class Net:
        names = frozenset(["a"])

    def change():
        Net.names = frozenset(["b"])

    return trace(lambda x: x * 2 if "a" in Net.names else x * 3), around(change, X())


@cases(hits=4)
def adds_what_is_there(trace):
    seen = set()

    def fn(x):
        seen.add("loss")
        return x * 2

    return trace(fn), [call(X()), *around(seen.clear, X()), call(X()), call(X())], lambda: seen


@cases(hits=4)
def discards_what_is_not_there(trace):
    seen = {"loss"}

    def fn(x):
        seen.discard("loss")
        return x * 2

    return trace(fn), [call(X()), *around(lambda: seen.add("loss"), X()), call(X()), call(X())], lambda: seen


# ---------------------------------------------------------------- which object it is
@cases(hits=3)
def parameters_told_apart_by_id(trace):
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)

    def fn(x):
        seen = set()
        for p in [*a.parameters(), *b.parameters()]:
            if id(p) not in seen:
                seen.add(id(p))
                x = x + p.sum()
        return x

    def tie():
        b.weight = a.weight

    return trace(fn), [*around(tie, X()), call(X())]


@cases(hits=2)
def id_of_a_module(trace):
    state = {"m": nn.Linear(3, 3)}
    known = {id(state["m"]): 2.0}

    def change():
        state["m"] = copy.deepcopy(state["m"])

    return trace(lambda x: x * known.get(id(state["m"]), 5.0)), around(change, X())


@cases(hits=2)
def id_of_a_parameter(trace):
    state = {"p": nn.Parameter(torch.ones(3))}
    known = {id(state["p"]): 2.0}

    def change():
        state["p"] = nn.Parameter(torch.ones(3))

    return trace(lambda x: x * known.get(id(state["p"]), 5.0)), around(change, X())


@cases(hits=1)
def id_of_an_argument(trace):
    x, y = X(), X()
    known = {id(x): 2.0}
    return trace(lambda t: t * known.get(id(t), 5.0)), [call(x), call(x), call(y), call(x)]


@cases(hits=2)
def hash_of_a_parameter(trace):
    state = {"p": nn.Parameter(torch.ones(3))}
    known = {hash(state["p"]): 2.0}

    def change():
        state["p"] = nn.Parameter(torch.ones(3))

    return trace(lambda x: x * known.get(hash(state["p"]), 5.0)), around(change, X())


@cases(hits=2)
def hash_of_a_parameter_asked_as_a_method(trace):
    state = {"p": nn.Parameter(torch.ones(3))}
    known = {hash(state["p"]): 2.0}

    def change():
        state["p"] = nn.Parameter(torch.ones(3))

    return trace(lambda x: x * known.get(state["p"].__hash__(), 5.0)), around(change, X())


@cases(hits=2)
def hash_of_an_object(trace):
    state = {"m": nn.Linear(3, 3)}
    known = {hash(state["m"]): 2.0}

    def change():
        state["m"] = pickle.loads(pickle.dumps(state["m"]))

    return trace(lambda x: x * known.get(hash(state["m"]), 5.0)), around(change, X())


@cases(hits=2)
def hash_that_a_class_gets_later(trace):
    class Thing:
        pass

    thing = Thing()
    known = {hash(thing): 2.0}

    def change():
        Thing.__hash__ = lambda self: 7

    return trace(lambda x: x * known.get(hash(thing), 5.0)), around(change, X())


@cases(eager="calls id()")
def id_of_what_the_call_makes(trace):
    return trace(lambda x: (x * 2, id(x * 3) > 0)), [call(X()), call(X())]


@cases(eager="calls hash()")
def hash_of_what_the_call_makes(trace):
    return trace(lambda x: (x * 2, hash(x * 3) == 1)), [call(X()), call(X())]


# ---------------------------------------------------------------- buffers of the call that get a history
@cases(hits=3)
def rows_written_one_by_one(trace):
    m = nn.Linear(3, 3)

    def fn(x):
        y, out = m(x), torch.zeros(2, 3)
        for i in range(2):
            out[i] = y[i]
        return out

    return trace(fn), [call(k * X(2, 3)) for k in range(4)]


@cases(hits=3)
def buffer_used_after_the_write(trace):
    m = nn.Linear(3, 3)

    def fn(x):
        out = torch.zeros(2, 3)
        before = out + 1
        out[0] = m(x)[0]
        return out * 2, before, out.sum(), out.requires_grad, before.requires_grad, out.is_leaf

    return trace(fn), [call(k * X(2, 3)) for k in range(4)]


@cases(hits=3)
def another_view_gets_the_history(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        out = x.new_zeros(2, 3)
        first, second = out[0], out[1]
        out.add_(w)
        return first * 2, second.requires_grad, first.requires_grad

    return trace(fn), [call(k * X(2, 3)) for k in range(4)]


@cases(hits=3)
def written_by_an_operator_without_results(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        out = torch.zeros(2, 3)
        row = out[0]
        torch._foreach_add_([row], [w * x])
        return out + row, row.requires_grad

    return trace(fn), [call(k * X()) for k in range(4)]


@cases(hits=2)
def value_read_after_a_buffer_gets_a_history(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        out = torch.zeros(3)
        asked = [out.requires_grad]
        out[0] = (w * x).sum()
        asked.append(out.requires_grad)
        if x.sum() > 0:
            return out * 2, asked
        return out * 3, asked

    return trace(fn), [call(X()), call(X()), call(-X()), call(-X()), call(X()), call(-X())]


@cases(hits=1)
def written_where_gradients_come_and_go(trace):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        out = torch.zeros(3)
        out[:2] = (w * x)[:2]
        return out * 2

    steps = [call(X()), call(X()), lambda: w.requires_grad_(False), call(X()), lambda: w.requires_grad_(True)]
    return trace(fn), [*steps, call(X())]


@cases(hits=3)
def scattered_after_dropout(trace):
    m = nn.Linear(3, 3)
    index = torch.tensor([[0, 1, 0], [1, 0, 1]])

    def fn(x):
        y = nn.functional.dropout(m(x), 0.5, True)
        return x.new_zeros(2, 3).scatter_add_(0, index, y)

    return trace(fn), [call(k * X(2, 3)) for k in range(4)]


# ---------------------------------------------------------------- the order of sets
class Value:
    """Hashed by its address."""

    def __init__(self, v):
        self.v = v

    def itself(self):
        return self


def renewed(state, kept):
    """Puts another object of the same look at each place, while the old ones stay alive."""

    def change():
        kept.append(dict(state))
        for name in state:
            state[name] = Value(state[name].v)
        kept.append([object() for _ in range(len(kept))])

    return change


def ordered(iterate):
    """A case whose result shows the order in which `iterate` goes through a set of state."""

    def make(trace):
        state, kept = {name: Value(float(k)) for k, name in enumerate("abcdefgh")}, []

        def fn(x):
            for one in iterate({state[name] for name in state}):
                x = x * 0.5 + one.v
            return x

        change = renewed(state, kept)
        steps = [call(X()), call(X())]
        for _ in range(6):
            steps += [change, call(X())]
        function = trace(fn)
        # Both ways have objects of their own: what is compared is the traced function with the plain one.
        return (lambda x: torch.equal(function(x), fn(x))), steps

    return make


ORDERS = {
    "for": iter,
    "list": list,
    "tuple": tuple,
    "enumerate": lambda s: [v for _, v in enumerate(s)],
    "unpacked": lambda s: [*s],
    "copied": lambda s: s.copy(),
    "united": lambda s: s | set(),
    "frozen": frozenset,
    "sorted by nothing": lambda s: sorted(s, key=lambda v: 0),
    "popped": lambda s: [s.pop(), *s],
    "mapped": lambda s: map(Value.itself, s),
    "pairs": lambda s: (v for v, _ in {(v, 1) for v in s}),
    "asked and listed": lambda s: [v for v in list(s) if v in s],
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_a_set_of_state_is_that_of_its_objects(name):
    tracer = agree(ordered(ORDERS[name]))
    assert tracer.made[0].stats().calls == 8


def test_asking_a_set_of_parameters_for_members_fixes_no_object():
    state = {"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.ones(3))}

    @lazytrace.traced
    def step(x):
        seen = {state["a"]}
        return x * 2 if state["b"] in seen else x * 3

    for _ in range(2):
        assert step(torch.ones(3)).sum() == 9
    state["a"] = nn.Parameter(torch.ones(3))
    assert step(torch.ones(3)).sum() == 9
    assert step.stats().hits == 2
    state["a"] = state["b"]
    assert step(torch.ones(3)).sum() == 6


@cases.parametrize
def test_module_state(make, expected):
    check(make, **expected)


def test_gradients_flow_through_rows_that_a_replay_writes():
    def gradients(decorate):
        torch.manual_seed(0)
        m = nn.Linear(3, 3)

        @decorate
        def fn(x):
            out = torch.zeros(2, 3)
            for i in range(2):
                out[i] = m(x[i]) * (i + 1)
            return out

        found = []
        for k in range(4):
            m.zero_grad()
            fn(k * torch.ones(2, 3)).square().sum().backward()
            found.append(m.weight.grad.clone())
        return found, fn

    plain, _ = gradients(lambda f: f)
    replayed, fn = gradients(lazytrace.traced)
    assert fn.stats().hits == 3
    for a, b in zip(plain, replayed, strict=True):
        assert torch.equal(a, b)


def test_a_buffer_that_is_assigned_is_not_kept_alive():
    m = Running()
    step = lazytrace.traced(m.forward)
    for _ in range(3):
        step(torch.ones(3))
    gone = weakref.ref(m.mean)
    step(torch.ones(3))
    gc.collect()
    assert gone() is None
    assert step.stats().hits == 3
