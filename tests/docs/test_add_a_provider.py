"""The worked example of `docs/add-a-provider.md` runs as it is printed, and keeps the adapter's rules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from app.config.settings import LLMSettings
from app.llm.pool import LLMPool
from app.schema.errors import LLMError
from app.schema.message import user_message
from app.schema.request import CallConfig, ModelRequest
from app.schema.stream import check_stream

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "add-a-provider.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def phrasebook(monkeypatch: pytest.MonkeyPatch) -> type:
    module = types.ModuleType("docs_add_a_provider")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(blocks("python")[0], str(PAGE), "exec"), module.__dict__)
    return module.Phrasebook


def test_the_page_runs_as_it_is_printed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks("python"))],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Bonjour.\n", "")


async def test_the_example_keeps_the_grammar(phrasebook: type) -> None:
    request = ModelRequest(CallConfig("default", "phrases-1"), (user_message("thank you"),))
    chunks = [type(chunk).__name__ async for chunk in check_stream(phrasebook().stream(request))]
    assert chunks == ["BlockStart", "TextDelta", "BlockEnd", "UsageReport", "Finish"]


async def test_the_example_fails_with_a_code_and_a_hint(phrasebook: type) -> None:
    pool = LLMPool({"default": LLMSettings(model="phrases-1")}, adapters={"default": phrasebook()})
    with pytest.raises(LLMError) as error:
        await pool.get().ask("why?")
    assert (error.value.code, str(error.value)) == ("INVALID_REQUEST", "no phrase for 'why?'")
    await pool.close()


def test_the_page_names_settings_that_load(tmp_path: Path) -> None:
    from app.config.load import load_config

    file = tmp_path / "config.toml"
    file.write_text(blocks("toml")[0])
    config = load_config(file, env={"EXAMPLE_API_KEY": "sk-example"})
    assert config.llm["default"].base_url == "https://api.example.com/v1"
    assert config.llm["default"].api_key.get_secret_value() == "sk-example"
