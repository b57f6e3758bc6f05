#!/bin/sh
# Runs a command, and restarts it after these exit codes:
#
#     run_until_done.sh COMMAND [ARGUMENT ...]
#
# 75 (preempted): any number of times.
# 66 (no TPU answers) after a 75: at most TXL_MAX_CRASHES times in a row; the server of a host that
#     was taken away may not be back yet.
# Above 128 (killed by a signal): at most TXL_MAX_CRASHES times (default: 5).
#
# After any other code, the script ends with this code. SIGTERM and SIGINT are passed on as SIGTERM;
# the script then waits for the command, which may be saving, and ends with its code. In a pause it
# ends with 75.
# TXL_PAUSE_SECONDS (default: 10) is the pause before a restart.

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

# Shells start background commands with SIGINT ignored, so both signals are passed on as SIGTERM,
# which asks a job to save and end.
stop() {
    is_stopped=yes
    is_interrupted=yes
    if [ -n "$child" ]; then
        kill -s TERM "$child" 2>/dev/null
    fi
}
trap stop TERM INT

# A signal interrupts `wait`, so it is called again. If the child had ended already, the second call
# returns 127, "no such child", and the first code was the child's.
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
    # The signal may have come before the child was started.
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
