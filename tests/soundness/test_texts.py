"""Texts that are made of followed numbers: where they go, who looks at them, and what is printed."""

from __future__ import annotations

import builtins
import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import io
import itertools
import json  # noqa: F401 (the texts below name it)
import math
import operator
import os  # noqa: F401 (the texts below name it)
import pickle
import re  # noqa: F401 (the texts below name it)
import string  # noqa: F401 (the texts below name it)
import sys
import types
import typing
import weakref
from collections import deque

import pytest
import torch

from lazytrace import traced
from tests.soundness.runner import Cases, agree, call, check
from tests.soundness.test_numbers import FLOATS, ODD, WHOLE, over

cases = Cases()


class Raises:
    def __str__(self):
        raise ValueError("has no text")


class Box:
    def __init__(self, value):
        self.value = value

    def __str__(self):
        return f"Box({self.value})"

    def __repr__(self):
        return f"<{self.value:.1f}>"

    def __format__(self, spec):
        return f"F{self.value:.2f}{spec}"


@dataclasses.dataclass(frozen=True)
class Frozen:
    text: str


def shown(n):
    return f"shown {n:.2f}"


def of_text(text):
    """`x` is a tensor, `n` the number that another tensor, `t`, holds."""
    return eval(f"lambda x, t: (lambda n: ({text}, x * n))(t.item())", globals())


# Made anew by each replay: one recording serves all values.
FOLLOWED = [
    "f'{n}'",
    "f'{n!r} {n!s:>12} {n!a}'",
    "f'{n:.3f}|{n:+10.2e}|{n:%}|{n:g}|{n:,}|{n:_.2f}'",
    "f'{n=} {n=:.2f}'",
    "f'{t:.3f} {t}'",
    "f'{x.sum():.3f}'",
    'f\'{f"{n:.2f}":>10} {f"{n}"}\'',
    "f'{[n, n]} {(n,)}'",
    "f'{n + 1} {n * x.shape[0]}'",
    "'%.3f and %s' % (n, n)",
    "'%8.3f%%' % n",
    "'%r %a %-12g|' % (n, n, n)",
    "'%s %s' % (f'{n}', n)",
    "'{} {:.2f}'.format(n, n)",
    "'{0:.1f} {0!r:>8}'.format(n)",
    "'{a} {b:.2f}'.format(a=n, b=n)",
    "(str(n), repr(n), ascii(n), format(n, '.3e'), format(n))",
    "str([n, {'a': (n, None, True)}])",
    "', '.join([f'{n:.1f}', 'b', str(n)])",
    "', '.join((f'{n:.1f}', 'b', str(n)))",
    "', '.join(f'{v:.2f}' for v in (n, n))",
    "', '.join(f'{k}: {v:.2f}' for k, v in {'a': n, 'b': n + 1}.items())",
    "'a' + f'{n}' + 'b' + f'{n + 1}'",
    "(f'{n}', [f'{n:.1f}'], {'k': f'{n}'})",
    "[f'{k}: {v:.2f}' for k, v in {'a': n}.items()]",
    "isinstance(f'{n}', str)",
    "str(f'{n}')",
    "shown(n) + '!'",
    "Box(f'{n}').value",
    "dict(a=f'{n}')",
    "(lambda a, *b: (a, b))(*[f'{n}', f'{n}'])",
    "next(iter([f'{n}']))",
    "json.dumps({'a': n, 'b': [n, f'{n}', None, True], 'c': {'d': (n,)}})",
    "(json.dumps(n), json.dumps([n, [x.shape[0], n]]))",
    "json.dumps({'b': n, 'a': f'{n}'}, sort_keys=True)",
    "json.dumps([n], separators=(',', ':'))",
    "list(zip([f'{n}'], [1]))",
    "'%.3f' % t",
    "'%d%% %8.2e %g %s' % (3, t, t, n)",
    "'{:.3f} {} {a:>12}'.format(t, t, a=t)",
    "'{0:.1f} {b}'.format(t, b=n)",
    "str.format('{:.3f}', t)",
]
# The characters are looked at: each takes a way of its own, and one that comes again hits.
READ = [
    "len(f'{n}')",
    "f'{n}'.upper()",
    "(f'{n}' == '0.5', '0.5' == f'{n}', f'{n}' != f'{n + 1}', f'{n}' is None)",
    "(f'{n}'[0], f'{n}'[-2:])",
    "('5' in f'{n}', f'{n}' in '0.5 3.0', f'{n}' in ['0.5'], f'{n}' in {'0.5'})",
    "1 if f'{n:.0f}' else 2",
    "not f'{n}'",
    "f'{n}' and 'yes'",
    "'a' if f'{n}' > '1' else 'b'",
    "{f'{n}': 1}",
    "{'0.5': 7}.get(f'{n}', 8)",
    "f'{n}'.split('.')",
    "sorted([f'{n}', '1', f'{n + 1}'])",
    "float(f'{n}')",
    "int(f'{n:.0f}')",
    "' '.join(map(str, (n, n)))",
    "' '.join(map(lambda v: f'{v}', (n, n)))",
    "list(f'{v}' for v in (n, n))",
    "tuple(map(lambda v: f'{v}', (n, n)))",
    "(type(f'{n}').__name__, f'{n}'.__class__.__name__)",
    "hash(f'{n}') == hash(str(n))",
    "(list(f'{n}'), [*f'{n}'])",
    "(max(f'{n}', '1'), min([f'{n}', '1']))",
    "f'{n:>{abs(int(n)) % 9 + 3}}'",
    "'%(a).2f' % {'a': n}",
    "'%*.2f' % (10, n)",
    "'{:{}}'.format(n, 10)",
    "re.sub('5', 'x', f'{n}')",
    "f'{n}' * 2",
    "f'{n}'.encode()",
    "(str(Box(n)), repr(Box(n)), f'{Box(n)}', f'{Box(n)!r}', '%s' % Box(n), str([Box(n)]))",
    "sum([ord(c) for c in f'{n}'])",
    "''.join(reversed(f'{n}'))",
    "string.Template('$a').substitute(a=f'{n}')",
    "operator.add(f'{n}', 'b')",
    "str(n).rjust(12)",
    "f'{n:n}'",
    "b'%f' % n",
    "f'{n}'.join(['a', 'b'])",
    "f'{n}%s' % 'a'",
    "str(ValueError(f'{n}'))",
    "str.__add__('a', f'{n}')",
    "f'{complex(n, 1)}'",
    "dict([(f'{n}', 1)])",
    "functools_of(f'{n}')",
    "'%(a).2f' % {'a': t}",
    "'{:.2f}'.format(t.clone().detach())",
]
# It goes to code that no recording sees into.
REFUSED = [
    "json.dumps([n, Box(1)], default=str)",
    "json.dumps([n], cls=json.JSONEncoder)",
    "pickle.loads(pickle.dumps(f'{n}'))",
    "os.path.join('a', f'{n}')",
    "eval(f'{n}')",
    "io.StringIO(f'{n}').read()",
]


