"""Chats with images: the router predicts the cached tokens by the engine's own rendering of the chat."""

import base64
import random
import struct
import zlib
from collections import Counter

from check_latency import settled_receipts
from processes import Http
from workload import chat, sentence

IMAGES, SESSIONS, TURNS = 5, 25, 4
LEAST_EXACT = 0.99
PIXELS = 112
FLAGS = ("--enable-scale-out", "--limit-mm-per-prompt", '{"image": 4}')


def images(harness):
    """100 chats with images, one after another: predicted = actual cached tokens."""
    with harness.bench("image", flags=FLAGS) as bench:
        bench.reset_caches()
        # Each chat reaches an engine, also one that is equal to another.
        settings = {"routing": {"render_timeout": "30s"}, "cache": {"enable_deduplication": False}}
        with bench.router(settings=settings) as router:
            answers = run_chats(Http(router.data), 8 if bench.quick else SESSIONS)
            receipts = settled_receipts(router, len(answers))
    errors = [answer.error for answer in answers if answer.error]
    sources = Counter(receipt["prompt"]["source"] for receipt in receipts)
    told = ", ".join(f"{source} {count}" for source, count in sources.most_common())
    value = f"{told} of {len(answers)}, {len(errors)} failed"
    holds = sources["engine_render"] == len(answers) and not errors
    harness.row("chats with images whose tokens are the engine's", value, "all", holds)
    for error in errors[:3]:
        print("   ", error)
    exact = sum(answer.error is None and answer.predicted == answer.cached for answer in answers)
    share = exact / len(answers)
    harness.row(
        "predicted = actual cached tokens of chats with images",
        f"{exact} of {len(answers)} ({share:.1%})",
        f">= {LEAST_EXACT:.0%}",
        share >= LEAST_EXACT,
    )
    for answer in [answer for answer in answers if answer.predicted != answer.cached][:8]:
        print(f"   {answer.worker}: predicted {answer.predicted}, actual {answer.cached} of {answer.prompt}")
    # Otherwise equal figures show nothing: each turn behind a session's first one finds blocks.
    found = sum((answer.cached or 0) > 0 for answer in answers)
    later = len(answers) * (TURNS - 1) // TURNS
    value = f"{found} of {len(answers)}"
    harness.row("chats with images that found cached tokens", value, f">= {later}", found >= later)


def run_chats(http, count):
    """Sessions that begin with the same text and one of a few images. Returns the answers."""
    rng, pictures = random.Random(51), [data_url(number) for number in range(IMAGES)]
    system = {"role": "system", "content": sentence(random.Random(50), 60)}
    opening = {"type": "text", "text": sentence(random.Random(52), 40)}
    answers = []
    for number in range(count):
        image = {"type": "image_url", "image_url": {"url": pictures[number % IMAGES]}}
        messages = [system, {"role": "user", "content": [image, opening]}]
        for turn in range(TURNS):
            if turn > 0:
                messages.append({"role": "user", "content": sentence(rng, 40)})
            answer = chat(http, messages, stream=False)
            messages.append({"role": "assistant", "content": answer.text})
            answers.append(answer)
    return answers


def data_url(seed):
    """An image of random colours as a `data:` URL."""
    rng = random.Random(seed)
    # A filter byte of 0 before each line: its pixels as they are.
    lines = b"".join(b"\0" + rng.randbytes(3 * PIXELS) for _ in range(PIXELS))
    head = struct.pack(">IIBBBBB", PIXELS, PIXELS, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
