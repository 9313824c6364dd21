"""The table of reasons: each code once, each text known again, each advice a sentence."""

from __future__ import annotations

import re

import pytest

import lazytrace
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


def test_a_text_of_nobody():
    assert lazytrace.reason_code("something that no table knows") == ""
