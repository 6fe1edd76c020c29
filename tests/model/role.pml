/* SPDX-License-Identifier: MIT */
/*
 * The progress role of one worker (lib/run/progress.c, lib/run/wait.c, lib/run/background.c): which thread has it,
 * which threads sleep where, and how the role changes hands.
 *
 * U: user threads; each waits for the reply to its own call. B: the background thread. P: a thread of a peer that
 * publishes the replies, and REQUESTS frames for which no thread waits, and rings as in doorbell.h: not for a reply if
 * the word is LAZY. L (-DLOCAL): a thread of the pool that completes the last user's future. More variants: the last
 * user gives up at any time (-DGIVE_UP), waits passively for two frames, each of which wakes it (-DPASSIVE), or does
 * not wait but has a callback (-DEAGER). -DOWN_LOOP: there is no B, and the thread of the program's own loop is busy
 * elsewhere; then P sends only frames for which a thread waits. -DEND: at any time E, a thread in bxi_job_leave, stops
 * the waits and the background thread and keeps the role; the users' waits end then. -DINTERRUPT: at any time I, a
 * thread or signal handler in bx_job_interrupt, ends the users' waits; wait_lock has a word then, and I never waits for
 * it. -DSILENT: the last user gets no reply.
 *
 * Memory is x86-TSO. Plain stores (to armed, the tail of the ring, a waiter's signal) go through the FIFO of the
 * storing thread, which Memory empties at any time. A fence and every read-modify-write wait until the own FIFO is
 * empty; the words that only these touch (role, events, eager, futures, the list under wait_lock) need no FIFO.
 *
 * Properties. The only state without a next step: every user has ended, B sleeps, no frame that a thread needs is
 * unread, and the role is free (Last). With -DAT_REST also, whenever all processes rest while the peer is slow: if a
 * user waits, another one leads (at_rest). With -DEND instead: every user has ended and E has the role, which no other
 * thread takes any more.
 * README.md says what each control takes away.
 *
 * It stands for these functions. The numbers are checksums of their text (tests/check/model.sh):
 *     lib/run/progress.c bxi_work_waits 3277565899
 *     lib/run/progress.c take 795584230
 *     lib/run/progress.c bxi_take_role 3089018872
 *     lib/run/progress.c bxi_take_role_quietly 1739183348
 *     lib/run/progress.c release 4210915416
 *     lib/run/progress.c bxi_leave_role_quietly 3524046041
 *     lib/run/progress.c arm_background 4035987527
 *     lib/run/progress.c bxi_leave_role 3758483164
 *     lib/run/progress.c bxi_offer_role 2651237194
 *     lib/run/progress.c bxi_more_eager 158837606
 *     lib/run/progress.c bxi_take_role_or_tell 3763365352
 *     lib/run/progress.c bxi_event 887985305
 *     lib/rpc/source.c ready 3311547064
 *     lib/run/progress.c bxi_note 367006540
 *     lib/run/progress.c hand_out_events 2277967314
 *     lib/run/progress.c bxi_pass 1359410158
 *     lib/run/wait.c sleep_as_leader 524864486
 *     lib/run/wait.c wait_straight 2597607637
 *     lib/run/wait.c take_and_lead 1255015221
 *     lib/run/wait.c lead 300795170
 *     lib/run/wait.c stop_leading 782445282
 *     lib/run/wait.c sleep_in_futex 396767960
 *     lib/run/wait.c link_waiter 1154486896
 *     lib/run/wait.c unlink_waiter 647847995
 *     lib/run/wait.c follow 4292367560
 *     lib/run/wait.c bxi_role_end 2721500858
 *     lib/run/wait.c bxi_wait 3895056690
 *     lib/run/wait.c bxi_wake 1577119719
 *     lib/run/background.c sleep_in_background 2769333502
 *     lib/run/background.c drive_background 2773332406
 *     lib/run/background.c run_background 2990481727
 *     lib/run/background.c bxi_waits_stop 2820694553
 *     lib/run/background.c bxi_progress_stop 569382327
 *     lib/run/drive.h bxi_unlock_waits 3807926301
 *     lib/run/progress.c bxi_signal_all 2448155284
 *     lib/run/interrupt.c bxi_run_interrupt 1505701475
 *     lib/rpc/future.c set_done 3128289500
 *     lib/rpc/future.c bxi_future_complete_call 3870982795
 *     lib/rpc/call_end.c bxi_calls_completed 2701520059
 *     lib/rpc/future.c bxi_future_finish 2948516897
 */
