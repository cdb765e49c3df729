"""Hierarchical probing: the router whose workers hold more of a prompt gets the request.

python route_hierarchically.py http://SITE1:8000,http://SITE1:8001 http://SITE2:8000

Each argument has the workers of one router.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from warmroute import Router


async def choose(routers: list[Router], prompt: list[int]) -> tuple[Router, str]:
    """Returns the best router and its best worker. Nothing is counted as load by the question."""
    answers = await asyncio.gather(*(router.best_worker(prompt) for router in routers))
    best = max(range(len(routers)), key=lambda index: answers[index][2])
    worker, dp_rank, _ = answers[best]
    return routers[best], f"{worker}/{dp_rank}"


async def generate(routers: list[Router], prompt: list[int]) -> list[int]:
    """Returns the token ids of the reply."""
    router, worker = await choose(routers, prompt)
    conditions = {"max_tokens": 8, "ignore_eos": True}
    stream = await router.generate(prompt, stop_conditions=conditions, worker_id=worker)
    tokens: list[int] = []
    async for part in stream:
        tokens += part["token_ids"]
    return tokens


async def main(groups: list[str]) -> None:
    async with AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(Router(workers=group.split(","))) for group in groups]
        print(*await generate(routers, list(range(1, 66))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
