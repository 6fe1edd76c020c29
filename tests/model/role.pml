/* SPDX-License-Identifier: MIT */
/*
 * The progress role of one worker: who drives it, who sleeps where, and how the role changes hands.
 *
 * U: user threads, each waits for the reply to a call of its own. B: the background thread. P: a thread
 * of a peer that publishes the replies and one request that nobody waits for, and rings as doorbell.h
 * says. L (with -DLOCAL): a thread of this process that completes the last user's call by itself.
 *
 * Memory is x86-TSO: each thread's stores to armed, to the role (the release), to the ring and to a
 * future completed by L go through a FIFO of its own, which Memory empties when it likes; a fence and a
 * compare-and-swap wait until one's own FIFO is empty. What lies under the job's mutex (the list of
 * followers, promotions, semaphores) is sequentially consistent.
 *
 * Properties. No deadlock but the good one: every user has ended, B sleeps. Then: no frame unread, the
 * role free (Last). And whenever everything is at rest while the peer is slow: a user that waits means
 * that some user leads, so that a reply costs one wake-up (at_rest).
 *
 * -DNO_BACKGROUND: there is no B, as with a program's own loop whose thread is busy elsewhere. Then P
 * sends only what is waited for.
 * README.md says what each control (NO_...) takes away.
 */
#ifndef USERS
#define USERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 1                        /* calls of user 0; the others make one each */
#endif

/* threads, and their store buffers */
#define B USERS
#define P (USERS + 1)
#define L (USERS + 2)
#define THREADS (USERS + 3)

/* words of shared memory */
#define ARMED 0
#define ROLE 1
#define TAIL 2
#define DONE 3                          /* DONE + i: future of user i */
#define MISSED (3 + USERS)              /* B was rung and could not take the role */
#define WORDS (4 + USERS)

#define FREE 0
#define HELD 1

#define AWAKE 0
#define BACKGROUND 1
#define LEADER 2

#define NOBODY 15                       /* a frame that is a request */

#ifndef REQUESTS
#define REQUESTS 0                      /* frames that no user waits for */
#endif
#ifdef LOCAL
#define FRAMES (REQUESTS + USERS - 1 + ROUNDS - 1)
#else
#define FRAMES (REQUESTS + USERS + ROUNDS - 1)
#endif

byte mem[WORDS];
chan buffer[THREADS] = [5] of { byte, byte };

/* Under the job's mutex. */
bool listed[USERS];                     /* is a follower */
bool promoted[USERS];
bool semaphore[USERS];

bool eventfd[3];                        /* by who */
bool rang[2];                           /* by P, by L: for the arming that memory shows now */
byte head;                              /* read position, under the role */
byte frame[8];                          /* ring.pml checks the contents; here they are just there */

byte asked[USERS];                      /* calls made */
byte ended;                             /* users */

#define store(t, word, value) buffer[t]!word,value
#define fence(t) (len(buffer[t]) == 0)
#define ready(pos) (mem[TAIL] != (pos))
#define again(pos) (ready(pos) || mem[MISSED] == 1)

/* The word's count makes each arming differ from all others, so "is it the word that I rang for" is
 * "has no arming reached memory since": Memory clears rang, and the model needs no count. */
#define arm(t, w) store(t, ARMED, w)
#define disarm(t) store(t, ARMED, AWAKE)

/* Compare-and-swap FREE -> HELD, a locked instruction: the buffer empties first. Whoever got the role
 * disarms. Used inside atomic. */
inline try_take(t)
{
    fence(t);
    got = (mem[ROLE] == FREE);
    if
    :: got ->
        mem[ROLE] = HELD;
        store(t, MISSED, 0);
        disarm(t)
    :: else
    fi
}

/* Handles one frame of a pass; a future is set and its follower woken under the mutex. */
inline handle(t)
{
    if
    :: frame[head] != NOBODY ->
        mem[DONE + frame[head]] = 1;
#ifndef NO_WAKE
        semaphore[frame[head]] = true
#endif
    :: else
    fi;
    frame[head] = 0;
    head++
}

