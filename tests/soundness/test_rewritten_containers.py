"""Lists and dicts of before the call that change by more than one entry, entries that defaultdicts make, and
attributes of classes."""

from __future__ import annotations

import collections

import torch

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Thing:
    """State with what the cases need."""

    def __init__(self, **values):
        self.__dict__.update(values)


def calls(*changes, times=4):
    """A few calls, and a few more after each change."""
    steps = [call(k * X()) for k in range(1, times + 1)]
    return steps + [step for change in changes for step in (change, *steps)]


# ---------------------------------------------------------------- lists
@cases(hits=3)
def appended_to_and_popped(trace):
    s = Thing(stack=[])

    def fn(x):
        s.stack.append(1)
        y = x * len(s.stack)
        s.stack.pop()
        return y

    return trace(fn), calls(), lambda: s


@cases(hits=7)
def stack_of_contexts(trace):
    """As Pyro keeps its handlers."""
    stack: list[object] = []

    class Entered:
        def __enter__(self):
            if self not in stack:
                stack.append(self)
            return self

        def __exit__(self, *args):
            if stack[-1] is self:
                stack.pop()
            else:
                del stack[stack.index(self) :]

    def fn(x):
        with Entered(), Entered():
            for one in reversed(stack):
                x = x * len(stack) + isinstance(one, Entered)
        return x

    return trace(fn), [call(X())] * 8, lambda: len(stack)


@cases(hits=5)
def outer_context_that_comes(trace):
    """A recording for an empty stack is none for a stack that holds something."""
    stack: list[object] = []

    def fn(x):
        stack.append(x)
        y = x * len(stack)
        stack.pop()
        return y

    return trace(fn), calls(lambda: stack.append(1)), lambda: len(stack)


@cases(hits=3)
def window_of_tensors(trace):
    s = Thing(last=[torch.zeros(3) for _ in range(3)])

    def fn(x):
        s.last.append(x[0] * 2)
        s.last.pop(0)
        return torch.stack(s.last).sum(0)

    return trace(fn), [call(X(2, 3) * k) for k in range(1, 5)], lambda: s


@cases(hits=3)
def inserted_and_removed(trace):
    s = Thing(parts=[1, 2, 3])

    def fn(x):
        s.parts.insert(0, 7)
        y = x * sum(s.parts)
        s.parts.remove(7)
        return y

    return trace(fn), calls(), lambda: s


@cases(hits=5)
def sorted_sliced_and_extended(trace):
    """From its second call on it finds what it leaves."""
    s = Thing(parts=[2, 1])

    def fn(x):
        s.parts += [3]
        s.parts.sort()
        s.parts[1:] = [5]
        y = x * s.parts[0] - s.parts[-1]
        s.parts.reverse()
        s.parts.sort()
        return y

    return trace(fn), [call(X() * k) for k in range(1, 8)], lambda: s


@cases(hits=5)
def emptied_each_time(trace):
    s = Thing(outputs=[])

    def fn(x):
        n = len(s.outputs)
        s.outputs.clear()
        return x * n

    def fill(n):
        return lambda: s.outputs.extend(range(n))

    steps = [step for n in (2, 2, 2, 3, 3, 2, 2, 0, 2) for step in (fill(n), call(X()))]
    return trace(fn), steps, lambda: s


@cases(hits=2, eager="reads a list that it has written to")
def grows_and_is_asked_for_its_length(trace):
    s = Thing(seen=[])

    def fn(x):
        s.seen.append(1.0)
        return x * len(s.seen)

    return trace(fn), calls(), lambda: s


@cases(hits=5)
def one_that_becomes_another(trace):
    s = Thing(a=[1], b=[1])

    def fn(x):
        s.a.append(2)
        y = x * len(s.b) + len(s.a)
        s.a.pop()
        return y

    def join():
        s.b = s.a

    return trace(fn), calls(join), lambda: s


