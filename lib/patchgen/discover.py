"""Settings of a project, its config modules, and where what they generate lies."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, UsageProblem
from ..suggestions import near_path, nearest
from .findings import did_you_mean, not_allowable
from .source import find_module

SUFFIX = "_patch_gen_config.py"
OURS = ("tool", "ntool", "patchgen")
TABLES = (OURS, ("tool", "patchgen"))
KEYS = (
    "search_root",
    "package_prefix",
    "legacy_patches_prefix",
    "formatter",
    "shim_modules",
    "allow",
)
THEIRS = ("ruff_extra_ignore", "ruff_isolated")
"""Keys of the reference tool that say how it runs ruff: known in its own table, without effect."""


@dataclass(frozen=True)
class Settings:
    """The settings table (docs/patchgen.md, "Settings").

    Attributes:
        file: the pyproject.toml.
        search_root: folder that is searched for configs.
        package_prefix: dotted name of that folder.
        formatter: command and arguments, or empty.
        shim_modules: further names of the module that configs import.
        allow: `CODE` or `CODE:TARGET` of findings that are no errors here.
    """

    file: Path
    search_root: Path
    package_prefix: str
    legacy_prefix: str | None = None
    formatter: tuple[str, ...] = ()
    shim_modules: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    @property
    def roots(self) -> tuple[Path, ...]:
        """Folders that the project's packages are imported from."""
        prefix = tuple(self.package_prefix.split("."))
        parts = self.search_root.parts
        above = Path(*parts[: -len(prefix)]) if parts[-len(prefix) :] == prefix else None
        folder = self.file.parent
        return (above, folder) if above is not None and above != folder else (folder,)


@dataclass(frozen=True)
class Found:
    """A config module: its file (absolute) and its dotted name."""

    file: Path
    module: str


def find_settings(start: Path) -> Settings | None:
    """Settings of the nearest pyproject.toml that has a table of TABLES, from a folder upwards.

    Raises:
        UsageProblem: a pyproject.toml on the way is not TOML, or its table is not right.
    """
    start = Path(os.path.abspath(start))
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            data: Any = tomllib.loads(file.read_bytes().decode())
        except (OSError, ValueError) as e:
            raise UsageProblem(f"{file}: cannot be read ({e})") from e
        for path in TABLES:
            table = data
            for key in path:
                table = table.get(key) if isinstance(table, dict) else None
            if isinstance(table, dict):
                known = KEYS if path == OURS else (*KEYS, *THEIRS)
                return _settings(file, f"{file}: [{'.'.join(path)}]", table, known)
    return None


