#!/usr/bin/env python3
"""Prints the tables of docs/benchmarks/path.md from results: medians, behind them the ratio to nginx of the same run.

  tables.py results.json
"""

import argparse
import sys

from measure import MEMORY, MEMORY_STREAMS
from results import Results

COSTS = [
    ("small", "small", "cpu_us_per_request"),
    ("32 KB", "prompt_32k", "cpu_us_per_request"),
    ("400 KB", "prompt_400k", "cpu_us_per_request"),
    ("800 KB", "prompt_800k", "cpu_us_per_request"),
    ("event of a stream", "stream", "cpu_us_per_event"),
]
LATENCIES = [
    ("small, 500 a second", "small_low_load", "reply_us"),
    ("32 KB, 200 a second", "prompt_32k_low_load", "reply_us"),
    ("400 KB, 40 a second", "prompt_400k_low_load", "reply_us"),
    ("first event of a stream, 100 a second", "stream_low_load", "first_byte_us"),
]


def figure(value):
    """Returns three digits of a number, or all of a large one."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(value, base):
    if value is None or not base:
        return ""
    share = value / base
    if share >= 10:
        return f" ({share:.0f})"
    return f" ({share:.1f})" if share >= 1 else f" ({share:.2f})"


def with_ratio(target, value, nginx):
    return figure(value) + ("" if target in ("nginx", "direct") else ratio(value, nginx))


def table(heads, rows):
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def costs(results):
    rows = []
    for target in results.targets:
        if target == "direct":
            continue
        cells = [
            with_ratio(target, results.median(target, test, key), results.median("nginx", test, key))
            for _, test, key in COSTS
        ]
        gap = results.median(target, "paced_streams", "gap_us", "p99")
        cells.append(figure(gap / 1e3 if gap else None))
        cells += [figure(results.median(target, "start", key)) for key in ("idle_mb", "start_s")]
        rows.append([results.label(target)] + cells)
    heads = [head for head, _, _ in COSTS] + ["1,000 paced streams: gap p99 ms", "idle MB", "start s"]
    return table(heads, rows)


def latencies(results):
    rows = []
    for target in results.targets:
        cells = []
        for _, test, key in LATENCIES:
            nginx = results.median("nginx", test, key, "p50")
            cells.append(with_ratio(target, results.median(target, test, key, "p50"), nginx))
        rows.append([results.label(target)] + cells)
    return table([head for head, _, _ in LATENCIES], rows)


def memory(results):
    rows = []
    for target in results.targets:
        if not results.rows_of(target, MEMORY):
            continue
        growth = [results.growth_kb(target, streams) for streams in MEMORY_STREAMS]
        cells = [figure(kb / 1024 if kb is not None else None) for kb in growth]
        cells.append(with_ratio(target, results.kb_per_stream(target), results.kb_per_stream("nginx")))
        rows.append([results.label(target)] + cells)
    heads = [f"{streams:,} streams, MB" for streams in MEMORY_STREAMS] + ["KB per stream"]
    return table(heads, rows)


def faults(results):
    """Returns a line for each target with what went wrong and how busy other work kept the machine."""
    lines = []
    for target in results.targets:
        rows = results.rows_of(target)
        errors = sum(sum(row.get("errors", {}).values()) for row in rows)
        refused = sum(n for row in rows for status, n in row.get("statuses", {}).items() if status != "200")
        late = sum(row.get("timeouts", 0) for row in rows)
        busy = [row["busy_cores_of_others"] for row in rows if "busy_cores_of_others" in row]
        noise = f"; other work kept at most {max(busy)} cores busy" if busy else ""
        lines.append(f"- {target}: {errors} errors, {refused} replies other than 200, {late} late replies{noise}")
    return "\n".join(lines)


def document(results):
    machine, settings = results.machine, results.settings
    parts = [
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores; "
        f"medians of {settings['repetitions']} repetitions, {settings['seconds']} s each.",
        "CPU time of the proxy, microseconds per request and per event:",
        costs(results),
        "Time to the end of the reply, or to the first event, at low load, microseconds, p50:",
        latencies(results),
        "Growth of anonymous memory with paced streams:",
        memory(results),
        "Faults and noise:",
        faults(results),
    ]
    return "\n\n".join(parts) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("results")
    args = options.parse_args()
    sys.stdout.write(document(Results(args.results)))


if __name__ == "__main__":
    main()
