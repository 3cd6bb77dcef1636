"""One process that runs golden inputs through the command line and measures how far off they come.

`python -m bench.golden_child PACKAGE GOLDENS FOLDER` prints a JSON object a golden: its name, how
many tensors and values were compared, the greatest absolute error, the greatest error in units of
the promise (1e-3 + 1e-3 |reference|) with the tensor that has it, and what must be equal and
is not. GOLDENS is a folder with a manifest.json; FOLDER takes what the commands write.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file, save_file

from ntool import guard
from ntool.lib.families.neo_chat import interleave
from ntool.lib.families.neo_chat.pipeline import Pipeline
from ntool.lib.families.neo_chat.request import Request
from ntool.lib.package.package import open_package
from ntool.lib.sampling.image import read_png_recipe, to_uint8

PROMISE = 1e-3
"""atol = rtol against the published implementation in float32."""
Arrays = dict[str, np.ndarray]


def ntool(*arguments: object) -> str:
    """Standard output of a command, run in this process as the console script runs it."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guard.run([str(a) for a in arguments])
        out.flush()
    if code:
        raise SystemExit(f"{arguments[0]} ended with {code}: {err.getvalue()[-300:]}")
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


class Golden:
    """What is known and what was found, tensor by tensor."""

    def __init__(self, folder: Path, entry: dict[str, Any], pictures: Path) -> None:
        self.entry, self.args = entry, entry.get("args", {})
        self.pictures = pictures
        self.known: Arrays = load_file(folder / entry["file"])
        self.tensors = self.values = 0
        self.error = self.of_promise = 0.0
        self.worst = ""
        self.different: list[str] = []
        self.levels = 0

    def near(self, name: str, found: np.ndarray, known: np.ndarray | None = None) -> None:
        """Measure a float tensor; `known` where it is not the golden's whole tensor `name`."""
        known = self.known[name] if known is None else known
        if found.shape != known.shape or not np.isfinite(found).all():
            self.different.append(name)
            return
        off = np.abs(found.astype(np.float64) - known)
        relative = float((off / (PROMISE + PROMISE * np.abs(known.astype(np.float64)))).max())
        if relative >= self.of_promise:
            self.of_promise, self.worst = relative, name
        self.error = max(self.error, float(off.max()))
        self.tensors += 1
        self.values += known.size

    def same(self, name: str, found: Any, known: Any) -> None:
        """Note a name whose values must be equal and are not."""
        if not np.array_equal(np.asarray(found), np.asarray(known)):
            self.different.append(name)

    def told(self) -> dict[str, Any]:
        """Fields of the printed object."""
        return {
            "name": self.entry["name"],
            "tensors": self.tensors,
            "values": self.values,
            "error": self.error,
            "of_promise": self.of_promise,
            "worst": self.worst,
            "different": self.different,
            "levels": self.levels,
        }


def cache(g: Golden, prefix: str, found: Arrays, last: int | None = None) -> None:
    """All keys and values of the golden that are called `prefix.LAYER.ROLE`."""
    for name in g.known:
        if name.startswith(f"{prefix}."):
            mine = found[f"past.{name.removeprefix(f'{prefix}.')}"]
            g.near(name, mine if last is None else mine[:, :, -last:])


def prefill(g: Golden, package: Path, folder: Path, inputs: Path) -> None:
    """A finished query: logits and caches."""
    options: list[object] = ["--query", g.args["query"], "--all-logits", "-o", folder / "prefix"]
    if "image" in g.args:
        options += ["--image", inputs / g.args["image"]]
        options += ["--min-pixels", g.args["min_pixels"], "--max-pixels", g.args["max_pixels"]]
    ntool("run-prefill", package, *options)
    found = load_file(folder / "prefix")
    g.same("input_ids", found["token_ids"], g.known["input_ids"])
    g.same("position_indexes", found["position_ids"], g.known["position_indexes"])
    if "logits" in g.known:
        g.near("logits", found["logits"])
    else:
        context = json.loads((inputs.parent / "checkpoint" / "added_tokens.json").read_text())
        first = int(np.argmax(found["token_ids"][0] == context["<IMG_CONTEXT>"]))
        g.near("logits_last", found["logits"][:, -1:])
        g.near("logits_at_first_image_token", found["logits"][:, first : first + 1])
    cache(g, "kv", found)


