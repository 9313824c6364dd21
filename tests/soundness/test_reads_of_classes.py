"""What is read of classes and through them: of metaclasses, of modules with a class, by `super()`."""

from __future__ import annotations

import pytest

from tests.soundness.small_programs import row

METACLASS = """
class Meta(type): pass
class Base(metaclass=Meta):
    n = 3
    @classmethod
    def go(cls): return cls.n
class Thing(Base): pass
held = [Thing, Thing()]
def found(c, name):
    return 8.0 if name == 'n' else type.__getattribute__(c, name)
"""
OF_A_METACLASS = [
    row(
        "named", METACLASS, "x * Base.n", "Meta.__getattribute__ = found", "del Meta.__getattribute__", hits=4
    ),
    row("held", METACLASS, "x * held[0].n", "Meta.__getattribute__ = found", hits=2),
    row("of an instance", METACLASS, "x * type(held[1]).n", "Meta.__getattribute__ = found", hits=2),
    row("inside", METACLASS, "x * held[1].go()", "Meta.__getattribute__ = found", hits=2),
    row("getter", METACLASS, "x * operator.attrgetter('n')(Base)", "Meta.__getattribute__ = found", hits=2),
    row("getattr", METACLASS, "x * getattr(Base, 'n', 1)", "Meta.__getattribute__ = found", hits=2),
]

MODULE = """
class Kind(types.ModuleType): pass
s = types.ModuleType('s')
s.n, s.go = 3, lambda: 4
s.__class__ = Kind
def found(m, name):
    return 8.0 if name == 'n' else types.ModuleType.__getattribute__(m, name)
"""
OF_A_MODULE = [
    row("there", MODULE, "x * s.n", "Kind.__getattribute__ = found", "del Kind.__getattribute__", hits=4),
    row("getattr", MODULE, "x * getattr(s, 'n', 2)", "Kind.__getattribute__ = found", hits=2),
    row("missing", MODULE, "x * getattr(s, 'q', 2)", "Kind.__getattr__ = lambda m, name: 9", hits=2),
    row("hasattr", MODULE, "x * hasattr(s, 'q')", "Kind.__getattr__ = lambda m, name: 9", hits=2),
    row("own first", MODULE, "x * getattr(s, 'q', 2)", "Kind.__getattr__ = lambda m, name: 9",
        "s.__dict__['__getattr__'] = lambda name: 11", "s.q = 12", hits=4),
    row("by C code", "d = {'q': 2}\ns = types.ModuleType('s')\ns.__getattr__ = d.get", "x * s.q",
        "d['q'] = 7",
        eager="looks up __getattr__ of a module, which is a builtin_function_or_method"),
    row("by a method of an object", """
class Finder:
    v = 2
    def find(self, name): return self.v
finder, s = Finder(), types.ModuleType('s')
s.__getattr__ = finder.find
""", "x * s.q", "finder.v = 5", "Finder.find = lambda self, name: 9", hits=2),
]  # fmt: skip

