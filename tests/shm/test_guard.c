/* SPDX-License-Identifier: MIT */
/*
 * shm/guard.c: files are truncated while they are mapped. Tests that end a process run it as a child.
 */
#include "shm/guard.h"
#include "shm/segment.h"
#include "tests/harness/harness.h"

#include <setjmp.h>

#define PAGES 8
#define BYTES ((size_t)PAGES * BXI_PAGE)

struct file {
    int fd;
    unsigned char *base;
    bxi_a32 truncated;
};

static void map_file(struct file *file, int prot)
{
    unsigned char filler[BXI_PAGE];

    memset(filler, 0x5a, sizeof(filler));
    bxi_store_relaxed(&file->truncated, 0);
    file->fd = memfd_create("boxcar-test-guard", MFD_CLOEXEC);
    cr_assert_geq(file->fd, 0);
    for (int page = 0; page < PAGES; page++)
        cr_assert_eq(write(file->fd, filler, sizeof(filler)), (ssize_t)sizeof(filler));
    file->base = mmap(NULL, BYTES, prot, MAP_SHARED, file->fd, 0);
    cr_assert_neq((void *)file->base, MAP_FAILED);
}

/* Maps it and guards it; the end of both is drop_file. */
static void guard_file(struct file *file, int prot)
{
    map_file(file, prot);
    cr_assert_eq(bxi_guard_add(file->base, BYTES, (prot & PROT_WRITE) != 0, &file->truncated), 0);
}

static void drop_file(struct file *file)
{
    bxi_guard_drop(file->base);
    munmap(file->base, BYTES);
    close(file->fd);
}

static unsigned read_byte(const unsigned char *at)
{
    return *(const volatile unsigned char *)at;
}

static unsigned is_truncated(struct file *file)
{
    return bxi_load_relaxed(&file->truncated);
}

/* ---- Survival -------------------------------------------------------------------------------- */

TestSuite(guard, .timeout = 120);

Test(guard, shows_zeroes_and_raises_the_flag_when_the_file_was_truncated)
{
    struct file file;

    guard_file(&file, PROT_READ);
    cr_assert_eq(ftruncate(file.fd, 0), 0);
    errno = ENOTTY;
    cr_assert_eq(read_byte(file.base + 5000), 0);
    cr_assert_eq(errno, ENOTTY);
    cr_assert_eq(is_truncated(&file), 1);
    cr_assert_eq(read_byte(file.base + BYTES - 1), 0);
    drop_file(&file);
}

Test(guard, covers_the_whole_range_at_the_first_fault)
{
    struct file file;

    guard_file(&file, PROT_READ);
    cr_assert_eq(ftruncate(file.fd, BXI_PAGE), 0);
    cr_assert_eq(read_byte(file.base), 0x5a, "the page that is left");
    cr_assert_eq(is_truncated(&file), 0);
    cr_assert_eq(read_byte(file.base + BYTES - 1), 0);
    cr_assert_eq(read_byte(file.base), 0, "not half a segment");
    drop_file(&file);
}

Test(guard, acts_on_the_range_that_faulted_alone)
{
    struct file first, second;

    guard_file(&first, PROT_READ);
    guard_file(&second, PROT_READ);
    cr_assert_eq(ftruncate(second.fd, 0), 0);
    cr_assert_eq(read_byte(second.base), 0);
    cr_assert_eq(is_truncated(&second), 1);
    cr_assert_eq(is_truncated(&first), 0);
    cr_assert_eq(read_byte(first.base), 0x5a);
    drop_file(&first);
    drop_file(&second);
}

Test(guard, lets_a_reader_survive_the_truncation_of_a_peers_segment)
{
    struct bxi_segment segment;
    struct bxi_segment_view view;
    char job[BXI_NAME_BYTES];

    harness_name(job, sizeof(job), "guard-");
    cr_assert_eq(bxi_segment_create(&segment, job, "peer", 1, 1, 2), 0);
    cr_assert_eq(bxi_segment_open_ring(&segment, 0), 0);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, 1, 1, 2), 0);
    memset(bxi_segment_at(&segment, bxi_ring_offset(0)), 1, BXI_RING_BYTES);
    cr_assert_eq(ftruncate(segment.fd, 0), 0);

    cr_assert_eq(read_byte(bxi_segment_view_at(&view, bxi_ring_offset(0))), 0);
    cr_assert_eq(bxi_load_relaxed(&view.truncated), 1);
    cr_assert_eq(bxi_load_relaxed(&view.control->header.state), 0);
    cr_assert_eq(bxi_load_relaxed(&view.control->header.armed), 0);

    cr_assert_eq(bxi_load_relaxed(&segment.truncated), 0);
    bxi_store_relaxed(&segment.control->header.state, BXI_RUNNING);
    cr_assert_eq(bxi_load_relaxed(&segment.truncated), 1);
    bxi_segment_detach(&view);
    bxi_segment_destroy(&segment);
    cr_assert_eq(bxi_object_reap(job, 0), 0);
}

static struct file shared_file;
static pthread_barrier_t barrier;

static void *read_a_page(void *at)
{
    pthread_barrier_wait(&barrier);
    return (void *)(uintptr_t)read_byte(at);
}

