"""Calls that are not worth a recording: unread arguments, recordings that are never hit, refusals."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

import lazytrace
from lazytrace import traced
from lazytrace.engine.attempt import Attempt
from lazytrace.engine.store import TraceStore

pytestmark = pytest.mark.filterwarnings("ignore::lazytrace.RetraceWarning")

X = torch.ones(3)
RESTS = "records too often: none of its last 16 recordings was hit"


# ---------------------------------------------------------------- arguments that the code never reads
def test_an_argument_that_is_never_read_is_no_part_of_the_signature():
    class Module:
        @traced
        def training_step(self, batch, batch_idx):
            return batch * 2

    module = Module()
    for n in range(200):
        assert module.training_step(X, n).sum() == 6
    assert (Module.training_step.stats().hits, Module.training_step.stats().recordings) == (199, 1)


@pytest.mark.parametrize(
    "unread",
    [
        1,
        "a",
        [1, 2],
        {"k": X},
        X,
        X.double(),
        np.ones(2),
        object(),
        (n for n in ()),
        nn.Linear(1, 1),
        {1: {2}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_argument_is_makes_no_difference(unread):
    step = traced(lambda x, other: x * 2)
    step(X, None)
    step(X, unread)
    assert step.stats().hits == 1


def test_an_unread_argument_may_be_left_out_or_named():
    step = traced(lambda x, other=3, *, flag=False: x * 2)
    step(X)
    step(X, 4)
    step(X, other=5, flag=True)
    step(x=X, flag=2)
    assert step.stats().hits == 3


def test_an_unread_argument_is_still_needed():
    step = traced(lambda x, other: x * 2)
    step(X, 1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'other'"):
        step(X)
    with pytest.raises(TypeError, match="multiple values for argument 'other'"):
        step(X, 1, other=2)


def test_new_code_that_reads_the_argument_is_asked_for_it():
    def step(x, k):
        return x * 2

    def other(x, k):
        return x * k

    fast = traced(step, dynamic=False)
    assert [fast(X, k).sum().item() for k in (3, 4)] == [6, 6]
    step.__code__ = other.__code__
    assert [fast(X, k).sum().item() for k in (3, 4, 5, 3)] == [9, 12, 15, 9]
    assert fast.stats().hits == 2


def closes_over(x, n):
    return (lambda: x * n)()


def reads_locals(x, n):
    return x * locals()["n"]


def deletes_and_sets(x, n):
    del n
    n = 2
    return x * n


def reads_in_a_comprehension(x, n):
    return sum([x * n for _ in range(2)])


def reads_in_a_class(x, n):
    class Holder:
        k = n

    return x * Holder.k


def asks_the_frame(x, n):
    return x * inspect.currentframe().f_locals["n"]


def asks_a_traceback(x, n):
    try:
        raise ValueError
    except ValueError as error:
        return x * error.__traceback__.tb_frame.f_locals["n"]


def generates(x, n):
    return sum(x * k for k in range(n))


READERS = [
    closes_over,
    reads_locals,
    reads_in_a_comprehension,
    reads_in_a_class,
    asks_the_frame,
    asks_a_traceback,
    generates,
]


@pytest.mark.parametrize("function", [*READERS, deletes_and_sets], ids=lambda f: f.__name__)
def test_an_argument_that_is_read_somehow_counts(function):
    step = traced(function)
    for n in (1, 2, 3, 2, 1, 2, 3):
        assert torch.equal(step(X, n), function(X, n))


class Base:
    def scale(self):
        return 2


class Derived(Base):
    k = 1

    @traced
    def step(self, x):
        return x * super().scale()


def test_super_reads_the_first_argument():
    class Other(Derived):
        def scale(self):
            return 5

    assert [one.step(X).sum().item() for one in (Derived(), Other(), Derived(), Other())] == [6, 6, 6, 6]
    Base.scale = lambda self: 3 * self.k
    other = Other()
    other.k = 10
    try:
        assert [one.step(X).sum().item() for one in (Derived(), other, Derived(), other)] == [9, 90, 9, 90]
    finally:
        Base.scale = lambda self: 2


def test_hooks_of_a_module_get_arguments_that_its_forward_does_not_read():
    class Net(nn.Module):
        def forward(self, x, k=1):
            return x * 2

    net = Net()
    net.register_forward_pre_hook(lambda module, args: (args[0] * args[1], args[1]))
    fast = traced(net)
    assert [fast(X, k).sum().item() for k in (1, 2, 3, 2)] == [6, 12, 18, 12]


def test_a_wrapper_reads_what_the_wrapped_function_does_not():
    def scaled(function):
        def wrapper(x, k):
            return function(x, k) * k

        return wrapper

    step = traced(scaled(lambda x, k: x * 2))
    assert [step(X, k).sum().item() for k in (1, 2, 3, 2)] == [6, 12, 18, 12]


def test_an_unread_tensor_that_shares_memory_with_a_read_one():
    def step(x, other):
        return x.add_(1) * 2

    fast = traced(step)
    for _ in range(3):
        a, b = torch.zeros(3), torch.zeros(3)
        assert torch.equal(fast(a, a[1:]), step(b, b[1:]))
        assert torch.equal(a, b)
    assert fast.stats().hits == 2


def test_explain_leaves_the_unread_argument_out():
    step = traced(lambda x, k: x * 2)
    step(X, 1)
    assert step.explain(X, 2).hit
    assert str(step.explain(torch.ones(4), 2)).count("k") == 0


# ---------------------------------------------------------------- recordings that are never hit
def scale(x, k):
    return x * k


def test_recording_rests_when_nothing_is_hit():
    step = traced(scale, dynamic=False)
    for k in range(200):
        assert torch.equal(step(X, k * 0.5), X * (k * 0.5))
    stats = step.stats()
    assert stats.hits == 0
    assert 16 <= stats.recordings <= 21
    assert stats.eager == {RESTS: 200 - stats.recordings}
    assert lazytrace.reason_code(RESTS) == "records-too-often"


def long(x):
    for _ in range(2100):
        x = x + 1
    return x


def test_a_few_long_recordings_are_as_telling_as_many_short_ones():
    step = traced(long, dynamic=False)
    for size in range(1, 30):
        step(torch.ones(size))
    assert step.stats().recordings == 7
    assert step.stats().eager == {RESTS.replace("16", "6"): 16 + 6}


def test_a_long_recording_that_is_hit_pays():
    step = traced(long, dynamic=False)
    for size in range(1, 12):
        step(torch.ones(size))
        step(torch.ones(size))
    assert (step.stats().recordings, step.stats().hits) == (11, 11)


def test_a_hit_ends_the_rest():
    step = traced(scale, dynamic=False)
    for k in range(20):
        step(X, k * 0.5)
    assert step.stats().recordings == 16
    step(X, 7.5)
    assert step.stats().hits == 1
    step(X, 100.5)
    step(X, 100.5)
    assert (step.stats().recordings, step.stats().hits) == (17, 2)


def test_traces_that_are_there_are_hit_during_the_rest():
    step = traced(scale, dynamic=False)
    step(X, -1.0)
    for k in range(40):
        step(X, k * 0.5)
        assert torch.equal(step(X, -1.0), -X)
    stats = step.stats()
    assert stats.hits == 40
    assert stats.recordings < 40


def test_the_second_time_round_is_hit():
    step = traced(scale, dynamic=False)
    for _ in range(12):
        for k in range(40):
            assert torch.equal(step(X, k * 0.5), X * (k * 0.5))
    stats = step.stats()
    assert stats.recordings == 40
    assert stats.hits > 300


def test_state_that_is_new_at_each_call_is_a_reason_to_rest():
    state = {"k": 0.0}

    @traced
    def step(x):
        return x * state["k"]

    for k in range(100):
        state["k"] = k * 0.5
        assert torch.equal(step(X), X * (k * 0.5))
    assert step.stats().recordings <= 20


def grows():
    """A step that looks at all that it has appended to two lists."""
    kept, others = [], []

    @traced
    def step(x):
        kept.append(x.mean())
        others.append(x.sum())
        return torch.stack([v.clone() for v in kept]).mean() + torch.stack(others).mean() * 0

    return step, (kept, others)


def test_a_list_that_grows_at_each_call_is_a_reason_to_rest_soon():
    step, (kept, _) = grows()
    for _ in range(20):
        assert torch.equal(step(X), torch.stack(kept).mean())
    assert step.stats().recordings == 9
    assert "records too often: none of its last 8 recordings was hit" in step.stats().eager


def test_a_list_that_is_emptied_again_is_hit_and_recorded_as_far_as_it_grows():
    step, (kept, others) = grows()
    for _ in range(5):
        kept.clear()
        others.clear()
        for _ in range(12):
            assert torch.equal(step(X), torch.stack(kept).mean())
    assert step.stats().recordings == 12
    assert step.stats().hits >= 20


def test_recordings_that_are_hit_now_and_then_do_not_pay_for_ever():
    """As where each of 32 rows may be missing: most calls are of another signature, and some come again."""
    step = traced(scale, dynamic=False)
    draw = random.Random(0)
    for _ in range(1000):
        k = draw.randrange(100) * 0.5
        assert torch.equal(step(X, k), X * k)
    stats = step.stats()
    assert stats.recordings <= 60
    seldom = "records too often: its last 16 recordings were hit fewer than 64 times"
    assert seldom in stats.eager
    assert lazytrace.reason_code(seldom) == "seldom-hit"
    # Calls that a trace answers go on being hits, and are a third of all at least.
    assert stats.hits > 300
    assert stats.hits + stats.recordings + sum(stats.eager.values()) == 1000


def test_recordings_that_are_hit_often_enough_go_on():
    step = traced(scale, dynamic=False)
    for k in range(60):
        for _ in range(5):
            assert torch.equal(step(X, k * 0.5), X * (k * 0.5))
    assert (step.stats().recordings, step.stats().hits) == (60, 240)


def test_hits_of_recordings_that_made_room_count():
    step = traced(scale, dynamic=False, cache_limit=2, on_limit="evict")
    for k in range(60):
        for _ in range(5):
            assert torch.equal(step(X, k * 0.5), X * (k * 0.5))
    assert (step.stats().recordings, step.stats().hits) == (60, 240)


def test_a_first_pass_may_be_hit_once_each():
    step = traced(scale, dynamic=False)
    for k in range(32):
        for _ in range(2):
            step(X, k * 0.5)
    assert (step.stats().recordings, step.stats().hits) == (32, 32)


def test_explain_in_the_midst_of_a_rest_leaves_its_length_as_it_is():
    step = traced(scale, dynamic=False)
    for k in range(20):
        step(X, k * 0.5)
        step.explain(X, 1000.5)
    for k in range(20, 40):
        step(X, k * 0.5)
    assert step.stats().recordings == 17
    assert step.stats().eager == {RESTS: 23}


def test_each_instance_rests_by_itself():
    class Layer:
        @traced
        def step(self, x, k):
            return x * k

    layers = [Layer() for _ in range(40)]
    for _ in range(2):
        for layer in layers:
            layer.step(X, 2.0)
    assert (Layer.step.stats().recordings, Layer.step.stats().hits) == (40, 40)


def test_clear_starts_over():
    step = traced(scale, dynamic=False)
    for k in range(20):
        step(X, k * 0.5)
    step.cache_clear()
    for k in range(16):
        step(X, k * 0.5)
    assert step.stats().recordings == 32


def test_explain_says_that_recording_rests_and_changes_nothing():
    step = traced(scale, dynamic=False)
    for k in range(16):
        step(X, k * 0.5)
    for _ in range(30):
        assert step.explain(X, 50.0).outcome == "eager"
    assert RESTS in str(step.explain(X, 50.0))


def scale_up_to_three(x, limit):
    if limit > 3:
        raise ValueError(limit)
    return x * limit


def test_recording_rests_when_each_call_raises():
    checked = traced(scale_up_to_three)
    for _ in range(40):
        with pytest.raises(ValueError, match="9"):
            checked(X, 9)
    assert dict(checked.stats().eager)["raised ValueError"] < 20
    assert dict(checked.stats().eager)[RESTS] > 20
    checked.cache_clear()
    checked(X, 2)
    checked(X, 2)
    assert checked.stats().hits == 1


def test_calls_that_raise_now_and_then_leave_the_others_recorded():
    checked = traced(scale_up_to_three)
    for n in range(60):
        if n % 3:
            checked(X, n % 3)
            continue
        with pytest.raises(ValueError, match="9"):
            checked(X, 9)
    assert checked.stats().hits > 30


def test_an_exception_during_the_rest():
    def fails(x, k):
        if k > 10:
            raise ValueError(k)
        return x * k

    step = traced(fails)
    for k in range(60):
        if k > 20:
            with pytest.raises(ValueError, match=str(k * 0.5)):
                step(X, k * 0.5)
        else:
            step(X, k * 0.5)
    assert step.stats().calls == 60


# ---------------------------------------------------------------- refusals
def refused(x):
    id(object())
    return x * 2


def test_each_refused_call_is_counted():
    step = traced(refused)
    for _ in range(50):
        assert torch.equal(step(X), X * 2)
    (reason, count), *others = step.stats().eager.items()
    assert not others
    assert reason.startswith("calls id()")
    assert count == step.stats().calls == 50
    assert step.stats().seconds_eager > 0
    assert set(step.stats().eager_seconds) == {reason}


def test_arguments_that_cannot_be_keyed_are_counted():
    step = traced(lambda x: len(x))
    for _ in range(50):
        assert step(np.ones(4)[::-1]) == 4
    assert step.stats().eager == {"takes a numpy array": 50}


def test_a_listener_is_told_of_each_refused_call():
    step = traced(refused)
    for _ in range(20):
        step(X)
    seen = []
    stop = lazytrace.on_event(seen.append)
    try:
        for _ in range(5):
            step(X)
    finally:
        stop()
    assert len(seen) == 5
    for _ in range(20):
        step(X)
    assert len(seen) == 5
    assert step.stats().calls == 45


def test_refused_calls_that_raise():
    def fails(x, k):
        id(object())
        if k:
            raise KeyError("k")
        return x

    step = traced(fails)
    for _ in range(20):
        step(X, 0)
    for _ in range(20):
        with pytest.raises(KeyError, match="k"):
            step(X, 1)
    assert step.stats().calls == 40


def test_refused_keyword_calls():
    def keywords(x, /, k=2, *rest, flag, **more):
        id(object())
        return x, k, rest, flag, more

    step = traced(keywords)
    for _ in range(20):
        assert step(X, 3, 4, flag=5, other=6) == (X, 3, (4,), 5, {"other": 6})
        assert step(X, flag=5) == (X, 2, (), 5, {})


def test_a_refused_method_belongs_to_its_instance():
    class Layer:
        def __init__(self, k):
            self.k = k

        @traced
        def step(self, x):
            id(object())
            return x * self.k

    layers = [Layer(k) for k in range(3)]
    for _ in range(20):
        for layer in layers:
            assert torch.equal(layer.step(X), X * layer.k)
    assert Layer.step.stats().calls == 60


def test_a_refused_function_calls_itself():
    @traced
    def countdown(x, n):
        id(object())
        return x if n == 0 else countdown(x + 1, n - 1)

    for _ in range(20):
        assert countdown(X, 5).sum() == 18
    assert countdown.stats().calls == 120


def test_refused_calls_of_several_threads():
    step = traced(refused)

    def work():
        for _ in range(200):
            step(X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert step.stats().calls == 800


def test_refusals_are_forgotten_with_the_traces():
    state = {"odd": True}

    @traced
    def step(x):
        if state["odd"]:
            id(object())
        return x * 2

    for _ in range(20):
        step(X)
    state["odd"] = False
    step(X)
    assert step.stats().recordings == 0
    step.cache_clear()
    step(X)
    step(X)
    assert (step.stats().recordings, step.stats().hits) == (1, 1)


def test_a_refused_call_inside_disabled_is_counted_as_such():
    step = traced(refused)
    for _ in range(20):
        step(X)
    with lazytrace.disabled():
        step(X)
    assert step.stats().eager["lazytrace is disabled"] == 1


def test_a_refused_function_that_is_called_by_a_recording_is_part_of_it():
    inner = traced(refused)
    for _ in range(20):
        inner(X)
    outer = traced(lambda x: inner(x) + 1)
    outer(X)
    assert inner.stats().inlined == 1


def test_on_untraceable_raise_goes_on_raising():
    step = traced(refused, on_untraceable="raise")
    for _ in range(20):
        with pytest.raises(lazytrace.UntraceableError):
            step(X)


# ---------------------------------------------------------------- methods that call the module
class Lit(nn.Module):
    """A module with a training step of its own, as Lightning has them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, x):
        return self(x).sum()

    def validation_step(self, x):
        return self.layer(x).sum()


