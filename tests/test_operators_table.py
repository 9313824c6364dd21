"""The table of operators whose results are views whatever they are given: asked of the installed torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

FACTS = Path(__file__).parents[1] / "lazytrace" / "csrc" / "torch" / "facts.cpp"

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "narrow": lambda x: x.narrow(0, 0, 1),
    "view_as": lambda x: x.view_as(x),
    "expand_as": lambda x: x[:1].expand_as(x),
    "chunk": lambda x: x.chunk(2),
    "split": lambda x: x.split(1),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "swapdims": lambda x: x.swapdims(0, 1),
    "movedim": lambda x: x.movedim(0, 1),
    "moveaxis": lambda x: x.moveaxis(0, 1),
    "numpy_T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "unflatten": lambda x: x.unflatten(0, (1, -1)),
}
LOOKS = {
    "contiguous": torch.arange(12.0).view(3, 4),
    "turned": torch.arange(12.0).view(4, 3).t(),
    "expanded": torch.arange(4.0).expand(3, 4),
    "strided": torch.arange(48.0).view(6, 8)[::2, ::2],
    "one": torch.arange(1.0).view(1, 1),
}


def named() -> list[str]:
    table = re.search(r"kViews = \{(.*?)\};", FACTS.read_text(), re.S)
    assert table is not None
    return re.findall(r'"aten::(\w+)"', table[1])


def test_each_row_is_called_here():
    assert sorted(named()) == sorted(CALLS)


@pytest.mark.parametrize("name", list(CALLS))
@pytest.mark.parametrize("look", LOOKS.values(), ids=list(LOOKS))
def test_results_show_the_memory_of_the_argument(name, look):
    assert torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    results = CALLS[name](look)
    for result in results if isinstance(results, tuple) else (results,):
        assert result.untyped_storage().data_ptr() == look.untyped_storage().data_ptr()
