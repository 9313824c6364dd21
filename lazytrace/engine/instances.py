"""The caches of a traced method, one for each instance, for as long as the instance lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from lazytrace.engine.store import TraceCache
from lazytrace.locks import new_lock
from lazytrace.originals import BUILTINS

if TYPE_CHECKING:
    from lazytrace._core import Matcher

__builtins__ = BUILTINS

_Known = dict[int, tuple[weakref.ref[Any], TraceCache]]


def _forget(known: _Known, matcher: Matcher | None, instance: int, reference: weakref.ref[Any]) -> None:
    # Another object may have taken the place, and be known by now.
    if instance in known and known[instance][0] is reference:
        del known[instance]
        if matcher is not None:
            matcher.leave(instance)


class Instances:
    """Caches by instance. The entry of an instance goes with it; an instance need not be hashable.

    `matcher` is told of each instance, so that its hits need no Python.

    >>> class Net: ...
    >>> net, instances = Net(), Instances(lambda: TraceCache(8))
    >>> instances.cache_of(net) is instances.cache_of(net), len(instances.caches())
    (True, 1)
    >>> del net
    >>> len(instances.caches())
    0
    """

    def __init__(self, new_cache: Callable[[], TraceCache], matcher: Matcher | None = None) -> None:
        self._new_cache = new_cache
        self._matcher = matcher
        self._known: _Known = {}
        # Reentrant, as all locks here: a destructor that calls a traced function may run in the middle.
        self._lock = new_lock()

    def cache_of(self, instance: object) -> TraceCache | None:
        """The cache of an instance; None of what cannot be weakly referenced."""
        known = self._known.get(id(instance))
        if known is not None and known[0]() is instance:
            return known[1]
        try:
            forget = partial(_forget, self._known, self._matcher, id(instance))
            reference = ref(instance, forget)
        except TypeError:
            return None
        with self._lock:
            known = self._known.get(id(instance))
            return known[1] if known is not None and known[0]() is instance else self._enter(reference)

    def _enter(self, reference: weakref.ref[Any]) -> TraceCache:
        instance, cache = reference(), self._new_cache()
        self._known[id(instance)] = (reference, cache)
        if self._matcher is not None and cache.traces.native is not None:
            self._matcher.enter(instance, reference, cache.traces.native)
        return cache

    def caches(self) -> list[TraceCache]:
        """The caches of all instances that are alive."""
        return [cache for _, cache in list(self._known.values())]
