"""Programs in files: what a loaded function computes, and what becomes of files that are wrong."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import lazytrace
from lazytrace import FileError, load, same, save, traced
from lazytrace._native import core
from lazytrace.cli import main

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])
ROOT = Path(__file__).resolve().parent.parent


BASE = torch.arange(12.0).reshape(2, 2, 3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.rnn = torch.nn.LSTM(3, 3)
        self.register_buffer("scratch", torch.ones(3), persistent=False)
        self.table = torch.arange(6.0).reshape(2, 3).t()
        self.unused = torch.nn.Linear(1, 1)

    def forward(self, x, *, mask=None):
        x = self.norm(self.linear(x)) * self.scratch
        out, (h, _) = self.rnn(x)
        return {"out": out @ self.table, "h": h, "mask": mask, "twice": (x, x)}


TWO = torch.Size([2])


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


def kept(function, tmp_path, examples, **options):
    path = tmp_path / "kept.zip"
    save(function, path, examples, **options)
    return load(path)


# ---------------------------------------------------------------- what is computed
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_a_module(tmp_path, grad, train):
    net = Net().train(train)
    with torch.set_grad_enabled(grad):
        loaded = kept(traced(net), tmp_path, [X, (X * 2,), {"x": X[:1] if not train else X, "mask": 3}])
        for _ in range(2):
            for args, kwargs in (((X + 1,), {}), ((X,), {"mask": 3} if train else {})):
                a, b = loaded(*args, **kwargs), net(*args, **kwargs)
                assert same(a, b, rtol=1e-5, atol=1e-6)
        assert a["twice"][0] is a["twice"][1]
        assert loaded.training is train
        assert same(dict(loaded.state_dict()), dict(net.state_dict()), rtol=1e-5, atol=1e-6)
        if grad:
            loaded(X)["h"].sum().backward()
            net(X)["h"].sum().backward()
            wanted = {name: p.grad for name, p in net.named_parameters()}
            assert same({name: p.grad for name, p in loaded.named_parameters()}, wanted, atol=1e-6)


def functions():
    weight = torch.randn(3, 3)

    def modes(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ weight
        with torch.no_grad():
            z = y.float() * 2
        return y, z

    return {
        "modes": modes,
        "literals": lambda x: x + torch.tensor([1.0, 2.0, 3.0]).mul_(2),
        "random": lambda x: torch.dropout(x, 0.5, True) + torch.rand(3),
        "lists": lambda x: torch.cat([x, x * 2])[[0, 2], :, None],
        "numbers": lambda x: (x * 2 - 1 / x, x**2, 2 - x, x.clamp(min=0.5), x + 1j),
        "dtypes": lambda x: (
            x.to(torch.float64),
            x.sum(0, dtype=torch.int32),
            torch.ones(2, dtype=torch.bool),
        ),
        "several": lambda x: (*x.topk(2), x.unbind(1), x.split(1), *torch.max(x, 0)),
        "views": lambda x: x.t()[1:].mul(2).view_as(x.t()[1:]),
        "in_place": lambda x: x.mul_(2).add_(1),
        "infinite": lambda x: x.masked_fill(x < 0, float("-inf")).softmax(0),
        "values": lambda x: (x[x > 0], x.nonzero()),
        "constants": lambda x: (x, {"a": [1, None, (2.5, "text")], "dtype": torch.float32}),
        "empty": lambda x: x[:0] * 2,
        "named": lambda x: Pair(x * 2, [x]),
    }


@pytest.mark.parametrize("name", functions())
def test_functions(tmp_path, name):
    function = functions()[name]
    loaded = kept(traced(function), tmp_path, X)
    for x in (X, X.clone() + 0.25):
        with lazytrace.preserve_rng_state():
            found = loaded(x.clone())
        with lazytrace.preserve_rng_state():
            expected = function(x.clone())
        if name == "named":
            assert type(found).__name__ == "Pair"
            assert found._fields == ("left", "right")
            found, expected = tuple(found), tuple(expected)
        assert same(found, expected, rtol=1e-5, atol=1e-6)


def test_named_tuples_of_torch(tmp_path):
    found = kept(traced(lambda x: torch.max(x, 0)), tmp_path, X)(X)
    assert type(found).__name__ == "max"
    assert torch.equal(found.indices, X.max(0).indices)


def test_results_keep_their_identity(tmp_path):
    loaded = kept(traced(lambda x, y: (x, [x, y.mul_(2)])), tmp_path, [(X, X.clone())])
    x, y = X.clone(), X.clone()
    first, (again, second) = loaded(x, y)
    assert first is x
    assert again is x
    assert second is y
    assert torch.equal(y, X * 2)


def test_tuples_stay_tuples(tmp_path):
    """In results, in front of what is there twice, and as defaults; JSON knows lists only."""

    def step(x, k=(1, (2, 3)), *, size=TWO):
        twice = [x * k[0]]
        return (1, (2,)), x.shape, [(3, torch.Size([4]))], twice, twice, size

    step = traced(step)
    loaded = kept(step, tmp_path, X)
    assert torch.equal(loaded(X)[3][0], X)
    for f in (step, loaded):
        numbers, shape, listed, one, two, size = f(X)
        assert (numbers, listed) == ((1, (2,)), [(3, torch.Size([4]))])
        assert [type(shape), type(listed[0][1]), type(size)] == [torch.Size] * 3
        assert one is two
    with pytest.raises(LookupError, match=r"k\[0\] 1 \(int\) -> 2 \(int\)"):
        loaded(X, (2, (2, 3)))


def test_one_sparse_tensor_is_not_two(tmp_path):
    def fn(a, b):
        return a is b, a + b

    one, two = torch.eye(2).to_sparse(), torch.eye(2).to_sparse()
    loaded = kept(traced(fn), tmp_path, [(one, one)])
    assert loaded(one, one)[0]
    with pytest.raises(LookupError):
        loaded(one, two)


def test_zeros_without_memory_are_another_call(tmp_path):
    zeros = torch._efficientzerotensor((2, 3))
    loaded = kept(traced(lambda x: x * 2), tmp_path, X)
    with pytest.raises(LookupError, match="zeros"):
        loaded(zeros)


def test_a_call_that_was_seen_before_is_looked_at_again(tmp_path):
    """What a call must look like is remembered: nothing of it may be left out then."""
    loaded = kept(traced(Net().eval()), tmp_path, X)
    for _ in range(2):
        loaded(X)
        for other, told in (
            (X.double(), "dtype"),
            (X.t().contiguous().t(), "stride"),
            (X.clone().requires_grad_(), "requires_grad"),
            (X[:1], "shape"),
            (torch.nn.Parameter(X, requires_grad=False), "class"),
        ):
            with pytest.raises(LookupError, match=told):
                loaded(other)
        with pytest.raises(LookupError, match="mask"):
            loaded(X, mask=X)
        with pytest.raises(LookupError, match="grad_mode"), torch.no_grad():
            loaded(X)
        with pytest.raises(TypeError, match="unexpected keyword"):
            loaded(X, k=3)
    del loaded.linear.weight
    with pytest.raises(AttributeError, match="weight"):
        loaded(X)


def test_leaves_and_results_are_other_calls(tmp_path):
    def step(x):
        return x * 2

    leaf = X.clone().requires_grad_()
    loaded = kept(traced(step), tmp_path, leaf)
    for _ in range(2):
        loaded(leaf)
        with pytest.raises(LookupError, match="leaf"):
            loaded(leaf * 1)


def test_state_that_is_replaced_is_taken(tmp_path):
    net = torch.nn.Linear(3, 3)
    loaded = kept(traced(net), tmp_path, X)
    for _ in range(2):
        loaded(X)
        net.weight = loaded.weight = torch.nn.Parameter(torch.randn(3, 3))
        net.bias.data.add_(1)
        loaded.bias = net.bias
        assert same(loaded(X), net(X))


def test_only_some_calls_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(lazytrace.loaded, "_CALLS_KEPT", 4)
    step = traced(lambda x, k: x * k, dynamic=False)
    loaded = kept(step, tmp_path, [(X, k) for k in range(10)])
    for k in [*range(10), 7, 9]:
        assert torch.equal(loaded(X, k), X * k)


def test_branches(tmp_path):
    def branch(x):
        return x + 1 if x.sum() > 0 else x - 1

    loaded = kept(traced(branch), tmp_path, [X, -X])
    assert torch.equal(loaded(X), X + 1)
    assert torch.equal(loaded(-X), -X - 1)
    alone = kept(traced(branch), tmp_path, [X])
    with pytest.raises(LookupError, match=r"has no saved program for this call: step 2 gave False. It has 1"):
        alone(-X)


def test_sizes_are_those_of_the_calls(tmp_path):
    fn = traced(lambda x: x * x.shape[0], dynamic=True)
    fn(X)
    loaded = kept(fn, tmp_path, [X, X[:1]])
    assert torch.equal(loaded(X), X * 2)
    assert torch.equal(loaded(X[:1].clone()), X[:1])
    with pytest.raises(LookupError):
        loaded(torch.ones(4, 3))


def test_a_size_that_is_given_back_is_one(tmp_path):
    fn = traced(lambda x: (x * 2, x.shape), dynamic=True)
    fn(X)
    for shape in (kept(fn, tmp_path, [X])(X)[1], kept(fn, tmp_path, [X, X[:1]])(X[:1])[1]):
        assert type(shape) is torch.Size
        assert shape[1:] == X.shape[1:]


def test_a_branch_after_an_effect(tmp_path):
    log = torch.zeros(2, 3)

    def branch(x):
        log.add_(1)
        return x + 1 if x.sum() > 0 else x - 1

    loaded = kept(traced(branch, name="logged"), tmp_path, [X])
    assert torch.equal(loaded(X), X + 1)
    with pytest.raises(lazytrace.ReplayError) as caught:
        loaded(-X)
    assert str(caught.value) == (
        "logged: step 3 gave False, for which no program was saved, after tensors had been written to."
    )
    assert torch.equal(log, torch.zeros(2, 3))


def test_how_calls_bind(tmp_path):
    loaded = kept(traced(lambda x, k=2, *rest, scale=1.0, **more: x * k * scale), tmp_path, [(X,), (X, 3, X)])
    assert torch.equal(loaded(X), X * 2)
    assert torch.equal(loaded(X, 2), X * 2)
    assert torch.equal(loaded(k=2, x=X, scale=1.0), X * 2)
    assert torch.equal(loaded(X, 3, X), X * 3)
    with pytest.raises(LookupError, match=r"k 2 \(int\) -> 4 \(int\)"):
        loaded(X, 4)
    with pytest.raises(LookupError, match=r"k 2 \(int\) -> True \(bool\)"):
        loaded(X, True)
    with pytest.raises(TypeError, match=r"missing a required argument: 'x'"):
        loaded()
    with pytest.raises(LookupError, match=r"other is passed"):
        loaded(X, other=3)


WEIGHT = torch.full((2, 3), 2.0)


def unread(x, batch_idx, mode=print, *, other=None):
    return x * 2


def with_a_tensor(x, weight=WEIGHT, k=3):
    return x * weight * k


def test_parameters_that_nobody_reads(tmp_path):
    loaded = kept(traced(unread), tmp_path, [(X, 0)])
    for args, kwargs in [((X, 1), {}), ((X, object(), "other"), {}), ((X, X), {"other": 3})]:
        assert same(loaded(*args, **kwargs), X * 2)
    with pytest.raises(TypeError, match=r"batch_idx"):
        loaded(X)
    with pytest.raises(LookupError, match=r"x\.dtype"):
        loaded(X.double(), 0)


def test_defaults_that_are_tensors(tmp_path):
    loaded = kept(traced(with_a_tensor), tmp_path, [(X,)])
    assert same(loaded(X), X * 6)
    assert same(loaded(X, WEIGHT + 1), X * 9)
    assert same(loaded(X, k=3), X * 6)
    with pytest.raises(LookupError, match=r"k 3 \(int\) -> 4 \(int\)"):
        loaded(X, k=4)


def test_state_that_requires_gradients_and_is_no_parameter(tmp_path):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.ones(3, requires_grad=True)
            self.alias = self.scale.detach().requires_grad_()
            self.register_buffer("offset", torch.ones(3, requires_grad=True))

        def forward(self, x):
            return x * self.scale * self.alias + self.offset

    net = Scaled()
    loaded = kept(traced(net), tmp_path, [(X,)])
    (loaded(X).sum() + net(X).sum()).backward()
    for name in ("scale", "alias", "offset"):
        assert torch.equal(getattr(loaded, name).grad, getattr(net, name).grad), name
        assert not getattr(loaded, name)._is_view(), name


def test_zeros_of_two_signs_are_two_arguments(tmp_path):
    loaded = kept(traced(lambda x, k: x * k), tmp_path, [(X, 0.0)])
    assert same(loaded(X, 0.0), X * 0.0)
    with pytest.raises(LookupError, match=r"k 0.0 \(float\) -> -0.0 \(float\)"):
        loaded(X, -0.0)


def test_state_that_is_not_dense(tmp_path):
    class Turned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("turned", torch.ones(3, dtype=torch.complex64).conj())

        def forward(self, x):
            return x * self.turned

    with pytest.raises(NotImplementedError, match=r"holds self\.turned, a tensor that is not dense"):
        kept(traced(Turned()), tmp_path, [(X,)])


def test_all_differences_are_named(tmp_path):
    loaded = kept(traced(lambda x, y: x + y, name="add"), tmp_path, [(X, X.clone())])
    for args, told in (
        ((X[:1].clone(), X), "x.shape [2, 3] -> [1, 3]"),
        ((X.t().contiguous().t(), X), "x.stride [3, 1] -> [1, 2]"),
        ((X.double(), X), "x.dtype float32 -> float64"),
        ((X.clone().requires_grad_(), X), "x.requires_grad False -> True"),
        ((X, 3), "y a tensor -> 3 (int)"),
        ((X, [X]), "y: * -> list(*)"),
        ((X, X), "other arguments share memory"),
        ((BASE[0], BASE[1]), "other arguments share memory"),
    ):
        with pytest.raises(LookupError) as caught:
            loaded(*args)
        assert str(caught.value) == f"add has no saved program for this call: {told}. It has 1."
    with torch.no_grad(), pytest.raises(LookupError, match=r"grad_mode True -> False"):
        loaded(X, X.clone())
    with pytest.raises(
        LookupError, match=r"x.dtype float32 -> float64, x.requires_grad False -> True, y.dtype"
    ):
        loaded(X.double().requires_grad_(), X.double())


# ---------------------------------------------------------------- state
def test_state_can_be_given(tmp_path):
    net = Net().eval()
    path = tmp_path / "net.zip"
    save(traced(net), path, X, include_state=False)
    with pytest.raises(
        FileError, match=r"it has no values of linear.weight: pass a state_dict that has them"
    ):
        load(path)
    other = Net().eval()
    state = {**other.state_dict(), "scratch": torch.ones(3)}
    assert same(load(path, state_dict=state)(X), other(X), rtol=1e-5, atol=1e-6)


def test_state_can_be_loaded_and_trained(tmp_path):
    net, other = Net().eval(), Net().eval()
    loaded = kept(traced(net), tmp_path, X)
    loaded.load_state_dict(other.state_dict())
    assert same(loaded(X), other(X), rtol=1e-5, atol=1e-6)
    loaded.double()
    with pytest.raises(LookupError, match=r"linear.weight dtype Float -> Double"):
        loaded(X)


def test_a_file_is_not_the_state_that_it_was_made_of(tmp_path):
    weight = torch.ones(3)
    loaded = kept(traced(lambda x: x * weight), tmp_path, X)
    weight.zero_()
    assert torch.equal(loaded(X), X)
    with pytest.raises(TypeError, match=r"was loaded and is not pickled"):
        loaded.__reduce__()


IN_ANOTHER_PROCESS = """
import sys, torch
import lazytrace
loaded = lazytrace.load(sys.argv[1])
assert not any(name.startswith("tests") for name in sys.modules)
if sys.argv[3] == "True":  # another test has switched this, which cannot be taken back, and the key tells
    torch.sparse.check_sparse_tensor_invariants.disable()
x = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])
found = loaded(x)
torch.save([found["out"].detach(), found["h"].detach()], sys.argv[2])
"""


def test_another_process(tmp_path):
    net = Net().eval()
    save(traced(net), tmp_path / "net.zip", X)
    switched = str(core.describe_ambient()["sparse.check_invariants_set"])
    subprocess.run(
        [
            sys.executable,
            "-c",
            IN_ANOTHER_PROCESS,
            str(tmp_path / "net.zip"),
            str(tmp_path / "out.pt"),
            switched,
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=True,
        timeout=120,
    )
    out, h = torch.load(tmp_path / "out.pt")
    expected = net(X)
    assert same([out, h], [expected["out"].detach(), expected["h"].detach()], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- what cannot be saved
class Holder:
    last = None


def test_what_a_file_cannot_hold(tmp_path):
    holder = Holder()

    @lazytrace.opaque
    def note(x):
        return x + 1

    def writes(x):
        holder.last = x * 2
        return x

    class Batch:
        x = X

    for function, told in (
        (lambda x: note(x), r"calls test_what_a_file_cannot_hold.<locals>.note \(.*\), which stays Python"),
        (writes, "writes .*holder.last, which a loaded program does not have. Return the value instead"),
        (lambda x: (x, Holder), "returns a part of the state"),
    ):
        with pytest.raises(NotImplementedError, match=told):
            save(traced(function), tmp_path / "no.zip", X)
    with pytest.raises(
        NotImplementedError, match=r"takes an argument: batch is of type .*Batch. Only tensors and plain"
    ):
        save(traced(lambda batch: batch.x * 2), tmp_path / "no.zip", (Batch(),))
    base = torch.zeros(4)
    one, two = base[:2], base[1:3]
    with pytest.raises(NotImplementedError, match=r"writes to tensors while .* and .* share memory"):
        save(traced(lambda: one.add_(1) + two), tmp_path / "no.zip", ())
    with pytest.raises(lazytrace.UntraceableError):
        save(traced(lambda x: x * len(x.tolist())), tmp_path / "no.zip", X)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- files that are wrong
@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("files") / "net.zip"
    save(traced(Net().eval()), path, X)
    return path


def changed(file: Path, tmp_path: Path, change) -> Path:
    """The same file with another description."""
    out = tmp_path / "changed.zip"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "lazytrace.json":
                description = json.loads(data)
                change(description)
                data = json.dumps(description).encode()
            new.writestr(info.filename, data)
    return out


def first_operator(description, name: str):
    return next(step for step in description["programs"][0]["steps"] if step["operator"] == name)


def test_the_reason_is_told(file, tmp_path):
    def told(change) -> str:
        with pytest.raises(FileError) as caught:
            load(changed(file, tmp_path, change))
        text = str(caught.value)
        path = f"{tmp_path}/changed.zip cannot be loaded: "
        end = ". Save it again with this version; see docs/export.md."
        assert text.startswith(path), text
        assert text.endswith(end), text
        return text[len(path) : -len(end)]

    assert told(lambda d: d.update(format=3)) == "its format is 3, and this version of lazytrace reads 2"
    assert told(lambda d: d.update(torch="2.9.1")).startswith(
        "it was saved with torch 2.9.1, and this is torch"
    )
    linear = "aten::linear"
    schema = torch.ops.aten.linear.default._schema
    assert told(lambda d: first_operator(d, linear).update(schema="aten::linear(Tensor x) -> Tensor")) == (
        f"the operator aten::linear has changed: it was aten::linear(Tensor x) -> Tensor, and is {schema}"
    )
    assert told(lambda d: first_operator(d, linear).update(operator="mine::linear")) == (
        "torch does not know the operator mine::linear: import the library that registers it"
    )
    assert told(lambda d: first_operator(d, linear).update(operator="aten::from_file")) == (
        "it calls aten::from_file, which loaded programs may not"
    )
    assert told(lambda d: first_operator(d, linear).update(kind="opaque")) == (
        "RuntimeError: a step of kind opaque cannot be loaded"
    )
    assert told(lambda d: first_operator(d, linear)["arguments"].pop()) == (
        "RuntimeError: aten::linear takes more arguments"
    )
    argument = ["register", 10**6]
    assert told(lambda d: first_operator(d, linear)["arguments"].__setitem__(0, argument)) == (
        "RuntimeError: a register is used before it is set"
    )
    argument = ["constant", "text"]
    assert told(lambda d: first_operator(d, linear)["arguments"].__setitem__(0, argument)) == (
        "RuntimeError: a value stands where a tensor must"
    )
    assert told(lambda d: d["state"].pop(0)) == "the tensor linear.weight is missing"
    assert told(lambda d: d["state"][0][3].update(shape=[3, 4])).endswith(" bytes, and 40 belong there")
    assert told(lambda d: d["state"][0][3].update(shape=[3, 1 << 40])).startswith("tensors/")
    assert told(lambda d: d["programs"][0].update(result=["object", 0, ["os:system", []], []])).startswith(
        "IndexError"
    )
    assert told(lambda d: d["programs"][0].pop("steps")) == "KeyError: 'steps'"


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.zip")
    (tmp_path / "text").write_text("no zip")
    with pytest.raises(FileError, match=r"it is no zip file"):
        load(tmp_path / "text")
    torch.save({"a": 1}, tmp_path / "model.pt")
    with pytest.raises(FileError, match=r"lazytrace.json is missing"):
        load(tmp_path / "model.pt")


def test_truncated_files(file, tmp_path):
    data, path = file.read_bytes(), tmp_path / "short.zip"
    for length in range(0, len(data), max(1, len(data) // 40)):
        path.write_bytes(data[:length])
        with pytest.raises(FileError):
            load(path)


def test_damaged_files(file, tmp_path):
    """Bytes of the zip that are others: either the same is loaded, or it is refused."""
    data, path = file.read_bytes(), tmp_path / "damaged.zip"
    source = random.Random(7)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        path.write_bytes(damaged)
        try:
            load(path)
        except FileError:
            continue


def mutated(value, source: random.Random):
    """A description with one part replaced by something else."""
    other = source.choice(
        [None, -1, 0, 10**9, 1.5, "x", [], {}, True, [[0]], {"dtype": "float32"}, "aten::relu"]
    )
    if isinstance(value, dict) and value and ("format" in value or source.random() < 0.95):
        key = source.choice(sorted(value))
        return {**value, key: mutated(value[key], source)}
    if isinstance(value, list) and value and source.random() < 0.95:
        at = source.randrange(len(value))
        if source.random() < 0.1:
            return value[:at] + value[at + 1 :]
        return [*value[:at], mutated(value[at], source), *value[at + 1 :]]
    return other


def test_descriptions_of_another_form(file, tmp_path):
    """Whatever the description says, loading gives a function or a FileError, and calling it never
    crashes."""
    source = random.Random(11)
    refused = 0
    for _ in range(400):
        path = changed(file, tmp_path, lambda d: d.update(mutated(d, source) or {}))
        try:
            loaded = load(path)
        except FileError:
            refused += 1
            continue
        with contextlib.suppress(LookupError, RuntimeError, TypeError, ValueError, IndexError):
            loaded(X)
    assert refused > 100


# ---------------------------------------------------------------- the command line
def test_show(file, capsys, tmp_path):
    assert main(["show", str(file)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("Net: 1 programs, ")
    assert out[1:4] == ["program 0", "  x: float32[2, 3]", "  mask: None"]
    assert any("aten::linear  # test_saved.py:" in line for line in out)
    assert "parameter linear.weight: float32[3, 3]" in out
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("x", "y")
    assert main(["show", str(tmp_path / "other.zip")]) == 2
    assert "lazytrace.json is missing" in capsys.readouterr().err


class Tied(torch.nn.Module):
    """An embedding whose weight is that of the last layer, by object or by memory."""

    def __init__(self, by_memory: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        weight = self.embedding.weight
        self.head.weight = torch.nn.Parameter(weight.data) if by_memory else weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


@pytest.mark.parametrize("by_memory", [False, True])
def test_tied_weights_stay_tied(tmp_path, by_memory):
    torch.manual_seed(0)
    net, ids = Tied(by_memory), torch.tensor([0, 1, 2])
    save(traced(net), tmp_path / "net.zip", ids)
    loaded = load(tmp_path / "net.zip")
    assert len(list(loaded.parameters())) == len(list(net.parameters()))
    for one in (net, loaded):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.5)
        one(ids).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            one.embedding.weight.mul_(2)
    assert torch.equal(net(ids), loaded(ids))
    again = Tied(by_memory)
    again.load_state_dict(loaded.state_dict())
    assert torch.equal(again(ids), net(ids))


def test_weights_that_are_tied_no_longer(tmp_path):
    """A program takes one of the two: a call would go on with a weight that one layer has no more."""
    ids = torch.tensor([0, 1, 2])
    loaded = kept(traced(Tied(by_memory=False)), tmp_path, ids)
    loaded(ids)
    weight = loaded.head.weight
    loaded.head.weight = torch.nn.Parameter(torch.zeros(5, 4))
    with pytest.raises(LookupError, match=r"head\.weight is no longer embedding\.weight"):
        loaded(ids)
    loaded.head.weight = weight
    loaded(ids)


def test_state_of_one_element_that_is_expanded(tmp_path):
    """Its stride is 0, which no view of its bytes takes."""
    scale = torch.ones(1).expand(3)
    loaded = kept(traced(lambda x: x * scale), tmp_path, X)
    assert torch.equal(loaded(X), X)


def test_the_order_of_arguments_is_part_of_a_call(tmp_path):
    def total(**batch):
        return sum(value * (i + 1) for i, value in enumerate(batch.values()))

    x, y = torch.ones(3), torch.full((3,), 10.0)
    save(traced(total), tmp_path / "total.zip", {"x": x, "y": y})
    loaded = load(tmp_path / "total.zip")
    assert torch.equal(loaded(x=x, y=y), total(x=x, y=y))
    with pytest.raises(LookupError, match="the order of the arguments: x, y -> y, x"):
        loaded(y=y, x=x)


# ---------------------------------------------------------------- all recordings that there are
def held(function, tmp_path):
    save(function, tmp_path / "held.zip")
    return load(tmp_path / "held.zip")


def test_all_recordings_are_saved(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout())
    fn = traced(net)
    fn(X)
    net.eval()
    with torch.no_grad():
        fn(X), fn(X[:1])  # sizes are followed by now
    with torch.inference_mode():
        fn(X)
    loaded = held(fn, tmp_path)
    for modes in (torch.no_grad, torch.inference_mode):
        with modes():
            assert torch.equal(loaded(X), net(X))
    with torch.no_grad():
        assert torch.equal(loaded(X[:1]), net(X[:1]))
    with pytest.raises(LookupError):  # that of training is not what the function does now
        loaded(X)


def test_both_ways_of_a_branch_are_saved(tmp_path):
    def step(batch, k, unread, *rest, m=3, **named):
        if batch["x"][0].sum() > 0:
            return {"a": batch["x"][0] * k + rest[0] * m}
        return named["q"] - batch["x"][1][0]

    def call(function, sign=1, k=2.0):
        return function({"x": [X.abs() * sign, (X + 1,)], 3: "t"}, k, object(), X + 2, m=4, q=X + 3)

    fn = traced(step, dynamic=False)
    for sign, k in ((1, 2.0), (-1, 2.0), (1, 3)):
        call(fn, sign, k)
    loaded = held(fn, tmp_path)
    for sign, k in ((1, 2.0), (-1, 2.0), (1, 3)):
        assert lazytrace.same(call(loaded, sign, k), call(step, sign, k), rtol=0, atol=0)


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(12.0).reshape(2, 6)[:, ::2],
        torch.ones(1, 3).expand(4, 3),
        torch.ones(3, requires_grad=True),
        torch.ones(3, requires_grad=True) * 2,
        torch.nn.Parameter(torch.ones(3), False),
        torch.ones(0, 3),
        torch.ones((), dtype=torch.complex64),
    ],
)
def test_tensors_of_all_looks_are_made_up(tmp_path, x):
    fn = traced(lambda x: x * 2 + 1)
    expected = fn(x)
    loaded = held(fn, tmp_path)
    assert torch.equal(loaded(x), expected)
    assert loaded(x).requires_grad == x.requires_grad


def test_methods_are_saved_for_their_instance(tmp_path):
    class Scaled:
        def __init__(self, k):
            self.w = torch.full((3,), k)

        @traced
        def run(self, x, k=2):
            return x * self.w * k

    one, two = Scaled(2.0), Scaled(3.0)
    one.run(X), two.run(X), two.run(X[0])
    loaded = held(one.run, tmp_path)
    assert torch.equal(loaded(X), X * 4)
    with pytest.raises(LookupError):
        loaded(X[0])


def test_what_cannot_be_made_up_is_refused(tmp_path):
    class Options:
        k = 2

    fn = traced(lambda x, options: x * options.k, name="step")
    fn(X, Options())
    with pytest.raises(NotImplementedError) as caught:
        held(fn, tmp_path)
    assert str(caught.value) == (
        "step: no call can be made up for the recording (x: float32[2, 3]): options is of type Options. "
        "Pass example_inputs."
    )
    fn = traced(lambda x, y: x * y)
    fn(X, X)
    with pytest.raises(NotImplementedError, match="y shares memory with another argument"):
        held(fn, tmp_path)
    fn = traced(lambda x: x * 2)
    with torch.autocast("cpu"):
        fn(X)
    with pytest.raises(NotImplementedError, match="it was made in other modes than these"):
        held(fn, tmp_path)
    with torch.autocast("cpu"):
        assert torch.equal(held(fn, tmp_path)(X), X * 2)


def test_a_function_without_recordings(tmp_path):
    fn = traced(lambda x: x * 2, name="step")
    with pytest.raises(LookupError) as caught:
        held(fn, tmp_path)
    assert str(caught.value) == (
        "step has no recording that its state still fits: call it, or pass example_inputs."
    )
    assert not (tmp_path / "held.zip").exists()


# ---------------------------------------------------------------- calls that were looked at before
@pytest.mark.parametrize(
    "result",
    [
        lambda x, y: x + y,
        lambda x, y: (x + y, [y, {"a": x, "b": (3, None)}], {}),
        lambda x, y: {"z": x * 2, 3: [y + 1, x]},
        lambda x, y: [Pair(x + y, 2)],
        lambda x, y: {"one": (pair := [x]), "two": pair},
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_later_calls_give_what_the_first_one_does(tmp_path, result, shared):
    def step(batch, y, unread=None):
        return result(batch["x"], y)

    def call(k):
        x = X + k
        return {"n": 3, "x": x, "m": [None]}, x if shared else X * k

    loaded = kept(traced(step), tmp_path, [call(1)])
    for k in (1, 2, 3):
        found, expected = loaded(*call(k)), step(*call(k))
        if isinstance(expected, list):
            assert found[0]._fields == Pair._fields
            found, expected = found[0]._asdict(), expected[0]._asdict()
        assert same(found, expected, rtol=0, atol=0)
        if isinstance(found, dict) and "one" in found:
            assert found["one"] is found["two"]
        again = loaded(*call(k), unread=torch.ones(3))
        assert same(again[0]._asdict() if isinstance(again, list) else again, expected, rtol=0, atol=0)


def test_state_that_is_replaced_moved_or_gone_between_calls(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).eval()
    loaded = kept(traced(net), tmp_path, [X])
    layer = loaded.get_submodule("0")
    for _ in range(3):
        assert torch.equal(loaded(X), net(X))
    net[0].weight = layer.weight = torch.nn.Parameter(torch.randn(3, 3))
    assert torch.equal(loaded(X), net(X))
    layer.weight = torch.nn.Parameter(torch.ones(3, 3, dtype=torch.double))
    with pytest.raises(LookupError, match=r"0\.weight"):
        loaded(X)
    del layer.weight
    with pytest.raises(AttributeError):
        loaded(X)
    layer.register_parameter("weight", net[0].weight)
    assert torch.equal(loaded(X), net(X))


def test_a_dict_that_has_grown_while_it_was_recorded(tmp_path):
    """Calls know it by its class alone by then; a file knows it by what it holds."""

    @traced
    def step(x, cache):
        if len(cache) < 3:
            cache[len(cache)] = x.clone()
        return x + cache[0]

    cache = {}
    for k in range(6):
        step(torch.ones(3) * k, cache)
    assert lazytrace.handle(step).grown() == {"cache"}
    x = torch.ones(3)
    lazytrace.save(step, tmp_path / "file", (x, cache))
    loaded = lazytrace.load(tmp_path / "file")
    other = {key: value + 5 for key, value in cache.items()}
    assert torch.equal(loaded(x, other), x + other[0])
