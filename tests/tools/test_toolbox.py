"""`Toolbox.call`: one result for every call, in words, with events, limits and approvals."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from app.schema.event import ApprovalRequested, EventRecord, Notice, ToolFinished, ToolStarted
from app.schema.message import ImageBlock, TextBlock, ToolCallBlock, ToolResultBlock
from app.schema.run import RunContext
from app.tools.approval import ApprovalPolicy, ApprovalRequest, Decision
from app.tools.base import Approval, Args, Tool, ToolOutput, tool
from app.tools.toolbox import AnyTool, Toolbox
from tests.tools.conftest import Call


def block(name: str, call_id: str = "c1", **arguments: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, name, json.dumps(arguments))


@tool(effect="read")
def echo(text: str) -> str:
    """Say it."""
    return text


@tool(effect="read")
def nap(seconds: float) -> str:
    """Block a thread."""
    time.sleep(seconds)
    return "rested"


class Guarded(Tool[Args]):
    """Needs an approval; `crosses` decides about the border."""

    name = "guarded"
    description = "x"
    Arguments = Args

    def __init__(self, *, crosses: bool = False) -> None:
        self.crosses = crosses
        self.runs = 0

    def approval(self, args: Args) -> Approval:
        return Approval("it is dangerous", "boom", crosses_border=self.crosses)

    async def run(self, args: Args, ctx: RunContext) -> ToolOutput:
        self.runs += 1
        return ToolOutput("done")


def events_of(events: list[EventRecord]) -> list[Any]:
    return [record.event for record in events]


async def test_a_call_gives_one_result_and_two_events(ctx: RunContext, events: list[EventRecord]) -> None:
    outcome = await Toolbox(echo).call(block("echo", text="hi"), ctx)
    assert outcome.block == ToolResultBlock("c1", (TextBlock("hi"),), is_error=False)
    assert (outcome.ok, outcome.truncated, outcome.code, outcome.ends_run, outcome.plan) == (
        True,
        False,
        None,
        None,
        None,
    )
    started, finished = events_of(events)
    assert started == ToolStarted("c1", "echo", {"text": "hi"})
    assert finished == ToolFinished("c1", "echo", True, "hi", outcome.seconds, False)


async def test_M2_a_repair_is_a_notice_and_the_tool_runs(ctx: RunContext, events: list[EventRecord]) -> None:
    outcome = await Toolbox(echo).call(ToolCallBlock("c1", "echo", "{'text': 'hi',}"), ctx)
    assert outcome.block.text == "hi"
    assert events_of(events)[0] == Notice("ARGUMENTS_REPAIRED", "echo: the arguments were a Python literal")


async def test_M4_an_unknown_argument_is_named_in_the_result(ctx: RunContext) -> None:
    outcome = await Toolbox(echo).call(block("echo", text="hi", volume=3), ctx)
    assert outcome.block.text == "hi\n[ignored unknown arguments: volume (known: text)]"
    assert outcome.ok


async def test_a_misspelt_argument_is_named_beside_the_missing_one(ctx: RunContext) -> None:
    outcome = await Toolbox(echo).call(block("echo", txt="hi"), ctx)
    assert outcome.block.text == "error: text: is required\n[ignored unknown arguments: txt (known: text)]"
    assert (outcome.code, outcome.block.is_error) == ("TOOL_ARGUMENTS", True)


async def test_M1_a_cut_call_is_never_run(ctx: RunContext, events: list[EventRecord]) -> None:
    outcome = await Toolbox(echo).call(ToolCallBlock("c1", "echo", '{"text": "hal'), ctx, cut=True)
    assert "cut by the output limit" in outcome.block.text
    assert events_of(events)[0] == ToolStarted("c1", "echo", '{"text": "hal')
    assert (outcome.ok, outcome.code) == (False, "TOOL_ARGUMENTS")


async def test_M5_an_unknown_tool_names_the_nearest_and_all(toolbox: Toolbox, ctx: RunContext) -> None:
    outcome = await toolbox.call(block("python_executor", code="1"), ctx)
    assert outcome.block.text == (
        "error: there is no tool 'python_executor'. Did you mean python_execute? (available tools: "
        "bash, python_execute, str_replace_editor, ask_human, planning, terminate)"
    )
    assert outcome.code == "TOOL_UNKNOWN"


async def test_M20_blocking_tools_run_at_once(ctx: RunContext) -> None:
    box = Toolbox(nap)
    begun = time.monotonic()
    outcomes = await asyncio.gather(*(box.call(block("nap", str(n), seconds=0.1), ctx) for n in range(8)))
    assert time.monotonic() - begun < 0.19
    assert [outcome.block.call_id for outcome in outcomes] == [str(n) for n in range(8)]


async def test_T14_a_blocking_tool_leaves_the_loop_alone(ctx: RunContext) -> None:
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    task = asyncio.create_task(heart())
    await Toolbox(nap).call(block("nap", seconds=0.1), ctx)
    task.cancel()
    assert beats >= 8


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("bad"), "error: ValueError: bad"),
        (KeyError("k"), "error: KeyError: 'k'"),
        (SystemExit(3), "error: SystemExit: 3"),
        (StopIteration(), "error: RuntimeError: the tool raised StopIteration: StopIteration"),
        (asyncio.CancelledError(), "error: the tool was cancelled from inside: CancelledError"),
    ],
)
@pytest.mark.parametrize("blocking", [True, False])
async def test_whatever_a_tool_raises_is_a_result(
    error: BaseException, words: str, blocking: bool, ctx: RunContext, events: list[EventRecord]
) -> None:
    @tool(name="bad")
    def bad() -> str:
        """x"""
        raise error

    @tool(name="bad")
    async def bad_async() -> str:
        """x"""
        raise error

    if not blocking and isinstance(error, StopIteration):
        words = "error: RuntimeError: coroutine raised StopIteration: StopIteration"
    outcome = await Toolbox(bad if blocking else bad_async).call(block("bad"), ctx)
    assert (outcome.block.text, outcome.ok, outcome.code) == (words, False, "TOOL_FAILED")
    assert [type(event) for event in events_of(events)] == [ToolStarted, ToolFinished]


async def test_causes_are_told(ctx: RunContext) -> None:
    @tool
    def bad() -> str:
        """x"""
        raise ValueError("outer") from OSError("inner")

    assert (await Toolbox(bad).call(block("bad"), ctx)).block.text == "error: ValueError: outer: inner"


@pytest.mark.parametrize("blocking", [True, False])
async def test_defect_119_every_tool_may_have_a_time_limit(blocking: bool, ctx: RunContext) -> None:
    async def wait(seconds: float) -> str:
        """x"""
        await asyncio.sleep(seconds)
        return ""

    slow = nap if blocking else tool(wait, name="nap")
    limited = type(slow)(slow._function, name="nap", description="x", effect="once")
    limited.timeout_s = 0.03  # pyright: ignore[reportAttributeAccessIssue]
    outcome = await Toolbox(limited).call(block("nap", seconds=0.1 if blocking else 50), ctx)
    assert outcome.block.text == "error: nap did not end within 0.03 s and was stopped"
    assert (outcome.code, outcome.ok) == ("TOOL_TIMEOUT", False)


async def test_a_time_out_inside_a_tool_is_its_own_failure(ctx: RunContext) -> None:
    @tool
    async def connect() -> str:
        """x"""
        raise TimeoutError("no answer")

    outcome = await Toolbox(connect).call(block("connect"), ctx)
    assert (outcome.block.text, outcome.code) == ("error: TimeoutError: no answer", "TOOL_FAILED")


async def test_a_cancellation_passes_after_the_events(ctx: RunContext, events: list[EventRecord]) -> None:
    @tool
    async def forever() -> str:
        """x"""
        await asyncio.Event().wait()
        return ""

    task = asyncio.create_task(Toolbox(forever).call(block("forever"), ctx))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    finished = events_of(events)[-1]
    assert (type(finished), finished.ok, finished.content) == (ToolFinished, False, "cancelled")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "[]"),
        ({}, "{}"),
        (0, "0"),
        (False, "false"),
        (None, "(no output)"),
        ("", "(no output)"),
        ({"k": ["日"]}, '{"k": ["日"]}'),
        ("bad \udcff name", "bad ? name"),
    ],
)
async def test_B105_defect_71_every_value_gives_a_text(value: Any, text: str, ctx: RunContext) -> None:
    @tool
    def give() -> Any:
        """x"""
        return value

    assert (await Toolbox(give).call(block("give"), ctx)).block.text == text


async def test_images_stand_after_the_text(ctx: RunContext) -> None:
    image = ImageBlock("aGk=", "image/png")

    @tool
    def shoot(text: str) -> ToolOutput:
        """x"""
        return ToolOutput(text, images=(image,))

    outcome = await Toolbox(shoot).call(block("shoot", text="a page"), ctx)
    assert outcome.block.content == (TextBlock("a page"), image)
    assert outcome.images == (image,)


async def test_defect_61_long_results_keep_both_ends_and_name_a_file(workspace: Path, ctx: RunContext) -> None:
    text = "START " + "x" * 5000 + " END"
    box = Toolbox(echo, max_result_chars=1000, workspace=workspace)
    outcome = await box.call(block("echo", "call/../1", text=text), ctx)
    result = outcome.block.text
    assert outcome.truncated
    assert len(result) <= 1000
    assert result.startswith("START xxx")
    assert result.endswith("xxx END")
    (file,) = (workspace / ".dragoman/outputs").iterdir()
    assert f"the full text is in .dragoman/outputs/{file.name} ...]" in result
    assert file.read_text() == text
    kept = result.count("x", 0, result.index("\n")) + result.count("x", result.rindex("\n"))
    assert f"[... {5000 - kept:,} characters left out;" in result
    again = await box.call(block("echo", "call/../1", text=text + "2"), ctx)
    assert file.read_text() == text
    assert "-2.txt" in again.block.text


async def test_without_a_workspace_the_cut_still_shows(ctx: RunContext) -> None:
    outcome = await Toolbox(echo, max_result_chars=500).call(block("echo", text="x" * 600), ctx)
    assert "the full text was not kept" in outcome.block.text
    assert len(outcome.block.text) <= 500


async def test_the_sandboxes_file_is_named_instead_of_a_second_one(
    toolbox: Toolbox, workspace: Path, ctx: RunContext
) -> None:
    outcome = await toolbox.call(block("bash", command="yes 0123456789 | head -c 3000000; echo END"), ctx)
    assert outcome.block.text.endswith("END")
    assert "the full text is in .dragoman/outputs/command.txt" in outcome.block.text
    assert [file.name for file in (workspace / ".dragoman/outputs").iterdir()] == ["command.txt"]
    assert (workspace / ".dragoman/outputs/command.txt").stat().st_size == 3_000_004


class Person:
    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[ApprovalRequest] = []
        self.at_once = self.most_at_once = 0

    async def approve(self, request: ApprovalRequest, ctx: RunContext) -> Decision:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.asked.append(request)
        await asyncio.sleep(0)
        self.at_once -= 1
        return Decision(self.answers.pop(0), "too risky")


@pytest.mark.parametrize(
    ("policy", "crosses", "runs", "words"),
    [
        ("auto", False, True, "done"),
        ("auto", True, False, "may reach outside the workspace"),
        ("never", False, False, "allows nothing that needs an approval"),
        ("ask", False, False, "no person is there to approve"),
    ],
)
async def test_l09_policies_without_a_person(
    policy: ApprovalPolicy, crosses: bool, runs: bool, words: str, ctx: RunContext, events: list[EventRecord]
) -> None:
    guarded = Guarded(crosses=crosses)
    outcome = await Toolbox(guarded, approve=policy).call(block("guarded"), ctx)
    assert words in outcome.block.text
    assert (outcome.ok, guarded.runs, outcome.code) == (runs, int(runs), None if runs else "TOOL_DENIED")
    assert [type(event) for event in events_of(events)] == [ToolStarted, ToolFinished]


async def test_a_person_is_asked_with_the_exact_call(ctx: RunContext, events: list[EventRecord]) -> None:
    person = Person(True, False)
    guarded = Guarded()
    box = Toolbox(guarded, approver=person)
    assert (await box.call(block("guarded"), ctx)).block.text == "done"
    denied = await box.call(block("guarded", "c2"), ctx)
    assert denied.block.text == "error: not run: it is dangerous. too risky"
    assert guarded.runs == 1
    assert person.asked[0] == ApprovalRequest("c1", "guarded", {}, "it is dangerous", "boom")
    # Asked before started: a crash at the question leaves a call that never began.
    assert events_of(events)[:2] == [
        ApprovalRequested("c1", "guarded", {}, "it is dangerous"),
        ToolStarted("c1", "guarded", {}),
    ]


async def test_approvals_are_asked_one_at_a_time(ctx: RunContext) -> None:
    person = Person(True, True, True)
    box = Toolbox(Guarded(), approver=person)
    await asyncio.gather(*(box.only(["guarded"]).call(block("guarded", str(n)), ctx) for n in range(3)))
    assert (len(person.asked), person.most_at_once) == (3, 1)


async def test_a_failing_approver_means_no(ctx: RunContext) -> None:
    class Broken:
        async def approve(self, request: ApprovalRequest, ctx: RunContext) -> Decision:
            raise EOFError("terminal closed")

    guarded = Guarded()
    outcome = await Toolbox(guarded, approver=Broken()).call(block("guarded"), ctx)
    assert (outcome.ok, guarded.runs) == (False, 0)


async def test_T20_the_ask_policy(call: Call, approver: Any, workspace: Path) -> None:
    assert (await call("bash", command="echo good morning")).block.text == "good morning"
    assert (await call("bash", command="echo kill")).block.text == "kill"
    assert approver.asked == []
    await call("bash", command="ls;rm -rf x")
    await call("bash", command='sh -c "rm x"')
    assert [request.preview for request in approver.asked] == ["ls;rm -rf x", 'sh -c "rm x"']


def test_specs_are_the_same_objects_every_time(toolbox: Toolbox) -> None:
    assert toolbox.specs is toolbox.specs
    assert toolbox.names == ("bash", "python_execute", "str_replace_editor", "ask_human", "planning", "terminate")
    smaller = toolbox.only(["terminate", "bash", "nothing"])
    assert smaller.names == ("bash", "terminate")
    assert smaller.specs[0] is toolbox.specs[0]
    assert toolbox.without("bash").names == toolbox.names[1:]
    assert toolbox.get("nothing") is None


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'echo'"):
        Toolbox(echo, echo)


def test_reads_are_known_by_name_and_by_call(toolbox: Toolbox) -> None:
    assert Toolbox(echo).is_read("echo")
    assert not toolbox.is_read("bash")
    assert not toolbox.is_read("nothing")
    assert toolbox.is_read(block("str_replace_editor", command="view", path="."))
    assert not toolbox.is_read(block("str_replace_editor", command="create", path="a", file_text=""))
    assert toolbox.is_read(block("bash", command="ls -la | head"))
    assert not toolbox.is_read(block("bash", command="rm x"))
    assert not toolbox.is_read(ToolCallBlock("c", "bash", "{"))


async def test_close_closes_each_tool_once_and_shared_ones_never() -> None:
    closed: list[str] = []

    class Holder(Tool[Args]):
        description = "x"
        Arguments = Args

        def __init__(self, name: str, *, fails: bool = False) -> None:
            self.name = name  # pyright: ignore[reportAttributeAccessIssue]
            self.fails = fails

        async def close(self) -> None:
            closed.append(self.name)
            if self.fails:
                raise RuntimeError("stuck")

    box = Toolbox(Holder("a", fails=True), Holder("b"))
    await box.only(["a"]).close()
    assert closed == []
    with pytest.raises(RuntimeError, match="stuck"):
        await box.close()
    await box.close()
    assert closed == ["a", "b"]


def minimal(schema: dict[str, Any]) -> Any:
    """The smallest value that a JSON Schema allows, first choices taken."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: minimal(schema["properties"][name]) for name in schema.get("required", [])}
        case "string":
            return "x"
        case "array":
            return []
        case "boolean":
            return False
        case _:
            return 1


