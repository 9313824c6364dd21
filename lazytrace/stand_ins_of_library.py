"""Python code that stands for that of Python's library in a recording, watched as the user's is."""

from __future__ import annotations

import bisect
import collections
import copy
import csv
import functools
import heapq
import io
import itertools
import json
import operator
import sys
import time
from types import FunctionType, GeneratorType
from typing import Any, Final

import torch

from lazytrace._native import core
from lazytrace._torch import check_capture
from lazytrace.asked import OF_SAMPLES, sampler
from lazytrace.library import (
    REPLACE,
    arguments_of,
    call_quietly,
    call_with_dict,
    call_with_row,
    can_be_cloned,
    candidates,
    fields_of,
    is_original,
    mend_clones,
    method_of,
    names_of_class,
    options_of,
    parts_of,
    share_clones,
)
from lazytrace.library_calls import (
    begin_entry,
    class_names,
    has_plain_hash,
    is_plain_text,
    keep_entry,
    may_clone,
    retain,
    stay_clones,
    tell,
    time_as_text,
    work_out,
)
from lazytrace.stand_ins import check_no_capture
from lazytrace.stand_ins_of_draws import rows as rows_of_draws
from lazytrace.stand_ins_of_seeds import rows as rows_of_seeds

_DIR: Final = dir
_NAMES_OF_CLASS: Final[Any] = type.__dir__
_NAMES_OF_OBJECT: Final[Any] = object.__dir__
_HEAPPUSH: Final = heapq.heappush
_HEAPPOP: Final = heapq.heappop
_HEAPIFY: Final = heapq.heapify
_HEAPREPLACE: Final = heapq.heapreplace
_HEAPPUSHPOP: Final = heapq.heappushpop
_INSORT: Final = bisect.insort_right
_INSORT_LEFT: Final = bisect.insort_left
_BISECT: Final = bisect.bisect_right
_BISECT_LEFT: Final = bisect.bisect_left
_COUNT: Final[Any] = collections._count_elements  # type: ignore[attr-defined]
_REDUCE: Final = functools.reduce
_DUMP: Final = json.dump
_DUMPS: Final = json.dumps
_ENCODER: Final = json.JSONEncoder
_ENCODE: Final = json.JSONEncoder.encode
_ITERENCODE: Final = json.JSONEncoder.iterencode
_DEEPCOPY: Final = copy.deepcopy
_STRFTIME: Final = time.strftime
_COPY_TENSOR: Final[Any] = torch.Tensor.__deepcopy__
_RETAIN: Final[Any] = torch.Tensor.retain_grad
_EMPTY_LIKE: Final[Any] = torch.empty_like
_GET_ITEM: Final[Any] = torch.Tensor.__getitem__
_SET_ITEM: Final[Any] = torch.Tensor.__setitem__
_ENTRIES: Final[Any] = tuple.__iter__
_ENTRY: Final[Any] = tuple.__getitem__
_OF_BARS: Final = (
    "close", "clear", "refresh", "reset", "set_description", "set_description_str", "set_postfix",
    "set_postfix_str", "unpause", "update",
)  # fmt: skip
_DISPATCHING: Final[Any] = functools.singledispatch(len)
_ASKS: Final[Any] = type.__subclasscheck__


class _Memo(dict[Any, Any]):
    """The memo of a copy, which holds what is expected of one: whoever is given it may look into it."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.clones: list[torch.Tensor] = []
        self.clones_tensors = True

    def setdefault(self, key: Any, default: Any = None, /) -> Any:
        # There, what copies memory looks for what was copied of it: a storage beside tensors of its memory.
        if key == "torch" and self.clones_tensors:
            self.clones_tensors = False
            share_clones(self.tensors, self.clones, self)
        return dict.setdefault(self, key, default)


_Memo.__name__ = "dict"  # as errors call what it stands for


def replace(function: Any, record: Any, /, **changes: Any) -> Any:
    """`_replace` of a named tuple, which pops what has changed out of a dict in C."""
    cls: Any = type(record)
    if not issubclass(cls, tuple) or cls.__iter__ is not _ENTRIES or cls.__getitem__ is not _ENTRY:
        return function(record, **changes)
    fields = record._fields
    known = fields_of(function)
    if fields != known or any(name not in known for name in changes):
        return function(record, **changes)
    values = []
    for place, name in enumerate(fields):
        values.append(changes[name] if name in changes else record[place])
    return record._make(values)


def _is_plain_file(file: Any) -> bool:
    """Whether no code of the user's is told of each piece that is written to a text file."""
    cls: Any = type(file)
    if not issubclass(cls, io.TextIOBase):
        return False
    if any(name in file.__dict__ for name in _NAMES_OF_FILES):
        return False
    if cls.write is _WRITE_IN_MEMORY:
        return True
    if cls.write is not _WRITE:
        return False
    below = file.buffer
    if type(below) is io.BufferedWriter or type(below) is io.BufferedRandom:
        below = below.raw
    return type(below) is io.FileIO or type(below) is io.BytesIO


