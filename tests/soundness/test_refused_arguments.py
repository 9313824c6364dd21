"""What is called in the place of functions that give or take sizes: arguments they refuse, and warnings."""

from __future__ import annotations

import collections
import math
import warnings

import numpy as np
import pytest
import torch

from lazytrace import traced
from tests.soundness.runner import call, check

NAMES = {"collections": collections, "math": math, "np": np, "torch": torch}
REFUSED = """
x.contiguous(torch.channels_last)
x.contiguous(1)
x.is_contiguous(torch.contiguous_format)
x.size(0, 1)
x.size(size=0)
x.stride(0, 1)
torch.numel(x, x)
torch.numel()
torch.numel([len(x)])
torch.as_tensor(len(x), torch.float32)
torch.as_tensor([len(x)], requires_grad=True)
len(x, 1)
len(value=x)
len()
sum(len(x), 1, 2)
sum([len(x)], begin=1)
math.prod([len(x)], 1)
math.prod(len(x), items=2)
math.log(x=len(x))
math.isnan(x=len(x))
math.sqrt(len(x), key=abs)
math.pow(len(x))
max(len(x), begin=2)
int(len(x), number=2)
float(number=len(x))
collections.deque([len(x)], size=2)
torch.dropout(x, 1 / len(x))
torch.batch_norm(x[None], None, None, None, None, True, 1 / len(x))
torch.normal(0.0, 1 / len(x))
torch.normal(0.0, 1 / len(x), "size")
torch.normal(mean=0.0, std=1 / len(x), sizes=(2,))
"""


def test_sizes_that_are_too_large():
    def make(trace):
        def fn(x):
            try:
                return torch.nn.functional.interpolate(x[None, None], scale_factor=1e30 * len(x))
            except RuntimeError as error:
                return str(error).splitlines()[0]

        return trace(fn, dynamic=True), [call(torch.ones(n)) for n in (3, 4, 5, 5)]

    check(make, eager="upsample_nearest1d raised")


@pytest.mark.parametrize("text", REFUSED.strip().splitlines())
def test_arguments_that_are_refused(text):
    def make(trace):
        fn = eval(f"lambda x: (x * len(x), {text})", dict(NAMES))
        return trace(fn, dynamic=True), [call(torch.ones(n)) for n in (3, 4, 5, 5)]

    check(make, eager="raised TypeError")


def test_how_many_elements_fit_into_64_bits():
    def make(trace):
        fn = trace(lambda x, n, m: (x * 2, torch.Size([n, m]).numel()))
        return fn, [call(torch.ones(2), *v) for v in ((1, 2), (3, 4), (5, 6), (2**62, 5), (7, 2))]

    check(make, hits=2)


def test_a_tuple_stays_one():
    def make(trace):
        def fn(x):
            try:
                return torch.sparse_csr_tensor(x, (len(x),))
            except TypeError as error:
                return str(error).splitlines()[0]

        return trace(fn, dynamic=True), [call(torch.ones(n)) for n in (3, 4, 5, 5)]

    check(make, hits=1)


def copied(x):
    return torch.tensor(x), x.new_tensor(x), torch.as_tensor([float(len(x))])


def set_in_expanded(x):
    x.expand(2, 2)[torch.tensor([True, False])] = len(x)
    return x


def too_large(x):
    return x, np.exp(x.sum().item() * 1e5)


@pytest.mark.parametrize("function", [copied, set_in_expanded, too_large])
def test_the_lines_that_warnings_name(function):
    def told(step):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            for n in (2, 2, 2):
                step(torch.ones(n))
        return [(warning.filename, warning.lineno, str(warning.message)) for warning in given]

    warned = told(function)
    assert warned
    assert told(traced(function, dynamic=True)) == warned
