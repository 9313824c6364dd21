"""Training steps as attacks: a model, a loss, a way back, an optimizer, extras, and two changes by the caller.

`python -m tests.soundness.attacks --kind training --count 10000` runs many. The first change comes when a step
has had time to become flat.
"""

from __future__ import annotations

import random
import textwrap

from tests.soundness.attacks.programs import Attack

BEFORE, AFTER = 14, 7  # calls before the first change, and after each

# ---------------------------------------------------------------- what a step is made of
# name: (what makes `m`, the logits of `x`, the type of `x`)
_MLP = "m = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
_IDS = "m = nn.ModuleDict({{'e': nn.Embedding(6, 4{}), 'l': nn.Linear(4, 3)}})"
MODELS: dict[str, tuple[str, str, str]] = {
    "mlp": (_MLP, "m(x)", "floats"),
    "linear": ("m = nn.Linear(4, 3)", "m(x)", "floats"),
    "by hand": ("m = nn.ParameterList([torch.randn(4, 3), torch.zeros(3)])", "x @ m[0] + m[1]", "floats"),
    "dict": ("m = nn.ParameterDict({'w': torch.randn(4, 3), 'b': torch.zeros(3)})", "x @ m['w'] + m['b']", "floats"),
    "twice": ("m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))", "m[1](m[0](m[0](x).tanh()))", "floats"),
    "tied": ("m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))\nm[1].weight = m[0].weight", "m(x)[:, :3]", "floats"),
    "batch norm": ("m = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))", "m(x)", "floats"),
    "layer norm": ("m = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))", "m(x)", "floats"),
    "dropout": ("m = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))", "m(x)", "floats"),
    "frozen": (_MLP + "\nm[0].requires_grad_(False)", "m(x)", "floats"),
    "conv": ("m = nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3))", "m(x[:, None])", "floats"),
    "weight norm": ("m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))", "m(x)", "floats"),
    "spectral norm": ("m = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 3))", "m(x)", "floats"),
    "embedding": (_IDS.format(""), "m['l'](m['e'](x).mean(1))", "ids"),
    "padded": (_IDS.format(", padding_idx=1"), "m['l'](m['e'](x).sum(1))", "ids"),
    "max norm": (_IDS.format(", max_norm=1.0"), "m['l'](m['e'](x).sum(1))", "ids"),
    "gru": ("m = nn.ModuleList([nn.GRU(4, 3, batch_first=True)])", "m[0](x[:, None])[0][:, -1]", "floats"),
    "lstm": ("m = nn.ModuleList([nn.LSTM(4, 3)])", "m[0](x[None])[1][0][0]", "floats"),
    "buffer": ("m = nn.Linear(4, 3)\nm.register_buffer('scale', torch.ones(3))", "m(x) * m.scale", "floats"),
}  # fmt: skip

LOSSES = (
    "F.cross_entropy(z, y)", "F.cross_entropy(z, y, label_smoothing=0.1)", "F.cross_entropy(z, y, reduction='sum')",
    "F.cross_entropy(z, y, ignore_index=1)", "F.cross_entropy(z, y, weight=torch.tensor([1.0, 2.0, 0.5]))",
    "F.mse_loss(z, F.one_hot(y, 3).to(z.dtype))", "F.nll_loss(F.log_softmax(z, -1), y)", "(z * z.detach()).mean()",
    "F.cross_entropy(z, y) + 0.01 * sum((p * p).sum() for p in m.parameters())",
    "F.cross_entropy(z, y, reduction='none')[y > 0].sum()", "F.smooth_l1_loss(z, torch.zeros_like(z))",
    "(z.softmax(-1).log() * -F.one_hot(y, 3)).sum(-1).mean()", "z.logsumexp(-1).mean() - z.mean()",
)  # fmt: skip

BACKWARDS = (
    *["loss.backward()"] * 6, "loss.backward(retain_graph=True)\nloss.backward()",
    "loss.backward(retain_graph=True)\n(0.5 * z.sum()).backward()", "(loss / 2).backward()\nloss = m_loss(x, y)\nloss.backward()",
    "gs = torch.autograd.grad(loss, P, allow_unused=True)\nfor p, g in zip(P, gs): p.grad = g",
    "loss.backward(inputs=P[:1])", "loss.backward(inputs=P)",
    "gs = torch.autograd.grad(loss, P, create_graph=True, allow_unused=True)\n"
    "(loss + 0.1 * sum((g * g).sum() for g in gs if g is not None)).backward()",
    "z.register_hook(lambda g: g * 2)\nloss.backward()", "z.retain_grad()\nloss.backward()\nS.mean = z.grad.mean()",
    "h = P[0].register_hook(lambda g: g * 0.5)\nloss.backward()\nh.remove()",
    "loss.backward(torch.tensor(2.0, dtype=loss.dtype))",
    "scaler = 8.0\n(loss * scaler).backward()\nfor p in P:\n    if p.grad is not None: p.grad.div_(scaler)",
)  # fmt: skip

