#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Builds the wheel: `build_wheel.sh PACKAGE DIRECTORY`; `make wheel` makes build/wheel/*.whl of build/python/boxcar. It
# is that package with libboxcar beside its extension, which looks there first, and with what pip must know. It fits the
# version of Python that it is built with, $PYTHON. Of the system it needs liburing.so.2 besides the C library.
set -eu

python=${PYTHON:-/usr/bin/python3}
sources=$(dirname "$0")/..
version=$(sed -n 's/^#define BX_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$sources/lib/boxcar.h" | paste -sd.)
tag=$("$python" -c 'import sys, sysconfig
python = "cp%d%d" % sys.version_info[:2]
print(python, python, sysconfig.get_platform().replace("-", "_"), sep="-")')

tree=$2/tree
info=$tree/boxcar-$version.dist-info
rm -rf "$tree"
mkdir -p "$info"
cp -RL "$1" "$tree/boxcar"
find "$tree" -name __pycache__ -exec rm -r {} +
strip -g "$tree"/boxcar/*.so*
cp "$sources/lib/LICENSE" "$info/LICENSE"
cp "${JEMALLOC:-$sources/build/jemalloc}/source/COPYING" "$info/LICENSE.jemalloc"
cat >"$info/METADATA" <<END
Metadata-Version: 2.1
Name: boxcar
Version: $version
Summary: Calls between processes of one host through shared memory
License: MIT
Requires-Python: >=3.9
END
cat >"$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: build_wheel.sh
Root-Is-Purelib: false
Tag: $tag
END
"$python" -m wheel pack "$tree" --dest-dir "$2" >/dev/null
rm -r "$tree"
echo "$2/boxcar-$version-$tag.whl"
