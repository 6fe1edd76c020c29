/* SPDX-License-Identifier: MIT */
/*
 * Shared by the files of gpucheck.
 *
 * A question is asked by a new process, and most have a second one, which stands for another worker: the first has it
 * run steps, one at a time (check_there). Either answers the question's lines, each with a verdict, a sentence of
 * facts, and at most one figure; answers go to the program by a pipe. What an answer means for Boxcar is in the
 * question's table. Each process works for one question, so a function that fails ends it after having said why, and
 * nothing is freed.
 */
#ifndef GPUCHECK_H
#define GPUCHECK_H

#include "gpu/cuda_driver.h"
#include "shm/atomic.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK_LINES 8                   /* of one question, at most */
#define CHECK_TEXT_BYTES 360
#define CHECK_PAGE_BYTES 4096u
#define CHECK_PAYLOAD_BYTES ((size_t)1 << 20)
#define CHECK_PATIENCE_MS 500u          /* after so long, a call that usually takes microseconds counts as blocked */
#define CHECK_RELEASE_MS 2000u          /* so long it has after its release */
#define CHECK_PAUSE_MS 40u              /* a wait that does not wait shows within it */
#define CHECK_POISON (UINT64_C(1) << 62)
#define CHECK_LANES_MIN 2               /* that must be able to wait at a time, or words are of no use: the probe has
                                         * a stream that waits and two that must go on */
#define CHECK_PRINTF(text, arguments) __attribute__((format(printf, text, arguments)))

enum check_verdict {
    CHECK_UNKNOWN = 0,                  /* there was no answer */
    CHECK_GOOD,                         /* as Boxcar expects */
    CHECK_BAD,                          /* not so */
    CHECK_NOTE,                         /* a fact or a figure, neither good nor bad */
    CHECK_ABSENT,                       /* there is nothing to ask about */
    CHECK_VERDICTS,
};

struct check_line {
    const char *key;                    /* NULL, as behind the last of a question: the list ends */
    const char *good;                   /* what a good answer or a note means for Boxcar */
    const char *bad;                    /* what a bad one means */
};

struct check_question {
    const char *name;                   /* keys are NAME or begin with "NAME." */
    void (*ask)(void);
    unsigned limit_ms;
    bool has_other;                     /* a second process */
    bool is_bare;                       /* it opens no device; else each process has opened it before it begins */
    bool decides;                       /* the verdict needs its answers */
    bool opens_handles;                 /* it cannot be asked where that hangs */
    int variant;                        /* for functions that serve several questions */
    struct check_line lines[CHECK_LINES + 1];
};

struct check_answer {
    enum check_verdict verdict;
    char text[CHECK_TEXT_BYTES];
    double value;                       /* valid if unit is not NULL */
    const char *unit;                   /* a constant, so its address is the same in children */
};

struct check_settings {
    int device;                         /* the device's number */
    const char *only;                   /* NULL: all; "order": those that decide; else what their names begin with */
    bool json;
};

struct check_found {                    /* by the first question; for the verdict */
    char device[128];                   /* its name; "": there is no driver or device */
    bool is_fake;
    char reason[CHECK_TEXT_BYTES];      /* why lines of a question have no answer; "": they all have */
};

struct check_ending {
    const char *order;                  /* one of the four; NULL: none is known to work */
    char why[CHECK_TEXT_BYTES];
    int status;                         /* of the program */
    double seconds;
};

/* ---- process.c: the program's side ------------------------------------------------------------- */

uint64_t check_now_ns(void);
void check_sleep_ms(unsigned ms);
/* Asks a question and reports its lines. Returns when its processes have ended, or soon after limit_ms. */
void check_ask(const struct check_question *question, const struct check_settings *settings, unsigned limit_ms,
               struct check_found *found);
/* Reports each line of a question as not asked, for a reason. */
void check_decline(const struct check_question *question, const char *reason);
/* Starts a process that keeps the driver initialised until this one ends, so that each question does not wait for it
 * again. Failures are ignored: questions are only slower. */
void check_keep_driver(void);

/* ---- process.c: a question's processes ----------------------------------------------------------- */

extern const struct check_question *check_question;     /* the one that this process works for */
extern int check_device;                                /* the device's number */

void check_answer(const char *key, enum check_verdict verdict, const char *format, ...) CHECK_PRINTF(3, 4);
/* Adds a figure to the answer that is given next. unit: a string constant. */
void check_figure(double value, const char *unit);
/* Tells the program the name of the device. */
void check_name_device(const char *name, bool is_fake);
/* Ends the process; the lines without an answer stay unknown, for this reason. */
_Noreturn void check_give_up(const char *format, ...) CHECK_PRINTF(1, 2);
/* The same; they are absent. */
_Noreturn void check_skip(const char *format, ...) CHECK_PRINTF(1, 2);

/* What a step is called with in the other process, and what it brings back. */
struct check_parcel {
    uint64_t number;
    unsigned result;                    /* of the driver */
    int fd;                             /* brought back by SCM_RIGHTS; 0: none */
    struct CUipcMemHandle_st handle;
};
typedef void (*check_step_fn)(struct check_parcel *parcel);
/* Runs step in the other process, and returns when it has. Ends this process if the other one has ended. */
void check_there(check_step_fn step, struct check_parcel *parcel);
/* Within a step that does not return: brings the parcel back. */
void check_bring_back(const struct check_parcel *parcel);
/* Kills the other process and waits for its end: its descriptors are closed then. */
void check_kill_other(void);
/* Maps the page in /dev/shm that both processes have. */
bxi_a64 *check_page(bool is_writable);

