"""From snapshots to text: the report, a pure function of what was counted."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lazytrace.stats.model import Retrace, Snapshot
from lazytrace.stats.patterns import limit_advice, sizes_read, suggestions
from lazytrace.stats.reasons import say
from lazytrace.stats.report.document import by_loss

if TYPE_CHECKING:
    from rich.table import Table

# rich is imported where a table is drawn: most programs that import lazytrace never print a report.

_WIDTH = 100
_NARROWEST_NAME = 24
_GAP = 2
_UNBOUNDED = 10_000
_TOLD_APART = 3
_SIZES_SHOWN = 6
_NOTHING = "lazytrace: no traced function was called\n"

_COLUMNS: tuple[tuple[str, Callable[[Snapshot], str]], ...] = (
    ("calls", lambda s: str(s.calls)),
    ("hits", lambda s: str(s.hits)),
    ("recorded", lambda s: str(s.recordings)),
    ("retraces", lambda s: str(s.retraces)),
    ("evicted", lambda s: str(s.evictions)),
    ("eager", lambda s: str(s.eager_calls)),
    ("inlined", lambda s: str(s.inlined)),
    ("rec.ms", lambda s: f"{s.seconds_recording * 1e3:.1f}"),
    ("eager.ms", lambda s: f"{s.seconds_eager * 1e3:.1f}"),
    ("ops/program", lambda s: _span(s.operators)),
    ("cache", lambda s: f"{s.cache_size}/{s.cache_limit}"),
)


def render(snapshots: Sequence[Snapshot], width: int | None = None, color: bool = False) -> str:
    """The report on `snapshots`: totals, a row per function that was called, every reason, and what to do.

    Functions come by the time that they lost (recording and eager), then by calls. `width`, in characters
    (100 where None), bounds the table as far as its figures allow; reasons stay on one line each, however
    long. Plain ASCII but for what names and reasons bring along, titles bold with `color`, ends with a
    newline.

    >>> print(render([Snapshot("step", hits=9, recordings=1, seconds_recording=0.002)]).splitlines()[0])
    lazytrace: 1 function, 10 calls: 9 hits (90.0 %), 1 recording (0 retraces, 2.0 ms), 0 eager, 0 inlined
    """
    called = by_loss(snapshots)
    if not called:
        return _NOTHING
    totals, *rest = [_totals(called), _table(called, width or _WIDTH)]
    parts = [_bold(totals) if color else totals, *rest]
    for title, body in _sections(snapshots, called):
        if body:
            lines = [f"  {_one_line(line)}" for line in body]
            parts.append("\n".join([_bold(title) if color else title, *lines]))
    return "\n\n".join(parts) + "\n"


def _sections(snapshots: Sequence[Snapshot], called: Sequence[Snapshot]) -> Iterator[tuple[str, list[str]]]:
    for title, lines in _SECTIONS:
        yield title, [line for snapshot in called for line in lines(snapshot)]
    yield "Suggestions", [str(one) for one in suggestions(snapshots)]


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"


def _totals(called: Sequence[Snapshot]) -> str:
    calls, hits = sum(s.calls for s in called), sum(s.hits for s in called)
    recordings, retraces = sum(s.recordings for s in called), sum(s.retraces for s in called)
    eager, inlined = sum(s.eager_calls for s in called), sum(s.inlined for s in called)
    spent = _milliseconds(sum(s.seconds_recording for s in called))
    return (
        f"lazytrace: {_plural(len(called), 'function')}, {_plural(calls, 'call')}: "
        f"{_plural(hits, 'hit')} ({_percent(hits, calls)} %), "
        f"{_plural(recordings, 'recording')} ({_plural(retraces, 'retrace')}, {spent}), "
        f"{eager} eager, {inlined} inlined"
    )


def _table(called: Sequence[Snapshot], width: int) -> str:
    from rich.table import Table
    from rich.text import Text

    figures = [[title, *(cell(snapshot) for snapshot in called)] for title, cell in _COLUMNS]
    taken = sum(_GAP + max(map(len, column)) for column in figures)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    # Only names fold: a figure that lost its end would be read as another figure.
    table.add_column("function", overflow="fold", max_width=max(_NARROWEST_NAME, width - taken))
    for title, *_ in figures:
        table.add_column(title, justify="right", no_wrap=True)
    for snapshot, *cells in zip(called, *(column[1:] for column in figures), strict=True):
        table.add_row(Text(_one_line(snapshot.name)), *cells)
    return _printed(table)


def _printed(table: Table) -> str:
    from rich.console import Console

    out = io.StringIO()
    # Size, colors and jupyter are all given, so that nothing of the terminal or the environment gets in.
    console = Console(
        file=out,
        width=_UNBOUNDED,
        height=25,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _retraces(s: Snapshot) -> Iterator[str]:
    for text, count, seconds, where in _together(s.retrace_reasons):
        at = f", called at {where}" if where else ""
        yield f"{s.name}{s.parameters}: {text}   x{count}, {_milliseconds(seconds)}{at}"
    if s.retrace_reasons_dropped:
        yield f"{s.name}: {_plural(s.retrace_reasons_dropped, 'older retrace')} for reasons not listed here"


def _together(reasons: Sequence[Retrace]) -> Iterator[tuple[str, int, float, str]]:
    """Reasons as (text, count, seconds, line); many that differ only in their values become one."""
    same: dict[tuple[str, ...], list[Retrace]] = {}
    for reason in reasons:
        same.setdefault(reason.paths or (reason.text,), []).append(reason)
    for paths, found in same.items():
        if len(found) <= _TOLD_APART:
            yield from ((one.text, one.count, one.seconds, one.where) for one in found)
            continue
        # Of several paths each is said with its values.
        own = f"{paths[0]} " if len(paths) == 1 else ""
        first, last = found[0].text.removeprefix(own), found[-1].text.removeprefix(own)
        text = f"{', '.join(paths)} changed in {len(found)} ways: {first}, ..., {last}"
        yield text, sum(one.count for one in found), sum(one.seconds for one in found), found[-1].where


def _eager_calls(s: Snapshot) -> Iterator[str]:
    for reason, count in sorted(s.eager.items(), key=lambda item: -item[1]):
        yield f"{s.name}: {reason}   x{count}"


def _sizes(s: Snapshot) -> Iterator[str]:
    programs = [program for program in s.programs if program.varies]
    if not programs:
        return
    names = list(dict.fromkeys(name for program in programs for name in program.varies))
    shown = (
        [*names[:_SIZES_SHOWN], f"{len(names) - _SIZES_SHOWN} more"] if len(names) > _SIZES_SHOWN else names
    )
    fit = "program fits" if len(programs) == 1 else "programs fit"
    yield f"{s.name}{s.parameters}: {len(programs)} {fit} all sizes of {', '.join(shown)}"
    for (size, place), values in sizes_read(programs).items():
        if len(values) > 1:
            yield f"{s.name}: {size} is read in {place}, with a program for each of {', '.join(values)}"


def _limits(s: Snapshot) -> Iterator[str]:
    if s.limit_enough is None:
        return
    evictions = f" ({_plural(s.evictions, 'eviction')})" if s.evictions else ""
    yield f"{s.name}: {say('cache-limit', s.cache_limit)}{evictions}; {limit_advice(s)}"


def _proof_failures(s: Snapshot) -> Iterator[str]:
    if s.proof_failures:
        recordings = _plural(s.proof_failures, "recording")
        yield (
            f"{s.name}: {recordings} differed from the eager call when replayed; "
            "the eager results were returned. "
            "This is a bug of lazytrace: please report it together with the function"
        )


def _promised(s: Snapshot) -> Iterator[str]:
    if s.promised:
        yield f"{s.name}: {_plural(s.promised, 'guard')} on state left out, as freeze() promises no change"


_SECTIONS: tuple[tuple[str, Callable[[Snapshot], Iterator[str]]], ...] = (
    ("Retraces", _retraces),
    ("Eager calls", _eager_calls),
    ("Sizes", _sizes),
    ("Limits", _limits),
    ("Proof failures", _proof_failures),
    ("Promised state", _promised),
)


def _span(operators: Sequence[int]) -> str:
    if not operators:
        return "-"
    low, high = min(operators), max(operators)
    return str(low) if low == high else f"{low}-{high}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _percent(part: int, whole: int) -> str:
    # Rounded down: 100.0 is said only where it is all of them.
    return f"{1000 * part // whole / 10:.1f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
