"""Inside a container a loopback address means the container; a model server on its host has another name there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

HOST_NAME = "host.docker.internal"
"""What Docker and Podman call the machine that runs them."""
MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
CONNECT_S = 0.2
RESOLVE_S = 0.5


def in_container() -> bool:
    return any(mark.exists() for mark in MARKS)


def host_address(
    base_url: str,
    *,
    env: Mapping[str, str] = os.environ,
    inside: Callable[[], bool] = in_container,
    listens: Callable[[str, int], bool] | None = None,
    resolves: Callable[[str], bool] | None = None,
) -> str:
    """The address under which a local server is reached from here; any address but a loopback one stays as it is.

    `DOCKER_INTERNAL_URL` names the host where it is set (only its scheme and host count, the port stays). Without it a
    loopback address inside a container moves to `host.docker.internal` when nothing listens on it here and that name
    is known, so that a server in the same container keeps working.
    """
    parts = urlsplit(base_url)
    if not _is_loopback(parts.hostname or ""):
        return base_url
    if given := env.get("DOCKER_INTERNAL_URL", "").strip():
        named = urlsplit(given if "://" in given else f"//{given}")
        return _moved(base_url, named.hostname or HOST_NAME, scheme=named.scheme)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not inside() or (listens or _listens)(parts.hostname or "", port) or not (resolves or _resolves)(HOST_NAME):
        return base_url
    return _moved(base_url, HOST_NAME)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _moved(base_url: str, host: str, *, scheme: str = "") -> str:
    parts = urlsplit(base_url)
    shown = f"[{host}]" if ":" in host else host
    place = f"{shown}:{parts.port}" if parts.port else shown
    return urlunsplit((scheme or parts.scheme, place, parts.path, parts.query, parts.fragment))


def _listens(host: str, port: int) -> bool:
    """Loopback answers at once, yes or no."""
    try:
        with socket.create_connection((host, port), CONNECT_S):
            return True
    except OSError:
        return False


def _resolves(host: str) -> bool:
    """Whether the name is known; a name server that does not answer soon counts as no."""
    found: list[object] = []

    def look() -> None:
        with contextlib.suppress(OSError):
            found.extend(socket.getaddrinfo(host, None))

    search = threading.Thread(target=look, name="host-name", daemon=True)
    search.start()
    search.join(RESOLVE_S)
    return bool(found)
