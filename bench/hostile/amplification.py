#!/usr/bin/env python3
"""How much memory and processor time 10 KiB of input cost the router (goal G17).

  python3 bench/hostile/amplification.py WARMROUTE [--seconds 120]

WARMROUTE is the program. It is started as simulated engines and as a router in front of them, on loopback.

Memory: many connections send the same input of at most 10 KiB and wait; the growth of the router's resident memory is
divided by their number. Processor time: a search over kinds of requests, texts and structures sends each input some
times over one connection, and mutates those that cost most; the router's time is divided by that of this client, which
only copies prepared bytes to a socket and reads the replies. Standard library only.
"""

import argparse
import json
import os
import random
import socket
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from fleet import Fleet

INPUT = 10 << 10
HOLDERS = 256
# Requests in each measurement of time, and inputs that the search mutates.
REPEATS, BEST = 40, 12
PAGE = os.sysconf("SC_PAGE_SIZE")

TEXTS = ["a", " a", "a b ", "word ", "1", "1234 ", " ", "\n", "\t \n", "\u00e9", "\u4e2d\u6587", "\U0001d56c",
         "\U0001f469\u200d\U0001f680", "<|im_start|>", "<|im_end|>\n", "{{ x }}", "\\", "\"", "\u0000", "\u202e", "e\u0301",
         "aB3$", "'s 're", "https://a.b/c?d=e ", "0x7f.", "-----", "AAAA", "\u0130", "\ufdfa", "def f(x):\n    return x\n"]


