"""Token ids as arguments: the forms that are accepted, and what is said of the others."""

from __future__ import annotations

import array
import ctypes
import sys
from typing import Any

import numpy
import pytest

from warmroute import KvIndex

TOKENS = [0, 1, 151_643, 2**31, 2**32 - 1, 7]
SMALL = [1, 2, 3, 4, 5, 6]
OWN_ORDER = "<" if sys.byteorder == "little" else ">"


def matches(stored: Any, found: Any) -> dict[tuple[str, int], int]:
    index = KvIndex(block_size=1)
    index.store("w1", 0, stored)
    return index.find_matches(found)


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(tuple(TOKENS), id="tuple"),
        pytest.param(array.array("I", TOKENS), id="array"),
        pytest.param(array.array("I", TOKENS).tobytes(), id="bytes"),
        pytest.param(memoryview(array.array("I", TOKENS)), id="memoryview"),
        pytest.param(memoryview(b"\0" + array.array("I", TOKENS).tobytes())[1:].cast("I"), id="unaligned-memoryview"),
        pytest.param(memoryview(array.array("I", [9, *TOKENS, 9]))[1:-1], id="slice-of-a-memoryview"),
        pytest.param(memoryview(array.array("I", TOKENS).tobytes()).cast("@I"), id="memoryview-that-names-its-order"),
        pytest.param((ctypes.c_uint32 * len(TOKENS))(*TOKENS), id="ctypes"),
        pytest.param(numpy.array(TOKENS, dtype=numpy.uint32), id="numpy"),
        pytest.param(numpy.array([9, *TOKENS, 9], dtype=numpy.uint32)[1:-1], id="slice-of-a-numpy-array"),
        pytest.param(numpy.array(TOKENS, dtype=f"{OWN_ORDER}u4"), id="numpy-that-names-its-order"),
        pytest.param(
            numpy.frombuffer(b"\0" + array.array("I", TOKENS).tobytes(), dtype=numpy.uint32, offset=1),
            id="unaligned-numpy",
        ),
        pytest.param(list(numpy.array(TOKENS, dtype=numpy.uint64)), id="list-of-numpy-scalars"),
    ],
)
def test_every_form_has_the_tokens_of_a_list(tokens: Any) -> None:
    assert matches(TOKENS, tokens) == {("w1", 0): len(TOKENS)}
    assert matches(tokens, TOKENS) == {("w1", 0): len(TOKENS)}


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(range(1, 7), id="range"),
        pytest.param(array.array("i", SMALL), id="signed-array"),
        pytest.param(numpy.array(SMALL, dtype=numpy.int32), id="signed-numpy"),
        pytest.param((ctypes.c_int32 * len(SMALL))(*SMALL), id="signed-ctypes"),
        pytest.param(memoryview(array.array("i", SMALL).tobytes()).cast("i"), id="signed-memoryview"),
    ],
)
def test_ranges_and_signed_buffers_are_accepted(tokens: Any) -> None:
    assert matches(SMALL, tokens) == {("w1", 0): len(SMALL)}


def test_a_read_only_buffer_and_an_empty_one_are_accepted() -> None:
    tokens = numpy.array(SMALL, dtype=numpy.uint32)
    tokens.flags.writeable = False
    assert matches(tokens, SMALL) == {("w1", 0): 6}
    for empty in ([], b"", array.array("I"), numpy.array([], dtype=numpy.uint32)):
        assert matches(empty, SMALL) == {}


def test_a_buffer_may_be_changed_after_the_call() -> None:
    index = KvIndex(block_size=1)
    tokens = array.array("I", SMALL)
    index.store("w1", 0, tokens)
    tokens[0] = 99
    tokens.append(7)
    assert index.find_matches(SMALL) == {("w1", 0): 6}


