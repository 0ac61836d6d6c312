"""What the supervisor tells a tokenizer process at its start."""

from transport.lifetime import ProcessArgs


class TokenizerArgs(ProcessArgs, frozen=True, kw_only=True):
    """`model`: path of the model folder or .gguf file. `frontends`: names of the inboxes that answers may go to.

    `model_shape`: a name of checkpoint.shapes instead of `model`; its vocabulary is made up.
    `chat_template`: a template file, or the template itself, used instead of the model's own. `generation_config`: the model's own sampling
    values are the defaults of requests. `tool_parser`, `reasoning_parser`: a name of `dialects.registry`, "auto" (the chat template tells) or "none".
    """

    model: str
    frontends: list[str]
    model_shape: str = ""
    chat_template: str | None = None
    generation_config: bool = True
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
