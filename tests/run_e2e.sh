#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs every end-to-end test, tests/e2e/*.sh, from the project's root. $BX_BUILD_DIR is the build directory,
# $BX_SOURCE_DIR the sources. run_scripts.sh says how results are counted.
set -u

BX_SOURCE_DIR=${BX_SOURCE_DIR:-$(cd "$(dirname "$0")/.." && pwd)}
BX_BUILD_DIR=${BX_BUILD_DIR:-$BX_SOURCE_DIR/build}
export BX_SOURCE_DIR BX_BUILD_DIR
cd "$BX_SOURCE_DIR" || exit 1
exec tests/run_scripts.sh tests/e2e/*.sh
