/* SPDX-License-Identifier: MIT */
/*
 * The simulator: the engine's real C, run where a seed chooses who runs, what is seen when, and when time passes.
 *
 * Real: every line of shm/ and of the engine's rooms, compiled with -fsanitize=thread but linked with the __tsan_*
 * functions of tsan.c instead of the compiler's run-time library. Simulated: threads (fiber.c), the order in which they
 * run (schedule.c), the order in which stores become visible (memory.c), and the functions of the C library that
 * world.syms names (world.c). README.md says what follows from that.
 *
 *     program    a test: it spawns fibers, keeps the truth beside what they do, and calls sim_fail if they differ
 *     fiber      a thread of the engine, or of a program. All fibers run on one thread of the process
 *     point      where another fiber may run: before each access to memory that is not the fiber's own stack, and
 *                before each function of world.syms
 *     schedule   one run of a program from its beginning. A 64-bit seed decides everything in it
 *     finding    what must not be. It ends the schedule, and is printed with the command that replays it
 *
 * Invariants.
 *  S1  Between two points no other fiber runs, and no store of another fiber becomes visible.
 *  S2  Every choice comes from sim_choose or sim_random. So two runs of a seed have the same trace, and the same hash.
 *  S3  A store of a fiber is in its store buffer or in memory. The fiber itself reads its own newest one. Stores to one
 *      address leave the buffer in their order; a release store leaves it after all that came before it.
 *  S4  The buffer is empty behind a full fence, and at each function of world.syms but those of the heap; behind any
 *      read-modify-write, if the schedule is not weak. Before a sequentially consistent load or read-modify-write, no
 *      such store is left in it.
 *  S5  Simulated time passes only when no fiber can run: then it is set to the earliest deadline of a sleep. A read of
 *      the clock adds tick_ns.
 */
#ifndef TESTS_SIM_H
#define TESTS_SIM_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SIM_FIBERS 64
#define SIM_FOREVER UINT64_MAX

/* ---- What a program uses ---------------------------------------------------------------------------- */

struct sim_program {
    const char *name;
    int workers;            /* copies of the library that it uses; worker 0 begins */
    uint32_t points;        /* about how many points a schedule has: where priorities change */
    bool resets;            /* it leaves statics of the library, descriptors and mappings behind */
    void (*start)(int worker);      /* in a fiber of that worker */
    void (*check)(void);            /* worker 0, when all fibers have ended. Or NULL */
    void (*again)(int worker);      /* worker 0, when one that died is started again: for the truth. Or NULL */
    void (*quiet)(uint64_t ns);     /* nobody can run, and so much time would pass: a finding? Or NULL */
};
extern const struct sim_program sim_programs[];     /* of each copy of the library; ends with a NULL name */
extern bool sim_long_stops;                 /* --long-stops */

int sim_spawn(const char *name, void *(*work)(void *), void *argument);     /* a fiber of this worker; its number */
void sim_join(int fiber);
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));     /* a finding */
void sim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));     /* a line of the trace */
uint32_t sim_choose(uint32_t most);         /* 0 .. most - 1 */
uint64_t sim_now(void);
/* The truth: counters of all workers, which no race is looked for in. 0 at the beginning. */
#define SIM_TRUTHS 256
uint64_t sim_truth(unsigned index);
void sim_count(unsigned index, int64_t by);
/* The worker dies at the point that is so many points away: its fibers never run again, its memory stays as it is, its
 * descriptors are closed. Its pidfd becomes readable some points later, at most when nobody can run. */
