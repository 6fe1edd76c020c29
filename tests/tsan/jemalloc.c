/* SPDX-License-Identifier: MIT */
/*
 * The mutexes of jemalloc under ThreadSanitizer: the C library's functions, not the sanitizer's. jemalloc is not
 * compiled for the sanitizer, which would know some of its mutexes as what they were before their memory was given
 * out again.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

typedef int (*mutex_fn)(pthread_mutex_t *mutex);

int bxi_plain_mutex_lock(pthread_mutex_t *mutex);
int bxi_plain_mutex_trylock(pthread_mutex_t *mutex);
int bxi_plain_mutex_unlock(pthread_mutex_t *mutex);
int bxi_plain_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);

struct plain {
    mutex_fn lock, trylock, unlock;
    int (*init)(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
};

static void find(void *libc, const char *name, void *function)
{
    void *address = dlsym(libc, name);

    memcpy(function, &address, sizeof address);
}

/* jemalloc is initialised by one thread at a time (shm/arena_pages.c). */
static const struct plain *find_plain(void)
{
    static struct plain plain;

    if (plain.init == NULL) {
        void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);

        find(libc, "pthread_mutex_lock", &plain.lock);
        find(libc, "pthread_mutex_trylock", &plain.trylock);
        find(libc, "pthread_mutex_unlock", &plain.unlock);
        find(libc, "pthread_mutex_init", &plain.init);
    }
    return &plain;
}

int bxi_plain_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    return find_plain()->init(mutex, attributes);
}

int bxi_plain_mutex_lock(pthread_mutex_t *mutex)
{
    return find_plain()->lock(mutex);
}

int bxi_plain_mutex_trylock(pthread_mutex_t *mutex)
{
    return find_plain()->trylock(mutex);
}

int bxi_plain_mutex_unlock(pthread_mutex_t *mutex)
{
    return find_plain()->unlock(mutex);
}