#ifndef USERS
#define USERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 1                        /* calls of user 0; the others make one each */
#endif
#ifndef REQUESTS
#define REQUESTS 0
#endif
#define LAST (USERS - 1)

/* What makes the last user ready. */
#ifdef PASSIVE
#define FRAMES_TO_LAST 2
#define PASSIVE_USER LAST
#else
#define FRAMES_TO_LAST 1
#define PASSIVE_USER NOBODY
#endif
#if defined(LOCAL) || defined(SILENT)
#define FRAMES (REQUESTS + ROUNDS + USERS - 2)
#else
#define FRAMES (REQUESTS + ROUNDS + USERS - 2 + FRAMES_TO_LAST)
#endif

/* threads with store buffers; users are 0 .. USERS - 1 */
#define B USERS
#define P (USERS + 1)
#ifdef END
#define E (USERS + 2)
#define E_WAITS USERS                   /* E as a waiter, behind the users */
#define THREADS (USERS + 3)
#define WAITERS (USERS + 1)
#define stopped stop
#else
#define THREADS (USERS + 2)
#define WAITERS USERS
#define stopped false
#endif

#define ARMED 0
#define TAIL 1
#define SIGNAL(i) (2 + (i))
byte mem[2 + WAITERS];
chan buffer[THREADS] = [4] of { byte, byte };

#define store(t, word, value) buffer[t]!word,value
#define fence(t) (len(buffer[t]) == 0)

/* The word's count makes each arming differ from all others, so "is it the word that I rang for" is
 * "has no arming reached memory since": Memory clears rang, and the model needs no count. */
#define AWAKE 0
#define BACKGROUND 1
#define LEADER 2
#define LAZY 3
bool rang;
bool eventfd[3];                        /* by who; LAZY is BACKGROUND's */
#define fd_of(who) (who == LEADER -> LEADER : BACKGROUND)

#define NOBODY 15                       /* a frame that is a request */
byte frame[8];                          /* ring.pml checks the contents; here they are just there */
byte head;                              /* read position, under the role */
#define ready(pos) (mem[TAIL] != (pos))

bool role;
bool events;
byte eager;
byte done[USERS];                       /* futures; of the passive user, how often */
bool listed[WAITERS];                   /* under wait_lock: `waiting`, and `followers` if not passive */
byte asked[USERS];                      /* calls made */
byte ended;                             /* users, and E */
#ifdef END
bool stop, joined;                      /* bxi_waits_stop; the background thread has ended */
#endif
bool interrupted, signal_all, lock;     /* -DINTERRUPT; lock: wait_lock */

#define wish(i) (done[i] >= ((i) == LAST -> FRAMES_TO_LAST : 1))
#define follows(i) (listed[i] && (i) != PASSIVE_USER)
#if defined(END) && USERS > 1
#define followers (follows(0) || follows(1) || listed[E_WAITS])
#elif defined(END)
#define followers (follows(0) || listed[E_WAITS])
#elif USERS > 2
#define followers (follows(0) || follows(1) || follows(2))
#elif USERS > 1
#define followers (follows(0) || follows(1))
#else
#define followers follows(0)
#endif

#ifdef NO_FENCE_LEAVE
#define FENCE_LEAVE(t) true
#else
#define FENCE_LEAVE(t) fence(t)
#endif
#ifdef NO_FENCE_LEADER
#define FENCE_LEADER(t) true
#else
#define FENCE_LEADER(t) fence(t)
#endif
#ifdef NO_FENCE_PRODUCER
#define FENCE_PRODUCER true
#else
#define FENCE_PRODUCER fence(P)
#endif
#ifdef GIVE_UP
#define may_give_up(i) ((i) == LAST)
#else
#define may_give_up(i) false
#endif
#ifdef LOOK_AT_RINGS_ONLY
#define nothing_for(i) (!ready(head))
#else
#define nothing_for(i) (!ready(head) && !wish(i) && !stopped)
#endif
#ifdef NO_STOP_IN_FOLLOW
#define stopped_in_follow false
#else
#define stopped_in_follow stopped
#endif
#ifdef NO_PASS_STOP
#define ends_wait(i) (wish(i) || found)
#else
#define ends_wait(i) (wish(i) || found || stopped)
#endif

