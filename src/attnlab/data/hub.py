"""Datasets from the Hugging Face Hub, with an answer in seconds when it cannot be reached."""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlparse

import datasets
import huggingface_hub.constants

from attnlab.data.files import Records
from attnlab.data.spec import HubSpec

log = logging.getLogger("attnlab")


def hub_records(split: datasets.Dataset, name: str) -> Records:
    """The rows of a split, as they are asked for. Class labels become their names, hidden ones (-1) are missing."""
    classes = {k: feature for k, feature in split.features.items() if isinstance(feature, datasets.ClassLabel)}

    def rows() -> Iterator[tuple[int, Sequence[Any]]]:
        number = 0
        for columns in split.iter(batch_size=1000):
            for column, feature in classes.items():
                columns[column] = [None if v is None or v < 0 else feature.int2str(v) for v in columns[column]]
            for values in zip(*(columns[column] for column in split.features), strict=True):
                yield number, values
                number += 1

    return Records(name=name, columns=tuple(split.features), rows=rows(), unit="row")


def hub_splits(hub: HubSpec, needed: str = "train") -> tuple[dict[str, datasets.Dataset], str]:
    """The splits by our names, as they lie on disk, and where they are from; without any, the second is why.

    Offline, what earlier runs left in the datasets cache still loads. Of the splits beside `needed`, those that the Hub
    lacks are left out; a dataset of theirs that cannot be loaded is said.
    """
    online = reachable()
    loaded: dict[tuple[str, str | None], datasets.DatasetDict | str] = {}
    splits = {}
    for ours, theirs in sorted(hub.splits.items(), key=lambda item: item[0] != needed):
        path, config, split = _address(hub, theirs)
        if (path, config) not in loaded:
            loaded[path, config] = _loaded(path, config, online=online)
        found = loaded[path, config]
        if not isinstance(found, str) and split in found:
            splits[ours] = found[split]
        elif ours == needed:
            missing = f"{_name(path, config)}: no split {split!r} in {list(found)}"
            return {}, found if isinstance(found, str) else missing
        elif isinstance(found, str):
            log.info("note: no %s data: %s", ours, found)
    if needed not in splits:
        return {}, f"{_name(hub.path, hub.name)}: the task names no {needed} split"
    return splits, f"Hugging Face Hub {hub.path}{f'/{hub.name}' if hub.name else ''}"


def _address(hub: HubSpec, split: str) -> tuple[str, str | None, str]:
    """`split`, `config:split` or `path:config:split` as path, config and split. A path may end in @revision."""
    parts = split.rsplit(":", 2)
    path = parts[-3] if len(parts) > 2 else hub.path
    return path, (parts[-2] or None) if len(parts) > 1 else hub.name, parts[-1]


def _loaded(path: str, config: str | None, *, online: bool) -> datasets.DatasetDict | str:
    """All splits of a dataset, or why there are none."""
    try:
        with offline_unless(online):
            name, _, revision = path.partition("@")
            return datasets.load_dataset(name, config, revision=revision or None)
    except Exception as error:  # the Hub's client raises whatever its transport does
        state = "" if online else "not reachable, and not in the datasets cache: "
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return f"{_name(path, config)}: {state}{reason[0][:200]}"


def _name(path: str, config: str | None) -> str:
    return f"the Hugging Face Hub, {path}{f'/{config}' if config else ''}"


def reachable() -> bool:
    """Whether the Hub answers, within seconds."""
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlparse(huggingface_hub.constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=3).close()
    except OSError:
        return False
    return True


@contextmanager
def offline_unless(online: bool) -> Iterator[None]:
    """Keep the Hub's clients to their caches within the block when there is no network.

    They would retry for a minute otherwise.
    """
    before = huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not online:
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
