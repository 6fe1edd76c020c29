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
# How this one differs: its functions have other names, malloc and free not being among them; all but a few are local
# to the one object file; and it finds its data of a thread by pthread_getspecific. Not by thread-local storage of
# another model: the library has one block of thread-local storage, and its own hot variables need that to be static.
set -eu

dir=$2
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
work=$dir/work.$$
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# What shm/arena_pages.c and its tests call.
keep='mallocx dallocx sallocx nallocx mallctl mallctlnametomib'

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

# The options are those of Debian's package but for the names, the model, and what nobody needs here. force_tls is
# configure's variable for systems without thread-local storage; there is no option.
configure()
{
    case $(uname -m) in i?86 | x86_64) page=12 ;; *) page=16 ;; esac
    flags="-O2 -g1 -ffile-prefix-map=$PWD=. -ffile-prefix-map=src/=jemalloc/src/"
    force_tls=0 CFLAGS=$flags CPPFLAGS='' LDFLAGS='' ./configure \
        --with-version=VERSION --with-jemalloc-prefix=bxi_je_ --with-private-namespace=bxi_ --without-export \
        --disable-cxx --disable-libdl --disable-doc --with-lg-page="$page" --with-lg-hugepage=21
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
        configure && "${MAKE:-make}" -j"$(nproc)" lib/libjemalloc_pic.a &&
            ${CC:-cc} -nostdlib -r -o all.o -Wl,--whole-archive lib/libjemalloc_pic.a &&
            objcopy $names all.o ../jemalloc.o
    ) >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; return 1; }
    rm -rf "$dir/include"
    mv "$work/tree/include" "$dir/include"
    mv "$work/jemalloc.o" "$dir/jemalloc.o"
}

"$1"
