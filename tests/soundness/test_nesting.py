"""Traced functions that call, decorate and receive traced functions; script_if_tracing and opaque."""

from __future__ import annotations

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, around, call, check, opaque

cases = Cases()


def scripted(trace, fn):
    return lazytrace.script_if_tracing(fn) if trace.enabled else fn


@cases(hits=2)
def inner_closure_changes(trace):
    k = 2.0
    inner = trace(lambda x: x * k)
    outer = trace(lambda x: inner(x) + 1)

    def change():
        nonlocal k
        k = 3.0

    return outer, around(change, X())


@cases(hits=2)
def inner_rebound(trace):
    inner = trace(lambda x: x * 2)
    outer = trace(lambda x: inner(x) + 1)

    def change():
        nonlocal inner
        inner = trace(lambda x: x * 3)

    return outer, around(change, X())


@cases(hits=2)
def inner_called_alone_too(trace):
    inner = trace(lambda x: x * 2)
    outer = trace(lambda x: inner(x) + 1)
    return outer, [call(X()), call(X()).of(inner), call(X()), call(X()).of(inner), call(X())]


@cases(hits=2)
def inner_with_an_effect(trace):
    seen = []

    @trace
    def inner(x):
        seen.append(1)
        return x * 2

    return trace(lambda x: inner(x) + 1), [call(X())] * 3, lambda: list(seen)


@cases(hits=2)
def traced_method(trace):
    class Model:
        def __init__(self, k):
            self.k = k

        @trace
        def step(self, x):
            return x * self.k

        @trace
        def twice(self, x):
            return self.step(self.step(x))

    a, b = Model(2.0), Model(3.0)
    return a.twice, [
        call(X()),
        call(X()),
        call(X()).of(b.twice),
        call(X()).of(b.twice),
        lambda: setattr(a, "k", 5.0),
        call(X()),
        call(X()),
    ]


@cases(hits=2)
def class_and_static_methods(trace):
    class Model:
        k = 2.0

        @classmethod
        @trace
        def make(cls, x):
            return x * cls.k

        @staticmethod
        @trace
        def plain(x):
            return x + 1

    class Other(Model):
        k = 3.0

    return Model.make, [
        call(X()),
        call(X()),
        call(X()).of(Other.make),
        call(X()).of(Other.make),
        call(X()).of(Model.plain),
        call(X()).of(Other.plain),
    ]


@cases(hits=1)
def traced_over_class_method(trace):
    class Model:
        k = 2.0

        @trace
        @classmethod
        def make(cls, x):
            return x * cls.k

        @trace
        @staticmethod
        def plain(x):
            return x + 1

    return Model.make, [
        call(X()),
        call(X()),
        lambda: setattr(Model, "k", 3.0),
        call(X()),
        call(X()).of(Model.plain),
        call(X()).of(Model().plain),
    ]


@cases(hits=2)
def traced_callable_object(trace):
    class Scale:
        k = 2.0

        def __call__(self, x):
            return x * self.k

    o = Scale()
    return trace(o), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def traced_bound_method(trace):
    class Scale:
        k = 2.0

        def f(self, x):
            return x * self.k

    o = Scale()
    return trace(o.f), around(lambda: setattr(o, "k", 3.0), X())


@cases(hits=2)
def traced_builtin(trace):
    return trace(torch.sin), [call(X(grad=True))] * 3


@cases(hits=1)
def traced_function_as_argument(trace):
    inner = trace(lambda x: x * 2)
    other = trace(lambda x: x * 3)
    outer = trace(lambda f, x: f(x) + 1)
    return outer, [call(inner, X()), call(inner, X()), call(other, X()), call(other, X())]


@cases(hits=1)
def mapped(trace):
    inner = trace(lambda x: x * 2)
    outer = trace(lambda *xs: sum(map(inner, xs)))
    return outer, [call(X(), X() + 1)] * 3


