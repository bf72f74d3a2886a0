"""Where the YAML files are, and which choices they offer."""

from collections.abc import Sequence
from pathlib import Path

from attnlab.errors import UserError


def conf_dir() -> Path:
    """The folder with config.yaml: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).resolve().parents[1]
    places = [package / "conf", package.parents[1] / "conf"]
    for place in places:
        if (place / "config.yaml").is_file():
            return place
    raise UserError(
        f"no config.yaml in {' or '.join(map(str, places))}: the installation is incomplete, install attnlab again"
    )


def group_choices(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Group -> names of its YAML files, over all folders: {"attn": ["entmax", ...], ...}."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.glob("*/**/*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            found.setdefault(group, set()).add(file.stem)
    return {group: sorted(names) for group, names in sorted(found.items())}