void sim_kill_later(int worker, uint32_t points);
bool sim_is_dead(int worker);
int sim_deaths(int worker);                 /* how often it has died; -1: all together */
/* Its process is started again: so many points after its death is heard of, if another worker has not ended. */
void sim_start_again_later(int worker, uint32_t points);
bool sim_is_gone(int worker);               /* dead, and it is not started again */
/* The worker is stopped at the point that is so many points away, for so long. */
void sim_stop_later(int worker, uint32_t points, uint64_t ns);
/* No fiber of it runs now; all stops of the schedule so far, together: what may take so much longer. */
bool sim_is_stopped(int worker);
bool sim_any_is_stopped(void);
uint64_t sim_stopped_ns(void);
int sim_deaths_heard_of(void);              /* so many pidfds are readable */
/* Before its start. Each host has its own clock; workers of several hosts meet over BX_ROOT. */
void sim_put_on_host(int worker, int host);
int sim_host_of(int worker);                /* -1: all are on one */
int sim_names_left(void);                   /* in /dev/shm and the directory of sockets; removes them */
bool sim_can_refuse(void);                  /* --fail */
/* With --fail: the error of the call that has failed, or 0; of which function, and in which worker. */
int sim_refusal(void);
const char *sim_refused_function(void);
int sim_refused_worker(void);
/* The program reads or writes memory of the library: a point, and an access that must be ordered. */
void sim_access(const void *address, size_t bytes, bool write);
/* Sleeps until can(argument), or until the time. False: the time came. can is asked again after each change. */
bool sim_block(const char *why, bool (*can)(void *argument), void *argument, uint64_t until_ns);
void sim_yield(void);

/* ---- fiber.c ---------------------------------------------------------------------------------------- */

struct sim_clock {
    uint32_t at[SIM_FIBERS];
};

struct sim_store {                          /* in a store buffer */
    uint64_t key;
    void *address;
    uint64_t value;
    uint8_t bytes;
    bool release, fenced, change, total;    /* a release fence came behind it; a read-modify-write's; seq_cst */
    uint32_t time;                          /* its fiber's */
    struct sim_clock clock;                 /* what a reader that acquires it is ordered behind */
};
#define SIM_BUFFERED 24

struct sim_fiber {
    const char *name;
    int number, worker;
    uint16_t id;                            /* worker * 256 + the how manieth of its fibers */
    uint64_t points, runs_since;            /* that it came to before it began to run; when that was */
    uint32_t asked;                         /* choices that its program has asked for */
    uint32_t chose_at;                      /* sim_nth: of that point */
    uint8_t chose[16];
    enum { SIM_FREE, SIM_RUNS, SIM_BLOCKED, SIM_ENDED, SIM_DEAD } state;
    void *(*work)(void *);
    void *argument, *result;
    void *stack_pointer;
    uintptr_t stack, stack_end;
    unsigned char *thread_pointer;          /* its thread variables are below */
    bool (*can)(void *);
    void *can_argument;
    const char *why;
    uint64_t until_ns;
    bool can_now;                           /* how the sleep ended */
    bool signalled;                         /* of a futex or a condition variable, at: */
    const void *waits_on;
    uint32_t priority;
    uint64_t held_until;                    /* points: others run first */
    uint64_t fenced_at;                     /* points: its loads are not early over this */
    bool to_hold;                           /* at its next point */
    void *own[48];                          /* pthread_getspecific */
    struct sim_clock clock, released, acquired;     /* acquired: by relaxed loads, for a fence */
    int buffered;
    struct sim_store buffer[SIM_BUFFERED];
};

extern struct sim_fiber sim_fibers[SIM_FIBERS], *sim_self;     /* sim_self: who runs */
extern int sim_fiber_count;
void sim_fibers_reset(void);
struct sim_fiber *sim_fiber_make(const char *name, int worker, void *(*work)(void *), void *argument);
void sim_switch(struct sim_fiber *to);
_Noreturn void sim_fiber_ends(void);            /* schedule.c */
void sim_fibers_run(struct sim_fiber *first);   /* returns when the schedule is over */
_Noreturn void sim_fibers_leave(void);          /* to there */

/* ---- schedule.c ------------------------------------------------------------------------------------- */

enum sim_way { SIM_RANDOM, SIM_PRIORITIES, SIM_ALL };

