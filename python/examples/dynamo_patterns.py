"""Dynamo's four ways to use a router, in front of the engines that ``WARMROUTE_WORKERS`` names."""

from __future__ import annotations

import asyncio
from typing import Any

from warmroute import TokenStream
from warmroute.dynamo import Client, DistributedRuntime, KvPushRouter, KvRouterConfig

PROMPT = list(range(1, 65))


async def tokens_of(stream: TokenStream) -> list[int]:
    return [token async for part in stream for token in part["token_ids"]]


async def automatic(router: KvPushRouter) -> list[int]:
    """The router chooses the worker, sends the request and counts its load."""
    return await tokens_of(await router.generate(PROMPT, stop_conditions={"max_tokens": 20}))


async def managed(router: KvPushRouter, client: Client) -> list[int]:
    """The router chooses the worker; the program sends the request, and says how far it is."""
    await router.best_worker(PROMPT, request_id="req-1")
    try:
        response = await client.generate(PROMPT, request_id="req-1")
        tokens = list((await anext(response))["token_ids"])
        await router.mark_prefill_complete("req-1")
        return tokens + await tokens_of(response)
    finally:
        await router.free("req-1")


async def probed(routers: list[KvPushRouter]) -> list[int]:
    """The router whose engines have most of the prompt gets the request. The question changes none of them."""
    answers = [await router.best_worker(PROMPT) for router in routers]
    router, (worker_id, dp_rank, _) = max(zip(routers, answers, strict=True), key=lambda pair: pair[1][2])
    return await tokens_of(await router.generate(PROMPT, worker_id=worker_id, dp_rank=dp_rank))


async def by_load(router: KvPushRouter) -> list[int]:
    """The program has a cost of its own."""

    def cost(load: dict[str, Any]) -> int:
        prefill, decode = load["potential_prefill_tokens"], load["potential_decode_blocks"]
        return int(prefill + 4 * decode)

    best = min(await router.get_potential_loads(PROMPT), key=cost)
    return await tokens_of(await router.generate(PROMPT, worker_id=best["worker_id"]))


async def main() -> None:
    runtime = DistributedRuntime.detached()
    endpoint = runtime.namespace("dynamo").component("backend").endpoint("generate")
    routers = [KvPushRouter(endpoint, block_size=16, kv_router_config=KvRouterConfig()) for _ in range(2)]
    print("automatic", await automatic(routers[0]))
    print("managed", await managed(routers[0], endpoint.client()))
    print("probed", await probed(routers))
    print("by load", await by_load(routers[0]))


if __name__ == "__main__":
    asyncio.run(main())