SLOT = """
class Base:
    __slots__ = ('n',)
class Thing(Base):
    def go(self): return super().n
t = Thing()
t.n = 1
"""
BY_SUPER = [
    row("slot", SLOT, "x * t.go()", "t.n = 5", "t.n = 1", hits=3),
    row("slot by its names", SLOT, "x * super(Thing, t).n", "t.n = 5", hits=2),
    row("slot that is hidden then", SLOT, "x * t.go()", "Thing.n = 1", "Base.n.__set__(t, 7)",
        hits=1, eager="reads .n of a super"),
    row("slot that is not set", SLOT, "x * hasattr(super(Thing, t), 'n')", "del t.n", "t.n = 3", hits=3),
    row("slot of a class below", SLOT.replace("def go",
        "__slots__ = ('n',)\n    def go") + "Base.n.__set__(t, 2)",
        "x * t.go()", "Base.n.__set__(t, 7)", eager="reads .n of a super"),
    row("property of C", """
class Base:
    n = property(operator.attrgetter('k'))
class Thing(Base):
    def go(self): return super().n
t = Thing()
t.k = 1
""", "x * t.go()", "t.k = 5", eager="reads .n, a property made in C"),
    row("property", """
class Base:
    @property
    def n(self): return self.k
class Thing(Base):
    @property
    def n(self): return super().n * 2
t = Thing()
t.k = 1
""", "x * t.n", "t.k = 5", "Base.n = property(lambda self: 7)", hits=3),
    row("field", """
class Thing(collections.namedtuple('Base', 'n m')):
    def go(self): return super().n
t = Thing(1, 2)
""", "x * t.go()", "t = Thing(5, 2)", "t = Thing(1, 3)", hits=2),
    row("arguments of an exception", """
class Thing(Exception):
    def go(self): return super().args
t = Thing(1)
""", "x * t.go()[0]", "t.args = (5,)", hits=2),
    row("cause of an exception", """
class Thing(Exception):
    def go(self): return super().__cause__
t = Thing(1)
""", "x * (t.go() is None)", "t.__cause__ = KeyError(1)", "t.__cause__ = None", hits=2),
    row("flag of a parameter", "w = torch.nn.Parameter(torch.ones(3))",
        "x * super(torch.nn.Parameter, w).requires_grad", "w.requires_grad_(False)", "w.requires_grad_()",
        hits=2),
    row("gradient of a parameter", "w = torch.nn.Parameter(torch.ones(3))",
        "x * (super(torch.nn.Parameter, w).grad is None)", "w.grad = torch.ones(3)", "w.grad = None", hits=2),
    row("name of a class", """
class Meta(type):
    def go(cls): return super().__name__
class Thing(metaclass=Meta): pass
""", "x * len(Thing.go())", "Thing.__name__ = 'Longer'", hits=2),
]  # fmt: skip

MEMBER = """
import enum
class Kind(enum.Enum):
    A = 1
a, items = Kind.A, [5.0, 6.0, 7.0]
def tried(f):
    try:
        return f()
    except (TypeError, IndexError) as error:
        return len(str(error))
"""
INDEXED = "Kind.__index__ = lambda k: 1"
OF_A_MEMBER = [
    row("index of a list", MEMBER, "x * tried(lambda: items[a])", INDEXED, "Kind.__index__ = lambda k: 2",
        hits=3),
    row("index of a tensor", MEMBER, "x, tried(lambda: x[a])", INDEXED, "del Kind.__index__", hits=2),
    row("among indices", MEMBER, "x, tried(lambda: x[None, a])", INDEXED, hits=1),
    row("attribute", MEMBER, "x, tried(lambda: x[a])", "Kind.__getattr__ = lambda k, name: 9", hits=1),
    row("end of a slice", MEMBER, "x, tried(lambda: items[:a])", INDEXED, hits=2),
    row("end of a slice of a tensor", MEMBER, "x, tried(lambda: x[:a])", INDEXED, hits=2),
    row("slice", MEMBER.replace("len(str(error))", "2"), "x, tried(lambda: slice(a).indices(3))",
        INDEXED, hits=2),
    row("in", MEMBER, "x * tried(lambda: 'q' in a)", "Kind.__getitem__ = lambda k, i: ['q'][i]", hits=2),
    row("in a tuple", MEMBER + "t = (a, 1)", "x * tried(lambda: t < (a, 2))",
        "Kind.__eq__ = lambda k, o: False",
        hits=2),
    row("class", MEMBER + "class Other(enum.Enum):\n    n = property(lambda k: 9)\nKind.n = 3", "x * a.n",
        "a.__class__ = Other", hits=2),
    row("item that is set", MEMBER + "s = items\ndef put(v): s[a] = v", "x, tried(lambda: put(2.0))",
        INDEXED, hits=1),
]  # fmt: skip