def write(file: Any, text: Any, /) -> Any:
    """`write` of a text file, whose result nobody asks for."""
    # print() would write what its class says, and what stands behind it, too.
    if not is_plain_text(text) or not isinstance(text, str) or not _is_plain_file(file):
        return file.write(text)
    print(text, end="", file=file)
    return None


def flush(file: Any, /) -> Any:
    """`flush` of a text file."""
    if not _is_plain_file(file):  # print() writes a text of nothing, too
        return file.flush()
    print(end="", file=file, flush=True)
    return None


_NAMES_OF_FILES: Final = ("write", "flush")
_WRITE: Final = io.TextIOWrapper.write
_WRITE_IN_MEMORY: Final = io.StringIO.write
_DEEPEST: Final = 20
_OPTIONS_OF_DUMP: Final = ("indent", "sort_keys", "separators")


def dump(value: Any, file: Any, /, **options: Any) -> None:
    """`json.dump` of plain values to a text file, which raises for none of them."""
    plain = type(file) is io.TextIOWrapper or type(file) is io.StringIO
    for name in options:
        plain = plain and name in _OPTIONS_OF_DUMP and _is_plain_option(options[name])
    # `json.dumps` asks it for the whole text, which `json.dump` does not.
    encoder: Any = type(json._default_encoder)  # type: ignore[attr-defined]
    plain = plain and json.JSONEncoder is _ENCODER and encoder is _ENCODER
    plain = plain and _ENCODER.encode is _ENCODE and _ENCODER.iterencode is _ITERENCODE
    # Text by text, of which nobody is told.
    if not plain or not _is_plain_json(value, 0) or not _is_plain_file(file):
        return _DUMP(value, file, **options)
    write(file, _DUMPS(value, **options))
    return None


def _is_plain_option(option: Any) -> bool:
    """Whether it raises nothing: where it does, parts of the text may have been written by then."""
    if type(option) is tuple or type(option) is list:
        return len(option) == 2 and all(type(one) is str for one in option)
    return option is None or type(option) in (bool, int, str)


def _is_plain_json(value: Any, depth: int) -> bool:
    if depth > _DEEPEST:
        return False
    if isinstance(value, str):  # the type of a text that is followed would be the type of what it says
        return True
    if type(value) is dict:
        return all(type(key) is str and _is_plain_json(value[key], depth + 1) for key in value)
    if type(value) is list or type(value) is tuple:
        return all(_is_plain_json(item, depth + 1) for item in value)
    return value is None or type(value) in (bool, int, float)


def write_row(writer: Any, row: Any, /) -> None:
    """`writerow` of a csv writer, whose result nobody asks for."""
    if type(row) is GeneratorType:
        row = [*row]
    if type(row) is list or type(row) is tuple:
        return tell(call_with_row, writer, "writerow", (*row,), {})
    return writer.writerow(row)  # type: ignore[no-any-return]


def write_named_row(writer: Any, row: Any, /) -> None:
    """`csv.DictWriter.writerow`."""
    return write_row(writer.writer, writer._dict_to_list(row))


def strftime(form: Any, /) -> Any:
    """`time.strftime` of now."""
    return time_as_text(_STRFTIME, form)


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


def list_names(value: Any, /) -> Any:
    """`dir(value)`."""
    cls: Any = type(value)
    listing: Any = cls.__dir__
    if listing is _NAMES_OF_CLASS:
        return sorted(class_names(names_of_class, value))  # named here, so that a replay finds it
    if listing is _NAMES_OF_OBJECT and value.__class__ is cls and hasattr(value, "__dict__"):
        return sorted(dict.fromkeys([*vars(value), *class_names(names_of_class, cls)]))
    if type(listing) is FunctionType:
        return sorted(listing(value))
    return _DIR(value)


