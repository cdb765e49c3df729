"""Dynamo's four ways to use a router, each over a fourth of the prompts on standard input; prints the replies' token ids
by pattern. Run by check_python.py with the interpreter that has the package."""

import asyncio
import json
import sys

from warmroute.dynamo import DistributedRuntime, KvPushRouter, KvRouterConfig

GREEDY = {"temperature": 0}
BLOCK_SIZE = 32


async def tokens_of(stream):
    return [token async for part in stream for token in part["token_ids"]]


async def automatic(router, _client, prompt, stop):
    return await tokens_of(await router.generate(prompt, stop_conditions=stop, sampling_options=GREEDY))


async def managed(router, client, prompt, stop):
    await router.best_worker(prompt, request_id="managed")
    try:
        request = {"token_ids": prompt, "stop_conditions": stop, "sampling_options": GREEDY}
        stream = await client.generate(request, request_id="managed")
        tokens = list((await anext(stream))["token_ids"])
        await router.mark_prefill_complete("managed")
        return tokens + await tokens_of(stream)
    finally:
        await router.free("managed")


async def chosen(router, _client, prompt, stop):
    worker_id, dp_rank, _ = await router.best_worker(prompt)
    stream = await router.generate(
        prompt, worker_id=worker_id, dp_rank=dp_rank, stop_conditions=stop, sampling_options=GREEDY
    )
    return await tokens_of(stream)


async def by_load(router, _client, prompt, stop):
    best = min(await router.get_potential_loads(prompt), key=lambda load: load["potential_prefill_tokens"])
    stream = await router.generate(
        prompt, worker_id=best["worker_id"], stop_conditions=stop, sampling_options=GREEDY
    )
    return await tokens_of(stream)


async def main():
    prompts, stop = json.load(sys.stdin), {"max_tokens": int(sys.argv[1]), "ignore_eos": True}
    endpoint = DistributedRuntime.detached().namespace("dynamo").component("backend").endpoint("generate")
    router = KvPushRouter(endpoint, block_size=BLOCK_SIZE, kv_router_config=KvRouterConfig())
    client = endpoint.client()
    patterns = (automatic, managed, chosen, by_load)
    replies = {
        pattern.__name__: [await pattern(router, client, prompt, stop) for prompt in prompts[number :: len(patterns)]]
        for number, pattern in enumerate(patterns)
    }
    print(json.dumps(replies))


asyncio.run(main())
