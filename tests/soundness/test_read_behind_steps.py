"""State that Python code of a step changes at some calls only, and the function reads behind it alone."""

from __future__ import annotations

from collections import OrderedDict, deque

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, check, difference, drive, opaque

cases = Cases()


def doubles_scale(trace, state):
    """A step that changes `state.scale` where its argument is large."""

    def change(x):
        if x.sum() > 10:
            state.scale *= 2
        return x * 2

    return opaque(trace, change)


def now_and_then():
    """Two of three calls change nothing."""
    return [call(X() + (5 if i % 3 == 2 else 0)) for i in range(9)]


@cases(hits=7, recordings=1)
def attribute_whose_name_is_made(trace):
    state = Holder(size=7.0)

    def change(x):
        setattr(state, "_".join(["found", "now"]), state.size)
        return x * 2

    change = opaque(trace, change)

    def fn(x):
        y = change(x)
        return y * state.found_now

    steps = [call(X())] * 2
    changes = [lambda size=size: setattr(state, "size", size) for size in (8.0, 9.0, 7.0)]
    return trace(fn), [*steps, *[step for one in changes for step in (one, *steps)]], lambda: state


@cases(hits=5)
def entry_of_a_dict(trace):
    seen = {"large": 0}

    def count(x):
        if x.sum() > 10:
            seen["large"] += 1
        return x * 2

    count = opaque(trace, count)
    return trace(lambda x: count(x) + seen["large"]), now_and_then(), lambda: seen


@cases(hits=5)
def attribute_and_length(trace):
    state, kept = Holder(scale=1.0), []

    def change(x):
        if x.sum() > 10:
            state.scale *= 2
            kept.append(x.sum().item())
        return x * 2

    change = opaque(trace, change)

    def fn(x):
        y = change(x)
        return y * state.scale + len(kept)

    return trace(fn), now_and_then(), lambda: (state.scale, kept)


@cases(hits=5)
def tensor_that_is_swapped(trace):
    state = Holder(w=torch.ones(3))

    def swap(x):
        if x.sum() > 10:
            state.w = state.w * 2
        return x * 2

    swap = opaque(trace, swap)
    return trace(lambda x: swap(x) + state.w), now_and_then(), lambda: state.w


@cases(hits=5)
def behind_writes_and_draws(trace):
    state, w = Holder(scale=1.0, calls=0), torch.ones(3)

    change = doubles_scale(trace, state)

    def fn(x):
        state.calls += 1
        w.mul_(1.5)
        noise = torch.rand(3)
        y = change(x) + noise
        state.calls += 1
        return y * state.scale + w

    return trace(fn), now_and_then(), lambda: (state.scale, state.calls, w)


@cases(hits=4)
def flag_of_a_hook(trace):
    w, state = torch.nn.Parameter(torch.ones(3)), Holder(large=False)

    def hook(g):
        if g.abs().max() > 4:
            state.large = True

    w.register_hook(hook)

    def fn(x):
        w.grad = None
        (x * w).sum().backward()
        return w.grad * 2 if state.large else w.grad

    def again(x):
        state.large = False
        return traced(x)

    traced = trace(fn)
    return again, now_and_then(), lambda: (w.grad, state.large)


@cases(hits=4)
def one_of_two_steps(trace):
    state = Holder(scale=1.0)

    change = doubles_scale(trace, state)

    def fn(x):
        y = change(x * 0) + change(x)
        return y * state.scale

    return trace(fn), now_and_then(), lambda: state.scale


@cases(hits=4)
def what_a_step_changes_and_raises(trace):
    state = Holder(scale=1.0)

    def change(x):
        if x.sum() > 10:
            state.scale *= 2
            raise ValueError("large")
        return x * 2

    change = opaque(trace, change)

    def fn(x):
        try:
            y = change(x)
        except ValueError:
            y = x
        return y * state.scale

    return trace(fn), now_and_then(), lambda: state.scale


def toggled(trace, fn, changes):
    """Calls of `fn(x, step, state)`, whose step changes whether `state.w` requires gradients."""
    state, calls = Holder(w=torch.ones(3, requires_grad=True)), []

    def step(x):
        calls.append(1)
        if len(calls) in changes:
            state.w.requires_grad_(not state.w.requires_grad)
        return x * 2

    step = opaque(trace, step)
    return trace(lambda x: fn(x, step, state)), [call(X())] * 8, lambda: (state.w, calls)


@cases(hits=5)
def flag_of_a_tensor_that_is_read_behind(trace):
    return toggled(trace, lambda x, step, state: step(x) + x * state.w, {3})


