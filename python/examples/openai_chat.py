"""A chat through ``warmroute serve`` with OpenAI's client; needs openai.

python openai_chat.py http://ROUTER:8080/v1 MODEL
"""

from __future__ import annotations

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none")
stream = client.chat.completions.create(
    model=sys.argv[2],
    messages=[
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": "What is a KV cache?"},
    ],
    max_tokens=16,
    stream=True,
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
print()
