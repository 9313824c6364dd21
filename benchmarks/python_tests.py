"""The tests of Python itself as a net: `python benchmarks/python_tests.py [--numbers | --state] MODULE ...`.

Runs each test method of the `test` package that comes with Python (`test_dict`, `test_itertools`, ...) as a
traced function, several times in a row. A test that passes plainly, twice, must pass traced. With
`--numbers` literals in the tests give way to what `.item()` of a tensor gives, so that the tests say of
numbers that are followed whether they do all that numbers of Python do. With `--state` literals stand in a
list that is another one at some calls, what is asserted is given back instead, and each call must give, or
raise, what the plain one does.

    python benchmarks/python_tests.py test_dict test_generators
    python benchmarks/python_tests.py --numbers test_int test_itertools test_format
    python benchmarks/python_tests.py --state test_list test_collections

Tests that ask for much of Python code (`test_heapq` merges thousands of lists) may be late while they are
recorded, which is told apart. A few ask what nobody can see and stay the same: keys of classes that are no
texts and run code as they are compared, for one.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import random
import re
import signal
import sys
import tempfile
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch

import lazytrace

CALLS = 4
SECONDS = 20  # of one call of a test
LARGEST = 4096  # ints above it stay literals: tests make as many objects
NUMBERS, ASSERTED = "_numbers", "_asserted"
CHANGES = (0, 0, 1, 0, 1, 2, 2, 1)  # by call: 0 is as in the tests, each other one changes some numbers
ADDRESS = re.compile(r"0x[0-9a-f]+|\b\d{13,}\b")  # as text, and by id()


class Late(BaseException):
    """A test has taken too long."""


class Literals(ast.NodeTransformer):
    """Gives test methods numbers of a list in the place of literals, as they are or by `.item()`."""

    def __init__(self, followed: bool) -> None:
        self.followed = followed
        self.values: list[float] = []
        self.depth = 0  # of functions around what is visited, from the test method on

    def within(self, node: Any, depth: int) -> Any:
        """Visits the statements of its body alone."""
        before, self.depth = self.depth, depth
        node.body = [self.visit(statement) for statement in node.body]
        self.depth = before
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """A test method, or a function inside one."""
        is_test = not self.depth and node.name.startswith("test")
        self.within(node, self.depth + 1 if self.depth or is_test else 0)
        if is_test and not self.followed:
            before, behind = ast.parse(f"{ASSERTED} = []").body, ast.parse(f"return {ASSERTED}").body
            node.body = [*before, *node.body, *behind]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        """It stays as it is."""
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Its methods are tests or none."""
        return self.within(node, 0)

    def visit_Expr(self, node: ast.Expr) -> Any:
        """What a test method asserts is kept where its state changes, but for what is to be raised."""
        call = node.value
        if self.followed or self.depth != 1 or not (isinstance(call, ast.Call) and not call.keywords):
            return self.generic_visit(node)
        name = ast.unparse(call.func)
        if not name.startswith("self.assert") or name.endswith(
            ("Raises", "RaisesRegex", "Warns", "WarnsRegex")
        ):
            return self.generic_visit(node)
        if any(isinstance(value, ast.Starred) for value in call.args):
            return self.generic_visit(node)
        kept = ast.Tuple([self.visit(value) for value in call.args], ast.Load())
        append = ast.Attribute(ast.Name(ASSERTED, ast.Load()), "append", ast.Load())
        return ast.copy_location(ast.Expr(ast.Call(append, [kept], [])), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        """What is formatted; what says how stays."""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                part.value = self.visit(part.value)
        return node

    def visit_match_case(self, node: ast.match_case) -> Any:
        """Patterns stay as they are."""
        return self.within(node, self.depth)

    def visit_Constant(self, node: ast.Constant) -> Any:
        """A number, unless it is a large int."""
        value = node.value
        if not self.depth or type(value) not in (int, float) or (type(value) is int and value > LARGEST):
            return node
        self.values.append(value)
        instead = f"{NUMBERS}[{len(self.values) - 1}]" + (".item()" if self.followed else "")
        return ast.copy_location(ast.parse(instead, mode="eval").body, node)


def load(name: str, literals: Literals | None) -> types.ModuleType:
    """The module of tests; raises ImportError where Python has come without it."""
    spec = importlib.util.find_spec(f"test.{name}")
    if spec is None or spec.origin is None:
        raise ImportError(f"Python has come without test.{name}")
    if literals is None:
        return importlib.import_module(f"test.{name}")
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    tree = ast.fix_missing_locations(literals.visit(tree))
    module = importlib.util.module_from_spec(spec)
    values: list[Any] = list(literals.values)
    if literals.followed:
        kinds = {int: torch.int64, float: torch.float64}
        values = [torch.tensor(value, dtype=kinds[type(value)]) for value in values]
    setattr(module, NUMBERS, values)
    sys.modules[spec.name] = module
    exec(compile(tree, spec.origin, "exec"), vars(module))
    return module


def cases_in(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Its cases, those of suites inside among them, without doctests and what failed to load."""
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from cases_in(one)
        elif "DocTest" not in type(one).__name__ and hasattr(one, one._testMethodName):
            yield one


def outcome(case: unittest.TestCase) -> str:
    """`ok`, `late`, `skipped` (of one that is to fail, too), or the last line of what was raised."""
    result = unittest.TestResult()
    signal.alarm(SECONDS)
    try:
        case.run(result)
    except Late:
        return "late"
    finally:
        signal.alarm(0)
    raised = [text for _, text in result.errors + result.failures]
    if raised:
        last = raised[0].strip().splitlines()[-1]
        return "late" if last.endswith("Late") else last
    return "skipped" if result.skipped or result.expectedFailures else "ok"


def body_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """What is traced."""

    def body(case: unittest.TestCase, x: torch.Tensor) -> Any:
        return method(case), x + 1

    return body


def compare_outcomes(kind: type[unittest.TestCase], method: str, followed: bool) -> str:
    """`equal`, `late`, `left out` where it does not pass plainly, or how a traced call ends."""
    if any(outcome(kind(method)) != "ok" for _ in range(2)):
        return "left out"
    function = lazytrace.traced(body_of(getattr(kind, method)), dynamic=True if followed else None)

    def traced_case() -> unittest.TestCase:
        case = kind(method)

        def call() -> None:
            function(case, torch.ones(2))

        setattr(case, method, call)
        return case

    ends = (outcome(traced_case()) for _ in range(CALLS))
    return next((end for end in ends if end != "ok"), "equal")


def changed(values: list[float], change: int) -> list[float]:
    """The numbers of the tests, of which a change makes some others: the same ones each time."""
    draw = random.Random(change)

    def one(value: float) -> float:
        if not change or draw.random() < 0.6:
            return value
        if isinstance(value, int):
            return max(0, value + draw.choice([1, 1, 2, -1]))
        return value + draw.choice([0.5, 1.0, -0.25])

    return [one(value) for value in values]


def given_by(case: unittest.TestCase, function: Callable[..., Any]) -> str:
    """What the call gives or raises, written without addresses; `late`."""
    signal.alarm(SECONDS)
    random.seed(3)
    try:
        case.setUp()
        try:
            return ADDRESS.sub("0x", repr(function(case, torch.ones(2))))
        finally:
            case.tearDown()
            case.doCleanups()
    except Late:
        return "late"
    except Exception as error:
        return ADDRESS.sub("0x", f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)


def compare_calls(kind: type[unittest.TestCase], method: str, numbers: list[Any], values: list[float]) -> str:
    """`equal`, `late`, `left out` where it differs from itself, or what the first other call gave."""
    body = body_of(getattr(kind, method))
    function = lazytrace.traced(body)
    for change in CHANGES:
        given = []
        for one in (body, body, function):
            numbers[:] = changed(values, change)
            given.append(given_by(kind(method), one))
        if "late" in given:
            return "late"
        if given[0] != given[1]:
            return "left out"
        if given[0] != given[2]:
            return f"{given[2][:200]} instead of {given[0][:200]}"
    return "equal"


def run(name: str, literals: Literals | None, only: str) -> int:
    """How many tests of this module differ; prints those, and how many there were."""
    module = load(name, literals)
    vars(module).pop("load_tests", None)  # which adds doctests
    counts = {"equal": 0, "late": 0, "differ": 0, "left out": 0}
    before: type[unittest.TestCase] | None = None
    for case in list(cases_in(unittest.TestLoader().loadTestsFromModule(module))):
        kind, method = type(case), case._testMethodName
        if only not in case.id():
            continue
        if kind is not before:
            if before is not None:
                before.tearDownClass()
            before = kind
            kind.setUpClass()
        if literals and not literals.followed:
            found = compare_calls(kind, method, getattr(module, NUMBERS), literals.values)
        else:
            found = compare_outcomes(kind, method, literals is not None)
        counts[found if found in counts else "differ"] += 1
        if found not in counts:
            print(f"{case.id()}: {found}", flush=True)
    print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items()), flush=True)
    return counts["differ"]


def main() -> int:
    """How many tests differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="+", metavar="MODULE")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--numbers", action="store_true", help="numbers of tensors in the place of literals")
    how.add_argument("--state", action="store_true", help="numbers that change between calls")
    parser.add_argument("--only", default="", metavar="TEXT", help="tests with this in their names")
    args = parser.parse_args()

    def late(*_: Any) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    differ = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # where tests leave files
        for name in args.modules:
            differ += run(name, Literals(args.numbers) if args.numbers or args.state else None, args.only)
    return differ


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
