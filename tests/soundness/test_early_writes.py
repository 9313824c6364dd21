"""Writes to Python state before Python code that a replay calls: it finds them, however the call goes on."""

from __future__ import annotations

import zlib

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, check
from tests.soundness.test_effects import Thing, opaque

cases = Cases()


def then(count=5):
    return [call(torch.full((3,), float(i))) for i in range(count)]


def looking(trace, look, before, after=lambda o, x: None):
    """A call that writes, calls Python code that looks, and goes on."""
    o = Thing(n=0, x=0.0, flag=False, kept=None, rows=[], table={"a": 1})
    step = opaque(trace, lambda x: look(o, x))

    def fn(x):
        before(o, x)
        y = step(x)
        after(o, x)
        return y + 1

    return trace(fn), then(), lambda: o


def number(value):
    """Of all that a value is and holds; not what other numbers of its class would have given."""
    return float(zlib.crc32((repr(value) + type(value).__name__).encode()) % 97)


def sees(name):
    return lambda o, x: x * 2 + number(getattr(o, name))


def counts(o, x):
    o.n += 1


def sets(name, value):
    return lambda o, x: setattr(o, name, value)


# ---------------------------------------------------------------- what is found
def puts_back(trace, body):
    """A call that writes back what lay at a place, and an opaque function that puts another tensor there."""
    o = Thing(held=X(3), count=0)

    def look(x):
        o.count += 1
        if o.count == 5:
            o.held = X(3) * 7
        return x * 2

    inner = opaque(trace, look)
    step = trace(lambda x: body(o, inner, x))
    return step, [call(X(3)) for _ in range(8)], lambda: (o.held, o.count)


@cases(hits=3)
def a_tensor_that_is_put_back(trace):
    def body(o, inner, x):
        held = o.held
        out = inner(x) + held
        o.held = held
        return out

    return puts_back(trace, body)


@cases(hits=6)
def a_tensor_that_is_put_where_it_lies(trace):
    o = Thing(held=X(3), table={"k": X(3)})

    def step(x):
        o.held = o.held
        o.table["k"] = o.table["k"].mul_(2)
        return x + o.held + o.table["k"]

    change = lambda: setattr(o, "held", X(3) * 3)  # noqa: E731
    steps = [call(X(3)) for _ in range(8)]
    steps[5:5] = [change]
    return trace(step), steps, lambda: vars(o)


@cases(hits=6)
def two_tensors_that_were_one(trace):
    """A tensor is put at another place, where the same lay when it was recorded."""
    o = Thing(a=X(3), b=None)
    o.b = o.a

    def step(x):
        o.b = o.a
        return x + o.b

    steps = [call(X(3)) for _ in range(9)]
    steps[5:5] = [lambda: setattr(o, "a", X(3) * 3)]
    return trace(step), steps, lambda: vars(o)


@cases(hits=3)
def a_counter(trace):
    return looking(trace, sees("n"), counts)


def appends(count):
    def before(o, x):
        for i in range(count):
            o.rows.append(x.detach() * i)

    return before


@cases(hits=3)
def several_entries_of_one_list(trace):
    return looking(trace, lambda o, x: x * len(o.rows) + o.rows[-2], appends(3))


@cases(hits=3)
def entries_of_two_lists(trace):
    def before(o, x):
        for i in range(2):
            o.rows.append(x.detach() * i)
            o.kept.append(x.detach() + i)

    def look(o, x):
        return x * len(o.rows) + o.kept[-1] * o.rows[-1]

    o = Thing(rows=[], kept=[])
    step = opaque(trace, lambda x: look(o, x))

    def fn(x):
        before(o, x)
        return step(x) + 1

    return trace(fn), then(), lambda: o


@cases(hits=2)
def a_sum_of_values(trace):
    def adds(o, x):
        o.x += x.sum().item()

    return looking(trace, sees("x"), adds)


@cases(hits=4)
def a_flag_that_is_put_back(trace):
    return looking(trace, sees("flag"), sets("flag", True), sets("flag", False))


@cases(hits=3)
def a_counter_that_goes_on(trace):
    return looking(trace, sees("n"), counts, counts)


@cases(hits=4)
def a_tensor(trace):
    def keeps(o, x):
        o.kept = x * 3

    return looking(trace, sees("kept"), keeps)


@cases(hits=4)
def an_entry_of_a_list(trace):
    def appends(o, x):
        o.rows.append(x)

    return looking(trace, sees("rows"), appends)


@cases(hits=2)
def an_entry_that_is_new(trace):
    def enters(o, x):
        o.table["b"] = o.table.get("b", 0) + 1

    return looking(trace, sees("table"), enters)


