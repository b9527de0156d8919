"""The notations in which models write tool calls into their text, and the one rule of when such a text is a call.

Text is untrusted: it is read as calls only when it is nothing but calls to offered tools. Describing tools to a model
and keeping calls in a text history is done in `textcalls.py`.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from app.schema.message import JSON, ToolCallBlock
from app.schema.request import ToolSpec

Offered = Mapping[str, ToolSpec]
Written = tuple[str, JSON]
"""A tool's name and its arguments: an object, its JSON text, or None for none."""

THOUGHT = r"<(?:think|thinking|thought)>.*?(?:</(?:think|thinking|thought)>|\Z)"
STRAY_CLOSER = re.compile(r"</(?:think|thinking|thought)>", re.I)
_LEADING_THOUGHTS = re.compile(rf"(?:\s*{THOUGHT})*\s*", re.I | re.S)
_FENCED = re.compile(r"```[ \t]*(?:json|tool_calls?|tool_code)?[ \t]*\r?\n(?P<body>.*?)(?:```)?", re.I | re.S)

_BAR, _GAP, _NAME = r"[｜|]", r"[▁_ ]", r"(?P<name>[\w.-]+)"
_SPACE = rf"(?:\w+:|{_BAR}DSML{_BAR})?"
"""Tags may stand in a namespace: `minimax:`, or DeepSeek's `｜DSML｜`."""

_OPENERS = "|".join(
    (
        rf"<{_SPACE}(?:tool|function)_call>",
        rf"<{_BAR}tool{_GAP}call{_GAP}begin{_BAR}>",
        r"<\|tool_call_begin\|>",
        r"\[TOOL_CALLS\]",
    )
)
"""One at a time, for the notations below begin with them."""
_FILLERS = "|".join(
    (
        r"\s+",
        r"[,;]",
        THOUGHT,
        rf"</{_SPACE}(?:tool|function)_calls?>",
        rf"<{_SPACE}(?:tool|function)_calls>",
        r"<\|/?tool_calls?(?:_section)?(?:_end)?\|>|<\|tool_calls_section_begin\|>",
        rf"<{_BAR}tool{_GAP}calls?{_GAP}end{_BAR}>|<{_BAR}tool{_GAP}calls{_GAP}begin{_BAR}>",
        r"\[/TOOL_CALLS\]",
        r"<\|(?:python_tag|eom_id|eot_id|im_end|end|call|eos)\|>",
        r"</s>",
    )
)
_NOISE = re.compile(rf"(?:{_FILLERS})+|(?:(?:{_OPENERS})\s*)+(?={_OPENERS})|{_OPENERS}", re.I | re.S)
"""What may stand before, between and after calls without making them an explanation."""

_ACTION = rf"\**Action:\**[ \t]*`?{_NAME}`?[ \t]*\r?\n\s*\**Action Input:\**"
"""ReAct's two lines; some models print the keywords in bold."""

_HEADS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\[TOOL_CALLS\]\s*{_NAME}(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(?=\s*\{{)",
        rf"<{_BAR}tool{_GAP}call{_GAP}begin{_BAR}>\s*(?:function<{_BAR}tool{_GAP}sep{_BAR}>)?{_NAME}\s*"
        rf"(?:<{_BAR}tool{_GAP}sep{_BAR}>)?(?=\s*(?:```|\{{))",
        r"<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>",
        r"(?:<\|start\|>assistant\s*)?<\|channel\|>\w+ to=functions\."
        rf"{_NAME}\s*(?:<\|constrain\|>\w+)?\s*<\|message\|>",
        rf"{_ACTION}(?=\s*(?:```|\{{))",
    )
)
"""A name, after which an object of arguments stands: Mistral since v11, DeepSeek V3 and V3.1, Kimi, gpt-oss, ReAct."""

_ARGUMENTS_FENCE = re.compile(r"\s*(```(?:json)?)?\s*")
_FENCE_END = re.compile(r"\s*```")

_ELEMENT = re.compile(rf"<{_SPACE}(?:function|invoke)(?:=|\s+name=)[\"']?{_NAME}[\"']?\s*>\s*")
_ELEMENT_END = re.compile(rf"\s*(?:</{_SPACE}(?:function|invoke)>)?")
_PARAMETER = re.compile(
    rf"\s*<{_SPACE}parameter(?:=|\s+name=)[\"']?(?P<key>[^\"'>\s]+)[\"']?(?:\s+string=\"(?P<text>true|false)\")?\s*>"
)
_PARAMETER_END = re.compile(
    rf"</{_SPACE}parameter>(?=\s*(?:<{_SPACE}parameter[\s=]|</{_SPACE}(?:function|invoke)>|</tool_call>|\Z))"
)
"""Llama's `<function=name>{…}</function>`, Qwen3-Coder's and MiniMax's parameters, DeepSeek V3.2's DSML."""

_GLM = re.compile(rf"<tool_call>\s*{_NAME}\s*(?=<arg_key>|</tool_call>)")
_GLM_PAIR = re.compile(r"\s*<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>")
_GLM_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>|\Z))")

