"""Arrays of numpy that a call makes itself: what is drawn, computed and written is so at each replay."""

from __future__ import annotations

import types
import warnings
from collections import deque
from functools import partial

import numpy as np
import pytest
import torch

from lazytrace import traced
from tests.processes import python
from tests.soundness.runner import X, agree, call, check

COUNT = 10


def calls(n=COUNT):
    return [call(k * X()) for k in range(1, n + 1)]


def stream():
    return np.random.get_state()[2], bytes(np.random.get_state()[1])


def drawing(body, n=COUNT):
    """Numpy's stream is compared, too."""

    def make(trace):
        np.random.seed(0)
        return trace(body), calls(n), stream

    return make


def mask(x):
    found = np.zeros((2, 3), dtype=bool)
    found[1] = True
    found[0, 1] = True
    return x * torch.from_numpy(found)


def positions(x):
    order = np.argsort(x.numpy())
    return x[torch.from_numpy(order)], x[torch.as_tensor(np.flip(order).copy())]


def half_masked(x):
    kept = np.random.rand(3) < 0.5
    return x * torch.tensor(kept, dtype=torch.float32), kept.sum() > 1


def mixed(x):
    weights = np.random.normal(0, 1, size=(2, 3))
    weights[0] *= 2
    weights += 1
    return x * torch.as_tensor(weights, dtype=torch.float32), weights.mean(), weights


def by_generator(generator):
    def step(x):
        return x + torch.from_numpy(generator.normal(size=3)).float(), generator.integers(0, 9, size=2)

    return step


DRAWN = {
    "rand_item": lambda x: x * np.random.rand(1).item(),
    "rand_first": lambda x: x * float(np.random.rand(2)[1]),
    "rand_compared": lambda x: x * 2 if np.random.rand(1) < 0.5 else x + 1,
    "choice": lambda x: x[torch.from_numpy(np.random.choice(3, size=2))],
    "choice_without_replacement": lambda x: x[
        torch.as_tensor(np.random.choice(np.arange(3), 2, replace=False))
    ],
    "choice_by_weights": lambda x: x[torch.as_tensor(np.random.choice(3, 4, p=[0.5, 0.25, 0.25]))],
    "randint": lambda x: x[torch.as_tensor(np.random.randint(0, 3, size=2))],
    "randint_as_index": lambda x: x[np.random.randint(0, 3, size=2)],
    "permutation": lambda x: x[torch.from_numpy(np.random.permutation(3))],
    "permutation_as_index": lambda x: x[np.random.permutation(len(x))[:2]],
    "normal": lambda x: x + torch.from_numpy(np.random.normal(0, 1, size=3)).float(),
    "normal_tensor": lambda x: x + torch.tensor(np.random.normal(0, 1, size=(3,)), dtype=torch.float32),
    "returned": lambda x: (x, np.random.rand(2, 3)),
    "dirichlet": lambda x: x * torch.from_numpy(np.random.dirichlet([1.0, 2.0, 3.0])),
    "half_masked": half_masked,
    "mixed": mixed,
}
# Each branch takes a recording.
BRANCHES = {"rand_compared": 2, "half_masked": 4}


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_arrays(name):
    tracer = agree(drawing(DRAWN[name]))
    assert tracer.reasons() == {}
    assert tracer.count("hits") >= COUNT - BRANCHES.get(name, 1)


def test_generators_of_ones_own():
    def make(trace):
        generator = np.random.default_rng(0)
        return trace(by_generator(generator)), calls(), lambda: str(generator.bit_generator.state)

    tracer = agree(make)
    assert tracer.count("hits") == COUNT - 1


def test_numbers_and_arrays_of_one_generator():
    def step(x):
        a = np.random.rand()
        b = np.random.rand(2)
        c = np.random.rand()
        return x * a + torch.from_numpy(b).sum() * c

    assert agree(drawing(step)).count("hits") == COUNT - 1


