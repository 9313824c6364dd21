"""What identifies a call: how its arguments bind, and what they look like."""

from lazytrace.signature.describe import Description, describe, example_of, memory_of, root_names, tensors_of
from lazytrace.signature.parameters import Parameters, Unread, calls_first_argument

__all__ = [
    "Description",
    "Parameters",
    "Unread",
    "calls_first_argument",
    "describe",
    "example_of",
    "memory_of",
    "root_names",
    "tensors_of",
]
