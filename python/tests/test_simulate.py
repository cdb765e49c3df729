"""Simulations, as the command makes them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import simulate

if TYPE_CHECKING:
    from conftest import Programs

CHAT = "synthetic:chat?sessions=10&seed=7"
EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_report_is_that_of_the_command(programs: Programs) -> None:
    end = programs.run(
        *["-m", "warmroute", "simulate", "--json", "--trace", CHAT, "--policy", "round_robin,warm"],
        *["--workers", "1,2", "--profile", "toy", "--load", "0.3", "--seed", "5", "--set", "queue.enabled=false"],
        *["--slow", "w1=2", "--forget", "w1=30", "--event-delay-ms", "40", "--routers", "1,2", "--load-sync"],
    )
    assert end.returncode == 0, end.stderr
    report = simulate(
        CHAT,
        ["round_robin", "warm"],
        [1, 2],
        profile="toy",
        load=[0.3],
        seed=5,
        set={"queue.enabled": False},
        slow={"w1": 2},
        forget={"w1": 30},
        event_delay_ms=40,
        routers=[1, 2],
        load_sync=True,
    )
    assert report == json.loads(end.stdout)
    assert len(report["cells"]) == 8


def test_without_options_the_defaults_are_those_of_the_command(programs: Programs) -> None:
    end = programs.run(
        *["-m", "warmroute", "simulate", "--json", "--trace", CHAT, "--policy", "warm", "--workers", "2"]
    )
    assert end.returncode == 0, end.stderr
    assert simulate(CHAT, "warm", 2) == json.loads(end.stdout)


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--sessions", "2,4"], {"sessions": [2, 4]}),
        (["--capacity-ratio", "0.5", "--tail-s", "30"], {"capacity_ratio": 0.5, "tail_s": 30}),
        (["--find-sessions", "ttft_ms=2000"], {"find_sessions": {"ttft_ms": 2000}}),
    ],
)
def test_a_closed_loop_has_the_report_of_the_command(
    flags: list[str], options: dict[str, Any], programs: Programs
) -> None:
    agents = "synthetic:agents?runs=20"
    end = programs.run(
        *["-m", "warmroute", "simulate", "--json", "--trace", agents, "--policy", "warm,lmetric"],
        *["--workers", "1", "--profile", "toy", "--warm-up-s", "60", "--measured-s", "300", *flags],
    )
    assert end.returncode == 0, end.stderr
    report = simulate(agents, ["warm", "lmetric"], 1, profile="toy", warm_up_s=60, measured_s=300, **options)
    assert report == json.loads(end.stdout)
    assert all(cell["sessions"]["turns_per_minute"] > 0 for cell in report["cells"])


def test_a_file_is_read_as_a_path_or_as_text(tmp_path: Path, programs: Programs) -> None:
    file = tmp_path / "trace.jsonl"
    end = programs.run("-m", "warmroute", "simulate", "--trace", CHAT, "--write-trace", str(file))
    assert end.returncode == 0, end.stderr
    made_up = simulate(CHAT, "warm", 1, profile="toy")
    for trace in (file, str(file)):
        report = simulate(trace, "warm", 1, profile="toy")
        assert report["trace"] == made_up["trace"] | {"file": str(file)}
        assert report["cells"] == made_up["cells"]


def test_a_faster_trace_has_later_first_tokens() -> None:
    [fast] = simulate(CHAT, "warm", 1, profile="toy", speedup=20)["cells"]
    assert (fast["load"], fast["speedup"]) == (None, 20.0)
    [usual] = simulate(CHAT, "warm", 1, profile="toy", speedup=1)["cells"]
    assert usual["ttft_ms"]["mean"] < fast["ttft_ms"]["mean"]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"spedup": 2}, TypeError, 'unexpected keyword argument "spedup": expected one of load, speedup, profile'),
        ({"fit": "x"}, TypeError, 'unexpected keyword argument "fit"'),
        ({"load": 0}, ValueError, "load is 0: expected a number above 0"),
        ({"load": float("nan")}, ValueError, "load is NaN"),
        ({"load": []}, ValueError, "load is empty"),
        ({"load": [0.5] * 1024, "routers": [1] * 17}, ValueError, "make 17408 experiments"),
        ({"load": 1, "speedup": 1}, ValueError, "load and speedup are both given"),
        ({"speedup": "2"}, TypeError, "speedup is '2' of type str: expected a number above 0"),
        ({"profile": "9b"}, ValueError, 'profile is "9b": expected one of toy'),
        ({"kv_tokens": 0}, ValueError, "kv_tokens is 0: expected a whole number from 1"),
        ({"kv_tokens": 1}, ValueError, "fits an engine whose cache holds 1 tokens"),
        ({"event_delay_ms": 1.5}, TypeError, r"event_delay_ms is 1\.5 of type float"),
        ({"event_loss": 1.5}, ValueError, r"event_loss is 1\.5: expected a number from 0 to 1"),
        ({"routers": 65}, ValueError, "routers is 65: expected a whole number from 1 to 64"),
        ({"load_sync": 1}, TypeError, "load_sync is 1 of type int: expected True or False"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"seed": True}, TypeError, "seed is True of type bool"),
        ({"set": {"queue.enabld": True}}, ValueError, "set: queue.enabld: .*did you mean `queue.enabled`"),
        ({"set": {"queue.wait": "soon"}}, ValueError, "queue.wait"),
        ({"set": [1]}, TypeError, "set is .* of type list: expected a dict"),
        ({"slow": {"w3": 2}}, ValueError, 'slow: there is no engine "w3": expected one of w1 to w2'),
        ({"slow": {"w1": 0}}, ValueError, r"slow is 0: expected an engine and a number from 0\.001"),
        ({"forget": {"w1": -1}}, ValueError, "forget is -1"),
        ({"trace_block_tokens": 0}, ValueError, "trace_block_tokens is 0"),
        ({"model": 7}, TypeError, "model is 7 of type int: expected a str"),
        ({"set": {"routing.models.m.temperature": 1}}, ValueError, "set: routing.models.m: no request of the trace"),
        (
            {"set": {"routing.models.m.temperature": 1}, "model": "n"},
            ValueError,
            "set: routing.models.m: no request of the trace is of such a model: .* or model for all requests",
        ),
        ({"sessions": 0}, ValueError, "sessions is 0: expected a whole number from 1 to 100000"),
        ({"sessions": 2, "load": 0.5}, ValueError, "a closed loop has no load"),
        ({"sessions": 2, "capacity_ratio": 1}, ValueError, "several are given: expected one of them"),
        ({"capacity_ratio": 0}, ValueError, "capacity_ratio is 0: expected a number above 0"),
        ({"find_sessions": 2000}, TypeError, "find_sessions is 2000 of type int: expected a dict"),
        ({"find_sessions": {"ttft": 2000}}, ValueError, "find_sessions is a dict with other keys"),
        ({"find_sessions": {"ttft_ms": 0}}, ValueError, "find_sessions is 0: expected a whole number from 1"),
        ({"measured_s": 60}, ValueError, "are for closed loops"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        simulate(CHAT, "warm", 2, **options)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: simulate(CHAT, "warmest", 1), ValueError, "policies: .*warmest"),
        (lambda: simulate(CHAT, [], 1), ValueError, "policies is empty"),
        (lambda: simulate(CHAT, [3], 1), TypeError, "policies is 3 of type int: expected a str"),
        (lambda: simulate(CHAT, "warm", 0), ValueError, "workers is 0: expected a whole number from 1 to 1024"),
        (lambda: simulate("synthetic:chess", "warm", 1), ValueError, "trace synthetic:chess: "),
        (lambda: simulate(5, "warm", 1), TypeError, "expected str, bytes or os.PathLike object, not int"),
    ],
)
def test_a_bad_argument_is_named(call: Callable[[], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_a_file_that_is_no_trace_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing.jsonl cannot be read"):
        simulate(tmp_path / "nothing.jsonl", "warm", 1)
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0}\n')
    with pytest.raises(ValueError, match="trace.jsonl: line 1"):
        simulate(file, "warm", 1)


def test_other_threads_run_meanwhile(programs: Programs) -> None:
    # Hours of simulation: the main thread comes to its end only if it is not held up.
    code = """
