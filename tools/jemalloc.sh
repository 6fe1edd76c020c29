#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Boxcar's own jemalloc: `jemalloc.sh get DIR` puts its source into DIR/source, `jemalloc.sh build DIR` makes
# DIR/jemalloc.o and DIR/include of that. `make deps` does the first, the Makefile the second.
#
# Why not the system's libjemalloc: it replaces malloc in the whole process, and it uses 2.6 KB of static thread-local
# storage (its code is compiled for the initial-exec model). glibc keeps about 1.5 KB of that for libraries that
# dlopen loads, so dlopen of a library that needs libjemalloc fails. The same code is in Debian's libjemalloc_pic.a.
#
# How this one differs:
# - Its functions have other names, malloc and free not being among them. All but a few are local to the object file.
# - It has no data of a thread. Its own way allocates some for each thread, and aborts where that fails: in the first
#   tensor of a thread, in fork, in a constructor. Here there are four static structs of that data, and a thread says
#   which one it uses: bxi_je_use. At most one thread at a time may use one (shm/arena_pages.c has the locks). So it
#   needs no handlers of fork either, nor thread caches.
# - It does nothing while it is loaded. Its first call initialises it. If that fails, the next call tries again.
# - The records of a destroyed arena are unmapped. jemalloc keeps their address space, 2 MiB an arena, and never uses
#   it again: base_unmap asks extent_dalloc_mmap, which refuses while opt.retain is set.
set -eu

dir=$2
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
work=$dir/work.$$
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# What shm/arena_pages.c and its tests call.
keep='mallocx dallocx sallocx nallocx mallctl mallctlnametomib use'

# Every place of packages that this machine has, as a place of sources, in lists of our own: the machine's stay as
# they are, and no rights are needed.
source_lists()
{
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -f "$list" ] || sed -n 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$list"
    done >"$work/apt/parts/all.list"
    for list in /etc/apt/sources.list.d/*.sources; do
        [ ! -f "$list" ] || sed 's/^Types:.*/Types: deb-src/' "$list" >"$work/apt/parts/${list##*/}"
    done
}

with_sources()
{
    apt-get -q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/apt/parts" \
        -o Dir::State::Lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" "$@" >>"$work/log" 2>&1
}

get()
{
    [ ! -x "$dir/source/configure" ] || return 0
    mkdir -p "$work/apt/parts" "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    if command -v apt-get >/dev/null; then
        echo "fetching the source of jemalloc by apt-get"
        source_lists
        # A place without sources is an error of update; whether there is one with jemalloc is seen next.
        with_sources update || :
        # As root, apt would fetch as another user, who may not write here.
        (cd "$work" && with_sources -o APT::Sandbox::User=root source jemalloc) || tail -n 3 "$work/log" >&2
    fi
    for source in "$work"/jemalloc-*/; do
        if [ -x "$source/configure" ]; then
            rm -rf "$dir/source"
            mv "$source" "$dir/source"
            return 0
        fi
    done
    echo "jemalloc's source could not be fetched: no network, or no place of packages here has sources too." >&2
    echo "Unpack a release of jemalloc, 5.3 or later, so that $dir/source/configure is there." >&2
    return 1
}

# Replaces the one line of FILE that is WAS: change FILE WAS IS.
change()
{
    if [ "$(grep -c "^$2\$" "$1")" != 1 ]; then
        echo "jemalloc's $1 has not one line '$2': this release needs another change (tools/jemalloc.sh)" >&2
        return 1
    fi
    sed "s/^$2\$/$3/" "$1" >changed
    cat changed >"$1"
}

