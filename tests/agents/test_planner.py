"""The planner alone: what it makes of good, odd and useless replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.agents.planner import EXAMPLE, STEPS_SCHEMA, PlannerAgent
from app.llm.adapters.scripted import ScriptedAdapter, Turn, call, fail, say
from app.prompts import Prompts
from app.schema.errors import LLMError, TokenLimitExceeded
from app.schema.event import EventRecord
from app.schema.plan import Plan, PlanStep
from app.schema.run import RunContext
from app.schema.usage import Ledger
from app.tools.planning import parse_steps
from tests.agents.rig import Rig, assert_valid, notices

MANUS = {"manus": "does things"}
TEAM = {"manus": "does things", "data_analysis": "analyses data", "agent_0": "counts"}


def create(*steps: Any, title: str = "Plan") -> Turn:
    return call("planning", {"command": "create", "title": title, "steps": list(steps)})


def planner(rig: Rig, turns: Any) -> tuple[PlannerAgent, ScriptedAdapter]:
    llm, model = rig.scripted_llm(turns)
    return PlannerAgent(llm=llm, prompts=Prompts()), model


async def test_a_plan_is_asked_for_once_through_the_planning_tool(
    rig: Rig, ctx: RunContext, events: list[EventRecord]
) -> None:
    agent, model = planner(rig, [create("a", "b", title="Two")])
    plan = await agent.make_plan("the task", MANUS, ctx)
    assert (plan.title, [step.text for step in plan.steps]) == ("Two", ["a", "b"])
    request = model.requests[0]
    assert (request.purpose, request.tool_choice, [tool.name for tool in request.tools]) == (
        "plan",
        "required",
        ["planning"],
    )
    assert "the task" in request.messages[0].text
    assert notices(events, "LLM_CHOSEN") == ["planner uses [llm]: model scripted at test"]
    assert_valid(agent.memory.messages)


async def test_132_the_agents_are_listed_once_and_choice_is_mentioned_only_if_there_is_one(
    rig: Rig, ctx: RunContext
) -> None:
    agent, model = planner(rig, [create("a"), create("a")])
    await agent.make_plan("t", TEAM, ctx)
    await agent.make_plan("t", MANUS, ctx)
    many, one = (request.system for request in model.requests)
    assert many.count("- data_analysis: analyses data") == many.count("analyses data") == 1
    assert "`agent` field" in many
    assert "- manus: does things" in one
    assert "`agent` field" not in one


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        ("[Data_Analysis] look at it", "data_analysis"),
        ("[data-analysis] look at it", "data_analysis"),
        ("[agent_0] count", "agent_0"),
        ("[MANUS] write", "manus"),
        ("see [A1], then [MANUS] write", "manus"),
        ("see [A1] and write", None),
    ],
)
async def test_f4_126_tags_find_their_agent(
    rig: Rig, ctx: RunContext, events: list[EventRecord], text: str, agent: str | None
) -> None:
    maker, _ = planner(rig, [create(text)])
    plan = await maker.make_plan("t", TEAM, ctx)
    assert plan.steps[0].agent == agent
    assert notices(events, "PLAN") == []


async def test_f4_an_unknown_agent_is_told_and_left_to_the_default(
    rig: Rig, ctx: RunContext, events: list[EventRecord]
) -> None:
    maker, _ = planner(rig, [create("[unknown] fly", {"text": "swim", "agent": "fish"})])
    plan = await maker.make_plan("t", TEAM, ctx)
    assert [step.agent for step in plan.steps] == [None, None]
    assert [message.split("'")[1] for message in notices(events, "PLAN")] == ["unknown", "fish"]


USELESS = {
    "text only": say("I cannot plan this"),
    "broken json": call("planning", '{"command": "create", "steps": [{"agent": "web", "id": "1" "task": "x"}'),
    "truncated json": call("planning", '{"command": "create", "steps": [{"agent": "web", "task": "Search'),
    "cut by the limit": Turn(calls=(("planning", '{"command": "cre'),), finish="max-tokens"),
    "no steps": create(),
    "another command": call("planning", {"command": "get"}),
    "another tool": call("bash", {"command": "ls"}),
}


@pytest.mark.parametrize("useless", USELESS.values(), ids=USELESS.keys())
async def test_f5_127_b149_b151_one_repair_then_one_step_and_the_user_is_told(
    rig: Rig, ctx: RunContext, events: list[EventRecord], useless: Turn
) -> None:
    maker, model = planner(rig, [useless, create("mended")])
    assert [step.text for step in (await maker.make_plan("t", MANUS, ctx)).steps] == ["mended"]
    assert "no usable plan" in model.requests[1].messages[-1].text
    assert notices(events, "PLAN") == []
    assert_valid(model.requests[1].messages)

    maker, model = planner(rig, [useless, useless])
    plan = await maker.make_plan("Do this.\nAnd that.", MANUS, ctx)
    assert (plan.title, [step.text for step in plan.steps]) == ("Do this.", ["Do this.\nAnd that."])
    assert notices(events, "PLAN") == ["the planner gave no usable plan; the task is done as one step"]
    model.assert_finished()


async def test_a_cut_plan_is_named_as_cut(rig: Rig, ctx: RunContext) -> None:
    maker, model = planner(rig, [USELESS["cut by the limit"], create("a")])
    await maker.make_plan("t", MANUS, ctx)
    assert "cut by the output limit" in model.requests[1].messages[-1].text


@pytest.mark.parametrize("code", ["INVALID_TOOL_CALL", "EMPTY_RESPONSE"])
async def test_a_model_that_makes_no_call_is_bounded(rig: Rig, ctx: RunContext, code: str) -> None:
    maker, _ = planner(rig, lambda _: fail(code))
    plan = await maker.make_plan("t", MANUS, ctx)
    assert [step.text for step in plan.steps] == ["t"]


async def test_other_model_errors_are_raised(rig: Rig, ctx: RunContext) -> None:
    maker, _ = planner(rig, [fail("AUTH", "bad key")])
    with pytest.raises(LLMError, match="bad key"):
        await maker.make_plan("t", MANUS, ctx)
    maker, _ = planner(rig, [create("a")])
    with pytest.raises(TokenLimitExceeded):
        await maker.make_plan("t", MANUS, RunContext(ledger=Ledger(max_tokens=10)))


async def test_f5_127_two_planning_calls_leave_the_plan_as_the_last_one_made_it(rig: Rig, ctx: RunContext) -> None:
    first = ("planning", {"command": "create", "title": "T", "steps": ["a", "b"]})
    second = ("planning", {"command": "update", "steps": ["a", "b", "c"]})
    maker, model = planner(rig, [Turn(calls=(first, second))])
    plan = await maker.make_plan("t", MANUS, ctx)
    assert [step.text for step in plan.steps] == ["a", "b", "c"]
    assert_valid(maker.memory.messages)
    assert len(model.requests) == 1


async def test_f5_a_good_call_beside_a_bad_one_counts(rig: Rig, ctx: RunContext) -> None:
    good = ("planning", {"command": "create", "steps": ["a"]})
    for calls in ((good, ("planning", "{bad")), (("planning", "{bad"), good)):
        maker, _ = planner(rig, [Turn(calls=calls)])
        assert [step.text for step in (await maker.make_plan("t", MANUS, ctx)).steps] == ["a"]


async def test_a_model_cannot_claim_that_steps_are_done(rig: Rig, ctx: RunContext) -> None:
    step = {"text": "a", "status": "completed", "result": "I did it"}
    mark = ("planning", {"command": "mark_step", "step": 1, "status": "completed"})
    turn = Turn(calls=(("planning", {"command": "create", "steps": [step]}), mark))
    maker, _ = planner(rig, [turn])
    plan = await maker.make_plan("t", MANUS, ctx)
    assert [(step.status, step.result) for step in plan.steps] == [("not_started", None)]


async def test_f12_null_needs_numeric_and_doubled_ids_missing_agents(rig: Rig, ctx: RunContext) -> None:
    steps = [
        {"id": 1, "text": "a", "needs": None},
        {"id": 1, "text": "b", "needs": [1]},
        {"task": "c", "depends_on": "1"},
        "d",
    ]
    maker, _ = planner(rig, [create(*steps)])
    plan = await maker.make_plan("t", MANUS, ctx)
    assert [(step.text, step.needs, step.agent) for step in plan.steps] == [
        ("a", (), None),
        ("b", ("1",), None),
        ("c", ("1",), None),
        ("d", (), None),
    ]
    assert len({step.id for step in plan.steps}) == 4


async def test_f12_bare_json_without_a_fence(rig: Rig, ctx: RunContext) -> None:
    bare = json.dumps({"name": "planning", "arguments": {"command": "create", "steps": ["a"]}})
    maker, model = planner(rig, [say(bare)])
    assert [step.text for step in (await maker.make_plan("t", MANUS, ctx)).steps] == ["a"]
    assert len(model.requests) == 1


async def test_needs_in_a_circle_are_cut_back_and_told(rig: Rig, ctx: RunContext, events: list[EventRecord]) -> None:
    steps = [
        {"id": "1", "text": "a"},
        {"id": "2", "text": "b", "needs": ["3"]},
        {"id": "3", "text": "c", "needs": ["2", "1"]},
        {"id": "4", "text": "d", "needs": ["4"]},
    ]
    maker, _ = planner(rig, [create(*steps)])
    plan = await maker.make_plan("t", MANUS, ctx)
    assert [step.needs for step in plan.steps] == [(), (), ("2", "1"), ()]
    assert len(notices(events, "PLAN")) == 1


async def test_needs_that_point_forward_are_kept(rig: Rig, ctx: RunContext) -> None:
    maker, _ = planner(rig, [create({"id": "1", "text": "a", "needs": ["2"]}, {"id": "2", "text": "b"})])
    plan = await maker.make_plan("t", MANUS, ctx)
    assert [step.needs for step in plan.steps] == [("2",), ()]


class TestRevise:
    """Another future after a failure."""

    PLAN = Plan.create("P", [PlanStep("", "a"), PlanStep("", "b"), PlanStep("", "c")])

    @property
    def failed(self) -> Plan:
        return self.PLAN.mark("1", "completed", "A").mark("2", "failed", "no network")

    async def revise(self, rig: Rig, ctx: RunContext, turns: list[Turn]) -> tuple[Plan | None, ScriptedAdapter]:
        maker, model = planner(rig, turns)
        plan = self.failed
        return await maker.revise(plan, plan.step("2"), task="the task", agents=MANUS, ctx=ctx), model

    async def test_the_question_has_task_plan_results_step_and_reason(self, rig: Rig, ctx: RunContext) -> None:
        _, model = await self.revise(rig, ctx, [create("b2")])
        question = model.requests[0].messages[0].text
        assert all(part in question for part in ("the task", "1. [✓] a", "result: A", '"b" failed: no network'))
        assert model.requests[0].tool_choice == "auto"

    async def test_the_past_stays_and_the_future_is_replaced(self, rig: Rig, ctx: RunContext) -> None:
        plan, _ = await self.revise(rig, ctx, [create("b2", "c2")])
        assert plan is not None
        assert plan.id == self.PLAN.id
        assert [(step.text, step.status, step.result) for step in plan.steps] == [
            ("a", "completed", "A"),
            ("b", "failed", "no network"),
            ("b2", "not_started", None),
            ("c2", "not_started", None),
        ]

    async def test_new_needs_keep_their_meaning(self, rig: Rig, ctx: RunContext) -> None:
        steps = [{"id": "1", "text": "b2"}, {"id": "2", "text": "c2", "needs": ["1"]}]
        plan, _ = await self.revise(rig, ctx, [create(*steps)])
        assert plan is not None
        new = plan.steps[2:]
        assert new[1].needs == (new[0].id,)
        assert len({step.id for step in plan.steps}) == 4

    async def test_completed_steps_that_are_listed_again_are_left_out(self, rig: Rig, ctx: RunContext) -> None:
        steps = [{"id": "1", "text": "a"}, {"id": "2", "text": "b2", "needs": ["1"]}]
        plan, _ = await self.revise(rig, ctx, [create(*steps)])
        assert plan is not None
        assert [(step.text, step.needs) for step in plan.steps[2:]] == [("b2", ())]

    async def test_plain_words_mean_that_there_is_no_other_way(
        self, rig: Rig, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        plan, model = await self.revise(rig, ctx, [say("The network is needed.")])
        assert plan is None
        assert len(model.requests) == 1
        assert notices(events, "PLAN") == ["the planner found no other way after the failure: The network is needed."]

    async def test_a_bad_call_is_repaired_once_here_too(self, rig: Rig, ctx: RunContext) -> None:
        plan, model = await self.revise(rig, ctx, [call("planning", "{bad"), create("b2")])
        assert plan is not None
        assert len(model.requests) == 2


async def test_124_the_summary_is_asked_from_the_results(rig: Rig, ctx: RunContext) -> None:
    maker, model = planner(rig, [say("All done.")])
    plan = Plan.create("P", [PlanStep("", "a")]).mark("1", "completed", "wrote x.txt")
    assert await maker.summarise(plan, task="the task", ctx=ctx) == "All done."
    request = model.requests[0]
    assert request.purpose == "summary"
    assert "result: wrote x.txt" in request.messages[0].text
    assert "Use only the results given" in request.system


class TestSmallModels:
    """A very small model fills in a list of sentences instead of calling the tool."""

    def small(self, rig: Rig, turns: list[Turn]) -> tuple[PlannerAgent, ScriptedAdapter]:
        llm, model = rig.scripted_llm(turns, max_tools=5)
        return PlannerAgent(llm=llm, prompts=Prompts()), model

    async def test_the_plan_is_asked_for_by_schema(self, rig: Rig, ctx: RunContext) -> None:
        maker, model = self.small(rig, [say('{"steps": ["write a.txt", "read a.txt"]}')])
        plan = await maker.make_plan("t", MANUS, ctx)
        assert [step.text for step in plan.steps] == ["write a.txt", "read a.txt"]
        request = model.requests[0]
        assert (request.tools, request.response_schema, request.purpose) == ((), STEPS_SCHEMA, "plan")
        assert request.system == Prompts().render("planner/system_small")
        task, steps = EXAMPLE
        assert [message.role for message in request.messages] == ["user", "assistant", "user"]
        assert task in request.messages[0].text
        assert [step.text for step in parse_steps(request.messages[1].text)] == steps
        assert request.messages[2].text.endswith("\nt")

    @pytest.mark.parametrize(
        "turns",
        [[say("no json")], [say('{"steps": [{}]}')], [fail("EMPTY_RESPONSE")] * 6],
        ids=["prose", "no text", "empty"],
    )
    async def test_what_is_no_plan_is_the_task_as_one_step(self, rig: Rig, ctx: RunContext, turns: list[Turn]) -> None:
        maker, _ = self.small(rig, turns)
        assert [step.text for step in (await maker.make_plan("t", MANUS, ctx)).steps] == ["t"]
