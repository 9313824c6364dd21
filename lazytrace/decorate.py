"""Decorating functions of a program without editing it: `traced` is added while its source is compiled."""

from __future__ import annotations

import ast
import fnmatch
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

_DECORATOR = "__import__('lazytrace').traced"
_WILD = "*?["


class Patterns:
    """Patterns of "module:function", as in `pkg.mod:step`, `pkg.mod:Net.forward` or `pkg.*:*`.

    >>> Patterns(["pkg.mod:step"]).wanted("pkg.mod", "step", exactly=False)
    True
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [pattern.partition(":")[::2] for pattern in patterns]
        self._matched: set[tuple[str, str]] = set()

    def of_module(self, module: str) -> bool:
        """Whether any pattern is about a module."""
        return any(fnmatch.fnmatchcase(module, wanted) for wanted, _ in self._patterns)

    def wanted(self, module: str, name: str, *, exactly: bool) -> bool:
        """Whether to decorate a definition; with `exactly` only where a pattern spells its name out."""
        found = [
            (m, n)
            for m, n in self._patterns
            if fnmatch.fnmatchcase(module, m) and fnmatch.fnmatchcase(name, n)
            if not exactly or not set(_WILD) & set(n)
        ]
        self._matched.update(found)
        return bool(found)

    def unmatched(self) -> list[str]:
        """The patterns that nothing has matched so far."""
        return [f"{m}:{n}" for m, n in self._patterns if (m, n) not in self._matched]

    def compiled(self, source: bytes | str, file: str, module: str) -> CodeType:
        """The code of a module, with what is wanted decorated; lines are those of the source.

        >>> names = {}
        >>> exec(Patterns(["m:step"]).compiled("def step(x): return x", "m.py", "m"), names)
        >>> type(names["step"]).__name__
        'TracedFunction'
        """
        tree = ast.parse(source, file)
        _Decorator(self, module).visit(tree)
        code: CodeType = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
        return code


class _Decorator(ast.NodeVisitor):
    def __init__(self, patterns: Patterns, module: str) -> None:
        self._patterns = patterns
        self._module = module
        self._names: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        # A class is traced by its forward; which of the others are modules is not known here.
        self._visit(node, exactly=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        special = node.name.startswith("__") or any(
            isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)
        )
        self._visit(node, exactly=special)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit(node, exactly=True)

    def _visit(self, node: Any, *, exactly: bool) -> None:
        self._names.append(node.name)
        if self._patterns.wanted(self._module, ".".join(self._names), exactly=exactly):
            decorator = ast.parse(_DECORATOR, mode="eval").body
            for one in ast.walk(decorator):
                ast.copy_location(one, node)
            node.decorator_list.insert(0, decorator)
        self.generic_visit(node)
        self._names.pop()


class _Loader(importlib.machinery.SourceFileLoader):
    patterns: Patterns

    def get_code(self, fullname: str) -> CodeType | None:
        # Not through the cache of compiled files, which holds the program as it was written.
        path = self.get_filename(fullname)
        return self.patterns.compiled(self.get_data(path), path, fullname)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that patterns are about, before the finders of Python do."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module whose source is to be changed; None for all others."""
        if not self._patterns.of_module(fullname):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        loader = _Loader(fullname, spec.loader.path)
        loader.patterns = self._patterns
        spec.loader = loader
        return spec


def installed(patterns: Patterns) -> Finder:
    """Put a finder for some patterns in front of all others, and return it."""
    finder = Finder(patterns)
    sys.meta_path.insert(0, finder)
    return finder
