# Ends the children of a launcher whose process is gone.
# $1: the launcher's part of the markers, $2: its directory, $3: its control group, or nothing.

trap '' HUP INT QUIT TERM

# The launcher never writes; the pipe ends when its process does, however it ends.
while read -r _; do :; done

if [ -n "$3" ]; then
    echo 1 >"$3/cgroup.kill"
fi 2>/dev/null

round=0
while [ "$round" -lt 60 ]; do
    found=$(grep -lsF -- "CALIBER_CHILD=$1." /proc/[0-9]*/environ)
    [ -n "$found" ] || break
    for file in $found; do
        pid=${file#/proc/}
        kill -KILL "${pid%/environ}"
    done 2>/dev/null
    round=$((round + 1))
    [ "$round" -lt 5 ] || sleep 1
done

rm -rf -- "$2"

# A group can be removed a moment after its last process has ended.
round=0
while [ -n "$3" ] && [ -d "$3" ] && [ "$round" -lt 10 ]; do
    rmdir -- "$3"/*/
    rmdir -- "$3" && break
    round=$((round + 1))
    sleep 1
done 2>/dev/null
