#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the acquires, releases, sequentially consistent accesses and full fences of shm/ and lib/ relaxed, one line of
the source at a time, in the simulator that is built, and prints which are found.

    tests/sim/orders.py --list                    each line, with how often each program executes it in a second
    tests/sim/orders.py --seconds 10 FILE:LINE... or all; in the three programs that execute it most, 10 s each
    tests/sim/orders.py --programs late,end ...   of these
"""
import argparse
import collections
import re
import subprocess
import sys

SIM = "build/sim/tests/sim"
ORDER_IN = {"load": "si", "store": "dx", "compare": "cx", "fence": "di"}      # else a read-modify-write: dx
ORDERS = ("relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst")


def call_sites():
    """Address behind each call of an atomic function, and its order if that is a constant near it."""
    sites, constants = {}, {}
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", SIM], capture_output=True, text=True, check=True)
    kind = None
    for line in text.stdout.split("\n"):
        found = re.match(r" *([0-9a-f]+):\s+(.*)", line)
        if not found:
            continue
        if kind is not None:
            register = ORDER_IN.get(kind, "dx")
            sites[int(found.group(1), 16)] = (kind, constants.get(register))
            kind, constants = None, {}
        code = found.group(2)
        move = re.match(r"mov +\$0x([0-9a-f]+),%[er](si|dx|cx|di)\b", code)
        zero = re.match(r"xor +%e(si|dx|cx|di),%e\1", code)
        if move:
            constants[move.group(2)] = int(move.group(1), 16)
        elif zero:
            constants[zero.group(1)] = 0
        call = re.search(r"call.*<__tsan_atomic(?:\d+_)?(?:thread_)?(load|store|compare|exchange|fetch|fence)", code)
        if call:
            kind = call.group(1)
        elif re.match(r"call|j|ret", code):
            constants = {}
    return sites


def lines_of(sites):
    """{file:line: {address: (kind, order)}} of what is not relaxed."""
    lines = collections.defaultdict(dict)
    addresses = sorted(sites)
    out = subprocess.run(["addr2line", "-e", SIM], input="\n".join(f"{a - 1:#x}" for a in addresses),
                         capture_output=True, text=True, check=True).stdout.split("\n")
    for address, place in zip(addresses, out):
        found = re.search(r"((?:shm|lib)/[^ ]*:\d+)", place)
        if found and sites[address][1] != 0:
            lines[found.group(1)][address] = sites[address]
    return lines


def programs():
    text = subprocess.run([SIM, "--schedules", "1", "--seconds", "30"], capture_output=True, text=True).stdout
    return [line.split()[0] for line in text.split("\n") if " schedules" in line]


def counts(names, seconds):
    """{program: {address: executions in a second of a core}}."""
    result = {}
    for name in names:
        text = subprocess.run([SIM, "--program", name, "--seed", "1", "--schedules", "1000000", "--seconds",
                               str(seconds), "--relax", ""], capture_output=True, text=True).stdout
        result[name] = {int(a, 16): int(n) / seconds for a, n in re.findall(r"^order (0x\w+) (\d+)", text, re.M)}
    return result


def try_line(addresses, names, seconds):
    for name in names:
        text = subprocess.run([SIM, "--program", name, "--seed", "1", "--schedules", "1000000000", "--seconds",
                               str(seconds), "--relax", ",".join(f"{a:#x}" for a in addresses)],
                              capture_output=True, text=True).stdout
        found = re.search(r"^FOUND \w+: seed (\d+): (.*)", text, re.M)
        if found:
            used = re.search(r"in ([\d.]+) s", text)
            return f"{name} after {found.group(1)} in {used.group(1)} s: {found.group(2)[:100]}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--programs", default="")
    parser.add_argument("places", nargs="*")
    options = parser.parse_args()
    lines = lines_of(call_sites())
    names = options.programs.split(",") if options.programs else programs()
    rates = counts(names, 3)
    found = tried = unreached = 0
    for place, addresses in sorted(lines.items()):
        if options.places and options.places != ["all"] and place not in options.places:
            continue
        rate = {name: sum(rates[name].get(a, 0) for a in addresses) for name in names}
        of = sorted((name for name in names if rate[name] > 0), key=lambda name: -rate[name])
        kind, order = next(iter(addresses.values()))
        what = f"{place} {kind} {'?' if order is None else ORDERS[order]}"
        if options.list:
            print(what, " ".join(f"{name} {rate[name]:.0f}" for name in of), flush=True)
        elif not of:
            unreached += 1
            print(what, "unreached", flush=True)
        else:
            tried += 1
            saw = try_line(addresses, of[:3], options.seconds)
            found += saw is not None
            print(what, saw or "not found", flush=True)
    if not options.list:
        print(f"{found} of {tried} found, {unreached} not executed")


if __name__ == "__main__":
    sys.exit(main())