/* Under wait_lock. */
inline signal_listed()
{
    mem[SIGNAL(0)] = (listed[0] -> 2 : mem[SIGNAL(0)]);
#if USERS > 1
    mem[SIGNAL(1)] = (listed[1] -> 2 : mem[SIGNAL(1)])
#endif
}

/* bxi_signal_all. The compare-and-swap of the lock, and its release, empty the FIFO; so the fences need no step. */
inline signal_waiters()
{
    do
    :: atomic { signal_all && !lock -> lock = true; signal_all = false }
       atomic { signal_listed(); lock = false }
    :: atomic { !(signal_all && !lock) -> break }
    od
}

/* A user links or unlinks itself, under wait_lock. */
inline set_listed(t, value)
{
#ifdef INTERRUPT
    atomic { fence(t) && !lock -> lock = true }
    atomic { mem[SIGNAL(t)] = (value -> 0 : mem[SIGNAL(t)]); listed[t] = value }
    lock = false;
#ifndef NO_SIGNAL_AGAIN
    signal_waiters()
#endif
#else
    atomic { fence(t) -> mem[SIGNAL(t)] = (value -> 0 : mem[SIGNAL(t)]); listed[t] = value }
#endif
}

/* bxi_take_role; used inside atomic. */
inline take_role(t)
{
    fence(t);
    got = !role;
    if
    :: got -> role = true; store(t, ARMED, AWAKE)
    :: else
    fi
}

/* bxi_take_role_quietly, or bxi_take_role, as the user likes; used inside atomic. */
inline take_to_wait(t)
{
    fence(t);
    got = !role;
    if
    :: got ->
        role = true;
        if
        :: mem[ARMED] == LAZY -> quiet = true
        :: true -> quiet = false
        fi;
#ifdef QUIET_DISARMS
        store(t, ARMED, AWAKE)
#else
        if
        :: !quiet -> store(t, ARMED, AWAKE)
        :: else
        fi
#endif
    :: else
    fi
}

/* bxi_offer_role: any follower that is not signalled yet. */
inline offer_role(t)
{
#ifndef NO_OFFER
    atomic {
        fence(t);
        if
        :: follows(0) && mem[SIGNAL(0)] != 2 -> mem[SIGNAL(0)] = 2
#if USERS > 1
        :: follows(1) && mem[SIGNAL(1)] != 2 -> mem[SIGNAL(1)] = 2
#endif
#if USERS > 2
        :: follows(2) && mem[SIGNAL(2)] != 2 -> mem[SIGNAL(2)] = 2
#endif
#ifdef END
        :: listed[E_WAITS] && mem[SIGNAL(E_WAITS)] != 2 -> mem[SIGNAL(E_WAITS)] = 2
#endif
        :: else
        fi
    }
#else
    skip
#endif
}

#ifdef EAGER
#define complete(i) done[i]++; eager = (i == LAST -> eager - 1 : eager)
#else
#define complete(i) done[i]++
#endif

/* bxi_pass: the events, then frames until there is none. Completing is an exchange; then bxi_wake. found
 * says whether it did anything. */
inline pass(t)
{
    if
    :: atomic { events && fence(t) -> events = false; found = true }
    :: atomic { !events -> skip }
    fi;
    do
    :: atomic {
        ready(head) && fence(t) ->
        to = frame[head];
        frame[head] = 0;
        head++;
        found = true;
        if
        :: to != NOBODY -> complete(to)
        :: else
        fi
       }
       if
       :: atomic {
            to != NOBODY && fence(t) ->
#ifndef NO_WAKE
            if
            :: listed[to] -> mem[SIGNAL(to)] = 2
            :: else
            fi;
#endif
            to = 0
          }
       :: atomic { to == NOBODY -> to = 0 }
       fi
    :: atomic { !ready(head) -> break }
    od
}

