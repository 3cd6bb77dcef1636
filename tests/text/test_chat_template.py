"""Chat templates: a published one against its known prompts, and templates that mean harm."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.errors import InputError
from ntool.lib.text import template_worker
from ntool.lib.text.chat_template import Template, read_template, render

RENDERED = json.loads(
    (Path(__file__).parents[1] / "data/chat-templates/rendered.json").read_text("utf-8")
)
REAL = Path(__file__).parents[1] / "data/neo-chat/real-tokenizer/tokenizer_config.json.gz"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """The template of the Qwen3 tokenizers, whose prompts are known."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer_config.json").write_bytes(gzip.decompress(REAL.read_bytes()))
    found = read_template(folder)
    assert found is not None
    return found


USER = {"role": "user", "content": "2 < 3 & 'é'?"}
ASKED = "<|im_start|>user\n2 < 3 & 'é'?<|im_end|>\n"
TURN = "<|im_start|>assistant\n"
PROMPTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "plain": ([USER], {}, ASKED + TURN),
    "no thinking": (
        [USER],
        {"enable_thinking": False},
        f"{ASKED}{TURN}<think>\n\n</think>\n\n",
    ),
    "thinking": ([USER], {"enable_thinking": True}, ASKED + TURN),
    "system": (
        [{"role": "system", "content": "S"}, USER],
        {},
        f"<|im_start|>system\nS<|im_end|>\n{ASKED}{TURN}",
    ),
    # thoughts of earlier answers are left out
    "earlier turn": (
        [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}, USER],
        {},
        f"{ASKED}{TURN}yes<|im_end|>\n{ASKED}{TURN}",
    ),
    # and those of this turn, before a tool answers, stay
    "tool": (
        [
            USER,
            {"role": "assistant", "content": "look", "reasoning_content": "hm"},
            {"role": "tool", "content": "one"},
            {"role": "tool", "content": "two"},
        ],
        {},
        f"{ASKED}{TURN}<think>\nhm\n</think>\n\nlook<|im_end|>\n<|im_start|>user\n<tool_response>\n"
        "one\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n" + TURN,
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_published_template(published: Template, name: str) -> None:
    messages, values, wanted = PROMPTS[name]
    assert published.render(messages=messages, add_generation_prompt=True, **values) == wanted


def test_tools_are_written_as_json_without_escapes(published: Template) -> None:
    tool = {"name": "f", "about": "<é>", "of": [1, 2.5, None, True]}
    found = published.render(messages=[USER], tools=[tool])
    assert '\n<tools>\n{"name": "f", "about": "<é>", "of": [1, 2.5, null, true]}\n' in found


PARTS = """\
{%- for m in messages -%}
  {%- for part in m.content -%}
    {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
    {%- elif 'text' in part -%}{{ part.text }}{%- endif -%}
  {%- endfor -%}
{%- endfor -%}
"""


def test_pictures_in_a_content_list() -> None:
    content = [{"type": "image"}, {"type": "text", "text": " what? "}, {"type": "image"}]
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    found = render(PARTS, {"messages": [{"role": "user", "content": content}]}, "t")
    assert found == f"{picture} what? {picture}"


def test_lines_of_blocks_leave_nothing_behind() -> None:
    source = "{% for i in [1, 2] %}\n  {% if i %}\n{{ i }}\n  {% endif %}\n{% endfor %}\nend\n"
    assert render(source, {}, "t") == "1\n2\nend"


def test_variables_of_the_tokenizer(tmp_path: Path) -> None:
    config = {"eos_token": "</s>", "bos_token": {"content": "<s>"}, "pad_token": None}
    config["chat_template"] = "{{ bos_token }}{{ tools is none }}{{ eos_token }}{{ pad_token }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = read_template(tmp_path)
    assert found is not None and found.render() == "<s>True</s>"
    (tmp_path / "chat_template.jinja").write_text("file{{ eos_token }}")
    found = read_template(tmp_path)
    assert found is not None and found.render() == "file</s>"


@pytest.mark.parametrize("case", RENDERED["cases"], ids=lambda case: case["template"][:40])
def test_templates_that_the_published_code_has_rendered(case: dict[str, str]) -> None:
    """In this process: one for each would take long."""
    job = {"template": case["template"], "values": RENDERED["values"], "fuel": 100_000}
    assert template_worker.render(job) == case["text"]


# rendered by the published code too
ONE = [
    (
        "{{ [1.0, 2]|tojson }} {{ {'a': 3/3, 'b': '<'}|tojson(indent=1) }}",
        '[1.0, 2] {\n "a": 1.0,\n "b": "<"\n}',
    ),
    ("a\r\n{{ 'b\r\nc' }}\rd\r\n", "a\nb\nc\nd"),
    ("{{ tools is iterable }}", "False"),
    ("{{ messages[0].content.strip().partition('<')[2].index('&') }}", "3"),
    ("{% if ('a').index('a') == 0 %}{{ ['x-y'][0].rpartition('-') | last }}{% endif %}", "y"),
    ("{{ {'a': {'b': 'c d'}}.a.b.rsplit(' ', 1)[0] | wordcount }}", "1"),
    (
        "{{ raise_exception.partition is defined }}{{ 'a'.casefold() }}{{ not 'a'.istitle() }}",
        "FalseaTrue",
    ),
    ("{{ ['<']|map('tojson')|join }}{% filter tojson %}<{% endfilter %}", '"<""<"'),
]


@pytest.mark.parametrize(("template", "text"), ONE)
def test_templates_with_what_the_engine_lacks(template: str, text: str) -> None:
    assert render(template, RENDERED["values"], "t") == text


def test_what_is_no_expression_stays() -> None:
    for text in (
        "x|tojson y.partition('a') {# z.index(1)|tojson #}",
        "{% raw %}{{ x|tojson }}{{ a.index('b') }}{% endraw %}",
        "{{ \"it's|tojson\" }}{{ 'a.index(1)' }}{{ loop.index }}{{ index('a') }}{{ a.strip('-') }}",
        "{{ 'a' ",
        "{{ a)b]c",
        "{% raw %}{{ x|tojson }}",
        "{# |tojson",
    ):
        assert template_worker.adapted(text).replace("|tojson|text_of_json", "|tojson") == text
    assert template_worker.adapted("{{ a.b(c)[0].index( 'x' ).y }}") == (
        "{{ (a.b(c)[0]|method_of_text('index', 'x' )).y }}"
    )
    assert (
        template_worker.adapted("{% if (a) .partition('b') %}")
        == "{% if ((a) |method_of_text('partition','b')) %}"
    )
    assert template_worker.adapted("{{ x[{'a': 1}].index(y.index(z)) }}") == (
        "{{ (x[{'a': 1}]|method_of_text('index',(y|method_of_text('index',z)))) }}"
    )


def test_the_time_of_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{{ strftime_now('%Y-%m-%d %H') }}"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert render(template, {}, "t") == "1970-01-02 00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(InputError, match="SOURCE_DATE_EPOCH: found 'soon', expected seconds"):
        render(template, {}, "t")
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert render("{{ strftime_now('%Y') }}", {}, "t") >= "2024"


NAMED = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]


