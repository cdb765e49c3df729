#!/usr/bin/env python3
"""Plays the chats of coding agents through routers in front of simulated engines, one router after the other.

  bench/conversations/run.sh [--sessions 16] [--turns 20] [--trace FILE] [TARGET ...]

Each target gets fresh engines. A session is a closed loop: its next request starts when the reply before it has ended.
Printed for each target: processor time of the router per request, cached prompt tokens by the engines' own usage, and
the time to the first token. Standard library only. The router runs on one core, everything else on the others.
"""

import argparse
import http.client
import json
import os
import queue
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time

from chats import Chats, text_of

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from processes import cpu_seconds, family

ENGINES = 4
BLOCK_TOKENS = 256
# Longest time for one reply, for a program's start and for one target, in seconds.
REPLY_LIMIT, START_LIMIT, TARGET_LIMIT = 60, 90, 900

TARGETS = {
    "warmroute": "{warmroute} serve --listen 127.0.0.1:{port} --admin-listen 127.0.0.1:{admin} {workers}",
    "warmroute-round-robin": "{warmroute} serve --listen 127.0.0.1:{port} --admin-listen 127.0.0.1:{admin} "
    "--policy round_robin {workers}",
    "smg": "{peers}/smg/bin/smg launch --host 127.0.0.1 --port {port} --prometheus-host 127.0.0.1 "
    "--prometheus-port {admin} --log-level warn --worker-urls {urls} --policy cache_aware",
    "sglang-router": "{peers}/sglang-router/bin/sglang-router launch --host 127.0.0.1 --port {port} "
    "--prometheus-host 127.0.0.1 --prometheus-port {admin} --log-level warn --worker-urls {urls} --policy cache_aware",
    "vllm-router": "{peers}/vllm-router/bin/vllm-router --host 127.0.0.1 --port {port} --prometheus-host 127.0.0.1 "
    "--prometheus-port {admin} --log-level warning --worker-urls {urls} --policy cache_aware",
}


class Program:
    """A process of its own group, pinned to cores, that ends with this object."""

    def __init__(self, command, cores, log):
        self.log = open(log, "w", encoding="utf-8")
        self.process = subprocess.Popen(
            ["taskset", "-c", cores] + command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )

    def cpu_seconds(self):
        """Returns user and system time of the process and its children."""
        return sum(cpu_seconds(pid) for pid in family(self.process.pid))

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()


def post(port, path, body):
    """Sends a request; returns the reply. The caller closes the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REPLY_LIMIT)
    connection.request("POST", path, body, {"content-type": "application/json"})
    return connection, connection.getresponse()


def wait_until_served(program, port, model, name):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end and program.process.poll() is None:
        try:
            connection, reply = post(port, "/v1/chat/completions", body)
            status = reply.status
            connection.close()
            if status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{name} did not answer within {START_LIMIT} s, see {program.log.name}")


def bytes_of_a_block(port, model):
    """Returns how many bytes of generated text have the tokens of one block, by an engine's tokenizer."""
    sample = text_of(0, 40_000)
    connection, reply = post(port, "/tokenize", json.dumps({"model": model, "prompt": sample}))
    count = json.loads(reply.read())["count"]
    connection.close()
    return round(len(sample) / count * BLOCK_TOKENS)


class Play:
    """Plays sessions against one address and adds up what the replies say."""

    def __init__(self, port, model):
        self.port, self.model = port, model
        self.first_token_ms, self.prompt_tokens, self.cached_tokens = [], 0, 0
        self.requests, self.failures = 0, []
        self.lock = threading.Lock()

    def session(self, chats, turns, end):
        for messages, output_tokens in turns:
            if time.monotonic() > end:
                return
            body = chats.body(messages, self.model, min(output_tokens, 32))
            started = time.monotonic()
            try:
                first, usage = self.reply(body, started)
            except (OSError, http.client.HTTPException, ValueError) as error:
                with self.lock:
                    self.failures.append(repr(error)[:200])
                continue
            with self.lock:
                self.requests += 1
                self.first_token_ms.append(first)
                self.prompt_tokens += usage["prompt_tokens"]
                self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def reply(self, body, started):
        """Returns the ms until the first event, and the usage."""
        connection, reply = post(self.port, "/v1/chat/completions", body)
        try:
            if reply.status != 200:
                raise ValueError(f"status {reply.status}: {reply.read(300)}")
            first, usage = None, None
            for line in reply:
                if not line.startswith(b"data:"):
                    continue
                if first is None:
                    first = (time.monotonic() - started) * 1e3
                if b'"usage"' in line:
                    usage = json.loads(line[5:]).get("usage") or usage
            if usage is None:
                raise ValueError("the reply has no usage")
            return first, usage
        finally:
            connection.close()


