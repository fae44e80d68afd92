#!/bin/sh
# sge-template's start_agents.sh: so many agents in the background, each holding its GPU.
here=$(dirname "$(readlink -f "$0")")
python=$(command -v python || command -v python3) || { echo "There is no python on the PATH." >&2; exit 1; }
export PYTHONPATH="$here/../python${PYTHONPATH:+:$PYTHONPATH}"
# An old folder `sge` may be here.
PYTHONSAFEPATH=1 exec "$python" -m sge.start_agents "$@"
