"""What the records of a run say: failures by their cause, hit rates, recoveries, false credits."""

import statistics

# A killed router is as good as the others when it has this share of their hit rate, over a window, in seconds.
GOOD, WINDOW, STEP, GOAL = 0.95, 2.0, 0.5, 10.0
# Longest time from the start of a process to its readiness, in seconds.
READY = 2.0
# How attempts at a killed router may fail; with the status, before the next process is ready.
EXCUSED = ("refused", "cut", "status 503")
# Fewest follow-up turns in a window that say anything.
FEWEST = 4
# Periods after a kill, in seconds, over which the hit rates of all kills are added up.
PERIODS = ((0, 1), (1, 2), (2, 3), (3, 5), (5, 10), (10, 20), (20, 30))


def hit_rate(turns):
    """Returns cached by all prompt tokens; nothing for no turns."""
    prompt = sum(turn.prompt_tokens for turn in turns)
    return sum(turn.cached_tokens for turn in turns) / prompt if prompt else None


def later_turns(turns):
    """Returns the turns that have something to find: all but the first of a conversation."""
    return [turn for turn in turns if turn.turn > 0]


def failures(load, routers):
    """Returns the attempts that failed while their router was killed or not ready again, and all others."""
    excused, others = {}, []
    for failure in load.failures:
        if failure.kind in EXCUSED and routers[failure.router].was_down(failure.started, failure.ended):
            excused[failure.kind] = excused.get(failure.kind, 0) + 1
        else:
            others.append(failure)
    return excused, others


def false_credits(turns):
    """Returns how often, and by how many tokens, more was predicted than the engine found."""
    beyond = [turn.predicted_tokens - turn.cached_tokens for turn in turns if turn.predicted_tokens > turn.cached_tokens]
    missed = [turn.cached_tokens - turn.predicted_tokens for turn in turns if turn.predicted_tokens < turn.cached_tokens]
    return {
        "turns": len(turns), "false_credits": len(beyond), "false_tokens": sum(beyond),
        "per_1000": round(1000 * len(beyond) / len(turns), 2) if turns else None,
        "missed_credits": len(missed), "missed_tokens": sum(missed),
    }


def between(turns, since, until):
    return [turn for turn in turns if since <= turn.started < until]


def recoveries(load, routers, end):
    """Returns one row per kill: how long until the router was ready, and as good as the others."""
    later = later_turns(load.turns)
    rows = []
    for at, router in enumerate(routers):
        kills = [killed for killed, _ in router.outages] + [end]
        for number, (killed, ready) in enumerate(router.outages):
            until = kills[number + 1]
            own = [turn for turn in between(later, killed, until) if turn.router == at]
            others = [turn for turn in between(later, killed, until) if turn.router != at]
            good = None
            for step in range(int((until - killed) / STEP)):
                since = killed + step * STEP
                in_window = between(own, since, since + WINDOW)
                compared = between(others, since, since + WINDOW)
                if len(in_window) >= FEWEST and compared and hit_rate(in_window) >= GOOD * hit_rate(compared):
                    good = round(max(step * STEP, ready - killed), 2)
                    break
            rows.append({
                "killed": killed, "router": at, "ready_s": round(ready - killed, 2) if ready else None,
                "good_s": good, "observed_s": round(until - killed, 1), "turns": len(own),
            })
    return sorted(rows, key=lambda row: row["killed"])


def after_kills(load, routers, end):
    """Returns, by period after a kill, the hit rates of the killed routers and of the others at that time."""
    later, rows = later_turns(load.turns), []
    for since, until in PERIODS:
        own, others = [], []
        for at, router in enumerate(routers):
            kills = [killed for killed, _ in router.outages] + [end]
            for killed, next_kill in zip(kills, kills[1:]):
                window = between(later, killed + since, min(killed + until, next_kill))
                own += [turn for turn in window if turn.router == at]
                others += [turn for turn in window if turn.router != at]
        rates = hit_rate(own), hit_rate(others)
        rows.append({
            "seconds": f"{since} to {until}", "turns": len(own), "killed_router": rates[0], "others": rates[1],
            "ratio": rates[0] / rates[1] if all(rates) else None,
        })
    return rows


def by_second(load, origin):
    """Returns, for each router, each second's turns and hit rate."""
    rows = {}
    for turn in load.turns:
        rows.setdefault((turn.router, int(turn.started - origin)), []).append(turn)
    return [
        {"router": router, "second": second, "turns": len(turns), "hit_rate": round(hit_rate(turns), 4)}
        for (router, second), turns in sorted(rows.items())
    ]


def distribution(values):
    """Returns the least, the median, the 95th percentile and the greatest."""
    if not values:
        return None
    values = sorted(values)
    return {
        "count": len(values), "least": round(values[0], 2), "p50": round(statistics.median(values), 2),
        "p95": round(values[min(len(values) - 1, int(0.95 * len(values)))], 2), "greatest": round(values[-1], 2),
    }
