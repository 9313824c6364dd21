"""Every recording, eager call and eviction is an event, with every difference to the nearest trace."""

from __future__ import annotations

import logging
import os
import pickle
import re
import sys
import threading
import time
import warnings

import pytest
import torch
from torch import nn

import lazytrace
import lazytrace.engine.attempt
from lazytrace import Event, ProofWarning, Reason, RetraceWarning, Snapshot, traced
from lazytrace.engine.recording import Recorded
from lazytrace.explain import changes
from lazytrace.stats import EventLog, line_of, signature_line, suggestions, wasted
from tests.processes import python

X = torch.tensor([-1.0, 0.5, 2.0])
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def events(fn) -> tuple[Event, ...]:
    return fn.stats().events


def reasons(fn) -> list[str]:
    """The reasons of the newest event."""
    return [str(reason) for reason in events(fn)[-1].reasons]


def line_here() -> int:
    return sys._getframe(1).f_lineno


# ---------------------------------------------------------------- what an event holds
def test_a_recording():
    step = traced(lambda x, k: x * k, name="step")
    before = time.time()
    _, line = step(X, 2), line_here()
    (event,) = events(step)
    assert (event.kind, event.topic, event.function, event.retrace) == ("recorded", "record", "step", False)
    assert (event.operators, event.instance, event.where) == (1, 0, f"test_events.py:{line}")
    assert (event.thread, event.thread_id) == (threading.current_thread().name, threading.get_ident())
    assert abs(event.time - before) < 60
    assert 0 < event.seconds < 60
    assert event.reasons == (Reason("first call", kind="first"),)
    assert (event.signature["x.shape[0]"], event.signature["k"]) == ("3", "2")


def test_a_retrace_has_every_difference_with_its_kind():
    step = traced(lambda x, k: x * k)
    step(X, 2)
    with torch.no_grad():
        step(torch.ones(5).double(), 3)
    assert events(step)[-1].retrace
    assert events(step)[-1].reasons == (
        Reason("x.dtype", "float32", "float64", "dtype"),
        Reason("x.shape[0]", "3", "5", "shape"),
        Reason("k", "2", "3", "value"),
        Reason("grad_mode", "True", "False", "mode"),
    )


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (torch.ones(2), torch.ones(2, 2), "shape"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), "layout"),
        (torch.ones(2), torch.ones(2, requires_grad=True), "grad"),
        ([X], (X,), "structure"),
        ([X], [X, X], "structure"),
    ],
)
def test_kinds(first, second, kind):
    step = traced(lambda x: x[0] * 2)
    step(first), step(second)
    assert events(step)[-1].reasons[0].kind == kind


def test_kind_of_a_device():
    assert changes({"x.device": "cpu"}, {"x.device": "meta"}) == (
        Reason("x.device", "cpu", "meta", "device"),
    )


def test_all_state_that_changed_and_not_only_the_first_guard():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drops = nn.ModuleList([nn.Dropout(0.5), nn.Dropout(0.5)])

        def forward(self, x):
            for drop in self.drops:
                x = drop(x)
            return x * 2

    net = Net().eval()
    step = traced(net)
    step(X)
    net.drops[0].p, net.drops[1].p = 0.25, 0.75
    step(X)
    assert reasons(step) == ["self.drops[0].p 0.5 -> 0.25", "self.drops[1].p 0.5 -> 0.75"]


def test_arguments_and_state_at_once():
    scale = 2.0
    step = traced(lambda x: x * scale)
    step(X)
    scale = 3.0
    step(torch.ones(7))
    assert [(r.path, r.old, r.new, r.kind) for r in events(step)[-1].reasons] == [
        ("x.shape[0]", "3", "7", "shape"),
        ("scale", "2.0", "3.0", "state"),
    ]


def test_a_branch():
    @traced
    def step(x):
        return x * 2 if x.sum() > 0 else x * 3

    step(X), step(-X)
    (reason,) = events(step)[-1].reasons
    line = step.original.__code__.co_firstlineno + 2
    assert (reason.path, reason.kind) == ("result of is_nonzero", "branch")
    assert (reason.old, reason.new) == ("True", "False")
    assert reason.where == f"test_events.py:{line}"


