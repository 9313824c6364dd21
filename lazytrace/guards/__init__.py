"""State that recordings read: how a failed guard reads to a person."""

from lazytrace.guards.reasons import failed_guard

__all__ = ["failed_guard"]
