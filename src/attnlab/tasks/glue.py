"""The files that gluebenchmark.com takes: a name, a header and label strings for each task.

Wang et al. 2019, arXiv:1804.07461. Each is `index<TAB>prediction`, a row for each of the test set's, in its order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnlab.errors import UserError

HEADER = "index\tprediction\n"
_BINARY = "entailment", "not_entailment"
_THREE = "entailment", "neutral", "contradiction"
# the benchmark's own test files: where there are several, these have its index
TEST_FILES = ("test.tsv", "test_matched.tsv", "test_mismatched.tsv", "diagnostic.tsv", "AX.tsv")


@dataclass(frozen=True, kw_only=True)
class GlueFile:
    """task and split: ours; trained: the task whose runs predict it. rows: of the official test set.

    labels: our names -> GLUE's; none for numbers, which are written with three decimals between 0 and 5.
    """

    name: str
    task: str
    rows: int
    split: str = "test"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def trained(self) -> str:
        return "mnli" if self.task == "ax" else self.task

    def row(self, index: str, prediction: Any) -> str:
        """One line, its end included."""
        written = self.labels[prediction] if self.labels else f"{min(max(float(prediction), 0.0), 5.0):.3f}"
        return f"{index}\t{written}\n"


def _numbered(*labels: str) -> dict[str, str]:
    return {label: str(number) for number, label in enumerate(labels)}


def _named(labels: Sequence[str]) -> dict[str, str]:
    return {label: label for label in labels}


FILES = (
    GlueFile(name="CoLA.tsv", task="cola", rows=1063, labels=_numbered("unacceptable", "acceptable")),
    GlueFile(name="SST-2.tsv", task="sst2", rows=1821, labels=_numbered("negative", "positive")),
    GlueFile(name="MRPC.tsv", task="mrpc", rows=1725, labels=_numbered("not_equivalent", "equivalent")),
    GlueFile(name="STS-B.tsv", task="stsb", rows=1379),
    GlueFile(name="QQP.tsv", task="qqp", rows=390965, labels=_numbered("not_duplicate", "duplicate")),
    GlueFile(name="MNLI-m.tsv", task="mnli", rows=9796, labels=_named(_THREE)),
    GlueFile(name="MNLI-mm.tsv", task="mnli", rows=9847, split="test_mismatched", labels=_named(_THREE)),
    GlueFile(name="QNLI.tsv", task="qnli", rows=5463, labels=_named(_BINARY)),
    GlueFile(name="RTE.tsv", task="rte", rows=3000, labels=_named(_BINARY)),
    GlueFile(name="WNLI.tsv", task="wnli", rows=146, labels=_numbered("not_entailment", "entailment")),
    GlueFile(name="AX.tsv", task="ax", rows=1104, labels=_named(_THREE)),
)


def official_file(task: str, split: str) -> GlueFile:
    """The file of that test set. Raises UserError where GLUE has none."""
    for file in FILES:
        if (file.task, file.split) == (task, split):
            return file
    known = ", ".join(f"task={file.task} split={file.split}" for file in FILES)
    raise UserError(f"format=glue is for GLUE's test sets, not for task={task} split={split}. They are: {known}")


def unlike_the_test_set(file: GlueFile, keys: Sequence[str]) -> str | None:
    """What tells a test set with these indices from the official one; None where nothing does."""
    if len(keys) != file.rows:
        rows = "1 row" if len(keys) == 1 else f"{len(keys):,} rows"
        return f"{rows}, where the official test set has {file.rows:,}"
    wrong = next((i for i, key in enumerate(keys) if key != str(i)), None)
    return (
        None
        if wrong is None
        else f"row {wrong + 1} has the index {keys[wrong]}, where the official test set has {wrong}"
    )


def majority(file: GlueFile) -> Iterable[str]:
    """The lines of WNLI.tsv as most papers hand it in: not_entailment throughout, right for 65.1 %."""
    yield HEADER
    for index in range(file.rows):
        yield file.row(str(index), "not_entailment")
