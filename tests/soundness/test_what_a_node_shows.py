"""One node in the place of a graph: what is seen of its results, and what happens to them before a pass."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import agree, call
from tests.soundness.test_flat_steps import ENOUGH, forms_of


def writes_rows(x, w, b):
    out = torch.zeros(6, 4)
    out[torch.tensor([0, 2])] = torch.tanh(torch.tanh(x @ w) @ w)[:2] * b
    return out


def copies_into_new_memory(x, w, b):
    h = torch.tanh(torch.tanh(x @ w) @ w) * b
    return h.new_zeros(6, 4).copy_(h.exp()), h


def newest_first(x, w, b):
    first = torch.tanh(torch.tanh(x @ w) * b)
    second = torch.sigmoid(torch.tanh(x @ w.t()) * b)
    return second, first


def parts_of_one_operator(x, w, b):
    values, _ = torch.sigmoid((torch.tanh(x @ w) * b).exp() @ w).sort(1)
    return values.unbind(1)[1:3]


def oldest_first(x, w, b):
    first = torch.tanh(torch.tanh(x @ w) * b)
    second = torch.sigmoid(torch.tanh(x @ w.t()) * b)
    return first, second, (x * b * b).exp()


MODELS = [writes_rows, copies_into_new_memory, newest_first, parts_of_one_operator, oldest_first]


def each(out):
    return out if isinstance(out, tuple) else (out,)


def loss_of(out):
    return sum((o * torch.linspace(0.5, 1.5, o.numel()).view(o.shape)).sum() for o in each(out))


def state():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in ((4, 4), (4,))]


def ready(model):
    """A traced function whose replays are one node, its state, and an argument."""
    w, b = state()
    fn = lazytrace.traced(lambda x: model(x, w, b))
    x = torch.linspace(-1, 1, 24).view(6, 4)
    for _ in range(ENOUGH):
        loss_of(fn(x)).backward()
        w.grad = b.grad = None
    assert forms_of(fn) == ["one node"]
    return fn, w, b, x


def plain(model):
    w, b = state()
    return lambda x: model(x, w, b), w, b, torch.linspace(-1, 1, 24).view(6, 4)


def both(model, observe):
    """What `observe(fn, w, b, x)` sees of the traced and of the plain function."""
    assert (seen := observe(*ready(model))) == observe(*plain(model)), seen


@pytest.mark.parametrize("model", MODELS, ids=lambda one: one.__name__)
def test_nodes_are_called_what_torch_calls_them(model):
    def observe(fn, w, b, x):
        return [(o.grad_fn.name(), type(o.grad_fn).__name__, o._is_view()) for o in each(fn(x))]

    both(model, observe)


@pytest.mark.parametrize("model", [newest_first, oldest_first], ids=lambda one: one.__name__)
def test_hooks_of_results_are_called_in_the_order_of_the_engine(model):
    def observe(fn, w, b, x):
        seen = []
        out = each(fn(x))
        for number, o in enumerate(out):
            o.register_hook(lambda g, number=number: seen.append((number, g.tolist())))
        loss_of(out).backward()
        return [*seen, w.grad.tolist(), b.grad.tolist()]

    both(model, observe)


# ---------------------------------------------------------------- other memory
def loss_and_its_parts(x, w, b):
    h = torch.tanh(F.linear(torch.tanh(x @ w + b), w))
    return h, F.softplus(h * h).exp().sum()


def on_the_weight(w, b, out):
    w.data = w.data + 1


def on_the_weight_and_back_in_place(w, b, out):
    w.data = (w.data + 1).t().contiguous().t()


def on_another_look_at_the_weight(w, b, out):
    w.data = w.data.t()


def on_a_result(w, b, out):
    out[0].data = out[0].data * 2


OTHER_MEMORY = [
    on_the_weight,
    on_the_weight_and_back_in_place,
    on_another_look_at_the_weight,
    on_a_result,
]


@pytest.mark.parametrize("change", OTHER_MEMORY, ids=lambda one: one.__name__)
def test_other_memory_before_a_pass_that_needs_it(change):
    fn, w, b, x = ready(loss_and_its_parts)
    out = fn(x)
    change(w, b, out)
    with pytest.raises(RuntimeError, match=r"was given other memory \(.data, set_\(\)\) before the backward"):
        loss_of(out).backward()
    assert w.grad is None
    assert b.grad is None
    other, *same = plain(loss_and_its_parts)[:3]
    for mine, its in zip(same, (w, b), strict=True):
        mine.data = its.detach().clone(memory_format=torch.preserve_format)
    for model, weights in ((fn, (w, b)), (other, same)):  # the first one builds its graph from now on
        out = model(x)
        change(*weights, out)
        loss_of(out).backward()
    assert torch.equal(w.grad, same[0].grad)
    assert torch.equal(b.grad, same[1].grad)


def test_other_memory_before_a_pass_that_does_not_need_it():
    def observe(fn, w, b, x):
        out = fn(x)
        b.data = b.data * 2
        loss_of(out).backward()
        return w.grad.tolist(), b.grad.tolist()

    both(loss_and_its_parts, observe)


def test_other_memory_before_a_graph_is_built_late():
    fn, w, b, x = ready(loss_and_its_parts)
    out = fn(x)
    b.data = b.data * 2  # no part of the recorded pass, but of the graph
    with pytest.raises(RuntimeError, match=r"float32\[4\].* was given other memory"):
        torch.autograd.grad(loss_of(out), w, create_graph=True)


def a_graph_of_the_gradients(w, b, out):
    return torch.autograd.grad(loss_of(out), w, create_graph=True)[0]


def a_pass_through_all(w, b, out):
    loss_of(out).backward(create_graph=True)


def gradients_of_some(w, b, out):
    torch.autograd.grad(loss_of(out), w, retain_graph=True)


def again(w, b, out, grad):
    loss_of(out).backward()


def again_for_one(w, b, out, grad):
    return torch.autograd.grad(loss_of(out), w)[0]


def of_the_gradients(w, b, out, grad):
    grad.square().sum().backward()


def to_a_result(w, b, out, grad):
    torch.autograd.grad(out[1], out[0])


THEN = [again, again_for_one, of_the_gradients]


@pytest.mark.parametrize("change", OTHER_MEMORY[1:], ids=lambda one: one.__name__)
@pytest.mark.parametrize("then", THEN, ids=lambda one: one.__name__)
def test_other_memory_between_passes_through_the_graph(then, change):
    """Torch's nodes follow a tensor that they have saved to other memory; those of a late graph say so."""
    fn, w, b, x = ready(loss_and_its_parts)
    out = fn(x)
    grad = a_graph_of_the_gradients(w, b, out)
    change(w, b, out)
    with pytest.raises(RuntimeError, match=r"was given other memory \(.data, set_\(\)\) before the backward"):
        then(w, b, out, grad)


