"""Arrays and numbers of numpy at drawn places of containers, as in the buffers of reinforcement learning."""

from __future__ import annotations

import random
from collections import deque, namedtuple

import numpy as np
import pytest
import torch

from tests.soundness.runner import Cases, Holder, agree, call, check

cases = Cases()

Seen = namedtuple("Seen", "state action reward following")


def seen(n, kind=np.float32):
    return (np.full(2, n, kind), n % 3, n / 4, np.arange(2, dtype=kind) + n)


def pool(count=12):
    return deque((seen(n) for n in range(count)), maxlen=16)


def steps(count, *changes):
    """`count` calls, then for each change that and four more calls."""
    made = [call() for _ in range(count)]
    for change in changes:
        made += [change, *(call() for _ in range(4))]
    return made


def draw(s):
    return s.pool[random.randrange(len(s.pool))]


@cases(hits=14)
def a_step_on_a_sample(trace):
    s = Holder(pool=pool())
    weight = torch.ones(2, requires_grad=True)
    adam = torch.optim.Adam([weight])

    def fn():
        state, action, reward, following = zip(*random.sample(s.pool, 4), strict=True)
        state, following = torch.tensor(np.array(state)), torch.as_tensor(np.stack(following))
        reward = torch.tensor(reward, dtype=torch.float32)
        loss = ((state - following) @ weight - reward).pow(2).mean() * torch.tensor(action).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.item()

    return trace(fn), steps(8, *[lambda n=n: s.pool.append(seen(n)) for n in range(6)]), lambda: [weight]


@cases(hits=12)
def entries_of_named_tuples(trace):
    s = Holder(pool=deque((Seen(*seen(n)) for n in range(6)), maxlen=8))

    def fn(state):
        one = draw(s)
        return torch.from_numpy(one.state) * one.reward + state + float(one.following.sum())

    return trace(fn), [call(torch.ones(2) * n) for n in range(24)], lambda: list(s.pool)


@cases(hits=8)
def entries_that_look_otherwise(trace):
    s = Holder(pool=pool(6))

    def fn():
        state, *_ = draw(s)
        return torch.from_numpy(state) * 2, state.shape

    def fill(entry):
        return lambda: s.pool.extend([entry()] * 16)

    return (
        trace(fn),
        steps(
            8,
            fill(lambda: seen(3, np.int64)),
            fill(lambda: (np.ones(5, np.float32), *seen(1)[1:])),
            fill(lambda: (np.ones((2, 4), np.float32)[:, 1], *seen(1)[1:])),
            fill(lambda: (torch.ones(2), *seen(1)[1:])),
            fill(lambda: (np.broadcast_to(np.float32(2), 2), *seen(1)[1:])),
            fill(lambda: ([1.0, 2.0], *seen(1)[1:])),
            fill(lambda: seen(2)),
        ),
        lambda: list(s.pool),
    )


def _chained(count=4):
    states = [np.full(2, n, np.float32) for n in range(count + 1)]
    return [(states[n], states[n + 1]) for n in range(count)]


@cases(hits=16)
def entries_that_share_an_array(trace):
    s = Holder(pool=_chained())

    def fn():
        rows = [draw(s) for _ in range(3)]
        return np.stack([one for one, _ in rows]) - np.stack([other for _, other in rows])

    return trace(fn), steps(20), lambda: list(s.pool)


@cases(eager="compares-identity")
def arrays_are_compared_by_identity(trace):
    s = Holder(pool=_chained())

    def fn():
        one, other = draw(s), draw(s)
        return one[1] is other[0], torch.from_numpy(one[0]) * 2

    return trace(fn), steps(24), lambda: list(s.pool)


@cases(hits=8)
def an_array_is_returned_and_kept(trace):
    s = Holder(pool=_chained(), last=None)

    def fn():
        s.last = draw(s)[1]
        return s.last, torch.from_numpy(s.last) * 2

    def changed():
        s.last[0] += 1

    return trace(fn), steps(10, changed, changed), lambda: [s.last, list(s.pool)]


@cases(eager="returns-drawn")
def arrays_that_may_be_one_are_returned(trace):
    one = np.ones(2, np.float32)
    s = Holder(pool=[(one, one) for _ in range(4)])

    def fn():
        return [draw(s)[0], draw(s)[1]]

    return trace(fn), steps(12), lambda: list(s.pool)


def _writes(how):
    def make(trace):
        s = Holder(pool=_chained())

        def fn():
            one = draw(s)[0]
            how(one)
            return torch.from_numpy(draw(s)[1]) * 2, np.sum(one)

        return trace(fn), steps(16), lambda: list(s.pool)

    return make


