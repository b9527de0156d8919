"""What a tool is: a name, a description, typed arguments, an effect class, and one async deed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from app.schema.message import JSON, ImageBlock
from app.schema.plan import Plan
from app.schema.request import ToolSpec
from app.schema.run import RunContext

Effect = Literal["read", "idempotent", "once"]
"""`read` changes nothing (such calls run in parallel), `idempotent` may be repeated safely, `once` may not."""


class Args(BaseModel):
    """Base of a tool's argument model. Unknown keys never reach it: the toolbox drops them with a note."""

    model_config = ConfigDict(frozen=True, extra="forbid")


ArgsT = TypeVar("ArgsT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A tool's word that the run is over: how, and with which answer."""

    status: Literal["success", "failure"]
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool brings back: text for the model, images, and what it means for the run.

    `ok=False` marks a result the model must read as a failure (a command that exited with 3 is still a result).
    """

    text: str = ""
    images: tuple[ImageBlock, ...] = ()
    ok: bool = True
    ends_run: RunEnd | None = None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """Why a call needs a person's word: the reason, and what to show (a command, code, a diff)."""

    reason: str
    preview: str = ""


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

    async def close(self) -> None:
        """Free what the tool holds; called once, when its toolbox closes."""

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


def _simplify(node: Any, definitions: dict[str, Any]) -> Any:
    # JSON Schema is open-ended JSON, hence Any.
    if isinstance(node, list):
        return [_simplify(item, definitions) for item in node]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _simplify(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
    options = node.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]  # pyright: ignore[reportUnknownVariableType]
        if len(rest) == 1:  # pyright: ignore[reportUnknownArgumentType]
            merged = {key: value for key, value in node.items() if key != "anyOf"} | rest[0]  # pyright: ignore[reportUnknownVariableType]
            return _simplify({k: v for k, v in merged.items() if not (k == "default" and v is None)}, definitions)
    out: dict[str, Any] = {}
    for key, value in node.items():  # pyright: ignore[reportUnknownVariableType]
        if key == "title" and isinstance(value, str):
            continue
        if key == "default" and value is None:
            continue
        if key == "properties":
            out[key] = {name: _simplify(prop, definitions) for name, prop in value.items()}
        else:
            out[key] = _simplify(value, definitions)  # pyright: ignore[reportUnknownArgumentType]
    return out


class FunctionTool(Tool[BaseModel]):
    """A tool made of a plain or async function by `tool`."""

    def __init__(self, function: Callable[..., Any], *, name: str, description: str, effect: Effect) -> None:
        self.name = name  # pyright: ignore[reportAttributeAccessIssue]
        self.description = description  # pyright: ignore[reportAttributeAccessIssue]
        self.effect = effect  # pyright: ignore[reportAttributeAccessIssue]
        self._function = function
        hints = get_type_hints(function)
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if hints.get(parameter.name) is RunContext:
                continue
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, str), default)
        self._context_name = next((key for key, hint in hints.items() if hint is RunContext and key != "return"), None)
        self.Arguments = create_model(f"{name}_arguments", __base__=Args, **fields)
        self._is_async = inspect.iscoroutinefunction(function)

    def run(self, args: BaseModel, ctx: RunContext) -> ToolOutput | Awaitable[ToolOutput]:
        values = {field: getattr(args, field) for field in type(args).model_fields}
        if self._context_name:
            values[self._context_name] = ctx
        return self._run_async(values) if self._is_async else _as_output(self._function(**values))

    async def _run_async(self, values: dict[str, Any]) -> ToolOutput:
        return _as_output(await self._function(**values))

    @property
    def blocking(self) -> bool:
        return not self._is_async


def _as_output(value: object) -> ToolOutput:
    return value if isinstance(value, ToolOutput) else ToolOutput("" if value is None else str(value))


def tool(
    function: Callable[..., Any] | None = None, *, name: str | None = None, effect: Effect = "once"
) -> Any:
    """Make a tool of a function: its name, docstring and annotated parameters become the tool's.

    A parameter annotated `RunContext` receives the run's context and is not shown to the model.
    """

    def make(target: Callable[..., Any]) -> FunctionTool:
        description = inspect.cleandoc(target.__doc__ or "") or target.__name__
        return FunctionTool(target, name=name or target.__name__, description=description, effect=effect)

    return make if function is None else make(function)
