"""What stands in a module under the name of a known function is known only if it is that function.

The tables of what C code reads are filled when a process asks for them first: each program is a process.
"""

from __future__ import annotations

import json

from tests.processes import python

PROGRAM = """
import gc, json, math, torch
from lazytrace import traced

kept = math.erf
X = torch.ones(2)
{body}
"""

ANOTHER_IN_ITS_PLACE = """
math.erf = gc.isenabled
asks = traced(lambda x: x * (2.0 if math.erf() else 3.0))
values = [asks(X)[0].item() for _ in range(3)]
gc.disable()
values += [asks(X)[0].item() for _ in range(3)]
math.erf = kept
known = traced(lambda x: x * math.erf(0.5))
same = [torch.equal(known(X), X * kept(0.5)) for _ in range(4)]
print(json.dumps([values, asks.stats().hits, all(same), known.stats().hits]))
"""

NOT_THERE_AT_FIRST = """
del math.erf
held = traced(lambda x: x * kept(0.5))
same = [torch.equal(held(X), X * kept(0.5)) for _ in range(3)]
math.erf = kept
known = traced(lambda x: x * kept(0.25))
same += [torch.equal(known(X), X * kept(0.25)) for _ in range(4)]
print(json.dumps([all(same), held.stats().hits, known.stats().hits]))
"""

# torch.fx puts Python functions in the place of all of math's while it traces.
WHILE_FX_TRACES = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = traced(lambda x: x * kept(0.5))

    def forward(self, x):
        self.scale(X)
        return x * 2

torch.fx.symbolic_trace(Net())
known = traced(lambda x: x * math.erf(0.5) + math.sqrt(2.0))
same = [torch.equal(known(X), X * kept(0.5) + math.sqrt(2.0)) for _ in range(4)]
print(json.dumps([all(same), known.stats().hits]))
"""


def run(body: str) -> list:
    done = python("-c", PROGRAM.replace("{body}", body), LAZYTRACE_REPORT="0")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_another_function_of_c_in_the_place_of_one_of_math():
    assert run(ANOTHER_IN_ITS_PLACE) == [[2.0] * 3 + [3.0] * 3, 0, True, 3]


def test_a_function_that_was_taken_out_for_a_while():
    assert run(NOT_THERE_AT_FIRST) == [True, 0, 3]


def test_a_first_call_while_fx_traces():
    assert run(WHILE_FX_TRACES) == [True, 3]
