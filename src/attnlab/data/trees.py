"""Penn Treebank trees with a label at every node, as the Stanford Sentiment Treebank has them.

Socher et al. 2013, Recursive Deep Models for Semantic Compositionality over a Sentiment Treebank (EMNLP).
"""

import re
from dataclasses import dataclass, field

_MARKS = re.compile(r"\(|\)|[^\s()]+")
# Brackets would end a node, so the treebank spells them out; the rest is its plain-text typography.
_ESCAPES = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "-LCB-": "{",
    "-RCB-": "}",
    "``": '"',
    "''": '"',
}


@dataclass(frozen=True, kw_only=True)
class Node:
    """A labelled phrase. words: as in the file, see `unescape`."""

    label: str
    words: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The phrase as a reader would write it, its tokens still apart."""
        return " ".join(map(unescape, self.words))


def unescape(word: str) -> str:
    r"""A treebank token as text: -LRB- is (, `` and '' are ", \/ is / and \* is *."""
    return _ESCAPES.get(word) or word.replace("\\/", "/").replace("\\*", "*")


def parse_tree(line: str) -> list[Node]:
    """All nodes of `(3 (2 It) (4 works))`, each before the nodes within it, so the root comes first.

    Raises ValueError, which says what is wrong and at which column.
    """
    nodes: list[Node] = []
    above: list[Node] = []  # the nodes that are open
    filled: list[bool] = []  # and whether each has a word or a child yet
    marks = list(_MARKS.finditer(line))
    for index, mark in enumerate(marks):
        token, column = mark.group(), mark.start() + 1
        if token == ")" and not above:
            raise ValueError(f"unbalanced brackets: ')' at column {column} closes nothing")
        if nodes and not above:
            raise ValueError(f"{token!r} at column {column} comes after the end of the tree")
        if token == "(":
            label = marks[index + 1].group() if index + 1 < len(marks) else ""
            if label in ("", "(", ")"):
                raise ValueError(f"the bracket at column {column} has no label: (LABEL WORD) or (LABEL TREE TREE)")
            if filled:
                filled[-1] = True
            nodes.append(Node(label=label))
            above.append(nodes[-1])
            filled.append(False)
        elif not above:
            raise ValueError(f"{token!r} at column {column} is outside of any bracket")
        elif token == ")":
            if not filled.pop():
                raise ValueError(f"the node that ends at column {column} has a label and no words")
            above.pop()
        elif marks[index - 1].group() != "(":
            for node in above:
                node.words.append(token)
            filled[-1] = True
    if above:
        one = len(above) == 1
        raise ValueError(f"unbalanced brackets: {len(above)} {'is' if one else 'are'} opened and never closed")
    return nodes
