"""What a decision costs in Python, beside the same decision in Rust; all in one run, with two simulated engines:

    cargo build --profile dist -p warmroute --example embedded_decision
    python python/bench/decision_cost.py target/dist/examples/embedded_decision

``--threads-only TOKENS`` compares 8 threads with one over prompts of that length alone, and runs nothing else.

With a wheel of the same profile (python/build-wheel --release) and numpy. Aims: a list of 1,000 tokens costs at most
15 us more than Rust, a buffer at most 2 us; 8 threads on 2 cores decide at least 1.7 times as often as one; after
1,000,000 decisions that are tracked and freed there is no load left, and no more memory than before.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy

from warmroute import Router

TOKENS = 1_000
# For threads also a prompt whose decision is mostly work without the interpreter's lock.
LONG = 16_000
# Parts of the calls, of which the fastest counts.
PARTS = 10


@contextmanager
def engines(count: int) -> Iterator[list[str]]:
    """Runs simulated engines, and gives them as arguments of a router."""
    programs = []
    try:
        for _ in range(count):
            free = "tcp://127.0.0.1:0"
            ports = ["--port", "0", "--kv-events", free, "--replay", free]
            command = [sys.executable, "-m", "warmroute", "engine", *ports, "--print-ready"]
            programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        workers = []
        for program in programs:
            assert program.stdout is not None
            workers.append(f"w{len(workers) + 1}=http://{json.loads(program.stdout.readline())['data']}")
        yield workers
    finally:
        for program in programs:
            program.kill()
            program.wait()
            assert program.stdout is not None
            program.stdout.close()


def fastest_ns(calls: int, run: Callable[[int], None]) -> float:
    """Returns the nanoseconds of a call; ``run(n)`` makes n calls."""
    part = max(1, calls // PARTS)
    times = []
    for _ in range(PARTS):
        started = time.perf_counter_ns()
        run(part)
        times.append(time.perf_counter_ns() - started)
    return min(times) / part


def blocking(router: Router, prompt: Any) -> Callable[[int], None]:
    def run(calls: int) -> None:
        for _ in range(calls):
            router.best_worker_blocking(prompt)

    return run


def awaited(router: Router, prompt: Any) -> Callable[[int], None]:
    async def calls_in_turn(calls: int) -> None:
        for _ in range(calls):
            await router.best_worker(prompt)

    return lambda calls: asyncio.run(calls_in_turn(calls))


def print_costs(router: Router, calls: int, in_rust: Callable[[], float]) -> None:
    tokens = list(range(TOKENS))
    buffer = array.array("I", tokens)
    forms: dict[str, Callable[[int], None]] = {
        "list": blocking(router, tokens),
        "bytes": blocking(router, buffer.tobytes()),
        "array('I')": blocking(router, buffer),
        "numpy.uint32": blocking(router, numpy.array(tokens, dtype=numpy.uint32)),
        "list, awaited": awaited(router, tokens),
        "array('I'), awaited": awaited(router, buffer),
    }
    rust = in_rust()
    costs = {form: fastest_ns(calls, run) for form, run in forms.items()}
    rust = min(rust, in_rust())
    print(f"{f'a decision, {TOKENS} tokens':<28}{'us':>10}{'more than Rust, us':>22}{'times Rust':>14}")
    print(f"{'Rust':<28}{rust / 1e3:>10.2f}")
    for form, cost in costs.items():
        print(f"{form:<28}{cost / 1e3:>10.2f}{(cost - rust) / 1e3:>22.2f}{cost / rust:>14.2f}")


def decisions_per_second(router: Router, prompt: Any, threads: int, calls: int) -> float:
    barrier = Barrier(threads + 1)

    def run() -> None:
        barrier.wait()
        blocking(router, prompt)(calls // threads)

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run) for _ in range(threads)]
        barrier.wait()
        started = time.perf_counter()
        for thread in running:
            thread.result()
    return calls // threads * threads / (time.perf_counter() - started)


def print_threads(router: Router, calls: int, lengths: list[int]) -> None:
    for tokens in lengths:
        prompt = array.array("I", range(tokens))
        some = max(8, calls * TOKENS // tokens)
        # The best of three, in turn.
        pairs = [[decisions_per_second(router, prompt, threads, some) for threads in (1, 8)] for _ in range(3)]
        one, eight = (max(column) for column in zip(*pairs, strict=True))
        ratio = eight / one
        print(f"{tokens} tokens from a buffer: 1 thread {one:.0f}/s, 8 threads {eight:.0f}/s, {ratio:.2f} times")


def memory_mib() -> float:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def print_memory(router: Router, cycles: int) -> None:
    prompt = array.array("I", range(TOKENS))

    def run(first: int, last: int) -> float:
        for number in range(first, last):
            request_id = f"r{number}"
            router.best_worker_blocking(prompt, request_id=request_id)
            router.free_blocking(request_id)
        return memory_mib()

    # What is bounded fills up first.
    start = run(0, cycles // 10)
    middle = run(cycles // 10, cycles // 10 + cycles // 2)
    end = run(cycles // 10 + cycles // 2, cycles // 10 + cycles)
    print(f"{cycles} decisions and frees, MiB: start {start:.1f}, middle {middle:.1f}, end {end:.1f}")
    metrics = router.metrics_blocking().splitlines()
    load = [line for line in metrics if line.startswith(("warmroute_leases ", "warmroute_in_flight{"))]
    print("left:", ", ".join(load))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rust", help="the program embedded_decision")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--cycles", type=int, default=1_000_000)
    parser.add_argument("--threads-only", type=int, metavar="TOKENS", help="the length of the prompts for 8 threads")
    options = parser.parse_args()
    with engines(2) as workers:

        def in_rust() -> float:
            command = [options.rust, str(TOKENS), str(options.calls), *workers]
            return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

        with Router(workers=workers) as router:
            if options.threads_only is not None:
                print_threads(router, options.calls, [options.threads_only])
                return
            print_costs(router, options.calls, in_rust)
            print_threads(router, options.calls, [TOKENS, LONG])
            print_memory(router, options.cycles)


if __name__ == "__main__":
    main()
