"""Simulated engines and a router in front of them, as processes on loopback."""

import http.client
import json
import signal
import subprocess
import time

# Longest time for a program's start, in seconds.
START_LIMIT = 60


class Program:
    """A process that ends with this object."""

    def __init__(self, command, log):
        self.log = open(log, "w", encoding="utf-8")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    @property
    def pid(self):
        return self.process.pid

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


class Fleet:
    """Engines, one for each list of flags, and a router with this configuration whose workers they are. To be used with
    `with`."""

    def __init__(self, warmroute, prefix, base_port, engine_flags, config):
        self.engines = [base_port + at for at in range(len(engine_flags))]
        self.data, self.admin = base_port + 50, base_port + 51
        self.programs, self.router = [], None
        self.parts = (warmroute, prefix, base_port, engine_flags, config)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def start(self):
        warmroute, prefix, base_port, engine_flags, config = self.parts
        for at, (port, flags) in enumerate(zip(self.engines, engine_flags)):
            self.programs.append(Program([
                warmroute, "engine", "--port", str(port), *flags,
                "--kv-events", f"tcp://127.0.0.1:{base_port + 100 + at}",
                "--replay", f"tcp://127.0.0.1:{base_port + 200 + at}",
            ], f"{prefix}-engine-{at}.log"))
        for port, program in zip(self.engines, list(self.programs)):
            wait_for(port, program)
        path = f"{prefix}.yaml"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config | {"workers": [{"url": f"http://127.0.0.1:{port}"} for port in self.engines]}, file)
        self.router = Program([
            warmroute, "serve", "--config", path, "--listen", f"127.0.0.1:{self.data}",
            "--admin-listen", f"127.0.0.1:{self.admin}",
        ], f"{prefix}-router.log")
        self.programs.append(self.router)
        wait_for(self.data, self.router, "/readyz")

    def end(self):
        for program in reversed(self.programs):
            program.end()

    def follow_events(self):
        """Waits until the router follows the events of all engines."""
        end = time.monotonic() + START_LIMIT
        while time.monotonic() < end:
            streams = get_json(self.admin, "/admin/streams")["streams"]
            if len(streams) == len(self.engines) and all(stream["state"] == "live" for stream in streams):
                return
            time.sleep(0.05)
        raise RuntimeError("the router does not follow all events")


def get_json(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def wait_for(port, program, path="/health"):
    """Waits until a program answers this path with 200."""
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end and program.process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            status = connection.getresponse().status
            connection.close()
            if status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"port {port} does not answer, see {program.log.name}")


def percentile(values, share):
    return sorted(values)[max(0, -int(-len(values) * share // 1) - 1)]
