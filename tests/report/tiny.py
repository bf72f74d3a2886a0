"""A small random BERT with a tokenizer of its own, made offline."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,"


def tiny_tokenizer() -> PreTrainedTokenizerBase:
    """A token a letter, `a` or `##b`; adds [CLS] and [SEP] and numbers the segments."""
    words = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def tiny_bert(**changes: object) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(SPECIAL) + 2 * len(LETTERS),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.6,
        **{"max_position_embeddings": 64, **changes},
    )
    return BertForSequenceClassification(config)


def save_tiny(folder: Path) -> Path:
    tiny_bert(max_position_embeddings=160).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
