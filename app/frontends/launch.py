"""From options to something that can run: the configuration in force, the parts, and one turn of work at a time."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import SecretStr

from app.build import App, build_agent, build_app, build_flow
from app.config.detect import LOCAL_PORTS, detect_model, load_or_detect
from app.config.load import load_config
from app.config.settings import Config, LLMSettings
from app.config.vendors import base_url_from_env, key_from_env, vendor_for
from app.frontends.keeping import Keeping, tell_in
from app.llm.client import LLM
from app.schema.errors import ConfigError, LLMError, SessionError
from app.schema.message import ImageBlock
from app.schema.run import EventSink, RunContext, RunResult

if TYPE_CHECKING:
    from app.agents.toolcall import ToolCallAgent
    from app.frontends.person import PersonAtTerminal
    from app.llm.downloads import DownloadHooks
    from app.memory.compaction import Compaction

PROBE_S = 1.0


async def configuration(options: argparse.Namespace) -> Config:
    """The configuration in force for a run: files, environment and flags, with the model that was asked for.

    Raises `ConfigError`; also when no model is found, unless `--llm` names one.
    """
    path = Path(options.config) if options.config else None
    flags = {
        "workspace.path": options.workspace,
        "sandbox.mode": options.sandbox,
        "budget.max_steps": options.max_steps,
        "budget.max_tokens": options.max_tokens,
        "budget.max_cost": options.max_cost,
        "budget.max_requests": options.max_requests,
        "budget.timeout_s": options.timeout,
    }
    if options.llm is None:
        config = await load_or_detect(path, env=os.environ, flags=flags)
    else:
        config = await with_model(load_config(path, env=os.environ, flags=flags), options.llm)
    return config


async def with_model(config: Config, name: str) -> Config:
    """The configuration with `name` among its models: one of the file's, else a vendor's or a server's by its label."""
    if name in config.llm:
        return config
    vendor, known = vendor_for(name, "")
    if vendor is None or not known:
        names = ", ".join(sorted(config.llm)) or "none"
        raise ConfigError(
            f"there is no [llm.{name}], and no vendor of that name is known",
            hint=f"configured: {names}; also test, embedded, ollama, openai, anthropic, deepseek and other vendors",
        )
    named, key = base_url_from_env(vendor, os.environ), key_from_env(vendor, os.environ)
    address = named[1] if named else ""
    model = vendor.default_model
    if not model and vendor.name in LOCAL_PORTS:
        found = await detect_model({}, timeout_s=PROBE_S, ports={vendor.name: LOCAL_PORTS[vendor.name]})
        if found is None or found.api_type != vendor.name:
            raise ConfigError(
                f"no {vendor.label} server with a model answers at {vendor.base_url}",
                hint="start it, or choose another --llm",
            )
        address, model = found.base_url, found.model
    settings = LLMSettings(
        name=name,
        api_type=name.lower(),
        base_url=address,
        api_key=SecretStr(key[1] if key else ""),
        model=model,
    )
    return config.model_copy(update={"llm": {**config.llm, name: settings}})


def why_chosen(config: Config, agent: str, override: str | None) -> tuple[str, str]:
    """Which model configuration an agent uses, and why, in words."""
    if override is not None:
        return override, f"--llm {override}"
    name, table = config.llm_name_for_agent(agent)
    origin = config.origins.get(f"llm.{name}.api_type", "")
    if origin.startswith("env "):
        return name, f"{origin[4:]} is set"
    return name, "found on this machine" if origin == "detected" else table


def with_other_model(config: Config, names: Iterable[str], model: str) -> Config:
    """The configuration with `--model` in the named model configurations."""
    changed = {name: config.llm[name].model_copy(update={"model": model}) for name in names if name in config.llm}
    return config.model_copy(update={"llm": {**config.llm, **changed}})


