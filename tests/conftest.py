"""Processes that run tests side by side share the cores; `LAZYTRACE_TEST_DEVICE=cuda` runs them on a GPU."""

from __future__ import annotations

import gc
import os

import torch


def pytest_configure() -> None:
    """Say where tests make their tensors, and give each of pytest-xdist's workers its share of the cores.

    OpenMP's threads spin while they wait for each other. With more of them than cores, a kernel of a few
    numbers takes ten milliseconds: the suite took four times as long.
    """
    if os.environ.get("LAZYTRACE_TEST_DEVICE") == "cuda":
        # Not `torch.set_default_device`: its function mode would be part of every call under test.
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        threads = max(1, (os.cpu_count() or 1) // workers)
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of the programs that tests start


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: no collection need go through some hundred thousand objects."""
    gc.collect()
    gc.freeze()
