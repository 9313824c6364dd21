"""Each soundness test leaves torch as it found it."""

from __future__ import annotations

import pytest
import torch

from tests.soundness.runner import restore

MODULE_METHODS = {name: getattr(torch.nn.Module, name) for name in ("__init__", "__setstate__")}


@pytest.fixture(autouse=True)
def usual_torch():
    """No case may hang on which ran before it.

    Torch's compiler patches `Module` once it is asked for anything. What it puts there calls `id()`, and a
    function that makes modules is eager from then on.
    """
    for name, method in MODULE_METHODS.items():
        if getattr(torch.nn.Module, name) is not method:
            setattr(torch.nn.Module, name, method)
    yield
    restore()
