"""What Python code may do, judged from its syntax tree: whether it may act outside the workspace. Confines nothing."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

from app.paths import resolve_in_workspace
from app.schema.errors import SandboxError


def word_set(words: str) -> frozenset[str]:
    """The words of a text, for tables of names."""
    return frozenset(words.split())


_MODULES = word_set(
    "subprocess socket socketserver ssl urllib http ftplib smtplib imaplib poplib telnetlib xmlrpc pty ctypes cffi "
    "webbrowser importlib runpy pip ensurepip venv builtins marshal requests httpx aiohttp websockets paramiko fabric "
    "boto3 selenium playwright psutil sh pexpect docker code codeop _posixsubprocess"
)
_OS_NAMES = word_set(
    "system popen fork forkpty kill killpg remove unlink rmdir removedirs chdir fchdir chroot symlink link chmod chown "
    "lchown setuid setgid putenv startfile posix_spawn posix_spawnp truncate mknod"
)
# `remove` and `link` are also words of lists and models, so these count behind their module alone.
_MODULE_NAMES = {"os": _OS_NAMES, "posix": _OS_NAMES, "shutil": word_set("rmtree move chown")}
_ATTRIBUTES = word_set(
    "unlink rmdir rmtree symlink_to hardlink_to link_to expanduser expandvars home popen modules __subclasses__ "
    "__globals__ __builtins__ __bases__ __mro__ __loader__ __import__ __getattribute__ create_subprocess_exec "
    "create_subprocess_shell open_connection start_server create_connection create_server"
)
_NAMES = word_set("eval exec compile __import__ __builtins__ __loader__ globals vars breakpoint")
_TEXT_METHODS = word_set("join split rsplit partition rpartition replace strip lstrip rstrip count startswith endswith")
_UPWARD = re.compile(r"(?:^|[\s/'\"])\.\.(?:[\s/'\"]|$)")


def leaves_workspace(code: str, workspace: Path) -> bool:
    """Whether the code may act outside the workspace or on the network, as far as its text tells.

    Errs on the side of yes. Code that is no Python cannot run at all, so it leaves nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    except (RecursionError, MemoryError):
        return True
    nodes = list(ast.walk(tree))
    # A module that is handed around cannot be followed by name any more.
    followed = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    separators = {id(text) for node in nodes if isinstance(node, ast.Call) for text in _separators(node)}
    return any(
        (isinstance(node, ast.Name) and node.id in _MODULE_NAMES and id(node) not in followed)
        or (id(node) not in separators and _suspicious(node, workspace))
        for node in nodes
    )


def _separators(call: ast.Call) -> list[ast.expr]:
    """The lone slashes in a call such as `"/".join(parts)`, which are no paths."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in _TEXT_METHODS):
        return []
    return [text for text in (call.func.value, *call.args) if isinstance(text, ast.Constant) and text.value == "/"]


def _suspicious(node: ast.AST, workspace: Path) -> bool:
    match node:
        case ast.Import():
            return any(_outward_module(alias) for alias in node.names)
        case ast.ImportFrom():
            module = node.module or ""
            if module == "urllib.parse":
                return False
            return _root(module) in _MODULES or any(_banned(module, alias.name) for alias in node.names)
        case ast.Attribute():
            base = node.value.id if isinstance(node.value, ast.Name) else ""
            return node.attr in _ATTRIBUTES or _banned(base, node.attr)
        case ast.Name():
            return node.id in _NAMES
        case ast.Call(func=ast.Name(id="getattr")):
            return not (len(node.args) > 1 and isinstance(node.args[1], ast.Constant))
        case ast.Constant(value=str() | bytes() as value):
            return _outer_path(value if isinstance(value, str) else value.decode("latin-1"), workspace)
        case _:
            return False


def _root(module: str) -> str:
    return module.partition(".")[0]


def _outward_module(alias: ast.alias) -> bool:
    renamed = alias.asname is not None and alias.name in _MODULE_NAMES
    return renamed or (_root(alias.name) in _MODULES and alias.name != "urllib.parse")


def _banned(module: str, name: str) -> bool:
    names = _MODULE_NAMES.get(module)
    return names is not None and (name == "*" or name in names or name.startswith(("exec", "spawn")))


def _outer_path(text: str, workspace: Path) -> bool:
    if text.startswith("~"):
        return True
    if "\n" in text or not (text.startswith("/") or _UPWARD.search(text)):
        return False
    try:
        resolve_in_workspace(workspace, text)
    except (SandboxError, OSError, ValueError):
        return True
    return False
