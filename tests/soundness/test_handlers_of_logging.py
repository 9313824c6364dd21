"""Handlers of logging, those of a user's own and those that fail: what a replay logs to them."""

import codecs
import contextlib
import io
import logging
import logging.handlers
import queue
import tempfile
import types
import unittest._log

import torch

from tests.soundness.runner import Cases, call, check
from tests.soundness.test_logging import SOME, Keeping, changing, check_apart, fields, fresh, values, written

cases = Cases()


# ---------------------------------------------------------------- handlers
@cases(hits=10)
def handlers_that_change(trace):
    logger, out = written()
    other = io.StringIO()
    mine = Keeping()
    more = logging.StreamHandler(other)

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    steps = changing(
        lambda: logger.handlers[0].setFormatter(logging.Formatter("%(message)s")),
        lambda: logger.handlers[0].setLevel(logging.WARNING),
        lambda: logger.handlers[0].setLevel(logging.NOTSET),
        lambda: logger.addHandler(more),
        lambda: logger.addHandler(mine),
        lambda: logger.removeHandler(more),
        lambda: logger.removeHandler(mine),
        lambda: logger.handlers[0].addFilter(lambda record: not record.args[0] > 1),
        lambda: logger.handlers[0].filters.clear(),
    )
    return trace(run), steps, lambda: (out.getvalue(), other.getvalue(), mine.seen)


@cases(hits=5)
def written_to_before_it_logs(trace):
    logger, out = written()
    (handler,) = logger.handlers
    other = io.StringIO()

    def run(t):
        stream, level, handler.stream = handler.stream, handler.level, other
        handler.formatter._style._fmt = "info: %(message)s"
        logger.info("info %s", t.item())
        handler.stream = stream
        handler.level = logging.ERROR
        logger.info("not this one %s", t.item())
        handler.level = level
        logger.info("again %s", t.item())
        vars(handler)["terminator"] = "!" if t > 1.5 else "\n"
        logger.info("the end")
        handler.formatter._style._fmt = "%(message)s"
        return t * 2

    return trace(run), values(*SOME), lambda: (out.getvalue(), other.getvalue())


@cases(hits=5)
def written_to_before_it_prints(trace):
    out, other = io.StringIO(), io.StringIO()

    def run(t):
        print("before", t.item())
        with contextlib.redirect_stdout(other):
            print("inside", t.item())
            if t > 1.5:
                print("large")
        with contextlib.redirect_stdout(None):
            print("nowhere")
        torch.set_printoptions(precision=2)
        print("behind", t / 3)
        torch.set_printoptions(profile="default")
        print("after all", t / 3)
        return t * 2

    run = trace(run)

    def printing(t):
        with contextlib.redirect_stdout(out):
            return run(t)

    steps = [step.of(printing) for step in values(*SOME)]
    return run, steps, lambda: (out.getvalue(), other.getvalue())


@cases(hits=6)
def a_handler_of_the_same_class(trace):
    logger, out = written()
    other = io.StringIO()

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    steps = changing(
        lambda: logger.handlers.__setitem__(0, logging.StreamHandler(other)),
        lambda: logger.handlers[0].setStream(out),
    )
    return trace(run), steps, lambda: (out.getvalue(), other.getvalue())


@cases(hits=6)
def a_file(trace):
    logger = fresh()
    handler = logging.FileHandler("/dev/null", delay=True)
    handler.stream = out = io.StringIO()
    logger.addHandler(handler)

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    return trace(run), values(*SOME), out.getvalue


@cases(hits=6)
def a_queue(trace):
    records = queue.SimpleQueue()
    logger = fresh(logging.handlers.QueueHandler(records))
    seen = []

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    def watch():
        while not records.empty():
            seen.append(fields(records.get()))
        return seen

    return trace(run), values(*SOME), watch


class Scaling(logging.Handler):
    """One that changes what the function reads."""

    def __init__(self, state, when):
        super().__init__()
        self.state, self.when = state, when

    def emit(self, record):
        if self.when(record.args[0]):
            self.state.scale += 1


@cases(eager="opaque-varies")
def a_handler_that_changes_what_the_function_reads(trace):
    state = types.SimpleNamespace(scale=1.0)
    logger = fresh(Scaling(state, lambda value: True))

    def run(t):
        before = t * state.scale
        logger.info("info %s", t.item())
        return before * state.scale

    return trace(run), values(*SOME), lambda: state.scale


