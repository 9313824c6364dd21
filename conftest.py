"""What all tests share, those in docstrings among them."""

from __future__ import annotations

import builtins
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _builtins_of_examples(doctest_namespace: dict[str, Any]) -> None:
    """An example runs in the namespace of its module, which has builtins of its own (originals.py)."""
    doctest_namespace["__builtins__"] = vars(builtins)
