#!/usr/bin/env python3
"""Whether clients can make the router's metrics and listings grow (goal G22).

  python3 bench/hostile/labels.py WARMROUTE [--attempts 1000000]

WARMROUTE is the program. It is started as a simulated engine and as a router in front of it, on loopback. Each attempt
has a name of its own where a client can send one: a model, a path, a method, a key, a header, a field, an id, an encoding. Printed: how many
series the metrics have before and after, and how long and large a listing of ten rows is. Exit code 1 above 2,000
series or if a listing grows with what was sent. Standard library only.
"""

import argparse
import http.client
import json
import os
import socket
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from fleet import Fleet, percentile

MOST_SERIES = 2_000
# Requests that are sent before their replies are read.
BATCH = 50
LISTINGS = ["/admin/decisions?limit=10", "/admin/tenants?limit=10", "/admin/workers", "/admin/streams"]
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def post(path, body, fields=""):
    text = json.dumps(body)
    return (f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: sk-a\r\ncontent-type: application/json\r\n{fields}"
            f"content-length: {len(text)}\r\n\r\n{text}")


def get(path, fields="x-api-key: sk-a\r\n", method="GET"):
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}content-length: 0\r\n\r\n"


def attempt(number):
    """Returns a request with a name that no other has; by `number % len(KINDS)` at another place."""
    return KINDS[number % len(KINDS)](f"n{number:x}").encode()


KINDS = [
    lambda name: post("/v1/chat/completions", CHAT | {"model": name}),
    lambda name: post("/v1/embeddings", {"model": name, "input": "a"}),
    lambda name: post("/tokenize", {"model": name, "prompt": "a"}),
    lambda name: post("/v1/route", CHAT | {"model": name}),
    lambda name: post("/v1/route", CHAT | {"model": "sim", "policy": name}),
    lambda name: post("/v1/route", CHAT | {"model": "sim", "worker": name}),
    lambda name: post("/v1/route", CHAT | {"model": "sim", "user": name}, f"x-session-id: {name}\r\n"),
    lambda name: post("/v1/chat/completions", CHAT | {"model": "sim", "lora_path": name}),
    lambda name: post("/v1/chat/completions", CHAT | {"model": "sim", "n": name, name: 1}),
    lambda name: post("/v1/chat/completions", CHAT | {"model": "sim"}, f"content-encoding: {name}\r\n"),
    lambda name: post("/v1/responses", {"model": "sim", "input": "a", "previous_response_id": name}),
    lambda name: get(f"/v1/models/{name}"),
    lambda name: get(f"/v1/responses/{name}"),
    lambda name: get(f"/{name}"),
    lambda name: get(f"/v1/{name}/completions?{name}={name}"),
    lambda name: get("/v1/models", method=name.upper()),
    lambda name: get("/v1/models", f"x-api-key: {name}\r\n"),
    lambda name: get("/v1/models", f"x-api-key: sk-a\r\nx-request-id: {name}\r\nuser-agent: {name}\r\n"),
    lambda name: get("/v1/models", f"x-api-key: sk-a\r\nx-tenant: {name}\r\ntraceparent: {name}\r\nx-{name}: a\r\n"),
]


class Attacker:
    """One connection, opened again when the router closes it."""

    def __init__(self, port):
        self.port, self.socket, self.buffer = port, None, b""
        self.statuses = {}

    def send(self, requests):
        """Sends requests at once and reads their replies; returns how many were answered."""
        if not self.socket:
            self.socket, self.buffer = socket.create_connection(("127.0.0.1", self.port), timeout=60), b""
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.sendall(b"".join(requests))
            for done in range(len(requests)):
                if not self.reply():
                    break
            else:
                return len(requests)
        except ConnectionError:
            done = 0
        self.socket.close()
        self.socket = None
        # The one whose reply closed the connection was answered.
        return max(done, 1)

    def reply(self):
        """Reads one reply. Returns whether the connection goes on."""
        while b"\r\n\r\n" not in self.buffer:
            self.read()
        head, _, rest = self.buffer.partition(b"\r\n\r\n")
        head = head.lower()
        status = int(head[9:12])
        self.statuses[status] = self.statuses.get(status, 0) + 1
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        while len(rest) < length:
            self.buffer = b""
            self.read()
            rest += self.buffer
        self.buffer = rest[length:]
        return b"connection: close" not in head

    def read(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        self.buffer += data


def fetch(port, path):
    """Returns a reply of the operators' listener and the ms that it took."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    if reply.status != 200:
        raise RuntimeError(f"{path}: status {reply.status}: {body[:300]}")
    return body, (time.perf_counter() - started) * 1e3


def state(admin):
    """Returns the number of series, and bytes and median ms of each listing."""
    page, _ = fetch(admin, "/metrics")
    series = sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))
    listings = {}
    for path in LISTINGS:
        calls = [fetch(admin, path) for _ in range(21)]
        listings[path] = (len(calls[0][0]), percentile([took for _, took in calls], 0.5))
    return series, listings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warmroute")
    parser.add_argument("--attempts", type=int, default=1_000_000)
    parser.add_argument("--base-port", type=int, default=21700)
    args = parser.parse_args()
    config = {"tenants": {"api_keys": [{"name": name, "key": f"sk-{name}"} for name in "ab"]}}
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--model", "sim", "--speed", "1000"]
        with Fleet(os.path.abspath(args.warmroute), f"{folder}/labels", args.base_port, [flags], config) as fleet:
            fleet.follow_events()
            attacker = Attacker(fleet.data)
            # Each kind of series once, and as many rows as the listings show.
            send(attacker, 0, 40 * len(KINDS))
            before = state(fleet.admin)
            send(attacker, 40 * len(KINDS), args.attempts)
            after = state(fleet.admin)
    print(f"Attempts: {sum(attacker.statuses.values())}, by status {dict(sorted(attacker.statuses.items()))}.")
    print(f"Series: {before[0]} before, {after[0]} after.\n")
    print("| listing | bytes before | after | ms before | after |\n|---|--:|--:|--:|--:|")
    wrong = after[0] > MOST_SERIES
    for path, (length, took) in before[1].items():
        longer, slower = after[1][path]
        print(f"| `{path}` | {length} | {longer} | {took:.2f} | {slower:.2f} |")
        wrong |= longer > 2 * length + 1024
    sys.exit(1 if wrong else 0)


def send(attacker, first, end):
    while first < end:
        first += attacker.send([attempt(number) for number in range(first, min(first + BATCH, end))])


if __name__ == "__main__":
    main()