@cases(hits=4)
def a_handler_that_is_put_there_and_changes_what_the_function_reads(trace):
    state = types.SimpleNamespace(scale=1.0)
    logger, out = written()

    def run(t):
        before = t * state.scale
        logger.info("info %s", t.item())
        return before * state.scale

    steps = [
        *values(*SOME[:6]),
        lambda: logger.addHandler(Scaling(state, lambda value: True)),
        *values(*SOME),
    ]
    return trace(run), steps, lambda: (state.scale, out.getvalue())


@cases(hits=5)
def a_handler_that_reads_what_the_function_writes(trace):
    state = types.SimpleNamespace(count=0)
    seen = []

    class Reading(logging.Handler):
        def emit(self, record):
            seen.append((state.count, record.getMessage()))

    logger = fresh(Reading())

    def run(t):
        state.count += 1
        logger.info("info %s", t.item())
        state.count += 1
        logger.info("later")
        return t * 2

    return trace(run), values(*SOME), lambda: (state.count, seen)


@cases(hits=5)
def a_stream_of_ones_own(trace):
    state = types.SimpleNamespace(count=0)
    seen = []

    class Stream:
        def write(self, text):
            seen.append((state.count, text))

        def flush(self):
            pass

    logger, out = written()

    def run(t):
        state.count += 1
        logger.info("info %s", t.item())
        return t * 2

    steps = changing(
        lambda: logger.handlers[0].setStream(Stream()), lambda: logger.handlers[0].setStream(out)
    )
    return trace(run), steps, lambda: (state.count, seen, out.getvalue())


@cases(hits=5)
def methods_that_are_replaced(trace):
    state = types.SimpleNamespace(count=0)
    seen = []

    def look(*args):
        seen.append(state.count)

    logger, out = written()
    handler = logger.handlers[0]
    emit = logging.StreamHandler.emit

    def run(t):
        state.count += 1
        logger.info("info %s", t.item())
        return t * 2

    steps = changing(
        lambda: setattr(handler, "emit", look),
        lambda: delattr(handler, "emit"),
        lambda: setattr(logging.StreamHandler, "emit", lambda self, record: look()),
        lambda: setattr(logging.StreamHandler, "emit", emit),
        lambda: setattr(logger, "handle", look),
        lambda: delattr(logger, "handle"),
        lambda: setattr(handler.formatter, "format", lambda record: str(look())),
        lambda: delattr(handler.formatter, "format"),
    )
    return trace(run), steps, lambda: (state.count, seen, out.getvalue())


class Marked(logging.Logger):
    """A logger of a user's own class."""

    def makeRecord(self, *args, **kwargs):
        record = super().makeRecord(*args, **kwargs)
        record.marked = "yes"
        return record


class Noting(logging.Logger):
    def _log(self, level, msg, args, **kwargs):
        super()._log(level, f"noted {msg}", args, **kwargs)


@cases(hits=6)
def a_logger_that_makes_its_records(trace):
    handler = Keeping()
    logger = fresh(handler, cls=Marked)

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=6)
def a_logger_that_logs_by_itself(trace):
    handler = Keeping()
    logger = fresh(handler, cls=Noting)

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=4)
def another_class_of_records(trace):
    state = types.SimpleNamespace(count=0)
    seen = []
    logger, out = written()

    def make(*args, **kwargs):
        seen.append(state.count)
        return logging.LogRecord(*args, **kwargs)

    def run(t):
        state.count += 1
        logger.info("info %s", t.item())
        return t * 2

    steps = changing(
        lambda: logging.setLogRecordFactory(make), lambda: logging.setLogRecordFactory(logging.LogRecord)
    )
    return trace(run), steps, lambda: (state.count, seen, out.getvalue())


@cases(hits=4)
def a_nested_function(trace):
    handler = Keeping()
    logger = fresh(handler)

    @trace
    def inner(t):
        logger.info("inner %s", t.item())
        return t * 2

    def run(t):
        logger.info("outer %s", t.item())
        return inner(t) + 1

    return trace(run), values(*SOME), lambda: handler.seen


@cases(hits=4)
def a_handler_that_calls_the_function(trace):
    seen = []

    class Calling(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())
            if record.args[0] < 3:
                seen.append(functions[0](torch.tensor(record.args[0] + 1)).item())

    logger = fresh(Calling())

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    functions = [trace(run)]
    return functions[0], values(*SOME), lambda: seen


@cases(hits=5)
def memory(trace):
    out = io.StringIO()
    logger = fresh(logging.handlers.MemoryHandler(3, target=logging.StreamHandler(out)))

    def run(t):
        y = t * 2
        logger.info("value %s", y)
        y.add_(1)
        return y

    return trace(run), values(*SOME), out.getvalue


