"""Small random encoders of each family that attnlab supports, and two that it must refuse."""

import torch
import transformers as hf

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 66,
}


def _bert_like(name: str) -> hf.PretrainedConfig:
    return getattr(hf, f"{name}Config")(**SIZES)


CONFIGS = {
    "bert": lambda: _bert_like("Bert"),
    "roberta": lambda: _bert_like("Roberta"),
    "xlm_roberta": lambda: _bert_like("XLMRoberta"),
    "camembert": lambda: _bert_like("Camembert"),
    "electra": lambda: hf.ElectraConfig(**SIZES, embedding_size=16),
    "albert": lambda: hf.AlbertConfig(**SIZES, embedding_size=16),
    "distilbert": lambda: hf.DistilBertConfig(
        dim=32, n_layers=3, n_heads=4, hidden_dim=64, vocab_size=100, max_position_embeddings=66
    ),
    "modernbert": lambda: hf.ModernBertConfig(**SIZES, pad_token_id=0, global_attn_every_n_layers=2, local_attention=8),
}
REFUSED = {
    "deberta": lambda: hf.DebertaV2Config(**SIZES),
    "mpnet": lambda: hf.MPNetConfig(**SIZES),
}
FAMILIES = sorted(CONFIGS)


def tiny_encoder(family: str, *, seed: int = 0, **changes: object) -> hf.PreTrainedModel:
    """A random classifier of that family in eval mode; `changes` go into its config."""
    torch.manual_seed(seed)
    config = {**CONFIGS, **REFUSED}[family]()
    for key, value in changes.items():
        setattr(config, key, value)
    return hf.AutoModelForSequenceClassification.from_config(config).eval()


def token_batch(lengths: list[int], *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random ids of the given lengths, padded to the longest."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(5, 100, (len(lengths), longest), generator=generator)
    mask = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    return {"input_ids": torch.where(mask, ids, 1), "attention_mask": mask.long()}
