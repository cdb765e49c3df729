"""The reference in docs/python-api.md, and the docstrings from which it is written."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import warmroute

if TYPE_CHECKING:
    from conftest import Programs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/python-api.md"
PUBLIC = [name for name in warmroute.__all__ if not name.startswith("_")]


def public_methods() -> list[str]:
    classes = [name for name in PUBLIC if inspect.isclass(getattr(warmroute, name))]
    return [
        f"{name}.{method}"
        for name in classes
        for method, value in vars(getattr(warmroute, name)).items()
        if not method.startswith("_") and callable(value)
    ]


def find(name: str) -> object:
    found: object = warmroute
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_the_page_is_that_of_the_docstrings(programs: Programs) -> None:
    end = programs.run(str(ROOT / "python/make-reference"))
    assert end.returncode == 0, end.stderr
    # The switch of the program's own pages.
    if "WARMROUTE_TEST_WRITE" in os.environ:
        PAGE.write_text(end.stdout)
    assert PAGE.read_text() == end.stdout, "WARMROUTE_TEST_WRITE=1 python/run-tests -k reference writes the page"
    missing = [name for name in [*PUBLIC, *public_methods()] if name.removesuffix("_blocking") not in end.stdout]
    assert missing == []


@pytest.mark.parametrize("name", [*PUBLIC, *public_methods()])
def test_every_name_has_a_docstring(name: str) -> None:
    assert find(name).__doc__


@pytest.mark.parametrize("name", [name for name in public_methods() if not name.endswith("_blocking")])
def test_a_docstring_describes_every_argument(name: str) -> None:
    found = find(name)
    assert callable(found)
    arguments = [argument for argument in inspect.signature(found).parameters if argument != "self"]
    documented = inspect.getdoc(found) or ""
    assert [argument for argument in arguments if f"    {argument}: " not in documented] == []
