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
    name = f"{hub.path}{f'/{hub.name}' if hub.name else ''}"
    online = reachable()
    try:
        with offline_unless(online):
            found = datasets.load_dataset(hub.path, hub.name)
    except Exception as error:  # the Hub's client raises whatever its transport does
        state = "" if online else "not reachable, and not in the datasets cache: "
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return {}, f"the Hugging Face Hub, {name}: {state}{reason[0][:200]}"
    tables = {
        ours: _table(found[theirs], f"hub:{name}/{theirs}") for ours, theirs in hub.splits.items() if theirs in found
    }
    if "train" not in tables:
        return (
            {},
            f"the Hugging Face Hub, {name}: no split {hub.splits.get('train')!r} in {list(found)}",
        )
    return tables, f"Hugging Face Hub {name}"


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
