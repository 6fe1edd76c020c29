#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Checks the ordering comments of shm/ and lib/:
#   - only shm/atomic.h includes stdatomic.h;
#   - each acquire and release has a comment on its line or within the four lines above it;
#   - for each tag, "[ring.commit] release, ...", both sides exist: an acquire for each release and a release for each
#     acquire, a second place if a comment says "pairs with";
#   - the operation below a label is the one that the label names: a release below "[ring.commit] release, ...";
#   - a function named as partner ("pairs with the acquire in bxi_ring_peek") exists.
# It cannot tell whether an order is sufficient. It finds operations that are weaker than their labels, and partners
# that were renamed or removed.
set -u

cd "${BX_SOURCE_DIR:-.}" || exit 1
# shellcheck source=tests/checks.sh
. tests/checks.sh

sources=$(find shm lib gpu -name '*.[ch]' ! -path shm/atomic.h | sort)

report 'one header includes stdatomic.h' "$(
    grep -lE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]stdatomic' \
        $(find shm lib gpu demos tools tests -name '*.[ch]') |
        grep -vx 'shm/atomic.h')"

# shellcheck disable=SC2086
report 'each acquire and release has a comment' "$(awk '
    FNR == 1 { comment = -9 }
    /\/\*|\*\/|^[[:space:]]*\*/ { comment = FNR }
    /bxi_(load_acquire|store_release)\(/ && FNR - comment > 4 { print FILENAME ":" FNR ": " $0 }
    ' $sources)"

# The first operation below the label "[ring.commit] release, ..." must be a release; of "acquire three times",
# three must be acquires. An exchange, an addition or a compare-and-swap is both. What a label calls neither
# (a count, a claim) may be any of them. layout.h labels fields.
# shellcheck disable=SC2046
report 'each label is what the operation below it does' "$(awk '
    function satisfies(op) {
        if (op ~ /seq_cst|^atomic_[a-z_]+$/) return kind != "relaxed"
        if (op ~ /^bxi_(exchange|add|cas)$/) return kind !~ /^(relaxed|fence|sequentially)/
        if (kind ~ /acquire and release|^fence|^sequentially/) return 0
        if (kind ~ /^release/) return op ~ /release$/
        if (kind ~ /^acquire/) return op ~ /acquire$/
        if (kind ~ /^relaxed/) return op ~ /relaxed$|count$/
        return 1
    }
    function judge() {
        if (wanted > 0) print where ": " label
        wanted = 0
    }
    function begin() {
        wanted = label ~ /three times/ ? 3 : 1
        kind = label
        sub(/^\[[a-z_.]+\] /, "", kind)
        sub(/[,:;.].*/, "", kind)
        if (kind ~ /fence/) kind = "fence"
        left = 8
        has_begun = is_comment = 0
    }
    FNR == 1 { judge(); is_comment = 0 }
    match($0, /^[ ]*\/\* \[[a-z_.]+\] /) {
        judge()
        where = FILENAME ":" FNR
        label = substr($0, index($0, "["))
        is_comment = 1
        if (/\*\//) begin()
        next
    }
    is_comment {
        more = $0
        sub(/^[ ]*\*[ ]*/, "", more)
        label = label " " more
        if (/\*\//) begin()
        next
    }
    wanted > 0 {
        rest = $0
        while (match(rest, /(bxi_(load|store|exchange|add|cas|fence|count)[a-z_]*|atomic_[a-z_]+)\(/)) {
            if (satisfies(substr(rest, RSTART, RLENGTH - 1))) wanted--
            rest = substr(rest, RSTART + RLENGTH)
            has_begun = 1
        }
        if (--left < 0 || (has_begun && /[;{]$/ && label !~ /three times/)) judge()
    }
    END { judge() }
    ' $(echo "$sources" | grep -vx 'shm/layout.h'))"

# One line for each tagged comment, joined where it wraps: "file:line tag kind text". layout.h is
# left out: its table says which word has which tag and would count as the partner of a lone access.
# shellcheck disable=SC2086
comments=$(awk '
    function flush() { if (text != "") print where, text; text = "" }
    FNR == 1 { flush() }
    match($0, /\/\* \[[a-z_]+\.[a-z_]+\] /) {
        flush()
        where = FILENAME ":" FNR
        text = substr($0, RSTART + 3)
        if (text ~ /\*\//) { sub(/\*\/.*/, "", text); flush() }
        next
    }
    text != "" {
        more = $0
        done = more ~ /\*\//
        sub(/^[[:space:]]*\**[[:space:]]*/, "", more)
        sub(/\*\/.*/, "", more)
        text = text " " more
        if (done) flush()
    }
    END { flush() }' $(echo "$sources" | grep -vx 'shm/layout.h'))

report 'each tag has its partner' "$(printf '%s\n' "$comments" | awk '
    NF == 0 { next }
    {
        tag = $2
        kind = $0                       # "[x.y] acquire and release, ...": up to the comma
        sub(/^[^ ]* [^ ]* /, "", kind)
        sub(/[,:;.].*/, "", kind)
        places[tag]++
        first[tag] = first[tag] ? first[tag] : $1
        if (kind ~ /release/) has[tag, "release"] = 1
        if (kind ~ /acquire/) has[tag, "acquire"] = 1
        if (/pairs with/) pairs[tag] = 1
    }
    END {
        for (tag in places) {
            if (pairs[tag] && places[tag] < 2)
                print first[tag] ": " tag " stands in one place only"
            if (has[tag, "release"] && !has[tag, "acquire"])
                print first[tag] ": " tag " is released but nowhere acquired"
            if (has[tag, "acquire"] && !has[tag, "release"])
                print first[tag] ": " tag " is acquired but nowhere released"
        }
    }')"

report 'each partner named is a function' "$(printf '%s\n' "$comments" |
    while read -r where text; do
        printf '%s\n' "$text" | grep -oE 'pairs? with [^.:]*' |
            grep -oE '\b[a-z0-9]+(_[a-z0-9]+)+\b' |
            while read -r name; do
                # shellcheck disable=SC2086
                grep -qE "\b$name(\(|\b.*;)" $sources || echo "$where names $name, which is nowhere"
            done
    done)"
exit "$failed"
