"""Python code that runs where an object goes: in the middle of a call, when it is due."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import json
import types
import weakref

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, agree, call, calls, check

cases = Cases()


class Ending:
    """Writes down that it has gone, as a program can see."""

    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append(len(self.log))


def fill(holder, fresh):
    if isinstance(holder, list):
        holder[:] = fresh
    elif isinstance(holder, dict):
        holder.update(fresh)
    else:
        vars(holder).update(vars(fresh))


def written_over(name, place, put, **expected):
    """A case: the function drops what is in a place, and looks at what was written."""

    def make(trace):
        log = []
        holder = place(log)

        def function(x):
            put(holder, x)
            return x * (len(log) + 2)

        def again():
            fill(holder, place(log))

        return trace(function), [call(X()), again, call(X()), again, call(X())], lambda: log

    make.__name__ = name
    cases(make, **expected)


class Shown:
    def __str__(self):
        return ""


class Box:
    held = None


def boxed(log):
    box = Box()
    box.held = Ending(log)
    return box


def listed(log):
    return [Ending(log)]


def nested(log):
    return [[Ending(log)]]


def put_entry(holder, value):
    holder[0] = value


def put_key(holder, value):
    holder["k"] = value


def put_attribute(holder, value):
    holder.held = value


def read_first(holder, value):
    assert holder[0].log is not None
    holder[0] = value


def read_inside_first(holder, value):
    assert holder[0][0] is not None
    holder[0] = value


def delete(holder, value):
    del holder[0]


def put_all(holder, value):
    holder[:] = [value]


def of_key(log):
    return {"k": Ending(log)}


def inside(log):
    box = Box()
    box.held = boxed(log)
    return box


written_over("an_entry", listed, put_entry, eager="sets [0] of a list")
written_over("a_key", of_key, put_key, eager="sets ['k'] of a dict")
written_over("an_attribute", boxed, put_attribute, eager="sets .held of a Box")
written_over("an_attribute_of_an_attribute", inside, put_attribute, eager="sets .held of a Box")
written_over("a_list_with_one", nested, put_entry, eager="sets [0] of a list")
written_over("after_it_was_read", listed, read_first, eager="sets [0] of a list")
written_over("after_what_it_holds_was_read", nested, read_inside_first, eager="sets [0] of a list")
written_over("popped", listed, lambda held, _: held.pop() and None, eager="calls .pop() of a list")
written_over("popped_by_key", of_key, lambda held, _: held.pop("k") and None, eager="calls .pop() of a dict")
written_over("cleared", listed, lambda held, _: held.clear(), eager="calls .clear() of a list")
written_over("deleted", listed, delete, eager="deletes [0] of a list")
written_over("all_of_a_list", listed, put_all, eager="sets [slice(None, None, None)] of a list")


@cases(eager="sets [0] of a list")
def a_finalizer_of_what_is_written_over(trace):
    log, holder = [], []

    def watched():
        box = Box()
        weakref.finalize(box, log.append, 1)
        holder[:] = [box]

    def function(x):
        holder[0] = x
        return x * (len(log) + 2)

    watched()
    return trace(function), [call(X()), watched, call(X())], lambda: log


@cases(eager="makes")
def a_callback_of_what_the_call_makes(trace):
    state = {"n": 1}

    def function(x):
        box = Box()
        reference = weakref.ref(box, lambda _: state.__setitem__("n", state["n"] + 1))
        del box
        return x * 2 if reference() is None else x

    return trace(function), [call(X())] * 4, lambda: state


@cases(hits=2)
def a_weak_reference_without_a_callback(trace):
    def function(x):
        box = Box()
        reference = weakref.ref(box)
        return x * 2 if reference() is box else x

    return trace(function), [call(X())] * 4


# ---------------------------------------------------------------- at a replay
# The recording has seen something else in the place, whose end nobody is told of.
def later(name, holder, put, hold, **expected):
    """A case: what a place holds at a later call shows its end when the function drops it."""

    def make(trace):
        log = []
        place = holder()

        def function(x):
            put(place, x * 1)
            return x * (len(log) + 2)

        steps = [call(X())] * 3 + [lambda: fill(place, hold(log)), *[call(X())] * 3]
        return trace(function), steps, lambda: log

    make.__name__ = name
    cases(make, **expected)


def box_of(value):
    box = Box()
    box.held = value
    return box


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


def suspended(log):
    def generate():
        try:
            yield 1
        finally:
            log.append(1)

    generator = generate()
    next(generator)
    return generator


def finalized(log):
    box = Box()
    weakref.finalize(box, log.append, 1)
    return box


def finalized_tensor(log):
    tensor = torch.ones(3)
    weakref.finalize(tensor, log.append, 1)
    return tensor


def closure_over(held):
    return lambda: held


KINDS = {
    "itself": Ending,
    "in_a_list": lambda log: [Ending(log)],
    "in_a_tuple_of_an_object": lambda log: (box_of(Ending(log)),),
    "in_a_slot": lambda log: Slotted(Ending(log)),
    "in_a_namespace": lambda log: types.SimpleNamespace(held=Ending(log)),
    "in_a_deque": lambda log: collections.deque([Ending(log)]),
    "in_a_closure": lambda log: closure_over(Ending(log)),
    "in_a_partial": lambda log: functools.partial(print, Ending(log)),
    "in_an_iterator": lambda log: iter([Ending(log)]),
    "as_a_method": lambda log: Ending(log).__del__,
    "that_is_a_generator": suspended,
    "with_a_finalizer": finalized,
    "that_is_a_tensor_with_a_finalizer": finalized_tensor,
}
for kind, hold in KINDS.items():
    later(
        f"a_later_entry_{kind}",
        lambda: [None],
        put_entry,
        lambda log, hold=hold: [hold(log)],
        hits=2,
        eager="sets [0] of a list",
    )
later("a_later_attribute", Box, put_attribute, boxed, hits=2, eager="sets .held of a Box")
later("a_later_key", lambda: {"k": 1}, put_key, of_key, hits=2, eager="sets ['k'] of a dict")
later("a_later_list", lambda: [1], put_all, listed, hits=2, eager="sets [slice(None, None, None)] of a list")


@cases(hits=2, eager="calls .append() of a deque")
def pushed_out_of_a_deque(trace):
    log, held = [], collections.deque([1, 2], maxlen=2)

    def function(x):
        held.append(x * 1)
        return x * (len(log) + 2)

    def put():
        held.clear()
        held.extend([Ending(log), 2])

    return trace(function), [*[call(X())] * 3, put, *[call(X())] * 3], lambda: log


# ---------------------------------------------------------------- weak references without a callback
def asked(name, place, fill_in, drop, **expected):
    """A case: the function drops an object, and asks a weak reference for it."""

    def make(trace):
        holder = place()
        references = [lambda: None]

        def function(x):
            drop(holder, x)
            return x * (1 if references[0]() is None else 2)

        def put():
            made = Box()
            fill_in(holder, made)
            references[0] = weakref.ref(made)

        put()
        return trace(function), [call(X()), put, call(X()), put, call(X()), call(X())]

    make.__name__ = name
    cases(make, **expected)


asked("an_entry_that_was_dropped", lambda: [None], put_entry, put_entry, eager="let-go")
asked("a_key_that_was_dropped", dict, put_key, put_key, eager="let-go")
asked("an_attribute_that_was_dropped", Box, put_attribute, put_attribute, eager="let-go")


@cases(eager="sets [0] of a list")
def a_destructor_that_changes_something_at_some_calls(trace):
    log = []
    holder = [Ending([])]

    def function(x):
        holder[0] = x
        return x * (len(log) + 2)

    def put():
        holder[0] = Ending(log)

    return trace(function), [call(X()), put, call(X()), call(X()), put, call(X())], lambda: log


@cases(hits=2)
def a_destructor_at_the_end(trace):
    log = []
    holder = [Ending([])]

    def function(x):
        y = x * (len(log) + 2)
        holder[0] = x
        return y

    def put():
        holder[0] = Ending(log)

    return trace(function), [call(X()), put, call(X()), call(X()), call(X()), put, call(X())], lambda: log


@cases(hits=1, eager="let-go")
def an_entry_that_was_popped_of_a_list_that_is_followed(trace):
    holder, references = [], [lambda: None]

    def function(x):
        while holder:
            holder.pop()
        return x * (1 if references[0]() is None else 2)

    def put():
        holder.append(Box())
        references[0] = weakref.ref(holder[-1])

    return trace(function), [call(X()), call(X()), put, call(X()), put, put, call(X()), put, call(X())]


asked("an_entry_that_was_popped", list, list.append, lambda held, x: held and held.pop(), eager="let-go")
asked("all_that_was_cleared", list, list.append, lambda held, x: held.clear(), hits=1)
asked(
    "what_a_dropped_list_held",
    lambda: [None],
    lambda held, made: put_entry(held, [made]),
    put_entry,
    eager="let-go",
)


@cases(hits=3)
def a_weak_reference_to_what_comes_to_be_dropped(trace):
    kept = Box()
    holder, reference = types.SimpleNamespace(held=1), weakref.ref(kept)

    def function(x):
        holder.held = x * 1
        return x * (1 if reference() is None else 2)

    def give_up():
        nonlocal kept
        holder.held, kept = kept, None

    return trace(function), [*[call(X())] * 4, give_up, *[call(X())] * 2]


# ---------------------------------------------------------------- what a recording would hold
@cases(eager="let-go")
def made_by_the_call_and_held_by_the_recording_alone(trace):
    def function(x):
        box = Box()
        reference = weakref.ref(box)
        assert any([box])
        del box
        return x * (1 if reference() is None else 2)

    return trace(function), [call(X())] * 4


@cases(eager="calls .__init__() of a KeyedRef")
def gone_once_the_recording_has_failed(trace):
    pool = weakref.WeakValueDictionary()

    def find():
        box = pool.get("k")
        if box is None:
            box = pool["k"] = Box()
        return box

    def function(x):
        find()
        return x * (len(pool) + 1)

    return trace(function), [call(X())] * 4


@cases(eager="calls print()")
def written_over_once_the_recording_has_failed(trace):
    holder = types.SimpleNamespace(held=None)

    def function(x):
        box = holder.held = Box()
        reference = weakref.ref(box)
        assert any([box])
        print(*[Shown()], end="")
        holder.held = box = None
        return x * (1 if reference() is None else 2)

    return trace(function), [call(X())] * 4


# ---------------------------------------------------------------- generators
def closing(log, *values):
    try:
        yield from values
    finally:
        log.append("closed")


LEFT_BY_C = {
    "any": lambda given: any(given(1, 2)),
    "in": lambda given: 1 in given(1, 2),
    "any of a map": lambda given: any(map(bool, given(1, 2))),
    "a list of a map that raises": lambda given: list(map(abs, given(1, "a", 2))),
    "a sum of a map that raises": lambda given: sum(map(int, given(1, "a", 2))),
    "zip": lambda given: list(zip([1], given(1, 2), strict=False)),
    "unpacked zip": lambda given: [*zip([1], given(1, 2), strict=False)],
    "zip that is left": lambda given: next(zip(given(1, 2), given(3, 4), strict=False)),
    "enumerate": lambda given: next(enumerate(given(1, 2))),
    "islice": lambda given: list(itertools.islice(given(1, 2), 1)),
    "sum": lambda given: sum(given(1, "a")),
    "max": lambda given: max(given(1, "a")),
}


@pytest.mark.parametrize("use", LEFT_BY_C.values(), ids=LEFT_BY_C)
def test_a_generator_that_c_code_leaves(use):
    """It is closed when the last iterator that goes through it is gone."""

    def make(trace):
        def step(x):
            log = []
            try:
                use(lambda *values: closing(log, *values))
            except (TypeError, ValueError):
                log.append("raised")
            log.append("end")
            return x * 2, log

        return trace(step), [call(X()) for _ in range(4)]

    check(make, hits=3)


@cases(eager="late-destructor")
def a_generator_that_only_what_the_recording_holds_goes_through(trace):
    log = []

    def step(x):
        given = itertools.chain.from_iterable([closing(log, 1, 2)])
        return x * next(given)

    return trace(step), [call(X()) for _ in range(4)], lambda: log


# ---------------------------------------------------------------- in lists and dicts that are passed
def drops_item(given, log):
    given[1] = None


def drops_while_it_goes_through(given, log):
    for at, _ in enumerate(tuple(given)):
        if at == 1:
            given[at] = 0


DROPPED = {
    "an item": (drops_item, "sets [1] of a"),
    "an item gone through": (drops_while_it_goes_through, "sets [1] of a"),
    "popped": (lambda given, log: given.pop(1) and None, "calls .pop() of a"),
    "deleted": (lambda given, log: given.__delitem__(1), "__delitem__"),
    "all": (lambda given, log: given.clear(), "calls .clear() of a"),
}
PASSED = {
    "list": lambda log: [torch.ones(2), Ending(log), 3],
    "dict": lambda log: {0: torch.ones(2), 1: Ending(log), 2: 3},
    "nested": lambda log: [0, [[Ending(log)]], 3],
}


@pytest.mark.parametrize(("drop", "reason"), DROPPED.values(), ids=DROPPED)
@pytest.mark.parametrize("passed", PASSED.values(), ids=PASSED)
def test_what_lies_in_an_argument_goes_when_the_function_drops_it(passed, drop, reason):
    """In the recording that is given up, and in each eager call after it."""

    def make(trace):
        def function(x, given, log):
            drop(given, log)
            return x * (len(log) + 2)

        traced = trace(function)

        def step(x):
            log = []
            return traced(x, passed(log), log), log

        return step, [call(X()) for _ in range(10)]

    check(make, eager=reason)


LOOKED_THROUGH = {
    "values": lambda own: len(list(own.values())),
    "items": lambda own: len([*own.items()]),
    "any": lambda own: any(own.values()),
    "zip": lambda own: len(list(zip(own, own.values(), strict=True))),
}


@pytest.mark.parametrize("look", LOOKED_THROUGH.values(), ids=LOOKED_THROUGH)
def test_what_c_code_was_handed_goes_when_it_is_due(look):
    """It lay in a dict of the call's own."""

    def make(trace):
        def step(x):
            log = []
            own = {at: Ending(log) for at in range(4)}
            look(own)
            own.clear()
            return x * (len(log) + 2)

        return trace(step), [call(X()) for _ in range(4)]

    agree(make)


