"""What training loops have around them: logs, caches of functions, copies, generators, flags of caches."""

from __future__ import annotations

import collections
import copy
import functools

import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Thing:
    """State with what the cases need."""

    def __init__(self, **values):
        self.__dict__.update(values)


# ---------------------------------------------------------------- logs
@cases(hits=4)
def logs_are_updated(trace):
    logs = {"epoch": 3}

    def fn(x):
        logs.update({"loss": x.sum()})
        logs.update(mean=x.mean(), std=x.std())
        logs.update()
        return x * 2

    return trace(fn), [call(k * X()) for k in range(5)], lambda: logs


@cases(hits=4)
def logs_are_updated_with_keywords_of_a_dict(trace):
    logs = {}

    def fn(x):
        more = {"loss": x.sum(), "mean": x.mean()}
        logs.update({"first": x}, **more)
        return x * 2

    return trace(fn), [call(k * X()) for k in range(5)], lambda: logs


@cases(hits=2)
def updated_with_state(trace):
    logs, more = {}, {"a": 1, "b": X()}

    def fn(x):
        logs.update(more)
        return x * 2

    return trace(fn), around(lambda: more.update(c=3), X()), lambda: (logs, more)


@cases(hits=2)
def updated_in_an_order(trace):
    logs = {"b": 0}

    def fn(x):
        logs.update({"a": x, "b": x + 1, "c": x + 2})
        return x * 2

    return trace(fn), around(logs.clear, X()), lambda: (logs, list(logs))


@cases(hits=2)
def updated_with_itself(trace):
    logs = {"a": 1}

    def fn(x):
        logs.update(logs)
        return x * logs["a"]

    return trace(fn), around(lambda: logs.update(a=2), X()), lambda: logs


@cases(hits=2)
def updated_through_a_partial(trace):
    logs = {}
    note = functools.partial(logs.update, kind="train")

    def fn(x):
        note(loss=x.sum())
        return x * 2

    def only(x):
        functools.partial(logs.update, loss=x.sum())()
        return x * 2

    second = trace(only)
    return trace(fn), [*around(logs.clear, X()), *[call(X()).of(second) for _ in range(3)]], lambda: logs


@cases(hits=2)
def updated_with_pairs(trace):
    logs = {}

    def fn(x):
        logs.update([("a", x)])
        return x * 2

    return trace(fn), around(logs.clear, X()), lambda: logs


@cases(hits=2)
def updated_under_odd_keys(trace):
    logs = {}

    def fn(x):
        logs.update({1.0: x})
        return x * 2

    return trace(fn), around(logs.clear, X()), lambda: logs


@cases(recordings=4)
def updated_and_iterated(trace):
    logs = {"a": 1}

    def fn(x):
        logs.update(loss=x.sum())
        return x * 2, list(logs)

    return trace(fn), around(logs.clear, X()), lambda: logs


@cases(hits=3)
def lists_under_names_grow(trace):
    logs = collections.defaultdict(list)

    def fn(x):
        logs["loss"].append(x.sum())
        logs["mean"].append(x.mean())
        return x * 2

    return trace(fn), [call(k * X()) for k in range(5)], lambda: dict(logs)


# ---------------------------------------------------------------- caches of functions
@cases(hits=2)
def cache_with_keywords_of_a_dict(trace):
    @functools.lru_cache
    def scale(n, k=2):
        return n * k

    options = {"k": 3}
    return trace(lambda x: x * scale(2, **options)), [
        call(X()),
        *around(lambda: options.update(k=4), X()),
        call(X()),
    ]


@cases(hits=2)
def cache_behind_a_partial(trace):
    @functools.lru_cache
    def scale(n, k=2):
        return n * k

    half = functools.partial(scale, 2)
    return trace(lambda x: x * half(3)), [call(X()), *around(scale.cache_clear, X())]


@cases(eager="functools cache")
def cache_behind_a_partial_with_keywords(trace):
    @functools.lru_cache
    def scale(n, k=2):
        return n * k

    half = functools.partial(scale, k=5)
    return trace(lambda x: x * half(3)), [call(X()), *around(scale.cache_clear, X())]


