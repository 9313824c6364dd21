"""Programs: what they print, what they export, what they compute, and how long they keep tensors."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import lazytrace
from lazytrace import traced

X = torch.tensor([-1.0, 0.5, 2.0])
SQUARE = torch.arange(9.0).reshape(3, 3) - 4


def here(fn, offset: int) -> str:
    """file:line of the line that is `offset` lines below the `def`."""
    code = fn.__code__
    first = code.co_firstlineno + (1 if code.co_name != "<lambda>" else 0)
    return f"{os.path.basename(code.co_filename)}:{first + offset}"


def counts(fn) -> tuple[int, int, int]:
    """(hits, recordings, eager calls)."""
    s = fn.stats()
    return s.hits, s.recordings, s.eager_calls


# ---------------------------------------------------------------- listing
@traced
def step(x, w):
    h = x @ w
    y = torch.tanh(h)
    return y * 2.0 + x, h


def test_listing():
    x, w = torch.ones(2, 3), torch.ones(3, 3)
    step(x, w)
    assert step.program(x, w).listing() == (
        "inputs: r0, r1\n"
        f"   0  r2: float32[2, 3] = matmul(r0, r1)  # {here(step, 1)}\n"
        f"   1  r3: float32[2, 3] = tanh(r2)  # {here(step, 2)}\n"
        f"   2  r4: float32[2, 3] = mul.Tensor(r3, 2.0)  # {here(step, 3)}\n"
        f"   3  r5: float32[2, 3] = add.Tensor(r4, r0, 1)  # {here(step, 3)}\n"
        "return r5, r2"
    )
    assert str(step.program(x, w)) == step.program(x, w).listing()


def test_listing_shows_state():
    weight = torch.ones(3)

    @traced
    def scaled(x):
        return x * weight

    scaled(X)
    assert scaled.program(X).listing() == (
        "inputs: r0; state: r1 = weight\n"
        f"   0  r2: float32[3] = mul.Tensor(r0, r1)  # {here(scaled, 1)}\n"
        "return r2"
    )


def test_listing_shows_parameters_of_modules():
    net = traced(torch.nn.Linear(3, 2))
    net(X)
    head, line, end = net.program(X).listing().splitlines()
    assert head.startswith("inputs: r0; state: r1 = ")
    assert ".weight" in head
    assert ".bias" in head
    assert "r3: float32[2] = linear(r0, r1, r2)" in line
    assert end == "return r3"


def test_listing_shows_lists_reads_and_several_results():
    @traced
    def parts(x):
        low, high = x.topk(2)
        if x.sum() > 100:
            return low
        return torch.cat([low, x]), high

    parts(X)
    text = parts.program(X).listing()
    assert "r1: float32[2], r2: int64[2] = topk(r0, 2, -1, True, True)" in text
    assert "cat([r1, r0], 0)" in text
    assert "read False = " in text
    assert text.count(f"# {here(parts, 2)}") == 3


def test_listing_shows_modes():
    @traced
    def partly(x):
        y = x * 2
        with torch.no_grad():
            z = y * 3
        return y + z

    x = X.clone().requires_grad_()
    partly(x)
    lines = partly.program(x).listing().splitlines()
    assert [("no_grad" in line) for line in lines] == [False, False, True, False, False]


def test_listing_shows_opaque_steps():
    @lazytrace.opaque
    def note(x):
        return x + 1

    @traced
    def noted(x):
        return note(x) * 2

    noted(X)
    text = noted.program(X).listing()
    assert "opaque " in text
    assert "note" in text


def test_listing_shows_lists_of_numbers():
    scaled = traced(lambda x: torch._foreach_mul([x, x], [x.sum().item(), 2.5]))
    scaled(X)
    assert "([r0, r0], [item(r1), 2.5])" in scaled.program(X).listing()


def test_a_generator_is_named_and_no_part_of_a_graph():
    source = torch.Generator().manual_seed(0)
    noisy = traced(lambda x: x + torch.rand(3, generator=source))
    noisy(X)
    program = noisy.program(X)
    assert [str(a.value) for step in program.steps for a in step.arguments if a.name == "generator"] == [
        "source"
    ]
    assert "generator" in program.listing()
    with pytest.raises(NotImplementedError, match="takes random numbers from source"):
        program.to_fx()
    assert not noisy.exportable(X)


def test_operators_counts_what_a_replay_runs():
    x, w = torch.ones(2, 3), torch.ones(3, 3)
    step(x, w)
    assert step.program(x, w).operators == 4
    assert 4 in step.stats().operators


def test_program_of_a_method():
    class Net:
        @traced
        def run(self, x):
            return x * 2

    net = Net()
    net.run(X)
    assert net.run.program(X).operators == 1
    with pytest.raises(LookupError, match="has no program for these arguments"):
        Net().run.program(X)


def test_program_that_is_not_there():
    fn = traced(lambda x: x * 2, name="double")
    text = "double has no program for these arguments: call it with them first"
    for ask in (fn.program, fn.graph):
        with pytest.raises(LookupError) as caught:
            ask(X)
        assert str(caught.value) == text
    fn(X)
    fn.program(X)
    with pytest.raises(LookupError, match=text):
        fn.program(X, 3)
    with pytest.raises(LookupError, match=text):
        fn.program(X.double())
    fn.cache_clear()
    with pytest.raises(LookupError, match=text):
        fn.program(X)


def test_program_of_changed_state_is_another():
    scale = 2.0

    @traced
    def scaled(x):
        return x * scale

    scaled(X)
    scaled.program(X)
    scale = 3.0
    with pytest.raises(LookupError):
        scaled.program(X)
    assert scale == 3.0


def test_asking_for_a_program_does_not_count():
    fn = traced(lambda x: x * 2)
    fn(X)
    fn.program(X), fn.graph(X)
    assert fn.stats().calls == 1


# ---------------------------------------------------------------- functions
def list_arguments(x):
    return torch.cat([x, x * 2]), torch.stack([x, x], dim=1), torch.einsum("ij,jk->ik", x, x)


def numbers(x):
    return 2 - x, x**2, x / 3, x > 0, torch.where(x > 0, x, 0.0), x.clamp(min=-1)


def flat(value) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for one in value for t in flat(one)]


# ---------------------------------------------------------------- results of replays
def test_literals_are_fresh_at_each_replay():
    @traced
    def fresh(x):
        y = torch.tensor([1.0, 2.0, 3.0])
        y.add_(x)
        return y

    outs = [fresh(X) for _ in range(3)]
    for out in outs:
        assert torch.equal(out, torch.tensor([0.0, 2.5, 5.0]))
    assert len({out.data_ptr() for out in outs}) == 3
    assert counts(fresh) == (2, 1, 0)


def test_numbers_written_into_a_tensor():
    @traced
    def fill(x):
        y = x * 2
        y[0] = 7
        y[1:, 0] = 0.5
        return y

    for x in (SQUARE, SQUARE + 1, SQUARE):
        assert torch.equal(fill(x), fill.original(x))
    assert counts(fill) == (2, 1, 0), fill.stats().eager


def test_results_keep_their_identity():
    fn = traced(lambda x: (x, x[1:], [x, x * 2]))
    for _ in range(3):
        x = X.clone()
        same, view, (again, _) = fn(x)
        assert same is x
        assert again is x
        assert view._base is x
        view.zero_()
        assert torch.equal(x, torch.tensor([-1.0, 0.0, 0.0]))
    assert counts(fn) == (2, 1, 0)


def test_writes_to_inputs():
    fn = traced(lambda x: x.mul_(2))
    x = X.clone()
    for i in range(1, 4):
        assert fn(x) is x
        assert torch.equal(x, X * 2**i)
    assert counts(fn) == (2, 1, 0)


def test_random_numbers_are_drawn_anew():
    fn = traced(lambda x: x + torch.rand(3))
    torch.manual_seed(0)
    expected = [X + torch.rand(3) for _ in range(3)]
    torch.manual_seed(0)
    for out in expected:
        assert torch.equal(fn(X), out)
    assert counts(fn) == (2, 1, 0)


def test_shapes_that_depend_on_values():
    fn = traced(lambda x: (x.nonzero(), x[x > 0] * 2))
    xs = [X, -X, X + 10, torch.zeros(3), X, -X]
    for x in xs:
        index, positive = fn(x)
        assert torch.equal(index, x.nonzero())
        assert torch.equal(positive, x[x > 0] * 2)
    assert fn.stats().calls == len(xs)
    assert fn.stats().hits >= 1


def test_shapes_that_differ_after_an_effect_never_go_on_wrongly():
    log = torch.zeros(1)

    def function(x):
        log.add_(1)
        return (x[x > 0] * 2).sum()

    fn = traced(function)
    fn(X)
    before = log.clone()
    try:
        out = fn(X - 10)
    except lazytrace.ReplayError:
        return
    assert float(out) == 0.0
    assert torch.equal(log, before + 1)


# ---------------------------------------------------------------- the proof
def test_proof_runs_the_program_once_more_unless_told_not_to():
    ran = []

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ran.append(1)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    for check, expected in ((True, (1, 2)), (False, (1, 1))):
        ran.clear()
        fn = traced(lambda x: Counting.apply(x), check=check)
        assert torch.equal(fn(X), X * 2)
        assert len(ran) in expected
        fn(X)
        assert torch.equal(fn(X), X * 2)
        assert fn.stats().calls == 3


def test_without_proof_the_program_is_the_same():
    proved, unproved = traced(numbers), traced(numbers, check=False)
    for fn in (proved, unproved):
        for _ in range(3):
            for a, b in zip(flat(fn(SQUARE)), flat(numbers(SQUARE)), strict=True):
                assert torch.equal(a, b)
        assert counts(fn) == (2, 1, 0)
    assert len(proved.program(SQUARE).listing()) == len(unproved.program(SQUARE).listing())


# ---------------------------------------------------------------- memory
class Watch:
    """An opaque step that notes how many of the tensors that it was shown, or made, are in memory."""

    def __init__(self) -> None:
        self.shown: list[StorageWeakRef] = []
        self.made: list[StorageWeakRef] = []
        self.shown_alive: list[int] = []
        self.made_alive: list[int] = []
        self.step = lazytrace.opaque(self._look)

    def _look(self, x):
        self.shown_alive.append(alive(self.shown))
        self.made_alive.append(alive(self.made))
        out = x + 1
        self.shown.append(StorageWeakRef(x.untyped_storage()))
        self.made.append(StorageWeakRef(out.untyped_storage()))
        return out

    def restart(self) -> None:
        for one in (self.shown, self.made, self.shown_alive, self.made_alive):
            one.clear()


def alive(references: list[StorageWeakRef]) -> int:
    return sum(not ref.expired() for ref in references)


def replayed_chain() -> Watch:
    watch = Watch()

    @traced(check=False)
    def chain(x):
        for _ in range(6):
            x = watch.step(x * 2)
        return x

    expected = chain.original(X)
    chain(X)
    watch.restart()
    assert torch.equal(chain(X), expected)
    assert chain.stats().hits == 1, chain.stats().eager
    return watch


def freed_at(fn, *args) -> list[list[int]]:
    fn(*args)
    return [row["frees"] for row in fn.program(*args).native.rows()]


def test_results_of_operators_are_freed_at_their_last_use():
    @traced
    def chain(x):
        y = x * 2
        return (y + 1) * y - 3

    # registers: x (which the caller holds), y, y + 1, the product, the result
    assert freed_at(chain, X) == [[], [], [1, 2], [3]]


def test_registers_live_until_the_last_side_exit():
    @traced
    def branch(x):
        y = x * 2
        z = y + 1
        return z if (z * 3).sum() > 0 else -z

    # Python that resumes at the read may ask for y and all the rest; then they go.
    assert freed_at(branch, X) == [[], [], [], [], [], [1, 3, 4, 5]]


def test_large_results_before_a_first_exit_are_not_kept():
    x = torch.ones(1 << 23)

    @traced(check=False)
    def branch(x):
        y = x * 2
        return (y + 1) if y[0] > 0 else x

    # 32 MiB would be held for a resume that a run from the start can do as well.
    assert freed_at(branch, x) == [[], [], [2], [3], [1]]
    assert freed_at(branch, x[:3]) == [[], [], [], [2, 3], [1]]
    assert torch.equal(branch(-x), -x)


def test_opaque_results_live_until_the_last_side_exit():
    assert replayed_chain().shown_alive == list(range(6))


def test_nothing_is_kept_after_a_replay():
    watch = Watch()

    @traced(check=False)
    def keeps(x):
        return watch.step(x) * 2

    keeps(X)
    watch.restart()
    keeps(X)
    assert (len(watch.made), alive(watch.made)) == (1, 0)
    assert keeps.stats().hits == 1


def test_replays_leave_no_garbage():
    fn = traced(list_arguments)
    fn(SQUARE), fn(SQUARE)
    while gc.collect():  # what other tests have left may leave more
        pass
    gc.disable()
    try:
        for _ in range(50):
            fn(SQUARE)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_dropped_functions_are_freed_with_their_programs():
    weight = torch.ones(3)
    fn = traced(lambda x, w=weight: x * w)
    fn(X), fn(X)
    gone = weakref.ref(fn.program(X).trace), weakref.ref(weight)
    del fn, weight
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


# ---------------------------------------------------------------- modules
class Halves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)])
        self.drop = torch.nn.Dropout()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        with torch.autocast("cpu"), torch.no_grad():
            y = self.drop(x) @ torch.tensor([1.0, 2.0, 3.0])
        return x * 2 if y.sum() > -1e9 else y


def test_modules_have_operators_and_time():
    net, x = Halves(), torch.randn(4, 3)
    fn = lazytrace.traced(net)
    fn(x)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    random, given = torch.get_rng_state(), x.clone()
    program = fn.program(x)
    found = program.submodules(rounds=2)
    assert {one.path: one.operators for one in found} == {
        "": sum(step.kind == "operator" for step in program.steps),
        "layers.0": 1,
        "layers.1": 2,
        "drop": 1,
    }
    whole, *parts = found
    assert all(one.seconds > 0 for one in found)
    assert whole.seconds >= max(one.seconds for one in parts)
    assert parts[0].type == "torch.nn.modules.linear.Linear"
    assert [line.split()[0] for line in str(found).splitlines()[2:]] == ["layers.0", "layers.1", "drop"]
    assert lazytrace.same(dict(net.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(x, given)


def test_steps_that_are_no_operators_have_no_time():
    weight = torch.nn.Parameter(torch.ones(3))

    def step(x):
        (x * weight).sum().backward()
        gradient, weight.grad = weight.grad, None
        return gradient

    fn = lazytrace.traced(step)
    fn(torch.ones(3)), fn(torch.ones(3))
    with pytest.raises(
        NotImplementedError,
        match=r"the modules of step cannot be timed: a step is no operator \(.*test_program",
    ):
        fn.program(torch.ones(3)).submodules()
    fn = lazytrace.traced(lambda x, k: x * k, dynamic=True)
    fn(torch.ones(3), 2)
    with pytest.raises(NotImplementedError, match="it works out numbers"):
        fn.program(torch.ones(3), 2).submodules()
