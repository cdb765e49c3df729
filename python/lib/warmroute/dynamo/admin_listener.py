"""The workers of a router that runs elsewhere, over its admin listener."""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit

from warmroute.errors import WarmrouteError

Entry = dict[str, Any]

URL_VARIABLE = "WARMROUTE_ADMIN_URL"
TOKEN_VARIABLE = "WARMROUTE_ADMIN_TOKEN"
DEFAULT_URL = "http://127.0.0.1:9191"
# Longest time for each step of a call, in seconds.
_TIMEOUT = 10.0
# Most bytes of a reply.
_LARGEST = 16 << 20
# What a header can have.
_TOKEN = re.compile(r"[!-~]+")
# Keys of a row of GET /admin/workers that an entry of a configuration has too.
_ENTRY_KEYS = ("name", "url", "models", "role", "weight", "block_size", "dp_ranks")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Lets a redirection be an error: the token is for the listener alone."""

    def redirect_request(self, *_reply: object, **_named: object) -> None:
        return None


# The listener is an internal one: no proxy of the environment leads there.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())


class AdminListener:
    """The admin listener of a router, at ``WARMROUTE_ADMIN_URL``; ``timeout`` is for each step of a call."""

    def __init__(self, timeout: float = _TIMEOUT) -> None:
        self.url: str = (os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        self._timeout = min(timeout, _TIMEOUT)
        if not _is_origin(self.url):
            # Not shown: it may have a password.
            raise ValueError(f"{URL_VARIABLE} cannot be used: expected http://HOST:PORT or https://HOST:PORT")

    def workers(self) -> list[Entry]:
        """Returns the workers that the router sends requests to, as entries of a configuration."""
        reply = self._call("GET", "/admin/workers")
        try:
            rows = [row for row in reply["workers"] if row["state"] != "draining"]
            return [{key: row[key] for key in _ENTRY_KEYS} for row in rows]
        except (KeyError, TypeError) as error:
            raise WarmrouteError("upstream_protocol", f"{self.url}/admin/workers is no list of workers") from error

    def put(self, entry: Entry) -> None:
        """Adds a worker, or renews its lease."""
        self._call("PUT", _place(entry["name"]), entry)

    def remove(self, name: str) -> None:
        try:
            self._call("DELETE", _place(name))
        except WarmrouteError as error:
            if error.code != "worker_not_found":
                raise

    def _call(self, method: str, path: str, body: Entry | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if token := _token():
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with _OPENER.open(request, timeout=self._timeout) as reply:
                text = reply.read(_LARGEST + 1)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            message = f"the admin listener {self.url} ({URL_VARIABLE}) was not reached: {error}"
            raise WarmrouteError("upstream_reset", message) from error
        try:
            return json.loads(text)
        except ValueError as error:
            message = f"the reply of the admin listener {self.url} is no JSON of at most {_LARGEST} bytes"
            raise WarmrouteError("upstream_protocol", message) from error

    def _refused(self, error: urllib.error.HTTPError) -> WarmrouteError:
        code, message = "upstream_protocol", f"status {error.code}"
        with error:
            try:
                said = json.loads(error.read(_LARGEST))["error"]
                code, message = str(said["code"]), str(said["message"])
            except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
                # It is no router, or its reply was cut: the status is all there is to say.
                pass
        return WarmrouteError(code, f"the admin listener {self.url} refused the call: {message}")


def _place(name: str) -> str:
    return f"/admin/workers/{quote(name, safe='')}"


def _is_origin(url: str) -> bool:
    """Whether a URL has a scheme, a host and perhaps a port, and nothing else."""
    try:
        parts = urlsplit(url)
        # It is checked as it is read.
        _ = parts.port
    except ValueError:
        return False
    is_bare = parts.netloc != "" and url == f"{parts.scheme}://{parts.netloc}"
    return is_bare and parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


def _token() -> str | None:
    """Returns the token for the listener that ``WARMROUTE_ADMIN_URL`` names; the default one's port may be anyone's."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token or not os.environ.get(URL_VARIABLE):
        return None
    if not _TOKEN.fullmatch(token):
        # Not shown: it is a secret.
        raise ValueError(f"{TOKEN_VARIABLE} cannot be used: expected visible ASCII characters")
    return token
