"""The one error that is the user's to mend, and the words that help to mend it."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right: the message names the cause and the remedy.

    The command line prints it without a traceback and exits with code 2.
    """


def closest(word: str, choices: Iterable[str]) -> str:
    """`": did you mean 'sparsemax'? One of: ..."` for a misspelt word, ready to append to a message."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f": {hint}One of: {', '.join(known)}"
