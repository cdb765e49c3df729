"""What a process and its children use, by /proc."""

import os

TICKS = os.sysconf("SC_CLK_TCK")


def family(root):
    """Returns a process and its children."""
    children = {}
    for name in os.listdir("/proc"):
        fields = stat(name) if name.isdigit() else None
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    members, todo = [], [root]
    while todo:
        pid = todo.pop()
        members.append(pid)
        todo += children.get(pid, [])
    return members


def stat(pid):
    """Returns the fields of /proc/PID/stat after the name, or nothing if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def cpu_seconds(pid):
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0
