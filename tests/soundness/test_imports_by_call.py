"""Modules that `__import__()` finds: by sys.modules, whatever else leads to them."""

from __future__ import annotations

import sys
import types

from tests.soundness.runner import Cases, X, around, check

cases = Cases()


def with_submodule(k):
    inner = types.ModuleType("lt_outer.inner")
    inner.k = k
    return inner


@cases(hits=2)
def a_submodule_found_by_two_ways(trace):
    outer = types.ModuleType("lt_outer")
    outer.inner = with_submodule(2.0)
    sys.modules.update({"lt_outer": outer, "lt_outer.inner": outer.inner})

    def function(x):
        by_attribute = __import__("lt_outer.inner").inner.k
        return x * by_attribute + __import__("lt_outer.inner", fromlist=["k"]).k

    def replace():
        sys.modules["lt_outer.inner"] = with_submodule(3.0)

    return trace(function), around(replace, X())


@cases(eager="odd-package")
def an_import_from_where_the_function_is(trace):
    package = types.ModuleType("lt_outer")
    package.__path__ = []
    sys.modules.update({"lt_outer": package, "lt_outer.inner": with_submodule(2.0)})
    package.inner = sys.modules["lt_outer.inner"]

    def function(x):
        return x * __import__("inner", {"__package__": "lt_outer"}, None, ["k"], 1).k

    def replace():
        sys.modules["lt_outer.inner"] = with_submodule(3.0)

    return trace(function), around(replace, X())


@cases.parametrize
def test_imports_by_call(make, expected):
    check(make, **expected)
