"""The configs of a project: each loaded, built, judged, and compared with what is committed."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from ..checkpoint.tensor import Problem
from ..errors import InputError, NtoolError, UsageProblem
from ..progress import tracked
from . import diff, fingerprint, render
from .config_process import Runner
from .contract import Missing, Version, compare, compare_facts, version_below
from .discover import Found, Settings, find_settings, output_folder, resolve, roots_of, search
from .findings import Finding, as_note, finding, has_errors, softened
from .formatter import Formatter
from .model import Plan
from .run import NoConfig
from .source import Library

GENERATED = "generated"


@dataclass(frozen=True)
class Choices:
    """What a command line asks for.

    Attributes:
        configs: dotted names or files; none means all of the settings' search root.
        variable: name of the PatchConfig in its module.
        static: read configs as syntax instead of running them.
        source: version of the source to use, see `contract.version_below`.
        fingerprint: keep in the header what the patches rest on.
        output: folder to write to instead of the default.
        allow: `CODE` or `CODE:NAME` of findings that are no errors.
    """

    configs: tuple[str, ...] = ()
    variable: str = "config"
    static: bool = False
    source: Path | None = None
    output: Path | None = None
    fingerprint: bool = False
    allow: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What became of one config.

    Attributes:
        name: its dotted name, or what the command line had.
        problems: why it could not be loaded or built; else a plan and a text are there.
        path: where the module goes; the diff goes beside it.
        source_text: text of the source module.
        changed: what changed in the source since the committed module was made, where that has a
            fingerprint.
    """

    name: str
    file: str
    problems: list[Problem] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    plan: Plan | None = None
    path: Path | None = None
    text: str = ""
    source_text: str = ""
    changed: list[Finding] = field(default_factory=list)

    @property
    def diff_path(self) -> Path:
        """Where the diff goes."""
        assert self.path is not None
        return self.path.with_suffix(".diff")

    @property
    def diff(self) -> str:
        """The diff of source and module."""
        assert self.plan is not None
        plan = self.plan
        return diff.unified(self.source_text, self.text, plan.source_module, plan.target_file)

    @property
    def exit_code(self) -> int:
        """3 where it could not be built, 1 with findings of level error, else 0."""
        return 3 if self.problems else 1 if has_errors(self.findings) else 0

    def note_changes(self) -> None:
        """Take what changed in the source among the findings, as notes: it is generated anew."""
        self.findings += map(as_note, self.changed)

    def records(self) -> Iterator[dict[str, object]]:
        """Fields of its `problem` records."""
        for problem in self.problems:
            yield {**problem.record(), "config": self.name}
        for each in self.findings:
            yield each.record(self.file, self.name)


