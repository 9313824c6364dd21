"""Classes and functions that bear the names of others: of torch, of the standard library, of C."""

import collections
import copy
import copyreg
import functools
import io
import logging
import random
from contextlib import redirect_stdout
from unittest import mock

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.soundness.runner import Cases, call, check

cases = Cases()


class Place:
    """State of the functions below."""

    def __init__(self):
        self.scale = 1.0
        self.seen = []


def noting(place, function):
    """Does the same, and notes that; it has the names of the function, as decorators give them."""

    @functools.wraps(function)
    def noted(*args, **kwargs):
        place.seen.append(1)
        return function(*args, **kwargs)

    return noted


# ---------------------------------------------------------------- custom functions of autograd
def claims(module, place, turns=False):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if turns:
                place.seen.append(place.scale)
            return x * place.scale

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    Scaled.__module__ = module
    return Scaled


def function_of(module, turns=False):
    def make(trace):
        place = Place()
        scaled = claims(module, place, turns)

        def run(x):
            place.scale = 5.0
            y = scaled.apply(x)
            place.scale = 1.0
            return y, len(place.seen)

        return trace(run), [call(torch.ones(2) * i) for i in range(5)], lambda: vars(place)

    return make


CLAIMED = ["torch.nn.modules.mine", "torch.distributions.mine", "torch.autograd._functions.mine", "mine"]


@pytest.mark.parametrize("module", CLAIMED)
def test_a_function_that_says_it_is_of_torch(module):
    check(function_of(module), hits=4)


@pytest.mark.parametrize("module", CLAIMED[:1])
def test_one_that_writes_says_it_is_of_torch(module):
    check(function_of(module, turns=True), eager="reads-touched")


@cases(hits=4)
def functions_of_torch_after_writes(trace):
    place = Place()

    def run(x):
        place.scale = [5.0]  # a list that the call has made: shown to no code of the user's
        y = torch.distributions.Dirichlet(x + 1).rsample()
        place.scale = 1.0
        return y

    return trace(run), [call(torch.ones(2) * i) for i in range(5)], lambda: place.scale


# ---------------------------------------------------------------- classes with the names of C's
NAMES = [
    *("functools.partial", "operator.itemgetter", "operator.methodcaller", "torch.Stranger"),
    *("torch._C.Stranger", "types.UnionType", "_thread.RLock", "itertools.chain", "re.Match"),
    *("numpy.ufunc", "collections.deque", "_io.StringIO"),
]


def called_by_name(name):
    def make(trace):
        place = Place()

        def use(self, x):
            return self.func(x) * place.scale

        stranger = type(name, (), {"__call__": use})()
        stranger.func, stranger.args, stranger.keywords = (lambda x: x + 1), (), {}

        def run(x):
            return stranger(x), list(map(stranger, [x, x]))

        def turn():
            stranger.func = lambda x: x - 1

        x = torch.ones(2)
        steps = [call(x), call(x), lambda: vars(place).update(scale=3.0), call(x), call(x), turn, call(x)]
        return trace(run), steps, lambda: None

    return make


@pytest.mark.parametrize("name", NAMES)
def test_a_class_with_the_name_of_one_of_c(name):
    check(called_by_name(name), hits=2)


# ---------------------------------------------------------------- what prints and logs
def logger_of(place):
    logger = logging.Logger("mine")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.handlers[0].setFormatter(logging.Formatter("%(message)s"))
    return logger


LOGGING = [
    *((logging.StreamHandler, name) for name in ("emit", "format", "flush")),
    *((logging.Handler, name) for name in ("handle", "acquire", "release")),
    *((logging.Filterer, "filter"), (logging.LogRecord, "__init__"), (logging.LogRecord, "getMessage")),
    *((logging.Logger, name) for name in ("handle", "makeRecord", "callHandlers", "findCaller")),
    *((logging.Formatter, name) for name in ("format", "usesTime", "formatMessage")),
    *((logging.PercentStyle, name) for name in ("format", "_format", "usesTime")),
    (logging, "getLevelName"),
]


def replaced(owner, name, run_of, early):
    """Replaced from the first call on, or at a later one."""

    def make(trace):
        place = Place()
        run = trace(run_of(place))
        patched = mock.patch.object(owner, name, noting(place, getattr(owner, name)))

        def step(x):
            # The class has the method of a base back afterwards, not one of its own.
            own = name in vars(owner)
            with patched:
                found = run(x)
            if not own and name in vars(owner):
                delattr(owner, name)
            return found

        usual, other = (step, step) if early else (run, step)
        x = torch.ones(2)
        return run, [*[lambda: usual(x)] * 3, *[lambda: other(x)] * 3, lambda: run(x)], lambda: place.seen

    return make


def logs(place):
    logger = logger_of(place)

    def run(x):
        before = len(place.seen)
        logger.warning("a %s", 3)
        return x * (len(place.seen) - before)

    return run


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("owner", "name"), LOGGING)
def test_a_method_of_logging_that_is_replaced(owner, name, early):
    check(replaced(owner, name, logs, early), hits=0 if early else 2, eager="reads-touched")


def prints(value):
    def of(place):
        def run(x):
            before = len(place.seen)
            print(value)
            return x * (len(place.seen) - before)

        return run

    return of


