/* SPDX-License-Identifier: MIT */
/*
 * harness.h: runs in the test's process (harness_run) and in every worker that bx_spawn forks from it.
 *
 * The shared memory is an anonymous mapping that is made before the fork, so it has no name. A check that fails calls
 * _exit in the worker, from any thread, and bx_spawn then ends the other workers. If a test is killed, its workers get
 * SIGTERM from the kernel and remove their own names; keeper.c ends those that do not.
 */
#include "harness.h"

#include "job/job.h"

#include <linux/futex.h>
#include <sys/mount.h>

#define CHECK_STATUS 99                             /* exit status of a worker whose check failed */
#define GRACE_NS (UINT64_C(15) * 1000000000)        /* after one worker died, for the others to end well */
#define LOANS_NS (UINT64_C(20) * 1000000000)        /* a lease that is still out after that never returns */

struct shared {
    bxi_a32 gate[HARNESS_GATES];
    bxi_a64 value[HARNESS_VALUES];
    bxi_a32 pid[BX_WORLD_MAX];      /* by rank; not reset */
};

/* Not NULL if LeakSanitizer is linked. Workers call it themselves, because they end by _exit. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static struct shared *shared;
/* Counts of the workers of the world that runs; shared by them. */
static struct ends {
    bxi_a32 count;                  /* reached their end; the last one looks for names that are left */
    bxi_a32 well;                   /* ended well */
    bxi_a32 left_early;             /* harness_leaves_by_itself: may leave names, which bx_spawn removes */
} *ends;
static bool leaves_by_itself;
static int worlds_run;

static void *map_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        abort();
    return memory;
}

__attribute__((constructor)) static void begin(void)
{
    shared = map_shared(sizeof(*shared));
}

/* ---- Checks ---------------------------------------------------------------------------------- */

_Noreturn void harness_failed(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    dprintf(STDERR_FILENO, "%s:%d: %s (last error: %s)\n", file, line, text, bx_error_text());
    _exit(CHECK_STATUS);
}

static const char *error_name(long long code)
{
    return code < 0 && code > INT_MIN ? bx_error_name((int)code) : "a value";
}

void harness_eq(const char *file, int line, const char *text, long long actual, long long expected)
{
    if (actual != expected)
        harness_failed(file, line, "%s is %lld (%s), not %lld (%s)", text, actual, error_name(actual),
                       expected, error_name(expected));
}

void harness_has(const char *file, int line, const char *text, const char *part)
{
    if (text == NULL || strstr(text, part) == NULL)
        harness_failed(file, line, "'%s' does not say '%s'", text == NULL ? "(null)" : text, part);
}

/* ---- Shared memory --------------------------------------------------------------------------- */