SPACE = """
class Space(types.SimpleNamespace): pass
class Part: pass
p, q = Part(), Part()
a, b = Space(n=p), Space(n=p)
"""
OF_A_NAMESPACE = [
    row("text by map", "class Space(types.SimpleNamespace): pass\na = Space(n=2)",
        "x * len(list(map(str, [a]))[0])", "a.n = 555", "a.m = [1]", "a.m.append(2)", hits=4),
    row("equal for an object", SPACE, "x * (a == b)", "b.n = q", "a.n = q", hits=3),
    row("equal for a list", SPACE, "x * (a == b)", "a.n, b.n = [1], [1]", "a.n.append(2)", "b.n.append(2)",
        hits=4),
    row("equal by a method", SPACE, "x * (a == b)", "a.n, b.n = p, q", "Part.__eq__ = lambda p, q: True",
        hits=3),
]  # fmt: skip

KINDS = """
class List(list): pass
class Dict(dict): pass
class Int(int): pass
class Text(str): pass
class Pair(tuple): pass
class Set(set): pass
class Float(float): pass
kinds = [List(), Dict(), Int(3), Text('a'), Pair(), Set(), Float(2)]
for o in kinds: o.n = 1
"""
BY_METHODS_OF_OBJECT = [
    row("attributes", KINDS, "x, [o.__getattribute__('n') for o in kinds]", "for o in kinds: o.n = 5",
        "for o in kinds: type(o).n = property(lambda o: 4)", hits=3),
    row("attributes by super", KINDS, "x, [super(type(o), o).__getattribute__('n') for o in kinds]",
        "for o in kinds: o.n = 5", "for o in kinds: type(o).n = property(lambda o: 4)", hits=3),
    row("attributes by the class", KINDS + "s = kinds[0]", "x * list.__getattribute__(s, 'n')",
        "s.n = 5", "List.n = property(lambda o: 4)", hits=3),
    row("names", "class Some(frozenset): pass\ns = Some()",
        "x * ('m' in super(Some, s).__dir__())", "Some.m = 3", eager="calls .__dir__()"),
    row("parts", KINDS + "s = Set()\ns.n = 3", "x * s.__reduce__()[2]['n']", "s.n = 5", "Set.m = 2", hits=1),
    row("copy", "import copy\n" + KINDS + "s = List([1])\ns.n = 2",
        "c = copy.copy(s)\nreturn x * c.n, len(c), hasattr(c, 'm')", "s.n = 5", "s.append(2)", "s.m = 1",
        hits=3),
    row("copy without attributes", "import copy\n" + KINDS + "s = Dict(a=1)",
        "c = copy.copy(s)\nreturn x * len(c), hasattr(c, 'm')", "s.m = 5", "s['b'] = 2", hits=2),
    row("text", "class Part: pass\ns = [Part]", "x * len(s.__str__())",
        "Part.__qualname__ = 'Longer'", "s.append(1)", hits=2),
]  # fmt: skip

