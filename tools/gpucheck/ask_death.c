/* SPDX-License-Identifier: MIT */
/*
 * What is left when one of two processes dies. The survivor does what Boxcar's survivors do: it reads the memory that
 * it has open, and releases its streams by poisoning the words that they wait for.
 */
#include "gpucheck.h"

#define BYTE 0x6b
#define FOREIGN 0x77
#define BORROWED_BYTES ((size_t)16 << 20)

/* ---- The owner is killed ---------------------------------------------------------------------- */

static void lend(struct check_parcel *parcel)
{
    parcel->handle = check_export(check_payload(BYTE, check_stream()));
}

/* Makes the stream wait for a word in the page, through the mapping that Boxcar would register; if it cannot, answers.
 */
static bool waits_for_word(struct CUstream_st *stream, bxi_a64 *page)
{
    unsigned long long at = 0;
    unsigned result = check_register_page(check_page(false), CU_MEMHOSTREGISTER_READ_ONLY, &at);

    if (result != CUDA_SUCCESS)
        result = check_register_page(page, 0, &at);
    if (result == CUDA_SUCCESS)
        result = check_wait_word(stream, at, 1);
    if (result != CUDA_SUCCESS)
        check_answer("kill.word", CHECK_ABSENT, "Streams cannot wait for words in /dev/shm here: %s.",
                     check_name(result));
    return result == CUDA_SUCCESS;
}

static void ask_kill(void)
{
    bxi_a64 *page = check_page(true);
    struct CUstream_st *stream = check_stream();
    struct check_reader reader = check_reader_make();
    struct check_parcel parcel = { 0 };
    unsigned long long address;
    bool can_wait, has_waited;
    unsigned result;

    check_there(lend, &parcel);
    address = check_borrow(parcel.handle);
    can_wait = waits_for_word(stream, page);
    check_kill_other();
    check_sleep_ms(CHECK_PAUSE_MS);
    has_waited = check_is_waiting(stream);
    check_answer_read("kill.memory", "A killed process's memory", &reader, address, BYTE);
    if (can_wait) {
        check_store_word(page, CHECK_POISON);
        check_answer_release("kill.word", stream, has_waited);
    }
    result = cu.cuIpcCloseMemHandle(address);
    check_answer("kill.close", result == CUDA_SUCCESS ? CHECK_GOOD : CHECK_BAD,
                 "Closing a killed process's memory: %s.", result == CUDA_SUCCESS ? "done" : check_name(result));
}

const struct check_question check_kill = {
    .name = "kill", .ask = ask_kill, .has_other = true, .opens_handles = true, .limit_ms = 9000,
    .lines = {
        { "kill.memory", "Tensors on loan from a dead worker stay readable until they are released.",
          "A tensor on loan from a dead worker must not be read: use it only after BX_E_PEER_DEAD was ruled out." },
        { "kill.word", "A death releases the streams that wait for the dead.",
          "A worker's death may leave other workers' streams waiting for ever." },
        { "kill.close", "The memory of a dead worker goes when the last borrower closes it.",
          "The memory of a dead worker may be lost until its borrowers end." },
    },
};

/* ---- The borrower is killed -------------------------------------------------------------------- */

/* Writes to the memory until it is killed. */
static void write_on(struct check_parcel *parcel)
{
    struct CUstream_st *stream = check_stream();
    unsigned long long address = check_borrow(parcel->handle);

    for (bool is_first = true;; is_first = false) {
        for (int i = 0; i < 32; i++)
            check_fill(address, FOREIGN, BORROWED_BYTES, stream);
        if (is_first)
            check_bring_back(parcel);
        check_need(cu.cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
}

static void ask_borrower(void)
{
    struct CUstream_st *stream = check_stream();
    unsigned char *copy = check_pinned(BORROWED_BYTES, NULL);
    unsigned long long address = check_alloc(BORROWED_BYTES);
    struct check_parcel parcel = { .handle = check_export(address) };
    size_t differing;

    check_there(write_on, &parcel);
    check_sleep_ms(CHECK_PAUSE_MS);
    check_kill_other();
    check_fill(address, BYTE, BORROWED_BYTES, stream);
    check_finish(stream, "filling 16 MiB");
    check_sleep_ms(CHECK_PAUSE_MS);
    check_need(cu.cuMemcpyDtoHAsync_v2(copy, address, BORROWED_BYTES, stream), "reading the memory");
    check_finish(stream, "reading 16 MiB");
    differing = check_differing(copy, BORROWED_BYTES, BYTE);
    check_answer("borrower", differing == 0 ? CHECK_GOOD : CHECK_BAD,
                 "After the end of a killed borrower, its work changed %zu of 16777216 bytes.", differing);
}

const struct check_question check_kill_borrower = {
    .name = "borrower", .ask = ask_borrower, .has_other = true, .opens_handles = true, .limit_ms = 8000,
    .lines = {
        { "borrower", "Memory that a dead borrower had can be used again at once.",
          "Memory that a dead borrower had may still be written by its work: do not rely on it." },
    },
};
