#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs each subcommand of bxbench with small settings and checks what it prints: the JSON keys that tools/README.md
# names, plausible values, the cores, the table, wrong flags. Times are not judged. If a process gets no CPU for a
# while, a ratio may be printed as 0.00.
#
# shellcheck disable=SC2154,SC2317
set -u

bin=${BX_BUILD_DIR:-build}/bin/bxbench
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

# measures "KEY..." "CONDITION..." SUBCOMMAND [FLAG]...: runs it with --json; every key must be there with a number (or
# an array of numbers, of which v[KEY] is the first and n[KEY] the length), and each condition hold.
measures()
{
    keys=$1 conditions=$2
    shift 2
    timeout 120 "$bin" "$@" --json >"$dir/out" 2>"$dir/err" && awk -v keys="$keys" '
        { text = text $0 }
        function wrong(what) {
            print "  " what
            failed = 1
        }
        END {
            if (NR != 1 || text !~ /^\{".*\}$/) wrong("not one JSON object on one line")
            count = split(keys, key, " ")
            for (i = 1; i <= count; i++) {
                if (!match(text, "\"" key[i] "\": (\\[[-0-9., ]+\\]|-?[0-9][0-9.]*)")) {
                    wrong("no number for the key " key[i])
                    continue
                }
                value = substr(text, RSTART + length(key[i]) + 4, RLENGTH - length(key[i]) - 4)
                gsub(/[][ ]/, "", value)
                n[key[i]] = split(value, part, ",")
                v[key[i]] = part[1]
            }
            '"$(for condition in $conditions; do
                echo "if (!($condition)) wrong(\"false: $(echo "$condition" | tr -d '"')\");"
            done)"'
            exit failed
        }' "$dir/out"
}

# refuses WORD FLAG...: exit status 2 and a sentence that holds WORD, nothing on stdout.
refuses()
{
    word=$1
    shift
    timeout 20 "$bin" "$@" >"$dir/out" 2>"$dir/err"
    test $? -eq 2 && test ! -s "$dir/out" && grep -q -e "$word" "$dir/err"
}

rows_of_fanin()
{
    test "$(grep -o '"callers": [0-9]*' "$dir/out" | tr -dc '0-9\n' | tr '\n' ' ')" = '1 2 4 10 '
}

table_with_epoll()
{
    BX_WAIT=epoll timeout 60 "$bin" idle --workers 2 --seconds 0.2 >"$dir/out" 2>"$dir/err" &&
        grep -q cpu_percent "$dir/out"
}

# With a ucx_perftest that sends nothing: the server waits, the client says what the rate is.
beside_ucx()
(
    mkdir -p "$dir/ucx" && cat >"$dir/ucx/ucx_perftest" <<'END'
#!/bin/sh
case $* in
*127.0.0.1*) echo 'Final: 1000 0.1 0.1 7 7 2500000 1234567' ;;
*) sleep 60 ;;
esac
END
    chmod +x "$dir/ucx/ucx_perftest"
    PATH=$dir/ucx:$PATH
    measures "$@"
)

says_what_it_is()
{
    "$bin" --help | grep -q pingpong && "$bin" sleep --help | grep -q Usage &&
        "$bin" --version | grep -q '^bxbench [0-9]'
}

