"""The publisher of KV events: its messages, its replay, and a router that follows it."""

from __future__ import annotations

import array
import json
import runpy
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import zmq

from warmroute import EventPublisher, WarmrouteError

if TYPE_CHECKING:
    from conftest import Programs

FREE = "tcp://127.0.0.1:0"
LONGEST_WAIT_MS = 120_000
EXAMPLES = Path(__file__).parent.parent / "examples"

WaitFor = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture
def sockets() -> Iterator[Callable[[int, str], Any]]:
    """``sockets(kind, endpoint)`` connects a socket."""
    with zmq.Context() as context:
        open_sockets: list[Any] = []

        def connect(kind: int, endpoint: str) -> Any:
            socket = context.socket(kind)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, LONGEST_WAIT_MS)
            if kind == zmq.SUB:
                socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(endpoint)
            open_sockets.append(socket)
            return socket

        yield connect
        for socket in open_sockets:
            socket.close()


def batch_of(payload: bytes) -> tuple[list[dict[str, Any]], int]:
    ts, events, rank = msgpack.unpackb(payload)
    assert ts > 1.6e9
    return events, rank


def replayed(sockets: Any, publisher: EventPublisher, start: int) -> list[tuple[int, bytes]]:
    dealer = sockets(zmq.DEALER, publisher.replay_endpoint)
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    batches = []
    while True:
        empty, _topic, number, payload = dealer.recv_multipart()
        assert empty == b""
        if payload == b"":
            assert number == b"\xff" * 8
            return batches
        batches.append((int.from_bytes(number, "big"), payload))


@pytest.mark.contract("DY37")
def test_a_subscriber_gets_numbered_batches_in_the_form_of_vllm(sockets: Any, wait_for: WaitFor) -> None:
    with EventPublisher(FREE, topic="kv") as publisher:
        subscriber = sockets(zmq.SUB, publisher.endpoint)
        wait_for("subscriber", lambda: publisher.subscribers or None)
        blocks = publisher.stored(list(range(32)), block_size=16, dp_rank=3)
        more = publisher.stored(array.array("I", range(32, 48)), parent=blocks[-1], dp_rank=3)
        publisher.removed(more, medium="CPU", dp_rank=3)
        publisher.cleared(dp_rank=3)
        batches = [subscriber.recv_multipart() for _ in range(4)]
    assert [(topic, int.from_bytes(number, "big")) for topic, number, _ in batches] == [
        (b"kv", number) for number in range(4)
    ]
    events = []
    for _, _, payload in batches:
        [event], rank = batch_of(payload)
        assert rank == 3
        events.append(event)
    stored, second, removed, cleared = events
    assert stored["type"] == "BlockStored"
    assert stored["block_hashes"] == blocks and len(blocks) == 2
    assert (stored["parent_block_hash"], stored["token_ids"]) == (None, list(range(32)))
    assert (stored["block_size"], stored["medium"], stored["lora_name"]) == (16, "GPU", None)
    assert (second["block_hashes"], second["parent_block_hash"]) == (more, blocks[-1])
    assert (removed["type"], removed["block_hashes"], removed["medium"]) == ("BlockRemoved", more, "CPU")
    assert cleared == {"type": "AllBlocksCleared"}


@pytest.mark.contract("DY37")
def test_missed_batches_are_sent_again_from_any_number_on(sockets: Any) -> None:
    with EventPublisher(FREE, FREE, buffer_steps=3) as publisher:
        for number in range(5):
            publisher.stored([number] * 16)
        assert [number for number, _ in replayed(sockets, publisher, 0)] == [2, 3, 4]
        [(number, payload)] = replayed(sockets, publisher, 4)
        assert number == 4
        [event], _ = batch_of(payload)
        assert event["token_ids"] == [4] * 16
        assert replayed(sockets, publisher, 5) == []


def test_kept_batches_are_bounded_in_bytes(sockets: Any) -> None:
    with EventPublisher(FREE, FREE, buffer_bytes=10_000) as publisher:
        for number in range(10):
            publisher.stored([100_000 + number] * 800)
        kept = replayed(sockets, publisher, 0)
        assert kept and kept[-1][0] == 9
        assert sum(len(payload) for _, payload in kept) <= 10_000