def test_the_report_names_a_method_that_calls_the_plain_module():
    model = traced(Lit())
    for _ in range(3):
        model.training_step(X)
        model.validation_step(X)
    stats = lazytrace.handle(model).stats()
    assert stats.untraced == ("Lit.training_step",)
    assert stats.calls == 0
    (found,) = lazytrace.suggestions([stats])
    assert (found.function, found.pattern) == ("Lit", "untraced call")
    assert found.text == (
        "Lit.training_step calls self(...), which runs the plain module: decorate the method with @traced, "
        "or call the traced module outside it."
    )
    again = type(stats).from_dict(stats.as_dict())
    assert again.untraced == stats.untraced


def test_a_traced_method_is_not_named():
    class Step(Lit):
        @traced
        def training_step(self, x):
            return self(x).sum()

    model = traced(Step())
    model.training_step(X)
    assert lazytrace.handle(model).stats().untraced == ()


# ---------------------------------------------------------------- refusals
def test_recording_rests_when_each_signature_is_refused():
    latest = collections.deque(maxlen=2)

    @traced(dynamic=False)
    def step(x, values):
        latest.append(values[0])  # a deque that is read is refused
        return x * sum(latest)

    for k in range(100):
        assert torch.equal(step(X, [k * 0.5]), X * sum(latest))
    stats = step.stats()
    assert stats.recordings == 0
    assert sum(stats.eager.values()) == 100
    # All for one reason: the rests after four are of 16, 32 and 64 calls, with an attempt before the second
    # and the third.
    assert len(step._self_handle()._cache.refusals._by_key) == 6


