"""The report in every format: structure, what is written where, and the page in a real browser."""

from __future__ import annotations

import csv
import html
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lazytrace
from lazytrace import CompileProfiler, Snapshot, traced
from lazytrace.stats import (
    Event,
    Hit,
    Process,
    Program,
    Reason,
    Report,
    Retrace,
    Step,
    formatted,
    merged,
    read,
    since,
)
from lazytrace.stats.report.output import not_written, on_terminal, own_path
from tests.processes import environment, python

ROOT = Path(__file__).resolve().parent.parent
X = torch.tensor([-1.0, 0.5, 2.0])
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

EVENTS = (
    Event(
        "recorded", "step", 1, 100.0, 0.5, "Main", 140_000_000_000, "a.py:9", {"k": "1"}, (Reason("first"),)
    ),
    Event(
        "recorded",
        "step",
        2,
        101.0,
        0.25,
        "Worker",
        140_000_000_001,
        "a.py:9",
        {"k": "<i>2</i>"},
        (Reason("k", "1", "<i>2</i>", "value"),),
        True,
        operators=2,
    ),
    Event(
        "eager",
        "step",
        3,
        102.0,
        0.125,
        "Main",
        140_000_000_000,
        "a.py:12",
        {},
        (Reason("prints", kind="eager"),),
    ),
    Event(
        "evicted", "step", 4, 103.0, 0.0, "Main", 140_000_000_000, "", {}, (Reason("limit", kind="limit"),)
    ),
)
STEP = Snapshot(
    "step",
    hits=8,
    recordings=2,
    retraces=1,
    evictions=1,
    eager={"prints (a.py:3)": 3},
    seconds_recording=0.75,
    seconds_eager=0.125,
    retrace_reasons=(Retrace("k 1 -> 2", 1, 0.25, ("k",), "a.py:9"),),
    cache_size=1,
    cache_limit=1,
    limit_enough=2,
    parameters="(x, k)",
    eager_seconds={"prints (a.py:3)": 0.125},
    eager_called_at={"prints (a.py:3)": "a.py:12"},
    events=EVENTS,
    timeline=(Hit(100.75, 0.002, 0.0005, "Main", 140_000_000_000),),
    hits_timed=1,
    seconds_hits=0.002,
    seconds_checking=0.0005,
    programs=(
        Program(
            "x: float32[3], k: 1", 0, 2, 7, ("is_nonzero True (a.py:4)",), True, True, 12, 0,
            (Step("0  r1 = aten::tanh(r0)", "a.py:4", "y = torch.tanh(x) if x < 1 else x"),),
        ),
        Program("x: float32[3], k: 1", 0, 3, 7, ("is_nonzero False (a.py:4)",)),
    ),
    source="a.py:1",
)  # fmt: skip
REPORT = Report((STEP, Snapshot("idle")), (Process(7, "here", "", "train.py --fast", 0.0),), (0, 0))


# ---------------------------------------------------------------- json
def test_json_gives_the_report_back():
    plain = json.loads(formatted(REPORT, "json"))
    assert Report.from_dict(plain) == REPORT
    assert [one["name"] for one in plain["functions"]] == ["step", "idle"]
    assert plain["processes"] == [
        {"pid": 7, "host": "here", "rank": "", "command": "train.py --fast", "written": 0.0}
    ]
    assert [one["pattern"] for one in plain["suggestions"]] == ["repeated eager call"]


def test_json_of_a_running_function(tmp_path):
    @traced(name="in_json")
    def step(x):
        return x * 2 if x.sum() > 0 else x * 3

    step(X), step(-X)
    plain = json.loads(lazytrace.report(format="json"))
    (found,) = [one for one in plain["functions"] if one["name"] == "in_json"]
    assert (found["calls"], found["retraces"], len(found["events"])) == (2, 1, 2)
    programs = found["programs"]
    assert [one["signature_id"] for one in programs] == [0, 0]
    assert [one["reads"][0].split(" (")[0] for one in programs] == ["is_nonzero True", "is_nonzero False"]
    sources = {step["source"] for one in programs for step in one["steps"]}
    assert sources == {"return x * 2 if x.sum() > 0 else x * 3"}


