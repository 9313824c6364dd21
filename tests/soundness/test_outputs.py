"""What comes out: inputs, views, parameters, constants, literals, one object twice, and any structure."""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Pair(NamedTuple):
    a: object
    b: object


class Box:
    def __init__(self, **values):
        vars(self).update(values)


class Output(collections.OrderedDict):
    def __init__(self, **values):
        super().__init__(**values)
        for name, value in values.items():
            setattr(self, name, value)


class Sub(torch.Tensor):
    pass


def returns(name, function, *args, again=None, **expected):
    """A case that calls a function three times with fresh arguments."""

    def make(trace):
        return trace(function), [call(*args_of(args)) for _ in range(3)]

    make.__name__ = name
    cases(make, **(expected or {"hits": 2}))


def args_of(args):
    return [a() if callable(a) else a for a in args]


def grad():
    return X(grad=True)


returns("the_input", lambda x: x, X)
returns("the_input_twice", lambda x: (x, x, [x]), X)
returns("an_output_twice", lambda x: [y := x * 2, y, (y,)], grad)
returns("a_list_twice", lambda x: (items := [x * 2], items), X)
returns("views_of_the_input", lambda x: (x[1:], x.view(3, 1), x.detach(), x.t(), x[...]), grad)
returns("view_and_base", lambda x: ((y := x * 2), y[1:], y.view(-1)), grad)
returns("split", lambda x: x.split(1), grad)
returns("unbind_and_chunk", lambda x: (x.unbind(), x.chunk(2)), grad)
returns("nothing", lambda x: None, X)
returns(
    "constants", lambda x: (1, 2.5, "a", b"b", None, True, ..., 1j, torch.float32, torch.device("cpu")), X
)
returns("ranges_and_slices", lambda x: (range(3), slice(1, 2), frozenset({1})), X)
returns("size", lambda x: (x.shape, x.size(), x.stride(), x.shape[0]), X)
returns("literal", lambda x: torch.tensor([1.0, 2.0]), X)
returns("literal_with_grad", lambda x: torch.tensor([1.0, 2.0], requires_grad=True), X)
returns(
    "literal_scalar", lambda x: (torch.tensor(3), torch.tensor(2.5), torch.tensor(True), torch.tensor([])), X
)
returns("literal_of_other_dtype", lambda x: torch.tensor([1, 2], dtype=torch.float16), X)
returns("nested_literal", lambda x: torch.tensor([[1, 2], [3, 4]]).t(), X)
returns("literal_used_twice", lambda x: ((t := torch.tensor([1.0, 2.0, 3.0])), t + x, t), X)
returns("literal_written", lambda x: torch.tensor([1.0, 2.0, 3.0]).add_(x), X)
returns("literal_indexed_write", lambda x: write_first(torch.tensor([1.0, 2.0, 3.0]), x), X)
returns("as_tensor", lambda x: torch.as_tensor([1.0, 2.0]) + x[:2], X)
returns("new_tensor", lambda x: x.new_tensor([1.0, 2.0]), X)
returns(
    "new_factories", lambda x: (x.new_zeros(2), x.new_ones(2), x.new_full((2,), 3.0), torch.zeros_like(x)), X
)
returns(
    "factories",
    lambda x: (torch.zeros(2), torch.arange(3), torch.eye(2), torch.full((2,), 7), torch.linspace(0, 1, 3)),
    X,
)
returns("list_index", lambda x: x[[0, 1]], grad)
returns("list_index_of_lists", lambda x: x[[0, 1], [1, 0]], lambda: X(2, 2))
returns("bool_list_index", lambda x: x[[True, False, True]], X)
returns("none_and_ellipsis_index", lambda x: x[None, ..., 0], X)
returns("tensor_index", lambda x: x[torch.tensor([2, 0])], grad)
returns("list_index_write", lambda x: write_list(x.clone()), X)
returns("empty_filled", lambda x: torch.empty(3).copy_(x), X)
returns("empty_filled_by_views", lambda x: fill_views(torch.empty(3), x), X)
returns("empty_filled_by_a_view_of_a_view", lambda x: fill_reshaped(torch.empty(2, 3), x), X)
returns("empty_partly_zeroed", lambda x: torch.empty(0, 3), X)
returns("legacy_tensor", lambda x: torch.Tensor([1, 2, 3]) + x, X)
returns("legacy_float_tensor", lambda x: torch.FloatTensor([1, 2, 3]), X, hits=2)
returns("legacy_sized", lambda x: torch.Tensor(2, 3).zero_(), X)
returns("scalar_tensor", lambda x: torch.scalar_tensor(3.0) * x, X)
returns("sparse", lambda x: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,)).to_dense() + x, X, hits=2)
returns("sparse_returned", lambda x: x.to_sparse(), X, hits=2)
returns("complex", lambda x: torch.complex(x, x).conj(), X)
returns("imaginary_part", lambda x: torch.complex(x, x).conj().imag, X)
returns("return_type", lambda x: x.max(0), grad)
returns("return_types", lambda x: (x.sort(), torch.topk(x, 2), x.median(0)), X)
returns("linalg", lambda x: torch.linalg.svd(x), lambda: X(2, 2), hits=2)
returns("named_tuple", lambda x: Pair(x * 2, [x]), X)
returns("dictionary", lambda x: {"a": x * 2, 1: x, (1, 2): None, "d": {"e": x}}, X)
returns("ordered_dict", lambda x: collections.OrderedDict(b=x * 2, a=x), X)
returns(
    "default_dict",
    lambda x: collections.defaultdict(list, a=[x * 2]),
    X,
    hits=2,
)
returns("counter", lambda x: collections.Counter("aab"), X, hits=2)
returns(
    "deque",
    lambda x: collections.deque([x * 2]),
    X,
    eager="returns-odd",
)
returns("model_output", lambda x: Output(y=x * 2, z=x), X)
returns("an_object", lambda x: Box(y=x * 2, inner=Box(z=x)), X)
returns("a_set", lambda x: {1, 2, "a"}, X)
returns("a_type", lambda x: (Box, torch.nn.Linear, len), X)
returns("empty_containers", lambda x: ([], (), {}, set(), "", x.new_empty(0)), X)
returns("keyed_by_a_tensor", lambda x: list({x * 2: 1}.values()), X, hits=2)
returns("a_generator", lambda x: [*(r * 2 for r in x)], X)
returns("zipped", lambda x: list(zip(x, [1, 2, 3], strict=True)), X)
returns("text_of_a_value", lambda x: f"{x.sum().item():.2f}", X)
returns("float_of_a_value", lambda x: (x.sum().item(), int(x[0]), bool(x[1] > 0)), X)
returns("no_arguments", lambda: torch.zeros(2) + 1)
returns("non_contiguous", lambda x: (x * 2).t(), lambda: X(2, 3))
returns("expanded", lambda x: x.expand(2, 3), X)
returns("negative_zero", lambda x: torch.tensor([-0.0, float("nan"), float("inf")]) * x.abs(), X)
returns("clone_of_literal_in_list", lambda x: [torch.tensor(1.0) for _ in range(2)], X)
returns("detached_output", lambda x: (x * 2).detach(), grad)
returns(
    "requires_grad_of_output",
    lambda x: (x * 2).detach().requires_grad_(),
    X,
    hits=2,
)
returns("parameter_made", lambda x: torch.nn.Parameter(x * 2), X, hits=1)
returns("subclass_made", lambda x: Sub(x * 2), X, eager="returns-subclass")
returns("module_made", lambda x: torch.nn.ReLU()(x), X, hits=2)
returns("exception_object", lambda x: [type(e).__name__ for e in [ValueError("a")]], X, hits=2)
returns("empty_like_filled", lambda x: torch.empty_like(x).fill_(2), X)
returns("empty_like_copied_rows", lambda x: copy_rows(torch.empty_like(x), x), lambda: X(2, 3))
returns("new_empty_written", lambda x: x.new_empty(3).copy_(x), X)
returns("empty_strided_written", lambda x: torch.empty_strided((3,), (2,)).copy_(x), X)
returns("empty_as_out", lambda x: torch.add(x, 1, out=torch.empty(3)), X)
returns(
    "empty_as_out_of_two",
    lambda x: torch.max(x, 0, out=(torch.empty(()), torch.empty((), dtype=torch.long))),
    X,
)
returns("empty_random", lambda x: torch.empty(3).uniform_(), X)
returns("zeros_written_by_views", lambda x: fill_views(torch.zeros(3), x), X)
returns("stack_of_literals", lambda x: torch.stack([torch.tensor(1.0), torch.tensor(2.0)]), X)
returns("literal_view_written", lambda x: write_first(torch.tensor([[1.0], [2.0], [3.0]]).view(3), x), X)
returns("literal_used_then_written", lambda x: use_then_write(torch.tensor([1.0, 2.0, 3.0]), x), X)
returns("literal_compared", lambda x: (x == torch.tensor([-1.0, 0.5, 2.0])).all().item(), X)
returns("where_with_numbers", lambda x: torch.where(x > 0, 1.0, x), X)
returns("in_place_number", lambda x: write_number(x * 2), grad)
returns("masked_number", lambda x: write_masked(x * 2), grad)
returns("double_index", lambda x: x[1][None][..., 0], lambda: X(2, 2))
returns("tensor_bool_index", lambda x: x[torch.tensor(True)], X)
returns("integer_tensor_index", lambda x: x[torch.tensor(1)], X)
returns("negative_steps", lambda x: x.flip(0)[::2], X)
returns("tuple_subclass_of_size", lambda x: torch.Size([x.shape[0], 2]), X)


