/* SPDX-License-Identifier: MIT */
/*
 * The ring of shm/ring.h: one producer, one consumer, four lines, records of one or two lines, padding
 * at the wrap, positions that pass the end of their type, lazy credit, and the want_credit of a producer
 * without room: set before each sleep, and cleared when nothing waits for room any more.
 *
 * A line is its first word (commit word, or payload in a record's second line) and the rest of it. The
 * payload's word is the worst case: the commit word that would be right in its place a lap later. At the
 * start the lines hold such words too, and old payload.
 *
 * With -DGROUP a record or padding may begin a group: its word is kept back, those behind it are stored plainly, and
 * the end of the group stores it. A producer without room ends its group before it waits.
 *
 * Memory is weaker than x86: a thread's stores wait in a buffer, from which Memory takes any of them first,
 * but a release store comes after all stores before it, and a fence waits until the own buffer is empty.
 * (Loads are in order: a control stands for a missing acquire.)
 *
 * Properties. The consumer gets exactly what was sent, in order; a word that is not 0 has the sequence
 * of its position; the producer never stores into a line that is not read yet (assertions). There is no
 * deadlock: both end.
 * README.md says what each control takes away.
 *
 * It stands for these functions. The numbers are checksums of their text (tests/check/model.sh):
 *     shm/ring.c bytes_needed 724073977
 *     shm/ring.c has_room 2577105212
 *     shm/ring.c bxi_ring_credit_hint 1915597305
 *     shm/ring.c refresh_credit 2227461877
 *     shm/ring.c publish 2336133097
 *     shm/ring.c bxi_ring_group_begin 2001958274
 *     shm/ring.c bxi_ring_group_end 986822389
 *     shm/ring.c publish_padding 282696286
 *     shm/ring.c bxi_ring_reserve 2566588735
 *     shm/ring.c publish_record 2849661543
 *     shm/ring.c bxi_ring_commit 2349983223
 *     shm/ring.c bxi_ring_put 2137244928
 *     shm/ring.c bxi_ring_want 2778242919
 *     shm/ring.c bxi_ring_unwant 1281251113
 *     lib/rpc/out.c send_or_queue 1991143398
 *     lib/rpc/out.c queue_or_want 2297038140
 *     lib/rpc/out.c ask_for_room 232861278
 *     lib/rpc/out.c move_queue 525238475
 *     shm/ring.c checked_length 1264521318
 *     shm/ring.c bxi_ring_peek 284209940
 *     shm/ring.c bxi_ring_publish 1834386277
 *     shm/ring.c bxi_ring_advance 2143990827
 *     shm/ring.c bxi_ring_wanted 3848625304
 *     lib/rpc/bell.c bxi_wanted_look 2044485759
 */
#ifndef RECORDS
#define RECORDS 5
#endif
#define LINES 4
#define FIRST_POS 252                   /* a multiple of LINES; positions are modulo 256 */
#define LAZY 2                          /* credit is published when so many lines are unpublished */

#define PADDING 3
#define at(pos) ((pos) & (LINES - 1))
#define distance(from, to) (((to) - (from)) & 255)
#define commit_word(pos, kind) (((((pos) + 1) & 255) << 2) | (kind))
#define kind_of(word) ((word) & 3)
#define right_at(word, pos) (((word) >> 2) == (((pos) + 1) & 255))

/* Shared memory: first words, rests, credit, want. */
#define WORD(pos) at(pos)
#define REST(pos) (LINES + at(pos))
#define CREDIT (2 * LINES)
#define WANT (2 * LINES + 1)
short mem[2 * LINES + 2];

#define PRODUCER 0
#define CONSUMER 1
chan buffer[2] = [7] of { byte, short, bool };
#define plain(t, word, value) buffer[t]!word,value,false
#ifdef NO_RELEASE
#define release(t, word, value) buffer[t]!word,value,false
#else
#define release(t, word, value) buffer[t]!word,value,true
#endif
#define fence(t) (len(buffer[t]) == 0)

