"""Dynamo's Python API for its KV router, against engines that speak plain HTTP.

Scripts written for ``dynamo._core`` run with their import line changed; see docs/python.md. An endpoint finds its
engines in this order: workers registered in this process, ``WARMROUTE_WORKERS``, registrations in NATS, an admin
listener of a router.
"""

from warmroute.dynamo.client import Client
from warmroute.dynamo.config import KvRouterConfig
from warmroute.dynamo.registration import ModelInput, ModelType, Registration, register_llm
from warmroute.dynamo.router import KvPushRouter
from warmroute.dynamo.runtime import Component, DistributedRuntime, Endpoint, Namespace, namespace

__all__ = [
    "Client",
    "Component",
    "DistributedRuntime",
    "Endpoint",
    "KvPushRouter",
    "KvRouterConfig",
    "ModelInput",
    "ModelType",
    "Namespace",
    "Registration",
    "namespace",
    "register_llm",
]
