"""`terminate`: the model's word that the task is over, well or badly."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from app.schema.run import RunContext
from app.tools.base import Args, RunEnd, Tool, ToolOutput

_SYNONYMS = {
    "succeeded": "success",
    "successful": "success",
    "completed": "success",
    "complete": "success",
    "done": "success",
    "finished": "success",
    "failed": "failure",
    "fail": "failure",
    "error": "failure",
}


def _status(value: object) -> object:
    if not isinstance(value, str):
        return value
    word = value.strip().lower()
    return _SYNONYMS.get(word, word)


class TerminateArgs(Args):
    status: Annotated[Literal["success", "failure"], BeforeValidator(_status)]
    answer: Annotated[str, Field(description="the result for the user, or why it failed")] = ""


class Terminate(Tool[TerminateArgs]):
    name = "terminate"
    description = "End the task when it is done or cannot be done."
    Arguments = TerminateArgs
    effect = "idempotent"

    async def run(self, args: TerminateArgs, ctx: RunContext) -> ToolOutput:
        return ToolOutput(f"the task ends: {args.status}", ends_run=RunEnd(args.status, args.answer))
