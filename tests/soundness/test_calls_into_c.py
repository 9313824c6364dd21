"""Functions written in C that read, write or call back without a Python frame to watch."""

from __future__ import annotations

import array
import bisect
import contextlib
import copy
import ctypes
import functools
import hashlib
import heapq
import io
import itertools
import json
import logging
import math
import operator
import random
import re
import struct
import time

import numpy as np
import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Box:
    def __init__(self, **values):
        vars(self).update(values)


@cases(hits=2)
def attrgetter_of_state(trace):
    o = Box(k=2.0)
    get = operator.attrgetter("k")
    return trace(lambda x: x * get(o)), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=1)
def attrgetter_chain(trace):
    o = Box(a=Box(k=2.0))
    get = operator.attrgetter("a.k")
    return trace(lambda x: x * get(o)), around(lambda: setattr(o.a, "k", 3.0), X())


@cases(hits=3)
def attrgetter_of_grad(trace):
    w = torch.ones(3, requires_grad=True)
    w.grad = torch.ones(3)
    get = operator.attrgetter("grad")

    def change():
        w.grad = torch.full((3,), 5.0)

    return trace(lambda x: x * get(w)), around(change, X())


@cases(hits=2)
def itemgetter_of_state(trace):
    d = {"k": 2.0}
    return trace(lambda x: x * operator.itemgetter("k")(d)), around(lambda: d.update(k=3.0), X())


@cases(hits=2)
def itemgetter_of_an_object(trace):
    class Own:
        k = 2.0

        def __getitem__(self, key):
            return self.k

    o = Own()
    return trace(lambda x: x * operator.itemgetter("k")(o)), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=1)
def methodcaller_that_appends(trace):
    s = []

    @trace
    def fn(x):
        operator.methodcaller("append", 1)(s)
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(eager="tensor-escapes")
def methodcaller_tolist(trace):
    return trace(lambda x: operator.methodcaller("tolist")(x)), [call(X()), call(X()), call(X() + 1)]


@cases(eager="calls-private")
def operator_setitem(trace):
    d = {"n": 0}

    @trace
    def fn(x):
        operator.setitem(d, "n", d["n"] + 1)
        return x * 2

    return fn, [call(X())] * 3, lambda: dict(d)


@cases(eager="calls-private")
def operator_delitem(trace):
    s = [1, 2, 3]

    @trace
    def fn(x):
        operator.delitem(s, 0)
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(eager="calls-private")
def operator_iadd(trace):
    s = []

    @trace
    def fn(x):
        operator.iadd(s, [1])
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(eager="hands-to-c")
def operator_iconcat_via_reduce(trace):
    s = []

    @trace
    def fn(x):
        functools.reduce(operator.iconcat, [[1], [2]], s)
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(hits=1)
def operator_iadd_of_a_tensor(trace):
    def fn(x):
        operator.iadd(x, 1)
        return x * 2

    x = X()
    return trace(fn), [call(x)] * 3


@cases(hits=2)
def operator_truth(trace):
    s = []
    return trace(lambda x: x * 2 if operator.truth(s) else x * 3), around(lambda: s.append(1), X())


@cases(hits=2)
def operator_contains(trace):
    s = {1}
    return trace(lambda x: x * 2 if operator.contains(s, 2) else x * 3), around(lambda: s.add(2), X())


@cases(eager="hands-method-to-c")
def map_of_append(trace):
    s = []

    @trace
    def fn(x):
        list(map(s.append, [1, 2]))
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(eager="hands-method-to-c")
def map_of_tolist(trace):
    return trace(lambda x: list(map(torch.Tensor.tolist, [x, x]))), [call(X()), call(X()), call(X() + 1)]


@cases(eager="hands-method-to-c")
def map_of_numpy(trace):
    @trace
    def fn(x):
        for a in map(torch.Tensor.numpy, [x]):
            a += 1
        return x * 2

    return fn, [call(X())] * 3


