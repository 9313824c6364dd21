"""The option `dynamic`: which calls share a recording, what counts, reasons and explanations say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lazytrace import OptionError, handle, traced
from lazytrace.config import Options
from lazytrace.stats.report.text import render


def called(fn: Any, sizes: Iterable[int], make: Callable[[int], torch.Tensor] | None = None) -> Any:
    """Calls with tensors of these sizes, each compared with the plain function; the counts."""
    for size in sizes:
        x = torch.randn(size, 4) if make is None else make(size)
        assert torch.equal(fn(x), fn.original(x))
    return fn.stats()


def counts(stats: Any) -> tuple[int, int, int]:
    """(hits, recordings, eager calls)."""
    return stats.hits, stats.recordings, stats.eager_calls


def texts(stats: Any) -> list[str]:
    """The reasons of the recordings after the first, without their places."""
    return [reason.text.partition(" (test_")[0] for reason in stats.retrace_reasons]


# ---------------------------------------------------------------- the option
@pytest.mark.parametrize("value", [None, True, False])
def test_allowed_values(value: bool | None) -> None:
    assert Options.checked(dynamic=value).dynamic is value


def test_the_default_is_none() -> None:
    assert Options().dynamic is None


@pytest.mark.parametrize("value", [0, 1, "yes", (), 2.0])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(OptionError) as caught:
        traced(dynamic=value)
    assert str(caught.value) == (
        f"traced(dynamic={value!r}): dynamic must be None, True or False. "
        "Pass that, or leave dynamic out for its default."
    )


# ---------------------------------------------------------------- how many recordings
SIZES = (3, 4, 5, 3, 0, 1, 17)


@pytest.mark.parametrize(("dynamic", "expected"), [(None, (5, 2, 0)), (True, (6, 1, 0)), (False, (1, 6, 0))])
def test_recordings_for_several_sizes(dynamic: bool | None, expected: tuple[int, int, int]) -> None:
    fn = traced(lambda x: torch.relu(x) @ x.mT, dynamic=dynamic)
    assert counts(called(fn, SIZES)) == expected
    assert fn.cache_info() == (expected[0], expected[1], 64, expected[1])


@pytest.mark.parametrize(("dynamic", "recordings"), [(None, 2), (True, 1), (False, 4)])
def test_sizes_go_through_python_into_operators(dynamic: bool | None, recordings: int) -> None:
    fn = traced(lambda x: x.view(x.shape[0] * 2, -1) + torch.arange(x.size(0) * 2)[:, None], dynamic=dynamic)
    assert called(fn, (2, 3, 5, 7)).recordings == recordings


def test_the_first_sizes_keep_a_recording_of_their_own() -> None:
    fn = traced(lambda x: x.view(x.shape[0] * 2, -1))
    called(fn, (3, 5))
    assert "[6, -1]" in handle(fn).program(torch.randn(3, 4)).listing()
    assert "(size(r0, 0) * 2)" in handle(fn).program(torch.randn(9, 4)).listing()


def test_another_number_of_dimensions_is_another_signature() -> None:
    fn = traced(lambda x: x * x.shape[0], dynamic=True)
    stats = called(fn, (1, 2, 3, 4), lambda n: torch.randn(2, 3, 5, 7)[(0,) * (n % 2)])
    assert counts(stats) == (2, 2, 0)


def test_gradients_at_other_sizes() -> None:
    fn = traced(lambda x: (torch.tanh(x) / torch.tensor(x.shape[0])).sum(), dynamic=True)
    for size in (3, 5, 2):
        x = torch.randn(size, 4, requires_grad=True)
        (grad,) = torch.autograd.grad(fn(x), x)
        (expected,) = torch.autograd.grad(fn.original(x), x)
        assert torch.equal(grad, expected)
    assert counts(fn.stats()) == (2, 1, 0)


def test_numbers_are_followed() -> None:
    for dynamic, expected in ((True, (3, 2, 0)), (None, (1, 4, 0)), (False, (0, 5, 0))):
        fn = traced(lambda x, k: x * k, dynamic=dynamic)
        for k in (1, 2, 3, 0.5, 1.5):
            fn(torch.ones(3), k)
        assert counts(fn.stats()) == expected


# ---------------------------------------------------------------- state
def growing(dynamic: bool | None) -> Any:
    class Cache:
        def __init__(self) -> None:
            self.keys = torch.zeros(1, 0, 4)

        @traced(dynamic=dynamic)
        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.keys = torch.cat([self.keys, x], dim=1)
            return torch.softmax(x @ self.keys.transpose(1, 2), -1) @ self.keys

    return Cache()


@pytest.mark.parametrize(("dynamic", "recordings"), [(None, 2), (True, 1), (False, 8)])
def test_a_cache_that_grows(dynamic: bool | None, recordings: int) -> None:
    cache, keys = growing(dynamic), torch.zeros(1, 0, 4)
    for _ in range(8):
        x = torch.randn(1, 1, 4)
        keys = torch.cat([keys, x], dim=1)
        expected = torch.softmax(x @ keys.transpose(1, 2), -1) @ keys
        assert torch.equal(cache.step(x), expected)
        assert torch.equal(cache.keys, keys)
    assert counts(cache.step.stats()) == (8 - recordings, recordings, 0)


def test_the_reason_names_the_size_in_state() -> None:
    cache = growing(None)
    for _ in range(5):
        cache.step(torch.randn(1, 1, 4))
    assert texts(cache.step.stats()) == ["self.keys.shape[1] 0 -> 1"]
    assert str(cache.step.explain(torch.randn(1, 1, 4))).endswith("step would hit")


# ---------------------------------------------------------------- reads
def clip(x: torch.Tensor) -> torch.Tensor:
    return x[:, :2] if x.shape[0] > 4 else x


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.sum() * i for i in range(x.shape[0])])


def test_a_comparison_splits_by_its_outcome() -> None:
    fn = traced(clip, dynamic=True)
    stats = called(fn, (1, 2, 3, 4, 5, 6, 7, 4, 9))
    assert counts(stats) == (7, 2, 0)
    assert texts(stats) == ["result of (4 < size(r0, 0)) 0 -> 1"]


def test_explain_names_the_reads() -> None:
    fn = traced(clip)
    x = torch.randn(3, 4)
    fn(x)
    assert str(fn.explain(torch.randn(2, 4))) == "clip would be recorded: x.shape[0] 3 -> 2"
    fn(torch.randn(2, 4))
    explanation = str(fn.explain(torch.randn(1, 4)))
    line = clip.__code__.co_firstlineno + 1
    assert explanation == (
        f"clip would hit, unless one of these differs: (4 < size(r0, 0)) 0 (test_dynamic_option.py:{line})"
    )
    assert fn.explain(torch.randn(1, 4)).outcome == "hit"
    assert str(fn.explain(x)) == "clip would hit"


def test_a_value_that_is_read_is_a_branch_for_each_size() -> None:
    fn = traced(rows, dynamic=True)
    stats = called(fn, (1, 2, 3, 2, 1, 3))
    assert counts(stats) == (3, 3, 0)
    assert texts(stats) == ["result of size(r0, 0) 1 -> 2", "result of size(r0, 0) 1 -> 3"]


def test_a_size_that_is_returned_is_followed() -> None:
    fn = traced(lambda x: (x * 2, x.shape[0]), dynamic=True)
    for size in (2, 3, 2, 3):
        doubled, returned = fn(torch.ones(size))
        assert doubled.shape == (size,)
        assert type(returned) is int
        assert returned == size
    assert counts(fn.stats()) == (3, 1, 0)


@pytest.mark.filterwarnings("ignore::lazytrace.RetraceWarning")
@pytest.mark.parametrize("limit", ["exit_limit", "branch_limit"])
def test_too_many_branches_lead_to_exact_recordings(limit: str) -> None:
    fn = traced(rows, dynamic=True, **{limit: 3})
    called(fn, range(1, 13))
    # Whatever was recorded on the way, each size has a recording of its own from here on.
    called(fn, range(1, 13))
    before = fn.stats()
    after = called(fn, range(1, 13))
    assert before.eager_calls == 0
    assert counts(after) == (before.hits + 12, before.recordings, 0)
    listing = handle(fn).program(torch.randn(5, 4)).listing()
    assert "size(" not in listing
    assert str(fn.explain(torch.randn(20, 4))).startswith("rows would be recorded: x.shape[0] ")


def test_false_never_reads() -> None:
    fn = traced(clip, dynamic=False)
    stats = called(fn, (3, 4, 5, 3, 4, 5))
    assert counts(stats) == (3, 3, 0)
    assert texts(stats) == ["x.shape[0] 3 -> 4", "x.shape[0] 4 -> 5"]


def test_clearing_forgets_that_sizes_differed() -> None:
    fn = traced(lambda x: x.view(x.shape[0] * 2, -1))
    called(fn, (3, 5, 7))
    fn.cache_clear()
    assert called(fn, (3, 5, 7)).recordings == 4
    assert fn.cache_info().currsize == 2


def test_no_graph_of_a_program_for_all_sizes():
    function = traced(lambda x: x.view(x.shape[0], -1) * 2, dynamic=True)
    x = torch.randn(3, 4)
    function(x)
    with pytest.raises(NotImplementedError, match="Trace the function with dynamic=False"):
        function.graph(x)
    exact = traced(lambda x: x.view(x.shape[0], -1) * 2, dynamic=False)
    exact(x)
    assert torch.equal(exact.graph(x)(x), x * 2)


def test_the_listing_shows_sizes_as_they_are_worked_out():
    function = traced(lambda x: x.view(x.shape[0], -1) * 2, dynamic=True)
    function(torch.randn(3, 4))
    assert "[size(r0, 0), -1]" in function.program(torch.randn(3, 4)).listing()


def test_a_branch_that_is_met_at_another_size():
    def step(x, flag):
        zeros = torch.zeros(x.shape[0])
        return x + 1 if flag.sum() > 0 else x - zeros[:, None]

    function = traced(step, dynamic=True)
    for n, sign in ((3, 1), (5, -1), (7, 1), (4, -1), (6, -1)):
        x, flag = torch.randn(n, 2), torch.ones(2) * sign
        assert torch.equal(function(x, flag), step(x, flag))
    assert function.stats().hits >= 3
    assert not function.stats().eager


def test_a_branch_that_is_known_for_all_sizes_is_not_recorded_for_the_first_ones() -> None:
    """The sizes that were recorded first have a recording of their own, which went one way."""

    @traced
    def step(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * 2 if mask.all() else x - mask.float()[:, None]

    def passes(size: int, *, whole: bool) -> None:
        mask = torch.ones(size, dtype=torch.bool)
        mask[0] = whole
        assert torch.equal(step(torch.ones(size, 2), mask), step.original(torch.ones(size, 2), mask))

    for size, whole in ((3, True), (5, False), (7, True)):
        passes(size, whole=whole)
    assert step.stats().recordings == 3
    for size, whole in ((3, False), (3, True), (3, False), (5, True), (9, False)):
        passes(size, whole=whole)
    assert (step.stats().recordings, step.stats().hits) == (3, 5)


def test_what_no_recording_can_do_does_not_fix_the_sizes_of_other_calls() -> None:
    class Cache:
        keys: Any = None

    def step(cache: Cache, x: torch.Tensor) -> torch.Tensor:
        if cache.keys is None:
            cache.keys = torch.zeros_like(x)
            cache.keys.tag = ["mine"]
        return cache.keys + x.view(x.shape[0], -1)  # type: ignore[no-any-return]

    function = traced(step)
    for size in (3, 5, 7, 4, 6):
        cache, x = Cache(), torch.ones(size, 2)
        for _ in range(4):
            assert torch.equal(function(cache, x), x)
        assert cache.keys.tag == ["mine"]
    stats = function.stats()
    assert (stats.recordings, stats.eager_calls) == (2, 5), (stats, stats.eager, stats.retrace_reasons)


# ---------------------------------------------------------------- what the report says
def report_on(fn: Any) -> str:
    """The report's part on one function."""
    return render([replace(fn.stats(), programs=tuple(fn._self_engine.last_programs()()))])


