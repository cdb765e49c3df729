"""The index of blocks by worker."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from warmroute import KvIndex, WarmrouteError

PROMPT = list(range(100, 108))


def two_workers() -> KvIndex:
    index = KvIndex(block_size=2)
    index.store("w1", 0, PROMPT)
    index.store("w1", 1, PROMPT[:4])
    index.store("w2", 0, PROMPT[:6], tier="host")
    return index


@pytest.mark.contract("DY17")
def test_each_worker_and_rank_matches_as_many_leading_blocks_as_it_holds() -> None:
    index = two_workers()
    assert index.block_size == 2
    assert index.find_matches(PROMPT) == {("w1", 0): 4, ("w1", 1): 2, ("w2", 0): 3}
    assert index.find_matches([*PROMPT[:4], 1, 2, 3, 4]) == {("w1", 0): 2, ("w1", 1): 2, ("w2", 0): 2}
    assert index.find_matches([1, *PROMPT]) == {}
    assert index.find_matches([]) == {}


def test_a_partial_block_at_the_end_does_not_count() -> None:
    index = KvIndex(block_size=4)
    assert index.store("w1", 0, PROMPT[:7]) == 1
    assert index.find_matches(PROMPT[:3]) == {}
    assert index.find_matches(PROMPT) == {("w1", 0): 1}


def test_storing_twice_needs_one_removal() -> None:
    index = KvIndex(block_size=2)
    index.store("w1", 0, PROMPT)
    index.store("w1", 0, PROMPT)
    assert index.remove("w1", 0, PROMPT) == 4
    assert index.find_matches(PROMPT) == {}
    assert index.remove("w1", 0, PROMPT) == 0


def test_a_removal_can_keep_the_leading_blocks() -> None:
    index = two_workers()
    assert index.remove("w1", 0, PROMPT, keep_blocks=3) == 1
    assert index.find_matches(PROMPT)[("w1", 0)] == 3
    assert index.remove("w1", 0, PROMPT, keep_blocks=9) == 0
    assert index.remove("nobody", 0, PROMPT) == 0


def test_behind_a_removed_block_nothing_matches_until_it_is_stored_again() -> None:
    index = two_workers()
    index.remove("w1", 0, PROMPT[:2])
    assert ("w1", 0) not in index.find_matches(PROMPT)
    index.store("w1", 0, PROMPT[:2])
    assert index.find_matches(PROMPT)[("w1", 0)] == 4


def test_a_removal_is_of_one_tier() -> None:
    index = KvIndex(block_size=2)
    index.store("w1", 0, PROMPT)
    index.store("w1", 0, PROMPT, tier="disk")
    index.remove("w1", 0, PROMPT)
    assert index.find_matches(PROMPT) == {("w1", 0): 4}
    index.remove("w1", 0, PROMPT, tier="disk")
    assert index.find_matches(PROMPT) == {}


def test_a_clear_is_of_all_of_a_worker_or_of_a_rank() -> None:
    index = two_workers()
    index.clear("w1", 0)
    assert index.find_matches(PROMPT) == {("w1", 1): 2, ("w2", 0): 3}
    index.clear("w1")
    assert index.find_matches(PROMPT) == {("w2", 0): 3}
    index.store("w1", 0, PROMPT[:2])
    assert index.find_matches(PROMPT) == {("w1", 0): 1, ("w2", 0): 3}
    index.clear("nobody")
    index.clear()
    assert index.find_matches(PROMPT) == {}
    with pytest.raises(ValueError, match="dp_rank is given without worker"):
        index.clear(dp_rank=0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda index: index.store("w1", 0, PROMPT, tier="vram"), 'tier is "vram": expected device, host'),
        (lambda index: index.store("w1", -1, PROMPT), "dp_rank is -1: expected 0 to 65535"),
        (lambda index: index.store("", 0, PROMPT), "worker has 0 bytes: expected a name of 1 to 256"),
        (lambda index: index.store("w" * 257, 0, PROMPT), "worker has 257 bytes"),
        (lambda index: index.remove("w1", 0, PROMPT, keep_blocks=-1), "keep_blocks is -1: expected 0 or more"),
        (lambda index: KvIndex(0), "block_size is 0: expected 1 to 65536"),
        (lambda index: KvIndex(-1), "block_size is -1"),
        (lambda index: KvIndex(65_537), "block_size is 65537"),
        (lambda index: KvIndex(16, budget_bytes=1000), "budget_bytes is 1000: expected 1048576"),
    ],
)
def test_a_bad_argument_is_named(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call(two_workers())


def test_a_small_budget_drops_ends_of_prompts_and_not_all_of_them() -> None:
    index = KvIndex(block_size=1, budget_bytes=1 << 20)
    prompts = [[number, *range(1000)] for number in range(1000)]
    for prompt in prompts:
        index.store("w1", 0, prompt)
    held = sum(index.find_matches(prompt).get(("w1", 0), 0) for prompt in prompts)
    assert 0 < held < 1000 * 1001 // 2


def test_a_snapshot_gives_the_same_matches_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "index"
    two_workers().snapshot(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    index = KvIndex(block_size=2)
    assert index.restore(str(file)) == 4
    assert index.find_matches(PROMPT) == {("w1", 0): 4, ("w1", 1): 2, ("w2", 0): 3}
    index.store("w3", 0, PROMPT)
    index.remove("w2", 0, PROMPT, tier="host")
    assert index.find_matches(PROMPT) == {("w1", 0): 4, ("w1", 1): 2, ("w3", 0): 4}


def test_a_snapshot_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "index"
    two_workers().snapshot(file)
    filled = two_workers()
    for index in (filled, KvIndex(block_size=4)):
        with pytest.raises(WarmrouteError) as refused:
            index.restore(file)
        assert refused.value.code == "conflict"
    assert filled.find_matches(PROMPT) == {("w1", 0): 4, ("w1", 1): 2, ("w2", 0): 3}
    empty = KvIndex(block_size=2)
    empty.store("w1", 0, PROMPT)
    empty.clear()
    assert empty.restore(file) == 4


def test_a_damaged_snapshot_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    file = tmp_path / "index"
    two_workers().snapshot(file)
    whole = file.read_bytes()
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        index = KvIndex(block_size=2)
        with pytest.raises(WarmrouteError):
            index.restore(file)
        assert index.find_matches(PROMPT) == {}, at
    for length in (0, 10, 30, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(WarmrouteError) as refused:
            KvIndex(block_size=2).restore(file)
        assert refused.value.code == "invalid_request"


def test_a_file_that_cannot_be_read_or_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing: "):
        KvIndex(block_size=2).restore(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no folder/index: "):
        two_workers().snapshot(tmp_path / "no folder" / "index")


@pytest.mark.contract("DY33")
def test_an_empty_index_that_loads_dumped_events_gives_the_same_matches() -> None:
    text = two_workers().dump_events()
    rows = json.loads(text)
    assert len(rows) == 4 + 2 + 3
    assert {row["worker"] for row in rows} == {"w1", "w2"}
    first = next(row for row in rows if row["depth"] == 0)
    assert first["parent"] is None and len(first["hash"]) == 16 and first["block_size"] == 2
    lines = "\n".join(json.dumps(row) for row in reversed(rows))
    for form in (text, lines):
        index = KvIndex(block_size=2)
        assert index.load_events(form) == 9
        assert index.find_matches(PROMPT) == {("w1", 0): 4, ("w1", 1): 2, ("w2", 0): 3}


def test_events_of_another_form_are_refused() -> None:
    rows = json.loads(two_workers().dump_events())
    for text, said in [
        ("[1]", "no array of rows"),
        ("{", "no array of rows"),
        (json.dumps([rows[0] | {"block_size": 4}]), "blocks of 4 tokens: expected 2"),
        (json.dumps([rows[0] | {"hash": "xyz"}]), "16 hex digits"),
        (json.dumps([rows[0] | {"tier": "moon"}]), "unknown tier"),
        (json.dumps([rows[0], rows[1] | {"model": "other"}]), "expected one, name it with model="),
    ]:
        index = KvIndex(block_size=2)
        with pytest.raises(ValueError, match=said):
            index.load_events(text)
        assert index.find_matches(PROMPT) == {}


def test_of_several_models_one_can_be_chosen_and_adapters_are_left_out() -> None:
    rows = json.loads(two_workers().dump_events())
    rows[-1] = rows[-1] | {"model": "other"}
    index = KvIndex(block_size=2)
    assert index.load_events(json.dumps(rows), model="default") == 8
    adapters = [row | {"lora": "a"} for row in rows]
    assert KvIndex(block_size=2).load_events(json.dumps(adapters)) == 0


def test_threads_may_use_one_index() -> None:
    index = KvIndex(block_size=1)
    long = list(range(6000))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            name = f"w{number}"
            for turn in range(20):
                assert index.store(name, 0, long) == len(long)
                assert index.find_matches(long)[(name, 0)] == len(long)
                if turn % 2:
                    index.clear(name)
                else:
                    index.remove(name, 0, long, keep_blocks=3)
                    assert index.find_matches(long)[(name, 0)] == 3
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert index.find_matches(long) == {}