/* bxi_leave_role: got says whether the role was kept, for there is work. Two reads that come one after the
 * other, with a fence before, are made one after the other. */
inline leave_role(t, anyway)
{
#ifdef RELEASE_BEFORE_ARM
    atomic { fence(t) -> role = false }
#endif
    do
    :: atomic {
        work = false;
#ifdef OWN_LOOP
        store(t, ARMED, BACKGROUND);
        lazy = false
#else
        lazy = (eager == 0);
        store(t, ARMED, (lazy -> LAZY : BACKGROUND))
#endif
       }
       if
#ifndef NO_SECOND_EAGER
       :: atomic { FENCE_LEAVE(t) && lazy && eager != 0 -> skip }
       :: atomic { FENCE_LEAVE(t) && !(lazy && eager != 0) -> lazy = false; break }
#else
       :: atomic { FENCE_LEAVE(t) -> lazy = false; break }
#endif
       fi
    od;
#ifndef NO_SECOND_LOOK
    atomic { work = events }
    atomic { work = work || ready(head) }
#endif
    atomic {
        if
#ifndef RELEASE_BEFORE_ARM
        :: work && !anyway -> got = true; work = false; store(t, ARMED, AWAKE)
        :: !(work && !anyway) -> fence(t); got = false; role = false
#else
        :: got = false
#endif
        fi
    }
    if
    :: !got ->
        atomic {
            if
#ifndef NO_RING_ANYWAY
            :: work -> work = false; eventfd[BACKGROUND] = true
#endif
            :: else -> work = false
            fi
        }
        if
        :: followers -> offer_role(t)
        :: !followers
        fi
    :: got
    fi
}

/* What must be true when nobody can move. */
inline at_rest()
{
    assert(!followers || role)
}

