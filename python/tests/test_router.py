"""Decisions and generations of a router in this process, in front of simulated engines."""

from __future__ import annotations

import array
import asyncio
import json
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import KvIndex, Router, WarmrouteError

if TYPE_CHECKING:
    from conftest import Programs

# Four whole blocks of 16 tokens, and one token more: an engine computes the last one in any case.
PROMPT = list(range(1, 66))
OTHER = list(range(70, 103))


@pytest.fixture
def router(programs: Programs) -> Iterator[Router]:
    """A router in front of two engines, ``w1`` and ``w2``."""
    workers = [f"{name}={programs.start_engine('--block-size', '16')}" for name in ("w1", "w2")]
    with Router(workers=workers) as router:
        yield router


def potential_loads(router: Router) -> dict[str, tuple[int, int]]:
    rows = router.get_potential_loads_blocking(OTHER)
    return {row["worker_id"]: (row["potential_prefill_tokens"], row["potential_decode_blocks"]) for row in rows}


def generate(router: Router, **options: Any) -> list[dict[str, Any]]:
    conditions = {"max_tokens": 3, "ignore_eos": True}
    return list(router.generate_blocking(PROMPT, stop_conditions=conditions, **options))


@pytest.mark.contract("DY28", "DY30")
def test_a_query_without_a_request_id_changes_nothing(router: Router) -> None:
    before = potential_loads(router)
    assert set(before) == {"w1", "w2"}
    worker, dp_rank, overlap_blocks = router.best_worker_blocking(PROMPT)
    assert worker in before
    assert (dp_rank, overlap_blocks) == (0, 0)
    assert potential_loads(router) == before


@pytest.mark.contract("DY28", "DY31", "DY32")
def test_a_tracked_request_is_load_of_its_worker_until_it_is_freed(router: Router) -> None:
    before = potential_loads(router)
    worker, _, _ = router.best_worker_blocking(PROMPT, request_id="r1")
    other = next(name for name in before if name != worker)
    reserved = potential_loads(router)
    assert reserved[other] == before[other]
    assert reserved[worker][0] == before[worker][0] + len(PROMPT)
    assert reserved[worker][1] > before[worker][1]
    router.mark_prefill_complete_blocking("r1")
    computed = potential_loads(router)
    assert computed[worker] == (before[worker][0], reserved[worker][1])
    router.free_blocking("r1")
    assert potential_loads(router) == before
    for call in (router.free_blocking, router.mark_prefill_complete_blocking):
        with pytest.raises(WarmrouteError) as raised:
            call("r1")
        assert raised.value.code == "reservation_not_found"


@pytest.mark.contract("DY28")
def test_an_id_is_given_to_one_request_at_a_time(router: Router) -> None:
    router.best_worker_blocking(PROMPT, request_id="r1")
    with pytest.raises(WarmrouteError) as raised:
        router.best_worker_blocking(PROMPT, request_id="r1")
    assert raised.value.code == "reservation_exists"


@pytest.mark.contract("DY28", "DY32")
def test_many_threads_decide_and_free_and_no_load_is_left(router: Router) -> None:
    before = potential_loads(router)

    def cycles(thread: int) -> None:
        for number in range(50):
            request_id = f"{thread}-{number}"
            router.best_worker_blocking(PROMPT, request_id=request_id)
            router.mark_prefill_complete_blocking(request_id)
            router.free_blocking(request_id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(cycles, range(8)))
    assert potential_loads(router) == before


