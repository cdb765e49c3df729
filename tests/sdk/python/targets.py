"""The targets of the checks, and the report of their results."""

import dataclasses
import json
import time
import traceback
import urllib.request

MODEL = "sim"


@dataclasses.dataclass
class Target:
    """One base URL, the simulated engine behind it, and which APIs of it are checked."""

    name: str
    url: str
    engine: str
    apis: list

    def aborted(self):
        """Number of the engine's generations that their clients cut off."""
        with urllib.request.urlopen(self.engine + "/sim/stats", timeout=10) as reply:
            return json.load(reply)["aborted"]

    def eventually_aborts(self, before):
        for _ in range(200):
            if self.aborted() > before:
                return
            time.sleep(0.05)
        raise AssertionError("the engine never heard that its client left")


CHECKS = []


def check(api):
    """Registers a check of one API: a function of a client and a target."""

    def register(function):
        CHECKS.append((api, function))
        return function

    return register


def run(target, clients):
    """Runs the checks that apply to the target; returns the number of failed ones."""
    failures = 0
    for api, function in CHECKS:
        if api not in target.apis:
            continue
        what = f"{target.name} {api} {function.__name__}"
        try:
            function(clients[function.__module__], target)
            print(f"ok {what}", flush=True)
        except Exception:
            failures += 1
            print(f"FAILED {what}\n{traceback.format_exc()}", flush=True)
    return failures