bool bell;                              /* the producer's */
byte read_pos = FIRST_POS;              /* the consumer's; global for the assertion in put */
byte lines_sent[RECORDS];               /* what was sent, for the consumer's assertions */
byte sent, received;

#ifdef NO_FENCE_WANT
#define FENCE_WANT true
#else
#define FENCE_WANT fence(PRODUCER)
#endif
#ifdef NO_FENCE_CREDIT
#define FENCE_CREDIT true
#else
#define FENCE_CREDIT fence(CONSUMER)
#endif
#ifdef NO_NEXT_IN_CREDIT
#define NEXT 0
#else
#define NEXT 1
#endif
#define room(credit) (distance(credit, write_pos) + padding + lines + NEXT <= LINES)

/* A plain store into the line of pos: it must be read already. */
inline put(pos, word, value)
{
    assert(distance(read_pos, pos) < LINES);
    plain(PRODUCER, word, value)
}

inline publish(pos, kind)
{
    assert(distance(read_pos, pos) < LINES);
    release(PRODUCER, WORD(pos), commit_word(pos, kind))
}

/* Pushing several stores at once loses nothing: they reach memory one by one. */
inline zero_next(pos)
{
#ifndef NO_ZERO_NEXT
    put(pos, WORD(pos), 0)
#else
    skip
#endif
}

/* The commit word of a whole record, or of padding. */
inline commit(pos, kind)
{
#ifdef GROUP
    if
    :: held -> put(pos, WORD(pos), commit_word(pos, kind))
    :: !held -> held = true; held_pos = pos; held_kind = kind
    :: !held -> publish(pos, kind)
    fi
#else
    publish(pos, kind)
#endif
}

inline end_group()
{
#ifdef GROUP
    atomic {
        if
        :: held -> publish(held_pos, held_kind); held = false; held_pos = 0; held_kind = 0
        :: else
        fi
    }
#else
    skip
#endif
}

proctype Producer()
{
    byte write_pos = FIRST_POS;
    byte lines, padding;
    bool wished;
#ifdef GROUP
    bool held;
    byte held_pos, held_kind;
#endif

    do
    :: sent == RECORDS -> end_group(); break
#ifdef GROUP
    :: held -> end_group()
#endif
    :: sent != RECORDS ->
        atomic {
            if
            :: lines = 1
            :: lines = 2
            fi;
            lines_sent[sent] = lines;
            padding = (at(write_pos) + lines > LINES -> LINES - at(write_pos) : 0)
        }
        do
        :: room(mem[CREDIT]) -> break
#ifdef NO_WISH_AGAIN
        :: atomic { !room(mem[CREDIT]) && wished -> plain(PRODUCER, WANT, 0) }
           atomic { bell -> bell = false }
        :: atomic { !room(mem[CREDIT]) && !wished -> plain(PRODUCER, WANT, 1); wished = true }
#else
        :: atomic { !room(mem[CREDIT]) -> plain(PRODUCER, WANT, 1); wished = true }
#endif
           if
           :: atomic { FENCE_WANT && room(mem[CREDIT]) -> skip }
           :: atomic { FENCE_WANT && !room(mem[CREDIT]) -> skip }
#ifndef GROUP_KEPT
              end_group();
#endif
              atomic { bell -> bell = false }
           fi
        od;
        if                              /* bxi_ring_unwant: nothing waits for room any more */
        :: atomic { wished -> plain(PRODUCER, WANT, 0); wished = false }
        :: atomic { !wished -> skip }
        fi;
        if
        :: padding > 0 ->
            atomic {
#ifndef NO_ZERO_AT_WRAP
                zero_next(write_pos + padding);
#endif
                commit(write_pos, PADDING);
                write_pos = write_pos + padding;
                padding = 0
            }
        :: else
        fi;
        atomic {
            put(write_pos, REST(write_pos), sent);
            if
            :: lines == 2 ->
                put(write_pos + 1, WORD(write_pos + 1),
                    commit_word(write_pos + 1 + LINES, 1));
                put(write_pos + 1, REST(write_pos + 1), sent)
            :: else
            fi;
#ifdef ZERO_AFTER_COMMIT
            publish(write_pos, lines);
            release(PRODUCER, WORD(write_pos + lines), 0);
#else
            zero_next(write_pos + lines);
            commit(write_pos, lines);
#endif
            write_pos = write_pos + lines;
            sent++;
            lines = 0
        }
    od
}