/* Used inside atomic: it runs under the mutex. */
inline promote_one()
{
#ifndef NO_PROMOTE
    if
    :: listed[0] -> promoted[0] = true; semaphore[0] = true
#if USERS > 1
    :: listed[1] -> promoted[1] = true; semaphore[1] = true
#endif
#if USERS > 2
    :: listed[2] -> promoted[2] = true; semaphore[2] = true
#endif
    :: else
    fi
#else
    skip
#endif
}

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
#define FENCE_PRODUCER(t) true
#else
#define FENCE_PRODUCER(t) fence(t)
#endif
#ifdef NO_FENCE_LOCAL
#define FENCE_LOCAL(t) true
#else
#define FENCE_LOCAL(t) fence(t)
#endif
#ifdef GIVE_UP
#define may_give_up(i) ((i) == USERS - 1)
#else
#define may_give_up(i) false
#endif
#ifdef LOOK_AT_RINGS_ONLY
#define nothing_for(i) (!ready(head))
#else
#define nothing_for(i) (!ready(head) && mem[DONE + (i)] == 0)
#endif

/* Gives the role back. On return nothing is there, or somebody else has the role: whoever has it looks
 * at everything and promotes when he leaves. The read position belongs to the role: the second look
 * goes by a copy, which at worst shows work that is done already. Pushing two stores at once loses
 * nothing: they reach memory one by one. */
inline leave(t)
{
    do
    :: atomic {
        pos = head;
#ifdef ARM_AFTER_RELEASE
        store(t, ROLE, FREE)
       }
       atomic {
        arm(t, BACKGROUND)
#else
        arm(t, BACKGROUND);
        store(t, ROLE, FREE)
#endif
       }
       if
#ifndef NO_SECOND_LOOK
       :: atomic { FENCE_LEAVE(t) && again(pos) -> pos = 0 }
          atomic {
            try_take(t);
            if
            :: got -> got = false
            :: else -> break
            fi
          }
          do
          :: atomic { ready(head) -> handle(t) }
          :: atomic { !ready(head) -> break }
          od
       :: atomic { FENCE_LEAVE(t) && !again(pos) -> pos = 0; promote_one(); break }
#else
       :: atomic { FENCE_LEAVE(t) -> pos = 0; promote_one(); break }
#endif
       fi
    od
}

/* What must be true when nobody can move. */
inline at_rest(i)
{
    atomic {
        i = 0;
        do
        :: i < USERS ->
            if
            :: listed[i] -> assert(mem[ROLE] == HELD)
            :: else
            fi;
            i++
        :: else -> i = 0; break
        od
    }
}

proctype User(byte me; byte calls)
{
    byte pos;
    bool got;

call:
    atomic {
        if
        :: calls == 0 -> goto finish
        :: else
        fi;
        calls--;
        mem[DONE + me] = 0;
        asked[me]++
    }
    atomic {
        try_take(me);
        if
        :: got -> goto lead
        :: else
        fi
    }
    listed[me] = true;
#ifndef NO_SECOND_TRY
    atomic {
        try_take(me);
        if
        :: got -> goto lead
        :: else
        fi
    }
#endif
follow:
    atomic {
        if
        :: semaphore[me] -> semaphore[me] = false
        :: may_give_up(me) -> goto done
        fi;
        if
        :: mem[DONE + me] == 1 -> goto done
        :: mem[DONE + me] == 0 && !promoted[me] -> goto follow
        :: else -> promoted[me] = false
        fi
    }
    atomic {
        try_take(me);
        if
        :: got -> goto lead
        :: else -> goto follow
        fi
    }
lead:
    atomic { got = false; listed[me] = false; promoted[me] = false }
    do
    :: atomic { ready(head) -> handle(me) }
    :: atomic {
        !ready(head) ->
        if
        :: mem[DONE + me] == 1 -> break
        :: else -> arm(me, LEADER)
        fi
       }
       if
       :: atomic { FENCE_LEADER(me) && !nothing_for(me) -> disarm(me) }
       :: atomic { FENCE_LEADER(me) && nothing_for(me) -> skip }
          if
          :: atomic { eventfd[LEADER] -> eventfd[LEADER] = false; disarm(me) }
          :: atomic { may_give_up(me) -> break }
          fi
       fi
    od;
    leave(me);
done:
    /* Off the list. Whoever was promoted and does not take the role hands the promotion on. */
    atomic {
        listed[me] = false;
        semaphore[me] = false;
        if
        :: promoted[me] ->
            promoted[me] = false;
#ifndef KEEP_PROMOTION
            promote_one()
#endif
        :: else
        fi;
        goto call
    }
finish:
    atomic { mem[DONE + me] = 0; ended++ }
}

