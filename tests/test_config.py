"""Options and environment variables are checked on the way in, and every text is as it is meant to be."""

from __future__ import annotations

import dataclasses

import pytest

from lazytrace import errors
from lazytrace.config import Environment, Options
from lazytrace.errors import OptionError


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def function_to_name() -> None: ...


def test_defaults():
    assert Options.checked() == Options(64, "evict", "eager", "record", True, "replay", None, 8, 32, 256)


def test_every_allowed_value():
    for on_limit in ("evict", "eager", "raise"):
        for on_untraceable in ("eager", "raise"):
            for backend in ("replay", "eager"):
                options = Options.checked(on_limit=on_limit, on_untraceable=on_untraceable, backend=backend)
                assert (options.on_limit, options.on_untraceable, options.backend) == (
                    on_limit,
                    on_untraceable,
                    backend,
                )
    assert Options.checked(cache_limit=1, check=False, name="step").name == "step"


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_dynamic_has_three_values(dynamic):
    assert Options.checked(dynamic=dynamic).dynamic is dynamic
    assert Options.checked().dynamic is None


def test_options_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().cache_limit = 3


@pytest.mark.parametrize(
    ("name", "value", "shown", "allowed"),
    [
        ("cache_limit", 0, "0", "an int of 1 or more"),
        ("cache_limit", -1, "-1", "an int of 1 or more"),
        ("cache_limit", True, "True", "an int of 1 or more"),
        ("cache_limit", 2.0, "2.0", "an int of 1 or more"),
        ("cache_limit", None, "None", "an int of 1 or more"),
        ("ignore", "print", "'print'", "a tuple of 'print' and 'logging'"),
        ("ignore", ("print", "time"), "('print', 'time')", "a tuple of 'print' and 'logging'"),
        ("dynamic", 1, "1", "None, True or False"),
        ("dynamic", "auto", "'auto'", "None, True or False"),
        ("exit_limit", 0, "0", "an int of 1 or more"),
        ("branch_limit", "many", "'many'", "an int of 1 or more"),
        ("on_limit", "drop", "'drop'", "'evict', 'eager' or 'raise'"),
        ("on_limit", ["evict"], "['evict']", "'evict', 'eager' or 'raise'"),
        ("on_untraceable", "evict", "'evict'", "'eager' or 'raise'"),
        ("on_retrace", "replay", "'replay'", "'record', 'warn' or 'raise'"),
        ("events", 0, "0", "an int of 1 or more"),
        ("check", 1, "1", "True or False"),
        ("check", None, "None", "True or False"),
        ("backend", "inductor", "'inductor'", "'replay' or 'eager'"),
        ("name", 3, "3", "a string that is not blank, or None"),
        ("name", " ", "' '", "a string that is not blank, or None"),
    ],
)
def test_bad_value(name, value, shown, allowed):
    text = (
        f"traced({name}={shown}): {name} must be {allowed}. Pass that, or leave {name} out for its default."
    )
    for make in (Options.checked, Options):
        with pytest.raises(OptionError) as caught:
            make(**{name: value})
        assert str(caught.value) == text


def test_unknown_option_names_the_closest():
    with pytest.raises(OptionError) as caught:
        Options.checked(cache_size=3)
    assert str(caught.value) == (
        "traced() has no option 'cache_size': did you mean 'cache_limit'? "
        "Its options are cache_limit, on_limit, on_untraceable, on_retrace, check, backend, name, "
        "exit_limit, branch_limit, events, ignore, dynamic, buckets."
    )


def test_unknown_option_that_is_close_to_none():
    with pytest.raises(OptionError) as caught:
        Options.checked(zzz=3)
    assert str(caught.value) == (
        "traced() has no option 'zzz'. "
        "Its options are cache_limit, on_limit, on_untraceable, on_retrace, check, backend, name, "
        "exit_limit, branch_limit, events, ignore, dynamic, buckets."
    )


@pytest.mark.parametrize("value", ["1", "true", "YES", " on "])
def test_environment_on(value):
    assert Environment.read({"LAZYTRACE_DISABLE": value}) == Environment(disabled=True)
    assert Environment.read({"LAZYTRACE_REPORT": value}) == Environment(report="text")


@pytest.mark.parametrize("value", ["0", "false", "No", "off", "", " "])
def test_environment_off(value):
    variables = dict.fromkeys(("LAZYTRACE_DISABLE", "LAZYTRACE_REPORT", "LAZYTRACE_LOG"), value)
    assert Environment.read(variables) == Environment()


@pytest.mark.parametrize(
    "target", ["text", "run.json", "a/b.csv", "Run.HTML", "run.trace", "run.txt", "runs/", "/abs/runs/"]
)
def test_report_targets(target):
    assert Environment.read({"LAZYTRACE_REPORT": f" {target} "}) == Environment(report=target)