OPTIMIZERS = (
    *("SGD({}, lr=0.1" + o + ")" for o in ("", ", momentum=0.9", ", momentum=0.9, nesterov=True", ", weight_decay=0.1", ", maximize=True", ", foreach=True", ", fused=True", ", momentum=0.9, foreach=False")),
    *("Adam({}, lr=0.01" + o + ")" for o in ("", ", amsgrad=True", ", fused=True", ", foreach=True", ", maximize=True", ", weight_decay=0.1", ", betas=(0.5, 0.9)")),
    "AdamW({}, lr=0.01)", "AdamW({}, lr=0.01, fused=True)", "AdamW({}, lr=torch.tensor(0.01))", "NAdam({}, lr=0.01)",
    "RAdam({}, lr=0.01)", "RMSprop({}, lr=0.01)", "RMSprop({}, lr=0.01, momentum=0.9, centered=True)",
    "Adagrad({}, lr=0.1)", "Adadelta({})", "Adamax({}, lr=0.01)", "ASGD({}, lr=0.01)", "Rprop({}, lr=0.01)",
)  # fmt: skip
_GROUPS = "[{'params': P[:1], 'lr': 0.05}, {'params': P[1:]}]"

ZEROES = ("opt.zero_grad()", "opt.zero_grad()", "opt.zero_grad(set_to_none=False)", "m.zero_grad()", "pass",
          "for p in P: p.grad = None")  # fmt: skip
# What is done between the way back and the optimizer, and after it.
MIDDLES = (
    "pass", "pass", "pass", "nn.utils.clip_grad_norm_(P, 1.0)", "nn.utils.clip_grad_value_(P, 0.1)",
    "S.mean = nn.utils.clip_grad_norm_(P, 1.0)", "with torch.no_grad():\n    for p in P:\n        if p.grad is not None: p.grad.mul_(0.9)",
    "S.grads = [p.grad for p in P]", "S.grads = [None if p.grad is None else p.grad.clone() for p in P]",
)  # fmt: skip
ENDS = (
    "pass", "pass", "S.calls += 1", "S.losses.append(loss.detach())", "S.total.add_(loss.detach())",
    "S.mean = 0.9 * S.mean + 0.1 * loss.detach()", "sched.step()", "S.last = loss.detach()", "S.noise = torch.rand(2)",
    "with torch.no_grad():\n    for e, p in zip(S.ema, P): e.lerp_(p.to(e.dtype), 0.1)",
    "with torch.no_grad():\n    P[0].clamp_(-1, 1)", "P[0].data.mul_(0.99)",
)  # fmt: skip
RETURNS = ("loss", "loss.detach()", "loss.item()", "z", "z.detach()", "(loss, z)", "None", "[p.grad for p in P]", "m(x) if S is not None else z",
           "P[0]", "float(loss) + 1, z.argmax(-1)")  # fmt: skip

