"""Names of endpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

# What the names of streams and buckets may have, which are made of them.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def checked_name(part: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{part} is of type {type(name).__name__}: expected a text")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{part} is {name[:80]!r}: expected 1 to 64 letters, digits, - and _")
    return name


@dataclass(frozen=True)
class EndpointPath:
    """The place of an endpoint, at which engines register, and routers and clients find them."""

    namespace: str
    component: str
    endpoint: str

    def __post_init__(self) -> None:
        for field in fields(self):
            checked_name(field.name, getattr(self, field.name))

    def __str__(self) -> str:
        return f"{self.namespace}/{self.component}/{self.endpoint}"
