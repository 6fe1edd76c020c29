# SPDX-License-Identifier: MIT
#
# Makes the manual pages of the public headers: `awk -f text.awk -f pages.awk -v out=DIR -v words=boxcar.7 -v date=DATE
# -v version=VERSION HEADER...`, boxcar.h first. Each public function gets a page in DIR/man3, each header one in
# DIR/man7. It fails if a function has no comment, or one that does not begin with a sentence about the function.
#
# What a comment documents: all functions that follow it, up to a blank line or the next comment; they share a page. Its
# first sentence is the title; what stands from a code at the beginning of a sentence to the end of the paragraph goes
# to ERRORS. A function that has no such comment has one behind its declaration. A comment without functions is a text
# of its section, or belongs to the types that follow it. Macros that are used as functions are declared for this
# script, under "#ifdef BXI_MANUAL". A header that boxcar.h includes is a part of it.
#
# boxcar.7 is written by hand (`words`), but for two lines: `.\" rules` stands for the head of boxcar.h, `.\" functions`
# for its sections. The pages of the other headers are their heads and sections.
#
# For any awk of POSIX: mawk has no intervals in regular expressions and no third argument of match.

# ---- Reading -----------------------------------------------------------------------------------------------

function begin_header(path)
{
    sub(/.*\//, "", path)
    is_included = path in is_part
    if (!is_included)
        headers[++header_count] = header = path
    section = ""
    comment = 0
    declaration = ""
    in_comment = head_seen = 0
}

# A comment between declarations: a headline, text, or both.
function end_comment(text)
{
    if (text ~ /^SPDX/)
        return
    if (!head_seen) {
        head_seen = 1
        if (!is_included && !sub(/^\n?[a-z_]+\.h - /, "", text))
            complain(header ": its first comment does not begin with its name and a sentence")
        if (!is_included)
            head[header] = text
        return
    }
    if (sub(/^---- /, "", text)) {
        section = text
        sub(/ -+(\n.*)?$/, "", section)
        sections[header, ++section_count[header]] = section
        if (!sub(/^[^\n]*\n+/, "", text))
            return
    }
    comment = ++comments
    text_of[comment] = text
    place[comment] = header SUBSEP section
    kind[comment] = "essay"
}

function end_type(name, raw)
{
    if (name ~ /^typedef/)
        sub(/.*\(\*/, "", name)
    sub(/ *[{)].*/, "", name)
    types[++type_count] = name
    type_code[name] = raw
    if (comment && kind[comment] == "essay" && !(comment in is_object)) {
        type_code[name] = "/* " text_of[comment] " */\n" raw
        kind[comment] = "type"
    }
}

# A declaration has ended: bare has no comments, raw has them, said is the last of them.
function end_declaration(bare, raw, said,   name)
{
    gsub(/[ \t\n]+/, " ", bare)
    bare = trim(bare)
    if (bare ~ /^struct [a-z_0-9]+ ?;$/)
        is_object[comment] = 1              # what follows has comments of its own
    else if (bare ~ /^(struct|enum) [a-z_0-9]+ \{|^typedef /)
        end_type(bare, raw)
    else if (match(bare, /bx_[a-z0-9_]+\(/)) {
        name = substr(bare, RSTART, RLENGTH - 1)
        if (!comment && said == "") {
            complain(header ": " name " has no comment, and so no manual page")
            return
        }
        page_of[name] = comment
        if (!comment) {
            page_of[name] = ++comments
            text_of[comments] = toupper(substr(said, 1, 1)) substr(said, 2)
            place[comments] = header SUBSEP section
        } else if (said != "") {
            text_of[comment] = text_of[comment] "\n\n" name ": " said
        }
        kind[page_of[name]] = "page"
        members[page_of[name]] = trim(members[page_of[name]] " " name)
        prototypes[page_of[name]] = prototypes[page_of[name]] trim(raw) "\n"
    } else if (bare ~ /\(/) {
        complain(header ": this declaration is not understood: " bare)
    }
}

FNR == 1 { begin_header(FILENAME) }
section == "How the macros work" { next }       # the rest of the file is not for programs
declaration == "" && /^\/\*/ {
    in_comment = 1
    block = ""
    sub(/^\/\*/, " *")
}
in_comment {
    line = $0
    in_comment = !sub(/ *\*\/$/, "", line)
    sub(/^ \* ?/, "", line)
    block = block (block == "" && line == "" ? "" : line "\n")
    if (!in_comment)
        end_comment(trim(block))
    next
}
declaration == "" && /^[ \t]*$/ { comment = 0 }
header_count == 1 && /^#include "boxcar_/ { is_part[substr($2, 2, length($2) - 2)] = 1 }
/^    X\(BX_E_/ {
    split($0, part, /[(,"]/)
    codes = codes sprintf("%-20s %s\n", part[2], part[5])
}
/^#/ || /\\$/ || (declaration == "" && /^(}|    X\(|extern|[ \t]*$)/) { next }

# Part of a declaration. A comment behind it may go on in lines that begin with blanks and a star.
{
    bare = declaration = declaration $0 "\n"
    said = ""
    while ((at = index(bare, "/*")) > 0) {
        length_of = index(substr(bare, at), "*/")
        if (length_of == 0)
            next                        # it goes on in the next line
        said = substr(bare, at + 2, length_of - 3)
        bare = substr(bare, 1, at - 1) substr(bare, at + length_of + 1)
    }
    if (gsub(/\{/, "{", bare) > gsub(/\}/, "}", bare) || bare !~ /;[ \t\n]*$/)
        next
    gsub(/\n[ \t]*\*/, " ", said)
    end_declaration(bare, declaration, trim(said))
    declaration = ""
}

# ---- Writing -----------------------------------------------------------------------------------------------

# A title: the first sentence without its full stop, or its first clause if it is long.
function title_of(text)
{
    sub(/\n\n(.|\n)*/, "", text)
    gsub(/[ \n]+/, " ", text)
    if (match(text, /[A-Za-z0-9)]\. /))
        text = substr(text, 1, RSTART)
    sub(/[.:]$/, "", text)
    if (length(text) > 90 && match(text, /[;:] /))
        text = substr(text, 1, RSTART - 1)
    return text ~ /^([A-Z][a-z]|A )/ ? tolower(substr(text, 1, 1)) substr(text, 2) : text
}

# Puts what has been gathered of a comment; of a function's page, what is about errors is kept for later.
function flush_block(is_page,   text)
{
    text = trim(gathered)
    if (gathering == "code") {
        put_literal(gathered, "-offset indent")
    } else {
        if (is_page && match(text, /(^|[.] )(-E[A-Z0-9]+|-errno|BX_E_[A-Z_]+)[ ,;:.]/)) {
            errors = errors (errors == "" ? "" : "\n.Pp\n") substr(text, RSTART + (RSTART > 1 ? 2 : 0))
            text = RSTART > 1 ? substr(text, 1, RSTART) : ""
        }
        if (text != "" && text_began)
            put(".Pp")
        put_text(text)
    }
    text_began = text_began || text != ""
    gathered = gathering = ""
}

# Puts a comment: paragraphs, code in lines that begin with three blanks, and a list of lines "Word.    text".
function put_comment(raw, is_page,   lines, count, i, line, in_list)
{
    count = split(raw, lines, "\n")
    text_began = in_list = 0
    for (i = 1; i <= count; i++) {
        line = lines[i]
        if (match(line, /^[A-Z][A-Za-z+]*\. +/) && RLENGTH == 10) {
            flush_block(is_page)
            put((in_list++ ? "" : ".Bl -tag -width Blocking\n") ".It Sy " substr(line, 1, index(line, ".") - 1))
            text_began = 0
            line = substr(line, 11)
        } else if (in_list && line ~ /^          [^ ]/) {
            line = substr(line, 11)
        } else if (line ~ /^   / && gathering != "code") {
            flush_block(is_page)
            gathering = "code"
        } else if (line == "" ? gathering != "code" : gathering == "code" && line !~ /^   /) {
            flush_block(is_page)
        }
        if (in_list && line ~ /^[^ ]/ && line == lines[i]) {
            put(".El")
            in_list = 0
        }
        gathered = gathered line "\n"
    }
    flush_block(is_page)
    if (in_list)
        put(".El")
}

# Puts the types that the prototypes name, and those in their fields.
function put_types(text,   i, begun, wanted)
{
    for (i = 1; i <= type_count; i++)
        if (text ~ ("(^|[^a-z_0-9])" types[i] "[^a-z_0-9]"))
            wanted = wanted type_code[types[i]]
    for (i = 1; i <= type_count; i++)
        if ((text wanted) ~ ("(^|[^a-z_0-9])" types[i] "[^a-z_0-9]")) {
            if (!begun++)
                put(".Ss Types")
            put_literal(type_code[types[i]], "-offset indent")
        }
}

function library_of(header)
{
    return header ~ /^boxcar(_trace)?\.h$/ ? "boxcar" : \
        header == "boxcar_nn.h" || header == "boxcar_cuda.h" ? "boxcar_nn" : "boxcar_autograd"
}

function put_page(id,   names, count, i, of)
{
    of = place[id]
    sub(SUBSEP ".*", "", of)
    count = split(members[id], names, " ")
    split("", own)
    for (i = 1; i <= count; i++) {
        own[names[i]] = 1
        file = out "/man3/" names[i] ".3"
        if (i > 1)
            put(".so man3/" names[1] ".3")
        close(file)
    }
    file = out "/man3/" names[1] ".3"
    put_head(members[id], 3, title_of(text_of[id]))
    put(".Sh LIBRARY\nBoxcar (pkg\\-config " library_of(of) ")\n.Sh SYNOPSIS\n.In " of)
    put_literal(prototypes[id], "-offset indent")
    put(".Sh DESCRIPTION")
    errors = ""
    put_comment(text_of[id], 1)
    put_types(prototypes[id])
    put(".Sh ERRORS")
    put_text(errors)
    if (errors != "")
        put(".Pp")
    put_text("A function that returns int returns 0 or more on success, else a negative code; bx_error_text then has " \
        "a sentence about it. The codes that every function may return are under RULES in")
    put(".Xr boxcar 7 .\n.Sh SEE ALSO\n.Xr boxcar 7" (of == "boxcar.h" ? "" : " ,"))
    if (of != "boxcar.h")
        put(".Xr " substr(of, 1, length(of) - 2) " 7")
    close(file)
}

# Puts the sections of a header: texts, and the functions with their titles.
function put_sections(header,   s, i, name, begun)
{
    for (s = 0; s <= section_count[header]; s++) {
        name = s > 0 ? sections[header, s] : ""
        if (s > 0)
            put(".Ss " name)
        begun = 0
        for (i = 1; i <= comments; i++)
            if (place[i] == header SUBSEP name && kind[i] == "essay") {
                if (begun++)
                    put(".Pp")
                put_comment(text_of[i])
            }
        begun = 0
        for (i = 1; i <= comments; i++)
            if (place[i] == header SUBSEP name && kind[i] == "page") {
                put((begun++ ? "" : ".Bl -tag -width Ds -compact\n") ".It Xr " first(members[i]) " 3")
                put_text(title_of(text_of[i]))
            }
        if (begun)
            put(".El")
    }
}

function first(words)
{
    sub(/ .*/, "", words)
    return words
}

function put_header_page(header,   name)
{
    name = substr(header, 1, length(header) - 2)
    file = out "/man7/" name ".7"
    put_head(name, 7, title_of(head[header]))
    put(".Sh SYNOPSIS\ncc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs " library_of(header) ")\n.Pp\n.In " header)
    put(".Sh DESCRIPTION")
    put_comment(toupper(substr(head[header], 1, 1)) substr(head[header], 2))
    put(".Sh FUNCTIONS")
    put_sections(header)
    put(".Sh SEE ALSO\n.Xr boxcar 7")
    close(file)
}

function put_words_page(   line)
{
    file = out "/man7/boxcar.7"
    while ((getline line < words) > 0)
        if (line == ".\\\" rules") {
            sub(/^[^\n]*\n+/, "", head["boxcar.h"])
            put_comment(head["boxcar.h"])
            put(".Ss Codes")
            put_literal(codes, "-offset indent")
        } else if (line == ".\\\" functions") {
            put_sections("boxcar.h")
        } else {
            put(line == ".Os" ? line " Boxcar " version : line)
        }
    close(file)
}

END {
    for (i = 1; i <= comments; i++)
        if (kind[i] == "page" && title_of(text_of[i]) ~ /^(-E[A-Z0-9]+|-errno|BX_E_[A-Z_]+|$)/)
            complain("the comment of " first(members[i]) " does not begin with a sentence about what it does")
    if (bad)
        exit 1
    split("", own)
    for (i = 2; i <= header_count; i++)
        put_header_page(headers[i])
    put_words_page()
    for (i = 1; i <= comments; i++)
        if (kind[i] == "page")
            put_page(i)
}
