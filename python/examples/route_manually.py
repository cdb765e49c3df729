"""Manual lifecycle: the router chooses and counts the load, this program sends the request; needs httpx.

python route_manually.py w1=http://ENGINE1:8000 w2=http://ENGINE2:8000
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from contextlib import suppress

import httpx

from warmroute import Router, WarmrouteError


async def generate(router: Router, urls: dict[str, str], prompt: list[int]) -> list[int]:
    """Returns the token ids of the reply; ``urls`` has the workers by name."""
    request_id = uuid.uuid4().hex
    worker, dp_rank, _ = await router.best_worker(prompt, request_id=request_id)
    body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "stream": True, "return_token_ids": True}
    headers = {"x-data-parallel-rank": str(dp_rank)}
    tokens: list[int] = []
    try:
        async with (
            httpx.AsyncClient(timeout=None) as client,
            client.stream("POST", f"{urls[worker]}/v1/completions", json=body, headers=headers) as reply,
        ):
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                if not tokens:
                    await router.mark_prefill_complete(request_id)
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    tokens += choice["token_ids"] or []
    finally:
        # However it ended, the request is no load any more; not awaited, so that no cancellation stops it. The router
        # itself has forgotten one that took longer than routing.reservation_ttl.
        with suppress(WarmrouteError):
            router.free_blocking(request_id)
    return tokens


async def main(workers: list[str]) -> None:
    urls = dict(worker.split("=", 1) for worker in workers)
    async with Router(workers=workers) as router:
        print(*await generate(router, urls, list(range(1, 66))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
