"""What takes one entry out of a dict, or hands all of them on, and looks at nothing that they hold."""

from __future__ import annotations

import collections

import torch

from lazytrace import opaque
from tests.soundness.runner import Cases, Holder, X, call, check

cases = Cases()


def counted(body, state=None):
    """A function of a dict that counts its calls beside what it puts there."""

    def make(trace):
        held = {"step": 0, "kept": torch.zeros(3)} if state is None else state()
        fn = trace(lambda x: body(held, x))
        return fn, [call(X() + i) for i in range(5)], lambda: list(held.items())

    make.__name__ = body.__name__
    return make


@cases(hits=4, recordings=1)
def taken_out_again(trace):
    def body(held, x):
        held["step"] += 1
        held["update"] = x * 2
        return held.pop("update") / (1 - 0.9 ** held["step"])

    return counted(body)(trace)


@cases(hits=4, recordings=1)
def several_taken_out_by_a_method(trace):
    class Pair:
        def __init__(self):
            self.state = collections.defaultdict(dict)
            self.state["w"] = {"step": 0, "basis": torch.zeros(3)}

        def build(self, x):
            state = self.state["w"]
            state["step"] += 1
            state["left"], state["right"] = x * 2, x + state["basis"]
            return state

        def __call__(self, x):
            state = self.build(x)
            left, right = state.pop("left"), state.pop("right")
            state["basis"] = left
            return left + right * state["step"], state.pop("nothing", None)

    pair = Pair()
    return trace(pair), [call(X() + i) for i in range(5)], lambda: list(pair.state["w"].items())


@cases(hits=4, recordings=1)
def a_number_of_the_calls_own(trace):
    def body(held, x):
        held["step"] += 1
        held["half"] = held["step"] / 2
        return x * held.pop("half"), len(held)

    return counted(body)(trace)


@cases(hits=3)
def taken_out_and_put_back(trace):
    def body(held, x):
        held["step"] += 1
        step = held.pop("step")
        held["step"] = step
        return x * step

    return counted(body)(trace)


@cases(hits=3)
def one_that_was_there_before_at_some_calls(trace):
    held = {"step": 0}

    def fn(x):
        held["step"] += 1
        held["update"] = x * 2
        return held.pop("update") * held["step"]

    def put():
        held["update"] = torch.ones(3)

    calls = [call(X())] * 3
    return trace(fn), [*calls, put, *calls, put, *calls], lambda: list(held.items())


@cases(hits=3)
def a_default_where_it_is_missing(trace):
    held = {"step": 0, "scale": 2.0}

    def fn(x):
        held["step"] += 1
        if x.sum() > 3:
            held["scale"] = 3.0
        return x * held.pop("scale", 1.0) * held["step"]

    return trace(fn), [call(X() + i) for i in (0, 0, 0, 5, 5, 0, 0)], lambda: list(held.items())


def kept(tensors, state, scale=1.0):
    return sum(state[one]["sum"].add_(one) * scale for one in tensors)


def handed(*args, **kwargs):
    return kept(*args, **kwargs)


class Tables(Holder):
    """What an optimizer has: a table by tensors, in which each has a dict."""

    def __init__(self):
        tensors = [torch.ones(3), torch.arange(3.0)]
        super().__init__(tensors=tensors, state={one: {"sum": torch.zeros(3), "seen": 0} for one in tensors})

    def sums(self):
        return [list(row.items()) for row in self.state.values()]


@cases(hits=4, recordings=1)
def a_table_by_tensors_as_a_keyword(trace):
    tables = Tables()
    fn = trace(lambda x: handed(tensors=tables.tensors, state=tables.state) * x)
    return fn, [call(X() + i) for i in range(5)], tables.sums


@cases(hits=4, recordings=1)
def through_what_switches_gradients_off(trace):
    tables = Tables()
    quiet = torch.no_grad()(kept)

    def fn(x):
        named = {"state": tables.state, "scale": 2.0}
        return quiet(tables.tensors, **named) * x

    return trace(fn), [call(X() + i) for i in range(5)], tables.sums


