"""What numpy draws with, what map() hands on, and what opaque functions are given and give."""

from __future__ import annotations

import functools
import heapq
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Holder, X, agree, call, calls, check


def as_it_is(array: Any) -> Any:
    return array


# ---------------------------------------------------------------- what numpy draws
DRAWS = {
    "randint": lambda n: np.random.randint(0, n),
    "an array": lambda n: np.random.randint(0, n, size=3).mean(),
    "normal": lambda n: np.random.normal(n, 2.0),
    "uniform": lambda n: np.random.uniform(0, n, 2).mean(),
    "choice": lambda n: np.random.choice(n, 2).mean(),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_that_numpy_draws_with(draw):
    """The memory of an agent that fills up: indices are drawn below its size."""

    def make(trace):
        np.random.seed(0)
        state = Holder(size=3)

        def step(x):
            y = x * float(DRAWS[draw](state.size))
            state.size += 1
            return y

        return trace(step), calls(10), lambda: (state.size, np.random.get_state()[2])

    check(make, hits=7)


def test_scalars_of_numpy_that_are_drawn():
    """Steps that give no number that is followed were taken for one, which had been asked before."""

    def make(trace):
        state = Holder(size=0, generator=np.random.default_rng(0))

        def step(x):
            state.size += 1
            low, high = state.size * 0 + 1, state.size
            draws = [state.generator.integers(n) for n in (low, low, high)]
            return x * 2 if x.sum() > 3 else x, draws

        return trace(step), calls(10), lambda: (state.size, state.generator.random())

    check(make, eager="opaque-result")


@pytest.mark.parametrize("catches", [False, True])
def test_numpy_draws_below_nothing(catches):
    def make(trace):
        np.random.seed(0)
        state = Holder(size=6, calls=0)

        def step(x):
            state.calls += 1
            state.size -= 1
            if not catches:
                return x * np.random.randint(0, state.size)
            try:
                return x * np.random.randint(0, state.size)
            except ValueError as error:
                state.size = 5
                return x, str(error)

        return trace(step), calls(14), lambda: (state.size, state.calls, np.random.get_state()[2])

    check(make, hits=2)


# ---------------------------------------------------------------- what goes through map()
@pytest.mark.parametrize("through", ["map", "generator", "list"])
def test_arrays_through_a_function(through):
    """As replay buffers of stable-baselines3 give what they sample."""

    def make(trace):
        np.random.seed(0)
        state = Holder(seen=np.random.randn(20, 1, 3).astype(np.float32), size=10)
        net = nn.Linear(3, 1)

        def to_torch(array):
            return torch.tensor(array)

        def sample(count):
            places = np.random.randint(0, state.size, size=count)
            data = (state.seen[places, 0, :], state.seen[places, 0].sum(1).reshape(-1, 1))
            if through == "map":
                return tuple(map(to_torch, data))
            if through == "list":
                return [to_torch(array) for array in data]
            return tuple(to_torch(array) for array in data)

        def step():
            seen, wanted = sample(4)
            return (net(seen) - wanted).square().mean()

        def grow():
            state.size += 1
            state.seen[state.size - 1] = state.size

        steps = [one for _ in range(8) for one in (call(), grow)]
        return trace(step), steps, lambda: (list(net.parameters()), np.random.get_state()[1][:8].tolist())

    check(make, hits=6)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(
    "reads",
    [sum, str, lambda arrays: np.stack(arrays), lambda arrays: tuple(map(np.sum, arrays))],
    ids=["sum", "str", "stack", "map"],
)
def test_arrays_that_c_code_reads_beside_it(reads, made):
    """What `map` only hands on is read by whoever comes next."""

    def make(trace):
        state = Holder(a=np.ones(1), b=np.ones(1), k=1.0)

        def step(x):
            data = (np.full(2, state.k), np.zeros(2)) if made else (state.a, state.b)
            first = list(map(as_it_is, data))
            return x * len(first), reads(data)

        def change():
            state.a += 1
            state.b = state.b * 3
            state.k += 1

        return trace(step), [one for _ in range(6) for one in (call(X()), change)]

    agree(make)


# ---------------------------------------------------------------- what opaque functions are given, and give
@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("view", ["keys", "values", "items"])
def test_a_view_of_a_dict_is_handed_to_a_function(view, kind):
    def make(trace):
        seen = []

        @lazytrace.opaque
        def look(names):
            seen.append((type(names), [*map(str, names)]))
            return torch.ones(())

        def step(x):
            made = kind({"a": x * 2, "b": 3})
            made["a"] = made.pop("a")
            return x * look(getattr(made, view)()), made

        return trace(step), calls(), lambda: seen

    check(make, hits=4)


class Parts:
    """What a custom function puts its tensors together by, as libraries of structured matrices have it."""

    def __init__(self, names, scale):
        self.names = names
        self.inner = [(slice(0, 1), None), (1, OrderedDict(scale=scale))]

    def __call__(self, *tensors):
        (first, _), (second, found) = self.inner
        return dict(zip(self.names, (*tensors[first], tensors[second] * found["scale"]), strict=True))


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, parts, *tensors):
        ctx.parts = parts
        ctx.save_for_backward(*tensors)
        found = parts(*tensors)
        return found["a"] * found["b"]

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        found = ctx.parts(a, b)
        return None, gradient * found["b"], gradient * found["a"]