def test_another_format():
    with pytest.raises(
        ValueError, match=re.escape("report(format='pdf'): format must be one of text, json, ")
    ):
        lazytrace.report(format="pdf")


# ---------------------------------------------------------------- csv
def test_csv():
    header, *rows = csv.reader(formatted(REPORT, "csv").splitlines())
    assert header == ["process", "function", "what", "detail", "count", "seconds", "where"]
    assert [row[2:] for row in rows] == [
        ["calls", "", "13", "", "a.py:1"],
        ["hits", "", "8", "0.002", "a.py:1"],
        ["recordings", "", "2", "0.75", "a.py:1"],
        ["retraces", "", "1", "", "a.py:1"],
        ["eager_calls", "", "3", "0.125", "a.py:1"],
        ["inlined", "", "0", "", "a.py:1"],
        ["evictions", "", "1", "", "a.py:1"],
        ["proof_failures", "", "0", "", "a.py:1"],
        ["retrace reason", "k 1 -> 2", "1", "0.25", "a.py:9"],
        ["eager reason", "prints (a.py:3)", "3", "0.125", "a.py:12"],
        ["limit that is enough", "cache_limit=2", "2", "", "a.py:1"],
        [
            "suggestion",
            "repeated eager call: ran eagerly 3 times, prints (a.py:3): take that out of the traced "
            "function, or wrap the helper that does it in lazytrace.opaque.",
            "3",
            "",
            "",
        ],
    ]
    assert {row[0] for row in rows[:-1]} == {"here:7"}


# ---------------------------------------------------------------- chrome
def test_chrome_trace():
    trace = json.loads(formatted(REPORT, "chrome"))["traceEvents"]
    names = [(one["name"], one["args"]["name"]) for one in trace if one["ph"] == "M"]
    assert names == [("process_name", "here:7"), ("thread_name", "Main"), ("thread_name", "Worker")]
    slices = [(one["name"], one["tid"], one["ts"], one["dur"]) for one in trace if one["ph"] == "X"]
    assert slices == [
        ("record step", 1, 0.0, 500_000.0),
        ("retrace step", 2, 1_000_000.0, 250_000.0),
        ("eager step", 1, 2_000_000.0, 125_000.0),
        ("replay step", 1, 750_000.0, 2000.0),
        ("check step", 1, 750_000.0, 500.0),
    ]
    (instant,) = [one for one in trace if one["ph"] == "i"]
    assert (instant["name"], instant["ts"], instant["s"]) == ("evict step", 3_000_000.0, "t")
    retrace = next(one for one in trace if one["name"] == "retrace step")
    assert retrace["args"] == {
        "reasons": ["k 1 -> <i>2</i>"],
        "called at": "a.py:9",
        "signature": "k: <i>2</i>",
        "number": 2,
        "operators": 2,
    }


def test_slices_of_a_thread_nest(tmp_path):
    lazytrace.time_hits()
    try:
        step = traced(lambda x: x * 2, name="nested_slices")
        for _ in range(5):
            step(X)
    finally:
        lazytrace.time_hits(False)
    trace = json.loads(lazytrace.report(format="chrome"))["traceEvents"]
    mine = [one for one in trace if one["name"].endswith(" nested_slices") and one["ph"] == "X"]
    whole = [one for one in mine if one["cat"] != "check"]
    assert [one["cat"] for one in whole] == ["record", "replay", "replay", "replay", "replay"]
    for one, following in itertools.pairwise(whole):
        assert one["ts"] + one["dur"] <= following["ts"] + 0.01
    checks = [one for one in mine if one["cat"] == "check"]
    for check, replay in zip(checks, whole[1:], strict=True):
        assert (check["ts"], check["dur"] <= replay["dur"]) == (replay["ts"], True)


# ---------------------------------------------------------------- timed hits
def test_hits_are_timed_only_while_asked():
    early = traced(lambda x: x * 2)
    early(X), early(X)
    lazytrace.time_hits()
    try:
        late = traced(lambda x: x * 2)
        late(X)
        for _ in range(3):
            assert torch.equal(early(X), X * 2)
            assert torch.equal(late(X), X * 2)
    finally:
        lazytrace.time_hits(False)
    early(X), late(X)
    assert (early.stats().hits, early.stats().hits_timed) == (5, 3)
    assert (late.stats().hits, late.stats().hits_timed) == (4, 3)
    assert len(late.stats().timeline) == 3
    assert late.stats().seconds_checking > 0
    assert late.stats().seconds_hits > 0
    assert "call" not in vars(late._self_engine)


