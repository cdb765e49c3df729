"""Replies from the router's cache, through the openai SDK: a replayed stream is complete."""

from chat import TIME, WEATHER, user
from targets import MODEL, check

USAGE = {"include_usage": True}


def asked(text, **more):
    return dict(model=MODEL, messages=user("Cached: " + text), temperature=0) | more


def streamed(client, says, **asked):
    """Every choice of a stream as the SDK joins it, its usage and its number of chunks; `says` is the expected X-Cache."""
    raw = client.chat.completions.with_raw_response.create(**asked, stream=True, stream_options=USAGE)
    assert raw.headers["x-cache"] == says, raw.headers
    assert raw.headers["content-type"].startswith("text/event-stream")
    chunks = list(raw.parse())
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    choices, usage = {}, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            one = choices.setdefault(choice.index, {"text": "", "reasoning": "", "calls": {}, "logprobs": [], "end": None})
            one["text"] += choice.delta.content or ""
            one["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            one["end"] = choice.finish_reason or one["end"]
            if choice.logprobs and choice.logprobs.content:
                one["logprobs"] += [token.model_dump() for token in choice.logprobs.content]
            for call in choice.delta.tool_calls or []:
                known = one["calls"].setdefault(call.index, {"id": None, "name": "", "arguments": ""})
                known["id"] = call.id or known["id"]
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
    return choices, usage.model_dump()


def plain(client, says, **asked):
    raw = client.chat.completions.with_raw_response.create(**asked)
    assert raw.headers["x-cache"] == says, raw.headers
    return raw.parse()


def twice(client, **asked):
    """A stream, its replay, and the whole reply made of it."""
    first, again = streamed(client, "MISS", **asked), streamed(client, "HIT", **asked)
    assert again == first, (first, again)
    return first, plain(client, "HIT", **asked)


@check("cached")
def words_and_usage_come_again(client, target):
    (choices, usage), whole = twice(client, **asked("a story", max_tokens=12))
    assert whole.choices[0].message.content == choices[0]["text"] and len(choices[0]["text"].split()) == 12
    assert whole.choices[0].finish_reason == choices[0]["end"] == "length"
    assert whole.usage.model_dump() == usage and usage["completion_tokens"] == 12


@check("cached")
def calls_of_tools_come_again(client, target):
    (choices, _), whole = twice(client, **asked("get_weather and get_time", tools=[WEATHER, TIME]))
    calls = choices[0]["calls"]
    assert [call["name"] for call in calls.values()] == ["get_weather", "get_time"]
    whole_calls = whole.choices[0].message.tool_calls
    assert [(call.id, call.function.arguments) for call in whole_calls] == [
        (call["id"], call["arguments"]) for call in calls.values()
    ]
    assert whole.choices[0].finish_reason == "tool_calls" and whole.choices[0].message.content is None
    # Joined by the SDK itself, which also parses the arguments.
    with client.chat.completions.stream(**asked("get_weather and get_time", tools=[WEATHER, TIME])) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments["unit"] == "C"


@check("cached")
def thoughts_come_again(client, target):
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    (choices, _), whole = twice(client, **asked("think", extra_body=thinking))
    assert choices[0]["reasoning"] and choices[0]["text"]
    assert whole.choices[0].message.reasoning_content == choices[0]["reasoning"]


@check("cached")
def log_probabilities_and_several_choices_come_again(client, target):
    (choices, _), whole = twice(client, **asked("choose", max_tokens=9, logprobs=True, top_logprobs=2, n=3))
    assert sorted(choices) == [0, 1, 2] and len({one["text"] for one in choices.values()}) == 3
    for choice in whole.choices:
        assert [token.model_dump() for token in choice.logprobs.content] == choices[choice.index]["logprobs"]
        assert len(choice.logprobs.content) == 9


@check("cached")
def a_whole_reply_is_streamed_to_who_wants_it_so(client, target):
    whole = plain(client, "MISS", **asked("a poem", max_tokens=8))
    choices, usage = streamed(client, "HIT", **asked("a poem", max_tokens=8))
    assert choices[0]["text"] == whole.choices[0].message.content
    assert usage == whole.usage.model_dump()


@check("cached")
def completions_come_again(client, target):
    given = dict(model=MODEL, prompt="Cached: once upon", max_tokens=6, temperature=0)
    texts = []
    for says in ["MISS", "HIT"]:
        raw = client.completions.with_raw_response.create(**given, stream=True)
        assert raw.headers["x-cache"] == says
        texts.append("".join(chunk.choices[0].text for chunk in raw.parse() if chunk.choices))
    assert texts[0] == texts[1] != ""
