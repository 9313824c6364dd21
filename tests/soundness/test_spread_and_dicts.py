"""What C code asks of values behind `**`, and the namespaces of tensors as objects."""

from __future__ import annotations

import operator
import types

import torch
from torch import nn

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def changed(trace, template, change, **row):
    text = template.format
    body = trace(lambda x: (x * 2, text(**row)))
    return body, [call(X()), call(X()), lambda: change(row), call(X()), call(X())]


@cases(eager="formats a text that asks an object for its attributes")
def an_attribute_of_what_is_spread(trace):
    return changed(
        trace, "{o.name}", lambda row: setattr(row["o"], "name", "b"), o=types.SimpleNamespace(name="a")
    )


@cases(eager="formats a text that asks an object for its attributes")
def an_item_of_what_is_spread(trace):
    return changed(trace, "{o[0]}", lambda row: row["o"].append(row["o"].pop() + 1), o=[1])


@cases(eager="formats a text that asks an object for its attributes")
def a_width_of_what_is_spread(trace):
    shape = types.SimpleNamespace(width=3)
    return changed(trace, "{n:{o.width}}", lambda row: setattr(row["o"], "width", 5), n=1, o=shape)


@cases(eager="formats a text that asks an object for its attributes")
def a_module_that_is_spread(trace):
    return changed(trace, "{net.training}", lambda row: row["net"].eval(), net=nn.Linear(1, 1))


@cases(hits=2)
def texts_that_are_spread(trace):
    return changed(trace, "{a}-{b:.1f}", lambda row: None, a="x", b=1.0)


@cases(eager="formats a text that asks an object for its attributes")
def by_the_operator_that_calls(trace):
    row = {"o": types.SimpleNamespace(name="a")}
    body = trace(lambda x: (x * 2, str.format("{o.name}", **row)))
    return body, [call(X()), call(X()), lambda: setattr(row["o"], "name", "b"), call(X())]


def of_a_tensor(trace, body):
    weight = torch.ones(2)
    weight.tag = 1
    kept = types.SimpleNamespace(meta=None)

    def change():
        weight.tag = 2

    steps = [call(X(), weight, kept), call(X(), weight, kept), change, call(X(), weight, kept)]
    return trace(body), steps, lambda: (vars(weight), kept.meta is weight.__dict__)


@cases(eager="reads .__dict__ of a tensor")
def a_namespace_that_is_stored(trace):
    def body(x, weight, kept):
        kept.meta = weight.__dict__
        return x + 1

    return of_a_tensor(trace, body)


@cases(eager="reads .__dict__ of a tensor")
def a_namespace_that_is_given_back(trace):
    return of_a_tensor(trace, lambda x, weight, kept: (x * 2, weight.__dict__))


@cases(eager="reads .__dict__ of a tensor")
def a_namespace_by_its_getter(trace):
    get = operator.attrgetter("__dict__")
    return of_a_tensor(trace, lambda x, weight, kept: (x * 2, get(weight)["tag"]))


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)
