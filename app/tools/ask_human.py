"""`ask_human`: a question to the person who started the run, if one is there."""

from __future__ import annotations

import asyncio
from typing import Annotated, Protocol

from pydantic import Field

from app.schema.run import RunContext
from app.tools.base import Args, Tool, ToolOutput

_NOBODY = "No person can answer now. Decide by yourself, say what you assumed, and go on."


class Human(Protocol):
    """The way to a person: a terminal, a page, a chat. None means that nobody answered."""

    async def ask(self, question: str) -> str | None: ...


class AskHumanArgs(Args):
    question: Annotated[str, Field(min_length=1)]


class AskHuman(Tool[AskHumanArgs]):
    """Without a human, or without an answer within `answer_within_s` seconds, the model is told to decide by itself."""

    name = "ask_human"
    description = "Ask the user, only when you cannot go on without an answer."
    Arguments = AskHumanArgs
    effect = "idempotent"

    def __init__(self, human: Human | None = None, *, answer_within_s: float | None = None) -> None:
        self._human = human
        self._answer_within_s = answer_within_s

    async def run(self, args: AskHumanArgs, ctx: RunContext) -> ToolOutput:
        if self._human is None:
            return ToolOutput(_NOBODY)
        limit = asyncio.timeout(self._answer_within_s)
        try:
            async with limit:
                answer = await self._human.ask(args.question)
        except TimeoutError:
            if not limit.expired():
                raise
            answer = None
        return ToolOutput(_NOBODY if answer is None else answer.strip() or "(the user gave an empty answer)")