def filled(draw, room):
    """Returns a text whose JSON has at most this many bytes."""
    if draw.random() < 0.2:
        unit = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz     ,.\n", k=64))
    else:
        unit = "".join(draw.choices(TEXTS, k=draw.randint(1, 3)))
    plain = draw.random() < 0.5
    size = max(1, len(json.dumps(unit, ensure_ascii=plain).encode()) - 2)
    return unit * (room // size), plain


def messages(draw, room):
    count = draw.choice([1, 1, 2, 16, 64, 128])
    text, plain = filled(draw, room // count - 40)
    return [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at in range(count)], plain


def chat_body(draw, room):
    body, plain = messages(draw, room - 200)
    return {"model": "sim", "messages": body, "max_tokens": 1}, plain


def structured(draw, room):
    """A small chat with a large other member."""
    kind = draw.randrange(7)
    body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    room -= 400
    if kind == 0:
        depth = min(room // 2, draw.choice([64, 120, 1000, 5000]))
        return json.dumps(body)[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}"
    if kind == 1:
        return json.dumps(body | {f"k{at}": at for at in range(room // 16)})
    if kind == 2:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        return json.dumps(body | {"tools": [tool] * (room // 110)})
    if kind == 3:
        part = {"type": "text", "text": "a"}
        return json.dumps(body | {"messages": [{"role": "user", "content": [part] * (room // 32)}]})
    if kind == 4:
        return json.dumps(body | {"stop": ["a"] * min(64, room // 6), "n": 1, "logit_bias": {str(at): 1 for at in range(room // 14)}})
    if kind == 5:
        return json.dumps(body)[:-1] + ', "x": ' + "9" * room + "}"
    return json.dumps(body)[:-1] + "".join(', "model": "sim"' for _ in range(room // 17)) + "}"


def ids(draw, room):
    unit = draw.choice([[1], [7, 8], [1999, 3], list(range(100, 164))])
    return (unit * room)[: room // 7]


KINDS = {
    "chat": lambda draw, room: ("/v1/chat/completions", *chat_body(draw, room)),
    "dry run": lambda draw, room: ("/v1/route", *chat_body(draw, room)),
    "messages": lambda draw, room: ("/v1/messages", *chat_body(draw, room)),
    "count of a message": lambda draw, room: ("/v1/messages/count_tokens", *chat_body(draw, room)),
    "text": lambda draw, room: text_of(draw, room, "/v1/completions", lambda text: {"prompt": text, "max_tokens": 1}),
    "tokenize": lambda draw, room: text_of(draw, room, "/tokenize", lambda text: {
        "prompt": text, "return_token_strs": draw.random() < 0.5}),
    "response": lambda draw, room: text_of(draw, room, "/v1/responses", lambda text: {"input": text,
                                                                                     "max_output_tokens": 1}),
    "ids": lambda draw, room: ("/v1/completions", {"model": "sim", "prompt": ids(draw, room - 100), "max_tokens": 1}, True),
    "detokenize": lambda draw, room: ("/detokenize", {"model": "sim", "tokens": ids(draw, room - 100)}, True),
    "batch": lambda draw, room: ("/v1/completions", {"model": "sim", "prompt": ["a"] * min(2048, (room - 100) // 5),
                                                     "max_tokens": 1}, True),
    "embeddings": lambda draw, room: ("/v1/embeddings", {"model": "sim", "input": ["a"] * min(2048, (room - 100) // 5)}, True),
    "structure": lambda draw, room: (draw.choice(["/v1/chat/completions", "/v1/route"]), structured(draw, room), True),
}


def text_of(draw, room, path, body):
    text, plain = filled(draw, room - 200)
    return path, {"model": "sim"} | body(text), plain


def request(path, body, plain, fields=""):
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=plain)
    data = text.encode()
    head = (f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{fields}"
            f"content-length: {len(data)}\r\n\r\n")
    return head.encode() + data


def built(kind, seed):
    """Returns the input of a seed; it is at most 10 KiB."""
    draw = random.Random(seed)
    fields = "".join(f"x-{at}: a\r\n" for at in range(90)) if draw.random() < 0.1 else ""
    return request(*KINDS[kind](draw, INPUT - 300 - len(fields)), fields)[:INPUT + 200]


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_reply(connection):
    """Reads one reply with a length; returns its status, and whether the connection goes on."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(connection)
    head, _, rest = data.partition(b"\r\n\r\n")
    head = head.lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    left = length - len(rest)
    while left > 0:
        left -= len(received(connection))
    return int(head[9:12]), b"connection: close" not in head


def received(connection):
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionResetError
    return data


def cpu_ns(pid):
    """Processor time of all threads, by the scheduler's own account."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="utf-8") as file:
            total += int(file.read().split()[0])
    return total


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * PAGE


def cost(fleet, data, repeats=REPEATS):
    """Returns the router's and this client's microseconds for one input, and the status of its reply."""
    connection, status = connect(fleet.data), 0
    status, keeps = exchange(connection, data)
    time.sleep(0.02)
    router, own = cpu_ns(fleet.router.pid), time.thread_time_ns()
    for _ in range(repeats):
        if not keeps:
            connection.close()
            connection = connect(fleet.data)
        status, keeps = exchange(connection, data)
    own = time.thread_time_ns() - own
    connection.close()
    # What runs behind the reply counts too.
    time.sleep(0.05)
    router = cpu_ns(fleet.router.pid) - router
    return router / repeats / 1e3, own / repeats / 1e3, status


def exchange(connection, data):
    connection.sendall(data)
    return read_reply(connection)


def search(fleet, seconds):
    """Returns the costliest inputs: ratio, kind, seed, router us, client us, status."""
    draw, best, tried, end = random.Random(1), [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        kind = draw.choice(list(KINDS))
        if best and draw.random() < 0.4:
            kind = draw.choice(best)[1]
        seed = draw.getrandbits(48)
        router, own, status = cost(fleet, built(kind, seed))
        tried += 1
        best.append((router / own, kind, seed, router, own, status))
        # The costliest input of each kind stays, so that the search does not end in one.
        best.sort(reverse=True)
        kinds = {}
        for row in best:
            kinds.setdefault(row[1], row)
        best = sorted(set(best[:BEST]) | set(kinds.values()), reverse=True)
    return best, tried


def held_inputs():
    """Inputs of which each connection holds one, by name."""
    text = "word " * 1900
    chat = {"model": "slow", "messages": [{"role": "user", "content": text}], "max_tokens": 5}
    letters = {"model": "slow", "prompt": list(range(100, 1900)), "max_tokens": 5}
    parts = {"model": "slow", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 290}]}
    whole = request("/v1/chat/completions", chat, True)
    return {
        "a head without its end": b"GET /v1/models HTTP/1.1\r\nhost: a\r\n" + b"x-a: " + b"a" * (INPUT - 60),
        "98 fields of a head without its end":
            b"GET /v1/models HTTP/1.1\r\nhost: a\r\n" + b"".join(b"x-%d: %s\r\n" % (at, b"a" * 90) for at in range(98)),
        "a body without its end": whole[:-1],
        "chunks of one byte without an end":
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 1690,
        "a chat that waits": whole,
        "a chat of many parts that waits": request("/v1/chat/completions", parts, True),
        "a chat of many messages that waits": request("/v1/chat/completions", chat | {
            "messages": [{"role": "user", "content": "a"}] * 290}, True),
        "ids that wait": request("/v1/completions", letters, True),
        "a stream that waits": request("/v1/chat/completions", chat | {"stream": True}, True),
    }


def held(fleet, data):
    """Returns the growth of resident memory for each of many connections with this input."""
    # What a first request costs is no cost of each.
    warm = [connect(fleet.data) for _ in range(8)]
    for connection in warm:
        connection.sendall(data)
    time.sleep(1)
    before = resident(fleet.router.pid)
    connections = [connect(fleet.data) for _ in range(HOLDERS)]
    for connection in connections:
        connection.sendall(data)
    time.sleep(2)
    grown = resident(fleet.router.pid) - before
    for connection in warm + connections:
        connection.close()
    return grown / HOLDERS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warmroute")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--base-port", type=int, default=22000)
    args = parser.parse_args()
    warmroute = os.path.abspath(args.warmroute)
    engines = [["--model", "sim", "--speed", "1000"], ["--model", "slow", "--speed", "0.0001"]]
    config = {"queue": {"wait": "600s"}}
    with tempfile.TemporaryDirectory() as folder:
        print("| input, one on each connection | bytes | KiB held by each |\n|---|--:|--:|")
        for number, (name, data) in enumerate(held_inputs().items()):
            # A fresh process: memory that an earlier input has freed would hide the growth.
            with Fleet(warmroute, f"{folder}/held-{number}", args.base_port, engines, config) as fleet:
                fleet.follow_events()
                print(f"| {name} | {len(data)} | {held(fleet, data) / 1024:.0f} |", flush=True)
        with Fleet(warmroute, f"{folder}/search", args.base_port, engines[:1], config) as fleet:
            fleet.follow_events()
            best, tried = search(fleet, args.seconds)
    print(f"\n{tried} inputs tried, {REPEATS} times each.\n")
    print("| kind | seed | bytes | status | router, us | client, us | ratio |\n|---|--:|--:|--:|--:|--:|--:|")
    for ratio, kind, seed, router, own, status in best:
        print(f"| {kind} | {seed} | {len(built(kind, seed))} | {status} | {router:.0f} | {own:.0f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
