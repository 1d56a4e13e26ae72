#!/bin/bash
# A launcher's remote shell on the bed: agent.sh [OPTION...] HOST COMMAND...
while [[ ${1-} == -* ]]; do shift; done
host=$1
shift
process=$(readlink -f "/var/tmp/bed/$host") # a name, or an address in the network
[ -e "$process" ] || { echo "agent.sh: no host is called $host" >&2; exit 1; }
export TMPDIR=$process.files
exec nsenter --target "$(< "$process")" --net --uts --ipc --mount -- bash -c "$*"
