"""A tokenizer trained on the corpus itself, for models from scratch."""

import hashlib
import json
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.trainers import WordPieceTrainer
from transformers import BertTokenizer, PreTrainedTokenizerBase

from attnlab.data.corpus import find_corpus, known, pieces
from attnlab.data.spec import DataSpec
from attnlab.data.store import stored

ALPHABET = 1000  # characters; rarer ones become unknown words
PREFIX = "##"


def corpus_tokenizer(spec: DataSpec, vocab_size: int) -> PreTrainedTokenizerBase:
    """Lower-cased WordPiece (Wu et al. 2016, arXiv:1609.08144) with at most vocab_size tokens, of the training text.

    Kept in the datasets cache by content. Raises UserError where there is no training text.
    """
    text = find_corpus(spec).texts["train"]
    blank = BertTokenizer(do_lower_case=True)
    key = hashlib.sha256(json.dumps([text.digest, vocab_size, spec.unknown]).encode()).hexdigest()

    def write(draft: Path) -> None:
        counts: Counter[str] = Counter()
        for batch in pieces(known(text.lines(), spec.unknown, blank)):
            for line in batch:
                counts.update(blank.backend_tokenizer.normalizer.normalize_str(line))
        trainer = _trainer(blank.backend_tokenizer, list(blank.get_vocab()), counts, vocab_size)
        blank.backend_tokenizer.train_from_iterator(pieces(known(text.lines(), spec.unknown, blank)), trainer)
        draft.write_text(json.dumps(blank.get_vocab()), encoding="utf-8")

    vocabulary = json.loads(stored(f"{key}.vocab.json", write).read_text(encoding="utf-8"))
    return BertTokenizer(vocab=vocabulary, do_lower_case=True)


def _trainer(tokenizer: Tokenizer, special: list[str], counts: Counter[str], vocab_size: int) -> WordPieceTrainer:
    """A trainer that gives the same vocabulary every time.

    Merges of equal count are taken by the ids of their parts, and a character inside a word (##x) gets its id in the
    order of a hash table with a random seed. Among the special tokens, which come first, it gets a fixed one.
    """
    ranked = sorted((-count, char) for char, count in counts.items() if not char.isspace())
    alphabet = sorted(char for _, char in ranked[:ALPHABET])
    inside = [c for c in alphabet if len(tokenizer.pre_tokenizer.pre_tokenize_str(f"a{c}")) == 1]
    return WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special, *(f"{PREFIX}{c}" for c in inside)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
