"""Bad input of every kind: one sentence with a next step, the right exit code, no traceback, and never a key."""

from __future__ import annotations

import json
import sys
import time

import pytest
from PIL import Image

from tests.fault_server import fault_server_thread, reply, status, web_page
from tests.frontends.conftest import Outcome, Program
from tests.frontends.test_streams import assert_contract

KEY = "sk-Vq3zTB7fGk29PmXcLw84"


def assert_told(outcome: Outcome, code: int, sentence: str, step: str) -> None:
    """One sentence and one next step on standard error, below the progress of a run that had begun; nothing else."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    told = outcome.err[outcome.err.index("error: ") :].splitlines()
    assert len(told) == 2, outcome.err
    assert sentence in told[0]
    assert told[1].startswith("→ ")
    assert step in told[1]
    assert "Traceback" not in outcome.err
    assert KEY not in outcome.err


async def no_server(*_: object) -> None:
    """A developer's machine may have a model server running."""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--max-steps", "0", "x"], "--max-steps: must be a whole number above zero, not '0'"),
        (["--max-tokens", "many", "x"], "--max-tokens: must be a whole number above zero, not 'many'"),
        (["--max-cost", "-1", "x"], "--max-cost: must be a number above zero, not '-1'"),
        (["--timeout", "inf", "x"], "--timeout: must be a number above zero, not 'inf'"),
        (["--approve", "maybe", "x"], "--approve: invalid choice: 'maybe'"),
        (["--nope", "x"], "unknown argument: --nope"),
        (["--max", "3", "x"], "unknown argument: --max"),
        (["write", "a", "haiku"], "put the prompt in quotes"),
        (["x", "--prompt", "y"], "the prompt is given twice"),
        (["config"], "action"),
        (["--agents", "a,b", "x"], "unknown argument: --agents"),
    ],
)
def test_bad_usage(here, arguments: list[str], sentence: str) -> None:
    assert_told(here(*arguments), 2, sentence, "python main.py --help shows how it is used")
    outcome = here("--json", *arguments) if arguments != ["config"] else here("config", "--json")
    assert (outcome.code, outcome.err) == (2, "")
    assert_contract(outcome.events)
    error = outcome.events[0]["error"]
    assert error["code"] == "USAGE"
    assert sentence in error["message"]


@pytest.mark.parametrize(
    ("arguments", "sentence", "step"),
    [
        (["--llm", "test", "  \n"], "the prompt is empty", "say what to do"),
        (["--llm", "test", "--prompt", ""], "the prompt is empty", "say what to do"),
        (["--llm", "test", "--resume", "last", "x"], "there is no session yet", "run without --resume"),
        (["--llm", "nope", "x"], "there is no [llm.nope]", "test, embedded, ollama"),
        (["--llm", "test", "--agent", "bond", "x"], "there is no agent 'bond'", "known agents: manus"),
        (["--llm", "test", "--sandbox", "docker", "x"], "the sandbox 'docker' is not part of this version", "none"),
        (["--llm", "test", "--image", "nowhere.png", "x"], "the image nowhere.png cannot be read", "check the path"),
        (["--llm", "test", "--image", "config.toml", "x"], "config.toml is no picture", "PNG"),
        (["--llm", "test", "--workspace", "config.toml/below", "x"], "is not writable: Not a directory", "--workspace"),
        (["--config", "absent.toml", "x"], "absent.toml does not exist", "copy config/config.example.toml"),
        (["serve"], "does not serve over HTTP", "--json"),
        (["config", "import", "absent.ini"], "absent.ini cannot be read", "check the path"),
    ],
)
def test_bad_values(here, arguments: list[str], sentence: str, step: str) -> None:
    assert_told(here(*arguments), 2, sentence, step)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"[llm\nmodel = 1", "config.toml:1: no valid TOML"),
        (b'[workspace]\npath = "C:\\Users\\me"\n', "config.toml:2: no valid TOML"),
        (b"\xef\xbb\xbf[llm]\nmodle = 1\n", 'config.toml:2: [llm] has no key "modle"; did you mean "model"?'),
        (b"\xff\xfe[\x00l\x00l\x00m\x00]\x00", "saved as UTF-16"),
        (f'[llm]\napi_key = "{KEY}"\nbase_url = "http:/x"\n'.encode(), "config.toml:3: [llm] base_url is no address"),
    ],
    ids=["broken", "windows-path", "bom", "utf-16", "address"],
)
def test_bad_configuration(here, program: Program, content: bytes, sentence: str) -> None:
    program.config.write_bytes(content)
    outcome = here("x")
    assert outcome.code == 2
    assert outcome.out == ""
    assert sentence in outcome.err.splitlines()[0]
    assert outcome.err.splitlines()[-1].startswith("→ ")
    assert KEY not in outcome.err
    events = here("--json", "x").events
    assert [event["type"] for event in events] == ["run_finished"]
    assert events[0]["error"]["code"] == "CONFIG"
    assert_contract(events)


