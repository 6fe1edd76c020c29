/* SPDX-License-Identifier: MIT */
/*
 * Leases of tensors that were passed on (lib/rref/rref.h, BXI_ROUND_LEASES): when a lender takes back what a dead
 * worker had on loan. One block of memory, its owner O, and three other workers. Whoever has it passes it on to any
 * other or drops it, at any time; PASSES messages in total. KILLS workers other than O die, each at any step.
 *
 * A message is a lease of its sender, the lender. The receiver's loan lasts until its program has dropped it and all
 * that it passed on is returned; then it returns the lease, which is a word that its lender reads. A worker that has
 * the block, and gets it again, returns the second lease at once. What a dead worker had on loan is taken back when
 * the round is over, or at once if that one never passed anything on; every lender asks for its own leases.
 *
 * Time is no part of it. Here each loan of the dead holds an answer up, and a round is for all leases; in the code only
 * loans do that were opened after the lease was granted, and a round is for the newest leases. Workers that wait for
 * each other without that are five at least (tests/lend/test_passed.c); here are four.
 *
 * Frames, steps, and what a death takes away are as in rref.pml. The set of the dead stands for the number of the
 * round. The workers are interchangeable, so worker 1 is the first to get the block.
 *
 * Properties. When the owner's memory is free, no living worker has it on loan, and no message with it is unread on its
 * way to a living worker (nobody_has_it). In the end, when all have dropped it, it is free, and no lease or round is
 * left (Last). README.md says what each control takes away.
 *
 * It stands for
 *     lib/rref/protocol.c answer_if_closed 3010626843
 *     lib/rref/protocol.c ask 889955379
 *     lib/rref/protocol.c end_round 3130449274
 *     lib/rref/protocol.c begin_round 1449998199
 *     lib/rref/protocol.c answer 2452681940
 *     lib/rref/protocol.c join_rounds 3572011416
 *     lib/rref/protocol.c bxi_rref_ask_for_leases 378905145
 *     lib/rpc/watch.c take_back 1307204467
 *     lib/lend/grant.c bxi_grants_wait_for_round 1122856105
 *     lib/lend/loan.c end_passed 2293285998
 */
#ifndef PASSES
#define PASSES 4
#endif
#ifndef KILLS
#define KILLS 2
#endif
#define N 4
#define O 0
#define NOBODY N
#define bit(x) (1 << (x))

#define MESSAGE 1                       /* with the block */
#define ASK(set) (16 + (set))
#define ANSWER(set) (32 + (set))
#define kind(frame) ((frame) & 48)
#define rest(frame) ((frame) & 15)

chan q[N * N] = [6] of { byte };
#define way(from, to) q[(from) * N + (to)]

bool has[N];                            /* its program has the block */
byte lender[N];                         /* of its loan, or NOBODY */
byte lent[N * N];                       /* leases that are out: [whose * N + to whom] */
bool passed_on[N];                      /* its counter is not 0 */
byte closed[N];                         /* the dead whose rings it has read to the end */
byte asked[N];                          /* the set of the round that it has open, or 0 */
byte leases[N];                         /* of the set, whose leases it takes back then */
byte unanswered[N];                     /* the workers whose ANSWER is missing */
byte owed[N * N];                       /* the set that it has to answer, or 0: [whose * N + whom] */
bool dead[N];
bool is_free;                           /* the owner's memory */
byte passes = PASSES;
byte kills = KILLS;
byte last_touched;                      /* workers up to this one have been sent the block */

#define any_lent(x) (lent[(x) * N + 1] || lent[(x) * N + 2] || lent[(x) * N + 3])

inline send(from, to, frame)
{
    if
    :: dead[to]
    :: else -> assert(nfull(way(from, to))); way(from, to)!frame
    fi
}

/* No living worker has it on loan, or will read it. */
inline nobody_has_it()
{
    i = 1;
    do
    :: i < N ->
        assert(dead[i] || lender[i] == NOBODY);
        assert(!(way(O, i)??[MESSAGE]) && !(way(1, i)??[MESSAGE]) && !(way(2, i)??[MESSAGE]) &&
               !(way(3, i)??[MESSAGE]));
        i++
    :: else -> break
    od;
    i = 0
}

inline return_to(whom)
{
    if
    :: dead[whom]
    :: else -> assert(lent[(whom) * N + me]); lent[(whom) * N + me]--
    fi
}

inline reads(from)
{
    way(from, me)?frame;
    if
    :: frame == MESSAGE ->
        if
        :: lender[me] == NOBODY -> lender[me] = from; has[me] = true
        :: else -> return_to(from)
        fi
    :: kind(frame) == ASK(0) -> owed[me * N + from] = rest(frame)
    :: else ->
        assert(kind(frame) == ANSWER(0));
        if
        :: rest(frame) == asked[me] -> unanswered[me] = unanswered[me] & ~bit(from)
        :: else
        fi
    fi;
    frame = 0
}

