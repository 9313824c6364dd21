"""State that hooks and opaque functions have changed inside the call, read after them."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

import lazytrace
from lazytrace import opaque
from tests.soundness.runner import Cases, call, check

cases = Cases()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def batch(seed):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


def calls(*changes):
    """Calls with other values each, and after the third one what changes the world, two calls each."""
    steps = [call(batch(0)), call(batch(1)), call(batch(2))]
    for i, change in enumerate(changes):
        steps += [change, call(batch(3 + 2 * i)), call(batch(4 + 2 * i))]
    return steps


def gradcam(trace, use=lambda o: o.kept * 2):
    """A hook of a module keeps the gradient of what the layer gives."""
    model, o = net(), types.SimpleNamespace(kept=None, scale=1.0)

    def keep(module, inputs, outputs):
        o.kept = outputs[0].detach() * o.scale

    model[2].register_full_backward_hook(keep)

    def step(x):
        model.zero_grad()
        model(x).relu().sum().backward()
        return use(o)

    return trace(step), model, o


@cases(hits=5)
def an_attribute(trace):
    step, _, o = gradcam(trace)
    return step, calls(lambda: setattr(o, "scale", 3.0), lambda: setattr(o, "kept", None)), lambda: o


@cases(hits=5)
def an_attribute_by_getattr(trace):
    step, _, o = gradcam(trace, lambda o: getattr(o, "kept", None))
    return step, calls(lambda: setattr(o, "scale", 3.0), lambda: delattr(o, "kept")), lambda: o


@cases(hits=3)
def one_that_the_hook_keeps_no_more(trace):
    """The hook is gone: what is there is what the last call has left."""
    step, model, o = gradcam(trace)
    changes = [model[2]._backward_hooks.clear, lambda: setattr(o, "kept", torch.ones(()))]
    return step, calls(*changes), lambda: o


@cases(hits=3)
def another_shape(trace):
    step, _, o = gradcam(trace)
    steps = calls()
    more = [call(torch.ones(5, 4)), call(torch.ones(5, 4) * 2), call(batch(9))]
    return step, steps + more, lambda: o


def of_dict(trace, use, kept=None):
    """Hooks of tensors keep gradients in a dict of before the call."""
    model, kept = net(), {} if kept is None else kept

    def step(x):
        h = model[0](x)
        h.register_hook(lambda g: kept.__setitem__("first", g))
        y = model[2](model[1](h))
        y.register_hook(lambda g: kept.__setitem__("last", g * 2))
        y.pow(2).sum().backward()
        model.zero_grad()
        return use(kept)

    return trace(step), kept


@cases(hits=3)
def an_entry(trace):
    step, kept = of_dict(trace, lambda kept: kept["first"].mean() + kept["last"].sum())
    return step, calls(lambda: kept.update(first=None)), lambda: kept


@cases(hits=3)
def an_entry_by_get(trace):
    step, kept = of_dict(trace, lambda kept: kept.get("first").mean())
    return step, calls(lambda: kept.pop("first")), lambda: kept


USES = {
    "values": lambda kept: sum(g.norm() for g in kept.values()),
    "items": lambda kept: {name: g.norm() for name, g in kept.items()},
    "names": lambda kept: [kept[name].norm() for name in kept],
    "length": lambda kept: kept["first"] * len(kept),
    "sum of a view": lambda kept: sum(g.sum() for g in list(kept.values())),
    "whether it has": lambda kept: kept["last"] if "last" in kept else torch.zeros(()),
    "stack": lambda kept: torch.stack([g.norm() for g in kept.values()]),
}
MORE = {
    "nothing": lambda kept: None,
    "one more": lambda kept: kept.__setitem__("other", torch.ones(2)),
    "another order": lambda kept: (kept.pop("first"), kept.pop("last")),
    "none": lambda kept: kept.clear(),
    "a text": lambda kept: kept.__setitem__("text", "a"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
def test_all_of_a_dict(use, more):
    def make(trace):
        step, kept = of_dict(trace, use)
        return step, calls(lambda: more(kept)), lambda: kept

    check(make, hits=1)


def of_list(trace, use):
    model, kept = net(), [None, None]

    def step(x):
        h = model[0](x)
        h.register_hook(lambda g: kept.__setitem__(0, g))
        model[2](model[1](h)).pow(2).sum().backward()
        model.zero_grad()
        return use(kept)

    return trace(step), kept


@cases(hits=3)
def an_item_of_a_list(trace):
    step, kept = of_list(trace, lambda kept: kept[0].mean())
    return step, calls(lambda: kept.__setitem__(0, None)), lambda: kept


@cases(hits=1)
def an_item_from_the_end(trace):
    step, kept = of_list(trace, lambda kept: kept[-2].mean())
    return step, calls(lambda: kept.append(None)), lambda: kept


@cases(hits=1)
def one_taken_apart(trace):
    step, kept = of_list(trace, lambda kept: (lambda g, other: g * 2)(*kept))
    return step, calls(lambda: kept.__setitem__(1, 3)), lambda: kept


@cases(hits=1)
def numbers(trace):
    """A number that a hook has read of a gradient is another one at each call, and followed."""
    model, kept = net(), {}
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: kept.__setitem__(name, g.norm().item()))

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return kept["0.weight"] + kept["2.bias"]

    return trace(step), calls(), lambda: kept


@cases(hits=4)
def a_count(trace):
    """One that the hook counts."""
    model, o = net(), types.SimpleNamespace(n=0, seen=None)

    def count(module, inputs, outputs):
        o.n = min(o.n + 1, 2)
        o.seen = outputs[0]

    model[2].register_full_backward_hook(count)

    def step(x):
        model.zero_grad()
        model(x).relu().sum().backward()
        return o.seen * o.n

    return trace(step), [call(batch(i)) for i in range(7)], lambda: o


def of_object(trace, keep, use, **state):
    """`keep` is what a hook does with an object and a gradient, `use` what the function does with both."""
    model, o = net(), types.SimpleNamespace(**state)
    model[2].register_full_backward_hook(lambda m, i, g: keep(o, g[0].detach()))

    def step(x):
        model.zero_grad()
        y = model(x * o.scale)
        y.relu().sum().backward()
        return use(o, y)

    return trace(step), model, o


def keeps(o, g):
    o.kept = g * 2


def also(o, y):
    o.seen = y.detach()
    return o.kept + o.seen * o.scale


@cases(hits=4)
def one_beside_others_that_were_read(trace):
    step, _, o = of_object(trace, keeps, also, scale=2.0, kept=None)
    return step, calls(lambda: setattr(o, "scale", 3.0), lambda: setattr(o, "kept", 1)), lambda: o


@cases(hits=3)
def one_beside_others_that_the_call_has_written(trace):
    """As a class for saliency maps keeps what a layer gives, and its gradient."""
    model, o = net(), types.SimpleNamespace(model=None, out=None, grad=None)
    o.model = model
    model[0].register_forward_hook(lambda m, i, out: setattr(o, "out", out.detach()))
    model[0].register_full_backward_hook(lambda m, i, g: setattr(o, "grad", g[0].detach()))

    def step(x):
        o.model.zero_grad()
        o.model(x.clone().requires_grad_()).amax(1).sum().backward()
        return (o.out * o.grad.mean(0)).relu()

    return trace(step), calls(lambda: setattr(o, "grad", None)), lambda: [o.out, o.grad]


def takes_over(o, g):
    o.kept, o.scale = g, 3.0


@cases(eager="opaque-varies")
def one_that_was_read_before(trace):
    step, _, o = of_object(trace, takes_over, also, scale=2.0, kept=None)
    return step, calls(), lambda: o


def at_some_calls(o, g):
    o.kept = g
    o.n += 1
    if o.n == 4:
        o.scale = 3.0


@cases(hits=3)
def one_that_a_hook_changes_at_some_calls(trace):
    """What was read before the pass alone, the next call reads anew."""
    step, _, o = of_object(trace, at_some_calls, lambda o, y: y + o.kept, scale=2.0, kept=None, n=0)
    return step, calls(lambda: None, lambda: None), lambda: o


@cases(hits=3)
def one_that_is_put_back(trace):
    """Whatever the hook has put there."""

    def use(o, y):
        o.scale = 2.0
        return y + o.kept

    step, _, o = of_object(trace, at_some_calls, use, scale=2.0, kept=None, n=0)
    return step, calls(lambda: None, lambda: None), lambda: o


def sums(o, g):
    o.total += g.norm().item()


@cases(hits=3)
def a_sum_that_a_hook_adds_to(trace):
    step, _, o = of_object(trace, sums, lambda o, y: y * o.total, scale=2.0, total=0.0)
    return step, calls(lambda: setattr(o, "total", 5), lambda: setattr(o, "total", float("nan"))), lambda: o


@cases(hits=1)
def a_number_that_the_function_writes_on(trace):
    def use(o, y):
        o.last = o.total * 2
        return y / max(o.last, 1e-3)

    step, _, o = of_object(trace, sums, use, scale=2.0, total=0.0, last=None)
    return step, calls(), lambda: o


@cases(eager="sets-attribute")
def one_that_both_write(trace):
    def use(o, y):
        o.kept = o.kept * 2
        return y

    step, _, o = of_object(trace, keeps, use, scale=2.0, kept=None)
    return step, calls(), lambda: o


@cases(eager="reads-touched")
def all_attributes_behind_a_hook(trace):
    """Which there are hangs on the hook."""
    step, _, o = of_object(trace, keeps, lambda o, y: list(vars(o)), scale=2.0)
    return step, calls(), lambda: o


@cases(hits=1)
def a_number_that_decides(trace):
    def use(o, y):
        return y * 2 if o.total > 1e9 else y

    step, _, o = of_object(trace, sums, use, scale=2.0, total=0.0)
    return step, calls(lambda: setattr(o, "total", 1e12)), lambda: o


@cases(hits=3)
def the_same_tensor_twice(trace):
    step, _, o = gradcam(trace, lambda o: [o.kept, o.kept])
    return step, calls(lambda: setattr(o, "scale", 2.0)), lambda: o


@cases(hits=3)
def a_gradient_that_is_kept_itself(trace):
    """The hook keeps the very tensor that becomes the gradient."""
    model, kept = net(), {}
    model[0].weight.register_post_accumulate_grad_hook(lambda p: kept.__setitem__("g", p.grad))

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return kept["g"], model[0].weight.grad, kept["g"] is model[0].weight.grad

    return trace(step), calls(lambda: kept.clear()), lambda: kept


@cases(hits=3)
def of_an_opaque_function(trace):
    state = {"mean": torch.zeros(()), "times": 1.0}

    @opaque
    def update(x):
        state["mean"] = state["mean"] * 0.9 + x.mean() * 0.1 * state["times"]

    def step(x):
        update(x)
        return x - state["mean"]

    return trace(step), calls(lambda: state.update(times=5.0)), lambda: state


@cases(hits=3)
def of_an_opaque_function_that_may_not(trace):
    """What is read may be of another kind at any call."""
    state = {"mean": None, "at": 0}

    @opaque
    def update(x):
        state["mean"] = x.mean() if state["at"] == 0 else state["at"]

    def step(x):
        update(x)
        return x - state["mean"]

    return trace(step), calls(lambda: state.update(at=2), lambda: state.update(at=0)), lambda: state


@cases(eager="reads-touched")
def an_object_that_the_hook_makes(trace):
    """It could be changed by whoever holds it."""
    model, o = net(), types.SimpleNamespace(kept=None)
    model[2].register_full_backward_hook(lambda m, i, g: setattr(o, "kept", types.SimpleNamespace(g=g[0])))

    def step(x):
        model.zero_grad()
        model(x).relu().sum().backward()
        return o.kept.g

    return trace(step), calls(), lambda: o


@cases(eager="reads-touched")
def the_order_of_its_keys(trace):
    """C code compares them."""
    step, kept = of_dict(trace, lambda kept: [kept[name].sum() for name in sorted(kept)])
    return step, calls(), lambda: kept


@cases(eager="opaque-varies")
def between_two_passes(trace):
    """Run again, the function would find what the second pass has left."""
    _, model, o = gradcam(trace)

    def twice(x):
        model.zero_grad()
        model(x).relu().sum().backward()
        first = o.kept * 1
        model(x * 2).relu().sum().backward()
        return first, o.kept * 1

    return trace(twice), calls(), lambda: o


@cases(hits=3)
def behind_a_branch_on_a_value(trace):
    """A side exit behind the read: the call ends as the function does."""
    _, model, o = gradcam(trace)

    def branch(x):
        model.zero_grad()
        y = model(x).relu().sum()
        y.backward()
        kept = o.kept
        return kept * 2 if y.item() > 1.0 else kept - 1

    return trace(branch), [call(batch(i) * (i % 3)) for i in range(8)], lambda: o


@cases(hits=3)
def by_another_name(trace):
    """The hook writes through `vars`, the function reads the attribute."""
    model, o = net(), types.SimpleNamespace(kept=None)
    model[2].register_full_backward_hook(lambda m, i, g: vars(o).__setitem__("kept", g[0]))

    def step(x):
        model.zero_grad()
        model(x).relu().sum().backward()
        return o.kept * 2

    return trace(step), calls(lambda: setattr(o, "kept", 1)), lambda: o


# ---------------------------------------------------------------- written behind what a hook has written
def written(trace, before=lambda d: None, after=lambda d: None, table=None):
    """A hook of a tensor puts the gradient into a dict; the function writes to it before that, or after."""
    model, d = net(), {} if table is None else table

    def step(x):
        h = model[0](x)
        h.register_hook(lambda g: d.__setitem__("a", g))
        before(d)
        model[2](model[1](h)).pow(2).sum().backward()
        after(d)
        return x * 2

    return trace(step), calls(d.clear, d.clear), lambda: list(d.items())


@cases(hits=5)
def what_is_there_already(trace):
    def after(d):
        d["b"] = None

    return written(trace, after=after, table={"a": None, "b": 1})


@cases(hits=5)
def what_is_there_already_behind_a_read(trace):
    seen = []

    def after(d):
        seen.append(d["a"] * 2)
        d["b"] = None

    return written(trace, after=after, table={"a": None, "b": None})


def sets_b(d):
    d["b"] = 1


@cases(hits=4)
def keys_stay_in_order(trace):
    """A key that the function adds lies before the one that the hook adds."""
    return written(trace, before=sets_b)


@cases(hits=4)
def keys_stay_in_order_for_a_second_step(trace):
    table, seen = {}, []

    @opaque
    def look(x):
        seen.append(list(table))

    step, steps, watch = written(trace, sets_b, lambda d: look(0), table)
    return step, steps, lambda: [watch(), seen]


@cases(hits=4)
def attributes_stay_in_order(trace):
    model, o = net(), types.SimpleNamespace()

    def step(x):
        h = model[0](x)
        h.register_hook(lambda g: setattr(o, "a", g))
        o.b = 1
        model[2](model[1](h)).pow(2).sum().backward()
        return x * 2

    return trace(step), calls(vars(o).clear, vars(o).clear), lambda: list(vars(o).items())


def ordered(trace, answer):
    """What `answer` does of an opaque function that adds a key comes behind what it adds."""
    table, seen = {}, []

    @opaque
    def fill(x):
        seen.append(list(table))
        table["a"] = 1
        return answer(x)

    def step(x):
        table["b"] = 1
        try:
            y = fill(x)
        except ValueError:
            y = x
        table["c"] = 2
        fill(torch.relu(x))
        return x * 2 if y.sum() > 0 else x * 3

    signs = [1, 1, 1, -1, 1, -1, -1, 1]
    steps = [one for sign in signs for one in (call(sign * torch.ones(2)), table.clear)]
    return trace(step), steps, lambda: [table, seen]


def of_its_sign(x):
    return x


def raises(x):
    if x.sum() < 0:
        raise ValueError("negative")
    return x


@pytest.mark.parametrize("answer", [of_its_sign, raises])
def test_keys_stay_in_order_at_exits(answer):
    """The function runs again, or another trace goes on: both add their keys once more."""
    check(lambda trace: ordered(trace, answer), hits=2)


@pytest.mark.parametrize("before", [True, False])
def test_a_list_that_both_append_to(before):
    """What the function has appended is no longer the last entry, whatever else it has written."""

    def make(trace):
        o = types.SimpleNamespace(rows=[], table={})

        @opaque
        def more(x):
            o.rows.append(None)

        def step(x):
            if before:
                o.table["a"] = 1
            o.rows.append(2.5)
            if not before:
                o.table["a"] = 1
            more(x)
            o.rows.append(3.5)
            return x * 2

        return trace(step), [call(k * torch.ones(2)) for k in range(6)], lambda: o

    check(make, eager="which changes what the function has written")


def kept_by_a_step(trace, keep, use, first):
    """An opaque function that keeps things of what it is given, at some calls only."""
    o = types.SimpleNamespace(kept=None)
    keep = (opaque if trace.enabled else lambda fn: fn)(keep)

    def step(x):
        keep(o, x * 1)
        return use(o)

    steps = [call(k * torch.ones(2)) for k in (*first, 1, -1, 1, 2, -2, -3, 3)]
    return trace(step), steps, lambda: o


def if_positive(o, y):
    if y.sum() > 0:
        o.kept = y


@cases(hits=3, eager="given-and-found")
def what_a_step_was_given_and_kept_at_a_later_call(trace):
    """The function runs again, and finds a tensor of its own in its state: the next call keeps none."""
    return kept_by_a_step(trace, if_positive, lambda o: o.kept, (-1, -1))


@cases(hits=3, eager="given-and-found")
def a_branch_on_what_a_step_was_given_and_kept(trace):
    def use(o):
        return 1 if o.kept is not None and o.kept.sum() > 1 else 2

    return kept_by_a_step(trace, if_positive, use, (-1, -1))


@cases(eager="reads a SimpleNamespace that an opaque function has changed")
def a_list_that_a_step_has_put_there(trace):
    """The result is the list itself, which others may change."""

    def keep(o, y):
        o.kept = [y]

    return kept_by_a_step(trace, keep, lambda o: o.kept, ())


@cases(eager="reads a SimpleNamespace that an opaque function has changed")
def a_dict_that_a_step_has_put_there(trace):
    def keep(o, y):
        o.kept = {"a": y}

    return kept_by_a_step(trace, keep, lambda o: o.kept, ())


@pytest.mark.parametrize("key", [("kept",), None], ids=repr)
def test_a_namespace_with_keys_that_are_no_names(key):
    """Asked for before a step has set an attribute."""

    def make(trace):
        o = types.SimpleNamespace(kept=None)
        vars(o)[key] = 3.0

        def step(x):
            before = key in vars(o)
            x = x * 1
            x.requires_grad_().register_hook(lambda g: setattr(o, "kept", g))
            x.sum().backward()
            return x.detach() + vars(o)[key], before, key in vars(o)

        return trace(step), [call(k * torch.ones(2)) for k in range(6)], lambda: o.kept

    check(make, eager="writes to Python state")


@cases.parametrize
def test_late_reads(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- what is changed is left out of later checks
def changing(trace, get, change, behind, *, at=lambda n: True):
    """A function that reads what an opaque function changes then, and more Python code behind that."""
    o = types.SimpleNamespace(n=0)

    @opaque
    def first(x):
        o.n += 1
        if at(o.n):
            change(o.n)

    @opaque
    def other(x):
        return x * 2

    def a_pass(x):
        leaf = x.detach().requires_grad_()
        leaf.register_hook(lambda g: None)
        leaf.sum().backward()
        return leaf.grad

    def step(x):
        read = get()
        first(x)
        return read, (other if behind == "a function" else a_pass)(x)

    return trace(step), [call(batch(i)) for i in range(8)]


class Slots:
    __slots__ = ("n",)

    def __init__(self):
        self.n = "0"


def an_object():
    o = types.SimpleNamespace(n="0")
    return (lambda: o.n), lambda n: setattr(o, "n", str(n % 2))


def an_object_with_slots():
    o = Slots()
    return (lambda: o.n), lambda n: setattr(o, "n", str(n % 2))


def a_dict():
    kept = {"a": "0"}
    return (lambda: kept["a"]), lambda n: kept.update(a=str(n % 2))


def an_item():
    kept = ["0", "1"]
    return (lambda: kept[0]), lambda n: kept.__setitem__(0, str(n % 2))


def all_of_a_list():
    kept = ["0", "1"]
    return (lambda: tuple(kept)), lambda n: kept.reverse()


def an_object_that_is_exchanged():
    o = types.SimpleNamespace(inner=types.SimpleNamespace(n="0"))
    return (lambda: o.inner.n), lambda n: setattr(o, "inner", types.SimpleNamespace(n=str(n % 2)))


def a_tensor():
    o = types.SimpleNamespace(g=torch.ones(2))
    return (lambda: o.g * 2), lambda n: setattr(o, "g", torch.ones(2) * n)


def a_module():
    module = types.ModuleType("module")
    module.n = "0"
    return (lambda: module.n), lambda n: setattr(module, "n", str(n % 2))


def a_default():
    def read(a="0"):
        return a

    return read, lambda n: setattr(read, "__defaults__", (str(n % 2),))


PLACES = [an_object, an_object_with_slots, a_dict, an_item, all_of_a_list, an_object_that_is_exchanged]
PLACES += [a_tensor, a_module, a_default]


@pytest.mark.parametrize("behind", ["a function", "a pass"])
@pytest.mark.parametrize("place", PLACES)
def test_python_code_behind_a_change(place, behind):
    """It changes nothing: what the step before it has changed, as in the recording, is no matter."""
    check(lambda trace: changing(trace, *place(), behind), hits=2)


def test_a_list_that_grows():
    """A length that is followed, of a list that the function reads no more."""

    def make(trace):
        kept = ["0"]
        return changing(trace, lambda: len(kept), kept.append, "a function")

    check(make, hits=2)


def test_the_length_of_a_list_that_is_followed():
    """It is followed once the calls before have refused it for having grown."""

    def make(trace):
        o, kept = types.SimpleNamespace(n="0"), [0]

        @opaque
        def first(x):
            kept.append(1)
            o.n = str(len(kept))

        def step(x):
            before = o.n, len(kept)
            first(x)
            return before, len(kept), x * 2

        return trace(step), [call(batch(i)) for i in range(8)]

    check(make, eager="that an opaque function has changed")


@pytest.mark.parametrize("behind", [False, True])
def test_a_list_that_has_grown_is_not_read_again(behind):
    """The recording ends where its length is asked for again, which is followed by then."""

    def make(trace):
        kept = [0.0]
        append = opaque(lambda x: kept.append(x.sum().item()))

        def step(x):
            before = 0 if behind else len(kept)
            append(x)
            return before, len(kept), x * 2

        return trace(step), [call(batch(i)) for i in range(6)]

    check(make, eager="that an opaque function has changed")


def test_a_name_of_a_module():
    """That is set by `setattr`, and read behind it alone."""

    def make(trace):
        module = types.ModuleType("module")
        module.n = 0
        count = opaque(lambda x: setattr(module, "n", module.n + 1))

        def step(x):
            count(x)
            return module.n, x * 2

        return trace(step), [call(batch(i)) for i in range(6)], lambda: module.n

    check(make, eager="that an opaque function has changed")


def test_a_dict_that_the_function_has_emptied():
    """It is written as a whole, which the other has changed again: each replay would find that."""

    def make(trace):
        kept = {"a": "0", "b": "1"}
        fill = opaque(lambda x: kept.update(a="2"))

        def step(x):
            kept.clear()
            fill(x)
            return x * 2

        return trace(step), [call(batch(i)) for i in range(6)], lambda: kept

    check(make, eager="opaque-rewrites")


@pytest.mark.parametrize("get", [lambda kept: kept["a"], dict], ids=["an entry", "all"])
def test_what_is_put_back_behind_the_change(get):
    """It is a write, though the place has in the end what it had before the call."""

    def make(trace):
        kept = {"a": None, "b": 1.0}

        def step(x):
            before, y = get(kept), x * 2
            h = x.detach().requires_grad_()
            h.register_hook(lambda g: kept.__setitem__("a", g))
            (h * 2).sum().backward()
            kept["a"] = None
            return before, y

        return trace(step), [call(batch(i)) for i in range(6)], lambda: kept

    check(make, hits=4)


def test_two_that_change_the_same():
    def make(trace):
        o = types.SimpleNamespace(n="0", seen=[])
        first, second = (opaque(lambda x, n=n: setattr(o, "n", n)) for n in "ab")

        def step(x):
            seen = o.n
            first(x)
            second(x)
            return seen, x * 2

        return trace(step), [call(batch(i)) for i in range(6)], lambda: o

    check(make, hits=4)


def test_two_hooks_that_put_another_object_there():
    """What the first has put there is gone by the time that both are compared."""

    def make(trace):
        kept = {"a": None, "b": torch.ones(2)}

        def step(x):
            before = dict(kept)
            for _ in range(2):
                h = x * 2
                h.register_hook(lambda g: kept.update(a=g))
                h.sum().backward()
            return before["b"]

        leaf = torch.ones(3, requires_grad=True)
        return trace(step), [call(leaf) for _ in range(6)], lambda: kept

    check(make, hits=1)


# ---------------------------------------------------------------- what a replay alone changes
def at_one_call(change, read):
    """What is not seen in the recording, beside what is."""
    counted = types.SimpleNamespace(n=0)
    o = types.SimpleNamespace(flag=True, t=torch.ones(2))

    @opaque
    def first(x):
        if read:
            counted.n += 1
        if x.sum() < 0:
            change(o)

    def step(x):
        before = counted.n if read else None
        first(x)
        return before, x * (2 if o.flag and torch.is_grad_enabled() and not o.t.requires_grad else 3)

    def again(x):
        counted.n = 0
        return traced(x)

    traced = lazytrace.traced(step)
    return again, traced


ALONE = {
    "state": lambda o: setattr(o, "flag", False),
    "grad mode": lambda o: torch.set_grad_enabled(False) and None,
    "the flag of a tensor": lambda o: setattr(o.t, "requires_grad", True),
}


@pytest.mark.parametrize("change", ["state", "the flag of a tensor"])
def test_what_a_replay_alone_changes_is_read_behind_it(change):
    again, traced = at_one_call(ALONE[change], False)
    for _ in range(3):
        assert again(torch.ones(2))[1].tolist() == [2.0, 2.0]
    assert traced.stats().hits
    assert again(-torch.ones(2))[1].tolist() == [-3.0, -3.0]
    assert again(torch.ones(2))[1].tolist() == [3.0, 3.0]


def test_state_that_a_replay_alone_changes_and_another_that_the_function_has_read():
    """It reads that again as it was before the step, and what the step has changed behind it."""
    again, traced = at_one_call(ALONE["state"], True)
    for _ in range(3):
        before, y = again(torch.ones(2))
        assert (before, y.tolist()) == (0, [2.0, 2.0])
    assert traced.stats().hits
    before, y = again(-torch.ones(2))
    assert (before, y.tolist()) == (0, [-3.0, -3.0])


def test_a_mode_that_a_replay_alone_changes():
    again, traced = at_one_call(ALONE["grad mode"], False)
    with torch.enable_grad():
        for _ in range(3):
            assert again(torch.ones(2))[1].tolist() == [2.0, 2.0]
        assert traced.stats().hits
        with pytest.raises(lazytrace.ReplayError, match="that it has"):
            again(-torch.ones(2))
