#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Uses the library as an outside program does. Checked are a staged installation, the README's program (its first C
# block, against the shared and the static library, run), a program of boxcar_autograd likewise, a C++17 program, and
# the installed examples by their Makefile. strict.sh has what more compilers and CMake say.
. "$(dirname "$0")/installed.sh"

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

# ---- programs ------------------------------------------------------------------------------------

# The program of the README: what stands between the first "```c" and the next "```".
awk '/^```c$/ && !seen { seen = on = 1; next } /^```/ { on = 0 } on' README.md >"$work/readme.c"

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
}

# ---- the installed examples ----------------------------------------------------------------------

build_examples()
{
    $MAKE CC="$CC" CFLAGS="$strict"
}

cp -r "$root/share/doc/boxcar/examples" "$work/examples" && cd "$work/examples" || exit 1
try 'the examples build, pkg-config' build_examples
try 'the examples run' examples_run .
exit "$failed"
