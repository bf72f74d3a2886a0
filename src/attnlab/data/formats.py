"""Formats that a file's extension does not tell: a task's layout names them.

Each reader takes what the layout's pattern fitted, a file or a folder, and streams `Records`. What cannot be read is a
UserError with file and line, raised while the rows are gone through.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

from attnlab.data.files import Records, json_items, open_text
from attnlab.data.spec import Layout
from attnlab.data.trees import Node, parse_tree
from attnlab.errors import UserError

_Rows = Iterator[tuple[int, Sequence[Any]]]
_PARALLEL = {"a": "a.toks", "b": "b.toks", "sim": "sim.txt", "id": "id.txt"}


def trees(path: Path, layout: Layout) -> Records:
    """One sentence a tree: columns sentence and label, the root's. A line is a tree, `(3 (2 It) (4 works))`."""
    rows = ((number, (nodes[0].text, nodes[0].label)) for number, nodes in _trees(path))
    return Records(name=str(path), columns=("sentence", "label"), rows=rows)


def phrases(path: Path, layout: Layout) -> Records:
    """Every distinct phrase of the trees with its label: columns sentence and label.

    Distinct as written in the file, case counts. A phrase whose label the layout skips is left out, and with it a
    tree whose root has such a label. The SST's train.txt has 159,274 phrases so, and without the neutral ones
    (skip: ["2"]) 67,349, of which 37,569 positive: the numbers of GLUE's train.tsv of SST-2. GLUE doesn't say how it
    was made, and its phrases (lower case, quotation marks as `` and '') were not at hand to be compared one by one.
    All three files have 215,154 distinct phrases, as the paper says.
    """

    def rows() -> _Rows:
        seen: set[tuple[str, str]] = set()
        for number, nodes in _trees(path):
            if nodes[0].label in layout.skip:
                continue
            for node in nodes:
                key = (node.label, " ".join(node.words))
                if node.label not in layout.skip and key not in seen:
                    seen.add(key)
                    yield number, (node.text, node.label)

    return Records(name=str(path), columns=("sentence", "label"), rows=rows())


def classes(path: Path, layout: Layout) -> Records:
    """A folder with a file a class and a text a line (neg.txt, pos.txt), or a folder a class and a file a text.

    Columns sentence and label; the label is the file's or the folder's name. Classes come in alphabetical order, lines
    count on from one file to the next, as in `cat neg.txt pos.txt`. Where there are folders, as in IMDB's, files beside
    them are no texts. Labels that the layout skips are not opened.
    """
    if not path.is_dir():
        raise UserError(
            f"{path} is not a folder: it should be one, with a text file a class (neg.txt, pos.txt: a text a line) "
            "or with a folder a class (neg/*.txt: a text a file)"
        )
    folders = sorted(item for item in path.iterdir() if item.is_dir() and next(item.glob("*.txt"), None))
    sources = folders or sorted(path.glob("*.txt"))
    found = {source.stem if source.is_file() else source.name: source for source in sources}
    found = {label: source for label, source in found.items() if label not in layout.skip}
    if len(found) < 2:
        there = f"only {next(iter(found.values())).name}" if found else "none"
        raise UserError(f"{path} should have a .txt file or a folder of them for each of two classes or more: {there}")
    names = ",".join(found)

    def lines() -> _Rows:
        before = 0
        for label, source in found.items():
            number = 0
            for number, text in _lines(source):
                if text.strip():
                    yield before + number, (text, label)
            before += number

    def texts() -> _Rows:
        both = ((label, file) for label, source in found.items() for file in sorted(source.glob("*.txt")))
        for number, (label, file) in enumerate(both, start=1):
            yield number, ("\n".join(text for _, text in _lines(file)).strip(), label)

    if folders:
        return Records(name=f"{path}/{{{names}}}/*.txt", columns=("sentence", "label"), rows=texts(), unit="file")
    return Records(name=f"{path}/{{{names}}}.txt", columns=("sentence", "label"), rows=lines())