def test_timed_calls_are_counted_as_others_are():
    lazytrace.time_hits()
    try:
        inner = traced(lambda x: x * 2)
        outer = traced(lambda x: inner(x) + 1)
        outer(X), outer(X)
        eager = traced(lambda x: x * len(x.repeat(99, 1).tolist()[0]))
        eager(X), eager(X)
        with pytest.raises(TypeError):
            inner()
    finally:
        lazytrace.time_hits(False)
    assert (outer.stats().hits, inner.stats().inlined, eager.stats().eager_calls) == (1, 1, 2)
    assert inner.stats().calls == 2


# ---------------------------------------------------------------- compile_times
def test_compile_times():
    from lazytrace.stats.report.tables import compile_times_of

    other = Snapshot("other", recordings=1, seconds_recording=1.0)
    step = replace(STEP, seconds_run=0.4, seconds_verdict=0.2, seconds_lowering=0.05, seconds_proof=0.1)
    phases = ("recording", "run", "verdict", "lowering", "proof", "checking", "replaying", "eager")
    table = compile_times_of([step, other, Snapshot("idle")], "str").splitlines()
    assert table[0] == "lazytrace recording metrics:"
    assert re.split("  +", table[1]) == ["Function", *(f"{phase} (s)" for phase in phases)]
    assert [row.split() for row in table[3:]] == [
        ["other", "1.000000", *["0.000000"] * 7],
        [
            "step",
            *["0.750000", "0.400000", "0.200000", "0.050000", "0.100000", "0.000500", "0.002000", "0.125000"],
        ],
    ]
    assert len({len(row) for row in table[1:]}) == 1
    assert compile_times_of([step], "csv") == ([f"step.{phase}" for phase in phases], table[4].split()[1:])


def test_compile_times_of_the_process():
    step = traced(lambda x: x * 2, name="compile_times_of_the_process")
    step(X)
    assert "compile_times_of_the_process " in lazytrace.compile_times()
    headers, values = lazytrace.compile_times("csv")
    assert float(values[headers.index("compile_times_of_the_process.recording")]) > 0


# ---------------------------------------------------------------- CompileProfiler
def test_profiler_counts_its_block_only():
    step = traced(lambda x, k: x * k, name="profiled", dynamic=False)
    step(X, 1), step(X, 1), step(X, 2)
    with CompileProfiler() as profiler:
        step(X, 1), step(X, 3), step(X, 3)
        running = profiler.get_metrics()
    step(X, 4)
    metrics = profiler.get_metrics()
    assert metrics == running
    assert {k: v for k, v in metrics.items() if not k.startswith("seconds")} == {
        "calls": 3,
        "hits": 2,
        "recordings": 1,
        "retraces": 1,
        "eager_calls": 0,
        "inlined": 0,
        "evictions": 0,
        "functions": {"profiled": {k: v for k, v in metrics.items() if k != "functions"}},
    }
    assert metrics["seconds_recording"] > 0
    assert "profiled(x, k): k 2 -> 3   x1" in profiler.report()
    assert "1 -> 2" not in profiler.report()
    assert "-> 4" not in profiler.report()


def test_profiler_counts_what_is_gone_at_the_end():
    with CompileProfiler() as profiler:
        traced(lambda x: x * 2, name="gone")(X)
    assert list(profiler.get_metrics()["functions"]) == ["gone"]


def test_profiler_counts_all_threads():
    step = traced(lambda x: x * 2, name="threads")
    with CompileProfiler() as profiler:
        worker = threading.Thread(target=step, args=(X,))
        worker.start()
        worker.join()
    assert profiler.get_metrics()["functions"]["threads"]["recordings"] == 1


