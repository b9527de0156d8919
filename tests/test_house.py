"""The conventions of the house, as tests: what reviewers would otherwise repeat."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"
MODULES = sorted(APP.rglob("*.py"))

BROAD_EXCEPT = {
    "app/frontends": "turns anything into words for people",
    "app/tools/toolbox.py": "turns anything into words for the model",
}
"""Who may catch everything, and why; this list may only shrink."""

TRANSLATED_EXCEPT = {
    "app/agents/react.py": "maps errors to endings and raises the rest on",
    "app/flows/planning.py": "maps errors to endings and raises the rest on",
    "app/llm/embedded/server.py": "ends the child before it raises on",
    "app/llm/service.py": "tags an adapter's failure and raises it on",
    "app/llm/transport.py": "maps transport faults to LLMError",
    "app/schema/errors.py": "renders exceptions whose own text fails",
}
"""Who may see every exception on its way through, because it raises it again or only renders it."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_importing_everything_prints_and_writes_nothing(tmp_path: Path) -> None:
    names = [relative(path)[:-3].replace("/", ".").removesuffix(".__init__") for path in MODULES]
    names = [name for name in names if not name.endswith(".child")]
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *names],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_opens_with_what_lives_in_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module opens with one sentence"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_module_outgrows_one_reason(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 520


def test_broad_excepts_stand_only_where_words_are_made() -> None:
    found = {
        relative(path)
        for path in MODULES
        if re.search(r"except (Base)?Exception\b|except \(Exception", path.read_text())
    }
    allowed = {*BROAD_EXCEPT, *TRANSLATED_EXCEPT}
    assert {name for name in found if not any(name.startswith(place) for place in allowed)} == set()


def test_library_code_neither_prints_nor_logs() -> None:
    talkers: set[str] = set()
    for path in MODULES:
        if relative(path).startswith(("app/frontends/", "app/llm/embedded/child.py")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                talkers.add(relative(path))
            if isinstance(node, ast.Import | ast.ImportFrom) and "logging" in ast.unparse(node).split():
                talkers.add(relative(path))
    assert talkers == set()


def test_every_package_is_shipped() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    listed = set(re.findall(r'"(app[\w.]*)"', text.split("packages = [", 1)[1].split("]", 1)[0])) - {"app._prompts"}
    real = {relative(path.parent).replace("/", ".") for path in APP.rglob("__init__.py")}
    assert listed == real


def test_dependencies_have_lower_bounds_and_no_pins() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(entry for extra in project["optional-dependencies"].values() for entry in extra),
    ]
    assert [entry for entry in wanted if ">=" not in entry or "==" in entry] == []


def test_entry_points_are_thin() -> None:
    for name in ("main.py", "run_flow.py"):
        assert len((ROOT / name).read_text().splitlines()) <= 25


def test_the_readmes_promise_the_same_commands() -> None:
    def commands(name: str) -> list[str]:
        blocks = re.findall(r"```bash\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
        return [line.split("#")[0].split('"')[0].strip() for block in blocks for line in block.splitlines()]

    assert commands("README.md") == commands("README.zh.md")


def test_links_in_the_documents_lead_somewhere() -> None:
    broken = [
        f"{relative(page)}: {target}"
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
