#!/usr/bin/env python3
"""Agents that need more than the caches hold, over sockets, with and without admission by the live set.

  python3 bench/agents/run.py WARMROUTE [--ratio 2] [--long-pauses 0] [--seconds 90]

WARMROUTE is the program (target/release/warmroute). For each mode of `routing.admission`, `off` and then `live_set`, it
is started as simulated engines with small caches and as a router in front of them, on loopback. Clients play sessions
whose prompts grow: the next turn is sent a pause after the reply before it, and a session that ends is followed by the
next one. Both modes get the same sessions (README.md). Printed: a row for each mode, and the ratio of their turns per
minute. Standard library only.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time

from plan import Plan
from play import Play

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from fleet import Fleet, get_json

MODES = "off", "live_set"
BLOCK_TOKENS = 256
# `routing.admission_wait` in time of the engines, in seconds.
ADMISSION_WAIT = 300
COLUMNS = (
    "admission", "turns/min", "hits", "TTFT p50, s", "p95, s", "longest wait, s", "Jain index", "sessions ended",
    "refused", "let in by room", "by budget", "overdue",
)


def config(mode, speed):
    # No request is too late for its time limit: as in the simulator, where requests have none.
    routing = {"admission": mode}
    if mode != "off":
        routing["admission_wait"] = f"{ADMISSION_WAIT * 1_000 / speed:.0f}ms"
    return {"routing": routing, "request": {"timeout": "3600s"}}


def run(args, folder, mode, plan, places):
    """Plays the sessions under one mode; returns the cells of its row and its turns per minute."""
    flags = ["--model", "sim", "--max-model-len", "131072", "--block-size", str(BLOCK_TOKENS), "--kv-blocks",
             str(args.kv_blocks), "--profile", args.profile, "--speed", str(args.speed)]
    engines = [flags] * args.engines
    with Fleet(args.warmroute, f"{folder}/{mode}", args.base_port, engines, config(mode, args.speed)) as fleet:
        fleet.follow_events()
        play = Play(fleet.data, plan, places, args.speed)
        begin = time.monotonic() + args.warm_up
        asyncio.run(play.run(args.warm_up + args.seconds))
        figures = play.figures(begin, begin + args.seconds)
        let_in = get_json(fleet.admin, "/admin/sessions")["ended"]
    cells = [
        mode, f"{figures['turns_per_minute']:.0f}", f"{figures['hit_share']:.3f}", f"{figures['ttft_p50']:.2f}",
        f"{figures['ttft_p95']:.1f}", f"{figures['longest_wait']:.0f}", f"{figures['jain']:.3f}", figures["ended"],
        figures["refused"], let_in["room"], let_in["budget"], let_in["overdue"],
    ]
    return cells, figures["turns_per_minute"]


def line(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warmroute")
    parser.add_argument("--ratio", type=float, default=2, help="tokens that sessions need, over what the caches hold")
    parser.add_argument("--pause", type=float, default=4, help="mean pause, in seconds of the engines")
    parser.add_argument("--long-pauses", type=float, default=0, help="share of pauses of three minutes on average")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--kv-blocks", type=int, default=1_000, help=f"blocks of {BLOCK_TOKENS} tokens of each engine")
    parser.add_argument("--profile", default="70b-h100x4")
    parser.add_argument("--speed", type=float, default=4, help="divides the engines' times and the pauses")
    parser.add_argument("--warm-up", type=float, default=40, help="real seconds that only warm the caches")
    parser.add_argument("--seconds", type=float, default=90, help="real seconds that are measured after it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base-port", type=int, default=21_400)
    args = parser.parse_args()
    args.warmroute = os.path.abspath(args.warmroute)
    plan = Plan(args.seed, args.pause, args.long_pauses)
    held = args.engines * args.kv_blocks * BLOCK_TOKENS
    places = plan.sessions_for(args.ratio * held)
    print(f"{args.engines} engines of profile {args.profile} with {held // args.engines} tokens each, {places} sessions"
          f" at a time, seed {args.seed}, {args.long_pauses:.0%} long pauses; {args.seconds:g} s at speed"
          f" {args.speed:g} after {args.warm_up:g} s. Times are the engines'.\n")
    print(line(COLUMNS) + "\n|---|" + "--:|" * (len(COLUMNS) - 1))
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            cells, rates[mode] = run(args, folder, mode, plan, places)
            print(line(cells), flush=True)
    print(f"\nturns per minute, live_set / off: {rates['live_set'] / rates['off']:.2f}")


if __name__ == "__main__":
    main()