# ---------------------------------------------------------------- copies
class Config:
    """Plain values, as configurations have."""

    def __init__(self):
        self.scale, self.names, self.more = 2.0, ["a", "b"], {"k": 3}


@cases(hits=2)
def copied(trace):
    config = Config()

    def change():
        config.scale = 5.0

    return trace(lambda x: x * copy.copy(config).scale), [call(X()), *around(change, X())]


@cases(hits=1)
def copied_and_changed(trace):
    config = Config()

    def fn(x):
        mine = copy.copy(config)
        mine.scale = mine.scale + 1
        return x * mine.scale

    def change():
        config.scale = 5.0

    return trace(fn), [call(X()), *around(change, X())], lambda: config


@cases(hits=1)
def copied_by_a_method_later(trace):
    class Other(Config):
        pass

    config = Other()

    def change():
        Other.__copy__ = lambda self: Thing(scale=7.0)

    return trace(lambda x: x * copy.copy(config).scale), [call(X()), *around(change, X())]


@cases(hits=1)
def copied_by_another_state_later(trace):
    class Other(Config):
        pass

    config = Other()

    def change():
        Other.__getstate__ = lambda self: {"scale": 7.0}

    return trace(lambda x: x * copy.copy(config).scale), [call(X()), *around(change, X())]


@cases(hits=1)
def copied_where_an_attribute_is_added(trace):
    config = Config()

    def change():
        config.extra = 9.0

    return trace(lambda x: x * getattr(copy.copy(config), "extra", 1.0)), [call(X()), *around(change, X())]


class Nothing:
    scale = 1.0


@cases(hits=1)
def copy_of_an_object_that_had_no_attributes(trace):
    """Its copy is not given any then; that there were none is known all the same."""
    thing = Nothing()

    def change():
        thing.scale = 5.0

    def fn(x):
        mine = copy.copy(thing)
        return x * 2, vars(mine)

    return trace(fn), [call(X()), *around(change, X())]


@cases(hits=2)
def copied_deeply(trace):
    config = Config()

    def fn(x):
        mine = copy.deepcopy(config)
        mine.names.append("c")
        mine.more["k"] += 1
        return x * mine.scale, mine.names, mine.more

    def change():
        config.more["k"] = 7

    return trace(fn), [call(X()), *around(change, X())], lambda: vars(config)


@cases(hits=1)
def copied_deeply_where_parts_become_one(trace):
    config = Config()
    config.first, config.second = [1, 2], [1, 2]

    def fn(x):
        mine = copy.deepcopy(config)
        mine.first.append(3)
        return x * len(mine.second)

    def change():
        config.second = config.first

    return trace(fn), [call(X()), *around(change, X())]


@cases(hits=1)
def copied_deeply_by_a_method_later(trace):
    config = Config()
    config.part = Thing(k=2.0)

    def change():
        Thing.__deepcopy__ = lambda self, memo: Thing(k=self.k + 1)

    def back():
        del Thing.__deepcopy__

    fn = trace(lambda x: x * copy.deepcopy(config).part.k)
    return fn, [call(X()), *around(change, X()), back, call(X())]


@cases(hits=1)
def called_with_other_parameters(trace):
    m = nn.Linear(3, 3)
    other = {name: p.detach() * 2 for name, p in m.named_parameters()}

    def change():
        other["bias"] = other["bias"] + 1

    fn = trace(lambda x: torch.func.functional_call(m, other, (x,)))
    return fn, around(change, X(2, 3)), lambda: (list(m.parameters()), other)


@cases(hits=1)
def called_with_parameters_that_require_gradients(trace):
    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    other = {name: (p.detach() * 2).requires_grad_() for name, p in m.named_parameters()}
    fn = trace(lambda x: torch.func.functional_call(m, other, (x,)))
    return fn, around(m.eval, X(4, 3)), lambda: (list(m.parameters()), list(m.buffers()), other)


