"""Every prompt that code names exists, renders with what it is given, and refuses an undefined name."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from jinja2 import Environment, meta

from app.prompts import Prompts, prompt_folder
from app.schema.errors import ConfigError

APP = Path(__file__).parent.parent / "app"


@cache
def rendered_in_code() -> dict[str, set[str]]:
    """Each prompt name in a call of `render`, with the values it is given there."""
    found: dict[str, set[str]] = {}
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "render"):
                continue
            given = {keyword.arg for keyword in node.keywords if keyword.arg}
            for name in ast.walk(node.args[0]) if node.args else ():
                if isinstance(name, ast.Constant) and isinstance(name.value, str) and "/" in name.value:
                    found.setdefault(name.value, given)
    return found


def templates() -> list[str]:
    folder = prompt_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.j2"))


def used_in(name: str) -> set[str]:
    source = (prompt_folder() / f"{name}.j2").read_text(encoding="utf-8")
    return meta.find_undeclared_variables(Environment().parse(source))


def test_code_and_folder_name_the_same_prompts() -> None:
    assert sorted(rendered_in_code()) == templates()


@pytest.mark.parametrize("name", templates())
def test_a_prompt_uses_nothing_that_it_is_not_given(name: str) -> None:
    assert used_in(name) <= rendered_in_code()[name]


SAMPLES = {
    "agents": {"manus": "does things", "other": "does other things"},
    "results": [("first", "one")],
    "side_by_side": True,
}


@pytest.mark.parametrize("name", templates())
def test_a_prompt_renders_without_leftovers(name: str) -> None:
    values = {key: SAMPLES.get(key, f"<{key}>") for key in used_in(name)}
    text = Prompts().render(name, **values)
    assert text == text.strip() != ""
    assert "{{" not in text
    assert "{%" not in text
    assert "\n\n\n" not in text
    assert all(value in text for value in values.values() if isinstance(value, str))


@pytest.mark.parametrize("name", [name for name in templates() if used_in(name)])
def test_an_undefined_name_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.j2 cannot be rendered"):
        Prompts().render(name)


def test_a_missing_prompt_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no/such\.j2"):
        Prompts().render("no/such")


def test_a_broken_or_unsafe_template_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.j2").write_text("{% if %}")
    (tmp_path / "unsafe.j2").write_text("{{ ''.__class__.__mro__ }}")
    for name in ("broken", "unsafe"):
        with pytest.raises(ConfigError) as error:
            Prompts(tmp_path).render(name)
        assert str(tmp_path) in error.value.hint


def test_a_persona_shadows_single_files(tmp_path: Path) -> None:
    (tmp_path / "a.j2").write_text("plain a")
    (tmp_path / "b.j2").write_text("plain b")
    (tmp_path / "kind").mkdir()
    (tmp_path / "kind" / "a.j2").write_text("kind a")
    prompts = Prompts(tmp_path, persona="kind")
    assert (prompts.render("a"), prompts.render("b")) == ("kind a", "plain b")


def test_nothing_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.j2").write_text("{{ text }}")
    assert Prompts(tmp_path).render("a", text="<b> & {{ x }}") == "<b> & {{ x }}"