def line_of(fn: Any, offset: int = 0) -> str:
    return f"test_dynamic_option.py:{fn.original.__code__.co_firstlineno + offset}"


TABLE = dict.fromkeys(range(100), 0.5)


def test_the_report_says_which_sizes_differ_and_what_splits_them() -> None:
    @traced
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], -1) @ w * TABLE[x.shape[0]]

    w = torch.ones(4, 4)
    for size in (3, 5, 7, 9, 7):
        step(torch.ones(size, 4), w)
    text = report_on(step)
    place = line_of(step, 2)
    assert "Sizes\n  step(x, w): 3 programs fit all sizes of x.shape[1], w.shape[0], w.shape[1]\n" in text
    assert f"\n  step: size(r0, 0) is read in {place}, with a program for each of 5, 7, 9\n" in text
    assert (
        "step: result of size(r0, 0) had 3 different values (5, 7, 9): Python needs this size, so each of "
        "its values is recorded by itself. Leave it to an operator, in place of range(), an index, a format "
        f"or a C function; or pad it to a few buckets. ({place})"
    ) in text
    assert "torch.where" not in text


def test_the_report_on_sizes_that_nothing_splits() -> None:
    @traced
    def step(*tensors: torch.Tensor) -> torch.Tensor:
        return sum(t.sum() for t in tensors) * 2 if len(tensors[0]) > 4 else tensors[0]

    for size in (3, 5, 7, 9, 2):
        step(*[torch.ones(size, 4) for _ in range(5)])
    text = report_on(step)
    head = "Sizes\n  step(*tensors): 2 programs fit all sizes of args[0].shape[0], args[0].shape[1], "
    assert head in text, text
    assert "args[2].shape[1], 4 more\n" in text
    assert "size(r0, 0)) is read" in text
    assert "Suggestions" not in text


def test_the_report_on_exact_programs_says_nothing_of_sizes() -> None:
    fn = traced(lambda x: x * 2, dynamic=False)
    fn(torch.ones(3))
    assert "Sizes" not in report_on(fn)
