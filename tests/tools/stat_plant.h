/* SPDX-License-Identifier: MIT */
/*
 * A planted job, for the tests of shmstat: two workers without processes, whose segments in /dev/shm are real. This
 * process alone makes and writes them, so that each word can be set. "caller" (rank 0) and "callee" (rank 1) have rings
 * to each other; plant_put and plant_take change the rings and the counters as workers do.
 */
#ifndef TESTS_STAT_PLANT_H
#define TESTS_STAT_PLANT_H

#include "tests/harness/test.h"
#include "observe/tables.h"
#include "shm/ring.h"
#include "shm/segment.h"

#define PLANT_INSTANCE UINT64_C(0x00c0ffee00c0ffee)
#define PLANT_FUNCTIONS 3      /* "add", "pick", "save" */
#define PLANT_NAME_END 4        /* where the name "pick" ends */

struct plant {
    char job[BXI_NAME_BYTES];
    struct bxi_segment segment[2];
    struct bxi_ring_writer writer[2];       /* rank r's, to the other */
    struct bxi_ring_reader reader[2];       /* rank r's, of the other's ring */
};
extern struct plant plant;

/* Rings begin at pos. The workers live: this process has their owner locks. */
void plant_make(uint64_t pos);
void plant_begin(void);         /* at position 0: a suite's .init, as plant_remove is its .fini */
/* Releases a worker's owner lock, as if it had been killed. */
void plant_kill(int rank);
void plant_remove(void);
/* Makes the next process of the rank, in the place of the one that was there: a new segment of the same name. It has
 * not joined yet (STARTING), and the other still holds what it held about the one before. */
void plant_comes(int rank, uint32_t generation);
/* It has joined: the rings in both directions begin again, and it is RUNNING. */
void plant_joins(int rank);

struct bxi_control *plant_control(int rank);
struct bxi_pair_counters *plant_counters(int rank);    /* of the other */

/* Writes a record of that many payload bytes into rank's ring; false if it is full. plant_count counts it; without that
 * it is as if rank had been killed, or had not continued yet. */
bool plant_put(int rank, uint64_t payload_bytes);
void plant_count(int rank);
/* rank reads a record of the other's ring; false if there is none. */
bool plant_take(int rank);
/* A new histogram of rank, for a function of worker `peer`; one sample in it, with its three legs. */
struct bxi_hist *plant_hist(int rank, int peer, int function);
void plant_sample(struct bxi_hist *hist, uint64_t queue_ns, uint64_t handler_ns, uint64_t reply_ns);
#define PLANT_OBJECT(owner, maker, number) ((uint64_t)(owner) << 56 | (uint64_t)(maker) << 49 | (number))
/* A new row of rank's objects, of that id: it is there, its type is called "net", and nobody else holds it. */
struct bxi_object_row *plant_object(int rank, uint64_t id, uint64_t since_ns);
/* rank's rows of remote workers, of which that of the other names it, on "far", as a worker would that has sent 1,500
 * bytes there and got 700 back in a round trip of 42 us. The other's segment loses its name: it is on another host. */
struct bxi_remote_row *plant_remote(int rank);
void plant_set(bxi_a64 *word, uint64_t value);
/* The word at pos of rank's ring. */
bxi_a64 *plant_word(int rank, uint64_t pos);
/* So many seconds ago, by the clock of the segments. */
uint64_t plant_ago(uint64_t seconds);
/* A child that calls turn(0), turn(1), turn(0), ... until it is killed. */
pid_t plant_turn(void (*turn)(int up));

#endif
