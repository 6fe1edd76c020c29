/* SPDX-License-Identifier: MIT */
/*
 * Memory of cuMemCreate that is exported as a file descriptor: whether another process that gets the descriptor by
 * SCM_RIGHTS reads it through a mapping for reading only, is kept from writing, and still reads it when the process
 * that made it was killed. What gpu/vmm.c and gpu/door.c do, in as few calls.
 */
#include "side.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BYTES ((size_t)2 << 20)
#define FILLED 0x3c

/* ---- The descriptor's way --------------------------------------------------------------------- */

union control {
    struct cmsghdr head;
    unsigned char bytes[CMSG_SPACE(sizeof(int))];
};

static void send_fd(struct check_side *side, int fd)
{
    union control control = { .head = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(sizeof(fd)) } };
    struct iovec part = { .iov_base = (void *)"f", .iov_len = 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof(control) };

    memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    if (sendmsg(side->socket[CHECK_OWNER], &message, MSG_NOSIGNAL) != 1)
        check_give_up(side, "sending the descriptor: %s", strerror(errno));
}

static int receive_fd(struct check_side *side)
{
    union control control;
    char byte;
    struct iovec part = { .iov_base = &byte, .iov_len = 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof(control) };
    int fd = -1;

    if (recvmsg(side->socket[CHECK_PEER], &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1 ||
        CMSG_FIRSTHDR(&message) == NULL || control.head.cmsg_type != SCM_RIGHTS)
        check_give_up(side, "the descriptor did not come: %s", strerror(errno));
    memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
    return fd;
}

/* ---- The memory -------------------------------------------------------------------------------- */

static bool has_functions(const struct bxi_cuda *cu)
{
    return cu->cuMemCreate != NULL && cu->cuMemExportToShareableHandle != NULL &&
           cu->cuMemImportFromShareableHandle != NULL && cu->cuMemAddressReserve != NULL && cu->cuMemMap != NULL &&
           cu->cuMemSetAccess != NULL;
}

static unsigned map(struct check_side *side, unsigned long long handle, unsigned rights, unsigned long long *address)
{
    struct CUmemAccessDesc_st access = { { CU_MEM_LOCATION_TYPE_DEVICE, side->device }, rights };
    unsigned result = side->cu->cuMemAddressReserve(address, BYTES, 0, 0, 0);

    if (result == CUDA_SUCCESS)
        result = side->cu->cuMemMap(*address, BYTES, 0, handle, 0);
    return result == CUDA_SUCCESS ? side->cu->cuMemSetAccess(*address, BYTES, &access, 1) : result;
}

/* Makes memory, fills it, and sends its descriptor. */
static unsigned long long lend(struct check_side *side)
{
    struct CUmemAllocationProp_st prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .location = { CU_MEM_LOCATION_TYPE_DEVICE, side->device } };
    unsigned long long handle = 0, address = 0;
    struct CUstream_st *stream;
    unsigned result;
    int fd = -1;

    check_open(side);
    if (!has_functions(side->cu))
        check_skip(side, "the driver has no cuMemCreate, or no function that belongs to it");
    result = side->cu->cuMemCreate(&handle, BYTES, &prop, 0);
    if (result == CUDA_SUCCESS)
        result = map(side, handle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &address);
    if (result == CUDA_SUCCESS)
        result = side->cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS && side->question->variant == 0)
        check_answer(side, "descriptor.export", CHECK_BAD, "The driver makes no memory that can be exported so: %s.",
                     check_name(side, result));
    if (result != CUDA_SUCCESS)
        check_skip(side, "there is no descriptor");
    if (side->question->variant == 0)
        check_answer(side, "descriptor.export", CHECK_GOOD, "The driver gave a descriptor.");
    stream = check_stream(side);
    check_fill(side, address, FILLED, stream);
    check_finish(side, stream, "filling 1 MiB");
    send_fd(side, fd);
    check_reach(side, 1);
    return address;
}

/* Gets the descriptor and maps the memory for reading. 0: it was refused, with that result. */
static unsigned long long borrow(struct check_side *side, unsigned *result)
{
    unsigned long long handle = 0, address = 0;

    check_open(side);
    check_await(side, 1);
    *result = side->cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)receive_fd(side),
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (*result == CUDA_SUCCESS)
        *result = map(side, handle, CU_MEM_ACCESS_FLAGS_PROT_READ, &address);
    return *result == CUDA_SUCCESS ? address : 0;
}