@pytest.mark.parametrize("lasting", [False, True])
def test_an_object_with_a_view_is_handed_to_a_function_of_autograd(lasting):
    def make(trace):
        w = nn.Parameter(torch.randn(3))
        state = Holder(scale=2.0, names=OrderedDict(a=1, b=2))

        def step(x):
            names = state.names if lasting else OrderedDict(a=1, b=2)
            y = Product.apply(Parts(names.keys(), state.scale), w, x)
            w.grad = None
            y.sum().backward()
            return y.detach(), w.grad.clone()

        def change():
            state.scale += 1.0

        def turn():
            state.names.move_to_end("a")

        return trace(step), [*calls(4), change, *calls(2), turn, *calls(4)], lambda: state.scale

    check(make, hits=7 if lasting else 8)


@pytest.mark.parametrize("asks", ["is", "is not", "set", "dict"])
def test_which_tensor_an_opaque_function_gives(asks):
    def make(trace):
        pool, state = [torch.randn(3) for _ in range(3)], Holder(at=0)

        @lazytrace.opaque
        def pick():
            state.at += 1
            return pool[state.at % 3]

        def step(x):
            one = pick()
            if asks == "is":
                return x * 2 if one is pool[0] else x * 3
            if asks == "is not":
                return x, one is not pool[1]
            if asks == "set":
                return x, len({one, pool[0]})
            return x, len({one: 1, pool[2]: 2})

        return trace(step), calls(10), lambda: state.at

    agree(make)


# ---------------------------------------------------------------- what is put into objects of the call's
FILLS = {
    "list": (list, lambda held, value: held.append(value), lambda held: held),
    "entry of a list": (lambda: [0.0], lambda held, value: held.__setitem__(0, value), lambda held: held),
    "dict": (dict, lambda held, value: held.__setitem__("sum", value), lambda held: {"all": held}),
    "set": (set, lambda held, value: held.add(value), lambda held: (held, held)),
}


class Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, held, put):
        ctx.held, ctx.put = held, put
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.put(ctx.held, g.sum().item())
        return g * 2, None, None


def by_an_opaque_function(trace, put):
    note = lazytrace.opaque(put) if trace.enabled else put

    def step(w, x, held):
        (w * x).sum().backward()
        note(held, float(x.sum()))

    return step


def by_a_hook(trace, put):
    def step(w, x, held):
        y = w * x
        y.register_hook(lambda g: put(held, float((g * x).sum())))
        (y * x).sum().backward()

    return step


def by_a_function_of_autograd(trace, put):
    def step(w, x, held):
        (Noting.apply(w, held, put) * x).sum().backward()

    return step


