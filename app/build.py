"""The one place where parts are put together: configuration → pool, sandbox, tools, agents, flows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app import paths
from app.agents.manus import DESCRIPTION, Manus
from app.agents.planner import PlannerAgent
from app.agents.toolcall import ToolCallAgent
from app.config.detect import NO_MODEL_HELP
from app.config.settings import Config, LLMSettings
from app.flows.base import Flow, FlowFactory, Keeper
from app.flows.planning import Member, PlanningFlow
from app.llm.client import LLM
from app.llm.pool import LLMPool, set_default_pool
from app.llm.spending import close_ledgers, process_ledger, run_ledger
from app.memory.compaction import Compactor
from app.memory.memory import Memory
from app.prompts import Prompts
from app.sandbox.base import Sandbox
from app.sandbox.local import LocalSandbox
from app.schema.errors import ConfigError
from app.schema.plan import Plan
from app.schema.usage import Ledger
from app.tools.approval import ApprovalPolicy, Approver
from app.tools.ask_human import AskHuman, Human
from app.tools.bash import Bash
from app.tools.planning import Planning
from app.tools.python_execute import PythonExecute
from app.tools.small import SmallEditor, SmallPython, SmallTerminate
from app.tools.str_replace_editor import StrReplaceEditor
from app.tools.terminate import Terminate
from app.tools.toolbox import AnyTool, Toolbox

if TYPE_CHECKING:
    from app.llm.adapters.base import LLMAdapter
    from app.llm.downloads import DownloadHooks

OBSERVE_CHARS = 30_000


@dataclass(slots=True)
class App:
    """Everything a run needs, made once: the pool of models, the sandbox, the prompts. `close()` frees it all."""

    config: Config
    pool: LLMPool
    sandbox: Sandbox
    prompts: Prompts
    workspace: Path
    approve: ApprovalPolicy = "ask"
    approver: Approver | None = None
    human: Human | None = None
    extra_tools: tuple[Callable[[App], AnyTool], ...] = ()
    spending: Ledger = field(default_factory=lambda: Ledger(scope="process"))
    """What all runs of this app spend, under the day's ledger; `run_ledger` makes those of runs."""
    llm_override: str | None = None
    """A config name (`--llm`) that every agent uses instead of its own."""

    def llm_for(self, agent: str) -> LLM:
        """The model of an agent: `--llm`, else explicit, else its lower-cased name, else `default`.

        `ConfigError` when there is no such configuration, or no model at all.
        """
        name, _ = self._llm_name(agent)
        if name == "default" and "default" not in self.config.llm:
            help_text = NO_MODEL_HELP.splitlines()
            raise ConfigError(help_text[0], hint="\n".join(help_text[1:]))
        return self.pool.get(name)

    def why_llm(self, agent: str) -> str:
        """What made `llm_for` choose, in words for the notice."""
        return self._llm_name(agent)[1]

    def _llm_name(self, agent: str) -> tuple[str, str]:
        if self.llm_override:
            return self.llm_override, "of --llm"
        name, place = self.config.llm_name_for_agent(agent)
        return name, f"there is no [llm.{agent.lower()}]" if place == "[llm]" else f"of {place}"

    def run_ledger(self, *, one_agent: bool) -> Ledger:
        """The ledger of a new run with the limits of `[budget]`, under those of the process and the day."""
        return run_ledger(self.config.budget, self.spending, one_agent=one_agent)

    def toolbox_for(self, agent: str, tools: Sequence[AnyTool]) -> Toolbox:
        limit = self.config.agent(agent).max_observe or OBSERVE_CHARS
        return Toolbox(
            *tools, approver=self.approver, approve=self.approve, max_result_chars=limit, workspace=self.workspace
        )

    def default_tools(self) -> list[AnyTool]:
        """Fresh tools of the general agent; they share the app's sandbox."""
        return [
            Bash(self.sandbox),
            PythonExecute(self.sandbox),
            StrReplaceEditor(self.workspace),
            AskHuman(self.human),
            Planning(),
            Terminate(),
            *(make(self) for make in self.extra_tools),
        ]

    def small_tools(self) -> list[AnyTool]:
        """Fresh tools for a very small model, which chooses badly among more or wider ones."""
        return [SmallPython(self.sandbox), SmallEditor(self.workspace), SmallTerminate()]

    async def close(self) -> None:
        try:
            await self.sandbox.close()
        finally:
            set_default_pool(None)
            close_ledgers(self.spending)
            await self.pool.close()


AgentMaker = Callable[[App], ToolCallAgent]


