"""What identifies a call: how its arguments bind, what they look like, and how two calls differ."""

from lazytrace.signature.describe import Description, describe, root_names
from lazytrace.signature.diff import changes, differences, nearest
from lazytrace.signature.parameters import Parameters

__all__ = ["Description", "Parameters", "changes", "describe", "differences", "nearest", "root_names"]
