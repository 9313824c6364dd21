"""Truth values in entries that are drawn, and in the rows of lists that are filled anew: `done` flags."""

# What is seen of a value hangs on how it is written, and users write it in all of these ways:
# ruff: noqa: B007, B905, C400, C416, F821, F841, RUF005, RUF007, SIM108, SIM210, UP031

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import itertools
import json
import operator
import pickle
import random
import sys
from collections import Counter, deque, namedtuple

import numpy as np
import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, agree, call, check

cases = Cases()

Seen = namedtuple("Seen", "state reward done")


def row(n, make=tuple):
    return make((torch.tensor([float(n), -n]), n / 2, random.random() < 0.4))


# ---------------------------------------------------------------- ways in which they come
def drawn(s):
    return random.sample(s.pool, 3)


def counted(s):
    return [s.pool[random.randrange(len(s.pool))] for _ in range(2)]


def looped(s):
    return s.rows


def indexed(s):
    return [s.rows[i] for i in range(len(s.rows))]


def named(s):
    return [Seen(*one) if not isinstance(one, Seen) else one for one in random.sample(s.named, 3)]


WAYS = {"drawn": drawn, "counted": counted, "looped": looped, "indexed": indexed, "named": named}


def holder(seed=0):
    random.seed(seed)
    return Holder(
        pool=deque((row(n) for n in range(14)), maxlen=20),
        named=[row(n, Seen._make) for n in range(14)],
        rows=[row(n) for n in range(5)],
        count=14,
        seen=[],
        last=None,
        by_name={},
        cached=functools.lru_cache(maxsize=64)(lambda key: (key, type(key).__name__)),
    )


def refill(s):
    def now():
        s.rows[:] = [row(s.count + n) for n in range(5)]
        s.pool.append(row(s.count))
        s.named.append(row(s.count, Seen._make))
        s.count += 1

    return now


# ---------------------------------------------------------------- what becomes of them
def chosen(s, rows):
    return torch.tensor([0.0 if done else 1.0 for _, _, done in rows])


def chosen_otherwise(s, rows):
    return torch.tensor([[2.5 if not done else -0.75] for _, _, done in rows])


def chosen_ints(s, rows):
    return torch.tensor([7 if done else -3 for _, _, done in rows])


def chosen_by_statements(s, rows):
    masks = []
    for _, reward, done in rows:
        if done:
            mask = 0.5
        else:
            mask = 2.0
        masks.append([mask * reward])
    return torch.tensor(masks)


def subtracted(s, rows):
    return torch.tensor([1 - done for _, _, done in rows]), torch.tensor([1.0 - one[2] for one in rows])


def scaled(s, rows):
    return sum(one[0] * (reward + 0.9 * (1 - done)) for one, (_, reward, done) in zip(rows, rows))


def inverted(s, rows):
    return torch.tensor([float(not done) for _, _, done in rows])


def converted(s, rows):
    return torch.tensor([float(one[-1]) for one in rows]), torch.tensor([int(one[2]) + 1 for one in rows])


def collected(s, rows):
    flags = []
    for _, _, done in rows:
        flags.append(done)
    return torch.tensor(flags, dtype=torch.float32)


def in_lists(s, rows):
    return torch.tensor([[done] for _, _, done in rows], dtype=torch.float), torch.FloatTensor(
        [one[2] for one in rows]
    )


def as_bools(s, rows):
    flags = [done for _, _, done in rows]
    return torch.tensor(flags), torch.where(torch.tensor([[one] for one in flags]), 1.0, 2.0)


def as_arrays(s, rows):
    flags = [one[-1] for one in rows if one is not None]
    column = torch.from_numpy(np.vstack([one[-1] for one in rows]).astype(np.uint8)).float()
    return column, torch.from_numpy(np.array(flags, dtype=np.float32)), torch.from_numpy(np.array(flags))


def in_columns(s, rows):
    states, rewards, flags = zip(*rows)
    return torch.stack(states) * torch.tensor(rewards)[:, None], torch.tensor(flags, dtype=torch.float)


def kept_for_later(s, rows):
    _, reward, done = rows[0]
    other = done
    again = [other, reward]
    flag = again[0]
    return torch.ones(2) * (reward if reward > 1e9 else 1.0 - flag)


