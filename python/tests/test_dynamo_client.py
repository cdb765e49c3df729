"""Clients of an endpoint under Dynamo's names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import WarmrouteError
from warmroute.dynamo import namespace

if TYPE_CHECKING:
    from conftest import Programs

TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.fixture(autouse=True)
def engines(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Two engines, ``w1`` and ``w2``, which every endpoint finds."""
    started = {name: programs.start_engine() for name in ("w1", "w2")}
    monkeypatch.setenv("WARMROUTE_WORKERS", ",".join(f"{name}={url}" for name, url in started.items()))
    monkeypatch.delenv("NATS_SERVER", raising=False)
    return started


@pytest.fixture
def executions(engines: dict[str, str], get_json: Callable[[str], Any]) -> Callable[[], dict[str, int]]:
    """``executions()`` returns how many requests each engine has computed."""
    return lambda: {name: get_json(f"{url}/sim/stats")["executions"] for name, url in engines.items()}


async def tokens_of(stream: Any) -> list[int]:
    return [token async for response in stream for token in response["token_ids"]]


@pytest.mark.contract("DY39", "DY40")
def test_round_robin_takes_turns(executions: Callable[[], dict[str, int]]) -> None:
    async def main() -> None:
        client = namespace("dynamo").component("VllmWorker").endpoint("generate").client()
        for _ in range(6):
            assert await tokens_of(await client.round_robin(TOKENS))

    asyncio.run(main())
    assert executions() == {"w1": 3, "w2": 3}


@pytest.mark.contract("DY39", "DY40")
def test_a_direct_request_goes_to_its_worker(executions: Callable[[], dict[str, int]]) -> None:
    async def main() -> None:
        client = namespace("dynamo").component("VllmWorker").endpoint("generate").client()
        for _ in range(3):
            assert await tokens_of(await client.direct(TOKENS, "w2"))
        with pytest.raises(WarmrouteError) as raised:
            await client.direct(TOKENS, "w3")
        assert raised.value.code == "unknown_worker"
        with pytest.raises(TypeError, match="worker is of type int"):
            await client.direct(TOKENS, 2)  # type: ignore[arg-type]

    asyncio.run(main())
    assert executions() == {"w1": 0, "w2": 3}


@pytest.mark.contract("DY39")
@pytest.mark.parametrize("method", ["generate", "random"])
def test_random_requests_reach_all_workers(method: str, executions: Callable[[], dict[str, int]]) -> None:
    async def main() -> None:
        client = namespace("dynamo").component("VllmWorker").endpoint("generate").client()
        # Once in half a million runs they would all reach the same one.
        for _ in range(20):
            assert await tokens_of(await getattr(client, method)(TOKENS))

    asyncio.run(main())
    assert all(executions().values())
    assert sum(executions().values()) == 20


@pytest.mark.contract("DY39", "DY40")
def test_a_request_has_conditions_and_options_of_its_own() -> None:
    async def main() -> None:
        client = namespace("dynamo").component("VllmWorker").endpoint("generate").client()
        request = {
            "token_ids": TOKENS,
            "model": "sim",
            "stop_conditions": {"max_tokens": 7, "ignore_eos": True},
            "sampling_options": {"temperature": 0},
        }
        for stream in (await client.generate(request), await client.round_robin(request)):
            assert len(await tokens_of(stream)) == 7
        for wrong, says in [({"token_ids": TOKENS, "max_tokens": 7}, "'max_tokens'"), ({"model": "sim"}, "token_ids")]:
            with pytest.raises(ValueError, match=says):
                await client.generate(wrong)
        client.close()
        client.close()
        with pytest.raises(WarmrouteError, match="closed"):
            await client.generate(request)

    asyncio.run(main())
