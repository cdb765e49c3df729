"""Workers that register themselves, and keep a lease."""

from __future__ import annotations

import asyncio
import atexit
import enum
import os
import threading
import time
import weakref
from collections.abc import Hashable
from typing import Any
from urllib.parse import urlsplit

from warmroute import Router
from warmroute.dynamo.admin_listener import URL_VARIABLE, AdminListener
from warmroute.dynamo.background import RepeatedTask
from warmroute.dynamo.config import check_range, milliseconds, share_over_nats
from warmroute.dynamo.engines import nats_server
from warmroute.dynamo.leases import Lease
from warmroute.dynamo.local_workers import LOCAL_WORKERS
from warmroute.dynamo.path import EndpointPath
from warmroute.dynamo.runtime import Endpoint, checked_endpoint

Entry = dict[str, Any]

ENGINE_VARIABLE = "WARMROUTE_ENGINE_URL"
# Seconds, as the admin API has them.
_SHORTEST_LEASE, _LONGEST_LEASE = 1, 24 * 3600
# A lease outlives two lost renewals.
_RENEWALS_PER_LEASE = 3
# Longest wait until NATS has a change, and seconds between two looks.
_LONGEST_WRITE, _WRITE_LOOK = 2.0, 0.02
# Least time for a step of a call to an admin listener, and longest wait for all places at the end.
_SHORTEST_CALL, _LONGEST_END = 1.0, 5.0
_open: weakref.WeakSet[Registration] = weakref.WeakSet()


class ModelInput(enum.Enum):
    """The form of a request that a worker takes."""

    Tokens = "tokens"


class ModelType(enum.Flag):
    """The requests that a worker serves: whole requests (``Chat``, ``Completions``), or the prompts of others (``Prefill``)."""

    Chat = 1
    Completions = 2
    Prefill = 4


class AdminListing(AdminListener):
    """The workers of a router that runs elsewhere."""

    @property
    def place(self) -> Hashable:
        return self.url

    def close(self) -> None:
        """Does nothing: each call has a connection of its own."""


class NatsListing:
    """The workers that the routers of a component share in NATS."""

    def __init__(self, path: EndpointPath) -> None:
        self.place: Hashable = (nats_server(), path.namespace, path.component)
        settings: dict[str, Any] = {"workers": []}
        share_over_nats(settings, path)
        # It may make the snapshot for all routers of the component, so it follows events as they do.
        self._router = Router(settings)

    def put(self, entry: Entry) -> None:
        self._router.put_worker_blocking(entry)

    def remove(self, name: str) -> None:
        self._router.remove_worker_blocking(name)
        end = time.monotonic() + _LONGEST_WRITE
        written = 'warmroute_shared_workers{state="pending"} 0\n'
        # Without the server, the lease ends the registration.
        while time.monotonic() < end and written not in self._router.metrics_blocking():
            time.sleep(_WRITE_LOOK)

    def close(self) -> None:
        self._router.close_blocking()