@pytest.mark.parametrize("by", [by_an_opaque_function, by_a_hook, by_a_function_of_autograd])
@pytest.mark.parametrize("fill", FILLS)
def test_what_code_of_a_step_has_put_in_leaves_the_call(fill, by):
    """A replay returned what had been put in at the recording."""
    new, put, shown = FILLS[fill]

    def make(trace):
        w, fills = torch.ones(3, requires_grad=True), by(trace, put)

        def step(x):
            held = new()
            fills(w, x, held)
            return shown(held)

        return trace(step), calls(4), lambda: w.grad

    check(make, eager="reads-touched" if by is by_an_opaque_function else "opaque-varies")


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_step_keeps_leaves_the_call(keeps):
    """A hook that is called once the call has ended writes to what the call has returned or kept."""

    def make(trace):
        w, state = torch.ones(3, requires_grad=True), Holder(held=None)

        def step(x):
            held = []
            y = w * x
            y.register_hook(lambda g: held.append(float(g.sum())))
            if keeps:
                state.held = held
            return (y, None if keeps else held)

        traced = trace(step)

        def one(x):
            y, held = traced(x)
            (y * x).sum().backward()
            return held

        return one, calls(4), lambda: (state.held, w.grad)

    check(make, hits=3)


def test_what_code_of_a_step_has_put_in_is_handed_to_another():
    """The second step was given what the first one had put in at the recording."""

    def make(trace):
        opaque = lazytrace.opaque if trace.enabled else as_it_is

        @opaque
        def fill(held, x):
            held.append(float(x.sum()))

        @opaque
        def use(held, x):
            return x * sum(held)

        def step(x):
            held = []
            fill(held, x)
            return use(held, x)

        return trace(step), calls(4)

    check(make, eager="reads-touched")


@pytest.mark.parametrize("fills", [False, True])
def test_hooks_that_share_a_list(fills):
    """In a replay each hook has one of its own."""

    def make(trace):
        w = torch.ones(3, requires_grad=True)

        def step(x):
            held = [1.0]
            y = w * x
            z = y * 2
            y.register_hook(lambda g: g * sum(held))
            z.register_hook(lambda g: held.append(float(g.sum())) if fills else g * held[0])
            (z * x).sum().backward()
            return y.detach()

        return trace(step), calls(4), lambda: w.grad

    check(make, eager="opaque-varies" if fills else "shares-handed-on")


def test_what_a_step_looks_at_leaves_the_call():
    def make(trace):
        w = torch.ones(3, requires_grad=True)
        look = lazytrace.opaque(scaled) if trace.enabled else scaled

        def step(x):
            held = [2.0]
            return look(held, x * w), held

        return trace(step), calls(4), lambda: w.grad

    check(make, hits=2)


def scaled(held, x):
    return x * held[0]


# ---------------------------------------------------------------- one object for several steps
def keeps_and_fills(do, held, x):
    do.keep(held)
    do.fill(held, x)


def keeps_what_is_around_it(do, held, x):
    do.keep([held])
    do.fill(held, x)


def keeps_twice(do, held, x):
    do.keep(held)
    do.keep_another(held)


class Kept:
    """What functions have kept, and these functions: `do`."""

    def __init__(self, trace):
        opaque = lazytrace.opaque if trace.enabled else as_it_is
        self.held = self.other = None
        self.do = Holder(w=torch.ones(3, requires_grad=True), fill=opaque(self.fill))
        self.do.keep, self.do.keep_another = opaque(self.keep), opaque(self.keep_another)

    def keep(self, held):
        self.held = held

    def keep_another(self, held):
        self.other = held

    @staticmethod
    def fill(held, x):
        held.append(float(x.sum()))

    def look(self):
        return repr((self.held, self.other)), self.held is self.other, self.do.w.grad


@pytest.mark.parametrize("body", [keeps_and_fills, keeps_what_is_around_it, keeps_twice])
def test_several_steps_are_given_one_list(body):
    """In a replay each step was given a list of its own."""

    def make(trace):
        kept = Kept(trace)
        do = kept.do

        def step(x):
            held = []
            body(do, held, x)
            return x * 2

        return trace(step), calls(4), kept.look

    check(make, eager="shares-handed-on")


def with_a_pass(traced):
    """Calls whose caller makes the backward pass."""

    def one(x):
        y = traced(x)
        y.backward()
        return y

    return one


