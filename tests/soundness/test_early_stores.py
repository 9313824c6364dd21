"""Attributes that the function sets, and what a hook sets while a pass runs: who was last shows at the end.

Class activation maps do so: they forget the gradient of the call before, and a hook keeps the next one.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from lazytrace import opaque
from tests.soundness.runner import Cases, agree, call, check

cases = Cases()


def images(count=9):
    return [torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(i)) for i in range(count)]


class Map:
    """Of the last layer but one."""

    def __init__(self):
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.copy_(torch.linspace(-0.5, 0.6, parameter.numel()).view_as(parameter))
        self.gradient = self.output = None
        self.hook()

    def hook(self):
        self.net[0].register_forward_hook(self.keep_output)
        self.net[0].register_full_backward_hook(self.keep_gradient)

    def keep_output(self, module, args, output):
        self.output = output

    def keep_gradient(self, module, into, out_of):
        self.gradient = out_of[0]

    def forget(self):
        self.gradient = None
        self.output = None

    def run(self, x):
        self.net.zero_grad()
        scores = self.net(x)
        scores[:, 1].sum().backward()
        return scores

    def __call__(self, x):
        self.forget()
        self.run(x)
        weights = self.gradient.mean((2, 3), keepdim=True)
        return torch.relu((weights * self.output).sum(1)).detach()


class OfTensorHooks(Map):
    def hook(self):
        self.net[0].register_forward_hook(self.keep_output)

    def keep_output(self, module, args, output):
        self.output = output.detach()
        output.register_hook(self.keep)

    def keep(self, gradient):
        self.gradient = gradient


class OfFunctions(OfTensorHooks):
    def keep_output(self, module, args, output):
        self.output = output
        output.register_hook(lambda gradient: self.keep(gradient))


class OfLists(OfTensorHooks):
    """What filled lists of old: the gradients of all layers that are asked for."""

    def forget(self):
        self.gradients = []
        self.output = None

    def keep(self, gradient):
        self.gradients.append(gradient)

    def __call__(self, x):
        self.forget()
        self.run(x)
        weights = self.gradients[-1].mean((2, 3), keepdim=True)
        return torch.relu((weights * self.output).sum(1)).detach()


class OfDicts(OfTensorHooks):
    def forget(self):
        self.kept = {}

    def keep_output(self, module, args, output):
        self.kept["output"] = output.detach()
        output.register_hook(self.keep)

    def keep(self, gradient):
        self.kept["gradient"] = gradient

    def __call__(self, x):
        self.forget()
        self.run(x)
        weights = self.kept["gradient"].mean((2, 3), keepdim=True)
        return torch.relu((weights * self.kept["output"]).sum(1)).detach()


def mapped(trace, kind, between=None):
    made = kind()
    steps = [call(x) for x in images()]
    if between:
        steps.insert(5, lambda: between(made))
    return trace(lambda x: made(x)), steps, lambda: {k: v for k, v in vars(made).items() if k != "net"}


@pytest.mark.parametrize("kind", [Map, OfTensorHooks, OfFunctions, OfLists, OfDicts])
def test_maps_that_forget_what_hooks_keep_are_replayed(kind):
    check(lambda trace: mapped(trace, kind), hits=5)


def put_something_else(made):
    made.gradient, made.output = 7, [1]


def take_away(made):
    del made.gradient


def put_a_slot_over_it(made):
    made.__class__ = type(
        "Other", (type(made),), {"gradient": property(lambda self: None, lambda self, v: None)}
    )


@pytest.mark.parametrize("between", [put_something_else, take_away])
@pytest.mark.parametrize("kind", [Map, OfTensorHooks, OfFunctions])
def test_what_is_there_before_the_call_is_written_over(kind, between):
    check(lambda trace: mapped(trace, kind, between), hits=4)


@pytest.mark.parametrize("kind", [Map, OfTensorHooks, OfFunctions])
def test_a_property_is_put_over_it(kind):
    def make(trace):
        made = kind()
        steps = [call(x) for x in images()]
        steps[5:5] = [lambda: put_a_slot_over_it(made)]
        return trace(lambda x: (made.forget(), made.run(x), made.gradient is None)[2]), steps

    agree(make)


class Kept:
    """Holds what is set early, and by whom."""

    def __init__(self):
        self.one = self.other = None
        self.count = 0


def hooked(trace, body, hook, count=12):
    kept = Kept()
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        return body(kept, x, w, lambda y: y.register_hook(lambda gradient: hook(kept, gradient)))

    generator = torch.Generator().manual_seed(3)
    steps = [call(torch.randn(3, generator=generator)) for _ in range(count)]
    return trace(fn), steps, lambda: (vars(kept), w.grad)


def passed(x, w, hook):
    y = x * w
    hook(y)
    (y * x).sum().backward()
    return y


def keep(kept, gradient):
    kept.one = gradient


def keep_if_positive(kept, gradient):
    kept.one = gradient if gradient.sum() > 0 else None


def keep_where_positive(kept, gradient):
    if gradient.sum() > 0:
        kept.one = gradient


def list_where_positive(kept, gradient):
    if gradient.sum() > 0:
        kept.one = [gradient, gradient]


@cases(hits=4)
def before_a_branch(trace):
    def body(kept, x, w, hook):
        kept.one = None
        y = passed(x, w, hook)
        if y.sum() > 0:
            kept.other = y.detach()
            return kept.one * 2
        return kept.one - 1

    return hooked(trace, body, keep)


@cases(hits=3)
def behind_a_branch(trace):
    def body(kept, x, w, hook):
        y = x * w if x.sum() > 0 else x + w
        kept.one = None
        hook(y)
        (y * x).sum().backward()
        return kept.one * 2

    return hooked(trace, body, keep)


@cases(hits=3)
def whose_hook_hangs_on_values(trace):
    def body(kept, x, w, hook):
        kept.one = None
        y = passed(x, w, hook)
        return y.detach() if kept.one is None else kept.one * 2

    return hooked(trace, body, keep_if_positive)


@cases(hits=3)
def whose_hook_sets_it_at_some_calls(trace):
    """No guard says what it is, as the function has set it."""

    def body(kept, x, w, hook):
        kept.one = x
        passed(x, w, hook)
        return kept.one * 2

    return hooked(trace, body, keep_where_positive)


@cases(hits=3)
def a_list_that_a_hook_replaces_at_some_calls(trace):
    def body(kept, x, w, hook):
        kept.one = []
        y = passed(x, w, hook)
        return y.detach() * len(kept.one) - 1

    return hooked(trace, body, list_where_positive)


def nothing_where_positive(kept, gradient):
    if gradient.sum() > 0:
        kept.one = []


@cases(hits=2)
def a_list_that_stands_in_a_namespace_at_some_calls(trace):
    """The step is given the namespace that holds it, which is the same to a function that runs again."""

    def body(kept, x, w, hook):
        kept.one = x
        kept.other = []
        y = passed(x, w, hook)
        found = vars(kept).get("one")
        return y.detach() - 1, list(found) if isinstance(found, list) else found * 1

    return hooked(trace, body, nothing_where_positive)


@cases(hits=1)
def read_before_a_step_that_sets_it_at_some_calls(trace):
    def body(kept, x, w, hook):
        kept.one = x
        y = x * w + kept.one
        hook(y)
        (y * x).sum().backward()
        if y.sum() > 1:
            return kept.one * 2
        return kept.one - 1

    return hooked(trace, body, keep_where_positive)


@cases(eager="where the function cannot be resumed")
def read_before_a_hook_sets_it(trace):
    """A function that runs again would find what the hook has set."""

    def body(kept, x, w, hook):
        kept.one = None
        kept.other = x
        y = x * w
        if kept.one is None:
            y = y * 2
        hook(y)
        y.sum().backward()
        if y.sum() > 0:
            return kept.one * 2, kept.other
        return kept.one - 1, kept.other

    return hooked(trace, body, keep_if_positive)


@cases(eager="where the function cannot be resumed")
def read_and_set_again(trace):
    def body(kept, x, w, hook):
        kept.one = None
        y = x * w
        hook(y)
        y.sum().backward()
        found = kept.one
        kept.one = x * 2
        if y.sum() > 0:
            return found * 2
        return found - 1

    return hooked(trace, body, keep)


@cases(hits=3)
def raises_before_the_pass(trace):
    def body(kept, x, w, hook):
        kept.one = None
        y = x * w
        hook(y)
        if x.sum() < -1:
            raise ValueError("too little")
        (y * x).sum().backward()
        return kept.one * 2

    return hooked(trace, body, keep)


@cases(hits=3)
def raises_behind_the_pass(trace):
    def body(kept, x, w, hook):
        kept.one = None
        passed(x, w, hook)
        kept.other = kept.one
        if x.sum() < -1:
            raise ValueError("too little")
        return kept.one * 2

    return hooked(trace, body, keep)


@cases(hits=5)
def beside_what_is_counted(trace):
    def body(kept, x, w, hook):
        kept.one = None
        kept.count += 1
        passed(x, w, hook)
        return kept.one * kept.count

    return hooked(trace, body, keep)


@cases(hits=5)
def set_once_more_at_the_end(trace):
    def body(kept, x, w, hook):
        kept.one = None
        passed(x, w, hook)
        made = kept.one * 2
        kept.one = None
        return made

    return hooked(trace, body, keep)


@cases(hits=5)
def by_an_opaque_function(trace):
    kept = Kept()

    @opaque
    def note(y):
        kept.one = y * 3

    def fn(x):
        kept.one = None
        kept.other = x * 1
        note(x)
        return kept.one + kept.other

    return trace(fn), [call(x[0, 0]) for x in images()], lambda: vars(kept)


@cases(hits=3)
def by_an_opaque_function_at_some_calls(trace):
    kept = Kept()

    @opaque
    def note(y):
        if y.sum() > 0:
            kept.one = y * 3

    def fn(x):
        kept.one = x * 2
        note(x)
        found = kept.one
        kept.one = None
        return found + 1

    generator = torch.Generator().manual_seed(3)
    return trace(fn), [call(torch.randn(3, generator=generator)) for _ in range(12)], lambda: vars(kept)


def kernels_at_some_calls(trace, define):
    kept = Kept()

    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            kept.one = x * 3
        return x * 2

    operator = define(kernel)

    def fn(x):
        kept.one = x * 2
        kept.other = None
        y = operator(x)
        return y + kept.one

    generator = torch.Generator().manual_seed(3)
    return trace(fn), [call(torch.randn(3, generator=generator)) for _ in range(12)], lambda: vars(kept)


numbers = itertools.count()


def custom(kernel):
    return torch.library.custom_op(f"lt_early::one{next(numbers)}", kernel, mutates_args=())


def of_library(kernel):
    name = f"other{next(numbers)}"
    library = torch.library.Library("lt_early", "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, kernel, "CPU")
    LIBRARIES.append(library)
    return getattr(torch.ops.lt_early, name)


LIBRARIES = []  # an operator goes with its library


@pytest.mark.parametrize("define", [custom, of_library])
def test_by_a_kernel_at_some_calls(define):
    agree(lambda trace: kernels_at_some_calls(trace, define))


@cases(hits=4)
def of_objects_that_are_swapped(trace):
    all_kept, w = [Kept(), Kept()], torch.ones(3, requires_grad=True)

    def fn(x, kept):
        kept.one = None
        y = x * w
        y.register_hook(lambda gradient: keep(kept, gradient))
        (y * x).sum().backward()
        return kept.one * 2

    steps = [call(torch.ones(3) * i, all_kept[i % 3 == 1]) for i in range(12)]
    return trace(fn), steps, lambda: [vars(one) for one in all_kept]


@pytest.mark.parametrize("inside", [False, True])
def test_what_is_set_over_tells_of_its_end(inside):
    def case(trace):
        told, weight = [], torch.nn.Parameter(torch.ones(3))

        class Tells:
            def __del__(self):
                told.append(1)

        class State:
            kept = None

        state = State()

        def hook(gradient):
            state.kept = gradient

        def function(x):
            state.kept = None
            count = len(told)
            y = x * weight
            y.register_hook(hook)
            y.sum().backward()
            return y.detach(), count

        def change():
            state.kept = [Tells()] if inside else Tells()

        steps = [call(torch.ones(3)) for _ in range(5)]
        return trace(function), [*steps, change, *steps, change, *steps], lambda: [list(told), weight.grad]

    check(case, hits=6)


# A function that runs again has not seen what the hook has set.
@cases(hits=2)
def number_that_is_set_behind_the_hook(trace):
    net, kept = nn.Linear(3, 3), Kept()
    with torch.no_grad():
        net.weight.copy_(torch.arange(9.0).view(3, 3) / 9)
        net.bias.fill_(0.1)
    kept.one = kept.two = None

    def hook(module, into, out_of):
        kept.one, kept.two = out_of[0], out_of[0] * 2

    net.register_full_backward_hook(hook)

    def fn(x):
        y = net(x)
        kept.one = None
        (y * 2).pow(2).sum().backward()
        kept.two = 1.5
        z = y * 2
        return z.detach() * 3 if kept.one.sum() > 0 else z.detach() - 1

    steps = [call(torch.ones(2, 3) * sign) for sign in (1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1)]
    return trace(fn), steps, lambda: [vars(kept), net.weight.grad]


class Mapped(nn.Module):
    """Keeps it as its own attributes, which torch sets in Python."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(9.0).view(3, 3) / 11 - 0.3)
            self.layer.bias.fill_(0.05)
        self.gradient = self.output = None
        self.layer.register_forward_hook(self.keep_output)
        self.layer.register_full_backward_hook(self.keep_gradient)

    def keep_output(self, module, args, output):
        self.output = output.detach()

    def keep_gradient(self, module, into, out_of):
        self.gradient = out_of[0]

    def forward(self, x):
        self.gradient = None
        y = self.layer(x)
        (y * y).sum().backward()
        return self.gradient * self.output

    def kept(self):
        return self.gradient, self.output, [p.grad for p in self.parameters()]


