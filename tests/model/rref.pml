/* SPDX-License-Identifier: MIT */
/*
 * References to objects of other workers (lib/rref/rref.h): when the owner destroys an object. One object, its owner
 * O, and HOLDERS other workers. Each process that has a reference passes it to any other or drops it, at any time;
 * PASSES messages with it in total. KILLS workers other than O die, each at any step.
 *
 * What run->lock covers is one step: a change of the counts, with the frames that it sends. Frames of a pair arrive in
 * the order sent (q). Each is read at any later time, so nothing is known of the order across pairs. A frame in its
 * sender's queue differs from one in the ring only if the sender dies: the queue is lost with it. So a death takes away
 * any number of frames from the end of what the dead one sent to each of the others (Death); nothing else is different
 * between queue and ring. A death that loses no frame is also a worker that leaves.
 *
 * A process has a reference or has none: only its first and its last change anything. The workers are interchangeable,
 * so worker 1 is the first to get the reference, and only workers that have been sent it die. -DMAKE: worker 1 makes
 * the object with a request; without it, O has made it.
 *
 * Properties. When the object is destroyed, no living process has a reference, and no message with one is unread on
 * its way to a living process (destroy_if_last). Each ENTER of a living worker, and each message to O with the
 * reference, finds the object; an ENTER may also find the one that is to come. In the end, when all references are
 * dropped and all frames are read, the object has been destroyed, and no entry, count, pin or round is left (Last).
 * README.md says what each control takes away.
 *
 * It stands for the protocol at the head of lib/rref/rref.h, and for
 *     lib/rref/pass.c count_sent 724726851
 *     lib/rref/pass.c bxi_rref_sent 1702792460
 *     lib/rref/pass.c is_passed 1220690981
 *     lib/rref/pass.c take 512031932
 *     lib/rref/pass.c take_makes 2317422208
 *     lib/rref/protocol.c enter 2213391873
 *     lib/rref/protocol.c leave 3305970142
 *     lib/rref/protocol.c entered 1659934524
 *     lib/rref/protocol.c kept 4200097146
 *     lib/rref/protocol.c passed 3392425859
 *     lib/rref/protocol.c answer_if_closed 3010626843
 *     lib/rref/protocol.c end_round 3130449274
 *     lib/rref/protocol.c begin_round 1449998199
 *     lib/rref/protocol.c answer 2452681940
 *     lib/rref/protocol.c join_rounds 3572011416
 *     lib/rref/table.c bxi_rref_settle 2914483726
 */
#ifndef HOLDERS
#define HOLDERS 2
#endif
#ifndef PASSES
#define PASSES 4
#endif
#ifndef KILLS
#define KILLS 0
#endif
#define N (HOLDERS + 1)
#define O 0
#define bit(x) (1 << (x))

/* Frames. ENTER carries the worker that passed the reference, and ENTERED returns it: the n-th ENTERED answers the n-th
 * ENTER. The set of the dead stands for the number of the round: no two rounds have the same set. */
#define MESSAGE 1                       /* with the reference; of a holder to O also: a call for the object */
#define REQUEST 2                       /* makes the object */
#define KEPT 3
#define ENTER(from) (8 + (from))
#define ENTERED(from) (16 + (from))
#define LEAVE(n) (32 + (n))
#define ASK(set) (64 + (set))
#define ANSWER(set) (96 + (set))
#define PASSED(x) (128 + (x))           /* to O: a pin for the dead x becomes an entry of x */
#define kind(frame) ((frame) & 248)
#define rest(frame, k) ((frame) - (k))

#if HOLDERS == 3
#define DEPTH 8
#else
#define DEPTH 12
#endif
chan q[N * N] = [DEPTH] of { byte };
#define way(from, to) q[(from) * N + (to)]

/* the owner's */
#define TO_COME 0
#define ALIVE 1
#define DESTROYED 2
#define NEVER 3                         /* the request that makes it died with the maker */
byte object;
bool own;                               /* O has a reference */
byte entry[N];
byte seen;                              /* the dead that O knows */
byte asked;                             /* the set of the round that is open, or 0 */
byte unanswered;                        /* the workers whose ANSWER is missing */

/* the holders' */
bool has[N];
byte count[N];                          /* LEAVE's n */
byte pins[N * N];                       /* [whose * N + for whom] */
byte closed[N];                         /* the dead whose rings it has read to the end */
byte owed[N];                           /* the set that it has to answer, or 0 */
#ifdef ENTERED_FOR_ALL
byte entering[N * N];                   /* messages for which it has sent ENTER: [whose * N + of whom] */
#endif

