"""The settings of a router under Dynamo's names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from warmroute.dynamo.path import EndpointPath

Settings = dict[str, Any]

# The key of each field in our configuration.
_KEYS: dict[str, tuple[str, ...]] = {
    "overlap_score_weight": ("routing", "overlap_weight"),
    "router_temperature": ("routing", "temperature"),
    "use_kv_events": ("kv_events", "enabled"),
    "router_replica_sync": ("replicas", "load_sync"),
    "router_track_active_blocks": ("routing", "track_active_blocks"),
    "router_snapshot_threshold": ("replicas", "nats", "snapshot_threshold"),
    "router_reset_states": ("replicas", "reset_states"),
    "router_ttl": ("kv_events", "prediction", "ttl"),
    "router_max_tree_size": ("kv_events", "prediction", "max_blocks"),
    "router_prune_target_ratio": ("kv_events", "prediction", "prune_target_ratio"),
}
# The least and the greatest value of each number.
_RANGES: dict[str, tuple[float, float]] = {
    "overlap_score_weight": (0, 100),
    "router_temperature": (0, 10),
    "router_snapshot_threshold": (1, 2**63 - 1),
    "router_ttl": (0.001, 365 * 24 * 3600),
    "router_max_tree_size": (1, 2**40),
    "router_prune_target_ratio": (0, 1),
}


@dataclass(frozen=True)
class KvRouterConfig:
    """The settings of a ``KvPushRouter``.

    Attributes:
        overlap_score_weight: weight of cached prefixes; 0: caches are ignored.
        router_temperature: randomness of the choice; 0: always the lowest cost.
        use_kv_events: follow the engines' KV events; otherwise caches are predicted.
        router_replica_sync: share the load of running requests with other routers, over NATS.
        router_track_active_blocks: count the blocks of running requests.
        router_snapshot_threshold: messages in the routers' stream at which a snapshot takes their place.
        router_reset_states: start without what earlier routers left in NATS.
        router_ttl: lifetime of a predicted block, in seconds.
        router_max_tree_size: maximum number of predicted blocks.
        router_prune_target_ratio: share of it that remains when the oldest are removed.
    """

    overlap_score_weight: float = 1.0
    router_temperature: float = 0.0
    use_kv_events: bool = True
    router_replica_sync: bool = False
    router_track_active_blocks: bool = True
    router_snapshot_threshold: int = 1_000_000
    router_reset_states: bool = False
    router_ttl: float = 120.0
    router_max_tree_size: int = 1_048_576
    router_prune_target_ratio: float = 0.8

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), type(field.default))

    def settings(self, path: EndpointPath) -> Settings:
        """Returns the configuration of a router of the endpoint ``path``; defaults are left out."""
        settings: Settings = {"routing": {"policy": "dynamo_cost"}}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                if field.name == "router_ttl":
                    value = milliseconds(value)
                _set(settings, _KEYS[field.name], value)
        if self.router_replica_sync or self.router_reset_states:
            share_over_nats(settings, path)
        return settings


def share_over_nats(settings: Settings, path: EndpointPath) -> None:
    """Lets a router share state with those of its component. ``NATS_SERVER`` names the server."""
    settings["replicas"] = settings.get("replicas", {}) | {
        "mode": "nats",
        "namespace": path.namespace,
        "component": path.component,
    }


def milliseconds(seconds: float) -> str:
    """Returns a duration as the configuration has it."""
    return f"{max(1, round(seconds * 1000))}ms"


def _set(settings: Settings, key: tuple[str, ...], value: object) -> None:
    *sections, last = key
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[last] = value


def _check(name: str, value: object, kind: type) -> None:
    expected = {bool: "True or False", int: "a whole number", float: "a number"}[kind]
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or isinstance(value, bool) != (kind is bool):
        raise TypeError(f"{name} is of type {type(value).__name__}: expected {expected}")
    if name in _RANGES:
        check_range(name, value, *_RANGES[name])


def check_range(name: str, value: Any, least: float, greatest: float) -> None:
    # Not a number is in no range.
    if not least <= value <= greatest:
        raise ValueError(f"{name} is {value}: expected {least} to {greatest}")
