"""Prompts to token ids, with every refusal that depends on text or length. Runs in worker threads; holds no request state."""

from dataclasses import dataclass

from messages.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from messages.sampling import MAX_BAD_WORD_TOKENS
from tokenizer_proc import problems
from tokenizer_proc.detokenizer import decode
from tokenizer_proc.errors import RequestError
from tokenizer_proc.templates import ChatTemplate, plain_messages, plain_tools, plain_variables
from tokenizer_proc.vocabulary import Vocabulary

ENDING_TOKENS = 64
SLICE_CHARACTERS = 8  # per token of context; ordinary text has about 4 to a token
MAX_TOKENIZE_CHARACTERS = 2 << 20


@dataclass(frozen=True)
class PromptEncoder:
    """`template` None: chat requests are refused."""

    vocabulary: Vocabulary
    template: ChatTemplate | None

    def encode(self, prompt: Prompt, context: int | None = None, keep: int | None = None) -> list[int]:
        """Ids of a prompt that leaves room for one more token in `context` (None: any length); the last `keep` of them, if given.

        Raises RequestError (400).
        Chat prompts get no special tokens but those the template writes. A text too long for the context by its size is not encoded at all.
        """
        param = param_of(prompt)
        if isinstance(prompt, TokenPrompt):
            ids = prompt.ids
        else:
            text, add_special_tokens = self._text(prompt)
            if context is None or keep is not None:
                _refuse_large(text, param)
            else:
                self._refuse_by_size(text, context, param)
                self._refuse_by_slices(text, context, param)
            ids = self.vocabulary.encode(text, add_special_tokens)
        ids = ids if keep is None else ids[-keep:]
        self._check(ids, context, param)
        return ids

    def forbidden(self, words: list[str]) -> list[list[int]]:
        """Each word as its tokens, and as those it has behind a space. Raises RequestError (400) for one that has none or too many."""
        found: list[list[int]] = []
        for word in words:
            for text in (word, f" {word}"):
                ids = self.vocabulary.encode(text, add_special_tokens=False)
                if not 0 < len(ids) <= MAX_BAD_WORD_TOKENS:
                    raise RequestError(problems.bad_word(word, MAX_BAD_WORD_TOKENS))
                if ids not in found:
                    found.append(ids)
        return found

    def ends_with(self, ids: list[int], text: str) -> bool:
        """Whether a prompt of these ids ends with `text`, perhaps with whitespace behind it."""
        return bool(text) and decode(self.vocabulary.pieces, ids[-ENDING_TOKENS:], skip_special=False).rstrip().endswith(text)

    def echo(self, prompt: Prompt, ids: list[int], skip_special: bool) -> str:
        """The prompt as text: as the client wrote it, or decoded from its ids."""
        return prompt.text if isinstance(prompt, TextPrompt) else decode(self.vocabulary.pieces, ids, skip_special)

    def _text(self, prompt: ChatPrompt | TextPrompt) -> tuple[str, bool]:
        if isinstance(prompt, TextPrompt):
            return prompt.text, prompt.add_special_tokens
        if self.template is None:
            raise RequestError(problems.no_template())
        tools, variables = plain_tools(prompt), plain_variables(prompt)
        return self.template.render(plain_messages(prompt), prompt.add_generation_prompt, tools, variables), False

    def _refuse_by_size(self, text: str, context: int, param: str) -> None:
        size = len(text.encode())
        if size > self.vocabulary.most_bytes(context):
            raise RequestError(problems.too_long(param, context, context, exact=False))

    def _refuse_by_slices(self, text: str, context: int, param: str) -> None:
        """Encode a long text slice by slice to see early that it does not fit: whole, it could take gigabytes.

        A cut can add a token or two to the count, hence the margin.
        """
        step, limit = context * SLICE_CHARACTERS, context + context // 4 + 64
        if len(text) <= step:
            return
        count = 0
        for begin in range(0, len(text), step):
            count += len(self.vocabulary.encode(text[begin : begin + step], add_special_tokens=False))
            if count > limit:
                raise RequestError(problems.too_long(param, context, context, exact=False))

    def _check(self, ids: list[int], context: int | None, param: str) -> None:
        if context is not None and not ids:
            raise RequestError(problems.empty_prompt(param))
        if context is not None and len(ids) >= context:
            raise RequestError(problems.too_long(param, context, len(ids)))
        if ids and max(ids) >= self.vocabulary.size:
            raise RequestError(problems.unknown_token(param, max(ids), self.vocabulary.size))


def _refuse_large(text: str, param: str) -> None:
    if len(text) > MAX_TOKENIZE_CHARACTERS:
        raise RequestError(problems.text_too_long(param, MAX_TOKENIZE_CHARACTERS))


def param_of(prompt: Prompt) -> str:
    """The request field a client wrote the prompt in."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def size_of(prompt: Prompt) -> int:
    """About how many bytes of work a prompt is, without looking inside."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    if isinstance(prompt, TokenPrompt):
        return len(prompt.ids)
    values = (*prompt.tools, *prompt.variables.values(), *(value for message in prompt.messages for value in message.values()))
    return sum(memoryview(value).nbytes for value in values)
