"""Reading a model's tool arguments: the one place where malformed arguments are repaired, by safe rules only.

Nothing is guessed and nothing is evaluated: what these rules cannot read is an error with words for the model.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from app.schema.errors import ToolError
from app.schema.message import JSON, ToolCallBlock

ModelT = TypeVar("ModelT", bound=BaseModel)

LITERAL_LIMIT = 200_000
"""The longest text, in characters, that is read as a Python literal."""

_CUT = (
    "the call was cut by the output limit, so nothing was run. Send it again in smaller pieces, "
    "for example write a long file in several edits"
)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was done to the arguments. `for_model` notes are appended to the call's result."""

    text: str
    for_model: bool = False


class _Refused(ValueError):
    """The text is readable but says something that no repair may decide, such as a key given twice."""


def read_arguments(
    raw: str, schema: Mapping[str, JSON], *, cut: bool = False
) -> tuple[dict[str, JSON], tuple[Note, ...]]:
    """The argument object in `raw`, with notes on what had to be repaired or left out.

    Empty text and `null` mean no arguments. Keys that `schema` does not know are dropped with a note. With `cut` the
    reply ended at the output limit. Raises `ToolError` (`TOOL_ARGUMENTS`) with words for the model.
    """
    notes: list[Note] = []
    value = _read(raw, schema, notes, cut=cut)
    if isinstance(value, str) and value.strip():
        notes.append(Note("the arguments were encoded twice"))
        value = _read(value, schema, notes, cut=cut)
    if value is None or value == "":
        value = {}
    if not isinstance(value, dict):
        found = _kind(value)
        raise _argument_error(f"arguments: input should be an object, got {found}", schema)
    values = _known_only(_wrapped(cast("dict[str, JSON]", value), schema, notes), schema, notes)
    return _decode_nested(values, schema, notes), tuple(notes)


def call_signature(call: ToolCallBlock) -> str:
    """Name and normalised arguments: equal for calls that ask for the same deed."""
    try:
        arguments = json.dumps(json.loads(call.arguments or "{}"), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        arguments = call.arguments.strip()
    return f"{call.name}({arguments})"


_NUMBERS: tuple[object, ...] = (int, float, int | None, float | None)


def bind_arguments(model: type[ModelT], values: Mapping[str, JSON]) -> ModelT:
    """The validated arguments; `"12"` is a number and `"true"` a boolean where the model wants one.

    A null for an argument that may be left out means that it was left out. Raises `ToolError` naming each bad field.
    """
    fields = model.model_fields
    given = {
        key: value
        for key, value in values.items()
        if value is not None or key not in fields or fields[key].is_required()
    }
    for key, value in given.items():
        # Pydantic takes true for 1, which no model means.
        wanted: object = fields[key].annotation if key in fields else None
        if isinstance(value, bool) and wanted in _NUMBERS:
            raise ToolError(f"{key}: input should be a number, got {json.dumps(value)}", code="TOOL_ARGUMENTS")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = [_field_message(detail) for detail in error.errors(include_url=False)]
        raise ToolError("; ".join(dict.fromkeys(problems)), code="TOOL_ARGUMENTS") from error


def _read(raw: str, schema: Mapping[str, JSON], notes: list[Note], *, cut: bool) -> JSON:
    text = raw.strip().removeprefix("\ufeff")
    if text in ("", "null", "None"):
        return None
    try:
        return _strict(text)
    except _Refused as error:
        raise _argument_error(f"the arguments are refused: {error}", schema) from error
    except json.JSONDecodeError as error:
        broken = error
    except (ValueError, RecursionError) as error:
        raise _argument_error(f"the arguments cannot be read: {error}", schema) from error
    try:
        value, repair = _repaired(text)
    except _Refused as error:
        raise _argument_error(f"the arguments are refused: {error}", schema) from error
    except (ValueError, RecursionError, MemoryError, SyntaxError) as error:
        where = (
            f"{broken.msg.removesuffix(' at')} at line {broken.lineno} column {broken.colno} (character {broken.pos})"
        )
        raise _argument_error(f"{_CUT}. ({where})" if cut else f"invalid JSON: {where}", schema) from error
    notes.append(Note(repair))
    return value


def _repaired(text: str) -> tuple[JSON, str]:
    """The value by the first rule that reads it, and what that rule is called."""
    if fenced := re.match(r"```[\w-]*\s*", text):
        # JSON decides where the value ends; a fence may also stand inside one of its strings.
        body = text[fenced.end() :]
        try:
            value, end = _DECODER.raw_decode(body)
        except json.JSONDecodeError:
            return _repaired(body.rpartition("```")[0].strip())[0], "the arguments stood in a code fence"
        if body[end:].lstrip().startswith("```"):
            return value, "the arguments stood in a code fence"
        raise ValueError("text after the value inside the fence")
    try:
        return _strict(_without_trailing_commas(text), lenient=True), "commas or line breaks were not JSON"
    except json.JSONDecodeError:
        return _literal(text), "the arguments were a Python literal"


def _strict(text: str, *, lenient: bool = False) -> JSON:
    return (_LENIENT if lenient else _DECODER).decode(text)


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"the key {twice!r} is given twice")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"{text} is not a finite number")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
# Raw line breaks and tabs inside strings, as small models write them.
_LENIENT = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite, strict=False)


