"""Units: the parts of an input that an engine hands out, named by absolute path or URL.

They stand in the order of the rows.  A unit is JSON when it travels: a list that begins with its kind.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

LOG, ARCHIVE = "log", "archive"


class LogBlocks(NamedTuple):
    """Blocks ``first`` to ``after`` (not included) of the segment of ``lane`` that begins with row ``base``.

    ``log``: path of the MultiLog; ``uuid``: hexadecimal; ``rows``: of the segment, at the version of the question;
    ``sealed``: its bytes do not change any more, and have checksums.  ``size``: rows of the unit.
    """

    log: str
    uuid: str
    lane: int
    base: int
    rows: int
    first: int
    after: int
    sealed: bool
    size: int

    @property
    def source(self) -> tuple[str, str]:
        """Units of one source can be read together."""
        return LOG, self.log

    @property
    def travels(self) -> bool:
        """Whether another host may read it: of rows that are being written it may have older bytes."""
        return self.sealed


class ArchiveBatch(NamedTuple):
    """Rows ``first`` to ``after`` (not included) of a batch of an archive: those in ``parts``, relative to ``archive``.

    It has one part, or all parts of a batch if its rows were not in the order of time.  ``first`` is the first row of
    the batch that no earlier batch has.  ``size``: rows of the unit, about.  ``path_fields``: the fields of the schema
    that paths have.
    """

    archive: str
    parts: tuple[str, ...]
    first: int
    after: int
    size: int
    path_fields: tuple[str, ...] = ()

    @property
    def source(self) -> tuple[str, str]:
        return ARCHIVE, ",".join(self.path_fields)  # all archives: a scan reads any parts

    @property
    def travels(self) -> bool:
        return True


Unit = LogBlocks | ArchiveBatch
_KINDS: dict[str, tuple[type[Unit], tuple[type, ...]]] = {
    LOG: (LogBlocks, (str, str, int, int, int, int, int, bool, int)),
    ARCHIVE: (ArchiveBatch, (str, list, int, int, int, list)),
}


def encode(units: Sequence[Unit]) -> bytes:
    """Units as bytes."""
    return json.dumps([[unit.source[0], *unit] for unit in units], separators=(",", ":")).encode(
        "utf-8", "surrogateescape"
    )


def decode(data: bytes) -> list[Unit]:
    """The units in ``data``.  Raises ValueError."""
    try:
        items = json.loads(data.decode("utf-8", "surrogateescape"))
        if not isinstance(items, list):
            raise ValueError("not units: no list")
        return [_unit(*item) for item in items]
    except (TypeError, KeyError, RecursionError) as e:
        raise ValueError(f"not units: {e}") from None


def _unit(kind: str, *values: Any) -> Unit:
    make, types = _KINDS[kind]
    if len(values) != len(types) or not all(type(v) is t for v, t in zip(values, types, strict=True)):
        raise ValueError(f"not a unit: {kind} {values}")
    values = tuple(tuple(map(str, v)) if isinstance(v, list) else v for v in values)
    return make(*values)


def runs(units: Sequence[Unit], number: int) -> list[Sequence[Unit]]:
    """The units as at most ``number`` runs of neighbours, of about the same size, in their order."""
    total = sum(unit.size for unit in units)
    out: list[list[Unit]] = []
    done = 0
    edge = 0.0
    for unit in units:
        if not out or (done + unit.size / 2 > edge and len(out) < number):
            out.append([])
            edge = total * len(out) / number
        out[-1].append(unit)
        done += unit.size
    return list(out)
