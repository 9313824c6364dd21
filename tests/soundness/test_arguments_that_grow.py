"""Lists and dicts that are arguments, and that the function itself adds to or takes from: logs, memories,
results of each step. From the second length on they are guarded as state is, and are no part of a signature.
"""

from __future__ import annotations

import random
import threading
from collections import deque

import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def growing(trace, body, made=list, count=9, between=None):
    """Calls that all get one container; `between` changes it before the seventh."""
    held = made()
    fn = trace(lambda x, held: body(x, held))
    steps = [call(X(3) * k, held) for k in range(1, count + 1)]
    if between is not None:
        steps[6:6] = [lambda: between(held)]
    return fn, steps, lambda: held


@cases(hits=6)
def a_list_of_losses(trace):
    def body(x, losses):
        losses.append(x.sum().item())
        return x * 2

    return growing(trace, body)


@cases(hits=6)
def a_list_of_tensors(trace):
    def body(x, results):
        y = x * 2
        results.append(y)
        return y + 1

    return growing(trace, body)


@cases(hits=6)
def a_list_that_is_extended(trace):
    def body(x, results):
        results += [x.sum().item(), x * 3]
        return x * 2

    return growing(trace, body)


@cases(hits=5)
def a_list_in_a_dict(trace):
    def body(x, history):
        history.setdefault("loss", []).append(x.sum().item())
        history["last"] = x * 2
        return x * 2

    return growing(trace, body, dict)


@cases(hits=5)
def a_training_step(trace):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []

    def step(x, losses):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss

    steps = [call(X(4, 3) * k, losses) for k in range(1, 11)]
    return trace(step), steps, lambda: (losses, list(model.parameters()))


# ---------------------------------------------------------------- what is read of them
@cases(hits=4)
def its_last_entry_is_read(trace):
    def body(x, results):
        before = results[-1] if results else x
        results.append(before * 0.5 + x)
        return results[-1]

    return growing(trace, body)


@cases(hits=5)
def its_length_is_read(trace):
    def body(x, results):
        results.append(1)
        return x * len(results)

    return growing(trace, body)


def with_another_first(value):
    """Of a list: it is put there between two calls."""
    return lambda results: results.__setitem__(0, value)


@cases(hits=5)
def an_entry_is_read_that_is_changed_in_between(trace):
    def body(x, results):
        scale = results[0] if results else 1
        results.append(2)
        return x * scale

    return growing(trace, body, between=with_another_first(7))


@cases(hits=2)
def an_entry_takes_the_place_of_another_kind(trace):
    def body(x, results):
        first = results[0] if results else None
        results.append(x.sum())
        return x * 2 if first is None else x + first

    return growing(trace, body, between=with_another_first(3))


@cases(hits=3)
def whether_it_is_empty_is_asked(trace):
    def body(x, results):
        y = x * 2 if results else x * 3
        results.append(0)
        return y

    return growing(trace, body, between=lambda results: results.clear())


@cases(hits=3)
def the_first_goes_when_there_are_four(trace):
    def body(x, results):
        results.append(x * 2)
        if len(results) > 4:
            results.pop(0)
        return torch.stack(results).sum(0)

    return growing(trace, body, count=14)


# ---------------------------------------------------------------- deques
@cases(hits=6)
def a_deque_with_a_mean(trace):
    def body(x, window):
        window.append(x.sum().item())
        return x * (sum(window) / len(window))

    return growing(trace, body, lambda: deque(maxlen=3), count=12)


@cases(hits=6)
def a_deque_whose_end_is_read(trace):
    """Its entries are of other kinds at some calls."""

    def body(x, window):
        return x + window[-1]

    window = deque([1.5])
    steps = [call(X(3) * k, window) for k in range(1, 12)]
    steps[5:5] = [lambda: window.append(X(3))]
    steps[8:8] = [lambda: window.append(2)]
    return trace(body), steps, lambda: list(window)


@cases(hits=8)
def one_of_two_deques(trace):
    def step(x, window):
        window.append(x * 2)
        return window[0] + len(window)

    a, b = deque(maxlen=3), deque(maxlen=5)
    return trace(step), [call(X(3) * k, (a, b)[k % 3 > 1]) for k in range(20)], lambda: (list(a), list(b))


