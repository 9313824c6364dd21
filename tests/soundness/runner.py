"""Drives a case twice, with the plain function and with the traced one, and compares all that can be seen.

A case is a function `make(trace)` that builds fresh state, decorates what it wants traced with `trace`, and
returns `(function, steps)` or `(function, steps, watch)`. A step is a `call(...)` or a function without
arguments that changes the world; `watch()` returns the state to compare after each step.
"""

from __future__ import annotations

import ctypes
import marshal
import math
import random
import re
import types
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import lazytrace

Observation = Any
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    type(...),
    range,
    slice,
)


class Call:
    """One call of the function under test, or of `on`."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs
        self.on: Callable[..., Any] | None = None

    def of(self, function: Callable[..., Any]) -> Call:
        """The same call of another function of the case."""
        self.on = function
        return self


def call(*args: Any, **kwargs: Any) -> Call:
    """A step that calls the function."""
    return Call(*args, **kwargs)


def around(change: Callable[[], object], *args: Any, **kwargs: Any) -> list[Any]:
    """Record and replay, change the world, twice again."""
    twice = [call(*args, **kwargs), call(*args, **kwargs)]
    return [*twice, change, *twice]


# ---------------------------------------------------------------- what can be seen
def tensors_in(value: Any, seen: dict[int, Any] | None = None) -> Iterator[torch.Tensor]:
    """Every tensor inside a value, in order."""
    seen = {} if seen is None else seen  # kept, or what `children` makes would leave its address to the next
    if isinstance(value, torch.Tensor):
        yield value
    elif (
        not isinstance(value, (*_PLAIN, type, types.FunctionType, types.ModuleType)) and id(value) not in seen
    ):
        seen[id(value)] = value
        for child in children(value):
            yield from tensors_in(child, seen)


def children(value: Any) -> list[Any]:
    """What a container or an object holds."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | deque):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, torch.nn.Module):
        return [value.state_dict(keep_vars=True), value.training]
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def storage_of(t: torch.Tensor) -> int:
    """The address of a tensor's memory, or 0."""
    try:
        return t.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


class Values(bytes):
    """Those of a tensor as float64: equal where they are bit for bit, but for what a nan holds beside."""

    def __repr__(self) -> str:
        return repr(np.frombuffer(self).tolist())


def bits(t: torch.Tensor) -> Any:
    """The values of a tensor as something that compares with ==, nan and -0.0 included."""
    plain = t.detach().dequantize() if t.is_quantized else t.detach()
    if plain.layout is not torch.strided:
        return (str(plain.layout), bits(plain.to_dense()))
    plain = plain.resolve_conj().resolve_neg().contiguous()
    if plain.device.type == "meta":
        return "meta"
    if not plain.is_floating_point():
        return plain.cpu().tolist()
    values = plain.reshape(-1).tolist()
    if math.isnan(sum(values)):  # or an inf and a -inf
        values = [math.nan if math.isnan(x) else x for x in values]
    return Values(array("d", values).tobytes())


def leaf_text(value: Any) -> str:
    """What an object without parts shows of itself, if that does not tell its address."""
    return "" if " at 0x" in (text := repr(value)) else text


