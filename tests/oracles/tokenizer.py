"""Run alone, with transformers: prints as JSON what it makes of texts or chats. `tokenizer.py FOLDER GGUF_NAME < JSON request`."""

import json
import sys
from typing import Any


def main() -> None:
    from transformers import AutoTokenizer

    request: dict[str, Any] = json.load(sys.stdin)
    options = {"gguf_file": sys.argv[2]} if len(sys.argv) > 2 else {}
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], **options)
    ids = [tokenizer(text).input_ids for text in request.get("texts", [])]
    chats = []
    for template, messages in request.get("chats", []):
        chats.append(tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True))
    json.dump({"ids": ids, "chats": chats}, sys.stdout)


if __name__ == "__main__":
    main()
