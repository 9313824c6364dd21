"""Named tuples that a call makes, and functions of texts that it hands to `map`."""

from __future__ import annotations

import collections
import types
from collections import namedtuple

import torch
from torch import nn

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()
NS = types.SimpleNamespace


# ---------------------------------------------------------------- named tuples
@cases(hits=2)
def a_named_tuple_made_inside(trace):
    """As the features of a network are given to a loss."""

    def features(x):
        outputs = namedtuple("Outputs", ["low", "high"])
        return outputs(x * 2, x + 1)

    def fn(x):
        out = features(x)
        low, high = out
        return out.low + out[1] - out._replace(low=high).low * low, len(out), out._fields

    return trace(fn), [call(X()), call(3 * X()), call(X())]


@cases(hits=2, recordings=2)
def its_names_are_state(trace):
    state = NS(names="low high")

    def fn(x):
        made = namedtuple("Outputs", state.names)(x * 2, x + 1)
        return made.low, made._fields

    return trace(fn), around(lambda: setattr(state, "names", "high, low"), X())


@cases(hits=2, recordings=2)
def its_names_are_a_list_that_is_written_to(trace):
    names = ["low", "high"]

    def fn(x):
        return namedtuple("Outputs", names)(x * 2, x + 1).low

    return trace(fn), around(names.reverse, X())


@cases(hits=2, recordings=2)
def its_defaults_are_state(trace):
    state = NS(scale=2.0)

    def fn(x):
        made = namedtuple("Outputs", "low scale", defaults=(state.scale,))(x + 1)
        return made.low * made.scale

    return trace(fn), around(lambda: setattr(state, "scale", 3.0), X())


@cases(hits=2)
def names_that_are_mended(trace):
    def fn(x):
        made = collections.namedtuple("Outputs", ["low", "class", "low"], rename=True)(x, x * 2, x * 3)
        return made._1 + made._2, made._fields

    return trace(fn), [call(X()), call(2 * X()), call(X())]


@cases(hits=0, eager="raised")
def names_that_are_none(trace):
    def fn(x):
        return namedtuple("Outputs", "low class")(x, x)

    return trace(fn), [call(X()), call(X())]


@cases(eager="whose class it made")
def one_that_is_returned(trace):
    def fn(x):
        return tuple(namedtuple("Outputs", "low high")(x, x * 2)), namedtuple("Other", "low")(x)

    return trace(fn), [call(X()), call(2 * X())], lambda: None


@cases(eager="whose class it made")
def one_that_is_kept(trace):
    state = NS(kept=None)

    def fn(x):
        state.kept = namedtuple("Outputs", "low high")(x, x * 2)
        return x + 1

    return trace(fn), [call(X()), call(2 * X())], lambda: state.kept and state.kept.high


@cases(eager="calls eval()")
def others_that_evaluate_a_text(trace):
    scale = NS(value=2.0)

    def namedtuple(x):
        return eval("x * scale", {"x": x, "scale": scale.value})

    return trace(namedtuple), around(lambda: setattr(scale, "value", 3.0), X())


# ---------------------------------------------------------------- functions of texts
def training(trace, written):
    """A step that writes a text first; torch puts types together by `|` in a backward pass."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = [1.5, 2.5]

    def fn(x):
        text = written(x, values)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return text, loss.detach()

    steps = [call(X(2, 3)) for _ in range(5)]
    return trace(fn), [*steps, lambda: values.append(0.25), *steps], lambda: list(model.parameters())


@cases(hits=6)
def a_step_that_writes_sizes(trace):
    return training(trace, lambda x, values: "_".join(map(str, x.shape)))


@cases(hits=6)
def a_step_that_formats_floats(trace):
    return training(trace, lambda x, values: ", ".join(map("{:.3f}".format, values)))


@cases(hits=6)
def a_step_that_formats_sizes(trace):
    return training(trace, lambda x, values: [*map("{0:d}/{{{0!r:>4}}}".format, x.shape)])


class Shows:
    """Writes its number."""

    def __init__(self, number):
        self.number = number

    def __format__(self, how):
        return f"<{self.number}>"


@cases(hits=2, recordings=2)
def one_that_formats_itself(trace):
    shows = [Shows(1), Shows(2)]

    def fn(x):
        return x * 2, " ".join(map("{}".format, shows))

    return trace(fn), around(lambda: setattr(shows[1], "number", 5), X())


@cases(eager="hands .format()")
def a_text_that_names_an_attribute(trace):
    shows = [Shows(1), Shows(2)]

    def fn(x):
        return x * 2, " ".join(map("{0.number}".format, shows))

    return trace(fn), around(lambda: setattr(shows[1], "number", 5), X())


@cases.parametrize
def test_named_tuples_made_inside(make, expected):
    check(make, **expected)
