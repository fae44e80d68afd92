#!/bin/sh
# Makes .venv and installs $1 (`.` or `.[test]`) into it, and says so before it does. What the system lacks is named;
# with GPULEASE_SETUP_APT=1 or CI=1, and as root, apt-get installs it.
set -eu
wanted=$1
python=${PYTHON:-python3}

say() { printf '%s\n' "setup: $*" >&2; }

system_packages() { # WHAT-FOR NAME...
    what=$1
    shift
    if [ -n "${GPULEASE_SETUP_APT:-}${CI:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "apt-get installs $* ($what)"
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y "$@" >&2 || { apt-get update >&2 && apt-get install -y "$@" >&2; }
        return
    fi
    say "$what: missing. On Debian or Ubuntu run: apt-get install $*"
    return 1
}

command -v "$python" >/dev/null 2>&1 || { say "there is no $python; install Python 3.11 or newer"; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "$("$python" --version) is too old; gpulease needs Python 3.11 or newer."
    say "With uv: uv python install 3.12, and then: make PYTHON=\$(uv python find 3.12) ..."
    say "On Ubuntu 22.04 without uv: python3.12 and python3.12-venv from the deadsnakes PPA, and PYTHON=python3.12"
    exit 1
}

has_compiler() { # one that finds the headers of the C library
    for name in ${CC:-} cc gcc clang tcc; do
        command -v "$name" >/dev/null 2>&1 || continue
        printf '#include <stdio.h>\n' | "$name" -x c -fsyntax-only - >/dev/null 2>&1 && return
    done
    return 1
}

if ! has_compiler && ! system_packages "a C compiler that works, for simulated GPUs" gcc libc6-dev; then
    case $wanted in *test*) exit 1 ;; esac # everything else runs without
fi

has_all() { for name in "$@"; do command -v "$name" >/dev/null 2>&1 || return 1; done; }

has_ssh_hosts() { # what makes hosts that are reached by ssh
    for name in ssh ssh-keygen ip sshd; do
        command -v "$name" >/dev/null 2>&1 || [ -x "/usr/sbin/$name" ] || return 1
    done
}

case $wanted in *test*) # without these, some tests are skipped
    has_all chromium chromedriver || system_packages "a browser, for the tests of the page" chromium chromium-driver || [ -z "${CI:-}" ]
    has_all promtool || system_packages "promtool, for the tests of metrics" prometheus || [ -z "${CI:-}" ]
    has_all tmux || system_packages "tmux, for the tests of \`gpulease top\`" tmux || [ -z "${CI:-}" ]
    has_ssh_hosts || system_packages "ssh and network namespaces, for tests of several hosts" \
        openssh-client openssh-server iproute2 || exit 1
    # a real Slurm for the tests of that engine, which root alone can start
    if [ "$(id -u)" = 0 ] && ! { command -v slurmctld && command -v munged; } >/dev/null 2>&1; then
        system_packages "Slurm and munge, for the tests of --engine slurm" slurm-wlm munge || true
    fi
    ;;
esac

packages() { # GROUP: their names in pyproject.toml, without versions
    "$python" - "$1" <<'END'
import re, sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
group = project["dependencies"] if sys.argv[1] == "needed" else project["optional-dependencies"][sys.argv[1]]
print(", ".join(re.match(r"[\w.-]+", name).group() for name in group))
END
}

if [ ! -x .venv/bin/pip ]; then
    if ! "$python" -c 'import ensurepip' >/dev/null 2>&1; then
        system_packages "Python's venv module, for a .venv apart from the system's Python" python3-venv || exit 1
    fi
    say "making .venv with $("$python" --version); nothing outside this folder is changed"
    rm -rf .venv
    "$python" -m venv .venv
fi
say "pip installs into .venv what gpulease needs: $(packages needed)"
case $wanted in *test*) say "and what only its tests and checks need: $(packages test)" ;; esac
.venv/bin/python -m pip install -q --disable-pip-version-check -e "$wanted" 2>&1 | grep -v '^WARNING: Location' || true
.venv/bin/python -c 'import gpulease' || { say "the installation failed; run: .venv/bin/pip install -e '$wanted'"; exit 1; }