void harness_post(int gate)
{
    bxi_order_sent();
    bxi_add_seq_cst(&shared->gate[gate], 1);
    syscall(SYS_futex, &shared->gate[gate], FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void harness_await(int gate, uint32_t least)
{
    uint32_t seen;

    while ((seen = bxi_load_seq_cst(&shared->gate[gate])) < least)
        syscall(SYS_futex, &shared->gate[gate], FUTEX_WAIT, seen, NULL, NULL, 0);
    bxi_order_received();
}

uint32_t harness_gate(int gate)
{
    uint32_t seen = bxi_load_seq_cst(&shared->gate[gate]);

    bxi_order_received();
    return seen;
}

void harness_store(int index, uint64_t value)
{
    bxi_store_release(&shared->value[index], value);
}

uint64_t harness_load(int index)
{
    return bxi_load_seq_cst(&shared->value[index]);
}

uint64_t harness_add(int index, uint64_t n)
{
    return bxi_add_seq_cst(&shared->value[index], n);
}

void harness_reset(void)
{
    memset(shared, 0, offsetof(struct shared, pid));
}

/* ---- Names ----------------------------------------------------------------------------------- */

void harness_name(char *name, size_t room, const char *prefix)
{
    static pid_t owner;
    static unsigned salt;               /* a killed test of the same pid may have left its names */

    if (owner == 0) {
        owner = getpid();
        salt = (unsigned)(bxi_now_ns() >> 16) & 0xffff;
    }
    snprintf(name, room, "%s%ld-%04x", prefix, (long)owner, salt);
}

const char *harness_job_name(void)
{
    static char name[BX_NAME_MAX + 1];

    harness_name(name, sizeof(name), "t");
    snprintf(name + strlen(name), sizeof(name) - strlen(name), "-%d", worlds_run);
    return name;
}

static int files_with(const char *path, const char *part)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    int count = 0;

    while (directory != NULL && (entry = readdir(directory)) != NULL)
        if (strstr(entry->d_name, part) != NULL) {
            dprintf(STDERR_FILENO, "left behind: %s/%s\n", path, entry->d_name);
            count++;
        }
    if (directory != NULL)
        closedir(directory);
    return count;
}

int harness_left_behind(void)
{
    char sockets[256];
    int count = files_with("/dev/shm", harness_job_name());

    if (bxi_socket_dir(sockets, sizeof(sockets)) == 0)
        count += files_with(sockets, harness_job_name());
    return count;
}

/* ---- Workers --------------------------------------------------------------------------------- */

void harness_leaves_by_itself(void)
{
    leaves_by_itself = true;
    bxi_add_seq_cst(&ends->left_early, 1);
}

void harness_check_rescued(const struct bx_job *job)
{
    HARNESS_EQ(harness_counter(job, "rescued"), 0);
    HARNESS_EQ(harness_counter(job, "timers_late"), 0);
}

void harness_leave(struct bx_job *job)
{
    harness_check_rescued(job);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
}

void harness_check_loans(struct bx_job *job)
{
    struct bx_loans loans = { 0 };
    int rc = bx_loans_wait(job, -1, 0, LOANS_NS);

    HARNESS_EQ(bx_job_loans(job, -1, &loans), 0);
    if (rc < 0)
        harness_failed(__FILE__, __LINE__, "worker %d waits for %llu leases of %llu bytes: %s", bx_job_rank(job),
                       (unsigned long long)loans.leases, (unsigned long long)loans.bytes, error_name(rc));
    HARNESS_EQ(loans.bytes, 0);
}

static bool has_name(const char *shm_name)
{
    int fd = shm_open(shm_name, O_RDONLY | O_CLOEXEC, 0);

    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno != ENOENT;
}

/* Between shutdown and destroy: no name is left of this worker, nor of a worker that it has seen dead. The last worker
 * to end checks the names of all, unless a worker died or left early: bx_spawn removes what is left by workers that
 * were cut off, or killed while they left. */
static void check_names(const struct bx_job *job)
{
    for (int rank = 0; rank < job->world_size; rank++) {
        char segment[BXI_OBJECT_NAME_BYTES], arena[BXI_OBJECT_NAME_BYTES];

        if (rank != job->rank && bxi_load_relaxed(&job->rpc->peers[rank]->state) != BXI_PEER_DEAD)
            continue;
        bxi_object_name(segment, (uint32_t)geteuid(), job->job_name, job->instance, rank);
        bxi_object_arena_name(arena, (uint32_t)geteuid(), job->job_name, job->instance, rank);
        if (has_name(segment) || has_name(arena))
            harness_failed(__FILE__, __LINE__, "worker %d leaves the names of rank %d behind", job->rank, rank);
    }
}

int harness_register(struct bx_job *job, const struct harness_handler *handlers)
{
    for (const struct harness_handler *at = handlers; at->name != NULL; at++)
        if (at->async != NULL)
            HARNESS_EQ(bx_register_async(job, at->name, BX_INLINE, at->async, at->context), 0);
        else
            HARNESS_EQ(bx_register(job, at->name, at->kind, at->fn, at->context), 0);
    return 0;
}

/* BX_TEST_HOSTS (tests/e2e/net_units.sh): a world's workers are on so many hosts, which meet at an address of this test
 * alone: all of 127.0.0.0/8 is loopback. */
static void choose_host(int rank)
{
    const char *hosts = getenv("BX_TEST_HOSTS");
    const unsigned test = (unsigned)getppid();      /* at most 22 bits */
    char host[16], root[32];

    if (hosts == NULL)
        return;
    snprintf(host, sizeof(host), "h%d", rank % atoi(hosts));
    snprintf(root, sizeof(root), "127.%u.%u.%u:%d", 128 + test / 65536, test / 256 % 256, test % 256,
             10000 + worlds_run);
    setenv("BX_HOST", host, 1);
    setenv("BX_ROOT", root, 1);
    setenv("BX_SECRET", "0123456789abcdef", 1);
}

static int run_worker(const struct bx_options *options, void *context)
{
    const struct harness_world *world = context;
    struct bx_job *job = NULL;
    int rank = options->rank, rc;

    bxi_store_release(&shared->pid[rank], (uint32_t)getpid());
    choose_host(rank);
    HARNESS_EQ(bx_job_create(options, &job), 0);
    harness_register(job, world->handlers);
    if (world->setup != NULL)
        HARNESS_EQ(world->setup(job), 0);
    HARNESS_EQ(bx_job_start(job), 0);
    if (rank < HARNESS_BODIES && world->body[rank] != NULL) {
        world->body[rank](job);
    } else {
        do
            rc = bx_job_serve(job);
        while (rc == BX_E_PEER_DEAD);
        HARNESS_EQ(rc, 0);
    }
    if (!leaves_by_itself) {
        harness_check_loans(job);
        harness_check_rescued(job);
        HARNESS_EQ(bx_job_shutdown(job, 0), 0);
        check_names(job);
        bx_job_destroy(job);
    }
    if (__lsan_do_recoverable_leak_check != NULL && __lsan_do_recoverable_leak_check() != 0)
        harness_failed(__FILE__, __LINE__, "worker %d leaks", rank);
    if (bxi_add_seq_cst(&ends->count, 1) + 1 == (uint32_t)world->size && bxi_load_seq_cst(&ends->left_early) == 0 &&
        harness_left_behind() != 0)
        harness_failed(__FILE__, __LINE__, "names are left when the last worker has ended");
    bxi_add_seq_cst(&ends->well, 1);
    return 0;
}

void harness_environ(const struct harness_world *world)
{
    for (const char *const *variable = world->env; *variable != NULL; variable++)
        if (strchr(*variable, '=') != NULL)
            putenv((char *)(uintptr_t)*variable);
        else
            unsetenv(*variable);
}

int harness_try(const struct harness_world *world)
{
    struct harness_world copy = *world;
    struct bx_spawn_report report = { 0 };
    struct bx_spawn_options options = {
        .world_size = world->size,
        .names = world->names,
        .options = &copy.options,
        .grace_ns = GRACE_NS,
    };
    uint32_t survivors = (uint32_t)(world->size - __builtin_popcount(world->dies)), well;
    int rc, left;

    harness_environ(world);
    for (const struct harness_value *value = world->store; value != NULL && value->index >= 0; value++)
        harness_store(value->index, value->is);
    worlds_run++;
    ends = map_shared(sizeof(*ends));
    options.job = harness_job_name();
    rc = bx_spawn(&options, run_worker, &copy, &report);
    well = bxi_load_seq_cst(&ends->well);
    munmap(ends, sizeof(*ends));
    if (rc != (world->dies != 0 ? BX_E_WORKER_FAILED : 0) || well != survivors) {
        dprintf(STDERR_FILENO, "bx_spawn: %s: %s; rank %d, exit status %d, signal %d; %u of %u ended well\n",
                bx_error_name(rc), bx_error_text(), report.failed_rank, report.exit_status,
                report.term_signal, well, survivors);
        rc = -1;
    } else {
        rc = 0;
    }
    left = harness_left_behind();
    return rc < 0 || left != 0 ? -1 : 0;
}

void harness_run(const struct harness_world *world)
{
    if (world->shm_kib != 0)
        harness_mount_shm(world->shm_kib);
    cr_assert_eq(harness_try(world), 0, "see above for what went wrong");
    for (const struct harness_value *value = world->expect; value != NULL && value->index >= 0; value++)
        cr_expect_eq(harness_load(value->index), value->is, "value %d is %llu, not %llu", value->index,
                     (unsigned long long)harness_load(value->index), (unsigned long long)value->is);
}

/* ---- Helpers --------------------------------------------------------------------------------- */

struct thread {
    struct bx_job *job;
    void (*fn)(struct bx_job *job, int index);
    int index;
    pthread_t id;
};

static void *thread_main(void *context)
{
    struct thread *thread = context;

    thread->fn(thread->job, thread->index);
    return NULL;
}

void harness_threads(struct bx_job *job, int count, void (*fn)(struct bx_job *job, int index))
{
    struct thread *threads = calloc((size_t)count, sizeof(*threads));

    HARNESS_CHECK(threads != NULL);
    for (int i = 0; i < count; i++) {
        threads[i] = (struct thread){ .job = job, .fn = fn, .index = i };
        HARNESS_EQ(pthread_create(&threads[i].id, NULL, thread_main, &threads[i]), 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i].id, NULL);
    free(threads);
}

uint64_t harness_counter(const struct bx_job *job, const char *name)
{
    uint64_t value = 0;

    HARNESS_EQ(bx_counter(job, name, &value), 0);
    return value;
}

struct bx_msg *harness_msg_i64(int64_t value)
{
    struct bx_msg *msg = bx_msg_create(0);

    HARNESS_CHECK(msg != NULL);
    HARNESS_EQ(bx_msg_put_i64(msg, value), 0);
    return msg;
}

struct bx_msg *harness_ask(struct bx_job *job, const char *to, const char *function, struct bx_msg *args)
{
    struct bx_msg *reply = NULL;

    HARNESS_EQ(bx_rpc_sync(job, to, function, args, NULL, &reply), 0);
    bx_msg_destroy(args);
    return reply;
}

int64_t harness_call(struct bx_job *job, const char *to, const char *function, struct bx_msg *args)
{
    OWN(msg) *reply = harness_ask(job, to, function, args);
    struct bx_reader reader = bx_msg_reader(reply);
    int64_t result = bx_read_i64(&reader);

    HARNESS_EQ(reader.error, 0);
    return result;
}

int64_t harness_call_i64(struct bx_job *job, const char *to, const char *function, int64_t value)
{
    return harness_call(job, to, function, harness_msg_i64(value));
}

struct bx_future *harness_start(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
                                uint64_t timeout_ns)
{
    const struct bx_call_options options = { .timeout_ns = timeout_ns };
    struct bx_future *future = NULL;

    HARNESS_EQ(bx_rpc_async(job, to, function, args, &options, &future), 0);
    bx_msg_destroy(args);
    return future;
}

struct bx_future *harness_async(struct bx_job *job, const char *to, const char *function)
{
    return harness_start(job, to, function, NULL, 0);
}

void harness_end(struct bx_future *future, int code)
{
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), code);
    bx_future_release(future);
}

