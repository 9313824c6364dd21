"""Numbers that are followed: what Python is given in place of sizes and other numbers.

C code reads the value of a number without asking. `Dim` is an int, and `Real` a float, to `isinstance`
alone: C code must call one of their methods to see the value. torch's parser takes them for a SymInt and a
SymFloat.
"""

from __future__ import annotations

from lazytrace.carriers.classes import (
    CARRIERS,
    NUMBERS,
    Dim,
    Long,
    Real,
    Scalar,
    Single,
    as_float,
    as_int,
    as_long,
    as_scalar,
    as_single,
    numpy,
    read,
    read_key,
    with_dims,
)
from lazytrace.carriers.exchanged import configure
from lazytrace.carriers.tensors import array_of

__all__ = [
    "CARRIERS",
    "NUMBERS",
    "Dim",
    "Long",
    "Real",
    "Scalar",
    "Single",
    "array_of",
    "as_float",
    "as_int",
    "as_long",
    "as_scalar",
    "as_single",
    "configure",
    "numpy",
    "read",
    "read_key",
    "with_dims",
]
