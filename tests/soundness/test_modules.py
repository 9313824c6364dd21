"""nn.Module: parameters, buffers, flags, hooks, children, and what is swapped among them."""

from __future__ import annotations

import types

import torch
from torch import nn

from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


def linear():
    return nn.Linear(3, 2)


def changed(name, make_model, change, x=X, twice=True, **expected):
    """A case: a traced module is called, changed, and called again."""

    def make(trace):
        model = make_model()
        fn = trace(model)
        steps = around(lambda: change(model), x())
        return fn, steps, lambda: model

    make.__name__ = name
    cases(make, **(expected or {"hits": 2}))


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.named = nn.ModuleDict({"x": nn.Tanh()})
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3))
        self.extra = None
        self.k = 2.0

    def forward(self, x):
        x = self.b(self.a(x)) * self.scale + self.shift
        for layer in self.layers:
            x = layer(x)
        for act in self.named.values():
            x = act(x)
        if self.extra is not None:
            x = x + self.extra
        return self.finish(x)

    def finish(self, x):
        return x * self.k


def set_data(model):
    model.a.weight.data = torch.full((3, 3), 0.5)


def replaced_parameter(model):
    model.a.weight = nn.Parameter(torch.full((3, 3), 0.5))


def tie(model):
    model.b.weight = model.a.weight


def in_place(model):
    with torch.no_grad():
        model.a.weight.fill_(0.25)


def plain_instead_of_parameter(model):
    del model.scale
    model.scale = torch.full((3,), 3.0)


def shadow_by_dict(model):
    model.__dict__["scale"] = torch.full((3,), 3.0)


def swap_children(model):
    model.a, model.b = model.b, model.a


def replace_method(model):
    model.finish = types.MethodType(lambda self, x: x - 1, model)


def forward_on_the_instance(model):
    model.forward = lambda x: x * 10


changed("train_to_eval", net, lambda m: m.eval())
changed("one_child_to_eval", net, lambda m: m[2].eval())
changed("dropout_probability", net, lambda m: setattr(m[2], "p", 0.9))
changed("child_replaced", net, lambda m: m.__setitem__(1, nn.Tanh()))
changed("child_added", net, lambda m: m.append(nn.Tanh()))
changed("child_deleted", net, lambda m: m.__delitem__(2))
changed("parameter_data", Twice, set_data)
changed("parameter_replaced", Twice, replaced_parameter)
changed("parameter_tied", Twice, tie)
changed("parameter_in_place", Twice, in_place, hits=3)
changed("parameter_frozen", Twice, lambda m: m.a.weight.requires_grad_(False))
changed("all_frozen", Twice, lambda m: m.requires_grad_(False))
changed("parameter_becomes_plain", Twice, plain_instead_of_parameter)
changed("parameter_shadowed", Twice, shadow_by_dict)
changed("parameter_none", lambda: nn.Linear(3, 2), lambda m: setattr(m, "bias", None))
changed("buffer_replaced", Twice, lambda m: setattr(m, "shift", torch.ones(3)), hits=3)
changed("buffer_in_place", Twice, lambda m: m.shift.add_(1), hits=3)
changed("optional_tensor_set", Twice, lambda m: setattr(m, "extra", torch.ones(3)))
changed("children_swapped", Twice, swap_children, hits=3)
changed("method_on_the_instance", Twice, replace_method)
changed("forward_on_the_instance", Twice, forward_on_the_instance)
changed("list_extended", Twice, lambda m: m.layers.append(nn.Linear(3, 3)))
changed("dict_replaced", Twice, lambda m: m.named.update({"x": nn.Sigmoid()}))
changed("dict_extended", Twice, lambda m: m.named.update({"y": nn.Sigmoid()}))
changed("dtype", Twice, lambda m: m.half().float())
changed("loaded", Twice, lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}), hits=3)
changed(
    "loaded_assign",
    Twice,
    lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
)
changed("forward_hook", Twice, lambda m: m.a.register_forward_hook(lambda mod, args, out: out * 2))
changed("forward_pre_hook", Twice, lambda m: m.a.register_forward_pre_hook(lambda mod, args: (args[0] * 2,)))
changed("hook_on_the_root", Twice, lambda m: m.register_forward_hook(lambda mod, args, out: out * 2))
changed(
    "backward_hook",
    Twice,
    lambda m: m.a.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,)),
    lambda: X(2, 3, grad=True),
    hits=1,
)
changed("parameter_hook", Twice, lambda m: m.a.weight.register_hook(lambda g: g * 2), hits=3)
changed("weight_norm", linear, lambda m: nn.utils.parametrizations.weight_norm(m), hits=1)
changed(
    "pruned",
    linear,
    lambda m: nn.utils.prune.l1_unstructured(m, "weight", amount=2) if hasattr(nn.utils, "prune") else None,
    hits=1,
)
changed("identity_class_swap", lambda: nn.ReLU(), lambda m: setattr(m, "__class__", nn.Tanh))
changed(
    "inplace_flag",
    lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
    lambda m: setattr(m[1], "inplace", True),
)
changed(
    "linear_in_place_weight_and_shape",
    linear,
    lambda m: setattr(m, "weight", nn.Parameter(torch.ones(5, 3))) or setattr(m, "bias", None),
)


