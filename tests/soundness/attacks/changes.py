"""Ways of changing state between calls: what is done, and what undoes it."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """Statements that change the state, and those that change it back; "" where there is no way back."""

    name: str
    do: str
    undo: str = ""


def changes(*rows: tuple[str, ...]) -> tuple[Change, ...]:
    return tuple(Change(*row) for row in rows)


# What is bound in place of the source. The way to the source says how: see `reaching`.
REBIND = "<rebind>"
BOUND = Change("rebind", "t = other()\n" + REBIND, "t = s\n" + REBIND)
COPIED = Change("rebind to a copy", "t = copy.deepcopy(s)\n" + REBIND, "t = s\n" + REBIND)


def rebound(name: str, text: str) -> Change:
    """The source is replaced by what an expression gives."""
    return Change(name, f"t = {text}\n{REBIND}", f"t = s\n{REBIND}")


# ---------------------------------------------------------------- special methods
# What a method of class C is replaced by: it looks at `self.v` as the one before did, and gives another result.
SPECIAL: dict[str, tuple[str, str]] = {
    "__len__": ("lambda s: 2", "lambda s: 3"),
    "__bool__": ("lambda s: True", "lambda s: False"),
    "__eq__": ("lambda s, o: s.v == getattr(o, 'v', o)", "lambda s, o: not s.v == getattr(o, 'v', o)"),
    "__ne__": ("lambda s, o: s.v != getattr(o, 'v', o)", "lambda s, o: s.v == getattr(o, 'v', o)"),
    "__lt__": ("lambda s, o: s.v < getattr(o, 'v', o)", "lambda s, o: s.v > getattr(o, 'v', o)"),
    "__le__": ("lambda s, o: s.v <= getattr(o, 'v', o)", "lambda s, o: s.v > getattr(o, 'v', o)"),
    "__gt__": ("lambda s, o: s.v > getattr(o, 'v', o)", "lambda s, o: s.v < getattr(o, 'v', o)"),
    "__ge__": ("lambda s, o: s.v >= getattr(o, 'v', o)", "lambda s, o: s.v < getattr(o, 'v', o)"),
    "__hash__": ("lambda s: hash(s.v)", "lambda s: 7"),
    "__contains__": ("lambda s, o: o == s.v", "lambda s, o: o != s.v"),
    "__getitem__": ("lambda s, i: [s.v, 2, 3][i]", "lambda s, i: [s.v, 5, 6, 7][i]"),
    "__iter__": ("lambda s: iter([s.v, 2])", "lambda s: iter([s.v, 2, 3])"),
    "__reversed__": ("lambda s: iter([2, s.v])", "lambda s: iter([3, 2, s.v])"),
    "__next__": ("lambda s: s.v", "lambda s: s.v + 1"),
    "__index__": ("lambda s: s.v", "lambda s: s.v + 1"),
    "__int__": ("lambda s: s.v", "lambda s: s.v + 1"),
    "__float__": ("lambda s: s.v * 1.0", "lambda s: s.v + 0.5"),
    "__complex__": ("lambda s: s.v + 1j", "lambda s: s.v + 2j"),
    "__str__": ("lambda s: f'<{s.v}>'", "lambda s: f'<<{s.v}>>'"),
    "__repr__": ("lambda s: f'E({s.v})'", "lambda s: f'EE({s.v})'"),
    "__format__": ("lambda s, f: f'{s.v}{f}'", "lambda s, f: f'{s.v + 1}{f}!'"),
    "__bytes__": ("lambda s: bytes([s.v])", "lambda s: bytes([s.v, s.v])"),
    "__add__": ("lambda s, o: s.v + getattr(o, 'v', o)", "lambda s, o: s.v - getattr(o, 'v', o)"),
    "__radd__": ("lambda s, o: o + s.v", "lambda s, o: o - s.v"),
    "__iadd__": ("lambda s, o: s.v + 10", "lambda s, o: s.v + 20"),
    "__sub__": ("lambda s, o: s.v - getattr(o, 'v', o)", "lambda s, o: s.v + 5"),
    "__rsub__": ("lambda s, o: o - s.v", "lambda s, o: o + s.v"),
    "__mul__": ("lambda s, o: s.v * getattr(o, 'v', o)", "lambda s, o: s.v + 4"),
    "__rmul__": ("lambda s, o: o * s.v", "lambda s, o: o * (s.v + 1)"),
    "__matmul__": ("lambda s, o: o * s.v", "lambda s, o: o * (s.v + 1)"),
    "__truediv__": ("lambda s, o: s.v / o", "lambda s, o: s.v / (o + 1)"),
    "__floordiv__": ("lambda s, o: s.v // o", "lambda s, o: s.v // o + 1"),
    "__mod__": ("lambda s, o: s.v % o", "lambda s, o: s.v % o + 1"),
    "__divmod__": ("lambda s, o: (s.v, o)", "lambda s, o: (s.v, o + 1)"),
    "__pow__": ("lambda s, o, m=None: s.v ** 2", "lambda s, o, m=None: s.v ** 3"),
    "__and__": ("lambda s, o: s.v & 3", "lambda s, o: s.v & 6"),
    "__or__": ("lambda s, o: s.v | 4", "lambda s, o: s.v | 8"),
    "__neg__": ("lambda s: -s.v", "lambda s: s.v"),
    "__abs__": ("lambda s: s.v + 1", "lambda s: s.v + 2"),
    "__invert__": ("lambda s: ~s.v", "lambda s: s.v"),
    "__round__": ("lambda s, n=0: s.v", "lambda s, n=0: s.v + 1"),
    "__floor__": ("lambda s: s.v", "lambda s: s.v + 1"),
    "__ceil__": ("lambda s: s.v", "lambda s: s.v + 1"),
    "__trunc__": ("lambda s: s.v", "lambda s: s.v + 1"),
    "__call__": ("lambda s, *a: s.v + 1", "lambda s, *a: s.v + 2"),
    "__enter__": ("lambda s: s.v", "lambda s: s.v + 1"),
    "__exit__": ("lambda s, *a: True", "lambda s, *a: setattr(s, 'v', 8)"),
    "__getattr__": ("lambda s, n: missing(n, 3)", "lambda s, n: missing(n, 4)"),
    "__getattribute__": ("object.__getattribute__", "lambda s, n: 5 if n == 'v' else object.__getattribute__(s, n)"),
    "__dir__": ("lambda s: ['v']", "lambda s: ['v', 'w']"),
    "__length_hint__": ("lambda s: 2", "lambda s: 3"),
    "__fspath__": ("lambda s: f'/{s.v}'", "lambda s: f'/{s.v}/b'"),
    "__copy__": ("lambda s: s.v", "lambda s: s.v + 1"),
    "__deepcopy__": ("lambda s, m: s.v", "lambda s, m: s.v + 1"),
    "__sizeof__": ("lambda s: 20", "lambda s: 40"),
    "__reduce_ex__": ("lambda s, p: (E, (s.v,))", "lambda s, p: (E, (s.v + 1,))"),
    "__instancecheck__": ("lambda s, o: False", "lambda s, o: True"),
    "__torch_function__": ("classmethod(lambda c, f, t, a=(), k=None: 5)", "classmethod(lambda c, f, t, a=(), k=None: 6)"),
    "__class_getitem__": ("classmethod(lambda c, i: 2)", "classmethod(lambda c, i: 3)"),
    "__array__": ("lambda s, *a, **k: np.array([s.v])", "lambda s, *a, **k: np.array([s.v + 1])"),
    "__set_name__": ("lambda s, c, n: None", "lambda s, c, n: setattr(s, 'v', 6)"),
}  # fmt: skip


def replaced(cls: str, name: str) -> Change:
    """A special method that a class has gives something else."""
    old, new = SPECIAL[name]
    return Change(f"{cls}.{name} replaced", f"{cls}.{name} = {new}", f"{cls}.{name} = {old}")


def added(cls: str, name: str) -> Change:
    """A special method that a class did not have."""
    return Change(f"{cls}.{name} added", f"{cls}.{name} = {SPECIAL[name][1]}", f"del {cls}.{name}")
