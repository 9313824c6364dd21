"""The project's own rules: what it declares, what its modules import, where private torch names may be."""

from __future__ import annotations

import ast
import configparser
import doctest
import importlib.metadata
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lazytrace

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lazytrace"
FILES = sorted(PACKAGE.rglob("*.py"))

# From the top down: a module imports from layers below its own, or from within its own package.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__init__",),
    ("__main__", "pytest_plugin"),
    ("cli", "testing"),
    ("debugging",),
    ("keep", "loaded"),
    ("saving",),
    ("ahead", "decorate", "steering"),
    ("api",),
    ("function", "steps"),
    ("engine",),
    ("explain", "programs"),
    ("recorded",),
    ("unseen",),
    ("arrays",),
    ("carriers", "signature", "callsite", "marks", "buckets", "stand_ins_of_logging"),
    ("texts", "logs", "stand_ins_of_library"),
    ("stand_ins_of_seeds", "stand_ins_of_draws"),
    ("library_calls", "printing"),
    ("stats", "config"),
    ("_native", "checks"),
    ("errors", "pure", "stand_ins", "library"),
    ("_torch", "asked", "later", "locks"),
    ("originals",),
    ("_core",),
)
LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}
STANDS_ALONE = ("errors", "_torch")
PRIVATE_NAMES_ALLOWED_IN = "_torch.py"


def label(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    """The part of the package that a file belongs to: its folder's name, or its own."""
    return Path(label(path)).parts[0].removesuffix(".py")


def module_of(path: Path) -> list[str]:
    """The dotted name of the package that relative imports in a file start from."""
    return ["lazytrace", *Path(label(path)).parent.parts]


def imported(tree: ast.Module, package: list[str]) -> Iterator[tuple[str, str | None, str, int]]:
    """Each import as (module, name or None, the local name that it binds, line)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                yield alias.name, None, local, node.lineno
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield module, alias.name, alias.asname or alias.name, node.lineno


def is_private(dotted: str) -> bool:
    """Whether a dotted torch name has a part that starts with one underscore."""
    return any(re.match(r"_(?!_)", part) for part in dotted.split("."))


def dotted_name(node: ast.AST) -> list[str] | None:
    """`["a", "b", "c"]` for `a.b.c`; None for anything that is not such a chain."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def private_torch_names(source: str) -> set[str]:
    """Private torch names that a module imports or reaches through an attribute chain."""
    tree = ast.parse(source)
    full: dict[str, str] = {}
    found: set[str] = set()
    for module, name, local, _ in imported(tree, ["lazytrace"]):
        if module.split(".")[0] != "torch":
            continue
        whole = f"{module}.{name}" if name else module
        full[local] = whole if name or local != "torch" else "torch"
        if is_private(whole):
            found.add(whole)
    for node in ast.walk(tree):
        chain = dotted_name(node) if isinstance(node, ast.Attribute) else None
        if chain and chain[0] in full:
            whole = ".".join([full[chain[0]], *chain[1:]])
            if is_private(whole):
                found.add(whole)
    return found


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch._C._get_tracing_state()", {"torch._C", "torch._C._get_tracing_state"}),
        ("import torch._dynamo", {"torch._dynamo"}),
        ("from torch import _C", {"torch._C"}),
        ("from torch.utils._pytree import tree_map", {"torch.utils._pytree.tree_map"}),
        ("import torch.nn.functional as F\nF._pad", {"torch.nn.functional._pad"}),
        ("from torch.nn import Module as M\nM._call_impl", {"torch.nn.Module._call_impl"}),
        ("import torch\ntorch.__version__\ntorch.nn.Module.__call__", set()),
        ("import os\nos._exit", set()),
    ],
)
def test_private_names_are_found(source: str, names: set[str]) -> None:
    assert private_torch_names(source) == names


@pytest.mark.parametrize("path", FILES, ids=label)
def test_private_torch_names_are_in_one_file(path: Path) -> None:
    if label(path) != PRIVATE_NAMES_ALLOWED_IN:
        found = private_torch_names(path.read_text())
        assert not found, f"{label(path)}: move {sorted(found)} to lazytrace/{PRIVATE_NAMES_ALLOWED_IN}"


def part_imported(module: str, name: str | None) -> str | None:
    """The part of the package that an import reaches, `__init__` for a public name; None for others."""
    parts = module.split(".")
    if parts[0] != "lazytrace":
        return None
    if len(parts) > 1:
        return parts[1]
    return name if name in LEVEL else "__init__"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    assert part in LEVEL, f"lazytrace/{label(path)}: give {part!r} a place in LAYERS"
    for module, name, _, line in imported(ast.parse(path.read_text()), module_of(path)):
        other = part_imported(module, name)
        if other is None or other == part:
            continue
        assert other in LEVEL, f"lazytrace/{label(path)}:{line}: give {other!r} a place in LAYERS"
        assert LEVEL[other] > LEVEL[part], f"lazytrace/{label(path)}:{line}: {part} may not import {other}"
        assert part not in STANDS_ALONE, f"lazytrace/{label(path)}:{line}: {part} stands alone"


