"""torch's operator database at other sizes and numbers: recorded once for all, replayed at others.

`python -m tests.soundness.operator_sizes` tries every sample of every operator and says what it found;
`--inside` has each operator between two others, without gradients, where shorter ways are found for it;
`--numbers` gives every number of every sample by itself.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import lazytrace

# Sizes are exchanged for these, each for all dimensions of that size at once.
EXCHANGES = ({}, {1: 2, 2: 3, 3: 5, 4: 6, 5: 7, 10: 11}, {2: 1, 3: 1, 5: 4, 10: 6}, {3: 2, 5: 3, 4: 0, 1: 3})
# The same for numbers, those inside lists too.
CHANGES: tuple[Callable[[Any], Any], ...] = (
    lambda n: n, lambda n: n + 1, lambda n: n - 1, lambda n: n * 2, lambda n: n * 0, lambda n: -n,
)  # fmt: skip
# Their results are memory that nobody has written, or none of the values is the same twice.
UNCOMPARABLE = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


def database() -> list[Any]:
    """The operators that take floats. Importing the database changes switches of torch for the process."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.dtypes and op.name not in UNCOMPARABLE]


def samples(op: Any, most: int) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    try:
        found = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))
    except Exception:
        return []
    return [((sample.input, *sample.args), sample.kwargs) for sample in found[:most]]


def at_other_sizes(value: Any, sizes: dict[int, int]) -> Any:
    """The same with tensors of other sizes; what is filled in are values of the same range."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.layout != torch.strided or leaf.is_quantized:
            return leaf.clone()
        shape = [sizes.get(size, size) for size in leaf.shape]
        if shape == list(leaf.shape):
            return leaf.clone()
        if leaf.dtype == torch.bool:
            return torch.rand(shape) > 0.5
        low, high = (leaf.real.min().item(), leaf.real.max().item()) if leaf.numel() else (0.0, 1.0)
        if leaf.is_floating_point() or leaf.is_complex():
            return (torch.rand(shape) * (high - low) + low).to(leaf.dtype)
        return torch.randint(int(low), int(high) + 1, shape, dtype=leaf.dtype)

    return pytree.tree_map(one, value)


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """What a call returns or raises, and what has become of its arguments."""
    args, kwargs = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (args, kwargs))
    torch.manual_seed(0)
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        result = (type(error).__name__, str(error).split("\n")[0])
    return pytree.tree_leaves((result, args, kwargs, torch.rand(1)))  # type: ignore[no-any-return]


def difference(expected: list[Any], found: list[Any]) -> str:
    """How two outcomes differ; "" when they do not."""
    if len(expected) != len(found):
        return f"{len(found)} values instead of {len(expected)}: {found[:3]} instead of {expected[:3]}"
    for a, b in zip(expected, found, strict=True):
        if type(a) is not type(b):
            return f"a {type(b).__name__} instead of a {type(a).__name__}"
        if not isinstance(a, torch.Tensor):
            if a != b and not (a != a and b != b):
                return f"{b!r} instead of {a!r}"
        elif a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
            return f"{b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
        elif a.layout == torch.strided and (a.stride() != b.stride() or not same_values(a, b)):
            return f"other values or strides {b.stride()} instead of {a.stride()}"
    return ""


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_quantized:
        return torch.equal(a, b)
    if a.dtype == torch.complex32:  # which has few operators of its own
        a, b = a.to(torch.complex64), b.to(torch.complex64)
    return torch.equal(a.resolve_conj().nan_to_num(), b.resolve_conj().nan_to_num())


def copied(value: Any) -> Any:
    """The same with tensors of its own, made by an operator."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) in (list, tuple):
        return type(value)([copied(item) for item in value])
    return value


def placed_inside(op: Callable[..., Any]) -> Callable[..., Any]:
    """The operator on what another one has made, with what it gives used up by a third."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [copied(argument) for argument in args]
        return copied(op(*given, **{name: copied(value) for name, value in kwargs.items()}))

    return call


def taken_out(value: Any, numbers: list[Any]) -> Any:
    """What `put_back` makes the value of again; its ints and floats are appended to `numbers`."""
    if type(value) in (int, float):
        numbers.append(value)
        return "number", len(numbers) - 1
    if type(value) in (list, tuple):
        return type(value).__name__, [taken_out(item, numbers) for item in value]
    return "value", value


def put_back(kind: str, inside: Any, numbers: tuple[Any, ...]) -> Any:
    if kind == "number":
        return numbers[inside]
    if kind == "value":
        return inside
    items = [put_back(of, what, numbers) for of, what in inside]
    return tuple(items) if kind == "tuple" else items


def compared(
    op: Any, call: Callable[..., Any], calls: list[tuple[Any, Any]], counts: Counter[str]
) -> Iterator[str]:
    """What differs between some calls of a function and of its traced twin."""
    traced = lazytrace.traced(call, dynamic=True, events=1)
    for number, given in enumerate(calls):
        expected = outcome(call, *given)
        found = difference(expected, outcome(traced, *given))
        if found and not difference(expected, outcome(call, *given)):
            yield f"{op.name} {op.variant_test_name} call {number}: {found}"
    info = traced.stats()
    counts.update(hits=info.hits, recordings=info.recordings, calls=info.calls)


def differences(op: Any, most: int, counts: Counter[str], inside: bool = False) -> Iterator[str]:
    """Calls of an operator whose traced twin did something else, at all sizes of all samples."""
    for args, kwargs in samples(op, most):

        def call(*args: Any, **kwargs: Any) -> Any:
            return op(*args, **kwargs)

        calls = [at_other_sizes((args, kwargs), sizes) for sizes in EXCHANGES]
        with torch.set_grad_enabled(not inside):
            yield from compared(op, placed_inside(op) if inside else call, calls, counts)


def differences_in_numbers(op: Any, most: int, counts: Counter[str]) -> Iterator[str]:
    """The same for calls with other numbers, each of which is an argument of its own."""
    # Of a mode that they do not know these give memory that nobody has written.
    for args, kwargs in samples(op, most * (op.name not in ("grid_sampler_2d", "grid_sampler_3d"))):
        numbers: list[Any] = []
        places = taken_out([*args, *kwargs.values()], numbers)
        count, names = len(args), list(kwargs)
        if not numbers:
            continue

        def call(*numbers: Any, places: Any = places, count: int = count, names: Any = names) -> Any:
            given = put_back(*places, numbers)
            return op(*given[:count], **dict(zip(names, given[count:], strict=True)))

        calls: list[tuple[Any, Any]] = [([change(n) for n in numbers], {}) for change in CHANGES]
        yield from compared(op, call, calls, counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operators; all when none is named")
    parser.add_argument("--most", type=int, default=1000, help="samples of each operator")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--numbers", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for op in database():
        if options.names and op.name not in options.names:
            continue
        counts["operators"] += 1
        wrong = (
            differences_in_numbers(op, options.most, counts)
            if options.numbers
            else differences(op, options.most, counts, options.inside)
        )
        for line in wrong:
            counts["wrong"] += 1
            print("WRONG", line, flush=True)
    print(
        " ".join(f"{name}={counts[name]}" for name in ("operators", "calls", "recordings", "hits", "wrong"))
    )


if __name__ == "__main__":
    main()
