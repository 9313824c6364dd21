"""ONNX models of recordings, in onnxruntime: equal to the plain model within 1e-5.

Five of the models are those of transformers, which is large and no part of the test environment:

    pip install transformers
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch

import lazytrace

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MODELS = ("lstm", "cnn", "graph", "digits", "bert", "gpt2", "llama", "t5", "vit")


def needs(*packages: str) -> None:
    for package in packages:
        pytest.importorskip(package, reason=f"pip install {package}")


@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_gives_the_same(name, tmp_path, monkeypatch):
    needs(*PACKAGES)
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    keep = importlib.import_module("keep")
    if name in keep.TRANSFORMERS:
        needs("transformers")
    logging.disable(logging.WARNING)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net, inputs, others = keep.make(name), keep.inputs_of(name), keep.inputs_of(name)
            fast = lazytrace.traced(net)
            fast(**inputs)
            assert bool(keep.onnx(fast, inputs, others, keep.tensors(net(**others)), tmp_path / "net.onnx"))
    finally:
        logging.disable(logging.NOTSET)


def test_several_inputs_and_results(tmp_path):
    needs(*PACKAGES)
    import onnxruntime

    weight = torch.nn.Parameter(torch.randn(3, 3))

    @lazytrace.traced
    def step(batch, k=2.0):
        with torch.no_grad():
            return {"y": batch["x"] @ weight * k, "z": [batch["m"] + 1]}

    def batch():
        return {"x": torch.randn(2, 3), "m": torch.arange(4)}

    step(batch())
    with contextlib.redirect_stdout(None):
        lazytrace.onnx(step, (batch(),), tmp_path / "step.onnx", verbose=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"))
    other = batch()
    given = dict(zip([one.name for one in session.get_inputs()], other.values(), strict=True))
    found = session.run(None, {name: value.numpy() for name, value in given.items()})
    plain = step(other)
    expected = [plain["y"], plain["z"][0]]
    assert lazytrace.same([torch.from_numpy(one) for one in found], expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- what a model does not do
def looks(x):
    return x * 2 if x.sum() > 0 else x * 3


def draws(x):
    return x + torch.rand(3)


def writes(x):
    y = x * 2
    y.add_(1)
    x.mul_(y)
    return y


def does_none_of_it(x):
    y = torch.zeros(3)
    return x if y.sum() == 0 else y


@pytest.mark.parametrize(
    ("step", "lost"),
    [
        (looks, ["takes True for what aten::is_nonzero gives"]),
        (draws, ["draws random numbers of its own for aten::rand"]),
        (writes, ["does not write to arguments or state: aten::mul_"]),
        (does_none_of_it, []),
    ],
)
def test_what_a_model_does_not_do_is_said(step, lost, tmp_path):
    needs(*PACKAGES)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(None):
        warnings.simplefilter("always")
        lazytrace.onnx(lazytrace.traced(step), torch.ones(3), tmp_path / "step.onnx", verbose=False)
    told = [one for one in caught if one.category is lazytrace.TracerWarning]
    assert len(told) == bool(lost)
    for one in told:
        first, *lines = str(one.message).splitlines()
        assert first == f"{step.__name__}: its ONNX model is not all that the function is. It"
        assert [line.partition(" (")[0].strip() for line in lines] == lost
        assert all("test_onnx.py:" in line for line in lines)
        assert one.filename == __file__
