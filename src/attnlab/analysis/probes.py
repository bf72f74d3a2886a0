"""What the attention of a model looks like on a few fixed sentences.

The probes stay the same for every run, so that two runs, or two epochs of one, can be held side by
side. They cover what attention is usually asked about: sentiment and its negation, contrast, a pair
of sentences, a pronoun with its antecedent.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..attention import SparseAttention, cores
from ..training.models import longest_input

Sentence = str | tuple[str, str]

PROBES: tuple[Sentence, ...] = (
    "The film is a quiet delight from its first frame to its last.",
    "Nobody who stayed awake would call this plot clever.",
    "It is not bad at all, and the ending is never dull.",
    "The acting is superb, but the script wastes every minute of it.",
    "The nurse thanked the engineer because she had repaired the lamp.",
    "The trophy did not fit into the suitcase because it was too big.",
    ("A man is slicing bread in the kitchen.", "Someone cuts a loaf."),
    ("The shop opens at nine on Sundays.", "The shop is closed on Sundays."),
)
LONGEST = 128


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Attention of every attached layer on one sentence.

    probabilities (layers, heads, queries, keys), float32 on the CPU, before dropout, without the
    padding; layers holds the index of each layer in the model.
    """

    sentence: Sentence
    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    probabilities: Tensor

    @property
    def text(self) -> str:
        return self.sentence if isinstance(self.sentence, str) else " / ".join(self.sentence)


def probe_attention(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Sentence] = PROBES,
) -> list[Probe]:
    """Run the sentences through the model as one padded batch and keep each layer's attention.

    Leaves the model as it was: its training mode, its capture flags, nothing kept. Nothing is
    compiled for it. Raises ValueError when no attention of ours is attached.
    """
    if not sentences:
        return []
    attached = cores(model)
    if not attached:
        raise ValueError("the model has no attention of ours: attnlab.attention.attach(model, spec)")
    batch = _encode(model, tokenizer, sentences)
    with _watching(model, attached) as maps:
        model.base_model(**batch)  # not the head: that of a multiple choice would want a list of texts
    probabilities = torch.stack(maps, dim=1)
    # An ALBERT has one attention for all its layers: there the order of the calls counts them.
    shared = len(maps) != len(attached)
    layers = tuple(range(len(maps)) if shared else (core.layer for core in attached))
    probes = []
    for index, sentence in enumerate(sentences):
        kept = batch["attention_mask"][index].bool().cpu()
        own = probabilities[index][:, :, kept][:, :, :, kept]
        tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][index].cpu()[kept].tolist())
        probes.append(Probe(sentence=sentence, tokens=tuple(tokens), layers=layers, probabilities=own))
    return probes


def _encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sentence]
) -> dict[str, Tensor]:
    limit = min(LONGEST, longest_input(model.config))
    pairs = [(s, None) if isinstance(s, str) else s for s in sentences]
    # A batch mixes single sentences and pairs, which one tokenizer call does not take.
    encoded = [tokenizer(first, second, truncation=True, max_length=limit) for first, second in pairs]
    padded = tokenizer.pad(encoded, return_tensors="pt")
    return {name: values.to(model.device) for name, values in padded.items()}


@contextmanager
def _watching(model: PreTrainedModel, attached: Sequence[SparseAttention]) -> Iterator[list[Tensor]]:
    """Evaluation mode, no gradient, no compiler; yields the list that fills with one map a call.

    Afterwards everything is as before; statistics that are being recorded never see the probes.
    """
    maps: list[Tensor] = []

    def take(core: SparseAttention, *_: object) -> None:
        if core.captured is not None:
            maps.append(core.captured.float().cpu())

    modes = {module: module.training for module in model.modules()}
    flags = [(core, core.capture, core.record) for core in attached]
    hooks = [core.register_forward_hook(take) for core in attached]
    try:
        model.eval()
        for core in attached:
            core.capture, core.record = True, False
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield maps
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
        for core, capture, record in flags:
            core.capture, core.record, core.captured = capture, record, None
