"""Recordings in figures: phases, the newest of all functions, the limit over all, reset, what is written."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import weakref
from pathlib import Path

import pytest
import torch

import lazytrace
from lazytrace import ProofWarning, traced
from lazytrace._native import core
from lazytrace.cli import main
from lazytrace.debugging import run_again
from tests.processes import python

X = torch.ones(2)
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def nothing_before():
    lazytrace.clear_recording_metrics()
    yield
    lazytrace.set_recording_metrics_limit(64)


# ---------------------------------------------------------------- phases and the newest recordings
def test_what_a_recording_took():
    step = traced(lambda x: torch.relu(x * 2), name="step")
    step(X)
    step(X)
    (one,) = lazytrace.recording_metrics()
    assert (one.function, one.outcome, one.reason, one.retrace) == ("step", "stored", "", False)
    assert (one.operators, one.cache_size) == (2, 1)
    assert one.guards > 0
    assert one.where.startswith("test_metrics.py:")
    assert all(seconds > 0 for seconds in (one.phases.run, one.phases.verdict, one.phases.proof))
    assert sum(one.phases) <= one.seconds
    counted = step.stats()
    phases = (counted.seconds_run, counted.seconds_verdict, counted.seconds_lowering, counted.seconds_proof)
    assert phases == tuple(one.phases)


def test_without_a_proof():
    step = traced(lambda x: x * 2, check=False)
    step(X)
    assert step.stats().seconds_proof < step.stats().seconds_run


def test_recordings_that_were_given_up():
    step = traced(lambda x: x * len(x.repeat(99, 1).tolist()[0]), name="escapes")
    step(X)
    (one,) = lazytrace.recording_metrics()
    assert (one.outcome, one.operators) == ("given up", 0)
    assert "tolist" in one.reason
    assert one.phases.run > 0


def test_only_the_newest_are_kept():
    lazytrace.set_recording_metrics_limit(2)
    for name in ("a", "b", "c"):
        traced(lambda x: x * 2, name=name)(X)
    assert [one.function for one in lazytrace.recording_metrics()] == ["b", "c"]
    lazytrace.set_recording_metrics_limit(1)
    assert [one.function for one in lazytrace.recording_metrics()] == ["c"]
    lazytrace.clear_recording_metrics()
    assert lazytrace.recording_metrics() == []


def test_the_cache_grows():
    step = traced(lambda x: x * 2, dynamic=False, name="grows")
    for n in (1, 2, 3):
        step(torch.ones(n))
    found = lazytrace.recording_metrics()
    assert [(one.cache_size, one.retrace) for one in found] == [(1, False), (2, True), (3, True)]


def test_aggregated_times():
    for name in ("one", "two"):
        traced(lambda x: x * 2, name=name)(X)
    headers, values = lazytrace.compile_times("csv", aggregate=True)
    assert headers[:5] == [
        *("all functions.recording", "all functions.run", "all functions.verdict"),
        *("all functions.lowering", "all functions.proof"),
    ]
    assert len(values) == len(headers)
    each, seconds = lazytrace.compile_times("csv")
    runs = [float(s) for name, s in zip(each, seconds, strict=True) if name.endswith(".run")]
    assert float(values[1]) == pytest.approx(sum(runs), abs=1e-5 * len(runs))
    assert "all functions" in lazytrace.compile_times(aggregate=True)


# ---------------------------------------------------------------- reset
def test_reset():
    class Scaler:
        @traced
        def run(self, x):
            return x * 2

    step, refused, scaler = (
        traced(lambda x: x + 1),
        traced(lambda x: x * len(x.repeat(99, 1).tolist()[0])),
        Scaler(),
    )
    for _ in range(9):
        for f in (step, refused, scaler.run):
            f(X)
    step.freeze(state=True)
    hits = step.stats().hits
    lazytrace.reset()
    assert [f.cache_info().currsize for f in (step, refused, scaler.run)] == [0, 0, 0]
    assert lazytrace.recording_metrics() == []
    assert step.stats().hits == hits
    assert step.stats().promised == 0
    assert torch.equal(step(X), X + 1)
    assert step.stats().recordings == 2
    refused(X)
    assert lazytrace.recording_metrics()[-1].outcome == "given up"


# ---------------------------------------------------------------- the limit over all functions
LIMITED = """
import torch, lazytrace
from lazytrace import traced

class Scaler:
    @traced(dynamic=False)
    def run(self, x):
        return x * 2

step, other = traced(lambda x: x + 1, dynamic=False, name="step"), traced(lambda x: x - 1, name="other")
one, two = Scaler(), Scaler()
x, y = torch.ones(1), torch.ones(2)
step(x), one.run(x), two.run(x)          # three traces: as many as fit
step(x)                                  # used again
other(x)                                 # the oldest goes: that of `one`
assert (one.run.cache_info().currsize, two.run.cache_info().currsize) == (0, 1)
assert (step.cache_info().currsize, other.cache_info().currsize) == (1, 1)
assert Scaler.run.stats().evictions == 1
event = [e for e in Scaler.run.stats().events if e.kind == "evicted"][-1]
assert str(event.reasons[0]) == "LAZYTRACE_TOTAL_LIMIT=3 was reached", event
step.freeze()
for n in range(3, 8):
    two.run(torch.ones(n))
