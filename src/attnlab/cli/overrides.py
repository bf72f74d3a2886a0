"""What was typed after the command: parsed and checked against conf/ before anything else happens.

Hydra finds misspelt names too, but late in a sweep and in its own words. The check composes the
config once per choice of a swept group (about 50 ms each) and looks every name up in it.
"""

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.cli.choices import conf_dir, group_choices
from attnlab.cli.names import check_choice, check_key, check_section, key_exists
from attnlab.errors import UserError

MAX_FOLDER_NAME = 120


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a checked command line asks for: how many jobs, and which keys differ between them.

    overrides: the words, those of a sweep file among them; extra_conf: where more YAML files come from.
    """

    jobs: int
    swept: tuple[str, ...]
    fixed: tuple[str, ...]
    overrides: tuple[Override, ...]
    extra_conf: Path | None = None


def parse(words: Sequence[str]) -> list[Override]:
    """Hydra's reading of each key=value word; a UserError for one that it cannot read."""
    parser = OverridesParser.create()
    parsed = []
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise UserError(f"{word!r} is not of the form key=value (attn=sparsemax, optim.lr=5e-5)")
        try:
            parsed.append(parser.parse_override(word))
        except HydraException as error:
            raise UserError(
                f"cannot read {word}: a value with commas, equals signs or brackets needs quotes "
                """inside quotes, 'data.train="a,b.csv"'"""
            ) from error
    return parsed


def check(words: Sequence[str], *, multirun: bool, extra_conf: Path | None = None) -> Plan:
    """Raises a UserError for the first word with a group, choice or key that does not exist."""
    folders = [conf_dir(), *([extra_conf] if extra_conf else [])]
    choices = group_choices(folders)
    overrides = parse(words)
    for override in overrides:
        if override.key_or_group in choices:
            for value in values_of(override):
                check_choice(override.key_or_group, value, choices)
        if override.is_sweep_override() and not multirun:
            raise UserError(
                f"{override.input_line} asks for several runs: add -m (python train.py -m ...), "
                "or quote the value if it is one value with commas"
            )
    search = search_path(extra_conf)
    config = compose_config([*search, *_first_of_each(overrides, choices)])
    named = {override.get_key_element() for override in overrides}
    # as Hydra's sweeper does: the command line wins over the sweep file
    preset = OmegaConf.select(config, "hydra.sweeper.params") or {}
    lists = [f"{key}={value}" for key, value in preset.items() if key not in named]
    if lists and not multirun:
        files = [str(o.input_line) for o in overrides if o.key_or_group in ("experiment", "sweep")]
        raise UserError(f"{' '.join(files)} asks for several runs ({lists[0]}): add -m (python train.py -m ...)")
    overrides = [*parse(lists), *overrides]
    for override in overrides:
        if override.key_or_group in choices:
            for value in values_of(override):
                check_choice(override.key_or_group, value, choices)
    _check_keys(overrides, choices, search)
    compose_config([*search, *(with_value(o, values_of(o)[0]) for o in overrides)], resolve=True)
    sweeps = [o for o in overrides if o.is_sweep_override()]
    for sweep in sweeps:
        if len(set(map(str, values_of(sweep)))) < len(values_of(sweep)):
            raise UserError(f"{sweep.input_line} lists a value twice: both jobs would share a folder")
    return Plan(
        jobs=prod(len(values_of(o)) for o in sweeps),
        swept=tuple(o.key_or_group for o in sweeps),
        fixed=tuple(o.key_or_group for o in overrides if not o.is_sweep_override()),
        overrides=tuple(overrides),
        extra_conf=extra_conf,
    )


def check_jobs(plan: Plan) -> None:
    """Looks at the values of every job's config, before any is started. Raises UserError for the first wrong one."""
    from attnlab.training.run_folder import plain  # here, because it takes seconds to import
    from attnlab.training.validate import validate

    search = search_path(plan.extra_conf)
    for number, words in enumerate(product(*([with_value(o, v) for v in values_of(o)] for o in plan.overrides)), 1):
        try:
            validate(plain(compose_config([*search, *words], with_hydra=False)))
        except UserError as error:
            own = " ".join(w for o, w in zip(plan.overrides, words, strict=True) if o.is_sweep_override())
            raise UserError(f"job {number} of {plan.jobs} ({own}) cannot run, so none was started: {error}") from error


