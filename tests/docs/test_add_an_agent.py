"""The worked example of `docs/add-an-agent.md` runs as it is printed, alone and in a flow."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.build import AGENTS, App, build_agent, build_app, build_flow
from app.config.settings import AgentSettings, Config
from app.llm.adapters.scripted import ScriptedAdapter, call, say
from app.schema.event import EventRecord
from app.schema.run import RunContext
from tests.agents.rig import notices

PAGE = Path(__file__).parents[2] / "docs" / "add-an-agent.md"
REVIEW = call("terminate", {"status": "success", "answer": "Shorten it."})


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    module = types.ModuleType("docs_add_an_agent")
    # Annotations are looked up through the module table.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = dict(AGENTS)
    exec(compile("\n".join(blocks("python")), str(PAGE), "exec"), module.__dict__)
    yield module
    AGENTS.clear()
    AGENTS.update(before)


@pytest.fixture
def reviewer() -> ScriptedAdapter:
    return ScriptedAdapter([call("count_words", {"text": "one two three"}), REVIEW])


@pytest.fixture
async def app(tmp_path: Path, example: types.ModuleType, reviewer: ScriptedAdapter) -> AsyncIterator[App]:
    (table,) = blocks("toml")
    limits = AgentSettings(**tomllib.loads(table)["agents"]["reviewer"])
    planner = ScriptedAdapter(
        [
            call("planning", {"command": "create", "title": "T", "steps": ["[manus] write", "[reviewer] review"]}),
            say("Done."),
        ]
    )
    adapters = {"reviewer": reviewer, "planner": planner, "default": ScriptedAdapter([say("written")])}
    app = build_app(Config(agents={"reviewer": limits}), workspace=tmp_path / "ws", adapters=adapters)
    yield app
    await app.close()


async def test_the_agent_runs_with_its_own_model_tools_and_limits(
    app: App, reviewer: ScriptedAdapter, ctx: RunContext, events: list[EventRecord]
) -> None:
    agent = build_agent(app, "reviewer")
    result = await agent.run("Review draft.md.", ctx)
    assert (result.stop_reason, result.answer, agent.max_steps) == ("finished", "Shorten it.", 12)
    request = reviewer.requests[0]
    assert [tool.name for tool in request.tools] == ["count_words", "str_replace_editor", "terminate"]
    assert request.system.startswith("You review texts in the workspace.")
    assert reviewer.requests[1].messages[-1].tool_results[0].text == "3"
    said = "reviewer uses [llm.reviewer]: model scripted at test (because of [llm.reviewer])"
    assert notices(events, "LLM_CHOSEN") == [said]


async def test_the_function_gives_the_answer_or_the_reason(app: App, example: types.ModuleType) -> None:
    assert await example.review(app, "draft.md") == "Shorten it."
    assert (await example.review(app, "draft.md")).startswith("No review: the script has no turn")


async def test_a_flow_gives_it_the_steps_that_name_it(app: App, reviewer: ScriptedAdapter) -> None:
    result = await build_flow(app, agents=["manus", "reviewer"]).run("Write and review draft.md.")
    assert (result.stop_reason, result.answer) == ("finished", "Done.")
    assert "- write: written" in reviewer.requests[0].messages[0].text


def test_the_page_stays_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 95