assert step.cache_info().currsize == 1   # frozen: it could not be recorded again
assert sum(f.cache_info().currsize for f in (step, other, one.run, two.run)) == 3
assert torch.equal(one.run(x), x * 2)
print("done")
"""


def run_script(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return python("-c", code, **environ)


def test_a_limit_over_all_functions_and_instances():
    done = run_script(LIMITED, LAZYTRACE_TOTAL_LIMIT="3")
    assert done.stdout == "done\n", done.stderr


def test_the_limit_is_checked():
    done = run_script("import lazytrace", LAZYTRACE_TOTAL_LIMIT="many")
    assert "environment variable LAZYTRACE_TOTAL_LIMIT='many' is not understood" in done.stderr
    assert lazytrace.reason_code("LAZYTRACE_TOTAL_LIMIT=3 was reached") == "total-limit"


# ---------------------------------------------------------------- what is written down
@pytest.fixture
def written(tmp_path):
    stop = lazytrace.write_recordings(str(tmp_path / "debug"))
    yield tmp_path / "debug"
    stop()


def test_nothing_is_made_before_there_is_something_to_write(written):
    step = traced(lambda x: x * len(x.repeat(99, 1).tolist()[0]))
    step(X)
    assert not written.exists()
    traced(lambda x: x * 2, name="Net.forward <1>")(X)
    (run,) = written.iterdir()
    assert run.name.startswith("run_")
    assert run.name.endswith(f"-pid_{os.getpid()}")
    assert [folder.name for folder in run.iterdir()] == ["0000-Net.forward_1"]


def test_what_is_written(written):
    scale = torch.tensor(2.0)
    step = traced(lambda x: x * scale, name="step")
    step(X)
    step(X)
    (folder,) = written.glob("run_*/0000-step")
    assert (folder / "listing.txt").read_text() == f"{step.program(X).listing()}\n"
    assert "scale" in (folder / "guards.txt").read_text()
    event = json.loads((folder / "event.json").read_text())
    assert (event["kind"], event["function"], event["operators"]) == ("recorded", "step", 1)
    with pytest.raises(FileNotFoundError, match="no failed proof"):
        list(run_again(written))


def fail_proofs(monkeypatch) -> None:
    monkeypatch.setattr(core.Trace, "prove", lambda self, call: "output differs in value")


def test_a_failed_proof_is_run_again(written, monkeypatch, capsys):
    fail_proofs(monkeypatch)
    net = torch.nn.Linear(2, 2)
    step = traced(lambda x, k: {"y": net(x) * k}, name="step")
    with pytest.warns(ProofWarning):
        step(X, 3.0)
    assert step.cache_info().currsize == 0
    (folder,) = written.glob("run_*/0000-step-failed-proof")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["call.pt", "event.json", "guards.txt", "listing.txt", "program.zip", "why.txt"]
    assert (folder / "why.txt").read_text() == "output differs in value\n"
    # It goes well now.
    assert main(["replay", str(written)]) == 0
    assert capsys.readouterr().out == f"{folder}: the same as the plain call\n"
    call = torch.load(folder / "call.pt", weights_only=True)
    torch.save({**call, "result": {"y": call["result"]["y"] + 1}}, folder / "call.pt")
    assert main(["replay", str(folder)]) == 1
    assert "result['y']" in capsys.readouterr().out
    (folder / "program.zip").write_bytes(b"no zip")
    assert "it is no zip file" in dict(run_again(folder))[folder]
    assert main(["replay", str(written / "none")]) == 2


def test_a_failed_proof_of_a_function_that_reads_less_than_it_is_given(written, monkeypatch, capsys):
    fail_proofs(monkeypatch)
    step = traced(lambda x, batch_idx: x * 2, name="step")
    with pytest.warns(ProofWarning):
        step(X, 3)
    (folder,) = written.glob("run_*/0000-step-failed-proof")
    assert main(["replay", str(written)]) == 0
    assert capsys.readouterr().out == f"{folder}: the same as the plain call\n"


def test_a_failed_proof_that_a_file_cannot_hold(written, monkeypatch):
    fail_proofs(monkeypatch)

    class Batch:
        x = X

    step = traced(lambda batch: batch.x * 2, name="step")
    with pytest.warns(ProofWarning):
        step(Batch())
    (folder,) = written.glob("run_*/0000-step-failed-proof")
    assert sorted(path.name for path in folder.iterdir()) == [
        *("event.json", "guards.txt", "listing.txt", "why.txt")
    ]
    told = dict(run_again(written))[folder]
    assert told.startswith("output differs in value\nIt cannot be run again from here: ")
    assert "Batch" in told


def test_what_cannot_be_written_is_logged(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    stop = lazytrace.write_recordings(str(tmp_path / "file"))
    try:
        assert torch.equal(traced(lambda x: x * 2)(X), X * 2)
    finally:
        stop()
    assert "LAZYTRACE_DEBUG could not be written" in caplog.text


def test_the_variable(tmp_path):
    code = "import torch, lazytrace; lazytrace.traced(lambda x: x * 2, name='step')(torch.ones(1))"
    done = run_script(code, LAZYTRACE_DEBUG=str(tmp_path / "debug"))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "debug").glob("run_*/*/*.txt")]


def test_what_is_written_down_is_not_kept(tmp_path):
    stop = lazytrace.write_recordings(str(tmp_path))
    net = torch.nn.Linear(2, 2)
    gone = weakref.ref(net)
    traced(net)(X)
    stop()
    del net
    gc.collect()
    assert gone() is None
