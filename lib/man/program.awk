# SPDX-License-Identifier: MIT
#
# Makes a program's manual page of what it prints for --help: `PROGRAM --help | awk -f program.awk -v name=PROGRAM
# -v version=VERSION -v programs=FILE -v words=boxcar.7`. FILE has the program's title and examples: lib/man/programs.
#
# The help has "Usage:" and the synopsis, then paragraphs. A line that begins with a blank is shown as it is. The
# sentences from "Exit status:" on are a section of their own, between those of FILE: ENVIRONMENT, FILES; EXAMPLES, SEE
# ALSO.

function text(line)
{
    gsub(/\\/, "\\e", line)
    gsub(/`/, "\\(ga", line)
    gsub(/--/, "\\-\\-", line)
    if (line ~ /^[.']/)
        line = "\\&" line
    return line
}

# Puts words, a new line after each sentence and before column 72.
function put_words(line,   words, count, i)
{
    count = split(line, words, " ")
    for (i = 1; i <= count; i++) {
        if (length(pending) + length(words[i]) > 70)
            flush_words()
        pending = pending (pending == "" ? "" : " ") words[i]
        if (words[i] ~ /[.?!]\)?$/)
            flush_words()
    }
}

function flush_words()
{
    if (pending != "")
        print text(pending)
    pending = ""
}

function end_code()
{
    flush_words()
    if (in_code)
        print ".Ed"
    in_code = 0
}

function begin_section(title)
{
    end_code()
    paragraph = 0
    print ".Sh " title
    fresh = 1
}

# Reads the lines of this program in FILE: the title into title. Prints the sections that are `wanted`.
function from_file(wanted,   line, on, part, printed)
{
    while ((getline line < programs) > 0) {
        if (line ~ /^program /) {
            split(line, part, " ")
            on = part[2] == name
            if (on) {
                title = line
                sub(/^program [a-z_]+ /, "", title)
            }
        } else if (on && line != "" && line !~ /^#/) {
            if (line ~ /^\.Sh /)
                printed = wanted != "" && substr(line, 5) ~ wanted
            if (printed)
                print line
        }
    }
    close(programs)
}

BEGIN {
    while ((getline line < words) > 0)
        if (line ~ /^\.Dd /)
            dated = line
    from_file("")
    if (title == "" || dated == "") {
        print programs ": there is no line 'program " name " TITLE'" > "/dev/stderr"
        failed = 1
        exit 1
    }
    print ".\\\" Made from the output of " name " --help by lib/man/program.awk."
    print dated
    print ".Dt " toupper(name) " 1"
    print ".Os Boxcar " version
    print ".Sh NAME"
    print ".Nm " name
    print ".Nd " title
}

NR == 1 {
    if (!sub(/^[Uu]sage: /, "")) {
        print name " --help does not begin with 'Usage:'" > "/dev/stderr"
        failed = 1
        exit 1
    }
    print ".Sh SYNOPSIS"
    put_words($0)
    begin_section("DESCRIPTION")
    next
}

/Exit status: / {
    before = $0
    sub(/ ?Exit status: .*/, "", before)
    put_words(before)
    end_code()
    from_file("^(ENVIRONMENT|FILES)$")
    begin_section("EXIT STATUS")
    sub(/.*Exit status: /, "")
    in_status = 1
}

/^$/ {
    flush_words()
    if (!in_code)
        paragraph = 1
    else
        print ""
    next
}

/^ / {
    flush_words()
    if (!in_code)
        print ".Bd -literal"
    in_code = 1
    fresh = paragraph = 0
    line = $0
    gsub(/\\/, "\\e", line)
    gsub(/-/, "\\-", line)
    gsub(/`/, "\\(ga", line)
    gsub(/'/, "\\(aq", line)
    print line
    next
}

{
    if (in_code)
        end_code()
    else if (paragraph && !fresh)
        print ".Pp"
    fresh = paragraph = 0
    put_words($0)
}

END {
    if (!failed) {
        end_code()
        from_file(in_status ? "^(EXAMPLES|SEE ALSO)$" : ".")
    }
    exit failed
}
