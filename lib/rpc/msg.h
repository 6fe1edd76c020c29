/* SPDX-License-Identifier: MIT */
/*
 * Messages, the kinds of their values with BX_CHECKED, and the bodies of frames. A part of rpc.h, which includes it.
 */
#ifndef BXI_MSG_H
#define BXI_MSG_H

/* ---- msg.c --------------------------------------------------------------------------------------- */

struct bx_msg {
    unsigned char *data;        /* == room until it has grown; or inside the loan */
    size_t bytes;
    size_t capacity;
    int error;
    struct bx_tensor **tensors; /* each with a reference, but for those of the loan, which come first */
    size_t tensor_count;
    size_t tensor_capacity;     /* 0 while tensors is NULL or the loan's */
    struct bxi_loan *loan;      /* of a message that came with tensors: one reference; else NULL */
    struct bx_rref **rrefs;     /* each with a reference, if rref_capacity > 0; else they are the request's */
    uint32_t rref_count;
    uint32_t rref_capacity;
    struct bxi_kinds *kinds;    /* with BX_CHECKED: of its values (checked.c); else NULL */
    _Alignas(8) unsigned char room[];
};
/* Makes an empty message of memory that has `room` bytes behind its head. */
struct bx_msg *bxi_msg_init(void *memory, size_t room);
void bxi_msg_fini(struct bx_msg *msg);          /* destroys it; the memory is the caller's */
struct bx_msg *bxi_msg_copy(const void *data, size_t bytes);       /* NULL when memory is out */
struct bx_msg *bxi_msg_of_loan(struct bxi_loan *loan);     /* a message of its own; NULL when memory is out */

/* Adds what a frame brought to the message that was made of it. 0, -ENOMEM. */
int bxi_msg_take_rrefs(struct bx_msg *msg, struct bxi_rref_in *in);

/* ---- checked.c: the kinds of values ---------------------------------------------------------------- */

enum bxi_value_kind { BXI_V_BYTES, BXI_V_I64, BXI_V_U64, BXI_V_I32, BXI_V_F64, BXI_V_F32, BXI_V_F32S, BXI_V_STR,
                      BXI_VALUE_KINDS };
struct bxi_kinds {
    unsigned char *records;         /* 8 bytes each, at any address */
    size_t count;
    size_t capacity;                /* 0: there are none, or they are not this struct's */
    struct bx_rref *const *rrefs;   /* of the message, for its readers */
    size_t rref_count;
};
extern bool bxi_checked;            /* BX_CHECKED=1; set before main() */

int bxi_checked_variable(void);     /* 0; -EINVAL: the variable has another value */
/* A value of this kind is about to be put. 0, or the message's error. */
int bxi_kinds_add(struct bx_msg *msg, enum bxi_value_kind kind);
void bxi_kinds_rrefs(struct bx_msg *msg);       /* its references have changed */
void bxi_kinds_free(struct bx_msg *msg);
/* What is sent behind the message's bytes, with BXI_FLAG_KINDS; 0: nothing. write returns the end. */
size_t bxi_kinds_bytes(const struct bx_msg *msg);
unsigned char *bxi_kinds_write(const struct bx_msg *msg, unsigned char *to);
/* Takes the records off the end of what came: *bytes are those of the message then, and *count records lie behind
 * them, none without BX_CHECKED. 0, BX_E_CORRUPT. */
int bxi_kinds_take(const unsigned char *data, size_t *bytes, uint32_t *count);
int bxi_kinds_copy(struct bx_msg *msg, const unsigned char *records, uint32_t count);      /* 0, -ENOMEM */
/* The reader checks what it reads by these records; its references must be theirs. */
void bxi_kinds_mark(struct bx_reader *reader, struct bxi_kinds *kinds);
struct bx_rref *bxi_kinds_next_rref(struct bx_reader *reader);     /* there is one */
/* False: the next bytes are of another kind, and the reader's error says so. */
bool bxi_kinds_allow(struct bx_reader *reader, enum bxi_value_kind kind, size_t bytes);

static inline bool bxi_has_kinds(const struct bx_msg *msg)
{
    return __builtin_expect(bxi_checked, 0) && bxi_kinds_bytes(msg) > 0;
}

/* True if the message needs a lease: it has tensors, or more bytes than a frame that ends with tail_bytes. */
static inline bool bxi_needs_lease(const struct bx_msg *msg, size_t tail_bytes)
{
    return msg != NULL && (msg->tensor_count > 0 ||
                           msg->bytes + (bxi_checked ? bxi_kinds_bytes(msg) : 0) > BXI_BODY_MAX - tail_bytes);
}

/* True if a frame with the message has nothing but its bytes behind the head. Of NULL too. */
static inline bool bxi_msg_is_plain(const struct bx_msg *msg)
{
    return msg == NULL || (msg->rref_count == 0 && !bxi_needs_lease(msg, 0) && !bxi_has_kinds(msg));
}

/* ---- body.c: bodies that are more than a message's bytes ------------------------------------------- */

struct bxi_body {
    uint8_t flags;                      /* of its frame: kinds and references */
    bool lends;
    const struct bxi_rref_out *rrefs;   /* whose tail it ends with; or NULL */
    union {
        struct bxi_grant grant;         /* if it lends */
        struct {
            unsigned char *data;        /* malloc'ed */
            size_t bytes;
        };
    };
};
/* Makes it of msg (or NULL) and of what rrefs says besides, which gets the references of msg, and stays the caller's.
 * Without run->lock. 0, or an error with a sentence. */
int bxi_body_make(struct bx_job *job, struct bxi_peer *peer, const struct bx_msg *msg, struct bxi_rref_out *rrefs,
                  struct bxi_body *body);
void bxi_body_drop(struct bxi_body *body);                      /* without run->lock */
void bxi_body_put(struct bxi_body *body, struct bxi_out *out);     /* makes it the body of a frame */
/* The bytes of msg (or NULL), the kinds of its values and the tail of rrefs (or NULL), malloc'ed; NULL: no memory. */
unsigned char *bxi_body_with_tails(const struct bx_msg *msg, const struct bxi_rref_out *rrefs, size_t *bytes);

struct bxi_brought {            /* what a frame had behind its head */
    size_t bytes;               /* of the message, if it has no loan */
    struct bxi_loan *loan;      /* one reference; or NULL */
    struct bxi_rref_in *in;     /* likewise */
    uint32_t kind_count;        /* records of the kinds of the message's values, which lie behind its bytes */
    int code;                   /* 0, or why it cannot be used */
    const char *text;           /* its sentence */
};
/* Opens the body, of brought->bytes, that lies in job->rpc->frame. 0, with brought->code; BX_E_CORRUPT, and nothing is
 * left open. Role. */
int bxi_brought_open(struct bx_job *job, struct bxi_peer *peer, uint8_t flags, struct bxi_brought *brought);
void bxi_brought_drop(const struct bxi_brought *brought);
/* A message of its own; data: of one without a loan. NULL: no memory. */
struct bx_msg *bxi_brought_message(const unsigned char *data, const struct bxi_brought *brought);
#define BXI_FLAGS_MORE (BXI_FLAG_LEASE | BXI_FLAG_RREFS | BXI_FLAG_KINDS)  /* of a frame that is to be opened */

#endif
