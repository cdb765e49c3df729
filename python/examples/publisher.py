"""An engine whose cache a router follows: with ``kv_events.endpoint: tcp://ENGINE:5557`` and ``replay_endpoint:
tcp://ENGINE:5558`` for its worker, the router knows which prompts are cached here."""

from __future__ import annotations

from warmroute import EventPublisher


class Engine:
    def __init__(self, publisher: EventPublisher) -> None:
        self.publisher = publisher

    def computed(self, tokens: list[int]) -> list[int]:
        """Whole blocks of a prompt are in the cache now; returns their names."""
        return self.publisher.stored(tokens, block_size=16)

    def evicted(self, blocks: list[int]) -> None:
        self.publisher.removed(blocks)


if __name__ == "__main__":
    with EventPublisher("tcp://*:5557", "tcp://*:5558") as publisher:
        engine = Engine(publisher)
        blocks = engine.computed(list(range(64)))
        engine.evicted(blocks[-1:])
        input("Events are served; press Enter to stop.")