void harness_end_all(struct bx_future *const *futures, int count, int code)
{
    for (int i = 0; i < count; i++)
        harness_end(futures[i], code);
}

int64_t harness_end_i64(struct bx_future *future)
{
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);

    struct bx_reader reader = bx_msg_reader(bx_future_value(future));
    int64_t value = bx_read_i64(&reader);

    HARNESS_EQ(reader.error, 0);
    bx_future_release(future);
    return value;
}

void harness_cancel(struct bx_future *future)
{
    HARNESS_EQ(bx_future_cancel(future), 0);
    bx_future_release(future);
}

char harness_thread_state(pid_t pid, uint64_t tid)
{
    char path[64], state = '?';
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/task/%llu/stat", (int)pid, (unsigned long long)tid);
    file = fopen(path, "re");
    if (file == NULL)
        return '?';
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    fclose(file);
    return state;
}

static bool is_stopped(pid_t pid, const char *thread)
{
    return strchr("Tt?", harness_thread_state(pid, strtoull(thread, NULL, 10))) != NULL;
}

static bool all_stopped(pid_t pid)
{
    char path[64];
    struct dirent *entry;
    bool all = true;
    DIR *threads;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    threads = opendir(path);
    HARNESS_CHECK(threads != NULL);
    while ((entry = readdir(threads)) != NULL)
        all = all && (entry->d_name[0] == '.' || is_stopped(pid, entry->d_name));
    closedir(threads);
    return all;
}

