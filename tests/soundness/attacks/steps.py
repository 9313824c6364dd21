"""What training steps are made of: models, losses, ways back, optimizers, and what is done around them.

The names that the programs in `training` give these: the model `m`, its parameters `P`, its input and target `x` and
`y`, its logits `z`, the optimizer `opt`, and `S`, the state that the step keeps.
"""

from __future__ import annotations

# name: (what makes `m`, the logits of `x`, the type of `x`)
_MLP = "m = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))"
_IDS = "m = nn.ModuleDict({{'e': nn.Embedding(6, 4{}), 'l': nn.Linear(4, 3)}})"
_TWICE = """\
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2 + ctx.saved_tensors[0] * 0"""
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
    "conv2d": ("m = nn.Sequential(nn.Conv2d(1, 2, 2, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3))", "m(x.view(-1, 1, 2, 2))", "floats"),
    "deep gru": ("m = nn.ModuleList([nn.GRU(4, 3, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True), nn.Linear(6, 3)])", "m[1](m[0](x[:, None])[0][:, -1])", "floats"),
    "attention": ("m = nn.ModuleList([nn.MultiheadAttention(4, 2, batch_first=True, dropout=0.1), nn.Linear(4, 3)])", "m[1](m[0](x[None], x[None], x[None])[0][0])", "floats"),
    "encoder": ("m = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 3))", "m(x[None])[0]", "floats"),
    "sparse": (_IDS.format(", sparse=True"), "m['l'](m['e'](x).mean(1))", "ids"),
    "bag": ("m = nn.Sequential(nn.EmbeddingBag(6, 3, mode='sum'))", "m(x)", "ids"),
    "tied ids": ("m = nn.ModuleDict({'e': nn.Embedding(6, 4), 'l': nn.Linear(4, 6, bias=False)})\nm['l'].weight = m['e'].weight", "m['l'](m['e'](x).mean(1))[:, :3]", "ids"),
    "group norm": ("m = nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.PReLU(), nn.Linear(4, 3))", "m(x)", "floats"),
    "random depth": ("m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))", "m[1](x if torch.rand(()) < 0.3 else m[0](x).relu())", "floats"),
    "checkpoint": (_MLP, "torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False)", "floats"),
    "counted": ("m = nn.Sequential(nn.Linear(4, 3))\nm.register_buffer('n', torch.zeros((), dtype=torch.long))", "m(x) / (1 + m.n.add_(1))", "floats"),
    "functional": (_MLP, "torch.func.functional_call(m, {k: v * 0.9 for k, v in m.named_parameters()}, (x,))", "floats"),
    "own function": (f"m = nn.Linear(4, 3)\n{_TWICE}", "Twice.apply(m(x))", "floats"),
    "plain list": ("ls = [nn.Linear(4, 4), nn.Linear(4, 3)]\nm = nn.ModuleList(ls)", "ls[1](ls[0](x).relu())", "floats"),
}  # fmt: skip

LOSSES = (
    "F.cross_entropy(z, y)", "F.cross_entropy(z, y, label_smoothing=0.1)", "F.cross_entropy(z, y, reduction='sum')",
    "F.cross_entropy(z, y, ignore_index=1)", "F.cross_entropy(z, y, weight=torch.tensor([1.0, 2.0, 0.5]))",
    "F.mse_loss(z, F.one_hot(y, 3).to(z.dtype))", "F.nll_loss(F.log_softmax(z, -1), y)", "(z * z.detach()).mean()",
    "F.cross_entropy(z, y) + 0.01 * sum((p * p).sum() for p in m.parameters())",
    "F.cross_entropy(z, y, reduction='none')[y > 0].sum()", "F.smooth_l1_loss(z, torch.zeros_like(z))",
    "(z.softmax(-1).log() * -F.one_hot(y, 3)).sum(-1).mean()", "z.logsumexp(-1).mean() - z.mean()",
    "F.binary_cross_entropy_with_logits(z, F.one_hot(y, 3).to(z.dtype), pos_weight=torch.tensor([1., 2., 3.]))",
    "F.kl_div(z.log_softmax(-1), F.one_hot(y, 3).to(z.dtype), reduction='batchmean')", "crit(z, y)", "crit(z, y)",
    "F.huber_loss(z, F.one_hot(y, 3).to(z.dtype), delta=0.3)", "F.multi_margin_loss(z, y)", "F.cross_entropy(z.double(), y)", "F.gaussian_nll_loss(z[:, 0], y.to(z.dtype), z[:, 1].exp())",
    "((1 - F.softmax(z, -1).gather(1, y[:, None])) ** 2 * F.cross_entropy(z, y, reduction='none')[:, None]).mean()",
    "F.cross_entropy(z, y) if S.calls % 2 == 0 else z.pow(2).mean()", "F.triplet_margin_loss(z[:1], z[1:2], z[2:3])",
)  # fmt: skip

