/* SPDX-License-Identifier: MIT */
/*
 * own.h. Each thread reads and writes its own pointers alone. Destructors of other data of the thread may run later and
 * make a block again: the C library then runs the one below again, four times at most.
 */
#include "own.h"

#include <pthread.h>
#include <stdlib.h>

static _Thread_local void *blocks[BXI_OWN_COUNT];
static pthread_key_t key;               /* its value, blocks, makes the C library call end_thread */
static int key_error;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

static void end_thread(void *own_blocks)
{
    (void)own_blocks;
    for (int i = 0; i < BXI_OWN_COUNT; i++) {
        free(blocks[i]);
        blocks[i] = NULL;
    }
}

static void make_key(void)
{
    key_error = pthread_key_create(&key, end_thread);
}

void *bxi_own_find(enum bxi_own which)
{
    return blocks[which];
}

void *bxi_own_make(enum bxi_own which, size_t bytes)
{
    if (blocks[which] != NULL)
        return blocks[which];
    pthread_once(&key_once, make_key);
    if (key_error != 0 || pthread_setspecific(key, blocks) != 0)
        return NULL;
    blocks[which] = calloc(1, bytes);
    return blocks[which];
}
