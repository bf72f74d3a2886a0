"""The command line: attnlab train | evaluate | predict | bench.

Nothing here imports torch or transformers before a command's arguments are known to be good, so
help and error messages come at once.
"""

from attnlab.cli.entry import main

__all__ = ["main"]
