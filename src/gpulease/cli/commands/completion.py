"""`gpulease completion SHELL`: a script that completes verbs, options and their values, asked of gpulease itself."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    About = dict[str, Any]  # what `configure` says of an argument
    Described = tuple[dict[str, About], list[About]]  # options and positional arguments

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
        [[ ${COMP_WORDS[place]} == -- ]] || continue
        if declare -F _command_offset >/dev/null; then
            _command_offset $((place + 1))
        elif ((place + 1 == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        fi
        return
    done
    mapfile -t COMPREPLY < <(gpulease completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _gpulease gpulease""",
    "zsh": """\
#compdef gpulease
_gpulease() {
    local -a found
    local place=${words[(i)--]}
    if (( place < CURRENT )); then
        shift $place words
        (( CURRENT -= place ))
        _normal
        return
    fi
    found=(${(f)"$(gpulease completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then compadd -a found; else _files; fi
}
if [[ $funcstack[1] == _gpulease ]]; then _gpulease "$@"; else compdef _gpulease gpulease; fi""",
    "fish": """\
function __gpulease_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    if set -l place (contains -i -- -- $typed)
        set -e typed[1..$place]
        complete -C (string join ' ' -- (string escape -- $typed) "$current")
        return
    end
    set -e typed[1]
    set -l found (gpulease completion --words $typed "$current" 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c gpulease -f -a '(__gpulease_complete)'""",
}


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("shell", nargs="?", choices=sorted(SCRIPTS), default="bash", help="the shell (default bash)")


def run(arguments: Namespace) -> int:
    print(SCRIPTS[arguments.shell])
    return 0


def suggestions(words: list[str]) -> list[str]:
    """What the last of `words` may become: a verb, an option, or a value."""
    from gpulease.cli.main import ALIASES, VERBS

    while len(words) > 2 and words[0] in ("--host", "--engine"):
        words = words[2:]
    if len(words) == 2 and words[0] in ("--host", "--engine"):
        return _values("", words[0], {}, words[1])
    if len(words) == 1:
        return [verb for verb in (*VERBS, "--host", "--engine") if verb.startswith(words[0])]
    verb = ALIASES.get(words[0], words[0])
    if verb not in VERBS:
        return []
    flags, positional, below = _described(verb)
    before, typed = words[1:-1], words[-1]
    for place, inner in enumerate(words[1:-1]):
        if inner in below:  # a verb of a verb
            (flags, positional), before = below[inner], words[place + 2 : -1]
            break
    option, kept, typed = _option(flags, [*words[:1], *before, typed])
    if option is not None:
        about = flags.get(option)
        values = [] if about is None else _values(verb, about["long"], about, typed)
        return [f"{kept}{word}" for word in values]
    if typed.startswith("-"):
        return [name for name in flags if name.startswith("--") and name.startswith(typed)]
    about = _positional(flags, positional, before)
    return [] if about is None else _values(verb, about["dest"], about, typed)


def _option(flags: dict[str, About], words: list[str]) -> tuple[str | None, str, str]:
    """The option whose value the last word is, what of that word stays as it is, and the value so far."""
    typed, last = words[-1], words[-2]
    if typed == "=":  # bash takes `=` for a word of its own
        return last, "", ""
    if last == "=" and len(words) > 2:
        return words[-3], "", typed
    if "=" in typed and typed.startswith("--"):
        option, _, value = typed.partition("=")
        return option, f"{option}=", value
    return (last, "", typed) if _takes_value(flags.get(last)) else (None, "", typed)


def _positional(flags: dict[str, About], positional: list[About], before: list[str]) -> About | None:
    """The positional argument that comes after the words `before`."""
    count = 0
    is_value = False
    for word in before:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            is_value = _takes_value(flags.get(word))
        else:
            count += 1
    if count < len(positional):
        return positional[count]
    return positional[-1] if positional and positional[-1].get("nargs") in ("*", "+") else None


def _values(verb: str, name: str, about: About, typed: str) -> list[str]:
    """Of a list with commas, what its last part may become."""
    from gpulease.cli.completion_values import values

    found = [*map(str, about.get("choices") or ()), *values(verb, name)]
    before, comma, last = typed.rpartition(",")
    return [f"{before}{comma}{word}" for word in dict.fromkeys(found) if word.startswith(last)]


def _takes_value(about: About | None) -> bool:
    return about is not None and about.get("action") != "store_true" and about.get("nargs") != 0


def _described(verb: str) -> tuple[dict[str, About], list[About], dict[str, Described]]:
    """The options of a verb, its positional arguments, and the same for each verb below it.

    Without argparse where that is possible: somebody waits with a finger on the key.
    """
    from gpulease.cli.main import load
    from gpulease.cli.parsing import Irregular, Options, add_where

    options = Options()
    try:
        load(verb).configure(options)
        add_where(options, verb)
        return _named(options.flags), options.positional, {}
    except Irregular:
        from gpulease.cli.argument_parser import make_parser, parsers_below

        parser = make_parser(verb)
        return *_of_parser(parser), {name: _of_parser(inner) for name, inner in parsers_below(parser).items()}


def _of_parser(parser: Any) -> Described:
    flags: dict[str, About] = {name: vars(action) for name, action in parser._option_string_actions.items()}
    return _named(flags), [vars(action) for action in parser._actions if not action.option_strings]


def _named(flags: dict[str, About]) -> dict[str, About]:
    """Each with its long name, by which values are found."""
    return {name: {**about, "long": f"--{about['dest'].replace('_', '-')}"} for name, about in flags.items()}
