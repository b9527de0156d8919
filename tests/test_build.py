"""Putting the parts together: whose model, whose tools, and what is refused before anything is asked."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.agents.manus import Manus
from app.build import AGENTS, App, build_agent, build_app, build_flow
from app.config.settings import AgentSettings, BudgetSettings, Config, FlowSettings, LLMSettings, MemorySettings
from app.llm.adapters.scripted import ScriptedAdapter, call, say
from app.llm.client import LLM
from app.schema.errors import ConfigError
from app.schema.event import EventRecord
from app.schema.run import RunContext
from tests.agents.rig import Note, notices
from tests.conftest import MakeServer
from tests.fault_server import FaultServer
from tests.fault_server.behaviours import reply

Build = Callable[..., App]

PLAN = ("planning", {"command": "create", "title": "Two", "steps": ["write", "check"]})


def served(server: FaultServer, name: str = "default", model: str = "test-model") -> LLMSettings:
    return LLMSettings(name=name, model=model, base_url=server.url, api_key=SecretStr("k"))


@pytest.fixture
async def build(tmp_path: Path) -> AsyncIterator[Build]:
    apps: list[App] = []

    def make(config: Config | None = None, **options: Any) -> App:
        options.setdefault("workspace", tmp_path / "ws")
        apps.append(build_app(config or Config(), **options))
        return apps[-1]

    yield make
    for app in apps:
        await app.close()


async def test_f1_each_agent_asks_its_own_model(
    build: Build, fault_server: MakeServer, ctx: RunContext, events: list[EventRecord]
) -> None:
    planning = await fault_server([reply(tool_calls=[PLAN]), reply("Both done.")])
    working = await fault_server([reply("wrote"), reply("checked")])
    unused = await fault_server()
    models = {
        "default": served(unused),
        "planner": served(planning, "planner", "model-a"),
        "manus": served(working, "manus", "model-b"),
    }
    app = build(Config(llm=models))
    result = await build_flow(app).run("the task", ctx)
    assert (result.stop_reason, result.answer) == ("finished", "Both done.")
    assert [request.json["model"] for request in planning.chats] == ["model-a"] * 2
    assert [request.json["model"] for request in working.chats] == ["model-b"] * 2
    assert unused.requests == []
    planning.assert_done()
    working.assert_done()
    vendor = app.llm_for("manus").vendor
    assert notices(events, "LLM_CHOSEN") == [
        f"planner uses [llm.planner]: model model-a at {vendor} (because of [llm.planner])",
        f"manus uses [llm.manus]: model model-b at {vendor} (because of [llm.manus])",
    ]


@pytest.mark.parametrize(
    ("config", "override", "used", "why"),
    [
        (Config(), None, "default", "there is no [llm.manus]"),
        (Config(agents={"manus": AgentSettings(llm="fast")}), None, "fast", "of [agents.manus] llm"),
        (Config(llm={"manus": LLMSettings(name="manus", api_type="test")}), None, "manus", "of [llm.manus]"),
        (Config(agents={"manus": AgentSettings(llm="fast")}), "other", "other", "of --llm"),
    ],
    ids=["default", "explicit", "by name", "override"],
)
def test_which_model_an_agent_uses_and_why(
    build: Build, config: Config, override: str | None, used: str, why: str
) -> None:
    adapters = {name: ScriptedAdapter([]) for name in ("default", "fast", "other")}
    app = build(config, adapters=adapters, llm=override)
    assert (app.llm_for("manus").name, app.why_llm("manus")) == (used, why)
    assert build_agent(app).llm is app.llm_for("manus") is LLM(used)


async def test_the_choice_is_an_event(build: Build, ctx: RunContext, events: list[EventRecord]) -> None:
    app = build(adapters={"default": ScriptedAdapter([say("hi")])})
    await build_agent(app).run("go", ctx)
    said = "manus uses [llm]: model scripted at test (because there is no [llm.manus])"
    assert notices(events, "LLM_CHOSEN") == [said]


async def test_llm_override_goes_for_the_planner_too(build: Build) -> None:
    fast = ScriptedAdapter([call(*PLAN), say("1"), say("2"), say("done")])
    app = build(adapters={"default": ScriptedAdapter([]), "fast": fast}, llm="fast")
    assert (await build_flow(app).run("t")).answer == "done"
    fast.assert_finished()


def test_unknown_names_are_refused_with_the_known_ones(build: Build) -> None:
    app = build(adapters={"default": ScriptedAdapter([])})
    with pytest.raises(ConfigError, match="no agent 'nobody'") as agent:
        build_agent(app, "nobody")
    assert agent.value.hint == f"known agents: {', '.join(AGENTS)}"
    with pytest.raises(ConfigError, match="no agent 'nobody'"):
        build_flow(app, agents=["manus", "nobody"])
    with pytest.raises(ConfigError, match="no flow 'dance'") as flow:
        build_flow(app, "dance")
    assert flow.value.hint == "known flows: planning"
    with pytest.raises(ConfigError, match=r"no \[llm\.nope\]"):
        build(adapters={"default": ScriptedAdapter([])}, llm="nope")


def test_a_missing_model_is_refused_before_anything_is_asked(build: Build) -> None:
    with pytest.raises(ConfigError) as nothing:
        build_agent(build())
    assert nothing.value.hint
    config = Config(agents={"manus": AgentSettings(llm="gone")})
    app = build(config, adapters={"default": ScriptedAdapter([])})
    with pytest.raises(ConfigError, match=r"no \[llm\.gone\]"):
        build_flow(app)


def test_agent_names_are_read_as_people_write_them(build: Build) -> None:
    app = build(adapters={"default": ScriptedAdapter([])})
    assert build_agent(app, "Manus").name == "manus"
    assert list(build_flow(app, agents=[" Manus ", "manus", ""]).team) == ["manus"]  # pyright: ignore


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_workspace_that_cannot_be_written_is_refused(build: Build, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="is not writable"):
        build(workspace=folder)


def test_a_workspace_that_is_a_file_is_refused(build: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is not writable") as error:
        build(workspace=tmp_path / "file")
    assert "--workspace" in error.value.hint


def test_the_workspace_is_made(build: Build, tmp_path: Path) -> None:
    app = build(workspace=tmp_path / "new" / "ws")
    assert app.workspace == (tmp_path / "new" / "ws").resolve()
    assert app.workspace.is_dir()


def test_settings_reach_the_agent(build: Build) -> None:
    config = Config(
        agents={"manus": AgentSettings(max_steps=7)},
        budget=BudgetSettings(max_steps=9),
        memory=MemorySettings(max_messages=10),
    )
    agent = build_agent(build(config, adapters={"default": ScriptedAdapter([])}))
    assert isinstance(agent, Manus)
    assert agent.max_steps == 7
    for number in range(20):
        from app.schema.message import user_message

        agent.memory.add(user_message(str(number)))
    assert len(agent.memory.view()) <= 10
    plain = build_agent(build(adapters={"default": ScriptedAdapter([])}))
    assert plain.max_steps == 30


def test_settings_reach_the_flow(build: Build) -> None:
    config = Config(runflow=FlowSettings(max_attempts=4, timeout_s=5))
    flow: Any = build_flow(build(config, adapters={"default": ScriptedAdapter([])}), parallel=3)
    assert (flow.max_attempts, flow.timeout_s, flow.parallel, list(flow.team)) == (4, 5, 3, ["manus"])


async def test_extra_tools_are_offered(build: Build) -> None:
    model = ScriptedAdapter([call("note", {"text": "a"}), say("ok")])
    app = build(adapters={"default": model}, extra_tools=[lambda app: Note()])
    assert (await build_agent(app).run("go")).answer == "ok"
    assert "note" in [tool.name for tool in model.requests[0].tools]


def test_agents_do_not_share_tools_or_memory(build: Build) -> None:
    app = build(adapters={"default": ScriptedAdapter([])})
    first, second = build_agent(app), build_agent(app)
    assert first.memory is not second.memory
    assert all(first.toolbox.get(name) is not second.toolbox.get(name) for name in first.toolbox.names)


@pytest.mark.parametrize("mode", ["bwrap", "docker"])
def test_a_sandbox_that_is_not_there_is_refused(build: Build, mode: str) -> None:
    with pytest.raises(ConfigError, match=mode):
        build(Config.model_validate({"sandbox": {"mode": mode}}))


async def test_closing_frees_the_pool_although_the_sandbox_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = build_app(Config(), workspace=tmp_path / "ws", adapters={"default": ScriptedAdapter([])})
    app.llm_for("manus")

    async def broken() -> None:
        raise OSError("stuck")

    monkeypatch.setattr(app.sandbox, "close", broken)
    with pytest.raises(OSError, match="stuck"):
        await app.close()
    assert app.pool.totals == {}


async def test_a_very_small_model_gets_the_small_tools(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    models = {"default": LLMSettings(api_type="embedded", model="qwen2.5-coder-1.5b")}
    app = build_app(Config(llm=models), workspace=tmp_path)
    agent = build_agent(app)
    assert agent.toolbox.names == ("python_execute", "str_replace_editor", "terminate")
    assert [sorted(spec.parameters["properties"]) for spec in agent.toolbox.specs] == [
        ["code"],
        ["command", "file_text", "path"],
        ["answer"],
    ]
    assert agent.tool_choice == "required"
    await agent.close()
    await app.close()
