"""A session takes arrays that its graph declares, and names the one that it does not take."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ntool.lib.errors import InputError
from ntool.lib.runtime.session import Session


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """y = x [n, 3] float32, and i [2] int64, m [n] bool pass through."""
    inputs = {"x": ("FLOAT", ["n", 3]), "i": ("INT64", [2]), "m": ("BOOL", ["n"])}
    ports = {k: (getattr(TensorProto, t), s) for k, (t, s) in inputs.items()}
    graph = helper.make_graph(
        [helper.make_node("Identity", [k], [f"{k}_out"]) for k in ports],
        "g",
        [helper.make_tensor_value_info(k, t, s) for k, (t, s) in ports.items()],
        [helper.make_tensor_value_info(f"{k}_out", t, s) for k, (t, s) in ports.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("session") / "model.onnx"
    onnx.save(model, path)
    return Session(path)


def feeds(**other: np.ndarray) -> dict[str, np.ndarray]:
    sound = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "i": np.array([1, 2]),
        "m": np.array([True, False]),
    }
    return {**sound, **other}


def test_declared_arrays_run_and_others_are_left_out(session: Session) -> None:
    given = feeds(unknown=np.zeros(1))
    found = session.run(given)
    for name in ("x", "i", "m"):
        np.testing.assert_array_equal(found[f"{name}_out"], given[name])
    assert list(session.run(given, ["i_out"])) == ["i_out"]
    assert session.run(feeds(x=np.zeros((0, 3), np.float32), m=np.zeros(0, bool)))


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("x", np.zeros((2, 3)), "float64 [2, 3]"),
        ("x", np.zeros((2, 3), ">f4"), "[2, 3]"),
        ("x", np.zeros((2, 4), np.float32), "float32 [2, 4]"),
        ("x", np.zeros(6, np.float32), "float32 [6]"),
        ("i", np.zeros(2, np.int32), "int32 [2]"),
        ("i", np.zeros(3, np.int64), "int64 [3]"),
    ],
)
def test_an_array_of_another_type_or_shape_is_named(session, name, value, found) -> None:
    with pytest.raises(InputError, match=f"input '{name}'") as refused:
        session.run(feeds(**{name: value}))
    assert found in refused.value.message


def test_a_missing_array_is_named(session: Session) -> None:
    given = feeds()
    del given["i"]
    with pytest.raises(InputError, match="input 'i' is missing"):
        session.run(given)


def test_what_only_onnxruntime_can_tell_is_an_input_error_too(session: Session) -> None:
    with pytest.raises(InputError, match="cannot run"):
        session.run(feeds(m=np.zeros(2, np.float32)))