# ---------------------------------------------------------------- what the caller does between calls
CHANGES = (
    "pass", "P[0].data = P[0].data.clone()", "P[0].data = P[0].data * 2", "P[0].requires_grad_(False)", "P[-1].requires_grad_(False)",
    "for p in P: p.requires_grad_(True)", "for p in P: p.grad = None", "P[0].grad = torch.ones_like(P[0])",
    "P[0].grad = P[0].detach()", "P[0].grad = P[0].data.clone().t().contiguous().t() if P[0].dim() == 2 else None",
    "for p in P: p.grad = torch.zeros_like(p)", "base = torch.ones(200)\nfor p in P: p.grad = base[:p.numel()].view(p.shape)",
    "P[0].grad = torch.ones(()).expand(P[0].shape)", "P[0].grad.requires_grad_(True)", "P[0].grad.zero_()", "P[0].grad.add_(1)",
    "with torch.no_grad(): P[0].add_(0.5)", "P[0].data.add_(0.5)", "for s in opt.state.values():\n    for v in s.values():\n        if torch.is_tensor(v): v.mul_(2)",
    "for s in opt.state.values(): s['step'] = s['step'] + 5", "for s in opt.state.values(): s['exp_avg'] = s['exp_avg'] * 2",
    "s = list(opt.state.values())\ns[0]['exp_avg'] = s[1]['exp_avg'] = torch.ones_like(s[0]['exp_avg'])",
    "opt.state.clear()", "del opt.state[P[0]]", "opt.param_groups[0]['lr'] = 0.5", "opt.param_groups[0]['weight_decay'] = 0.2",
    "opt.param_groups[0]['betas'] = (0.1, 0.2)", "opt.param_groups[0]['momentum'] = 0.3", "opt.param_groups[0]['maximize'] = True",
    "opt.param_groups[0]['lr'] = torch.tensor(0.3)", "opt.param_groups[0]['params'].reverse()", "opt.param_groups[0]['params'].pop()",
    "opt.param_groups[0]['foreach'] = True", "q = nn.Parameter(torch.ones(2))\nq.grad = torch.ones(2)\nS.extra = q\nopt.add_param_group({'params': [q]})",
    "m.load_state_dict(copy.deepcopy(first))", "m.load_state_dict(copy.deepcopy(first), assign=True)", "opt.load_state_dict(copy.deepcopy(opt.state_dict()))",
    "m2 = copy.deepcopy(m)\nm.load_state_dict(m2.state_dict(), assign=True)", "S.copy = copy.deepcopy((m, opt))",
    "C.hook = P[0].register_hook(lambda g: g * 3)", "C.hook = P[0].register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))",
    "C.hook = m.register_forward_hook(lambda m, a, o: o * 2)", "C.hook = m.register_full_backward_hook(lambda m, i, o: tuple(None if g is None else g * 2 for g in i))",
    "C.hook = opt.register_step_pre_hook(lambda o, a, k: setattr(S, 'calls', S.calls + 10))", "C.hook = nn.modules.module.register_module_forward_pre_hook(lambda m, a: None)",
    "C.hook.remove()", "m.eval()", "m.train()", "m.double()", "m.half()", "m.to(torch.bfloat16)", "torch.set_default_dtype(torch.float64)",
    "torch.use_deterministic_algorithms(True)", "torch.manual_seed(7)", "C.size = 6", "C.size = 1", "C.size = 0", "C.grad = 'leaf'", "C.grad = 'no leaf'", "C.grad = 'view'",
    "C.strided = True", "C.alias = 'state'", "C.alias = 'last'", "C.bad = True", "C.context = torch.no_grad", "C.context = torch.inference_mode",
    "C.context = lambda: torch.autocast('cpu', torch.bfloat16)", "C.context = lambda: torch.autograd.set_detect_anomaly(True)", "C.thread = True", "C.once = lambda: torch.no_grad()",
    "m_loss(*C.data()).backward()", "S.held = m_loss(*C.data())", "S.held.backward()", "C.out[-1].mul_(2)", "C.out[-1].sum().backward()", "C.out[0].sum().backward()",
    "C.out[-1][1].sum().backward()", "C.out[-1][0].backward()", "C.out.clear()", "opt.step()", "opt.zero_grad()", "opt.zero_grad(set_to_none=False)",
    "P[0].data, P[-1].data = P[-1].data, P[0].data", "a, b = [p for p in P if p.shape == P[-1].shape][:2]\na.data = b.data", "P[0].grad, P[-1].grad = P[-1].grad, P[0].grad",
    "a, b = [p for p in P if p.shape == P[-1].shape][:2]\na.grad = b.grad", "S.kept = [p.grad for p in P]", "S.views = [p.view(-1) for p in P]", "S.data = [p.data for p in P]",
    "m[-1] = nn.Linear(m[-1].in_features, m[-1].out_features)", "m[0].weight = nn.Parameter(m[0].weight.detach() * 2)", "m[0].weight = m[-1].weight", "m[0] = nn.Identity()",
    "P.reverse()", "P.pop()", "S.losses.clear()", "S.total = S.total.double()", "S.total = torch.zeros(1)", "S.total = P[0].data.view(-1)[0]", "S.ema[0] = P[0].data", "S.ema.reverse()",
    "S.mean = torch.zeros((), requires_grad=True) * 1", "with torch.inference_mode(): S.total = torch.zeros(())", "with torch.inference_mode(): P[0].grad = torch.zeros_like(P[0])",
    "P[0].data = P[0].data.t().contiguous().t()", "P[0].data = torch.zeros(2 * P[0].numel())[::2].view(P[0].shape)", "P[0].__class__ = torch.Tensor", "P[0].data.fill_(float('nan'))",
    "P[0].grad = P[0].grad.to_sparse()", "m.requires_grad_(False)",
)  # fmt: skip