@dataclass(slots=True)
class Work:
    """An app and who works in it: one agent that remembers over turns, or a flow made anew for each."""

    app: App
    agent_name: str
    flow_agents: tuple[str, ...] | None = None
    parallel: int = 1
    why: str = ""
    keeping: Keeping = field(default_factory=Keeping)
    _agent: ToolCallAgent | None = field(default=None)

    def __post_init__(self) -> None:
        if self.flow_agents is None:
            self._agent = build_agent(self.app, self.agent_name)
        else:
            build_flow(self.app, agents=self.flow_agents)

    @property
    def llm(self) -> LLM:
        return self._agent.llm if self._agent is not None else self.app.llm_for("planner")

    def context(self, sink: EventSink) -> RunContext:
        """A fresh context with the limits of the configuration."""
        budget = self.app.config.budget
        deadline = time.monotonic() + budget.timeout_s if budget.timeout_s else None
        ledger = self.app.run_ledger(one_agent=self._agent is not None)
        ctx = RunContext(ledger=ledger, deadline=deadline, session=self.keeping.id)
        ctx.sink = self.keeping.sink(sink, tell_in(ctx))
        return ctx

    def keep(self, keeping: Keeping) -> None:
        """Work in this session from now on, with what it holds."""
        self.keeping = keeping
        if self._agent is not None:
            keeping.attach(self._agent)

    async def turn(self, task: str | None, ctx: RunContext, *, images: tuple[ImageBlock, ...] = ()) -> RunResult:
        """One run; without a task it goes on with what the session left unfinished."""
        await check_server(self.llm)
        try:
            if self._agent is not None:
                return await self._agent_turn(self._agent, task, ctx, images)
            plan = self.keeping.plan if task is None else None
            flow = build_flow(
                self.app, agents=self.flow_agents or (), parallel=self.parallel, keeper=self.keeping, plan=plan
            )
            return await flow.run(self.keeping.task if task is None else task, ctx, images=images)
        finally:
            # The end of the run; when it cannot be written, the run has said so.
            with suppress(SessionError):
                await self.keeping.settled()

    async def _agent_turn(
        self, agent: ToolCallAgent, task: str | None, ctx: RunContext, images: tuple[ImageBlock, ...]
    ) -> RunResult:
        if task is None or (self.keeping.answer(agent, task) and not images):
            return await agent.go_on(ctx)
        return await agent.run(task, ctx, images=images)

    async def compact(self, ctx: RunContext) -> Compaction | None:
        """Shorten what the agent remembers; None when nothing can be left out, and for a flow, which keeps nothing."""
        return await self._agent.compact(ctx) if self._agent is not None else None

    async def use(self, name: str) -> None:
        """Go on with another model configuration; what was said so far is kept. Raises `ConfigError`."""
        config = await with_model(self.app.config, name)
        if name not in self.app.config.llm:
            self.app.pool.get(name, config.llm[name])
        self.app.config, self.app.llm_override = config, name
        if self._agent is not None:
            before, self._agent = self._agent, build_agent(self.app, self.agent_name)
            self._agent.memory = before.memory
            self._agent.toolbox.doubt_like(before.toolbox)
        self.why = f"/model {name}"

    async def close(self) -> None:
        try:
            if self._agent is not None:
                await self._agent.close()
        finally:
            self.keeping.close()
            await self.app.close()


def build_work(
    options: argparse.Namespace,
    config: Config,
    *,
    flow: bool,
    person: PersonAtTerminal | None,
    downloads: DownloadHooks,
) -> Work:
    """Put everything together for these options. Raises `ConfigError`."""
    flow_agents = tuple(name.strip() for name in options.agents.split(",") if name.strip()) if flow else None
    workers = ("planner", *(flow_agents or config.runflow.agents)) if flow else (options.agent,)
    chosen = [why_chosen(config, worker, options.llm) for worker in workers]
    if options.model:
        config = with_other_model(config, [name for name, _ in chosen], options.model)
    app = build_app(
        config, approve=options.approve, approver=person, human=person, downloads=downloads, llm=options.llm
    )
    return Work(app, options.agent, flow_agents, getattr(options, "parallel", 1), chosen[0][1])


async def check_server(llm: LLM) -> None:
    """Fail at once when nothing listens at a model server of this very machine.

    A refused connection is worth retrying on the way to somewhere else; here it means that the server was not started.
    """
    settings = llm.settings
    vendor, _ = vendor_for(settings.api_type, settings.base_url)
    parts = urlsplit(settings.base_url or (vendor.base_url if vendor else ""))
    if not parts.hostname or not _is_loopback(parts.hostname):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except ConnectionRefusedError:
        raise LLMError(
            f"no model server answers at {parts.hostname}:{port}",
            "TRANSPORT",
            hint="start it, or check base_url; `python main.py doctor` looks for local servers",
        ) from None
    except (OSError, TimeoutError):
        return  # the request itself will find better words
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