class WithSetter(Mapped):
    def __setattr__(self, name, value):
        if name == "gradient":
            self.__dict__["times"] = self.__dict__.get("times", 0) + 1
        super().__setattr__(name, value)


class InABranch(Mapped):
    def forward(self, x):
        made = super().forward(x)
        if made.sum() > 0.1:
            self.gradient = None
            return made * 2
        return made - 1


def of_module(kind, **expected):
    def make(trace):
        module = kind()
        generator = torch.Generator().manual_seed(4)
        steps = [call(torch.randn(2, 3, generator=generator)) for _ in range(10)]
        return trace(module), steps, module.kept

    make.__name__ = kind.__name__
    return cases(**expected)(make)


of_module(Mapped, hits=5)
of_module(WithSetter, hits=0, eager="changes what the function has written")
of_module(InABranch, hits=2)


@cases(hits=0, eager="changes what the function has written")
def a_buffer_of_a_module(trace):
    """Is no attribute of the module's own: it lies in a dict of torch's."""
    module = Mapped()
    del module.gradient
    module.register_buffer("gradient", None)
    steps = [call(torch.full((2, 3), float(i))) for i in range(5)]
    return trace(module), steps, module.kept


@cases.parametrize
def test_early_stores(make, expected):
    check(make, **expected)
