"""What C code writes of functions, classes and numbers of numpy, and what numpy does about odd numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.soundness.small_programs import row

G = "def g(): pass\n"
K = "class K: pass\n"
LONGER = "g.__qualname__ = 'a_longer_one'"
SEQUENCE = "class S:\n    def __getitem__(self, n): return l[n]\n"
LARGE = "l = [np.float32(3e38)] * 2"
ZERO = "n = np.float64(0)"
RAISE, IGNORE = "np.seterr(all='raise')", "np.seterr(all='ignore')"


def caught(text):
    return f"try: return x * float({text})\nexcept FloatingPointError: return x"


@pytest.fixture(autouse=True)
def numpy_as_before():
    with np.errstate(), np.printoptions():
        yield


TEXTS = [
    row("repr()", G, "x * len(repr(g))", LONGER, hits=2),
    row("an f-string", G, "x * len(f'{g}')", LONGER, hits=2),
    row("%", G, "x * len('%s' % g)", LONGER, hits=2),
    row("format()", G, "x * len('{}'.format(g))", LONGER, hits=2),
    row("inside a dict", G, "x * len(str({'a': g}))", LONGER, hits=2),
    row("inside an exception", G, "x * len(str(KeyError(g)))", LONGER, hits=2),
    row(
        "a method",
        "class K:\n    def g(self): pass\n    def __repr__(self): return 'k' * self.n\n    n = 2\nk = K()",
        "x * len(repr(k.g))",
        "K.n = 5",
        "K.g.__qualname__ = 'g'",
        hits=3,
    ),
    row(
        "an alias",
        f"{K}s = list[K]",
        "x * len(repr(s))",
        "K.__qualname__ = 'Longer'",
        eager="address-as-text",
    ),
    row("map(repr, ...)", f"{G}l = [g]", "x * len(max(map(repr, l)))", LONGER, hits=2),
    row("map(str, ...)", f"{K}l = [K]", "x * len(max(map(str, l)))", "K.__qualname__ = 'Longer'", hits=2),
    row(
        "map(str, a generator)",
        f"{K}l = [K]",
        "x * len(max(map(str, (q for q in l))))",
        "K.__qualname__ = 'Longer'",
        hits=2,
    ),
    row(
        "sorted by repr",
        "def a(): return 1\ndef b(): return 2\nl = [a, b]",
        "x * sorted(l, key=repr)[0]()",
        "a.__qualname__ = 'z'",
        hits=2,
    ),
    row(
        "list.sort by str",
        "class A: n = 1\nclass B: n = 2\nl = [A, B]",
        "q = [*l]\nq.sort(key=str)\nreturn x * q[0].n",
        "A.__qualname__ = 'Z'",
        hits=2,
    ),
    row(
        "a partial of str",
        f"{K}l = [K]",
        "x * len(max(map(functools.partial(str), l)))",
        "K.__qualname__ = 'Longer'",
        hits=2,
    ),
    row("a class in a set", f"{K}s = {{K}}", "x * len(str(s))", "K.__qualname__ = 'Longer'", hits=2),
    row(
        "a class in a set of a class of its own",
        f"{K}class Sub(set): pass\ns = Sub([K])",
        "x * len(str(s))",
        "K.__qualname__ = 'Longer'",
        hits=2,
    ),
    row("a class that is a key", f"{K}d = {{K: 1}}", "x * len(str(d))", "K.__qualname__ = 'Longer'", hits=2),
    row(
        "the factory of a defaultdict",
        f"{G}d = collections.defaultdict(g, a=1)",
        "x * len(str(d))",
        LONGER,
        hits=2,
    ),
    *(
        row(
            f"what {method} of object asks of a dict",
            f"{K}class Sub(dict): pass\nd = Sub(a=K)",
            f"x * len(d.{method})",
            "K.__qualname__ = 'Longer'",
            "d['a'] = 1",
            hits=3,
        )
        for method in ("__str__()", "__format__('')")
    ),
    row(
        "a date in a dict of a class of its own",
        "class Sub(dict): pass\nd = Sub(a=np.datetime64(5, 'D'))",
        "x * len(d.__str__())",
        "d['a'] = np.datetime64(5, 's')",
        eager="computes-with-scalar",
    ),
    row(
        "a module",
        "s = types.ModuleType('a')",
        "x * len(f'{s}')",
        "s.__name__ = 'longer'",
        eager="address-as-text",
    ),
    row(
        "a numpy number",
        "n = np.float32(1)",
        "x * len(repr(n))",
        "np.set_printoptions(legacy='1.25')",
        eager="computes-with-scalar",
    ),
    row(
        "numpy numbers in a list",
        "l = [np.float64(1)]",
        "x * len(f'{l}')",
        "np.set_printoptions(legacy='1.25')",
        eager="computes-with-scalar",
    ),
    row(
        "map(repr, numpy numbers)",
        "l = [np.float64(1)]",
        "x * len(max(map(repr, l)))",
        "np.set_printoptions(legacy='1.25')",
        eager="computes-with-scalar",
    ),
]

NUMBERS = [
    row("a division by zero", ZERO, caught("1 / n"), RAISE, IGNORE, eager="computes-with-scalar"),
    row("an overflow", LARGE, caught("l[0] + l[1]"), RAISE, IGNORE, eager="computes-with-scalar"),
    row("a power", "n = np.float64(1e200)", caught("n ** 2"), RAISE, IGNORE, eager="computes-with-scalar"),
    row(
        "a negative of the least",
        "n = np.int8(-128)",
        caught("-n"),
        RAISE,
        IGNORE,
        eager="computes-with-scalar",
    ),
    row("abs()", "n = np.int8(-128)", caught("abs(n)"), RAISE, IGNORE, eager="computes-with-scalar"),
    row(
        "in place",
        LARGE,
        "n = l[0]\ntry: n += l[1]\nexcept FloatingPointError: return x\nreturn x * 2",
        RAISE,
        IGNORE,
        eager="computes-with-scalar",
    ),
    row("sum()", LARGE, caught("sum(l)"), RAISE, IGNORE, eager="computes-with-scalar"),
    row(
        "sum() of a generator",
        LARGE,
        caught("sum(q for q in l)"),
        RAISE,
        IGNORE,
        eager="computes-with-scalar",
    ),
    row("math.prod()", LARGE, caught("math.prod(l)"), RAISE, IGNORE, eager="computes-with-scalar"),
    row(
        "accumulate()",
        LARGE,
        caught("list(itertools.accumulate(l))[1]"),
        RAISE,
        IGNORE,
        eager="computes-with-scalar",
    ),
    row(
        "operator.add", LARGE, caught("operator.add(l[0], l[1])"), RAISE, IGNORE, eager="computes-with-scalar"
    ),
    row(
        "operator.iadd",
        LARGE,
        caught("operator.iadd(l[0], l[1])"),
        RAISE,
        IGNORE,
        eager="computes-with-scalar",
    ),
    row(
        "map(operator.add, ...)",
        LARGE,
        caught("max(map(operator.add, l, l))"),
        RAISE,
        IGNORE,
        eager="computes-with-scalar",
    ),
    row(
        "reduce(operator.mul, ...)",
        LARGE,
        caught("functools.reduce(operator.mul, l)"),
        RAISE,
        IGNORE,
        eager="computes-with-scalar",
    ),
    *(
        row(
            f"{way} of what Python code gives",
            f"{SEQUENCE}{LARGE}\ns = S()",
            f"try: {way}\nexcept FloatingPointError: return x\nreturn x * 2",
            RAISE,
            IGNORE,
            eager="computes-with-scalar",
        )
        for way in (
            "sum(s)",
            "max(map(operator.add, s, s))",
            "functools.reduce(operator.mul, s)",
            "math.prod(s)",
        )
    ),
    row(
        "texts of what Python code gives",
        f"{SEQUENCE}l = [np.float64(1)]\ns = S()",
        "x * len(max(map(repr, s)))",
        "np.set_printoptions(legacy='1.25')",
        eager="computes-with-scalar",
    ),
    row(
        "a sum of plain numbers that Python code gives",
        f"{SEQUENCE}l = [1, 2]\ns = S()",
        "x * sum(s) * len(max(map(str, s)))",
        "l[0] = 4",
        hits=2,
    ),
    row(
        "an error handler",
        "seen = []\nn = np.float64(0)\nnp.seterrcall(lambda *a: seen.append(1))",
        "r = 1 / n\nreturn x * len(seen)",
        "np.seterr(all='call')",
        eager="computes-with-scalar",
    ),
    row(
        "ordinary floats",
        "n = np.float64(8)",
        "x * (1 / n + n * 2 - n ** 2 + n // 3 + n % 3 + abs(n) - -n + round(n))",
        "n = np.float64(9)",
        RAISE,
        hits=4,
    ),
    row(
        "ordinary ints",
        "n = np.int64(8)",
        "x * (n * 2 - n ** 2 + n // 3 - -n + (n & 3) + n / 3)",
        "n = np.int64(9)",
        RAISE,
        hits=4,
    ),
    row(
        "with a size",
        "n = np.float32(8)",
        "x * (n * x.shape[0]) / (n + 1.5)",
        "n = np.float32(9)",
        RAISE,
        hits=4,
    ),
    row(
        "products of plain numbers",
        "l = [2, 3]",
        "x * functools.reduce(operator.mul, l) * sum(l) * math.prod(l)",
        "l[0] = 4",
        hits=2,
    ),
]


@pytest.mark.parametrize("program", TEXTS)
def test_texts(program):
    program.check()


@pytest.mark.parametrize("program", NUMBERS)
def test_numbers(program):
    program.check()
