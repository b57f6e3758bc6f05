#!/bin/sh
# Runs a command, and runs it again for as long as that is of use:
#
#     run_until_done.sh COMMAND [ARGUMENT ...]
#
# Exit code 75 (preempted): again, any number of times.
# Exit code 66 (no TPU answers) after a 75: again, at most TXL_MAX_CRASHES times in a row; the
#     server of a host that was taken away may not be back yet.
# Killed by a signal, a code above 128: again, at most TXL_MAX_CRASHES times (default: 5).
# Any other code is the script's own. SIGTERM and SIGINT are passed on; the script then waits
# for the command, which may be saving, ends with its code and starts nothing any more.
# TXL_PAUSE_SECONDS (default: 10) go by before the command runs again.

preempted=75
missing=66
max_crashes=${TXL_MAX_CRASHES:-5}
pause_seconds=${TXL_PAUSE_SECONDS:-10}
crashes=0
silences=
is_stopped=
is_interrupted=
child=

if [ $# -eq 0 ]; then
    echo "usage: $0 COMMAND [ARGUMENT ...]" >&2
    exit 2
fi

# The shells start what runs in the background with SIGINT ignored, so that both signals go on
# as SIGTERM, which a job takes as the request to save and end.
stop() {
    is_stopped=yes
    is_interrupted=yes
    if [ -n "$child" ]; then
        kill -s TERM "$child" 2>/dev/null
    fi
}
trap stop TERM INT

# `wait` returns when a signal comes, whether or not the child has ended, so it is asked again.
# Where the first answer was the child's own code after all, the second is 127, "no such child".
wait_for_child() {
    earlier_code=
    while :; do
        is_interrupted=
        wait "$child"
        code=$?
        [ -n "$is_interrupted" ] || break
        earlier_code=$code
    done
    if [ "$code" -eq 127 ] && [ -n "$earlier_code" ]; then
        code=$earlier_code
    fi
    child=
}

while :; do
    "$@" &
    child=$!
    # The signal may have come before there was a child to pass it on to.
    if [ -n "$is_stopped" ]; then
        kill -s TERM "$child" 2>/dev/null
    fi
    wait_for_child
    if [ -n "$is_stopped" ]; then
        exit "$code"
    fi
    if [ "$code" -eq "$preempted" ]; then
        silences=0
        echo "run_until_done: preempted; starting again" >&2
    elif [ "$code" -eq "$missing" ] && [ -n "$silences" ] && [ "$silences" -lt "$max_crashes" ]
    then
        silences=$((silences + 1))
        echo "run_until_done: no TPU answers yet; starting again, $silences of $max_crashes" >&2
    elif [ "$code" -gt 128 ] && [ "$crashes" -lt "$max_crashes" ]; then
        crashes=$((crashes + 1))
        echo "run_until_done: ended by signal $((code - 128));" \
            "starting again, $crashes of $max_crashes" >&2
    else
        exit "$code"
    fi
    # In the background, so that a signal ends the pause at once.
    sleep "$pause_seconds" &
    child=$!
    wait_for_child
    if [ -n "$is_stopped" ]; then
        exit "$preempted"
    fi
done