class Project:
    """Configs and settings around a folder.

    Raises:
        UsageProblem: the settings are wrong.
    """

    def __init__(self, choices: Choices, folder: Path | None = None) -> None:
        self._choices = choices
        self._folder = folder or Path.cwd()
        self.settings = find_settings(self._folder)
        self._targets: dict[Path, set[str]] = {}
        """Folder -> names of the files that some config in it writes."""
        self._unknown: set[Path] = set()
        """Folders of output whose configs could not all be loaded."""
        self.skipped: list[str] = []
        """Modules that were found and have no config of the name asked for."""

    def _settings(self) -> Settings:
        if self.settings is None:
            raise UsageProblem(
                "no settings",
                expected="[tool.ntool.patchgen] or [tool.patchgen] in a pyproject.toml",
                hint="or name a config file",
            )
        return self.settings

    def found(self) -> Iterator[Found | Outcome]:
        """The configs that the command line means; one that is not there is an outcome."""
        if not self._choices.configs:
            yield from search(self._settings())
        for name in dict.fromkeys(self._choices.configs):
            roots = self.settings.roots if self.settings is not None else ()
            try:
                yield resolve(name, self.settings, (*roots, self._folder, *map(Path, sys.path)))
            except InputError as e:
                message = f"{e.message}; {e.hint}" if e.hint else e.message
                problem = Problem("config-missing", message, file=name, malformed=True)
                yield Outcome(name, name, [problem])

    def plans(self) -> Iterator[Outcome]:
        """Every config loaded, or why not."""
        shims = self.settings.shim_modules if self.settings is not None else ()
        with Runner(shims) as runner:
            for found in self.found():
                if isinstance(found, Outcome):
                    yield found
                    continue
                outcome = Outcome(found.module, self.shown(found.file))
                try:
                    self._load(runner, found, outcome)
                except NoConfig as e:
                    if not self._choices.configs:
                        self.skipped.append(f"{outcome.file}: {e.message}")
                        continue
                    outcome.problems.append(
                        _problem("config-not-loaded", e, outcome.file, found.file)
                    )
                except InputError as e:
                    outcome.problems.append(
                        _problem("config-not-loaded", e, outcome.file, found.file)
                    )
                if outcome.plan is None:
                    self._unknown.add(output_folder(found.file))
                else:
                    folder = self._choices.output or output_folder(found.file)
                    outcome.path = folder / outcome.plan.target_file
                    self._targets.setdefault(folder, set()).add(outcome.plan.target_file)
                yield outcome

    def _load(self, runner: Runner, found: Found, outcome: Outcome) -> None:
        roots = roots_of(found, self.settings)
        if self._choices.static:
            from . import static

            shims = self.settings.shim_modules if self.settings is not None else ()
            reading = static.load(found, roots, shims)
            self._targets.setdefault(output_folder(found.file), set()).update(reading.target_files)
            outcome.plan, outcome.problems = reading.plan(self._choices.variable)
            return
        ran = runner.run(found, roots, self._choices.variable)
        self._targets.setdefault(output_folder(found.file), set()).update(ran.target_files)
        if ran.error is not None:
            raise ran.error
        outcome.plan = ran.plan

    def outcomes(self) -> Iterator[Outcome]:
        """Every config built and judged."""
        from .apply import build
        from .checks import check
        from .snippet import Snippets

        snippets = Snippets()
        libraries: dict[tuple[Path, ...], Library] = {}
        written: dict[Path, str] = {}
        plans = list(tracked(self.plans(), None, "loading", "config"))
        for outcome in tracked(plans, len(plans), "building", "config"):
            plan, path = outcome.plan, outcome.path
            if plan is None or path is None:
                yield outcome
                continue
            try:
                version = self._version(plan, libraries)
                built = build(plan, version.library, snippets)
                outcome.findings = check(built, version.library)
                kept = fingerprint.stored(committed(path) or "")
                # what was in no version did not change: a finding of the build tells that it is not
                there = {k: f for k, f in kept.items() if not isinstance(f, Missing) or f.member}
                outcome.changed = softened(compare_facts(plan, there, version), self.allowed)
                marked = kept or self._choices.fingerprint
                prints = fingerprint.lines(plan, version) if marked else []
            except (InputError, RecursionError) as e:
                if isinstance(e, RecursionError):
                    e = InputError(f"{plan.source_module} or a replacement: nested too deeply")
                outcome.problems.append(_problem("not-built", e, outcome.file))
                yield outcome
                continue
            if path in written:
                message = f"{written[path]} writes {self.shown(path)} too"
                outcome.findings.append(finding("duplicate-output", plan.target_file, message))
            written.setdefault(path, plan.module)
            outcome.findings = softened(outcome.findings, self.allowed)
            formatter = self._formatter()
            head = render.header(
                plan,
                _based_on(plan, self._choices.source),
                built.patches.applied,
                formatter.version if formatter else None,
                prints,
            )
            outcome.source_text = version.source.text
            text = head + ("\n" + built.text if built.text else "")
            outcome.text = formatter.format(text, path.absolute()) if formatter else text
            yield outcome

    def contracts(self, old: Path, new: Path) -> Iterator[Outcome]:
        """Every config with what changed under its patches between two versions of its source."""
        plans = list(tracked(self.plans(), None, "loading", "config"))
        for outcome in tracked(plans, len(plans), "comparing", "config"):
            if (plan := outcome.plan) is not None:
                try:
                    versions = [version_below(root, plan.source_module) for root in (old, new)]
                    outcome.findings = softened(compare(plan, *versions), self.allowed)
                except InputError as e:
                    outcome.problems.append(_problem("not-compared", e, outcome.file))
            yield outcome

    @property
    def allowed(self) -> tuple[str, ...]:
        """Findings that are no errors here: of the settings and of the command line."""
        of_project = self.settings.allow if self.settings is not None else ()
        return (*of_project, *self._choices.allow)

    def _version(self, plan: Plan, libraries: dict[tuple[Path, ...], Library]) -> Version:
        """The source of a plan, from the folder that was asked for or from the import path."""
        of_config = roots_of(Found(Path(plan.file), plan.module), self.settings)
        roots = tuple(dict.fromkeys((*of_config, *map(Path, sys.path))))
        if self._choices.source is not None:
            return version_below(self._choices.source, plan.source_module, roots)
        library = libraries.setdefault(roots, Library(roots))
        return Version(library.module(plan.source_module), library)

    def _formatter(self) -> Formatter | None:
        settings = self.settings
        if settings is None or not settings.formatter:
            return None
        return Formatter(settings.formatter, settings.file.parent)

    def orphans(self) -> Iterator[Finding]:
        """Generated files that no config writes, after all configs were loaded.

        A folder with a config that could not be loaded is not judged.
        """
        if self._choices.configs or self.settings is None:
            return
        for folder in sorted(self.settings.search_root.rglob(GENERATED)):
            if not folder.is_dir() or folder in self._unknown:
                continue
            targets = self._targets.get(folder, set())
            known = targets | {str(Path(t).with_suffix(".diff")) for t in targets}
            for path in sorted(folder.iterdir()):
                if path.suffix not in (".py", ".diff") or path.name in known | {"__init__.py"}:
                    continue
                yield Finding(
                    "orphan", path.name, "no config writes this file", file=self.shown(path)
                )

    def shown(self, path: Path) -> str:
        """A path as messages have it: relative to the current folder where it lies below."""
        absolute = path.absolute()
        folder = self._folder.absolute()
        return str(absolute.relative_to(folder) if absolute.is_relative_to(folder) else path)


