"""One recording: the function runs for real while watched, and a verdict says whether it can be replayed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from lazytrace import arrays, carriers, stand_ins_of_library, stand_ins_of_logging, texts, unseen
from lazytrace._native import available, core
from lazytrace.marks import static_sizes
from lazytrace.originals import BUILTINS
from lazytrace.recorded import NUMBERS, SIZES, Trace
from lazytrace.signature import Parameters
from lazytrace.stats import Event, Phases
from lazytrace.stats.reasons import reason_code, say

if TYPE_CHECKING:
    from lazytrace._core import Call, Resume
    from lazytrace._core import Trace as NativeTrace

__builtins__ = BUILTINS

if available():
    carriers.configure(arrays.call)
    stand_ins_of_logging.configure()
    stand_ins_of_library.configure()
    texts.configure()
    unseen.configure()


_NO_PHASES: Final = Phases()


@dataclass(frozen=True)
class Recorded:
    """How a recording ended: the eager result, and a program or the reason why there is none.

    `seconds` is what the call took, its proof included, `phases` what of it each phase took. `wrong` says how
    a replay differed from the eager result, which is a bug of lazytrace; `native` is the program then, too.
    `varying` are the paths of numbers that the call has changed, for which there is no program; `stiff` those
    of lists that were followed, and have changed in a way that a replay cannot follow. `watched`: whether
    it has watched what activation checkpointing calls, `failed_in_block` that this is why none is there;
    `failed_in_operator`: that what the kernel of an operator does is why; `failed_behind_change`: that
    it goes on behind a step that had changed Python state.
    `turned`: 1 if none is there as the call has put something in the place of None, 2 if None in its place.
    """

    result: Any
    native: NativeTrace | None
    reason: str
    where: str
    seconds: float
    wrong: str = ""
    varying: tuple[str, ...] = ()
    stiff: tuple[str, ...] = ()
    watched: bool = False
    failed_in_block: bool = False
    failed_in_operator: bool = False
    failed_behind_change: bool = False
    may_store_early: bool = False
    turned: int = 0
    phases: Phases = _NO_PHASES

    @property
    def reason_code(self) -> str:
        """The code of the reason, "" of none that has one."""
        return reason_code(self.reason) or ""


@dataclass(frozen=True)
class Finished:
    """A recording that has ended, for who watches them: what it was called with, and what it gave.

    `trace` is None where there is no program, `wrong` says how its replay differed from `result`.
    """

    function: str
    trace: Trace | None
    call: Call
    parameters: Parameters
    named: list[tuple[str, Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    wrong: str
    event: Event | None


def place(where: tuple[str, int, str]) -> str:
    """`train.py:41` from (file, line, function); "" where no line of the user's is known.

    >>> place(("/home/me/train.py", 41, "step"))
    'train.py:41'
    """
    file, line, _ = where
    return f"{os.path.basename(file)}:{line}" if file else ""


def record(
    call: Call,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    check: bool,
    key_now: Callable[[], bytes | None],
    resume: Resume | None = None,
    ignore: tuple[str, ...] = (),
    loose: int = 0,
    numbers: bool = False,
    state: tuple[str, ...] = (),
    fixed: Collection[str] = (),
    names: Sequence[str] = (),
    blocks: bool = False,
    turns: bool = False,
    whole_operators: bool = False,
    early: bool = False,
) -> Recorded:
    """Run `function(*args, **kwargs)` once, as eager would, and record it.

    Whatever the function raises passes through, and leaves nothing behind. With `check` a program without
    effects is replayed once on the same arguments and compared with the eager result (the idea is
    `torch.jit.trace`'s `check_trace`, at the cost of one replay).

    With `resume` a replay has run the first steps: these are fed to the function instead of being run again.
    Raises `Diverged` where the function does not ask for them.

    `loose` says what may differ between calls that the program fits (`SIZES`, `NUMBERS`): Python is given
    numbers that are followed in place of these. With `numbers` so it is for what `item()` gives, and for
    numbers in state that code reads and sets in one line. `state` has the paths of others in state that are
    followed, `fixed` of those that are not, from roots with these `names`.

    `key_now` binds the arguments again: another thread may change a list or a dict among them at any time,
    and a program must not be stored for what they were before.

    With `blocks` what activation checkpointing calls is watched, and may get a flat form. With `turns` places
    in state may hold None and something else by turns. With `whole_operators` operators that run Python
    are steps. With `early` attributes are set by steps, where the function sets them.
    """
    start = perf_counter()
    arrays.know_scipy()
    recording = core.Recording(call, resume, bool(loose & SIZES), numbers, bool(loose & NUMBERS))
    try:
        if state or numbers:
            recording.follow_state([*state], [*names], [*fixed])
        if loose & SIZES:
            recording.fix_sizes(static_sizes(call.tensors))
        if blocks:
            recording.watch_blocks()
        if turns:
            recording.keep_turns()
        if early:
            recording.store_early()
        if whole_operators:
            recording.take_operators_whole()
        recording.ignore("print" in ignore, "logging" in ignore)
        # What a replay has done before a resumed function may have changed the look of an argument.
        steady = resume is not None or key_now() == call.key
        began = perf_counter()
        result = recording.run(function, args, kwargs)
        ran = perf_counter()
        native = recording.finish(result, check)
        result = recording.as_it_would_be(result)
        judged = perf_counter()
        if native is not None and not native.changes_state:
            steady = steady and key_now() == call.key
        if native is not None and not steady:
            recording.fail(say("argument-changed"))
            native = None
        proving = perf_counter()
        wrong = native.prove(call) if native is not None and check else ""
        end = perf_counter()
        lowering = recording.seconds_lowering
        phases = Phases(ran - began, judged - ran - lowering, lowering, end - proving)
        if wrong:
            return Recorded(result, native, say("replay-differed"), "", end - start, wrong, phases=phases)
        varying = tuple(recording.varying([*names])) if native is None else ()
        stiff = tuple(recording.stiff([*names])) if native is None else ()
        return Recorded(
            result,
            native,
            recording.reason,
            place(recording.where),
            end - start,
            varying=varying,
            stiff=stiff,
            watched=recording.has_watched,
            failed_in_block=recording.failed_in_block,
            failed_in_operator=recording.failed_in_operator,
            failed_behind_change=recording.failed_behind_change,
            may_store_early=recording.may_store_early,
            turned=recording.turned,
            phases=phases,
        )
    finally:
        # Code that keeps an exception keeps this frame, which must not keep what the recording holds: no
        # garbage collector looks into that.
        del recording
