"""Chat messages to prompt text with the model's chat template."""

from pathlib import Path
from typing import Any

import jinja2
import msgspec

from messages.request import ChatPrompt
from tokenizer_proc import problems
from tokenizer_proc.errors import RequestError, VocabularyError
from tokenizer_proc.template_bounds import MAX_CHARACTERS, TemplateTooLarge
from tokenizer_proc.template_environment import TemplateEnvironment, TemplateTimeout
from tokenizer_proc.tool_forms import ToolForms

MAX_RENDER_SECONDS = 5.0
DEVELOPER, SYSTEM = "developer", "system"

# What a template can run into on messages it was not written for, besides its own refusals.
_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)


class ChatTemplate:
    """A compiled template. Raises VocabularyError when its text has a syntax error. Usable from several threads."""

    def __init__(self, text: str, names: dict[str, str], seconds: float = MAX_RENDER_SECONDS, characters: int = MAX_CHARACTERS) -> None:
        """`names`: special tokens by role, as the template sees them. `seconds` and `characters` bound one rendering."""
        self._environment = TemplateEnvironment()
        self._knows_developer = DEVELOPER in text
        self.text = text
        self._names = names
        self._seconds = seconds
        self._characters = characters
        try:
            self._template = self._environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise VocabularyError(f"the chat template has a syntax error in line {error.lineno}: {error.message}") from error
        except RecursionError as error:
            raise VocabularyError("the chat template is nested too deeply") from error
        self._tool_forms: ToolForms | None = None  # which renders
        self._tool_forms = ToolForms(text, lambda talk: self.render(talk, True))

    def render(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, tools: list[Any] | None = None, variables: dict[str, Any] | None = None
    ) -> str:
        """Prompt text. A template that does not know the role `developer`, OpenAI's newer word for `system`, gets that. `variables`: further ones.

        Raises RequestError (400) with the template's own sentence when it refuses these messages, or when it would leave out tools, calls or
        variables.
        """
        unknown = next((name for name in variables or {} if name not in self.text), None)
        if unknown is not None:
            raise RequestError(problems.unknown_variable(unknown))
        if self._tool_forms is not None:
            self._tool_forms.check(messages, tools)
            messages = self._tool_forms.shaped(messages)
        if not self._knows_developer:
            messages = [message | {"role": SYSTEM} if message["role"] == DEVELOPER else message for message in messages]
        self._environment.start_clock(self._seconds)
        try:
            own = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": tools or None, "documents": None}
            return self._collect((variables or {}) | own)
        except TemplateTimeout as error:
            raise RequestError(problems.template_refused(f"The chat template took longer than {self._seconds:g} s on these messages.")) from error
        except TemplateTooLarge as error:
            sentence = "The chat template was about to make something too large of these messages."
            raise RequestError(problems.template_refused(sentence)) from error
        except jinja2.TemplateError as error:
            raise RequestError(problems.template_refused(error.message or "The chat template refused these messages.")) from error
        except _FAULTS as error:
            sentence = f"The chat template cannot handle these messages: {type(error).__name__}: {error}"
            raise RequestError(problems.template_refused(sentence)) from error

    def _collect(self, values: dict[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        for part in self._template.generate(self._names | values):
            parts.append(part)
            size += len(part)
            if size > self._characters:
                raise RequestError(problems.template_refused(f"The rendered chat is longer than {self._characters} characters."))
            self._environment.check_clock()
        return "".join(parts)


def load_template(own: str | None, override: str | None, names: dict[str, str]) -> ChatTemplate | None:
    """The template to use: `override` (a file, or the template's text) before the model's `own`; None when there is neither.

    Raises VocabularyError when it cannot be read or compiled.
    """
    text = own if override is None else _read_override(override)
    return None if text is None else ChatTemplate(text, names)


def _read_override(override: str) -> str:
    if "{{" in override or "{%" in override:
        return override
    try:
        return Path(override).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise VocabularyError(f"--chat-template {override!r} is neither a readable file nor a template: {error}") from error


def plain_messages(prompt: ChatPrompt) -> list[dict[str, Any]]:
    """The messages as a template sees them: `content` given in parts is joined to one text. Raises RequestError (400)."""
    if not prompt.messages:
        raise RequestError(problems.bad_messages("messages is empty; at least one message is needed."))
    return [_plain_message(number, message) for number, message in enumerate(prompt.messages)]


def plain_tools(prompt: ChatPrompt) -> list[Any]:
    """The tools as a template sees them. Raises RequestError (400)."""
    return [_decoded(tool, "tools") for tool in prompt.tools]


def plain_variables(prompt: ChatPrompt) -> dict[str, Any]:
    """What else the template is told. Raises RequestError (400)."""
    return {name: _decoded(value, "chat_template_kwargs") for name, value in prompt.variables.items()}


def _decoded(value: msgspec.Raw, param: str) -> Any:
    try:
        return msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise RequestError(problems.unreadable(param, str(error))) from error


def _plain_message(number: int, message: dict[str, msgspec.Raw]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = {name: msgspec.msgpack.decode(value) for name, value in message.items()}
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise RequestError(problems.bad_messages(f"messages[{number}] cannot be read: {error}")) from error
    if not isinstance(plain.get("role"), str):
        raise RequestError(problems.bad_messages(f"messages[{number}] has no role; it must be a text such as 'user'."))
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "\n".join([_text_of_part(number, part) for part in content])
    elif content is not None and not isinstance(content, str):
        raise RequestError(problems.bad_messages(f"messages[{number}].content must be a text or a list of text parts."))
    return plain


def _text_of_part(number: int, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind != "text":
        raise RequestError(problems.bad_messages(f"messages[{number}].content has a part of type {kind!r}; this model takes only 'text' parts."))
    if not isinstance(text, str):
        raise RequestError(problems.bad_messages(f"messages[{number}].content has a text part without text."))
    return text
