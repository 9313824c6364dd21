"""What becomes of recordings of models: trace, verify, export, unflatten, save, load, ONNX.

    python benchmarks/keep.py [--models bert,gpt2] [--markdown] [--cold]

Eight small models, the classifier and the loss of `examples/digits.py`, and two of six layers: `bert6` is as
wide as the small ones, `encoder6` has 18 MiB of parameters. Those of transformers need that package (random
weights, small configurations), ONNX needs `onnx`, `onnxscript` and `onnxruntime`. What is missing is said and
left out. A loaded model runs in a process of its own. All results are compared with the plain module on new
inputs; times are the best of several, in milliseconds, on one thread. Of "load and first replay" it is the
median of five processes, with the part that the thread spent on a processor: the rest is other processes'.
`--cold` also measures what `torch.compile` takes for the first call in a new process with empty caches.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lazytrace

TOLERANCES = {"rtol": 1e-5, "atol": 1e-5}


# ---------------------------------------------------------------- models
class Residual(nn.Module):
    """A residual block."""

    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x):
        """What the model computes."""
        return x + self.body(x)


class Images(nn.Module):
    """A residual network."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2)
        self.blocks = nn.Sequential(*[Residual(16) for _ in range(6)])
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        """What the model computes."""
        return self.head(self.blocks(self.first(x)).mean((2, 3)))


class Letters(nn.Module):
    """A recurrent network over letters."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.rnn = nn.LSTM(32, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 64)

    def forward(self, x):
        """What the model computes."""
        return self.head(self.rnn(self.embed(x))[0])


class Messages(nn.Module):
    """A graph network."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])

    def forward(self, x, edges):
        """What the model computes."""
        for layer in self.layers:
            sent = torch.zeros_like(x).index_add_(0, edges[1], layer(x)[edges[0]])
            x = torch.relu(x + sent)
        return x.log_softmax(1)


class Encoder(nn.Module):
    """Six layers of torch's own transformer."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, x):
        """What the model computes."""
        return self.layers(x)


def _digits() -> Any:
    """The module of the demo."""
    path = Path(__file__).resolve().parent.parent / "examples" / "digits.py"
    spec = importlib.util.spec_from_file_location("digits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _digits_loss() -> Callable[..., object]:
    digits = _digits()
    return digits.make_loss(digits.Classifier().eval())


def _transformer(name: str) -> nn.Module:
    import transformers as t

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    makers: dict[str, Callable[[], nn.Module]] = {
        "bert": lambda: t.BertModel(t.BertConfig(vocab_size=99, **sizes)),
        "bert6": lambda: t.BertModel(t.BertConfig(vocab_size=99, **{**sizes, "num_hidden_layers": 6})),
        "gpt2": lambda: t.GPT2Model(
            t.GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=4, use_cache=False)
        ),
        "llama": lambda: t.LlamaModel(t.LlamaConfig(vocab_size=99, use_cache=False, **sizes)),
        "t5": lambda: t.T5Model(
            t.T5Config(
                vocab_size=99, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, use_cache=False
            )
        ),
        "vit": lambda: t.ViTModel(t.ViTConfig(image_size=32, patch_size=8, **sizes)),
    }
    return makers[name]()


def _tokens() -> torch.Tensor:
    return torch.randint(1, 60, (2, 12))


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    """Random inputs for a model."""
    if name.startswith("digits"):
        images, labels, _, _ = _digits().load()
        some = torch.randperm(len(labels))[:32]
        return {"images": images[some], **({"labels": labels[some]} if name == "digits loss" else {})}
    if name == "encoder6":
        return {"x": torch.randn(2, 16, 256)}
    if name in ("bert", "bert6", "gpt2", "llama"):
        return {"input_ids": _tokens()}
    if name == "t5":
        return {"input_ids": _tokens(), "decoder_input_ids": _tokens()}
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    if name == "lstm":
        return {"x": _tokens()}
    if name == "cnn":
        return {"x": torch.randn(2, 3, 33, 33)}
    return {"x": torch.randn(50, 32), "edges": torch.randint(0, 50, (2, 200))}


OWN: dict[str, Callable[[], Any]] = {
    "lstm": Letters,
    "cnn": Images,
    "graph": Messages,
    "digits": lambda: _digits().Classifier(),
    "digits loss": _digits_loss,
    "encoder6": Encoder,
}
TRANSFORMERS = ("bert", "gpt2", "llama", "t5", "vit", "bert6")


def make(name: str) -> Any:
    """A model of this name, with the same weights each time."""
    torch.manual_seed(0)
    made = OWN[name]() if name in OWN else _transformer(name)
    return made.eval() if isinstance(made, nn.Module) else made


# ---------------------------------------------------------------- measuring
def best(run: Callable[[], object], count: int = 30) -> float:
    """Milliseconds of the fastest of some runs."""
    for _ in range(3):
        run()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def tensors(value: object) -> list[torch.Tensor]:
    """All tensors in a result, whatever class holds them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for one in value for t in tensors(one)] if isinstance(value, list | tuple) else []


