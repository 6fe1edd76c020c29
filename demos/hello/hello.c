/* SPDX-License-Identifier: MIT */
/*
 * hello: the smallest job of separate programs. Each is started by hand with BX_JOB, BX_RANK and BX_WORLD_SIZE (and
 * BX_NAME if it wants a name). Rank 0 asks every other worker for a greeting and prints the answers; then all leave
 * together.
 */
#include <boxcar.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int greet(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    char text[128];

    (void)args, (void)context;
    snprintf(text, sizeof text, "hello, rank %d, from %s (pid %d)", bx_request_caller(request),
             bx_job_name(bx_request_job(request)), (int)getpid());
    return bx_msg_put_str(reply, text);
}

static int ask_everybody(struct bx_job *job)
{
    for (int rank = 1; rank < bx_job_world_size(job); rank++) {
        char *greeting;
        int rc = bx_call(job, bx_rank(rank), "greet", ">s", &greeting);

        if (rc < 0)
            return rc;
        printf("%s\n", greeting);
        free(greeting);
    }
    return 0;
}

/* The exit status: `status`, or 1 after a sentence if output was lost. */
static int end(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "hello: the output cannot be written\n");
    return 1;
}

int main(int argc, char **argv)
{
    struct bx_job *job = NULL;
    int rc;

    if (argc > 1) {
        bool version = strcmp(argv[1], "--version") == 0;
        bool help = strcmp(argv[1], "--help") == 0;

        if (version)
            printf("hello (Boxcar) %s\n", bx_version());
        else
            fprintf(help ? stdout : stderr,
                    "usage: BX_JOB=name BX_WORLD_SIZE=n BX_RANK=r [BX_NAME=name] hello [--help] [--version]\n"
                    "Start it n times, with ranks 0 to n-1; rank 0 asks the others for a greeting.\n");
        return end(version || help ? 0 : 2);
    }
    rc = bx_job_create(NULL, &job);
    if (rc == 0 && (rc = bx_register(job, "greet", BX_INLINE, greet, NULL)) == 0 &&
        (rc = bx_job_start(job)) == 0) {
        if (bx_job_rank(job) == 0)
            rc = ask_everybody(job);
        if (rc == 0)
            rc = bx_job_shutdown(job, 0);
    }
    if (rc < 0)
        fprintf(stderr, "hello: %s\n", bx_error_text());
    bx_job_destroy(job);
    return end(rc < 0);
}
