"""The `.dragoman/` folder inside a workspace: full outputs, logs and scripts that the program itself puts there."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import BinaryIO

from app.paths import resolve_in_workspace

FOLDER = ".dragoman"
OUTPUTS = "outputs"
SCRIPTS = "scripts"


def scratch_dir(workspace: Path, name: str) -> Path:
    """The folder `.dragoman/<name>` of the workspace, made on demand and hidden from git.

    Raises `SandboxError` when a link leads it outside the workspace, `OSError` when it cannot be made.
    """
    folder = resolve_in_workspace(workspace, Path(FOLDER) / name)
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder


def new_scratch_file(workspace: Path, folder: str, stem: str, suffix: str) -> tuple[Path, BinaryIO]:
    """A file that did not exist before, open for writing; its name is `stem` made safe, numbered when taken."""
    parent = scratch_dir(workspace, folder)
    safe = re.sub(r"[^\w.-]+", "_", stem)[:60].strip(".") or "output"
    for number in itertools.count(1):
        path = parent / f"{safe}{'' if number == 1 else f'-{number}'}{suffix}"
        try:
            # "x" never follows a link that waits under this name.
            return path, path.open("xb")
        except FileExistsError:
            continue
    raise AssertionError("counting ended")


def shown_path(workspace: Path, path: Path) -> str:
    """How the model is told of a file: relative to the workspace, with forward slashes."""
    root = workspace.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else os.fspath(path)
