"""A complete GLUE submission: the best finished run of each task predicts its test sets, all or nothing."""

import logging
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.spec import DataSpec
from ..errors import UserError
from ..files import shown, whole
from ..tasks.glue import FILES, GlueFile, majority, unlike_the_test_set
from ..tasks.spec import TaskSpec
from .finished import OF_ONE_TASK, open_run
from .predict import glue_test_set, write_glue
from .run_folder import read_config, read_metrics, read_status

log = logging.getLogger("attnlab")

TASKS = tuple(dict.fromkeys(file.task for file in FILES))
TRAINED = tuple(dict.fromkeys(file.trained for file in FILES))
DOWNLOAD = "python download_glue_data.py --data_dir glue_data --tasks all, then data.root=glue_data"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A finished run of a GLUE task. score: its metric on val, the more the better."""

    folder: Path
    task: str
    metric: str
    score: float


def submit(
    folders: Sequence[Path],
    output: Path,
    *,
    tasks: Mapping[str, Mapping[str, Any]],
    data: Mapping[str, object] | None = None,
    wnli_majority: bool = False,
) -> dict[str, Candidate]:
    """Write `output`, a zip of GLUE's eleven files, and return the run that each task was predicted with.

    tasks: the config groups of the tasks, by name. data: overrides of the runs' data groups. The zip appears when all
    of it is written. Raises UserError, with all that is missing and what to type, before anything is predicted.
    """
    found = candidates(folders)
    best = {task: max(runs, key=lambda run: run.score) for task, runs in found.items()}
    if wnli_majority:
        best.pop("wnli", None)
    missing = [*_missing_runs(best, wnli_majority), *_missing_tests(best, tasks, data)]
    if missing:
        lines = "".join(f"\n  - {one}" for one in missing)
        raise UserError(f"the submission would be incomplete, so {output} was not written. Missing:{lines}")
    for task, run in best.items():
        count = len(found[task])
        chosen = f", the best of {count} runs" if count > 1 else ""
        log.info("%s: %s (val %s %.4f%s)", task, shown(run.folder), run.metric, run.score, chosen)
    with tempfile.TemporaryDirectory(prefix=".glue-", dir=output.parent) as scratch:
        for file in FILES:
            _write(file, Path(scratch) / file.name, best.get(file.trained), tasks, data)
        draft = Path(scratch) / output.name
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in FILES:
                archive.write(Path(scratch) / file.name, file.name)
        draft.replace(output)
    return best


def candidates(folders: Sequence[Path]) -> dict[str, list[Candidate]]:
    """The finished runs of GLUE tasks in or below the folders, by task."""
    found: dict[str, list[Candidate]] = {}
    paths = dict.fromkeys(path.parent.resolve() for folder in folders for path in sorted(folder.glob("**/status.json")))
    for folder in paths:
        try:
            settings = read_config(folder)
        except UserError:
            continue
        config = settings["task"]
        task = str(config.get("name"))
        if task not in TRAINED or read_status(folder) != "done" or not (folder / "model" / "config.json").is_file():
            continue
        short = settings["data"].get("limit") or settings["trainer"].get("fast") or settings["data"].get("train")
        if short:
            log.info("%s: %s left out: not trained on all of the task's own data", task, shown(folder))
            continue
        metric = TaskSpec.from_config(config, ()).metrics[0]
        score = read_metrics(folder).get("val", {}).get(metric)
        if score is not None:
            found.setdefault(task, []).append(Candidate(folder=folder, task=task, metric=metric, score=score))
    return found


def _missing_runs(best: Mapping[str, Candidate], wnli_majority: bool) -> list[str]:
    missing = []
    for task in TRAINED:
        if task in best or (task == "wnli" and wnli_majority):
            continue
        names = " ".join(file.name for file in FILES if file.trained == task)
        line = f"{names}: no finished run of task={task}: type python train.py task={task}"
        if task == "wnli":
            line += ", or add wnli=majority, which is customary: it answers not_entailment throughout"
        missing.append(line)
    return missing


def _missing_tests(
    best: Mapping[str, Candidate], tasks: Mapping[str, Mapping[str, Any]], data: Mapping[str, object] | None
) -> list[str]:
    missing = []
    for file in FILES:
        if file.trained not in best:
            continue
        settings = read_config(best[file.trained].folder)["data"]
        overrides = settings | dict.fromkeys(OF_ONE_TASK) | dict(data or {})
        try:
            _, keys = glue_test_set(DataSpec.from_config(tasks[file.task], overrides), file)
        except UserError as error:
            first = str(error).splitlines()[0]
            missing.append(f"{file.name}: no test data of task={file.task} split={file.split} ({first}): {DOWNLOAD}")
            continue
        unlike = unlike_the_test_set(file, keys)
        if unlike:
            missing.append(f"{file.name}: not the official test set of task={file.task}: {unlike}. Use it: {DOWNLOAD}")
    return missing


def _write(
    file: GlueFile,
    path: Path,
    run: Candidate | None,
    tasks: Mapping[str, Mapping[str, Any]],
    data: Mapping[str, object] | None,
) -> None:
    if run is None:
        assert file.task == "wnli"
        with whole(path) as out:
            out.writelines(majority(file))
        log.info("%s: not_entailment throughout (wnli=majority)", file.name)
        return
    count = write_glue(open_run(run.folder, task=tasks[file.task], data=data), file, path)
    log.info("%s: %s rows", file.name, f"{count:,}")
