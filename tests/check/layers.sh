#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Which folder may include from which. Each line of the table names a folder and the folders below it; an include
# that leads anywhere else fails. The table itself must have no circle: a folder names only folders whose lines come
# before its own. An include is resolved as the compiler resolves it: beside the file, then from the project's root,
# then from lib/.
#
# Inside of a folder that $files lists, no object files may reference one another in a circle: if a.o uses a symbol of
# b.o, b.o uses none of a.o, and so on through any number of files. That needs the objects of a build (BX_BUILD_DIR).
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
# shellcheck source=tests/checks.sh
. tests/checks.sh

# FOLDER: the folders and single headers that it may include from. public: lib/boxcar*.h.
table='
shm:
gpu: shm
lib/base: shm public
lib/run: lib/base shm public
lib/observe: lib/run lib/base shm public
lib/lend: lib/run lib/observe lib/base shm gpu public
lib/device: lib/lend lib/run lib/observe lib/base shm gpu public
lib/rref: lib/run lib/observe lib/base shm public
lib/rpc: lib/rref lib/device lib/lend lib/run lib/observe lib/base shm gpu public
lib/net: lib/rpc lib/rref lib/device lib/lend lib/run lib/observe lib/base shm gpu public
lib/net/ucx: lib/net/wire.h
lib/job: lib/net lib/rpc lib/rref lib/device lib/lend lib/run lib/observe lib/base shm gpu public
lib/nn: public gpu/cuda_api.h gpu/cuda_driver.h gpu/stub.h lib/base/options.h
lib/autograd: public shm/atomic.h shm/backoff.h lib/base/options.h
lib/examples: public
lib/python/boxcar: public
demos/common: public
demos/hello: public
demos/tensor_ipc: demos/common public
demos/reinforce: demos/common public
demos/cartpole: demos/common demos/reinforce/cartpole.h demos/reinforce/policy.h public
demos/param_server: demos/common public
demos/rnn: demos/common public
demos/pipeline: demos/common public
tools/shmstat: shm lib/observe/tables.h lib/rpc/frame.h gpu/shared.h public
tools/bxbench: shm public
tools/gpucheck: gpu/cuda_api.h gpu/cuda_driver.h gpu/gpu.h gpu/shared.h lib/nn/cuda.h shm/atomic.h public
'
# The folders whose files have an order too.
files='gpu shm lib/base lib/run lib/observe lib/lend lib/device lib/rref lib/net lib/job lib/autograd'
objects=${BX_BUILD_DIR:-build/debug}/obj

# The file that an include of $2, written in a file of folder $1, leads to; nothing for the system's headers.
target()
{
    for try in "$1/$2" "$2" "lib/$2"; do
        if [ -e "$try" ]; then
            realpath --relative-to=. "$try"
            return
        fi
    done
}

# Prints each include of a file of folder $1 that leads to none of the places in $2.
strangers()
{
    for file in "$1"/*.[ch]; do
        [ -e "$file" ] || continue
        sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]\([^>"]*\)[>"].*/\1/p' "$file" |
            while read -r header; do
                to=$(target "$1" "$header")
                folder=${to%/*}
                case $to in
                '') continue ;;
                lib/boxcar*.h) folder=public ;;
                esac
                case " $1 $2 " in
                *" $folder "* | *" $to "*) ;;
                *) echo "$file includes $to" ;;
                esac
            done
    done
}

# Prints the references between object files of folder $1, a pair of names a line: the one that uses a symbol and the
# one that defines it.
references()
{
    for source in "$1"/*.c; do
        [ ! -e "$objects/${source%.c}.o" ] || nm -A -g "$objects/${source%.c}.o"
    done | awk '
        {
            sub(/:[^:]*$/, "", $1)
            sub(/.*\//, "", $1)
        }
        $2 == "U" { uses[$1 " " $3] }
        $2 ~ /^[BDRTVW]$/ { definer[$3] = $1 }
        END {
            for (use in uses) {
                split(use, part, " ")
                if (part[2] in definer && definer[part[2]] != part[1])
                    print part[1], definer[part[2]]
            }
        }'
}

report 'the table of folders has no circle' "$(echo "$table" | awk -F: '
    NF < 2 { next }
    {
        count = split($2, below, " ")
        for (i = 1; i <= count; i++)
            if (below[i] != "public" && below[i] !~ /\.h$/ && !(below[i] in seen))
                print $1 " may include from " below[i] ", whose line does not come before"
        seen[$1] = 1
    }')"
report 'the table has each folder' "$(find shm lib gpu demos tools -name '*.[ch]' | sed 's|/[^/]*$||' | sort -u |
    while read -r folder; do
        [ "$folder" = lib ] || echo "$table" | grep -q "^$folder:" || echo "$folder has no line in the table"
    done)"
while IFS=: read -r folder below; do
    [ -z "$folder" ] || report "$folder" "$(strangers "$folder" "$below")"
done <<END
$table
END
for folder in $files; do
    name="the files of $folder have no circle"
    if ! command -v nm >/dev/null; then
        echo "skip $name: nm is not installed"
    elif ! ls "$objects/$folder"/*.o >/dev/null 2>&1; then
        echo "skip $name: no object files in $objects/$folder: build first, or set BX_BUILD_DIR"
    else
        report "$name" "$(references "$folder" | tsort 2>&1 >/dev/null)"
    fi
done
users=$(grep -rlE --include='*.[ch]' '#[[:space:]]*include.*dnnl' shm lib gpu tools demos)
report 'oneDNN is for lib/nn/onednn.c alone' "$(echo "$users" | grep -vx lib/nn/onednn.c)"
users=$(grep -rlE --include='*.[ch]' '#[[:space:]]*include.*"(run/)?drive\.h"' shm lib gpu tools demos)
report 'the role is for lib/run alone' "$(echo "$users" | grep -v '^lib/run/')"
exit "$failed"
