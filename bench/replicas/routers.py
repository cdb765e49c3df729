"""Three routers, eight simulated engines and a NATS server, all on loopback."""

import json
import os
import shutil
import signal
import sys
import time

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir)
sys.path += [BENCH, os.path.join(BENCH, "proxy")]
from http_client import get_json, get_text, status_of
from programs import Program

ROUTERS, ENGINES = 3, 8
# Longest time until a program answers, and until routers that are idle agree, in seconds.
START_LIMIT, AGREE_LIMIT = 60, 30
# Time without a change after which a router has read what there is, in seconds.
STEADY = 2
# Metrics of replicas and of the event log that are added up over all processes of a router.
COUNTERS = ("warmroute_replica_", "warmroute_event_log_", "warmroute_task_panics")


class Ports:
    """The ports of a run, from one number on."""

    def __init__(self, base):
        self.nats, self.nats_proxy = base, base + 1
        # The last one is the fresh router's.
        self.data = [base + 10 + at for at in range(ROUTERS + 1)]
        self.admin = [base + 20 + at for at in range(ROUTERS + 1)]
        self.engines = [base + 30 + at for at in range(ENGINES)]
        self.events = [base + 40 + at for at in range(ENGINES)]
        self.replay = [base + 50 + at for at in range(ENGINES)]


class Router:
    """One router with fixed ports, over all of its processes."""

    def __init__(self, name, command, log, ports):
        self.name, self.command, self.log = name, command, log
        self.data, self.admin = ports
        self.program = None
        # When it was killed and when the next process was ready; the last one may be open.
        self.outages = []
        self.seconds_to_ready = []
        # Counters of processes that were killed.
        self.counters = {}

    def start(self, cores):
        self.program = Program(cores, self.command, self.log)

    async def kill(self):
        """Ends the process without notice, after a last look at its counters."""
        add_counters(self.counters, await counters(self.admin))
        self.outages.append([time.monotonic(), None])
        os.kill(self.program.process.pid, signal.SIGKILL)
        self.program.process.wait()

    async def until_ready(self, started, pause):
        """Waits until the router says that it is ready, and notes the time."""
        while await status_of(self.data, "/readyz") != 200:
            if not self.program.is_running() or time.monotonic() - started > START_LIMIT:
                raise RuntimeError(f"{self.name} is not ready within {START_LIMIT} s, see {self.log}")
            await pause(0.01)
        ready = time.monotonic()
        self.seconds_to_ready.append(ready - started)
        if self.outages and self.outages[-1][1] is None:
            self.outages[-1][1] = ready

    def was_down(self, since, until):
        """Returns whether the router did not run, or was not ready, at any time of this period."""
        return any(killed <= until and (ready is None or ready >= since) for killed, ready in self.outages)

    def warnings(self):
        """Returns how often each warning and error is in the log."""
        counts = {}
        with open(self.log, encoding="utf-8", errors="replace") as file:
            for line in file:
                if '"level":"WARN"' in line or '"level":"ERROR"' in line:
                    message = json.loads(line)["fields"].get("message", line[:100])
                    counts[message] = counts.get(message, 0) + 1
        return counts

    async def digest(self):
        """Returns the digest of each target, those without blocks aside."""
        reply = await get_json(self.admin, "/admin/kv-index/digest")
        return sorted(
            (row["worker"], row["dp_rank"], row["tier"], row["blocks"], row["digest"])
            for row in reply["targets"] if row["blocks"]
        )

    async def blocks(self):
        """Returns every block that the index holds, with its holder."""
        text = await get_text(self.admin, "/admin/kv-index/dump")
        rows = (json.loads(line) for line in text.splitlines())
        return {(row["worker"], row["tier"], row["hash"]) for row in rows}

    async def in_flight(self):
        """Returns the open load of every worker that has any."""
        reply = await get_json(self.admin, "/admin/workers")
        return {row["name"]: row["load"] for row in reply["workers"] if any(row["load"].values())}