_PYTHON = re.compile(r"\[\s*[A-Za-z_][\w.]*\(|[A-Za-z_]\w*\.call\(|[\[\s]*\{\s*'")
_TRAILING = re.compile(r"(?:<\|\w+\|>|</tool_call>|\s)+\Z")
_MOST_PYTHON = 20_000

_NAME_KEYS = ("name", "function", "tool", "tool_name", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input", "action_input")
_CALL_KEYS = frozenset({*_NAME_KEYS, *_ARGUMENT_KEYS, "id", "type", "index"})

_REACT = re.compile(
    rf"(?:\s*\**Thought:.*?^|\s*){_ACTION}(?P<input>.*?)(?:^\**Observation:.*)?\Z",
    re.M | re.S,
)
_OPENING = re.compile(r"[ \t]*```(?P<tag>[\w+-]+)[ \t]*\Z")
_LANGUAGES = {
    **dict.fromkeys(("bash", "sh", "shell", "zsh"), "bash"),
    **dict.fromkeys(("python", "python3", "py"), "python_execute"),
}
"""Language tags of code blocks, as agenticSeek's models write them, and the tools that run them."""


def calls_in_text(text: str, tools: Iterable[ToolSpec], *, asked_in_text: bool = False) -> tuple[ToolCallBlock, ...]:
    """The tool calls that a text consists of, with fresh ids; empty when it is anything else as well.

    Thinking is left out first. Understood are `{"name", "arguments"}` objects under their usual key names, alone, in a
    row, in a list, in one code fence or in call tags, and the notations above. Words around them, or one name that is
    not offered, make the whole text an answer. Where the tools were offered in words (`asked_in_text`), a ReAct thought
    may stand before its action, and code blocks with a language tag are calls when the text is nothing but them.
    Never raises, in time linear in the text.
    """
    offered = {tool.name: tool for tool in tools}
    readers = (_calls, _react, _blocks) if asked_in_text else (_calls,)
    # Not `strip_thinking`: a call may well write a file that has think tags in it.
    for candidate in (text, *STRAY_CLOSER.split(text, 1)[1:]):
        bare = _without_thoughts(candidate)
        for reader in readers:
            try:
                if calls := tuple(_block_of(written, offered) for written in reader(bare, offered)):
                    return calls
            except (ValueError, RecursionError):
                continue
    return ()


def _without_thoughts(text: str) -> str:
    thoughts = _LEADING_THOUGHTS.match(text)
    return text[thoughts.end() if thoughts else 0 :].strip()


def _block_of(written: Written, offered: Offered) -> ToolCallBlock:
    name, arguments = written
    if name not in offered:
        name = name.removeprefix("functions.")
    if name not in offered:
        raise ValueError("not an offered tool")
    return ToolCallBlock(f"call-{uuid.uuid4().hex[:8]}", name, _raw_arguments(arguments))


def _raw_arguments(given: JSON) -> str:
    match given:
        case None:
            return "{}"
        case str():
            raw = given
        case dict():
            raw = json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        case _:
            raise ValueError("arguments are an object, or its JSON text")
    # A lone surrogate cannot be sent; its escape means the same in JSON.
    return raw.encode("utf-8", "backslashreplace").decode()


def _calls(text: str, offered: Offered) -> Iterator[Written]:
    """One call after the other. Raises `ValueError` at whatever is neither a call nor noise between calls."""
    if fenced := _FENCED.fullmatch(text):
        text = fenced["body"]
    position = 0
    while position < len(text):
        if head := next((found for pattern in _HEADS if (found := pattern.match(text, position))), None):
            arguments, position = _object(text, head.end())
            yield head["name"], arguments
        elif element := _ELEMENT.match(text, position):
            arguments, position = _element(text, element, offered)
            yield element["name"], arguments
        elif glm := _GLM.match(text, position):
            arguments, position = _pairs(text, glm, offered)
            yield glm["name"], arguments
        elif noise := _NOISE.match(text, position):
            position = noise.end()
        elif _PYTHON.match(text, position):
            yield from _python(text[position:], offered)
            return
        else:
            value, position = _DECODER.raw_decode(text, position)
            for item in cast("list[JSON]", value) if isinstance(value, list) else [value]:
                yield _json_call(item, offered)


def _refuse(constant: str) -> JSON:
    raise ValueError(f"{constant} is not JSON")


# Not strict: small models write line breaks into their strings as they are.
_DECODER = json.JSONDecoder(parse_constant=_refuse, strict=False)


def _json_call(value: JSON, offered: Offered) -> Written:
    """The call that a JSON value stands for; `ValueError` when it is none.

    Unknown keys are refused, and `{"name", "description", "parameters"}` describes a tool unless these parameters are
    arguments of it: models of half a billion weights copy the description into their call.
    """
    if not isinstance(value, dict) or not cast("dict[str, JSON]", value).keys() <= _CALL_KEYS | {"description"}:
        raise ValueError("not a call")
    call = cast("dict[str, JSON]", value)
    named = [call[key] for key in _NAME_KEYS if key in call]
    if len(named) == 1 and isinstance(named[0], dict):
        return _json_call(named[0], offered)
    given = [call[key] for key in _ARGUMENT_KEYS if key in call]
    if len(named) != 1 or not isinstance(named[0], str) or len(given) != 1:
        raise ValueError("not a call")
    if "description" in call and not _are_arguments(given[0], offered.get(named[0])):
        raise ValueError("a description of a tool")
    return named[0], given[0]


def _are_arguments(given: JSON, tool: ToolSpec | None) -> bool:
    return bool(given) and isinstance(given, dict) and tool is not None and given.keys() <= _properties(tool).keys()


def _object(text: str, position: int) -> tuple[dict[str, JSON], int]:
    """The JSON object here, perhaps in a code fence, and where it ends."""
    fence = _ARGUMENTS_FENCE.match(text, position)
    value, end = _DECODER.raw_decode(text, fence.end() if fence else position)
    match value:
        case dict():
            closing = _FENCE_END.match(text, end) if fence and fence[1] else None
            return cast("dict[str, JSON]", value), closing.end() if closing else end
        case _:
            raise ValueError("arguments are an object")


def _element(text: str, element: re.Match[str], offered: Offered) -> tuple[dict[str, JSON], int]:
    """What stands between `<function=…>` and its end: an object, or parameters whose text is their value."""
    arguments: dict[str, JSON] = {}
    position = element.end()
    if text.startswith("{", position):
        arguments, position = _object(text, position)
    while parameter := _PARAMETER.match(text, position):
        # A parameter without its end was cut off: half a call is none.
        if (end := _PARAMETER_END.search(text, parameter.end())) is None:
            raise ValueError("a parameter without its end")
        written = text[parameter.end() : end.start()].removeprefix("\n").removesuffix("\n")
        kind = {"true": {"type": "string"}, "false": {}}.get(parameter["text"] or "")
        known = kind if kind is not None else _schema_of(offered, element["name"], parameter["key"])
        arguments[parameter["key"]] = _typed(written, known)
        position = end.end()
    closing = _ELEMENT_END.match(text, position)
    return arguments, closing.end() if closing else position


def _pairs(text: str, glm: re.Match[str], offered: Offered) -> tuple[dict[str, JSON], int]:
    arguments: dict[str, JSON] = {}
    position = glm.end()
    while pair := _GLM_PAIR.match(text, position):
        if (end := _GLM_END.search(text, pair.end())) is None:
            raise ValueError("a value without its end")
        key = pair["key"].strip()
        arguments[key] = _typed(text[pair.end() : end.start()], _schema_of(offered, glm["name"], key))
        position = end.end()
    return arguments, position


def _properties(tool: ToolSpec) -> dict[str, JSON]:
    properties = tool.parameters.get("properties")
    return cast("dict[str, JSON]", properties) if isinstance(properties, dict) else {}


def _schema_of(offered: Offered, name: str, key: str) -> dict[str, JSON]:
    tool = offered.get(name)
    schema = _properties(tool).get(key) if tool else None
    return cast("dict[str, JSON]", schema) if isinstance(schema, dict) else {}


def _typed(written: str, schema: dict[str, JSON]) -> JSON:
    """The value that a parameter's bare text means: the text itself where a text is wanted, else its JSON."""
    if _takes_text(schema):
        return written
    bare = {"True": "true", "False": "false", "None": "null"}.get(written.strip(), written.strip())
    try:
        return json.loads(bare, parse_constant=_refuse)
    except ValueError:
        return written


def _takes_text(schema: dict[str, JSON]) -> bool:
    kind = schema.get("type")
    kinds = cast("list[JSON]", kind) if isinstance(kind, list) else [kind]
    return "string" in kinds or any(isinstance(option, str) for option in cast("list[JSON]", schema.get("enum", [])))


def _python(text: str, offered: Offered) -> Iterator[Written]:
    """Llama's `[name(key=value), …]` and `name.call(…)`, and dictionaries with single quotes; the rest of the text."""
    source = _TRAILING.sub("", text[-_MOST_PYTHON:]) if len(text) <= _MOST_PYTHON else text
    if len(source) > _MOST_PYTHON:
        raise ValueError("too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = ast.parse(source, mode="eval").body
        items = node.elts if isinstance(node, ast.List) else [node]
        for item in items:
            yield _python_call(item) if isinstance(item, ast.Call) else _json_call(ast.literal_eval(item), offered)
    except (SyntaxError, TypeError, MemoryError) as error:
        raise ValueError("not a call in Python") from error


def _python_call(call: ast.Call) -> Written:
    name = ast.unparse(call.func).removesuffix(".call")
    if call.args or not all(keyword.arg for keyword in call.keywords):
        raise ValueError("arguments without names")
    return name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


def _react(text: str, offered: Offered) -> Iterator[Written]:
    """One action of the ReAct form; whatever a model then imagines as its observation is left out."""
    found = _REACT.fullmatch(text)
    if found is None or found["name"] not in offered:
        raise ValueError("no action")
    given = found["input"].strip()
    yield found["name"], _one_text(offered[found["name"]], given.strip("`\"' \n")) or _object(given, 0)[0]


def _blocks(text: str, offered: Offered) -> Iterator[Written]:
    """Code blocks, one call each; `ValueError` for a line outside of a block, or a block without its end."""
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip():
            continue
        opening = _OPENING.match(line)
        if opening is None:
            raise ValueError("words beside a block")
        body: list[str] = []
        for inner in lines:
            if inner.strip() == "```":
                break
            body.append(inner)
        else:
            raise ValueError("a block without its end")
        yield _from_block(opening["tag"], textwrap.dedent("\n".join(body)), offered)


def _from_block(tag: str, body: str, offered: Offered) -> Written:
    name = tag if tag in offered else _LANGUAGES.get(tag.lower(), "")
    tool = offered.get(name)
    if tool is None or not body.strip():
        raise ValueError("no block of an offered tool")
    if (arguments := _one_text(tool, body)) is not None:
        return name, arguments
    if name != tag:
        raise ValueError("code that the tool of its language does not take as it is")
    known = _properties(tool)
    lines = [line.partition("=") for line in body.splitlines() if line.strip()]
    if all(sign and key.strip() in known for key, sign, _ in lines):
        return name, {
            key.strip(): _typed(value.strip(), _schema_of(offered, name, key.strip())) for key, _, value in lines
        }
    arguments, _ = _object(body, 0)
    if not arguments.keys() <= known.keys():
        raise ValueError("not the arguments of this tool")
    return name, arguments


def _one_text(tool: ToolSpec, text: str) -> dict[str, JSON] | None:
    """The text as the one argument that the tool demands, if it demands just one and that is a text."""
    required = tool.parameters.get("required")
    if not isinstance(required, list) or len(cast("list[JSON]", required)) != 1 or text.lstrip().startswith("{"):
        return None
    key = str(cast("list[JSON]", required)[0])
    schema = _properties(tool).get(key)
    return {key: text} if isinstance(schema, dict) and _takes_text(cast("dict[str, JSON]", schema)) else None
