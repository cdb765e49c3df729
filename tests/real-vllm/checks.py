"""The checks, one function per part. Each adds rows to the table: what, value, wanted, whether it holds."""

import json
import random
import signal
import subprocess
import threading
import time

from processes import Cable, Http, Router
from workload import chat, drive, sentence, sessions

SETTLE_S = 5.0


class Table:
    """The rows of the result."""

    def __init__(self):
        self.rows = []

    def row(self, what, value, wanted, holds):
        self.rows.append({"what": what, "value": value, "wanted": wanted, "holds": bool(holds)})
        print(f"{'ok  ' if holds else 'MISS'} {what}: {value} (wanted: {wanted})", flush=True)


class Bench:
    """State shared by the parts: the engines, the program under test and the table."""

    def __init__(self, program, engines, folder, tokens, quick, table):
        self.program, self.engines, self.folder, self.tokens, self.quick = program, engines, folder, tokens, quick
        self.row = table.row

    def router(self, *flags, settings=None):
        return Router(self.program, self.engines, self.folder, *flags, settings=settings)

    def reset_caches(self):
        """Empties the engines' caches. The event is sent with the next step, so each engine computes one token."""
        for engine in self.engines:
            reset(engine)
            engine.http.json("POST", "/v1/completions", {"model": "tiny", "prompt": [5], "max_tokens": 1})

    def counters(self):
        return [engine.counters() for engine in self.engines]

    def hit_rate(self, before):
        queries = sum(now[0] - then[0] for now, then in zip(self.counters(), before, strict=True))
        hits = sum(now[1] - then[1] for now, then in zip(self.counters(), before, strict=True))
        return hits / queries if queries else 0.0


def reset(engine):
    status, _, text = engine.http.ask("POST", "/reset_prefix_cache")
    # Older releases reply only 200.
    if status != 200 or text and not json.loads(text)["success"]:
        raise RuntimeError(f"{engine.name} did not reset its prefix cache")


# The engine refuses these, so the router's own tokenizer must too.
REFUSED = [
    {"messages": []},
    {"messages": [{"role": "user"}], "add_generation_prompt": True, "continue_final_message": True},
    {"messages": "hello"},
    {"prompt": 7},
    {},
]


def ids(bench):
    """Sends every recorded prompt and chat to the engine and the router."""
    engine = bench.engines[0].http
    with bench.router() as router:
        own = Http(router.data)
        asked = equal = 0
        differing = []
        for line in bench.tokens.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "prompt":
                body = {"prompt": record["prompt"], "add_special_tokens": record["add_special_tokens"]}
            else:
                body = record["request"]
            asked += 1
            theirs, ours = (tokenized(http, body) for http in (engine, own))
            if theirs == ours and ours[0] == 200:
                equal += 1
            else:
                differing.append((body, theirs, ours))
        bench.row("prompts and chats whose ids equal the engine's", f"{equal} of {asked}", "all", equal == asked)
        both = [(tokenized(engine, body)[0], tokenized(own, body)[0]) for body in REFUSED]
        refused = sum(theirs >= 400 and ours >= 400 for theirs, ours in both)
        bench.row("requests refused by both", f"{refused} of {len(both)}", "all", refused == len(both))
        for body, theirs, ours in differing[:3]:
            print("   differs:", json.dumps(body)[:300], theirs, ours)
        if refused != len(both):
            print("   statuses:", both)


def tokenized(http, body):
    status, _, text = http.ask("POST", "/tokenize", {"model": "tiny", **body})
    return status, json.loads(text)["tokens"] if status == 200 else None


# Findings that a well configured engine must have; those that do not apply to it may be skipped.
MUST_HOLD = {
    *("reachable", "model_listed", "block_size", "prefix_caching", "tokenizer", "chat_template", "special_tokens"),
    *("usage_details", "events_enabled", "events_endpoint", "events_arriving", "replay", "sequence", "hash_alias"),
}


def doctor(bench):
    """Passes for these engines; one wrong setting is reported, and only that one."""
    code, report = diagnose(bench)
    checks = [check for worker in report["workers"] for check in worker["checks"]]
    held = [{check["id"] for check in worker["checks"] if check["status"] == "ok"} for worker in report["workers"]]
    missing = set().union(*(MUST_HOLD - ids for ids in held))
    counts = {status: sum(check["status"] == status for check in checks) for status in ("ok", "warn", "fail", "skip")}
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    green = code == 0 and counts["fail"] == 0 and not missing and len(held) == len(bench.engines)
    bench.row("doctor", told, "no failure, exit 0", green)
    for check in checks:
        if check["status"] in ("fail", "warn"):
            print("   ", check["id"], check["message"])
    if missing:
        print("    not shown:", missing)

    code, report = diagnose(bench, "--block-size", "16")
    named = {check["id"] for worker in report["workers"] for check in worker["checks"] if check["status"] == "fail"}
    holds = code == 1 and named == {"block_size"}
    bench.row(
        "doctor, told a wrong block size",
        f"exit {code}, names {', '.join(sorted(named))}",
        "exit 1, names block_size",
        holds,
    )