def said(compare: Callable[[], object]) -> str:
    """ "equal", the difference, or what was raised."""
    try:
        found = compare()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:60]}"
    return "equal" if found else str(found)[:60]


IN_ANOTHER_PROCESS = """
import json, sys, time
import torch, lazytrace
torch.set_num_threads(1)
inputs = torch.load(sys.argv[2])
with torch.no_grad():
    start, busy = time.perf_counter(), time.thread_time()
    loaded = lazytrace.load(sys.argv[1])
    found = loaded(**inputs)
    first, busy = time.perf_counter() - start, time.thread_time() - busy
    times = []
    for _ in range(30):
        start = time.perf_counter()
        loaded(**inputs)
        times.append(time.perf_counter() - start)
def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    value = list(value.values()) if isinstance(value, dict) else value
    return [t for one in value for t in tensors(one)] if isinstance(value, (list, tuple)) else []
torch.save(tensors(found), sys.argv[3])
print(json.dumps([first * 1e3, busy * 1e3, min(times) * 1e3]))
"""
# The model is made before the clock starts; `torch.compile` and the first call are what a process waits for.
COMPILED = """
import sys, time, warnings
import torch
sys.path.insert(0, sys.argv[1])
import keep
warnings.simplefilter("ignore")
torch.set_num_threads(1)
net, inputs = keep.make(sys.argv[2]), keep.inputs_of(sys.argv[2])
with torch.no_grad():
    net(**inputs)
    start = time.perf_counter()
    torch.compile(net)(**inputs)
    print((time.perf_counter() - start) * 1e3)
"""


def cold_compile(name: str) -> float:
    """Milliseconds of torch.compile and a first call, in a process of its own with empty caches."""
    with tempfile.TemporaryDirectory() as caches:
        here = str(Path(__file__).resolve().parent)
        known = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": caches, "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}
        command = [sys.executable, "-c", COMPILED, here, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=known)
    return float(done.stdout.split()[-1])


def measure(name: str, folder: Path, cold: bool) -> dict[str, str]:
    """The row of one model."""
    net, row = make(name), {"model": name}
    with torch.no_grad():
        fast = lazytrace.traced(net)
        inputs, others = inputs_of(name), inputs_of(name)
        start = time.perf_counter()
        row["verify"] = said(lambda: lazytrace.verify(fast, (), inputs, **TOLERANCES))
        row["record and verify, ms"] = f"{(time.perf_counter() - start) * 1e3:.0f}"
        expected = tensors(net(**others))
        row["plain, ms"] = f"{best(lambda: net(**inputs)):.3f}"
        row["hit, ms"] = f"{best(lambda: fast(**inputs)):.3f}"
        frozen = lazytrace.trace(net, kwargs=inputs, check_trace=False, freeze=True)
        row["frozen, ms"] = f"{best(lambda: frozen(**inputs)):.3f}"
        row["guards"] = guards_of()

        def equal(found: object) -> object:
            return lazytrace.same(tensors(found), expected, **TOLERANCES)

        row["graph"] = said(lambda: equal(lazytrace.handle(fast).graph(**inputs)(**others)))
        start = time.perf_counter()
        program = None
        try:
            program = lazytrace.export(fast, (), inputs)
        except NotImplementedError as error:
            row["export"] = refusal(error)
        row["export, ms"] = f"{(time.perf_counter() - start) * 1e3:.0f}"
        if program is not None:
            row["export"] = said(lambda: equal(program.module()(**others)))
            row["unflatten"] = said(lambda: equal(torch.export.unflatten(program)(**others)))
        row.update(saved(fast, inputs, others, equal, folder / f"{name}.zip"))
        if cold and "load and first replay, ms" in row:
            row["torch.compile, cold, ms"] = f"{cold_compile(name):.0f}"
        row["onnx"] = said(lambda: onnx(fast, inputs, others, expected, folder / f"{name}.onnx"))
    return row


