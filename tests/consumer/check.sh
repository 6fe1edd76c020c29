#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Uses the library as an outside program does: `make install` into a temporary place, then builds away from the
# sources with the flags of pkg-config. Checked are the README's program (its first C block, against the shared and the
# static library, run), a program of boxcar_autograd likewise, a C++17 program, each public header alone, the .pc file,
# and that uninstall leaves nothing. The installed examples are built by their Makefile and by CMake, and run.
set -u

cd "${BX_SOURCE_DIR:?}" || exit 1
here=$BX_SOURCE_DIR/tests/consumer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${MAKE:=make}" "${CC:=cc}"
failed=0

# try NAME COMMAND...: one thing checked.
try()
{
    tried=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        echo "ok $tried"
    else
        cat "$work/out"
        echo "not ok $tried"
        failed=1
    fi
}

# The release, whatever is tested: a sanitizer's library could not be linked without its flags.
project()
{
    $MAKE --no-print-directory CONFIG=release "$@"
}

# ---- a staged installation, as a packager makes it -----------------------------------------------

staged_files()
{
    find "$work/stage" ! -type d | sed "s|^$work/stage||" | LC_ALL=C sort
}

staged_as_expected()
{
    for name in include/boxcar.h lib/libboxcar.a lib/libboxcar.so lib/libboxcar.so.0 \
        lib/pkgconfig/boxcar.pc share/doc/boxcar/LICENSE share/doc/boxcar/LICENSE.jemalloc \
        share/doc/boxcar/CHANGELOG.md share/doc/boxcar/examples/Makefile lib/cmake/Boxcar/BoxcarConfig.cmake \
        share/boxcar/tsan.supp share/man/man1/shmstat.1 share/man/man3/bx_rpc_sync.3 share/man/man7/boxcar.7; do
        [ -e "$work/stage/usr/$name" ] || { echo "/usr/$name is missing"; return 1; }
    done
    ! staged_files | grep -v '^/usr/' && ! grep -r "$work" "$work/stage/usr/lib/pkgconfig" "$work/stage/usr/lib/cmake"
}

try 'install with DESTDIR' project install DESTDIR="$work/stage" PREFIX=/usr
try 'the files are where they should be' staged_as_expected
try 'uninstall' project uninstall DESTDIR="$work/stage" PREFIX=/usr
try 'uninstall leaves nothing' test -z "$(staged_files; find "$work/stage" -iname '*boxcar*')"

# ---- an installation to build against ------------------------------------------------------------

root=$work/root/usr
try 'install with PREFIX' project install PREFIX="$root"
PKG_CONFIG_PATH=$root/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
LD_LIBRARY_PATH=$root/lib
export PKG_CONFIG_PATH LD_LIBRARY_PATH
cflags=$(pkg-config --cflags boxcar)
# A directory without the .so, searched first, is how the linker is made to take the .a.
mkdir -p "$work/static"
ln -s "$root/lib/libboxcar.a" "$work/static/"

# The program of the README: what stands between the first "```c" and the next "```".
awk '/^```c$/ && !seen { seen = on = 1; next } /^```/ { on = 0 } on' README.md >"$work/readme.c"

linked_shared()
{
    readelf -d "$1" | grep -q 'NEEDED.*libboxcar\.so\.0'
}

linked_static()
{
    test -x "$1" && ! readelf -d "$1" | grep 'libboxcar\.so'
}

# True if the command fails and says so: a pattern, the command.
refused()
{
    said=$1
    shift
    ! "$@" >said 2>&1 && grep -qE "$said" said
}

strict='-Wall -Wextra -Wpedantic -Werror'
# What some projects have too; a header that is not in a system's directory must not stop their build.
stricter='-Wshadow -Wconversion -Wsign-conversion -Wcast-qual -Wundef -Wdouble-promotion'

# Words on purpose, below: flags.
# shellcheck disable=SC2046,SC2086
{
    cd "$work" || exit 1
    try "the README has a program" test -s readme.c
    try "the README's program compiles, shared" \
        $CC $strict $cflags -o readme readme.c $(pkg-config --libs boxcar)
    try 'it is linked with the shared library' linked_shared readme
    try 'it runs' timeout 60 ./readme
    try "the README's program compiles, static" $CC $strict $cflags -o readme-static readme.c \
        -L"$work/static" $(pkg-config --static --libs boxcar)
    try 'it is linked with the static library' linked_static readme-static
    try 'it runs, static' timeout 60 ./readme-static

    try 'a program of boxcar_autograd compiles, shared' \
        $CC $strict -o autograd "$here/autograd.c" $(pkg-config --cflags --libs boxcar_autograd)
    try 'it runs' timeout 60 ./autograd
    ln -s "$root/lib/libboxcar_autograd.a" "$root/lib/libboxcar_nn.a" "$work/static/"
    try 'a program of boxcar_autograd compiles, static' $CC $strict -o autograd-static "$here/autograd.c" \
        -L"$work/static" $(pkg-config --static --cflags --libs boxcar_autograd)
    try 'it is linked with the static libraries' linked_static autograd-static
    try 'it runs, static' timeout 60 ./autograd-static

    for compiler in g++ clang++; do
        if ! command -v $compiler >/dev/null; then
            echo "skip C++17 with $compiler, which is not installed"
            continue
        fi
        try "C++17 with $compiler" $compiler -std=c++17 $strict $cflags -o consumer-$compiler \
            "$here/consumer.cpp" $(pkg-config --libs boxcar)
        try "C++17 with $compiler runs" timeout 60 ./consumer-$compiler
    done

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

# ---- the installed examples, by pkg-config and by CMake -------------------------------------------

examples_run()  # examples_run DIRECTORY
{
    for example in call futures tensor train; do
        timeout 60 "$1/$example" || return 1
    done | diff "$here/examples.out" -
}

build_examples()
{
    $MAKE CC="$CC" CFLAGS="$strict"
}

cp -r "$root/share/doc/boxcar/examples" "$work/examples" && cd "$work/examples" || exit 1
try 'the examples build, pkg-config' build_examples
try 'the examples run' examples_run .
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