def test_an_eager_call():
    @traced
    def step(x):
        return x * len(x.repeat(99, 1).tolist()[0])

    for _ in range(3):
        _, line = step(X), line_here()
    assert [event.kind for event in events(step)] == ["eager"] * 3
    for event in events(step):
        place = f"test_events.py:{step.original.__code__.co_firstlineno + 2}"
        assert event.reasons == (Reason("calls .tolist() of a tensor", "", "", "eager", place),)
        assert (event.where, event.signature["x.shape[0]"]) == (f"test_events.py:{line}", "3")


def test_an_eager_call_that_raises_is_told_too():
    def fails(x):
        raise ValueError("no")

    step = traced(fails, backend="eager")
    with pytest.raises(ValueError, match="no"):
        step(X)
    assert [reason.path for event in events(step) for reason in event.reasons] == ['backend="eager"']
    assert step.stats().eager == {'backend="eager"': 1}


def test_a_recording_that_raises():
    def fails(x):
        raise ValueError("no")

    step = traced(fails)
    with pytest.raises(ValueError, match="no"):
        step(X)
    assert reasons(step) == ["raised ValueError"]


def test_an_eviction():
    step = traced(lambda x: x * 2, cache_limit=1)
    step(torch.ones(1)), step(torch.ones(2))
    first, evicted, second = events(step)
    assert (first.kind, evicted.kind, second.kind) == ("recorded", "evicted", "recorded")
    assert evicted.reasons == (Reason("cache_limit=1 was reached", kind="limit"),)
    assert evicted.signature["x.shape[0]"] == "1"


def test_hits_are_no_events():
    step = traced(lambda x: x * 2)
    for _ in range(5):
        step(X)
    assert len(events(step)) == 1


def test_a_hit_does_nothing_for_events(monkeypatch):
    step = traced(lambda x: x * 2)
    step(X)

    def forbidden(*args, **kwargs):
        raise AssertionError("called on a hit")

    for method in ("recorded", "eager", "evicted", "hit", "remember", "_add"):
        monkeypatch.setattr(EventLog, method, forbidden)
    for name in ("call_site", "describe", "root_names"):
        monkeypatch.setattr(lazytrace.engine.attempt, name, forbidden)
    assert torch.equal(step(X), X * 2)
    with pytest.raises(AssertionError, match="called on a hit"):
        step(torch.ones(7))


def passes_over_layers(count, passes):
    class Layer:
        def __init__(self, scale):
            self.scale = scale

        @traced
        def run(self, x):
            return x * self.scale

    layers = [Layer(float(n)) for n in range(count)]
    for _ in range(passes):
        for layer in layers:
            layer.run(X)
    return Layer


def test_the_first_pass_over_many_layers_is_no_waste():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = passes_over_layers(24, 3)
    assert (layer.run.stats().recordings, layer.run.stats().hits) == (24, 48)