def test_hashes_of_the_engine_are_published_as_64_bits(sockets: Any) -> None:
    digest = bytes(range(32))
    with EventPublisher(FREE, FREE) as publisher:
        names = publisher.stored([1, 2, 3, 4, 5, 6], hashes=[2**64 - 2, -1, digest], block_size=2, parent=5)
        publisher.removed([digest, -1])
        stored, removed = (batch_of(payload)[0][0] for _, payload in replayed(sockets, publisher, 0))
    low = int.from_bytes(digest[-8:], "big")
    assert names == stored["block_hashes"] == [2**64 - 2, 2**64 - 1, low]
    assert stored["parent_block_hash"] == 5
    assert removed["block_hashes"] == [low, 2**64 - 1]


def test_computed_hashes_depend_on_everything_before_the_block_and_on_the_adapter() -> None:
    with EventPublisher(FREE) as publisher:
        one = publisher.stored([1, 2, 3, 4], block_size=2)
        assert publisher.stored([1, 2], block_size=2) == one[:1]
        assert publisher.stored([3, 4], block_size=2, parent=one[0]) == one[1:]
        assert publisher.stored([3, 4], block_size=2) != one[1:]
        assert publisher.stored([1, 2], block_size=2, lora="a") != one[:1]
        assert publisher.stored([1, 2, 3], block_size=2) == one[:1], "a partial block is left out"
        assert publisher.stored([1], block_size=2) == []


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda p: p.stored([1, 2, 3], hashes=[1], block_size=2), ValueError, "3 tokens and hashes 1 blocks"),
        (lambda p: p.stored([1, 2], hashes=[1, 1], block_size=1), ValueError, "name the block 1 twice"),
        (lambda p: p.stored([1], hashes=[7], parent=7, block_size=1), ValueError, "name the block 7 twice"),
        (lambda p: p.stored([1], hashes=[2**64], block_size=1), ValueError, r"hashes\[0\] is 18446744073709551616"),
        (lambda p: p.stored([1], hashes=[b"short"], block_size=1), ValueError, r"hashes\[0\] has 5 bytes"),
        (lambda p: p.stored([1], hashes=[True], block_size=1), TypeError, r"hashes\[0\] is of type bool"),
        (lambda p: p.stored([1], hashes=5, block_size=1), TypeError, "hashes is of type int"),
        (lambda p: p.stored([1], parent="x", block_size=1), TypeError, "parent is of type str"),
        (lambda p: p.stored([1.5]), TypeError, r"tokens\[0\] is 1\.5 of type float"),
        (lambda p: p.stored([1], block_size=0), ValueError, "block_size is 0"),
        (lambda p: p.stored([1], medium=""), ValueError, "medium has 0 bytes"),
        (lambda p: p.stored([1], lora="x" * 257), ValueError, "lora has 257 bytes"),
        (lambda p: p.removed([1], dp_rank=-1), ValueError, "dp_rank is -1"),
        (lambda p: p.removed(b"12345678"), TypeError, "hashes is of type bytes"),
        (lambda p: EventPublisher("5557"), ValueError, "endpoint: .*tcp://host:port"),
        (lambda p: EventPublisher(FREE, "inproc://x"), ValueError, "replay_endpoint: .*tcp://host:port"),
        (lambda p: EventPublisher(FREE, buffer_steps=0), ValueError, "buffer_steps is 0: expected 1 to 1000000"),
        (lambda p: EventPublisher(FREE, topic="t" * 257), ValueError, "topic has 257 bytes"),
    ],
)
def test_a_bad_argument_is_named_and_nothing_is_published(
    sockets: Any, call: Any, error: type[Exception], said: str
) -> None:
    with EventPublisher(FREE, FREE) as publisher:
        with pytest.raises(error, match=said):
            call(publisher)
        assert replayed(sockets, publisher, 0) == []


def test_an_endpoint_in_use_is_a_conflict() -> None:
    with EventPublisher(FREE) as publisher:
        with pytest.raises(WarmrouteError) as refused:
            EventPublisher(publisher.endpoint)
    assert refused.value.code == "conflict"
    with EventPublisher(publisher.endpoint) as again:
        assert again.endpoint == publisher.endpoint
        assert again.replay_endpoint is None


@pytest.mark.contract("DY37")
def test_a_closed_publisher_says_so() -> None:
    publisher = EventPublisher(FREE, FREE)
    publisher.close()
    publisher.close()
    for call in (lambda: publisher.stored([1] * 16), publisher.cleared, lambda: publisher.subscribers):
        with pytest.raises(WarmrouteError, match="is closed") as refused:
            call()
        assert refused.value.code == "conflict"


