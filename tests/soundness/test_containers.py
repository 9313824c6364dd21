"""Lists, dicts, sets, tuples and the other containers, in state and as arguments."""

from __future__ import annotations

import array
import collections
import types
from typing import Any, NamedTuple

import pytest
import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Pair(NamedTuple):
    what: Any
    k: float


class SubPair(Pair):
    pass


class Box:
    def __init__(self, **values):
        vars(self).update(values)


class Attr(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class AttrGet(dict):
    __getattr__ = dict.get


class SelfDict(dict):
    def __init__(self, **values):
        super().__init__(**values)
        self.__dict__ = self


@cases(hits=2)
def list_item(trace):
    s = [1.0, 2.0]
    return trace(lambda x: x * s[1]), around(lambda: s.__setitem__(1, 3.0), X())


@cases(hits=2)
def list_negative_index(trace):
    s = [1.0, 2.0]
    return trace(lambda x: x * s[-1]), around(lambda: s.append(3.0), X())


@cases(hits=2)
def list_slice(trace):
    s = [1.0, 2.0, 3.0]
    return trace(lambda x: x * sum(s[1:])), around(lambda: s.__setitem__(2, 5.0), X())


@cases(hits=2)
def list_length(trace):
    s = [1.0, 2.0]
    return trace(lambda x: x * len(s)), around(lambda: s.append(1), X())


@cases(hits=2)
def list_truth(trace):
    s = []
    return trace(lambda x: x * 2 if s else x * 3), around(lambda: s.append(1), X())


@cases(hits=2)
def list_iterated(trace):
    s = [1.0, 2.0]

    @trace
    def fn(x):
        for k in s:
            x = x * k
        return x

    return fn, around(lambda: s.append(3.0), X())


@cases(hits=2)
def list_of_tensors_stacked(trace):
    s = [torch.ones(3), torch.ones(3)]
    return trace(lambda x: torch.stack([*s, x])), around(lambda: s.__setitem__(0, torch.zeros(3)), X())


@cases(hits=2)
def list_reordered(trace):
    s = [torch.ones(3), torch.full((3,), 2.0)]
    return trace(lambda x: x * s[0] - s[1]), around(s.reverse, X())


@cases(hits=2)
def list_contains(trace):
    s = ["a"]
    return trace(lambda x: x * 2 if "b" in s else x), around(lambda: s.append("b"), X())


@cases(hits=2)
def list_sorted(trace):
    s = [3.0, 1.0]
    return trace(lambda x: x * sorted(s)[0]), around(lambda: s.append(0.5), X())


@cases(hits=2)
def list_compared(trace):
    s = [3.0, 1.0]
    return trace(lambda x: x * 2 if s == [3.0, 1.0] else x), around(lambda: s.append(0.5), X())


@cases(hits=2)
def list_appended(trace):
    s = []

    @trace
    def fn(x):
        s.append(len(s))
        return x * len(s)

    return fn, [call(X())] * 4, lambda: list(s)


@cases(hits=2)
def list_appended_with_result(trace):
    s = []

    @trace
    def fn(x):
        s.append(x * 2)
        return s[-1] + 1

    return fn, [call(X())] * 4, lambda: list(s)


@cases(hits=2)
def list_popped_and_pushed(trace):
    s = [1.0, 2.0]

    @trace
    def fn(x):
        k = s.pop()
        s.insert(0, k)
        return x * k

    return fn, [call(X())] * 4, lambda: list(s)


@cases(hits=2)
def list_in_place_operator(trace):
    s = [1.0]

    @trace
    def fn(x):
        local = s
        local += [2.0]
        return x * len(local)

    return fn, [call(X())] * 4, lambda: list(s)


# Each call changes what the next one reads, which is followed in the end.
@cases(hits=4)
def mutable_default(trace):
    @trace
    def fn(x, seen=[]):  # noqa: B006
        seen.append(1)
        return x * len(seen)

    return fn, [call(X())] * 8


@cases(hits=2)
def dict_get(trace):
    d = {}
    return trace(lambda x: x * d.get("k", 2.0)), around(lambda: d.update(k=3.0), X())


@cases(hits=2)
def dict_item_and_other_key(trace):
    d = {"k": 2.0}
    return trace(lambda x: x * d["k"]), around(lambda: d.update(k=3.0), X())


@cases(hits=2)
def dict_missing_key_caught(trace):
    d = {}

    @trace
    def fn(x):
        try:
            return x * d["k"]
        except KeyError:
            return x - 1

    return fn, around(lambda: d.update(k=3.0), X())


@cases(hits=2)
def dict_setdefault_present(trace):
    d = {"k": 2.0}
    return trace(lambda x: x * d.setdefault("k", 7.0)), around(lambda: d.update(k=3.0), X()), lambda: dict(d)


@cases(hits=1)
def dict_setdefault_absent(trace):
    d = {}
    return trace(lambda x: x * d.setdefault("k", 7.0)), around(d.clear, X()), lambda: dict(d)


@cases(hits=1)
def dict_pop(trace):
    d = {"k": 2.0}
    return trace(lambda x: x * d.pop("k", 7.0)), around(lambda: d.update(k=3.0), X()), lambda: dict(d)


@cases(hits=2)
def dict_order(trace):
    d = {"a": 2.0, "b": 3.0}

    @trace
    def fn(x):
        for v in d.values():
            x = x * v + 1
        return x

    return fn, around(lambda: d.update(a=d.pop("a")), X())


@cases(hits=2)
def dict_sorted_by_key(trace):
    d = {"a": 2.0, "b": 3.0}
    return trace(lambda x: x * d[sorted(d)[0]]), around(lambda: d.update(_=9.0), X())


@cases(hits=2)
def dict_key_type(trace):
    d = {1: 2.0}
    return trace(lambda x: (x, list(d))), around(lambda: (d.clear(), d.update({True: 2.0})), X())


@cases(hits=2)
def dict_unpacked(trace):
    d = {"k": 2.0}

    def g(x, k=1.0, j=0.0):
        return x * k + j

    return trace(lambda x: g(x, **d)), around(lambda: d.update(j=3.0), X())


@cases(hits=1)
def dict_cache_of_results(trace):
    d = {}

    @trace
    def fn(x):
        if "mask" not in d:
            d["mask"] = x > 0
        return x * d["mask"]

    return fn, around(d.clear, X()), lambda: dict(d)


@cases(hits=2)
def view_kept_in_state(trace):
    d = {"a": 2.0}
    values = d.values()

    @trace
    def fn(x):
        for v in values:
            x = x * v
        return x

    return fn, around(lambda: d.update(b=5.0), X())


@cases(hits=2)
def view_length(trace):
    d = {"a": 2.0}
    keys = d.keys()
    return trace(lambda x: x * len(keys)), around(lambda: d.update(b=5.0), X())


@cases(hits=2)
def view_contains(trace):
    d = {"a": 2.0}
    keys = d.keys()
    return trace(lambda x: x * 2 if "b" in keys else x), around(lambda: d.update(b=5.0), X())


@cases(hits=2)
def view_as_argument(trace):
    d = {"a": 2.0}
    return trace(lambda v, x: x * sum(v)), around(lambda: d.update(b=5.0), d.values(), X())


@cases(hits=2)
def mapping_proxy(trace):
    d = {"a": 2.0}
    proxy = types.MappingProxyType(d)
    return trace(lambda x: x * proxy["a"]), around(lambda: d.update(a=5.0), X())


# The first call says that it is read, the second one follows it.
@cases(hits=2)
def deque_item(trace):
    q = collections.deque([2.0])
    return trace(lambda x: x * q[0]), around(lambda: q.appendleft(3.0), X())


@cases(hits=1)
def deque_iterated(trace):
    q = collections.deque([2.0])

    @trace
    def fn(x):
        for v in q:
            x = x * v
        return x

    return fn, around(lambda: q.append(3.0), X())


@cases(hits=2)
def deque_length(trace):
    q = collections.deque([2.0])
    return trace(lambda x: x * len(q)), around(lambda: q.append(3.0), X())


@cases(hits=1)
def deque_truth(trace):
    q = collections.deque()
    return trace(lambda x: x * 2 if q else x), around(lambda: q.append(3.0), X())


@cases(hits=2)
def deque_summed(trace):
    q = collections.deque([2.0])
    return trace(lambda x: x * sum(q)), around(lambda: q.append(3.0), X())


@cases(hits=1)
def deque_in_list(trace):
    q = collections.deque([2.0])
    return trace(lambda x: x * list(q)[-1]), around(lambda: q.append(3.0), X())


@cases(hits=1)
def deque_appended(trace):
    q = collections.deque([2.0])

    @trace
    def fn(x):
        q.append(1.0)
        return x * len(q)

    return fn, [call(X())] * 3, lambda: list(q)


@cases(eager="changes a deque in place")
def deque_in_place_operator(trace):
    q = collections.deque([2.0])

    @trace
    def fn(x):
        local = q
        local += [1.0]
        return x * 2

    return fn, [call(X())] * 3, lambda: list(q)


@cases(eager="reads")
def array_item(trace):
    a = array.array("d", [2.0])
    return trace(lambda x: x * a[0]), around(lambda: a.__setitem__(0, 3.0), X())


@cases(eager="reads")
def bytearray_item(trace):
    a = bytearray(b"\x02")
    return trace(lambda x: x * a[0]), around(lambda: a.__setitem__(0, 3), X())


@cases(hits=2)
def attribute_dict_of_c_getitem(trace):
    c = Attr(k=2.0)
    return trace(lambda x: x * c.k), around(lambda: setattr(c, "k", 3.0), X())


@cases(hits=2)
def attribute_dict_of_c_get(trace):
    c = AttrGet(k=2.0)
    return trace(lambda x: x * c.k), around(lambda: c.update(k=3.0), X())


@cases(eager="sets-attribute")
def attribute_dict_written(trace):
    c = Attr(k=2.0)

    @trace
    def fn(x):
        c.k = c.k + 1
        return x * c.k

    return fn, [call(X())] * 4, lambda: dict(c)


@cases(hits=2)
def self_dict(trace):
    c = SelfDict(k=2.0)
    return trace(lambda x: x * c.k), around(lambda: c.update(k=3.0), X())


@cases(hits=2)
def default_dict_present(trace):
    d = collections.defaultdict(float, k=2.0)
    return trace(lambda x: x * d["k"]), around(lambda: d.update(k=3.0), X())


@cases(hits=1)
def default_dict_absent(trace):
    d = collections.defaultdict(lambda: len(d) + 1.0)
    return trace(lambda x: x * d["k"]), around(d.clear, X()), lambda: dict(d)


# A missing key runs __missing__ of the Counter, and is there once others have put it there.
@cases(hits=1)
def counter_of_state(trace):
    c = collections.Counter("aab")
    return trace(lambda x: x * c["a"] * c["z"]), around(lambda: c.update("az"), X())


@cases(hits=2)
def chain_map(trace):
    low, high = {"k": 2.0}, {}
    c = collections.ChainMap(high, low)
    return trace(lambda x: x * c["k"]), around(lambda: high.update(k=3.0), X())


@cases(hits=2)
def ordered_dict_moved(trace):
    d = collections.OrderedDict(a=2.0, b=3.0)

    @trace
    def fn(x):
        for v in d.values():
            x = x * v + 1
        return x

    return fn, around(lambda: d.move_to_end("a"), X())


@cases(hits=2)
def set_contains(trace):
    s = {1, 2}
    return trace(lambda x: x * 2 if 3 in s else x), around(lambda: s.add(3), X())


@cases(hits=2)
def frozen_set_rebound(trace):
    o = Box(s=frozenset({1}))
    return trace(lambda x: x * sum(o.s)), around(lambda: setattr(o, "s", frozenset({5})), X())


@cases(hits=2)
def named_tuple_rebound(trace):
    o = Box(p=Pair(None, 2.0))
    return trace(lambda x: x * o.p.k), around(lambda: setattr(o, "p", Pair(None, 3.0)), X())


@cases(hits=2)
def named_tuple_with_an_object_rebound(trace):
    inner = Box()
    o = Box(p=Pair(inner, 2.0))
    return trace(lambda x: x * o.p.k), around(lambda: setattr(o, "p", Pair(inner, 3.0)), X())


@cases(hits=2)
def named_tuple_with_another_object(trace):
    a, b = Box(lr=2.0), Box(lr=3.0)
    o = Box(p=Pair(a, 1.0))
    return trace(lambda x: x * o.p.what.lr), around(lambda: setattr(o, "p", Pair(b, 1.0)), X())


@cases(hits=3)
def named_tuple_with_a_tensor(trace):
    o = Box(p=Pair(torch.ones(3), 1.0))
    return trace(lambda x: x * o.p.what), around(lambda: setattr(o, "p", Pair(torch.zeros(3), 1.0)), X())


@cases(hits=2)
def named_tuple_with_a_list(trace):
    items = [1.0]
    o = Box(p=Pair(items, 1.0))
    return trace(lambda x: x * sum(o.p.what)), around(lambda: items.append(5.0), X())


@cases(hits=2)
def named_tuple_subclass_as_argument(trace):
    x = X()
    p, q = SubPair(None, 2.0), SubPair(None, 3.0)
    return trace(lambda p, x: x * p.k), [call(p, x), call(p, x), call(q, x), call(q, x)]


@cases(hits=2)
def named_tuple_with_objects_as_argument(trace):
    x = X()
    p, q = Pair(Box(lr=2.0), 1.0), Pair(Box(lr=3.0), 1.0)
    return trace(lambda p, x: x * p.what.lr), [call(p, x), call(p, x), call(q, x), call(q, x)]


@cases(hits=2)
def tuple_with_objects_rebound(trace):
    o = Box(t=(Box(lr=2.0), 1.0))
    return trace(lambda x: x * o.t[0].lr), around(lambda: setattr(o, "t", (Box(lr=3.0), 1.0)), X())


@cases(hits=2)
def nested_list_replaced(trace):
    o = [[1.0], [2.0]]
    return trace(lambda x: x * o[1][0]), around(lambda: o.__setitem__(1, [3.0]), X())


@cases(recordings=4)
def iterator_in_state(trace):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    return trace(lambda x: x * next(it)), [call(X())] * 4


@cases(recordings=4)
def generator_in_state(trace):
    gen = (float(i) for i in range(10))
    return trace(lambda x: x * next(gen)), [call(X())] * 4


@cases(eager="reads")
def iterator_extends_a_list(trace):
    import itertools

    it = itertools.count()

    @trace
    def fn(x):
        out = []
        out.extend(zip("ab", it))  # noqa: B905
        return x * out[0][1]

    return fn, [call(X())] * 4


@cases(eager="reads")
def iterator_into_extend(trace):
    o = Box(it=iter([1.0, 2.0, 3.0]))

    @trace
    def fn(x):
        out = []
        out.extend(o.it)
        return x * len(out)

    return fn, [call(X())] * 3


@cases(eager="reads")
def iterator_joined(trace):
    o = Box(it=iter(["a", "b"]))
    return trace(lambda x: (x, ",".join(o.it))), [call(X())] * 3


@cases(eager="advances-iterator")
def iterator_searched(trace):
    o = Box(it=iter([1, 2, 3, 4, 5]))
    return trace(lambda x: x * 2 if 2 in o.it else x), [call(X())] * 3


@cases(recordings=3)
def iterators_in_a_list(trace):
    its = [iter([1.0, 2.0, 3.0]), iter([4.0, 5.0, 6.0])]
    return trace(lambda x: x * sum(next(i) for i in its)), [call(X())] * 3


@cases(eager="advances-iterator")
def iterator_as_argument(trace):
    @trace
    def fn(x, it):
        for k in it:
            x = x * k
        return x

    it = iter([1.0, 2.0])
    return fn, [call(X(), it), call(X(), it), call(X(), iter([3.0]))]


@cases(eager="advances-iterator")
def generator_as_argument(trace):
    x = X()
    return trace(lambda x, g: x * sum(g)), [
        call(x, (i for i in [1.0, 2.0])),
        call(x, (i for i in [3.0])),
        call(x, iter([])),
    ]


@cases(hits=3)
def arguments_in_containers(trace):
    @trace
    def fn(data, *rest, flag=False, **more):
        out = data["x"] * data["w"][0] + sum(rest)
        return {"out": out, "flag": flag, **more}

    a = {"x": X(), "w": [torch.ones(3)]}
    b = {"w": [torch.ones(3)], "x": X()}
    return fn, [
        call(a, 1, z=2),
        call(a, 1, z=2),
        call(b, 1, z=2),
        call(b, 1, z=2),
        call(a, 1, y=1, z=2),
        call(a, 1, z=2, y=1),
        call(a, 1, z=2, y=1),
    ]


@cases(hits=2)
def keyword_order(trace):
    @trace
    def fn(x, **kw):
        return x, list(kw.items())

    x = X()
    return fn, [call(x, a=1, b=2), call(x, a=1, b=2), call(x, b=2, a=1), call(x, b=2, a=1)]


# Each call changes what the next one reads, which is followed in the end.
@cases(hits=4)
def argument_list_appended(trace):
    def fn(items, x):
        items.append(x * 2)
        return len(items)

    items = []
    return trace(fn), [call(items, X())] * 8, lambda: list(items)


@cases(hits=3)
def same_list_twice(trace):
    a, b = [1.0], [1.0]
    x = X()
    fn = trace(lambda p, q, x: x * 2 if p is q else x * 3)
    return fn, [call(a, a, x), call(a, a, x), call(a, b, x), call(a, b, x), call(b, b, x)]


@cases(hits=1)
def set_as_argument(trace):
    x = X()
    return trace(lambda s, x: x * len(s) * max(s)), [
        call({1, 2}, x),
        call({1, 2}, x),
        call({1, 3}, x),
        call({1, 3}, x),
    ]


def literal(count, braces):
    """A function with a literal whose keys are known when it runs, beside sizes that are followed."""
    items = {"dict": "a + {0}: {0}", "set": "a + {0}"}[braces]
    text = ", ".join(items.format(i) for i in range(count))
    names = {}
    exec(f"def fn(a, x): return {{{text}}}, x * x.shape[0]", names)
    return names["fn"]


@pytest.mark.parametrize("braces", ["dict", "set"])
@pytest.mark.parametrize("count", range(1, 16))
def test_keys_of_a_literal(count, braces):
    """They are looked for where they lie on the stack: whatever is below it is none."""

    def make(trace):
        return trace(literal(count, braces)), [call(1, X(n)) for n in (3, 4, 5, 6, 3)]

    check(make, hits=3)


@cases.parametrize
def test_containers(make, expected):
    check(make, **expected)
