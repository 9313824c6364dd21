"""Kinds of state: what makes it, and how it can be changed in place.

A source is a container of elements, or a single object. Its setup binds `s`, and `other()` makes another one of
the kind. Elements are e0, e1, e2 and, for later, e3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.soundness.attacks.changes import (
    BOUND,
    COPIED,
    SPECIAL,
    Change,
    added,
    changes,
    rebound,
    replaced,
)

# Iterators without an end: only these consumers come back.
ENDLESS = ("cycle of", "repeat of", "count", "accumulate", "count subclass")
SHORT = (
    "next(S)",
    "next(S, None)",
    "next(iter(S))",
    "list(zip(S, [1, 2, 3]))",
    "list(itertools.islice(S, 2))",
    "S",
    "bool(S)",
    "repr(S)",
    "v = next(zip(S, S))",
    "it = iter(S)\nv = (next(it), next(it))",
    "[q for q, _ in zip(S, [1, 2])]",
    "next(itertools.cycle(S))",
    "next(map(str, S))",
    "next(filter(None, S))",
    "next(enumerate(S))",
    "next(zip(S))",
    "dict(zip('abc', S))",
    "copy.copy(S)",
    "it = map(lambda a, b: (a, b), S, S)\nv = next(it)",
)


class Source(NamedTuple):
    """State `s`; `other` is an expression that makes another one of its kind."""

    name: str
    setup: str
    other: str
    changes: tuple[Change, ...]


class Element(NamedTuple):
    """What a container holds: four values, others that compare equal to the first, and its own changes."""

    name: str
    values: tuple[str, str, str, str]
    twins: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    setup: str = ""


class Container(NamedTuple):
    """How a container is made of elements, and how it changes; `put` makes {0} its first element."""

    name: str
    make: str
    put: str = ""
    changes: tuple[Change, ...] = ()
    setup: str = ""


# ---------------------------------------------------------------- elements
_ONE = "class P:\n    def __init__(self, v): self.v = v\n"
_ALL = _ONE.replace("P", "E") + "\n".join(
    f"E.{name} = {old}" for name, (old, _) in SPECIAL.items() if name not in (
        "__getattr__", "__getattribute__", "__torch_function__", "__next__", "__instancecheck__", "__set_name__",
        "__copy__", "__deepcopy__", "__array__",
    )
)  # fmt: skip
_V = changes(("v", "e0.v = 5", "e0.v = 1"), ("v of equal value", "e0.v = True", "e0.v = 1"))
_SOME = ("__eq__", "__lt__", "__bool__", "__len__", "__hash__", "__iter__", "__str__", "__repr__", "__float__",
         "__index__", "__add__", "__radd__", "__contains__", "__call__", "__getattr__", "__format__", "__ne__",
         "__getitem__", "__mul__", "__rmul__", "__length_hint__")  # fmt: skip

ELEMENTS = (
    Element("int", ("1", "2", "3", "7"), ("True", "1.0", "np.int64(1)", "Int(1)")),
    Element("float", ("0.0", "1.5", "2.5", "7.5"), ("-0.0", "0", "False")),
    Element("nan", ("math.nan", "1.5", "2.5", "7.5"), ("-math.nan", "float('nan')")),
    Element("bool", ("True", "False", "True", "False"), ("1", "1.0")),
    Element("str", ("'a'", "'bb'", "'1'", "'zzz'"), ("Str('a')",)),
    Element("bytes", ("b'a'", "b'bb'", "b'1'", "b'zzz'"), ("bytearray(b'a')",)),
    Element("list", ("[1, 2]", "[3, 4]", "[5, 6]", "[7, 8, 9]"), ("[True, 2]", "[1.0, 2]"), changes(
        ("append inside", "e0.append(9)", "e0.pop()"), ("item inside", "e0[0] = 9", "e0[0] = 1"),
        ("clear inside", "e0.clear()", "e0[:] = [1, 2]"), ("equal inside", "e0[0] = True", "e0[0] = 1"),
        ("reverse inside", "e0.reverse()", "e0.reverse()"),
    )),
    Element("tuple of list", ("(1, [2])", "(3, [4])", "(5, [6])", "(7, [8])"), ("(True, [2])",), changes(
        ("append inside", "e0[1].append(9)", "e0[1].pop()"), ("item inside", "e0[1][0] = 9", "e0[1][0] = 2"),
    )),
    Element("pair", ("('a', 1)", "('b', 2)", "('c', 3)", "('d', 4)"), ("('a', True)", "('a', 1.0)")),
    Element("dict", ("{'k': 1, 'l': 2}", "{'k': 3}", "{'k': 5}", "{'k': 7}"), ("{'l': 2, 'k': 1}", "{'k': 1.0, 'l': 2}"), changes(
        ("value inside", "e0['k'] = 9", "e0['k'] = 1"), ("key inside", "e0['m'] = 9", "del e0['m']"),
        ("order inside", "e0['k'] = e0.pop('k')", "e0['l'] = e0.pop('l')"),
    )),
    Element("set", ("{1, 2}", "{3}", "{5}", "{7}"), ("{1.0, 2}", "{True, 2}"), changes(
        ("add inside", "e0.add(9)", "e0.discard(9)"), ("clear inside", "e0.clear()", "e0.update((1, 2))"),
    )),
    Element("frozenset", ("frozenset({1, 2})", "frozenset({3})", "frozenset({5})", "frozenset({7})"),
            ("frozenset({1.0, 2})", "frozenset({True, 2})", "frozenset([2, 1])")),
    Element("object", ("P(1)", "P(2)", "P(3)", "P(7)"), (), (*_V, *(added("P", name) for name in _SOME)), _ONE),
    Element("special", ("E(1)", "E(2)", "E(3)", "E(7)"), ("E(True)", "E(1.0)"),
            (*_V, *(replaced("E", name) for name in _SOME if name != "__getattr__")), _ALL),
    Element("slots", ("L(1)", "L(2)", "L(3)", "L(7)"), (), (*_V, added("L", "__eq__"), added("L", "__len__")),
            "class L:\n    __slots__ = ('v', '__weakref__')\n    def __init__(self, v): self.v = v"),
    Element("namedtuple", ("N(1, [2])", "N(3, [4])", "N(5, [6])", "N(7, [8])"), ("N(True, [2])",), changes(
        ("append inside", "e0.b.append(9)", "e0.b.pop()"),
    ), "N = collections.namedtuple('N', 'a b')"),
    Element("dataclass", ("D(1, [2])", "D(3, [4])", "D(5, [6])", "D(7, [8])"), ("D(True, [2])",), (*changes(
        ("field", "e0.a = 9", "e0.a = 1"), ("append inside", "e0.b.append(9)", "e0.b.pop()"),
        ("equal field", "e0.a = True", "e0.a = 1"),
    ), Change("eq replaced", "w = D.__eq__\nD.__eq__ = lambda s, o: True", "D.__eq__ = w")),
        "@dataclasses.dataclass(order=True, unsafe_hash=True)\nclass D:\n    a: int\n    b: list"),
    Element("enum member", ("C.A", "C.B", "C.D", "C.F"), (), changes(
        ("attribute", "C.A.label = 'q'", "C.A.label = 'l'"), ("value", "C.A._value_ = 9", "C.A._value_ = 1"),
    ), "class C(enum.Enum):\n    A = 1\n    B = 2\n    D = 3\n    F = 7\nC.A.label = 'l'"),
    Element("int enum", ("C.A", "C.B", "C.D", "C.F"), ("1", "True"), (),
            "class C(enum.IntEnum):\n    A = 1\n    B = 2\n    D = 3\n    F = 7"),
    Element("fraction", ("F(1, 2)", "F(3, 2)", "F(5, 2)", "F(7)"), ("0.5", "decimal.Decimal('0.5')"), (),
            "F = fractions.Fraction"),
    Element("decimal", ("F('1')", "F('2')", "F('2.5')", "F('7')"), ("F('1.0')", "1", "1.0"), (),
            "F = decimal.Decimal"),
    Element("date", ("F(2020, 1, 1)", "F(2021, 1, 1)", "F(2022, 1, 1)", "F(2027, 1, 1)"), (), (),
            "F = datetime.date"),
    Element("timedelta", ("F(1)", "F(2)", "F(3)", "F(7)"), ("F(0, 86400)",), (), "F = datetime.timedelta"),
    Element("complex", ("1j", "2j", "3j", "7j"), ("complex(-0.0, 1)",)),
    Element("range", ("range(0, 3, 2)", "range(2)", "range(3)", "range(7)"), ("range(0, 4, 2)",)),
    Element("slice", ("slice(0, 2)", "slice(1, 3)", "slice(2)", "slice(0, 1)"), ("slice(False, 2)",)),
    Element("numpy scalar", ("F(1)", "F(2)", "F(3)", "F(7)"), ("np.float64(1)", "1", "1.0"), changes(
        ("print options", "np.set_printoptions(legacy='1.25')", "np.set_printoptions(legacy=False)"),
    ), "F = np.float32"),
    Element("odd numpy scalar", ("F(3e38)", "F(0)", "F(3e38)", "F(-3e38)"), ("np.float64(3e38)",), changes(
        ("errors raise", "np.seterr(all='raise')", "np.seterr(all='warn')"),
        ("errors call", "np.seterrcall(lambda *q: time.lt_seen.append(1))\nnp.seterr(all='call')", "np.seterr(all='warn')"),
    ), "F = np.float32\ntime.lt_seen = []"),
    Element("datetime64", ("F(5, 'D')", "F(6, 'D')", "F(7, 'D')", "F(9, 'D')"), ("F(5, 's')",), (),
            "F = np.datetime64"),
    Element("numpy array", ("F([1, 2])", "F([3, 4])", "F([5, 6])", "F([7, 8])"), ("F([1.0, 2.0])",), changes(
        ("item inside", "e0[0] = 9", "e0[0] = 1"),
    ), "F = np.array"),
    Element("tensor", ("F(1.0)", "F(2.0)", "F(3.0)", "F(7.0)"), ("torch.tensor(1)", "F(1.0).double()"), changes(
        ("in place", "e0.add_(4)", "e0.sub_(4)"), ("data", "e0.data = F(9.0)", "e0.data = F(1.0)"),
        ("attribute", "e0.v = 3", "del e0.v"), ("requires_grad", "e0.requires_grad_()", "e0.requires_grad_(False)"),
    ), "F = torch.tensor"),
    Element("vector", ("F(2)", "F(2) * 2", "F(2) * 3", "F(3)"), ("F(2).double()", "F(1).expand(2)"), changes(
        ("in place", "e0.add_(4)", "e0.sub_(4)"), ("longer", "e0.resize_(3).fill_(2)", "e0.resize_(2).fill_(1)"),
    ), "F = torch.ones"),
    Element("function", ("lambda y=1: y", "lambda y=2: y", "lambda y=3: y", "lambda y=7: y"), (), changes(
        ("defaults", "e0.__defaults__ = (5,)", "e0.__defaults__ = (1,)"),
        ("code", "w = e0.__code__\ne0.__code__ = (lambda y=1: y + 1).__code__", "e0.__code__ = w"),
        ("attribute", "e0.v = 5", "del e0.v"), ("name", "e0.__qualname__ = 'longer_name'", "e0.__qualname__ = '<lambda>'"),
    )),
    Element("bound method", ("P(1).go", "P(2).go", "P(3).go", "P(7).go"), (), (*changes(
        ("v", "e0.__self__.v = 5", "e0.__self__.v = 1"),
        ("method of the class", "P.go = lambda self, *a: self.v + 1", "P.go = old"),
    ), added("P", "__eq__")), _ONE + "    def go(self, *a): return self.v\nold = P.go"),
    Element("class", ("A", "B", "G", "H"), (), changes(
        ("attribute", "A.v = 5", "A.v = 1"), ("name", "A.__name__ = A.__qualname__ = 'Longer'", "A.__name__ = A.__qualname__ = 'A'"),
        ("base", "A.__bases__ = (G,)", "A.__bases__ = (Z,)"),
        ("init", "A.__init__ = lambda s, *a: setattr(s, 'v', 9)", "del A.__init__"),
    ), "class Z: v = 0\nclass A(Z): v = 1\nclass B(Z): v = 2\nclass G(Z): v = 3\nclass H(Z): v = 7"),
    Element("exception", ("KeyError(1)", "KeyError(2)", "ValueError(3)", "KeyError(7)"), (), changes(
        ("args", "e0.args = (5,)", "e0.args = (1,)"), ("note", "e0.add_note('n')", "del e0.__notes__"),
        ("cause", "e0.__cause__ = ValueError(3)", "e0.__cause__ = None"),
    )),
    Element("exception class", ("KeyError", "IndexError", "TypeError", "ZeroDivisionError"), ("LookupError",)),
    Element("dtype", ("torch.float32", "torch.float64", "torch.int64", "torch.int32")),
    Element("device", ("F('cpu')", "F('meta')", "F('cpu')", "F('meta')"), ("F('cpu', 0)",), (), "F = torch.device"),
    Element("size", ("F([1, 2])", "F([3, 4])", "F([5])", "F([7])"), ("(1, 2)",), (), "F = torch.Size"),
    Element("none", ("None", "0", "''", "1"), ("()",)),
    Element("layer", ("F(3, 3)", "F(3, 3)", "F(3, 3)", "F(3, 2)"), (), changes(
        ("parameter", "e0.weight.data.mul_(2)", "e0.weight.data.div_(2)"),
        ("another parameter", "w = e0.weight\ne0.weight = e1.weight", "e0.weight = w"),
        ("hook", "w = e0.register_forward_hook(lambda m, i, o: o + 1)", "w.remove()"),
        ("training", "e0.eval()", "e0.train()"), ("attribute", "e0.v = 3", "del e0.v"),
        ("forward", "e0.forward = lambda x: x * 3", "del e0.forward"),
    ), "F = torch.nn.Linear"),
    Element("int subclass", ("Int(1)", "Int(2)", "Int(3)", "Int(7)"), ("1", "True"), (
        Change("index", "Int.__index__ = lambda s: 2", "del Int.__index__"),
        Change("add", "Int.__add__ = lambda s, o: 5", "del Int.__add__"),
        Change("radd", "Int.__radd__ = lambda s, o: 5", "del Int.__radd__"),
        Change("eq", "Int.__eq__ = lambda s, o: False", "del Int.__eq__"),
        Change("repr", "Int.__repr__ = lambda s: 'q'", "del Int.__repr__"),
        Change("attribute", "e0.v = 5", "del e0.v"), Change("bool", "Int.__bool__ = lambda s: False", "del Int.__bool__"),
        Change("lt", "Int.__lt__ = lambda s, o: False", "del Int.__lt__"),
        Change("float", "Int.__float__ = lambda s: 5.5", "del Int.__float__"),
    )),
    Element("str subclass", ("Str('a')", "Str('b')", "Str('c')", "Str('d')"), ("'a'",), (
        Change("str", "Str.__str__ = lambda s: 'qqq'", "del Str.__str__"),
        Change("format", "Str.__format__ = lambda s, f: 'qqq'", "del Str.__format__"),
        Change("len", "Str.__len__ = lambda s: 5", "del Str.__len__"),
        Change("eq", "Str.__eq__ = lambda s, o: False\nStr.__hash__ = str.__hash__", "del Str.__eq__, Str.__hash__"),
        Change("upper", "Str.upper = lambda s: 'qq'", "del Str.upper"),
        Change("iter", "Str.__iter__ = lambda s: iter('qqq')", "del Str.__iter__"),
    )),
)  # fmt: skip

# ---------------------------------------------------------------- containers
_SEQUENCE = changes(
    ("clear", "s.clear()", "s.extend([e0, e1, e2])"), ("append", "s.append(e3)", "s.pop()"),
    ("reorder", "s.reverse()", "s.reverse()"), ("swap", "s[0], s[1] = s[1], s[0]", "s[0], s[1] = s[1], s[0]"),
    ("make the same", "s[1] = s[0]", "s[1] = e1"), ("remove", "del s[1]", "s.insert(1, e1)"),
    ("replaced by equal", "s[0] = copy.copy(e0)", "s[0] = e0"),
)  # fmt: skip
_MAPPING = changes(
    ("clear", "b.clear()", "b.update(a=e0, b=e1, c=e2)"), ("new key", "b['d'] = e3", "del b['d']"),
    ("reorder", "b['a'] = b.pop('a')", "b['b'] = b.pop('b')\nb['c'] = b.pop('c')"),
    ("swap", "b['a'], b['b'] = b['b'], b['a']", "b['a'], b['b'] = b['b'], b['a']"),
    ("make the same", "b['b'] = b['a']", "b['b'] = e1"), ("remove", "w = b.pop('c')", "b['c'] = w"),
    ("other key", "b['q'] = b.pop('c')", "b['c'] = b.pop('q')"),
)  # fmt: skip
_SET = changes(
    ("clear", "b.clear()", "b.update([e0, e1, e2])"), ("add", "b.add(e3)", "b.discard(e3)"),
    ("remove", "b.discard(e1)", "b.add(e1)"), ("other", "b.discard(e1)\nb.add(e3)", "b.discard(e3)\nb.add(e1)"),
)  # fmt: skip
_FIELDS = changes(
    ("swap", "s.a, s.b = s.b, s.a", "s.a, s.b = s.b, s.a"), ("make the same", "s.b = s.a", "s.b = e1"),
    ("new attribute", "s.d = e3", "del s.d"), ("remove", "del s.c", "s.c = e2"),
)  # fmt: skip
_ITEMS = "{'a': {0}, 'b': {1}, 'c': {2}}"


def _on(
    made: str, base: str = "", put: str = "b['a'] = {0}", rows: tuple[Change, ...] = _MAPPING
) -> tuple[str, str, tuple[Change, ...], str]:
    """A source over a base `b` that changes below it."""
    return made, put, rows, f"b = {base or _ITEMS}"


CONTAINERS = (
    Container("one", "{0}"),
    Container("list", "[{0}, {1}, {2}]", "s[0] = {0}", _SEQUENCE),
    Container("tuple", "({0}, {1}, {2})"),
    Container("nested", "[[{0}, {1}], {2}]", "s[0][0] = {0}"),
    Container("dict", "b", "b['a'] = {0}", _MAPPING, f"b = {_ITEMS}"),
    Container("dict of keys", "b", "b.pop(e0)\nb[{0}] = 1", (), "b = {{0}: 1, {1}: 2, {2}: 3}"),
    Container("OrderedDict", "b", "b['a'] = {0}", (*_MAPPING, Change("move", "b.move_to_end('a')", "b.move_to_end('a', False)")), f"b = collections.OrderedDict({_ITEMS})"),
    Container("defaultdict", "b", "b['a'] = {0}", (*_MAPPING, Change("factory", "b.default_factory = list", "b.default_factory = None")), f"b = collections.defaultdict(None, {_ITEMS})"),
    Container("ChainMap", *_on("collections.ChainMap({}, b)")),
    Container("UserDict", "b", "b['a'] = {0}", _MAPPING, f"b = collections.UserDict({_ITEMS})"),
    Container("UserList", "collections.UserList([{0}, {1}, {2}])", "s[0] = {0}", _SEQUENCE),
    Container("dict subclass", "b", "b['a'] = {0}", (
        *_MAPPING, Change("missing", "Sub.__missing__ = lambda s, k: 4", "del Sub.__missing__"),
        Change("getitem", "Sub.__getitem__ = lambda s, k: 4", "del Sub.__getitem__"),
        Change("iter", "Sub.__iter__ = lambda s: iter('aa')", "del Sub.__iter__"),
        Change("len", "Sub.__len__ = lambda s: 5", "del Sub.__len__"),
        Change("items", "Sub.items = lambda s: [('a', 4)]", "del Sub.items"),
        Change("keys", "Sub.keys = lambda s: ['a']", "del Sub.keys"),
        Change("get", "Sub.get = lambda s, k, d=None: 4", "del Sub.get"),
        Change("own items", "s.items = lambda: [('a', 4)]", "del s.items"),
        Change("own keys", "s.keys = lambda: ['a']", "del s.keys"),
        Change("own get", "s.get = lambda k, d=None: 4", "del s.get"),
        Change("contains", "Sub.__contains__ = lambda s, k: False", "del Sub.__contains__"),
        Change("attribute", "s.v = 3", "del s.v"),
    ), f"class Sub(dict): pass\nb = Sub({_ITEMS})"),
    Container("list subclass", "Sub([{0}, {1}, {2}])", "s[0] = {0}", (
        *_SEQUENCE, Change("len", "Sub.__len__ = lambda s: 5", "del Sub.__len__"),
        Change("getitem", "Sub.__getitem__ = lambda s, i: 4", "del Sub.__getitem__"),
        Change("iter", "Sub.__iter__ = lambda s: iter([4])", "del Sub.__iter__"),
        Change("contains", "Sub.__contains__ = lambda s, k: False", "del Sub.__contains__"),
        Change("eq", "Sub.__eq__ = lambda s, k: False", "del Sub.__eq__"),
        Change("bool", "Sub.__bool__ = lambda s: False", "del Sub.__bool__"),
        Change("reversed", "Sub.__reversed__ = lambda s: iter([4])", "del Sub.__reversed__"),
    ), "class Sub(list): pass"),
    Container("tuple subclass", "Sub([{0}, {1}, {2}])", "", (
        Change("len", "Sub.__len__ = lambda s: 5", "del Sub.__len__"),
        Change("getitem", "Sub.__getitem__ = lambda s, i: 4", "del Sub.__getitem__"),
        Change("iter", "Sub.__iter__ = lambda s: iter([4])", "del Sub.__iter__"),
        Change("attribute", "s.v = 3", "del s.v"),
    ), "class Sub(tuple): pass"),
    Container("abc sequence", "Sub([{0}, {1}, {2}])", "s.l[0] = {0}", changes(
        ("append", "s.l.append(e3)", "s.l.pop()"), ("list", "s.l = [e3]", "s.l = [e0, e1, e2]"),
    ), "class Sub(collections.abc.Sequence):\n    def __init__(self, l): self.l = l\n"
       "    def __len__(self): return len(self.l)\n    def __getitem__(self, i): return self.l[i]"),
    Container("abc mapping", "Sub(b)", "b['a'] = {0}", _MAPPING,
              f"b = {_ITEMS}\nclass Sub(collections.abc.Mapping):\n    def __init__(self, d): self.d = d\n"
              "    def __len__(self): return len(self.d)\n    def __getitem__(self, i): return self.d[i]\n"
              "    def __iter__(self): return iter(self.d)"),
    Container("old sequence", "Sub([{0}, {1}, {2}])", "s.l[0] = {0}", changes(
        ("append", "s.l.append(e3)", "s.l.pop()"), ("getitem", "Sub.__getitem__ = lambda s, i: [4][i]", "Sub.__getitem__ = old"),
    ), "class Sub:\n    def __init__(self, l): self.l = l\n    def __getitem__(self, i): return self.l[i]\nold = Sub.__getitem__"),
    Container("keys", *_on("b.keys()")), Container("values", *_on("b.values()")), Container("items", *_on("b.items()")),
    Container("keys of elements", "b.keys()", "b.pop(e0)\nb[{0}] = 1", (), "b = {{0}: 1, {1}: 2, {2}: 3}"),
    Container("OrderedDict values", *_on("b.values()", f"collections.OrderedDict({_ITEMS})")),
    Container("mappingproxy", *_on("types.MappingProxyType(b)")),
    Container("vars of a class", "vars(K)", "K.a = {0}", changes(("new", "K.d = e3", "del K.d")), "class K: a, b, c = {0}, {1}, {2}"),
    Container("vars of an object", "vars(b)", "b.a = {0}", changes(("new", "b.d = e3", "del b.d")), "b = NS(a={0}, b={1}, c={2})"),
    Container("deque", "collections.deque([{0}, {1}, {2}])", "s[0] = {0}", (*_SEQUENCE, Change("rotate", "s.rotate()", "s.rotate(-1)"))),
    Container("set", "b", "b.discard(e0)\nb.add({0})", _SET, "b = {{0}, {1}, {2}}"),
    Container("set subclass", "b", "b.discard(e0)\nb.add({0})", (*_SET, Change("contains", "Sub.__contains__ = lambda s, k: False", "del Sub.__contains__"), Change("iter", "Sub.__iter__ = lambda s: iter([4])", "del Sub.__iter__")), "class Sub(set): pass\nb = Sub([{0}, {1}, {2}])"),
    Container("frozenset", "frozenset([{0}, {1}, {2}])"),
    Container("Counter", "b", "b['a'] = {0}", _MAPPING, f"b = collections.Counter({_ITEMS})"),
    Container("Counter of", "b", "b[{0}] += 1", (), "b = collections.Counter([{0}, {1}, {2}])"),
    Container("SimpleNamespace", "NS(a={0}, b={1}, c={2})", "s.a = {0}", _FIELDS),
    Container("plain object", "Sub({0}, {1}, {2})", "s.a = {0}", (*_FIELDS, added("Sub", "__len__"), added("Sub", "__bool__"), Change("class attribute", "Sub.z = 5", "del Sub.z")),
              "class Sub:\n    z = 1\n    def __init__(self, a, b, c): self.a, self.b, self.c = a, b, c"),
    Container("slots object", "Sub({0}, {1}, {2})", "s.a = {0}", _FIELDS[:2], "class Sub:\n    __slots__ = ('a', 'b', 'c')\n    def __init__(self, a, b, c): self.a, self.b, self.c = a, b, c"),
    Container("dataclass", "Sub({0}, {1}, {2})", "s.a = {0}", _FIELDS, "@dataclasses.dataclass\nclass Sub:\n    a: object\n    b: object\n    c: object"),
    Container("frozen dataclass", "Sub({0}, {1}, {2})", "", (), "@dataclasses.dataclass(frozen=True)\nclass Sub:\n    a: object\n    b: object\n    c: object"),
    Container("namedtuple", "Sub({0}, {1}, {2})", "", (Change("field", "Sub.a = 5", "Sub.a = old"),), "Sub = collections.namedtuple('Sub', 'a b c')\nold = Sub.a"),
    Container("AttrDict", "b", "b['a'] = {0}", _MAPPING, f"class Sub(dict):\n    __getattr__ = dict.__getitem__\n    __setattr__ = dict.__setitem__\nb = Sub({_ITEMS})"),
    Container("module", "b", "b.a = {0}", _FIELDS, "b = types.ModuleType('b')\nb.a, b.b, b.c = {0}, {1}, {2}"),
    Container("class", "Sub", "s.a = {0}", _FIELDS, "class Sub:\n    a, b, c = {0}, {1}, {2}"),
    Container("ParameterList", "torch.nn.ParameterList([torch.nn.Parameter(q * torch.ones(2)) for q in ({0}, {1}, {2})])", "", changes(("append", "s.append(torch.ones(2))", ""),)),
    Container("nn.Module", "b", "b.a = {0}", _FIELDS, "b = torch.nn.Module()\nb.a, b.b, b.c = {0}, {1}, {2}"),
    Container("ModuleList", "torch.nn.ModuleList([{0}, {1}, {2}])", "s[0] = {0}", changes(("append", "s.append(e3)", "s.pop(-1)"), ("swap", "s[0], s[1] = e1, e0", "s[0], s[1] = e0, e1"))),
    Container("ModuleDict", "torch.nn.ModuleDict(dict(a={0}, b={1}, c={2}))", "s['a'] = {0}", changes(("new", "s['d'] = e3", "del s['d']"), ("swap", "s['a'], s['b'] = e1, e0", "s['a'], s['b'] = e0, e1"))),
    Container("cycle", "itertools.cycle([{0}, {1}, {2}])"),
    Container("repeat", "itertools.repeat({0})"),
    Container("iterator", "iter(b)", "b[0] = {0}", _SEQUENCE[1:2], "b = [{0}, {1}, {2}] * 9"),
    Container("reversed", "reversed(b)", "b[-1] = {0}", _SEQUENCE[1:2], "b = [{0}, {1}, {2}] * 9"),
    Container("zip", "zip(b, b)", "b[0] = {0}", (), "b = [{0}, {1}, {2}] * 9"),
    Container("map", "map(lambda q: q, b)", "b[-1] = {0}", (), "b = [{0}, {1}, {2}] * 9"),
    Container("filter", "filter(lambda q: True, b)", "b[-1] = {0}", (), "b = [{0}, {1}, {2}] * 9"),
    Container("chain", "itertools.chain(b, b)", "b[-1] = {0}", (), "b = [{0}, {1}, {2}] * 9"),
    Container("islice", "itertools.islice(b, 20)", "b[-1] = {0}", (), "b = [{0}, {1}, {2}] * 9"),
    Container("enumerate", "enumerate(b)", "b[-1] = {0}", (), "b = [{0}, {1}, {2}] * 9"),
    Container("generator", "(q for q in b)", "b[-1] = {0}", (), "b = [{0}, {1}, {2}] * 9"),
    Container("tee", "itertools.tee(b)[0]", "b[-1] = {0}", (), "b = [{0}, {1}, {2}] * 9"),
    Container("iterable object", "Sub(b)", "b[0] = {0}", changes(("append", "b.append(e3)", "b.pop()"), ("clear", "b.clear()", "b.extend([e0, e1, e2])")),
              "b = [{0}, {1}, {2}]\nclass Sub:\n    def __init__(self, l): self.l = l\n    def __iter__(self): return iter(self.l)"),
    Container("generator method", "Sub(b)", "b[0] = {0}", changes(("append", "b.append(e3)", "b.pop()"), ("clear", "b.clear()", "b.extend([e0, e1, e2])")),
              "b = [{0}, {1}, {2}]\nclass Sub:\n    def __init__(self, l): self.l = l\n    def __iter__(self): yield from self.l"),
    Container("weakref", "weakref.ref(b)", "b.a = {0}", (Change("gone", "del b\nb = None"),), "class Sub: pass\nb = Sub()\nb.a, b.b, b.c = {0}, {1}, {2}"),
    Container("weakref proxy", "weakref.proxy(b)", "b.a = {0}", (), "class Sub: pass\nb = Sub()\nb.a, b.b, b.c = {0}, {1}, {2}"),
    Container("WeakValueDictionary", "b", "b['a'] = {0}", _MAPPING, f"b = weakref.WeakValueDictionary({_ITEMS})"),
    Container("WeakSet", "b", "b.discard(e0)\nb.add({0})", _SET, "b = weakref.WeakSet([{0}, {1}, {2}])"),
    Container("contextvar", "contextvars.ContextVar('v', default=[{0}, {1}])", "s.set([{0}])", changes(("set", "w = s.set([e3])", "s.reset(w)"),)),
    Container("threading.local", "b", "b.a = {0}", _FIELDS, "b = threading.local()\nb.a, b.b, b.c = {0}, {1}, {2}"),
    Container("partial", "functools.partial(lambda *a, **k: len(a) + len(k), {0}, {1}, k={2})", "", changes(("keywords", "s.keywords['k'] = e3", "s.keywords['k'] = e2"), ("new keyword", "s.keywords['l'] = e3", "del s.keywords['l']"))),
    Container("partial over", "functools.partial(lambda *a, **k: a[0], {0}, {1}, k={2})", "", (Change("state", "s.__setstate__((s.func, (e3,), {}, {}))", "s.__setstate__((s.func, (e0, e1), {'k': e2}, {}))"),)),
    Container("closure", "(lambda q: lambda *a: q)({0})", "s.__closure__[0].cell_contents = {0}", ()),
    Container("defaults", "lambda *a, d={0}: d", "s.__kwdefaults__ = {'d': {0}}", changes(("code", "w = s.__code__\ns.__code__ = (lambda *a, d=0: [d]).__code__", "s.__code__ = w"),)),
    Container("function with positional default", "eval('lambda d=e0: d')", "s.__defaults__ = ({0},)", changes(("same code", "t = types.FunctionType(s.__code__, globals(), 'f', (e3,))\n<rebind>", "t = s\n<rebind>"), ("other globals", "t = types.FunctionType(s.__code__, {'e0': e3}, 'f', (e0,))\n<rebind>", "t = s\n<rebind>"))),
    Container("function of a global", "eval('lambda *a: GLOBAL')", "GLOBAL = {0}", changes(("other globals", "t = types.FunctionType(s.__code__, {'GLOBAL': e3})\n<rebind>", "t = s\n<rebind>"),), "GLOBAL = {0}"),
    Container("method", "Sub({0}).go", "s.__self__.v = {0}", changes(("other object", "t = Sub(e3).go\n<rebind>", "t = s\n<rebind>"), ("other method", "t = s.__self__.come\n<rebind>", "t = s\n<rebind>"), ("class", "Sub.go = Sub.come", "Sub.go = old")),
              "class Sub:\n    def __init__(self, v): self.v = v\n    def go(self, *a): return self.v\n    def come(self, *a): return [self.v]\nold = Sub.go"),
    Container("classmethod", "Sub.go", "Sub.v = {0}", changes(("subclass", "t = Sub2.go\n<rebind>", "t = s\n<rebind>"),),
              "class Sub:\n    v = {0}\n    @classmethod\n    def go(cls, *a): return cls.v\nclass Sub2(Sub): v = {1}"),
    Container("method of C", "b.count", "b[0] = {0}", changes(("other object", "t = [e0, e0, 1, 1].count\n<rebind>", "t = s\n<rebind>"), ("append", "b.append(e3)", "b.pop()")), "b = [{0}, {1}, {2}]"),
    Container("get of a dict", *_on("b.get")),
    Container("getitem of a dict", *_on("b.__getitem__")),
    Container("next of an iterator", "b.__next__", "", (), "b = iter([{0}, {1}, {2}] * 9)"),
    Container("property holder", "Sub()", "Sub.q = {0}", changes(("property", "Sub.a = property(lambda s: 4)", "Sub.a = old"), ("plain", "Sub.a = 4", "Sub.a = old")), "class Sub:\n    q = {0}\n    a = property(lambda s: s.q)\nold = Sub.a"),
    Container("cached property", "Sub()", "s.__dict__['a'] = {0}", changes(("forget", "s.__dict__.pop('a', None)\nSub.q = e3", "s.__dict__.pop('a', None)\nSub.q = e0"),), "class Sub:\n    q = {0}\n    @functools.cached_property\n    def a(self): return self.q"),
    Container("lru_cache", "b", "GLOBAL = {0}", changes(("clear", "b.cache_clear()\nGLOBAL = e3", "b.cache_clear()\nGLOBAL = e0"),), "GLOBAL = {0}\n@functools.lru_cache\ndef b(*a): return GLOBAL"),
    Container("full lru_cache", "b", "GLOBAL = {0}", changes(("crowd", "b(7)\nGLOBAL = e3\nb(8)", "b.cache_clear()\nGLOBAL = e0"),), "GLOBAL = {0}\n@functools.lru_cache(2)\ndef b(*a): return GLOBAL"),
    Container("pytree node", "Sub({0}, {1})", "s.a = {0}", changes(("flatten", "s.c = e3", "del s.c")),
              "class Sub:\n    c = None\n    def __init__(self, a, b): self.a, self.b = a, b\n"
              "pytree.register_pytree_node(Sub, lambda q: ([q.a, q.b] + ([q.c] if q.c is not None else []), None), lambda l, c: Sub(*l[:2]))"),
    Container("pytree dataclass", "Sub({0}, {1})", "s.a = {0}", (), "@dataclasses.dataclass\nclass Sub:\n    a: object\n    b: object\npytree.register_dataclass(Sub)"),
    Container("object array", "np.array([{0}, None], dtype=object)", "s[0] = {0}"),
    Container("exception group of", "ExceptionGroup('g', [ValueError({0}), KeyError({1})])", "s.exceptions[0].args = ({0},)"),
    Container("named", "Sub", "Sub.a = {0}", (), "class Meta(type):\n    def __len__(cls): return 3\n    def __iter__(cls): return iter([cls.a])\n    def __getitem__(cls, i): return cls.a\nclass Sub(metaclass=Meta): a = {0}"),
)  # fmt: skip

# ---------------------------------------------------------------- single objects
_DUNDERS = [
    name for name in SPECIAL if name not in ("__getattribute__", "__torch_function__", "__set_name__")
]


def _single(name: str, setup: str, other: str, *rows: tuple[str, ...]) -> Source:
    return Source(name, setup, other, changes(*rows))


def _special() -> Iterator[Source]:
    """A class that has all special methods, or one of them, or gets one."""
    everything = _ALL + "\ns = e0 = E(1)\n"
    rows = tuple(replaced("E", name) for name in SPECIAL if name in _ALL and name != "__getattribute__")
    yield Source("special methods", everything, "E(5)", (*_V, *rows))
    inherited = everything.replace("s = e0 = E(1)", "class S(E): pass\ns = e0 = S(1)")
    yield Source(
        "inherited special methods",
        inherited,
        "S(5)",
        (
            *_V,
            *rows,
            *(
                Change(f"S.{name} over E's", f"S.{name} = {SPECIAL[name][1]}", f"del S.{name}")
                for name in SPECIAL
                if name in _ALL
            ),
        ),
    )
    for name in _DUNDERS:
        old, _new = SPECIAL[name]
        one = f"{_ONE}P.{name} = {old}\ns = e0 = P(1)"
        yield Source(
            f"with {name}",
            one,
            "P(5)",
            (
                *_V,
                replaced("P", name),
                Change("deleted", f"del P.{name}", f"P.{name} = {old}"),
                Change("on the instance", f"s.{name} = lambda *a: 3", f"del s.{name}"),
            ),
        )
        yield Source(f"without {name}", f"{_ONE}s = e0 = P(1)", "P(5)", (added("P", name),))


# Special methods that are callables of C with state of their own, `b`.
_OF_C = {
    "__len__": "b.__len__", "__iter__": "b.__iter__", "__contains__": "b.__contains__", "__getitem__": "b.__getitem__",
    "__call__": "b.count", "__init__": "functools.partial(b.extend, [1])", "__new__": "functools.partial(tuple, b)",
    "__class_getitem__": "b.__getitem__", "__bool__": "functools.partial(bool, b)", "__eq__": "b.__contains__",
    "__hash__": "b.__len__", "__add__": "b.__add__", "__lt__": "b.__contains__", "__index__": "b.__len__",
    "__str__": "functools.partial(str, b)", "__repr__": "functools.partial(repr, b)", "__reversed__": "b.__reversed__",
    "__enter__": "b.__len__", "__getattr__": "functools.partial(b.append)", "__round__": "b.__len__",
    "__format__": "functools.partial(''.join, map(str, b))", "__init_subclass__": "functools.partial(b.append, 1)",
    "__set_name__": "dict(enumerate(b)).setdefault", "__length_hint__": "b.__len__", "__float__": "functools.partial(sum, b, 0.5)",
}  # fmt: skip


def _of_c() -> Iterator[Source]:
    rows = changes(("state", "b.append(2)", "b.pop()"), ("item", "b[0] = 4", "b[0] = 3"))
    for name, target in _OF_C.items():
        for kind, wrap in (("", "{}"), (" behind a static method", "staticmethod({})")):
            made = (
                f"class K:\n    def __exit__(self, *a): pass\nb = [3, 1]\nK.{name} = {wrap.format(target)}\n"
            )
            yield Source(f"{name} of C{kind}", f"{made}s = object.__new__(K)", "[5]", rows)
            yield Source(f"class with {name} of C{kind}", f"{made}s = K", "list", rows)


_TORCH_CALLABLES = {
    "no_grad": ("torch.no_grad()(lambda y: y * 2 + w0)", "torch.no_grad()(lambda y: y * 3 + w0)"),
    "grad mode": ("torch.no_grad()(plus)", "torch.enable_grad()(plus)"),
    "inference": ("torch.inference_mode()(plus)", "torch.no_grad()(plus)"),
    "vmap": ("torch.vmap(torch.sin)", "torch.vmap(torch.cos)"),
    "vmap of a function": ("torch.vmap(plus)", "torch.vmap(minus)"),
    "grad": ("torch.func.grad(lambda y: (y * y).sum())", "torch.func.grad(lambda y: (y * 2).sum())"),
    "vjp": ("lambda y: torch.func.vjp(plus, y)[0]", "lambda y: torch.func.vjp(minus, y)[0]"),
    "autocast": ("torch.autocast('cpu', torch.bfloat16)(outer)", "torch.autocast('cpu', torch.float16)(outer)"),
    "script_if_tracing": ("torch.jit.script_if_tracing(plus)", "torch.jit.script_if_tracing(minus)"),
    "operator packet": ("torch.ops.aten.sin", "torch.ops.aten.cos"),
    "operator overload": ("torch.ops.aten.sin.default", "torch.ops.aten.cos.default"),
    "builtin": ("torch.sin", "torch.cos"), "functional": ("F.relu", "F.softplus"),
    "method": ("torch.Tensor.sin", "torch.Tensor.cos"), "layer": ("torch.nn.ReLU()", "torch.nn.Softplus()"),
    "checkpoint": ("functools.partial(torch.utils.checkpoint.checkpoint, plus, use_reentrant=False)",
                   "functools.partial(torch.utils.checkpoint.checkpoint, minus, use_reentrant=False)"),
    "partial": ("functools.partial(torch.add, other=1)", "functools.partial(torch.add, other=2)"),
    "operator function": ("operator.neg", "operator.abs"), "methodcaller": ("operator.methodcaller('sin')", "operator.methodcaller('cos')"),
    "attrgetter": ("operator.attrgetter('real')", "operator.attrgetter('T')"),
    "itemgetter": ("operator.itemgetter(0)", "operator.itemgetter(1)"),
    "singledispatch": ("functools.singledispatch(lambda y: y + 1)", "functools.singledispatch(lambda y: y + 2)"),
    "wraps": ("functools.wraps(plus)(lambda y: y * 3)", "functools.wraps(plus)(lambda y: y * 4)"),
    "lru_cache": ("functools.lru_cache(plus)", "functools.lru_cache(minus)"),
    "autograd function": ("Twice.apply", "Thrice.apply"), "opaque": ("torch._dynamo.disable(plus)", "torch._dynamo.disable(minus)"),
    "deprecated": ("torch._jit_internal.boolean_dispatch('r', 1, False, lambda y, r=False: y, lambda y, r=False: y + 1, 'a', 'b')",
                   "torch._jit_internal.boolean_dispatch('r', 1, False, lambda y, r=False: y, lambda y, r=False: y + 2, 'a', 'b')"),
    "staticmethod object": ("staticmethod(plus)", "staticmethod(minus)"), "cmp_to_key": ("lambda y: y * functools.cmp_to_key(lambda a, b: a - b)(3).obj", "lambda y: y * functools.cmp_to_key(lambda a, b: a - b)(4).obj"),
    "sequential": ("torch.nn.Sequential(torch.nn.ReLU())", "torch.nn.Sequential(torch.nn.Tanh())"),
    "compose": ("(lambda f: lambda y: f(f(y)))(plus)", "(lambda f: lambda y: f(f(y)))(minus)"),
    "parametrized": ("functools.partial(F.linear, weight=torch.ones(2, 3))", "functools.partial(F.linear, weight=torch.ones(2, 3) * 2)"),
}  # fmt: skip
_CALLABLE = (
    "w0 = 1\ndef plus(y): return y + 1\ndef minus(y): return y - 1\ndef outer(y): return torch.outer(y, y) @ torch.ones(3, 2)\n"
    "class Twice(torch.autograd.Function):\n    @staticmethod\n    def forward(c, y): return y * 2\n    @staticmethod\n    def backward(c, g): return g * 2\n"
    "class Thrice(Twice):\n    @staticmethod\n    def forward(c, y): return y * 3\n"
)
_PLUS = changes(
    ("defaults", "plus.__defaults__ = (1,)", "plus.__defaults__ = None"),
    ("code", "w = plus.__code__\nplus.__code__ = minus.__code__", "plus.__code__ = w"),
    ("global", "w0 = 5", "w0 = 1"), ("forward", "Twice.forward = Thrice.forward", "Twice.forward = staticmethod(lambda c, y: y * 2)"),
)  # fmt: skip


_NAMES = (
    ("name", "w = s.__name__\ns.__name__ = 'q'", "s.__name__ = w"),
    ("text", "w = s.__doc__\ns.__doc__ = 'q'", "s.__doc__ = w"),
    ("abstract", "s.__isabstractmethod__ = True", "del s.__isabstractmethod__"),
)


def _callables() -> Iterator[Source]:
    for name, (one, another) in _TORCH_CALLABLES.items():
        yield Source(
            f"callable: {name}",
            f"{_CALLABLE}s = {one}",
            another,
            (*_PLUS, *changes(("attribute", "s.v = 3", "del s.v"), *_NAMES)),
        )


SINGLES = (
    _single("array.array", "s = array.array('d', [1, 2, 3])", "array.array('d', [4, 5])", ("item", "s[0] = 9", "s[0] = 1"), ("append", "s.append(4)", "s.pop()")),
    _single("bytearray", "s = bytearray(b'abc')", "bytearray(b'de')", ("item", "s[0] = 9", "s[0] = 97"), ("append", "s.append(4)", "s.pop()")),
    _single("memoryview", "b = bytearray(b'abc')\ns = memoryview(b)", "memoryview(b'de')", ("item", "b[0] = 9", "b[0] = 97")),
    _single("numpy array", "s = np.array([1.0, 2.0, 3.0])", "np.array([4.0])", ("item", "s[0] = 9", "s[0] = 1"), ("sign", "s[0] = -0.0", "s[0] = 0.0"), ("shape", "s.shape = (1, 3)", "s.shape = (3,)")),
    _single("csv.reader", "s = csv.reader(io.StringIO('1,2\\n' * 30))", "csv.reader(io.StringIO('3\\n'))"),
    _single("struct.iter_unpack", "s = struct.iter_unpack('f', struct.pack('9f', *range(9)))", "struct.iter_unpack('f', b'')"),
    _single("array iterator", "s = iter(array.array('d', range(9)))", "iter(array.array('d', []))"),
    _single("count", "s = itertools.count(1)", "itertools.count(5)"),
    _single("count subclass", "class Sub(itertools.count): pass\ns = Sub(1)", "Sub(5)"),
    _single("accumulate", "s = itertools.accumulate(itertools.repeat(2))", "itertools.accumulate([1])"),
    _single("sqlite cursor", "c = sqlite3.connect(':memory:')\ns = c.execute('values (1), (2), (3), (4), (5), (6), (7)')", "c.execute('values (9)')"),
    _single("text file", "s = io.StringIO('a\\nb\\nc\\n' * 9)", "io.StringIO('z')", ("seek", "s.seek(0)"), ("write", "s.write('q')")),
    _single("scandir", "s = os.scandir('/')", "os.scandir('/')"),
    _single("re.Match", "s = re.match('(a)(b)?', 'ab')", "re.match('(a)(b)?', 'ac')"),
    _single("re.Pattern", "s = re.compile('a+')", "re.compile('b+')"),
    _single("re.finditer", "s = re.finditer('a', 'a' * 30)", "re.finditer('b', 'bb')"),
    _single("random.Random", "s = random.Random(3)", "random.Random(4)", ("seed", "s.seed(5)"), ("draw", "s.random()")),
    _single("numpy generator", "s = np.random.default_rng(3)", "np.random.default_rng(4)", ("draw", "s.random()")),
    _single("torch.Generator", "s = torch.Generator().manual_seed(3)", "torch.Generator().manual_seed(4)", ("seed", "s.manual_seed(5)"), ("draw", "torch.rand(3, generator=s)")),
    _single("torch.Size", "s = torch.Size([2, 3])", "torch.Size([3, 2])"),
    _single("ctypes array", "s = (ctypes.c_int * 3)(1, 2, 3)", "(ctypes.c_int * 2)(4, 5)", ("item", "s[0] = 9", "s[0] = 1")),
    _single("ctypes value", "s = ctypes.c_double(1.5)", "ctypes.c_double(2.5)", ("value", "s.value = 9", "s.value = 1.5")),
    _single("environment", "s = os.environ\ns['LT_X'] = '1'", "{'LT_X': '3'}", ("variable", "s['LT_X'] = '22'", "s['LT_X'] = '1'"), ("gone", "del s['LT_X']", "s['LT_X'] = '1'")),
    _single("tree spec", "s = pytree.tree_flatten({'a': 0, 'b': 0})[1]", "pytree.tree_flatten([0, 0])[1]"),
    _single("grad scaler", "s = torch.amp.GradScaler('cpu', enabled=False)", "torch.amp.GradScaler('cpu', init_scale=4.0)", ("enable", "s._enabled = True", "s._enabled = False")),
    _single("optimizer", "w0 = torch.nn.Parameter(torch.ones(3))\ns = torch.optim.SGD([w0], lr=0.1)", "torch.optim.SGD([w0], lr=0.2)", ("lr", "s.param_groups[0]['lr'] = 0.5", "s.param_groups[0]['lr'] = 0.1")),
    _single("string formatter", "s = string.Template('$a b')", "string.Template('$a c')", ("template", "s.template = '$a qq'", "s.template = '$a b'")),
    _single("path", "s = pathlib.PurePosixPath('a/b')", "pathlib.PurePosixPath('a/b/c')"),
    _single("uuid", "s = uuid.UUID(int=5)", "uuid.UUID(int=6)"),
    _single("ip", "s = ipaddress.ip_address(5)", "ipaddress.ip_address(6)"),
    _single("queue", "s = queue.SimpleQueue()\n[s.put(q) for q in range(99)]", "s", ("put", "s.put(9)")),
    _single("lock", "s = threading.RLock()", "threading.RLock()", ("acquire", "s.acquire()", "s.release()")),
    _single("event", "s = threading.Event()", "threading.Event()", ("set", "s.set()", "s.clear()")),
    _single("decimal context", "s = decimal.getcontext()", "decimal.Context(prec=3)", ("prec", "s.prec = 3", "s.prec = 28")),
    _single("logger", "import logging\ns = logging.Logger('lt')", "logging.Logger('lt.other', 20)", ("level", "s.level = 10", "s.level = 0")),
    _single("function", "def s(y=1): return y\ne0 = types.FunctionType(s.__code__, s.__globals__, 'q')\ne0.__doc__ = 'q'", "e0", ("attribute", "s.v = 3", "del s.v"), *_NAMES),
    _single("bound method", "class Sub:\n    def m(self, y=1): return y\nb = Sub()\ns = b.m\nold = Sub.m", "Sub().m", ("attribute", "old.v = 3", "del old.v"), ("name", "old.__name__ = 'q'", "old.__name__ = 'm'"), ("text", "old.__doc__ = 'q'", "old.__doc__ = None"), ("default", "old.__defaults__ = (2,)", "old.__defaults__ = (1,)")),
    _single("method of a base", "class Base:\n    def m(self, y=1): return y\nclass Sub(Base):\n    @property\n    def s(self): return super().m\ns = Sub().s\nold = Base.m", "Base().m", ("attribute", "old.v = 3", "del old.v"), ("name", "old.__name__ = 'q'", "old.__name__ = 'm'")),
    _single("union type", "s = int | str", "int | float"), _single("generic alias", "s = list[int]", "list[str]"),
    _single("code", "s = (lambda y: y).__code__", "(lambda y: y + 1).__code__"),
    _single("signature", "s = inspect.signature(lambda a, b=1: 0)", "inspect.signature(lambda a: 0)"),
        _single(
        "globals of a module",
        "b = types.ModuleType('b')\nb.GLOBAL, b.np, b.torch = 1, np, torch\ns = vars(b)",
        "{'GLOBAL': 5}",
        ("global", "b.GLOBAL = 9", "b.GLOBAL = 1"),
        ("new", "b.other = 9", "del b.other"),
    ),
    _single("module torch attribute", "s = torch\ntorch.lt_attack = 1", "math", ("set", "torch.lt_attack = 9", "torch.lt_attack = 1")),
    _single("module math", "s = math", "cmath", ("function", "w = math.floor\nmath.floor = math.ceil", "math.floor = w")),
    _single("tensor", "s = torch.tensor([1.0, 2.0, 3.0])", "torch.tensor([4.0, 5.0, 6.0])", ("in place", "s.add_(1)", "s.sub_(1)"), ("data", "s.data = torch.ones(3) * 7", "s.data = torch.tensor([1.0, 2.0, 3.0])"), ("attribute", "s.v = 5", "del s.v"), ("requires_grad", "s.requires_grad_()", "s.requires_grad_(False)"), ("grad", "s.grad = torch.ones(3)", "s.grad = None"), ("len", "w = torch.Tensor.__len__\ntorch.Tensor.__len__ = lambda s: 7", "torch.Tensor.__len__ = w"), ("eq", "w = torch.Tensor.__eq__\ntorch.Tensor.__eq__ = lambda s, o: 7", "torch.Tensor.__eq__ = w"), ("format", "w = torch.Tensor.__format__\ntorch.Tensor.__format__ = lambda s, f: 'q'", "torch.Tensor.__format__ = w"), ("iter", "w = torch.Tensor.__iter__\ntorch.Tensor.__iter__ = lambda s: iter([s])", "torch.Tensor.__iter__ = w"), ("mul", "w = torch.Tensor.mul\ntorch.Tensor.mul = torch.Tensor.add", "torch.Tensor.mul = w"), ("sizes", "s.data = torch.ones(4)", "s.data = torch.arange(1.0, 8.0)"), ("resize", "s.resize_(4).fill_(2)", "s.resize_(3).copy_(torch.tensor([1.0, 2.0, 3.0]))")),
    _single("parameter", "s = torch.nn.Parameter(torch.ones(3))", "torch.nn.Parameter(torch.ones(3) * 2)", ("in place", "s.data.add_(1)", "s.data.sub_(1)"), ("grad", "s.grad = torch.ones(3)", "s.grad = None"), ("hook", "w = s.register_hook(lambda g: g * 2)", "w.remove()"), ("frozen", "s.requires_grad_(False)", "s.requires_grad_(True)")),
    _single("int tensor", "s = torch.tensor([0, 1, 2])", "torch.tensor([2, 1, 0])", ("in place", "s.flip(0)\ns[0] = 2", "s[0] = 0")),
    _single("bool tensor", "s = torch.tensor([True, False, True])", "torch.tensor([False, False, True])", ("in place", "s[0] = False", "s[0] = True")),
    _single("sparse tensor", "s = torch.eye(3).to_sparse()", "torch.ones(3, 3).to_sparse()"),
    _single("tensor subclass", "class Sub(torch.Tensor): pass\ns = torch.ones(3).as_subclass(Sub)", "torch.zeros(3).as_subclass(Sub)", ("method", "Sub.sin = lambda s: s + 1", "del Sub.sin"), ("len", "Sub.__len__ = lambda s: 7", "del Sub.__len__"), ("attribute", "s.v = 3", "del s.v")),
    _single("linear", "s = torch.nn.Linear(3, 3)", "torch.nn.Linear(3, 3)", ("bias", "w = s.bias\ns.bias = None", "s.bias = w"), ("hook", "w = s.register_forward_pre_hook(lambda m, i: (i[0] + 1,))", "w.remove()"), ("global hook", "w = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o + 1)", "w.remove()"), ("class", "w = torch.nn.Linear.forward\ntorch.nn.Linear.forward = lambda s, x: x * 3", "torch.nn.Linear.forward = w"), ("call", "s.__class__ = type('L', (torch.nn.Linear,), {'forward': lambda s, x: x * 4})", "s.__class__ = torch.nn.Linear")),
    _single("batch norm", "s = torch.nn.BatchNorm1d(3)", "torch.nn.BatchNorm1d(3)", ("eval", "s.eval()", "s.train()"), ("momentum", "s.momentum = 0.5", "s.momentum = 0.1"), ("buffer", "s.running_mean.add_(1)", "s.running_mean.sub_(1)")),
    _single("dropout", "s = torch.nn.Dropout(0.5)", "torch.nn.Dropout(0.25)", ("p", "s.p = 0.0", "s.p = 0.5"), ("eval", "s.eval()", "s.train()")),
    _single("lambda with globals", "GLOBAL = 2\ns = lambda y=1: y * GLOBAL", "types.FunctionType(s.__code__, {'GLOBAL': 5}, 'f', (1,))", ("global", "GLOBAL = 4", "GLOBAL = 2"), ("defaults", "s.__defaults__ = (7,)", "s.__defaults__ = (1,)")),
    _single("same code, other defaults", "def make_one(d):\n    def inner(y=d): return y * 2\n    return inner\ns = make_one(1)", "make_one(3)", ("defaults", "s.__defaults__ = (7,)", "s.__defaults__ = (1,)")),
    _single("same code, other closure", "def make_one(d):\n    def inner(y=1): return y * d\n    return inner\ns = make_one(2)", "make_one(3)", ("cell", "s.__closure__[0].cell_contents = 7", "s.__closure__[0].cell_contents = 2")),
    _single("same code, closure of a closure", "def make_one(d):\n    def g(): return d\n    def inner(y=1): return y * g()\n    return inner\ns = make_one(2)", "make_one(3)"),
    _single("same code, closure of a method", "class Q:\n    def __init__(self, v): self.v = v\n    def go(self): return self.v\ndef make_one(d):\n    def inner(y=1): return y * d()\n    return inner\ns = make_one(Q(2).go)", "make_one(Q(3).go)"),
    _single("same code, keyword defaults", "def make_one(d):\n    def inner(y=1, *, k=d): return y * k\n    return inner\ns = make_one(2)", "make_one(3)", ("defaults", "s.__kwdefaults__['k'] = 7", "s.__kwdefaults__['k'] = 2")),
    _single("class with __new__", "class Sub:\n    z = 2\n    def __new__(cls, *a): return 3\ns = Sub", "type('Sub', (), {'z': 4, '__new__': lambda c, *a: 5})", ("new", "Sub.__new__ = lambda cls, *a: 7", "Sub.__new__ = lambda cls, *a: 3"), ("attribute", "Sub.z = 5", "Sub.z = 2")),
    _single("metaclass call", "class Meta(type):\n    def __call__(cls, *a): return 3\nclass Sub(metaclass=Meta): pass\ns = Sub", "Meta('Q', (), {})", ("call", "Meta.__call__ = lambda c, *a: 4", "Meta.__call__ = lambda c, *a: 3"), ("instancecheck", "Meta.__instancecheck__ = lambda c, o: True", "del Meta.__instancecheck__"), ("len", "Meta.__len__ = lambda c: 3", "del Meta.__len__"), ("getattr", "Meta.__getattr__ = lambda c, n: missing(n, 3)", "del Meta.__getattr__"), ("subclasscheck", "Meta.__subclasscheck__ = lambda c, o: True", "del Meta.__subclasscheck__"), ("bool", "Meta.__bool__ = lambda c: False", "del Meta.__bool__")),
    _single("abc", "class Sub(abc.ABC): pass\ns = Sub", "type('Q', (), {})", ("register", "Sub.register(int)"), ("hook", "Sub.__subclasshook__ = classmethod(lambda c, o: True)\nabc.update_abstractmethods(Sub)", "del Sub.__subclasshook__")),
    _single("protocol", "@typing.runtime_checkable\nclass Sub(typing.Protocol):\n    def lt_go(self): ...\nclass T: pass\ns = Sub\ne0 = T()", "T", ("method", "T.lt_go = lambda s: 1", "del T.lt_go")),
    _single("descriptor", "class De:\n    v = 2\n    def __get__(self, o, c): return self.v\nclass Sub: a = De()\ns = Sub()", "NS(a=5)", ("v", "De.v = 5", "De.v = 2"), ("get", "De.__get__ = lambda s, o, c: 7", "De.__get__ = lambda s, o, c: s.v"), ("set", "De.__set__ = lambda s, o, v: None\ns.__dict__['a'] = 6", "del De.__set__\ndel s.__dict__['a']")),
    _single("class swapped", "class A1:\n    a = 2\n    def __len__(self): return 2\nclass A2:\n    a = 3\n    def __len__(self): return 3\ns = A1()", "A2()", ("class", "s.__class__ = A2", "s.__class__ = A1")),
    _single("cell", "s = (lambda q: lambda: q)(2).__closure__[0]", "(lambda q: lambda: q)(3).__closure__[0]", ("contents", "s.cell_contents = 5", "s.cell_contents = 2")),
    _single("self-like list", "s = [1, 2]\ns.append(s)", "[3]", ("item", "s[0] = 9", "s[0] = 1")),
    _single("str", "s = 'ab'", "'cd'"), _single("empty list", "s = []", "[1]", ("append", "s.append(1)", "s.pop()")),
    _single("empty dict", "s = {}", "{'a': 1}", ("set", "s['a'] = 1", "del s['a']")),
    _single("none", "s = None", "0"), _single("int", "s = 2", "3"), _single("float", "s = 0.0", "-0.0"), _single("bool", "s = True", "1"),
    _single("three", "s = 3", "-1"),
    _single("zero", "s = 0", "-1"),
    _single("shape", "s = [3]", "[1, 3]", ("item", "s[0] = -1", "s[0] = 3"), ("insert", "s.insert(0, 1)", "del s[0]")),
    _single("larger int", "s = 300", "301"), _single("ellipsis", "s = ...", "None"),
    _single("module dict", "s = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(3, 2))", "torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(3, 2))", ("swap", "s[0] = torch.nn.Tanh()", "s[0] = torch.nn.ReLU()"), ("append", "s.append(torch.nn.Tanh())", "del s[2]"), ("eval", "s.eval()", "s.train()")),
    _single("module with buffer", "s = torch.nn.Module()\ns.register_buffer('a', torch.ones(3))\ns.w = torch.nn.Parameter(torch.ones(3))\ns.v = 1", "torch.nn.ReLU()", ("buffer", "s.a = torch.ones(3) * 5", "s.a = torch.ones(3)"), ("in place", "s.a.add_(1)", "s.a.sub_(1)"), ("new", "s.register_buffer('b', torch.ones(2))", "del s.b"), ("parameter", "s.w = torch.nn.Parameter(torch.ones(2))", "del s.w"), ("v", "s.v = 5", "s.v = 1")),
)  # fmt: skip

SPECIALS = (*_special(), *_of_c())
CALLABLES = tuple(_callables())


# ---------------------------------------------------------------- both together
COMMON = "class Int(int): pass\nclass Str(str): pass\ndef missing(n, v):\n    if n.startswith('_'): raise AttributeError(n)\n    return v\n"


def _filled(text: str, *values: str) -> str:
    for i, value in enumerate(values):
        text = text.replace(f"{{{i}}}", value)
    return text


def combined(container: Container, element: Element) -> Source:
    """A container of elements, with the changes of both."""
    names = "\n".join(f"e{i} = {value}" for i, value in enumerate(element.values))
    setup = [
        element.setup,
        names,
        _filled(container.setup, "e0", "e1", "e2"),
        "s = " + _filled(container.make, "e0", "e1", "e2"),
    ]
    rows = [*container.changes, *element.changes]
    for value in ("e3", "e1", *element.twins):
        name = {"e3": "another element", "e1": "the same element"}.get(value, f"equal: {value}")
        if container.put:
            rows.append(Change(name, _filled(container.put, value), _filled(container.put, "e0")))
        if not container.setup:
            rows.append(rebound(f"rebuilt with {name}", _filled(container.make, value, "e1", "e2")))
    other = _filled(container.make, "e3", "e1", "e2")
    return Source(f"{container.name} of {element.name}", "\n".join(filter(None, setup)), other, tuple(rows))


def all_changes(source: Source) -> tuple[Change, ...]:
    return (*source.changes, BOUND, COPIED)