@cases(recordings=5)
def what_a_variable_of_a_closure_holds(trace):
    held = None
    step = opaque(trace, lambda x: x if held is None else x * held)

    def fn(x):
        nonlocal held
        held = x + 1
        y = step(x)
        held = None
        return y

    return trace(fn), then(), lambda: held


@cases(hits=4)
def an_attribute_of_a_class(trace):
    class Switch:
        on = False

    step = opaque(trace, lambda x: x * 2 if Switch.on else x)

    def fn(x):
        Switch.on = True
        y = step(x)
        Switch.on = False
        return y

    return trace(fn), then(), lambda: Switch.on


@cases(hits=4)
def another_each_time(trace):
    o = Thing(at="")
    step = opaque(trace, lambda x: x + number(o.at))

    def fn(x):
        for at in ("first", "second", "third"):
            o.at = at
            x = step(x)
        o.at = ""
        return x

    return trace(fn), then(), lambda: o


@cases(hits=3)
def both_passes_of_a_function_of_autograd(trace):
    o, w = Thing(n=0, at=""), X(grad=True)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * number((o.n, o.at))

        @staticmethod
        def backward(ctx, g):
            return g * number((o.n, o.at))

    def fn(x):
        o.n += 1
        o.at = "forward"
        loss = (Twice.apply(w) * x).sum()
        o.at = "backward"
        loss.backward()
        o.at = ""
        return loss.detach()

    return trace(fn), then(), lambda: (o, w.grad)


@cases(hits=4)
def what_another_function_reads(trace):
    o = Thing(k=1.0)
    inner = lazytrace.traced(lambda x: x * o.k) if trace.enabled else lambda x: x * o.k
    step = opaque(trace, inner)

    def fn(x):
        o.k = 3.0
        y = step(x)
        o.k = 1.0
        return y

    return trace(fn), then(), lambda: o


# ---------------------------------------------------------------- how the call goes on
@cases(hits=5)
def a_branch_behind(trace):
    o = Thing(n=0, flag=False, last="")
    step = opaque(trace, lambda x: x * (1 + number((o.n, o.flag))))

    def fn(x):
        o.n += 1
        o.flag = True
        y = step(x)
        o.flag = False
        if y.sum() > 0:
            o.last = "more"
            return y + 1
        o.last = "less"
        return y - 1

    signs = [1, 1, 1, -1, 1, -1, -1, 1, -1]
    return trace(fn), [call(torch.full((3,), float(sign))) for sign in signs], lambda: o


@cases(hits=4)
def a_key_that_is_there_for_a_while(trace):
    table = {"a": 1, "b": 2}
    step = opaque(trace, lambda x: x * number(list(table.items())))

    def fn(x):
        table["b"] = 3
        y = step(x)
        table["b"] = 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    return trace(fn), [call(torch.full((3,), float(s))) for s in (1, 1, 1, -1, 1, -1)], lambda: table


def raising(trace, error=ValueError):
    o = Thing(n=0, at="")

    def look(x):
        if x.sum() < 0:
            raise error(f"negative at {o.n} {o.at}")
        return x * number((o.n, o.at))

    return o, opaque(trace, look)


@cases(hits=3)
def it_raises(trace):
    o, step = raising(trace)

    def fn(x):
        o.n += 1
        o.at = "inside"
        y = step(x)
        o.at = ""
        return y

    return trace(fn), [call(torch.full((3,), float(s))) for s in (1, 1, 1, -1, 1, -1, 1)], lambda: o


@cases(hits=3)
def it_raises_and_that_is_caught(trace):
    o, step = raising(trace)

    def fn(x):
        o.n += 1
        o.at = "inside"
        try:
            y = step(x)
        except ValueError:
            o.at = "caught"
            return x
        o.at = ""
        return y

    return trace(fn), [call(torch.full((3,), float(s))) for s in (1, 1, 1, -1, 1, -1, 1)], lambda: o


# ---------------------------------------------------------------- a container that is taken over later
READS = {
    "copied": dict,
    "listed": lambda c: [*c.items()],
    "gone through": lambda c: {k: v for k, v in c.items() if k != "first"},
    "counted": len,
    "popped": lambda c: c.popitem()[0],
    "emptied": lambda c: c.clear(),
}


@pytest.mark.parametrize("does", READS)
def test_what_a_step_finds_is_read_as_a_whole_behind_it(does):
    """A key that the step has found, and that is gone in the end, is not left there."""

    def make(trace):
        state = Holder(seen={"first": 1.0}, flips=False)
        step = opaque(trace, lambda x: x * state.seen["kept"] + (1 if state.flips else 0))

        def fn(x):
            state.seen["kept"] = 2.0
            y = step(x)
            read = READS[does](state.seen)
            return y * (2 if y.sum() > 4 else 1), read

        def afresh():
            state.seen = {"first": 1.0}

        def flip():
            state.flips = not state.flips

        twice = [afresh, call(X()), call(X())]
        return trace(fn), [*twice * 3, flip, *twice * 2, flip, *twice], lambda: state.seen

    # What is as it was before the call in the end is no write that a replay makes.
    check(make, **({"eager": "opaque-after-write"} if does == "popped" else {"hits": 4}))