inline look_at_wish()
{
    if
    :: atomic { FENCE_CREDIT && mem[WANT] == 1 -> skip }
       bell = true
    :: atomic { FENCE_CREDIT && mem[WANT] == 0 -> skip }
    fi
}

inline credit(pos)
{
    release(CONSUMER, CREDIT, pos);
    published = pos
}

proctype Consumer()
{
    byte published = FIRST_POS;
    short word, rest;

    do
    :: received == RECORDS -> break
    :: else ->
#ifdef NO_ACQUIRE
        rest = mem[REST(read_pos)];
#endif
        if
        :: atomic { mem[WORD(read_pos)] == 0 && read_pos != published ->
#ifdef NO_CREDIT_BEFORE_SLEEP
            skip
           }
#else
            credit(read_pos)
           }
           look_at_wish();
#endif
           mem[WORD(read_pos)] != 0
        :: atomic { mem[WORD(read_pos)] == 0 && read_pos == published -> skip }
           mem[WORD(read_pos)] != 0
        :: mem[WORD(read_pos)] != 0
        fi;
        atomic { word = mem[WORD(read_pos)]; assert(right_at(word, read_pos)) }
        if
        :: kind_of(word) == PADDING ->
            atomic {
                assert(at(read_pos) != 0);
                read_pos = read_pos + LINES - at(read_pos)
            }
        :: else ->
            assert(kind_of(word) == lines_sent[received]);
#ifdef CREDIT_BEFORE_COPY
            atomic { credit((read_pos + kind_of(word)) & 255) }
            look_at_wish();
#endif
#ifdef NO_ACQUIRE
            assert(rest == received);
#else
            assert(mem[REST(read_pos)] == received);
#endif
            if
            :: kind_of(word) == 2 ->
                assert(mem[WORD(read_pos + 1)] == commit_word(read_pos + 1 + LINES, 1));
                assert(mem[REST(read_pos + 1)] == received)
            :: else
            fi;
            atomic { received++; read_pos = read_pos + kind_of(word) }
        fi;
        atomic { word = 0; rest = 0 }
        if
        :: atomic { distance(published, read_pos) >= LAZY -> credit(read_pos) }
           look_at_wish()
        :: else
        fi
    od
}

/* The head of a buffer may always go; any other store only if it is plain, and in the order of its
 * word. */
inline overtake(t, w)
{
    buffer[t]??eval(w),value,false;
    mem[w] = value;
    value = 0
}

inline flush(t)
{
    buffer[t]?word,value,released;
    mem[word] = value;
    word = 0;
    value = 0;
    released = false
}

proctype Memory()
{
    byte word;
    short value;
    bool released;

end_idle:
    do
    :: atomic { flush(PRODUCER) }
    :: atomic { flush(CONSUMER) }
    :: atomic { overtake(PRODUCER, 0) }
    :: atomic { overtake(PRODUCER, 1) }
    :: atomic { overtake(PRODUCER, 2) }
    :: atomic { overtake(PRODUCER, 3) }
    :: atomic { overtake(PRODUCER, 4) }
    :: atomic { overtake(PRODUCER, 5) }
    :: atomic { overtake(PRODUCER, 6) }
    :: atomic { overtake(PRODUCER, 7) }
    :: atomic { overtake(PRODUCER, WANT) }
    od
}

init
{
    atomic {
        mem[CREDIT] = FIRST_POS;
        mem[1] = commit_word(FIRST_POS + 1, 1);
        mem[2] = commit_word(FIRST_POS + 2, 1);
        mem[3] = commit_word(FIRST_POS + 3, 1);
        mem[REST(0)] = 99;
        mem[REST(1)] = 99;
        mem[REST(2)] = 99;
        mem[REST(3)] = 99;
        run Memory();
        run Producer();
        run Consumer()
    }
}