# ---------------------------------------------------------------- generators of random numbers
@cases(hits=4)
def generator_among_the_arguments(trace):
    g = torch.Generator().manual_seed(3)
    fn = trace(lambda x, g: x + torch.rand(3, generator=g))
    return fn, [call(X(), g) for _ in range(5)], lambda: g.get_state()


@cases(hits=3)
def another_generator(trace):
    a, b = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    fn = trace(lambda x, g: x + torch.rand(3, generator=g))
    return fn, [call(X(), g) for g in (a, b, a, b)], lambda: (a.get_state(), b.get_state())


@cases(hits=4)
def generator_in_state(trace):
    o = Thing(g=torch.Generator().manual_seed(3))

    def change():
        o.g = torch.Generator().manual_seed(8)

    fn = trace(lambda x: x + torch.normal(0.0, 1.0, (3,), generator=o.g))
    return fn, [*around(change, X()), call(X())], lambda: o.g.get_state()


@cases(hits=2)
def two_generators(trace):
    a, b = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)

    def fn(x, g, h):
        return x + torch.rand(3, generator=g), x + torch.rand(3, generator=h)

    steps = [call(X(), a, b), call(X(), b, a), call(X(), a, a), call(X(), a, b)]
    return trace(fn), steps, lambda: (a.get_state(), b.get_state())


@cases(hits=2)
def generator_beside_the_default_one(trace):
    g = torch.Generator().manual_seed(3)

    def fn(x):
        return torch.rand(3) + torch.rand(3, generator=g) + torch.randperm(3, generator=g)

    return trace(fn), [call(X()) for _ in range(3)], lambda: g.get_state()


@cases(hits=2)
def generator_becomes_none(trace):
    o = Thing(g=torch.Generator().manual_seed(3))

    def change():
        o.g = None

    return trace(lambda x: x + torch.rand(3, generator=o.g)), around(change, X())


@cases(hits=3)
def value_of_what_a_generator_gave(trace):
    g = torch.Generator().manual_seed(3)

    def fn(x):
        noise = torch.rand(3, generator=g)
        return x + noise if noise.sum() > 1.5 else x - noise

    return trace(fn), [call(X()) for _ in range(8)], lambda: g.get_state()


@cases(hits=2)
def in_place_draw(trace):
    g = torch.Generator().manual_seed(3)

    def fn(x):
        return x.clone().uniform_(0, 1, generator=g), x.bernoulli(0.5, generator=g)

    return trace(fn), [call(torch.ones(3) / 2) for _ in range(3)], lambda: g.get_state()


@cases(hits=1)
def generator_seeded_inside(trace):
    g = torch.Generator().manual_seed(3)
    return trace(lambda x: x + torch.rand(3, generator=g.manual_seed(1))), [call(X()), call(X())]


@cases(hits=1)
def generator_made_inside(trace):
    return trace(lambda x: x + torch.rand(3, generator=torch.Generator().manual_seed(1))), [
        call(X()),
        call(X()),
    ]


# ---------------------------------------------------------------- autocast and random numbers
@cases(hits=3)
def dropout_inside_autocast(trace):
    m = nn.Linear(3, 3)

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.dropout(m(x), 0.5, True)

    return trace(fn), [call(X(2, 3)) for _ in range(4)]


@cases(hits=3)
def dropout_inside_autocast_inside_try(trace):
    m = nn.Linear(3, 3)

    def fn(x):
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return F.dropout(m(x), 0.5, True)
        except ValueError:
            return x

    return trace(fn), [call(X(2, 3)) for _ in range(4)]


@cases(hits=3)
def dropout_inside_autocast_inside_finally(trace):
    m, seen = nn.Linear(3, 3), []

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            try:
                return F.dropout(m(x), 0.5, True)
            finally:
                seen.append(x)

    return trace(fn), [call(X(2, 3)) for _ in range(4)], lambda: seen


@cases(hits=3)
def dropout_inside_a_context_that_suppresses(trace):
    class Suppress:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return True

    m = nn.Linear(3, 3)

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16), Suppress():
            return F.dropout(m(x), 0.5, True)

    return trace(fn), [call(X(2, 3)) for _ in range(4)]


