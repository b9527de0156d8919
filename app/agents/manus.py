"""`Manus`: the general agent. Its prompts, its tools, its limits; nothing of the loop."""

from __future__ import annotations

from app.agents.toolcall import ToolCallAgent
from app.llm.client import LLM
from app.memory.memory import Memory
from app.prompts import Prompts
from app.tools.toolbox import Toolbox

DESCRIPTION = "general agent: runs commands and Python, reads and writes files"
MAX_STEPS = 30


class Manus(ToolCallAgent):
    """The general agent; it owns `toolbox` and closes it. A very small model gets a short prompt."""

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
        why_llm: str = "",
    ) -> None:
        super().__init__(
            "manus",
            llm=llm,
            toolbox=toolbox,
            system=prompts.render("manus/system_small" if llm.facts.small else "manus/system", workspace=workspace),
            memory=memory,
            max_steps=MAX_STEPS if max_steps is None else max_steps,
            description=DESCRIPTION,
            where=(sandbox, workspace),
            why_llm=why_llm,
        )
