/* SPDX-License-Identifier: MIT */
/*
 * What the fuzz targets share. fuzz.c has the table of them, and says how they run.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "job/job.h"

#include <stddef.h>
#include <stdint.h>

/* A job of two workers in this process, without background threads: 0 is attacked, 1 is hostile. */
extern struct bx_job *fuzz_job[2];
void fuzz_pair_begin(void);
void fuzz_pair_end(void);
int fuzz_register(struct bx_job *job);          /* the functions of both workers; fuzz_frame.c */

/* Ends the process: what must hold does not. */
#define FUZZ_CHECK(condition) ((condition) ? (void)0 : fuzz_failed(__FILE__, __LINE__, #condition))
_Noreturn void fuzz_failed(const char *file, int line, const char *condition);

/* Takes up to `most` bytes off the input into `to`, of which the rest becomes 0. How many. */
struct fuzz_input {
    const uint8_t *data;
    size_t bytes;
};
size_t fuzz_take(struct fuzz_input *input, void *to, size_t most);

void fuzz_boot(struct fuzz_input input);
void fuzz_frame(struct fuzz_input input);
void fuzz_lease(struct fuzz_input input);
void fuzz_stat(struct fuzz_input input);

#endif
