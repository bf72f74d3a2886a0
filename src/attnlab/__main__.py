"""`python -m attnlab ...`, the same as `attnlab ...`."""

from attnlab.cli import main

if __name__ == "__main__":
    main()
