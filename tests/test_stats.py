"""Counters add up under any threads, snapshots are bounded, the registry keeps nothing alive."""

from __future__ import annotations

import functools
import gc
import json
import pickle
import threading
import weakref
from dataclasses import replace

import pytest
import torch

from lazytrace import traced
from lazytrace.stats import Counters, Reason, Retrace, Snapshot, register, report, report_at_exit, stats
from tests.processes import python


class Owner:
    def __init__(self, name: str) -> None:
        self.name = name
        self.counters = Counters()

    def stats(self) -> Snapshot:
        return self.counters.snapshot(self.name, 0, 64)


def names(prefix: str) -> list[str]:
    return [snapshot.name for snapshot in stats() if snapshot.name.startswith(prefix)]


@pytest.fixture
def reporting():
    report_at_exit()
    yield
    report_at_exit(False)


def test_nothing_counted():
    assert Counters().snapshot("step", 0, 64) == Snapshot("step", cache_limit=64)


def test_every_event():
    counters = Counters()
    counters.recorded(0.5, 35, ("first call",), retrace=False)
    counters.recorded(0.25, 7, ("x.shape[0] 64 -> 13",), retrace=True)
    counters.hit()
    counters.hit()
    counters.eager("calls x.tolist()", "train.py:41", seconds=0.25)
    counters.eager("disabled")
    counters.inlined()
    counters.evicted(2)
    counters.proof_failed()
    counters.wanted(4)
    counters.wanted(3)
    snapshot = counters.snapshot("step", 1, 2, "(x, w)")
    assert snapshot == Snapshot(
        name="step",
        hits=2,
        recordings=2,
        retraces=1,
        evictions=2,
        inlined=1,
        eager={"calls x.tolist() (train.py:41)": 1, "disabled": 1},
        proof_failures=1,
        seconds_recording=1.0,
        operators=(35, 7),
        retrace_reasons=(Retrace("x.shape[0] 64 -> 13", 1, 0.25),),
        cache_size=1,
        cache_limit=2,
        limit_enough=4,
        parameters="(x, w)",
        eager_seconds={"calls x.tolist() (train.py:41)": 0.25, "disabled": 0.0},
    )
    assert (snapshot.calls, snapshot.eager_calls) == (7, 2)


def test_reading_does_not_count():
    counters = Counters()
    for hits in range(5):
        assert [counters.snapshot("step", 0, 64).hits for _ in range(3)] == [hits] * 3
        counters.hit()


def test_a_snapshot_does_not_change():
    counters = Counters()
    counters.eager("disabled")
    before = counters.snapshot("step", 0, 64)
    counters.eager("disabled")
    counters.hit()
    assert (before.calls, before.eager) == (1, {"disabled": 1})


def test_equal_retrace_reasons_merge_and_the_newest_is_last():
    counters = Counters()
    for text in ("a 1 -> 2", "b 1 -> 2", "a 1 -> 2"):
        counters.recorded(0.5, 1, (text,), retrace=True)
    assert counters.snapshot("step", 1, 64).retrace_reasons == (
        Retrace("b 1 -> 2", 1, 0.5),
        Retrace("a 1 -> 2", 2, 1.0),
    )


def test_several_differences_are_one_reason():
    counters = Counters()
    counters.recorded(0.5, 1, ("a 1 -> 2", "b 1 -> 2"), retrace=True)
    counters.recorded(0.5, 1, (), retrace=True)
    assert [reason.text for reason in counters.snapshot("step", 1, 64).retrace_reasons] == [
        "a 1 -> 2; b 1 -> 2",
        "no difference found (a bug of lazytrace: please report it)",
    ]


def test_what_is_kept_is_bounded_and_the_rest_counted():
    counters = Counters()
    for number in range(1200):
        counters.recorded(0.0, number, (f"x 0 -> {number}",), retrace=True)
        counters.eager(f"reason {number}")
    snapshot = counters.snapshot("step", 1, 64)
    assert snapshot.operators == tuple(range(200, 1200))
    assert [reason.text for reason in snapshot.retrace_reasons] == [f"x 0 -> {n}" for n in range(1000, 1200)]
    assert snapshot.retrace_reasons_dropped == 1000
    assert len(snapshot.eager) == 201
    assert snapshot.eager["other reasons, past the first 200"] == 1000
    assert snapshot.calls == 2400


@pytest.mark.parametrize(
    ("wanted", "evictions", "enough"),
    [(0, 0, None), (4, 0, None), (5, 0, 5), (7, 3, 7), (0, 3, 5), (4, 1, 5)],
)
def test_limit_that_would_have_been_enough(wanted, evictions, enough):
    counters = Counters()
    counters.wanted(wanted)
    counters.evicted(evictions)
    assert counters.snapshot("step", 4, 4).limit_enough == enough


def test_as_dict_is_json_and_a_snapshot_pickles():
    snapshot = Snapshot(
        "step",
        hits=3,
        recordings=1,
        eager={"disabled": 2},
        operators=(35,),
        retrace_reasons=(Retrace("x 1 -> 2", 1, 0.5),),
    )
    plain = snapshot.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["calls"], plain["eager_calls"], plain["operators"]) == (6, 2, [35])
    assert plain["retrace_reasons"] == [
        {"text": "x 1 -> 2", "count": 1, "seconds": 0.5, "paths": [], "where": ""}
    ]
    assert Snapshot.from_dict(plain) == snapshot
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


