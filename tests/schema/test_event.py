"""The JSON form of every event: the fields of the JSON-lines contract, no more and no fewer."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from app.schema.event import (
    ApprovalRequested,
    Compacted,
    Event,
    EventRecord,
    ModelReplied,
    Notice,
    PlanChanged,
    ReasoningStreamed,
    Retrying,
    RunFinished,
    RunStarted,
    StepStarted,
    TextStreamed,
    ToolFinished,
    ToolStarted,
)
from app.schema.message import ToolCallBlock, freeze_json
from app.schema.plan import Plan, PlanStep
from app.schema.usage import Usage

USAGE = Usage(1, 2, 3, 4, 5, True)
USAGE_JSON = {
    "input_tokens": 1,
    "cache_read_tokens": 3,
    "cache_write_tokens": 4,
    "output_tokens": 2,
    "reasoning_tokens": 5,
    "estimated": True,
}
LLM = {"config": "default", "provider": "openai", "model": "gpt", "local": False}
ERROR = {"code": "TASK_FAILED", "message": "no", "hint": ""}
PLAN = Plan("plan-1", "t", (PlanStep("1", "a", "manus", ("0",), "check", "completed", "r"),))
PLAN_STEP_JSON = {"id": "1", "text": "a", "agent": "manus", "needs": ["0"], "status": "completed", "result": "r"}

# The contract that scripts rely on: for each type its fields with their JSON values, besides those of every event.
CONTRACT: dict[str, tuple[Event, dict[str, Any]]] = {
    "run_started": (
        RunStarted("do it", "manus", LLM, "s-1", "bwrap", "/w"),
        {"task": "do it", "agent": "manus", "llm": LLM, "session": "s-1", "sandbox": "bwrap", "workspace": "/w"},
    ),
    "step_started": (StepStarted(1, "manus"), {"step": 1}),
    "text_delta": (TextStreamed("a", 2), {"text": "a", "attempt": 2}),
    "reasoning_delta": (ReasoningStreamed("a", 2), {"text": "a", "attempt": 2}),
    "model_replied": (
        ModelReplied("a", (ToolCallBlock("c1", "f", "{}"), ToolCallBlock("c2", "g", "{")), "tool-calls", USAGE),
        {
            "text": "a",
            "tool_calls": [
                {"id": "c1", "name": "f", "arguments": "{}"},
                {"id": "c2", "name": "g", "arguments": "{"},
            ],
            "finish": "tool-calls",
            "usage": USAGE_JSON,
        },
    ),
    "retrying": (
        Retrying(1, 0.5, "SERVER", "failed"),
        {"attempt": 1, "delay_s": 0.5, "code": "SERVER", "message": "failed"},
    ),
    "tool_started": (
        ToolStarted("c1", "f", {"path": ["a"]}),
        {"call": "c1", "name": "f", "arguments": {"path": ["a"]}},
    ),
    "tool_finished": (
        ToolFinished("c1", "f", True, "x", 0.25, True),
        {"call": "c1", "name": "f", "ok": True, "content": "x", "seconds": 0.25, "truncated": True},
    ),
    "approval_requested": (
        ApprovalRequested("c1", "f", "{broken", "leaves the workspace"),
        {"call": "c1", "name": "f", "arguments": "{broken", "reason": "leaves the workspace"},
    ),
    "notice": (Notice("HINT", "try this"), {"code": "HINT", "message": "try this"}),
    "compacted": (Compacted(900, 100), {"before_tokens": 900, "after_tokens": 100}),
    "plan_changed": (PlanChanged(PLAN), {"plan": {"id": "plan-1", "title": "t", "steps": [PLAN_STEP_JSON]}}),
    "run_finished": (
        RunFinished("failed", "", ERROR, USAGE, None, 3, 4, None),
        {
            "stop_reason": "failed",
            "answer": "",
            "error": ERROR,
            "usage": USAGE_JSON,
            "cost_usd": None,
            "steps": 3,
            "requests": 4,
            "session": None,
        },
    ),
}


def recorded(event: Event, time: float = 1_700_000_000.25) -> dict[str, Any]:
    return EventRecord(7, time, "run-1", "span-1", "span-0", event).to_json()


@pytest.mark.parametrize(("kind", "event", "own"), [(kind, *case) for kind, case in CONTRACT.items()], ids=CONTRACT)
def test_an_event_has_exactly_the_fields_of_the_contract(kind: str, event: Event, own: dict[str, Any]) -> None:
    data = recorded(event)
    assert data == {
        "type": kind,
        "seq": 7,
        "time": "2023-11-14T22:13:20.250Z",
        "run": "run-1",
        "span": "span-1",
        "parent": "span-0",
        **own,
    }
    assert json.loads(json.dumps(data)) == data


def test_the_contract_names_every_event() -> None:
    assert {type(event) for event, _ in CONTRACT.values()} == set(get_args(Event))
    assert [event.type for event in get_args(Event)] == list(CONTRACT)


def test_a_frozen_value_is_written_as_plain_json() -> None:
    data = recorded(ToolStarted("c1", "f", freeze_json({"files": ["a", {"b": [1]}]})))
    assert json.loads(json.dumps(data))["arguments"] == {"files": ["a", {"b": [1]}]}


def test_the_json_form_is_detached_from_the_event() -> None:
    event = ToolStarted("c1", "f", {"files": ["a"]})
    recorded(event)["arguments"]["files"].append("b")
    assert event.arguments == {"files": ["a"]}


@pytest.mark.parametrize(
    ("time", "written"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000.0, "2023-11-14T22:13:20.000Z"),
        (1_735_689_599.5, "2024-12-31T23:59:59.500Z"),
    ],
)
def test_time_is_utc_with_milliseconds(time: float, written: str) -> None:
    assert recorded(Notice("HINT", "x"), time)["time"] == written


def test_an_event_of_the_run_itself_has_no_parent() -> None:
    assert EventRecord(1, 0.0, "run-1", "span-1", None, Notice("HINT", "x")).to_json()["parent"] is None
