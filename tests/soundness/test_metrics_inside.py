"""What a step keeps of its metrics: counters, sums in dicts, samples, tables and files, progress bars."""

from __future__ import annotations

import collections
import csv
import enum
import hashlib
import io
import json
import statistics
import struct
import time
import warnings

import pytest

from tests.soundness.runner import Cases, Holder, X, agree, around, call, calls, check

cases = Cases()


# ---------------------------------------------------------------- counters
@cases(hits=3)
def a_counter_that_is_read_and_written(trace):
    held = collections.Counter()

    def step(x):
        held.update(seen=1)
        held.update(["a", "b", "a"])
        return x * held["a"], held["missing"]

    return trace(step), [*calls(5), held.clear, *calls(3)], lambda: held


@cases(hits=3)
def the_most_common(trace):
    held = collections.Counter()

    def step(x):
        held[int(x.argmax())] += 1
        return held.most_common(1)[0][0], x

    return trace(step), [*[call(X())] * 6, *[call(-X())] * 6], lambda: held


@cases(hits=3)
def the_sum_of_a_counter(trace):
    held = collections.Counter(a=2)

    def step(x):
        held["a"] += 1
        held["b"] += 2
        return x * sum(held.values())

    return trace(step), [*calls(5), lambda: held.update(c=5), *calls(4)], lambda: held


class Patched(collections.Counter):
    def __setitem__(self, key, value):
        super().__setitem__(key, value * 2)


@cases(hits=1)
def counters_of_another_class(trace):
    held = Holder(c=collections.Counter())

    def step(x):
        held.c.update(["a"])
        return x * held.c["a"]

    def change():
        held.c = Patched()

    return trace(step), [*calls(4), change, *calls(3)], lambda: held.c


# ---------------------------------------------------------------- sums in dicts
@cases(hits=4)
def sums_by_name(trace):
    totals = collections.defaultdict(float)

    def step(x):
        for name, value in {"a": x.sum(), "b": x.max()}.items():
            totals[name] += value.item()
        return {name: total / 2 for name, total in totals.items()}

    return trace(step), [*calls(7), lambda: totals.update(c=1.0), *calls(4)], lambda: totals


@cases(hits=4)
def sums_that_are_shown(trace):
    held = Holder(d={"loss": 0.0, "n": 0})

    def step(x):
        held.d["loss"] += x.sum().item()
        held.d["n"] += 1
        return ", ".join(f"{name}: {value:.3f}" for name, value in held.d.items()), max(held.d.values()) > 1

    def change():
        held.d["n"] = 0.5

    return trace(step), [*calls(7), change, *calls(4)], lambda: held.d


@cases(hits=3)
def a_dict_that_is_written_while_it_is_gone_through(trace):
    held = {"a": 1.0, "b": 2.0, "c": 3.0}

    def step(x):
        seen = []
        for _name, value in held.items():
            seen.append(value)
            held["c"] += x.sum().item()
        return seen

    return trace(step), calls(6), lambda: held


@cases(recordings=3)
def a_dict_that_grows_while_it_is_gone_through(trace):
    held = {"a": 1.0}

    def step(x, more):
        try:
            for _name in held.values():
                held["a"] = x.sum().item()
                if more:
                    held[f"{len(held)}"] = 1.0
        except RuntimeError as error:
            return str(error)
        return x * 2

    return (
        trace(step),
        [call(X(), False), call(X() * 2, False), call(X(), True), call(X(), False)],
        lambda: held,
    )


@cases(hits=3)
def sums_that_are_forgotten(trace):
    held = Holder(d={"a": 0.0, "b": 1.0})

    def step(x, reset=False):
        held.d["a"] += x.sum().item()
        shown = sorted(held.d.items()), sum(held.d.values())
        if reset:
            held.d.clear()
            held.d.update(a=0.0, b=x.max().item())
        return shown, list(held.d.values()), held.d.pop("b", None)

    def put_back():
        held.d["b"] = 2.5

    steps = [one for k in range(1, 8) for one in (call(X() * k), put_back)]
    return (
        trace(step),
        [*steps, call(X(), True), put_back, call(X() * 2, True), put_back, *steps],
        lambda: held.d,
    )


@cases(hits=3)
def a_dict_that_keeps_its_very_numbers(trace):
    held = Holder(d={"a": 1.5, "b": 1000001})
    first = held.d["b"]

    def step(x):
        return {name: value + 1 for name, value in held.d.items()}, x * held.d["a"]

    def change():
        held.d["a"] += 1

    def look():
        return held.d, held.d["b"] is first

    return trace(step), [one for k in range(1, 8) for one in (call(X() * k), change)], look


