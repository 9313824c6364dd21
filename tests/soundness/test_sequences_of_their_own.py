"""Lists and tuples of classes that say themselves what they hold, with numbers that are followed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.soundness.runner import Holder, agree, call, check

LOG: list[str] = []


class Negative(list):
    """Gives other numbers than it holds."""

    def __iter__(self):
        LOG.append("iter")
        return iter([-x for x in super().__iter__()])

    def __getitem__(self, place):
        LOG.append("item")
        return super().__getitem__(place)


class NegativeTuple(tuple):
    def __iter__(self):
        LOG.append("iter")
        return iter([-x for x in super().__iter__()])


class Constant(list):
    def __getitem__(self, place):
        LOG.append("item")
        return 100


class Short(list):
    """It says that it holds one."""

    def __len__(self):
        LOG.append("len")
        return 1


CLASSES = [Negative, NegativeTuple, Constant, Short]
FUNCTIONS = {
    "max": max,
    "min": min,
    "max with a default": lambda s: max(s, default=0),
    "sum": sum,
    "prod": math.prod,
    "sorted": sorted,
    "tensor": torch.tensor,
    "as_tensor": torch.as_tensor,
    "FloatTensor": torch.FloatTensor,
    "mean": np.mean,
    "array": np.array,
    "by a star": lambda s: max(*(s,)),
    "list": list,
}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("source", ["item", "size", "state"])
def test_c_code_is_told_what_they_say(cls, name, source):
    function = FUNCTIONS[name]
    found = {"item": lambda x, s: x.sum().item(), "size": lambda x, s: x.shape[0], "state": lambda x, s: s.n}

    def make(trace):
        LOG.clear()
        s = Holder(n=1)

        def step(x):
            n = found[source](x, s)
            try:
                return x * 2, function(cls([n, n + 3]))
            except (TypeError, ValueError, RuntimeError) as error:
                return x * 3, str(error)

        def put(n):
            return lambda: setattr(s, "n", n)

        steps = [one for n in (2, 3, 4, 5) for one in (put(n), call(torch.ones(n)), call(torch.ones(n)))]
        return trace(step), steps, lambda: list(LOG)

    agree(make)


def test_what_they_say_is_replayed():
    """Each value of a number has a recording of its own."""

    def make(trace):
        return trace(lambda x: (x * 2, max(Negative([x.shape[0], 3])))), [
            call(torch.ones(n)) for n in (2, 2, 4, 4, 5, 5)
        ]

    check(make, hits=3)


class Odd(int):
    """Divided by another way than Python divides."""

    def __rfloordiv__(self, other):
        LOG.append("floordiv")
        return 40

    def __rmod__(self, other):
        LOG.append("mod")
        return 50

    def __ge__(self, other):
        LOG.append("ge")
        return False


@pytest.mark.parametrize("function", [divmod, pow, max], ids=lambda function: function.__name__)
def test_parts_of_what_is_worked_out_are_not_asked_of_others(function):
    def make(trace):
        LOG.clear()
        steps = [call(torch.ones(n)) for n in (2, 2, 3, 3, 4, 4)]
        return trace(lambda x: (x * 2, function(x.shape[0], Odd(2)))), steps, lambda: list(LOG)

    check(make, hits=2)


class Spec(str):
    def __len__(self):
        LOG.append("len")
        return super().__len__()


def test_a_spec_is_not_asked_whether_it_is_empty():
    def make(trace):
        LOG.clear()
        steps = [call(torch.ones(n)) for n in (2, 2, 3, 3, 4, 4)]
        return trace(lambda x: (x * 2, format(x.shape[0], Spec("5d")))), steps, lambda: list(LOG)

    check(make, hits=2)
