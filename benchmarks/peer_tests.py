"""The tests of torch's own tracer as a net: `python benchmarks/peer_tests.py PATH_TO/test/dynamo [FILE...]`.

Each test runs twice, in processes of its own: with `torch.compile` replaced by the identity, and by `traced`.
A test counts if it passes with the identity: what it asks of a compiler (graphs, error texts) drops out, what
it asks of results stays. Counts of graphs and operators are taken to be whatever is expected.
Checkouts that import `torchdynamo` are given `torch._dynamo` under that name.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import faulthandler
import importlib
import importlib.util
import io
import json
import subprocess
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

FILES = [
    "test_misc.py",
    "test_functions.py",
    "test_repros.py",
    "test_modules.py",
    "test_higher_order_ops.py",
    "test_unspec.py",
    "test_global.py",
    "test_subgraphs.py",
    "test_model_output.py",
    "test_python_autograd.py",
    "test_skip_non_tensor.py",
    "test_optimizers.py",
    "test_ctx_manager.py",
    "test_dicts.py",
    "test_generator.py",
    "test_sets.py",
    "test_exceptions.py",
    "test_decorators.py",
    "test_subclasses.py",
    "test_hooks.py",
]
SECONDS = 60  # for one test
COUNTING = (
    "CompileCounter", "CompileCounterWithBackend", "EagerAndRecordGraphs", "AotEagerAndRecordGraphs"
)  # fmt: skip


# ---------------------------------------------------------------- the process that runs one file
class Anything(int):
    """A count that is whatever is asked for."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__

    def _same(self, other: object) -> Anything:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __iadd__ = _same  # type: ignore[assignment]

    def _true(self, other: object) -> bool:
        return True

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _true  # type: ignore[assignment]


class Counts:
    """In place of torch's counting backends."""

    frame_count: Any = Anything()
    op_count: Any = Anything()
    graphs: Any = ()

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def clear(self) -> None:
        pass


class Optimize:
    """What `optimize(...)` gives: a decorator, and a context that does nothing."""

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self.replace = replace

    def __call__(self, function: Any) -> Any:
        return self.replace(function)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def replaced(traced: bool) -> Callable[[Any], Any]:
    """What stands for the compiler."""
    if not traced:
        return lambda function: function
    import lazytrace

    def replace(function: Any) -> Any:
        try:
            return lazytrace.traced(function)
        except TypeError:  # traced says what it does not accept; dynamo takes any object
            return function

    return replace


def install(traced: bool) -> None:
    """Puts the stand-in where tests look for the compiler."""
    import torch
    import torch._dynamo
    import torch._dynamo.test_case
    import torch._dynamo.testing as testing

    replace = replaced(traced)

    def compiled(model: Any = None, **_: Any) -> Any:
        return replace if model is None else replace(model)

    def optimize(*_: Any, **__: Any) -> Optimize:
        return Optimize(replace)

    torch.compile = compiled  # type: ignore[assignment]
    torch.nn.Module.compile = lambda self, **_: None  # type: ignore[method-assign, assignment]
    for module in (torch._dynamo, torch._dynamo.eval_frame, testing):
        for name in ("optimize", "optimize_assert"):
            setattr(module, name, optimize)
    for name in COUNTING:
        setattr(testing, name, Counts)
    for case in (unittest.TestCase, torch.testing._internal.common_utils.TestCase):
        case.assertEqual = or_anything(case.assertEqual)
    testing.standard_test = standard_test
    sys.meta_path.insert(0, Old())


def or_anything(equal: Callable[..., Any]) -> Callable[..., Any]:
    """An assertion of equality that lets counts be."""

    def assert_equal(*args: Any, **kwargs: Any) -> None:
        if not any(type(value) is Anything for value in args):
            equal(*args, **kwargs)

    return assert_equal


def standard_test(_case: Any, fn: Any, nargs: int, *_: Any, **__: Any) -> None:
    """Torch's helper less what it counts: each of two inputs twice."""
    import torch

    inputs = [[torch.randn(10, 10) for _ in range(nargs)] for _ in range(2)]
    expected = [fn(*args) for args in inputs]
    compiled = torch.compile(fn)
    for _ in range(2):
        for args, value in zip(inputs, expected, strict=True):
            assert torch._dynamo.testing.same(compiled(*args), value)


