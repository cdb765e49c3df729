"""Processes on chosen cores, and what they use by /proc."""

import os
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from processes import TICKS, cpu_seconds, family

# How long a program may take to end before it is killed, in seconds.
END_LIMIT = 2


class Program:
    """A process in a session of its own, pinned to a core. The caller ends it."""

    def __init__(self, core, command, log, stdout=None):
        with open(log, "a", encoding="utf-8") as output:
            self.process = subprocess.Popen(
                ["taskset", "-c", str(core)] + command, stdin=subprocess.DEVNULL, stdout=stdout or output, stderr=output,
                start_new_session=True, text=True,
            )
        self.log = log

    def is_running(self):
        return self.process.poll() is None

    def cpu_seconds(self):
        """Returns the user and system time of the process and its children."""
        return sum(cpu_seconds(pid) for pid in family(self.process.pid))

    def memory_kb(self, field="VmRSS"):
        """Returns resident memory of the process and its children, by a field of /proc/PID/status."""
        return sum(memory_kb(pid, field) for pid in family(self.process.pid))

    def end(self):
        pids = family(self.process.pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            limit = time.monotonic() + END_LIMIT
            while time.monotonic() < limit:
                if not self.is_running() and not any(os.path.exists(f"/proc/{pid}") for pid in pids):
                    return
                time.sleep(0.05)


def memory_kb(pid, field):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(field + ":"))
    except OSError:
        return 0


def busy_seconds():
    """Returns the time that all cores of the machine were busy."""
    total = 0.0
    with open("/proc/stat", encoding="utf-8") as file:
        for line in file:
            if line.startswith("cpu") and line[3].isdigit():
                user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in line.split()[1:8])
                total += (user + nice + system + irq + softirq) / TICKS
    return total


def wait_until_quiet(limit, quiet=0.12):
    """Waits, at most `limit` seconds, until other work keeps less than `quiet` cores busy; returns how many it keeps."""
    end = time.monotonic() + limit
    while True:
        before = busy_seconds()
        time.sleep(0.4)
        busy = (busy_seconds() - before) / 0.4
        if busy < quiet or time.monotonic() > end:
            return round(busy, 2)
        time.sleep(0.6)
