"""The tables of what C code reads: each row names something that the installed torch and CPython have."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

from lazytrace._torch import torch_folder

CORE = Path(__file__).resolve().parent.parent / "lazytrace" / "csrc"
TABLE = (CORE / "record/python/callables.def").read_text()
ENUM = set(re.findall(r"^  (\w+),", (CORE / "record/python/callables.h").read_text(), re.MULTILINE))
# Classes that no module has under their name.
UNNAMED = {"dict_keys", "dict_values", "dict_items", "odict_keys", "odict_values", "odict_items"}
UNNAMED |= {"mappingproxy", "function", "method", "builtin_function_or_method"}


def expanded() -> str:
    """The table without its macros for many rows."""
    text = TABLE
    for name, parameters, row in re.findall(r"#define (OF_\w+)\(([^)]*)\) (.*)", TABLE):
        names = [part.strip() for part in parameters.split(",")]

        def fill(match: re.Match[str], names: list[str] = names, row: str = row) -> str:
            values = [part.strip() for part in match[1].split(",")]
            for key, value in zip(names, values, strict=True):
                row = re.sub(rf"\b{key}\b", lambda _, value=value: value, row)
            return row + "\n"

        text = re.sub(rf"(?<!define ){name}\(([^)]*)\)", fill, text)
    return text


ROWS = re.findall(r"^(FUNCTION|TYPE|METHOD|TENSOR_METHOD)\((.*?)\)$", expanded(), re.MULTILINE)


def parts_of(row: str) -> list[str]:
    return [part.strip().strip('"') for part in row.split(",")]


def has(module: str, name: str) -> bool:
    """Whether a module has it; torch's private functions lie in several."""
    if module != "torch":
        return hasattr(importlib.import_module(module), name)
    core = torch._C
    places = [torch, core, core._functorch, core._nn, core._VariableFunctions, core._dynamo.eval_frame]
    return any(hasattr(place, name) for place in places)


def test_the_table_was_read() -> None:
    assert len(ROWS) > 200
    assert {kind for kind, _ in ROWS} == {"FUNCTION", "TYPE", "METHOD", "TENSOR_METHOD"}


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[row for _, row in ROWS])
def test_a_row_names_something(kind: str, row: str) -> None:
    *where, does = parts_of(row)
    assert does in ENUM
    if where[-1].startswith(("_cuda_get", "_cuda_isInBadFork")) and torch.version.cuda is None:
        pytest.skip("torch for the CPU has no functions for CUDA")
    if kind in {"FUNCTION", "TYPE"}:
        assert has(*where)
    if kind == "TENSOR_METHOD":
        assert hasattr(torch.Tensor, where[0]) or where[0] in {
            "__div__",
            "__idiv__",
            "__long__",
            "__nonzero__",
        }
    if kind == "METHOD" and where[1] != "*" and "." not in where[0] and where[0] not in UNNAMED:
        assert hasattr(getattr(importlib.import_module("builtins"), where[0]), where[1])


TRUSTED = re.findall(
    r'^(?:TRUSTED|WATCHED|BOOKKEEPING|DISPATCHES|RESTORES|RUNS_HOOKS)\(\s*"([^"]+)",\s*"([^"]*)",\s*"([^"]+)"\)',
    (CORE / "torch/trusted_code.def").read_text(),
    re.MULTILINE,
)


@pytest.mark.parametrize(("file", "name", "why"), TRUSTED, ids=[file for file, _, _ in TRUSTED])
def test_trusted_code_exists(file: str, name: str, why: str) -> None:
    path = Path(torch_folder()) / file
    assert path.exists()
    assert why
    if name:
        assert f"def {name.rpartition('.')[2]}(" in path.read_text()


def test_special_methods_are_distinct() -> None:
    names = re.findall(r"^SPECIAL\((\w+)\)", (CORE / "cpython/special_methods.def").read_text(), re.MULTILINE)
    assert len(names) == len(set(names)) > 80
