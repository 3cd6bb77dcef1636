"""The embedding component: token ids and picture features to the decoder's input.

B rows, S tokens, V words, H width of the decoder, n features.
Source: docs/qwen4-exp.md, "Embedding".
"""

from __future__ import annotations

import numpy as np

from ...graph.builder import INT64, Graph, Value, WeightSource


def embedding(
    V: int, H: int, image_token_id: int, video_token_id: int, weights: WeightSource, dtype: int
) -> Graph:
    """input_ids [B, S], image_features [n, H] -> inputs_embeds [B, S, H].

    Rows of the table; then those of image tokens are replaced by the features, in row-major order
    over the batch. Without features (n = 0) image tokens keep their row of the table. Any other
    number of features than of image tokens, and a video token, fail in the graph.
    """
    g = Graph("embedding", weights)
    ids = g.input("input_ids", INT64, ["batch", "sequence"])
    features = g.input("image_features", dtype, ["image_tokens", H])
    table = g.at("model").parameter("embed_tokens.weight", [V, H], dtype)
    words = g.Gather(table, without_video(g, ids, video_token_id), axis=0)  # [B, S, H]
    places, rows = matched(g, ids, features, image_token_id)
    g.output("inputs_embeds", g.ScatterND(words, places, rows), ["batch", "sequence", H])
    return g


def without_video(g: Graph, ids: Value, video_token_id: int) -> Value:
    """The ids, unless one is a video token: then the Reshape fails, on every provider.

    Before that, ids of videos become 0: a Gather out of range is no error on CUDA. The Reshape asks
    for one element more than there are, and what it returns goes into the ids, so that no optimiser
    can drop it.
    """
    is_video = g.Equal(ids, video_token_id)
    safe = g.Where(is_video, g.constant(np.int64(0)), ids)
    some = g.ReduceMax(g.Cast(is_video, to=INT64), keepdims=0)  # 1 if there is one, else 0
    nothing = g.constant(np.zeros(1, np.int64))
    guard = g.at("video_is_not_supported").Reshape(
        nothing, g.Unsqueeze(g.Add(some, 1), [0]), shape=[None]
    )
    return g.Add(safe, guard)


def matched(g: Graph, ids: Value, features: Value, image_token_id: int) -> tuple[Value, Value]:
    """Where features go, int64 [n, 2] (row, token), and the features, whose number must fit.

    Without features there are no places. The Reshape fails, and says both numbers, when features
    and image tokens are not as many.
    """
    H = features.shape[1]
    is_image = g.Equal(ids, image_token_id)
    every = g.Transpose(g.NonZero(is_image), perm=[1, 0], shape=["places", 2])
    given = g.Greater(g.Shape(features, start=0, end=1), 0)  # [1]
    wanted = g.Where(given, g.Shape(every, start=0, end=1), g.constant(np.zeros(1, np.int64)))
    places = g.Slice(every, [0], wanted, [0], shape=["places", 2])
    target = g.Concat(wanted, [H], axis=0)
    # allowzero: features without any image token must fail too, where 0 would mean "as many as
    # given"; and without it onnxruntime 1.31 turns the size that is not a constant into -1
    rows = g.at("features_for_image_tokens").Reshape(
        features, target, allowzero=1, shape=["places", H]
    )
    return places, rows
