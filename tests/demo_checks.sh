# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# What the end-to-end scripts of programs with a launcher share; sourced, not run, after $program is set. A script may
# set limit_s and short afterwards.
#
# Lists of process ids and of flags are unquoted on purpose.
# shellcheck disable=SC2002,SC2034,SC2046,SC2086,SC2154

dir=$(mktemp -d)        # of all files of the script
launcher=               # of the job that start_job began, and
workers=                # its pids by rank; empty after finish
trap 'test -z "$launcher" || end_job; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
run_path=$PATH          # for run
timeout=$(command -v timeout)
limit_s=0               # of run; 0 is none
soon_tries=1200         # of soon, 20 a second: the machine may be busy
short=                  # flags of a short training, for cannot

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

end_job()   # kills the workers that the launcher has not reaped, and the launcher if the shell has not
{
    for pid in $workers; do
        test -z "$launcher" || test "$(ps -o ppid= -p "$pid" | tr -d ' ')" != "$launcher" || kill -9 "$pid"
    done
    end_own $launcher
}

evidence()  # of a check that failed
{
    sed 's/^/  out: /' "$dir/out" | tail -n 20
    sed 's/^/  err: /' "$dir/err" | tail -n 12
}

run()       # run FLAGS...: status, $dir/out, $dir/err
{
    PATH=$run_path "$timeout" -k 5 "$limit_s" "$program" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
}

lines()     # lines COUNT PATTERN FILE
{
    test "$(grep -cE "$2" "$3")" -eq "$1"
}

is()        # is COUNT of lines, by FILE
{
    test "$(wc -l <"$2")" -eq "$1"
}

refuses()   # refuses FLAGS...: one sentence, status 2, nothing printed
{
    run "$@"
    test "$status" -eq 2 && is 0 "$dir/out" && is 1 "$dir/err"
}

cannot()    # cannot PATTERN FLAGS...: status 1 before any training
{
    pattern=$1
    shift
    run $short "$@"
    test "$status" -eq 1 && is 0 "$dir/out" && is 1 "$dir/err" && lines 1 "$pattern" "$dir/err"
}

value()     # value KEY: of the JSON $dir/j, where it stands first
{
    sed -n 's/.*"'"$1"'": \(\[[^]]*\]\|"[^"]*"\|[^,}]*[^,} ]\).*/\1/p' "$dir/j" | head -n 1
}

has_keys()  # has_keys KEY...: in $dir/j
{
    for key in "$@"; do
        grep -q "\"$key\": " "$dir/j" || { echo "  no $key"; return 1; }
    done
}

# ---- Flags and files ---------------------------------------------------------------------------------

check_program() # check_program [plot]: what every program prints and refuses; plot: it draws figures, too
{
    run --version
    check 'version is one line' lines 1 "^${program##*/} [0-9]+\.[0-9]+\.[0-9]+\$" "$dir/out"
    check 'refuses an empty number' refuses --seed ''
    check 'refuses a negative number' refuses --seed -1
    check 'refuses a number with a tail' refuses --seed 10x
    check 'refuses a number too large' refuses --seed 18446744073709551616
    check 'refuses an unknown flag' refuses --sead 3
    check 'refuses a flag without its value' refuses --seed
    check 'refuses a word' refuses train
    check 'refuses an empty file name' refuses --json ''
    check 'refuses a file in no directory' cannot 'No such file' --json "$dir/none/j"
    check 'refuses a directory as file' cannot 'Is a directory' --json "$dir"
    test "$*" = plot || return 0
    check 'refuses a figure of unknown type' refuses --plot figure.gif
    check 'refuses a figure in no directory' cannot 'No such file' --plot "$dir/none/f.svg"
    run_path=$dir
    check 'names the package of gnuplot' cannot 'gnuplot-nox' --plot "$dir/f.svg"
    run_path=$PATH
}

# ---- Kills and signals -----------------------------------------------------------------------------

soon()      # soon COMMAND...: within $soon_tries twentieths of a second and what the command takes
{
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        test "$tries" -lt "$soon_tries" || return 1
        sleep 0.05
    done
}

gone()
{
    for pid in "$@"; do
        # A zombie has ended; its parent may be slow to wait for it.
        case $(sed -n 's/^State:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null) in
        '' | Z*) ;;
        *) return 1 ;;
        esac
    done
}

no_segments()
{
    while read -r path; do
        test ! -e "$path" || return 1
    done <"$dir/segments"
}

start_job() # start_job LINE FLAGS...: until it has printed a line of that pattern; sets $launcher, $workers
{
    pattern=$1
    shift
    : >"$dir/out"
    env --default-signal=INT "$program" "$@" >"$dir/out" 2>"$dir/err" </dev/null &
    launcher=$!
    soon grep -q "$pattern" "$dir/out"
    workers=$(ps --ppid "$launcher" -o pid= | sort -n | tr -s ' \n' ' ')
    cat $(printf '/proc/%s/maps ' $workers) 2>/dev/null | grep -o '/dev/shm/boxcar[^ ]*' |
        sort -u >"$dir/segments"
}

worker()    # worker RANK: its pid
{
    echo $workers | cut -d' ' -f$(($1 + 1))
}

finish()    # waits for the end; sets $status and $left
{
    if soon gone "$launcher"; then
        wait "$launcher" 2>/dev/null
        status=$?
    else
        kill -9 "$launcher"
        status=late
    fi
    launcher=
    soon gone $workers && soon no_segments && left=nothing || left=something
    workers=
}

# check_signals COMMAND...: the command starts a long job, which SIGINT, SIGTERM or its launcher's death ends.
check_signals()
{
    for signal in INT TERM; do
        "$@"
        kill -"$signal" "$launcher"
        finish
        check "SIG$signal ends workers and program" test "$status $left" = \
            "$(test $signal = INT && echo 130 || echo 143) nothing"
        check "SIG$signal: nothing on stderr" is 0 "$dir/err"
    done

    "$@"
    kill -9 "$launcher"
    finish
    check 'workers end with their launcher, and nothing is left' test "$status $left" = '137 nothing'
}