@cases(hits=4)
def handlers_of_parents(trace):
    out, other = io.StringIO(), io.StringIO()
    mine = Keeping()
    parent = fresh(mine)
    child = fresh(logging.StreamHandler(out))
    child.parent = parent

    def run(t):
        child.info("value %s", t.item())
        return t * 2

    steps = changing(
        lambda: parent.addHandler(logging.StreamHandler(other)), lambda: setattr(child, "propagate", False)
    )
    return trace(run), steps, lambda: (mine.seen, out.getvalue(), other.getvalue())


class Bracketed(logging.Formatter):
    def format(self, record):
        return f"<{super().format(record)}>"


@cases(hits=6)
def a_formatter_of_ones_own(trace):
    logger, out = written()
    logger.handlers[0].setFormatter(Bracketed("%(message)s"))
    state = types.SimpleNamespace(last=None, losses=[])

    def run(t):
        y = t * 2
        state.last = y
        state.losses.append(y.item())
        logger.info("value %s %s", y.item(), y)
        return y

    return trace(run), values(*SOME), lambda: (out.getvalue(), state.last, state.losses)


class Bare:
    """No more than a handler or a formatter must have."""

    __module__ = None
    level = 0

    def __init__(self):
        self.seen = []

    def format(self, record):
        return f"bare {record.getMessage()}"

    def handle(self, record):
        self.seen.append(fields(record))


@cases(hits=6)
def handlers_and_formatters_of_no_class_of_logging(trace):
    logger, out = written()
    logger.handlers[0].setFormatter(Bare())
    bare = Bare()
    logger.handlers.append(bare)

    def run(t):
        logger.info("value %s", t.item())
        return t * 2

    return trace(run), values(*SOME), lambda: (out.getvalue(), bare.seen)


@cases(hits=4)
def a_formatter_of_no_class_of_logging(trace):
    logger, out = written()
    logger.handlers[0].setFormatter(Bare())

    def run(t):
        logger.info("value %s", t.item())
        return t * 2

    return trace(run), values(*SOME), out.getvalue


@cases(eager="calls logging after writing to Python state that it may read")
def a_handler_of_ones_own_behind_an_object_that_was_stored(trace):
    handler, history = Keeping(), []
    logger = fresh(handler)

    def run(t):
        history.append({"loss": t.item()})
        logger.info("value %s", t.item())
        return t * 2

    return trace(run), values(*SOME), lambda: (handler.seen, history)


@cases(hits=2)
def a_handler_that_changes_the_level(trace):
    logger, out = written()

    class Changing(logging.Handler):
        def emit(self, record):
            logger.setLevel(logging.ERROR if record.args[0] == 2.5 else logging.INFO)

    logger.addHandler(Changing())

    def run(t):
        logger.info("first %s", t.item())
        logger.info("second %s", t.item())
        return t * 2

    return trace(run), [s for one in values(*SOME) for s in (one, lambda: logger.setLevel(20))], out.getvalue


@cases(hits=4)
def stderr_of_another_class(trace):
    state = types.SimpleNamespace(count=0)
    seen = []

    class Stream:
        def write(self, text):
            seen.append((state.count, text))

        def flush(self):
            pass

    logger = fresh()
    files = [io.StringIO()]

    def run(t):
        state.count += 1
        logger.warning("value %s", t.item())
        return t * 2

    function = trace(run)

    def through(t):
        with contextlib.redirect_stderr(files[0]):
            return function(t)

    steps = [call(torch.tensor(v)).of(through) for v in SOME]
    return function, [*steps, lambda: files.__setitem__(0, Stream()), *steps], lambda: (seen, state.count)


class Counting(io.RawIOBase):
    """Counts what is written to it in an object of state."""

    def __init__(self, state):
        self.state = state

    def writable(self):
        return True

    def write(self, text):
        self.state.count += 1
        return len(text)


def counted_by(state, logger, steps=()):
    """What logs between two reads of what the code around a logger counts."""

    def run(t):
        before = t * state.count
        logger.info("value %s", t.item())
        return before + t * state.count * 100

    return run, [*values(*SOME), *(s for step in steps for s in (step, *values(*SOME)))], lambda: state.count


@cases(eager="opaque-varies")
def a_file_of_ones_own_below_a_stream(trace):
    state = types.SimpleNamespace(count=1)
    stream = io.TextIOWrapper(io.BufferedWriter(Counting(state), 1), write_through=True)
    run, steps, watch = counted_by(state, fresh(logging.StreamHandler(stream)))
    return trace(run), steps, watch