proctype User(byte me; byte calls)
{
    byte to, i;
    bool got, found, work, lazy, anyway, quiet;

call:
    atomic {
        if
        :: calls == 0 -> goto finish
        :: else
        fi;
        calls--;
        done[me] = 0;
        asked[me]++
    }
    if
    :: me == PASSIVE_USER -> goto follow
    :: me != PASSIVE_USER
    fi;
again:
    if
    :: atomic { stopped -> goto call }
    :: atomic { !stopped -> skip }
    fi;
    atomic {
        take_to_wait(me);
        if
        :: got && quiet -> goto straight
        :: got && !quiet -> goto lead
        :: else
        fi
    }
follow:
    set_listed(me, true);
    do
    :: wish(me) -> goto unlink
    :: atomic { !wish(me) && stopped_in_follow -> goto unlink }
    :: atomic { !wish(me) && !stopped_in_follow -> skip }
#ifndef NO_SECOND_TRY
       if
       :: atomic { !role && me != PASSIVE_USER -> goto unlink }
       :: atomic { !(!role && me != PASSIVE_USER) -> skip }
       fi;
#endif
#if defined(INTERRUPT) && !defined(NO_INTERRUPT_IN_FOLLOW)
       if
       :: interrupted -> found = true; goto unlink
       :: !interrupted
       fi;
#endif
       if
       :: atomic {
            mem[SIGNAL(me)] == 2 && fence(me) ->
#ifdef SIGNAL_STORE
            store(me, SIGNAL(me), 0)    /* the exchange as a plain store */
#else
            mem[SIGNAL(me)] = 0
#endif
          }
          if
          :: atomic { me != PASSIVE_USER && !wish(me) -> goto unlink }
          :: atomic { !(me != PASSIVE_USER && !wish(me)) -> skip }
          fi
       :: atomic { may_give_up(me) -> found = true; goto unlink }
       :: atomic {                      /* sleep_in_futex: a compare-and-swap, then the kernel's look */
            fence(me) && mem[SIGNAL(me)] == 0 -> mem[SIGNAL(me)] = 1
          }
          mem[SIGNAL(me)] != 1
       fi
    od;
unlink:
    set_listed(me, false);
    /* Ready, too late, interrupted or stopped: it does not need the role, which may have been offered to it. */
    if
    :: atomic { !ends_wait(me) -> goto again }
#ifndef KEEP_OFFER
    :: atomic { ends_wait(me) && !role && followers -> found = false }
       offer_role(me)
    :: atomic { ends_wait(me) && !(!role && followers) -> found = false }
#else
    :: atomic { ends_wait(me) -> found = false }
#endif
    fi;
    goto call;
straight:
    /* wait_straight: its reply comes first, or anything else does, or nothing for a while. */
    if
    :: atomic {
        ready(head) && frame[head] == me && fence(me) ->
        frame[head] = 0;
        head++;
        complete(me);
        got = false
       }
       /* bxi_leave_role_quietly */
       atomic { fence(me) -> role = false; quiet = false }
#ifndef QUIET_NO_OFFER
       if
       :: followers -> offer_role(me)
       :: !followers
       fi;
#endif
       goto call
    :: atomic { quiet = false; store(me, ARMED, AWAKE) }
    fi;
lead:
    atomic { got = false; found = false }
    do
    :: atomic { wish(me) || interrupted -> break }
    :: atomic { !(wish(me) || interrupted) -> found = false }
       pass(me);
       if
       :: atomic { found || wish(me) -> found = false }
       :: atomic { !found && !wish(me) && stopped -> break }
       :: atomic { !found && !wish(me) && !stopped -> store(me, ARMED, LEADER) }
          if
          :: atomic { FENCE_LEADER(me) && events -> store(me, ARMED, AWAKE) }
          :: atomic { FENCE_LEADER(me) && !events -> skip }
             if
             :: atomic { !nothing_for(me) -> store(me, ARMED, AWAKE) }
             :: atomic { nothing_for(me) -> skip }
                if
                :: atomic { eventfd[LEADER] -> eventfd[LEADER] = false }
#ifdef OWN_LOOP
                :: atomic { eventfd[BACKGROUND] && fence(me) ->
                        eventfd[BACKGROUND] = false; events = true }
#endif
                :: atomic { may_give_up(me) -> store(me, ARMED, AWAKE); break }
                fi;
                store(me, ARMED, AWAKE)
             fi
          fi
       fi
    od;
    /* stop_leading: goes on with what is there for a while, then leaves it to B. */
    do
    :: leave_role(me, anyway);
       if
       :: atomic { !got -> anyway = false; break }
       :: atomic { got -> got = false; found = false }
          pass(me);
          atomic {
            found = false;
            if
            :: anyway = false
            :: anyway = true
            fi
          }
       fi
    od;
    goto call;
finish:
    atomic { ended++ }
}

#ifdef EAGER
/* bxi_more_eager, for a callback. What follows when the callback has run is nobody's concern. */
proctype Eager()
{
    byte to;
    bool got, found, work, lazy;

    atomic { asked[LAST]++; eager++ }
#ifndef NO_LOOK_EAGER
    do
    :: atomic { mem[ARMED] != LAZY -> break }
    :: atomic {
        mem[ARMED] == LAZY ->
        take_role(LAST)
       }
       if
       :: got -> got = false; leave_role(LAST, true)
       :: !got -> atomic { mem[ARMED] != LAZY || !role }      /* bxi_back_off */
       fi
    od;
#endif
    done[LAST] == 1;
    ended++
}
#endif

