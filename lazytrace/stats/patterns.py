"""What keeps going wrong, by name, each with what to do about it; pure functions of snapshots."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lazytrace.originals import BUILTINS
from lazytrace.stats.model import Event, Program, Reason, Snapshot
from lazytrace.stats.reasons import row_of

__builtins__ = BUILTINS

# Twice may be chance: a last batch that is smaller, an evaluation.
_OFTEN = 3
# With this many hits for each recording, what varies has paid for itself.
_PAID = 16
_SHOWN = 4
_LONGEST = 40
# How programs name what Python has asked of a tensor.
_SIZE: Final = re.compile(r"\b(size|stride|offset|numel|contiguous)\(")
_READ: Final = re.compile(r"(?P<what>.*) (?P<value>\S+) \((?P<place>[^()]*)\)")


@dataclass(frozen=True)
class Suggestion:
    """A pattern that was found in one function, and a sentence on what to do.

    `pattern` is "varying value", "unread argument", "varying dimension", "varying state", "varying branch",
    "size that is read",
    "decorated in a loop", "thrash", "same program per instance" or "repeated eager call"; `where` is the line
    to look at.

    >>> str(Suggestion("step", "varying value", "k differs at each call.", "train.py:9", 7))
    'step: k differs at each call. (train.py:9)'
    """

    function: str
    pattern: str
    text: str
    where: str = ""
    count: int = 0

    def __str__(self) -> str:
        return f"{self.function}: {self.text}" + (f" ({self.where})" if self.where else "")


def suggestions(snapshots: Sequence[Snapshot]) -> tuple[Suggestion, ...]:
    """Every pattern in the events and counts of some functions, each once.

    >>> event = Event("recorded", "step", 0, 0.0, 0.0, "", 0, "train.py:9", {}, (), True)
    >>> suggestions([Snapshot("step", recordings=1, events=(event,))])
    ()
    """
    found = [one for snapshot in snapshots for rule in _RULES for one in rule(snapshot)]
    return (*found, *_made_in_loops(snapshots))


def wasted(snapshot: Snapshot) -> tuple[int, int, float, str]:
    """Recordings, hits, seconds recording, and a sentence on what caused most of the recordings.

    >>> wasted(Snapshot("step", hits=2, recordings=16, seconds_recording=0.5))
    (16, 2, 0.5, 'No single argument or value causes it.')
    """
    retraces = [event for event in snapshot.events if event.retrace]
    paths = Counter(reason.path for event in retraces for reason in event.reasons)
    cause = "No single argument or value causes it."
    for path, times in paths.most_common(1):
        reasons = [reason for event in retraces for reason in event.reasons if reason.path == path]
        never = ", and the function never reads it" if is_unread(snapshot, path) else ""
        cause = f"{path} changed {times} times ({_values(reasons)}){never}."
    return snapshot.recordings, snapshot.hits, snapshot.seconds_recording, cause


def _values(reasons: Sequence[Reason]) -> str:
    """The distinct values in the order of their first appearance, the first few of them."""
    values = list(dict.fromkeys([reasons[0].old, *(reason.new for reason in reasons)]))
    shown = [v if len(v) <= _LONGEST else v[: _LONGEST - 3] + "..." for v in values[:_SHOWN]]
    return ", ".join([*shown, f"and {len(values) - _SHOWN} more"] if len(values) > _SHOWN else shown)


def sizes_read(programs: Sequence[Program]) -> dict[tuple[str, str], list[str]]:
    """The sizes that Python has looked at, by (size, line), each with the values that there are programs for.

    >>> sizes_read([Program("x: float32[?]", 0, reads=("size(r0, 0) 3 (train.py:4)",))])
    {('size(r0, 0)', 'train.py:4'): ['3']}
    """
    found: dict[tuple[str, str], list[str]] = {}
    for program in programs:
        for text in program.reads:
            read = _READ.fullmatch(text)
            if read is not None and _SIZE.search(read["what"]):
                values = found.setdefault((read["what"], read["place"]), [])
                values += [read["value"]] * (read["value"] not in values)
    return found


def _by_path(snapshot: Snapshot, *kinds: str) -> Iterator[tuple[str, list[tuple[Event, Reason]]]]:
    """Each path that changed often, with its changes."""
    found: dict[str, list[tuple[Event, Reason]]] = {}
    for event in snapshot.events:
        for reason in event.reasons if event.retrace else ():
            if reason.kind in kinds:
                found.setdefault(reason.path, []).append((event, reason))
    yield from ((path, pairs) for path, pairs in found.items() if _distinct(pairs) >= _OFTEN)


def _distinct(pairs: Sequence[tuple[Event, Reason]]) -> int:
    return len({pairs[0][1].old, *(reason.new for _, reason in pairs)})


def _changes(
    snapshot: Snapshot, pattern: str, advice: str, *kinds: str, unread: bool = False
) -> Iterator[Suggestion]:
    if snapshot.hits > _PAID * snapshot.recordings:
        return
    for path, pairs in _by_path(snapshot, *kinds):
        if is_unread(snapshot, path) != unread:
            continue
        event, reason = pairs[-1]
        values = _values([one for _, one in pairs])
        text = f"{path} had {_distinct(pairs)} different values ({values}): {advice}"
        yield Suggestion(snapshot.name, pattern, text, _line(reason) or event.where, len(pairs))


def _line(reason: Reason) -> str:
    """The place that a reason is about, without what is said around it."""
    return reason.where if reason.kind == "branch" else ""


def _varying_values(snapshot: Snapshot) -> Iterator[Suggestion]:
    advice = (
        "each value is recorded by itself. Pass it as a tensor, torch.tensor(value), "
        "or use it outside the traced function."
    )
    return _changes(snapshot, "varying value", advice, "value", "structure")


def _unread_arguments(snapshot: Snapshot) -> Iterator[Suggestion]:
    advice = (
        "the function never reads it, and yet each value is recorded by itself. Pass the same value at each "
        "call, or leave the argument out."
    )
    return _changes(snapshot, "unread argument", advice, "value", "structure", unread=True)


def is_unread(snapshot: Snapshot, path: str) -> bool:
    """Whether a path starts at a parameter that the function never reads.

    >>> is_unread(Snapshot("step", unread=("i",)), "i"), is_unread(Snapshot("step"), "type(i)")
    (True, False)
    """
    name = re.match(r"(?:type\(|len\()?(\w+)", path)
    return name is not None and name[1] in snapshot.unread


def _varying_dimensions(snapshot: Snapshot) -> Iterator[Suggestion]:
    # Of no help where sizes could not be followed, so it is said only where nobody tried.
    asked = (
        ", as dynamic=False asks. Leave dynamic at None for one program of all sizes, or pad"
        if snapshot.dynamic is False
        else ". Pad"
    )
    advice = (
        f"each size is recorded by itself{asked} or bucket to a few sizes; drop_last=True of a DataLoader "
        "does away with a smaller last batch."
    )
    return _changes(snapshot, "varying dimension", advice, "shape")


def _varying_state(snapshot: Snapshot) -> Iterator[Suggestion]:
    advice = (
        "the function reads it, so each value is recorded by itself. Keep it as a tensor and write to that "
        "in place, or pass it as a tensor argument."
    )
    return _changes(snapshot, "varying state", advice, "state", "mode")


def _varying_branches(snapshot: Snapshot) -> Iterator[Suggestion]:
    advice = (
        "Python looks at this value, so each one is recorded by itself. Use torch.where, or move the branch "
        "into a @script_if_tracing function."
    )
    for found in _changes(snapshot, "varying branch", advice, "branch"):
        if not _SIZE.search(found.text.partition(" had ")[0]):
            yield found


def _varying_sizes(snapshot: Snapshot) -> Iterator[Suggestion]:
    advice = (
        "Python needs this size, so each of its values is recorded by itself. Leave it to an operator, in "
        "place of range(), an index, a format or a C function; or pad it to a few buckets."
    )
    for found in _changes(snapshot, "size that is read", advice, "branch"):
        if _SIZE.search(found.text.partition(" had ")[0]):
            yield found


def _thrash(snapshot: Snapshot) -> Iterator[Suggestion]:
    if snapshot.evictions < _OFTEN or snapshot.limit_enough is None:
        return
    text = (
        f"its signatures alternate beyond cache_limit={snapshot.cache_limit}, so recordings are dropped and "
        f"made again: {limit_advice(snapshot)}."
    )
    yield Suggestion(snapshot.name, "thrash", text, snapshot.source, snapshot.evictions)


def limit_advice(snapshot: Snapshot) -> str:
    """What `cache_limit` would have done, of a function that went past its own.

    >>> limit_advice(Snapshot("step", limit_enough=7))
    'cache_limit=7 would have been enough'
    """
    if snapshot.limit_exact:
        return f"cache_limit={snapshot.limit_enough} would have been enough"
    # Its recordings differ in which objects they saw, and these may never come again.
    more = f"cache_limit={snapshot.limit_enough} or more"
    return f"{more} would have been needed, and helps only if the same objects come again"


def _instances(snapshot: Snapshot) -> Iterator[Suggestion]:
    same: dict[tuple[int, frozenset[tuple[str, str]]], set[int]] = {}
    for event in snapshot.events:
        if event.kind == "recorded" and event.instance:
            same.setdefault((event.operators, frozenset(event.signature.items())), set()).add(event.instance)
    most = max((len(numbers) for numbers in same.values()), default=0)
    if most < _OFTEN:
        return
    text = (
        f"{most} instances each recorded the same program. Keep the instances, if they are made anew each "
        "time; or trace a function that takes what differs between them as tensor arguments."
    )
    yield Suggestion(snapshot.name, "same program per instance", text, snapshot.source, most)


# Of a reason that is in no table, as those of reports that another version has written.
_ADVICE: Final = "take that out of the traced function, or wrap the helper that does it in lazytrace.opaque."


def _eager(snapshot: Snapshot) -> Iterator[Suggestion]:
    for text, count in snapshot.eager.items():
        row = row_of(text)
        advice = row.advice if row is not None else _ADVICE
        if count < _OFTEN or not advice:
            continue
        said = f"ran eagerly {count} times, {text}: {advice}"
        yield Suggestion(snapshot.name, "repeated eager call", said, "", count)


def _made_in_loops(snapshots: Sequence[Snapshot]) -> Iterator[Suggestion]:
    made: dict[tuple[str, str], int] = {}
    for snapshot in snapshots:
        if snapshot.source and snapshot.recordings:
            place = snapshot.name, snapshot.source
            made[place] = max(made.get(place, 0), snapshot.made)
    for (name, source), times in made.items():
        if times >= _OFTEN:
            text = (
                f"was decorated {times} times, and each decoration starts without recordings: decorate it "
                "once, outside the loop or the function that makes it."
            )
            yield Suggestion(name, "decorated in a loop", text, source, times)


def _untraced_calls(snapshot: Snapshot) -> Iterator[Suggestion]:
    for method in snapshot.untraced:
        text = (
            f"{method} calls self(...), which runs the plain module: decorate the method with @traced, or "
            "call the traced module outside it."
        )
        yield Suggestion(snapshot.name, "untraced call", text, snapshot.source, 1)


_RULES: Final[tuple[Callable[[Snapshot], Iterator[Suggestion]], ...]] = (
    _varying_values,
    _unread_arguments,
    _varying_dimensions,
    _varying_state,
    _varying_branches,
    _varying_sizes,
    _thrash,
    _instances,
    _eager,
    _untraced_calls,
)