@cases(hits=8)
def a_memory_that_is_sampled(trace):
    def step(x, memory):
        memory.append((x, x * 2))
        first, second = zip(*random.sample(memory, 3), strict=True)
        return torch.stack(first) + torch.stack(second)

    memory = deque([(X(3) * k, X(3)) for k in range(6)], maxlen=9)
    return trace(step), [call(X(3) * k, memory) for k in range(1, 20)]


@cases(hits=4)
def a_list_where_a_deque_was(trace):
    def step(x, window):
        return x + window[-1]

    a, b = deque([1.0, 2.0]), [3.0, 4.0]
    return trace(step), [call(X(3) * k, (a, a, a, a, b, b, a, b, a, b)[k]) for k in range(10)]


# ---------------------------------------------------------------- which one it is
@cases(hits=5)
def another_list_each_second_call(trace):
    def step(x, losses):
        losses.append(x.sum().item())
        return x * 2

    a, b = [], [5.0]
    steps = [call(X(3) * k, (a, b)[k % 2]) for k in range(1, 11)]
    return trace(step), steps, lambda: (a, b)


@cases(hits=5)
def a_new_list_for_each_epoch(trace):
    all_of_them = []

    def step(x, losses):
        losses.append(x.sum().item())
        return x * 2

    def epoch():
        all_of_them.append([])

    fn = trace(step)
    steps = []
    for k in range(12):
        steps += [epoch] * (k % 4 == 0)
        steps.append(call(k).of(lambda k: fn(X(3) * k, all_of_them[-1])))
    return fn, steps, lambda: all_of_them


@cases(hits=3)
def it_is_the_list_that_the_function_knows(trace):
    """At some calls only: what is read through the one was written through the other."""
    own = []

    def step(x, losses):
        losses.append(x * 2)
        return x + (own[-1] if own else 0)

    other = []
    steps = [call(X(3) * k, own if k in (4, 5, 9, 10) else other) for k in range(1, 13)]
    return trace(step), steps, lambda: (own, other)


@cases(hits=3)
def it_is_not_the_list_that_the_function_knows(trace):
    """Recorded where it was."""
    own = []

    def step(x, losses):
        losses.append(x * 2)
        return x + own[0]

    other = []
    steps = [call(X(3) * k, own if k < 6 or k == 9 else other) for k in range(1, 11)]
    return trace(step), steps, lambda: (own, other)


@cases(hits=3)
def one_list_for_two(trace):
    def step(x, a, b):
        a.append(x * 2)
        return x + (b[-1] if b else 0)

    one, two = [], []
    steps = [call(X(3) * k, one, one if k in (5, 6, 7) else two) for k in range(1, 12)]
    return trace(step), steps, lambda: (one, two)


@cases(hits=4)
def it_is_given_back(trace):
    def step(x, losses):
        losses.append(x.sum().item())
        return losses, x * 2

    losses = []
    fn = trace(step)

    def again(k):
        given, y = fn(X(3) * k, losses)
        return given is losses, y

    return fn, [call(k).of(again) for k in range(1, 10)], lambda: losses


@cases(hits=4)
def it_holds_a_tensor_that_is_an_argument(trace):
    def step(x, results):
        results.append(x)
        results[0].mul_(2)
        return x + 1

    results, x = [X(3)], X(3)
    steps = [call(x if k % 2 else X(3) * k, results) for k in range(1, 10)]
    steps[5:5] = [lambda: results.__setitem__(0, x)]
    return trace(step), steps, lambda: results


@cases(hits=3)
def it_is_the_default(trace):
    def step(x, losses=[]):  # noqa: B006 (that is what is tried)
        losses.append(x.sum().item())
        return x * len(losses[:1])

    return trace(step), [call(X(3) * k) for k in range(1, 10)], lambda: step.__defaults__


@cases(hits=4)
def by_keyword(trace):
    def step(x, *, losses):
        losses.append(x.sum().item())
        return x * 2

    losses = []
    return trace(step), [call(X(3) * k, losses=losses) for k in range(1, 10)], lambda: losses


