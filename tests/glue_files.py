"""GLUE's test sets as the download has them, a few rows each, written without any of our code."""

from pathlib import Path

TEXTS = ["a fine film", 'dull, "dull, dull.', "it was", "the long end of a long film"]
OTHERS = ["fine", "a film was dull", "it", "joy"]
PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
# file of the submission -> test set's file, its header, how many columns lie before the texts
FILES = {
    "CoLA.tsv": ("CoLA/test.tsv", "index sentence"),
    "SST-2.tsv": ("SST-2/test.tsv", "index sentence"),
    "MRPC.tsv": ("MRPC/test.tsv", "index #1_ID #2_ID #1_String #2_String"),
    "STS-B.tsv": ("STS-B/test.tsv", "index genre filename year old_index source1 source2 sentence1 sentence2"),
    "QQP.tsv": ("QQP/test.tsv", "id question1 question2"),
    "MNLI-m.tsv": ("MNLI/test_matched.tsv", f"index promptID pairID genre {PARSES} sentence1 sentence2"),
    "MNLI-mm.tsv": ("MNLI/test_mismatched.tsv", f"index promptID pairID genre {PARSES} sentence1 sentence2"),
    "QNLI.tsv": ("QNLI/test.tsv", "index question sentence"),
    "RTE.tsv": ("RTE/test.tsv", "index sentence1 sentence2"),
    "WNLI.tsv": ("WNLI/test.tsv", "index sentence1 sentence2"),
    "AX.tsv": ("diagnostic/diagnostic.tsv", "index sentence1 sentence2"),
}
SINGLE = ("CoLA.tsv", "SST-2.tsv")


def write_test_set(root: Path, name: str, indices: list[int]) -> Path:
    """The test set behind the submission's file `name`, a row for each index."""
    place, header = FILES[name]
    columns = [column.replace("#1_", "#1 ").replace("#2_", "#2 ") for column in header.split()]
    width = len(columns) - (2 if name in SINGLE else 3)
    rows = ["\t".join(columns)]
    for row, index in enumerate(indices):
        texts = [TEXTS[row % 4]] if name in SINGLE else [TEXTS[row % 4], OTHERS[row % 4]]
        rows.append("\t".join([str(index), *["x"] * width, *texts]))
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = "\ufeff" if name == "MRPC.tsv" else ""
    path.write_text(mark + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path
