#!/bin/sh
# Makes .venv and installs $1 (`.` or `.[test]`) into it. What the system lacks is installed where that
# is permitted, else named.
set -eu
wanted=$1
python=${PYTHON:-python3}

say() { printf '%s\n' "setup: $*" >&2; }

system_package() { # NAME WHAT-FOR
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing the system package $1 ($2)"
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y -qq "$1" >/dev/null 2>&1 || { apt-get update -qq >/dev/null && apt-get install -y -qq "$1" >/dev/null; }
    else
        return 1
    fi
}

command -v "$python" >/dev/null 2>&1 || { say "there is no $python; install Python 3.11 or newer"; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { say "$("$python" --version) is too old; gpulease needs Python 3.11 or newer (set PYTHON=...)"; exit 1; }

has_compiler() {
    for name in ${CC:-} cc gcc clang tcc; do command -v "$name" >/dev/null 2>&1 && return; done
    return 1
}

if ! has_compiler; then
    if ! { system_package gcc "a C compiler, for the simulated driver library" && system_package libc6-dev "its headers"; }; then
        case $wanted in
            *test*) say "the tests need a C compiler: install gcc (Debian: apt-get install gcc libc6-dev)"; exit 1 ;;
            *) say "there is no C compiler, and the demo and \`gpulease simulate\` need one: install gcc (Debian: apt-get install gcc libc6-dev)" ;;
        esac
    fi
fi

if [ ! -x .venv/bin/pip ]; then
    if ! "$python" -c 'import ensurepip' >/dev/null 2>&1; then
        system_package python3-venv "to make a virtual environment" ||
            { say "Python has no venv module: install python3-venv"; exit 1; }
    fi
    rm -rf .venv
    "$python" -m venv .venv
fi
say "installing $wanted into .venv"
.venv/bin/python -m pip install -q --disable-pip-version-check -e "$wanted" 2>&1 | grep -v '^WARNING: Location' || true
.venv/bin/python -c 'import gpulease' || { say "the installation failed; run: .venv/bin/pip install -e '$wanted'"; exit 1; }