SCALED = "scaler.scale(loss).backward"
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
    "scale = 8.0\n(loss * scale).backward()\nfor p in P:\n    if p.grad is not None: p.grad.div_(scale)",
    "torch.autograd.backward([loss, z.sum()], [torch.ones_like(loss), torch.ones((), dtype=z.dtype)])",
    "loss.backward(create_graph=True)", "S.acc = getattr(S, 'acc', 0) + 1\n(loss / 3).backward()\nif S.acc % 3: return loss.detach()",
    "gs = torch.autograd.grad(loss, P, create_graph=True, allow_unused=True)\nhv = torch.autograd.grad(sum((g * g.detach()).sum() for g in gs if g is not None), P, allow_unused=True)\nfor p, h in zip(P, hv): p.grad = h",
    "xa = x.detach().clone().requires_grad_(x.is_floating_point())\nloss.backward()\nif xa.is_floating_point():\n    (gx,) = torch.autograd.grad(m_loss(xa, y), xa)\n    m_loss(x + 0.1 * gx.sign(), y).backward()",
    "if not torch.isfinite(loss): return None\nloss.backward()", "if loss.item() > 1.2: loss = loss * 0.5\nloss.backward()",
    f"{SCALED}()", f"{SCALED}()", f"{SCALED}()\nscaler.unscale_(opt)", "loss.backward()\nS.norm = torch.stack([p.grad.norm() for p in P if p.grad is not None]).norm()",
    "with torch.autograd.set_detect_anomaly(True): loss.backward()", "gs = torch.func.grad(lambda w: (torch.tanh(w) * w).sum())(P[0].detach())\nloss.backward()\nP[0].grad.add_(gs)",
)  # fmt: skip

OPTIMIZERS = (
    *("SGD({}, lr=0.1" + o + ")" for o in ("", ", momentum=0.9", ", momentum=0.9, nesterov=True", ", weight_decay=0.1", ", maximize=True", ", foreach=True", ", fused=True", ", momentum=0.9, foreach=False")),
    *("Adam({}, lr=0.01" + o + ")" for o in ("", ", amsgrad=True", ", fused=True", ", foreach=True", ", maximize=True", ", weight_decay=0.1", ", betas=(0.5, 0.9)")),
    "AdamW({}, lr=0.01)", "AdamW({}, lr=0.01, fused=True)", "AdamW({}, lr=torch.tensor(0.01))", "NAdam({}, lr=0.01)",
    "RAdam({}, lr=0.01)", "RMSprop({}, lr=0.01)", "RMSprop({}, lr=0.01, momentum=0.9, centered=True)",
    "Adagrad({}, lr=0.1)", "Adadelta({})", "Adamax({}, lr=0.01)", "ASGD({}, lr=0.01)", "Rprop({}, lr=0.01)",
    "LBFGS(P, lr=0.5, max_iter=3)", "Adafactor({}, lr=0.01)", "SGD({}, lr=0.1, momentum=0.9, dampening=0.1)",
    "Adam({}, lr=torch.tensor(0.01), amsgrad=True, foreach=False)", "AdamW({}, lr=0.01, amsgrad=True, maximize=True, foreach=True)", "Adagrad({}, lr=0.1, lr_decay=0.1, weight_decay=0.1, foreach=True)",
    "Rprop({}, lr=0.01, foreach=True)", "NAdam({}, lr=0.01, decoupled_weight_decay=True, foreach=False)", "RMSprop({}, lr=0.01, foreach=True, weight_decay=0.1)",
)  # fmt: skip
SPARSE_OPTIMIZERS = (
    "SGD({}, lr=0.1)",
    "SGD({}, lr=0.1, momentum=0.9)",
    "Adagrad({}, lr=0.1)",
    "SparseAdam(P[:1], lr=0.01)",
)  # others refuse such gradients
GROUPS = "[{'params': P[:1], 'lr': 0.05}, {'params': P[1:]}]"