@pytest.mark.contract("DY37")
def test_what_was_published_before_the_end_still_arrives(sockets: Any, wait_for: WaitFor) -> None:
    publisher = EventPublisher(FREE)
    subscriber = sockets(zmq.SUB, publisher.endpoint)
    wait_for("subscriber", lambda: publisher.subscribers or None)
    for _ in range(100):
        publisher.cleared()
    publisher.close()
    numbers = [int.from_bytes(subscriber.recv_multipart()[1], "big") for _ in range(100)]
    assert numbers == list(range(100))


def test_threads_publish_each_number_once(sockets: Any) -> None:
    with EventPublisher(FREE, FREE) as publisher:
        threads = [
            threading.Thread(target=lambda: [publisher.stored([1] * 5000, block_size=10) for _ in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [number for number, _ in replayed(sockets, publisher, 0)] == list(range(80))


def test_after_a_fork_the_child_gets_an_error_and_ends(programs: Programs) -> None:
    code = f"""
import os, sys
from warmroute import EventPublisher, WarmrouteError
publisher = EventPublisher({FREE!r}, {FREE!r})
child = os.fork()
if child == 0:
    try:
        publisher.cleared()
    except WarmrouteError as error:
        print(error.code, "fork" in str(error))
    del publisher
    with EventPublisher({FREE!r}) as own:
        print(own.stored([1] * 16) != [])
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print(publisher.stored([1] * 16) != [])
publisher.close()
"""
    end = programs.run("-c", code)
    assert (end.returncode, end.stdout.split()) == (0, ["conflict", "True", "True", "True"]), end.stderr


class Router:
    """A router in front of an engine that publishes no events of its own."""

    def __init__(self, programs: Programs, publisher: EventPublisher) -> None:
        engine = programs.start(
            "-m", "warmroute", "engine", "--port", "0", "--no-kv-events", "--block-size", "16", "--print-ready"
        )
        file = programs.folder / "router.yaml"
        events = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint}
        url = f"http://{engine.read_ready_line()['data']}"
        worker = {"name": "w1", "url": url, "block_size": 16, "kv_events": events}
        file.write_text(json.dumps({"workers": [worker]}))
        serve = ["serve", "-c", str(file), "--port", "0", "--admin-listen", "127.0.0.1:0", "--print-ready"]
        router = programs.start("-m", "warmroute", *serve)
        self.url = f"http://{router.read_ready_line()['data']}/v1/route"
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def predicted(self, tokens: list[int]) -> int | None:
        """Returns the predicted cached tokens; ``None`` while there is no worker."""
        body = json.dumps({"model": "sim", "token_ids": tokens}).encode()
        request = urllib.request.Request(self.url, body, {"content-type": "application/json"})
        try:
            with self.opener.open(request, timeout=LONGEST_WAIT_MS / 1000) as reply:
                receipt = json.load(reply)
        except urllib.error.HTTPError as error:
            error.close()
            return None
        [candidate] = receipt["candidates"]
        cached: int = candidate["predicted_cached_tokens"]
        return cached


@pytest.mark.contract("DY37")
def test_a_router_predicts_what_was_published(programs: Programs, wait_for: WaitFor) -> None:
    prompt = list(range(100))
    with EventPublisher(FREE, FREE) as publisher:
        # Before the router runs: it asks for the history.
        blocks = publisher.stored(prompt[:64])
        router = Router(programs, publisher)

        def predicts(tokens: int) -> None:
            wait_for(f"prediction of {tokens}", lambda: True if router.predicted(prompt) == tokens else None)

        predicts(64)
        publisher.stored(prompt[64:96], parent=blocks[-1])
        predicts(96)
        publisher.removed(blocks[2:])
        predicts(32)
        publisher.cleared()
        predicts(0)


@pytest.mark.contract("DY37")
def test_the_example_feeds_a_router(programs: Programs, wait_for: WaitFor) -> None:
    example = runpy.run_path(str(EXAMPLES / "publisher.py"))
    with EventPublisher(FREE, FREE) as publisher:
        router = Router(programs, publisher)
        engine = example["Engine"](publisher)
        prompt = list(range(48))
        blocks = engine.computed(prompt)
        wait_for("prediction", lambda: True if router.predicted([*prompt, 1]) == 48 else None)
        engine.evicted(blocks[1:])
        wait_for("prediction", lambda: True if router.predicted([*prompt, 1]) == 16 else None)
