#!/bin/sh
# SPDX-License-Identifier: MIT
#
# On a machine without Criterion, each way to the unit tests asks for the package before it compiles anything. A
# pkg-config that does not find Criterion stands first in the path, and an apt-get that records its arguments and
# fails.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/../checks.sh"

real=$(command -v pkg-config)
mkdir "$dir/bin"
cat >"$dir/bin/pkg-config" <<END
#!/bin/sh
case " \$* " in *' criterion '*) exit 1 ;; esac
exec "$real" "\$@"
END
cat >"$dir/bin/apt-get" <<'END'
#!/bin/sh
exit 7
END
cat >"$dir/bin/sudo" <<'END'
#!/bin/sh
test "$1" != -n || shift
exec "$@"
END
chmod +x "$dir/bin/"*

# An empty build directory: were anything compiled, it would be there.
asks()      # asks TARGET
{
    PATH=$dir/bin:$PATH MAKEFLAGS='' "${MAKE:-make}" CONFIG="${BX_CONFIG:-release}" BUILD="$dir/build" "$1" \
        >"$dir/out" 2>&1 </dev/null && return 1
    grep -q '^installing by apt-get:.* libcriterion-dev' "$dir/out" && test ! -e "$dir/build"
}

for target in unit test-reference e2e test; do
    check "make $target" asks "$target"
done
exit "$failed"