cores=$(nproc)
if [ "$cores" -ge 2 ]; then
    check pingpong measures \
        'crt_ns bare_p50_ns bare_pause call_p50_ns call_p99_ns call_p999_ns call_max_ns ratio ratio_crt over_ns cpus' \
        'v["crt_ns"]>0 v["bare_p50_ns"]>0 v["call_p50_ns"]>0 v["call_p99_ns"]>0
        v["call_p999_ns"]>=v["call_p99_ns"] v["call_max_ns"]>=v["call_p999_ns"] v["ratio"]>=0
        v["ratio_crt"]>=0 n["cpus"]==2' \
        pingpong --slices 3 --calls 500
    check rate measures 'calls_per_s bare_frames_per_s bare_pause ratio_bare inflight cpus' \
        'v["calls_per_s"]>0 v["bare_frames_per_s"]>0 v["inflight"]==16 n["cpus"]==2' \
        rate --inflight 16 --slices 2 --calls 2000
    check 'rate, sent together' measures 'calls_per_s inflight sent_together' \
        'v["calls_per_s"]>0 v["inflight"]==16 v["sent_together"]==4' rate --cork --inflight 16 --slices 2 --calls 2001
    check 'rate beside UCX' beside_ucx 'calls_per_s ucx_runs ucx_msgs_per_s ratio_ucx' \
        'v["calls_per_s"]>0 n["ucx_runs"]==5 v["ucx_msgs_per_s"]==1234567 v["ratio_ucx"]>=0' \
        rate --ucx --inflight 16 --slices 5 --calls 1000
    if [ -e "${bin%/bin/*}/lib/libboxcar_net.so.0" ]; then
        ratios='ratio_call ratio_all_mb ratio_tag_mb'
        check 'net beside UCX' beside_ucx \
            "call_p50_us messages_per_s mb_per_s bytes ucx_lat_us ucx_msgs ucx_mb ucx_tag_mb $ratios net_bytes" \
            'v["call_p50_us"]>0 v["messages_per_s"]>0 v["mb_per_s"]>0 n["ucx_mb"]==5 n["ucx_tag_mb"]==5
            v["ucx_msgs"]==1234567 v["ucx_lat_us"]==0.10 v["bytes"]==999936 v["net_bytes"]>=20*999936' \
            net --slices 5 --calls 100 --bytes 1000000 --tensors 16
    else
        echo 'skip bxbench net needs libboxcar_net.so.0 (libucx-dev and libssl-dev)'
    fi
    check 'fanin of 3' measures 'callers calls_per_s p50_us p99_us bare_per_s' \
        'v["callers"]==3 v["calls_per_s"]>0 v["bare_per_s"]>0 v["p50_us"]>0 v["p99_us"]>=v["p50_us"]' \
        fanin --callers 3 --slices 2 --calls 200
    check 'fanin of 1, 2, 4, 10' measures 'callers calls_per_s p99_us' \
        'v["callers"]==1 v["calls_per_s"]>0 v["p99_us"]>0' \
        fanin --slices 1 --calls 100
    check 'fanin has a row for each' rows_of_fanin
    check batch measures 'callers unbatched_calls_per_s batched_calls_per_s rows_per_batch ratio' \
        'v["callers"]==3 v["unbatched_calls_per_s"]>0 v["batched_calls_per_s"]>0
        v["rows_per_batch"]>=1 v["rows_per_batch"]<=3' \
        batch --callers 3 --slices 2 --calls 100
    check handover measures \
        'tensors bytes p50_us p99_us create_p50_us send_p50_us release_p50_us copied_bytes cold_p50_us' \
        'v["tensors"]==23 v["bytes"]==9000001 v["p50_us"]>0 v["p99_us"]>0 v["create_p50_us"]>0
        v["send_p50_us"]>0 v["release_p50_us"]>0 v["copied_bytes"]==0 v["cold_p50_us"]>0' \
        handover --tensors 23 --bytes 9000001 --slices 2 --calls 20
    check rref measures 'call_ns create_ns call_on_ns pass_on_ns delete_ns ratio_call_on ratio_pass_on' \
        'v["call_ns"]>0 v["create_ns"]>0 v["call_on_ns"]>0 v["pass_on_ns"]>0 v["delete_ns"]>0
        v["ratio_call_on"]>=0 v["ratio_pass_on"]>=0' \
        rref --slices 1 --calls 20
    if [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -ge 1600000 ]; then
        check 'handover of 1 MB and 1 GB' measures 'tensors bytes copied_bytes p50_1mb_us p50_1gb_us ratio_1gb_1mb' \
            'v["tensors"]==161 v["bytes"]==94278008 v["copied_bytes"]==0 v["p50_1mb_us"]>0
            v["p50_1gb_us"]>0 v["ratio_1gb_1mb"]>=0' \
            handover --slices 1 --calls 10
    else
        echo 'skip bxbench handover of 1 MB and 1 GB needs 1.5 GB in /dev/shm'
    fi
else
    for name in pingpong rate net fanin batch handover rref; do
        echo "skip bxbench $name needs two cores"
    done
fi
check sleep measures 'bare_p50_us call_p50_us call_p99_us ratio cpus' \
    'v["bare_p50_us"]>0 v["call_p50_us"]>0 v["call_p99_us"]>=v["call_p50_us"]/2 v["ratio"]>=0' \
    sleep --slices 2 --calls 20
check idle measures 'cpu_percent wakeups_per_s answered bare_cpu_percent' \
    'n["cpu_percent"]==4 v["cpu_percent"]>=0 v["wakeups_per_s"]>=0 v["answered"]==4' \
    idle --workers 4 --seconds 0.5
check start measures 'ready_seconds gone_seconds seconds shm_bytes_rest shm_bytes_all_pairs bare_seconds' \
    'v["ready_seconds"]>0 v["gone_seconds"]>0 v["seconds"]>=v["ready_seconds"]
    v["shm_bytes_rest"]>=4*57344 v["shm_bytes_all_pairs"]>=v["shm_bytes_rest"]+4*3*131072' \
    start --workers 4 --slices 1

check 'prints a table, with epoll too' table_with_epoll

check 'no subcommand' refuses 'subcommand'
check 'an unknown subcommand' refuses 'juggle' juggle
check 'an unknown flag' refuses 'juggle' pingpong --juggle
check 'short flags' refuses '-juggle' pingpong -juggle
check 'a flag of another subcommand' refuses 'no such flag' pingpong --workers 3
check 'a number out of range' refuses 'from 2 to 128' start --workers 500
check 'a number that is none' refuses 'x' rate --inflight 6x
check 'a core that is not there' refuses 'cpus' pingpong --cpus 0,99999
check 'more tensors than bytes for them' refuses 'tensors take at least' handover --tensors 100 --bytes 6399
check 'none in flight' refuses 'from 1 to 512' rate --inflight 0
check 'a word too many' refuses 'more' idle more

check '--help and --version' says_what_it_is
exit "$failed"
