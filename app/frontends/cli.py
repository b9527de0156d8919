"""The command line: `main` takes arguments to an exit code. Everything heavy is imported when it is used, so that help
is instant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def run() -> None:
    """The console script `dragoman`."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str], *, flow: bool = False) -> int:
    """Do what the arguments say and return the exit code. Raises nothing but `SystemExit` for help and version."""
    from app.frontends.arguments import BadArguments, program, read_arguments
    from app.frontends.front import Front

    front = Front(as_json="--json" in argv, debug="--debug" in argv)
    try:
        options = read_arguments(argv, flow=flow)
    except BadArguments as error:
        from app.schema.errors import UsageError

        return front.failed(UsageError(str(error), hint=f"python {program(flow)} --help shows how it is used"))
    if options.command:
        from app.frontends.commands import run_command

        return front.guarded(lambda: run_command(front, options))
    from app.frontends.turns import start

    return front.guarded(lambda: start(front, options, flow=flow))
