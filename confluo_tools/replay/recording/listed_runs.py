"""Rows that list their events: the times and places of up to 64 equal events, or packets of one direction, in one row.

A row has the first event; its lists have the numbers from each event to the next, times in units of `SLOT` or, of sent
packets, `SENT_SLOT`.  Here each event becomes a row of its own, as if it had been written so.  Like runs, rows may be
relative: to the last event of the row before of the same event, or to the packet after the last one of that direction.
The recorder is record_tcp_end.h.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from confluo_tools.core.replay.recording_rows import listed_sums
from confluo_tools.errors import FormatError
from confluo_tools.replay.recording.kinds import Note

SLOT, SENT_SLOT = 2048, 8192  # ns, as in record_tcp.h
LISTS = ("gaps", "tx_gaps", "rx_gaps", "number_gaps", "sizes", "marks")
PLACES = ("tx", "rx", "number")
_MARK_CE, _MARK_MERGED = 1, 2
_ROW = 64  # bytes of a list
Columns = dict[str, "array[int]"]


def is_listed(notes: Sequence[int]) -> bool:
    """Whether rows list their events: those of one end do, or do not."""
    listed = bool(notes) and bool(notes[0] & Note.LISTED)
    if any(bool(note & Note.LISTED) != listed for note in notes):
        raise FormatError("only some rows list their events: the recording is damaged")
    return listed


def listed_events(column: Callable[[str], array[int]], names: Sequence[str], same: Sequence[str]) -> Columns:
    """The columns ``names`` of events, one row each.  ``same``: columns that are equal in rows of the same event."""
    counts, notes = column("count"), column("notes")
    own = [note & ~(Note.LISTED | Note.RELATIVE) for note in notes]
    sums = {name: _sums(column(f"{name}_gaps"), counts) for name in PLACES}
    times = _sums(column("gaps"), counts)
    found = _repeated(column, names, counts)  # counts are those of lists
    before: dict[tuple[int, ...], list[int]] = {}
    first = 0
    values = [column(name) for name in PLACES]
    for row, key in enumerate(zip(own, *map(column, same), strict=True)):
        after = first + counts[row]
        last = before.get(key, [0, 0, 0]) if notes[row] & Note.RELATIVE else [0, 0, 0]
        ends = []
        for name, start, value in zip(PLACES, last, values, strict=True):
            base, out, offsets = value[row] + start & 0xFFFFFFFF, found[name], sums[name]
            for at in range(first, after):
                out[at] = base + offsets[at] & 0xFFFFFFFF
            ends.append(out[after - 1])
        before[key] = ends
        for at in range(first, after):
            found["notes"][at] = own[row]
        first = after
    _add_times(found["ts"], times, SLOT)
    return found


def listed_packets(column: Callable[[str], array[int]], names: Sequence[str], counter: str) -> Columns:
    """The columns ``names`` of packets, one row each.  ``counter``: tx of sent, rx of received packets."""
    counts, notes = column("count"), column("notes")
    times, between = _sums(column("gaps"), counts), _sums(column("tx_gaps"), counts)
    found = _repeated(column, names, counts)  # counts are those of lists
    sizes, marks = column("sizes"), column("marks")
    firsts = [column(name) for name in ("tx", "rx", "ip_id", "segments")]
    out_tx, out_rx, out_id, out_segments, out_notes, gaps = (
        found[name] for name in ("tx", "rx", "ip_id", "segments", "notes", "gap")
    )
    received = counter == "rx"
    expected = (0, 0, 0)
    at = 0
    for row, (count, note, tx, rx, ip_id, segments) in enumerate(zip(counts, notes, *firsts, strict=True)):
        if note & Note.RELATIVE:
            tx, rx, ip_id = tx + expected[0] & 0xFFFFFFFF, rx + expected[1] & 0xFFFFFFFF, ip_id + expected[2] & 0xFFFF
        for n in range(count):
            out_tx[at] = tx + (between[at] if received else n) & 0xFFFFFFFF
            out_rx[at] = rx + n & 0xFFFFFFFF if received else rx
            out_id[at] = ip_id
            out_segments[at] = size = sizes[row * _ROW + n] or segments
            mark = marks[row * _ROW + n]
            out_notes[at] = (mark & _MARK_CE and Note.CE) | (mark & _MARK_MERGED and Note.MERGED)
            ip_id = ip_id + size & 0xFFFF
            if n:
                gaps[at] = 0
            at += 1
        expected = (out_tx[at - 1], rx + count, ip_id) if received else (tx + count, rx, ip_id)
    _add_times(found["ts"], times, SLOT if received else SENT_SLOT)
    return found


def _repeated(column: Callable[[str], array[int]], names: Sequence[str], counts: Sequence[int]) -> Columns:
    """Each value as often as its row has events; counts are 1."""
    found: Columns = {}
    for name in names:
        values = column(name)
        if name == "count":
            found[name] = array(values.typecode, (1,)) * sum(counts)
        else:
            found[name] = array(values.typecode, [v for v, n in zip(values, counts, strict=True) for _ in range(n)])
    return found


def _sums(lists: array[int], counts: array[int]) -> array[int]:
    try:
        return listed_sums(lists, array("q", counts))
    except OverflowError as e:
        raise FormatError(f"{e}: the recording is damaged") from None


def _add_times(times: array[int], sums: array[int], slot: int) -> None:
    try:
        for at, number in enumerate(sums):
            if number:
                times[at] += number * slot
    except OverflowError:
        raise FormatError("ts of a row does not fit: the recording is damaged") from None
