"""The cache of one traced function: which trace goes, the limit, threads, recursion, refusals."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

import lazytrace
from lazytrace import CacheLimitError, UntraceableError, traced

X = torch.tensor([-1.0, 0.5, 2.0])


def sized(n: int) -> torch.Tensor:
    return torch.arange(float(n))


def call_sizes(fn, *sizes: int) -> None:
    for n in sizes:
        assert torch.equal(fn(sized(n)), sized(n) * 2)


def recorded(fn, n: int) -> bool:
    try:
        fn.program(sized(n))
    except LookupError:
        return False
    return True


def counts(fn) -> tuple[int, int, int]:
    """(hits, recordings, eager calls)."""
    s = fn.stats()
    return s.hits, s.recordings, s.eager_calls


# ---------------------------------------------------------------- at the limit
def test_the_least_recently_used_goes():
    fn = traced(lambda x: x * 2, cache_limit=3, dynamic=False)
    call_sizes(fn, 1, 2, 3, 1, 4)
    assert [recorded(fn, n) for n in (1, 2, 3, 4)] == [True, False, True, True]
    call_sizes(fn, 3, 5)
    assert [recorded(fn, n) for n in (1, 2, 3, 4, 5)] == [False, False, True, True, True]
    assert counts(fn) == (2, 5, 0)
    assert fn.stats().evictions == 2
    assert fn.cache_info() == (2, 5, 3, 3)


def test_evicted_and_needed_again():
    fn = traced(lambda x: x * 2, cache_limit=1, dynamic=False)
    call_sizes(fn, 1, 2, 1)
    stats = fn.stats()
    assert (stats.recordings, stats.evictions, stats.cache_size) == (3, 2, 1)


def test_limit_of_many_is_not_an_eviction():
    fn = traced(lambda x: x * 2, cache_limit=4, dynamic=False)
    call_sizes(fn, 1, 2, 3, 4, 1, 2, 3, 4)
    assert counts(fn) == (4, 4, 0)
    assert fn.stats().evictions == 0
    assert fn.stats().limit_enough is None


def test_sizes_evict_nothing_unless_each_is_asked_for():
    sizes = (1, 2, 3, 4, 5, 1, 2, 3, 4, 5)
    by_default, each = (
        traced(lambda x: x * 2, cache_limit=2),
        traced(lambda x: x * 2, cache_limit=2, dynamic=False),
    )
    call_sizes(by_default, *sizes)
    call_sizes(each, *sizes)
    # The first size, then one program for all the others.
    assert counts(by_default) == (8, 2, 0)
    assert (by_default.stats().evictions, by_default.stats().limit_enough) == (0, None)
    assert counts(each) == (0, 10, 0)
    assert (each.stats().evictions, each.stats().limit_enough) == (8, 5)


def test_limit_of_eager():
    fn = traced(lambda x: x * 2, cache_limit=2, on_limit="eager", dynamic=False)
    call_sizes(fn, 1, 2, 3, 3, 1, 2, 4)
    assert counts(fn) == (2, 2, 3)
    assert fn.stats().eager == {"cache_limit=2 was reached": 3}
    assert [recorded(fn, n) for n in (1, 2, 3, 4)] == [True, True, False, False]
    assert fn.stats().limit_enough == 4


def test_limit_of_raise():
    @traced(cache_limit=2, on_limit="raise", dynamic=False)
    def step(x):
        return x * 2

    call_sizes(step, 1, 2, 1)
    for _ in range(2):
        with pytest.raises(CacheLimitError) as caught:
            step(sized(3))
        assert str(caught.value) == (
            "step: cache_limit=2 was reached and this call needs trace 3, with on_limit='raise'. "
            "Pass cache_limit=3 or more, or on_limit='evict' or 'eager' to carry on at the limit; "
            "lazytrace.report() says what keeps changing."
        )
    with pytest.raises(CacheLimitError, match="needs trace 4"):
        step(sized(4))
    call_sizes(step, 1, 2)
    assert step.stats().recordings == 2


@pytest.mark.parametrize("on_limit", ["eager", "raise"])
def test_limit_holds_where_state_changes_too(on_limit):
    scale = 1.0

    def step(x):
        return x * scale

    fn = traced(step, cache_limit=2, on_limit=on_limit, dynamic=False)
    raised = 0
    for scale in (1.0, 2.0, 3.0, 4.0):
        try:
            assert torch.equal(fn(X), X * scale)
        except CacheLimitError:
            raised += 1
    assert fn.stats().recordings == 2
    assert fn.stats().evictions == 0
    assert (raised, fn.stats().eager_calls) == ((2, 0) if on_limit == "raise" else (0, 2))


def test_limit_that_is_enough_for_changing_state():
    scale = 1.0

    def step(x):
        return x * scale

    def calls(limit):
        nonlocal scale
        fn = traced(step, cache_limit=limit, dynamic=False)
        for _ in range(3):
            for scale in (1.0, 2.0, 3.0, 4.0, 5.0):
                assert torch.equal(fn(X), X * scale)
        return fn.stats()

    short = calls(2)
    assert (short.hits, short.limit_enough, short.limit_exact) == (0, 5, True)
    assert calls(4).limit_enough == 5
    assert calls(5).recordings == 5
    assert calls(5).limit_enough is None


@pytest.mark.parametrize("on_limit", ["evict", "eager"])
def test_no_limit_is_known_to_be_enough_for_other_objects(on_limit):
    holder, name = SimpleNamespace(), f"made_anew_{on_limit}"
    fn = traced(lambda x: x * holder.other.scale, cache_limit=2, on_limit=on_limit, name=name)
    for _ in range(6):
        holder.other = type("Config", (), {"scale": 2.0})()
        assert torch.equal(fn(X), X * 2)
    stats = fn.stats()
    assert (stats.limit_enough, stats.limit_exact) == (3, False)
    line = "cache_limit=3 or more would have been needed, and helps only if the same objects come again"
    assert any(name in text and line in text for text in lazytrace.report().splitlines())


def test_room_again_after_clearing():
    fn = traced(lambda x: x * 2, cache_limit=1, on_limit="raise", dynamic=False)
    call_sizes(fn, 1)
    fn.cache_clear()
    call_sizes(fn, 2)
    with pytest.raises(CacheLimitError):
        fn(sized(1))


def test_limit_that_is_enough_is_enough():
    sizes = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]
    short = traced(lambda x: x * 2, cache_limit=2, dynamic=False, name="short_of_room")
    call_sizes(short, *sizes)
    enough = short.stats().limit_enough
    assert enough == 5
    line = "short_of_room: cache_limit=2 was reached (8 evictions); cache_limit=5 would have been enough"
    assert line in lazytrace.report()
    longer = traced(lambda x: x * 2, cache_limit=enough, dynamic=False)
    call_sizes(longer, *sizes)
    assert counts(longer) == (5, 5, 0)


def test_limits_are_of_each_instance():
    class Net:
        @traced(cache_limit=2, dynamic=False)
        def run(self, x):
            return x * 2

    nets = [Net() for _ in range(3)]
    for net in nets:
        call_sizes(net.run, 1, 2)
    for net in nets:
        call_sizes(net.run, 1, 2)
    assert (Net.run.stats().evictions, Net.run.stats().hits, Net.run.stats().cache_size) == (0, 6, 6)


def test_evicted_traces_are_freed():
    weight = torch.ones(3)
    fn = traced(lambda x: x * 2, cache_limit=1, dynamic=False)
    first = fn(weight)
    assert torch.equal(first, weight * 2)
    gone = weakref.ref(fn.program(weight))
    call_sizes(fn, 5)
    assert gone() is None


# ---------------------------------------------------------------- what cannot be replayed
def test_untraceable_raises_where_asked():
    @traced(on_untraceable="raise")
    def step(x):
        return x * len(x.repeat(99, 1).tolist()[0])

    line = step.__code__.co_firstlineno + 2
    for _ in range(3):
        with pytest.raises(UntraceableError) as caught:
            step(X)
        assert str(caught.value) == (
            "step: this call cannot be replayed, with on_untraceable='raise': "
            f"calls .tolist() of a tensor (test_cache.py:{line}). "
            "Take that out of the function, or pass on_untraceable='eager' to run such calls eagerly."
        )


def test_refusals_are_tried_again_at_calls_2_and_8():
    tried = []

    @traced
    def step(x):
        tried.append(lazytrace.is_tracing())
        return x * len(x.repeat(99, 1).tolist()[0])

    for _ in range(20):
        assert torch.equal(step(X), X * 3)
    assert [i + 1 for i, recording in enumerate(tried) if recording] == [1, 2, 8]
    assert counts(step) == (0, 0, 20)


def test_refusal_of_one_signature_leaves_others_alone():
    @traced
    def step(x):
        return x * len(x.repeat(99, 1).tolist()[0]) if x.ndim == 1 else x * 2

    square = torch.ones(2, 2)
    for _ in range(3):
        assert torch.equal(step(X), X * 3)
        assert torch.equal(step(square), square * 2)
    assert counts(step) == (2, 1, 3)


def test_clearing_forgets_refusals():
    tried = []

    @traced
    def step(x):
        tried.append(lazytrace.is_tracing())
        return x * len(x.repeat(99, 1).tolist()[0])

    for _ in range(3):
        step(X)
    step.cache_clear()
    step(X)
    assert tried == [True, True, False, True]


def test_lazily_made_state_is_recorded_at_the_second_call():
    made = {}

    @traced
    def step(x):
        if "w" not in made:
            made["w"] = torch.ones(3)
            x.repeat(99).tolist()
        return x * made["w"]

    for _ in range(5):
        assert torch.equal(step(X), X)
    assert counts(step) == (3, 1, 1)


def test_too_many_branches_run_eagerly():
    @traced(dynamic=False)
    def step(x):
        return x * int(x.sum())

    xs = [torch.tensor([float(i), 1.0]) for i in range(12)]
    for _ in range(3):
        for x in xs:
            assert torch.equal(step(x), x * int(x.sum()))
    stats = step.stats()
    reasons = [reason for reason in stats.eager if reason.startswith("too many branches: ")]
    assert len(reasons) == 1
    assert reasons[0].endswith("; a @script_if_tracing function keeps them in one program")
    assert f"(test_cache.py:{step.__code__.co_firstlineno + 2})" in reasons[0]
    assert stats.recordings == 8
    assert stats.cache_size == 0


@pytest.mark.parametrize(("options", "kept"), [({"exit_limit": 3}, 3), ({"branch_limit": 5}, 5)])
def test_limits_of_branches_are_options(options, kept):
    @traced(**options, dynamic=False)
    def step(x):
        return x * int(x.sum())

    for i in range(7):
        x = torch.tensor([float(i), 1.0])
        assert torch.equal(step(x), x * int(x.sum()))
    stats = step.stats()
    assert stats.recordings == kept
    assert stats.eager_calls == 7 - kept
    assert all(reason.startswith("too many branches: result of item ") for reason in stats.eager)


def test_branch_limit_counts_the_ways_of_a_loop():
    @traced(branch_limit=4)
    def halve(x):
        while x.sum() > 1:
            x = x / 2
        return x

    for power in (1, 2, 3, 4, 3, 2, 1, 5, 6):
        x = torch.tensor([2.0**power])
        assert torch.equal(halve(x), halve.original(x))
    assert (halve.stats().recordings, halve.stats().hits, halve.stats().eager_calls) == (4, 3, 2)


def signs(number: int) -> torch.Tensor:
    """Five values, whose signs are the bits of a number."""
    return torch.tensor([1.0 if number >> bit & 1 else -1.0 for bit in range(5)])


@pytest.mark.parametrize(("numbers", "kept"), [(range(20), 16), ([*range(10), 0, *range(10, 20)], 20)])
def test_ways_of_which_none_is_taken_twice_are_given_up(numbers, kept):
    @traced
    def step(x):
        y = x
        for value in x:
            y = y * 2 if value > 0 else y + 1
        return y

    for number in numbers:
        assert torch.equal(step(signs(number)), step.original(signs(number)))
    stats = step.stats()
    assert stats.recordings == kept
    assert stats.eager_calls == 20 - kept
    assert all(reason.startswith("too many branches: ") for reason in stats.eager)


def test_few_branches_stay():
    @traced
    def step(x):
        return x * 2 if x.sum() > 0 else x * 3

    for _ in range(5):
        for x in (X, -X):
            assert torch.equal(step(x), x * 2 if x.sum() > 0 else x * 3)
    assert counts(step) == (8, 2, 0)


# ---------------------------------------------------------------- threads
def at_once(threads: int, fn) -> list:
    """What `fn(i)` gives in threads that start together."""
    barrier = threading.Barrier(threads)

    def run(i):
        barrier.wait()
        return fn(i)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


def test_eight_first_calls_at_once_record_once():
    w = torch.randn(64, 64)

    @traced
    def heavy(x):
        for _ in range(20):
            x = torch.tanh(x @ w)
        return x

    expected = heavy.original(w)
    for out in at_once(8, lambda i: heavy(w)):
        assert torch.equal(out, expected)
    stats = heavy.stats()
    assert stats.recordings == 1
    assert stats.hits + stats.eager_calls == 7
    assert set(stats.eager) <= {"another thread is recording this signature"}
    assert stats.cache_size == 1


def test_calls_during_a_recording_run_eagerly():
    inside, go_on = threading.Event(), threading.Event()

    @lazytrace.opaque
    def wait(x):
        if inside.is_set():
            go_on.set()
        inside.set()
        assert go_on.wait(30)

    @traced(check=False)
    def step(x):
        wait(x)
        return x * 2

    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(step, X)
        assert inside.wait(30)
        assert torch.equal(step(X), X * 2)
        assert torch.equal(recording.result(), X * 2)
    assert step.stats().calls == 2
    assert step.stats().recordings == 1
    assert step.stats().eager == {"another thread is recording this signature": 1}


def test_counts_of_threads_add_up():
    fn = traced(lambda x: x * 2, cache_limit=3, dynamic=False)
    at_once(8, lambda i: [call_sizes(fn, 1 + (i + k) % 5) for k in range(100)])
    stats = fn.stats()
    assert stats.calls == 800
    assert stats.hits + stats.recordings + stats.eager_calls == 800
    assert stats.evictions == stats.recordings - stats.cache_size
    assert stats.evictions > 0
    assert stats.cache_size <= 3


def test_threads_that_clear_and_call():
    fn = traced(lambda x: x * 2, dynamic=False)

    def work(i):
        for k in range(50):
            if i == 0:
                fn.cache_clear()
            call_sizes(fn, 1 + k % 3)

    at_once(4, work)
    assert fn.stats().calls == 200


# ---------------------------------------------------------------- calls inside calls
def test_recursion():
    @traced
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    for _ in range(3):
        assert torch.equal(power(X, 4), X**4)
    assert counts(power) == (2, 1, 0)
    assert power.stats().inlined == 3
    assert power.program(X, 4).operators == 3


def test_nested_traced_functions_are_inlined():
    @traced
    def inner(x):
        return x * 2

    @traced
    def outer(x):
        return inner(x) + inner(x + 1)

    for _ in range(3):
        assert torch.equal(outer(X), X * 2 + (X + 1) * 2)
    assert counts(outer) == (2, 1, 0)
    assert (inner.stats().inlined, inner.stats().calls, inner.cache_info()) == (2, 2, (0, 0, 64, 0))
    assert outer.program(X).operators == 4
    assert torch.equal(inner(X), X * 2)
    assert inner.stats().recordings == 1


def test_inner_recorded_first_and_inlined_then():
    scale = 2.0

    @traced
    def inner(x):
        return x * scale

    @traced
    def outer(x):
        return inner(x) + 1

    inner(X), inner(X)
    for _ in range(2):
        assert torch.equal(outer(X), X * 2 + 1)
    scale = 3.0
    assert torch.equal(outer(X), X * 3 + 1)
    assert torch.equal(inner(X), X * 3)
    assert counts(outer) == (1, 2, 0)


def test_inner_that_cannot_be_replayed_makes_the_outer_eager():
    @traced
    def inner(x):
        return x * len(x.repeat(99, 1).tolist()[0])

    @traced
    def outer(x):
        return inner(x) + 1

    for _ in range(4):
        assert torch.equal(outer(X), X * 3 + 1)
    assert counts(outer) == (0, 0, 4)
    reason = f"calls .tolist() of a tensor (test_cache.py:{inner.__code__.co_firstlineno + 2})"
    assert set(outer.stats().eager) == {reason}


def test_failed_first_calls_are_recorded_later():
    fail = True

    @traced
    def step(x):
        y = x * 2
        if fail:
            raise ZeroDivisionError
        return y

    with pytest.raises(ZeroDivisionError):
        step(X)
    assert not lazytrace.is_tracing()
    fail = False
    for _ in range(3):
        assert torch.equal(step(X), X * 2)
    assert counts(step) == (2, 1, 1)
    assert step.stats().eager == {"raised ZeroDivisionError": 1}


# ---------------------------------------------------------------- a cache that changes while a trace runs
@pytest.mark.parametrize("how", ["new branch", "known branch", "exception"])
@pytest.mark.parametrize("change", ["clear", "evict"])
def test_what_a_replay_has_done_counts_though_its_trace_is_gone(how, change):
    """Its writes are made once, whatever happens to the trace before the call ends."""
    total, answers = torch.zeros(1), []
    meanwhile = []

    @lazytrace.opaque
    def look(x):
        for act in meanwhile:
            act()
        return answers[-1]

    @traced(cache_limit=2, dynamic=False)
    def step(x, index):
        total.add_(1)
        return (x * 2 if look(x) else x * 3).index_select(0, index)

    calls = 0

    def call(answer: bool, index: int = 0) -> torch.Tensor:
        nonlocal calls
        calls += 1
        answers.append(answer)
        return step(X, torch.tensor([index]))

    def dropped() -> None:
        if change == "clear":
            step.cache_clear()
        else:
            with lazytrace.CompileProfiler():
                answers.append(True)
                for n in (5, 6):
                    meanwhile.clear()
                    step(sized(n), torch.tensor([0]))
            total.sub_(2)
            answers.pop()

    known = [True, True, False, True, False, True] if how == "known branch" else [True, True, True]
    for answer in known:
        call(answer)
    assert total.item() == calls
    meanwhile.append(dropped)
    if how == "exception":
        with pytest.raises(IndexError):
            call(True, 99)
    else:
        assert call(False).item() == X[0].item() * 3
    assert total.item() == calls
    meanwhile.clear()
    for answer in (True, False, True):
        assert call(answer).item() == X[0].item() * (2 if answer else 3)
    assert total.item() == calls


def test_signatures_that_are_new_at_each_call_are_not_remembered_without_end(monkeypatch):
    monkeypatch.setattr(lazytrace.engine.store, "_WANTED_KEPT", 10)
    fn = traced(lambda x: x * 2, cache_limit=1, dynamic=False)
    call_sizes(fn, *range(1, 15))
    assert fn.stats().limit_enough == 10
    assert fn.cache_info().currsize == 1


@pytest.mark.parametrize("on_limit", ["eager", "raise"])
def test_recordings_at_once_keep_the_limit(on_limit):
    gate = threading.Barrier(4)

    @lazytrace.opaque
    def wait(x):
        if not gate.broken:
            try:
                gate.wait(5)
            except threading.BrokenBarrierError:
                return

    @traced(cache_limit=2, on_limit=on_limit, check=False, dynamic=False)
    def step(x):
        wait(x)
        return x * 2

    def run(i: int) -> bool:
        try:
            return torch.equal(step(sized(i + 1)), sized(i + 1) * 2)
        except CacheLimitError:
            gate.abort()
            return on_limit == "raise"

    assert all(at_once(4, run))
    assert step.stats().evictions == 0
    assert step.cache_info().currsize <= 2
