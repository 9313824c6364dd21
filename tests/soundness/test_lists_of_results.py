"""Lists that are taken out of an array of a result: x.numpy().tolist()."""

from __future__ import annotations

import torch

from tests.soundness.runner import Cases, call, check

cases = Cases()


def calls(count=6, make=lambda: torch.randn(4)):
    return [call(make()) for _ in range(count)]


@cases(hits=5, recordings=1)
def a_list(trace):
    return trace(lambda x: (x * 2).numpy().tolist()), calls()


@cases(hits=5, recordings=1)
def rows(trace):
    return trace(lambda x: (x * 2).cpu().numpy().tolist()), calls(make=lambda: torch.randn(2, 3))


@cases(hits=4)
def one_number(trace):
    return trace(lambda x: f"{x.sum().numpy().item():.3f}"), calls()


@cases(hits=5)
def of_an_argument(trace):
    return trace(lambda x: x.numpy().tolist()), calls()


@cases(hits=5)
def of_ints_and_halves(trace):
    return trace(lambda x: [x.long().numpy().tolist(), x.half().numpy().tolist()]), calls()


@cases(hits=5)
def written_to_meanwhile(trace):
    def step(x):
        y = x * 2
        array = y.numpy()
        y.add_(1)
        return array.tolist(), array

    return trace(step), calls()


@cases(eager="hands a numpy array to C code")
def several_values_as_one(trace):
    def step(x):
        try:
            return x.numpy().item()
        except ValueError as error:
            return str(error)

    return trace(step), calls()


@cases(eager="hands a numpy array to C code")
def many_values(trace):
    return trace(lambda x: x.numpy().tolist()), calls(make=lambda: torch.randn(99))


@cases(eager="hands a numpy array to C code")
def by_the_place(trace):
    return trace(lambda x: x.numpy().item(2)), calls()


@cases(eager="tensor")
def whose_tensor_has_other_memory(trace):
    def step(x):
        y = x * 2
        array = y.numpy()
        y.set_(torch.zeros(4))
        return array.tolist()

    return trace(step), calls()


@cases.parametrize
def test_lists(make, expected):
    check(make, **expected)
