"""Going on in an existing run folder, and telling a run folder from any other."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.cli.choices import conf_dir, group_choices
from attnlab.cli.names import check_key
from attnlab.cli.overrides import parse
from attnlab.errors import UserError

OUTPUTS = Path("outputs")


def require_run(folder: Path) -> Path:
    """The folder, absolute. No run: a UserError with what is missing and the newest runs."""
    missing = [name for name in ("config.yaml", "status.json") if not (folder / name).is_file()]
    if not missing:
        return folder.resolve()
    what = "does not exist" if not folder.is_dir() else f"has no {' and no '.join(missing)}"
    runs = newest_runs(OUTPUTS)
    known = "".join(f"\n  {run}" for run in runs)
    remedy = f"\nthe newest runs:{known}" if runs else f"\nthere is no run under {OUTPUTS}/ either"
    raise UserError(f"{folder} is not a run folder: it {what}{remedy}")


def newest_runs(root: Path, count: int = 5) -> list[Path]:
    """The run folders last written to below `root` in which training had begun, newest first."""
    found = sorted(root.glob("**/status.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [file.parent for file in found if (file.parent / "checkpoints").is_dir()][:count]


def resume_target(words: Sequence[str]) -> Path | None:
    """The folder of `resume=FOLDER`; None without one, and for resume=auto and resume=null.

    Read before Hydra sees it, because the names of sweep folders have commas and equals signs.
    """
    values = [word.partition("=")[2] for word in words if word.startswith("resume=")]
    value = values[-1].strip("'\"") if values else ""
    return None if value in ("", "auto", "null") else Path(value)


def resumed_config(folder: Path, words: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """The run's own config under the typed keys, and what they changed ("key: old -> new")."""
    choices = group_choices([conf_dir()])
    path = folder / "config.yaml"
    try:
        saved = OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(saved, DictConfig):
        raise UserError(f"{path} is not a run's config: it holds no keys")
    plain = OmegaConf.to_container(saved, resolve=False)
    assert isinstance(plain, dict)
    known: dict[str, object] = {str(key): value for key, value in plain.items()}
    changes = []
    for override in parse([word for word in words if not word.startswith("resume=")]):
        key = override.key_or_group
        if override.is_hydra_override():
            continue  # where a new run would go: this one stays where it is
        if key in choices:
            raise UserError(
                f"{override.input_line} cannot be changed when resuming: the run keeps its groups. "
                "Only keys can change (trainer.max_epochs=5); for another choice start a new run"
            )
        if override.is_sweep_override():
            raise UserError(f"{override.input_line}: a run is resumed once, not swept over")
        check_key(key, known, {})
        old, new = OmegaConf.select(saved, key), override.value()
        if old != new:
            changes.append(f"{key}: {_shown(old)} -> {_shown(new)}")
            OmegaConf.update(saved, key, new)
    OmegaConf.update(saved, "resume", str(folder))
    return saved, changes


def _shown(value: object) -> str:
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return json.dumps(plain, ensure_ascii=False)
