"""A TCP proxy that can be cut: while it is, no byte passes and no connection ends, as between separated networks."""

import asyncio

# Bytes that one direction of one connection holds.
PIECE = 1 << 16


class CuttableProxy:
    """Forwards the connections of one port to another, on loopback."""

    def __init__(self, port, target):
        self.port, self.target = port, target
        self.healed = asyncio.Event()
        self.healed.set()
        self.server = None
        self.tasks = set()

    async def start(self):
        self.server = await asyncio.start_server(self.connection, "127.0.0.1", self.port)

    def cut(self):
        self.healed.clear()

    def heal(self):
        self.healed.set()

    async def connection(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            await self.healed.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            await asyncio.gather(self.forward(reader, far_writer), self.forward(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self.tasks.discard(asyncio.current_task())

    async def forward(self, reader, writer):
        try:
            while True:
                piece = await reader.read(PIECE)
                await self.healed.wait()
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()
        finally:
            writer.close()

    async def stop(self):
        if self.server:
            self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
