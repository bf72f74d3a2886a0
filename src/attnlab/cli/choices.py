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
    """Group -> names of its YAML files, over all folders: {"attn": ["entmax", ...], ...}.

    A file in a folder inside a group's is named with it: "sparsebert/masks" of "experiment".
    """
    found: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.glob("*/**/*.yaml"):
            group, *inner = file.relative_to(folder).with_suffix("").parts
            found.setdefault(group, set()).add("/".join(inner))
    return {group: sorted(names) for group, names in sorted(found.items())}