def heappush(heap: Any, item: Any, /) -> None:
    """`heapq.heappush`."""
    if type(heap) is not list:
        return _HEAPPUSH(heap, item)
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)
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
    _sift_up(heap, 0)
    return first


def heapreplace(heap: Any, item: Any, /) -> Any:
    """`heapq.heapreplace`."""
    if type(heap) is not list or not heap:
        return _HEAPREPLACE(heap, item)
    first = heap[0]
    heap[0] = item
    _sift_up(heap, 0)
    return first


def heappushpop(heap: Any, item: Any, /) -> Any:
    """`heapq.heappushpop`."""
    if type(heap) is not list:
        return _HEAPPUSHPOP(heap, item)
    if not heap or not heap[0] < item:
        return item
    if not heap:  # what compares may take all of it
        raise IndexError("index out of range")
    first = heap[0]
    heap[0] = item
    _sift_up(heap, 0)
    return first


def heapify(heap: Any, /) -> None:
    """`heapq.heapify` of a heap that C code takes in this order."""
    if type(heap) is not list or len(heap) > _LARGE_HEAP:
        return _HEAPIFY(heap)
    for place in reversed(range(len(heap) >> 1)):
        _sift_up(heap, place)
    return None


def insort_right(items: Any, item: Any, /) -> None:
    """`bisect.insort_right` of a list."""
    if type(items) is not list:
        return _INSORT(items, item)
    return items.insert(_BISECT(items, item), item)


def insort_left(items: Any, item: Any, /) -> None:
    """`bisect.insort_left` of a list."""
    if type(items) is not list:
        return _INSORT_LEFT(items, item)
    return items.insert(_BISECT_LEFT(items, item), item)


def count_elements(counts: Any, elements: Any, /) -> None:
    """What `collections.Counter` calls to count."""
    if type(counts) is not collections.Counter or type(counts).__setitem__ is not dict.__setitem__:
        return _COUNT(counts, elements)  # type: ignore[no-any-return]
    if type(counts).get is not dict.get:
        return _COUNT(counts, elements)  # type: ignore[no-any-return]
    left = iter(elements)
    for element in left:
        if not has_plain_hash(element):  # C code works it out once
            return _COUNT(counts, itertools.chain((element,), left))  # type: ignore[no-any-return]
        counts[element] = dict.get(counts, element, 0) + 1
    return None


_LARGE_HEAP: Final = 2500  # C code goes through larger ones in another order


# As the library has these two in C (Modules/_heapqmodule.c): unlike its Python code, that one swaps, so the
# heap has lost nothing when a comparison raises, or looks at it.
def _sift_down(heap: list[Any], start: int, place: int) -> None:
    size = len(heap)
    while place > start:
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


def _sift_up(heap: list[Any], start: int) -> None:
    size, place = len(heap), start
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
    _sift_down(heap, start, place)


# ---------------------------------------------------------------- objects of the operator module
# What they were made of is fixed by which of them it is.
def get_attributes(getter: Any, value: Any, /) -> Any:
    """What an `operator.attrgetter` gives."""
    names = parts_of(getter)
    found = []
    for name in names:
        held = value
        for part in name.split("."):
            held = getattr(held, part)
        found.append(held)
    return found[0] if len(found) == 1 else tuple(found)


def get_items(getter: Any, value: Any, /) -> Any:
    """What an `operator.itemgetter` gives."""
    found = [value[key] for key in parts_of(getter)]
    return found[0] if len(found) == 1 else tuple(found)


# Torch's binding would be given bounds of slices that are followed, and compares others with the sizes.
def get_item(tensor: Any, key: Any, /) -> Any:
    """`operator.getitem` of a tensor."""
    return tensor[key]


def set_item(tensor: Any, key: Any, value: Any, /) -> None:
    """`operator.setitem` of a tensor."""
    tensor[key] = value


def get_item_by_name(tensor: Any, key: Any, /) -> Any:
    """`Tensor.__getitem__`."""
    if type(tensor).__getitem__ is not _GET_ITEM:  # somebody's own, which may call this one
        return _GET_ITEM(tensor, key)
    return tensor[key]


def set_item_by_name(tensor: Any, key: Any, value: Any, /) -> None:
    """`Tensor.__setitem__`."""
    if type(tensor).__setitem__ is not _SET_ITEM:
        _SET_ITEM(tensor, key, value)
    else:
        tensor[key] = value