struct sim_schedule {
    uint64_t seed, hash, points, switches, now_ns;
    enum sim_way way;
    uint32_t tick_ns;                       /* by how much a read of the clock moves it */
    bool disturbed;                         /* sleeps may end without cause, or with EINTR */
    bool weak;                              /* stores may leave the buffer in another order */
    uint32_t places, place_factor;          /* how many of 2^32 are places; which */
    bool over, found, trace;
    char finding[1024];
};
extern struct sim_schedule sim_schedule;
extern int64_t sim_next;                    /* points to go until something is chosen */
extern uint64_t sim_points_most;            /* a schedule with more does not end */
void sim_run(const struct sim_program *const *copies, uint64_t seed);
bool sim_next_of_all(void);                 /* SIM_ALL: prepares the next path; false: there is none */
void sim_choose_all(uint32_t preemptions);
void sim_point_slow(uintptr_t pc);
void sim_hold(void);
void sim_stored(void);                          /* a store has entered a buffer: chooses when it leaves */
void sim_trace_point(const char *what, uint64_t key, uintptr_t pc);
uint64_t sim_random(void);
uint32_t sim_draw(uint32_t most);               /* 0 .. most - 1: a choice of the simulator's own */
bool sim_disturbs(void);                        /* now and then, in some schedules */
uint64_t sim_paths(void);
void sim_start_again(int worker);

/* A place is where this schedule holds fibers up: some of the program's points, in all of their executions. */
static inline bool sim_is_place(uintptr_t pc, uint32_t shift)
{
    return (uint32_t)pc * sim_schedule.place_factor < sim_schedule.places << shift;
}

/* Before each access: `what` for the trace. */
static inline void sim_point(const char *what, uint64_t key, uintptr_t pc)
{
    struct sim_schedule *s = &sim_schedule;

    s->points++;
    s->hash = (s->hash ^ (pc + (uint64_t)sim_self->number * 0x9e3779b9)) * 0x100000001b3;
    if (__builtin_expect(s->trace, 0))
        sim_trace_point(what, key, pc);
    if (__builtin_expect((--sim_next <= 0) | sim_is_place(pc, 0), 0))
        sim_point_slow(pc);
}

/* ---- memory.c --------------------------------------------------------------------------------------- */

void sim_memory_reset(void);
uint64_t sim_key(const volatile void *address);     /* the same for all mappings of one byte */
void sim_plain(const void *address, size_t bytes, bool write, uintptr_t pc);
void sim_frees(const void *block, size_t bytes, uintptr_t pc);
uint64_t sim_load(const volatile void *address, unsigned bytes, int order, uintptr_t pc);
void sim_store(volatile void *address, unsigned bytes, uint64_t value, int order, uintptr_t pc);
enum sim_change { SIM_SET, SIM_ADD, SIM_SUB, SIM_AND, SIM_OR, SIM_XOR, SIM_NAND };
uint64_t sim_rmw(volatile void *address, unsigned bytes, enum sim_change change, uint64_t value, int order,
                 uintptr_t pc);
bool sim_cas(volatile void *address, unsigned bytes, uint64_t *expected, uint64_t value, int order, int failed,
             uintptr_t pc);
void sim_fence(int order, uintptr_t pc);
void sim_flush(struct sim_fiber *fiber);        /* all of its stores become visible */
void sim_flush_range(const void *address, size_t bytes);        /* the stores of all to there, and those before them */
void sim_flush_one(struct sim_fiber *fiber);    /* one of them, which the seed chooses */
void sim_flush_this(struct sim_fiber *fiber, int index);
void sim_clock_join(struct sim_clock *clock, const struct sim_clock *with);
void sim_release_to(struct sim_clock *clock);   /* this fiber's clock, and begins the next of its times */

/* ---- tsan.c ---------------------------------------------------------------------------------------- */

bool sim_relax(const char *list);               /* the atomic accesses that return to these addresses; counts all */
void sim_print_orders(void);

/* ---- choices.c -------------------------------------------------------------------------------------- */

/* The first are made where a point begins. Fibers are named by their ids. */
enum sim_kind {
    SIM_HEARD_OF, SIM_KILLED, SIM_STARTED_AGAIN,        /* value: the worker */
    SIM_STOPPED,                            /* value: worker << 20 | milliseconds */
    SIM_VISIBLE,                            /* value: fiber << 8 | place in its buffer */
    SIM_PREEMPTED,                          /* value: the fiber that runs */
    SIM_NEXT,                               /* the fiber cannot go on. Value: the one that runs */
    SIM_ASKED,                              /* by the program. Value: the answer */
    SIM_EARLY, SIM_OLD, SIM_DISTURBED,      /* a load, a compare and swap that fails, a sleep. Value: 1 */
    SIM_KINDS
};
struct sim_choice {
    uint16_t group;                         /* fiber << 1; | 1: SIM_ASKED, and `at` counts these */
    uint8_t kind, nth;
    bool used;
    uint32_t at, value, order;              /* at: points of the fiber */
};
enum sim_mode { SIM_FORGETS, SIM_WRITES, SIM_MAKES_AGAIN };