proctype Background()
{
    byte pos;
    bool got;

end_asleep:
    atomic { eventfd[BACKGROUND] -> eventfd[BACKGROUND] = false }
#ifdef NO_TAKE
    goto end_asleep;
#endif
    atomic {
        try_take(B);
        if
        :: got -> got = false; goto took
        :: else
        fi
    }
    /* This arming is used up, and its holder may be between arming and releasing: he must arm anew. */
#ifndef NO_MISSED
    atomic { fence(B) -> mem[MISSED] = 1 }
    atomic {
        try_take(B);
        if
        :: got -> got = false
        :: else -> goto end_asleep
        fi
    }
#else
    goto end_asleep;
#endif
took:
    do
    :: atomic { ready(head) -> handle(B) }
    :: atomic { !ready(head) -> break }
    od;
    leave(B);
    goto end_asleep
}

/* P3 and P4 of doorbell.h, after a fence. A thread may be held up between the two. */
inline look(i, can_look)
{
    atomic {
        can_look;
        if
        :: mem[ARMED] != AWAKE && !rang[i] -> rang[i] = true; ring = mem[ARMED]
        :: else
        fi
    }
    atomic {
        if
        :: ring != AWAKE -> eventfd[ring] = true; ring = AWAKE
        :: else
        fi
    }
}

proctype Peer()
{
    byte sent[USERS];
    byte tail, ring, i;
    byte request = REQUESTS;

    do
    :: tail == FRAMES -> break
    :: else ->
#ifdef AT_REST
        if
        :: true
        :: true -> timeout; at_rest(i)
        fi;
#endif
        atomic {
            if
            :: request > 0 -> request--; frame[tail] = NOBODY
            :: asked[0] > sent[0] -> sent[0]++; frame[tail] = 0
#if USERS > 2 || (USERS > 1 && !defined(LOCAL))
            :: asked[1] > sent[1] -> sent[1]++; frame[tail] = 1
#endif
#if USERS > 2 && !defined(LOCAL)
            :: asked[2] > sent[2] -> sent[2]++; frame[tail] = 2
#endif
            fi;
            tail++;
            store(P, TAIL, tail)
        }
        look(0, FENCE_PRODUCER(P))
    od
}

#ifdef LOCAL
/* A thread of the pool: its future is no frame, so it rings whoever leads, as a peer does. */
proctype Local()
{
    byte ring;

    atomic { asked[USERS - 1] == 1 -> store(L, DONE + USERS - 1, 1) }
#ifndef NO_RING_LOCAL
    look(1, FENCE_LOCAL(L));
#endif
    atomic { fence(L) -> semaphore[USERS - 1] = true }
}
#endif

inline flush(t)
{
    buffer[t]?word,value;
    if
    :: word == ARMED && value != AWAKE -> rang[0] = false; rang[1] = false
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
#ifdef LOCAL
    :: atomic { flush(L) }
#endif
    od
}

proctype Last()
{
end_wait:
    ended == USERS;
end_last:
    timeout;
#if !(defined(GIVE_UP) && defined(NO_BACKGROUND))
    assert(!ready(head));
#endif
    assert(mem[ROLE] == FREE);
    assert(mem[ARMED] == BACKGROUND)
}

init
{
    atomic {
        mem[ARMED] = BACKGROUND;
        run Memory();
        run User(0, ROUNDS);
#if USERS > 1
        run User(1, 1);
#endif
#if USERS > 2
        run User(2, 1);
#endif
#ifndef NO_BACKGROUND
        run Background();
#endif
        run Peer();
#ifdef LOCAL
        run Local();
#endif
        run Last()
    }
}