def call_method(caller: Any, value: Any, /) -> Any:
    """What an `operator.methodcaller` gives."""
    return getattr(value, method_of(caller))(*arguments_of(caller), **options_of(caller))


def call_partial(called: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What a `functools.partial` of a function of C gives."""
    named = called.keywords
    if not named and not kwargs:
        return called.func(*called.args, *args)
    return called.func(*called.args, *args, **{**named, **kwargs})


def fill_entry(parts: tuple[Any, Any], /, *args: Any) -> Any:
    """What a `functools` cache does that has no entry for a call (CPython, Modules/_functoolsmodule.c)."""
    cache, function = parts
    begin_entry(cache)
    made = function(*args)
    return keep_entry(cache, args, made)


def reduce_by_name(function: Any, names: Any, value: Any, /) -> Any:
    """`functools.reduce(getattr, names, value)`."""
    if type(names) is not list and type(names) is not tuple and type(names) is not str:
        return _REDUCE(function, names, value)
    for name in names:
        value = getattr(value, name)
    return value


def dispatch(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What a `singledispatch` makes of a function, where classes say no more than `issubclass`."""
    registry = function.registry
    cls: Any = args[0].__class__ if args else None
    found = candidates(function, cls) if cls is not None else None
    if found is None:
        return function(*args, **kwargs)
    for known in registry:
        if type(known).__subclasscheck__ is not _ASKS or issubclass(cls, known) != (known in found):
            return function(*args, **kwargs)
    return registry[found[0]](*args, **kwargs)


# ---------------------------------------------------------------- numbers of samples
_LONGEST_SAMPLE: Final = 128


def _of_sample(name: str, function: Any) -> Any:
    ask = OF_SAMPLES[name]

    def sample(data: Any, /) -> Any:
        """A function of `statistics`, of floats."""
        plain = type(data) in (list, tuple, collections.deque) and 1 < len(data) <= _LONGEST_SAMPLE
        if not plain:
            return function(data)
        values = [*data]
        if not all(type(value) is float for value in values):
            return function(data)
        return work_out(ask, (*values,))

    return sample


def of_statistics() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Those of a module that not all programs load."""
    import statistics

    functions = {name: sampler(name) for name in OF_SAMPLES}
    own = {name: one for name, one in functions.items() if is_original(one, statistics)}
    return {function: _of_sample(name, function) for name, function in own.items()}, {}


# ---------------------------------------------------------------- progress bars
def _of_bar(name: str) -> Any:
    def tell_bar(bar: Any, /, *args: Any, **kwargs: Any) -> None:
        """A method of a progress bar, whose result nobody asks for."""
        # As in `_is_plain_json`.
        if len(args) == 1 and isinstance(args[0], dict) and type(args[0]) is dict:
            return tell(call_with_dict, bar, name, ((*args[0],), *args[0].values()), kwargs)
        return tell(call_quietly, bar, name, args, kwargs)

    return tell_bar


def of_bars() -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Those of tqdm."""
    bar = sys.modules["tqdm.std"].tqdm
    return {}, {getattr(bar, name): _of_bar(name) for name in _OF_BARS}


# ---------------------------------------------------------------- copies
def reduce_ordered(value: Any, protocol: Any, /) -> Any:
    """What an OrderedDict says of itself to whoever copies it."""
    return collections.OrderedDict, (), vars(value) or None, None, iter(value.items())


def reduce_set(value: Any, protocol: Any, /) -> Any:
    """What a set says of itself to whoever copies it."""
    return set, (list(value),), None


def deepcopy(value: Any, /) -> Any:
    """`copy.deepcopy`, which has the tensors that were cloned looked at once more by each replay."""
    memo = _Memo()
    made = _DEEPCOPY(value, memo)
    if memo.tensors and not stay_clones(memo.tensors):
        memo.tensors[0].untyped_storage()  # which ends the recording
        mend_clones(_COPY_TENSOR, memo.tensors, memo.clones)
    return made


def retain_grad(tensor: Any, /) -> None:
    """`Tensor.retain_grad`."""
    if type(tensor) is not torch.Tensor:
        return _RETAIN(tensor)  # type: ignore[no-any-return]
    retain(tensor)
    return None


# What torch's own copy calls that anybody may replace.
_OF_NO_GRAD: Final = [(torch.no_grad, name) for name in ("__new__", "__init__", "__enter__", "__exit__")]
_AROUND_COPIES: Final = [
    (cls, name, getattr(cls, name)) for cls, name in (*_OF_NO_GRAD, (torch.set_grad_enabled, "__init__"))
]


def _copies_as_known() -> bool:
    return all(getattr(cls, name) is own for cls, name, own in _AROUND_COPIES)


def deepcopy_tensor(tensor: Any, memo: Any, /) -> Any:
    """`Tensor.__deepcopy__`: a clone where that gives the same."""
    if (
        not _copies_as_known()
        or type(memo) is not _Memo
        or not memo.clones_tensors
        or type(tensor) is not torch.Tensor
    ):
        return _COPY_TENSOR(tensor, memo)
    if not may_clone(can_be_cloned, memo.tensors, tensor):  # named here, so that a replay finds it
        memo.setdefault("torch", {})
        return _COPY_TENSOR(tensor, memo)
    memo.tensors.append(tensor)
    memo.clones.append(_EMPTY_LIKE(tensor).copy_(tensor))  # which has been written to once, as torch's copies
    return memo.clones[-1]


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


def _makers() -> list[Any]:
    """What makes one array or tensor of the list that it is given."""
    numpy: Any = sys.modules.get("numpy")
    of_arrays = ["array", "asarray", "stack", "vstack", "hstack", "concatenate"] if numpy else []
    of_tensors = ["tensor", "as_tensor", "Tensor", "FloatTensor", "DoubleTensor", "LongTensor"]
    return [getattr(numpy, name) for name in of_arrays] + [getattr(torch, name) for name in of_tensors]


def made_of_each(function: Any, items: Any, /) -> Any:
    """`map` where all that it gives is taken at once, of a function that makes arrays or tensors."""
    return [function(item) for item in items]


def _rows_of_items() -> dict[Any, Any]:
    rows = {operator.getitem: get_item, operator.setitem: set_item}
    rows |= {_GET_ITEM: get_item_by_name, _SET_ITEM: set_item_by_name}
    classes = torch.Tensor, torch.nn.Parameter
    return {(function, cls): own for function, own in rows.items() for cls in classes}


def configure() -> None:
    """Tell the core of all this, once."""
    functions: dict[Any, Any] = {
        _DIR: list_names,
        _HEAPPUSH: heappush,
        _HEAPPOP: heappop,
        _HEAPIFY: heapify,
        _HEAPREPLACE: heapreplace,
        _HEAPPUSHPOP: heappushpop,
        _INSORT: insort_right,
        _INSORT_LEFT: insort_left,
        _COUNT: count_elements,
        _RETAIN: retain_grad,
        check_capture: check_no_capture,
        # What is called is an object of the class.
        operator.attrgetter: get_attributes,
        operator.itemgetter: get_items,
        operator.methodcaller: call_method,
        functools.partial: call_partial,
        _STRFTIME: strftime,
        # Once they are loaded.
        "statistics": of_statistics,
        "tqdm.std": of_bars,
        # Only of this first argument, or of one of this class.
        (_REDUCE, getattr): reduce_by_name,
        (object.__reduce_ex__, collections.OrderedDict): reduce_ordered,
        (object.__reduce_ex__, set): reduce_set,
        **{(map, function): made_of_each for function in _makers()},
        **_rows_of_items(),
        **rows_of_draws(),
        **rows_of_seeds(),
    }
    dropped: dict[Any, Any] = {
        io.TextIOWrapper.write: write,
        io.StringIO.write: write,
        io.TextIOWrapper.flush: flush,
        io.StringIO.flush: flush,
        csv.writer(io.StringIO()).writerow: write_row,
    }
    if is_original(_DUMP, json) and is_original(_DUMPS, json):
        functions[_DUMP] = dump
    if is_original(_DEEPCOPY, copy) and is_original(_COPY_TENSOR, sys.modules["torch._tensor"]):
        functions |= {_DEEPCOPY: deepcopy, _COPY_TENSOR: deepcopy_tensor}
    if is_original(csv.DictWriter.writerow, csv):
        dropped[csv.DictWriter.writerow] = write_named_row
    of_generators: dict[Any, Any] = {sum: add_up, max: largest, min: smallest}
    by_code: dict[Any, Any] = {REPLACE.__code__: replace, _DISPATCHING.__code__: dispatch}
    core.configure_stand_ins(functions, dropped, by_code, text_of, of_generators)
    core.configure_missing_entries(fill_entry)
