"""``KvPushRouter``: the router of an endpoint."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from warmroute import TokenStream
from warmroute.dynamo.config import KvRouterConfig
from warmroute.dynamo.engines import open_router
from warmroute.dynamo.registration import checked_block_size
from warmroute.dynamo.runtime import Endpoint, checked_endpoint
from warmroute.dynamo.tracked_requests import TrackedRequests

if TYPE_CHECKING:
    from warmroute._native import _Fields, _Tokens


class KvPushRouter:
    """A router of an endpoint in this process. Several of them share nothing.

    Worker ids are texts: what a router returns, it takes too. The constructor blocks its thread until the engines were
    probed, up to 10 seconds; ``create`` does not. A router is an asynchronous context manager, whose end closes it.

    Args:
        endpoint: the endpoint, which finds the engines.
        block_size: tokens per KV block of engines that report none.
        kv_router_config: how it decides; by default a ``KvRouterConfig()``.

    Raises:
        TypeError, ValueError: an argument cannot be used.
        WarmrouteError: with the code ``no_worker``, the endpoint has no engine.
    """

    def __init__(self, endpoint: Endpoint, block_size: int, kv_router_config: KvRouterConfig | None = None) -> None:
        path = checked_endpoint(endpoint).path
        config = KvRouterConfig() if kv_router_config is None else kv_router_config
        if not isinstance(config, KvRouterConfig):
            raise TypeError(f"kv_router_config is of type {type(config).__name__}: expected a KvRouterConfig")
        settings = config.settings(path)
        settings["models"] = {"defaults": {"block_size": checked_block_size(block_size)}}
        self._engines = open_router(path, settings)
        self._router = self._engines.router
        self._tracked = TrackedRequests(path)
        endpoint.runtime.keep(self)

    @classmethod
    async def create(
        cls, endpoint: Endpoint, block_size: int, kv_router_config: KvRouterConfig | None = None
    ) -> KvPushRouter:
        """Return a new router, as the constructor does, while other coroutines run."""
        return await asyncio.to_thread(cls, endpoint, block_size, kv_router_config)

    async def generate(
        self,
        token_ids: _Tokens,
        model: str | None = None,
        stop_conditions: _Fields | None = None,
        sampling_options: _Fields | None = None,
        router_config_override: _Fields | None = None,
        worker_id: str | None = None,
        *,
        dp_rank: int | None = None,
    ) -> TokenStream:
        """Send a request for tokens to the best worker, and return its reply as it arrives.

        The stream is an asynchronous iterator of dicts with the new ``token_ids``; see ``warmroute.Router.generate``.

        Args:
            token_ids: the prompt.
            model: the model; needed where the workers serve several.
            stop_conditions: what ends the reply, such as ``max_tokens``, ``ignore_eos`` and ``stop``.
            sampling_options: what chooses tokens, such as ``temperature``.
            router_config_override: ``overlap_score_weight``, ``router_temperature`` or both, for this request.
            worker_id: the worker to use in place of the best one.
            dp_rank: the data-parallel rank of that worker.
        """
        worker = _pinned(worker_id, dp_rank)
        return await self._router.generate(
            token_ids, model, stop_conditions, sampling_options, router_config_override, worker
        )

    async def best_worker(
        self,
        token_ids: _Tokens,
        router_config_override: _Fields | None = None,
        request_id: str | None = None,
        *,
        model: str | None = None,
    ) -> tuple[str, int, int]:
        """Return the worker that would be chosen, its data-parallel rank, and the prompt's blocks that it has cached.

        With ``request_id`` the prompt counts as load of that worker until ``free``; ``mark_prefill_complete`` says when
        its first token was there. A client of the endpoint in this process sends a request of that id to that worker.
        """
        worker, dp_rank, blocks = await self._router.best_worker(
            token_ids, router_config_override, request_id, model=model
        )
        if request_id is not None:
            self._tracked.record(request_id, f"{worker}/{dp_rank}")
        return worker, dp_rank, blocks

    def best_worker_id(
        self,
        token_ids: _Tokens,
        router_config_override: _Fields | None = None,
        request_id: str | None = None,
        *,
        model: str | None = None,
    ) -> Coroutine[Any, Any, tuple[str, int]]:
        """Return the worker that would be chosen, and the prompt's blocks that it has cached; deprecated, since the
        data-parallel rank is left out: call ``best_worker``."""
        warnings.warn("best_worker_id is deprecated: call best_worker", DeprecationWarning, stacklevel=2)
        return self._best_worker_id(token_ids, router_config_override, request_id, model)

    async def _best_worker_id(
        self, token_ids: _Tokens, override: _Fields | None, request_id: str | None, model: str | None
    ) -> tuple[str, int]:
        worker, _, blocks = await self.best_worker(token_ids, override, request_id, model=model)
        return worker, blocks

    async def get_potential_loads(self, token_ids: _Tokens, *, model: str | None = None) -> list[_Fields]:
        """Return the load that each rank of every usable worker would have with the prompt: dicts with ``worker_id``,
        ``dp_rank``, ``potential_prefill_tokens`` and ``potential_decode_blocks``."""
        return await self._router.get_potential_loads(token_ids, model=model)

    async def find_matches_for_request(self, token_ids: _Tokens, *, model: str | None = None) -> dict[str, int]:
        """Return how many leading blocks of the prompt each worker holds, on the rank that holds most."""
        found: dict[str, int] = {}
        matches = await self._router.find_matches_for_request(token_ids, model=model)
        for (worker, _), blocks in matches.items():
            found[worker] = max(blocks, found.get(worker, 0))
        return found

    async def mark_prefill_complete(self, request_id: str) -> None:
        """Record that the first token of a tracked request is there."""
        await self._router.mark_prefill_complete(request_id)

    async def free(self, request_id: str) -> None:
        """End the tracking of a request."""
        self._tracked.forget(request_id)
        await self._router.free(request_id)

    async def dump_events(self) -> str:
        """Return the content of the block index as a JSON list, which ``warmroute.KvIndex.load_events`` takes."""
        return await self._router.dump_events()

    def close(self) -> None:
        """Close the router and cancel its requests. A repeated call does nothing."""
        self._engines.close()

    async def __aenter__(self) -> KvPushRouter:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._engines.end_looks()
        await self._router.close()


def _pinned(worker_id: str | None, dp_rank: int | None) -> str | None:
    """Returns a worker, or one rank of it, by the name that the router takes."""
    if worker_id is not None and not isinstance(worker_id, str):
        found = type(worker_id).__name__
        raise TypeError(f"worker_id is of type {found}: expected a text, as best_worker returns it")
    if dp_rank is None:
        return worker_id
    if worker_id is None:
        raise ValueError(f"dp_rank is {dp_rank} without a worker_id: expected the worker of that rank too")
    return f"{worker_id}/{dp_rank}"
