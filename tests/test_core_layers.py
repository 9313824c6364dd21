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
    "passes",
    "guard",
    "signature",
    "replay",
    "exits",
    "flat",
    "trace",
    "record/operators",
    "record/python",
    "record",
    "call",
    "",
)

# The same between the files of record/python, each of which is one type: what watches a recording rests on
# what judges calls, that on what is read and written, and all of it on where objects come from.
WATCHING = (
    "escapes",
    "callables",
    "code_facts",
    "pause",
    "swaps",
    "text_exchange",
    "asked",
    "originals",
    "exchange",
    "gradients",
    "log_call",
    "whole_calls",
    "within_reach",
    "handed_on",
    "placed",
    "touched",
    "variables_with",
    "provenance",
    "unseen",
    "flags",
    "new_objects",
    "asides",
    "places",
    "opaque_call",
    "watched_blocks",
    "reads/classes",
    "reads/live_lists",
    "reads/drawn_entries",
    "reads/cached_entries",
    "early_stores",
    "reads/late_reads",
    "reads/containers",
    "handle_keys",
    "default_dicts",
    "reads/attributes",
    "reads/names",
    "reads/consumption",
    "reads/functions",
    "pure_functions",
    "state_writes",
    "calls/context_variables",
    "unwinding",
    "handlers",
    "calls/warnings",
    "calls/protocols",
    "calls/calls",
    "instructions",
    "modules",
    "watcher",
    "observer",
)
WATCHERS = [path for path in FILES if path.relative_to(CORE).as_posix().startswith("record/python/")]


def label(path: Path) -> str:
    return path.relative_to(CORE).as_posix()


def folder_of(name: str) -> str:
    """The folder that has a place in ORDER; rooms inside record/python have theirs in WATCHING."""
    return "record/python" if name.startswith("record/python/") else name.rpartition("/")[0]


def stem_of(name: str) -> str:
    return name.removeprefix("record/python/").rpartition(".")[0]


def included(path: Path) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=label)
def test_includes_point_down(path: Path) -> None:
    own = folder_of(label(path))
    assert own in ORDER, f"give {own!r} a place in ORDER"
    for name in included(path):
        assert (CORE / name).is_file(), f"{label(path)} names {name} by another path than from csrc/"
        assert ORDER.index(folder_of(name)) <= ORDER.index(own), f"{label(path)} may not include {name}"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_passes_run_in_one_place(path: Path) -> None:
    """Whoever makes a program has its plan made by `make_plan`: nobody else has a list of passes."""
    passes = {*included(CORE / "passes" / "plan.cpp")} - {"passes/plan.h"}
    known = passes & {*included(path)} - {label(path).replace(".cpp", ".h")}
    assert not known or label(path) == "passes/plan.cpp", f"{label(path)} may not include {known}"


@pytest.mark.parametrize("path", WATCHERS, ids=label)
def test_watching_points_down(path: Path) -> None:
    own = stem_of(label(path))
    assert own in WATCHING, f"give {own!r} a place in WATCHING"
    for name in included(path):
        if folder_of(name) == "record/python" and stem_of(name) != own:
            below = WATCHING.index(stem_of(name)) < WATCHING.index(own)
            assert below, f"{label(path)} may not include {name}"


@pytest.mark.parametrize("path", WATCHERS, ids=label)
def test_no_type_above_is_named(path: Path) -> None:
    own = WATCHING.index(stem_of(label(path)))
    for above in WATCHERS:
        if above.suffix != ".h" or WATCHING.index(stem_of(label(above))) <= own:
            continue
        for name in re.findall(r"^class (\w+) \{", above.read_text(), re.MULTILINE):
            use = re.search(rf"class {name};|(?<!::)\b{name}(\*|&|::)", path.read_text())
            assert not use, f"{label(path)} knows {name} of {label(above)}"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_only_one_folder_knows_the_interpreter(path: Path) -> None:
    """How frames are laid out and how opcodes are numbered differs from one CPython to the next."""
    if folder_of(label(path)) != "cpython":
        assert not re.search(r"_PyInterpreterFrame|pycore_|<opcode\.h>", path.read_text())


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".h"], ids=label)
def test_headers_say_why_they_exist(path: Path) -> None:
    first, second = path.read_text().split("\n")[:2]
    assert first.startswith("// "), f"{label(path)} has no first line that says what it is for"
    assert "#pragma once" in path.read_text().split("\n")[:4], f"{label(path)}: {second}"