def test_recording_rests_when_signatures_are_refused_for_several_reasons():
    latest = collections.deque(maxlen=2)

    @traced(dynamic=False)
    def step(x, values, odd):
        latest.append(values[0])
        if odd:
            return x * sum(latest)
        return x * sum(latest)

    for k in range(100):
        step(X, [k * 0.5], k % 2 == 1)
    # The rests after 16 are of 16, 32 and 64 calls.
    assert len(step._self_handle()._cache.refusals._by_key) == 18


def test_what_was_refused_for_one_reason_is_recorded_after_the_rest():
    locks = [threading.Lock() for _ in range(3)]

    @traced(dynamic=False)
    def step(x):
        if locks:
            locks.append(threading.Lock())
        return x * 2

    for rows in range(1, 5):
        step(torch.ones(rows, 3))
    locks.clear()
    for _ in range(40):
        step(X)
    assert step.stats().recordings == 1
    assert step.stats().hits >= 20


def test_signatures_that_are_refused_leave_those_that_are_recorded():
    step = traced(lambda x, lock: x * 2 if lock is None else (x, threading.Lock())[0], dynamic=False)
    step(X, None)
    for rows in range(1, 7):
        step(torch.ones(rows, 3), 1)
    for rows in range(11, 17):
        step(torch.ones(rows, 3), None)
    assert step.stats().recordings == 7


