"""Judges raw tables against the settings and says in plain words what is wrong, where, and what was meant.

Values of secrets are never quoted; other values only when they are short.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.config.settings import AgentSettings, Config, LLMSettings, Settings
from app.config.sources import KeyPath, Place, Table
from app.schema.errors import ConfigError

S = TypeVar("S", bound=Settings)

HIDDEN: Mapping[type[Settings], frozenset[str]] = {
    LLMSettings: frozenset({"name"}),
    Config: frozenset({"path", "origins"}),
}
"""Fields that are filled in by us and cannot be set."""

_SECRETISH = re.compile(r"(?:key|token|password|secret|headers|env|url|args|server)$", re.IGNORECASE)
_BARE_KEY = re.compile(r"[\w<>-]+")
_LONGEST_QUOTE = 12
_SURELY_MEANT = 0.85

_WANTED: dict[str, str] = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
}


@dataclass(slots=True)
class Findings:
    """All that is wrong, gathered so that a user sees it at once."""

    places: Mapping[KeyPath, Place]
    found: list[tuple[Place, str]] = field(default_factory=list[tuple[Place, str]])

    def add(self, path: KeyPath, sentence: str) -> None:
        self.found.append((self.place(path), sentence))

    def place(self, path: KeyPath) -> Place:
        """The place of a key, else of the nearest table around it."""
        for length in range(len(path), -1, -1):
            if place := self.places.get(path[:length]):
                return place
        return Place("configuration")

    def raise_if_any(self, hint: str = "") -> None:
        if self.found:
            lines = [f"{place}: {sentence}" for place, sentence in sorted(self.found, key=lambda item: item[0])]
            raise ConfigError("\n".join(dict.fromkeys(lines)), hint=hint)


def check_table(model: type[S], raw: object, path: KeyPath, findings: Findings) -> S | None:
    """The settings that `raw` makes, or None after adding what is wrong with it to `findings`.

    Types are strict: `"8192"` and `true` are no numbers; a whole number is a number.
    """
    if not isinstance(raw, dict):
        findings.add(path, f"{table_label(path)} must be a table, found {_found(raw, quote=False)}")
        return None
    table = cast(Table, raw)
    hidden = HIDDEN.get(model, frozenset())
    for key in table.keys() & hidden:
        findings.add((*path, key), _unknown_key(model, path, key))
    visible = {key: value for key, value in table.items() if key not in hidden}
    try:
        return model.model_validate_json(json.dumps(visible, default=_as_table), strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=True, include_input=False):
            full = (*path, *(str(part) for part in detail["loc"]))
            findings.add(full, _sentence(model, table, path, detail))
        return None


def unknown_table(name: str, value: object, findings: Findings) -> None:
    """Add what is wrong with a name at the top of a file that is no table of ours."""
    if isinstance(value, dict):
        near = _nearest(name, settable(Config))
        findings.add((name,), f"there is no table [{name}]" + (f"; did you mean [{near}]?" if near else ""))
    else:
        findings.add((name,), f'the key "{name}" stands outside any table{_belongs(name)}')


def settable(model: type[Settings]) -> list[str]:
    return [name for name in model.model_fields if name not in HIDDEN.get(model, frozenset())]


def table_label(path: Sequence[str]) -> str:
    parts = (part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False) for part in path)
    return f"[{'.'.join(parts)}]"


def nearest_hint(name: str, known: Sequence[str]) -> str:
    near = _nearest(name, known)
    return f'; did you mean "{near}"?' if near else f"; known: {', '.join(known) or 'none'}"


def _sentence(model: type[Settings], raw: Table, path: KeyPath, detail: ErrorDetails) -> str:
    loc = tuple(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return _unknown_key(_model_at(model, loc[:-1]), (*path, *loc[:-1]), loc[-1])
    item = detail["loc"][-1]
    keys = loc[:-1] if isinstance(item, int) else loc
    value = _value_at(raw, detail["loc"])
    wanted = _WANTED.get(detail["type"])
    if wanted is None:
        return f"{table_label((*path, *keys[:-1]))} {keys[-1]}: {detail['msg']}"
    which = f", item {item + 1}," if isinstance(item, int) else ""
    wanted = wanted.format(**_plain(detail.get("ctx", {})))
    quote = not any(_SECRETISH.search(key) for key in keys)
    return f"{table_label((*path, *keys[:-1]))} {keys[-1]}{which} must be {wanted}, found {_found(value, quote=quote)}"


def _unknown_key(model: type[Settings] | None, path: KeyPath, key: str) -> str:
    start = f'{table_label(path)} has no key "{key}"'
    if model is None:
        return start
    known = settable(model)
    near = _nearest(key, known, cutoff=_SURELY_MEANT)
    return start + (_belongs(key) if _homes(key) and near is None else nearest_hint(key, known))


def _nearest(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    by_fold = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold().replace("-", "_"), by_fold, n=1, cutoff=cutoff)
    return by_fold[matches[0]] if matches else None


def _belongs(key: str) -> str:
    homes = _homes(key)
    return f"; it belongs in {' or '.join(homes)}" if homes else ""


def _homes(key: str) -> list[str]:
    """The tables that do have such a key."""
    return [label for label, model in _all_tables() if key in settable(model)]


def _all_tables() -> Iterator[tuple[str, type[Settings]]]:
    yield from _tables_of(LLMSettings, "llm")
    yield from _tables_of(AgentSettings, "agents.<name>")
    for name, info in Config.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Settings):
            yield from _tables_of(info.annotation, name)


def _tables_of(model: type[Settings], label: str) -> Iterator[tuple[str, type[Settings]]]:
    yield f"[{label}]", model
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Settings):
            yield from _tables_of(info.annotation, f"{label}.{name}")


def _model_at(model: type[Settings], loc: Sequence[str]) -> type[Settings] | None:
    current: object = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, Settings):
            info = current.model_fields.get(part)
            current = info.annotation if info else None
        else:  # dict[str, X]: the part is the name of an entry
            current = get_args(current)[-1] if get_args(current) else None
    return current if isinstance(current, type) and issubclass(current, Settings) else None


def _value_at(raw: object, loc: Sequence[str | int]) -> object:
    for part in loc:
        if isinstance(raw, dict):
            table = cast(Table, raw)
            raw = table.get(str(part), table)
        elif isinstance(raw, list) and isinstance(part, int):
            raw = cast(list[object], raw)[part]
    return cast(object, raw)


_FOUND: tuple[tuple[type, str, Callable[[object], str]], ...] = (
    (bool, "true or false", lambda value: str(value).lower()),
    (int, "a number", str),
    (float, "a number", str),
    (str, "a text", lambda value: json.dumps(value, ensure_ascii=False)),
    (list, "a list", lambda _: "a list"),
    (dict, "a table", lambda _: "a table"),
    (type(None), "null", lambda _: "null"),
)


def _found(value: object, *, quote: bool) -> str:
    for kind, word, show in _FOUND:
        if isinstance(value, kind):
            shown = show(value)
            return shown if quote and len(shown) <= _LONGEST_QUOTE + 2 else word
    return "a date"


def _plain(context: Mapping[str, object]) -> dict[str, object]:
    """Limits without a needless fraction, quotes as TOML has them."""
    plain: dict[str, object] = {}
    for name, value in context.items():
        whole = isinstance(value, float) and value.is_integer()
        plain[name] = int(cast(float, value)) if whole else str(value).replace("'", '"')
    return plain


def _as_table(_date: object) -> object:
    """Dates of TOML fit no setting; as a table they fail everywhere with the right sentence."""
    return {}
