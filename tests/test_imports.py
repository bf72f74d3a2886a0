"""Imports go one way: transforms, masks <- attention <- tasks, training <- analysis, report <- cli."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "attnlab"

LEAVES = {"errors"}
TENSORS = {"transforms", "masks"}
MODEL = {"attention"}
LEARNING = {"data", "tasks", "training"}
READING = {"analysis", "report"}

MAY_IMPORT = {
    "errors": set(),
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


def imported_parts(source: str) -> Iterator[str]:
    """The first name below attnlab of every import, those inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
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
    imported = set(imported_parts(file.read_text("utf-8"))) - {part}
    assert imported <= MAY_IMPORT[part]


def test_the_order_has_no_way_back() -> None:
    for part, below in MAY_IMPORT.items():
        for other in below:
            assert part not in MAY_IMPORT[other]


def test_imports_inside_functions_and_of_the_front_door_are_seen() -> None:
    source = (
        "def f():\n    from attnlab.cli import main\nfrom attnlab import load, tasks\nimport os"
    )
    assert set(imported_parts(source)) == {"cli", "load", "tasks"}
