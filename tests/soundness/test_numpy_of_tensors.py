"""Functions of numpy that are handed tensors, of which numpy makes arrays itself."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from lazytrace import traced
from tests.soundness.runner import Cases, agree, call, check

cases = Cases()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
COUNT = 8


def tensors(*shape, dtype=torch.float32, count=COUNT):
    def drawn(seed):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype)

    return [call(drawn(i)) for i in range(count)]


# What gives a tensor or an array of memory of its own, or a number.
FOLLOWED = {
    "clip": lambda x: np.clip(x, 0.0, 1.0) * 2,
    "clip by names": lambda x: np.clip(x, a_min=-1, a_max=1),
    "exp": lambda x: np.exp(x) + 1,
    "maximum": lambda x: np.maximum(x, 0),
    "of two": lambda x: np.add(x, x * 2),
    "isnan": lambda x: np.isnan(x).any(),
    "a branch": lambda x: x * 2 if np.isnan(x).any() else x * 3,
    "abs": lambda x: np.abs(x),
    "round": lambda x: np.round(x, 1),
    "argmax": lambda x: np.argmax(x) + x,
    "argmax along": lambda x: np.argmax(x, axis=1),
    "cumsum": lambda x: np.cumsum(x, 0),
    "concatenate": lambda x: np.concatenate([x, x * 2]),
    "stack": lambda x: np.stack((x, x)),
    "vstack": lambda x: torch.as_tensor(np.vstack([x, x])).sum(),
    "where": lambda x: np.where(x > 0, x, 0),
    "array": lambda x: np.array(x),
    "array of a dtype": lambda x: np.array(x, dtype=np.float64),
    "asarray": lambda x: np.asarray(x) + 1,
    "sort": lambda x: np.sort(x),
    "unique": lambda x: np.unique(x > 0),
    "norm": lambda x: x * float(np.linalg.norm(x)),
    "dot": lambda x: np.dot(x, x.t()),
    "histogram": lambda x: np.histogram(x, bins=3, range=(-9, 9))[0],
    "zeros_like": lambda x: np.zeros_like(x),
    "allclose": lambda x: x if np.allclose(x, x + 1e-9) else x * 2,
    "squeeze": lambda x: np.squeeze(x[None]) * 2,
    "squeeze along": lambda x: np.squeeze(x[None], 0) * 2,
    "squeeze by name": lambda x: np.squeeze(x[None], axis=0) * 2,
    "squeezed view": lambda x: np.squeeze(x),
    "swapaxes": lambda x: np.swapaxes(x, 0, 1) * 2,
    "a tensor of its own": lambda x: np.exp(x).add_(1),
    "used by torch": lambda x: torch.relu(np.clip(x, -1, 1)).sum(),
    "of what torch gives": lambda x: np.clip(torch.tanh(x), 0, 1),
    "one after another": lambda x: np.sqrt(np.abs(x)),
    "under no_grad": torch.no_grad()(lambda x: np.exp(x)),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_has_memory_of_its_own_is_replayed(name):
    check(lambda trace: (trace(FOLLOWED[name]), tensors(3, 4)), hits=COUNT - 2)


@pytest.mark.parametrize("name", FOLLOWED)
def test_at_other_sizes(name):
    def make(trace):
        sizes = [(3, 4), (2, 4), (5, 3), (1, 4), (4, 1), (0, 2), (2, 0), (1, 1), (3, 4)]
        return trace(FOLLOWED[name]), [step for size in sizes for step in tensors(*size, count=2)]

    agree(make)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_of_other_dtypes(name, dtype):
    agree(lambda trace: (trace(FOLLOWED[name]), tensors(3, 4, dtype=dtype, count=4)))


# What gives memory of the tensor's that autograd knows nothing of, and what is no plain tensor.
EAGER = {
    "transpose": lambda x: np.transpose(x, (1, 0)),
    "expand_dims": lambda x: np.expand_dims(x, 0),
    "reshape": lambda x: np.reshape(x, -1),
    "a tensor and an array": lambda x: np.add(x, x.numpy()),
}


@pytest.mark.parametrize("name", EAGER)
def test_memory_of_an_argument_is_none_of_a_step(name):
    def make(trace):
        def written(x):
            made = EAGER[name](x)
            x.mul_(2)
            return made

        return trace(written), tensors(3, 4)

    check(make, eager="array")


RAISING = {
    "what torch does not take": lambda x: np.mean(x),
    "what requires gradients": lambda x: np.exp(x.clone().requires_grad_()),
    "a dtype that numpy has not": lambda x: np.exp(x.bfloat16()),
    "a conjugate": lambda x: np.exp(torch.complex(x, x).conj()),
    "shapes that do not fit": lambda x: np.add(x, x[:2]),
}


@pytest.mark.parametrize("name", RAISING)
def test_what_numpy_raises_is_raised(name):
    agree(lambda trace: (trace(RAISING[name]), tensors(3, 4)))


@cases(hits=COUNT - 2)
def of_a_view_that_is_written_through(trace):
    def function(x):
        y = x * 1
        view = np.squeeze(y[:, None])
        shown = np.asarray(y)
        y.add_(1)
        return view, shown, y

    return trace(function), tensors(3, 4)


@cases(hits=COUNT - 2)
def of_gradients(trace):
    w = torch.ones(4, requires_grad=True)

    def function(x):
        y = np.squeeze((x * w)[None])
        y.sum().backward()
        scale = float(np.linalg.norm(w.grad))
        w.grad = None
        return y.detach() * scale

    return trace(function), tensors(3, 4)


@cases(hits=6)
def in_a_training_step(trace):
    net = nn.Linear(4, 2)
    nn.init.constant_(net.weight, 0.1)
    nn.init.constant_(net.bias, 0.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        x = np.clip(x, 0.0, 1.0)
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        right = np.squeeze(net(x).detach().argmax(1).eq(0))
        return loss, float(np.sum(right.numpy()))

    return trace(step), tensors(3, 4)


@cases(hits=6)
def of_state(trace):
    kept = torch.ones(3, 4)

    def function(x):
        kept.mul_(1.5)
        return np.add(kept, x)

    return trace(function), tensors(3, 4)


# A step has an array of its own for each array that it is given, and none of these for what is none.
@cases(hits=6)
def that_keep_what_they_give(trace):
    kept = []

    def function(x):
        kept[:] = [np.exp(x)]
        return kept[0] * 2

    return trace(function), tensors(3, 4)


def test_methods_that_somebody_has_put_there_are_no_step(monkeypatch):
    seen, before = [], torch.Tensor.__array_wrap__

    def wrap(self, *args, **kwargs):
        seen.append(len(seen))
        return before(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "__array_wrap__", wrap)
    check(
        lambda trace: (trace(lambda x: np.exp(x) + 1), tensors(3, 4)), eager="hands a numpy array to C code"
    )
    assert seen


# Of a turned copy numpy's reshape gives memory of its own, of others theirs: other strides, another end.
@cases(hits=4)
def of_memory_that_is_shared_at_some_strides(trace):
    def function(x):
        flat = np.reshape(x, -1)
        x.add_(1)
        return flat * 2

    plain, turned = tensors(3, 4, count=3), [call(torch.ones(4, 3).mul(i).t()) for i in range(3)]
    return trace(function), [*turned, *plain, *turned, *plain]


# A method of torch may do what numpy has no dtype for.
@cases(hits=0, eager="hands a numpy array to C code")
def nonzero_of_a_dtype_that_numpy_has_not(trace):
    return trace(lambda x: np.nonzero(x)), tensors(3, 4, dtype=torch.bfloat16)


GIVEN_BACK = {
    "list": lambda x: np.diff([x, x], 0),
    "list by name": lambda x: np.diff(a=[x, x], n=0),
    "tuple": lambda x: np.diff((x, x * 2), 0),
    "tensor": lambda x: np.diff(x, 0),
    "arrays": lambda x: np.diff([x.numpy(), x.numpy()], 0),
    "numbers": lambda x: np.diff([x.shape[0], 2], 0),
}


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_a_list_that_numpy_gives_back_is_the_list(name):
    agree(lambda trace: (trace(GIVEN_BACK[name]), tensors(3, count=4)))


@cases(hits=4)
def orders_that_are_none_at_some_calls(trace):
    steps = [call(torch.arange(3.0) ** 2, order) for order in (1, 1, 0, 1, 0, 1, 2, 1)]
    return trace(lambda x, order: np.diff([x, x * 2], order)), steps


REPLACED = {
    "squeeze": lambda x: np.squeeze(x[None]) * 2,
    "swapaxes": lambda x: np.swapaxes(x, 0, 1) * 2,
    "numpy": lambda x: torch.from_numpy(np.asarray(x)) * 2,
    "__array__": lambda x: torch.from_numpy(np.asarray(x)) * 2,
    "argmax": lambda x: np.argmax(x) * 2,
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_method_that_is_replaced_later(name, monkeypatch):
    plain, step = REPLACED[name], traced(REPLACED[name])
    before = getattr(torch.Tensor, name)
    x = torch.arange(6.0).view(2, 3)
    for _ in range(4):
        assert torch.equal(step(x), plain(x))
    assert step.stats().hits >= 2
    monkeypatch.setattr(
        torch.Tensor, name, lambda tensor, *args, **kwargs: before(tensor * 3, *args, **kwargs)
    )
    expected = plain(x)
    for _ in range(3):
        assert torch.equal(step(x), expected)


def test_warnings_are_given_at_each_call():
    def told(function):
        found = []
        for i in range(5):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                function(torch.full((3,), float(i - 9)))
            found.append([(one.category, str(one.message)) for one in caught])
        return found

    def function(x):
        return np.log(x)

    step = traced(function)
    assert told(function) == told(step)
    assert any(category is RuntimeWarning for category, _ in told(function)[0])
    assert step.stats().hits >= 3


@cases.parametrize
def test_functions_of_numpy_that_are_handed_tensors(make, expected):
    check(make, **expected)
