"""A flow whose planner and workers ask scripted models; the planner's model also writes the summary."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from app.agents.planner import PlannerAgent
from app.agents.toolcall import ToolCallAgent
from app.flows.planning import Member, PlanningFlow
from app.llm.adapters.scripted import ScriptedAdapter, Turn
from app.prompts import Prompts
from app.schema.request import ModelRequest
from tests.agents.rig import Rig

WorkerScript = Callable[[ModelRequest], Turn]


class Stage:
    """`flow(plan turns, worker)` makes a flow; `planner` and `worker` hold what their models were asked."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.made: list[str] = []
        self.closed: list[str] = []

    def flow(
        self,
        planning: Iterable[Turn] | WorkerScript,
        working: Iterable[Turn] | WorkerScript,
        *,
        team: Iterable[str] = ("manus",),
        max_steps: int = 5,
        **options: Any,
    ) -> PlanningFlow:
        plan_llm, self.planner = self.rig.scripted_llm(planning)
        work_llm, self.worker = self.rig.scripted_llm(working)
        stage = self

        class Worker(ToolCallAgent):
            async def close(self) -> None:
                stage.closed.append(self.name)
                await super().close()

        def member(name: str) -> Member:
            def make() -> ToolCallAgent:
                self.made.append(name)
                return Worker(name, llm=work_llm, toolbox=self.rig.toolbox(*self.tools), max_steps=max_steps)

            return Member(f"does {name} work", make)

        return PlanningFlow(
            planner=PlannerAgent(llm=plan_llm, prompts=Prompts()),
            team={name: member(name) for name in team},
            prompts=Prompts(),
            **options,
        )

    planner: ScriptedAdapter
    worker: ScriptedAdapter
    tools: tuple[Any, ...] = ()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "ws").mkdir()
    rig = Rig(tmp_path / "ws")
    yield Stage(rig)
    await rig.close()
