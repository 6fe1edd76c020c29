# SPDX-License-Identifier: MIT
#
# Writes comments as mdoc for pages.awk: paragraphs, lists, code; names of functions become references. A new sentence
# begins a new line.

function escape(text)
{
    gsub(/\\/, "\\e", text)
    gsub(/\^/, "\\(ha", text)
    gsub(/~/, "\\(ti", text)
    while (sub(/`/, "\\(oq", text))
        sub(/`/, "\\(cq", text)
    return text
}

function put(line)
{
    print line > file
}

function flush_line()
{
    if (pending != "") {
        if (pending ~ /^[.']/)
            pending = "\\&" pending
        put(pending)
    }
    pending = ""
}

# A word of a text: the name of a function becomes a reference, codes get a minus sign that can be copied.
function put_word(word,   core, before, after, macro)
{
    core = word
    before = after = ""
    if (sub(/^\(/, "", core))
        before = "("
    if (match(core, /[.,;:)?!]+$/)) {
        after = substr(core, RSTART)
        core = substr(core, 1, RSTART - 1)
        if (core ~ /\($/) {             # name()
            sub(/\($/, "", core)
            sub(/^\)/, "", after)
        }
    }
    if ((core in prototype) && (before == "" || after ~ /^\)/)) {
        flush_line()
        macro = (core in own) ? "Fn " core : "Xr " core " 3"
        if (before != "") {
            macro = "Pq " macro
            sub(/^\)/, "", after)
        }
        while (after != "") {
            macro = macro " " substr(after, 1, 1)
            after = substr(after, 2)
        }
        put("." macro)
        return
    }
    word = escape(word)
    if (word ~ /^\(?-[A-Z0-9a-z]/)
        sub(/-/, "\\-", word)
    if (length(pending) + length(word) > 72)
        flush_line()
    pending = pending (pending == "" ? "" : " ") word
    if (word ~ /[.?!][")]*$/ && word !~ /\.\.\.$/)
        flush_line()
}

function put_text(text,   words, count, i)
{
    count = split(text, words, /[ \n]+/)
    for (i = 1; i <= count; i++)
        if (words[i] != "")
            put_word(words[i])
    flush_line()
}

function put_literal(text,   lines, count, i, line)
{
    put(".Bd -literal -offset indent")
    sub(/\n+$/, "", text)
    count = split(text, lines, "\n")
    for (i = 1; i <= count; i++) {
        line = lines[i]
        gsub(/\\/, "\\e", line)
        gsub(/-/, "\\-", line)
        gsub(/\^/, "\\(ha", line)
        gsub(/~/, "\\(ti", line)
        gsub(/`/, "\\(ga", line)
        gsub(/'/, "\\(aq", line)
        if (line ~ /^\./)
            line = "\\&" line
        put(line)
    }
    put(".Ed")
}

# Splits a comment into blocks: block_kind (text, code, item), block_text, block_tag. Returns how many there are. A
# text ends where the next word would have stood in its line.
function blocks(raw,   lines, count, i, line, n, last, first)
{
    count = split(raw, lines, "\n")
    n = 0
    last = ""
    for (i = 1; i <= count; i++) {
        line = lines[i]
        if (line ~ /^ *$/) {
            last = ""
            if (block_kind[n] == "code" && n > 0)
                block_text[n] = block_text[n] "\n"
            continue
        }
        first = line
        sub(/^ +/, "", first)
        sub(/ .*/, "", first)
        if (match(line, /^[A-Z][A-Za-z+]*\. +/) && RLENGTH == 10) {
            block_kind[++n] = "item"
            block_tag[n] = line
            sub(/\. .*/, "", block_tag[n])
            block_text[n] = substr(line, 11)
        } else if (line ~ /^          [^ ]/ && block_kind[n] == "item" && n > 0) {
            line = substr(line, 11)
            if (last ~ /\.$/ && length(last) + 4 + length(first) <= 120)
                block_text[n] = block_text[n] "\n"
            block_text[n] = block_text[n] (block_text[n] ~ /\n$/ ? "" : " ") line
            last = "          " line
            continue
        } else if (line ~ /^   /) {
            if (block_kind[n] != "code" || n == 0) {
                block_kind[++n] = "code"
                block_text[n] = ""
            }
            block_text[n] = block_text[n] line "\n"
        } else if (block_kind[n] == "text" && n > 0 && last != "" &&
                   !(last ~ /[.)]$/ && length(last) + 4 + length(first) <= 120)) {
            block_text[n] = block_text[n] " " line
        } else {
            block_kind[++n] = "text"
            block_text[n] = line
        }
        last = line
    }
    for (i = 1; i <= n; i++)
        if (block_kind[i] == "code")
            block_text[i] = outdent(block_text[i])
    block_kind[n + 1] = ""
    return n
}

# Takes the blanks away that all lines begin with.
function outdent(text,   lines, count, i, least, out)
{
    count = split(text, lines, "\n")
    least = 99
    for (i = 1; i <= count; i++)
        if (match(lines[i], /[^ ]/) && RSTART - 1 < least)
            least = RSTART - 1
    for (i = 1; i <= count; i++)
        out = out substr(lines[i], least + 1) "\n"
    return out
}

# Puts a comment that no function belongs to.
function put_essay(raw,   n, i, j, parts, count, first, in_list)
{
    n = blocks(raw)
    first = 1
    in_list = 0
    for (i = 1; i <= n; i++) {
        if (block_kind[i] == "item") {
            if (!in_list)
                put(".Bl -tag -width Blocking")
            in_list = 1
            put(".It Sy " block_tag[i])
            count = split(block_text[i], parts, "\n")
            for (j = 1; j <= count; j++) {
                if (j > 1)
                    put(".Pp")
                put_text(parts[j])
            }
            continue
        }
        if (in_list)
            put(".El")
        in_list = 0
        if (block_kind[i] == "code") {
            put_literal(block_text[i])
        } else {
            if (!first)
                put(".Pp")
            put_text(block_text[i])
        }
        first = 0
    }
    if (in_list)
        put(".El")
}