def play(args, name, folder):
    """Plays the sessions through one target and returns a row of the table."""
    programs, ports = [], [args.base_port + at for at in range(ENGINES)]
    port, admin = args.base_port + 50, args.base_port + 51
    try:
        for at, engine in enumerate(ports):
            command = [
                args.warmroute, "engine", "--port", str(engine), "--model", "sim", "--max-model-len", "262144",
                "--kv-blocks", str(args.kv_blocks), "--profile", "8b-h200", "--speed", str(args.speed),
                "--kv-events", f"tcp://127.0.0.1:{args.base_port + 100 + at}",
                "--replay", f"tcp://127.0.0.1:{args.base_port + 200 + at}",
            ]
            programs.append(Program(command, args.load_cores, f"{folder}/engine-{at}.log"))
        for engine, program in zip(ports, list(programs)):
            wait_until_served(program, engine, "sim", "an engine")
        chats = Chats(args.trace, bytes_of_a_block(ports[0], "sim"), BLOCK_TOKENS)
        urls = [f"http://127.0.0.1:{engine}" for engine in ports]
        command = TARGETS[name].format(
            port=port, admin=admin, urls=" ".join(urls), workers=" ".join(f"-w {url}" for url in urls),
            warmroute=args.warmroute, peers=args.peers,
        )
        router = Program(shlex.split(command), args.router_core, f"{folder}/{name}.log")
        programs.append(router)
        wait_until_served(router, port, "sim", name)
        time.sleep(1)
        return measured(args, name, chats, router, Play(port, "sim"))
    finally:
        for program in programs:
            program.end()


def measured(args, name, chats, router, player):
    todo = queue.SimpleQueue()
    for turns in list(chats.sessions.values())[: args.sessions]:
        todo.put(turns[: args.turns])
    end = time.monotonic() + TARGET_LIMIT

    def client():
        while True:
            try:
                turns = todo.get_nowait()
            except queue.Empty:
                return
            player.session(chats, turns, end)

    before, started = router.cpu_seconds(), time.monotonic()
    clients = [threading.Thread(target=client) for _ in range(args.concurrent)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    cpu = router.cpu_seconds() - before
    for failure in sorted(set(player.failures)):
        print(f"{name}: {failure}", file=sys.stderr)
    if not player.requests:
        raise RuntimeError(f"{name} answered no request")
    return {
        "router": name,
        "requests": player.requests,
        "failures": len(player.failures),
        "mean_prompt_tokens": round(player.prompt_tokens / player.requests),
        "cpu_us_per_request": round(cpu / player.requests * 1e6),
        "cached_ratio": round(player.cached_tokens / player.prompt_tokens, 4),
        "ttft_p50_ms": round(statistics.median(player.first_token_ms), 1),
        "seconds": round(time.monotonic() - started, 1),
    }


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS))
    options.add_argument("--trace", required=True, help="claude-code-sessions.jsonl, also as .zst")
    options.add_argument("--warmroute", required=True, help="the program under test, which also has the engines")
    options.add_argument("--peers", default="target/routers", help="folder of the peers' environments")
    options.add_argument("--out", default="target/conversations/logs", help="folder for logs and rows.jsonl")
    options.add_argument("--sessions", type=int, default=16)
    options.add_argument("--turns", type=int, default=20, help="most requests of a session")
    options.add_argument("--concurrent", type=int, default=8, help="sessions at once")
    options.add_argument("--kv-blocks", type=int, default=32_768, help="blocks of 16 tokens of each engine")
    options.add_argument("--speed", type=float, default=10.0, help="divides the engines' durations")
    options.add_argument("--router-core", default="0")
    options.add_argument("--load-cores", default="1")
    options.add_argument("--base-port", type=int, default=18_100)
    args = options.parse_args()
    unknown = [name for name in args.targets if name not in TARGETS]
    if unknown:
        options.error(f"unknown target {unknown[0]}: expected one of {', '.join(TARGETS)}")
    os.makedirs(args.out, exist_ok=True)
    os.sched_setaffinity(0, {int(core) for core in args.load_cores.split(",")})
    rows = []
    for name in args.targets:
        try:
            rows.append(play(args, name, args.out))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            continue
        with open(f"{args.out}/rows.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        print("| " + " | ".join(str(value) for value in rows[-1].values()) + " |", flush=True)
    return 0 if len(rows) == len(args.targets) else 1


if __name__ == "__main__":
    sys.exit(main())
