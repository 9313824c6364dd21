"""The tests of Python itself as a net: `python benchmarks/python_tests.py [--numbers] MODULE ...`.

Runs each test method of the `test` package that comes with Python (`test_dict`, `test_itertools`, ...) as a
traced function, several times in a row. A test that passes plainly, twice, must pass traced. With
`--numbers` literals in the tests give way to what `.item()` of a tensor gives, so that the tests say of
numbers that are followed whether they do all that numbers of Python do.

    python benchmarks/python_tests.py test_dict test_generators
    python benchmarks/python_tests.py --numbers test_int test_itertools test_format

Tests that ask for much of Python code (`test_heapq` merges thousands of lists) may be late while they are
recorded, which is told apart. A few ask what nobody can see and stay the same: keys of classes that are no
texts and run code as they are compared, for one.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import signal
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
from test.support import os_helper

import lazytrace

CALLS = 4
SECONDS = 20  # of one call of a test
LARGEST = 4096  # ints above it stay literals: tests make as many objects
NUMBERS = "_numbers_of_tensors"


class Late(BaseException):
    """A test has taken too long."""


class Literals(ast.NodeTransformer):
    """Gives test methods numbers of tensors in the place of literals."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.inside = False

    def within(self, node: Any, inside: bool) -> Any:
        """Visits the statements of its body alone."""
        before, self.inside = self.inside, inside
        node.body = [self.visit(statement) for statement in node.body]
        self.inside = before
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """A test method, or a function inside one."""
        return self.within(node, self.inside or node.name.startswith("test"))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        """It stays as it is."""
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Its methods are tests or none."""
        return self.within(node, False)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        """What is formatted; what says how stays."""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                part.value = self.visit(part.value)
        return node

    def visit_match_case(self, node: ast.match_case) -> Any:
        """Patterns stay as they are."""
        return self.within(node, self.inside)

    def visit_Constant(self, node: ast.Constant) -> Any:
        """A number, unless it is a large int."""
        value = node.value
        if not self.inside or type(value) not in (int, float) or (type(value) is int and value > LARGEST):
            return node
        self.tensors.append(torch.tensor(value, dtype=torch.int64 if type(value) is int else torch.float64))
        instead = ast.parse(f"{NUMBERS}[{len(self.tensors) - 1}].item()", mode="eval").body
        return ast.copy_location(instead, node)


def load(name: str, numbers: bool) -> types.ModuleType:
    """The module of tests; raises ImportError where Python has come without it."""
    spec = importlib.util.find_spec(f"test.{name}")
    if spec is None or spec.origin is None:
        raise ImportError(f"Python has come without test.{name}")
    if not numbers:
        return importlib.import_module(f"test.{name}")
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    literals = Literals()
    tree = ast.fix_missing_locations(literals.visit(tree))
    module = importlib.util.module_from_spec(spec)
    setattr(module, NUMBERS, literals.tensors)
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
    """`ok`, `late`, `skipped`, or the last line of what was raised."""
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
    return "skipped" if result.skipped else "ok"


def traced_as(kind: type[unittest.TestCase], method: str, numbers: bool) -> Callable[[], unittest.TestCase]:
    """What makes a case of which the method is traced, by one function for all of them."""
    original = getattr(kind, method)

    def body(case: unittest.TestCase, x: torch.Tensor) -> torch.Tensor:
        original(case)
        return x + 1

    function = lazytrace.traced(body, dynamic=True if numbers else None)

    def make() -> unittest.TestCase:
        case = kind(method)

        def call() -> None:
            function(case, torch.ones(2))

        setattr(case, method, call)
        return case

    return make


def run(name: str, numbers: bool, only: str) -> int:
    """How many tests of this module differ; prints those, and how many there were."""
    module = load(name, numbers)
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
        if any(outcome(kind(method)) != "ok" for _ in range(2)):
            counts["left out"] += 1
            continue
        make = traced_as(kind, method, numbers)
        found = next((said for said in (outcome(make()) for _ in range(CALLS)) if said != "ok"), "equal")
        counts[found if found in counts else "differ"] += 1
        if found not in counts:
            print(f"{case.id()}: {found}", flush=True)
    print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items()), flush=True)
    return counts["differ"]


def main() -> int:
    """How many tests differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="+", metavar="MODULE")
    parser.add_argument("--numbers", action="store_true", help="numbers of tensors in the place of literals")
    parser.add_argument("--only", default="", metavar="TEXT", help="tests with this in their names")
    args = parser.parse_args()

    def late(*_: Any) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    with os_helper.temp_cwd():  # in which tests leave files
        return sum(run(name, args.numbers, args.only) for name in args.modules)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
