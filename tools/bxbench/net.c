/* SPDX-License-Identifier: MIT */
/*
 * bxbench net: a caller and a callee on two hosts, beside UCX.
 *
 * The two hosts are names on loopback, or with --veth two network namespaces with a pair of virtual Ethernet devices
 * between them. A namespace belongs to a process that holds it and dies with the bench, so nothing is left.
 *
 * Slices of three kinds take turns: one call at a time, many in flight (as in `rate`), and one message of --tensors
 * tensors, which an inline handler checks as that of `handover` does. Between RUNS parts of the slices run ucp_am_lat,
 * ucp_am_bw and tag_bw of ucx_perftest on the same cores, over the same transport: 64 bytes there and back, 64 bytes
 * one way, and one way messages as large as a tensor and as all of them; tag_bw, which receives into memory of the
 * program's as Boxcar does, only the last. UCX's latency is half of a round trip. Its rate counts
 * messages, so that of Boxcar counts requests and replies. It sends the same memory again and again, so messages of a
 * tensor's bytes stay in the caches; those of all bytes do not, nor do Boxcar's.
 */
#include "bxbench.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK "check"
#define RUNS 5
#define HOSTS 2
#define DEVICE "bxbench0"               /* the end of the pair in either namespace */
#define ROOT_OF_VETH "10.77.0.1"
#define START_NS UINT64_C(20000000000)
#define TENSOR_ROUNDS 4                 /* in a slice, one of which warms up */

enum { CALLS, RATE, TENSORS, SERIES };
enum { LATENCY, MESSAGES, BANDWIDTH, BANDWIDTH_ALL, BANDWIDTH_TAG, TESTS };
enum { NET_BYTES };                     /* values: sent by the caller */

static struct {
    pid_t holder[HOSTS];                /* of the namespaces; 0: loopback */
    const char *address;                /* of the caller's host */
    struct bx_tensor **tensors;         /* the caller's */
} net = { .address = "127.0.0.1" };

/* ---- Hosts ----------------------------------------------------------------------------------------- */

/* A process in a network namespace of its own, with a /sys that shows its devices: UCX looks there. It ends with the
 * bench. 0 after a line on stderr. */
