"""What a shell command may do, judged from its text: a harmless read, or an act that may leave the workspace.

Nothing here confines anything. A command that is not understood is never a read and always counts as leaving.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.paths import resolve_in_workspace
from app.schema.errors import SandboxError
from app.tools.python_policy import leaves_workspace as python_leaves_workspace
from app.tools.python_policy import word_set

_DEVICES = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr")
_SOURCES = ("/dev/zero", "/dev/urandom", "/dev/random")
_GLOB_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command after quote removal; `pattern` says that unquoted `*`, `?` or `[` expand in it."""

    text: str
    pattern: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    text: str


Token = Word | Operator

# Everything the reader understands; any other character (`$`, backquote, parentheses, braces, lone `&`, redirection to
# a file, backslash outside quotes) makes the whole command "not understood".
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t]+ | (?<![^\s;|&])\#[^\n]*)
  | (?P<discard>(?:2>&1 | [12]?>&[12] | (?:[12]|&)?>[ ]?/dev/null)(?![^\s;|&]))
  | (?P<operator>&& | \|\| | [|](?!&) | ; | \n)
  | (?P<word>(?:[\w@%+=:,./*?\[\]^!~\#-] | '[^']*' | "(?:[^"`$\\] | \\["\\] | \\(?!["\\$`\n]))*")+)
    """,
    re.VERBOSE,
)
_PIECE = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<bare>[^'"]+)""", re.DOTALL)


def read_tokens(command: str) -> list[Token] | None:
    """The words and operators of a plain command line; None when it holds anything beyond them."""
    tokens: list[Token] = []
    position = 0
    while position < len(command):
        found = _TOKEN.match(command, position)
        if found is None:
            return None
        position = found.end()
        if found["operator"]:
            tokens.append(Operator(found["operator"]))
        elif found["word"]:
            word = _unquoted(found["word"])
            if word is None:
                return None
            tokens.append(word)
    return tokens


def _unquoted(raw: str) -> Word | None:
    if raw.startswith("~") or "=~" in raw or ":~" in raw:
        return None
    text, pattern = "", False
    for piece in _PIECE.finditer(raw):
        if (bare := piece["bare"]) is not None:
            pattern = pattern or any(sign in bare for sign in "*?[")
            text += bare
        elif piece["single"] is not None:
            text += piece["single"]
        else:
            text += re.sub(r'\\(["\\])', r"\1", piece["double"])
    return Word(text, pattern)


def _commands(tokens: Sequence[Token]) -> list[list[Word]]:
    """The simple commands between operators; empty ones (a newline after `;`) are left out."""
    commands: list[list[Word]] = [[]]
    for token in tokens:
        if isinstance(token, Word):
            commands[-1].append(token)
        else:
            commands.append([])
    return [words for words in commands if words]


@dataclass(frozen=True, slots=True)
class _Program:
    """What is harmless for one program: a pattern for its short and long options, and what its operands are."""

    options: str = ""
    long: Collection[str] = ()
    operands: int = 1000
    paths: bool = True
    first_is_pattern: bool = False
    patterns: bool = True
    """Whether file name patterns may stand in its operands; not for programs where a file name could be an option."""

    def allows(self, option: str) -> bool:
        if option.startswith("--"):
            return option == "--" or option.split("=", 1)[0] in self.long
        return re.fullmatch(f"-(?:{self.options or '(?!)'})", option) is not None


_GREP = _Program(
    r"[EFGPiInlLcvwxoqrshHna]*(?:e|[mABC]\d*)?|\d+",
    word_set(
        "--include --exclude --exclude-dir --color --line-number --ignore-case --recursive --count "
        "--files-with-matches --only-matching --max-count --context --word-regexp --fixed-strings"
    ),
    first_is_pattern=True,
)
_LINES = _Program(r"[qv]*[nc]?[+-]?\d*", ("--lines", "--bytes", "--quiet"))
_SUM = _Program("b", ("--binary",))

_PROGRAMS: dict[str, _Program] = {
    "ls": _Program(r"[aAlhRrtS1dFpgGinosuUXcCmxk]+", ("--all", "--color", "--recursive", "--full-time", "--sort")),
    "cat": _Program(r"[nbsETAvet]+", ("--number",)),
    "head": _LINES,
    "tail": _LINES,
    "nl": _Program(r"ba"),
    "tac": _Program(),
    "rev": _Program(),
    "wc": _Program(r"[clmwL]+", ("--lines", "--words", "--bytes", "--chars")),
    "pwd": _Program(r"[LP]", operands=0),
    "true": _Program(operands=0),
    "false": _Program(operands=0),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _Program(
        r"[iInlcvwxoqsSFNU]*(?:e|[mABCtg]\d*)?",
        ("--files", "--type", "--glob", "--hidden", "--no-heading", "--line-number", "--color", "--count"),
        first_is_pattern=True,
        patterns=False,
    ),
    "stat": _Program(r"[ct]", ("--format", "--printf", "--terse")),
    "file": _Program(r"[bi]+", ("--brief", "--mime", "--mime-type")),
    "du": _Program(r"[ashckm]*d?\d*", ("--max-depth", "--summarize", "--human-readable", "--total", "--apparent-size")),
    "df": _Program(r"[hiTkm]+", ("--human-readable",)),
    "which": _Program(r"a", paths=False, patterns=False),
    "sort": _Program(r"[nrufgVhsbdiM]*(?:k[\d.,bdfghinMrVR]*|t.?)?", patterns=False),
    "uniq": _Program(r"[cdui]+", ("--count",), operands=1, patterns=False),
    "cut": _Program(r"(?:[fcb][\d,-]*|d.?|s)", ("--delimiter", "--fields", "--complement"), patterns=False),
    "tr": _Program(r"[dscC]+", paths=False, patterns=False),
    "diff": _Program(r"[uqNwbBiay]*(?:[uU]\d+)?", ("--brief", "--unified", "--color", "--ignore-all-space")),
    "cmp": _Program(r"[sl]+"),
    "basename": _Program(paths=False),
    "dirname": _Program(paths=False),
    "whoami": _Program(operands=0),
    "uname": _Program(r"[asrvmpnio]+", operands=0),
    "nproc": _Program(operands=0),
    "uptime": _Program(r"[ps]", operands=0),
    "md5sum": _SUM,
    "sha1sum": _SUM,
    "sha256sum": _SUM,
    "tree": _Program(r"[adfhps]*L?\d*", patterns=False),
}

_FIND_TESTS = word_set(
    "-name -iname -path -ipath -regex -iregex -type -maxdepth -mindepth -size -mtime -mmin -newer -perm -user -group "
    "-links -not ! -o -or -a -and -empty -print -print0 -ls -prune -readable -writable -executable -daystart -depth"
)
_GIT_READS: dict[str, _Program] = {
    "status": _Program(r"[sbu]+", ("--short", "--branch", "--porcelain", "--untracked-files")),
    "log": _Program(
        r"(?:\d+|n\d*|p)",
        ("--oneline", "--stat", "--graph", "--all", "--decorate", "--since", "--until", "--author", "--format"),
    ),
    "diff": _Program(r"[wbp]+", ("--stat", "--cached", "--staged", "--name-only", "--name-status", "--")),
    "show": _Program(r"[sp]", ("--stat", "--name-only", "--oneline")),
    "branch": _Program(r"[av]+", ("--all", "--show-current"), operands=0),
    "ls-files": _Program(r"[cmo]", ("--others", "--exclude-standard")),
    "rev-parse": _Program("", ("--show-toplevel", "--abbrev-ref")),
}
_VERSIONED = word_set("python python3 node git gcc g++ clang make cmake bash go rustc cargo java ruby perl")


def is_harmless_read(command: str, workspace: Path) -> bool:
    """Whether the command is certain to do no more than read inside the workspace."""
    tokens = read_tokens(command)
    if not tokens:
        return False
    folders = [workspace.resolve()]
    for words in _commands(tokens):
        if words[0].text == "cd":
            if len(words) != 2 or words[1].pattern or words[1].text.startswith("-") or not _inside(words[1], folders):
                return False
            # Whether the cd happens depends on what ran before, so the old folders stay possible.
            targets = [(folder / words[1].text).resolve() for folder in folders]
            folders = list(dict.fromkeys([*folders, *(target for target in targets if target.is_dir())]))
        elif not _reads_only(words, folders):
            return False
    return True


def _reads_only(words: Sequence[Word], folders: Sequence[Path]) -> bool:
    name, rest = words[0].text, words[1:]
    if words[0].pattern:
        return False
    if len(rest) == 1 and rest[0].text in ("--version", "-V") and name in _VERSIONED:
        return True
    match name:
        case "echo":
            return all(_inside(word, folders) for word in rest if word.pattern)
        case "find":
            return _find_reads(rest, folders)
        case "date":
            return all(word.text.startswith("+") or word.text in ("-u", "-I", "-R", "--utc") for word in rest)
        case "git":
            # Git obeys the configuration of the repository it finds, and that may name programs to run; only the
            # workspace's own repository counts, whose configuration the file tools do not write unasked.
            own = len(folders) == 1 and (folders[0] / ".git").is_dir() and not (folders[0] / ".git").is_symlink()
            read = _GIT_READS.get(rest[0].text) if rest else None
            return own and read is not None and _fits(read, rest[1:], folders)
        case _:
            program = _PROGRAMS.get(name)
            return program is not None and _fits(program, rest, folders)


def _find_reads(rest: Sequence[Word], folders: Sequence[Path]) -> bool:
    for word in rest:
        if word.text.startswith("-") or word.text == "!":
            if word.text not in _FIND_TESTS:
                return False
        elif word.pattern or not _inside(word, folders):
            return False
    return True


def _fits(program: _Program, rest: Sequence[Word], folders: Sequence[Path]) -> bool:
    operands: list[Word] = []
    skip_pattern = program.first_is_pattern
    pattern_follows = options_ended = False
    for word in rest:
        if pattern_follows:
            pattern_follows = False
        elif word.text == "--" and not options_ended:
            options_ended = True
        elif word.text.startswith("-") and len(word.text) > 1 and not options_ended:
            # A pattern in the value of a long option can only expand to the same option.
            if (word.pattern and not re.match(r"--[a-z-]+=", word.text)) or not program.allows(word.text):
                return False
            if "=" in word.text and program.paths and not _inside(Word(word.text.split("=", 1)[1]), folders):
                return False
            if program.first_is_pattern and re.fullmatch(r"-[^-]*e", word.text):
                pattern_follows, skip_pattern = True, False
        elif skip_pattern:
            if word.pattern:
                return False
            skip_pattern = False
        else:
            operands.append(word)
    if len(operands) > program.operands or (not program.patterns and any(word.pattern for word in operands)):
        return False
    return all(_inside(word, folders) for word in operands if program.paths or word.pattern)


def _inside(word: Word, folders: Iterable[Path]) -> bool:
    """Whether a word, read as a path from any of the folders, stays in the workspace, links followed."""
    root, *_ = folders = list(folders)
    if word.text in _DEVICES:
        return True
    try:
        for folder in folders:
            resolve_in_workspace(root, folder / word.text)
            if word.pattern:
                # The shell's own rules for names; pathlib's pattern language differs.
                found = glob.iglob(word.text, root_dir=folder)  # noqa: PTH207
                matches = list(itertools.islice(found, _GLOB_LIMIT + 1))
                if len(matches) > _GLOB_LIMIT:
                    return False
                for match in matches:
                    resolve_in_workspace(root, folder / match)
    except (SandboxError, OSError, ValueError):
        return False
    return True


_OUTWARD = word_set(
    "sudo su doas pkexec curl wget ssh scp sftp rsync nc ncat netcat telnet ftp socat ping dig nslookup apt apt-get "
    "dpkg yum dnf apk pacman brew snap docker podman kubectl systemctl service crontab at mount umount chroot nsenter "
    "unshare kill killall pkill shutdown reboot eval exec source aws gcloud az gh npx uvx pipx"
)
_OUTWARD_PAIRS = {
    "git": word_set("push pull fetch clone remote submodule config"),
    "pip": frozenset(("install", "download", "uninstall")),
    "npm": frozenset(("install", "i", "ci", "publish", "exec")),
    "yarn": frozenset(("add", "install")),
    "pnpm": frozenset(("add", "install")),
    "uv": frozenset(("pip", "add", "sync", "tool")),
    "cargo": frozenset(("install", "publish")),
    "go": frozenset(("get", "install")),
    "gem": frozenset(("install",)),
}
_OTHER_INTERPRETERS = re.compile(r"\b(?:perl|ruby|node|php|lua)\s+(?:-\S+\s+)*-[er]\b")
_PYTHON_CODE = re.compile(r"""\bpython[\d.]*\s+(?:-\w+\s+)*-c\s+(?:'([^']*)'|"((?:[^"\\]|\\.)*)")?""")
_HERE_DOCUMENT = re.compile(
    r"""(?:^|[\n;&|(])[ \t]*(?P<reader>cat|tee|python[\d.]*)\b[^\n;&|]*?"""
    r"""(?P<mark><<-?[ \t]*(?P<quote>['"]?)(?P<end>\w+)(?P=quote))"""
    r"""(?P<rest>[^\n]*)\n(?P<body>.*?\n)??[ \t]*(?P=end)[ \t]*(?=\n|\Z)""",
    re.DOTALL,
)
_NAMES = re.compile(r"[\w.+-]+")
# A path begins where a word begins, after a quote, or after a sign that ends a word or an option's name.
_OUTER_PATH = re.compile(r"""(?:(?<=[\s"'=:;|&<>(),`{\[])|^)(?:~|/)[^\s"';|&<>(){},`]*""", re.MULTILINE)
_UPWARD_PATH = re.compile(
    r"""[^\s"'=:;|&<>(){},`]*\.\.(?:/[^\s"';|&<>(){},`]*|(?=$|[\s"';|&<>(){},`]))""", re.MULTILINE
)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_SAFE_VARIABLES = frozenset(("PWD", "RANDOM", "SECONDS", "LINENO", "IFS", "REPLY"))
_HIDDEN = re.compile(r"""(?:^|[\s=])\$'|\\x[0-9a-fA-F]|\\0?[0-7]{2,3}|\bbase64\b|\bxxd\b|\$\{!""")


def crosses_border(command: str, workspace: Path) -> bool:
    """Whether the command may act outside the workspace or on the network, as far as its text tells.

    A heuristic for the policy `auto`: it errs on the side of yes, and does not see what a script file does.
    """
    data_free = _without_here_documents(command, workspace)
    if data_free is None:
        return True
    command = data_free
    if not _balanced(command) or _HIDDEN.search(command):
        return True
    checks: tuple[Callable[[str, Path], bool], ...] = (_goes_out, _names_outer_path, _unknown_variable, _runs_code)
    return any(check(command, workspace) for check in checks)


def _without_here_documents(command: str, workspace: Path) -> str | None:
    """The command without texts that are only written to a file or are harmless Python; None when one is neither."""
    while found := _HERE_DOCUMENT.search(command):
        reader, rest, body = found["reader"], found["rest"], found["body"] or ""
        expands = not found["quote"] and re.search(r"[$`]", body)
        if expands or any(sign in rest for sign in "|;&`$("):
            return None
        if reader not in ("cat", "tee") and python_leaves_workspace(body, workspace):
            return None
        command = f"{command[: found.start('mark')]} {rest}{command[found.end() :]}"
    return None if "<<" in command.replace("<<<", "") else command


def _balanced(command: str) -> bool:
    """Whether every quote is closed (an apostrophe in a comment makes this fail, which is the careful side)."""
    outside = re.sub(r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*\"""", "", command, flags=re.DOTALL)
    return not any(sign in outside for sign in "'\"") and "\0" not in command


def _goes_out(command: str, workspace: Path) -> bool:
    names = [name.rpartition("/")[2] for name in _NAMES.findall(command)]
    if _OUTWARD.intersection(names) or re.search(r"(?:^|[\s;&|(])\.\s", command):
        return True
    for before, after in itertools.pairwise(names):
        family = re.sub(r"[\d.]+$", "", before)
        if after in _OUTWARD_PAIRS.get(family, ()):
            return True
    return False


def _names_outer_path(command: str, workspace: Path) -> bool:
    paths = [*_OUTER_PATH.findall(command), *_UPWARD_PATH.findall(command)]
    paths = [path for path in paths if path not in _SOURCES]
    return any("~" in path[:1] or not _inside(Word(path), [workspace.resolve()]) for path in paths)


def _unknown_variable(command: str, workspace: Path) -> bool:
    """Whether a variable is used that the command does not set itself: its value may be any path."""
    own = set(re.findall(r"\b([A-Za-z_]\w*)\+?=", command)) | set(
        re.findall(r"\b(?:for|read)\s+(?:-r\s+)?(\w+)", command)
    )
    return any(name not in own and name not in _SAFE_VARIABLES for name in _VARIABLE.findall(command))


def _runs_code(command: str, workspace: Path) -> bool:
    if _OTHER_INTERPRETERS.search(command):
        return True
    for single, double in _PYTHON_CODE.findall(command):
        code = single or re.sub(r'\\(["\\$`])', r"\1", double)
        if not code or python_leaves_workspace(code, workspace):
            return True
    return False