def test_calls_whose_replays_end_in_side_exits_are_not_replayed_for_a_while():
    """Each came to a size of its own: it was replayed, and the function then ran once more to be recorded."""
    step = traced(lambda x: x[x > 0] * 2, dynamic=False, exit_limit=1000, branch_limit=1000, cache_limit=1000)

    def of(rows, positive):
        return torch.cat([torch.ones(positive), -torch.ones(rows - positive)])

    for call in range(120):
        x = of(200 + call % 3, call)
        assert torch.equal(step(x), torch.ones(call) * 2)
    assert step.stats().recordings < 30
    eager = step.stats().eager
    assert list(eager) == ["records too often: none of its last 16 recordings was hit"]
    # Traces are asked again now and then, and a call that has a trace by then is a hit from there on.
    steady = of(200, 7)
    for _ in range(200):
        step(steady)
    assert step.stats().hits >= 40
    hits = step.stats().hits
    step(steady)
    assert step.stats().hits == hits + 1


def test_an_observer_of_each_eager_call_sees_those_that_are_not_replayed():
    step = traced(lambda x: x[x > 0] * 2, dynamic=False, exit_limit=1000, branch_limit=1000, cache_limit=1000)
    kinds = []
    stop = lazytrace.on_event(lambda event: kinds.append(event.kind))
    try:
        for call in range(60):
            step(torch.cat([torch.ones(call), -torch.ones(200 + call % 3 - call)]))
    finally:
        stop()
    assert step.stats().recordings < 30
    assert kinds.count("eager") == sum(step.stats().eager.values()) > 30


