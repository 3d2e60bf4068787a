#!/usr/bin/env bash
# Runs a program under a limit of its memory, in which the system's cache of files counts, too.
#
#   examples/larger-than-memory/limited.sh MIB COMMAND..
set -euo pipefail

limit=$1
shift
group=limited-$$
if [[ -w /sys/fs/cgroup/memory ]]; then
    folder=/sys/fs/cgroup/memory/$group
    mkdir "$folder"
    echo $((limit << 20)) > "$folder/memory.limit_in_bytes"
    (echo "$BASHPID" > "$folder/cgroup.procs" && exec "$@") && status=0 || status=$?
    echo "at most $(($(cat "$folder/memory.max_usage_in_bytes") >> 20)) MiB of $limit"
    rmdir "$folder"
    exit $status
fi
if command -v systemd-run > /dev/null && [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
    exec systemd-run --user --quiet --scope -p MemoryMax="${limit}M" -p MemorySwapMax=0 -- "$@"
fi
echo "error: no limit can be set here: it takes root and the memory controller of cgroups, or systemd" >&2
exit 1
