"""Programs that draw from pools of entries as attacks: a pool, a draw, what is done with it, changes by the caller.

`python -m tests.soundness.attacks --kind entries --count 10000` runs many.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import textwrap
import warnings
from collections.abc import Callable

from tests.soundness.attacks.entries import (
    BODIES,
    CHANGES,
    COMMON_POOLS,
    DRAWS,
    LEAVES,
    POOLS,
    RETURNS,
    SHAPES,
    USES,
    WAYS,
)
from tests.soundness.attacks.programs import Attack, Program
from tests.soundness.runner import restore

CALLS = 20  # a change before each but the first
TRIED = 12  # calls and changes to try a case on
ALONE = [re.sub(r"\by\b", "x", use) for use in USES if "es" not in use and "return" not in use]
OPTIMIZERS = ("SGD({}, lr=0.05)", "SGD({}, lr=0.05, momentum=0.9)", "Adam({}, lr=0.05)", "AdamW({}, lr=0.05, foreach=False)")  # fmt: skip

COMMON = """\
from torch import nn
import lazytrace
Row = collections.namedtuple('Row', 'a b')
SAME, ONE, POOL, x = torch.tensor([0.5, -1.0, 2.0, 0.0]), (1, 2.5), [None], torch.tensor([1.0, -2.0, 0.5, 3.0])
@dataclasses.dataclass
class Made:
    a: object
    b: object
@dataclasses.dataclass
class Slots:
    __slots__ = ('a', 'b')
    a: object
    b: object
class Sub(list): pass
class Getter:
    def __init__(self, made): self.made = list(made)
    def __len__(self): return len(self.made)
    def __getitem__(self, n): return self.made[n]
def vec(e):
    if isinstance(e, torch.Tensor): return e if e.shape == (4,) and e.dtype == torch.float32 else torch.ones(4) * e.sum()
    if isinstance(e, np.ndarray): return torch.ones(4) * float(e.sum())
    if isinstance(e, (int, float, np.number)): return torch.arange(4.0) * e
    if isinstance(e, (str, bytes)): return torch.ones(4) * len(e)
    if isinstance(e, dict): return sum((vec(v) for v in e.values()), torch.zeros(4))
    if isinstance(e, (tuple, list)): return sum((vec(v) for v in e), torch.zeros(4))
    if hasattr(e, 'a'): return vec(e.a) + 2 * vec(e.b)
    return torch.zeros(4) if e is None else torch.ones(4)
def told(es): return torch.ones(4) * len(str(es))
@lazytrace.opaque
def opaque(e): return None
def parts(value, seen):  # which of equal constants and tuples it is, is left out: see the known limits
    if isinstance(value, (tuple, frozenset)): return [type(value), *(parts(one, seen) for one in value)]
    if isinstance(value, np.generic): return [type(value), value.item()]
    if not isinstance(value, (list, dict, collections.deque)): return value
    if id(value) not in seen:
        seen[id(value)] = made = [type(value)]
        made += [parts(one, seen) for one in (value.items() if isinstance(value, dict) else value)]
    return seen[id(value)]
"""

MAKE = """\
def make(trace):
    torch.manual_seed(1)
    r = random.Random({seed})
    base, w = torch.randn(40), torch.randn(4, requires_grad=True)
    net = nn.Sequential(nn.Linear(4, 4), nn.{norm}(4), nn.{act}(), nn.Linear(4, 4))
    opt = torch.optim.{optimizer}
    S = NS(n=0, k=0, log=[], seen={{}}, names=set(), last=None, row=None, total=torch.zeros(4), flag=None, text='', best=0, mean=0.0, copy=None, kinds=collections.Counter(), errors=[])
    S.rng, S.gen, S.torch_rng, out = random.Random(2), np.random.default_rng(2), torch.Generator().manual_seed(2), [None]
    def entry(): return {entry}
    def pool(n={count}):
        made = [entry() for _ in range(n)]
        return {pool}
    def put(made):
        S.pool = POOL[0] = made
        S.tables, S.two, step_defaults.a, net.__dict__['pool'] = {{'p': made, 0: 1.5}}, [0, made], made, made
    step_defaults = NS()
    S.get = lambda: S.pool
    S.grid = [[entry(), entry()], [entry(), entry()]]
    put(pool())
{step}
    f = trace(step)
    def change():
        global x
        try:
{changes}
        except Exception as error: S.errors.append((type(error).__name__, str(error)))
    def one():
        out[:] = [f(x{given})]
        return parts(out[0], {{}})
    def watch(): return parts([[*vars(S).values()][:-6], S.pool, out], {{}}) + [base, x, w, w.grad, net, [p.grad for p in net.parameters()], [*opt.state.values()], S.rng.random(), S.gen.random(), S.torch_rng.get_state()]
    return one, [1, *[change, 1] * {calls}], watch
