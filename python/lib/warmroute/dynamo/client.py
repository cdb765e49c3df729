"""``Client``: sends requests to an endpoint's engines without a look at their caches."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warmroute import TokenStream
from warmroute.dynamo.engines import NATS_VARIABLE, open_router
from warmroute.dynamo.runtime import Endpoint
from warmroute.dynamo.tracked_requests import tracked_worker

if TYPE_CHECKING:
    from warmroute._native import _Fields, _Tokens

# The members of a request that is a mapping.
_MEMBERS = ("token_ids", "model", "stop_conditions", "sampling_options")


class Client:
    """A client of an endpoint's engines.

    A request is a prompt of token ids, or a mapping with ``token_ids`` and, as they are needed, ``model``,
    ``stop_conditions`` and ``sampling_options``. Each method returns the reply as it arrives: an asynchronous iterator
    of dicts with the new ``token_ids``.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._path = endpoint.path
        settings: dict[str, Any] = {"routing": {"policy": "random"}}
        # A router of a fleet may make the snapshot for all of them, so it follows events too.
        if not os.environ.get(NATS_VARIABLE):
            settings["kv_events"] = {"enabled": False}
        self._engines = open_router(endpoint.path, settings)
        self._turns = itertools.count()
        endpoint.runtime.keep(self)

    async def generate(self, request: _Tokens | Mapping[str, Any], request_id: str | None = None) -> TokenStream:
        """Send a request to the worker that a router of this endpoint, in this process, tracks under ``request_id``;
        otherwise to a random one."""
        worker = None if request_id is None else tracked_worker(self._path, request_id)
        return await self._send(request, worker)

    async def random(self, request: _Tokens | Mapping[str, Any]) -> TokenStream:
        """Send a request to a random worker."""
        return await self._send(request, None)

    async def round_robin(self, request: _Tokens | Mapping[str, Any]) -> TokenStream:
        """Send a request to the next worker."""
        model = _members(request).get("model")
        workers = sorted(row["name"] for row in await self._engines.router.workers() if _serves(row, model))
        # Without any, the router says why.
        worker = workers[next(self._turns) % len(workers)] if workers else None
        return await self._send(request, worker)

    async def direct(self, request: _Tokens | Mapping[str, Any], worker: str) -> TokenStream:
        """Send a request to this worker."""
        if not isinstance(worker, str):
            raise TypeError(f"worker is of type {type(worker).__name__}: expected a text, the worker's name")
        return await self._send(request, worker)

    async def _send(self, request: _Tokens | Mapping[str, Any], worker: str | None) -> TokenStream:
        return await self._engines.router.generate(**_members(request), worker_id=worker)

    def close(self) -> None:
        """Close the client and cancel its requests. A repeated call does nothing."""
        self._engines.close()


def _members(request: object) -> _Fields:
    if not isinstance(request, Mapping):
        return {"token_ids": request}
    if unknown := [name for name in request if name not in _MEMBERS]:
        raise ValueError(f"the request has the unknown member {unknown[0]!r}: expected {', '.join(_MEMBERS)}")
    if "token_ids" not in request:
        raise ValueError("the request has no token_ids")
    return dict(request)


def _serves(row: _Fields, model: str | None) -> bool:
    is_usable = row["state"] == "ready" and row["role"] != "prefill"
    return is_usable and (model is None or model in row["models"] + row["loras"])
