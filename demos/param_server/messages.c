/* SPDX-License-Identifier: MIT */
/*
 * How the report in a trainer's messages is written and read. Run by the trainer that sends it and by the server that
 * receives it.
 */
#include "ps.h"

int ps_put_report(struct bx_msg *msg, const struct ps_report *report)
{
    const struct ps_seconds *seconds = &report->seconds;
    const double doubles[] = { report->total_s, seconds->data, seconds->repack, seconds->forward,
                               seconds->backward, seconds->call, seconds->wait, report->last_call_s };

    bx_msg_put_i64(msg, report->pid);
    bx_msg_put_u64(msg, report->batch);
    bx_msg_put_u64(msg, report->handed_bytes);
    bx_msg_put_u64(msg, report->copied_bytes);
    bx_msg_put_u64(msg, report->last_version);
    return bx_msg_put_bytes(msg, doubles, sizeof(doubles));
}

int ps_read_report(struct bx_reader *reader, struct ps_report *report)
{
    report->pid = bx_read_i64(reader);
    report->batch = bx_read_u64(reader);
    report->handed_bytes = bx_read_u64(reader);
    report->copied_bytes = bx_read_u64(reader);
    report->last_version = bx_read_u64(reader);
    report->total_s = bx_read_f64(reader);
    report->seconds.data = bx_read_f64(reader);
    report->seconds.repack = bx_read_f64(reader);
    report->seconds.forward = bx_read_f64(reader);
    report->seconds.backward = bx_read_f64(reader);
    report->seconds.call = bx_read_f64(reader);
    report->seconds.wait = bx_read_f64(reader);
    report->last_call_s = bx_read_f64(reader);
    return reader->error;
}
