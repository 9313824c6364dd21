"""Calls of `logging` are steps: each replay logs what the call would, as if the function stood there."""

import io
import logging
import logging.handlers
import subprocess
import sys
import threading
import types
import unittest
import warnings
from pathlib import Path

import torch

import lazytrace
from tests.soundness.runner import Cases, call, check

cases = Cases()

SOME = (1.0, 1.5, 2.0, 3.0, 2.5, 1.0, 2.5, 1.0)
# What is another one at each call, plain or traced.
LOOSE = {"created", "msecs", "relativeCreated", "thread", "process", "threadName", "processName"}
LAYOUT = "%(levelname)s %(name)s %(filename)s:%(lineno)d %(funcName)s %(module)s %(pathname)s: %(message)s"


def check_apart(make, hits):
    """In a process of its own.

    Where torch.compile has run, somebody else evaluates frames, and those that call hold what they pass. A
    list that others hold than the call is refused where a handler may keep it.
    """
    program = f"from {make.__module__} import {make.__name__} as make; check(make, hits={hits})"
    command = [sys.executable, "-c", f"from tests.soundness.runner import check; {program}"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert not done.returncode, done.stderr


def values(*numbers):
    return [call(torch.tensor(v)) for v in numbers]


def changing(*changes):
    """Calls around changes."""
    steps = [*values(*SOME[:3])]
    for change in changes:
        steps += [change, *values(*SOME[:3])]
    return steps


def fields(record):
    """All that a record says, but for when and where it ran."""
    return {key: value for key, value in vars(record).items() if key not in LOOSE}


class Keeping(logging.Handler):
    """A handler of a user's own."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append(fields(record))


def fresh(*handlers, level=logging.INFO, cls=logging.Logger):
    """A logger that nobody knows by its name."""
    logger = cls("train.step", level)
    logger.parent, logger.manager = None, logging.Manager(logging.RootLogger(logging.WARNING))
    for handler in handlers:
        logger.addHandler(handler)
    return logger


def written(layout=LAYOUT, level=logging.INFO):
    """A logger, and what is written of it."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter(layout))
    return fresh(handler, level=level), out


# ---------------------------------------------------------------- what is logged
@cases(hits=6)
def a_number(trace):
    logger, out = written()

    def run(t):
        y = t * 2
        logger.info("loss %.3f of %s", y.item(), t.item())
        return y

    return trace(run), values(*SOME), out.getvalue


@cases(hits=6)
def a_text(trace):
    logger, out = written()

    def run(t):
        y = t * 2
        logger.info(f"loss {y.item():.3f}")
        return y

    return trace(run), values(*SOME), out.getvalue


@cases(hits=6)
def a_tensor(trace):
    logger, out = written()

    def run(t):
        y = t * 2
        logger.info("loss %s", y)
        y += 1
        logger.warning("later %s", y)
        return y

    return trace(run), values(*SOME), out.getvalue


@cases(hits=6)
def a_dict_of_numbers(trace):
    logger, out = written()

    def run(t):
        metrics = {"loss": t.item(), "twice": [t.item() * 2, (t.item(), "a")]}
        logger.info("metrics %s", metrics)
        logger.info("%(loss).2f", metrics)
        metrics["loss"] = 0
        return t * 2

    return trace(run), values(*SOME), out.getvalue


def numbers_inside_for_a_handler_of_ones_own(trace):
    handler = Keeping()
    logger = fresh(handler)

    def run(t):
        logger.info("%s", [t.item(), {"twice": t.item() * 2}], extra={"value": (t.item(),)})
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=5)
def sizes(trace):
    logger, out = written()

    def run(t):
        logger.info("n %d", t.size(0))
        logger.info(f"numel {t.numel()} {[t.size(0)]}")
        logger.info("d %s", {"n": t.size(0), "s": [t.size(0) * 2]})
        return t.sum() * t.size(0)

    return trace(run), [call(torch.arange(float(n))) for n in range(2, 10)], out.getvalue


@cases(hits=5)
def numbers_that_are_passed(trace):
    handler = Keeping()
    logger = fresh(handler)

    def run(t, n):
        logger.info("n %s %r", n, n, extra={"n": n})
        return t * n

    return trace(run), [call(torch.ones(2), n) for n in range(8)], lambda: handler.seen


