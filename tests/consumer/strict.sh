#!/bin/sh
# SPDX-License-Identifier: MIT
#
# What compilers say to a user's program: to each public header alone, and to calls in one line, right and wrong, in C11
# and C++11, without and with optimisation; what ThreadSanitizer says with the installed suppressions; and what CMake
# finds.
. "$(dirname "$0")/installed.sh"

# True if the command fails and says so: a pattern, the command.
refused()
{
    said=$1
    shift
    ! "$@" >said 2>&1 && grep -qE "$said" said
}

# What some projects have too; a header that is not in a system's directory must not stop their build.
stricter='-Wshadow -Wconversion -Wsign-conversion -Wcast-qual -Wundef -Wdouble-promotion'

# Words on purpose, below: flags.
# shellcheck disable=SC2046,SC2086
{
    cd "$work" || exit 1
    for compiler in "gcc -O0" "gcc -O2" "clang -O0" "clang -O2"; do
        if ! command -v "${compiler% *}" >/dev/null; then
            echo "skip calls in one line with $compiler, which is not installed"
            continue
        fi
        plus="$(echo "$compiler" | sed 's/gcc/g++/; s/clang/clang++/') -x c++ -std=c++11"
        try "calls in one line compile in C11, $compiler" $compiler -std=c11 $strict $cflags -c "$here/values.c"
        try "calls in one line compile in C++11, $compiler" $plus $strict $cflags -c "$here/values.c"
        # gcc finds at -O0 only what needs no folding of the format.
        while IFS='|' read -r level wrong; do
            [ "$level $compiler" != 'folded gcc -O0' ] || continue
            try "$compiler refuses $wrong" refused 'fit its letter|more letters|association|no matching|undeclared' \
                $compiler -std=c11 $cflags "-DWRONG=$wrong" -c "$here/values.c"
            try "$compiler refuses it in C++11" refused 'fit its letter|more letters|no matching|ambiguous|declared' \
                $plus $cflags "-DWRONG=$wrong" -c "$here/values.c"
        done <<'END'
folded|bx_call(job, "w", "f", "ii>i", 5, "x", &i)
folded|bx_call(job, "w", "f", "ii>i", 5, 5, &w)
folded|bx_call(job, "w", "f", "i>i", 5, 5)
folded|bx_call(job, "w", "f", "ii", 5, 5, 5)
folded|bx_call(job, "w", "f", "i", 5.0)
folded|bx_call(job, "w", "f", "x", 5)
folded|bx_call(job, "w", "f", ">s", &str)
folded|bx_read(reader, "s", &text)
any|bx_call(job, "w", "f", "ii>i", 5, &i)
any|bx_call(job, "w", "f", "i", (void *)bytes)
any|bx_call(job, "w", "f", "d", options)
END
    done

    for header in "$root"/include/*.h; do
        name=${header##*/}
        echo "#include <$name>" >alone.c
        cp alone.c alone.cpp
        for compiler in gcc clang; do
            plus=$(echo $compiler | sed 's/gcc/g++/; s/clang/clang++/')
            if ! command -v $compiler >/dev/null || ! command -v $plus >/dev/null; then
                echo "skip $name alone with $compiler, which is not installed"
                continue
            fi
            try "$name alone in C11, $compiler" $compiler -std=c11 $strict $stricter -Wstrict-prototypes $cflags \
                -fsyntax-only alone.c
            try "$name alone in C++11, $compiler" $plus -std=c++11 $strict $stricter -Wold-style-cast $cflags \
                -fsyntax-only alone.cpp
        done
    done

    try 'a program compiles under ThreadSanitizer' \
        $CC -g -fsanitize=thread -o tsan "$here/tsan.c" $cflags $(pkg-config --libs boxcar)
    try 'it runs without a report, with the suppressions' \
        env TSAN_OPTIONS="suppressions=$root/share/boxcar/tsan.supp" timeout 120 ./tsan
    try "its own race is reported, with the suppressions" refused "WARNING: ThreadSanitizer: data race" \
        env TSAN_OPTIONS="suppressions=$root/share/boxcar/tsan.supp" timeout 120 ./tsan races
}

# ---- the installed examples, by CMake --------------------------------------------------------------

cp -r "$root/share/doc/boxcar/examples" "$work/examples" && cd "$work/examples" || exit 1
if ! command -v cmake >/dev/null; then
    echo 'skip the examples with CMake, which is not installed'
    exit "$failed"
fi

# finds ARGUMENTS...: what find_package says to a project of another place.
finds()
{
    mkdir -p "$work/find"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.13)' 'project(find NONE)' "find_package(Boxcar $*)" \
        >"$work/find/CMakeLists.txt"
    cmake -S "$work/find" -B "$work/find/build" -DCMAKE_PREFIX_PATH="$root"
}

refuses()       # refuses TEXT ARGUMENTS...
{
    text=$1
    shift
    finds "$@" >"$work/refusal" 2>&1 && return 1
    tr -s '[:space:]' ' ' <"$work/refusal" | grep -q "$text"    # CMake breaks lines
}

version=$(pkg-config --modversion boxcar)
try 'the examples build, CMake' sh -c 'cmake -S . -B shared "$@" && cmake --build shared' sh \
    -DCMAKE_PREFIX_PATH="$root" -DCMAKE_C_COMPILER="${CC%% *}" -DCMAKE_C_FLAGS="$strict"
try 'they run' examples_run shared
# train has every target; the others would only cost time.
try 'an example builds, CMake with the archives' sh -c \
    'cmake -S . -B static "$@" && cmake --build static --target train' sh -DSTATIC=ON \
    -DCMAKE_PREFIX_PATH="$root" -DCMAKE_C_COMPILER="${CC%% *}" -DCMAKE_C_FLAGS="$strict"
try 'it is linked with the archives' linked_static static/train
try 'it runs' timeout 60 static/train
try 'CMake finds this version' finds "$version" EXACT REQUIRED COMPONENTS boxcar nn autograd autograd_static
try 'CMake refuses a later version' refuses "version: $version" "${version%.*}.99" REQUIRED
rm "$root/lib/libboxcar_autograd.so"
try 'CMake names a component that is missing' refuses 'no library for the component "autograd"' \
    REQUIRED COMPONENTS autograd
exit "$failed"