@cases(hits=6)
def by_a_name_in_other_letters(trace):
    def step(x, größen):
        größen.append(x.sum().item())
        return x * 2

    sizes = []
    return trace(step), [call(X(3) * k, sizes) for k in range(1, 11)], lambda: sizes


@cases(hits=6)
def through_stars(trace):
    """As functions that decorators have wrapped pass their arguments on."""

    def step(x, losses, *, log):
        losses.append(x.sum().item())
        log.append(len(losses))
        return x * 2

    losses, log = [], []
    fn = trace(lambda *args, **kwargs: step(*args, log=kwargs["log"]))
    return fn, [call(X(3) * k, losses, log=log) for k in range(1, 13)], lambda: (losses, log)


@cases(hits=4)
def one_of_several_through_stars(trace):
    """Each of the others is state from then on, too."""

    def step(*args):
        args[1].append(args[0] * 2)
        return args[0] + args[2][0] + len(args[1])

    losses, sizes = [], [3, 4]
    steps = [call(X(3) * k, losses, sizes) for k in range(1, 13)]
    steps[7:7] = [lambda: sizes.__setitem__(0, 9)]
    return trace(step), steps, lambda: (losses, sizes)


# ---------------------------------------------------------------- other things in its place
@cases(hits=4)
def something_else_in_its_place(trace):
    class Log(list):
        def append(self, value):
            super().append(value * 100)

    def step(x, losses):
        if losses is not None:
            losses.append(x.sum().item())
        return x * 2

    plain, own = [], Log()
    given = [plain, plain, plain, plain, None, own, plain, own, plain, None, plain, plain]
    return trace(step), [call(X(3) * k, one) for k, one in enumerate(given)], lambda: (plain, list(own))


@cases(hits=4)
def a_dict_of_sums_gets_a_key(trace):
    def body(x, history):
        before = history.get("sum", 0)
        history["sum"] = before + x.sum().item()
        history.setdefault("all", []).append(before)
        return x * 2 + before

    return growing(trace, body, dict, between=lambda history: history.update(other=1), count=12)


@cases(hits=3)
def it_raises_behind_the_write(trace):
    def step(x, losses, bad):
        losses.append(x.sum().item())
        y = x * 2
        if bad:
            raise ValueError("bad")
        return y

    losses, fn = [], trace(step)

    def tried(k):
        try:
            return fn(X(3) * k, losses, k in (5, 8))
        except ValueError as error:
            return str(error), len(losses)

    return fn, [call(k).of(tried) for k in range(1, 12)], lambda: losses


@cases(hits=4)
def it_leads_to_itself(trace):
    def step(x, losses):
        losses.append(x.sum().item())
        return x * 2

    losses = []

    def tie():
        losses[0] = losses

    def shown():
        return [one if one is not losses else "itself" for one in losses]

    steps = [call(X(3) * k, losses) for k in range(1, 10)]
    steps[4:4] = [tie]
    return trace(step), steps, shown


@cases(hits=4)
def inside_of_another_traced_function(trace):
    inner = trace(lambda x, losses: (losses.append(x.sum().item()), x * 2)[1])

    def step(x, losses):
        return inner(x, losses) + inner(x * 2, losses)

    losses = []
    return trace(step), [call(X(3) * k, losses) for k in range(1, 10)], lambda: losses


@cases.parametrize
def test_arguments_that_grow(make, expected):
    check(make, **expected)


def test_from_threads():
    """Each thread has a log of its own."""

    @lazytrace.traced
    def step(x, losses):
        losses.append(float(x.sum()))
        return x * 2

    logs = [[] for _ in range(4)]

    def work(log, k):
        for i in range(40):
            step(torch.full((3,), float(i * k)), log)

    threads = [threading.Thread(target=work, args=(log, k)) for k, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert logs == [[3.0 * i * k for i in range(40)] for k in range(4)]


def test_what_is_said_of_a_retrace():
    """Another class than a list is another signature, which is told by its class."""

    @lazytrace.traced
    def step(x, losses):
        if losses is not None:
            losses.append(x.sum().item())
        return x * 2

    losses = []
    for _ in range(5):
        step(torch.ones(3), losses)
    step(torch.ones(3), None)
    retraces = [str(event) for event in lazytrace.handle(step).stats().events]
    assert any("losses" in line for line in retraces), retraces
