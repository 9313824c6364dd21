"""Marks on tensors, and sizes that are padded: the recordings, what comes back, what is refused."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from typing import Any

import pytest
import torch

import lazytrace
from lazytrace import OptionError, mark_dynamic, mark_static, traced
from lazytrace.testing import assert_traces


def sized(*shape: int, static: int | None = None, dynamic: int | None = None) -> torch.Tensor:
    x = torch.randn(*shape)
    if static is not None:
        mark_static(x, static)
    if dynamic is not None:
        mark_dynamic(x, dynamic)
    return x


def counts(fn: Any) -> tuple[int, int, int]:
    """(hits, recordings, eager calls)."""
    stats = fn.stats()
    return stats.hits, stats.recordings, stats.eager_calls


# ---------------------------------------------------------------- mark_static
def test_a_static_size_has_recordings_of_its_own() -> None:
    fn = traced(lambda x: x.view(-1, x.shape[1] * x.shape[0]) * 2, dynamic=True)
    for width in (4, 8, 12):
        for rows in (3, 5, 7):
            x = sized(rows, width, static=1)
            assert torch.equal(fn(x), fn.original(x))
    assert counts(fn) == (6, 3, 0), fn.stats()
    assert [reason.text for reason in fn.stats().retrace_reasons] == [
        "result of size(r0, 1) 4 -> 8",
        "result of size(r0, 1) 4 -> 12",
    ]


def test_static_sizes_may_be_more_than_exit_limit() -> None:
    fn = traced(lambda x: x * 2, dynamic=True)
    for _ in range(2):
        for width in range(1, 13):
            fn(sized(width + 20, width, static=1))
            fn(sized(3, width, static=1))
    assert counts(fn) == (36, 12, 0), fn.stats()


def test_a_static_size_counts_from_the_second_recording_on() -> None:
    fn = traced(lambda x: x * 2)
    for shape in ((3, 4), (5, 4), (7, 4), (7, 6), (9, 6), (3, 4)):
        fn(sized(*shape, static=-1))
    assert counts(fn) == (3, 3, 0), fn.stats()


def test_a_static_size_and_a_branch_after_a_change() -> None:
    total = torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        return x * 2 if x.sum() > 0 else x - 1

    fn = traced(step, dynamic=True)
    for sign in (1, 1, -1, 1, -1, -1):
        for width in (2, 3):
            x = sign * torch.ones(len(fn.stats().events) + 2, width)
            mark_static(x, 1)
            assert torch.equal(fn(x), x * 2 if sign > 0 else x - 1)
    assert total.item() == 12
    assert counts(fn) == (8, 4, 0), fn.stats()


def test_a_static_size_is_fixed_once() -> None:
    """A branch that is recorded with other marks is one of the size that was fixed."""
    total = torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        return x * 2 if x.sum() > 0 else x - 1

    fn = traced(step, dynamic=True)
    for sign, rows, width, static in (
        (1, 3, 2, 1),
        (-1, 3, 2, 0),
        (-1, 4, 2, 0),
        (-1, 3, 5, 0),
        (-1, 3, 2, 1),
    ):
        x = sign * torch.ones(rows, width)
        mark_static(x, static)
        assert torch.equal(fn(x), x * 2 if sign > 0 else x - 1)
    assert total.item() == 5
    assert counts(fn)[2] == 0, fn.stats()


# ---------------------------------------------------------------- mark_dynamic
def test_a_dynamic_size_is_followed_at_once() -> None:
    fn = traced(lambda x: x * x.shape[0])
    for rows in (3, 5, 7):
        x = sized(rows, 4, dynamic=0)
        assert torch.equal(fn(x), fn.original(x))
    assert counts(fn) == (2, 1, 0)


def test_dynamic_false_follows_nothing_that_is_marked() -> None:
    fn = traced(lambda x: x * 2, dynamic=False)
    for rows in (3, 5, 7):
        fn(sized(rows, 4, dynamic=0))
    assert counts(fn) == (0, 3, 0)


@pytest.mark.parametrize("dims", [(), (0, 1), (-2, -1)])
def test_the_last_mark_counts(dims: tuple[int, ...]) -> None:
    x, fn = torch.ones(3, 4), traced(lambda x: x * 2)
    mark_dynamic(x, *dims)
    mark_static(x, *dims)
    fn(x)
    fn(torch.ones(4, 4))
    assert counts(fn) == (0, 2, 0)
    mark_dynamic(x, *dims)
    assert vars(x) == {"_lazytrace_dynamic": frozenset({0, 1})}


def test_a_mark_outlives_a_change_of_shape() -> None:
    x, fn = sized(3, 4, static=1), traced(lambda x: x * 2, dynamic=True)
    x.resize_(12)
    assert torch.equal(fn(x), x * 2)


@pytest.mark.parametrize("mark", [mark_static, mark_dynamic])
def test_marks_that_are_refused(mark: Any) -> None:
    with pytest.raises(OptionError) as caught:
        mark([1, 2], 0)
    assert str(caught.value) == (
        f"{mark.__name__}() takes a tensor and dimensions of it, not a list: [1, 2]. "
        "Mark the tensors themselves."
    )
    for dim in (2, -3, True, "x", 1.0):
        with pytest.raises(OptionError) as caught:
            mark(torch.ones(2, 3), 0, dim)
        assert str(caught.value) == (
            f"{mark.__name__}(): {dim!r} is no dimension of a tensor that has 2. "
            "Pass ints from -2 to 1, or none for all."
        )
    with pytest.raises(OptionError, match=r"0 is no dimension of a tensor that has 0. Pass none\.$"):
        mark(torch.ones(()), 0)


# ---------------------------------------------------------------- buckets
def test_each_bucket_is_recorded_once() -> None:
    fn = traced(lambda x: x.cumsum(0), buckets={"x": (0, (4, 8, 16)), "return": 0}, dynamic=False)
    for rows in range(1, 20):
        x = torch.randn(rows, 3)
        assert torch.equal(fn(x), x.cumsum(0))
    assert counts(fn) == (13, 6, 0), fn.stats()  # 17, 18 and 19 are beyond all of them


def test_what_is_filled_in_and_several_parameters() -> None:
    def attend(x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> torch.Tensor:
        return x.masked_fill(mask == 0, float("-inf")).softmax(-1) * scale if mask is not None else x

    buckets = {"x": (-1, (8, 4), 7.0), "mask": (1, (4, 8)), "return": 1}
    fn = traced(attend, buckets=buckets)
    for length in (3, 4, 5, 8):
        x, mask = torch.randn(2, length), torch.ones(2, length)
        assert torch.allclose(fn(x, mask=mask), x.softmax(-1))
        assert torch.allclose(fn(mask=mask, x=x, scale=2.0), x.softmax(-1) * 2)
        assert torch.equal(fn(x), x)
    fills = traced(lambda x: x, buckets={"x": (0, (4,), 7.0)})
    assert fills(torch.ones(3)).tolist() == [1, 1, 1, 7]


def test_one_tensor_that_is_passed_twice() -> None:
    buckets = {"x": (0, (4,)), "y": (0, (4,)), "return": 0}
    fn = traced(lambda x, y: x + 1 if x is y else x + 2, buckets=buckets)
    x, y = torch.ones(3), torch.ones(3)
    for _ in range(3):
        assert fn(x, x).tolist() == [2, 2, 2]
        assert fn(x, y).tolist() == [3, 3, 3]
    assert counts(fn) == (4, 2, 0), fn.stats()


Pair = namedtuple("Pair", ["first", "second"])


def test_results_are_cut_by_their_structure() -> None:
    def parts(x: torch.Tensor) -> Any:
        return {"a": x + 1, "sum": x.sum(), "pair": Pair(x * 2, [x.mT, 5])}

    where = {"a": 0, "pair": (0, (1, None))}
    fn = traced(parts, buckets={"x": (0, (4,)), "return": where})
    x = torch.randn(3, 2)
    found = fn(x)
    assert torch.equal(found["a"], x + 1)
    assert torch.equal(found["pair"].first, x * 2)
    assert isinstance(found["pair"], Pair)
    assert torch.equal(found["pair"].second[0], x.mT)
    assert found["pair"].second[1] == 5
    assert torch.allclose(found["sum"], x.sum())
    assert {*found} == {"a", "sum", "pair"}


def test_nothing_is_cut_unless_it_is_said() -> None:
    fn = traced(lambda x: x + 1, buckets={"x": (0, (4,))})
    assert fn(torch.zeros(3)).tolist() == [1, 1, 1, 1]


def test_gradients_go_through() -> None:
    fn = traced(lambda x: x.exp(), buckets={"x": (0, (4,)), "return": 0})
    for _ in range(3):
        x = torch.randn(3, requires_grad=True)
        fn(x).sum().backward()
        assert x.grad is not None
        assert torch.allclose(x.grad, x.exp())


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x)  # type: ignore[no-any-return]

    @traced(buckets={"x": (0, (4, 8)), "return": 0})
    def step(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x)  # type: ignore[no-any-return]


BUCKETS: dict[str, Any] = {"x": (0, (4, 8)), "return": 0}


def test_methods_modules_and_classes() -> None:
    model = Model()
    made: Any = traced(copy.deepcopy(model), buckets=BUCKETS)
    kind: Any = traced(type("Own", (Model,), {"forward": Model.forward}), buckets=BUCKETS)
    own = kind()
    own.load_state_dict(model.state_dict())
    made.load_state_dict(model.state_dict())
    for rows in (1, 3, 5, 7):
        x = torch.randn(rows, 2)
        for found in (made(x), own(x), model.step(x), Model.step(model, x), copy.deepcopy(made)(x)):
            assert torch.allclose(found, model(x))
    assert isinstance(made, torch.nn.Module)
    assert counts(model.step)[2] == 0
    assert counts(made)[1] <= 2


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled = traced(double, buckets=BUCKETS)


def test_it_is_the_traced_function_but_for_calls() -> None:
    assert doubled.original is double
    again = pickle.loads(pickle.dumps(traced(Model(), buckets=BUCKETS)))
    assert again(torch.ones(3, 2)).shape == (3, 2)
    assert traced(doubled)(torch.ones(3)).tolist() == [2, 2, 2]
    assert traced(doubled).stats().calls == 0
    assert copy.copy(doubled)(torch.ones(3)).tolist() == [2, 2, 2]
    assert lazytrace.handle(doubled).stats().name == "double"
    fresh = traced(double, buckets=BUCKETS)
    assert lazytrace.warmup(fresh, [torch.ones(3), torch.ones(4)]) == len(fresh.stats().events)
    assert_traces(fresh, exactly=len(fresh.stats().events))


def test_a_function_that_writes_to_what_was_padded() -> None:
    fn = traced(lambda x: x.add_(1), buckets=BUCKETS, name="adds")
    x = torch.zeros(4)
    assert fn(x) is x  # nothing was padded
    assert x.tolist() == [1, 1, 1, 1]
    for _ in range(3):
        with pytest.raises(OptionError) as caught:
            fn(torch.zeros(3))
        assert str(caught.value) == (
            "traced(buckets=...): <lambda> writes to 'x', which was padded, so that the caller's tensor does "
            "not change. Return the new values instead."
        )


def test_a_result_of_another_size() -> None:
    fn = traced(lambda x: x[1:], buckets=BUCKETS)
    with pytest.raises(OptionError) as caught:
        fn(torch.zeros(3))
    assert str(caught.value) == (
        "traced(buckets=...): <lambda> was called with size 4, and dimension 0 of its result has another: "
        "it gave a tensor of sizes [3]. Say under 'return' which results have the size, with None for the "
        "others."
    )


def test_buckets_that_are_refused() -> None:
    with pytest.raises(OptionError) as caught:
        traced(lambda x: x, buckets={"y": (0, (4,))})
    assert str(caught.value) == (
        "traced(buckets=...): <lambda> has no parameter 'y'. Name its parameters as they are defined."
    )
    for wrong in ((64, 128), {"x": 4}, {"x": (0, ())}, {"x": (0, [4])}, {"x": (True, (4,))}, {0: (0, (4,))}):
        with pytest.raises(OptionError) as caught:
            traced(lambda x: x, buckets=wrong)
        assert str(caught.value) == (
            f"traced(buckets={wrong!r}): buckets must be a dict of (dimension, sizes) or "
            "(dimension, sizes, value) by parameter. Pass that, or leave buckets out for its default."
        )
