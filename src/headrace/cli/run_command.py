"""Ask a model one question: `headrace run MODEL PROMPT`; without a PROMPT, chat with it.

The prompt is a message of a chat, so that the model's template is applied; `headrace generate` continues a text. What
is piped in stands before the PROMPT.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import sys

from headrace.cli.answer_view import PlainView
from headrace.cli.chat_command import add_chat_options, chat
from headrace.cli.command_options import sampling
from headrace.cli.conversation import Conversation
from headrace.cli.logs import set_up_logging
from headrace.cli.text_sources import make_source, warn_if_cut
from headrace.errors import ConfigError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a directory, a .gguf file or a name (see headrace models)")
    parser.add_argument("words", nargs="*", metavar="PROMPT", help="the question (default: a chat begins)")
    add_chat_options(parser)


def run(args: argparse.Namespace) -> int:
    set_up_logging(quiet=True)
    prompt = "\n\n".join(part for part in (_piped(), " ".join(args.words).strip()) if part)
    if not prompt:
        if not sys.stdin.isatty():
            raise ConfigError("there is no PROMPT: give one, pipe one in, or run this on a terminal to chat")
        return chat(args)
    with contextlib.closing(make_source(args, args.model)) as source:
        params = sampling(args)
        conversation = Conversation(params, PlainView(sys.stdout), args.system, interactive=False)
        conversation.source = source
        conversation.ask(prompt)
        warn_if_cut(source, params)
    return 0


def _piped() -> str:
    """The text of a pipe or a file on standard input; empty for a terminal and anything else."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return ""
    return sys.stdin.read().strip() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) else ""
