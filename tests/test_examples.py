"""The examples, and the programs in the pages, run as a person would run them and say what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import environment, python

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
    """Run a file, or a program given as text, away from the repository; return what it printed.

    A file is started as a user starts it.
    """
    if isinstance(program, Path):
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=directory,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    else:
        done = python("-c", program, cwd=directory)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each example prints; they take a while, so each is run once."""
    return {path.name: run(path, tmp_path_factory.mktemp("run")) for path in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example: Path, printed: dict[str, str]) -> None:
    lines = printed[example.name].splitlines()
    for pattern in EXPECTED[example.name]:
        assert any(re.fullmatch(pattern, line) for line in lines), (pattern, lines)


def test_the_report_leads_to_every_planted_line(printed: dict[str, str]) -> None:
    example = ROOT / "examples" / "retraces.py"
    lines = example.read_text().splitlines()
    planted = {f"retraces.py:{n}" for n, line in enumerate(lines, 1) if "  # planted: " in line}
    assert len(planted) == 5
    text = printed["retraces.py"]
    suggested = set(re.findall(r"retraces\.py:\d+", text.partition("\nSuggestions\n")[2]))
    assert suggested == planted


def test_every_expectation_has_its_example() -> None:
    assert set(EXPECTED) == {path.name for path in EXAMPLES}


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def programs() -> list[tuple[str, str]]:
    """The Python blocks of all pages, each of which stands alone, with the name of its page."""
    pattern = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(page.name, text) for page in PAGES for text in pattern.findall(page.read_text())]


def test_every_page_holds_programs() -> None:
    assert {name for name, _ in programs()} == {page.name for page in PAGES}


@pytest.mark.parametrize("number", range(len(programs())))
def test_program_of_a_page(number: int, tmp_path: Path) -> None:
    run(programs()[number][1], tmp_path)


READING = (ROOT / "docs" / "reading_a_report.md").read_text()


def test_the_page_on_reports_shows_what_its_program_prints(tmp_path: Path) -> None:
    program = next(text for name, text in programs() if name == "reading_a_report.md")
    shown = READING.partition("This prints\n\n```text\n")[2].partition("```")[0]
    assert run(program, tmp_path) == shown


def without_times(text: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d+\.\d( ms)?", "{ms}", text))


def test_the_page_on_reports_shows_what_digits_prints(printed: dict[str, str]) -> None:
    shown = READING.partition("```text\n")[2].partition("```")[0]
    assert shown.startswith("lazytrace: 1 function")
    assert without_times(printed["digits.py"]).endswith(without_times(shown))


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
