/* SPDX-License-Identifier: MIT */
/*
 * boxcar.h from C++17, built and run by check.sh against the installed library: two workers, one of
 * which calls the other, so that linkage, the option structs and a handler are all used.
 */
#include <boxcar.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

static int add(const struct bx_request *, struct bx_reader *args, struct bx_msg *reply, void *)
{
    const std::int64_t a = bx_read_i64(args);
    const std::int64_t b = bx_read_i64(args);

    return bx_msg_put_i64(reply, a + b);
}

static int call(struct bx_job *job)
{
    struct bx_msg *args = bx_msg_create(0);
    struct bx_msg *reply = nullptr;
    bx_msg_put_i64(args, 40);
    bx_msg_put_i64(args, 2);

    int rc = bx_rpc_sync(job, "worker1", "add", args, nullptr, &reply);
    bx_msg_destroy(args);
    if (rc < 0)
        return rc;

    struct bx_reader reader = bx_msg_reader(reply);
    const std::int64_t sum = bx_read_i64(&reader);
    bx_msg_destroy(reply);
    return sum == 42 && reader.error == 0 ? 0 : bx_fail(BX_E_HANDLER, "40 + 2 is not %lld",
                                                        static_cast<long long>(sum));
}

/* The same in one line, and a text. */
static int call_in_one_line(struct bx_job *job)
{
    std::int64_t sum = 0;
    char *text = nullptr;
    int rc = bx_call(job, bx_rank(1), "add", "ii>i", 40, 2, &sum);

    if (rc == 0)
        rc = bx_call(job, "worker1", "repeat", "s>s", "twice ", &text);
    if (rc == 0 && (sum != 42 || std::strcmp(text, "twice twice ") != 0))
        rc = bx_fail(BX_E_HANDLER, "bx_call got %lld and '%s'", static_cast<long long>(sum), text);
    std::free(text);
    return rc;
}

static int repeat(const struct bx_request *, struct bx_reader *args, struct bx_msg *reply, void *)
{
    const char *text = nullptr;
    char twice[32];
    const int rc = bx_read(args, "s", &text);

    if (rc < 0)
        return rc;
    std::snprintf(twice, sizeof twice, "%.10s%.10s", text, text);
    return bx_msg_put(reply, "s", twice);
}

static int work(const struct bx_options *options, void *)
{
    struct bx_job *job = nullptr;
    int rc = bx_job_create(options, &job);

    if (rc == 0)
        rc = bx_register(job, "add", BX_INLINE, add, nullptr);
    if (rc == 0)
        rc = bx_register(job, "repeat", BX_INLINE, repeat, nullptr);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0 && bx_job_rank(job) == 0)
        rc = call(job);
    if (rc == 0 && bx_job_rank(job) == 0)
        rc = call_in_one_line(job);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    if (rc < 0)
        std::fprintf(stderr, "rank %d: %s\n", options->rank, bx_error_text());
    bx_job_destroy(job);
    return rc < 0 ? 1 : 0;
}

int main()
{
    struct bx_spawn_options options = {};
    options.world_size = 2;

    const int rc = bx_spawn(&options, work, nullptr, nullptr);
    if (rc < 0)
        std::fprintf(stderr, "%s: %s\n", bx_error_name(rc), bx_error_text());
    return rc < 0 ? 1 : 0;
}
