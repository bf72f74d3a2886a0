"""Datasets from the Hugging Face Hub, with an answer in seconds when it cannot be reached."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlparse

import datasets
import huggingface_hub.constants

from attnlab.data.files import Table
from attnlab.data.spec import HubSpec


def hub_tables(hub: HubSpec) -> tuple[dict[str, Table], str]:
    """Tables by split and where they are from; without any table, the second is why.

    Offline, what earlier runs left in the datasets cache still loads. Class labels become their
    names.
    """
    found, said = hub_splits(hub)
    name = _name(hub)
    return {split: _table(part, f"hub:{name}/{hub.splits[split]}") for split, part in found.items()}, said


def hub_splits(hub: HubSpec) -> tuple[dict[str, datasets.Dataset], str]:
    """The splits by our names, as they lie on disk, and where they are from; without any, the second is why."""
    name = _name(hub)
    online = reachable()
    try:
        with offline_unless(online):
            found = datasets.load_dataset(hub.path, hub.name)
    except Exception as error:  # the Hub's client raises whatever its transport does
        state = "" if online else "not reachable, and not in the datasets cache: "
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return {}, f"the Hugging Face Hub, {name}: {state}{reason[0][:200]}"
    splits = {ours: found[theirs] for ours, theirs in hub.splits.items() if theirs in found}
    if "train" not in splits:
        return (
            {},
            f"the Hugging Face Hub, {name}: no split {hub.splits.get('train')!r} in {list(found)}",
        )
    return splits, f"Hugging Face Hub {name}"


def _name(hub: HubSpec) -> str:
    return f"{hub.path}{f'/{hub.name}' if hub.name else ''}"


def _table(split: datasets.Dataset, name: str) -> Table:
    columns = {}
    for column, feature in split.features.items():
        values = list(split[column])
        if isinstance(feature, datasets.ClassLabel):
            # -1 marks the hidden labels of a benchmark's test set
            values = [None if v is None or v < 0 else feature.int2str(v) for v in values]
        columns[column] = values
    return Table(
        name=name,
        columns=tuple(columns),
        rows=list(zip(*columns.values(), strict=True)),
        lines=list(range(len(split))),
        unit="row",
    )


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