inline passes_to(to)
{
    passes--;
    lent[me * N + to]++;
    if
    :: me != O -> passed_on[me] = true
    :: else
    fi;
    if
    :: to > last_touched -> last_touched = to
    :: else
    fi;
    send(me, to, MESSAGE)
}

/* Asks about all of the dead that it has closed: the chain may lead through one that died before. */
inline begin_round(x)
{
#ifdef ONLY_NEW
    asked[me] = asked[me] | bit(x);
#else
    asked[me] = closed[me];
#endif
    unanswered[me] = 15 & ~closed[me] & ~bit(me);
    i = 0;
    do
    :: i < N ->
        if
        :: unanswered[me] & bit(i) -> send(me, i, ASK(asked[me]))
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

#ifdef AT_ONCE
#define needs_round(x) false
#else
#define needs_round(x) (lent[me * N + (x)] && passed_on[x])
#endif

/* The ring of the dead x has been read to its end. */
inline closes(x)
{
    closed[me] = closed[me] | bit(x);
    owed[me * N + x] = 0;
    if
    :: needs_round(x) ->
        leases[me] = leases[me] | bit(x);
        begin_round(x)
    :: else ->
        lent[me * N + x] = 0;
        if
        :: asked[me] ->
#ifdef NO_JOIN
            unanswered[me] = unanswered[me] & ~bit(x)
#else
            begin_round(x)
#endif
        :: else
        fi
    fi
}

inline end_round()
{
    i = 1;
    do
    :: i < N ->
        if
        :: leases[me] & bit(i) -> lent[me * N + i] = 0
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0;
    leases[me] = 0;
    asked[me] = 0
}

#define lives (!dead[me])
#define can_read(from) (lives && from != me && nempty(way(from, me)))
#define can_pass(to) (lives && to != me && has[me] && passes > 0 && (to) <= last_touched + 1 && \
                      !(closed[me] & bit(to)))
#define can_close(x) (lives && dead[x] && !(closed[me] & bit(x)) && empty(way(x, me)))
#ifdef ANSWER_EARLY
#define has_closed(set) true
#else
#define has_closed(set) (!((set) & ~closed[me]))
#endif
#ifdef ANSWER_HOLDING
#define holds_of(set) false
#else
#define holds_of(set) (lender[me] != NOBODY && ((set) & bit(lender[me])))
#endif
#define can_answer(x) (lives && owed[me * N + (x)] && has_closed(owed[me * N + (x)]) && !holds_of(owed[me * N + (x)]))
#define answers(x) send(me, x, ANSWER(owed[me * N + (x)])); owed[me * N + (x)] = 0

proctype Worker(byte me)
{
    byte frame, i;

end_rests:
    do
    :: d_step { can_read(O) -> reads(O) }
    :: d_step { can_read(1) -> reads(1) }
    :: d_step { can_read(2) -> reads(2) }
    :: d_step { can_read(3) -> reads(3) }
    :: d_step { can_pass(1) -> passes_to(1) }
    :: d_step { can_pass(2) -> passes_to(2) }
    :: d_step { can_pass(3) -> passes_to(3) }
    :: d_step { can_close(1) -> closes(1) }
    :: d_step { can_close(2) -> closes(2) }
    :: d_step { can_close(3) -> closes(3) }
    :: d_step { can_answer(O) -> answers(O) }
    :: d_step { can_answer(1) -> answers(1) }
    :: d_step { can_answer(2) -> answers(2) }
    :: d_step { can_answer(3) -> answers(3) }
    :: d_step { lives && asked[me] && !unanswered[me] -> end_round() }
    :: d_step { lives && has[me] -> has[me] = false }
    :: d_step { lives && me != O && lender[me] != NOBODY && !has[me] && !any_lent(me) ->
                return_to(lender[me]); lender[me] = NOBODY }
    :: d_step { me == O && !has[O] && !any_lent(O) && !is_free -> nobody_has_it(); is_free = true }
    od
}

proctype Death(byte x)
{
    byte i, left, frame;

end_lives:
    atomic {
        kills > 0 && x <= last_touched ->
        kills--;
        dead[x] = true;
        has[x] = false;
        lender[x] = NOBODY;
        closed[x] = 0;
        asked[x] = 0;
        leases[x] = 0;
        unanswered[x] = 0;
        i = 0;
        do
        :: i < N ->
            lent[x * N + i] = 0;
            owed[x * N + i] = 0;
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
        assert(is_free && !any_lent(O));
        i = 0;
        do
        :: i < N ->
            assert(dead[i] || !asked[i]);
            j = 0;
            do
            :: j < N -> assert(len(way(j, i)) == 0 && (dead[i] || !owed[i * N + j])); j++
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
        has[O] = true;
        lender[O] = NOBODY;
        lender[1] = NOBODY;
        lender[2] = NOBODY;
        lender[3] = NOBODY;
        run Worker(O);
        run Worker(1);
        run Worker(2);
        run Worker(3);
        run Death(1);
        run Death(2);
        run Death(3);
        run Last()
    }
}
