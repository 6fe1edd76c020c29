# SPDX-License-Identifier: MIT
#
# Lines of code by room: what is neither blank nor comment. `make size` passes the files by name.
# Comments are those of C in .c, .h, .cu, .cpp and .pml, and lines that begin with # elsewhere.

# The room of a file: a folder of lib/, tools/, demos/ or tests/, else the folder at the top.
function room_of(path, part, parts) {
    parts = split(path, part, "/")
    return parts > 2 ? part[1] "/" part[2] : part[1]
}

# The line without comments; `inside` says whether a comment of C goes on in the next line.
function without_comments(line, kept, at, found) {
    while (line != "") {
        if (inside) {
            at = index(line, "*/")
            if (at == 0)
                return kept
            line = substr(line, at + 2)
            inside = 0
        }
        if (!match(line, /"(\\.|[^"\\])*"|'(\\.|[^'\\])+'|\/\*|\/\//))
            return kept line
        found = substr(line, RSTART, RLENGTH)
        kept = kept substr(line, 1, RSTART - 1) (found ~ /^["']/ ? found : "")
        line = substr(line, RSTART + RLENGTH)
        if (found == "//")
            return kept
        inside = found == "/*"
    }
    return kept
}

FNR == 1 {
    inside = 0
    room = room_of(FILENAME)
    is_test = FILENAME ~ /^tests\//
    is_c = FILENAME ~ /\.(c|h|cu|cpp|pml)$/
    if (!(room in lines))
        rooms[++count] = room
}

is_c { $0 = without_comments($0) }

!/^[ \t]*$/ && (is_c || !/^[ \t]*#/) {
    lines[room]++
    sum[is_test]++
}

END {
    for (i = 1; i <= count; i++)
        if (rooms[i] !~ /^tests/)
            printf "%7d  %s\n", lines[rooms[i]], rooms[i]
    printf "%7d  production\n\n", sum[0]
    for (i = 1; i <= count; i++)
        if (rooms[i] ~ /^tests/)
            printf "%7d  %s\n", lines[rooms[i]], rooms[i]
    printf "%7d  tests\n", sum[1]
}
