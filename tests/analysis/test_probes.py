"""Probing shows the attention that runs, and leaves no trace in the model."""

import pytest
import torch

from attnlab.analysis.probes import PROBES, probe_attention
from attnlab.attention import AttentionSpec, attach, attention_statistics, cores, recording
from attnlab.training.speed import compile_layers

from ..encoders import CONFIGS
from ..report.tiny import tiny_bert, tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def sparse_bert(name="sparsemax", **rest):
    return attach(tiny_bert(), AttentionSpec(name=name, **rest))


def test_every_query_spends_all_its_attention_on_its_own_sentence(tokenizer):
    # The sentences differ in length and share a padded batch: a share on padding would be missing.
    probes = probe_attention(sparse_bert(), tokenizer)
    assert len({len(probe.tokens) for probe in probes}) > 1
    for probe in probes:
        rows = probe.probabilities.sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows), atol=1e-5, rtol=0)


def test_a_probe_has_a_map_for_each_layer_and_head_and_a_token_for_each_row(tokenizer):
    probes = probe_attention(sparse_bert(), tokenizer)
    assert [probe.sentence for probe in probes] == list(PROBES)
    for probe in probes:
        length = len(probe.tokens)
        assert probe.tokens[0] == "[CLS]"
        assert probe.tokens[-1] == "[SEP]"
        assert probe.probabilities.shape == (3, 4, length, length)
        assert probe.probabilities.dtype == torch.float32
        assert probe.layers == (0, 1, 2)


def test_sparse_layers_have_exact_zeros_and_softmax_layers_none(tokenizer):
    probe, *_ = probe_attention(sparse_bert(layers=(1,)), tokenizer, [PROBES[0]])
    assert (probe.probabilities[1] == 0).any()
    assert (probe.probabilities[[0, 2]] > 0).all()


def test_a_sentence_looks_the_same_alone_and_in_a_batch(tokenizer):
    model = sparse_bert()
    alone, *_ = probe_attention(model, tokenizer, [PROBES[1]])
    together = probe_attention(model, tokenizer)[1]
    assert alone.tokens == together.tokens
    torch.testing.assert_close(alone.probabilities, together.probabilities, atol=1e-4, rtol=1e-4)


def test_a_long_text_is_cut_to_what_the_model_has_positions_for(tokenizer):
    probe, *_ = probe_attention(sparse_bert(), tokenizer, ["x " * 200])
    assert len(probe.tokens) == 64


def test_probing_leaves_the_model_as_it_was(tokenizer):
    model = sparse_bert()
    model.train()
    model.bert.embeddings.eval()
    cores(model)[1].capture = True
    modes = [module.training for module in model.modules()]
    probe_attention(model, tokenizer)
    assert [module.training for module in model.modules()] == modes
    assert [core.capture for core in cores(model)] == [False, True, False]
    assert all(core.captured is None and not core._forward_hooks for core in cores(model))


def test_the_model_is_put_back_when_its_forward_fails(tokenizer):
    model = sparse_bert()
    model.train()
    model.bert.encoder.layer[-1].output.dense = torch.nn.Linear(7, 2)
    with pytest.raises(RuntimeError):
        probe_attention(model, tokenizer)
    assert model.training
    assert not any(core.capture for core in cores(model))


def test_probes_do_not_count_in_the_statistics_of_an_evaluation(tokenizer):
    model = sparse_bert().eval()
    batch = tokenizer(["A B C"], return_tensors="pt")
    with torch.no_grad(), recording(model):
        model(**batch)
        expected = attention_statistics(model)
        probe_attention(model, tokenizer)
        assert all(core.record for core in cores(model))
        assert attention_statistics(model) == expected


def test_probing_a_model_with_compiled_layers_compiles_nothing(tokenizer):
    model = sparse_bert()
    plain = probe_attention(model, tokenizer)
    compile_layers(model)
    torch._dynamo.utils.counters.clear()
    compiled = probe_attention(model, tokenizer)
    assert not torch._dynamo.utils.counters["frames"]
    for before, after in zip(plain, compiled, strict=True):
        torch.testing.assert_close(before.probabilities, after.probabilities)


def test_a_model_that_shares_one_attention_shows_a_map_for_each_layer(tokenizer):
    from transformers import AutoModelForSequenceClassification

    config = CONFIGS["albert"]()
    config.vocab_size = len(tokenizer)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    attach(model, AttentionSpec(name="sparsemax"))
    probe, *_ = probe_attention(model, tokenizer, [PROBES[0]])
    assert probe.layers == (0, 1, 2)
    assert not torch.equal(probe.probabilities[0], probe.probabilities[2])


def test_a_model_without_our_attention_is_refused(tokenizer):
    with pytest.raises(ValueError, match="attach"):
        probe_attention(tiny_bert(), tokenizer)
