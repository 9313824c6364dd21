"""Files of saved programs that are damaged in every way: loading gives a function or a `FileError`.

python -m tests.soundness.hostile_files --seconds 600 [--guided] [--wrong folder]

Each file is a sound one with some changes: values, subtrees of others, operators, bytes of the zip. What
loads is called, too. A process of its own does the work, and its crash is found by the number of the case,
which was written down before. With `--guided` the package atheris (https://github.com/google/atheris) leads
the changes to code that was not reached before.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import types
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import lazytrace
from lazytrace.loaded import FileError, describe_file, load

_MEMORY = 12 << 30
# What a call of a program may raise, that computes something else than it should.
_CALL_RAISES = (LookupError, RuntimeError, TypeError, ValueError, NotImplementedError, OverflowError)
_OTHERS = [
    None,
    -1,
    0,
    1,
    2,
    7,
    10**9,
    1 << 62,
    -(1 << 63),
    1 << 64,
    1.5,
    float("nan"),
    "",
    "x",
    [],
    {},
    True,
    False,
]
_OTHERS += [
    [0],
    [[0]],
    {"dtype": "float32"},
    "aten::relu",
    "register",
    "constant",
    "float64",
    "meta",
    "cuda:0",
    "sparse_coo",
]

Parts = dict[str, bytes]


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rnn = torch.nn.BatchNorm1d(3), torch.nn.LSTM(3, 3)
        self.table = torch.arange(6.0).reshape(2, 3).t()

    def forward(self, x: torch.Tensor, *, mask: object = None) -> object:
        x = self.norm(x)
        out, (h, _) = self.rnn(x)
        return {"out": out @ self.table, "h": h, "mask": mask, "twice": (x, x)}


X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]])


def seeds(folder: Path) -> list[Parts]:
    """Sound files, as what is in them by name."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    functions: list[tuple[Any, Any]] = [
        (Recurrent().eval(), X),
        (Recurrent().train(), X),
        (lambda x: x * 2 if x.sum() > 0 else x - torch.tensor([1.0, 2.0, 3.0]), [X, -X]),
        (lambda x, k=(1, 2): {"a": [x[0] * k[0], x.t()], "b": torch.zeros(2, dtype=torch.long)}, X),
        (lambda x: x.add_(1).index_select(0, torch.tensor([1, 0])).to(torch.float64), X),
        (layer, torch.ones(1, 3, 4)),
    ]
    found = []
    for number, (function, examples) in enumerate(functions):
        path = folder / f"seed{number}.zip"
        with torch.no_grad():
            lazytrace.save(lazytrace.traced(function), path, examples)
        with zipfile.ZipFile(path) as file:
            found.append({info.filename: file.read(info) for info in file.infolist()})
    return found


# ---------------------------------------------------------------- changes
def pick(value: Any, source: random.Random) -> tuple[Any, Any]:
    """A place, found by going down: places deep inside are as likely as those above them."""
    while True:
        keys = sorted(value) if isinstance(value, dict) else range(len(value))
        key = source.choice(keys)
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or source.random() < 0.1:
            return value, key
        value = inner


def change_value(description: Any, others: list[Any], source: random.Random) -> None:
    container, key = pick(description, source)
    container[key] = copy.deepcopy(source.choice(_OTHERS))


def change_number(description: Any, others: list[Any], source: random.Random) -> None:
    for _ in range(50):
        container, key = pick(description, source)
        if isinstance(container[key], int):
            container[key] += source.choice([-2, -1, 1, 2, 1000, 1 << 31, 1 << 62])
            return


def remove(description: Any, others: list[Any], source: random.Random) -> None:
    container, key = pick(description, source)
    del container[key]


def repeat(description: Any, others: list[Any], source: random.Random) -> None:
    container, key = pick(description, source)
    if isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))


def graft(description: Any, others: list[Any], source: random.Random) -> None:
    """A part of another file, or of another place, in the place of this."""
    giver, giver_key = pick(source.choice([description, *others]), source)
    container, key = pick(description, source)
    container[key] = copy.deepcopy(giver[giver_key])


def change_operator(description: Any, others: list[Any], source: random.Random) -> None:
    """Another operator of torch, with the schema that it has."""
    steps = [step for program in description.get("programs", []) for step in program.get("steps", [])]
    if not steps:
        return
    schema = source.choice(schemas())
    step = source.choice(steps)
    if isinstance(step, dict):
        step.update(operator=schema.name, overload=schema.overload_name, schema=str(schema))


_CHANGES: list[Callable[[Any, list[Any], random.Random], None]]
_CHANGES = [change_value, change_number, remove, repeat, graft, change_operator]


