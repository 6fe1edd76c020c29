# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# What the scripts of this directory share; sourced, not run: an installation under $root, for programs built away from
# the sources with the flags of pkg-config, in the directory $work.
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

root=$work/root/usr
try 'install with PREFIX' project install PREFIX="$root"
PKG_CONFIG_PATH=$root/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
LD_LIBRARY_PATH=$root/lib
export PKG_CONFIG_PATH LD_LIBRARY_PATH
cflags=$(pkg-config --cflags boxcar)
# A directory without the .so, searched first, is how the linker is made to take the .a.
mkdir -p "$work/static"
ln -s "$root/lib/libboxcar.a" "$work/static/"

linked_shared()
{
    readelf -d "$1" | grep -q 'NEEDED.*libboxcar\.so\.0'
}

linked_static()
{
    test -x "$1" && ! readelf -d "$1" | grep 'libboxcar\.so'
}

examples_run()  # examples_run DIRECTORY
{
    for example in call futures tensor train; do
        timeout 60 "$1/$example" || return 1
    done | diff "$here/examples.out" -
}

strict='-Wall -Wextra -Wpedantic -Werror'