bool dead[N];
byte passes = PASSES;
byte kills = KILLS;
byte last_touched;                      /* workers up to this one have been sent the reference */

#if HOLDERS == 3
#define any_entry (entry[1] || entry[2] || entry[3])
#define any_pin(x) (pins[(x) * N + 1] || pins[(x) * N + 2] || pins[(x) * N + 3])
#define ALL 14
#else
#define any_entry (entry[1] || entry[2])
#define any_pin(x) (pins[(x) * N + 1] || pins[(x) * N + 2])
#define ALL 6
#endif

/* These controls must destroy the object too early: with them nothing else is an error. */
#if defined(NO_PIN) || defined(LEAVE_ALL) || defined(KEPT_EARLY) || defined(ENTERED_FOR_ALL) || \
    defined(FORGET_PINS) || defined(DROP_AT_ONCE) || defined(OWN_ANSWERS) || defined(NO_ROUND) || \
    defined(ANSWER_EARLY) || defined(NO_OWN_END) || defined(NO_TO_COME) || defined(ONLY_NEW)
#define check(what) skip
#else
#define check(what) assert(what)
#endif

inline send(from, to, frame)
{
    if
    :: dead[to]
    :: else -> assert(nfull(way(from, to))); way(from, to)!frame
    fi
}

/* ---- The owner ---------------------------------------------------------------------------------------- */

/* No living process has the reference, or will read it. */
inline nobody_has_it()
{
    i = 0;
    do
    :: i < N ->
        assert(dead[i] || !has[i]);
        j = 0;
        do
        :: j < N ->
            assert(!(way(j, i)??[MESSAGE]));
            j++
        :: else -> break
        od;
        i++
    :: else -> break
    od;
    i = 0;
    j = 0
}

inline destroy_if_last()
{
    if
    :: object == ALIVE && !own && !any_entry -> nobody_has_it(); object = DESTROYED
    :: else
    fi
}

#ifdef NO_ROUND
#define is_for_round(set) true
#else
#define is_for_round(set) ((set) == asked)
#endif
#define needs_round(x) (entry[x] > 0 || asked)
/* O sees a death when it has read the ring of the dead to its end. A round begins if the dead one had an entry, or one
 * is open, or when PASSED makes an entry of it. */
#ifdef NO_OWN_END
#define has_read(x) true
#else
#define has_read(x) empty(way(x, O))
#endif
#ifdef OWN_ANSWERS
#define sees(x) (dead[x] && !(seen & bit(x)) && has_read(x) && !asked)
#define is_done(x) (dead[x] && (unanswered & bit(x)) && empty(way(x, O)))
#else
#define sees(x) (dead[x] && !(seen & bit(x)) && has_read(x))
#endif

