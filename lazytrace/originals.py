"""Python's own functions as they were when lazytrace was imported.

What somebody puts in the place of one of these later (`mock.patch("builtins.sum")`) is for the functions that
are traced, not for the tracer: it would be called more often than in eager mode. A module that runs in calls
has these for its `__builtins__`, in which Python looks up names.
"""

import builtins
from typing import Any, Final

BUILTINS: Final[Any] = dict(vars(builtins))
