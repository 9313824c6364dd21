"""Python code that runs inside an operator: hooks for saved tensors, kernels, filters of warnings."""

from __future__ import annotations

import contextlib
import gc
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import lazytrace
from lazytrace import traced
from tests.soundness.runner import Cases, X, call, check

cases = Cases()

STATE = {"k": 2.0, "calls": 0}
library = torch.library.Library("lazytrace_python_kernels", "DEF")
for schema, kernel in {
    "scaled(Tensor x) -> Tensor": lambda x: x * STATE["k"],
    "refused(Tensor x) -> Tensor": lambda x: _refused(x),
    "counted(Tensor x) -> Tensor": lambda x: _counted(x),
    "selected(Tensor x) -> Tensor": lambda x: x[x > 0].clone(),
    "warns(Tensor x) -> Tensor": lambda x: x + torch.ones(1 if x[0] > 5 else 2).std().nan_to_num(),
}.items():
    library.define(schema)
    library.impl(schema.partition("(")[0], kernel, "CompositeExplicitAutograd")
ops = torch.ops.lazytrace_python_kernels


class Refused(LookupError):
    """What a kernel raises, with what it was given."""

    def __init__(self, value):
        super().__init__(value)
        self.value = value


def _refused(x):
    if STATE["k"] == 3.0:
        raise Refused(float(x[0]))
    return x.clone()


def _counted(x):
    STATE["calls"] += 1
    return x.clone()


@pytest.fixture(autouse=True)
def fresh_state():
    STATE.update(k=2.0, calls=0)
    yield
    STATE.update(k=2.0, calls=0)


def setting(**values):
    return lambda: STATE.update(values)


# ---------------------------------------------------------------- activation checkpointing
def gradients_of(run, *, reentrant=False, times=3):
    """Gradients of a function under checkpointing, call by call."""
    found = []
    for _ in range(times):
        x = X(grad=True)
        checkpoint(run, x, use_reentrant=reentrant).sum().backward()
        found.append(x.grad)
    return found


CHECKPOINTED = {
    "pointwise": lambda x: (x.sin() * x.cos()).exp().sum(),
    "last step saves nothing": lambda x: (x * x).sin() + 1,
    "nothing saved": lambda x: x + 1,
    "views": lambda x: x.view(1, 3).T.sin().squeeze(1) * x[0],
    "dropout": lambda x: F.dropout(x * x, 0.5).sin(),
    "no_grad inside": lambda x: x.sin() * _without_gradients(x),
    "value read": lambda x: x.sin() * (2 if x.sum() > 0 else 3),
    "try": lambda x: _tried(x),
}


def _without_gradients(x):
    with torch.no_grad():
        return x.cos()


def _tried(x):
    try:
        return (x.sin() * x.cos()).exp()
    except ValueError:
        return x


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved tensors", "reentrant"])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpointed_calls_give_the_gradients_of_eager(name, reentrant):
    function = CHECKPOINTED[name]
    torch.manual_seed(0)
    expected = gradients_of(function, reentrant=reentrant)
    fn = traced(function)
    torch.manual_seed(0)
    found = gradients_of(fn, reentrant=reentrant)
    assert [g.tolist() for g in found] == [g.tolist() for g in expected]
    assert not fn.stats().proof_failures


def test_a_function_recorded_before_is_checkpointed_with_hits():
    fn = traced(CHECKPOINTED["pointwise"])
    x = X(grad=True)
    fn(x).backward()
    assert [g.tolist() for g in gradients_of(fn, times=1)] == [x.grad.tolist()]
    before = fn.stats().hits
    assert [g.tolist() for g in gradients_of(fn, times=4)] == [x.grad.tolist()] * 4
    assert fn.stats().hits >= before + 3  # forward, but for the first; the backward pass stops each early
    assert {lazytrace.reason_code(text) for text in fn.stats().eager} == {"raised"}


def test_layers_under_checkpoint_sequential():
    def gradients(wrap):
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()) for _ in range(4)]
        x = torch.randn(2, 4, requires_grad=True)
        run = [wrap(layer) for layer in layers]
        for _ in range(3):
            checkpoint_sequential(run, 2, x, use_reentrant=False).sum().backward()
        return [x.grad.tolist(), *(p.grad.tolist() for layer in layers for p in layer.parameters())]

    assert gradients(traced) == gradients(lambda layer: layer)


@cases(hits=2)
def save_on_cpu_around(trace):
    fn = trace(lambda x: (x.sin() * x).exp())

    def use(x):
        with save_on_cpu():
            return fn(x)

    return use, [call(X(grad=True))] * 3


# ---------------------------------------------------------------- hooks of the user's
def with_hook(pack, run):
    with saved_tensors_hooks(pack, lambda t: t):
        return run()


@cases(eager="saved-hooks")
def pack_hook_that_counts(trace):
    seen = []
    fn = trace(lambda x: (x.sin() * x).exp())
    return (
        lambda x: with_hook(lambda t: seen.append(t.sum().item()) or t, lambda: fn(x)),
        [call(X(grad=True))] * 3,
        lambda: list(seen),
    )


