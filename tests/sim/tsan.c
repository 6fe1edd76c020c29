/* SPDX-License-Identifier: MIT */
/*
 * What gcc calls with -fsanitize=thread: before each plain access, and instead of each atomic one. The names and types
 * are the compiler's.
 */
#include "sim.h"

#define PC ((uintptr_t)__builtin_return_address(0))

/* ---- orders that are made relaxed ------------------------------------------------------------------- */

#define ORDERS 8192u

static struct order {
    uintptr_t pc;
    uint64_t count;
    bool relaxed;
} *orders;                                  /* shared with the parent; NULL: nobody asks */

static struct order *order_of(uintptr_t pc)
{
    uintptr_t at = pc * 0x9e3779b97f4a7c15 >> 32;

    while (orders[at % ORDERS].pc != 0 && orders[at % ORDERS].pc != pc)
        at++;
    orders[at % ORDERS].pc = pc;
    return &orders[at % ORDERS];
}

static int order_at(int order, uintptr_t pc)
{
    struct order *is;

    if (__builtin_expect(orders == NULL || order == __ATOMIC_RELAXED, 1))
        return order;
    is = order_of(pc);
    is->count++;
    return is->relaxed ? __ATOMIC_RELAXED : order;
}

bool sim_relax(const char *list)
{
    orders = mmap(NULL, ORDERS * sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (orders == MAP_FAILED)
        return false;
    while (*list == '0') {
        char *end;

        order_of(strtoull(list, &end, 16))->relaxed = true;
        list = end + (*end == ',');
    }
    return *list == '\0';
}

void sim_print_orders(void)
{
    for (unsigned i = 0; orders != NULL && i < ORDERS; i++)
        if (orders[i].count > 0)
            printf("order %#zx %llu\n", (size_t)orders[i].pc, (unsigned long long)orders[i].count);
}

/* ---- what the compiler calls ------------------------------------------------------------------------ */

/* `make coverage` alone: the section of gcov's counters. To count is nothing that the library does. */
extern char __start_gcov_counters[] __attribute__((weak)), __stop_gcov_counters[] __attribute__((weak));

static bool counts(const void *address)
{
    return (uintptr_t)address - (uintptr_t)__start_gcov_counters <
           (uintptr_t)__stop_gcov_counters - (uintptr_t)__start_gcov_counters;
}

#define PLAIN(name, bytes, write)                                                                   \
    void __tsan_##name(void *address);                                                              \
    void __tsan_##name(void *address)                                                               \
    {                                                                                               \
        if (!counts(address))                                                                       \
            sim_plain(address, bytes, write, PC);                                                   \
    }

PLAIN(read1, 1, false)
PLAIN(read2, 2, false)
PLAIN(read4, 4, false)
PLAIN(read8, 8, false)
PLAIN(read16, 16, false)
PLAIN(write1, 1, true)
PLAIN(write2, 2, true)
PLAIN(write4, 4, true)
PLAIN(write8, 8, true)
PLAIN(write16, 16, true)
PLAIN(unaligned_read2, 2, false)
PLAIN(unaligned_read4, 4, false)
PLAIN(unaligned_read8, 8, false)
PLAIN(unaligned_read16, 16, false)
PLAIN(unaligned_write2, 2, true)
PLAIN(unaligned_write4, 4, true)
PLAIN(unaligned_write8, 8, true)
PLAIN(unaligned_write16, 16, true)

void __tsan_init(void);
void __tsan_read_range(void *address, size_t bytes);
void __tsan_write_range(void *address, size_t bytes);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_signal_fence(int order);

void __tsan_init(void)
{
}

void __tsan_read_range(void *address, size_t bytes)
{
    sim_plain(address, bytes, false, PC);
}

void __tsan_write_range(void *address, size_t bytes)
{
    sim_plain(address, bytes, true, PC);
}

void __tsan_func_entry(void *caller)
{
    (void)caller;
}

void __tsan_func_exit(void)
{
}

void __tsan_atomic_thread_fence(int order)
{
    sim_fence(order_at(order, PC), PC);
}

void __tsan_atomic_signal_fence(int order)
{
    (void)order;
}

#define RMW(bits, name, change)                                                                     \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile void *a, uint##bits##_t v, int order);     \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile void *a, uint##bits##_t v, int order)      \
    {                                                                                               \
        return (uint##bits##_t)sim_rmw(a, bits / 8, change, v, order_at(order, PC), PC);            \
    }
#define CAS(bits, name)                                                                             \
    int __tsan_atomic##bits##_compare_exchange_##name(volatile void *a, uint##bits##_t *expected,   \
                                                      uint##bits##_t v, int order, int failed);     \
    int __tsan_atomic##bits##_compare_exchange_##name(volatile void *a, uint##bits##_t *expected,   \
                                                      uint##bits##_t v, int order, int failed)      \
    {                                                                                               \
        uint64_t was = *expected;                                                                   \
        bool done = sim_cas(a, bits / 8, &was, v, order_at(order, PC), order_at(failed, PC), PC);   \
                                                                                                    \
        *expected = (uint##bits##_t)was;                                                            \
        return done;                                                                                \
    }
#define ATOMIC(bits)                                                                                \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile void *a, int order);                   \
    void __tsan_atomic##bits##_store(volatile void *a, uint##bits##_t v, int order);                \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile void *a, int order)                    \
    {                                                                                               \
        return (uint##bits##_t)sim_load(a, bits / 8, order_at(order, PC), PC);                      \
    }                                                                                               \
    void __tsan_atomic##bits##_store(volatile void *a, uint##bits##_t v, int order)                 \
    {                                                                                               \
        sim_store(a, bits / 8, v, order_at(order, PC), PC);                                         \
    }                                                                                               \
    CAS(bits, strong)                                                                               \
    CAS(bits, weak)                                                                                 \
    RMW(bits, exchange, SIM_SET)                                                                    \
    RMW(bits, fetch_add, SIM_ADD)                                                                   \
    RMW(bits, fetch_sub, SIM_SUB)                                                                   \
    RMW(bits, fetch_and, SIM_AND)                                                                   \
    RMW(bits, fetch_or, SIM_OR)                                                                     \
    RMW(bits, fetch_xor, SIM_XOR)                                                                   \
    RMW(bits, fetch_nand, SIM_NAND)

ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)
