"""A function that runs again comes to what its steps have read by another path than the trace did."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import Cases, Holder, call, check

cases = Cases()


def written_down(trace, **others):
    """What one step formats and another one changes: a replay that finds another text may not begin anew."""
    state = Holder(one=Holder(v=1.0), log=[], buffer=torch.zeros(2), **others)

    def step(x, other):
        isinstance(other, list)
        y = x + state.one.v
        state.log.append(f"{y.sum().item():.3f}")
        state.buffer.add_(1)
        return y + state.buffer[0] if y.sum().item() > 15 else y

    return trace(step), state


def x(value):
    return torch.full((2,), value)


@cases(recordings=3)
def a_number_that_is_followed_by_the_name_of_an_argument(trace):
    """The trace has read it in state alone, as it was; the argument is that object by now."""
    step, state = written_down(trace)
    steps = [call(x(1.0), state.one), call(x(2.0), Holder(v=3.0)), call(x(30.0), state.one)]
    return step, steps, lambda: (state.log, state.buffer)


@cases(hits=2)
def a_number_that_is_followed_in_state(trace):
    """The same the other way round: it has another name where it is an argument's, which nobody follows."""
    step, state = written_down(trace)

    def becomes(value):
        return lambda: setattr(state.one, "v", value)

    steps = [call(x(1.0), Holder(v=3.0)), becomes(2.0), call(x(1.0), Holder(v=3.0)), becomes(3.0)]
    steps += [call(x(1.0), Holder(v=3.0)), call(x(30.0), state.one), becomes(4.0), call(x(30.0), state.one)]
    return step, steps, lambda: (state.log, state.buffer)


@cases(hits=1)
def a_list_that_is_followed_in_state(trace):
    state = Holder(one=[1.0], log=[], buffer=torch.zeros(2))

    def step(x, other):
        isinstance(other, dict)
        state.one.append(x.sum().item())
        y = x + state.one[-2]
        state.log.append(f"{y.sum().item():.3f}")
        state.buffer.add_(1)
        return y + state.buffer[0] if y.sum().item() > 15 else y

    steps = [call(x(float(i)), [3.0]) for i in range(4)] + [
        call(x(30.0), state.one),
        call(x(20.0), state.one),
    ]
    return trace(step), steps, lambda: (state.log, state.buffer, state.one)


@cases(hits=1)
def a_hook_that_is_gone_where_the_function_runs_again(trace):
    """The pass called a hook, and `.data` was read before it; the second run has no hook there."""
    weight = torch.nn.Parameter(torch.ones(2))

    def step(x, k):
        seen = weight.data
        handle = weight.register_hook(lambda gradient: gradient * 2)
        (weight * 2).sum().backward()
        handle.remove()
        return x * 2 + seen if k > 1 else x

    return trace(step), [call(x(1.0), k) for k in (2.0, 0.5, 2.0, 3.0, 0.3)], lambda: (weight, weight.grad)


@cases.parametrize
def test_other_paths(make, expected):
    check(make, **expected)


@pytest.mark.parametrize("container", [[1.0], {1: 2.0}, {1}])
def test_the_memory_of_a_container_is_not_replayed(container):
    """How much there is hangs on what was in it before."""

    def make(trace):
        return trace(lambda x: x * container.__sizeof__()), [call(x(1.0))] * 3

    check(make, eager="calls .__sizeof__() of a ")
