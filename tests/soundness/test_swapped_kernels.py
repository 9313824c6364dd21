"""Kernels that Python gives an operator anew, between two calls, under a name that torch.library knows."""

from __future__ import annotations

import itertools
import warnings

import torch

from lazytrace import traced
from tests.soundness.runner import Cases, X, call, check

cases = Cases()
_numbers = itertools.count()


class Kernels:
    """An operator, what registers its kernels, and what a kernel writes that the function reads behind it."""

    def __init__(self, key="CPU"):
        self.written = {"n": 1.0}
        self.name = f"op{next(_numbers)}"
        self.libraries = [torch.library.Library("lt_swapped", "FRAGMENT")]
        self.libraries[0].define(self.name + "(Tensor x) -> Tensor")
        self.libraries[0].impl(self.name, lambda x: x * 2, key)
        self.operator = getattr(torch.ops.lt_swapped, self.name)

    def writes(self, x):
        self.written["n"] += 1
        return x * 3

    def give(self, kernel, key="CPU", *, space="lt_swapped", name=None, library=None):
        """What gives the operator another kernel, as a step of a case."""

        def give():
            if library is None:
                self.libraries.append(torch.library.Library(space, "IMPL"))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns once that a kernel is behind another
                (library or self.libraries[-1]).impl(name or self.name, kernel, key)

        return give

    def drop(self, i):
        def drop():
            self.libraries[i]._destroy()

        return drop

    def around(self, trace, *steps):
        """Three calls before each of the steps, and behind them."""
        fn = trace(lambda x: self.operator(x) * self.written["n"])
        three = [call(X() + i) for i in range(3)]
        return fn, [*three, *(one for step in steps for one in (step, *three))], lambda: dict(self.written)


@cases(hits=3, recordings=2, eager="sets ['n'] of a dict")
def another_library_gives_one_that_writes(trace):
    kernels = Kernels()
    return kernels.around(trace, kernels.give(kernels.writes))


@cases(hits=3, recordings=2, eager="sets ['n'] of a dict")
def the_same_library_gives_one_that_writes(trace):
    kernels = Kernels()
    return kernels.around(trace, kernels.give(kernels.writes, library=kernels.libraries[0]))


@cases(hits=3, recordings=2, eager="sets ['n'] of a dict")
def under_another_key(trace):
    kernels = Kernels()
    return kernels.around(trace, kernels.give(kernels.writes, "Autograd"))


@cases(hits=3, recordings=2, eager="sets ['n'] of a dict")
def in_the_place_of_a_composite(trace):
    kernels = Kernels("CompositeImplicitAutograd")
    return kernels.around(trace, kernels.give(kernels.writes))


@cases(hits=6, recordings=3)
def one_that_writes_nothing_and_the_first_again(trace):
    kernels = Kernels()
    return kernels.around(trace, kernels.give(lambda x: x * 5), kernels.drop(1))


@cases(hits=1)
def one_that_another_kernel_calls(trace):
    kernels, outer = Kernels(), Kernels()
    inner = kernels.operator
    outer.give(lambda x: inner(x) * 2)()
    return outer.around(trace, kernels.give(outer.writes))


@cases(hits=6, eager="sets ['n'] of a dict")
def before_a_branch_that_was_taken_both_ways(trace):
    """The second way was recorded by a function that ran again, and was fed what the operator gave."""
    kernels = Kernels()

    def fn(x):
        y = kernels.operator(x)
        if y.sum() > 15:
            return y * kernels.written["n"]
        return y - 1

    low, high = [call(X())] * 3, [call(X() + 5)] * 3
    steps = [*low, *high, *low, kernels.give(kernels.writes), *high, *low]
    return trace(fn), steps, lambda: dict(kernels.written)


class OfTorch(Kernels):
    """The same of an operator of torch's own, whose kernels are put back at the end."""

    def __init__(self, operator):
        super().__init__()
        self.operator, self.name = operator, operator.__name__

    def around(self, trace, *steps):
        def put_back():
            for library in self.libraries[1:]:
                library._destroy()

        fn, calls, state = super().around(trace, *steps)
        return fn, [*calls, put_back, call(X())], state

    def give(self, kernel):
        return super().give(kernel, space="aten")


@cases(hits=2, eager="sets ['n'] of a dict")
def of_torchs_own_that_was_replaced_before(trace):
    kernels = OfTorch(torch.asinh)
    kernels.give(lambda x: x * 4)()
    return kernels.around(trace, kernels.give(kernels.writes))


@cases(hits=2, eager="sets ['n'] of a dict")
def of_torchs_own_where_another_was_replaced_before(trace):
    kernels = OfTorch(torch.acosh)
    kernels.give(lambda x: x * 4)()
    kernels.operator, kernels.name = torch.asinh, "asinh"
    return kernels.around(trace, kernels.give(kernels.writes))


@cases(hits=2, eager="sets ['n'] of a dict")
def of_torchs_own_that_a_second_library_leaves_to_the_first(trace):
    """The name leaves torch.library's set with the second, and the kernel of the first stays."""
    kernels = OfTorch(torch.atanh)
    kernels.give(kernels.writes)()
    kernels.give(lambda x: x * 4)()
    return kernels.around(trace, kernels.drop(2))


@cases.parametrize
def test_swapped_kernels(make, expected):
    check(make, **expected)


def test_a_retrace_says_that_kernels_were_given():
    kernels = Kernels()
    fn = traced(lambda x: kernels.operator(x))
    fn(X())
    kernels.give(lambda x: x * 5)()
    assert torch.equal(fn(X()), X() * 5)
    (reason,) = fn.stats().retrace_reasons
    assert "the kernels that Python has given operators" in str(reason)
