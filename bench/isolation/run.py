#!/usr/bin/env python3
"""Whether one tenant can tell which prompts another one has sent (goal G18, threat S55).

  python3 bench/isolation/run.py WARMROUTE [--probes 50000] [--isolation salted] [--blank]

WARMROUTE is the program. It is started as simulated engines with a prefix cache and as a router in front of them, on
loopback. Tenant A sends prompts, and some of them again: the positive control. Tenant B then sends pairs of probes, a
prompt that A has sent and one that nobody has sent, in random order, to `/v1/route` and as chats. All prompts have
the same length. Compared are the cached tokens (predicted and reported), everything else in the replies that does not
name the request or a time, exactly; and the time until the reply, by a two-sample Kolmogorov-Smirnov test. Exit code 1 if
something differs. `--isolation shared` is the control of the method: there it must. With `--blank` A sends other prompts
than B probes, so that nothing can differ but by the measurement itself. Standard library only.
"""

import argparse
import collections
import http.client
import json
import math
import os
import random
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from fleet import Fleet, percentile

# Each is one token with the space before it, so that all prompts have as many bytes and tokens.
VOCABULARY = ("self with that name read text what path from over body else head list back host time only this".split())
# More than 4 KiB: the router remembers chats from there on.
WORDS = 900
# Prompts of A and pairs of probes between two controls; every fifth prompt of A is a control.
ROUND, CONTROL_STEP = 250, 5
ROUTE, CHAT = "/v1/route", "/v1/chat/completions"
# Least p of the test, and least share of A's own repeats that must be found cached.
LEAST_P, LEAST_HITS = 0.01, 0.99
# Members of replies and headers that name the request, its prompt or a time; a cost follows the workers' measured speed,
# which changes by the moment, so costs are compared as distributions.
OWN_MEMBERS = {"request_id", "decision_id", "id", "created", "at", "timing", "session", "content", "cost", "terms"}
OWN_HEADERS = {"date", "x-request-id", "x-warmroute-decision", "content-length", "server-timing"}


class Client:
    """One connection with a tenant's key."""

    def __init__(self, port, key):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}

    def send(self, path, body):
        """Returns the reply with its headers, and the ms until it was read."""
        started = time.perf_counter()
        self.connection.request("POST", path, body, self.headers)
        reply = self.connection.getresponse()
        data = reply.read()
        took = (time.perf_counter() - started) * 1e3
        if reply.status != 200:
            raise RuntimeError(f"{path}: status {reply.status}: {data[:300]}")
        return json.loads(data), reply.getheaders(), took


def chat(draw):
    # The first word has no space before it.
    text = " ".join(VOCABULARY[:1] + draw.choices(VOCABULARY, k=WORDS))
    return json.dumps({"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 1,
                       "ignore_eos": True}).encode()


def without_own(value):
    """Returns a reply without what names the request, its prompt or a time, and without the generated text."""
    if isinstance(value, dict):
        return {key: without_own(member) for key, member in value.items()
                if key not in OWN_MEMBERS and not key.endswith(("_ms", "_us", "_at"))}
    if isinstance(value, list):
        return [without_own(item) for item in value]
    return value


def visible(path, reply, headers):
    """Returns all that the tenant sees except for times, as text."""
    shown = sorted((name.lower(), value) for name, value in headers if name.lower() not in OWN_HEADERS)
    body = without_own(reply)
    if path == ROUTE:
        # The order of candidates says nothing.
        body["candidates"].sort(key=lambda candidate: json.dumps(candidate["target"]))
    return json.dumps([shown, body], sort_keys=True)