Test(guard, survives_threads_that_fault_in_one_range_at_once)
{
    pthread_t threads[PAGES];

    for (int round = 0; round < 20; round++) {
        guard_file(&shared_file, PROT_READ);
        cr_assert_eq(ftruncate(shared_file.fd, 0), 0);
        pthread_barrier_init(&barrier, NULL, PAGES);
        for (size_t i = 0; i < PAGES; i++)
            cr_assert_eq(pthread_create(&threads[i], NULL, read_a_page,
                                        shared_file.base + i * BXI_PAGE),
                         0);
        for (int i = 0; i < PAGES; i++) {
            void *value = &shared_file;
            pthread_join(threads[i], &value);
            cr_assert_null(value);
        }
        pthread_barrier_destroy(&barrier);
        cr_assert_eq(is_truncated(&shared_file), 1);
        drop_file(&shared_file);
    }
}

Test(guard, has_1024_ranges_and_takes_back_those_dropped)
{
    static bxi_a32 flag;
    static unsigned char pages[2][BXI_PAGE];
    unsigned char *address = pages[0];

    /* Never accessed, so they need not be mapped: any distinct bases will do. */
    for (uintptr_t i = 0; i < 1024; i++)
        cr_assert_eq(bxi_guard_add(address + i, 1, false, &flag), 0);
    cr_assert_eq(bxi_guard_add(pages[1] + 1024, 1, false, &flag), -ENOSPC);
    bxi_guard_drop(address + 500);
    cr_assert_eq(bxi_guard_add(pages[1] + 1024, 1, false, &flag), 0);
    cr_assert_eq(bxi_guard_add(address + 500, 1, false, &flag), -ENOSPC);
}

/* Neither a detached segment nor a refused one keeps a range. */
Test(guard, is_there_for_1025_segments_one_after_the_other)
{
    struct bxi_segment segment;
    struct bxi_segment_view view;
    char job[BXI_NAME_BYTES];

    harness_name(job, sizeof(job), "guard-");
    for (int i = 0; i < 1025; i++) {
        cr_assert_eq(bxi_segment_create(&segment, job, "owner", 1, 0, 2), 0, "create %d", i);
        cr_assert_eq(bxi_segment_attach(&view, segment.fd, 2, 0, 2), -EPROTO, "refuse %d", i);
        cr_assert_eq(bxi_segment_attach(&view, segment.fd, 1, 0, 2), 0, "attach %d", i);
        bxi_segment_detach(&view);
        bxi_segment_destroy(&segment);
    }
}

/* ---- What is not ours is somebody else's ----------------------------------------------------- */

static sigjmp_buf escape;
static volatile sig_atomic_t chained;
static void *volatile chained_address;

static void old_info_handler(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number, (void)context;
    chained++;
    chained_address = info->si_addr;
    siglongjmp(escape, 1);
}

static void old_plain_handler(int signal_number)
{
    (void)signal_number;
    chained++;
    siglongjmp(escape, 1);
}

/* True if the read returned, false if a handler before the guard's ended it. */
static bool try_to_read(const unsigned char *at)
{
    if (sigsetjmp(escape, 1) != 0)
        return false;
    read_byte(at);
    return true;
}

/* One guarded file and one truncated file without a guard. True if a read of the latter was chained. */
static bool reading_outside_is_chained(unsigned char **address)
{
    static struct file guarded, bare;

    guard_file(&guarded, PROT_READ);
    map_file(&bare, PROT_READ);
    cr_assert_eq(ftruncate(bare.fd, 0), 0);
    *address = bare.base + 123;
    return !try_to_read(*address) && is_truncated(&guarded) == 0;
}

Test(guard, hands_a_fault_elsewhere_to_the_handler_before_it)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO };
    unsigned char *address = NULL;

    action.sa_sigaction = old_info_handler;
    cr_assert_eq(sigaction(SIGBUS, &action, NULL), 0);
    cr_assert(reading_outside_is_chained(&address));
    cr_assert_eq(chained, 1);
    cr_assert_eq(chained_address, (void *)address);
}

Test(guard, does_not_act_on_a_range_that_was_dropped)
{
    struct file file;

    cr_assert_neq(signal(SIGBUS, old_plain_handler), SIG_ERR);
    guard_file(&file, PROT_READ);
    bxi_guard_drop(file.base);
    cr_assert_eq(ftruncate(file.fd, 0), 0);
    try_to_read(file.base);
    cr_assert_eq(chained, 1);
    cr_assert_eq(bxi_load_relaxed(&file.truncated), 0);
}