def test_hooks_that_share_a_list_are_called_later():
    def make(trace):
        w = torch.ones(3, requires_grad=True)

        def step(x):
            held = []
            y = w * x
            z = y * 3
            y.register_hook(lambda g: g * (2 if held else 1))
            z.register_hook(lambda g: held.append(1))
            return z.sum()

        return with_a_pass(trace(step)), calls(4), lambda: w.grad

    check(make, eager="shares-handed-on")


def fills(do, held, x):
    do.fill(held, x)


def keeps_another(do, held, x):
    do.keep_another(held)


def appends(do, held, x):
    held.append(3)


def returns(do, held, x):
    return held


@pytest.mark.parametrize("after", [fills, keeps_another, appends, returns])
def test_what_a_step_keeps_is_met_after_a_side_exit(after):
    """The function would have run again with a list of its own."""

    def make(trace):
        kept = Kept(trace)
        do = kept.do

        def step(x):
            held = []
            do.keep(held)
            back = None
            if x.sum() > 0:
                back = after(do, held, x)
            return x * 2, back

        traced = trace(step)

        def one(x):
            y, back = traced(x)
            return y, back, back is kept.held

        signs = (-1, -1, 1, -1, 1, 1)
        return one, [call(sign * X()) for sign in signs], kept.look

    check(make, eager="read-after-change")


def of_a_list(do, x):
    do.keep([1, [2]])


class Box:
    def __init__(self):
        self.held = [1]


def of_an_object(do, x):
    do.keep(Box())


def of_a_partial(do, x):
    hook = functools.partial(scales, by=2.0)
    for y in (do.w * x, do.w + x):
        y.register_hook(hook)


def scales(g, by):
    return g * by


@pytest.mark.parametrize("body", [of_a_list, of_an_object, of_a_partial])
def test_what_the_function_itself_comes_to_no_more(body):
    """It can change nothing of that, and goes on after a side exit."""

    def make(trace):
        kept = Kept(trace)
        do = kept.do

        def step(x):
            body(do, x)
            return x * 2 if x.sum() > 0 else x * 3

        signs = (-1, -1, 1, -1, 1, 1)
        return trace(step), [call(sign * X()) for sign in signs], lambda: (type(kept.held), kept.do.w.grad)

    check(make, hits=2)


def test_hooks_that_share_a_list_on_two_sides_of_an_exit():
    def make(trace):
        w, seen = torch.ones(3, requires_grad=True), []

        def step(x):
            held = []
            y = w * x
            y.register_hook(lambda g: seen.append(len(held)))
            z = y * 3
            if x.sum() > 0:
                z.register_hook(lambda g: held.append(7))
            return z.sum()

        signs = (-1, -1, -1, 1, -1, 1, 1)
        return with_a_pass(trace(step)), [call(sign * X()) for sign in signs], lambda: (w.grad, seen)

    check(make, hits=4)


# ---------------------------------------------------------------- variables of functions that are handed on
def keeps_a_number(do, x):
    n = 1

    def read():
        return n

    do.keep(read)
    if x.sum() > 0:
        n = 5
    return x * 2


def hook_of_a_number(do, x):
    n = 1
    y = do.w * x
    y.register_hook(lambda g: g * n)
    if x.sum() > 0:
        n = 5
    return y.sum()


def hook_of_a_tensor(do, x):
    t = x * 2
    y = do.w * x
    y.register_hook(lambda g: g * t)
    if x.sum() > 0:
        t = t * 3
    return y.sum()


def set_inside(do, x):
    n = 1

    def set_it():
        nonlocal n
        n = 5

    y = do.w * x
    y.register_hook(lambda g: g * n)
    if x.sum() > 0:
        set_it()
    return y.sum()


def set_in_a_loop(do, x):
    y = 0
    for n in (1, 2):
        z = do.w * x
        z.register_hook(lambda g: g * n)  # noqa: B023
        y = y + z
        if x.sum() < 0:
            break
    return y.sum()


def set_by_another_hook(do, x):
    n = 1
    y = do.w * x
    z = y * 2

    def set_it(g):
        nonlocal n
        n = 5

    z.register_hook(set_it)
    y.register_hook(lambda g: g * n)
    return z.sum()