class Look:
    """Writes down one value: structure, types, metadata, values, and what is the same object as what."""

    def __init__(self, others: list[tuple[str, torch.Tensor]]) -> None:
        self.others = [(name, other, storage_of(other)) for name, other in others]
        self.seen: dict[int, int] = {}
        self.memory: dict[int, int] = {0: -1}
        self.kept: list[Any] = []  # what is seen must not make room for something else at its address

    def __call__(self, value: Any) -> Observation:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, _PLAIN):
            return (type(value).__name__, repr(value))
        if type(value) is np.ndarray and value.dtype != object and id(value) not in self.seen:
            self.seen[id(value)] = len(self.seen)
            self.kept.append(value)
            return self.array(value)
        if isinstance(value, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType):
            return (value.__class__.__name__, getattr(value, "__qualname__", value.__name__))
        if id(value) in self.seen:
            return ("same as", self.seen[id(value)])
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        inside = [self(child) for child in children(value)]
        return (type(value).__qualname__, inside, leaf_text(value) if not inside else "")

    def changeable(self) -> list[tuple[int, Any]]:
        """Of what was seen so far what can change and is no tensor, with when it was seen."""
        fixed = (torch.Tensor, np.generic, tuple, frozenset, *_PLAIN)
        return [(i, one) for i, one in enumerate(self.kept) if not isinstance(one, fixed)]

    def array(self, a: np.ndarray[Any, Any]) -> Observation:
        start = a.__array_interface__["data"][0]
        shared = [
            name
            for name, other, memory in self.others
            if memory and memory <= start < memory + other.untyped_storage().nbytes()
        ]
        return ("array", str(a.dtype), a.shape, a.strides, a.flags.writeable, a.tobytes(), shared)

    def tensor(self, t: torch.Tensor) -> Observation:
        alias = [name for name, other, _ in self.others if other is t]
        memory = storage_of(t)
        shared = [name for name, other, at in self.others if memory and at == memory and other is not t]
        number = self.seen.setdefault(id(t), len(self.seen))
        self.kept.append(t)
        strides = t.stride() if t.layout is torch.strided and t.numel() else ()
        about = {
            "type": type(t).__name__, "dtype": str(t.dtype), "device": str(t.device),
            "shape": tuple(t.shape), "strides": strides,
            "requires_grad": t.requires_grad, "leaf": t.is_leaf, "grad_fn": type(t.grad_fn).__name__,
            "inference": t.is_inference(), "is": alias, "shares with": shared, "number": number,
            "memory": (self.memory.setdefault(memory, len(self.memory)), memory and t.storage_offset()),
            "view": t._is_view() and (t.is_inference() or tuple(t._base.shape)),
            "node": None if t.grad_fn is None else t.grad_fn.name(),
        }  # fmt: skip
        return ("tensor", about, bits(t))


def told(error: BaseException | None) -> Observation:
    """What a traceback tells of an error, of what led to it, too."""
    if error is None:
        return ()
    before = error.__cause__ if error.__suppress_context__ else error.__context__
    return (type(error).__name__, str(error), *(getattr(error, "__notes__", ())), told(before))


def words_of_numpy() -> bytes:
    """What the generator behind `np.random` holds: 624 words, and how many of them are used."""
    return ctypes.string_at(np.random.get_bit_generator().ctypes.state_address, 625 * 4)


def numpy_stream(seeded: bytes) -> Observation:
    """The random stream of numpy, to be compared with ==.

    To ask for all of it takes as long as a small case. Where no word has changed since it was seeded, nothing
    was drawn, and so nothing put aside for the next draw.
    """
    words = words_of_numpy()
    if words == seeded:
        return "as it was seeded"
    _, _, *aside = np.random.get_state()
    return words, aside


def ambient(seeded: bytes) -> Observation:
    """The modes and random streams that a call must leave as eager leaves them."""
    return {
        "grad": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"), "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch random": hash(torch.get_rng_state().numpy().tobytes()), "random": hash(random.getstate()),
        "numpy random": numpy_stream(seeded),
        "tf32": torch.get_float32_matmul_precision(), "mkldnn": torch.backends.mkldnn.enabled,
        "anomaly": torch.is_anomaly_enabled(),
        "cuda random": bytes(torch.cuda.get_rng_state().tolist()) if torch.cuda.is_initialized() else b"",
    }  # fmt: skip


def gradients(out: Any, sources: list[torch.Tensor]) -> Observation:
    """Gradients of a fixed cotangent, without touching `.grad`."""
    roots = [t for t in tensors_in(out) if t.requires_grad and t.grad_fn is not None and not t.is_inference()]
    wanted = [t for t in sources if t.requires_grad]
    if not roots or not wanted or not torch.is_grad_enabled():
        return ()
    cotangents = [torch.linspace(0.5, 1.5, t.numel()).to(t.device, t.dtype).reshape(t.shape) for t in roots]
    try:
        found = torch.autograd.grad(roots, wanted, cotangents, allow_unused=True, retain_graph=True)
    except RuntimeError as error:
        return ("backward raised", str(error).split("\n")[0][:80])
    return [None if g is None else (str(g.dtype), tuple(g.shape), bits(g)) for g in found]


