"""Options that come together: commands take a whole group as one parameter."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import pytest

from confluo_tools import cli
from confluo_tools.cli.groups import OptionGroup, spread
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError
from confluo_tools.schema import builtin
from running import CAMPUS, run


class Base(OptionGroup):
    one: Annotated[int, option("--one", help="One.")] = 1
    two: Annotated[str, option("--two", help="Two.")] = "b"


class More(Base):
    three: Annotated[bool, option("--three", help="Three.")] = False
    one: Annotated[int, option("--one", help="Another one.")] = 11


def command(first: Annotated[int, option("--first", help="First.")] = 0, *, more: More, last: int = 5) -> Any:
    """What it does."""
    return first, more, last


def test_a_group_is_spread_where_it_stands() -> None:
    flat = spread(command)
    parameters = signature(flat).parameters
    assert [(name, p.default) for name, p in parameters.items()] == [
        ("first", 0),
        ("one", 11),
        ("two", "b"),
        ("three", False),
        ("last", 5),
    ]
    assert [parameters["one"].annotation.__metadata__[0].help, flat.__name__, flat.__doc__] == [
        "Another one.",
        "command",
        "What it does.",
    ]
    first, more, last = flat(first=3, one=4, two="x", three=True, last=6)
    assert (first, type(more), more.one, more.two, more.three, last) == (3, More, 4, "x", True, 6)


def test_two_commands_do_not_share_what_was_said() -> None:
    made = [spread(command)(first=0, one=one, two="", three=False, last=0)[1] for one in (1, 2)]
    assert [m.one for m in made] == [1, 2]
    assert More.one == 11


def test_inputs_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluo_tools.cli.groups.no_input", lambda names: not names)
    plain, snapshot = cli.InputOptions({}), cli.InputOptions({"at": "then.yaml"})
    assert (plain.missing([]), plain.missing(None), plain.missing(["a.ml"]), snapshot.missing(None)) == (
        True,
        True,
        False,
        False,
    )
    with pytest.raises(UsageError, match="names the logs"):
        snapshot.missing(["a.ml"])
    with pytest.raises(UsageError, match="leave --follow out"):
        snapshot.missing([], follow=True)


def test_tables_show_the_usual_fields_unless_asked() -> None:
    schema = builtin("probe")
    usual = ["ts", "src"]
    assert cli.OutputOptions({}).names(schema, "table", usual) == usual
    assert cli.OutputOptions({}).names(schema, "tsv", usual) is None
    assert cli.OutputOptions({"wide": True}).names(schema, "table", usual) is None
    assert cli.OutputOptions({"fields": "dst"}).names(schema, "table", usual) == ["dst"]


@pytest.mark.parametrize("given", [{"append": True}, {"index": "ts"}, {"keep": "1h"}, {"sync": "seal"}])
def test_options_of_a_log_need_one(given: dict[str, Any], tmp_path: Path) -> None:
    name = f"--{next(iter(given))}"
    with pytest.raises(UsageError, match=f"{name} is for a MultiLog"):
        cli.RecordingOptions(given | {"output": str(tmp_path / "x.tsv")}).kind()
    assert cli.RecordingOptions(given | {"output": str(tmp_path / "x")}).kind() == "multilog"


@pytest.mark.parametrize(
    "words",
    [
        ["query", CAMPUS, "-c", "1"],
        ["convert", CAMPUS, "-c", "1"],
        ["vote", "bound"],
        ["pingmesh", "simulate", "--span", "1s"],
    ],
    ids=lambda words: words[0],
)
def test_settings_hold_before_anything_is_done(words: list[Any], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("format: ndjson\n")
    done = run(f"confluo-{words[0]}", *words[1:], "--config", tmp_path / "mine.yaml")
    assert (done.returncode, done.stdout[:2]) == (0, b'{"'), done.stderr
