"""Multi-turn chats over shared system prompts, deterministic for a seed, and clients that drive them."""

import json
import random
import threading
import time
from http.client import HTTPException

from processes import Http

WORDS = (
    "cache block token prompt engine worker route prefix queue batch model layer head memory tier host disk "
    "store event stream replay chain hash digest tenant policy budget latency window request reply first "
    "second third because while before after between under over river mountain garden window paper letter "
    "answer question number colour morning"
).split()


class Session:
    def __init__(self, number, system_number, turns, rng, system_words=420):
        self.number, self.system_number = number, system_number
        system = random.Random(1000 + system_number)
        self.messages = [{"role": "system", "content": sentence(system, system_words)}]
        self.questions = [sentence(rng, rng.randint(30, 70)) for _ in range(turns)]

    @property
    def over(self):
        return not self.questions


def sentence(rng, words):
    return f"{rng.randint(0, 10**9)} " + " ".join(rng.choice(WORDS) for _ in range(words))


def sessions(count, turns, seed, systems=4, system_words=420):
    rng = random.Random(seed)
    return [Session(number, number % systems, turns, rng, system_words) for number in range(count)]


class Answer:
    """The result of one request."""

    def __init__(self):
        self.error = None
        self.worker = None
        self.predicted = self.cached = self.prompt = None
        self.ttft_ms = None
        self.text = ""


def chat(http, messages, stream, headers=None, max_tokens=24):
    """One chat request over a keep-alive connection."""
    body = {"model": "tiny", "messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    answer, done = Answer(), not stream
    try:
        status, head, events = http.events("POST", "/v1/chat/completions", body, headers)
        take_head(answer, head)
        for event in events:
            if answer.ttft_ms is None and stream:
                answer.ttft_ms = (time.monotonic() - http.begun) * 1e3
            if event == "[DONE]":
                done = True
                continue
            reply = json.loads(event)
            if status != 200 or "error" in reply:
                answer.error = f"{status} {event[:200]}"
                continue
            take_reply(answer, reply)
        if answer.error is None and (answer.prompt is None or not done):
            answer.error = "the reply ended as if it were whole, and was not"
        if answer.error:
            # A cut reply closes its connection.
            http.connection = None
    except (OSError, ValueError, HTTPException) as error:
        http.connection = None
        answer.error = repr(error)
    return answer


def take_reply(answer, reply):
    """A whole reply, or one chunk of it."""
    for choice in reply.get("choices", []):
        answer.text += (choice.get("message") or choice.get("delta") or {}).get("content") or ""
    if reply.get("usage"):
        answer.prompt = reply["usage"]["prompt_tokens"]
        answer.cached = (reply["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def take_head(answer, head):
    answer.worker = head.get("x-warmroute-worker")
    predicted = head.get("x-warmroute-predicted-cached-tokens")
    answer.predicted = None if predicted is None else int(predicted)


def drive(address, sessions, clients, seed=1, pin=None, on_answer=None, all_streamed=False):
    """Drives all sessions to their end, `clients` at a time; a session's turns follow each other, those of different
    sessions mix. `pin` maps a session to the worker it is sent to. Every other turn is streamed, or all. Returns the
    answers."""
    answers, lock, idle, rng = [], threading.Lock(), list(sessions), random.Random(seed)

    def client():
        http = Http(address)
        while True:
            with lock:
                if not idle:
                    # A session that another client drives may return with a turn left.
                    return
                session = idle.pop(rng.randrange(len(idle)))
            turn(http, session)

    def turn(http, session):
        session.messages.append({"role": "user", "content": session.questions.pop(0)})
        headers = {"x-warmroute-worker": pin(session)} if pin else None
        streamed = all_streamed or len(session.messages) % 4 == 2
        answer = chat(http, session.messages, stream=streamed, headers=headers)
        session.messages.append({"role": "assistant", "content": answer.text})
        with lock:
            answers.append(answer)
            if not session.over:
                idle.append(session)
        if on_answer:
            on_answer(answer)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
