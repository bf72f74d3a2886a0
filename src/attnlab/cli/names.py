"""Unknown words on the command line, answered with the word that was probably meant."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

import yaml

from attnlab.cli.choices import conf_dir
from attnlab.errors import UserError, closest

ELSEWHERE = {
    "model": " (any other encoder: model.name=<Hub id or folder>)",
    "task": " (your own files: task=custom data.train=... data.text=... data.label=...)",
}


def check_choice(group: str, value: object, choices: Mapping[str, Sequence[str]]) -> None:
    """Raises a UserError when `group` has no such choice; null means "none" and is always there."""
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name is not None and str(name) not in choices[group]:
            known = closest(str(name), choices[group])
            raise UserError(f"unknown {group} {str(name)!r}{known}{ELSEWHERE.get(group, '')}")


def key_parts(key: str) -> list[str]:
    """ "task.labels[0]" -> ["task", "labels", "0"]."""
    return [part for part in re.split(r"[.\[\]]+", key) if part]


def key_exists(key: str, config: Mapping[str, object]) -> bool:
    node: object = config
    for part in key_parts(key):
        if isinstance(node, list):
            return part.isdecimal() and int(part) < len(node)
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def check_key(key: str, config: Mapping[str, object], choices: Mapping[str, Sequence[str]], chosen: str = "") -> None:
    """Raises a UserError when the composed config has no `key`; `chosen`: with which choice."""
    if not key_exists(key, config):
        raise UserError(_unknown_key(key, config, choices, chosen))


def check_section(key: str, value: object, config: Mapping[str, object]) -> None:
    """Raises a UserError when a plain value is about to replace a section of keys (data=3)."""
    node = config.get(key)
    if isinstance(node, Mapping) and not isinstance(value, Mapping):
        raise UserError(f"{key} is a section, not a value: set its keys, {key}.{next(iter(node))}=...")


def _unknown_key(key: str, config: Mapping[str, object], choices: Mapping[str, Sequence[str]], chosen: str) -> str:
    parts = key_parts(key)
    node: Mapping[str, object] = config
    depth = 0
    while depth < len(parts) - 1 and parts[depth] in node:
        inner = node[parts[depth]]
        depth += 1
        if not isinstance(inner, Mapping):
            prefix, rest = ".".join(parts[:depth]), ".".join(parts[depth:])
            return f"unknown key {key!r}: {prefix} is {inner!r} and has no key {rest!r}"
        node = inner
    prefix = ".".join(parts[:depth])
    siblings = sorted(f"{prefix}.{name}" if prefix else name for name in node)
    if not prefix:
        siblings = sorted({*siblings, *choices})
    owners = _choices_with_key(prefix, parts[depth:], choices)
    near = _nearest(key, siblings, config)
    hint = f"did you mean {near!r}? " if near else ""
    if owners:
        hint = f"only {', '.join(owners)} {'has' if len(owners) == 1 else 'have'} it. "
    return f"unknown key {key!r}{chosen}: {hint}One of: {', '.join(siblings)}"


def _nearest(key: str, siblings: Sequence[str], config: Mapping[str, object]) -> str | None:
    """The closest sibling, else the closest full key, else one that ends in this word (`lr`)."""
    prefix, _, word = key.rpartition(".")
    by_last_word = {name.rpartition(".")[2]: name for name in siblings}
    for pool, wanted in ((by_last_word, word), ({name: name for name in siblings}, key)):
        found = difflib.get_close_matches(wanted, pool, n=1, cutoff=0.6)
        if found:
            return pool[found[0]]
    everything = list(_flat_keys(config))
    found = difflib.get_close_matches(key, everything, n=1, cutoff=0.6)
    if not found and not prefix:
        leaves = {name.rpartition(".")[2]: name for name in everything}
        found = [leaves[leaf] for leaf in difflib.get_close_matches(word, leaves, n=1, cutoff=0.6)]
    return found[0] if found else None


def _flat_keys(config: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat_keys(value, f"{prefix}{name}.")


def _choices_with_key(group: str, rest: Sequence[str], choices: Mapping[str, Sequence[str]]) -> list[str]:
    """`attn=entmax` for the key attn.alpha: the choices of the same group that do have it."""
    owners = []
    for choice in choices.get(group, ()):
        file = conf_dir() / group / f"{choice}.yaml"
        content = yaml.safe_load(file.read_text("utf-8")) if file.is_file() else None
        if isinstance(content, Mapping) and rest[0] in content:
            owners.append(f"{group}={choice}")
    return owners