def test_instances_that_are_made_anew_for_each_call_are_waste():
    layer = passes_over_layers(1, 1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for n in range(16):
            layer(float(n)).run(X)
    assert [warning.category for warning in found] == [RetraceWarning]
    assert re.search(r"run was recorded \d+ times .* for 0 hits", str(found[0].message))


def test_an_argument_that_the_function_never_reads_is_named():
    class Net(nn.Module):
        def forward(self, batch, batch_idx):  # hooks may read what it does not
            return batch * 2

    training_step = traced(Net(), dynamic=False)

    cause = r"batch_idx changed 15 times .*, and the function never reads it\."
    for n in range(15):
        training_step(X, n)
    with pytest.warns(RetraceWarning, match=cause):
        training_step(X, 15)
    found = suggestions([training_step.stats()])
    assert [one.pattern for one in found] == ["unread argument"]
    assert found[0].text == (
        "batch_idx had 16 different values (0, 1, 2, 3, and 12 more): the function never reads it, and yet "
        "each value is recorded by itself. Pass the same value at each call, or leave the argument out."
    )


def test_a_proof_warning_is_about_the_line_that_called(monkeypatch):
    def wrong(call, function, args, kwargs, **options):
        reason = "its replay differed from the eager result"
        return Recorded(function(*args, **kwargs), None, reason, "", 0.0, "output differs in value")

    monkeypatch.setattr(lazytrace.engine.attempt, "record", wrong)
    step = traced(lambda x: x * 2)
    with pytest.warns(ProofWarning, match="output differs in value") as found:
        step(X)
    assert (found[0].filename, found[0].lineno) == (__file__, line_here() - 1)
    assert step.stats().proof_failures == 1


def reads_in_an_inner_function(x, n):
    return (lambda: x * n)()


def reads_by_name(x, n):
    return x * locals()["n"]


@pytest.mark.parametrize("function", [reads_in_an_inner_function, reads_by_name])
def test_an_argument_that_the_function_reads_somehow_is_not_called_unread(function):
    step = traced(function)
    for n in range(4):
        step(X, n)
    assert step.stats().unread == ()


def test_instances_are_numbered():
    class Scaler:
        @traced
        def run(self, x):
            return x * 2

    scalers = [Scaler() for _ in range(3)]
    for one in (*scalers, scalers[0]):
        one.run(X)
    assert [event.instance for event in events(Scaler.run)] == [1, 2, 3]


def test_the_call_site_is_outside_torch_and_lazytrace():
    net = nn.Sequential(nn.Linear(3, 3))

    @traced
    class Net(nn.Module):
        def forward(self, x):
            return net(x)

    _, line = Net()(X), line_here()
    assert events(Net.forward)[-1].where == f"test_events.py:{line}"


# ---------------------------------------------------------------- the ring
def test_the_ring_keeps_the_newest_and_counters_lose_nothing():
    step = traced(lambda x: x * 2, events=3, backend="eager")
    for _ in range(10):
        step(X)
    numbers = [event.number for event in events(step)]
    assert len(numbers) == 3
    assert numbers == sorted(numbers)
    assert step.stats().eager_calls == 10


def test_numbers_are_unique_over_functions_and_threads():
    steps = [traced(lambda x: x * 2, backend="eager") for _ in range(4)]

    def work(step):
        for _ in range(50):
            step(X)

    workers = [threading.Thread(target=work, args=(step,)) for step in steps for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seen = [event for step in steps for event in events(step)]
    assert len({event.number for event in seen}) == len(seen) == 400


def test_an_event_is_json_and_pickles():
    step = traced(lambda x: x * 2)
    step(X)
    (event,) = events(step)
    assert Event.from_dict(event.as_dict()) == event
    assert pickle.loads(pickle.dumps(event)) == event


# ---------------------------------------------------------------- listening
def test_on_event():
    seen: list[Event] = []
    stop = lazytrace.on_event(seen.append)
    step = traced(lambda x: x * 2, name="listened_to", cache_limit=1)
    step(torch.ones(1)), step(torch.ones(1)), step(torch.ones(2))
    stop()
    step(torch.ones(3))
    stop()
    assert [event.topic for event in seen if event.function == "listened_to"] == [
        "record",
        "evict",
        "retrace",
    ]


def test_a_callback_that_raises_does_not_break_the_call(caplog):
    def bad(event):
        raise RuntimeError("of the callback")

    stop = lazytrace.on_event(bad)
    try:
        assert torch.equal(traced(lambda x: x * 2)(X), X * 2)
    finally:
        stop()
    (record,) = caplog.records
    assert record.getMessage() == "lazytrace: a callback of on_event raised"
    assert str(record.exc_info[1]) == "of the callback"


def test_logging(caplog):
    step = traced(
        lambda x: x * len(x.repeat(99, 1).tolist()[0]) if x.numel() > 3 else x * 2,
        name="logged",
        cache_limit=1,
    )
    with caplog.at_level(logging.INFO, "lazytrace"):
        for n in (1, 2, 4):
            _, line = step(torch.ones(n)), line_here()
    texts = [
        (r.name, r.getMessage().split(" in ")[0], r.getMessage().split(" ms")[-1]) for r in caplog.records
    ]
    here = f", called at test_events.py:{line}: "
    assert texts == [
        ("lazytrace.record", "logged: recorded", f"{here}first call"),
        ("lazytrace.evict", "logged: evicted: cache_limit=1 was reached", texts[1][2]),
        ("lazytrace.retrace", "logged: retraced", f"{here}x.shape[0] 1 -> 2"),
        (
            "lazytrace.eager",
            "logged: ran eagerly",
            f"{here}calls .tolist() of a tensor (test_events.py:{line - 6})",
        ),
    ]


def test_a_message_is_one_line():
    reason = Reason("k", "'a\nb'", "'c\r'", "value")
    event = Event("recorded", "step", 0, 0.0, 0.002, "main", 1, "a.py:1", {}, (reason,), True)
    assert event.line() == "step: retraced in 2.0 ms, called at a.py:1: k 'a\\nb' -> 'c\\r'"


def test_log_of_the_environment(tmp_path):
    program = (
        "import torch, lazytrace\nstep = lazytrace.traced(lambda x: x * 2, name='step')\n"
        "for n in (1, 1, 2): step(torch.ones(n))\n"
    )
    done = python("-c", program, cwd=tmp_path, LAZYTRACE_LOG="retrace,eager,evict")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("lazytrace.retrace: step: retraced in ")
    assert line.endswith(" ms, called at <string>:3: x.shape[0] 1 -> 2")


# ---------------------------------------------------------------- explain
def test_explain_a_first_call_a_hit_and_a_retrace():
    calls = []

    @traced
    def step(x, k):
        calls.append(1) if k == 99 else None
        return x * k

    assert str(step.explain(X, 2)) == "step would be recorded: first call"
    step(X, 2)
    assert str(step.explain(X, 2)) == "step would hit"
    assert step.explain(X, 2).hit
    told = step.explain(torch.ones(4), 99)
    assert not told.hit
    assert str(told) == "step would be recorded: x.shape[0] 3 -> 4; k 2 -> 99"
    assert calls == []
    assert step.stats().calls == 1
    assert len(events(step)) == 1


def test_explain_ranks_by_the_nearest():
    step = traced(lambda x, k: x * k, name="step")
    step(X, 1), step(torch.ones(5).double(), 2)
    told = step.explain(X, 3)
    assert [len(one.reasons) for one in told.candidates] == [1, 3]
    assert told.reasons == told.candidates[0].reasons == (Reason("k", "1", "3", "value"),)
    assert str(told).splitlines()[1].endswith(": x.dtype float64 -> float32; x.shape[0] 5 -> 3; k 2 -> 3")


def test_explain_state():
    scale = 2.0
    step = traced(lambda x: x * scale, name="step")
    step(X)
    scale = 3.0
    (reason,) = step.explain(X).reasons
    assert (reason.path, reason.old, reason.new, reason.kind) == ("scale", "2.0", "3.0", "state")


def test_explain_says_what_a_hit_depends_on():
    @traced
    def step(x):
        return x * 2 if x.sum() > 0 else x

    step(X)
    line = step.original.__code__.co_firstlineno + 2
    assert str(step.explain(X)) == (
        f"step would hit, unless one of these differs: is_nonzero True (test_events.py:{line})"
    )


def test_explain_eager_calls():
    @traced
    def step(x):
        return x * len(x.repeat(99, 1).tolist()[0])

    step(X), step(X)
    line = step.original.__code__.co_firstlineno + 2
    expected = f"step would run eagerly: calls .tolist() of a tensor (test_events.py:{line})"
    assert str(step.explain(X)) == expected
    assert str(step.explain(X)) == expected
    with lazytrace.disabled():
        assert str(step.explain(X)) == "step would run eagerly: lazytrace is disabled"
    assert str(traced(step.original, backend="eager").explain(X)) == 'step would run eagerly: backend="eager"'


def test_explain_arguments_that_do_not_fit():
    step = traced(lambda x: x, name="step")
    assert str(step.explain()) == "step would run eagerly: the arguments do not fit the parameters"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"on_limit": "eager"}, "run eagerly: cache_limit=1 was reached; k 1 -> 2"),
        ({"on_limit": "raise"}, "raise: cache_limit=1 was reached; k 1 -> 2"),
        ({"on_retrace": "raise"}, "raise: on_retrace='raise'; k 1 -> 2"),
        ({"on_retrace": "warn"}, "be recorded: k 1 -> 2"),
    ],
)
def test_explain_follows_the_options(options, told):
    step = traced(lambda x, k: x * k, name="step", cache_limit=1, **options)
    step(X, 1)
    assert str(step.explain(X, 2)) == f"step would {told}"