@cases(eager="opaque-varies")
def a_way_of_ones_own_to_handle_what_cannot_be_encoded(trace):
    state = types.SimpleNamespace(count=1)

    def handle(error):
        state.count += 1
        return "?", error.end

    codecs.register_error("counting", handle)
    handler = logging.StreamHandler(io.TextIOWrapper(io.BytesIO(), "ascii", "counting", write_through=True))
    handler.terminator = "\xe9\n"
    run, steps, watch = counted_by(state, fresh(handler))
    return trace(run), steps, watch


@cases(hits=2, eager="opaque-varies")
def methods_of_a_stream_that_are_written_over(trace):
    state = types.SimpleNamespace(count=1)
    stream = io.TextIOWrapper(io.BytesIO())
    run, steps, watch = counted_by(
        state,
        fresh(logging.StreamHandler(stream)),
        [
            lambda: setattr(stream, "flush", lambda: setattr(state, "count", state.count + 1)),
            lambda: delattr(stream, "flush"),
        ],
    )
    return trace(run), steps, watch


@cases(hits=2, eager="opaque-varies")
def another_lock_of_a_handler(trace):
    state = types.SimpleNamespace(count=1)
    handler = logging.StreamHandler(io.StringIO())

    class Lock:
        def acquire(self):
            state.count += 1

        def release(self):
            pass

    run, steps, watch = counted_by(
        state, fresh(handler), [lambda: setattr(handler, "lock", Lock()), handler.createLock]
    )
    return trace(run), steps, watch


@cases(hits=2, eager="opaque-varies")
def a_file_that_is_rotated_otherwise(trace):
    state = types.SimpleNamespace(count=1)
    folder = tempfile.TemporaryDirectory()
    handler = logging.handlers.RotatingFileHandler(f"{folder.name}/log", delay=True)
    handler.folder = folder

    def asks(record):
        state.count += 1
        return False

    run, steps, watch = counted_by(
        state,
        fresh(handler),
        [lambda: setattr(handler, "shouldRollover", asks), lambda: delattr(handler, "shouldRollover")],
    )
    return trace(run), steps, watch


@cases(eager="opaque-argument")
def a_list_with_numbers_that_lies_in_itself(trace):
    state = types.SimpleNamespace(count=1.5)
    logger, out = written()

    def run(t):
        numbers = [state.count * 2, {}]
        numbers[1]["all"] = (numbers,)
        logger.info("%s", numbers)
        return t * 2

    steps = values(*SOME)
    return trace(run), [*steps, lambda: setattr(state, "count", 2.5), *steps], out.getvalue


# ---------------------------------------------------------------- what lies in a list that is printed
class Shows:
    """An object whose text says how often it was shown."""

    def __init__(self, state, counts):
        self.state, self.counts = state, counts

    def __repr__(self):
        if self.counts:
            self.state.count += 1
        return f"shown {self.state.count}"


def printed(counts, branches):
    state = types.SimpleNamespace(count=1, shown=[1])
    shows = Shows(state, counts)
    out = io.StringIO()

    def run(t):
        before = t * state.count
        print(state.shown, t.item(), file=out)
        if branches and t > 1.5:
            return before
        return before + state.count * 100

    steps = values(*SOME)
    for one in (shows, 2, shows, 3):
        steps += [lambda one=one: state.shown.__setitem__(0, one), *values(*SOME)]
    return run, steps, lambda: (out.getvalue(), state.count)


@cases(hits=2, eager="resumes-after-opaque")
def an_object_that_counts_in_a_list_that_is_printed(trace):
    run, *rest = printed(True, False)
    return trace(run), *rest


@cases(hits=6)
def an_object_of_ones_own_in_a_list_that_is_printed(trace):
    run, *rest = printed(False, True)
    return trace(run), *rest


@cases(hits=2, eager="resumes-after-opaque")
def an_object_that_counts_before_a_branch(trace):
    run, *rest = printed(True, True)
    return trace(run), *rest


# ---------------------------------------------------------------- what goes wrong
def to_stderr(function):
    """The function with what it writes to stderr."""
    out = io.StringIO()

    def through(*args):
        with contextlib.redirect_stderr(out):
            return function(*args)

    return through, out


def errors_of(out):
    """What was said of errors, but for the frames above those of this file."""
    said = ("test_handlers_of_logging", "Message", "Arguments", "Error")
    return [line for line in out.getvalue().splitlines() if any(one in line for one in said)]


@cases(hits=5)
def a_message_that_cannot_be_formatted(trace):
    logger, out = written()

    def run(t):
        logger.info("info %d", "text")
        logger.info("info %s %s", t.item())
        return t * 2

    function = trace(run)
    through, errors = to_stderr(function)

    def watch():
        return out.getvalue(), errors_of(errors)

    return function, [call(torch.tensor(v)).of(through) for v in SOME], watch