@cases(eager="reads-of-tensor")
def map_of_register_hook(trace):
    seen = []

    @trace
    def fn(x):
        y = x * 2
        list(map(y.register_hook, [lambda g: seen.append(1)]))
        return y

    return fn, [call(X(grad=True))] * 3, lambda: list(seen)


# Could be a hit: __getitem__ of a dict is known when it is called, not when it is handed to C.
@cases(hits=2)
def map_of_getitem(trace):
    d = {"a": 2.0}
    return trace(lambda x: x * next(map(d.__getitem__, ["a"]))), around(lambda: d.update(a=3.0), X())


# Could be a hit: .get of a dict is known when it is called, not when it is handed to C.
@cases(hits=2)
def map_of_get(trace):
    d = {"a": 2.0}
    return trace(lambda x: x * sum(map(d.get, ["a"]))), around(lambda: d.update(a=3.0), X())


# Could be a hit, as map_of_get.
@cases(hits=2)
def sorted_by_get(trace):
    d = {"a": 1, "b": 2}
    return trace(lambda x: (x, sorted("ab", key=d.get))), around(lambda: d.update(a=3), X())


# Could be a hit, as map_of_get.
@cases(hits=2)
def max_by_get(trace):
    d = {"a": 1, "b": 2}
    return trace(lambda x: (x, max("ab", key=d.get))), around(lambda: d.update(a=3), X())


# Could be a hit, as map_of_getitem.
@cases(hits=2)
def sort_by_get(trace):
    d = {"a": 1, "b": 2}

    @trace
    def fn(x):
        names = ["a", "b"]
        names.sort(key=d.__getitem__)
        return x, names

    return fn, around(lambda: d.update(a=3), X())


@cases(hits=2)
def sorted_by_python(trace):
    d = {"a": 1, "b": 2}
    return trace(lambda x: (x, sorted("ab", key=lambda k: d[k]))), around(lambda: d.update(a=3), X())


@cases(hits=2)
def filter_by_contains(trace):
    s = {1}
    return trace(lambda x: x * sum(filter(s.__contains__, [1, 2]))), around(lambda: s.add(2), X())


@cases(eager="hands-method-to-c")
def filter_by_add(trace):
    s = set()

    @trace
    def fn(x):
        list(filter(s.add, [1, 2]))
        return x * 2

    return fn, [call(X()), s.clear, call(X()), s.clear, call(X())], lambda: set(s)


@cases(eager="calls iter()")
def iter_of_pop(trace):
    s = [1.0] * 6

    @trace
    def fn(x):
        for k in itertools.islice(iter(s.pop, None), 2):
            x = x * k
        return x

    return fn, [call(X())] * 3, lambda: list(s)


@cases(hits=2)
def bound_append_in_state(trace):
    s = []
    note = s.append

    @trace
    def fn(x):
        note(1)
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(hits=2)
def bound_get_in_state(trace):
    d = {"a": 2.0}
    look = d.get
    return trace(lambda x: x * look("a")), around(lambda: d.update(a=3.0), X())


@cases(hits=2)
def bound_tensor_method_in_state(trace):
    w = torch.ones(3)
    o = Box(add=w.add)
    return trace(lambda x: o.add(x)), around(lambda: setattr(o, "add", (w * 5).add), X())


@cases(hits=2)
def partial_of_append(trace):
    s = []
    note = functools.partial(s.append, 1)

    @trace
    def fn(x):
        note()
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(eager="tensor-escapes")
def partial_of_tolist(trace):
    get = functools.partial(torch.Tensor.tolist)
    return trace(lambda x: get(x)), [call(X()), call(X()), call(X() + 1)]


@cases(eager="calls .insert() of a list")
def insort(trace):
    s = []

    @trace
    def fn(x):
        bisect.insort(s, len(s))
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(hits=2)
def bisect_of_state(trace):
    s = [1, 3]
    return trace(lambda x: x * bisect.bisect(s, 2)), around(lambda: s.insert(0, 0), X())


