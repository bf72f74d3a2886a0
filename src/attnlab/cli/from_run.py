"""Commands that need a run folder and nothing else: evaluate, predict and export."""

import io
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import yaml

from attnlab.cli.choices import conf_dir
from attnlab.cli.resume import require_run
from attnlab.errors import UserError, closest

EVALUATE_HELP = """\
usage: attnlab evaluate run=FOLDER [split=test|val] [data.KEY=VALUE ...]

Scores a trained run again, on its own data or on other files:
  attnlab evaluate run=outputs/sst2/sparsemax/2026-01-31_10-00-00_s1
  attnlab evaluate run=FOLDER split=test data.test=new.csv
"""
PREDICT_HELP = """\
usage: attnlab predict run=FOLDER [input=FILE|-] [output=FILE|-]

Labels each row of a jsonl, csv, tsv or parquet file or each line of a txt file;
- means standard input or output, and is the default of both:
  attnlab predict run=FOLDER input=new.jsonl output=labelled.jsonl
  echo "a fine film" | attnlab predict run=FOLDER
"""
EXPORT_HELP = """\
usage: attnlab export run=FOLDER what=mask [output=FOLDER]

Writes the mask that a run learned (mask=dam) or has, as mask.safetensors and
as a picture a head, to FOLDER/export. A frozen mask to train with:
  attnlab export run=FOLDER what=mask output=masks/mine
  python train.py task=sst2 mask=file mask.path=masks/mine
"""
WHAT = ("mask",)


def evaluate_command(argv: Sequence[str]) -> int:
    if _wants_help(argv):
        print(EVALUATE_HELP, end="")
        return 0
    data_keys = yaml.safe_load((conf_dir() / "config.yaml").read_text("utf-8"))["data"]
    given = _arguments(argv, ["run", "split", *(f"data.{key}" for key in data_keys)])
    run = _run_of(given, "evaluate")
    split = given.get("split", "test")
    if split not in ("test", "val"):
        raise UserError(f"unknown split {split!r}{closest(split, ('test', 'val'))}")
    data = {key.removeprefix("data."): yaml.safe_load(value) for key, value in given.items() if key.startswith("data.")}
    from attnlab.training.evaluate import evaluate  # here, because it takes seconds to import

    _show_notes()
    metrics = evaluate(run, split, data or None)
    width = max((len(name) for name in metrics), default=0)
    for name, value in metrics.items():
        print(f"{name:<{width}}  {value:.4f}")
    return 0


def predict_command(argv: Sequence[str]) -> int:
    if _wants_help(argv):
        print(PREDICT_HELP, end="")
        return 0
    given = _arguments(argv, ["run", "input", "output"])
    run = _run_of(given, "predict")
    source = _stream(given.get("input", "-"), sys.stdin)
    if isinstance(source, Path) and not source.is_file():
        raise UserError(f"input={source}: there is no such file")
    target = _stream(given.get("output", "-"), sys.stdout)
    if isinstance(target, Path) and not target.parent.is_dir():
        raise UserError(f"output={target}: there is no folder {target.parent}")
    if isinstance(source, Path) and isinstance(target, Path) and target.exists() and target.samefile(source):
        raise UserError(f"output={target} is the input itself, which would be lost: name another file")
    from attnlab.training.predict import predict  # here, because it takes seconds to import

    _show_notes()
    try:
        with _lines(source) as texts:
            rows = predict(run, texts, target)
    except UnicodeDecodeError as error:
        name = "standard input" if source is sys.stdin else source
        raise UserError(
            f"{name} is not UTF-8 ({error.reason} in {error.object[:40]!r}): convert it with iconv"
        ) from error
    where = target if isinstance(target, Path) else "standard output"
    print(f"{rows} predictions written to {where}", file=sys.stderr)
    return 0


def export_command(argv: Sequence[str]) -> int:
    if _wants_help(argv):
        print(EXPORT_HELP, end="")
        return 0
    given = _arguments(argv, ["run", "what", "output"])
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

    _show_notes()
    exported = export_mask(run, output)
    for path in exported.files:
        print(path)
    print(f"density {exported.density:.4f}: share of the pairs that are kept")
    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _show_notes() -> None:
    """What a user must be told goes to standard error, beside the answers."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("attnlab").setLevel(logging.INFO)


def _wants_help(argv: Sequence[str]) -> bool:
    return any(word in ("-h", "--help") for word in argv)


def _arguments(argv: Sequence[str], known: Iterable[str]) -> dict[str, str]:
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