def test_explain_says_that_a_call_is_not_replayed():
    step = traced(lambda x: x[x > 0] * 2, dynamic=False, exit_limit=1000, branch_limit=1000, cache_limit=1000)
    for call in range(30):
        step(torch.cat([torch.ones(call), -torch.ones(200 + call % 3 - call)]))
    for _ in range(3):
        explained = step.explain(-torch.ones(200))
        assert explained.outcome == "eager"
        assert RESTS in str(explained)
    assert step.stats().recordings < 30
    for _ in range(100):
        step(torch.ones(200))
    assert step.explain(torch.ones(200)).outcome == "hit"


def test_a_trace_that_answers_behind_others_twice_in_a_row_is_asked_first():
    store = TraceStore(8)
    made = []
    for kind in "abc":
        step = traced(lambda x, kind=kind: x * len(kind))
        step(X)
        (trace,) = step._self_handle()._cache.traces.all()
        made.append(dataclasses.replace(trace, key=b"key", number=len(made)))
        store.add(made[-1])
    third, second, first = store.find(b"key")
    for trace in (first, second, first, second):
        store.answered_late(trace)
    assert store.find(b"key") == (third, second, first)
    store.answered_late(second)
    assert store.find(b"key") == (second, third, first)


def test_a_frozen_function_raises_while_recording_rests():
    """The core counts the calls of a rest, and lets them run."""
    step = traced(lambda x: x * 2, dynamic=False)
    for rows in range(1, 60):
        step(torch.ones(rows))
    step.freeze()
    for rows in range(60, 70):
        with pytest.raises(lazytrace.RetraceError):
            step(torch.ones(rows))
    step.thaw()
    eager = sum(step.stats().eager.values())
    step(torch.ones(70))
    assert sum(step.stats().eager.values()) == eager + 1


