"""What a person may set: the options of `traced` and the `LAZYTRACE_*` variables, checked on the way in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast, get_args

from lazytrace.errors import OptionError, bad_environment, bad_option, unknown_option
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

OnLimit = Literal["evict", "eager", "raise"]
OnUntraceable = Literal["eager", "raise"]
OnRetrace = Literal["record", "warn", "raise"]
Backend = Literal["replay", "eager"]

LOG_TOPICS = ("record", "retrace", "eager", "evict")
REPORT_ENDINGS = (".json", ".csv", ".html", ".trace", ".txt", "/")
REPORT_TARGETS = "1, text, a file that ends with .json, .csv, .html, .trace or .txt, or a folder with a slash"

_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Options:
    """The options of one traced function; an instance is always valid.

    `cache_limit` counts traces, `on_limit` says what happens to the call that needs one more.
    `exit_limit` bounds the results that one side exit (a read, a data-dependent shape) has a branch for,
    `branch_limit` the branches of one signature; past either the signature runs eagerly.
    `dynamic` says what becomes of calls that differ from a recorded one in sizes alone: None records the
    first sizes for themselves and the second for all sizes, True records for all sizes at once, False each
    for itself.
    `buckets` says which sizes of arguments are padded, see `traced`.
    `ignore` names what may happen at recordings only, and not at replays: "print", "logging".
    `on_untraceable` says what happens to a call that cannot be replayed, `on_retrace` what happens to a call
    that needs a recording after the first, `check` whether a new program is proved by one replay, `backend`
    whether programs are replayed at all, `name` replaces the function's own name in reports, `events` counts
    the newest events that are kept. Raises `OptionError` where a value is not allowed.

    >>> Options(cache_limit=8).on_limit
    'evict'
    >>> Options(cache_limit=0)
    Traceback (most recent call last):
        ...
    lazytrace.errors.OptionError: traced(cache_limit=0): cache_limit must be an int of 1 or more. \
Pass that, or leave cache_limit out for its default.
    """

    cache_limit: int = 64
    on_limit: OnLimit = "evict"
    on_untraceable: OnUntraceable = "eager"
    on_retrace: OnRetrace = "record"
    check: bool = True
    backend: Backend = "replay"
    name: str | None = None
    exit_limit: int = 8
    branch_limit: int = 32
    events: int = 256
    ignore: tuple[str, ...] = ()
    dynamic: bool | None = None
    buckets: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_ignore(self.ignore)
        for limit in ("cache_limit", "exit_limit", "branch_limit", "events"):
            _check_limit(limit, getattr(self, limit))
        _check_choice("on_limit", self.on_limit, get_args(OnLimit))
        _check_choice("on_untraceable", self.on_untraceable, get_args(OnUntraceable))
        _check_choice("on_retrace", self.on_retrace, get_args(OnRetrace))
        _check_switch("check", self.check)
        if self.dynamic is not None and not isinstance(self.dynamic, bool):
            raise OptionError(bad_option("dynamic", self.dynamic, "None, True or False"))
        _check_buckets(self.buckets)
        _check_choice("backend", self.backend, get_args(Backend))
        _check_name(self.name)

    @classmethod
    def checked(cls, **options: object) -> Options:
        """Options from keywords as a person wrote them.

        Raises `OptionError` for a keyword that is no option, naming the closest one, and for a value that
        is not allowed.

        >>> Options.checked(on_limit="eager").on_limit
        'eager'
        >>> Options.checked(on_limits="eager")
        Traceback (most recent call last):
            ...
        lazytrace.errors.OptionError: traced() has no option 'on_limits': did you mean 'on_limit'? \