def discounted_rows(s, rows):
    total, totals = 0.0, []
    for _, reward, done in reversed(rows):
        total = reward + 0.9 * total * (0.0 if done else 1.0)
        totals.insert(0, [total])
    return torch.tensor(totals)


def unused(s, rows):
    return sum(state * reward for state, reward, done in rows)


def compared_with_none(s, rows):
    return torch.tensor([1.0 for _, _, done in rows if done is not None])


def swapped(s, rows):
    (_, _, a), (_, b, c) = rows[0], rows[1]
    a, c = c, a
    return torch.ones(2) * (1 - a) + b * (1.0 - c)


def through_functions(s, rows):
    def mask(one):
        state, _, done = one
        return state * (0.0 if done else 1.0)

    return sum([mask(one) for one in rows])


FOLLOWED = (
    chosen,
    chosen_otherwise,
    chosen_ints,
    chosen_by_statements,
    subtracted,
    scaled,
    inverted,
    converted,
    collected,
    in_lists,
    as_bools,
    as_arrays,
    in_columns,
    kept_for_later,
    discounted_rows,
    unused,
    compared_with_none,
    swapped,
    through_functions,
)


def steps(s, count=14):
    made = []
    for _ in range(count):
        made += [refill(s), call()]
    return made


def program(way, use):
    def make(trace):
        s = holder()

        def fn():
            return use(s, WAYS[way](s))

        return trace(fn), steps(s), lambda: [s.seen, s.last, s.by_name, len(s.pool)]

    return make