COMPUTED = {
    "mask": mask,
    "accuracy": lambda x: (x, (x.numpy().argmax(-1) == np.arange(1)).mean()),
    "mean": lambda x: (x, x.numpy().mean(dtype=np.float64)),
    "mean_by_numpy": lambda x: np.mean(x.double().numpy()),
    "float_of_loss": lambda x: float((x * 2).sum().numpy()),
    "float_of_mean": lambda x: float(np.mean(np.abs(x.numpy()))) + float(np.exp(x.numpy()).max()),
    "float_of_root": lambda x: (float(np.sqrt(np.mean(x.numpy() ** 2))), int(np.sum(x.numpy() > 0)) > 5),
    "item_of_loss": lambda x: (x * 2).sum().numpy().item(),
    "int_of_count": lambda x: x * int((x > 0).sum().numpy()),
    "concatenated": lambda x: torch.from_numpy(np.concatenate([x.numpy(), np.ones(2, dtype=np.float32)])),
    "where": lambda x: torch.from_numpy(np.where(x.numpy() > 0, x.numpy(), 0)),
    "transposed": lambda x: torch.from_numpy(np.exp(x.numpy().reshape(3, 1).T)),
    "views": lambda x: torch.from_numpy(np.exp(x.numpy())[1:][:, None] * 2),
    "to_list": lambda x: np.abs(x.numpy()).tolist(),
    "shape": lambda x: x * np.exp(x.numpy()).shape[0] + np.exp(x.numpy()).ndim,
    "isin": lambda x: torch.from_numpy(np.isin(x.long().numpy(), np.arange(2))),
    "returned": lambda x: (np.exp(x.numpy()), np.stack([x.numpy(), x.numpy()])),
    "in_a_list": lambda x: [np.exp(x.numpy()) for _ in range(2)],
    "asks_for_the_truth": lambda x: x * 2 if np.any(x.numpy() > 5) else x,
    "mixed_with_floats": lambda x: torch.from_numpy(1 - 2 * x.numpy() / 3 + np.float32(1)),
    "negated": lambda x: torch.from_numpy(-x.numpy()) * torch.from_numpy(~(x.numpy() > 0)),
    "nan": lambda x: np.mean((x * float("nan")).double().numpy()),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_arrays(name):
    tracer = agree(lambda trace: (trace(COMPUTED[name]), calls()))
    assert tracer.reasons() == {}
    assert tracer.count("hits") >= COUNT - (2 if name == "asks_for_the_truth" else COUNT // 2)


def written_after_it_was_taken(x):
    found = np.zeros(3)
    made = torch.from_numpy(found)
    found[1] = 5
    return x * made


def written_through_a_view(x):
    found = np.zeros((2, 3), dtype=np.float32)
    found[0][1] = 5
    row = found[1]
    row += 2
    return x * torch.from_numpy(found)


def memory_of_a_tensor(x):
    y = x * 2
    y.numpy()[0] = 7
    return y


def taken_twice(x):
    found = np.zeros(3)
    a, b = torch.from_numpy(found), torch.from_numpy(found)
    a += 1
    return x * b


def kept_method(x):
    mean = np.exp(x.numpy()).mean
    return x, float(mean())


def out_argument(x):
    found = np.zeros(3, dtype=np.float32)
    np.exp(x.numpy(), out=found)
    return x, torch.from_numpy(found)


def items(x):
    return [float(value) for value in np.exp(x.numpy())]


def types_of_scalars(x):
    found = np.exp(x.numpy())
    return type(found[0]).__name__, type(found.max()).__name__, type(found.astype(np.float64).sum()).__name__


def raises_by_index(x):
    try:
        return np.exp(x.numpy())[x.shape[0]]
    except IndexError as error:
        return str(error)


def two_arrays_of_one_memory(x):
    found = np.ones(6, dtype=np.float32)
    both = found.reshape(2, 3)
    both[0] = 3
    return x * torch.from_numpy(both), found.sum()


def numbers_of_several(x):
    found = np.exp(x.numpy())
    try:
        return float(found)
    except TypeError as error:
        return (
            str(error),
            float(found.max()),
            int(found.sum()),
            bool(found.min()),
            float(np.max(found, axis=0)),
        )


def numbers_of_odd_kinds(x):
    nothing = (x * float("nan")).numpy()
    try:
        return float(np.mean(nothing)), int(np.mean(nothing))
    except ValueError as error:
        return str(error)


def options_of_methods(x):
    found = np.exp(x.numpy())
    same = found.astype(np.float32, copy=False)
    other = found.astype(np.float64, copy=False)
    order = np.arange(3)
    np.random.shuffle(x=order)
    return same is found, other, found.astype("f8", "C").sum(), found.tolist(), found[:1].item(0), order


def wrong_arguments(x):
    said = []
    for ask in (
        lambda a: int(a, 16),
        lambda a: a.tolist(1),
        lambda a: a.astype(),
        lambda a: a.item(9),
        lambda a: a.reshape(7),
        lambda a: np.random.shuffle(),
        lambda a: np.random.permutation(),
        lambda a: np.mean(a, axis=4),
        lambda a: np.zeros(),
    ):
        try:
            said.append(ask(np.exp(x.numpy())))
        except (TypeError, ValueError, IndexError) as error:
            said.append(f"{type(error).__name__} {error}")
    return said


def views_of_nothing(x):
    a = np.exp(x.numpy()).reshape(1, 3)
    return a[1:], x.numpy().reshape(1, 3)[1:], a[:, 3:].T


def texts(x):
    return x, np.array(["a", "b"]), np.random.choice(["a", "b"])


def scalar_first(x):
    scalar = np.float32(2)
    scalar += np.exp(x.numpy())
    other = np.float64(3) - np.exp(x.numpy())
    return scalar, other, np.int64(2) ** np.arange(3)


def an_argument_written_to(x):
    shown = x.numpy()
    shown += 1
    return x * 2


def changed_in_between(x):
    y = x * 2
    shown = y.numpy()
    before = shown.sum(dtype=np.float64)
    y.add_(1)
    return before, np.sum(shown, dtype=np.float64), shown


def raised_and_caught(x):
    found = []
    for size in (2, 5):
        try:
            found.append(np.random.choice(3, size=size, replace=False).tolist())
        except ValueError as error:
            found.append(str(error))
    return x, found


def raised_by_a_value(x):
    count = np.random.randint(1, 5, size=1).item()
    try:
        return x, np.random.choice(3, size=count, replace=False)
    except ValueError as error:
        return x + 1, str(error)


def set_out_of_range(x):
    found = np.zeros(3)
    try:
        found[np.random.randint(2, 5, size=1)] = 1
    except IndexError as error:
        return str(error), found
    return x, found


def in_state_and_written(x):
    found = np.zeros(3)
    HELD.append(found)
    found[1] = float(x.sum())
    return HELD[-1].sum(), found is HELD[-1]


def warned(x):
    with np.errstate(all="ignore"):
        return np.log(x.numpy() - 100), np.sqrt(np.float64(-1.0))


def compared_with_odd_things(x):
    found = np.exp(x.numpy())
    return (found == None).any(), found is None, found != 1, (found > x.numpy()).all()  # noqa: E711


def ambiguous(x):
    try:
        return bool(np.exp(x.numpy())), 1
    except ValueError as error:
        return str(error)


def without_dimensions(x):
    loss = (x * x).sum().numpy()
    try:
        return len(loss)
    except TypeError as error:
        return str(error), loss + 1, loss.shape, loss.ndim


def shuffled(x):
    order = np.arange(6)
    np.random.shuffle(order)
    items = [1, 2, 3]
    np.random.shuffle(items)
    return x[torch.from_numpy(order[:3] // 2)], items


def views_of_views(x):
    found = np.zeros((2, 3, 4))
    found[1, :, 2:][0] = 5
    found[..., None][0, 1] += 3
    found[:, ::2] -= 1
    return x, found


def another_name(x):
    found = other = np.zeros(3)
    other[0] = 4
    return found, other, [found]


HELD: list[object] = []
HOSTILE = [
    scalar_first,
    an_argument_written_to,
    changed_in_between,
    raised_and_caught,
    raised_by_a_value,
    set_out_of_range,
    in_state_and_written,
    warned,
    compared_with_odd_things,
    ambiguous,
    without_dimensions,
    shuffled,
    views_of_views,
    another_name,
    written_after_it_was_taken,
    written_through_a_view,
    memory_of_a_tensor,
    taken_twice,
    kept_method,
    out_argument,
    items,
    types_of_scalars,
    raises_by_index,
    two_arrays_of_one_memory,
    numbers_of_several,
    numbers_of_odd_kinds,
    options_of_methods,
    wrong_arguments,
    texts,
    views_of_nothing,
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: body.__name__)
def test_what_may_run_eagerly(body):
    """Whether it is replayed or not, it is what the plain function gives."""
    HELD.clear()
    agree(drawing(body))


def test_shuffled_positions():
    """As a loop over small batches draws them."""

    def step(x):
        order = np.arange(4)
        np.random.shuffle(order)
        parts = [x.repeat(2)[order[start : start + 2]] for start in (0, 2)]
        return torch.stack(parts)

    assert agree(drawing(step)).count("hits") == COUNT - 1


def test_an_array_in_state():
    """It is read when the step comes to it, and found again by its guard."""

    def make(trace):
        np.random.seed(0)
        held = types.SimpleNamespace(rows=np.arange(12.0).reshape(4, 3), log=[])

        def step(x):
            rows = np.random.randint(0, len(held.log) * 0 + 4, size=2)
            return x + torch.as_tensor(held.rows[rows]).float().sum(0)

        def change():
            held.rows[:] += 1

        def replace():
            held.rows = held.rows[:3] * 2

        return trace(step), [*calls(4), change, *calls(3), replace], stream

    assert agree(make).count("hits") >= 5


def test_a_list_in_state_is_no_argument():
    """What the call has written to it is not there yet when a replay comes to the step."""

    def make(trace):
        np.random.seed(0)
        losses = []

        def step(x):
            losses.append(float(x.sum()))
            return x * np.random.choice(losses, size=2).mean(), np.concatenate([x.numpy(), losses]).sum()

        return trace(step), calls(), lambda: losses

    agree(make)


def test_a_draw_before_a_side_exit_is_made_once():
    def step(x):
        noise = np.random.rand(3)
        y = x * torch.from_numpy(noise).float()
        if y.sum() > 2:
            y = y + torch.from_numpy(np.random.rand(3)).float()
        return y, noise

    assert agree(drawing(step, 16)).count("hits") >= 12


def test_a_step_of_training():
    def make(trace):
        np.random.seed(0)
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        history = []

        def step(x):
            kept = np.random.rand(2) < 0.7
            weights = torch.from_numpy(kept).float()
            loss = ((model(x) * weights) ** 2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(float(loss.detach().numpy()))
            return float(np.mean(model(x).detach().numpy() > 0))

        return trace(step), calls(12), lambda: (history, model.weight, stream())

    assert agree(make).count("hits") >= 9


def test_all_sizes():
    """What a step of numpy gives takes a branch for each size."""

    def step(x):
        order = np.random.permutation(x.shape[0])
        return x[torch.from_numpy(order)], np.exp(x.numpy()).shape, len(order)

    def make(trace):
        np.random.seed(0)
        return trace(step), [call(torch.arange(float(n))) for n in (3, 4, 5, 6, 7, 3)], stream

    agree(make)


def test_without_numbers():
    """What is recorded by value makes no steps of arrays."""

    @traced(dynamic=False)
    def step(x):
        return x * float(np.exp(x.numpy()).sum())

    for k in range(3):
        assert torch.equal(step(X() + k), (X() + k) * float(np.exp((X() + k).numpy()).sum()))


def test_exits_between_writes():
    def step(x):
        found = np.zeros(3, dtype=np.float32)
        found[0] = 1
        before = found.sum(dtype=np.float64)
        if x.sum() > 4:
            found[1] = 2
        after = found.sum(dtype=np.float64)
        if x.sum() > 8:
            found += before + after
        return x * torch.from_numpy(found), before, after, found

    assert agree(drawing(step, 12)).count("hits") == 9


def test_gradients_through_what_was_drawn():
    def make(trace):
        np.random.seed(0)
        weight = torch.ones(3, requires_grad=True)

        def step(x):
            order = np.random.permutation(3)
            shuffled = (weight * x)[order][torch.from_numpy(order)]
            loss = (shuffled * torch.from_numpy(np.random.rand(3)).float()).sum()
            loss.backward()
            return loss.detach()

        return trace(step), calls(8), lambda: (weight.grad, stream())

    assert agree(make).count("hits") >= 6


def test_views_that_leave():
    def make(trace):
        kept = []

        def step(x):
            found = np.exp(x.numpy())
            part = found[1:]
            kept.append(part)
            return found, part, {"again": found}

        return trace(step), calls(6), lambda: kept

    assert agree(make).count("hits") == 5


def told(step, n=4):
    """All that is warned of, call by call."""
    found = []
    for k in range(n):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(X() + k)
        found.append([(warning.category, str(warning.message)) for warning in caught])
    return found


WARNED = {
    "division": lambda x: np.arange(3) // 0,
    "empty": lambda x: np.zeros((0, 3)).mean(0),
    "invalid": lambda x: np.log(x.numpy() - 100),
    "cast": lambda x: np.ones(3, dtype=np.float32) * 1e40,
}


@pytest.mark.parametrize("name", WARNED)
def test_warnings_are_told_once(name):
    """The proof of a recording runs its steps again."""
    step = traced(WARNED[name])
    assert told(step) == told(WARNED[name])
    assert step.stats().hits == 3


def test_errors_that_numpy_hands_to_a_function():
    def body(x):
        return np.arange(3) / 0

    def calls_of(step):
        seen = []
        with np.errstate(all="call", call=lambda *about: seen.append(about)):
            for k in range(4):
                step(X() + k)
        return seen

    step = traced(body)
    assert calls_of(step) == calls_of(body)
    assert step.stats().hits == 3


def test_warnings_that_were_told_stay_told():
    """The filters are left as they were, and so is what they know."""

    def warn():
        warnings.warn("once", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        warn()
        before = warnings.filters
        step = traced(lambda x: np.exp(x.numpy()))
        step(X()), step(X())
        warn()
        assert warnings.filters is before
    assert [str(warning.message) for warning in caught] == ["once"]


def strides_of_one(x):
    a = np.arange(3.0)
    b = a[None]
    return b, a[:, None], b[..., None] * 2, b[:, 0], a[None, :, None][0], np.ones((3, 1)).T, a.reshape(3, 1)


def views_of_the_same(x):
    a = np.exp(x.numpy())
    b = a[:]
    c = b[:]
    return a, b, c, a.reshape(3), [a, b]


def views_of_what_is_gone(x):
    a = np.exp(x.numpy())
    b = a[:]
    del a
    c = b[:]
    del b
    return c, c[1:]


@pytest.mark.parametrize("body", [strides_of_one, views_of_the_same, views_of_what_is_gone])
def test_what_views_show(body):
    assert agree(drawing(body)).count("hits") == COUNT - 1


def memory(value):
    return value.flags.owndata, type(value.base), value.flags.c_contiguous


def owners(x):
    a = np.exp(x.numpy())
    t = torch.from_numpy(a)
    b = np.zeros((2, 3))
    b[0] = 1
    return a, b, b[1], b.T, np.random.rand(2, 3), np.stack([a, a], axis=1), np.tile(a, 2), np.eye(2), t * 2


def test_arrays_own_their_memory():
    """As numpy gave them; views are those of these arrays."""
    step = traced(owners)
    for k in range(4):
        found, wanted = step(X() + k)[:-1], owners(X() + k)[:-1]
        assert [memory(one) for one in found] == [memory(one) for one in wanted]
        assert found[2].base is found[1]
        assert found[3].base is found[1]
    assert step.stats().hits == 3


def test_the_memory_of_arrays_outlives_the_call():
    step = traced(lambda x: (np.exp(x.numpy()), torch.from_numpy(np.sin(x.numpy()))))
    kept = [step(X() + k) for k in range(6)]
    for k, (array, tensor) in enumerate(kept):
        assert np.array_equal(array, np.exp((X() + k).numpy()))
        assert np.array_equal(tensor.numpy(), np.sin((X() + k).numpy()))
        array += 1  # nobody else's
    again = step(X())
    assert np.array_equal(again[0], np.exp(X().numpy()))


def what_an_array_says_of_itself(x):
    a = np.exp(x.numpy())
    view = a[1:]
    return view.base is a, a.base is None, a.flags.owndata, view.flags.owndata


def test_an_array_inside_is_that_of_numpy():
    """It is asked by what runs eagerly, and may say nothing else for that."""
    assert agree(drawing(what_an_array_says_of_itself)).count("hits") == 0


FORM, OF_BYTES = "of %s", b"of %a"


@pytest.mark.parametrize(
    "write",
    [lambda a: FORM % a, lambda a: OF_BYTES % a, lambda a: f"{a.sum()}: %s" % a, lambda a: FORM % (a,)],
)
def test_texts_are_filled_with_arrays(write):
    """They were filled with what stands for an array in an operator."""

    def make(trace):
        return trace(lambda x: (x * 2, write(x.numpy()), write(np.zeros(2)))), calls(4)

    assert agree(make).reasons()


def flattened(array):
    """As buffers of rollouts do."""
    shape = (*array.shape, 1)
    return array.swapaxes(0, 1).reshape(shape[0] * shape[1], *shape[2:])


FIRST = {"axis": 0}
STARRED = {
    "a view": lambda a: flattened(a + 1),
    "of what was given": flattened,
    "names": lambda a: (a + 1).mean(**FIRST),
    "a number": lambda a: float((a + 1).sum(*())),
    "writes": lambda a: [b := a + 1, b.fill(*(3.0,)), a.sum(*(0,))],
}
KEPT = {
    "called by its name": lambda a: [b := a + 1, method := b.fill, method(3.0), b],
    "handed to C": lambda a: [b := a + 1, list(map(b.reshape, [(4, 1), (1, 4)]))],
    "returned": lambda a: (a + 1).sum,
}


@pytest.mark.parametrize("body", STARRED)
def test_methods_are_called_with_a_star(body):
    def make(trace):
        held = types.SimpleNamespace(a=np.arange(4.0).reshape(2, 2))

        def other():
            held.a = np.arange(6.0).reshape(3, 2) * 2

        made = [*calls(4), lambda: held.a.__imul__(2), *calls(2), other, *calls(3)]
        return trace(lambda x: (x, STARRED[body](held.a))), made, lambda: held.a

    assert agree(make).count("hits") >= 5


@pytest.mark.parametrize("body", KEPT)
def test_methods_are_kept(body):
    def make(trace):
        def fn(x):
            found = KEPT[body](np.exp(x.numpy()[:2, None] * np.ones((1, 2))))
            return x, found() if callable(found) else found

        return trace(fn), calls(4)

    assert agree(make).count("hits") == 0


def drawn_rows(*kinds):
    rng = np.random.RandomState(0)
    return [(rng.randn(4) * 3).astype(kind) for kind in kinds]


# Makers of tensors of a list of rows, and how often each hits at least when the rows are of these kinds.
OF_ROWS = {
    "its own dtype": (lambda rows: torch.tensor(rows), "fdl"),
    "float32": (lambda rows: torch.tensor(rows, dtype=torch.float), "fd"),
    "float64": (lambda rows: torch.as_tensor(rows, dtype=torch.float64), "fd"),
    "a class": (lambda rows: torch.FloatTensor(rows), "fd"),
    "the class of all": (lambda rows: torch.Tensor(rows), "fd"),
    "a tuple": (lambda rows: torch.tensor((*rows,), dtype=torch.float32, device="cpu"), "fd"),
    "int64": (lambda rows: torch.tensor(rows, dtype=torch.long), "l"),
    "rows of rows": (lambda rows: torch.tensor([rows, rows[::-1]], dtype=torch.float), "fd"),
    "tuples of rows": (lambda rows: torch.FloatTensor([(rows[0], rows[1]), (rows[2], rows[0])]), "fd"),
    "deep rows": (lambda rows: torch.tensor([[[row] for row in rows]]), "fdl"),
    "uneven rows": (lambda rows: torch.tensor([rows, rows[:1]]), ""),
    "half": (lambda rows: torch.tensor(rows, dtype=torch.half), ""),
    "gradients": (lambda rows: torch.tensor(rows, requires_grad=True), ""),
    "by name": (lambda rows: torch.tensor(data=rows), ""),
    "rows are written": (lambda rows: [t := torch.as_tensor(rows), rows[0].fill(2), t.add_(1), rows], "fdl"),
}


@pytest.mark.parametrize("kind", ["f", "d", "l", "?", "i"])
@pytest.mark.parametrize("how", OF_ROWS)
def test_lists_of_rows(how, kind):
    make_tensor, kinds = OF_ROWS[how]

    def make(trace):
        held = types.SimpleNamespace(rows=drawn_rows(*kind * 6))

        def fn(x):
            try:
                return make_tensor([row.copy() for row in held.rows[1:4]])
            except (TypeError, ValueError, RuntimeError) as error:
                return str(error)

        def change(*rows):
            return lambda: held.rows.__setitem__(slice(1, 1 + len(rows)), rows)

        same, other = drawn_rows(kind, "d")
        changes = [
            change(same, same),
            change(other),
            change(same[:2]),
            change(same[::-1]),
            change(*[same[:0]] * 3),
        ]
        large = change(
            np.array([2**53 + 1, 7, -1, 0]).astype(kind), np.full(4, np.inf).astype("d").astype(same.dtype)
        )
        return (
            trace(fn),
            [*calls(4), *(step for one in [*changes, large] for step in (one, *calls(1)))],
            lambda: held,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hits = agree(make).count("hits")
    assert hits >= 3 if kind in kinds else not hits


def test_rows_in_the_default_dtype():
    """Which may be another one by then."""

    def make(trace):
        rows = drawn_rows("d", "d")
        fn = trace(lambda x: torch.Tensor([row.copy() for row in rows]) * 3)
        other, usual = (partial(torch.set_default_dtype, one) for one in (torch.float64, torch.float32))
        return fn, [*calls(3), other, *calls(3), usual, *calls(2)]

    check(make, hits=6)


@pytest.mark.parametrize("how", ["[", "(", "FloatTensor"])
def test_rows_are_warned_of_once(how, tmp_path):
    rows = "(numpy.ones(2), numpy.ones(2))" if how == "(" else "[numpy.ones(2), numpy.ones(2)]"
    making = (
        f"torch.FloatTensor({rows})" if how == "FloatTensor" else f"torch.tensor({rows}, dtype=torch.float)"
    )
    code = (
        "import sys, warnings, numpy, torch, lazytrace\n"
        "warnings.simplefilter('always')\n"
        f"fn = lambda x: {making} + x\n"
        "fn = lazytrace.traced(fn) if sys.argv[1:] else fn\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    for n in range(4): fn(torch.ones(2))\n"
        "print([(str(one.message), one.category, one.filename, one.lineno) for one in seen])\n"
    )
    path = tmp_path / "rows.py"
    path.write_text(code)
    plain, traced_ = (python(str(path), *args) for args in ([], ["traced"]))
    assert "slow" in plain.stdout
    assert traced_.stdout == plain.stdout


def through_a_graph(x, held):
    y = torch.exp(held.weight)
    array = y.detach().numpy()
    array += 1  # which no version says, and the backward pass finds
    y.sum().backward()
    return array, y


def behind_a_tensor_of_it(x, held):
    array = (t := x * 2).numpy()
    array += 1
    r = torch.from_numpy(array)
    r.add_(1)
    array *= 2
    return t, r


def action(x, held):
    with torch.no_grad():
        found = torch.tanh(held.weight * x).numpy()
    found += 0.1 * np.random.randn(3)
    return np.clip(found, -1, 1)


def written_step(x, held):
    loss = (held.weight * x).pow(2).sum()
    loss.backward()
    grad = held.weight.grad.numpy()
    grad *= 0.5
    held.optimizer.step()
    held.optimizer.zero_grad()
    return loss.item()


def with_others(x, held):
    t = x * 2
    array, other, part = t.numpy(), t.numpy(), t.numpy()[1:]
    array += 1
    part *= 3
    other[0] = 5
    t.mul_(2)
    array -= 1
    return t, array, part, t[:2]


WRITTEN = {
    "a result": lambda x, held: [t := x * 2, a := t.numpy(), a.sort(), t, a],
    "an argument": lambda x, held: [a := x.numpy(), a.fill(2.0), x * 1],
    "state": lambda x, held: [a := held.buffer.numpy(), a.sort(), held.buffer + x],
    "a view": lambda x, held: [t := x * 2, a := t.numpy()[1:], a.fill(3.0), t],
    "a parameter": lambda x, held: [
        a := held.weight.detach().numpy(),
        a.sort(),
        held.weight.sum().item(),
    ],
    "kept": lambda x, held: [setattr(held, "kept", (x * 2).numpy()), held.kept.fill(1.0)],
    "a graph": through_a_graph,
    "a tensor of it": behind_a_tensor_of_it,
    "an action": action,
    "gradients": written_step,
    "others of its memory": with_others,
}


@pytest.mark.parametrize("body", WRITTEN)
def test_arrays_of_tensors_are_written(body):
    def make(trace):
        np.random.seed(0)
        weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        held = types.SimpleNamespace(weight=weight, buffer=torch.tensor([3.0, 1.0, 2.0]), kept=None)
        held.optimizer = torch.optim.SGD([weight], lr=0.1)

        def body_of(x):
            held.weight.grad = None
            return WRITTEN[body](x, held)

        def seen():
            versions = [held.weight._version, held.buffer._version]
            return weight, weight.grad, held.buffer, held.kept, versions

        return trace(body_of), calls(8), seen

    assert agree(make).count("hits") >= 5


# ---------------------------------------------------------------- from the end on
def advantages(x):
    """As many a PPO has it."""
    deltas, advantage, found = (x * 2).reshape(-1, 1).numpy(), 0.0, []
    for delta in deltas[::-1]:
        advantage = 0.9 * advantage + delta[0]
        found.append([advantage])
    found.reverse()
    return torch.tensor(found, dtype=torch.float), found


def written_on_the_way(x):
    """The loop comes to places that it has written to."""
    a, found = (x * 2).numpy(), []
    for place, value in zip(range(len(a)), a[::-1], strict=True):
        found.append(value)
        a[len(a) - 2 - place] += 1
    return found, a


def written_by_the_loop(x):
    a, found = (x * 2).numpy(), []
    for value in a[::-1]:
        found.append(value)
        a[0] += 1
    return found, a


def rows_that_are_written(x):
    t = torch.stack([x, x * 2])
    for row in t.numpy()[::-1]:
        row *= 2
        row[0] = 5
    return t


def ended_early(x):
    found = []
    for value in (x * 2).numpy()[::-1]:
        found.append(value)
        if value > 3:
            break
    return found


def in_a_deque(x):
    found = deque()
    for value in x.numpy():
        found.append(value * 2)
    found.reverse()
    return list(found)


RAMP = np.arange(3.0)
FROM_THE_END = {
    "advantages": advantages,
    "written by the loop": written_by_the_loop,
    "rows": rows_that_are_written,
    "ended": ended_early,
    "comprehension": lambda x: [value * 2 for value in x.numpy()[::-1]],
    "drawn": lambda x: [value * x for value in np.random.rand(3)[::-1]],
    "state": lambda x: [value * x for value in RAMP[::-1]],
    "nothing": lambda x: [value * 2 for value in np.zeros((0, 3))[::-1]] or x,
    "deque": in_a_deque,
}


@pytest.mark.parametrize("body", FROM_THE_END)
def test_loops_from_the_end(body):
    assert agree(drawing(FROM_THE_END[body])).count("hits") >= 5


@pytest.mark.parametrize(
    "body",
    {
        "kept": lambda x: (x * 2).numpy()[::-1],
        "looped over twice": lambda x: [a := x.numpy()[::-1], list(map(float, a)), [v * 2 for v in a]],
        "every second": lambda x: [v * 2 for v in x.numpy()[::-2]],
        "beside": written_on_the_way,
    }.values(),
)
def test_views_from_the_end_run_eagerly(body):
    assert agree(drawing(body)).count("hits") == 0


# ---------------------------------------------------------------- into dicts
class Log:
    """As the logger of an agent."""

    def __init__(self):
        self.epoch = {"q": [], "loss": []}

    def store(self, **values):
        for name, value in values.items():
            self.epoch[name].append(value)


def names_of(**values):
    return list(values)


def found_in(x):
    return {"q": (x * 2).numpy()}


INTO_DICTS = {
    "a method": lambda x, log: log.store(loss=x.sum().item(), **found_in(x)),
    "a function": lambda x, log: names_of(**found_in(x)),
    "merged": lambda x, log: {"loss": 1, **found_in(x)},
    "updated": lambda x, log: [d := {"loss": 1}, d.update({"q": (x * 2).numpy()})],
    "by name": lambda x, log: [d := {"loss": 1}, d.update(q=(x * 2).numpy(), loss=[x.numpy()])],
}


@pytest.mark.parametrize("body", INTO_DICTS)
def test_arrays_go_from_dict_to_dict(body):
    def make(trace):
        log = Log()
        return trace(lambda x: INTO_DICTS[body](x, log)), calls(), lambda: log.epoch

    assert agree(make).count("hits") >= 6


@pytest.mark.parametrize("pairs", [lambda a: [a], lambda a: a.reshape(1, 2), lambda a: (a, a)])
def test_arrays_as_pairs_are_looked_at(pairs):
    """A dict that is updated with pairs looks at what is in them."""

    def body(x):
        d = {}
        d.update(pairs((x * 2).numpy()[:2]))
        return d

    assert agree(drawing(body)).count("hits") == 0


class LogByName(Log):
    """As another logger of an agent."""

    def store(self, **values):
        for name, value in values.items():
            if name not in self.epoch.keys():  # noqa: SIM118
                self.epoch[name] = []
            self.epoch[name].append(value)


def test_names_of_a_dict_of_arrays():
    def make(trace):
        log = LogByName()

        def body(x):
            log.store(q=(x * 2).numpy(), v=(x * 3).numpy())
            return len(log.epoch.keys()), len(log.epoch.values()), len(log.epoch.items())

        def other():
            log.epoch = {"q": [np.zeros(2)], "loss": []}

        made = [*calls(6), other, *calls(4), lambda: log.epoch.pop("loss"), *calls(4)]
        return trace(body), made, lambda: log.epoch

    assert agree(make).count("hits") >= 8


VIEWS_OF_DICTS = {
    "contains": lambda view: "a" in view,
    "length": len,
    "truth": bool,
    "another": lambda view: ("b" in view, len(view)),
}


@pytest.mark.parametrize("how", VIEWS_OF_DICTS)
@pytest.mark.parametrize("reached", ["attribute", "argument", "made"])
def test_views_of_dicts_of_arrays(how, reached):
    """They are of another dict later, or that has other keys."""

    def make(trace):
        one, two = {"a": [np.zeros(2)], "b": 1}, {"c": [np.zeros(3)]}
        held = types.SimpleNamespace(view=one.keys(), dict=one)

        def body(x, view=None):
            found = {
                "attribute": lambda: held.view,
                "argument": lambda: view,
                "made": lambda: held.dict.keys(),
            }
            return x, VIEWS_OF_DICTS[how](found[reached]())

        def later():
            held.view, held.dict = two.keys(), two

        def one_call(d):
            return call(X(), *([d.keys()] if reached == "argument" else []))

        changes = [lambda: two.update(a=2), lambda: two.pop("c"), lambda: two.clear()]
        made = [one_call(one) for _ in range(4)] + [later] + [one_call(two) for _ in range(3)]
        for change in changes:
            made += [change, *[one_call(two) for _ in range(3)]]
        return trace(body), made

    assert agree(make).count("hits") >= 5