def test_explain_a_frozen_function():
    step = traced(lambda x, k: x * k, name="step")
    step(X, 1)
    step.freeze()
    assert str(step.explain(X, 2)) == "step would raise: frozen; k 1 -> 2"
    assert step.explain(X, 1).hit


def test_events_are_the_same_objects_until_there_are_new_ones():
    step = traced(lambda x: x * 2)
    step(X)
    first = events(step)
    assert events(step) is first
    step(torch.ones(7))
    assert [event.number for event in events(step)][:1] == [first[0].number]
    assert len(events(step)) == 2


def test_explain_a_method():
    class Scaler:
        @traced
        def run(self, x):
            return x * 2

    one, other = Scaler(), Scaler()
    one.run(X)
    assert one.run.explain(X).hit
    assert not other.run.explain(X).hit


# ---------------------------------------------------------------- texts
def test_brief():
    words = {
        "x.dtype": "float32",
        "x.ndim": "2",
        "x.shape[0]": "64",
        "x.shape[1]": "3",
        "type(x)": "Tensor",
        "len(rest)": "1",
        "rest[0]": "2",
        "grad_mode": "False",
    }
    assert signature_line(words) == "x: float32[64, 3], rest[0]: 2, grad_mode: False"


def test_brief_leaves_out_what_is_as_usual():
    step = traced(lambda x, k: x * k)
    step(X, 2)
    assert signature_line(events(step)[-1].signature) == "x: float32[3], k: 2"