def write_first(t, x):
    t[0] = x[0]
    return t


def copy_rows(e, x):
    for row, source in zip(e, x, strict=True):
        row.copy_(source)
    return e


def use_then_write(t, x):
    y = t * x
    t.zero_()
    return y, t


def write_number(y):
    y[0] = 0
    y[1:] = 2.5
    return y


def write_masked(y):
    y[y > 0] = -1.0
    return y


def write_list(x):
    x[[0, 2]] = torch.tensor([7.0, 8.0])
    return x


def fill_views(e, x):
    e[0] = x[0]
    e[1:] = x[1:]
    return e


def fill_reshaped(e, x):
    e.view(6)[:3].copy_(x)
    e.t()[:, 1].zero_()
    return e


def circular(x, kind):
    items = [x * 2]
    if kind == "list":
        items.append(items)
        return items
    if kind == "dict":
        d = {"items": items}
        items.append(d)
        return d
    if kind == "tuple":
        t = (items, 1)
        items.append(t)
        return t
    box = Box(items=items)
    items.append(box)
    return box


def circle(kind):
    def make(trace):
        return trace(circular), [call(X(), kind)] * 3

    make.__name__ = f"circular_{kind}"
    cases(make, eager="returns a value that holds itself")


for _kind in ("list", "dict", "tuple", "object"):
    circle(_kind)


