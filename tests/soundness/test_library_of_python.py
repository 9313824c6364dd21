"""Functions of Python's library that a recording sees into: files, heaps, named tuples, texts of objects."""

from __future__ import annotations

import collections
import dataclasses
import fractions
import functools
import heapq
import io
import json
import logging
import sys
import warnings
from typing import Any, NamedTuple

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, agree, around, call, calls, check

cases = Cases()


# ---------------------------------------------------------------- all that a generator gives
@cases(hits=5, recordings=1)
def norms_that_are_added_up(trace):
    weights = [X() * i for i in range(3)]

    def step(x):
        return sum((w * x).norm().item() ** 2 for w in weights) ** 0.5

    return trace(step), calls()


@cases(hits=5, recordings=1)
def the_largest_and_the_smallest(trace):
    weights = [X() * i for i in range(3)]

    def step(x):
        return max((w - x).sum().item() for w in weights), min((w * x).sum().item() for w in weights)

    return trace(step), calls()


GIVEN = {
    "numbers": (1, 2.5, -3),
    "none": (),
    "one": (7,),
    "equal": (1, 1.0, True),
    "nan": (1.0, float("nan"), 2.0),
    "tensors": (torch.ones(2), torch.zeros(2)),
    "lists": ([1], [2]),
    "texts": ("a", "b"),
    "kinds": (1, "a"),
    "nothing": (None,),
    "fractions": (fractions.Fraction(1, 3), 2),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("function", [sum, max, min])
def test_what_a_generator_gives(function, given):
    """What it raises says Python, and all that is asked for is asked for in its order."""

    def make(trace):
        held, asked = list(GIVEN[given]), []

        def give(stop):
            for item in held:
                asked.append(str(item))
                if item == stop if isinstance(item, int) else False:
                    raise KeyError(item)
                yield item

        def step(x, stop=None):
            try:
                return x * 2, function(give(stop))
            except (TypeError, ValueError, KeyError, RuntimeError) as error:
                return type(error), str(error)

        changes = [lambda: held.append(5), lambda: held.reverse(), lambda: held.clear()]
        steps = [call(X()), call(X()), call(X(), 1)]
        return (
            trace(step),
            [*steps, *(one for change in changes for one in (change, *steps))],
            lambda: list(asked),
        )

    agree(make)


class Odd:
    """Adds and compares in ways of its own."""

    def __init__(self, value):
        self.value = value

    def __radd__(self, other):
        return self.value + other

    def __gt__(self, other):
        return self.value < other.value

    def __lt__(self, other):
        return self.value > other.value


@cases(hits=3)
def objects_whose_methods_are_exchanged(trace):
    held = [Odd(1), Odd(3), Odd(2)]

    def step(x):
        a, b = max(o for o in held), min(o for o in held)
        return x * sum(o for o in held), a.value, b.value

    def exchange():
        Odd.__radd__, Odd.__gt__ = (
            lambda s, other: s.value * 2 + other,
            lambda s, other: s.value > other.value,
        )

    plain = Odd.__radd__, Odd.__gt__

    def put_back():
        Odd.__radd__, Odd.__gt__ = plain

    return trace(step), [*calls(3), exchange, *calls(3), put_back, *calls(2)]


@pytest.mark.parametrize("options", [{"key": abs}, {"default": 3}, {"key": None}, {"start": 2}, {"foo": 1}])
@pytest.mark.parametrize("function", [sum, max, min])
def test_options_beside_a_generator(function, options):
    def make(trace):
        held = []

        def step(x):
            try:
                return x, function((item for item in held), **options)
            except (TypeError, ValueError) as error:
                return str(error)

        return trace(step), around(lambda: held.append(-len(held)), X())

    agree(make)


def test_more_beside_a_generator():
    def make(trace):
        def step(x):
            found = [sum((v for v in (1, 2)), 3.5), sum(([v] for v in (1, 2)), [])]  # noqa: RUF017 (it is what is tried)
            for function in (max, min, sum):
                try:
                    found.append(function((v for v in (1, 2)), "a"))
                except TypeError as error:
                    found.append(str(error).replace("generator", ""))
            return x, found

        return trace(step), calls()

    agree(make)


@pytest.mark.parametrize("function", [sum, max, min])
def test_a_generator_ends_before_the_exception_is_handled(function):
    """In C code nothing holds it any more."""

    def make(trace):
        def given(value, seen):
            try:
                yield value
                yield "a"
            finally:
                seen.append("closed")

        def step(x):
            seen = []
            try:
                function(given(x.sum().item(), seen))
            except TypeError:
                seen.append("handled")
            return x * 2, seen

        return trace(step), [call(X()) for _ in range(6)]

    check(make, hits=4)


def tells_its_caller(value):
    yield value
    yield float(len(sys._getframe(1).f_code.co_name))


def asks_another(value):
    yield value
    yield float(len(name_of_caller(2)))


def name_of_caller(depth):
    return sys._getframe(depth).f_code.co_name


def warns(value):
    warnings.warn("from there", stacklevel=2)
    yield value


@pytest.mark.parametrize("function", [sum, max, min])
def test_a_generator_that_looks_at_its_caller(function):
    def make(trace):
        return trace(lambda x: (x * 2, function(tells_its_caller(x.sum().item())))), calls()

    check(make, hits=1)


def test_a_generator_that_lets_another_function_look_at_its_caller():
    """A recording sees what stands for `max`; no replay says so, too."""
    step = lazytrace.traced(lambda x: max(asks_another(x.sum().item())))
    given = [step(X()) for _ in range(4)]
    assert given[-1] == len("<lambda>")
    assert step.stats().hits == 0


def test_where_a_generator_warns():
    found = []
    for trace in (lambda function: function, lazytrace.traced):
        step = trace(lambda x: sum(warns(x.sum().item())))
        for _ in range(3):
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("always")
                step(X())
            found.append([(one.filename, one.lineno) for one in given])
    assert [file for ((file, _),) in found] == [__file__] * 6


# ---------------------------------------------------------------- files
@cases(hits=5, recordings=1)
def writes_to_a_file(trace):
    out = io.StringIO()

    def step(x):
        out.write(f"loss {x.sum().item():.3f}\n")
        out.flush()
        return x * 2

    return trace(step), calls(), out.getvalue


class Log:
    def __init__(self):
        self.out, self.files = io.StringIO(), []

    def next_file(self):
        self.files.append(self.out)
        self.out = io.StringIO()

    def seen(self):
        return [f.getvalue() for f in [*self.files, self.out]]


@cases(hits=2)
def another_file(trace):
    log = Log()

    def step(x):
        log.out.write(str(x.sum().item()))
        return x

    return trace(step), around(log.next_file, X()), log.seen


@cases(hits=1)
def a_closed_file(trace):
    log = Log()

    def step(x):
        log.out.write(str(x.sum().item()))
        return x

    return trace(step), around(lambda: log.out.close(), X()), lambda: log.out.closed


class Shouting(io.StringIO):
    def write(self, text):
        return super().write(text.upper())


@cases(hits=1)
def a_file_of_another_class(trace):
    log = Log()

    def change():
        log.next_file()
        log.out = Shouting()

    def step(x):
        log.out.write(f"sum {x.sum().item()}")
        return x

    return trace(step), around(change, X()), log.seen


@cases(eager="calls-method")
def what_is_written_is_counted(trace):
    out = io.StringIO()
    return trace(lambda x: out.write(f"{x.sum().item():.3f}")), calls(), out.getvalue


@cases(eager="raised TypeError")
def what_is_written_is_no_text(trace):
    out = io.StringIO()

    def step(x):
        out.write(3)
        return x

    return trace(step), calls(), out.getvalue


class Loud(str):
    __slots__ = ()

    def __str__(self):
        return self.upper() + "!"


@cases(eager="calls-method")
def what_is_written_is_no_plain_text(trace):
    out, texts = io.StringIO(), Log()
    texts.text = Loud("a")

    def step(x):
        out.write(texts.text)  # as it is, and not what print() would make of it
        return x

    return trace(step), around(lambda: setattr(texts, "text", Loud("b")), X()), out.getvalue


@cases(eager="calls-method")
def a_file_that_counts_its_writes_is_flushed(trace):
    out = Counting()

    def step(x):
        out.flush()  # print(end="", flush=True) would write a text of nothing
        return x

    return trace(step), calls(), lambda: out.writes


class Asked:
    """An object whose hash is asked for so many times."""

    def __init__(self, number, told):
        self.number, self.told = number, told

    def __hash__(self):
        self.told.append(self.number)
        return self.number

    def __eq__(self, other):
        return self.number == other.number


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: (1, one)])
def test_how_often_a_hash_is_asked_for_where_elements_are_counted(wrap):
    def make(trace):
        told = []
        kept = [wrap(Asked(i % 2, told)) for i in range(3)]

        def step(x):
            counts = collections.Counter(["a", *kept])
            return x * len(counts), max(counts.values())

        return trace(step), calls(), lambda: list(told)

    check(make, hits=4)