MADE_BY_C = {
    "sorted": (lambda own: sorted(own, key=type), len),
    "a sum": (lambda own: own + own, list.pop),
    "keys": (dict.fromkeys, dict.popitem),
    "a copy": (copy.copy, list.reverse),
    "an iterator": (iter, next),
    "one that goes back": (reversed, next),
    "a chain": (lambda own: list(itertools.chain(own, [4])), len),
    "a partial": (lambda own: functools.partial(len, own), lambda made: made()),
    "deep in values": (lambda own: list({"a": {"b": {"c": own}}}.values()), len),
    "any": (lambda own: any(one is None for one in own), bool),
    "a generator": (lambda own: (one for one in own), next),
}


@pytest.mark.parametrize(("make_of", "look"), MADE_BY_C.values(), ids=MADE_BY_C)
def test_what_c_code_has_made_goes_with_what_it_holds(make_of, look):
    """No weak reference to it can be made, so that the recording holds it."""

    def make(trace):
        log = []

        def step(x):
            own = [Ending(log) for _ in range(3)]
            made = make_of(own)
            look(made)
            own = None
            log.append("own")
            made = None
            log.append("made")
            return x * 2

        return trace(step), [call(X()) for _ in range(4)], lambda: log

    agree(make)


def waits(log):
    try:
        yield 1
    finally:
        log.append("closed")


