#!/usr/bin/env python3
"""What one client that holds all of its limits costs the others (goal G17).

  python3 bench/hostile/neighbour.py WARMROUTE [--pairs 6] [--seconds 20]

WARMROUTE is the program. It is started as three simulated engines and as a router in front of them, on loopback. Tenant A
sends a small chat every 20 ms. Tenant B, from another address, holds what it may: idle connections up to its share,
streams that it does not read, bodies that arrive slowly, the places in the queue of a slow model, and its rate of requests
on top. Windows alternate, alone and beside B, in pairs; printed are A's times in both. A sends to an engine of its own:
what engines share between their requests is not the router's. Standard library only.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from fleet import Fleet, get_json, percentile

PAUSE = 0.02
# What B holds: connections in all, streams, bodies and their bytes, and requests that wait.
CONNECTIONS, STREAMS, BODIES, BODY, WAITING = 1024, 32, 14, 3 << 20, 64
RATE = 20
CONFIG = {
    "server": {"max_connections": CONNECTIONS, "max_held_bytes": "64MiB", "max_body_bytes": "32MiB",
               "body_timeout": "600s", "keep_alive": "600s"},
    "queue": {"wait": "600s"},
    "tenants": {"api_keys": [
        {"name": "a", "key": "sk-a"},
        {"name": "b", "key": "sk-b", "rate_limit_rps": RATE, "max_concurrent": STREAMS + BODIES + WAITING + 4},
    ]},
}
ENGINES = [["--model", "quick", "--speed", "1000"], ["--model", "streams", "--speed", "0.05"],
           ["--model", "slow", "--speed", "0.001"]]


def chat(model, words, output, stream=False):
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "word " * words}], "max_tokens": output,
                       "ignore_eos": True, "stream": stream}).encode()


def request(body, length=None):
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: sk-b\r\n"
            f"content-type: application/json\r\ncontent-length: {length or len(body)}\r\n\r\n")
    return head.encode() + body


class Holder:
    """Tenant B: everything that it holds."""

    def __init__(self, port):
        self.port, self.held, self.bodies = port, [], []

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30, source_address=("127.0.0.2", 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.held.append(connection)
        return connection

    def paced(self, data):
        """Sends a request below the tenant's rate."""
        connection = self.connect()
        connection.sendall(data)
        time.sleep(1.05 / RATE)
        return connection

    def hold(self):
        for _ in range(STREAMS):
            connection = self.paced(request(chat("streams", 20, 100_000, True)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(WAITING + 1):
            self.paced(request(chat("slow", 400, 4)))
        for _ in range(BODIES):
            body = self.paced(request(b'{"model": "slow", "x": "', 16 << 20))
            body.sendall(b"a" * BODY)
            self.bodies.append(body)
        while len(self.held) < CONNECTIONS:
            connection = self.connect()
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")

    def run(self, ready):
        self.hold()
        ready.set()
        data = request(chat("slow", 400, 4))
        spare, at = self.connect(), 0
        while True:
            at += 1
            # Faster than the least speed of a body.
            if at % RATE == 0:
                for body in self.bodies:
                    body.sendall(b"a" * 2048)
            spare.sendall(data)
            spare.recv(1 << 16)
            time.sleep(1 / RATE)


def hold(port, ready):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Holder(port).run(ready)


def window(port, seconds):
    """Returns A's times in ms, each from its request to the end of the reply."""
    body, times = chat("quick", 20, 1), []
    headers = {"content-type": "application/json", "x-api-key": "sk-a"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, headers)
        reply = connection.getresponse()
        reply.read()
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status} for A")
        times.append((time.perf_counter() - started) * 1e3)
        time.sleep(max(0.0, PAUSE - (time.perf_counter() - started)))
    connection.close()
    return times


def metric(admin, name):
    connection = http.client.HTTPConnection("127.0.0.1", admin, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)


def beside(fleet, seconds):
    """Returns A's times beside B, and what B held."""
    ready = multiprocessing.Event()
    holder = multiprocessing.Process(target=hold, args=(fleet.data, ready))
    holder.start()
    try:
        if not ready.wait(120):
            raise RuntimeError("B does not hold its limits")
        time.sleep(1)
        times = window(fleet.data, seconds)
        row = next(row for row in get_json(fleet.admin, "/admin/tenants")["tenants"] if row["name"] == "b")
        held = {"in flight": row["in_flight"], "queued": row.get("queued"),
                "MiB of bodies": round(metric(fleet.admin, "warmroute_held_body_bytes") / 2**20),
                "refused": row.get("limited") or row.get("rate_limited")}
        return times, held
    finally:
        holder.terminate()
        holder.join()
        time.sleep(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warmroute")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--base-port", type=int, default=22300)
    args = parser.parse_args()
    alone, with_b = [], []
    with tempfile.TemporaryDirectory() as folder:
        with Fleet(os.path.abspath(args.warmroute), f"{folder}/neighbour", args.base_port, ENGINES, CONFIG) as fleet:
            fleet.follow_events()
            window(fleet.data, 5)
            print("| pair | alone p50, ms | p99, ms | beside B p50, ms | p99, ms | p99, of alone | B held |")
            print("|--:|--:|--:|--:|--:|--:|---|")
            for pair in range(args.pairs):
                # In turn, so that a drift of the machine is no difference.
                if pair % 2 == 0:
                    one, (two, held) = window(fleet.data, args.seconds), beside(fleet, args.seconds)
                else:
                    (two, held), one = beside(fleet, args.seconds), window(fleet.data, args.seconds)
                alone.append(one)
                with_b.append(two)
                ratio = percentile(two, 0.99) / percentile(one, 0.99)
                shown = ", ".join(f"{name} {value}" for name, value in held.items())
                print(f"| {pair + 1} | {percentile(one, 0.5):.2f} | {percentile(one, 0.99):.2f} | {percentile(two, 0.5):.2f} | "
                      f"{percentile(two, 0.99):.2f} | {ratio:.2f} | {shown} |", flush=True)
    ratios = [percentile(two, 0.99) / percentile(one, 0.99) for one, two in zip(alone, with_b)]
    one, two = sum(alone, []), sum(with_b, [])
    print(f"\nAll windows: {len(one)} and {len(two)} requests; p99 {percentile(one, 0.99):.2f} ms alone and "
          f"{percentile(two, 0.99):.2f} ms beside B, {percentile(two, 0.99) / percentile(one, 0.99):.3f} times; median of the "
          f"pairs' ratios {statistics.median(ratios):.3f}.")


if __name__ == "__main__":
    main()
