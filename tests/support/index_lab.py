"""A MultiLog of several lanes, segments and blocks, kept as numpy columns too; and the tests of a tree in numpy."""

from __future__ import annotations

import ipaddress

import numpy as np

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.expr import leaves
from confluo_tools.schema import Field, Schema, fold6

SCHEMA = Schema(
    "lab",
    [
        Field("ts", "time"),
        Field("id", "u64"),
        Field("src", "ip"),
        Field("port", "u16"),
        Field("len", "u32"),
        Field("temp", "i32"),
        Field("load", "f64"),
        Field("name", "bytes(12)"),
        Field("kind", "u8"),
        Field("path", "list(u16, 3)"),
    ],
)
DTYPES = {"ts": "i8", "id": "u8", "src": "u4", "port": "u2", "len": "u4", "temp": "i4", "load": "f8", "kind": "u1"}
INDEXABLE = ("ts", "src", "port", "len", "temp", "load", "name", "kind", "path")
START = 1_700_000_000_000_000_000
V6 = [ipaddress.ip_address(f"2001:db8::{i:x}").packed for i in range(4)]


def rows(seed: int, lane: int, first: int, n: int) -> dict[str, np.ndarray]:
    """n rows of a lane, from row ``first`` on; ``id`` is lane << 40 | row."""
    rng = np.random.default_rng([seed, lane, first])
    at = np.arange(first, first + n, dtype="i8")
    src = (0x0A000000 + rng.integers(0, 64, n)).astype("u4")
    src6 = np.zeros((n, 16), "u1")
    six = rng.random(n) < 0.1
    which = rng.integers(0, len(V6), n)
    for i, packed in enumerate(V6):
        src[six & (which == i)] = fold6(packed)
        src6[six & (which == i)] = np.frombuffer(packed, "u1")
    names = np.array([b"eth0", b"eth1", b"wlan0", b"lo", b"veth123", b"veth124", b""], dtype="S12")
    path = rng.integers(0, 6, (n, 3)).astype("u2")
    rare = rng.random((n, 3)) < 0.02
    path[rare] = rng.integers(100, 164, rare.sum())
    return {
        "ts": START + at * 1000 + rng.integers(-5000, 5000, n) // 2 * 2,  # not in order, with ties
        "id": (np.uint64(lane) << np.uint64(40)) | at.astype("u8"),
        "src": src,
        "src6": src6,
        "port": rng.choice(np.array([22, 53, 80, 443, 8080, 0, 65535], "u2"), n),
        "len": np.where(rng.random(n) < 0.5, rng.integers(40, 1500, n), 64).astype("u4"),
        "temp": rng.integers(-40, 60, n).astype("i4"),
        "load": np.where(rng.random(n) < 0.05, np.nan, rng.integers(-4, 5, n) / 2.0),
        "name": rng.choice(names, n),
        "kind": (at // 50000 % 3).astype("u1"),  # constant over long stretches: zone maps decide
        "path": path,
    }


def block(columns: dict[str, np.ndarray], start: int, stop: int) -> Block:
    cut = [np.ascontiguousarray(columns[c.name][start:stop]).tobytes() for c in SCHEMA.columns]
    return Block.wrap(SCHEMA.layout, stop - start, cut)


def append(writer, columns: dict[str, np.ndarray], step: int = 30011) -> None:
    n = len(columns["id"])
    for start in range(0, n, step):
        writer.append(block(columns, start, min(start + step, n)))


def make(path, sizes, seed: int = 1, segment_blocks: int = 2):
    """A log with a lane of each size; the lanes are all open at once.  (log, {lane: columns})."""
    log = multilog.create(path, SCHEMA, segment_blocks=segment_blocks)
    writers = [log.writer() for _ in sizes]
    kept = {}
    for writer, size in zip(writers, sizes, strict=True):
        columns = rows(seed, writer.number, 0, size)
        append(writer, columns)
        kept[writer.number] = columns
    for writer in writers:
        writer.close()
    return log, kept


def joined(lanes: dict[int, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """All lanes' columns, lane by lane, as a plan without order gives them."""
    return {name: np.concatenate([lanes[i][name] for i in sorted(lanes)]) for name in lanes[min(lanes)]}


def holds(tree, columns: dict[str, np.ndarray]) -> np.ndarray:
    """For which rows ``tree`` holds."""
    n = len(columns["id"])
    if isinstance(tree, leaves.Const):
        return np.full(n, tree.value)
    if isinstance(tree, leaves.And):
        return np.logical_and.reduce([holds(t, columns) for t in tree.items] or [np.full(n, True)])
    if isinstance(tree, leaves.Or):
        return np.logical_or.reduce([holds(t, columns) for t in tree.items] or [np.full(n, False)])
    if isinstance(tree, leaves.Not):
        return ~holds(tree.item, columns)
    x = columns[SCHEMA.columns[tree.col].name]
    if isinstance(tree, (leaves.ListElement, leaves.ListLength, leaves.ListSequence)):
        return _list(tree, x, columns)
    if isinstance(tree, leaves.Pair):
        y = columns[SCHEMA.columns[tree.col2].name]
        x = x if tree.mask is None else x & x.dtype.type(tree.mask)
        x, y = (x, y) if x.dtype.kind == "f" or y.dtype.kind == "f" else (x.astype(object), y.astype(object))
        ops = {
            "==": np.equal,
            "!=": np.not_equal,
            "<": np.less,
            "<=": np.less_equal,
            ">": np.greater,
            ">=": np.greater_equal,
        }
        return ops[tree.op](x, y).astype(bool)
    if isinstance(tree, leaves.FRange):
        with np.errstate(invalid="ignore"):
            return (x > tree.lo if tree.lo_open else x >= tree.lo) & (x < tree.hi if tree.hi_open else x <= tree.hi)
    if isinstance(tree, (leaves.Bytes, leaves.Glob)):
        return _bytes(tree, x)
    if tree.mask is not None:
        x = x & x.dtype.type(tree.mask & int(np.iinfo(x.dtype).max))
    if isinstance(tree, leaves.InSet):
        hit = np.isin(x, np.array(tree.values, dtype=x.dtype))
    elif isinstance(tree, leaves.InRanges):
        hit = np.logical_or.reduce([(x >= lo) & (x <= hi) for lo, hi in tree.pairs])
    else:
        x = x.astype(object) if x.ndim == 1 else x  # bounds may be beyond the type of the column
        hit = ((x >= tree.lo) & (x <= tree.hi)).astype(bool)
    return hit.any(axis=1) if hit.ndim == 2 else hit


def _list(tree, x: np.ndarray, columns: dict[str, np.ndarray]) -> np.ndarray:
    width = x.shape[1]
    length = np.max(np.where(x != 0, np.arange(1, width + 1), 0), axis=1)
    if isinstance(tree, leaves.ListLength):
        return np.logical_or.reduce([(length >= lo) & (length <= hi) for lo, hi in tree.pairs])
    if isinstance(tree, leaves.ListElement):
        at = np.full(len(x), tree.index) if tree.index >= 0 else length + tree.index
        one = np.where(at >= 0, x[np.arange(len(x)), np.maximum(at, 0)], 0).astype(x.dtype)
        return holds(tree.test, columns | {SCHEMA.columns[tree.col].name: one})
    hits = [(x >= lo) & (x <= hi) for lo, hi in tree.items]
    n = len(hits)
    runs = [np.logical_and.reduce([hits[i][:, at + i] for i in range(n)]) for at in range(width - n + 1)]
    if tree.how == leaves.STARTS:
        return runs[0]
    if tree.how == leaves.EXACT:
        return runs[0] & (length == n)
    if tree.how == leaves.RUN:
        return np.logical_or.reduce(runs)
    done = np.zeros(len(x), int)  # BEFORE: how many items have been found, element by element
    for k in range(width):
        done += np.choose(np.minimum(done, n - 1), [hit[:, k] for hit in hits]) & (done < n)
    return done == n


def _bytes(tree, x: np.ndarray) -> np.ndarray:
    import fnmatch
    import re

    size = x.dtype.itemsize if x.ndim == 1 else x.shape[1]
    raw = x if x.ndim == 1 else x.view("V16").ravel()
    different, where = np.unique(raw, return_inverse=True)
    verdict = []
    for value in different:
        value = bytes(value).ljust(size, b"\0")
        if isinstance(tree, leaves.Glob):
            pattern = re.compile(fnmatch.translate(tree.pattern.decode("latin-1")), re.DOTALL)
            verdict.append(bool(pattern.match(value.rstrip(b"\0").decode("latin-1"))))
        else:
            value = value if tree.mask is None else bytes(a & b for a, b in zip(value, tree.mask, strict=True))
            verdict.append(tree.lo <= value <= tree.hi)
    return np.array(verdict, bool)[where]
