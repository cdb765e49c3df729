#!/usr/bin/env python3
"""Draws the figures of run.py: the time to the first token of the questions, p50 and p95, and the aim for the p95.

  python3 bench/fairness/plot.py TABLE PLOT.svg

TABLE is a file with the table that run.py prints, such as docs/tenants.md. Standard library only.
"""

import argparse
import math
import sys

# The runs, as in the first column of the table.
RUNS = ("alone", "beside 51 agents, one tenant", "beside 51 agents, two tenants")
# Most that the p95 beside agents of another tenant may be, as a multiple of that of the questions alone.
AIM = 1.3
# The longest bar, as a multiple of the p95 of the questions alone. Longer ones are cut: an overload has no end.
LONGEST = 3

# Sizes and colours are those of docs/tenants-fairness.svg (crates/simulate/examples/fairness.rs).
WIDTH, HEIGHT = 820, 320
BASE, BAR_HEIGHT = 250, 190
LEFT, GROUP_STEP, BAR_WIDTH, BAR_STEP = 80, 250, 44, 50
COLOURS = ("#8aa4bd", "#a0672f", "#3f6f4f")
# The p50 beside the p95, which has the full colour.
LIGHT = 0.5


def text(x, y, content, anchor=None, size=None):
    font = f' font-size="{size}"' if size else ""
    place = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:.1f}"{font}{place}>{content}</text>'


def rectangle(x, y, width, height, colour, opacity=1):
    faint = f' fill-opacity="{opacity}"' if opacity < 1 else ""
    return f'<rect x="{x:g}" y="{y:.1f}" width="{width}" height="{height:.1f}" fill="{colour}"{faint}/>'


def dashes(x1, x2, y):
    return f'<line x1="{x1}" y1="{y:.1f}" x2="{x2}" y2="{y:.1f}" stroke="#000000" stroke-dasharray="6 4"/>'


def draw(figures):
    """Returns an SVG of the (p50, p95) of each run, in milliseconds and in the order of RUNS."""
    alone = figures[0][1]
    most = math.ceil(LONGEST * alone / 100) * 100
    height_of = lambda value: BAR_HEIGHT * min(value / most, 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(16, 22, f"Time to first token of single questions over sockets, p50 and p95, ms (bars end at {most:,})",
             size=14),
    ]
    numbers = []
    for at, (name, colour) in enumerate(zip(RUNS, COLOURS)):
        left = LEFT + GROUP_STEP * at
        for bar, (value, opacity) in enumerate(zip(figures[at], (LIGHT, 1))):
            x, height = left + BAR_STEP * bar, height_of(value)
            parts.append(rectangle(x, BASE - height, BAR_WIDTH, height, colour, opacity))
            numbers.append(text(x + BAR_WIDTH / 2, BASE - height - 4, f"{value:.0f}", "middle"))
        parts.append(text(left + (BAR_STEP + BAR_WIDTH) / 2, BASE + 18, name, "middle"))
    y = BASE - height_of(AIM * alone)
    parts.append(dashes(40, WIDTH - 16, y))
    numbers.append(text(WIDTH - 16, y - 4, f"{AIM * alone:.0f}", "end"))
    # In front of the line, with an edge of white that keeps them readable there.
    parts += ['<g paint-order="stroke" stroke="#ffffff" stroke-width="4">', *numbers, "</g>"]
    parts += [
        rectangle(40, 286, 12, 12, "#000000", LIGHT), text(58, 296, "p50"),
        rectangle(110, 286, 12, 12, "#000000"), text(128, 296, "p95"),
        dashes(180, 204, 292), text(210, 296, f"aim: p95 at most {AIM} times that of the questions alone"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def write(path, figures):
    """Draws the figures, see `draw`, into a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(draw(figures))


def read_table(path):
    """Returns the figures of a table, see `draw`. Its columns are the run, a number, p50, p95 and others."""
    figures = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if len(cells) >= 4 and cells[0] in RUNS:
                figures[cells[0]] = float(cells[2]), float(cells[3])
    missing = [name for name in RUNS if name not in figures]
    if missing:
        sys.exit(f"plot.py: {path} has no row for: {'; '.join(missing)}")
    return [figures[name] for name in RUNS]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table")
    parser.add_argument("svg")
    args = parser.parse_args()
    write(args.svg, read_table(args.table))


if __name__ == "__main__":
    main()
