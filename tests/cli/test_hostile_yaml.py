"""YAML of strangers: deep nesting, anchors, endless numbers, doubled keys, in every file that is YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from confluo_tools import config, guarded_yaml, schema
from confluo_tools.errors import ConfluoError
from confluo_tools.guarded_yaml import YamlError, load
from confluo_tools.monitor.trigger_files import read_trigger_file
from confluo_tools.multilog import capture_statistics
from confluo_tools.multilog.create import about
from confluo_tools.multilog.query import state_definitions
from confluo_tools.multilog.snapshot import Snapshot
from confluo_tools.network.topology_file import read_fleet, read_topology
from confluo_tools.pingmesh.plan.pinglist_file import read_pinglist

MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))
ALIASES = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
HOSTILE = {
    "nested": "[" * 100_000,
    "nested mappings": "{a: " * 65_000,
    "nested in blocks": "- " * 100_000,
    "nested below a key": "fields: " + "[" * 65_000,
    "merge keys": MERGED,
    "aliases": ALIASES,
    "a long number": "a: " + "9" * 5_000_000,
    "a long number in base 60": "a: 1" + ":59" * 1_000_000,
    "a long float": "a: 1." + "0" * 5_000_000,
    "tags": "a: !!python/object/apply:os.system [id]",
    "a set": "? [a, b]\n: c",
    "no text": "a: \ud800",
    "control characters": "a: \x1b[2J",
}


def _folder_file(read: Callable[[Path], Any], name: str) -> Callable[[str], Any]:
    def from_file(path: str) -> Any:
        where = Path(path).parent / name
        where.parent.mkdir(exist_ok=True)
        Path(path).rename(where)
        return read(Path(path).parent)

    return from_file


def _settings(path: str) -> Any:
    try:
        config.use_file(path)
        return config.setting("sync")
    finally:
        config.use_file(None)


READERS: dict[str, Callable[[str], Any]] = {
    "settings": _settings,
    "schema": schema.load,
    "triggers": read_trigger_file,
    "state": state_definitions.load,
    "multilog.yaml": _folder_file(about, "multilog.yaml"),
    "captures": _folder_file(capture_statistics.captures, "captures/a.yaml"),
    "snapshot": Snapshot.load,
    "links": read_topology,
    "servers": read_fleet,
    "pinglist": read_pinglist,
}


@pytest.mark.parametrize("reader", READERS)
def test_hostile_files_are_refused_in_a_line(reader: str, tmp_path: Path) -> None:
    for what, text in HOSTILE.items():
        path = tmp_path / "x.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        problem = ""
        try:
            READERS[reader](str(path))
        except ConfluoError as e:
            problem = str(e)
        # What reads all scalars as text has no numbers.
        assert problem or what.startswith("a long"), what
        assert "\n" not in problem, what
        assert len(problem) < 1000, what


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 40, "line 1: it is nested too deep: more than 32 levels"),
        ("a: 1\nb: &x 2", "line 2: it contains an anchor or alias"),
        ("a: *x", "line 1: it contains an anchor or alias"),
        ("a: !!str 2", "line 1: it contains a tag"),
        ("<<: {a: 1}", "line 1: it contains a merge key"),
        ("? [1]\n: 2", "line 1: a list or a mapping is a key"),
        ("a: 1\nb: 2\na: 3", "line 3: 'a' occurs twice"),
        ("a: " + "1" * 65, "line 1: a number has 65 characters"),
        ("a: 2026-13-45", "line 1: '2026-13-45' is not a valid number or date"),
        ("a\n---\nb", "line 2: it has more than one document"),
        (b"a: \xff", "it is not UTF-8 text"),
        (" " * (guarded_yaml.MAX_BYTES + 1), "it has more than 16 MiB"),
        ("a: [", "line 2: did not find expected node content"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str | bytes, problem: str) -> None:
    with pytest.raises(YamlError) as e:
        load(text)
    assert str(e.value) == problem


def test_values_are_counted() -> None:
    assert len(load("[" + "1," * 99 + "]", max_nodes=100)) == 99
    with pytest.raises(YamlError, match="line 1: it has more than 99 values"):
        load("[" + "1," * 99 + "]", max_nodes=99)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "a",
        "---\na: 1\n...\n",
        "{a: 1, b: [x, 'y', \"z\\u00e9\", 0x1f, 017, 1_000, 1:30, -5, +7, .5, 1e3, 1.5e+3, .inf, 0o7, 1., 00]}",
        "{yes: no, t: on, o: off, F: FALSE, n: ~, m: null, e: , q: 'null', d: 2026-11-21, t2: 2026-11-21T01:02:03Z}",
        "- |\n  two\n  lines\n- >\n  one\n  line\n-\n- {}\n- []\n- =\n",
        "12345678901234567890123456789: x",
    ],
)
def test_the_tree_is_that_of_the_library(text: str) -> None:
    loader = yaml.SafeLoader
    expected = yaml.load(text.replace("- =\n", "- '='\n"), loader)
    assert load(text) == expected
    assert repr(load(text)) == repr(expected)
    as_text = yaml.load(text, yaml.BaseLoader)
    assert load(text, as_text=True) == as_text