def parallel(path: Path, layout: Layout) -> Records:
    """A folder of files that go together line by line, as in castorini/data: columns a and b, and sim and id if there.

    a.toks question, b.toks candidate answer, sim.txt label, id.txt number of the question. All must have as many lines.
    """
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: it should be one, with {', '.join(_PARALLEL.values())}")
    files = {column: path / name for column, name in _PARALLEL.items() if (path / name).is_file()}
    missing = [_PARALLEL[column] for column in ("a", "b") if column not in files]
    if missing:
        raise UserError(f"{path} has no {' and no '.join(missing)}: the pairs are in a.toks and b.toks, line by line")

    def rows() -> _Rows:
        for number, fields in enumerate(zip_longest(*map(_lines, files.values())), start=1):
            if None in fields:
                counts = {file.name: sum(1 for _ in _lines(file)) for file in files.values()}
                listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
                raise UserError(
                    f"{path}, line {number}: not in every file, which must have as many lines each ({listed}): "
                    "get the folder anew"
                )
            yield number, [text for _, text in fields]

    return Records(name=str(path), columns=tuple(files), rows=rows())


def trecqa(path: Path, layout: Layout) -> Records:
    """TREC-QA's pseudo-XML: columns id, question, answer, label (positive or negative), a row for each answer.

    Wang et al. 2007, as Yao et al. 2013 packed it:

        <QApairs id='1.1'>
        <question>
        Who<TAB>is<TAB>she<TAB>?        first line: tokens; then part of speech, dependencies, entities
        </question>
        <positive>                      or <negative>, as often as there are answers
        ...
        </positive>
        </QApairs>
    """
    return Records(name=str(path), columns=("id", "question", "answer", "label"), rows=_qa_pairs(path))


def _qa_pairs(path: Path) -> _Rows:
    def wrong(number: int, what: str) -> UserError:
        return UserError(
            f"{path}, line {number}: {what}: a block is <QApairs id='1'>, <question>, its tokens, </question>, then "
            "<positive> or <negative> with an answer's tokens, and </QApairs>"
        )

    pair, question, inside, number = "", "", "", 0
    tokens: list[str] | None = None  # the first line within the tag, once it is read
    for number, line in _lines(path):
        text = line.strip()
        if text.startswith("<QApairs"):
            if pair or inside:
                raise wrong(number, f"a block begins before that of {pair!r} has ended")
            quote = text.split("=", 1)[-1].strip("> ").strip("'\"")
            if "=" not in text or not quote:
                raise wrong(number, "<QApairs> without an id")
            pair, question = quote, ""
        elif text == "</QApairs>":
            if inside or not pair:
                raise wrong(number, f"</QApairs> {f'within <{inside}>' if inside else 'without <QApairs>'}")
            pair = ""
        elif text in ("<question>", "<positive>", "<negative>"):
            if inside or not pair:
                raise wrong(number, f"{text} {f'within <{inside}>' if inside else 'outside of <QApairs>'}")
            if text != "<question>" and not question:
                raise wrong(number, f"{text} before any question")
            inside, tokens = text.strip("<>"), None
        elif text in ("</question>", "</positive>", "</negative>"):
            if text != f"</{inside}>" or not tokens:
                raise wrong(number, f"{text} {'without a line of tokens' if inside else 'without its beginning'}")
            if inside == "question":
                question = " ".join(tokens)
            else:
                yield number, (pair, question, " ".join(tokens), inside)
            inside = ""
        elif text and not inside:
            raise wrong(number, f"{text[:40]!r} is outside of <question>, <positive> and <negative>")
        elif text and tokens is None:
            tokens = text.split()
    if pair:
        raise wrong(number, f"the file ends within the block of {pair!r}")


