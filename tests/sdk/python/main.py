"""Runs the checks against every target of a JSON list given as the only argument; exit code 1 if one fails."""

import json
import sys

import anthropic
import openai

import audio
import cached
import chat
import embeddings
import messages
import realtime
import responses
import targets


def main():
    failures = 0
    for given in json.loads(sys.argv[1]):
        target = targets.Target(**given)
        # The defaults of a user, except that failures are visible and not retried.
        plain = openai.OpenAI(base_url=target.url + "/v1", api_key="none", max_retries=0, timeout=60)
        native = anthropic.Anthropic(base_url=target.url, api_key="none", max_retries=0, timeout=60)
        clients = {part.__name__: plain for part in (audio, cached, chat, embeddings, realtime, responses)} | {messages.__name__: native}
        failures += targets.run(target, clients)
    sys.exit(1 if failures else 0)


main()