@cases(hits=3)
def numbers_and_what_is_none(trace):
    held = Holder(d={"a": 1.5, "t": X(), "s": "text", "n": None, "f": float("nan"), "b": True})

    def step(x):
        return [(name, value) for name, value in held.d.items()], x * 2

    def change(name, value):
        return lambda: held.d.update({name: value})

    changes = [
        ("a", 2.5),
        ("a", 3),
        ("a", None),
        ("s", "other"),
        ("b", False),
        ("f", 1.0),
        ("t", X() * 2),
        ("a", 1.5),
    ]
    steps = [one for change_of in changes for one in (change(*change_of), *calls(3))]
    return trace(step), [*calls(3), *steps], lambda: held.d


# ---------------------------------------------------------------- samples
@cases(hits=6)
def statistics_of_values(trace):
    def step(x):
        values = x.tolist()
        return statistics.mean(values), statistics.stdev(values), statistics.fmean(values), x

    return trace(step), calls(8)


@cases(hits=4)
def statistics_of_a_window(trace):
    window = collections.deque(maxlen=3)

    def step(x):
        window.append(x.sum().item())
        if len(window) < 2:
            return x
        return x * statistics.mean(window), statistics.median(window) > 2.0, f"{statistics.stdev(window):.3f}"

    return trace(step), [*calls(9), window.clear, *calls(4)], lambda: list(window)


@cases(hits=2)
def samples_of_other_kinds(trace):
    held = Holder(values=[1.0, 2.0, 4.0])

    def step(x):
        try:
            return statistics.mean(held.values), statistics.stdev(held.values), x
        except statistics.StatisticsError as error:
            return str(error), x

    changes = (
        [1, 2, 3],
        [1.0],
        [],
        [1.0, 2.0, float("nan")],
        [1e308, 1e308],
        (1.0, 2.0),
        [True, 2.5],
    )

    def change(values):
        return lambda: held.__dict__.update(values=values)

    return trace(step), [*calls(3), *(one for values in changes for one in (change(values), *calls(2)))]


@cases(hits=2)
def statistics_that_are_patched(trace):
    values = [1.0, 3.0]
    mean = statistics.mean

    def step(x):
        return x * statistics.mean(values)

    def patch():
        statistics.mean = lambda data: 100.0

    def restore():
        statistics.mean = mean

    return trace(step), [*calls(3), patch, *calls(3), restore, *calls(3)]


# ---------------------------------------------------------------- tables and files
@cases(hits=4)
def rows_of_a_table(trace):
    file = io.StringIO()
    writer = csv.writer(file)
    held = Holder(writer=writer)

    def step(x):
        held.writer.writerow(["loss", x.sum().item(), 1])
        held.writer.writerow(str(v) for v in (1, 2))
        return x * 2

    def change():
        held.writer = csv.writer(file, delimiter=";")

    return trace(step), [*calls(6), change, *calls(4)], file.getvalue


@cases(hits=3)
def rows_by_name(trace):
    file = io.StringIO()
    writer = csv.DictWriter(file, ["step", "loss"])

    def step(x):
        writer.writerow({"step": 1, "loss": x.sum().item()})
        return x * 2

    def change():
        writer.fieldnames = ["loss"]
        writer.extrasaction = "ignore"

    return trace(step), [*calls(5), change, *calls(4)], file.getvalue


class Loud(io.StringIO):
    def __init__(self, held):
        super().__init__()
        self.held = held

    def write(self, text):
        self.held.count += 1
        return super().write(text)


@cases(hits=1)
def a_file_that_changes_what_is_read(trace):
    held = Holder(count=0, out=io.StringIO(), writer=None)
    held.writer = csv.writer(held.out)

    def step(x):
        held.writer.writerow([x.sum().item()])
        return x * held.count

    def change():
        held.writer = csv.writer(Loud(held))

    def back():
        held.writer = csv.writer(held.out)

    return trace(step), [*calls(3), back, *calls(2)], lambda: (held.count, held.out.getvalue())


@cases(hits=4)
def documents(trace):
    file = io.StringIO()

    def step(x):
        json.dump({"loss": x.sum().item(), "of": [1, None, "a", (True, 2.5)]}, file)
        json.dump({"b": x.max().item(), "a": f"{x.sum().item():.1f}"}, file, indent=2, sort_keys=True)
        file.write("\n")
        return json.dumps({"loss": x.sum().item()}, indent=1), x

    return trace(step), calls(6), file.getvalue


SEPARATORS = [(",", ":"), [";", "="], (1, 2), ("a",), 5, "ab", ("a", None)]


@pytest.mark.parametrize("separators", SEPARATORS, ids=repr)
def test_separators_of_documents(separators):
    """What they raise, and what was written by then."""

    def make(trace):
        file = io.StringIO()

        def step(x):
            try:
                json.dump({"b": 1, "a": [2, {"c": 3}]}, file, separators=separators)
            except (TypeError, ValueError) as error:
                return str(error), x
            return x * 2

        return trace(step), calls(3), file.getvalue

    agree(make)


