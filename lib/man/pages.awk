# SPDX-License-Identifier: MIT
#
# Makes the manual pages of the public headers: `awk -f headers.awk -f text.awk -f pages.awk -v out=DIR
# -v words=boxcar.7 -v main_header=boxcar.h -v version=VERSION HEADER...`. Each public function gets a page in DIR/man3,
# each header one in DIR/man7. It fails if a function has no comment, or one that does not begin with a sentence about
# the function.
#
# The first sentence of a comment is the page's title. Sentences that begin with "Returns", "0:" or "NULL:" go to RETURN
# VALUES, those that begin with a code, and what follows them in their paragraph, to ERRORS.
#
# boxcar.7 is written by hand (`words`); a line `.\" include NAME` in it stands for a text of boxcar.h: "head", or the
# name of a section; a line `.\" functions NAME` for the section's functions. The pages of the other headers are their
# head, the texts of their sections and their functions.
#
# For any awk of POSIX: mawk has no intervals in regular expressions and no third argument of match.

# ---- Pages of functions ------------------------------------------------------------------------------------

# Splits at ends of sentences. Returns how many: sentence[1..].
function sentences(text,   words, count, i, n)
{
    count = split(text, words, /[ \n]+/)
    n = 1
    sentence[1] = ""
    for (i = 1; i <= count; i++) {
        sentence[n] = sentence[n] (sentence[n] == "" ? "" : " ") words[i]
        if (words[i] ~ /[.?!][")]*$/ && words[i] !~ /\.\.\.$/ && i < count && words[i + 1] ~ /^["(]?[-A-Z0-9`]/)
            sentence[++n] = ""
    }
    return n
}

# The length of the list of codes that a text begins with; 0 if it begins with none.
function codes_length(text,   length_now, more)
{
    length_now = 0
    for (;;) {
        more = substr(text, length_now + 1)
        if (length_now > 0 && !sub(/^(, | and | or )/, "", more))
            return length_now
        if (!match(more, /^(-E[A-Z0-9]+|-errno|BX_E_[A-Z_]+)/))
            return length_now
        length_now = length(text) - length(more) + RLENGTH
    }
}

# With a capital at its beginning, if that is a word and not a name.
function capital(text)
{
    return text ~ /^[a-z]+([ ,;:]|$)/ ? toupper(substr(text, 1, 1)) substr(text, 2) : text
}

function add_error(tag, body)
{
    error_tag[++error_count] = tag
    error_body[error_count] = (about != "" && tag != "" ? about "(): " : "") body
}

# Takes a sentence about codes apart: its clauses are separated by semicolons.
function take_errors(text,   clauses, count, i, n, rest, list, k, names, before)
{
    before = ""
    sub(/\.$/, "", text)
    count = split(text, clauses, /; /)
    for (i = 1; i <= count; i++) {
        n = codes_length(clauses[i])
        if (n == 0) {
            if (error_count > 0)
                error_body[error_count] = error_body[error_count] (i == 1 ? ". " : "; ") clauses[i]
            else
                before = before (before == "" ? "" : "; ") clauses[i]
            continue
        }
        rest = substr(clauses[i], n + 1)
        list = substr(clauses[i], 1, n)
        sub(/^[:,]? */, "", rest)
        if (rest != "") {
            add_error(list, rest)
            continue
        }
        k = split(list, names, /, | and | or /)
        for (n = 1; n <= k; n++)
            add_error(names[n], general[names[n]])
    }
    if (before != "")
        returns = returns (returns == "" ? "" : " ") before "."
}

# True if the sentence begins with the last part of a name of the page: "from_dlpack: ...".
function is_about_one(text,   name)
{
    sub(/[: ].*/, "", text)
    for (name in own)
        if (length(text) < length(name) && substr(name, length(name) - length(text)) == "_" text)
            return 1
    return 0
}

# Distributes the comment of a page over described, returns and the errors.
function distribute(id, raw,   n, i, j, count, in_errors, kept, is_first, s)
{
    n = blocks(raw)
    described_count = error_count = 0
    returns = ""
    is_first = 1
    for (i = 1; i <= n; i++) {
        if (block_kind[i] != "text") {
            described[++described_count] = block_text[i]
            described_kind[described_count] = block_kind[i]
            continue
        }
        count = sentences(block_text[i])
        in_errors = 0
        about = block_text[i]           # a paragraph about one function of several begins with its name
        sub(/[: ].*/, "", about)
        if (!(about in own) || members[id] == " " about)
            about = ""
        kept = ""
        for (j = 1; j <= count; j++) {
            s = sentence[j]
            if (is_about_one(s)) {
                in_errors = 0
                kept = kept (kept == "" ? "" : " ") s
            } else if (codes_length(s) > 0 || s ~ /^(The c|C)odes (as|of) / || (in_errors && !is_first)) {
                in_errors = 1
                if (s ~ /^(The c|C)odes /) {
                    # The first clause names another function; codes follow it.
                    if (match(s, /; /)) {
                        add_error("", substr(s, 1, RSTART - 1))
                        take_errors(substr(s, RSTART + 2))
                    } else {
                        add_error("", s)
                    }
                } else {
                    take_errors(s)
                }
            } else if (!is_first && s ~ /^0[:;]/) {
                in_errors = 1
                take_errors(s)
            } else if (!is_first && s ~ /^(Returns |Returned |NULL:|NULL past)/) {
                returns = returns (returns == "" ? "" : " ") s
            } else {
                kept = kept (kept == "" ? "" : " ") s
            }
            is_first = 0
        }
        if (kept != "") {
            described[++described_count] = kept
            described_kind[described_count] = "text"
        }
    }
}

# A title: the first sentence without its full stop, or its first clause if it is long.
function title_of(raw,   n, title)
{
    n = blocks(raw)
    sentences(n > 0 ? block_text[1] : "")
    title = sentence[1]
    if (match(title, /[A-Za-z)]\. /))
        title = substr(title, 1, RSTART)
    sub(/[.:]$/, "", title)
    if (length(title) > 90 && match(title, /[;:] /))
        title = substr(title, 1, RSTART - 1)
    if (title ~ /^([A-Z][a-z]|A )/)
        title = tolower(substr(title, 1, 1)) substr(title, 2)
    return title
}

function put_parameters(text,   depth, i, c, part)
{
    depth = 0
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        depth += (c == "(") - (c == ")")
        if (c == "," && depth == 0) {
            put(".Fa \"" trim(part) "\"")
            part = ""
        } else {
            part = part c
        }
    }
    put(".Fa \"" trim(part) "\"")
}

function put_prototype(name,   text, at)
{
    text = prototype[name]
    at = index(text, name "(")
    put(".Ft \"" trim(substr(text, 1, at - 1)) "\"")
    put(".Fo " name)
    text = substr(text, at + length(name) + 1)
    sub(/\) ?;$/, "", text)
    put_parameters(text)
    put(".Fc")
}

# Puts the types that the page's prototypes name, and the enums in their fields.
function put_types(names, count,   i, j, wanted, said, said_last)
{
    for (j = 1; j <= type_count; j++)
        type_wanted[types[j]] = 0
    for (i = 1; i <= count; i++)
        for (j = 1; j <= type_count; j++)
            if (prototype[names[i]] ~ ("(^|[^a-z_0-9])" types[j] "([^a-z_0-9]|$)"))
                type_wanted[types[j]] = 1
    for (i = 1; i <= type_count; i++)
        for (j = 1; j <= type_count; j++)
            if (type_wanted[types[i]] && types[i] != types[j] &&
                type_code[types[i]] ~ ("(^|[^a-z_0-9])" types[j] "([^a-z_0-9]|$)"))
                type_wanted[types[j]] = 1
    wanted = 0
    for (j = 1; j <= type_count; j++) {
        if (!type_wanted[types[j]])
            continue
        if (!wanted++)
            put(".Ss Types")
        said = type_comment[types[j]]
        if (said && said != said_last && !(said in first_name) && !is_essay(said)) {
            if (wanted > 1)
                put(".Pp")
            put_essay(text_of[said])
        }
        said_last = said
        put_literal(type_code[types[j]])
    }
}

function put_head(title, chapter)
{
    put(".\\\" Made from the headers by lib/man/pages.awk.")
    put(".Dd " date)
    put(".Dt " title " " chapter)
    put(".Os Boxcar " version)
    put(".Sh NAME")
}

function library_of(of)
{
    return of == "boxcar.h" || of == "boxcar_trace.h" ? "boxcar" : \
        of == "boxcar_nn.h" || of == "boxcar_cuda.h" ? "boxcar_nn" : "boxcar_autograd"
}

function put_errors(id,   i, tagged)
{
    put(".Sh ERRORS")
    tagged = 0
    for (i = 1; i <= error_count; i++) {
        if (error_tag[i] == "") {
            if (tagged)
                put(".El")
            tagged = 0
            put_text(error_body[i] (error_body[i] ~ /\.$/ ? "" : "."))
            continue
        }
        if (!tagged)
            put(".Bl -tag -width Er")
        tagged = 1
        gsub(/-/, "\\-", error_tag[i])
        put(".It Dv " error_tag[i])
        if (error_body[i] != "")
            put_text(capital(error_body[i]) (error_body[i] ~ /\.$/ ? "" : "."))
    }
    if (tagged)
        put(".El")
    if (tagged)
        put(".Pp")
    put("The codes that every function may return are in")
    i = comment_header[id]
    sub(/\.h$/, "", i)
    if (i != "boxcar") {
        put(".Xr " i " 7")
        put("and")
    }
    put(".Xr boxcar 7 .")
}

# References to the other pages of the section, sorted, and to the page of the words.
function put_see_also(id,   i, j, list, count, swap)
{
    count = 0
    for (i = 1; i <= page_count; i++)
        if (pages[i] != id && comment_header[pages[i]] == comment_header[id] &&
            comment_section[pages[i]] == comment_section[id])
            list[++count] = first_name[pages[i]]
    for (i = 2; i <= count; i++)
        for (j = i; j > 1 && list[j] < list[j - 1]; j--) {
            swap = list[j]
            list[j] = list[j - 1]
            list[j - 1] = swap
        }
    put(".Sh SEE ALSO")
    for (i = 1; i <= count; i++)
        put(".Xr " list[i] " 3 ,")
    if (comment_header[id] == "boxcar.h") {
        put(".Xr boxcar 7")
    } else {
        put(".Xr boxcar 7 ,")
        i = comment_header[id]
        sub(/\.h$/, "", i)
        put(".Xr " i " 7")
    }
}

function put_page(id,   names, count, i, returns_int, lib)
{
    count = split(members[id], names, " ")
    split("", own)
    for (i = 1; i <= count; i++)
        own[names[i]] = 1
    file = out "/man3/" names[1] ".3"
    put_head(toupper(names[1]), 3)
    for (i = 1; i <= count; i++)
        put(".Nm " names[i] (i < count ? " ," : ""))
    put(".Nd " escape(title[id]))
    lib = library_of(comment_header[id])
    put(".Sh LIBRARY")
    put("Boxcar (lib" lib ", \\-l" lib "; pkg\\-config " lib ")")
    put(".Sh SYNOPSIS")
    put(".In " comment_header[id])
    returns_int = 0
    for (i = 1; i <= count; i++) {
        put_prototype(names[i])
        returns_int = returns_int || prototype[names[i]] ~ /^int bx_/
    }
    put(".Sh DESCRIPTION")
    distribute(id, text_of[id])
    for (i = 1; i <= described_count; i++) {
        if (described_kind[i] == "code") {
            put_literal(described[i])
            continue
        }
        if (i > 1)
            put(".Pp")
        put_text(described[i] (described[i] ~ /[.:]$/ ? "" : "."))
    }
    for (i = 1; i <= count; i++)
        if (trailing[names[i]] != "") {
            put(".Pp")
            put(".Fn " names[i] " :")
            put_text(trailing[names[i]] ".")
        }
    put_types(names, count)
    if (returns != "" || returns_int) {
        put(".Sh RETURN VALUES")
        if (returns != "")
            put_text(returns)
        if (returns != "" && returns_int)
            put(".Pp")
        if (returns_int)
            put_text("A function that returns int returns 0 or more on success, else a negative code; bx_error_text " \
                     "then has a sentence about it.")
    }
    if (returns_int || error_count > 0)
        put_errors(id)
    put_see_also(id)
    close(file)
    for (i = 2; i <= count; i++) {
        file = out "/man3/" names[i] ".3"
        put(".so man3/" names[1] ".3")
        close(file)
    }
}

# ---- Pages of headers --------------------------------------------------------------------------------------

function is_essay(id)
{
    return !(id in first_name) && !(id in has_types)
}

function put_section_texts(of, name,   i, found)
{
    found = 0
    for (i = 1; i <= comments; i++)
        if (comment_header[i] == of && comment_section[i] == name && is_essay(i)) {
            if (found++)
                put(".Pp")
            put_essay(text_of[i])
        }
    return found
}

function put_functions(of, name,   i, begun)
{
    for (i = 1; i <= page_count; i++) {
        if (comment_header[pages[i]] != of || comment_section[pages[i]] != name)
            continue
        if (!begun++)
            put(".Bl -tag -width Ds -compact")
        put(".It Xr " first_name[pages[i]] " 3")
        put_text(title[pages[i]])
    }
    if (begun)
        put(".El")
}

function head_of(of,   i)
{
    for (i = 1; i <= comments; i++)
        if (comment_header[i] == of && comment_section[i] == "head")
            return i
    return 0
}

function put_header_page(of,   name, text, id, i)
{
    name = of
    sub(/\.h$/, "", name)
    file = out "/man7/" name ".7"
    id = head_of(of)
    text = text_of[id]
    if (id == 0 || !sub(/^ *\n?[a-z_]+\.h - /, "", text)) {
        complain(of ": its first comment does not begin with its name and a sentence")
        return
    }
    put_head(toupper(name), 7)
    put(".Nm " name)
    put(".Nd " escape(title_of(text)))
    put(".Sh SYNOPSIS")
    put("cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs " library_of(of) ")")
    put(".Pp")
    put(".In " of)
    put(".Sh DESCRIPTION")
    put_essay(toupper(substr(text, 1, 1)) substr(text, 2))
    put(".Sh FUNCTIONS")
    put_functions(of, "head")
    for (i = 1; i <= section_count[of]; i++) {
        put(".Ss " sections[of, i])
        put_section_texts(of, sections[of, i])
        put_functions(of, sections[of, i])
    }
    put(".Sh SEE ALSO")
    put(".Xr boxcar 7")
    close(file)
}

# boxcar.7: the text written by hand, with the header's texts where it names them.
function put_words_page(   line, name, text)
{
    file = out "/man7/boxcar.7"
    while ((getline line < words) > 0) {
        if (line !~ /^\.\\" (include|functions) /) {
            put(line == ".Os" ? line " Boxcar " version : line)
            continue
        }
        name = line
        sub(/^\.\\" (include|functions) /, "", name)
        if (line ~ /^\.\\" functions/) {
            put_functions("boxcar.h", name)
        } else if (name == "head") {
            text = text_of[head_of("boxcar.h")]
            sub(/^ *\n?[a-z_]+\.h - [^\n]*\n/, "", text)
            put_essay(text)
        } else if (put_section_texts("boxcar.h", name) == 0) {
            complain(words ": boxcar.h has no text in a section '" name "'")
        }
    }
    close(file)
}

# The general texts of codes: those of BX_ERRORS, and of the errnos that are listed without a text.
function learn_codes(path,   line, name, text)
{
    general["-ENOMEM"] = "there is no memory"
    general["-EINVAL"] = "an argument is wrong; the sentence says which"
    general["-EOVERFLOW"] = "a size is too large for its type"
    general["-EAGAIN"] = "it would have to wait for room"
    general["-errno"] = "what the system call returned"
    while ((getline line < path) > 0)
        if (line ~ /^    X\(BX_E_/) {
            name = line
            sub(/^    X\(/, "", name)
            sub(/,.*/, "", name)
            text = line
            sub(/^[^"]*"/, "", text)
            sub(/".*/, "", text)
            general[name] = text
        }
    close(path)
}

function learn_date(   line)
{
    while ((getline line < words) > 0)
        if (line ~ /^\.Dd /)
            date = substr(line, 5)
    close(words)
}

END {
    if (bad)
        exit 1
    split("", own)
    learn_codes(main_header)
    learn_date()
    for (i = 1; i <= page_count; i++) {
        title[pages[i]] = title_of(text_of[pages[i]])
        if (title[pages[i]] == "" || codes_length(title[pages[i]]) > 0)
            complain(comment_header[pages[i]] ": the comment of " first_name[pages[i]] " does not begin with a " \
                     "sentence about what it does: '" title[pages[i]] "'")
    }
    for (i = 1; i <= page_count && !bad; i++)
        put_page(pages[i])
    for (i = 1; i <= header_count && !bad; i++)
        if (headers[i] != "boxcar.h")
            put_header_page(headers[i])
    if (!bad)
        put_words_page()
    exit bad
}
