#!/usr/bin/env python3
"""How much processor time the router takes for each MiB of JSON, also of hostile JSON (threat S61).

  python3 bench/hostile/parse_cost.py WARMROUTE [--mib 1] [--repeats 10]

WARMROUTE is the program. It is started as a simulated engine and as a router in front of it, on loopback. Bodies of
this size are small requests of each kind with one large member that no API knows, or with members again and again; each
is sent some times, and the router's time is divided by the size. It contains all that the router does with a request,
such as to copy the body to the engine. Bodies whose prompt is large are shown below, without a bound: they are
tokenized and hashed, too. Exit code 1 above 20 ms for each MiB. Standard library only.
"""

import argparse
import json
import os
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
from amplification import cost, request
from fleet import Fleet

# Most milliseconds for each MiB.
MOST = 20

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
KINDS = {
    "chat": ("/v1/chat/completions", CHAT, "messages"),
    "messages": ("/v1/messages", CHAT, "messages"),
    "responses": ("/v1/responses", {"model": "sim", "input": "hi", "max_output_tokens": 1}, "input"),
    "token ids": ("/v1/completions", {"model": "sim", "prompt": [1, 2, 3], "max_tokens": 1}, "prompt"),
    "route": ("/v1/route", CHAT, "messages"),
}


def repeated(unit, room, begin="", end=""):
    """Returns as many of a unit as there is room for, with commas between them."""
    count = max(1, (room - len(begin) - len(end)) // (len(unit.encode()) + 1))
    return begin + ",".join([unit] * count) + end


def numbered(room, value):
    """Returns the members of an object, each with a name of its own."""
    members, size = [], 0
    while size < room - 20:
        members.append(f'"k{len(members)}":{value}')
        size += len(members[-1]) + 1
    return "{" + ",".join(members) + "}"


# Values of a member that no API knows.
VALUES = {
    "a text": lambda room: '"' + "a" * (room - 2) + '"',
    "spaces": lambda room: " " * (room - 1) + "1",
    "escaped line ends": lambda room: '"' + "\\n" * (room // 2 - 1) + '"',
    "escaped letters": lambda room: '"' + "\\u00e9" * (room // 6 - 1) + '"',
    "escaped pairs of surrogates": lambda room: '"' + "\\ud83d\\ude00" * (room // 12 - 1) + '"',
    "escaped lone surrogates": lambda room: '"' + "\\ud83d" * (room // 6 - 1) + '"',
    "characters of three bytes": lambda room: '"' + "\u4e2d" * (room // 3 - 1) + '"',
    "arrays, one in the other": lambda room: "[" * (room // 2) + "]" * (room // 2),
    "objects, one in the other": lambda room: '{"a":' * (room // 6) + "1" + "}" * (room // 6),
    "arrays of depth 100": lambda room: repeated("[" * 100 + "]" * 100, room, "[", "]"),
    "keys": lambda room: numbered(room, "1"),
    "keys with objects": lambda room: numbered(room, '{"a":1}'),
    "equal keys": lambda room: repeated('"a":1', room, "{", "}"),
    "a number": lambda room: "9" * room,
    "a fraction": lambda room: "0." + "9" * (room - 2),
    "numbers": lambda room: repeated("7", room, "[", "]"),
    "fractions": lambda room: repeated("0.1234567890123456789e-5", room, "[", "]"),
    "empty texts": lambda room: repeated('""', room, "[", "]"),
    "empty objects": lambda room: repeated("{}", room, "[", "]"),
    "literals": lambda room: repeated("null", room, "[", "]"),
}


def with_value(value):
    """Returns the function of a body with a large member of this value."""
    return lambda body, _prompt, room: json.dumps(body)[:-1] + ', "x": ' + value(room) + "}"


def again_and_again(body, _prompt, room):
    """Returns a body that has all of its members many times."""
    return repeated(json.dumps(body)[1:-1], room, "{", "}")


def with_model_again(body, _prompt, room):
    return json.dumps(body)[:-1] + "," + repeated('"model":"sim"', room) + "}"


def behind_the_end(body, _prompt, room):
    return json.dumps(body) + repeated("1", room)


def not_a_number(body, _prompt, room):
    return json.dumps(body)[:-1] + ',"x":' + repeated("1", room, "[", ",NaN]") + "}"


def with_text(body, prompt, room):
    """Returns a body whose prompt is one large text, or as many token ids as there is room for."""
    if prompt == "prompt":
        return json.dumps(body | {prompt: json.loads(repeated("1234", room, "[", "]"))}, separators=(",", ":"))
    text = "word " * (room // 5)
    return json.dumps(body | {prompt: text if prompt == "input" else [{"role": "user", "content": text}]})


def with_entries(body, prompt, room):
    """Returns a body whose prompt has as many parts as there is room for."""
    unit = "[7]" if prompt == "prompt" else '{"role":"user","content":"a"}'
    return json.dumps(body | {prompt: json.loads(repeated(unit, room, "[", "]"))}, separators=(",", ":"))


BOUNDED = {name: with_value(value) for name, value in VALUES.items()} | {
    "all members again and again": again_and_again,
    "`model` again and again": with_model_again,
    "bytes behind the end": behind_the_end,
    "NaN at the end": not_a_number,
}
UNBOUNDED = {"a prompt of one text or list": with_text, "a prompt of many messages or lists": with_entries}


class Table:
    """The cost of some bodies, for each kind of request."""

    def __init__(self, fleet, args):
        self.fleet, self.mib, self.repeats = fleet, args.mib, args.repeats

    def print(self, bodies):
        """Prints a row for each body; returns the greatest cost."""
        print("| body | " + " | ".join(f"{kind}, ms/MiB" for kind in KINDS) + " |")
        print("|---|" + "--:|" * len(KINDS))
        greatest = 0.0
        for name, build in bodies.items():
            cells = []
            for path, body, prompt in KINDS.values():
                milliseconds, status = self.measure(path, build(body, prompt, int(self.mib * (1 << 20)) - 200))
                greatest = max(greatest, milliseconds)
                cells.append(f"{milliseconds:.1f}" if status == 200 else f"{milliseconds:.1f} ({status})")
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        return greatest

    def measure(self, path, text):
        """Returns the router's milliseconds for each MiB, and the status of the reply."""
        data = request(path, text, False)
        router, _, status = cost(self.fleet, data, self.repeats)
        return router / 1e3 / (len(data) / (1 << 20)), status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warmroute")
    parser.add_argument("--mib", type=float, default=1)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--base-port", type=int, default=22800)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engines = [["--model", "sim", "--speed", "1000"]]
        with Fleet(os.path.abspath(args.warmroute), f"{folder}/parse", args.base_port, engines, {}) as fleet:
            fleet.follow_events()
            table = Table(fleet, args)
            print(f"Bodies of {args.mib:g} MiB, {args.repeats} times each. In brackets: a status other than 200.\n")
            greatest = table.print(BOUNDED)
            print(f"\nThe greatest is {greatest:.1f} ms for each MiB; the aim is at most {MOST}. With large prompts:\n")
            table.print(UNBOUNDED)
    sys.exit(1 if greatest > MOST else 0)


if __name__ == "__main__":
    main()
