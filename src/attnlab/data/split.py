"""Rules that decide which example goes where, all deterministic."""

import hashlib
import random
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[Any]]
Places = np.ndarray[Any, np.dtype[np.int64]]


def film_split(film: str) -> str:
    """sha256(film) mod 10: 0 is val, 1 is test, the rest train. No film is in two splits.

    On the movie reviews: 10,504 / 1,323 / 981 sentences, the split of the reference runs.
    """
    bucket = int(hashlib.sha256(film.encode()).hexdigest(), 16) % 10
    return {0: "val", 1: "test"}.get(bucket, "train")


def stratified(strata: Sequence[Hashable] | Numbers, size: int, *, seed: int = 0) -> Places:
    """Ascending indices of `size` examples, each stratum in proportion (largest remainder).

    No stratum is left out while there is room for one of each.
    """
    if size >= len(strata):
        return np.arange(len(strata))
    members = _members(strata)
    exact = [size * len(group) / len(strata) for group in members]
    quota = [int(share) for share in exact]
    if size >= len(members):
        quota = [max(1, share) for share in quota]
    draw = random.Random(seed)
    # equal needs are served in random order: file order would favour the lower strata
    by_need = draw.sample(range(len(members)), len(members))
    by_need.sort(key=lambda i: quota[i] - exact[i])
    while sum(quota) < size:
        for i in by_need:
            if sum(quota) < size and quota[i] < len(members[i]):
                quota[i] += 1
    while sum(quota) > size:
        quota[max(range(len(quota)), key=lambda i: quota[i] - exact[i] if quota[i] > 1 else -1.0)] -= 1
    drawn = [group[draw.sample(range(len(group)), share)] for group, share in zip(members, quota, strict=True)]
    return np.sort(np.concatenate(drawn))


def _members(strata: Sequence[Hashable] | Numbers) -> list[Places]:
    """Ascending indices of each stratum's examples, the strata in the order in which they are met."""
    if not isinstance(strata, np.ndarray):
        codes: dict[Hashable, int] = {}
        strata = np.array([codes.setdefault(stratum, len(codes)) for stratum in strata])
    order = np.argsort(strata, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(strata[order])) + 1)
    return sorted(groups, key=lambda group: int(group[0]))


def whole_groups(groups: Sequence[int] | Numbers, size: int, *, seed: int = 0) -> Places:
    """Ascending indices of whole groups, drawn at random, `size` examples or as few less as fit.

    The first that is drawn stays even where it is larger.
    """
    members = _members(groups)
    random.Random(seed).shuffle(members)
    kept, room = [members[0]], size - len(members[0])
    for group in members[1:]:
        if len(group) <= room:
            kept.append(group)
            room -= len(group)
    return np.sort(np.concatenate(kept))


def number_strata(values: Numbers, bins: int) -> Places:
    """Strata for numeric labels: which of `bins` equal shares of the sorted values each lies in."""
    strata = np.empty(len(values), dtype=np.int64)
    strata[np.argsort(values, kind="stable")] = np.arange(len(values)) * bins // len(values)
    return strata