def refusal(error: NotImplementedError) -> str:
    """The first reason of a refusal."""
    return f"refused: {str(error).splitlines()[1].strip().partition('. ')[0]}"


def guards_of() -> str:
    """How many guards of the newest frozen function are left, of how many."""
    found = json.loads(lazytrace.report(format="json"))["functions"]
    programs = [program for one in found for program in one["programs"] if program["promised"]]
    return f"{programs[-1]['guards']} of {programs[-1]['guards'] + programs[-1]['promised']}"


def saved(fast: object, inputs: dict, others: dict, equal: Callable, path: Path) -> dict[str, str]:
    """Save, and load in another process."""
    try:
        lazytrace.save(fast, path, inputs)
    except NotImplementedError as error:
        return {"loaded": refusal(error)}
    torch.save(others, path.with_suffix(".in"))
    given = [str(path.with_suffix(one)) for one in (".zip", ".in", ".out")]
    times = []
    for _ in range(5):
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS, *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"loaded": done.stderr.strip().splitlines()[-1][:60]}
        times.append(json.loads(done.stdout))
    first, busy, again = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "loaded": said(lambda: equal(torch.load(path.with_suffix(".out")))),
        "load and first replay, ms": f"{first:.1f} ({busy:.1f})",
        "loaded, ms": f"{again:.3f}",
        "file, KiB": f"{path.stat().st_size / 1024:.0f}",
    }


def onnx(fast: object, inputs: dict, others: dict, expected: list[torch.Tensor], path: Path) -> object:
    """Whether onnxruntime gives the same."""
    if importlib.util.find_spec("onnxruntime") is None:
        return "no onnxruntime"
    import onnxruntime

    with contextlib.redirect_stdout(None):
        lazytrace.onnx(fast, (), path, kwargs=inputs, verbose=False)
    session = onnxruntime.InferenceSession(str(path))
    names = [one.name for one in session.get_inputs()]
    given = {name: value.numpy() for name, value in zip(names, others.values(), strict=True)}
    found = [torch.from_numpy(one) for one in session.run(None, given)]
    return lazytrace.same(found, expected, rtol=1e-5, atol=1e-5)


def main() -> None:
    """Measure the models that were asked for, and print a row each."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--models", default=",".join([*TRANSFORMERS, *OWN]))
    asked.add_argument("--markdown", action="store_true")
    asked.add_argument("--cold", action="store_true", help="torch.compile too, which takes a minute a model")
    options = asked.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    has = importlib.util.find_spec("transformers") is not None
    names = [name for name in options.models.split(",") if has or name in OWN]
    if not has:
        print("transformers is not installed: its five models are left out")
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, Path(folder), options.cold) for name in names]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if options.markdown:
        print("| " + " | ".join(columns) + " |")
        print("|" + "---|" * len(columns))
        for row in rows:
            print("| " + " | ".join(row.get(column, "") for column in columns) + " |")
        return
    for row in rows:
        print("  ".join(f"{column}: {row.get(column, '-')}" for column in columns))


if __name__ == "__main__":
    main()