@pytest.mark.parametrize("use", FOLLOWED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_followed(way, use):
    check(program(way, use), hits=8)


# ---------------------------------------------------------------- what looks at them
def branches(s, rows):
    total = torch.zeros(2)
    for state, reward, done in rows[:2]:
        if done:
            total = total * 0.5
        total = total + state * reward
    return total


def identity(s, rows):
    done = rows[0][2]
    return torch.ones(1), done is True, done is False, type(done), type(done) is bool, isinstance(done, bool)


def identity_later(s, rows):
    flags = [done for _, _, done in rows][:2]
    return torch.ones(1), [one is True for one in flags], flags


def returned(s, rows):
    return rows[0][0] * 1, rows[0][2], [done for _, _, done in rows][:1]


def kept(s, rows):
    s.last = rows[0][2]
    s.seen.append(rows[1][2])
    s.by_name["done"] = [rows[0][2]]
    return rows[0][0] * 2


def in_containers(s, rows):
    done = rows[0][2]
    both = {done: 1.0, "a": done}
    return rows[0][0] * both[done], {done, 1}, both, (done,), [done] * 2, [done] + [1]


def in_texts(s, rows):
    done = rows[0][2]
    return rows[0][0] * 1, f"{done}", str(done), "%s" % done, repr([done]), f"{done!r:>7}", str((done, 1))


def by_c_code(s, rows):
    done, other = rows[0][2], rows[1][2]
    return (
        rows[0][0] * 1,
        max(done, other),
        sum([done, other]),
        any([done, other]),
        all((done, other)),
        sorted([other, done]),
        [done, other].index(other),
        [done, other].count(True),
        operator.not_(done),
        operator.itemgetter(0)([done]),
        bool(done),
        done == other,
        done and other,
        done or other,
        done ^ other,
        ~done if done else -done,
    )


def by_libraries(s, rows):
    done = rows[0][2]
    flags = [done, not done]
    return (
        torch.ones(1),
        json.dumps(flags),
        pickle.loads(pickle.dumps(flags)),
        copy.copy(flags),
        copy.deepcopy([flags]),
        Counter(flags),
        list(itertools.chain(flags, (done,))),
        dict(zip("ab", flags)),
        list(filter(None, flags)),
        list(map(str, flags)),
    )


def by_torch(s, rows):
    flags = [done for _, _, done in rows]
    return torch.tensor(flags), torch.tensor(rows[0][2]), torch.tensor([flags[:2], flags[:2]])


def by_torch_as_switch(s, rows):
    x = torch.arange(6.0).reshape(2, 3)
    return x.sum(0, keepdim=rows[0][2]), torch.full((2,), rows[1][2]), x * rows[0][2], rows[0][0] - rows[1][2]


def by_numpy(s, rows):
    flags = [done for _, _, done in rows]
    array = np.array(flags)
    return (
        torch.ones(1),
        str(array.dtype),
        array.tolist(),
        np.float32(flags).tolist(),
        np.where(flags, 1, 2).tolist(),
    )


def by_numpy_and_back(s, rows):
    flags = np.array([1.0 - done for _, _, done in rows], dtype=np.float32)
    return torch.from_numpy(flags) * 2


def in_generators(s, rows):
    return torch.ones(1), list(done for _, _, done in rows)[:2], any(done for _, _, done in rows[:1])


def as_arguments(s, rows):
    def inner(done, *rest, **named):
        return 1.0 - done, rest, named

    done = rows[0][2]
    return torch.ones(1), inner(done, done, a=done), inner(*rows[1][2:]), inner(done=done)


def in_closures(s, rows):
    done = rows[0][2]

    def inner():
        return 1.0 - done, done

    return torch.ones(1), inner(), (lambda flag=done: flag)()


def by_frames(s, rows):
    _, _, done = rows[0]
    return torch.ones(1), locals()["done"], sorted(locals())


def in_objects(s, rows):
    made = Holder(done=rows[0][2], all=[one[2] for one in rows][:2])
    return torch.ones(1), made.done, made.all, vars(made)["done"]


def in_errors(s, rows):
    done = rows[0][2]
    try:
        raise ValueError(done, [done])
    except ValueError as error:
        return torch.ones(1), error.args, str(error)


def raised_midway(s, rows):
    found = []
    for state, _, done in rows:
        try:
            found.append((1 - done) / int(done))
        except ZeroDivisionError:
            found.append(done)
    return torch.ones(1), found[:2]


def matched(s, rows):
    match rows[0][2]:
        case True:
            return torch.ones(2) * 2
        case _:
            return torch.ones(2) * 3


def matched_in_tuples(s, rows):
    match rows[0]:
        case (state, _, False):
            return state * 2
        case (state, reward, True):
            return state * 3


def sliced(s, rows):
    return torch.ones(1), rows[0][1:], rows[0][2:] + (1,), (0, *rows[0][1:])


def unpacked(s, rows):
    first, *rest = rows[0]
    return first * 1, rest, [*rows[0][1:]], len(rows[0])


def row_is_compared(s, rows):
    return torch.ones(1), rows[0][2:] == (True,), (True,) in [one[2:] for one in rows], True in rows[0][2:]


def row_is_kept(s, rows):
    s.seen.append(rows[0][1:])
    s.last = {"row": rows[0][2:]}
    return torch.ones(1)


def mixed_choice(s, rows):
    done = rows[0][2]
    a = 0 if done else 1.0
    b = -0.0 if done else 0.0
    c = float("inf") if done else 1.0
    d = True if done else False
    e = "a" if done else "b"
    f = 1e308 if done else -1e308
    return torch.ones(1), a, type(a), str(b), c, d, e, f


def choice_of_identity(s, rows):
    done = rows[0][2]
    a = 1.5 if done else 2.5
    return torch.ones(1) * a, a, type(a), a == 1.5, {a: 1}


def choice_in_loops(s, rows):
    x = torch.zeros(2)
    scale = 1.0
    for state, _, done in rows:
        if done:
            scale = 0.0
        x = x * scale + state
    return x


def nested_choice(s, rows):
    values = [(1.0 if a[2] else 2.0) if b[2] else 3.0 for a, b in zip(rows, rows[1:])]
    return torch.tensor(values)


def deleted(s, rows):
    _, _, done = rows[0]
    kept = done
    del done
    try:
        return torch.ones(1), done
    except UnboundLocalError:
        done = kept
    return torch.ones(1), kept, done


def walrus(s, rows):
    return torch.ones(1), [keep for _, _, done in rows if (keep := not done) is not None][:2]


def chained(s, rows):
    return torch.ones(1), 0 <= rows[0][2] < 1, rows[0][2] if rows[0][1] > 3 else rows[1][2]


def as_index(s, rows):
    return torch.arange(2.0)[int(rows[0][2])], ["a", "b"][rows[0][2]], range(2)[rows[1][2]]


def assigned_in_place(s, rows):
    count = 0
    for _, _, done in rows[:2]:
        count += done
    flag = rows[0][2]
    flag |= rows[1][2]
    return torch.ones(1) * count, count, flag


def by_yield(s, rows):
    def made():
        for _, _, done in rows[:2]:
            got = yield done
            yield 1.0 - done, got

    return torch.ones(1), list(made())


def by_frames_of_generators(s, rows):
    def made():
        for state, reward, done in rows[:2]:
            yield state * reward

    waiting = made()
    next(waiting)
    return torch.ones(1), waiting.gi_frame.f_locals["done"]


def by_waiting_generators(s, rows):
    def made():
        for state, _, done in rows:
            got = yield state
            yield (1.0 - done) * got

    waiting = made()
    return [next(waiting), waiting.send(2.0), next(waiting)]


def by_dropped_generators(s, rows):
    def made(row):
        state, reward, done = row
        yield state * reward
        yield done

    total = sum(next(made(one)) for one in rows)
    found = [next(itertools.islice(made(one), 1, None)) for one in rows[:1]]
    return total, found


def shown_by_others(done, row, flags):
    return torch.ones(1) * done, done is True, row[2] is False, [one is True for one in flags], str(row[1:])


INNER = {
    "opaque": lazytrace.opaque(shown_by_others),
    "traced": lazytrace.traced(shown_by_others),
    "scripted": lazytrace.script_if_tracing(shown_by_others),
    "partial": functools.partial(shown_by_others, True),
}


def by_opaque_functions(s, rows):
    flags = [one[2] for one in rows[:2]]
    return INNER["opaque"](rows[0][2], rows[0], flags), INNER["opaque"](*rows[0][2:], rows[1], flags)


def by_traced_functions(s, rows):
    flags = [one[2] for one in rows[:2]]
    return INNER["traced"](rows[0][2], rows[0], flags), INNER["traced"](True, row=rows[1], flags=flags)


def by_partials(s, rows):
    flags = [one[2] for one in rows[:2]]
    kept = functools.partial(shown_by_others, rows[0][2], flags=flags)
    return INNER["partial"](rows[0], flags), kept(rows[1]), kept.keywords["flags"]


def by_modules(s, rows):
    class Net(nn.Module):
        def forward(self, row, done, flags=()):
            return row[0] * done, done is True, flags

    return Net()(rows[0], rows[0][2], flags=[rows[1][2]])


def by_checkpoint(s, rows):
    weight = torch.ones(2, requires_grad=True)

    def inner(x, done, row):
        return x * (2.0 if done else 3.0) + row[1] * (1 - row[2])

    return torch.utils.checkpoint.checkpoint(inner, weight, rows[0][2], rows[1], use_reentrant=False)


def by_checkpoint_of_closures(s, rows):
    weight = torch.ones(2, requires_grad=True)
    row, flags = rows[0], [one[2] for one in rows[:2]]

    def inner(x, more=rows[1]):
        return x * (2.0 if row[2] else 3.0) + (1 - more[2]) + sum(flags)

    made = torch.utils.checkpoint.checkpoint(inner, weight, use_reentrant=False)
    made.sum().backward()
    return made, weight.grad


def by_hooks_on_rows(s, rows):
    x, row = torch.ones(2, requires_grad=True), rows[0]
    y = x * 2
    y.register_hook(lambda grad: grad * (2.0 if row[2] else 3.0))
    y.register_hook(functools.partial(lambda flags, grad: grad * (2.0 if flags[1] else 3.0), row[1:]))
    y.sum().backward()
    return x.grad


def by_transforms(s, rows):
    row, flags = rows[0], [rows[1][2]]

    def inner(x):
        return (x * (2.0 if row[2] else 3.0) + (1 - flags[0])).sum()

    return torch.func.grad(inner)(torch.ones(2)), torch.vmap(inner)(torch.ones(2, 2))


def by_functions_of_autograd(s, rows):
    row = rows[0]

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, pair):
            ctx.pair = pair
            return x * (2.0 if row[2] else 3.0)

        @staticmethod
        def backward(ctx, grad):
            return grad * (1 - ctx.pair[1]) + (1 - row[2]), None

    x = torch.ones(2, requires_grad=True)
    Scale.apply(x, rows[1][1:]).sum().backward()
    return x.grad


