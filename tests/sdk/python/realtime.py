"""Realtime conversations through the openai SDK."""

import openai
import websockets.exceptions

from targets import MODEL, check


def held(url, turns):
    """The engine's messages of a conversation, in their order, as bytes."""
    client = openai.OpenAI(
        base_url=url + "/v1", websocket_base_url=url.replace("http", "ws", 1) + "/v1", api_key="none", max_retries=0
    )
    received = []

    def until(connection, kind):
        while True:
            received.append(connection.recv_bytes())
            event = connection.parse_event(received[-1])
            if event.type == kind:
                return event

    # The engine's ids follow from it.
    with client.realtime.connect(model=MODEL, extra_headers={"x-request-id": "same-1"}) as connection:
        assert until(connection, "session.created").session.model == MODEL
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 12})
        until(connection, "session.updated")
        for turn in turns:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": turn}]}
            connection.conversation.item.create(item=item)
            connection.response.create()
            done = until(connection, "response.done").response
            assert done.status == "completed" and done.output[0].content[0].text
            assert done.usage.output_tokens <= 12
    return received


@check("realtime")
def a_conversation_is_the_engines_byte_for_byte(client, target):
    turns = ["Hello", "And then? " * 40]
    # The first one fills the cache, so that the later ones find its blocks.
    held(target.engine, turns)
    direct, through = held(target.engine, turns), held(target.url, turns)
    assert through == direct
    assert sum(b"response.output_text.delta" in message for message in direct) > 4


@check("realtime")
def an_unknown_event_is_an_error_and_the_conversation_goes_on(client, target):
    url = target.url.replace("http", "ws", 1) + "/v1"
    with client.copy(websocket_base_url=url).realtime.connect(model=MODEL) as connection:
        assert connection.recv().type == "session.created"
        connection.send({"type": "input_audio_buffer.clear"})
        assert connection.recv().error.code == "unknown_event"
        connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
        assert connection.recv().session.instructions == "Be brief."


@check("realtime")
def an_unknown_model_is_not_found(client, target):
    url = target.url.replace("http", "ws", 1) + "/v1"
    try:
        client.copy(websocket_base_url=url).realtime.connect(model="nothing").enter()
    except websockets.exceptions.InvalidStatus as error:
        assert error.response.status_code == 404, error
        return
    raise AssertionError("a conversation with an unknown model began")
