/* SPDX-License-Identifier: MIT */
/*
 * Codes, their texts, each thread's last sentence, and the log hook. Any thread, without locks: each thread has its own
 * sentence, and the hook is set before the first job. The memory for sentences is allocated at a thread's first
 * failure; without it, the thread's sentence is that of ENOMEM. BX_LOG is read by each bx_job_create.
 *
 * The program's codes are registered in a table with a pointer for each. A pointer is set once and stays, so readers
 * need no lock, and what bx_strerror returned stays valid.
 */
#include "base.h"

#include "shm/cancel.h"
#include "shm/own.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LEVELS 4                    /* a call, what its wait runs, what that completes, and one to spare */

struct said {
    int code;
    char sentence[BXI_TEXT_BYTES];          /* "" if there is none, and the code is 0 */
};

struct texts {
    struct said said;
    struct said kept[LEVELS];               /* of outer levels */
    char code[128];                         /* of bx_strerror */
    char name[32];                          /* of bx_error_name */
};

static _Thread_local bool has_no_room;        /* for the sentence */
_Thread_local uint32_t bxi_error_level, bxi_error_owner;
static bx_log_fn log_fn;
static void *log_context;

#define LOG_LEVELS 3
static const char *const log_levels[LOG_LEVELS] = { "error", "warn", "info" };    /* by level, as BX_LOG names them */
static bxi_a32 printed_levels;      /* how many of them go to stderr */

/* This thread's, or NULL: it has not failed yet. */
static struct texts *find_texts(void)
{
    return bxi_own_find(BXI_OWN_TEXTS);
}

/* This thread's, or NULL: no memory. */
static struct texts *make_texts(void)
{
    return bxi_own_make(BXI_OWN_TEXTS, sizeof(struct texts));
}

/* ---- codes of applications --------------------------------------------------------------------- */

struct application_error {
    char name[BX_NAME_MAX + 1];
    char text[];
};
static _Atomic(const struct application_error *) application_errors[BX_APPLICATION_ERRORS];

static bool is_application(int code)
{
    return code <= BX_E_APPLICATION(0) && code > BX_E_APPLICATION(BX_APPLICATION_ERRORS);
}

/* NULL: it is not registered. */
static const struct application_error *find_application(int code)
{
    /* [errors] acquire, pairs with the exchange in bx_error_register: the texts are read after the pointer. */
    return bxi_load_acquire(&application_errors[BX_E_APPLICATION(0) - code]);
}

int bx_error_register(int code, const char *name, const char *text)
{
    const struct application_error *there = NULL;
    struct application_error *error;
    size_t bytes;

    if (name == NULL || text == NULL)
        return bxi_null(__func__, name == NULL ? "the code's name" : "its text");
    if (!is_application(code))
        return bx_fail(-EINVAL, "%d is not a code of applications: BX_E_APPLICATION(0) to BX_E_APPLICATION(%d)", code,
                       BX_APPLICATION_ERRORS - 1);
    if (name[0] == '\0' || strlen(name) > BX_NAME_MAX)
        return bx_fail(-EINVAL, "the name '%s' of code %d does not have 1 to %d bytes", bxi_brief(name).text, code,
                       BX_NAME_MAX);
    bytes = strlen(text) + 1;
    error = malloc(sizeof *error + bytes);
    if (error == NULL)
        return bx_fail(-ENOMEM, "no memory for the text of code %d", code);
    memcpy(error->name, name, strlen(name) + 1);
    memcpy(error->text, text, bytes);
    /* [errors] the exchange publishes the texts. */
    if (bxi_cas(&application_errors[BX_E_APPLICATION(0) - code], &there, error))
        return 0;
    free(error);
    if (strcmp(there->name, name) == 0 && strcmp(there->text, text) == 0)
        return 0;
    return bx_fail(-EEXIST, "code %d is registered as %s already", code, there->name);
}

/* ---- codes ------------------------------------------------------------------------------------- */

/* A peer may send any code, also INT_MIN, whose negation overflows. */
static int errno_of(int code)
{
    return code < 0 && code > -4096 ? -code : INT_MAX;
}

const char *bx_strerror(int code)
{
    switch (code) {
#define BX_ERROR_CASE(name, value, text) case name: return text;
        BX_ERRORS(BX_ERROR_CASE)
#undef BX_ERROR_CASE
    default:
        break;
    }
    if (code >= 0)
        return "success";

    const struct application_error *error = is_application(code) ? find_application(code) : NULL;

    if (error != NULL)
        return error->text;

    struct texts *texts = make_texts();

    if (texts == NULL)
        return "unknown code";
    if (is_application(code)) {
        snprintf(texts->code, sizeof texts->code, "application error %d", BX_E_APPLICATION(0) - code);
        return texts->code;
    }
    if (errno_of(code) != INT_MAX)
        return strerror_r(errno_of(code), texts->code, sizeof texts->code);
    snprintf(texts->code, sizeof texts->code, "unknown code %d", code);
    return texts->code;
}

const char *bx_error_name(int code)
{
    switch (code) {
#define BX_ERROR_CASE(name, value, text) case name: return #name;
        BX_ERRORS(BX_ERROR_CASE)
#undef BX_ERROR_CASE
    default:
        break;
    }

    const struct application_error *error = is_application(code) ? find_application(code) : NULL;
    const char *name = strerrorname_np(errno_of(code));
    struct texts *texts;

    if (code >= 0)
        return "0";
    if (error != NULL)
        return error->name;
    if (is_application(code) && (texts = make_texts()) != NULL) {
        snprintf(texts->name, sizeof texts->name, "BX_E_APPLICATION(%d)", BX_E_APPLICATION(0) - code);
        return texts->name;
    }
    if (name == NULL || (texts = make_texts()) == NULL)
        return "unknown";
    snprintf(texts->name, sizeof texts->name, "-%s", name);
    return texts->name;
}

