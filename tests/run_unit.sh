#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs the Criterion tests of $BX_BUILD_DIR/tests/unit (or of another program there, $UNIT_PROGRAM) with the arguments
# given and those in $UNIT_ARGS, and counts them by Criterion's last line. Shows failed and skipped tests; the whole
# output is in a .log beside the program.
#
# Criterion 2.4.1 may miss the end of a test process and then waits for ever, beyond every test's timeout
# (github.com/Snaipe/Criterion/issues/345, pull 468). That is noticed by its silence while none of its test processes
# lives; the tests are then run once more. It may also forget to stop a test at its timeout: a test process that lives
# on in silence for longer than any timeout gets SIGPROF, which is what Criterion sends at a timeout, then SIGKILL.
set -u

. "$(dirname "$0")/tally.sh"
: "${BX_SOURCE_DIR:?}" "${BX_BUILD_DIR:?}"
export BX_SOURCE_DIR BX_BUILD_DIR
limit_s=${BX_TEST_LIMIT_S:-3600}
hung_after=4            # looks, 5 s apart
stuck_after=40          # 200 s; no test has a timeout of more than 120 s
# Criterion ends its test processes without freeing, so a leak check would only see that. A test
# that asks for too much memory wants NULL, as malloc answers.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
# jemalloc's trylocks at a fork look like unlocks of what nobody holds.
export TSAN_OPTIONS="${TSAN_OPTIONS:-report_mutex_bugs=0:allocator_may_return_null=1:die_after_fork=0:\
suppressions=$BX_SOURCE_DIR/tests/tsan/suppressions}"
export LC_ALL=C

program=${UNIT_PROGRAM:-unit}
log=$BX_BUILD_DIR/tests/$program.log
child=
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM

# What changes while the runner works: how much it has said, and its living test processes (below timeout and itself).
signs_of_life()
{
    wc -c <"$log"
    for runner in $(pgrep -P "$child"); do
        pgrep -P "$runner" -r R,S,D,T,t
    done
}

# run ARGUMENTS...: sets status; 125: Criterion hung.
run()
{
    before='' silent=0
    : >"$log"           # both the runner and the watcher append to it
    # Verbose, for only so does Criterion say what a test skipped. Two tests a core, for many wait. UNIT_ARGS is words
    # on purpose.
    # shellcheck disable=SC2086
    timeout -k 10 "$limit_s" "$BX_BUILD_DIR/tests/$program" --verbose -j$((2 * $(nproc))) "$@" ${UNIT_ARGS:-} \
        >>"$log" 2>&1 </dev/null &
    child=$!
    (
        while sleep 5 && kill -0 "$child" 2>/dev/null; do
            now=$(signs_of_life)
            silent=$((silent + 1))
            case $now in
            "$before") ;;
            *) silent=0 before=$now ;;
            esac
            # One line: no test process lives.
            if [ "$silent" -ge "$hung_after" ] && [ "$(printf '%s\n' "$now" | wc -l)" -eq 1 ]; then
                touch "$log.hung"
                kill "$child"
                break
            fi
            if [ "$silent" -ge "$stuck_after" ]; then
                for runner in $(pgrep -P "$child"); do
                    echo "silent for $((5 * stuck_after)) s; SIGPROF to pids $(pgrep -P "$runner" | xargs)" >>"$log"
                    pkill -PROF -P "$runner"        # says where it hangs, and Criterion that it timed out
                    sleep 10
                    pkill -KILL -P "$runner"
                done
                silent=0
            fi
        done
    ) &
    watcher=$!
    wait "$child"
    status=$?
    kill "$watcher" 2>/dev/null
    if [ -e "$log.hung" ]; then
        rm -f "$log.hung"
        status=125
    fi
}

# Those that Criterion has begun and whose end it has not seen.
unfinished()
{
    awk '/^\[RUN/ { began[$3] = 1 }
         /^\[(PASS|FAIL|SKIP|CRASH)/ { name = $2; sub(/:$/, "", name); delete began[name] }
         END { for (name in began) print "    " name }' "$log"
}

rm -f "$log.hung"
run "$@"
if [ "$status" -eq 125 ]; then
    echo "Criterion hung; these had no end, and all tests are run once more:"
    unfinished
    run "$@"
fi

# [====] Synthesis: Tested: 9 | Passing: 7 | Failing: 2 | Crashing: 1     (a crash is a failure too)
counts=$(awk -F'[:|]' '/Synthesis:/ { passed = $5; failed = $3 - $5 }
                       END { print passed + 0, failed + 0 }' "$log")
passed=${counts% *}
failed=${counts#* }
# Criterion takes a test for passed whose .fini fails or crashes, and only warns of the crash.
ended_badly=$(grep -c 'crashed during its setup or teardown' "$log")
failed=$((failed + ended_badly))
passed=$((passed > ended_badly ? passed - ended_badly : 0))
# Those that a filter left out are listed as disabled.
skips=$(grep '^\[SKIP\]' "$log" | grep -v ': Test is disabled$')
skipped=$(printf '%s' "$skips" | grep -c .)
if [ "$failed" -ne 0 ]; then
    grep -vE '^\[(RUN |PASS)|: Test is disabled$' "$log"
    grep -E '^\[(FAIL|CRASH)|Assertion Failed|crashed during' "$log" | tally_failures "$program (${BX_CONFIG:-release})"
elif [ "$status" -ne 0 ] || [ "$((passed + skipped))" -eq 0 ]; then
    failed=1
    tail -n 30 "$log"
    unfinished
    echo "the unit tests ended with status $status (124: ran past $limit_s s)"
    unfinished | tally_failures "$program ended with status $status"
elif [ "$skipped" -ne 0 ]; then
    printf '%s\n' "$skips"
fi
tally "$passed" "$failed" "$skipped" "$program (${BX_CONFIG:-release})"
[ "$failed" -eq 0 ]
