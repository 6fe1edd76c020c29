/* SPDX-License-Identifier: MIT */
/*
 * Which order Boxcar chooses on this device, by the same rules as gpu/probe.c and gpu/peer.c: the first of HOST_WORDS,
 * DEVICE_WORDS, EVENTS and HOST_SYNC that works. Peers register the words' page read-only if the driver takes that,
 * whether the wait is then right or not; else writable. Words need several hardware queues besides, so that a stream
 * that waits does not hold up the poison.
 */
#include "gpucheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS_MIN 4               /* as BXI_GPU_CONNECTIONS_LEAST */

static bool is_good(const char *key)
{
    return check_reported(key) == CHECK_GOOD;
}

/* Why HOST_WORDS is not chosen; NULL: it is. */
static const char *against_host_words(void)
{
    bool is_read_only = is_good("register.read_only");

    if (!is_good("register.owner"))
        return "a page of /dev/shm cannot be registered";
    if (!is_read_only && !is_good("register.writable"))
        return "a peer's page cannot be registered";
    if (!is_good(is_read_only ? "words.read_only.stream" : "words.host.stream"))
        return "a stream's wait for a word in /dev/shm is wrong";
    if (!is_good(is_read_only ? "words.read_only.host" : "words.host.host"))
        return "a host does not release a stream";
    return NULL;
}

/* Why words of either kind are not chosen; NULL: they may be. */
static const char *against_words(void)
{
    const char *variable = "CUDA_DEVICE_MAX_CONNECTIONS", *text = getenv(variable);
    double lanes = check_reported_value("queues.32");
    long connections = text != NULL ? strtol(text, NULL, 10) : 0;

    if (connections >= 1 && connections < CONNECTIONS_MIN)
        return "CUDA_DEVICE_MAX_CONNECTIONS is below 4";
    if (isfinite(lanes) && lanes < CHECK_LANES_MIN)
        return "streams that wait hold up the side stream";
    return NULL;
}

static const char *against_device_words(void)
{
    return is_good("words.device.stream") ? NULL : "a stream's wait for a word in a peer's memory is wrong";
}

/* As gpu/device.c chooses: memory goes as descriptors. */
static bool goes_by_fd(void)
{
    const char *wanted = getenv("BX_GPU_EXPORT");

    return is_good("descriptor.contents") && (wanted == NULL || strcmp(wanted, "handle") != 0);
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

static const char *choose(char *why, size_t room)
{
    const char *queues = against_words();
    const char *host = queues != NULL ? queues : against_host_words();
    const char *device = queues != NULL ? queues : against_device_words();

    if (check_is_refused()) {
        snprintf(why, room, "Processes cannot share this device's memory: %s.", reason_of_refusal());
        return NULL;
    }
    if (goes_by_fd() && !is_good("handle.contents")) {
        snprintf(why, room, "Processes can share this device's memory by file descriptors. Which order Boxcar will use "
                 "is unknown here, because the questions about that need handles of CUDA IPC.");
        return NULL;
    }
    if (!is_good("handle.contents")) {
        snprintf(why, room, "It is unknown whether processes can share this device's memory: handle.contents has no "
                 "answer.");
        return NULL;
    }
    if (host == NULL) {
        snprintf(why, room, "Boxcar will use HOST_WORDS: streams of two processes wait for each other by words in "
                 "/dev/shm, and no host waits.");
        return "HOST_WORDS";
    }
    if (device == NULL) {
        snprintf(why, room, "Boxcar will use DEVICE_WORDS: streams wait for words in device memory. Not HOST_WORDS: "
                 "%s.", host);
        return "DEVICE_WORDS";
    }
    if (is_good("events")) {
        snprintf(why, room, "Boxcar will use EVENTS: streams wait for events of other processes. Not HOST_WORDS: %s. "
                 "Not DEVICE_WORDS: %s.", host, device);
        return "EVENTS";
    }
    snprintf(why, room, "Boxcar will use HOST_SYNC: the host waits for its stream before it sends. Not HOST_WORDS: "
             "%s. Not DEVICE_WORDS: %s. Not EVENTS: they do not work between processes.", host, device);
    return "HOST_SYNC";
}

const char *check_order(char *why, size_t room)
{
    const char *order = choose(why, room);
    size_t used = strlen(why);

    if (order != NULL)
        snprintf(why + used, room - used, " Memory goes %s.",
                 goes_by_fd() ? "as file descriptors, which borrowers map for reading only" : "by handles of CUDA IPC");
    return order;
}