@cases(eager="calls look after writing to Python state that it may read")
def opaque_code_that_looks(trace):
    s = Thing(parts=[])

    def look(x):
        return x * len(s.parts)

    seen = lazytrace.opaque(look) if trace.enabled else look

    def fn(x):
        s.parts.append(1)
        y = seen(x)
        s.parts.pop()
        return y

    return trace(fn), calls(), lambda: s


@cases(hits=3)
def raises_between(trace):
    """What was there when it raised is there."""
    s = Thing(parts=[1])

    def fn(x):
        s.parts.append(2)
        s.parts.insert(0, 3)
        y = torch.linalg.cholesky(torch.eye(2) * x[0])
        s.parts.clear()
        s.parts.append(1)
        return y

    def tidy():
        s.parts[:] = [1]

    good, bad = call(torch.full((2,), 2.0)), call(torch.full((2,), -2.0))
    return trace(fn), [good, good, good, bad, tidy, good, bad, tidy, good], lambda: s


@cases(hits=4)
def side_exit_between(trace):
    s = Thing(parts=[])

    def fn(x):
        s.parts.append("a")
        if x.sum() > 0:
            s.parts.append("b")
        y = x * len(s.parts)
        del s.parts[:]
        return y

    up, down = call(X().abs() + 1), call(-X().abs() - 1)
    return trace(fn), [up, up, down, down, up, down], lambda: s


@cases(hits=4)
def passed_list(trace):
    def fn(parts, x):
        parts.append(x)
        y = sum(parts)
        parts.pop()
        parts.insert(0, 5)
        parts.pop()
        return y

    return trace(fn), [call([1, 2], X() * k) for k in range(1, 6)]


# ---------------------------------------------------------------- dicts
@cases(hits=3)
def entry_taken_out_and_put_back(trace):
    s = Thing(d={"a": 1, "b": 2})

    def fn(x):
        kept = s.d.pop("a")
        y = x * len(s.d)
        s.d["a"] = kept
        s.d["c"] = x
        del s.d["c"]
        y = y + sum(s.d.values())
        s.d["b"] = s.d.pop("b")
        return y

    return trace(fn), calls(), lambda: s


@cases(hits=3)
def order_of_a_dict(trace):
    """Equal dicts in another order are another state."""
    s = Thing(d={"a": 1.0, "b": 2.0})

    def fn(x):
        first = next(iter(s.d))
        s.d[first] = s.d.pop(first)
        return x + next(iter(s.d.values()))

    return trace(fn), [call(X())] * 8, lambda: list(s.d)


@cases(hits=3)
def ordered_dict(trace):
    s = Thing(d=collections.OrderedDict(a=1, b=2))

    def fn(x):
        s.d.move_to_end("a")
        y = x * (next(iter(s.d)) == "b")
        s.d.move_to_end("b")
        return y

    return trace(fn), calls(), lambda: list(s.d)


@cases(hits=3)
def read_whole_after_a_write(trace):
    s = Thing(d={"a": torch.ones(3)})

    def fn(x):
        s.d.update(a=x[0] + 1)
        return sum(s.d.values())

    return trace(fn), [call(X(2, 3) * k) for k in range(1, 5)], lambda: s


@cases(eager="calls .pop() of a dict")
def namespace_of_an_object(trace):
    s = Thing(k=3)

    def fn(x):
        vars(s).pop("k")
        vars(s)["k"] = 4
        return x * s.k

    return trace(fn), calls(), lambda: s


@cases(hits=2)
def dict_that_is_a_namespace_later(trace):
    o, s = Thing(k=1), Thing(d={"k": 1})

    def fn(x):
        s.d.pop("k")
        s.d["k"] = 1
        return x * o.k

    def join():
        s.d = vars(o)

    return trace(fn), calls(join, times=3), lambda: o.k


