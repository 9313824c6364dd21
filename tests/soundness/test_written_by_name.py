"""What C code finds by name or enters behind the back: codecs, missing keys, names in the texts of errors."""

from __future__ import annotations

import codecs

import pytest

from tests.soundness.small_programs import row

MINE = (
    "import codecs\ncodecs.register_error('mine', codecs.ignore_errors)\ns = None\nt, b = 'a\\xe4', b'a\\xe4'"
)
OTHER = "codecs.register_error('mine', codecs.replace_errors)"
FACTORY = "s = collections.defaultdict(int, a=1)"
AGAIN = "s.clear()\ns['a'] = 1"
K = "class K: pass\nk = K()"
LONGER = "K.__name__ = 'Longer'"


def error(text):
    return f"try: {text}\nexcept (TypeError, AttributeError) as e: return x * len(str(e))"


CODECS = [
    row("encode()", MINE, "x * len(t.encode('ascii', 'mine'))", OTHER, eager="odd-codec"),
    row("encode() by keyword", MINE, "x * len(t.encode('ascii', errors='mine'))", OTHER, eager="odd-codec"),
    row(
        "encode() with a dict",
        MINE,
        "x * len(t.encode(**{'encoding': 'ascii', 'errors': 'mine'}))",
        OTHER,
        eager="odd-codec",
    ),
    row("decode()", MINE, "x * len(b.decode('ascii', 'mine'))", OTHER, eager="odd-codec"),
    row("bytes()", MINE, "x * len(bytes(t, 'ascii', 'mine'))", OTHER, eager="odd-codec"),
    row("str()", MINE, "x * len(str(b, 'ascii', 'mine'))", OTHER, eager="odd-codec"),
    row(
        "those of Python",
        MINE,
        "x * len(t.encode('ascii', 'replace') + t.encode() + t.encode('Latin-1'))",
        "t = 'b'",
        hits=2,
    ),
]

ENTERED = [
    row(
        "map(d.setdefault, ...)",
        "s = {}",
        "x * len([*map(s.setdefault, 'ab')])",
        "s.clear()",
        eager="hands .setdefault()",
    ),
    row(
        "map(dict.setdefault, ...)",
        "s = {}",
        "x * len([*map(dict.setdefault, [s], 'a')])",
        "s.clear()",
        eager="hands .setdefault()",
    ),
    row(
        "pop() of a defaultdict",
        FACTORY,
        "[*map(s.pop, 'a', [0])]\nreturn x * 2",
        AGAIN,
        eager="hands .pop()",
    ),
    row(
        "update() of a defaultdict",
        FACTORY,
        "[*map(s.update, [{'b': 2}])]\nreturn x * 2",
        AGAIN,
        eager="hands .update()",
    ),
    row(
        "items of a defaultdict",
        FACTORY,
        "x * len([*map(s.__getitem__, 'b')])",
        AGAIN,
        eager="hands .__getitem__()",
    ),
    row(
        "__missing__ of a defaultdict", FACTORY, "x + s.__missing__('b')", AGAIN, eager="calls .__missing__()"
    ),
    row(
        "__init__ of a defaultdict",
        FACTORY,
        "s.__init__(list)\nreturn x * 2",
        "s.default_factory = int",
        "s['f'] = s.default_factory",
        eager="calls .__init__()",
    ),
    row(
        "sorted by pop() of a defaultdict",
        "s = collections.defaultdict(int, a=1, b=2)",
        "x * len(sorted('ab', key=s.pop))",
        "s.update(a=1, b=2)",
        "s.update(a=1, b=2)",
        eager="hands .pop()",
    ),
    row(
        "__init__ of a namespace",
        "s = types.SimpleNamespace(a=1)",
        "s.__init__(a=5)\nreturn x * 2",
        "s.a = 1",
        eager="calls __init__()",
    ),
    row("a namespace of the call", "v = 2", "x * types.SimpleNamespace(a=v).a", "v = 3", hits=2),
]

ERRORS = [
    row("an attribute", K, error("k.zz"), LONGER, hits=2),
    row("getattr()", K, error("getattr(k, 'zz')"), LONGER, hits=2),
    row("an operand", K, error("k + 1"), LONGER, hits=2),
    row("args", K, "try: k + 1\nexcept TypeError as e: return x * len(e.args[0])", LONGER, hits=2),
    row("an f-string", K, "try: k + 1\nexcept TypeError as e: return x * len(f'{e}')", LONGER, hits=2),
    row("a class that takes no arguments", K, error("K(1)"), LONGER, eager="address-as-text"),
    row(
        "a function that lacks an argument",
        "def g(a): pass",
        error("g()"),
        "g.__qualname__ = 'longer'",
        eager="address-as-text",
    ),
    row(
        "an error whose text nobody asks for", K, "try: k + 1\nexcept TypeError: return x * 2", LONGER, hits=3
    ),
    row(
        "a key",
        "d, key = {}, 'a'",
        "try: d[key]\nexcept KeyError as e: return x * len(str(e))",
        "key = 'longer'",
        hits=2,
    ),
]


@pytest.fixture(autouse=True)
def no_handler_of_ours():
    yield
    codecs.register_error("mine", codecs.strict_errors)


@pytest.mark.parametrize("program", CODECS)
def test_codecs(program):
    program.check()


@pytest.mark.parametrize("program", ENTERED)
def test_entries(program):
    program.check()


@pytest.mark.parametrize("program", ERRORS)
def test_texts_of_errors(program):
    program.check()
