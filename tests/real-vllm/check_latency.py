"""Times to first token: those of `warm` where nothing is to be gained, and those that the router predicts."""

import time

from workload import drive, sessions

# A mean over fewer first tokens is not stable to a twentieth.
ROUNDS = 10
MOST_RATIO = 1.05

# Requests in which the router learns the engines' speed.
LEARNING = 60
FACTOR = 1.5
LEAST_SHARE = 0.9


def first_tokens(harness):
    """With prompts so short that their length does not matter, `warm` is as quick as `least_loaded`."""
    policies = ("warm", "least_loaded")
    times, errors = {name: [] for name in policies}, 0
    rounds = 3 if harness.quick else ROUNDS
    with harness.bench("tiny") as bench:
        flags = [["--policy", name] for name in policies]
        # Both at once, so that neither forgets what it has learned between its rounds.
        with bench.router(*flags[0]) as warm, bench.router(*flags[1]) as least_loaded:
            routers = dict(zip(policies, (warm, least_loaded), strict=True))
            # The first round is not counted: the engines compile some functions then.
            for number in range(rounds + 1):
                for name in policies if number % 2 else reversed(policies):
                    bench.reset_caches()
                    work = sessions(50, 2, seed=300 + number, system_words=40)
                    answers = drive(routers[name].data, work, 4, seed=number, all_streamed=True)
                    errors += sum(answer.error is not None for answer in answers)
                    if number > 0:
                        times[name] += [answer.ttft_ms for answer in answers if answer.ttft_ms is not None]
    mean = {name: sum(values) / max(len(values), 1) for name, values in times.items()}
    ratio = mean["warm"] / mean["least_loaded"] if mean["least_loaded"] else 0.0
    told = ", ".join(f"{name} {mean[name]:.1f} ms of {len(times[name])}" for name in policies)
    harness.row("mean TTFT of short prompts", told, "no errors", errors == 0)
    value = f"{ratio:.3f}"
    harness.row("warm against least_loaded", value, f"<= {MOST_RATIO}", 0 < ratio <= MOST_RATIO)


def predictions(harness):
    """Nine in ten first tokens come within a factor of 1.5 of the time that the router predicted."""
    with harness.bench("small") as bench:
        bench.reset_caches()
        with bench.router() as router:
            work = sessions(20 if bench.quick else 60, 5, seed=400)
            answers = drive(router.data, work, 4, all_streamed=True)
            receipts = settled_receipts(router, len(answers))
            parity = router.admin.json("GET", "/admin/parity")["ttft"]
    errors = sum(answer.error is not None for answer in answers)
    pairs = [pair for pair in map(predicted_and_actual, receipts[LEARNING:]) if pair]
    within = sum(1 / FACTOR <= predicted / actual <= FACTOR for predicted, actual in pairs)
    share = within / max(len(pairs), 1)
    harness.row(
        f"predicted TTFT within a factor of {FACTOR} of the actual one",
        f"{within} of {len(pairs)} ({share:.1%})",
        f">= {LEAST_SHARE:.0%}",
        share >= LEAST_SHARE and errors == 0,
    )
    for worker in parity:
        for row in worker["classes"]:
            told = ", ".join(f"{key} {row[key]:.2f}" for key in ("ratio_p10", "ratio_p50", "ratio_p90", "margin"))
            print(f"   {worker['worker']}, from {row['from_ms']:.0f} ms, {row['samples']} samples: {told}")
    compared = sum(row["samples"] for worker in parity for row in worker["classes"])
    harness.row("first tokens in /admin/parity", compared, "> 0", compared > 0)


def settled_receipts(router, count, limit=10):
    """The receipts of all requests, the oldest first, once each has its outcome."""
    end = time.monotonic() + limit
    while True:
        receipts = router.admin.json("GET", "/admin/decisions?limit=1000")["decisions"]
        settled = [receipt for receipt in receipts if receipt["outcome"]]
        if len(settled) >= count or time.monotonic() > end:
            return settled[::-1]
        time.sleep(0.05)


def predicted_and_actual(receipt):
    """In ms from the decision on; nothing for a request without a first token."""
    actual = receipt["outcome"]["ttft_ms"]
    rows = [row for row in receipt["candidates"] if row["target"] == receipt["winner"]]
    if actual is None or not rows or rows[0]["predicted_ttft_ms"] is None:
        return None
    # The time in the queue lies before the decision.
    return rows[0]["predicted_ttft_ms"], max(actual - receipt["hold"]["held_ms"], 0.001)
