"""Options that commands share read alike in all manual pages: they come from man/shared-options.roff."""

from __future__ import annotations

import difflib
import importlib.machinery
import importlib.util
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from typer.models import OptionInfo

from confluo_tools.cli import options
from sessions import ROOT, Shell


def load() -> ModuleType:
    """The program man/update as a module."""
    loader = importlib.machinery.SourceFileLoader("update", str(ROOT / "man" / "update"))
    spec = importlib.util.spec_from_loader("update", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


update = load()
PAGES = update.pages()
# the pages of commands: the others describe groups of commands, formats and languages
GROUPS = {"confluo", "confluo-pingmesh", "confluo-replay-record", "confluo-stream", "confluo-stream-service"}
COMMAND_PAGES = [page for page in PAGES if page.suffix == ".1" and page.stem not in GROUPS]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_shared_options_of_a_page_are_those_of_the_source(page: Path) -> None:
    text = page.read_text()
    assert text == update.filled(text), "run man/update"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_does_not_write_shared_options_by_hand(page: Path) -> None:
    text = page.read_text()
    assert update.handwritten(text) == [], "use a block `begin shared`, or the comment `own`"
    # an `own` comment is there for a reason
    section = re.search(r'^\.SH "?OPTIONS"?\n(.*?)(?=^\.SH)', text, re.M | re.S)
    without = re.sub(rf"^{re.escape(update.OWN)}.*\n", "", text, flags=re.M)
    assert len(update.handwritten(without)) == (section[1].count(update.OWN) if section else 0)


def test_every_entry_is_used_and_named_as_in_the_help() -> None:
    used = {name for page in PAGES for name in re.findall(r"[a-z-]+", " ".join(update.blocks(page.read_text())))}
    assert sorted(set(update.entries()) - used) == []
    declared = {}
    for annotated in vars(options).values():
        for info in get_args(annotated)[1:]:
            if isinstance(info, OptionInfo):
                names = [info.default, *(info.param_decls or ())]
                declared[tuple(n for n in names if isinstance(n, str))] = info.metavar
    described = {}
    for entry in update.entries().values():
        for head in re.findall(r"^\.TP\n(.*)", entry.text, re.M):
            plain = re.sub(r"\\f[A-Z]|[\"\\]", "", head)
            metavar = re.search(r" ([A-Z][A-Z,]*)$", plain)
            described[update.options(f".TP\n{head}")[0]] = metavar[1] if metavar else None
    common = {names for names in declared if names in described}
    assert len(common) > 25
    assert {names: described[names] for names in common - {("-w", "--output")}} == {
        names: declared[names] for names in common - {("-w", "--output")}
    }


def panels(printed: list[str]) -> dict[str, list[list[str]]]:
    """Panel of --help -> the names of each of its options."""
    found: dict[str, list[list[str]]] = {}
    for line in printed:
        if title := re.fullmatch(r"([A-Z]\w+):", line):
            current = found.setdefault(title[1], [])
        elif found and (head := re.match(r"  (-.*?)(?:  |$)", line)):
            current.append(re.findall(r"(?<![\w-])--?[A-Za-z0-9][a-z0-9-]*", head[1]))
    return {title: options for title, options in found.items() if options}


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda p: p.name)
def test_options_are_in_the_order_and_subsections_of_the_help(page: Path, tmp_path: Path) -> None:
    words = page.stem
    words = words.replace("confluo-stream-service-", "confluo-stream service ")
    for group in ("confluo-pingmesh-", "confluo-vote-", "confluo-replay-record-", "confluo-replay-", "confluo-stream-"):
        if words.startswith(group):
            words = words.replace(group, group[:-1] + " ")
            break
    status, printed = Shell(tmp_path).run(f"{words} --help")
    assert status == 0
    section = re.search(r'^\.SH "?OPTIONS"?\n(.*?)(?=^\.SH)', page.read_text(), re.M | re.S)
    assert section
    outer = re.sub(r"^\.RS\b(?:.*\n)*?\.RE\n", "", section[1], flags=re.M)
    first, *parts = re.split(r'^\.SS "?(.*?)"?\n', outer, flags=re.M)
    described = {"Options": update.options(first)} | {
        title: update.options(text) for title, text in zip(parts[::2], parts[1::2], strict=True)
    }
    # a page may describe several options in one entry: compare where each entry begins
    expected = {
        title: [
            names[0]
            for names in options
            if any(names[0] == entry[0] for entries in described.values() for entry in entries)
        ]
        for title, options in panels(printed).items()
    }
    assert {title: [entry[0] for entry in entries] for title, entries in described.items()} == expected


def prose(page: Path) -> list[tuple[int, str]]:
    """Numbers and texts of the lines of a page that are not examples, tables or comments."""
    found, verbatim = [], False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        verbatim = (verbatim and line not in (".fi", ".EE", ".TE")) or line in (".nf", ".EX", ".TS")
        if not verbatim and not line.startswith('.\\"'):
            found.append((number, line))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_does_not_repeat_itself(page: Path) -> None:
    lines = prose(page)
    twice = []
    for (number, one), (_, other) in pairwise(lines):
        words = [line.split() for line in (one, other)]
        alike = difflib.SequenceMatcher(None, *words).ratio() > 0.75
        text = all(len(w) > 3 and not w[0].startswith(".") for w in words)
        if (one == other and len(words[0]) > 1) or (text and alike):
            twice.append(f"{number}: {other}")
    assert twice == []
    text = page.read_text()
    entries = re.findall(r"^\.BR ([\w\\-]+ \(\d\))", text.partition(".SH SEE ALSO")[2], re.M)
    assert [entry for entry in entries if entries.count(entry) > 1] == []
    titles = [title for section in text.split("\n.SH ") for title in re.findall(r"^\.SS (.*)", section, re.M)]
    assert [title for title in titles if text.split(".SH OPTIONS")[0].count(f"\n.SS {title}\n") > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_section_does_not_end_before_what_it_announces(page: Path) -> None:
    parts = re.split(r"^(\.S[HS] .*)\n", page.read_text(), flags=re.M)[1:]
    assert [head for head, body in zip(parts[::2], parts[1::2], strict=True) if body.rstrip().endswith(":")] == []
