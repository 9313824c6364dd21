"""Random programs in the form that the other cases have: the text of a `make(trace)`, from a grammar.

A rule is a list of templates; `<T>` in a template stands for another choice of rule T. The first template of
each rule is its simplest one, taken where a program has grown deep enough, and what hypothesis shrinks to.
"""

from __future__ import annotations

import linecache
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import call

Pick = Callable[[int], int]  # a number below the one given

GRAMMAR: dict[str, list[str]] = {
    # tensors that have a name, most of which outlive the call
    "L": [
        "a", "b", "x", "y", "o.w", "o.cache", 'd["w"]', "lst[0]", "lst[-1]", "cell", "G", "m.weight", "m.h",
        "o.part.w", 'd.get("y", a)', "o.part.cache",
    ],
    # those that can be written to, mostly
    "P": [
        "a", "b", "x", "y", "o.w", "o.cache", 'd["w"]', "lst[0]", "lst[-1]", "cell", "G", "m.h", "o.part.w",
        "a", "b", "a", "<L>", "a.detach()", "<L>.data", "<L>.detach()", "a[:]", "y.view(-1)[:2]",
    ],
    # tensors that go with three numbers
    "T": [
        "<L>", "<L>", "<L>", "<L>", "<L>", "<L>", "<L>", "<L>", "<L>", "<L>", "(<T> + <T>)", "(<T> * <T>)",
        "(<T> - <N>)", "(<T> * <N>)", "<T>.sin()", "torch.tanh(<T>)", "F.relu(<T>)", "<T>.abs()",
        "<T>.clone()", "<T>.detach()", "<T>.sum()", "(-<T>)", "<T>.max()", "<Z>.sum()", "(<Z>.sum() + <L>)",
        "torch.where(<T> > 0, <T>, <T>)", "F.dropout(<T>, 0.5)", "torch.rand_like(<T> * 1.0)",
        "(<T> + torch.rand(3))", "torch.tensor([1.0, 2.0, <N>])", "torch.tensor(<N>)",
        "torch.zeros_like(<T>)", "torch.full((3,), 0.5)", "<T>.view(-1)[:1]", "<L>.expand(2, -1)",
        "<T>.data", "<T>.double()", "<T>.float()", "<T>[...]", "<L>[None]", "(<T> if <B> else <T>)",
        "sum(v.sum() for v in lst)", "max(a, b, key=lambda t: t.sum())",
        "torch.autograd.grad((m.weight * <T>).sum(), m.weight)[0]", "torch.normal(<T> * 1.0, 1.0)",
        "o.method(<T>)", "torch.zeros(3).copy_(<L>)", "torch.empty(3).fill_(<N>)",
        "(<L> + torch.arange(3))", "<T>.masked_fill(<T> > 0, <N>)", "helper(<T>)", "m(<T>)", "inner(<T>)",
        "<L>.new_ones(<L>.shape[0])", "(<T> + torch.arange(len(x)))", "<L>.view(-1)[-<L>.shape[-1] :]",
        "(x * x.shape[0])", "torch.full((y.shape[-1],), <N>)", "x.reshape(-1, x.shape[-1])[0]",
        "shrink((<T> * 1.0).clone())", "hidden(<T> * 1.0)", "f(<T>)", "o.method(<T>)", "inner(<L>)",
        "m(<L>)", "torch.stack([<T>.sum(), <T>.sum(), <T>.max()])",
    ],
    # tensors of any shape
    "Z": [
        "<T>", "<L>[<L> > 0]", "<T>[<T> > <N>]", "<L>.nonzero()", "<L>[1:]", "<L>[..., 0]", "<L>.t()",
        "torch.stack([<L>, <L>])", "torch.cat([<L>, <L>])", "torch.stack(lst)", "torch.ones(int(<N>) % 4)",
        "<L>.cumsum(-1).flip(-1)", "<L>.unique()", "torch.linspace(0, 1, <L>.numel())",
        "torch.randn(<L>.shape)", "torch.randint(4, (2,))", "<L>.sort().values", "<L>.view(3, 1)",
    ],
    "N": [
        "2", "0.5", "-1.0", "k", "n", "o.k", 'd["k"]', "len(lst)", "len(d)", "o.n", "m.count", "flag", "K",
        "<T>.sum().item()", "float(<T>.sum())", "int(<T>.sum()) % 5", "<T>.dim()", "<T>.numel()",
        "<Z>.numel()", "<T>.max().item()", "<L>.size(-1)", "random.random()", "<Z>.sum().item()",
        "torch.rand(()).item()", "<L>.shape[-1]", "len(x)", "y.size(0) // 2", "x.stride(-1)",
    ],
    "B": [
        "<L>.sum() > 0", "<T>.sum() > <N>", "(<T> > 0).any()", "(<L> > <N>).all()", "<N> > <N>", "n < 2",
        '"y" in d', "<P>.add_(1).sum() > 2", "o.cache is None", "len(lst) > 2", "<L> is <L>",
        "<L>.requires_grad", "torch.equal(<T>, <L>)", "m.training", "torch.is_grad_enabled()", "flag",
        "not <B>", "(<B> and <B>)", "(<B> or <B>)", 'hasattr(o, "lazy")',
        "isinstance(o.cache, torch.Tensor)", "<L>.dtype == torch.float32", "<L>.is_leaf",
        "bool(<T>.sum() > 0)", "o.cache is not None and o.cache.sum() > 0", "<T>.sum() > 0",
        "len(x) > 2", "x.shape == y.shape", "<L>.shape[-1] == <N>",
        "<L>.max() > 1", "torch.rand(()) > 0.5", "o.n > 3", "<Z>.sum() > 0",
    ],
    "R": [
        "<T>", "<T>", "<L>", "<L>", "(<T>, <T>)", '{"a": <T>, "b": <N>}', "[<L>, <L>]", "<N>", "None", "o",
        "(<L>, lst)", "o.cache", "list(lst)", "(a, a[:1])", "(<L>, o.cache)", "d", "<Z>", "(<Z>, <L>)",
    ],
    # statements; those of several lines hold <S> where a block goes
    "S": [
        "a = <T>", "a = <T>", "a = <T>", "b = <T>", "b = <T>", "n += 1", "a, b = b, a", "n = int(<N>) % 4",
        "<W>", "<W>", "<W>", "<E>", "<E>", "<E>", "<C>", "<C>",
    ],
    "W": [
        "<P>.add_(1)", "<P>.add_(<T>)", "<P>.mul_(<N>)", "<P>[0] = <N>", "<P>[:2] += 1", "<P>[<T> > 0] = 0",
        "<P>.zero_()", "<P>.copy_(<L>)", "<L>.data.mul_(0.5)", "<L>.detach().add_(1)",
        "torch.add(<L>, 1, out=<P>)", "a += <L>", "b *= 2", "<P>.t_()", "a.unsqueeze_(0)",
        "a = torch.cat([a.view(-1)] * 3)\na.resize_(3)", "<P>.normal_()", "<P>.view(-1)[:1].add_(1)",
        "F.relu(<P>, inplace=True)", "<P>.data = <T>", "<P>.exponential_()", "<P>.clamp_(min=0)",
        "(m.weight * <T>).sum().backward()", "a.detach_()",
        "b = <T> * m.weight\nb.register_hook(lambda g: g * 2)", "F.dropout(<P>, 0.5, inplace=True)",
        "a.requires_grad_()",
    ],
    "E": [
        "o.cache = <T>", "o.cache = <L>", 'd["y"] = <T>', 'd["y"] = <L>', "lst.append(<T>)",
        "lst.append(<L>)", "o.n += 1", 'd["n"] = d.get("n", 0) + 1', "lst[0] = <T>", "lst[-1] = <L>",
        "del lst[2:]", "lst.pop()", "o.cache = None", 'd.pop("y", None)', "cell = <T>", "cell = <L>",
        "G = <T>", "m.h = <T>", "m.count += 1", "d.update(y=<T>)", 'a = d.setdefault("z", <T>)',
        "lst.extend([<T>, <L>])", 'setattr(o, "lazy", <T>)', "o.part.w = <T>", "o.lst = [<T>, <L>]",
        "lst.insert(0, <T>)", "flag = not flag", "o.k = <N>", 'd["k"] = <N>', "o.part = Thing()",
        "lst += [<L>]", "o.cache = (<T>).detach()", "m.h.lerp_(<L>.detach(), 0.1)",
        "m.h = 0.9 * m.h + 0.1 * a.detach()", "o.kept = x", "lst[:] = [<L>, <T>]",
        "o.cache = torch.cat([o.cache.view(-1), a.view(-1)])[-3:]", "o.cache += 1", 'd["w"] *= 2',
        "K = K + 1", 'if not hasattr(o, "lazy"):\n    o.lazy = <T>\na = o.lazy + 1',
        "if o.cache is None:\n    o.cache = <T>", "lst[o.n % len(lst)] = <T>",
        "m.weight = torch.nn.Parameter(<L>.detach().clone())", "vars(o).update(cache=<T>)",
        "o.cache, o.kept = <L>, <T>", "o.cache = a\na = o.cache * 2", 'd["y"] = a\nb = d["y"] + 1',
        "lst.append(a)\nb = lst[-1]", "o.n = n",
    ],
    "C": [
        "if <B>:\n    <S>", "if <B>:\n    <S>\n    <S>\nelse:\n    <S>",
        "for i in range(int(<N>) % 4):\n    <S>\n    a = a + i",
        "while left and <B>:\n    left -= 1\n    <S>", "for v in lst[:3]:\n    a = a + v\n    <S>",
        "if <B>:\n    <S>\nelse:\n    <S>",
        "try:\n    <S>\n    <S>\nexcept Exception as error:\n    n += 1\n    <S>",
        "with torch.no_grad():\n    <S>\n    <S>", "if <B>:\n    return <R>",
        'if <B>:\n    raise ValueError("no")', "try:\n    assert <B>, n\nexcept AssertionError:\n    <S>",
        "def f(t):\n    return t * <L> + <N>",
        "for i, (name, v) in enumerate(list(d.items())):\n    if i == n:\n        break\n    <S>",
        "if <B>:\n    <W>\n<S>", "if <B>:\n    <E>\n<S>",
        "try:\n    <S>\n    return <R>\nfinally:\n    <S>", "if <B>:\n    <E>\nelse:\n    <W>",
        "for i in range(3):\n    if <B>:\n        continue\n    <S>", "with torch.enable_grad():\n    <S>",
        "if <B>:\n    a = <T>\nelse:\n    a = <T>", "if <B>:\n    b = <T>\n    <S>",
    ],
    # between the calls
    "A": [
        "x0", "x0", "x1", "x6", "x10", "x0", "x1", "x6", "x10", "x2", "x3", "x4", "x5", "x7", "x8", "x9",
    ],
    "call": [
        "call(x0, x1)", "call(<A>, <A>)", "call(<A>, <A>)", "call(<A>, <A>)", "call(<A>, <A>)",
        "call(<A>, x1)", "call(x0, <A>)", "call(x2, x2)", "call(x6, x1)", "call(x10, x1)", "call(x1, x1)",
        "call(<A>, <A>, k=2.0)", "call(<A>, <A>).of(without_grad)", "call(<A>).of(on_state)",
        "call(<A>, <A>).of(then_scribble)", "call(<A>, <A>).of(then_backward)", "call(x0, x6)",
        "call(x0, x3)", "call(x2, x1)", "call(<A>).of(on_result)",
    ],
    "change": [
        'setattr(o, "k", 3.0)', "o.w.detach().add_(1)", 'setattr(o, "w", torch.ones(3))',
        'setattr(o, "cache", None)', "d.update(k=1)", "lst.append(torch.ones(3))", "lst.pop(0)",
        'd.pop("y", None)', "set_cell(torch.zeros(3))", "x0.neg_()", "x1.mul_(-2)", "torch.manual_seed(1)",
        "m.eval()", "m.train()", "set_flag(False)", 'vars(o).pop("lazy", None)', "o.w.requires_grad_()",
        'setattr(o, "cache", x0)', "d.update(w=o.w)", 'setattr(o, "part", Thing())',
        "globals().update(G=torch.ones(3))", "d.update(y=o.cache)", "lst.clear()",
        'setattr(o, "w", torch.ones(2, 3))', "m.h.fill_(0.5)", "m.weight.detach().neg_()",
        'setattr(o, "part", o)', "set_cell(x0)", "globals().update(K=1)", 'setattr(o, "n", 0)',
        "lst.reverse()", "x2.detach().neg_()", "x0.neg_()", "x0.neg_()", "x0.mul_(-0.5)",
        "o.w.detach().neg_()", "grow(5)", "grow(2)", "grow(7)", "grow(1)", "grow(0)", "grow(3)", "grow(6)",
    ],
}  # fmt: skip

