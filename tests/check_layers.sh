#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Who may include whom: shm only itself; gpu and shm; lib, shm and gpu; the networks and programs
# their own headers and <boxcar*.h>, the networks gpu's list of the driver's functions too, the tools
# shm's, frame.h and gpu/shared.h; and oneDNN's header one file. Where an include leads is found as the compiler
# finds it: beside the file, then in the directories of the Makefile's -I, in whatever form it is written.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
failed=0

# The directory that an include of $2, written in a file of directory $1, leads to; "" for the
# system's.
owner()
{
    case $2 in
    */*) [ -e "$2" ] && dirname "$2" && return ;;
    esac
    for dir in "$1" lib shm; do
        [ -e "$dir/$2" ] && (cd "$dir/$(dirname "$2")" && basename "$PWD") && return
    done
}

# check DIR ALLOWED...: the names after DIR are directories that files of DIR may include from.
check()
{
    dir=$1
    shift
    bad=$(for file in "$dir"/*.[ch]; do
        [ -e "$file" ] || continue
        sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]\([^>"]*\)[>"].*/\1/p' "$file" |
            while read -r header; do
                from=$(owner "$dir" "$header")
                case $from,${header##*/} in
                ,*) continue ;;
                lib,boxcar*) [ "$dir" = shm ] || [ "$dir" = gpu ] || continue ;;
                lib,frame.h) [ "$dir" = tools ] && continue ;;
                gpu,shared.h) [ "$dir" = tools ] && continue ;;
                gpu,cuda_api.h) [ "$dir" = lib/nn ] && continue ;;
                lib,options.h) [ "$dir" = lib/nn ] && continue ;;
                esac
                case " $dir $* " in
                *" $from "*) ;;
                *) echo "$file includes $header of $from/" ;;
                esac
            done
    done)
    if [ -n "$bad" ]; then
        failed=1
        echo "$bad"
        echo "not ok $dir"
    else
        echo "ok $dir"
    fi
}

check shm
check gpu shm
check lib shm gpu
check lib/nn nn
check demos
check tools shm
users=$(grep -rlE --include='*.[ch]' '#[[:space:]]*include.*dnnl' shm lib gpu tools demos)
if [ "$users" = lib/nn/onednn.c ]; then
    echo 'ok onednn'
else
    failed=1
    printf 'oneDNN is for lib/nn/onednn.c alone, and included by:\n%s\nnot ok onednn\n' "$users"
fi
exit "$failed"