void sim_choices_share(void);
void sim_choices_begin(enum sim_mode mode);
enum sim_mode sim_mode(void);
void sim_choices_reset(void);                   /* a schedule begins */
unsigned sim_nth(enum sim_kind kind);           /* so many of this kind could be made before, at this point */
void sim_chosen(enum sim_kind kind, unsigned nth, uint32_t value);          /* writes it down, or nothing */
bool sim_chosen_again(enum sim_kind kind, unsigned nth, uint32_t *value);   /* false: not here */
const struct sim_choice *sim_chosen_here(void); /* the next one that is made where a point begins, or NULL */
uint32_t sim_points_to_choice(void);            /* where this fiber has the next one of these */
bool sim_chooses(enum sim_kind kind, uint32_t one_in);
uint32_t sim_asked(uint32_t most);
void sim_choices_sort(void);
void sim_choices_print(void);
bool sim_choices_read(const char *text);
uint32_t sim_choices_count(void);
void sim_choices_shrink(bool (*stays)(void), bool (*is_late)(void));

/* ---- fate.c ----------------------------------------------------------------------------------------- */

void sim_fate_reset(const struct sim_program *program);
void sim_death_is_heard_of(int worker);
bool sim_comebacks_begin(uint64_t points);
uint64_t sim_comeback_at(int worker);
void sim_comeback_now(int worker);
void sim_stop_now(int worker, uint64_t ns);
uint64_t sim_stops_begin(uint64_t points);
uint64_t sim_stops_end_ns(void);
bool sim_stop_early(int worker);

/* ---- copies.c --------------------------------------------------------------------------------------- */

#define SIM_COPIES 5
extern const struct sim_program *const sim_copies[SIM_COPIES];      /* the tables of programs */
void sim_statics_keep(void);
void sim_statics_reset(int copies);             /* of the first so many */
void sim_statics_reset_one(int copy);

/* ---- world.c ---------------------------------------------------------------------------------------- */

void sim_world_reset(bool all);                 /* all: descriptors and mappings too */
void *sim_memory(size_t bytes);                 /* of the simulated heap, zeroed */
/* By a worker that ends: a finding. */
void sim_memory_left(int worker);
void sim_descriptors_left(int worker);
/* A shared mapping: the object and the offset in it of an address; false: private. */
bool sim_shared(uintptr_t address, uint64_t *key);
extern char sim_directory[64];                  /* for names; of this run of the simulator */
void sim_descriptors_close(int worker, bool sockets_only);      /* it dies */
void sim_mappings_close(int worker);
void sim_pidfd_ready(int worker);               /* the others hear of it */
uint64_t sim_timerfds_next_ns(void);            /* the first time that one is set to */
void sim_timerfds_fire(void);
void sim_thread_ends(void);                     /* calls the destructors of its pthread_setspecific */
void sim_wires_die(int worker);                 /* wire.c: nothing comes to it any more */
void sim_wires_left(int worker);
bool sim_wires_move(void);                      /* nobody can run. False: nothing is under way to who sleeps */
extern uint64_t sim_changes;                    /* of descriptors: who sleeps on one looks again */

/* ---- world_fail.c ------------------------------------------------------------------------------------ */

/* From the last schedule, in which none failed: one call of each place, or every one, in an order of the seed. How
 * many, in how many ways. */
uint64_t sim_refusals_plan(uint64_t seed, bool every);
void sim_refusals_choose(uint64_t index);       /* one of them, for the next schedule; UINT64_MAX: none */
bool sim_refusals_read(const char *text);       /* FUNCTION:N:ERROR */
void sim_refusals_write(char *text, size_t bytes);

#endif
