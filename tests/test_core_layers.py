"""The rules of the C++ core: which folder may include which, and what each file says of itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parent.parent / "lazytrace" / "csrc"
FILES = sorted(path for path in CORE.rglob("*") if path.suffix in {".h", ".cpp", ".def"})

# From the bottom up: a file includes from its own folder, or from folders that stand before it.
ORDER = (
    "support",
    "cpython",
    "torch",
    "program",
    "guard",
    "signature",
    "replay",
    "passes",
    "exits",
    "trace",
    "record/operators",
    "record/python",
    "record",
    "call",
    "",
)


def label(path: Path) -> str:
    return path.relative_to(CORE).as_posix()


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def included(path: Path) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=label)
def test_includes_point_down(path: Path) -> None:
    own = folder_of(label(path))
    assert own in ORDER, f"give {own!r} a place in ORDER"
    for name in included(path):
        assert (CORE / name).is_file(), f"{label(path)} names {name} by another path than from csrc/"
        assert ORDER.index(folder_of(name)) <= ORDER.index(own), f"{label(path)} may not include {name}"


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".h"], ids=label)
def test_headers_say_why_they_exist(path: Path) -> None:
    first, second = path.read_text().split("\n")[:2]
    assert first.startswith("// "), f"{label(path)} has no first line that says what it is for"
    assert "#pragma once" in path.read_text().split("\n")[:4], f"{label(path)}: {second}"
