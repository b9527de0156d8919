"""Messages as rows: a small JSON head and content-addressed bodies. No file is touched here."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

from app.schema.errors import SessionError
from app.schema.message import (
    JSON,
    Block,
    ImageBlock,
    Message,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    block_to_json,
    message_from_json,
    message_to_json,
)

INLINE_CHARS = 512
"""A block whose JSON is shorter stands in its message's own row; a longer one is stored once under its hash."""

SEARCHED_CHARS = 8_000
"""How much of one block can be found by searching."""

LARGEST_BODY = 256 * 1024 * 1024

_SCRIPTS = "[\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_UNSPACED = re.compile(_SCRIPTS)
_RUN = re.compile(f"{_SCRIPTS}+")

Redact = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Row:
    """One event on its way to the file: its JSON, and the bodies that it refers to by hash."""

    kind: str
    thread: str
    time: float
    data: str
    bodies: tuple[tuple[str, str], ...] = ()
    durable: bool = True
    """Whether it must have reached the disk, not only the operating system, before it counts as written."""


def plain_row(kind: str, data: Mapping[str, JSON], *, thread: str, time: float, redact: Redact, durable: bool) -> Row:
    """A row of plain JSON. Raises `SessionError` for what is not JSON."""
    return Row(kind, thread, time, redact(_dump(dict(data))), durable=durable)


def message_row(message: Message, *, thread: str, time: float, redact: Redact) -> Row:
    """A message as a row, without secrets. Raises `SessionError` for what is not JSON."""
    head = message_to_json(message)
    bodies: dict[str, str] = {}
    head["content"] = _pack(message.content, bodies, redact)
    # What a model said can be asked for again; what a person or a tool said cannot.
    durable = message.role != "assistant"
    return Row("message", thread, time, redact(_dump(head)), tuple(bodies.items()), durable)


def words_of(head: JSON, bodies: Mapping[str, JSON]) -> str:
    """What a message can be found by, from its row, so that the same words can be taken out of the index again."""
    try:
        return segmented("\n".join(_words(unpack_message(head, bodies).content)))
    except (KeyError, ValueError):
        return ""


def search_terms(words: str) -> list[str]:
    """What the index is asked for: every word, in scripts without blanks between words every pair of characters."""
    spaced = segmented(words).replace("_", " ")
    terms = [f'"{term}"' for term in re.findall(r"\w+", spaced)]
    # A single character of such a script is the beginning of a pair.
    return [f"{term} *" if _UNSPACED.fullmatch(term[1:-1]) else term for term in terms]


def segmented(text: str) -> str:
    """Text with runs of characters of scripts that have no blanks between words as overlapping pairs."""
    return _RUN.sub(_pairs, text.encode("utf-8", "replace").decode("utf-8"))


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    pairs = [text[place : place + 2] for place in range(len(text) - 1)]
    # The last one again by itself, so that it is found alone as well.
    return f" {' '.join([*pairs, text[-1]])} "


def squeezed(text: str) -> bytes:
    """A body as it is stored."""
    return zlib.compress(text.encode("utf-8"), 1)


def unsqueezed(data: bytes) -> str:
    """The body of `squeezed`. Raises `ValueError` on damage and for more than `LARGEST_BODY` bytes."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, LARGEST_BODY)
    except zlib.error as error:
        raise ValueError(f"a damaged body: {error}") from error
    if not unpacker.eof:
        raise ValueError("a body that is cut or too large")
    return text.decode("utf-8")


def hashes_in(content: JSON) -> list[str]:
    """The hashes that a packed content refers to."""
    found: list[str] = []
    for item in cast("list[JSON]", content if isinstance(content, list) else []):
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict) and "content" in item:
            found.extend(hashes_in(cast("dict[str, JSON]", item)["content"]))
    return found


def unpack_message(head: Mapping[str, JSON], bodies: Mapping[str, JSON]) -> Message:
    """The message of a row. Raises `KeyError` or `ValueError` on damage, a missing body included."""
    if not isinstance(head.get("content"), list):
        raise ValueError("a message without content")  # noqa: TRY004 - damage like any other
    return message_from_json({**head, "content": _unpack(head["content"], bodies)})


def parse(text: str) -> JSON:
    """JSON data and nothing else. Raises `ValueError` for anything that is none, too deep nesting included."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(name: str) -> JSON:
    raise ValueError(f"{name} is not JSON")


def _dump(value: JSON) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise SessionError(f"this cannot be stored, it is not JSON: {error}") from error
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair, from a file name or a model
        return json.dumps(value, separators=(",", ":"))
    return text


def _pack(content: Iterable[Block], bodies: dict[str, str], redact: Redact) -> list[JSON]:
    out: list[JSON] = []
    for block in content:
        if isinstance(block, ToolResultBlock):
            # The call's id is its own, the text often is not: the same file read twice is stored once.
            head = block_to_json(ToolResultBlock(block.call_id, (), block.is_error))
            out.append({**head, "content": _pack(block.content, bodies, redact)})
            continue
        value = block_to_json(block)
        text = _dump(value)
        if len(text) < INLINE_CHARS:
            out.append(value)
            continue
        text = text if isinstance(block, ImageBlock) else redact(text)
        name = blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
        bodies[name] = text
        out.append(name)
    return out


def _unpack(content: JSON, bodies: Mapping[str, JSON]) -> list[JSON]:
    out: list[JSON] = []
    for item in cast("list[JSON]", content):
        if isinstance(item, str):
            out.append(bodies[item])
        elif isinstance(item, dict) and "content" in item:
            inner = cast("dict[str, JSON]", item)
            out.append({**inner, "content": _unpack(inner["content"], bodies)})
        else:
            out.append(item)
    return out


def _words(content: Iterable[Block]) -> list[str]:
    found: list[str] = []
    for block in content:
        match block:
            case TextBlock():
                found.append(block.text[:SEARCHED_CHARS])
            case ToolCallBlock():
                found.append(f"{block.name} {block.arguments[:SEARCHED_CHARS]}")
            case ToolResultBlock():
                found.extend(_words(block.content))
            case _:
                pass
    return found
