"""`ntool patchgen contract`, and fingerprints in what generate writes and check compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .projects import HEAD, REFERENCE, copy_project, make_project, patchgen

MINI_ALL = "fixkit.models.mini.mini_all_patch_gen_config"
VERSIONS = ("--old", REFERENCE / "contract/old", "--new", REFERENCE / "contract/new")
GATE = "class Gate:\n    def forward(self, values):\n        return values\n"
PATCH = '@config.override_method("Gate.forward")\ndef changed(self, values):\n    return []\n'


@pytest.mark.parametrize("how", [[], ["--static"]])
def test_findings_of_the_reference(how: list[str]) -> None:
    done = patchgen("contract", MINI_ALL, *VERSIONS, *how, cwd=REFERENCE / "project")
    assert done.code == 1
    expected = json.loads((REFERENCE / "contract/expected.json").read_text())["findings"]
    keys = {"code", "target", "detail", "added", "removed", "reordered", "parameters"}
    found = []
    for record in done.of("problem"):
        told = {k: v for k, v in record.items() if k in keys}
        found.append(told if "target" in told else {**told, "name": record["name"]})
    key = json.dumps
    assert sorted(map(key, map(sorted, (f.items() for f in found)))) == sorted(
        map(key, map(sorted, (f.items() for f in expected)))
    )
    assert done.of("summary")[0]["findings"]["signature-changed"] == 2
    assert done.err.startswith("ntool patchgen contract: signature-changed: ")


def test_a_config_outside_of_any_project(tmp_path: Path) -> None:
    """By file, without settings; it imports what is not installed, which reading does not mind."""
    config = tmp_path / "some_patch_gen_config.py"
    config.write_text("import torch_that_nobody_has as torch\n" + HEAD + PATCH)
    for name, text in (("old", GATE), ("new", GATE.replace("values", "x"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(text)
    places = ("--old", tmp_path / "old", "--new", tmp_path / "new")
    done = patchgen("contract", config, *places, cwd=tmp_path)
    assert done.code == 3 and "torch_that_nobody_has" in done.err
    done = patchgen("contract", config, *places, "--static", cwd=tmp_path)
    assert done.code == 1
    assert [p["code"] for p in done.of("problem")] == [
        "signature-changed",
        "replacement-lacks-parameter",
        "body-changed",
    ]
    done = patchgen("contract", config, *places, "--static", "--allow", "body-changed",
                    "--allow", "signature-changed:Gate.forward",
                    "--allow", "replacement-lacks-parameter", cwd=tmp_path)  # fmt: skip
    assert done.code == 0 and {p["severity"] for p in done.of("problem")} == {"info"}
    same = ("--old", tmp_path / "old", "--new", tmp_path / "old")
    done = patchgen("contract", config, *same, "--static", cwd=tmp_path)
    assert done.code == 0 and done.of("problem") == []


def test_what_cannot_be_read(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", GATE, PATCH)
    config = "kit.one_patch_gen_config"
    done = patchgen("contract", config, "--old", ".", "--new", tmp_path / "no", cwd=project)
    assert done.code == 3 and [p["code"] for p in done.of("problem")] == ["not-compared"]
    (tmp_path / "model.py").write_text("def (:\n")
    done = patchgen("contract", config, "--old", ".", "--new", tmp_path, cwd=project)
    assert done.code == 3 and "line 1" in done.of("problem")[0]["message"]
    done = patchgen("contract", "kit.none", "--old", ".", "--new", ".", cwd=project)
    assert done.code == 3
    done = patchgen("contract", config, "--old", ".", cwd=project)
    assert done.code == 2
    (project / "kit/one_patch_gen_config.py").write_text(HEAD + "for n in 'AB': config.exclude = n")
    done = patchgen("contract", config, "--old", ".", "--new", ".", "--static", cwd=project)
    assert done.code == 3 and [p["code"] for p in done.of("problem")] == ["not-static"]


def test_reading_knows_the_other_configs_of_a_module(tmp_path: Path) -> None:
    """Or what a second variable writes would be taken for a file without a config."""
    second = '\nother = PatchConfig("lib.model", target_file="other.py")\n'
    project = make_project(tmp_path / "p", GATE, PATCH + second)
    assert patchgen("generate", cwd=project).code == 0
    assert patchgen("generate", "-c", "other", cwd=project).code == 0
    for how in ([], ["--static"]):
        done = patchgen("check", *how, cwd=project)
        assert done.code == 0, done.err


@pytest.mark.parametrize(
    "config",
    [
        ".".join(f.relative_to(REFERENCE / "project").with_suffix("").parts)
        for f in sorted((REFERENCE / "project").rglob("*_patch_gen_config.py"))
    ],
)
def test_a_config_that_is_read_gives_the_same_module(config: str) -> None:
    variable = ["-c", "settings"] if "other_name" in config else []
    options = ["generate", config, "--stdout", "--allow-findings", *variable]
    run, read = (patchgen(*options, *how, cwd=REFERENCE / "project") for how in ([], ["--static"]))
    assert (run.code, run.out, run.err) == (read.code, read.out, read.err)
    assert run.out.startswith("# ====")


def test_code_that_is_nested_too_deeply(tmp_path: Path) -> None:
    deep = GATE.replace("return values", "return values" + " + 1" * 500)
    project = make_project(tmp_path / "p", deep, PATCH)
    for command in (["generate"], ["check", "--fix"], ["contract", "--old", ".", "--new", "."]):
        done = patchgen(command[0], "kit.one_patch_gen_config", *command[1:], cwd=project)
        assert done.code == 3, done.err
        assert "nested too deeply" in done.of("problem")[0]["message"]
    assert not (project / "kit/generated").exists()


def test_a_fingerprint_tells_what_changed(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", GATE, PATCH)
    module = project / "kit/generated/out.py"
    assert patchgen("generate", "--fingerprint", cwd=project).code == 0
    first = module.read_text()
    assert first.count("# fingerprint/1 ") == 1 and '"target":"Gate.forward"' in first
    assert patchgen("check", cwd=project).code == 0
    assert patchgen("generate", cwd=project).code == 0  # it stays, once it is there
    assert module.read_text() == first
    # a comment moves nothing under the patch
    (project / "lib/model.py").write_text("# more\n" + GATE)
    done = patchgen("check", cwd=project)
    assert done.code == 1 and [p["code"] for p in done.of("problem")] == ["drift"]
    (project / "lib/model.py").write_text(GATE.replace("values):", "values, cache=None):"))
    done = patchgen("check", cwd=project)
    assert done.code == 1
    assert [p["code"] for p in done.of("problem")] == [
        "signature-narrowed",
        "signature-changed",
        "replacement-lacks-parameter",
        "drift",
    ]
    done = patchgen("generate", cwd=project)
    changed = [p for p in done.of("problem") if p["code"] != "signature-narrowed"]
    assert [(p["code"], p["severity"]) for p in changed] == [
        ("signature-changed", "info"),
        ("replacement-lacks-parameter", "info"),
    ]
    assert module.read_text() == first  # the patch itself is in the way
    (project / "lib/model.py").write_text(GATE.replace("return values", "return values[1:]"))
    done = patchgen("check", "--fix", cwd=project)
    assert done.code == 0
    assert {(p["code"], p["severity"]) for p in done.of("problem")} == {
        ("body-changed", "info"),
        ("drift", "info"),
    }
    assert module.read_text() != first
    done = patchgen("check", cwd=project)
    assert done.code == 0 and done.of("problem") == []


def test_without_a_fingerprint_a_check_says_only_drift(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", GATE, PATCH)
    patchgen("generate", cwd=project)
    assert "fingerprint" not in (project / "kit/generated/out.py").read_text()
    (project / "lib/model.py").write_text(GATE.replace("return values", "return 1") + "ADDED = 1\n")
    done = patchgen("check", cwd=project)
    assert [p["code"] for p in done.of("problem")] == ["drift"]


def test_the_source_of_another_version(tmp_path: Path) -> None:
    project = copy_project(tmp_path)
    new = REFERENCE / "contract/new"
    options = ("--set", f"source={new}", "--allow", "target-missing", "--stdout")
    options += ("--allow", "signature-narrowed", "--allow", "undefined-name", "--allow-findings")
    done = patchgen("generate", MINI_ALL, *options, cwd=project)
    assert "class MiniBlank(Base):" in done.out and "MiniEmpty" not in done.out
    done = patchgen("generate", MINI_ALL, "--set", "source=fixkit", "--stdout", cwd=project)
    assert done.code == 3  # a folder without the source: not taken from elsewhere in silence
