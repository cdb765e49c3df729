#!/usr/bin/env python3
"""Measures programs as proxies between a load generator and four engines that cost next to nothing.

  bench/proxy/run.sh [--repetitions 3] [--only small,stream] [TARGET ...]

Writes results.json. Standard library only, Linux only. The proxy runs on one core, engines and load on another; each
repetition starts every target afresh, one after the other, so that a noisy time of the machine hits all.
"""

import argparse
import datetime
import http.client
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass

from programs import Program, busy_seconds, wait_until_quiet
from targets import ENGINES, TARGETS, Placeholders, Target

FORMAT = "proxy-bench/1"
# Longest time for a program's start and for one measurement, in seconds.
START_LIMIT, LOAD_LIMIT = 60, 75
# Two connections for each of the 3,000 streams of `stream_memory`, and some.
OPEN_FILES = 8_000
FIRST_REQUEST = b'{"model":"fake","messages":[{"role":"user","content":"hi"}],"max_tokens":1}'
MEMORY = "stream_memory"
MEMORY_STREAMS = (500, 1_500, 3_000)


@dataclass(frozen=True)
class Measurement:
    name: str
    # Options of bench-load; `{seconds}` is --seconds.
    load: str
    # Between two tokens, microseconds.
    delay_us: int = 0


MEASUREMENTS = [
    Measurement("small", "closed --connections 64 --seconds {seconds}"),
    Measurement("small_low_load", "open --rate 500 --connections 64 --seconds {seconds}"),
    Measurement("prompt_32k", "closed --connections 32 --seconds {seconds} --prompt 32768"),
    Measurement("prompt_32k_low_load", "open --rate 200 --connections 32 --seconds {seconds} --prompt 32768"),
    Measurement("prompt_400k", "closed --connections 16 --seconds {seconds} --prompt 409600"),
    Measurement("prompt_400k_low_load", "open --rate 40 --connections 16 --seconds {seconds} --prompt 409600"),
    Measurement("prompt_800k", "closed --connections 8 --seconds {seconds} --prompt 819200"),
    Measurement("stream", "closed --connections 64 --seconds {seconds} --stream --tokens 200"),
    Measurement("stream_low_load", "open --rate 100 --connections 64 --seconds {seconds} --stream --tokens 20", 5_000),
    Measurement("paced_streams", "paced --connections 1000 --seconds 7 --tokens 250 --ramp-ms 1000", 20_000),
]
WARM_UP = Measurement("warm_up", "closed --connections 32 --seconds 1")
NAMES = [measurement.name for measurement in MEASUREMENTS] + [MEMORY]
# Without a proxy there is no use of one to measure.
DIRECT = {"small_low_load", "prompt_32k_low_load", "prompt_400k_low_load", "stream_low_load", "paced_streams"}


def request(port, path, body=None):
    """Returns the status and the body of the reply."""
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    call = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers=headers)
    with urllib.request.urlopen(call, timeout=2) as reply:
        return reply.status, reply.read()


