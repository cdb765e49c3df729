"""The calls of Dynamo's document about its KV router, in front of simulated engines."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import KvIndex, WarmrouteError
from warmroute.dynamo import DistributedRuntime, KvPushRouter, KvRouterConfig

if TYPE_CHECKING:
    from conftest import Programs

EXAMPLE = Path(__file__).parents[1] / "examples/dynamo_patterns.py"
MODEL = "meta-llama/Llama-2-7b-hf"
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
# Four whole blocks, and one token more.
LONG = list(range(1, 66))


@pytest.fixture(autouse=True)
def engines(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Two engines, ``w1`` and ``w2``, which every endpoint finds."""
    started = {name: programs.start_engine("--model", MODEL, "--block-size", "16") for name in ("w1", "w2")}
    monkeypatch.setenv("WARMROUTE_WORKERS", ",".join(f"{name}={url}" for name, url in started.items()))
    monkeypatch.delenv("NATS_SERVER", raising=False)
    return started


@pytest.fixture
def executions(engines: dict[str, str], get_json: Callable[[str], Any]) -> Callable[[], dict[str, int]]:
    """``executions()`` returns how many requests each engine has computed."""
    return lambda: {name: get_json(f"{url}/sim/stats")["executions"] for name, url in engines.items()}


def new_router(**config: Any) -> KvPushRouter:
    endpoint = DistributedRuntime.detached().namespace("dynamo").component("backend").endpoint("generate")
    return KvPushRouter(endpoint=endpoint, block_size=16, kv_router_config=KvRouterConfig(**config))


async def tokens_of(stream: Any) -> list[int]:
    tokens = []
    async for response in stream:
        if isinstance(response, dict) and "token_ids" in response:
            tokens.extend(response["token_ids"])
    return tokens


async def matched(router: KvPushRouter) -> dict[str, int]:
    """Returns the workers that have some of the long prompt, as soon as one has its four blocks."""
    while 4 not in (matches := await router.find_matches_for_request(LONG)).values():
        await asyncio.sleep(0.02)
    return matches


@pytest.mark.contract("DY27", "DY40")
def test_a_generation_with_an_override_has_exactly_its_tokens() -> None:
    async def main() -> list[int]:
        runtime = DistributedRuntime.detached()
        namespace = runtime.namespace("dynamo")
        component = namespace.component("backend")
        endpoint = component.endpoint("generate")
        kv_router_config = KvRouterConfig()
        router = KvPushRouter(endpoint=endpoint, block_size=16, kv_router_config=kv_router_config)
        stream = await router.generate(
            token_ids=TOKENS,
            model=MODEL,
            stop_conditions={"max_tokens": 20, "ignore_eos": True},
            sampling_options={"temperature": 0.7, "top_p": 0.9},
            router_config_override={"overlap_score_weight": 2.0, "router_temperature": 0.5},
        )
        return await tokens_of(stream)

    tokens = asyncio.run(main())
    assert len(tokens) == 20
    assert {type(token) for token in tokens} == {int}


@pytest.mark.contract("DY30", "DY40")
def test_the_worker_with_the_least_prefill_work_gets_the_request(executions: Callable[[], dict[str, int]]) -> None:
    async def main() -> list[dict[str, Any]]:
        router = new_router()
        first = await router.generate(LONG, MODEL, {"max_tokens": 1}, worker_id="w2")
        assert len(await tokens_of(first)) == 1
        await matched(router)
        potential_loads = await router.get_potential_loads(LONG)
        best_worker = min(potential_loads, key=lambda x: x["potential_prefill_tokens"])
        assert best_worker["worker_id"] == "w2"
        stream = await router.generate(
            token_ids=LONG, model=MODEL, worker_id=best_worker["worker_id"], stop_conditions={"max_tokens": 20}
        )
        assert len(await tokens_of(stream)) == 20
        return potential_loads

    loads = asyncio.run(main())
    assert {load["worker_id"]: load["potential_prefill_tokens"] for load in loads} == {"w1": 65, "w2": 1}
    assert [sorted(load) for load in loads] == [
        ["dp_rank", "potential_decode_blocks", "potential_prefill_tokens", "worker_id"]
    ] * 2
    assert executions() == {"w1": 0, "w2": 2}


@pytest.mark.contract("DY35", "DY40")
def test_automatic_routing_follows_the_cache(executions: Callable[[], dict[str, int]]) -> None:
    async def main() -> str:
        router = new_router()
        assert await tokens_of(await router.generate(token_ids=LONG, model=MODEL))
        (worker,) = await matched(router)
        assert await tokens_of(await router.generate(token_ids=LONG, model=MODEL))
        return worker

    worker = asyncio.run(main())
    assert executions()[worker] == 2


