# SPDX-License-Identifier: MIT
#
# Makes a program's manual page of what it prints for --help: `PROGRAM --help | awk -f text.awk -f program.awk
# -v name=PROGRAM -v programs=FILE -v date=DATE -v version=VERSION`. FILE has the program's title and further sections:
# lib/man/programs.

NR == 1 && !sub(/^[Uu]sage: /, "") { complain(name " --help does not begin with 'Usage:'") }
{ help = help $0 "\n" }

END {
    while ((getline line < programs) > 0) {
        if (line ~ /^program /)
            on = sub("^program " name " ", "", line)
        if (on && line !~ /^#/)
            sections = sections (sections == "" || line == "" ? "" : "\n") line
    }
    if (sections == "")
        complain(programs ": there is no line 'program " name " TITLE'")
    if (bad)
        exit 1
    file = "/dev/stdout"
    title = sections
    sub(/\n.*/, "", title)
    put_head(name, 1, title)
    put(".Sh SYNOPSIS")
    put_text(substr(help, 1, index(help, "\n") - 1))
    put(".Sh DESCRIPTION")
    put_literal(substr(help, index(help, "\n") + 1))
    put(substr(sections, index(sections, "\n") + 1))
}
