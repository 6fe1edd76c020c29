/* SPDX-License-Identifier: MIT */
/*
 * What the answers mean together: the order that Boxcar has chosen itself (ask_boxcar.c), and whether the answers
 * across two processes bear it out.
 */
#include "gpucheck.h"

#include "gpu/cuda_driver.h"
#include "gpu/shared.h"

#include <math.h>
#include <stdio.h>

static bool is_good(const char *key)
{
    return check_reported(key) == CHECK_GOOD;
}

static bool goes_by_fd(void)
{
    return check_reported_value("boxcar.memory") > 0;
}

/* NULL: none. */
static const char *reason_of_refusal(void)
{
    if (check_reported("driver.mode") == CHECK_BAD)
        return "the device's mode admits one process at most";
    if (goes_by_fd())
        return NULL;
    if (check_reported("handle.export") == CHECK_BAD)
        return "it cannot be exported, so Boxcar does not open the device";
    if (check_reported("handle.open") == CHECK_BAD)
        return "handles of it cannot be opened, so tensors go through host memory";
    return check_reported("handle.contents") == CHECK_BAD ? "what another process reads is wrong" : NULL;
}

bool check_is_refused(void)
{
    return reason_of_refusal() != NULL;
}

const char *check_order_name(unsigned order)
{
    static const char *const names[] = { "none", "HOST_WORDS", "EVENTS" };

    return names[order < sizeof(names) / sizeof(names[0]) ? order : 0];
}

static const char *meaning_of(unsigned order)
{
    static const char *const meanings[] = {
        "", "streams of two processes wait for each other by words in /dev/shm, and no host waits",
        "hosts wait for words that hosts write when the driver calls them",
    };

    return meanings[order];
}

/* The line that tells whether the order works across processes; NULL: there is no order. Peers register the words' page
 * read-only if the driver takes that, whether the wait is then right or not; else writable. */
static const char *line_of(unsigned order)
{
    const char *const lines[] = {
        NULL, is_good("register.read_only") ? "words.read_only.stream" : "words.host.stream", "events",
    };

    return lines[order];
}

const char *check_order(char why[CHECK_TEXT_BYTES])
{
    double chosen = check_reported_value("boxcar.order");
    unsigned order = isfinite(chosen) ? (unsigned)chosen : 0;
    const char *line = line_of(order);
    bool is_few = bxi_cu_connections() < BXI_CU_CONNECTIONS_LEAST;

    if (check_is_refused())
        snprintf(why, CHECK_TEXT_BYTES, "Processes cannot share this device's memory: %s.", reason_of_refusal());
    else if (goes_by_fd() && !is_good("handle.contents"))
        snprintf(why, CHECK_TEXT_BYTES, "Processes can share this device's memory by file descriptors. Boxcar's trial "
                 "chose %s; whether that works across processes is unknown here, because the questions about that need "
                 "handles of CUDA IPC.", check_order_name(order));
    else if (!is_good("handle.contents"))
        snprintf(why, CHECK_TEXT_BYTES, "It is unknown whether processes can share this device's memory: "
                 "handle.contents has no answer.");
    else if (order == 0)
        snprintf(why, CHECK_TEXT_BYTES, "Boxcar has chosen no order: see boxcar.order.");
    else
        snprintf(why, CHECK_TEXT_BYTES, "Boxcar will use %s: %s.%s%s%s%s Memory goes %s.", check_order_name(order),
                 meaning_of(order),
                 order == BXI_GPU_EVENTS && is_few ? " Not words: CUDA_DEVICE_MAX_CONNECTIONS is below 4." : "",
                 line != NULL && !is_good(line) ? " Not borne out across processes: see " : "",
                 line != NULL && !is_good(line) ? line : "", line != NULL && !is_good(line) ? "." : "",
                 goes_by_fd() ? "as file descriptors, which borrowers map for reading only"
                              : "by handles of CUDA IPC");
    return check_is_refused() || !is_good("handle.contents") || order == 0 ? NULL : check_order_name(order);
}