def functools_of(text):
    return types.SimpleNamespace(value=text).value.title()


@pytest.mark.parametrize("text", FOLLOWED)
def test_followed(text):
    check(over(of_text(text), FLOATS), hits=13, recordings=1)
    check(over(of_text(text), ODD), hits=10)
    check(over(of_text(text), FLOATS, torch.float32), hits=13, recordings=1)


@pytest.mark.parametrize("text", ["f'{n} {n:5d} {n:x}'", "'%d %5s %x' % (n, n, n)", "str(n) + f'{n:03d}'"])
def test_whole_numbers(text):
    check(over(of_text(text), WHOLE, torch.int64), hits=13, recordings=1)


@pytest.mark.parametrize(
    "text",
    [
        "'%s' % t",
        "'%r %.2f' % (t, t)",
        "'{!r}'.format(t)",
        "'{0!s} {0:.2f}'.format(t)",
        "'{0.dtype}'.format(t)",
        "'%d' % t",
        "'%c' % t",
        "'%.3f %d' % (t, t)",
        "'%.2f' % t.new_ones(2)",
        "'%.2f' % t.new_ones(1)",
        "'%.2f' % (t, t)",
        "'%.2f %.2f' % t",
        "'%q' % t",
        "'{:d}'.format(t)",
        "'{:.2f}'.format(t.new_ones(1))",
        "'{:.2f} {}'.format(t)",
        "'{:zz}'.format(t)",
        "'{.item}'.format(t)[:9]",
    ],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_tensors_that_are_written_in_other_ways(text, kind):
    run = eval(f"lambda x, t: _or(lambda: {text})", {"_or": _or_its_error})
    agree(over(run, (1, 2, 1, 3, 0, 1), kind))


def _or_its_error(make):
    try:
        return make()
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore")
@cases(hits=4)
def loss_that_is_printed_in_a_step_of_training(trace):
    weight, seen = torch.ones(3, requires_grad=True), []

    def run(x):
        loss = (weight * x).square().sum()
        loss.backward()
        seen.append("loss %.4f" % loss)  # noqa: UP031 (this is what is tried)
        seen.append("loss {:.4f}".format(loss))  # noqa: UP032
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.01)
        weight.grad = None

    return (
        trace(run),
        [call(torch.full((3,), 0.25 * i)) for i in range(6)],
        lambda: [weight.detach().clone(), *seen],
    )


