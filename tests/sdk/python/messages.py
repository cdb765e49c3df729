"""Messages through the anthropic SDK."""

import anthropic

from targets import MODEL, check

TIME = {
    "name": "get_time",
    "description": "Time of a zone",
    "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
}


# If messages are translated, the engine stops exactly at the limit; otherwise it stops by itself.
ENDS = ("end_turn", "max_tokens")


def user(text):
    return [{"role": "user", "content": text}]


@check("messages")
def a_message_has_text_and_usage(client, target):
    reply = client.messages.create(model=MODEL, max_tokens=200, system="Be brief", messages=user("Hello"))
    [block] = reply.content
    assert (reply.role, block.type) == ("assistant", "text") and block.text and reply.stop_reason in ENDS
    assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) > 0
    assert reply.usage.output_tokens > 0
    short = client.messages.create(model=MODEL, max_tokens=4, messages=user("Hello"))
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 4)


@check("messages")
def a_streamed_message_says_what_the_plain_one_says(client, target):
    asked = dict(model=MODEL, max_tokens=200, messages=user([{"type": "text", "text": "Tell me"}]))
    plain = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == plain.content[0].text == final.content[0].text and len(pieces) > 3
    assert (final.stop_reason, final.usage.output_tokens) == (plain.stop_reason, plain.usage.output_tokens)
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


@check("messages")
def a_tool_is_used_and_its_result_answered(client, target):
    asked = dict(model=MODEL, max_tokens=300, tools=[TIME])
    messages = user("get_time please")
    used = client.messages.create(**asked, messages=messages)
    assert used.stop_reason == "tool_use"
    [block] = [block for block in used.content if block.type == "tool_use"]
    assert block.name == "get_time" and block.input["zone"]
    with client.messages.stream(**asked, messages=messages) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert [b.input for b in streamed.content if b.type == "tool_use"] == [block.input] and "input_json" in kinds
    result = [{"type": "tool_result", "tool_use_id": block.id, "content": "noon"}]
    messages += [{"role": "assistant", "content": used.content}, {"role": "user", "content": result}]
    answer = client.messages.create(**asked, messages=messages)
    assert answer.stop_reason in ENDS and answer.content[0].type == "text"


@check("messages")
def a_tool_can_be_demanded(client, target):
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_time"}):
        used = client.messages.create(
            model=MODEL, max_tokens=300, tools=[TIME], tool_choice=choice, messages=user("Hello")
        )
        assert used.stop_reason == "tool_use"


@check("messages")
def a_stop_sequence_ends_the_message(client, target):
    whole = client.messages.create(model=MODEL, max_tokens=12, messages=user("Stop?")).content[0].text
    word = whole.split()[4]
    reply = client.messages.create(model=MODEL, max_tokens=12, messages=user("Stop?"), stop_sequences=[word])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", word)
    assert reply.content[0].text == whole[: whole.index(word)]


@check("messages")
def tokens_are_counted(client, target):
    counted = client.messages.count_tokens(model=MODEL, messages=user("Count me"))
    usage = client.messages.create(model=MODEL, max_tokens=1, messages=user("Count me")).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@check("messages")
def a_wrong_message_request_is_an_error_of_its_kind(client, target):
    for kind, wrong in ((anthropic.NotFoundError, dict(model="nothing")), (anthropic.BadRequestError, dict(messages=[]))):
        try:
            client.messages.create(**dict(model=MODEL, max_tokens=5, messages=user("Hello")) | wrong)
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"], error.body
        else:
            raise AssertionError(f"{wrong} was answered")


@check("messages")
def hanging_up_ends_a_message(client, target):
    before = target.aborted()
    # Otherwise its own end might come first.
    asked = dict(model=MODEL, max_tokens=20_000, messages=user("Go on"), extra_body={"ignore_eos": True})
    stream = client.messages.create(**asked, stream=True)
    for _ in range(4):
        next(stream)
    stream.close()
    target.eventually_aborts(before)


@check("thinking")
def thoughts_are_blocks_of_their_own(client, target):
    asked = dict(
        model=MODEL, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}, messages=user("Think")
    )
    reply = client.messages.create(**asked)
    assert [block.type for block in reply.content] == ["thinking", "text"]
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.content[0].thinking == reply.content[0].thinking
