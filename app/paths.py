"""Where things live: project root, workspace (an agent may write there), runtime home (sessions, logs, caches).

Only names and lookups; nothing is created before somebody writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from app.schema.errors import ConfigError, SandboxError

PROJECT_ROOT = Path(__file__).resolve().parent.parent


def expand(path: str | os.PathLike[str]) -> Path:
    return Path(path).expanduser()


def runtime_home(env: Mapping[str, str] = os.environ) -> Path:
    """The folder for sessions, logs, screenshots and caches: `DRAGOMAN_HOME`, `AGENT_RUNTIME_DIR`, or a default.

    The default is `$XDG_DATA_HOME/dragoman` or `~/.local/share/dragoman`, so a read-only source tree works.
    """
    for name in ("DRAGOMAN_HOME", "AGENT_RUNTIME_DIR"):
        if value := env.get(name):
            return expand(value).absolute()
    base = env.get("XDG_DATA_HOME") or "~/.local/share"
    return expand(base).absolute() / "dragoman"


def runtime_dir(name: str) -> Path:
    """A sub-folder of the runtime home, created on demand. Raises `ConfigError` when it cannot be."""
    folder = runtime_home() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create {folder}: {error.strerror or error}", hint="set DRAGOMAN_HOME to a writable folder"
        ) from error
    return folder


def workspace_dir(setting: str | os.PathLike[str] | None = None) -> Path:
    """The workspace: the given setting, else `DRAGOMAN_WORKSPACE`, else `WORK_DIR`, else `workspace/` of the project.

    An installed package has no project folder; there the default is `workspace` under the current folder. Where that
    place is read-only, as in a container with a read-only source tree, it is `workspace` under the runtime home.
    """
    for value in (setting, os.environ.get("DRAGOMAN_WORKSPACE"), os.environ.get("WORK_DIR")):
        if value:
            return expand(value).absolute()
    home = PROJECT_ROOT if (PROJECT_ROOT / "pyproject.toml").is_file() else Path.cwd()
    folder = home / "workspace"
    writable = os.access(folder if folder.exists() else home, os.W_OK)
    return folder if writable else runtime_home() / "workspace"


def lies_in(inner: Path, outer: Path) -> bool:
    """Whether a place is inside another, or is it, links followed."""
    inner, outer = inner.resolve(), outer.resolve()
    return inner == outer or outer in inner.parents


def prepare_workspace(folder: Path) -> Path:
    """Create the workspace and prove that it can be written; returns its real path, or raises `ConfigError`."""
    hint = "choose another folder with --workspace or DRAGOMAN_WORKSPACE"
    probe = folder / f".dragoman-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"the workspace {folder} is not writable: {error.strerror or error}", hint=hint) from error
    return folder.resolve()


def resolve_in_workspace(workspace: Path, path: str | os.PathLike[str]) -> Path:
    """The real path of `path` (relative to the workspace, or absolute inside it), links followed.

    Raises `SandboxError` when it leads outside, through `..`, an absolute path or a link, and for a path that
    cannot be one (NUL characters, a Windows path on another system).
    """
    text = os.fspath(path)
    if "\0" in text:
        raise SandboxError("a path cannot contain NUL characters")
    if os.name != "nt" and (text[1:3] == ":\\" or (("\\" in text) and "/" not in text)):
        raise SandboxError(f"{text} looks like a Windows path", hint="use forward slashes, relative to the workspace")
    root = workspace.resolve()
    try:
        target = (root / expand(text)).resolve()
    except (OSError, RuntimeError) as error:
        raise SandboxError(f"{text} cannot be resolved: {error}") from error
    if target != root and root not in target.parents:
        raise SandboxError(f"{text} is outside the workspace", hint=f"stay inside {root}")
    return target
