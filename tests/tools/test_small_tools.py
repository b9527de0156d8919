"""`ask_human` and `terminate`."""

from __future__ import annotations

import asyncio

import pytest

from app.schema.run import RunContext
from app.tools.ask_human import AskHuman, AskHumanArgs
from app.tools.base import RunEnd
from tests.tools.conftest import Call

NOBODY = "No person can answer now. Decide by yourself, say what you assumed, and go on."


class Person:
    def __init__(self, answer: str | None, delay: float = 0) -> None:
        self.answer = answer
        self.delay = delay
        self.questions: list[str] = []

    async def ask(self, question: str) -> str | None:
        self.questions.append(question)
        await asyncio.sleep(self.delay)
        return self.answer


@pytest.mark.parametrize(
    ("human", "text"),
    [
        (None, NOBODY),
        (Person(None), NOBODY),
        (Person("late", delay=9), NOBODY),
        (Person(" blue \n"), "blue"),
        (Person(""), "(the user gave an empty answer)"),
    ],
)
async def test_q05_defect_109_ask_human(human: Person | None, text: str) -> None:
    tool = AskHuman(human, answer_within_s=0.02)
    output = await tool.run(AskHumanArgs(question="Which colour?"), RunContext())
    assert (output.text, output.ok) == (text, True)
    assert human is None or human.questions == ["Which colour?"]


async def test_a_human_channel_that_times_out_by_itself_is_a_fault() -> None:
    class Broken:
        async def ask(self, question: str) -> str | None:
            raise TimeoutError("socket")

    with pytest.raises(TimeoutError, match="socket"):
        await AskHuman(Broken()).run(AskHumanArgs(question="x"), RunContext())


@pytest.mark.parametrize(
    ("status", "meant"), [("success", "success"), ("failure", "failure"), ("Done", "success"), ("failed", "failure")]
)
async def test_defect_58_terminate_carries_how_the_run_ends(status: str, meant: str, call: Call) -> None:
    outcome = await call("terminate", status=status, answer="42")
    assert outcome.ends_run == RunEnd(meant, "42")  # pyright: ignore[reportArgumentType]
    assert (outcome.block.text, outcome.ok) == (f"the task ends: {meant}", True)


async def test_M10_terminate_needs_to_know_how(call: Call) -> None:
    outcome = await call("terminate")
    assert (outcome.block.text, outcome.ends_run) == ("error: status: is required", None)