def diagnose(bench, *flags):
    command = [bench.program, "doctor", "--json", *flags]
    for engine in bench.engines:
        command += ["-w", f"{engine.name}={engine.url}"]
    ran = subprocess.run(command, capture_output=True, timeout=120, text=True)
    return ran.returncode, json.loads(ran.stdout)


def parity(bench):
    """Predicted against actual cached tokens, first one request after the other, then eight at a time."""
    for what, clients, wanted in (("one at a time", 1, 0.99), ("eight at a time", 8, 0.95)):
        bench.reset_caches()
        with bench.router() as router:
            before = bench.counters()
            answers = drive(router.data, sessions(16 if bench.quick else 40, 5, seed=clients), clients)
            errors = [answer.error for answer in answers if answer.error]
            joined = [answer for answer in answers if not answer.error]
            exact = sum(answer.predicted == answer.cached for answer in joined)
            share = exact / max(len(joined), 1)
            name = f"predicted = actual cached tokens, {what}"
            bench.row(
                name, f"{exact} of {len(joined)} ({share:.1%})", f">= {wanted:.0%}", share >= wanted and not errors
            )
            for answer in [answer for answer in joined if answer.predicted != answer.cached][:8]:
                print(f"   {answer.worker}: predicted {answer.predicted}, actual {answer.cached} of {answer.prompt}")
            if errors:
                print("   errors:", len(errors), errors[:3])
            counted = sum(answer.cached for answer in joined)
            hits = sum(now[1] - then[1] for now, then in zip(bench.counters(), before, strict=True))
            bench.row(
                f"sum of replies against the engines' hit counters, {what}",
                f"{counted} / {hits:.0f}",
                "equal",
                counted == hits,
            )
            reported = settled(router, len(joined))
            value = f"{reported['exact']} of {reported['joined']} exact, {reported['state']}"
            bench.row(f"/admin/parity, {what}", value, "the same, ok", value == f"{exact} of {len(joined)} exact, ok")


def settled(router, requests, limit=10):
    """The router's own figures, once it has completed this many requests."""
    end = time.monotonic() + limit
    while True:
        total = router.admin.json("GET", "/admin/parity")["total"]
        if total["joined"] >= requests or time.monotonic() > end:
            return total
        time.sleep(0.05)


def ideal_pin(bench):
    """Pins each system prompt to one engine."""
    names = [engine.name for engine in bench.engines]
    return lambda session: names[session.system_number % len(names)]


def measured_round(bench, flags, pin, number):
    """Returns the engines' own hit rate in a round of sessions, the mean TTFT in ms, and the number of errors."""
    bench.reset_caches()
    with bench.router(*flags) as router:
        before = bench.counters()
        answers = drive(router.data, sessions(20, 5, seed=100 + number), 4, seed=number, pin=pin)
        rate = bench.hit_rate(before)
    times = [answer.ttft_ms for answer in answers if answer.ttft_ms is not None]
    errors = sum(answer.error is not None for answer in answers)
    return rate, sum(times) / max(len(times), 1), errors


def hit_rates(bench):
    """The engines' own hit rate: round robin, the router's default, and each system prompt pinned to one engine."""
    pinned = ideal_pin(bench)
    policies = {"round_robin": (["--policy", "round_robin"], None), "warm": ([], None), "ideal sticky": ([], pinned)}
    rounds = 1 if bench.quick else 3
    rates, ttfts, errors = {name: [] for name in policies}, {name: [] for name in policies}, 0
    for number in range(rounds):
        for name, (flags, pin) in policies.items():
            rate, ttft, failed = measured_round(bench, flags, pin, number)
            rates[name].append(rate)
            ttfts[name].append(ttft)
            errors += failed
            print(f"   {name}: hit rate {rate:.3f}, mean TTFT {ttft:.0f} ms", flush=True)
    mean = {name: sum(values) / rounds for name, values in rates.items()}
    shown = ", ".join(f"{name} {rate:.3f} (TTFT {sum(ttfts[name]) / rounds:.0f} ms)" for name, rate in mean.items())
    bench.row(
        "engines' own hit rate", shown, "warm above round robin", mean["warm"] > mean["round_robin"] and errors == 0
    )
    share = mean["warm"] / mean["ideal sticky"]
    bench.row("warm against ideal sticky", f"{share:.3f}", ">= 0.97", share >= 0.97)


