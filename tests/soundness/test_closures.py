"""Closure cells, nonlocals, defaults and code of functions that change between calls."""

from __future__ import annotations

import functools
import types

import torch

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


@cases(hits=2, recordings=2)
def rebind_number(trace):
    scale = 2.0

    def change():
        nonlocal scale
        scale = 3.0

    return trace(lambda x: x * scale), around(change, X())


@cases(hits=3)
def rebind_tensor(trace):
    w = torch.ones(3)

    def change():
        nonlocal w
        w = torch.full((3,), 5.0)

    return trace(lambda x: x * w), around(change, X())


@cases(hits=2)
def int_to_bool_to_float(trace):
    k = 1

    def to(value):
        def change():
            nonlocal k
            k = value

        return change

    x = torch.tensor([1, 2])
    steps = [call(x), call(x), to(True), call(x), call(x), to(1.0), call(x), call(x)]
    return trace(lambda x: (x * k, k)), steps


@cases(hits=2)
def shared_cell_comes_apart(trace):
    def build():
        n = torch.tensor(2.0)
        return (lambda x: x + n + held["g"](x)), (lambda x: x * n)

    held = {}
    f, held["g"] = build()

    def change():
        cell = types.CellType(torch.tensor(5.0))
        held["g"] = types.FunctionType(held["g"].__code__, globals(), "g", None, (cell,))

    return trace(f), around(change, X())


@cases(hits=3)
def zero_to_negative_zero_to_nan(trace):
    k = 0.0

    def to(value):
        def change():
            nonlocal k
            k = value

        return change

    x = X()
    steps = [call(x), call(x), to(-0.0), call(x), call(x), to(float("nan")), call(x), call(x)]
    return trace(lambda x: (torch.copysign(x, torch.tensor(k)), k)), steps


@cases(hits=3)
def nonlocal_counter(trace):
    count = 0

    @trace
    def fn(x):
        nonlocal count
        count += 1
        return x + count

    return fn, [call(X())] * 4, lambda: count


@cases(hits=2)
def helper_in_a_cell(trace):
    def helper(x):
        return x * 2

    def other(x):
        return x * 5

    def change():
        nonlocal helper
        helper = other

    return trace(lambda x: helper(x)), around(change, X())


@cases(hits=2)
def helper_from_the_same_factory(trace):
    def scaled(k):
        return lambda x: x * k

    helper = scaled(2.0)

    def change():
        nonlocal helper
        helper = scaled(3.0)

    return trace(lambda x: helper(x)), around(change, X())


@cases(hits=2)
def helper_with_other_defaults(trace):
    def scaled(k):
        def inner(x, k=k):
            return x * k

        return inner

    helper = scaled(2.0)

    def change():
        nonlocal helper
        helper = scaled(3.0)

    return trace(lambda x: helper(x)), around(change, X())


@cases(hits=2)
def helper_with_other_keyword_defaults(trace):
    def helper(x, *, k=2.0):
        return x * k

    def change():
        helper.__kwdefaults__["k"] = 7.0

    return trace(lambda x: helper(x)), around(change, X())


@cases(hits=2)
def cell_of_a_helper_of_a_helper(trace):
    k = 2.0

    def low(x):
        return x * k

    def high(x):
        return low(x) + 1

    def change():
        nonlocal k
        k = 4.0

    return trace(lambda x: high(x)), around(change, X())


@cases(hits=2)
def own_defaults(trace):
    def fn(x, k=2.0):
        return x * k

    return trace(fn), around(lambda: setattr(fn, "__defaults__", (6.0,)), X())


@cases(hits=2)
def own_keyword_defaults_in_place(trace):
    def fn(x, *, k=2.0):
        return x * k

    return trace(fn), around(lambda: fn.__kwdefaults__.update(k=6.0), X())


@cases(hits=2)
def own_code(trace):
    def fn(x):
        return x * 2

    def other(x):
        return x - 7

    return trace(fn), around(lambda: setattr(fn, "__code__", other.__code__), X())


