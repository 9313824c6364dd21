"""The tests of other libraries as a net: `python benchmarks/library_tests.py PACKAGE FOLDER [PYTEST ARGS]`.

Runs the tests in FOLDER, a checkout of the library, with pytest. Whenever a test calls a module, or a
function of PACKAGE, it is called several times on copies first: plainly, plainly once more, and traced.
Results, gradients, arguments, parameters and buffers must be the same in every bit. What differs from itself,
changes its arguments or cannot be copied is left out, and counted. The tests see what the plain call gives;
whether they pass does not matter.

    python benchmarks/library_tests.py kornia ../kornia/tests/color
    python benchmarks/library_tests.py torch_geometric ../pytorch_geometric/test/nn/conv -k "not cuda"
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import random
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lazytrace

CALLS = 4
PER_TEST = 4  # calls of the same module or function
LARGEST = 3_000_000  # parameters
DEEPEST = 6


# ---------------------------------------------------------------- what a call shows
def leaves(value: Any, depth: int = 0, seen: set[int] | None = None) -> Iterator[Any]:
    """Tensors and plain values, also those in objects."""
    seen = set() if seen is None else seen
    if isinstance(value, (torch.Tensor, int, float, complex, str, bytes, type(None))):
        yield value
        return
    if id(value) in seen or depth > DEEPEST:
        return
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    elif hasattr(value, "__dict__"):
        inside = vars(value).values()
    for item in list(inside):
        yield from leaves(item, depth + 1, seen)


def same(a: Any, b: Any) -> bool:
    """Whether two leaves are alike in every bit, and in what can be asked of tensors."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return type(a) is type(b) and (a == b or (a != a and b != b))
    looks = [(t.dtype, t.shape, t.layout, t.device, t.requires_grad) for t in (a, b)]
    if looks[0] != looks[1]:
        return False
    if a.layout is not torch.strided or a.is_meta or a.is_quantized:
        return True
    a, b = (t.detach().resolve_conj().resolve_neg() for t in (a, b))
    return a.stride() == b.stride() and bool(((a == b) | ((a != a) & (b != b))).all())


def difference(before: Any, after: Any) -> str:
    """The first leaf in which two values differ, in words; nothing where they do not."""
    pairs = list(leaves(before)), list(leaves(after))
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[0])} and {len(pairs[1])} leaves"
    found = next((i for i, (a, b) in enumerate(zip(*pairs, strict=True)) if not same(a, b)), None)
    if found is None:
        return ""
    old, new = (" ".join(repr(leaves_of[found]).split())[:100] for leaves_of in pairs)
    return f"leaf {found}: {old} and {new}"


def now(value: Any, *, keep: bool = False) -> list[Any]:
    """Leaves without their history, and with memory of their own to be kept."""
    found = []
    for one in leaves(value):
        if isinstance(one, torch.Tensor) and one.layout is torch.strided:
            one = one.detach().clone() if keep else one.detach()
        found.append(one)
    return found


