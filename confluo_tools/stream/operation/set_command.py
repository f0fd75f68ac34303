"""confluo-stream set: other flows for a run that goes on.  Manual: confluo-stream-set(1)."""

from __future__ import annotations

from typing import Annotated

from confluo_tools import cli
from confluo_tools.cli.options import argument
from confluo_tools.errors import ConfluoError, UsageError

TEXT = "flows.yaml"  # as a run calls the text that it gets

app = cli.command_app(
    """
# sample, filter or aggregate otherwise, from the next packet on
confluo-stream set flows.yaml

# one of several runs
confluo-stream set flows.yaml eth0
"""
)


@app.command(panels={"Options": "--quiet"})
def set_flows(
    path: Annotated[str, argument("FILE", "The flows, as of publish --flows; '-': standard input.")],
    name: Annotated[str | None, argument("NAME", "The run by its name or socket, if there are several.")] = None,
    *,
    common: cli.TalkOptions,
) -> int:
    """Give a run the flows in FILE, without a restart; print what changed."""
    from confluo_tools.stream.operation.control_client import RunConnection, chosen_runs, listed

    text = flows_text(path)
    places = chosen_runs([name] if name is not None else [])
    if not places:
        raise UsageError("no run goes on", hint=listed(places))
    if len(places) > 1:
        raise UsageError("there are several runs", hint=f"name one of {', '.join(p.name for p in places)}")
    with RunConnection(places[0]) as run:
        try:
            changed = run.change(text)
        except ConfluoError as e:
            if path != "-" and e.where.startswith(TEXT):  # the run has the text only
                e.where = path + e.where[len(TEXT) :]
            raise
    for line in changed or ["no change"]:
        cli.tell(line)
    return cli.OK


def flows_text(path: str) -> str:
    """The content of the file.  Raises UsageError."""
    import sys

    from confluo_tools.stream.operation.control_messages import MAX_REQUEST

    most = MAX_REQUEST // 8  # JSON may write a character as six
    try:
        if path == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with open(path, "rb") as f:
                data = f.read(most + 1)
        text = data.decode()
    except OSError as e:
        raise UsageError(e.strerror or str(e), where=path) from None
    except UnicodeDecodeError:
        raise UsageError("is not UTF-8 text", where=path) from None
    if len(data) > most:
        raise UsageError(f"is longer than {most} bytes", where=path)
    return text


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-stream set", argv)
