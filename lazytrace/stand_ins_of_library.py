"""Python code that stands for that of Python's library in a recording, watched as the user's is."""

from __future__ import annotations

import heapq
import io
from typing import Any, Final

from lazytrace._native import core
from lazytrace.library import REPLACE, fields_of

_HEAPPUSH: Final = heapq.heappush
_HEAPPOP: Final = heapq.heappop


def replace(function: Any, record: Any, /, **changes: Any) -> Any:
    """`_replace` of a named tuple, which pops what has changed out of a dict in C."""
    if not issubclass(type(record), tuple):
        return function(record, **changes)
    fields = record._fields
    known = fields_of(function)
    if fields != known or any(name not in known for name in changes):
        return function(record, **changes)
    values = []
    for place, name in enumerate(fields):
        values.append(changes[name] if name in changes else record[place])
    return record._make(values)


def write(file: Any, text: Any, /) -> Any:
    """`write` of a text file, whose result nobody asks for."""
    if not isinstance(text, str):
        return file.write(text)
    print(text, end="", file=file)
    return None


def flush(file: Any, /) -> Any:
    """`flush` of a text file."""
    if not isinstance(file, io.TextIOBase):
        return file.flush()
    print(end="", file=file, flush=True)
    return None


def maker_of_text(kind: Any) -> Any:
    """The method that `str()` calls for an instance of a class."""
    make = kind.__str__
    return kind.__repr__ if make is object.__str__ else make


def text_of(value: Any) -> Any:
    """`str(value)` where the class has a method of Python for it."""
    made: Any = maker_of_text(type(value))(value)
    if not isinstance(made, str):  # as Python says it, of a __repr__, too
        raise TypeError(f"__str__ returned non-string (type {type(made).__name__})")
    return made


def heappush(heap: Any, item: Any, /) -> None:
    """`heapq.heappush`."""
    if type(heap) is not list:
        return _HEAPPUSH(heap, item)
    heap.append(item)
    _sift_down(heap, len(heap) - 1)
    return None


def heappop(heap: Any, /) -> Any:
    """`heapq.heappop`."""
    if type(heap) is not list or not heap:
        return _HEAPPOP(heap)
    last = heap.pop()
    if len(heap) == 0:
        return last
    first = heap[0]
    heap[0] = last
    _sift_up(heap)
    return first


# As the library has these two in C (Modules/_heapqmodule.c): unlike its Python code, that one swaps, so the
# heap has lost nothing when a comparison raises, or looks at it.
def _sift_down(heap: list[Any], place: int) -> None:
    size = len(heap)
    while place > 0:
        parent = (place - 1) >> 1
        fits = not heap[place] < heap[parent]
        if len(heap) != size:
            raise RuntimeError("list changed size during iteration")
        if fits:
            break
        above = heap[parent]
        heap[parent] = heap[place]
        heap[place] = above
        place = parent


def _sift_up(heap: list[Any]) -> None:
    size, place = len(heap), 0
    while place < size >> 1:
        child = 2 * place + 1
        if child + 1 < size:
            if not heap[child] < heap[child + 1]:
                child += 1
            if len(heap) != size:
                raise RuntimeError("list changed size during iteration")
        below = heap[child]
        heap[child] = heap[place]
        heap[place] = below
        place = child
    _sift_down(heap, place)


# The loops of these alone hold the generator: it ends as soon as one is left by an exception, as in C code.
def add_up(items: Any) -> Any:
    """`sum` of what a generator gives."""
    total: Any = 0
    for item in items:
        items = None
        total = total + item
    return total


def largest(items: Any) -> Any:
    """`max` of what a generator gives, two by two."""
    best, found = None, False
    for item in items:
        items = None
        best, found = (max(best, item) if found else item), True
    return best if found else max(())


def smallest(items: Any) -> Any:
    """`min` of what a generator gives."""
    best, found = None, False
    for item in items:
        items = None
        best, found = (min(best, item) if found else item), True
    return best if found else min(())


def configure() -> None:
    """Tell the core of all this, once."""
    functions: dict[Any, Any] = {_HEAPPUSH: heappush, _HEAPPOP: heappop}
    dropped: dict[Any, Any] = {
        io.TextIOWrapper.write: write,
        io.StringIO.write: write,
        io.TextIOWrapper.flush: flush,
        io.StringIO.flush: flush,
    }
    of_generators: dict[Any, Any] = {sum: add_up, max: largest, min: smallest}
    core.configure_stand_ins(functions, dropped, {REPLACE.__code__: replace}, text_of, of_generators)
