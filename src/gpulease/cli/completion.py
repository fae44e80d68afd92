"""`gpulease completion SHELL`: a script that completes verbs and options, asked of gpulease itself."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLES = """\
examples:
  eval "$(gpulease completion bash)"       in ~/.bashrc
  eval "$(gpulease completion zsh)"        in ~/.zshrc
  gpulease completion fish | source        in config.fish
"""

SCRIPTS = {
    "bash": """\
_gpulease() {
    local place
    for ((place = 1; place < COMP_CWORD; place++)); do
        if [[ ${COMP_WORDS[place]} == -- ]]; then _command_offset $((place + 1)) 2>/dev/null; return; fi
    done
    mapfile -t COMPREPLY < <(gpulease completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _gpulease gpulease""",
    "zsh": """\
_gpulease() {
    local -a found
    found=(${(f)"$(gpulease completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then compadd -a found; else _files; fi
}
compdef _gpulease gpulease""",
    "fish": """\
complete -c gpulease -a '(gpulease completion --words (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'""",
}


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("shell", nargs="?", choices=sorted(SCRIPTS), default="bash", help="default bash")
    parser.add_argument("--words", nargs="...", metavar="WORD", help="what the scripts call: complete the last WORD")


def run(arguments: Namespace) -> int:
    if arguments.words is None:
        print(SCRIPTS[arguments.shell])
        return 0
    for word in suggestions(arguments.words or [""]):
        print(word)
    return 0


def suggestions(words: list[str]) -> list[str]:
    """What the last of `words` may become: a verb, an option, or one of an option's choices."""
    from gpulease.cli.main import VERBS
    from gpulease.cli.parsing import make_parser

    if len(words) == 1:
        return [verb for verb in VERBS if verb.startswith(words[0])]
    if words[0] not in VERBS:
        return []
    options = make_parser(words[0])._option_string_actions
    before = options.get(words[-2])
    if before is not None and before.choices:
        return [str(choice) for choice in before.choices if str(choice).startswith(words[-1])]
    if not words[-1].startswith("-"):
        return []
    return [option for option in options if option.startswith("--") and option.startswith(words[-1])]