@cases(eager="resumes-after-opaque")
def flag_of_a_tensor_at_each_call(trace):
    return toggled(trace, lambda x, step, state: step(x) + x * state.w, range(99))


@cases(eager="opaque-turns")
def flag_of_a_tensor_that_is_read_before_at_each_call(trace):
    def fn(x, step, state):
        y = x * state.w
        return step(x) + y * state.w

    return toggled(trace, fn, range(99))


@cases(hits=4)
def shape_of_what_it_is_given(trace):
    """Each call of the step turns it; each recording is of one size."""

    def turn(x):
        x.t_()
        return x * 2

    turn = opaque(trace, turn)

    def fn(x):
        y = x + 1
        z = turn(y)
        return z, y, y * 2

    return trace(fn), [call(X(2, 3))] * 4 + [call(X(4, 3))] * 3


@cases(hits=6)
def mode_that_the_step_switches(trace):
    """The function puts it back, and reads a tensor in between."""
    w = torch.ones(3, requires_grad=True)

    def step(x):
        y = x * w  # in the mode of before
        torch.set_grad_enabled(False)
        return y

    step = opaque(trace, step)

    def fn(x):
        with torch.enable_grad():
            y = step(x)
            between = x * w
        return y, between, x + w

    return trace(fn), [call(X())] * 7


@cases(hits=6)
def mode_that_the_step_switches_last(trace):
    step = opaque(trace, lambda x: (x * 2, torch.set_grad_enabled(False))[0])

    def fn(x):
        y = x * 3
        with torch.enable_grad():
            z = step(y)
        return z + y

    return trace(fn), [call(X(grad=True))] * 7


CHANGES = {
    "an attribute": lambda state: setattr(state, "flag", state.flag + 1),
    "an attribute that goes": lambda state: delattr(state, "flag"),
    "a new attribute": lambda state: setattr(state, "extra", 1.0),
    "another list": lambda state: setattr(state, "all", [2.0]),
    "a key": lambda state: state.seen.update(third=2.0),
    "a key that goes": lambda state: state.seen.pop("first"),
    "an entry": lambda state: state.seen.update(first=2.0),
    "an entry of a list": lambda state: state.all.__setitem__(0, 2.0),
    "a longer list": lambda state: state.all.append(2.0),
    "a shorter list": lambda state: state.all.pop(),
    "another object": lambda state: setattr(state, "sub", Holder(scale=3.0)),
    "an attribute of another object": lambda state: setattr(state.sub, "scale", 3.0),
    "several": lambda state: (state.all.append(2.0), setattr(state, "flag", 2.0), state.seen.clear()),
    "a variable": lambda state: state.set(2.0),
}


def changes_besides(change, before, ends):
    """A step that counts its calls in an attribute at each one, and does something else at each third."""

    def make(trace):
        scale = 1.0

        def set_scale(value):
            nonlocal scale
            scale = value

        seen = {"first": 1.0, "second": 2.0}
        state = Holder(runs=0, flag=1.0, seen=seen, all=[1.0, 3.0], sub=Holder(scale=2.0), set=set_scale)

        def step(x):
            state.runs += 1
            if state.runs % 3 == 0:
                change(state)
                if ends == "raises":
                    raise ValueError("changed")
            return x * 2

        step = opaque(trace, step)

        def look(x):
            flag = getattr(state, "flag", 5.0)
            x = x * flag * state.sub.scale * scale
            return x, [*state.seen.items()], [*state.all]

        def fn(x):
            found = look(x) if before else ()
            try:
                y = step(x)
            except ValueError:
                y = x
            return found, look(y), hasattr(state, "extra")

        def afresh():
            state.flag, state.seen, state.all = 1.0, {"first": 1.0, "second": 2.0}, [1.0, 3.0]
            state.sub = Holder(scale=2.0)
            set_scale(1.0)
            vars(state).pop("extra", None)

        steps = [one for _ in range(9) for one in (afresh, call(X()))]
        return trace(fn), steps, lambda: (vars(state), scale)

    return make


@cases(hits=2, eager="resumes-after-opaque")
def what_a_step_always_changes_and_raises_besides(trace):
    """The function reads it before the step, and does so again when it runs again up to there."""
    seen, runs = {"first": 1.0, "count": 0}, Holder(count=0)

    def count(x):
        runs.count += 1
        seen["count"] = runs.count
        if runs.count % 4 == 0:
            seen.clear()
            seen["count"] = 0
            raise ValueError("full")
        return x * 2

    count = opaque(trace, count)

    def fn(x):
        names = sorted(seen)
        try:
            x = count(x)
        except ValueError:
            x = x - 1
        return x * len(names), names

    def refill():
        seen.clear()
        seen.update(first=1.0, count=0)

    return trace(fn), [one for _ in range(9) for one in (refill, call(X()))], lambda: seen


