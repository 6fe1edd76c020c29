/* SPDX-License-Identifier: MIT */
/*
 * lib/base/error.c: codes, their names and texts, the sentence of each thread, and the log hook.
 */
#include "tests/harness/memory.h"
#include "tests/harness/test.h"
#include "rpc/rpc.h"

TestSuite(error, .timeout = 120);

/* Each has the name of its own value, so no two have one value. */
Test(error, has_a_name_and_a_text_for_every_code)
{
#define BX_EXPECT_ERROR(name, value, text)                                                          \
    cr_expect_eq((int)name, value);                                                                 \
    cr_expect_lt(value, -4095, "%d could be an errno", value);                                      \
    cr_expect_str_eq(bx_error_name(value), #name);                                                  \
    cr_expect_str_eq(bx_strerror(value), text);
    BX_ERRORS(BX_EXPECT_ERROR)
#undef BX_EXPECT_ERROR
}

Test(error, names_codes_of_errno_too)
{
    cr_expect_str_eq(bx_error_name(-EAGAIN), "-EAGAIN");
    cr_expect_str_eq(bx_error_name(-ENOENT), "-ENOENT");
    cr_expect_str_eq(bx_error_name(0), "0");
    cr_expect_str_eq(bx_strerror(-ENOENT), strerror(ENOENT));
}

Test(error, gives_unknown_codes_a_name)
{
    static const int codes[] = { 0, 1, -4000, -20000, INT32_MIN, INT32_MAX };

    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
        cr_expect_not_null(bx_error_name(codes[i]));
        cr_expect_not_null(bx_strerror(codes[i]));
    }
}

Test(error, codes_of_applications_have_their_number_until_they_are_registered)
{
    cr_expect_str_eq(bx_strerror(BX_E_APPLICATION(3)), "application error 3");
    cr_expect_str_eq(bx_error_name(BX_E_APPLICATION(3)), "BX_E_APPLICATION(3)");
    cr_assert_eq(bx_error_register(BX_E_APPLICATION(3), "SHOP_E_STOCK", "nothing is left in stock"), 0);
    cr_expect_str_eq(bx_strerror(BX_E_APPLICATION(3)), "nothing is left in stock");
    cr_expect_str_eq(bx_error_name(BX_E_APPLICATION(3)), "SHOP_E_STOCK");
    cr_expect_str_eq(bx_strerror(BX_E_APPLICATION(4)), "application error 4");
    cr_expect_str_eq(bx_strerror(BX_E_APPLICATION(9999)), "application error 9999");
    cr_expect_str_eq(bx_strerror(BX_E_APPLICATION(10000)), "unknown code -30000");
    cr_expect_str_eq(bx_strerror(BX_E_APPLICATION(-1)), "unknown code -19999");
    cr_expect_str_eq(bx_error_name(BX_E_APPLICATION(10000)), "unknown");
    cr_expect_str_eq(bx_error_name(BX_E_APPLICATION(-1)), "unknown");
}

Test(error, codes_of_applications_are_registered_once_and_copied)
{
    char name[] = "SHOP_E_STOCK", text[] = "nothing is left";
    const char *kept;

    cr_assert_eq(bx_error_register(BX_E_APPLICATION(9999), name, text), 0);
    kept = bx_strerror(BX_E_APPLICATION(9999));
    cr_expect_eq(bx_error_register(BX_E_APPLICATION(9999), name, text), 0, "the same again");
    cr_expect_eq(bx_error_register(BX_E_APPLICATION(9999), name, "another"), -EEXIST);
    cr_expect_str_eq(bx_error_text(), "code -29999 is registered as SHOP_E_STOCK already");
    cr_expect_eq(bx_error_register(BX_E_APPLICATION(9999), "ANOTHER", text), -EEXIST);
    memset(name, 'x', sizeof name - 1);
    memset(text, 'x', sizeof text - 1);
    cr_expect_str_eq(kept, "nothing is left");
    cr_expect_str_eq(bx_error_name(BX_E_APPLICATION(9999)), "SHOP_E_STOCK");
}