# ---------------------------------------------------------------- flags and tuples that are kept
class Layer:
    """A cache as transformers have: it is made when it is first used."""

    def __init__(self):
        self.ready, self.keys = False, None

    def update(self, k):
        if not self.ready:
            self.keys, self.ready = k.new_zeros(0, 3), True
        self.keys = torch.cat([self.keys, k])
        return self.keys


@cases(hits=3)
def flag_of_a_new_object_at_each_call(trace):
    caches = []

    fn = trace(lambda x, cache: cache.update(x).sum(0))
    steps = []
    for _ in range(4):
        layer = Layer()
        caches.append(layer)
        steps.append(call(X(2, 3), layer))
    return fn, steps, lambda: caches


@cases(hits=1)
def flag_that_toggles(trace):
    o = Thing(odd=False)

    def fn(o, x):
        o.odd = not o.odd
        return x * 2 if o.odd else x * 3

    return trace(fn), [call(o, X()) for _ in range(6)], lambda: o


@cases(hits=3)
def hidden_state_as_a_tuple(trace):
    m = nn.LSTM(3, 3)
    o = Thing(hidden=(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)))

    def fn(x):
        out, (h, c) = m(x, o.hidden)
        o.hidden = (h.detach(), c.detach())
        return out

    return trace(fn), [call(X(4, 2, 3)) for _ in range(5)], lambda: o.hidden


@cases(hits=2)
def hidden_state_that_becomes_a_list(trace):
    o = Thing(hidden=(torch.zeros(3), torch.ones(3)))

    def fn(x):
        a, b = o.hidden
        o.hidden = (b + x, a)
        return a + b

    def change():
        o.hidden = [*o.hidden]

    return trace(fn), [*around(change, X()), call(X())], lambda: o.hidden


# ---------------------------------------------------------------- logs that are no lists and dicts
@cases(hits=3)
def deque_that_is_appended_to(trace):
    log = collections.deque(maxlen=3)

    def fn(x):
        log.append(x.sum())
        log.append(x)
        return x * 2

    return trace(fn), [call(X(3)) for _ in range(5)], lambda: [list(log), log.maxlen]


@cases(hits=1)
def deque_that_is_another(trace):
    holder = Thing(log=collections.deque(maxlen=3))

    def fn(x):
        holder.log.append(x)
        return x * 2

    class Counts(collections.deque):
        def append(self, x):
            super().append(x * 2)

    def change():
        holder.log = Counts()

    return (
        trace(fn),
        [call(X(3)) for _ in range(3)] + [change] + [call(X(3)) for _ in range(3)],
        (lambda: list(holder.log)),
    )


@cases(hits=2)
def deque_that_is_read_behind(trace):
    log = collections.deque(maxlen=3)

    def fn(x):
        log.append(x)
        return x * len(log)

    return trace(fn), [call(X(3)) for _ in range(5)], lambda: list(log)


@cases(hits=2)
def deque_that_is_read_before(trace):
    log = collections.deque([0.0], maxlen=3)

    def fn(x):
        last = log[-1]
        log.append(x.sum())
        return x * last

    return trace(fn), [call(X(3)) for _ in range(5)], lambda: list(log)


@cases(hits=3)
def default_dict_whose_items_are_set(trace):
    log = collections.defaultdict(list, loss=0.0)

    def fn(x):
        log["loss"] = x.sum().item()
        log["new"] = x
        return x * 2

    return trace(fn), [call(X(3)) for _ in range(5)], lambda: dict(log)


@cases(hits=2)
def default_dict_that_is_emptied(trace):
    log = collections.defaultdict(lambda: 1.0, loss=0.0)

    def fn(x):
        y = x * log["loss"]
        log["last"] = y
        return y

    steps = [call(X(3)), call(X(3)), call(X(3)), log.clear, call(X(3)), call(X(3)), call(X(3))]
    return trace(fn), steps, lambda: dict(log)


@cases.parametrize
def test_loop_helpers(make, expected):
    check(make, **expected)