def squad(path: Path, layout: Layout) -> Records:
    """SQuAD 1.1 and 2.0: columns id, title, question, context, answers, a row for each question.

    Rajpurkar et al. 2016 and 2018. The official JSON (articles, paragraphs, questions), or a flat list of questions as
    the datasets library writes it. answers is {text: [...], answer_start: [...]}, empty lists where there is no answer
    in the context, and None where the file has none (a hidden test set).
    """
    items = json_items(path)
    if items is None:
        raise UserError(f'{path}: SQuAD\'s JSON is {{"version": ..., "data": [articles]}}, and this has no list "data"')
    rows = ((number, row) for number, row in enumerate(_questions(path, items), start=1))
    return Records(
        name=str(path), columns=("id", "title", "question", "context", "answers"), rows=rows, unit="question"
    )


def _questions(path: Path, items: list[Any]) -> Iterator[Sequence[Any]]:
    for a, article in enumerate(items, start=1):
        if isinstance(article, dict) and "paragraphs" not in article:
            where = f"{path}, question {a}"
            title, context = article.get("title", ""), _string(article, "context", where)
            yield _question(article, str(title), context, where)
            continue
        title = str(article.get("title", "")) if isinstance(article, dict) else ""
        named = f"{path}, article {a}{f' ({title})' if title else ''}"
        for p, paragraph in enumerate(_list(article, "paragraphs", named), start=1):
            where = f"{named}, paragraph {p}"
            context = _string(paragraph, "context", where)
            for q, item in enumerate(_list(paragraph, "qas", where), start=1):
                yield _question(item, title, context, f"{where}, question {q}")


def _question(item: Any, title: str, context: str, where: str) -> Sequence[Any]:
    question, name = _string(item, "question", where), item.get("id")
    if not isinstance(name, str | int):
        raise UserError(f'{where}: no "id", which names the question in the file of predictions')
    return str(name), title, question, context, _answers(item, where)


def _answers(item: dict[str, Any], where: str) -> dict[str, list[Any]] | None:
    answers = item.get("answers")
    if item.get("is_impossible") is True:
        return {"text": [], "answer_start": []}
    if answers is None:
        return None
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
    else:
        listed = _list(item, "answers", where)
        texts, starts = ([one.get(key) if isinstance(one, dict) else None for one in listed] for key in _ANSWER)
    good = isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts)
    if not good or not all(map(_is_answer, cast("list[Any]", texts), cast("list[Any]", starts))):
        raise UserError(
            f'{where}: each of "answers" needs a "text" and an "answer_start", the number of characters before it'
        )
    return {"text": cast("list[Any]", texts), "answer_start": cast("list[Any]", starts)}


_ANSWER = ("text", "answer_start")


def _is_answer(text: object, start: object) -> bool:
    return isinstance(text, str) and isinstance(start, int) and not isinstance(start, bool)


def _list(item: Any, key: str, where: str) -> list[Any]:
    value = item.get(key) if isinstance(item, dict) else None
    if not isinstance(value, list):
        raise UserError(f'{where}: no list "{key}", as SQuAD\'s JSON has it')
    return value


def _string(item: Any, key: str, where: str) -> str:
    value = item.get(key) if isinstance(item, dict) else None
    if not isinstance(value, str):
        raise UserError(f'{where}: no text "{key}", as SQuAD\'s JSON has it')
    return value


FORMATS: dict[str, Callable[[Path, Layout], Records]] = {
    "trees": trees,
    "phrases": phrases,
    "classes": classes,
    "parallel": parallel,
    "trecqa": trecqa,
    "squad": squad,
}


def _trees(path: Path) -> Iterator[tuple[int, list[Node]]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            yield number, parse_tree(line)
        except ValueError as error:
            raise UserError(
                f"{path}, line {number}: {error}. A line is one whole tree, (3 (2 It) (4 works)): mend or delete it"
            ) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without their ends; only \\n ends one."""
    with open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            yield number, line.removesuffix("\n").removesuffix("\r")
