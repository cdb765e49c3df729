"""Decodes and hashes the batches of `decode_speed` in Python: msgspec and xxhash, as a Python router would.

    python decode.py FILE

FILE has each batch behind its length (four bytes, big-endian). The structs are the fields an index needs; msgspec skips
the others. Hashes are those of the index: XXH3-64 with seed 1337 over little-endian tokens, chained.
"""

import array
import sys
import time

import msgspec
import xxhash

PASSES = 7
SEED = 1337


class BlockStored(msgspec.Struct, tag=True, tag_field="type"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, tag_field="type"):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, tag_field="type"):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    batches, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        batches.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return batches


def last_hash(event):
    """The sequence hash of the event's last block."""
    xxh3, size = xxhash.xxh3_64_intdigest, event.block_size * 4
    tokens = array.array("I", event.token_ids).tobytes()
    last = None
    for start in range(0, len(tokens), size):
        own = xxh3(tokens[start : start + size], SEED)
        if last is None:
            last = own
        else:
            last = xxh3(last.to_bytes(8, "little") + own.to_bytes(8, "little"), SEED)
    return last


def best(work):
    took = []
    for _ in range(PASSES):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return min(took)


def main():
    assert sys.byteorder == "little" and array.array("I").itemsize == 4
    batches = read(sys.argv[1])
    decode = msgspec.msgpack.Decoder(Batch).decode
    decoded = [decode(batch) for batch in batches]
    blocks = sum(len(event.block_hashes) for batch in decoded for event in batch.events)

    def decode_all():
        for batch in batches:
            decode(batch)

    def decode_and_hash():
        checksum = 0
        for batch in batches:
            for event in decode(batch).events:
                checksum ^= last_hash(event)
        return checksum

    print(f"blocks {blocks}, python {sys.version.split()[0]}, msgspec {msgspec.__version__}, xxhash {xxhash.VERSION}")
    print(f"checksum {decode_and_hash():016x}")
    print(f"decode {blocks / best(decode_all):.0f} blocks/s")
    print(f"decode_mean_and_hash {blocks / best(decode_and_hash):.0f} blocks/s")


if __name__ == "__main__":
    main()
