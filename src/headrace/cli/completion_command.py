"""Print a script that completes verbs, options and models in a shell.

bash: eval "$(headrace completion bash)" in ~/.bashrc
zsh:  eval "$(headrace completion zsh)" in ~/.zshrc, behind compinit
fish: headrace completion fish > ~/.config/fish/completions/headrace.fish
"""

from __future__ import annotations

import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    from headrace.cli.completion_scripts import SCRIPTS
    from headrace.cli.completion_words import command_words

    print(SCRIPTS[args.shell](command_words()))
    return 0
