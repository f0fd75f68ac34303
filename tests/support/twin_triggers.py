"""Triggers the slow way: every tick looks at all the rows, and remembers what was so at the ticks before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Row = dict[str, int]


class Spec:
    """A trigger in plain Python, and its text.  ``on`` and ``off`` take the rows of a window."""

    def __init__(
        self,
        text: str,
        window: int,
        period: int,
        on: Callable[[list[Row]], bool],
        *,
        where: Any = None,
        by: tuple[str, ...] = (),
        off: Callable[[list[Row]], bool] | None = None,
        hold: int = 0,
        rearm: int = 0,
        repeat: int = 0,
    ) -> None:
        self.text, self.name, self.window, self.period = text, text.split(":")[0], window, period
        self.on, self.off = on, off
        self.where, self.by, self.hold, self.rearm, self.repeat = where or (lambda r: True), by, hold, rearm, repeat


class Twin:
    def __init__(self, specs: list[Spec], start: int) -> None:
        self.specs, self.start = specs, start
        self.memory: dict[Any, dict[str, Any]] = {}
        self.before: dict[str, set[tuple[int, ...]]] = {s.name: set() for s in specs}

    def tick(self, t: int, rows: list[Row]) -> list[tuple[int, str, str, tuple[int, ...], int]]:
        """(tick, trigger, event, key, rows in the window), of all triggers that have a tick at t."""
        out = []
        for spec in self.specs:
            if t % spec.period:
                continue
            inside: dict[tuple[int, ...], list[Row]] = {} if spec.by else {(): []}
            for r in rows:
                if t - spec.window <= r["ts"] < t and spec.where(r):
                    inside.setdefault(tuple(r[f] for f in spec.by), []).append(r)
            active = {k for n, k in self.memory if n == spec.name}
            for key in sorted({*inside, *self.before[spec.name], *active}):
                event = self.judge(t, spec, key, inside.get(key, []))
                if event:
                    out.append((t, spec.name, event, key, len(inside.get(key, []))))
            self.before[spec.name] = set(inside)
        return out

    def judge(self, t: int, spec: Spec, key: tuple[int, ...], rows: list[Row]) -> str:
        name = spec.name, key
        m = self.memory.setdefault(name, {"firing": False, "since": None, "ready": -math.inf, "last": 0})
        on = spec.on(rows)
        event = ""
        if m["firing"]:
            if not on and (spec.off is None or spec.off(rows)):
                event, m["firing"], m["since"], m["ready"] = "clear", False, None, t + spec.rearm
            elif spec.repeat and t - m["last"] >= spec.repeat:
                event, m["last"] = "repeat", t
        else:
            m["since"] = (t if m["since"] is None else m["since"]) if on else None
            if on and t >= m["since"] + spec.hold and t >= m["ready"]:
                event, m["firing"], m["last"] = "fire", True, t
        if not m["firing"] and m["since"] is None and m["ready"] <= t:
            del self.memory[name]
        return event


MS = 10**6


def total(rows: list[Row]) -> int:
    return sum(r["len"] for r in rows)


def mean(rows: list[Row]) -> float:
    return total(rows) / len(rows) if rows else math.nan


# Texts and what they mean, side by side.
SPECS = [
    Spec("a: count > 3 over 10ms every 1ms", 10 * MS, MS, lambda w: len(w) > 3),
    Spec(
        "b: sum(len) > 2000 over 7ms every 2ms by dst_port", 7 * MS, 2 * MS, lambda w: total(w) > 2000, by=("dst_port",)
    ),
    Spec(
        "c: avg(len) < 500 and count > 1 over 10ms every 5ms where dst_port == 80 clear count < 1",
        10 * MS,
        5 * MS,
        lambda w: mean(w) < 500 and len(w) > 1,
        where=lambda r: r["dst_port"] == 80,
        off=lambda w: len(w) < 1,
    ),
    Spec(
        "d: distinct(dst_port) > 1 over 8ms every 1ms by src_port",
        8 * MS,
        MS,
        lambda w: len({r["dst_port"] for r in w}) > 1,
        by=("src_port",),
    ),
    Spec(
        "e: count < 1 over 5ms every 1ms for 3ms rearm 9ms", 5 * MS, MS, lambda w: len(w) < 1, hold=3 * MS, rearm=9 * MS
    ),
    Spec(
        "f: max(len) - min(len) >= 900 over 6ms every 3ms by src_port, dst_port",
        6 * MS,
        3 * MS,
        lambda w: bool(w) and max(r["len"] for r in w) - min(r["len"] for r in w) >= 900,
        by=("src_port", "dst_port"),
    ),
    Spec(
        "g: max(len) > 1300 over 20ms every 1ms repeat 5ms",
        20 * MS,
        MS,
        lambda w: any(r["len"] > 1300 for r in w),
        repeat=5 * MS,
    ),
    Spec(
        "h: count < 1 over 4ms every 2ms by src_port for 2ms",
        4 * MS,
        2 * MS,
        lambda w: len(w) < 1,
        by=("src_port",),
        hold=2 * MS,
    ),
    Spec(
        "i: not (count <= 2 or rate < 200) over 9ms every 9ms where len > 100",
        9 * MS,
        9 * MS,
        lambda w: len(w) > 2 and len(w) / 0.009 >= 200,
        where=lambda r: r["len"] > 100,
    ),
    Spec("j: min(len) < 50 over 2ms every 6ms", 2 * MS, 6 * MS, lambda w: any(r["len"] < 50 for r in w)),
    Spec(
        "k: last(len) > first(len) over 10ms every 2ms",
        10 * MS,
        2 * MS,
        lambda w: bool(w) and w[-1]["len"] > w[0]["len"],
    ),
    Spec(
        "y: count > 1 and count(len > 700) / count > 0.5 over 6ms every 2ms by dst_port",
        6 * MS,
        2 * MS,
        lambda w: len(w) > 1 and sum(r["len"] > 700 for r in w) / len(w) > 0.5,
        by=("dst_port",),
    ),
    Spec(
        "z: count > 0 and sum((len - 20) * 8) / 1ms > max(len * 2) over 5ms every 1ms",
        5 * MS,
        MS,
        lambda w: bool(w) and sum((r["len"] - 20) * 8 for r in w) / 5 > max(r["len"] * 2 for r in w),
    ),
]