@cases(hits=7)
def tensors_that_change_later(trace):
    logger, out = written()
    state = torch.zeros(3)

    def run(t):
        logger.info("state %s", state)
        state.add_(t)
        part = state[:2]
        logger.info("state %s, part %s", state, part)
        part.mul_(2)
        logger.info("state %s", state)
        return state.clone()

    return trace(run), values(*SOME), out.getvalue


class Steps:
    def __init__(self, logger):
        self.logger, self.steps, self.losses = logger, 0, []

    def step(self, t):
        self.steps += 1
        loss = t * 2
        self.losses.append(loss.item())
        self.logger.info("step %d loss %s", self.steps, loss.item())
        self.steps += 1
        return loss


@cases(hits=5)
def numbers_in_state(trace):
    logger, out = written()
    state = Steps(logger)
    return trace(state.step), values(*SOME), lambda: (out.getvalue(), state.steps, state.losses)


@cases(hits=5)
def numbers_in_state_for_a_handler_of_ones_own(trace):
    handler = Keeping()
    state = Steps(fresh(handler))
    return trace(state.step), values(*SOME), lambda: (handler.seen, state.steps, state.losses)


@cases(hits=6)
def all_fields(trace):
    handler = Keeping()
    logger = fresh(handler)

    def run(t):
        logger.log(25, "value %s", t.item(), extra={"value": 3, "other": "a"})
        logger.error("nothing")
        logger.critical("a %s", "text", stacklevel=1)
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=5)
def by_name(trace):
    handler = Keeping()
    logger = logging.getLogger(f"{__name__}.by_name")
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)

    def run(t):
        logging.getLogger(f"{__name__}.by_name").info("value %s", t.item())
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=6)
def by_an_adapter(trace):
    handler = Keeping()
    adapter = logging.LoggerAdapter(fresh(handler), {"rank": 3})

    def run(t):
        adapter.info("value %s", t.item())
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=5)
def by_functions_of_the_module(trace):
    logger, out = written(level=logging.WARNING)
    root = logging.getLogger()

    def run(t):
        logging.warning("value %s", t.item())
        logging.debug("value %s", t.item())
        return t * 2

    function = trace(run)

    def through(t):
        before, root.handlers[:] = root.handlers[:], logger.handlers
        try:
            return function(t)
        finally:
            root.handlers[:] = before

    return function, [call(torch.tensor(v)).of(through) for v in SOME], out.getvalue


# ---------------------------------------------------------------- where it stands
@cases(hits=6)
def the_frames_around(trace):
    handler = Keeping()
    logger = fresh(handler)

    def inner(t):
        logger.info("inner", stacklevel=2)
        logger.info(
            "of several lines %s",
            t.item(),
        )
        [logger.info("in a loop") for _ in range(2)]
        return t * 2

    def run(t):
        return inner(t) + 1

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=6)
def the_frames_of_the_caller(trace):
    handler = Keeping()
    logger = fresh(handler)

    def run(t):
        logger.info("value", stacklevel=2)
        return t * 2

    function = trace(run)

    def outer(t):
        return function(t)

    return function, [call(torch.tensor(v)).of(outer) for v in SOME], lambda: handler.seen


@cases(hits=4)
def the_frames_of_the_caller_behind_an_exit(trace):
    logger, out = written()

    def run(t):
        logger.info("first", stacklevel=2)
        if t.item() > 1:
            logger.info("large", stacklevel=2)
            t = t + 1
        logger.info("last %s", t.item(), stacklevel=3)
        return t * 2

    function = trace(run)

    def outer(t):
        return function(t)

    def outermost(t):
        return outer(t)

    return function, [call(torch.tensor(v)).of(outermost) for v in SOME * 2], out.getvalue


@cases(hits=6)
def the_stack_as_a_text(trace):
    out = io.StringIO()
    logger = fresh(logging.StreamHandler(out))

    def run(t):
        logger.info("value", stack_info=True)
        return t * 2

    # The last lines: above them is whoever runs the test.
    def lines():
        return [line for line in out.getvalue().splitlines() if "test_logging" in line]

    return trace(run), values(*SOME), lines


@cases(hits=6)
def a_wrapper_of_the_users(trace):
    handler = Keeping()
    logger = fresh(handler)

    def note(text, *args):
        logger.info("noted: " + text, *args, stacklevel=2)

    def run(t):
        note("value %s", t.item())
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=6)
def a_filter_that_looks_at_the_frames(trace):
    handler = Keeping()
    logger = fresh(handler)

    def place(record):
        frame, names = sys._getframe(), []
        while frame and frame.f_code.co_name != "step":
            names.append((frame.f_code.co_name, frame.f_globals["__name__"]))
            frame = frame.f_back
        record.names = [one for one in names if not one[1].startswith("lazytrace")]
        return True

    logger.addFilter(place)

    def run(t):
        logger.info("value")
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