class Bench:
    """Starts engines, targets and loads by the options of the command line."""

    def __init__(self, args, targets):
        self.args, self.targets = args, targets
        self.placeholders = Placeholders(args)
        self.port, self.admin = args.base_port + 50, args.base_port + 51
        os.makedirs(args.out, exist_ok=True)

    def program(self, name):
        return os.path.join(self.args.programs, name)

    def log(self, name):
        return os.path.join(self.args.out, f"{name}.log")

    def start_engines(self):
        ports = ",".join(str(self.args.base_port + at) for at in range(ENGINES))
        command = [self.program("fake-engine"), "--ports", ports]
        engines = Program(self.args.load_core, command, self.log("engine"))
        for _ in range(100):
            try:
                request(self.args.base_port, "/health")
                return engines
            except OSError:
                time.sleep(0.02)
        engines.end()
        raise RuntimeError(f"the engines did not start, see {engines.log}")

    def set_delay(self, delay_us):
        """Sets the time between two tokens; returns the requests by engine since the last call."""
        return json.loads(request(self.args.base_port, f"/control?delay_us={delay_us}")[1])["requests"]

    def start(self, name):
        """Starts a target and waits for its first reply; returns it and the seconds that this took."""
        command = self.placeholders.command(self.targets[name])
        for port in (self.port, self.admin):
            # What listens there would be measured instead.
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    raise RuntimeError(f"port {port} is in use: give another --base-port")
        started = time.monotonic()
        proxy = Program(self.args.proxy_core, command, self.log(name))
        while time.monotonic() - started < START_LIMIT and proxy.is_running():
            try:
                if request(self.port, "/v1/chat/completions", FIRST_REQUEST)[0] == 200:
                    return proxy, round(time.monotonic() - started, 3)
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.01)
        proxy.end()
        raise RuntimeError(f"{name} did not answer within {START_LIMIT} s, see {proxy.log}")

    def start_load(self, options, proxy):
        port = self.port if proxy else self.args.base_port
        command = [self.program("bench-load")] + shlex.split(options) + ["--port", str(port)]
        return Program(self.args.load_core, command, self.log("load"), stdout=subprocess.PIPE)

    def measure(self, measurement, proxy, engines):
        """Runs one load; returns what the load generator counted and what the processes used."""
        self.set_delay(measurement.delay_us)
        noise = wait_until_quiet(self.args.quiet_wait)
        programs = [program for program in (proxy, engines) if program]
        before, busy, started = [p.cpu_seconds() for p in programs], busy_seconds(), time.monotonic()
        load = self.start_load(measurement.load.format(seconds=self.args.seconds), proxy)
        peak_kb = load_cpu = 0
        while load.is_running():
            if proxy:
                peak_kb = max(peak_kb, proxy.memory_kb())
            load_cpu = max(load_cpu, load.cpu_seconds())
            time.sleep(0.25)
            if time.monotonic() - started > LOAD_LIMIT:
                load.end()
        elapsed = time.monotonic() - started
        used = [p.cpu_seconds() - cpu for p, cpu in zip(programs, before)]
        others = busy_seconds() - busy - sum(used) - load_cpu
        row = load_report(load)
        row.update(
            requests_by_engine=self.set_delay(0), busy_cores_before=noise,
            busy_cores_of_others=round(max(0.0, others) / elapsed, 2), engine_cpu_s=round(used[-1], 2),
        )
        if proxy:
            row.update(cpu_s=round(used[0], 2), peak_mb=round(peak_kb / 1024, 1))
            for unit, count in (("request", row["ok"]), ("event", row["events"])):
                if count:
                    row[f"cpu_us_per_{unit}"] = round(used[0] / count * 1e6, 2)
        return row

    def measure_memory(self, name, streams):
        """Returns how much anonymous memory grows until `streams` paced streams are open, with fresh programs."""
        engines = proxy = load = None
        try:
            engines = self.start_engines()
            proxy, _ = self.start(name)
            time.sleep(2.5)
            self.set_delay(250_000)
            idle_kb = proxy.memory_kb("RssAnon")
            load = self.start_load(f"paced --connections {streams} --seconds 9 --tokens 40 --ramp-ms 3000", proxy)
            series = []
            limit = time.monotonic() + LOAD_LIMIT
            while load.is_running() and time.monotonic() < limit:
                time.sleep(0.4)
                series.append(proxy.memory_kb("RssAnon") - idle_kb)
            row = load_report(load)
        finally:
            for program in (load, proxy, engines):
                if program:
                    program.end()
        kept = {key: row[key] for key in ("events", "statuses", "errors")}
        return {"streams": streams, "idle_kb": idle_kb, "growth_kb": max(series), "series_kb": series, **kept}

    def run_target(self, name, rows):
        """Adds the rows of one target in one repetition; those before an error stay."""
        wanted = [m for m in MEASUREMENTS if m.name in self.args.only]
        direct = self.targets[name].command is None
        if direct:
            wanted = [measurement for measurement in wanted if measurement.name in DIRECT]
        proxy = engines = None
        try:
            if wanted:
                engines = self.start_engines()
                wait_until_quiet(self.args.quiet_wait)
                if not direct:
                    proxy, seconds = self.start(name)
                    idle_mb = round(proxy.memory_kb() / 1024, 1)
                    rows.append({"test": "start", "start_s": seconds, "idle_mb": idle_mb})
                self.measure(WARM_UP, proxy, engines)
            for measurement in wanted:
                rows.append({"test": measurement.name, **self.measure(measurement, proxy, engines)})
        finally:
            for program in (proxy, engines):
                if program:
                    program.end()
        if MEMORY in self.args.only and not direct:
            for streams in MEMORY_STREAMS:
                rows.append({"test": MEMORY, **self.measure_memory(name, streams)})


