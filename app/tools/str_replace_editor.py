"""`str_replace_editor`: viewing, creating and exactly editing text files. Bytes and paths are the matter of `files`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from app.schema.errors import ToolError
from app.schema.run import RunContext
from app.tools.base import Approval, Args, Effect, Tool, ToolOutput
from app.tools.files import TextFile, WorkspaceFiles, decode_text

ValueT = TypeVar("ValueT")

_CONTEXT_LINES = 4
_FOLDER_ENTRIES = 500
_UNDO_DEPTH = 20
_MAX_BYTES = 20 * 1024 * 1024
_MAX_LINE = 2000


class EditorArgs(Args):
    command: Literal["view", "create", "str_replace", "insert", "undo_edit"]
    path: Annotated[str, Field(min_length=1, description="relative to the workspace")]
    file_text: Annotated[str | None, Field(description="for create")] = None
    old_str: Annotated[str | None, Field(description="text to replace, must occur exactly once")] = None
    new_str: Annotated[str | None, Field(description="for str_replace and insert")] = None
    insert_line: Annotated[int | None, Field(description="insert after this line, 0 = at the top")] = None
    view_range: Annotated[list[int] | None, Field(description="[first, last] line, last -1 = end")] = None


class StrReplaceEditor(Tool[EditorArgs]):
    """Edits touch only the lines they name; encoding, byte-order mark, line endings and file mode stay as they were.

    The undo history lives as long as the tool. `max_view_chars` bounds one view, which is cut at a line border.
    """

    name = "str_replace_editor"
    description = "View a file or folder, create a file, replace a text in a file, insert lines, or undo the last edit."
    Arguments = EditorArgs

    def __init__(self, workspace: Path, *, max_view_chars: int = 24_000) -> None:
        self._files = WorkspaceFiles(workspace)
        self._max_view_chars = max_view_chars
        # For each path the contents before and after each edit; None = there was no file.
        self._history: dict[Path, list[tuple[bytes | None, bytes]]] = {}

    def effect_of(self, args: EditorArgs) -> Effect:
        if args.command == "create":
            return "idempotent"
        return "read" if args.command == "view" else "once"

    def approval(self, args: EditorArgs) -> Approval | None:
        if args.command == "view" or not _guides_git(self._files, args.path):
            return None
        # Hooks and settings in there name programs that git runs later, outside of any approval.
        return Approval("it changes git's own files, which decide what git runs", args.path, crosses_border=True)

    def run(self, args: EditorArgs, ctx: RunContext) -> ToolOutput:
        path = self._files.resolve(args.path)
        try:
            match args.command:
                case "view":
                    return ToolOutput(self._view(path, args))
                case "create":
                    return ToolOutput(self._create(path, _needed(args.file_text, "file_text", args)))
                case "str_replace":
                    return ToolOutput(self._replace(path, _needed(args.old_str, "old_str", args), args.new_str or ""))
                case "insert":
                    text = args.new_str if args.new_str is not None else args.file_text
                    return ToolOutput(
                        self._insert(
                            path, _needed(args.insert_line, "insert_line", args), _needed(text, "new_str", args)
                        )
                    )
                case "undo_edit":
                    return ToolOutput(self._undo(path))
        except OSError as error:
            raise ToolError(f"{self._shown(path)}: {error.strerror or error}") from error

    def write(self, path_text: str, text: str) -> ToolOutput:
        """Write a whole file, new or not; can be undone like an edit. Raises `ToolError` like the tool itself."""
        path = self._files.resolve(path_text)
        try:
            if path.is_dir():
                raise ToolError(f"{self._shown(path)} is a folder")
            before = self._files.read(path) if path.exists() else None
            self._save(path, before, TextFile(text).encode(text))
        except OSError as error:
            raise ToolError(f"{self._shown(path)}: {error.strerror or error}") from error
        return ToolOutput(f"wrote {self._shown(path)} ({len(_lines(text))} lines)")

    # view

    def _view(self, path: Path, args: EditorArgs) -> str:
        if path.is_dir():
            if args.view_range:
                raise ToolError("view_range is for files, and this is a folder")
            return self._view_folder(path)
        file = decode_text(data := self._bytes(path))
        if file is None:
            return f"{self._shown(path)} is a binary file of {len(data):,} bytes; it is not shown as text"
        lines = _lines(file.text)
        first, last = _range(args.view_range, len(lines))
        if not lines:
            return f"{self._shown(path)} is empty"
        return self._numbered(path, lines, first, last)

    def _numbered(self, path: Path, lines: Sequence[str], first: int, last: int) -> str:
        shown: list[str] = []
        size = 0
        for number in range(first, last + 1):
            line = _number(number, lines[number - 1])
            if shown and size + len(line) + 1 > self._max_view_chars:
                last = number - 1
                break
            shown.append(line)
            size += len(line) + 1
        if (first, last) != (1, len(lines)):
            rest = f"; go on with view_range [{last + 1}, {len(lines)}]" if last < len(lines) else ""
            shown.append(f"[lines {first}-{last} of {len(lines)} in {self._shown(path)}{rest}]")
        return "\n".join(shown)

    def _view_folder(self, folder: Path) -> str:
        entries: list[str] = []
        hidden = 0
        for entry in _children(folder):
            if entry.name.startswith("."):
                hidden += 1
                continue
            entries.append(_entry(entry, 0))
            if entry.is_dir() and not entry.is_symlink():
                entries += [_entry(child, 1) for child in _children(entry) if not child.name.startswith(".")]
        notes: list[str] = []
        if len(entries) > _FOLDER_ENTRIES:
            notes.append(f"{len(entries) - _FOLDER_ENTRIES} more entries")
        if hidden:
            notes.append(f"{hidden} hidden")
        tail = [f"[{', '.join(notes)}]"] if notes else []
        return "\n".join([f"{self._shown(folder)}/", *(entries[:_FOLDER_ENTRIES] or ["(empty)"]), *tail])

    # edits

    def _create(self, path: Path, text: str) -> str:
        data = TextFile(text).encode(text)
        if path.is_dir():
            raise ToolError(f"{self._shown(path)} is a folder")
        before = self._files.read(path) if path.exists() else None
        if before == data:
            return f"{self._shown(path)} is written; it had exactly this content before"
        if before:
            raise ToolError(
                f"{self._shown(path)} exists already and was not overwritten",
                hint="change it with str_replace or insert, or create another path",
            )
        self._save(path, before, data)
        return f"created {self._shown(path)} ({len(_lines(text))} lines)"

    def _replace(self, path: Path, old: str, new: str) -> str:
        data, file = self._text(path)
        if not old:
            raise ToolError("old_str is empty", hint="use insert to add lines, create for a new file")
        if old == new:
            raise ToolError("old_str and new_str are the same, nothing to change")
        found, note = _find(file.text, old)
        if not found:
            raise ToolError(
                f"old_str was not found in {self._shown(path)}{_nearest(file.text, old)}", hint="view the file"
            )
        if len(found) > 1:
            places = ", ".join(str(_line_of(file.text, match.start())) for match in found[:10])
            raise ToolError(
                f"old_str occurs {len(found)} times in {self._shown(path)}, at lines {places}",
                hint="add lines around it so that it occurs once",
            )
        start, end = found[0].span()
        fresh = _with_newline(new, file.newline)
        text = file.text[:start] + fresh + file.text[end:]
        self._save(path, data, file.encode(text))
        return self._edited(path, text, _line_of(text, start), len(_lines(fresh)), note)

    def _insert(self, path: Path, after: int, text: str) -> str:
        data, file = self._text(path)
        pieces = _pieces(file.text)
        if not 0 <= after <= len(pieces):
            raise ToolError(f"insert_line {after} is not in {self._shown(path)}, which has lines 0 to {len(pieces)}")
        fresh = _with_newline(text, file.newline)
        if not fresh.endswith("\n") and after < len(pieces):
            fresh += file.newline
        before = "".join(pieces[:after])
        if before and not before.endswith("\n"):
            before += file.newline
        result = before + fresh + "".join(pieces[after:])
        self._save(path, data, file.encode(result))
        return self._edited(path, result, after + 1, len(_lines(fresh)), "")

    def _undo(self, path: Path) -> str:
        edits = self._history.get(path)
        if not edits:
            raise ToolError(f"there is nothing to undo in {self._shown(path)}")
        before, after = edits[-1]
        if not path.exists() or self._files.read(path) != after:
            raise ToolError(
                f"{self._shown(path)} was changed by something else since, so nothing was undone",
                hint="edit it with str_replace",
            )
        edits.pop()
        if before is None:
            self._files.remove(path)
            return f"undone: {self._shown(path)} is removed again"
        self._files.write(path, before)
        return f"undone: the last edit of {self._shown(path)}"

    def _save(self, path: Path, before: bytes | None, after: bytes) -> None:
        self._files.write(path, after)
        edits = self._history.setdefault(path, [])
        edits.append((before, after))
        del edits[:-_UNDO_DEPTH]

    def _edited(self, path: Path, text: str, first: int, count: int, note: str) -> str:
        lines = _lines(text)
        start = max(1, first - _CONTEXT_LINES)
        end = min(len(lines), first + max(count, 1) - 1 + _CONTEXT_LINES)
        snippet = "\n".join(_number(number, lines[number - 1]) for number in range(start, end + 1))
        return f"edited {self._shown(path)}{note}, now:\n{snippet or '(empty file)'}"

    def _bytes(self, path: Path) -> bytes:
        if not path.exists():
            raise ToolError(f"{self._shown(path)} does not exist", hint="view the folder, or create the file")
        if not path.is_file():
            raise ToolError(f"{self._shown(path)} is not a regular file")
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise ToolError(
                f"{self._shown(path)} is too large ({size:,} bytes)", hint="use bash with head, tail or grep"
            )
        return self._files.read(path)

    def _text(self, path: Path) -> tuple[bytes, TextFile]:
        file = decode_text(data := self._bytes(path))
        if file is None:
            raise ToolError(f"{self._shown(path)} is a binary file of {len(data):,} bytes and cannot be edited as text")
        return data, file

    def _shown(self, path: Path) -> str:
        return path.relative_to(self._files.root).as_posix()


def _needed(value: ValueT | None, name: str, args: EditorArgs) -> ValueT:
    if value is None:
        raise ToolError(f"{name}: is required for {args.command}", code="TOOL_ARGUMENTS")
    return value


def _guides_git(files: WorkspaceFiles, path: str) -> bool:
    parts = [*Path(path).parts, *files.resolve(path).relative_to(files.root).parts]
    return any(part.lower() == ".git" for part in parts)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda entry: entry.name)


def _entry(entry: Path, depth: int) -> str:
    mark = "@" if entry.is_symlink() else "/" if entry.is_dir() else ""
    return "  " * (depth + 1) + entry.name + mark


def _pieces(text: str) -> list[str]:
    """The lines with their endings; only a line feed ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


