"""Which worker was chosen for a request that its program sends itself."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict

from warmroute.dynamo.path import EndpointPath

# Most requests of one router; the oldest go first.
_MOST = 65_536
_tables: dict[EndpointPath, weakref.WeakSet[TrackedRequests]] = {}


class TrackedRequests:
    """The requests that one router of an endpoint tracks, for the endpoint's clients."""

    def __init__(self, path: EndpointPath) -> None:
        self._lock = threading.Lock()
        self._workers: OrderedDict[str, str] = OrderedDict()
        _tables.setdefault(path, weakref.WeakSet()).add(self)

    def record(self, request_id: str, worker: str) -> None:
        with self._lock:
            self._workers[request_id] = worker
            if len(self._workers) > _MOST:
                self._workers.popitem(last=False)

    def forget(self, request_id: str) -> None:
        with self._lock:
            self._workers.pop(request_id, None)

    def worker_of(self, request_id: str) -> str | None:
        with self._lock:
            return self._workers.get(request_id)


def tracked_worker(path: EndpointPath, request_id: str) -> str | None:
    """Returns the worker that a router of the endpoint in this process chose for a request."""
    for table in list(_tables.get(path, ())):
        if worker := table.worker_of(request_id):
            return worker
    return None