def _set(array):
    array[0] = 7.0


def _add(array):
    array += 1


def _view(array):
    array[1:][0] = 3.0


def _tensor(array):
    torch.from_numpy(array).add_(1)


def test_arrays_that_are_written_to():
    for how in (_set, _add, _view, _tensor, np.ndarray.sort, lambda one: one.fill(2)):
        agree(_writes(how))


def _base(write, state):
    """Entries that are views of one array, to which the call writes by another one."""

    def make(trace):
        base = np.arange(16, dtype=np.float32)
        s = Holder(pool=[(base[n : n + 2],) for n in range(12)])
        if state:
            s.base = base

        def fn(given):
            array = s.base if state else given
            one = draw(s)[0]
            before = torch.from_numpy(one) * 2
            write(array)
            return before, torch.from_numpy(one) * 3, torch.from_numpy(draw(s)[0]).sum()

        return trace(fn), [call(None if state else base) for _ in range(16)], lambda: [base]

    return make


def test_memory_that_the_call_writes_to():
    for write in (_set, _add, _tensor, lambda array: np.sum(array)):
        for state in (True, False):
            agree(_base(write, state))


def _as_tensors(trace):
    base = torch.arange(16.0)
    s = Holder(pool=[(base.numpy()[n : n + 2],) for n in range(12)], base=base)

    def fn():
        one = draw(s)[0]
        s.base.mul_(0.5)
        return torch.from_numpy(one) * 3, np.array(draw(s)[0])

    return trace(fn), steps(16), lambda: [base]


def test_memory_of_a_tensor_in_state():
    agree(_as_tensors)


@cases(hits=6)
def one_that_is_in_state_too(trace):
    s = Holder(pool=_chained(3))
    s.best = s.pool[1][0]

    def fn():
        return torch.from_numpy(s.best) + torch.from_numpy(draw(s)[0]), np.mean(s.best)

    def other():
        s.best = np.full(2, 9, np.float32)

    return trace(fn), steps(12, other, other), lambda: list(s.pool)


@cases(hits=6)
def it_raises_behind_a_draw(trace):
    s = Holder(pool=pool(6), seen=0)

    def fn(limit):
        state = draw(s)[0]
        s.seen = float(state.sum())
        if s.seen > limit:
            raise ValueError(limit)
        return torch.from_numpy(draw(s)[3]) * s.seen

    return trace(fn), [call(5.0) for _ in range(24)], lambda: [s.seen, list(s.pool)]


def _looks(trace):
    s = Holder(pool=_chained() + [(np.ones((4, 2), np.float32)[n], np.ones(2, np.float32)) for n in range(4)])

    def fn():
        one = draw(s)[0]
        return one.base is None, one.flags.owndata, one.nbytes, one.strides, torch.from_numpy(one) * 2

    return trace(fn), steps(16), lambda: list(s.pool)


def test_what_no_look_says():
    agree(_looks)


# ---------------------------------------------------------------- numbers
def rewarded(n, kind):
    return torch.full((2,), float(n)), n % 3, kind(n * 0.7 + 1)


def _uses_of_numbers(kind):
    def make(trace):
        s = Holder(pool=deque((rewarded(n, kind) for n in range(8)), maxlen=12))

        def fn():
            state, action, reward = zip(*random.sample(s.pool, 4), strict=True)
            made = torch.tensor(reward, dtype=torch.float32), torch.tensor(reward), torch.FloatTensor(reward)
            stacked = (
                np.stack(reward),
                np.vstack([one for one in reward if one is not None]).astype(np.float32),
            )
            worked_out = [one * 0.9 + number for one, number in zip(reward, action, strict=True)]
            weighed = sum(one * float(number) for one, number in zip(state, reward, strict=True))
            return made, stacked, np.array(reward, dtype=np.float64), np.array(worked_out), weighed

        return trace(fn), steps(6, *[lambda n=n: s.pool.append(rewarded(n, kind)) for n in range(3)])

    return make


def test_numbers_of_numpys_are_followed():
    for kind in (np.float32, np.float64, np.int64):
        check(_uses_of_numbers(kind), hits=15)


@cases(hits=8)
def numbers_of_other_kinds(trace):
    s = Holder(pool=[np.float32(n) for n in range(4)])

    def fn():
        return torch.tensor([draw(s), draw(s)]), draw(s) * 2

    def fill(*values):
        return lambda: s.pool.__setitem__(slice(None), values)

    return (
        trace(fn),
        steps(
            6,
            fill(*map(np.float64, range(4))),
            fill(*map(float, range(4))),
            fill(*map(np.int64, range(4))),
            fill(np.float32(1), np.float32("inf"), np.float32("nan"), np.float32(-0.0)),
            fill(*map(np.int32, range(4))),
            fill(*map(np.float32, range(4))),
        ),
        lambda: list(map(repr, s.pool)),
    )


