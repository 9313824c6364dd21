"""torch's own tracers over what lazytrace has wrapped: each works, or says why not."""

from __future__ import annotations

import pytest
import torch

import lazytrace
from lazytrace import NotTraceableError, opaque, script_if_tracing, traced
from lazytrace.errors import no_forward_of_class

X = torch.tensor([1.0, -2.0, 3.0])
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        return x * self.w


class Outer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def plain(x):
    return torch.neg(x) + 1


class Methods:
    scale = 3.0

    @traced
    def run(self, x):
        return x * self.scale


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, backend="eager", fullgraph=True)


# ---------------------------------------------------------------- torch.compile(fullgraph=True)
@pytest.mark.parametrize("recorded", [False, True])
def test_compile(recorded):
    function, module, methods = traced(plain), traced(Inner()), Methods()
    outer = Outer(module)
    # What is recorded is replayed, by itself without a frame that could be compiled.
    cases = [] if recorded else [(function, plain(X)), (methods.run, X * 3)]
    cases += [
        (lambda x: function(x) + 1, plain(X) + 1),
        (module, X * 2),
        (lambda x: module(x) + 1, X * 2 + 1),
        (outer, X * 2 + 1),
        (lambda x: methods.run(x) + 1, X * 3 + 1),
        (lambda x: function(module(x)), plain(X * 2)),
    ]
    if recorded:
        function(X), function(X), module(X), module(X), methods.run(X)
    for case, expected in cases:
        torch._dynamo.reset()
        assert torch.equal(compiled(case)(X), expected)


def test_compile_of_what_is_recorded_replays():
    function = traced(plain)
    function(X), function(X)
    assert torch.equal(torch.compile(function, backend="eager")(X), plain(X))
    assert function.stats().hits == 2


def test_compiled_gradients():
    module = traced(Inner())
    compiled(lambda x: module(x).sum())(X).backward()
    assert torch.equal(module.w.grad, X)


@pytest.mark.parametrize("wrap", [opaque, script_if_tracing, lambda fn: opaque(fn, like=X)])
@pytest.mark.parametrize("function", [plain, torch.neg, Inner()])
def test_compile_of_opaque_functions(wrap, function):
    if wrap is script_if_tracing and function is torch.neg:
        function = torch.nn.functional.relu
    whole = wrap(function)
    assert torch.equal(compiled(whole)(X), function(X))
    torch._dynamo.reset()
    assert torch.equal(compiled(lambda x: whole(x) + 1)(X), function(X) + 1)
    step = traced(lambda x: whole(x) + 1)
    assert torch.equal(step(X), step(X))  # a step, as before


def test_compile_of_callers_of_opaque_functions():
    keeps, shrinks = opaque(plain), script_if_tracing(plain)
    assert torch.equal(compiled(lambda x: keeps(x) + 1)(X), plain(X) + 1)
    assert torch.equal(compiled(lambda x: shrinks(x) + 1)(X), plain(X) + 1)


def scaled_by(k):
    factor = torch.full((3,), k)

    def inner(x):
        return x * factor + k

    return inner


class Holder(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) * 2


@pytest.mark.parametrize("wrap", [traced, opaque, script_if_tracing])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.filterwarnings("error:Dynamo detected a call to a `functools.lru_cache`")
def test_compile_of_what_calls_a_function_with_a_closure(wrap, recorded):
    function, deep = wrap(scaled_by(2.0)), traced(lambda x: function(x) - 1)
    if recorded:
        for _ in range(3):
            deep(X)
    for case, expected in (
        (lambda x: function(x) + 1, X * 2 + 3),
        (lambda x: deep(x) + 1, X * 2 + 2),
        (Holder(function), X * 4 + 4),
        (Holder(deep), X * 4 + 2),
    ):
        torch._dynamo.reset()
        assert torch.equal(compiled(case)(X), expected)
    # A closure that changes is noticed.
    torch._dynamo.reset()
    case = compiled(lambda x: function(x) + 1)
    case(X)
    function.__closure__[1].cell_contents = 3.0
    assert torch.equal(case(X), X * 2 + 4)


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_what_calls_a_function_with_a_closure(strict):
    program = torch.export.export(Holder(traced(scaled_by(2.0))), (X,), strict=strict)
    assert torch.equal(program.module()(X), X * 4 + 4)


def test_a_compiled_function_is_not_counted():
    function = traced(plain)
    compiled(function)(X)
    assert function.stats().calls == 0
    function(X)
    assert function.stats().calls == 1


# ---------------------------------------------------------------- torch.export
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    for module, expected in ((traced(Inner()), X * 2), (Outer(traced(Inner())), X * 2 + 1)):
        program = torch.export.export(module, (X,), strict=strict)
        assert torch.equal(program.module()(X), expected)


# ---------------------------------------------------------------- TorchScript
def test_script():
    for module, expected in (
        (traced(Inner()), X * 2),
        (Outer(traced(Inner())), X * 2 + 1),
        (Outer(traced(type("Inner2", (Inner,), {}))()), X * 2 + 1),
    ):
        scripted = torch.jit.script(module)
        assert isinstance(scripted, torch.jit.ScriptModule)
        assert torch.equal(scripted(X), expected)
    assert torch.equal(torch.jit.script(traced(plain))(X), plain(X))


def test_jit_trace():
    assert torch.equal(torch.jit.trace(traced(plain), X)(X + 1), plain(X + 1))
    assert torch.equal(torch.jit.trace(traced(Inner()), X)(X + 1), (X + 1) * 2)


# ---------------------------------------------------------------- torch.fx
def test_symbolic_trace():
    outer = torch.fx.symbolic_trace(Outer(traced(Inner())))
    assert torch.equal(outer(X), X * 2 + 1)
    assert torch.equal(torch.fx.symbolic_trace(traced(plain))(X), plain(X))


def test_symbolic_trace_of_a_traced_module_says_what_to_do():
    module = traced(Inner())
    with pytest.raises(NotTraceableError) as caught:
        torch.fx.symbolic_trace(module)
    assert str(caught.value) == no_forward_of_class()
    assert torch.equal(torch.fx.symbolic_trace(module.original)(X), X * 2)
    module(X)
    assert torch.equal(module.graph(X)(X), X * 2)


def test_forward_is_that_of_the_module():
    module = traced(Inner())
    assert torch.equal(module.forward(X), X * 2)
    assert module.forward.__func__ is Inner.forward
    module.forward = lambda x: x * 5
    assert torch.equal(module.original.forward(X), X * 5)
    assert torch.equal(module(X), X * 5)
    del module.forward
    assert torch.equal(module(X), X * 2)


# ---------------------------------------------------------------- constructors of old
@pytest.mark.parametrize(
    "name", ["Float", "Double", "Half", "BFloat16", "Int", "Long", "Short", "Byte", "Char", "Bool"]
)
def test_typed_constructors(name):
    make = getattr(torch, f"{name}Tensor")
    values = [1, 0, 1]

    @traced
    def step(x, k):
        filled = make(3)
        filled.fill_(k)
        return x * make([1, 0, 1]), make(values), filled, make()

    for k in (1, 1, 1, 0):
        expected = (X * make([1, 0, 1]), make(values), torch.full((3,), k, dtype=make.dtype), make())
        assert lazytrace.same(step(X, k), expected, rtol=0, atol=0)
    values[0] = 0
    assert torch.equal(step(X, 1)[1], make([0, 0, 1]))
    assert step.stats().hits >= 2
    assert not step.stats().eager