"""


def entries(seed: int, number: int) -> Attack:
    """Case `number` of a seed: the first that plain Python gets through for the most part, now and then any."""
    rng = random.Random(f"entries:{seed}:{number}")
    case = drawn(rng, number)
    for _ in range(0 if rng.random() < 0.05 else 60):
        if works(case.text):
            break
        case = drawn(rng, number)
    return case


def works(text: str) -> bool:
    """Does plain Python raise in no more than a few of the first calls?"""
    raised = 0
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function, steps, _ = Program(text)(lambda step, **options: step)
            for step in steps[:TRIED]:
                raised += fails(step.on or function)
        except Exception:
            return False
        finally:
            restore()
    return raised <= TRIED // 6


def fails(step: Callable[[], object]) -> bool:
    try:
        step()
    except Exception:
        return True
    return False


def drawn(rng: random.Random, number: int) -> Attack:
    leaves = rng.sample(LEAVES, rng.choice([1, 1, 2, 3]))
    entry = rng.choice(SHAPES).format(A=one_of(rng, leaves), B=one_of(rng, leaves), C=one_of(rng, leaves))
    pool = rng.choice(COMMON_POOLS) if rng.random() < 0.8 else rng.choice([*POOLS])
    way, given = rng.choice(WAYS)
    draw = rng.choice(DRAWS).format(k=rng.choice([1, 1, 2, 3]))
    uses, changes = rng.choices(USES, k=rng.choice([1, 1, 2])), rng.choices(CHANGES, k=3)
    body = rng.choice(BODIES).format(none=rng.random() < 0.5)
    lines = [f"p = {way}", draw, body, *uses, f"return {rng.choice(RETURNS)}"]
    if rng.random() < 0.3:  # the pool has changed by the time of the draw
        lines.insert(1, rng.choice(ALONE))
    text = COMMON + MAKE.format(
        seed=number, norm=rng.choice(["BatchNorm1d", "LayerNorm"]), act=rng.choice(["Tanh", "ReLU"]), optimizer=rng.choice(OPTIMIZERS).format("net.parameters()"),
        entry=entry, pool=POOLS[pool], count=rng.randint(2, 9), step=indented("def step(x, a=None):\n" + indented("\n".join(lines))),
        changes=indented(indented(indented(sometimes(changes)))), given=given, calls=CALLS,
    )  # fmt: skip
    return Attack(f"{pool} of {entry}", draw, "; ".join(uses), "; ".join(changes), text)


def one_of(rng: random.Random, leaves: list[str]) -> str:
    """What makes a leaf: the same expression for all entries, or one of several."""
    if len(leaves) == 1 or rng.random() < 0.6:
        return rng.choice(leaves)
    return f"r.choice([lambda: {leaves[0]}, lambda: {leaves[1]}])()"


def sometimes(changes: list[str]) -> str:
    """One of these changes at seven calls in ten."""
    first, second, third = (indented(change) for change in changes)
    return f"n = r.random()\nif n < 0.4:\n{first}\nelif n < 0.6:\n{second}\nelif n < 0.7:\n{third}"


def indented(text: str) -> str:
    return textwrap.indent(text, "    ")