def test_the_default_of_named_templates(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": NAMED}))
    found = read_template(tmp_path)
    assert found is not None and found.source == "b"
    config.write_text("{}")
    assert read_template(tmp_path) is None
    config.unlink()
    assert read_template(tmp_path) is None


WRONG_FILES = {
    "no default": ([NAMED[0]], "found tool_use, expected default"),
    "twice": ([*NAMED, NAMED[1]], "two templates"),
    "number": (5, "found 5"),
    "list of texts": (["a"], "objects of name and template"),
    "null template": ([{"name": "default", "template": None}], "None"),
    "long": ("x" * ((1 << 20) + 1), "size"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_files_that_are_refused(tmp_path: Path, name: str) -> None:
    value, words = WRONG_FILES[name]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(InputError, match=words) as e:
        read_template(tmp_path)
    assert "tokenizer_config.json: chat_template" in str(e.value)


def test_a_template_from_outside_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "in").mkdir()
    os.symlink(tmp_path / "secret", tmp_path / "in" / "chat_template.jinja")
    with pytest.raises(InputError, match=r"chat_template\.jinja"):
        read_template(tmp_path / "in")
    (tmp_path / "in" / "chat_template.jinja").unlink()
    (tmp_path / "in" / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8 at byte 0"):
        read_template(tmp_path / "in")


DOUBLED = "{% set ns = namespace(s=START) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
TOO_MUCH = {
    "endless": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "doubled text": DOUBLED.replace("START", "'x'") + "{% endfor %}{{ ns.s }}",
    "doubled list": DOUBLED.replace("START", "[1]") + "{% endfor %}{{ ns.s | sort | length }}",
    "multiplied": "{{ 'x' * 10**12 }}",
    "padded": "{{ '{:>1000000000}'.format('x') }}",
    "indented": "{{ messages | tojson(indent=10**9) }}",
    "joined": "{{ range(100000) | join('x' * 100000) }}",
}
HARMFUL = {
    "class": ("{{ ''.__class__.__mro__ }}", "undefined"),
    "globals": ("{{ raise_exception.__globals__['os'] }}", "undefined"),
    "file": ("{% include '/etc/passwd' %}", "template not found"),
    "import": ("{% import 'os' as os %}", "template not found"),
    "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion limit"),
    "nested": ("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", "recursion limit"),
    "range": ("{% for i in range(10**18) %}{% endfor %}", "too many elements"),
    "syntax": ("{% for %}", "syntax error"),
    "unknown tag": ("{% generation %}x{% endgeneration %}", "unknown statement"),
    "undefined": ("{{ a.b.c }}", "undefined"),
    "operator": ("{{ 1 + messages }}", "unsupported types"),
    "filter": ("{{ 1 | shell }}", "unknown filter"),
    "surrogate": ("{{ '\\ud800' }}", "bad string escape"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_templates_that_take_too_much_end_as_one_error(name: str) -> None:
    limits = {"fuel": 200_000, "nbytes": 256 << 20, "seconds": 1}
    values = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(InputError, match=r"my\.jinja: the template takes too much") as e:
        render(TOO_MUCH[name], values, "my.jinja", **limits)
    assert len(str(e.value)) < 300 and "--query" in str(e.value.hint)
    assert "characters" not in str(e.value)  # a huge text does not come back to be counted


def test_the_system_ends_what_fuel_does_not() -> None:
    """The memory of the process that renders is limited."""
    pytest.importorskip("resource", reason="only POSIX systems limit a process")
    with pytest.raises(InputError, match=r"the renderer ended with -6|MemoryError"):
        render(TOO_MUCH["padded"], {}, "t", fuel=200_000, nbytes=256 << 20)


@pytest.mark.parametrize("name", HARMFUL)
def test_templates_reach_nothing(name: str) -> None:
    source, words = HARMFUL[name]
    with pytest.raises(InputError, match=f"my.jinja: the template fails: .*{words}"):
        render(source, {"messages": []}, "my.jinja")


def test_a_template_may_refuse_messages() -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('one\nonly') }}{% endif %}"
    with pytest.raises(InputError, match="refuses these messages") as e:
        render(source, {"messages": [1, 2]}, "t")
    assert "\n" not in str(e.value)
    assert render(source, {"messages": [1]}, "t") == ""