@cases(hits=5, recordings=1)
def what_nobody_reads_of_it_may_change(trace):
    """It lies behind what is handed on."""
    tables = Tables()

    def fn(x):
        first = {"state": tables.state}
        merged = {**first, "tensors": tables.tensors}
        merged.update({"scale": 2.0})
        for one in merged["tensors"]:
            merged["state"][one]["sum"].add_(x)
        return x * merged["scale"]

    def change():
        for row in tables.state.values():
            row["seen"] += 1

    calls = [call(X())] * 2
    return trace(fn), [*calls, change, *calls, change, *calls], tables.sums


@cases(hits=3)
def what_is_read_of_it_may_not(trace):
    tables = Tables()
    first = tables.tensors[0]

    def fn(x):
        named = {"state": tables.state, "tensors": [first]}
        return handed(**named) * (2 if tables.state[first]["seen"] > 1 else 3), list(named)

    def change():
        tables.state[first]["seen"] += 1
        tables.state[first]["sum"] = torch.ones(3) * 5

    def swap():
        tables.state = {one: {"sum": torch.ones(3), "seen": 3} for one in tables.tensors}

    calls = [call(X())] * 2
    return trace(fn), [*calls, change, *calls, change, *calls, swap, *calls], tables.sums


@cases(hits=2)
def a_list_that_grows_in_a_dict_that_is_merged(trace):
    rows = [torch.ones(3)]
    options = {"rows": rows, "scale": 2.0}

    def total(rows, scale):
        return sum(rows) * scale

    fn = trace(lambda x: total(**options) * x)

    def grow():
        rows.append(torch.ones(3))

    def scale():
        options["scale"] += 1.0

    calls = [call(X())] * 2
    return fn, [*calls, grow, *calls, scale, *calls, lambda: rows.reverse(), *calls]


@cases(hits=2)
def lists_that_extend_others(trace):
    inner = {"n": 1, torch: 2}
    rows = [inner, [1, 2]]

    def fn(x):
        found = [0]
        found.extend(rows)
        return x * found[1]["n"], len(found), tuple(rows)[1][0]

    def change():
        inner["n"] += 1

    calls = [call(X())] * 3
    return trace(fn), [*calls, change, *calls, lambda: rows.append(3), *calls]


class Key:
    """One that a dict knows by its identity."""


def keys():
    layer = torch.nn.Linear(3, 3)
    return [Key(), layer, torch.ones(2), kept, layer.weight, ("a", 0), 1.5, torch.float32]


@cases(hits=4, recordings=1)
def set_under_keys_of_all_kinds(trace):
    known = keys()
    held = {key: torch.zeros(3) for key in known}

    def fn(x):
        for i, key in enumerate(known):
            held[key] = held[key] * 0.5 + x * i
        return held[known[1]] * 1

    return trace(fn), [call(X() + i) for i in range(5)], lambda: list(held.values())


@cases(hits=3)
def added_under_keys_of_all_kinds(trace):
    """As hooks of modules fill a table in the first call."""
    known = keys()
    held = {}

    def fn(x):
        for i, key in enumerate(known):
            held[key] = x * i
        return held[known[0]] + 1

    return trace(fn), [call(X() + i) for i in range(5)], lambda: list(held.values())


@cases(hits=3)
def other_keys_between_calls(trace):
    known = [Key(), Key()]
    first, second = known
    held = {first: torch.ones(3), second: torch.zeros(3)}

    def fn(x):
        held[first] = x * 2
        return held[second] + held[first]

    def turn():
        held[first] = held.pop(first)

    def put():
        held[Key()] = torch.ones(3)

    def forget():
        held.clear()
        held.update({second: torch.ones(3) * 4, first: torch.ones(3)})

    def numbers():
        held[second] = 3.0

    calls = [call(X() + i) for i in range(2)]
    changes = [one for change in (turn, put, forget, numbers) for one in (*calls, change)]
    return trace(fn), [*changes, *calls], lambda: list(held.values())


@cases(hits=2)
def a_key_that_is_another_object_by_turns(trace):
    first, second = Key(), Key()
    state = Holder(key=first)
    held = {first: torch.ones(3), second: torch.zeros(3)}

    def fn(x):
        held[state.key] = x * 2
        return held[first] + held[second]

    def swap():
        state.key = second if state.key is first else first

    calls = [call(X() + i) for i in range(2)]
    return trace(fn), [*calls, swap, *calls, swap, *calls], lambda: list(held.values())