class Old:
    """Finds `torchdynamo.x` as `torch._dynamo.x`; a name that is gone is a decorator that does nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] == "torchdynamo":
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec: Any) -> Any:
        try:
            found = importlib.import_module(spec.name.replace("torchdynamo", "torch._dynamo", 1))
        except ImportError:
            found = types.ModuleType(spec.name)
        module = Forwarding(spec.name)
        module.__dict__["_to"], module.__path__ = found, []
        return module

    def exec_module(self, module: Any) -> None:
        pass


class Forwarding(types.ModuleType):
    """A module that reads its attributes from another."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_to"], name, lambda function: function)


class Teller(unittest.TestResult):
    """Prints a line for each test, as it begins and as it ends."""

    def __init__(self, out: Any) -> None:
        super().__init__()
        self.out = out

    def tell(self, *row: Any) -> None:
        print(json.dumps(row), file=self.out, flush=True)

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        self.tell("at", test.id())

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()

    def addSuccess(self, test: Any) -> None:
        self.tell("passed", test.id(), "")

    def addSkip(self, test: Any, reason: str) -> None:
        self.tell("skipped", test.id(), reason)

    def addFailure(self, test: Any, err: Any) -> None:
        self.tell("failed", test.id(), "".join(self._exc_info_to_string(err, test))[-1500:])

    addError = addFailure

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.tell("skipped", test.id(), "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.tell("skipped", test.id(), "unexpected success")


def child(path: Path, traced: bool, leave_out: set[str]) -> None:
    """Runs the tests of one file but some."""
    out = sys.stdout
    warnings.simplefilter("ignore")
    install(traced)
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    with contextlib.redirect_stdout(io.StringIO()):
        module = importlib.import_module(path.stem)
        tests = unittest.defaultTestLoader.loadTestsFromModule(module)
        wanted = unittest.TestSuite(t for t in flat(tests) if t.id() not in leave_out)
        wanted.run(Teller(out))


def flat(suite: Any) -> Iterator[Any]:
    for test in suite:
        yield from flat(test) if isinstance(test, unittest.TestSuite) else [test]


# ---------------------------------------------------------------- the process that compares
Outcomes = dict[str, tuple[str, str]]


def outcomes(path: Path, mode: str, script: str, counts: Counter[str]) -> Outcomes:
    """How each test of a file ends; after a crash the rest runs in another process."""
    found: Outcomes = {}
    while True:
        command = [sys.executable, script, "--child", mode, str(path), *found]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        at, before = "", len(found)
        for line in done.stdout.splitlines():
            if line.startswith("counts "):
                counts.update(ast.literal_eval(line.removeprefix("counts ")))
            if not line.startswith('["'):
                continue
            verdict, name, *rest = json.loads(line)
            at = name if verdict == "at" else ""
            if rest:
                found[name] = verdict, rest[0]
        if not at:
            if done.returncode and len(found) == before:
                print(f"{path.name}, {mode}: {done.stderr[-800:]}")
            return found
        found[at] = "crashed", f"exit status {done.returncode}\n{done.stderr[-1500:]}"


def compare(path: Path, script: str = __file__) -> Counter[str]:
    """Runs a file both ways and prints what fails only when traced."""
    counts: Counter[str] = Counter()
    plain, traced = outcomes(path, "identity", script, counts), outcomes(path, "traced", script, counts)
    for name, (verdict, _) in plain.items():
        if verdict != "passed":
            counts["not comparable"] += 1
            continue
        how, text = traced.get(name, ("missing", ""))
        counts[how] += 1
        if how != "passed":
            print(f"--- {how}: {name}\n{text}")
    return counts


def line(name: str, cells: Iterable[object]) -> str:
    """A row of the table."""
    return "".join(f"{cell:>16}" for cell in (name[:15], *cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", type=Path, help="the folder test/dynamo of a checkout of pytorch")
    parser.add_argument("files", nargs="*", help="names of files in it")
    options = parser.parse_args()
    rows = {}
    for name in options.files or FILES:
        if (path := options.tests / name).exists():
            rows[name] = compare(path)
    heads = ("passed", "failed", "crashed", "missing", "not comparable")
    print(line("", heads))
    for name, counts in rows.items():
        print(line(name, (counts[head] for head in heads)))
    return int(any(counts[head] for counts in rows.values() for head in heads[1:4]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[3]), sys.argv[2] == "traced", set(sys.argv[4:]))
    else:
        sys.exit(main())
