"""Threads: per-thread modes, one recording per signature, work handed to others, state in between."""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import types
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import lazytrace
from lazytrace.engine import attempt
from lazytrace.engine.store import Retreat, TraceStore
from lazytrace.stats import Reason
from tests.soundness.runner import Cases, X, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms_of

cases = Cases()


@cases(eager="makes-unseen")
def pool_inside(trace):
    def fn(x):
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda k: x * k, [1, 2, 3]))

    return trace(fn), [call(X()), call(X()), call(X() + 1)]


@cases(eager="advances-iterator")
def thread_that_writes(trace):
    def fn(x):
        y = x * 1
        thread = threading.Thread(target=lambda: y.add_(1))
        thread.start()
        thread.join()
        return y * 2

    return trace(fn), [call(X()), call(X()), call(X() + 1)]


@cases(eager="makes-unseen")
def pool_of_state_that_writes(trace):
    pool = ThreadPoolExecutor(1)

    def fn(x):
        y = x * 1
        pool.submit(y.add_, 1).result()
        return y * 2

    return trace(fn), [call(X()), call(X()), call(X() + 1)]


@cases(hits=1)
def called_from_threads(trace):
    fn = trace(lambda x: x * 2 + 1)

    def use(x):
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(fn, [x + i for i in range(6)]))

    return use, [call(X())] * 3


@cases(hits=1)
def modes_are_per_thread(trace):
    fn = trace(lambda x: x * 2)

    def in_thread(x):
        with torch.no_grad():
            return fn(x).requires_grad

    def use(x):
        with ThreadPoolExecutor(1) as pool:
            inside = [pool.submit(in_thread, x).result() for _ in range(2)]
        return inside, fn(x).requires_grad

    return use, [call(X(grad=True))] * 3


@cases.parametrize
def test_threads(make, expected):
    check(make, **expected)


def test_one_recording_under_a_stampede():
    runs, gate = [], threading.Barrier(6)

    def body(x):
        return x * 2

    fn = lazytrace.traced(body)

    def go():
        gate.wait()
        for _ in range(20):
            runs.append(torch.equal(fn(X()), X() * 2))

    threads = [threading.Thread(target=go) for _ in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    stats = fn.stats()
    assert all(runs)
    assert len(runs) == 120 == stats.calls
    assert stats.recordings == 1


def test_state_that_changes_in_another_thread_is_seen():
    state = {"k": 1.0}
    fn = lazytrace.traced(lambda x: x * state["k"])
    x = torch.ones(1)
    for k in (1.0, 2.0, 3.0):
        thread = threading.Thread(target=state.update, kwargs={"k": k})
        thread.start()
        thread.join()
        assert [fn(x).item(), fn(x).item()] == [k, k]


def test_recording_in_one_thread_does_not_record_another():
    entered, leave = threading.Event(), threading.Event()
    results = []

    def slow(x):
        y = x * 2
        entered.set()
        leave.wait(5)
        return y + 1

    fn = lazytrace.traced(slow)
    thread = threading.Thread(target=lambda: results.append(fn(X())))
    thread.start()
    entered.wait(5)
    assert not lazytrace.is_tracing()
    other = X() * 5 + 1
    leave.set()
    thread.join()
    assert torch.equal(results[0], X() * 2 + 1)
    assert torch.equal(fn(X()), X() * 2 + 1)
    assert torch.equal(other, X() * 5 + 1)


def test_an_older_trace_function_goes_on():
    lines = []

    def tracer(frame, event, arg):
        lines.append(event)
        return tracer

    fn = lazytrace.traced(lambda x: x * 2)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        first = fn(X())
        assert sys.gettrace() is tracer
        second = fn(X())
    finally:
        sys.settrace(before)
    assert torch.equal(first, second)
    assert "line" in lines


def test_a_profiler_goes_on():
    events = []
    fn = lazytrace.traced(lambda x: x * 2)
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: events.append(event))
    try:
        fn(X())
        fn(X())
        profiler = sys.getprofile()
    finally:
        sys.setprofile(before)
    assert profiler is not before
    assert events


def test_settrace_inside_the_function():
    def fn(x):
        sys.settrace(None)
        return x * 2

    traced = lazytrace.traced(fn)
    before = sys.gettrace()
    try:
        assert all(torch.equal(traced(X()), X() * 2) for _ in range(3))
    finally:
        sys.settrace(before)
    assert traced.stats().hits == 0