Test(error, codes_of_others_are_not_registered)
{
    static const int codes[] = { 0, 1, -1, BX_E_TIMEOUT, BX_E_APPLICATION(-1), BX_E_APPLICATION(10000), INT32_MIN };
    static const char *const names[] = { "", "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn" };

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        cr_expect_eq(bx_error_register(codes[i], "NAME", "a text"), -EINVAL, "code %d", codes[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_expect_eq(bx_error_register(BX_E_APPLICATION(1), names[i], "a text"), -EINVAL, "name '%s'", names[i]);
    cr_expect_str_eq(bx_strerror(BX_E_APPLICATION(1)), "application error 1");
}

#define REGISTERED 200

static void *register_all(void *context)
{
    int *mine = context;
    char text[32];

    for (int n = 0; n < REGISTERED; n++) {
        snprintf(text, sizeof text, "text %d", n);
        *mine += bx_error_register(BX_E_APPLICATION(n), "NAME", text) == 0;
        cr_expect_str_eq(bx_strerror(BX_E_APPLICATION(n)), text);
    }
    return NULL;
}

Test(error, codes_of_applications_are_registered_from_any_thread)
{
    pthread_t threads[4];
    int succeeded[4] = { 0 };

    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, register_all, &succeeded[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        cr_expect_eq(succeeded[i], REGISTERED);
}

Test(error, text_and_code_are_those_of_the_threads_last_failure)
{
    cr_expect_str_eq(bx_error_text(), "");
    cr_expect_eq(bx_error_code(), 0);
    cr_expect_eq(bx_fail(-EINVAL, "row %d of %s", 3, "pick"), -EINVAL);
    cr_expect_str_eq(bx_error_text(), "row 3 of pick");
    bx_fail(-EINVAL, "again: %s", bx_error_text());
    cr_expect_str_eq(bx_error_text(), "again: row 3 of pick");
    cr_expect_eq(bx_error_code(), -EINVAL);
}

Test(error, text_is_cut_and_terminated_when_it_is_too_long)
{
    char longer[2 * BXI_TEXT_BYTES];

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    bx_fail(-EINVAL, "%s", longer);
    cr_expect_eq(strlen(bx_error_text()), BXI_TEXT_BYTES - 1);
}

static void *fail_elsewhere(void *context)
{
    cr_expect_str_eq(bx_error_text(), "", "a thread begins without a sentence");
    bx_fail(-EIO, "elsewhere");
    return context;
}

Test(error, text_belongs_to_its_thread)
{
    pthread_t thread;

    bx_fail(-EINVAL, "here");
    cr_assert_eq(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    cr_expect_str_eq(bx_error_text(), "here");
}

static void take_log(int level, const char *text, void *context)
{
    snprintf(context, 64, "%d %s", level, text);
}

Test(error, log_goes_to_the_hook_only)
{
    char seen[64] = "";

    bxi_log(NULL, 0, "nobody hears %s", "this");
    bx_set_log(take_log, seen);
    bxi_log(NULL, 1, "worker '%s' died", "agent");
    cr_expect_str_eq(seen, "1 worker 'agent' died");
    bx_set_log(NULL, NULL);
    bxi_log(NULL, 2, "silence");
    cr_expect_str_eq(seen, "1 worker 'agent' died");
}

/* What log_three prints on stderr while BX_LOG is `value`; the hook gets `seen`. */
static void printed(const char *value, char text[1024], char *seen)
{
    static struct bx_job job = { .rank = 3, .job_name = "demo", .name = "agent" };
    FILE *file = tmpfile();
    int kept = dup(STDERR_FILENO);

    cr_assert(file != NULL && kept >= 0);
    setenv("BX_LOG", value, 1);
    cr_expect_eq(bxi_log_from_environment(), 0);
    bx_set_log(seen != NULL ? take_log : NULL, seen);
    dup2(fileno(file), STDERR_FILENO);
    bxi_log(&job, 0, "an %s", "error");
    bxi_log(&job, 1, "two\nlines");
    bxi_log(NULL, 2, "of nobody");
    dup2(kept, STDERR_FILENO);
    close(kept);
    bx_set_log(NULL, NULL);
    rewind(file);
    text[fread(text, 1, 1023, file)] = '\0';
    fclose(file);
}

Test(error, bx_log_prints_lines_of_its_level_and_above)
{
    char text[1024], all[1024];

    printed("", text, NULL);
    cr_expect_str_eq(text, "");
    printed("error", text, NULL);
    cr_expect_str_eq(text, "boxcar: agent (rank 3 of job demo): error: an error\n");
    printed("warn", text, NULL);
    cr_expect_str_eq(text, "boxcar: agent (rank 3 of job demo): error: an error\n"
                           "boxcar: agent (rank 3 of job demo): warn: two lines\n");
    printed("info", text, NULL);
    snprintf(all, sizeof all, "boxcar: agent (rank 3 of job demo): error: an error\n"
                              "boxcar: agent (rank 3 of job demo): warn: two lines\n"
                              "boxcar: process %d: info: of nobody\n", (int)getpid());
    cr_expect_str_eq(text, all);
}

Test(error, bx_log_leaves_the_hook_as_it_is)
{
    char text[1024], seen[64] = "";

    printed("error", text, seen);
    cr_expect_str_eq(seen, "2 of nobody");
    cr_expect_str_eq(text, "boxcar: agent (rank 3 of job demo): error: an error\n");
}

Test(error, a_line_of_bx_log_is_whole_whatever_its_length)
{
    char text[1024], name[1000];

    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    setenv("BX_LOG", "warn", 1);
    cr_expect_eq(bxi_log_from_environment(), 0);

    FILE *file = tmpfile();
    int kept = dup(STDERR_FILENO);

    cr_assert(file != NULL && kept >= 0);
    dup2(fileno(file), STDERR_FILENO);
    bxi_log(NULL, 0, "%s", name);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    text[fread(text, 1, 1023, file)] = '\0';
    fclose(file);
    cr_expect_eq(strchr(text, '\n'), text + strlen(text) - 1);
    cr_expect(strstr(text, ": error: xxx") != NULL);
}

Test(error, bx_log_with_another_value_fails_the_job)
{
    struct bx_options options = { .job = "log", .world_size = 2 };
    struct bx_job *job = NULL;

    setenv("BX_LOG", "debug", 1);
    cr_expect_eq(bx_job_create(&options, &job), -EINVAL);
    cr_expect_str_eq(bx_error_text(), "BX_LOG='debug' is none of error, warn and info");
    setenv("BX_LOG", "warn", 1);
    cr_assert_eq(bx_job_create(&options, &job), 0);
    cr_expect(bxi_log_prints(1));
    cr_expect_not(bxi_log_prints(2));
    bx_job_destroy(job);
}

static void *ask_without_memory(void *unused)
{
    static const int codes[] = { -123456, BX_E_APPLICATION(700) };

    for (int i = 0; i < 2; i++) {
        memory_fails_in = 1;
        cr_expect_str_eq(bx_strerror(codes[i]), "unknown code");
        memory_fails_in = 1;
        cr_expect_str_eq(bx_error_name(codes[i]), "unknown");
    }
    memory_fails_in = 1;
    cr_expect_str_eq(bx_error_name(-EINVAL), "unknown");
    memory_fails_in = 1;
    cr_expect_eq(bx_fail(-EIO, "a sentence"), -EIO);
    cr_expect_eq(bx_error_code(), -ENOMEM);
    bxi_error_enter();
    memory_fails_in = 1;
    cr_expect_eq(bx_fail(-EIO, "a sentence"), -EIO);
    cr_expect_eq(bx_error_code(), -ENOMEM);
    bxi_error_leave();
    cr_expect_eq(bx_error_code(), 0);       /* there was no memory to save the outer one */
    memory_fails_in = 1;
    cr_expect_eq(bx_error_register(BX_E_APPLICATION(700), "NAME", "text"), -ENOMEM);
    cr_expect_eq(bx_error_code(), -ENOMEM);
    bxi_error_enter();
    cr_expect_eq(bx_error_code(), 0);
    bxi_error_leave();
    cr_expect_eq(bx_error_code(), -ENOMEM);
    return unused;
}

/* A thread has its texts from its first failure on. */
Test(error, texts_for_which_there_is_no_memory_are_short)
{
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, ask_without_memory, NULL), 0);
    pthread_join(thread, NULL);
}

Test(error, version_is_that_of_the_header)
{
    char expected[32];

    snprintf(expected, sizeof(expected), "%d.%d.%d", BX_VERSION_MAJOR, BX_VERSION_MINOR, BX_VERSION_PATCH);
    cr_expect_str_eq(bx_version(), expected);
}