/* ---- driver.c ---------------------------------------------------------------------------------- */

extern struct bxi_cuda cu;                              /* this process's driver */
extern struct CUctx_st *check_context;

/* Opens the device: the driver, its primary context, current on this thread. */
void check_open(void);
/* "CUDA_ERROR_NAME (number)", until the next call of this thread. */
const char *check_name(unsigned result);
/* Gives up unless result is CUDA_SUCCESS. */
void check_need(unsigned result, const char *what);
struct CUstream_st *check_stream(void);
unsigned long long check_alloc(size_t bytes);
/* A page or more of pinned memory, zero; address may be NULL. */
void *check_pinned(size_t bytes, unsigned long long *address);
/* Registers a page, and gets its address on the device. */
unsigned check_register_page(bxi_a64 *page, unsigned flags, unsigned long long *address);
/* Result of making the stream wait until the word has a value, or write it; CUDA_ERROR_NOT_SUPPORTED where the driver
 * has no such function. */
unsigned check_wait_word(struct CUstream_st *stream, unsigned long long at, uint64_t value);
unsigned check_write_word(struct CUstream_st *stream, unsigned long long at, uint64_t value);
/* Waits until the stream is idle; gives up if it is not in time: WHAT did not end. */
void check_finish(struct CUstream_st *stream, const char *what);
/* Whether the stream is idle within the time. */
bool check_idles(struct CUstream_st *stream, unsigned ms);
bool check_is_waiting(struct CUstream_st *stream);      /* it is not idle now */
/* Fills bytes with a byte on the stream; gives up if it cannot. */
void check_fill(unsigned long long address, unsigned char byte, size_t bytes, struct CUstream_st *stream);
/* A new allocation: a payload that is filled with the byte. */
unsigned long long check_payload(unsigned char byte, struct CUstream_st *stream);
/* The number of bytes that differ from byte. */
size_t check_differing(const unsigned char *bytes, size_t count, unsigned char byte);
/* Reads payloads. Made before a stream waits, because a driver may wait for all streams where it makes something. */
struct check_reader {
    struct CUstream_st *stream;
    unsigned char *copy;                /* pinned */
};
struct check_reader check_reader_make(void);
/* How many bytes of the payload differ from byte; CHECK_UNREAD: the copy did not end. */
#define CHECK_UNREAD SIZE_MAX
size_t check_read(const struct check_reader *reader, unsigned long long address, unsigned char byte);
/* Good if none differs. what begins the sentence. */
void check_answer_read(const char *key, const char *what, const struct check_reader *reader,
                       unsigned long long address, unsigned char byte);
/* Whether the stream, which was to wait, has waited, and goes on now that it was released. */
void check_answer_release(const char *key, struct CUstream_st *stream, bool has_waited);
/* Exports memory; opens it in the other process. Skip the rest of the question if the driver refuses. */
struct CUipcMemHandle_st check_export(unsigned long long address);
unsigned long long check_borrow(struct CUipcMemHandle_st handle);
unsigned check_open_handle(struct CUipcMemHandle_st handle, unsigned long long *address);
uint64_t check_load_word(bxi_a64 *word);
void check_store_word(bxi_a64 *word, uint64_t value);

/* A word in pinned memory of this process, for which streams wait until the host stores it. */
struct check_hold {
    bxi_a64 *word;
    unsigned long long at;
    uint64_t value;
};
struct check_hold check_hold_make(void);
/* Makes the stream wait: the result. The second skips the rest of the question if streams cannot wait for words. */
unsigned check_hold_try(struct check_hold *hold, struct CUstream_st *stream);
void check_hold_begin(struct check_hold *hold, struct CUstream_st *stream);
void check_hold_end(struct check_hold *hold);

/* ---- report.c -------------------------------------------------------------------------------- */

void check_report_open(bool is_json);
void check_report_fake(void);
/* Prints a line and keeps its verdict. */
void check_report_line(const struct check_line *line, const struct check_answer *answer);
enum check_verdict check_reported(const char *key);     /* CHECK_UNKNOWN: not reported either */
double check_reported_value(const char *key);           /* NAN: none */
unsigned check_reported_count(enum check_verdict verdict);
void check_report_close(const struct check_found *found, const struct check_ending *ending);

/* ---- verdict.c ------------------------------------------------------------------------------- */

const char *check_order_name(unsigned order);           /* enum bxi_gpu_order */
/* Which order Boxcar chooses; NULL: none is known. Writes the reason. */
const char *check_order(char why[CHECK_TEXT_BYTES]);
/* Whether an answer says that processes cannot share the device's memory. */
bool check_is_refused(void);

/* ---- The questions, in their order ------------------------------------------------------------ */

extern const struct check_question check_driver;                        /* ask_driver.c */
extern const struct check_question check_register, check_handle;        /* ask_memory.c */
extern const struct check_question check_descriptor, check_descriptor_dead;                     /* ask_descriptor.c */
extern const struct check_question check_words_host, check_words_read_only;                     /* ask_words.c */
extern const struct check_question check_events;
extern const struct check_question check_queues;                        /* ask_queues.c */
extern const struct check_question check_boxcar;                        /* ask_boxcar.c */
extern const struct check_question check_kill, check_kill_borrower; /* ask_death.c */
extern const struct check_question check_devices;                       /* ask_devices.c */
extern const struct check_question check_nvrtc, check_cublas, check_cudnn;                      /* ask_libraries.c */

#endif
