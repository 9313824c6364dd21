"""Calls of `logging` and `print()` as steps; a replay logs as if it stood where the function did."""

from __future__ import annotations

import codecs
import functools
import io
import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Final

from lazytrace._native import core
from lazytrace.library import is_original
from lazytrace.originals import BUILTINS
from lazytrace.printing import is_itself, is_printable

__builtins__ = BUILTINS

# Before anybody replaces them: who does is left alone.
LOG: Final = logging.Logger._log
IS_ENABLED_FOR: Final = logging.Logger.isEnabledFor
# Somebody may put another function in its place.
PRINT: Final = print

# What the handlers of a logger do with a record, as far as it can be told: `ANYTHING` where code of the
# user's runs, `AT_ONCE` where they write it and forget it. The core has the same numbers.
ANYTHING: Final = 0
KEEPS: Final = 1
AT_ONCE: Final = 2

# Classes by name, as importing all of them takes time: whether they keep what they are given.
_HANDLERS: Final[dict[str, int]] = {
    "logging.StreamHandler": AT_ONCE,
    "logging._StderrHandler": AT_ONCE,
    "logging.FileHandler": AT_ONCE,
    "logging.NullHandler": AT_ONCE,
    "logging.handlers.WatchedFileHandler": AT_ONCE,
    "logging.handlers.RotatingFileHandler": AT_ONCE,
    "logging.handlers.TimedRotatingFileHandler": AT_ONCE,
    "unittest._log._CapturingHandler": KEEPS,
    "_pytest.logging._LiveLoggingNullHandler": AT_ONCE,
    "_pytest.logging._FileHandler": AT_ONCE,
    "_pytest.logging.LogCaptureHandler": KEEPS,
}
_FORMATTERS: Final = {"logging.Formatter", "_pytest.logging.ColoredLevelFormatter"}
_STYLES: Final = {"logging.PercentStyle", "logging.StrFormatStyle", "logging.StringTemplateStyle"}
_STREAMS: Final = {"_io", "_pytest", "ipykernel"}
# What they are asked for while a record is handled.
OF_LOGGERS: Final = ("findCaller", "makeRecord", "handle", "filter", "callHandlers")
OF_HANDLERS: Final = ("handle", "filter", "acquire", "release", "emit", "format", "flush", "handleError")
# Those of files that are rotated, and attributes of theirs that hold code of the user's unless they are None.
OF_FILES: Final = (
    "_open",
    "reopenIfNeeded",
    "_statstream",
    "shouldRollover",
    "doRollover",
    "computeRollover",
    "getFilesToDelete",
    "rotation_filename",
    "rotate",
)
CALLED_BY_FILES: Final = ("namer", "rotator")
OF_STREAMS: Final = ("write", "flush")
OF_FORMATTERS: Final = ("format", "formatTime", "formatException", "formatStack", "formatMessage", "usesTime")
OF_STYLES: Final = ("format", "usesTime", "_format")
OF_RECORDS: Final = ("__init__", "getMessage")
_PARTS: Final = {type(None), str, type(threading.RLock())}
_ERRORS: Final = {
    "strict",
    "ignore",
    "replace",
    "backslashreplace",
    "namereplace",
    "xmlcharrefreplace",
    "surrogateescape",
    "surrogatepass",
}
_CONVERTERS: Final = (time.localtime, time.gmtime)

# (file, name, qualified name, line, module)
_Frame = tuple[str, str, str, int, str]
_CODE: Final = (lambda *args, call: call(*args)).__code__
_MOST: Final = 1024


@functools.lru_cache(maxsize=_MOST)
def as_called_from(frames: tuple[_Frame, ...]) -> Callable[..., None]:
    """`logging.Logger._log` for a caller that looks like these frames, the innermost first.

    It finds the place of a record by the frames around it, as filters may, and shows them when a handler
    fails.

    >>> import io
    >>> out = io.StringIO()
    >>> logger = logging.Logger("mine")
    >>> logger.addHandler(logging.StreamHandler(out))
    >>> logger.handlers[0].setFormatter(logging.Formatter("%(filename)s:%(lineno)d %(funcName)s %(message)s"))
    >>> log = as_called_from((("a.py", "step", "Net.step", 12, "a"),))
    >>> log(logger, logging.INFO, "loss %s", (0.5,))
    >>> out.getvalue()
    'a.py:12 step loss 0.5\\n'
    """
    call: Any = LOG
    for file, name, qualified, line, module in frames:
        code = _CODE.replace(co_filename=file, co_name=name, co_qualname=qualified, co_firstlineno=line)
        frame = FunctionType(code, {"__name__": module})
        frame.__kwdefaults__ = {"call": call}
        call = frame
    return call  # type: ignore[no-any-return]


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _folder(value: object) -> str:
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _are_its_own(value: object, names: tuple[str, ...]) -> bool:
    """Whether nobody has replaced a method, in the object or in its class."""
    own = sys.modules.get(type(value).__module__)
    found = [getattr(value, name) for name in names]
    return is_itself(type(value)) and all(is_original(one, logging) or is_original(one, own) for one in found)