@cases(hits=2)
def literal_of_state(trace):
    s = [1.0, 2.0]
    return trace(lambda x: torch.tensor(s).sum() * x), around(lambda: s.__setitem__(0, 5.0), X())


@cases(hits=2)
def literal_of_nested_state(trace):
    s = [[1.0], [2.0]]
    return trace(lambda x: torch.tensor(s).sum() * x), around(lambda: s[0].__setitem__(0, 5.0), X())


@cases(hits=3, recordings=1)
def legacy_literal_of_state(trace):
    s = [1.0, 2.0]
    return trace(lambda x: torch.FloatTensor(s).sum() * x), around(lambda: s.__setitem__(0, 5.0), X())


@cases(hits=2)
def legacy_tensor_of_state(trace):
    s = [1.0, 2.0]
    return trace(lambda x: torch.Tensor(s).sum() * x), around(lambda: s.__setitem__(0, 5.0), X())


@cases(hits=2)
def index_of_state(trace):
    s = [0, 1]
    return trace(lambda x: x[s]), around(lambda: s.__setitem__(0, 2), X())


@cases(hits=2)
def index_of_nested_state(trace):
    s = {"rows": [0, 1]}
    return trace(lambda x: x[s["rows"], None]), around(lambda: s["rows"].__setitem__(0, 2), X())


