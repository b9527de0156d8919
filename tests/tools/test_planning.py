"""`planning` and `parse_steps`: every form of steps that models write, and no completed work lost."""

from __future__ import annotations

from typing import Any

import pytest

from app.schema.errors import ToolError
from app.schema.plan import PlanStep
from app.tools.planning import parse_steps
from tests.tools.conftest import Call

TWO = (PlanStep("", "first"), PlanStep("", "second"))


@pytest.mark.parametrize(
    "value",
    [
        ["first", "second"],
        ["1. first", "2) second"],
        ["Step 1: first", "step 2. second"],
        "first\nsecond",
        "1. first\n2. second\n",
        "1. first 2. second",
        "- first\n* second",
        "- [ ] first\n- [x] second",
        "步骤1：first\n步骤2：second",
        "1、first\n2、second",
        '["first", "second"]',
        "['first', 'second',]",
        '[{"text": "first"}, {"description": "second"}]',
        {"steps": ["first", "second"]},
        '{"steps": ["first", "second"]}',
        [{"title": "first"}, {"step": "second"}],
        ["first", "", None, "  ", "second"],
    ],
)
def test_T18_defect_110_forms_of_steps(value: Any) -> None:
    assert parse_steps(value) == TWO


@pytest.mark.parametrize(
    "text", ["1.5 litres of water", "compare 1. and 2. of the list", "[see notes]", "use a[0]", "3 apples"]
)
def test_text_that_only_looks_numbered_stays(text: str) -> None:
    assert parse_steps([text]) == (PlanStep("", text),)


def test_agents_lead_a_step_or_stand_in_a_field() -> None:
    assert parse_steps(["[coder] write it", "ask [coder] first", "[x] done", "1. [data-analysis] chart"]) == (
        PlanStep("", "write it", agent="coder"),
        PlanStep("", "ask [coder] first"),
        PlanStep("", "done"),
        PlanStep("", "chart", agent="data-analysis"),
    )
    assert parse_steps([{"text": "[coder] write", "agent": "[manus]"}, {"text": "[coder] b", "agent": None}]) == (
        PlanStep("", "write", agent="manus"),
        PlanStep("", "b", agent="coder"),
    )


@pytest.mark.parametrize(
    ("field", "needs"),
    [
        ({}, ()),
        ({"needs": None}, ()),
        ({"needs": 1}, ("1",)),
        ({"need": "1"}, ("1",)),
        ({"needs": [1, "2"]}, ("1", "2")),
        ({"needs": "1, 2"}, ("1", "2")),
        ({"needs": None, "depends_on": ["1"]}, ("1",)),
    ],
)
def test_needs_in_every_form(field: dict[str, Any], needs: tuple[str, ...]) -> None:
    assert parse_steps([{"id": 3, "text": "t", "check": "c", **field}]) == (PlanStep("3", "t", needs=needs, check="c"),)


def test_a_step_without_text_is_named() -> None:
    with pytest.raises(ToolError, match="a step has no text"):
        parse_steps([{"agent": "coder"}])


@pytest.mark.parametrize("value", [None, "", [], "  \n"])
def test_no_steps(value: Any) -> None:
    assert parse_steps(value) == ()


async def test_T18_create_without_title_and_mark_by_text(call: Call) -> None:
    outcome = await call("planning", command="create", steps="1. first\n2. second")
    assert outcome.plan is not None
    assert outcome.plan.title == "Plan"
    assert outcome.block.text == "Plan (0/2 completed)\n1. [ ] first\n2. [ ] second"
    outcome = await call("planning", command="mark_step", step="step 2", status="done", note="went well")
    assert outcome.plan is not None
    assert outcome.plan.steps[1] == PlanStep("2", "second", status="completed", result="went well")
    outcome = await call("planning", command="mark", step=1, status="in progress")
    assert outcome.block.text == "Plan (1/2 completed)\n1. [→] first\n2. [✓] second"
    shown = await call("planning", command="get")
    assert shown.block.text.endswith("2. [✓] second\n   result: went well")
    assert shown.plan is None


