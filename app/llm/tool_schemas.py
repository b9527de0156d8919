"""Makes a tool description acceptable to each wire dialect: name, length of its words, JSON Schema. Pure functions.

The description a dialect is sent may be looser than the tool's own schema, never stricter: arguments are still
checked against the tool itself. Sources: the vendors' function-calling guides; Gemini API reference, `Schema`; Amazon
Nova user guide, "Tool use" (only type, properties and required at the top).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from app.schema.errors import LLMError
from app.schema.message import JSON, Block, Message, ToolCallBlock
from app.schema.request import ToolSpec

Family = Literal["chat", "responses", "messages", "gemini", "converse"]
Table = dict[str, JSON]

MAX_NODES = 5_000
"""Schemas in a schema once its references are replaced; more than any tool needs and any model reads."""
MAX_DEPTH = 60
MAX_DESCRIPTION = 1_024
"""Characters of a description that OpenAI and its look-alikes take."""
CUT = " … [cut]"
MOST_TOOLS = {"openai": 128, "azure": 128}
"""How many tools these accounts take in one request (OpenAI API reference, `tools`); more are refused with 400."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]", re.ASCII)
_UNIONS = ("anyOf", "oneOf", "allOf")
_NOISE = frozenset({"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"})
_SCHEMAS = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
_LISTS = frozenset({*_UNIONS, "prefixItems"})
_TABLES = frozenset({"properties", "patternProperties", "dependentSchemas"})
_GEMINI = frozenset(
    {
        "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems", "minimum",
        "maximum", "anyOf", "properties", "additionalProperties", "required", "default", "minLength", "maxLength",
        "pattern", "nullable",
    }
)  # fmt: skip
_GEMINI_FORMATS = frozenset({"date-time", "date", "time", "int32", "int64", "float", "double"})


@dataclass(frozen=True, slots=True)
class _Rules:
    """What a family takes: `plain` = only the keywords it knows; `bare_top` = Nova's rule for the top level."""

    plain: bool = False
    bare_top: bool = False
    longest: int | None = None


_RULES: dict[Family, _Rules] = {
    "chat": _Rules(longest=MAX_DESCRIPTION),
    "responses": _Rules(longest=MAX_DESCRIPTION),
    "messages": _Rules(),
    "gemini": _Rules(plain=True),
    "converse": _Rules(bare_top=True),
}


def fitted(spec: ToolSpec, family: Family) -> ToolSpec:
    """The tool as this family of dialects takes it; the same object when there is nothing to change, else remembered.

    Raises `INVALID_REQUEST` for a schema that is too deep or too large (`usable` sorts such tools out before).
    """
    known: ToolSpec | None = spec.wire.get(f"fitted:{family}")
    if known is None:
        known = spec.wire[f"fitted:{family}"] = _fit(spec, _RULES[family])
    return known


def _fit(spec: ToolSpec, rules: _Rules) -> ToolSpec:
    parameters = _Inliner(spec.parameters).whole()
    parameters, rule = _flat_top(parameters)
    if rules.plain:
        parameters = _plain(parameters)
    if rules.bare_top:
        parameters = {key: value for key, value in parameters.items() if key in ("type", "properties", "required")}
    description = shortened(f"{spec.description}\n{rule}".strip() if rule else spec.description, rules.longest)
    made = ToolSpec(wire_name(spec.name), description, parameters)
    return spec if made == spec else made


def wire_name(name: str) -> str:
    """A name every vendor takes (`[a-zA-Z0-9_-]{1,64}`): itself when it is one, else legible and unlike any other."""
    if _NAME.fullmatch(name):
        return name
    mark = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{_ILLEGAL.sub('_', name)[:55]}-{mark}"


def with_own_names(message: Message, tools: Iterable[ToolSpec]) -> Message:
    """A reply in which calls by wire names carry the tools' own names again."""
    own = {wire: spec.name for spec in tools if (wire := wire_name(spec.name)) != spec.name}
    if not own or not any(call.name in own for call in message.tool_calls):
        return message
    content: list[Block] = [
        replace(block, name=own.get(block.name, block.name)) if isinstance(block, ToolCallBlock) else block
        for block in message.content
    ]
    return message.replace(content=content)