# ---------------------------------------------------------------- order
@cases(hits=6)
def between_prints_and_writes(trace):
    out, logs = io.StringIO(), []
    logger = fresh(logging.StreamHandler(out))

    def run(t):
        logs.append(t.item())
        print("before", t.item(), file=out)
        logger.info("logged %s", t.item())
        print("after", t.item(), file=out)
        logs.append("after")
        return t * 2

    return trace(run), values(*SOME), lambda: (out.getvalue(), logs)


@cases(hits=4)
def in_a_step_of_training(trace):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logger, out = written()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        logger.info("before %s", loss)
        loss.backward()
        optimizer.step()
        logger.info("loss %.4f %s %s", loss.item(), model.weight, model.weight.grad)
        return loss.detach()

    steps = [call(torch.randn(3, 2)) for _ in range(8)]
    return trace(step), steps, lambda: (out.getvalue(), [*model.parameters()])


@cases(hits=6)
def hooks_of_modules(trace):
    logger, out = written()
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    model.register_full_backward_hook(lambda module, before, after: logger.info("gradient %s", after[0]))

    def run(t):
        model(t.reshape(1, 1)).sum().backward()
        gradient = model.weight.grad.clone()
        model.weight.grad = model.bias.grad = None
        return gradient

    return trace(run), values(*SOME), out.getvalue


@cases(hits=4)
def in_an_autocast_region(trace):
    logger, out = written()
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.1)

    def run(t):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(t)
            logger.info("y %s", y)
            logger.info("again %s", y)
            print("printed", y, file=out)
        return y

    return trace(run), [call(torch.ones(1, 2) * i) for i in range(6)], out.getvalue


@cases(hits=6)
def inside_of_a_checkpoint(trace):
    logger, out = written()

    def part(x):
        logger.info("in %s", x.detach())
        return x * 2

    def run(t):
        x = t.clone().requires_grad_()
        torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False).backward()
        return x.grad

    return trace(run), values(*SOME), out.getvalue


@cases(hits=8)
def behind_a_list_that_is_capped(trace):
    window = []
    logger, out = written()

    def run(t):
        window.append(t.item())
        if len(window) > 3:
            window.pop(0)
        logger.info("mean %.3f", sum(window) / len(window))
        return t

    return trace(run), values(*SOME * 2), lambda: (window, out.getvalue())


@cases(hits=6)
def behind_an_object_that_was_stored(trace):
    history = []
    logger, out = written()

    def run(t):
        history.append({"loss": t.item()})
        logger.info("loss %s", t.item())
        return t * 2

    return trace(run), values(*SOME), lambda: (history, out.getvalue())


@cases(hits=6)
def in_the_middle_of_a_hook(trace):
    logger, out = written()
    weight = torch.ones(2, requires_grad=True)

    def run(t):
        y = (weight * t).sum()

        def hook(g):
            logger.info("gradient %s", g)

        y.register_hook(hook)
        y.backward()
        return y.detach()

    def watch():
        weight.grad = None
        return out.getvalue()

    return trace(run), values(*SOME), watch


# ---------------------------------------------------------------- exits
@cases(hits=4)
def in_one_branch(trace):
    logger, out = written()

    def run(t):
        logger.info("first %s", t.item())
        if t.item() > 1:
            logger.info("large %s", t.item())
            return t * 2
        logger.info("small %s", t.item())
        return t + 1

    return trace(run), values(*SOME, *SOME), out.getvalue


@cases(hits=4)
def in_one_branch_behind_a_change(trace):
    logger, out = written()
    state = torch.zeros(())

    def run(t):
        state.add_(t)
        logger.info("first %s", state)
        if state.item() % 2 > 1:
            logger.info("large %s", state.item())
            return t * 2
        logger.info("small %s", state.item())
        return t + 1

    return trace(run), values(*SOME, *SOME), lambda: (out.getvalue(), state)


