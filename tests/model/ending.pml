/* SPDX-License-Identifier: MIT */
/*
 * When the job is over (lib/rpc/ending.c): workers that want to leave decide it, each for itself, from what they
 * publish. N workers send one-way calls to each other, MESSAGES in total: the programs of the first SENDERS workers
 * some before they begin to leave, then the handlers only. KILLS workers die, each at any step.
 *
 * A step is a section of run->lock, a store, or a load of a word of another worker. The loads of one check are steps of
 * their own, between which the others move. `moved` stands for positions that differ from those at the last
 * publication, `due` for the event that has the role check again. A worker reads the words of the others only when it
 * is due, so without a bell it waits for ever.
 *
 * Properties. When a worker decides, no living worker runs a handler, and none has an unread frame (Decided). No
 * worker sends to one that has left. In the end all that live have left. README.md says what each control takes away.
 *
 * It stands for
 *     lib/rpc/ending.c bxi_ending_begin 3227492798
 *     lib/rpc/ending.c bxi_ending_allows 3788024036
 *     lib/rpc/ending.c nothing_is_unread 3678286851
 *     lib/rpc/ending.c next_round 95787888
 *     lib/rpc/ending.c bxi_ending_check 958219600
 *     lib/rpc/ending.c bxi_ending_has_moved 2692876819
 */
#ifndef N
#define N 2
#endif
#ifndef SENDERS
#define SENDERS N
#endif
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef KILLS
#define KILLS 0
#endif
#define pair(from, to) ((from) * N + (to))
#define bit(x) (1 << (x))

byte unread[N * N];                     /* frames in the ring: pair(from, to) */
byte round[N], since[N];                /* published, as one word */
byte running[N];                        /* handlers */
byte closed[N];                         /* the dead that it has closed */
bool began[N], moved[N], due[N], left[N], dead[N];
byte messages = MESSAGES;
byte kills = KILLS;

inline send(to)
{
    assert(!left[to]);
    messages--;
    unread[pair(me, to)]++;
    moved[me] = true;
    due[me] = true
}

/* Its handler runs from here on. */
inline read(from)
{
    unread[pair(from, me)]--;
    running[me]++;
    moved[me] = true;
    due[me] = true
}

/* A death is seen, and what is unread is dropped. */
inline close(whom)
{
    closed[me] = closed[me] | bit(whom);
    moved[me] = moved[me] || unread[pair(whom, me)] > 0;
    unread[pair(whom, me)] = 0;
    due[me] = true
}

inline ring_all()
{
#ifndef NO_RING
    j = 0;
    do
    :: j < N -> due[j] = due[j] || j != me; j++
    :: else -> break
    od;
#endif
    j = 0
}

#if N > 2
#define reads_nothing(x) (unread[pair(0, x)] == 0 && unread[pair(1, x)] == 0 && unread[pair(2, x)] == 0)
#else
#define reads_nothing(x) (unread[pair(0, x)] == 0 && unread[pair(1, x)] == 0)
#endif

inline Decided()
{
    j = 0;
    do
    :: j < N -> assert(dead[j] || left[j] || (running[j] == 0 && reads_nothing(j))); j++
    :: else -> break
    od;
    j = 0
}

#ifdef WAIT_FOR_DEAD
#define is_awaited(x) ((x) != me)
#else
#define is_awaited(x) ((x) != me && !(closed[me] & bit(x)))
#endif
#if defined(ONE_ROUND)
#define decides(x) (round[me] > 0)
#elif defined(NO_SINCE)
#define decides(x) (round[me] > 1)
#else
#define decides(x) (since[x] < round[me])
#endif
#ifdef CONSUMED
#define is_quiet true
#else
#define is_quiet (running[me] == 0)
#endif
#define may_run (!dead[me] && !left[me])
#ifdef SEND_IDLE
#define may_send(to) (may_run && messages > 0 && !left[to])
#else
#define may_send(to) (may_run && messages > 0 && (running[me] > 0 || (!began[me] && me < SENDERS)))
#endif
#define steps_with(x) \
    :: atomic { may_send(x) -> send(x) } \
    :: atomic { may_run && unread[pair(x, me)] > 0 && !(closed[me] & bit(x)) -> read(x) } \
    :: atomic { may_run && dead[x] && !(closed[me] & bit(x)) -> close(x) }

#define is_unread_from(x) (((x) == me || is_awaited(x)) && unread[pair(x, me)] > 0)
#define look_into_rings \
    do \
    :: atomic { j < N && is_unread_from(j) -> j = 0; goto done } \
    :: atomic { j < N && !is_unread_from(j) -> j++ } \
    :: atomic { j == N -> j = 0; break } \
    od;

proctype Worker(byte me)
{
    byte j;
    bool is_over, published;

look:
    do
    :: atomic { may_run && kills > 0 -> kills--; dead[me] = true; goto last }
    :: atomic { may_run && !began[me] -> began[me] = true; due[me] = true; ring_all() }
    steps_with(0)
    steps_with(1)
#if N > 2
    steps_with(2)
#endif
    :: atomic { may_run && running[me] > 0 -> running[me]--; due[me] = true }
    :: atomic { may_run && began[me] && due[me] -> due[me] = false; goto check }
    :: atomic { left[me] -> goto last }
    od;

check:
    j = 0;
#ifdef RINGS_FIRST
    look_into_rings
#endif
    is_over = true;
    do
    :: atomic { j < N && is_awaited(j) && round[j] < round[me] -> j = 0; goto done }
    :: atomic { j < N && !(is_awaited(j) && round[j] < round[me]) ->
                is_over = is_over && (!(j == me || is_awaited(j)) || decides(j)); j++ }
    :: atomic { j == N && is_over -> j = 0; left[me] = true; Decided(); goto done }
    :: atomic { j == N && !is_over && !is_quiet -> j = 0; goto done }
    :: atomic { j == N && !is_over && is_quiet -> j = 0; break }
    od;
#if !defined(NO_UNREAD) && !defined(RINGS_FIRST)
    look_into_rings
#endif
    atomic {
        round[me]++;
        if
        :: since[me] == 0 || moved[me] -> since[me] = round[me]
        :: else
        fi;
        moved[me] = false;
        published = true;
        goto check
    };

done:
    atomic {
        if
        :: published -> published = false; ring_all()
        :: else
        fi;
        is_over = false;
        goto look
    };

last:
    skip
}

init
{
    atomic {
        run Worker(0);
        run Worker(1);
#if N > 2
        run Worker(2)
#endif
    }
}
