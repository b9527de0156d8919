"""`str_replace_editor`: exact edits, byte for byte, inside the workspace alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from app.schema.errors import DragomanError, ToolError
from app.schema.run import RunContext
from app.tools.str_replace_editor import EditorArgs, StrReplaceEditor
from tests.tools.conftest import Call


@pytest.fixture
def editor(workspace: Path) -> StrReplaceEditor:
    return StrReplaceEditor(workspace)


def do(editor: StrReplaceEditor, command: Any, path: str, **arguments: Any) -> str:
    return editor.run(EditorArgs(command=command, path=path, **arguments), RunContext()).text


def refused(editor: StrReplaceEditor, command: Any, path: str, **arguments: Any) -> str:
    with pytest.raises(DragomanError) as caught:
        do(editor, command, path, **arguments)
    return f"{caught.value.message} | {caught.value.hint}"


def test_T1_defect_86_tabs_survive(editor: StrReplaceEditor, workspace: Path) -> None:
    makefile = workspace / "Makefile"
    makefile.write_bytes(b"CC = gcc\nall:\n\t$(CC) -o a a.c\n\t\techo\tdone \n")
    shown = do(editor, "str_replace", "Makefile", old_str="CC = gcc", new_str="CC = clang")
    assert makefile.read_bytes() == b"CC = clang\nall:\n\t$(CC) -o a a.c\n\t\techo\tdone \n"
    assert shown == (
        "edited Makefile, now:\n     1\tCC = clang\n     2\tall:\n     3\t\t$(CC) -o a a.c\n     4\t\t\techo\tdone "
    )


def test_T2_defect_87_crlf_survives(editor: StrReplaceEditor, workspace: Path) -> None:
    file = workspace / "a.txt"
    file.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    do(editor, "str_replace", "a.txt", old_str="one\ntwo", new_str="1\n2\n2b")
    assert file.read_bytes() == b"1\r\n2\r\n2b\r\nthree\r\n"
    do(editor, "insert", "a.txt", insert_line=1, new_str="x\ny")
    assert file.read_bytes() == b"1\r\nx\r\ny\r\n2\r\n2b\r\nthree\r\n"


def test_mixed_line_endings_are_left_alone(editor: StrReplaceEditor, workspace: Path) -> None:
    file = workspace / "a.txt"
    file.write_bytes(b"a\r\nb\nc\x0cd\rz\ne\r\n")
    do(editor, "str_replace", "a.txt", old_str="b", new_str="B")
    assert file.read_bytes() == b"a\r\nB\nc\x0cd\rz\ne\r\n"


def test_T3_defect_91_folder_views_run_nothing(editor: StrReplaceEditor, workspace: Path) -> None:
    for name in ("my folder", "x;touch hacked"):
        (workspace / name / "sub").mkdir(parents=True)
        (workspace / name / "f.txt").touch()
    (workspace / ".hidden").touch()
    (workspace / "link").symlink_to("my folder")
    assert do(editor, "view", "my folder").splitlines() == ["my folder/", "  f.txt", "  sub/"]
    assert do(editor, "view", "x;touch hacked").splitlines()[0] == "x;touch hacked/"
    assert do(editor, "view", ".").splitlines() == [
        "./",
        "  link@",
        "  my folder/",
        "    f.txt",
        "    sub/",
        "  x;touch hacked/",
        "    f.txt",
        "    sub/",
        "[1 hidden]",
    ]
    assert not (workspace / "hacked").exists()


def test_T4_defect_89_create_makes_parents_and_never_overwrites(editor: StrReplaceEditor, workspace: Path) -> None:
    assert do(editor, "create", "a/b/c.txt", file_text="x\ny\n") == "created a/b/c.txt (2 lines)"
    assert (workspace / "a/b/c.txt").read_bytes() == b"x\ny\n"
    assert (
        do(editor, "create", "a/b/c.txt", file_text="x\ny\n")
        == "a/b/c.txt is written; it had exactly this content before"
    )
    words = refused(editor, "create", "a/b/c.txt", file_text="z")
    assert words == (
        "a/b/c.txt exists already and was not overwritten | "
        "change it with str_replace or insert, or create another path"
    )
    assert (workspace / "a/b/c.txt").read_bytes() == b"x\ny\n"
    assert "is a folder" in refused(editor, "create", "a", file_text="z")
    assert "Not a directory" in refused(editor, "create", "a/b/c.txt/d", file_text="z")


@pytest.mark.parametrize("command", ["view", "create", "str_replace", "insert", "undo_edit"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../out.txt", "a/../../out.txt", "link/out.txt", "~/x", "loop"])
def test_T5_defect_90_nothing_outside(command: str, path: str, editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "link").symlink_to(workspace.parent)
    (workspace / "loop").symlink_to("loop")
    more = {"file_text": "x", "old_str": "x", "new_str": "y", "insert_line": 0}
    words = refused(editor, command, path, **more)
    assert path == "loop" or f"stay inside {workspace}" in words
    assert not (workspace.parent / "out.txt").exists()


def test_the_workspace_itself_is_no_file(editor: StrReplaceEditor) -> None:
    assert ". is a folder" in refused(editor, "create", ".", file_text="x")


def test_a_folder_swapped_for_a_link_after_the_check_is_refused(editor: StrReplaceEditor, workspace: Path) -> None:
    outside = workspace.parent / "outside"
    outside.mkdir()
    path = editor._files.resolve("sub/f.txt")
    (workspace / "sub").symlink_to(outside)
    with pytest.raises((OSError, DragomanError)):
        editor._files.write(path, b"x")
    (outside / "f.txt").write_bytes(b"secret")
    with pytest.raises((OSError, DragomanError)):
        editor._files.read(path)
    assert (outside / "f.txt").read_bytes() == b"secret"


def test_links_inside_the_workspace_work(editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "real.txt").write_text("one")
    (workspace / "link.txt").symlink_to("real.txt")
    do(editor, "str_replace", "link.txt", old_str="one", new_str="two")
    assert (workspace / "real.txt").read_text() == "two"
    assert (workspace / "link.txt").is_symlink()


@pytest.mark.parametrize("path", ["src\\main.py", "C:\\x.py", "C:/x.py", "a/b\\c.py"])
@pytest.mark.parametrize("command", ["view", "create", "str_replace"])
def test_T6_defect_92_windows_paths_are_explained(
    path: str, command: str, editor: StrReplaceEditor, workspace: Path
) -> None:
    words = refused(editor, command, path, file_text="x", old_str="a", new_str="b")
    assert "looks like a Windows path | use forward slashes, relative to the workspace" in words
    assert list(workspace.iterdir()) == []


def test_T7_defect_93_undo(editor: StrReplaceEditor, workspace: Path) -> None:
    do(editor, "create", "a.txt", file_text="one\n")
    do(editor, "str_replace", "a.txt", old_str="one", new_str="two")
    assert do(editor, "undo_edit", "a.txt") == "undone: the last edit of a.txt"
    assert (workspace / "a.txt").read_text() == "one\n"
    assert do(editor, "undo_edit", "a.txt") == "undone: a.txt is removed again"
    assert not (workspace / "a.txt").exists()
    assert "there is nothing to undo in a.txt" in refused(editor, "undo_edit", "a.txt")


def test_undo_does_not_destroy_what_others_wrote(editor: StrReplaceEditor, workspace: Path) -> None:
    do(editor, "create", "a.txt", file_text="one\n")
    (workspace / "a.txt").write_text("precious")
    assert "changed by something else" in refused(editor, "undo_edit", "a.txt")
    assert (workspace / "a.txt").read_text() == "precious"


def test_T8_defect_94_ranges_are_clamped(editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\ntwo\n")
    assert do(editor, "view", "a.txt", view_range=[1, 50]) == "     1\tone\n     2\ttwo"
    assert do(editor, "view", "a.txt", view_range=[2, -1]) == "     2\ttwo\n[lines 2-2 of 2 in a.txt]"


@pytest.mark.parametrize("bad", [[8, 3], [0, 5], [-2, 4], [3, 0], [11, 12], [3], [1, 2, 3], []])
def test_B108_impossible_ranges_are_errors(bad: list[int], editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\n" * 10)
    assert f"view_range {bad} is not a range of lines; this file has lines 1 to 10" in refused(
        editor, "view", "a.txt", view_range=bad
    )


def test_B108_ranges_are_labelled_with_what_is_shown(editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x\n" * 10)
    assert do(editor, "view", "a.txt", view_range=[5, 5]).splitlines() == [
        "     5\tx",
        "[lines 5-5 of 10 in a.txt; go on with view_range [6, 10]]",
    ]
    assert do(editor, "view", "a.txt", view_range=[9, 99]).splitlines()[-1] == "[lines 9-10 of 10 in a.txt]"


def test_defect_94_long_files_are_cut_at_a_line_border(workspace: Path) -> None:
    (workspace / "a.txt").write_text("".join(f"line {n:03}\n" for n in range(1, 101)))
    shown = do(StrReplaceEditor(workspace, max_view_chars=64), "view", "a.txt").splitlines()
    assert shown == [
        "     1\tline 001",
        "     2\tline 002",
        "     3\tline 003",
        "     4\tline 004",
        "[lines 1-4 of 100 in a.txt; go on with view_range [5, 100]]",
    ]


def test_one_huge_line_is_shortened(editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x" * 100_000)
    assert do(editor, "view", "a.txt") == "     1\t" + "x" * 2000 + " [… line of 100,000 characters]"


@pytest.mark.parametrize(
    ("encoding", "bom"),
    [("gb18030", b""), ("utf-8", b"\xef\xbb\xbf"), ("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")],
)
def test_T9_defect_88_encodings_are_kept(encoding: str, bom: bytes, editor: StrReplaceEditor, workspace: Path) -> None:
    file = workspace / "a.txt"
    file.write_bytes(bom + "标题：你好\n第二行\n".encode(encoding))
    assert do(editor, "view", "a.txt") == "     1\t标题：你好\n     2\t第二行"
    do(editor, "str_replace", "a.txt", old_str="你好", new_str="世界")
    assert file.read_bytes() == bom + "标题：世界\n第二行\n".encode(encoding)


def test_latin_1_is_kept_and_says_what_it_cannot_hold(editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").write_bytes(b"caf\xe9 x\n")
    do(editor, "str_replace", "a.txt", old_str="x", new_str="ü")
    assert (workspace / "a.txt").read_bytes() == b"caf\xe9 \xfc\n"
    assert "latin-1, which cannot hold '日'" in refused(editor, "str_replace", "a.txt", old_str="ü", new_str="日")


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\x01", b"\x7fELF\x00\x00", b"\x01\x02\xff\xfe\x80"])
def test_B109_binary_files_are_described(data: bytes, editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.bin").write_bytes(data)
    assert do(editor, "view", "a.bin") == f"a.bin is a binary file of {len(data)} bytes; it is not shown as text"
    assert "binary file" in refused(editor, "str_replace", "a.bin", old_str="a", new_str="b")
    assert (workspace / "a.bin").read_bytes() == data


def test_B106_not_found_and_not_unique_change_nothing(editor: StrReplaceEditor, workspace: Path) -> None:
    file = workspace / "a.py"
    file.write_text("def total(x):\n    return x\n\ndef other(x):\n    return x\n")
    before = file.stat().st_mtime_ns
    words = refused(editor, "str_replace", "a.py", old_str="def totals(x):", new_str="y")
    assert words == "old_str was not found in a.py; the nearest line is 1: def total(x): | view the file"
    words = refused(editor, "str_replace", "a.py", old_str="    return x", new_str="y")
    assert words == "old_str occurs 2 times in a.py, at lines 2, 5 | add lines around it so that it occurs once"
    (workspace / "b").write_text("aaa")
    assert "occurs 2 times" in refused(editor, "str_replace", "b", old_str="aa", new_str="y")
    assert file.stat().st_mtime_ns == before


def test_spaces_at_line_ends_may_differ(editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one  \ntwo\t\nthree \n")
    shown = do(editor, "str_replace", "a.txt", old_str="one\ntwo", new_str="1\n2")
    assert (workspace / "a.txt").read_text() == "1\n2\t\nthree \n"
    assert shown.startswith("edited a.txt (spaces at line ends were ignored), now:")


def test_replacement_text_is_taken_literally(editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a.c (x)\n")
    do(editor, "str_replace", "a.txt", old_str="a.c (x)", new_str=r"\1 \g<0>")
    assert (workspace / "a.txt").read_text() == "\\1 \\g<0>\n"
    do(editor, "str_replace", "a.txt", old_str=r"\1 ")
    assert (workspace / "a.txt").read_text() == "\\g<0>\n"


@pytest.mark.parametrize(
    ("line", "text", "result"),
    [
        (0, "n", "n\na\nb"),
        (1, "n\n", "a\nn\nb"),
        (2, "n", "a\nb\nn"),
        (2, "n\n", "a\nb\nn\n"),
    ],
)
def test_insert(line: int, text: str, result: str, editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\nb")
    do(editor, "insert", "a.txt", insert_line=line, new_str=text)
    assert (workspace / "a.txt").read_text() == result


def test_insert_into_an_empty_file_and_out_of_range(editor: StrReplaceEditor, workspace: Path) -> None:
    (workspace / "a.txt").touch()
    assert "has lines 0 to 0" in refused(editor, "insert", "a.txt", insert_line=3, new_str="x")
    do(editor, "insert", "a.txt", insert_line=0, new_str="x")
    assert (workspace / "a.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("create", {}, "file_text: is required for create"),
        ("str_replace", {"new_str": "x"}, "old_str: is required for str_replace"),
        ("str_replace", {"old_str": "", "new_str": "x"}, "old_str is empty"),
        ("str_replace", {"old_str": "a", "new_str": "a"}, "nothing to change"),
        ("insert", {"new_str": "x"}, "insert_line: is required for insert"),
        ("insert", {"insert_line": 0}, "new_str: is required for insert"),
    ],
)
def test_missing_arguments_are_named(
    command: str, arguments: dict[str, Any], words: str, editor: StrReplaceEditor, workspace: Path
) -> None:
    (workspace / "f").write_text("a")
    assert words in refused(editor, command, "f" if command != "create" else "g", **arguments)


def test_missing_files_pipes_and_folders_are_named(editor: StrReplaceEditor, workspace: Path) -> None:
    assert "gone.txt does not exist" in refused(editor, "view", "gone.txt")
    os.mkfifo(workspace / "pipe")
    assert "pipe is not a regular file" in refused(editor, "view", "pipe")
    (workspace / "d").mkdir()
    assert "not a regular file" in refused(editor, "str_replace", "d", old_str="a", new_str="b")
    assert do(editor, "view", "d") == "d/\n(empty)"


def test_the_mode_of_a_file_stays(editor: StrReplaceEditor, workspace: Path) -> None:
    script = workspace / "run.sh"
    script.write_text("echo a\n")
    script.chmod(0o750)
    do(editor, "str_replace", "run.sh", old_str="a", new_str="b")
    assert script.stat().st_mode & 0o777 == 0o750
    assert [entry.name for entry in workspace.iterdir()] == ["run.sh"]


async def test_edits_inside_need_no_approval_and_absolute_paths_inside_work(
    call: Call, workspace: Path, approver: Any
) -> None:
    outcome = await call("str_replace_editor", command="create", path=str(workspace / "x.txt"), file_text="x")
    assert outcome.ok
    assert approver.asked == []


async def test_gits_own_files_need_an_approval(call: Call, approver: Any, workspace: Path) -> None:
    (workspace / "alias").symlink_to(".git")
    for path in (".git/config", "sub/.GIT/hooks/x", "alias/config"):
        await call("str_replace_editor", command="create", path=path, file_text="x")
    assert [request.preview for request in approver.asked] == [".git/config", "sub/.GIT/hooks/x", "alias/config"]
    await call("str_replace_editor", command="view", path=".git/config")
    await call("str_replace_editor", command="create", path=".gitignore", file_text="x")
    assert len(approver.asked) == 3


async def test_a_view_range_as_text_is_read(call: Call, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\ntwo\n")
    outcome = await call("str_replace_editor", command="view", path="a.txt", view_range="[2, 2]")
    assert outcome.block.text.startswith("     2\ttwo")


def test_tool_errors_are_tool_errors(editor: StrReplaceEditor) -> None:
    with pytest.raises(ToolError):
        do(editor, "view", "nothing")
