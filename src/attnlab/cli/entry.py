"""Which command, and what its end means for the shell."""

import os
import sys
from collections.abc import Sequence

from attnlab.errors import UserError, closest
from attnlab.files import disk_is_full

COMMANDS = ("train", "evaluate", "predict", "submission", "export", "bench")


def main() -> None:
    """Exit codes: 0 done, 1 failed, 2 a UserError (one message, no traceback), 130 Ctrl-C."""
    try:
        code = dispatch(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # the reader (head, less) went away; without this the interpreter complains at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if not disk_is_full(error):
            raise
        of = f": {error.filename}" if error.filename else ""
        print(f"error: {error.strerror}{of}: make room and repeat", file=sys.stderr)
        code = 2
    raise SystemExit(code)


def dispatch(argv: Sequence[str]) -> int:
    command, rest = "train", list(argv)
    if argv and "=" not in argv[0] and not argv[0].startswith(("-", "~")):
        command, rest = argv[0], list(argv[1:])
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}{closest(command, COMMANDS)}")
    if command == "evaluate":
        from attnlab.cli.from_run import evaluate_command

        return evaluate_command(rest)
    if command == "predict":
        from attnlab.cli.from_run import predict_command

        return predict_command(rest)
    if command == "submission":
        from attnlab.cli.submission import submission_command

        return submission_command(rest)
    if command == "export":
        from attnlab.cli.from_run import export_command

        return export_command(rest)
    if command == "bench":
        from attnlab.report.bench import main as bench

        return bench(rest)
    if any(word in ("-h", "--help") for word in rest):
        from attnlab.cli.page import help_page

        print(help_page())
        return 0
    if "--version" in rest:
        from importlib.metadata import version

        print(f"attnlab {version('attnlab')}")
        return 0
    from attnlab.cli.train import train_command

    return train_command(rest)
