"""Defects of the peers that no other test of this room names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.config.settings import LLMSettings, TimeoutSettings
from app.frontends.intake import read_image
from app.llm.history import is_valid, problems, repair
from app.llm.pool import LLMPool
from app.llm.tokens import TokenCounter
from app.schema.errors import LLMError
from app.schema.message import system_message, user_message
from tests.conftest import MakeServer
from tests.fault_server import reply, stall, status, web_page
from tests.fault_server.behaviours import events as stream


def settings(url: str, **more: Any) -> LLMSettings:
    return LLMSettings(model="m", base_url=url, api_key="sk-test", retry={"max_retries": 0}, **more)  # type: ignore[arg-type]


async def test_defect_13_m13_web_page_and_no_choices(fault_server: MakeServer) -> None:
    server = await fault_server([web_page(), status(200, {"choices": []}), stream({"ok": True}, done=False)])
    pool = LLMPool({"default": settings(server.url)})
    with pytest.raises(LLMError) as page:
        await pool.get().ask("hi")
    assert page.value.code == "ENDPOINT"
    assert "base_url" in page.value.hint
    with pytest.raises(LLMError) as empty:
        await pool.get().ask("hi")
    assert empty.value.code == "EMPTY_RESPONSE"
    with pytest.raises(LLMError) as nothing:
        await pool.get().ask("hi")
    assert nothing.value.code == "STREAM_CLOSED"
    await pool.close()


async def test_defect_34_time_limits_are_settings(fault_server: MakeServer) -> None:
    server = await fault_server(
        [stall(), stall(reply("hello world"), events=2), reply("x" * 400, between_events_s=0.05)]
    )
    limits = {
        "first": TimeoutSettings(first_byte_s=0.05),
        "idle": TimeoutSettings(idle_s=0.05),
        "total": TimeoutSettings(total_s=0.1),
    }
    pool = LLMPool({name: settings(server.url, name=name, timeout=limit) for name, limit in limits.items()})
    for name, setting in (("first", "first_byte_s"), ("idle", "idle_s"), ("total", "total_s")):
        began = time.monotonic()
        with pytest.raises(LLMError) as error:
            await pool.get(name).ask("hi")
        assert error.value.code == "TIMEOUT"
        assert setting in error.value.hint
        assert time.monotonic() - began < 2
    await pool.close()


def test_h12_system_text_in_the_middle_becomes_the_users() -> None:
    history = (user_message("a"), system_message("tools changed"), user_message("b"))
    assert problems(history) == ["message 1: a system message inside the conversation"]
    mended = repair(history)
    assert is_valid(mended)
    assert [(message.role, message.text) for message in mended] == [
        ("user", "a"),
        ("user", "tools changed"),
        ("user", "b"),
    ]


def test_defects_20_31_a_picture_file_tells_its_own_type_and_size(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    Image.new("1", (2048, 4096)).save(path, "PNG")
    picture = read_image(str(path))
    assert (picture.media_type, picture.width, picture.height) == ("image/png", 2048, 4096)
    shown, blank = (TokenCounter("gpt-4o").message(user_message(content)) for content in ((picture,), ()))
    assert shown - blank == 1105