@cases(hits=3)
def classes_that_write_themselves(trace):
    """Methods that are put in place of torch's own."""
    plain = torch.Tensor.__format__, torch.Tensor.__float__

    def put(text, number):
        torch.Tensor.__format__, torch.Tensor.__float__ = text, number

    def run(x):
        return "%.2f" % x.sum(), "{:.2f}".format(x.sum())  # noqa: UP031, UP032

    steps = [call(torch.full((2,), float(i))) for i in (1, 2, 3)]
    changes = [lambda: put(lambda self, spec: "text", lambda self: 7.0), *steps, lambda: put(*plain)]
    return trace(run), [*steps, *changes, *steps]


@pytest.mark.parametrize("text", READ)
def test_read(text):
    check(over(of_text(text), FLOATS), hits=2)


@pytest.mark.parametrize(
    "text", ["'%d' % n", "'%x' % int(n)", "'%d of %s' % (n, n)", "'%5d%% %i %u' % (n, int(n), n)"]
)
def test_whole_numbers_of_floats(text):
    check(over(of_text(text), FLOATS), hits=13, recordings=1)
    agree(over(of_text(f"_or_its_error(lambda: {text})"), (*ODD, 1e19, 1e30)))
    with pytest.raises((ValueError, OverflowError)):
        of_text(text)(torch.ones(2), torch.tensor(math.nan))


@pytest.mark.parametrize("text", ["'%s %d' % (Raises(), n)", "'%d %d' % ('a', n)", "'%d %s' % (n, [n])"])
def test_what_raises_before_a_whole_number(text):
    agree(over(of_text(f"_or_its_error(lambda: {text})"), ODD))


@pytest.mark.parametrize("text", ["f'{n:c}'", "'%c' % n", "'{:c}'.format(n)"])
def test_characters(text):
    check(over(of_text(text), (65, 66, 65, 67, 65, 66, 65), torch.int64), hits=2)


@pytest.mark.parametrize("text", [*FOLLOWED, *READ])
def test_other_options(text):
    check(over(of_text(text), FLOATS, dynamic=True), hits=2)
    check(over(of_text(text), FLOATS, dynamic=False), hits=2)
    agree(over(of_text(text), (True, False, True, False), torch.bool))


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    plain, function = of_text(text), traced(of_text(text))
    for value in FLOATS:
        args = torch.ones(2), torch.tensor(value)
        assert function(*args)[0] == plain(*args)[0]
    assert function.stats().eager


def test_a_result_is_a_plain_str():
    @traced
    def run(t):
        return f"{t.item()}"

    for value in (0.5, 1.5, 2.5):
        result = run(torch.tensor(value))
        assert type(result) is str
        assert {result: 1}[str(value)] == 1
        assert "".join([result, "a"]) == f"{value}a"
        assert sys.intern(result) == str(value)
        assert pickle.loads(pickle.dumps(result)) == result
    assert run.stats().hits == 2


def values(*numbers):
    return [call(torch.tensor(value)) for value in numbers]


SOME = (0.5, 1.5, 2.5, -1.5, 0.25, 3.0, 0.5, -2.0)


# ---------------------------------------------------------------- kept in state
@cases(hits=7)
def appended(trace):
    logs = []

    def run(t):
        logs.append(f"{t.item():.2f}")
        return t * 2

    return trace(run), values(*SOME), lambda: logs


@cases(hits=7)
def in_records(trace):
    logs, recent = [], deque(maxlen=3)

    def run(t):
        text = f"{t.item():.2f}"
        logs.append({"text": text, "all": [text, (text, t.item())]})
        recent.append(text)
        return text

    return trace(run), values(*SOME), lambda: (logs, list(recent))