def cached_tokens(path, reply):
    if path == ROUTE:
        return sum(candidate["predicted_cached_tokens"] for candidate in reply["candidates"])
    return (reply["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def kolmogorov_smirnov(one, other):
    """Returns the largest distance of the two distributions, and its p by the asymptotic formula."""
    merged = sorted([(value, 0) for value in one] + [(value, 1) for value in other])
    seen, distance, at = [0, 0], 0.0, 0
    while at < len(merged):
        value = merged[at][0]
        while at < len(merged) and merged[at][0] == value:
            seen[merged[at][1]] += 1
            at += 1
        distance = max(distance, abs(seen[0] / len(one) - seen[1] / len(other)))
    effective = math.sqrt(len(one) * len(other) / (len(one) + len(other)))
    scaled = (effective + 0.12 + 0.11 / effective) * distance
    if scaled < 0.2:
        return distance, 1.0
    p = 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return distance, min(1.0, max(0.0, p))


class Probes:
    """What the probes of one kind and path showed."""

    def __init__(self):
        self.times, self.costs, self.cached, self.seen = [], [], 0, collections.Counter()

    def add(self, path, reply, headers, took):
        self.times.append(took)
        self.cached += cached_tokens(path, reply)
        winners = (candidate for candidate in reply.get("candidates", []) if candidate["rank"] == 1)
        self.costs += [candidate["cost"] for candidate in winners]
        self.seen[visible(path, reply, headers)] += 1


class Run:
    def __init__(self, fleet, pairs, blank):
        self.blank = blank
        self.owner, self.other = Client(fleet.data, "sk-a"), Client(fleet.data, "sk-b")
        self.draw, self.pairs = random.Random(1), pairs
        self.results = {(path, kind): Probes() for path in (ROUTE, CHAT) for kind in ("used", "unused")}
        self.controls, self.hits, self.chat_hits, self.differing = 0, 0, 0, []

    def round(self, count):
        used = [chat(self.draw) for _ in range(count)]
        sent = [chat(self.draw) for _ in range(count)] if self.blank else used
        for body in sent:
            self.owner.send(CHAT, body)
        for body in sent[::CONTROL_STEP]:
            # A worker that is slow at the moment may not get the chat, although it has the prompt: both are counted.
            shown, reply = (self.owner.send(path, body)[0] for path in (ROUTE, CHAT))
            self.controls += 1
            self.hits += cached_tokens(ROUTE, shown) > 0
            self.chat_hits += cached_tokens(CHAT, reply) > 0
        for at, body in enumerate(used):
            path = (ROUTE, CHAT)[at % 2]
            pair = [("used", body), ("unused", chat(self.draw))]
            self.draw.shuffle(pair)
            shown = {kind: self.probe(path, kind, body) for kind, body in pair}
            if path == ROUTE and shown["used"] != shown["unused"]:
                self.differing.append(shown)

    def probe(self, path, kind, body):
        reply, headers, took = self.other.send(path, body)
        self.results[path, kind].add(path, reply, headers, took)
        return visible(path, reply, headers)

    def run(self):
        done = 0
        while done < self.pairs:
            count = min(ROUND, self.pairs - done)
            self.round(count)
            done += count
            print(f"\r{2 * done} probes", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)


def report(run):
    """Prints the tables; returns what does not hold."""
    wrong = []
    share = run.hits / run.controls
    print(f"Positive control: A's own repeats are found cached by {run.hits} of {run.controls} dry runs ({share:.2%}) and "
          f"in {run.chat_hits} chats.\n")
    if share < LEAST_HITS:
        wrong.append("the positive control fails")
    print("| path | probes | cached tokens, used | unused | different replies, used | unused | in common | "
          "p50 used, ms | p50 unused, ms | KS distance | p |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for path in (ROUTE, CHAT):
        used, unused = run.results[path, "used"], run.results[path, "unused"]
        distance, p = kolmogorov_smirnov(used.times, unused.times)
        common = len(used.seen.keys() & unused.seen.keys())
        print(f"| `{path}` | {len(used.times) + len(unused.times)} | {used.cached} | {unused.cached} | {len(used.seen)} | "
              f"{len(unused.seen)} | {common} | {percentile(used.times, 0.5):.3f} | {percentile(unused.times, 0.5):.3f} | "
              f"{distance:.4f} | {p:.3f} |")
        if used.cached or unused.cached:
            wrong.append(f"{path}: cached tokens of another tenant")
        if used.seen.keys() != unused.seen.keys():
            wrong.append(f"{path}: replies that only one kind of probe got, as {example(used, unused)}")
        if p <= LEAST_P:
            wrong.append(f"{path}: the times differ, p = {p:.2g}")
    used, unused = run.results[ROUTE, "used"], run.results[ROUTE, "unused"]
    distance, p = kolmogorov_smirnov(used.costs, unused.costs)
    print(f"\nThe winner's cost: KS distance {distance:.4f}, p {p:.3f}.")
    if p <= LEAST_P:
        wrong.append(f"the costs differ, p = {p:.2g}")
    print(f"\nPairs of dry runs whose replies differ: {len(run.differing)}.")
    if run.differing:
        wrong.append(f"pairs differ, as {run.differing[0]}")
    return wrong


def example(used, unused):
    return sorted(used.seen.keys() ^ unused.seen.keys())[0][:2000]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warmroute")
    parser.add_argument("--probes", type=int, default=50_000)
    parser.add_argument("--isolation", choices=["salted", "shared"], default="salted")
    parser.add_argument("--blank", action="store_true")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--base-port", type=int, default=21400)
    args = parser.parse_args()
    config = {"tenants": {"isolation": args.isolation,
                          "api_keys": [{"name": name, "key": f"sk-{name}"} for name in "ab"]}}
    # Its own time is short beside the router's, and a block stays long enough for the probes of a round.
    flags = ["--model", "sim", "--speed", "1000", "--kv-blocks", "200000"]
    warmroute = os.path.abspath(args.warmroute)
    with tempfile.TemporaryDirectory() as folder:
        with Fleet(warmroute, f"{folder}/isolation", args.base_port, [flags] * args.engines, config) as fleet:
            fleet.follow_events()
            run = Run(fleet, args.probes // 2, args.blank)
            run.run()
            wrong = report(run)
    for what in wrong:
        print(f"\n{what}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