@pytest.mark.contract("DY17", "DY27")
def test_the_worker_that_computed_a_prompt_is_the_best_for_it(
    router: Router, wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    assert router.find_matches_for_request_blocking(PROMPT) == {}
    parts = generate(router, worker_id="w2")
    assert sum(len(part["token_ids"]) for part in parts) == 3
    assert [part["finish_reason"] for part in parts if part.get("finish_reason")] == ["length"]
    assert parts[-1]["usage"]["completion_tokens"] == 3
    matches = wait_for("match", lambda: router.find_matches_for_request_blocking(PROMPT) or None)
    assert matches == {("w2", 0): 4}
    assert router.best_worker_blocking(PROMPT) == ("w2", 0, 4)
    # The first three blocks of it.
    assert router.find_matches_for_request_blocking(PROMPT[:50] + [999]) == {("w2", 0): 3}


@pytest.mark.contract("DY29")
def test_the_deprecated_form_leaves_out_the_rank_and_warns(
    router: Router, wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    generate(router, worker_id="w2")
    wait_for("match", lambda: router.find_matches_for_request_blocking(PROMPT) or None)
    with pytest.warns(DeprecationWarning, match="call best_worker_blocking"):
        assert router.best_worker_id_blocking(PROMPT) == ("w2", 4)

    async def run() -> tuple[str, int]:
        with pytest.warns(DeprecationWarning, match="call best_worker$"):
            call = router.best_worker_id(PROMPT, request_id="r1")
        return await call

    assert asyncio.run(run()) == ("w2", 4)
    router.free_blocking("r1")


@pytest.mark.contract("DY27", "DY40")
def test_options_of_a_generation_reach_the_engine(router: Router) -> None:
    conditions, options = {"max_tokens": 5, "ignore_eos": True}, {"temperature": 0, "n": 2}
    parts = list(router.generate_blocking(PROMPT, "sim", conditions, options))
    tokens: dict[int, list[int]] = {0: [], 1: []}
    for part in parts[:-1]:
        tokens[part["index"]].extend(part["token_ids"])
    assert [len(ids) for ids in tokens.values()] == [5, 5]


@pytest.mark.contract("DY33")
def test_a_dump_loaded_into_an_empty_index_gives_the_same_matches(
    router: Router, wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    assert json.loads(router.dump_events_blocking()) == []
    generate(router, worker_id="w1")

    def dump() -> str | None:
        text = router.dump_events_blocking()
        return text if len(json.loads(text)) == 4 else None

    index = KvIndex(block_size=16)
    index.load_events(wait_for("dump of four blocks", dump))
    assert index.find_matches(PROMPT) == router.find_matches_for_request_blocking(PROMPT) == {("w1", 0): 4}


@pytest.mark.contract("DY33")
def test_a_dump_loaded_into_a_router_without_events_gives_the_same_matches(
    programs: Programs, wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    workers = [f"w1={programs.start_engine('--block-size', '16')}"]
    with Router(workers=workers) as router, Router({"kv_events": {"enabled": False}}, workers) as other:
        generate(router)
        wait_for("match", lambda: router.find_matches_for_request_blocking(PROMPT) == {("w1", 0): 4} or None)
        text = router.dump_events_blocking()
        assert other.find_matches_for_request_blocking(PROMPT) == {}
        assert other.load_events_blocking(text) == 4
        assert asyncio.run(other.load_events(text)) == 4
        assert other.find_matches_for_request_blocking(PROMPT) == {("w1", 0): 4}
        assert other.best_worker_blocking(PROMPT) == ("w1", 0, 4)
        with pytest.raises(WarmrouteError) as raised:
            other.load_events_blocking("[1]")
        assert raised.value.code == "invalid_request"


@pytest.mark.contract("DY28")
def test_a_decision_is_a_whole_receipt(router: Router) -> None:
    receipt = router.decide_blocking(PROMPT, policy="least_loaded")
    assert receipt["schema"] == "warmroute.receipt/1"
    assert (receipt["dry_run"], receipt["policy"], receipt["overlap_blocks"]) == (True, "least_loaded", 0)
    assert receipt["prompt"]["source"] == "given"
    assert len(receipt["candidates"]) == 2
    tracked = router.decide_blocking(prompt="Once upon a time", worker="w1", request_id="r1")
    assert (tracked["dry_run"], tracked["winner"]["worker"]) == (False, "w1")
    assert tracked["reservation"]["request_id"] == "r1"
    router.free_blocking("r1")


@pytest.mark.contract("DY16")
def test_an_override_holds_for_one_decision(router: Router) -> None:
    override = {"overlap_score_weight": 2.0, "router_temperature": 0.0}
    assert router.best_worker_blocking(PROMPT, override)[0] in ("w1", "w2")
    assert list(router.generate_blocking(PROMPT, router_config_override=override, stop_conditions={"max_tokens": 1}))


@pytest.mark.contract("DY38")
def test_workers_come_go_and_end_with_their_lease(
    programs: Programs, wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    first, second = programs.start_engine(), programs.start_engine()
    with Router({"workers": []}) as router:

        def names() -> list[str]:
            return [row["name"] for row in router.workers_blocking()]

        assert names() == []
        for _ in range(2):
            assert router.put_worker_blocking({"name": "w1", "url": first, "lease_ttl": "10m"}) == "w1"
        wait_for("ready worker", lambda: router.workers_blocking()[0]["state"] == "ready" or None)
        assert router.best_worker_blocking(PROMPT) == ("w1", 0, 0)
        assert router.put_worker_blocking({"name": "w2", "url": second, "lease_ttl": "1s"}) == "w2"
        wait_for("end of the lease", lambda: names() == ["w1"] or None)
        for entry, code in [
            ({"url": second, "wieght": 2}, "invalid_request"),
            ({"url": second, "lease_ttl": "1ms"}, "invalid_request"),
            ({"url": "http://169.254.169.254"}, "destination_forbidden"),
        ]:
            with pytest.raises(WarmrouteError) as raised:
                router.put_worker_blocking(entry)
            assert raised.value.code == code

        async def run() -> None:
            assert await router.put_worker({"url": second}) == second.removeprefix("http://")
            assert len(await router.workers()) == 2
            assert await router.remove_worker("w1") is True
            assert await router.remove_worker("w3") is False

        asyncio.run(run())
        wait_for("end of the worker", lambda: names() == [second.removeprefix("http://")] or None)


def test_the_metrics_are_those_of_the_program(router: Router) -> None:
    generate(router)
    text = router.metrics_blocking()
    assert 'warmroute_requests_total{route="/v1/completions",outcome="ok"} 1' in text
    assert text.endswith("# EOF\n")


def test_token_ids_come_in_every_usual_form(
    router: Router, wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    generate(router, worker_id="w1")
    wait_for("match", lambda: router.find_matches_for_request_blocking(PROMPT) or None)
    forms = [PROMPT, tuple(PROMPT), array.array("I", PROMPT), struct.pack(f"={len(PROMPT)}I", *PROMPT)]
    assert [router.best_worker_blocking(form) for form in forms] == [("w1", 0, 4)] * len(forms)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"token_ids": []}, "invalid_request"),
        ({"token_ids": [1], "model": "other"}, "model_not_found"),
        ({"token_ids": [1], "request_id": "two words"}, "invalid_request"),
        ({"token_ids": [1], "router_config_override": {"weight": 1}}, "invalid_request"),
        ({"token_ids": [1], "router_config_override": {"router_temperature": 11}}, "invalid_request"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(router: Router, arguments: dict[str, Any], code: str) -> None:
    before = potential_loads(router)
    with pytest.raises(WarmrouteError) as raised:
        router.best_worker_blocking(**arguments)
    assert raised.value.code == code
    assert potential_loads(router) == before


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"worker_id": "w3"}, "unknown_worker"),
        ({"sampling_options": {"stream": False}}, "invalid_request"),
        ({"router_config_override": {"overlap_score_weight": "2"}}, "invalid_request"),
        ({"stop_conditions": {"max_tokens": "many"}}, "invalid_request"),
    ],
)
def test_a_wrong_option_of_a_generation_is_one_clear_error(
    router: Router, arguments: dict[str, Any], code: str
) -> None:
    with pytest.raises(WarmrouteError) as raised:
        list(router.generate_blocking(PROMPT, **arguments))
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker_id": "w1\nx-other: 1"}, r'worker_id is "w1\nx-other: 1": expected the name of a worker'),
        ({"api_key": "secret\n"}, "api_key is ***: expected a key of visible ASCII characters"),
    ],
)
def test_an_argument_that_no_header_field_can_have_is_named_and_a_key_is_not_shown(
    router: Router, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(WarmrouteError) as raised:
        router.generate_blocking(PROMPT, **arguments)
    assert raised.value.code == "invalid_request"
    assert raised.value.message.startswith(message)


def test_values_of_another_type_are_type_errors(router: Router) -> None:
    for call in (
        lambda: router.best_worker_blocking("text"),
        lambda: router.best_worker_blocking([1], request_id=1),
        lambda: router.best_worker_blocking([1], router_config_override=1),
        lambda: Router(5),
    ):
        with pytest.raises(TypeError):
            call()


def test_all_problems_of_a_configuration_are_in_one_error() -> None:
    wrong = {"routing": {"policy": "best", "overlap_weight": 101}, "wrokers": []}
    for config in (wrong, json.dumps(wrong)):
        with pytest.raises(WarmrouteError) as raised:
            Router(config, workers=["http://127.0.0.1:9"])
        assert raised.value.code == "invalid_request"
        for part in ("routing.policy", "routing.overlap_weight", "wrokers"):
            assert part in raised.value.message
    with pytest.raises(WarmrouteError, match="no engine to route to"):
        Router()


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        ({"server": {1, 2}}, TypeError, "^config: Object of type set"),
        ({"server": float("nan")}, ValueError, "^config: "),
        ({"server": "\ud800"}, ValueError, "^config is no JSON"),
        ("warmroute.yaml", ValueError, "not the path of a file"),
        (["server"], TypeError, "^config is of type list"),
    ],
)
def test_a_configuration_of_another_form_is_an_error(config: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Router(config)


def test_a_text_of_a_configuration_may_have_any_character(programs: Programs) -> None:
    names = "w\x7f\x80\u2028\ufffe\U0001f600"
    with pytest.raises(WarmrouteError) as raised:
        Router({"workers": [{"name": names, "url": programs.start_engine()}], "wrong": 1})
    assert "wrong" in raised.value.message
    assert "not valid YAML" not in raised.value.message


def test_the_configuration_is_a_dict_or_a_text(programs: Programs) -> None:
    url = programs.start_engine()
    yaml = f"""
workers:
  - {{name: w1, url: "{url}"}}
routing: {{policy: round_robin}}
"""
    as_dict = {"workers": [{"name": "w1", "url": url}], "routing": {"policy": "round_robin"}}
    for config in (as_dict, json.dumps(as_dict), yaml):
        with Router(config) as router:
            assert router.decide_blocking(PROMPT)["policy"] == "round_robin"
