"""Imports go one way: transforms <- attention <- tasks, training <- analysis, report <- cli."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "attnlab"

LEAVES = {"errors", "files"}
TENSORS = {"transforms", "masks"}
MODEL = {"attention"}
LEARNING = {"data", "tasks", "training"}
READING = {"analysis", "report"}

MAY_IMPORT = {
    "errors": set(),
    "files": set(),
    "data": LEAVES,
    "transforms": LEAVES,
    "masks": LEAVES,
    "attention": LEAVES | TENSORS,
    "tasks": LEAVES | TENSORS | MODEL | {"data"},
    "training": LEAVES | TENSORS | MODEL | {"data", "tasks"},
    "analysis": LEAVES | TENSORS | MODEL | LEARNING,
    "report": LEAVES | TENSORS | MODEL | LEARNING | {"analysis"},
    "cli": LEAVES | TENSORS | MODEL | LEARNING | READING,
    # the front doors: `import attnlab` and `python -m attnlab`
    "__init__": LEAVES | TENSORS | MODEL | LEARNING | READING,
    "__main__": {"cli"},
}


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(source: str, inside: tuple[str, ...] = ("attnlab",)) -> Iterator[str]:
    """The first name below attnlab of every import, those inside functions too.

    `inside` is the package that the source belongs to, which relative imports start from.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"attnlab.{a.name}" for a in node.names] if module == "attnlab" else [module]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "attnlab":
                yield rest.partition(".")[0] or "__init__"


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_module_imports_only_what_stands_below_it(file: Path) -> None:
    part = part_of(file)
    assert part in MAY_IMPORT, f"{part} has no place in the import order yet: give it one"
    package = ("attnlab", *file.relative_to(PACKAGE).parts[:-1])
    imported = set(imported_parts(file.read_text("utf-8"), package)) - {part}
    assert imported <= MAY_IMPORT[part]


def test_the_order_has_no_way_back() -> None:
    for part, below in MAY_IMPORT.items():
        for other in below:
            assert part not in MAY_IMPORT[other]


def test_imports_of_every_form_are_seen() -> None:
    source = """
def f():
    from attnlab.cli import main
from attnlab import load, tasks
from ..report import table
from .. import analysis
from .near import something
import os, attnlab
"""
    found = set(imported_parts(source, ("attnlab", "training")))
    assert found == {"cli", "load", "tasks", "report", "analysis", "training", "__init__"}
