"""A router for LLM inference engines: each request goes to the engine that already holds its prompt's KV blocks.

The command ``warmroute`` (also ``python -m warmroute``) runs the router; see docs/python.md.
"""

from warmroute._native import EventPublisher, KvIndex, Router, TokenStream, __version__, simulate
from warmroute.errors import WarmrouteError

__all__ = [
    "EventPublisher",
    "KvIndex",
    "Router",
    "TokenStream",
    "WarmrouteError",
    "__version__",
    "simulate",
]