# The options are those of Debian's package but for the names and what nobody needs here. force_tls is configure's
# variable for systems without thread-local storage, the other two its memory of tests; there are no options.
# Without sbrk, which it would turn to where mmap fails: sbrk has no lock, and malloc of the program calls it, too.
# JEMALLOC_MALLOC_THREAD_CLEANUP is the way without pthread_setspecific, which edit completes.
# Without trust_madvise the start tries madvise on a page, and writes to it also if there is none.
configure()
{
    case $(uname -m) in i?86 | x86_64) page=12 ;; *) page=16 ;; esac
    flags="-O2 -g1 -ffile-prefix-map=$PWD=. -ffile-prefix-map=src/=jemalloc/src/"
    force_tls=0 je_cv_pthread_atfork=no ac_cv_func_sbrk=no CFLAGS=$flags LDFLAGS='' \
        CPPFLAGS='-DJEMALLOC_MALLOC_THREAD_CLEANUP -D__thread=' ./configure \
        --with-version=VERSION --with-jemalloc-prefix=bxi_je_ --with-private-namespace=bxi_ --without-export \
        --with-malloc-conf=tcache:false,trust_madvise:true --disable-initial-exec-tls \
        --disable-cxx --disable-libdl --disable-doc --with-lg-page="$page" --with-lg-hugepage=21
}

# With JEMALLOC_THREADED_INIT a thread that comes after a failed initialisation would wait for the one that failed.
# Threads of its own (which an environment variable of its own asks for) would not take the lock.
edit()
{
    tab=$(printf '\t')
    defs=include/jemalloc/internal/jemalloc_internal_defs.h
    tsd=include/jemalloc/internal/tsd_malloc_thread_cleanup.h
    pointer='extern _Thread_local tsd_t *bxi_tsd __attribute__((tls_model("initial-exec")))'
    change "$defs" '#define JEMALLOC_THREADED_INIT *' '' &&
        change "$defs" '#define JEMALLOC_BACKGROUND_THREAD *' '' &&
        change src/extent_mmap.c "${tab}if (!opt_retain) {" "${tab}{" &&
        change src/extent_mmap.c "${tab}return opt_retain;" "${tab}return false;" &&
        change "$tsd" 'extern bool tsd_booted;' "extern bool tsd_booted;\n$pointer;" &&
        change "$tsd" "${tab}return &tsd_tls;" "${tab}return bxi_tsd;" &&
        change "$tsd" "${tab}if (likely(&tsd_tls != val)) {" "${tab}if (likely(bxi_tsd != val)) {" &&
        change "$tsd" "${tab}${tab}tsd_tls = (\*val);" "${tab}${tab}*bxi_tsd = (*val);" &&
        cat >>src/tsd.c <<'EOF'

_Thread_local tsd_t *bxi_tsd __attribute__((tls_model("initial-exec")));
static tsd_t slots[] = { TSD_INITIALIZER, TSD_INITIALIZER, TSD_INITIALIZER, TSD_INITIALIZER };
void bxi_use(unsigned slot) __asm__("bxi_je_use");
void bxi_use(unsigned slot) { bxi_tsd = &slots[slot]; }
EOF
}

# What the head of this file says, of the object, in which only bxi_tsd is a thread's: a release with other names for
# the same things must not pass.
verify()
{
    if nm "$1" | grep -E ' (pthread_(create|key_create|[gs]etspecific|atfork)|__tls_get_addr|sbrk)$' ||
        readelf -SW "$1" | grep -vE ' \.tbss +NOBITS +0+ [0-9a-f]+ 000008 ' |
        grep -E ' \.(tbss|tdata|init_array|ctors)'; then
        echo "jemalloc has threads, data of a thread, handlers of fork, constructors or sbrk (tools/jemalloc.sh)" >&2
        return 1
    fi
}

build()
{
    mkdir "$work"
    cp -R "$dir/source" "$work/tree"
    names=
    for name in $keep; do
        names="$names --keep-global-symbol=bxi_je_$name"
    done
    # Words on purpose: names are options.
    # shellcheck disable=SC2086
    (
        cd "$work/tree"
        # Without the flags and variables that this run was started with: they are Boxcar's.
        unset MAKEFLAGS MFLAGS MAKELEVEL
        configure && edit && "${MAKE:-make}" -j"$(nproc)" lib/libjemalloc_pic.a &&
            ${CC:-cc} -nostdlib -r -o all.o -Wl,--whole-archive lib/libjemalloc_pic.a &&
            objcopy $names --remove-section='.init_array*' --remove-section='.rela.init_array*' all.o ../jemalloc.o &&
            verify ../jemalloc.o
    ) >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; return 1; }
    rm -rf "$dir/include"
    mv "$work/tree/include" "$dir/include"
    mv "$work/jemalloc.o" "$dir/jemalloc.o"
}

"$1"
