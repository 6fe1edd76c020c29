/* SPDX-License-Identifier: MIT */
/* What test_trace_file.c and test_trace_write.c share: a file of BX_TRACE for each test, and what writes it. */
#ifndef TESTS_TRACE_FILE_FIXTURE_H
#define TESTS_TRACE_FILE_FIXTURE_H

#include "tests/harness/test.h"
#include "observe/trace.h"

#include "tests/harness/json.h"

#include <sys/file.h>

#define FIRST ",\"job\":\"j\"}}"
#define EVENT(name) "\n,{\"name\":\"" name "\",\"ph\":\"i\"}"

static char path[64];

static inline void choose_path(void)
{
    snprintf(path, sizeof path, "/tmp/boxcar-trace-file-%ld.json", (long)getpid());
    unlink(path);
}

static inline void remove_file(void)
{
    unlink(path);
}

static inline struct bxi_trace_file begin(uint64_t instance)
{
    struct bxi_trace_file file = { bxi_trace_file_begin(path, instance, FIRST), instance };

    cr_assert_geq(file.fd, 0);
    return file;
}

static inline int append(const struct bxi_trace_file *file, const char *events)
{
    char text[256];

    strcpy(text, events);
    return bxi_trace_file_append(file, text, strlen(events));
}

#endif
