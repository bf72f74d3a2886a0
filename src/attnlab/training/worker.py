"""One of the further processes of a distributed run: `python -m attnlab.training.worker RUN_FOLDER`."""

import sys
from pathlib import Path

from .run_folder import read_config
from .train import train


def main() -> None:
    run_dir = Path(sys.argv[1])
    train(read_config(run_dir), run_dir)


if __name__ == "__main__":
    main()
