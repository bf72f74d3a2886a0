"""Logits at some tokens only, in every family of encoders."""

import pytest
import torch
import transformers as hf

from attnlab.attention import AttentionSpec, attach
from attnlab.tasks.masked import only_at
from tests.encoders import CONFIGS, FAMILIES, token_batch


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_on_masked_tokens_says_what_it_says_on_all(family: str) -> None:
    torch.manual_seed(0)
    model = hf.AutoModelForMaskedLM.from_config(CONFIGS[family]()).eval()
    attach(model, AttentionSpec(name="sparsemax"))
    batch = token_batch([20, 13, 7])
    masked = (torch.rand(batch["input_ids"].shape) < 0.3) & batch["attention_mask"].bool()
    with torch.no_grad():
        every = model(**batch).logits
        with only_at(model, masked):
            some = model(**batch).logits
        after = model(**batch).logits
    assert some.shape == (int(masked.sum()), 100)
    torch.testing.assert_close(some, every[masked])
    assert torch.equal(after, every)