# ---------------------------------------------------------------- driving
class Tracer:
    """The decorator that a case is given; remembers what it made."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.made: list[Any] = []
        self.opaque: list[Any] = []  # what `opaque` has made

    def __call__(self, fn: Any = None, **options: Any) -> Any:
        if fn is None:
            return lambda inner: self(inner, **options)
        if not self.enabled:
            return fn
        made = lazytrace.traced(fn, **options)
        self.made.append(made.__dict__["forward"] if isinstance(fn, type) else made)
        return made

    def count(self, what: str) -> int:
        return sum(getattr(made.stats(), what) for made in self.made)

    def account(self) -> str:
        """What the traced functions did, for whoever reads why a test failed."""
        snapshots = [made.stats() for made in self.made]
        return "\n".join(f"{s!r}; eager: {s.eager}; retraces: {s.retrace_reasons}" for s in snapshots)

    def reasons(self) -> dict[str, int]:
        return {k: v for made in self.made for k, v in made.stats().eager.items()}


class Driver:
    """Runs one case in one way and keeps what was seen."""

    def __init__(self, make: Callable[..., Any], traced: bool) -> None:
        # Where there is no GPU, `torch.manual_seed` takes the time of a small case to note who asked for it.
        seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
        seed(0)
        random.seed(0)
        np.random.seed(0)
        self.seeded = words_of_numpy()
        self.tracer = Tracer(traced)
        self.function, self.steps, *rest = make(self.tracer)
        self.watch = rest[0] if rest else lambda: None
        self.outputs: list[tuple[str, torch.Tensor]] = []
        self.kept: list[Any] = []
        self.given: dict[int, tuple[str, Any]] = {}  # what can change of the results so far, by address

    def run(self) -> list[tuple[str, Observation]]:
        log = [(f"step {i}", self.step(i, step)) for i, step in enumerate(self.steps)]
        late = [(f"later: {name}", bits(t)) for name, t in self.outputs]
        return log + late

    def step(self, number: int, step: Any) -> Observation:
        if not isinstance(step, Call):
            step()
            return ()
        inputs = [(f"arg{i}", t) for i, t in enumerate(tensors_in([step.args, step.kwargs]))]
        state = [(f"state{i}", t) for i, t in enumerate(tensors_in(self.watch()))]
        try:
            out = (step.on or self.function)(*step.args, **step.kwargs)
        except Exception as error:
            return {"raised": told(error), **self.after(step, inputs)}
        look = Look([*inputs, *state, *self.outputs])
        seen = look(out), self.given_before(look)
        for i, one in look.changeable():
            self.given.setdefault(id(one), (f"out{number}.{i}", one))
        sources = [t for _, t in [*inputs, *state]]
        grads = (gradients(out, sources), gradients(self.watch(), sources))
        self.kept.append(out)
        self.outputs += [(f"out{number}.{i}", t) for i, t in enumerate(tensors_in(out))]
        return {"output": seen, "gradients": grads, **self.after(step, inputs)}

    def given_before(self, look: Look) -> list[tuple[int, str]]:
        """What was seen that a result so far is, or holds: who changes the one changes the other."""
        return [(i, self.given[id(one)][0]) for i, one in look.changeable() if id(one) in self.given]

    def after(self, step: Call, inputs: list[tuple[str, torch.Tensor]]) -> dict[str, Observation]:
        arguments, state = Look([]), Look([*inputs, *self.outputs])
        return {
            "arguments": (arguments([step.args, step.kwargs]), self.given_before(arguments)),
            "state": (state(self.watch()), self.given_before(state)),
            "ambient": ambient(self.seeded),
        }


def restore() -> None:
    """The defaults of torch, whatever a case has left."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.enabled = torch.backends.cudnn.enabled = True
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.depthwise_kernel = "auto"
    torch.set_autocast_enabled("cpu", False)
    torch.autograd.set_detect_anomaly(False)
    torch.set_default_device(None)