def test_since():
    before = Snapshot("step", hits=2, eager={"a": 1}, eager_seconds={"a": 0.5}, seconds_eager=0.5)
    after = Snapshot(
        "step",
        hits=5,
        recordings=1,
        eager={"a": 1, "b": 2},
        eager_seconds={"a": 0.5, "b": 0.25},
        seconds_eager=0.75,
        operators=(7,),
    )
    found = since(before, after)
    assert (found.calls, found.hits, found.eager, found.seconds_eager) == (6, 3, {"b": 2}, 0.25)
    assert (found.eager_seconds, found.operators) == ({"b": 0.25}, (7,))


# ---------------------------------------------------------------- where it goes
def test_own_path():
    plain, rank = Process(7, "a b"), Process(7, "here", "3")
    assert str(own_path("out/run.html", plain, child=False)) == "out/run.html"
    assert str(own_path("out/run.html", plain, child=True)) == "out/run.7.html"
    assert str(own_path("out/run.html", rank, child=False)) == "out/run.rank3.html"
    assert str(own_path("out/run.html", Process(7, "here", "0"), child=False)) == "out/run.html"
    assert str(own_path("out/", plain, child=True)) == "out/lazytrace-a_b-7.json"
    assert str(own_path("out/", rank, child=False)) == "out/lazytrace-here-rank3-7.json"


PROGRAM = """
import torch
from lazytrace import traced

def work(n):
    step(torch.ones(n))

@traced
def step(x):
    return x * 2

if __name__ == "__main__":
    for n in (1, 1, 2):
        step(torch.ones(n))
"""

WORKERS = """
    import multiprocessing
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(n,)) for n in (1, 5)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
"""


