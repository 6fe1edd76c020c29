/* SPDX-License-Identifier: MIT */
/*
 * The doorbell of shm/doorbell.h: one sleeper, two producers with a ring each.
 *
 * Memory is x86-TSO: the stores to armed and to the two tails go through the FIFO of the storing thread, which Memory
 * empties at any time; a fence waits until the own FIFO is empty. The eventfd is a counter in the kernel: sequentially
 * consistent; poll and read are two steps; a sleep may also end once by a timeout.
 *
 * With -DTHREADS the producers are threads of one process: what one has rung for, the other does not ring for.
 *
 * Property. When no process can move, the sleeper sleeps and no frame is unread (Last).
 * README.md says what each control (NO_..., READ_LEFT) takes away.
 *
 * It stands for these functions. The numbers are checksums of their text (tests/check/model.sh):
 *     shm/doorbell.c bxi_bell_arm 1587908299
 *     shm/doorbell.c bxi_bell_disarm 697614033
 *     shm/doorbell.c bxi_bell_look 3276596549
 *     shm/doorbell.c bxi_bell_drain 1416603929
 *     shm/doorbell.h bxi_bell_armed 3707922074
 *     lib/rpc/bell.c bxi_bells_flush 1201521504
 *     lib/rpc/bell.c bxi_bell_look_unlocked 3410950526
 *     lib/base/lock.h bxi_unlock 2144668998
 *     shm/atomic.h bxi_fence_seq_cst_behind_exchange 904744734
 *     lib/run/progress.c bxi_work_waits 3277565899
 *     lib/rpc/source.c ready 3311547064
 */
#ifndef FRAMES
#define FRAMES 2                        /* of each producer */
#endif

#define SLEEPER 2                       /* producers are 0 and 1 */

#define ARMED 2                         /* 0 and 1 are the tails */
byte mem[3];
chan buffer[3] = [3] of { byte, byte };

byte head[2];                           /* the sleeper's */
byte eventfd;                           /* its counter */
bool stray;                             /* a read of the eventfd in flight that nobody waits for */

#ifdef THREADS
#define process(t) 0
#else
#define process(t) t
#endif
byte rang_for[2];                       /* of a process: the armed word for which it rang last */
bool lock[2];
#define is_armed(t) (who(mem[ARMED]) != AWAKE && mem[ARMED] != rang_for[process(t)])

#define AWAKE 0
#define BACKGROUND 1
#define who(word) ((word) & 3)

#define store(t, word, value) buffer[t]!word,value
#define fence(t) (len(buffer[t]) == 0)

#ifdef NO_FENCE_SLEEPER
#define FENCE_SLEEPER true
#else
#define FENCE_SLEEPER fence(SLEEPER)
#endif
#ifdef NO_FENCE_PRODUCER
#define FENCE_PRODUCER(i) true
#else
#define FENCE_PRODUCER(i) fence(i)
#endif

proctype Sleeper()
{
    byte count;
    bool timed_out, asleep;

    do
    :: atomic { mem[0] != head[0] -> head[0]++ }
    :: atomic { mem[1] != head[1] -> head[1]++ }
    :: atomic {                         /* a pass found nothing: D1 */
        mem[0] == head[0] && mem[1] == head[1] ->
#ifndef NO_COUNT
        count++;
#endif
        store(SLEEPER, ARMED, (count << 2) | BACKGROUND)
       }
#ifndef NO_RECHECK
       if                               /* D2, D3: each ring is a look of its own */
       :: atomic { FENCE_SLEEPER && mem[0] != head[0] -> skip }
       :: atomic { FENCE_SLEEPER && mem[0] == head[0] -> asleep = true }
          if
          :: atomic { mem[1] != head[1] -> asleep = false }
          :: atomic { mem[1] == head[1] -> skip }
          fi
       fi;
#else
       atomic { FENCE_SLEEPER -> asleep = true };
#endif
       if
       :: asleep ->                     /* D4: poll, then a read that does not block */
end_asleep:
          if
          :: eventfd > 0
          :: atomic {
                !timed_out -> timed_out = true;
#ifdef READ_LEFT
                stray = true
#endif
             }
          fi;
          atomic { eventfd = 0; asleep = false }
       :: else
       fi;
       store(SLEEPER, ARMED, (count << 2) | AWAKE)
    od
}

/* Whoever rings has the lock of its process; it may look without. */
proctype Producer(byte me)
{
    byte sent;
    bool armed;

    do
    :: sent == FRAMES -> break
    :: else ->
        atomic { sent++; store(me, me, sent) }                  /* P1 */
        atomic { FENCE_PRODUCER(me); armed = is_armed(me) }     /* P2, P3 */
        if
        :: armed ->                                             /* P4 */
            atomic { !lock[process(me)] -> lock[process(me)] = true };
            atomic {
                armed = is_armed(me);
                if
                :: armed -> rang_for[process(me)] = mem[ARMED]
                :: else
                fi
            }
            atomic {
                if
                :: armed -> eventfd++
                :: else
                fi;
                lock[process(me)] = false;
                armed = false
            }
        :: else
        fi
    od
}

inline flush(t)
{
    buffer[t]?word,value;
    mem[word] = value;
    word = 0;
    value = 0
}

proctype Memory()
{
    byte word, value;

end_idle:
    do
    :: atomic { flush(0) }
    :: atomic { flush(1) }
    :: atomic { flush(SLEEPER) }
    :: atomic { stray && eventfd > 0 -> eventfd = 0; stray = false }
    od
}

proctype Last()
{
end_last:
    timeout;
    assert(head[0] == FRAMES && head[1] == FRAMES)
}

init
{
    atomic {
        run Memory();
        run Sleeper();
        run Producer(0);
        run Producer(1);
        run Last()
    }
}
