"""`traced` on everything that it accepts: what the wrapper answers, how it binds, copies and pickles."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import operator
import pickle
import subprocess
import types
import typing
import weakref

import pytest
import torch
from torch import nn

import lazytrace
from lazytrace import NotTraceableError, OptionError, traced
from tests.processes import python

X = torch.tensor([-1.0, 0.5, 2.0])


def counts(fn) -> tuple[int, int, int]:
    """(hits, recordings, eager calls)."""
    s = fn.stats()
    return s.hits, s.recordings, s.eager_calls


def replays(fn, *args, expected, **kwargs) -> None:
    """A recording and two hits, all of them right."""
    for _ in range(3):
        assert torch.equal(fn(*args, **kwargs), expected)
    assert counts(fn) == (2, 1, 0), fn.stats().eager


@traced
def step(x: torch.Tensor, scale: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
    """Scale and shift."""
    return x * scale + shift


def plain_step(x: torch.Tensor, scale: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
    """Scale and shift."""
    return x * scale + shift


class Scaler:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @traced
    def method(self, x):
        """Scales."""
        return x * self.scale

    @traced
    @classmethod
    def of_class(cls, x):
        return x * len(cls.__name__)

    @classmethod
    @traced
    def inside_class(cls, x):
        return x * len(cls.__name__)

    @traced
    @staticmethod
    def static(x):
        return x * 3

    @staticmethod
    @traced
    def inside_static(x):
        return x * 3

    def __call__(self, x):
        return x * self.scale + 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("offset", torch.ones(3))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        y = torch.relu(self.linear(x)) + self.offset
        return y if self.training else y * 2


@traced
class Whole(Block):
    """Decorated as a class."""


# ---------------------------------------------------------------- forms of decoration
def test_bare_and_with_options():
    def double(x):
        return x * 2

    for made in (traced(double), traced()(double), traced(check=False)(double), traced(double, check=False)):
        replays(made, X, expected=X * 2)
    assert traced(cache_limit=3)(double).cache_info().maxsize == 3


def test_lambda():
    replays(traced(lambda x: x.sin()), X, expected=X.sin())


def test_partial():
    made = traced(functools.partial(plain_step, scale=3.0))
    replays(made, X, expected=X * 3 + 1)


@pytest.mark.parametrize("builtin", [torch.add, torch.mul, operator.add, torch.Tensor.add])
def test_builtin(builtin):
    replays(traced(builtin), X, X, expected=builtin(X, X))


def test_builtin_with_out_and_keywords():
    made, out = traced(torch.add), torch.empty(3)
    for _ in range(3):
        assert made(X, X, alpha=2, out=out) is out
        assert torch.equal(out, X * 3)
        out.zero_()


def test_callable_object():
    scaler = Scaler(3.0)
    made = traced(scaler)
    replays(made, X, expected=X * 3 + 1)
    scaler.scale = 5.0
    assert torch.equal(made(X), X * 5 + 1)
    assert made.scale == 5.0
    assert isinstance(made, Scaler)


def test_bound_method():
    made = traced(Scaler.__dict__["method"].original.__get__(Scaler(4.0)))
    replays(made, X, expected=X * 4)


def test_method():
    one, other = Scaler(2.0), Scaler(3.0)
    for _ in range(3):
        assert torch.equal(one.method(X), X * 2)
        assert torch.equal(other.method(X), X * 3)
    assert torch.equal(Scaler.method(one, X), X * 2)


@pytest.mark.parametrize("name", ["of_class", "inside_class"])
def test_class_method(name):
    class Longer(Scaler):
        pass

    for _ in range(3):
        assert torch.equal(getattr(Scaler, name)(X), X * 6)
        assert torch.equal(getattr(Longer, name)(X), X * 6)
        assert torch.equal(getattr(Scaler(1.0), name)(X), X * 6)
    Longer.__name__ = "Long"
    assert torch.equal(getattr(Longer, name)(X), X * 4)
    assert Scaler.of_class.stats().hits > 0


@pytest.mark.parametrize("name", ["static", "inside_static"])
def test_static_method(name):
    before = getattr(Scaler, name).stats()
    for _ in range(2):
        assert torch.equal(getattr(Scaler, name)(X), X * 3)
        assert torch.equal(getattr(Scaler(1.0), name)(X), X * 3)
    after = getattr(Scaler, name).stats()
    assert (after.recordings - before.recordings, after.hits - before.hits) == (1, 3)


def test_module_instance():
    net = Block().eval()
    made = traced(net)
    replays(made, X, expected=net(X))


def test_module_class():
    net = Whole().eval()
    for _ in range(3):
        assert torch.equal(net(X), Block.forward(net, X))
    assert isinstance(net, Whole)
    assert type(net) is Whole
    assert net.forward.cache_info().currsize == 1
    assert Whole.forward.stats().hits >= 2


def test_module_class_leaves_its_base_alone():
    assert isinstance(Block.forward, types.FunctionType)


def test_tracing_a_traced_function_again():
    again = traced(step, cache_limit=7)
    assert again.original is step.original
    assert again.cache_info().maxsize == 7
    replays(again, X, expected=X * 2 + 1)


def test_tracing_a_traced_module_again():
    net = Block().eval()
    again = traced(traced(net), cache_limit=7)
    assert again.original is net
    replays(again, X, expected=net(X))


# ---------------------------------------------------------------- what it answers
def test_name_doc_signature():
    assert (step.__name__, step.__qualname__, step.__doc__) == ("step", "step", "Scale and shift.")
    assert step.__module__ == plain_step.__module__
    assert str(inspect.signature(step)) == str(inspect.signature(plain_step))
    assert inspect.getfullargspec(step).kwonlyargs == ["shift"]
    assert inspect.getsource(step).removeprefix("@traced\n").startswith("def step")
    assert step.__defaults__ == (2.0,)


def test_annotations():
    assert step.__annotations__ == plain_step.__annotations__
    assert typing.get_type_hints(step) == typing.get_type_hints(plain_step)


def test_inspect_kinds():
    assert isinstance(step, types.FunctionType)
    assert callable(step)
    assert inspect.isfunction(step)
    assert inspect.ismethod(Scaler(1.0).method)
    assert not inspect.iscoroutinefunction(step)


def test_bound_method_answers():
    scaler = Scaler(1.0)
    assert scaler.method.__self__ is scaler
    assert scaler.method.__name__ == "method"
    assert scaler.method.__doc__ == "Scales."
    assert str(inspect.signature(scaler.method)) == "(x)"
    assert str(inspect.signature(Scaler.method)) == "(self, x)"


def test_original():
    def double(x):
        return x * 2

    assert traced(double).original is double
    scaler = Scaler(2.0)
    before = Scaler.method.stats().calls
    assert torch.equal(scaler.method.original(X), X * 2)
    assert Scaler.method.stats().calls == before


def test_name_option_is_for_reports():
    made = traced(lambda x: x * 2, name="doubling")
    assert made.stats().name == "doubling"
    assert made.__name__ == "<lambda>"


def test_cache_info_is_that_of_functools():
    assert lazytrace.traced(len).cache_info()._fields == functools.lru_cache(len).cache_info()._fields
    made = traced(lambda x: x * 2, cache_limit=5)
    made(X), made(X), made(X), made(X[:2])
    assert made.cache_info() == (2, 2, 5, 2)


def test_cache_clear():
    made = traced(lambda x: x * 2)
    made(X), made(X)
    made.cache_clear()
    assert made.cache_info().currsize == 0
    assert torch.equal(made(X), X * 2)
    assert made.stats().recordings == 2


def test_exceptions_of_the_function_pass_unchanged():
    error = KeyError("mine")

    @traced
    def fails(x):
        x + 1
        raise error

    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            fails(X)
        assert caught.value is error
    assert fails.stats().calls == 3


def test_arguments_that_do_not_fit():
    for made in (step, plain_step):
        with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
            made(X, nothing=1)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            made()


# ---------------------------------------------------------------- pickling and copies
def test_pickled_by_reference():
    assert pickle.loads(pickle.dumps(step)) is step
    assert len(pickle.dumps(step)) < 100


def test_bound_method_pickles():
    method = pickle.loads(pickle.dumps(Scaler(3.0).method))
    assert torch.equal(method(X), X * 3)


def test_pickled_module():
    made = traced(Block().eval(), cache_limit=9)
    made(X)
    back = pickle.loads(pickle.dumps(made))
    assert type(back) is type(made)
    assert back.cache_info() == (0, 0, 9, 0)
    assert torch.equal(back(X), made(X))


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_copy_of_a_function_is_itself(how):
    assert how(step) is step
    assert how([step])[0] is step


def test_deepcopy_of_a_module_shares_nothing():
    made = traced(Block().eval(), cache_limit=9)
    expected = made(X)
    twin = copy.deepcopy(made)
    assert isinstance(twin, nn.Module)
    assert type(twin) is type(made)
    assert twin.cache_info() == (0, 0, 9, 0)
    with torch.no_grad():
        twin.linear.weight.zero_()
        twin.linear.bias.zero_()
    assert torch.equal(twin(X), torch.full((3,), 2.0))
    assert torch.equal(made(X), expected)


def test_copy_of_a_module_shares_its_parameters():
    made = traced(Block().eval())
    made(X)
    twin = copy.copy(made)
    assert twin is not made
    assert twin.original is not made.original
    assert twin.linear.weight is made.linear.weight
    assert twin.cache_info().currsize == 0


def test_deepcopy_of_an_instance_starts_its_own_cache():
    one = Scaler(2.0)
    one.method(X)
    two = copy.deepcopy(one)
    assert two.method.cache_info().currsize == 0
    two.scale = 5.0
    assert torch.equal(two.method(X), X * 5)
    assert torch.equal(one.method(X), X * 2)


# ---------------------------------------------------------------- traced modules are modules
def test_module_is_a_module():
    net = Block()
    made = traced(net)
    assert isinstance(made, nn.Module)
    assert isinstance(made, Block)
    assert list(made.state_dict()) == list(net.state_dict())
    assert [id(p) for p in made.parameters()] == [id(p) for p in net.parameters()]
    assert [name for name, _ in made.named_modules()] == ["", "linear", "drop"]
    assert dict(made.named_buffers())["offset"] is net.offset
    assert repr(net) in repr(made) or "Block" in repr(made)


def test_module_methods_return_the_traced_one():
    made = traced(Block())
    assert made.train() is made
    assert made.eval() is made
    assert made.to("cpu") is made
    assert made.requires_grad_(False) is made
    assert made.double() is made
    assert made.float() is made
    assert made.apply(lambda module: None) is made


def test_module_train_and_eval_are_told_apart():
    made = traced(Block()).train()
    trained = made(X)
    made.eval()
    assert torch.equal(made(X), trained * 2)
    made.train()
    assert torch.equal(made(X), trained)
    assert counts(made) == (1, 2, 0)


def test_module_to_another_dtype():
    made = traced(Block().eval())
    made(X)
    made.double()
    assert torch.equal(made(X.double()), made.original(X.double()))
    assert made(X.double()).dtype is torch.float64


def test_module_load_state_dict():
    made, other = traced(Block().eval()), Block().eval()
    made(X), made(X)
    made.load_state_dict(other.state_dict())
    assert torch.equal(made(X), other(X))
    made.load_state_dict(Block().state_dict(), assign=True)
    assert torch.equal(made(X), made.original(X))


def test_module_attributes_are_set_on_the_module():
    made = traced(Block().eval())
    made(X)
    made.offset = torch.zeros(3)
    assert torch.equal(made.original.offset, torch.zeros(3))
    assert torch.equal(made(X), made.original(X))


def test_module_forward_hooks_run_at_every_call():
    made = traced(Block().eval())
    made(X), made(X)
    handle = made.register_forward_hook(lambda module, args, out: out + 100)
    pre = made.linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    for _ in range(3):
        assert torch.equal(made(X), made.original(X))
        assert made(X).min() >= 100
    handle.remove()
    pre.remove()
    assert torch.equal(made(X), made.original(X))
    assert made(X).max() < 100


def test_module_backward_hooks_run_at_every_call():
    made, seen = traced(Block().eval()), []
    made.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append(grad_out[0].clone()))
    x = X.clone().requires_grad_()
    for _ in range(3):
        made(x).sum().backward()
    assert len(seen) == 3


def test_module_trains_as_the_plain_one():
    torch.manual_seed(0)
    plain = Block().eval()
    made = traced(copy.deepcopy(plain))
    for net in (plain, made):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            net(X).square().sum().backward()
            optimizer.step()
    for p, q in zip(plain.parameters(), made.parameters(), strict=True):
        assert torch.equal(p, q)
    assert made.stats().hits >= 3


class Outer(nn.Module):
    def __init__(self, block) -> None:
        super().__init__()
        self.block = block
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.block(x) * self.scale


def test_module_as_a_submodule():
    block = traced(Block())
    outer = Outer(block)
    assert [name for name, _ in outer.named_modules()] == ["", "block", "block.linear", "block.drop"]
    assert set(outer.state_dict()) == {"scale", "block.linear.weight", "block.linear.bias", "block.offset"}
    assert len(list(outer.parameters())) == 3
    outer.eval()
    assert not block.training
    for _ in range(3):
        assert torch.equal(outer(X), block.original(X) * 2)
    assert counts(block) == (2, 1, 0)
    outer.double()
    assert outer(X.double()).dtype is torch.float64
    assert outer.block is block


def test_module_in_sequential_and_module_list():
    block = traced(Block().eval())
    for net in (nn.Sequential(block, nn.ReLU()), nn.Sequential(*nn.ModuleList([block]))):
        for _ in range(2):
            assert torch.equal(net(X), block.original(X))
    assert block.stats().hits == 3


def test_module_in_data_parallel():
    block = traced(Block().eval())
    net = nn.DataParallel(block)
    for _ in range(3):
        assert torch.equal(net(X), block.original(X))
    assert block.stats().hits == 2


def test_module_in_distributed_data_parallel(tmp_path):
    # The program leaves without ending the interpreter: gloo's threads outlive destroy_process_group(), and
    # one that then drops the last reference to a tensor aborts the process ("terminate called without an
    # active exception"), with lazytrace or without.
    code = f"""
        import os, torch, torch.distributed as dist
        from torch import nn
        from lazytrace import traced
        dist.init_process_group("gloo", init_method="file://{tmp_path}/rendezvous", rank=0, world_size=1)
        made = traced(nn.Linear(3, 2))
        net = nn.parallel.DistributedDataParallel(made)
        for i in range(3):
            net(torch.full((4, 3), float(i))).sum().backward()
        assert made.bias.grad.tolist() == [12.0, 12.0], made.bias.grad
        assert made.weight.grad.flatten().tolist() == [12.0] * 6
        assert made.stats().calls == 3 and made.stats().hits >= 1, made.stats()
        dist.destroy_process_group()
        os._exit(0)
    """
    run(code)


# ---------------------------------------------------------------- caches of instances
def test_instances_have_their_own_traces():
    class Net:
        def __init__(self, k):
            self.k = k

        @traced
        def run(self, x):
            return x * self.k

    one, two = Net(2), Net(3)
    for _ in range(2):
        one.run(X), two.run(X)
    one.run(X[:2])
    assert (one.run.cache_info().currsize, two.run.cache_info().currsize) == (2, 1)
    one.run.cache_clear()
    assert (one.run.cache_info().currsize, two.run.cache_info().currsize) == (0, 1)
    Net.run.cache_clear()
    assert two.run.cache_info().currsize == 0


def test_instances_die_when_dropped():
    class Net:
        def __init__(self, k):
            self.k = k
            self.w = torch.ones(3)

        @traced
        def run(self, x):
            return x * self.k + self.w

    net = Net(2)
    for _ in range(3):
        net.run(X)
    assert Net.run.stats().hits == 2
    gone, weight = weakref.ref(net), weakref.ref(net.w)
    del net
    assert gone() is None
    assert weight() is None
    assert Net.run.stats().cache_size == 0


def test_modules_of_a_traced_class_die_when_dropped():
    net = Whole().eval()
    net(X), net(X)
    gone = weakref.ref(net.linear.weight)
    size = Whole.forward.stats().cache_size
    del net
    assert gone() is None
    assert Whole.forward.stats().cache_size == size - 1


def test_a_traced_module_dies_when_dropped():
    made = traced(Block().eval())
    made(X), made(X)
    gone = weakref.ref(made.original)
    del made
    assert gone() is None


def test_arguments_and_results_are_not_kept():
    made = traced(lambda x: x * 2)
    x = X.clone()
    out = made(x)
    made(x)
    gone = weakref.ref(x), weakref.ref(out)
    del x, out
    assert [ref() for ref in gone] == [None, None]


def test_instances_that_cannot_be_hashed():
    class Net:
        __hash__ = None

        def __init__(self, k):
            self.k = k

        @traced
        def run(self, x):
            return x * self.k

    one, two = Net(2), Net(3)
    for _ in range(2):
        assert torch.equal(one.run(X), X * 2)
        assert torch.equal(two.run(X), X * 3)
    assert Net.run.stats().hits == 2


def test_instances_with_slots():
    class Net:
        __slots__ = ("k",)

        @traced
        def run(self, x):
            return x * self.k

    one, two = Net(), Net()
    one.k, two.k = 2, 3
    for _ in range(3):
        assert torch.equal(one.run(X), X * 2)
        assert torch.equal(two.run(X), X * 3)


# ---------------------------------------------------------------- refused at decoration
async def fetch(x):
    return x


async def stream(x):
    yield x


def batches(x):
    yield x


def line(fn) -> str:
    return f"test_traced.py:{fn.__code__.co_firstlineno}"


ASYNC = (
    "traced({} ({})): an `async def` suspends in the middle of a call, which cannot be recorded. "
    "Decorate the plain function that it calls between two awaits."
)


@pytest.mark.parametrize("fn", [fetch, stream])
def test_coroutines_are_refused(fn):
    with pytest.raises(NotTraceableError) as caught:
        traced(fn)
    assert str(caught.value) == ASYNC.format(fn.__name__, line(fn))
    assert isinstance(caught.value, TypeError)


def test_generators_are_refused():
    with pytest.raises(NotTraceableError) as caught:
        traced(cache_limit=2)(batches)
    assert str(caught.value) == (
        f"traced(batches ({line(batches)})): a generator suspends in the middle of a call, which cannot be "
        "recorded. Decorate the plain function that makes one item."
    )


@pytest.mark.parametrize(
    "hidden", [functools.partial(batches, 1), staticmethod(batches), classmethod(batches), fetch.__get__(1)]
)
def test_hidden_generators_and_coroutines_are_refused(hidden):
    with pytest.raises(NotTraceableError, match="suspends in the middle of a call"):
        traced(hidden)


class Feeder:
    def __call__(self, x):
        yield x


class AsyncFeeder:
    async def __call__(self, x):
        return x


class AsyncNet(nn.Module):
    async def forward(self, x):
        return x


class Generates(nn.Module):
    def forward(self, x):
        yield x


@pytest.mark.parametrize("obj", [Feeder(), AsyncFeeder(), AsyncNet(), Generates(), AsyncNet, Generates])
def test_objects_whose_call_suspends_are_refused(obj):
    with pytest.raises(NotTraceableError, match="suspends in the middle of a call"):
        traced(obj)


@pytest.mark.parametrize(
    ("obj", "shown"), [(3, "3"), ("step", "'step'"), (X[:1], "tensor([-1.])"), ([step], None)]
)
def test_what_cannot_be_called_is_refused(obj, shown):
    with pytest.raises(NotTraceableError) as caught:
        traced(obj)
    kind = type(obj).__name__
    text = str(caught.value)
    assert text.endswith(
        f": an object of type {kind} cannot be called. Decorate a function, a method or an nn.Module."
    )
    assert shown is None or text.startswith(f"traced({shown})")


def test_classes_that_are_no_modules_are_refused():
    with pytest.raises(NotTraceableError) as caught:
        traced(Scaler)
    assert str(caught.value) == (
        "cannot trace the class Scaler: it is not an nn.Module. Decorate the methods that compute instead."
    )


NAMES = (
    "Its options are cache_limit, on_limit, on_untraceable, on_retrace, check, backend, name, exit_limit, "
    "branch_limit, events, ignore, dynamic, buckets."
)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("cache_limit", 0, "an int of 1 or more"),
        ("cache_limit", True, "an int of 1 or more"),
        ("cache_limit", "64", "an int of 1 or more"),
        ("on_limit", "drop", "'evict', 'eager' or 'raise'"),
        ("on_untraceable", None, "'eager' or 'raise'"),
        ("check", 1, "True or False"),
        ("backend", "inductor", "'replay' or 'eager'"),
        ("name", " ", "a string that is not blank, or None"),
    ],
)
def test_wrong_option_values(name, value, allowed):
    for attempt in (lambda: traced(**{name: value}), lambda: traced(plain_step, **{name: value})):
        with pytest.raises(OptionError) as caught:
            attempt()
        assert str(caught.value) == (
            f"traced({name}={value!r}): {name} must be {allowed}. "
            f"Pass that, or leave {name} out for its default."
        )


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cache_limt", ": did you mean 'cache_limit'?"), ("backed", ": did you mean 'backend'?"), ("z", ".")],
)
def test_unknown_options(name, hint):
    for attempt in (lambda: traced(**{name: 3}), lambda: traced(plain_step, **{name: 3})):
        with pytest.raises(OptionError) as caught:
            attempt()
        assert str(caught.value) == f"traced() has no option {name!r}{hint} {NAMES}"


# ---------------------------------------------------------------- switched off
def test_is_tracing():
    seen = []

    def look(x):
        seen.append(lazytrace.is_tracing())
        return x * 2

    assert not lazytrace.is_tracing()
    traced(look)(X)
    assert seen == [True]
    assert not lazytrace.is_tracing()
    look(X)
    assert seen == [True, False]


def test_is_tracing_does_not_break_replay():
    @traced
    def look(x):
        return x * (2 if lazytrace.is_tracing() else 3)

    for _ in range(3):
        assert float(look(torch.tensor(1.0))) in (2.0, 3.0)
    assert not lazytrace.is_tracing()


def test_disabled():
    made = traced(lambda x: x * 2)
    made(X)
    with lazytrace.disabled():
        assert torch.equal(made(X), X * 2)
        with lazytrace.disabled():
            made(X)
        made(X)
    made(X)
    assert counts(made) == (1, 1, 3)
    assert made.stats().eager == {"lazytrace is disabled": 3}


def test_disabled_ends_with_an_exception():
    made = traced(lambda x: x * 2)
    with pytest.raises(ZeroDivisionError), lazytrace.disabled():
        raise ZeroDivisionError
    made(X)
    assert counts(made) == (0, 1, 0)


def test_eager_backend_only_counts():
    ran = []

    @traced(backend="eager")
    def noisy(x):
        ran.append(1)
        return x * 2

    for _ in range(3):
        assert torch.equal(noisy(X), X * 2)
    assert len(ran) == 3
    assert counts(noisy) == (0, 0, 3)
    assert noisy.stats().eager == {'backend="eager"': 3}
    assert noisy.cache_info().currsize == 0


PROGRAM = """
    import torch
    from lazytrace import traced
    @traced
    def step(x):
        return x * 2
    for _ in range(4):
        assert float(step(torch.tensor(2.0))) == 4.0
    print(step.cache_info().hits, step.stats().eager)