static pid_t hold_namespace(void)
{
    int ready[2];
    char byte;
    pid_t pid;

    if (pipe2(ready, O_CLOEXEC) < 0 || (pid = bench_fork()) < 0) {
        bench_say("no process for a network namespace: %s", strerror(errno));
        return 0;
    }
    if (pid == 0) {
        if (unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
            mount("sysfs", "/sys", "sysfs", 0, NULL) == 0 && write(ready[1], "", 1) == 1)
            for (;;)
                pause();
        bench_say("--veth: no network namespace can be made: %s", strerror(errno));
        _exit(1);
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        pid = 0;
    close(ready[0]);
    return pid;
}

static int make_hosts(void)
{
    char script[1024];

    for (int i = 0; i < HOSTS; i++)
        if ((net.holder[i] = hold_namespace()) == 0)
            return 1;
    snprintf(script, sizeof script,
             "a=%d b=%d; set -e\n"
             "nsenter -t $a -n ip link add " DEVICE " type veth peer name " DEVICE " netns $b\n"
             "nsenter -t $a -n ip addr add " ROOT_OF_VETH "/24 dev " DEVICE "\n"
             "nsenter -t $b -n ip addr add 10.77.0.2/24 dev " DEVICE "\n"
             "for pid in $a $b; do\n"
             "  for device in lo " DEVICE "; do nsenter -t $pid -n ip link set $device up; done\n"
             "done\n"
             "sleep 2",                 /* until the link carries */
             (int)net.holder[0], (int)net.holder[1]);
    if (system(script) != 0) {
        bench_say("--veth: no pair of devices can be made: it wants root, and `ip` and `nsenter` on the PATH");
        return 1;
    }
    net.address = ROOT_OF_VETH;
    return 0;
}

/* This process goes to a host. 0, or 1 after a line on stderr. */
static int enter_host(int host)
{
    int fd = net.holder[host] != 0 ? (int)syscall(SYS_pidfd_open, net.holder[host], 0) : -1;

    if (net.holder[host] == 0 || (fd >= 0 && setns(fd, CLONE_NEWNET | CLONE_NEWNS) == 0))
        return 0;
    bench_say("--veth: a network namespace cannot be entered: %s", strerror(errno));
    return 1;
}

/* As bx_spawn, with each worker on a host of its own: there it runs where it is, for BX_ROOT is set. */
static int spawn_on_hosts(const struct bx_spawn_options *options, bx_worker_fn fn, void *context)
{
    char root[64], rank[16];
    pid_t pids[HOSTS];
    int status = 0;

    snprintf(root, sizeof root, "%s:%d", net.address, bench_port());
    for (int i = 0; i < HOSTS; i++) {
        pids[i] = bench_fork();
        if (pids[i] != 0)
            continue;
        snprintf(rank, sizeof rank, "%d", i);
        setenv("BX_JOB", "bxbench", 1);
        setenv("BX_RANK", rank, 1);
        setenv("BX_WORLD_SIZE", "2", 1);
        setenv("BX_ROOT", root, 1);
        setenv("BX_HOST", i == 0 ? "bxbench-a" : "bxbench-b", 1);
        setenv("BX_SECRET", "of a measurement", 1);
        _exit(enter_host(i) != 0 || bx_spawn(options, fn, context, NULL) != 0);
    }
    for (int i = 0; i < HOSTS; i++)
        status |= pids[i] < 0 ? 1 : bench_reap(pids[i], BENCH_WAIT_NS);
    return status == 0 ? 0 : BX_E_WORKER_FAILED;
}

/* ---- UCX ------------------------------------------------------------------------------------------- */

/* Its figure: the typical latency, or the last column, in microseconds, MB or messages a second. */
static double ucx(const struct bench_options *options, int test, size_t bytes)
{
    static const char *const names[TESTS] = { "ucp_am_lat", "ucp_am_bw", "ucp_am_bw", "ucp_am_bw", "tag_bw" };
    static const char *const columns[TESTS] = { "3", "NF", "(NF - 2)", "(NF - 2)", "(NF - 2)" };
    static const int rounds[TESTS] = { 20000, 100000, 1000, 20, 20 };
    char at[HOSTS][64] = { "", "" }, flags[64];

    for (int i = 0; i < HOSTS && net.holder[i] != 0; i++)
        snprintf(at[i], sizeof at[i], "nsenter -t %d -n -m", (int)net.holder[i]);
    snprintf(flags, sizeof flags, "-n %d -w 5 -s %zu", rounds[test], bytes);
    return bench_ucx(options, &(struct bench_ucx){ names[test], flags, columns[test], { at[0], at[1] }, net.address });
}

/* ---- Worker 1 -------------------------------------------------------------------------------------- */

static int check(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const struct bench_options *options = context;
    int64_t count = (int64_t)bx_reader_tensors_left(args);
    uint64_t stamp;

    (void)request;
    for (int64_t i = 0; i < count; i++) {
        const struct bx_tensor *tensor = bx_read_tensor(args);
        const char *data = bx_tensor_data(tensor);

        memcpy(&stamp, data, sizeof stamp);
        if (stamp != (uint64_t)i || memcmp(data, data + bx_tensor_bytes(tensor) - sizeof stamp, sizeof stamp) != 0)
            return bx_fail(-EPROTO, "tensor %lld is not what was sent", (long long)i);
    }
    if (count != options->tensors)
        return bx_fail(-EPROTO, "%lld tensors came, not %lld", (long long)count, (long long)options->tensors);
    return bx_msg_put_u64(reply, (uint64_t)count);
}

static int setup(struct bx_job *job, void *context)
{
    return bx_register(job, CHECK, BX_INLINE, check, context);
}

/* ---- Worker 0 -------------------------------------------------------------------------------------- */

static size_t tensor_bytes(const struct bench_options *options)
{
    return (size_t)(options->bytes / options->tensors) / 8 * 8;
}

static size_t all_bytes(const struct bench_options *options)
{
    return tensor_bytes(options) * (size_t)options->tensors;
}

static int slice_one(struct bench_caller *caller, int kind, int64_t slice)
{
    return bench_each(caller, 10, bench_place(caller, kind, slice), bench_echo, NULL);
}

static int send_tensors(struct bench_caller *caller)
{
    struct bx_msg *reply = NULL;
    int rc = 0;

    bx_msg_clear(caller->args);
    for (int64_t i = 0; rc == 0 && i < caller->run->options->tensors; i++)
        rc = bx_msg_put_tensor(caller->args, net.tensors[i]);
    if (rc == 0)
        rc = bx_rpc_sync(caller->job, caller->to, CHECK, caller->args, NULL, &reply);
    bx_msg_destroy(reply);
    bx_msg_clear(caller->args);
    return rc == 0 ? 0 : bench_fail(CHECK, rc);
}

static int slice_tensors(struct bench_caller *caller, int kind, int64_t slice)
{
    uint64_t before = 0;

    for (int i = 0; i < TENSOR_ROUNDS; i++) {
        if (i == 1)
            before = bench_ticks();
        if (send_tensors(caller) != 0)
            return 1;
    }
    caller->run->series[kind].middle[slice] = (double)(bench_ticks() - before) / (TENSOR_ROUNDS - 1);
    return 0;
}

static int begin(struct bench_caller *caller)
{
    const struct bench_options *options = caller->run->options;
    const int64_t shape[] = { (int64_t)tensor_bytes(options) };

    net.tensors = calloc((size_t)options->tensors, sizeof *net.tensors);
    for (int64_t i = 0; net.tensors != NULL && i < options->tensors; i++) {
        int rc = bx_tensor_create(caller->job, BX_U8, 1, shape, &net.tensors[i]);

        if (rc < 0)
            return bench_fail("bx_tensor_create", rc);

        char *data = bx_tensor_data_mut(net.tensors[i]);
        const uint64_t stamp = (uint64_t)i;

        memset(data, 1, (size_t)shape[0]);
        memcpy(data, &stamp, sizeof stamp);
        memcpy(data + shape[0] - sizeof stamp, &stamp, sizeof stamp);
    }
    return net.tensors != NULL ? bench_rate_begin(caller, RATE) : bench_fail("calloc", -ENOMEM);
}

static int end(struct bench_caller *caller, int status)
{
    uint64_t bytes = 0;

    for (int64_t i = 0; net.tensors != NULL && i < caller->run->options->tensors; i++)
        bx_tensor_release(net.tensors[i]);
    free(net.tensors);
    if (status == 0 && bx_counter(caller->job, "net_bytes", &bytes) == 0)
        caller->run->values[NET_BYTES][0] += (double)bytes;
    return bench_rate_end(caller, status);
}

/* ---- The launcher ---------------------------------------------------------------------------------- */

static void report(const struct bench_run *run, double figures[TESTS][RUNS])
{
    const struct bench_options *options = run->options;
    double middle[TESTS], call_us = bench_middle_ns(&run->series[CALLS]) * 1e-3;
    double messages = 2e9 / bench_middle_ns(&run->series[RATE]);
    double mb_per_s = (double)all_bytes(options) / (1 << 20) * 1e9 / bench_middle_ns(&run->series[TENSORS]);

    bench_open(options, "two workers on two hosts, beside UCX");
    bench_string("hosts", net.holder[0] != 0 ? "veth" : "loopback", "two network namespaces, or names alone");
    bench_string("ucx_tls", secure_getenv("UCX_TLS"), "the transport of both");
    bench_counts(run);
    bench_number("inflight", (double)options->inflight, 0, "calls under way");
    bench_number("tensors", (double)options->tensors, 0, "in a message");
    bench_number("bytes", (double)all_bytes(options), 0, "of all of them");
    bench_numbers("ucx_lat_us", figures[LATENCY], RUNS, 2);
    bench_numbers("ucx_msgs", figures[MESSAGES], RUNS, 0);
    bench_numbers("ucx_mb", figures[BANDWIDTH], RUNS, 0);
    bench_numbers("ucx_all_mb", figures[BANDWIDTH_ALL], RUNS, 0);
    bench_numbers("ucx_tag_mb", figures[BANDWIDTH_TAG], RUNS, 0);
    for (int test = 0; test < TESTS; test++)
        middle[test] = bench_median(figures[test], RUNS);
    bench_number("call_p50_us", call_us, 2, "bx_rpc_sync of an inline handler, 64 bytes there and back");
    bench_number("call_p99_us", bench_percentile_ns(&run->series[CALLS], 99) * 1e-3, 2, "");
    bench_number("ratio_call", call_us / (2 * middle[LATENCY]), 2, "over twice ucp_am_lat");
    bench_number("messages_per_s", messages, 0, "requests and replies, with many calls in flight");
    bench_number("ratio_rate", messages / middle[MESSAGES], 2, "over ucp_am_bw of 64 bytes");
    bench_number("mb_per_s", mb_per_s, 0, "tensors sent, checked at both ends of each, answered");
    bench_number("ratio_mb", mb_per_s / middle[BANDWIDTH], 2, "over ucp_am_bw of messages of a tensor's bytes");
    bench_number("ratio_all_mb", mb_per_s / middle[BANDWIDTH_ALL], 2, "over ucp_am_bw of messages of all bytes");
    bench_number("ratio_tag_mb", mb_per_s / middle[BANDWIDTH_TAG], 2, "over tag_bw of messages of all bytes");
    bench_number("net_bytes", run->values[NET_BYTES][0], 0, "sent by the caller over the network, in all");
    bench_close();
}

int bench_net(struct bench_options *options)
{
    int64_t slices = (options->slices + RUNS - 1) / RUNS;
    struct bench_run run = {
        .options = options, .slices = slices * RUNS, .calls = options->calls, .workers = HOSTS, .callers = 1,
        .kinds = { slice_one, bench_rate_slice, slice_tensors }, .series_count = SERIES,
        .means = 1 << RATE | 1 << TENSORS, .common = { .start_timeout_ns = START_NS }, .spawn = spawn_on_hosts,
        .setup = setup, .begin = begin, .end = end, .context = options
    };
    double figures[TESTS][RUNS];

    if (tensor_bytes(options) < sizeof(uint64_t)) {
        bench_say("--bytes must have 8 for each of the tensors");
        return 2;
    }
    setenv("UCX_TLS", "tcp", 0);
    setenv("UCX_NET_DEVICES", options->veth ? DEVICE : "lo", 0);
    if (options->veth && make_hosts() != 0)
        return 1;
    for (int64_t i = 0; i < RUNS; i++) {
        const size_t sizes[TESTS] = { BENCH_MESSAGE_BYTES, BENCH_MESSAGE_BYTES, tensor_bytes(options),
                                      all_bytes(options), all_bytes(options) };

        run.first = i * slices;
        run.last = run.first + slices;
        for (int test = 0; test < TESTS; test++)
            if ((figures[test][i] = ucx(options, test, sizes[test])) <= 0)
                return 1;
        if (!bench_run_job(&run))
            return 1;
    }
    report(&run, figures);
    return 0;
}
