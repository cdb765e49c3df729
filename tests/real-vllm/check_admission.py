"""Sessions that need nearly twice the blocks of both caches: without admission each turn finds its blocks evicted."""

import json
import random
import threading
import time

from processes import Http
from workload import Session, chat, sentence

SESSIONS = 12
# Turns before the measured ones: the router counts blocks as in use only once prompts are seen to return.
WARM_UP_TURNS = 3
TURNS = 9
# Only a prompt with more than 16,384 tokens to compute waits for room.
PROMPT_TOKENS = 18_000
MAX_LEN = 24_576
# At 32 tokens a block a session grows to some 660, so that one cache holds three of the six sessions for each engine.
BLOCKS = 2_176
PAUSE_S = 1.0
# A request may wait for room for minutes.
TIMEOUT_S = 900
LEAST_HELD = 0.6
MOST_COLLAPSED = 0.5


def admission(harness):
    """The hit rate collapses with `routing.admission: off` and holds with `live_set`."""
    turns = 4 if harness.quick else TURNS
    with harness.bench("long", blocks=BLOCKS, max_len=MAX_LEN) as bench:
        words = words_for(bench.engines[0].http, PROMPT_TOKENS)
        rates = {mode: measured(bench, mode, words, turns) for mode in ("off", "live_set")}
    held, collapsed = rates["live_set"], rates["off"]
    bench.row("hit rate with live_set", f"{held:.3f}", f">= {LEAST_HELD}", held >= LEAST_HELD)
    share = collapsed / held if held else 1.0
    bench.row(
        "hit rate with off, as a share of it",
        f"{collapsed:.3f} / {held:.3f} = {share:.2f}",
        f"<= {MOST_COLLAPSED}",
        share <= MOST_COLLAPSED,
    )


def words_for(http, tokens):
    """How many words of the workload make about this many tokens."""
    words = 500
    text = sentence(random.Random(1), words)
    count = http.json("POST", "/tokenize", {"model": "tiny", "prompt": text})["count"]
    return tokens * words // count


def measured(bench, mode, words, turns):
    """Returns the engines' own hit rate in the turns after the warm-up."""
    settings = {
        "routing": {"admission": mode, "tokenize_budget": "10s"},
        "request": {"timeout": f"{TIMEOUT_S}s"},
    }
    rng = random.Random(31)
    total = WARM_UP_TURNS + turns
    sessions = [Session(number, number, total, rng, system_words=words) for number in range(SESSIONS)]
    bench.reset_caches()
    with bench.router(settings=settings) as router:
        answers = run_turns(router.data, sessions, WARM_UP_TURNS)
        before, begun = bench.counters(), time.monotonic()
        answers += run_turns(router.data, sessions, turns)
        took = time.monotonic() - begun
        rate = bench.hit_rate(before)
        ended = router.admin.json("GET", "/admin/sessions")["ended"]
    print(f"   {mode}: hit rate {rate:.3f}, {SESSIONS * turns} turns in {took:.0f} s, ended waits {json.dumps(ended)}")
    errors = [answer.error for answer in answers if answer.error]
    lengths = [answer.prompt for answer in answers if answer.prompt]
    shortest = min(lengths, default=0)
    value = f"{len(errors)} of {len(answers)} failed, prompts from {shortest} tokens on"
    holds = not errors and len(answers) == SESSIONS * total and shortest > 16_384
    bench.row(f"requests with {mode}", value, "none failed, all longer than 16384", holds)
    for error in errors[:3]:
        print("   ", error)
    return rate


def run_turns(address, sessions, turns):
    """All sessions at once, each with its turns one after another and a pause behind each. Returns the answers."""
    answers = []

    def run(session):
        http = Http(address, timeout=TIMEOUT_S)
        for _ in range(turns):
            session.messages.append({"role": "user", "content": session.questions.pop(0)})
            answer = chat(http, session.messages, stream=True)
            session.messages.append({"role": "assistant", "content": answer.text})
            answers.append(answer)
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=run, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
