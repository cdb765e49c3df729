"""Clients with conversations that grow, each turn through the next router."""

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)
sys.path += [BENCH, os.path.join(BENCH, "conversations")]
from chats import text_of
from http_client import Cut, Refused, exchange

from routers import ROUTERS

# Bytes of the instructions that all conversations share, of a first question and of a later one.
INSTRUCTIONS, FIRST_QUESTION, QUESTION = 1_500, 3_000, 400
REPLY_TOKENS = 32
# Attempts of one turn, and the pause after each router has failed, in seconds.
ATTEMPTS, PAUSE = 60, 0.1


@dataclass
class Turn:
    """One answered request."""

    started: float
    ended: float
    router: int
    worker: str
    # 0 is the first of its conversation.
    turn: int
    attempts: int
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int


@dataclass
class Failure:
    """One attempt without a whole reply."""

    started: float
    ended: float
    router: int
    kind: str
    what: str


class Load:
    """All clients of a run, and what they saw."""

    def __init__(self, installation, args):
        self.routers, self.args = installation.routers, args
        self.turns, self.failures, self.lost = [], [], []
        self.stopped = asyncio.Event()
        self.tasks = []

    def start(self):
        self.tasks = [asyncio.create_task(self.client(number)) for number in range(self.args.clients)]

    async def stop(self):
        """Lets each client finish its turn. An error of a client ends the run."""
        self.stopped.set()
        await asyncio.gather(*self.tasks)

    def check(self):
        for task in self.tasks:
            if task.done() and task.exception():
                raise task.exception()

    async def client(self, number):
        draw = random.Random(self.args.seed * 1_000 + number)
        turns = 0
        await asyncio.sleep(draw.uniform(0, 2))
        while not self.stopped.is_set():
            messages = [{"role": "system", "content": text_of(1, INSTRUCTIONS)}]
            for turn in range(draw.randint(self.args.turns // 2, self.args.turns)):
                text = text_of(draw.getrandbits(60), QUESTION if turn else FIRST_QUESTION)
                messages.append({"role": "user", "content": text})
                answer = await self.turn(messages, turn, (number + turns) % ROUTERS)
                turns += 1
                if answer is None or self.stopped.is_set():
                    break
                messages.append({"role": "assistant", "content": answer})
                await asyncio.sleep(draw.uniform(0.5, 1.5) * self.args.think)

    async def turn(self, messages, turn, router):
        """Sends a turn to a router, and to the others in turn if it fails; returns the answer."""
        body = {
            "model": "sim", "messages": messages, "max_tokens": REPLY_TOKENS, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }
        body = json.dumps(body).encode()
        for attempt in range(ATTEMPTS):
            at = (router + attempt) % ROUTERS
            started = time.monotonic()
            try:
                reply = await exchange(self.routers[at].data, "POST", "/v1/chat/completions", body)
                answer, usage = answer_of(*reply)
            except (Refused, Cut, BadReply) as error:
                self.failures.append(Failure(started, time.monotonic(), at, error.kind, str(error)))
                if at == (router - 1) % ROUTERS:
                    await asyncio.sleep(PAUSE)
                continue
            details = usage.get("prompt_tokens_details") or {}
            fields = reply[1]
            self.turns.append(Turn(
                started, time.monotonic(), at, fields.get("x-warmroute-worker", ""), turn, attempt + 1,
                usage["prompt_tokens"], details.get("cached_tokens") or 0,
                int(fields["x-warmroute-predicted-cached-tokens"]),
            ))
            return answer
        self.lost.append({"at": time.monotonic(), "router": router})
        return None

    def rows(self, origin):
        """Returns everything that the clients saw, with times from `origin` on."""

        def shifted(row):
            times = {"started": round(row.started - origin, 3), "ended": round(row.ended - origin, 3)}
            return {**asdict(row), **times}

        return {"turns": [shifted(row) for row in self.turns], "failures": [shifted(row) for row in self.failures]}


class BadReply(Exception):
    """A whole reply that is not an answer."""

    def __init__(self, kind, what):
        super().__init__(what)
        self.kind = kind


def answer_of(status, fields, body):
    """Returns the text and the usage of a streamed chat."""
    if status != 200:
        raise BadReply(f"status {status}", body[:300].decode(errors="replace"))
    text, usage, done = [], None, False
    for line in body.split(b"\n"):
        if not line.startswith(b"data:"):
            continue
        if line[5:].strip() == b"[DONE]":
            done = True
            continue
        event = json.loads(line[5:])
        if "error" in event:
            raise BadReply("error event", json.dumps(event)[:300])
        for choice in event["choices"]:
            text.append(choice["delta"].get("content") or "")
        usage = event.get("usage") or usage
    if not done or usage is None or "x-warmroute-predicted-cached-tokens" not in fields:
        raise BadReply("not a chat", f"no end, usage or prediction: {body[-200:].decode(errors='replace')}")
    return "".join(text), usage