@cases(hits=7)
def in_an_attribute_and_a_dict(trace):
    state = types.SimpleNamespace(last="")
    table = {}

    def run(t):
        state.last = f"{t.item()}"
        table["last"] = "is " + state.last
        return t + 1

    return trace(run), values(*SOME), lambda: (state.last, table)


@cases(hits=2)
def read_again_at_the_next_call(trace):
    state = types.SimpleNamespace(last="")

    def run(t):
        before, state.last = state.last, f"{t.item()}"
        return before, t + len(before)

    return trace(run), values(1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0), lambda: state.last


@cases(hits=2)
def read_behind_the_write(trace):
    logs = []

    def run(t):
        logs.append(f"{t.item()}")
        last = logs[-1]
        logs.clear()
        return last, t + len(last)

    return trace(run), values(1.0, 2.0, 1.0, 2.0, 1.0, 2.0), lambda: logs


@cases(hits=5)
def with_the_parameters(trace):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    logs = []

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        logs.append(f"loss {loss.item():.4f} norm {norm:.3f} lr {optimizer.param_groups[0]['lr']:.1e}")
        return loss.detach()

    steps = [call(torch.randn(3, 2)) for _ in range(8)]
    return trace(step), steps, lambda: (logs, [*model.parameters()])


# ---------------------------------------------------------------- exits
@cases(hits=4)
def made_before_a_branch(trace):
    logs = []

    def run(t):
        text = f"{t.item():.1f}"
        y = t.square()
        if y.sum().item() > 2:
            y = y - 1
            text = text + " large"
        logs.append(text)
        return y

    return trace(run), values(*SOME, *SOME), lambda: logs


@cases(hits=4)
def looked_at_behind_a_write(trace):
    logs = []

    def run(t):
        t.add_(1)
        text = f"{t.item():.0f}"
        logs.append(text)
        return t * 2 if text == "2" else t * 3

    return trace(run), [step for v in (1.0, 2.0) * 6 for step in values(v)], lambda: logs


@cases(hits=3)
def raised(trace):
    def run(t):
        if t.item() > 1:
            raise ValueError(f"{t.item():.1f} is too much")
        return f"{t.item():.1f}"

    return trace(run), values(*SOME)


@cases(hits=3)
def caught(trace):
    def run(t):
        text = f"{t.item():.1f}"
        try:
            if t.item() > 1:
                raise ValueError(text)
        except ValueError as error:
            return "caught " + str(error)
        return text

    return trace(run), values(*SOME, *SOME)


@cases(hits=6)
def a_format_that_raises(trace):
    def run(t):
        try:
            return f"{t.item():zz}"
        except ValueError as error:
            return str(error)

    return trace(run), values(*(1.0,) * 8)


# ---------------------------------------------------------------- through Python
@cases(hits=7)
def through_a_class_and_a_closure(trace):
    class Meter:
        def __init__(self):
            self.lines = []

        def log(self, **numbers):
            line = " ".join(f"{name}={number:.2f}" for name, number in numbers.items())
            self.lines.append(line)
            return line

    meter = Meter()

    def run(t):
        line = None

        def note():
            nonlocal line
            line = meter.log(loss=t.item(), twice=t.item() * 2)

        note()
        return line

    return trace(run), values(*SOME), lambda: meter.lines


@cases(hits=2)
def a_str_method_of_a_meter(trace):
    class Meter:
        def __init__(self):
            self.value = 0.0

        def __str__(self):
            return f"{self.value:.2f}"

    meter = Meter()

    def run(t):
        meter.value = t.item()
        return f"{meter} {meter!s}"

    return trace(run), values(1.0, 2.0, 1.0, 2.0, 1.0, 2.0), lambda: meter.value


@cases(hits=4)
def numbers_in_state(trace):
    state = types.SimpleNamespace(step=0)
    logs = []

    def run(t):
        state.step += 1
        logs.append(f"step {state.step}: {t.item() / state.step:.3f}")
        return t

    return trace(run), values(*SOME), lambda: (state.step, logs)


# ---------------------------------------------------------------- who comes to a text
class Holder:
    """An object that C code is handed, and is led on by."""

    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return self.value < other.value

    def __len__(self):
        return len(self.value)


