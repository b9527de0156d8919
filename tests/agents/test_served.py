"""The loop against the strict fault server: every request is valid, and its prefix never changes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from app.agents.manus import Manus
from app.build import build_agent, build_app
from app.config.settings import Config, LLMSettings
from app.llm.tokens import TokenCounter
from app.memory.memory import Memory
from app.prompts import Prompts
from app.sandbox.local import LocalSandbox
from app.schema.event import EventRecord
from app.schema.message import system_message
from app.schema.run import RunContext
from app.tools.small import SmallEditor, SmallPython, SmallTerminate
from app.tools.toolbox import Toolbox
from tests.agents.rig import Mark, Note, Rig, assert_valid, notices, results
from tests.conftest import MakeServer
from tests.fault_server.behaviours import cut_after, malformed_json, reply, status
from tests.fault_server.record import Request, prefix_violations

FIRST_REQUEST_TOKENS = 3_000


def note(text: str) -> Any:
    return reply(tool_calls=[("note", {"text": text})])


def kept_prefix_violations(requests: list[Request], stored: list[str]) -> list[str]:
    """As `prefix_violations`, when some requests carry a hint at the tail: a last message that memory never had."""
    problems: list[str] = []
    for before, after in pairwise(requests):
        last = before.json["messages"][-1]
        hinted = last["role"] == "user" and last["content"] not in stored
        problems += prefix_violations([before, after], tail_messages=int(hinted))
    return problems


async def test_thirty_steps_keep_the_prefix_byte_for_byte(rig: Rig, fault_server: MakeServer) -> None:
    steps = [note(f"{number} ä \U0001f600") for number in range(29)]
    server = await fault_server([*steps, reply("done")])
    agent = rig.agent(rig.served_llm(server), Note(), max_steps=40)
    result = await agent.run("go")
    assert (result.answer, result.steps) == ("done", 30)
    assert prefix_violations(server.chats) == []
    assert [len(request.json["messages"]) for request in server.chats] == [2 + 2 * n for n in range(30)]
    server.assert_done()


async def test_stuck_hints_ride_at_the_tail_and_leave_the_prefix_alone(rig: Rig, fault_server: MakeServer) -> None:
    server = await fault_server([*[note("same")] * 4, note("other"), note("third"), reply("done")])
    agent = rig.agent(rig.served_llm(server), Note())
    assert (await agent.run("go")).answer == "done"
    tails = [request.json["messages"][-1] for request in server.chats]
    hinted = [tail["role"] == "user" and "several times" in tail["content"] for tail in tails]
    assert hinted == [False, False, False, True, True, False, False]
    assert kept_prefix_violations(server.chats, ["go"]) == []
    assert all("several times" not in message.text for message in agent.memory.messages)


async def test_l18_retry_error_cancel_and_cut_in_one_conversation(
    rig: Rig, fault_server: MakeServer, ctx: RunContext, events: list[EventRecord]
) -> None:
    server = await fault_server(
        [
            note("1"),
            status(500),
            note("2"),
            cut_after(reply("half an answer"), events=2),
            note("3"),
            malformed_json(),
            note("4"),
            reply("cut he", finish="length"),
            note("5"),
            reply(tool_calls=[("mark", {"text": "slow"})]),
            *[note(str(number)) for number in range(6, 20)],
            reply("done"),
        ]
    )
    mark = Mark(slow=5.0)
    agent = rig.agent(rig.served_llm(server), Note(), mark)
    first = await agent.run("one", ctx)
    # A broken reply is not retried; the run failed, the conversation goes on.
    assert (first.stop_reason, first.error and first.error.code) == ("failed", "MALFORMED_RESPONSE")
    stop = RunContext()

    def at_the_slow_call(record: EventRecord) -> None:
        if record.event.type == "tool_started" and mark.name == record.event.name:  # pyright: ignore
            stop.cancel.cancel("SIGINT")

    stop.sink = at_the_slow_call
    second = await agent.run("two", stop)
    assert second.stop_reason == "cancelled"
    third = await agent.run("three")
    assert third.answer == "done"
    assert_valid(agent.memory.messages)
    stored = [message.text for message in agent.memory.messages]
    assert kept_prefix_violations(server.chats, stored) == []
    assert len([record for record in events if record.event.type == "retrying"]) == 2
    server.assert_done()


async def test_h1_43_a_short_memory_is_always_valid_for_a_strict_server(rig: Rig, fault_server: MakeServer) -> None:
    two = [reply(tool_calls=[("note", {"text": str(n)}), ("note", {"text": "b"})]) for n in range(30)]
    server = await fault_server([*two, reply("done")])
    agent = rig.agent(rig.served_llm(server), Note(), memory=Memory(10), max_steps=40)
    assert (await agent.run("the task")).answer == "done"
    assert all(request.json["messages"][1]["content"] == "the task" for request in server.chats)
    assert max(len(request.json["messages"]) for request in server.chats) <= 11
    assert server.violations == []


async def test_m6_54_calls_without_ids_and_with_the_same_id(rig: Rig, fault_server: MakeServer) -> None:
    pair = [("note", {"text": "a"}), ("note", {"text": "b"})]
    server = await fault_server(
        [
            reply(tool_calls=pair, odd="id_none"),
            reply(tool_calls=pair, odd="id_duplicate"),
            reply(tool_calls=pair, odd="id_duplicate"),
            reply("done"),
        ]
    )
    agent = rig.agent(rig.served_llm(server), Note())
    assert (await agent.run("go")).answer == "done"
    assert results(agent) == ["a", "b"] * 3
    ids = [call.id for message in agent.memory.messages for call in message.tool_calls]
    assert len(set(ids)) == 6
    assert server.violations == []


async def test_m11_calls_in_text_run_and_prose_with_braces_is_the_answer(rig: Rig, fault_server: MakeServer) -> None:
    fenced = '```json\n{"name": "note", "arguments": {"text": "a"}}\n```'
    tagged = '<tool_call>{"name": "note", "arguments": {"text": "b"}}</tool_call>'
    prose = 'The call would be {"name": "note", "arguments": {"text": "c"}}.'
    server = await fault_server([reply(fenced), reply(tagged), reply(prose)])
    agent = rig.agent(rig.served_llm(server), Note())
    assert (await agent.run("go")).answer == prose
    assert results(agent) == ["a", "b"]


async def test_o07_m19_a_refused_tool_choice_is_left_out_and_the_call_still_comes(
    rig: Rig, fault_server: MakeServer, ctx: RunContext, events: list[EventRecord]
) -> None:
    refusal = {
        "error": {"message": "Unsupported value: tool_choice 'required' is not supported", "param": "tool_choice"}
    }
    end = reply(tool_calls=[("terminate", {"status": "success", "answer": "4"})])
    server = await fault_server([status(400, refusal), end])
    agent = rig.agent(rig.served_llm(server), tool_choice="required")
    result = await agent.run("2+2", ctx)
    assert (result.stop_reason, result.answer) == ("finished", "4")
    assert server.chats[0].json["tool_choice"] == "required"
    assert server.chats[1].json.get("tool_choice") != "required"
    assert len(notices(events, "OPTION_DROPPED")) == 1


async def test_a_cloud_model_is_told_once_a_run(
    rig: Rig, fault_server: MakeServer, ctx: RunContext, events: list[EventRecord]
) -> None:
    server = await fault_server([note("a"), reply("done")])
    llm = rig.served_llm(server)
    llm.local = False
    await rig.agent(llm, Note()).run("go", ctx)
    assert notices(events, "CLOUD") == [f"the text of this run goes to {llm.vendor} (test-model)"]


async def test_the_first_request_with_all_default_tools_is_small(fault_server: MakeServer, tmp_path: Path) -> None:
    server = await fault_server([reply("hi")])
    model = LLMSettings(model="test-model", base_url=server.url, api_key=SecretStr("k"))
    app = build_app(Config(llm={"default": model}), workspace=tmp_path / "ws")
    agent = build_agent(app)
    await agent.run("Say hi.")
    await agent.close()
    await app.close()
    body = server.chats[0].body.decode()
    assert {tool["function"]["name"] for tool in json.loads(body)["tools"]} >= {
        "bash",
        "python_execute",
        "str_replace_editor",
        "ask_human",
        "planning",
        "terminate",
    }
    assert TokenCounter("gpt-4o").encoding_name == "o200k_base"
    assert TokenCounter("gpt-4o").text(body) < FIRST_REQUEST_TOKENS


class TestSmallModels:
    """A very small model is offered few tools and has to call one."""

    async def test_manus_offers_few_tools_and_forces_a_call(self, rig: Rig, workspace: Path) -> None:
        from app.llm.adapters.scripted import call

        turns = [
            call("python_execute", {"code": "print(2 + 2)"}),
            call("terminate", {"answer": "4"}),
        ]
        llm, model = rig.scripted_llm(turns, max_tools=5, tool_choice_required=True)
        sandbox = LocalSandbox(workspace)
        toolbox = Toolbox(SmallPython(sandbox), SmallEditor(workspace), SmallTerminate(), approve="auto")
        agent = Manus(llm=llm, toolbox=toolbox, prompts=Prompts(), workspace=str(workspace))
        rig.agents.append(agent)
        result = await agent.run("2+2")
        assert (result.stop_reason, result.answer) == ("finished", "4")
        offered = [[tool.name for tool in request.tools] for request in model.requests]
        assert offered == [["python_execute", "str_replace_editor", "terminate"]] * 2
        assert {request.tool_choice for request in model.requests} == {"required"}
        assert model.requests[0].system == Prompts().render("manus/system_small", workspace=str(workspace))

    async def test_a_forced_call_needs_a_tool_that_ends_the_run(self, rig: Rig) -> None:
        llm, _ = rig.scripted_llm([], max_tools=5, tool_choice_required=True)
        assert rig.agent(llm, toolbox=rig.toolbox().without("terminate")).tool_choice == "auto"

    async def test_a_large_model_gets_everything(self, rig: Rig, workspace: Path) -> None:
        from app.llm.adapters.scripted import say

        llm, model = rig.scripted_llm([say("ok")])
        agent = Manus(llm=llm, toolbox=rig.toolbox(), prompts=Prompts(), workspace=str(workspace), max_steps=0)
        rig.agents.append(agent)
        assert (await agent.run("go")).stop_reason == "step_limit"
        agent.max_steps = 3
        await agent.run("go")
        assert len(model.requests[0].tools) == 6
        assert model.requests[0].tool_choice == "auto"
        assert str(workspace) in model.requests[0].system


async def test_h12_53_system_text_between_turns_reaches_a_strict_server(rig: Rig, fault_server: MakeServer) -> None:
    server = await fault_server([reply("one"), reply("two")])
    agent = rig.agent(rig.served_llm(server))
    await agent.run("first")
    agent.memory.add(system_message("the tools have changed"))
    assert (await agent.run("second")).answer == "two"
    sent = [(message["role"], message["content"]) for message in server.chats[1].json["messages"]]
    assert [role for role, _ in sent] == ["system", "user", "assistant", "user", "user"]
    assert sent[3:] == [("user", "the tools have changed"), ("user", "second")]
    assert server.violations == []
