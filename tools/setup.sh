#!/bin/sh
# Makes .venv and installs $1 (`.`, `.[test]` or `.[docs]`) into it, and says so before it does. As root on Debian or Ubuntu it also
# installs the system packages that are missing. Another user's run changes nothing outside of this folder.
set -eu
wanted=$1
python=${PYTHON:-python3}

say() { printf '%s\n' "setup: $*" >&2; }

command -v "$python" >/dev/null 2>&1 || { say "there is no $python; install Python 3.11 or newer"; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "$("$python" --version) is too old; gpulease needs Python 3.11 or newer."
    say "With uv: uv python install 3.12, and then: make PYTHON=\$(uv python find 3.12) ..."
    say "On Ubuntu 22.04 without uv: python3.12 and python3.12-venv from the deadsnakes PPA, and PYTHON=python3.12"
    exit 1
}

installs_packages() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }

system_packages() { # WHAT-FOR NAME...
    what=$1
    shift
    say "apt-get installs, for $what: $*"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    if { apt-get install -y --no-install-recommends "$@" || { apt-get update && apt-get install -y --no-install-recommends "$@"; }; } >"$log" 2>&1
    then
        rm -f "$log"
    else
        say "apt-get failed:"
        tail -n 5 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

has_compiler() { # one that finds the headers of the C library
    for name in ${CC:-} cc gcc clang tcc; do
        command -v "$name" >/dev/null 2>&1 || continue
        printf '#include <stdio.h>\n' | "$name" -x c -fsyntax-only - >/dev/null 2>&1 && return
    done
    return 1
}

pip_of_debian() { # Debian keeps pip for new environments in a package of its own: unpack it inside .venv
    say "this Python has no ensurepip; apt-get downloads pip's wheel into .venv, and installs nothing"
    folder=$PWD/.venv/apt
    mkdir -p "$folder/lists/partial" "$folder/archives/partial"
    options="-o Dir::State::lists=$folder/lists -o Dir::Cache=$folder -o Debug::NoLocking=1"
    # shellcheck disable=SC2086
    (cd "$folder" && apt-get -qq $options update && apt-get -qq $options download python3-pip-whl) >&2 || return 1
    dpkg-deb -x "$folder"/python3-pip-whl_*.deb "$folder/root" || return 1
    PYTHONPATH=$(echo "$folder"/root/usr/share/python-wheels/pip-*.whl) \
        .venv/bin/python -m pip install -q --disable-pip-version-check pip >&2 || return 1
    rm -rf "$folder"
}

make_venv() {
    say "making .venv with $("$python" --version); nothing outside this folder is changed"
    rm -rf .venv
    if "$python" -c 'import ensurepip' >/dev/null 2>&1; then
        "$python" -m venv .venv
    elif "$python" -m venv --without-pip .venv && command -v apt-get >/dev/null 2>&1; then
        pip_of_debian
    else
        return 1
    fi
}

packages() { # GROUP: their names in pyproject.toml, without versions
    "$python" - "$1" <<'PYTHON'
import re, sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
group = project["dependencies"] if sys.argv[1] == "needed" else project["optional-dependencies"][sys.argv[1]]
print(", ".join(re.match(r"[\w.-]+", name).group() for name in group))
PYTHON
}

install() { .venv/bin/python -m pip install -q --disable-pip-version-check "$@" 2>&1 | grep -v '^WARNING: Location' || true; }

if installs_packages; then
    "$python" -c 'import ensurepip' >/dev/null 2>&1 || system_packages "a .venv apart from the system's Python" python3-venv || true
    has_compiler || system_packages "simulated GPUs" gcc libc6-dev || true
    case $wanted in *test*)
        missing=$("$python" tests/support/packages.py | tr '\n' ' ')
        # shellcheck disable=SC2086
        [ -z "$missing" ] || system_packages "the tests" $missing || say "going on without; the tests that use these are skipped"
        ;;
    esac
fi
if [ ! -x .venv/bin/pip ]; then
    make_venv || { say "no .venv could be made; on Debian or Ubuntu run: apt-get install python3-venv"; exit 1; }
fi
say "pip installs into .venv what gpulease needs: $(packages needed)"
case $wanted in *test*) say "and what only its tests and checks need: $(packages test)" ;; *docs*) say "and what only the site needs: $(packages docs)" ;; esac
install -e "$wanted"
.venv/bin/python -c 'import gpulease' || { say "the installation failed; run: .venv/bin/pip install -e '$wanted'"; exit 1; }
if ! has_compiler && ! .venv/bin/python -c 'import ziglang' 2>/dev/null; then
    say "there is no C compiler, which simulated GPUs need; pip installs one into .venv: $(packages simulate) (100 MB)"
    install -e '.[simulate]'
fi