def by_cached_functions(s, rows):
    return torch.ones(1), s.cached(rows[0][2]), s.cached((rows[0][2], 1))


def by_hooks(s, rows):
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    done = rows[0][2]
    y.register_hook(lambda grad: grad * (2.0 if done else 3.0))
    y.sum().backward()
    return x.grad


def by_sorting(s, rows):
    ordered = sorted(rows, key=lambda one: (one[2], one[1]))
    return torch.ones(1), [one[1] for one in ordered], max(rows, key=operator.itemgetter(2))[1]


def by_grouping(s, rows):
    groups = {}
    for _, reward, done in rows:
        groups.setdefault(done, []).append(reward)
    return torch.ones(1), groups, [k for k, _ in itertools.groupby(rows, key=lambda one: one[2])]


async def later(row):
    return 1.0 - row[2], row[2]


def by_coroutines(s, rows):
    try:
        later(rows[0]).send(None)
    except StopIteration as stop:
        return torch.ones(1), stop.value


def by_contexts(s, rows):
    @contextlib.contextmanager
    def around(done):
        yield 1.0 - done

    with around(rows[0][2]) as first, contextlib.nullcontext(rows[1][2]) as second:
        return torch.ones(1), first, second


def by_defaults(s, rows):
    kept = collections.defaultdict(list)
    kept["done"].append(rows[0][2])
    kept["row"] += rows[0][1:]
    kept["more"].extend(one[2] for one in rows[:2])
    kept["more"].insert(0, rows[0][2])
    return torch.ones(1), dict(kept), kept["more"].index(True) if True in kept["more"] else None