@cases(hits=3)
def batch_norm_buffers(trace):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    x = X(5, 3, grad=True)
    return (
        trace(model),
        [*[call(x)] * 3, lambda: model.eval(), *[call(x)] * 2, lambda: model.train(), *[call(x)] * 2],
        lambda: model,
    )


@cases(hits=1)
def batch_norm_without_a_count(trace):
    model = nn.BatchNorm1d(3, track_running_stats=False)
    return trace(model), [call(X(5, 3))] * 3, lambda: model


# The average hangs on the number of batches, which Python reads: each call is a way of its own.
@cases(hits=3)
def batch_norm_cumulative(trace):
    model = nn.BatchNorm1d(3, momentum=None)
    return trace(model), [call(X(5, 3))] * 4, lambda: model


@cases(hits=3)
def instance_norm_statistics(trace):
    model = nn.InstanceNorm1d(3, track_running_stats=True)
    return trace(model), [call(X(2, 3, 4))] * 4, lambda: model


@cases(hits=3)
def functional_batch_norm(trace):
    mean, var = torch.zeros(3), torch.ones(3)
    fn = trace(lambda x: nn.functional.batch_norm(x, mean, var, training=True))
    return fn, [call(X(5, 3))] * 4, lambda: (mean, var)


@cases(hits=3)
def functional_instance_norm(trace):
    mean, var = torch.zeros(3), torch.ones(3)
    fn = trace(lambda x: nn.functional.instance_norm(x, mean, var, use_input_stats=True))
    return fn, [call(X(2, 3, 4))] * 4, lambda: (mean, var)


# Could be a hit, as test_effects.buffer_assigned.
@cases(hits=3)
def spectral_norm(trace):
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    return trace(model), [call(X())] * 4, lambda: model


@cases(hits=3)
def old_spectral_norm(trace):
    model = nn.utils.spectral_norm(nn.Linear(3, 2))
    return trace(model), [call(X())] * 4, lambda: model.weight_u


@cases(hits=2)
def embedding_with_max_norm(trace):
    model = nn.Embedding(5, 3, max_norm=0.5)
    return (
        trace(model),
        [call(torch.tensor([1, 2])), call(torch.tensor([1, 2])), call(torch.tensor([3, 4]))],
        lambda: model,
    )


@cases(hits=2)
def lazy_module(trace):
    model = nn.LazyLinear(2)
    return trace(model), [call(X())] * 4


@cases(hits=1)
def recurrent(trace):
    model = nn.GRU(3, 4)
    return trace(model), [call(X(5, 2, 3))] * 3, lambda: model


@cases(hits=1)
def transformer_layer(trace):
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1)
    x = X(5, 1, 4, grad=True)
    return trace(model), [*[call(x)] * 3, lambda: model.eval(), *[call(x)] * 2], lambda: model


