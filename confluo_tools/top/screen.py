"""The live view on a terminal: draw, wait, act on keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluo_tools.inputs.follow import StopSignal
    from confluo_tools.top.model import TopModel
    from confluo_tools.top.view import TopView

WINDOWS = tuple(n * 10**9 for n in (1, 2, 5, 10, 30, 60, 120, 240))


class TopScreen:
    """Shows ``model`` by ``view`` until `q` or a signal (``ending``), or until ``updates`` were drawn."""

    def __init__(self, model: TopModel, view: TopView, ending: StopSignal, updates: int | None = None) -> None:
        self.model, self.view, self.ending, self.left = model, view, ending, updates
        self._paused = self._help = False

    def run(self) -> None:
        from confluo_tools.cli.live_screen import END, LiveScreen

        with LiveScreen(whole=True) as screen:
            look, fresh, due = None, True, 0.0
            while not self.ending.came():
                width, height = screen.size
                if fresh:
                    look = self.model.look(time.time_ns(), self.view.room(height), width, still=self._paused)
                    due = time.monotonic() + self.model.every / 1e9
                ended = self.model.source.ended
                screen.show(self.view.lines(look, width - 1, height, paused=self._paused, ended=ended, help=self._help))
                left = due - time.monotonic()
                pressed = screen.key(left if not (self._paused or ended) else 3600.0, self.ending.wake)
                if pressed is not None:
                    if pressed in END or "q" in pressed or (ended and not screen.has_keys):
                        return
                    fresh = self._act(pressed)
                    continue
                if ended and not screen.has_keys:
                    return
                if screen.size != (width, height):
                    fresh = True
                    continue
                fresh = time.monotonic() >= due and not self._paused
                if fresh and self.left is not None:
                    self.left -= 1
                    if self.left <= 0:
                        return

    def _act(self, pressed: str) -> bool:
        """Do what the keys mean; whether the groups must be computed again."""
        model, again = self.model, False
        self._help = False
        if set(pressed) & set("kKmMwW"):
            self._paused = False
        for key in pressed:
            step = 1 if key.islower() else -1
            again = again or key in "kKmMsSwW"
            if key in "kK":
                model.next_group(step)
            elif key in "mM":
                model.next_aggregates(step)
            elif key in "sS":
                model.next_order(step)
            elif key in "wW":
                self._resize(step)
            elif key == "b":
                self.view.bits = not self.view.bits
            elif key in "p ":
                self._paused = not self._paused
                again = again or not self._paused
            elif key in "h?":
                self._help = True
            elif key in "r\x0c":
                again = True
        return again

    def _resize(self, step: int) -> None:
        model = self.model
        possible = [w for w in WINDOWS if w >= model.every and w % model.every == 0] or [model.window]
        nearest = min(range(len(possible)), key=lambda i: abs(possible[i] - model.window))
        model.window = possible[max(0, min(nearest + step, len(possible) - 1))]
