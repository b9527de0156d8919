"""Works out the model configurations: inheritance from `[llm]`, addresses, and which key belongs to which account."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from app.config.check import Findings, check_table, nearest_hint, settable, table_label
from app.config.settings import LLMSettings
from app.config.sources import KeyPath, Place, Source, Table
from app.config.values import is_placeholder, normalise_base_url
from app.config.vendors import (
    VENDORS,
    Vendor,
    base_url_from_env,
    is_dialect,
    key_from_env,
    same_server,
    vendor_for,
    vendor_from_env,
)
from app.schema.errors import ConfigError

_ACCOUNT_KEYS = ("api_type", "base_url", "api_key")
_BOUND_TO_ACCOUNT = ("api_key", "api_version", "headers", "rate")


def resolve_models(
    layers: Source,
    env: Mapping[str, str],
    findings: Findings,
    *,
    detected: LLMSettings | None = None,
    model_in_file: bool = False,
) -> tuple[dict[str, LLMSettings], dict[KeyPath, Place]]:
    """All model configurations by name, and the place of each of their keys.

    `default` is left out when nothing names an account for it and no file its model. Problems go to `findings`.
    """
    raw = layers.tree.get("llm", {})
    if not isinstance(raw, dict):
        check_table(LLMSettings, raw, ("llm",), findings)
        return {}, {}
    _expand_timeouts(layers)
    base, tables = _split(layers.table("llm"))
    has_default = _complete_base(base, layers, env, detected) or model_in_file
    places = {("llm", "default", *path[1:]): place for path, place in layers.places.items() if path[:1] == ("llm",)}
    sound = check_table(LLMSettings, base, ("llm",), findings) is not None

    models: dict[str, LLMSettings] = {}
    todo = ([("default", base)] if has_default else []) + list(tables.items())
    for name, own in todo:
        path = ("llm",) if name == "default" else ("llm", name)
        _check_address_and_fallback(own, path, [*tables, "default"], findings)
        if name != "default" and check_table(LLMSettings, own, path, findings) is None:
            continue
        if sound:
            values = base if name == "default" else _inherit(base, own)
            _inherit_places(name, values, places, layers.places)
            models[name] = _resolve(name, values, env, places, findings)
    return models, places


def model_names(raw: Mapping[str, object]) -> list[str]:
    """The named configurations of a raw `[llm]` table, and `default`."""
    own_keys = settable(LLMSettings)
    return [*(key for key, value in raw.items() if isinstance(value, dict) and key not in own_keys), "default"]


def merged(base: Mapping[str, object], own: Mapping[str, object]) -> Table:
    """`own` laid over `base`, table by table."""
    result = dict(base)
    for key, value in own.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            result[key] = merged(cast(Table, below), cast(Table, value))
        else:
            result[key] = value
    return result


def _split(raw: Table) -> tuple[Table, dict[str, Table]]:
    """The keys of `[llm]` itself and the named tables under it; `retry` and the like are keys."""
    own_keys = settable(LLMSettings)
    base: Table = {}
    tables: dict[str, Table] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and key not in own_keys:
            tables[key] = cast(Table, value)
        else:
            base[key] = value
    return base, tables


def _expand_timeouts(layers: Source) -> None:
    """`timeout = 60` means `timeout = { total_s = 60 }`, so that it can be merged like any table."""
    for path in (("llm", "timeout"), *(("llm", name, "timeout") for name in layers.table("llm"))):
        value = layers.get(path)
        if isinstance(value, int | float) and not isinstance(value, bool):
            layers.set(path, {"total_s": value}, layers.places[path])


def _complete_base(base: Table, layers: Source, env: Mapping[str, str], detected: LLMSettings | None) -> bool:
    """Give a base that names no account one: a vendor whose key is in `env`, else the detected model."""
    if any(_text(base, key) and not is_placeholder(_text(base, key)) for key in _ACCOUNT_KEYS):
        return True
    if vendor := vendor_from_env(env):
        found = key_from_env(vendor, env)
        origin = Place(f"env {found[0]}" if found else "default")
        extra: Table = {"api_type": vendor.name}
    elif detected is not None:
        origin = Place("detected")
        extra = {name: getattr(detected, name) for name in ("api_type", "base_url", "model")}
    else:
        return False
    for key, value in extra.items():
        if not _text(base, key):
            base[key] = value
            layers.places[("llm", key)] = origin
    return True


def _inherit(base: Table, own: Table) -> Table:
    """`own` over `base`; another account does not inherit what belongs to the first one, its key above all."""
    moved_host = bool(_text(own, "base_url"))
    own_type, base_type, base_url = _text(own, "api_type"), _text(base, "api_type"), _text(base, "base_url")
    before = _account("" if base_url else base_type, base_url)
    if moved_host:
        same, dropped = _account("", _text(own, "base_url")) == before, _BOUND_TO_ACCOUNT
    elif own_type and not (is_dialect(own_type) and is_dialect(base_type)):
        same, dropped = _account(own_type, "") == before, (*_BOUND_TO_ACCOUNT, "base_url")
    else:
        same, dropped = True, ()
    kept = base if same else {key: value for key, value in base.items() if key not in dropped}
    return merged(kept, own)


def _account(api_type: str, base_url: str) -> str:
    """Whose account this is; all unknown addresses count as one, since a gateway may have several."""
    vendor, _known = vendor_for(api_type, base_url)
    return vendor.name if vendor else "unknown"


def _inherit_places(name: str, values: Table, places: dict[KeyPath, Place], from_file: Mapping[KeyPath, Place]) -> None:
    """The place of each key of `values`: in the table itself, else in `[llm]`."""
    for path in _paths(values, ()):
        place = from_file.get(("llm", name, *path)) or from_file.get(("llm", *path))
        if place:
            places[("llm", name, *path)] = place


def _paths(values: Table, prefix: KeyPath) -> list[KeyPath]:
    found: list[KeyPath] = []
    for key, value in values.items():
        found.append((*prefix, key))
        if isinstance(value, dict):
            found.extend(_paths(cast(Table, value), (*prefix, key)))
    return found


def _resolve(
    name: str, values: Table, env: Mapping[str, str], places: dict[KeyPath, Place], findings: Findings
) -> LLMSettings:
    """The finished configuration: label, address, key and model filled in from the vendor's row and the environment."""
    api_type = _text(values, "api_type").lower() or "openai"
    base_url = _address(name, api_type, values, env, places, findings)
    vendor = _account_vendor(api_type, base_url, env)
    filled = {
        "name": name,
        "api_type": api_type,
        "base_url": base_url,
        "api_key": _key(name, values, vendor, env, places),
        "model": _text(values, "model") or (vendor.default_model if vendor else ""),
        "fallback": [other for other in cast(list[str], values.get("fallback", [])) if other != name],
    }
    return LLMSettings.model_validate_json(json.dumps({**values, **filled}), strict=True)


