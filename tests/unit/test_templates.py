"""Chat templates: what transformers renders, refusals in the template's own words, bounds."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.tokenizer_neighbours import chat
from tests.support.tokenizer_oracle import ask_transformers
from tokenizer_proc import folder_source
from tokenizer_proc.errors import RequestError, VocabularyError
from tokenizer_proc.templates import ChatTemplate, load_template, plain_messages

NAMES = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
TALK = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi <b> & 'you' \u4f60\u597d"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye\n"},
]
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BLOCKS = """{{- bos_token }}
{%- set ns = namespace(found=false) %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% set ns.found = true %}
        {% continue %}
    {% endif %}
  {{ message.role | upper }}: {{ message['content'] | trim }}
    {% if loop.index > 3 %}
        {% break %}
    {% endif %}
{% endfor %}
{{ ns.found }} {{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}
{% generation %}
{% for message in messages if message.role == 'assistant' %}{{ message.content }}{% endfor %}
{% endgeneration %}
{%- if tools is defined and tools is not none %}tools{% endif %}
{{ dict(a=1) }} {{ strftime_now('%Y') | length }} {{ missing is defined }} {{ eos_token }}"""


def sentence(error: pytest.ExceptionInfo[RequestError]) -> str:
    assert error.value.problem.status == 400
    assert error.value.problem.param == "messages"
    return error.value.problem.message


def test_renders_as_transformers_does(models: Path) -> None:
    own = folder_source.read_settings(models / "dice-byte")["chat_template"]
    chats = [[CHATML, TALK], [CHATML, TALK[1:]], [BLOCKS, TALK], [own, TALK]]
    theirs = ask_transformers({"chats": chats}, str(models / "dice-byte"))["chats"]
    ours = [ChatTemplate(template, NAMES).render(messages, add_generation_prompt=True) for template, messages in chats]
    assert ours == theirs


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", "Roles must alternate."),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ missing.deeper }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{% for i in range(1000000) %}x{% endfor %}", "OverflowError"),
    ],
)
def test_refusals_are_the_clients(template: str, words: str) -> None:
    with pytest.raises(RequestError) as error:
        ChatTemplate(template, NAMES).render(TALK, True)
    assert words in sentence(error)


def test_time_is_bounded() -> None:
    template = ChatTemplate("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", NAMES, seconds=0.1)
    with pytest.raises(RequestError) as error:
        template.render(TALK, True)
    assert "longer than 0.1 s" in sentence(error)


def test_output_is_bounded() -> None:
    template = ChatTemplate("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}", NAMES, characters=1000)
    with pytest.raises(RequestError) as error:
        template.render(TALK, True)
    assert "1000 characters" in sentence(error)


@pytest.mark.parametrize("text", ["{% if %}", "{{ messages", "{% unknown_tag %}", "{% for x in y %}"])
def test_syntax_errors_stop_the_start(text: str) -> None:
    with pytest.raises(VocabularyError, match=r"syntax error in line 1"):
        ChatTemplate(text, NAMES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}", "system:A user:B system:C "),
        ("{% for m in messages %}{% if m.role == 'developer' %}#{% endif %}{{ m.content }}{% endfor %}", "#ABC"),
    ],
    ids=["unknown", "known"],
)
def test_a_developer_is_the_system_where_the_template_knows_none(text: str, said: str) -> None:
    messages = [{"role": "developer", "content": "A"}, {"role": "user", "content": "B"}, {"role": "system", "content": "C"}]
    assert ChatTemplate(text, NAMES).render(messages, True) == said
    assert messages[0]["role"] == "developer"


def test_override_stands_above_the_models_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("file {{ bos_token }}")
    for override, text in ((None, "own"), (str(path), "file <|bos|>"), ("{{ 'text' }}", "text")):
        template = load_template("own", override, NAMES)
        assert template is not None
        assert template.render(TALK, True) == text
    assert load_template(None, None, NAMES) is None
    with pytest.raises(VocabularyError, match="neither a readable file nor a template"):
        load_template("own", str(tmp_path / "absent"), NAMES)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("plain", "plain"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "only", "template": "o"}], "o"),
        (None, None),
    ],
)
def test_setting_of_tokenizer_config(tmp_path: Path, setting: Any, text: str | None) -> None:
    assert folder_source.folder_template(tmp_path, {"chat_template": setting}) == text


def test_file_stands_above_the_setting(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    assert folder_source.folder_template(tmp_path, {"chat_template": "setting"}) == "file"


def test_setting_without_a_default_is_said(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match="'default'"):
        folder_source.folder_template(tmp_path, {"chat_template": [{"name": "a", "template": "1"}, {"name": "b", "template": "2"}]})


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert plain_messages(chat({"role": "user", "content": parts, "name": "x"})) == [{"role": "user", "content": "one\ntwo", "name": "x"}]
    assert plain_messages(chat({"role": "assistant", "content": None})) == [{"role": "assistant", "content": None}]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "x"}, "messages[0] has no role"),
        ({"role": 5, "content": "x"}, "messages[0] has no role"),
        ({"role": "user", "content": {"a": 1}}, "must be a text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "'image_url'"),
        ({"role": "user", "content": ["x"]}, "type None"),
        ({"role": "user", "content": [{"type": "text"}]}, "without text"),
    ],
)
def test_bad_messages(message: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)) as error:
        plain_messages(chat(message))
    assert error.value.problem.param == "messages"
