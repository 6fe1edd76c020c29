#!/bin/sh
# SPDX-License-Identifier: MIT
#
# `make deb`, and what its packages are: lintian has nothing against them; dpkg installs them into a directory, where
# the dependencies are looked up in a copy of this machine's status; the examples are built with what was installed, and
# run; dpkg removes the packages, and nothing is left. This machine itself is not changed.
#
# try is given functions by their names; $MAKE and $CC may be several words.
# shellcheck disable=SC2086,SC2317
set -u

cd "${BX_SOURCE_DIR:?}" || exit 1
here=$BX_SOURCE_DIR/tests
: "${MAKE:=make}" "${CC:=cc}"
if ! command -v dh >/dev/null || ! command -v lintian >/dev/null; then
    echo 'skip the Debian packages: debhelper or lintian is not installed'
    exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
root=$dir/root
PATH=$PATH:/usr/sbin:/sbin

# shellcheck source=tests/checks.sh
. "$here/checks.sh"

evidence()  # of a check that failed
{
    tail -n 20 "$dir/out"
}

try()       # try NAME COMMAND...
{
    what=$1
    shift
    "$@" >"$dir/out" 2>&1
    check "$what" test $? -eq 0
}

# ---- what is built -------------------------------------------------------------------------------

try 'make deb' $MAKE --no-print-directory BUILD="$dir" deb
[ "$failed" -eq 0 ] || exit 1
version=$(sed -n 's/^#define BX_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' lib/boxcar.h | paste -sd.)

package()   # package NAME: the file. Ubuntu calls those of debug symbols .ddeb.
{
    echo "$dir/deb/$1"_*.d*eb
}

has_packages()
{
    for name in libboxcar0 libboxcar-net0 libboxcar-nn0 libboxcar-autograd0 libboxcar-dev libboxcar-nn-dev \
        boxcar-tools python3-boxcar; do
        test "$(dpkg-deb -f "$(package $name)" Version)" = "$version-0.1" || return 1
    done
}

# Each function of the .abi file, and the version node, which is a symbol too.
has_symbols()       # has_symbols PACKAGE LIBRARY
{
    dpkg-deb -I "$(package "$1")" symbols | sed -n 's/^ \(bx_[a-z0-9_]*\)@\([^ ]*\) .*/\2 \1/p' | LC_ALL=C sort \
        >"$dir/symbols"
    sed -n 's/^function \([^ ]*\) .*\(bx_[a-z0-9_]*\)(.*/\1 \2/p' "lib/$2.abi" | LC_ALL=C sort >"$dir/functions"
    test -s "$dir/symbols" && diff "$dir/functions" "$dir/symbols"
}

# The debug symbols belong to the library that is in the package.
has_debug_symbols() # has_debug_symbols PACKAGE LIBRARY
{
    dpkg-deb -x "$(package "$1")" "$dir/lib"
    id=$(readelf -n "$dir/lib/usr/lib/$triplet/$2.so.$version" | sed -n 's/.*Build ID: //p')
    test -n "$id" && dpkg-deb -c "$(package "$1-dbgsym")" | grep "/$(echo "$id" | cut -c1-2)/$(echo "$id" | cut -c3-)"
}

triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
try 'the packages have the version of the header' has_packages
for pair in libboxcar0/libboxcar libboxcar-nn0/libboxcar_nn libboxcar-autograd0/libboxcar_autograd; do
    try "the symbols of ${pair%/*} are those of ${pair#*/}.abi" has_symbols "${pair%/*}" "${pair#*/}"
    try "${pair%/*}-dbgsym has the symbols of ${pair%/*}" has_debug_symbols "${pair%/*}" "${pair#*/}"