def _lines(text: str) -> list[str]:
    return [piece.removesuffix("\n").removesuffix("\r") for piece in _pieces(text)]


def _number(number: int, line: str) -> str:
    cut = f"{line[:_MAX_LINE]} [… line of {len(line):,} characters]" if len(line) > _MAX_LINE else line
    return f"{number:>6}\t{cut}"


def _range(wanted: list[int] | None, total: int) -> tuple[int, int]:
    if wanted is None:
        return 1, total
    first, last = wanted if len(wanted) == 2 else (0, 0)
    last = total if last == -1 else last
    if first < 1 or last < first or (first > total > 0):
        raise ToolError(f"view_range {wanted} is not a range of lines; this file has lines 1 to {total}")
    return first, min(last, total)


def _line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _with_newline(text: str, newline: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", newline)


def _find(text: str, old: str) -> tuple[list[re.Match[str]], str]:
    """Where `old` stands, line endings aside; failing that, where it stands when spaces at line ends do not count."""
    lines = old.replace("\r\n", "\n").split("\n")
    exact = _occurrences(text, r"\r?\n".join(map(re.escape, lines)))
    if exact or len(lines) < 2:
        return exact, ""
    loose = r"[ \t]*\r?\n".join(re.escape(line.rstrip(" \t")) for line in lines)
    found = _occurrences(text, loose) if old.strip() else []
    return found, " (spaces at line ends were ignored)" if found else ""


def _occurrences(text: str, pattern: str) -> list[re.Match[str]]:
    """All matches, overlapping ones too: "aa" stands twice in "aaa"."""
    expression = re.compile(pattern)
    found: list[re.Match[str]] = []
    match = expression.search(text)
    while match and len(found) < 1000:
        found.append(match)
        match = expression.search(text, match.start() + 1)
    return found


def _nearest(text: str, old: str) -> str:
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = [line.strip() for line in _lines(text)[:5000]]
    near = difflib.get_close_matches(wanted, [line for line in lines if line], n=1, cutoff=0.6)
    return f"; the nearest line is {lines.index(near[0]) + 1}: {near[0][:200]}" if near else ""
