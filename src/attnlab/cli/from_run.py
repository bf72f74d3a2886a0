"""Commands that need a run folder and nothing else: evaluate, predict and export."""

import io
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import yaml
from omegaconf import OmegaConf

from attnlab.cli.choices import conf_dir, group_choices
from attnlab.cli.names import check_choice
from attnlab.cli.overrides import compose_config
from attnlab.cli.resume import require_run
from attnlab.errors import UserError, closest

EVALUATE_HELP = """\
usage: attnlab evaluate run=FOLDER [split=test] [task=NAME] [data.KEY=VALUE ...]

Scores a trained run again: on any split that its task has, on other files, or
on another task with the same labels:
  attnlab evaluate run=outputs/sst2/sparsemax/2026-01-31_10-00-00_s1
  attnlab evaluate run=FOLDER split=test data.test=new.csv
  attnlab evaluate run=MNLI_RUN split=val_mismatched
  attnlab evaluate run=MNLI_RUN task=hans
  attnlab evaluate run=MNLI_RUN task=xnli split=val_zh
"""
PREDICT_HELP = """\
usage: attnlab predict run=FOLDER [input=FILE|-] [output=FILE|-] [format=jsonl]
       attnlab predict run=FOLDER split=NAME [task=NAME] [data.KEY=VALUE ...]
               [format=jsonl|glue|squad] [output=FILE|FOLDER|-]

Answers each row of a jsonl, csv, tsv or parquet file or each line of a txt
file; - means standard input or output, and is the default of both:
  attnlab predict run=FOLDER input=new.jsonl output=labelled.jsonl
  echo "a fine film" | attnlab predict run=FOLDER

Or all rows of a split, hidden labels or not, of the run's task or of another
with the same labels. format=glue writes the benchmark's file, format=squad the
official script's {id: text}, into the run's predictions/ or into output:
  attnlab predict run=FOLDER split=test output=test.jsonl
  attnlab predict run=FOLDER split=test format=glue
  attnlab predict run=MNLI_RUN task=ax split=test format=glue output=glue/
  attnlab predict run=SQUAD_RUN split=val format=squad
  attnlab predict run=SQUAD_RUN input=dev.json format=squad output=mine.json
"""
EXPORT_HELP = """\
usage: attnlab export run=FOLDER what=mask [output=FOLDER]

Writes the mask that a run learned (mask=dam) or has, as mask.safetensors and
as a picture a head, to FOLDER/export. A frozen mask to train with:
  attnlab export run=FOLDER what=mask output=masks/mine
  python train.py task=sst2 mask=file mask.path=masks/mine
"""
WHAT = ("mask",)
FORMATS = ("jsonl", "glue", "squad")


def evaluate_command(argv: Sequence[str]) -> int:
    if wants_help(argv):
        print(EVALUATE_HELP, end="")
        return 0
    given = arguments(argv, ["run", "split", "task", *data_keys()])
    run = _run_of(given, "evaluate")
    task, data = _task_of(given), data_of(given)
    from attnlab.training.evaluate import evaluate  # here, because it takes seconds to import

    show_notes()
    metrics = evaluate(run, given.get("split", "test"), data, task)
    width = max((len(name) for name in metrics), default=0)
    for name, value in metrics.items():
        print(f"{name:<{width}}  {value:.4f}")
    return 0


def predict_command(argv: Sequence[str]) -> int:
    if wants_help(argv):
        print(PREDICT_HELP, end="")
        return 0
    given = arguments(argv, ["run", "input", "split", "task", "format", "output", *data_keys()])
    run = _run_of(given, "predict")
    _check_predict(given)
    if "split" in given:
        return _predict_split(run, given)
    source = _stream(given.get("input", "-"), sys.stdin)
    if isinstance(source, Path) and not source.is_file():
        raise UserError(f"input={source}: there is no such file")
    target = _stream(given.get("output", "-"), sys.stdout)
    _check_target(target)
    if isinstance(source, Path) and isinstance(target, Path) and target.exists() and target.samefile(source):
        raise UserError(f"output={target} is the input itself, which would be lost: name another file")
    from attnlab.training.predict import predict  # here, because it takes seconds to import

    show_notes()
    try:
        with _lines(source) as texts:
            rows = predict(run, texts, target, given.get("format", "jsonl"))
    except UnicodeDecodeError as error:
        name = "standard input" if source is sys.stdin else source
        raise UserError(
            f"{name} is not UTF-8 ({error.reason} in {error.object[:40]!r}): convert it with iconv"
        ) from error
    _say_written(rows, target)
    return 0


def _check_predict(given: dict[str, str]) -> None:
    """Words that do not go together."""
    form = given.get("format", "jsonl")
    if form not in FORMATS:
        raise UserError(f"unknown format {form!r}{closest(form, FORMATS)}")
    if "split" in given:
        if "input" in given:
            raise UserError("input= or split=, not both: split=NAME reads the task's own data")
        if form != "jsonl" and given.get("output") == "-":
            raise UserError(f"format={form} writes a file: leave out output=- or name the file")
        return
    for key in given:
        if key == "task" or key.startswith("data."):
            raise UserError(f"{key} says which split is read: add split=test, or leave it out with input=FILE")
    if form == "glue":
        raise UserError("format=glue writes the predictions of a test set: add split=test")
    if form == "squad" and given.get("output", "-") == "-":
        raise UserError("format=squad writes a file: name it, output=predictions.json")


