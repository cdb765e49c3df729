"""Responses through the openai SDK."""

import json

import openai
import pydantic

from targets import MODEL, check

TIME = {
    "type": "function",
    "name": "get_time",
    "parameters": {
        "type": "object",
        "properties": {"zone": {"type": "string"}},
        "required": ["zone"],
        "additionalProperties": False,
    },
    "strict": True,
}


@check("responses")
def a_response_has_text_and_usage(client, target):
    reply = client.responses.create(model=MODEL, input="Hello", instructions="Be brief")
    assert reply.status == "completed" and reply.output_text
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens


@check("responses")
def a_streamed_response_brings_its_events_in_order(client, target):
    asked = dict(model=MODEL, input=[{"role": "user", "content": "Tell me"}])
    plain = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == plain.output_text == final.output_text


@check("responses")
def a_limit_makes_a_response_incomplete(client, target):
    reply = client.responses.create(model=MODEL, input="Hello", max_output_tokens=4)
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert reply.usage.output_tokens == 4


@check("responses")
def a_function_is_called_and_its_output_answered(client, target):
    items = [{"role": "user", "content": "get_time please"}]
    reply = client.responses.create(model=MODEL, input=items, tools=[TIME])
    [call] = [item for item in reply.output if item.type == "function_call"]
    assert call.name == "get_time" and json.loads(call.arguments)["zone"]
    items += reply.output + [{"type": "function_call_output", "call_id": call.call_id, "output": "noon"}]
    answer = client.responses.create(model=MODEL, input=items, tools=[TIME])
    assert answer.output_text

    with client.responses.stream(model=MODEL, input="get_time please", tools=[TIME]) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output[0].arguments and len(pieces) > 1


class Point(pydantic.BaseModel):
    x: int
    y: int


@check("responses")
def a_response_can_be_parsed_into_a_model(client, target):
    reply = client.responses.parse(model=MODEL, input="Where?", text_format=Point)
    assert isinstance(reply.output_parsed, Point)


@check("responses")
def a_wrong_response_request_is_an_error_of_its_kind(client, target):
    for kind, wrong in ((openai.NotFoundError, dict(model="nothing")), (openai.BadRequestError, dict(max_output_tokens=0))):
        try:
            client.responses.create(**dict(model=MODEL, input="Hello") | wrong)
        except kind as error:
            assert error.body["message"]
        else:
            raise AssertionError(f"{wrong} was answered")


@check("responses")
def hanging_up_ends_a_response(client, target):
    before = target.aborted()
    endless = {"ignore_eos": True}
    stream = client.responses.create(
        model=MODEL, input="Go on", max_output_tokens=20_000, stream=True, extra_body=endless
    )
    for _ in range(6):
        next(stream)
    stream.close()
    target.eventually_aborts(before)


@check("stored")
def a_stored_response_is_read_with_its_input_and_deleted(client, target):
    for text in ("One", "Two", "Three"):
        created = client.responses.create(model=MODEL, input=text)
        again = client.responses.retrieve(created.id)
        assert (again.id, again.output_text, again.status) == (created.id, created.output_text, "completed")
        [item] = client.responses.input_items.list(created.id)
        assert item.content[0].text == text
        try:
            client.responses.cancel(created.id)
        except openai.BadRequestError as error:
            assert "Cannot cancel" in error.body["message"]
        else:
            raise AssertionError("a finished response was cancelled")
        client.responses.delete(created.id)
        try:
            client.responses.retrieve(created.id)
        except openai.NotFoundError:
            continue
        raise AssertionError("a deleted response is still there")


@check("stored")
def an_unknown_response_is_not_found(client, target):
    asks = (client.responses.retrieve, client.responses.cancel, client.responses.delete)
    for ask in (*asks, lambda id: list(client.responses.input_items.list(id))):
        try:
            ask("resp_nothing")
        except openai.NotFoundError as error:
            assert error.body["message"]
        else:
            raise AssertionError("an unknown response was found")


@check("counted")
def the_input_of_a_response_is_counted(client, target):
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello", instructions="Be brief")
    created = client.responses.create(model=MODEL, input="Hello", instructions="Be brief")
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == created.usage.input_tokens


@check("conversations")
def a_response_goes_on_with_an_earlier_one(client, target):
    first = client.responses.create(model=MODEL, input="One")
    second = client.responses.create(model=MODEL, input="Two", previous_response_id=first.id)
    alone = client.responses.create(model=MODEL, input="Two")
    assert second.usage.input_tokens > alone.usage.input_tokens + first.usage.output_tokens
    try:
        client.responses.create(model=MODEL, input="Three", previous_response_id="resp_nothing")
    except openai.NotFoundError:
        return
    raise AssertionError("an unknown response was gone on with")
