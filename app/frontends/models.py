"""`main.py models`: which models are within reach and what they can do; `models pull NAME` fetches an embedded one.

Asks every configured account, the local servers and the catalogue of embedded models, all at once and each with a short
time limit; whatever does not answer is one sentence.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app import paths
from app.config.detect import LOCAL_PORTS, NO_MODEL_HELP, load_or_detect
from app.config.settings import Config, LLMSettings
from app.config.vendors import VENDORS
from app.frontends.front import Front
from app.frontends.report import table_of
from app.llm.embedded.catalog import DEFAULT_MODEL, MODELS, EmbeddedModel, find_model
from app.llm.models import DEFAULTS, ModelFacts, facts_for, price_usd
from app.llm.pool import LLMPool
from app.schema.errors import ConfigError, DragomanError
from app.schema.usage import Usage

LISTING_S = 5.0
"""Longest time for one account's list of models."""
LOCAL_S = 1.0
"""Longest time for the list of a server on this machine."""
MOST_PROBED = 30
"""Models of one local server that are asked for one by one."""
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One model of an account, or why the account could not say (`error`). Prices in USD for a million tokens."""

    config: str | None
    account: str
    model: str
    facts: ModelFacts | None = None
    price_in: float | None = None
    price_out: float | None = None
    error: str = ""

    @property
    def words(self) -> str:
        return ", ".join(_facts_in_words(self)) if self.facts else self.error

    def to_json(self) -> dict[str, Any]:
        told = asdict(self.facts) if self.facts is not None else {}
        return {
            "config": self.config,
            "account": self.account,
            "model": self.model,
            **{name: told[name] for name in _TOLD if name in told},
            "input_usd_per_million": self.price_in,
            "output_usd_per_million": self.price_out,
            "error": self.error or None,
        }


_TOLD = (
    *("known", "context_window", "max_output_tokens", "images", "tools", "parallel_tools"),
    *("reasoning", "json_schema"),
)


def _facts_in_words(row: Row) -> Iterable[str]:
    facts = row.facts
    if facts is None or facts == DEFAULTS:
        yield "nothing is known of it; its abilities are tried"
        return
    yield f"window {facts.context_window:,}" if facts.context_window else "window unknown"
    if facts.max_output_tokens:
        yield f"output {facts.max_output_tokens:,}"
    for can, does, does_not in (
        (facts.tools, "tools", "tools as text"),
        (facts.images, "images", "no images"),
        (facts.reasoning, "reasoning", ""),
    ):
        if words := does if can else does_not if can is False else f"{does}?" if does_not else "":
            yield words
    if row.price_in == row.price_out == 0:
        yield "free"
    elif row.price_in is not None and row.price_out is not None:
        yield f"${row.price_in:g} in and ${row.price_out:g} out for a million tokens"


async def run_models(front: Front, options: argparse.Namespace) -> int:
    """Do what the options say; returns the exit code. Raises `ConfigError`, also when no model is configured at all."""
    if options.action == "pull":
        return await _pull(front, options)
    config = await load_or_detect(Path(options.config) if options.config else None, env=os.environ)
    front.redactor.learn(config)
    async with _pool(config.llm) as pool:
        accounts, servers = await asyncio.gather(
            asyncio.gather(*(_account(pool, settings) for settings in config.llm.values())),
            asyncio.gather(*(_server(name, port) for name, port in LOCAL_PORTS.items())),
        )
    if options.json:
        for row in (row for rows in (*accounts, *servers) for row in rows):
            front.say(json.dumps(row.to_json(), ensure_ascii=False))
        for model in MODELS.values():
            front.say(json.dumps(_embedded_json(model), ensure_ascii=False))
    else:
        for settings, rows in zip(config.llm.values(), accounts, strict=True):
            _say_account(front, config, settings, rows)
        _say_servers(front, servers)
        _say_embedded(front)
    if not config.llm:
        first, *more = NO_MODEL_HELP.splitlines()
        raise ConfigError(first, hint="\n".join(more))
    return 0


@asynccontextmanager
async def _pool(settings: dict[str, LLMSettings]) -> AsyncGenerator[LLMPool]:
    pool = LLMPool(settings)
    try:
        yield pool
    finally:
        await pool.close()


async def _account(pool: LLMPool, settings: LLMSettings) -> list[Row]:
    """What is configured, and what its account offers; the first row is the configured model."""
    name, account = settings.name, "unusable"
    own = Row(name, account, settings.model)
    try:
        llm = pool.get(name)
        account = f"at {llm.vendor}"
        if llm.vendor == "embedded":  # it is not started for this, and its models have a list of their own
            return [Row(name, account, settings.model, llm.facts, 0.0, 0.0)]
        await llm.learn_facts()
        own = _priced(Row(name, account, settings.model, llm.facts), llm.vendor, local=llm.local)
        async with asyncio.timeout(LISTING_S):
            listed = await pool.service.list_models(name)
    except TimeoutError:
        return [replace(own, account=account, error=f"error: no list within {LISTING_S:g} s")]
    except DragomanError as error:
        hint = f" → {error.hint}" if error.hint else ""
        words = f"error: {' '.join(error.message.split())}{' '.join(hint.splitlines())}"
        return [replace(own, account=account, error=words)]
    others = (model for model in listed if model.id != settings.model)
    rows = (Row(name, account, model.id, facts_for(model.id, context_window=model.context_window)) for model in others)
    return [own, *(_priced(row, llm.vendor, local=llm.local) for row in rows)]


def _priced(row: Row, vendor: str, *, local: bool) -> Row:
    def price(usage: Usage) -> float | None:
        return price_usd(row.model, usage, provider=vendor, local=local)

    cost_in, cost_out = price(Usage(input_tokens=MILLION)), price(Usage(output_tokens=MILLION))
    return replace(row, price_in=cost_in, price_out=cost_out)


async def _server(name: str, port: int) -> list[Row]:
    """The models of a server on this machine, each with what the server tells of it."""
    label = VENDORS[name].label
    settings = LLMSettings(name=name, api_type=name, base_url=f"http://127.0.0.1:{port}/v1", model="?")
    async with _pool({name: settings}) as pool:
        pool.get(name)
        try:
            async with asyncio.timeout(LOCAL_S):
                listed = await pool.service.list_models(name)
        except (DragomanError, TimeoutError):
            return [Row(None, label, "", error=f"nothing answers on port {port}")]
        rows: list[Row] = []
        for model in listed[:MOST_PROBED]:
            llm = pool.get(model.id, settings.model_copy(update={"name": model.id, "model": model.id}))
            await llm.learn_facts()
            rows.append(Row(None, label, model.id, llm.facts, 0.0, 0.0))
        return rows or [Row(None, label, "", error=f"answers on port {port} and offers no model")]


def _say_account(front: Front, config: Config, settings: LLMSettings, rows: list[Row]) -> None:
    own = rows[0]
    origin = config.origins.get(f"llm.{settings.name}.api_type", "default")
    came_from = f"  ({origin.removeprefix('env ')})" if origin.startswith(("env ", "detected")) else ""
    front.say(f"{table_of(settings.name)}  {own.model or '(no model named)'}  {own.account}{came_from}")
    for row in rows if own.facts else ():
        front.say(f"    {row.model}: {row.words}")
    if own.error:
        front.say(f"    {own.error}")


def _say_servers(front: Front, servers: Iterable[list[Row]]) -> None:
    front.say("Servers on this machine")
    for rows in servers:
        for row in rows:
            front.say(f"    {row.account}{f' {row.model}' if row.model else ''}: {row.words}")


def _say_embedded(front: Front) -> None:
    installed = importlib.util.find_spec("xllamacpp") is not None
    missing = "" if installed else "; they need: pip install 'dragoman[embedded]'"
    front.say(f"Embedded models (fetched by `python main.py models pull NAME`{missing})")
    for model in MODELS.values():
        low, high = model.step_s
        default, here = model.name == DEFAULT_MODEL, _is_here(model)
        mark = f"{' (the default)' if default else ''}{' (here)' if here else ''}"
        front.say(
            f"    {model.name}{mark}: {model.size / 1e9:.1f} GB to fetch, {model.memory_mb / 1000:.1f} GB of memory,"
            f" {low} to {high} s a step. {model.good_for}"
        )


def _is_here(model: EmbeddedModel) -> bool:
    return (paths.runtime_home() / "models" / model.file).is_file()


def _embedded_json(model: EmbeddedModel) -> dict[str, Any]:
    return {
        "config": None,
        "account": "embedded",
        "model": model.name,
        "context_window": model.context_window,
        "tools": model.max_tools > 0,
        "images": False,
        "bytes": model.size,
        "memory_bytes": model.memory_mb * MILLION,
        "step_seconds": list(model.step_s),
        "here": _is_here(model),
        "error": None,
    }


async def _pull(front: Front, options: argparse.Namespace) -> int:
    """Bring an embedded model here, after a yes; the path is the answer."""
    from app.llm.downloads import Progress, consent_given
    from app.llm.embedded.fetch import ensure_model

    model = find_model(options.model)
    asks = sys.stdin is not None and sys.stdin.isatty() and not options.json

    async def consent(question: str) -> bool:
        front.tell(f"{question} [y]es or [N]o: ")
        return (await asyncio.to_thread(sys.stdin.readline)).strip().lower() in ("y", "yes")

    async def nobody(question: str) -> bool:
        return False

    shown = ""

    def progress(at: Progress) -> None:
        nonlocal shown
        # A line for each tenth, so that a log stays readable too.
        step = f"{at.phase} {10 * at.done // at.total if at.total else 0}"
        if step != shown and at.phase in ("download", "verify"):
            shown = step
            front.tell(at.text)

    answer = consent_given if options.yes else consent if asks else nobody
    path = await ensure_model(model, paths.runtime_home(), consent=answer, progress=progress)
    front.say(json.dumps({"model": model.name, "path": str(path)}) if options.json else str(path))
    return 0
