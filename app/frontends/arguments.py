"""The command line as words: every flag and sub-command, read with the standard library alone, so that help is instant.

What the values mean for a run is `launch.py`'s matter.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

N = TypeVar("N", int, float)

COMMANDS: dict[str, str] = {
    "serve": "answer over HTTP (not in this version)",
    "doctor": "say what works on this machine and what is missing",
    "sessions": "what is stored: `sessions list|show|search|fork|export|import|delete|repair`",
    "models": "list the models within reach and what they can do; `models pull NAME` fetches an embedded one",
    "tools": "list the tools of the general agent",
    "config": "`config check` shows every setting in force; `config import FILE` converts a config.ini",
}

SESSION_ACTIONS: dict[str, str] = {
    "list": "Every session: id, time of last use, state and task, a line each.",
    "show": "What was said and done in a session.",
    "search": "Messages that hold all the words, newest first.",
    "fork": "A copy that goes its own way; prints its id.",
    "export": "A session as JSON lines.",
    "import": "Store an exported session; prints its id.",
    "delete": "Forget sessions.",
    "repair": "Rebuild the file from what can be read, without keys that are known by now; the old file is kept.",
}

_EXAMPLES = """\
examples:
  {prog} "write a haiku about rivers to haiku.txt"
  {prog} "what is wrong in this picture?" --image screen.png
  {prog} < task.txt
  {prog} --llm test "try me"          a built-in demonstration: no key, no network
  {prog}                              at a terminal: a conversation

exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 stopped by a limit, 130 interrupted, 143 terminated
docs/command-line.md has the rest."""


class BadArguments(Exception):
    """The command line makes no sense; the front end turns this into its usage error."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadArguments(message)


def read_arguments(argv: Sequence[str], *, flow: bool) -> argparse.Namespace:
    """The options of a command line; `command` is empty for a run. Raises `BadArguments`.

    A sub-command is the first word alone: `--prompt doctor` is a prompt.
    """
    if argv and argv[0] in COMMANDS and not flow:
        return _command_parser().parse_args(argv)
    parser = _run_parser(flow)
    options, left = parser.parse_known_args(argv)
    if left:
        unquoted = options.task is not None and not left[0].startswith("-")
        raise BadArguments("put the prompt in quotes" if unquoted else f"unknown argument: {' '.join(left)}")
    if options.task is not None and options.prompt is not None:
        raise BadArguments("the prompt is given twice, as an argument and with --prompt")
    options.command = ""
    return options


def program(flow: bool) -> str:
    return "run_flow.py" if flow else "main.py"


def _run_parser(flow: bool) -> _Parser:
    prog = program(flow)
    commands = "" if flow else "\n".join(f"  {name:<10}{words}" for name, words in COMMANDS.items())
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [PROMPT] [options]" + ("" if flow else f"\n       {prog} {{{','.join(COMMANDS)}}} …"),
        description=("Let several agents carry out a plan." if flow else "Give one agent a task.")
        + " The answer goes to standard output, everything else to standard error.",
        epilog=(f"sub-commands:\n{commands}\n\n" if commands else "") + _EXAMPLES.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_task(parser, flow)
    _add_model(parser)
    _add_limits(parser)
    _add_safety(parser)
    _add_output(parser)
    return parser


def _add_task(parser: _Parser, flow: bool) -> None:
    parser.add_argument(
        "task",
        nargs="?",
        metavar="PROMPT",
        help="the task; `-` reads standard input; none starts a conversation at a terminal",
    )
    group = parser.add_argument_group("task")
    group.add_argument("--prompt", metavar="TEXT", help="the task, for texts that could be taken for something else")
    group.add_argument(
        "--image", action="append", default=[], metavar="PATH", help="show a picture to the model; may be repeated"
    )
    group.add_argument("--agent", default="manus", metavar="NAME", help="the agent that works on it (default: manus)")
    group.add_argument(
        "--resume",
        metavar="ID|last",
        help="go on with a stored session; without a prompt, with what it left unfinished",
    )
    if flow:
        group.add_argument(
            "--agents", default="", metavar="A,B", help="the agents that may do steps (default: [runflow] agents)"
        )
        group.add_argument(
            "--parallel", type=_count, default=1, metavar="N", help="steps at a time, where needs allow it (default: 1)"
        )


def _add_model(parser: _Parser) -> None:
    group = parser.add_argument_group("model and configuration")
    group.add_argument(
        "--llm", metavar="NAME", help="a model configuration [llm.NAME], or a vendor, `embedded`, or `test`"
    )
    group.add_argument("--model", metavar="ID", help="another model of that account")
    _add_config(group)
    group.add_argument("--workspace", metavar="DIR", help="the folder to work in, the only one that may be written")