def by_pop(s, rows):
    flags = [one[2] for one in rows]
    first, last = flags.pop(0), flags.pop()
    flags[0] = last
    flags[1:1] = [first]
    return torch.ones(1) * (1.0 - flags[0]), first is True, flags[:2]


LOOKING = (
    by_opaque_functions,
    by_traced_functions,
    by_partials,
    by_modules,
    by_checkpoint,
    by_checkpoint_of_closures,
    by_hooks_on_rows,
    by_transforms,
    by_functions_of_autograd,
    by_cached_functions,
    by_hooks,
    by_sorting,
    by_grouping,
    by_coroutines,
    by_contexts,
    by_defaults,
    by_pop,
    by_frames_of_generators,
    by_waiting_generators,
    by_dropped_generators,
    branches,
    identity,
    identity_later,
    returned,
    kept,
    in_containers,
    in_texts,
    by_c_code,
    by_libraries,
    by_torch,
    by_torch_as_switch,
    by_numpy,
    by_numpy_and_back,
    in_generators,
    as_arguments,
    in_closures,
    by_frames,
    in_objects,
    in_errors,
    raised_midway,
    matched,
    matched_in_tuples,
    sliced,
    unpacked,
    row_is_compared,
    row_is_kept,
    mixed_choice,
    choice_of_identity,
    choice_in_loops,
    nested_choice,
    deleted,
    walrus,
    chained,
    as_index,
    assigned_in_place,
    by_yield,
)


