"""`gpulease VERB …`: finds the verb's module and loads nothing else.

Not for: what a verb does. Each verb has a file of its own with `configure(parser)` and `run(arguments)`.
"""

from __future__ import annotations

import os
import sys

from gpulease import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.errors import GpuleaseError

# verb -> (module, or what in it; what it does, for the list in --help)
VERBS = {
    "run": ("run", "wait for GPUs, run a command on them, and release them"),
    "get": ("get", "wait for GPUs, hold them for this script, print their indices"),
    "release": ("release", "release your leases"),
    "renew": ("renew", "extend a lease that ends by the clock (`get --for`)"),
    "shell": ("shell", "start a subshell that holds GPUs until you leave it"),
    "select": ("select", "pick idle GPUs without a lease, and print or use them"),
    "docker-args": ("docker_args", "print options that give a container the GPUs of this lease"),
    "pool": ("pool", "keep warm Python workers between programs"),
    "add": ("add", "queue one or more jobs, and print their ids"),
    "ls": ("ls", "list running, waiting (with the reason) and ended jobs"),
    "show": ("show", "show everything about jobs, with the end of their output"),
    "log": ("log", "print a job's output, or follow it"),
    "wait": ("wait", "wait until jobs end"),
    "kill": ("jobs.kill", "end jobs and all processes that they started"),
    "rm": ("jobs.rm", "remove jobs from the queue; running ones are killed"),
    "pause": ("jobs.pause", "pause running jobs, or start no more jobs"),
    "resume": ("jobs.resume", "resume paused or held jobs, or the queue"),
    "move": ("move", "move a waiting job to another place in the queue"),
    "start": ("jobs.start", "start jobs ahead of others; run failed ones again"),
    "retry": ("retry", "queue ended jobs again"),
    "edit": ("edit", "change waiting or held jobs"),
    "clean": ("clean", "delete complete and invalid jobs, or all that ended"),
    "rebalance": ("rebalance", "move your waiting jobs to hosts where they start sooner"),
    "debug": ("debug", "show why a job could not start, or how it failed"),
    "status": ("status", "show GPUs, leases and the queue"),
    "top": ("top", "watch GPUs, leases and the queue on a full screen"),
    "explain": ("explain", "show why a request waits, GPU by GPU, and until when"),
    "events": ("events", "list who used which GPUs when, and why it ended"),
    "learned": ("learned", "show how long your runs take, and how good forecasts were"),
    "notify": ("notify", "get notices by mail, web hook or terminal"),
    "usage": ("usage", "show GPU-hours by user, and how many of them were idle"),
    "web": ("web", "serve a live page of GPUs and queue for the browser"),
    "metrics": ("metrics", "print metrics for Prometheus"),
    "doctor": ("doctor", "check this installation, and say what to do"),
    "help": ("help", "show a page of the documentation, or the options of a verb"),
    "set": ("set", "show or change the broker's parameters"),
    "exclude": ("exclude", "take GPUs out of service"),
    "include": ("include", "put excluded GPUs back into service"),
    "broker": ("broker", "run the broker in the foreground, for you or for everybody"),
    "backup": ("backup", "copy the broker's state while it runs"),
    "stop": ("stop", "stop the broker (not a job); jobs and leases go on"),
    "install": ("install", "install gpulease as a service, for everybody or for you"),
    "uninstall": ("uninstall", "remove what `install` wrote"),
    "slurm-config": ("slurm_config", "write configuration files for a Slurm of several hosts"),
    "simulate": ("simulate", "run a command with simulated GPUs"),
    "demo": ("demo", "take a tour of one minute on simulated GPUs"),
    "shims": ("shims", "write drop-in commands and packages for scripts of older tools"),
    "completion": ("completion", "print the script for shell completion"),
}
HEADINGS = {  # of the list, above these verbs
    "run": "Use a GPU",
    "add": "Queue jobs",
    "status": "See what happens",
    "set": "Share and administer",
    "simulate": "Try it, and move from other tools",
}

ALIASES = {"mv": "move", "submit": "add"}  # another name of a verb, which is in no list


def main(words: list[str] | None = None) -> int:
    _open_streams()
    words = sys.argv[1:] if words is None else words
    code = _code_of(words)
    options = words[: words.index("--")] if "--" in words else words
    if code and options[:1] in (["get"], ["select"]) and "--export" in options:
        print(f"(exit {code})", flush=True)  # so that `eval "$(…)"` fails too
    return code


def _code_of(words: list[str]) -> int:
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _cannot_write(None)
    except Exception as error:
        return _failed(error)