@cases(eager="calls-method")
def heap(trace):
    s = []

    @trace
    def fn(x):
        heapq.heappush(s, len(s))
        return x * 2

    return fn, [call(X())] * 3, lambda: list(s)


@cases(eager="calls-unseen-function")
def pack_into_state(trace):
    buffer = bytearray(8)
    n = [0.0]

    @trace
    def fn(x):
        struct.pack_into("d", buffer, 0, n[0] + 1)
        return x * 2

    return (
        fn,
        [call(X()), call(X()), lambda: buffer.__setitem__(slice(None), bytes(8)), call(X())],
        lambda: bytes(buffer),
    )


@cases(eager="reads")
def unpack_of_state(trace):
    buffer = bytearray(struct.pack("d", 2.0))
    return trace(lambda x: x * struct.unpack("d", buffer)[0]), around(
        lambda: struct.pack_into("d", buffer, 0, 3.0), X()
    )


# A cache of user code is state.
@cases(eager="cached-function")
def user_lru_cache(trace):
    calls = []

    @functools.lru_cache
    def helper(k):
        calls.append(k)
        return len(calls)

    return (
        trace(lambda x: x * helper(1)),
        [call(X()), call(X()), helper.cache_clear, call(X()), call(X())],
        lambda: list(calls),
    )


@cases(hits=1)
def accumulate(trace):
    return trace(lambda x: list(itertools.accumulate([x, x, x]))), [call(X(grad=True))] * 3


@cases(hits=2)
def product_of_state(trace):
    s = [1.0, 2.0]
    return trace(lambda x: x * sum(a * b for a, b in itertools.product(s, s))), around(
        lambda: s.append(3.0), X()
    )


@cases(hits=1)
def reduce_of_tensors(trace):
    return trace(lambda *xs: functools.reduce(operator.mul, xs)), [call(X(), X())] * 3


@cases(hits=1)
def tolist(trace):
    return trace(lambda x: x * x.tolist()[0]), [call(X()), call(X() + 1), call(X() + 2)]


@cases(hits=2)
def numpy_round_trip(trace):
    return trace(lambda x: torch.from_numpy(x.numpy() * 2)), [call(X()), call(X() + 1), call(X() + 2)]


@cases(hits=2)
def numpy_in_place(trace):
    @trace
    def fn(x):
        x.numpy()[0] = 7
        return x * 2

    return fn, [call(X()), call(X()), call(X())]


@cases(hits=1)
def numpy_asarray(trace):
    return trace(lambda x: float(np.asarray(x).sum())), [call(X()), call(X() + 1), call(X() + 2)]


@cases(hits=1)
def numpy_function_on_a_tensor(trace):
    return trace(lambda x: np.sin(x)), [call(X()), call(X() + 1), call(X() + 2)]


@cases(hits=2)
def numpy_array_in_state(trace):
    a = np.ones(3, dtype=np.float32)
    return trace(lambda x: x * float(a[0])), around(lambda: a.__setitem__(0, 5.0), X())


@cases(hits=3)
def numpy_array_as_argument(trace):
    a = np.ones(3, dtype=np.float32)
    return trace(lambda x, a: x + torch.as_tensor(a)), around(lambda: a.__setitem__(0, 5.0), X(), a)


@cases(hits=3)
def tensor_over_numpy_memory(trace):
    a = np.ones(3, dtype=np.float32)
    w = torch.from_numpy(a)
    return trace(lambda x: x * w), around(lambda: a.__setitem__(0, 5.0), X())


@cases(hits=2)
def numpy_scalar_function(trace):
    o = Box(k=4.0)
    return trace(lambda x: x * np.sqrt(o.k)), around(lambda: setattr(o, "k", 9.0), X())


@cases(hits=2)
def numpy_random(trace):
    rng = np.random.RandomState(0)
    return trace(lambda x: x * rng.rand()), [call(X())] * 3


@cases(eager="tensor-escapes")
def data_ptr(trace):
    return trace(lambda x, y: x.data_ptr() == y.data_ptr()), [call(X(), X()), call(X(), X())]


