#!/usr/bin/env python3
"""What one client that holds all of its limits at once costs the others (goal G17).

  python3 bench/hostile/neighbours.py WARMROUTE [--rounds 10] [--seconds 4] [--cell own --cell shared]

WARMROUTE is the program. It is started as simulated engines and as a router in front of them, on loopback. The honest
tenant sends small chats at a steady rate, each on a connection of its own, whatever became of those before. Three kinds
of windows take turns in random order: `hostile`, a client of another tenant and address has the tenant's streams (half
of them unread), its places in the queue, bodies up to its share of held bytes and connections up to its address' share
of the slots, idle and with heads that do not end, and sends more requests than its limits allow; `idle`, tenants that do
nothing have as many connections; `alone`, nobody else. A hostile window counts only if the router's own figures show
the tenant at its limits. Two cells: `own`, the honest tenant has an engine that nobody else uses, so what it loses is
the router's; `shared`, both use the same engines, so it waits for running prompts too. Exit code 1 if a request of
the honest tenant is lost or if no hostile window counts. Standard library only.
"""

import argparse
import collections
import http.client
import json
import multiprocessing
import os
import random
import select
import socket
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from amplification import cpu_ns
from fleet import Fleet, get_json, percentile

HONEST_ADDRESS, HOSTILE_ADDRESS, IDLE_ADDRESS = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# What the hostile tenant holds: running streams, bodies without an end, requests that wait, and one that runs.
STREAMS, BODIES, QUEUED = 8, 2, 32
CONCURRENT = STREAMS + BODIES + QUEUED + 1
# The router's limits. A tenant may hold half of the bytes, and an address requests on seven eighths of the slots.
MAX_BODY, MAX_HELD, SLOTS = 8 << 20, 32 << 20, 512
BODY = MAX_BODY - (512 << 10)
# A few less than its share: beyond it an address only replaces its own connections.
CONNECTIONS = SLOTS * 7 // 8 - CONCURRENT - 8
# Requests above the limits, in each second, and connections that are opened again in it.
REFUSALS, REOPENED = 50, 50
# One in so many connections sends a head without its end; the others are idle.
SLOW_HEAD_STEP = 8
# Tokens of a prompt that waits, and how fast an engine computes them: each takes 0.2 s, and more beside the streams.
PROMPT, PREFILL_TPS = 800, 4000
# Prompts from which the router learns that speed: it holds no request before it knows.
LEARNED = 12
# Requests of the honest tenant in each second, and how many of them may be on their way.
RATE, SENDERS = 30, 64
# Tenants of the idle connections.
IDLE_TENANTS = 4
# The router and the honest client have one core, all others the other one: they would be on machines of their own.
OWN_CORE, OTHERS_CORE = 0, 1
# Longest time until the hostile tenant is at its limits or has left, in seconds.
CHANGE_LIMIT = 30
KINDS = ("hostile", "idle", "alone")
# Draws of the bootstrap, and the ends of its interval.
DRAWS, INTERVAL = 1000, (0.025, 0.975)


def configuration():
    keys = [{"name": name, "key": f"sk-{name}"} for name in ["honest", "warm", *idle_tenants()]]
    hostile = {"name": "hostile", "key": "sk-hostile", "max_concurrent": CONCURRENT}
    return {
        "server": {"max_body_bytes": MAX_BODY, "max_held_bytes": MAX_HELD, "max_connections": SLOTS},
        "queue": {"wait": "600s"},
        "tenants": {"defaults": {"queued": QUEUED}, "api_keys": [*keys, hostile]},
    }


def idle_tenants():
    return [f"idle-{at}" for at in range(IDLE_TENANTS)]


def engines_of(cell):
    """Returns the flags of the engines, and the models of the honest and the hostile tenant."""
    slow = ["--prefill-tps", str(PREFILL_TPS), "--itl-ms", "50", "--max-num-batched-tokens", "256"]
    if cell == "own":
        return [["--model", "honest", "--speed", "50"], ["--model", "hostile", *slow]], "honest", "hostile"
    return [["--model", "sim", *slow]] * 2, "sim", "sim"


def chat(model, text, tokens, stream=False):
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True,
            "stream": stream}