# ---------------------------------------------------------------- what cannot be shown
@cases(eager="opaque-after-write")
def an_object_that_the_call_has_made(trace):
    def makes(o, x):
        o.kept = [1, 2]

    return looking(trace, sees("kept"), makes)


@cases(eager="opaque-after-write")
def a_list_of_objects_that_the_call_has_made(trace):
    stack = []
    step = opaque(trace, lambda x: x * (1 + len(stack)))

    def fn(x):
        stack.append(Thing(k=1))
        stack.append(Thing(k=2))
        stack.pop()
        y = step(x)
        stack.pop()
        return y

    return trace(fn), then(), lambda: stack


@cases(eager="sets [0] of a list")
def a_list_that_it_has_made_longer(trace):
    rows = [1, 2]

    def look(x):
        rows.append(9)
        return x * 2

    step = opaque(trace, look)

    def fn(x):
        y = step(x)
        rows[0] = 5
        return y

    return trace(fn), then(), lambda: rows


@cases(eager="opaque-rewrites")
def it_writes_there_itself(trace):
    def look(o, x):
        o.flag = "seen"
        return x * 2

    return looking(trace, look, sets("flag", "set"))


@cases.parametrize
def test_early_writes(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- what a replay alone shows
def late(o, where):
    """A function whose Python code writes to `where` at one call that is a replay."""

    @lazytrace.opaque
    def look(x):
        if x.sum() < 0:
            setattr(o, where, "seen")
        return x * 2

    return look


LATE = {
    "what was written before": lambda o, look, x: (setattr(o, "a", 1), look(x))[1],
    "what is written before and behind": lambda o, look, x: (
        setattr(o, "a", 1),
        look(x),
        setattr(o, "a", 0),
    )[1],
}


@pytest.mark.parametrize("case", LATE)
def test_what_a_replay_alone_changes_is_noticed(case):
    """No recording shows it: the function runs again, writes once more, and finds what that has left."""
    o = Thing(a=0)
    look = late(o, "a")
    fn = lazytrace.traced(lambda x: LATE[case](o, look, x) + 1)
    assert [fn(torch.ones(3)).tolist() for _ in range(3)] == [[3.0] * 3] * 3
    assert fn.stats().hits
    assert fn(-torch.ones(3)).tolist() == [-1.0] * 3
    assert o.a == ("seen" if case == "what was written before" else 0)


BEHIND = {
    "what is put back behind": lambda o, look, x: (look(x), setattr(o, "a", o.a))[0],
    "what is read behind": lambda o, look, x: look(x) * (1 if o.a == 0 else 5),
}


@pytest.mark.parametrize("case", BEHIND)
def test_what_a_replay_alone_changes_is_read_behind_it(case):
    """The function runs again over the step, and reads it itself."""
    given = []
    for trace in (lambda fn: fn, lazytrace.traced):
        o = Thing(a=0)
        look = late(o, "a")
        fn = trace(lambda x, o=o, look=look: BEHIND[case](o, look, x) + 1)
        given.append([(fn(torch.ones(3) * sign).tolist(), o.a) for sign in (1, 1, 1, -1, 1, -1, -1, 1)])
    assert given[0] == given[1]
    assert fn.stats().hits >= 2


def test_what_nobody_reads_may_change():
    o = Thing(a=0, log=[])

    @lazytrace.opaque
    def look(x):
        o.log.append(len(o.log))
        return x * 2

    fn = lazytrace.traced(lambda x: look(x) + 1)
    for _ in range(4):
        fn(torch.ones(3))
    assert fn.stats().hits == 3
    assert o.log == [0, 1, 2, 3]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_whose_function_changes_state_in_a_replay(reentrant):
    given = []
    for trace in (lambda fn: fn, lazytrace.traced):
        o = Thing(n=0)

        def inner(x, o=o):
            if x.sum() < 0:
                o.n += 100
            return x * 2

        def fn(x, o=o, inner=inner):
            y = checkpoint(inner, x, use_reentrant=reentrant)
            y.sum().backward()
            return y.detach() + o.n

        called = trace(fn)
        results = []
        for sign in (1, 1, 1, 1, -1, 1, -1):
            x = (torch.ones(3) * sign).requires_grad_()
            results.append((called(x).tolist(), x.grad.tolist(), o.n))
        given.append(results)
    assert given[0] == given[1]
    assert called.stats().hits >= 2