"""


def run(code: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    done = python("-c", inspect.cleandoc(code), **variables)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_environment_off_by_default():
    done = run(PROGRAM)
    assert (done.stdout, done.stderr) == ("3 {}\n", "")


def test_environment_disable():
    assert run(PROGRAM, LAZYTRACE_DISABLE="1").stdout == "0 {'lazytrace is disabled': 4}\n"


def test_environment_report():
    done = run(PROGRAM, LAZYTRACE_REPORT="1")
    assert done.stderr.startswith("lazytrace: 1 function, 4 calls: 3 hits (75.0 %), 1 recording (0 retraces")


def test_environment_bad_value():
    variable = "LAZYTRACE_DISABLE"
    done = run("import lazytrace", check=False, **{variable: "maybe"})
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        f"lazytrace.errors.OptionError: environment variable {variable}='maybe' is not understood: "
        "set it to 1, true, yes, on, 0, false, no or off, or unset it."
    )


def test_ignored_prints_happen_at_recordings_only(capsys):
    @traced(ignore=("print",))
    def step(x):
        y = x * 2
        print("y is", y)
        return y + 1

    for _ in range(3):
        assert torch.equal(step(torch.ones(2)), torch.full((2,), 3.0))
    assert capsys.readouterr().out == "y is tensor([2., 2.])\n"
    assert (step.stats().hits, step.stats().recordings) == (2, 1)
    # What print asked of the tensor is no part of the program: other values take no branch.
    assert torch.equal(step(torch.zeros(2)), torch.ones(2))
    assert step.stats().hits == 3


def test_ignored_logging_happens_at_recordings_only(caplog):
    logger = logging.getLogger("test_ignored")

    @traced(ignore=("logging",))
    def step(x):
        logger.warning("sum %s", x.sum())
        return x + 1

    for _ in range(3):
        assert torch.equal(step(torch.ones(2)), torch.full((2,), 2.0))
    assert [record.getMessage() for record in caplog.records] == ["sum tensor(2.)"]
    assert (step.stats().hits, step.stats().recordings) == (2, 1)


def test_prints_that_are_not_ignored_happen_at_replays(capsys):
    @traced(ignore=("logging",))
    def step(x):
        print("here", x.sum().item())
        return x + 1

    step(torch.ones(2)), step(torch.zeros(2)), step(torch.ones(2))
    assert capsys.readouterr().out == "here 2.0\nhere 0.0\nhere 2.0\n"
    assert step.stats().hits == 2


def test_objects_that_print_themselves_run_eagerly(capsys):
    class Shown:
        def __str__(self):
            return "shown"

    @traced
    def step(x):
        print(*[Shown()])
        return x + 1

    step(torch.ones(2)), step(torch.ones(2))
    assert capsys.readouterr().out == "shown\nshown\n"
    assert step.stats().hits == 0


def test_iterating_over_a_traced_module():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    assert list(traced(net)) == list(net)
    assert len(traced(net)) == 2
    with pytest.raises(TypeError, match="not iterable"):
        iter(traced(torch.nn.ReLU()))