def test_calls_add_up_with_threads():
    counters, threads, rounds = Counters(), 8, 500
    barrier, seen = threading.Barrier(threads), []

    def work() -> None:
        barrier.wait()
        for number in range(rounds):
            for _ in range(4):
                counters.hit()
            counters.recorded(0.5, number, ("x 1 -> 2",), retrace=number > 0)
            counters.eager("disabled")
            counters.inlined()
            counters.evicted()
            if number % 50 == 0:
                seen.append(counters.snapshot("step", 0, 64).calls)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    every = threads * rounds
    snapshot = counters.snapshot("step", 0, 64)
    assert (snapshot.hits, snapshot.recordings, snapshot.eager_calls) == (4 * every, every, every)
    assert (snapshot.inlined, snapshot.evictions, snapshot.calls) == (every, every, 7 * every)
    assert snapshot.seconds_recording == every / 2
    assert sum(r.count for r in snapshot.retrace_reasons) == snapshot.retraces == every - threads
    assert max(seen) <= snapshot.calls


def test_registered_owners_are_listed_in_order():
    owners = [Owner(f"order-{number}") for number in range(5)]
    for owner in owners:
        register(owner)
    assert names("order-") == [owner.name for owner in owners]


def test_a_dead_owner_is_gone():
    owner = Owner("dead-1")
    register(owner, functools.partial(owner.counters.snapshot, "dead-1", 0, 64))
    owner_reference, counters_reference = weakref.ref(owner), weakref.ref(owner.counters)
    del owner
    gc.collect()
    assert owner_reference() is None
    assert names("dead-") == []  # nobody called it
    assert counters_reference() is None


def test_a_dead_owner_is_kept_for_the_report_in_its_place(reporting):
    first, second, third = Owner("kept-1"), Owner("kept-2"), Owner("kept-3")
    register(first)
    register(second, functools.partial(second.counters.snapshot, "kept-2", 0, 64))
    register(third)
    second.counters.hit()
    reference = weakref.ref(second)
    del second
    gc.collect()
    assert reference() is None
    assert names("kept-") == ["kept-1", "kept-2", "kept-3"]
    assert "kept-2" in report()
    report_at_exit(False)
    assert names("kept-") == ["kept-1", "kept-2", "kept-3"]


def counted_at(counters, source):
    return replace(counters.snapshot("loop-1", 0, 64), source=source)


def test_dead_owners_of_one_name_and_line_are_told_of_together():
    def called(times: int) -> None:
        owner = Owner("loop-1")
        register(owner, functools.partial(counted_at, owner.counters, "train.py:3"), "train.py:3")
        for _ in range(times):
            owner.counters.recorded(0.5, 3, (Reason("k", "1", "2", "value"),), retrace=True)

    for times in (3, 0, 4):
        called(times)
    other = Owner("loop-2")
    register(other)
    found = [snapshot for snapshot in stats() if snapshot.name == "loop-1"]
    assert [(s.recordings, s.seconds_recording, s.made) for s in found] == [(7, 3.5, 3)]
    assert found[0].operators == (3,) * 7
    assert [(r.text, r.count) for r in found[0].retrace_reasons] == [("k 1 -> 2", 7)]
    assert names("loop-") == ["loop-1", "loop-2"]  # in the place of the first


def test_functions_of_a_main_that_returned_are_reported_and_hold_nothing():
    class Big:
        pass

    held = []

    def main():
        big, weight = Big(), torch.ones(3)
        held.extend([weakref.ref(big), weakref.ref(weight)])

        @traced
        def step_of_main(x):
            return x * weight if big else x

        for _ in range(3):
            step_of_main(torch.ones(3))
        held.append(weakref.ref(step_of_main.program(torch.ones(3))))

    main()
    assert [reference() for reference in held] == [None] * 3
    lines = [line for line in report().splitlines() if line.startswith("step_of_main ")]
    assert [line.split()[1:4] for line in lines] == [["3", "2", "1"]]


def test_only_what_can_be_referenced_weakly_registers():
    with pytest.raises(TypeError, match="weak reference"):
        register(3)


def test_owners_may_die_in_other_threads_while_the_registry_is_read():
    stop, failures = threading.Event(), []

    def churn() -> None:
        try:
            while not stop.is_set():
                register(Owner("churn"))
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=churn) for _ in range(4)]
    for worker in workers:
        worker.start()
    for _ in range(50):
        stats()
    stop.set()
    for worker in workers:
        worker.join()
    gc.collect()
    assert failures == []
    assert names("churn") == []


PROGRAM = """
import atexit
registered, register_at_exit = [], atexit.register
atexit.register = lambda function, *a, **k: registered.append(function) or register_at_exit(function, *a, **k)
from lazytrace.stats import Counters, register, report_at_exit

class Owner:
    def __init__(self):
        self.counters = Counters()
    def stats(self):
        return self.counters.snapshot("step", 0, 64)

owner = Owner()
register(owner)
print([f for f in registered if (f.__module__ or "").startswith("lazytrace")])
"""


def printed_at_exit(program: str) -> str:
    done = python("-c", PROGRAM + program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
    assert "Traceback" not in done.stderr
    return "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith("lazytrace:"))


def test_importing_registers_nothing_at_exit():
    assert printed_at_exit("owner.counters.hit()") == ""


def test_report_at_exit_prints_to_stderr_once():
    assert printed_at_exit("report_at_exit(); report_at_exit(); owner.counters.hit()") == (
        "lazytrace: 1 function, 1 call: 1 hit (100.0 %), 0 recordings (0 retraces, 0.0 ms), "
        "0 eager, 0 inlined\n"
    )


def test_report_at_exit_can_be_taken_back():
    assert printed_at_exit("report_at_exit(); report_at_exit(False); owner.counters.hit()") == ""


def test_report_at_exit_says_nothing_where_nothing_was_called():
    assert printed_at_exit("report_at_exit()") == ""


def test_report_at_exit_without_stderr():
    assert printed_at_exit("import sys; report_at_exit(); owner.counters.hit(); sys.stderr = None") == ""