ZEROES = ("opt.zero_grad()", "opt.zero_grad()", "opt.zero_grad(set_to_none=False)", "m.zero_grad()", "pass",
          "for p in P: p.grad = None")  # fmt: skip
# What is done between the way back and the optimizer, and after it.
MIDDLES = (
    "pass", "pass", "pass", "nn.utils.clip_grad_norm_(P, 1.0)", "nn.utils.clip_grad_value_(P, 0.1)",
    "S.mean = nn.utils.clip_grad_norm_(P, 1.0)", "with torch.no_grad():\n    for p in P:\n        if p.grad is not None: p.grad.mul_(0.9)",
    "S.grads = [p.grad for p in P]", "S.grads = [None if p.grad is None else p.grad.clone() for p in P]",
    "nn.utils.clip_grad_norm_(P, 0.5, norm_type=float('inf'))", "nn.utils.clip_grad_norm_(P, 0.5, error_if_nonfinite=True, foreach=False)",
    "for p in P:\n    if p.grad is not None: p.grad.add_(torch.randn_like(p.grad) * 0.01)", "for p in P:\n    if p.grad is not None and p.dim() > 1: p.grad -= p.grad.mean(1, keepdim=True)",
    "for p in P: p.grad = None if p.grad is None else p.grad.clone()", "P[0].grad = P[0].grad.detach()", "for g in opt.param_groups: g['lr'] = g['lr'] * 0.99", "S.flat = torch.cat([p.grad.view(-1) for p in P if p.grad is not None])",
)  # fmt: skip
CLOSURE = "def closure():\n    opt.zero_grad()\n    found = m_loss(x, y)\n    found.backward()\n    return found\nloss = opt.step(closure)"
UNSCALED = "scaler.step(opt)\nscaler.update()"
UPDATES = (
    *["opt.step()"] * 8,
    "if S.calls % 3 != 1: opt.step()",
    "opt.step()\nopt.step()",
    "opt.step()\ncosine.step()",
    CLOSURE,
)
ENDS = (
    "pass", "pass", "S.calls += 1", "S.losses.append(loss.detach())", "S.total.add_(loss.detach())",
    "S.mean = 0.9 * S.mean + 0.1 * loss.detach()", "sched.step()", "S.last = loss.detach()", "S.noise = torch.rand(2)",
    "with torch.no_grad():\n    for e, p in zip(S.ema, P): e.lerp_(p.to(e.dtype), 0.1)",
    "with torch.no_grad():\n    P[0].clamp_(-1, 1)", "P[0].data.mul_(0.99)",
    "avg.update_parameters(m)", "cosine.step()", "plateau.step(loss.detach())", "S.hist = getattr(S, 'hist', []) + [round(loss.item(), 4)]", "S.best = min(getattr(S, 'best', 9.0), loss.item())",
    "S.snap = {k: v.clone() for k, v in m.state_dict().items()}", "S.snap = m.state_dict()", "m.eval()\nwith torch.no_grad(): S.val = m_loss(x, y)\nm.train()", "with torch.no_grad(): S.total = S.total * 0.9 + loss",
    "S.dq = getattr(S, 'dq', collections.deque(maxlen=3)); S.dq.append(loss.detach())", "P[0].data = P[0].data.clamp(-1, 1)", "S.total += loss.detach()", "S.losses.append(loss)", "S.last = z", "with torch.no_grad(): torch._foreach_lerp_(S.ema, [p.data for p in params], 0.1)",
)  # fmt: skip
RETURNS = (
    "loss", "loss.detach()", "loss.item()", "z", "z.detach()", "(loss, z)", "None", "[p.grad for p in P]", "m(x) if S is not None else z",
    "P[0]", "float(loss) + 1, z.argmax(-1)", "{'loss': loss, 'grads': [p.grad for p in P], 'z': z}", "z.view(-1)", "z[0]", "loss * 2",
    "opt.state[P[0]]", "x", "(x, z.detach(), S.total)", "P[0].view(-1)", "S.total", "P[0].grad", "sum(p.sum() for p in P)",
)  # fmt: skip
