"""What a call makes and hands to hooks and opaque functions, which may keep it: lists, objects, variables.

The call, what keeps them and the caller change and show them, on both sides of branches. `python -m
tests.soundness.attacks --kind handed --count 10000` runs many.
"""

from __future__ import annotations

import random

from tests.soundness.attacks.drawing import indented
from tests.soundness.attacks.programs import Attack

CALLS = 14
MADE = ("n", "t", "ls", "d", "o", "[ls]", "(n, ls)", "[1, 2]", "o.hook", "{'k': ls}")
NUMBERS = ("n", "t", "len(ls)", "d.get('k', 1)", "o.v", "m", "(ls[-1] if ls else 1)", "before[0]")

LOSS = "return (z * y).sum()"
ENDS = (LOSS, LOSS, f"{LOSS}, ls", f"{LOSS}, n", f"{LOSS}, o", "(z * y).sum().backward()\nreturn z.detach()")

COMMON = """\
import lazytrace
class O:
    def __init__(self): self.v = 2
    def hook(self, g): return g * self.v
def scale(g, by):
    if isinstance(by, (list, dict)): return g * (len(by) + 1)
    return g * (by.v if isinstance(by, O) else by)
def make_hook(v):
    def hook(g): return scale(g, v)
    return hook
def shown(value, seen):
    if isinstance(value, torch.Tensor): return value.tolist()
    if isinstance(value, (list, tuple, dict)):
        if id(value) in seen: return seen[id(value)]
        seen[id(value)] = f'number {len(seen)}'
        return [type(value).__name__, *(shown(one, seen) for one in (value.items() if isinstance(value, dict) else value))]
    if isinstance(value, O): return shown([id(value) in seen, seen.setdefault(id(value), 1), value.v], seen)
    if callable(value): return shown(value(torch.ones(3)), seen)
    return value
"""

MAKE = """\
def make(trace):
    r = random.Random({seed})
    S = NS(log=[], flag=False, kept=None, other=None, out=None)
    w = torch.ones(3, requires_grad=True)
    m, before, numbers, torch_of = 1, [2], itertools.count(), torch.Generator().manual_seed({seed})
    opaque = lazytrace.opaque if trace.enabled else lambda f: f
    def set_m(v):
        nonlocal m
        m = v
    @opaque
    def keep(v): S.kept = v
    @opaque
    def keep_another(v): S.other = v
    @opaque
    def fill(v, x): v.append(float(x.sum()))
    def step(x):
        n, t, ls, d, o = 1, x * 2, [], {{}}, O()
        y = w * x
        z = y * 2
{body}
    f = trace(step)
    def one():
        number, x = next(numbers), torch.randn(3, generator=torch_of)
        if number < 3: x = -x.abs()
        S.flag = number > 9
        if r.random() < 0.2: set_m(r.randint(1, 3))
        S.out = out = f(x)
        loss = out[0] if isinstance(out, tuple) else out
        if r.random() < 0.3 and isinstance(S.kept, list): S.kept.append(9)
        if r.random() < 0.3 and isinstance(S.kept, O): S.kept.v += 1
        if r.random() < 0.3: set_m(4)
        if loss.requires_grad: loss.backward()
        return shown([out, S.kept, S.other], {{}})
    return one, [1] * {calls}, lambda: [w.grad, S.log, m]
"""


def handed(seed: int, number: int) -> Attack:
    """Case `number` of a seed."""
    rng = random.Random(f"handed:{seed}:{number}")
    lines = [line for _ in range(rng.randint(1, 5)) for line in statement(rng)]
    end = rng.choice(ENDS)
    body = indented(indented("\n".join([*lines, end])))
    text = COMMON + MAKE.format(seed=number, body=body, calls=CALLS)
    return Attack("handed", "; ".join(lines), end, "", text)


def hook(rng: random.Random) -> tuple[list[str], str]:
    """Lines that make a function that takes a gradient, and its name."""
    read = rng.choice(NUMBERS)
    name = f"h{rng.randint(1, 99)}"
    plain = [f"{name} = lambda g: g * {read}"]
    others = [
        [f"{name} = functools.partial(scale, by={rng.choice(('n', '2.0', 't', 'ls', 'd', 'o'))})"],
        [f"{name} = o.hook"],
        [f"{name} = make_hook({rng.choice(('n', 't', 'ls', 'd', 'o'))})"],
        [
            f"def {name}(g):",
            "    nonlocal n",
            f"    n = {rng.choice(('5', 'n + 1'))}",
            f"    return g * {read}",
        ],
        [f"def {name}(g):", "    ls.append(2)", f"    return g * {read}"],
        [f"def {name}(g):", "    d['k'] = d.get('k', 1) + 1", f"    return g * {read}"],
        [f"def {name}(g):", f"    S.log.append({rng.choice(('len(ls)', 'n', 'm', 'float(g.sum())'))})"],
    ]
    return (plain if rng.random() < 0.45 else rng.choice(others)), name


def statement(rng: random.Random, depth: int = 0) -> list[str]:
    """What the step does, in lines."""
    kind = rng.random()
    if kind < 0.35:
        lines, name = hook(rng)
        takes = rng.choice(("y.register_hook", "z.register_hook", "y.register_hook", "keep", "keep_another"))
        return [*lines, f"{takes}({name})"]
    if kind < 0.55:
        return [f"{rng.choice(('keep', 'keep_another'))}({rng.choice(MADE)})"]
    if kind < 0.82:
        changes = (
            "n = n + 1",
            "n = 7",
            "t = t * 2",
            "t.add_(1)",
            "ls.append(1)",
            "ls.append(3)",
            "d['k'] = 4",
        )
        return [
            rng.choice((*changes, "o.v = 3", "fill(ls, x)", "set_m(m + 1)", "z = z * y", "del d", "o = O()"))
        ]
    if depth < 2 and kind < 0.96:
        tests = ("x.sum() > 0", "x[0] > 0", "x.max() > 1", "S.flag")
        inside = [line for _ in range(rng.randint(1, 2)) for line in statement(rng, depth + 1)]
        return [f"if {rng.choice(tests)}:", *(f"    {line}" for line in inside)]
    if depth < 1:
        inside = [line for _ in range(rng.randint(1, 2)) for line in statement(rng, depth + 1)]
        return ["for i in range(2):", *(f"    {line}" for line in inside)]
    return ["y = y + n"]
