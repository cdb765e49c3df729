"""Embeddings through the openai SDK, which asks for base64 unless told otherwise."""

from targets import MODEL, check


@check("embeddings")
def both_encodings_mean_the_same_vectors(client, target):
    texts = ["one text", "another"]
    default = client.embeddings.create(model=MODEL, input=texts)
    floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    for one, other in zip(default.data, floats.data, strict=True):
        assert all(abs(a - b) < 1e-6 for a, b in zip(one.embedding, other.embedding, strict=True))
    assert default.data[0].embedding != default.data[1].embedding
    assert default.usage.prompt_tokens > 0


@check("embeddings")
def the_vector_is_as_long_as_asked(client, target):
    reply = client.embeddings.create(model=MODEL, input="one text", dimensions=16)
    assert len(reply.data[0].embedding) == 16