@cases(eager="tensor-escapes")
def ctypes_write(trace):
    @trace
    def fn(x):
        ctypes.c_float.from_address(x.data_ptr()).value = 9.0
        return x * 2

    return fn, [call(X()), call(X()), call(X())]


@cases(eager="reads")
def ctypes_array(trace):
    a = (ctypes.c_double * 2)(2.0, 2.0)
    return trace(lambda x: x * a[0]), around(lambda: a.__setitem__(0, 3.0), X())


@cases(eager="reads-attribute")
def ctypes_structure(trace):
    class S(ctypes.Structure):
        _fields_ = (("k", ctypes.c_double),)

    s = S(2.0)
    return trace(lambda x: x * s.k), around(lambda: setattr(s, "k", 3.0), X())


@cases(eager="sets-attribute")
def printing(trace):
    out = io.StringIO()

    @trace
    def fn(x):
        with contextlib.redirect_stdout(out):
            print("x is", float(x[0]))
        return x

    return fn, [call(X()), call(X()), call(X() + 1)], out.getvalue


@cases(hits=1)
def print_to_a_file(trace):
    out = io.StringIO()

    @trace
    def fn(x):
        print("called", file=out)
        return x

    return fn, [call(X()), call(X()), call(X() + 1)], out.getvalue


@cases(hits=2)
def writing_to_a_stream(trace):
    out = io.StringIO()

    @trace
    def fn(x):
        out.write("a")
        return x

    return fn, [call(X())] * 3, out.getvalue


@cases(hits=2)
def clock(trace):
    seen = []
    return trace(lambda x: (x, time.perf_counter() > 0, time.time() > 0)), [call(X())] * 3, lambda: seen


@cases(hits=3)
def python_random(trace):
    return trace(lambda x: x * random.random()), [call(X())] * 4


@cases(hits=4)
def python_random_bits(trace):
    return trace(lambda x: x * random.randrange(1000)), [call(X())] * 8


@cases(eager="calls-method")
def bound_put_of_a_queue(trace):
    import queue

    q = queue.SimpleQueue()
    put = q.put

    @trace
    def fn(x):
        put(1)
        return x * 2

    return fn, [call(X())] * 3, q.qsize


@cases(eager="calls-method")
def bound_append_of_an_array(trace):
    a = array.array("d")
    note = a.append

    @trace
    def fn(x):
        note(1.0)
        return x * 2

    return fn, [call(X())] * 3, lambda: list(a)


@cases(eager="reads")
def hash_object(trace):
    h = hashlib.sha256()
    update = h.update

    @trace
    def fn(x):
        update(b"a")
        return x * 2

    return fn, [call(X())] * 3, lambda: h.hexdigest()


@cases(hits=8)
def python_random_choice(trace):
    return trace(lambda x: x * random.choice([1, 2, 3]) + random.uniform(0, 1)), [call(X())] * 20


@cases(hits=2)
def logging_with_a_handler(trace):
    log = logging.getLogger("lt_soundness")
    log.handlers.clear()
    out = io.StringIO()
    log.addHandler(logging.StreamHandler(out))
    log.propagate = False
    log.setLevel(logging.WARNING)

    @trace
    def fn(x):
        log.info("called")
        return x * 2

    change = lambda: log.setLevel(logging.INFO)  # noqa: E731
    back = lambda: log.setLevel(logging.WARNING)  # noqa: E731
    return fn, [*[call(X())] * 4, change, call(X()), call(X()), back, call(X())], out.getvalue


@cases(hits=2)
def compiled_pattern(trace):
    o = Box(pattern=re.compile("a+"))
    steps = around(lambda: setattr(o, "pattern", re.compile("b+")), X())
    return trace(lambda x: x * 2 if o.pattern.match("aa") else x * 3), steps


@cases(hits=1)
def json_of_state(trace):
    d = {"k": 2.0}
    return trace(lambda x: (x, json.dumps(d))), around(lambda: d.update(k=3.0), X())


