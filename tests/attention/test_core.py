"""One attention layer: the mixture while it walks, and what it measures, against plain calculation."""

import pytest
import torch

from attnlab.attention import SparseAttention
from attnlab.transforms import build_transform


@pytest.fixture
def core():
    return SparseAttention(build_transform("sparsemax", num_heads=2), layer=0, num_heads=2)


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(3, 2, 6, 4, generator=generator) * 2 for _ in range(3))
    keep = torch.arange(6)[None] < torch.tensor([6, 4, 3])[:, None]
    return query, key, value, keep[:, None, None, :].expand(3, 1, 6, 6)


def test_a_walking_layer_mixes_softmax_and_transform_in_training_only(core):
    query, key, value, keep = inputs()
    core.walking = True
    core.walk.fill_(0.25)
    scores = query @ key.transpose(-1, -2) / 2
    soft = torch.softmax(scores.masked_fill(~keep, float("-inf")), -1)
    sparse = core.transform(scores, keep)
    _, trained = core.train()(query, key, value, keep, want_weights=True)
    torch.testing.assert_close(trained, 0.75 * soft + 0.25 * sparse, atol=1e-6, rtol=1e-5)
    _, evaluated = core.eval()(query, key, value, keep, want_weights=True)
    torch.testing.assert_close(evaluated, sparse, atol=1e-6, rtol=1e-5)


def test_it_measures_density_support_and_entropy_of_real_positions_only(core):
    query, key, value, keep = inputs()
    core.eval().record = True
    _, probs = core(query, key, value, keep, want_weights=True)
    pairs = kept = rows = 0
    entropy = 0.0
    for example, length in enumerate((6, 4, 3)):
        p = probs[example, :, :length, :length]
        pairs, rows = pairs + length * length, rows + length
        kept = kept + (p > 0).sum(dim=(1, 2))
        entropy = entropy - torch.xlogy(p, p).sum(dim=(1, 2))
    assert (float(core.allowed), float(core.rows)) == (pairs, rows)
    assert core.kept.tolist() == kept.tolist()
    torch.testing.assert_close(core.entropy.float(), entropy)


def test_the_context_is_the_probabilities_times_the_values(core):
    query, key, value, keep = inputs()
    context, probs = core.eval()(query, key, value, keep, want_weights=True)
    torch.testing.assert_close(context, (probs @ value).transpose(1, 2))
