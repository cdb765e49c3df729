"""The blocks of docs/python.md run as they stand, where a worker's address is that of a simulated engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Programs

PAGE = Path(__file__).parents[2] / "docs/python.md"
# Heading of a section, and one of its blocks.
BLOCKS = [
    (section.split("\n", 1)[0], block)
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    for block in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
]
WORKER = re.compile(r"http://127\.0\.0\.1:81\d\d")


def test_each_name_has_a_section_with_a_block() -> None:
    assert {heading for heading, _ in BLOCKS} >= {"Router", "Dynamo's API", "KvIndex", "EventPublisher", "simulate"}


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[heading for heading, _ in BLOCKS])
def test_a_block_runs(block: str, programs: Programs) -> None:
    for worker in sorted(set(WORKER.findall(block))):
        block = block.replace(worker, programs.start_engine())
    end = programs.run("-c", block)
    assert end.returncode == 0, end.stderr