proctype Background()
{
    byte to;
    bool got, found, work, lazy;

end_asleep:
    atomic { eventfd[BACKGROUND] -> eventfd[BACKGROUND] = false; fence(B); events = true }
#ifdef END
    if
    :: atomic { stop -> joined = true; goto gone }
    :: atomic { !stop -> skip }
    fi;
#endif
#ifdef NO_TAKE
    goto end_asleep;
#endif
    /* bxi_take_role_or_tell */
    do
    :: atomic {
        take_role(B);
        if
        :: got -> break
        :: else
        fi
       }
#ifdef NO_TELL
       goto end_asleep;
#endif
       if
       :: atomic { !events -> goto end_asleep }
       :: atomic { events -> skip }
       fi;
       if
       :: atomic { fence(B) && mem[ARMED] == AWAKE -> goto end_asleep }
       :: atomic { fence(B) && mem[ARMED] == LEADER -> eventfd[LEADER] = true; goto end_asleep }
#ifdef NO_YIELD
       :: atomic { fence(B) && (mem[ARMED] == BACKGROUND || mem[ARMED] == LAZY) -> goto end_asleep }
#else
       :: atomic { fence(B) && (mem[ARMED] == BACKGROUND || mem[ARMED] == LAZY) -> skip }
          /* bxi_back_off: another turn finds the same until one of these changed */
          !role || !events || mem[ARMED] == AWAKE || mem[ARMED] == LEADER
#endif
       fi
    od;
    do
    :: atomic { got = false; found = false }
       pass(B);
       if
       :: atomic { found -> found = false }
       :: atomic { found -> found = false }         /* it has driven for long */
          leave_role(B, true);
          goto end_asleep
       :: atomic { !found -> skip }
          leave_role(B, false);
          if
          :: got
          :: atomic { !got -> goto end_asleep }
          fi
       fi
    od;
#ifdef END
gone:
    skip
#endif
}

#include "role_others.inc"

proctype Peer()
{
    byte sent[USERS];
    byte tail, who;
    byte request = REQUESTS;
    bool reply;

    do
    :: tail == FRAMES -> break
    :: else ->
#ifdef AT_REST
        if
        :: true
        :: true -> timeout; at_rest()
        fi;
#endif
        atomic {
            reply = true;
            if
            :: request > 0 -> request--; frame[tail] = NOBODY; reply = false
#if USERS > 1
            :: asked[0] > sent[0] -> sent[0]++; frame[tail] = 0
#endif
#if USERS > 2
            :: asked[1] > sent[1] -> sent[1]++; frame[tail] = 1
#endif
#if !defined(LOCAL) && !defined(SILENT)
            :: asked[LAST] * FRAMES_TO_LAST > sent[LAST] ->
                sent[LAST]++; frame[tail] = LAST; reply = (PASSIVE_USER != LAST)
#endif
            fi;
            tail++;
            store(P, TAIL, tail)
        }
        /* P2 to P4 of doorbell.h; the thread may be held up before it rings */
        atomic {
            FENCE_PRODUCER ->
            who = mem[ARMED];
            if
            :: who == AWAKE || rang || (who == LAZY && reply) -> who = AWAKE
            :: else -> rang = true
            fi
        }
        atomic {
            if
            :: who != AWAKE -> eventfd[fd_of(who)] = true; who = AWAKE
            :: else
            fi
        }
    od
}

inline flush(t)
{
    buffer[t]?word,value;
    if
    :: word == ARMED && value != AWAKE -> rang = false
    :: else
    fi;
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
    :: atomic { flush(2) }
#if USERS > 1
    :: atomic { flush(3) }
#endif
#if USERS > 2
    :: atomic { flush(4) }
#endif
#ifdef END
    :: atomic { flush(E) }
#endif
    od
}

proctype Last()
{
end_wait:
    ended == WAITERS;
end_last:
    timeout;
#ifdef END
    assert(role && mem[ARMED] == AWAKE)
#else
    assert(!role);
    assert(mem[ARMED] == BACKGROUND || mem[ARMED] == LAZY);
#if defined(GIVE_UP) || defined(INTERRUPT)
    /* A reply that came too late may lie there; a request may not. */
    do
    :: ready(head) ->
#ifndef OWN_LOOP
        assert(frame[head] != NOBODY);
#endif
        head++
    :: else -> break
    od
#else
    assert(!ready(head))
#endif
#endif
}

init
{
    atomic {
#ifdef OWN_LOOP
        mem[ARMED] = BACKGROUND;
#else
        mem[ARMED] = LAZY;
        run Background();
#endif
        run Memory();
#if USERS > 1
        run User(0, ROUNDS);
#endif
#if USERS > 2
        run User(1, 1);
#endif
#ifdef EAGER
        run Eager();
#else
        run User(LAST, 1);
#endif
        run Peer();
#ifdef LOCAL
        run Local();
#endif
#ifdef END
        run End();
#endif
#ifdef INTERRUPT
        run Interrupt();
#endif
        run Last()
    }
}