@pytest.mark.contract("DY28", "DY29", "DY31", "DY32", "DY35", "DY39", "DY40")
def test_a_request_that_its_program_manages_goes_to_its_worker_and_is_load_until_it_is_freed(
    executions: Callable[[], dict[str, int]],
) -> None:
    async def main() -> None:
        endpoint = DistributedRuntime.detached().namespace("dynamo").component("backend").endpoint("generate")
        router = KvPushRouter(endpoint=endpoint, block_size=16, kv_router_config=KvRouterConfig())
        client = endpoint.client()
        idle = await router.get_potential_loads(TOKENS)
        # A client that did not know the worker would find it each time once in 4096 runs.
        for number in range(12):
            request_id, before = f"req-{number}", executions()
            with pytest.warns(DeprecationWarning, match="call best_worker"):
                worker_id, overlap = await router.best_worker_id(TOKENS, request_id=request_id)
            assert overlap == 0
            reserved = await router.get_potential_loads(TOKENS)
            assert reserved != idle
            response = await client.generate(TOKENS, request_id=request_id)
            assert (await anext(response))["token_ids"]
            await router.mark_prefill_complete(request_id)
            assert await router.get_potential_loads(TOKENS) != reserved
            assert await tokens_of(response)
            await router.free(request_id)
            assert await router.get_potential_loads(TOKENS) == idle
            assert executions() == before | {worker_id: before[worker_id] + 1}
        with pytest.raises(WarmrouteError) as raised:
            await router.free("req-1")
        assert raised.value.code == "reservation_not_found"

    asyncio.run(main())


@pytest.mark.contract("DY28", "DY34", "DY35", "DY40")
def test_several_routers_are_probed_without_a_change_and_one_is_chosen() -> None:
    async def main() -> None:
        router_1, router_2 = new_router(), new_router()
        assert await tokens_of(await router_1.generate(LONG, MODEL, {"max_tokens": 1}, worker_id="w1"))
        for router in (router_1, router_2):
            assert await matched(router) == {"w1": 4}
        before = await router_1.get_potential_loads(LONG)
        with pytest.warns(DeprecationWarning, match="call best_worker"):
            worker_id_1, overlap_1 = await router_1.best_worker_id(LONG)
            worker_id_2, overlap_2 = await router_2.best_worker_id(LONG)
        assert (worker_id_1, overlap_1) == (worker_id_2, overlap_2) == ("w1", 4)
        assert await router_1.get_potential_loads(LONG) == before
        chosen_router, worker_id = (router_1, worker_id_1) if overlap_1 > overlap_2 else (router_2, worker_id_2)
        stream = await chosen_router.generate(LONG, model=MODEL, worker_id=worker_id)
        assert await tokens_of(stream)

    asyncio.run(main())


@pytest.mark.contract("DY34")
def test_two_routers_of_one_endpoint_share_nothing() -> None:
    async def main() -> None:
        first, second = new_router(), new_router()
        idle = await second.get_potential_loads(TOKENS)
        await first.best_worker(TOKENS, request_id="r1")
        assert await second.get_potential_loads(TOKENS) == idle
        await second.best_worker(TOKENS, request_id="r1")
        async with first:
            pass
        with pytest.raises(WarmrouteError, match="closed"):
            await first.best_worker(TOKENS)
        await second.free("r1")
        assert await tokens_of(await second.generate(TOKENS, MODEL))

    asyncio.run(main())


@pytest.mark.contract("DY30", "DY35", "DY40")
@pytest.mark.parametrize("favourite", ["w1", "w2"])
def test_a_cost_of_the_program_chooses_among_the_potential_loads(
    favourite: str, executions: Callable[[], dict[str, int]]
) -> None:
    def custom_cost_fn(load: dict[str, Any]) -> float:
        return float(load["potential_decode_blocks"]) + (0 if load["worker_id"] == favourite else 1000)

    async def main() -> None:
        router = new_router()
        loads = await router.get_potential_loads(TOKENS)
        best_worker = min(loads, key=lambda x: custom_cost_fn(x))
        stream = await router.generate(TOKENS, model=MODEL, worker_id=best_worker["worker_id"])
        assert await tokens_of(stream)

    asyncio.run(main())
    assert executions() == {"w1": 0, "w2": 0} | {favourite: 1}


