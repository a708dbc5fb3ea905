"""Headless Chromium, spoken to over two pipes in its own DevTools protocol, so that no driver is needed."""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FOUND = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ABSENT = "needs Chromium, such as Debian's package chromium"
PATIENCE = 60.0
"""Seconds for an answer: this machine may be busy."""


class Chromium:
    """One browser process; every page is a new tab."""

    def __init__(self, folder: Path) -> None:
        assert FOUND is not None
        ours, theirs = os.pipe(), os.pipe()
        options = [
            *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run"),
            *(
                "--hide-scrollbars",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-extensions",
            ),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),  # which Chromium refuses to root
        ]
        # It reads from handle 3 and writes to 4. Ours may be called that too, so they first get out of the way.
        read, write = (fcntl.fcntl(handle, fcntl.F_DUPFD, 10) for handle in (theirs[0], ours[1]))
        redirected = ["bash", "-c", f'exec "$0" "$@" 3<&{read} 4>&{write}', FOUND, *options]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(redirected, pass_fds=(read, write), **quiet)
        for handle in (theirs[0], ours[1], read, write):
            os.close(handle)
        self._in, self._out = theirs[1], ours[0]
        self._rest = b""
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._in)  # upon which it leaves
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)

    @contextmanager
    def page(self, path: Path, width: int, *, dark: bool = False) -> Generator["Page"]:
        """The file in a tab of this width, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        page.prefer(dark=dark)
        page.call("Page.navigate", url=path.as_uri())
        self.until("Page.loadEventFired")
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def until(self, event: str) -> None:
        """Wait for an event that may have come already."""
        while not any(known.get("method") == event for known in self.events):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._out], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"Chromium has not answered for {PATIENCE:.0f} seconds"
            piece = os.read(self._out, 1 << 20)
            assert piece, "Chromium has left"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression, or the promise it is, comes to."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def prefer(self, *, dark: bool = False, media: str = "") -> None:
        """What the reader's system says of itself."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        # The page is told of it before it is next drawn.
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def complaints(self) -> list[str]:
        """Everything on the console, uncaught errors and refusals of the content policy among it."""
        self.value("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self._browser.events if event.get("method") in methods]

    def requested(self) -> set[str]:
        """The kinds of address that were asked for."""
        sent = [event for event in self._browser.events if event.get("method") == "Network.requestWillBeSent"]
        return {event["params"]["request"]["url"].partition(":")[0] for event in sent}

    def screenshot(self, path: Path) -> None:
        """The whole length of the page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))
