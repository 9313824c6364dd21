"""Several features that meet in one function as attacks: snippets in a row, calls with all manner of arguments, changes.

`python -m tests.soundness.attacks --kind meetings --count 10000` runs many.
"""

from __future__ import annotations

import random

from tests.soundness.attacks.drawing import indented, works
from tests.soundness.attacks.meeting import CHANGES, ENDS, FEATURES, RETURNS
from tests.soundness.attacks.programs import IN_THREAD, Attack

CALLS = 18  # a change before each but the first

COMMON = """\
from torch import nn
import warnings, logging, enum
import lazytrace
import torch.nn.utils.prune
warnings.simplefilter('ignore')
logging.getLogger('a').addHandler(logging.NullHandler()); logging.getLogger('a').propagate = False
Row = collections.namedtuple('Row', 'j k')
GLOBAL, GLOBALS = 2, []
@dataclasses.dataclass
class Data:
    count: int
    rows: list
@dataclasses.dataclass
class Point:
    x: object
    y: object
class Slots:
    __slots__ = ('a', 'b')
    def __init__(self): self.a, self.b = 1, 2
class Stats:
    def __init__(self): self.count, self.mean = 0, 0.0
    def update(self, v):
        self.count += 1
        self.mean += (v - self.mean) / self.count
class Obj:
    def __init__(self, scale): self.scale, self._value, self.items = scale, 1, {}
    dyn = 1
    @functools.cached_property
    def cached(self): return self.scale + 1
    @property
    def value(self): return self._value
    @value.setter
    def value(self, v): self._value = v
    def method(self, h): return h * self.scale
    def __call__(self, h): return h + self.scale
    def __len__(self): return 2
    def __getitem__(self, k): return self.items.get(k, k) if 0 <= k < 3 else self.stop()
    def stop(self): raise IndexError
    def __setitem__(self, k, v): self.items[k] = v
    def __add__(self, h): return h + self.scale
    def __radd__(self, h): return h * self.scale
class Other(Obj):
    def method(self, h): return h - self.scale
class Base:
    def inherited(self): return 1
class Base2:
    def inherited(self): return 3
class Dummy: pass
class Desc:
    def __init__(self, k): self.k = k
    def __get__(self, obj, kind): return self.k
class Root: pass
class Klass(Base, Root):
    count = 1
    desc = Desc(2)
    missing = 0
    def __init__(self, n): self.k, self._p, self.slot = n, n, 1
    @classmethod
    def make(cls, n): return cls(n)
    @staticmethod
    def static(n): return n * 2
    @property
    def prop(self): return self._p
    @prop.setter
    def prop(self, v): self._p = v
    @prop.deleter
    def prop(self): self._p = 0
    def apply(self, h): return h + self.k
class Klass2(Klass):
    def inherited(self): return super().inherited() + 1
class Hook:
    def __init__(self, k): self.k = k
    def __call__(self, g): return g * self.k
    def method(self, g): return g + self.k
class Post:
    def __init__(self, S): self.S = S
    def __call__(self, p): p.grad.mul_(2)
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Sub(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None): return super().__torch_function__(func, types, args, kwargs or {})
class Sub2(torch.Tensor): pass
class Linear2(nn.Linear):
    def forward(self, h): return super().forward(h) * 2
class Mode(torch.overrides.TorchFunctionMode):
    k = 1
    def __init__(self, S=None): super().__init__(); self.S = S
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.S is not None: self.S.n += self.k
        return func(*args, **(kwargs or {}))
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * 2
    @staticmethod
    def backward(ctx, g): return g * 2 + ctx.saved_tensors[0] * 0
class Managed:
    def __init__(self, S): self.S = S
    def __enter__(self): self.S.n += 1; return self.S.n
    def __exit__(self, *a): self.S.neg += 1; return True
@contextlib.contextmanager
def swallow(S):
    try: yield
    except ValueError: S.neg += 1
@contextlib.contextmanager
def noted(S, n):
    S.marks.append(n)
    try: yield
    finally: S.marks[-1] += 1
def raise_(S, h):
    S.neg += 1
    raise ValueError(f'{S.neg} {len(h)}')
def counting():
    i = 0
    while True: i += 1; yield i
def sending():
    k = 0
    while True: k = (yield k) + 1
var = contextvars.ContextVar('var', default=1)
@functools.singledispatch
def dispatch(k): return 1
@dispatch.register
def _(k: int): return k + 2
@dispatch.register
def _(k: float): return k * 2
def star(h, *a, n=1, **kw): return h * n + len(a) + len(kw)
def default(k=1, *, q=2): return k + q
@functools.lru_cache(maxsize=2)
def cached(n): return n + 1
def c_slope(): return 0.3
@lazytrace.opaque
def opaque(h): return h * 2 + 1
@lazytrace.opaque
def fill(fs, h): fs.append(h.detach().sum().item())
ALIASES = ['', '', '', 'same', 'view', 'base', 'param', 'shadow', 'last', 'old', 'flat', 'expand', 'strided', 'grad', 'buf']
CONTEXTS = [contextlib.nullcontext, torch.no_grad, torch.no_grad, torch.inference_mode, torch.enable_grad, lambda: torch.autocast('cpu', torch.bfloat16), lambda: torch.autograd.set_detect_anomaly(True)]
USES = [None, None, None, lambda o: o.sum().backward(), lambda o: o.sum().backward(), lambda o: (o.sum().backward(retain_graph=True), o.sum().backward()), lambda o: o.detach().mul_(2), lambda o: o.mul_(2), lambda o: torch.autograd.grad(o.sum(), [t for t in tensors(o.grad_fn)], create_graph=True), lambda o: o.sum().backward(create_graph=True)]
def tensors(node): return [node.variable] if hasattr(node, 'variable') else [t for n, _ in node.next_functions if n is not None for t in tensors(n)][:2]
def parts(value, seen):  # which of equal constants and tuples it is, is left out: see the known limits
    if isinstance(value, (tuple, frozenset)): return [type(value), *(parts(one, seen) for one in value)]
    if isinstance(value, np.generic): return [type(value), value.item()]
    if torch.is_tensor(value): return [value, sorted((k, v if isinstance(v, (int, str, tuple, type(None))) else 0) for k, v in getattr(value, '__dict__', {}).items() if k != '_backward_hooks')]
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
    m = nn.Sequential(nn.Linear(4, 4), nn.{act}(), nn.Linear(4, 4))
    m.steps = 0
    m.register_buffer('n', torch.zeros((), dtype=torch.long)); m.register_buffer('extra', torch.ones(4))
    P = list(m.parameters())
    opt = torch.optim.{optimizer}
    base = torch.arange(6.0)
    S = NS(n=1, neg=0, mean=0.0, log=[], dd=collections.defaultdict(int, {{k: k for k in range(9)}}), lists=collections.defaultdict(list), dq=collections.deque(maxlen=3), best=0.0, row=Row(1, 2), data=Data(0, []), kinds=collections.Counter(),
        window=torch.zeros(4), slots=Slots(), ring=torch.zeros(3, 4), buf=torch.zeros(8, 4), buf2=torch.ones(8, 4), text='', budget=5, table={{}}, seen=set(), hist={{}}, pair=(1, 2), grid=[[1, 2], [3, 4]], c=1.0, count={{'n': 2}}, steps=[1, 2],
        flag=False, phase='', last_size=0, ids=[0, 1, 2], total=torch.zeros(()), med=0, ema=None, queue=[], stats=Stats(), np=np.float64(1), arr=np.zeros(3), max_len=0, history=(), key=1, cache={{}}, lim=3, marks=[], r=0, picked=[],
        last=torch.ones(4), prev=torch.zeros(()), shadow=torch.zeros(4, 4), w=torch.ones(3), base=base, view=base[1:5].view(2, 2), kept=[], out=None, param=None, o=torch.zeros(3, 4), flat=torch.zeros(6), h0=torch.zeros(4), h1=torch.ones(4), state=(torch.zeros(4), torch.ones(4)), graph=None, idx=None, top=None, same=None,
        act=torch.tanh, clamp=functools.partial(torch.clamp, min=-1.0), sorted=None, pmax=0.0, stride=2, range=None, tagged=torch.ones(2), kind=None, hook=Hook(2), retained=None, grads=[], block=lambda t, k: t * (k + 1), gen=counting(), gen2=sending(), it=None,
        obj=Obj(2), obj2=Obj(4), ref=None, color=Color.RED, shape=None, sub=torch.ones(2).as_subclass(Sub), klass=Klass(2), lru=functools.lru_cache(lambda n: n * 3), ns=NS(a=NS(b=1)), decimal=decimal.Decimal(1), frac=None, bytes=b'', heap=[], bounds=[1.0, 2.0], copy=None, od=collections.OrderedDict(q=1, r=2), losses=[], time=0)
    S.ref = weakref.ref(S.obj)
    next(S.gen2)
    hidden = 0
    def cell(): return hidden
    def bump(): nonlocal hidden; hidden += 1
    def set_cell(k): nonlocal hidden; hidden = k
    C = NS(size=3, n=1, c=1.5, alias='', grad='', use=None, context=contextlib.nullcontext, thread=False, x=None, keep=True, kept=[], number=0, hook=None, errors=[], args=[], shown=None, fill=0.0)
    def old(do):
        o = [v for v in C.kept if torch.is_tensor(v)]
        if o: do(o[-1])
    def first(do):
        o = [v for v in C.kept if torch.is_tensor(v)]
        if o: do(o[0])
    C.old, C.first = old, first
    inner, inner_dynamic = trace(lambda h: h * 2 + S.mean), trace(lambda h: h[: len(h)] + h.shape[0], dynamic=True)
{step}
    f = trace(step{options})
    def data():
        C.number += 1
        g = torch.Generator().manual_seed(C.number)
        x = torch.randn(C.size, 4, generator=g) + C.fill
        if C.x is not None and C.x.dim() == 2 and C.x.shape[1] == 4: x, C.x = C.x, None
        if C.alias == 'expand': x = x[:1].expand(C.size, 4)
        if C.alias == 'strided': x = torch.randn(40, generator=g).as_strided((C.size, 4), (2, 1))
        if C.alias == 'buf': x = S.buf[: C.size]
        if C.grad: x = x.detach().requires_grad_()
        if C.grad == 'made': x = x * 1
        if C.grad == 'view': x = x.view(-1).view(x.shape)
        z = torch.ones(4)
        if C.alias == 'same': z = x
        if C.alias == 'view': z = x.view(-1)[:4]
        if C.alias == 'base': z = S.base
        if C.alias == 'param': z = P[0].data[0]
        if C.alias == 'shadow': z = S.view
        if C.alias == 'last': z = S.last
        if C.alias == 'flat': z = S.flat[:4]
        if C.alias == 'grad' and P[0].grad is not None: z = P[0].grad
        if C.alias == 'old' and C.kept and torch.is_tensor(C.kept[-1]): z = C.kept[-1]
        return x.to(P[0].dtype) if C.alias == '' else x, z, C.n, C.c
    def change():
        nonlocal P
        C.errors.clear()
        try:
{changes}
        except Exception as error: C.errors.append((type(error).__name__, str(error)))
        return C.errors
    def again(do):
        try: return do()
        except Exception as error: C.errors.append((type(error).__name__, str(error)))
    def one():
        C.args = data()
        with C.context(): out = in_thread(f, C.args) if C.thread else f(*C.args)
        if isinstance(out, functools.partial): out = [out.func, *out.args]
        if isinstance(out, types.FunctionType): out = out()
        if isinstance(out, (types.GeneratorType, type(iter([])))): out = [*out]
        kept = out[0] if isinstance(out, (tuple, list)) and out else out
        if C.keep: C.kept.append(kept); del C.kept[3:-1]
        if C.use and torch.is_tensor(kept): again(lambda: C.use(kept))
        return {shown}
    def watch():
        state = [v for k, v in vars(S).items() if k not in ('gen', 'gen2', 'ref', 'it', 'lru', 'act', 'clamp', 'block', 'time', 'slots')]
        return parts([state, S.slots.a, S.slots.b, C.args, C.kept, C.errors, GLOBAL, GLOBALS, hidden, var.get(), Klass.count], {{}}) + [m, m.steps, P, [p.grad for p in P], [*opt.state.values()], opt.param_groups[0]['lr']]
    return one, [1, *[change, 1] * {calls}], watch
"""

