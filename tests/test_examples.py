"""The examples, and the programs in the README, run as a person would run them and say what they should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# Patterns of whole lines that the output must hold, in any order.
EXPECTED = {
    "quickstart.py": [
        r"scale 0\.1: norm 0\.6736",
        r"scale 10: norm 0\.8420",
        r"scale 1000: norm 0\.5986",
        r"lazytrace: 1 function, 6 calls: 5 hits .*",
    ],
    "retraces.py": [
        r"lazytrace: 5 functions, 60 calls: 0 hits \(0\.0 %\), 36 recordings .*, 24 eager, 0 inlined",
        r"  gate\(x\): self\.strength changed in 11 ways: 0\.9 -> .*",
        r"  soften\(logits, temperature\): temperature changed in 11 ways: 1\.0 -> 0\.95, .*",
        r"  normalize\(tokens\): tokens\.shape\[0\] changed in 11 ways: 3 -> 4, \.\.\., 13 -> 14   x11, .*",
    ],
    "digits.py": [
        r"epoch 8: loss 0\.0\d+, held out 0\.\d+, accuracy 9[5-9]\.\d\d%",
        r"float64: held out 0\.\d+, accuracy 9[5-9]\.\d\d%",
        r"201 losses equal to the untraced twin's, in .* s",
        r"power iterations took \d+ to \d+ rounds",
        r"lazytrace: 1 function, 201 calls: 197 hits .*",
        r"Retraces",
    ],
}


def run(program: Path | str, directory: Path) -> str:
    """Run a file, or a program given as text, away from the repository; return what it printed."""
    arguments = [str(program)] if isinstance(program, Path) else ["-c", program]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAZYTRACE_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=clean | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example: Path, tmp_path: Path) -> None:
    lines = run(example, tmp_path).splitlines()
    for pattern in EXPECTED[example.name]:
        assert any(re.fullmatch(pattern, line) for line in lines), (pattern, lines)


def test_the_report_leads_to_every_planted_line(tmp_path: Path) -> None:
    example = ROOT / "examples" / "retraces.py"
    lines = example.read_text().splitlines()
    planted = {f"retraces.py:{n}" for n, line in enumerate(lines, 1) if "  # planted: " in line}
    assert len(planted) == 5
    text = run(example, tmp_path)
    suggested = set(re.findall(r"retraces\.py:\d+", text.partition("\nSuggestions\n")[2]))
    assert suggested == planted


def test_every_expectation_has_its_example() -> None:
    assert set(EXPECTED) == {path.name for path in EXAMPLES}


def readme_programs() -> list[str]:
    """The Python blocks of the README, each of which stands alone."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def test_the_readme_holds_programs() -> None:
    assert readme_programs()


@pytest.mark.parametrize("number", range(len(readme_programs())))
def test_readme_program(number: int, tmp_path: Path) -> None:
    run(readme_programs()[number], tmp_path)
