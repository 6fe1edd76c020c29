# SPDX-License-Identifier: MIT
#
# Applies one mutant to one source: awk -f apply.awk MUTANT SOURCE >RESULT. README.md has the format.
# Lines are compared without the blanks at both ends. Fails with a sentence on stderr unless the text of
# each hunk stands in the source exactly once.

function trimmed(text)
{
    gsub(/^[ \t]+|[ \t\r]+$/, "", text)
    return text
}

function stale(why)
{
    print why > "/dev/stderr"
    failed = 1
    exit 3
}

# Sets first and last to the lines of the function: from the line in column 1 that has its name before a
# parenthesis, to the next line that is "}".
function find_function(name,    i, found)
{
    first = 1
    last = lines
    if (name == "")
        return
    for (i = 1; i <= lines && !found; i++)
        if (line[i] ~ /^[a-zA-Z_]/ && line[i] !~ /;[ \t]*$/ && line[i] ~ ("(^|[^a-zA-Z0-9_])" name "\\("))
            found = i
    if (!found)
        stale("there is no function " name)
    first = found
    for (last = first; last < lines && line[last] !~ /^}/; last++)
        ;
}

function hunk_stands_at(h, at,    k)
{
    for (k = 1; k <= old_lines[h]; k++)
        if (trimmed(line[at + k - 1]) != old[h, k])
            return 0
    return 1
}

FNR == 1 { file_number++ }

file_number == 1 && /^in / { inside = $2 }
file_number == 1 && /^-/ {
    if (!in_old)
        where[++hunks] = inside
    in_old = 1
    old[hunks, ++old_lines[hunks]] = trimmed(substr($0, 2))
    next
}
file_number == 1 && /^\+/ {
    if (!hunks)
        stale("a + stands before the first -")
    new[hunks, ++new_lines[hunks]] = substr($0, 2, 1) == " " ? substr($0, 3) : substr($0, 2)
}
file_number == 1 { in_old = 0; next }

{ line[++lines] = $0 }

END {
    if (failed)
        exit 3
    if (!hunks)
        stale("no line begins with -")
    for (h = 1; h <= hunks; h++) {
        find_function(where[h])
        count = 0
        for (i = first; i + old_lines[h] - 1 <= last; i++)
            if (hunk_stands_at(h, i)) {
                count++
                at = i
            }
        if (count != 1)
            stale("'" old[h, 1] "' stands there " count " times" (where[h] ? " in " where[h] : ""))
        match(line[at], /^[ \t]*/)
        indent = substr(line[at], 1, RLENGTH)
        for (k = 1; k <= old_lines[h]; k++) {
            if (at + k - 1 in gone)
                stale("two hunks change '" old[h, k] "'")
            gone[at + k - 1] = 1
        }
        for (k = 1; k <= new_lines[h]; k++)
            insert[at] = insert[at] indent new[h, k] "\n"
    }
    for (i = 1; i <= lines; i++) {
        printf "%s", insert[i]
        if (!(i in gone))
            print line[i]
    }
}
