"""Models that are traced alone: one node of autograd stands for all that a replay did.

The caller may ask anything of it that could be asked of the graph: a second pass, a graph of the gradients,
gradients of some inputs only. Each case asks for gradients alone until the node is there, then for something
else, then for gradients alone again.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import types
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import lazytrace
from lazytrace import traced
from tests.soundness.runner import agree, call, check
from tests.soundness.test_flat_steps import ENOUGH, forms_of


# ---------------------------------------------------------------- what is traced
def layers(x, w, b):
    h = F.gelu(F.layer_norm(x @ w + b, (4,)))
    return torch.tanh(h @ w.t() * 0.5 + x).exp()


def drops(x, w, b):
    h = F.dropout(torch.relu(x @ w + b), 0.5) @ w
    return F.dropout(torch.sigmoid(h), 0.3) * w.sum()


def ends_in_a_view(x, w, b):
    h = torch.tanh(F.linear(x.view(3, 2, 4), w, b))
    return F.linear(h * h, w, b).transpose(0, 1)[1:]


def gives_two(x, w, b):
    h = torch.tanh(x @ w + b)
    return (h * h).exp() @ w, torch.sigmoid(h.t()).t() * b


def gives_parts(x, w, b):
    h = torch.tanh(torch.tanh(x @ w + b) @ w) * 2
    first, second = h.chunk(2, 1)
    return first, second, h


def gives_a_loss(x, w, b):
    return F.mse_loss(torch.tanh(torch.tanh(x @ w + b) @ w), x.detach()).log()


def adds_only(x, w, b):
    y = x + b
    for _ in range(6):
        y = y + b
    return y.view(-1) + w.view(-1).repeat(2)[:24]


def scatters(x, w, b):
    rows = torch.tensor([0, 2, 2, 1])
    out = torch.zeros(6, 4)
    out[rows] = torch.tanh(x[:4] @ w) + b
    return F.embedding(rows, out @ w).cumsum(0) * b


def counts(x, w, b, bn, seen):
    """Writes to what it has read before, and is read after it."""
    h = bn(torch.tanh(x @ w) + seen) + b
    seen.mul_(0.9)
    with torch.no_grad():
        seen.add_(h.mean())
    return torch.tanh(bn(h + seen)) @ w


counts.state = lambda: (torch.nn.BatchNorm1d(4), torch.ones(4))


def works_out_numbers(x, w, b, at):
    """Numbers that are due where views begin that its node makes again."""
    at.calls += 1
    h = torch.tanh(F.linear(x, w, b))
    at.share = at.share * 0.9
    h = torch.tanh(F.linear(h, w, b))
    at.calls += 2
    return F.linear(h, w, b)


works_out_numbers.state = lambda: (types.SimpleNamespace(calls=0, share=0.5),)

MODELS = [
    counts,
    works_out_numbers,
    layers,
    drops,
    ends_in_a_view,
    gives_two,
    gives_parts,
    gives_a_loss,
    adds_only,
    scatters,
]


def each(out):
    return out if isinstance(out, tuple) else (out,)


def loss_of(out):
    return sum((o * torch.linspace(0.5, 1.5, o.numel()).view(o.shape)).sum() for o in each(out))


# ---------------------------------------------------------------- what is asked of it
def plainly(out, x, w, b):
    loss_of(out).backward()


def twice(out, x, w, b):
    loss = loss_of(out)
    loss.backward(retain_graph=True)
    loss.backward()


def once_too_often(out, x, w, b):
    loss_of(out).backward()
    loss_of(out).backward()


def three_times(out, x, w, b):
    loss = loss_of(out)
    for keep in (True, False, False):
        loss.backward(retain_graph=keep)


def differentiates_twice(out, x, w, b):
    first = torch.autograd.grad(loss_of(out), (x, w, b), create_graph=True)
    sum(g.pow(2).sum() for g in first).backward()
    return first


def curved(out):
    return sum(F.softplus(o).square().sum() for o in each(out))


def differentiates_a_curved_loss_twice(out, x, w, b):
    first = torch.autograd.grad(curved(out), (x, w, b), create_graph=True)
    sum(g.pow(2).sum() for g in first).backward()
    return first


def adds_a_penalty(out, x, w, b):
    loss = curved(out)
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + first.square().sum()).backward()
    return first


def penalizes_in_turn(out, x, w, b):
    loss = curved(out)
    (first,) = torch.autograd.grad(loss, w, create_graph=True)
    first.square().sum().backward(retain_graph=True)
    loss.backward(retain_graph=True)
    (second,) = torch.autograd.grad(first.sum() + loss, b, create_graph=True)
    second.sum().backward()
    return first, second


def hooks_a_result_and_differentiates_twice(out, x, w, b):
    seen = []
    for o in each(out):
        o.register_hook(lambda g: seen.append(g.detach().clone()) or g * 2)
    (first,) = torch.autograd.grad(curved(out), w, create_graph=True)
    first.pow(2).sum().backward(retain_graph=True)
    curved(out).backward()
    return first, seen


def differentiates_three_times(out, x, w, b):
    (first,) = torch.autograd.grad(loss_of(out), w, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), w, create_graph=True)
    second.pow(2).sum().backward()
    return first, second


def keeps_a_graph(out, x, w, b):
    loss_of(out).backward(create_graph=True)
    grads = x.grad, w.grad, b.grad
    x.grad = w.grad = b.grad = None
    second = torch.autograd.grad(sum(g.pow(2).sum() for g in grads), (w, b), allow_unused=True)
    # The graph is built late: what comes to the uses of a tensor is added up in another order, of gradients
    # of gradients alone.
    return [g.detach() for g in grads], [g if g is None else (g * 1e3).round() for g in second]


def of_one_input(out, x, w, b):
    return torch.autograd.grad(loss_of(out), x)


def of_inputs_in_turn(out, x, w, b):
    loss = loss_of(out)
    return torch.autograd.grad(loss, b, retain_graph=True), torch.autograd.grad(loss, (w, x))


def of_inputs_without_keeping(out, x, w, b):
    loss = loss_of(out)
    return torch.autograd.grad(loss, b), torch.autograd.grad(loss, w)


def of_an_expanded_gradient(out, x, w, b):
    sum(o.sum() for o in each(out)).backward()


def of_a_transposed_gradient(out, x, w, b):
    for o in each(out):
        gradient = torch.linspace(0, 1, o.numel())
        gradient = gradient.view(o.shape[::-1]).permute(*range(o.dim())[::-1])
        o.backward(gradient, retain_graph=True)


def of_each_result(out, x, w, b):
    for o in each(out):
        loss_of(o).backward(retain_graph=True)


def of_each_result_without_keeping(out, x, w, b):
    for o in each(out):
        loss_of(o).backward()


def of_the_first_result(out, x, w, b):
    loss_of(each(out)[0]).backward()


def of_the_last_result(out, x, w, b):
    loss_of(each(out)[-1]).backward()


def of_many_gradients(out, x, w, b):
    loss = each(out)[0]
    return torch.autograd.grad(
        loss, (x, w), torch.eye(loss.numel()).view(-1, *loss.shape), is_grads_batched=True
    )


def of_a_wrong_shape(out, x, w, b):
    each(out)[0].backward(torch.ones(7))


def writes_to_the_result(out, x, w, b):
    each(out)[0].mul_(2)
    loss_of(out).backward()


def writes_to_the_detached_result(out, x, w, b):
    each(out)[0].detach().mul_(2)
    loss_of(out).backward()


def writes_to_a_row(out, x, w, b):
    if each(out)[0].dim():
        each(out)[0][0] = 1
    loss_of(out).backward()


def writes_to_the_weight(out, x, w, b):
    with torch.no_grad():
        w.mul_(0.5)
    loss_of(out).backward()


def writes_to_the_bias(out, x, w, b):
    with torch.no_grad():
        b.mul_(0.5)
    loss_of(out).backward()


def writes_to_the_input(out, x, w, b):
    with torch.no_grad():
        x.mul_(0.5)
    try:
        loss_of(out).backward()
    except RuntimeError as error:
        w.grad = b.grad = None  # some of them are there where each operator has a node
        return str(error)


def writes_behind_its_back(out, x, w, b):
    w.data.mul_(0.5)
    loss_of(out).backward()


def writes_behind_the_back_of_a_result(out, x, w, b):
    each(out)[0].data.mul_(0.5)
    return torch.autograd.grad(loss_of(out), x)


def writes_to_a_result_after_more(out, x, w, b):
    loss = loss_of(out)
    first = torch.autograd.grad(loss, x, create_graph=True)
    each(out)[0].detach().mul_(0.5)
    try:
        return first, torch.autograd.grad(loss, x)
    except RuntimeError as error:
        return first, str(error)


def writes_behind_the_back_of_a_result_after_more(out, x, w, b):
    loss = loss_of(out)
    first = torch.autograd.grad(loss, x, create_graph=True)
    each(out)[0].data.mul_(0.5)
    return first, torch.autograd.grad(loss, x)


def writes_between_passes(out, x, w, b):
    loss = loss_of(out)
    loss.backward(retain_graph=True)
    with torch.no_grad():
        w.mul_(0.5)
    loss.backward()


def hooks_the_result(out, x, w, b):
    seen = []
    for o in each(out):
        o.register_hook(lambda g: seen.append(g) or g * 2)
        o.retain_grad()
    loss_of(out).backward()
    return seen, [o.grad for o in each(out)]


def hooks_the_weight(out, x, w, b):
    # One list each: which leaf autograd comes to first is left to a heap of equals.
    seen = [], [], []
    handles = [
        w.register_hook(lambda g: seen[0].append(g) or g * 2),
        x.register_hook(lambda g: seen[1].append(g)),
        b.register_post_accumulate_grad_hook(lambda p: seen[2].append(p.grad.clone())),
    ]
    loss_of(out).backward()
    for handle in handles:
        handle.remove()
    return seen


def hooks_the_node(out, x, w, b):
    seen = []
    for o in each(out):
        o.grad_fn.register_prehook(lambda gs: seen.append(gs))
    loss_of(out).backward()
    return seen


def raises_in_a_hook(out, x, w, b):
    each(out)[0].register_hook(lambda g: 1 // 0)
    loss_of(out).backward()


def under_anomaly_mode(out, x, w, b):
    with torch.autograd.detect_anomaly(check_nan=True):
        loss_of(out).backward()


def under_hooks_of_saved_tensors(out, x, w, b):
    seen = []
    loss = loss_of(out)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.clone()) or t, lambda t: t):
        return torch.autograd.grad(loss, x, create_graph=True), seen


def under_a_dispatch_mode(out, x, w, b):
    loss = loss_of(out)
    with Doubled():
        return torch.autograd.grad(loss, x)


def under_autocast(out, x, w, b):
    loss = loss_of(out)
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()


def deterministically(out, x, w, b):
    loss = loss_of(out)
    torch.use_deterministic_algorithms(True)
    loss.backward()
    torch.use_deterministic_algorithms(False)


def in_another_thread(out, x, w, b):
    loss = loss_of(out)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


def twice_in_threads(out, x, w, b):
    loss = loss_of(out)
    for _ in range(2):
        thread = threading.Thread(target=lambda: loss.backward(retain_graph=True))
        thread.start()
        thread.join()


def without_gradients(out, x, w, b):
    loss = loss_of(out)
    with torch.no_grad():
        loss.backward()


def never(out, x, w, b):
    return None


def adds_to_gradients(out, x, w, b):
    w.grad = torch.ones_like(w)
    b.grad = torch.ones(8)[::2]
    loss_of(out).backward()


def shares_gradients(out, x, w, b):
    w.grad = torch.zeros_like(w)
    b.grad = w.grad[0]
    loss_of(out).backward()


def draws_in_between(out, x, w, b):
    noise = torch.rand(2)
    (first,) = torch.autograd.grad(loss_of(out), w, create_graph=True)
    first.sum().backward()
    return noise, torch.rand(2)


def uses_the_weight_again(out, x, w, b):
    (loss_of(out) + (w * 3).sum() + torch.tanh(b).sum() + (x @ w).sum()).backward()


HOW = ("out", "x", "w", "b")
ASKED = [
    one
    for one in list(globals().values())
    if getattr(one, "__module__", "") == __name__ and one.__code__.co_varnames[:4] == HOW
]


def asking(model, asks, seen=None, history=False, usual=plainly):
    """A case: gradients alone until there is one node, then what `asks` does, and gradients alone again."""

    def make(trace):
        torch.manual_seed(3)
        w = torch.nn.Parameter(torch.randn(4, 4))
        b = torch.nn.Parameter(torch.randn(4))
        more = getattr(model, "state", tuple)()
        inner = trace(lambda x: model(x, w, b, *more))

        def step(x, ask):
            w.grad = b.grad = x.grad = None
            start = torch.tanh(x) if history else x
            out = inner(start)
            values = [o.detach().clone() for o in each(out)]
            return values, ask(out, x, w, b)

        def look():
            if seen is not None and hasattr(inner, "stats"):
                seen.extend(forms_of(inner))

        def some(ask):
            return call(torch.randn(6, 4).requires_grad_(), ask)

        steps: list = [some(usual) for _ in range(ENOUGH)]
        steps += [look, some(asks), some(usual), some(asks), *[some(usual) for _ in range(4)]]
        return step, steps, lambda: (w, b, w.grad, b.grad, more)

    return make


# All that can be asked, of three; of the others, what hangs on what they return and write.
FULLY = {layers: False, drops: False, gives_two: True}
OF_OTHERS = (
    plainly,
    once_too_often,
    differentiates_twice,
    differentiates_a_curved_loss_twice,
    adds_a_penalty,
    of_inputs_in_turn,
    of_an_expanded_gradient,
    of_each_result,
    of_each_result_without_keeping,
    writes_to_the_result,
    writes_to_a_row,
    writes_to_the_weight,
    hooks_the_result,
)
# What comes to one place by three ways is added up in the order of the nodes, and those of a graph that is
# made late are younger than the loss: the last bit may differ.
TO_THE_LAST_BIT_BUT_ONE = [
    (layers, asks)
    for asks in (
        differentiates_a_curved_loss_twice,
        adds_a_penalty,
        penalizes_in_turn,
        hooks_a_result_and_differentiates_twice,
    )
]
CASES = [(model, asks, history) for model, history in FULLY.items() for asks in ASKED]
CASES = [case for case in CASES if case[:2] not in TO_THE_LAST_BIT_BUT_ONE]
CASES += [
    (model, asks, bool(i % 2)) for model in MODELS if model not in FULLY for i, asks in enumerate(OF_OTHERS)
]


class Doubled(TorchDispatchMode):
    """Doubles what all operators give that a forward pass runs."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        mine = func.overloadpacket.__name__ in ("exp", "sigmoid", "tanh", "native_layer_norm", "gelu")
        return torch.utils._pytree.tree_map(lambda t: t * 2, out) if mine else out