def set_by_whom_a_function_has_made(do, x):
    def pair():
        n = 1

        def set_it(g):
            nonlocal n
            n = 5

        return set_it, lambda g: g * n

    set_it, use_it = pair()
    y = do.w * x
    z = y * 2
    z.register_hook(set_it)
    y.register_hook(use_it)
    return z.sum()


def never_set(do, x):
    n = 2
    y = do.w * x
    n = n + 1
    y.register_hook(lambda g: g * n)
    return y.sum() if x.sum() > 0 else y.mean()


def never_set_elsewhere(do, x):
    def scaled(n):
        return lambda g: g * n

    y = do.w * x
    y.register_hook(scaled(3))
    return y.sum() if x.sum() > 0 else y.mean()


VARIABLES = [
    *(keeps_a_number, hook_of_a_number, hook_of_a_tensor, set_inside, set_in_a_loop, set_by_another_hook),
    *(set_by_whom_a_function_has_made, never_set, never_set_elsewhere),
]


@pytest.mark.parametrize("body", VARIABLES)
def test_variables_of_what_is_kept(body):
    """Code that runs again after a side exit has variables of its own, and each step made its own of one."""

    def make(trace):
        kept = Kept(trace)
        traced = trace(lambda x: body(kept.do, x))

        def one(x):
            y = traced(x)
            if y.requires_grad:
                y.backward()
            return y, kept.held and kept.held()

        signs = (-1, -1, -1, 1, -1, 1, 1)
        return one, [call(sign * X()) for sign in signs], lambda: kept.do.w.grad

    if body in (keeps_a_number,):
        check(make, eager="read-after-change")
    elif body in (set_by_another_hook, set_by_whom_a_function_has_made):
        check(make, eager="shares-handed-on")
    else:
        check(make, hits=2)


@pytest.mark.parametrize("hooks", [False, True])
def test_variables_that_were_there_before(hooks):
    """The function that is kept shares them with what had them before, and finds what is set later."""

    def make(trace):
        kept = Kept(trace)
        do, n = kept.do, 1

        def set_it(value):
            nonlocal n
            n = value

        def step(x):
            if hooks:
                y = do.w * x
                y.register_hook(lambda g: g * n)
                return y.sum()
            do.keep(lambda: n)
            return x * 2

        traced = trace(step)

        def one(x, value):
            set_it(1)
            y = traced(x)
            set_it(value)
            if hooks:
                y.backward()
            return y, kept.held and kept.held()

        return one, [call(X(), value) for value in (1, 2, 3, 4)], lambda: do.w.grad

    check(make, hits=2)


def test_functions_that_share_a_variable_go_together():
    def make(trace):
        kept = Kept(trace)
        do = kept.do

        def step(x):
            n = 1

            def set_it(value):
                nonlocal n
                n = value

            do.keep([set_it, lambda: n])
            return x * 2

        traced = trace(step)

        def one(x, value):
            y = traced(x)
            kept.held[0](value)
            return y, kept.held[1]()

        return one, [call(X(), value) for value in (1, 2, 3, 4)]

    check(make, hits=2)


def test_an_attribute_that_a_step_puts_on_what_it_is_given():
    """Nobody reads it, and the tensor does not leave the call."""

    def make(trace):
        def puts(t, value):
            t.note = value

        note = lazytrace.opaque(puts) if trace.enabled else puts

        def step(x):
            t = x * 2
            y = t + 1
            if x.sum() > 0:
                y = y + 1
            note(t, [1, 2])
            return y

        return trace(step), [call(sign * X()) for sign in (-1, -1, 1, -1, 1)]

    check(make, hits=2)


# ---------------------------------------------------------------- what a step changes at one call only
def fills_a_list(do, x):
    found = []
    return do(x, lambda held: held.append(1), found) * (1 + len(found))


def fills_a_dict(do, x):
    found = {}
    return do(x, lambda held: held.setdefault("a", 1), found) * (1 + len(found))


class Counted:
    def __init__(self):
        self.count = 0


