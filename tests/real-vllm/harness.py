"""Models and pairs of engines: made and started where a part or a check needs them, and ended behind it."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

from checks import Bench
from processes import Engine

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures" / "vllm-real"
# Blocks of 32 tokens: both engines together hold the hit-rate workload once, but not twice.
BLOCKS = 320


class Harness:
    """What every part and check gets: the program under test, the folder of models and logs, and the table."""

    def __init__(self, program, home, size, quick, table):
        self.program, self.home, self.size, self.quick = str(program), home, size, quick
        self.row = table.row
        self.table = table

    def model(self, size):
        """Returns the folder of the model of this size, which is made on first use."""
        folder = self.home / f"model-{size}"
        weights = folder / "model.safetensors"
        if not weights.exists() or weights.stat().st_size == 0:
            # A process of its own, so that nothing of torch stays in memory.
            command = [sys.executable, "-B", HERE / "make_model.py", FIXTURES / "tiny-qwen", folder, size]
            subprocess.run(command, check=True)
        return folder

    @contextlib.contextmanager
    def bench(self, size=None, blocks=BLOCKS, max_len=4096, flags=()):
        """Two engines with this model, blocks each and further flags; ends them, and keeps their logs."""
        model = self.model(size or self.size)
        cores = sorted(os.sched_getaffinity(0))
        with self.folder() as folder:
            engines = [
                Engine(f"vllm{i}", model, folder, blocks, cores[i % len(cores)], max_len, flags) for i in range(2)
            ]
            try:
                for engine in engines:
                    engine.start()
                told = ", ".join(f"{engine.name} healthy after {engine.wait():.0f} s" for engine in engines)
                print("engines:", told, flush=True)
                tokens = FIXTURES / "tokens-tiny-qwen.jsonl"
                yield Bench(self.program, engines, folder, tokens, self.quick, self.table)
            finally:
                for engine in engines:
                    end(engine)

    @contextlib.contextmanager
    def folder(self):
        """A folder for sockets and logs; the logs outlive it."""
        # Paths of unix sockets are short.
        with tempfile.TemporaryDirectory(prefix="wr-vllm-") as name:
            folder = pathlib.Path(name)
            try:
                yield folder
            finally:
                for log in folder.glob("*.log"):
                    (self.home / log.name).write_bytes(log.read_bytes())


def end(engine):
    try:
        if engine.process:
            engine.process.end()
    except subprocess.TimeoutExpired as error:
        print(f"{engine.name} could not be ended: {error}", file=sys.stderr)
