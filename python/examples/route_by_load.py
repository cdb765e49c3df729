"""Custom load-based routing: this program chooses by a cost of its own, from the load that each worker would have.

python route_by_load.py http://ENGINE1:8000 http://ENGINE2:8000
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from warmroute import Router


def cost(load: dict[str, Any]) -> tuple[int, int]:
    """Least time to first token: the least prefill work, and among equals the fewest blocks."""
    return load["potential_prefill_tokens"], load["potential_decode_blocks"]


async def generate(router: Router, prompt: list[int]) -> list[int]:
    """Returns the token ids of the reply."""
    best = min(await router.get_potential_loads(prompt), key=cost)
    worker = f"{best['worker_id']}/{best['dp_rank']}"
    conditions = {"max_tokens": 8, "ignore_eos": True}
    stream = await router.generate(prompt, stop_conditions=conditions, worker_id=worker)
    tokens: list[int] = []
    async for part in stream:
        tokens += part["token_ids"]
    return tokens


async def main(workers: list[str]) -> None:
    async with Router(workers=workers) as router:
        print(*await generate(router, list(range(1, 66))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
