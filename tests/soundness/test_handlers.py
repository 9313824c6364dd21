"""Operators that raise in a replay where context managers are open, or have been: their Python code runs.

What has been written by then is put back before it does.
"""

from __future__ import annotations

import contextlib
from contextlib import contextmanager

import torch

from tests.soundness.runner import Cases, agree, call
from tests.soundness.test_flat_steps import ENOUGH, forms
from tests.soundness.test_steps import parts

cases = Cases()


def managed(trace, manager):
    """A step that goes on in and behind a context manager once parameters have changed; either may raise."""
    table, inside, behind = (torch.nn.Embedding(5, 3) for _ in range(3))
    opt = torch.optim.SGD(table.parameters(), lr=0.1)
    log = {"n": 0, "open": 0, "left": 0, "end": ""}

    def step(i, j, k):
        log["n"] += 1
        opt.zero_grad()
        table(i).square().sum().backward()
        opt.step()
        found = None
        with manager(log), torch.no_grad():
            found = inside(j).sum()
        with torch.no_grad():
            total = behind(k).sum()
        log["end"] = "reached"
        return total if found is None else total + found

    def index():
        return torch.randint(0, 5, (4,))

    bad = torch.tensor([0, 1, 2, 7])
    steps = [call(index(), index(), index()) for _ in range(ENOUGH + 8)]
    steps[ENOUGH + 1] = call(index(), bad, index())
    steps[ENOUGH + 3] = call(index(), index(), bad)
    steps[ENOUGH + 5] = call(index(), bad, bad)
    return trace(step), steps, lambda: [parts(table), dict(log)]


# ---------------------------------------------------------------- managers that do nothing
@cases(form="flat")
def nothing_is_managed(trace):
    return managed(trace, lambda log: contextlib.nullcontext())


@cases(form="flat")
def a_generator_without_a_handler(trace):
    @contextmanager
    def counted(log):
        log["open"] += 1
        yield

    return managed(trace, counted)


@cases(form="flat")
def a_generator_inside_of_another(trace):
    @contextmanager
    def inner(log):
        yield log

    @contextmanager
    def outer(log):
        with inner(log) as found, torch.enable_grad():
            yield found

    return managed(trace, outer)


@cases(form="flat")
def a_stack_of_nothing(trace):
    @contextmanager
    def stacked(log):
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(contextlib.nullcontext())
            yield

    return managed(trace, stacked)


class Swallows:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log["open"] += 1

    def __exit__(self, kind, error, where):
        self.log["left"] += 1
        return kind is IndexError


@cases(form="flat")
def a_manager_that_is_left_before(trace):
    def plain(log):
        with Swallows(log):
            log["open"] += 0
        return contextlib.nullcontext()

    return managed(trace, plain)


# ---------------------------------------------------------------- managers whose code runs
@cases(form="flat")
def a_manager_that_swallows(trace):
    return managed(trace, Swallows)


@cases(form="flat")
def a_manager_that_counts_its_ends(trace):
    class Counts(Swallows):
        def __exit__(self, *error):
            self.log["left"] += 1

    return managed(trace, Counts)


@cases(form="flat")
def a_manager_whose_exit_is_an_object(trace):
    class Exit:
        def __call__(self, kind, error, where):
            return kind is IndexError

    class Manager:
        __exit__ = Exit()

        def __enter__(self):
            return self

    return managed(trace, lambda log: Manager())


@cases(form="flat")
def a_manager_whose_exit_is_static(trace):
    class Manager:
        @staticmethod
        def __exit__(kind, error, where):
            return kind is IndexError

        def __enter__(self):
            return self

    return managed(trace, lambda log: Manager())


@cases(form="flat")
def a_generator_that_puts_back(trace):
    @contextmanager
    def counted(log):
        log["open"] += 1
        try:
            yield
        finally:
            log["open"] -= 1

    return managed(trace, counted)


@cases(form="flat")
def a_generator_that_swallows(trace):
    @contextmanager
    def quiet(log):
        try:
            yield
        except IndexError:
            log["left"] += 1

    return managed(trace, quiet)


