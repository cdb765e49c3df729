"""A closed loop over sockets: sessions whose next turn begins a while after the reply before it."""

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from fleet import percentile
from http_client import exchange

# Longest time for one reply, in seconds: none of a run's replies takes as long.
REPLY_LIMIT = 3_600
# Time over which the first sessions begin, and after which a refused request is sent again, in seconds of the engines.
BEGIN_WITHIN, REFUSED_PAUSE = 60, 1


@dataclass
class Request:
    """One turn of a session, with the times at which it was sent, its first token came and its reply ended."""

    place: int
    sent: float
    first: float | None = None
    ended: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def watch(self, received):
        if self.first is None and b"\ndata:" in received:
            self.first = time.monotonic()


class Play:
    """Sessions at a number of places, and what their clients saw. Times of the plan are divided by `speed`."""

    def __init__(self, port, plan, places, speed):
        self.port, self.plan, self.places, self.speed = port, plan, places, speed
        self.requests, self.ends, self.refused = [], [], []

    async def run(self, seconds):
        """Plays for so many seconds; an error of a client ends the run."""
        clients = [asyncio.create_task(self.place(place)) for place in range(self.places)]
        failed, _ = await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        for client in failed:
            client.result()

    async def place(self, place):
        draw = random.Random(f"{self.plan.seed} begin {place}")
        await asyncio.sleep(draw.uniform(0, BEGIN_WITHIN) / self.speed)
        for turns in self.plan.sessions(place):
            for body, pause in turns:
                await self.turn(place, body)
                await asyncio.sleep(pause / self.speed)
            self.ends.append(time.monotonic())

    async def turn(self, place, body):
        request = Request(place, time.monotonic())
        self.requests.append(request)
        while True:
            path = "/v1/completions"
            status, _, reply = await exchange(self.port, "POST", path, body, REPLY_LIMIT, request.watch)
            if status == 200:
                break
            if status != 503:
                raise RuntimeError(f"status {status}: {reply[:300]}")
            # As a client does; its wait goes on.
            self.refused.append(time.monotonic())
            await asyncio.sleep(REFUSED_PAUSE / self.speed)
        usage = usage_of(reply)
        request.ended = time.monotonic()
        request.prompt_tokens = usage["prompt_tokens"]
        request.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def figures(self, begin, end):
        """Returns the figures of the time between the two; times are the engines', in seconds."""
        within = lambda at: at is not None and begin <= at <= end
        done = [request for request in self.requests if within(request.ended)]
        # A request without a first token counts with its age at the end, also one that was sent before.
        counts = lambda request: request.sent <= end and (request.sent >= begin or request.first is None)
        waits = [((request.first or end) - request.sent) * self.speed for request in filter(counts, self.requests)]
        if not done or not waits:
            raise RuntimeError("no turn in the measured time")
        turns = [0] * self.places
        for request in done:
            turns[request.place] += 1
        return {
            "turns_per_minute": len(done) / ((end - begin) * self.speed / 60),
            "hit_share": total(done, "cached_tokens") / total(done, "prompt_tokens"),
            "ttft_p50": percentile(waits, 0.5),
            "ttft_p95": percentile(waits, 0.95),
            "longest_wait": max(waits),
            "jain": sum(turns) ** 2 / (len(turns) * sum(count * count for count in turns)),
            "ended": sum(map(within, self.ends)),
            "refused": sum(map(within, self.refused)),
        }


def total(requests, field):
    return sum(getattr(request, field) for request in requests)


def usage_of(reply):
    """Returns the usage of a streamed completion."""
    lines = reply.split(b"\n")
    if not any(line.strip() == b"data: [DONE]" for line in lines):
        raise RuntimeError(f"a reply without its end: {reply[-300:]}")
    for line in reversed(lines):
        if b'"prompt_tokens"' in line:
            return json.loads(line[len(b"data:"):])["usage"]
    raise RuntimeError(f"a reply without usage: {reply[-300:]}")
