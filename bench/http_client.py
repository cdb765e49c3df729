"""HTTP/1.1 over asyncio: one connection per request, and exactly what a broken one looked like."""

import asyncio
import json

# Longest time for one reply if the caller sets none, in seconds; most bytes of one.
REPLY_LIMIT, REPLY_BYTES = 60, 64 << 20


class Refused(Exception):
    """Nothing accepted the connection."""

    kind = "refused"


class Cut(Exception):
    """The connection ended, or stood still, before the reply was whole."""

    kind = "cut"


async def exchange(port, method, path, body=b"", limit=REPLY_LIMIT, watch=None):
    """Sends a request on a connection of its own; returns status, header fields and body. Whenever a part of the reply
    arrives, `watch` gets all of it so far."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise Refused(str(error)) from error
    try:
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        received = await asyncio.wait_for(until_end(reader, watch), limit)
    except OSError as error:
        raise Cut(repr(error)) from error
    except asyncio.TimeoutError as error:
        raise Cut(f"no whole reply within {limit} s") from error
    finally:
        writer.close()
    return parsed(received)


async def until_end(reader, watch=None):
    received = bytearray()
    while chunk := await reader.read(1 << 16):
        received += chunk
        if len(received) > REPLY_BYTES:
            raise Cut(f"the reply has more than {REPLY_BYTES} bytes")
        if watch:
            watch(received)
    return bytes(received)


def parsed(received):
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        raise Cut(f"{len(received)} bytes, not a whole head")
    first, *lines = head.decode().split("\r\n")
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    if fields.get("transfer-encoding") == "chunked":
        body = joined(body)
    elif len(body) != int(fields.get("content-length", len(body))):
        raise Cut(f"{len(body)} bytes of a body of {fields['content-length']}")
    return int(first.split()[1]), fields, body


def joined(body):
    """Returns the content of the chunks."""
    content, at = bytearray(), 0
    while True:
        end = body.find(b"\r\n", at)
        size = int(body[at:end].partition(b";")[0], 16) if end >= 0 else -1
        if size == 0:
            return bytes(content)
        if size < 0 or len(body) < end + 2 + size + 2:
            raise Cut(f"the reply ends after {len(content)} bytes, without its last chunk")
        content += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2


async def status_of(port, path):
    try:
        return (await exchange(port, "GET", path))[0]
    except (Refused, Cut):
        return None


async def get_text(port, path):
    return (await exchange(port, "GET", path))[2].decode()


async def get_json(port, path):
    return json.loads(await get_text(port, path))
