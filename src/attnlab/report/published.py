"""Numbers that others published, to stand beside ours: of other models, to be compared in shape, not in size."""

from dataclasses import dataclass

SPARSEBERT = "SparseBERT, BERT-base, GLUE"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A mask's row of SparseBERT's GLUE table: label as there, share of pairs kept, mean of its nine scores in [0, 1].

    form, lam: of the differentiable masks, DAM_u (unstructured) and DAM_s (structured).
    """

    label: str
    density: float
    average: float
    form: str | None = None
    lam: float | None = None


def _row(label: str, sparsity: float, average: float) -> Published:
    return Published(label=label, density=round(1 - sparsity / 100, 4), average=average / 100)


def _learned(form: str, lam: float, sparsity: float, average: float) -> Published:
    return Published(
        label=f"DAM_{form[0]} {lam:g}",
        density=round(1 - sparsity / 100, 4),
        average=average / 100,
        form=form,
        lam=lam,
    )


# Shi et al. 2021, arXiv:2102.12871, as in the README of their code (github.com/han-shi/SparseBERT): BERT-base on MNLI
# (m and mm), QQP, QNLI, SST-2, CoLA, STS-B, MRPC and RTE. By our name of the mask.
PATTERNS = {
    "strided": _row("Strided", 70.4, 79.5),
    "fixed": _row("Fixed", 72.7, 79.7),
    "longformer": _row("Longformer", 88.7, 80.1),
    "logsparse": _row("LogSparse", 89.8, 77.9),
    "bigbird": _row("BigBird", 93.2, 79.4),
    "star": _row("Star", 96.1, 78.9),
}
LEARNED = (
    _learned("unstructured", 1e-4, 78.9, 82.0),
    _learned("unstructured", 1e-3, 79.2, 81.6),
    _learned("unstructured", 1e-2, 79.8, 81.3),
    _learned("unstructured", 1e-1, 85.8, 80.8),
    _learned("structured", 1e-4, 91.2, 80.9),
    _learned("structured", 1e-3, 91.6, 80.3),
    _learned("structured", 1e-2, 91.7, 79.8),
    _learned("structured", 1e-1, 93.5, 79.6),
)
