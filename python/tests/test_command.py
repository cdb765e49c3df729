"""The program ``warmroute`` out of the package: one build, one copy, three ways to start it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import warmroute
from warmroute import _native

if TYPE_CHECKING:
    from conftest import Programs

# An address without a listener.
NOBODY = "http://127.0.0.1:1"
SCRIPT = Path(sys.executable).with_name("warmroute")
SERVE = ["-m", "warmroute", "serve", "--port", "0", "--admin-listen", "127.0.0.1:0", "--print-ready"]


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


def test_the_command_and_the_module_are_the_same_program(programs: Programs) -> None:
    for start in [[str(SCRIPT)], [sys.executable, "-m", "warmroute"]]:
        end = programs.run_program([*start, "--version"])
        assert (end.returncode, end.stderr) == (0, "")
        assert end.stdout == f"warmroute {warmroute.__version__}\n"
    assert importlib.metadata.version("warmroute") == warmroute.__version__


def test_without_arguments_there_is_help_on_stderr_and_code_2(programs: Programs) -> None:
    end = programs.run("-m", "warmroute")
    assert (end.returncode, end.stdout) == (2, "")
    assert "Usage: warmroute" in end.stderr and "serve" in end.stderr


def test_a_bad_flag_ends_with_2_and_what_was_expected(programs: Programs) -> None:
    end = programs.run("-m", "warmroute", "serve", "--no-such-flag")
    assert (end.returncode, end.stdout) == (2, "")
    assert "--no-such-flag" in end.stderr and "Usage: warmroute serve" in end.stderr


def test_a_configuration_is_shown(programs: Programs) -> None:
    file = programs.folder / "c.yaml"
    file.write_text("routing: {policy: round_robin}\n")
    end = programs.run("-m", "warmroute", "config", "show", "--json", str(file))
    assert end.returncode == 0, end.stderr
    assert json.loads(end.stdout)["routing"]["policy"] == "round_robin"


@pytest.mark.parametrize("command", [["config", "check"], ["serve", "-c"]], ids=["check", "serve"])
def test_a_problem_in_the_file_ends_with_78_and_its_place(programs: Programs, command: list[str]) -> None:
    file = programs.folder / "c.yaml"
    file.write_text(f"workers:\n  - url: {NOBODY}\n    wieght: 2\n")
    end = programs.run("-m", "warmroute", *command, str(file))
    assert end.returncode == 78, end.stderr
    said = end.stdout + end.stderr
    assert "wieght" in said and "weight" in said and "line 3" in said


def test_a_name_that_is_not_utf_8_reaches_the_program_unchanged(programs: Programs) -> None:
    name = os.fsdecode(b"caf\xe9.yaml")
    (programs.folder / name).write_text("routing: {policy: random}\n")
    end = programs.run("-m", "warmroute", "config", "show", "--json", name)
    assert end.returncode == 0, end.stderr
    assert json.loads(end.stdout)["routing"]["policy"] == "random"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_serve_ends_in_order_on_a_signal(programs: Programs, stop: signal.Signals) -> None:
    router = programs.start(*SERVE, "-w", NOBODY)
    assert router.read_ready_line()["pid"] == router.process.pid
    assert router.end(stop) == 0, router.stderr()
    assert "Traceback" not in router.stderr()


def test_a_command_that_catches_no_signal_is_ended_by_one(
    programs: Programs, wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    pipe = programs.folder / "pipe"
    os.mkfifo(pipe)
    convert = programs.start("-m", "warmroute", "config", "convert", "--from", "smg", str(pipe))

    def opened() -> int | None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    # The command has opened it too, and waits for the text.
    writer: int = wait_for("reader", opened)
    try:
        assert convert.end(signal.SIGINT) == -signal.SIGINT, convert.stderr()
        assert convert.stderr() == ""
    finally:
        os.close(writer)


def test_an_ignored_interrupt_stays_ignored(programs: Programs) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from warmroute import _native\n"
        "code = _native.main(['--version'])\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "raise SystemExit(code)\n"
    )
    assert programs.run("-c", code).returncode == 0


def test_the_program_runs_once_in_a_process(programs: Programs) -> None:
    code = (
        "import pickle, warmroute\n"
        "from warmroute import _native\n"
        "assert _native.main(['--version']) == 0\n"
        "try:\n"
        "    _native.main(['--version'])\n"
        "except warmroute.WarmrouteError as error:\n"
        "    copy = pickle.loads(pickle.dumps(error))\n"
        "    assert (copy.code, copy.message) == (error.code, error.message)\n"
        "    print(error.code, error, sep='|')\n"
    )
    end = programs.run("-c", code)
    assert end.returncode == 0, end.stderr
    said = end.stdout.splitlines()[-1]
    assert said.startswith("conflict|") and "start another process" in said and said.endswith("(conflict)")


def test_arguments_are_a_list_of_texts() -> None:
    for arguments in ["serve", [1], None]:
        with pytest.raises(TypeError):
            _native.main(arguments)  # type: ignore[arg-type]


@pytest.mark.contract("DY41")
def test_the_frontend_takes_the_flags_of_serve(programs: Programs) -> None:
    frontend = programs.run("-m", "warmroute.frontend", "--help")
    serve = programs.run("-m", "warmroute", "serve", "--help")
    assert (frontend.returncode, frontend.stderr) == (0, "")
    assert frontend.stdout == serve.stdout
    assert flags_of(frontend.stdout) >= {
        "--router-mode",
        "--kv-overlap-score-weight",
        "--router-temperature",
        "--no-kv-events",
        "--router-ttl",
        "--router-max-tree-size",
        "--router-prune-target-ratio",
        "--router-replica-sync",
        "--router-reset-states",
        "--router-snapshot-threshold",
        "--no-track-active-blocks",
        "--busy-threshold",
        "--port",
    }
    assert programs.run("-m", "warmroute.frontend", "--no-such-flag").returncode == 2


@pytest.mark.contract("DY41")
def test_the_command_line_for_one_router_runs(programs: Programs, get_json: Callable[[str], Any]) -> None:
    engine = programs.start_engine()
    router = start_frontend(programs, engine, "--router-mode", "kv", "--port", "0")
    models = get_json(f"http://{router['data']}/v1/models")
    assert models["object"] == "list"


@pytest.mark.contract("DY41")
@pytest.mark.parametrize("count", [2, 3])
def test_the_command_lines_for_several_replicas_run(
    programs: Programs,
    get_json: Callable[[str], Any],
    wait_for: Callable[[str, Callable[[], Any]], Any],
    nats_server: str,
    count: int,
) -> None:
    engine = programs.start_engine()
    flags = ["--router-mode", "kv", "--port", "0", "--router-replica-sync"]
    routers = [start_frontend(programs, engine, *flags, NATS_SERVER=nats_server) for _ in range(count)]

    def all_know_each_other() -> bool | None:
        for router in routers:
            replicas = get_json(f"http://{router['admin']}/admin/replicas")["replicas"]
            if [replica["state"] for replica in replicas] != ["live"] * count:
                return None
        return True

    wait_for("group of live replicas", all_know_each_other)


def start_frontend(programs: Programs, engine: str, *flags: str, **env: str) -> dict[str, Any]:
    """Starts a router with these flags; what several on one machine need besides comes from variables."""
    router = programs.start(
        "-m",
        "warmroute.frontend",
        *flags,
        "--print-ready",
        WARMROUTE_WORKERS=engine,
        WARMROUTE_ADMIN__LISTEN="127.0.0.1:0",
        **env,
    )
    return router.read_ready_line()