OPTIMIZERS = ("SGD(P, lr=0.05)", "SGD(P, lr=0.05)", "SGD(P, lr=0.05, momentum=0.9)", "Adam(P, lr=0.05)", "AdamW(P, lr=0.05, foreach=True)")  # fmt: skip
OPTIONS = ("", "", "", "", ", dynamic=True", ", dynamic=False")


def meetings(seed: int, number: int) -> Attack:
    """Case `number` of a seed: the first that plain Python gets through for the most part, now and then any."""
    rng = random.Random(f"meetings:{seed}:{number}")
    case = drawn(rng, number)
    for _ in range(0 if rng.random() < 0.05 else 60):
        if works(case.text):
            break
        case = drawn(rng, number)
    return case


def drawn(rng: random.Random, number: int) -> Attack:
    features = rng.choices([*FEATURES], weights=(3, 3, 3, 3, 2), k=rng.choice([2, 2, 3, 3, 4]))
    snippets = [rng.choice(FEATURES[feature]) for feature in features]
    end, back = rng.choice(ENDS), rng.choice(RETURNS)
    changes = rng.choices(CHANGES, k=3)
    start = "global GLOBAL\n" if any("GLOBAL +=" in s for s in snippets) else ""
    snippets = [s.replace("global GLOBAL\n", "") for s in snippets]
    trained = "backward" in end or "autograd.grad" in end
    lines = ["h = m(x)" if trained or rng.random() < 0.5 else "h = x * 1", *snippets, end, f"return {back}"]
    text = COMMON + IN_THREAD + MAKE.format(
        seed=number, act=rng.choice(["Tanh", "ReLU", "GELU"]), optimizer=rng.choice(OPTIMIZERS), options=rng.choice(OPTIONS), calls=CALLS,
        step=indented("def step(x, z, n, c):\n" + indented(start + "\n".join(lines))), changes=indented(indented(indented(sometimes(changes)))),
        shown=rng.choice(["out", "out", "None"]),
    )  # fmt: skip
    return Attack("; ".join(features), "; ".join(snippets), end, "; ".join(changes), text)


def sometimes(changes: list[str]) -> str:
    first, second, third = (indented(change) for change in changes)
    return f"k = r.random()\nif k < 0.35:\n{first}\nelif k < 0.55:\n{second}\nelif k < 0.7:\n{third}"