# ---------------------------------------------------------------- what a defaultdict makes
@cases(hits=3)
def missing_entry(trace):
    s = Thing(d=collections.defaultdict(list))

    def fn(x):
        s.d["k"].append(1)
        n = len(s.d["k"])
        s.d.clear()
        return x * n

    return trace(fn), calls(), lambda: s


def asking_and_deleting():
    s = Thing(d=collections.defaultdict(lambda: 5))

    def fn(x):
        n = s.d["k"]
        del s.d["k"]
        return x * n

    return s, fn


@cases(hits=6)
def missing_entry_that_is_there_later(trace):
    s, fn = asking_and_deleting()

    def put():
        s.d["k"] = 9

    return trace(fn), [*calls(), put, *calls()], lambda: s


@cases(hits=4)
def factory_that_changes(trace):
    s, fn = asking_and_deleting()

    def change():
        s.d.default_factory = lambda: 7

    return trace(fn), calls(change, times=3), lambda: s.d["q"]


@cases(hits=3)
def counter_in_a_defaultdict(trace):
    """The number that it finds is followed once it has differed."""
    s = Thing(d=collections.defaultdict(int))

    def fn(x):
        s.d["n"] += 1
        return x * 2

    return trace(fn), [call(X())] * 8, lambda: s.d["n"]


@cases(hits=3)
def without_a_factory(trace):
    s = Thing(d=collections.defaultdict(None))

    def fn(x):
        try:
            return x * s.d["k"]
        except KeyError as error:
            return x + len(error.args)

    return trace(fn), calls(), lambda: s


@cases(hits=3)
def defaultdict_that_is_made_anew(trace):
    def fresh():
        return {"stage": 0}

    s = Thing(d=collections.defaultdict(fresh))

    def fn(x):
        s.d = collections.defaultdict(fresh, a=1)
        return x

    return trace(fn), calls(), lambda: [s.d, s.d["new"], s.d.default_factory is fresh]


# ---------------------------------------------------------------- attributes of classes
@cases(hits=6)
def flag_of_a_class_for_a_while(trace):
    """As the settings of GPyTorch are."""

    class Flag:
        on = None

        def __enter__(self):
            self.before = self.__class__.on
            self.__class__.on = True

        def __exit__(self, *args):
            self.__class__.on = self.before

    def fn(x):
        with Flag():
            x = x * 2 if Flag.on else x * 3
        return x * 5 if Flag.on else x * 7

    def change():
        Flag.on = True

    return trace(fn), calls(change), lambda: Flag.on


@cases(hits=3)
def class_that_keeps_a_tensor(trace):
    class Last:
        seen = None

    def fn(x):
        y = x if Last.seen is None else x + Last.seen
        Last.seen = y * 2
        return y

    return trace(fn), [call(X() * k) for k in range(1, 7)], lambda: Last.seen


@cases(eager="sets .seen of a type")
def attribute_that_a_base_has(trace):
    class Base:
        seen = 1

    class Derived(Base):
        pass

    def fn(x):
        Derived.seen = 2
        return x * Derived.seen

    def change():
        del Derived.seen

    return trace(fn), [step for _ in range(4) for step in (call(X()), change)], lambda: Derived.seen


@cases(hits=2)
def class_that_is_read_by_another_path(trace):
    class Base:
        factor = 1

    class Derived(Base):
        pass

    def fn(x):
        Base.factor = 1
        return x * Derived.factor * Derived().factor

    def change():
        Derived.factor = 4

    return trace(fn), calls(change, times=2), lambda: Base.factor


@cases(eager="sets .__call__ of a type")
def special_method(trace):
    class Thing:
        def __call__(self):
            return 1

    def other(self):
        return 2

    def fn(x):
        before = Thing.__call__
        Thing.__call__ = other
        y = x * Thing()()
        Thing.__call__ = before
        return y

    return trace(fn), calls(), lambda: Thing()()


@cases.parametrize
def test_rewritten(make, expected):
    check(make, **expected)
