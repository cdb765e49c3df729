"""The settings of a router under Dynamo's names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import Router
from warmroute.dynamo import KvRouterConfig
from warmroute.dynamo.path import EndpointPath

if TYPE_CHECKING:
    from conftest import Programs

PATH = EndpointPath("dynamo", "backend", "generate")
OTHER = {
    "overlap_score_weight": 2.5,
    "router_temperature": 0.5,
    "use_kv_events": False,
    "router_track_active_blocks": False,
    "router_ttl": 60.5,
    "router_max_tree_size": 1000,
    "router_prune_target_ratio": 0.5,
}
SETTINGS = {
    "routing": {"policy": "dynamo_cost", "overlap_weight": 2.5, "temperature": 0.5, "track_active_blocks": False},
    "kv_events": {"enabled": False, "prediction": {"ttl": "60500ms", "max_blocks": 1000, "prune_target_ratio": 0.5}},
}


@pytest.mark.contract("DY2", "DY3", "DY4", "DY5", "DY6", "DY7", "DY11")
def test_each_field_is_a_setting_that_a_router_takes(programs: Programs) -> None:
    assert KvRouterConfig().settings(PATH) == {"routing": {"policy": "dynamo_cost"}}
    settings = KvRouterConfig(**OTHER).settings(PATH)
    assert settings == SETTINGS
    with Router(settings, [f"w1={programs.start_engine()}"]) as router:
        assert router.best_worker_blocking([1, 2, 3]) == ("w1", 0, 0)


@pytest.mark.contract("DY8", "DY9", "DY10")
def test_what_replicas_share_is_theirs_of_one_component() -> None:
    config = KvRouterConfig(router_replica_sync=True, router_reset_states=True, router_snapshot_threshold=500)
    assert config.settings(PATH)["replicas"] == {
        "mode": "nats",
        "namespace": "dynamo",
        "component": "backend",
        "load_sync": True,
        "reset_states": True,
        "nats": {"snapshot_threshold": 500},
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("overlap_score_weight", -0.1),
        ("overlap_score_weight", 101),
        ("router_temperature", math.nan),
        ("router_snapshot_threshold", 0),
        ("router_ttl", 0),
        ("router_max_tree_size", 0),
        ("router_prune_target_ratio", 1.1),
    ],
)
def test_a_value_out_of_its_range_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}: expected"):
        KvRouterConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("overlap_score_weight", "1"),
        ("router_temperature", True),
        ("use_kv_events", 1),
        ("router_snapshot_threshold", 1.5),
        ("router_ttl", None),
    ],
)
def test_a_value_of_another_type_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{field} is of type {type(value).__name__}: expected"):
        KvRouterConfig(**{field: value})
