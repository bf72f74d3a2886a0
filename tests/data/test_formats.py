"""Readers of data sets' own formats: small files by hand, good and bad, and trees at random."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.data.formats import FORMATS
from attnlab.data.spec import Layout
from attnlab.data.trees import parse_tree, unescape
from attnlab.errors import UserError

GOOD_TREE = "(3 (2 It) (4 works))\n"
BLOCK = """<QApairs id='1.1'>
<question>
Who\tis\tshe\t?
WP\tVBZ\tPRP\t.
</question>
<positive>
She\tis\tAda\t.
PRP\tVBZ\tNNP\t.
</positive>
<negative>
He\tis\t<num>\t.
</negative>
</QApairs>
"""


def rows(format: str, path: Path, *skip: str) -> list[tuple[int, tuple[Any, ...]]]:
    records = FORMATS[format](path, Layout(format=format, skip=skip))
    found = [(where, tuple(values)) for where, values in records.rows]
    assert all(len(values) == len(records.columns) for _, values in found)
    return found


def refusal(format: str, path: Path) -> str:
    with pytest.raises(UserError) as caught:
        rows(format, path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def file(folder: Path, content: str | bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# trees and phrases

WORDS = st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="()"), min_size=1).filter(
    lambda word: not any(char.isspace() for char in word)
)
LABELS = st.sampled_from("01234")
TREES = st.recursive(
    st.tuples(LABELS, WORDS),
    lambda inner: st.tuples(LABELS, st.lists(inner, min_size=1, max_size=3)),
    max_leaves=12,
)


def written(tree: tuple[str, Any]) -> str:
    label, inside = tree
    return f"({label} {inside if isinstance(inside, str) else ' '.join(map(written, inside))})"


def nodes_of(tree: tuple[str, Any]) -> list[tuple[str, list[str]]]:
    label, inside = tree
    if isinstance(inside, str):
        return [(label, [inside])]
    parts = [nodes_of(part) for part in inside]
    return [(label, [word for part in parts for word in part[0][1]]), *(node for part in parts for node in part)]


@given(TREES)
def test_a_tree_that_is_written_and_read_has_the_same_nodes(tree: tuple[str, Any]) -> None:
    assert [(node.label, node.words) for node in parse_tree(written(tree))] == nodes_of(tree)


@given(TREES, st.data())
def test_a_tree_that_lacks_any_one_bracket_is_refused(tree: tuple[str, Any], data: st.DataObject) -> None:
    line = written(tree)
    at = data.draw(st.sampled_from([i for i, char in enumerate(line) if char in "()"]))
    with pytest.raises(ValueError, match=r"bracket|column"):
        parse_tree(line[:at] + line[at + 1 :])


@pytest.mark.parametrize(
    ("word", "text"),
    [("-LRB-", "("), ("-RRB-", ")"), ("``", '"'), ("''", '"'), ("9\\/11", "9/11"), ("\\*\\*", "**"), ("-", "-")],
)
def test_what_the_treebank_spells_out_is_read_as_text(word: str, text: str) -> None:
    assert unescape(word) == text


def test_a_tree_is_a_sentence_with_the_label_of_its_root(tmp_path: Path) -> None:
    path = file(tmp_path, GOOD_TREE + "\n(0 (2 -LRB-) (0 Bad))\r\n")
    assert rows("trees", path) == [(1, ("It works", "3")), (3, ("( Bad", "0"))]


def test_packed_trees_are_read_too(tmp_path: Path) -> None:
    path = file(tmp_path, gzip.compress(GOOD_TREE.encode()), "a.txt.gz")
    assert rows("trees", path) == [(1, ("It works", "3"))]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("(3 (2 It) (4 works)", "unbalanced brackets: 1 is opened and never closed"),
        ("(3 (2 It (4 works", "unbalanced brackets: 3 are opened"),
        ("(3 (2 It) (4 works)))", "unbalanced brackets: ')' at column 21 closes nothing"),
        ("(3 (2 It)) (4 works)", "'(' at column 12 comes after the end of the tree"),
        ("It works", "'It' at column 1 is outside of any bracket"),
        ("((2 It) (4 works))", "the bracket at column 1 has no label"),
        ("(3 (2 It) (4))", "the node that ends at column 13 has a label and no words"),
    ],
)
@pytest.mark.parametrize("format", ["trees", "phrases"])
def test_a_broken_tree_is_named_with_file_and_line(tmp_path: Path, format: str, line: str, words: str) -> None:
    path = file(tmp_path, f"{GOOD_TREE}{line}\n")
    said = refusal(format, path)
    assert f"{path}, line 2: {words}" in said
    assert "mend or delete it" in said


def test_each_distinct_phrase_comes_once_with_its_label(tmp_path: Path) -> None:
    path = file(tmp_path, "(3 (2 It) (4 works))\n(1 (2 It) (1 fails))\n")
    assert rows("phrases", path) == [
        (1, ("It works", "3")),
        (1, ("It", "2")),
        (1, ("works", "4")),
        (2, ("It fails", "1")),
        (2, ("fails", "1")),
    ]


def test_skipping_neutral_leaves_out_neutral_phrases_and_all_of_neutral_sentences(tmp_path: Path) -> None:
    path = file(tmp_path, "(3 (2 It) (4 works))\n(2 (2 It) (1 fails))\n")
    assert rows("phrases", path, "2") == [(1, ("It works", "3")), (1, ("works", "4"))]


# classes


def test_a_file_a_class_gives_its_name_and_counts_lines_on(tmp_path: Path) -> None:
    file(tmp_path, "good\n\nfine", "pos.txt")
    file(tmp_path, "bad\npoor\n", "neg.txt")
    records = FORMATS["classes"](tmp_path, Layout())
    assert records.name == f"{tmp_path}/{{neg,pos}}.txt"
    assert list(records.rows) == [(1, ("bad", "neg")), (2, ("poor", "neg")), (3, ("good", "pos")), (5, ("fine", "pos"))]


def test_a_folder_a_class_gives_a_text_a_file_as_in_imdb(tmp_path: Path) -> None:
    for name, text in {"neg/0_2": "bad", "neg/1_1": "poor\n", "pos/0_9": "a\nb", "unsup/0_0": "?"}.items():
        file(tmp_path, text, f"{name}.txt")
    file(tmp_path, "http://", "urls_pos.txt")
    got = rows("classes", tmp_path, "unsup")
    assert got == [(1, ("bad", "neg")), (2, ("poor", "neg")), (3, ("a\nb", "pos"))]


def test_classes_need_a_folder_with_two(tmp_path: Path) -> None:
    path = file(tmp_path, "x", "pos.txt")
    assert "is not a folder" in refusal("classes", path)
    assert "for each of two classes or more: only pos.txt" in refusal("classes", tmp_path)


def test_bytes_that_are_no_text_are_named_with_the_class_file_and_its_own_line(tmp_path: Path) -> None:
    file(tmp_path, "bad\n", "neg.txt")
    path = file(tmp_path, b"good\ncaf\xe9\n", "pos.txt")
    said = refusal("classes", tmp_path)
    assert f"{path}, line 2: not UTF-8" in said
    assert "iconv" in said


# parallel


def parallel(folder: Path, **lines: str) -> Path:
    for column, text in lines.items():
        file(folder, text, {"a": "a.toks", "b": "b.toks", "sim": "sim.txt", "id": "id.txt"}[column])
    return folder


def test_parallel_files_go_together_line_by_line(tmp_path: Path) -> None:
    parallel(tmp_path, a="who ?\nwho ?\n", b="ada\n\n", sim="1\n0\n", id="7\n7\n")
    assert rows("parallel", tmp_path) == [(1, ("who ?", "ada", "1", "7")), (2, ("who ?", "", "0", "7"))]


def test_parallel_files_of_different_length_are_counted(tmp_path: Path) -> None:
    parallel(tmp_path, a="a\nb\nc\n", b="a\nb\n", sim="1\n0\n1\n")
    said = refusal("parallel", tmp_path)
    assert f"{tmp_path}, line 3: not in every file" in said
    assert "a.toks 3, b.toks 2, sim.txt 3" in said


def test_a_parallel_folder_without_answers_is_refused(tmp_path: Path) -> None:
    assert "has no b.toks" in refusal("parallel", parallel(tmp_path, a="x\n"))
    assert "is not a folder" in refusal("parallel", tmp_path / "a.toks")


# TREC-QA


def test_a_trecqa_block_gives_a_row_for_each_answer(tmp_path: Path) -> None:
    path = file(tmp_path, BLOCK, "DEV.xml")
    assert [values for _, values in rows("trecqa", path)] == [
        ("1.1", "Who is she ?", "She is Ada .", "positive"),
        ("1.1", "Who is she ?", "He is <num> .", "negative"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("<question>\nWho\tis\tshe\t?\nWP\tVBZ\tPRP\t.\n</question>\n", "", "line 2: <positive> before any question"),
        ("</QApairs>\n", "", "line 12: the file ends within the block of '1.1'"),
        ("</positive>\n", "", "line 9: <negative> within <positive>"),
        ("<negative>\n", "", "line 10: 'He\\tis\\t<num>\\t.' is outside of"),
        ("She\tis\tAda\t.\nPRP\tVBZ\tNNP\t.\n", "", "line 7: </positive> without a line of tokens"),
        ("<QApairs id='1.1'>\n", "", "line 1: <question> outside of <QApairs>"),
        ("</QApairs>\n", "<QApairs id='2'>\n", "line 13: a block begins before that of '1.1' has ended"),
    ],
)
def test_a_broken_trecqa_file_is_named_with_the_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = file(tmp_path, BLOCK.replace(old, new), "DEV.xml")
    said = refusal("trecqa", path)
    assert f"{path}, {words}" in said
    assert "a block is <QApairs" in said


# SQuAD


def question(**changes: Any) -> dict[str, Any]:
    answers = [{"text": "Ada", "answer_start": 0}, {"text": "Ada Lovelace", "answer_start": 0}]
    whole = {"id": "q1", "question": "Who?", "answers": answers} | changes
    return {key: value for key, value in whole.items() if value != "no"}


def nested(*questions: dict[str, Any]) -> str:
    paragraphs = [{"context": "Ada Lovelace wrote it.", "qas": list(questions)}]
    return json.dumps({"version": "v2.0", "data": [{"title": "Ada", "paragraphs": paragraphs}]}, indent=1)


def test_squad_gives_a_row_for_each_question_with_all_its_answers(tmp_path: Path) -> None:
    path = file(tmp_path, nested(question(), question(id="q2", answers=[])), "dev.json")
    context = "Ada Lovelace wrote it."
    assert rows("squad", path) == [
        (1, ("q1", "Ada", "Who?", context, {"text": ["Ada", "Ada Lovelace"], "answer_start": [0, 0]})),
        (2, ("q2", "Ada", "Who?", context, {"text": [], "answer_start": []})),
    ]


def test_an_impossible_question_has_no_answer_whatever_is_plausible(tmp_path: Path) -> None:
    plausible = [{"text": "it", "answer_start": 19}]
    path = file(tmp_path, nested(question(is_impossible=True, answers=[], plausible_answers=plausible)), "dev.json")
    assert rows("squad", path)[0][1][4] == {"text": [], "answer_start": []}


def test_a_hidden_answer_is_none(tmp_path: Path) -> None:
    assert rows("squad", file(tmp_path, nested(question(answers="no")), "test.json"))[0][1][4] is None


def test_the_flat_layout_of_the_datasets_library_reads_the_same(tmp_path: Path) -> None:
    answers = {"text": ["Ada"], "answer_start": [0]}
    flat = question(context="Ada wrote it.", title="Ada", answers=answers)
    path = file(tmp_path, json.dumps({"version": 2.0, "data": [flat]}), "dev.json")
    assert rows("squad", path) == [(1, ("q1", "Ada", "Who?", "Ada wrote it.", answers))]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"data": [\n{]', ", line 2: not valid JSON"),
        ('{"questions": []}', ': SQuAD\'s JSON is {"version"'),
        ('{"data": [{"title": "Ada"}]}', ', question 1: no text "context"'),
        ('{"data": [1]}', ', article 1: no list "paragraphs"'),
        (nested(question(id="no")), ', article 1 (Ada), paragraph 1, question 1: no "id"'),
        (nested(question(question=3)), ', article 1 (Ada), paragraph 1, question 1: no text "question"'),
        (nested(question(answers=[{"text": "Ada"}])), ', question 1: each of "answers" needs a "text" and an'),
        (nested(question(answers="Ada")), ', question 1: no list "answers"'),
        (nested(question(answers={"text": ["Ada"], "answer_start": []})), ', question 1: each of "answers" needs'),
        ('{"data": [{"title": "Ada", "paragraphs": [{"qas": []}]}]}', ', article 1 (Ada), paragraph 1: no text "c'),
    ],
)
def test_a_broken_squad_file_is_named_with_the_place(tmp_path: Path, content: str, words: str) -> None:
    path = file(tmp_path, content, "dev.json")
    said = refusal("squad", path)
    assert said.startswith(str(path))
    assert words in said
