"""Dynamo's classes of the Python package in front of real engines: token ids in, the engine's own token ids out."""

import json
import os
import pathlib
import random
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PATTERNS = pathlib.Path(__file__).with_name("python_patterns.py")
# For each pattern prompts of its own: a reply to an equal one would not come from an engine.
PATTERN_COUNT, PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 8, 200, 20
LIMIT_S = 300


def python_package(harness):
    """Each of the four patterns of use gives the tokens that an engine gives without a router."""
    python = installed(harness.home / "python-package")
    with harness.bench() as bench:
        rng = random.Random(71)
        prompts = [[rng.randrange(1, 250) for _ in range(PROMPT_TOKENS)] for _ in range(PATTERN_COUNT * PROMPTS)]
        wanted = [reply(bench.engines[0].http, prompt) for prompt in prompts]
        bench.reset_caches()
        workers = ",".join(f"{engine.name}={engine.url}" for engine in bench.engines)
        found = subprocess.run(
            [python, PATTERNS, str(NEW_TOKENS)],
            input=json.dumps(prompts),
            env={**os.environ, "WARMROUTE_WORKERS": workers},
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
    for number, (pattern, replies) in enumerate(json.loads(found.stdout).items()):
        of_pattern = wanted[number::PATTERN_COUNT]
        equal = sum(reply == want for reply, want in zip(replies, of_pattern, strict=True))
        value, holds = f"{equal} of {len(of_pattern)}", equal == PROMPTS
        harness.row(f"replies of the Python package with the engine's tokens, {pattern}", value, "all", holds)


def installed(folder):
    """Builds the package with the profile of the tests, and returns the interpreter of an environment that has it."""
    wheel = last_line([REPOSITORY / "python" / "build-wheel"])
    return last_line([REPOSITORY / "python" / "install-wheel", wheel, folder])


def last_line(command):
    found = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return found.stdout.strip().splitlines()[-1]


def reply(http, prompt):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = http.json("POST", "/v1/completions", {**body, "return_token_ids": True})
    return answer["choices"][0]["token_ids"]