@cases(hits=1)
def math_of_a_tensor(trace):
    x = torch.tensor(2.0)
    return trace(lambda x: math.sqrt(x)), [call(x), call(x), call(x + 1)]


@cases(hits=2)
def math_of_state(trace):
    o = Box(dim=16)
    return trace(lambda x: x / math.sqrt(o.dim)), around(lambda: setattr(o, "dim", 4), X())


# copy.copy asks for the identity of what it has seen.
@cases(hits=2)
def copy_of_state(trace):
    o = Box(cfg={"k": [2.0]})
    return trace(lambda x: x * copy.deepcopy(o.cfg)["k"][0]), around(
        lambda: o.cfg["k"].__setitem__(0, 3.0), X()
    )


@cases(hits=2)
def copy_of_an_object(trace):
    o = Box(k=2.0)

    @trace
    def fn(x):
        mine = copy.copy(o)
        mine.k += 1
        return x * mine.k

    return fn, around(lambda: setattr(o, "k", 5.0), X()), lambda: o.k


# copy.deepcopy asks for the identity of what it has seen.
@cases(hits=1)
def deep_copy_of_a_tensor(trace):
    def fn(x):
        y = copy.deepcopy(x)
        y.add_(1)
        return y

    return trace(fn), [call(X()), call(X()), call(X() + 1)]


@cases(hits=1)
def float_int_bool_round(trace):
    x = torch.tensor(2.6)

    @trace
    def fn(x):
        return float(x), int(x), bool(x), round(float(x)), divmod(int(x), 2), f"{x.item():.1f}", complex(x)

    return fn, [call(x), call(x), call(x + 1), call(x + 1), call(x)]


# Tensor.__format__ looks at the number.
@cases(eager="tensor-escapes")
def formatted(trace):
    x = torch.tensor([2.5, 1.0])
    return trace(lambda x: (f"{x}", repr(x), str(x.sum()), format(x[0], ".2f"), f"{x[0].item():.1f}")), [
        call(x),
        call(x),
        call(x + 1),
        call(x),
    ]


@cases(hits=2)
def generator_expression_over_state(trace):
    s = [1.0, 2.0]
    return trace(lambda x: x * sum(v for v in s)), around(lambda: s.append(3.0), X())


@cases(hits=1)
def generator_function(trace):
    def rows(x):
        for row in x:
            yield row * 2
        yield from (x.sum(), x.max())

    return trace(lambda x: list(rows(x))), [call(X(2, 2)), call(X(2, 2)), call(X(2, 2))]


@cases(hits=2)
def abandoned_generator(trace):
    closed = []

    def rows(x):
        try:
            yield x * 2
            yield x * 3
        finally:
            closed.append(1)

    return trace(lambda x: next(rows(x))), [call(X())] * 3, lambda: list(closed)


@cases(hits=2)
def finalizer(trace):
    gone = []

    class Noisy:
        def __del__(self):
            gone.append(1)

    @trace
    def fn(x):
        Noisy()
        return x * 2

    return fn, [call(X())] * 3, lambda: list(gone)


@cases(hits=2)
def returned_object_with_a_finalizer(trace):
    gone = []

    class Noisy:
        def __init__(self, x):
            self.x = x

        def __del__(self):
            gone.append(1)

    return trace(lambda x: Noisy(x * 2).x), [call(X())] * 3, lambda: list(gone)


@cases(hits=1)
def counted_instances(trace):
    class Counted:
        ids = itertools.count()

        def __init__(self):
            self.id = next(self.ids)

    return trace(lambda x: x * Counted().id), [call(X())] * 4


@cases(eager="makes a weak reference with a callback")
def weak_set(trace):
    import weakref

    class Node:
        pass

    alive = weakref.WeakSet()

    @trace
    def fn(x):
        n = Node()
        alive.add(n)
        return x * len(alive), n

    return fn, [call(X())] * 3, lambda: len(alive)


@cases.parametrize
def test_calls_into_c(make, expected):
    check(make, **expected)
