"""Threads: per-thread modes, one recording per signature, work handed to others, state in between."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


@cases
def pool_inside(trace):
    def fn(x):
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda k: x * k, [1, 2, 3]))

    return trace(fn), [call(X()), call(X()), call(X() + 1)]


@cases
def thread_that_writes(trace):
    def fn(x):
        y = x * 1
        thread = threading.Thread(target=lambda: y.add_(1))
        thread.start()
        thread.join()
        return y * 2

    return trace(fn), [call(X()), call(X()), call(X() + 1)]


@cases
def pool_of_state_that_writes(trace):
    pool = ThreadPoolExecutor(1)

    def fn(x):
        y = x * 1
        pool.submit(y.add_, 1).result()
        return y * 2

    return trace(fn), [call(X()), call(X()), call(X() + 1)]


@cases
def called_from_threads(trace):
    fn = trace(lambda x: x * 2 + 1)

    def use(x):
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(fn, [x + i for i in range(6)]))

    return use, [call(X())] * 3


@cases
def modes_are_per_thread(trace):
    fn = trace(lambda x: x * 2)

    def in_thread(x):
        with torch.no_grad():
            return fn(x).requires_grad

    def use(x):
        with ThreadPoolExecutor(1) as pool:
            inside = [pool.submit(in_thread, x).result() for _ in range(2)]
        return inside, fn(x).requires_grad

    return use, [call(X(grad=True))] * 3


@cases.parametrize
def test_threads(make, expected):
    check(make, **expected)


def test_one_recording_under_a_stampede():
    runs, gate = [], threading.Barrier(6)

    def body(x):
        return x * 2

    fn = lazytrace.traced(body)

    def go():
        gate.wait()
        for _ in range(20):
            runs.append(torch.equal(fn(X()), X() * 2))

    threads = [threading.Thread(target=go) for _ in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    stats = fn.stats()
    assert all(runs)
    assert len(runs) == 120 == stats.calls
    assert stats.recordings == 1


def test_state_that_changes_in_another_thread_is_seen():
    state = {"k": 1.0}
    fn = lazytrace.traced(lambda x: x * state["k"])
    x = torch.ones(1)
    for k in (1.0, 2.0, 3.0):
        thread = threading.Thread(target=state.update, kwargs={"k": k})
        thread.start()
        thread.join()
        assert [fn(x).item(), fn(x).item()] == [k, k]


def test_recording_in_one_thread_does_not_record_another():
    entered, leave = threading.Event(), threading.Event()
    results = []

    def slow(x):
        y = x * 2
        entered.set()
        leave.wait(5)
        return y + 1

    fn = lazytrace.traced(slow)
    thread = threading.Thread(target=lambda: results.append(fn(X())))
    thread.start()
    entered.wait(5)
    assert not lazytrace.is_tracing()
    other = X() * 5 + 1
    leave.set()
    thread.join()
    assert torch.equal(results[0], X() * 2 + 1)
    assert torch.equal(fn(X()), X() * 2 + 1)
    assert torch.equal(other, X() * 5 + 1)


def test_an_older_trace_function_goes_on():
    lines = []

    def tracer(frame, event, arg):
        lines.append(event)
        return tracer

    fn = lazytrace.traced(lambda x: x * 2)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        first = fn(X())
        assert sys.gettrace() is tracer
        second = fn(X())
    finally:
        sys.settrace(before)
    assert torch.equal(first, second)
    assert "line" in lines


def test_a_profiler_goes_on():
    events = []
    fn = lazytrace.traced(lambda x: x * 2)
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: events.append(event))
    try:
        fn(X())
        fn(X())
        profiler = sys.getprofile()
    finally:
        sys.setprofile(before)
    assert profiler is not before
    assert events


def test_settrace_inside_the_function():
    def fn(x):
        sys.settrace(None)
        return x * 2

    traced = lazytrace.traced(fn)
    before = sys.gettrace()
    try:
        assert all(torch.equal(traced(X()), X() * 2) for _ in range(3))
    finally:
        sys.settrace(before)
    assert traced.stats().hits == 0
