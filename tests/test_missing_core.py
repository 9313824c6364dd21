"""Without a usable C++ core the package imports, warns once, and runs and counts every call eagerly."""

from __future__ import annotations

import inspect
import json
import textwrap

import pytest
import torch

from tests.processes import python

MISSING = 'import sys; sys.modules["lazytrace._core"] = None'
OTHER_TORCH = 'import torch; torch.__version__ = "2.99.0+other"'

WAYS_OUT = (
    "Every call runs eagerly: results are right, nothing is replayed. To build it, run "
    "`python setup.py build_ext --inplace` in the source folder of lazytrace, with this Python and a C++17 "
    "compiler."
)

PROGRAM = """
    import json, warnings
    {broken}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        import lazytrace
        import lazytrace.stats
        from lazytrace import opaque, script_if_tracing, traced
    import torch
    told = [(type(w.message).__name__, str(w.message)) for w in seen if "lazytrace" in str(w.message)]
    facts = {{"told": told}}
    x = torch.tensor([-1.0, 2.0])
"""


def run(broken: str, body: str, **variables: str) -> tuple[dict, str]:
    """`facts` of a program in a fresh interpreter with a broken core, and its stderr."""
    code = "\n".join(
        [
            inspect.cleandoc(PROGRAM).format(broken=broken),
            textwrap.dedent(body),
            "print(json.dumps(facts))",
        ]
    )
    done = python("-c", code, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(params=[MISSING, OTHER_TORCH], ids=["missing", "other torch"])
def broken(request) -> str:
    return request.param


def problem(broken: str) -> str:
    if broken is OTHER_TORCH:
        return f"lazytrace._core was built for torch {torch.__version__}, but torch 2.99.0+other is running"
    return "lazytrace._core cannot be imported: import of lazytrace._core halted; None in sys.modules"


def test_one_warning_says_what_to_do(broken):
    facts, _ = run(broken, "")
    ((category, text),) = facts["told"]
    assert category == "ExtensionWarning"
    assert text.endswith(WAYS_OUT)
    assert text.startswith("lazytrace._core cannot be used: ")
    wrong = "built for torch 2.13" if broken is OTHER_TORCH else "None in sys.modules"
    assert wrong in text


def test_calls_run_eagerly_and_are_counted(broken):
    body = """
        @traced(cache_limit=3, on_untraceable="raise")
        def step(x, scale=2.0):
            return x * scale

        facts["results"] = [step(x).tolist(), step(x, scale=3.0).tolist(), step(x).tolist()]
        facts["eager"] = step.stats().eager
        facts["info"] = list(step.cache_info())
        facts["tracing"] = lazytrace.is_tracing()
        facts["report"] = lazytrace.report()
    """
    facts, _ = run(broken, body)
    assert facts["results"] == [[-2.0, 4.0], [-3.0, 6.0], [-2.0, 4.0]]
    assert facts["info"] == [0, 3, 3, 0]
    assert facts["tracing"] is False
    ((reason, count),) = facts["eager"].items()
    assert (reason, count) == (problem(broken), 3)
    assert "3 calls: 0 hits (0.0 %), 0 recordings (0 retraces, 0.0 ms), 3 eager" in facts["report"]
    assert f"{reason}   x3" in facts["report"]


def test_every_form_of_decoration_works():
    body = """
        import functools, copy, pickle
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                return x * (1 if self.training else 2)

        class Scaler:
            @traced
            def method(self, x):
                return x * 2
            @traced
            @classmethod
            def of_class(cls, x):
                return x * 2
            @traced
            @staticmethod
            def static(x):
                return x * 2

        net = traced(Net())
        made = [
            traced(lambda x: x * 2), traced(functools.partial(torch.mul, 2)), net.eval(),
            traced(Net)().eval(),
            Scaler().method, Scaler.of_class, Scaler.static, Scaler().static, traced(torch.nn.Identity()),
            copy.deepcopy(net), traced(script_if_tracing(lambda x: x * 2)), opaque(lambda x: x * 2),
        ]
        facts["results"] = [fn(x).tolist() for fn in made]
    """
    facts, _ = run(MISSING, body)
    assert facts["results"] == [[-2.0, 4.0]] * 8 + [[-1.0, 2.0]] + [[-2.0, 4.0]] * 3


def test_steps_are_the_plain_functions():
    body = """
        seen = []

        @opaque
        def note(x):
            seen.append(1)

        @script_if_tracing
        def shrink(x, limit: float):
            while x.norm() > limit:
                x = x * 0.5
            return x

        @traced
        def step(x):
            note(x)
            return shrink(x, 1.0)

        facts["results"] = [step(x * k).tolist() for k in (1, 4)]
        facts["seen"] = len(seen)
    """
    facts, _ = run(MISSING, body)
    assert facts["results"] == [[-0.25, 0.5], [-0.25, 0.5]]
    assert facts["seen"] == 2


def test_programs_are_not_there():
    body = """
        step = traced(lambda x: x * 2, name="step")
        step(x)
        facts["texts"] = []
        for ask in (step.program, step.graph):
            try:
                ask(x)
            except LookupError as error:
                facts["texts"].append(str(error))
        step.cache_clear()
        with lazytrace.disabled():
            facts["result"] = step(x).tolist()
    """
    facts, _ = run(MISSING, body)
    assert facts["texts"] == [f"step has no programs: {problem(MISSING)}"] * 2
    assert facts["result"] == [-2.0, 4.0]


def test_wrong_use_is_still_refused():
    body = """
        facts["texts"] = []
        def refused(attempt):
            try:
                attempt()
            except (TypeError, ValueError) as error:
                facts["texts"].append(type(error).__name__)
        refused(lambda: traced(3))
        refused(lambda: traced(cache_limit=0))
        refused(lambda: opaque(3))
    """
    facts, _ = run(MISSING, body)
    assert facts["texts"] == ["NotTraceableError", "OptionError", "NotTraceableError"]


def test_report_at_exit_says_why():
    _, stderr = run(MISSING, "traced(lambda x: x * 2, name='step')(x)", LAZYTRACE_REPORT="1")
    assert "lazytrace: 1 function, 1 call: 0 hits" in stderr
    assert f"  step: {problem(MISSING)}   x1" in stderr.splitlines()


def test_warning_is_of_its_own_class_and_can_be_silenced():
    body = """
        import importlib, sys
        for name in list(sys.modules):
            if name.split(".")[0] == "lazytrace" and name != "lazytrace._core":
                del sys.modules[name]
        with warnings.catch_warnings(record=True) as again:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", message="lazytrace")
            import lazytrace as second
        facts["again"] = len([w for w in again if "lazytrace" in str(w.message)])
        facts["bases"] = [base.__name__ for base in second.ExtensionWarning.__mro__]
    """
    facts, _ = run(MISSING, body)
    assert facts["again"] == 0
    assert {"LazytraceWarning", "UserWarning"} <= set(facts["bases"])


def test_with_the_core_there_is_no_warning():
    facts, stderr = run(
        "", "step = traced(lambda x: x * 2); step(x); step(x); facts['hits'] = step.stats().hits"
    )
    assert facts == {"told": [], "hits": 1}
    assert stderr == ""