# Rules that programs have whole.
BASIC = ("A", "call")

# Functions that programs call; a function calls only those before it.
CALLED = ("method", "m", "helper", "inner", "shrink", "hidden")

TEXT = """\
G = torch.tensor([0.25, -0.5, 1.0])
K = 2


def make(trace):
    class Thing:
        def __init__(self):
            self.w, self.cache = torch.tensor([0.5, -1.5, 1.0]), torch.tensor([1.0, -2.0, 0.5])
            self.k, self.n, self.part = 0.5, 0, None

        def method(self, x):
{method}

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([0.5, 1.0, -1.0]))
            self.register_buffer("h", torch.zeros(3))
            self.count = 0

        def forward(self, x):
{forward}

    net = Net()
    o, m, cell, flag = Thing(), {net}, torch.tensor([3.0, -1.0, 0.5]), True
    o.part = Thing()
    d = {{"k": 2.0, "w": torch.tensor([-1.0, 1.0, 2.0])}}
    lst = [torch.tensor([0.5, 0.5, -0.5]), torch.tensor([1.0, -1.0, 0.0])]
    shrink, hidden = {steps}

    def helper(x):
{helper}

    {trace_inner}
    def inner(x):
{inner}

    @counted
    {trace_fn}
    def fn(x, y, k=0.5):
{fn}

    def set_cell(value):
        nonlocal cell
        cell = value

    def set_flag(value):
        nonlocal flag
        flag = value

    def grow(size):
        for number, t in enumerate([o.w, o.cache, d["w"], *lst, cell, G, net.h, *xs[:3], *xs[6:8], xs[10]]):
            if isinstance(t, torch.Tensor) and t.is_leaf:
                t.data = (torch.arange(size) % 3 * 0.5 - 0.25 * (number % 4)).to(t.dtype)

    def without_grad(*args):
        with torch.no_grad():
            return fn(*args)

    def on_state(x):
        return fn(x, o.w)

    def on_result(x):
        return fn(x, fn(x, x0))

    def then_scribble(*args):
        return scribble(fn(*args))

    def then_backward(*args):
        return backward(fn(*args))

    x0, x1 = torch.tensor([-1.0, 0.5, 2.0]), torch.tensor([0.5, -2.0, 0.25])
    x2, x3 = torch.tensor([1.0, -0.5, 1.5], requires_grad=True), x0[:]
    x4, x5 = torch.tensor([[1.0, -1.0, 0.5], [2.0, 0.0, 1.0]]), torch.tensor([1.0, -1.0, 0.5]).double()
    x6, x7, x8, x9 = x0 * -3, torch.tensor([1, -2, 3]), x2 * 2, torch.tensor([0.5])
    x10 = torch.tensor([0.5, -1.0, 0.25])
    xs = [x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10]
    watch = lambda: [o, d, lst, cell, flag, G, K, net, net.h, net.count, xs, [x2.grad, net.weight.grad]]
    steps = [
{calls}
    ]
    return fn, steps, watch
"""


