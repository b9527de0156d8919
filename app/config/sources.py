"""Reads configuration files: finds them, decodes them, and says of each key on which line it stands.

What the keys mean is `load.py`'s matter. A file that cannot be read is a `ConfigError` that never quotes the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

from app import paths
from app.schema.errors import ConfigError

KeyPath: TypeAlias = tuple[str, ...]
Table: TypeAlias = dict[str, object]

EXAMPLE_HINT = "copy config/config.example.toml to config/config.toml and edit it, or name a file with --config"
_WINDOWS_HINT = "write Windows paths in single quotes ('C:\\Users\\me') or with forward slashes (\"C:/Users/me\")"
_VALUE_HINT = 'texts stand in quotes (model = "gpt-4o"); true and false are written in lower case'


class Place(NamedTuple):
    """Where a value comes from: a file with a line, or `env NAME`, `flag --name` and the like with line 0."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(slots=True)
class Source:
    """Raw values as a tree of tables, and the place of every key path in it."""

    tree: Table = field(default_factory=dict[str, object])
    places: dict[KeyPath, Place] = field(default_factory=dict[KeyPath, Place])

    def table(self, name: str) -> Table:
        """The table at the top, empty when there is none."""
        value = self.tree.get(name)
        return cast(Table, value) if isinstance(value, dict) else {}

    def get(self, path: KeyPath) -> object:
        value = cast(object, self.tree)
        for part in path:
            value = cast(Table, value).get(part) if isinstance(value, dict) else None
        return value

    def set(self, path: KeyPath, value: object, place: Place) -> None:
        """Put a value, with the tables it needs; where a plain value stands in a table's place, nothing happens."""
        table = self.tree
        for part in path[:-1]:
            inner: object = table.setdefault(part, {})
            if not isinstance(inner, dict):
                return
            table = cast(Table, inner)
        table[path[-1]] = value
        self._mark(path, value, place)

    def remove(self, path: KeyPath) -> None:
        parent = self.get(path[:-1])
        if isinstance(parent, dict):
            cast(Table, parent).pop(path[-1], None)
        self.places.pop(path, None)

    def _mark(self, path: KeyPath, value: object, place: Place) -> None:
        self.places[path] = place
        if isinstance(value, dict):
            for key, inner in cast(Table, value).items():
                self._mark((*path, key), inner, place)


def find_config(explicit: Path | None, env: Mapping[str, str]) -> Path | None:
    """The configuration file in force, or None. Raises `ConfigError` when a file that was named is missing."""
    named = explicit or (Path(env["DRAGOMAN_CONFIG"]) if env.get("DRAGOMAN_CONFIG") else None)
    if named is not None:
        named = paths.expand(named).absolute()
        if not _exists(named):
            by = "" if explicit else " (named by DRAGOMAN_CONFIG)"
            raise ConfigError(f"the configuration file {named}{by} does not exist", hint=EXAMPLE_HINT)
        return named
    folders = (Path.cwd() / "config", paths.PROJECT_ROOT / "config", paths.runtime_home(env))
    return next((folder / "config.toml" for folder in folders if _exists(folder / "config.toml")), None)


def find_mcp(config: Path | None) -> Path | None:
    """`mcp.json` beside the configuration in force, else in `config/`."""
    folders = (*([config.parent] if config else []), Path.cwd() / "config", paths.PROJECT_ROOT / "config")
    return next((folder / "mcp.json" for folder in folders if _exists(folder / "mcp.json")), None)


def read_toml(path: Path) -> Source:
    label = short(path)
    text = _read_text(path, label)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _toml_error(str(error), text, label) from None
    return Source(tree, {key: Place(label, line) for key, line in key_lines(text).items()})


def read_json(path: Path) -> Source:
    """A JSON file; its places name the file alone."""
    label = short(path)
    try:
        tree: object = json.loads(_read_text(path, label))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{label}:{error.lineno}: no valid JSON, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ConfigError(f"{label}: nested too deeply") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{label}: must be a JSON object", hint='for example {"mcpServers": {}}')
    return Source(cast(Table, tree), {(): Place(label)})


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of each table and key of a valid TOML text.

    A statement is the shortest run of lines that parses by itself, so the parser of the standard library does the
    work and multi-line texts and lists need no rules of their own.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    pending: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending.append(line)
        if len(pending) > 1 and not re.search(r"\"\"\"|'''|[\]}]", line):
            continue
        try:
            parsed = tomllib.loads("\n".join(pending))
        except tomllib.TOMLDecodeError:
            continue
        first = number - len(pending) + 1
        if pending[0].lstrip().startswith("["):
            table = _header(parsed)
            lines.setdefault(table, first)
        else:
            _record(parsed, table, first, lines)
        pending = []
    return lines


def short(path: Path) -> str:
    """A path as people write it: relative to the current folder or the project when it lies inside."""
    for folder in (Path.cwd(), paths.PROJECT_ROOT):
        if path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return str(path)


def _header(parsed: Mapping[str, object]) -> KeyPath:
    key, value = next(iter(parsed.items()))
    return (key, *_header(cast(Table, value))) if isinstance(value, dict) and value else (key,)


def _record(parsed: Mapping[str, object], table: KeyPath, line: int, lines: dict[KeyPath, int]) -> None:
    for key, value in parsed.items():
        lines.setdefault((*table, key), line)
        if isinstance(value, dict):
            _record(cast(Table, value), (*table, key), line, lines)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # it is there, but not for us: reading it gives the sentence
    return True


def _read_text(path: Path, label: str) -> str:
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise ConfigError(f"{label} is a folder, not a file", hint=EXAMPLE_HINT) from None
    except OSError as error:
        raise ConfigError(f"{label} cannot be read: {error.strerror or error}") from None
    hint = "save it as UTF-8 in your editor"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{label} is saved as UTF-16", hint=hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{label}:{line}: not UTF-8 text", hint=hint) from None


def _toml_error(message: str, text: str, label: str) -> ConfigError:
    lines = text.split("\n")
    found = re.search(r"\(at line (\d+), column (\d+)\)", message)
    line = int(found[1]) if found else len(lines)
    reason = re.sub(r"\s*\(at .*\)$", "", message)
    where = f"{label}:{line}: no valid TOML" + (f", column {found[2]}" if found else ", at the end of the file")
    faulty = lines[line - 1] if line <= len(lines) else ""
    if re.search(r'"[^"]*\\', faulty):
        return ConfigError(f"{where}: a backslash in double quotes starts an escape ({reason})", hint=_WINDOWS_HINT)
    return ConfigError(f"{where}: {reason}", hint=_VALUE_HINT if reason == "Invalid value" else "")