def schemas() -> list[Any]:
    """Of torch's operators."""
    if not _schemas:
        _schemas.extend(s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::"))
    return _schemas


_schemas: list[Any] = []


def changed(parts: list[Parts], source: random.Random) -> bytes:
    """A file with some changes."""
    descriptions = [json.loads(one["lazytrace.json"]) for one in parts]
    at = source.randrange(len(parts))
    description, files = descriptions[at], dict(parts[at])
    for _ in range(source.randrange(1, 4)):
        with contextlib.suppress(
            AttributeError, IndexError, KeyError, TypeError, ValueError
        ):  # nothing is left to change
            source.choice(_CHANGES)(description, descriptions, source)
    files["lazytrace.json"] = json.dumps(description).encode()
    if source.random() < 0.1:
        name = source.choice(sorted(files))
        files[name] = files[name][: source.randrange(len(files[name]) + 1)]
    out = io.BytesIO()
    with zipfile.ZipFile(
        out, "w", zipfile.ZIP_DEFLATED if source.random() < 0.05 else zipfile.ZIP_STORED
    ) as new:
        for name, data in files.items():
            new.writestr(name, data)
    data = bytearray(out.getvalue())
    if source.random() < 0.1:
        for _ in range(source.randrange(1, 5)):
            data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data)


# ---------------------------------------------------------------- running
def try_file(path: Path) -> str:
    """How a file ends; raises whatever neither loading nor a call may raise."""
    with contextlib.suppress(FileError):
        describe_file(path)
    try:
        loaded = load(path)
    except FileError:
        return "refused"
    for example in (X, torch.ones(1, 3, 4)):
        try:
            with torch.no_grad():
                loaded(example.clone())
        except _CALL_RAISES:
            continue
        return "called"
    return "loaded"


def work(start: int, stop: float, folder: Path) -> None:
    """Case after case, the number of each written down before it is tried."""
    parts, ended = seeds(folder), Counter[str]()
    path, at = folder / "case.zip", folder / "number"
    number = start
    while time.time() < stop:
        at.write_text(str(number))
        path.write_bytes(changed(parts, random.Random(number)))
        try:
            ended[try_file(path)] += 1
        except Exception as error:
            ended["wrong"] += 1
            print(f"case {number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        number += 1
    at.write_text(str(number))
    (folder / f"ended{start}.json").write_text(json.dumps(ended))


class Drawn(random.Random):
    """Draws from bytes, and zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._bits, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def getrandbits(self, k: int, /) -> int:
        found = self._bits & ((1 << k) - 1)
        self._bits >>= k
        return found

    def random(self) -> float:
        return self.getrandbits(16) / (1 << 16)


def functions_of(name: str) -> list[types.FunctionType]:
    """The functions of a module, methods of its classes among them."""
    own = [one for one in vars(sys.modules[name]).values() if getattr(one, "__module__", "") == name]
    holders = [one for one in own if isinstance(one, type)]
    inner = [one for holder in holders for one in vars(holder).values()]
    return [one for one in [*own, *inner] if isinstance(one, types.FunctionType)]


def guided(folder: Path, seconds: float) -> None:
    """The same, led by what code the cases reach."""
    import atheris  # type: ignore[import-not-found]

    parts, path = seeds(folder), folder / "case.zip"

    def one(data: bytes) -> None:
        path.write_bytes(changed(parts, Drawn(data)))
        try_file(path)

    for name in ("lazytrace.loaded", "lazytrace.programs.saved", "lazytrace.programs.program"):
        for function in functions_of(name):
            atheris.instrument_func(function)
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={int(seconds)}",
            "-max_len=256",
            "-print_final_stats=1",
            f"-artifact_prefix={folder}/",  # what crashes is printed, too
        ],
        one,
    )
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--start", type=int, default=0, help="the number of the first case")
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--wrong", type=Path, help="keep files that crash the process here")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.work:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        work(int(options.work[0]), float(options.work[1]), Path(options.work[2]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if options.guided:
            guided(Path(folder), options.seconds)
            return 0
        return many(options, Path(folder))


def many(options: argparse.Namespace, folder: Path) -> int:
    """Processes one after the other, a new one where one has crashed."""
    stop, start, crashes, wrong = time.time() + options.seconds, options.start, 0, 0
    while time.time() < stop:
        command = [
            sys.executable,
            "-m",
            "tests.soundness.hostile_files",
            "--work",
            str(start),
            str(stop),
            str(folder),
        ]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        number = int((folder / "number").read_text())
        told = [line for line in ended.stderr.splitlines() if line.startswith("case ")]
        wrong += len(told)
        print("\n".join(told), end="\n" * bool(told), flush=True)
        if ended.returncode:
            crashes += 1
            print(f"case {number}: exit code {ended.returncode}: {ended.stderr[-300:]}", flush=True)
            if options.wrong:
                options.wrong.mkdir(exist_ok=True)
                (options.wrong / f"{number}.zip").write_bytes((folder / "case.zip").read_bytes())
        start = number + 1
    counts = [json.loads(path.read_text()) for path in folder.glob("ended*.json")]
    total = dict(sum(map(Counter, counts), Counter[str]()))
    print(f"{start - options.start} cases, {crashes} crashes, {wrong} wrong; of the last process {total}")
    return 1 if crashes or wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
