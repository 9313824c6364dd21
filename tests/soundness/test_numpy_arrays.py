"""Arrays of numpy that a call is given, and those that it makes of tensors."""

from __future__ import annotations

import copy
import functools
import operator
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lazytrace
from lazytrace import traced
from tests.soundness.runner import agree, call

COUNT = 8


def drawn(*shape, dtype=np.float64, seed=0):
    generator = np.random.default_rng(seed)
    return (10 * generator.standard_normal(shape)).astype(dtype)


def arrays(*shape, dtype=np.float64, count=COUNT):
    return [call(drawn(*shape, dtype=dtype, seed=i)) for i in range(count)]


TAKEN = {
    "from_numpy": lambda a: torch.from_numpy(a) * 2,
    "as_tensor": lambda a: torch.as_tensor(a) * 2,
    "as_tensor_of_another_dtype": lambda a: torch.as_tensor(a, dtype=torch.float32) * 2,
    "as_tensor_of_its_dtype": lambda a: torch.as_tensor(a, dtype=torch.float64) * 2,
    "as_tensor_of_a_device": lambda a: torch.as_tensor(a, device="cpu"),
    "tensor": lambda a: torch.tensor(a),
    "tensor_of_another_dtype": lambda a: torch.tensor(a, dtype=torch.int64),
    "FloatTensor": lambda a: torch.FloatTensor(a),
    "DoubleTensor": lambda a: torch.DoubleTensor(a),
    "Tensor": lambda a: torch.Tensor(a).sum(),
    "returned": lambda a: (a, torch.from_numpy(a)),
    "float": lambda a: torch.from_numpy(a).float().unsqueeze(0),
    "shape": lambda a: torch.as_tensor(a).sum() * a.shape[0] + a.ndim + a.size,
    "len": lambda a: torch.as_tensor(a).sum() / len(a),
    "isinstance": lambda a: torch.from_numpy(a) if isinstance(a, np.ndarray) else a,
    "twice_converted": lambda a: (
        torch.as_tensor(a, dtype=torch.float32) + torch.tensor(a, dtype=torch.float32)
    ),
    "written_to": lambda a: torch.from_numpy(a).mul_(2).sum(),
    "a_view": lambda a: torch.from_numpy(a)[0],
    "no_grad": torch.no_grad()(lambda a: torch.from_numpy(a).exp()),
    "branch": lambda a: torch.from_numpy(a) if a is not None and a.ndim > 1 else torch.tensor(a),
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_array_is_taken(name):
    tracer = agree(lambda trace: (trace(TAKEN[name]), arrays(3, 2)))
    assert tracer.count("hits") >= COUNT - 2, tracer.account()


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_, np.complex64]
)
def test_dtypes(dtype):
    tracer = agree(lambda trace: (trace(lambda a: torch.from_numpy(a)[1:]), arrays(3, 2, dtype=dtype)))
    assert tracer.count("hits") >= COUNT - 2, tracer.account()


def test_layouts():
    def make(trace):
        layouts = [
            lambda a: a,
            lambda a: a.T,
            lambda a: a[::2],
            lambda a: a[:, 1:],
            lambda a: a[1],
            np.squeeze,
        ]
        steps = [call(layout(drawn(4, 3, seed=i))) for i in range(3) for layout in layouts]
        return trace(
            lambda a: (torch.from_numpy(a), torch.tensor(a), torch.as_tensor(a, dtype=torch.float32)[0])
        ), steps

    agree(make)


def test_other_sizes_and_dtypes_are_other_signatures():
    def make(trace):
        sizes = [3, 5, 4, 1, 7, 3, 2, 9]
        steps = [call(drawn(n, 2, seed=n)) for n in sizes]
        return trace(lambda a: torch.as_tensor(a, dtype=torch.float32).sum(0) / a.shape[0] + len(a)), steps

    tracer = agree(make)
    assert tracer.count("hits") >= 5, tracer.account()
    step = traced(lambda a: torch.from_numpy(a) * 2)
    results = [step(drawn(2, dtype=dtype)).dtype for dtype in (np.float32, np.float64, np.float32)]
    assert results == [torch.float32, torch.float64, torch.float32]
    assert step.cache_info().misses == 2


