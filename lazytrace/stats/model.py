"""What is counted, as data only: reasons, events, hits, programs, and the snapshot that holds them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from lazytrace.originals import BUILTINS
from lazytrace.stats.words import line_of

__builtins__ = BUILTINS

Kind = Literal["recorded", "eager", "evicted"]


@dataclass(frozen=True, slots=True)
class Reason:
    """One difference to the nearest known trace, or one cause of an eager call or an eviction.

    `path` is what a person would write (`x.shape[0]`, `global SCALE`, `grad_mode`), `old` and `new` its two
    values as text; both are empty where the path says it all. `kind` is "shape", "dtype", "device", "layout",
    "grad", "structure", "memory", "mode" or "value" for what the signature holds, "state" for Python state,
    "branch" for a value that Python looked at, and "first", "eager" or "limit" for what is no difference.
    `where` is the place that it is about.

    >>> str(Reason("scale", "2.0", "3.0", "state", "closure of step, model.py:12"))
    'scale 2.0 -> 3.0 (closure of step, model.py:12)'
    """

    path: str
    old: str = ""
    new: str = ""
    kind: str = "state"
    where: str = ""

    def __str__(self) -> str:
        change = f" {self.old} -> {self.new}" if self.old or self.new else ""
        return f"{self.path}{change}" + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True, slots=True)
class Event:
    """One recording, eager call or eviction.

    `number` orders the events of a process; `time` is the start in seconds since the epoch (it never runs
    backwards), `seconds` what the call took. `where` is the line that called, `signature` every property of
    the call by its path ({} where it was not looked at), `reasons` all differences to the nearest trace.
    `instance` numbers the object whose method it was, 0 for none.

    >>> event = Event("eager", "step", 7, 0.0, 0.5, "MainThread", 1, "train.py:9", {}, (Reason("disabled"),))
    >>> event.line()
    'step: ran eagerly in 500.0 ms, called at train.py:9: disabled'
    """

    kind: Kind
    function: str
    number: int
    time: float
    seconds: float
    thread: str
    thread_id: int
    where: str
    signature: Mapping[str, str]
    reasons: tuple[Reason, ...]
    retrace: bool = False
    operators: int = 0
    instance: int = 0

    @property
    def topic(self) -> str:
        """The logger that tells of it: "record", "retrace", "eager" or "evict"."""
        return topic_of(self.kind, self.retrace)

    def line(self) -> str:
        """The event in one line, as logging shows it."""
        verb = {"record": "recorded", "retrace": "retraced", "eager": "ran eagerly", "evict": "evicted"}
        took = f" in {self.seconds * 1e3:.1f} ms" if self.kind != "evicted" else ""
        place = f", called at {self.where}" if self.where else ""
        text = f"{self.function}: {verb[self.topic]}{took}{place}: {line_of(self.reasons)}"
        return text.replace("\r", "\\r").replace("\n", "\\n")

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, ready for JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        plain["signature"] = dict(self.signature)
        plain["reasons"] = [{n: getattr(r, n) for n in Reason.__slots__} for r in self.reasons]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Event:
        """The event behind `as_dict`; raises `KeyError` or `TypeError` where it is none."""
        return cls(**{**plain, "reasons": tuple(Reason(**reason) for reason in plain["reasons"])})


@dataclass(frozen=True, slots=True)
class Hit:
    """A timed hit: its start (seconds since the epoch), its seconds, those of the guard check, its thread."""

    time: float
    seconds: float
    checking: float
    thread: str
    thread_id: int


@dataclass(frozen=True)
class Retrace:
    """One reason for retracing: how many recordings it caused, and the seconds that these took.

    `paths` are what changed, without the values; `where` is the line that made the newest of the calls.

    >>> Retrace("x.shape[0] 64 -> 13", count=3, seconds=0.0012, paths=("x.shape[0]",)).count
    3
    """

    text: str
    count: int
    seconds: float
    paths: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True)
class Step:
    """One step of a program as text, and the line of the user's code that it comes from.

    >>> Step("r1 = aten::tanh(r0)", "train.py:12", "return torch.tanh(x)").place
    'train.py:12'
    """

    text: str
    place: str
    source: str


@dataclass(frozen=True)
class Program:
    """A stored program: what it answers, what it does and how big it is.

    Programs with one `signature_id` answer the same arguments: each is a branch, told apart by `guards` (the
    state that it was recorded under) and by `reads`, the values that Python looked at. `effects` says that it
    writes to what outlives the call, `random` that it draws random numbers, `bytes` what its literals take.
    `promised` counts the guards on state that are left out of `guards`, as it is promised not to change.
    `flat` says how its backward passes run: "" where it has none or was hit too rarely, "flat" where kernels
    have taken the place of graphs, "one node" where that is so for a graph that it leaves to its caller,
    otherwise why autograd's engine runs them. `varies` are the sizes of
    arguments that may differ between the calls that it answers.

    >>> Program("x: float32[3]", 0, operators=2, reads=("is_nonzero True (train.py:4)",)).reads
    ('is_nonzero True (train.py:4)',)
    """

    signature: str
    signature_id: int
    operators: int = 0
    guards: int = 0
    reads: tuple[str, ...] = ()
    effects: bool = False
    random: bool = False
    bytes: int = 0
    instance: int = 0
    steps: tuple[Step, ...] = ()
    flat: str = ""
    promised: int = 0
    varies: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Snapshot:
    """The counts of one traced function at one moment.

    Every call is exactly one of `hits`, `recordings` (recorded and stored), `eager_calls` and `inlined`
    (recorded into an outer traced function); `retraces` are the recordings after an owner's first.
    `eager` maps each reason to its calls. `operators` has the operators of each stored program, oldest first,
    the newest 1000. `retrace_reasons` has the newest 200 distinct reasons, newest last, and
    `retrace_reasons_dropped` counts the retraces of the others. `cache_size` and `cache_limit` count traces;
    `limit_enough` is the `cache_limit` that no call would have gone past, None where none did; without
    `limit_exact` it may be more.
    `parameters`, as in `"(x, w)"`, may follow the name where a reason speaks of arguments.

    `seconds_recording` holds recordings that were given up too; `seconds_eager` the other eager calls.
    `seconds_hits` and `seconds_checking` (of those, in guards) are of the `hits_timed` hits only.
    `eager_seconds` and `eager_called_at` tell of each eager reason what it took and the line that called
    last. `events` are the newest, oldest first, `timeline` the newest timed hits; `programs` is filled in
    reports only. `source` is the line of the function, `made` how often a function of that line was
    decorated. `unread` names the parameters that the function never reads, `dynamic` is that option.
    `untraced` names the methods of a traced module that call the module itself, which is then not traced.
    `seconds_run`, `seconds_verdict`, `seconds_lowering` and `seconds_proof` are the phases of the recordings:
    see `Phases`. `promised` counts the guards that are left out, since state is promised not to change.

    >>> snapshot = Snapshot("step", hits=8, recordings=1, eager={"calls x.tolist() (train.py:41)": 2})
    >>> snapshot.calls, snapshot.eager_calls
    (11, 2)
    >>> snapshot
    Snapshot('step', hits=8, recordings=1, retraces=0, eager=2, inlined=0)
    """

    name: str
    hits: int = 0
    recordings: int = 0
    retraces: int = 0
    evictions: int = 0
    inlined: int = 0
    eager: dict[str, int] = field(default_factory=dict)
    proof_failures: int = 0
    seconds_recording: float = 0.0
    operators: tuple[int, ...] = ()
    retrace_reasons: tuple[Retrace, ...] = ()
    retrace_reasons_dropped: int = 0
    cache_size: int = 0
    cache_limit: int = 0
    limit_enough: int | None = None
    parameters: str = ""
    seconds_eager: float = 0.0
    seconds_hits: float = 0.0
    seconds_checking: float = 0.0
    hits_timed: int = 0
    eager_seconds: dict[str, float] = field(default_factory=dict)
    eager_called_at: dict[str, str] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    timeline: tuple[Hit, ...] = ()
    programs: tuple[Program, ...] = ()
    source: str = ""
    made: int = 1
    limit_exact: bool = True
    unread: tuple[str, ...] = ()
    dynamic: bool | None = None
    untraced: tuple[str, ...] = ()
    promised: int = 0
    seconds_run: float = 0.0
    seconds_verdict: float = 0.0
    seconds_lowering: float = 0.0
    seconds_proof: float = 0.0

    def __repr__(self) -> str:
        counts = f"hits={self.hits}, recordings={self.recordings}, retraces={self.retraces}"
        return f"Snapshot({self.name!r}, {counts}, eager={self.eager_calls}, inlined={self.inlined})"

    @property
    def seconds_lost(self) -> float:
        """What was spent on anything but hits.

        >>> Snapshot("step", seconds_recording=0.5, seconds_eager=0.25).seconds_lost
        0.75
        """
        return self.seconds_recording + self.seconds_eager

    @property
    def happened(self) -> tuple[Event | Hit, ...]:
        """The events and timed hits that are kept, in the order of their starts.

        >>> Snapshot("step").happened
        ()
        """
        every: list[Event | Hit] = [*self.events, *self.timeline]
        return tuple(sorted(every, key=lambda one: one.time))

    @property
    def eager_calls(self) -> int:
        """Calls that ran eagerly, whatever the reason.

        >>> Snapshot("step", eager={"disabled": 2, "calls x.item()": 1}).eager_calls
        3
        """
        return sum(self.eager.values())

    @property
    def calls(self) -> int:
        """All calls: hits, recordings, eager and inlined calls.

        >>> Snapshot("step", hits=5, recordings=1, inlined=1).calls
        7
        """
        return self.hits + self.recordings + self.eager_calls + self.inlined

    def as_dict(self) -> dict[str, object]:
        """The same as plain dicts, lists and numbers, ready for JSON, with `calls` and `eager_calls`.

        >>> Snapshot("step", hits=5).as_dict()["calls"]
        5
        """
        plain: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["operators"] = list(self.operators)
        plain["unread"], plain["untraced"] = list(self.unread), list(self.untraced)
        for name in ("retrace_reasons", "timeline", "programs"):
            plain[name] = [_listed(asdict(one)) for one in plain[name]]
        plain["events"] = [event.as_dict() for event in self.events]
        return {**plain, "calls": self.calls, "eager_calls": self.eager_calls}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Snapshot:
        """The snapshot behind `as_dict`; raises `KeyError` or `TypeError` where it is none.

        >>> Snapshot.from_dict(Snapshot("step", hits=5).as_dict()).hits
        5
        """
        known = {f.name: plain[f.name] for f in fields(cls) if f.name in plain}
        known["operators"] = tuple(known.get("operators", ()))
        for name in ("unread", "untraced"):
            known[name] = tuple(known.get(name, ()))
        known["retrace_reasons"] = tuple(_made(Retrace, one) for one in plain.get("retrace_reasons", ()))
        known["events"] = tuple(Event.from_dict(one) for one in plain.get("events", ()))
        known["timeline"] = tuple(Hit(**one) for one in plain.get("timeline", ()))
        known["programs"] = tuple(_program(one) for one in plain.get("programs", ()))
        return cls(**known)


def _listed(plain: dict[str, Any]) -> dict[str, Any]:
    """Tuples as the lists that JSON has."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _made(kind: Callable[..., Any], plain: Mapping[str, Any]) -> Any:
    """The instance behind such a dict."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()})


def _program(plain: Mapping[str, Any]) -> Program:
    made: Program = _made(Program, {**plain, "steps": [Step(**step) for step in plain["steps"]]})
    return made


def topic_of(kind: Kind, retrace: bool) -> str:
    """The topic of an event, as `log_events` and the loggers name it.

    >>> topic_of("recorded", retrace=True)
    'retrace'
    """
    if kind == "recorded":
        return "retrace" if retrace else "record"
    return "eager" if kind == "eager" else "evict"