@cases(eager="saved-hooks")
def pack_hook_that_changes_state_read_later(trace):
    st = types.SimpleNamespace(k=2.0)
    fn = trace(lambda x: x.sin() * st.k)

    def pack(t):
        st.k += 1
        return t

    return (lambda x: with_hook(pack, lambda: fn(x))), [call(X(grad=True))] * 3, lambda: st.k


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Refused, ValueError, StopIteration])
@pytest.mark.parametrize("inside", [False, True], ids=["around", "in the middle"])
def test_what_a_pack_hook_raises_comes_out_as_itself(error, inside):
    raised = error(5)
    packed = []

    def pack(t):
        packed.append(1)
        if not inside or len(packed) == 2:
            raise raised
        return t

    fn = traced(lambda x: (x.sin() * x).exp().sum())
    for _ in range(2):
        fn(X(grad=True))
    with pytest.raises(error) as caught:
        with_hook(pack, lambda: fn(X(grad=True)))
    assert caught.value is raised
    assert len(packed) == 1 + inside
    assert fn(X(grad=True)).tolist() == (X().sin() * X()).exp().sum().tolist()


def test_state_that_a_pack_hook_drops_is_not_used_after():
    st = types.SimpleNamespace(w=torch.full((300,), 2.0))
    fn = traced(lambda x: x.sin() * st.w)
    x = torch.ones(300, requires_grad=True)
    for _ in range(3):
        fn(x)
    junk = []

    def pack(t):
        st.w = None
        gc.collect()
        junk.extend(torch.full((300,), 7.0) for _ in range(200))
        return t

    with pytest.raises(TypeError):
        with_hook(pack, lambda: fn(x))


# ---------------------------------------------------------------- kernels in Python
def outcome(run):
    """What a call returns, or the class and arguments of what it raises."""
    try:
        return run()
    except BaseException as error:
        return type(error).__name__, error.args, getattr(error, "value", None)


@cases(hits=1)
def kernel_that_raises_its_own_exception(trace):
    fn = trace(lambda x: ops.refused(x) * 2)
    steps = [call(X()), call(X()), setting(k=3.0), call(X()), setting(k=2.0), call(X())]
    return (lambda x: outcome(lambda: fn(x))), steps


@cases(hits=1)
def kernel_that_raises_where_it_is_caught(trace):
    def run(x):
        try:
            return ops.refused(x * 2)
        except Refused as error:
            return x * error.value

    fn = trace(run)
    return fn, [call(X()), call(X()), setting(k=3.0), call(X()), call(X()), setting(k=2.0), call(X())]


@cases(hits=1, eager="in Python after writing to Python state")
def kernel_that_reads_what_the_function_has_written(trace):
    def run(x):
        STATE["k"] = 5.0
        return ops.scaled(x)

    steps = [step for _ in range(3) for step in (setting(k=2.0), call(X()))]
    return trace(run), steps, lambda: dict(STATE)


@cases(hits=2)
def kernel_that_reads_state(trace):
    STATE["k"] = 2.0
    return trace(lambda x: ops.scaled(x) + 1), [call(X())] * 2 + [setting(k=4.0)] + [call(X())] * 2


@cases(eager="sets ['calls'] of a dict")
def kernel_that_counts_runs_once_in_each_call(trace):
    STATE["calls"] = 0
    fn = trace(lambda x: ops.selected(ops.counted(x)) * 2)
    other = torch.tensor([1.0, 2.0, 3.0])
    return fn, [call(x) for x in (X(), X(), other, X(), other)], lambda: STATE["calls"]


def test_a_kernel_of_torchs_own_that_is_replaced():
    other = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        fns = {
            "lowered": traced(lambda x: torch.tanh(x) * 2),
            "inside a composite operator": traced(lambda x: F.softplus(x).tanh() + F.linear(x, torch.eye(3))),
        }
        kept = traced(lambda x: torch.tanh(x))
        plain = {name: fn(X()).tolist() for name, fn in fns.items()}
        for fn in (*fns.values(), kept):
            fn(X()), fn(X())
        other.impl("tanh", lambda t: t.clone(), "CPU")
        try:
            assert fns["lowered"](X()).tolist() == (X() * 2).tolist()
            expected = F.softplus(X()) + F.linear(X(), torch.eye(3))
            assert fns["inside a composite operator"](X()).tolist() == expected.tolist()
            assert kept(X()).tolist() == X().tolist()
        finally:
            other._destroy()
        assert {name: fn(X()).tolist() for name, fn in fns.items()} == plain
        assert kept(X()).tolist() == X().tanh().tolist()


