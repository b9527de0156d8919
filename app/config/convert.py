"""Turns agenticSeek's `config.ini` into our TOML; what has no counterpart becomes a comment, nothing is lost."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterable

from app.config.values import normalise_base_url
from app.config.vendors import VENDORS, vendor_for
from app.schema.errors import ConfigError

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})

_NO_COUNTERPART: dict[str, str] = {
    "agent_name": "the name of the talking agent is not configurable",
    "recover_last_session": "use --resume last",
    "save_session": "every session is saved",
    "jarvis_personality": "there is one set of prompts",
    "safe_mode": "commands run in a sandbox and ask first: see --approve and [sandbox]",
    "stealth_mode": "the browser does not hide that it is automated",
}


def convert_ini(text: str) -> str:
    """The TOML text that says the same as a `config.ini`; it loads as it stands.

    Keys have never stood in that file; they are read from the environment as before. Raises `ConfigError` with the
    line when `text` is no INI file, when a switch is neither true nor false, or when nothing in it is known.
    """
    parser = _parse(text.removeprefix("\ufeff"))
    main = dict(parser["MAIN"]) if parser.has_section("MAIN") else {}
    browser = dict(parser["BROWSER"]) if parser.has_section("BROWSER") else {}
    if not main and not browser:
        raise ConfigError("this file has neither a [MAIN] nor a [BROWSER] section", hint="is it agenticSeek's?")
    out = ["# Made from agenticSeek's config.ini. API keys stay in environment variables, as before."]
    out += _llm(main)
    out += _section("workspace", [("path", _text(main, "work_dir"))])
    out += _section("browser", [("headless", _switch(browser, "headless_browser"))])
    out += _section(
        "voice",
        [
            ("speak", _switch(main, "speak")),
            ("listen", _switch(main, "listen")),
            ("languages", _languages(main.pop("languages", None))),
        ],
    )
    out += _leftovers([*main.items(), *browser.items(), *_other_sections(parser)])
    return "\n".join(out) + "\n"


def _parse(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"))
    try:
        parser.read_string(text)
    except configparser.MissingSectionHeaderError as error:
        raise ConfigError(f"line {error.lineno}: a key stands before the first [section]") from None
    except configparser.ParsingError as error:
        raise ConfigError(f"line {error.errors[0][0]}: this is neither a [section] nor key = value") from None
    except (configparser.DuplicateSectionError, configparser.DuplicateOptionError) as error:
        raise ConfigError(f"line {error.lineno}: the same section or key stands there twice") from None
    return parser


def _llm(main: dict[str, str]) -> list[str]:
    label = (main.pop("provider_name", None) or "openai").strip()
    model = _text(main, "provider_model")
    server = main.pop("provider_server_address", "").strip()
    is_local = _read_switch("is_local", main.pop("is_local", "False"))
    vendor, known = vendor_for(label, "")
    api_type = vendor.name if vendor and known else label
    notes = [] if known else [f'# "{label}" is no known provider; it is read as an OpenAI-compatible server.']
    if not (is_local or (vendor and vendor.local)):
        if server:
            notes.append("# provider_server_address is left out: a cloud provider has its own address.")
        server = ""
    base_url = normalise_base_url(server)
    if base_url and api_type == "openai" and not re.search(r"/v\d+$", base_url):
        base_url += "/v1"  # its local servers were addressed without the version path
    elif not base_url and is_local and api_type == "openai":
        base_url = VENDORS["llama.cpp"].base_url
    return notes + _section("llm", [("api_type", api_type), ("model", model), ("base_url", base_url or None)])


def _section(name: str, pairs: Iterable[tuple[str, object]]) -> list[str]:
    lines = [f"{key} = {_toml(value)}" for key, value in pairs if value is not None]
    return ["", f"[{name}]", *lines] if lines else []


def _toml(value: object) -> str:
    """JSON's texts, lists and switches are TOML's too; a literal `${` must not become a reference."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("\x7f", "\\u007f")


def _leftovers(pairs: Iterable[tuple[str, str]]) -> list[str]:
    lines = [_leftover(key, value) for key, value in pairs]
    return ["", "# Without a counterpart here:", *lines] if lines else []


def _leftover(key: str, value: str) -> str:
    shown = "(left out)" if re.search(r"key|token|secret|password", key) else " ".join(value.split())
    return f"# {key} = {shown}  ({_NO_COUNTERPART.get(key, 'unknown key')})"


def _other_sections(parser: configparser.ConfigParser) -> list[tuple[str, str]]:
    names = [name for name in parser.sections() if name not in ("MAIN", "BROWSER")]
    return [(f"[{name}] {key}", value) for name in names for key, value in parser[name].items()]


def _text(section: dict[str, str], key: str) -> str | None:
    return section.pop(key, "").strip() or None


def _switch(section: dict[str, str], key: str) -> bool | None:
    value = section.pop(key, None)
    return None if value is None else _read_switch(key, value)


def _read_switch(key: str, value: str) -> bool:
    word = value.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ConfigError(f"{key} must be True or False")
    return word in _TRUE


def _languages(value: str | None) -> list[str] | None:
    if value is None:
        return None
    return [language for language in re.split(r"[\s,]+", value) if language] or None
