"""What the tests of the Python package share, and their results in the form of ``cargo test``."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

# Programs that a test interrupts must not inherit that SIGINT is ignored, as it is in a background job of a shell.
signal.signal(signal.SIGINT, signal.default_int_handler)

# For what a loaded machine may need; no test passes because a time is over.
LONGEST_WAIT = 120.0


def eventually(what: str, find: Callable[[], T | None]) -> T:
    """Returns what ``find`` finds."""
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        if (found := find()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"within {LONGEST_WAIT} s there was no {what}")


class Program:
    """A program of the package with a ready line, and its end."""

    def __init__(self, arguments: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                arguments, cwd=log.parent, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
            )

    def read_ready_line(self) -> dict[str, Any]:
        stdout = self.process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], LONGEST_WAIT)
        line = stdout.readline() if readable else b""
        assert line, f"no ready line, stderr: {self.stderr()}"
        ready: dict[str, Any] = json.loads(line)
        return ready

    def stderr(self) -> str:
        return self.log.read_text()

    def end(self, by: signal.Signals) -> int:
        """Returns the exit code."""
        self.process.send_signal(by)
        return self.process.wait(LONGEST_WAIT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Programs:
    """Starts programs in a folder of the test's own, without settings of the user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[Program] = []

    def environment(self, **more: str) -> dict[str, str]:
        usual = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE_")}
        return usual | {"HOME": str(self.folder)} | more

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs ``python`` with these arguments to its end."""
        return self.run_program([sys.executable, *arguments], **env)

    def run_program(self, arguments: list[str], **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments,
            cwd=self.folder,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_WAIT,
        )

    def start(self, *arguments: str, **env: str) -> Program:
        """Starts ``python`` with these arguments."""
        return self.start_program([sys.executable, *arguments], **env)

    def start_program(self, arguments: list[str], **env: str) -> Program:
        log = self.folder / f"{len(self.running)}.log"
        program = Program(arguments, self.environment(**env), log)
        self.running.append(program)
        return program

    def start_engine(self, *flags: str) -> str:
        """Starts a simulated engine and returns its URL."""
        free = "tcp://127.0.0.1:0"
        ports = ["--port", "0", "--kv-events", free, "--replay", free]
        engine = self.start("-m", "warmroute", "engine", *ports, "--print-ready", *flags)
        return f"http://{engine.read_ready_line()['data']}"


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    started = Programs(tmp_path)
    yield started
    for program in started.running:
        program.close()


@pytest.fixture
def nats_server(programs: Programs) -> str:
    """The URL of a NATS server with JetStream."""
    program = shutil.which("nats-server")
    if program is None:
        assert os.environ.get("CI") != "true", "there is no nats-server, and CI requires it"
        pytest.skip("there is no nats-server")
    store = str(programs.folder / "jetstream")
    server = programs.start_program([program, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", store])

    def port() -> str | None:
        found = re.search(r"Listening for client connections on 127\.0\.0\.1:(\d+)", server.stderr())
        return found and found[1]

    eventually("ready server", lambda: "Server is ready" in server.stderr() or None)
    return f"nats://127.0.0.1:{eventually('port', port)}"


@pytest.fixture
def wait_for() -> Callable[[str, Callable[[], Any]], Any]:
    """``wait_for(what, find)`` returns what ``find`` finds as soon as it is not None."""
    return eventually


@pytest.fixture
def get_json() -> Callable[[str], Any]:
    """``get_json(url)`` returns the JSON of a reply, past any proxy of the environment."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(url: str) -> Any:
        with opener.open(url, timeout=LONGEST_WAIT) as reply:
            return json.load(reply)

    return get


# The worst result of a function's runs with all of its parameters is the function's.
RESULTS = ["ok", "skipped", "FAILED"]
results: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    result = {"passed": "ok", "skipped": "skipped", "failed": "FAILED"}[report.outcome]
    # The node's name starts at the folder of pyproject.toml.
    name = "python/" + report.nodeid.split("[", 1)[0]
    results[name] = max(results.get(name, "ok"), result, key=RESULTS.index)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line("")
    for name, result in results.items():
        terminalreporter.write_line(f"test {name} ... {result}")