# ---------------------------------------------------------------- first calls at once
THREADS = 8


def at_once(*work, threads=THREADS):
    """What `work[i % len(work)](i)` gives in threads that begin together; raises the first exception."""
    gate, results, errors = threading.Barrier(threads), [None] * threads, []

    def go(i):
        try:
            gate.wait(30)
            results[i] = work[i % len(work)](i)
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=go, args=(i,)) for i in range(threads)]
    [thread.start() for thread in started]
    [thread.join() for thread in started]
    if errors:
        raise errors[0]
    return results


@contextlib.contextmanager
def turns(seconds):
    """How long a thread may go on before another takes its turn."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.fixture
def often():
    """Threads take turns much more often than by default."""
    with turns(1e-6):
        yield


class Scaling:
    def __init__(self):
        self.k = 3.0

    @lazytrace.traced
    def step(self, x):
        return x * self.k


def fresh_function():
    k = 3.0
    fn = lazytrace.traced(lambda x: x * k)
    return fn, fn.stats


def fresh_instance():
    one, before = Scaling(), Scaling.step.stats()

    def counted():
        now = Scaling.step.stats()
        return types.SimpleNamespace(
            recordings=now.recordings - before.recordings, calls=now.calls - before.calls
        )

    return one.step, counted


def fresh_module():
    net = nn.Linear(3, 3, bias=False)
    net.weight = nn.Parameter(torch.eye(3) * 3)
    fn = lazytrace.traced(net)
    return fn, fn.stats


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("fresh", [fresh_function, fresh_instance, fresh_module])
def test_first_calls_at_once_record_once(fresh):
    for _ in range(50):
        fn, counted = fresh()
        found = at_once(lambda i, fn=fn: [fn(X()), fn(X())])
        assert all(torch.equal(y, X() * 3) for pair in found for y in pair)
        assert (counted().recordings, counted().calls) == (1, 2 * THREADS)


@pytest.mark.usefixtures("often")
def test_first_calls_of_eight_shapes_at_once_record_eight_times():
    for _ in range(20):
        fn = lazytrace.traced(lambda x: x * 3, dynamic=False)
        # Each shape is called by two threads.
        found = at_once(
            lambda i, fn=fn: [fn(torch.ones(1 + i % 8)), fn(torch.ones(1 + (i + 1) % 8))], threads=16
        )
        assert all((y == 3).all() for pair in found for y in pair)
        assert [y.shape[0] for y, _ in found] == [1 + i % 8 for i in range(16)]
        assert (fn.stats().recordings, fn.stats().calls) == (8, 32), fn.stats().eager


@pytest.mark.usefixtures("often")
def test_first_calls_of_eight_shapes_at_once_end_in_a_program_for_all():
    for _ in range(20):
        fn = lazytrace.traced(lambda x: x * 3)
        found = at_once(
            lambda i, fn=fn: [fn(torch.ones(1 + i % 8)), fn(torch.ones(1 + (i + 1) % 8))], threads=16
        )
        assert all(torch.equal(y, torch.full_like(y, 3)) for pair in found for y in pair)
        assert [tuple(y.shape[0] for y in pair) for pair in found] == [
            (1 + i % 8, 1 + (i + 1) % 8) for i in range(16)
        ]
        before = fn.stats()
        assert before.calls == 32
        # No shape is recorded by two, and at least one was recorded for all.
        assert 2 <= before.recordings <= 8
        for size in range(2, 40):
            assert torch.equal(fn(torch.ones(size)), torch.full((size,), 3.0))
        after = fn.stats()
        assert (after.recordings, after.hits) == (before.recordings, before.hits + 38)


@pytest.mark.usefixtures("often")
def test_a_recording_that_raises_leaves_the_way_free():
    for _ in range(10):
        fail = [True]

        def body(x, fail=fail):
            y = x * 2
            if fail[0]:
                raise ZeroDivisionError
            return y

        fn = lazytrace.traced(body)

        def raising(i, fn=fn):
            with pytest.raises(ZeroDivisionError):
                fn(X())

        at_once(raising)
        fail[0] = False
        at_once(lambda i, fn=fn: fn(X()))
        assert torch.equal(fn(X()), X() * 2)
        assert fn.stats().recordings == 1
        assert fn.stats().calls == 2 * THREADS + 1


# ---------------------------------------------------------------- state that changes under way
factor = 1.0


def of_a_global():
    def put(k):
        global factor
        factor = k

    return put, lambda x: x * factor


def of_an_attribute():
    o = types.SimpleNamespace(k=1.0)
    return lambda k: setattr(o, "k", k), lambda x: x * o.k


def of_a_closure():
    cell = 1.0

    def put(k):
        nonlocal cell
        cell = k

    return put, lambda x: x * cell


def of_a_dict():
    table = {"k": 1.0}
    return lambda k: table.update(k=k), lambda x: x * table["k"]


def of_a_tensor():
    held = types.SimpleNamespace(w=torch.ones(3))
    return lambda k: setattr(held, "w", torch.full((3,), k)), lambda x: x * held.w


def of_a_module():
    net = nn.Linear(3, 3, bias=False)

    def put(k):
        net.weight = nn.Parameter(torch.eye(3) * k)

    put(1.0)
    return put, net


def of_a_default():
    def fn(x, k=1.0):
        return x * k

    return lambda k: setattr(fn, "__defaults__", (k,)), fn


def of_a_keyword_default():
    def fn(x, *, k=1.0):
        return x * k

    return lambda k: fn.__kwdefaults__.update(k=k), fn


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "state",
    [
        *(of_a_global, of_an_attribute, of_a_closure, of_a_dict, of_a_tensor, of_a_module),
        *(of_a_default, of_a_keyword_default),
    ],
)
def test_state_that_is_switched_while_others_call(state):
    put, body = state()
    fn = lazytrace.traced(body, name="switched")
    legal = [1.0, 2.0, 5.0]
    done, seen = threading.Event(), []

    def write(_):
        end, n = time.monotonic() + 10, 0
        while n < 300 or (len(seen) < 700 and time.monotonic() < end):
            put(legal[n % 3])
            n += 1
        done.set()

    def read(_):
        x, last = torch.ones(3), 0
        while not done.is_set() or last < 20:
            last += done.is_set()
            y = fn(x).tolist()
            seen.append(y)

    put(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        at_once(write, *[read] * (THREADS - 1))
        assert {tuple(y) for y in seen} <= {(k,) * 3 for k in legal}
        for n, k in enumerate((2.0, 1.0, 5.0, 2.0, 1.0)):
            if n == 2:
                fn.cache_clear()  # a recording that saw the state change is refused for long
            thread = threading.Thread(target=put, args=(k,))
            thread.start()
            thread.join()
            assert at_once(lambda i: fn(torch.ones(3)).tolist()) == [[k] * 3] * THREADS
    stats = fn.stats()
    assert stats.hits > 0
    assert stats.calls == len(seen) + 5 * THREADS


def meanwhile(monkeypatch, *acts):
    """Does these things, one at each recording, after its call was matched and before the function runs."""
    waiting, describe = list(acts), attempt.describe

    def described(*args):
        if waiting:
            waiting.pop(0)()
        return describe(*args)

    monkeypatch.setattr(attempt, "describe", described)


@pytest.mark.parametrize("place", ["positional only", "positional", "keyword only"])
def test_defaults_that_are_assigned_before_a_recording_runs(monkeypatch, place):
    """The recording has the default that its call was matched with; the next call has the new one."""
    if place == "positional only":

        def fn(x, k=2.0, /, *, other=0.0):
            return x * k + other
    elif place == "positional":

        def fn(x, k=2.0, *, other=0.0):
            return x * k + other
    else:

        def fn(x, *, k=2.0, other=0.0):
            return x * k + other

    def put(k):
        if place == "keyword only":
            fn.__kwdefaults__["k"] = k
        else:
            fn.__defaults__ = (k,)

    step, x = lazytrace.traced(fn), torch.ones(1)
    meanwhile(monkeypatch, lambda: put(3.0))
    assert step(x).item() in (2.0, 3.0)
    for k in (3.0, 2.0, 3.0, 2.0):
        put(k)
        assert step(x).item() == k
    assert step.stats().recordings == 2


@pytest.mark.parametrize("make", [lambda: [2.0], lambda: {0: 2.0}])
def test_arguments_that_change_before_a_recording_runs(monkeypatch, make):
    """A trace of 2.0 must not be stored for what is a 1.0 in its key."""
    step, x, held = lazytrace.traced(lambda x, held: x * held[0]), torch.ones(1), make()
    held[0] = 1.0
    meanwhile(monkeypatch, lambda: held.__setitem__(0, 2.0))
    assert step(x, held).item() == 2.0
    held[0] = 1.0
    assert step(x, held).item() == 1.0


@pytest.mark.usefixtures("often")
def test_arguments_that_another_thread_changes():
    """What a call took out of a list or dict stays alive, though the container lets it go meanwhile."""
    fn = lazytrace.traced(lambda items, table: items[0] * 2 + table["k"] + items[0])
    items, table, done = [torch.ones(2048)], {"k": torch.ones(2048)}, threading.Event()
    fn(items, table)  # a recording during which they change is given up

    def write(_):
        end, n = time.monotonic() + 10, 0
        while n < 400 or (fn.stats().hits < 400 and time.monotonic() < end):
            n += 1
            items[0] = torch.full((2048,), float(n % 3))
            table["k"] = torch.full((2048,), float(n % 3))
        done.set()

    def read(_):
        while not done.is_set():
            y = fn(items, table)
            # The list may be read twice by a recording or an eager call, and the dict in between.
            assert float(y.min()) == float(y.max())
            assert float(y[0]) in {2.0 * a + b + c for a in range(3) for b in range(3) for c in range(3)}

    at_once(write, *[read] * (THREADS - 1))
    assert fn.stats().hits > 0


# ---------------------------------------------------------------- the native path of a hit
def test_threads_that_end_leave_their_memory():
    """Each thread keeps what a hit works in; a thread may end at any time, also while it raises."""
    helper = lazytrace.opaque(lambda x, n: fn(x, n - 1, 0) if n else x.index_select(0, INDEX[0]))
    fn = lazytrace.traced(lambda x, n, i: helper(x, n) + n)

    def go(i):
        for n in (0, 1, 3, i % 4):
            assert torch.equal(fn(X(), n, 0), X()[:1] + n * (n + 1) / 2)
        if i % 2:
            raise SystemExit

    INDEX[0] = torch.tensor([0])
    before = threading.active_count()
    for _ in range(10):
        with contextlib.suppress(SystemExit):
            at_once(go)
    assert threading.active_count() == before
    INDEX[0] = torch.tensor([9])
    for _ in range(3):
        with pytest.raises(IndexError):
            fn(X(), 3, 0)
    INDEX[0] = torch.tensor([0])
    assert torch.equal(fn(X(), 3, 0), X()[:1] + 6)


INDEX = [torch.tensor([0])]

AT_THE_END = """
import threading, torch, lazytrace
fn = lazytrace.traced(lambda x: (x @ x).tanh())
x = torch.ones(64, 64)
def go():
    while True:
        fn(x)