done
try 'lintian' lintian --profile debian --allow-root --fail-on=error,warning "$dir"/deb/*.changes

# ---- what is installed ---------------------------------------------------------------------------

# An empty file system with the status of this machine, so that dpkg checks dependencies against it. Its warnings say
# that the files of those packages are not there.
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/triggers"
awk -v RS= -v ORS='\n\n' '!/^Package: (lib|python3-)?boxcar/' /var/lib/dpkg/status >"$root/var/lib/dpkg/status"
echo 1 >"$root/var/lib/dpkg/info/format"
cp /var/lib/dpkg/arch "$root/var/lib/dpkg/" 2>/dev/null
asroot=
[ "$(id -u)" -eq 0 ] || asroot='fakeroot --'

dpkg_root()
{
    # Words on purpose: $asroot may be empty or two words.
    $asroot dpkg --root="$root" --force-not-root --log=/dev/null "$@"
}

# Every path, but for dpkg's own list of packages, which `ours` looks at.
paths()
{
    find "$root" ! -path "$root/var/lib/dpkg/*" -o -path "$root/var/lib/dpkg/info/*" | LC_ALL=C sort
}

ours()
{
    dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Package} ${Status}\n' | grep -E '^(lib|python3-)?boxcar'
}

installed_alike()
{
    ours >"$dir/ours"
    test "$(wc -l <"$dir/ours")" -eq "$1" && ! grep -v ' install ok installed$' "$dir/ours"
}

build_examples()
{
    PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$root/usr/lib/$triplet/pkgconfig \
        $MAKE -C "$dir/examples" CC="$CC" CFLAGS='-Wall -Wextra -Werror'
}

examples_run()      # examples_run DIRECTORY
{
    for example in call futures tensor train; do
        timeout 60 "$1/$example" || return 1
    done | diff "$here/consumer/examples.out" -
}

examples_by_cmake() # examples_by_cmake DIRECTORY
{
    cmake -S "$dir/examples" -B "$dir/$1" -DCMAKE_PREFIX_PATH="$root/usr" && cmake --build "$dir/$1"
}

imports()
{
    PYTHONPATH=$root/usr/lib/python3/dist-packages PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c '
import boxcar, boxcar.rpc
assert boxcar.__file__.startswith("'"$root"'") and "'"$root"'/usr/lib/" in open("/proc/self/maps").read()'
}

worker_on()         # worker_on RANK HOST
{
    BX_JOB=deb$$ BX_RANK=$1 BX_WORLD_SIZE=2 BX_ROOT=127.0.0.1:$((20000 + $$ % 12000)) BX_SECRET=0123456789abcdef \
        BX_HOST=$2 UCX_NET_DEVICES=lo timeout 60 "$dir/few/call"
}

on_two_hosts()
{
    worker_on 1 b & worker_on 0 a >"$dir/hosts"
    cat "$dir/hosts"
    wait && grep -q '^84 / 2 = 42$' "$dir/hosts"
}

refuses_headers()
{
    ! dpkg_root -i "$(package libboxcar-dev)" >"$dir/refusal" 2>&1 &&
        grep 'depends on libboxcar0 (= ' "$dir/refusal"
}

nothing_left()
{
    paths | diff "$dir/before" -
}

paths >"$dir/before"
try 'dpkg refuses the headers without the library' refuses_headers
try 'dpkg installs library, headers and tools without the networks' dpkg_root -i "$(package libboxcar0)" \
    "$(package libboxcar-dev)" "$(package boxcar-tools)"
try 'they are installed' installed_alike 3
try 'shmstat runs' "$root/usr/bin/shmstat" --version
try 'gpucheck runs' "$root/usr/bin/gpucheck" --version
cp -r "$root/usr/share/doc/libboxcar-dev/examples" "$dir/examples"
LD_LIBRARY_PATH=$root/usr/lib/$triplet
export LD_LIBRARY_PATH
try 'the examples build by CMake without the networks' examples_by_cmake few
try 'all but the one that needs them' test -x "$dir/few/call" -a -x "$dir/few/tensor" -a ! -e "$dir/few/train"
try 'dpkg installs the other packages' dpkg_root -i "$(package libboxcar-nn0)" "$(package libboxcar-autograd0)" \
    "$(package libboxcar-nn-dev)" "$(package libboxcar-net0)"
try 'they are installed too' installed_alike 7
try 'a job on two hosts finds the plug-in' on_two_hosts
# Unpacked: the scripts that compile and remove its bytecode would run in this directory, where no shell is.
try 'dpkg unpacks the package of Python' dpkg_root --unpack "$(package python3-boxcar)"
try 'Python imports it' imports
try 'all examples build by CMake' examples_by_cmake all
try 'they run' examples_run "$dir/all"
try 'all examples build by pkg-config' build_examples
try 'they run, too' examples_run "$dir/examples"

# Words on purpose: names of packages.
# shellcheck disable=SC2046
try 'dpkg removes them' dpkg_root --purge $(ours | cut -d' ' -f1)
try 'no file or directory is left' nothing_left
try 'dpkg knows none of them' test -z "$(ours)"
exit "$failed"