PATCHES = {
    "encode": lambda self, o: "another text",
    "iterencode": lambda self, o, _one_shot=False: [f"in one: {_one_shot}"],
}


@pytest.mark.parametrize("name", PATCHES)
def test_an_encoder_that_somebody_has_changed(name, monkeypatch):
    """`json.dump` asks it for parts of the text, and `json.dumps` for all of it."""

    def make(trace):
        monkeypatch.undo()
        file = io.StringIO()

        def step(x):
            json.dump({"loss": x.sum().item()}, file)
            return x * 2

        def change():
            monkeypatch.setattr(json.JSONEncoder, name, PATCHES[name])

        return trace(step), [*calls(3), change, *calls(3)], file.getvalue

    check(make, hits=2)


class Odd:
    """Nothing that JSON knows."""


@cases(hits=1)
def documents_that_cannot_be_written(trace):
    file = io.StringIO()
    held = Holder(value=1.0)

    def step(x):
        try:
            json.dump({"a": 1, "value": held.value}, file)
        except (TypeError, ValueError) as error:
            return str(error), x
        return x * 2

    def change(value):
        return lambda: held.__dict__.update(value=value)

    steps = [
        one
        for value in (Odd(), {1: 2}, {(1, 2): 3}, float("inf"), True)
        for one in (change(value), *calls(2))
    ]
    return trace(step), [*calls(3), *steps], file.getvalue


@cases(hits=4)
def packed_and_hashed(trace):
    held = Holder(name="layer.0", size=3)

    def step(x):
        size = struct.unpack("<i", struct.pack("<i", held.size))[0]
        digest = hashlib.sha256(held.name.encode())
        digest.update(b"more")
        return x * size, digest.hexdigest(), hashlib.md5(b"abc").hexdigest()

    def change():
        held.name, held.size = "layer.1", 4

    return trace(step), [*calls(3), change, *calls(4)]


@cases(hits=3)
def times_as_text(trace):
    def step(x):
        return f"{time.strftime('%Y-%m')} {x.sum().item():.1f}", time.strftime("at")

    return trace(step), calls(5)


@cases(eager="reads-unknown")
def warnings_that_are_ignored(trace):
    def step(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("careful", stacklevel=1)
        return x * 2, len(warnings.filters)

    def change():
        warnings.filterwarnings("ignore", message="nothing at all")

    return trace(step), [*calls(4), change, *calls(4)]


@cases(eager="reads")
def warnings_that_are_caught(trace):
    def step(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("careful", stacklevel=1)
        return x * 2, [str(one.message) for one in caught]

    return trace(step), calls(4)


# ---------------------------------------------------------------- phases
class Phase(enum.Enum):
    WARM = "warm"
    MAIN = "main"
    DONE = "done"


@cases(hits=4)
def phases_that_take_turns(trace):
    held = Holder(phase=Phase.WARM)

    def step(x):
        if held.phase is Phase.WARM:
            held.phase = Phase.MAIN
            return x * 2
        held.phase = Phase.WARM
        return x

    def finish():
        held.phase = Phase.DONE

    return trace(step), [*calls(8), finish, *calls(4)], lambda: held.phase


@cases.parametrize
def test_metrics_inside(make, expected):
    check(make, **expected)


@pytest.mark.parametrize("disable", [True, False])
def test_a_progress_bar(disable):
    """One of tqdm is told of each step, replayed or not."""
    tqdm = pytest.importorskip("tqdm", reason="tqdm is no dependency")

    def make(trace):
        file = io.StringIO()
        bar = tqdm.tqdm(total=50, disable=disable, file=file, mininterval=1000.0)

        def step(x):
            loss = x.sum().item()
            bar.set_postfix(loss=loss)
            bar.set_postfix({"loss": f"{loss:.3f}", "n": 1}, refresh=False)
            bar.set_description(f"loss {loss:.2f}")
            bar.update(1)
            return x * 2

        def shown():
            return bar.n, getattr(bar, "postfix", None), getattr(bar, "desc", None)

        return trace(step), [*calls(6), lambda: bar.reset(20), *calls(3)], shown

    check(make, hits=5)


@pytest.mark.parametrize("around_it", [around])
def test_a_bar_that_is_read(around_it):
    """What a bar holds is state: a step that reads it sees what it has become."""
    tqdm = pytest.importorskip("tqdm", reason="tqdm is no dependency")

    def make(trace):
        bar = tqdm.tqdm(total=50, file=io.StringIO())

        def step(x):
            bar.update(2)
            return x * bar.n

        return trace(step), around_it(lambda: bar.reset(20), X()), lambda: bar.n

    check(make, eager="reads")