/* How a child ends that had `before` as its SIGBUS handler, then added a guard, then ran body. */
static int ends_by(void (*before)(int), void (*body)(struct file *))
{
    struct file file;
    int status = 0;
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (child == 0) {
        signal(SIGBUS, before);
        map_file(&file, PROT_READ);
        if (bxi_guard_add(file.base, BYTES, false, &file.truncated) != 0)
            _exit(1);
        body(&file);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void fault_elsewhere(struct file *file)
{
    bxi_guard_drop(file->base);
    if (ftruncate(file->fd, 0) == 0)
        read_byte(file->base);
}

static void send_signal(struct file *file)
{
    (void)file;
    kill(getpid(), SIGBUS);
}

static void fault_inside(struct file *file)
{
    if (ftruncate(file->fd, 0) == 0)
        read_byte(file->base);
}

Test(guard, ends_the_process_as_before_where_nobody_handles_a_fault)
{
    cr_assert_eq(ends_by(SIG_DFL, fault_elsewhere), SIGBUS);
    cr_assert_eq(ends_by(SIG_IGN, fault_elsewhere), SIGBUS);
    cr_assert_eq(ends_by(SIG_DFL, fault_inside), 0);
    cr_assert_eq(ends_by(SIG_IGN, fault_inside), 0);
}

Test(guard, treats_a_signal_that_was_sent_as_before)
{
    cr_assert_eq(ends_by(SIG_DFL, send_signal), SIGBUS);
    cr_assert_eq(ends_by(SIG_IGN, send_signal), 0);
}

/* The guarded range ends where the bytes behind it begin. */
Test(guard, does_not_act_on_the_first_byte_behind_its_range, .timeout = 20)
{
    struct file file;

    cr_assert_neq(signal(SIGBUS, old_plain_handler), SIG_ERR);
    map_file(&file, PROT_READ);
    cr_assert_eq(bxi_guard_add(file.base, BYTES / 2, false, &file.truncated), 0);
    cr_assert_eq(ftruncate(file.fd, 0), 0);
    try_to_read(file.base + BYTES / 2);
    cr_assert_eq(chained, 1);
    cr_assert_eq(is_truncated(&file), 0);
    cr_assert_eq(read_byte(file.base + BYTES / 2 - 1), 0);
    cr_assert_eq(chained, 1);
    cr_assert_eq(is_truncated(&file), 1);
    drop_file(&file);
}

/* Puts a page where the fault was, so that the access succeeds when it returns. */
static void repairing_handler(int signal_number, siginfo_t *info, void *context)
{
    uintptr_t page = (uintptr_t)info->si_addr & ~(uintptr_t)(BXI_PAGE - 1);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

    (void)signal_number, (void)context;
    chained++;
    if (mmap((void *)page, BXI_PAGE, PROT_READ, flags, -1, 0) == MAP_FAILED)
        _exit(1);
    errno = EXDEV;
}

Test(guard, leaves_errno_as_it_was_whatever_the_handler_before_it_does)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO };
    struct file file;

    action.sa_sigaction = repairing_handler;
    cr_assert_eq(sigaction(SIGBUS, &action, NULL), 0);
    map_file(&file, PROT_READ);
    cr_assert_eq(bxi_guard_add(file.base, BXI_PAGE, false, &file.truncated), 0);
    cr_assert_eq(ftruncate(file.fd, 0), 0);
    errno = ENOTTY;
    cr_assert_eq(read_byte(file.base + BXI_PAGE), 0);
    cr_assert_eq(errno, ENOTTY);
    cr_assert_eq(chained, 1);
    drop_file(&file);
}

/* A memory error of the hardware is also reported at an address of the range, and is not a truncated file. */
Test(guard, does_not_hide_memory_that_the_hardware_lost)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO };
    struct file file;
    siginfo_t lost;

    action.sa_sigaction = old_info_handler;
    cr_assert_eq(sigaction(SIGBUS, &action, NULL), 0);
    guard_file(&file, PROT_READ);
    memset(&lost, 0, sizeof(lost));
    lost.si_signo = SIGBUS;
    lost.si_code = BUS_MCEERR_AR;
    lost.si_addr = file.base + 5;
    /* A process may send itself a signal with a code of the kernel's. */
    if (sigsetjmp(escape, 1) == 0)
        syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGBUS, &lost);
    cr_assert_eq(chained, 1);
    cr_assert_eq(chained_address, (void *)(file.base + 5));
    cr_assert_eq(is_truncated(&file), 0);
    cr_assert_eq(read_byte(file.base + 5), 0x5a);
    drop_file(&file);
}

static unsigned char *volatile handler_stack;

static void handler_that_notes_its_stack(int signal_number)
{
    unsigned char here = 0;

    (void)signal_number;
    handler_stack = &here;
    siglongjmp(escape, 1);
}

/* A program may use an alternate signal stack because its own stack has overflowed. */
Test(guard, runs_on_the_stack_that_the_program_has_for_signals)
{
    static unsigned char stack[256 * 1024];
    stack_t alternative = { .ss_sp = stack, .ss_size = sizeof(stack) };
    struct file file;

    cr_assert_eq(sigaltstack(&alternative, NULL), 0);
    cr_assert_neq(signal(SIGBUS, handler_that_notes_its_stack), SIG_ERR);
    map_file(&file, PROT_READ);
    cr_assert_eq(bxi_guard_add(file.base, BXI_PAGE, false, &file.truncated), 0);
    cr_assert_eq(ftruncate(file.fd, 0), 0);
    try_to_read(file.base + BXI_PAGE);
    cr_assert(handler_stack >= stack && handler_stack < stack + sizeof(stack));
    drop_file(&file);
}
