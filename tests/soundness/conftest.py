"""Each soundness test leaves torch as it found it."""

from __future__ import annotations

import pytest

from tests.soundness.runner import restore


@pytest.fixture(autouse=True)
def defaults():
    yield
    restore()