# The same within packages, from the top down; a folder stands for what is in it.
INNER_LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "stats": (
        ("__init__",),
        ("at_exit", "profiler"),
        ("process",),
        ("registry", "report"),
        ("patterns", "difference", "log"),
        ("counters", "reasons"),
        ("model", "metrics"),
        ("words",),
    ),
    "engine": (
        ("__init__",),
        ("entry",),
        ("attempt",),
        ("decide", "timing", "recording", "total"),
        ("owner",),
        ("instances",),
        ("store", "switches"),
    ),
    "explain": (("__init__",), ("search",), ("words", "differences")),
}


@pytest.mark.parametrize("package", INNER_LAYERS)
def test_imports_point_down_within_packages(package: str) -> None:
    level = {part: i for i, layer in enumerate(INNER_LAYERS[package]) for part in layer}
    for path in sorted((PACKAGE / package).rglob("*.py")):
        part = path.relative_to(PACKAGE / package).parts[0].removesuffix(".py")
        for module, _, _, line in imported(ast.parse(path.read_text()), module_of(path)):
            parts = module.split(".")
            if parts[:2] != ["lazytrace", package] or len(parts) < 3 or parts[2] == part:
                continue
            assert level[parts[2]] > level[part], f"{label(path)}:{line}: {part} may not import {parts[2]}"


# In a fresh process: this one has everything imported.
LISTS_IMPORTS = """
import sys, torch
before = set(sys.modules)
import lazytrace
dir(lazytrace), lazytrace.traced(torch.relu)(torch.ones(1))
print(*sorted(name for name in set(sys.modules) - before if name.split(".")[0] != "lazytrace"))
"""
# What a program pays for `import lazytrace`, beside torch. Reports, their formats and the command line import
# what they need when they are asked for.
IMPORTED_AT_ONCE = {"wrapt", "cachetools"}


def test_importing_and_calling_takes_little() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LAZYTRACE_")}
    done = subprocess.run(
        [sys.executable, "-c", LISTS_IMPORTS],
        cwd=ROOT,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = set(done.stdout.split())
    assert found  # wrapt at least: otherwise something imported lazytrace before
    assert {name for name in found if name.split(".")[0] not in IMPORTED_AT_ONCE} == set()


COUNTS_COLLECTIONS = """
import gc, torch
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
{before}
import lazytrace
print(seen.count(2), gc.isenabled())
"""


@pytest.mark.parametrize(("before", "after"), [("gc.enable()", "0 True"), ("gc.disable()", "0 False")])
def test_importing_looks_at_none_of_torchs_objects_and_leaves_the_collector_as_it_was(
    before: str, after: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTS_COLLECTIONS.format(before=before)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == after.split()


@pytest.mark.parametrize("path", FILES, ids=label)
def test_modules_say_why_they_exist(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, f"lazytrace/{label(path)} has no docstring"


PUBLIC = sorted(lazytrace.__all__)


def test_public_names_are_all_that_there_is_to_import() -> None:
    found = {name for name in dir(lazytrace) if name.isidentifier() and not name.startswith("_")}
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert found - modules == set(PUBLIC) - modules
    assert set(PUBLIC) <= found


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_an_example_that_runs(name: str) -> None:
    thing = getattr(lazytrace, name)
    examples = doctest.DocTestFinder(recurse=False).find(thing, name, module=False)
    assert any(example.examples for example in examples), f"lazytrace.{name} has no doctest"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_classes_say_what_their_methods_do(name: str) -> None:
    thing = getattr(lazytrace, name)
    if isinstance(thing, type):
        members = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
        functions = {key: getattr(value, "fget", value) for key, value in members.items()}
        assert not [
            key for key, value in functions.items() if inspect.isfunction(value) and not value.__doc__
        ]


def declared() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def requirement_names(text: str) -> set[str]:
    return {re.split(r"[<>=!~ ;\[]", line)[0].lower() for line in text.split("\n") if line.strip()}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower(): version for name, version in pairs}


def test_runtime_dependencies() -> None:
    text = declared()["options"]["install_requires"]
    assert requirement_names(text) == {"torch", "wrapt", "cachetools", "rich", "jinja2"}
    assert "torch>=2.13,<2.14" in text


def test_every_declared_package_is_pinned() -> None:
    config = declared()
    declarations = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    assert set().union(*map(requirement_names, declarations)) <= set(pins())
    assert {"setuptools", "wheel", "ninja"} <= set(pins())


def test_what_pinned_packages_need_is_pinned_too() -> None:
    """Over what applies here: requirements under a marker, such as a CUDA build's, are torch's own to pin."""
    missing = {
        f"{name} needs {needed}"
        for name in pins()
        for line in importlib.metadata.requires(name) or []
        if ";" not in line
        for needed in [re.split(r"[<>=!~ ;(\[]", line)[0].lower().replace("_", "-")]
        if needed not in {pin.replace("_", "-") for pin in pins()}
    }
    assert not missing


def test_metadata_of_the_installation() -> None:
    data = importlib.metadata.metadata("lazytrace")
    assert data["Name"] == "lazytrace"
    assert data["Version"] == declared()["metadata"]["version"]
    assert set(data["Requires-Python"].split(",")) == {">=3.11", "<3.12"}
    assert {"test", "dev"} <= set(data.get_all("Provides-Extra") or [])


def test_the_package_is_this_checkout() -> None:
    spec = importlib.util.find_spec("lazytrace")
    assert spec is not None
    assert spec.origin == str(PACKAGE / "__init__.py")
