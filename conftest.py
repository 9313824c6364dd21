"""What all tests share, those in docstrings among them."""

from __future__ import annotations

import builtins
import gc
from typing import Any

import pytest


def pytest_collection_finish() -> None:
    """What is there before the first test stays: a test that collects garbage goes through its own alone."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _builtins_of_examples(doctest_namespace: dict[str, Any]) -> None:
    """An example runs in the namespace of its module, which has builtins of its own (originals.py)."""
    doctest_namespace["__builtins__"] = vars(builtins)
