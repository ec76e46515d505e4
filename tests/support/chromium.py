"""Chromium without a window, driven over a pipe by its DevTools protocol: opens pages, clicks, reads and takes
pictures."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = "chromium is not installed (apt-get install chromium)"  # why tests of pages in a browser are skipped
PATIENCE = 60.0  # seconds until an answer
# Becomes the browser, which reads commands from 3 and writes answers to 4. The pipes may have these numbers: they move away first.
START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(pipe), fcntl.F_DUPFD_CLOEXEC, 10) for pipe in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    """Its path, or None where it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A browser with one page. folder: where it keeps its profile."""

    def __init__(self, program: str, folder: Path) -> None:
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
                   "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]  # fmt: skip
        pipes = str(theirs_read), str(theirs_write)
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *pipes, program, *options],
            pass_fds=(theirs_read, theirs_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_read)
        os.close(theirs_write)
        self.read, self.write = ours_read, ours_write
        self.rest, self.number, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.write)
        os.close(self.read)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the protocol; what else arrives becomes an event. Raises RuntimeError for an
        error."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._next(until)
            if answer.get("id") != self.number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(until - time.monotonic(), 0))[0]:
                raise TimeoutError(f"chromium gave no answer within {PATIENCE:.0f} s")
            if not (block := os.read(self.read, 1 << 20)):
                raise RuntimeError("chromium ended")
            self.rest += block
        line, _, self.rest = self.rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Loads a page in a window of that size, and waits for it."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._load("about:blank")  # another place on the same page would not load it anew
        self._load(url)

    def _load(self, url: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        until = time.monotonic() + PATIENCE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(until))

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page. Raises RuntimeError for what it throws."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors of scripts, and what the page's policy refused, since it was opened."""
        self.evaluate("0")
        found = [e["params"] for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        return [json.dumps(params) for params in found]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened."""
        self.evaluate("0")
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def picture(self, path: Path, whole: bool = False) -> None:
        """A PNG of what the window shows, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