def head(key, path, length, method="POST"):
    return (f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n").encode()


def post(key, body):
    data = json.dumps(body).encode()
    return head(key, "/v1/chat/completions", len(data)) + data


def connect(port, address):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(address, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def reply(connection):
    """Reads a reply to its end; returns its status and, of an error, its code."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    data = answer.read()
    if answer.status == 200:
        return 200, None
    try:
        return answer.status, json.loads(data)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return answer.status, None


class Load:
    """Threads that do something until they are told to stop; what they wait for ends then, too."""

    def __init__(self, port, address):
        self.port, self.address = port, address
        self.ended, self.lock = threading.Event(), threading.Lock()
        self.threads, self.open, self.counts = [], set(), collections.Counter()

    def connect(self):
        connection = connect(self.port, self.address)
        with self.lock:
            self.open.add(connection)
            if self.ended.is_set():
                connection.close()
        return connection

    def close(self, connection):
        with self.lock:
            self.open.discard(connection)
            connection.close()

    def run(self, work, *arguments):
        """Repeats some work, on a connection of its own each time."""
        def repeat():
            while not self.ended.is_set():
                connection = None
                try:
                    connection = self.connect()
                    work(connection, *arguments)
                except (OSError, http.client.HTTPException):
                    self.ended.wait(0.1)
                finally:
                    if connection:
                        self.close(connection)
        self.start(repeat)

    def start(self, target):
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        self.threads.append(thread)

    def count(self, name):
        with self.lock:
            self.counts[name] += 1

    def finish(self):
        self.ended.set()
        with self.lock:
            for connection in self.open:
                try:
                    # Wakes the thread that reads from it.
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        for thread in self.threads:
            thread.join(CHANGE_LIMIT)
        for connection in self.open:
            connection.close()
        return dict(self.counts)

    def hold_connections(self, count, first):
        """Keeps so many connections open; `first` tells what is sent on one first, and whether a reply comes."""
        def hold():
            held = [self.hold(first(at)) for at in range(count)]
            while not self.ended.wait(1):
                reopened = 0
                for at, connection in enumerate(held):
                    if connection and not is_closed(connection):
                        self.trickle(connection, first(at)[1])
                    elif reopened < REOPENED:
                        reopened += 1
                        if connection:
                            self.close(connection)
                        held[at] = self.hold(first(at))
                        self.count("connections opened again")
        self.start(hold)

    def hold(self, first):
        data, has_reply = first
        connection = None
        try:
            connection = self.connect()
            connection.sendall(data)
            if has_reply:
                reply(connection)
            return connection
        except (OSError, http.client.HTTPException):
            if connection:
                self.close(connection)
            return None

    def trickle(self, connection, has_reply):
        """Continues a head that does not end."""
        if not has_reply:
            try:
                connection.sendall(b"a")
            except OSError:
                pass


def is_closed(connection):
    """Whether a connection that is sent nothing can be read: its end."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class Hostile(Load):
    """A client at all limits of its tenant."""

    def __init__(self, port, model):
        super().__init__(port, HOSTILE_ADDRESS)
        self.model, self.number = model, 0
        for at in range(STREAMS):
            self.run(self.stream, at % 2 == 0)
        for _ in range(BODIES):
            self.run(self.body)
        # More threads than there are places, so that none stays free.
        for _ in range(QUEUED + 2):
            self.run(self.waiting)
        self.run(self.refused)
        self.hold_connections(CONNECTIONS, self.first)

    def prompt(self):
        with self.lock:
            self.number += 1
            return f"{os.getpid()} {self.number} {time.monotonic()} " + "word " * PROMPT

    def stream(self, connection, is_read):
        connection.sendall(post("sk-hostile", chat(self.model, f"a stream {id(connection)}", 30_000, stream=True)))
        if not is_read:
            status = connection.recv(12)
            if status.endswith(b"200"):
                self.ended.wait()
            else:
                self.ended.wait(0.1)
            return
        status, code = reply(connection)
        self.note(status, code)

    def body(self, connection):
        connection.sendall(head("sk-hostile", "/v1/chat/completions", BODY))
        left, piece = BODY - (256 << 10), b" " * (64 << 10)
        while left > 0:
            connection.sendall(piece)
            left -= len(piece)
        while not self.ended.wait(1):
            if is_closed(connection):
                self.note(*reply(connection))
                return
            # More than the 1 KiB a second below which a body is refused.
            connection.sendall(b" " * 2048)

    def waiting(self, connection):
        while not self.ended.is_set():
            connection.sendall(post("sk-hostile", chat(self.model, self.prompt(), 1)))
            self.note(*reply(connection))

    def refused(self, connection):
        small = post("sk-hostile", chat(self.model, "hi", 1))
        while not self.ended.wait(1 / REFUSALS):
            connection.sendall(small)
            self.note(*reply(connection), pause=0)

    def note(self, status, code, pause=0.1):
        self.count(f"{status} {code}" if code else str(status))
        if status != 200 and pause:
            self.ended.wait(pause)

    def first(self, at):
        if at % SLOW_HEAD_STEP == 0:
            return b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-a: ", False
        return head("sk-hostile", "/livez", 0, "GET"), True


class Idle(Load):
    """Clients of other tenants that have sent a request each and do nothing."""

    def __init__(self, port, _model):
        super().__init__(port, IDLE_ADDRESS)
        self.hold_connections(CONNECTIONS + CONCURRENT, lambda at: (
            head(f"sk-idle-{at % IDLE_TENANTS}", "/v1/models", 0, "GET"), True))


def pin_programs(fleet):
    """Gives the router and this process their core, threads included, and the engines the other one."""
    for program in fleet.programs:
        core = OWN_CORE if program is fleet.router else OTHERS_CORE
        for thread in os.listdir(f"/proc/{program.pid}/task"):
            pin(int(thread), core)
    pin(0, OWN_CORE)


def pin(pid, core):
    """Lets a process use one core only, where there are several."""
    if core < (os.cpu_count() or 1):
        os.sched_setaffinity(pid, {core})


def carry_loads(orders, ours, port, model):
    """Runs loads as they are ordered: in a process of its own, whose work is not the honest client's."""
    # Or the end of the other process would not end this one.
    ours.close()
    # The clients of others would be on other machines.
    os.nice(10)
    pin(os.getpid(), OTHERS_CORE)
    loads, load = {"hostile": Hostile, "idle": Idle}, None
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        if load:
            orders.send(load.finish())
            load = None
        else:
            load = loads[order](port, model)


class Honest:
    """The tenant whose requests are measured."""

    def __init__(self, port, model):
        self.port, self.model, self.number = port, model, 0
        self.pool = ThreadPoolExecutor(SENDERS)

    def request(self, due, number):
        """Returns the ms from the moment when the request was due to the end of its reply, or why it was lost."""
        try:
            connection = connect(self.port, HONEST_ADDRESS)
            try:
                connection.sendall(post("sk-honest", chat(self.model, f"question {number}", 4)))
                status, code = reply(connection)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        return (time.monotonic() - due) * 1e3 if status == 200 else f"{status} {code}"

    def window(self, seconds):
        """Returns the times of the requests of a window, and why others were lost."""
        began, results = time.monotonic(), []
        for at in range(int(seconds * RATE)):
            due = began + at / RATE
            time.sleep(max(0, due - time.monotonic()))
            self.number += 1
            results.append(self.pool.submit(self.request, due, self.number))
        results = [result.result() for result in results]
        return [took for took in results if isinstance(took, float)], [why for why in results if isinstance(why, str)]


class Watch:
    """Reads the router's figures of the hostile tenant during a window."""

    def __init__(self, fleet):
        self.fleet, self.samples, self.ended = fleet, [], threading.Event()
        self.refused = refused_of(fleet)
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.ended.wait(0.25):
            self.samples.append(figures(self.fleet))

    def finish(self):
        """Returns the medians of what the tenant held, and its refused requests."""
        self.ended.set()
        self.thread.join()
        columns = zip(*self.samples)
        return [statistics.median(column) for column in columns], refused_of(self.fleet) - self.refused


def tenant(fleet):
    return get_json(fleet.admin, "/admin/tenants?name=hostile")["tenants"][0]


def refused_of(fleet):
    return tenant(fleet)["limited"]


def figures(fleet):
    """Returns the hostile tenant's requests in progress and in the queue, and the bytes of all bodies."""
    shown = tenant(fleet)
    connection = http.client.HTTPConnection("127.0.0.1", fleet.admin, timeout=30)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    held = next(float(line.split()[1]) for line in page.splitlines() if line.startswith("warmroute_held_body_bytes "))
    return shown["in_flight"], shown["queued"], held


def is_at_limits(in_flight, queued, held):
    # Places are free for the moment between two requests.
    return in_flight >= CONCURRENT - 2 and queued >= QUEUED * 3 // 4 and held >= BODIES * (BODY - (512 << 10))


def wait_until(what, holds):
    end = time.monotonic() + CHANGE_LIMIT
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    print(f"{what}: not within {CHANGE_LIMIT} s", file=sys.stderr)
    return False


class Cell:
    """The windows of a fleet."""

    def __init__(self, fleet, honest_model, hostile_model):
        self.fleet = fleet
        self.times = {kind: [] for kind in KINDS}
        self.cpu = {kind: [] for kind in KINDS}
        self.held, self.lost, self.counts, self.skipped = [], [], collections.Counter(), 0
        context = multiprocessing.get_context("fork")
        self.orders, theirs = context.Pipe()
        # Before this process has threads.
        self.loads = context.Process(target=carry_loads, args=(theirs, self.orders, fleet.data, hostile_model),
                                     daemon=True)
        self.loads.start()
        theirs.close()
        self.honest = Honest(fleet.data, honest_model)
        learn(fleet.data, hostile_model)
        self.honest.window(2)

    def window(self, kind, seconds):
        if kind != "alone":
            self.orders.send(kind)
        if kind == "hostile":
            # Whether it is there is decided by what is seen during the window.
            wait_until("the hostile tenant at its limits", lambda: is_at_limits(*figures(self.fleet)))
        else:
            time.sleep(1)
        watch = Watch(self.fleet) if kind == "hostile" else None
        cpu, began = cpu_ns(self.fleet.router.pid), time.monotonic()
        times, lost = self.honest.window(seconds)
        cpu = (cpu_ns(self.fleet.router.pid) - cpu) / (time.monotonic() - began) / 1e9
        held, refused = watch.finish() if watch else (None, 0)
        if kind != "alone":
            self.orders.send(None)
            counts = self.orders.recv()
            if kind == "hostile":
                self.counts.update(counts)
                wait_until("the hostile tenant to leave", lambda: figures(self.fleet)[0] == 0)
        self.lost += [f"{kind}: {why}" for why in lost]
        if watch and not (is_at_limits(*held) and refused >= REFUSALS * seconds / 3):
            self.skipped += 1
            print(f"a hostile window does not count: {held}, {refused} refused", file=sys.stderr)
            return
        self.times[kind].append(times)
        self.cpu[kind].append(cpu)
        if watch:
            self.held.append((*held, refused / seconds))

    def end(self):
        self.orders.close()
        self.honest.pool.shutdown()
        self.loads.join(CHANGE_LIMIT)


def learn(port, model):
    """Lets the router see how long prompts take, one at a time."""
    for number in range(LEARNED):
        connection = connect(port, HONEST_ADDRESS)
        connection.sendall(post("sk-warm", chat(model, f"learn {number} " + "word " * PROMPT, 1, stream=True)))
        status, code = reply(connection)
        connection.close()
        if status != 200:
            raise RuntimeError(f"a first prompt: status {status} {code}")


def p99(windows):
    return percentile([took for window in windows for took in window], 0.99)


def interval(windows, others):
    """Returns the interval of the ratio of both p99, by a bootstrap over windows."""
    draw = random.Random(1)
    ratios = [p99(draw.choices(windows, k=len(windows))) / p99(draw.choices(others, k=len(others)))
              for _ in range(DRAWS)]
    return [percentile(ratios, end) for end in INTERVAL]


def ratio(windows, others):
    """Returns the ratio of both p99 with its interval, as text."""
    if not others:
        return ""
    low, high = interval(windows, others)
    return f"{p99(windows) / p99(others):.2f} ({low:.2f} to {high:.2f})"


def report(name, cell):
    for kind in KINDS:
        windows = cell.times[kind]
        if not windows:
            print(f"| {name} | {kind} | 0 | | | | | | | |")
            continue
        every = [took for window in windows for took in window]
        ratios = [ratio(windows, cell.times[other]) if kind != other else "" for other in ("idle", "alone")]
        lost = sum(why.startswith(f"{kind}: ") for why in cell.lost)
        print(f"| {name} | {kind} | {len(windows)} | {len(every)} | {lost} | {percentile(every, 0.5):.2f} | "
              f"{p99(windows):.2f} | {ratios[0]} | {ratios[1]} | {statistics.mean(cell.cpu[kind]):.2f} |", flush=True)


def report_held(name, cell):
    if cell.held:
        in_flight, queued, held, refused = (statistics.median(column) for column in zip(*cell.held))
        print(f"\nHeld by the hostile tenant in cell {name} (medians): {in_flight:g} requests of {CONCURRENT}, "
              f"{queued:g} of them in {QUEUED} places of the queue, {held / (1 << 20):.1f} MiB of bodies; {refused:.0f} "
              f"requests a second above its limits; {CONNECTIONS} more connections.")
    print(f"Its replies: {dict(sorted(cell.counts.items()))}. Windows that do not count: {cell.skipped}.")
    for why, count in collections.Counter(cell.lost).most_common(10):
        print(f"Lost: {count} times {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warmroute")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--cell", action="append", choices=["own", "shared"])
    parser.add_argument("--base-port", type=int, default=22400)
    args = parser.parse_args()
    warmroute, draw, cells = os.path.abspath(args.warmroute), random.Random(1), {}
    print("| engines | window | windows | requests | lost | p50, ms | p99, ms | p99, of idle | p99, of alone | router, cores |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.cell or ["own", "shared"]:
            flags, honest, hostile = engines_of(name)
            with Fleet(warmroute, f"{folder}/{name}", args.base_port, flags, configuration()) as fleet:
                fleet.follow_events()
                pin_programs(fleet)
                cell = cells[name] = Cell(fleet, honest, hostile)
                for _ in range(args.rounds):
                    for kind in draw.sample(KINDS, len(KINDS)):
                        cell.window(kind, args.seconds)
                cell.end()
            report(name, cell)
    for name, cell in cells.items():
        report_held(name, cell)
    sys.exit(1 if any(cell.lost or not cell.held for cell in cells.values()) else 0)


if __name__ == "__main__":
    main()