async def test_T18_defect_111_update_keeps_completed_work(call: Call) -> None:
    await call("planning", command="create", title="T", steps=["a", "b", {"text": "c", "needs": [1]}])
    await call("planning", command="mark_step", step=1, note="A done")
    await call("planning", command="mark_step", step=2, status="completed")
    outcome = await call("planning", command="update", steps=["new", "a", "b", "c"])
    assert outcome.plan is not None
    assert outcome.plan.title == "T"
    assert [(s.id, s.text, s.status, s.result, s.needs) for s in outcome.plan.steps] == [
        ("4", "new", "not_started", None, ()),
        ("1", "a", "completed", "A done", ()),
        ("2", "b", "completed", None, ()),
        ("3", "c", "not_started", None, ("1",)),
    ]
    # Numbers are those of the printed plan.
    outcome = await call("planning", command="mark_step", step=1, status="blocked")
    assert outcome.plan is not None
    assert outcome.plan.step("4").status == "blocked"


async def test_defect_111_steps_numbered_anew_keep_their_status(call: Call) -> None:
    await call("planning", command="create", steps=["a", {"text": "b", "needs": ["1"]}])
    await call("planning", command="mark_step", step=1)
    outcome = await call(
        "planning", command="update", steps=[{"id": 1, "text": "new"}, {"id": 2, "text": "a"}, {"id": 3, "text": "b"}]
    )
    assert outcome.plan is not None
    assert [(s.id, s.text, s.status, s.needs) for s in outcome.plan.steps] == [
        ("1", "new", "not_started", ()),
        ("2", "a", "completed", ()),
        ("3", "b", "not_started", ("2",)),
    ]


async def test_a_reworded_step_is_found_by_its_id(call: Call) -> None:
    await call("planning", command="create", steps=["a", "b"])
    await call("planning", command="mark_step", step=1)
    outcome = await call("planning", command="update", title="New", steps=[{"id": "1", "text": "a, reworded"}, "b"])
    assert outcome.plan is not None
    assert (outcome.plan.title, outcome.plan.steps[0].status) == ("New", "completed")


async def test_duplicate_ids_are_made_unique(call: Call) -> None:
    outcome = await call("planning", command="create", steps=[{"id": 1, "text": "a"}, {"id": 1, "text": "b"}])
    assert outcome.plan is not None
    assert [step.id for step in outcome.plan.steps] == ["1", "1-2"]
    outcome = await call("planning", command="mark_step", step="1-2")
    assert outcome.plan is not None
    assert outcome.plan.steps[1].status == "completed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": "create"}, "a plan needs steps"),
        ({"command": "mark_step", "step": 0}, "there is no step '0' (steps are numbered from 1 to 1)"),
        ({"command": "mark_step", "step": "last"}, "there is no step 'last'"),
        ({"command": "mark_step"}, "step: is required for mark_step"),
        ({"command": "mark_step", "step": 1, "status": "flying"}, "status: input should be 'not_started'"),
        ({"command": "update", "steps": []}, "an update cannot remove all steps"),
        ({"command": "delete"}, "command: input should be 'get', 'create', 'update', 'mark_step' or 'list'"),
    ],
)
async def test_what_is_wrong_is_named(arguments: dict[str, Any], words: str, call: Call) -> None:
    await call("planning", command="create", steps=["a"])
    outcome = await call("planning", **arguments)
    assert not outcome.ok
    assert words in outcome.block.text


async def test_without_a_plan(call: Call) -> None:
    assert (await call("planning", command="get")).block.text == "There is no plan yet."
    assert (await call("planning", command="list")).block.text == "There is no plan yet."
    assert (
        "there is no plan yet (make one with command create)"
        in (await call("planning", command="mark_step", step=1)).block.text
    )


async def test_list_names_every_plan(call: Call) -> None:
    await call("planning", command="create", title="One", steps=["a"])
    await call("planning", command="create", title="Two", steps=["b", "c"])
    assert (await call("planning", command="list")).block.text == "One (0/1 completed)\nTwo (0/2 completed)"
