/* SPDX-License-Identifier: MIT */
/*
 * Shared by the files of gpucheck: questions, their lines, and what a line is answered with.
 *
 * A question is run by one or two new processes (pair.c). It has one line or several; each line is answered with a
 * verdict, a sentence of facts, and at most one figure. What the answer means for Boxcar is in the question's table.
 */
#ifndef GPUCHECK_H
#define GPUCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK_LINES 14                  /* of one question, at most */
#define CHECK_TEXT_BYTES 360
#define CHECK_LANES_MIN 2               /* that must be able to wait at a time, or words are of no use: the probe has
                                         * a stream that waits and two that must go on */
#define CHECK_PRINTF(text, arguments) __attribute__((format(printf, text, arguments)))

enum check_verdict {
    CHECK_UNKNOWN = 0,                  /* there was no answer */
    CHECK_GOOD,                         /* as Boxcar expects */
    CHECK_BAD,                          /* not so */
    CHECK_NOTE,                         /* a fact or a figure, neither good nor bad */
    CHECK_ABSENT,                       /* there is nothing to ask about */
};

struct check_line {
    const char *key;                    /* NULL ends the list */
    const char *good;                   /* what a good answer or a note means for Boxcar */
    const char *bad;                    /* what a bad one means */
};

struct check_side;
typedef void (*check_side_fn)(struct check_side *side);

struct check_question {
    const char *name;                   /* keys are NAME or begin with "NAME." */
    unsigned limit_ms;
    check_side_fn owner;                /* runs in the first process; it exports memory and words */
    check_side_fn peer;                 /* runs in the second; NULL: there is none */
    bool decides;                       /* the verdict needs its answers */
    bool opens_handles;                 /* it cannot be asked where that hangs */
    int variant;                        /* for functions that serve several questions */
    int connections;                    /* CUDA_DEVICE_MAX_CONNECTIONS; 0: as Boxcar sets it */
    bool owner_dies;                    /* the peer kills the owner: its death is no failure */
    bool peer_dies;
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

/* What the first question finds out; for the verdict. */
struct check_found {
    bool has_driver;                    /* it is loaded, and there is the device */
    bool is_fake;
    int devices;
    char name[128];
    char reason[CHECK_TEXT_BYTES];      /* why not */
};

struct check_ending {
    const char *order;                  /* one of the four; NULL: none is known to work */
    const char *why;
    int status;                         /* of the program */
    double seconds;
};

/* ---- report.c -------------------------------------------------------------------------------- */

void check_report_open(const struct check_settings *settings);
void check_report_found(const struct check_found *found);
/* Prints a line and keeps its verdict. */
void check_report_line(const struct check_line *line, const struct check_answer *answer);
enum check_verdict check_reported(const char *key);     /* CHECK_UNKNOWN: not reported either */
double check_reported_value(const char *key);           /* NAN: none */
unsigned check_reported_count(enum check_verdict verdict);
void check_report_close(const struct check_found *found, const struct check_ending *ending);

/* ---- verdict.c ------------------------------------------------------------------------------- */

const char *check_order_name(unsigned order);           /* enum bxi_gpu_order */
/* Which order Boxcar chooses; NULL: none is known. Writes the reason. */
const char *check_order(char *why, size_t room);
/* Whether an answer says that processes cannot share the device's memory. */
bool check_is_refused(void);

/* ---- The questions, in their order ------------------------------------------------------------ */

extern const struct check_question check_driver_question;               /* ask_driver.c */
extern const struct check_question check_register, check_handle;        /* ask_memory.c */
extern const struct check_question check_descriptor, check_descriptor_dead;                     /* ask_descriptor.c */
extern const struct check_question check_words_host, check_words_read_only, check_words_device; /* ask_words.c */
extern const struct check_question check_events;
extern const struct check_question check_queues_1, check_queues_8, check_queues_32;             /* ask_queues.c */
extern const struct check_question check_boxcar;                        /* ask_boxcar.c */
extern const struct check_question check_block;                         /* ask_block.c */
extern const struct check_question check_kill, check_kill_event, check_kill_borrower; /* ask_death.c */
extern const struct check_question check_share;                         /* ask_share.c */
extern const struct check_question check_devices;                       /* ask_devices.c */
extern const struct check_question check_nvrtc, check_cublas, check_cudnn;                      /* ask_libraries.c */

#endif