@cases(eager="late-destructor")
def a_generator_that_an_iterator_holds(trace):
    log = []

    def step(x):
        own = waits(log)
        next(own)
        made = iter([own])
        own = None
        log.append("own")
        next(made, None)
        made = None
        log.append("made")
        return x * 2

    return trace(step), [call(X()) for _ in range(4)], lambda: log


@cases(eager="late-destructor")
def what_c_code_has_made_is_filled_later(trace):
    log = []

    def step(x):
        made = sorted([])
        made.append(Ending(log))
        log.append("filled")
        made = None
        log.append("made")
        return x * 2

    return trace(step), [call(X()) for _ in range(4)], lambda: log


@cases(hits=3)
def what_c_code_has_made_is_returned(trace):
    log = []

    def step(x):
        made = sorted([Ending(log), Ending(log)], key=lambda one: 0)
        return made, len(made) * x

    return trace(step), [call(X()) for _ in range(4)]


# ---------------------------------------------------------------- what a step makes
class Plain:
    """An object that weak references may lead to."""


class OneSlot:
    __slots__ = ("held",)


def attribute_of(holder, log):
    holder.held = Ending(log)


def entry_of_a_list(log):
    held = []
    held.append(Ending(log))


def entry_of_a_dict(log):
    held = {}
    held["a"] = Ending(log)


