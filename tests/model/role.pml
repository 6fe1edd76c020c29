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
#define WORDS (3 + USERS)

#define FREE 0
#define HELD 1

#define AWAKE 0
#define BACKGROUND 1
#define LEADER 2
#define who(word) ((word) & 3)

#define NOBODY 15                       /* a frame that is a request */

#ifdef NO_BACKGROUND
#define REQUESTS 0
#else
#define REQUESTS 1
#endif
#ifdef LOCAL
#define FRAMES (REQUESTS + USERS - 1 + ROUNDS - 1)
#else
#define FRAMES (REQUESTS + USERS + ROUNDS - 1)
#endif

byte mem[WORDS];
chan buffer[THREADS] = [4] of { byte, byte };

/* Under the job's mutex. */
bool listed[USERS];                     /* is a follower */
bool promoted[USERS];
bool semaphore[USERS];

bool eventfd[3];                        /* by who */
byte bell_count = 1;                    /* under the role */
byte head;                              /* read position, under the role */
byte frame[8];                          /* ring.pml checks the contents; here they are just there */

byte asked[USERS];                      /* calls made */
byte ended;                             /* users */

#define store(t, word, value) buffer[t]!word,value
#define fence(t) (len(buffer[t]) == 0)
#define ready(pos) (mem[TAIL] != (pos))

/* Compare-and-swap FREE -> HELD, a locked instruction: the buffer empties first. Whoever got the role
 * disarms. Used inside atomic. */
inline try_take(t)
{
    fence(t);
    got = (mem[ROLE] == FREE);
    if
    :: got ->
        mem[ROLE] = HELD;
        disarm(t)
    :: else
    fi
}

inline arm(t, w)
{
    bell_count++;
    store(t, ARMED, (bell_count << 2) | w)
}

inline disarm(t)
{
    store(t, ARMED, (bell_count << 2) | AWAKE)
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
    head++
}

#ifdef PROMOTE_ANY                      /* control: as if done futures were no matter */
#define CAN_PROMOTE(i) true
#else
#define CAN_PROMOTE(i) (mem[DONE + i] == 0)
#endif

/* Used inside atomic: it runs under the mutex. */
inline promote_one()
{
#ifndef NO_PROMOTE
    if
    :: listed[0] && CAN_PROMOTE(0) -> promoted[0] = true; semaphore[0] = true
    :: listed[1] && CAN_PROMOTE(1) -> promoted[1] = true; semaphore[1] = true
#if USERS > 2
    :: listed[2] && CAN_PROMOTE(2) -> promoted[2] = true; semaphore[2] = true
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
#ifdef LOOK_AT_RINGS_ONLY
#define nothing_for(i) !ready(head)
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
       :: atomic { FENCE_LEAVE(t) && ready(pos) -> pos = 0 }
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
       :: atomic { FENCE_LEAVE(t) && !ready(pos) -> pos = 0; promote_one(); break }
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
        semaphore[me] ->
        semaphore[me] = false;
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
          atomic { eventfd[LEADER] -> eventfd[LEADER] = false; disarm(me) }
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
    ended++
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
        :: got -> got = false
        :: else -> goto end_asleep      /* the holder disarmed after it took, and will look */
        fi
    }
    do
    :: atomic { ready(head) -> handle(B) }
    :: atomic { !ready(head) -> break }
    od;
    leave(B);
    goto end_asleep
}

/* P3 and P4 of doorbell.h, after a fence. A thread may be held up between the two. */
inline look(t, can_look)
{
    atomic {
        can_look;
        if
        :: who(mem[ARMED]) != AWAKE && mem[ARMED] != rang_for ->
            rang_for = mem[ARMED];
            ring = who(rang_for)
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
    byte tail, rang_for, ring, i;
    byte request = REQUESTS;

    do
    :: tail == FRAMES -> break
    :: else ->
        if
        :: true
        :: true -> timeout; at_rest(i)
        fi;
        atomic {
            if
            :: request > 0 -> request--; frame[tail] = NOBODY
            :: asked[0] > sent[0] -> sent[0]++; frame[tail] = 0
#if USERS > 2 || !defined(LOCAL)
            :: asked[1] > sent[1] -> sent[1]++; frame[tail] = 1
#endif
#if USERS > 2 && !defined(LOCAL)
            :: asked[2] > sent[2] -> sent[2]++; frame[tail] = 2
#endif
            fi;
            tail++;
            store(P, TAIL, tail)
        }
        look(P, FENCE_PRODUCER(P))
    od
}

#ifdef LOCAL
/* A thread of the pool: its future is no frame, so it rings whoever leads, as a peer does. */
proctype Local()
{
    byte rang_for, ring;

    atomic { asked[USERS - 1] == 1 -> store(L, DONE + USERS - 1, 1) }
#ifndef NO_RING_LOCAL
    look(L, FENCE_LOCAL(L));
#endif
    atomic { fence(L) -> semaphore[USERS - 1] = true }
}
#endif

proctype Memory()
{
    byte word, value;

end_idle:
    do
    :: atomic { buffer[0]?word,value -> mem[word] = value; word = 0; value = 0 }
    :: atomic { buffer[1]?word,value -> mem[word] = value; word = 0; value = 0 }
    :: atomic { buffer[2]?word,value -> mem[word] = value; word = 0; value = 0 }
    :: atomic { buffer[3]?word,value -> mem[word] = value; word = 0; value = 0 }
    :: atomic { buffer[4]?word,value -> mem[word] = value; word = 0; value = 0 }
#if USERS > 2
    :: atomic { buffer[5]?word,value -> mem[word] = value; word = 0; value = 0 }
#endif
    od
}

proctype Last()
{
end_wait:
    ended == USERS;
end_last:
    timeout;
    assert(!ready(head));
    assert(mem[ROLE] == FREE);
    assert(who(mem[ARMED]) == BACKGROUND)
}

init
{
    atomic {
        mem[ARMED] = (1 << 2) | BACKGROUND;
        run Memory();
        run User(0, ROUNDS);
        run User(1, 1);
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