BASES = """
import abc
class A:
    n = 1.0
    def go(self): return 1.0
class B(A): pass
class C(A):
    def go(self): return 2.0
class Other:
    n = 5.0
    def go(self): return 6.0
class Meta(type): pass
class Thing(metaclass=Meta):
    n = 3.0
above = super
class Partial(abc.ABC):
    @abc.abstractmethod
    def go(self): pass
def tried(f):
    try:
        return f()
    except TypeError:
        return -1.0
"""
HOOK = "__init_subclass__ = classmethod(lambda c: setattr(c, 'n', 9.0))"
INHERITED = ("A.n = 8.0", "B.n = 7.0", "B.__bases__ = (Other,)")
OF_CLASSES_OF_THE_CALL = [
    row("attribute", BASES, "class L(B): pass\nreturn x * L.n", *INHERITED, hits=5),
    row("attribute of an instance", BASES, "class L(B): pass\nreturn x * L().n", *INHERITED, hits=5),
    row("method", BASES, "class L(B): pass\nreturn x * L().go()", "A.go = lambda self: 8.0",
        "B.go = lambda self: 9.0", hits=3),
    row("of one of the call", BASES, "class K(B): pass\nclass L(K): pass\nreturn x * L().n", *INHERITED,
        hits=5),
    row("by super", BASES, "class L(B):\n    def go(self): return above(type(self), self).go() + 1\n"
        "return x * L().go()", "A.go = lambda self: 8.0", "B.__bases__ = (Other,)", hits=3),
    row("of several", BASES, "class L(B, C): pass\nreturn x * L().go()", "C.__bases__ = (Other, A)",
        "B.__bases__ = (C,)", "del C.go", hits=4),
    row("made by type()", BASES, "L = type('L', (B,), {})\nreturn x * L.n", f"A.{HOOK}", hits=2),
    row("made by a metaclass", BASES, "L = Meta('L', (Thing,), {})\nreturn x * L.n", f"Thing.{HOOK}",
        hits=2),
    row("with a metaclass", BASES, "class L(A, metaclass=Meta): pass\nreturn x * L.n",
        "Meta.__init__ = lambda c, *a: setattr(c, 'n', 9.0)", hits=2),
    row("initialized", BASES, "class L(B): pass\nreturn x, vars(L())",
        "A.__init__ = lambda self: setattr(self, 'n', 4.0)", hits=2),
    row("special methods", BASES, "class L(B): pass\nreturn x, L() == L(), callable(L())",
        "A.__eq__ = lambda self, other: True", "B.__call__ = lambda self: 1", hits=3),
    row("special methods that C code asks for", BASES, "class L(B): pass\nreturn x * any([L()])",
        "A.__bool__ = lambda self: False", "A.__len__ = lambda self: 1", "del A.__bool__", hits=3),
    row("another of the same address", BASES,
        "found = []\nfor b in (A, C, B):\n    class L(b): pass\n    found.append(L().go())\nreturn x, found",
        "B.go = lambda self: 9.0", "C.go = lambda self: 8.0", hits=3),
    row("abstract", BASES, "class L(Partial): pass\nreturn x * tried(lambda: L() and 1)",
        "del Partial.go\nPartial.__abstractmethods__ = frozenset()", hits=2),
    row("exceptions", BASES + "class Lost(LookupError): pass",
        "class E(Lost): pass\ntry:\n    raise E\nexcept LookupError:\n    return x\nexcept Exception:\n"
        "    return x * 2", "Lost.__bases__ = (Exception,)", hits=2),
]  # fmt: skip

HOLDS_NUMBER = "k = x.sum().item()\nt = [q, k]\nreturn x * max(len(t), 1)"
# Walks that take each way to a part for another part would not come to an end.
REACHED_IN_MANY_WAYS = [
    row("list of itself", "q = [1]\nq += [q] * 9", HOLDS_NUMBER, "q.append(2)", hits=2),
    row("dict of itself", "q = {}\nq.update((i, q) for i in range(9))", HOLDS_NUMBER, "q['a'] = 2", hits=2),
    row("pairs of pairs", "q = 1, 2\nfor _ in range(60): q = (q, q)", "x * len(q)", "q = q, q, 1", hits=2),
    row("slices", "q = 1\nfor _ in range(60): q = slice(q, q, q)", "x * callable(q)", "q = 0", hits=2),
]  # fmt: skip


@pytest.mark.parametrize("program", OF_CLASSES_OF_THE_CALL)
def test_of_classes_that_the_call_makes(program):
    """What they find in those of before the call is state."""
    program.check()


@pytest.mark.parametrize("program", REACHED_IN_MANY_WAYS)
def test_of_what_is_reached_in_many_ways(program):
    program.check()


@pytest.mark.parametrize("program", BY_METHODS_OF_OBJECT)
def test_by_methods_that_all_objects_have(program):
    program.check()


@pytest.mark.parametrize("program", [*OF_A_METACLASS, *OF_A_MODULE])
def test_of_a_class_that_classes_and_modules_have(program):
    program.check()


@pytest.mark.parametrize("program", BY_SUPER)
def test_by_super(program):
    program.check()


@pytest.mark.parametrize("program", OF_A_MEMBER)
def test_of_a_member_of_an_enum(program):
    program.check()


@pytest.mark.parametrize("program", OF_A_NAMESPACE)
def test_of_a_namespace(program):
    program.check()
