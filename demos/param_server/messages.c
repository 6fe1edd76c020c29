/* SPDX-License-Identifier: MIT */
/*
 * How the report in a trainer's messages is written and read: as it lies in memory, because both are processes of one
 * program. Run by the trainer that sends it and by the server that receives it.
 */
#include "ps.h"

#include <string.h>

int ps_put_report(struct bx_msg *msg, const struct ps_report *report)
{
    return bx_msg_put_bytes(msg, report, sizeof(*report));
}

int ps_read_report(struct bx_reader *reader, struct ps_report *report)
{
    const void *bytes = bx_read_bytes(reader, sizeof(*report));

    if (bytes != NULL)
        memcpy(report, bytes, sizeof(*report));
    return reader->error;
}