def _of_formatter(formatter: Any) -> int:
    if formatter is None:
        formatter = logging._defaultFormatter  # type: ignore[attr-defined]
    # One of another class may have none of what is asked for.
    if _name(formatter) not in _FORMATTERS or _name(formatter._style) not in _STYLES:
        return ANYTHING
    style = formatter._style
    plain = any(formatter.converter is one for one in _CONVERTERS) and style._defaults is None
    own = _are_its_own(formatter, OF_FORMATTERS) and _are_its_own(style, OF_STYLES)
    return AT_ONCE if plain and own else ANYTHING


def _encodes_by_library(stream: io.TextIOWrapper) -> bool:
    """Whether neither its codec nor what becomes of errors is code of the user's."""
    codec = codecs.lookup(stream.encoding).incrementalencoder
    return _folder(codec) == "encodings" and is_itself(codec) and stream.errors in _ERRORS  # type: ignore[arg-type]


def _writes_by_library(stream: Any) -> bool:
    """Whether a stream is of a known class, down to the file.

    >>> _writes_by_library(io.TextIOWrapper(io.BytesIO()))
    True
    >>> _writes_by_library(io.TextIOWrapper(type("Mine", (io.BytesIO,), {"__module__": "mine"})()))
    False
    """
    cls = type(stream)
    if _folder(cls) not in {*_STREAMS, "builtins"} or not is_itself(cls):
        return False
    if any(name in getattr(stream, "__dict__", ()) for name in OF_STREAMS):
        return False
    if isinstance(stream, io.TextIOWrapper):
        return _encodes_by_library(stream) and _writes_by_library(stream.buffer)
    if isinstance(stream, io.BufferedWriter | io.BufferedRandom):
        return _writes_by_library(stream.raw)
    return not isinstance(stream, io.BufferedRWPair)


def _names_of_file(handler: Any) -> tuple[str, ...]:
    return tuple(name for name in OF_FILES if hasattr(handler, name))


def names_of_file(handler: Any) -> tuple[str, ...]:
    """What is asked of a handler besides, by its class, which is no part of the recording."""
    names: tuple[str, ...] = core.aside(partial(_names_of_file, handler))
    if names:
        names += CALLED_BY_FILES
    return names


def _of_handler(handler: Any) -> int:
    kind = _HANDLERS.get(_name(handler), ANYTHING)
    names = (*OF_HANDLERS, *_names_of_file(handler))
    if kind == ANYTHING or handler.filters or not _are_its_own(handler, names):
        return ANYTHING
    if any(getattr(handler, name, None) is not None for name in CALLED_BY_FILES):
        return ANYTHING
    # Code of theirs runs where the text is put together and where the handler is locked.
    parts = {type(getattr(handler, name, None)) for name in ("terminator", "lock")}
    if not parts <= _PARTS or not _writes_by_library(getattr(handler, "stream", None)):
        return ANYTHING
    return min(kind, _of_formatter(handler.formatter))


def judge(logger: logging.Logger) -> int:
    """What the handlers of a logger do with a record.

    >>> logger = logging.Logger("mine")
    >>> judge(logger) == AT_ONCE
    True
    >>> logger.addHandler(type("Mine", (logging.Handler,), {"__module__": "mine"})())
    >>> judge(logger) == ANYTHING
    True
    """
    handlers: list[Any] = []
    at: logging.Logger | None = logger
    while at is not None:
        if type(at) not in (logging.Logger, logging.RootLogger):
            return ANYTHING
        handlers += at.handlers
        at = at.parent if at.propagate else None
    factory = logging.getLogRecordFactory() is logging.LogRecord
    records = all(is_original(getattr(logging.LogRecord, name), logging) for name in OF_RECORDS)
    names = is_original(logging.getLevelName, logging)
    if not (factory and records and names) or logger.filters or not _are_its_own(logger, OF_LOGGERS):
        return ANYTHING
    if not handlers and logging.lastResort is not None:
        handlers = [logging.lastResort]
    return min([AT_ONCE, *map(_of_handler, handlers)])


def judge_aside(logger: logging.Logger, values: tuple[Any, ...]) -> int:
    """The same of what is logged, which is no part of the recording."""
    return int(core.aside(lambda: judge(logger) if is_printable(values) else ANYTHING))


def fill(logger: logging.Logger, level: Any) -> None:
    """Have a logger note whether it logs this level, which takes a lock when it is asked for the first time.

    >>> logger = logging.Logger("mine", logging.INFO)
    >>> fill(logger, logging.DEBUG)
    >>> logger._cache
    {10: False}
    """
    if type(level) is int and not logger.disabled:
        core.aside(partial(IS_ENABLED_FOR, logger, level))


def log_at(
    kind: int,
    logger: logging.Logger,
    level: Any,
    msg: Any,
    args: tuple[Any, ...],
    exc_info: Any,
    extra: Any,
    stack_info: Any,
    stacklevel: Any,
) -> None:
    """Log, as a step of the program that is recorded."""
    core.log((level, extra, stack_info, stacklevel, logger, msg, *args), exc_info, kind)


def print_at(*args: Any, **kwargs: Any) -> None:
    """Print, as a step: each replay prints, too. Code of the user's may do anything when it is printed."""
    if (file := kwargs.get("file")) is None:
        file = sys.stdout
        core.look_at_stdout()
    # What a replay has printed is not printed again, whatever it is by now.
    if not core.aside(partial(is_printable, (*args, file))) and core.refuse_print():
        PRINT(*args, **kwargs)
    else:
        core.opaque_call(PRINT, "", PRINT, args, kwargs, True)
