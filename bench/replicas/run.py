#!/usr/bin/env python3
"""Kills routers that share state, under load, and holds what clients see against the promises.

  bench/replicas/run.py --mode nats                   # 10 minutes, one kill every 10 s
  bench/replicas/run.py --mode peers --minutes 2
  bench/replicas/run.py --mode nats --partition 60    # no kills: one router loses the NATS server for 60 s

Exit code 1: a promise is broken. Standard library only; everything runs on loopback.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import findings
from clients import Load
from partition import CuttableProxy
from routers import ROUTERS, Installation, add_counters
from tables import printed

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from http_client import get_json

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir)
# Load before the first kill, or around a partition, in seconds.
WARM_UP, AROUND_PARTITION = 20, 60


class Run:
    def __init__(self, args, folder):
        self.args = args
        self.installation = Installation(args, folder, asyncio.sleep)
        self.load, self.proxy = None, None
        self.origin = time.monotonic()
        # Times of a partition: load, cut, healed, end.
        self.phases = []
        self.results = {"mode": args.mode, "partition_s": args.partition, "broken": []}

    async def play(self):
        """Plays everything and leaves the findings in `results`."""
        ports = self.installation.ports
        if self.args.partition:
            self.proxy = CuttableProxy(ports.nats_proxy, ports.nats)
            await self.proxy.start()
        await self.installation.start()
        self.routers = self.installation.routers[:ROUTERS]
        self.load = Load(self.installation, self.args)
        self.origin = time.monotonic()
        self.load.start()
        if self.args.partition:
            await self.separate()
        else:
            await self.kill_in_turn()
        self.end_of_load = time.monotonic()
        await self.load.stop()
        self.hold_load_to_promises()
        await self.hold_end_to_promises()

    async def separate(self):
        self.phases.append(time.monotonic())
        await self.wait(AROUND_PARTITION)
        self.phases.append(time.monotonic())
        self.say("the proxy is cut")
        self.proxy.cut()
        await self.wait(self.args.partition)
        self.phases.append(time.monotonic())
        self.say("the proxy forwards again")
        self.proxy.heal()
        await self.wait(AROUND_PARTITION)
        self.phases.append(time.monotonic())

    async def kill_in_turn(self):
        draw = random.Random(self.args.seed)
        await self.wait(WARM_UP)
        end = time.monotonic() + self.args.minutes * 60
        while (next_kill := time.monotonic() + self.args.interval) <= end + 1:
            router = draw.choice(self.routers)
            await router.kill()
            await self.installation.restart(router)
            self.say(f"killed {router.name}: ready after {router.seconds_to_ready[-1]:.2f} s")
            await self.wait(next_kill - time.monotonic())

    async def wait(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 1))
            self.load.check()

    def hold_load_to_promises(self):
        turns, results = self.load.turns, self.results
        excused, others = findings.failures(self.load, self.routers)
        results.update(
            turns=len(turns), seconds=round(self.end_of_load - self.origin, 1), lost=self.load.lost,
            failures_of_killed=excused, other_failures=[vars(failure) for failure in others],
            hit_rate=findings.hit_rate(turns), hit_rate_later=findings.hit_rate(findings.later_turns(turns)),
            hit_rate_by_router=[
                findings.hit_rate([turn for turn in findings.later_turns(turns) if turn.router == at])
                for at in range(ROUTERS)
            ],
            credit=findings.false_credits(turns), by_second=findings.by_second(self.load, self.origin),
            seconds_to_ready=findings.distribution([s for r in self.routers for s in r.seconds_to_ready[1:]]),
            seconds_of_requests=findings.distribution([turn.ended - turn.started for turn in turns]),
        )
        self.promise(not others, f"{len(others)} failures of routers that were not killed, see other_failures")
        self.promise(not self.load.lost, f"{len(self.load.lost)} requests are lost")
        self.promise(turns, "no request was answered")
        if self.args.partition:
            self.hold_partition_to_promises()
        else:
            self.hold_recoveries_to_promises()

    def hold_recoveries_to_promises(self):
        rows = findings.recoveries(self.load, self.routers, self.end_of_load)
        good = [row["good_s"] for row in rows if row["good_s"] is not None]
        # A router that is killed again too soon shows nothing.
        late = [
            row for row in rows
            if (row["good_s"] is None and row["observed_s"] >= findings.GOAL)
            or (row["good_s"] is not None and row["good_s"] > findings.GOAL)
        ]
        self.results.update(
            kills=len(rows), recoveries=[{**row, "killed": round(row["killed"] - self.origin, 1)} for row in rows],
            recovery=findings.distribution(good), recovered_late=len(late),
            after_kills=findings.after_kills(self.load, self.routers, self.end_of_load),
        )
        slow = [row["ready_s"] for row in rows if row["ready_s"] is None or row["ready_s"] > findings.READY]
        self.promise(not slow, f"{len(slow)} of {len(rows)} killed routers were not ready within {findings.READY:g} s")
        self.promise(not late, f"{len(late)} of {len(rows)} killed routers were not as good within 10 s")

    def hold_partition_to_promises(self):
        names = ("before", "cut", "after")
        rows = []
        for name, since, until in zip(names, self.phases, self.phases[1:]):
            for who, is_cut in (("cut off", True), ("others", False)):
                turns = [t for t in findings.between(self.load.turns, since, until) if (t.router == 0) == is_cut]
                rate = findings.hit_rate(findings.later_turns(turns))
                rows.append({"phase": name, "router": who, "hit_rate": rate, **findings.false_credits(turns)})
        self.results["partition"] = rows
        # The same router without a partition, with three times the spread of such a count.
        rate = max(row["false_credits"] / max(1, row["turns"]) for row in rows if row["phase"] == "before")
        for row in rows:
            expected = rate * row["turns"]
            allowed = expected + 3 * (expected + 1) ** 0.5 if rate else 0
            where = f"{row['router']}, {row['phase']}"
            self.promise(
                row["phase"] == "before" or row["false_credits"] <= allowed,
                f"{row['false_credits']} false credits ({where}), {allowed:.1f} without a partition",
            )

    async def hold_end_to_promises(self):
        """Compares the indexes of idle routers, of a fresh one, and of all of them after all were killed."""
        installation, results = self.installation, self.results
        await self.agree("idle", self.routers)
        results["replicas"] = [await self.replicas(router) for router in self.routers]
        # What the engines' whole history says: the reference for all that follows.
        fresh = await installation.start_fresh()
        wanted = await fresh.digest()
        await self.agree("fresh", self.routers, wanted)
        results["differences"] = await installation.differences(self.routers, fresh)
        totals = {}
        for router in self.routers:
            await router.kill()
            add_counters(totals, router.counters)
        results["counters"] = totals
        started = time.monotonic()
        for router in self.routers:
            router.start(installation.cores)
        for router in self.routers:
            await router.until_ready(started, asyncio.sleep)
        results["seconds_to_ready_after_all"] = [round(router.seconds_to_ready[-1], 2) for router in self.routers]
        slowest = max(results["seconds_to_ready_after_all"])
        self.promise(slowest <= findings.READY, f"after all were killed, one was ready after {slowest} s")
        await self.agree("after_all_killed", self.routers, wanted)
        results["differences_after_all"] = await installation.differences(self.routers, fresh)
        results["warnings"] = {}
        for router in self.routers:
            add_counters(results["warnings"], router.warnings())

    async def replicas(self, router):
        return {"router": router.name, "report": await get_json(router.admin, "/admin/replicas")}

    async def agree(self, name, routers, expected=None):
        agreed = await self.installation.until_agreed(routers, expected)
        self.results[name] = {key: value for key, value in agreed.items() if key != "digest"}
        self.promise(not agreed["differing"], f"{name}: digests of {', '.join(agreed['differing'])} differ")
        self.promise(not agreed["load"], f"{name}: load is left: {json.dumps(agreed['load'])}")
        self.promise(agreed["blocks"], f"{name}: the index is empty")
        times = f"equal after {agreed['equal_s']} s, without load after {agreed['without_load_s']} s"
        self.say(f"{name}: {agreed['blocks']} blocks, {times}")
        return agreed

    async def replicas(self, router):
        return {"router": router.name, "report": await get_json(router.admin, "/admin/replicas")}

    def promise(self, kept, otherwise):
        if not kept:
            self.results["broken"].append(otherwise)

    def say(self, what):
        print(f"{time.monotonic() - self.origin:7.1f} s  {what}", file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("nats", "peers"), default="nats", help="how the routers share state")
    parser.add_argument("--program", help="the program under test; left out: built with cargo (PROFILE, default dist)")
    parser.add_argument("--minutes", type=float, default=10, help="of kills, after %d s of load" % WARM_UP)
    parser.add_argument("--interval", type=float, default=10, help="seconds from kill to kill")
    parser.add_argument("--partition", type=float, default=0, metavar="SECONDS", help="separates one router, kills none")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--turns", type=int, default=12, help="most turns of a conversation")
    parser.add_argument("--think", type=float, default=1, help="mean seconds between a reply and the next turn")
    parser.add_argument("--kv-blocks", type=int, default=2_048, help="blocks of 16 tokens of each engine")
    parser.add_argument("--snapshot-threshold", type=int, default=5_000, help="messages, mode nats")
    parser.add_argument("--seed", type=int, default=1, help="of the texts and of the order of kills")
    parser.add_argument("--base-port", type=int, default=28_100, help="the first of 60 ports")
    parser.add_argument("--logs", help="folder for logs, configurations and the store of NATS, kept; default: a temporary one")
    parser.add_argument("--json", metavar="FILE", help="writes everything that was measured")
    args = parser.parse_args()
    if args.partition and args.mode != "nats":
        parser.error("--partition needs --mode nats: peers have no server to be separated from")
    args.program = os.path.abspath(args.program) if args.program else built()
    return args


def built():
    """Builds the program and returns its path."""
    profile = os.environ.get("PROFILE", "dist")
    command = ["cargo", "build", "--quiet", "--locked", "--profile", profile, "-p", "warmroute"]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return os.path.abspath(os.path.join(REPOSITORY, "target", profile, "warmroute"))


async def played(args, folder):
    run = Run(args, folder)
    playing = asyncio.create_task(run.play())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, playing.cancel)
    try:
        await playing
    finally:
        run.installation.end()
        if run.proxy:
            await run.proxy.stop()
        if args.json and run.load:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump({**run.results, **run.load.rows(run.origin)}, file)
    return run.results


def main():
    args = options()
    with tempfile.TemporaryDirectory(prefix="warmroute-replicas-") as temporary:
        folder = os.path.abspath(args.logs or temporary)
        os.makedirs(folder, exist_ok=True)
        try:
            results = asyncio.run(played(args, folder))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        except asyncio.CancelledError:
            return 130
    print(printed(results))
    return 1 if results["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