@cases(hits=1)
def decorator_around(trace):
    def logged(f):
        def wrapper(*args):
            wrapper.calls += 1
            return f(*args)

        wrapper.calls = 0
        return wrapper

    inner = logged(trace(lambda x: x * 2))
    outer = trace(logged(lambda x: x * 2))
    return inner, [call(X()), call(X()), call(X()).of(outer), call(X()).of(outer)], lambda: inner.calls


@cases(hits=2)
def script_with_a_loop(trace):
    def shrink(x, limit: float):
        while x.norm() > limit:
            x = x * 0.5
        return x

    helper = scripted(trace, shrink)
    return trace(lambda x: helper(x, 1.0) + 1), [
        call(X(grad=True)),
        call((X() * 10).requires_grad_()),
        call((X() * 100).requires_grad_()),
    ]


@cases(hits=3)
def script_of_other_shapes(trace):
    def pick(x):
        return x[x > 0]

    helper = scripted(trace, pick)
    return trace(lambda x: helper(x) + 1), [call(X()), call(X()), call(-X()), call(-X()), call(X())]


@cases(hits=3)
def script_of_other_shapes_then_a_sum(trace):
    def pick(x):
        return x[x > 0]

    helper = scripted(trace, pick)
    return trace(lambda x: helper(x).sum() * 2), [call(X()), call(X()), call(-X()), call(-X()), call(X())]


@cases(hits=2)
def script_that_writes(trace):
    def bump(x):
        x.add_(1)
        return x * 2

    helper = scripted(trace, bump)
    return trace(lambda x: helper(x) + 1), [call(X())] * 3


@cases(hits=3)
def script_that_returns_a_number(trace):
    def count(x) -> int:
        return int((x > 0).sum())

    helper = scripted(trace, count)
    return trace(lambda x: x * helper(x)), [call(X()), call(X()), call(-X()), call(-X()), call(X())]


@cases(hits=3)
def script_of_untyped_python(trace):
    def odd(x, options):
        return x * options["k"] if x.sum() > 0 else x - 1

    helper = scripted(trace, odd)
    o = {"k": 2.0}
    return trace(lambda x: helper(x, o)), [
        call(X()),
        call(X()),
        call(-X()),
        lambda: o.update(k=3.0),
        call(X()),
    ]


@cases(hits=3)
def script_reads_a_global_of_its_own(trace):
    k = [2.0]

    def helper(x):
        return x * k[0]

    inner = scripted(trace, helper)
    return trace(lambda x: inner(x) + 1), around(lambda: k.__setitem__(0, 3.0), X())


@cases(hits=2)
def opaque_with_an_effect(trace):
    seen = []
    note = opaque(trace, lambda x: seen.append(float(x.sum())))

    def fn(x):
        note(x)
        return x * 2

    return trace(fn), [call(X()), call(X()), call(X() + 1)], lambda: list(seen)


@cases(hits=2)
def opaque_that_returns_a_number(trace):
    total = opaque(trace, lambda x: float(x.sum()))
    return trace(lambda x: x * total(x)), [call(X()), call(X()), call(X() + 1), call(X())]


@cases(hits=2)
def opaque_of_other_shapes(trace):
    pick = opaque(trace, lambda x: x[x > 0])
    return trace(lambda x: pick(x) * 2), [call(X()), call(X()), call(-X()), call(X())]


@cases(hits=2)
def opaque_numpy(trace):
    by_numpy = opaque(trace, lambda x: torch.from_numpy(x.numpy() * 2))
    return trace(lambda x: by_numpy(x) + 1), [call(X()), call(X()), call(X() + 1)]


@cases(hits=2)
def opaque_that_writes_an_argument(trace):
    def bump(x):
        x.numpy()[0] += 1

    bump_it = opaque(trace, bump)

    def fn(x):
        y = x * 1
        bump_it(y)
        return y

    return trace(fn), [call(X())] * 3


@cases(hits=2)
def opaque_that_returns_its_argument(trace):
    same = opaque(trace, lambda x: x)
    return trace(lambda x: same(x)), [call(X())] * 3