for _ in range(4):
    threading.Thread(target=go, daemon=True).start()
while fn.stats().hits < 200:
    pass
print("done", flush=True)
"""


def test_daemon_threads_that_hit_while_the_process_ends():
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "done\n"
    # 6: what any torch operator without the GIL comes to in a daemon thread, eager ones too.
    assert done.returncode in (0, -6), done


@pytest.mark.usefixtures("often")
def test_copies_that_are_called_at_once():
    net = lazytrace.traced(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.rand(5, 3)
    expected = net(x)

    def go(i):
        for n in range(10):
            again = copy.deepcopy(net) if (i + n) % 2 else pickle.loads(pickle.dumps(net))
            assert all(torch.equal(again(x), expected) for _ in range(3))
            assert torch.equal(net(x), expected)

    at_once(go)
    assert net.stats().recordings == 1


@pytest.mark.usefixtures("often")
def test_instances_that_come_and_go_in_all_threads():
    made = []

    class Model:
        def __init__(self, k):
            self.k, self.w = k, torch.full((3,), k)

        @lazytrace.traced
        def step(self, x):
            return x * self.w + self.k

    def go(i):
        for n in range(60):
            k = float((i + n) % 5)
            one = Model(k)
            for _ in range(3):
                assert torch.equal(one.step(X()), X() * k + k)
            if n % 7 == 0:
                made.append(one)
            del one

    at_once(go)
    assert Model.step.stats().calls == THREADS * 180
    made.clear()
    gc.collect()
    assert Model.step.stats().cache_size == 0


# ---------------------------------------------------------------- everything at once
SECONDS = float(os.environ.get("LAZYTRACE_STRESS_SECONDS", "5"))


class Stress:
    """What the threads of the stress test share. Each action makes calls, checks them and counts them."""

    def __init__(self):
        self.sized = lazytrace.traced(lambda x, k=2.0: x * k, cache_limit=3, dynamic=False, name="sized")
        self.deciding = lazytrace.traced(self.decide, cache_limit=4, name="deciding")
        self.raising = lazytrace.traced(lambda x, i: (x + 1).index_select(0, i), name="raising")
        self.writing = lazytrace.traced(self.write, name="writing")
        self.stateful = lazytrace.traced(self.scale, cache_limit=4, name="stateful")
        self.nested = lazytrace.traced(self.nest, cache_limit=4, name="nested")
        self.stars = lazytrace.traced(self.star, cache_limit=6, name="stars")
        self.box = types.SimpleNamespace(k=1.0)
        self.inner = lazytrace.traced(lambda x, n: x * n if n < 2 else self.helper(x, n) + 0, name="inner")
        self.helper = lazytrace.opaque(lambda x, n: self.inner(x, n - 1) * n)
        self.keep = lazytrace.script_if_tracing(halved)

        class Model:
            def __init__(self, k):
                self.k = k

            @lazytrace.traced(cache_limit=2, name="method")
            def step(self, x):
                return x + self.k

        self.model = Model
        self.shared = Model(3.0)
        self.calls = collections.Counter()
        self.lock = threading.Lock()

    @staticmethod
    def decide(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
            if y.max() > 20:
                return y - 5
            return y
        return y - 1

    @staticmethod
    def write(x, total):
        """Writes in place before it looks: its call must do so once, whatever becomes of it."""
        total.add_(1)
        y = x * 2
        return y + total if x.sum() > 0 else y - total

    def scale(self, x):
        return x * self.box.k

    def nest(self, x, n):
        return self.inner(x, n) + self.keep(x)

    @staticmethod
    def star(x, /, *args, scale=1.0, **more):
        return x * scale + sum(args) + len(more)

    def count(self, name, calls=1):
        with self.lock:
            self.calls[name] += calls

    # -------------------------------------------------- actions
    def call_sized(self, random):
        n, k = random.randrange(1, 7), random.choice([2.0, 3.0])
        x = torch.ones(n)
        y = self.sized(x, k=k) if random.random() < 0.5 else self.sized(k=k, x=x)
        self.count("sized")
        assert y.tolist() == [k] * n

    def call_deciding(self, random):
        x = torch.full((3,), random.choice([-1.0, 1.0, 50.0]))
        assert torch.equal(self.deciding(x), self.decide(x))
        self.count("deciding")

    def call_raising(self, random):
        i = random.choice([0, 2, 9])
        self.count("raising")
        try:
            y = self.raising(X(), torch.tensor([i]))
        except IndexError:
            assert i == 9
        else:
            assert y.item() == X()[i].item() + 1

    def call_writing(self, random):
        total = torch.zeros(1)
        for n in range(1, 4):
            x = torch.full((2,), random.choice([-1.0, 1.0]))
            y = self.writing(x, total)
            self.count("writing")
            assert total.item() == n
            assert torch.equal(y, x * 2 + n * x.sign())

    def call_stateful(self, random):
        y = self.stateful(torch.ones(2))
        self.count("stateful")
        assert y.tolist() in ([1.0] * 2, [2.0] * 2, [3.0] * 2)

    def switch_state(self, random):
        self.box.k = random.choice([1.0, 2.0, 3.0])

    def call_nested(self, random):
        n = random.choice([0, 1, 3])
        x = torch.full((2,), random.choice([0.5, 8.0]))
        assert torch.equal(self.nested(x, n), x * {0: 0, 1: 1, 3: 6}[n] + halved(x))
        self.count("nested")

    def call_stars(self, random):
        more = dict.fromkeys(random.sample(["a", "b", "c"], random.randrange(3)), 1)
        args = [float(n) for n in range(random.randrange(3))]
        scale = random.choice([1.0, 2.0])
        y = self.stars(torch.ones(2), *args, **more, scale=scale)
        self.count("stars")
        assert y.tolist() == [scale + sum(args) + len(more)] * 2

    def call_method(self, random):
        one = self.shared if random.random() < 0.5 else self.model(random.choice([3.0, 4.0]))
        for _ in range(2):
            n = random.randrange(1, 5)
            assert torch.equal(one.step(torch.ones(n)), torch.ones(n) + one.k)
            self.count("method")

    def make_and_drop(self, random):
        k = random.choice([2.0, 3.0])
        fn = lazytrace.traced(lambda x: x * k if x.sum() > 0 else x - k)
        for sign in (1.0, 1.0, -1.0):
            x = torch.full((2,), sign)
            assert torch.equal(fn(x), x * k if sign > 0 else x - k)
        stats = fn.stats()
        assert stats.calls == stats.hits + stats.recordings + stats.eager_calls + stats.inlined == 3

    def clear(self, random):
        every = [self.sized, self.deciding, self.writing, self.stateful, self.nested, self.shared.step]
        random.choice(every).cache_clear()

    def ask(self, random):
        what = random.randrange(6)
        if what == 0:
            assert lazytrace.report().startswith("lazytrace: ")
        elif what == 1:
            assert self.sized.stats().calls >= 0
        elif what == 2:
            str(self.sized.explain(torch.ones(random.randrange(1, 9)), 2.0))
        elif what == 3:
            with contextlib.suppress(LookupError):
                str(self.deciding.program(torch.ones(3)))
        elif what == 4:
            lazytrace.report(format=random.choice(["json", "csv", "chrome"]))
        else:
            with lazytrace.CompileProfiler() as profiler:
                self.call_sized(random)
            assert profiler.get_metrics()["calls"] >= 1

    def time(self, random):
        lazytrace.time_hits(random.random() < 0.3)

    def collect(self, random):
        gc.collect(0)


def halved(x):
    while bool(x.max() > 1):
        x = x / 2
    return x


OFTEN = ["call_sized", "call_deciding", "call_raising", "call_writing", "call_stateful", "call_nested"]
OFTEN += ["call_stars", "call_method", "call_stateful", "call_sized"]
SELDOM = ["switch_state", "make_and_drop", "clear", "ask", "collect", "time"]


def test_what_became_of_recordings_is_asked_by_any_thread(often):
    """One that iterated over the newest raised where another thread stored its own meanwhile."""
    retreat = Retreat(TraceStore(8))
    gone = types.SimpleNamespace(number=1, native=types.SimpleNamespace(hits=1))

    def go(i):
        for _ in range(1000):
            retreat.refused(Reason("calls print()"))
            retreat.dropped(gone)
            retreat.resting()
            retreat.branches_pay(b"")
            if not i:
                retreat.clear()

    at_once(go)


@pytest.mark.parametrize("interval", [1e-6, 5e-3])
def test_everything_at_once(interval):
    stress, end = Stress(), time.monotonic() + SECONDS / 2
    weights = [20] * len(OFTEN) + [3] * len(SELDOM)

    def go(i):
        # Not random's own generator, which is everybody's.
        chance = random.Random(f"{i} of {SECONDS}")
        while time.monotonic() < end:
            (name,) = chance.choices(OFTEN + SELDOM, weights)
            getattr(stress, name)(chance)

    try:
        with warnings.catch_warnings(), turns(interval):
            warnings.simplefilter("ignore")
            at_once(go)
    finally:
        lazytrace.time_hits(False)
    for name in ("sized", "deciding", "raising", "writing", "stateful", "nested", "stars", "method"):
        fn = stress.model.step if name == "method" else getattr(stress, name)
        stats = fn.stats()
        assert stats.calls == stats.hits + stats.recordings + stats.eager_calls + stats.inlined
        assert stats.calls == stress.calls[name], name
        assert stats.hits > 0, name
        assert stats.proof_failures == 0
        assert stats.evictions <= stats.recordings
    assert stress.sized.stats().evictions > 0
    assert stress.sized.stats().cache_size <= 3
    assert stress.raising.stats().eager.get("raised IndexError", 0) > 0


# ---------------------------------------------------------------- counters that threads share
class Counts:
    """Places for numbers that a step counts."""

    def __init__(self):
        self.steps, self.sum, self.entries, self.list = 0, 0.0, {"n": 0}, [0, 0]


def counts_in_attribute(counts, x):
    y = x @ x
    counts.steps += 1
    return y


def counts_in_dict(counts, x):
    counts.entries["n"] += 3
    return x @ x


def counts_in_list(counts, x):
    y = x @ x
    counts.list[1] += len(x)
    return y


def sums_in_attribute(counts, x):
    y = x @ x
    counts.sum += y[0, 0].item()
    counts.steps += 2
    return y


COUNTING = [counts_in_attribute, counts_in_dict, counts_in_list, sums_in_attribute]


@pytest.mark.parametrize("body", COUNTING, ids=lambda one: one.__name__)
def test_what_threads_count_together(body):
    """A replay reads when it begins and writes when it ends, and others count meanwhile."""
    counts, x = Counts(), torch.ones(150, 150)
    step = lazytrace.traced(lambda x: body(counts, x))

    def work(calls=50):
        for _ in range(calls):
            step(x)

    work(4)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    once = Counts()
    body(once, x)
    calls = 204
    assert counts.steps == calls * once.steps
    assert counts.sum == calls * once.sum
    assert counts.entries["n"] == calls * once.entries["n"]
    assert counts.list[1] == calls * once.list[1]
    assert step.stats().hits > 100, step.stats()


def test_what_another_thread_has_put_there():
    """A number of another kind, or nothing: what was worked out is written."""
    for other in (2.5, "text", 1 << 80, None):
        counts, x = Counts(), torch.ones(150, 150)
        step = lazytrace.traced(lambda x, counts=counts: counts_in_attribute(counts, x))
        for _ in range(4):
            step(x)

        def work(counts=counts, other=other):
            for _ in range(200):
                counts.steps = other
                counts.steps = 5

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(50):
            with contextlib.suppress(TypeError):
                step(x)
        thread.join()
        counts.steps = 7
        step(x)
        assert counts.steps == 8


@pytest.mark.usefixtures("often")
def test_numbers_in_state_are_values_for_other_threads_while_one_is_recorded():
    """Torch takes what stands for a number for one of any value, unless it is told of it."""
    scales, shifts = {"a": 1.0, "b": 2.0}, {"a": 1, "b": 2}

    def fn(x):
        y = x * 1
        for value in scales.values():
            y = y + x * value
        for value in shifts.values():
            y = y + x * value + torch.full((3,), value)
        return y * 1 * 1 * 1

    for _ in range(100):
        step = lazytrace.traced(fn)
        for k in range(3):
            scales["a"], shifts["a"] = 1.0 + k, 1 + k
            wanted = fn(torch.ones(3))
            found = at_once(lambda _, step=step: [step(torch.ones(3)) for _ in range(4)], threads=3)
            assert all(torch.equal(one, wanted) for row in found for one in row), (k, wanted, found)


# ---------------------------------------------------------------- gradients that threads add up
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("there", [True, False])
def test_gradients_that_threads_add_up(there):
    """Autograd adds to a gradient under a lock, in flat steps, too: `there` or set by who comes first."""
    w, v = (torch.nn.Parameter(torch.ones(200, 200)) for _ in range(2))

    @lazytrace.traced
    def step(x):
        y = x @ w
        (y @ v + y).sum().backward()

    def clear():
        for p in (w, v):
            p.grad = torch.zeros_like(p) if there else None

    x = torch.ones(2, 200)
    for _ in range(ENOUGH):
        clear()
        step(x)
    once = [w.grad, v.grad]
    assert set(forms_of(step)) == {"flat"}
    calls = 50 if there else 1
    for _ in range(2 if there else 40):
        clear()
        at_once(lambda _: [step(x) for _ in range(calls)])
        for p, gradient in zip((w, v), once, strict=True):
            assert torch.equal(p.grad, gradient * THREADS * calls)


@pytest.mark.usefixtures("often")
def test_random_numbers_that_another_thread_draws_while_a_step_is_proved():
    """The step drew none when it was recorded, so the stream belongs to the others."""
    w = torch.nn.Parameter(torch.ones(300, 300))
    w.grad = torch.zeros_like(w)
    steps = [lazytrace.traced(lambda x, k=k: (torch.tanh(x @ w) * k).sum().backward()) for k in range(6)]
    x, drawn, done = torch.ones(40, 300), [], threading.Event()

    def draw():
        while not done.is_set():
            drawn.append(torch.rand(()))

    for step in steps:
        step(x), step(x)
    torch.manual_seed(7)
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for step in steps:
            for _ in range(ENOUGH):
                step(x)
    finally:
        done.set()
        thread.join()
    assert all(forms_of(step)[-1] == "flat" for step in steps)
    torch.manual_seed(7)
    assert torch.stack(drawn).equal(torch.stack([torch.rand(()) for _ in drawn]))
