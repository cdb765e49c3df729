"""The admin listener of another router, as an endpoint calls it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from warmroute import WarmrouteError
from warmroute.dynamo import KvPushRouter, namespace
from warmroute.dynamo.admin_listener import AdminListener


class Listener(ThreadingHTTPServer):
    """A listener, by default without workers, which records the headers with tokens."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.workers: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Listener)
        self.server.tokens.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"workers": self.server.workers}).encode())

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.contract("DY40")
def test_the_token_is_sent_without_the_space_around_it(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", listener.url)
    monkeypatch.setenv("WARMROUTE_ADMIN_TOKEN", " s3cr3t-token\n")
    assert AdminListener().workers() == []
    assert listener.tokens == ["Bearer s3cr3t-token"]


@pytest.mark.contract("DY40")
@pytest.mark.parametrize("token", ["s3cr3t\ntoken", "s3cr3t token", "s3cr3t\u00e9"])
def test_no_error_shows_a_token_that_cannot_be_used(
    token: str, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", listener.url)
    monkeypatch.setenv("WARMROUTE_ADMIN_TOKEN", token)
    with pytest.raises(ValueError, match="^WARMROUTE_ADMIN_TOKEN cannot be used") as raised:
        AdminListener().workers()
    assert "s3cr3t" not in str(raised.value)
    assert raised.value.__context__ is None
    assert listener.tokens == []


@pytest.mark.contract("DY40")
def test_the_default_listener_gets_no_token(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMROUTE_ADMIN_URL", raising=False)
    monkeypatch.setattr("warmroute.dynamo.admin_listener.DEFAULT_URL", listener.url)
    monkeypatch.setenv("WARMROUTE_ADMIN_TOKEN", "s3cr3t-token")
    assert AdminListener().workers() == []
    assert listener.tokens == [None]


@pytest.mark.contract("DY40")
@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:9191",
        "ftp://127.0.0.1",
        "http://",
        "http://[::1",
        "http://127.0.0.1:port",
        "http://127.0.0.1:9191/admin",
        "http://127.0.0.1:9191?token=s3cr3t",
        "http://127.0.0.1:9191#s3cr3t",
        "http://user:s3cr3t@127.0.0.1:9191",
    ],
)
def test_a_url_of_the_listener_has_scheme_host_and_port_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", url)
    with pytest.raises(ValueError, match="^WARMROUTE_ADMIN_URL cannot be used: expected http://HOST:PORT") as raised:
        AdminListener()
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.contract("DY40")
def test_a_listener_whose_workers_are_all_refused_has_no_worker(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("WARMROUTE_WORKERS", "NATS_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", listener.url)
    entry = {"name": "w1", "url": "http://169.254.169.254", "models": ["sim"], "role": "unified", "weight": 1.0}
    listener.workers = [entry | {"block_size": 16, "dp_ranks": 1, "state": "ready"}]
    with pytest.raises(WarmrouteError, match="no worker of the admin listener .* can be used here") as raised:
        KvPushRouter(namespace("dynamo").component("refused").endpoint("generate"), block_size=16)
    assert raised.value.code == "no_worker"