def question(g: Golden, package: Path, folder: Path, inputs: Path) -> None:
    """A question about a picture: the logits that choose the first word, and all words."""
    text = g.args.get("question") or g.entry["question"]
    picture = inputs / (g.args.get("image") or g.entry["image"])
    count = g.args.get("max_new_tokens", 32)
    options = ["--prompt", text, "--image", picture, "--decode", count, "-o", folder / "prefix"]
    told = ntool("run-prefill", package, *options)
    found = load_file(folder / "prefix")
    records = [json.loads(line) for line in told.splitlines()]
    words = [r["id"] for r in records if r["kind"] == "token"]
    g.same("input_ids", found["token_ids"], g.known["input_ids"])
    g.same("generated_ids", words, g.known["generated_ids"].reshape(-1))
    g.near("step_logits[0]", found["logits"][0], g.known["step_logits"][:1])
    pipeline = Pipeline(open_package(package))
    prefix = pipeline.prefill(Request("chat", prompt=text, images=(picture,)))
    rows = [prefix.logits[0, -1]]
    for _ in pipeline.decode(prefix, len(g.known["step_logits"])):
        rows.append(prefix.logits[0, -1])  # of the step before: the prefix grows when asked on
    g.near("step_logits", np.stack(rows[1:]))


def references(g: Golden, inputs: Path) -> list[object]:
    """--image options and pixel limits of an edit."""
    names = g.args.get("images") or ([g.entry["source"]] if "source" in g.entry else [])
    options: list[object] = []
    for name in names:
        options += ["--image", inputs / name]
    if names and "min_pixels" in g.args:
        options += ["--min-pixels", g.args["min_pixels"], "--max-pixels", g.args["max_pixels"]]
    return options


def thought(g: Golden, package: Path, folder: Path, prompt: str) -> None:
    """The greedy thought, and the cache that it leaves behind the prompt."""
    task = ["--task", "text-to-image", "--prompt", prompt, "--think"]
    told = ntool("run-prefill", package, *task, "-o", folder / "thought")
    records = [json.loads(line) for line in told.splitlines()]
    g.same(
        "think_text", [r["text"] for r in records if r["kind"] == "text"], [g.entry["think_text"]]
    )
    found = load_file(folder / "thought")
    S = g.known["input_ids_cond"].shape[1]
    g.same(
        "picked_ids", found["token_ids"][0, S:][: g.known["picked_ids"].size], g.known["picked_ids"]
    )
    tail = {k: v[:, :, S:] for k, v in found.items() if k.startswith("past.")}
    cache(g, "kv_cond_tail", tail)


def interleaved(g: Golden, package: Path, folder: Path, inputs: Path) -> None:
    """An interleaved run: every greedy choice, the text, the picture, and its last latent."""
    args = g.args
    save_file({"noise": g.known["noise"]}, folder / "noise")
    options = [
        "--task", "interleave", "--prompt", args["prompt"], "--system", args["system_message"],
        "--size", f"{args['width']}x{args['height']}", "--steps", args["num_steps"],
        "--cfg", args["cfg_scale"], "--img-cfg", args["img_cfg_scale"],
        "--cfg-norm", args["cfg_norm"], "--shift", args["timestep_shift"],
        "--decode", args["max_new_tokens"], "--latent", folder / "noise",
        "-o", folder / "story.png",
    ]  # fmt: skip
    latents: list[np.ndarray] = []
    plain = interleave.to_uint8
    interleave.to_uint8 = lambda z: latents.append(z) or plain(z)  # type: ignore[func-returns-value]
    try:
        told = ntool("run-prefill", package, *options)
    finally:
        interleave.to_uint8 = plain
    g.near("z_final", np.concatenate(latents).reshape(g.known["z_final"].shape))
    records = [json.loads(line) for line in told.splitlines()]
    g.same("picked_ids", [r["id"] for r in records if r["kind"] == "token"], g.known["picked_ids"])
    g.same("text", [r["text"] for r in records if r["kind"] == "text"], [g.entry["text"]])
    with Image.open(folder / "story-0.png") as image:
        found = np.asarray(image)
    known = g.known["image_uint8"].reshape(found.shape)
    g.levels = int(np.abs(found.astype(int) - known.astype(int)).max())


