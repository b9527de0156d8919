"""Finds a model when nothing is configured: a vendor's key, a server on this machine, the embedded model."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import SecretStr

from app.config.load import load_config
from app.config.settings import Config, LLMSettings
from app.config.vendors import VENDORS, Vendor, base_url_from_env, key_from_env, vendor_from_env

if TYPE_CHECKING:
    import aiohttp

LOCAL_PORTS: Mapping[str, int] = {"ollama": 11434, "lm-studio": 1234, "llama.cpp": 8080, "vllm": 8000}
"""Where local servers listen, in the order of preference when several answer."""

NO_MODEL_HELP = (
    'No model is configured. Set a key, for example: export OPENAI_API_KEY="..."  (docs/configuration.md lists more).\n'
    "Or start a local server such as Ollama or LM Studio; or run: pip install 'dragoman[embedded]'\n"
    "Or copy config/config.example.toml to config/config.toml and fill in [llm]."
)

_EMBEDDING = re.compile(r"embed|rerank|minilm|(?:^|[/_-])(?:bge|e5|gte)[-_]", re.IGNORECASE)
_MOST_BYTES = 4 * 1024 * 1024


async def load_or_detect(
    path: Path | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
    timeout_s: float = 0.3,
    ports: Mapping[str, int] = LOCAL_PORTS,
) -> Config:
    """`load_config`, and when that leaves no default model, the detected one beneath file, environment and flags.

    `llm` still has no `default` when nothing was found; `NO_MODEL_HELP` is the answer then.
    """
    config = load_config(path, env=env, flags=flags)
    if "default" in config.llm:
        return config
    detected = await detect_model(env, timeout_s=timeout_s, ports=ports)
    return load_config(path, env=env, flags=flags, detected=detected) if detected else config


async def detect_model(
    env: Mapping[str, str], *, timeout_s: float = 0.3, ports: Mapping[str, int] = LOCAL_PORTS
) -> LLMSettings | None:
    """A usable model, or None: the first key of `DETECTION_ORDER` in `env`, else a local server, else the embedded one.

    Local servers are asked all at once; `timeout_s` seconds bound the whole search. Never raises for what it meets.
    """
    if vendor := vendor_from_env(env):
        return _cloud_model(vendor, env)
    if found := await _local_model(ports, timeout_s):
        return found
    if importlib.util.find_spec("xllamacpp") is not None:
        return LLMSettings(api_type="embedded", model=VENDORS["embedded"].default_model)
    return None


def _cloud_model(vendor: Vendor, env: Mapping[str, str]) -> LLMSettings:
    found = key_from_env(vendor, env)
    address = base_url_from_env(vendor, env)
    return LLMSettings(
        api_type=vendor.name,
        base_url=address[1] if address else vendor.base_url,
        api_key=SecretStr(found[1] if found else ""),
        model=vendor.default_model,
    )


async def _local_model(ports: Mapping[str, int], timeout_s: float) -> LLMSettings | None:
    import aiohttp

    # Names may lead elsewhere and proxies too; the search stays on the loopback address.
    async with aiohttp.ClientSession(trust_env=False, timeout=aiohttp.ClientTimeout(total=timeout_s)) as session:
        models = await asyncio.gather(*(_first_model(session, port) for port in ports.values()))
    for (name, port), model in zip(ports.items(), models, strict=True):
        if model:
            path = "" if name == "ollama" else "/v1"
            return LLMSettings(api_type=name, base_url=f"http://127.0.0.1:{port}{path}", model=model)
    return None


async def _first_model(session: aiohttp.ClientSession, port: int) -> str:
    """The first model of the server on a port that writes text, or nothing: no server, another service, no model."""
    import aiohttp

    try:
        async with session.get(f"http://127.0.0.1:{port}/v1/models", allow_redirects=False) as response:
            if response.status != 200 or (response.content_length or 0) > _MOST_BYTES:
                return ""
            listing: object = await response.json(content_type=None)
    except (aiohttp.ClientError, OSError, ValueError, RecursionError):  # not there, too slow, or no JSON
        return ""
    entries = cast(dict[str, object], listing).get("data") if isinstance(listing, dict) else None
    for entry in cast(list[object], entries) if isinstance(entries, list) else ():
        name = cast(dict[str, object], entry).get("id") if isinstance(entry, dict) else None
        if isinstance(name, str) and name and not _EMBEDDING.search(name):
            return name
    return ""
