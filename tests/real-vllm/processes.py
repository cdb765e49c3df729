"""Engines and routers as processes of this test, each in its own process group, so that ending it ends all its children."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Http:
    """One keep-alive connection; reopened when it breaks."""

    def __init__(self, address, timeout=120):
        self.address, self.timeout, self.connection = address, timeout, None

    def ask(self, method, path, body=None, headers=None):
        """Returns status, headers (lower-case names) and body."""
        payload = None if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        for last in (False, True):
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPConnection(self.address, timeout=self.timeout)
                self.connection.request(method, path, payload, sent)
                reply = self.connection.getresponse()
                return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
            except (OSError, http.client.HTTPException):
                self.connection = None
                if last:
                    raise

    def events(self, method, path, body, headers=None):
        """Returns status, headers and the data of each server-sent event on arrival; other replies are one event."""
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.address, timeout=self.timeout)
        self.begun = time.monotonic()
        self.connection.request(method, path, json.dumps(body), {"content-type": "application/json", **(headers or {})})
        reply = self.connection.getresponse()
        head = {name.lower(): value for name, value in reply.getheaders()}
        return reply.status, head, self._data(reply, head.get("content-type", "").startswith("text/event-stream"))

    @staticmethod
    def _data(reply, streamed):
        if not streamed:
            yield reply.read().decode()
            return
        for line in reply:
            if line.startswith(b"data: "):
                yield line[6:].strip().decode()

    def json(self, method, path, body=None, headers=None):
        status, _, text = self.ask(method, path, body, headers)
        if status != 200:
            raise RuntimeError(f"{method} {self.address}{path}: {status} {text[:500]!r}")
        return json.loads(text)


class Process:
    def __init__(self, name, command, log, env=None, stdout=subprocess.DEVNULL):
        self.name = name
        with open(log, "ab") as sink:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink if stdout is None else stdout,
                stderr=sink,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def end(self, sig=signal.SIGKILL):
        """Ends the whole group and waits for its leader."""
        try:
            os.killpg(self.child.pid, sig)
        except ProcessLookupError:
            pass
        self.child.wait(timeout=60)


class Engine:
    """A vLLM on loopback, its events on unix sockets: `tcp://*` would listen on every interface."""

    def __init__(self, name, model, folder, blocks, core, max_len=4096, flags=()):
        self.name, self.model, self.folder, self.blocks, self.core = name, model, pathlib.Path(folder), blocks, core
        self.max_len, self.flags = max_len, flags
        self.port = free_port()
        self.http = Http(f"127.0.0.1:{self.port}")
        self.process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            **self.worker["kv_events"],
        }
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--max-model-len", str(self.max_len), "--max-num-seqs", "8", "--block-size", "32"]
        command += ["--num-gpu-blocks-override", str(self.blocks), "--kv-cache-memory-bytes", str(1 << 30)]
        command += ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
        command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        command += ["--kv-events-config", json.dumps(events), *self.flags]
        env = {
            "VLLM_CPU_OMP_THREADS_BIND": str(self.core),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            # Enables the endpoint that resets the prefix cache.
            "VLLM_SERVER_DEV_MODE": "1",
        }
        self.process = Process(self.name, command, self.folder / f"{self.name}.log", env, stdout=None)
        self.started = time.monotonic()

    def wait(self, limit=400):
        while time.monotonic() - self.started < limit:
            if self.process.child.poll() is not None:
                raise RuntimeError(
                    f"{self.name} ended with {self.process.child.returncode}: see {self.folder}/{self.name}.log"
                )
            try:
                if self.http.ask("GET", "/health")[0] == 200:
                    return time.monotonic() - self.started
            except OSError:
                pass
            time.sleep(0.3)
        raise RuntimeError(f"{self.name} was not healthy after {limit} s: see {self.folder}/{self.name}.log")

    @property
    def tells_sources(self):
        """Whether it reports where it publishes, as releases from 0.31 on do."""
        return self.http.ask("GET", "/kv_event_sources")[0] == 200

    @property
    def worker(self):
        """Its entry in a router's configuration, with its event sockets."""
        sockets = {
            "endpoint": f"ipc://{self.folder}/{self.name}.events",
            "replay_endpoint": f"ipc://{self.folder}/{self.name}.replay",
        }
        return {"name": self.name, "url": self.url, "kv_events": sockets}

    def counters(self):
        """Tokens queried and hit in the prefix cache since the engine started."""
        sums = {"vllm:prefix_cache_queries_total": 0.0, "vllm:prefix_cache_hits_total": 0.0}
        for line in self.http.ask("GET", "/metrics")[2].decode().splitlines():
            name, _, rest = line.partition("{")
            if name in sums:
                sums[name] += float(rest.rsplit(" ", 1)[1])
        return tuple(sums.values())


class Cable:
    """A unix socket in front of an engine's event socket that can be cut; `with` ends it."""

    def __init__(self, engine):
        self.name, self.far = engine.name, f"{engine.folder}/{engine.name}.events"
        self.near = f"{engine.folder}/{engine.name}.cable"
        self.lock, self.ends, self.whole = threading.Lock(), [], True

    @property
    def flags(self):
        return ["--kv-events", f"{self.name}=ipc://{self.near}"]

    def __enter__(self):
        pathlib.Path(self.near).unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.near)
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.cut()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            with self.lock:
                if not self.whole:
                    near.close()
                    continue
                far.connect(self.far)
                self.ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass

    def cut(self):
        """Ends every connection, also in the middle of a message, and accepts no new one."""
        with self.lock:
            self.whole, ends, self.ends = False, self.ends, []
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def mend(self):
        with self.lock:
            self.whole = True


class Router:
    """`warmroute serve` in front of engines, with every stream live; `with` ends it. `settings`: sections of its
    configuration."""

    def __init__(self, program, engines, folder, *flags, settings=None):
        command = [program, "serve", "--port", "0", "--admin-listen", "127.0.0.1:0", "--print-ready", *flags]
        if settings is None and all(engine.tells_sources for engine in engines):
            for engine in engines:
                command += ["-w", f"{engine.name}={engine.url}"]
        else:
            # JSON is valid YAML.
            file = pathlib.Path(folder) / "router.yaml"
            workers = [engine.worker for engine in engines]
            file.write_text(json.dumps({"workers": workers, **(settings or {})}))
            command += ["-c", str(file)]
        self.log = pathlib.Path(folder) / "router.log"
        self.process = Process("router", command, self.log, stdout=subprocess.PIPE)
        try:
            ready = json.loads(self.process.child.stdout.readline())
            self.data, self.admin = ready["data"], Http(ready["admin"])
            self.wait_for_streams(len(engines))
        except BaseException:
            self.process.end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.end(signal.SIGTERM)

    def wait_for_streams(self, count, limit=60):
        """Waits until every stream is live (`stale`: and silent for a minute) and its worker ready."""
        end = time.monotonic() + limit
        while True:
            streams = self.admin.json("GET", "/admin/streams")["streams"]
            workers = self.admin.json("GET", "/admin/workers")["workers"]
            live = [stream for stream in streams if stream["state"] in ("live", "stale")]
            ready = [worker for worker in workers if worker["state"] == "ready" and worker["cache_source"] == "events"]
            if len(live) >= count and len(ready) >= count:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"streams {streams} workers {workers} after {limit} s: see {self.log}")
            time.sleep(0.05)

    def digest(self):
        targets = self.admin.json("GET", "/admin/kv-index/digest")["targets"]
        return sorted((t["worker"], t["dp_rank"], t["tier"], t["blocks"], t["digest"]) for t in targets)
