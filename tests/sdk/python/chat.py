"""Chats and completions through the openai SDK."""

import enum
import json

import openai
import pydantic

from targets import MODEL, check

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return [{"role": "user", "content": text}]


@check("chat")
def a_reply_comes_with_its_usage(client, target):
    reply = client.chat.completions.create(model=MODEL, messages=user("Hello"), max_tokens=7)
    assert reply.choices[0].finish_reason == "length"
    assert len(reply.choices[0].message.content.split()) == 7
    assert reply.usage.completion_tokens == 7
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 7
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0


@check("chat")
def a_stream_says_what_the_plain_reply_says(client, target):
    asked = dict(model=MODEL, messages=user("Tell me a story"), max_tokens=20)
    plain = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [20]
    assert len(chunks) > 20


@check("chat")
def a_tool_is_called_and_its_result_answered(client, target):
    messages = user("What does get_weather say?")
    call = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER, TIME])
    assert call.choices[0].finish_reason == "tool_calls"
    [tool] = call.choices[0].message.tool_calls
    arguments = json.loads(tool.function.arguments)
    assert tool.function.name == "get_weather" and arguments["unit"] == "C" and arguments["city"]
    messages += [call.choices[0].message, {"role": "tool", "tool_call_id": tool.id, "content": "12 degrees"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER, TIME])
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].message.content


@check("chat")
def streamed_calls_join_to_the_plain_ones(client, target):
    asked = dict(model=MODEL, messages=user("get_weather and get_time"), tools=[WEATHER, TIME])
    plain = client.chat.completions.create(**asked).choices[0].message.tool_calls
    with client.chat.completions.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls
    assert [call.function.name for call in streamed] == ["get_weather", "get_time"]
    assert [(call.id, call.function.arguments) for call in streamed] == [(c.id, c.function.arguments) for c in plain]
    assert events.count("tool_calls.function.arguments.delta") > 4
    assert streamed[0].function.parsed_arguments["unit"] == "C"


@check("chat")
def a_tool_can_be_demanded_and_forbidden(client, target):
    def calls(choice):
        asked = client.chat.completions.create(
            model=MODEL, messages=user("Hello"), tools=[WEATHER, TIME], tool_choice=choice, max_tokens=60
        )
        return [call.function.name for call in asked.choices[0].message.tool_calls or []]

    assert calls("required") == ["get_weather"]
    assert calls({"type": "function", "function": {"name": "get_time"}}) == ["get_time"]
    assert calls("none") == []


class Colour(enum.Enum):
    red = "red"
    green = "green"


class Part(pydantic.BaseModel):
    name: str
    colour: Colour


class Machine(pydantic.BaseModel):
    title: str
    weight: float
    parts: list[Part]
    note: str | None


@check("chat")
def a_reply_can_be_parsed_into_a_model(client, target):
    reply = client.chat.completions.parse(model=MODEL, messages=user("Describe it"), response_format=Machine)
    machine = reply.choices[0].message.parsed
    assert isinstance(machine, Machine) and machine.parts[0].colour is Colour.red


@check("chat")
def thoughts_come_apart_from_the_reply(client, target):
    asked = dict(model=MODEL, messages=user("Think"), extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.reasoning_content and message.content
    assert message.reasoning_content not in message.content


@check("chat")
def choices_stops_and_log_probabilities_are_there(client, target):
    asked = dict(model=MODEL, messages=user("Choose"), max_tokens=9)
    one = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2).choices[0]
    assert len(one.logprobs.content) == 9 and len(one.logprobs.content[0].top_logprobs) == 2
    several = client.chat.completions.create(**asked, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in several.choices}) == 3
    word = one.message.content.split()[4]
    stopped = client.chat.completions.create(**asked, stop=[word]).choices[0]
    assert stopped.finish_reason == "stop" and word not in stopped.message.content


@check("chat")
def an_unknown_model_is_not_found(client, target):
    try:
        client.chat.completions.create(model="nothing", messages=user("Hello"))
    except openai.NotFoundError as error:
        assert error.status_code == 404 and "nothing" in error.body["message"]
    else:
        raise AssertionError("an unknown model answered")


@check("chat")
def a_wrong_request_is_a_bad_request_with_its_error(client, target):
    for wrong in (dict(messages=[]), dict(messages=user("Hi"), max_tokens=10**9), dict(messages=user("Hi"), n=0)):
        try:
            client.chat.completions.create(model=MODEL, **wrong)
        except openai.BadRequestError as error:
            assert error.body["message"] and error.body["type"], error.body
        else:
            raise AssertionError(f"{wrong} was answered")


@check("chat")
def hanging_up_ends_the_generation(client, target):
    before = target.aborted()
    stream = client.chat.completions.create(
        model=MODEL, messages=user("Go on for ever"), max_tokens=20_000, stream=True
    )
    for _ in range(3):
        next(stream)
    stream.close()
    target.eventually_aborts(before)


@check("chat")
def the_model_is_listed(client, target):
    assert MODEL in [model.id for model in client.models.list()]


@check("completions")
def a_completion_streams_what_it_says(client, target):
    asked = dict(model=MODEL, prompt="Once upon a time", max_tokens=8)
    plain = client.completions.create(**asked)
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True))
    assert streamed == plain.choices[0].text
    several = client.completions.create(**asked | dict(prompt=["one", "two"]))
    assert [choice.index for choice in several.choices] == [0, 1]