def by_attribute(text):
    return operator.attrgetter("value")(Holder(text)).title()


def by_a_key_function(text):
    return [one.value for one in sorted([Holder(text), Holder("1")], key=operator.attrgetter("value"))]


def by_its_methods(text):
    return [one.value for one in sorted([Holder(text), Holder("1")])], list(map(len, [Holder(text)]))


def by_a_copy(text):
    return copy.copy(Holder(text)).value, copy.deepcopy([Holder(text)])[0].value


def by_its_namespace(text):
    holder = Holder(text)
    return sorted(vars(holder).values()), sorted(holder.__dict__.items())


def by_a_closure(text):
    def added(end):
        return text + end

    return list(map(added, ["!"]))


def by_a_default(text):
    def given(number, value=text):
        return value * number

    return list(map(given, [1, 2]))


def by_a_partial(text):
    return list(map(functools.partial(operator.add, text), ["a"]))


def by_a_generator(text):
    waiting = (value for value in [text, "a"])
    return sorted(waiting)


def by_a_method(text):
    return list(map(Holder(text).__len__, [])), sum(map(Holder.__len__, [Holder(text)]))


def by_a_view(text):
    names = {"a": text, text: "b"}
    return sorted(names.values()), max(names.keys()), sorted(names.items())


def by_locals(text):
    return sorted(locals().values()), len(locals()["text"])


def by_a_frame(text):
    return sys._getframe().f_locals["text"].title()


def by_an_error(text):
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__.tb_frame.f_locals["text"].title()


def by_its_arguments(text):
    return list(map(str, ValueError(text, 1).args)), str(ValueError(text))


def by_eval(text):
    return eval("text.title()")


def by_referents(text):
    return [one for one in gc.get_referents([text]) if isinstance(one, str)]


