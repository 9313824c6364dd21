"""What a traced function owns, and what becomes of a call that is no plain hit."""

from lazytrace.engine.decide import Decision
from lazytrace.engine.entry import Engine, Held
from lazytrace.engine.owner import CacheInfo
from lazytrace.engine.recording import Finished
from lazytrace.engine.store import TraceCache
from lazytrace.engine.switches import disabled, is_tracing

__all__ = ["CacheInfo", "Decision", "Engine", "Finished", "Held", "TraceCache", "disabled", "is_tracing"]
