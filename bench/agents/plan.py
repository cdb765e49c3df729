"""The sessions of a run, drawn from a seed: every router gets the same ones.

A session is an agent's task. Its first prompt is instructions that all sessions share and a task of its own; each later
turn sends the prompt before it with what the agent answered and what its tools returned. Prompts are token ids, as text
of JSON.
"""

import itertools
import random
from dataclasses import dataclass

# Tokens of the instructions, of a task (mean), of what a turn adds (mean) and of a reply.
INSTRUCTIONS, TASK, ADDED, OUTPUT = 4_000, 28_000, 250, 40
# Turns of a session, mean.
TURNS = 80
# A pause is at most so many times the mean; a long one is this long and an exponentially distributed time, in seconds.
LONGEST_PAUSE, LONG_PAUSE, LONG_PAUSE_MORE = 5, 60, 120
# Sessions by which the mean length of a prompt is found.
SAMPLE = 1_000


@dataclass
class Plan:
    """What sessions are drawn from. Times are the engines', in seconds."""

    seed: int
    # Mean time from a reply to the next turn.
    pause: float
    # Share of the pauses that are long.
    long_pauses: float

    def sessions(self, place):
        """Yields the sessions that follow each other at a place; the first one is under way, as in a fleet that has
        been busy for long."""
        for number in itertools.count():
            yield self.turns(random.Random(f"{self.seed} {place} {number}"), under_way=number == 0)

    def turns(self, draw, under_way):
        """Yields the turns of a session as (request body, pause after the reply)."""
        task, count = shape(draw)
        first = draw.randrange(count) if under_way else 0
        prompt = ids(random.Random(self.seed), INSTRUCTIONS) + b"," + ids(draw, task + first * ADDED)
        for turn in range(first, count):
            if turn > first:
                prompt += b"," + ids(draw, round(draw.uniform(0.5, 1.5) * ADDED))
            yield body(prompt), self.drawn_pause(draw)

    def drawn_pause(self, draw):
        # Both are drawn in any case, so that the other numbers do not depend on the share.
        is_long, usual = draw.random() < self.long_pauses, draw.expovariate(1)
        if is_long:
            return LONG_PAUSE + LONG_PAUSE_MORE * usual
        return self.pause * min(usual, LONGEST_PAUSE)

    def sessions_for(self, tokens):
        """Returns how many sessions need so many tokens: by the mean of prompt and reply over all requests."""
        draw = random.Random(self.seed)
        shapes = [shape(draw) for _ in range(SAMPLE)]
        of_all = sum(count * (INSTRUCTIONS + task + ADDED * (count - 1) / 2 + OUTPUT) for task, count in shapes)
        mean = of_all / sum(count for _, count in shapes)
        return max(1, round(tokens / mean))


def shape(draw):
    """Returns the tokens of a session's task and the number of its turns."""
    return round(draw.uniform(0.7, 1.3) * TASK), draw.randint(TURNS // 2, TURNS + TURNS // 2)


def ids(draw, count):
    return ",".join(map(str, draw.choices(range(1_000, 100_000), k=count))).encode()


def body(prompt):
    head = b'{"model":"sim","max_tokens":%d,"ignore_eos":true,"stream":true,' % OUTPUT
    return head + b'"stream_options":{"include_usage":true},"prompt":[' + prompt + b"]}"
