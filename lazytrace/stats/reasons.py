"""Reasons for eager calls by code: which one a text is, and what to do about it.

The core's reasons come from its own table; those that Python gives itself stand here.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from lazytrace._native import NOT_IMPORTED, OTHER_TORCH, available, core
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

_BRANCHES = "use torch.where, or move the branch into a @script_if_tracing function."
_OFTEN = "see with explain() what differs from call to call, and keep it out of what the function reads."
_PLACE: Final = re.compile(r" \([^()]+:\d+\)$")
_REBUILD = "build the extension: python setup.py build_ext --inplace."

# Code, text and advice, as in the core's table; no advice: asked for, or passing by itself.
_OWN: Final = (
    ("inlined", "runs inside another recording", ""),
    ("disabled", "lazytrace is disabled", ""),
    ("backend-eager", 'backend="eager"', ""),
    ("other-tracer", "runs inside another tracer or transform", ""),
    (
        "too-many-branches",
        "too many branches: {}; a @script_if_tracing function keeps them in one program",
        _BRANCHES,
    ),
    (
        "cache-limit",
        "cache_limit={} was reached",
        "raise cache_limit, or let it evict with on_limit='evict'.",
    ),
    (
        "total-limit",
        "LAZYTRACE_TOTAL_LIMIT={} was reached",
        "raise LAZYTRACE_TOTAL_LIMIT, or trace fewer functions.",
    ),
    (
        "records-too-often",
        "records too often: none of its last {} recordings was hit",
        _OFTEN,
    ),
    (
        "seldom-hit",
        "records too often: its last {} recordings were hit fewer than {} times",
        _OFTEN,
    ),
    ("no-core", NOT_IMPORTED, _REBUILD),
    ("other-torch", OTHER_TORCH, _REBUILD),
    (
        "raised",
        "raised {}",
        "what raises while it is recorded is not kept; handle the exception outside the traced function.",
    ),
    (
        "recorded-elsewhere",
        "another thread is recording this signature",
        "call it once before the threads start: lazytrace.warmup() does.",
    ),
    (
        "outgrown",
        "values say how large a result is, and another size came: the next call is recorded for all sizes",
        "",
    ),
    (
        "changed-meanwhile",
        "another thread changed what it was called with",
        "give each thread arguments of its own.",
    ),
    (
        "argument-changed",
        "an argument changed while it was recorded",
        "return the value instead of changing the argument.",
    ),
    ("do-not-fit", "the arguments do not fit the parameters", "call it as it is declared."),
    (
        "replay-differed",
        "its replay differed from the eager result",
        "report it as a bug of lazytrace; until then keep the function out of @traced.",
    ),
    (
        "other-way",
        "Python asked for something else than it did when it was recorded: {}",
        "let the function depend on its arguments and on state that it reads only.",
    ),
    (
        "stopped-halfway",
        "a replay could not be brought to an end: {}",
        "let opaque functions and hooks change what the function reads behind them alone, or return it.",
    ),
    ("frozen", "is frozen: {}", "call it with each signature before freeze()."),
    (
        "retrace-refused",
        "has on_retrace='raise': {}",
        "call it with each signature before, or with on_retrace='warn'.",
    ),
)


_TEXTS: Final = {code: text for code, text, _ in _OWN}


def say(code: str, *values: object) -> str:
    """The text of a reason that Python gives, with its places filled.

    >>> say("cache-limit", 64)
    'cache_limit=64 was reached'
    """
    return _TEXTS[code].format(*values)


@dataclass(frozen=True)
class Row:
    """One reason: its code, its text with `{}` for what varies, and what to do about it ("": nothing)."""

    code: str
    template: str
    advice: str

    @functools.cached_property
    def _parts(self) -> list[str]:
        return self.template.split("{}")

    def fits(self, text: str) -> bool:
        """Whether the text may be made of this template, with something in each of its places.

        Compiled patterns would find the same, but to compile all takes longer than to record a function.

        >>> Row("a", "calls {} of {}", "").fits("calls f of g of h")
        True
        >>> Row("a", "calls {} of {}", "").fits("calls f of ")
        False
        """
        first, *rest = self._parts
        if not rest or not text.startswith(first):
            return text == first
        at = len(first)
        for part in rest[:-1]:
            at = text.find(part, at + 1)
            if at < 0:
                return False
            at += len(part)
        return len(text) > at + len(rest[-1]) and text.endswith(rest[-1])


@functools.cache
def rows() -> tuple[Row, ...]:
    """Every reason that is known, those with the most words first.

    >>> [row.template for row in rows() if row.code == "takes-array"]
    ['takes a numpy array']
    """
    known = [Row(*row) for row in (*_OWN, *(core.reasons() if available() else ()))]
    return tuple(sorted(known, key=lambda row: len(row.template.replace("{}", "")), reverse=True))


def row_of(text: str) -> Row | None:
    """The reason that a text was made of: of several that fit, the one with the most words; None of none.

    The line that a report puts behind a text is no part of it.

    >>> row_of("calls .tolist() of a tensor (train.py:41)").code
    'tensor-escapes'
    """
    words = _PLACE.sub("", text)
    return next((row for row in rows() if row.fits(words)), None)


def reason_code(text: str) -> str:
    """The code of a reason, which stays the same where its words change; "" of a text that is none.

    Codes are words with hyphens, as `takes-array`. `Snapshot.eager` and `Explanation.reasons` hold the texts.

    >>> reason_code("takes a numpy array")
    'takes-array'
    >>> reason_code("something else")
    ''
    """
    row = row_of(text)
    return row.code if row is not None else ""
