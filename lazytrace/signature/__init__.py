"""What identifies a call: how its arguments bind, and what they look like."""

from lazytrace.signature.describe import Description, describe, root_names, tensors_of
from lazytrace.signature.parameters import Parameters, Unread

__all__ = ["Description", "Parameters", "Unread", "describe", "root_names", "tensors_of"]
