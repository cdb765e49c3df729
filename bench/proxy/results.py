"""Reads results.json and gives medians over its repetitions."""

import json
import statistics

from measure import FORMAT, MEMORY, MEMORY_STREAMS


class Results:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if content.get("format") != FORMAT:
            raise SystemExit(f"{path} has the format {content.get('format')}: expected {FORMAT}")
        self.machine, self.settings = content["machine"], content["settings"]
        self.targets, self.rows = content["targets"], content["rows"]

    def label(self, target):
        entry = self.targets[target]
        return f"{entry['label']} {entry['version']}" if entry.get("version") else entry["label"]

    def rows_of(self, target, test=None):
        return [row for row in self.rows if row["target"] == target and test in (None, row["test"])]

    def median(self, target, test, *path):
        """Returns the median of a figure, or nothing if no repetition has it."""
        values = []
        for row in self.rows_of(target, test):
            for key in path:
                row = row.get(key) if isinstance(row, dict) else None
            if row is not None:
                values.append(row)
        return statistics.median(values) if values else None

    def growth_kb(self, target, streams):
        """Returns the median growth of memory with so many paced streams."""
        rows = [row for row in self.rows_of(target, MEMORY) if row["streams"] == streams]
        return statistics.median(row["growth_kb"] for row in rows) if rows else None

    def kb_per_stream(self, target):
        """Returns the slope of the growth over the number of streams, by least squares."""
        points = [(streams, self.growth_kb(target, streams)) for streams in MEMORY_STREAMS]
        points = [(streams, growth) for streams, growth in points if growth is not None]
        if len(points) < 2:
            return None
        return statistics.linear_regression(*zip(*points)).slope

    def added_us(self, target, test, distribution):
        """Returns how much longer the median request takes than without a proxy."""
        whole, direct = (self.median(name, test, distribution, "p50") for name in (target, "direct"))
        return None if whole is None or direct is None else whole - direct