@cases(hits=2, eager="reads a container with a")
def a_class_of_keys_that_learns_to_hash(trace):
    class Other:
        pass

    first, second = Other(), Other()
    held = {first: torch.ones(3), second: torch.zeros(3)}

    def fn(x):
        held[first] = x * 2
        return held[second] + held[first]

    asked = []

    def hashed(self):
        asked.append(1)
        return object.__hash__(self)

    def learn():
        Other.__hash__ = hashed

    calls = [call(X() + i) for i in range(3)]
    return trace(fn), [*calls, learn, *calls], lambda: (list(held.values()), len(asked))


@cases(hits=2)
def a_tensor_as_key_that_is_replaced(trace):
    state = Holder(w=torch.ones(2), held={})
    state.held[state.w] = torch.zeros(3)

    def fn(x):
        state.held[state.w] = state.held[state.w] + x
        return state.held[state.w] * 1

    def replace():
        state.held = {(old := torch.ones(2)): torch.ones(3)}
        state.w = old

    def add():
        state.w = torch.ones(2)
        state.held[state.w] = torch.ones(3) * 3

    calls = [call(X() + i) for i in range(3)]
    return trace(fn), [*calls, replace, *calls, add, *calls], lambda: list(state.held.values())


@cases(hits=2)
def a_tensor_that_was_no_key_and_is_one(trace):
    """Another tensor of the same shape lies at its place among the keys, as many as before."""
    first, second, third = (torch.ones(2) for _ in range(3))
    held = {first: torch.ones(3), second: torch.zeros(3)}
    state = Holder(asked=third)

    def fn(x):
        found = held.pop(state.asked, None)
        held[second] = held[second] * 0.5 + x
        return x * 1, found

    def put():
        held[third] = held.pop(first)

    def turn():
        state.asked = first
        held[first] = held.pop(second)
        held[second] = torch.ones(3) * 5

    calls = [call(X() + i) for i in range(3)]
    return trace(fn), [*calls, put, *calls, turn, *calls], lambda: list(held.values())


@cases(hits=3)
def set_by_a_step_under_objects(trace):
    """As the backward hooks of modules do."""
    layer, weight, other = torch.nn.Linear(3, 3), torch.ones(2), Key()
    held = {}

    @opaque
    def look(x):
        held[layer] = x * 2
        held[weight] = x + 1 if x.sum() > 3 else None

    def fn(x):
        look(x)
        return held[layer] + 1, held[weight]

    calls = [call(X() + i) for i in (0, 0, 0, 5, 5, 0, 0)]
    return trace(fn), [*calls, lambda: held.update({other: 1}), *calls], lambda: list(held.values())


@cases(hits=4, recordings=1)
def counted_under_a_tuple(trace):
    def body(held, x):
        held[(1, "a")] += 1
        return x * held[(1, "a")]

    return counted(body, lambda: {(1, "a"): 0, (1, "b"): 5})(trace)


@cases(hits=3, recordings=1, eager="sets [('s0', 2)] of a")  # it is followed from the second call on
def a_value_of_a_state_and_an_action(trace):
    def body(held, x):
        old = held[("s0", 2)]
        best = max(held[("s1", 0)], held[("s1", 2)])
        held[("s0", 2)] = old + 0.1 * (x.mean().item() + 0.9 * best - old)
        return x * held[("s0", 2)]

    state = {("s0", 2): 0.0, ("s1", 0): 0.5, ("s1", 2): 0.25}
    return counted(body, lambda: collections.defaultdict(float, state))(trace)


@cases(hits=2, recordings=1, eager="sets [('a', None)] of a dict")  # a counter is not absent again
def a_tuple_that_is_missing_at_first(trace):
    def body(held, x):
        held[("a", None)] = held.get(("a", None), 0) + 1
        return x + held[("a", None)]

    return counted(body, dict)(trace)


@cases(hits=0, recordings=5)  # the two are one key: all that the dict held is read
def a_tuple_that_is_read_under_an_equal_one(trace):
    def body(held, x):
        before = held[(True, "a")]
        held[(1, "a")] += 1
        return x * before + held[(1.0, "a")]

    return counted(body, lambda: {(1, "a"): 0})(trace)


@cases.parametrize
def test_entries_alone(make, expected):
    check(make, **expected)
