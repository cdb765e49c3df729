"""Speech and transcriptions through the openai SDK."""

import openai

from targets import MODEL, check


@check("audio")
def speech_comes_as_bytes(client, target):
    speech = client.audio.speech.create(model=MODEL, voice="alloy", input="Hello")
    assert len(speech.content) == 5 * 256
    with client.audio.speech.with_streaming_response.create(model=MODEL, voice="alloy", input="Hello") as streamed:
        assert b"".join(streamed.iter_bytes()) == speech.content


@check("audio")
def a_file_of_any_length_is_transcribed(client, target):
    for size in (10, 3_000_000):
        file = bytes(number % 251 for number in range(size))
        digest = 0xCBF29CE484222325
        for byte in file:
            digest = ((digest ^ byte) * 0x100000001B3) % 2**64
        heard = client.audio.transcriptions.create(model=MODEL, file=("a.wav", file))
        assert heard.text == f"{size} bytes, digest {digest:016x}", heard.text


@check("audio")
def a_file_for_an_unknown_model_is_not_found(client, target):
    try:
        client.audio.transcriptions.create(model="nothing", file=("a.wav", b"sound"))
    except openai.NotFoundError:
        return
    raise AssertionError("a file was transcribed by an unknown model")


@check("audio")
def wrong_speech_is_an_error_of_its_kind(client, target):
    for kind, wrong in ((openai.NotFoundError, dict(model="nothing")), (openai.BadRequestError, dict(voice=""))):
        try:
            client.audio.speech.create(**dict(model=MODEL, voice="alloy", input="Hello") | wrong)
        except kind as error:
            assert error.body["message"]
        else:
            raise AssertionError(f"{wrong} was answered")
