#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints how many lines and branches of each source of lib/ and shm/ were run, and the sums, by what gcov has counted
in all of the folders of objects that are given. A branch counts if it was taken at least once. LINES=1 prints the lines
that were not run. `make coverage` runs the unit tests and the simulator first. Killed workers write no counts."""
import collections
import glob
import json
import os
import subprocess
import sys


def counts_of(source):
    """({line: how often it was run}, {(line, function, branch): how often it was taken})."""
    lines, branches = collections.Counter(), collections.Counter()
    for folder in sys.argv[1:]:
        counted = f"{folder}/{source[:-2]}.gcda"
        if not os.path.exists(counted):
            continue
        out = subprocess.run([os.environ.get("GCOV", "gcov"), "-b", "--json-format", "--stdout", counted],
                             check=True, capture_output=True, text=True).stdout
        for file in (file for text in out.splitlines() if text for file in json.loads(text)["files"]):
            for line in file["lines"] if file["file"] == source else []:
                number = line["line_number"]
                lines[number] += line["count"]
                for i, branch in enumerate(line["branches"]):
                    branches[number, line.get("function_name"), i] += branch["count"]
    return lines, branches


def row(name, run, lines, taken, branches):
    print(f"{name:24} {run:6} of {lines:6} lines {100 * run / (lines or 1):5.1f} %   "
          f"{taken:6} of {branches:6} branches {100 * taken / (branches or 1):5.1f} %")


def main():
    sums = [0] * 4
    for source in sorted(glob.glob("shm/*.c") + glob.glob("lib/*/*.c")):
        lines, branches = counts_of(source)
        row(source, *(found := [sum(map(bool, lines.values())), len(lines),
                                sum(map(bool, branches.values())), len(branches)]))
        sums = [a + b for a, b in zip(sums, found)]
        if os.environ.get("LINES"):
            with open(source, encoding="utf-8") as file:
                for number, text in enumerate(file, 1):
                    if lines.get(number) == 0:
                        print(f"{source}:{number}: {text.strip()}")
    row("all", *sums)
    sys.exit(sums[1] == 0)


main()
