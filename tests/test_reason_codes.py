"""The table of reasons: each code once, each text known again, each advice a sentence."""

from __future__ import annotations

import ast
import logging
import re
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch.utils._device

import lazytrace
from lazytrace import traced
from lazytrace.stats import reasons
from lazytrace.stats.reasons import Row, row_of, rows

# What stands in the places of a text: the names of an operator, a class, a function.
_FILLED = ("aten::mul", "Config", "step", "4 things")


def filled(row: Row) -> str:
    text = row.template
    for value in _FILLED:
        text = text.replace("{}", value, 1)
    return text


def test_codes_are_distinct_words():
    codes = [row.code for row in rows()]
    assert len(set(codes)) == len(codes) > 90
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


def test_texts_are_distinct():
    templates = [row.template for row in rows()]
    assert len(set(templates)) == len(templates)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.code)
def test_a_text_is_known_as_its_own(row):
    assert row_of(filled(row)) is row
    assert lazytrace.reason_code(filled(row)) == row.code


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.code)
def test_advice_is_a_sentence_to_go_on_with(row):
    assert row.advice == "" or (row.advice.endswith(".") and not row.advice[0].isspace())


def strings_of(source):
    """The literals of a file that are no docstrings, those of f-strings too."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_a_text_of_python_stands_in_the_table_only():
    files = Path(lazytrace.__file__).parent.rglob("*.py")
    strings = [text for path in files for text in strings_of(path.read_text())]
    for code, text, _ in reasons._OWN:
        piece = max(text.split("{}"), key=len)
        if len(piece) > len(" was reached"):
            assert sum(piece in string for string in strings) == 1, (code, piece)


def test_a_text_of_nobody():
    assert lazytrace.reason_code("something that no table knows") == ""


CORE = Path(lazytrace.__file__).parent / "csrc"
# A call of fail() whose text is put together there and then.
WRITTEN = re.compile(r'\bfail\(((?:[^;"]|"(?:[^"\\]|\\.)*")*?"(?:[^;"]|"(?:[^"\\]|\\.)*")*?)\);')
PARTS = re.compile(r'"((?:[^"\\]|\\.)*)"|([^"]+)')


def written(source):
    """The texts that C++ gives to fail(), with a word for what is put into them."""
    for match in WRITTEN.finditer(source):
        parts = [(text, code.strip(" +\n")) for text, code in PARTS.findall(match[1])]
        if not any("?" in code or ":" in code.replace("::", "") for _, code in parts):
            yield "".join(text or ("word" if code else "") for text, code in parts)


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.cpp")), ids=lambda path: path.name)
def test_what_the_core_says_is_in_the_table(path):
    unknown = [text for text in written(path.read_text()) if not lazytrace.reason_code(text)]
    assert not unknown, f"give these a row in reasons.def: {unknown}"


# ---------------------------------------------------------------- codes occur
def leaf(**values):
    return types.SimpleNamespace(**values)


def cyclic():
    made = [X]
    made.append(made)
    return made


def nested(depth):
    made = [X]
    for _ in range(depth):
        made = [made]
    return made


class Subclass(torch.Tensor):
    pass


class Shown:
    def __str__(self):
        return ""


def raising(x):
    try:
        return x.view(7)
    except RuntimeError:
        return x


def logging_of_an_exception(x):
    try:
        raise ValueError
    except ValueError:
        LOGGER.exception("caught")
    return x * 2


def std_of_one(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x[:1].std()


X = torch.tensor([-1.0, 0.5, 2.0])
LOGGER = logging.getLogger("test_reason_codes")
STATE = leaf(x=torch.ones(3), made=None)
# Code -> a function of a tensor, and what it is called with.
CASES = {
    "takes-subclass": (lambda x: x * 2, X.as_subclass(Subclass)),
    "takes-nested": (lambda x: x * 2, torch.nested.nested_tensor([X, X])),
    "takes-odd-key": (lambda x: x[frozenset("ab")] * 2, {frozenset("ab"): X}),
    "takes-cycle": (lambda x: x[0] * 2, cyclic()),
    "takes-too-deep": (lambda x: x, nested(80)),
    "takes-array": (lambda x: x.copy(), X.numpy()[::-1]),
    "operator-raised": (raising, X),
    "logs-exception": (logging_of_an_exception, X),
    "operator-warned": (std_of_one, X),
    "returns-cycle": (lambda x: cyclic(), X),
    "returns-too-deep": (lambda x: nested(120), X),
    "leaves-modes": (lambda x: (torch.set_grad_enabled(False), x * 2)[1], X),
    "tensor-escapes": (lambda x: x * sum(x.repeat(99).tolist()), X),
    "calls-function": (lambda x: (print(*[Shown()], end=""), x * 2)[1], X),
    "checks-invariants": (
        lambda x: torch.sparse_coo_tensor(torch.tensor([[0]]), x[:1], (3,), check_invariants=True),
        X,
    ),
    "sets-attribute": (lambda x: (setattr(x, "tag", 1), x * 2)[1], X),
}


@pytest.mark.parametrize("code", CASES)
def test_a_code_occurs(code):
    function, x = CASES[code]
    fn = traced(function)
    try:
        fn(x)
    finally:
        torch.set_grad_enabled(True)
    assert [lazytrace.reason_code(text) for text in fn.stats().eager] == [code], fn.stats().eager


def test_codes_of_what_surrounds_a_call():
    fn = traced(lambda x: x * (2 if x.sum() > 0 else 3))
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        fn(x)
    with torch.autograd.graph.save_on_cpu():
        fn(x)
    with torch.utils._device.DeviceContext(torch.device("cpu")), Mode():
        fn(x)
    found = [lazytrace.reason_code(text) for text in fn.stats().eager]
    assert found == ["saved-hooks", "hooks-and-exits", "function-mode"]


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))
