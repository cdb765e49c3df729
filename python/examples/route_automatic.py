"""Automatic routing: the router chooses the worker of a prompt, sends the request and follows it to its end.

python route_automatic.py http://ENGINE1:8000 http://ENGINE2:8000
"""

from __future__ import annotations

import asyncio
import sys

from warmroute import Router


async def generate(router: Router, prompt: list[int]) -> list[int]:
    """Returns the token ids of the reply."""
    stream = await router.generate(token_ids=prompt, stop_conditions={"max_tokens": 8, "ignore_eos": True})
    tokens: list[int] = []
    async for part in stream:
        tokens += part["token_ids"]
    return tokens


async def main(workers: list[str]) -> None:
    async with Router(workers=workers) as router:
        print(*await generate(router, list(range(1, 66))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