def sets_an_attribute(do, x):
    found = Counted()
    return do(x, lambda held: setattr(held, "count", 1), found) * (1 + found.count)


def sets_a_variable(do, x):
    found = 0

    def change(held):
        nonlocal found
        found = held

    return do(x, change, 1) * (1 + found)


def fills_what_is_inside(do, x):
    found = [[]]
    return do(x, lambda held: held[0].append(1), found) * (1 + len(found[0]))


@pytest.mark.parametrize(
    "body", [fills_a_list, fills_a_dict, sets_an_attribute, sets_a_variable, fills_what_is_inside]
)
@pytest.mark.parametrize("counts", [False, True])
def test_what_a_step_changes_in_a_replay_alone_is_met(body, counts):
    """The function has a list of its own, which says nothing of the one that the step was given."""

    def make(trace):
        made = []

        def fills(x, change, found):
            if counts:
                made.append(1)
            if x.sum() < 0:
                change(found)
            return x * 2

        do = lazytrace.opaque(fills) if trace.enabled else fills
        return trace(lambda x: body(do, x)), [call(sign * X()) for sign in (1, 1, 1, -1, 1, -1, 1)], made.copy

    check(make, hits=3)


def adds_what_it_was_given(found, other, x):
    found.append((other, 1))


def moves_an_entry(found, other, x):
    found.move_to_end("a")


def takes_an_attribute(found, other, x):
    del found.count


def becomes_another(found, other, x):
    found.__class__ = CountedTwice


class CountedTwice(Counted):
    twice = True


