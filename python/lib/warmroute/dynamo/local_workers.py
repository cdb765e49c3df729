"""The workers that registered in this process."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from warmroute.dynamo.path import EndpointPath

Entry = dict[str, Any]

_log = logging.getLogger(__name__)


class Follower(Protocol):
    """A router that gets the workers of an endpoint."""

    def put(self, entry: Entry) -> None: ...
    def remove(self, name: str) -> None: ...


class LocalWorkers:
    """Workers by endpoint and name, and the routers that follow them."""

    def __init__(self) -> None:
        # Held during the calls of followers, so that all see the changes in the same order.
        self._lock = threading.RLock()
        self._workers: dict[EndpointPath, dict[str, tuple[object, Entry]]] = {}
        self._followers: dict[EndpointPath, weakref.WeakSet[Follower]] = {}

    def has_any(self, path: EndpointPath) -> bool:
        with self._lock:
            return path in self._workers

    def follow(self, path: EndpointPath, follower: Follower) -> None:
        """Gives a follower all workers of an endpoint, and each later change while it exists."""
        with self._lock:
            for _, entry in self._workers.get(path, {}).values():
                follower.put(entry)
            self._followers.setdefault(path, weakref.WeakSet()).add(follower)

    def register(self, path: EndpointPath, owner: object, entry: Entry) -> None:
        """Adds the worker of ``owner``, in place of one of that name; nowhere if a follower refuses it."""
        with self._lock:
            _, earlier = self._workers.get(path, {}).get(entry["name"], (None, None))
            done: list[Follower] = []
            try:
                for follower in self._following(path):
                    follower.put(entry)
                    done.append(follower)
            except BaseException:
                if earlier is None:
                    _each(done, lambda follower: follower.remove(entry["name"]))
                else:
                    _each(done, lambda follower: follower.put(earlier))
                raise
            self._workers.setdefault(path, {})[entry["name"]] = (owner, entry)

    def renew(self, path: EndpointPath, owner: object, entry: Entry) -> bool:
        """Renews the lease of a worker; False: another owner has registered it since."""
        with self._lock:
            if not self._is_of(path, owner, entry["name"]):
                return False
            _each(self._following(path), lambda follower: follower.put(entry))
            return True

    def remove(self, path: EndpointPath, owner: object, name: str) -> bool:
        """Removes the worker of ``owner``; False: it is another one's."""
        with self._lock:
            if not self._is_of(path, owner, name):
                return False
            workers = self._workers[path]
            del workers[name]
            if not workers:
                del self._workers[path]
            _each(self._following(path), lambda follower: follower.remove(name))
            return True

    def _is_of(self, path: EndpointPath, owner: object, name: str) -> bool:
        return self._workers.get(path, {}).get(name, (None,))[0] is owner

    def _following(self, path: EndpointPath) -> list[Follower]:
        return list(self._followers.get(path, ()))


def _each(followers: list[Follower], call: Callable[[Follower], None]) -> None:
    """Calls for every follower; one that fails stops no other."""
    for follower in followers:
        try:
            call(follower)
        except Exception as error:
            _log.warning("a router did not take a change of the workers of this process: %s", error)


LOCAL_WORKERS = LocalWorkers()
