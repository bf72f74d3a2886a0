"""attnlab submission: the zip that gluebenchmark.com takes, out of finished runs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from attnlab.cli.from_run import arguments, data_keys, data_of, show_notes, task_group, wants_help
from attnlab.errors import UserError

HELP = """\
usage: attnlab submission runs=FOLDER[,FOLDER ...] [output=glue.zip]
               [wnli=majority] [data.KEY=VALUE ...]

Predicts GLUE's test sets with the finished runs below the folders, of each task
with the one that has the best validation score, and packs the eleven files of
a submission to gluebenchmark.com. The runs of task=mnli predict MNLI-m, MNLI-mm
and AX. An incomplete zip is not written: you are told what is missing.
wnli=majority answers not_entailment throughout, as is customary:
  attnlab submission runs=outputs
  attnlab submission runs=outputs/cola,outputs/mnli output=mine.zip
  attnlab submission runs=outputs wnli=majority data.root=glue_data
"""


def submission_command(argv: Sequence[str]) -> int:
    if wants_help(argv):
        print(HELP, end="")
        return 0
    given = arguments(argv, ["runs", "output", "wnli", *data_keys()])
    if "runs" not in given:
        raise UserError("which runs? attnlab submission runs=FOLDER (outputs, or the folder of a sweep)")
    if given.get("wnli", "majority") != "majority":
        raise UserError(f"wnli={given['wnli']}: the only choice is wnli=majority; without it a run predicts WNLI")
    folders = _folders(given["runs"])
    output = Path(given.get("output", "glue.zip"))
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder: name a file" if output.is_dir() else f"cannot be written: there is no {output.parent}"
        raise UserError(f"output={output} {what}")
    from attnlab.training.submission import TASKS, submit  # here, because it takes seconds to import

    show_notes()
    tasks = {name: task_group(name) for name in TASKS}
    submit(folders, output, tasks=tasks, data=data_of(given), wnli_majority="wnli" in given)
    print(f"submission written to {output}", file=sys.stderr)
    return 0


def _folders(words: str) -> list[Path]:
    """Folders with commas between them; the names of sweep folders have commas, too."""
    folders: list[Path] = []
    name = ""
    for part in words.split(","):
        name = f"{name},{part}" if name else part
        if Path(name).is_dir():
            folders.append(Path(name))
            name = ""
    if name:
        raise UserError(f"runs={words}: there is no folder {name}")
    return folders
