"""Names of endpoints, as objects: runtime, namespace, component, endpoint."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from warmroute.dynamo.path import EndpointPath, checked_name
from warmroute.errors import WarmrouteError

if TYPE_CHECKING:
    from warmroute.dynamo.client import Client

_log = logging.getLogger(__name__)


class Closable(Protocol):
    def close(self) -> None: ...


class DistributedRuntime:
    """The root of a program's endpoints. Their routers, clients and registrations end with ``shutdown``."""

    def __init__(self) -> None:
        self._used: WeakSet[Closable] = WeakSet()
        self._is_shut_down = False

    @staticmethod
    def detached() -> DistributedRuntime:
        """Return a new runtime."""
        return DistributedRuntime()

    def namespace(self, name: str) -> Namespace:
        return Namespace(self, checked_name("namespace", name))

    def keep(self, used: Closable) -> None:
        """Lets ``used`` end with this runtime."""
        self._used.add(used)

    def check_open(self) -> None:
        if self._is_shut_down:
            raise WarmrouteError("draining", "the runtime was shut down: make a new one")

    def shutdown(self) -> None:
        """End the registrations, clients and routers of this runtime's endpoints."""
        self._is_shut_down = True
        for used in list(self._used):
            try:
                used.close()
            except Exception as error:
                # The others end too.
                _log.warning("%s did not end in order: %s", type(used).__name__, error)


class Namespace:
    """A namespace of a runtime."""

    def __init__(self, runtime: DistributedRuntime, name: str) -> None:
        self.runtime = runtime
        self.name = name

    def component(self, name: str) -> Component:
        return Component(self, checked_name("component", name))


class Component:
    """A component of a namespace. Routers of one component share state in NATS."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        self.namespace = namespace
        self.name = name

    def endpoint(self, name: str) -> Endpoint:
        return Endpoint(self.namespace.runtime, EndpointPath(self.namespace.name, self.name, name))


class Endpoint:
    """An endpoint of a component: where engines register, and where routers and clients find them."""

    def __init__(self, runtime: DistributedRuntime, path: EndpointPath) -> None:
        self.runtime = runtime
        self.path = path

    def client(self) -> Client:
        """Return a client of the endpoint's engines. Waits until they were probed, for a bounded time.

        Raises:
            WarmrouteError: with the code ``no_worker``, the endpoint has no engine.
        """
        # It imports this module.
        from warmroute.dynamo.client import Client

        return Client(self)

    def __repr__(self) -> str:
        return f"Endpoint({str(self.path)!r})"


def namespace(name: str) -> Namespace:
    """Return a namespace of a new runtime."""
    return DistributedRuntime.detached().namespace(name)


def checked_endpoint(endpoint: object) -> Endpoint:
    if not isinstance(endpoint, Endpoint):
        raise TypeError(
            f"endpoint is of type {type(endpoint).__name__}: expected one of "
            "DistributedRuntime.detached().namespace(..).component(..).endpoint(..)"
        )
    return endpoint
