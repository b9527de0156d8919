"""Plans as values: ids, readiness, marks, a replaced future, and their two forms."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.schema.plan import STEP_STATUSES, Plan, PlanStep, StepStatus
from tests.schema.chunks import PROPERTY


def steps(*texts: str) -> list[PlanStep]:
    return [PlanStep("", text) for text in texts]


def ids(plan: Plan) -> list[str]:
    return [step.id for step in plan.steps]


NUMBERED: dict[str, tuple[list[str], list[str]]] = {
    "none given": (["", "", ""], ["1", "2", "3"]),
    "all given": (["read", "write"], ["read", "write"]),
    "doubled": (["a", "a", "a"], ["a", "a-2", "a-3"]),
    "doubled into a taken name": (["a", "a-2", "a"], ["a", "a-2", "a-3"]),
    "a number that is taken": (["2", ""], ["2", "2-2"]),
    "no steps": ([], []),
}


@pytest.mark.parametrize(("asked", "given_ids"), NUMBERED.values(), ids=NUMBERED)
def test_steps_get_unique_ids(asked: list[str], given_ids: list[str]) -> None:
    assert ids(Plan.create("t", [PlanStep(name, "x") for name in asked])) == given_ids


@PROPERTY
@given(st.lists(st.sampled_from(["", "1", "2", "1-2", "2-2", "a"]), max_size=8))
def test_ids_are_unique_whatever_is_asked(asked: list[str]) -> None:
    plan = Plan.create("t", [PlanStep(name, str(place)) for place, name in enumerate(asked)])
    assert len(set(ids(plan))) == len(asked)
    assert [step.text for step in plan.steps] == [str(place) for place in range(len(asked))]


def test_two_plans_of_the_same_steps_have_different_ids() -> None:
    one, other = Plan.create("t", steps("a")), Plan.create("t", steps("a"))
    assert one.id != other.id
    assert one.steps == other.steps


def test_a_plan_cannot_be_edited() -> None:
    plan = Plan.create("t", steps("a"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.title = "other"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.steps[0].status = "completed"  # pyright: ignore[reportAttributeAccessIssue]


def test_marking_gives_a_new_plan_and_keeps_the_rest() -> None:
    plan = Plan.create("t", steps("a", "b"))
    marked = plan.mark("2", "completed", "done")
    assert plan.step("2").status == "not_started"
    assert marked.step("2") == PlanStep("2", "b", status="completed", result="done")
    assert marked.step("1") is plan.step("1")
    assert (marked.id, marked.title) == (plan.id, plan.title)


def test_marking_without_a_result_keeps_the_earlier_one() -> None:
    plan = Plan.create("t", steps("a")).mark("1", "in_progress", "half").mark("1", "blocked")
    assert plan.step("1") == PlanStep("1", "a", status="blocked", result="half")
    assert plan.mark("1", "completed", "").step("1").result == ""


def test_an_unknown_step_is_a_key_error() -> None:
    plan = Plan.create("t", steps("a"))
    with pytest.raises(KeyError, match="9"):
        plan.step("9")
    with pytest.raises(KeyError, match="9"):
        plan.mark("9", "completed")


DIAMOND = Plan.create(
    "t",
    [
        PlanStep("root", "r"),
        PlanStep("left", "l", needs=("root",)),
        PlanStep("right", "r", needs=("root",)),
        PlanStep("end", "e", needs=("left", "right")),
        PlanStep("free", "f", needs=("nobody",)),
    ],
)

READY: dict[str, tuple[dict[str, StepStatus], list[str]]] = {
    "at the start": ({}, ["root", "free"]),
    "root runs": ({"root": "in_progress"}, ["free"]),
    "root done": ({"root": "completed"}, ["left", "right", "free"]),
    "one arm done": ({"root": "completed", "left": "completed"}, ["right", "free"]),
    "both arms done": ({"root": "completed", "left": "completed", "right": "completed"}, ["end", "free"]),
    "an arm failed": ({"root": "completed", "left": "failed", "right": "completed"}, ["free"]),
    "root blocked": ({"root": "blocked", "free": "completed"}, []),
}


@pytest.mark.parametrize(("marks", "ready"), READY.values(), ids=READY)
def test_a_step_is_ready_when_its_needs_are_completed(marks: dict[str, StepStatus], ready: list[str]) -> None:
    plan = DIAMOND
    for step_id, status in marks.items():
        plan = plan.mark(step_id, status)
    assert [step.id for step in plan.ready()] == ready


def test_steps_that_need_each_other_are_never_ready() -> None:
    ring = Plan.create("t", [PlanStep("a", "a", needs=("b",)), PlanStep("b", "b", needs=("a",))])
    assert ring.ready() == ()


def test_a_new_future_keeps_the_past() -> None:
    plan = Plan.create("t", steps("a", "b", "c", "d", "e"))
    plan = plan.mark("1", "completed", "A").mark("2", "failed", "B").mark("3", "in_progress").mark("4", "blocked")
    changed = plan.with_open_steps([PlanStep("", "new"), PlanStep("1", "same id", needs=("2",))])
    assert (changed.id, changed.title) == (plan.id, plan.title)
    assert changed.steps == (
        PlanStep("1", "a", status="completed", result="A"),
        PlanStep("2", "b", status="failed", result="B"),
        PlanStep("3", "new"),
        PlanStep("1-2", "same id", needs=("2",)),
    )
    assert len(plan.steps) == 5


def test_an_empty_future_leaves_the_past_alone() -> None:
    plan = Plan.create("t", steps("a", "b")).mark("2", "completed")
    assert plan.with_open_steps([]).steps == (PlanStep("2", "b", status="completed"),)


def test_complete_means_every_step_is_completed() -> None:
    plan = Plan.create("t", steps("a", "b")).mark("1", "completed")
    assert not plan.complete
    assert not plan.mark("2", "failed").complete
    assert plan.mark("2", "completed").complete
    assert {status: plan.count(status) for status in STEP_STATUSES} == {
        "not_started": 1,
        "in_progress": 0,
        "completed": 1,
        "failed": 0,
        "blocked": 0,
    }


EVERY_STATUS = Plan(
    "plan-1",
    "Ship it",
    (
        PlanStep("1", "write", status="completed", result="3 files"),
        PlanStep("2", "test", "tester", ("1",), "all green", "in_progress"),
        PlanStep("3", "fix", status="failed", result="red"),
        PlanStep("4", "sign", "boss", status="blocked"),
        PlanStep("5", "ship"),
    ),
)


def test_text_for_people_and_models() -> None:
    assert EVERY_STATUS.as_text().splitlines() == [
        "Ship it (1/5 completed)",
        "1. [✓] write",
        "2. [→] [tester] test",
        "3. [✗] fix",
        "4. [!] [boss] sign",
        "5. [ ] ship",
    ]


def test_text_with_results() -> None:
    assert EVERY_STATUS.as_text(results=True).splitlines() == [
        "Ship it (1/5 completed)",
        "1. [✓] write",
        "   result: 3 files",
        "2. [→] [tester] test",
        "3. [✗] fix",
        "   result: red",
        "4. [!] [boss] sign",
        "5. [ ] ship",
    ]


def test_json_form() -> None:
    data = EVERY_STATUS.to_json()
    assert json.loads(json.dumps(data)) == data
    assert (data["id"], data["title"], len(data["steps"])) == ("plan-1", "Ship it", 5)
    assert data["steps"][1] == {
        "id": "2",
        "text": "test",
        "agent": "tester",
        "needs": ["1"],
        "status": "in_progress",
        "result": None,
    }


def test_results_share_what_a_model_is_shown() -> None:
    steps = [PlanStep(str(n), f"step {n}", result="r" * (2_000 if n else 10)) for n in range(50)]
    plan = Plan.create("p", steps)
    short = plan.with_short_results(20_000)
    assert [len(step.result or "") for step in short.steps] == [10, *[400] * 49]
    assert short.with_short_results(20_000) is short
    assert Plan.create("p", [PlanStep("1", "a")]).with_short_results(0).steps[0].result is None