class Marked(torch.Tensor):
    pass


@cases(hits=2)
def a_tensor_that_becomes_one_of_another_class(trace):
    """Its operators may do something else, and what they give is of that class."""
    state = Holder(weight=torch.ones(3), runs=0)

    def mark(x):
        state.runs += 1
        if state.runs == 4:
            state.weight.__class__ = Marked
        return x * 2

    mark = opaque(trace, mark)
    return trace(lambda x: mark(x) * state.weight), [call(X()) for _ in range(6)], lambda: state.weight


@pytest.mark.parametrize("ends", ["", "raises"])
@pytest.mark.parametrize("before", [False, True], ids=["read behind", "read before and behind"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_beside_what_always_changes(change, before, ends):
    """That a step changes one attribute of an object at each call says nothing of the others.

    The function that runs again finds the state of before the call up to the step, and what that has left
    behind it.
    """
    code = "resumes-after-opaque" if ends != "raises" else ""
    check(changes_besides(CHANGES[change], before, ends), hits=3, eager=code)


@cases(hits=4, eager="resumes-after-opaque")
def what_a_step_always_adds_to_a_dict_that_was_asked(trace):
    """What it changes besides is known, too, where the function runs again."""
    state, seen = Holder(scale=1.0, runs=0), {"first": 1.0}

    def count(x):
        state.runs += 1
        seen["count"] = 0.0
        if state.runs % 3 == 0:
            state.scale += 1
            seen["second"] = 2.0
        return x * 2

    count = opaque(trace, count)

    def fn(x):
        x = x * state.scale * (1 if "second" in seen else 2)
        return count(x) * state.scale

    def afresh():
        state.scale = 1.0
        seen.pop("second", None)

    return trace(fn), [one for _ in range(8) for one in (afresh, call(X()))], lambda: (seen, vars(state))


def memory_of_then(read, behind):
    """The step gives the tensor other memory, which what was read of it before does not show."""

    def make(trace):
        weight, runs = torch.ones(3), Holder(count=0)

        def step(x):
            runs.count += 1
            if runs.count % 3 == 0:
                weight.data = torch.full((3,), float(runs.count))
            return x * 2

        step = opaque(trace, step)

        def fn(x):
            before = read(weight)
            y = step(x)
            return behind(before), y

        return trace(fn), [call(X()) for _ in range(8)], lambda: weight

    return make


@pytest.mark.parametrize(
    "read",
    [
        lambda w: w.data,
        lambda w: w.detach(),
        lambda w: [w.data],
        lambda w: w.data[1:],
        lambda w: w.numpy(),
        lambda w: w.data.numpy(),
        lambda w: w.data.view(-1),
    ],
    ids=["data", "detach", "in a list", "a slice", "an array", "an array of the data", "a view"],
)
@pytest.mark.parametrize(
    "behind",
    [lambda a: a, lambda a: a[0] * 2, lambda a: [a, a]],
    ids=["returned", "computed with", "returned twice"],
)
def test_memory_that_was_read_before(read, behind):
    check(memory_of_then(read, behind), hits=5)


class Kind:
    """Its attributes are state, too."""

    count = 1


class OtherKind(Holder):
    pass


# What the function writes or reads itself before the step, of the state that this changes.
USES = {
    "appends": lambda state, x: state.all.append(x.sum().item()),
    "appends and asks": lambda state, x: (state.all.append(len(state.all)), len(state.all)),
    "appends to a deque": lambda state, x: state.last.append(x.sum().item()),
    "sets an attribute": lambda state, x: setattr(state, "flag", x.sum().item()),
    "counts": lambda state, x: setattr(state, "flag", state.flag + 1),
    "sets an entry": lambda state, x: state.seen.update(first=x.sum().item()),
    "adds a key": lambda state, x: (state.seen.setdefault("new", 4.0), list(state.seen)),
    "sets an entry of a list": lambda state, x: state.all.__setitem__(0, 7.0),
    "asks for an entry": lambda state, x: state.all[0],
    "asks for the length": lambda state, x: (len(state.all), len(state.seen)),
    "asks for the class": lambda state, x: (type(state).__name__, Kind.count),
    "sets the last of two": lambda state, x: (state.two.update(b=x.sum().item()), len(state.two)),
    "sets the last of two in order": lambda state, x: (
        state.ordered.__setitem__("b", x.sum().item()),
        len(state.ordered),
    ),
    "takes out and puts in": lambda state, x: state.seen.update(third=state.seen.pop("first", 0)),
}
OVER = {
    "appends": lambda state: state.all.append(2.0),
    "inserts": lambda state: state.all.insert(0, 2.0),
    "empties the list": lambda state: state.all.clear(),
    "shortens": lambda state: state.all.pop() if state.all else None,
    "another list": lambda state: setattr(state, "all", [2.0]),
    "empties the deque": lambda state: state.last.clear(),
    "sets the attribute": lambda state: setattr(state, "flag", 9.0),
    "deletes the attribute": lambda state: vars(state).pop("flag", None),
    "sets the entry": lambda state: state.seen.update(first=9.0),
    "adds another key": lambda state: state.seen.update(other=9.0),
    "empties the dict": lambda state: state.seen.clear(),
    "adds a third": lambda state: (state.two.update(c=9.0), state.ordered.update(c=9.0)),
    "another class": lambda state: setattr(state, "__class__", OtherKind),
    "an attribute of a class": lambda state: setattr(Kind, "count", Kind.count + 1),
}


def written_over(use, change):
    """At each third call the step changes what the function has used before it."""

    def make(trace):
        state = Holder()

        def step(x):
            state.runs += 1
            if state.runs % 3 == 0:
                change(state)
            return x * 2

        step = opaque(trace, step)

        def fn(x):
            found = use(state, x)
            y = step(x)
            return found, y, getattr(state, "flag", 5.0), [*state.all], dict(state.seen), Kind.count

        def afresh():
            vars(state).update(flag=1.0, seen={"first": 1.0}, all=[1.0, 3.0], last=deque([1.0], maxlen=2))
            vars(state).update(two={"a": 1.0, "b": 2.0}, ordered=OrderedDict(a=1.0, b=2.0))
            state.__class__, Kind.count = Holder, 1

        state.runs = 0
        steps = [one for i in range(11) for one in (*([afresh] if i % 4 < 3 else []), call(X() + i))]
        return trace(fn), steps, lambda: (vars(state), type(state).__name__, Kind.count)

    return make


@pytest.mark.parametrize("use", USES)
def test_what_a_step_writes_over(use):
    """The function that runs again writes it once more, and finds behind the step what that has left."""
    hits = 0
    for change in OVER.values():
        make = written_over(USES[use], change)
        (plain, _), (traced, tracer) = drive(make, traced=False), drive(make, traced=True)
        for (name, eager), (_, ours) in zip(plain, traced, strict=True):
            assert not difference(name, eager, ours)
        hits += tracer.count("hits")
    assert hits > 0


@cases.parametrize
def test_read_behind_steps(make, expected):
    check(make, **expected)


@pytest.mark.parametrize("sizes", [[3, 3, 3, 3], [3, 4, 5, 6]])
def test_a_call_that_was_stopped_halfway_is_the_last_of_its_kind(sizes):
    """Those that follow run eagerly, also where each has a size of its own."""
    seen = {1.0}

    @lazytrace.opaque
    def change(x):
        if x.sum() > 10:
            seen.add(2.0)
        return x * 2

    @lazytrace.traced
    def fn(x):
        return x * (2.0 in seen) + change(x) * (1 + 2 * (2.0 in seen))

    def afresh(x):
        seen.discard(2.0)
        return fn(x)

    for size in sizes[:3]:
        afresh(torch.ones(size))
    with pytest.raises(lazytrace.ReplayError, match="Python state that it has changed"):
        afresh(torch.ones(sizes[2]) * 5)
    assert "run eagerly: a replay could not be brought to an end" in str(fn.explain(torch.ones(sizes[3])))
    for _ in range(2):
        assert afresh(torch.ones(sizes[3]) * 5)[0] == 10 * 3
    assert [lazytrace.reason_code(text) for text in fn.stats().eager] == ["stopped-halfway"]


@pytest.mark.parametrize("toggles", [False, True])
def test_a_mode_that_is_not_switched_again(toggles):
    """The operators behind the step would run in another mode than that of the recording."""
    w, calls = torch.ones(3, requires_grad=True), []

    @lazytrace.opaque
    def step(x):
        calls.append(1)
        if len(calls) == 1:
            torch.set_grad_enabled(False)
        if toggles:
            w.requires_grad_(not w.requires_grad)
        return x * 2

    @lazytrace.traced
    def fn(x):
        with torch.enable_grad():
            return step(x) + x * w

    assert not fn(X()).requires_grad
    with pytest.raises(lazytrace.ReplayError, match="a mode of torch that it has switched"):
        fn(X())
