# SPDX-License-Identifier: MIT
#
# Writes mdoc into `file`, for pages.awk and program.awk. A new sentence begins a new line. `date` and `version` are
# given on the command line.

function complain(text)
{
    print text > "/dev/stderr"
    bad = 1
}

function trim(text)
{
    gsub(/^[ \t\n]+|[ \t\n]+$/, "", text)
    return text
}

function put(line)
{
    print line > file
}

function escape(text)
{
    gsub(/\\/, "\\e", text)
    gsub(/\^/, "\\(ha", text)
    gsub(/~/, "\\(ti", text)
    gsub(/`/, "\\(ga", text)
    return text
}

# names: one or more, with blanks between them.
function put_head(names, chapter, title,   list, count, i)
{
    count = split(names, list, " ")
    put(".Dd " date "\n.Dt " toupper(list[1]) " " chapter "\n.Os Boxcar " version "\n.Sh NAME")
    for (i = 1; i <= count; i++)
        put(".Nm " list[i] (i < count ? " ," : ""))
    put(".Nd " escape(title))
}

# where: "-offset indent", or nothing.
function put_literal(text, where)
{
    text = escape(text)
    sub(/^\n+/, "", text)
    sub(/\n+$/, "", text)
    gsub(/-/, "\\-", text)
    gsub(/'/, "\\(aq", text)
    gsub(/\n\./, "\n\\\\\\&.", text)
    put(".Bd -literal" (where != "" ? " " where : "") "\n" text "\n.Ed")
}

function flush_line()
{
    if (pending != "")
        put((pending ~ /^[.']/ ? "\\&" : "") pending)
    pending = ""
}

# Puts words. The name of a function that has a page becomes a reference; a code keeps a minus sign that can be copied.
function put_text(text,   words, count, i, name, after)
{
    count = split(text, words, /[ \n]+/)
    for (i = 1; i <= count; i++) {
        name = words[i]
        after = match(name, /[.,;:)?!]+$/) ? substr(name, RSTART) : ""
        name = substr(name, 1, length(name) - length(after))
        if (sub(/\($/, "", name))
            sub(/^\)/, "", after)
        if (name in page_of) {
            flush_line()
            gsub(/./, " &", after)
            put(((name in own) ? ".Fn " name : ".Xr " name " 3") after)
            continue
        }
        if (length(pending) + length(words[i]) > 70)
            flush_line()
        name = escape(words[i])
        sub(/^\(?-/, "&-", name)
        sub(/--/, "\\-", name)
        pending = pending (pending == "" ? "" : " ") name
        if (name ~ /[.?!][")]*$/ && name !~ /\.\.\.$/)
            flush_line()
    }
    flush_line()
}
