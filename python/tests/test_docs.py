"""The blocks of docs/python.md run as they stand, where a worker's address is that of a simulated engine."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Programs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "python.md"
WORKER = re.compile(r"http://127\.0\.0\.1:81\d\d")


def blocks_of(page: Path, language: str) -> list[tuple[str, str]]:
    """Returns the blocks of a page in a language, each with the heading of its section."""
    block = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
    return [(section.split("\n", 1)[0], text) for section in sections for text in block.findall(section)]


BLOCKS = blocks_of(PAGE, "python")
COMMANDS = [line for heading, block in blocks_of(PAGE, "sh") if heading == "Command" for line in block.splitlines()]
CONFIGURATIONS = [*blocks_of(PAGE, "yaml"), *blocks_of(DOCS / "c-publisher.md", "yaml")]


def test_each_name_has_a_section_with_a_block() -> None:
    assert {heading for heading, _ in BLOCKS} >= {"Router", "Dynamo's API", "KvIndex", "EventPublisher", "simulate"}


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[heading for heading, _ in BLOCKS])
def test_a_block_runs(block: str, programs: Programs) -> None:
    for worker in sorted(set(WORKER.findall(block))):
        block = block.replace(worker, programs.start_engine())
    end = programs.run("-c", block)
    assert end.returncode == 0, end.stderr


def test_there_are_three_commands() -> None:
    assert len(COMMANDS) == 3


@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_serves(command: str, programs: Programs, get_json: Callable[[str], Any]) -> None:
    command = WORKER.sub(programs.start_engine(), command)
    # With ports that are free.
    program, *arguments = shlex.split(command.replace(" --port 8000", " --port 0"), comments=True)
    if "--port" not in arguments:
        arguments += ["--port", "0"]
    started = sys.executable if program == "python" else str(Path(sys.executable).with_name(program))
    router = programs.start_program([started, *arguments, "--print-ready"], WARMROUTE_ADMIN__LISTEN="127.0.0.1:0")
    models = get_json(f"http://{router.read_ready_line()['data']}/v1/models")
    assert models["object"] == "list"


@pytest.mark.parametrize("block", [block for _, block in CONFIGURATIONS], ids=range(len(CONFIGURATIONS)))
def test_a_configuration_is_accepted(block: str, programs: Programs) -> None:
    file = programs.folder / "c.yaml"
    file.write_text(block)
    end = programs.run("-m", "warmroute", "config", "check", str(file))
    assert end.returncode == 0, end.stdout + end.stderr
