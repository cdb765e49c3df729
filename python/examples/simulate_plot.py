"""Draws the time to first token of several policies over the number of engines; needs matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from warmroute import simulate


def draw(trace: str, policies: list[str], workers: list[int], file: Path) -> None:
    report = simulate(trace, policies, workers, load=0.55)
    figure, axes = plt.subplots()
    for policy in policies:
        cells = [cell for cell in report["cells"] if cell["policy"] == policy]
        axes.plot([cell["workers"] for cell in cells], [cell["ttft_ms"]["mean"] for cell in cells], "o-", label=policy)
    axes.set(title=trace, xlabel="engines", ylabel="mean time to first token, ms")
    axes.legend()
    figure.savefig(file)
    plt.close(figure)


if __name__ == "__main__":
    chart = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("simulation.png")
    draw("synthetic:chat?sessions=200", ["round_robin", "least_loaded", "warm"], [2, 4, 8], chart)
    print(f"{chart} is written")
