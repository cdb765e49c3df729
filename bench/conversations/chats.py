"""Makes real chats of a trace of coding-agent sessions.

A trace has one JSON object a line: `session_id`, `output_length` (tokens) and `hash_ids`, the ids of the prompt's
blocks, where equal ids in front mean an equal beginning. The text of a block is drawn from its id, so that two prompts
share exactly the text that they share in the trace.
"""

import functools
import json
import random
import subprocess

# Syllables of common English text and of source code: tokenizers cut them as they cut a real prompt.
WORDS = (
    "the of and to in is that for it as was with be by on not he this are or his from at which but have an had they "
    "you were their one all we can her has there been if more when will would who so no return value error file test "
    "line function import struct match self let mut vec string result option index block token cache request reply"
).split()


class Chats:
    """The chats of a trace: `chats.sessions` maps a session to its turns, in order."""

    def __init__(self, path, bytes_per_block, block_tokens=256):
        self.bytes_per_block = bytes_per_block
        self.block_tokens = block_tokens
        rows = {}
        for line in lines(path):
            row = json.loads(line)
            rows.setdefault(row["session_id"], []).append(row)
        self.sessions = {session: list(self.turns(of_session)) for session, of_session in rows.items()}

    def turns(self, rows):
        """Yields (messages, output tokens) for each request; a message is (role, block ids)."""
        messages, known = [], []
        for row in rows:
            ids = row["hash_ids"]
            common = shared_length(known, ids)
            # An edited history keeps what is equal and goes on from there.
            messages = cut(messages, common)
            new = ids[common:]
            if not messages:
                # The last block is the user's request, all before it are instructions, tools and files.
                messages = [("system", new[:-1] or new), ("user", new[-1:])]
            elif new:
                # What the agent answered, and what its tools returned.
                answered = min(len(new) - 1, max(1, row_before["output_length"] // self.block_tokens))
                parts = [("assistant", new[:answered]), ("user", new[answered:])]
                messages = messages + [(role, part) for role, part in parts if part]
            known, row_before = ids, row
            yield messages, row["output_length"]

    def body(self, messages, model, output_tokens):
        """Returns the JSON of a streamed chat."""
        return json.dumps(
            {
                "model": model,
                "messages": [
                    {"role": role, "content": "\n".join(self.text(block) for block in blocks)}
                    for role, blocks in messages
                ],
                "stream": True,
                "stream_options": {"include_usage": True},
                "max_tokens": output_tokens,
            }
        ).encode()

    def text(self, block):
        return text_of(block, self.bytes_per_block)


@functools.lru_cache(maxsize=100_000)
def text_of(block, length):
    """Returns `length` bytes of text that depend on `block` alone."""
    draw = random.Random(block)
    words, size = [], 0
    while size < length:
        word = draw.choice(WORDS)
        words.append(word)
        size += len(word) + 1
    return " ".join(words)[:length]


def cut(messages, blocks):
    """Returns the messages of the first `blocks` blocks."""
    kept = []
    for role, part in messages:
        if blocks <= 0:
            break
        kept.append((role, part[:blocks]))
        blocks -= len(part)
    return kept


def shared_length(left, right):
    for at, (one, other) in enumerate(zip(left, right)):
        if one != other:
            return at
    return min(len(left), len(right))


def lines(path):
    """Returns the lines of a file, which may be compressed."""
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True, text=True).stdout.splitlines()
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()
