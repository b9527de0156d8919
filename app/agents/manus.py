"""`Manus`: the general agent. Its prompts, its tools, its limits; nothing of the loop."""

from __future__ import annotations

from app.agents.toolcall import ToolCallAgent
from app.llm.client import LLM
from app.memory.memory import Memory
from app.prompts import Prompts
from app.tools.toolbox import Toolbox

DESCRIPTION = "general agent: runs commands and Python, reads and writes files"
MAX_STEPS = 30
SMALL_TOOLS = ("python_execute", "str_replace_editor", "terminate")
"""What a very small model is offered, in order of use; more tools make it choose badly."""


class Manus(ToolCallAgent):
    def __init__(
        self,
        *,
        llm: LLM,
        toolbox: Toolbox,
        prompts: Prompts,
        workspace: str,
        memory: Memory | None = None,
        max_steps: int | None = None,
        sandbox: str = "none",
    ) -> None:
        small = llm.facts.small
        super().__init__(
            "manus",
            llm=llm,
            toolbox=toolbox.only(SMALL_TOOLS) if small else toolbox,
            system=prompts.render("manus/system_small" if small else "manus/system", workspace=workspace),
            memory=memory,
            max_steps=max_steps or MAX_STEPS,
            description=DESCRIPTION,
            where=(sandbox, workspace),
        )