void harness_await_stopped(pid_t pid)
{
    while (!all_stopped(pid))
        sched_yield();
}

int harness_kill(pid_t pid, int signal_number)
{
    int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    long rc = -1;

    /* The group is read when the process is held: a later process of that pid has another group. */
    if (pidfd >= 0 && getpgid(pid) == getpgrp())
        rc = syscall(SYS_pidfd_send_signal, pidfd, signal_number, NULL, 0);
    if (pidfd >= 0)
        close(pidfd);
    return rc < 0 ? -1 : 0;
}

void harness_stop(pid_t pid)
{
    HARNESS_EQ(harness_kill(pid, SIGSTOP), 0);
    harness_await_stopped(pid);
}

pid_t harness_pid(int rank)
{
    return (pid_t)bxi_load_seq_cst(&shared->pid[rank]);
}

void harness_signal(int rank, int signal_number)
{
    HARNESS_EQ(harness_kill(harness_pid(rank), signal_number), 0);
}

void harness_stop_worker(int rank)
{
    harness_stop(harness_pid(rank));
}

void harness_mount_shm(unsigned kib)
{
    char size[32];

    if (geteuid() != 0)
        cr_skip_test("needs root, to mount a small /dev/shm");
    snprintf(size, sizeof(size), "size=%uk", kib);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, size) < 0)
        cr_skip_test("needs a mount namespace, which is unavailable here");
}

