"""Headless Chromium, driven through a pipe: what a page shows, logs and loads."""

import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import tempfile
import time

import pytest

SECONDS = 60
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """Return the path of Chromium, or skip the test."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    return pytest.skip(f"none of {', '.join(NAMES)} is installed")


class Browser:
    """A browser that speaks the DevTools protocol on file descriptors 3 and 4.

    Attributes:
      events: what the browser has reported since the last page was opened.
    """

    def __init__(self, process, reader, writer):
        self._process, self._reader, self._writer = process, reader, writer
        self._buffer, self._number, self._session = b"", 0, None
        self.events = []

    def call(self, method, **parameters):
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def _read(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reader], [], [], end - time.monotonic())
            assert ready, "Chromium does not answer"
            self._buffer += os.read(self._reader, 2**20)
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, width, *, height=800, dark=False):
        """Show a local page and wait until it is loaded."""
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session, self.events = attached["sessionId"], []
        for domain in ("Log", "Network", "Page", "Runtime"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=pathlib.Path(path).absolute().as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._read())

    def evaluate(self, expression):
        """Return the value of a JavaScript expression on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def complaints(self):
        """Return errors, warnings and everything else that the console shows."""
        kinds = (
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
        )
        return [e["params"] for e in self.events if e.get("method") in kinds]

    def requests(self):
        """Return the addresses that the page has loaded."""
        return [
            e["params"]["request"]["url"]
            for e in self.events
            if e.get("method") == "Network.requestWillBeSent"
        ]

    def screenshot(self, path):
        """Save the whole page as a PNG file."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(found["data"]))

    def close(self):
        """Stop the browser."""
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._reader)
        os.close(self._writer)


@contextlib.contextmanager
def browser():
    """Start Chromium, or skip the test if none is installed."""
    path = find()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        commands, writer = os.pipe()
        reader, answers = os.pipe()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        quiet = os.open(os.devnull, os.O_RDWR)
        # Not `subprocess`: the descriptors must be 3 and 4 in the browser.
        process = os.posix_spawn(
            path,
            [path, *flags],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, quiet, 1),
                (os.POSIX_SPAWN_DUP2, quiet, 2),
                (os.POSIX_SPAWN_DUP2, commands, 13),
                (os.POSIX_SPAWN_DUP2, answers, 14),
                (os.POSIX_SPAWN_DUP2, 13, 3),
                (os.POSIX_SPAWN_DUP2, 14, 4),
            ],
        )
        for descriptor in (commands, answers, quiet):
            os.close(descriptor)
        started = Browser(process, reader, writer)
        try:
            yield started
        finally:
            started.close()
