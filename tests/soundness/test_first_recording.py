"""What the core looks up for the first time in a process, in the middle of somebody's frame."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMES = {
    "no builtins": "N = collections.namedtuple('N', 'a b', defaults=(3,))\ndef g(): return N(2).b",
    "an __import__ of the user's": (
        "g = eval('lambda: len(N(1, 2)) + 1', {'__builtins__': {'__import__': seen.append, 'len': len},\n"
        "    'N': collections.namedtuple('N', 'a b'), 'len': len})"
    ),
}
PROGRAM = """
import collections
import torch
import lazytrace
seen = []
{frame}
@lazytrace.traced
def f(x):
    return x * g()
x = torch.ones(3)
assert [f(x).tolist() for _ in range(3)] == [[3.0] * 3] * 3
assert f.stats().hits == 2, f.stats()
assert not seen
"""


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_the_builtins_of_the_frame_do_not_matter(frame):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(frame=frame)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
