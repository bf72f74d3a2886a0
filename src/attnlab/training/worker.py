"""One of the further processes of a distributed run: `python -m attnlab.training.worker RUN_FOLDER`."""

import sys
from pathlib import Path

from ..errors import UserError
from .run_folder import read_config
from .train import train


def main() -> None:
    run_dir = Path(sys.argv[1])
    try:
        train(read_config(run_dir), run_dir)
    except UserError as error:
        sys.exit(f"error: {error}")  # the first process says the same


if __name__ == "__main__":
    main()
