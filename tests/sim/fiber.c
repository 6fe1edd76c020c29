/* SPDX-License-Identifier: MIT */
/*
 * Fibers: each has a stack and a block of thread variables at fixed addresses, so that two runs of a seed have the same
 * addresses. A switch saves the six registers that a function must preserve, and sets the thread pointer. The library
 * compares addresses of thread variables, so copying their values in and out would not do.
 *
 * A fiber's block is a copy of the one thread's: its static thread-local storage (that of this program, which has the
 * copies of the library, and of the C library, with errno), and the head of glibc's struct of a thread above it. What
 * points to that struct still points to the one thread's, so for the C library all fibers are that thread; world.c
 * intercepts what would see the difference.
 */
#include "sim.h"

#include <asm/prctl.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/syscall.h>

#define STACKS ((unsigned char *)0x300000000000)
#define STACK_STRIDE (1u << 20)
#define STACK_BYTES (STACK_STRIDE - 8192)

struct sim_fiber sim_fibers[SIM_FIBERS], *sim_self;
int sim_fiber_count;

#define BLOCKS ((unsigned char *)0x400000000000)
#define BLOCK_STRIDE 65536u
#define ABOVE 2304u                 /* of the C library's struct of a thread */

static struct {
    unsigned char *pointer;         /* of the one thread */
    size_t below, own, image_bytes; /* all static storage; this program's part of it, with its first values */
    const void *image;
} tls;
static void *main_stack_pointer;
static bool has_fsgsbase;
static uint8_t made[SIM_COPIES];    /* fibers of each worker */

/* switch_stacks(&from, to): pushes what a function preserves, and continues on the other stack. */
#if defined(__x86_64__)
void sim_switch_stacks(void **from, void *to);
__asm__(".text\n.globl sim_switch_stacks\n.type sim_switch_stacks,@function\nsim_switch_stacks:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size sim_switch_stacks, . - sim_switch_stacks\n");
#else
#error "the simulator switches fibers on x86-64 only: write sim_switch_stacks for this processor"
#endif

static int find_tls(struct dl_phdr_info *info, size_t bytes, void *first)
{
    (void)bytes;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        size_t below = (size_t)(tls.pointer - (unsigned char *)info->dlpi_tls_data);

        if (header->p_type != PT_TLS || info->dlpi_tls_data == NULL)
            continue;
        if (*(bool *)first) {           /* the program itself */
            tls.own = below;
            tls.image_bytes = header->p_filesz;
            tls.image = (const void *)(info->dlpi_addr + header->p_vaddr);
        }
        tls.below = below > tls.below ? below : tls.below;
    }
    *(bool *)first = false;
    return 0;
}

static void set_thread_pointer(unsigned char *pointer)
{
    if (has_fsgsbase)
        __asm__ volatile("wrfsbase %0" : : "r"(pointer));
    else
        syscall(SYS_arch_prctl, ARCH_SET_FS, pointer);
}

static void *map(void *address, size_t bytes)
{
    if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
        address) {
        perror("sim: memory of fibers");
        exit(2);
    }
    return address;
}

void sim_fibers_reset(void)
{
    if (sim_fibers[0].stack == 0) {
        bool first = true;

        __asm__("mov %%fs:0, %0" : "=r"(tls.pointer));
        has_fsgsbase = getauxval(AT_HWCAP2) & 2;
        dl_iterate_phdr(find_tls, &first);
        for (int i = 0; i < SIM_FIBERS; i++) {
            sim_fibers[i].stack = (uintptr_t)map(STACKS + (size_t)i * STACK_STRIDE + 8192, STACK_BYTES);
            sim_fibers[i].stack_end = sim_fibers[i].stack + STACK_BYTES;
            sim_fibers[i].thread_pointer = (unsigned char *)map(BLOCKS + i * BLOCK_STRIDE, BLOCK_STRIDE) +
                                           BLOCK_STRIDE / 2;
            sim_fibers[i].number = i;
        }
    }
    for (int i = 0; i < sim_fiber_count; i++)
        sim_fibers[i].state = SIM_FREE;
    sim_fiber_count = 0;
    sim_self = NULL;
    memset(made, 0, sizeof made);
}

static void fiber_main(void)
{
    struct sim_fiber *self = sim_self;

    self->result = self->work(self->argument);
    sim_thread_ends();
    sim_fiber_ends();
}

struct sim_fiber *sim_fiber_make(const char *name, int worker, void *(*work)(void *), void *argument)
{
    int free = sim_fiber_count;

    for (int i = 0; i < sim_fiber_count; i++)           /* of its own life before: its times go on */
        if (sim_fibers[i].state == SIM_DEAD && sim_fibers[i].worker == worker && &sim_fibers[i] != sim_self)
            free = i;
    if (free == SIM_FIBERS) {
        fprintf(stderr, "sim: more than %d fibers\n", SIM_FIBERS);
        exit(2);
    }

    struct sim_fiber *fiber = &sim_fibers[free];
    const struct sim_fiber kept = *fiber;
    uintptr_t *top = (uintptr_t *)fiber->stack_end - 2;

    *fiber = (struct sim_fiber){ .name = name, .number = kept.number, .worker = worker, .state = SIM_RUNS, .work = work,
                                 .argument = argument, .stack = kept.stack, .stack_end = kept.stack_end,
                                 .thread_pointer = kept.thread_pointer, .until_ns = SIM_FOREVER,
                                 .id = (uint16_t)(worker << 8 | made[worker]++) };
    memcpy(fiber->thread_pointer - tls.below, tls.pointer - tls.below, tls.below + ABOVE);
    memset(fiber->thread_pointer - tls.own, 0, tls.own);
    memcpy(fiber->thread_pointer - tls.own, tls.image, tls.image_bytes);
    memcpy(fiber->thread_pointer, &fiber->thread_pointer, sizeof fiber->thread_pointer);
    *--top = 0;
    *--top = (uintptr_t)fiber_main;         /* where the switch returns to */
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    fiber->stack_pointer = top;
    if (sim_self != NULL)
        fiber->clock = sim_self->clock;
    fiber->fenced_at = sim_schedule.points;
    fiber->clock.at[fiber->number] = 1 + (free < sim_fiber_count ? kept.clock.at[free] : 0);
    sim_fiber_count += free == sim_fiber_count;
    return fiber;
}

void sim_switch(struct sim_fiber *to)
{
    struct sim_fiber *from = sim_self;

    if (to == from)
        return;
    sim_schedule.switches++;
    from->points += sim_schedule.points - from->runs_since;
    to->runs_since = sim_schedule.points;
    sim_self = to;
    set_thread_pointer(to->thread_pointer);
    sim_switch_stacks(&from->stack_pointer, to->stack_pointer);
}

void sim_fibers_run(struct sim_fiber *first)
{
    sim_self = first;
    set_thread_pointer(first->thread_pointer);
    sim_switch_stacks(&main_stack_pointer, first->stack_pointer);
    sim_self = NULL;
}

_Noreturn void sim_fibers_leave(void)
{
    void *unused;

    set_thread_pointer(tls.pointer);
    sim_switch_stacks(&unused, main_stack_pointer);
    __builtin_unreachable();
}