void harness_resize_shm(uint64_t bytes)
{
    char size[40];

    snprintf(size, sizeof(size), "size=%llu", (unsigned long long)bytes);
    HARNESS_EQ(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, size), 0);
}

/* ---- Bodies and handlers --------------------------------------------------------------------- */

void harness_serve(struct bx_job *job)
{
    int rc;

    do
        rc = bx_job_serve(job);
    while (rc == BX_E_PEER_DEAD || rc == BX_E_CORRUPT);
    HARNESS_EQ(rc, 0);
}

void harness_die(struct bx_job *job)
{
    (void)job;
    harness_leaves_by_itself();
    raise(SIGKILL);
}

int harness_echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)context;
    return bx_msg_put_i64(reply, bx_read_i64(args));
}

int harness_twice(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)context;
    return bx_msg_put_i64(reply, 2 * bx_read_i64(args));
}

int harness_echo_bytes(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    size_t bytes = bx_reader_left(args);

    (void)request, (void)context;
    return bx_msg_put_bytes(reply, bx_read_bytes(args, bytes), bytes);
}

int harness_nothing(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    return 0;
}

HARNESS_CALLBACK(release)
{
    bx_future_release(future);
}

int harness_never(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    (void)args, (void)context;
    *reply = bx_future_create(bx_request_job(request));
    return *reply == NULL ? -ENOMEM : bx_future_on_done(bx_future_acquire(*reply), release, NULL);
}

int harness_hold(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    harness_post(HARNESS_HELD);
    harness_await(HARNESS_GO, 1);
    return 0;
}

int harness_no_rows(struct bx_batch *batch, void *context)
{
    (void)batch, (void)context;
    return 0;
}