@cases(hits=2)
def traced_class(trace):
    @trace
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x, scale=1.0):
            return self.fc(x) * scale

    a, b = Net(), Net()
    return a, [
        call(X()),
        call(X()),
        call(X()).of(b),
        call(X()).of(b),
        lambda: setattr(a, "fc", b.fc),
        call(X()),
        call(X()),
    ]


@cases(hits=2)
def two_models_as_arguments(trace):
    a, b = linear(), linear()
    fn = trace(lambda m, x: m(x))
    return fn, [call(a, X()), call(a, X()), call(b, X()), call(b, X()), call(a, X())]


@cases(hits=2)
def global_hook(trace):
    model = linear()
    handles = []

    def change():
        handles.append(nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2))

    def back():
        handles.pop().remove()

    return trace(model), [*around(change, X()), back, call(X()), call(X())]


@cases(hits=2)
def hook_with_a_side_effect(trace):
    model, seen = linear(), []
    model.register_forward_hook(lambda m, a, out: seen.append(out.shape[0]))
    return trace(model), [call(X(2, 3))] * 3, lambda: list(seen)


@cases(hits=2)
def parameters_counted(trace):
    model = nn.Sequential(nn.Linear(3, 3))
    fn = trace(lambda x: x * sum(p.numel() for p in model.parameters()))
    return fn, around(lambda: model.append(nn.Linear(3, 3)), X())


@cases(hits=2)
def penalty_over_parameters(trace):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    fn = trace(
        lambda x: model(x).sum() + sum((p**2).sum() for n, p in model.named_parameters() if "weight" in n)
    )
    return (
        fn,
        around(lambda: model[0].register_parameter("weight2", nn.Parameter(torch.ones(2))), X()),
        lambda: model,
    )


@cases(hits=3)
def mode_toggled_inside(trace):
    model = net()

    def fn(x):
        was = model.training
        model.eval()
        y = model(x)
        model.train(was)
        return y

    return trace(fn), [*[call(X())] * 3, lambda: model.eval(), call(X()), call(X())], lambda: model.training


@cases(hits=1, eager="sets-attribute")
def step_counter_of_a_module(trace):
    class Net(nn.Module):
        steps = 0

        def forward(self, x):
            self.steps += 1
            return x * self.steps

    model = Net()
    return trace(model), [call(X())] * 4, lambda: model.steps


@cases(hits=2)
def cached_mask_of_a_module(trace):
    class Net(nn.Module):
        mask = None

        def forward(self, x):
            if self.mask is None or self.mask.shape[0] != x.shape[0]:
                self.mask = torch.ones(x.shape[0]).cumsum(0)
            return x * self.mask

    model = Net()
    return (
        trace(model),
        [call(X(3)), call(X(3)), call(X(3)), call(X(4)), call(X(4)), call(X(3)), call(X(3))],
        lambda: model.mask,
    )


@cases(hits=1)
def hidden_state_of_a_module(trace):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("h", torch.zeros(3))

        def forward(self, x):
            self.h.copy_(torch.tanh(x + self.h))
            return self.h * 1

    model = Net()
    return trace(model), [call(X())] * 4, lambda: model.h


# Could be a hit, as test_effects.buffer_assigned.
@cases(hits=3)
def buffer_rebound_by_forward(trace):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("h", torch.zeros(3))

        def forward(self, x):
            self.h = torch.tanh(x + self.h)
            return self.h * 1

    model = Net()
    return trace(model), [call(X())] * 4, lambda: model.h


@cases(hits=3)
def traced_optimizer_step(trace):
    w = torch.nn.Parameter(torch.ones(3))
    opt = torch.optim.Adam([w], lr=0.1)
    step = trace(lambda: opt.step())

    def use(x):
        w.grad = x.clone()
        step()

    return use, [call(X())] * 5, lambda: w


