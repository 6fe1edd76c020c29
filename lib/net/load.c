/* SPDX-License-Identifier: MIT */
/*
 * Finds and loads the plug-in: where the loader looks, then beside this program or library, then in ../lib of that.
 *
 * UCX takes SIGBUS, SIGSEGV and others for itself when it is loaded. They stay what they were: the program's, and that
 * of shm/guard.c.
 *
 * It also writes jumps into its own code over the first bytes of mmap, munmap, sbrk and others, to hear of what is
 * unmapped: when it is loaded, or in ucp_init. A thread that is in one of them at this moment runs half of an
 * instruction; UCX's own tests crash so (openucx/ucx pull requests 11647 and 11795). And sbrk(0) then sets the break,
 * without a lock: beside it malloc loses what it has just added to the heap. UCX_MEM_EVENTS=n forbids it: UCX reads it
 * when it is loaded, and does without its cache of registered memory. Where the program has loaded UCX before, UCX
 * keeps what it read then.
 */
#include "net.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int here;

/* Local, and not deep: its names do not replace anybody's. NULL: it is not there. */
static void *try_beside(const char *between)
{
    char path[4096];
    Dl_info info;
    char *slash;
    ssize_t length;

    if (dladdr(&here, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    if (info.dli_fname[0] == '/')
        length = snprintf(path, sizeof path, "%s", info.dli_fname);
    else                                /* a program, as it was called; it may have changed its folder since */
        length = readlink("/proc/self/exe", path, sizeof path);
    if (length < 0 || (size_t)length >= sizeof path)
        return NULL;
    path[length] = '\0';
    slash = strrchr(path, '/');
    length = slash == NULL ? 0 : slash - path + 1;
    if (snprintf(path + length, sizeof path - (size_t)length, "%s" BXI_WIRE_PLUGIN, between) >=
        (int)(sizeof path - (size_t)length))
        return NULL;
    return slash != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* NULL: it is nowhere; why is the loader's sentence. */
static void *find(char *why, size_t why_bytes)
{
    void *library = dlopen(BXI_WIRE_PLUGIN, RTLD_NOW | RTLD_LOCAL);

    snprintf(why, why_bytes, "%s", library != NULL ? "" : dlerror());
    if (library == NULL)
        library = try_beside("");
    return library != NULL ? library : try_beside("../lib/");
}

/* find() with UCX_MEM_EVENTS=n in the environment, unless it is set. environ is replaced and not changed, and the copy
 * stays allocated until another one is needed: another thread may be reading it, which setenv would not allow. */
static void *find_without_events(char *why, size_t why_bytes)
{
    static char events[] = "UCX_MEM_EVENTS=n";
    static char **with;
    char **const given = environ;
    size_t count = 0;
    void *library;

    if (secure_getenv("UCX_MEM_EVENTS") != NULL)
        return find(why, why_bytes);
    while (given != NULL && given[count] != NULL)
        count++;
    free(with);
    with = calloc(count + 2, sizeof *with);
    if (with == NULL) {
        snprintf(why, why_bytes, "no memory");
        return NULL;
    }
    if (count > 0)
        memcpy(with, given, count * sizeof *with);
    with[count] = events;
    environ = with;
    library = find(why, why_bytes);
    environ = given;
    return library;
}

/* Signals and environment are afterwards as before. */
static void *load(char *why, size_t why_bytes)
{
    struct sigaction actions[NSIG];
    void *library;

    for (int i = 1; i < NSIG; i++)
        if (sigaction(i, NULL, &actions[i]) < 0)
            actions[i].sa_handler = SIG_ERR;            /* of glibc's own */
    library = find_without_events(why, why_bytes);
    for (int i = 1; i < NSIG; i++)
        if (actions[i].sa_handler != SIG_ERR && i != SIGKILL && i != SIGSTOP)
            sigaction(i, &actions[i], NULL);
    return library;
}

int bxi_wire_load(const struct bxi_wire_ops **ops)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static void *loaded;                /* once for all jobs of the process */
    const struct bxi_wire_ops *(*plugin)(void);
    void *library;
    char why[256] = "";

    pthread_mutex_lock(&mutex);
    if (loaded == NULL)
        loaded = load(why, sizeof why);
    library = loaded;
    pthread_mutex_unlock(&mutex);
    if (library == NULL)
        return bx_fail(-ENOENT, "a job of several hosts (BX_ROOT) needs " BXI_WIRE_PLUGIN ": %s; `make` builds it "
                                "where libucx-dev and libssl-dev are installed", why);
    *(void **)&plugin = dlsym(library, "bxi_wire_plugin");
    *ops = plugin != NULL ? plugin() : NULL;
    if (*ops == NULL || (*ops)->version != BXI_WIRE_VERSION)
        return bx_fail(BX_E_VERSION, BXI_WIRE_PLUGIN " is of another version");
    return 0;
}
