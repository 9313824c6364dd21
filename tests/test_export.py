"""Programs for torch.export and ONNX."""

from __future__ import annotations

import copy
import importlib.machinery
import importlib.util
import io
import os

import pytest
import torch

import lazytrace
from lazytrace import export, handle, same, traced

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])


class Block(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv = torch.nn.Conv2d(width, width, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)) + x)


class Images(torch.nn.Module):
    """A residual network with a block that is used twice, a buffer and a constant."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 4, 3)
        self.blocks = torch.nn.Sequential(Block(4), Block(4))
        self.register_buffer("mean", torch.tensor(0.1))
        self.register_buffer("scratch", torch.tensor(0.5), persistent=False)
        self.offset = torch.tensor(0.2)
        self.head = torch.nn.Linear(4, 3)
        self.unused = torch.nn.Linear(1, 1)

    def forward(self, images, *, scale=1.0):
        x = self.blocks(self.blocks(self.first((images - self.mean) * scale)))
        x = x.mean((2, 3)) + self.offset * self.scratch
        return {"logits": self.head(x), "features": (x, scale, None)}


class Tokens(torch.nn.Module):
    """A recurrent network over embedded tokens, with a mask that is made inside when none is passed."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.rnn = torch.nn.LSTM(6, 5, batch_first=True)
        self.head = torch.nn.Linear(5, 11, bias=False)

    def forward(self, tokens, mask=None):
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        x = self.embed(tokens)
        if not torch.all(mask):
            x = x * mask[..., None]
        out, (h, c) = self.rnn(x)
        return self.head(out), h, c


class Messages(torch.nn.Module):
    """A graph network: messages along edges, summed at the nodes."""

    def __init__(self):
        super().__init__()
        self.weigh = torch.nn.Linear(4, 4)
        self.update = torch.nn.Linear(8, 4)

    def forward(self, x, edges):
        source, target = edges
        total = torch.zeros_like(x).index_add_(0, target, self.weigh(x)[source])
        return self.update(torch.cat([x, total], dim=1)).log_softmax(1)