@cases(hits=2)
def literal_of_tensors(trace):
    fn = trace(lambda x: torch.tensor([x[0].item(), x[1].item()]))
    return fn, [call(X()), call(X()), call(X() + 1), call(X() + 1), call(X())]


@cases(hits=3)
def literal_made_of_tensor_items(trace):
    fn = trace(lambda x: torch.tensor([x[0], x[1] * 2]))
    return fn, [call(X()), call(X()), call(X() + 1), call(X() + 1), call(X())]


@cases(hits=1)
def outputs_are_fresh(trace):
    fn = trace(lambda x: (torch.tensor([1.0]), [1, 2], {"a": []}))
    return fn, [call(X()), call(X()), call(X())]


@cases(hits=2)
def a_parameter(trace):
    w = torch.nn.Parameter(torch.ones(3))
    return trace(lambda x: (w, w[:2], w.detach())), [call(X())] * 3, lambda: w


@cases(hits=2)
def a_container_of_state(trace):
    o = Box(cfg={"a": [1]}, names=["x"])
    return trace(lambda x: (o.cfg, o.names, o)), around(lambda: o.names.append("y"), X()), lambda: o


@cases(hits=1)
def a_container_argument(trace):
    items = [X(), 1]
    return trace(lambda items: (items, items[0] * 2)), [call(items)] * 3


@cases(hits=1)
def star_arguments(trace):
    return trace(lambda *a, **k: (a, k)), [call(X(), 1, b=2)] * 3


@cases(eager="returns-odd")
def a_closure(trace):
    fn = trace(lambda x: [lambda: x * 2][0])
    return (lambda x: fn(x)()), [call(X())] * 3


@cases(eager="returns-odd")
def a_bound_method(trace):
    o = Box(k=2.0)
    fn = trace(lambda x: x.add)
    return (lambda x: fn(x)(o.k)), [call(X())] * 3


@cases(eager="returns-odd")
def an_iterator(trace):
    fn = trace(lambda x: iter([x * 2, x]))
    return (lambda x: list(fn(x))), [call(X())] * 3


@cases(eager="returns-made-class")
def a_class_made_inside(trace):
    def fn(x):
        class Out:
            k = 2.0

            def __init__(self, y):
                self.y = y

        return Out(x * 2)

    traced = trace(fn)
    return (lambda x: traced(x).y * traced(x).k), [call(X())] * 3


@cases(hits=1)
def dataclass_with_shared_parts(trace):
    @dataclasses.dataclass
    class Out:
        a: list
        b: list

    def fn(x):
        items = [x * 2]
        return Out(items, items)

    return trace(fn), [call(X())] * 3


@cases(hits=2)
def mutated_after_return(trace):
    fn = trace(lambda x: {"y": [x * 2], "n": (1, [2])})

    def use(x):
        out = fn(x)
        out["y"].append(1)
        out["n"][1].append(3)
        out["y"][0].add_(1)
        return out

    return use, [call(X())] * 3


# ---------------------------------------------------------------- tensors with attributes
def marked(trace, mark, ask=lambda y: dict(vars(y)), count=4):
    """`mark` puts attributes on a tensor that the call has made, and `ask` tells what a caller finds."""

    def step(x):
        y = traced(x)
        return y, ask(y), len(vars(y))

    def fn(x):
        y = x.exp()
        mark(y)
        return y

    traced = trace(fn)
    return step, [call(X() * n) for n in range(1, count + 1)]


def constants(y):
    y.mark = 1
    y.names = ("a", 2.5, None)
    y.is_shared = True


def for_a_compiler(y):
    torch._dynamo.mark_static_address(y)


def set_twice(y):
    y.mark = [1]
    y.mark = -1


def by_name(y):
    setattr(y, "mar" + "k", "text")


@pytest.mark.parametrize("mark", [constants, set_twice, by_name, for_a_compiler])
def test_attributes_of_what_is_returned(mark):
    check(lambda trace: marked(trace, mark), hits=3)