@cases(eager="opaque-result")
def opaque_that_returns_an_object(trace):
    class Box:
        def __init__(self, y):
            self.y = y

    box = opaque(trace, lambda x: Box(x * 2))
    return trace(lambda x: box(x).y + 1), [call(X())] * 3


@cases(hits=2)
def opaque_that_returns_containers(trace):
    parts = opaque(trace, lambda x: {"a": [x * 2, x], "n": None})
    return trace(lambda x: parts(x)["a"][0] + 1), [call(X())] * 3


@cases(hits=2)
def opaque_that_raises(trace):
    def picky(x):
        if x.sum() < 0:
            raise KeyError("negative")
        return x * 2

    helper = opaque(trace, picky)
    return trace(lambda x: helper(x) + 1), [call(X()), call(X()), call(-X()), call(X())]


@cases(hits=2)
def opaque_rebound(trace):
    helper = opaque(trace, lambda x: x * 2)

    def change():
        nonlocal helper
        helper = opaque(trace, lambda x: x * 3)

    return trace(lambda x: helper(x) + 1), around(change, X())


@cases(hits=3)
def opaque_gets_state(trace):
    o = {"k": 2.0}
    helper = opaque(trace, lambda x, o: x * o["k"])
    return trace(lambda x: helper(x, o)), around(lambda: o.update(k=3.0), X())


@cases(hits=3)
def opaque_draws_random_numbers(trace):
    helper = opaque(trace, lambda x: x + torch.rand(3))
    return trace(lambda x: helper(x) * 2), [call(X())] * 4


@cases(hits=2)
def disabled_inside(trace):
    def fn(x):
        with lazytrace.disabled():
            return x * 2

    return trace(fn), [call(X())] * 3


@cases(hits=2)
def opaque_changes_a_number_that_is_read_later(trace):
    o = {"k": 1.0}
    bump = opaque(trace, lambda x: o.update(k=o["k"] + 1))

    def fn(x):
        bump(x)
        return x * o["k"]

    return trace(fn), [call(X())] * 4, lambda: dict(o)


@cases(hits=2)
def opaque_changes_a_tensor_that_is_read_later(trace):
    o = {"w": torch.ones(3)}

    def grow(x):
        o["w"] = o["w"] + 1

    bump = opaque(trace, grow)

    def fn(x):
        bump(x)
        return x * o["w"]

    return trace(fn), [call(X())] * 4, lambda: dict(o)


# Each call changes what the next one reads.
@cases(hits=2)
def opaque_changes_what_was_read_before(trace):
    o = {"k": 1.0}
    bump = opaque(trace, lambda x: o.update(k=o["k"] + 1))

    def fn(x):
        y = x * o["k"]
        bump(x)
        return y

    return trace(fn), [call(X())] * 4, lambda: dict(o)


@cases(hits=3)
def opaque_writes_a_tensor_of_state(trace):
    w = torch.ones(3)
    bump = opaque(trace, lambda x: (w.add_(1), None)[1])

    def fn(x):
        bump(x)
        return x * w

    return trace(fn), [call(X())] * 4, lambda: w


# Each call changes what the next one reads.
@cases(hits=3)
def opaque_writes_a_tensor_that_python_reads(trace):
    w = torch.ones(3)
    bump = opaque(trace, lambda x: (w.add_(1), None)[1])

    def fn(x):
        bump(x)
        return x * w[0].item()

    return trace(fn), [call(X())] * 4, lambda: w


@cases(hits=2)
def opaque_switches_grad_mode(trace):
    switch = opaque(trace, lambda flag: (torch.set_grad_enabled(flag), None)[1])

    def fn(x):
        switch(False)
        y = x * 2
        switch(True)
        return y

    return trace(fn), [call(X(grad=True))] * 3


@cases(hits=3)
def decorated_by_no_grad_outside_and_inside(trace):
    outside = torch.no_grad()(trace(lambda x: x * 2))
    inside = trace(torch.no_grad()(lambda x: x * 2))
    x = X(grad=True)
    return outside, [call(x), call(x), call(x).of(inside), call(x).of(inside), call(x)]