@pytest.mark.parametrize(
    ("model", "asks", "history"),
    CASES,
    ids=[
        f"{model.__name__}-{asks.__name__}-of_a_{'history' if history else 'leaf'}"
        for model, asks, history in CASES
    ],
)
def test_what_is_asked_of_a_node(model, asks, history):
    seen = []
    tracer = agree(asking(model, asks, seen, history))
    assert seen == ["one node"], seen
    assert tracer.count("hits") >= ENOUGH, tracer.account()


def agree_to_the_last_bit_but_one(model, asks, usual=plainly, at=(ENOUGH + 5,), count=ENOUGH + 6):
    """`asks` at some calls, when there is one node, and `usual` at the others, plain and traced."""
    found = []
    for trace in (lambda function: function, traced):
        torch.manual_seed(3)
        w, b = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(4))
        function = trace(lambda x, w=w, b=b: model(x, w, b))
        for i in range(count):
            if i == at[0] and trace is traced:
                assert forms_of(function) == ["one node"]
            w.grad = b.grad = None
            x = torch.randn(6, 4, requires_grad=True)
            given = (asks if i in at else usual)(function(x), x, w, b)
            found.append([given, x.grad, w.grad, b.grad])
    assert function.cache_info().hits >= ENOUGH
    torch.testing.assert_close(found[count:], found[:count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("model", "asks"), TO_THE_LAST_BIT_BUT_ONE)
def test_what_is_added_up_in_another_order(model, asks):
    agree_to_the_last_bit_but_one(model, asks)


def loss_and_scores(x, w, b):
    scores = F.linear(torch.tanh(F.layer_norm(x @ w, (4,))), w, b)
    return (scores * scores).exp().mean().log(), scores


def loss_and_a_view_of_scores(x, w, b):
    scores = F.linear(torch.tanh(x.view(3, 2, 4)), w, b)
    return F.cross_entropy(scores.view(-1, 4), torch.tensor([0, 1, 2, 3, 0, 1])), scores


def loss_and_parts(x, w, b):
    first, second = torch.tanh(F.linear(torch.tanh(x @ w), w, b)).chunk(2, 1)
    return (first * second.exp()).sum().tanh(), first, second


def hidden_and_what_follows(x, w, b):
    h = torch.tanh(F.layer_norm(x @ w, (4,)))
    return torch.sigmoid(h @ w + b), h, h.detach(), torch.tanh(h + 1)


def hooks_what_a_loss_is_made_of(out, x, w, b):
    seen = [[] for _ in out]
    for o, calls in zip(out, seen, strict=True):
        if o.requires_grad:
            o.register_hook(lambda g, calls=calls: calls.append(g) or g * 2)
            o.retain_grad()
    loss_of(out[0]).backward(retain_graph=True)
    first = [o.grad for o in out]
    loss_of(out[0]).backward()
    return seen, first, [o.grad for o in out]


OF_RESULTS = (
    of_the_first_result,
    of_the_last_result,
    plainly,
    of_each_result,
    of_each_result_without_keeping,
    once_too_often,
    differentiates_twice,
    writes_to_the_result,
    hooks_what_a_loss_is_made_of,
)


def of_all_that_have_a_graph(out, x, w, b):
    loss_of(tuple(o for o in out if o.requires_grad)).backward()


# What is used as a rule, and whether one node can stand for that: what comes to a view from the caller, and
# to another inside of the function, would be added up in another order.
USED = [
    (loss_and_scores, of_the_first_result, "one node"),
    (loss_and_scores, plainly, "one node"),
    (loss_and_scores, of_the_last_result, "one node"),
    (loss_and_a_view_of_scores, of_the_first_result, "one node"),
    (loss_and_a_view_of_scores, plainly, "a backward pass asked for more than gradients"),
    (loss_and_parts, of_the_first_result, "one node"),
    (loss_and_parts, plainly, "a backward pass asked for more than gradients"),
    (hidden_and_what_follows, of_the_first_result, "one node"),
    (hidden_and_what_follows, of_all_that_have_a_graph, "one node"),
]


@pytest.mark.parametrize("asks", OF_RESULTS, ids=[one.__name__ for one in OF_RESULTS])
@pytest.mark.parametrize(
    ("model", "usual", "form"), USED, ids=[f"{model.__name__}-{usual.__name__}" for model, usual, _ in USED]
)
def test_results_that_others_are_made_of(model, usual, form, asks):
    seen = []
    tracer = agree(asking(model, asks, seen, usual=usual))
    assert seen == [form], seen
    assert tracer.count("hits") >= ENOUGH, tracer.account()


# ---------------------------------------------------------------- around it
def loop(body, seen=None, count=ENOUGH + 8, between=None):
    """A case: `body(fn, w, b, x, number)` is a step that calls the traced `layers`."""

    def make(trace):
        torch.manual_seed(4)
        w = torch.nn.Parameter(torch.randn(4, 4))
        b = torch.nn.Parameter(torch.randn(4))
        inner = trace(lambda x: layers(x, w, b))

        def step(x, number):
            w.grad = b.grad = None
            return body(inner, w, b, x, number)

        def look():
            if seen is not None and hasattr(inner, "stats"):
                seen.extend(forms_of(inner))
            if between is not None:
                between(w, b)

        steps: list = [call(torch.randn(6, 4).requires_grad_(), number) for number in range(count)]
        steps[ENOUGH + 4 : ENOUGH + 4] = [look]
        return step, steps, lambda: (w, b, w.grad, b.grad)

    return make


def trains(fn, w, b, x, number):
    optimizer = torch.optim.SGD([w, b], 0.01)
    loss_of(fn(x)).backward()
    optimizer.step()


def calls_it_twice(fn, w, b, x, number):
    (loss_of(fn(x)) - loss_of(fn(x * 2))).backward()


def feeds_it_its_result(fn, w, b, x, number):
    h = x
    for _ in range(3):
        h = torch.log1p(fn(h))
    loss_of(h).backward()


def uses_the_weight_before_and_behind(fn, w, b, x, number):
    loss_of(torch.tanh(fn(torch.tanh(x @ w + b)) @ w + b)).backward()


def accumulates_over_calls(fn, w, b, x, number):
    outs = [fn(x), fn(x + 1), fn(x + 2)]
    for out in outs:
        loss_of(out).backward()


def accumulates_out_of_order(fn, w, b, x, number):
    outs = [fn(x), fn(x + 1), fn(x + 2)]
    for out in (outs[1], outs[0], outs[2]):
        loss_of(out).backward()


def drops_some(fn, w, b, x, number):
    out = fn(x)
    if number % 3:
        loss_of(out).backward()


def checkpoints(fn, w, b, x, number):
    loss_of(checkpoint(fn, torch.tanh(x), use_reentrant=bool(number % 2))).backward()


def saves_through_hooks(fn, w, b, x, number):
    with torch.autograd.graph.save_on_cpu():
        out = fn(x)
    loss_of(out).backward()


def saves_through_hooks_at_times(fn, w, b, x, number):
    packed = []
    if number % 3:
        return plainly(fn(x), x, w, b)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        out = fn(x)
    loss_of(out).backward()
    return len(packed)


def asks_for_jacobians(fn, w, b, x, number):
    if number > ENOUGH + 4 and number % 2:
        return torch.autograd.functional.jacobian(fn, x[:6].detach())
    return plainly(fn(x), x, w, b)


def calls_it_in_threads(fn, w, b, x, number):
    outs = [None] * 3

    def run(i):
        out = fn(x.detach() + i)
        outs[i] = torch.autograd.grad(loss_of(out), (w, b))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outs


def calls_it_in_a_backward_pass(fn, w, b, x, number):
    class Calls(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                inner = g.detach().requires_grad_()
                loss_of(fn(inner)).backward()
            return inner.grad

    Calls.apply(x).sum().backward()


def changes_results_before_it_uses_them(fn, w, b, x, number):
    out = fn(x)
    (out + 0).mul_(2)
    kept = out.detach()
    loss_of(out * kept).backward()
    kept.zero_()
    return out.detach()


def keeps_the_graph_over_calls(fn, w, b, x, number, kept=[]):  # noqa: B006
    if number == 0:
        kept.clear()
    kept.append(loss_of(fn(x)))
    if len(kept) > 2:
        kept.pop(0).backward()


@pytest.mark.parametrize(
    "body",
    [
        trains,
        calls_it_twice,
        feeds_it_its_result,
        uses_the_weight_before_and_behind,
        accumulates_over_calls,
        accumulates_out_of_order,
        drops_some,
        asks_for_jacobians,
        calls_it_in_a_backward_pass,
        changes_results_before_it_uses_them,
        keeps_the_graph_over_calls,
        calls_it_in_threads,
    ],
    ids=lambda body: body.__name__,
)
def test_what_is_around_it(body):
    seen = []
    check(loop(body, seen), hits=ENOUGH)
    assert "one node" in seen, seen


def freezes(w, b):
    b.requires_grad_(False)


def swaps(w, b):
    w.data, b.data = torch.ones(4, 4), torch.ones(4)


def hooks(w, b):
    w.register_hook(lambda g: g * 2)


def hooks_what_comes_of_it(w, b):
    b.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3))