def gradients(result: Any, inputs: list[torch.Tensor]) -> Any:
    """Of all results, with respect to the inputs; what is raised, in words."""
    given = [t for t in leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not given or not inputs:
        return None
    seeds = torch.Generator().manual_seed(3)
    try:
        weights = [torch.rand(t.shape, generator=seeds, dtype=torch.double).to(t.dtype) for t in given]
        return torch.autograd.grad(given, inputs, weights, allow_unused=True, retain_graph=True)
    except (RuntimeError, NotImplementedError) as error:
        return type(error).__name__


class Streams:
    """Random numbers, as they were."""

    def __init__(self) -> None:
        self._torch, self._python, self._numpy = (
            torch.get_rng_state(),
            random.getstate(),
            np.random.get_state(),
        )

    def put_back(self) -> None:
        """For another call with the same numbers."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)


# ---------------------------------------------------------------- the net
class Net:
    """Compares calls, and counts what it finds. A plugin of pytest."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.test = ""
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._here: Counter[str] = Counter()
        self._inside = False

    def pytest_sessionstart(self) -> None:
        """Put functions that compare in the place of those of the package, and of calls of modules."""
        importlib.import_module(self.package)
        own = [m for name, m in sys.modules.items() if (name + ".").startswith(self.package + ".")]
        made: dict[Any, Any] = {}
        for module in own:
            for name, value in list(vars(module).items()):
                theirs = isinstance(value, types.FunctionType) and not value.__name__.startswith("_")
                if theirs and (value.__module__ or "").startswith(self.package):
                    made.setdefault(value, self._instead_of(value))
                    setattr(module, name, made[value])
        plain = nn.Module.__call__

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            small = sum(p.numel() for p in module.parameters()) < LARGEST
            if small and not type(module).__module__.startswith("torch."):
                self.compare(type(module).__qualname__, lambda: copy.deepcopy(module), args, kwargs)
            return self._outside(plain, module, *args, **kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A test begins."""
        self.test = item.nodeid
        self._here.clear()

    def pytest_runtest_teardown(self) -> None:
        """It has ended: fixtures that go are not compared."""
        self.test = ""

    def _outside(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        was, self._inside = self._inside, True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside = was

    def _instead_of(self, function: types.FunctionType) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.compare(function.__qualname__, lambda: function, args, kwargs)
            return self._outside(function, *args, **kwargs)

        return call

    def compare(self, name: str, make: Callable[[], Any], args: Any, kwargs: Any) -> None:
        """Compare the calls of what `make` gives, unless this one is inside another."""
        if self._inside or not self.test or self._here[name] >= PER_TEST:
            return
        self._here[name] += 1
        self.counts["calls"] += 1
        streams = Streams()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self._outside(self._compare, name, make, (args, kwargs), streams)
        self.counts[found] += 1
        streams.put_back()

    def _compare(
        self, name: str, make: Callable[[], Any], given: tuple[Any, dict[str, Any]], streams: Streams
    ) -> str:
        before = now(given, keep=True)
        try:
            plain, again, other = make(), make(), make()
        except Exception:  # whatever a copy raises
            return "cannot be copied"
        expected = self._run(plain, given, streams)
        if difference(before, now(given)):
            return "changes its arguments"
        if difference(expected, self._run(again, given, streams)):
            return "differs from itself"
        traced = lazytrace.traced(other)
        found = self._run(traced, given, streams, other)
        wrong = difference(expected, found) or difference(before, now(given))
        if isinstance(plain, nn.Module):
            wrong = wrong or difference(plain.state_dict(), other.state_dict())
        if wrong:
            self.wrong.append(f"{self.test}: {name}: {wrong}")
            return "wrong"
        stats = lazytrace.handle(traced).stats()
        self.counts["hits"] += stats.hits
        if not stats.hits:
            self.counts["without hits"] += 1
            self.reasons.update(list(stats.eager)[:1])
        return "equal"

    def _run(
        self, function: Any, given: tuple[Any, dict[str, Any]], streams: Streams, module: Any = None
    ) -> list[Any]:
        streams.put_back()
        module = function if module is None else module
        inputs = [t for t in leaves(given) if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
        if isinstance(module, nn.Module):
            inputs += [p for p in module.parameters() if p.requires_grad]
        all_of_them = []
        for _ in range(CALLS):
            try:
                result = function(*given[0], **given[1])
            except Exception as error:  # it must be the same one
                all_of_them.append(f"{type(error).__name__}: {error}")
                continue
            all_of_them.append([result, gradients(result, inputs)])
        return all_of_them


def main() -> int:
    """Run the tests, and say what was compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("package", help="whose functions are compared; modules are whoever has made them")
    parser.add_argument("folder", help="the tests, or some of them")
    given, rest = parser.parse_known_args()
    net = Net(given.package)
    pytest.main([given.folder, "-q", "-p", "no:cacheprovider", *rest], plugins=[net])
    for text in net.wrong:
        print("WRONG", text)
    for reason, count in net.reasons.most_common(12):
        print(f"{count:6} {reason}")
    print(", ".join(f"{what} {count}" for what, count in net.counts.items()))
    return len(net.wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
