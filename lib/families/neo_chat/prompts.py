"""Prompts of neo_chat models: the exact strings the checkpoints were trained on.

A query is finished text, special tokens included. `<image>` is a placeholder of users, not a token;
`expand` replaces it before tokenising.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import InputError, UsageProblem

IMG_START, IMG_CONTEXT, IMG_END = "<img>", "<IMG_CONTEXT>", "</img>"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
THINK_START, THINK_END = "<think>", "</think>"
PAD = "<|endoftext|>"
PLACEHOLDER = "<image>"

SPECIAL_TOKENS = {
    "image_start": IMG_START,
    "image_context": IMG_CONTEXT,
    "image_end": IMG_END,
    "turn_start": TURN_START,
    "turn_end": TURN_END,
    "think_start": THINK_START,
    "think_end": THINK_END,
    "pad": PAD,
}
"""Role -> spelling. Ids differ between checkpoints and are looked up by spelling."""

NO_THOUGHT = f"{THINK_START}\n\n{THINK_END}\n\n"
"""The empty thought that a model continues from when it is not to think."""

AFTER_THOUGHT = f"\n\n{IMG_START}"
"""Appended after `</think>` when a thought precedes a picture."""

# The two system messages are constants of the trained interface (SenseNova-U1, Apache-2.0) and
# must stay byte for byte.
GENERATION_SYSTEM = (
    "You are an image generation and editing assistant that accurately understands and "
    "executes user intent.\n"
    "\n"
    "You support two modes:\n"
    "\n"
    "1. Think Mode:\n"
    "If the task requires reasoning, you MUST start with a <think></think> block. Put all "
    "reasoning inside the block using plain text. DO NOT include any image tags. Keep it "
    "reasonable and directly useful for producing the final image.\n"
    "\n"
    "2. Non-Think Mode:\n"
    "If no reasoning is needed, directly produce the final image.\n"
    "\n"
    "Task Types:\n"
    "\n"
    "A. Text-to-Image Generation:\n"
    "- Generate a high-quality image based on the user's description.\n"
    "- Ensure visual clarity, semantic consistency, and completeness.\n"
    "- DO NOT introduce elements that contradict or override the user's intent.\n"
    "\n"
    "B. Image Editing:\n"
    "- Use the provided image(s) as input or reference for modification or transformation.\n"
    "- The result can be an edited image or a new image based on the reference(s).\n"
    "- Preserve all unspecified attributes unless explicitly changed.\n"
    "\n"
    "General Rules:\n"
    "- For any visible text in the image, follow the language specified for the rendered text "
    "in the user's description, not the language of the prompt. If no language is specified, "
    "use the user's input language."
)

"""System message of text-to-image and edit runs, conditional branch only."""

INTERLEAVE_SYSTEM = (
    "You are a multimodal assistant capable of reasoning with both text and images. You "
    "support two modes:\n"
    "\n"
    "Think Mode: When reasoning is needed, you MUST start with a <think></think> block and "
    "place all reasoning inside it. You MUST interleave text with generated images using tags "
    "like <image1>, <image2>. Images can ONLY be generated between <think> and </think>, and "
    "may be referenced in the final answer.\n"
    "\n"
    "Non-Think Mode: When no reasoning is needed, directly provide the answer without "
    "reasoning. Do not use tags like <image1>, <image2>; present any images naturally "
    "alongside the text.\n"
    "\n"
    "After the think block, always provide a concise, user-facing final answer. The answer may "
    "include text, images, or both. Match the user's language in both reasoning and the final "
    "answer."
)
"""Default system message of interleaved runs; the caller may give another, or none."""


def system_block(message: str) -> str:
    """The system turn, or nothing at all for an empty message."""
    return f"{TURN_START}system\n{message}{TURN_END}\n" if message else ""


def user_block(message: str) -> str:
    """A user turn; an empty message still makes one."""
    return f"{TURN_START}user\n{message}{TURN_END}\n"


def assistant_open() -> str:
    """The open turn that the model continues."""
    return f"{TURN_START}assistant\n"


def turns(history: Sequence[tuple[str, str]]) -> str:
    """Earlier (question, answer) turns, as they were sent."""
    return "".join(user_block(q) + assistant_open() + f"{a}{TURN_END}\n" for q, a in history)


def text_to_image(
    prompt: str,
    *,
    think: bool = False,
    system: str = GENERATION_SYSTEM,
    history: Sequence[tuple[str, str]] = (),
) -> str:
    """Conditional query of text-to-image; also of an edit, with placeholders in the prompt.

    Ends at `<img>`, or at an open thought when the model is to think first.
    Source: `t2i_generate`, `_build_t2i_query` of sensenova_u1.
    """
    turn = system_block(system) + turns(history) + user_block(prompt) + assistant_open()
    return turn + (f"{THINK_START}\n" if think else NO_THOUGHT + IMG_START)


def unconditional() -> str:
    """Query of branch `uncond` of every task: an empty user turn, no system block, open `<img>`."""
    return user_block("") + assistant_open() + IMG_START


def image_edit(
    prompt: str,
    n_images: int,
    *,
    think: bool = False,
    system: str = GENERATION_SYSTEM,
    history: Sequence[tuple[str, str]] = (),
) -> str:
    """Conditional query of an edit of n pictures, placeholders not yet expanded.

    Raises:
        UsageProblem: more placeholders in the prompt than pictures.
    """
    message = place_images(prompt, n_images, labelled=True)
    return text_to_image(message, think=think, system=system, history=history)


def images_only(n_images: int, *, interleave: bool = False) -> str:
    """Query of branch `img_cond`: the pictures without text, labels, separators or system block.

    Args:
        interleave: leaves out the final `<img>`, because the run appends it when a picture begins.
    """
    query = user_block(PLACEHOLDER * n_images) + assistant_open()
    return query if interleave else query + IMG_START


def interleave(
    prompt: str,
    n_images: int = 0,
    *,
    think: bool = False,
    system: str = INTERLEAVE_SYSTEM,
    history: Sequence[tuple[str, str]] = (),
) -> str:
    """Conditional query of an interleaved run, placeholders not yet expanded.

    Without thinking the empty thought is part of the query; a thinking model opens its own.
    Raises:
        UsageProblem: more placeholders in the prompt than pictures.
    Source: `interleave_gen` of sensenova_u1.
    """
    message = place_images(prompt, n_images, labelled=False)
    turn = system_block(system) + turns(history) + user_block(message) + assistant_open()
    return turn if think else turn + NO_THOUGHT


def chat(
    question: str,
    n_images: int = 0,
    *,
    history: Sequence[tuple[str, str]] = (),
    system: str = "",
) -> str:
    """Query of a question (VQA with pictures), placeholders not yet expanded.

    `<image>` and a line end go in front iff there is a picture, no history and no placeholder, once
    for each picture (the published code handles one picture; more are our extension).

    Args:
        history: earlier (question, answer) turns, as they were sent.
    Source: `chat` of sensenova_u1.
    """
    if n_images and not history and PLACEHOLDER not in question:
        question = f"{PLACEHOLDER}\n" * n_images + question
    return system_block(system) + turns(history) + user_block(question) + assistant_open()


def place_images(prompt: str, n_images: int, *, labelled: bool) -> str:
    """The prompt with one placeholder a picture: missing ones go in front.

    Edits of several pictures without any placeholder get numbered lines (`labelled`); otherwise
    each missing placeholder is a plain line, so the first pictures are those in front.

    Raises:
        UsageProblem: more placeholders in the prompt than pictures.
    Source: `it2i_generate`, `interleave_gen` of sensenova_u1.
    """
    missing = n_images - prompt.count(PLACEHOLDER)
    if missing < 0:
        raise UsageProblem(
            f"prompt: {PLACEHOLDER} placeholders",
            found=prompt.count(PLACEHOLDER),
            expected=f"at most {n_images}, the number of pictures",
        )
    if labelled and missing == n_images and n_images > 1:
        return "".join(f"Image-{k}:{PLACEHOLDER}\n" for k in range(1, n_images + 1)) + prompt
    return f"{PLACEHOLDER}\n" * missing + prompt


def expand(query: str, token_counts: Iterable[int]) -> str:
    """Each `<image>` becomes `<img>`, its number of `<IMG_CONTEXT>`, `</img>`, left to right.

    The whole query counts, a system block included.

    Args:
        token_counts: tokens th tw of each picture, in order.
    Raises:
        InputError: the query spells `<IMG_CONTEXT>` itself, which would shift pictures.
        UsageProblem: placeholders and pictures differ in number.
    """
    if IMG_CONTEXT in query:
        raise InputError(f"prompt: {IMG_CONTEXT} in the text", expected="only from pictures")
    counts = list(token_counts)
    parts = query.split(PLACEHOLDER)
    if len(parts) - 1 != len(counts):
        raise UsageProblem(
            f"prompt: {PLACEHOLDER} placeholders",
            found=len(parts) - 1,
            expected=f"{len(counts)}, the number of pictures",
        )
    out = [parts[0]]
    for count, rest in zip(counts, parts[1:], strict=True):
        out += [IMG_START, IMG_CONTEXT * count, IMG_END, rest]
    return "".join(out)