def _settings(file: Path, where: str, table: dict[str, Any], known: Sequence[str]) -> Settings:
    for key in table:
        if key not in known:
            more = "; formatter says what formats" if key in THEIRS else did_you_mean(key, known)
            raise UsageProblem(f"{where}: unknown key '{key}'{more}")

    def text(key: str, required: bool = False) -> str | None:
        value = table.get(key)
        if value is None and not required:
            return None
        if not isinstance(value, str) or not value:
            found = "nothing" if value is None else repr(value)
            raise UsageProblem(f"{where}: {key}", found=found, expected="text")
        return value

    def texts(key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise UsageProblem(f"{where}: {key}", found=repr(value), expected="a list of texts")
        return tuple(value)

    root, prefix = text("search_root", True), text("package_prefix", True)
    assert root is not None and prefix is not None
    legacy = text("legacy_patches_prefix")
    shims = texts("shim_modules")
    keys = ("package_prefix", "legacy_patches_prefix", *("shim_modules" for _ in shims))
    for key, name in zip(keys, (prefix, legacy, *shims), strict=True):
        if name is not None and not all(part.isidentifier() for part in name.split(".")):
            raise UsageProblem(f"{where}: {key}", found=repr(name), expected="a dotted name")
    for name in shims:
        if name.partition(".")[0] in _NEEDED:
            expected = "a name under which configs import the tool"
            raise UsageProblem(f"{where}: shim_modules", found=repr(name), expected=expected)
    formatter = texts("formatter")
    if "formatter" in table and (not formatter or not formatter[0]):
        found = repr(table["formatter"])
        raise UsageProblem(f"{where}: formatter", found=found, expected="a command")
    for word in (allow := texts("allow")):
        if (problem := not_allowable(word)) is not None:
            raise UsageProblem(f"{where}: allow: {problem}")
    return Settings(
        file=file,
        search_root=Path(os.path.normpath(file.parent / root)),
        package_prefix=prefix,
        legacy_prefix=legacy,
        formatter=formatter,
        shim_modules=shims,
        allow=allow,
    )


_NEEDED = sys.stdlib_module_names | {"ntool"}
"""Modules that configs, and what they import, need as they are."""


def search(settings: Settings) -> list[Found]:
    """All config files below the search root, in the order of their dotted names.

    Raises:
        UsageProblem: the search root is no folder.
    """
    if not settings.search_root.is_dir():
        raise UsageProblem(f"{settings.file}: search_root", found=str(settings.search_root))
    files = [
        file
        for file in settings.search_root.rglob(f"*{SUFFIX}")
        if file.is_file() and not file.name.startswith("_")
    ]
    return sorted((_found(file, settings) for file in files), key=lambda f: f.module)


def resolve(config: str, settings: Settings | None, roots: tuple[Path, ...]) -> Found:
    """The config module that a command line names: a file, or a dotted name.

    Raises:
        InputError: there is none; the hint is what may have been meant.
    """
    if config.endswith(".py") or "/" in config or os.sep in config:
        file = Path(os.path.abspath(config))
        if not file.is_file():
            raise InputError("no such file", hint=near_path(config))
        return _found(file, settings)
    name = config
    if settings is not None and settings.legacy_prefix and name.startswith("patches."):
        name = f"{settings.legacy_prefix}.{name.removeprefix('patches.')}"
    if settings is not None and name.startswith(settings.package_prefix + "."):
        rest = name.removeprefix(settings.package_prefix + ".").split(".")
        file = settings.search_root.joinpath(*rest[:-1], rest[-1] + ".py")
        if file.is_file():
            return Found(file, name)
    found = find_module(name, roots)
    if found is None:
        raise InputError("no such module", hint=_near_config(config, settings))
    return Found(Path(os.path.abspath(found)), name)


def _near_config(config: str, settings: Settings | None) -> str | None:
    """Of the configs that a search finds; the ending that all have may be left out, and so may the
    packages where one config alone has the last part of the name."""
    if settings is None or not settings.search_root.is_dir():
        return None
    ending = SUFFIX.removesuffix(".py")
    full = {f.module.removesuffix(ending): f.module for f in search(settings)}
    short = config.removesuffix(ending)
    same = [name for name in full if name == short or name.endswith(f".{short}")]
    found = same[0] if len(same) == 1 else nearest(short, full)
    return f"did you mean '{full[found]}'?" if found is not None else None


def _found(file: Path, settings: Settings | None) -> Found:
    if settings is not None and file.is_relative_to(settings.search_root):
        parts = file.relative_to(settings.search_root).with_suffix("").parts
        return Found(file, ".".join((settings.package_prefix, *parts)))
    return Found(file, ".".join((*_packages(file.parent), file.stem)))


def _packages(folder: Path) -> list[str]:
    """Names of the packages that a folder lies in, itself included, outermost first."""
    names: list[str] = []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return names


def roots_of(found: Found, settings: Settings | None) -> tuple[Path, ...]:
    """Folders that a config's imports are looked up in, before the interpreter's own."""
    above = found.file.parent
    for _ in found.module.split(".")[:-1]:
        above = above.parent
    of_project = settings.roots if settings is not None else ()
    return tuple(dict.fromkeys((*of_project, above, Path.cwd())))


def output_folder(file: Path) -> Path:
    """Where a config's module is written: `generated` beside it, or beside its `patches` folder."""
    folder = file.parent
    return (folder.parent if folder.name == "patches" else folder) / "generated"