def test_a_byte_order_mark_is_no_mistake(here, program: Program) -> None:
    program.config.write_bytes(b'\xef\xbb\xbf[llm]\napi_type = "test"\n')
    assert here("x").code == 0


def test_no_model_at_all(here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr("app.config.detect._local_model", no_server)
    outcome = here("x")
    assert (outcome.code, outcome.out) == (2, "")
    first, second, third = outcome.err.splitlines()
    assert first.startswith("error: No model is configured. Set a key, for example: export OPENAI_API_KEY=")
    assert second.startswith("→ Or start a local server such as Ollama")
    assert third.startswith("→ Or copy config/config.example.toml to config/config.toml")


@pytest.mark.parametrize(
    ("answer", "code", "sentence", "step"),
    [
        (status(401, message=f"Incorrect API key provided: {KEY}."), "AUTH", "answered 401", "check api_key"),
        (web_page(), "ENDPOINT", "web page", "check base_url"),
        (status(404, message="The model `gpt-9` does not exist"), "UNKNOWN_MODEL", "gpt-9", "check `model`"),
    ],
    ids=["wrong-key", "wrong-address", "unknown-model"],
)
def test_d01_what_a_provider_refuses(here, program: Program, answer, code: str, sentence: str, step: str) -> None:
    with fault_server_thread([answer, answer]) as server:
        program.configure(f'[llm]\nbase_url = "{server.url}"\nmodel = "gpt-9"\napi_key = "{KEY}"\n')
        shown = here("go")
        assert_told(shown, 1, sentence, step)
        assert "✗ failed · 1 step · 1 request" in shown.err
        outcome = here("--json", "go")
    assert (outcome.code, outcome.err) == (1, "")
    assert_contract(outcome.events)
    error = outcome.events[-1]["error"]
    assert error["code"] == code
    assert step in error["hint"]
    assert KEY not in outcome.out


def test_a_placeholder_key_is_no_key(here, program: Program) -> None:
    program.configure('[llm]\nmodel = "gpt-9"\napi_key = "YOUR_API_KEY"\n')
    assert_told(here("go"), 2, "no key is set for OpenAI", "OPENAI_API_KEY")


def test_a_server_that_was_not_started_is_told_at_once(here, program: Program) -> None:
    with fault_server_thread() as gone:
        address = gone.url
    program.configure(f'[llm]\nbase_url = "{address}"\nmodel = "m"\n')
    began = time.monotonic()
    assert_told(here("go"), 1, f"no model server answers at {gone.host}", "start it, or check base_url")
    assert here("--json", "go").events[0]["error"]["code"] == "TRANSPORT"
    assert time.monotonic() - began < 2


def test_a_key_shows_nowhere(here, program: Program) -> None:
    """Also when the model says it, in pieces, in a call, in thinking, and when a tool prints it."""
    answers = [
        reply(
            reasoning=f"The key is {KEY}!",
            text=f"Look: {KEY} and again {KEY[:9]}",
            stream_pieces=5,
            tool_calls=[("python_execute", {"code": f"print('{KEY[:10]}' + '{KEY[10:]}')"})],
        ),
        reply(f"Your key is {KEY}.", stream_pieces=[*(f"Your key is {KEY}.")]),
    ]
    for flags in (["--json"], []):
        with fault_server_thread(answers, accept_reasoning=True) as server:
            program.configure(f'[llm]\nbase_url = "{server.url}"\nmodel = "m"\napi_key = "{KEY}"\n')
            outcome = here(*flags, "--approve", "auto", f"my key is {KEY}")
        assert outcome.code == 0
        assert KEY not in outcome.out + outcome.err
    assert outcome.out == "Your key is ***.\n"
    assert f"Look: *** and again {KEY[:9]}" in outcome.err


def test_an_internal_error_is_one_sentence_and_closes_the_run(here, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.agents.toolcall import ToolCallAgent

    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ToolCallAgent, "think", broken)
    outcome = here("--llm", "test", "x")
    assert_told(outcome, 1, "internal error (ZeroDivisionError: a bug)", "run again with --debug")
    outcome = here("--llm", "test", "--debug", "x")
    assert "Traceback (most recent call last)" in outcome.err
    outcome = here("--llm", "test", "--json", "x")
    assert (outcome.code, outcome.err) == (1, "")
    assert_contract(outcome.events)
    assert outcome.events[-1]["error"]["code"] == "UNKNOWN"


def test_the_vendor_environment_is_redacted_from_errors(here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    assert KEY not in here("--llm", KEY, "x").err


@pytest.mark.parametrize(
    ("flags", "reason", "code"),
    [
        (["--max-steps", "1"], "step_limit", "STEP_LIMIT"),
        (["--max-tokens", "5"], "budget", "TOKEN_LIMIT"),
        (["--timeout", "0.05"], "time", "TIME"),
    ],
)
def test_limits_exit_with_three(here, program: Program, flags: list[str], reason: str, code: str) -> None:
    program.script(
        {"calls": [{"name": "bash", "arguments": {"command": "pwd"}}], "delay_s": 0.2 if "--timeout" in flags else 0},
        {"text": "late"},
    )
    outcome = here("--json", *flags, "x")
    assert outcome.code == 3
    end = outcome.events[-1]
    assert (end["stop_reason"], end["error"]["code"]) == (reason, code)
    shown = here(*flags, "x")
    assert shown.code == 3
    assert shown.err.splitlines()[-1].startswith("→ raise --")


def test_limits_come_from_the_environment_too(here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_MAX_STEPS", "2")
    outcome = here("--llm", "test", "--json", "x")
    assert (outcome.code, outcome.events[-1]["steps"]) == (3, 2)
    assert here("--llm", "test", "--max-steps", "9", "x").code == 0


def test_a_failed_task_exits_with_one(here, program: Program) -> None:
    program.script({"calls": [{"name": "terminate", "arguments": {"status": "failure", "answer": "no water"}}]})
    outcome = here("x")
    assert (outcome.code, outcome.out) == (1, "no water\n")


def test_flags_reach_the_model(here, program: Program) -> None:
    """--model, --image and the type of a picture whose name lies."""
    Image.new("RGB", (3, 5)).save(program.folder / "photo.txt", "JPEG")
    with fault_server_thread([reply("a dot")]) as server:
        program.configure(
            f'[llm]\nbase_url = "{server.url}"\nmodel = "m"\ncapabilities = {{ images = true }}\n[llm.other]\n'
        )
        outcome = here("--json", "--llm", "other", "--model", "gpt-x", "--image", "photo.txt", "what is it?")
        sent = server.chats[0].json
    assert outcome.code == 0
    assert outcome.events[0]["llm"] == {"config": "other", "provider": "local", "model": "gpt-x", "local": True}
    assert sent["model"] == "gpt-x"
    assert '"url": "data:image/jpeg;base64,' in json.dumps(sent["messages"][-1])


def test_a_flow_shows_its_pictures_to_every_step(here, program: Program) -> None:
    Image.new("RGB", (3, 5)).save(program.folder / "dot.png")
    plan = ("planning", {"command": "create", "title": "Look", "steps": ["Look at the picture"]})
    with fault_server_thread([reply("", tool_calls=[plan]), reply("a dot")]) as server:
        program.configure(f'[llm]\nbase_url = "{server.url}"\nmodel = "m"\ncapabilities = {{ images = true }}\n')
        outcome = here("--image", "dot.png", "what is it?", flow=True)
        planning, step = (json.dumps(chat.json["messages"]) for chat in server.chats)
    assert (outcome.code, outcome.out) == (0, "a dot\n")
    assert "data:image/png;base64," not in planning
    assert "data:image/png;base64," in step
