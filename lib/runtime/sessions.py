"""The sessions of a package: loaded when first asked for, and how their weights are held.

On CPU a float32 matrix can stay in its mapped file, and then each product rearranges it on the way,
or be rearranged once when it is loaded, into memory that is not shared. For 2.9 GB the first loads
in 0.2 s of CPU and the second in 3.3 s; a product of 16 to 256 rows then saves 0.1 s of CPU, one of
a single row a sixth of that, and of a thousand rows nothing that can be measured (two cores, ONNX
Runtime 1.31). So weights are rearranged only for loops that get it back.
"""

from __future__ import annotations

from collections.abc import Callable

from ..package.package import Package
from . import memory
from .session import DEFAULT, Session, Settings

REPACK_RUNS = 64
REPACK_ROWS = range(2, 513)
"""From so many runs on, of so many rows each, weights are worth rearranging."""


class Sessions:
    """Components of a package by name.

    Args:
        check: refuses a session that is not what the package says of it.
    """

    def __init__(
        self,
        package: Package,
        settings: Settings = DEFAULT,
        check: Callable[[str, Session], None] = lambda component, session: None,
    ) -> None:
        self.package, self.settings, self._check = package, settings, check
        self._loaded: dict[str, Session] = {}
        self._often: set[str] = set()
        self._short = settings.low_memory

    def expect(self, component: str, runs: int, rows: int) -> None:
        """Say how often a component will run, of how many rows each; before it is loaded."""
        if runs >= REPACK_RUNS and rows in REPACK_ROWS:
            self._often.add(component)

    def repacked(self, component: str) -> bool:
        """Whether a component's float32 weights are rearranged into memory when it is loaded."""
        return component in self._often and not self._short and self.settings.device[0] == "cpu"

    def nbytes(self, component: str) -> int:
        """Bytes of a loaded component; see `memory.loaded_nbytes`."""
        device = self.settings.device[0]
        return memory.loaded_nbytes(self.package, component, device, self.repacked(component))

    def fits(self, phases: list[memory.Phase], shorter: str = memory.SHORTER) -> None:
        """Refuse what does not fit into memory. Where it is only the rearranged weights that do
        not, they stay in their files, and the settings' `note` says so.

        Raises:
            EnvironmentProblem: names the phase, the bytes needed and those that are there.
        """
        device = self.settings.device
        there = memory.available(device)
        if there is not None:
            spared = [p.peak - self._repacked_nbytes(p) for p in phases]
            if any(p.peak > there for p in phases) and all(s <= there for s in spared):
                most = max(p.peak for p in phases)
                self.settings.note(
                    f"memory: {there:,} bytes available, {most:,} needed with weights repacked: "
                    "they stay in their files"
                )
                self._short = True
                return
        memory.check(phases, device, shorter=shorter)

    def __getitem__(self, component: str) -> Session:
        """The session of a component.

        Raises:
            what `Session`, `Package.check_data` and the given check raise.
        """
        if component not in self._loaded:
            self.package.check_data(component)
            graph = self.package.graph(component)
            session = Session(graph, self.settings, repack=self.repacked(component))
            self._check(component, session)
            self._loaded[component] = session
        return self._loaded[component]

    def release(self, *components: str) -> None:
        """Unload components that are not needed any more."""
        for component in components:
            self._loaded.pop(component, None)

    def _repacked_nbytes(self, phase: memory.Phase) -> int:
        mapped = memory.loaded_nbytes
        device = self.settings.device[0]
        return sum(
            nbytes - mapped(self.package, name, device, False)
            for name, nbytes in phase.weights.items()
            if self.repacked(name)
        )
