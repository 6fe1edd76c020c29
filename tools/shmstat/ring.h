/* SPDX-License-Identifier: MIT */
/*
 * A ring, read from outside: its words, its positions, its oldest unread frame.
 */
#ifndef TOOLS_STAT_RING_H
#define TOOLS_STAT_RING_H

#include "jobs.h"

/* What a commit word stands for. */
enum stat_record {
    STAT_NO_RECORD,
    STAT_RECORD,
    STAT_PADDING,
    STAT_BAD_RECORD,            /* its sequence is not that of its position, or its length is impossible */
    STAT_BAD_PLACE,             /* a record that does not end within the ring, or padding that does not end the ring */
};

/* Of the commit word at pos, and how many bytes it covers. */
enum stat_record stat_judge(uint64_t word, uint64_t pos, uint64_t *bytes);

/* Where a field of a row of a table lies in the segment; of: control or tables. */
#define STAT_AT(of, table, row, field) \
    (offsetof(struct bxi_##of, table) + (size_t)(row) * sizeof(struct bxi_##table) + \
     offsetof(struct bxi_##table, field))

/* Words as they are now; false if they cannot be read. Positions: how far the worker has written its ring `to`; how far
 * the peer has read the ring of worker `from`: its own count (read_pos) and what it has published (credit). */
bool stat_read_word(const struct stat_worker *worker, uint64_t offset, uint64_t *word);
bool stat_read_ring_word(const struct stat_worker *worker, int to, uint64_t pos, uint64_t *word);
bool stat_read_write_pos(const struct stat_worker *worker, int to, uint64_t *pos);
bool stat_read_read_pos(const struct stat_worker *peer, int from, uint64_t *pos);
bool stat_read_credit(const struct stat_worker *peer, int from, uint64_t *credit);

/* The age of the oldest unread frame of each ring, into worker.unread_s. The descriptors must be open. */
void stat_unread_read(struct stat_job *job);

#endif
