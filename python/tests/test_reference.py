"""The reference in docs/python-api.md, and the docstrings from which it is written."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import warmroute

if TYPE_CHECKING:
    from conftest import Programs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/python-api.md"
# The examples of the docstrings, which address a worker of this machine.
EXAMPLES = re.findall(r"^```pycon\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
WORKER = "http://127.0.0.1:8000"
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


def test_there_is_an_example_for_each_class_of_a_program_and_for_simulate() -> None:
    examples = "".join(EXAMPLES)
    assert [name for name in ("EventPublisher", "KvIndex", "Router", "simulate") if f"{name}(" not in examples] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_gives_what_it_shows(example: str, programs: Programs) -> None:
    if WORKER in example:
        example = example.replace(WORKER, programs.start_engine())
    names = {name: getattr(warmroute, name) for name in PUBLIC}
    test = doctest.DocTestParser().get_doctest(example, names, "example", str(PAGE), 0)
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
    assert (result.failed, result.attempted > 0) == (0, True), "".join(report)
    if main := test.globs.get("main"):
        # It only defines a coroutine function.
        assert asyncio.run(main())