@pytest.mark.parametrize(
    ("tokens", "error", "said"),
    [
        ([1, True], TypeError, r"tokens\[1\] is True of type bool: expected an integer"),
        ([1.0], TypeError, r"tokens\[0\] is 1\.0 of type float"),
        ([1, "2"], TypeError, r"tokens\[1\] is '2' of type str"),
        ([1, None], TypeError, r"tokens\[1\] is None of type NoneType"),
        ([1, 2, -1], ValueError, r"tokens\[2\] is -1: expected a token id from 0 to 4294967295"),
        ([2**32], ValueError, r"tokens\[0\] is 4294967296"),
        ([10**5000], ValueError, r"tokens\[0\] is a value without a text"),
        ("123", TypeError, "tokens is of type str: expected a sequence of integers"),
        (12, TypeError, "tokens is of type int"),
        (None, TypeError, "tokens is of type NoneType"),
        ({1, 2}, TypeError, "tokens is of type set"),
        (b"12345", ValueError, "tokens has 5 bytes: expected 4 for each token"),
        (bytearray(8), TypeError, "tokens is a buffer of format \"B\" with items of 1 bytes"),
        (array.array("d", [1.0]), TypeError, 'tokens is a buffer of format "d"'),
        (array.array("H", [1]), TypeError, "items of 2 bytes: expected native 32-bit integers"),
        (array.array("i", [1, -5]), ValueError, r"tokens\[1\] is -5"),
        (array.array("i", [1, 2, -(2**31), -1]), ValueError, r"tokens\[2\] is -2147483648"),
        (numpy.array([3, -1], dtype=numpy.int32), ValueError, r"tokens\[1\] is -1"),
        ((ctypes.c_int32 * 2)(7, -2), ValueError, r"tokens\[1\] is -2"),
        (array.array("f", [1.0]), TypeError, 'tokens is a buffer of format "f" with items of 4 bytes'),
        (numpy.array([1], dtype=numpy.int64), TypeError, "items of 8 bytes.*numpy.uint32"),
        (numpy.zeros((2, 2), dtype=numpy.uint32), ValueError, "has 2 dimensions.*one contiguous"),
        (numpy.arange(8, dtype=numpy.uint32)[::2], ValueError, "gaps between its items.*ascontiguousarray"),
        (numpy.arange(8, dtype=numpy.uint32)[::-1], ValueError, "gaps between its items.*ascontiguousarray"),
        (memoryview(array.array("I", range(8)))[::2], ValueError, "gaps between its items"),
        (memoryview(array.array("I", range(8)))[::-1], ValueError, "gaps between its items"),
    ],
)
def test_what_is_no_token_id_is_named_with_its_place(tokens: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        KvIndex(block_size=1).find_matches(tokens)


def test_a_buffer_of_the_other_byte_order_is_refused() -> None:
    other = ">" if sys.byteorder == "little" else "<"
    swapped = ctypes.c_uint32.__ctype_be__ if sys.byteorder == "little" else ctypes.c_uint32.__ctype_le__
    for tokens in (numpy.array(SMALL, dtype=f"{other}u4"), (swapped * len(SMALL))(*SMALL)):
        with pytest.raises(TypeError, match="expected native 32-bit integers"):
            KvIndex(block_size=1).find_matches(tokens)


def test_more_tokens_than_any_prompt_has_are_refused() -> None:
    many = 2**22 + 1
    for tokens in (bytes(4 * many), numpy.zeros(many, dtype=numpy.uint32), range(many), [1] * many, (1,) * many):
        with pytest.raises(ValueError, match="expected at most 4194304"):
            KvIndex(block_size=1).find_matches(tokens)


def test_a_list_that_an_item_changes_is_read_as_it_was() -> None:
    tokens: list[Any] = []

    class Clearing:
        def __index__(self) -> int:
            tokens.clear()
            return 3

    tokens += [1, 2, Clearing(), 4, 5, 6]
    assert matches(SMALL, tokens) == {("w1", 0): 6}
    assert tokens == []


def test_a_list_with_an_iterator_of_its_own_has_the_tokens_of_that() -> None:
    class Doubled(list[int]):
        def __iter__(self) -> Any:
            return (2 * token for token in list.__iter__(self))

    assert matches([2, 4, 6], Doubled([1, 2, 3])) == {("w1", 0): 3}


def test_an_error_of_an_item_itself_is_not_hidden() -> None:
    class Broken:
        def __index__(self) -> int:
            raise RuntimeError("no number today")

    with pytest.raises(RuntimeError, match="no number today"):
        KvIndex(block_size=1).find_matches([1, Broken()])
