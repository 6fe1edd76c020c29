#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Builds the Debian packages: `build_deb.sh DIRECTORY`; `make deb` gives build/deb. Copies the sources into the
# directory, with tools/debian as debian/, and runs dpkg-buildpackage in the copy. The version (lib/boxcar.h), the
# symbols files (lib/*.abi), the changelog and the licence (lib/LICENSE) are taken from the sources. DEBFULLNAME and
# DEBEMAIL set the maintainer.
set -eu

cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(cd "$1" && pwd)
version=$(sed -n 's/^#define BX_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' lib/boxcar.h | paste -sd.)
maintainer="${DEBFULLNAME:-The Boxcar authors} <${DEBEMAIL:-authors@boxcar.invalid}>"
# The same sources make the same packages: their date is that of the last commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y lib/CHANGELOG.md)}
export SOURCE_DATE_EPOCH
jemalloc=${JEMALLOC:-build/jemalloc}
# Variables and flags of the make that runs this script are not those of the packages.
unset MAKEFLAGS MFLAGS MAKEOVERRIDES CFLAGS CPPFLAGS LDFLAGS CC CONFIG CUDA WERROR V BUILD PREFIX
unset LIBDIR DESTDIR JEMALLOC PYTHON

source=$out/boxcar-$version
rm -rf "$out"/boxcar-* "$out"/*.*deb "$out"/*.buildinfo "$out"/*.changes
mkdir -p "$source/build"
# With their times: jemalloc is not compiled anew if it is compiled here.
cp -Rp Makefile README.md lib shm gpu tools "$source"
cp -Rp "$jemalloc" "$source/build/jemalloc"
cp -R tools/debian "$source/debian"
cd "$source"

# symbols LIBRARY PACKAGE DEV: each function of the .abi file at its node. A node has the version that it names, the
# first node that of the list.
symbols()
{
    echo "$1.so.${version%%.*} $2 #MINVER#"
    echo "* Build-Depends-Package: $3"
    awk '
        /^# First version with this list: / { first = $NF }
        $1 == "function" {
            match($0, /bx_[a-z0-9_]*\(/)
            since = $2
            sub(/.*_/, "", since)
            since = since ~ /\./ ? since : first
            print " " substr($0, RSTART, RLENGTH - 1) "@" $2 " " since
            print " " $2 "@" $2 " " since
        }' "lib/$1.abi" | LC_ALL=C sort -u
}
symbols libboxcar libboxcar0 libboxcar-dev >debian/libboxcar0.symbols
symbols libboxcar_nn libboxcar-nn0 libboxcar-nn-dev >debian/libboxcar-nn0.symbols
symbols libboxcar_autograd libboxcar-autograd0 libboxcar-nn-dev >debian/libboxcar-autograd0.symbols

# Revision 0.1 comes before 1, which a package made by Debian would have.
cat >debian/changelog <<END
boxcar ($version-0.1) unstable; urgency=medium

  * Boxcar $version: CHANGELOG.md, installed as changelog.gz, lists the changes.

 -- $maintainer  $(date -uRd "@$SOURCE_DATE_EPOCH")
END
sed -i "s/@MAINTAINER@/$maintainer/" debian/control
# As the format wants it: indented, and a dot for an empty line. The first three lines are the title and whose it is.
sed -n '5,$ { s/^$/./; s/^/ /; p }' lib/LICENSE >debian/licence
sed -i -e '/@LICENSE@/ { r debian/licence' -e 'd }' debian/copyright
rm debian/licence

if ! dpkg-buildpackage --build=binary --unsigned-changes --jobs="$(nproc)" >"$out/log" 2>&1; then
    tail -n 30 "$out/log" >&2
    echo "the packages could not be built: see $out/log" >&2
    exit 1
fi
ls "$out"/*.deb
