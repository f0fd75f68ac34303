"""Probes that were not answered, or only after a retry: kept one by one, in columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from confluo_tools.engine.state_pieces import pack, unpack

FAILURE = ("ts", "src_ip", "dst_ip", "src_port", "dst_port", "retries", "hint", "elapsed")


class Failure(NamedTuple):
    """One probe that was not answered, or only after a retry."""

    ts: int
    src: str  # address
    dst: str
    src_port: int
    dst_port: int
    retries: int
    hint: int
    elapsed: int


class FailureList(Sequence[Failure]):
    """Failures in columns, 34 bytes each."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._number: dict[str, int] = {}
        self.columns = [array(code) for code in "qIIHHBBq"]

    def extend(self, columns: Sequence[Sequence[Any]]) -> None:
        """Append rows of the fields `FAILURE`, given as columns."""
        for i, (kept, values) in enumerate(zip(self.columns, columns, strict=True)):
            kept.extend(map(self._name_number, values) if i in (1, 2) else values)

    def _name_number(self, name: str) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self._names)
            self._names.append(name)
        return number

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, row: Any) -> Any:
        ts, src, dst, *rest = [column[row] for column in self.columns]
        return Failure(ts, self._names[src], self._names[dst], *rest)

    def dump(self) -> bytes:
        """The failures as bytes, for `merge`."""
        names = "\n".join(self._names).encode()
        return pack([len(self._names).to_bytes(8, "little"), names, *[column.tobytes() for column in self.columns]])

    def merge(self, data: bytes) -> None:
        """Append the failures that another list dumped.  Raises ValueError."""
        number, text, *parts = unpack(data, 2 + len(self.columns))
        names = text.decode().split("\n") if text or any(number) else []
        if len(number) != 8 or len(names) != int.from_bytes(number, "little"):
            raise ValueError("the state of a share of probes is damaged: names of servers")
        more = [array(column.typecode) for column in self.columns]
        for column, part in zip(more, parts, strict=True):
            column.frombytes(part)  # ValueError: not a whole number of values
        if len({len(column) for column in more}) > 1:
            raise ValueError("the state of a share of probes is damaged: numbers of failures")
        for i in (1, 2):
            if more[i] and max(more[i]) >= len(names):
                raise ValueError("the state of a share of probes is damaged: a server that is not there")
            more[i] = array("I", [self._name_number(names[k]) for k in more[i]])
        for kept, column in zip(self.columns, more, strict=True):
            kept.extend(column)

    def names(self) -> Sequence[str]:
        """The addresses of all sources and targets."""
        return self._names

    def ends(self) -> Iterator[tuple[int, str, str]]:
        """(time, source, target) of each failure."""
        names, (ts, src, dst, *_) = self._names, self.columns
        for when, a, b in zip(ts, src, dst, strict=True):
            yield when, names[a], names[b]


class FailureSubset(Sequence[Failure]):
    """Failures of a `FailureList`, by number."""

    def __init__(self, whole: FailureList) -> None:
        self._whole = whole
        self._numbers = array("I")

    def add(self, number: int) -> None:
        self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, row: Any) -> Any:
        return self._whole[self._numbers[row]]

    def ports(self) -> list[tuple[int, int]]:
        """(time, source port) of each failure."""
        ts, _, _, port, *_ = self._whole.columns
        return [(ts[i], port[i]) for i in self._numbers]