def picture(g: Golden, package: Path, folder: Path, inputs: Path) -> None:
    """A text-to-image or edit run: caches of the prompts where the golden has them, z, pixels."""
    args = g.args
    pictures = references(g, g.pictures)
    prompt = args.get("prompt") or g.entry["prompt"]
    cfg = args.get("cfg_scale", g.entry.get("cfg_scale"))
    shift = args["timestep_shift"] if args.get("enable_timestep_shift", True) else 1
    lo, hi = args.get("cfg_interval", [0, 1])
    options = [
        "--prompt", prompt, "--latent", inputs / g.entry.get("noise_file", g.entry["file"]),
        "--size", f"{args['width']}x{args['height']}", "--steps", args["num_steps"],
        "--cfg", cfg, "--shift", shift, "--cfg-interval", f"{lo},{hi}",
        "--cfg-norm", args.get("cfg_norm", "none"), "--t-eps", args.get("t_eps", 0.02),
        "--img-cfg", args.get("img_cfg_scale", g.entry.get("img_cfg_scale", 1)), *pictures,
    ]  # fmt: skip
    if args.get("think_mode"):
        options.append("--think")
        thought(g, package, folder, prompt)
    png, trace = folder / "picture.png", folder / "trace"
    ntool("sample-image", package, *options, "-o", png, "--trace", trace)
    found = load_file(trace)
    z = found["z"]
    g.near("timesteps", found["t"])
    recipe = read_png_recipe(png)
    assert recipe is not None
    if "noise_scale" in g.known:
        g.near("noise_scale", np.float32([recipe["noise_scale"]]))
    if "z_steps" in g.known:
        g.near("z_steps", z[1:-1])
    if "z_after_step0" in g.known:
        g.near("z_after_step0", z[1:2].reshape(g.known["z_after_step0"].shape))
    for n in (1, 10):
        if f"z_after_{n}_steps" in g.known:
            g.near(f"z_after_{n}_steps", z[n : n + 1])
    g.near("z_final", z[-1:])
    for branch, last, asked in (
        (
            "kv_cond_last8",
            8,
            [
                "--task",
                "image-edit" if pictures else "text-to-image",
                "--prompt",
                prompt,
                *pictures,
            ],
        ),
        ("kv_uncond", None, ["--task", "unconditional"]),
    ):
        if any(name.startswith(f"{branch}.") for name in g.known):
            ntool("run-prefill", package, *asked, "-o", folder / "prefix")
            cache(g, branch, load_file(folder / "prefix"), last)
    with Image.open(png) as image:
        off = np.abs(np.asarray(image).astype(int) - to_uint8(g.known["z_final"]).astype(int))
    g.levels = int(off.max())


KINDS = {
    "prefill": prefill,
    "prefill_image": prefill,
    "vqa": question,
    "t2i": picture,
    "edit": picture,
    "interleave": interleaved,
}


def package_of(source: str, entry: dict[str, Any], folder: Path, made: dict[str, Path]) -> Path:
    """The package of a checkpoint, exported once for each set of config fields that runs change."""
    changes = entry.get("args", {}).get("config_overrides", {})
    key = json.dumps(changes, sort_keys=True)
    if key not in made:
        given: str | Path = source
        if changes:
            given = folder / f"checkpoint-{len(made)}"
            shutil.copytree(source, given)
            config = json.loads((given / "config.json").read_text())
            (given / "config.json").write_text(json.dumps({**config, **changes}))
        made[key] = folder / f"package-{len(made)}"
        ntool("export-component", given, "-o", made[key])
    return made[key]


def main(source: str, goldens: Path, folder: Path) -> None:
    """Every golden of the manifest that the command line can run."""
    folder.mkdir()
    inputs = goldens.parent / "inputs"
    made: dict[str, Path] = {}
    for entry in json.loads((goldens / "manifest.json").read_text()):
        if entry["kind"] not in KINDS:
            continue
        golden = Golden(goldens, entry, inputs if inputs.is_dir() else goldens)
        drawing = entry["kind"] in ("t2i", "edit", "interleave")
        places = goldens if drawing or not inputs.is_dir() else inputs
        KINDS[entry["kind"]](golden, package_of(source, entry, folder, made), folder, places)
        print(json.dumps(golden.told()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