/* How many of the bytes are not as they were filled; CHECK_UNREAD. */
static size_t differing(struct check_side *side, unsigned long long address)
{
    return check_read(side, address, FILLED, check_stream(side), check_pinned(side, CHECK_PAYLOAD_BYTES, NULL));
}

/* ---- descriptor -------------------------------------------------------------------------------- */

static void descriptor_owner(struct check_side *side)
{
    unsigned long long address = lend(side);
    unsigned result;
    size_t changed;

    check_await(side, 2);
    result = (unsigned)check_load_word(&side->shared->number[1]);
    changed = differing(side, address);
    if (changed != 0)
        check_answer(side, "descriptor.read_only", CHECK_BAD, "The other process could write: %zu of 1048576 bytes "
                     "have changed.", changed);
    else if (result == CUDA_SUCCESS)
        check_answer(side, "descriptor.read_only", CHECK_NOTE, "The other process's write changed nothing, and the "
                     "driver reported no error.");
    else
        check_answer(side, "descriptor.read_only", CHECK_GOOD, "The other process's write failed (%s), and no byte has "
                     "changed.", check_name(side, result));
}

/* Writes where it may only read. On a real device that ends its context. */
static unsigned write_result(struct check_side *side, unsigned long long address)
{
    struct CUstream_st *stream = check_stream(side);
    unsigned result = side->cu->cuMemsetD8Async(address, (unsigned char)~FILLED, CHECK_PAYLOAD_BYTES, stream);

    if (result == CUDA_SUCCESS)
        (void)check_idles(side, stream, CHECK_RELEASE_MS);
    return result == CUDA_SUCCESS ? side->cu->cuStreamQuery(stream) : result;
}

static void descriptor_peer(struct check_side *side)
{
    unsigned result;
    unsigned long long address = borrow(side, &result);
    size_t wrong;

    if (address == 0) {
        check_answer(side, "descriptor.contents", CHECK_BAD, "Another process cannot map it for reading: %s.",
                     check_name(side, result));
        check_skip(side, "the memory cannot be mapped");
    }
    wrong = differing(side, address);
    check_answer(side, "descriptor.contents", wrong == 0 ? CHECK_GOOD : CHECK_BAD, wrong == 0
                 ? "The other process reads the 1 MiB that the owner wrote, by a mapping for reading only."
                 : "What the other process reads is not what the owner wrote.");
    check_store_word(&side->shared->number[1], write_result(side, address));
    check_reach(side, 2);
}

const struct check_question check_descriptor = {
    .name = "descriptor", .decides = true, .limit_ms = 9000, .owner = descriptor_owner, .peer = descriptor_peer,
    .lines = {
        { "descriptor.export", "Boxcar can make memory that needs no common IPC and PID namespaces.",
          "Boxcar uses handles of CUDA IPC." },
        { "descriptor.contents", "Boxcar exports memory as descriptors.", "Boxcar uses handles of CUDA IPC." },
        { "descriptor.read_only", "A borrower is kept from writing what it borrowed.",
          "A borrower that is wrong can write what it borrowed." },
        { NULL, NULL, NULL },
    },
};

/* ---- descriptor.dead --------------------------------------------------------------------------- */

static void dead_owner(struct check_side *side)
{
    (void)lend(side);
    for (;;)                            /* until it is killed, or by its alarm */
        pause();
}

static void dead_peer(struct check_side *side)
{
    unsigned result;
    unsigned long long address = borrow(side, &result);
    size_t wrong;

    if (address == 0)
        check_skip(side, "the memory cannot be mapped");
    check_signal(side, CHECK_OWNER, SIGKILL);
    check_sleep_ms(CHECK_PATIENCE_MS);
    wrong = differing(side, address);
    if (wrong == 0)
        check_answer(side, "descriptor.dead", CHECK_GOOD, "A killed process's memory reads as before.");
    else
        check_answer(side, "descriptor.dead", CHECK_BAD, "A killed process's memory %s.",
                     wrong == CHECK_UNREAD ? "cannot be read" : "has changed");
}

const struct check_question check_descriptor_dead = {
    .name = "descriptor.dead", .limit_ms = 9000, .owner = dead_owner, .peer = dead_peer, .owner_dies = true,
    .variant = 1,
    .lines = {
        { "descriptor.dead", "Tensors on loan from a dead worker stay readable until they are released.",
          "What is borrowed from a dead worker must not be read any more, whatever the documentation says." },
        { NULL, NULL, NULL },
    },
};
