#!/bin/sh
# The name that sge-template's document has for start_agents.sh.
exec "$(dirname "$(readlink -f "$0")")/start_agents.sh" "$@"
