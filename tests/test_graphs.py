"""Graphs of programs: that they compute the same as the function, or say why there is none."""

from __future__ import annotations

import copy
import os
import pickle
from typing import NamedTuple

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import lazytrace
from lazytrace import handle, traced

X = torch.tensor([-1.0, 0.5, 2.0])
SQUARE = torch.arange(9.0).reshape(3, 3) - 4
aten = torch.ops.aten


def calls(graph: torch.fx.GraphModule) -> list[object]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def assert_same(found: object, expected: object) -> None:
    leaves, spec = torch.utils._pytree.tree_flatten(found)
    wanted, wanted_spec = torch.utils._pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for a, b in zip(leaves, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (
                b.dtype,
                b.shape,
                b.stride(),
                b.requires_grad,
            )
            assert torch.equal(a, b)
        else:
            assert (a, type(a)) == (b, type(b))


# ---------------------------------------------------------------- operators
def in_place(x):
    y = x * 2
    y.add_(1)
    y[0] = x[1]
    return y


def views(x):
    y = x * 1
    y.t()[0].mul_(10)
    return y, y.t(), x[1:]


def list_arguments(x):
    return torch.cat([x, x * 2]), torch.stack([x, x], dim=1), torch.einsum("ij,jk->ik", x, x)


def literals(x):
    return x + torch.tensor([1.0, 2.0, 3.0]), torch.full_like(x, 3), torch.arange(3)


def several(x):
    top, index = x.topk(2)
    a, b, c = x.split(1)
    return top, index, a + c, torch.max(x, dim=1), x.unbind(), b


def keywords(x):
    return torch.sum(x, dim=0, keepdim=True, dtype=torch.float64), torch.add(x, x, alpha=3)


def numbers(x):
    return 2 - x, x**2, x / 3, x > 0, torch.where(x > 0, x, 0.0), x.clamp(min=-1)


def indexing(x):
    return x[x > 0], x[[0, 2]], x[..., None], x[None, 1:, ::2]


@pytest.mark.parametrize(
    "function", [in_place, views, list_arguments, literals, several, keywords, numbers, indexing]
)
def test_a_graph_computes_the_same(function):
    fn = traced(function)
    fn(SQUARE.clone())
    graph = fn.graph(SQUARE)
    for x in (SQUARE.clone(), SQUARE + 0.5 if function is not indexing else SQUARE * 2):
        expected = function(x.clone())
        for _ in range(2):
            assert_same(graph(x.clone()), expected)
    assert fn.stats().calls == 1


def test_a_graph_holds_aten_calls_only():
    fn = traced(lambda x, w: torch.relu(x @ w) + 1)
    fn(SQUARE, SQUARE)
    graph = fn.graph(SQUARE, SQUARE)
    assert isinstance(graph, torch.fx.GraphModule)
    assert calls(graph) == [aten.matmul.default, aten.relu.default, aten.add.Tensor]
    graph.graph.lint()


def test_random_numbers_are_drawn_anew():
    fn = traced(lambda x: x + torch.rand(3))
    fn(X)
    graph = fn.graph(X)
    torch.manual_seed(3)
    expected = [fn.original(X) for _ in range(3)]
    torch.manual_seed(3)
    for out in expected:
        assert torch.equal(graph(X), out)


def test_gradients():
    fn = traced(lambda x: (x.sin() * 2).sum())
    x = X.clone().requires_grad_()
    fn(x)
    assert torch.equal(torch.autograd.grad(fn.graph(x)(x), x)[0], 2 * X.cos())


def test_other_fx_tools_take_a_graph():
    fn = traced(list_arguments)
    fn(SQUARE)
    graph = fn.graph(SQUARE)
    again = torch.fx.symbolic_trace(graph)
    assert_same(again(SQUARE), list_arguments(SQUARE))
    assert_same(torch.fx.Interpreter(graph).run(SQUARE), list_arguments(SQUARE))
    assert_same(copy.deepcopy(graph)(SQUARE), list_arguments(SQUARE))


# ---------------------------------------------------------------- arguments and results
class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_arguments_and_results_are_trees():
    def nested(batch, scale=2.0, *, extra=None):
        y = batch["x"] * scale + batch["more"][0]
        return {"y": y, "pair": Pair(y, batch["x"]), "n": 3, "none": None}, [y + 1, (y,)]

    fn = traced(nested, dynamic=False)
    batch = {"x": X, "more": [X * 2]}
    fn(batch, 3.0)
    assert_same(fn.graph(batch, 3.0)(batch, 3.0), nested(batch, 3.0))
    fn(batch, extra=(1, X), scale=2.5)
    assert_same(
        fn.graph(batch, extra=(1, X), scale=2.5)(batch, extra=(1, X), scale=2.5),
        nested(batch, extra=(1, X), scale=2.5),
    )


def test_inputs_and_state_are_named():
    net = torch.nn.Linear(3, 3)
    fn = traced(lambda batch, mask: net(batch["x"]) * mask)
    fn({"x": SQUARE}, SQUARE)
    graph = fn.graph({"x": SQUARE}, SQUARE)
    assert [node.name for node in graph.graph.nodes if node.op == "placeholder"] == ["batch_x", "mask"]
    assert [name for name, _ in graph.named_parameters()] == ["net.weight", "net.bias"]
    assert graph.get_parameter("net.weight") is net.weight


def test_numbers_among_the_arguments_are_those_of_the_recording():
    fn = traced(lambda x, k, flag: x * k if flag else x)
    fn(X, 2, True)
    graph = fn.graph(X, 2, True)
    assert torch.equal(graph(X, 2, True), X * 2)
    with pytest.raises(ValueError, match="k is 3") as caught:
        graph(X, 3, True)
    assert str(caught.value) == ("k is 3, and the graph was recorded for 2: ask for one of such arguments.")


def test_tensors_among_the_arguments_look_like_those_of_the_recording():
    fn = traced(lambda x: x / x.shape[0])
    fn(X)
    with pytest.raises(
        ValueError, match=r"x is float32\[4\] on cpu, and the graph was recorded for float32\[3\] on cpu"
    ):
        fn.graph(X)(torch.ones(4))
    with pytest.raises(ValueError, match=r"x is float64\[3\]"):
        fn.graph(X)(X.double())
    with pytest.raises(ValueError, match=r"x is float32\[3\] with strides \[2\] on cpu"):
        fn.graph(X)(torch.ones(6)[::2])
    with pytest.raises(ValueError, match="the call is 2 values, and the graph was recorded for 1"):
        fn.graph(X)(X, X)
    # Without checks it is what it says: a division by three.
    assert torch.equal(fn.program(X).to_fx(checks=False)(torch.ones(4)), torch.ones(4) / 3)


def test_results_of_classes():
    class Loose:
        def __init__(self, y):
            self.y = y

    fn = traced(lambda x: Loose(x * 2), name="loose")
    fn(X)
    with pytest.raises(NotImplementedError) as caught:
        fn.graph(X)
    assert str(caught.value) == (
        "loose has no graph for these arguments: the program returns an object of type "
        "test_results_of_classes.<locals>.Loose, which torch's pytree does not know. Register its class with "
        "torch.export.register_dataclass() or return a dict."
    )


def test_tensors_inside_objects_are_not_frozen():
    class Batch:
        def __init__(self, x):
            self.x = x

    fn = traced(lambda batch: batch.x * 2, name="double")
    batch = Batch(X)
    fn(batch)
    with pytest.raises(
        NotImplementedError, match=r"takes batch\.x out of an argument that torch's pytree does not"
    ):
        fn.graph(batch)


def test_tensors_share_memory_as_at_the_recording():
    fn = traced(lambda x, y: x * y)
    fn(X, X)
    graph = fn.graph(X, X)
    assert torch.equal(graph(X, X), X * X)
    for args in ((X, X.clone()), (X, X[:])):
        with pytest.raises(
            ValueError, match="the call is one whose tensors share memory, and the graph was recorded"
        ):
            graph(*args)
    base = torch.arange(4.0)
    apart = traced(lambda x, y: x.add_(1) * y)
    apart(X.clone(), X)
    with pytest.raises(ValueError, match="where others do"):
        apart.graph(X.clone(), X)(base[1:], base[:3])


def test_steps_that_are_no_operators():
    def steps(x):
        if x.sum() > 0:
            y = torch.tensor([1.0, 2.0, 3.0])
            y[0] = x[0]
        return y * x.data

    fn = traced(steps)
    fn(X)
    assert {"literal", "data"} <= {step.kind for step in fn.program(X).steps}
    graph = fn.graph(X)
    for _ in range(2):
        assert_same(graph(X), steps(X))


# ---------------------------------------------------------------- state
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.table = torch.ones(3)

    def forward(self, x):
        x = self.norm(self.linear(x)) * self.scale + self.table
        for block in self.blocks:
            x = block(x)
        return x


def test_state_has_the_names_of_the_module():
    net = Net().eval()
    fn = traced(net)
    fn(SQUARE)
    program = handle(fn).program(SQUARE)
    found = {one.name: (one.kind, one.persistent) for one in program.captures}
    assert found == {
        **{name: ("parameter", True) for name, _ in net.named_parameters()},
        "norm.running_mean": ("buffer", True),
        "norm.running_var": ("buffer", True),
        "scale": ("buffer", False),
        "table": ("constant", True),
    }
    assert all(
        net.state_dict(keep_vars=True).get(one.name, one.tensor) is one.tensor for one in program.captures
    )


def test_steps_know_their_module():
    net = Net().eval()
    fn = traced(net)
    fn(SQUARE)
    steps = handle(fn).program(SQUARE).steps
    assert [(one.operator, one.module) for one in steps] == [
        ("aten::linear", "linear"),
        ("aten::batch_norm", "norm"),
        ("aten::mul", ""),
        ("aten::add", ""),
        ("aten::linear", "blocks.0"),
        ("aten::linear", "blocks.1"),
    ]
    assert steps[0].modules[0] == ("", f"{__name__}.Net", 0)
    assert steps[0].modules[1] == ("linear", "torch.nn.modules.linear.Linear", 0)
    nodes = [node for node in handle(fn).graph(SQUARE).graph.nodes if node.target is aten.linear.default]
    assert list(nodes[1].meta["nn_module_stack"].values())[-1] == (
        "blocks.0",
        "torch.nn.modules.linear.Linear",
    )


def test_parameters_of_a_graph_are_those_of_the_function():
    net = Net()
    fn = traced(net)
    fn(SQUARE)
    graph, other = handle(fn).graph(SQUARE), copy.deepcopy(net)
    graph(SQUARE).sum().backward()
    other(SQUARE).sum().backward()
    for name, parameter in other.named_parameters():
        assert torch.equal(net.get_parameter(name).grad, parameter.grad)
    # Batch norm counts in the graph, too.
    assert int(net.norm.num_batches_tracked) == 2
    assert torch.equal(net.norm.running_mean, other.norm.running_mean)
    with torch.no_grad():
        net.linear.weight.zero_()
    assert torch.equal(graph.get_parameter("linear.weight"), torch.zeros(3, 3))


def test_writes_to_tensors_are_in_the_graph():
    log = torch.zeros(3)

    def fill(x):
        log.add_(x)
        x.mul_(2)
        return log * 1

    fn = traced(fill)
    fn(X.clone())
    log.zero_()
    x = X.clone()
    assert torch.equal(fn.graph(x)(x), X)
    assert torch.equal(x, X * 2)
    assert torch.equal(log, X)


def test_writes_to_python_state_are_refused():
    class Holder:
        h = torch.zeros(2)

    holder = Holder()

    def keep(x):
        holder.h = x + 5
        return x * 2

    fn = traced(keep)
    fn(X)
    with pytest.raises(NotImplementedError) as caught:
        fn.graph(X)
    assert str(caught.value).endswith(
        "holder.h, and a graph writes to no Python state. Return the value instead."
    ), caught.value
    assert [write.path.rpartition("holder")[1:] for write in fn.program(X).writes] == [("holder", ".h")]


# ---------------------------------------------------------------- modes
def test_autocast_inside_and_around():
    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
            with torch.autocast("cpu", enabled=False):
                z = x @ x
        return y, z

    fn = traced(inside)
    fn(SQUARE)
    assert_same(fn.graph(SQUARE)(SQUARE), inside(SQUARE))

    around = traced(lambda x: x @ x)
    with torch.autocast("cpu", torch.bfloat16):
        around(SQUARE)
        graph = around.graph(SQUARE)
    assert graph(SQUARE).dtype is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_no_grad_inside():
    def partly(x):
        y = x * 2
        with torch.no_grad():
            z = y * 3
            w = z + y
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            v = torch.outer(z, z) @ torch.outer(z, z)
        return x * z, w, y, v

    fn = traced(partly)
    x = X.clone().requires_grad_()
    fn(x)
    graph = fn.graph(x)
    found = graph(x)
    assert_same(found, partly(x))
    assert torch.equal(torch.autograd.grad(found[0].sum(), x)[0], X * 6)
    assert torch.is_grad_enabled()
    higher = torch.ops.higher_order
    assert calls(graph).count(higher.wrap_with_set_grad_enabled) == 1
    assert calls(graph).count(higher.wrap_with_autocast) == 1


def test_the_grad_mode_at_the_start_is_the_callers():
    def partly(x):
        y = x * 2
        with torch.enable_grad():
            z = x * 3
        return y, z

    fn = traced(partly)
    x = X.clone().requires_grad_()
    with torch.no_grad():
        fn(x)
        graph = fn.graph(x)
        assert_same(graph(x), partly(x))
    y, z = graph(x)
    assert y.requires_grad
    assert z.requires_grad


# ---------------------------------------------------------------- reads
def test_a_read_is_an_assertion():
    def branch(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    fn = traced(branch)
    fn(X)
    graph = fn.graph(X)
    assert torch.equal(graph(X), X + 1)
    file, line = branch.__code__.co_filename, branch.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError) as caught:
        graph(-X)
    assert str(caught.value) == (
        f"is_nonzero at {file}:{line} gave another value than True, for which the program was recorded"
    )
    with pytest.warns(lazytrace.TracerWarning, match=f"takes True for what aten::is_nonzero gives .*:{line}"):
        assert torch.equal(fn.program(X).to_fx(reads="drop")(-X), -X + 1)
    with pytest.raises(NotImplementedError, match=f"looks at the value of aten::is_nonzero .*:{line}"):
        fn.program(X).to_fx(reads="refuse")
    with pytest.raises(ValueError, match="reads='all': it must be 'assert', 'drop' or 'refuse'"):
        fn.program(X).to_fx(reads="all")


@pytest.mark.parametrize(
    ("function", "same", "other"),
    [
        (lambda x: x * x.sum().item(), X, X * 2),
        (lambda x: x * float(x[0]), torch.tensor([0.0]), torch.tensor([-0.0])),
        (lambda x: x if x[0].item() != x[0].item() else x + 1, X * float("nan"), X),
        (lambda x: x + 1 if torch.equal(x, X) else x, X.clone(), X * 2),
        (lambda x: x + 1 if torch.equal(x, X) else x, X * 2, X.clone()),
        (lambda x: x + 1 if torch.allclose(x, X) else x, X + 1e-7, X * 2),
        (lambda x: x * int(x.long().sum()), X, X * 3),
        (lambda x: x + 1 if bool(x.bool().all()) else x, X, X * 0),
        (lambda x: x * len(x.nonzero()), X, X.clamp(0)),
        (lambda x: x[x > 0] / 2, X, X * -1),
    ],
)
def test_values_that_python_saw_are_checked(function, same, other):
    fn = traced(function, dynamic=False)
    fn(same)
    graph = fn.graph(same)
    assert torch.equal(graph(same), function(same)) or same.isnan().any()
    with pytest.raises(RuntimeError):
        graph(other)


def test_a_read_of_constants_is_left_out():
    def masked(x):
        mask = torch.ones(3)
        if torch.all(mask == 1):
            return x * 2
        return x * mask

    fn = traced(masked)
    fn(X)
    assert len(fn.program(X).reads()) == 1
    assert calls(fn.graph(X)) == [aten.mul.Tensor]


def test_the_branch_is_that_of_the_arguments():
    seen = torch.zeros(())

    def branch(x):
        seen.add_(1)
        if x.sum() > 10:
            return x * 10
        if torch.rand(()) > -1 and x.sum() > 0:
            return x + 1
        return x - 1

    fn = traced(branch)
    for x in (X, -X):
        fn(x)
    before, state = seen.clone(), torch.get_rng_state()
    assert torch.equal(fn.graph(X)(X), X + 1)
    assert torch.equal(fn.graph(-X)(-X), -X - 1)
    assert torch.equal(seen, before + 2)
    torch.set_rng_state(state)
    program = fn.program(X)
    assert torch.equal(torch.get_rng_state(), state), program
    with pytest.raises(LookupError) as caught:
        fn.graph(X * 100)
    assert str(caught.value) == (
        f"{fn.stats().name} has no program for these arguments: they take a branch that was not recorded. "
        "Call it with them first."
    )


# ---------------------------------------------------------------- opaque steps
def test_an_opaque_step_is_an_operator():
    seen = []

    @lazytrace.opaque
    def note(x, scale, pair):
        seen.append(scale)
        return x * scale, {"sum": x + pair[1], "n": 3}

    def noted(x):
        y, more = note(x, 2.0, pair=(1, x))
        return y * more["sum"]

    fn = traced(noted)
    x = X.clone().requires_grad_()
    fn(x)
    graph = fn.graph(x)
    assert len(seen) == 1
    found = graph(x)
    assert_same(found, noted(x))
    assert torch.equal(torch.autograd.grad(found.sum(), x)[0], 8 * X)
    assert any(str(target).startswith("lazytrace_opaque.") for target in calls(graph))


def test_a_custom_operator_is_a_node_by_its_name():
    name = "lt_graphs::parts"

    @torch.library.custom_op(name, mutates_args=("seen",))
    def parts(x: torch.Tensor, k: float, seen: torch.Tensor) -> list[torch.Tensor]:
        seen.add_(1)
        return [torch.from_numpy(x.numpy() * k), x.clone()]

    def uses(x, seen):
        scaled, same = parts(x + 1, k=3.0, seen=seen)
        return scaled * same

    fn = traced(uses)
    fn(X, torch.zeros(1))
    graph = fn.graph(X, torch.zeros(1))
    seen = torch.zeros(1)
    assert_same(graph(X, seen), uses(X, torch.zeros(1)))
    assert seen.item() == 1
    assert torch.ops.lt_graphs.parts.default in calls(graph)


def test_an_opaque_step_that_gives_another_value():
    state = [1]

    @lazytrace.opaque
    def count(x):
        return x * 1, state[0]

    fn = traced(lambda x: count(x)[0] * 2)
    fn(X)
    graph = fn.graph(X)
    assert torch.equal(graph(X), X * 2)
    state[0] = 2
    with pytest.raises(
        RuntimeError, match=r"gave \(None, 2\) beside its tensors, and the program was recorded for"
    ):
        graph(X)


# ---------------------------------------------------------------- the form
def test_nodes_say_what_they_look_like_and_where_they_are_from():
    def double(x):
        return torch.tanh(x) * 2

    fn = traced(double)
    fn(SQUARE)
    node = next(one for one in fn.graph(SQUARE).graph.nodes if one.target is aten.tanh.default)
    assert node.meta["val"].shape == (3, 3)
    assert node.meta["val"].dtype is torch.float32
    line = double.__code__.co_firstlineno + 1
    assert node.meta["stack_trace"] == (
        f'File "{os.path.abspath(__file__)}", line {line}, in double\n    return torch.tanh(x) * 2'
    )


def test_pickling_is_refused():
    fn = traced(lambda x: torch.zeros(3).add_(x))
    fn(X)
    graph = fn.graph(X)
    with pytest.raises(TypeError) as caught:
        pickle.dumps(graph)
    assert str(caught.value) == (
        "the graph of a program cannot be pickled: fx traces it again when it loads, and what zeros() or "
        "rand() gave then becomes a constant. Use lazytrace.save(), or "
        "torch.export.save(lazytrace.export(...))."
    )


def test_compilers_take_a_graph():
    net = Net().eval()
    fn = traced(net)
    fn(SQUARE)
    graph = handle(fn).graph(SQUARE)
    compiled = torch.compile(graph, backend="aot_eager")
    assert torch.allclose(compiled(SQUARE), net(SQUARE))
    exported = torch.export.export(graph, (SQUARE,))
    assert torch.allclose(exported.module()(SQUARE), net(SQUARE))


def test_a_graph_is_called_with_or_without_names():
    step = traced(lambda a, b: a * 2 + b)
    a, b = torch.ones(3), torch.full((3,), 10.0)
    step(b=b, a=a)
    graph = step.graph(b=b, a=a)
    assert torch.equal(graph(a, b), a * 2 + b)
    assert torch.equal(graph(b=b, a=a), a * 2 + b)


def by_item(x):
    mask = torch.zeros(3)
    mask[0] = x[0]
    return x * 2 if mask.sum() > 0 else x * 3


def by_view(x):
    mask = torch.zeros(3)
    mask.view(3, 1)[:1].copy_(x[:1, None])
    return x * 2 if mask.sum() > 0 else x * 3


def by_detached(x):
    mask = torch.zeros(3)
    first, _ = mask.detach().split([1, 2])
    torch.mul(x[:1], 2, out=first)
    return x * 2 if mask.sum() > 0 else x * 3


@pytest.mark.parametrize("function", [by_item, by_view, by_detached])
def test_what_was_written_by_way_of_a_view_is_looked_at(function):
    step = traced(function)
    x = torch.tensor([1.0, 2.0, 3.0])
    step(x)
    graph = step.graph(x)
    assert torch.equal(graph(x), x * 2)
    with pytest.raises(RuntimeError, match="gave another value"):
        graph(-x)


# ---------------------------------------------------------------- values that are frozen
def test_a_graph_without_assertions_says_what_is_frozen():
    def step(x):
        y = torch.zeros(3)
        if x.sum() > 0 and y.sum() == 0:
            return x * 2
        return x

    fn = traced(step)
    fn(X)
    with pytest.warns(lazytrace.TracerWarning) as caught:
        graph = fn.program(X).to_fx(reads="drop")
    first, *lines = str(caught[0].message).splitlines()
    assert first == "step: its graph is not all that the function is. It"
    assert len(lines) == 1
    assert lines[0].startswith("  takes True for what aten::is_nonzero gives (")
    assert caught[0].filename == __file__
    assert torch.equal(graph(-X), X * -2)


def test_defaults_that_are_tensors():
    weight = torch.nn.Parameter(torch.full_like(X, 2.0))

    def step(x, scale=weight, *, parts={"a": X + 1}):  # noqa: B006 (it is a default that holds a tensor)
        return x * scale + parts["a"]

    fn = traced(step)
    wanted = fn(X)
    graph = fn.graph(X)
    assert torch.equal(graph(X), wanted)
    assert graph.get_parameter("default_scale") is weight
    assert torch.equal(lazytrace.export(fn, X).module()(X), wanted)
    wanted = fn(X, X)
    assert torch.equal(fn.graph(X, X)(X, X), wanted)


def test_names_of_the_state_that_a_graph_gives_to_something_else():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.literal0 = torch.nn.Parameter(X * 3)
            self.submod_1 = torch.nn.Linear(3, 3)
            self.register_buffer("default_scale", X * 5)

        def forward(self, x, scale=X + 1):
            with torch.no_grad():
                y = self.submod_1(x) * torch.tensor([1.0, 2.0, 3.0])
            return x * self.literal0 + y * self.default_scale * scale

    net = Named()
    fn = traced(net)
    wanted = fn(X)
    graph = fn.graph(X)
    assert torch.equal(graph(X), wanted)
    assert graph.get_parameter("literal0") is net.literal0
    assert torch.equal(lazytrace.export(fn, X).module()(X), wanted)


def test_a_keyword_with_the_name_of_a_parameter_that_is_passed_by_position():
    def step(a, a_, /, **named):
        return a * a_ - named["a"]

    fn = traced(step)
    wanted = fn(X, X, a=X * 2)
    assert torch.equal(fn.graph(X, X, a=X * 2)(X, X, a=X * 2), wanted)


# ---------------------------------------------------------------- calls that look otherwise
def test_the_order_of_keywords_is_asked():
    def step(scale=1.0, **named):
        first, second = named.values()
        return (first - second) * scale

    fn = traced(step)
    fn(a=X, b=X * 2, scale=3.0)
    graph = fn.graph(a=X, b=X * 2, scale=3.0)
    assert torch.equal(graph(scale=3.0, a=X, b=X * 2), X * -3)
    with pytest.raises(ValueError, match="the call is one with") as caught:
        graph(b=X * 2, a=X, scale=3.0)
    assert str(caught.value) == (
        "the call is one with **kwargs b, a, in this order, and the graph was recorded for one with "
        "**kwargs a, b, in this order: ask for one of such arguments."
    )


@pytest.mark.parametrize(
    "other",
    [
        {"b": X * 2, "a": X},
        {"a": X, "c": X * 2},
        [X, X * 2],
        {"a": X},
        {"a": X, "b": [X * 2]},
    ],
)
def test_what_containers_hold_is_asked_in_its_order(other):
    def step(batch):
        first, second = batch.values()
        return first - second

    fn = traced(step)
    batch = {"a": X, "b": X * 2}
    fn(batch)
    graph = fn.graph(batch)
    assert torch.equal(graph(batch), -X)
    with pytest.raises(ValueError, match="and the graph was recorded for"):
        graph(other)


@pytest.mark.parametrize("recorded", [False, True])
def test_gradients_that_arguments_require_are_asked(recorded):
    fn = traced(lambda x: x * 2 if x.requires_grad else x * 3)
    x, other = X.clone().requires_grad_(recorded), X.clone().requires_grad_(not recorded)
    fn(x)
    graph = fn.graph(x)
    assert torch.equal(graph(x), fn(x))
    with pytest.raises(ValueError, match="that requires grad"):
        graph(other)


@pytest.mark.parametrize("leaf", [False, True])
def test_a_branch_is_found_for_arguments_that_require_gradients(leaf):
    def made(x):
        x = x.clone().requires_grad_()
        return x if leaf else x * 1

    fn = traced(lambda x: x * 2 if x.sum() > 0 else x * 3)
    x = made(X.abs())
    fn(x), fn(made(-X.abs()))
    assert torch.equal(fn.graph(x)(x), x * 2)


@pytest.mark.parametrize(
    "tool",
    [
        lambda graph, x, q: torch.compile(graph, backend="eager", fullgraph=True)({"x": x}, q=q),
        lambda graph, x, q: torch.export.export(graph, ({"x": x},), {"q": q}).module()({"x": x}, q=q),
        lambda graph, x, q: torch.export.export(graph, ({"x": x},), {"q": q}, strict=True).module()(
            {"x": x}, q=q
        ),
        lambda graph, x, q: make_fx(lambda x, q: graph({"x": x}, q=q))(x, q)(x, q),
        lambda graph, x, q: torch.vmap(lambda q: graph({"x": x}, q=q))(q[None])[0],
        lambda graph, x, q: torch.func.vjp(lambda q: graph({"x": x}, q=q), q)[0],
        lambda graph, x, q: torch.func.functional_call(graph, {}, ({"x": x},), {"q": q}),
    ],
)
def test_what_a_graph_asks_is_no_obstacle_to_tools(tool):
    torch._dynamo.reset()
    fn = traced(lambda batch, k=2.0, **named: batch["x"] * k + named["q"])
    fn({"x": X}, q=X + 1)
    assert torch.equal(tool(fn.graph({"x": X}, q=X + 1), X * 3, X), X * 3 * 2 + X)