def _add_limits(parser: _Parser) -> None:
    group = parser.add_argument_group("limits of the run")
    group.add_argument("--max-steps", type=_count, metavar="N", help="steps of an agent")
    group.add_argument("--max-tokens", type=_count, metavar="N", help="tokens, input and output together")
    group.add_argument("--max-cost", type=_amount, metavar="USD", help="money, in US dollars")
    group.add_argument("--max-requests", type=_count, metavar="N", help="requests to models")
    group.add_argument("--timeout", type=_amount, metavar="S", help="seconds")


def _add_safety(parser: _Parser) -> None:
    group = parser.add_argument_group("safety")
    group.add_argument(
        "--approve",
        choices=("ask", "auto", "never"),
        default="ask",
        help="who says yes to risky acts: you (the default; no terminal means no), the workspace's border, nobody",
    )
    group.add_argument("--sandbox", choices=("auto", "bwrap", "docker", "none"), help="where commands run")
    group.add_argument("--yes", action="store_true", help="agree to the download of a local model that is missing")


def _add_output(parser: _Parser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print every event as one JSON object a line")
    group.add_argument("--quiet", action="store_true", help="no progress, only the answer and errors")
    _add_debug(group)
    group.add_argument("--version", action="version", version=_version())


def _command_parser() -> _Parser:
    parser = _Parser(prog="main.py", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    made = {name: commands.add_parser(name, description=words, allow_abbrev=False) for name, words in COMMANDS.items()}
    for name in ("serve", "doctor", "sessions", "models", "tools"):
        _add_config(made[name])
        _add_debug(made[name])
        made[name].add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    for name in ("doctor", "tools"):
        made[name].add_argument("--workspace", metavar="DIR", help="the folder to look at")
    _add_session_commands(made["sessions"])
    _add_model_commands(made["models"])
    made["serve"].add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    _add_config_commands(made["config"])
    return parser


def _add_session_commands(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", parser_class=_Parser)
    made = {
        name: actions.add_parser(name, description=words, allow_abbrev=False) for name, words in SESSION_ACTIONS.items()
    }
    for name in ("show", "fork", "export"):
        made[name].add_argument("session", metavar="ID", help="an id, its beginning, or `last`")
    made["search"].add_argument("words", nargs="+", metavar="WORD")
    made["search"].add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many (default: 20)")
    made["fork"].add_argument("--at", type=_count, metavar="SEQ", help="only up to this event (default: everything)")
    made["export"].add_argument("-o", "--output", metavar="FILE", help="write there; a file is not replaced")
    made["import"].add_argument("file", metavar="FILE")
    made["delete"].add_argument("sessions", nargs="+", metavar="ID")
    for each in made.values():
        _add_config(each)
        _add_debug(each)
        each.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON objects")


def _add_model_commands(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", parser_class=_Parser)
    listed = actions.add_parser("list", description="Every model within reach, and what it can do.")
    pull = actions.add_parser("pull", description="Fetch an embedded model; prints where it is.")
    pull.add_argument("model", metavar="NAME", help="a name that `models` lists")
    pull.add_argument("--yes", action="store_true", help="agree to the download")
    for each in (listed, pull):
        _add_config(each)
        _add_debug(each)
        each.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON objects")


def _add_config_commands(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, parser_class=_Parser)
    check = actions.add_parser("check", description="Show every setting in force, its origin, and what looks wrong.")
    imported = actions.add_parser("import", description="Print agenticSeek's config.ini in our form.")
    imported.add_argument("file", metavar="FILE")
    imported.add_argument(
        "-o", "--output", metavar="FILE", help="write there instead; an existing file is not replaced"
    )
    _add_config(check)
    for each in (check, imported):
        _add_debug(each)
        each.add_argument("--json", action="store_true", help=argparse.SUPPRESS)


def _add_config(group: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--config", metavar="PATH", help="the configuration file (default: config/config.toml)")


def _add_debug(group: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    group.add_argument("--debug", action="store_true", help="show tracebacks and the model's whole reasoning")


def _version() -> str:
    from app import __version__

    return f"dragoman {__version__}"


def _positive(kind: Callable[[str], N], words: str) -> Callable[[str], N]:
    def read(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            value = kind("0")
        if not (value > 0 and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"must be {words} above zero, not {text!r}")
        return value

    return read


_count = _positive(int, "a whole number")
_amount = _positive(float, "a number")
