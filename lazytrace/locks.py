"""Locks that a forked process finds free.

A child has the one thread that forked: what another thread held would stay held, with what it guards half
written. As `logging` does, a fork waits until it holds all locks itself, and both processes let go of them.
"""

from __future__ import annotations

import os
import threading
import weakref
from threading import RLock
from time import monotonic
from weakref import ref

from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

# So many seconds a fork waits: whoever holds a lock may wait for what the forking thread holds.
_PATIENCE = 1.0
# And so many for one lock before it lets go of those that it has, which the holder may wait for.
_AT_ONCE = 0.01

_LOCKS: dict[int, weakref.ref[threading.RLock]] = {}


def new_lock() -> threading.RLock:
    """A lock of a thread, which may take it again: a destructor may run while the thread holds it.

    >>> with (lock := new_lock()), lock:
    ...     pass
    """
    lock = RLock()
    key = id(lock)
    _LOCKS[key] = ref(lock, lambda _: _LOCKS.pop(key, None))
    return lock


class _Fork:
    """What the thread that forks holds meanwhile."""

    def __init__(self) -> None:
        self._one_at_a_time = RLock()
        self._held: list[threading.RLock] = []
        self._left: list[threading.RLock] = []

    def begin(self) -> None:
        """Take all locks, or none for long: the order in which others take them is theirs."""
        self._one_at_a_time.acquire()
        locks = [lock for known in list(_LOCKS.values()) if (lock := known()) is not None]
        until = monotonic() + _PATIENCE
        while (busy := self._take(locks)) and monotonic() < until:
            self._let_go()
            if busy[0].acquire(timeout=_AT_ONCE):
                busy[0].release()
        self._left = busy

    def end_in_parent(self) -> None:
        """Everything as it was."""
        self._let_go()
        self._left = []
        self._one_at_a_time.release()

    def end_in_child(self) -> None:
        """The same; what nobody can give back any more is free."""
        for lock in self._left:
            lock._at_fork_reinit()  # type: ignore[attr-defined]
        self.end_in_parent()

    def _take(self, locks: list[threading.RLock]) -> list[threading.RLock]:
        busy: list[threading.RLock] = []
        for lock in locks:
            (self._held if lock.acquire(blocking=False) else busy).append(lock)
        return busy

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().release()


def _watch_forks() -> None:
    fork = _Fork()
    os.register_at_fork(
        before=fork.begin, after_in_parent=fork.end_in_parent, after_in_child=fork.end_in_child
    )


if hasattr(os, "register_at_fork"):  # Windows has no forks
    _watch_forks()