@cases(hits=2)
def code_of_a_helper(trace):
    def helper(x):
        return x * 2

    def other(x):
        return x - 7

    return trace(lambda x: helper(x)), around(lambda: setattr(helper, "__code__", other.__code__), X())


@cases(hits=2)
def attribute_of_a_function(trace):
    def fn(x):
        return x * fn.k

    fn.k = 2.0
    return trace(fn), around(lambda: setattr(fn, "k", 3.0), X())


@cases(hits=2)
def contents_of_a_cell_by_hand(trace):
    k = 2.0

    def helper():
        return k

    def change():
        nonlocal k
        k = 3.0

    return trace(lambda x: x * helper.__closure__[0].cell_contents), around(change, X())


@cases(hits=2)
def helper_in_other_globals(trace):
    code = compile("def helper(x):\n    return x * scale", "made.py", "exec")
    one, two = ({"scale": 2.0, "__name__": "made"}, {"scale": 3.0, "__name__": "made"})
    exec(code, one)
    helper = one["helper"]

    def change():
        nonlocal helper
        helper = types.FunctionType(helper.__code__, two, "helper")

    return trace(lambda x: helper(x)), around(change, X())


@cases(hits=2)
def partial_rebound(trace):
    def scale(k, x):
        return x * k

    part = functools.partial(scale, 2.0)

    def change():
        nonlocal part
        part = functools.partial(scale, 3.0)

    return trace(lambda x: part(x)), around(change, X())


@cases(hits=2)
def partial_keywords_in_place(trace):
    def scale(x, k=1.0):
        return x * k

    part = functools.partial(scale, k=2.0)
    return trace(lambda x: part(x)), around(lambda: part.keywords.update(k=3.0), X())


@cases(hits=2)
def partial_of_a_tensor(trace):
    w = torch.ones(3)
    part = functools.partial(torch.mul, w)

    def change():
        nonlocal part
        part = functools.partial(torch.mul, w * 2)

    return trace(lambda x: part(x)), around(change, X())


@cases(hits=2)
def traced_partial(trace):
    options = {"k": 2.0}
    fn = trace(functools.partial(lambda x, o: x * o["k"], o=options))
    return fn, around(lambda: options.update(k=3.0), X())


@cases(hits=1)
def deleted_cell(trace):
    k = 2.0

    def change():
        nonlocal k
        del k

    return trace(lambda x: x * k), around(change, X())


@cases(hits=2)
def function_argument_with_a_closure(trace):
    def scaled(k):
        return lambda x: x * k

    f, g = scaled(2.0), scaled(3.0)
    x = X()
    return trace(lambda f, x: f(x)), [call(f, x), call(f, x), call(g, x), call(g, x), call(f, x)]


@cases(hits=2)
def class_in_a_cell(trace):
    class A:
        k = 2.0

    class B:
        k = 3.0

    cls = A

    def change():
        nonlocal cls
        cls = B

    return trace(lambda x: x * cls.k), around(change, X())


@cases(hits=1)
def cell_shared_with_inner_function(trace):
    @trace
    def fn(x):
        total = x

        def add(y):
            nonlocal total
            total = total + y

        for i in range(3):
            add(x * i)
        return total

    return fn, [call(X(grad=True))] * 3


@cases(hits=1)
def recursion(trace):
    @trace
    def fn(x, n):
        return x if n == 0 else fn(x * 2, n - 1)

    return fn, [call(X(), 3), call(X(), 3), call(X(), 2), call(X(), 2)]


@cases(hits=2)
def lambda_list_late_binding(trace):
    fs = [lambda x, i=i: x * i for i in range(3)]

    @trace
    def fn(x):
        for f in fs:
            x = f(x) + 1
        return x

    return fn, around(lambda: fs.pop(0), X())


@cases.parametrize
def test_closures(make, expected):
    check(make, **expected)
