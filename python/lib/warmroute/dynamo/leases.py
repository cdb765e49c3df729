"""Workers in places outside this process, which list them while their leases are renewed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from typing import Any, Protocol

Entry = dict[str, Any]

_log = logging.getLogger(__name__)
_lock = threading.Lock()
# The last of this process that registered a name in a place; it alone renews and removes the entry.
_owners: dict[tuple[Hashable, str], Lease] = {}


class Listing(Protocol):
    """A place where routers find workers."""

    @property
    def place(self) -> Hashable:
        """A key that listings of the same place share."""

    def put(self, entry: Entry) -> None:
        """Adds the worker, or renews its lease."""

    def remove(self, name: str) -> None: ...
    def close(self) -> None: ...


class Lease:
    """A worker in one place. A thread of its own renews and removes it, so that no place waits for another one."""

    def __init__(self, listing: Listing, entry: Entry, interval: float) -> None:
        self._listing = listing
        self._entry = entry
        self._interval = interval
        self._key = (listing.place, str(entry["name"]))
        self._ended = threading.Event()
        # Whose entry this one replaces, until the registration has succeeded everywhere.
        self._earlier: Lease | None = None
        self._thread = threading.Thread(target=self._run, name="warmroute-lease", daemon=True)

    def open(self) -> None:
        """Adds the worker and begins to renew its lease."""
        with _lock:
            self._earlier = _owners.get(self._key)
            _owners[self._key] = self
        try:
            self._listing.put(self._entry)
        except BaseException:
            self._ended.set()
            self._give_back()
            self._listing.close()
            raise
        self._thread.start()

    def commit(self) -> None:
        """Makes the replacement of an earlier registration final."""
        self._earlier = None

    def end(self) -> None:
        """Lets the thread take the worker out, or put back what it replaced."""
        self._ended.set()

    def join(self, end: float) -> None:
        """Waits for that, until the monotonic time ``end``."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._interval, time.monotonic())
            self._try(self._renew, "is not renewed now")
        self._try(self._take_out, "ends when its time is over")
        self._try(self._listing.close, "has left a connection")

    def _renew(self) -> None:
        with _lock:
            is_own = _owners.get(self._key) is self
        if is_own:
            self._listing.put(self._entry)

    def _take_out(self) -> None:
        is_own, earlier = self._give_back()
        if earlier is not None:
            self._listing.put(earlier._entry)
        elif is_own:
            self._listing.remove(self._key[1])

    def _give_back(self) -> tuple[bool, Lease | None]:
        """Returns whether this is the owner, and the earlier one that is the owner again."""
        with _lock:
            if _owners.get(self._key) is not self:
                return False, None
            earlier = self._earlier
            while earlier is not None and earlier._ended.is_set():
                earlier = earlier._earlier
            if earlier is None:
                del _owners[self._key]
            else:
                _owners[self._key] = earlier
            return True, earlier

    def _try(self, step: Any, failure: str) -> None:
        try:
            step()
        except Exception as error:
            # The next renewal may come in time, and without one the place forgets the worker.
            _log.warning("the lease of the worker %s %s: %s", self._key[1], failure, error)
