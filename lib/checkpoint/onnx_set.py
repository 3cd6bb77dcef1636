"""A set of ONNX graphs: one file, or the components of a package or of a folder of other tools."""

from __future__ import annotations

import os

from .folder import Folder
from .onnx_header import DataFile, OnnxHeader, onnx_header_of
from .tensor import Checkpoint, Problem, Tensor

MANIFEST = "package.json"
_DATA = (".safetensors", ".bin", ".data", ".onnx_data", ".weights", ".raw", ".pb", ".onnx.data")
_SHOWN = 8


def _graphs(names: list[str]) -> list[str]:
    return [n for n in names if n.lower().endswith(".onnx") and not n.startswith(".")]


def graphs_in(folder: Folder) -> dict[str, str]:
    """{path: component} of the graphs at the top of a folder and in the folders of it.

    A component is called by its folder; by its file where the folder has no name of its own (the
    top) or several graphs.
    """
    names = folder.names()
    found = {n: n[: -len(".onnx")] for n in _graphs(names) if not folder.is_folder(n)}
    for name in names:
        if name.startswith(".") or not folder.is_folder(name):
            continue
        inner = _graphs(folder.names(name))
        for graph in inner:
            stem = graph[: -len(".onnx")]
            found[f"{name}/{graph}"] = name if len(inner) == 1 else f"{name}/{stem}"
    return found


class OnnxSet:
    """Fills one `Checkpoint`. The methods `file` and `folder_of_graphs` are the ways in.

    Args:
        checkpoint: what is filled; its folder is read, files of weights are only looked up.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        checkpoint.format = "onnx"
        self._data: dict[str, DataFile] = {}
        self._places: dict[tuple[str, int, int], str | None] = {}
        self._shared: dict[tuple[str | None, str | None], list[str]] = {}

    def file(self, name: str) -> None:
        """A single graph; keys of tensors are their names."""
        self._add(self._header(name, os.path.splitext(name)[0]), "")
        self._finish()

    def folder_of_graphs(self, graphs: dict[str, str]) -> None:
        """Several graphs; keys of tensors are COMPONENT/NAME.

        Args:
            graphs: as `graphs_in` finds them.
        """
        checkpoint = self.checkpoint
        if MANIFEST in checkpoint.folder.names():
            checkpoint.format = "package"
        headers = checkpoint.folder.each(lambda n: self._header(n, graphs[n]), list(graphs))
        for header in headers:
            self._add(header, f"{header.component}/")
        self._finish()
        self._unreferenced(graphs)

    def _header(self, file: str, component: str) -> OnnxHeader:
        return onnx_header_of(self.checkpoint.folder, file, component)

    def _add(self, header: OnnxHeader, prefix: str) -> None:
        checkpoint = self.checkpoint
        checkpoint.problems += header.problems
        checkpoint.bytes_read += header.bytes_read
        checkpoint.files[header.file] = header.nbytes
        checkpoint.file_facts[header.file] = {"role": "graph", "component": header.component}
        checkpoint.metadata[header.file] = header.metadata
        checkpoint.ports += header.ports
        for name, data in header.data_files.items():
            known = self._data.setdefault(name, DataFile(data.nbytes))
            known.ranges += data.ranges
        for tensor in header.tensors:
            self._tensor(prefix + tensor.name, tensor)

    def _tensor(self, key: str, tensor: Tensor) -> None:
        checkpoint = self.checkpoint
        if key in checkpoint.tensors:
            message = f"two tensors are called '{key}'"
            problem = Problem("duplicate-tensor", message, file=tensor.file, name=tensor.name)
            checkpoint.problems.append(problem)
            return
        checkpoint.tensors[key] = tensor
        if tensor.nbytes:
            place = tensor.file, tensor.offset, tensor.nbytes
            first = self._places.setdefault(place, tensor.component)
            if first != tensor.component:
                names = self._shared.setdefault((first, tensor.component), [])
                names.append(tensor.name)

    def _finish(self) -> None:
        """Data files as files of the checkpoint; tensors that components have in common."""
        checkpoint = self.checkpoint
        for name, data in self._data.items():
            if data.nbytes is not None:
                checkpoint.files[name] = data.nbytes
                checkpoint.file_facts[name] = {"role": "data", "covered": data.covered}
        for (first, second), names in self._shared.items():
            shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            message = f"of {first} and {second}, counted in both: {len(names)} tensors: {shown}"
            checkpoint.problems.append(Problem("shared", message, severity="info"))

    def _unreferenced(self, graphs: dict[str, str]) -> None:
        """Files that look like weights and that no graph names: information."""
        folder = self.checkpoint.folder
        for inside in dict.fromkeys(g.rpartition("/")[0] for g in graphs):
            for name in folder.names(inside):
                path = f"{inside}/{name}" if inside else name
                if path not in self._data and name.lower().endswith(_DATA):
                    message = "named by no graph, not read"
                    problem = Problem("unreferenced-file", message, severity="info", file=path)
                    self.checkpoint.problems.append(problem)
