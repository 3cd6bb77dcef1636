"""The commands of patchgen: wrong use, settings in pyproject.toml, findings that are allowed, and
the formatter.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from .projects import ALL, DANGLING, MODEL, OUT, make_project, patchgen, tree


def settings(root: Path, *lines: str) -> None:
    path = root / "pyproject.toml"
    path.write_text(path.read_text() + "".join(f"{line}\n" for line in lines))


def test_findings_that_are_allowed(project: Path) -> None:
    for allowed in ("dangling-name", "dangling-name:MiniExtra"):
        done = patchgen("generate", DANGLING, "--dry-run", "--allow", allowed, cwd=project)
        (found,) = done.of("problem")
        assert done.code == 0 and found["severity"] == "info" and "(allowed)" in found["message"]
    for other in ("dangling-name:Other", "drift"):
        assert patchgen("generate", DANGLING, "--dry-run", "--allow", other, cwd=project).code == 1
    settings(project, 'allow = ["dangling-name:MiniExtra"]')
    assert patchgen("generate", DANGLING, cwd=project).code == 0
    assert patchgen("check", DANGLING, cwd=project).code == 0


def test_a_duplicate_may_be_meant(tmp_path: Path) -> None:
    config = "".join(
        f'@config.replace_function("f")\ndef g{n}():\n    return {n}\n' for n in (1, 2)
    )
    root = make_project(tmp_path / "p", "def f():\n    return 0\n", config)
    assert patchgen("generate", cwd=root).code == 1
    done = patchgen("generate", "--allow-duplicate", cwd=root)
    assert done.code == 0 and "return 2" in (root / OUT).read_text()
    assert patchgen("check", "--allow-duplicate", cwd=root).code == 0


def test_written_in_spite_of_findings(project: Path) -> None:
    done = patchgen("generate", DANGLING, "--allow-findings", cwd=project)
    assert done.code == 1 and len(done.of("file")) == 1
    done = patchgen("check", DANGLING, cwd=project)
    assert done.code == 1 and [p["code"] for p in done.of("problem")] == ["dangling-name"]
    (project / done.of("problem")[0]["file"]).touch()
    path = project / "fixkit/models/hazards/generated/patched_dangling.py"
    path.write_text("x = 1\n")
    assert patchgen("check", DANGLING, "--fix", cwd=project).code == 1
    assert path.read_text() == "x = 1\n", "what generate does not write, --fix does not either"
    patchgen("check", DANGLING, "--fix", "--allow-findings", cwd=project)
    assert "class MiniNorm" in path.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "--stdout"],
        ["generate", ALL, MODEL, "--stdout"],
        ["generate", ALL, "--stdout", "-o", "x"],
        ["generate", "--set", "target=x"],
        ["generate", "--set", "source=no/such/folder"],
        ["generate", "--allow", "no-such-code"],
        ["generate", "--allow", "drift:"],
        ["generate", "-o", ""],
        ["generate", ALL, "--output="],
        ["contract", ALL, "--old", "", "--new", "."],
        ["contract", ALL, "--old", ".", "--new", ""],
        ["check", "--output", "x"],
        ["nonsense"],
        [],
    ],
)
def test_wrong_use(arguments: list[str], project: Path) -> None:
    before = tree(project)
    done = patchgen(*arguments, cwd=project)
    assert done.code == 2 and done.err
    assert tree(project) == before


@pytest.mark.parametrize(
    "line",
    ["search_root = 1", 'package_prefix = "a-b"', 'search_root = ""', 'formatter = "ruff"',
     "shim_modules = [1]", 'search_root = "no/such"', "[["],
)  # fmt: skip
def test_wrong_settings(line: str, small: Path) -> None:
    text = (small / "pyproject.toml").read_text()
    key = line.partition(" ")[0]
    kept = "".join(x + "\n" for x in text.splitlines() if not x.startswith(key))
    (small / "pyproject.toml").write_text(kept + line + "\n")
    for command in ("generate", "check", "list"):
        assert patchgen(command, cwd=small).code == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("formatter = []", "formatter: found [], expected a command"),
        ('formatter = ["", "x"]', "formatter: found ['', 'x'], expected a command"),
        ('formater = ["ruff"]', "unknown key 'formater'; did you mean formatter?"),
        ("zzz = 1", "unknown key 'zzz'"),
        ("ruff_isolated = true", "unknown key 'ruff_isolated'; formatter says what formats"),
        ('allow = ["nonsense"]', "allow: 'nonsense' is no code of a finding"),
        (
            'allow = ["lost-feild:A.m"]',
            "allow: 'lost-feild:A.m' is no code of a finding; did you mean lost-field?",
        ),
        ('allow = ["drift:"]', "allow: 'drift:' names nothing"),
        (
            'shim_modules = ["os"]',
            "shim_modules: found 'os', expected a name under which configs import the tool",
        ),
        (
            'shim_modules = ["os.path"]',
            "shim_modules: found 'os.path', expected a name under which configs import the tool",
        ),
        ('shim_modules = ["a-b"]', "shim_modules: found 'a-b', expected a dotted name"),
        ('shim_modules = [""]', "shim_modules: found '', expected a dotted name"),
        (
            'legacy_patches_prefix = "a b"',
            "legacy_patches_prefix: found 'a b', expected a dotted name",
        ),
    ],
)
def test_settings_that_would_do_nothing(line: str, said: str, small: Path) -> None:
    settings(small, line)
    for words in (["generate"], ["check"], ["list"], ["list", "--static"]):
        done = patchgen(*words, cwd=small)
        where = f"{small / 'pyproject.toml'}: [tool.ntool.patchgen]"
        assert done.code == 2
        assert done.err == f"ntool patchgen {words[0]}: {where}: {said}\n"
    assert not (small / OUT).exists()


def test_settings_of_the_reference_tool_are_known_in_its_table(small: Path) -> None:
    path = small / "pyproject.toml"
    text = path.read_text().replace("[tool.ntool.", "[tool.")
    path.write_text(text + 'ruff_isolated = true\nruff_extra_ignore = ["E501"]\n')
    assert patchgen("list", cwd=small).code == 0
    path.write_text(text + "ruff_isolate = true\n")
    done = patchgen("list", cwd=small)
    assert done.code == 2 and "'ruff_isolate'; did you mean ruff_isolated?" in done.err


def test_a_difference_may_be_allowed(small: Path) -> None:
    patchgen("generate", cwd=small)
    (small / OUT).write_text("x = 1\n")
    (small / "kit/generated/stray.py").touch()
    done = patchgen("check", cwd=small)
    assert (done.code, [p["code"] for p in done.of("problem")]) == (1, ["drift", "orphan"])
    assert patchgen("check", "--allow", "drift", cwd=small).code == 1
    done = patchgen("check", "--allow", "drift:out.py", "--allow", "orphan", cwd=small)
    assert (done.code, {p["severity"] for p in done.of("problem")}) == (0, {"info"})


def test_the_nearest_table_counts_and_ours_first(small: Path) -> None:
    settings(small, "[tool.patchgen]", 'search_root = "elsewhere"', 'package_prefix = "x"')
    inner = small / "kit" / "deep"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[project]\nname = 'without a table'\n")
    done = patchgen("list", cwd=inner)
    assert [r["values"]["config"] for r in done.of("config")] == ["kit.one_patch_gen_config"]


UPPER = """\
import sys
if sys.argv[1:] == ["--version"]:
    print("upper 1.0\\nmore")
    sys.exit(0)
