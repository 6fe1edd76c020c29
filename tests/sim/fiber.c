/* SPDX-License-Identifier: MIT */
/*
 * Fibers: each has a stack at a fixed address, so that two runs of a seed have the same addresses. A switch saves the
 * six registers that a function must preserve, errno, and the thread variables of this program, which are those of the
 * copies of the library (some 300 bytes each): all of them are in its one block of static thread-local storage. The
 * C library's own thread variables but errno are shared by all fibers; world.c intercepts what would need more.
 */
#include "sim.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STACKS ((unsigned char *)0x300000000000)
#define STACK_STRIDE (1u << 20)
#define STACK_BYTES (STACK_STRIDE - 8192)

struct sim_fiber sim_fibers[SIM_FIBERS], *sim_self;
int sim_fiber_count;

static struct {
    unsigned char *block;           /* of the one thread */
    size_t bytes, image_bytes;
    const void *image;
} tls;
static void *main_stack_pointer;

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

static int find_tls(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];

        if (header->p_type != PT_TLS)
            continue;
        tls.bytes = header->p_memsz;
        tls.image_bytes = header->p_filesz;
        tls.image = (const void *)(info->dlpi_addr + header->p_vaddr);
        tls.block = info->dlpi_tls_data;
    }
    return 1;                       /* the program itself comes first */
}

void sim_fibers_reset(void)
{
    if (sim_fibers[0].stack == 0) {
        dl_iterate_phdr(find_tls, NULL);
        for (int i = 0; i < SIM_FIBERS; i++) {
            void *stack = STACKS + (size_t)i * STACK_STRIDE + 8192;

            if (mmap(stack, STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != stack) {
                perror("sim: a stack");
                exit(2);
            }
            sim_fibers[i].stack = (uintptr_t)stack;
            sim_fibers[i].stack_end = (uintptr_t)stack + STACK_BYTES;
            sim_fibers[i].thread_data = malloc(tls.bytes + 1);
            sim_fibers[i].number = i;
        }
    }
    for (int i = 0; i < sim_fiber_count; i++)
        sim_fibers[i].state = SIM_FREE;
    sim_fiber_count = 0;
    sim_self = NULL;
}

static void fiber_main(void)
{
    struct sim_fiber *self = sim_self;

    self->result = self->work(self->argument);
    sim_fiber_ends();
}

struct sim_fiber *sim_fiber_make(const char *name, int worker, void *(*work)(void *), void *argument)
{
    if (sim_fiber_count == SIM_FIBERS) {
        fprintf(stderr, "sim: more than %d fibers\n", SIM_FIBERS);
        exit(2);
    }

    struct sim_fiber *fiber = &sim_fibers[sim_fiber_count++];
    const struct sim_fiber kept = *fiber;
    uintptr_t *top = (uintptr_t *)fiber->stack_end - 2;

    *fiber = (struct sim_fiber){ .name = name, .number = kept.number, .worker = worker, .state = SIM_RUNS, .work = work,
                                 .argument = argument, .stack = kept.stack, .stack_end = kept.stack_end,
                                 .thread_data = kept.thread_data, .until_ns = SIM_FOREVER };
    memcpy(fiber->thread_data, tls.image, tls.image_bytes);
    memset(fiber->thread_data + tls.image_bytes, 0, tls.bytes - tls.image_bytes);
    *--top = 0;
    *--top = (uintptr_t)fiber_main;         /* where the switch returns to */
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    fiber->stack_pointer = top;
    if (sim_self != NULL)
        fiber->clock = sim_self->clock;
    fiber->clock.at[fiber->number] = 1;
    return fiber;
}

void sim_switch(struct sim_fiber *to)
{
    struct sim_fiber *from = sim_self;

    if (to == from)
        return;
    sim_schedule.switches++;
    memcpy(from->thread_data, tls.block, tls.bytes);
    from->error = errno;
    memcpy(tls.block, to->thread_data, tls.bytes);
    errno = to->error;
    sim_self = to;
    sim_switch_stacks(&from->stack_pointer, to->stack_pointer);
}

void sim_fibers_run(struct sim_fiber *first)
{
    unsigned char *kept = malloc(tls.bytes + 1);

    memcpy(kept, tls.block, tls.bytes);
    memcpy(tls.block, first->thread_data, tls.bytes);
    sim_self = first;
    sim_switch_stacks(&main_stack_pointer, first->stack_pointer);
    memcpy(tls.block, kept, tls.bytes);
    free(kept);
    sim_self = NULL;
}

_Noreturn void sim_fibers_leave(void)
{
    void *unused;

    sim_switch_stacks(&unused, main_stack_pointer);
    __builtin_unreachable();
}
