"""What a tool is: a name, a description, typed arguments, an effect class, and one async deed."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from app.schema.message import JSON, ImageBlock
from app.schema.plan import Plan
from app.schema.request import ToolSpec
from app.schema.run import RunContext

Effect = Literal["read", "idempotent", "once"]
"""`read` changes nothing (such calls run in parallel), `idempotent` may be repeated safely, `once` may not."""


class Args(BaseModel):
    """Base of a tool's argument model. Unknown keys never reach it: the toolbox drops them with a note."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


ArgsT = TypeVar("ArgsT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A tool's word that the run is over: how, and with which answer."""

    status: Literal["success", "failure"]
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool brings back: text for the model, images, and what it means for the run.

    `ok=False` marks a result the model must read as a failure. When the tool itself left something out of `text`,
    `omitted` counts it and `saved` is the file with everything; the toolbox then writes no file of its own.
    """

    text: str = ""
    images: tuple[ImageBlock, ...] = ()
    ok: bool = True
    ends_run: RunEnd | None = None
    plan: Plan | None = None
    saved: Path | None = None
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Approval:
    """Why a call needs a person's word: the reason, and what to show (a command, code, a diff).

    `crosses_border` says that the act may reach outside the workspace; the policy `auto` refuses it then.
    """

    reason: str
    preview: str = ""
    crosses_border: bool = False


class Tool(Generic[ArgsT]):
    """Base of all tools. A subclass sets the class fields and writes `run`; nothing else is needed.

    `run` may be a plain (blocking) method too: the toolbox then runs it in its own thread pool.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    Arguments: type[ArgsT]
    effect: ClassVar[Effect] = "once"
    timeout_s: ClassVar[float | None] = None
    """Longest time one call may take, None = the tool bounds itself."""

    def run(self, args: ArgsT, ctx: RunContext) -> ToolOutput | Awaitable[ToolOutput]:
        """Do the deed. Raise `ToolError` with words for the model; any other exception is a fault of the tool."""
        raise NotImplementedError

    def approval(self, args: ArgsT) -> Approval | None:
        """The approval this call needs, or None. Asked before `run`, never for harmless reads."""
        return None

    def effect_of(self, args: ArgsT) -> Effect:
        """The effect of this one call, for tools whose commands differ (a view reads, an edit does not)."""
        return self.effect

    async def close(self) -> None:
        """Free what the tool holds; called once, when its toolbox closes."""

    @property
    def blocking(self) -> bool:
        """Whether `run` is a plain method, which the toolbox then keeps off the event loop."""
        return not inspect.iscoroutinefunction(self.run)

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, argument_schema(self.Arguments))


def argument_schema(model: type[BaseModel]) -> dict[str, JSON]:
    """The JSON Schema of an argument model, without titles, `$defs` and the any-of of optional fields.

    Providers refuse or misread the generous form that pydantic emits; this one is what every dialect accepts.
    """
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    plain = _simplify(schema, definitions)
    plain.pop("description", None)
    plain.setdefault("properties", {})
    plain.pop("additionalProperties", None)
    return plain


def _simplify(node: JSON, definitions: dict[str, JSON]) -> JSON:
    if isinstance(node, list):
        return [_simplify(item, definitions) for item in cast("list[JSON]", node)]
    if not isinstance(node, dict):
        return node
    schema = cast("dict[str, JSON]", node)
    if "$ref" in schema:
        return _simplify(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    options = cast("list[JSON]", schema.get("anyOf") or [])
    if {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        if len(rest) == 1:
            merged = {key: value for key, value in schema.items() if key != "anyOf"} | rest[0]
            return _simplify(merged, definitions)
    out: dict[str, JSON] = {}
    for key, value in schema.items():
        if (key == "title" and isinstance(value, str)) or (key == "default" and value is None):
            continue
        if key in ("exclusiveMinimum", "exclusiveMaximum"):
            # Not in the subset of JSON Schema that every provider knows; validation here still holds them.
            continue
        if key == "properties":
            # A property may be called "title" or "default"; only its own schema is simplified.
            out[key] = {name: _simplify(prop, definitions) for name, prop in value.items()}
        else:
            out[key] = _simplify(value, definitions)
    return out


class FunctionTool(Tool[BaseModel]):
    """A tool made of a plain or async function by `tool`."""

    def __init__(self, function: Callable[..., Any], *, name: str, description: str, effect: Effect) -> None:
        self.name = name  # pyright: ignore[reportAttributeAccessIssue]
        self.description = description  # pyright: ignore[reportAttributeAccessIssue]
        self.effect = effect  # pyright: ignore[reportAttributeAccessIssue]
        self._function = function
        words = argument_words(function.__doc__ or "")
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if hints.get(parameter.name) is RunContext:
                continue
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            said = words.get(parameter.name)
            field = Field(default, description=said) if said else default
            fields[parameter.name] = (hints.get(parameter.name, str), field)
        self._context_name = next((key for key, hint in hints.items() if hint is RunContext and key != "return"), None)
        self.Arguments = create_model(f"{name}_arguments", __base__=Args, **fields)
        self._is_async = inspect.iscoroutinefunction(function)

    def run(self, args: BaseModel, ctx: RunContext) -> ToolOutput | Awaitable[ToolOutput]:
        values = {field: getattr(args, field) for field in type(args).model_fields}
        if self._context_name:
            values[self._context_name] = ctx
        return self._run_async(values) if self._is_async else as_output(self._function(**values))

    async def _run_async(self, values: dict[str, Any]) -> ToolOutput:
        return as_output(await self._function(**values))

    @property
    def blocking(self) -> bool:
        return not self._is_async


_ARGS = re.compile(r"[ \t]*(?:Args|Arguments|Parameters):[ \t]*")
_ARG = re.compile(r"(?P<indent>[ \t]+)\*{0,2}(?P<name>\w+)(?:[ \t]*\([^)]*\))?:[ \t]*(?P<words>.*)")


def argument_words(doc: str) -> dict[str, str]:
    """What a docstring in Google's style says of each argument: lines under one that holds nothing but `Args:`."""
    lines = inspect.cleandoc(doc).splitlines()
    start = next((at for at, line in enumerate(lines) if _ARGS.fullmatch(line)), len(lines))
    words: dict[str, str] = {}
    name = indent = ""
    for line in lines[start + 1 :]:
        if line.strip() and not line[0].isspace():
            break
        found = _ARG.fullmatch(line)
        if found is not None and (not indent or found["indent"] == indent):
            name, indent = found["name"], found["indent"]
            words[name] = found["words"].strip()
        elif name and line.strip():
            words[name] = f"{words[name]} {line.strip()}".strip()
    return {name: said for name, said in words.items() if said}


def as_output(value: object) -> ToolOutput:
    """What a tool returned, as a `ToolOutput`: text as it is, None as no text, everything else as JSON."""
    match value:
        case ToolOutput():
            return value
        case None:
            return ToolOutput()
        case str():
            return ToolOutput(value)
        case BaseModel():
            return ToolOutput(value.model_dump_json())
        case _:
            return ToolOutput(json.dumps(value, ensure_ascii=False, default=str))


def tool(function: Callable[..., Any] | None = None, *, name: str | None = None, effect: Effect = "once") -> Any:
    """Make a tool of a function: its name, docstring and annotated parameters become the tool's.

    A parameter annotated `RunContext` receives the run's context and is not shown to the model.
    """

    def make(target: Callable[..., Any]) -> FunctionTool:
        description = inspect.cleandoc(target.__doc__ or "") or target.__name__
        return FunctionTool(target, name=name or target.__name__, description=description, effect=effect)

    return make if function is None else make(function)
