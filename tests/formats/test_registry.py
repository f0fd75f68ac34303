"""The registry of formats: complete rows, readers and writers that exist, and documents that name each format."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

from confluo_tools import config
from confluo_tools.errors import UsageError
from confluo_tools.formats import registry
from confluo_tools.formats.registry import BY_NAME, FORMATS, INPUTS, OUTPUTS, SUFFIXES
from confluo_tools.formats.writers import open_writer
from running import ROOT, run

PAGES = ROOT / "man" / "man1"
# Pages of commands that read any input, and of commands that write packets as well as other records.
READ_ALL = {"confluo-convert", "confluo-query"}
WRITE_PACKETS = {"confluo-capture", "confluo-convert", "confluo-query"}


def test_each_name_and_suffix_occurs_once() -> None:
    assert len(BY_NAME) == len(FORMATS)
    assert len(SUFFIXES) == sum(len(row.suffixes) for row in FORMATS)
    assert len({magic for row in FORMATS for magic in row.magic}) == sum(len(row.magic) for row in FORMATS)
    for row in FORMATS:
        assert re.fullmatch(r"[a-z][a-z0-9]*", row.name)
        assert row.help
        assert not row.help.endswith(".")
        assert row.reader or row.writer or row.folder
        assert bool(row.reader) == bool(row.magic or row.looks_like)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_readers_and_writers_take_the_options_of_their_row(row: registry.Format) -> None:
    if row.reader:
        takes = inspect.signature(registry.load(row.reader)).parameters
        assert {"stream", "warn", *row.reader_options} == set(takes)
    if row.writer:
        takes = inspect.signature(registry.load(row.writer)).parameters
        assert {"schema", "out", *row.writer_options} == set(takes)
        assert set(row.writer_options) <= set(inspect.signature(open_writer).parameters)


def test_unknown_names() -> None:
    with pytest.raises(UsageError) as error:
        registry.input_format("table")
    assert str(error.value) == (
        "-i: unknown input format 'table'; use tsv, csv, ndjson, json, stream, arrow, parquet, pcap, pcapng, flock, "
        "tshark or multilog"
    )
    with pytest.raises(UsageError) as error:
        registry.output_format("flock")
    assert str(error.value) == (
        "-o: unknown output format 'flock'; use table, tsv, csv, ndjson, json, stream, arrow, parquet, pcap or pcapng"
    )


def test_lists_for_documents() -> None:
    assert [name for name, _ in registry.input_formats()] == list(INPUTS)
    assert [name for name, _ in registry.output_formats()] == list(OUTPUTS)
    assert ("pcap", BY_NAME["pcap"].help) in registry.output_formats("packet")
    assert "pcap" not in dict(registry.output_formats("alert"))
    assert "multilog" in dict(registry.output_formats(log=True))


def test_the_registry_loads_no_other_module() -> None:
    """It is imported at each start."""
    program = "import sys, typing, importlib; old = {*sys.modules}; import confluo_tools.formats.registry; "
    done = subprocess.run(
        [sys.executable, "-S", "-c", program + "print(*sorted({*sys.modules} - old))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {"confluo_tools", "confluo_tools.errors", "confluo_tools.formats", "confluo_tools.formats.registry"}
    assert set(done.stdout.split()) - {"__future__", "collections.abc"} == ours


def test_settings_and_help_have_all_formats() -> None:
    assert config.KEYS["format"].choices == ("", *OUTPUTS)
    for command in sorted(WRITE_PACKETS):
        text = " ".join(run(command, "--help").stdout.decode().split())
        assert named(text.partition("--format FORMAT ")[2].partition(". ")[0]) >= set(OUTPUTS)
    for command in sorted(READ_ALL):
        assert registry.either(INPUTS) in " ".join(run(command, "--help").stdout.decode().split())


def option_text(page: str, option: str) -> str:
    """What a page says of an option, without fonts; '' if it has no such option."""
    text = (PAGES / f"{page}.1").read_text().replace("\\-", "-").replace('"', " ")
    found = re.search(rf"^\.B[RI]? {option} .*FORMAT.*\n((?:(?!\.TP|\.S[HS]).*\n)+)", text, re.M)
    return found.group(1) if found else ""


def named(text: str) -> set[str]:
    return {name for name in BY_NAME if re.search(rf"(?<![\w.]){name}\b", text)}


@pytest.mark.parametrize("page", sorted(p.stem for p in PAGES.glob("*.1")))
def test_manual_pages_name_each_format(page: str) -> None:
    """A page that lists formats lists all that its command reads or writes; others refer to such a page."""
    output = named(option_text(page, "-o"))
    if page in WRITE_PACKETS:
        assert output >= set(OUTPUTS)
    elif "stream" in output:
        assert output >= set(dict(registry.output_formats("other")))
    read = named(option_text(page, "-i"))
    if page in READ_ALL:
        assert read == set(INPUTS)


def test_the_page_of_pipelines_lists_each_format_with_its_suffixes() -> None:
    text = (PAGES.parent / "man7" / "confluo-pipelines.7").read_text().replace("\\-", "-")
    listed = dict(re.findall(r"^\.B (\w+)\n((?:(?!\.).*\n)+)", text.partition(".SS List of formats")[2], re.M))
    for row in FORMATS:
        assert row.help[1:] in listed[row.name]
        assert set(re.findall(r"(?<=[( ])\.\w+", listed[row.name])) == set(row.suffixes)


def test_the_page_of_settings_names_each_output_format() -> None:
    text = (PAGES / "confluo-config.1").read_text()
    found = re.search(r"^\.B[RI]? format\b.*\n((?:(?!\.TP).*\n)+)", text, re.M)
    assert found
    assert named(found.group(1)) >= set(OUTPUTS)