def shortened(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else text[: longest - len(CUT)] + CUT


@dataclass(frozen=True, slots=True)
class Refused:
    """A tool that cannot be offered, and why."""

    name: str
    why: str


def usable(tools: tuple[ToolSpec, ...], *, vendor: str = "") -> tuple[tuple[ToolSpec, ...], tuple[Refused, ...]]:
    """(the tools that can be described to this vendor, those that cannot); the same tuple when all can."""
    refused = {spec.name: why for spec in tools if (why := _why_not(spec))}
    kept = tuple(spec for spec in tools if spec.name not in refused) if refused else tools
    most = MOST_TOOLS.get(vendor, len(kept))
    refused |= {spec.name: f"{vendor} takes at most {most} tools" for spec in kept[most:]}
    return kept[:most], tuple(Refused(name, why) for name, why in refused.items())


def _why_not(spec: ToolSpec) -> str:
    known: str | None = spec.wire.get("refused")
    if known is None:
        try:
            fitted(spec, "chat")
            known = ""
        except LLMError as error:
            known = error.message
        spec.wire["refused"] = known
    return known


class _Inliner:
    """Replaces references by what they name; where one names itself again, an open value stands in for it."""

    def __init__(self, root: Mapping[str, JSON]) -> None:
        self._root = root
        self._nodes = 0

    def whole(self) -> Table:
        return self._schema(dict(self._root), (), 0)

    def _schema(self, node: JSON, path: tuple[str, ...], depth: int) -> Table:
        self._count(depth)
        if node is False:
            return {"not": {}}
        table = _table(node)
        if table is None:
            return {}
        reference = table.get("$ref")
        if isinstance(reference, str):
            beside = {key: value for key, value in table.items() if key != "$ref"}
            if reference in path:
                return _stand_in(self._target(reference), beside)
            target = _table(self._target(reference)) or {}
            return self._schema(target | beside, (*path, reference), depth + 1)
        out: Table = {}
        for key, value in table.items():
            if key in _NOISE or (key == "title" and isinstance(value, str)):
                continue
            out[key] = self._value(key, value, path, depth + 1)
        if out.get("type") == "object" and "properties" not in out and "additionalProperties" in out:
            # OpenAI's models leave a map empty that does not show its (absent) properties.
            out["properties"] = {}
        return _without_impossible(out)

    def _value(self, key: str, value: JSON, path: tuple[str, ...], depth: int) -> JSON:
        if key in _TABLES and isinstance(value, dict):
            return {name: self._schema(each, path, depth) for name, each in cast("Table", value).items()}
        if key in _LISTS and isinstance(value, list):
            return [self._schema(each, path, depth) for each in cast("list[JSON]", value)]
        if key in _SCHEMAS and not isinstance(value, bool):
            if isinstance(value, list):
                return [self._schema(each, path, depth) for each in cast("list[JSON]", value)]
            return self._schema(value, path, depth)
        return value

    def _target(self, reference: str) -> JSON:
        """What a JSON pointer into this schema names; an open value for anything else."""
        node: JSON = dict(self._root)
        if not reference.startswith("#"):
            return {}
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and name.isdecimal() and int(name) < len(cast("list[JSON]", node)):
                node = cast("list[JSON]", node)[int(name)]
            else:
                node = (_table(node) or {}).get(name)
        return node

    def _count(self, depth: int) -> None:
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise LLMError(f"its schema is nested deeper than {MAX_DEPTH} levels", "INVALID_REQUEST")
        if self._nodes > MAX_NODES:
            raise LLMError(f"its schema has more than {MAX_NODES} parts", "INVALID_REQUEST")


def _stand_in(target: JSON, beside: Table) -> Table:
    kind = (_table(target) or {}).get("type")
    open_value: Table = {"type": kind} if isinstance(kind, str) else {}
    return {**open_value, **{key: beside[key] for key in ("description",) if key in beside}}


def _without_impossible(schema: Table) -> Table:
    """Without properties that may never be given (schema `false`)."""
    properties = _table(schema.get("properties"))
    never = [name for name, each in (properties or {}).items() if each == {"not": {}}]
    if properties is None or not never:
        return schema
    kept = {name: each for name, each in properties.items() if name not in never}
    return schema | {"properties": kept}


def _flat_top(schema: Table) -> tuple[Table, str]:
    """An object at the top without unions (OpenAI, Anthropic and Gemini refuse those), and in words what that lost."""
    out: Table = {"type": "object", **{key: value for key, value in schema.items() if key not in _UNIONS}}
    out["type"] = "object"
    properties: Table = dict(_table(out.get("properties")) or {})
    required = _names(out.get("required"))
    rules: list[str] = []
    for union in _UNIONS:
        choices = [each for each in map(_table, _items(schema.get(union))) if each is not None]
        flat = [_flat_top(each)[0] for each in choices]
        for each in flat:
            for name, value in (_table(each.get("properties")) or {}).items():
                properties.setdefault(name, value)
        sets = [_names(each.get("required")) for each in choices]
        if union == "allOf":
            required = [*required, *(name for names in sets for name in names)]
        elif len(sets) > 1 and any(sets):
            how = "exactly one" if union == "oneOf" else "at least one"
            rules.append(f"Give {how} of these groups of arguments: {'; '.join(', '.join(names) for names in sets)}.")
            required = [*required, *(name for name in sets[0] if all(name in names for names in sets))]
        elif sets:
            required = [*required, *sets[0]]
    for key in ("enum", "not", "const"):
        out.pop(key, None)
    if properties or any(key in schema for key in ("properties", *_UNIONS)):
        out["properties"] = properties
    required = [name for name in dict.fromkeys(required) if name in properties]
    if required:
        out["required"] = required
    else:
        out.pop("required", None)
    return out, " ".join(rules)


def _plain(node: JSON) -> Table:
    """A schema in the keywords that Gemini knows; what they cannot say is left out or said in the description."""
    schema = dict(_table(node) or {})
    for part in [each for each in map(_table, _items(schema.pop("allOf", None))) if each is not None]:
        schema = _merged(schema, part)
    if "oneOf" in schema:
        schema.setdefault("anyOf", schema.pop("oneOf"))
    schema = _without_null(schema)
    if "const" in schema:
        schema.setdefault("enum", [schema["const"]])
    schema = {key: value for key, value in schema.items() if key in _GEMINI}
    if schema.get("format") not in _GEMINI_FORMATS:
        schema.pop("format", None)
    if (choices := schema.get("enum")) is not None and not all(isinstance(each, str) for each in _items(choices)):
        del schema["enum"]
        schema["description"] = f"{schema.get('description', '')} One of: {choices}.".strip()
    if (properties := _table(schema.get("properties"))) is not None:
        schema["properties"] = {name: _plain(each) for name, each in properties.items()}
        schema.setdefault("type", "object")
        if properties or schema.get("additionalProperties") is False:
            schema.pop("additionalProperties", None)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _plain(schema[key])
    for key in ("anyOf", "prefixItems"):
        if key in schema:
            schema[key] = [_plain(each) for each in _items(schema[key])]
    if schema.get("type") == "array":
        # Gemini refuses an array that does not say of what.
        schema.setdefault("items", {"type": "string"})
    return schema


def _merged(first: Table, second: Table) -> Table:
    out = {**second, **first}
    if "properties" in first and "properties" in second:
        out["properties"] = {**(_table(second["properties"]) or {}), **(_table(first["properties"]) or {})}
    required = [*_names(first.get("required")), *_names(second.get("required"))]
    return out | ({"required": list(dict.fromkeys(required))} if required else {})


def _without_null(schema: Table) -> Table:
    """Without `null` as an alternative: an argument that may be null may as well be left out."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        rest = [kind for kind in _items(kinds) if kind != "null"]
        if len(rest) == 1:
            return schema | {"type": rest[0]}
        others: Table = {key: value for key, value in schema.items() if key != "type"}
        return others | ({"anyOf": [{"type": kind} for kind in rest]} if rest and "anyOf" not in schema else {})
    options = _items(schema.get("anyOf"))
    rest = [each for each in options if each != {"type": "null"}]
    if len(rest) == len(options):
        return schema
    others = {key: value for key, value in schema.items() if key != "anyOf"}
    return _without_null((_table(rest[0]) or {}) | others) if len(rest) == 1 else others | {"anyOf": rest}


def _names(value: JSON) -> list[str]:
    return [name for name in _items(value) if isinstance(name, str)]


def _table(value: JSON) -> Table | None:
    return cast("Table", value) if isinstance(value, dict) else None


def _items(value: Any) -> list[JSON]:
    return cast("list[JSON]", value) if isinstance(value, list) else []