import os, threading, time
from warmroute import simulate
arguments = ("synthetic:chat?sessions=2000", "warm", list(range(1, 1025)))
threading.Thread(target=simulate, args=arguments, daemon=True).start()
for _ in range(200):
    time.sleep(0.005)
print("ran", flush=True)
os._exit(0)
"""
    assert programs.run("-c", code).stdout == "ran\n"


def test_ctrl_c_ends_it_at_once(programs: Programs) -> None:
    # Hours of simulation, unless the signal ends the call.
    code = """
from warmroute import simulate
try:
    print("begin", flush=True)
    simulate("synthetic:chat?sessions=2000", "warm", list(range(1, 1025)), seed=1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    program = programs.start("-c", code)
    stdout = program.process.stdout
    assert stdout is not None
    assert stdout.readline() == b"begin\n"
    assert program.end(signal.SIGINT) == 0
    assert stdout.read() == b"interrupted\n"


def test_the_example_draws_a_chart(tmp_path: Path, programs: Programs) -> None:
    file = tmp_path / "chart.png"
    code = f"""
import pathlib, runpy
example = runpy.run_path({str(EXAMPLES / "simulate_plot.py")!r})
example["draw"]({CHAT!r}, ["round_robin", "warm"], [1, 2], pathlib.Path({str(file)!r}))
"""
    end = programs.run("-c", code, MPLBACKEND="Agg", MPLCONFIGDIR=str(tmp_path))
    assert end.returncode == 0, end.stderr
    assert file.read_bytes().startswith(b"\x89PNG")