COMMON = """\
from torch import nn
class Calls:
    size, grad, strided, alias, bad, context, thread, once, hook, number = 4, '', False, '', False, None, False, None, None, 0
    def __init__(self): self.out, self.args = [], []
    def end(self): self.hook.remove()  # one of all modules would meet the next case
    def data(self):
        self.number += 1
        g = torch.Generator().manual_seed(self.number)
        y = torch.randint(0, 3, (self.size,), generator=g)
        if self.kind == 'ids': x = torch.randint(0, 6, (self.size, 2), generator=g)
        else:
            x = torch.randn(self.size, 4, generator=g, dtype=torch.float32).to(self.params[0].dtype)
            if self.strided: x = x.t().contiguous().t()
            if self.alias == 'state': x = next((p.data for p in self.params if p.dim() == 2 and p.shape[1] == 4), x)
            if self.alias == 'last': x = self.args[0] if self.args and self.args[0].shape == x.shape else x
            if self.grad: x = x.detach().requires_grad_()
            if self.grad == 'no leaf': x = x * 1
            if self.grad == 'view': x = x.view(-1).view(x.shape)
        if self.alias == 'state': y = torch.zeros(len(x), dtype=torch.long)
        if self.bad: y = y + 5; self.bad = False
        return x, y
    def call(self, f):
        self.args = self.data()
        context = self.once or self.context or contextlib.nullcontext
        self.once = None
        with context():
            self.out.append(in_thread(f, self.args) if self.thread else f(*self.args))
        return self.out[-1]
def in_thread(f, args):
    found = []
    def run():
        try: found.append(f(*args))
        except Exception as error: found.append(error)
    t = threading.Thread(target=run)
    t.start(); t.join()
    if isinstance(found[0], Exception): raise found[0]
    return found[0]
"""

MAKE = """\
def make(trace):
    torch.manual_seed(1)
{setup}
    P = list(m.parameters())
    C, params = Calls(), [*P]
    C.kind, C.params = {kind!r}, params
    opt = torch.optim.{optimizer}
    sched = torch.optim.lr_scheduler.StepLR(opt, 5, 0.5)
    S = NS(calls=0, losses=[], total=torch.zeros(()), mean=torch.zeros(()), ema=[p.detach().clone() for p in params])
    first = copy.deepcopy(m.state_dict())
    def m_loss(x, y):
        z = {logits}
        return {loss}
{step}
    f = trace(step)
    def watch():
        return [m, [p.grad for p in params], [g for g in opt.param_groups], list(opt.state.values()), S, C.args, params]
{first}
{second}
    return (lambda: C.call(f)), [1] * {before} + [change] + [1] * {after} + [other] + [1] * {after} + [C.end], watch
"""


def training(seed: int, number: int) -> Attack:
    """Case `number` of a seed."""
    rng = random.Random(f"training:{seed}:{number}")
    name = rng.choice([*MODELS])
    setup, logits, kind = MODELS[name]
    loss, back = rng.choice(LOSSES), rng.choice(BACKWARDS)
    optimizer = rng.choice(OPTIMIZERS).format(_GROUPS if rng.random() < 0.2 else "P")
    middle, end, result = rng.choice(MIDDLES), rng.choice(ENDS), rng.choice(RETURNS)
    zero, late = rng.choice(ZEROES), rng.random() < 0.3
    first, second = rng.sample(CHANGES, 3), rng.sample(CHANGES, 3)
    forward = f"z = {logits}\nloss = {loss}"
    if rng.random() < 0.08:
        forward = f"with torch.autocast('cpu', torch.bfloat16):\n{indented(forward)}"
    if rng.random() < 0.1:
        back = f"{back}\nS.calls += 1\nif S.calls % 2 == 0: return loss.detach()"
    lines = ["pass" if late else zero, forward, back, middle, "opt.step()", end, zero if late else "pass"]
    step = "\n".join(line for line in lines if line != "pass") + f"\nreturn {result}"
    text = COMMON + MAKE.format(
        setup=indented(setup), kind=kind, optimizer=optimizer, logits=logits, loss=loss, before=BEFORE, after=AFTER,
        step=indented(f"def step(x, y):\n{indented(step)}"), first=indented(f"def change():\n{indented(one_of(first))}"),
        second=indented(f"def other():\n{indented(one_of(second))}"),
    )  # fmt: skip
    return Attack(name, optimizer, f"{back}; {middle}; {end}; {result}", f"{first}; {second}", text)


def one_of(changes: list[str]) -> str:
    """The first of these changes that the step allows: a linear layer has no second module to tie."""
    first, *rest = changes
    return f"try:\n{indented(first)}\nexcept Exception:\n{indented(one_of(rest))}" if rest else first


def indented(text: str) -> str:
    return textwrap.indent(text, "    ")