@pytest.mark.parametrize(
    "between", [freezes, swaps, hooks, hooks_what_comes_of_it], ids=lambda one: one.__name__
)
def test_what_changes_between_calls(between):
    def body(fn, w, b, x, number):
        loss_of(fn(x)).backward()

    seen = []
    check(loop(body, seen, between=between), hits=ENOUGH)
    assert "one node" in seen, seen


@pytest.mark.parametrize(
    "body", [checkpoints, saves_through_hooks, saves_through_hooks_at_times], ids=lambda one: one.__name__
)
def test_calls_under_hooks_of_saved_tensors(body):
    check(loop(body), hits=1)


# ---------------------------------------------------------------- what is set before the pass
def hooks_in_turn(seen, leaves):
    return [p.register_hook(lambda g, i=i: seen.append(i)) for i, p in enumerate(leaves)]


def hooks_behind(seen, leaves):
    def look(p, i):
        seen.append((i, [q.grad is None for q in leaves]))

    return [p.register_post_accumulate_grad_hook(lambda p, i=i: look(p, i)) for i, p in enumerate(leaves)]


def hooks_of_accumulators(seen, leaves):
    nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in leaves]
    seen.append(None)
    return [n.register_hook(lambda *_, i=i, n=n: seen.append(i)) for i, n in enumerate(nodes)]


