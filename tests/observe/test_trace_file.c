/* SPDX-License-Identifier: MIT */
/*
 * lib/observe/trace_file.c: the file of BX_TRACE is a complete array, whatever happened to the worker that wrote last.
 */
#include "trace_file_fixture.h"

TestSuite(trace_file, .init = choose_path, .fini = remove_file, .timeout = 60);

/* The names of all events, with blanks between them; "no JSON" if the file is none. */
static const char *names(void)
{
    static char text[256];
    struct json *root = json_load(path);

    text[0] = '\0';
    if (root == NULL)
        return "no JSON";
    for (const struct json *event = root->first; event != NULL; event = event->next)
        strcat(strcat(text, event == root->first ? "" : " "), json_text(json_get(event, "name")));
    json_free(root);
    return text;
}

/* A pwrite may be cut short at any byte. Events that were written whole may stay, parts of one must go. */
Test(trace_file, is_repaired_wherever_a_write_was_cut_short)
{
    static const char torn[] = EVENT("b") EVENT("c") "\n]\n";

    for (size_t bytes = 0; bytes < sizeof torn; bytes++) {
        struct bxi_trace_file file = begin(7);

        cr_assert_eq(append(&file, EVENT("a")), 0);

        off_t end = lseek(file.fd, -3, SEEK_END);

        cr_assert_eq(pwrite(file.fd, torn, bytes, end), (ssize_t)bytes);
        cr_assert_eq(append(&file, EVENT("d")), 0, "torn at %zu", bytes);
        cr_expect(strcmp(names(), "boxcar a d") == 0 || strcmp(names(), "boxcar a b d") == 0 ||
                      strcmp(names(), "boxcar a b c d") == 0, "torn at %zu: %s", bytes, names());
        cr_expect_eq(bytes < strlen(EVENT("b")) && strstr(names(), " b") != NULL, false);
        close(file.fd);
    }
}

Test(trace_file, is_repaired_by_a_write_without_events)
{
    struct bxi_trace_file file = begin(7);

    cr_assert_eq(append(&file, EVENT("a") EVENT("b")), 0);
    cr_assert_eq(ftruncate(file.fd, lseek(file.fd, -8, SEEK_END)), 0);
    cr_expect_str_eq(names(), "no JSON");
    cr_expect_eq(append(&file, ""), 0);
    cr_expect_str_eq(names(), "boxcar a");
    close(file.fd);
}

Test(trace_file, of_another_job_is_left_alone)
{
    struct bxi_trace_file old = begin(7), new = begin(8);

    cr_expect_eq(append(&old, EVENT("a")), -ESTALE);
    cr_expect_eq(bxi_trace_file_open(path, 7), -ESTALE);
    cr_expect_eq(append(&new, EVENT("b")), 0);
    cr_expect_str_eq(names(), "boxcar b");
    cr_expect_eq(ftruncate(new.fd, 0), 0);
    cr_expect_eq(append(&new, EVENT("c")), -ESTALE, "nor does it write into a file that was emptied");
    close(old.fd);
    close(new.fd);
}

Test(trace_file, does_not_wait_for_a_worker_that_holds_the_file)
{
    struct bxi_trace_file file = begin(7);
    int other = bxi_trace_file_open(path, 7);

    cr_assert_geq(other, 0);
    cr_assert_eq(flock(other, LOCK_EX), 0);
    cr_expect_eq(append(&file, EVENT("a")), -EAGAIN);
    cr_assert_eq(flock(other, LOCK_UN), 0);
    cr_expect_eq(append(&file, EVENT("a")), 0);
    cr_expect_str_eq(names(), "boxcar a");
    close(other);
    close(file.fd);
}

Test(trace_file, is_a_whole_array_at_the_limit_on_file_sizes)
{
    struct bxi_trace_file file = begin(7);
    struct rlimit limit = { (rlim_t)lseek(file.fd, 0, SEEK_END) + 2 * strlen(EVENT("a")), RLIM_INFINITY };
    int rc = 0;

    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 10 && rc == 0; i++)
        rc = append(&file, EVENT("a"));
    cr_expect_eq(rc, -EFBIG);
    limit.rlim_cur = RLIM_INFINITY;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);       /* Criterion must be able to write files */
    cr_expect_str_eq(names(), "boxcar a a");
    close(file.fd);
}

Test(trace_file, is_a_regular_file)
{
    cr_expect_eq(bxi_trace_file_begin("/dev/null", 7, FIRST), -EINVAL);
    cr_expect_eq(bxi_trace_file_begin("/tmp", 7, FIRST), -EISDIR);
    cr_expect_eq(bxi_trace_file_begin("/nonexistent/file", 7, FIRST), -ENOENT);
}