PRINTED = [
    (torch.Tensor, "__repr__", torch.ones(1), "print"),
    (torch.Tensor, "__format__", torch.ones(1), "print"),
    (torch.nn.Linear, "extra_repr", torch.nn.Linear(1, 1), "reads-touched"),
]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("owner", "name", "value", "reason"), PRINTED)
def test_what_writes_a_text_is_replaced(owner, name, value, reason, early):
    with redirect_stdout(io.StringIO()):
        check(replaced(owner, name, prints(value), early), hits=0 if early else 2, eager=reason)


def claims_to_be_of_the_library(trace):
    place = Place()

    def text(self):
        place.seen.append(1)
        return "mine"

    value = type("OrderedDict", (), {"__module__": "collections", "__repr__": text})()
    run = prints(value)(place)
    return trace(run), [call(torch.ones(2))] * 4, lambda: place.seen


def test_a_class_that_says_it_is_of_the_library_is_printed():
    assert collections.OrderedDict.__module__ == "collections"
    with redirect_stdout(io.StringIO()):
        check(claims_to_be_of_the_library, hits=2)


# ---------------------------------------------------------------- what a `with` block ends with
@cases(hits=4)
def manager_that_says_it_is_of_torch(trace):
    place = Place()

    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, kind, *rest):
            place.last = kind is not None
            return True

    Manager.__module__ = "torch.mine"
    manager = Manager()

    def run(x):
        place.last = None
        with manager:
            y = x * 2
            if y.sum() > 4:
                raise ValueError("more")
            y = y + 1
        return y, place.last

    return trace(run), [call(torch.ones(1) * (i % 4)) for i in range(12)], lambda: vars(place)


# ---------------------------------------------------------------- what torch calls for itself
def asked_while_an_optimizer_steps(trace):
    place = Place()
    net = torch.nn.Linear(2, 2)
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    patched = mock.patch.object(torch.compiler, "is_compiling", noting(place, torch.compiler.is_compiling))

    def run(x):
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    step = trace(run)

    def replaced_step():
        with patched:
            found = step(torch.ones(2))
        # The function asks before each call whether something else traces it.
        return found, len(place.seen) > 0

    return step, [call(torch.ones(2))] * 4 + [replaced_step] * 3, lambda: list(net.parameters())


def test_what_torch_asks_while_an_optimizer_steps():
    check(asked_while_an_optimizer_steps, hits=1, eager="in-bookkeeping")


def replaced_behind_a_recording(owner, name, run):
    """What a library calls for itself: the wrapper writes what the function reads."""

    def make(trace):
        place, original = Place(), getattr(owner, name)

        def noting_each(*args, **kwargs):
            place.count += 1
            return original(*args, **kwargs)

        place.count = 0
        fn, state = run(trace, place)

        def replaced():
            with mock.patch.object(owner, name, noting_each):
                return fn(torch.ones(2)), place.count

        steps = [call(torch.ones(2))] * 3 + [replaced] * 3 + [call(torch.ones(2))] * 2
        return fn, steps, lambda: [place.count, *state]

    return make


def trains(trace, place):
    net = torch.nn.Linear(2, 2)
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)

    @trace
    def run(x):
        opt.zero_grad()
        loss = net(x).sum()
        loss.backward()
        opt.step()
        return loss.detach() * (place.count + 1)

    return run, list(net.parameters())


def seeds(trace, place):
    @trace
    def run(x):
        return x * random.Random(3).random() * (place.count + 1)

    return run, []


class Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def saves(trace, place):
    w = torch.ones(2, requires_grad=True)

    @trace
    def run(x):
        (gradient,) = torch.autograd.grad(Saves.apply(w * x).sum(), w)
        return gradient * (place.count + 1)

    return run, [w]


def copies(trace, place):
    @trace
    def run(x):
        return copy.deepcopy({"x": x})["x"] * (place.count + 1)

    return run, []


def copies_modules(trace, place):
    net = torch.nn.Linear(2, 2)

    @trace
    def run(x):
        return copy.deepcopy(net)(x) * (place.count + 1)

    return run, []


def checkpoints(trace, place):
    net, w = torch.nn.Linear(2, 2), torch.ones(2, requires_grad=True)

    @trace
    def run(x):
        y = checkpoint(net, x * w, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sum(), w)
        return gradient * (place.count + 1)

    # From the fourth call on the kernels of the block stand for it.
    for _ in range(4):
        run(torch.ones(2))
    return run, [w]


@pytest.mark.parametrize(
    ("owner", "name", "run", "expected"),
    [
        (torch, "get_rng_state", checkpoints, {"hits": 5}),
        (torch.enable_grad, "__enter__", checkpoints, {"hits": 5}),
        (copyreg, "__newobj__", copies_modules, {"hits": 5, "recordings": 3}),
        (torch.no_grad, "__enter__", copies, {"hits": 2, "eager": "calls-unseen-function"}),
        (torch.autograd.function.FunctionCtx, "save_for_backward", saves, {"hits": 6, "recordings": 2}),
        (torch.accelerator, "current_accelerator", trains, {"hits": 1, "eager": "in-bookkeeping"}),
        (logging.Logger, "getEffectiveLevel", trains, {"hits": 1, "eager": "in-bookkeeping"}),
        (random.Random, "__init__", seeds, {"hits": 2, "eager": "makes-unseen"}),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_what_a_library_calls_for_itself_is_replaced(owner, name, run, expected):
    check(replaced_behind_a_recording(owner, name, run), **expected)


@cases.parametrize
def test_names(make, expected):
    check(make, **expected)
