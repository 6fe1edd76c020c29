#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts one fault after the other into a copy of the tree and reports which of them no test notices. README.md beside
it says what the faults are, and the format of the list that is kept by hand.

    mutants.py --check              whether each mutant of the list applies; builds nothing
    mutants.py --kept [NAME...]     the mutants of the list, or some of them
    mutants.py FILE.c...            generated mutants of these files

The copy, build/mutants/tree, is kept with its objects. Its files are replaced only where they differ, and then are
newer than any object: what an interrupted run left is compiled anew.
"""
import fcntl
import filecmp
import glob
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("BX_SOURCE_DIR") or os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("BX_BUILD_DIR") or SOURCE + "/build"
HOME = BUILD + "/mutants"
TREE = HOME + "/tree"
JOBS = os.environ.get("BX_MUTANT_JOBS", "2")
# Of generated mutants: seconds a file, and seconds that the suites may take for one.
FILE_S = int(os.environ.get("BX_MUTANT_FILE_S", "600"))
ONE_S = os.environ.get("BX_MUTANT_LIMIT_S", "120")
SIM_S = os.environ.get("BX_MUTANT_SIM_S", "20")         # that the simulator has for a program
KINDS = os.environ.get("BX_MUTANT_KINDS", "tests steps check script sim").split()
SUITES = 12
UNIT = ["build/debug/tests/unit", "build/debug/bin/shmstat", "build/debug/tests/libfakecuda.so"]


# ---- The copy ----------------------------------------------------------------------------------------

def sync():
    """Makes the files of the copy those of the tree."""
    first = not os.path.isdir(TREE)
    kept = set()
    for entry in sorted(os.listdir(SOURCE)):
        if entry in ("build", ".git"):
            continue
        found = [(SOURCE, [], [entry])] if os.path.isfile(f"{SOURCE}/{entry}") else os.walk(f"{SOURCE}/{entry}")
        for folder, _, files in found:
            for name in files:
                path = os.path.relpath(f"{folder}/{name}", SOURCE)
                kept.add(path)
                os.makedirs(os.path.dirname(f"{TREE}/{path}"), exist_ok=True)
                if not (os.path.exists(f"{TREE}/{path}") and filecmp.cmp(f"{SOURCE}/{path}", f"{TREE}/{path}", False)):
                    shutil.copy2(f"{SOURCE}/{path}", f"{TREE}/{path}")
                    if not first:
                        os.utime(f"{TREE}/{path}")
    for folder, folders, files in os.walk(TREE):
        folders[:] = [f for f in folders if (folder, f) != (TREE, "build")]
        for name in files:
            if os.path.relpath(f"{folder}/{name}", TREE) not in kept:
                os.remove(f"{folder}/{name}")
    if first and os.path.isdir(BUILD + "/debug"):
        shutil.copytree(BUILD + "/debug", TREE + "/build/debug", symlinks=True)


def read(path):
    with open(f"{TREE}/{path}", encoding="utf-8") as file:
        return file.read()


def write(path, text):
    """Newer than every object that was made before."""
    with open(f"{TREE}/{path}", "w", encoding="utf-8") as file:
        file.write(text)


def call(command, limit_s=None, **variables):
    """The exit status and the output."""
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "BX_TALLY", "UNIT_ARGS", "UNIT_PROGRAM")}
    environment.setdefault("JEMALLOC", SOURCE + "/build/jemalloc")
    done = subprocess.run(command, cwd=TREE, env=environment | variables, stdin=subprocess.DEVNULL, timeout=limit_s,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return done.returncode, done.stdout


def make(targets, *variables, config="debug"):
    return call(["make", "-j" + JOBS, "BUILD=build", "CONFIG=" + config, *variables, *targets]) if targets else (0, "")


def base(*arguments, **options):
    """A build without a mutant, which must succeed."""
    status, log = make(*arguments, **options)
    if status:
        sys.exit(log[-3000:] + "mutants: the tree does not build without a mutant")


def units(patterns, program="unit", directory="build/debug", **variables):
    filters = "|".join(patterns)
    return call(["tests/run_unit.sh", "--fail-fast", "--filter", f"@({filters})"], UNIT_PROGRAM=program,
                BX_SOURCE_DIR=TREE, BX_BUILD_DIR=f"{TREE}/{directory}", BX_TEST_LIMIT_S=ONE_S, **variables)


def who_saw(log):
    found = re.search(r"^\[FAIL\] ([a-z0-9_]+::[a-z0-9_]+)|^not ok (.*)|^FOUND (.*)", log, re.M)
    return next(group for group in found.groups() if group) if found else "ran past its time, or crashed"


# ---- The list kept by hand ---------------------------------------------------------------------------

def kept():
    """Each mutant: name, file, config, tests as pairs (kind, argument), hunks as [function, old lines, new lines]."""
    mutants, head, inside = [], {}, False
    for path in sorted(glob.glob(HERE + "/*.mut")):
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            word, _, rest = line.strip().partition(" ")
            if not word or word.startswith("#"):
                continue
            if word == "mutant":
                inside, function = True, ""
                mutants.append({"name": rest, "hunks": [], "config": "debug", **head, "tests": list(head["tests"])})
            elif line[0] in "-+":
                hunks, text = mutants[-1]["hunks"], line[1:].rstrip("\n").removeprefix(" ")
                if line[0] == "-" and (not hunks or hunks[-1][2] or not is_open):
                    hunks.append([function, [], []])
                hunks[-1][1 if line[0] == "-" else 2].append(text)
            elif word == "in":
                function = rest
            elif word in ("file", "config", "tests", "steps", "check", "script", "sim"):
                if inside or word == "file":
                    head, inside = {"file": head.get("file"), "tests": []}, False
                if word in ("file", "config"):
                    head[word] = rest
                else:
                    head["tests"] += [(word, argument) for argument in rest.split() or [""]]
            else:
                sys.exit(f"{path}:{number}: not understood: {line.strip()}")
            is_open = line[0] in "-+"
    names = [m["name"] for m in mutants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        sys.exit("mutants: two are called " + ", ".join(twice))
    return mutants


def span(lines, function):
    """The lines of a function: from the one in column 1 that names it before a parenthesis to the next "}"."""
    if not function:
        return 0, len(lines)
    for first, line in enumerate(lines):
        if re.match(rf"[A-Za-z_](.*\W)?{function}\(|{function}\(", line) and not line.rstrip().endswith(";"):
            last = first
            while last + 1 < len(lines) and not lines[last].startswith("}"):
                last += 1
            return first, last + 1
    raise ValueError(f"there is no function {function}")


def apply(mutant, text):
    """The text with the mutant in it. Lines are compared without the blanks at both ends."""
    lines = text.split("\n")
    result = list(lines)
    for function, old, new in mutant["hunks"]:
        first, last = span(lines, function)
        wanted = [line.strip() for line in old]
        places = [at for at in range(first, last) if [line.strip() for line in lines[at:at + len(old)]] == wanted]
        if len(places) != 1:
            raise ValueError(f"'{wanted[0]}' stands {len(places)} times in {function or 'the file'}")
        indent = re.match(r"\s*", lines[places[0]]).group()
        result[places[0]] = "\n".join(indent + line for line in new) if new else None
        for at in range(places[0] + 1, places[0] + len(old)):
            result[at] = None
    return "\n".join(line for line in result if line is not None)


def check():
    stale = 0
    for mutant in kept():
        try:
            if not mutant["tests"] or not mutant["hunks"]:
                raise ValueError("no test that could catch it, or no line that it changes, is named")
            with open(f"{SOURCE}/{mutant['file']}", encoding="utf-8") as file:
                apply(mutant, file.read())
        except (OSError, ValueError) as why:
            print(f"{mutant['name']} ({mutant['file']}): {why}")
            stale += 1
    print("not ok each mutant of the list applies" if stale else "ok each mutant of the list applies")
    return stale == 0


def run_kept(kind, argument, config):
    directory = "build" if config == "release" else "build/" + config
    if kind in ("tests", "steps"):
        return units([argument], "unit" if kind == "tests" else "kill_steps", directory, BX_CONFIG=config)
    if kind == "sim":
        program, _, failing = argument.partition("/")
        return call([f"{TREE}/build/sim/tests/sim", "--program", program, "--seed", "1", "--schedules", "1000000000",
                     "--seconds", SIM_S] + (["--fail", "all"] if failing else []))
    return call(["tests/run_scripts.sh", argument], BX_SOURCE_DIR=TREE, BX_BUILD_DIR=f"{TREE}/{directory}",
                BX_CONFIG=config, BX_TEST_LIMIT_S=ONE_S)


def try_kept(mutant, passes):
    config = mutant["config"]
    directory = "build" if config == "release" else "build/" + config
    needs = {"tests": [target.replace("build/debug", directory) for target in UNIT], "script": ["all", "tests"],
             "steps": [directory + "/tests/kill_steps"]}
    tests = [test for test in mutant["tests"] if test[0] in KINDS]
    targets = sorted({target for kind, _ in tests for target in needs.get(kind, [])})
    simulator = ["build/sim/tests/sim"] if "sim" in dict(tests) else []
    base(targets, config=config)
    base(simulator, "CUDA=0", config="sim")
    for kind, argument in tests:
        key = (kind, argument, config)
        if key not in passes:
            status, log = run_kept(*key)
            passes[key] = status == 0 and bool(re.search(r"[1-9]\d* passed|^ok nothing was found", log, re.M))
        if not passes[key]:
            return "unjudged", f"{kind} {argument} does not pass without the mutant"
    text = read(mutant["file"])
    try:
        write(mutant["file"], apply(mutant, text))
        if make(targets, config=config)[0] or make(simulator, "CUDA=0", config="sim")[0]:
            return "uncompiled", ""
        for kind, argument in tests:
            status, log = run_kept(kind, argument, config)
            if status:
                return "killed", who_saw(log)
        return "survived", ""
    except ValueError as why:
        return "stale", str(why)
    finally:
        write(mutant["file"], text)


# ---- Generated mutants -------------------------------------------------------------------------------

SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
         (" && ", " || "), (" || ", " && "), (" + 1", ""), (" - 1", ""), (" + ", " - "), (" - ", " + "), ("++", "--")]


def end_of(text, at):
    """Behind the parenthesis that closes the one at `at`, or 0."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    return 0