async def test_T17_every_default_tool_accepts_a_minimal_call_of_its_own_schema(
    toolbox: Toolbox, ctx: RunContext
) -> None:
    for spec in toolbox.specs:
        outcome = await toolbox.call(ToolCallBlock("c", spec.name, json.dumps(minimal(spec.parameters))), ctx)
        assert outcome.code != "TOOL_ARGUMENTS", outcome.block.text


def test_the_default_tools_cost_few_tokens(toolbox: Toolbox) -> None:
    from app.llm.tokens import encoding

    shown = [
        json.dumps(
            {"type": "function", "function": {"name": s.name, "description": s.description, "parameters": s.parameters}}
        )
        for s in toolbox.specs
    ]
    assert sum(len(encoding("o200k_base").encode(text)) for text in shown) < 1000


def test_the_parameters_of_the_contract(toolbox: Toolbox) -> None:
    parameters = {spec.name: set(spec.parameters["properties"]) for spec in toolbox.specs}
    assert parameters == {
        "bash": {"command", "timeout_s", "background"},
        "python_execute": {"code", "timeout_s"},
        "str_replace_editor": {"command", "path", "file_text", "old_str", "new_str", "insert_line", "view_range"},
        "ask_human": {"question"},
        "planning": {"command", "title", "steps", "step", "status", "note"},
        "terminate": {"status", "answer"},
    }


def test_a_plain_tool_is_blocking_and_an_async_one_is_not() -> None:
    tools: list[AnyTool] = [echo, Guarded()]
    assert [tool_.blocking for tool_ in tools] == [True, False]