class Pieces(io.RawIOBase):
    """What is written to it, piece by piece."""

    def __init__(self):
        self.all = []

    def writable(self):
        return True

    def write(self, data):
        self.all.append(bytes(data))
        return len(data)


def write_text(out, x):
    out.write(f"{x.sum().item()}")


def flush_file(out, x):
    out.flush()


def dump_json(out, x):
    json.dump([x.sum().item(), [1]], out)


PIECES = {write_text: "calls-method", flush_file: "calls-method", dump_json: "calls id()"}
TO_PIECES = {
    "at once": lambda pieces: io.TextIOWrapper(pieces, write_through=True),
    "buffered": lambda pieces: io.TextIOWrapper(io.BufferedWriter(pieces, 1), write_through=True),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("way", TO_PIECES)
@pytest.mark.parametrize("write", PIECES)
def test_code_of_ones_own_below_a_file(write, way, late):
    def make(trace):
        pieces = Pieces()
        log = Log()

        def change():
            log.out = TO_PIECES[way](pieces)

        def step(x):
            write(log.out, x)
            return x * 2

        log.out = io.TextIOWrapper(io.BytesIO(), write_through=True)
        if not late:
            change()
        return trace(step), [*calls(), change, *calls()], lambda: list(pieces.all)

    check(make, hits=2 * late, eager=PIECES[write])


@pytest.mark.parametrize("write", [flush_file, dump_json])
def test_a_write_that_an_object_has_itself(write):
    def make(trace):
        log, told = Log(), []

        def step(x):
            write(log.out, x)
            return x * 2

        change = lambda: setattr(log.out, "write", told.append)  # noqa: E731
        return trace(step), [*calls(), change, *calls()], lambda: (log.out.getvalue(), list(told))

    check(make, hits=2)


class Counting(io.StringIO):
    writes = 0

    def write(self, text):
        self.writes += 1
        return io.StringIO.write(self, text)


@cases(eager="calls-method")
def what_was_written_is_read(trace):
    out = io.StringIO()

    def step(x):
        out.write("a")
        return x * len(out.getvalue())

    return trace(step), calls(), out.getvalue


# ---------------------------------------------------------------- texts of objects
class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value
        self.count += 1

    def __str__(self):
        return f"{self.total / self.count:.4f}"


class Named(Meter):
    __str__ = object.__str__

    def __repr__(self):
        return f"mean {self.total / self.count:.4f}"


def printing(cls):
    def make(trace):
        meter, out = cls(), io.StringIO()

        def step(x):
            meter.update(x.sum().item())
            print("loss", meter, 3, sep="|", file=out, flush=True)
            return x * 2

        return trace(step), calls(), lambda: (out.getvalue(), vars(meter))

    return make


@cases(hits=5, recordings=1)
def prints_an_object(trace):
    return printing(Meter)(trace)


@cases(hits=5, recordings=1)
def prints_what_has_a_repr(trace):
    return printing(Named)(trace)


@cases(hits=5, recordings=1)
def text_of_an_object(trace):
    meter = Meter()

    def step(x):
        meter.update(x.sum().item())
        return " ".join([str(meter), "/", str(meter)])

    return trace(step), calls(), lambda: vars(meter)


@cases(hits=2)
def its_method_is_replaced(trace):
    class Mine(Meter):
        pass

    meter, out = Mine(), io.StringIO()
    meter.update(1.0)

    def step(x):
        print(meter, file=out)
        return x * 2

    return trace(step), around(lambda: setattr(Mine, "__str__", lambda self: "mine"), X()), out.getvalue


@cases(eager="raised ValueError")
def its_method_raises(trace):
    class Bad:
        def __str__(self):
            raise ValueError("no text")

    out, bad = io.StringIO(), Bad()

    def step(x):
        print("a", bad, "b", file=out)
        return x

    return trace(step), calls(), out.getvalue


@cases(hits=1)
def its_method_gives_no_text(trace):
    class Bad:
        def __str__(self):
            return 3

    out, bad = io.StringIO(), Bad()

    def step(x):
        try:
            print("a", bad, "b", file=out)
        except TypeError:  # its text may name an address, if torch evaluates frames: it is not looked at
            return x * 3
        return x

    return trace(step), calls(), out.getvalue


@cases(hits=5)
def its_method_prints_itself(trace):
    out = io.StringIO()

    class Loud:
        def __str__(self):
            print("<", end="", file=out)
            return "loud"

    loud = Loud()

    def step(x):
        print("a", loud, "b", file=out)
        return x

    return trace(step), calls(), out.getvalue


# ---------------------------------------------------------------- named tuples
class State(NamedTuple):
    total: Any
    count: int = 0


@cases(hits=4)
def replaced_fields(trace):
    def step(x):
        state = State(x)._replace(count=3)
        return state._replace(total=state.total * state.count)

    return trace(step), calls()


@cases(hits=3)
def carried_from_call_to_call(trace):
    class Model:
        state = State(torch.zeros(3))

    model = Model()

    def step(x):
        model.state = model.state._replace(total=model.state.total + x, count=model.state.count + 1)
        return model.state.total.sum() * model.state.count

    return trace(step), calls(7), lambda: model.state


@cases(eager="hands-method-to-c")
def a_field_that_is_none(trace):
    def step(x):
        try:
            return State(x)._replace(other=3)
        except ValueError as error:
            return str(error)

    return trace(step), calls()


@cases(hits=1)
def its_fields_are_renamed(trace):
    Pair = collections.namedtuple("Pair", "a b")
    state = Pair(1, 2)

    def step(x):
        return state._replace(a=x)

    def change():
        Pair._fields = ("b", "a")

    return trace(step), around(change, X())


@cases(hits=1)
def its_method_is_that_of_another_class(trace):
    Pair, Other = collections.namedtuple("Pair", "a b"), collections.namedtuple("Other", "b a")
    state = Pair(1, 2)
    return trace(lambda x: state._replace(a=x)), around(
        lambda: setattr(Pair, "_replace", Other._replace), X()
    )


# ---------------------------------------------------------------- heaps
@cases(hits=5)
def a_heap_of_the_call(trace):
    def step(x):
        heap: list[Any] = []
        for value in (3, 1, 2):
            heapq.heappush(heap, (value, f"n{value}"))
        first = heapq.heappop(heap)
        return x * first[0], first[1], len(heap), heapq.nsmallest(1, heap)

    return trace(step), calls()


@cases(hits=1)
def a_heap_in_state(trace):
    heap = [1, 5, 3]

    def step(x):
        heapq.heappush(heap, 2)
        return x * heapq.heappop(heap)

    return trace(step), around(lambda: heap.__setitem__(0, 0), X()), lambda: heap


class Looks:
    """Looks at the heap that it is in when it is compared; one of 0 cannot be."""

    def __init__(self, value, heap, seen):
        self.value, self.heap, self.seen = value, heap, seen

    def __lt__(self, other):
        self.seen.append([one.value for one in self.heap])
        if self.seen[-1].count(7) > 1:
            self.heap.clear()
        if not self.value * other.value:
            raise ValueError("no order")
        return self.value < other.value


@pytest.mark.parametrize("found", [[1, 4, 9, 16, 25], [0, 4, 9, 16, 25], [2, 0, 9, 16, 25], [7, 7, 9, 16]])
def test_a_heap_that_is_looked_at_midway(found):
    """The library's C code swaps, so nothing is missing meanwhile, nor when a comparison raises."""

    def make(trace):
        def step(x, value):
            heap, seen = [], []
            heap += [Looks(one, heap, seen) for one in found]
            try:
                heapq.heappush(heap, Looks(value, heap, seen))
                first = heapq.heappop(heap).value
            except (ValueError, RuntimeError) as error:
                first = str(error)
            return x * 2, first, [one.value for one in heap], seen

        return trace(step), [call(X(), value) for value in (3, 3, 1, 30, 3)]

    check(make, hits=1)


@cases(eager="raised TypeError")
def a_heap_of_what_cannot_be_compared(trace):
    heap = ["a", 4, 5, 6, 7, 8]

    def step(x):
        heapq.heappush(heap, 1)
        return x

    return trace(step), calls(), lambda: heap


@cases(eager="calls-unseen-function")
def an_empty_heap(trace):
    def step(x):
        try:
            heapq.heappop([])
        except IndexError as error:
            return x, str(error)
        return x

    return trace(step), calls()


# ---------------------------------------------------------------- properties, generators
@cases(hits=5)
def a_cached_property(trace):
    class Batch:
        def __init__(self, x):
            self.x = x

        @functools.cached_property
        def total(self):
            return self.x.sum()

    def step(x):
        batch = Batch(x)
        return batch.total * batch.total

    return trace(step), calls()


@cases(hits=2)
def a_cached_property_of_the_state(trace):
    class Model:
        scale = 2

        @functools.cached_property
        def twice(self):
            return 2 * self.scale

    model = Model()

    def change():
        model.scale = 5
        del model.__dict__["twice"]

    return trace(lambda x: x * model.twice), [*calls(3), change, *calls(3)], lambda: vars(model)


@cases(hits=5)
def thrown_into_a_generator(trace):
    def parts(x):
        try:
            yield x
        except ValueError as error:
            yield x * 2, str(error)

    def step(x):
        it = parts(x)
        return next(it), it.throw(ValueError("next"))

    return trace(step), calls()


# ---------------------------------------------------------------- lists that grow by several
@cases(hits=5, recordings=1)
def extended(trace):
    seen: list[Any] = []

    def step(x):
        seen.extend((x * 2).tolist())
        seen.extend([x.sum().item(), x])

    return trace(step), calls(), lambda: seen


@cases(hits=4)
def extended_and_counted(trace):
    seen: list[Any] = []

    def step(x):
        seen.extend((x.sum().item(), 1.0))
        return len(seen), seen[-2], sum(seen)

    return trace(step), calls(7), lambda: seen


@cases(hits=2)
def extended_by_what_is_there(trace):
    @dataclasses.dataclass
    class Seen:
        all: list[Any]
        more: list[Any]

    seen = Seen([], [1, 2])

    def step(x):
        seen.all.extend(seen.more)
        return x * 2

    return trace(step), around(lambda: seen.more.append(3), X()), lambda: vars(seen)


@cases(hits=1)
def extended_by_itself(trace):
    seen = [1]

    def step(x):
        seen.extend(seen)
        return x

    return trace(step), [call(X()), call(X()), lambda: seen.clear(), call(X()), call(X())], lambda: seen


@cases(hits=4)
def a_window_is_extended(trace):
    window: Any = collections.deque(maxlen=3)

    def step(x):
        window.append(x.sum().item())
        window.append(1.0)
        return x

    return trace(step), calls(7), lambda: list(window)


# ---------------------------------------------------------------- entries of dicts
@cases(hits=4)
def lists_in_a_dict(trace):
    history: Any = collections.defaultdict(list)

    def step(x):
        history["loss"].append(x.sum().item())
        history["max"].append(x.max().item())
        return {name: values[-1] for name, values in history.items()}, [len(v) for v in history.values()]

    return trace(step), calls(8), lambda: history


@cases(hits=2)
def a_dict_of_lists_gets_another(trace):
    history = {"loss": [1.0]}

    def step(x):
        history["loss"].append(x.sum().item())
        return {name: values[-1] for name, values in history.items()}

    def change():
        history["other"] = [3.0]

    return trace(step), [*calls(5), change, *calls(5)], lambda: history


# ---------------------------------------------------------------- arguments that the functions do not take
class Spoken:
    def __str__(self):
        return "named"


class Mute:
    def __repr__(self):
        return 3


Pair = collections.namedtuple("Pair", "a b")
LOGGER = logging.getLogger("lazytrace.test_library_of_python")
WRONG = [
    "heapq.heappush([1])",
    "heapq.heappush([1], item=2)",
    "heapq.heappop([1], 1)",
    "heapq.heappop(heap=[1])",
    "out.write()",
    "out.write('a', 'b')",
    "out.write(text='a')",
    "io.StringIO.write('a')",
    "Pair(1, 2)._replace(3)",
    "Pair._replace(3, a=1)",
    "str(Mute())",
    "str(Spoken(), 'utf-8')",
    "LOGGER.isEnabledFor()",
    "LOGGER.critical('a', color=1)",
    "print('a', Spoken(), end=3)",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_in_the_same_words(wrong, capsys):
    names = {**globals(), "out": io.StringIO()}
    exec(f"def step(x):\n    {wrong}\n    return x", names)

    def said(function):
        with pytest.raises((TypeError, AttributeError)) as raised:
            function(X())
        return type(raised.value), str(raised.value), capsys.readouterr().out

    traced = lazytrace.traced(names["step"])
    assert [said(traced), said(traced)] == [said(names["step"])] * 2


@cases(hits=1)
def the_text_of_an_object_by_name(trace):
    def step(x):
        return x, str(object=Spoken())

    return trace(step), calls(2)


@cases.parametrize
def test_library(make, expected):
    check(make, **expected)
