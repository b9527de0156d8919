"""Reading tool arguments: what is repaired, what is refused, and in which words."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from app.schema.errors import ToolError
from app.tools.arguments import bind_arguments, read_arguments
from app.tools.base import Args, argument_schema

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string"},
        "items": {"type": "array"},
        "o": {"type": "object"},
    },
}


def read(raw: str) -> dict[str, Any]:
    return read_arguments(raw, SCHEMA)[0]


def refusal(raw: str, **options: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        read_arguments(raw, SCHEMA, **options)
    assert caught.value.code == "TOOL_ARGUMENTS"
    assert '"properties":{"a"' in caught.value.hint
    return caught.value


@pytest.mark.parametrize("raw", ["", "  ", "null", "None", '""', '"null"', "{}"])
def test_M3_empty_and_null_are_no_arguments(raw: str) -> None:
    assert read(raw) == {}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("{'a': 1, 'b': 'x',}", {"a": 1, "b": "x"}),
        (
            "{'a': -1, 'o': {'t': True, 'n': None, 'l': (1, 2.5)}}",
            {"a": -1, "o": {"t": True, "n": None, "l": [1, 2.5]}},
        ),
        ("{'o': {'t': true, 'f': false, 'n': null}}", {"o": {"t": True, "f": False, "n": None}}),
        (r"{'b': '\d'}", {"b": r"\d"}),
    ],
)
def test_M2_python_dictionaries_are_read(raw: str, value: dict[str, Any]) -> None:
    values, notes = read_arguments(raw, SCHEMA)
    assert values == value
    assert [note.text for note in notes] == ["the arguments were a Python literal"]


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ('{"items": [1, 2, ], "b": ",}",\n}', {"items": [1, 2], "b": ",}"}),
        ('{"b": "two\nlines"}', {"b": "two\nlines"}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\r\n{"a": 1}\r\n```', {"a": 1}),
        ('```json\n{"a": 1}\n```\nContext: {"b": 2}', {"a": 1}),
        ('```json\n{"b": "``` python\\nprint(1)"}\n```', {"b": "``` python\nprint(1)"}),
        ("```python\n{'a': 1}\n```", {"a": 1}),
        (json.dumps('{"a": 1}'), {"a": 1}),
        (json.dumps("{'a': 1}"), {"a": 1}),
    ],
)
def test_defect_56_safe_repairs(raw: str, value: dict[str, Any]) -> None:
    values, notes = read_arguments(raw, SCHEMA)
    assert values == value
    assert len(notes) >= 1


@pytest.mark.parametrize("raw", ['{"items": "[1, 2]", "o": "{\\"k\\": 1}"}'])
def test_lists_and_objects_sent_as_text_are_decoded(raw: str) -> None:
    assert read(raw) == {"items": [1, 2], "o": {"k": 1}}


def test_text_for_a_text_field_is_never_decoded() -> None:
    assert read('{"b": "[1, 2]"}') == {"b": "[1, 2]"}


@pytest.mark.parametrize(("raw", "found"), [("[1]", "a list"), ("3", "a number"), ("true", "a boolean")])
def test_M3_anything_but_an_object_is_a_field_level_message(raw: str, found: str) -> None:
    assert refusal(raw).message == f"arguments: input should be an object, got {found}"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ('{"a": NaN}', "NaN is not a finite number"),
        ('{"a": -Infinity}', "-Infinity is not a finite number"),
        ('{"a": 1e999}', "1e999 is not a finite number"),
        ("{'a': 1e999}", "inf is not a finite number"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ("{'o': {'x': 1, 'x': 2}}", "the key 'x' is given twice"),
    ],
)
def test_what_no_repair_may_decide_is_refused(raw: str, words: str) -> None:
    assert words in refusal(raw).message


@pytest.mark.parametrize(
    "raw", ["ls -la", '"ls -la"', "{a: 1}", "{'a': f()}", "{'a': 1} x", '{"a": 1}{"a": 2}', "{1: 2}"]
)
def test_what_cannot_be_read_names_the_position(raw: str) -> None:
    assert "at line 1 column" in refusal(raw).message


@pytest.mark.parametrize("raw", ["[" * 100_000, "{'a': " + "(" * 100_000, "1" * 5000, '{"a": "' + '\\"' * 50_000])
def test_hostile_sizes_are_refused(raw: str) -> None:
    refusal(raw)


def test_M1_a_cut_call_says_so() -> None:
    error = refusal('{"b": "half a te', cut=True)
    assert "cut by the output limit" in error.message
    assert "smaller pieces" in error.message
    assert "Unterminated string starting at line 1 column 7 (character 6)" in error.message
    assert "cut" not in refusal('{"b": "half a te').message


def test_M4_unknown_keys_are_dropped_with_a_note_for_the_model() -> None:
    values, notes = read_arguments('{"a": 1, "zap": 2}', SCHEMA)
    assert values == {"a": 1}
    assert [(note.text, note.for_model) for note in notes] == [
        ("ignored unknown arguments: zap (known: a, b, items, o)", True)
    ]


def test_open_schemas_keep_every_key() -> None:
    schema = {"type": "object", "additionalProperties": True}
    assert read_arguments('{"x": 1}', schema) == ({"x": 1}, ())


class Sample(Args):
    command: Literal["go", "stop"]
    timeout_s: Annotated[float, Field(gt=0)] = 5.0
    count: int = 1
    loud: bool = False
    names: list[str] = Field(default_factory=list)
    note: str | None = None


def test_defect_55_lax_types_and_nulls() -> None:
    given_ = {"command": "go", "timeout_s": "2.5", "count": "3", "loud": "true", "names": [1], "note": None}
    assert bind_arguments(Sample, given_) == Sample(command="go", timeout_s=2.5, count=3, loud=True, names=["1"])
    assert bind_arguments(Sample, {"command": "go", "timeout_s": None}).timeout_s == 5.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "command: is required"),
        ({"command": "fly"}, "command: input should be 'go' or 'stop', got 'fly'"),
        ({"command": "go", "timeout_s": "soon"}, "timeout_s: input should be a number, got 'soon'"),
        ({"command": "go", "timeout_s": 0}, "timeout_s: input should be greater than 0, got 0"),
        ({"command": "go", "count": 1.5}, "count: input should be a whole number, got 1.5"),
        ({"command": "go", "loud": "maybe"}, "loud: input should be true or false, got 'maybe'"),
        ({"command": "go", "names": [[]]}, "names.0: input should be text, got []"),
        ({"count": []}, "command: is required; count: input should be a whole number, got []"),
    ],
)
def test_defect_55_messages_name_the_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError) as caught:
        bind_arguments(Sample, values)
    assert (caught.value.message, caught.value.code) == (message, "TOOL_ARGUMENTS")


def test_schemas_are_plain() -> None:
    assert argument_schema(Sample)["properties"]["timeout_s"] == {"default": 5.0, "type": "number"}
    assert argument_schema(Sample)["properties"]["note"] == {"type": "string"}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional={"a": st.integers(), "b": st.text(), "items": st.lists(json_values)}))
def test_a_valid_object_passes_unchanged(value: dict[str, Any]) -> None:
    assert read_arguments(json.dumps(value), SCHEMA) == (value, ())


@given(st.text() | st.text(alphabet="{}[]\"',:`\\nab1 \n") | json_values.map(lambda value: repr({"o": value})))
def test_nothing_but_a_tool_error_is_ever_raised(raw: str) -> None:
    try:
        values, _ = read_arguments(raw, SCHEMA)
    except ToolError as error:
        assert error.code == "TOOL_ARGUMENTS"
    else:
        assert values.keys() <= SCHEMA["properties"].keys()
