"""Scripts of shells that complete the command line, made from its words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from headrace.cli.completion_words import OptionWords, VerbWords

__all__ = ["SCRIPTS"]

_PATH = r"""
    local path="" i word
    for ((i = FIRST; i < CURRENT_WORD; i++)); do
        word="${WORDS[i]}"
        case "${path:+$path }$word" in
            PATHS) path="${path:+$path }$word" ;;
            *) break ;;
        esac
    done
"""
"""The verbs that stand on the line so far. An option before a verb ends them."""
_BASH = """\
_headrace() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" found=""@PATH@
    case "$path $prev" in
@VALUES@
        *) case "$path" in
@CHOICES@
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$found" -- "$cur"))
}
complete -o default -o bashdefault -F _headrace headrace"""
_ZSH = """\
#compdef headrace
_headrace() {
    local prev="${words[CURRENT-1]}" found=""@PATH@
    case "$path $prev" in
@VALUES@
        *) case "$path" in
@CHOICES@
        esac ;;
    esac
    compadd -- ${=found}
    [[ ${words[CURRENT]} == -* ]] || _files
}
compdef _headrace headrace"""


def _shell_cases(verbs: Sequence[VerbWords]) -> tuple[str, str, str]:
    """(patterns of the verbs, cases of options with known values, cases of words by verb) for bash and zsh."""
    patterns = "|".join(shlex.quote(" ".join(verb.path)) for verb in verbs)
    values = []
    for verb in verbs:
        for option in verb.options:
            names = "|".join(shlex.quote(f"{' '.join(verb.path)} {flag}") for flag in option.flags)
            if option.takes_value:
                # A value that is not one of a few is a file, or anything.
                values.append(f"        {names}) found={shlex.quote(' '.join(option.values))} ;;")
    first = f"        '') found={shlex.quote(' '.join(_top(verbs)))} ;;"
    choices = [
        f"        {shlex.quote(' '.join(verb.path))}) found={shlex.quote(' '.join(_words(verb)))} ;;" for verb in verbs
    ]
    return patterns, "\n".join(values), "\n".join([first, *choices])


def _top(verbs: Sequence[VerbWords]) -> list[str]:
    return [*(verb.path[0] for verb in verbs if len(verb.path) == 1), "--help", "--version"]


def _words(verb: VerbWords) -> list[str]:
    return [*verb.words, *(flag for option in verb.options for flag in option.flags if flag.startswith("--"))]


def _fill(template: str, verbs: Sequence[VerbWords], names: Mapping[str, str]) -> str:
    patterns, values, choices = _shell_cases(verbs)
    path = _PATH.replace("PATHS", patterns)
    for name, text in names.items():
        path = path.replace(name, text)
    return template.replace("@PATH@", path.rstrip()).replace("@VALUES@", values).replace("@CHOICES@", choices)


def _bash(verbs: Sequence[VerbWords]) -> str:
    return _fill(_BASH, verbs, {"FIRST": "1", "CURRENT_WORD": "COMP_CWORD", "WORDS": "COMP_WORDS"})


def _zsh(verbs: Sequence[VerbWords]) -> str:
    # Its arrays begin at 1, and `path` is the search path there.
    script = _fill(_ZSH, verbs, {"FIRST": "2", "CURRENT_WORD": "CURRENT", "WORDS": "words"})
    return (
        script.replace("local path", "local verbs")
        .replace("$path", "$verbs")
        .replace("${path", "${verbs")
        .replace(" path=", " verbs=")
    )


def _fish(verbs: Sequence[VerbWords]) -> str:
    lines = ["complete -c headrace -n __fish_use_subcommand -s V -l version -d 'show the version'"]
    for verb in verbs:
        *above, name = verb.path
        where = f"__fish_seen_subcommand_from {above[0]}" if above else "__fish_use_subcommand"
        lines.append(f"complete -c headrace -n {_fish_text(where)} -a {name} -d {_fish_text(verb.help)}")
        own = "; and ".join(f"__fish_seen_subcommand_from {part}" for part in verb.path)
        lines += [_fish_option(own, option) for option in verb.options]
        if verb.words and len(verb.path) == 1:
            lines.append(f"complete -c headrace -n {_fish_text(own)} -a {_fish_text(' '.join(verb.words))}")
    return "\n".join(lines)


def _fish_option(where: str, option: OptionWords) -> str:
    flags = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    value = f" -x -a {_fish_text(' '.join(option.values))}" if option.values else " -r" if option.takes_value else ""
    return f"complete -c headrace -n {_fish_text(where)} {' '.join(flags)}{value} -d {_fish_text(option.help)}"


def _fish_text(text: str) -> str:
    escaped = " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SCRIPTS: Mapping[str, Callable[[Sequence[VerbWords]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""Shell → the function that writes its script."""