def agrees(bench, router, what, happened=True):
    """Whether the router's index soon equals one that a fresh router rebuilds by full replay. The seconds count
    from the moment the fresh one follows the streams."""
    with bench.router() as fresh:
        begun = time.monotonic()
        while True:
            ours, rebuilt = router.digest(), fresh.digest()
            took = time.monotonic() - begun
            if ours == rebuilt or took > 3 * SETTLE_S:
                break
            time.sleep(0.02)
    blocks = sum(row[3] for row in ours)
    same = ours == rebuilt and blocks > 0 and happened
    value = f"equal after {took:.2f} s, {blocks} blocks" if same else f"after {took:.1f} s: {ours} {rebuilt}"
    bench.row(
        f"index digest against a full replay, {what}",
        value,
        f"equal within {SETTLE_S:.0f} s",
        same and took <= SETTLE_S,
    )


def removals(router):
    """Number of blocks that the engines announced as removed."""
    lines = router.admin.ask("GET", "/metrics")[2].decode().splitlines()
    of_kind = [line for line in lines if line.startswith("warmroute_kv_events_total{") and 'kind="removed"' in line]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in of_kind)


def faults(bench):
    """Evictions, a reset cache, a killed and restarted engine, a cut connection, a restarted router: afterwards the index is
    what a full replay gives."""
    bench.reset_caches()
    with bench.router() as router:
        http = Http(router.data)
        rng = random.Random(5)
        before = removals(router)
        # More blocks than both caches hold.
        answers = [chat(http, [{"role": "user", "content": sentence(rng, 500)}], stream=False) for _ in range(60)]
        evicted = removals(router) - before
        happened = evicted > 0 and not any(answer.error for answer in answers)
        agrees(bench, router, f"{evicted} evictions", happened)

        reset(bench.engines[0])
        # An idle engine announces the reset with its next step.
        for engine in bench.engines:
            chat(http, [{"role": "user", "content": sentence(rng, 300)}], False, {"x-warmroute-worker": engine.name})
        agrees(bench, router, "reset of one cache")

        killed(bench, router)
    cut(bench)


def cut(bench):
    """The event connection is cut in the middle of traffic, and the engine's events meanwhile never arrive on it."""
    engine, rng = bench.engines[0], random.Random(6)
    with Cable(engine) as cable, bench.router(*cable.flags) as router:
        http = Http(router.data)
        here = {"x-warmroute-worker": engine.name}
        told = [chat(http, [{"role": "user", "content": sentence(rng, 300)}], False, here) for _ in range(4)]
        cable.cut()
        # Stored and removed while the connection is cut; removed, because they exceed the cache.
        missed = [chat(http, [{"role": "user", "content": sentence(rng, 500)}], False, here) for _ in range(30)]
        cable.mend()
        told += missed
        told.append(chat(http, [{"role": "user", "content": sentence(rng, 300)}], False, here))
        router.wait_for_streams(len(bench.engines), limit=30)
        stream = next(s for s in router.admin.json("GET", "/admin/streams")["streams"] if s["worker"] == engine.name)
        happened = not any(answer.error for answer in told) and stream["endpoint"].endswith(".cable")
        agrees(bench, router, f"cut connection ({stream['counts']['gaps']} gaps)", happened)
        before = router.digest()
    with bench.router() as again:
        agrees(bench, again, "restart of the router", before == again.digest())


def killed(bench, router):
    """kill -9 of one engine under traffic, then its restart."""
    victim = bench.engines[1]
    answered, enough = [], threading.Event()

    def seen(answer):
        answered.append(answer)
        if len(answered) >= 20:
            enough.set()

    traffic = threading.Thread(target=lambda: drive(router.data, sessions(16, 5, seed=77), 4, on_answer=seen))
    traffic.start()
    enough.wait(120)
    served = sum(answer.worker == victim.name for answer in list(answered))
    victim.process.end(signal.SIGKILL)
    traffic.join()
    failed = [answer.error for answer in answered if answer.error]
    # Replies that had begun are cut, with an error event or an unclean end; all other requests are answered elsewhere.
    lost = [error for error in failed if not any(word in error for word in ("stream_interrupted", "IncompleteRead"))]
    value = f"{len(lost)} of {len(answered)}, {len(failed) - len(lost)} cut; it had answered {served}"
    # All 80 replies: otherwise the kill met no traffic.
    happened = served > 0 and len(answered) == 80
    bench.row("requests lost when an engine is killed", value, "0 lost", not lost and happened)
    for error in lost[:3]:
        print("   ", error)
    victim.start()
    took = victim.wait()
    begun = time.monotonic()
    router.wait_for_streams(len(bench.engines), limit=30)
    back = time.monotonic() - begun
    bench.row(
        "restarted engine back in use", f"{back:.2f} s after it was healthy (start {took:.0f} s)", "<= 3 s", back <= 3
    )
    answers = drive(router.data, sessions(8, 3, seed=78), 4)
    # So that the new process holds blocks, whatever the policy chooses.
    answers += drive(router.data, sessions(2, 3, seed=79), 2, pin=lambda _: victim.name)
    agrees(bench, router, "kill -9 and restart", not any(answer.error for answer in answers))


PARTS = {"ids": ids, "doctor": doctor, "parity": parity, "hit_rates": hit_rates, "faults": faults}