def test_more_than_eight_reasons_are_counted():
    many = [Reason("k", str(n), str(n + 1)) for n in range(10)]
    assert line_of(many) == "; ".join(f"k {n} -> {n + 1}" for n in range(8)) + "; and 2 more"


# ---------------------------------------------------------------- patterns
def found(fn) -> list[tuple[str, str]]:
    return [(one.pattern, str(one)) for one in suggestions([fn.stats()])]


def test_a_value_that_differs_on_every_call():
    step = traced(lambda x, k: x * k, name="step", dynamic=False)
    for k in range(6):
        _, line = step(X, k), line_here()
    assert found(step) == [
        (
            "varying value",
            "step: k had 6 different values (0, 1, 2, 3, and 2 more): each value is recorded by itself. "
            "Pass it as a tensor, torch.tensor(value), or use it outside the traced function. "
            f"(test_events.py:{line})",
        )
    ]


def test_a_dimension_that_varies():
    step = traced(lambda x: x * 2, name="step", dynamic=False)
    for n in (64, 13, 7):
        _, line = step(torch.ones(n)), line_here()
    assert found(step) == [
        (
            "varying dimension",
            "step: x.shape[0] had 3 different values (64, 13, 7): each size is recorded by itself, as "
            "dynamic=False asks. Leave dynamic at None for one program of all sizes, or pad or "
            "bucket to a few sizes; drop_last=True of a DataLoader does away with a smaller last batch. "
            f"(test_events.py:{line})",
        )
    ]


def test_a_dimension_that_varies_though_sizes_may():
    step = traced(lambda x, k: x * len(k), name="step")
    for n in (64, 13, 7):
        _, line = step(torch.ones(n), "a" * n), line_here()
    assert [text for pattern, text in found(step) if pattern == "varying dimension"] == [
        "step: x.shape[0] had 3 different values (64, 13, 7): each size is recorded by itself. Pad or "
        "bucket to a few sizes; drop_last=True of a DataLoader does away with a smaller last batch. "
        f"(test_events.py:{line})",
    ]


def test_a_dimension_that_varies_is_nothing_to_suggest_by_default():
    step = traced(lambda x: x * 2, name="step")
    for n in (64, 13, 7, 5, 9):
        step(torch.ones(n))
    assert found(step) == []
    assert (step.stats().hits, step.stats().recordings) == (3, 2)


def test_state_that_varies():
    scale = 0.0
    step = traced(lambda x: x * scale, name="step", dynamic=False)
    for scale in (1.0, 2.0, 3.0):  # noqa: B007
        step(X)
        line = line_here() - 1
    assert found(step) == [
        (
            "varying state",
            "step: scale had 3 different values (1.0, 2.0, 3.0): the function reads it, so each value is "
            "recorded by itself. Keep it as a tensor and write to that in place, or pass it as a tensor "
            f"argument. (test_events.py:{line})",
        )
    ]


def test_a_branch_that_varies():
    @traced
    def step(x):
        return x * len("a" * int(x.sum()))

    for n in range(1, 5):
        step(torch.ones(n)[:1] * n)
    ((pattern, text),) = found(step)
    line = step.original.__code__.co_firstlineno + 2
    assert pattern == "varying branch"
    assert "had 4 different values (1" in text
    assert text.endswith(
        ": Python looks at this value, so each one is recorded by itself. Use torch.where, or move the "
        f"branch into a @script_if_tracing function. (test_events.py:{line})"
    )


def test_thrash():
    step = traced(lambda x, k: x * k, cache_limit=2, name="step", dynamic=False)
    for _ in range(2):
        for k in (1, 2, 3):
            step(X, k)
    line = step.original.__code__.co_firstlineno
    assert (
        "thrash",
        "step: its signatures alternate beyond cache_limit=2, so recordings are dropped and made again: "
        f"cache_limit=3 would have been enough. (test_events.py:{line})",
    ) in found(step)