def hooks_of_many(seen, leaves):
    look = torch.autograd.graph.register_multi_grad_hook
    return [look(leaves, lambda gradients: seen.append([g is None for g in gradients]))]


def a_hook_that_raises(seen, leaves):
    return [leaves[2].register_hook(lambda g: 1 // 0)]


def a_hook_that_writes(seen, leaves):
    return [leaves[4].register_hook(lambda g: leaves[2].detach().mul_(2) and None)]


def steps_in_the_pass(seen, leaves):
    def step(p):
        p.data.sub_(p.grad)
        p.grad = None

    return [p.register_post_accumulate_grad_hook(step) for p in leaves]


class Named(TorchDispatchMode):
    """Writes down which operators run."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "sets",
    [
        hooks_in_turn,
        hooks_behind,
        hooks_of_accumulators,
        hooks_of_many,
        a_hook_that_raises,
        a_hook_that_writes,
        steps_in_the_pass,
        Named,
    ],
    ids=lambda sets: sets.__name__,
)
@pytest.mark.parametrize("more", [False, True], ids=["of_leaves", "of_a_history_and_two_results"])
def test_what_is_set_between_a_call_and_its_backward_pass(sets, more):
    """It sees, and does, what it would between the nodes that one stands for."""

    def make(trace):
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            *(layer for _ in range(3) for layer in (torch.nn.Linear(4, 4), torch.nn.Sigmoid()))
        )
        leaves = list(model.parameters())

        def results(x):
            first = model[:4](x)
            return (first, model[4:](first)) if more else model[4:](first)

        inner = trace(results)

        def step(x, late):
            seen = []
            for p in leaves:
                p.grad = None
            out = inner(torch.tanh(x) if more else x)
            loss = each(out)[-1].sum()
            if not late:
                return loss.backward()
            made = sets(seen, leaves) if sets is not Named else [Named(seen)]
            try:
                with made[0] if sets is Named else contextlib.nullcontext():
                    loss.backward()
            except (RuntimeError, ZeroDivisionError) as error:
                seen.append(str(error))
            for handle in made if sets is not Named else ():
                handle.remove()
            return seen

        def some(late):
            return call(torch.randn(3, 4, requires_grad=more), late)

        calls: list = [some(False) for _ in range(ENOUGH)]
        calls.append(lambda: seen.extend(forms_of(inner) if hasattr(inner, "stats") else ()))
        calls += [some(late) for late in (True, False, True)]
        return step, calls, lambda: [(p, p.grad) for p in leaves]

    seen = []
    check(make, hits=ENOUGH)
    assert seen == ["one node"], seen


def ready(model=layers, usual=plainly):
    """A traced function whose replays are one node, and its state."""
    w, b = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(4))
    fn = lazytrace.traced(lambda x: model(x, w, b))
    for _ in range(ENOUGH):
        usual(fn(torch.randn(6, 4)), None, w, b)
    assert forms_of(fn) == ["one node"]
    return fn, w, b


def test_a_node_lets_go_of_what_it_holds():
    fn, *_ = ready()
    x = torch.randn(6, 4)
    alive = weakref.ref(x)
    out = fn(x)
    del x
    assert alive() is not None
    loss_of(out).backward(retain_graph=True)
    assert alive() is not None
    loss_of(out).backward()
    assert alive() is None
    out = fn(torch.randn(6, 4).requires_grad_())
    gone = weakref.ref(out)
    del out
    assert gone() is None


def test_results_hold_no_circle():
    fn, *_ = ready()
    gc.collect()
    gc.disable()
    try:
        seen = []
        for _ in range(3):
            out = fn(torch.randn(6, 4))
            seen.append(weakref.ref(out))
            out.sum().backward(retain_graph=True)
            del out
        assert [one() for one in seen] == [None] * 3
    finally:
        gc.enable()


def test_a_graph_that_cannot_be_built_late():
    fn, w, b = ready()
    x = torch.randn(6, 4)
    out = fn(x)
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="asked for more than the passes before it") as raised:
        torch.autograd.grad(loss_of(out), w, create_graph=True)
    assert "a tensor of float32[4] that the call began with has been written to since" in str(raised.value)
    assert "From now on the function builds its graph at each call" in str(raised.value)
    (first,) = torch.autograd.grad(loss_of(fn(x)), w, create_graph=True)
    assert first.requires_grad


def test_memory_that_was_written_to_behind_a_graph_that_is_built_late():
    """No count of writes shows it; what was computed from that memory does. Eager goes on."""
    fn, w, _ = ready()
    out = fn(torch.randn(6, 4))
    w.data.mul_(0.5)
    with pytest.raises(RuntimeError, match="that the call began with was written to since, by"):
        torch.autograd.grad(loss_of(out), w)
    fn, w, _ = ready()
    w.grad = None
    out = fn(torch.randn(6, 4))
    w.data.mul_(0.5)
    loss_of(out).backward()
    assert w.grad is not None


def hooks_what_gets_gradients_from_everywhere(out, x, w, b):
    seen = []
    out[1].register_hook(lambda g: seen.append(g) or g * 2)
    (loss_of(out[0]) + out[1].sum()).backward()
    return seen


def hooks_after_a_pass_that_asked_for_more(out, x, w, b):
    loss = loss_of(out[0])
    torch.autograd.grad(loss, w, retain_graph=True)
    out[1].retain_grad()
    (loss + out[1].sum()).backward()
    return out[1].grad


@pytest.mark.parametrize(
    "asks", [hooks_what_gets_gradients_from_everywhere, hooks_after_a_pass_that_asked_for_more]
)
def test_hooks_of_a_result_that_gets_gradients_from_the_caller_too(asks):
    """What comes to it is added up in another order."""
    agree_to_the_last_bit_but_one(loss_and_scores, asks, of_the_first_result)


def begins_at_a_leaf_too(out, x, w, b):
    outs = [x, w, *each(out)]
    torch.autograd.backward(outs, [torch.ones_like(o) for o in outs], create_graph=True)
    return x.grad.detach(), w.grad.detach()


def adds_a_leaf_last(out, x, w, b):
    """The node where the pass begins leads to the leaf, and no other node outside does."""
    seen = []
    handle = b.register_hook(lambda g: seen.append(g))
    residual = each(out)[0].view(6, 4) + x
    residual.backward(torch.ones(6, 4))
    handle.remove()
    return seen


def begins_at_the_results_and_a_leaf(out, x, w, b):
    handle = w.register_hook(lambda g: g * 2)
    torch.autograd.backward([*each(out), b], [torch.ones_like(o) for o in (*each(out), b)])
    handle.remove()


@pytest.mark.parametrize("model", [layers, drops, gives_two])
@pytest.mark.parametrize("asks", [begins_at_a_leaf_too, adds_a_leaf_last, begins_at_the_results_and_a_leaf])
def test_passes_that_lead_to_a_leaf_where_they_begin(model, asks):
    """Where a pass begins is none of its nodes; what it brings from there comes to leaves, too."""
    agree_to_the_last_bit_but_one(model, asks)


def inside_of_a_hook(of, keep):
    """What asks for gradients in a hook of one of `of`, in the middle of a pass through the same results."""

    def asks(out, x, w, b):
        outs, seen = each(out), []
        loss = sum((o * o).sum() for o in outs)

        def look(_):
            if not seen:
                seen.append(None)  # that pass comes here, too
                seen.extend(torch.autograd.grad(loss, (x, w, *outs[1:]), retain_graph=True))

        place = outs[-1] if of == "result" else w
        handle = place.register_hook(look)
        ((loss_of(out) * 2) if of == "result" else outs[0].sum()).backward(retain_graph=keep)
        handle.remove()
        return seen

    return asks


@pytest.mark.parametrize("model", [layers, gives_two, loss_and_scores, ends_in_a_view])
@pytest.mark.parametrize("of", ["result", "leaf"])
def test_passes_that_hooks_begin(model, of):
    agree_to_the_last_bit_but_one(model, inside_of_a_hook(of, keep=True))


def writes_to_what_others_have_saved(out, x, w, b):
    out[1].detach().mul_(2)
    try:
        loss_of(out[0]).backward()
    except RuntimeError as error:
        w.grad = b.grad = None
        return str(error)


def test_what_is_said_of_a_result_that_was_written_to():
    seen = []
    agree(asking(loss_and_scores, writes_to_what_others_have_saved, seen, usual=of_the_first_result))
    assert seen == ["one node"], seen


def test_a_hook_on_the_node_of_a_result():
    fn, *_ = ready()
    out = fn(torch.randn(6, 4))
    out.grad_fn.register_hook(lambda inputs, outputs: None)
    with pytest.raises(RuntimeError, match="a hook was set on the node of a result"):
        out.sum().backward()
    seen = []
    out = fn(torch.randn(6, 4))
    out.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    out.sum().backward()
    ((inputs, outputs),) = seen
    assert torch.equal(inputs[0], outputs[0] * out)  # the last operator is exp()


def test_nodes_outlive_the_function():
    fn, w, _ = ready()
    loss = loss_of(fn(torch.randn(6, 4)))
    del fn
    gc.collect()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert w.grad is not None


def test_a_small_graph_is_left_as_it_is():
    w = torch.randn(4, requires_grad=True)
    fn = lazytrace.traced(lambda x: x * w + 1)
    for _ in range(ENOUGH):
        fn(torch.randn(4)).sum().backward()
    assert forms_of(fn) == ["its graph is too small for one node to pay"]
