"""jax.jit's side of S1, S4, S5, S6 and S7: run by the Python that `JAX_PYTHON` names. Free of torch."""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from peers.cases import Case, dispatch_cases, hit_orders, last_differs_source, operators_source
from peers.measuring import Thunk, calls_in, resident_kb, seconds

jax.config.update("jax_enable_x64", True)
Answer = dict[str, Any]
CROWD = 8
HITS = 2000
WARMUP_CYCLES = 5


class Counted:
    """A function for jax.jit that counts how often it is traced."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.traces = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called in tracing only."""
        self.traces += 1
        return self.function(*args, **kwargs)


def tensor(size: int = 4) -> Any:
    """A small array."""
    return jnp.ones(size, jnp.float32)


def fresh(source: str) -> Any:
    """The function of a source; methods of tensors that jax has as functions are written as such."""
    text = source.replace("x.sin()", "SIN(x)")
    names: dict[str, Any] = {"STACK": jnp.stack, "SIN": jnp.sin}
    exec(text, names)
    return names["f"]


def microseconds(thunk: Thunk, rounds: int) -> float:
    """Microseconds per call, the median of the rounds; the last result is waited for."""
    thunk()
    times, taken = calls_in(thunk, 0.004), []
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(times):
            result = thunk()
        jax.block_until_ready(result)
        taken.append((time.perf_counter() - start) / times * 1e6)
    gc.enable()
    return statistics.median(taken)


def version(spec: dict[str, Any]) -> Answer:
    """The version of jax."""
    return {"version": jax.__version__}


# ---------------------------------------------------------------- S1
def of_module(case: Case) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of a module's parameters, as a dict, and of its input; and its arguments."""
    parameters = {f"p{i}": tensor() for i in range(case.parameters)}

    def all_used(p: dict[str, Any], x: Any) -> Any:
        return jnp.concatenate([x, *p.values()])

    def one_used(p: dict[str, Any], x: Any) -> Any:
        return x + p["p0"]

    return all_used if case.all_used else one_used, (parameters, *case.args)


def thunk_of(case: Case) -> Thunk:
    """A call of a case through jax.jit."""
    function, args = of_module(case) if case.parameters else (fresh(case.source), case.args)
    call = jax.jit(function)
    return lambda: call(*args, **case.kwargs)


def dispatch(spec: dict[str, Any]) -> Answer:
    """Microseconds of the whole call of each case."""
    cases = dispatch_cases(tensor)
    wanted = [name for name in spec["cases"] if not cases[name].autograd]
    return {name: microseconds(thunk_of(cases[name]), spec["rounds"]) for name in wanted}


# ---------------------------------------------------------------- S4
def gpt_parameters(width: int = 64, layers: int = 2) -> Answer:
    """Parameters of two causal blocks."""
    draw = np.random.RandomState(0)

    def array(*shape: int) -> Any:
        return jnp.asarray(draw.randn(*shape) * 0.1, jnp.float32)

    blocks = [
        {"qkv": array(width, 3 * width), "up": array(width, 2 * width), "down": array(2 * width, width)}
        for _ in range(layers)
    ]
    return {"words": array(1000, width), "places": array(512, width), "blocks": blocks}


def normed(x: Any) -> Any:
    """Layer normalization without parameters."""
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def gpt(parameters: Answer, ids: Any) -> Any:
    """Two causal blocks."""
    batch, length = ids.shape
    x = parameters["words"][ids] + parameters["places"][:length]
    for block in parameters["blocks"]:
        q, k, v = (part.reshape(batch, length, 4, -1) for part in jnp.split(normed(x) @ block["qkv"], 3, -1))
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, length, -1)
        x = x + jax.nn.gelu(normed(x) @ block["up"]) @ block["down"]
    return x


def scenarios(lengths: Sequence[int]) -> dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], Answer]]:
    """The scenarios of S4: a function, the arguments of its calls, and options of jax.jit."""
    x = jnp.ones((16, 64), jnp.float32)
    types = (jnp.float32, jnp.bfloat16, jnp.float64)
    weights = {dtype: jnp.ones((64, 64), dtype) for dtype in types}
    parameters = gpt_parameters()

    def layer(x: Any, train: bool) -> Any:
        return jnp.where(train, x - x.mean(0), x) @ weights[jnp.float32]

    def product(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) + x

    def doubled(x: Any) -> Any:
        return jnp.sin(x) * 2

    def scaled(x: Any, s: Any) -> Any:
        return jnp.sin(x) * s + s

    def total(xs: Any) -> Any:
        return sum(xs)

    return {
        "50 sequence lengths": (gpt, [(parameters, jnp.zeros((1, n), jnp.int32)) for n in lengths], {}),
        "3 dtypes, 5 times": (product, [(x.astype(d), weights[d]) for _ in range(5) for d in types], {}),
        "train and eval by turns": (layer, [(x, i % 2 == 0) for i in range(20)], {"static_argnums": 1}),
        "12 shapes, twice": (doubled, [(x[:, : i + 2],) for i in range(12)] * 2, {}),
        "20 floats": (scaled, [(x, 0.1 * i + 0.05) for i in range(20)], {}),
        "20 ints": (scaled, [(x, i) for i in range(20)], {}),
        "lists of 1 to 20": (total, [([x] * i,) for i in range(1, 21)], {}),
    }


