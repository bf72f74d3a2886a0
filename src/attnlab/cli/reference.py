"""The softmax runs that a sweep over sparsity.density is read against: one for each setting of everything else."""

from collections.abc import Sequence
from itertools import product

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from attnlab.cli.overrides import Plan, compose_config, search_path, values_of, with_value
from attnlab.errors import UserError

SOFTMAX = ("attn=softmax", "sparsity=none")


def sweeps_density(plan: Plan) -> bool:
    """Whether the jobs are steered to more than one density."""
    return len(_densities(plan) - {None}) > 1


def softmax_references(plan: Plan) -> list[tuple[str, ...]]:
    """The words of each softmax run that the sweep needs beside its own jobs; none where no density is swept.

    What was said about attn and sparsity does not hold for them.
    """
    if not sweeps_density(plan) or ("softmax" in _attentions(plan) and None in _densities(plan)):
        return []
    others = [o for o in plan.overrides if _group(o) not in ("attn", "sparsity", "hydra")]
    own = (*SOFTMAX, *_without_dials(plan, others))
    return [(*own, *chosen) for chosen in product(*(_words(o) for o in others))]


def reference_config(plan: Plan, words: Sequence[str]) -> DictConfig:
    """The config of a reference run. Raises UserError when it does not compose."""
    return compose_config([*_for_hydra(plan), *words], with_hydra=False)


def _without_dials(plan: Plan, others: Sequence[Override]) -> list[str]:
    """Takes back what an experiment file sets for another attention."""
    try:
        config = reference_config(plan, [*SOFTMAX, *(_words(o)[0] for o in others)])
        plain = reference_config(plan, SOFTMAX)
    except UserError:
        return []  # the run itself will say why it does not compose
    steered = ["sparsity.density=null"] if config.sparsity.density is not None else []
    return [*steered, *(f"~attn.{key}" for key in config.attn if key not in plain.attn)]


def _densities(plan: Plan) -> set[float | None]:
    """Every density that the jobs are steered to, out of sparsity=, sparsity.density= or an experiment; None: not."""
    sparsity = [o for o in plan.overrides if _group(o) == "sparsity"]
    if not any(o.is_sweep_override() for o in sparsity):
        return set()
    others = [_words(o)[0] for o in plan.overrides if _group(o) not in ("sparsity", "hydra")]
    configs = (reference_config(plan, [*others, *chosen]) for chosen in product(*(_words(o) for o in sparsity)))
    return {config.sparsity.density for config in configs}


def _attentions(plan: Plan) -> set[str]:
    return {str(value) for o in plan.overrides if o.key_or_group == "attn" for value in values_of(o)}


def _words(override: Override) -> list[str]:
    return [with_value(override, value) for value in values_of(override)]


def _for_hydra(plan: Plan) -> list[str]:
    return [*search_path(plan.extra_conf), *(str(o.input_line) for o in plan.overrides if o.is_hydra_override())]


def _group(override: Override) -> str:
    return str(override.key_or_group).partition(".")[0]
