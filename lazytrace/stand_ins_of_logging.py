"""Python code that stands for that of `logging` while a recording is made, watched as the user's is."""

from __future__ import annotations

import logging
from types import FunctionType
from typing import Any, Final

import torch

from lazytrace._native import core
from lazytrace.library_calls import is_of
from lazytrace.logs import (
    ANYTHING,
    IS_ENABLED_FOR,
    LOG,
    OF_FORMATTERS,
    OF_HANDLERS,
    OF_LOGGERS,
    OF_RECORDS,
    OF_STREAMS,
    OF_STYLES,
    as_called_from,
    fill,
    judge_aside,
    log_at,
    names_of_file,
    print_at,
)
from lazytrace.printing import is_printable
from lazytrace.stand_ins_of_library import maker_of_text, text_of

_GET_LOGGER: Final = logging.Manager.getLogger


def is_enabled_for(logger: logging.Logger, level: Any) -> bool:
    """`Logger.isEnabledFor`, which finds that the logger has been asked before."""
    fill(logger, level)
    return IS_ENABLED_FOR(logger, level)


def get_logger(manager: logging.Manager, name: Any) -> logging.Logger:
    """`Manager.getLogger`, which takes no lock for a logger that is there."""
    if isinstance(name, str) and name in manager.loggerDict:
        found = manager.loggerDict[name]
        if not isinstance(found, logging.PlaceHolder):
            return found
    return _GET_LOGGER(manager, name)


def _look_at_formatter(formatter: Any) -> None:
    for name in (*OF_FORMATTERS, "converter"):
        getattr(formatter, name)
    for name in (*OF_STYLES, "_defaults"):
        getattr(formatter._style, name)


def _look_at_handler(handler: Any) -> None:
    for name in OF_HANDLERS:
        getattr(handler, name)
    len(handler.filters)
    for name in ("stream", "lock", *names_of_file(handler)):
        getattr(handler, name, None)
    for name in OF_STREAMS:
        getattr(getattr(handler, "stream", None), name, None)
    formatter = handler.formatter
    _look_at_formatter(logging._defaultFormatter if formatter is None else formatter)  # type: ignore[attr-defined]


def _look(logger: logging.Logger) -> None:
    """Whatever `logs.judge` looks at, so that it is guarded."""
    for name in OF_LOGGERS:
        getattr(logger, name)
    len(logger.filters)
    logging.getLogRecordFactory()
    for name in OF_RECORDS:
        getattr(logging.LogRecord, name)
    logging.getLevelName  # noqa: B018
    handlers = 0
    at: Any = logger
    while at is not None:
        for handler in at.handlers:
            _look_at_handler(handler)
            handlers += 1
        at = at.parent if at.propagate else None
    if not handlers and logging.lastResort is not None:
        _look_at_handler(logging.lastResort)


def log(
    logger: logging.Logger,
    level: Any,
    msg: Any,
    args: tuple[Any, ...],
    exc_info: Any = None,
    extra: Any = None,
    stack_info: Any = False,
    stacklevel: Any = 1,
) -> None:
    """`Logger._log`, which each replay calls, too.

    Where no code of the user's runs in it, it can neither see nor change what the function reads.
    """
    kind = judge_aside(logger, (msg, args, extra))
    if kind != ANYTHING:
        _look(logger)
    log_at(kind, logger, level, msg, args, exc_info, extra, stack_info, stacklevel)


def _printed(value: Any) -> Any:
    """A text for an object whose class has a method of Python for it; anything else as it is."""
    if is_of(value, str, int, float, torch.Tensor):
        return value
    make = maker_of_text(type(value))
    return text_of(value) if type(make) is FunctionType else str(value)


def print_parts(
    *values: Any, sep: Any = None, end: Any = None, file: Any = None, flush: Any = False, **other: Any
) -> None:
    """`print()` of objects whose text the user's code makes: a call for each, as it writes one by one."""
    refused = not all(isinstance(text, str | None) for text in (sep, end))
    if other or refused or not values:
        return print(*values, sep=sep, end=end, file=file, flush=flush, **other)
    for value in values[:-1]:
        print(_printed(value), end=" " if sep is None else sep, file=file)
    return print(_printed(values[-1]), end=end, file=file, flush=flush)


def configure() -> None:
    """Tell the core of all this, once."""
    steps: dict[Any, Any] = {IS_ENABLED_FOR: is_enabled_for, _GET_LOGGER: get_logger, LOG: log}
    for function, own in steps.items():  # what Python says of wrong arguments names the function
        own.__qualname__ = function.__qualname__
    core.configure_logging(steps, as_called_from, LOG)
    core.configure_print(print, print_at, is_printable, print_parts)