def run(directory: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (directory / "program.py").write_text(program)
    done = python("program.py", cwd=directory, **variables)
    done.check_returncode()
    return done


@pytest.mark.parametrize(
    ("target", "start"),
    [
        ("new/run.json", '{\n "lazytrace report": 1,'),
        ("run.csv", "process,function,what,"),
        ("run.html", "<!doctype html>"),
        ("run.trace", '{"displayTimeUnit": "ms", "traceEvents": [{'),
        ("run.txt", "lazytrace: 1 function, 3 calls: 1 hit "),
    ],
)
def test_report_at_exit(tmp_path, target, start):
    assert run(tmp_path, PROGRAM, LAZYTRACE_REPORT=target).stderr == ""
    assert (tmp_path / target).read_text().startswith(start)


def test_report_at_exit_of_a_command_with_redirected_output(tmp_path):
    """What draws the report is imported when the interpreter is about to end."""
    command = PROGRAM + "import sys; assert 'rich' not in sys.modules; print('done')"
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        subprocess.run(
            [sys.executable, "-c", command],
            cwd=tmp_path,
            env=environment(LAZYTRACE_REPORT="1"),
            stdout=out,
            stderr=err,
            timeout=120,
            check=True,
        )
    assert (tmp_path / "out").read_text() == "done\n"
    assert (tmp_path / "err").read_text().startswith("lazytrace: 1 function, 3 calls: 1 hit ")


def test_report_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = run(tmp_path, PROGRAM, LAZYTRACE_REPORT="file/run.json")
    assert done.stderr == (
        "lazytrace: the report was not written to file/run.json: File exists. "
        "Name a place that can be written to.\n"
    )
    assert not_written("a.json", OSError("full")) == (
        "lazytrace: the report was not written to a.json: full. Name a place that can be written to."
    )


@pytest.mark.parametrize(
    ("dynamic", "counted"),
    [
        (None, [(1, 0), (1, 0), (1, 2)]),  # size 5 hits the program for all sizes that the parent recorded
        (False, [(0, 1), (1, 0), (1, 2)]),
    ],
)
def test_each_process_writes_its_own(tmp_path, dynamic, counted):
    program = PROGRAM.replace("@traced", f"@traced(dynamic={dynamic})") + WORKERS
    run(tmp_path, program, LAZYTRACE_REPORT="runs/")
    assert len(list((tmp_path / "runs").glob("*.json"))) == 3
    report = read(str(tmp_path / "runs"))
    assert sorted((s.hits, s.recordings) for s in report.functions) == counted
    assert len({report.processes[owner].pid for owner in report.owners}) == 3


def test_reports_merge():
    found = merged([REPORT, REPORT])
    assert (found.owners, len(found.processes)) == ((0, 0, 1, 1), 2)
    assert "here:7" in formatted(found, "html")


def test_what_cannot_be_read(tmp_path):
    text = (
        "{0} cannot be read as a report: {1}. Write one with LAZYTRACE_REPORT=report.json, or with "
        "python -m lazytrace run --report report.json."
    )
    path = tmp_path / "a.json"
    for content, why in (
        ("{}", "it holds no report of lazytrace"),
        ("[]", "it holds no report of lazytrace"),
        ('{"lazytrace report": 99}', "it was written by another version (format 99)"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match="cannot be read") as caught:
            read(str(path))
        assert str(caught.value) == text.format(path, why)
    path.unlink()
    with pytest.raises(ValueError, match="holds no") as caught:
        read(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path} holds no .json reports. Run the program with LAZYTRACE_REPORT={tmp_path}/ first."
    )


# ---------------------------------------------------------------- terminals
def test_text_fits_the_terminal(monkeypatch):
    class Terminal:
        def isatty(self):
            return True

        def fileno(self):
            return 1

    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((60, 24)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert on_terminal(REPORT, Terminal()) == formatted(REPORT, "text", 60, color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert on_terminal(REPORT, Terminal()) == formatted(REPORT, "text", 60)
    assert on_terminal(REPORT, object()) == formatted(REPORT, "text")


# ---------------------------------------------------------------- html
def test_html_is_one_file_and_escapes_what_it_shows():
    text = formatted(REPORT, "html")
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    assert "<i>2</i>" not in text
    assert "<del>1</del><ins>&lt;i&gt;2&lt;/i&gt;</ins>" in text
    assert "y = torch.tanh(x) if x &lt; 1 else x" in text
    assert "cache_limit=2 would have been enough" in text
    assert text.count('<tr><td><a href="#f') == 1


def test_html_of_nothing():
    assert "<p>No traced function was called.</p>" in formatted(Report.of([]), "html")


FRAME = 'frameborder="0" onload="document.body.dataset.seen = this.contentDocument.body.dataset.seen"'
PROBE = """<script>
const rows = () => [...document.querySelectorAll("#functions tbody tr")].map(r =>
r.cells[0].innerText.trim()); const seen = {before: rows()};
const heads = [...document.querySelectorAll("#functions th")];
heads[2].click(); seen.calls = rows(); heads[2].click(); seen.callsAgain = rows();
heads[0].click(); heads[0].click(); seen.names = rows();
seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
seen.width = window.innerWidth;
seen.marks = [...document.querySelectorAll(".timeline i")].map(i => i.className);
seen.outside = [...document.querySelectorAll(".timeline i")].filter(
  i => i.offsetLeft + i.offsetWidth > i.parentNode.clientWidth + 3).length;
document.querySelectorAll("details").forEach(d => d.open = true);
seen.opened = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.body.dataset.seen = JSON.stringify(seen);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
@pytest.mark.parametrize("width", [360, 1280])
def test_html_in_a_browser(tmp_path, width):
    others = (
        Snapshot("many", hits=900, recordings=1, seconds_recording=0.001, cache_limit=64),
        Snapshot("a_function_with_a_very_long_name_" * 3, hits=20, recordings=1, cache_limit=64),
    )
    report = Report((STEP, *others), REPORT.processes, (0, 0, 0))
    file = tmp_path / "run.html"
    # A window cannot be as narrow as a phone, a frame in it can.
    page = html.escape(formatted(report, "html").replace("</body>", PROBE))
    file.write_text(f'<body><iframe srcdoc="{page}" style="width:{width}px;height:900px" {FRAME}></iframe>')
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--dump-dom"),
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, done.stdout[-2000:]
    seen = json.loads(found[1].replace("&quot;", '"'))
    long = others[1].name
    assert seen["width"] == width
    assert seen["before"] == ["step", "many", long]
    assert seen["calls"] == ["many", long, "step"]
    assert seen["callsAgain"] == ["step", long, "many"]
    assert seen["names"] == [long, "many", "step"]
    assert (seen["overflow"], seen["opened"], seen["outside"]) == (0, 0, 0)
    assert seen["marks"] == ["record", "hit", "retrace", "eager", "evict"]