@pytest.mark.filterwarnings(
    "ignore:Using backward.. with create_graph=True", "ignore:grad and param do not obey"
)
@pytest.mark.parametrize("change", OTHER_MEMORY[1:3], ids=lambda one: one.__name__)
@pytest.mark.parametrize("then", THEN, ids=lambda one: one.__name__)
def test_other_memory_between_passes_through_the_leaves(then, change):
    """A pass to all of them is one through a graph that has saved the tensors themselves."""

    def observe(fn, w, b, x):
        out = fn(x)
        a_pass_through_all(w, b, out)
        grad = w.grad
        w.grad = b.grad = None
        change(w, b, out)
        returned = then(w, b, out, grad)
        return [None if t is None else t.tolist() for t in (returned, w.grad, b.grad)]

    both(loss_and_its_parts, observe)


@pytest.mark.parametrize("first", [a_graph_of_the_gradients, gradients_of_some], ids=lambda one: one.__name__)
def test_other_memory_of_what_the_graph_has_not_saved(first):
    def observe(fn, w, b, x):
        out = fn(x)
        first(w, b, out)
        b.data = b.data * 2  # added, which saves nothing
        loss_of(out).backward()
        return w.grad.tolist(), b.grad.tolist()

    both(loss_and_its_parts, observe)


def test_other_memory_and_a_pass_between_results():
    fn, w, b, x = ready(loss_and_its_parts)
    out = fn(x)
    gradients_of_some(w, b, out)
    on_a_result(w, b, out)
    with pytest.raises(RuntimeError, match="was given other memory"):
        to_a_result(w, b, out, None)


def test_an_error_names_the_node_that_a_tensor_has_by_now():
    def observe(fn, w, b, x):
        h, loss = fn(x)
        h[...] *= 2
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            (loss + h.sum()).backward()
        return str(raised.value)

    def of_an_argument(fn, w, b, x):
        x = x.clone().requires_grad_() * 1
        _, loss = fn(x)
        with torch.no_grad():
            x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            loss.backward()
        return str(raised.value)

    both(loss_and_its_parts, observe)
    both(loss_and_its_parts, of_an_argument)


# ---------------------------------------------------------------- who holds what
def test_a_graph_holds_what_that_of_torch_holds():
    """Torch does not save what is only added: who swaps it, or lets go of it, is not told of a graph."""

    def shifted(shift):
        def model(x, w, b):
            h = torch.tanh(torch.tanh(x @ w + shift[0]) @ w + b)
            return (h * h).exp().sum()

        return model

    def observe_all(ready_or_plain):
        seen = []
        shift = [torch.full((4,), 0.5)]
        fn, w, b, x = ready_or_plain(shifted(shift))
        outs = [fn(x) for _ in range(3)]
        outs[0].backward(retain_graph=True)
        seen.append([b._use_count(), shift[0]._use_count()])
        torch.utils.swap_tensors(shift[0], torch.full((4,), 2.0))
        outs[0].backward()
        gone = weakref.ref(shift.pop())
        shift.append(torch.full((4,), 3.0))
        seen.append(gone() is None)
        (first,) = torch.autograd.grad(outs[1], w, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), b)
        torch.utils.swap_tensors(b, torch.nn.Parameter(torch.zeros(4)))
        with pytest.raises(RuntimeError, match="poisoned by swap_tensors"):
            outs[2].backward()
        return seen, [one.tolist() for one in (first, second, fn(x))], b.grad

    assert (seen := observe_all(ready)) == observe_all(plain), seen


# ---------------------------------------------------------------- a gradient that C code takes away
def test_c_code_that_sets_gradients_is_not_run_twice():
    """A function that goes on after a side exit would take away what its backward pass has brought."""

    def make(trace):
        w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

        @trace
        def step(x, often):
            setattr(w, "grad", None)  # noqa: B010
            list(map(setattr, [w], ["grad"], [None]))
            (x * w).sum().backward()
            if often:
                w.data.add_(w.grad)
            return w.grad * 2 if (x * w).sum() > 4 else w.grad + 1

        small, large = torch.tensor([0.1, 0.2]), torch.tensor([10.0, 20.0])
        steps = [call(x, often) for often in (False, True) for x in (small, small, large, large, small)]
        return step, steps, lambda: [w, w.grad]

    agree(make)