class Installation:
    """Everything that a run starts. `end` ends each process by its id."""

    def __init__(self, args, folder, pause):
        self.args, self.folder, self.pause = args, folder, pause
        self.ports = Ports(args.base_port)
        self.cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
        self.programs, self.routers = [], []

    async def start(self):
        if self.args.mode == "nats":
            await self.start_nats()
        for at in range(ENGINES):
            command = [
                self.args.program, "engine", "--port", str(self.ports.engines[at]), "--seed", str(at),
                "--kv-blocks", str(self.args.kv_blocks), "--itl-ms", "20",
                "--kv-events", f"tcp://127.0.0.1:{self.ports.events[at]}",
                "--replay", f"tcp://127.0.0.1:{self.ports.replay[at]}",
                # So that a fresh router can read everything.
                "--buffer-steps", "1000000",
            ]
            self.programs.append(Program(self.cores, command, self.path(f"engine-{at}.log")))
        for port in self.ports.engines:
            await self.until_answered(port, "/health", "an engine")
        self.routers = [self.router(at, self.replicas(at)) for at in range(ROUTERS)]
        for router in self.routers:
            await self.restart(router)

    async def start_nats(self):
        program = shutil.which("nats-server")
        if program is None:
            raise RuntimeError("there is no nats-server (on Debian as root: apt-get install nats-server)")
        command = [program, "-js", "-sd", self.path("jetstream"), "-a", "127.0.0.1", "-p", str(self.ports.nats)]
        command += ["-m", str(self.ports.nats + 2)]
        self.programs.append(Program(self.cores, command, self.path("nats.log")))
        await self.until_answered(self.ports.nats + 2, "/healthz", "nats-server")

    def replicas(self, at):
        """Returns section `replicas` of a router."""
        section = {"mode": self.args.mode, "load_sync": True}
        if self.args.mode == "peers":
            section["peers"] = [f"http://127.0.0.1:{port}" for port in self.ports.admin[:ROUTERS]]
        else:
            through_proxy = self.args.partition and at == 0
            port = self.ports.nats_proxy if through_proxy else self.ports.nats
            section["nats"] = {
                "url": f"nats://127.0.0.1:{port}", "snapshot_threshold": self.args.snapshot_threshold,
            }
        return section

    def router(self, at, replicas):
        name = f"router-{at}" if at < ROUTERS else "fresh"
        settings = {
            "workers": [
                {"name": f"engine-{number}", "url": f"http://127.0.0.1:{port}"}
                for number, port in enumerate(self.ports.engines)
            ],
            "replicas": replicas,
        }
        # JSON is YAML.
        with open(self.path(f"{name}.yaml"), "w", encoding="utf-8") as file:
            json.dump(settings, file, indent=1)
        data, admin = self.ports.data[at], self.ports.admin[at]
        command = [
            self.args.program, "serve", "-c", self.path(f"{name}.yaml"), "--listen", f"127.0.0.1:{data}",
            "--admin-listen", f"127.0.0.1:{admin}",
        ]
        return Router(name, command, self.path(f"{name}.log"), (data, admin))

    async def restart(self, router):
        started = time.monotonic()
        router.start(self.cores)
        await router.until_ready(started, self.pause)

    async def start_fresh(self):
        """Starts a router that shares nothing: it reads everything from the engines."""
        router = self.router(ROUTERS, {"mode": "none"})
        self.routers.append(router)
        await self.restart(router)
        digest, since = None, time.monotonic()
        while time.monotonic() - since < STEADY:
            if digest != (digest := await router.digest()):
                since = time.monotonic()
            await self.pause(0.1)
        return router

    async def until_agreed(self, routers, expected=None):
        """Waits until the routers have no load and one digest, that of `expected` if given; returns what they have."""
        started = time.monotonic()
        equal = without_load = None
        while True:
            digests = [await router.digest() for router in routers]
            loads = {router.name: load for router in routers if (load := await router.in_flight())}
            wanted = digests[0] if expected is None else expected
            differing = [router.name for router, digest in zip(routers, digests) if digest != wanted]
            seconds = round(time.monotonic() - started, 1)
            without_load = None if loads else without_load or seconds
            equal = None if differing else equal or seconds
            if (not differing and not loads and wanted) or seconds > AGREE_LIMIT:
                return {
                    "equal_s": equal, "without_load_s": without_load, "differing": differing, "load": loads,
                    "digest": wanted, "blocks": sum(row[3] for row in wanted),
                    "digests": dict(zip([router.name for router in routers], digests)) if differing else {},
                }
            await self.pause(0.1)

    async def differences(self, routers, reference):
        """Returns how many blocks of each engine only the routers have, and only the reference."""
        wanted, rows = await reference.blocks(), []
        for router in routers:
            found = await router.blocks()
            for number, port in enumerate(self.ports.engines):
                engine = f"engine-{number}"
                more = sum(block[0] == engine for block in found - wanted)
                less = sum(block[0] == engine for block in wanted - found)
                if more or less:
                    stats = await get_json(port, "/sim/stats")
                    rows.append({
                        "router": router.name, "engine": engine, "more": more, "less": less,
                        "index": sum(block[0] == engine for block in found), "in_engine": stats["blocks_cached"],
                    })
        return rows

    async def until_answered(self, port, path, what):
        limit = time.monotonic() + START_LIMIT
        while await status_of(port, path) != 200:
            if time.monotonic() > limit:
                raise RuntimeError(f"{what} does not answer within {START_LIMIT} s, see {self.folder}")
            await self.pause(0.05)

    def path(self, name):
        return os.path.join(self.folder, name)

    def end(self):
        for router in self.routers:
            if router.program:
                # What it has is on disk or of no interest, and a drain would take long.
                router.program.process.kill()
                router.program.end()
        for program in reversed(self.programs):
            program.end()


async def counters(port):
    """Returns the counters of replicas by series; none if the router does not answer."""
    text = await get_text(port, "/metrics")
    rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith(COUNTERS))
    return {name: float(value) for name, _, value in rows if "_total" in name}


def add_counters(total, more):
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
