"""Which line of the user's code called a traced function."""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

from lazytrace._torch import torch_folder
from lazytrace.originals import BUILTINS

__builtins__ = BUILTINS

# "<lazytrace>" is the file of the function that calls a traced object.
_SKIPPED: Final = (os.path.dirname(os.path.abspath(__file__)) + os.sep, torch_folder(), "<lazytrace>")


class Site(NamedTuple):
    """A file and a line; `str()` leaves the folder out.

    >>> str(Site("/home/me/train.py", 41))
    'train.py:41'
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file.rpartition(os.sep)[2]}:{self.line}" if self.file else ""


def call_site() -> Site:
    """The innermost line in this thread that belongs neither to lazytrace nor to torch; empty where none is.

    >>> call_site().line
    1
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_SKIPPED):
        if frame.f_back is None:
            return Site("", 0)
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)
