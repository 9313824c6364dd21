"""What a call finds in state need not be what the last one wrote: what was there before may come again."""

from __future__ import annotations

import torch
from torch import nn

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Thing:
    def __init__(self, **values):
        self.__dict__.update(values)


def calls(n):
    return [call(X(2, 3)) for _ in range(n)]


total = 0


@cases(hits=24)
def a_sum_that_starts_again_with_an_int(trace):
    global total
    total, count = 0, [0]

    def step(x):
        global total
        total += x.sum().item()
        count[0] += 1
        if count[0] % 5 == 0:
            mean, total = total / 5, 0
            return mean
        return None

    return trace(step), calls(30), lambda: (total, type(total), count)


@cases(hits=17)
def a_flag_that_is_turned_over(trace):
    state = Thing(flag=False)

    def step(x):
        state.flag = not state.flag
        return x * 2 if state.flag else x * 3

    return trace(step), calls(20), lambda: vars(state)


@cases(hits=17)
def two_objects_that_take_turns(trace):
    state = Thing(now=nn.Linear(3, 2), then=nn.Linear(3, 2))

    def step(x):
        state.now, state.then = state.then, state.now
        return state.now(x).detach()

    return trace(step), calls(20), lambda: [list(state.now.parameters()), list(state.then.parameters())]


@cases(hits=14)
def states_of_a_machine(trace):
    follows = {"begin": "middle", "middle": "end", "end": "begin"}
    state = Thing(name="begin")

    def step(x):
        name = state.name
        state.name = follows[name]
        return x * len(name), name

    return trace(step), calls(20), lambda: state.name


@cases(hits=12)
def none_and_a_number(trace):
    state = Thing(kept=None)

    def step(x):
        if state.kept is None:
            state.kept = x.sum().item()
            return x
        y, state.kept = x * state.kept, None
        return y

    return trace(step), calls(16), lambda: state.kept


@cases(hits=9)
def a_fixed_number_instead_of_a_followed_one(trace):
    state = Thing(rate=0.5, text=None)

    def step(x):
        y = x * state.rate
        state.rate = state.rate * 0.9 if state.rate > 0.4 else "low" if state.rate > 0.3 else 1
        if state.rate == "low":
            state.rate, state.text = 0.5, "low"
        return y

    return trace(step), calls(16), lambda: vars(state)


@cases(hits=4)
def a_new_object_each_time(trace):
    state = Thing(last=Thing())

    def step(x):
        before, state.last = state.last, Thing()
        return x * 2, isinstance(before, Thing)

    return trace(step), calls(6), lambda: type(state.last)


# ---------------------------------------------------------------- numbers that are met behind a side exit
@cases(hits=24)
def numbers_that_change_in_a_branch(trace):
    state = Thing(n=0, k=3, rate=0.5)

    def step(x, i):
        y = x * 2
        if i % 3 == 2:
            state.n += 1
            state.rate = state.rate * 0.9
            y = y * state.rate + state.n
            if y.sum() > 0:
                state.k += 2
                y = y - state.k * state.rate
            if state.n % 2 == 0:
                y = y + state.n * state.k
        return y

    return trace(step), [call(X(2, 3), i) for i in range(36)], lambda: vars(state)


@cases(hits=20)
def a_number_that_is_read_before_and_behind_it(trace):
    state = Thing(n=0, m=0)

    def step(x, i):
        y = x * (1 + state.m)
        if i % 3 == 2:
            state.n += 1
            y = y + state.n + state.m
        if i % 9 == 8:
            state.m += 1
        return y

    return trace(step), [call(X(2, 3), i) for i in range(40)], lambda: vars(state)


@cases(hits=10)
def a_schedule_each_fourth_step(trace):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    steps = [0]

    def step(x):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        steps[0] += 1
        if steps[0] % 4 == 0:
            schedule.step()
        return loss.item()

    look = lambda: (list(net.parameters()), schedule.last_epoch, optimizer.param_groups[0]["lr"], steps)  # noqa: E731
    return trace(step), calls(30), look


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)
