"""What single values mean: placeholder keys, addresses, `${NAME}` references. Knows no table and no vendor."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from app.schema.errors import ConfigError

_PLACEHOLDER = re.compile(
    r"""
      <.*> | \{.*\} | \[.*\]                                        # <your key>
    | (?:[a-z]{1,4}[-_])? (?:\.{2,}|…|x{3,}|\*{3,}) [\w-]*          # sk-..., sk-xxxx, ***
    | (?:[a-z]{1,4}[-_])? your[\s_-]? .* (?:key|token|secret|here) .*
    | (?:insert|enter|paste|put|replace|fill)[\s_-] .* (?:key|token|secret|here) .*
    | .*\s.*key.* | .*key\s.*                                       # a key never holds blanks: "AZURE API KEY"
    | (?:[a-z]+[_-])? api[_-]?key(?:[_-]?here)? | key | token | secret
    | (?:change|replace)[\s_-]?me | todo | placeholder
    | .*(?:你的|您的|填写|填入|密钥).*
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_PRIVATE_SUFFIXES = (".local", ".lan", ".internal", ".localhost", ".home.arpa", ".intranet")
_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_placeholder(key: str) -> bool:
    """Whether a key is an example's stand-in (`YOUR_API_KEY`, `sk-...`, `<your key>`).

    The dummies that local servers want, such as `ollama`, `EMPTY` or `none`, are keys, not placeholders.
    """
    return _PLACEHOLDER.fullmatch(key.strip()) is not None


def is_private_host(host: str) -> bool:
    """Whether a host is on the user's own machine or network: loopback, private ranges, names without a domain."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        return not ipaddress.ip_address(name).is_global
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(_PRIVATE_SUFFIXES))


def normalise_base_url(text: str) -> str:
    """The address in one form: with a scheme, without a call's own path, fragment and trailing slash; query kept.

    A bare `host:port` gets `http://` on the user's own network and `https://` elsewhere. Empty stays empty. Raises
    `ConfigError` for what cannot be an address; its text never repeats the value, which may hold a password.
    """
    text = text.strip()
    if not text:
        return ""
    if re.search(r"[\s{}<>\"'\\^|`\x00-\x1f]", text):
        raise ConfigError("is no address: it has blanks, quotes or brackets in it")
    if re.match(r"https?:(?!//)", text, re.IGNORECASE):
        raise ConfigError("is no address: write http:// or https:// with two slashes")
    if "://" not in text:
        text = f"//{text}"
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        raise ConfigError("is no address: its host or port cannot be read") from None
    if not host:
        raise ConfigError("is no address: it names no host")
    if parts.scheme not in ("", "http", "https"):
        raise ConfigError("is no address: only http:// and https:// are spoken")
    scheme = parts.scheme or ("http" if is_private_host(host) else "https")
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/responses").rstrip("/")
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def mask_url(text: str) -> str:
    """An address fit for eyes: the password in it and the values of its query are hidden."""
    if "://" not in text:
        return text
    masked = re.sub(r"://[^/@\s]*@", "://***@", text)
    return re.sub(r"([?&][^=&#]+)=[^&#]*", r"\1=***", masked)


def expand_references(text: str, env: Mapping[str, str]) -> tuple[str, list[str]]:
    """`text` with each `${NAME}` replaced by its variable (`$${` gives `${`), and what is wrong with references."""
    problems: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "${"
        if not match["end"] or not _VARIABLE.fullmatch(name):
            problems.append("has a broken reference; write ${NAME}, or $${ for a literal ${")
        elif name not in env:
            problems.append(f"refers to the environment variable {name}, which is not set")
        return env.get(name, "")

    return _REFERENCE.sub(value, text), problems