/* All of the dead are in the set, also those that had no entry when they died. */
inline begin_round(x)
{
#ifdef ONLY_NEW
    asked = asked | bit(x);
#else
    asked = seen;
#endif
#ifndef DROP_AT_ONCE
    unanswered = ALL & ~seen;
#endif
    i = 1;
    do
    :: i < N ->
        if
        :: unanswered & bit(i) -> send(O, i, ASK(asked))
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

inline owner_reads(from)
{
    way(from, O)?frame;
    if
    :: frame == REQUEST ->
        assert(object == TO_COME);
        object = ALIVE;
        entry[from]++
    :: frame == MESSAGE ->
        check(object == ALIVE || object == NEVER);
        own = (object == ALIVE)
    :: kind(frame) == ENTER(0) ->
        check(object != DESTROYED || dead[from]);
        if
#ifdef NO_TO_COME
        :: object == ALIVE -> entry[from]++
#else
        :: object == ALIVE || object == TO_COME -> entry[from]++
#endif
        :: else
        fi;
        send(O, from, ENTERED(rest(frame, ENTER(0))))
    :: kind(frame) == LEAVE(0) ->
        if
        :: object == NEVER
        :: object == DESTROYED -> check(dead[from])
        :: else ->
#ifdef LEAVE_ALL
            entry[from] = 0;
#else
            check(entry[from] >= rest(frame, LEAVE(0)));
            entry[from] = (entry[from] >= rest(frame, LEAVE(0)) -> entry[from] - rest(frame, LEAVE(0)) : 0);
#endif
            destroy_if_last()
        fi
    :: kind(frame) == PASSED(0) ->
        j = rest(frame, PASSED(0));
        if
        :: object == ALIVE || object == TO_COME ->
            entry[j]++;
#ifndef PASSED_ONLY_COUNTS
            if
            :: (seen & bit(j)) && !(asked & bit(j)) -> begin_round(j)
            :: else
            fi
#endif
        :: else
        fi;
        j = 0
    :: else ->
        assert(frame >= ANSWER(0) && frame < PASSED(0));
        if
        :: is_for_round(rest(frame, ANSWER(0))) -> unanswered = unanswered & ~bit(from)
        :: else
        fi
    fi;
    frame = 0
}

/* O sees a death: the next round, with a larger set. */
inline ask(x)
{
    seen = seen | bit(x);
    if
    :: needs_round(x) -> begin_round(x)
    :: else
    fi
}

inline end_round()
{
    i = 1;
    do
    :: i < N ->
        if
        :: asked & bit(i) -> entry[i] = 0
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0;
    asked = 0;
    destroy_if_last()
}

/* The request that makes the object died with its maker: the object will never come. */
inline give_up()
{
    object = NEVER;
    i = 1;
    do
    :: i < N -> entry[i] = 0; i++
    :: else -> break
    od;
    i = 0
}

inline owner_passes(to)
{
    passes--;
    entry[to]++;
    if
    :: to > last_touched -> last_touched = to
    :: else
    fi;
    send(O, to, MESSAGE)
}

/* A message with the reference waits in the ring until the object has come. */
#ifdef USE_TO_COME
#define readable(from) nempty(way(from, O))
#else
#define readable(from) (nempty(way(from, O)) && !(object == TO_COME && way(from, O)?[MESSAGE]))
#endif
#define may_pass(from, to) (passes > 0 && (to) <= last_touched + 1)

proctype Owner()
{
    byte frame, i, j;

end_rests:
    do
    :: d_step { readable(1) -> owner_reads(1) }
    :: d_step { readable(2) -> owner_reads(2) }
    :: d_step { sees(1) -> ask(1) }
    :: d_step { sees(2) -> ask(2) }
    :: d_step { own && may_pass(O, 1) && !(seen & bit(1)) -> owner_passes(1) }
    :: d_step { own && may_pass(O, 2) && !(seen & bit(2)) -> owner_passes(2) }
#if HOLDERS == 3
    :: d_step { readable(3) -> owner_reads(3) }
    :: d_step { sees(3) -> ask(3) }
    :: d_step { own && may_pass(O, 3) && !(seen & bit(3)) -> owner_passes(3) }
#endif
    :: d_step { asked && !unanswered -> end_round() }
#ifdef OWN_ANSWERS
    :: d_step { is_done(1) -> unanswered = unanswered & ~bit(1) }
    :: d_step { is_done(2) -> unanswered = unanswered & ~bit(2) }
    :: d_step { is_done(3) -> unanswered = unanswered & ~bit(3) }
#endif
#if defined(MAKE) && !defined(TO_COME_STAYS)
    :: d_step { object == TO_COME && dead[1] && empty(way(1, O)) -> give_up() }
#endif
    :: d_step { own -> own = false; destroy_if_last() }
    od
}

/* ---- A holder ----------------------------------------------------------------------------------------- */

inline leave_if_last()
{
    if
    :: !has[me] && !any_pin(me) && count[me] -> send(me, O, LEAVE(count[me])); count[me] = 0
    :: else
    fi
}

inline reads(from)
{
    way(from, me)?frame;
    if
    :: frame == MESSAGE ->
        has[me] = true;
        if
        :: from == O -> count[me]++
        :: else ->
            if
            :: count[me] > 0 -> send(me, from, KEPT)
            :: else ->
                count[me]++;
                send(me, O, ENTER(from));
#ifdef ENTERED_FOR_ALL
                entering[me * N + from]++;
#endif
#ifdef KEPT_EARLY
                send(me, from, KEPT)
#endif
            fi
        fi
    :: frame == KEPT ->
#ifndef NO_PIN
        assert(pins[me * N + from]);
        pins[me * N + from]--;
        leave_if_last()
#endif
    :: kind(frame) == ASK(0) || kind(frame) == ASK(8) ->
        owed[me] = rest(frame, ASK(0))
    :: else ->
        assert(kind(frame) == ENTERED(0));
#ifdef ENTERED_FOR_ALL
        other = 1;
        do
        :: other < N ->
            do
            :: entering[me * N + other] -> entering[me * N + other]--; send(me, other, KEPT)
            :: else -> break
            od;
            other++
        :: else -> break
        od;
        other = 0
#elif !defined(KEPT_EARLY)
        send(me, rest(frame, ENTERED(0)), KEPT)
#endif
    fi;
    frame = 0
}

/* What it passes to O may be a call for the object. */
inline passes_to(to)
{
    passes--;
    if
    :: to != O ->
#ifndef NO_PIN
        pins[me * N + to]++;
#endif
        if
        :: to > last_touched -> last_touched = to
        :: else
        fi
    :: else
    fi;
    send(me, to, MESSAGE)
}

/* The ring of the dead x has been read to its end. */
inline closes(x)
{
    closed[me] = closed[me] | bit(x);
    if
    :: pins[me * N + x] ->
#ifndef FORGET_PINS
        send(me, O, PASSED(x));
#endif
        pins[me * N + x] = 0;
        leave_if_last()
    :: else
    fi
}

#define lives (!dead[me])
#define can_read(from) (lives && from != me && nempty(way(from, me)))
#define can_pass(to) (lives && to != me && has[me] && may_pass(me, to) && !(closed[me] & bit(to)))
#ifdef ANSWER_EARLY
#define may_answer true
#else
#define may_answer (!(owed[me] & ~closed[me]))
#endif
#define can_close(x) (lives && dead[x] && !(closed[me] & bit(x)) && empty(way(x, me)))

proctype Holder(byte me)
{
    byte frame, other;

end_rests:
    do
    :: d_step { can_read(O) -> reads(O) }
    :: d_step { can_read(1) -> reads(1) }
    :: d_step { can_read(2) -> reads(2) }
    :: d_step { can_pass(O) -> passes_to(O) }
    :: d_step { can_pass(1) -> passes_to(1) }
    :: d_step { can_pass(2) -> passes_to(2) }
    :: d_step { can_close(1) -> closes(1) }
    :: d_step { can_close(2) -> closes(2) }
#if HOLDERS == 3
    :: d_step { can_read(3) -> reads(3) }
    :: d_step { can_pass(3) -> passes_to(3) }
    :: d_step { can_close(3) -> closes(3) }
#endif
    :: d_step { lives && owed[me] && may_answer -> send(me, O, ANSWER(owed[me])); owed[me] = 0 }
    :: d_step { lives && has[me] -> has[me] = false; leave_if_last() }
    od
}

/* ---- Deaths, and the end ------------------------------------------------------------------------------ */

proctype Death(byte x)
{
    byte i, left, frame;

end_lives:
    atomic {
        kills > 0 && x <= last_touched ->
        kills--;
        dead[x] = true;
        has[x] = false;
        count[x] = 0;
        closed[x] = 0;
        owed[x] = 0;
        i = 0;
        do
        :: i < N ->
            pins[x * N + i] = 0;
            do
            :: nempty(way(i, x)) -> way(i, x)?frame
            :: empty(way(i, x)) -> break
            od;
            /* Some frames from the end were only in the queue. */
            left = len(way(x, i));
            do
            :: left == 0 -> break
            :: left > 0 -> way(x, i)?frame; way(x, i)!frame; left--
            :: left > 0 ->
                do
                :: left > 0 -> way(x, i)?frame; left--
                :: else -> break
                od
            od;
            i++
        :: else -> break
        od;
        i = 0;
        frame = 0
    }
}

proctype Last()
{
    byte i, j;

end_last:
    atomic {
        timeout ->
        nobody_has_it();
        check(object == DESTROYED || object == NEVER);
        check(!own && !any_entry && !asked);
        i = 1;
        do
        :: i < N ->
            check(dead[i] || !count[i] && !any_pin(i) && !owed[i]);
            j = 0;
            do
            :: j < N -> check(len(way(j, i)) == 0 && len(way(i, j)) == 0); j++
            :: else -> break
            od;
            i++
        :: else -> break
        od
    }
}

init
{
    atomic {
#ifdef MAKE
        has[1] = true;
        count[1] = 1;
        last_touched = 1;
        way(1, O)!REQUEST;
#else
        object = ALIVE;
        own = true;
#endif
        run Owner();
        run Holder(1);
        run Holder(2);
#if HOLDERS == 3
        run Holder(3);
#endif
#if KILLS > 0
        run Death(1);
        run Death(2);
#if HOLDERS == 3
        run Death(3);
#endif
#endif
        run Last()
    }
}