def _address(
    name: str,
    api_type: str,
    values: Table,
    env: Mapping[str, str],
    places: dict[KeyPath, Place],
    findings: Findings,
) -> str:
    """The address as written, in one form, else that of the vendor's variable, else empty: the vendor's own."""
    written = _text(values, "base_url")
    vendor, _known = vendor_for(api_type, "")
    found = base_url_from_env(vendor, env) if vendor and not written else None
    if found:
        places[("llm", name, "base_url")] = Place(f"env {found[0]}")
    try:
        return normalise_base_url(found[1] if found else written)
    except ConfigError as error:
        if found:  # what is written was checked with its table
            findings.found.append((Place(f"env {found[0]}"), f"this {error.message}"))
        return ""


def _key(name: str, values: Table, vendor: Vendor | None, env: Mapping[str, str], places: dict[KeyPath, Place]) -> str:
    """The key as written, else the one of the vendor's variables; a placeholder counts as none and is remembered."""
    written = _text(values, "api_key")
    if written and not is_placeholder(written):
        return written
    at = ("llm", name, "api_key")
    stand_in = places.pop(at, None)
    if vendor and (found := key_from_env(vendor, env)):
        places[at] = Place(f"env {found[0]}")
        return found[1]
    if written and stand_in:
        places[at] = Place(f"placeholder at {stand_in}")
    return ""


def _account_vendor(api_type: str, base_url: str, env: Mapping[str, str]) -> Vendor | None:
    """Whose key fits: the vendor of the label or address. `OPENAI_BASE_URL` pairs its host with OpenAI's key, and
    `ANTHROPIC_BASE_URL` with Anthropic's.
    """
    vendor, _known = vendor_for(api_type, base_url)
    labelled = VENDORS["openai"] if is_dialect(api_type) else vendor_for(api_type, "")[0]
    paired = base_url_from_env(labelled, env) if labelled else None
    return labelled if paired and same_server(paired[1], base_url) else vendor


def _check_address_and_fallback(own: Table, path: KeyPath, known: list[str], findings: Findings) -> None:
    try:
        normalise_base_url(_text(own, "base_url"))
    except ConfigError as error:
        findings.add((*path, "base_url"), f"{table_label(path)} base_url {error.message}")
    fallback = own.get("fallback")
    for other in cast(list[object], fallback) if isinstance(fallback, list) else ():
        if isinstance(other, str) and other not in known:
            missing = f"there is no {table_label(('llm', other))}{nearest_hint(other, known)}"
            findings.add((*path, "fallback"), f'{table_label(path)} fallback names "{other}", but {missing}')


def _text(table: Mapping[str, object], key: str) -> str:
    value = table.get(key)
    return value.strip() if isinstance(value, str) else ""
