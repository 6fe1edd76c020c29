/* SPDX-License-Identifier: MIT */
/*
 * The memory of async calls. A thread keeps the calls that it frees, so many at most, and takes its next ones from
 * them: malloc keeps seven blocks of a size for a thread, and a program has more calls in flight than that. Any thread.
 *
 * A thread that ends frees what it keeps. The sanitizers' builds keep nothing, so that a call that is used after it was
 * freed is found.
 */
#include "rpc.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KEPT_MOST 0u
#else
#define KEPT_MOST 64u               /* 17 KB of a thread */
#endif

struct kept {
    struct bxi_call *head;
    uint32_t count;
    bool ends;                  /* free_kept runs when the thread ends */
};
static _Thread_local struct kept kept;

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int key_error;

static void free_kept(void *value)
{
    struct kept *mine = value;

    while (mine->head != NULL) {
        struct bxi_call *call = mine->head;

        mine->head = call->next;
        free(call);
    }
    mine->count = KEPT_MOST;    /* what other destructors of the thread free now is not kept */
}

static void make_key(void)
{
    key_error = pthread_key_create(&key, free_kept);
}

static bool may_keep(void)
{
    if (kept.ends)
        return true;
    pthread_once(&key_once, make_key);
    kept.ends = key_error == 0 && pthread_setspecific(key, &kept) == 0;
    return kept.ends;
}

struct bxi_call *bxi_call_alloc(void)
{
    struct bxi_call *call = kept.head;

    if (call == NULL)
        return malloc(sizeof *call + BXI_SMALL_REPLY);
    kept.head = call->next;
    kept.count--;
    return call;
}

void bxi_call_free(struct bxi_call *call)
{
    if (kept.count + 1 > KEPT_MOST || !may_keep()) {
        free(call);
        return;
    }
    call->next = kept.head;
    kept.head = call;
    kept.count++;
}
