"""What is secret: keys of the configuration and the environment, and how they are taken out of text."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

if TYPE_CHECKING:
    from app.config.settings import Config

MASK = "***"
SHORTEST_SECRET = 8
"""Shorter values are no keys, and replacing them would spoil ordinary text."""

DUMMY_KEYS = frozenset({"lm-studio", "llama.cpp", "llamacpp", "not-needed", "no-key-required", "placeholder"})
"""What local servers are given in place of a key; words that may well stand in an answer."""

_SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|BEDROCK)$|AUTHORIZATION", re.IGNORECASE)


class Redactor:
    """Replaces secrets in text, also as they stand in JSON or an address.

    `learn` adds those of a configuration; the environment's are known from the start.
    """

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._secrets: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self._add(value for name, value in env.items() if _SECRET_NAME.search(name))

    def learn(self, config: Config) -> None:
        self._add(_secrets_of(config))

    def __call__(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text

    def held_back(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a secret."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(secret.startswith(tail) for secret in self._secrets):
                return length
        return 0

    @property
    def _longest(self) -> int:
        return max(map(len, self._secrets), default=1)

    def _add(self, values: Iterable[str]) -> None:
        found = {value.strip() for value in values}
        found = {value for value in found if len(value) >= SHORTEST_SECRET and value.lower() not in DUMMY_KEYS}
        found = {form for value in found for form in (value, json.dumps(value)[1:-1], quote(value, safe=""))}
        self._secrets = sorted(found | set(self._secrets), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._secrets))) if self._secrets else None


def _secrets_of(value: object, name: str = "") -> Iterator[str]:
    """Every secret of a configuration: its `SecretStr`s, and headers and variables with a telling name."""
    from pydantic import BaseModel, SecretStr

    match value:
        case SecretStr():
            yield value.get_secret_value()
        case str():
            if _SECRET_NAME.search(name):
                # A header says `Bearer …`; the part behind the blank is the secret.
                yield value.rpartition(" ")[2]
        case BaseModel():
            for field in type(value).model_fields:
                yield from _secrets_of(getattr(value, field), "")
        case dict():
            for key, item in cast("dict[str, object]", value).items():
                yield from _secrets_of(item, str(key))
        case _:
            pass
