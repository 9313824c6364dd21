"""Ways from the function to the source `s`: where it stands, how it is read, how it is replaced."""

from __future__ import annotations

from typing import NamedTuple


class Way(NamedTuple):
    """`prepare` puts `s` in its place, `read` is the expression of the function, `rebind` puts `t` there.

    `outer` wraps the function: it stands in a function `outer(s)`, whose cell `rebind` changes. `takes` are the
    parameters beside x, `given` the arguments of a call; the function is made by `def f(x<takes>)`.
    """

    name: str
    read: str
    rebind: str
    prepare: str = ""
    takes: str = ""
    given: str = ""
    lines: str = ""
    outer: bool = False


_HOLDER = "class H:\n    pass\nh = H()\nh.s = s"

WAYS = (
    Way("global", "s", "s = t"),
    Way("closure", "s", "set_s(t)", outer=True),
    Way("global of a call", "get()", "s = t", "def get(): return s"),
    Way("attribute", "h.s", "h.s = t", _HOLDER),
    Way("getattr", "getattr(h, 's')", "h.s = t", _HOLDER),
    Way("vars", "vars(h)['s']", "h.s = t", _HOLDER),
    Way("attrgetter", "operator.attrgetter('s')(h)", "h.s = t", _HOLDER),
    Way("attribute of attribute", "h.h.s", "h.h.s = t", "h = NS(h=NS(s=s))"),
    Way("slot", "h.s", "h.s = t", "class H:\n    __slots__ = ('s',)\nh = H()\nh.s = s"),
    Way("class attribute", "H.s", "H.s = t", "class H: pass\nH.s = s"),
    Way("class attribute of an object", "h.s", "H.s = t", "class H: pass\nh = H()\nH.s = s"),
    Way("inherited class attribute", "h.s", "B.s = t", "class B: pass\nclass H(B): pass\nh = H()\nB.s = s"),
    Way("property", "h.p", "h.s = t", "class H:\n    p = property(lambda self: self.s)\nh = H()\nh.s = s"),
    Way("method", "h.get()", "h.s = t", "class H:\n    def get(self): return self.s\nh = H()\nh.s = s"),
    Way("__getattr__", "h.q", "h.s = t",
        "class H:\n    def __getattr__(self, n): return object.__getattribute__(self, 's')\nh = H()\nh.s = s"),
    Way("item of a list", "h[0]", "h[0] = t", "h = [s, 1]"),
    Way("last item", "h[-1]", "h[-1] = t", "h = [1, s]"),
    Way("item of a dict", "h['k']", "h['k'] = t", "h = {'k': s}"),
    Way("get of a dict", "h.get('k')", "h['k'] = t", "h = {'k': s}"),
    Way("next value of a dict", "next(iter(h.values()))", "h['k'] = t", "h = {'k': s}"),
    Way("item of an item", "h['k'][0]", "h['k'] = (t,)", "h = {'k': (s,)}"),
    Way("deque", "h[0]", "h[0] = t", "h = collections.deque([s])"),
    Way("unpacked", "q", "h[0] = t", "h = [s, 1]", lines="q, _ = h"),
    Way("starred", "q[0]", "h[0] = t", "h = [s, 1]", lines="q = [*h]"),
    Way("loop", "q", "h[0] = t", "h = [s]", lines="for q in h: pass"),
    Way("zip", "q", "h[0] = t", "h = [s]", lines="for q, _ in zip(h, [1]): pass"),
    Way("enumerate", "q", "h[0] = t", "h = [s]", lines="for _, q in enumerate(h): pass"),
    Way("map", "list(map(lambda q: q, h))[0]", "h[0] = t", "h = [s]"),
    Way("filter", "list(filter(lambda q: True, h))[0]", "h[0] = t", "h = [s]"),
    Way("items", "q", "h['k'] = t", "h = {'k': s}", lines="for _, q in h.items(): pass"),
    Way("comprehension", "[q for q in h][0]", "h[0] = t", "h = [s]"),
    Way("generator", "next(q for q in h)", "h[0] = t", "h = [s]"),
    Way("generator function", "next(h())", "s = t", "def h(): yield s"),
    Way("argument", "a", "arg = t", "arg = s", takes=", a", given=", arg"),
    Way("keyword argument", "a", "arg = t", "arg = s", takes=", a=None", given=", a=arg"),
    Way("star arguments", "a[0]", "arg = t", "arg = s", takes=", *a", given=", arg"),
    Way("star keywords", "a['k']", "arg = t", "arg = s", takes=", **a", given=", k=arg"),
    Way("argument in a list", "a[0]", "arg[0] = t", "arg = [s]", takes=", a", given=", arg"),
    Way("argument in a dict", "a['k']", "arg['k'] = t", "arg = {'k': s}", takes=", a", given=", arg"),
    Way("attribute of an argument", "a.s", "arg.s = t", "arg = NS(s=s)", takes=", a", given=", arg"),
    Way("default", "a", "plain.__defaults__ = (t,)", takes=", a=s"),
    Way("keyword default", "a", "plain.__kwdefaults__ = {'a': t}", takes=", *, a=s"),
    Way("attribute of the function", "plain.s", "plain.s = t", "<after>plain.s = s"),
    Way("partial", "h()", "h.__setstate__((lambda q: q, (t,), {}, {}))", "h = functools.partial(lambda q: q, s)"),
    Way("default of another function", "h()", "h.__defaults__ = (t,)", "def h(a=s): return a"),
    Way("closure of another function", "h()", "h.__closure__[0].cell_contents = t", "h = (lambda q: lambda: q)(s)"),
    Way("module attribute", "h.s", "h.s = t", "h = types.ModuleType('h')\nh.s = s"),
    Way("globals()", "globals()['s']", "s = t"),
    Way("contextvar", "h.get()", "h.set(t)", "h = contextvars.ContextVar('h')\nh.set(s)"),
    Way("weak value", "h['k']", "h['k'] = t", "h = weakref.WeakValueDictionary(k=s)"),
    Way("weakref", "h()", "h = weakref.ref(t)", "h = weakref.ref(s)"),
    Way("nn.Module attribute", "h.s", "h.s = t", "h = torch.nn.Module()\nh.s = s"),
    Way("mapping proxy", "h['k']", "b_['k'] = t", "b_ = {'k': s}\nh = types.MappingProxyType(b_)"),
    Way("namedtuple field", "h.a", "h = h._replace(a=t)", "h = collections.namedtuple('H', 'a b')(s, 1)"),
    Way("dataclass field", "h.a", "h.a = t", "@dataclasses.dataclass\nclass H:\n    a: object\nh = H(s)"),
    Way("instance dict", "h.__dict__['s']", "h.s = t", _HOLDER),
    Way("ChainMap", "h['k']", "b_['k'] = t", "b_ = {'k': s}\nh = collections.ChainMap({}, b_)"),
    Way("defaultdict factory", "h['none']", "h.default_factory = lambda: t",
        "h = collections.defaultdict(lambda: s)", lines="h.pop('none', None)"),
    Way("next of an iterator made here", "next(iter(h))", "h[0] = t", "h = [s]"),
    Way("reversed", "next(reversed(h))", "h[0] = t", "h = [s]"),
    Way("itemgetter", "operator.itemgetter(0)(h)", "h[0] = t", "h = [s]"),
    Way("max by key", "max(h, key=lambda q: 1)", "h[0] = t", "h = [s]"),
    Way("reduce", "functools.reduce(lambda p, q: q, h)", "h[1] = t", "h = [0, s]"),
    Way("match", "q", "h['k'] = t", "h = {'k': s}", lines="match h:\n    case {'k': q}: pass"),
    Way("with", "q", "h[0] = t", "h = [s]\n@contextlib.contextmanager\ndef cm(): yield h[0]", lines="with cm() as q: pass"),
    Way("tree leaves", "pytree.tree_leaves(h, is_leaf=lambda q: q is not h)[0]", "h[0] = t", "h = [s]"),
    Way("copy", "copy.copy(h)[0]", "h[0] = t", "h = [s]"),
    Way("cached property", "h.p", "h.__dict__['p'] = t",
        "class H:\n    @functools.cached_property\n    def p(self): return s\nh = H()"),
    Way("conditional", "(s if h else None)", "s = t", "h = True"),
    Way("chain", "next(itertools.chain(h))", "h[0] = t", "h = [s]"),
    Way("get of a kept method", "h('k')", "b_['k'] = t", "b_ = {'k': s}\nh = b_.get"),
)  # fmt: skip
