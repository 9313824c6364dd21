"""Files of saved programs that were made by hand: some cases of `python -m tests.soundness.hostile_files`."""

from __future__ import annotations

import json
import random
import zipfile
from collections import Counter

import pytest

from lazytrace import FileError, load
from tests.soundness.hostile_files import changed, seeds, try_file


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return seeds(tmp_path_factory.mktemp("seeds"))


def test_they_are_refused_or_run(parts, tmp_path):
    ended = Counter()
    path = tmp_path / "case.zip"
    for number in range(300):
        path.write_bytes(changed(parts, random.Random(number)))
        ended[try_file(path)] += 1
    assert ended["refused"] > 100
    assert ended["called"] > 10


def test_sound_files_are_called(parts, tmp_path):
    for number, files in enumerate(parts):
        path = tmp_path / f"{number}.zip"
        with zipfile.ZipFile(path, "w") as file:
            for name, data in files.items():
                file.writestr(name, data)
        assert try_file(path) == "called"


@pytest.mark.parametrize(
    "change",
    [
        lambda signature: signature.update(containers=[]),
        lambda signature: signature.update(containers=None),
        lambda signature: signature.update(containers={"x": 3}),
        lambda signature: signature.update(leaves=[["x", []]]),
        lambda signature: signature.update(leaves=[[3, {"tensor": {}}]]),
        lambda signature: signature.update(leaves=[["x", {"tensor": None}]]),
        lambda signature: signature.update(leaves=[["x", {"value": 3}]]),
        lambda signature: signature.update(leaves=[["x"]]),
        lambda signature: signature.update(shared=None),
        lambda signature: signature.pop("shared"),
        lambda signature: signature.update(ambient=[]),
    ],
)
def test_what_a_call_looks_like_is_checked_when_it_is_loaded(parts, tmp_path, change):
    description = json.loads(parts[0]["lazytrace.json"])
    change(description["programs"][0]["signature"])
    path = tmp_path / "changed.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts[0].items():
            file.writestr(name, data if name != "lazytrace.json" else json.dumps(description))
    with pytest.raises(FileError):
        load(path)


@pytest.mark.parametrize("device", ["mtia:0", "hpu:0", "xla:0"])
def test_tensors_on_a_device_that_is_not_there(parts, tmp_path, device):
    description = json.loads(parts[0]["lazytrace.json"])
    description["state"][0][3]["device"] = device
    path = tmp_path / "elsewhere.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts[0].items():
            file.writestr(name, data if name != "lazytrace.json" else json.dumps(description))
    with pytest.raises(FileError, match=f"it has a tensor on {device}, which torch cannot reach here: "):
        load(path)


def test_a_zip_of_a_later_version(parts, tmp_path):
    path = tmp_path / "later.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts[0].items():
            file.writestr(name, data)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 230  # the version that is needed, of the first entry
    path.write_bytes(data)
    with pytest.raises(FileError, match="it is no zip file: zip file version 23"):
        load(path)