@pytest.mark.contract("DY35")
def test_the_example_of_the_four_patterns_runs(
    engines: dict[str, str], programs: Programs, executions: Callable[[], dict[str, int]]
) -> None:
    workers = ",".join(f"{name}={url}" for name, url in engines.items())
    end = programs.run(str(EXAMPLE), WARMROUTE_WORKERS=workers)
    assert end.returncode == 0, end.stderr
    lines = re.findall(r"^(automatic|managed|probed|by load) \[\d+(?:, \d+)*\]$", end.stdout, re.MULTILINE)
    assert lines == ["automatic", "managed", "probed", "by load"]
    assert sum(executions().values()) == 4


@pytest.mark.contract("DY28")
def test_the_best_worker_has_a_rank_and_both_can_be_passed_back(executions: Callable[[], dict[str, int]]) -> None:
    async def main() -> str:
        router = new_router()
        worker_id, dp_rank, overlap_blocks = await router.best_worker(TOKENS)
        assert (dp_rank, overlap_blocks) == (0, 0)
        stream = await router.generate(TOKENS, MODEL, worker_id=worker_id, dp_rank=dp_rank)
        assert await tokens_of(stream)
        return worker_id

    worker_id = asyncio.run(main())
    assert executions() == {"w1": 0, "w2": 0} | {worker_id: 1}


@pytest.mark.contract("DY33")
def test_the_events_of_a_router_fill_an_index() -> None:
    async def main() -> str:
        router = new_router()
        assert await tokens_of(await router.generate(LONG, MODEL, {"max_tokens": 1}, worker_id="w1"))
        # The router expects the blocks from the start on; the dump has them when their events came.
        while len(json.loads(text := await router.dump_events())) < 4:
            await asyncio.sleep(0.02)
        return text

    index = KvIndex(block_size=16)
    index.load_events(asyncio.run(main()))
    assert index.find_matches(LONG) == {("w1", 0): 4}


@pytest.mark.contract("DY16", "DY40")
@pytest.mark.parametrize(
    "override",
    [{"overlap_weight": 2.0}, {"overlap_score_weight": "2"}, {"overlap_score_weight": -1}, {"router_temperature": 11}],
)
def test_a_wrong_override_is_refused_and_nothing_is_sent(
    override: dict[str, Any], executions: Callable[[], dict[str, int]]
) -> None:
    async def main() -> None:
        router = new_router()
        with pytest.raises(WarmrouteError) as raised:
            await router.best_worker(TOKENS, router_config_override=override)
        assert raised.value.code == "invalid_request"
        with pytest.raises(WarmrouteError) as raised:
            await router.generate(TOKENS, MODEL, router_config_override=override)
        assert raised.value.code == "invalid_request"

    asyncio.run(main())
    assert executions() == {"w1": 0, "w2": 0}


@pytest.mark.contract("DY27")
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"worker_id": 1}, TypeError, "worker_id is of type int"),
        ({"dp_rank": 1}, ValueError, "without a worker_id"),
        ({"worker_id": "w3"}, WarmrouteError, "w3"),
        ({"model": "other"}, WarmrouteError, "other"),
    ],
)
def test_a_wrong_argument_of_a_generation_is_one_clear_error(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    async def main() -> None:
        router = new_router()
        with pytest.raises(error, match=says):
            await router.generate(TOKENS, **arguments)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"endpoint": "dynamo/backend/generate"}, TypeError, "endpoint is of type str"),
        ({"block_size": "16"}, TypeError, "block_size is of type str"),
        ({"block_size": 0}, ValueError, "block_size is 0"),
        ({"kv_router_config": {}}, TypeError, "kv_router_config is of type dict"),
    ],
)
def test_a_wrong_argument_of_a_router_is_named(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    endpoint = DistributedRuntime.detached().namespace("dynamo").component("backend").endpoint("generate")
    with pytest.raises(error, match=says):
        KvPushRouter(**({"endpoint": endpoint, "block_size": 16} | arguments))


def test_names_of_endpoints_are_checked() -> None:
    runtime = DistributedRuntime.detached()
    with pytest.raises(ValueError, match="namespace is 'a/b'"):
        runtime.namespace("a/b")
    with pytest.raises(ValueError, match="component is ''"):
        runtime.namespace("dynamo").component("")
    with pytest.raises(TypeError, match="endpoint is of type int"):
        runtime.namespace("dynamo").component("backend").endpoint(1)  # type: ignore[arg-type]


@pytest.mark.contract("DY27", "DY40")
def test_a_router_is_made_while_the_loop_runs() -> None:
    async def main() -> None:
        endpoint = DistributedRuntime.detached().namespace("dynamo").component("backend").endpoint("generate")
        router = await KvPushRouter.create(endpoint, block_size=16)
        async with router:
            assert {row["worker_id"] for row in await router.get_potential_loads(TOKENS)} == {"w1", "w2"}

    asyncio.run(main())
