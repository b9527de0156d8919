"""Tools for models without native calls: described in the prompt, kept as text in the history; and thinking in text.

The notations in which calls are read stand in `text_formats.py`; native calls and wires are the adapters' business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, cast

from app.llm.text_formats import calls_in_text
from app.schema.message import JSON, Block, Message, TextBlock, ToolCallBlock, ToolResultBlock
from app.schema.request import ToolSpec

_THINKING = re.compile(r"^[ \t]*(?P<fence>```|~~~)|(?<!`)<(?P<close>/?)(?:think|thinking|thought)>", re.I | re.M)


def strip_thinking(text: str) -> tuple[str, str]:
    """Split a text into (answer, thinking), both without the tags and without blanks around them.

    A section may lack its closing tag (the reply was cut: all of the rest is thinking) or its opening tag (some chat
    templates write that one: all before the closing tag is thinking). Tags in code, or an opening tag in the middle
    of a line that is never closed, are part of the answer.
    """
    answer: list[str] = []
    thinking: list[str] = []
    start = opened = 0
    inside = in_fence = seen = False
    for match in _THINKING.finditer(text):
        if match["fence"]:
            in_fence = in_fence != (not inside)
        elif in_fence and not inside:
            continue
        elif match["close"]:
            if inside:
                thinking.append(text[start : match.start()])
            elif not seen:
                thinking.append(text[: match.start()])
                answer.clear()
            else:
                continue
            inside, seen, start = False, True, match.end()
        elif not inside:
            answer.append(text[start : match.start()])
            inside, seen, opened, start = True, True, match.start(), match.end()
    if not inside:
        answer.append(text[start:])
    elif text[text.rfind("\n", 0, opened) + 1 : opened].strip():
        answer.append(text[opened:])
    else:
        thinking.append(text[start:])
    return "".join(answer).strip(), "\n".join(part.strip() for part in thinking).strip()


def _compact(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def schema_for(tools: tuple[ToolSpec, ...], *, allow_text: bool) -> dict[str, JSON]:
    """A JSON Schema that a reply must follow: one branch for each tool, and one for an answer when that is allowed."""
    definitions: dict[str, JSON] = {}
    branches = [_call_branch(tool, definitions) for tool in tools]
    if allow_text:
        branches.append(_object({"answer": {"type": "string"}}))
    schema: dict[str, JSON] = branches[0] if len(branches) == 1 else {"anyOf": branches}
    return {**schema, "$defs": definitions} if definitions else schema


def _call_branch(tool: ToolSpec, definitions: dict[str, JSON]) -> dict[str, JSON]:
    """The branch of one tool; its own definitions move to the root, where references are looked up."""
    parameters = dict(tool.parameters)
    own = cast("dict[str, JSON]", parameters.pop("$defs", {}))
    definitions.update({f"{tool.name}.{name}": _moved(body, tool.name) for name, body in own.items()})
    return _object({"name": {"const": tool.name}, "arguments": _moved(parameters, tool.name)})


def _moved(node: JSON, owner: str) -> JSON:
    if isinstance(node, list):
        return [_moved(item, owner) for item in cast("list[JSON]", node)]
    if not isinstance(node, dict):
        return node
    moved = {key: _moved(item, owner) for key, item in cast("dict[str, JSON]", node).items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#/$defs/"):
        moved["$ref"] = f"#/$defs/{owner}.{target.removeprefix('#/$defs/')}"
    return moved


def _object(properties: dict[str, JSON]) -> dict[str, JSON]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def read_schema_reply(text: str, tools: Iterable[ToolSpec]) -> tuple[ToolCallBlock, ...] | str:
    """What a reply under `schema_for` says: calls, or the answer; a reply that broke the schema is its plain text."""
    if calls := calls_in_text(text, tools, asked_in_text=True):
        return calls
    answer, _ = strip_thinking(text)
    try:
        match json.loads(answer):
            case {"answer": str(words)}:
                return words
            case _:
                return answer
    except (ValueError, RecursionError):
        return answer


def describe_tools(tools: tuple[ToolSpec, ...], *, answer: Literal["words", "json"] = "words") -> str:
    """The part of a system prompt that offers tools as text; "" without tools. The same tools give the same text.

    `answer` says how the model gives its answer: in words, or under `schema_for` as an object.
    """
    if not tools:
        return ""
    rows = "\n".join(
        _compact({"name": tool.name, "description": tool.description, "parameters": tool.parameters}) for tool in tools
    )
    form = "write it in plain words" if answer == "words" else 'reply with {"answer": "<your answer>"}'
    return (
        f"# Tools\n\nThese tools can be called; parameters are a JSON Schema:\n{rows}\n\n"
        "To call a tool, reply with one JSON object and nothing else, no words around it and no code fence:\n"
        '{"name": "<tool>", "arguments": {<its arguments>}}\n'
        f"Its result comes with the next message. To give your final answer instead, {form}."
    )


def as_text_history(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The same history with calls and results as plain text, for a model that knows neither.

    Each message is rendered by itself and once in its life, so a history that grows keeps its beginning unchanged.
    """
    return tuple(_as_text(message) for message in messages)


def _as_text(message: Message) -> Message:
    if not message.tool_calls and not message.tool_results:
        return message
    rendered = message.wire.get("textcalls")
    if rendered is None:
        rendered = message.wire["textcalls"] = message.replace(content=_text_blocks(message.content))
    return rendered


def _text_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks with texts joined by line breaks; pictures and other blocks stay where they are."""
    lines: list[str] = []
    for block in _flat(blocks):
        if isinstance(block, TextBlock):
            lines.append(block.text)
            continue
        if lines:
            yield TextBlock("\n".join(lines))
            lines = []
        yield block
    if lines:
        yield TextBlock("\n".join(lines))


def _flat(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        match block:
            case ToolCallBlock():
                yield TextBlock(_call_text(block))
            case ToolResultBlock():
                yield TextBlock('<tool_response status="error">' if block.is_error else "<tool_response>")
                yield from (_unspoofed(inner) for inner in block.content)
                yield TextBlock("</tool_response>")
            case _:
                yield block


def _unspoofed(block: Block) -> Block:
    """A result cannot end itself and go on as if the user spoke."""
    if isinstance(block, TextBlock):
        return TextBlock(block.text.replace("</tool_response", "<\\/tool_response"))
    return block


def _call_text(call: ToolCallBlock) -> str:
    raw = call.arguments.strip() or "{}"
    try:
        whole = isinstance(json.loads(raw), Mapping)
    except (ValueError, RecursionError):
        whole = False
    return f'{{"name": {json.dumps(call.name)}, "arguments": {raw if whole else json.dumps(call.arguments)}}}'
