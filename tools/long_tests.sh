#!/bin/sh
# Runs the long tests of the named parts, and says at the end how each went and how long it took.
set -u
told=
failed=0
for part in "$@"; do
    began=$(date +%s)
    [ "$part" != frameworks ] || .venv/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0
    if GPULEASE_LONG=1 .venv/bin/python -m pytest -q -n 2 --dist loadgroup --timeout 1200 --part "$part"; then word=passed; else word=FAILED failed=1; fi
    told="$told$(printf '%-12s %-6s %5d s' "$part" "$word" $(($(date +%s) - began)))
"
done
printf '\n%s' "$told"
exit $failed