def drive(make: Callable[..., Any], traced: bool) -> tuple[list[tuple[str, Observation]], Tracer]:
    """One run of a case, in defaults that are put back."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", lazytrace.ProofWarning)
            driver = Driver(make, traced)
            return driver.run(), driver.tracer
    finally:
        restore()


def difference(path: str, a: Observation, b: Observation) -> str:
    """The first place where two observations differ, or nothing."""
    return "" if are_alike(a, b) else first_difference(path, a, b)


def are_alike(a: Observation, b: Observation) -> bool:
    """Whether two observations are equal, types included, and quickly: false says nothing."""
    try:
        return marshal.dumps(a, 2) == marshal.dumps(b, 2)
    except ValueError:  # of a class that cannot be written down so
        return False


def first_difference(path: str, a: Observation, b: Observation) -> str:
    """The same, found by going through both."""
    if isinstance(a, dict) and isinstance(b, dict) and "raised" in {*a} ^ {*b}:
        return f"{path}: eager {a.get('raised', 'returned')!r}, traced {b.get('raised', 'returned')!r}"
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next((d for k in a if (d := first_difference(f"{path}.{k}", a[k], b[k]))), "")
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return next((d for i, (x, y) in pairs if (d := first_difference(f"{path}[{i}]", x, y))), "")
    return "" if a == b and type(a) is type(b) else f"{path}: eager {a!r}, traced {b!r}"


def agree(make: Callable[..., Any]) -> Tracer:
    """Both ways agree; returns the decorator, which knows what the traced way did."""
    plain, _ = drive(make, False)
    traced, tracer = drive(make, True)
    for (name, a), (_, b) in zip(plain, traced, strict=True):
        found = difference(name, a, b)
        assert not found, f"{found}\n    eager calls: {tracer.reasons()}, hits: {tracer.count('hits')}"
    return tracer


def check(make: Callable[..., Any], *, hits: int = 0, eager: str = "", recordings: int | None = None) -> None:
    """Both ways agree, and the traced one did what is stated, of which there must be something.

    `hits` is the least number of hits. `eager` is the reason of an eager call; alone it says that nothing is
    replayed. `recordings` is their exact number; alone it is for calls that each need one.
    """
    assert hits or eager or recordings is not None, STATE_IT
    tracer = agree(make)
    assert tracer.count("hits") >= hits, tracer.account()
    assert not eager or any(is_reason(eager, text) for text in tracer.reasons()), f"{tracer.reasons()}"
    assert hits or not tracer.count("hits"), f"replayed {tracer.count('hits')} times: state hits="
    assert recordings is None or tracer.count("recordings") == recordings, f"{tracer.made[0].stats()}"


STATE_IT = "state hits=, eager= or recordings=: a case that is never replayed compares eager with eager"


def is_reason(wanted: str, text: str) -> bool:
    """Does a stated reason, a code or a part of a text, stand for the text that lazytrace gives?

    Most cases state the text: one code, such as "reads", stands for many things.
    """
    return wanted == lazytrace.reason_code(text) or wanted in re.sub(r"\w+\.<locals>\.", "", text)


class Cases:
    """The cases of a file: `@cases(hits=2)` registers one, `parametrize` makes the tests."""

    def __init__(self) -> None:
        self.known: list[Any] = []
        self.tested = 0  # how many of them `parametrize` has made tests of

    def __call__(self, make: Any = None, **expected: Any) -> Any:
        if make is None:
            return lambda inner: self(inner, **expected)
        assert expected, f"{make.__name__}: {STATE_IT}"
        self.known.append(pytest.param(make, expected, id=make.__name__))
        return make

    @property
    def parametrize(self) -> Any:
        self.tested = len(self.known)
        return pytest.mark.parametrize(("make", "expected"), self.known)


def X(*shape: int, grad: bool = False) -> torch.Tensor:
    """A reproducible input; [-1, 2] in steps where no shape is given."""
    if not shape:
        return torch.tensor([-1.0, 0.5, 2.0], requires_grad=grad)
    return torch.randn(*shape).requires_grad_(grad)


def calls(count: int = 6) -> list[Call]:
    """Calls with other values each."""
    return [call(k * X()) for k in range(1, count + 1)]


def opaque(trace: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`lazytrace.opaque`, of a function that the traced twin calls; the plain one calls it as it is."""
    made = lazytrace.opaque(fn) if trace.enabled else fn
    trace.opaque.append(made)
    return made


class Holder:
    """An object of a class of the user's, with these attributes."""

    def __init__(self, **state: Any) -> None:
        self.__dict__.update(state)