def retraces(spec: dict[str, Any]) -> Answer:
    """Traces, and the milliseconds of each call."""
    found = {}
    jax.block_until_ready(jax.jit(lambda x: x + 1)(tensor()))
    for name, (function, calls, options) in scenarios(spec["lengths"]).items():
        counted, taken = Counted(function), []
        call = jax.jit(counted, **options)
        for args in calls:
            start = time.perf_counter()
            jax.block_until_ready(call(*args))
            taken.append((time.perf_counter() - start) * 1e3)
        found[name] = {
            "calls": len(calls),
            "recordings": counted.traces,
            "replays": len(calls),
            "wrong": 0,
            "errors": 0,
            "ms": taken,
        }
    return found


# ---------------------------------------------------------------- S5
def walking(call: Callable[..., Any], order: Sequence[tuple[Any, ...]]) -> Thunk:
    """Call with the next arguments each time, round and round."""
    following = itertools.cycle(order).__next__
    return lambda: call(*following())


def lookup(spec: dict[str, Any]) -> Answer:
    """By cache size: milliseconds to fill in an entry, and microseconds per call in each order."""
    count, sizes = spec["arguments"], spec["sizes"]
    head = tuple(tensor() for _ in range(count - 1))
    signatures = [(*head, tensor(k + 2)) for k in range(max(sizes))]
    call = jax.jit(fresh(last_differs_source(count)))
    found, filled = {}, 0
    for size in sizes:
        new = signatures[filled:size]
        row = {"fill_ms": seconds(walking(call, new), len(new)) * 1e3}
        filled = size
        for order, all_args in hit_orders(signatures[:size]).items():
            row[order] = microseconds(walking(call, all_args), spec["rounds"])
        found[str(size)] = row
    return found


# ---------------------------------------------------------------- S6
def filled(function: Any, entries: int) -> Any:
    """A compiled function that holds `entries` signatures."""
    call = jax.jit(function)
    for k in range(entries):
        jax.block_until_ready(call(tensor(k + 2)))
    return call


def measure_entries(operators: int, entries: int) -> Answer:
    """KB and objects of the garbage collector per entry: added, freed with the function, freed by a reset."""
    source = operators_source(operators)
    filled(fresh(source), 4)
    function = fresh(source)
    for k in range(entries):
        tensor(k + 2)  # making one compiles, too
    alive, before, objects = weakref.ref(function), resident_kb(), len(gc.get_objects())
    held = filled(function, entries)
    full, objects_full = resident_kb(), len(gc.get_objects())
    del function, held
    dropped, objects_dropped = resident_kb(), len(gc.get_objects())
    gone = alive() is None
    jax.clear_caches()
    reset = resident_kb()
    function = fresh(source)
    held = filled(function, entries)
    again = resident_kb()
    del function, held
    jax.clear_caches()
    return {
        "kb": (full - before) / entries,
        "freed_kb": (full - dropped) / entries,
        "reset_freed_kb": (full - reset) / entries,
        "refill_kb": (again - reset) / entries,
        "objects": (objects_full - objects) / entries,
        "objects_freed": (objects_full - objects_dropped) / entries,
        "function_freed": gone,
    }


def measure_churn(cycles: int) -> float:
    """KB that stay behind each time that a function is compiled, called twice and dropped."""
    before = 0
    for cycle in range(cycles + WARMUP_CYCLES):
        if cycle == WARMUP_CYCLES:
            before = resident_kb()
        weights = [jnp.ones((64, 64)) for _ in range(3)]
        call = jax.jit(lambda ws, x: x @ ws[0] @ ws[1] @ ws[2])
        jax.block_until_ready(call(weights, jnp.ones((2, 64))))
        call(weights, jnp.ones((2, 64)))
        del call, weights
    return (resident_kb() - before) / cycles


def memory(spec: dict[str, Any]) -> Answer:
    """Entries of a function of so many operators, and churn."""
    entries = measure_entries(spec["operators"], spec["entries"])
    return {"entries": entries, "churn_kb": measure_churn(spec["cycles"])}


# ---------------------------------------------------------------- S7
def race(call: Callable[[Any], Any], all_args: Sequence[Any], times: int = 1) -> Answer:
    """Call in one thread for each argument, all at once; the milliseconds of the slowest thread."""
    ready = threading.Barrier(len(all_args))
    taken: list[float] = []
    errors: list[str] = []

    def work(argument: Any) -> None:
        ready.wait()
        start = time.perf_counter()
        try:
            for _ in range(times):
                result = call(argument)
            jax.block_until_ready(result)
        except Exception as error:
            errors.append(str(error)[:100])
        taken.append((time.perf_counter() - start) * 1e3)

    threads = [threading.Thread(target=work, args=(argument,)) for argument in all_args]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"slowest_ms": max(taken), "errors": len(errors), "wrong": 0}


def threads(spec: dict[str, Any]) -> Answer:
    """Races for the first call, and hits from one thread and from many."""
    source = operators_source(10)
    arguments = {
        "alone": [tensor(7)],
        "same": [tensor(7)] * CROWD,
        "shapes": [tensor(7 + i) for i in range(CROWD)],
    }
    jax.block_until_ready(jax.jit(fresh(source))(tensor(3)))
    races: dict[str, list[Answer]] = {label: [] for label in arguments}
    for _ in range(spec["trials"]):
        for label, all_args in arguments.items():
            counted = Counted(fresh(source))
            races[label].append(race(jax.jit(counted), all_args) | {"recordings": counted.traces})
    call, hits = jax.jit(fresh(source)), {}
    for crowd in (1, CROWD):
        race(call, [tensor(7)] * crowd)
        trials = [race(call, [tensor(7)] * crowd, HITS) for _ in range(5)]
        hits[f"jax.jit {crowd}"] = [trial["slowest_ms"] * 1e3 / HITS / crowd for trial in trials]
    return {"races": races, "hits": hits}