Its options are cache_limit, on_limit, on_untraceable, on_retrace, check, backend, name, exit_limit, \
branch_limit, events, ignore, dynamic, buckets.
        """
        known = [option.name for option in fields(cls)]
        for name in options:
            if name not in known:
                raise OptionError(unknown_option(name, known))
        return cls(**cast("dict[str, Any]", options))


@dataclass(frozen=True)
class Environment:
    """What the environment variables ask for.

    `disabled` (`LAZYTRACE_DISABLE`) makes every call run eagerly; `report` (`LAZYTRACE_REPORT`) says where
    the report goes at exit: "" nowhere, "text" to stderr, otherwise a file whose ending is the format, or a
    folder that ends with a slash; `log` (`LAZYTRACE_LOG`) names the events that are logged to stderr.

    `total_limit` (`LAZYTRACE_TOTAL_LIMIT`) is how many traces all functions and instances may hold together,
    0 for no such limit. `debug` (`LAZYTRACE_DEBUG`) is a folder for what debugging needs, "" for none.

    >>> Environment()
    Environment(disabled=False, report='', log=(), total_limit=0, debug='')
    """

    disabled: bool = False
    report: str = ""
    log: tuple[str, ...] = ()
    total_limit: int = 0
    debug: str = ""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Environment:
        """The environment as it is now; unset and empty mean off, case and outer spaces do not matter.

        Raises `OptionError` where a value is not understood.

        >>> Environment.read({"LAZYTRACE_REPORT": "run.html", "LAZYTRACE_LOG": "retrace,eager"})
        Environment(disabled=False, report='run.html', log=('retrace', 'eager'), total_limit=0, debug='')
        >>> Environment.read({"LAZYTRACE_DISABLE": "maybe"})
        Traceback (most recent call last):
            ...
        lazytrace.errors.OptionError: environment variable LAZYTRACE_DISABLE='maybe' is not understood: \
set it to 1, true, yes, on, 0, false, no or off, or unset it.
        """
        return cls(
            disabled=_read_switch(environ, "LAZYTRACE_DISABLE"),
            report=_read_report(environ.get("LAZYTRACE_REPORT", "").strip()),
            log=_read_log(environ.get("LAZYTRACE_LOG", "")),
            total_limit=_read_limit(environ, "LAZYTRACE_TOTAL_LIMIT"),
            debug=environ.get("LAZYTRACE_DEBUG", "").strip(),
        )


def _check_limit(name: str, value: object) -> None:
    # bool is an int: cache_limit=True would otherwise mean 1.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OptionError(bad_option(name, value, "an int of 1 or more"))


def _check_ignore(value: object) -> None:
    if not isinstance(value, tuple) or not set(value) <= {"print", "logging"}:
        raise OptionError(bad_option("ignore", value, "a tuple of 'print' and 'logging'"))


def _check_buckets(value: object) -> None:
    entries = value.items() if isinstance(value, Mapping) else (("", None),)
    if not all(isinstance(name, str) and (name == "return" or _is_bucket(entry)) for name, entry in entries):
        raise OptionError(
            bad_option(
                "buckets", value, "a dict of (dimension, sizes) or (dimension, sizes, value) by parameter"
            )
        )


def _is_bucket(entry: object) -> bool:
    if not isinstance(entry, tuple) or len(entry) not in (2, 3) or not isinstance(entry[1], tuple):
        return False
    numbers = (entry[0], *entry[1])
    return bool(entry[1]) and all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise OptionError(bad_option(name, value, _either(tuple(repr(choice) for choice in allowed))))


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(bad_option(name, value, "True or False"))


def _check_name(value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise OptionError(bad_option("name", value, "a string that is not blank, or None"))


def _read_switch(environ: Mapping[str, str], variable: str) -> bool:
    value = environ.get(variable, "")
    word = value.strip().lower()
    if word in _YES or word in _NO:
        return word in _YES
    raise OptionError(bad_environment(variable, value, _either(_YES + _NO[1:])))


def _read_limit(environ: Mapping[str, str], variable: str) -> int:
    value = environ.get(variable, "").strip()
    if not value:
        return 0
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise OptionError(bad_environment(variable, value, "a number of 1 or more, in traces"))


def report_target(value: str) -> str | None:
    """Where a report goes, from what a person wrote: "", "text", a file or a folder; None where unclear.

    >>> [report_target(value) for value in ("no", "1", "run.html", "runs/", "run.pdf")]
    ['', 'text', 'run.html', 'runs/', None]
    """
    word = value.lower()
    if word in _NO:
        return ""
    if word in _YES or word == "text":
        return "text"
    return value if word.endswith(REPORT_ENDINGS) else None


def _read_report(value: str) -> str:
    target = report_target(value)
    if target is None:
        raise OptionError(bad_environment("LAZYTRACE_REPORT", value, REPORT_TARGETS))
    return target


def _read_log(value: str) -> tuple[str, ...]:
    words = [word.strip().lower() for word in value.split(",")]
    if words in ([word] for word in _NO):
        return ()
    if words in (["1"], ["all"]):
        return LOG_TOPICS
    if set(words) <= set(LOG_TOPICS):
        return tuple(words)
    raise OptionError(
        bad_environment(
            "LAZYTRACE_LOG", value, f"all, or some of {', '.join(LOG_TOPICS)} with commas between"
        )
    )


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
