/* SPDX-License-Identifier: MIT */
/*
 * What a question's process uses: the driver, steps, answers, streams, a gate that holds a stream up. Each process runs
 * one question, so functions that fail end it after having said why, and nothing is freed.
 */
#ifndef CHECK_SIDE_H
#define CHECK_SIDE_H

#include "pair.h"

#define CHECK_PAYLOAD_BYTES ((size_t)1 << 20)
#define CHECK_PATIENCE_MS 500u          /* after so long, a call that usually takes microseconds counts as blocked */
#define CHECK_RELEASE_MS 2000u          /* so long it has after its release */
#define CHECK_PAUSE_MS 40u              /* a wait that does not wait shows within it */

struct check_side {
    const struct check_question *question;
    struct check_shared *shared;
    struct bxi_cuda driver;             /* cu is its address, once it is loaded */
    const struct bxi_cuda *cu;
    struct CUctx_st *context;
    enum check_role role;
    int device;
    int page_fd;
    int socket[2];                      /* by role: a pair, for descriptors */
};

/* ---- Answers (side.c) ------------------------------------------------------------------------ */

void check_answer(struct check_side *side, const char *key, enum check_verdict verdict, const char *format, ...)
    CHECK_PRINTF(4, 5);
/* Good and "WHAT: done.", or bad and the driver's error. */
void check_done(struct check_side *side, const char *key, unsigned result, const char *what);
/* Adds a figure to an answer that is given next. unit: a string constant. */
void check_figure(struct check_side *side, const char *key, double value, const char *unit);
/* Ends the process; the lines without an answer stay unknown, for this reason. */
_Noreturn void check_give_up(struct check_side *side, const char *format, ...) CHECK_PRINTF(2, 3);
/* The same; they are absent. */
_Noreturn void check_skip(struct check_side *side, const char *format, ...) CHECK_PRINTF(2, 3);
/* Gives up unless result is CUDA_SUCCESS. */
void check_need(struct check_side *side, unsigned result, const char *what);
/* "CUDA_ERROR_NAME (number)", in one of four buffers that take turns. */
const char *check_name(const struct check_side *side, unsigned result);

/* ---- The two sides' steps --------------------------------------------------------------------- */

void check_reach(struct check_side *side, unsigned step);
/* Signals the other process, unless it has ended. */
void check_signal(const struct check_side *side, enum check_role other, int signal_number);
/* Waits until the other side has reached the step; ends this process quietly if it has ended before. */
void check_await(struct check_side *side, unsigned step);

/* ---- CUDA ------------------------------------------------------------------------------------- */

/* Loads and starts the driver, with CUDA_DEVICE_MAX_CONNECTIONS as Boxcar sets it, or as the question wants. 0, or a
 * code and a sentence. */
int check_load(struct check_side *side, char text[BXI_CU_TEXT_BYTES]);
/* Opens the device: the driver, its primary context, current on this thread. */
void check_open(struct check_side *side);
struct CUstream_st *check_stream(struct check_side *side);
unsigned long long check_alloc(struct check_side *side, size_t bytes);
void *check_pinned(struct check_side *side, size_t bytes, unsigned long long *address);
/* Maps one page of the file in /dev/shm. */
bxi_a64 *check_page(struct check_side *side, unsigned page, bool is_writable);
/* Registers a page, and gets its address on the device. */
unsigned check_register_page(struct check_side *side, bxi_a64 *page, unsigned flags, unsigned long long *address);
/* Result of making the stream wait until the word has a value, or write it; CUDA_ERROR_NOT_SUPPORTED where the driver
 * has no such function. */
unsigned check_wait_word(struct check_side *side, struct CUstream_st *stream, unsigned long long at, uint64_t value);
unsigned check_write_word(struct check_side *side, struct CUstream_st *stream, unsigned long long at, uint64_t value);
/* Waits until the stream is idle; gives up if it is not in time: WHAT did not end. */
void check_finish(struct check_side *side, struct CUstream_st *stream, const char *what);
/* Whether the stream is idle within the time. */
bool check_idles(struct check_side *side, struct CUstream_st *stream, unsigned ms);
bool check_is_waiting(struct check_side *side, struct CUstream_st *stream);     /* it is not idle now */
/* Fills the payload with a byte on the stream; gives up if it cannot. */
void check_fill(struct check_side *side, unsigned long long address, unsigned char byte, struct CUstream_st *stream);
/* The number of bytes that differ from byte. */
size_t check_differing(const unsigned char *bytes, size_t count, unsigned char byte);
/* Reads the payload on the stream into copy, which is pinned. How many bytes differ; CHECK_UNREAD: it did not end. */
#define CHECK_UNREAD SIZE_MAX
size_t check_read(struct check_side *side, unsigned long long address, unsigned char byte, struct CUstream_st *stream,
                  unsigned char *copy);
/* Exports memory as handle[index], and opens it in the other process; skips the rest of the question if the driver
 * refuses. */
void check_lend(struct check_side *side, unsigned index, unsigned long long address);
unsigned long long check_borrow(struct check_side *side, unsigned index);
unsigned check_open_handle(struct check_side *side, unsigned index, unsigned long long *address);
/* Exports an event as the question's; makes a stream wait for it in the other process. The result. */
unsigned check_wait_event(struct check_side *side, struct CUstream_st *stream);
unsigned check_lend_event(struct check_side *side, struct CUevent_st **event);
void check_sleep_ms(unsigned ms);
uint64_t check_load_word(bxi_a64 *word);
void check_store_word(bxi_a64 *word, uint64_t value);

/* A word in pinned memory of this process, for which streams wait until the host stores it. */
struct check_gate {
    bxi_a64 *word;
    unsigned long long at;
    uint64_t value;
};
struct check_gate check_gate_make(struct check_side *side);
/* Makes the stream wait. Skips the rest of the question if streams cannot wait for words here. */
void check_gate_shut(struct check_side *side, struct check_gate *gate, struct CUstream_st *stream);
void check_gate_open(struct check_gate *gate);
/* The same; the result. */
unsigned check_gate_try(struct check_side *side, struct check_gate *gate, struct CUstream_st *stream);

#endif