def test_a_replaced_kernel_may_drop_what_the_function_holds():
    st = types.SimpleNamespace(w=torch.full((300,), 2.0))
    fn = traced(lambda x: torch.tanh(x) * st.w)
    x = torch.ones(300)
    for _ in range(3):
        fn(x)
    junk = []

    def kernel(t):
        st.w = torch.full((300,), 3.0)
        gc.collect()
        junk.extend(torch.full((300,), 7.0) for _ in range(200))
        return t.clone()

    other = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.impl("tanh", kernel, "CPU")
    try:
        assert set(fn(x).tolist()) <= {2.0, 3.0}
    finally:
        other._destroy()


# ---------------------------------------------------------------- warnings of operators
def told(run, action):
    """What `run` warns of, or raises, under a filter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        try:
            value = run().nan_to_num().tolist()
        except Warning as warning:
            value = type(warning).__name__, str(warning)[:40]
    return value, [(w.category.__name__, str(w.message)[:40], w.filename, w.lineno) for w in caught]


WARNS = {
    "std of one element": (lambda x: x.std(), lambda: torch.ones(1)),
    "after a step": (lambda x: (x * 2).var() + 1, lambda: torch.ones(1)),
    "after a write": (lambda x: x.mul_(2).std(), lambda: torch.ones(1)),
    "before a write": (lambda x: (x.std(), x.mul_(2))[1], lambda: torch.ones(1)),
}


@pytest.mark.parametrize("action", ["always", "error", "ignore", "default", "once"])
@pytest.mark.parametrize("name", WARNS)
def test_a_warning_goes_through_the_filters(name, action):
    function, make = WARNS[name]
    fn = traced(function)
    for _ in range(3):
        told(lambda: fn(make()), "ignore")
    a, b = make(), make()
    assert told(lambda: fn(a), action) == told(lambda: function(b), action)
    assert a.tolist() == b.tolist()


def test_a_warning_inside_a_kernel_in_python():
    fn = traced(lambda x, w: ops.warns(x) * w)
    small, large, w = torch.tensor([1.0]), torch.tensor([9.0]), torch.tensor([2.0])
    for _ in range(3):
        assert fn(small, w).tolist() == [2.0]
    assert fn.stats().hits >= 1  # the first call finds the operator, and writes it down in torch.ops
    for action in ("always", "error", "ignore"):
        assert told(lambda: fn(large, w), action) == told(lambda: ops.warns(large) * w, action)


def test_a_warning_is_a_reason():
    fn = traced(lambda x: x.std())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            fn(torch.ones(1))
    ((reason, count),) = fn.stats().eager.items()
    assert lazytrace.reason_code(reason) == "operator-warned"
    assert reason.startswith("aten::std warns")
    assert count == 3


# ---------------------------------------------------------------- switches of torch's bindings
@cases(eager="checks-invariants")
def sparse_invariants_of_one_call(trace):
    fn = trace(lambda i, v: torch.sparse_coo_tensor(i, v, (3,), check_invariants=True)._values().sum())
    good, bad = torch.tensor([[0, 1]]), torch.tensor([[0, 7]])
    return (lambda i: outcome(lambda: fn(i, torch.ones(2)))), [call(good), call(good), call(bad)]


@cases(hits=1)
def sparse_invariants_around(trace):
    fn = trace(lambda i, v: torch.sparse_coo_tensor(i, v, (3,))._values().sum())
    good, bad = torch.tensor([[0, 1]]), torch.tensor([[0, 7]])

    def use(i, enable):
        manager = torch.sparse.check_sparse_tensor_invariants(enable) if enable else contextlib.nullcontext()
        with manager:
            return outcome(lambda: fn(i, torch.ones(2)))

    return use, [call(good, False), call(good, False), call(good, True), call(bad, True)]


@cases(hits=3)
def version_of_what_factories_make(trace):
    def run(x):
        return (
            torch.zeros(3),
            torch.ones(2),
            torch.full((2,), 3.0),
            torch.arange(3),
            torch.zeros_like(x),
            x + 1,
        )

    fn = trace(run)
    return (lambda x: [t._version for t in fn(x)]), [call(X())] * 4


@cases(hits=3)
def version_of_what_is_written(trace):
    def run(x):
        y = torch.zeros(3)
        y.add_(x)
        return y, torch.zeros(3).fill_(2.0), torch.randn(3), torch.ones(3, requires_grad=True)

    fn = trace(run)
    return (lambda x: [t._version for t in fn(x)]), [call(X())] * 4


@cases.parametrize
def test_python_in_operators(make, expected):
    check(make, **expected)


def test_kernels_of_torchs_own_in_python_replace_nothing():
    """torch registers kernels in Python for its transforms when these are first used."""
    assert torch.vmap(lambda x: x * 2)(X()).tolist() == (X() * 2).tolist()
    before = lazytrace._native.core.kernels_are_replaced()
    other = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.impl("tanh", lambda t: t.clone(), "CPU")
    try:
        assert (before, lazytrace._native.core.kernels_are_replaced()) == (False, True)
    finally:
        other._destroy()
    assert not lazytrace._native.core.kernels_are_replaced()