def _dispatch(words: list[str]) -> int:
    if words and words[0] in ("--version", "-V"):
        print(f"gpulease {__version__}")
        return 0
    if words[:2] == ["completion", "--words"]:  # its words may be anything, `--` too
        return _complete(words[2:])
    if words and words[0] in ("-h", "--help"):
        return _help(words[1:])
    if any(word.startswith(("--host=", "--engine")) or word == "--host" or ":" in word for word in words):
        from gpulease.cli.remote import go

        gone = go(words)
        if isinstance(gone, int):
            return gone
        words = gone
    if not words or words[0].startswith("-"):
        words = ["status", *words]
    verb = ALIASES.get(words[0], words[0])
    if verb not in VERBS:
        return _unknown(verb)
    return run_verb(verb, words[1:])


def run_verb(verb: str, words: list[str]) -> int:
    from gpulease.cli.parsing import parse
    from gpulease.system import places

    engine, instead = places.engine(os.environ), None
    if engine != places.LOCAL:
        from gpulease.client.engines import verb_on

        instead = verb_on(engine, verb)
    try:
        return int((instead or load(verb).run)(parse(verb, words)))
    except SystemExit as end:  # argparse has printed help, or what is wrong
        return end.code if isinstance(end.code, int) else 1


def load(verb: str):  # type: ignore[no-untyped-def]  # a module, or a part of one; its two functions are typed there
    module, _, part = VERBS[verb][0].partition(".")
    loaded = __import__(f"gpulease.cli.commands.{module}", fromlist=["run"])  # importlib would load more than the verb
    return getattr(loaded, part) if part else loaded


def _help(words: list[str]) -> int:
    verb = ALIASES.get(words[0], words[0]) if words else ""
    if verb in VERBS:
        return run_verb(verb, ["--help"])
    print("gpulease shares GPUs: every use of a GPU is a lease.\n")
    print("Usage: gpulease [VERB] [options]")
    print("Without a verb it shows the status. `gpulease VERB --help` has examples.")
    for verb, (_, summary) in VERBS.items():
        if verb in HEADINGS:
            print(f"\n{HEADINGS[verb]}:")
        print(f"  {verb:<11} {summary}")
    print("\nMost verbs take --host gpu3 (by ssh; add, run, shell also `any`), --engine NAME.")
    print("Jobs and leases of other hosts have the host in their id: gpulease log gpu3:12")
    print("\nExamples:")
    print("  gpulease                                  show the GPUs of this machine")
    print("  gpulease run -n 2 -- python train.py      wait for two GPUs and run on them")
    print('  eval "$(gpulease get --export)" || exit   hold a GPU for this script')
    print("  gpulease simulate -n 4                    a shell with four simulated GPUs")
    return 0


def _unknown(verb: str) -> int:
    from gpulease.cli.argument_parser import verb_meant

    print(f"gpulease: there is no verb {verb[:40]!r}. {verb_meant(verb, [*VERBS, *ALIASES])}", file=sys.stderr)
    return 2


def _failed(error: Exception) -> int:
    from gpulease.errors import GpuleaseError

    if isinstance(error, ConnectionError):
        from gpulease.errors import BrokerUnavailable

        error = BrokerUnavailable("The broker ended before it answered.", "Try again; it starts by itself.")
    if isinstance(error, OSError) and error.errno in (28, 9, 5, 122, 27):  # no space, closed, I/O, quota, too large
        return _cannot_write(error)
    shown = error if isinstance(error, GpuleaseError) else _stumbled(error)
    sys.stdout.flush()
    for sentence in (f"gpulease: {shown.what}", shown.next_step):
        print(_wrapped(sentence), file=sys.stderr, flush=True)
    return shown.exit_code


def _stumbled(error: Exception) -> GpuleaseError:
    """Over an answer that makes no sense, which is the broker's mistake; any other is ours, with its traceback."""
    answers = getattr(sys.modules.get("gpulease.client.connection"), "last_answers", ())
    if not answers or isinstance(error, OSError):
        raise error
    from gpulease.errors import ProtocolError
    from gpulease.protocol.check import misfit

    for verb, message in reversed(answers):
        wrong = misfit(verb, message)
        if wrong is not None:
            return ProtocolError(f"The broker sent an invalid answer to `{verb}`: {wrong}. Is its version another?")
    raise error


def _wrapped(sentence: str) -> str:
    """Without control characters; broken into lines on a terminal only, since programs read lines."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in sentence)
    if not sys.stderr.isatty():
        return clean
    from textwrap import fill

    return fill(clean, 80)


def _cannot_write(error: OSError | None) -> int:
    """Nobody reads, or nothing can be written: end without a complaint of the interpreter's."""
    if error is not None:
        print(f"gpulease: The output cannot be written: {error.strerror}.", file=sys.stderr)
        print("Make room, or write it elsewhere.", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141 if error is None else 1


def _open_streams() -> None:
    """A closed stream is replaced, and a letter that the terminal cannot show does not end the command."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open("/dev/null", "w"))  # noqa: SIM115  # for the life of the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _complete(words: list[str]) -> int:
    from gpulease.cli.commands.completion import suggestions
    from gpulease.cli.completion_values import ends_in_time

    ends_in_time()
    for word in suggestions(words or [""]):
        print(word)
    return 0
