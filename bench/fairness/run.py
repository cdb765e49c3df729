#!/usr/bin/env python3
"""One tenant with 51 agents beside one that asks a question at a time, over sockets.

  python3 bench/fairness/run.py WARMROUTE [--seconds 40] [--engines 2] [--speed 1] [--reply-tokens 100] [--svg FILE]

WARMROUTE is the program (target/release/warmroute). It is started as two simulated engines and as a router in front of
them, on loopback. Agents send their next request when the reply before it has ended, so 51 requests always run or wait.
Printed: time to the first token of the questions, and requests per second, of three runs: the questions alone, beside
the agents with all keys of one tenant, and beside the agents with two tenants; then how two tenants with agents share
the engines by their weights. `--svg` draws the times of the three runs (plot.py).

A question follows 0.1 to 0.5 s after the end of the reply before it, so the number of questions in a run depends on the
length of their replies: some 12 in 40 s beside the agents with 100 tokens, the default, and the p95 of so few is the
slowest of them. With fewer `--reply-tokens` there are more in the same time: the time to the first token does not count
the reply, but the asking tenant then receives less work. With more `--seconds` there are more and nothing else changes.
Standard library only.
"""

import argparse
import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import plot
from fleet import Fleet, percentile

# Tokens of the prompt that the agents share, of an agent's task, and of a question.
SYSTEM, TASK, QUESTION = 8000, 1500, 6000
AGENTS, AGENT_OUTPUT = 51, 100
# Tokens of a task and of a reply where tenants with agents are compared: more prompts than the engines can compute, or
# none would wait and there would be nothing to share.
LONG_TASK, SHORT_OUTPUT = 1500, 8
# Longest time for one reply, in seconds.
REPLY_LIMIT = 120
# Time of each run that only warms caches and rates, in seconds.
WARM_UP = 8


def request(port, key, prompt, output):
    """Sends a prompt of token ids; returns the ms until the first event of the reply, which is read to its end."""
    body = json.dumps({"model": "sim", "prompt": prompt, "max_tokens": output, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}})
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    started = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REPLY_LIMIT)
    try:
        connection.request("POST", "/v1/completions", body, headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {reply.read(300)}")
        first = None
        for line in reply:
            if first is None and line.startswith(b"data:"):
                first = (time.monotonic() - started) * 1e3
        return first
    finally:
        connection.close()


def ids(seed, count):
    draw = random.Random(seed)
    return [draw.randrange(1000, 100000) for _ in range(count)]


def tasks_of(name, system, length):
    """Yields prompts that no other client sends."""
    for number in range(10**9):
        yield system + ids(f"{name} {number}", length)


class Load:
    """Clients that send until the end of a run."""

    def __init__(self, port, seconds):
        self.port, self.started = port, time.monotonic()
        self.counted_from, self.end = self.started + WARM_UP, self.started + seconds
        self.lock, self.threads, self.failures = threading.Lock(), [], []
        self.ttft, self.done = {}, {}

    def client(self, name, key, prompts, output, pause):
        def run():
            for prompt in prompts:
                if time.monotonic() >= self.end:
                    return
                sent = time.monotonic()
                try:
                    first = request(self.port, key, prompt, output)
                except (OSError, RuntimeError, http.client.HTTPException) as error:
                    self.failures.append(repr(error)[:200])
                    return
                with self.lock:
                    if sent >= self.counted_from:
                        self.ttft.setdefault(name, []).append(first)
                    if self.counted_from <= time.monotonic() < self.end:
                        self.done[name] = self.done.get(name, 0) + 1
                if pause:
                    time.sleep(pause())
        thread = threading.Thread(target=run)
        thread.start()
        self.threads.append(thread)

    def agents(self, name, key, count, lengths=(TASK, AGENT_OUTPUT)):
        """Agents whose prompts begin alike for all tenants, so that no engine is better for one of them."""
        system, (task, output) = ids("system", SYSTEM), lengths
        for agent in range(count):
            self.client(name, key, tasks_of(f"{name} {agent}", system, task), output, None)

    def questions(self, key, output):
        draw = random.Random(1)
        prompts = (ids(f"question {number} {self.started}", QUESTION) for number in range(10**9))
        self.client("questions", key, prompts, output, lambda: draw.uniform(0.1, 0.5))

    def finish(self):
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise RuntimeError(f"{len(self.failures)} clients failed, as in: {self.failures[0]}")
        seconds = self.end - self.counted_from
        return {name: done / seconds for name, done in self.done.items()}


def run(args, folder, name, weights, fill):
    """Starts fresh programs, whose tenants have these weights; returns the load that `fill` put on them."""
    config = {"tenants": {"api_keys": [{"name": tenant, "key": f"sk-{tenant}", "weight": weight}
                                       for tenant, weight in weights.items()]}}
    flags = ["--model", "sim", "--max-model-len", "32768", "--kv-blocks", "25000", "--profile", "8b-h200",
             "--speed", str(args.speed)]
    with Fleet(args.warmroute, f"{folder}/{name}", args.base_port, [flags] * args.engines, config) as fleet:
        time.sleep(1)
        load = Load(fleet.data, args.seconds)
        fill(load)
        return load, load.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warmroute")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--speed", type=float, default=1)
    parser.add_argument("--reply-tokens", type=int, default=100, help="tokens of the reply to a question")
    parser.add_argument("--svg", metavar="FILE", help="file of the plot")
    parser.add_argument("--base-port", type=int, default=21100)
    args = parser.parse_args()
    args.warmroute = os.path.abspath(args.warmroute)
    with tempfile.TemporaryDirectory() as folder:
        print(f"{args.engines} engines of profile 8b-h200 at speed {args.speed:g}, {args.seconds:g} s for each run.\n")
        print("| run | questions | TTFT p50, ms | p95, ms | p95, of alone | questions/s | agents' requests/s |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        figures = []
        for name, (key, agents) in zip(plot.RUNS, [("asking", 0), ("agents", AGENTS), ("asking", AGENTS)]):
            def fill(load, key=key, agents=agents):
                load.agents("agents", "sk-agents", agents)
                load.questions(f"sk-{key}", args.reply_tokens)
            load, rates = run(args, folder, name.replace(" ", "-"), {"asking": 1, "agents": 1}, fill)
            ttft = load.ttft["questions"]
            p50, p95 = percentile(ttft, 0.5), percentile(ttft, 0.95)
            figures.append((p50, p95))
            print(f"| {name} | {len(ttft)} | {p50:.0f} | {p95:.0f} | {p95 / figures[0][1]:.2f} | "
                  f"{rates.get('questions', 0):.2f} | {rates.get('agents', 0):.2f} |", flush=True)
        if args.svg:
            plot.write(args.svg, figures)
        print("\n| weights | requests/s | over the weight | Jain index |")
        print("|---|---|---|--:|")
        for weights in ({"one": 1, "two": 1}, {"one": 1, "two": 3}):
            def fill(load, weights=weights):
                for tenant in weights:
                    load.agents(tenant, f"sk-{tenant}", AGENTS, (LONG_TASK, SHORT_OUTPUT))
            _, rates = run(args, folder, "weights", weights, fill)
            shares = [rates[tenant] / weight for tenant, weight in weights.items()]
            jain = sum(shares) ** 2 / len(shares) / sum(share * share for share in shares)
            show = lambda values: ", ".join(f"{value:.2f}" for value in values)
            print(f"| {show(weights.values())} | {show(rates[tenant] for tenant in weights)} | {show(shares)} | "
                  f"{jain:.3f} |", flush=True)


if __name__ == "__main__":
    main()