def test_instances_with_the_same_program():
    class Scaler:
        @traced
        def run(self, x):
            return x * 2

    scalers = [Scaler() for _ in range(4)]
    for one in scalers:
        one.run(X)
    line = Scaler.run.original.__code__.co_firstlineno
    assert found(Scaler.run) == [
        (
            "same program per instance",
            "Scaler.run: 4 instances each recorded the same program. Keep the instances, if they are made "
            "anew each time; or trace a function that takes what differs between them as tensor arguments. "
            f"(test_events.py:{line})",
        )
    ]


def test_a_function_that_is_decorated_in_a_loop():
    for _ in range(5):

        @traced(name="decorated_in_a_loop")
        def step(x):
            return x * 2

        step(X)
    texts = [str(one) for one in suggestions(lazytrace.stats()) if one.function == "decorated_in_a_loop"]
    line = step.original.__code__.co_firstlineno
    assert texts == [
        "decorated_in_a_loop: was decorated 5 times, and each decoration starts without recordings: "
        f"decorate it once, outside the loop or the function that makes it. (test_events.py:{line})"
    ]


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (
            "calls .tolist() of a tensor",
            "move it behind the traced function, or wrap the helper that does it in lazytrace.opaque.",
        ),
        ("calls print()", "do it outside the traced function, or in a helper wrapped in lazytrace.opaque."),
        (
            "too many branches: x; a @script_if_tracing function keeps them in one program",
            "use torch.where, or move the branch into a @script_if_tracing function.",
        ),
        ("cache_limit=2 was reached", "raise cache_limit, or let it evict with on_limit='evict'."),
        (
            "lazytrace._core cannot be imported: x",
            "build the extension: python setup.py build_ext --inplace.",
        ),
        (
            "raised ValueError",
            "what raises while it is recorded is not kept; handle the exception outside the traced function.",
        ),
        (
            "another thread is recording this signature",
            "call it once before the threads start: lazytrace.warmup() does.",
        ),
        (
            "anything else",
            "take that out of the traced function, or wrap the helper that does it in lazytrace.opaque.",
        ),
    ],
)
def test_an_eager_reason_that_repeats(reason, advice):
    snapshot = Snapshot("step", eager={reason: 3, "calls once()": 1})
    assert [str(one) for one in suggestions([snapshot])] == [f"step: ran eagerly 3 times, {reason}: {advice}"]


@pytest.mark.parametrize(
    "reason", ["lazytrace is disabled", 'backend="eager"', "runs inside another tracer or transform"]
)
def test_what_was_asked_for_needs_no_advice(reason):
    assert suggestions([Snapshot("step", eager={reason: 100})]) == ()


def test_nothing_to_suggest():
    step = traced(lambda x: x * 2)
    for n in (64, 64, 13):
        step(torch.ones(n))
    assert found(step) == []


def test_long_values_are_cut():
    step = traced(lambda x, k: x * len(k), name="step")
    for letter in "abc":
        step(X, letter * 100)
    ((_, text),) = found(step)
    assert f"('{'a' * 36}..., '{'b' * 36}..., '{'c' * 36}...)" in text


# ---------------------------------------------------------------- warnings
def test_waste_is_warned_of_once_with_its_cause():
    step = traced(lambda x, k: x * k, name="step", dynamic=False)

    def calls():
        for k in range(40):
            step(X, k)

    with pytest.warns(lazytrace.RetraceWarning) as caught:
        calls()
    (warning,), line = caught, calls.__code__.co_firstlineno + 2
    recordings, hits, seconds, cause = wasted(step.stats())
    assert (recordings, hits) == (17, 0)
    assert seconds > 0
    text = str(warning.message)
    assert text.startswith("step was recorded 16 times (")
    assert text.endswith(
        " ms) for 0 hits, which cost more than it saved. k changed 15 times (0, 1, 2, 3, and 12 more). "
        "lazytrace.report() lists every reason; this warning is given once for each function."
    )
    assert (os.path.basename(warning.filename), warning.lineno) == ("test_events.py", line)
    assert cause == "k changed 16 times (0, 1, 2, 3, and 13 more)."


@pytest.mark.filterwarnings("error")
def test_recordings_that_pay_are_not_warned_of():
    step = traced(lambda x, k: x * k, dynamic=False)
    for _ in range(3):
        for k in range(15):
            step(X, k)
    step(X, 15), step(X, 16)
    assert step.stats().recordings == 17