@cache
def called_in(template: str) -> frozenset[str]:
    """The functions that a template calls with something generated."""
    return frozenset(re.findall(r"(?<!\w)(\w+)\(<", template))


class Writer:
    """Writes one program, asking `pick` at each choice."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.callable = {"f": False, **dict.fromkeys(CALLED, False)}
        # Programs with a few features meet more of what these do together than programs with all of them.
        some = random.Random(self.pick(1000))
        self.kept = {
            rule: {t for t in templates[1:] if rule in BASIC or some.random() < 0.4} | {templates[0]}
            for rule, templates in GRAMMAR.items()
        }

    def number(self, low: int, high: int) -> int:
        return low + self.pick(high - low + 1)

    def choose(self, options: list[str]) -> str:
        return options[self.pick(len(options))]

    def allowed(self, rule: str) -> list[str]:
        """The templates of a rule that this program has, and that call only what is there already."""
        closed = {name for name, there in self.callable.items() if not there}
        return [t for t in GRAMMAR[rule] if t in self.kept[rule] and not closed & called_in(t)]

    def expand(self, rule: str, depth: int) -> str:
        """One choice of a rule, the simplest where `depth` has run out."""
        template = (
            GRAMMAR[rule][0] if depth <= 0 and rule not in ("L", "A") else self.choose(self.allowed(rule))
        )
        return self.fill(template, depth)

    def fill(self, template: str, depth: int) -> str:
        lines = []
        for line in template.split("\n"):
            margin = line[: len(line) - len(line.lstrip())]
            inside = re.sub(r"<(\w+)>", lambda found: self.expand(found[1], depth - 1), line.lstrip())
            lines.append(textwrap.indent(inside, margin))
        return "\n".join(lines)

    def body(self, name: str, statements: int, margin: int, start: str) -> str:
        """The lines of a function body."""
        self.callable["f"] = False
        lines = [start] if start else []
        lines += [self.expand("S", 3) for _ in range(statements)]
        lines.append("return " + self.expand("R" if name == "fn" else "T", 3))
        text = "\n".join(lines)
        outer = [
            f"nonlocal {var}" for var in ("cell", "flag", "lst") if re.search(rf"^ *{var} \+?= ", text, re.M)
        ]
        outer += [f"global {var}" for var in ("G", "K") if re.search(rf"^ *{var} = ", text, re.M)]
        return textwrap.indent("\n".join([*outer, text]), " " * margin)

    def small(self, name: str, margin: int) -> str:
        """The body of a function that the main one calls; from here on there is this function."""
        text = self.body(name, self.number(0, 1), margin, "y, a, b, k, n, left = x, x, x, 1.0, 0, 5")
        self.callable[name] = True
        return text

    def calls(self) -> Iterator[str]:
        """The steps: a few calls in any order, so that something can be replayed, and changes between."""
        calls = [self.expand("call", 2) for _ in range(self.number(1, 3))]
        for _ in range(self.number(4, 12)):
            if self.pick(4) == 3:
                yield f"lambda: quietly(lambda: {self.expand('change', 1)})"
            yield self.choose(calls)

    def text(self) -> str:
        """The whole program."""
        parts = {
            "method": self.small("method", 12),
            "forward": self.small("m", 12),
            "helper": self.small("helper", 8),
            "inner": self.small("inner", 8),
        }
        self.callable.update(shrink=True, hidden=True)
        parts["fn"] = self.body("fn", self.number(1, 5), 8, "a, b, n, left, f = x, y * 1, 0, 5, helper")
        self.callable["f"] = True
        return TEXT.format(
            **parts,
            net=self.choose(["net", "net", "net", "trace(net)"]),
            steps=self.choose(["shrink_plain, hidden_plain", "marked(trace)"]),
            trace_inner=self.choose(["@trace", "@trace(check=False)"]),
            trace_fn="@trace" + self.choose(["", "(check=False)", "(cache_limit=2)", "(dynamic=True)"]),
            calls=textwrap.indent(",\n".join(self.calls()), " " * 8),
        )


# ---------------------------------------------------------------- what programs find around them
def shrink_plain(x: torch.Tensor) -> torch.Tensor:
    """A loop on values that ends; never the argument itself."""
    x = x.clone()
    for _ in range(4):
        if bool(x.float().norm() > 1):
            x = torch.tanh(x)
    return x


def hidden_plain(x: torch.Tensor) -> torch.Tensor:
    """Python on a value, whose result has the shape of its argument."""
    return x * 2 if float(x.sum()) > 0 else x - 1


def marked(trace: Any) -> tuple[Any, Any]:
    """The two as steps of a program."""
    if not trace.enabled:
        return shrink_plain, hidden_plain
    return lazytrace.script_if_tracing(shrink_plain), lazytrace.opaque(hidden_plain)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor in a result."""
    parts = (
        value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
    )
    return next((t for t in parts if isinstance(t, torch.Tensor)), None)


