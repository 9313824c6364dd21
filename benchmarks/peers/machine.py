"""What was measured on: hardware and versions, without names of machines or people."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

import lazytrace
from peers.child import ask_jax


def field_of(file: str, name: str) -> str:
    """The value of `name` in a file of `name : value` lines, or "unknown"."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "unknown")


def memory() -> str:
    """How much memory there is."""
    kilobytes = field_of("/proc/meminfo", "MemTotal").split()[0]
    return f"{int(kilobytes) / 2**20:.0f} GiB" if kilobytes.isdigit() else kilobytes


def description() -> dict[str, str]:
    """Hardware and versions, by what they are."""
    return {
        "processor": field_of("/proc/cpuinfo", "model name"),
        "cores": str(os.cpu_count()),
        "memory": memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "jax": ask_jax("version", {}).get("version", "none"),
        "lazytrace": lazytrace.__version__,
    }


def load() -> float:
    """How many processes wanted to run in the last minute, on average."""
    return os.getloadavg()[0]