def changes(line):
    """Each mutant of a line that is executed: operator, new line."""
    code = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])+\'|/\*.*?\*/|//.*', lambda found: "\0" * len(found.group()), line)
    for old, new in SWAPS:
        for found in re.finditer(re.escape(old), code):
            yield f"{old.strip()} to {new.strip() or 'nothing'}", line[:found.start()] + new + line[found.end():]
    for found in re.finditer(r"\b(if|while) \(", code):
        end = end_of(code, found.end() - 1)
        if end and (re.search(r"&&|\|\|", code) or not re.search(r" [<>=!]=? ", code)):   # else it is exchanged above
            yield "condition negated", f"{line[:found.end()]}!{line[found.end() - 1:end]}){line[end:]}"
    statement = re.fullmatch(r"(\s+)(?!return|goto|break|continue|case)([*(]*\w[^;{}=]*(\)|\+\+|--)|[*\w.\->\[\]]+ "
                             r"[-+|&^]?= .*);\s*", code)
    if statement and code.count("(") == code.count(")"):
        kind = "call" if statement.group(3) == ")" else "assignment"
        yield kind + " dropped", statement.group(1) + ";"


def reach(paths):
    """For each file and each line of it that can be executed, the suites that do so; and each function's first line.
    Kept until the file changes: it takes one run of all unit tests."""
    known, new = {}, []
    for path in paths:
        digest = hashlib.sha256(read(path).encode()).hexdigest()
        known[path] = {"digest": digest, "lines": {}, "functions": {}}
        try:
            with open(f"{HOME}/reach/{path}.json", encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            found = {"digest": ""}
        if found["digest"] == digest:
            known[path] = found
        else:
            new.append(path)
    if not new:
        return known
    data = HOME + "/gcda"
    shutil.rmtree(data, ignore_errors=True)
    touch(new)
    base(UNIT, "COVERED=" + " ".join(new))
    _, log = call(["tests/run_unit.sh"], BX_SOURCE_DIR=TREE, BX_BUILD_DIR=TREE + "/build/debug", BX_REACH=data)
    failing = set(re.findall(r"^\[(?:FAIL|CRASH)\] ([a-z0-9_]+)::", log, re.M))
    for path in new:
        note = f"{TREE}/build/debug/obj/{path[:-2]}.gcno"
        for counts in glob.glob(f"{data}/*{note[:-5]}.gcda"):
            suite = os.path.relpath(counts, data).split("/")[0]
            shutil.copy(note, counts[:-5] + ".gcno")
            _, text = call(["gcov", "--json-format", "--stdout", counts])
            take_counts(known[path], path, {suite} - failing, json.loads(text.strip().split("\n")[-1]))
        os.makedirs(os.path.dirname(f"{HOME}/reach/{path}"), exist_ok=True)
        with open(f"{HOME}/reach/{path}.json", "w", encoding="utf-8") as file:
            json.dump(known[path], file)
    touch(new)
    return known


def take_counts(found, path, suites, counts):
    for file in counts["files"]:
        if file["file"] == path:
            found["functions"] = {str(function["start_line"]): function["name"] for function in file["functions"]}
            for line in file["lines"]:
                known = found["lines"].setdefault(str(line["line_number"]), [])
                known += [suite for suite in suites if line["count"] and suite not in known]


def touch(paths):
    for path in paths:
        write(path, read(path))


def generate(lines, found):
    """Line number, operator, new line, of every mutant."""
    for start in map(int, found["functions"]):
        body = next((i for i in range(start, len(lines)) if lines[i].startswith("{")), None)
        back = "" if re.search(r"\bvoid \w+\($", lines[start - 1].split("(")[0] + "(") else " 0"
        if body is not None:
            yield body + 1, "returns at once", f"{{ return{back};{lines[body][1:]}"
    for number in map(int, found["lines"]):
        for operator, line in changes(lines[number - 1]):
            yield number, operator, line


def mutate(path, found):
    text = read(path)
    lines = text.split("\n")
    own = {suite for name in glob.glob(f"{TREE}/tests/*/test_{os.path.basename(path)[:-2]}*.c")
           for suite in re.findall(r"^Test\((\w+),", open(name, encoding="utf-8").read(), re.M)}
    breadth = {}
    for suites in found["lines"].values():
        for suite in suites:
            breadth[suite] = breadth.get(suite, 0) + 1
    mutants = list(generate(lines, found))
    random.Random(1).shuffle(mutants)
    target = f"build/debug/obj/{path[:-2]}.o"
    tally = dict.fromkeys(("killed", "survived", "unreached", "uncompiled", "equivalent", "left"), 0)
    base(UNIT)
    plain = stripped(target)
    order = sorted(breadth, key=lambda suite: (suite not in own, -breadth[suite]))
    if order and units([suite + "/*" for suite in order[:SUITES]])[0]:
        sys.exit(f"mutants: {' '.join(order[:SUITES])}: fail without a mutant")
    print(f"{path}: {len(mutants)} mutants; {len(breadth)} suites reach it", flush=True)
    began = time.time()
    try:
        for number, operator, line in mutants:
            if time.time() - began > FILE_S:
                tally["left"] += 1
                continue
            verdict, suites = judge(path, lines, number, line, target, plain, order, found)
            tally[verdict] += 1
            if verdict in ("survived", "unreached"):
                print(f"{verdict:9} {path}:{number}: {operator}: {lines[number - 1].strip()}"
                      f"{'  ran ' + ' '.join(suites) if suites else ''}", flush=True)
    finally:
        write(path, text)
    print(f"{path}: {', '.join(f'{count} {verdict}' for verdict, count in tally.items())}; "
          f"{time.time() - began:.0f} s", flush=True)
    return tally["survived"] == 0


def stripped(target):
    call(["objcopy", "-g", target, HOME + "/stripped.o"])
    with open(HOME + "/stripped.o", "rb") as file:
        return file.read()


def judge(path, lines, number, line, target, plain, order, found):
    """The verdict and the suites that ran. A "{" is as reached as the line behind it that is executed first."""
    at = next((n for n in range(number, len(lines)) if str(n) in found["lines"]), number)
    suites = [suite for suite in order if suite in found["lines"].get(str(at), [])][:SUITES]
    if not suites:
        return "unreached", []
    write(path, "\n".join(lines[:number - 1] + [line] + lines[number:]))
    if make([target])[0]:
        return "uncompiled", []
    if stripped(target) == plain:
        return "equivalent", []
    if make(UNIT[:1])[0]:
        return "uncompiled", []
    for some in (suites[:3], suites[3:]):
        if some and units([suite + "/*" for suite in some])[0]:
            return "killed", suites
    return "survived", suites


def main(arguments):
    if arguments == ["--check"]:
        return check()
    os.makedirs(HOME, exist_ok=True)
    with open(HOME + "/lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sync()
        if arguments[:1] != ["--kept"]:
            began = time.time()
            found = reach(arguments)
            print(f"{time.time() - began:.0f} s to find which suites reach what", flush=True)
            return all([mutate(path, found[path]) for path in arguments])
        tally, passes = {}, {}
        for mutant in kept():
            if (arguments[1:] and mutant["name"] not in arguments[1:]) or not set(KINDS) & set(dict(mutant["tests"])):
                continue
            began = time.time()
            verdict, detail = try_kept(mutant, passes)
            tally[verdict] = tally.get(verdict, 0) + 1
            print(f"{verdict:10} {mutant['name']:44} {time.time() - began:4.0f} s  {detail}", flush=True)
        print(", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.items())))
        return set(tally) == {"killed"}


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