WAYS = [value for name, value in list(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
@pytest.mark.parametrize("beside", [False, True])
def test_ways_to_a_text(way, beside):
    """In a variable and in an object, and in a variable alone, while C code is handed objects."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

    def run(x, t):
        text = f"{t.item():.2f}"
        found = way(text)
        count = sum(p.numel() for p in net.parameters())
        return (x * 2, found, text, count) if beside else (x * 2, found, count)

    agree(over(run, FLOATS))
    agree(over(run, FLOATS, dynamic=True))


@cases(hits=7)
def beside_what_torch_does_with_modules(trace):
    """Texts in variables are in no object."""
    net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Dropout(), torch.nn.Linear(2, 1))
    mean = torch.optim.swa_utils.AveragedModel(net)

    def run(t):
        text = f"{t.item():.2f}"
        net.train()
        net(t.view(1, 1)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        net.zero_grad()
        with torch.no_grad():
            for a, b in zip(mean.module.parameters(), net.parameters(), strict=True):
                a.lerp_(b, 0.1)
        return text, [name for name, _ in net.named_modules()], norm

    return trace(run), values(*SOME), lambda: list(mean.module.parameters())


# ---------------------------------------------------------------- functools caches
@functools.lru_cache
def cached(*keys):
    return len(keys)


class Key:
    """A key of a cache, that holds a text."""

    text = ""

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return self.text == other.text


@cases(hits=7)
def while_a_cache_is_asked(trace):
    plain = object()
    cached(plain)
    _ = typing.Literal["a", "b"]  # typing keeps what it has made in such a cache

    def run(t):
        text = f"{t.item():.2f}"
        return text, cached(plain), typing.Literal["a", "b"] is None

    return trace(run), values(*SOME)


@cases(hits=1, recordings=7)
def as_the_key_of_a_cache(trace):
    for v in SOME:
        cached(f"{v:.2f}")
        cached((f"{v:.2f}", "a"))

    def run(t):
        return cached(f"{t.item():.2f}"), cached((f"{t.item():.2f}", "a"))

    return trace(run), values(*SOME)


@cases(eager="calls a function with a functools cache, with a key whose hash is Python code")
def behind_the_key_of_a_cache(trace):
    key = Key()

    def run(t):
        key.text = f"{t.item():.2f}"
        return cached(key, key)

    return trace(run), values(*SOME)


@cases(hits=6)
def while_views_of_dicts_are_chained(trace):
    """As an optimizer does with its hooks."""
    names = {"a": 1, "b": 2}

    def run(t):
        text = f"{t.item():.2f}"
        return text, list(itertools.chain(names.values(), names.keys(), names.items()))

    return trace(run), values(*SOME)


@cases(hits=1, recordings=7)
def in_a_dict_whose_views_are_chained(trace):
    def run(t):
        names = {"a": f"{t.item():.2f}"}
        return [len(name) for name in itertools.chain(names.values(), names.keys())]

    return trace(run), values(*SOME)


# ---------------------------------------------------------------- print
@cases(hits=7)
def printed(trace):
    sink = io.StringIO()

    def run(t):
        print("value", t.item(), f"{t.item():.2f}", sep="|", end=";", file=sink, flush=True)
        return t * 2

    return trace(run), values(*SOME), lambda: sink.getvalue()


@cases(hits=7)
def printed_to_stdout(trace):
    out = io.StringIO()

    def run(t):
        y = t * 2
        print("constant")
        print(f"{t.item():.2f}", y)
        return y

    function = trace(run)

    def through(t):
        with contextlib.redirect_stdout(out):
            return function(t)

    return function, [call(torch.tensor(v)).of(through) for v in SOME], lambda: out.getvalue()


@cases(hits=6)
def printed_between_writes(trace):
    logs, sink = [], io.StringIO()
    state = types.SimpleNamespace(n=0)

    def run(t):
        state.n += 1
        logs.append(f"{t.item():.1f}")
        print(state.n, t.item(), file=sink)
        logs.append("printed")
        state.n += 1
        return t + state.n

    return trace(run), values(*SOME), lambda: (logs, sink.getvalue(), state.n)


@cases(hits=9)
def printed_behind_a_list_that_is_capped(trace):
    window, out = [], io.StringIO()

    def run(t):
        window.append(t.item())
        if len(window) > 3:
            window.pop(0)
        print(f"mean {sum(window) / len(window):.3f}")
        return t

    function = trace(run)

    def through(t):
        with contextlib.redirect_stdout(out):
            return function(t)

    return function, [call(torch.tensor(v)).of(through) for v in SOME * 2], lambda: (window, out.getvalue())


@cases(hits=5)
def printed_in_a_step(trace):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sink = io.StringIO()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        print("before", loss, file=sink)
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.4f}", model.weight, model.weight.grad, file=sink)
        return loss.detach()

    steps = [call(torch.randn(3, 2)) for _ in range(8)]
    return trace(step), steps, lambda: (sink.getvalue(), [*model.parameters()])


@cases(hits=4)
def printed_in_one_branch(trace):
    sink = io.StringIO()

    def run(t):
        if t.item() > 1:
            print("large", t.item(), file=sink)
        return t + 1

    return trace(run), values(*SOME, *SOME), lambda: sink.getvalue()


@cases(hits=4)
def printed_before_a_branch(trace):
    sink = io.StringIO()

    def run(t):
        print("value", t.item(), file=sink)
        return t + 1 if t.item() > 1 else t - 1

    return trace(run), values(*SOME, *SOME), lambda: sink.getvalue()


# Code of the user's may change what the function reads.
@cases(eager="calls print()")
def a_file_that_changes_what_the_function_reads(trace):
    state = types.SimpleNamespace(scale=1.0)

    class Scaling:
        def write(self, text):
            if text.startswith("2"):
                state.scale = 5.0

    file = Scaling()

    def run(t):
        print(t.item(), file=file)
        return t * state.scale

    return trace(run), values(1.0, 1.0, 1.0, 1.0, 2.0, 1.0, 2.0, 1.0), lambda: state.scale


@cases(eager="calls print()")
def a_file_that_raises(trace):
    class Full:
        def __init__(self):
            self.count = 0

        def write(self, text):
            self.count += 1
            if "2.5" in text:
                raise OSError("no space")

    file, logs = Full(), []

    def run(t):
        logs.append("before")
        print(t.item(), file=file)
        logs.append("after")
        return t

    return trace(run), values(1.0, 1.5, 2.0, 3.0, 2.5, 1.0, 2.5, 1.0), lambda: (file.count, logs)


@cases(hits=6)
def a_file_that_is_closed(trace):
    class Files:
        current = None

    def open_one():
        Files.current = io.StringIO()

    def close_it():
        Files.current.close()

    logs = []
    open_one()

    def run(t):
        logs.append("before")
        try:
            print(t.item(), file=Files.current)
        finally:
            logs.append("after")
        return t

    steps = [*values(*SOME[:4]), close_it, *values(*SOME[:2]), open_one, *values(*SOME[:4])]
    return trace(run), steps, lambda: (logs, Files.current.closed)


@cases(hits=4)
def stdout_of_another_class(trace):
    state = types.SimpleNamespace(count=0)
    seen, files = [], [io.StringIO()]

    class Stream:
        def write(self, text):
            seen.append((state.count, text))

    def run(t):
        state.count += 1
        print(t.item())
        return t * 2

    function = trace(run)

    def through(t):
        with contextlib.redirect_stdout(files[0]):
            return function(t)

    steps = [call(torch.tensor(v)).of(through) for v in SOME]
    return function, [*steps, lambda: files.__setitem__(0, Stream()), *steps], lambda: (seen, state.count)


# What compares, binds or refers to objects by C code looks at no text that these may lead to.
@pytest.mark.parametrize("how", ["modules", "bound", "referred", "moved", "namespace"])
def test_objects_beside_a_text(how):
    def make(trace):
        model, logs = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU()), []
        functions = {
            "modules": lambda: (model.eval().train(), len(list(model.parameters())), model[0] in {model[0]}),
            "bound": lambda: (shown.__get__(2.0)(), types.MethodType(id, model)() == id(model)),
            "referred": lambda: weakref.ref(model)() is model,
            "moved": lambda: collections.OrderedDict({model: 1, None: 2}).move_to_end(model),
            "namespace": lambda: vars(model)["training"],
        }

        def run(t):
            logs.append(f"{t.item():.2f}")
            given = functions[how]()
            return given[1:] if how == "modules" else given

        return trace(run), values(*SOME), lambda: logs

    check(make, hits=7)


# Which texts these look at by their hash is asked.
@pytest.mark.parametrize("how", ["set", "tuple", "alias", "dataclass", "moved"])
def test_a_text_that_is_looked_up(how):
    def make(trace):
        def moved(text, other):
            held = collections.OrderedDict({text: 1, "a": 2})
            held.move_to_end(other)
            return held

        def added(text, other, kind=lambda text: text):
            held = set()
            held.add(kind(text))
            return kind(other) in held

        kinds = {"set": str, "tuple": lambda t: ((t,),), "alias": lambda t: list[t], "dataclass": Frozen}
        look = moved if how == "moved" else functools.partial(added, kind=kinds[how])

        def run(t):
            text = f"{t.item():.1f}"
            try:
                return look(text, "0.5"), text
            except KeyError as error:
                return error.args

        return trace(run), values(*SOME)

    check(make, hits=1, recordings=7)


@cases(hits=7)
def the_class_of_texts_bound_to_an_object(trace):
    def run(t):
        held = []
        text = types.MethodType(str, held)
        held.append(1)
        return text(), types.MethodType(str, Box(t.item()))(), t

    return trace(run), values(*SOME)


@cases(hits=6)
def printed_containers(trace):
    sink = io.StringIO()
    kept = {"a": [1, (2.0, None)], "t": torch.ones(2), "s": {3}}

    def run(t):
        print(kept, t.shape, t.dtype, (t,), sep="\n", file=sink)
        return t

    def change():
        kept["a"].append(len(kept["a"]))
        kept["t"].add_(1)

    return trace(run), [step for v in SOME for step in (*values(v), change)], lambda: sink.getvalue()


# The step of a print() calls the function that print() was, whatever has its name.
@cases(hits=3)
def print_of_builtins_replaced(trace):
    sink, plain = io.StringIO(), builtins.print

    def run(t):
        print(t.item(), file=sink)
        return t

    def change():
        builtins.print = lambda value, file: plain("mine", value, file=file)

    def change_back():
        builtins.print = plain

    steps = [*values(*SOME[:3]), change, *values(*SOME[:4]), change_back, *values(*SOME[:2])]
    return trace(run), steps, lambda: sink.getvalue()


@cases(hits=4)
def another_print(trace):
    space = {"print": print, "sink": io.StringIO()}
    exec("def run(t):\n    print(t.item(), file=sink)\n    return t", space)
    mine = []

    def change():
        space["print"] = lambda *args, **kwargs: mine.append(args)

    return (
        trace(space["run"]),
        [*values(*SOME[:4]), change, *values(*SOME[:4])],
        lambda: (mine, space["sink"].getvalue()),
    )


@cases(recordings=8)
def an_object_whose_text_changes(trace):
    box, sink = Box(1.0), io.StringIO()

    def run(t):
        print(box, [box], file=sink)
        return t

    def change():
        box.value += 1

    steps = [step for v in SOME for step in (*values(v), change)]
    return trace(run), steps, lambda: sink.getvalue()


@cases(eager="hands print() to C code")
def printed_by_c_code(trace):
    out = io.StringIO()

    def run(t):
        list(map(print, ["a", "b"]))
        return t

    function = trace(run)

    def through(t):
        with contextlib.redirect_stdout(out):
            return function(t)

    return function, [call(torch.tensor(v)).of(through) for v in SOME], lambda: out.getvalue()


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)


class Told:
    """Writes where it lies, by a method of its own."""

    def __repr__(self):
        return f"<{super().__repr__()}>"


def error_of(function, value):
    try:
        return function(value)
    except ValueError as error:
        return str(error)


WRITTEN = {
    "by a method of the class": (Told, repr),
    "by the method of objects": (Box, lambda h: object.__repr__(h)),
    "by an error of a list": (type("Plain", (), {}), lambda h: error_of([1.0].index, h)),
    "by an error of a deque": (type("Plain", (), {}), lambda h: error_of(deque([1.0]).index, h)),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_where_an_object_lies(how):
    def make(trace):
        kind, text = WRITTEN[how]
        state = types.SimpleNamespace(held=kind(*[1.0] * (kind is Box)))
        others = [kind(*[1.0] * (kind is Box)), state.held]
        function = trace(lambda x: (x * 2, text(state.held)))

        def tells(x):
            doubled, written = function(x)
            return doubled, f"{id(state.held):x}" in written

        def change():
            state.held = others.pop(0)

        twice = [call(torch.ones(2)).of(tells)] * 2
        return function, [*twice, change, *twice, change, *twice]

    check(make, hits=2)


@pytest.mark.parametrize("name", ["__name__", "__qualname__", "__module__"])
@pytest.mark.parametrize("base", [object, set])
def test_a_class_that_is_renamed(base, name):
    def make(trace):
        kind = type("Shown", (base,), {})
        held = kind()
        function = trace(lambda x: (x * 2, base.__repr__(held)))

        def tells(x):
            doubled, written = function(x)
            return doubled, written.split(" at ")[0]

        twice = [call(torch.ones(2)).of(tells)] * 2
        return function, [*twice, lambda: setattr(kind, name, "other"), *twice]

    check(make, hits=2)


class Rows:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class NoRows:
    def __iter__(self):
        raise TypeError("no rows")


JOINED = {
    "an object": lambda text: Rows([text, text + "x"]),
    "a view": lambda text: {1: text, 2: "x"}.values(),
    "keys": lambda text: {text: 1},
    "an iterator": lambda text: iter((text, "x")),
    "map": lambda text: map(str.upper, [text, "x"]),
    "a text": lambda text: "abc",
    "no rows": lambda text: NoRows(),
    "a number": lambda text: 3,
    "numbers": lambda text: [text, 3],
}


@pytest.mark.parametrize("kind", JOINED)
def test_what_is_joined(kind):
    """C code would take the texts out of it, and each for an object of another class."""

    def make(trace):
        def step(x):
            text = f"{x.sum().item():.1f}"
            return x * 2, ",".join(JOINED[kind](text)), text.join(JOINED[kind](text))

        return trace(step), [call(torch.full((2,), float(k))) for k in range(4)]

    agree(make)


@pytest.mark.parametrize("form", ["{a:.2f}", "{} {a}"])
def test_names_that_are_no_texts(form):
    """`str.format` takes them, and a function of Python, which makes texts in its place, does not."""

    def make(trace):
        table = {"a": 1.5, 1: 2.0}

        def write(x):
            texts = form.format(f"{x.sum().item():.1f}", **table), form.format(x[0].item(), **dict(table))
            return x * 2, texts

        changes = [lambda: table.update(a=2.5), lambda: table.pop(1)]
        calls = [call(torch.full((2,), float(k))) for k in range(3)]
        return trace(write), [*calls, changes[0], *calls, changes[1], *calls]

    agree(make)
