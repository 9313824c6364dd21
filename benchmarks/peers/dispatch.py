"""S1: what a hit costs beside the bare call of a tiny function, in microseconds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from peers.cases import AUTOGRAD, dispatch_cases, dispatch_names
from peers.child import Answer, ask, ask_jax, reason
from peers.contenders import (
    COMPILE_EAGER,
    EAGER,
    EAGER_AGAIN,
    JIT_TRACE,
    LAZYTRACE,
    builder,
    fresh_case,
    must_replay,
    one_thread,
    same,
)
from peers.effort import Effort
from peers.markdown import Notes, ranged, table
from peers.measuring import differences, interleaved

TITLE = "S1: a hit, beside the bare call"
CONTENDERS = (EAGER_AGAIN, LAZYTRACE, COMPILE_EAGER, JIT_TRACE)
JAX = "jax.jit"


# ---------------------------------------------------------------- in a child
def measure(spec: dict[str, Any]) -> Answer:
    """Microseconds per call of every contender in each round, or why one has none."""
    one_thread()
    case = dispatch_cases(lambda: torch.randn(4))[spec["case"]]
    args, kwargs = case.args, case.kwargs
    for tensor in args if case.autograd else ():
        tensor.requires_grad_()

    def thunk(call: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: call(*args, **kwargs)

    with torch.set_grad_enabled(case.autograd):
        eager = fresh_case(case)
        expected = eager(*args, **kwargs)
        thunks, reasons = {EAGER: thunk(eager)}, {}
        for name in spec["contenders"]:
            try:
                call = builder(name)(fresh_case(case), args, kwargs)
                if not all(same(call(*args, **kwargs), expected) for _ in range(5)):
                    raise ValueError("another result than eager's")
                must_replay(name, call)
            except Exception as error:
                reasons[name] = reason(error)
            else:
                thunks[name] = thunk(call)
        return {"times": interleaved(thunks, spec["rounds"]), "reasons": reasons}


# ---------------------------------------------------------------- in the parent
def run(effort: Effort) -> Answer:
    """Ask one child for each case, several times over, and one for all cases of jax.jit."""
    names = [name for name in dispatch_names() if effort.wants_case(name)]
    contenders = [name for name in CONTENDERS if effort.wants(name)]
    rounds, processes = effort.pick(21, 5), effort.pick(3, 1)
    torch_side: dict[str, list[Answer]] = {name: [] for name in names}
    jax_side: list[Answer] = []
    for _ in range(processes):
        for name in names:
            spec = {"case": name, "contenders": contenders, "rounds": rounds}
            torch_side[name].append(ask("dispatch.measure", spec))
        if effort.wants(JAX):
            jax_side.append(ask_jax("dispatch", {"cases": names, "rounds": rounds}))
    return {"torch": torch_side, "jax": jax_side}


def added(data: Answer, case: str, name: str) -> list[float]:
    """Microseconds that a contender adds to the bare call: the median of each process that has them."""
    all_times = [answer["times"] for answer in data["torch"].get(case, []) if "times" in answer]
    return [statistics.median(differences(t[name], t[EAGER])) for t in all_times if name in t]


def bare(data: Answer, case: str) -> list[float]:
    """Microseconds of the bare call: the median of each process."""
    answers = [answer for answer in data["torch"][case] if "times" in answer]
    return [statistics.median(answer["times"][EAGER]) for answer in answers]


def why_not(answers: list[Answer], name: str) -> str:
    """Why a contender has no number in a case."""
    found = [answer.get("error") or answer.get("reasons", {}).get(name) for answer in answers]
    return next((f"{name}: {text}" for text in found if text), f"{name}: not measured")


def why_no_jax(answers: list[Answer], case: str) -> str:
    """Why jax.jit has no number in a case."""
    error = next((answer["error"] for answer in answers if "error" in answer), None)
    if error is None and case.endswith(AUTOGRAD):
        return "jax.jit: gradients are another function there, not a mode"
    return f"jax.jit: {error or 'not measured'}"


def tables(data: Answer) -> list[str]:
    """Microseconds over the bare call; of jax.jit, which has no bare call, the whole."""
    notes, rows = Notes(), []
    for case, answers in data["torch"].items():
        row = [case, ranged(bare(data, case)) if bare(data, case) else "none"]
        for name in CONTENDERS:
            values = added(data, case, name)
            row.append(ranged(values) if values else notes.refer(why_not(answers, name)))
        jax = [answer[case] for answer in data["jax"] if case in answer]
        row.append(ranged(jax) if jax else notes.refer(why_no_jax(data["jax"], case)))
        rows.append(row)
    text = (
        "Microseconds per call over the bare call of the same function; the bare call and jax.jit are whole "
        "calls. Median of the processes, [smallest, largest]. `eager again` shows the noise."
    )
    header = ["case", "bare call", *CONTENDERS, "jax.jit, whole call"]
    return ["", text, *table(header, rows), *notes.lines()]