def scribble(value: Any) -> Any:
    """Write to a result, which must not show in the next one."""
    tensor = first_tensor(value)
    if tensor is not None:
        tensor.detach().add_(1)
    return value


def quietly(change: Callable[[], object]) -> None:
    """A change, where what it changes is still there."""
    with suppress(Exception):
        change()


def backward(value: Any) -> Any:
    """Gradients into `.grad`, as training does it."""
    tensor = first_tensor(value)
    if tensor is not None and tensor.requires_grad:
        tensor.sum().backward(retain_graph=True)
    return value


@contextmanager
def source(name: str, text: str) -> Iterator[None]:
    """Tracebacks and `inspect` find the text while the program is in use."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    try:
        yield
    finally:
        linecache.cache.pop(name, None)


class Program:
    """A text with a `make(trace)`, executed in a module of its own at each call."""

    def __init__(self, name: str, text: str) -> None:
        self.code = compile(text, name, "exec")
        self.calls = 0

    def counted(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its calls counted from outside."""

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return fn(*args, **kwargs)

        return counting

    def __call__(self, trace: Any) -> Any:
        self.calls = 0
        helpers = (call, marked, shrink_plain, hidden_plain, scribble, backward, quietly, self.counted)
        module: dict[str, Any] = {"__name__": "program", "torch": torch, "F": F, "random": random}
        module.update({helper.__name__: helper for helper in helpers})
        exec(self.code, module)
        return module["make"](trace)
