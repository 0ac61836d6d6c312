"""Every problem a client can be told by a tokenizer process, in one place so that codes and sentences stay stable."""

from messages.constraint import Constraint
from messages.text import INTERRUPTED, Problem


def empty_prompt(param: str) -> Problem:
    return Problem(status=400, code="empty_prompt", message="The prompt has no tokens; at least one is needed.", param=param)


def too_long(param: str, context: int, tokens: int, exact: bool = True) -> Problem:
    """`exact` False: the text was refused by its length alone, so `tokens` is a lower bound."""
    noun = "messages" if param == "messages" else "prompt"
    count = f"{tokens}" if exact else f"at least {tokens}"
    message = (
        f"This model's maximum context length is {context} tokens. However, your {noun} resulted in {count} tokens, and at least one more "
        f"is needed for the answer. Please reduce the length of the {noun}."
    )
    return Problem(status=400, code="context_length_exceeded", message=message, param=param)


def text_too_long(param: str, characters: int) -> Problem:
    message = f"The text to tokenize is longer than {characters} characters; please send it in parts."
    return Problem(status=400, code="text_too_long", message=message, param=param)


def unknown_token(param: str, token: int, size: int) -> Problem:
    return Problem(status=400, code="invalid_token_id", message=f"Token id {token} is outside the vocabulary (0 to {size - 1}).", param=param)


def no_template() -> Problem:
    message = (
        "This model has no chat template, so it cannot answer chat requests. Start the server with --chat-template FILE to supply one, "
        "or use /v1/completions."
    )
    return Problem(status=400, code="no_chat_template", message=message, param="messages")


def template_refused(sentence: str) -> Problem:
    return Problem(status=400, code="chat_template_error", message=sentence, param="messages")


def bad_messages(sentence: str) -> Problem:
    return Problem(status=400, code="invalid_messages", message=sentence, param="messages")


def unreadable(param: str, why: str) -> Problem:
    return Problem(status=400, code="invalid_value", message=f"{param} cannot be read: {why}.", param=param)


def unknown_variable(name: str) -> Problem:
    message = f"chat_template_kwargs: the chat template of this model knows no {name!r}."
    return Problem(status=400, code="unsupported_parameter", message=message, param="chat_template_kwargs")


def no_tools(what: str, param: str) -> Problem:
    message = f"The chat template of this model has no place for {what}. Start the server with --chat-template FILE to supply one that has."
    return Problem(status=400, code="tools_not_supported", message=message, param=param)


def bad_word(word: str, most: int) -> Problem:
    message = f"bad_words: {word[:80]!r} must be 1 to {most} tokens of this model."
    return Problem(status=400, code="invalid_bad_words", message=message, param="bad_words")


def too_many_logprobs(param: str, tokens: int, alternatives: int, choices: int, most: int) -> Problem:
    times = f", {choices} times," if choices > 1 else ""
    message = f"Logprobs of a prompt of {tokens} tokens{times} with {alternatives} alternatives each are more than {most} values; ask for fewer."
    return Problem(status=400, code="too_many_logprobs", message=message, param=param)


def bad_grammar(constraint: Constraint, sentence: str, place: str) -> Problem:
    """`place` as in `grammar.errors`. A grammar of the client's own has a place in the request, and its comments say nothing of places."""
    within = not place or place[0] in ".["
    if constraint.place and not within:
        place, within = "", True
    path = (constraint.place if within else "") + place
    message = f"The form that the answer is to have cannot be used: {path}{': ' if path else ''}{sentence}."
    return Problem(status=400, code="invalid_grammar", message=message, param=(constraint.param if within else place) or None)


def no_trial(why: str) -> Problem:
    return internal(f"The answer's form cannot be enforced here: {why}.")


def bad_stop(sentence: str) -> Problem:
    return Problem(status=400, code="invalid_stop", message=sentence, param="stop")


def not_ready() -> Problem:
    return Problem(status=503, code="not_ready", message="The model is still loading; try again soon.", retry_after=1.0, passing=True)


def incomplete() -> Problem:
    return internal("A part of the answer was lost inside the server.")


def interrupted() -> Problem:
    message = "A part of the answer was lost inside the server; please try again."
    return Problem(status=503, code=INTERRUPTED, message=message, retry_after=1.0, passing=True)


def overloaded() -> Problem:
    return Problem(status=503, code="overloaded", message="The server has too much work queued; try again soon.", retry_after=1.0)


def shutting_down() -> Problem:
    return Problem(status=503, code="shutting_down", message="The server is shutting down.", passing=True)


def internal(sentence: str) -> Problem:
    return Problem(status=500, code="internal_error", message=sentence)
