"""Rules that decide which example goes where, all deterministic."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Hashable, Sequence


def film_split(film: str) -> str:
    """sha256(film) mod 10: 0 is val, 1 is test, the rest train. No film is in two splits.

    On the movie reviews: 10,504 / 1,323 / 981 sentences, the split of the reference runs.
    """
    bucket = int(hashlib.sha256(film.encode()).hexdigest(), 16) % 10
    return {0: "val", 1: "test"}.get(bucket, "train")


def stratified(strata: Sequence[Hashable], size: int, *, seed: int = 0) -> list[int]:
    """Ascending indices of `size` examples, each stratum in proportion (largest remainder).

    No stratum is left out while there is room for one of each.
    """
    if size >= len(strata):
        return list(range(len(strata)))
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, stratum in enumerate(strata):
        groups[stratum].append(index)
    members = list(groups.values())
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
    return sorted(index for group, share in zip(members, quota, strict=True) for index in draw.sample(group, share))


def whole_groups(groups: Sequence[int], size: int, *, seed: int = 0) -> list[int]:
    """Ascending indices of whole groups, drawn at random, `size` examples or as few less as one group needs.

    The first that is drawn stays even where it is larger.
    """
    members: defaultdict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    order = list(members)
    random.Random(seed).shuffle(order)
    kept: list[int] = members[order[0]]
    for group in order[1:]:
        if len(kept) + len(members[group]) <= size:
            kept = kept + members[group]
    return sorted(kept)


def number_strata(values: Sequence[float], bins: int) -> list[int]:
    """Strata for numeric labels: which of `bins` equal shares of the sorted values each lies in."""
    order = sorted(range(len(values)), key=values.__getitem__)
    strata = [0] * len(values)
    for rank, index in enumerate(order):
        strata[index] = rank * bins // len(values)
    return strata
