# SPDX-License-Identifier: MIT
#
# Reads public headers for pages.awk: functions, types, comments and sections.
#
# What a comment documents: all functions that follow it, up to a blank line or the next comment; they share a page. A
# function that has no such comment has one behind its declaration, and a page of its own. A comment without functions
# is a text of its section, or belongs to the types that follow it. Macros that are used as functions are declared for
# this script, under "#ifdef BXI_MANUAL".

function complain(text)
{
    print text > "/dev/stderr"
    bad = 1
}

function trim(text)
{
    sub(/^[ \t]+/, "", text)
    sub(/[ \t]+$/, "", text)
    return text
}

# A header that the first one includes is a part of it: what it has counts as that header's, but for its head comment.
function begin_header(file)
{
    header = file
    sub(/.*\//, "", header)
    head_seen = 0
    section = "head"
    if (header in is_part) {
        header = headers[1]
        skip_head = 1
    } else {
        headers[++header_count] = header
    }
    comment = 0
    declaration = ""
    in_comment = 0
}

# A block comment has ended: raw has its lines.
function end_comment(raw,   title)
{
    if (raw ~ /^SPDX/)
        return
    if (skip_head) {
        skip_head = 0
        head_seen = 1
        return
    }
    title = raw
    if (title ~ /^---- /) {
        sub(/\n.*/, "", title)
        sub(/^---- /, "", title)
        sub(/ -+$/, "", title)
        section = title
        sections[header, ++section_count[header]] = section
        if (raw !~ /\n/)
            return
        sub(/^[^\n]*\n\n?/, "", raw)
    }
    comment = ++comments
    text_of[comment] = raw
    comment_header[comment] = header
    comment_section[comment] = head_seen ? section : "head"
    head_seen = 1
}

# A declaration has ended: text without comments, raw with them, said is the comment behind it.
function end_declaration(text, raw, said,   name, id)
{
    gsub(/[ \t\n]+/, " ", text)
    text = trim(text)
    if (text ~ /^struct [A-Za-z_0-9]+ ?;$/) {
        if (comment && !(comment in has_types))
            leads[comment] = 1          # a comment about the object: what follows has comments of its own
        return
    }
    if (text ~ /^(struct|enum) [a-z_0-9]+ \{/ || text ~ /^typedef /) {
        name = text
        if (text ~ /^typedef/) {
            sub(/.*\(\*/, "", name)
            sub(/\).*/, "", name)
        } else {
            sub(/ *\{.*/, "", name)
        }
        types[++type_count] = name
        type_code[name] = raw
        type_comment[name] = comment
        if (comment && !(comment in leads))
            has_types[comment] = 1
        return
    }
    sub(/ *BX_PRINTF\([^)]*\)/, "", text)
    if (!match(text, /bx_[a-z0-9_]+\(/)) {
        if (text ~ /\(/)
            complain(header ":" FNR ": this declaration is not understood: " text)
        return
    }
    name = substr(text, RSTART, RLENGTH - 1)
    if (!comment && said == "") {
        complain(header ":" FNR ": " name " has no comment, and so no manual page")
        return
    }
    functions[++function_count] = name
    prototype[name] = text
    trailing[name] = said
    function_header[name] = header
    function_section[name] = section
    id = comment
    if (!id) {
        id = ++comments
        text_of[id] = said
        trailing[name] = ""
        comment_header[id] = header
        comment_section[id] = section
    }
    page_of[name] = id
    if (!(id in first_name)) {
        pages[++page_count] = id
        first_name[id] = name
    }
    members[id] = members[id] " " name
}

FNR == 1 { begin_header(FILENAME) }
section == "How the macros work" { next }       # the rest of the file is not for programs

# Inside a block comment at the beginning of a line.
in_comment {
    line = $0
    ended = sub(/ *\*\/$/, "", line)
    sub(/^ \*( |$)/, "", line)
    sub(/^ $/, "", line)
    block = block (block == "" ? "" : "\n") line
    if (ended) {
        in_comment = 0
        end_comment(block)
    }
    next
}
declaration == "" && /^\/\*/ {
    line = $0
    sub(/^\/\* ?/, "", line)
    if (sub(/ *\*\/$/, "", line)) {
        end_comment(line)
    } else {
        block = line
        in_comment = 1
    }
    next
}
declaration == "" && /^[ \t]*$/ {
    comment = 0
    next
}
header_count == 1 && /^#include "boxcar_/ { is_part[substr($2, 2, length($2) - 2)] = 1 }
/^#/ || (declaration == "" && /^}/) || /^#define/ { next }
declaration == "" && /^    X\(|^extern/ { next }
/\\$/ && declaration == "" { next }

# Part of a declaration. A comment behind it may go on in lines that begin with blanks and a star.
{
    line = $0
    declaration = declaration line "\n"
    bare = declaration
    said = ""
    while ((at = index(bare, "/*")) > 0) {
        rest = substr(bare, at + 2)
        to = index(rest, "*/")
        if (to == 0)
            next                        # it goes on in the next line
        said = substr(rest, 1, to - 1)
        bare = substr(bare, 1, at - 1) substr(rest, to + 2)
    }
    depth = gsub(/\{/, "{", bare) - gsub(/\}/, "}", bare)
    if (depth > 0 || bare !~ /;[ \t\n]*$/)
        next
    gsub(/\n[ \t]*\*/, " ", said)
    gsub(/[ \t\n]+/, " ", said)
    raw = declaration
    declaration = ""
    end_declaration(bare, raw, trim(said))
}
