"""The engines of an endpoint: a router in front of them, from the first source that has any."""

from __future__ import annotations

import logging
import os
import time
import weakref
from typing import Any

from warmroute import Router, WarmrouteError
from warmroute.dynamo.admin_listener import AdminListener
from warmroute.dynamo.background import RepeatedTask
from warmroute.dynamo.config import Settings, share_over_nats
from warmroute.dynamo.local_workers import LOCAL_WORKERS
from warmroute.dynamo.path import EndpointPath

Entry = dict[str, Any]

WORKERS_VARIABLE = "WARMROUTE_WORKERS"
NATS_VARIABLE = "NATS_SERVER"
# Seconds between two looks at the workers of another router.
_LOOK_INTERVAL = 2.0
# Longest wait until the workers were probed, and seconds between two looks.
_FIRST_PROBES, _PROBE_LOOK = 10.0, 0.02
_log = logging.getLogger(__name__)


class EndpointRouter:
    """A router in front of the engines of an endpoint, which follows their changes."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._look: RepeatedTask | None = None

    def put(self, entry: Entry) -> None:
        """Adds a worker, or renews its lease."""
        try:
            self.router.put_worker_blocking(entry)
        except WarmrouteError as error:
            if not _is_closed(error):
                raise

    def remove(self, name: str) -> None:
        try:
            self.router.remove_worker_blocking(name)
        except WarmrouteError as error:
            if not _is_closed(error):
                raise

    def wait_until_probed(self) -> None:
        """Waits for the first probe of each worker, which the start of a router waits for too."""
        end = time.monotonic() + _FIRST_PROBES
        while time.monotonic() < end and "unknown" in {row["state"] for row in self.router.workers_blocking()}:
            time.sleep(_PROBE_LOOK)

    def look_again(self, listener: AdminListener, known: dict[str, Entry]) -> None:
        """Repeats every change of the workers of another router."""
        reference = weakref.ref(self)

        def look() -> bool:
            engines = reference()
            if engines is None:
                return False
            try:
                engines._take(listener.workers(), known)
            except Exception as error:
                # Those that are known go on; their health is checked here.
                _log.warning("the workers of %s are not up to date: %s", listener.url, error)
            return True

        self._look = RepeatedTask("warmroute-workers", _LOOK_INTERVAL, look)

    def _take(self, entries: list[Entry], known: dict[str, Entry]) -> None:
        """Makes ``entries`` the workers, which were ``known``."""
        for name in known.keys() - {entry["name"] for entry in entries}:
            self.remove(name)
            del known[name]
        for entry in entries:
            if known.get(entry["name"]) == entry:
                continue
            # Before the call: an entry that cannot be used here is reported once.
            known[entry["name"]] = entry
            try:
                self.put(entry)
            except Exception as error:
                _log.warning("the worker %s is not used here: %s", entry["name"], error)

    def end_looks(self) -> None:
        if self._look is not None:
            self._look.end()

    def close(self) -> None:
        self.end_looks()
        self.router.close_blocking()


def _is_closed(error: WarmrouteError) -> bool:
    return error.code == "draining"


def open_router(path: EndpointPath, settings: Settings) -> EndpointRouter:
    """Starts a router with these settings in front of the engines of an endpoint.

    Raises:
        WarmrouteError: with the code ``no_worker``, none of the sources has an engine.
    """
    reasons = []
    for source in (_in_this_process, _in_the_variable, _in_nats, _at_an_admin_listener):
        found = source(path, settings)
        if isinstance(found, EndpointRouter):
            return found
        reasons.append(found)
    raise WarmrouteError("no_worker", f"there is no engine for {path}: {'; '.join(reasons)}")


def _in_this_process(path: EndpointPath, settings: Settings) -> EndpointRouter | str:
    if not LOCAL_WORKERS.has_any(path):
        return "no worker is registered in this process (register_llm)"
    engines = EndpointRouter(Router(settings | {"workers": []}))
    try:
        LOCAL_WORKERS.follow(path, engines)
    except BaseException:
        engines.close()
        raise
    engines.wait_until_probed()
    return engines


def _in_the_variable(_path: EndpointPath, settings: Settings) -> EndpointRouter | str:
    workers = [worker.strip() for worker in os.environ.get(WORKERS_VARIABLE, "").split(",")]
    workers = [worker for worker in workers if worker]
    if not workers:
        return f"{WORKERS_VARIABLE} is not set"
    return EndpointRouter(Router(settings, workers))


def _in_nats(path: EndpointPath, settings: Settings) -> EndpointRouter | str:
    if not nats_server():
        return f"{NATS_VARIABLE} is not set, so no registrations in NATS are read"
    settings = settings | {"workers": []}
    share_over_nats(settings, path)
    try:
        engines = EndpointRouter(Router(settings))
    except WarmrouteError as error:
        return f"registrations in NATS cannot be read: {error.message}"
    if engines.router.workers_blocking():
        engines.wait_until_probed()
        return engines
    is_connected = "\nwarmroute_bus_connected 1\n" in engines.router.metrics_blocking()
    engines.close()
    if not is_connected:
        return f"registrations in NATS cannot be read: the server ({NATS_VARIABLE}) was not reached"
    return f"no worker of {path.namespace}/{path.component} is registered in NATS ({NATS_VARIABLE})"


def nats_server() -> str | None:
    """Returns the URL of the NATS server, if there is one."""
    server = os.environ.get(NATS_VARIABLE)
    if server and "@" in server:
        # Not shown: it may be a secret.
        raise ValueError(f"{NATS_VARIABLE} has a user or a password: expected nats://HOST:PORT")
    return server or None


def _at_an_admin_listener(_path: EndpointPath, settings: Settings) -> EndpointRouter | str:
    listener = AdminListener()
    try:
        entries = listener.workers()
    except WarmrouteError as error:
        return error.message
    if not entries:
        return f"the router at the admin listener {listener.url} has no worker"
    engines = EndpointRouter(Router(settings | {"workers": []}))
    known: dict[str, Entry] = {}
    engines._take(entries, known)
    if not engines.router.workers_blocking():
        engines.close()
        return f"no worker of the admin listener {listener.url} can be used here"
    engines.wait_until_probed()
    engines.look_again(listener, known)
    return engines
