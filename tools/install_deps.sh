#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Installs what Boxcar needs and this machine lacks: `install_deps.sh GROUP...`, GROUP being build, unit
# (what the unit tests are compiled with), test (that, and what the other tests run), python (what `make python` needs),
# wheel (what `make wheel` needs besides), test-python (what the tests of Python need besides `python`), lint, deb (what
# `make deb` runs) or test-deb (what `make test-deb` runs besides). Run by `make deps`, `make deps-unit` and so on.
#
# `install_deps.sh --look GROUP...` installs nothing: it fails with a sentence that names what is missing.
#
# A need is looked up with the tool that will use it (pkg-config, the compiler, PATH) and not with the package
# manager, so libraries built by hand count. If nothing is missing, nothing is installed and nothing printed.
# The source of jemalloc is fetched into $JEMALLOC, build/jemalloc by default.
set -eu

cc=${CC:-cc}
python=${PYTHON:-/usr/bin/python3}
jemalloc=${JEMALLOC:-build/jemalloc}
case " $* " in *' test '*) set -- "$@" unit ;; esac
look=
[ "$1" != --look ] || look=1

have_cc()
{
    printf '#include <stdio.h>\nint main(void) { return 0; }\n' |
        "$cc" -x c - -o /dev/null 2>/dev/null
}

have_cxx()
{
    printf '#include <cstdio>\nint main() { return 0; }\n' | g++ -x c++ - -o /dev/null 2>/dev/null
}

# No .pc file comes with it.
have_dnnl()
{
    printf '#include <oneapi/dnnl/dnnl.h>\nint main(void) { return dnnl_version() == 0; }\n' |
        "$cc" -x c - -o /dev/null -ldnnl 2>/dev/null
}

have_header()
{
    printf '#include <%s>\n' "$1" | "$cc" -x c -E - >/dev/null 2>&1
}

have_library()
{
    pkg-config --exists "$1" 2>/dev/null
}

have_program()
{
    command -v "$1" >/dev/null 2>&1
}

# Of the interpreter for which the extension is built.
have_python_headers()
{
    "$python" -c 'import os, sysconfig as s
exit(not os.path.exists(s.get_paths()["include"] + "/Python.h"))' 2>/dev/null
}

have_arm64_libc()
{
    printf 'int main(void) { return 0; }\n' | aarch64-linux-gnu-gcc -static -x c - -o /dev/null 2>/dev/null
}

have_python_module()
{
    "$python" -c "import importlib.util as u; exit(u.find_spec('$1') is None)" 2>/dev/null
}

# The source of jemalloc, or the program that unpacks it.
have_jemalloc_or()
{
    test -x "$jemalloc/source/configure" || have_program "$1"
}

# group, package as Debian names it, how it is found
needs()
{
    cat <<'LIST'
build gcc have_cc
build libc6-dev have_cc
build make have_program make
build pkg-config have_program pkg-config
build liburing-dev have_library liburing
build dpkg-dev have_jemalloc_or dpkg-source
build libdnnl-dev have_dnnl
unit libcriterion-dev have_library criterion
unit libdlpack-dev have_header dlpack/dlpack.h
test libucx-dev have_header ucp/api/ucp.h
test libssl-dev have_header openssl/hmac.h
test iproute2 have_program ip
test openmpi-bin have_program mpirun
test g++ have_cxx
test spin have_program spin
test gnuplot-nox have_program gnuplot
test procps have_program ps
test cmake have_program cmake
test man-db have_program man
test mandoc have_program mandoc
test python3 have_program python3
python python3-dev have_python_headers
wheel python3-wheel have_python_module wheel
test-python python3-wheel have_python_module wheel
test-python python3-pip have_python_module pip
test-python python3-torch have_python_module torch
test-python python3-numpy have_python_module numpy
test-python python3-cloudpickle have_python_module cloudpickle
deb debhelper have_program dh
deb dpkg-dev have_program dpkg-buildpackage
deb dh-python have_program dh_python3
deb python3-dev have_python_headers
deb libucx-dev have_header ucp/api/ucp.h
deb libssl-dev have_header openssl/hmac.h
test-deb lintian have_program lintian
test-deb fakeroot have_program fakeroot
test-deb cmake have_program cmake
lint clang have_program clang
lint clang-format have_program clang-format
lint clang-tidy have_program clang-tidy
lint cppcheck have_program cppcheck
lint gcc-aarch64-linux-gnu have_program aarch64-linux-gnu-gcc
lint libc6-dev-arm64-cross have_arm64_libc
lint qemu-user have_program qemu-aarch64
LIST
}

# Of what is missing: $missing.
install_missing()
{
    if ! have_program apt-get; then
        echo "Not found here, and no package manager that this script knows (Debian names):$missing" >&2
        return 1
    fi

    sudo=
    if [ "$(id -u)" -ne 0 ]; then
        if ! have_program sudo; then
            echo "Not found here:$missing" >&2
            echo "As root: apt-get update && apt-get install$missing" >&2
            return 1
        fi
        sudo=sudo
        # Without a terminal nobody can type a password: fail instead of waiting for one.
        [ -t 0 ] || sudo='sudo -n'
    fi

    echo "installing by apt-get:$missing"
    # Words on purpose: $sudo may be empty or two words, $missing is a list.
    # shellcheck disable=SC2086
    {
        $sudo apt-get update -qq &&
            $sudo env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y -qq --no-install-recommends $missing >/dev/null
    }
}

missing=$(needs | while read -r group package test; do
    case " $* " in *" $group "*) $test </dev/null || printf ' %s' "$package" ;; esac
done)
if [ -n "$look" ]; then
    test -x "$jemalloc/source/configure" || missing="$missing jemalloc's source"
    [ -n "$missing" ] || exit 0
    echo "not found here:$missing; \"make deps\" installs what the build needs, by apt-get" >&2
    exit 1
fi
[ -z "$missing" ] || install_missing
case " $* " in *' build '*) "$(dirname "$0")/jemalloc.sh" get "$jemalloc" ;; esac
