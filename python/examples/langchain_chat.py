"""A chain of LangChain through ``warmroute serve``; needs langchain-openai.

python langchain_chat.py http://ROUTER:8080/v1 MODEL
"""

from __future__ import annotations

import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

prompt = ChatPromptTemplate.from_messages([("system", "You answer in one sentence."), ("user", "What is {thing}?")])
model = ChatOpenAI(base_url=sys.argv[1], api_key=SecretStr("none"), model=sys.argv[2], max_completion_tokens=16)
chain = prompt | model | StrOutputParser()
# The prompts begin alike, and go to the worker that has the beginning.
for answer in chain.batch([{"thing": "a KV cache"}, {"thing": "a router"}]):
    print(answer)
