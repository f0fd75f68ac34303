"""A headless Chromium, driven over a pipe: what a page says, shows and complains of."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60  # s that an answer may take on a busy machine


class Browser:
    """One page.  ``problems``: what it said on the console that is not a mere remark."""

    def __init__(self, width: int = 1280, height: int = 860) -> None:
        assert CHROMIUM is not None
        self.profile = tempfile.mkdtemp(prefix="confluo-chromium-")
        to_read, self._out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in os.pipe())
        self._in, to_write = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in os.pipe())

        def place() -> None:
            os.dup2(to_read, 3)
            os.dup2(to_write, 4)

        self.process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-extensions",
                "--disable-background-networking",
                "--disable-component-update",
                "--force-color-profile=srgb",
                f"--user-data-dir={self.profile}",
                "--remote-debugging-pipe",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place,
            pass_fds=(3, 4),
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._buffer = 0, b""
        self._session = ""
        self.problems: list[str] = []
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
            self.size(width, height)
        except BaseException:
            self.close()
            raise

    # ---- the protocol

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that arrive meanwhile are kept."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            told = self._next(until - time.monotonic())
            if told.get("id") == number:
                if "error" in told:
                    raise AssertionError(f"{method}: {told['error']}")
                result: dict[str, Any] = told["result"]
                return result
            self._remember(told)

    def _next(self, patience: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(patience, 0))[0]:
                raise AssertionError(f"chromium said nothing for {PATIENCE} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise AssertionError(f"chromium ended ({self.process.wait()})")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _remember(self, told: dict[str, Any]) -> None:
        method, params = told.get("method"), told.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(f"{params['type']}: {[a.get('value', a.get('description')) for a in params['args']]}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])

    # ---- a person

    def open(self, path: str) -> None:
        self.call("Page.navigate", url=path if ":" in path else f"file://{path}")
        self.wait("document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of an expression, or of what it promises."""
        told = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise AssertionError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def wait(self, expression: str) -> None:
        until = time.monotonic() + PATIENCE
        while not self.js(expression):
            assert time.monotonic() < until, f"never: {expression}; {self.problems}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        found: str = self.js(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.point(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def wheel(self, x: float, y: float, by: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)

    def key(self, key: str) -> None:
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        codes = {
            "Enter": 13,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
            "Home": 36,
            "End": 35,
        }
        code = codes.get(key, ord(key[0]))
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _decoded(self, png: bytes, what: str) -> Any:
        url = "data:image/png;base64," + base64.b64encode(png).decode()
        return self.js(f"""(async () => {{
            const image = new Image(); image.src = {json.dumps(url)}; await image.decode();
            const canvas = document.createElement("canvas");
            canvas.width = image.width; canvas.height = image.height;
            const g = canvas.getContext("2d"); g.drawImage(image, 0, 0);
            const data = g.getImageData(0, 0, image.width, image.height).data;
            {what} }})()""")

    def colours(self, png: bytes) -> dict[tuple[int, int, int], float]:
        """The share of each colour of a picture, by the browser's own decoder."""
        counts = self._decoded(
            png,
            """const counts = {};
            for (let i = 0; i < data.length; i += 4) {
                const key = data[i] + "," + data[i + 1] + "," + data[i + 2]; counts[key] = (counts[key] || 0) + 1; }
            return counts;""",
        )
        total = sum(counts.values())
        return {tuple(map(int, key.split(","))): n / total for key, n in counts.items()}  # type: ignore[misc]

    def pixels(self, png: bytes, at: list[tuple[int, int]]) -> list[tuple[int, ...]]:
        """The colours at some places (x, y) of a picture."""
        found = self._decoded(
            png,
            f"""return {json.dumps(at)}.map(([x, y]) => {{
            const i = 4 * (y * image.width + x); return [...data.slice(i, i + 3)]; }});""",
        )
        return [tuple(colour) for colour in found]

    def close(self) -> None:
        self._session = ""
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            self.process.kill()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._in)
        os.close(self._out)
        for _ in range(50):  # its children write into the folder for a moment
            shutil.rmtree(self.profile, ignore_errors=True)
            if not os.path.exists(self.profile):
                break
            time.sleep(0.1)