@cases(hits=2)
def unbound_method(trace):
    class Model:
        def __init__(self, k):
            self.k = k

        @trace
        def step(self, x):
            return x * self.k

    a, b = Model(2.0), Model(3.0)
    return Model.step, [call(a, X()), call(a, X()), call(b, X()), call(b, X()), call(self=a, x=X())]


@cases(hits=1)
def traced_super_method(trace):
    class Base:
        k = 2.0

        @trace
        def step(self, x):
            return x * self.k

    class Model(Base):
        @trace
        def step(self, x):
            return super().step(x) + 1

    a = Model()
    return a.step, [
        call(X()),
        call(X()),
        lambda: setattr(Base, "k", 3.0),
        call(X()),
        call(X()),
        call(X()).of(Base().step),
    ]


@cases(hits=1)
def traced_property(trace):
    class Model:
        k = 2.0

        @property
        @trace
        def w(self):
            return torch.ones(3) * self.k

    a = Model()
    return (lambda x: a.w * x), [call(X()), call(X()), lambda: setattr(a, "k", 3.0), call(X()), call(X())]


@cases(hits=3)
def traced_singledispatch(trace):
    import functools

    @functools.singledispatch
    def fn(v, x):
        return x * 1

    fn.register(int, lambda v, x: x * 2)
    traced = trace(lambda v, x: fn(v, x))

    def change():
        fn.register(int, lambda v, x: x * 5)

    return traced, [
        call(1, X()),
        call(1, X()),
        call("a", X()),
        call("a", X()),
        change,
        call(1, X()),
        call(1, X()),
    ]


@cases(hits=4, recordings=2)
def two_states_in_turn(trace):
    o = {"k": 2.0}
    steps = []
    for k in (2.0, 3.0, 2.0, 3.0, 2.0, 3.0):
        steps += [lambda k=k: o.update(k=k), call(X())]
    return trace(lambda x: x * o["k"]), steps


@cases(hits=7, recordings=2)
def cache_of_one_program_for_all_sizes(trace):
    fn = trace(lambda x: x * 2 + len(x), cache_limit=1)
    return fn, [call(torch.ones(n)) for n in (1, 1, 2, 2, 1, 3, 3, 1, 1)]


@cases(hits=4)
def cache_of_one(trace):
    fn = trace(lambda x: x * 2 + len(x), cache_limit=1, dynamic=False)
    return fn, [call(torch.ones(n)) for n in (1, 1, 2, 2, 1, 3, 3, 1, 1)]


@cases(hits=2)
def no_proof(trace):
    fn = trace(lambda x: (x * 2, torch.tensor([1.0]), x[1:]), check=False)
    return fn, [call(X(grad=True))] * 3


@cases(hits=3)
def positional_only_and_keyword_only(trace):
    def fn(a, /, b, *rest, c, d=4, **more):
        return a * b + c + d + sum(rest) + sum(more.values())

    x = X()
    return trace(fn), [
        call(x, 1, c=2),
        call(x, 1, c=2),
        call(x, b=1, c=2),
        call(x, 1, 2, 3, c=2, a=5),
        call(x, 1, 2, 3, c=2, a=5),
    ]


@cases(hits=1)
def containers_of_other_nesting(trace):
    fn = trace(lambda t: (t, str(t)))
    shapes = [
        [1, [2]],
        [[1], 2],
        [1, 2],
        (1, 2),
        [(1,), 2],
        [1, (2,)],
        {"a": 1},
        {"a": [1]},
        [],
        [[]],
        (),
        "",
        [None],
        None,
    ]
    return fn, [call(s) for s in shapes for _ in range(2)]


@cases(hits=2)
def long_program(trace):
    def fn(x):
        for i in range(600):
            x = x * 1.001 + i
        return x

    return trace(fn), [call(X(grad=True))] * 3


@cases.parametrize
@pytest.mark.filterwarnings("ignore")
def test_nesting(make, expected):
    check(make, **expected)
