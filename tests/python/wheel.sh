#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The wheel: pip installs it into an empty directory, it brings its library, and the first program of
# lib/python/README.md runs with it.
#
# check is given functions by their names.
# shellcheck disable=SC2317
set -u

python=${PYTHON:-/usr/bin/python3}
if ! "$python" -c 'import pip, wheel' 2>/dev/null; then
    echo "skip the wheel: $python has no pip, or not the module wheel"
    exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck source=tests/checks.sh
. "${BX_SOURCE_DIR:?}/tests/checks.sh"
unset LD_LIBRARY_PATH
export PYTHONPATH="$dir/site"

installs()
{
    "$python" -m pip install --no-index --target "$dir/site" "$(cat "$dir/wheel")" >"$dir/out" 2>&1
}

brings_its_library()
{
    "$python" -c "import boxcar; exit('$dir/site/boxcar/libboxcar.so' not in open('/proc/self/maps').read())" \
        2>"$dir/err"
}

runs()
{
    awk '/^```python$/ && !seen { seen = on = 1; next } /^```/ { on = 0 } on' \
        "$BX_SOURCE_DIR/lib/python/README.md" >"$dir/program.py"
    for rank in 1 0; do
        BX_JOB=wheel$$ BX_WORLD_SIZE=2 BX_RANK=$rank timeout 60 "$python" "$dir/program.py" >"$dir/out.$rank" 2>&1 &
    done
    wait
    test "$(cat "$dir/out.0" "$dir/out.1")" = 3
}

"$BX_SOURCE_DIR/tools/build_wheel.sh" "${BX_BUILD_DIR:?}/python/boxcar" "$dir" >"$dir/wheel" 2>"$dir/err"
check 'a wheel is built' test -s "$dir/wheel"
check 'pip installs it' installs
check 'it brings its library' brings_its_library
check 'the first program of the manual runs with it' runs
exit "$failed"
