"""The process that runs a model: `python -m app.llm.embedded.child`, started and fed by `server.py` alone.

Its settings come as one JSON line on standard input, so that the key stays out of the process list; the line on
standard output says where it listens. It ends when standard input does, or when its parent dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import IO, Any

PR_SET_PDEATHSIG = 1
TIMEOUT_S = 3600
PROMPT_CACHE_MB = 1024


def main() -> None:
    _die_with_parent()
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_at_end_of, args=(sys.stdin,), daemon=True).start()
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the engine's words go to the log, whichever way they come
    server = serve(settings)
    report.write(json.dumps({"address": server.listening_address}) + "\n")
    report.flush()
    threading.Event().wait()


def serve(settings: dict[str, Any]) -> Any:  # the binding is untyped
    """Load the model and listen on loopback; the settings are those that `EmbeddedServer` sends."""
    import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

    binding: Any = xllamacpp
    params = binding.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    params.api_keys = [settings["api_key"]] if settings["api_key"] else []
    params.hostnames = ["127.0.0.1"]
    params.port = settings["port"]
    params.n_ctx = settings["context"]
    params.n_parallel = settings["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.timeout_read = params.timeout_write = TIMEOUT_S
    params.cache_ram_mib = PROMPT_CACHE_MB
    params.use_jinja = True
    params.ui = False
    params.offline = True
    if settings["template"] is not None:
        params.chat_template = settings["template"]
    try:
        return binding.Server(params)
    except RuntimeError as error:
        raise SystemExit(f"the model could not be loaded: {error}") from error


def _die_with_parent() -> None:
    # The terminal's Ctrl+C is the parent's business: it may want to finish a request.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit_at_end_of(stream: IO[str]) -> None:
    stream.read()
    os._exit(0)


if __name__ == "__main__":
    main()
