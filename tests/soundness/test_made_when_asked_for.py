"""Parts of objects that Python makes when they are asked for, where things of the call have lain before."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch

from tests.soundness.runner import call, check


class Thing:
    def __init__(self):
        self.a = 1


@contextlib.contextmanager
def managed(value):
    yield value


def with_a_manager(value):
    """Makes an object with a namespace, and lets go of it."""
    with managed(value) as given:
        pass
    return given


def with_dicts(value):
    for i in range(3):
        made = {"i": i, "value": value}
        value = made["value"]
    return value


def with_objects(value):
    for _ in range(3):
        made = Thing()
        made.b = value
        value = vars(made)["b"]
    return value


HOLDERS = {
    "function": lambda: lambda y: y,
    "object": Thing,
    "namespace": types.SimpleNamespace,
    "class": lambda: type("Some", (), {}),
}
READS = {
    "sorted": lambda held: sorted(vars(held)),
    "length": lambda held: len(vars(held)),
    "contains": lambda held: "v" in vars(held),
    "attribute": lambda held: len(held.__dict__),
    "get": lambda held: vars(held).get("v", 0),
}


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("holder", ["function", "object", "namespace"])
@pytest.mark.parametrize("makes", [with_a_manager, with_dicts, with_objects])
def test_a_namespace(holder, makes, reads):
    def make(trace):
        held, read = [HOLDERS[holder]()], READS[reads]

        def run(x):
            return x * 2, read(makes(held[0]))

        def change():
            held[0].v = 3

        def undo():
            del held[0].v

        # Nobody else asks for the namespace before the first call does.
        one = [call(torch.ones(2)) for _ in range(2)]
        return trace(run), [*one, change, *one, undo, *one, change, *one]

    check(make, hits=3)


@pytest.mark.parametrize("makes", [with_a_manager, with_dicts])
@pytest.mark.parametrize("holder", ["function", "class"])
def test_annotations(makes, holder):
    def make(trace):
        held = [HOLDERS[holder]()]

        def run(x):
            return x * 2, len(makes(held[0]).__annotations__)

        def change():
            held[0].__annotations__["y"] = int

        def undo():
            held[0].__annotations__.clear()

        one = [call(torch.ones(2)) for _ in range(2)]
        return trace(run), [*one, change, *one, undo, *one, change, *one]

    check(make, hits=3)