@cases(hits=4)
def a_message_that_can_be_formatted_for_some_numbers(trace):
    logger, out = written()

    def run(t):
        logger.info("info %d", t.item())
        return t * 2

    function = trace(run)
    through, errors = to_stderr(function)

    def watch():
        return out.getvalue(), errors_of(errors)

    steps = (*SOME, float("nan"), 1.0, float("inf"), 2.0)
    return function, [call(torch.tensor(v)).of(through) for v in steps], watch


@cases(hits=4)
def a_stream_that_is_closed(trace):
    logger, out = written()

    def run(t):
        logger.info("info %s", t.item())
        return t * 2

    function = trace(run)
    through, errors = to_stderr(function)

    def watch():
        return errors_of(errors)

    steps = [call(torch.tensor(v)).of(through) for v in SOME]
    return function, [*steps, out.close, *steps], watch


@cases(hits=4)
def a_filter_that_raises(trace):
    first, second = Keeping(), Keeping()
    logger = fresh(first, second)
    logs = []

    def choose(record):
        if record.args[0] == 2.5:
            raise ValueError("not this one")
        return True

    second.addFilter(choose)

    def run(t):
        logs.append("before")
        try:
            logger.info("info %s", t.item())
        except ValueError as error:
            logs.append(str(error))
        finally:
            logs.append("after")
        return t * 2

    return trace(run), values(*SOME), lambda: (first.seen, second.seen, logs)


@cases(hits=4)
def a_filter_that_raises_and_nobody_catches(trace):
    first, second = Keeping(), Keeping()
    logger = fresh(first, second)
    logs = []

    def choose(record):
        if record.args[0] == 2.5:
            raise ValueError("not this one")
        return True

    second.addFilter(choose)

    def run(t):
        logs.append("before")
        logger.info("info %s", t.item())
        logs.append("after")
        return t * 2

    return trace(run), values(*SOME), lambda: (first.seen, second.seen, logs)


@cases(eager="logs an exception that is handled")
def an_exception(trace):
    logger, out = written()

    def run(t):
        try:
            raise ValueError("wrong")
        except ValueError:
            logger.exception("caught")
        return t * 2

    return trace(run), values(*SOME), out.getvalue


@cases(hits=4)
def no_handlers_at_all(trace):
    logger = fresh()

    def run(t):
        logger.warning("warning %s", t.item())
        logger.info("info %s", t.item())
        return t * 2

    function = trace(run)
    through, errors = to_stderr(function)
    return function, [call(torch.tensor(v)).of(through) for v in SOME], errors.getvalue


# ---------------------------------------------------------------- what is kept
@cases(hits=6)
def records_that_are_kept(trace):
    handler = unittest._log._CapturingHandler()
    logger = fresh(handler)

    def run(t):
        y = t * 2
        logger.info("tensor %s", y)
        y.add_(1)
        return y

    return (
        trace(run),
        values(*SOME),
        lambda: [(one.getMessage(), one.args) for one in handler.watcher.records],
    )


@cases(eager="calls logging with an argument that cannot be made again")
def a_list_that_changes_in_a_record_that_is_kept(trace):
    kept = []

    class Kept(logging.Handler):
        def emit(self, record):
            kept.append(record)

    logger = fresh(Kept())

    def run(t):
        sizes = [1, 2]
        logger.info("list %s", sizes)
        sizes.append(3)
        return t * 2

    return trace(run), values(*SOME), lambda: [one.getMessage() for one in kept]


def a_list_that_nobody_else_has(trace):
    handler = Keeping()
    logger = fresh(handler)

    def run(t):
        logger.info("list %s", [1, t.dim()])
        return t * 2

    return trace(run), values(*SOME), lambda: handler.seen


class Shown:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"Shown({self.value})"


def an_object_of_ones_own(trace):
    box = Shown(1)
    logger, out = written()

    def run(t):
        box.value += 1
        logger.info("box %s %s", box, [box])
        return t * box.value

    return trace(run), values(*SOME), out.getvalue


@cases(hits=5)
def a_list_in_state(trace):
    kept = [1]
    logger, out = written()

    def run(t):
        logger.info("list %s", kept)
        return t * 2

    steps = [step for v in SOME for step in (*values(v), lambda: kept.append(len(kept)))]
    return trace(run), steps, out.getvalue


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)


def test_a_list_that_nobody_else_has():
    check_apart(a_list_that_nobody_else_has, 6)


def test_an_object_of_ones_own():
    check_apart(an_object_of_ones_own, 4)