def search_path(extra_conf: Path | None) -> list[str]:
    """The word that lets Hydra find the YAML files of --config-dir."""
    return [f"hydra.searchpath=[file://{extra_conf.resolve()}]"] if extra_conf else []


def _check_keys(overrides: Sequence[Override], choices: dict[str, list[str]], search: list[str]) -> None:
    """Looks each key up in the config of the first choices, then of each swept choice."""
    first = _first_of_each(overrides, choices)
    variants: list[tuple[str, list[str]]] = [("", first)]
    for override in overrides:
        if override.is_sweep_override() and override.key_or_group in choices:
            for value in values_of(override):
                words = [with_value(override, value)]
                others = [w for w in first if not w.startswith(f"{override.get_key_element()}=")]
                variants.append((f" with {words[0]}", [*others, *words]))
    keys = [o for o in overrides if o.key_or_group not in choices and not o.is_hydra_override() and not o.is_delete()]
    for chosen, words in variants:
        config = OmegaConf.to_container(compose_config([*search, *words]), resolve=False)
        assert isinstance(config, dict)
        plain: dict[str, object] = {str(k): v for k, v in config.items() if k != "hydra"}
        for override in keys:
            key = override.key_or_group
            if not (override.is_add() or override.is_force_add()):
                check_key(key, plain, choices, chosen)
                check_section(key, values_of(override)[0], plain)
            elif not chosen and not key_exists(key, plain):
                print(f"warning: attnlab reads no key {key!r}: +{key} may do nothing", file=sys.stderr)


def _first_of_each(overrides: Sequence[Override], choices: dict[str, list[str]]) -> list[str]:
    return [with_value(o, values_of(o)[0]) for o in overrides if o.key_or_group in choices or o.is_hydra_override()]


def values_of(override: Override) -> list[Any]:
    """Every value that the override takes, one for a plain override."""
    if not override.is_sweep_override():
        return [None if override.is_delete() else override.value()]
    value: Any = override.value()
    if isinstance(value, Glob):
        names = group_choices([conf_dir()]).get(override.key_or_group, [])
        return list(value.filter(names)) or [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: an interval needs a sweeper plugin, list the values")
    return list(override.sweep_string_iterator())


def with_value(override: Override, value: object) -> str:
    """The word of one job: the override with one of its values."""
    if override.is_sweep_override():
        return f"{override.get_key_element()}={value}"
    return str(override.input_line)


def compose_config(words: Sequence[str], *, resolve: bool = False, with_hydra: bool = True) -> DictConfig:
    """The config of those words, with Hydra's own part or without. Raises UserError when there is none."""
    try:
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            config = compose("config", overrides=list(words), return_hydra_config=with_hydra)
        if resolve:
            plain = {key: config[key] for key in config if key != "hydra"}
            OmegaConf.to_container(OmegaConf.create(plain), resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"the configuration does not compose: {_first_line(error)}") from error
    return config


def _first_line(error: Exception) -> str:
    cause = f" ({str(error.__cause__).splitlines()[0]})" if str(error.__cause__ or "") else ""
    return f"{str(error).splitlines()[0]}{cause}"


def job_folder(dirname: str) -> str:
    """A sweep job's folder: its overrides, safe for any file system, at most 120 characters.

    A hash tells apart what the shortening would make equal.
    """
    safe = re.sub(r"[^-\w.=,+]", "_", dirname)
    if safe != dirname or len(safe) > MAX_FOLDER_NAME or safe in (".", ".."):
        digest = hashlib.sha256(dirname.encode()).hexdigest()[:8]
        safe = f"{safe[: MAX_FOLDER_NAME - 9]}-{digest}"
    return safe


OmegaConf.register_new_resolver("attnlab.job_folder", job_folder, replace=True)
