"""Leases of registered workers, where a place fails, hangs or is shared."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import WarmrouteError
from warmroute.dynamo import DistributedRuntime, Endpoint, ModelInput, ModelType, Registration, register_llm
from warmroute.dynamo.local_workers import LOCAL_WORKERS

if TYPE_CHECKING:
    from conftest import Programs

WaitFor = Callable[[str, Callable[[], Any]], Any]

ENGINE = "http://127.0.0.1:1"
# Registers a worker; a copy of the process ends at once, and the process when it is interrupted.
WORKER = """
import asyncio, json, os, signal, sys
from warmroute.dynamo import ModelInput, ModelType, namespace, register_llm

signal.signal(signal.SIGINT, signal.default_int_handler)
endpoint = namespace("dynamo").component("backend").endpoint("generate")
registration = asyncio.run(register_llm(ModelInput.Tokens, ModelType.Chat, endpoint, "sim", lease_s=3600))
child = os.fork()
if child == 0:
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(json.dumps({"child": os.waitstatus_to_exitcode(status)}), flush=True)
try:
    signal.pause()
except KeyboardInterrupt:
    sys.exit(0)
"""


class Listener(ThreadingHTTPServer):
    """An admin listener that can stop to finish its replies."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.is_slow = False
        self.calls: list[str] = []
        self.hangs = threading.Event()
        self.ended = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_PUT(self) -> None:
        self.server.calls.append(self.command)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # A byte now and then, so that no step of the call takes long.
        while self.server.is_slow and not self.server.ended.wait(0.05):
            self.server.hangs.set()
            try:
                self.wfile.write(b"H")
            except OSError:
                return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    do_DELETE = do_PUT

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.delenv("NATS_SERVER", raising=False)
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("WARMROUTE_ADMIN_URL", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def admin(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> str:
    """The admin listener of a router without workers."""
    monkeypatch.delenv("NATS_SERVER", raising=False)
    file = programs.folder / "router.yaml"
    file.write_text("workers: []\n")
    flags = ["--port", "0", "--admin-listen", "127.0.0.1:0", "--print-ready"]
    url = f"http://{programs.start('-m', 'warmroute', 'serve', '-c', str(file), *flags).read_ready_line()['admin']}"
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", url)
    return url


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    runtime = DistributedRuntime.detached()
    request.addfinalizer(runtime.shutdown)
    return runtime.namespace("dynamo").component("leases").endpoint("generate")


class Follower:
    """Records the workers of an endpoint; refuses those of one role."""

    def __init__(self, refused: str | None = None) -> None:
        self.refused = refused
        self.changes: list[str] = []
        self.roles: dict[str, str] = {}

    def put(self, entry: dict[str, Any]) -> None:
        if entry["role"] == self.refused:
            raise WarmrouteError("invalid_request", "refused")
        self.changes.append(entry["name"])
        self.roles[entry["name"]] = entry["role"]

    def remove(self, name: str) -> None:
        del self.roles[name]


def roles_of(reply: Any) -> list[str]:
    """Returns the roles of the workers that stay."""
    return [row["role"] for row in reply["workers"] if row["state"] != "draining"]


def register(endpoint: Endpoint, model_type: ModelType = ModelType.Chat, lease_s: float = 3600) -> Registration:
    return asyncio.run(register_llm(ModelInput.Tokens, model_type, endpoint, "sim", url=ENGINE, lease_s=lease_s))


@pytest.mark.contract("DY38")
def test_a_listener_that_hangs_delays_no_other_renewal(
    listener: Listener, endpoint: Endpoint, wait_for: WaitFor
) -> None:
    register(endpoint, lease_s=1)
    listener.is_slow = True
    wait_for("renewal that hangs", lambda: listener.hangs.is_set() or None)
    follower = Follower()
    LOCAL_WORKERS.follow(endpoint.path, follower)
    # By the number of calls, as a call runs into its time limit where the machine stands still.
    renewals: dict[int, int] = {}

    def renewed_during_a_call() -> bool | None:
        count = len(follower.changes)
        return count >= renewals.setdefault(len(listener.calls), count) + 4 or None

    wait_for("further renewals", renewed_during_a_call)


@pytest.mark.contract("DY38")
def test_a_process_ends_though_its_listener_hangs(listener: Listener, programs: Programs) -> None:
    url = f"http://127.0.0.1:{listener.server_port}"
    worker = programs.start("-c", WORKER, WARMROUTE_ENGINE_URL=ENGINE, WARMROUTE_ADMIN_URL=url)
    worker.read_ready_line()
    listener.is_slow = True
    assert worker.end(signal.SIGINT) == 0, worker.stderr()


@pytest.mark.contract("DY38")
def test_the_end_of_a_forked_process_leaves_the_worker(
    admin: str, programs: Programs, get_json: Callable[[str], Any]
) -> None:
    worker = programs.start("-c", WORKER, WARMROUTE_ENGINE_URL=ENGINE, WARMROUTE_ADMIN_URL=admin)
    assert worker.read_ready_line() == {"child": 0}
    assert roles_of(get_json(f"{admin}/admin/workers")) == ["unified"]
    assert worker.end(signal.SIGINT) == 0, worker.stderr()
    assert roles_of(get_json(f"{admin}/admin/workers")) == []


@pytest.mark.contract("DY38")
def test_a_registration_that_fails_leaves_an_earlier_one_as_it_was(
    admin: str, endpoint: Endpoint, get_json: Callable[[str], Any]
) -> None:
    followers = [Follower("prefill"), Follower("prefill"), Follower()]
    for follower in followers:
        LOCAL_WORKERS.follow(endpoint.path, follower)
    earlier = register(endpoint)
    with pytest.raises(WarmrouteError, match="refused"):
        register(endpoint, ModelType.Prefill)
    assert roles_of(get_json(f"{admin}/admin/workers")) == ["unified"]
    assert [follower.roles for follower in followers] == [{"127.0.0.1:1": "unified"}] * 3
    earlier.close()
    assert roles_of(get_json(f"{admin}/admin/workers")) == []


@pytest.mark.contract("DY38")
def test_a_router_that_fails_stops_no_other_one(listener: Listener, endpoint: Endpoint, wait_for: WaitFor) -> None:
    register(endpoint, lease_s=1)
    followers = [Follower(), Follower(), Follower()]
    for follower in followers:
        LOCAL_WORKERS.follow(endpoint.path, follower)
    followers[0].refused = followers[1].refused = "unified"
    wait_for("renewals", lambda: len(followers[2].changes) >= 4 or None)


@pytest.mark.contract("DY38")
def test_a_runtime_that_was_shut_down_takes_no_registration(endpoint: Endpoint) -> None:
    endpoint.runtime.shutdown()
    with pytest.raises(WarmrouteError, match="the runtime was shut down") as raised:
        register(endpoint)
    assert raised.value.code == "draining"
