"""PURE: the shape of a request: requests of one shape are expected to run equally long and to use as much memory.

The user, what the command runs, its options without their values, and what is asked for. A shape is a text, so that
people can read what is known of their own. What a command runs is its program, and the script if the program only runs
one: a launcher is followed to what it launches, and a shell's text to its first command that does more than prepare.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from gpulease.model.quantities import format_bytes
from gpulease.model.shell_text import PREPARE, SHELLS, is_assignment, parts, text_or_script
from gpulease.model.values import Request

SCRIPTS = (".py", ".sh", ".jl", ".R", ".r", ".m", ".pl", ".rb", ".lua", ".js", ".ipynb")
INTERPRETERS = ("python", "pypy", "ipython", "Rscript", "julia", "node", "perl", "ruby", "lua", "octave", "matlab")
WITH_VALUE = frozenset({"-W", "-X", "-I", "-r", "-t", "-J", "-L"})  # of interpreters
# fmt: off
LAUNCHERS = frozenset({
    "torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "env", "nice", "ionice", "nohup",
    "time", "timeout", "stdbuf", "taskset", "numactl", "setsid", "xvfb-run", "uv", "uvx", "conda", "mamba",
    "micromamba", "poetry", "pipenv", "pixi", "pdm", "rye", "hatch", "docker", "podman", "apptainer", "singularity",
})
MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed"})
# fmt: on
BEFORE = frozenset({"do", "then", "else", "if", "elif", "while", "until", "{", "(", "!", "time", "exec", "command"})
BESIDE = PREPARE | {"for", "case", "select", "function", "sleep", "wait", "module", "eval", "done", "fi"}
DEEPEST = 8  # launchers and shells within one another that are followed
LOOKED_AT = 10_000  # characters of a shell's text
WORDS = 200  # of a command


def kind_of(command: Sequence[str], cwd: str) -> list[str]:
    """The launchers, the program and the script, with whole paths."""
    words, found = list(command[:WORDS]), list[str]()
    for _ in range(DEEPEST):
        program = words[0]
        is_path = "/" in program or program.endswith(SCRIPTS)
        found.append(os.path.normpath(os.path.join(cwd, program)) if is_path else program)
        text, script = text_or_script(words)
        if text is not None:
            words, cwd = _first_command(text[:LOOKED_AT], cwd)
        elif _is_launcher(program):
            words = words[1:][_launched(words[1:]) :]
        elif _is_interpreter(program):
            words = [script] if script is not None else _from_script(words[1:])
            if words and words[0] not in MODULES:
                return [*found, os.path.normpath(os.path.join(cwd, words[0]))]
            words = words[1:][_launched(words[1:]) :]
        else:
            break
        if not words:
            break
    return found


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _is_interpreter(word: str) -> bool:
    """With or without its version, as python3.11."""
    name = _name(word)
    return name in SHELLS or name.rstrip("0123456789.") in INTERPRETERS


def _is_launcher(word: str) -> bool:
    return _name(word) in LAUNCHERS


def _from_script(words: list[str]) -> list[str]:
    """An interpreter's words from its script, module or code on."""
    is_value = False
    for at, word in enumerate(words):
        if word[:1] != "-" and not (is_value and not word.endswith(SCRIPTS)):
            return words[at:]
        is_value = word in WITH_VALUE
    return []


def _launched(words: list[str]) -> int:
    """Where among a launcher's words the command begins: at a program or script that is known for one, or at a path.

    Else at the first word that may be one; those behind options are taken for their values.
    """
    plain, values, option = list[int](), list[int](), ""
    for at, word in enumerate(words):
        if word[:1] == "-":
            option = "" if "=" in word else word
            continue
        known = _is_interpreter(word) or _is_launcher(word) or word.endswith(SCRIPTS) or option in ("-m", "--module")
        if known or (word.startswith((".", "/")) and not option):
            return at
        if not (word[:1].isdecimal() or is_assignment(word) or (at == 0 and word in ("run", "launch", "exec"))):
            (values if option else plain).append(at)
        option = ""
    return next(iter([*plain, *values]), len(words))


def _first_command(text: str, cwd: str) -> tuple[list[str], str]:
    """Of a shell's text: the words of the first command that does more than prepare, and the folder it runs in."""
    for part in parts(text):
        words = [word.strip("\"'()") for word in part.lstrip("|").split()]
        while words and (words[0] in BEFORE or not words[0] or is_assignment(words[0])):
            words = words[1:]
        if words[:1] == ["cd"] and len(words) > 1:
            cwd = os.path.join(cwd, words[1])
        elif words and words[0] not in BESIDE and words[1:2] != ["activate"]:
            return words, cwd
    return [text], cwd


LONGEST = 300  # characters; a longer one is cut, with a digest of the whole
OPTIONS = 30  # names of options that count
OPTION = re.compile(r"--[A-Za-z][^=]*|-[A-Za-z](?=-?[\d.]+$)|-[A-Za-z][^=]*")
TEXT = re.compile(r"[\s;|&$()'\"<>=]")  # what is in no path of a program, but in a text


def shape_of(user: str, command: Sequence[str], cwd: str, request: Request, kind: str = "job") -> str:
    """`user`, what is asked for, and what runs, divided by tabs."""
    runs = " ".join(_runs(command, cwd)) if command else f"({kind})"
    text = "\t".join((user, _asked(request), " ".join(runs.split())))
    text = text.encode(errors="backslashreplace").decode()  # names of files may be no text, and it is kept as text
    if len(text) <= LONGEST:
        return _same(text)
    return f"{text[:LONGEST]}…{blake2b(text.encode(), digest_size=8).hexdigest()}"


@lru_cache(maxsize=256)
def _same(text: str) -> str:
    """Equal texts as one object: a hundred thousand jobs of a sweep have one."""
    return text


def parts_of(shape: str) -> tuple[str, str, str]:
    user, _, rest = shape.partition("\t")
    asked, _, runs = rest.partition("\t")
    return user, asked, runs


def _runs(command: Sequence[str], cwd: str) -> list[str]:
    """What runs, and the names of its options in order: `--lr=0.1` and `--lr 0.1` are one, `-x5` is `-x`, `-3` a value.

    The options of an interpreter or a launcher, which stand before, do not count. Of a text, as a shell's or Python's
    behind `-c`, the beginning counts only: what else is in it may be values, and secrets.
    """
    kind, words = kind_of(command, cwd), command[:WORDS]
    script = kind[-1].rpartition("/")[2]
    begin = next((at for at, word in enumerate(words) if word.rpartition("/")[2] == script), len(words))
    options = {found.group() for word in words[begin + 1 :] if (found := OPTION.match(word))}
    return [*(TEXT.split(one, maxsplit=1)[0] for one in kind), *sorted(options)[:OPTIONS]]


def _asked(request: Request) -> str:
    amount = f"{request.gpus} GPU" if request.memory is None else f"{format_bytes(request.memory)} of a GPU"
    least = [] if request.min_memory is None else [f"of {format_bytes(request.min_memory)}"]
    without = [f"not {uuid}" for uuid in request.exclude]
    return " ".join((amount, *request.models, *least, *sorted(request.devices), *without))