def variable_of_a_cell(log):
    held = None

    def put():
        nonlocal held
        held = Ending(log)

    put()


def told_by_finalize(log):
    held = Plain()
    weakref.finalize(held, log.append, 1)


def an_iterator(log):
    def numbers():
        try:
            yield 1
        finally:
            log.append(1)

    next(zip(numbers(), [1, 2], strict=False))


def asked_by_a_weak_reference(log):
    held = Plain()
    held.number, weak = 1, weakref.ref(held)
    del held
    log.append(weak() is None)


LET_GO = {
    "an attribute": lambda log: attribute_of(Plain(), log),
    "a slot": lambda log: attribute_of(OneSlot(), log),
    "a list": entry_of_a_list,
    "a dict": entry_of_a_dict,
    "a cell": variable_of_a_cell,
    "finalize": told_by_finalize,
    "an iterator": an_iterator,
    "a weak reference": asked_by_a_weak_reference,
}


@pytest.mark.parametrize("way", LET_GO)
def test_what_a_step_has_made_and_written_to_goes_when_it_is_due(way):
    """The recording held all that the code of a step had written to until the call was over."""

    def make(trace):
        log = []

        @lazytrace.opaque
        def step(x):
            LET_GO[way](log)
            return x * len(log)

        return trace(lambda x: step(x) + 1), calls(4), lambda: log

    agree(make)


def test_what_a_step_writes_to_a_file_is_there_when_nobody_holds_the_file(tmp_path):
    def make(trace):
        path = tmp_path / "numbers"

        @lazytrace.opaque
        def step(x):
            json.dump([1, 2], path.open("w"))
            return x * len(path.read_text())

        return trace(lambda x: step(x) + 1), calls(4)

    agree(make)


def test_a_step_takes_out_what_lies_in_its_arguments():
    """The recording looked afterwards at a list that was gone."""

    def make(trace):
        @lazytrace.opaque
        def step(x, rows):
            rows.clear()
            return x * 2

        return trace(lambda x: step(x, [[1], [2], {"a": [3]}]) + 1), calls(4)

    check(make, hits=2)


def test_an_object_that_tells_of_its_end_is_handed_to_a_step():
    """A replay made one of its own, whose destructor ran, too."""

    def make(trace):
        log = []

        @lazytrace.opaque
        def step(x, held):
            return x * len(log)

        return trace(lambda x: step(x, [Ending(log)]) + 1), calls(4), lambda: log

    check(make, eager="calls step with an argument that cannot be made again")


@cases.parametrize
def test_ends_of_objects(make, expected):
    check(make, **expected)
