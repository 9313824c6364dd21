"""Processes that fork while other threads call, record, or hold a lock: the child, of one thread, goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import lazytrace
from lazytrace import locks
from lazytrace.engine.store import Claims

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork()")
_HANGS_AFTER = 60


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a forked process, which ends where it hangs."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_HANGS_AFTER)
        ok = False
        with contextlib.suppress(BaseException):
            ok = work()
        os._exit(0 if ok else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextlib.contextmanager
def another_thread(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Runs `work` in a thread, which says when it has begun, for as long as the block takes."""
    begun = threading.Event()
    thread = threading.Thread(target=work, args=(begun,))
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        thread.join()


def test_a_lock_that_a_thread_is_about_to_release():
    lock, written = locks.new_lock(), []

    def work(begun):
        with lock:
            written.append(1)
            begun.set()
            threading.Event().wait(0.2)
            written.append(2)

    with another_thread(work):
        assert in_child(lambda: lock.acquire(timeout=1) and written == [1, 2])
    assert lock.acquire(timeout=1)


def test_a_lock_whose_holder_waits_for_the_thread_that_forks(monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 0.05)
    lock, ended = locks.new_lock(), threading.Event()

    def work(begun):
        with lock:
            begun.set()
            ended.wait()

    with another_thread(work):
        try:
            assert in_child(lambda: lock.acquire(timeout=1))
        finally:
            ended.set()
    assert lock.acquire(timeout=1)


def test_a_thread_that_forks_while_it_holds_a_lock():
    lock = locks.new_lock()
    with lock:
        pid = os.fork()
    if not pid:
        os._exit(0 if lock.acquire(timeout=1) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert lock.acquire(timeout=1)


def test_threads_that_fork_at_once():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(in_child(lambda: locks.new_lock().acquire(timeout=1))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6


def test_locks_that_are_gone_are_forgotten():
    before = len(locks._LOCKS)
    made = [locks.new_lock() for _ in range(5)]
    assert len(locks._LOCKS) == before + 5
    made.clear()
    assert len(locks._LOCKS) == before


def test_a_recording_of_another_thread_does_not_go_on_in_the_child():
    begun_inside, ended = threading.Event(), threading.Event()
    blocks = [True]

    def plain(x):
        if blocks[0]:
            blocks[0] = False
            begun_inside.set()
            ended.wait()
        return x * 2

    function = lazytrace.traced(plain)

    def work(begun):
        threading.Thread(target=lambda: (begun_inside.wait(), begun.set())).start()
        function(torch.ones(3))

    def goes_on():
        same = [torch.equal(function(torch.ones(3)), torch.full((3,), 2.0)) for _ in range(3)]
        return all(same) and function.stats().hits >= 1

    with another_thread(work):
        try:
            assert in_child(goes_on)
        finally:
            ended.set()


def test_claims_of_the_parent():
    claims = Claims()
    assert claims.begin(b"key")
    assert in_child(lambda: b"key" not in claims and len(claims) == 0 and claims.begin(b"key"))
    assert len(claims) == 1
    claims.end(b"key")
    assert b"key" not in claims


def test_children_of_a_process_whose_threads_record():
    def plain(x, k):
        y = x * k
        return y.cumsum(0) - x.shape[0] if y.sum() > 3 else y

    function, done = lazytrace.traced(plain), threading.Event()

    def works(turn):
        x = torch.arange(3.0 * (turn % 7)).reshape(-1, 3)
        return torch.equal(function(x, turn % 4), plain(x, turn % 4))

    def work():
        turn = 0
        while not done.is_set():
            turn += 1
            assert works(turn)
            if turn % 5 == 0:
                function.cache_clear()
            lazytrace.traced(plain)(torch.ones(1, 3), 2)

    # What torch makes at its first calls, it makes under locks that a child finds as they were.
    assert all(map(works, range(30)))
    threads = [threading.Thread(target=work) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        assert [in_child(lambda: all(map(works, range(20)))) for _ in range(30)] == [True] * 30
    finally:
        done.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
