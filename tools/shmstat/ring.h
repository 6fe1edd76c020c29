/* SPDX-License-Identifier: MIT */
/*
 * How a ring is read from outside: its words, its positions, and the oldest frame that nobody has read.
 */
#ifndef TOOLS_STAT_RING_H
#define TOOLS_STAT_RING_H

#include "jobs.h"

/* What a commit word says. */
enum stat_record {
    STAT_NO_RECORD,
    STAT_RECORD,
    STAT_PADDING,
    STAT_BAD_RECORD,            /* not the sequence of its position, or no possible length */
    STAT_BAD_PLACE,             /* it does not end within the ring, or is padding that does not end it */
};

/* Of the commit word at pos, and how many bytes it covers. */
enum stat_record stat_judge(uint64_t word, uint64_t pos, uint64_t *bytes);

/* Words as they are now; false where they cannot be read. Positions: where worker has written to in its ring `to`,
 * and how far peer has read the ring of worker `from`, as it counts and as it has published. */
bool stat_read_word(const struct stat_worker *worker, uint64_t offset, uint64_t *word);
bool stat_read_ring_word(const struct stat_worker *worker, int to, uint64_t pos, uint64_t *word);
bool stat_read_write_pos(const struct stat_worker *worker, int to, uint64_t *pos);
bool stat_read_read_pos(const struct stat_worker *peer, int from, uint64_t *pos);
bool stat_read_credit(const struct stat_worker *peer, int from, uint64_t *credit);

/* Seconds since the oldest frame was sent that lies unread in that ring: as worker.unread_s. Its descriptors must be
 * open. */
double stat_oldest_unread(const struct stat_job *job, const struct stat_worker *worker, int to);
/* Of all rings, into worker.unread_s. */
void stat_unread_read(struct stat_job *job);

#endif