class Attention(torch.nn.Module):
    """One layer of a transformer, as its encoder has it, under autocast and with a part without gradients."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        with torch.no_grad():
            positions = torch.arange(x.shape[1], dtype=x.dtype)
            bias = -(positions[:, None] - positions).abs()
        with torch.autocast("cpu", torch.bfloat16):
            out = torch.nn.functional.scaled_dot_product_attention(
                self.q(x), self.k(x), self.v(x), bias.bfloat16()
            )
        return self.norm(x + out)


CASES = {
    "images": (Images, lambda: ((torch.randn(2, 1, 6, 6),), {"scale": 2.0})),
    "tokens": (Tokens, lambda: ((torch.randint(0, 11, (2, 4)),), {})),
    "messages": (Messages, lambda: ((torch.randn(5, 4), torch.randint(0, 5, (2, 7))), {})),
    "attention": (Attention, lambda: ((torch.randn(2, 4, 8),), {})),
}


def made(name: str, *, train: bool = False):
    make, inputs = CASES[name]
    torch.manual_seed(3)
    net = make().train(train)
    return net, traced(net), inputs


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("train", [False, True])
def test_exported_programs_compute_the_same(name, train):
    net, fn, inputs = made(name, train=train)
    args, kwargs = inputs()
    before = copy.deepcopy(net.state_dict())
    program = export(fn, args, kwargs)
    assert same(dict(net.state_dict()), dict(before), rtol=0, atol=0)
    program.validate()
    twin = copy.deepcopy(net)
    for _ in range(2):
        args, kwargs = inputs()
        assert same(
            program.module()(*args, **kwargs), copy.deepcopy(twin)(*args, **kwargs), rtol=1e-5, atol=1e-6
        )
        flat = torch.export.unflatten(copy.deepcopy(program))
        assert same(flat(*args, **kwargs), copy.deepcopy(twin)(*args, **kwargs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_saved_by_torch(name):
    net, fn, inputs = made(name)
    args, kwargs = inputs()
    buffer = io.BytesIO()
    torch.export.save(export(fn, args, kwargs), buffer)
    buffer.seek(0)
    args, kwargs = inputs()
    assert same(
        torch.export.load(buffer).module()(*args, **kwargs), net(*args, **kwargs), rtol=1e-5, atol=1e-6
    )


def test_gradients_of_an_exported_program():
    net, fn, inputs = made("images", train=True)
    args, kwargs = inputs()
    program, twin = export(fn, args, kwargs), copy.deepcopy(net)
    module = program.module()
    module(*args, **kwargs)["logits"].sin().sum().backward()
    twin(*args, **kwargs)["logits"].sin().sum().backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert same(
        gradients, {name: p.grad for name, p in twin.named_parameters() if name in gradients}, atol=1e-5
    )
    assert len(gradients) == 12


def test_names_and_kinds():
    net, fn, inputs = made("images")
    args, kwargs = inputs()
    program = export(fn, args, kwargs)
    signature = program.graph_signature
    assert set(signature.parameters) == {n for n, _ in net.named_parameters() if not n.startswith("unused")}
    assert "blocks.1.norm.running_mean" in signature.buffers
    assert list(signature.non_persistent_buffers) == ["scratch"]
    assert list(signature.lifted_tensor_constants) == ["offset"]
    assert signature.user_inputs == ("images", 2.0)
    assert set(program.state_dict) == set(net.state_dict())
    assert program.state_dict["head.weight"] is net.head.weight
    assert {entry.fqn for entry in program.module_call_graph} >= {
        "",
        "blocks.0.conv",
        "head",
    }


def test_writes_to_buffers_are_found_by_decompositions():
    _, fn, inputs = made("images", train=True)
    args, kwargs = inputs()
    functional = export(fn, args, kwargs).run_decompositions()
    assert "blocks.0.norm.running_mean" in functional.graph_signature.buffers_to_mutate.values()


def test_compiled_by_others():
    net, fn, inputs = made("attention")
    args, kwargs = inputs()
    module = export(fn, args, kwargs).module()
    compiled = torch.compile(module, backend="aot_eager")
    assert same(compiled(*args, **kwargs), net(*args, **kwargs), rtol=1e-2, atol=1e-2)


def test_a_function_can_be_exported():
    net = torch.nn.Linear(3, 2)
    table = torch.ones(2)

    def step(batch, k=2):
        return net(batch["x"]) * table * k + torch.tensor([1.0, 2.0])

    program = export(traced(step), ({"x": X}, 3))
    assert set(program.state_dict) == {"net.weight", "net.bias"}
    assert list(program.graph_signature.lifted_tensor_constants) == ["table", "literal0"]
    assert same(program.module()({"x": X + 1}, 3), step({"x": X + 1}, 3))
    method = traced(net)
    assert same(export(method, X).module()(X), net(X))


def test_a_read_is_asserted():
    fn = traced(lambda x: x * 2 if x.sum() > 0 else x)
    module = export(fn, X).module()
    assert same(module(X), X * 2)
    with pytest.raises(RuntimeError, match=r"is_nonzero at .* gave another value than True"):
        module(-X)


# ---------------------------------------------------------------- what cannot be exported
class Holder:
    last = None


def obstacle_of(function, *args) -> str:
    fn = traced(function, name="step")
    fn(*args)
    found = fn.exportable(*args)
    assert not found
    with pytest.raises(NotImplementedError) as caught:
        export(fn, args)
    told = "".join(f"\n  {line}" for line in found.obstacles)
    assert str(caught.value) == f"step cannot be exported for these arguments. The program{told}"
    assert str(found) == f"no:{told}"
    return found.obstacles[0]


def here(function, offset: int = 0) -> str:
    code = function.__code__
    return f"{os.path.abspath(code.co_filename)}:{code.co_firstlineno + offset}"


def test_obstacles():
    holder = Holder()

    def writes(x):
        holder.last = x * 2
        return x

    @lazytrace.opaque
    def note(x):
        return x + 1

    def calls(x):
        return note(x)

    def sizes(x):
        return x[x > 0]

    assert "last, and a graph writes to no Python state. Return the value instead." in obstacle_of(writes, X)
    assert obstacle_of(calls, X) == (
        f"calls test_obstacles.<locals>.note ({here(calls, 1)}), which stays Python. Take that out of the "
        "function, or register it with torch.library.custom_op()."
    )
    assert obstacle_of(sizes, X) == (
        f"makes a tensor whose size follows from values: aten::index ({here(sizes, 1)}). Use an operator "
        f"with a "
        "fixed size, such as torch.where()."
    )
    assert obstacle_of(lambda x: {1: x, "k": Holder()}, X).endswith("or return a dict.")


def test_a_custom_operator(tmp_path):
    @torch.library.custom_op("lt_export::halves", mutates_args=())
    def halves(x: torch.Tensor, k: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(x.numpy() * k), x.clone()

    halves.register_fake(lambda x, k: (torch.empty_like(x), torch.empty_like(x)))

    def uses(x):
        scaled, same = torch.ops.lt_export.halves(x + 1, 0.5)
        return scaled * same

    fn = traced(uses)
    for _ in range(2):  # torch makes what it needs at the first call of an operator
        fn(X)
    assert fn.exportable(X)
    program = export(fn, X)
    assert torch.ops.lt_export.halves.default in [node.target for node in program.graph.nodes]
    assert same(program.module()(X), uses(X))
    with pytest.raises(NotImplementedError) as raised:
        lazytrace.save(fn, tmp_path / "halves.lt", X)
    assert str(raised.value).splitlines()[1:] == [
        f"  calls the custom operator lt_export::halves ({here(uses, 1)}), which stays Python. "
        "Hand it on as a graph, or as an exported program."
    ]


def test_an_operator_of_a_library_is_exported_by_its_name():
    library = torch.library.Library("lt_export", "FRAGMENT")
    library.define("scaled(Tensor x, float k) -> Tensor")
    library.define("bump(Tensor(a!) x, float k) -> Tensor(a!)")
    numpys = {"k": 2.0}  # of a closure: the operators are steps

    def bump(x, k):
        x.numpy()[...] += k * numpys["k"]
        return x

    library.impl("scaled", lambda x, k: torch.from_numpy(x.numpy() * k * numpys["k"]), "CPU")
    library.impl("scaled", lambda x, k: torch.empty_like(x), "Meta")
    library.impl("bump", bump, "CPU")
    library.impl("bump", lambda x, k: x, "Meta")

    def uses(x):
        y = torch.ops.lt_export.scaled(x + 1, 0.5)
        return torch.ops.lt_export.bump(y, 3.0) * y

    fn = traced(uses)
    for _ in range(4):
        fn(X)
    assert fn.stats().hits
    program = export(fn, X)
    names = [str(node.target) for node in program.graph.nodes]
    assert "lt_export.scaled.default" in names
    assert "lt_export.bump.default" in names
    assert same(program.module()(X), uses(X))
    assert same(fn.graph(X)(X), uses(X))


def test_an_operator_that_gives_a_number_cannot_be_exported():
    @torch.library.custom_op("lt_export::largest", mutates_args=())
    def largest(x: torch.Tensor) -> float:
        return float(x.max())

    fn = traced(lambda x: x / largest(x))
    for _ in range(2):
        fn(X)
    (told,) = fn.exportable(X).obstacles
    assert told.startswith("calls the custom operator lt_export::largest (")
    assert same(fn.graph(X)(X), X / X.max())


def test_backward_hooks_of_a_module(tmp_path):
    """They are there for gradients; a program that was recorded without these does without them."""
    net = torch.nn.Sequential(torch.nn.Linear(X.shape[-1], 2), torch.nn.Tanh())
    net[1].register_full_backward_hook(lambda module, given, got: None)
    fn = traced(net)
    fn(X)
    handle = lazytrace.handle(fn)
    told = "has backward hooks of modules. Take them off, or hand it on as recorded under no_grad()."
    assert handle.exportable(X).obstacles == (told,)
    with pytest.raises(NotImplementedError, match="has backward hooks of modules"):
        lazytrace.save(fn, tmp_path / "net.lt", X)
    with torch.no_grad():
        fn(X)
        assert same(export(fn, X).module()(X), net(X))


def test_what_can_be_exported_says_yes():
    fn = traced(lambda x: x * 2)
    with pytest.raises(LookupError):
        fn.exportable(X)
    fn(X)
    assert fn.exportable(X)
    assert str(fn.exportable(X)) == "yes"
    assert handle(fn).exportable(X)


# ---------------------------------------------------------------- onnx


def test_onnx_says_what_is_missing(tmp_path, monkeypatch):
    def find(name, *rest):
        return None if name in ("onnx", "onnxscript") else importlib.machinery.PathFinder.find_spec(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(ImportError) as caught:
        lazytrace.onnx(traced(lambda x: x * 2), X, tmp_path / "m.onnx")
    assert str(caught.value) == (
        "lazytrace.onnx needs onnx and onnxscript, which are not installed: pip install onnx onnxscript"
    )


@pytest.mark.parametrize(
    "second", [lambda x: x, lambda x: x[:], lambda x: x.t()], ids=["same", "view", "turned"]
)
def test_arguments_that_share_memory_are_inputs_of_their_own(second):
    x = torch.ones(3, 3)
    program = export(traced(lambda a, b: a * 2 + b), (x, second(x))).module()
    assert torch.equal(program(x, torch.zeros(3, 3)), x * 2)


# ---------------------------------------------------------------- arguments that share memory
def sharing_call(kind):
    tensors, x = {"a": X.clone(), "b": X + 2, "c": X * 3}, torch.arange(1.0, 7.0)
    return (x[:3], x[1:4], x[:3]) if kind == "views" else tuple(tensors[name] for name in kind)


@pytest.mark.parametrize(
    "step",
    [
        lambda a, b, c: a - b + c,
        lambda a, b, c: (a.mul_(2), b * a - c)[1],
        lambda a, b, c: [a.add_(1), b.mul_(a), c],
        lambda a, b, c: torch.add(a, 1, out=b) * c,
    ],
)
@pytest.mark.parametrize("kind", ["aab", "aba", "baa", "aaa", "abc"])
def test_an_exported_program_computes_what_the_call_does(step, kind):
    check_sharing(step, kind)


@pytest.mark.parametrize(
    "step",
    [lambda a, b, c: a - b + c, lambda a, b, c: (a.mul_(2), b * a - c)[1], lambda a, b, c: b.add_(1) + a],
)
def test_views_of_one_tensor_are_exported(step):
    check_sharing(step, "views")


def check_sharing(step, kind):
    fn, exported, plain = traced(step), sharing_call(kind), sharing_call(kind)
    found = export(fn, sharing_call(kind)).module()(*exported)
    assert same(found, step(*plain), rtol=0, atol=0)
    assert same(exported, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    "step",
    [
        lambda a, b, c: a * 2 if a is b else a + b * 10,
        lambda a, b, c: a - c if a is b else c - a,
        lambda a, b, c: a * torch.tensor(2.0 if a is b else 3.0),
        lambda a, b, c: (a, c) if a is b else (a, b),
        lambda a, b, c: a * 2 if a.data_ptr() == b.data_ptr() else a,
    ],
)
def test_another_way_for_one_tensor_is_not_exported(step):
    fn = traced(step, name="step")
    with pytest.raises((NotImplementedError, lazytrace.UntraceableError)):
        export(fn, sharing_call("aac"))
    a, b, c = sharing_call("abc")
    if not fn.stats().eager:
        assert same(export(fn, (a, b, c)).module()(a, b, c), step(a, b, c), rtol=0, atol=0)


def test_the_refusal_of_shared_memory_says_what_to_do():
    fn = traced(lambda a, b: a * 2 if a is b else a + b, name="step")
    with pytest.raises(NotImplementedError) as caught:
        export(fn, (X, X))
    assert str(caught.value) == (
        "step cannot be exported for these arguments. The program\n"
        "  takes another way where arguments share memory, and has an input for each when it is exported. "
        "Pass tensors that share none."
    )