@pytest.mark.parametrize("use", LOOKING, ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_looked_at(way, use):
    agree(program(way, use))


# ---------------------------------------------------------------- lists of them
FLAGS_FOLLOWED = {
    "discounted": lambda s: discounted(s),
    "discounted by floats": lambda s: discounted_floats(s),
    "kept running": lambda s: kept_running(s),
    "enumerated": lambda s: torch.tensor([i * (1.0 - done) for i, done in enumerate(s.flags)]),
    "zipped": lambda s: torch.tensor([r * (0.5 if done else 2.0) for r, done in zip(s.rewards, s.flags)]),
    "looped": lambda s: torch.tensor([1 - done for done in s.flags]),
    "backwards": lambda s: torch.tensor([1 - done for done in reversed(s.flags)]),
    "listed": lambda s: torch.tensor([float(done) for done in list(s.flags)]),
}


def discounted(s):
    total, totals = 0, []
    for reward, done in zip(reversed(s.rewards), reversed(s.flags)):
        if done:
            total = 0
        total = reward + s.gamma * total
        totals.insert(0, total)
    return torch.tensor(totals, dtype=torch.float32)


def discounted_floats(s):
    total, totals = 0.0, []
    for reward, done in zip(s.rewards, s.flags):
        total = reward + s.gamma * total
        totals.append(total)
        if done:
            total = -0.0
    return torch.tensor(totals, dtype=torch.float64)


def kept_running(s):
    total, totals = 1.5, []
    for reward, done in zip(s.rewards, s.flags):
        if not done:
            total = 3
        total = 0.5 * total + reward
        totals.append(total)
    return torch.tensor(totals)


def values_of_many_kinds(count):
    return [random.choice([random.random(), -0.0, 0.0, 1e308, -3.0]) for _ in range(count)]


def flags_program(use, draw=lambda: random.random() < 0.4, values=values_of_many_kinds, grows=False):
    def make(trace):
        random.seed(1)
        s = Holder(rewards=values(6), flags=[draw() for _ in range(6)], gamma=0.9, seen=[], count=0)

        def refill():
            s.rewards[:] = values(6)
            s.flags[:] = [draw() for _ in range(6)]
            if grows:
                s.count += 1
                s.rewards.extend(values(s.count))
                s.flags.extend(draw() for _ in range(s.count))

        made = []
        for _ in range(14):
            made += [call(), refill]
        return trace(lambda: use(s)), made, lambda: [s.flags, s.rewards, s.seen]

    return make


@pytest.mark.parametrize("use", FLAGS_FOLLOWED)
def test_lists_of_flags_are_followed(use):
    check(flags_program(FLAGS_FOLLOWED[use], values=lambda n: [random.random() for _ in range(n)]), hits=8)


@pytest.mark.parametrize("use", FLAGS_FOLLOWED)
@pytest.mark.parametrize("grows", [False, True])
def test_lists_of_flags_beside_odd_numbers(use, grows):
    agree(flags_program(FLAGS_FOLLOWED[use], grows=grows))


@pytest.mark.parametrize("use", FLAGS_FOLLOWED)
@pytest.mark.parametrize("other", [None, 1, 0.0, "", np.True_, 2])
def test_what_is_a_flag_becomes_another_thing(use, other):
    def draw():
        return other if random.random() < 0.1 else random.random() < 0.4

    def guarded(s):
        try:
            return FLAGS_FOLLOWED[use](s)
        except TypeError as error:
            return torch.zeros(1), str(error)

    agree(flags_program(guarded, draw=draw))


def running(s, show):
    """Each step shows a total that is an int where a flag has put that there, and a float otherwise."""
    total, shown = 0.5, []
    for reward, done in zip(s.rewards, s.flags):
        if done:
            total = 0
        shown.append(show(total, reward, s))
        total = reward + s.gamma * total
    return torch.ones(1), shown


SHOWS = {
    "itself": lambda total, reward, s: total,
    "type": lambda total, reward, s: type(total).__name__,
    "text": lambda total, reward, s: f"{total} {total!r}",
    "sum": lambda total, reward, s: total + 1,
    "product": lambda total, reward, s: total * 3,
    "with float": lambda total, reward, s: total * 3.0,
    "quotient": lambda total, reward, s: total // 2,
    "power": lambda total, reward, s: 2**total,
    "negated": lambda total, reward, s: -total,
    "compared": lambda total, reward, s: total > 0.25,
    "truth": lambda total, reward, s: 1 if total else 2,
    "inverted": lambda total, reward, s: not total,
    "float": lambda total, reward, s: float(total),
    "int": lambda total, reward, s: int(total * 4),
    "isinstance": lambda total, reward, s: isinstance(total, int),
    "in a list": lambda total, reward, s: [total],
    "in a tuple": lambda total, reward, s: (total, reward),
    "in a dict": lambda total, reward, s: {total: "a"},
    "kept": lambda total, reward, s: s.seen.append(total),
    "tensor": lambda total, reward, s: torch.ones(1) * total,
    "dtype": lambda total, reward, s: (torch.ones(1, dtype=torch.int64) * total).dtype,
    "full": lambda total, reward, s: torch.full((1,), total).dtype,
    "as a tensor": lambda total, reward, s: torch.tensor(total),
    "max": lambda total, reward, s: max(total, 0),
    "round": lambda total, reward, s: round(total),
    "argument": lambda total, reward, s: (lambda x, *rest: (x, rest))(total, total),
    "closure": lambda total, reward, s: (lambda: total)(),
    "json": lambda total, reward, s: json.dumps([total]),
    "numpy": lambda total, reward, s: str(np.asarray(total).dtype),
    "array times": lambda total, reward, s: str((np.ones(1, dtype=np.int64) * total).dtype),
    "numpy float": lambda total, reward, s: np.float64(2.0) * total,
    "other total": lambda total, reward, s: total + total,
}


@pytest.mark.parametrize("show", SHOWS)
def test_what_may_be_an_int_now(show):
    agree(
        flags_program(lambda s: running(s, SHOWS[show]), values=lambda n: [random.random() for _ in range(n)])
    )


BY_C = {
    "sum": lambda s: sum(s.flags),
    "any": lambda s: (any(s.flags), all(s.flags)),
    "max": lambda s: max(s.flags),
    "sorted": lambda s: sorted(s.flags),
    "count": lambda s: (s.flags.count(True), s.flags.index(s.flags[-1])),
    "tensor": lambda s: torch.tensor(s.flags),
    "float tensor": lambda s: torch.tensor(s.flags, dtype=torch.float),
    "typed tensor": lambda s: torch.FloatTensor(s.flags),
    "array": lambda s: np.array(s.flags).tolist(),
    "array of floats": lambda s: torch.from_numpy(np.array(s.flags, dtype=np.float32)) * 2,
    "map": lambda s: list(map(float, s.flags)),
    "map of strings": lambda s: list(map(str, s.flags)),
    "filter": lambda s: len(list(filter(None, s.flags))),
    "accumulate": lambda s: list(itertools.accumulate(s.flags)),
    "compress": lambda s: list(itertools.compress(s.rewards, s.flags)),
    "chain": lambda s: list(itertools.chain(s.flags, [True])),
    "repr": lambda s: (repr(s.flags), str(s.flags), f"{s.flags}"),
    "join": lambda s: ",".join(map(str, s.flags)),
    "json": lambda s: json.dumps(s.flags),
    "pickle": lambda s: pickle.loads(pickle.dumps(s.flags)),
    "copy": lambda s: (s.flags.copy(), copy.copy(s.flags), copy.deepcopy(s.flags), s.flags[:]),
    "compare": lambda s: (s.flags == [True] * 6, s.flags[:2] < s.flags[2:4]),
    "contains": lambda s: (True in s.flags, 1 in s.flags),
    "set": lambda s: (len(set(s.flags)), frozenset(s.flags)),
    "counter": lambda s: Counter(s.flags),
    "dict": lambda s: dict(zip(s.rewards, s.flags)),
    "slices": lambda s: (s.flags[1:3], s.flags[::-1], s.flags[-1], s.flags[0] is True),
    "sum of lists": lambda s: (s.flags + [True], [False] + s.flags, s.flags * 2),
    "unpacked": lambda s: (lambda a, b, *c: (a, b is True, c))(*s.flags),
    "star": lambda s: [*s.flags, *reversed(s.flags)],
    "next": lambda s: (next(iter(s.flags)), next(reversed(s.flags)), next(zip(s.flags, s.rewards))),
    "bytes": lambda s: (bytes(s.flags), bytearray(s.flags)),
    "where": lambda s: torch.where(torch.tensor(s.flags), 1.0, 2.0),
    "index": lambda s: torch.arange(6.0)[torch.tensor(s.flags)].sum(),
    "mask": lambda s: torch.arange(6.0)[s.flags].sum(),
    "identity": lambda s: [done is True for done in s.flags],
    "of zip": lambda s: [pair for pair in zip(s.flags, s.rewards)],
    "kept": lambda s: s.seen.extend(s.flags),
    "kept pairs": lambda s: s.seen.append([list(pair) for pair in zip(s.flags, s.flags)]),
    "deque": lambda s: deque(s.flags, maxlen=3),
    "locals": lambda s: locals()["s"].flags[0],
    "frame": lambda s: [sys._getframe().f_locals["done"] for done in s.flags][:1],
}


@pytest.mark.parametrize("use", BY_C)
@pytest.mark.parametrize("grows", [False, True])
def test_lists_of_flags_are_looked_at(use, grows):
    def look(s):
        # Followed from the second call on, as one of them has differed.
        mask = torch.tensor([1.0 - done for done in s.flags])
        return mask, BY_C[use](s)

    agree(flags_program(look, grows=grows))
