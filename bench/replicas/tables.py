"""The findings of a run as tables."""

# Counters that say nothing about faults.
USUAL = ("replica_bytes", "replica_messages", 'outcome="published"', 'outcome="received"')


def printed(results):
    parts = [table(("what", "value"), summary(results))]
    if "after_kills" in results:
        rows = [
            (row["seconds"], row["turns"], percent(row["killed_router"]), percent(row["others"]), number(row["ratio"]))
            for row in results["after_kills"]
        ]
        parts.append(table(("seconds after a kill", "turns", "hit rate", "of the others", "ratio"), rows))
    if "partition" in results:
        rows = [
            (row["phase"], row["router"], row["turns"], percent(row["hit_rate"]), row["false_credits"], row["per_1000"],
             row["false_tokens"], row["missed_tokens"])
            for row in results["partition"]
        ]
        head = ("phase", "router", "turns", "hit rate", "false credits", "per 1000", "tokens", "tokens not credited")
        parts.append(table(head, rows))
    for name, when in (("differences", "idle"), ("differences_after_all", "after all were killed")):
        if results[name]:
            columns = ("router", "engine", "more", "less", "index", "in_engine")
            rows = [[row[column] for column in columns] for row in results[name]]
            head = (f"router, {when}", "engine", "blocks that a fresh router lacks", "blocks that it has alone",
                    "blocks in the index", "blocks in the engine")
            parts.append(table(head, rows))
    broken = results["broken"]
    parts.append("\n".join(f"broken: {what}" for what in broken) if broken else "every promise was kept")
    return "\n\n".join(parts)


def summary(results):
    """Yields a row for each figure."""
    yield "mode", results["mode"]
    yield "requests answered, in seconds", f"{results['turns']} in {results['seconds']}"
    yield "requests lost", len(results["lost"])
    excused = results["failures_of_killed"]
    yield "failed attempts at a killed router", ", ".join(f"{n} {kind}" for kind, n in sorted(excused.items())) or 0
    yield "other failed attempts", len(results["other_failures"])
    yield "whole requests, s", spread(results["seconds_of_requests"])
    yield "hit rate, all turns", percent(results["hit_rate"])
    yield "hit rate, later turns (by router)", "{} ({})".format(
        percent(results["hit_rate_later"]), ", ".join(percent(rate) for rate in results["hit_rate_by_router"])
    )
    if "kills" in results:
        yield "kills", results["kills"]
        yield "from start to ready, s", spread(results["seconds_to_ready"])
        yield "from kill to 95 % of the others' hit rate, s", spread(results["recovery"])
        yield "later than 10 s, or never", results["recovered_late"]
    credit = results["credit"]
    yield "false credits (per 1000 requests; tokens)", "{false_credits} ({per_1000}; {false_tokens})".format(**credit)
    yield "cached but not predicted (tokens)", "{missed_credits} ({missed_tokens})".format(**credit)
    for name, what in (("idle", "of all three"), ("fresh", "and a fresh router"), ("after_all_killed", "after all were killed")):
        found = results[name]
        yield f"equal digests, {what}", (
            f"no: {', '.join(found['differing'])}" if found["differing"]
            else f"yes, {found['blocks']} blocks, after {found['equal_s']} s"
        )
        yield f"no load left, {what}", "no" if found["load"] else f"yes, after {found['without_load_s']} s"
    yield "from start to ready after all were killed, s", ", ".join(map(str, results["seconds_to_ready_after_all"]))
    for name, value in sorted(results["counters"].items()):
        if value and not any(part in name for part in USUAL):
            yield name, int(value)
    for message, count in sorted(results["warnings"].items()):
        yield f"warning: {message}", count


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value):
    return "-" if value is None else f"{value:.3f}"


def spread(values):
    if not values:
        return "-"
    return "p50 {p50}, p95 {p95}, {least} to {greatest} ({count})".format(**values)
