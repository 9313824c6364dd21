"""Torch's own tests as a net: `python benchmarks/torch_tests.py PATH_TO/test FILE...`.

What a test of torch does is what a user of it may do, and what it asserts is right. So each run of up to
four plain statements of a test becomes a function of the names that it reads, which returns the names that it
sets. Each test runs six times, with six seeds, in processes of their own: with these functions as they are,
and traced. A test counts if it passes as it is, and is wrong if it then fails traced.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.util
import io
import symtable
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peer_tests import Teller, compare, flat, line

RUNS = 6
LONGEST = 4  # statements of a function
PREFIX = "_lazytrace_block"
CALLED = "_lazytrace_call"

PLAIN = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.With)
LEFT_ALONE = (
    # What leaves the statement, what suspends it, and what names scopes.
    ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Delete, ast.Import, ast.ImportFrom, ast.Global,
    ast.Nonlocal, ast.Assert, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.FunctionDef,
    ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.Try, ast.AsyncFor, ast.AsyncWith,
)  # fmt: skip
OF_THE_SCOPE = {"super", "locals", "vars", "eval", "exec", "__class__"}


# ---------------------------------------------------------------- the tests, cut into functions
def is_plain(statement: ast.stmt) -> bool:
    """Whether a statement may run in a function of its own: it asserts nothing, and ends where it ends."""
    if not isinstance(statement, PLAIN):
        return False
    for node in ast.walk(statement):
        if isinstance(node, LEFT_ALONE):
            return False
        if isinstance(node, ast.Name) and node.id in OF_THE_SCOPE:
            return False
        if isinstance(node, ast.Attribute) and node.attr.startswith(("assert", "fail", "skip", "subTest")):
            return False
    # A docstring, or a name alone.
    return not (isinstance(statement, ast.Expr) and isinstance(statement.value, (ast.Constant, ast.Name)))


def scope(function: ast.FunctionDef) -> symtable.SymbolTable:
    """The names of a function."""
    return symtable.symtable(ast.unparse(function), "test", "exec").get_children()[0]


def parameters(names: Sequence[str] = ()) -> ast.arguments:
    """By place, without defaults."""
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def function(name: str, args: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    """Without decorators."""
    made = ast.FunctionDef(name, args, body, [], None)
    made.type_params = []  # type: ignore[attr-defined]
    return ast.fix_missing_locations(made)


def found_outside(table: symtable.SymbolTable) -> set[str]:
    """What a scope and those within it look for in globals."""
    names = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return names.union(*(found_outside(child) for child in table.get_children()))


def read_first(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that statements read before they set them."""
    known: set[str] = set()
    found: set[str] = set()
    for statement in statements:
        names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
        found |= {n.id for n in names if isinstance(n.ctx, ast.Load)} - known
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            found |= {statement.target.id} - known
        known |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return found


