"""The planning flow from plan to report: order, hand-over, failures, limits, and an honest answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from app.agents.planner import RESULTS_SHOWN, PlannerAgent
from app.agents.toolcall import ToolCallAgent
from app.flows.planning import RESULT_CHARS, Member, PlanningFlow
from app.llm.adapters.scripted import Turn, call, fail, say
from app.prompts import Prompts
from app.schema.errors import ConfigError, UsageError
from app.schema.event import EventRecord, PlanChanged, RunFinished, RunStarted
from app.schema.message import ImageBlock
from app.schema.plan import Plan
from app.schema.request import ModelRequest
from app.schema.run import RunContext, RunResult
from app.schema.usage import Ledger, Usage
from tests.agents.rig import Mark, Note, notices, types
from tests.flows.conftest import Stage


def create(*steps: Any, title: str = "Plan") -> Turn:
    return call("planning", {"command": "create", "title": title, "steps": list(steps)})


def done(answer: str) -> Turn:
    return call("terminate", {"status": "success", "answer": answer})


def gave_up(answer: str) -> Turn:
    return call("terminate", {"status": "failure", "answer": answer})


def step_of(request: ModelRequest) -> str:
    """The step that a worker was asked to do."""
    return request.messages[0].text.split("in a few words:\n")[1].splitlines()[0]


def plans(events: list[EventRecord]) -> list[Plan]:
    return [record.event.plan for record in events if isinstance(record.event, PlanChanged) and record.parent is None]


def statuses(events: list[EventRecord]) -> list[str]:
    """The marks of the last plan."""
    return [step.status for step in plans(events)[-1].steps]


def code(result: RunResult) -> str:
    return result.error.code if result.error else ""


async def test_a_plan_is_done_in_order_and_reported(stage: Stage, ctx: RunContext, events: list[EventRecord]) -> None:
    flow = stage.flow([create("first", "second"), say("Both done.")], [done("one"), say("two")])
    result = await flow.run("the task", ctx)
    assert (result.stop_reason, result.answer, result.exit_code, result.error) == ("finished", "Both done.", 0, None)
    assert (result.steps, result.requests, result.usage.total) == (2, 4, 60)
    assert [step_of(request) for request in stage.worker.requests] == ["first", "second"]
    assert statuses(events) == ["completed", "completed"]
    assert [[step.status for step in plan.steps] for plan in plans(events)] == [
        ["not_started", "not_started"],
        ["in_progress", "not_started"],
        ["completed", "not_started"],
        ["completed", "in_progress"],
        ["completed", "completed"],
    ]
    assert types(events)[0] == "run_started"
    assert types(events).count("run_started") == types(events).count("run_finished") == 1
    started, finished = events[0].event, events[-1].event
    assert isinstance(started, RunStarted)
    assert isinstance(finished, RunFinished)
    assert (started.agent, finished.answer, finished.steps) == ("flow", "Both done.", 2)


async def test_128_129_each_step_sees_the_task_earlier_results_and_nothing_else(stage: Stage) -> None:
    checked = {"text": "second", "check": "the file exists"}
    flow = stage.flow([create("first", checked), say("ok")], [done("the number is 42"), done("used it")])
    await flow.run("the whole task")
    first, second = (request.messages for request in stage.worker.requests)
    assert len(first) == len(second) == 1
    assert "the whole task" in first[0].text
    assert "Results of earlier steps" not in first[0].text
    assert "- first: the number is 42" in second[0].text
    assert "the whole task" in second[0].text
    assert "It is done when: the file exists" in second[0].text
    assert "result: the number is 42" in stage.planner.requests[1].messages[0].text


async def test_a_long_result_is_handed_on_short(stage: Stage) -> None:
    flow = stage.flow([create("a", "b"), say("ok")], [done("x" * 5000), done("y")])
    await flow.run("t")
    handed = stage.worker.requests[1].messages[0].text
    assert handed.count("x") <= RESULT_CHARS + 1
    assert "x…" in handed


async def test_the_results_of_a_long_plan_are_bounded_together(stage: Stage) -> None:
    steps = [f"step {number}" for number in range(30)]
    flow = stage.flow([create(*steps), say("ok")], lambda _: done("x" * 1_900))
    assert (await flow.run("t")).stop_reason == "finished"
    assert max(len(request.messages[0].text) for request in stage.worker.requests) < RESULTS_SHOWN + 2_000
    assert len(stage.planner.requests[-1].messages[0].text) < RESULTS_SHOWN + 2_000


async def test_131_one_step_needs_no_summary(stage: Stage) -> None:
    flow = stage.flow([create("all of it")], [done("the answer")])
    assert (await flow.run("t")).answer == "the answer"
    assert len(stage.planner.requests) == 1


async def test_a_very_small_planner_writes_no_summary(stage: Stage) -> None:
    flow = stage.flow([say('{"steps": ["a", "b"]}')], lambda _: done("r"))
    flow.planner.llm.facts = replace(flow.planner.llm.facts, max_tools=5)
    result = await flow.run("t")
    assert (result.stop_reason, result.answer) == ("finished", "2 of 2 steps are done.\n[✓] a: r\n[✓] b: r")


async def test_f7_every_step_has_a_fresh_agent_with_the_full_allowance(stage: Stage) -> None:
    stage.tools = (Note(),)
    work = [call("note", {"text": "a"}), call("note", {"text": "b"}), done("ok")]
    flow = stage.flow([create("1st", "2nd", "3rd"), say("ok")], work * 3, max_steps=3)
    result = await flow.run("t")
    assert (result.stop_reason, result.steps) == ("finished", 9)
    assert stage.made == stage.closed == ["manus"] * 3


async def test_images_are_shown_to_every_step(stage: Stage) -> None:
    image = ImageBlock("aGk=", "image/png")
    flow = stage.flow([create("a", "b"), say("ok")], [done("1"), done("2")])
    await flow.run("what is this?", images=iter([image]))
    assert [request.messages[0].content[1] for request in stage.worker.requests] == [image, image]


async def test_steps_go_to_the_agents_they_name(stage: Stage, ctx: RunContext, events: list[EventRecord]) -> None:
    plan = create("[Data-Analysis] look", "write", {"text": "count", "agent": "agent_0"}, "[nobody] fly")
    team = ("manus", "data_analysis", "agent_0")
    flow = stage.flow([plan, say("ok")], lambda _: done("ok"), team=team)
    await flow.run("t", ctx)
    assert stage.made == ["data_analysis", "manus", "agent_0", "manus"]
    assert [message for message in notices(events, "PLAN") if "'nobody'" in message]


@pytest.mark.parametrize("task", ["", " \n"])
async def test_f9_a_blank_task_is_a_usage_error(
    stage: Stage, task: str, ctx: RunContext, events: list[EventRecord]
) -> None:
    with pytest.raises(UsageError):
        await stage.flow([], []).run(task, ctx)
    assert events == []


def test_a_flow_needs_an_agent(stage: Stage) -> None:
    with pytest.raises(UsageError):
        stage.flow([], [], team=())


class TestFailures:
    """Attempts, another plan, and what is said when nothing helps."""

    async def test_121_a_failed_step_is_tried_again_with_the_reason(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        flow = stage.flow([create("fetch")], [gave_up("no network"), done("got it")])
        result = await flow.run("t", ctx)
        assert (result.stop_reason, result.answer) == ("finished", "got it")
        assert "An earlier attempt failed: no network" in stage.worker.requests[1].messages[0].text
        assert notices(events, "PLAN") == ["fetch: no network; it is tried again"]

    async def test_f2_122_two_attempts_then_another_plan(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        working = [done("A"), gave_up("no"), gave_up("no"), done("B2")]
        flow = stage.flow([create("a", "b", "c"), create("b2"), say("Done another way.")], working)
        result = await flow.run("t", ctx)
        assert (result.stop_reason, result.answer, result.exit_code) == ("finished", "Done another way.", 0)
        assert [step_of(request) for request in stage.worker.requests] == ["a", "b", "b", "b2"]
        last = plans(events)[-1]
        assert [(step.text, step.status) for step in last.steps] == [("a", "completed"), ("b2", "completed")]
        assert {plan.id for plan in plans(events)} == {last.id}
        assert "the plan was changed after a failed step: b" in notices(events, "PLAN")

    async def test_f2_f8_123_what_stays_undone_is_reported_without_a_model(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        working = [done("A"), *[gave_up("no")] * 4]
        flow = stage.flow([create("a", "b", "c"), create("b2", "c")], working)
        result = await flow.run("t", ctx)
        assert (result.stop_reason, result.exit_code, code(result)) == ("failed", 1, "PLAN_INCOMPLETE")
        assert result.answer.splitlines() == ["1 of 3 steps are done.", "[✓] a: A", "[✗] b2: no", "[!] c: not reached"]
        assert statuses(events) == ["completed", "failed", "blocked"]
        assert result.error is not None
        assert result.error.message == "2 of 3 steps are not done: b2 (no); c (not reached)"
        stage.planner.assert_finished()

    async def test_a_planner_that_sees_no_other_way_ends_the_flow(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        flow = stage.flow([create("a", "b"), say("Nothing can help.")], [gave_up("no"), gave_up("no")])
        result = await flow.run("t", ctx)
        assert (result.stop_reason, code(result)) == ("failed", "PLAN_INCOMPLETE")
        assert result.answer.splitlines() == ["0 of 2 steps are done.", "[✗] a: no", "[!] b: not reached"]
        assert "the planner found no other way after the failure: Nothing can help." in notices(events, "PLAN")

    async def test_f3_120_a_step_limit_is_a_failure_with_its_reason(self, stage: Stage) -> None:
        stage.tools = (Note(),)
        flow = stage.flow(
            [create("a"), say("no")], [call("note", {"text": str(n)}) for n in range(4)], max_steps=2, max_replans=1
        )
        result = await flow.run("t")
        assert result.stop_reason == "failed"
        assert result.answer.splitlines()[1] == "[✗] a: manus did not finish within 2 steps"

    async def test_attempts_and_plans_are_bounded_by_their_settings(self, stage: Stage) -> None:
        flow = stage.flow([create("a")], lambda _: gave_up("no"), max_attempts=3, max_replans=0)
        await flow.run("t")
        assert (len(stage.worker.requests), len(stage.planner.requests)) == (3, 1)

    async def test_a_model_error_of_a_step_is_tried_again(self, stage: Stage) -> None:
        flow = stage.flow([create("a")], [fail("CONTEXT_WINDOW_EXCEEDED", "too long"), done("ok")])
        assert (await flow.run("t")).answer == "ok"

    @pytest.mark.parametrize("error_code", ["AUTH", "QUOTA", "UNKNOWN_MODEL"])
    async def test_what_only_the_user_can_mend_ends_the_flow_at_once(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord], error_code: str
    ) -> None:
        flow = stage.flow([create("a", "b")], [fail(error_code, "no such key", hint="set api_key")])
        result = await flow.run("t", ctx)
        assert (result.stop_reason, code(result), result.exit_code) == ("failed", error_code, 1)
        assert result.error is not None
        assert result.error.hint == "set api_key"
        assert statuses(events) == ["failed", "blocked"]
        assert result.answer.splitlines()[-1] == "Stopped: no such key"
        assert (len(stage.worker.requests), len(stage.planner.requests)) == (1, 1)

    async def test_a_planner_without_access_fails_the_flow(self, stage: Stage) -> None:
        result = await stage.flow([fail("AUTH", "bad key")], []).run("t")
        assert (result.stop_reason, code(result), result.answer) == ("failed", "AUTH", "Stopped: bad key")

    async def test_f5_b149_no_usable_plan_makes_the_task_the_only_step(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        flow = stage.flow([say("I cannot plan this")] * 2, [done("did it")])
        result = await flow.run("the task", ctx)
        assert (result.answer, step_of(stage.worker.requests[0])) == ("did it", "the task")
        assert notices(events, "PLAN") == ["the planner gave no usable plan; the task is done as one step"]

    async def test_an_agent_that_cannot_be_made_fails_the_flow(self, stage: Stage) -> None:
        def make() -> Any:
            raise ConfigError("there is no [llm.x]")

        llm, _ = stage.rig.scripted_llm([create("a")])
        planner = PlannerAgent(llm=llm, prompts=Prompts())
        flow = PlanningFlow(planner=planner, team={"x": Member("x", make)}, prompts=Prompts())
        result = await flow.run("t")
        assert (result.stop_reason, code(result)) == ("failed", "CONFIG")
        assert result.answer.splitlines()[-1] == "Stopped: there is no [llm.x]"

    async def test_a_program_fault_is_raised_and_the_agent_is_closed(self, stage: Stage) -> None:
        def sink(record: EventRecord) -> None:
            if record.event.type == "step_started":
                raise RuntimeError("the view broke")

        flow = stage.flow([create("a")], [done("x")])
        with pytest.raises(RuntimeError, match="the view broke"):
            await flow.run("t", RunContext(sink=sink))
        assert stage.closed == ["manus"]


class TestLimits:
    """Budget, time and the stop request, at every stage."""

    async def test_f6_125_the_budget_ends_inside_step_two(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        stage.tools = (Note(),)
        spends = call("note", {"text": "b"}, usage=Usage(input_tokens=5700, output_tokens=10))
        flow = stage.flow([create("a", "b", "c")], [done("A"), spends])
        ctx.ledger = Ledger(max_tokens=6000)
        result = await flow.run("t", ctx)
        assert (result.stop_reason, result.exit_code, code(result)) == ("budget", 3, "TOKEN_LIMIT")
        lines = result.answer.splitlines()
        assert lines[:2] == ["1 of 3 steps are done.", "[✓] a: A"]
        assert lines[2].startswith("[!] b: the run may spend 6000 tokens; 5740 are spent")
        assert lines[3] == "[!] c: not reached"
        assert lines[4].startswith("Stopped: the run may spend 6000 tokens")
        assert statuses(events) == ["completed", "blocked", "blocked"]
        assert len(stage.planner.requests) == 1

    async def test_the_budget_ends_in_planning(self, stage: Stage, ctx: RunContext) -> None:
        ctx.ledger = Ledger(max_tokens=10)
        result = await stage.flow([create("a")], []).run("t", ctx)
        assert (result.stop_reason, result.steps) == ("budget", 0)
        assert result.answer.startswith("Stopped: the run may spend 10 tokens")

    async def test_the_budget_ends_in_the_summary(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        ctx.ledger = Ledger(max_tokens=20_000)
        spends = call("terminate", {"status": "success", "answer": "B"}, usage=Usage(input_tokens=19_900))
        result = await stage.flow([create("a", "b")], [done("A"), spends]).run("t", ctx)
        assert (result.stop_reason, result.exit_code, result.error) == ("finished", 0, None)
        assert result.answer.splitlines() == ["2 of 2 steps are done.", "[✓] a: A", "[✓] b: B"]
        assert len([text for text in notices(events, "PLAN") if "summary could not be written" in text]) == 1

    async def test_a_failed_summary_gives_the_results_as_they_are(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        result = await stage.flow([create("a", "b"), fail("AUTH", "no")], lambda _: done("r")).run("t", ctx)
        assert (result.stop_reason, result.answer) == ("finished", "2 of 2 steps are done.\n[✓] a: r\n[✓] b: r")
        assert notices(events, "PLAN") == ["the summary could not be written (no); the results follow as they are"]

    async def test_one_hour_is_the_default_limit_and_the_context_keeps_its_own(
        self, stage: Stage, ctx: RunContext
    ) -> None:
        seen: list[float | None] = []

        class Look(Note):
            name = "look"

            async def run(self, args: Any, ctx: RunContext) -> Any:
                seen.append(ctx.deadline)
                return "ok"

        stage.tools = (Look(),)
        flow = stage.flow([create("a"), create("b")], [call("look"), done("1"), call("look"), done("2")])
        await flow.run("t", ctx)
        assert ctx.deadline is None
        nearer = ctx.deadline = time.monotonic() + 60
        await flow.run("t", ctx)
        assert seen[0] is not None
        assert 3590 < seen[0] - time.monotonic() <= 3600
        assert seen[1] == nearer

    async def test_the_time_limit_ends_a_step(self, stage: Stage, ctx: RunContext, events: list[EventRecord]) -> None:
        stage.tools = (Mark(seconds=5),)
        flow = stage.flow([create("a", "b")], [call("mark", {"text": "x"})], timeout_s=0.1)
        result = await flow.run("t", ctx)
        assert (result.stop_reason, result.exit_code, code(result)) == ("time", 3, "TIME")
        assert statuses(events) == ["blocked", "blocked"]
        assert stage.closed == ["manus"]

    async def test_the_time_limit_ends_the_summary_of_a_finished_plan(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        flow = stage.flow([create("a", "b"), say("late", delay_s=5)], lambda _: done("r"), timeout_s=0.15)
        result = await flow.run("t", ctx)
        assert (result.stop_reason, result.answer) == ("finished", "2 of 2 steps are done.\n[✓] a: r\n[✓] b: r")
        assert notices(events, "PLAN") == ["the time limit came before the summary; the results follow as they are"]

    async def stop(
        self, flow: PlanningFlow, ctx: RunContext, stage: Stage, planner: int, worker: int
    ) -> tuple[RunResult, float]:
        """Ask for a stop when the models have been asked this often."""
        run = asyncio.ensure_future(flow.run("t", ctx))
        async with asyncio.timeout(5):
            while (len(stage.planner.requests), len(stage.worker.requests)) < (planner, worker):
                await asyncio.sleep(0.002)
        asked = time.monotonic()
        ctx.cancel.cancel("SIGTERM")
        result = await run
        return result, time.monotonic() - asked

    async def test_stop_while_planning(self, stage: Stage, ctx: RunContext) -> None:
        flow = stage.flow([say("", delay_s=5)], [])
        result, seconds = await self.stop(flow, ctx, stage, 1, 0)
        assert (result.stop_reason, result.exit_code, result.cause) == ("cancelled", 143, "SIGTERM")
        assert (result.answer, code(result)) == ("Stopped: the run was interrupted", "ABORTED")
        assert seconds < 0.2

    async def test_stop_in_a_step(self, stage: Stage, ctx: RunContext, events: list[EventRecord]) -> None:
        flow = stage.flow([create("a", "b", "c")], [done("A"), say("", delay_s=5)])
        result, seconds = await self.stop(flow, ctx, stage, 1, 2)
        assert (result.stop_reason, result.exit_code) == ("cancelled", 143)
        assert result.answer.splitlines() == [
            "1 of 3 steps are done.",
            "[✓] a: A",
            "[!] b: the run was interrupted",
            "[!] c: not reached",
            "Stopped: the run was interrupted",
        ]
        assert seconds < 0.2
        assert stage.closed == ["manus", "manus"]
        assert events[-1].event.type == "run_finished"

    async def test_stop_in_the_summary(self, stage: Stage, ctx: RunContext) -> None:
        flow = stage.flow([create("a", "b"), say("", delay_s=5)], lambda _: done("r"))
        result, seconds = await self.stop(flow, ctx, stage, 2, 0)
        assert (result.stop_reason, seconds < 0.2) == ("cancelled", True)
        assert result.answer.splitlines()[0] == "2 of 2 steps are done."

    async def test_stop_while_planning_anew(self, stage: Stage, ctx: RunContext) -> None:
        flow = stage.flow([create("a"), say("", delay_s=5)], lambda _: gave_up("no"))
        result, seconds = await self.stop(flow, ctx, stage, 2, 0)
        assert (result.stop_reason, seconds < 0.2) == ("cancelled", True)
        assert result.answer.splitlines()[1] == "[✗] a: no"

    async def test_a_stop_that_comes_with_the_last_steps_end_asks_for_no_summary(self, stage: Stage) -> None:
        ctx = RunContext()

        def sink(record: EventRecord) -> None:
            # The agent is done and hands up its result; the stop request finds it with nothing left to cut off.
            if isinstance(record.event, PlanChanged) and record.event.plan.complete:
                ctx.cancel.cancel()

        ctx.sink = sink
        flow = stage.flow([create("a", "b"), say("not asked for")], lambda _: done("r"))
        result = await flow.run("t", ctx)
        assert result.stop_reason == "cancelled"
        assert len(stage.planner.requests) == 1

    async def test_a_stop_in_the_last_moment_of_an_agent_asks_for_no_summary(
        self, stage: Stage, ctx: RunContext
    ) -> None:
        class Late(ToolCallAgent):
            async def run(self, task: str, ctx: RunContext | None = None, *, images: Any = ()) -> RunResult:
                result = await super().run(task, ctx, images=images)
                if ctx is not None and "second" in task:
                    ctx.cancel.cancel()
                return result

        flow = stage.flow([create("a", "second")], [])
        llm, _ = stage.rig.scripted_llm(lambda _: say("r"))
        flow.team["manus"] = Member("late", lambda: Late("late", llm=llm, toolbox=stage.rig.toolbox()))
        result = await flow.run("t", ctx)
        assert (result.stop_reason, result.exit_code) == ("cancelled", 130)
        assert len(stage.planner.requests) == 1

    async def test_cancelling_the_surrounding_task_cancels_and_closes(self, stage: Stage, ctx: RunContext) -> None:
        run = asyncio.ensure_future(stage.flow([create("a")], [say("", delay_s=5)]).run("t", ctx))
        while not stage.worker.requests:
            await asyncio.sleep(0.002)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert stage.closed == ["manus"]


class TestParallel:
    """Steps side by side, as far as they say what they need."""

    STEPS = (
        {"id": "1", "text": "a"},
        {"id": "2", "text": "b"},
        {"id": "3", "text": "c", "needs": ["1", "2"]},
    )

    def script(self, stage: Stage, **seconds: float) -> Any:
        """A worker that takes its seconds for each step; `log` says what began and ended."""
        self.log: list[str] = []
        stage.tools = (note := Note(**seconds),)
        self.log = note.log

        def turn(request: ModelRequest) -> Turn:
            step = step_of(request)
            return call("note", {"text": step}) if len(request.messages) == 1 else done(f"did {step}")

        return turn

    async def test_steps_without_needs_run_side_by_side_and_the_rest_waits(self, stage: Stage) -> None:
        flow = stage.flow([create(*self.STEPS), say("ok")], self.script(stage, a=0.02, b=0.02), parallel=2)
        assert (await flow.run("t")).stop_reason == "finished"
        assert self.log[:2] == ["+a", "+b"]
        assert self.log[4:] == ["+c", "-c"]
        third = next(request for request in stage.worker.requests if step_of(request) == "c")
        assert "- a: did a" in third.messages[0].text
        assert "- b: did b" in third.messages[0].text

    async def test_a_step_starts_as_soon_as_its_own_needs_are_met(self, stage: Stage) -> None:
        steps = ({"id": "1", "text": "a"}, {"id": "2", "text": "b"}, {"id": "3", "text": "c", "needs": ["1"]})
        flow = stage.flow([create(*steps), say("ok")], self.script(stage, a=0.0, b=0.1), parallel=3)
        await flow.run("t")
        assert self.log.index("+c") < self.log.index("-b")

    @pytest.mark.parametrize(("parallel", "steps"), [(1, STEPS), (3, ("a", "b", "c"))])
    async def test_one_at_a_time_without_leave_or_without_needs(self, stage: Stage, parallel: int, steps: Any) -> None:
        flow = stage.flow([create(*steps), say("ok")], self.script(stage), parallel=parallel)
        await flow.run("t")
        assert self.log == ["+a", "-a", "+b", "-b", "+c", "-c"]

    async def test_the_planner_is_told_only_when_steps_may_run_side_by_side(self, stage: Stage) -> None:
        for parallel in (1, 2):
            flow = stage.flow([create("a")], lambda _: done("ok"), parallel=parallel)
            await flow.run("t")
            assert ("side by side" in stage.planner.requests[0].system) is (parallel > 1)

    async def test_never_more_than_allowed_at_once(self, stage: Stage) -> None:
        steps = [*({"id": str(n), "text": f"s{n}"} for n in range(6)), {"id": "x", "text": "x", "needs": ["0"]}]
        flow = stage.flow([create(*steps), say("ok")], self.script(stage), parallel=2)
        await flow.run("t")
        running = most = 0
        for line in self.log:
            running += 1 if line.startswith("+") else -1
            most = max(most, running)
        assert most <= 2
        assert len(self.log) == 14

    async def test_what_does_not_need_the_failed_step_is_still_done(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        steps = (
            {"id": "1", "text": "a"},
            {"id": "2", "text": "b", "needs": ["1"]},
            {"id": "3", "text": "c"},
        )

        def work(request: ModelRequest) -> Turn:
            return gave_up("no") if step_of(request) == "a" else done("ok")

        flow = stage.flow([create(*steps)], work, max_replans=0)
        result = await flow.run("t", ctx)
        assert result.stop_reason == "failed"
        assert statuses(events) == ["failed", "blocked", "completed"]

    async def test_a_halt_in_one_of_two_ends_both(
        self, stage: Stage, ctx: RunContext, events: list[EventRecord]
    ) -> None:
        stage.tools = (Mark(seconds=5),)
        flow = stage.flow([create(*self.STEPS)], lambda _: call("mark", {"text": "x"}), parallel=2)
        run = asyncio.ensure_future(flow.run("t", ctx))
        while types(events).count("tool_started") < 3:
            await asyncio.sleep(0.002)
        ctx.cancel.cancel()
        result = await run
        assert result.stop_reason == "cancelled"
        assert statuses(events) == ["blocked"] * 3
        assert stage.closed == ["manus"] * 2


async def test_a_nested_flow_opens_and_closes_no_run(stage: Stage, ctx: RunContext, events: list[EventRecord]) -> None:
    await stage.flow([create("a")], [done("ok")]).run("t", ctx.child())
    assert not {"run_started", "run_finished"} & set(types(events))


async def test_models_are_announced_once_each(stage: Stage, ctx: RunContext, events: list[EventRecord]) -> None:
    await stage.flow([create("a", "b"), say("ok")], lambda _: done("ok")).run("t", ctx)
    assert notices(events, "LLM_CHOSEN") == [
        "planner uses [llm]: model scripted at test",
        "manus uses [llm]: model scripted at test",
    ]


async def test_130_plan_ids_are_unique(stage: Stage, ctx: RunContext, events: list[EventRecord]) -> None:
    for _ in range(2):
        await stage.flow([create("a")], [done("ok")]).run("t", ctx)
    assert len({plan.id for plan in plans(events)}) == 2
