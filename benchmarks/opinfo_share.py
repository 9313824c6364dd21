"""An adapter for an OpInfo sweep that also writes down how each case's calls were answered.

The sweep's own run counter is a side effect of the function, which a traced function must keep by running
eagerly; this adapter asks the traced function itself. With `LAZYTRACE_SHARE=FILE` one JSON line per case
goes to FILE: calls, hits and eager reasons. `python benchmarks/opinfo_share.py FILE` adds them up.
"""

from __future__ import annotations

import collections
import json
import os
import sys
from collections.abc import Callable
from typing import Any

_last: list[Any] = []


def wrap(function: Callable[..., Any]) -> Any:
    """Trace a function, and remember it until its counts are written."""
    from lazytrace import traced

    made = traced(function)
    _last.append(made)
    return made


def reset() -> None:
    """Write the counts of the functions since the last reset."""
    while _last:
        counts = _last.pop().stats()
        with open(os.environ["LAZYTRACE_SHARE"], "a") as file:
            json.dump({"calls": counts.calls, "hits": counts.hits, "eager": counts.eager}, file)
            file.write("\n")


wrap.reset = reset  # type: ignore[attr-defined]


def main(path: str) -> None:
    """Print the share of calls after the first that were hits, and the reasons of the rest."""
    with open(path) as file:
        cases = [json.loads(line) for line in file]
    later = [case for case in cases if case["calls"] > 1]
    replayed = sum(case["hits"] > 0 for case in later)
    print(
        f"{len(later)} cases, {replayed} replayed a later call ({100 * replayed / max(1, len(later)):.1f} %)"
    )
    reasons = collections.Counter(
        reason for case in later if not case["hits"] for reason in case["eager"] or ["retraced"]
    )
    for reason, count in reasons.most_common(40):
        print(f"{count:5d}  {reason}")


if __name__ == "__main__":
    main(sys.argv[1])