@cases(hits=3)
def traced_clipping(trace):
    w = torch.nn.Parameter(torch.ones(3))
    clip = trace(lambda limit: torch.nn.utils.clip_grad_norm_([w], limit))

    def use(x, limit):
        w.grad = x.clone()
        return clip(limit), w.grad.clone()

    return use, [call(X(), 0.5), call(X(), 0.5), call(X() * 0.01, 0.5), call(X(), 0.5)]


@cases(hits=2)
def moving_average_of_weights(trace):
    a, b = linear(), linear()

    @trace
    @torch.no_grad()
    def update(decay):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            q.lerp_(p, 1 - decay)

    return update, [call(0.9), call(0.9), lambda: a.weight.data.add_(1), call(0.9), call(0.5)], lambda: (a, b)


@cases(hits=2)
def quantization_observer(trace):
    from torch.ao.quantization import MovingAverageMinMaxObserver

    observer = MovingAverageMinMaxObserver()
    fn = trace(observer)
    return (
        fn,
        [call(X()), call(X()), call(X() * 3), call(X() * 3)],
        lambda: (observer.min_val, observer.max_val),
    )


@cases(hits=2)
def fake_quantization(trace):
    from torch.ao.quantization import FakeQuantize

    model = FakeQuantize()
    steps = [
        call(X()),
        call(X()),
        call(X() * 3),
        lambda: model.disable_observer(),
        call(X() * 5),
        call(X() * 5),
    ]
    return trace(model), steps, lambda: model


@cases(hits=3)
def data_dependent_module(trace):
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(3, 2) for _ in range(3)])

        def forward(self, x):
            return self.experts[int(x.argmax())](x)

    return trace(Router()), [call(X()), call(X()), call(-X()), call(-X()), call(X())]


@cases(hits=2)
def sequential_sliced(trace):
    model = net()
    fn = trace(lambda x: model[:2](x))
    return fn, around(lambda: model.__setitem__(1, nn.Tanh()), X())


@cases(hits=2)
def parameter_list_and_dict(trace):
    ps = nn.ParameterList([torch.ones(3), torch.ones(3) * 2])
    pd = nn.ParameterDict({"a": torch.ones(3)})
    fn = trace(lambda x: x * sum(ps) * pd["a"] + len(ps))
    return fn, around(lambda: ps.append(torch.ones(3)), X()), lambda: list(ps)


@cases(hits=3)
def multihead_attention(trace):
    model = nn.MultiheadAttention(4, 2)
    q = X(3, 1, 4)
    steps = [
        *[call(q, q, q)] * 3,
        lambda: model.eval(),
        *[call(q, q, q)] * 2,
        call(q, q, q, need_weights=False),
    ]
    return trace(model), steps


@cases(hits=2)
def attention_fast_path_flag(trace):
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()

    def use(x):
        with torch.no_grad():
            return traced(x)

    traced = trace(model)
    off = lambda: torch.backends.mha.set_fastpath_enabled(False)  # noqa: E731
    on = lambda: torch.backends.mha.set_fastpath_enabled(True)  # noqa: E731
    return use, [call(X(1, 3, 4)), call(X(1, 3, 4)), off, call(X(1, 3, 4)), call(X(1, 3, 4)), on]


@cases.parametrize
def test_modules(make, expected):
    check(make, **expected)


def test_modules_that_are_made_while_the_compiler_of_torch_counts_them(monkeypatch):
    from torch._dynamo import mutation_guard

    for name in ("__init__", "__setstate__"):
        monkeypatch.setattr(nn.Module, name, getattr(nn.Module, name))  # puts them back
    monkeypatch.setattr(nn.Module, "___needs_generation_tag_patch", True, raising=False)
    mutation_guard.install_generation_tagging_init()
    assert nn.Module.__init__.__module__ == mutation_guard.__name__

    def case(trace):
        layers = nn.ModuleList([nn.Tanh(), nn.ReLU(), nn.Sigmoid()])

        def fn(x):
            for layer in layers[1:]:
                x = layer(x)
            return x

        return trace(fn), around(lambda: layers.__setitem__(2, nn.Tanh()), X())

    check(case, hits=2)