CHANGES = {
    adds_what_it_was_given: (list, lambda found, other: found and found[0][0] is other),
    moves_an_entry: (lambda: OrderedDict(a=1, b=2), lambda found, other: list(found)),
    takes_an_attribute: (Counted, lambda found, other: hasattr(found, "count")),
    becomes_another: (Counted, lambda found, other: hasattr(found, "twice")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_how_a_step_changes_what_it_is_given_in_a_replay(change):
    def make(trace):
        def changes(found, other, x):
            if x.sum() < 0:
                change(found, other, x)

        do = lazytrace.opaque(changes) if trace.enabled else changes
        made, shown = CHANGES[change]

        def step(x):
            found, other = made(), [1]
            do(found, other, x)
            return x * 2, shown(found, other)

        return trace(step), [call(sign * X()) for sign in (1, 1, 1, -1, 1, -1, 1)]

    check(make, hits=3)


@pytest.mark.parametrize("ends", ["gives a flag", "raises"])
def test_what_a_step_fills_that_leads_back(ends):
    """What it gives is another thing where it has filled the list: the function finds its own filled."""

    def make(trace):
        def fills(x, found):
            if x.sum() < 0:
                found.append(1)
                if ends == "raises":
                    raise ValueError("below")
            return bool(x.sum() > 0)

        fill = lazytrace.opaque(fills) if trace.enabled else fills

        def step(x):
            found = []
            try:
                y = x * 2 if fill(x, found) else x * 3
            except ValueError:
                y = x
            return y * (1 + len(found))

        return trace(step), [call(sign * X()) for sign in (1, 1, 1, -1, 1, -1, 1)]

    check(make, hits=3)


def test_a_flag_beside_a_list_that_is_filled_and_held():
    def make(trace):
        def fills(x, found):
            found.append(1)
            return bool(x.sum() > 0)

        fill = lazytrace.opaque(fills) if trace.enabled else fills

        def step(x):
            found = []
            return x * 2 if fill(x, found) else x * 3

        return trace(step), [call(s * X()) for s in (1, 1, -1, 1, -1, -1)]

    check(make, hits=2)


def test_a_branch_of_a_nested_function_behind_print(capsys):
    """What was recorded behind an exit took the list for one that print() keeps, and could not be left."""

    def make(trace):
        def step(x):
            n, found = 1, []
            print(found)

            def branch():
                nonlocal n, found
                if x.sum() > 0:
                    n = 3

            branch()
            return x * n

        return trace(step), [call(s * X()) for s in (-1, -1, -1, 1, 1, -1, 1, 1, -1)]

    check(make, hits=4)


class Told:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append(1)


def test_what_a_step_has_put_in_goes_when_it_is_due():
    def make(trace):
        log = []

        def puts_one_in(x, found):
            found.append(Told(log))
            return x * 2

        fill = lazytrace.opaque(puts_one_in) if trace.enabled else puts_one_in

        def step(x):
            found = []
            y = fill(x, found)
            del found
            return y, len(log)

        return trace(step), calls(4), log.copy

    check(make, eager="late-destructor")


def test_a_step_that_gives_nothing_but_an_empty_dict():
    def make(trace):
        give = lazytrace.opaque(lambda x: {}) if trace.enabled else lambda x: {}
        return trace(lambda x: (x * 2, len(give(x)))), calls(4)

    check(make, hits=2)


def test_what_nobody_reads_behind_a_step_that_changes_it_at_some_calls():
    def make(trace):
        def fills(x, found):
            if x.sum() < 0:
                found.append(x)

        fill = lazytrace.opaque(fills) if trace.enabled else fills

        def step(x):
            found = []
            fill(x, found)
            return x * 2

        return trace(step), [call(sign * X()) for sign in (1, 1, -1, 1, -1, -1, 1)]

    check(make, hits=5)


class Passes:
    def __init__(self):
        self.n = 0

    def third(self):
        self.n += 1
        return self.n % 3 == 0


class Logs:
    def __init__(self, passes):
        self.found, self.passes = 0, passes

    def log(self, grad):
        if self.passes.third():
            self.found = 1


def hook_on_a_list(y, passes):
    found = []

    def log(grad):
        if passes.third():
            found.append(1)

    y.register_hook(log)
    y.sum().backward()
    return len(found)


def hook_on_a_variable(y, passes):
    found = 0

    def log(grad):
        nonlocal found
        if passes.third():
            found = 1

    y.register_hook(log)
    y.sum().backward()
    return found


def hook_of_an_object(y, passes):
    logs = Logs(passes)
    y.register_hook(logs.log)
    y.sum().backward()
    return logs.found


LOGGED = {
    hook_on_a_list: {"hits": 2, "eager": "resumes-after-opaque"},
    hook_on_a_variable: {"eager": "variable-touched"},
    hook_of_an_object: {"eager": "reads-touched"},
}


@pytest.mark.parametrize("logged", LOGGED)
def test_what_a_hook_changes_at_a_later_call(logged):
    """What an earlier step keeps, a later one may change, though it did not when that was recorded."""

    def make(trace):
        w, passes = torch.ones(3, requires_grad=True), Passes()
        step = trace(lambda x: x * (1 + logged(w * x, passes)))
        return step, calls(7), lambda: (w.grad, passes.n)

    check(make, **LOGGED[logged])


def test_what_a_step_changes_unseen_is_not_read():
    def make(trace):
        fill = lazytrace.opaque(pushes) if trace.enabled else pushes

        def step(x):
            found = []
            y = fill(x, found)
            return y * len(found)

        return trace(step), calls(4)

    check(make, eager="reads-touched")


def pushes(x, found):
    heapq.heappush(found, 1)
    return x * 2


def adds_what_was_set(x, box):
    return x + box.held[0]


def gives_a_method(x, box):
    return x, box.read


def gives_the_object(x, box):
    return x, box


class Read(Box):
    def read(self):
        return self.held


@pytest.mark.parametrize("behind", [adds_what_was_set, gives_a_method, gives_the_object])
def test_what_a_step_has_set_is_met_after_a_side_exit(behind):
    """The function would have run again with an object that no step has changed."""

    def make(trace):
        def sets(box, x):
            box.held = [float(x.sum())]

        fill = lazytrace.opaque(sets) if trace.enabled else sets

        def step(x):
            box = Read()
            fill(box, x)
            return behind(x, box) if x.sum() > 0 else x * 2

        traced = trace(step)

        def one(x):
            y = traced(x)
            if isinstance(y, tuple):
                y, box = y
                return y, box() if callable(box) else box.held
            return y

        return one, [call(sign * X()) for sign in (-1, -1, -1, 1, -1, 1)]

    check(make, eager="read-after-change")
