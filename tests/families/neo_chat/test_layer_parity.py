"""Each layer of the graphs against the NumPy reference, to 2e-5 (COMPONENT says why)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from ntool.lib.families.neo_chat import backbone, heads, vision
from ntool.lib.graph import layers as graph_layers
from ntool.lib.graph.builder import FLOAT, Graph
from ntool.lib.graph.experts import sparse_mlp

from . import reference as R
from . import reference_layers as L
from .golden_cases import CASES, COMPONENT, DATA, HEAD, Case, close, load_case
from .graph_session import config_of, run_piece

SUFFIXES = [backbone.UNDERSTANDING, backbone.GENERATION]


@pytest.fixture(params=CASES)
def any_case(request: pytest.FixtureRequest) -> Case:
    return load_case(request.param)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_activations_and_sinusoid_meet_the_common_goldens(dense: Case) -> None:
    golden = load_file(DATA / "common" / "activations.safetensors")
    gelu, silu = run_piece(
        dense, lambda g, c, i: [g.Gelu(i["x"]), graph_layers.silu(g, i["x"])], {"x": golden["x"]}
    )
    close(gelu, golden["gelu"], 1e-6)
    close(silu, golden["silu"], 1e-6)
    golden = load_file(DATA / "common" / "sinusoid.safetensors")
    (code,) = run_piece(dense, lambda g, c, i: [vision.sinusoid(g, i["t"])], {"t": golden["t"]})
    # arguments reach 100, where one float32 ulp is 8e-6
    close(code, golden["sinusoid"], 1e-5)


@pytest.mark.parametrize(("width", "base"), [(64, 5e6), (32, 1e4), (8, 100.0), (4, 1e7)])
def test_rotary_frequencies(width: int, base: float) -> None:
    # one rounding of a power in either program
    np.testing.assert_allclose(
        graph_layers.inverse_frequencies(width, base), L.inverse_frequencies(width, base), rtol=3e-7
    )


def test_rms_norm(any_case: Case) -> None:
    D = config_of(any_case).llm.D
    x = draw(1, 5, D) * 3
    name = "language_model.model.norm"
    (found,) = run_piece(
        any_case, lambda g, c, i: [graph_layers.rms_norm(g, i["x"], name, c.llm.eps)], {"x": x}
    )
    close(found, L.rms_norm(x, any_case.w[f"{name}.weight"], 1e-6), COMPONENT)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_norm_and_rotation_of_heads(any_case: Case, suffix: str) -> None:
    c = config_of(any_case).llm
    x = draw(2, 2, c.H, 7, c.hd)
    positions = np.array([[0, 1, 2, 3, 3, 3, 900], [0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0, 0]])
    at = "language_model.model.layers.1.self_attn."

    def build(g, config, i):
        batch = g.Shape(i["x"], start=0, end=1)
        tables, _ = backbone.axes(g, i["p"], config.llm, FLOAT, batch)
        scope = g.at(at.removesuffix("."))
        return [backbone.place(scope, i["x"], f"q_norm{suffix}", config.llm, tables)]

    (found,) = run_piece(any_case, build, {"x": x, "p": positions}, {"x": ["B", c.H, "S", c.hd]})
    norms = [any_case.w[f"{at}q_norm{hw}{suffix}.weight"] for hw in ("", "_hw")]
    close(
        found,
        L.norm_and_rotate(x, *norms, positions, any_case.config["llm_config"]),
        COMPONENT,
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("mask", [True, False])
def test_layer_with_a_past(any_case: Case, suffix: str, mask: bool) -> None:
    c = config_of(any_case).llm
    B, S, P = 2, 6, 5
    x = draw(3, B, S, c.D)
    past = draw(4, B, c.KV, P, c.hd), draw(5, B, c.KV, P, c.hd)
    positions = np.array([[5, 6, 6, 6, 6, 7], [0, 0, 0, 1, 1, 0], [0, 0, 1, 0, 1, 0]])

    def build(g, config, i):
        rows, r = graph_layers.rows_of(g, i["x"])
        tables, t = backbone.axes(g, i["p"], config.llm, FLOAT, r.batch)
        seen = g.Shape(i["k"], start=2, end=3)
        bias = graph_layers.block_causal_bias(g, t, seen) if mask else None
        scope = g.at("language_model.model.layers.2")
        out = backbone.layer(scope, rows, (i["k"], i["v"]), 2, suffix, config.llm, tables, r, bias)
        return [graph_layers.unrows(g, out[0], r, [config.llm.D]), *out[1:]]

    cached = ["batch", c.KV, "past", c.hd]
    dims = {"x": ["batch", "S", c.D], "p": [3, "S"], "k": cached, "v": cached}
    feeds = {"x": x, "p": positions, "k": past[0], "v": past[1]}
    found, k, v = run_piece(any_case, build, feeds, dims)
    new = L.block_causal(positions[0]) if mask else np.ones((S, S), bool)
    allowed = np.concatenate([np.ones((S, P), bool), new], axis=1)
    wanted, (wk, wv) = L.backbone_layer(
        any_case.w, any_case.config["llm_config"], 2, suffix, x, positions, past, allowed
    )
    close(found, wanted, COMPONENT)
    close(k, wk, COMPONENT)
    close(v, wv, COMPONENT)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_dense_mlp(dense: Case, suffix: str) -> None:
    x = draw(6, 9, config_of(dense).llm.D)
    at = "language_model.model.layers.0."
    (found,) = run_piece(
        dense,
        lambda g, c, i: [backbone.mlp(g.at(at.removesuffix(".")), i["x"], 0, suffix, c.llm)],
        {"x": x},
    )
    close(found, L.dense_mlp(dense.w, f"{at}mlp{suffix}.", x), COMPONENT)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("renormalise", [True, False])
def test_sparse_mlp(moe: Case, suffix: str, rows: int, renormalise: bool) -> None:
    c = replace(config_of(moe).llm, renormalise=renormalise)
    llm = {**moe.config["llm_config"], "norm_topk_prob": renormalise}
    x = draw(7, rows, c.D)
    at = "language_model.model.layers.1."
    (found,) = run_piece(
        moe,
        lambda g, _, i: [backbone.mlp(g.at(at.removesuffix(".")), i["x"], 1, suffix, c)],
        {"x": x},
        {"x": ["rows", c.D]},
    )
    close(found, L.sparse_mlp(moe.w, llm, f"{at}mlp{suffix}.", suffix, x), COMPONENT)


def test_the_graph_of_a_mixture_does_not_grow_with_its_experts(moe: Case) -> None:
    sizes = {}
    for experts in (6, 128):
        g = Graph("piece", Anything())
        x = g.input("x", FLOAT, ["rows", 64])
        g.output("y", sparse_mlp(g.at("mlp"), x, experts, 2, 32, True))
        sizes[experts] = len(g.model().SerializeToString())
    assert sizes[128] - sizes[6] < 64  # a few digits of dimensions


class Anything:
    def claim(self, name: str, shape: tuple[int, ...], dtype: int) -> str:
        return "inside"


@pytest.mark.parametrize("grids", [[(4, 6)], [(2, 2), (6, 2), (2, 8)]])
def test_vision_tower_of_several_pictures(any_case: Case, grids: list[tuple[int, int]]) -> None:
    c = config_of(any_case)
    pixels = draw(7, sum(h * w for h, w in grids), 3 * c.P * c.P)
    grid_hw = np.array(grids, np.int64)

    def build(g, config, i):
        source, x, y = vision.token_order(g, i["grid_hw"], config)
        rows = g.Gather(i["pixels"], source, axis=0)
        return [vision.tower(g.at("vision_model"), rows, x, y, config)]

    dims = {"pixels": ["patches", 3 * c.P * c.P], "grid_hw": ["images", 2]}
    (found,) = run_piece(any_case, build, {"pixels": pixels, "grid_hw": grid_hw}, dims)
    close(found, R.vision_tower(any_case.w, any_case.config, R.VISION, pixels, grid_hw), COMPONENT)


@pytest.mark.parametrize("size", [(64, 32), (32, 96)])
def test_generation_tower_of_a_batch(any_case: Case, size: tuple[int, int]) -> None:
    z = draw(8, 2, 3, *size)

    def build(g, config, i):
        rows, x, y, _ = vision.patchify(g, i["z"], config)
        return [vision.tower(g.at("fm_modules.vision_model_mot_gen"), rows, x, y, config)]

    (found,) = run_piece(any_case, build, {"z": z}, {"z": ["B", 3, "H", "W"]})
    rows = np.concatenate([R.patchify(picture) for picture in z])
    grid = np.array([[size[0] // 16, size[1] // 16]] * 2)
    close(found, R.vision_tower(any_case.w, any_case.config, R.VISION_GEN, rows, grid), COMPONENT)


@pytest.mark.parametrize("name", ["timestep_embedder", "noise_scale_embedder"])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_scalar_embedder(any_case: Case, name: str, value: float) -> None:
    (found,) = run_piece(
        any_case,
        lambda g, c, i: [vision.scalar_embedder(g.at(f"fm_modules.{name}"), i["v"], c, FLOAT)],
        {"v": np.array([value], np.float32)},
    )
    close(found, R.scalar_embedder(any_case.w, name, value), COMPONENT)


@pytest.mark.parametrize("grid", [(2, 3), (3, 1)])
def test_pixel_head(any_case: Case, grid: tuple[int, int]) -> None:
    c = config_of(any_case)
    th, tw = grid
    hidden = draw(9, 2, th * tw, c.llm.D)

    def build(g, config, i):
        rows, r = graph_layers.rows_of(g, i["h"])
        scope = g.at("fm_modules.fm_head")
        if config.pixel_head:
            c1 = any_case.w["fm_modules.fm_head.conv1.weight"].shape[0]
            return [heads.conv_decoder(scope, rows, r, i["grid"], config, c1)]
        width = any_case.w["fm_modules.fm_head.0.weight"].shape[0]
        return [heads.mlp_head(scope, rows, r, i["grid"], config, width)]

    feeds = {"h": hidden, "grid": np.array(grid)}
    (found,) = run_piece(any_case, build, feeds, {"h": ["B", "L", c.llm.D]})
    close(found, R.pixel_head(any_case.w, any_case.config, hidden, th, tw), HEAD)