@cases(form="flat")
def a_generator_around_one_that_swallows(trace):
    @contextmanager
    def outer(log):
        with Swallows(log):
            yield

    return managed(trace, outer)


@cases(form="flat")
def a_generator_that_waits_for_one_that_swallows(trace):
    def inner(log):
        try:
            yield
        except IndexError:
            log["left"] += 1

    @contextmanager
    def outer(log):
        yield from inner(log)

    return managed(trace, outer)


@cases(form="flat")
def a_stack_with_one_that_swallows(trace):
    @contextmanager
    def stacked(log):
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.nullcontext())
            stack.enter_context(Swallows(log))
            yield

    return managed(trace, stacked)


@cases(form="flat")
def a_stack_with_a_callback(trace):
    @contextmanager
    def stacked(log):
        with contextlib.ExitStack() as stack:
            stack.callback(log.update, left=1)
            yield

    return managed(trace, stacked)


@cases(form="flat")
def suppress(trace):
    return managed(trace, lambda log: contextlib.suppress(IndexError))


@cases(form="flat")
def a_manager_around_the_whole_call(trace):
    class Whole(contextlib.ContextDecorator):
        def __init__(self):
            self.left = 0.0

        def __enter__(self):
            return self

        def __exit__(self, kind, error, where):
            self.left += 1
            return kind is IndexError

    whole = Whole()
    step, steps, state = managed(lambda fn: trace(whole(fn)), lambda log: contextlib.nullcontext())
    return step, steps, lambda: [state(), whole.left]


# ---------------------------------------------------------------- generators that wait
def rows(log):
    try:
        yield 1
        yield 2
    finally:
        log["left"] += 1


def looping(trace, use):
    table, inside = torch.nn.Embedding(5, 3), torch.nn.Embedding(5, 3)
    opt = torch.optim.SGD(table.parameters(), lr=0.1)
    log = {"n": 0, "left": 0}

    def step(i, j):
        log["n"] += 1
        opt.zero_grad()
        table(i).square().sum().backward()
        opt.step()
        with torch.no_grad():
            return use(log, lambda: inside(j).sum())

    def index():
        return torch.randint(0, 5, (4,))

    steps = [call(index(), index()) for _ in range(ENOUGH + 6)]
    steps[ENOUGH + 1] = steps[ENOUGH + 4] = call(index(), torch.tensor([0, 1, 2, 7]))
    return trace(step), steps, lambda: [parts(table), dict(log)]


@cases(form="flat")
def a_loop_over_a_generator_that_cleans_up(trace):
    return looping(trace, lambda log, look: sum(look() * row for row in rows(log)))


@cases(form="flat")
def a_generator_in_a_variable_that_cleans_up(trace):
    def use(log, look):
        held = rows(log)
        next(held)
        total = look()
        held.close()
        return total

    return looping(trace, use)


@cases(form="flat")
def a_generator_that_waits_for_one_that_cleans_up(trace):
    def outer(log):
        yield from rows(log)

    return looping(trace, lambda log, look: sum(look() * row for row in outer(log)))


@cases(form="flat")
def a_generator_that_has_cleaned_up(trace):
    def use(log, look):
        count = sum(rows(log))
        return look() * count

    return looping(trace, use)


@cases(form="flat")
def a_loop_over_a_generator_without_a_handler(trace):
    def plain():
        yield 1
        yield 2

    return looping(trace, lambda log, look: sum(look() * row for row in plain()))


# ---------------------------------------------------------------- the same written again
@cases(form="flat")
def what_is_there_already_is_written(trace):
    class Holder:
        kept = None

    holder, tensor = Holder(), torch.ones(2)

    def again(log):
        for _ in range(3):
            holder.kept = tensor
        return contextlib.nullcontext()

    return managed(trace, again)


@cases.parametrize
def test_handlers(make, expected):
    tracer = agree(make)
    assert tracer.count("hits") >= ENOUGH - 3, tracer.account()
    assert any(form.startswith(expected["form"]) for form in forms(tracer)), forms(tracer)