def _problem(code: str, error: NtoolError, file: str, path: Path | None = None) -> Problem:
    """A problem that ends with 3; its message need not begin with the file once more."""
    message = error.message.removeprefix(f"{path}: ") if path is not None else error.message
    return Problem(code, message, file=file, malformed=True)


def _based_on(plan: Plan, source: Path | None) -> str:
    """What the header says of the source's version; nothing is imported for it."""
    if plan.version is not None:
        return f"transformers=={plan.version}"
    top = plan.source_module.partition(".")[0]
    if source is not None:
        for found in metadata.distributions(path=[str(source)]):
            if found.name.lower().replace("-", "_") == top.lower():
                return f"{found.name}=={found.version}"
        return "unknown"
    try:
        return f"{top}=={metadata.version(top)}"
    except metadata.PackageNotFoundError:
        names = metadata.packages_distributions().get(top)
        return f"{names[0]}=={metadata.version(names[0])}" if names else "unknown"


def committed(path: Path) -> str | None:
    """Text of a committed file, line ends as line feeds; None where there is none.

    What is no UTF-8 becomes something that differs from all that is generated.
    """
    if not path.is_file():
        return None
    text = path.read_bytes().decode(errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def drift(
    outcome: Outcome, shown: Sequence[str], *, diffs: bool, ignore_version: bool
) -> dict[Path, Finding]:
    """What differs from the committed files of one config.

    Args:
        shown: module and diff as messages name them.
        diffs: the diff has to be there; without it, it is compared where it is committed.
        ignore_version: header lines with versions do not count.
    Returns:
        path -> finding.
    """
    assert outcome.path is not None and outcome.plan is not None
    found: dict[Path, Finding] = {}
    name = outcome.plan.target_file
    old = committed(outcome.path)
    if old is None:
        found[outcome.path] = Finding("drift", name, "is not there", file=shown[0])
    else:
        message = _difference(old, outcome.text, render.without_version, ignore_version)
        if message is not None:
            had = render.header_line(old, render.FORMATTER)
            has = render.header_line(outcome.text, render.FORMATTER)
            if had != has:
                text = f"written with formatter {had or 'none'}, now {has or 'none'}: {message}"
                found[outcome.path] = Finding("formatter-changed", name, text, file=shown[0])
            else:
                found[outcome.path] = Finding("drift", name, message, file=shown[0])
    path = outcome.diff_path
    old = committed(path)
    if old is None and diffs:
        found[path] = Finding("drift", path.name, "is not there", file=shown[1])
    elif old is not None:
        message = _difference(
            diff.stripped(old), diff.stripped(outcome.diff), _diff_without_version, ignore_version
        )
        if message is not None:
            found[path] = Finding("drift", path.name, message, file=shown[1])
    return found


def _diff_without_version(text: str) -> str:
    gone = tuple("+" + start for start in (render.BASED_ON, render.FORMATTER))
    return "\n".join(x for x in text.split("\n") if not x.startswith((*gone, "@@")))


def _difference(old: str, new: str, strip: object, ignore: bool) -> str | None:
    """In words how texts differ, None where they do not."""
    if ignore:
        old, new = strip(old), strip(new)  # type: ignore[operator]
    if old == new:
        return None
    lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), n=0, lineterm=""))
    added = sum(x.startswith("+") for x in lines[2:])
    removed = sum(x.startswith("-") for x in lines[2:])
    pairs = zip(old.split("\n"), new.split("\n"), strict=False)
    first = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), None)
    first = first or min(old.count("\n"), new.count("\n")) + 1
    return f"differs from line {first}: {removed} lines here are not generated, {added} are missing"