@cases(eager="returns-drawn")
def numbers_that_are_objects_of_state_are_kept(trace):
    s = Holder(pool=[np.float32(n) for n in range(4)], last=None)

    def fn():
        s.last = draw(s)
        return torch.tensor([s.last])

    return trace(fn), steps(8), lambda: [s.last is one for one in s.pool]


@cases(eager="compares-identity")
def numbers_are_compared_by_identity(trace):
    s = Holder(pool=[np.int64(7) for _ in range(4)])

    def fn():
        one, other = draw(s), draw(s)
        return torch.ones(2) * int(one), one is other

    return trace(fn), steps(8), lambda: list(s.pool)


@cases(hits=8)
def a_number_is_put_there_between(trace):
    s = Holder(pool=[np.float32(n) for n in range(4)])

    def fn():
        at = random.randrange(4)
        one = s.pool[at]
        s.pool[at] = one + np.float32(1)
        return torch.tensor([one])

    return trace(fn), steps(12), lambda: list(map(repr, s.pool))


# ---------------------------------------------------------------- what makes arrays and tensors of lists
def _given(x):
    return [(x.numpy(), x.sum().item(), int(x[0].item())), (x.numpy() * 2, 2.5, 3)]


def _maps(body):
    def make(trace):
        return trace(body), [call(torch.arange(3.0) * n - 4) for n in range(8)]

    return make


def unpacks(x):
    array, number, whole = map(np.array, zip(*_given(x), strict=True))
    return torch.from_numpy(array) * 2, number, whole


def makes_lists(x):
    return list(map(np.stack, [(x.numpy(), x.numpy())])), tuple(map(torch.tensor, [(x.sum().item(), 1.0)]))


def gives_star(x):
    return torch.stack((*map(torch.FloatTensor, [[n.item(), 2.0] for n in x]),))


def names(x):
    one = Seen(x.numpy(), x.sum().item(), 2.0, following=x.numpy())
    return torch.from_numpy(one.state) * one.action, one._replace(reward=3.0).reward, one[3].sum()


class Doubling(Seen):
    __slots__ = ()

    def __new__(cls, state, number):
        return tuple.__new__(cls, (state * 2, number, 1, str(state)))


def makes_its_own(x):
    one = Doubling(x.numpy(), 2)
    return torch.from_numpy(one.state) * one.action, one.following


class Filling(tuple):
    def __init__(self, rows):
        self.total = sum(map(float, self[0]))


def takes_rows(x):
    return (
        torch.from_numpy(Filling([x.numpy()])[0]) * 2,
        Filling([x.numpy()]).total,
        tuple(Filling(x.numpy())),
    )


def too_few(x):
    try:
        a, _b, _c = map(np.stack, [(x.numpy(),), (x.numpy(),)])
    except ValueError as error:
        return str(error), x * 2
    return a


def raises_inside(x):
    try:
        a, _b = map(np.stack, [(x.numpy(),), ()])
    except ValueError as error:
        return str(error), x * 2
    return a


def keeps_the_map(x):
    found = map(np.stack, [(x.numpy(),), (x.numpy(),)])
    return type(found).__name__, next(found), x * 2


def classes_of_tensors(x):
    one, whole = x.sum().item(), int(x[0].item())
    return (
        torch.FloatTensor([one, 2, True]),
        torch.DoubleTensor(((one, 1.0), (whole, one))),
        torch.LongTensor([whole, 3]),
        torch.Tensor([one]),
        torch.LongTensor([one, 3.7]),
        torch.FloatTensor([[], []]),
        torch.FloatTensor((2, 3)),
    )


BODIES = (
    names,
    makes_its_own,
    takes_rows,
    unpacks,
    makes_lists,
    gives_star,
    too_few,
    raises_inside,
    keeps_the_map,
    classes_of_tensors,
)


@pytest.mark.parametrize("body", BODIES)
def test_arrays_of_lists(body):
    agree(_maps(body))


def test_most_are_replayed():
    for body in (names, unpacks, makes_lists, gives_star):
        check(_maps(body), hits=7)


# ---------------------------------------------------------------- dicts of arrays, lists from their ends
def in_a_dict(x):
    made = dict(state=x.numpy(), other=x.numpy()[1:])  # noqa: C408
    return {name: torch.as_tensor(array) * 2 for name, array in made.items()}, list(made), made