text = sys.stdin.read()
if sys.argv[1].endswith("kit/generated/out.py"):
    text = text.replace("return 1", "return (1)")
if "FAIL" in text:
    print("cannot format", file=sys.stderr)
    sys.exit(2)
sys.stdout.write(text)
"""


@pytest.fixture
def formatter(small: Path) -> Path:
    """A formatter whose rule is tied to the path of the generated module."""
    program = small / "upper"
    program.write_text(f"#!{sys.executable}\n{UPPER}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    settings(small, 'formatter = ["./upper", "{path}"]')
    return small


def test_the_formatter_is_a_filter_that_knows_the_final_path(formatter: Path) -> None:
    assert patchgen("generate", "--diff", cwd=formatter).code == 0
    text = (formatter / OUT).read_text()
    assert "return (1)" in text and "# Formatter: upper 1.0\n" in text
    assert "+    return (1)" in (formatter / OUT.replace(".py", ".diff")).read_text()
    for _ in range(2):
        assert patchgen("check", "--diff", cwd=formatter / "kit").code == 0
        assert patchgen("check", "--fix", cwd=formatter).of("file") == []
        assert patchgen("generate", cwd=formatter).of("file")[0]["state"] == "unchanged"


def test_another_formatter_is_told_apart_from_drift(formatter: Path) -> None:
    patchgen("generate", cwd=formatter)
    program = formatter / "upper"
    program.write_text(program.read_text().replace("1.0", "2.0").replace("(1)", "((1))"))
    done = patchgen("check", cwd=formatter)
    (found,) = done.of("problem")
    assert (done.code, found["code"]) == (1, "formatter-changed")
    assert found["message"].startswith("written with formatter upper 1.0, now upper 2.0: differs")
    assert patchgen("check", "--fix", cwd=formatter).code == 0
    (formatter / OUT).write_text((formatter / OUT).read_text() + "x = 1\n")
    assert [p["code"] for p in patchgen("check", cwd=formatter).of("problem")] == ["drift"]


def test_a_formatter_that_fails(formatter: Path) -> None:
    config = formatter / "kit/one_patch_gen_config.py"
    config.write_text(config.read_text().replace("return 1", "return 'FAIL'"))
    done = patchgen("generate", cwd=formatter)
    assert done.code == 6 and "formatter './upper': exit code 2 (cannot format)" in done.err
    assert not (formatter / OUT).exists()
    (formatter / "upper").unlink()
    done = patchgen("generate", cwd=formatter)
    assert done.code == 6 and "formatter './upper': cannot be run" in done.err
