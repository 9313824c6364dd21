"""Training steps as attacks: a model, a loss, a way back, an optimizer, extras, and two changes by the caller.

`python -m tests.soundness.attacks --kind training --count 10000` runs many.
"""

from __future__ import annotations

import random
import textwrap

from tests.soundness.attacks.callers import CHANGES
from tests.soundness.attacks.programs import IN_THREAD, Attack
from tests.soundness.attacks.steps import (
    BACKWARDS,
    CLOSURE,
    ENDS,
    GROUPS,
    LOSSES,
    MIDDLES,
    MODELS,
    OPTIMIZERS,
    RETURNS,
    SCALED,
    SPARSE_OPTIMIZERS,
    UNSCALED,
    UPDATES,
    ZEROES,
)

BEFORE = (1, 2, 4, 14, 14)  # how many calls come before the first change: a step is flat after some
SIZES = ((4, 3), (4, 4, 4, 1), (5, 2, 0), (7, 3, 3, 5))  # of batches, in turn
AFTER = 7  # calls after each change

COMMON = """\
from torch import nn
class Calls:
    size, grad, strided, alias, bad, context, thread, once, hook, number = 4, '', False, '', False, None, False, None, None, 0
    first, dtype, negative, use, sizes = None, None, False, None, ()
    def __init__(self): self.out, self.args, self.errors = [], [], []
    def end(self): self.hook.remove()  # one of all modules would meet the next case
    def data(self):
        self.number += 1
        if self.sizes: self.size = self.sizes[self.number % len(self.sizes)]
        g = torch.Generator().manual_seed(self.number)
        y = torch.randint(0, 3, (self.size,), generator=g)
        if self.kind == 'ids': x = torch.randint(0, 6, (self.size, 2), generator=g)
        else:
            x = torch.randn(self.size, 4, generator=g, dtype=torch.float32).to(self.params[0].dtype)
            if self.strided: x = x.t().contiguous().t()
            if self.alias == 'state': x = next((p.data for p in self.params if p.dim() == 2 and p.shape[1] == 4), x)
            if self.alias == 'last': x = self.args[0] if self.args and self.args[0].shape == x.shape else x
            if self.alias == 'gradient': x = next((p.grad for p in self.params if p.grad is not None and p.dim() == 2 and p.shape[1] == 4), x)
            if self.alias == 'first': x = self.first = x if self.first is None else self.first
            if self.dtype: x = x.to(self.dtype)
            if self.negative: x = torch.complex(x, -x).conj().imag
            if self.grad: x = x.detach().requires_grad_()
            if self.grad == 'no leaf': x = x * 1
            if self.grad == 'view': x = x.view(-1).view(x.shape)
        if len(x) != len(y): y = torch.zeros(len(x), dtype=torch.long)
        if self.bad: y = y + 5; self.bad = False
        return x, y
    def call(self, f):
        self.args = self.data()
        context = self.once or self.context or contextlib.nullcontext
        self.once = None
        with context():
            self.out.append(in_thread(f, self.args) if self.thread else f(*self.args))
        if self.use: self.use(self.out[-1])
        return self.out[-1]
"""

MAKE = """\
def make(trace):
    torch.manual_seed(1)
{setup}
    P = list(m.parameters())
    C, params = Calls(), [*P]
    C.kind, C.params, C.sizes = {kind!r}, params, {sizes}
    opt = torch.optim.{optimizer}
    sched = torch.optim.lr_scheduler.StepLR(opt, 5, 0.5)
    scaler, crit = torch.amp.GradScaler('cpu', init_scale=4.0, growth_interval=3), nn.CrossEntropyLoss()
    avg = torch.optim.swa_utils.AveragedModel(m)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=2)
    S = NS(calls=0, losses=[], total=torch.zeros(()), mean=torch.zeros(()), ema=[p.detach().clone() for p in params])
    first = copy.deepcopy(m.state_dict())
    def m_loss(x, y):
        z = {logits}
        return {loss}
{inner}
{step}
    f = trace(step)
    def watch():
        helpers = [o.state_dict() for o in (sched, cosine, plateau, scaler)]
        return [m, [p.grad for p in params], [*opt.param_groups], [*opt.state.values()], S, C.args, params, C.errors, avg, helpers]
{first}
{second}
    return (lambda: C.call(f)), [1] * {before} + [change] + [1] * {after} + [other] + [1] * {after} + [C.end], watch
"""


def training(seed: int, number: int) -> Attack:
    """Case `number` of a seed."""
    rng = random.Random(f"training:{seed}:{number}")
    setup, logits, kind = MODELS[name := rng.choice([*MODELS])]
    optimizers = SPARSE_OPTIMIZERS if name == "sparse" else OPTIMIZERS
    optimizer = rng.choice(optimizers).format(GROUPS if rng.random() < 0.2 else "P")
    loss, lines = step_of(rng, logits, optimizer)
    sizes = rng.choice(SIZES) if rng.random() < 0.25 else ()
    first, second = rng.sample(CHANGES, 3), rng.sample(CHANGES, 3)
    text = COMMON + IN_THREAD + MAKE.format(
        setup=indented(setup), kind=kind, sizes=sizes, optimizer=optimizer, logits=logits, loss=loss, before=rng.choice(BEFORE), after=AFTER,
        inner=indented("m_loss = trace(m_loss)" if rng.random() < 0.3 else ""),
        step=indented("def step(x, y):\n" + indented("\n".join(lines))), first=indented(f"def change():\n{indented(one_of(first))}"),
        second=indented(f"def other():\n{indented(one_of(second))}"),
    )  # fmt: skip
    return Attack(name, optimizer, "; ".join(lines[2:]), f"{first}; {second}", text)


def step_of(rng: random.Random, logits: str, optimizer: str) -> tuple[str, list[str]]:
    """A loss, and the lines of a step that takes it down."""
    loss, back, update = rng.choice(LOSSES), rng.choice(BACKWARDS), rng.choice(UPDATES)
    update = CLOSURE if "LBFGS" in optimizer else UNSCALED if SCALED in back else update
    zero, middle, end = rng.choice(ZEROES), rng.choice(MIDDLES), rng.choice(ENDS)
    forward = f"z = {logits}\nloss = {loss}"
    if rng.random() < 0.08:
        forward = f"with torch.autocast('cpu', torch.bfloat16):\n{indented(forward)}"
    if rng.random() < 0.1:
        back = f"{back}\nS.calls += 1\nif S.calls % 2 == 0: return loss.detach()"
    lines = [forward, back, middle, update, end]
    lines.insert(len(lines) if rng.random() < 0.3 else 0, zero)
    return loss, [*(line for line in lines if line != "pass"), f"return {rng.choice(RETURNS)}"]


def one_of(changes: list[str]) -> str:
    """The first of these changes that the step allows: a linear layer has no second module to tie.

    What the others raised is compared, and so is what the last one raises.
    """
    first, *rest = changes
    if not rest:
        return first
    noted = f"except Exception as error:\n    C.errors.append((type(error).__name__, str(error)))\n{indented(one_of(rest))}"
    return f"try:\n{indented(first)}\n{noted}"


def indented(text: str) -> str:
    return textwrap.indent(text, "    ")
