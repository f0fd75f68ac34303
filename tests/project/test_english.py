"""Plain English: words that send a reader back to the start of the line are not used; names are unique."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

# Literary or ambiguous words, and riddles; CONTRIBUTING.md says which words to use instead.
AVOIDED = re.compile(
    r"\b(told|tells|asked|(?<!-Z )nobody|somebody|whoever|whose|anew|so long|so many|of which|looked after"
    r"|put down to|beside|stands|doors?|who is|(?<!there )is no|(?<!there )are no)\b",
    re.IGNORECASE,
)
PYTHON = sorted((ROOT / "confluo_tools").rglob("*.py"))
CORE = sorted([*(ROOT / "pyx").rglob("*.p[yx][xd]"), *(ROOT / "pyx").rglob("*.h")])
CORE += sorted((ROOT / "confluo_tools" / "core").rglob("*.p[yx][di]"))
PAGES = sorted((ROOT / "man").rglob("*.[157]"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")])
DOCUMENTS.remove(ROOT / "CHANGELOG.md")  # history is not rewritten


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """(line number, line) of all comments and strings: docstrings, help, errors."""
    strings = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.COMMENT)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in strings and " " in token.string:  # without a space it is a name, not prose
            yield from enumerate(token.string.splitlines(), token.start[0])


def prose_of_core(text: str) -> Iterator[tuple[int, str]]:
    """(line number, line) of comments and docstrings in Cython and C."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        quotes = line.count('"""')
        if inside or quotes or "#" in line or "/*" in line or line.lstrip().startswith("*") or '"' in line:
            yield number, line
        inside ^= quotes % 2 == 1


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    return ((n, line) for n, line in enumerate(text.splitlines(), 1) if not line.startswith('.\\"'))


def prose_of_document(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside code blocks, without `code`."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip("> ").startswith("```"):
            inside = not inside
        elif not inside:
            yield number, re.sub(r"`[^`]*`", "", line)


def avoided(paths: list[Path], prose_of: object) -> list[str]:
    """path:line: word, for each avoided word."""
    found = []
    for path in paths:
        for number, line in prose_of(path.read_text()):  # type: ignore[operator]
            found += [f"{path.relative_to(ROOT)}:{number}: {m[0]}: {line.strip()[:90]}" for m in AVOIDED.finditer(line)]
    return found


@pytest.mark.parametrize(
    ("paths", "prose_of"),
    [(PYTHON, prose_of_python), (CORE, prose_of_core), (PAGES, prose_of_page), (DOCUMENTS, prose_of_document)],
    ids=["help, errors and docstrings", "compiled core", "manual pages", "documents"],
)
def test_words_that_need_a_second_reading(paths: list[Path], prose_of: object) -> None:
    assert len(paths) > 10
    assert avoided(paths, prose_of) == []


def test_an_avoided_word_is_found(tmp_path: Path) -> None:
    path = ROOT / "tests" / "project" / "test_english.py"
    assert avoided([path], prose_of_python)
    assert list(prose_of_core('x = 1\n"""First\nsecond whose"""\ny = 2  # beside\n')) == [
        (2, '"""First'),
        (3, 'second whose"""'),
        (4, "y = 2  # beside"),
    ]
    assert list(prose_of_document("a\n```\nbeside\n```\nb `beside` c\n")) == [(1, "a"), (5, "b  c")]


def test_class_names_are_unique() -> None:
    """One name, one meaning: also between Python and the compiled core."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    for path in (ROOT / "pyx").rglob("*.pyx"):
        for name in re.findall(r"^\s*(?:cdef )?class (\w+)", path.read_text(), re.M):
            places[name].append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_limits_are_named_alike() -> None:
    """MAX_ is the prefix of every limit."""
    found = [p for p in [*PYTHON, *CORE] if re.search(r"\bMOST_\w+", p.read_text())]
    assert [str(p.relative_to(ROOT)) for p in found] == []