def load_report(load):
    output, _ = load.process.communicate(timeout=5)
    if not output.strip():
        raise RuntimeError(f"the load generator printed nothing, see {load.log}")
    return json.loads(output)


def machine():
    """Returns what figures depend on."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": models[0] if models else "unknown",
        "cores": os.cpu_count(),
    }


def allow_open_files():
    """Raises this process's limit of open files, which its children inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 60_000 if hard == resource.RLIM_INFINITY else min(hard, 60_000)
    if wanted < OPEN_FILES:
        sys.exit(f"measure.py: {wanted} files may be open: allow {OPEN_FILES} (ulimit -n)")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all by default: " + ", ".join(TARGETS))
    parser.add_argument("--warmroute", required=True, help="the program under test")
    parser.add_argument("--programs", required=True, help="folder of fake-engine and bench-load")
    parser.add_argument("--routers", default="target/routers", help="folder of the other routers' environments")
    parser.add_argument("--model", default="target/proxy/model", help="folder of make_tokenizer.py")
    parser.add_argument("--out", default="target/proxy/results", help="folder for logs and results.json")
    parser.add_argument("--command", action="append", default=[], metavar="NAME=COMMAND", help="adds a target")
    parser.add_argument("--only", help="measurements, by default all: " + ",".join(NAMES))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement that has no time of its own")
    parser.add_argument("--quiet-wait", type=float, default=4, help="longest wait for other work to end, seconds")
    parser.add_argument("--proxy-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--base-port", type=int, default=9_101, help="the first of 52 ports")
    args = parser.parse_args()
    targets = dict(TARGETS)
    for added in args.command:
        name, separator, command = added.partition("=")
        if not separator:
            parser.error(f"--command is {added}: give NAME=COMMAND")
        targets[name] = Target(name, command)
    args.targets = args.targets or list(targets)
    args.only = args.only.split(",") if args.only else NAMES
    for kind, given, known in (("target", args.targets, targets), ("measurement", args.only, NAMES)):
        for name in given:
            if name not in known:
                parser.error(f"unknown {kind} {name}: expected one of {', '.join(known)}")
    return args, targets


def main():
    args, targets = options()
    allow_open_files()
    # So that what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(args, targets)
    results = {
        "format": FORMAT,
        "machine": machine(),
        "settings": {"seconds": args.seconds, "repetitions": args.repetitions},
        "targets": {
            name: {"label": targets[name].label, "version": bench.placeholders.version(targets[name])}
            for name in args.targets
        },
        "rows": [],
    }
    file_of_results = os.path.join(args.out, "results.json")
    # Those of an earlier run are not taken for this one's.
    if os.path.exists(file_of_results):
        os.remove(file_of_results)
    failed = False
    for repetition in range(args.repetitions):
        for name in args.targets:
            started, rows = time.monotonic(), []
            try:
                bench.run_target(name, rows)
            except (OSError, RuntimeError, subprocess.SubprocessError, ValueError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
            results["rows"] += [{"target": name, "repetition": repetition, **row} for row in rows]
            # After each target, so that an interrupted run leaves the others.
            with open(file_of_results, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1)
            seconds = round(time.monotonic() - started)
            print(f"repetition {repetition + 1}: {name} took {seconds} s", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