const char *bx_error_text(void)
{
    const struct texts *texts = find_texts();

    if (bxi_error_owner != bxi_error_level)
        return "";
    if (has_no_room)
        return strerrordesc_np(ENOMEM);
    return texts != NULL ? texts->said.sentence : "";
}

int bx_error_code(void)
{
    const struct texts *texts = find_texts();

    if (bxi_error_owner != bxi_error_level)
        return 0;
    if (has_no_room)
        return -ENOMEM;
    return texts != NULL ? texts->said.code : 0;
}

static void forget(struct said *said)
{
    said->code = 0;
    said->sentence[0] = '\0';
}

void bxi_clear_error(void)
{
    struct texts *texts;

    if (bxi_error_owner != bxi_error_level)
        return;
    has_no_room = false;
    if ((texts = find_texts()) != NULL)
        forget(&texts->said);
}

/* The sentence belongs to an outer level: saves it. */
static void keep_sentence(struct texts *texts)
{
    if (bxi_error_owner < LEVELS)
        texts->kept[bxi_error_owner] = texts->said;
    bxi_error_owner = bxi_error_level;
}

void bxi_error_restore(void)
{
    struct texts *texts = find_texts();

    has_no_room = false;
    bxi_error_owner = bxi_error_level;
    if (texts == NULL)
        return;
    forget(&texts->said);
    if (bxi_error_level < LEVELS) {
        texts->said = texts->kept[bxi_error_level];
        forget(&texts->kept[bxi_error_level]);
    }
}

int bxi_fail_v(int code, const char *format, va_list args)
{
    char text[BXI_TEXT_BYTES];      /* args may point into the sentence */
    struct texts *texts = make_texts();

    has_no_room = texts == NULL;
    if (texts == NULL) {
        bxi_error_owner = bxi_error_level;
        return code;
    }
    vsnprintf(text, sizeof text, format, args);
    if (bxi_error_owner != bxi_error_level)
        keep_sentence(texts);
    texts->said.code = code;
    memcpy(texts->said.sentence, text, sizeof text);
    return code;
}

int bx_fail(int code, const char *format, ...)
{
    va_list args;

    if (format == NULL)
        return bx_fail(code, "%s", bx_strerror(code));
    va_start(args, format);
    bxi_fail_v(code, format, args);
    va_end(args);
    return code;
}

int bxi_null(const char *function, const char *what)
{
    return bx_fail(-EINVAL, "%s was given NULL for %s", function, what);
}

char *bxi_text(const char *format, ...)
{
    char text[BXI_TEXT_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return strdup(text);
}

struct bxi_brief bxi_brief(const char *name)
{
    struct bxi_brief brief;
    size_t length = name != NULL ? strlen(name) : 0;

    if (length <= BX_NAME_MAX + 8)
        snprintf(brief.text, sizeof brief.text, "%s", name != NULL ? name : "");
    else
        snprintf(brief.text, sizeof brief.text, "%.*s... (%zu bytes)", BX_NAME_MAX, name, length);
    return brief;
}

void bx_set_log(bx_log_fn log, void *context)
{
    log_fn = log;
    log_context = context;
}

int bxi_log_from_environment(void)
{
    const char *text = secure_getenv("BX_LOG");
    uint32_t levels = 0;

    if (text != NULL && text[0] != '\0') {
        while (levels < LOG_LEVELS && strcmp(text, log_levels[levels]) != 0)
            levels++;
        if (levels++ == LOG_LEVELS)
            return bx_fail(-EINVAL, "BX_LOG='%s' is none of error, warn and info", bxi_brief(text).text);
    }
    /* Relaxed: a number that stands for itself. */
    bxi_store_relaxed(&printed_levels, levels);
    return 0;
}

bool bxi_log_prints(int level)
{
    /* Relaxed: as its store. */
    return (uint32_t)level < bxi_load_relaxed(&printed_levels);
}

/* One line by one write, so that lines of several workers do not mix. What the text quotes may have line breaks. */
static void print_log(const struct bx_job *job, int level, const char *text)
{
    char line[BXI_TEXT_BYTES + 128];
    int length;

    if (job != NULL)
        length = snprintf(line, sizeof line - 1, "boxcar: %s (rank %d of job %s): %s: %s", job->name, job->rank,
                          job->job_name, log_levels[level], text);
    else
        length = snprintf(line, sizeof line - 1, "boxcar: process %d: %s: %s", (int)getpid(), log_levels[level], text);
    for (int i = 0; i < length; i++)
        if ((unsigned char)line[i] < ' ')
            line[i] = ' ';
    line[length++] = '\n';
    (void)!write(STDERR_FILENO, line, (size_t)length);      /* of a closed stderr nobody reads the log */
}

void bxi_log(const struct bx_job *job, int level, const char *format, ...)
{
    char text[BXI_TEXT_BYTES];
    va_list args;

    if (log_fn == NULL && !bxi_log_prints(level))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);

    BXI_UNCANCELLED;

    if (bxi_log_prints(level))
        print_log(job, level, text);
    if (log_fn != NULL)
        log_fn(level, text, log_context);
}

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *bx_version(void)
{
    return VERSION_TEXT(BX_VERSION_MAJOR, BX_VERSION_MINOR, BX_VERSION_PATCH);
}
