"""`chat`: a conversation in the terminal. On a terminal with history and colours, in a pipe line by line."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from launcher.client import Client, ServerError, find_server, sampling_fields
from launcher.errors import LauncherError
from launcher.models import cache_folder

HELP = """/reset         forget the conversation
/system TEXT   set the system message (empty: none) and start again
/help          this list
/exit          leave (also Ctrl-D); Ctrl-C stops an answer"""

PALE, PLAIN = "\x1b[2m", "\x1b[0m"
Message = dict[str, str]


class Conversation:
    """The messages so far and what is asked with them. The system message, when there is one, comes first."""

    def __init__(self, client: Client, model: str, system: str | None, options: dict[str, Any]) -> None:
        self._client = client
        self._model = model
        self._options = options
        self.system = system
        self.messages: list[Message] = []

    def reset(self) -> None:
        self.messages.clear()

    def ask(self, text: str, write: Callable[[str], None], think: Callable[[str], None] | None = None) -> str:
        """Send `text`, pass the answer on piece by piece, its reasoning to `think`, and return its finish reason ('stopped' after Ctrl-C).

        A failed question leaves the conversation as it was; an answer stopped half way stays in it.
        """
        question = {"role": "user", "content": text}
        head = [{"role": "system", "content": self.system}] if self.system else []
        body = {"model": self._model, "messages": [*head, *self.messages, question], **self._options}
        answer, finish = "", ""
        try:
            with contextlib.closing(self._client.stream("/v1/chat/completions", body)) as events:
                for choice in (choice for event in events for choice in event.get("choices", [])):
                    if think is not None and (thought := choice["delta"].get("reasoning_content")):
                        think(thought)
                    piece = choice["delta"].get("content") or ""
                    answer += piece
                    finish = choice.get("finish_reason") or finish
                    write(piece)
        except KeyboardInterrupt:
            finish = "stopped"
        self.messages += [question, {"role": "assistant", "content": answer}]
        return finish


class Voice:
    """An answer on its way to `out`, its reasoning paler than the rest."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._thinks = False

    def think(self, piece: str) -> None:
        self._write(piece if self._thinks else PALE + piece)
        self._thinks = True

    def say(self, piece: str) -> None:
        if piece:
            self._write(f"{PLAIN}\n\n{piece}" if self._thinks else piece)
            self._thinks = False

    def end(self) -> None:
        self._write(f"{PLAIN}\n" if self._thinks else "\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def run(args: argparse.Namespace) -> int:
    """Entry point of `chat`: 0 when the person left."""
    client = find_server(args.url, args.port)
    model = client.model()
    talk = Conversation(client, model, args.system, sampling_fields(args))
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    read = _terminal_reader() if terminal else _pipe_reader
    say = _terminal_writer() if terminal else _pipe_writer
    if terminal:
        say(f"Talking with {model}. /help shows the commands.")
    while (line := read()) is not None:
        text = line.strip()
        if text in {"/exit", "/quit"}:
            break
        if text.startswith("/"):
            _command(talk, text, say)
        elif text:
            with contextlib.suppress(KeyboardInterrupt):  # pressed just as the answer ended
                _turn(talk, text, say)
    return 0


def _turn(talk: Conversation, text: str, say: Callable[[str], None]) -> None:
    voice = Voice(sys.stdout)
    try:
        finish = talk.ask(text, voice.say, voice.think if sys.stdout.isatty() else None)
    except LauncherError as error:
        voice.end()
        hint = " (/reset starts afresh)" if isinstance(error, ServerError) and error.kind == "context_length_exceeded" else ""
        say(f"error: {error}{hint}")
        return
    voice.end()
    notes = {"length": "the answer ran into the length limit", "stopped": "stopped"}
    if finish in notes:
        say(f"[{notes[finish]}]")


def _command(talk: Conversation, text: str, say: Callable[[str], None]) -> None:
    name, _, rest = text.partition(" ")
    if name == "/reset":
        talk.reset()
        say("The conversation is forgotten.")
    elif name == "/system":
        talk.system = rest.strip() or None
        talk.reset()
        say("The system message is set." if talk.system else "There is no system message now.")
    elif name == "/help":
        say(HELP)
    else:
        say(f"{name} is no command.\n{HELP}")


def _pipe_reader() -> str | None:
    return sys.stdin.readline() or None


def _pipe_writer(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _terminal_reader() -> Callable[[], str | None]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.formatted_text import FormattedText
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    history: History = InMemoryHistory()
    path = cache_folder() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        history = FileHistory(str(path))
    except OSError as error:
        print(f"no history between sessions: {error}", file=sys.stderr)
    session: PromptSession[str] = PromptSession(history=history)

    def read() -> str | None:
        while True:
            try:
                return session.prompt(FormattedText([("bold ansigreen", "> ")]))
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None

    return read


def _terminal_writer() -> Callable[[str], None]:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        console.print(text, style="red" if text.startswith("error:") else "dim", markup=False)

    return say