@pytest.mark.parametrize(
    ("mark", "code"),
    [
        (lambda y: setattr(y, "source", [1]), "returns-decorated"),
        (lambda y: setattr(y, "twice", y * 2), "returns-decorated"),
        (lambda y: setattr(y, "itself", y), "returns-decorated"),
        (lambda y: setattr(y, "owner", object()), "returns-decorated"),
    ],
    ids=["list", "tensor", "itself", "object"],
)
def test_attributes_that_are_no_constants(mark, code):
    check(lambda trace: marked(trace, mark, ask=lambda y: sorted(vars(y))), eager=code)


@cases(hits=4)
def attributes_that_follow_state(trace):
    held = Box(name="a")

    def fn(x):
        y = x * 2
        y.label = held.name
        return {"y": [y, y], "z": y.sum()}

    def step(x):
        got = traced(x)
        return got["y"][0].label, got["y"][0] is got["y"][1], got

    traced = trace(fn)
    return step, [*[call(X())] * 3, lambda: setattr(held, "name", "b"), *[call(X())] * 3], lambda: held


@cases(hits=3)
def attributes_of_what_is_kept(trace):
    held = Box(cache=None, sizes=[])

    def fn(x):
        if held.cache is None:
            held.cache = torch.zeros(4)
            held.cache.kind = "static"
        held.cache.add_(x.sum())
        return held.cache * 2

    def renew():
        held.sizes.append((held.cache.kind, held.cache.sum().item()))
        held.cache = None

    return trace(fn), [*[call(X())] * 3, renew, *[call(X())] * 2, renew, *[call(X())] * 2], lambda: held


@cases(eager="sets .mark of a Tensor")
def attributes_of_gradients_that_are_left(trace):
    weight = torch.ones(3, requires_grad=True)

    def fn(x):
        weight.grad = None
        (weight * x).sum().backward()
        weight.grad.mark = "a"
        return x * 2

    return trace(fn), [call(X())] * 4, lambda: (weight.grad, dict(getattr(weight.grad, "__dict__", {})))


@cases(eager="sets .mark of a Tensor")
def attributes_of_what_is_set_as_a_gradient(trace):
    weight = torch.ones(3, requires_grad=True)

    def fn(x):
        made = torch.stack([x, x])[0]
        weight.grad = made
        made.mark = "a"
        return x * 2

    return trace(fn), [call(X())] * 4, lambda: (weight.grad, dict(getattr(weight.grad, "__dict__", {})))


@cases(hits=2)
def attributes_that_the_class_sets_otherwise(trace):
    def fn(x):
        y = x * 2
        y.mark = 1
        return y

    def step(x):
        return dict(vars(traced(x)))

    def patch():
        torch.Tensor.__setattr__ = lambda self, name, value: object.__setattr__(self, name, (value,))

    def mend():
        del torch.Tensor.__setattr__

    traced = trace(fn)
    return step, [*[call(X())] * 2, patch, call(X()), mend, call(X())]


@pytest.mark.parametrize("name", ["__setattr__", "__getattribute__"])
def test_numbers_while_the_class_treats_attributes_otherwise(name):
    def case(trace):
        state = {"k": 2.0}
        usual = getattr(torch.Tensor, name)

        def patch():
            setattr(torch.Tensor, name, lambda self, *args: usual(self, *args))

        def move():
            state["k"] += 1

        step = trace(lambda x: x * state["k"] + x.sum().item())
        others = call(X()).of(lambda x: mended(step, x))

        def mended(fn, x):
            patch()
            try:
                return fn(x)
            finally:
                delattr(torch.Tensor, name)

        return step, [call(X()), others, move, call(X()), others, move, call(X()), others]

    check(case, hits=1, eager="patched-tensor")


def test_a_graph_has_no_attributes():
    def fn(x):
        y = x.exp()
        y.mark = 1
        return y

    traced = lazytrace.traced(fn)
    traced(X())
    with pytest.raises(NotImplementedError, match=r"returns a tensor with attributes\. Set them on what"):
        traced.graph(X())
    assert traced.program(X()).result.build(lambda _: torch.zeros(1)).mark == 1


@cases.parametrize
def test_outputs(make, expected):
    check(make, **expected)