@cases(hits=8)
def dicts_of_arrays(trace):
    s = Holder(last=None, rows=np.arange(12, dtype=np.float32).reshape(4, 3))

    def fn(x):
        at = np.random.randint(0, 4, size=2)
        s.last = dict(rows=s.rows[at], at=at)  # noqa: C408
        return in_a_dict(x), torch.as_tensor(s.last["rows"], dtype=torch.float32).sum()

    return trace(fn), [call(torch.arange(3.0) * n) for n in range(10)], lambda: [s.last]


@cases(hits=12, recordings=2)
def dicts_of_lists_of_arrays(trace):
    s = Holder(rows=[np.zeros(3, dtype=np.float32)], last=None)

    def fn(x):
        array = x.numpy()
        row = (array, {"end": False})
        made = dict({"n": 1, "x": x}, p=array, q=[array, array[1:]], row=row, n=x.sum().item())
        s.last = dict(rows=s.rows, other={"array": array})  # noqa: C408
        return torch.as_tensor(made["q"][1]) * made["n"], torch.as_tensor(s.last["rows"][0]) + x, made

    def change(n):
        s.rows[0] = np.full(3, n, dtype=np.float32)
        if n == 2:
            s.rows.append(1)

    def show():
        return [s.last, s.rows, s.last is not None and s.last["rows"] is s.rows]

    made = [
        step for n in range(3) for step in (lambda n=n: change(n), *(call(torch.randn(3)) for _ in range(4)))
    ]
    return trace(fn), [call(torch.ones(3)), call(torch.zeros(3)), *made], show


@cases(hits=9, eager="raised ValueError")
def lists_that_get_several_arrays(trace):
    s = Holder(memory=[], fails=False)

    def fn(x):
        array = x.numpy()
        s.memory.extend([array, (array, {"other": array[1:]})])
        found = [1]
        found.extend((array, [array]))
        found.insert(0, array[:2])
        if s.fails:
            raise ValueError("full")
        return x * 2, found, torch.as_tensor(found[0]) + 1

    made = [call(torch.ones(3) * n) for n in range(10)]
    return trace(fn), [*made, lambda: setattr(s, "fails", True), call(torch.ones(3))], lambda: s.memory


def discounted(s):
    total, found = 0, []
    for reward, last in zip(reversed(s.rewards), reversed(s.ends), strict=True):
        if last:
            total = 0
        total = reward + 0.5 * total
        found.insert(0, total)
    return found


def numbered(s):
    return [n * one for n, one in enumerate(reversed(s.rewards), 2)], list(reversed(s.rewards))


def from_both_ends(s):
    return [one - other for one, other in zip(s.rewards, reversed(s.rewards), strict=False)]


def in_tensors(s):
    return torch.FloatTensor(s.rewards), torch.DoubleTensor(s.rewards), torch.Tensor(s.rewards)


def grows_meanwhile(s):
    found = []
    for reward, end in zip(reversed(s.rewards), reversed(s.ends), strict=False):
        found.append(reward + end)
        if len(found) < 3:
            s.rewards.append(reward)
    return found


def shrinks_before(s):
    return [a + b for a, b in zip(reversed(s.rewards), [s.rewards.pop(), s.rewards.pop()], strict=False)]


def seen_itself(s):
    both = zip(kept := reversed(s.rewards), s.ends, strict=False)
    inside = zip([reversed(s.rewards)], strict=False)
    return [a + b for a, b in both], type(kept).__name__, [type(one).__name__ for (one,) in inside]


def _from_the_end(body):
    def make(trace):
        s = Holder(rewards=[], ends=[])

        def fill(n):
            s.rewards[:] = [k * 0.3 + n for k in range(5)]
            s.ends[:] = [k == 2 for k in range(5)]
            if n == 7:
                s.rewards[1] = True
            if n == 8:
                s.rewards[1:3] = [3, np.float32(2)]

        made = [step for n in range(12) for step in (lambda n=n: fill(n), call())]
        return trace(lambda: (body(s), torch.ones(2) * 2)), made, lambda: [s.rewards, s.ends]

    return make


def test_lists_that_are_gone_through_from_the_end():
    for body in (discounted, numbered, from_both_ends, in_tensors):
        check(_from_the_end(body), hits=5)
    for body in (grows_meanwhile, shrinks_before, seen_itself):
        agree(_from_the_end(body))


@cases.parametrize
def test_drawn_arrays(make, expected):
    check(make, **expected)
