#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The visible top level is exactly eight names; names that begin with a dot are free. Asks git for the tracked files.
# If nothing is tracked (an archive) it lists the directory without build/.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
wanted='Makefile README.md demos gpu lib shm tests tools'

found=$(git ls-files 2>/dev/null | cut -d/ -f1)
[ -n "$found" ] || found=$(ls | grep -vx build)
found=$(printf '%s\n' "$found" | grep -v '^\.' | LC_ALL=C sort -u | xargs)

if [ "$found" != "$wanted" ]; then
    echo "found:  $found"
    echo "wanted: $wanted"
    exit 1
fi
