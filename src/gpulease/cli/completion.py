"""`gpulease completion SHELL`: a script that completes verbs and options, asked of gpulease itself."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace

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
#compdef gpulease
_gpulease() {
    local -a found
    found=(${(f)"$(gpulease completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then compadd -a found; else _files; fi
}
if [[ $funcstack[1] == _gpulease ]]; then _gpulease "$@"; else compdef _gpulease gpulease; fi""",
    "fish": """\
complete -c gpulease -a '(gpulease completion --words (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'""",
}


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("shell", nargs="?", choices=sorted(SCRIPTS), default="bash", help="default bash")


def run(arguments: Namespace) -> int:
    print(SCRIPTS[arguments.shell])
    return 0


def suggestions(words: list[str]) -> list[str]:
    """What the last of `words` may become: a verb, an option, or one of an option's choices."""
    from gpulease.cli.argument_parser import make_parser
    from gpulease.cli.main import VERBS

    if len(words) == 1:
        return [verb for verb in VERBS if verb.startswith(words[0])]
    if words[0] not in VERBS:
        return []
    parser = make_parser(words[0])
    options = parser._option_string_actions
    if "=" in words[-1] and words[-1].startswith("--"):
        option, _, typed = words[-1].partition("=")
        return [f"{option}={choice}" for choice in _choices(options.get(option), typed)]
    before = options.get(words[-2])
    if before is not None and before.choices:
        return _choices(before, words[-1])
    if words[-1].startswith("-"):
        return [option for option in options if option.startswith("--") and option.startswith(words[-1])]
    positional = [action for action in parser._actions if not action.option_strings]
    found = [choice for action in positional for choice in _choices(action, words[-1])]
    return found + [word for word in _usual(words, positional) if word.startswith(words[-1])]


def _usual(words: list[str], positional: list[Action]) -> list[str]:
    """What may stand for ids of jobs, and the names of parameters."""
    if words[0] == "set":
        from gpulease.broker.settings import PARAMETERS

        return list(PARAMETERS) if len(words) == 2 else ["default"]
    names = {action.dest for action in positional}
    more = ["broker"] if words[0] == "log" else []
    return ["all", "last", *more] if "ids" in names else ["last"] if "id" in names and len(words) == 2 else []


def _choices(action: Action | None, typed: str) -> list[str]:
    found = action.choices if action is not None and action.choices else ()
    return [str(choice) for choice in found if str(choice).startswith(typed)]
