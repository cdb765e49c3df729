"""The blocks of docs/python.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Programs

PAGE = Path(__file__).parents[2] / "docs/python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_has_a_block_for_each_name() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("block", BLOCKS, ids=["KvIndex", "EventPublisher", "simulate"])
def test_a_block_runs(block: str, programs: Programs) -> None:
    end = programs.run("-c", block)
    assert end.returncode == 0, end.stderr
