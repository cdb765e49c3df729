"""The router's default policy against the best that knowledge of the workload gives."""

from checks import ideal_pin, measured_round

ROUNDS = 3
LEAST_SHARE = 0.97


def sticky(harness):
    """In every round `warm` reaches 0.97 of the hit rate of system prompts that are pinned to one engine each."""
    with harness.bench() as bench:
        pinned = ideal_pin(bench)
        for number in range(ROUNDS):
            rate, _, errors = measured_round(bench, [], None, number)
            ideal, _, ideal_errors = measured_round(bench, [], pinned, number)
            share = rate / ideal if ideal else 0.0
            bench.row(
                f"hit rate of warm against ideal sticky, round {number + 1}",
                f"{rate:.3f} / {ideal:.3f} = {share:.3f}",
                f">= {LEAST_SHARE}",
                share >= LEAST_SHARE and errors + ideal_errors == 0,
            )