def test_arrays_in_containers():
    def make(trace):
        def step(batch, *more):
            x = torch.as_tensor(batch["x"], dtype=torch.float32)
            return F.cross_entropy(x, torch.from_numpy(batch["y"][0])) + torch.tensor(more[0]).sum()

        steps = [
            call({"x": drawn(4, 3, seed=i), "y": [np.arange(4) % 3]}, drawn(2, seed=i), None)
            for i in range(COUNT)
        ]
        return trace(step), steps

    tracer = agree(make)
    assert tracer.count("hits") >= COUNT - 2, tracer.account()


def test_a_training_step():
    def make(trace):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

        def step(x, y):
            loss = F.cross_entropy(net(torch.from_numpy(x).float()), torch.as_tensor(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

        steps = [call(drawn(6, 4, seed=i), np.arange(6) % 3) for i in range(12)]
        return trace(step), steps, lambda: [*net.parameters(), *(p.grad for p in net.parameters())]

    tracer = agree(make)
    assert tracer.count("hits") >= 9, tracer.account()


GIVEN = {
    "returned": lambda x: x.softmax(-1).numpy(),
    "detached": lambda x: x.exp().detach().cpu().numpy(),
    "twice": lambda x: (a := x.exp().numpy(), a),
    "two_of_one": lambda x: ((y := x.exp()).numpy(), y.numpy(), y),
    "of_an_argument": lambda x: x.numpy(),
    "of_a_view": lambda x: x[1:].numpy(),
    "transposed": lambda x: (x * 2).T.numpy(),
    "written_afterwards": lambda x: ((y := x.exp()).numpy(), y.add_(1)),
    "in_containers": lambda x: {"p": [x.exp().numpy()], "n": (x.sum().numpy(), x.sum().item())},
    "of_values": lambda x: x.argmax(-1).numpy(),
}


@pytest.mark.parametrize("name", GIVEN)
def test_an_array_is_given(name):
    def make(trace):
        return trace(GIVEN[name]), [call(torch.randn(3, 2)) for _ in range(COUNT)]

    tracer = agree(make)
    assert tracer.count("hits") >= COUNT - 2, tracer.account()


def test_an_array_that_is_kept():
    def make(trace):
        kept = {"last": None, "all": []}

        def step(x):
            kept["last"] = x.exp().numpy()
            kept["all"].append((x * 2).numpy())
            return kept["last"]

        return trace(step), [call(torch.randn(3)) for _ in range(COUNT)], lambda: kept

    tracer = agree(make)
    assert tracer.count("hits") >= COUNT - 2, tracer.account()


def test_a_policy():
    """Results of calls before must not change."""

    def make(trace):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        kept = []

        def act(observation):
            with torch.no_grad():
                p = net(torch.as_tensor(observation, dtype=torch.float32)).softmax(-1)
            kept.append(p.numpy())
            return torch.multinomial(p, 1).item(), p.numpy()

        return trace(act), arrays(4, count=12), lambda: kept

    tracer = agree(make)
    assert tracer.count("hits") >= 9, tracer.account()


def left_behind(x):
    y = x.exp()
    a = y.numpy()
    y.data = y * 2
    return a, y


def transposed_behind(x):
    y = x.exp()
    a = y.numpy()
    y.t_()
    return a, y


def both(a, b):
    torch.from_numpy(a).add_(1)
    return torch.from_numpy(b).sum()


def taken_twice(a):
    x = torch.from_numpy(a)
    x.add_(1)
    return torch.tensor(a), x


# What the signature cannot hold, and what Python does with arrays otherwise.
EAGER = {
    "left behind": (left_behind, lambda i: (torch.randn(2, 3),), "array-left-behind"),
    "transposed": (transposed_behind, lambda i: (torch.randn(2, 3),), "array-left-behind"),
    "the same array": (both, lambda i: (a := drawn(3, seed=i), a), "takes-shared-array"),
    "overlapping": (both, lambda i: ((a := drawn(6, seed=i))[1:5], a[3:]), "takes-shared-array"),
    "a tensor's memory": (
        lambda a, x: (torch.from_numpy(a).add_(1), x.sum()),
        lambda i: (a := drawn(3, seed=i), torch.from_numpy(a)),
        "takes-shared-array",
    ),
    "read-only": (
        lambda a: torch.tensor(a),
        lambda i: (np.broadcast_to(drawn(1, seed=i), (3,)),),
        "takes-array",
    ),
    "of text": (lambda a: torch.ones(len(a)), lambda i: (np.array(["a", "b"]),), "takes-array"),
    "of objects": (lambda a: torch.ones(len(a)), lambda i: (np.array([None, 1]),), "takes-array"),
    "backwards": (lambda a: torch.tensor(a.copy()), lambda i: (drawn(3, seed=i)[::-1],), "takes-array"),
    "of a class of its own": (
        lambda a: torch.tensor(a),
        lambda i: (np.ma.array(drawn(3, seed=i)),),
        "takes-array",
    ),
    "set": (lambda a: (a.__setitem__(0, 1.0), torch.tensor(a))[1], lambda i: (drawn(3, seed=i),), None),
    "iterated, long": (lambda a: list(a)[:1], lambda i: (drawn(65, seed=i),), None),
    "with an operator": (
        lambda a, x: x + a,
        lambda i: (drawn(3, seed=i), torch.ones(3)),
        "computes-with-array",
    ),
    "as text": (lambda a: f"{a}", lambda i: (drawn(3, seed=i),), None),
    "needs gradients": (
        lambda a: torch.tensor(a, requires_grad=True).sum(),
        lambda i: (drawn(3, seed=i),),
        "hands-array-to-c",
    ),
    "unpacked into a call": (lambda a: torch.tensor(*(a,)), lambda i: (drawn(3, seed=i),), None),
    "mapped": (lambda a: list(map(torch.from_numpy, [a])), lambda i: (drawn(3, seed=i),), None),
    "inference mode inside": (
        torch.inference_mode()(lambda a: torch.from_numpy(a)),
        lambda i: (drawn(3, seed=i),),
        "takes-array-in-mode",
    ),
    "made, written to": (
        lambda x: ((y := x.exp()).numpy().__setitem__(0, 1.0), y)[1],
        lambda i: (torch.randn(3),),
        None,
    ),
    "made, as text": (lambda x: str(x.exp().numpy()), lambda i: (torch.randn(3),), None),
    "made, needs gradients": (
        lambda x: (x * 2).numpy(),
        lambda i: (torch.ones(2, requires_grad=True),),
        None,
    ),
}


# What is computed of an array is a step.
FOLLOWED = {
    "indexed": (lambda a: torch.tensor(a[1]), lambda i: (drawn(3, seed=i),)),
    "a function": (lambda a: torch.tensor(np.sum(a)), lambda i: (drawn(3, seed=i),)),
    "computed with": (lambda a: torch.tensor(a * 2), lambda i: (drawn(3, seed=i),)),
    "computed with from the right": (lambda a: torch.tensor(2 - a), lambda i: (drawn(3, seed=i),)),
    "compared": (lambda a: torch.tensor(a > 0), lambda i: (drawn(3, seed=i),)),
    "a method": (lambda a: a.sum() * 2, lambda i: (drawn(3, seed=i),)),
    "in a list": (lambda a: torch.tensor(np.stack([a, a])), lambda i: (drawn(3, seed=i),)),
    "true": (lambda a: torch.ones(1) if a else torch.zeros(1), lambda i: (drawn(1, seed=i),)),
    "made, computed with": (lambda x: x.exp().numpy() * 2, lambda i: (torch.randn(3),)),
    "taken twice": (taken_twice, lambda i: (drawn(3, seed=i),)),
    "iterated": (lambda a: [torch.tensor(v) for v in a], lambda i: (drawn(3, seed=i),)),
    "unpacked": (lambda a: torch.tensor([*a]), lambda i: (drawn(3, seed=i),)),
    "summed": (lambda a: torch.tensor(sum(a)), lambda i: (drawn(3, seed=i),)),
    "made, indexed": (lambda x: float(x.exp().numpy()[0]), lambda i: (torch.randn(3),)),
    "made, iterated": (lambda x: list(x.exp().numpy()), lambda i: (torch.randn(3),)),
    "two tensors": (
        lambda a: torch.tensor(torch.from_numpy(a) is torch.from_numpy(a)),
        lambda i: (drawn(3),),
    ),
    "made, taken": (lambda x: torch.from_numpy(x.exp().numpy()), lambda i: (torch.randn(3),)),
    "made, asked": (lambda x: torch.ones(x.exp().numpy().shape), lambda i: (torch.randn(3),)),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_followed(name):
    function, inputs = FOLLOWED[name]
    tracer = agree(lambda trace: (trace(function), [call(*inputs(i)) for i in range(5)]))
    assert tracer.count("hits") == 4, tracer.account()
    assert tracer.reasons() == {}


@pytest.mark.parametrize("name", EAGER)
def test_what_is_eager(name):
    function, inputs, code = EAGER[name]
    tracer = agree(lambda trace: (trace(function), [call(*inputs(i)) for i in range(5)]))
    assert tracer.count("hits") == 0, tracer.account()
    reasons = {lazytrace.reason_code(reason) for reason in tracer.reasons()}
    assert code is None or reasons == {code}, reasons


def test_a_branch_goes_on_with_the_same_memory():
    def make(trace):
        def step(a):
            x = torch.from_numpy(a)
            x.add_(1)
            if x.sum() > 0:
                x.mul_(3)
            return x.float(), a

        return trace(step), arrays(3, count=12)

    tracer = agree(make)
    assert tracer.count("hits") >= 8, tracer.account()


def test_results_are_kept_apart():
    step = traced(lambda a: (torch.as_tensor(a, dtype=torch.float32) * 2).numpy())
    inputs = [drawn(3, seed=i) for i in range(6)]
    results = [step(a) for a in inputs]
    assert step.cache_info().hits >= 4
    for a, result in zip(inputs, results, strict=True):
        assert np.array_equal(result, a.astype(np.float32) * 2)


def test_a_graph_and_a_file_say_what_they_cannot_hold(tmp_path):
    step = traced(lambda a: torch.from_numpy(a) * 2)
    step(drawn(3))
    assert [(one.path, one.array) for one in step.program(drawn(3)).inputs] == [("a", True)]
    with pytest.raises(NotImplementedError, match="takes a, a numpy array"):
        step.graph(drawn(3))
    assert "takes a, a numpy array" in str(step.exportable(drawn(3)))
    with pytest.raises(NotImplementedError, match="a is of type ndarray"):
        lazytrace.save(step, tmp_path / "step.zip", drawn(3))
    give = traced(lambda x: x.exp().numpy())
    give(torch.ones(2))
    with pytest.raises(NotImplementedError, match="returns a numpy array"):
        give.graph(torch.ones(2))


def test_retraces_are_explained():
    step = traced(lambda a: torch.from_numpy(a) * 2, dynamic=False)
    step(drawn(3))
    assert "a.shape[0]" in str(step.explain(drawn(4)))


def test_verify_leaves_arrays_as_they_are():
    step = traced(lambda a: torch.from_numpy(a).mul_(2))
    a = drawn(3)
    before = a.copy()
    lazytrace.verify(step, (a,))
    assert np.array_equal(a, before)


# What a body may do with an array `a` and a tensor `x`, each line a program.
BODIES = """
a[0] = 1.0; return torch.from_numpy(a)*2
t = torch.from_numpy(a); a[0] = 5.0; return t*2
a += 1; return torch.tensor(a)
a.shape = (3, 1); return torch.tensor(a)
return x * len(a), a.shape, a.shape[:1], a.shape + (1,), str(a.shape), {a.shape: 1}
return torch.from_numpy(a) + x, a.shape == x.shape, [a.shape], isinstance(a.shape, torch.Size)
return x[a.shape[0]-1]
return x.new_tensor(a)
return torch.from_numpy(-a)
return torch.from_numpy(abs(a))
return torch.tensor(a == a)
return torch.tensor(a[::2])
return torch.tensor(list(a))
return torch.tensor(max(a))
return torch.stack([torch.tensor(v) for v in a])
return torch.from_numpy(a.T)*1
return torch.tensor(a.strides)
return torch.tensor(a.nbytes + a.itemsize)
return torch.tensor(a, dtype=torch.float32) if a.dtype == np.float64 else x
return torch.from_numpy(a.astype(np.float32))
return torch.from_numpy(a.copy())
return torch.from_numpy(np.ascontiguousarray(a))
a.fill(2.0); return torch.tensor(a)
a.sort(); return torch.tensor(a)
np.add(a, 1, out=a); return torch.from_numpy(a)*1
b = a; b[1] = 3.0; return torch.from_numpy(a)+0
return torch.from_numpy(a)+a.sum()
return x*float(a[0])
return x*a.item(0)
return torch.tensor(a.tolist())
return torch.from_numpy(np.stack([a,a]))
return torch.as_tensor([a, a])
return torch.tensor([a, a])
return torch.tensor((a[0], a[1]))
d = {'a': a}; return torch.from_numpy(d['a'])*3
l = [a]; l.append(a); return torch.from_numpy(l[1])*3, l
def g(q): return torch.from_numpy(q)*2; return g(a)
return (lambda q=a: torch.from_numpy(q)*2)()
return functools.partial(torch.from_numpy, a)()*2
return operator.methodcaller('sum')(a)*x
return list(map(lambda q: torch.from_numpy(q)*2, [a]))
return torch.from_numpy(copy.copy(a))*2
return torch.from_numpy(copy.deepcopy(a))*2
return torch.from_numpy(pickle.loads(pickle.dumps(a)))*2
y = torch.from_numpy(a); y.resize_(2); return y
y = torch.from_numpy(a); y.t_() if y.dim() == 2 else y.unsqueeze_(0); return y, y.numpy()
y = torch.from_numpy(a); y.requires_grad_(); (y*2).sum().backward(); return y.grad
y = torch.from_numpy(a); return y.numpy()
y = torch.from_numpy(a); return y.numpy() is a
y = torch.from_numpy(a); y.zero_(); return a
return torch.from_numpy(a)._is_view(), torch.from_numpy(a)._base is None
y = torch.from_numpy(a); return y._version, y.add_(1)._version
y = torch.from_numpy(a); z = y[1:]; z.mul_(2); return z._base is y, y
x.copy_(torch.from_numpy(a)); return x
return torch.from_numpy(a).to(torch.float64) is torch.from_numpy(a)
y = torch.from_numpy(a); return y.double() is y, y.contiguous() is y
y = torch.as_tensor(a); y += 1; return torch.as_tensor(y) is y
return torch.from_numpy(a).data_ptr() > 0
y = x.exp().numpy(); x.zero_(); return y
y = x.numpy(); x.zero_(); return y
y = x.exp(); z = y.numpy(); y.add_(1); w = y.numpy(); return z, w, z is w
y = x.exp().numpy(); return y.copy()
y = x.exp().numpy(); return y[0]
y = x.exp().numpy(); y[0] = 1; return y
y = x.exp().numpy(); y += 1; return y
y = x.exp().numpy(); return [y, y.shape]
y = x.exp().numpy(); return torch.from_numpy(y)
y = x.exp().numpy(); return y.T
y = x.exp().numpy(); return y.tolist()
y = x.exp().numpy(); return (y, 1) == (y, 1)
y = x.exp().numpy(); return y is None, y
y = x.exp().numpy(); return len(y)
y = x.exp().numpy(); return np.argmax(y)
y = x.exp().numpy(); return y.argmax()
y = x.exp().numpy(); return isinstance(y, np.ndarray), y
y = x.exp().numpy(); return str(y.dtype), y
y = x.exp().tolist(); y[0] = 3.0; return y
y = x.exp().tolist(); return sum(y), max(y)
y = x.exp().tolist(); return y + y
y = x.exp().tolist(); y.reverse(); return y
y = x.exp().tolist(); y.sort(); return y
y = x.exp().tolist(); return [v for v in y if v > 1]
y = x.exp().tolist(); return torch.tensor(y)
y = (x>0).tolist(); return y, any(y), all(y)
y = x.exp().tolist(); return y == y, y is x.tolist()
y = x.exp().tolist(); return dict(enumerate(y))
y = x.exp().tolist(); return set(y)
y = x.exp().tolist(); return '%s' % y
y = x.exp().tolist(); return np.array(y)
y = x.long().tolist(); return bytes(len(y))
y = x.long().tolist(); return torch.zeros(abs(y[0])+1)
y = x.long().tolist(); return x[y[0]:], x.expand(2, -1)[:, :abs(y[1])]
y = x.exp().tolist(); return copy.deepcopy(y), tuple(y), y[:], [*y]
y = x.exp().tolist(); z = y; z.append(1.0); return y, z is y
y = [x.exp().tolist()]*2; return y
y = x.view(1,-1).tolist(); y[0].append(2.0); return y
"""


def function_of(body):
    names = {
        "copy": copy,
        "functools": functools,
        "np": np,
        "operator": operator,
        "pickle": pickle,
        "torch": torch,
    }
    exec("def function(a, x):\n    " + body.replace("; ", "\n    "), names)
    return names["function"]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("body", BODIES.strip().splitlines())
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_a_body_does(body, dynamic):
    def make(trace):
        sizes = [3, 3, 3, 3, 4, 3, 5, 3, 4]
        steps = [
            call(drawn(n, seed=i), torch.from_numpy(drawn(n, seed=i + 9)).float())
            for i, n in enumerate(sizes)
        ]
        return trace(function_of(body), dynamic=dynamic), steps

    agree(make)