class Registration:
    """A worker that is registered until ``close``, the end of its runtime or the end of the process.

    It is an asynchronous context manager, whose end closes it.
    """

    def __init__(self, endpoint: Endpoint, entry: Entry, lease_s: float) -> None:
        endpoint.runtime.check_open()
        self._path = endpoint.path
        self._entry = entry | {"lease_ttl": milliseconds(lease_s)}
        self._interval = lease_s / _RENEWALS_PER_LEASE
        # Not held during a call to a place.
        self._lock = threading.Lock()
        self._closed = False
        self._leases: list[Lease] = []
        self._renewal: RepeatedTask | None = None
        self._process = os.getpid()
        endpoint.runtime.keep(self)

    @property
    def worker_id(self) -> str:
        """The worker's name, which routers return and take."""
        name: str = self._entry["name"]
        return name

    def _register(self) -> None:
        """Registers the worker in all places.

        Raises:
            WarmrouteError: one of them refused it; it is registered in none then.
        """
        _open.add(self)
        try:
            if os.environ.get(URL_VARIABLE):
                self._list(AdminListing(max(_SHORTEST_CALL, self._interval)))
            if nats_server():
                self._list(NatsListing(self._path))
            self._register_here()
        except BaseException:
            self.close()
            raise
        for lease in self._leases:
            lease.commit()

    def _list(self, listing: AdminListing | NatsListing) -> None:
        lease = Lease(listing, self._entry, self._interval)
        lease.open()
        with self._lock:
            self._leases.append(lease)
            if self._closed:
                lease.end()

    def _register_here(self) -> None:
        with self._lock:
            if self._closed:
                return
            LOCAL_WORKERS.register(self._path, self, self._entry)
            self._renewal = RepeatedTask("warmroute-lease", self._interval, self._renew)

    def _renew(self) -> bool:
        return LOCAL_WORKERS.renew(self._path, self, self._entry)

    def close(self) -> None:
        """Remove the worker everywhere; its running requests go on. A repeated call does nothing.

        It waits some seconds for the places outside this process; one that does not answer in that time has the worker
        until the lease ends. In a forked process it does nothing.
        """
        self._end()
        self._join(time.monotonic() + _LONGEST_END)

    def _end(self) -> None:
        """Begins to remove the worker."""
        # A forked process has none of the threads, and the worker is not its own.
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._renewal is not None:
                self._renewal.end()
            for lease in self._leases:
                lease.end()
        LOCAL_WORKERS.remove(self._path, self, self.worker_id)

    def _join(self, end: float) -> None:
        """Waits until the worker is removed, or until the monotonic time ``end``."""
        if os.getpid() == self._process:
            for lease in list(self._leases):
                lease.join(end)

    async def aclose(self) -> None:
        """Remove the worker, as ``close`` does, while other coroutines run."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Registration:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()


async def register_llm(
    model_input: ModelInput,
    model_type: ModelType,
    endpoint: Endpoint,
    model_name: str,
    *,
    url: str | None = None,
    block_size: int | None = None,
    lease_s: float = 15,
) -> Registration:
    """Register an engine as a worker of an endpoint, and renew its lease until the registration is closed.

    Routers of this process have it at once, those of other processes through NATS (``NATS_SERVER``) and through a
    router's admin listener (``WARMROUTE_ADMIN_URL``), as far as these are set.

    Args:
        model_input: ``ModelInput.Tokens``.
        model_type: ``ModelType.Chat``, ``Completions`` or both; or ``Prefill`` alone.
        endpoint: the endpoint.
        model_name: the model's name at the engine.
        url: URL of the engine's OpenAI API; by default ``WARMROUTE_ENGINE_URL``.
        block_size: tokens per KV block; by default as the engine reports it.
        lease_s: seconds after which the worker goes unless this process renews the lease, 1 to 86400.

    Raises:
        TypeError, ValueError: an argument cannot be used.
        WarmrouteError: a router refused the worker, or was not reached; it is registered nowhere then. NATS may be out
            of reach: the worker is registered there as soon as it is reached.
    """
    entry = _entry(model_input, model_type, model_name, url, block_size)
    if isinstance(lease_s, bool) or not isinstance(lease_s, (int, float)):
        raise TypeError(f"lease_s is of type {type(lease_s).__name__}: expected a number of seconds")
    check_range("lease_s", lease_s, _SHORTEST_LEASE, _LONGEST_LEASE)
    registration = Registration(checked_endpoint(endpoint), entry, lease_s)
    try:
        await asyncio.to_thread(registration._register)
    except asyncio.CancelledError:
        # Its thread may still be at it, and then ends what it has begun.
        asyncio.get_running_loop().run_in_executor(None, registration.close)
        raise
    except Exception:
        await registration.aclose()
        raise
    return registration


def _entry(
    model_input: ModelInput, model_type: ModelType, model_name: str, url: str | None, block_size: int | None
) -> Entry:
    if not isinstance(model_input, ModelInput):
        raise TypeError(f"model_input is of type {type(model_input).__name__}: expected ModelInput.Tokens")
    if not isinstance(model_name, str) or not model_name:
        raise ValueError(f"model_name is {model_name!r}: expected the model's name at the engine")
    base = _base_url(url)
    entry: Entry = {"name": _worker_name(base), "url": base, "models": [model_name], "role": _role(model_type)}
    if block_size is not None:
        entry["block_size"] = checked_block_size(block_size)
    return entry


def _role(model_type: ModelType) -> str:
    if not isinstance(model_type, ModelType):
        raise TypeError(f"model_type is of type {type(model_type).__name__}: expected a ModelType")
    if model_type is ModelType.Prefill:
        return "prefill"
    if not model_type or model_type & ModelType.Prefill:
        raise ValueError(f"model_type is {model_type!r}: expected Chat, Completions or both, or Prefill alone")
    return "unified"


def _base_url(url: str | None) -> str:
    """Returns the URL of an engine without the first part of its API's paths."""
    given = url if url is not None else os.environ.get(ENGINE_VARIABLE)
    if not given:
        raise ValueError(f"url is missing: expected the URL of the engine's OpenAI API, here or as {ENGINE_VARIABLE}")
    if not isinstance(given, str):
        raise TypeError(f"url is of type {type(given).__name__}: expected a text")
    return given.rstrip("/").removesuffix("/v1")


def _worker_name(base: str) -> str:
    """Returns the name that the worker of this URL has in every router: its host and port."""
    try:
        parts = urlsplit(base)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if "@" in base:
        # Not shown: it may be a secret.
        raise ValueError("url has a user or a password: expected http://HOST:PORT or https://HOST:PORT")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url is {base[:200]!r}: expected http://HOST:PORT or https://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port or (443 if parts.scheme == 'https' else 80)}"


def checked_block_size(block_size: object) -> int:
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise TypeError(f"block_size is of type {type(block_size).__name__}: expected a whole number of tokens")
    check_range("block_size", block_size, 1, 65_536)
    return block_size


@atexit.register
def _leave() -> None:
    """Takes the workers of this process out before the routers of this process end."""
    registrations = list(_open)
    for registration in registrations:
        registration._end()
    end = time.monotonic() + _LONGEST_END
    for registration in registrations:
        registration._join(end)