class Cutter(ast.NodeTransformer):
    """Cuts the bodies of tests; `blocks` are the functions that came out of them."""

    def __init__(self) -> None:
        self.blocks: list[ast.stmt] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if not node.name.startswith("test"):
            return node
        table = scope(function(node.name, node.args, node.body))
        self.own = {s.get_name() for s in table.get_symbols() if s.is_local() or s.is_parameter()}
        self.rebound = {
            name for n in ast.walk(node) if isinstance(n, (ast.Nonlocal, ast.Global)) for name in n.names
        }
        node.body = self.cut(node.body)
        return node

    def cut(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A list of statements with calls in the place of runs."""
        out: list[ast.stmt] = []
        run: list[ast.stmt] = []
        for statement in [*body, None]:
            if statement is not None and is_plain(statement) and len(run) < LONGEST:
                run.append(statement)
                continue
            out += self.call(run) if run else []
            run = []
            if statement is None:
                continue
            if is_plain(statement):
                run = [statement]
                continue
            if isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
                for field in ("body", "orelse", "finalbody"):
                    if hasattr(statement, field):
                        setattr(statement, field, self.cut(getattr(statement, field)))
            out.append(statement)
        return out

    def call(self, run: list[ast.stmt]) -> list[ast.stmt]:
        """A run as a function, and what calls it."""
        table = scope(function("f", parameters(), run))
        kept = sorted(s.get_name() for s in table.get_symbols() if s.is_assigned())
        if self.rebound.intersection(kept) or not self.own.issuperset(kept):
            return run
        params = sorted((found_outside(table) | (read_first(run) & set(kept))) & self.own)
        result = ast.Tuple([ast.Name(n, ast.Load()) for n in kept], ast.Load())
        name = f"{PREFIX}_{len(self.blocks)}"
        self.blocks.append(function(name, parameters(params), [*run, ast.Return(result)]))
        called = ast.Call(
            ast.Name(CALLED, ast.Load()),
            [ast.Name(name, ast.Load()), *(ast.Name(p, ast.Load()) for p in params)],
            [],
        )
        if not kept:
            return [ast.fix_missing_locations(ast.copy_location(ast.Expr(called), run[0]))]
        target = ast.Tuple([ast.Name(n, ast.Store()) for n in kept], ast.Store())
        return [ast.fix_missing_locations(ast.copy_location(ast.Assign([target], called), run[0]))]


class Cut(importlib.abc.SourceLoader):
    """Loads one file of tests with its tests cut."""

    def __init__(self, path: Path, call: Callable[..., Any]) -> None:
        self.path, self.do = path, call

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        return Path(str(path)).read_bytes()

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        cutter = Cutter()
        tree = cutter.visit(ast.parse(data))
        # Behind the imports from __future__, which come first.
        at = max(
            (
                i + 1
                for i, s in enumerate(tree.body)
                if isinstance(s, ast.ImportFrom) and s.module == "__future__"
            ),
            default=0,
        )
        tree.body[at:at] = cutter.blocks
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        module.__dict__[CALLED] = self.do
        super().exec_module(module)


# ---------------------------------------------------------------- the process that runs one file
class Callers:
    """Calls a function of a test as it is, or traced, always by the same wrapper."""

    def __init__(self, traced: bool) -> None:
        self.traced = traced
        self.made: dict[Any, Any] = {}

    def __call__(self, block: Any, *args: Any) -> Any:
        if not self.traced:
            return block(*args)
        if block not in self.made:
            import lazytrace

            self.made[block] = lazytrace.traced(block)
        return self.made[block](*args)

    def counts(self) -> Counter[str]:
        """What came of the calls."""
        found: Counter[str] = Counter()
        for made in self.made.values():
            stats = made.stats()
            found.update(hits=stats.hits, recordings=stats.recordings, eager=sum(stats.eager.values()))
        return found


class Often(unittest.TestResult):
    """Hands on one verdict for the runs of a test: the first that is not a success, or the last."""

    def __init__(self, to: Teller) -> None:
        super().__init__()
        self.to = to
        self.ended: Callable[[], None] | None = None
        self.is_good = True

    def addSuccess(self, test: Any) -> None:
        self.ended = self.ended or (lambda: self.to.addSuccess(test))

    def _bad(self, end: Callable[[], None]) -> None:
        if self.is_good:
            self.is_good, self.ended = False, end

    def addSkip(self, test: Any, reason: str) -> None:
        self._bad(lambda: self.to.addSkip(test, reason))

    def addFailure(self, test: Any, err: Any) -> None:
        self._bad(lambda: self.to.addFailure(test, err))

    addError = addFailure

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._bad(lambda: self.to.addExpectedFailure(test, err))

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._bad(lambda: self.to.addUnexpectedSuccess(test))


def child(path: Path, traced: bool, leave_out: set[str]) -> None:
    """Runs the tests of one file but some."""
    from torch.testing._internal import common_utils

    out, teller = sys.stdout, Teller(sys.stdout)
    warnings.simplefilter("ignore")
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    callers = Callers(traced)
    with contextlib.redirect_stdout(io.StringIO()):
        loader = Cut(path, callers)
        spec = importlib.util.spec_from_loader(path.stem, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        loader.exec_module(module)
        module.__dict__.pop("load_tests", None)  # it asks for tests to be in the running script
        tests = unittest.defaultTestLoader.loadTestsFromModule(module)
        for test in flat(tests):
            if test.id() in leave_out:
                continue
            teller.startTest(test)
            result = Often(teller)
            for run in range(RUNS):
                common_utils.SEED = 1234 + run
                if result.is_good:
                    test.run(result)
            if result.ended is not None:
                result.ended()
            teller.stopTest(test)
    print(f"counts {dict(callers.counts())}", file=out, flush=True)


def chosen(root: Path, names: Sequence[str]) -> Iterator[Path]:
    """The files that are asked for."""
    for name in names:
        found = sorted(root.glob(name))
        if not found:
            print(f"{name}: not there")
        yield from found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", type=Path, help="the folder test of a checkout of pytorch")
    parser.add_argument("files", nargs="+", help="names of files in it, or patterns such as nn/*.py")
    options = parser.parse_args()
    heads = ("passed", "failed", "crashed", "missing", "not comparable", "hits", "recordings", "eager")
    print(line("", heads))
    wrong = 0
    for path in chosen(options.tests, options.files):
        counts = compare(path, __file__)
        print(line(path.name, (counts[head] for head in heads)), flush=True)
        wrong += sum(counts[head] for head in heads[1:4])
    return int(wrong > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[3]), sys.argv[2] == "traced", set(sys.argv[4:]))
    else:
        sys.exit(main())