def test_a_frozen_function_is_replayed_where_calls_were_not():
    step = traced(lambda x: x[x > 0] * 2, dynamic=False, exit_limit=1000, branch_limit=1000, cache_limit=1000)
    for call in range(60):
        step(torch.cat([torch.ones(call), -torch.ones(200 + call % 3 - call)]))
    hits, eager = step.stats().hits, sum(step.stats().eager.values())
    assert eager > 30
    step.freeze()
    step(torch.cat([torch.ones(1), -torch.ones(200)]))
    assert step.stats().hits == hits + 1
    with pytest.raises(lazytrace.RetraceError):
        step(torch.cat([torch.ones(99), -torch.ones(101)]))
    assert sum(step.stats().eager.values()) == eager


def test_signatures_that_come_round_are_asked_all_the_same():
    """None of them began a replay: asking costs little, and those of the first are hit in the second."""
    step = traced(lambda x: x * 2, dynamic=False)
    for _ in range(4):
        for rows in range(1, 25):
            step(torch.ones(rows, 3))
    assert step.stats().recordings == 24


def test_a_signature_that_is_refused_again_and_again_is_one():
    latest = collections.deque([1.0], maxlen=2)
    step = traced(lambda x, k: x * k * latest[0], dynamic=False)
    for _ in range(100):
        step(X, 1)
    assert not step._self_handle()._cache.retreat.resting()


def test_a_way_that_is_refused_at_each_call_ends_the_recording(monkeypatch):
    """As a pool of images does: one of them is replaced, where a number that is drawn says so."""
    refused = []
    reject = Attempt._reject
    monkeypatch.setattr(Attempt, "_reject", lambda *args: (refused.append(args[2]), reject(*args)))
    pool = []

    def query(rows):
        given = []
        for row in rows:
            if len(pool) < 6:
                pool.append(row)
            elif random.random() > 0.5:
                place = random.randint(0, 5)
                row, pool[place] = pool[place].clone(), row
            given.append(row)
        return torch.stack(given) * 2

    random.seed(0)
    fast = traced(query)
    for n in range(80):
        fast(torch.full((2, 3), float(n)))
    assert len(refused) <= 12
    assert "of a list" in " ".join(fast.stats().eager)


class Spelled:
    """A key whose hash is Python code."""

    def __init__(self, text):
        self.text = text

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return isinstance(other, Spelled) and other.text == self.text


@pytest.mark.parametrize(("key", "tries"), [(Spelled, 4), (str, 6)])
def test_a_cache_asked_with_keys_of_python_code_is_a_reason_to_rest(key, tries, monkeypatch):
    """No call makes the entry that the next one finds; with other keys it does."""
    refused = []
    reject = Attempt._reject
    monkeypatch.setattr(Attempt, "_reject", lambda *args: (refused.append(args[2]), reject(*args)))
    doubled = functools.lru_cache(None)(lambda key, n: [key, 2 * n])

    @traced(dynamic=False)
    def step(x):
        return x * doubled(key("a"), x.shape[0])[1]

    for n in (2, 3, 4, 5, 6, 7):
        doubled.cache_clear()  # so that each call has an entry to make
        assert step(torch.ones(n)).sum() == 2 * n * n
    assert len(refused) == tries