def _without_trailing_commas(text: str) -> str:
    # Strings are matched first, so that a comma inside one is never touched.
    return re.sub(
        r'"(?:[^"\\]++|\\.)*+\\?(?:"|\Z)|,(?=\s*[}\]])',
        lambda found: "" if found[0] == "," else found[0],
        text,
        flags=re.DOTALL,
    )


def _literal(text: str) -> JSON:
    if len(text) > LITERAL_LIMIT:
        raise ValueError("too long for a Python literal")
    with warnings.catch_warnings():
        # An unknown escape such as "\d" keeps its backslash, which is what the model meant.
        warnings.simplefilter("ignore")
        tree = ast.parse(text, mode="eval")
    return _literal_node(tree.body)


def _literal_node(node: ast.expr) -> JSON:
    match node:
        case ast.Dict():
            pairs: list[tuple[str, JSON]] = []
            for key, value in zip(node.keys, node.values, strict=True):
                match key:
                    case ast.Constant(value=str() as name):
                        pairs.append((name, _literal_node(value)))
                    case _:
                        raise ValueError("only text keys are allowed")
            return _unique(pairs)
        case ast.List() | ast.Tuple():
            return [_literal_node(item) for item in node.elts]
        case ast.Constant(value=str() | bool() | int() | None):
            return node.value
        case ast.Constant(value=float()):
            return _finite(repr(node.value))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if number is not True:
            return _finite(repr(-number)) if isinstance(number, float) else -number
        case ast.Name(id="true" | "false" | "null" as word):
            return {"true": True, "false": False, "null": None}[word]
        case _:
            raise ValueError("not a literal")


def _wrapped(values: dict[str, JSON], schema: Mapping[str, JSON], notes: list[Note]) -> dict[str, JSON]:
    """The fields of a tool's only argument, an object, under its name, where a model left that name out."""
    known: dict[str, dict[str, JSON]] = schema.get("properties") or {}
    if len(known) != 1 or not values:
        return values
    name, inner = next(iter(known.items()))
    fields: dict[str, JSON] = inner.get("properties") or {}
    if name in values or not values.keys() <= fields.keys():
        return values
    notes.append(Note(f"the arguments stood outside of {name}"))
    return {name: values}


def _known_only(values: dict[str, JSON], schema: Mapping[str, JSON], notes: list[Note]) -> dict[str, JSON]:
    if schema.get("additionalProperties") or schema.get("patternProperties"):
        return values
    known: Mapping[str, JSON] = schema.get("properties") or {}
    unknown = [key for key in values if key not in known]
    if not unknown:
        return values
    notes.append(
        Note(
            f"ignored unknown arguments: {', '.join(unknown)[:200]} (known: {', '.join(known) or 'none'})",
            for_model=True,
        )
    )
    return {key: value for key, value in values.items() if key in known}


_CONTAINERS: dict[str, type] = {"array": list, "object": dict}


def _decode_nested(values: dict[str, JSON], schema: Mapping[str, JSON], notes: list[Note]) -> dict[str, JSON]:
    """Lists and objects that were sent as JSON text inside the object."""
    properties: Mapping[str, JSON] = schema.get("properties") or {}
    out = dict(values)
    for key, value in values.items():
        kind = _CONTAINERS.get(str(properties[key].get("type"))) if key in properties else None
        if kind is None or not isinstance(value, str):
            continue
        try:
            inner = _strict(value.strip())
        except (ValueError, RecursionError):
            continue
        if isinstance(inner, kind):
            out[key] = inner
            notes.append(Note(f"{key} was encoded twice"))
    return out


_MESSAGES = {
    "missing": "is required",
    "float_type": "input should be a number",
    "float_parsing": "input should be a number",
    "int_type": "input should be a whole number",
    "int_parsing": "input should be a whole number",
    "int_from_float": "input should be a whole number",
    "bool_type": "input should be true or false",
    "bool_parsing": "input should be true or false",
    "string_type": "input should be text",
    "list_type": "input should be a list",
    "tuple_type": "input should be a list",
    "dict_type": "input should be an object",
    "model_type": "input should be an object",
}


def _field_message(detail: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in detail["loc"]) or "arguments"
    message = _MESSAGES.get(detail["type"])
    if message is None:
        plain = str(detail["msg"]).removeprefix("Value error, ")
        message = plain[:1].lower() + plain[1:]
    if detail["type"] == "missing":
        return f"{place}: {message}"
    shown = repr(detail["input"])
    return f"{place}: {message}, got {shown if len(shown) <= 60 else shown[:60] + '…'}"


def _argument_error(message: str, schema: Mapping[str, JSON]) -> ToolError:
    expected = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), default=str)
    shown = expected if len(expected) <= 2000 else expected[:2000] + "…"
    return ToolError(message, hint=f"expected a JSON object of this schema: {shown}", code="TOOL_ARGUMENTS")


def _kind(value: JSON) -> str:
    match value:
        case list():
            return "a list"
        case str():
            return "text"
        case bool():
            return "a boolean"
        case _:
            return "a number"
