"""Dicts that become part of others, `text.format(**self.__dict__)`: the numbers in them are followed."""

from __future__ import annotations

from typing import Any

from tests.soundness.runner import Cases, X, around, call, calls, check

cases = Cases()


class Meter:
    """As the training scripts for ImageNet have it."""

    def __init__(self, name="loss", fmt=":.3f"):
        self.name, self.fmt = name, fmt
        self.reset()

    def reset(self):
        self.val, self.avg, self.sum, self.count = 0.0, 0.0, 0.0, 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


@cases(hits=4)
def a_meter(trace):
    meter = Meter()

    def step(x):
        meter.update(x.sum().item(), x.size(0))
        return "\t".join(["epoch", str(meter)])

    return trace(step), calls(7), lambda: vars(meter)


def after(change):
    def make(trace):
        meter = Meter()

        def step(x):
            meter.update(x.sum().item())
            return str(meter)

        return trace(step), [*calls(4), lambda: change(meter), *calls(4)], lambda: vars(meter)

    return make


@cases(hits=4)
def it_is_reset(trace):
    return after(Meter.reset)(trace)


@cases(hits=3)
def its_name_changes(trace):
    return after(lambda meter: setattr(meter, "name", "other"))(trace)


@cases(hits=3)
def it_gets_another_attribute(trace):
    return after(lambda meter: setattr(meter, "more", 1))(trace)


@cases(hits=3)
def it_loses_an_attribute(trace):
    return after(lambda meter: delattr(meter, "name"))(trace)


@cases(hits=3)
def its_attributes_change_order(trace):
    return after(lambda meter: setattr(meter, "name", meter.__dict__.pop("name")))(trace)


@cases(hits=3)
def a_number_becomes_a_text(trace):
    return after(lambda meter: setattr(meter, "extra", meter.__dict__.pop("extra", "none")))(trace)


@cases(hits=3)
def its_namespace_is_replaced(trace):
    return after(lambda meter: setattr(meter, "__dict__", {**meter.__dict__, "name": "new"}))(trace)


@cases(hits=2)
def of_the_state(trace):
    settings: dict[str, Any] = {"lr": 0.5, "name": "a"}

    def change():
        settings["lr"] += 0.25

    def scaled(x, lr, name):
        return x * lr, name

    steps = [call(X()), change] * 6
    return trace(lambda x: scaled(x, **settings)), steps, lambda: settings


@cases(hits=1)
def the_function_looks_at_a_number(trace):
    settings = {"n": 2, "name": "a"}
    return trace(lambda x: [x] * {**settings}["n"]), around(lambda: settings.update(n=3), X())


@cases(hits=2)
def another_key_comes(trace):
    settings = {"n": 2, "name": "a"}
    return trace(lambda x: (x * 2, {**settings, "m": 1})), around(lambda: settings.update(k=3), X())


@cases(hits=1)
def the_call_adds_a_key(trace):
    settings = {"n": 2}

    def step(x):
        settings["m"] = 3
        return x * 2, {**settings}

    return trace(step), around(lambda: settings.pop("m"), X()), lambda: settings


@cases(hits=2)
def the_call_writes_and_merges(trace):
    settings = {"n": 2, "m": 1}

    def step(x):
        settings["m"] = 3
        merged = {**settings}
        settings["m"] = 1
        return x * merged["m"], merged["n"]

    return trace(step), around(lambda: settings.update(n=5), X()), lambda: settings


@cases(hits=1)
def of_an_argument(trace):
    values = [{"n": 2}, {"n": 2}, {"n": 3}, {"n": 4}, {"k": 3}]
    steps = [call({**value, "x": X()}) for value in values]
    return trace(lambda settings: {**settings, "m": 1}), [*steps, call({"x": X(), "k": 3})]


def sums(*signs):
    return [call(sign * X()) for sign in signs]


# At the third call what is written is what was there already, which another call need not find.
@cases(hits=3)
def what_is_written_was_there(trace):
    counts = {"a": 1.0, "b": 2.0}

    def step(x):
        counts["b"] = x.sum().item()
        counts.pop("a", None)
        return x * 2, counts == {}

    return trace(step), sums(1, 1, 1, -1, 1, 1, -1), lambda: counts


@cases(hits=2)
def an_update_of_what_was_there(trace):
    counts = {"b": 1.5}

    def step(x):
        counts.update(b=x.sum().item())
        counts.pop("a", None)
        return x * 2, counts == {"b": 1.5}

    def put_back():
        counts["b"] = 1.5

    return trace(step), [*sums(1, 1, -1), put_back, *sums(1, -1, 1, 1)], lambda: counts


# What was there before is a tuple of numbers, which is followed as the numbers are.
@cases(hits=4)
def a_tuple_of_numbers_is_gone_through(trace):
    seen = {"a": 1.0}

    def step(x, n):
        before = {key: value for key, value in seen.items() if value}
        seen["n"] = (n, 1)
        return x * 2, before

    return trace(step), [call(X(), n) for n in (3, 1, 3, 3, 1, 5, 4, 4)], lambda: seen


@cases(hits=4)
def a_tuple_of_numbers_among_the_values(trace):
    seen = {"a": 1.0}

    def step(x, n):
        before = list(seen.values())
        seen["a"] = 1.5
        seen["n"] = (n, 1)
        return x * 2, before

    return trace(step), [call(X(), n) for n in (3, 1, 3, 3, 1, 5, 4, 4)], lambda: seen


@cases(hits=9, recordings=3)
def beside_named_ones(trace):
    state: dict[str, Any] = {"lr": 1.0, "epoch": 3}
    other: dict[str, Any] = {}

    def step(x):
        made = dict(state, epoch=1.5, norm=x.sum().item())
        other.update(state, lr=state["lr"] * 2)
        state.update(state, lr=state["lr"] + 0.25)
        return x * made["lr"], made

    def change(lr, **more):
        state.update(more, lr=lr)

    between = [
        lambda: change(0.5),
        *calls(3),
        lambda: change(2),
        *calls(2),
        lambda: change(0.5, new=4),
        *calls(3),
    ]
    return trace(step), [*calls(5), *between], lambda: (state, other)


@cases.parametrize
def test_merged(make, expected):
    check(make, **expected)