@cases(hits=3)
def in_one_branch_for_a_handler_of_ones_own(trace):
    handler = Keeping()
    logger = fresh(handler)
    state = types.SimpleNamespace(count=0)

    def run(t):
        state.count += 1
        logger.info("first %s", t.item())
        if t.item() > 1:
            logger.info("large %s", t.item())
            return t * 2
        return t + 1

    return trace(run), values(*SOME, *SOME), lambda: (handler.seen, state.count)


@cases(hits=10)
def now_and_then(trace):
    logger, out = written()
    state = types.SimpleNamespace(step=0)

    def run(t):
        state.step += 1
        if state.step % 3 == 0:
            logger.info("step %d loss %.3f", state.step, t.item())
        if not torch.isfinite(t):
            logger.warning("step %d: loss is %s", state.step, t.item())
            return None
        return t * 2

    return trace(run), values(*SOME, float("nan"), 1.0, float("inf"), *SOME), out.getvalue


@cases(hits=10)
def several_exits(trace):
    logger, out = written()
    state = torch.zeros(())

    def run(t):
        logger.info("start")
        if t.item() > 1:
            logger.info("large %s", t.item())
        state.add_(1)
        logger.info("state %s", state)
        if t.item() > 2:
            logger.info("larger")
            state.add_(1)
        if state.item() % 3 == 0:
            logger.info("third %s", state.item())
        logger.info("end")
        return t * 2

    return trace(run), values(*SOME, *SOME), out.getvalue


# ---------------------------------------------------------------- other options
@cases(hits=3)
def logging_that_is_left_out(trace):
    logger, out = written()

    def run(t):
        logger.info("value %s", t.item())
        return t * 2

    return trace(run, ignore=("logging",)), values(*SOME), lambda: bool(out.getvalue())


@cases(hits=4)
def warnings_that_are_logged(trace):
    logger = logging.getLogger("py.warnings")
    handler = Keeping()
    logger.handlers[:], logger.propagate = [handler], False

    def run(t):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return t * 2

    function = trace(run)

    def through(t):
        logging.captureWarnings(True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return function(t)
        finally:
            logging.captureWarnings(False)

    return function, [call(torch.tensor(v)).of(through) for v in SOME], lambda: handler.seen


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- tools that capture
def test_caplog(caplog):
    logger = logging.getLogger(f"{__name__}.caplog")

    @lazytrace.traced
    def run(t):
        logger.info("value %s", t.item())
        return t * 2

    with caplog.at_level(logging.INFO):
        for v in SOME:
            run(torch.tensor(v))
    records = [record for record in caplog.records if record.name == logger.name]
    assert [record.getMessage() for record in records] == [f"value {v}" for v in SOME]
    assert {record.funcName for record in records} == {"run"}
    assert run.stats().hits >= 5


class LogsOfTests(unittest.TestCase):
    def test_logs(self):
        @lazytrace.traced
        def run(t):
            logging.getLogger("captured").info("value %s", t.item())
            return t * 2

        for _ in range(3):
            with self.assertLogs("captured", logging.INFO) as logs:
                for v in SOME:
                    run(torch.tensor(v))
            assert logs.output == [f"INFO:captured:value {v}" for v in SOME]
        with self.assertNoLogs("captured", logging.WARNING):
            run(torch.tensor(1.0))
        assert run.stats().hits >= 15


def test_threads():
    handler = Keeping()
    logger = fresh(handler)

    @lazytrace.traced
    def run(t):
        logger.info("value %s", t.item())
        return t * 2

    run(torch.tensor(1.0))
    threads = [
        threading.Thread(target=lambda k=k: [run(torch.tensor(float(k))) for _ in range(50)])
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [record["msg"] % record["args"] for record in handler.seen]
    assert sorted(seen) == sorted(["value 1.0"] + [f"value {float(k)}" for k in range(4) for _ in range(50)])
    assert run.stats().hits > 100


def test_numbers_inside_for_a_handler_of_ones_own():
    check_apart(numbers_inside_for_a_handler_of_ones_own, 5)


def test_what_is_printed_is_not_asked_for_its_class():
    """By `isinstance()`, which asks the object itself where that is of another class."""

    class Asked:
        def __init__(self):
            self.count = 0

        @property
        def __class__(self):
            self.count += 1
            return str

        def __str__(self):
            return "asked"

    def make(trace):
        asked, out = Asked(), io.StringIO()

        def run(x):
            print(asked, x.sum().item(), file=out)
            return x * 2

        return trace(run), [call(torch.ones(2) * n) for n in range(4)], lambda: (vars(asked), out.getvalue())

    check(make, hits=2)