def _manus(app: App) -> Manus:
    llm = app.llm_for("manus")
    return Manus(
        llm=llm,
        toolbox=app.toolbox_for("manus", app.small_tools() if llm.facts.small else app.default_tools()),
        prompts=app.prompts,
        workspace=str(app.workspace),
        memory=Memory(app.config.memory.max_messages),
        max_steps=app.config.max_steps_for("manus"),
        sandbox=app.sandbox.name,
        why_llm=app.why_llm("manus"),
    )


AGENTS: dict[str, tuple[str, AgentMaker]] = {
    "manus": (DESCRIPTION, _manus),
}
"""Every agent by name: what it can do, and how it is made. A new agent gets a row here (`docs/add-an-agent.md`)."""


def build_app(
    config: Config,
    *,
    workspace: str | Path | None = None,
    approve: ApprovalPolicy = "ask",
    approver: Approver | None = None,
    human: Human | None = None,
    downloads: DownloadHooks | None = None,
    adapters: Mapping[str, LLMAdapter] | None = None,
    extra_tools: Sequence[Callable[[App], AnyTool]] = (),
    llm: str | None = None,
) -> App:
    """Put an app together. `adapters` replaces the adapter of a config name (tests, examples, own providers).

    Raises `ConfigError` for an unusable workspace, an unknown config name or a sandbox that is not there.
    """
    folder = paths.prepare_workspace(paths.workspace_dir(workspace or config.workspace.path or None))
    models = dict(config.llm)
    for name in adapters or {}:
        models.setdefault(name, LLMSettings(name=name, model="scripted", api_type="test"))
    config = config.model_copy(update={"llm": models})
    if llm is not None:
        config.llm_for(llm)
    pool = LLMPool(models, adapters=adapters, downloads=downloads)
    set_default_pool(pool)
    return App(
        config=config,
        pool=pool,
        sandbox=_sandbox(config, folder),
        prompts=Prompts(),
        workspace=folder,
        approve=approve,
        approver=approver,
        human=human,
        extra_tools=tuple(extra_tools),
        spending=process_ledger(config.budget),
        llm_override=llm,
    )


def build_agent(app: App, name: str = "manus") -> ToolCallAgent:
    """A fresh agent by name. `ConfigError` names the agents that exist."""
    agent = _row(name)[1](app)
    agent.compactor = Compactor(
        agent.llm,
        app.config.memory,
        summariser=(lambda: app.pool.get("summary")) if "summary" in app.config.llm else None,
        workspace=app.workspace,
        prompts=app.prompts,
    )
    return agent


def build_flow(
    app: App,
    kind: str = "planning",
    *,
    agents: Sequence[str] = (),
    parallel: int = 1,
    keeper: Keeper | None = None,
    plan: Plan | None = None,
) -> Flow:
    """A fresh flow by kind, with these agents (default: those of `[runflow]`); with a `plan` it goes on with that.

    `ConfigError` for a kind, an agent or a model that does not exist, before anything is asked.
    """
    names = [name.strip().lower() for name in agents if name.strip()] or list(app.config.runflow.agents)
    team: dict[str, Member] = {}
    for name in names:
        team[name.lower()] = Member(_row(name)[0], _maker(app, name))
        app.llm_for(name)
    factory = FlowFactory()
    factory.register("planning", lambda: _planning_flow(app, team, parallel, keeper, plan))
    return factory.create(kind)


def _planning_flow(
    app: App, team: Mapping[str, Member], parallel: int, keeper: Keeper | None, plan: Plan | None
) -> PlanningFlow:
    return PlanningFlow(
        planner=PlannerAgent(llm=app.llm_for("planner"), prompts=app.prompts, why_llm=app.why_llm("planner")),
        team=team,
        prompts=app.prompts,
        max_attempts=app.config.runflow.max_attempts,
        parallel=parallel,
        timeout_s=app.config.runflow.timeout_s,
        where=(app.sandbox.name, str(app.workspace)),
        keeper=keeper,
        plan=plan,
    )


def _maker(app: App, name: str) -> Callable[[], ToolCallAgent]:
    return lambda: build_agent(app, name)


def _row(name: str) -> tuple[str, AgentMaker]:
    row = AGENTS.get(name.lower())
    if row is None:
        raise ConfigError(f"there is no agent {name!r}", hint=f"known agents: {', '.join(AGENTS)}")
    return row


def _sandbox(config: Config, workspace: Path) -> Sandbox:
    mode = config.sandbox.mode
    if mode in ("bwrap", "docker"):
        raise ConfigError(
            f"the sandbox {mode!r} is not part of this version",
            hint="use --sandbox none; commands then ask for approval",
        )
    return LocalSandbox(workspace)
