#!/usr/bin/env python3
"""Draws the plots of docs/benchmarks/path.md from results: path-cpu.svg and path-latency.svg. Standard library only.

  plots.py results.json FOLDER
"""

import argparse
import math
import os
import sys

from results import Results
from tables import COSTS, LATENCIES, figure

# Pixels.
WIDTH, HEIGHT = 520, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 55
COLOURS = {
    "nginx": "#555555",
    "warmroute-round-robin": "#e59866",
    "warmroute-text": "#c0392b",
    "warmroute-exact": "#7b241c",
    "smg": "#2471a3",
    "sglang-router": "#1e8449",
    "vllm-router": "#8e44ad",
}
# Of targets that the command line added.
OTHER_COLOUR = "#b7950b"


class Axis:
    """A logarithmic axis with room around its values, from one pixel to another."""

    def __init__(self, values, start, end):
        self.least, self.most = min(values) / 1.3, max(values) * 1.3
        self.start, self.end = start, end

    def pixel(self, value):
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.start + share * (self.end - self.start)

    def ticks(self):
        """Returns powers of ten; with numbers in between where there are few."""
        decades = math.log10(self.most / self.least)
        steps = (1, 1.5, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 3 else (1,)
        ticks = [step * 10.0**power for power in range(-3, 9) for step in steps]
        return [tick for tick in ticks if self.least <= tick <= self.most]


def text(x, y, anchor, content, colour="#000"):
    content = content.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{content}</text>'


def line(start, end, colour):
    (x1, y1), (x2, y2) = start, end
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def tick_label(value):
    if value >= 1e3:
        return f"{value / 1e3:g}k"
    return f"{value:g}"


def frame(title, unit):
    middle, upright = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    return [
        f'<text x="{middle}" y="22" text-anchor="middle" font-weight="bold">{title}</text>',
        f'<text transform="translate(16 {upright}) rotate(-90)" text-anchor="middle">{unit}</text>',
        line((LEFT, TOP), (LEFT, HEIGHT - BOTTOM), "#444"),
        line((LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM), "#444"),
    ]


def grid(axis):
    parts = []
    for tick in axis.ticks():
        y = axis.pixel(tick)
        parts.append(line((LEFT, y), (WIDTH - RIGHT, y), "#ddd"))
        parts.append(text(LEFT - 6, y + 4, "end", tick_label(tick)))
    return parts


def line_chart(title, unit, places, series):
    """Draws a line for each (name, values), one value or nothing for each of the places."""
    values = [value for _, row in series for value in row if value]
    if not values:
        return []
    axis = Axis(values, HEIGHT - BOTTOM, TOP)
    step = (WIDTH - RIGHT - LEFT) / len(places)
    parts = grid(axis) + frame(title, unit)
    for at, place in enumerate(places):
        parts.append(text(LEFT + (at + 0.5) * step, HEIGHT - BOTTOM + 18, "middle", place))
    ends = []
    for name, row in series:
        colour = COLOURS.get(name, OTHER_COLOUR)
        points = [(LEFT + (at + 0.5) * step, axis.pixel(value)) for at, value in enumerate(row) if value]
        if not points:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        ends.append((points[-1][1], name, colour))
    return parts + names_at(ends)


def names_at(ends):
    """Writes names at the ends of their lines, not on top of each other."""
    parts, free = [], TOP
    for y, name, colour in sorted(ends):
        y = max(y, free)
        free = y + 15
        parts.append(text(WIDTH - RIGHT + 8, y + 4, "start", name, colour))
    return parts


def bar_chart(title, unit, bars):
    """Draws a bar for each (name, value), from 0."""
    bars = [(name, value) for name, value in bars if value]
    if not bars:
        return []
    left, right, bottom = 160, WIDTH - 70, HEIGHT - BOTTOM
    most, step = max(value for _, value in bars), (bottom - TOP) / len(bars)
    parts = [f'<text x="{(left + right) / 2}" y="22" text-anchor="middle" font-weight="bold">{title}</text>']
    parts.append(text((left + right) / 2, bottom + 20, "middle", unit))
    for at, (name, value) in enumerate(bars):
        y, width = TOP + at * step, (right - left) * value / most
        colour = COLOURS.get(name, OTHER_COLOUR)
        top, height = y + 0.15 * step, 0.7 * step
        parts.append(f'<rect x="{left}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')
        parts.append(text(left - 8, y + 0.5 * step + 4, "end", name))
        parts.append(text(left + width + 6, y + 0.5 * step + 4, "start", figure(value)))
    parts.append(line((left, TOP), (left, bottom), "#444"))
    return parts


def picture(charts):
    """Returns an SVG of the charts side by side."""
    width = WIDTH * len(charts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for at, chart in enumerate(charts):
        parts += [f'<g transform="translate({at * WIDTH} 0)">', *chart, "</g>"]
    return "\n".join(parts + ["</svg>"]) + "\n"


def draw(results, targets):
    """Returns the pictures by their file names."""
    *requests, event = COSTS
    cpu = [(name, [results.median(name, test, key) for _, test, key in requests]) for name in targets]
    events = [(name, results.median(name, *event[1:])) for name in targets]
    *replies, first = LATENCIES
    added = [(name, [results.added_us(name, test, key) for _, test, key in replies]) for name in targets]
    sizes = [head.partition(",")[0] for head, _, _ in replies]
    firsts = [(name, results.added_us(name, *first[1:])) for name in targets]
    charts = {
        "path-cpu.svg": [
            line_chart("CPU time per request", "microseconds", [head for head, _, _ in requests], cpu),
            bar_chart("CPU time per event of a stream", "microseconds", events),
        ],
        "path-latency.svg": [
            line_chart("Added to the reply at low load, p50", "microseconds", sizes, added),
            bar_chart("Added to a stream's first event, p50", "microseconds", firsts),
        ],
    }
    return {name: picture(two) for name, two in charts.items() if all(two)}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("results")
    options.add_argument("folder")
    args = options.parse_args()
    results = Results(args.results)
    pictures = draw(results, [name for name in results.targets if name != "direct"])
    for name, content in pictures.items():
        with open(os.path.join(args.folder, name), "w", encoding="utf-8") as file:
            file.write(content)
    if len(pictures) < 2:
        print("plots.py: a plot is missing, because the results lack its measurements or `direct`", file=sys.stderr)


if __name__ == "__main__":
    main()
