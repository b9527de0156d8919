"""The loop on a scripted model: how replies become steps, results and an end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tenacity import AsyncRetrying, stop_after_attempt, wait_none

from app.agents.react import Ending
from app.agents.toolcall import ANSWER_NEEDED, CALL_NEEDED, CUT, LAST_CALL, LAST_STEP, ToolCallAgent
from app.llm.adapters.scripted import Turn, call, fail, say
from app.schema.errors import LLMError, TokenLimitExceeded, UsageError
from app.schema.event import EventRecord, ModelReplied, RunFinished, RunStarted, StepStarted
from app.schema.message import ImageBlock, PluginSource, ToolCallBlock
from app.schema.run import RunContext
from app.schema.usage import Ledger, Usage
from app.tools.toolbox import Starting
from tests.agents.rig import Mark, Note, Rig, assert_valid, notices, results, types


def hint_of(request: object) -> str:
    """The text that rides at the tail of one request, "" when there is none."""
    last = request.messages[-1]  # pyright: ignore
    return last.text if last.source == PluginSource("hint") else ""


async def test_m7_plain_text_ends_the_run_after_one_request(
    rig: Rig, ctx: RunContext, events: list[EventRecord]
) -> None:
    agent, model = rig.scripted([say("The answer is 4")])
    result = await agent.run("2+2", ctx)
    assert (result.stop_reason, result.answer, result.steps, result.requests) == ("answered", "The answer is 4", 1, 1)
    assert result.exit_code == 0
    model.assert_finished()


async def test_l01_order_of_events(rig: Rig, ctx: RunContext, events: list[EventRecord]) -> None:
    agent, _ = rig.scripted([say("done")])
    await agent.run("go", ctx)
    assert types(events) == [
        "run_started",
        "notice",
        "step_started",
        "text_delta",
        "model_replied",
        "run_finished",
    ]
    started, finished = events[0].event, events[-1].event
    assert isinstance(started, RunStarted)
    assert isinstance(finished, RunFinished)
    assert (started.task, started.agent) == ("go", "tester")
    assert (finished.stop_reason, finished.answer, finished.error) == ("answered", "done", None)


async def test_l02_call_then_text_gives_two_steps_with_the_result_between(rig: Rig) -> None:
    agent, model = rig.scripted([call("bash", {"command": "echo hello"}), say("It said hello.")])
    result = await agent.run("say hello")
    assert (result.stop_reason, result.steps) == ("answered", 2)
    assert [message.role for message in agent.memory.messages] == ["user", "assistant", "user", "assistant"]
    assert "hello" in results(agent)[0]
    assert model.requests[1].messages == agent.memory.messages[:3]


async def test_l04_empty_broken_and_unknown_calls_are_answered_and_the_run_goes_on(rig: Rig) -> None:
    calls = (("note", ""), ("note", "{bad"), ("nope", "{}"))
    agent, _ = rig.scripted([Turn(calls=calls), say("ok")], Note())
    result = await agent.run("go")
    assert result.answer == "ok"
    empty, broken, unknown = results(agent)
    assert empty == "(no output)"
    assert broken.startswith("error: ")
    assert "there is no tool 'nope'" in unknown
    assert_valid(agent.memory.messages)


async def test_m2_m4_python_literals_and_extra_keys_run_once(rig: Rig) -> None:
    turns = [call("note", "{'text': 'a',}"), call("note", {"text": "b", "extra": True}), say("ok")]
    agent, _ = rig.scripted(turns, Note())
    assert (await agent.run("go")).ok
    first, second = results(agent)
    assert first == "a"
    assert second.startswith("b")


@pytest.mark.parametrize(
    ("arguments", "expected"), [("null", "(no output)"), ("", "(no output)"), ('"{\\"text\\": \\"x\\"}"', "x")]
)
async def test_m3_null_empty_and_doubly_encoded_arguments(rig: Rig, arguments: str, expected: str) -> None:
    agent, _ = rig.scripted([call("note", arguments), say("ok")], Note())
    await agent.run("go")
    assert results(agent)[0].startswith(expected)


async def test_m5_unknown_tool_names_the_nearest_and_runs_nothing(rig: Rig) -> None:
    agent, _ = rig.scripted([call("python_executor", {"code": "print(1)"}), say("ok")])
    await agent.run("go")
    assert "Did you mean python_execute?" in results(agent)[0]


async def test_m1_cut_reply_is_continued_once_and_then_works(rig: Rig, ctx: RunContext) -> None:
    cut = Turn(calls=(("str_replace_editor", '{"command": "create", "file_te'),), finish="max-tokens")
    agent, model = rig.scripted([cut, say("short now")])
    result = await agent.run("write much", ctx)
    assert (result.stop_reason, result.answer) == ("answered", "short now")
    assert model.requests[1].messages[-1].text == CUT
    assert agent.memory.open_calls == ()
    assert_valid(agent.memory.messages)


async def test_m1_second_cut_call_is_a_clean_failure(rig: Rig, ctx: RunContext, events: list[EventRecord]) -> None:
    cut = Turn(calls=(("note", '{"text": "'),), finish="max-tokens")
    agent, model = rig.scripted([cut, cut], Note())
    result = await agent.run("write much", ctx)
    assert result.stop_reason == "failed"
    assert result.error is not None
    assert result.error.code == "OUTPUT_LIMIT"
    assert len(notices(events, "OUTPUT_LIMIT")) == 1
    assert len(model.requests) == 2


async def test_cut_text_is_joined_and_a_second_cut_is_delivered(
    rig: Rig, ctx: RunContext, events: list[EventRecord]
) -> None:
    agent, _ = rig.scripted([say("one ", finish="max-tokens"), say("two", finish="max-tokens")])
    result = await agent.run("long", ctx)
    assert (result.stop_reason, result.answer) == ("answered", "one two")
    assert len(notices(events, "OUTPUT_LIMIT")) == 1
    agent, _ = rig.scripted([say("one ", finish="max-tokens"), say("two")])
    assert (await agent.run("long")).answer == "one two"


async def test_a_working_call_forgives_the_cut_before_it(rig: Rig) -> None:
    cut = Turn(calls=(("note", '{"text": "'),), finish="max-tokens")
    agent, model = rig.scripted([cut, call("note", {"text": "a"}), cut, say("ok")], Note())
    assert (await agent.run("go")).answer == "ok"
    model.assert_finished()


async def test_m12_empty_reply_is_not_stored_and_fails_after_limited_retries(rig: Rig) -> None:
    agent, model = rig.scripted(lambda _: Turn())
    result = await agent.run("go")
    assert (result.stop_reason, result.error and result.error.code) == ("failed", "EMPTY_RESPONSE")
    assert 2 <= len(model.requests) <= 6
    assert [message.role for message in agent.memory.messages] == ["user"]


async def test_m15_thinking_without_an_answer_is_reminded_once_and_never_the_answer(rig: Rig) -> None:
    agent, model = rig.scripted([say("<think>hm, 4?"), say("4")])
    result = await agent.run("2+2")
    assert result.answer == "4"
    assert hint_of(model.requests[1]) == ANSWER_NEEDED
    agent, model = rig.scripted([Turn(reasoning="hm"), Turn(reasoning="hm")])
    result = await agent.run("2+2")
    assert (result.stop_reason, result.answer) == ("failed", "")
    assert result.error is not None
    assert result.error.code == "EMPTY_RESPONSE"
    assert len(model.requests) == 2


async def test_m10_terminate_failure_ends_the_run_and_later_calls_are_not_run(rig: Rig) -> None:
    note = Note()
    turn = Turn(calls=(("terminate", {"status": "failure", "answer": "no way"}), ("note", {"text": "x"})))
    agent, model = rig.scripted([turn], note)
    result = await agent.run("go")
    assert (result.stop_reason, result.answer, result.exit_code) == ("failed", "no way", 1)
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("TASK_FAILED", "no way")
    assert results(agent)[1] == "note: not run: the run was ended before it"
    assert note.log == []
    assert len(model.requests) == 1


async def test_calls_before_terminate_run_first(rig: Rig) -> None:
    note = Note()
    turn = Turn(calls=(("note", {"text": "x"}), ("terminate", {"status": "success", "answer": "done"})))
    agent, _ = rig.scripted([turn], note)
    result = await agent.run("go")
    assert (result.stop_reason, result.answer, result.exit_code) == ("finished", "done", 0)
    assert note.log == ["+x", "-x"]
    assert_valid(agent.memory.messages)


async def test_terminate_with_success_after_a_failed_call_of_the_same_reply_is_put_off(rig: Rig) -> None:
    done = ("terminate", {"status": "success", "answer": "all well"})
    turns = [Turn(calls=(("bash", {"command": "exit 3"}), done)), Turn(calls=(done,))]
    agent, model = rig.scripted(turns)
    result = await agent.run("go")
    assert (result.stop_reason, result.answer, result.steps) == ("finished", "all well", 2)
    assert results(agent)[1] == "terminate: not run: an earlier call of this reply failed; look at it first"
    model.assert_finished()


async def test_d01_terminate_without_an_answer_falls_back_to_the_last_words_then_to_the_last_result(rig: Rig) -> None:
    end = ("terminate", {"status": "success"})
    agent, _ = rig.scripted([Turn(text="It is 4.", calls=(("note", {"text": "4"}),)), Turn(calls=(end,))], Note())
    assert (await agent.run("2+2")).answer == "It is 4."
    agent, _ = rig.scripted([call("note", {"text": "4"}), Turn(calls=(end,))], Note())
    assert (await agent.run("2+2")).answer == "4"
    agent, _ = rig.scripted([Turn(calls=(end,))])
    assert (await agent.run("2+2")).answer == ""


async def test_59_required_without_a_call_is_reminded_once_then_fails(rig: Rig) -> None:
    agent, model = rig.scripted([say("I think"), say("still")], tool_choice="required")
    result = await agent.run("go")
    assert (result.stop_reason, result.answer) == ("failed", "still")
    assert result.error is not None
    assert result.error.code == "INVALID_TOOL_CALL"
    assert [hint_of(request) for request in model.requests] == ["", CALL_NEEDED]
    assert [request.tool_choice for request in model.requests] == ["required", "required"]
    agent, _ = rig.scripted(
        [say("I think"), call("terminate", {"status": "success", "answer": "4"})], tool_choice="required"
    )
    assert (await agent.run("go")).answer == "4"


async def test_60_choice_none_takes_the_text_and_drops_the_calls(rig: Rig) -> None:
    note = Note()
    agent, model = rig.scripted([Turn(text="just words", calls=(("note", {}),))], note, tool_choice="none")
    result = await agent.run("go")
    assert (result.stop_reason, result.answer, note.log) == ("answered", "just words", [])
    assert model.requests[0].tool_choice == "none"
    assert agent.memory.messages[-1].tool_calls == ()
    assert_valid(agent.memory.messages)


async def test_46_the_standing_hint_rides_at_the_tail_and_is_never_stored(rig: Rig) -> None:
    agent, model = rig.scripted([call("note", {"text": "a"}), say("ok")], Note(), next_step="What now?")
    await agent.run("go")
    assert [hint_of(request) for request in model.requests] == ["What now?", "What now?"]
    assert all(message.text != "What now?" for message in agent.memory.messages)


async def test_50_b155_every_run_starts_at_step_one_with_the_full_allowance(rig: Rig) -> None:
    script = [call("note", {"text": "a"}), call("note", {"text": "b"}), call("note", {"text": "c"}), say("ok")]
    agent, model = rig.scripted(script, Note(), max_steps=2)
    first = await agent.run("one")
    assert (first.stop_reason, first.steps, first.exit_code) == ("step_limit", 2, 3)
    second = await agent.run("two")
    assert (second.stop_reason, second.answer, second.steps) == ("answered", "ok", 2)
    model.assert_finished()


async def test_70_the_last_step_is_announced(rig: Rig) -> None:
    agent, model = rig.scripted([call("note", {"text": "a"}), say("so far: a")], Note(), max_steps=2)
    assert (await agent.run("go")).answer == "so far: a"
    assert [hint_of(request) for request in model.requests] == ["", LAST_STEP]
    end = call("terminate", {"status": "success"})
    agent, model = rig.scripted([call("note", {"text": "a"}), end], Note(), max_steps=2, tool_choice="required")
    await agent.run("go")
    assert hint_of(model.requests[1]) == LAST_CALL


async def test_step_limit_says_so_and_gives_the_last_words(
    rig: Rig, ctx: RunContext, events: list[EventRecord]
) -> None:
    turns = [Turn(text=f"trying {n}", calls=(("note", {"text": str(n)}),)) for n in range(3)]
    agent, _ = rig.scripted(turns, Note(), max_steps=3)
    result = await agent.run("go", ctx)
    assert (result.stop_reason, result.answer) == ("step_limit", "trying 2")
    assert result.error is not None
    assert result.error.message == "tester did not finish within 3 steps"
    steps = [record.event.step for record in events if isinstance(record.event, StepStarted)]
    assert steps == [1, 2, 3]


async def test_b157_no_steps_allowed_ends_at_once(rig: Rig) -> None:
    agent, model = rig.scripted([], max_steps=0)
    result = await agent.run("go")
    assert (result.stop_reason, result.steps, len(model.requests)) == ("step_limit", 0, 0)


async def test_last_words_are_those_of_this_run(rig: Rig) -> None:
    agent, _ = rig.scripted([say("from the first run"), fail("AUTH", "bad key")])
    await agent.run("one")
    result = await agent.run("two")
    assert (result.stop_reason, result.answer) == ("failed", "")


@pytest.mark.parametrize("task", ["", "  \n\t"])
async def test_a_blank_task_is_a_usage_error(rig: Rig, task: str) -> None:
    agent, _ = rig.scripted([])
    with pytest.raises(UsageError):
        await agent.run(task)
    assert len(agent.memory) == 0


async def test_images_go_along_with_the_task(rig: Rig) -> None:
    agent, model = rig.scripted([say("a cat")])
    image = ImageBlock("aGk=", "image/png")
    await agent.run("what is it?", images=[image])
    assert model.requests[0].messages[0].content[1] == image


async def test_h5_budget_ends_the_run_with_amounts_and_the_next_run_has_its_own(
    rig: Rig, events: list[EventRecord]
) -> None:
    turn = call("note", {"text": "a"}, usage=Usage(input_tokens=300, output_tokens=100))
    agent, model = rig.scripted([turn] * 3 + [say("ok")], Note())
    result = await agent.run("go", RunContext(sink=events.append, ledger=Ledger(max_tokens=1500)))
    assert (result.stop_reason, result.exit_code) == ("budget", 3)
    assert result.error is not None
    assert result.error.code == "TOKEN_LIMIT"
    assert "may spend 1500 tokens; 1200 are spent" in result.error.message
    assert (result.usage.total, len(model.requests)) == (1200, 3)
    second = await agent.run("again", RunContext(ledger=Ledger(max_tokens=1500)))
    assert (second.answer, second.usage.total) == ("ok", 15)
    assert "retrying" not in types(events)


async def test_a_token_limit_inside_tenacitys_retry_error_is_a_graceful_stop(rig: Rig) -> None:
    class Wrapping(ToolCallAgent):
        async def step(self, ctx: RunContext, *, last: bool) -> Ending | None:
            async def ask() -> None:
                raise TokenLimitExceeded("spent")

            await AsyncRetrying(stop=stop_after_attempt(2), wait=wait_none(), reraise=False)(ask)
            raise AssertionError

    llm, _ = rig.scripted_llm([])
    agent = Wrapping("wrapping", llm=llm, toolbox=rig.toolbox())
    result = await agent.run("go")
    assert (result.stop_reason, result.error and result.error.code) == ("budget", "TOKEN_LIMIT")


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        ("CONTEXT_WINDOW_EXCEEDED", "context", 3),
        ("AUTH", "failed", 1),
        ("CONTENT_FILTER", "failed", 1),
        ("REFUSED", "failed", 1),
    ],
)
async def test_model_errors_become_endings(rig: Rig, code: str, reason: str, exit_code: int) -> None:
    agent, model = rig.scripted([fail(code, "no")])
    result = await agent.run("go")
    assert (result.stop_reason, result.exit_code, result.error and result.error.code) == (reason, exit_code, code)
    assert len(model.requests) == 1


async def test_the_time_limit_ends_the_run_with_valid_memory(rig: Rig) -> None:
    agent, _ = rig.scripted([call("note", {"text": "slow"}), say("after")], Note(seconds=5))
    result = await agent.run("go", RunContext(deadline=time.monotonic() + 0.05))
    assert (result.stop_reason, result.exit_code, result.error and result.error.code) == ("time", 3, "TIME")
    assert results(agent) == ["note: interrupted before it gave a result; its outcome is unknown"]
    assert (await agent.run("next")).answer == "after"


async def test_l17_p08_a_failing_listener_raises_on_and_leaves_memory_valid(rig: Rig) -> None:
    def sink(record: EventRecord) -> None:
        if record.event.type == "tool_finished":
            raise RuntimeError("the view broke")

    agent, _ = rig.scripted([call("note", {"text": "a"}), say("ok")], Note())
    with pytest.raises(RuntimeError, match="the view broke"):
        await agent.run("go", RunContext(sink=sink))
    assert_valid(agent.memory.messages)
    assert (await agent.run("again")).answer == "ok"


async def test_l20_a_fault_in_the_dispatch_closes_every_open_call(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: object, block: ToolCallBlock, __: object, *, starting: Starting) -> None:
        await starting(block, "once")
        raise RuntimeError("a bug")

    agent, _ = rig.scripted([Turn(calls=(("mark", {"text": "a"}), ("mark", {"text": "b"}))), say("ok")], Mark())
    with monkeypatch.context() as patch:
        patch.setattr("app.tools.toolbox.Toolbox.call", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            await agent.run("go")
    assert_valid(agent.memory.messages)
    assert results(agent) == [
        "mark: interrupted before it gave a result; its outcome is unknown",
        "mark: not run: the run was interrupted before it",
    ]
    assert (await agent.run("again")).answer == "ok"


async def test_a_time_out_of_a_listener_is_not_the_time_limit(rig: Rig) -> None:
    def sink(record: EventRecord) -> None:
        if record.event.type == "model_replied":
            raise TimeoutError("the view was slow")

    agent, _ = rig.scripted([say("ok")])
    with pytest.raises(TimeoutError, match="the view was slow"):
        await agent.run("go", RunContext(sink=sink))


async def test_m6_same_call_id_twice_is_made_unique_and_every_result_fits(rig: Rig) -> None:
    from app.schema.message import ToolCallBlock, assistant_message

    agent, _ = rig.scripted([say("ok")], Note())
    calls = [ToolCallBlock("c", "note", '{"text": "a"}'), ToolCallBlock("c", "note", '{"text": "b"}')]
    message = agent.memory.add(assistant_message(calls, provider="p", model="m"))
    await agent.act(message.tool_calls, RunContext())
    pairs = [(r.call_id, r.text) for m in agent.memory.messages for r in m.tool_results]
    assert pairs == [("c", "a"), ("c-2", "b")]


async def test_a_nested_run_counts_its_own_requests_and_opens_no_run(
    rig: Rig, ctx: RunContext, events: list[EventRecord]
) -> None:
    agent, _ = rig.scripted([say("ok", usage=Usage(input_tokens=7, output_tokens=3))])
    ctx.ledger.requests = 5
    ctx.ledger.book("other", Usage(input_tokens=100))
    result = await agent.run("go", ctx.child())
    assert (result.requests, result.usage.total, result.cost_usd) == (1, 10, 0.0)
    assert not {"run_started", "run_finished"} & set(types(events))
    assert ctx.ledger.requests == 6


async def test_l03_the_model_is_announced_once_a_run(rig: Rig, ctx: RunContext, events: list[EventRecord]) -> None:
    agent, _ = rig.scripted([call("note", {}), say("ok")], Note(), why_llm="of [llm.tester]")
    await agent.run("go", ctx)
    said = "tester uses [llm]: model scripted at test (because of [llm.tester])"
    assert notices(events, "LLM_CHOSEN") == [said]
    assert notices(events, "CLOUD") == []


async def test_more_tools_than_a_small_model_can_take_are_told(
    rig: Rig, ctx: RunContext, events: list[EventRecord]
) -> None:
    llm, _ = rig.scripted_llm([say("ok")], max_tools=5)
    await rig.agent(llm).run("go", ctx)
    assert notices(events, "HINT") == ["scripted chooses well among 5 tools; tester offers 6"]


async def test_events_of_a_call_carry_what_the_model_reads(
    rig: Rig, ctx: RunContext, events: list[EventRecord]
) -> None:
    agent, _ = rig.scripted([call("note", {"text": "seen"}), say("ok")], Note())
    await agent.run("go", ctx)
    replied = next(record.event for record in events if isinstance(record.event, ModelReplied))
    assert [block.name for block in replied.tool_calls] == ["note"]
    finished = next(record.event for record in events if record.event.type == "tool_finished")
    assert finished.content == results(agent)[0] == "seen"  # pyright: ignore


async def test_h8_61_a_long_result_keeps_its_last_line_and_names_a_file(rig: Rig, workspace: Path) -> None:
    code = "print('x' * 300_000); raise SystemExit('the error line')"
    agent, _ = rig.scripted([call("python_execute", {"code": code}), say("ok")])
    await agent.run("go")
    text = results(agent)[0]
    assert len(text) <= 30_000
    assert "the error line" in text[-500:]
    named = next(word.rstrip(";,]") for word in text.split() if word.startswith(".dragoman/"))
    assert (workspace / named).stat().st_size > 300_000


class TestOrder:
    """Reads side by side, everything else alone."""

    async def test_m20_62_five_parallel_reads_take_as_long_as_one(self, rig: Rig) -> None:
        note = Note(seconds=0.1)
        turn = Turn(calls=tuple(("note", {"text": str(n)}) for n in range(5)))
        agent, _ = rig.scripted([turn, say("ok")], note)
        started = time.monotonic()
        await agent.run("go")
        assert 0.1 <= time.monotonic() - started < 0.3
        assert results(agent) == ["0", "1", "2", "3", "4"]
        assert note.most == 5

    async def test_l05_results_stand_in_the_models_order(self, rig: Rig) -> None:
        note = Note(a=0.03, b=0.02, c=0.01)
        agent, _ = rig.scripted([Turn(calls=tuple(("note", {"text": t}) for t in "abc")), say("ok")], note)
        await agent.run("go")
        assert note.log == ["+a", "+b", "+c", "-c", "-b", "-a"]
        assert results(agent) == ["a", "b", "c"]

    async def test_l06_an_exclusive_call_is_a_barrier(self, rig: Rig) -> None:
        note, mark = Note(seconds=0.01), Mark(seconds=0.01)
        mark.log = note.log
        calls = (("note", {"text": "a"}), ("note", {"text": "b"}), ("mark", {"text": "X"}), ("note", {"text": "c"}))
        agent, _ = rig.scripted([Turn(calls=calls), say("ok")], note, mark)
        await agent.run("go")
        assert note.log == ["+a", "+b", "-a", "-b", "+X", "-X", "+c", "-c"]

    async def test_l07_never_more_than_ten_at_once(self, rig: Rig) -> None:
        note = Note(seconds=0.005)
        agent, _ = rig.scripted([Turn(calls=tuple(("note", {"text": str(n)}) for n in range(25))), say("ok")], note)
        await agent.run("go")
        assert note.most == 10
        assert results(agent) == [str(n) for n in range(25)]

    async def test_calls_beyond_thirty_two_are_answered_but_not_run(self, rig: Rig) -> None:
        note = Note()
        agent, _ = rig.scripted([Turn(calls=tuple(("note", {"text": str(n)}) for n in range(34))), say("ok")], note)
        await agent.run("go")
        assert len([line for line in note.log if line.startswith("+")]) == 32
        assert [text.startswith("note: not run: more than 32 calls") for text in results(agent)[31:]] == [
            False,
            True,
            True,
        ]
        assert_valid(agent.memory.messages)

    async def test_l12_cancel_while_the_first_of_three_runs(self, rig: Rig) -> None:
        mark = Mark(seconds=5)
        ctx = RunContext()
        agent, _ = rig.scripted([Turn(calls=tuple(("mark", {"text": t}) for t in "abc")), say("ok")], mark)
        run = asyncio.ensure_future(agent.run("go", ctx))
        while not mark.log:
            await asyncio.sleep(0.001)
        ctx.cancel.cancel("SIGINT")
        ctx.cancel.cancel("SIGTERM")
        result = await run
        assert (result.stop_reason, result.cause, result.exit_code) == ("cancelled", "SIGINT", 130)
        assert results(agent) == [
            "mark: interrupted before it gave a result; its outcome is unknown",
            "mark: not run: the run was interrupted before it",
            "mark: not run: the run was interrupted before it",
        ]
        assert_valid(agent.memory.messages)
        assert (await agent.run("next")).answer == "ok"

    async def test_parallel_results_that_came_are_kept_on_cancel(self, rig: Rig) -> None:
        note = Note(fast=0.0, slow=5.0)
        ctx = RunContext()
        agent, _ = rig.scripted([Turn(calls=(("note", {"text": "slow"}), ("note", {"text": "fast"})))], note)
        run = asyncio.ensure_future(agent.run("go", ctx))
        while "-fast" not in note.log:
            await asyncio.sleep(0.001)
        ctx.cancel.cancel()
        await run
        assert results(agent) == ["note: interrupted before it gave a result; its outcome is unknown", "fast"]


async def test_l08_a_tool_that_raises_is_a_result(rig: Rig) -> None:
    class Broken(Note):
        name = "broken"

        async def run(self, args, ctx):  # pyright: ignore
            raise LLMError("inner trouble", "SERVER")

    agent, _ = rig.scripted([call("broken"), say("ok")], Broken())
    assert (await agent.run("go")).answer == "ok"
    assert "inner trouble" in results(agent)[0]


async def test_defect_10_a_full_context_ends_the_run_with_the_last_words(rig: Rig) -> None:
    turns = [Turn(text="read half of it", calls=(("note", {"text": "a"}),)), fail("CONTEXT_WINDOW_EXCEEDED", "full")]
    agent, model = rig.scripted(turns, Note())
    result = await agent.run("go")
    assert (result.stop_reason, result.answer, result.exit_code) == ("context", "read half of it", 3)
    assert result.error is not None
    assert result.error.code == "CONTEXT_WINDOW_EXCEEDED"
    assert len(model.requests) == 2
    assert_valid(agent.memory.messages)