@pytest.mark.parametrize(
    ("value", "topics"),
    [
        ("retrace", ("retrace",)),
        ("Retrace, evict", ("retrace", "evict")),
        ("all", ("record", "retrace", "eager", "evict")),
        ("1", ("record", "retrace", "eager", "evict")),
    ],
)
def test_log_topics(value, topics):
    assert Environment.read({"LAZYTRACE_LOG": value}) == Environment(log=topics)


def test_report_target_that_is_not_understood():
    with pytest.raises(OptionError) as caught:
        Environment.read({"LAZYTRACE_REPORT": "run.pdf"})
    assert str(caught.value) == (
        "environment variable LAZYTRACE_REPORT='run.pdf' is not understood: set it to 1, text, a file that "
        "ends with .json, .csv, .html, .trace or .txt, or a folder with a slash, or unset it."
    )


def test_log_topic_that_is_not_understood():
    with pytest.raises(OptionError) as caught:
        Environment.read({"LAZYTRACE_LOG": "retraces,eager"})
    assert str(caught.value) == (
        "environment variable LAZYTRACE_LOG='retraces,eager' is not understood: set it to all, or some of "
        "record, retrace, eager, evict with commas between, or unset it."
    )


def test_environment_of_the_process(monkeypatch):
    monkeypatch.delenv("LAZYTRACE_DISABLE", raising=False)
    monkeypatch.setenv("LAZYTRACE_REPORT", "1")
    assert Environment.read() == Environment(report="text")


@pytest.mark.parametrize("variable", ["LAZYTRACE_DISABLE"])
def test_environment_that_is_not_understood(variable):
    with pytest.raises(OptionError) as caught:
        Environment.read({variable: "2"})
    assert str(caught.value) == (
        f"environment variable {variable}='2' is not understood: "
        "set it to 1, true, yes, on, 0, false, no or off, or unset it."
    )


def test_builtin_bases():
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.NotTraceableError, TypeError)
    for kind in (errors.UntraceableError, errors.CacheLimitError, errors.ReplayError):
        assert issubclass(kind, RuntimeError)
        assert issubclass(kind, errors.LazytraceError)
    for kind in (errors.ExtensionWarning, errors.ProofWarning):
        assert issubclass(kind, errors.LazytraceWarning)
        assert issubclass(kind, UserWarning)


def test_texts():
    assert errors.missing_extension("it is not there") == (
        "lazytrace._core cannot be used: it is not there. "
        "Every call runs eagerly: results are right, nothing is replayed. "
        "To build it, run `python setup.py build_ext --inplace` in the source folder of lazytrace, "
        "with this Python and a C++17 compiler."
    )
    assert errors.cache_limit("step", 2, 3) == (
        "step: cache_limit=2 was reached and this call needs trace 3, with on_limit='raise'. "
        "Pass cache_limit=3 or more, or on_limit='evict' or 'eager' to carry on at the limit; "
        "lazytrace.report() says what keeps changing."
    )
    assert errors.untraceable("step", "calls x.tolist() (train.py:41)") == (
        "step: this call cannot be replayed, with on_untraceable='raise': calls x.tolist() (train.py:41). "
        "Take that out of the function, or pass on_untraceable='eager' to run such calls eagerly."
    )
    assert errors.replay_diverged("step", "step 4 gave 3 rows, recorded 5") == (
        "step: the replay differs from its recording: step 4 gave 3 rows, recorded 5. "
        "It had already changed its inputs, state or random numbers, so the call was stopped halfway. "
        "Restore what the function writes, then call its `.original`, "
        "or pass backend='eager' where you decorate it."
    )
    assert errors.proof_failed("step", "output 0 differs by 0.5") == (
        "step: a replay right after recording differs from the eager call: output 0 differs by 0.5. "
        "The eager result was returned, and calls with this signature run eagerly from now on. "
        "This is a bug of lazytrace: please report it together with the function."
    )


def test_texts_for_what_cannot_be_decorated():
    assert errors.not_callable("x" * 100) == (
        f"traced('{'x' * 76}...): an object of type str cannot be called. "
        "Decorate a function, a method or an nn.Module."
    )
    assert errors.not_callable(Rude()).startswith("traced(<Rude object>): an object of type Rude cannot")
    line = function_to_name.__code__.co_firstlineno
    assert errors.coroutine(function_to_name) == (
        f"traced(function_to_name (test_config.py:{line})): an `async def` suspends in the middle of a call, "
        "which cannot be recorded. Decorate the plain function that it calls between two awaits."
    )
    assert errors.generator(function_to_name) == (
        f"traced(function_to_name (test_config.py:{line})): a generator suspends in the middle of a call, "
        "which cannot be recorded. Decorate the plain function that makes one item."
    )
    assert errors.generator(3).startswith("traced(3): a generator suspends")
