"""The `.dragoman/` folder inside a workspace: full outputs, logs and scripts that the program itself puts there."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import BinaryIO

from app.paths import resolve_in_workspace
from app.schema.errors import SandboxError

FOLDER = ".dragoman"
OUTPUTS = "outputs"
SCRIPTS = "scripts"

NOT_KEPT = "the full text was not kept"
_CUT = re.compile(r"\n\[\.\.\. ([\d,]+) characters left out; (.+?) \.\.\.\]\n")
"""The marker of `cut_middle`."""


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


def keep_text(workspace: Path | None, stem: str, text: str) -> Path | None:
    """Put a text that is shown shortened into a file of its own; None when it cannot be kept."""
    if workspace is None:
        return None
    try:
        path, file = new_scratch_file(workspace, OUTPUTS, stem, ".txt")
        with file:
            file.write(text.encode("utf-8", "replace"))
    except (OSError, SandboxError):
        # The shortened text still says what is missing; a full disk must not cost the rest.
        return None
    return path


def where_kept(workspace: Path | None, path: Path | None) -> str:
    """Words for the marker of a text that was cut: where all of it is."""
    if path is None:
        return NOT_KEPT
    return f"the full text is in {shown_path(workspace, path) if workspace else path}"


def cut_middle(text: str, head: int, tail: int, where: str, *, omitted: int = 0) -> str:
    """The first `head` and the last `tail` characters, and between them how many are left out (`omitted` more)."""
    left_out = len(text) - head - tail + omitted
    return f"{text[:head]}\n[... {left_out:,} characters left out; {where} ...]\n{text[len(text) - tail :]}"


def cut_before(text: str) -> tuple[int, str] | None:
    """How many characters a text that was cut before had lost, and where all of it is; None for a whole text."""
    found = _CUT.search(text)
    return (int(found[1].replace(",", "")), found[2]) if found else None