def _predict_split(run: Path, given: dict[str, str]) -> int:
    split, form = given["split"], given.get("format", "jsonl")
    task, data = _task_of(given), data_of(given)
    name = str(task["name"]) if task else _trained_on(run)
    target: TextIO | Path
    if form == "jsonl":
        target = _stream(given.get("output", "-"), sys.stdout)
    else:
        from attnlab.tasks.glue import official_file

        file = official_file(name, split).name if form == "glue" else f"{name}_{split}.json"
        target = Path(given["output"]) if "output" in given else run / "predictions"
        if "output" not in given or given["output"].endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            target = target / file
    _check_target(target)
    from attnlab.training.predict import predict_split  # here, because it takes seconds to import

    show_notes()
    _say_written(predict_split(run, split, target, format=form, task=task, data=data), target)
    return 0


def _check_target(target: TextIO | Path) -> None:
    if isinstance(target, Path) and not target.parent.is_dir():
        raise UserError(f"output={target}: there is no folder {target.parent}")
    if isinstance(target, Path) and target.is_dir():
        raise UserError(f"output={target} is a folder: name a file")


def _say_written(rows: int, target: TextIO | Path) -> None:
    where = target if isinstance(target, Path) else "standard output"
    print(f"{rows} predictions written to {where}", file=sys.stderr)


def export_command(argv: Sequence[str]) -> int:
    if wants_help(argv):
        print(EXPORT_HELP, end="")
        return 0
    given = arguments(argv, ["run", "what", "output"])
    what = given.get("what")
    if what is None:
        raise UserError("export what? attnlab export run=FOLDER what=mask")
    if what not in WHAT:
        raise UserError(f"unknown what {what!r}{closest(what, WHAT)}")
    run = _run_of(given, "export")
    output = Path(given["output"]) if "output" in given else None
    if output is not None and output.exists() and not output.is_dir():
        raise UserError(f"output={output} is a file: name a folder, which is made if it is not there")
    from attnlab.report.export import export_mask  # here, because it takes seconds to import

    show_notes()
    exported = export_mask(run, output)
    for path in exported.files:
        print(path)
    print(f"density {exported.density:.4f}: share of the pairs that are kept")
    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def show_notes() -> None:
    """What a user must be told goes to standard error, beside the answers."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("attnlab").setLevel(logging.INFO)


def wants_help(argv: Sequence[str]) -> bool:
    """Whether the command is to explain itself."""
    return any(word in ("-h", "--help") for word in argv)


def arguments(argv: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """key=value words, split at the first equals sign: folder names of sweeps have more of them."""
    names = list(known)
    given = {}
    for word in argv:
        key, equals, value = word.partition("=")
        if key not in names:
            raise UserError(f"unknown argument {key!r}{closest(key, names)}")
        if not equals or not value:
            raise UserError(f"{word!r} has no value: write {key}=VALUE")
        given[key] = value
    return given


def data_keys() -> list[str]:
    """data.KEY for each key of the group."""
    group = yaml.safe_load((conf_dir() / "config.yaml").read_text("utf-8"))["data"]
    return [f"data.{key}" for key in group]


def data_of(given: dict[str, str]) -> dict[str, object]:
    """The overrides of the data group among what was typed."""
    return {key.removeprefix("data."): yaml.safe_load(value) for key, value in given.items() if key.startswith("data.")}


def _task_of(given: dict[str, str]) -> dict[str, Any] | None:
    return task_group(given["task"]) if "task" in given else None


def task_group(name: str) -> dict[str, Any]:
    """The config group of task=NAME."""
    check_choice("task", name, group_choices([conf_dir()]))
    group: Any = OmegaConf.to_container(compose_config([f"task={name}"], with_hydra=False).task, resolve=True)
    return dict(group)


def _trained_on(run: Path) -> str:
    return str(yaml.safe_load((run / "config.yaml").read_text("utf-8"))["task"]["name"])


def _run_of(given: dict[str, str], command: str) -> Path:
    if "run" not in given:
        raise UserError(f"which run? attnlab {command} run=FOLDER (a folder that train made)")
    return require_run(Path(given["run"]))


@contextmanager
def _lines(source: TextIO | Path) -> Iterator[TextIO | Path]:
    """Standard input and a txt file as a stream of lines, strictly UTF-8; a table's file stays a path."""
    if isinstance(source, Path):
        if source.suffix.lower() != ".txt":
            yield source
            return
        with source.open(encoding="utf-8-sig") as stream:
            yield stream
        return
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(encoding="utf-8-sig", errors="strict")
    yield source


def _stream(word: str, standard: TextIO) -> TextIO | Path:
    return standard if word == "-" else Path(word)
