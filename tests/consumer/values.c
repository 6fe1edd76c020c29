/* SPDX-License-Identifier: MIT */
/*
 * Calls in one line, of each type that a value may have. check.sh compiles it as C11 and C++11; with WRONG defined as
 * one of the calls that it lists, it must not compile.
 */
#include <boxcar.h>

int calls(struct bx_job *job, struct bx_rref *rref, struct bx_tensor *tensor, struct bx_reader *reader);

int calls(struct bx_job *job, struct bx_rref *rref, struct bx_tensor *tensor, struct bx_reader *reader)
{
    char name[] = "worker1", bytes[2] = "", *text;
    const char *str;
    const int k = 4;
    enum bx_kind kind = BX_INLINE;
    bool yes = true;
    uint8_t byte = 1;
    size_t size = 5;
    int64_t i;
    long long same;
    uint64_t u;
    int32_t w;
    double d;
    float f;
    struct bx_tensor *tensors;
    struct bx_rref *rrefs;
    struct bx_future *future;
    const struct bx_call_options *options = 0;
    int rc = bx_call(job, "w", "f", "");

    rc |= bx_call(job, bx_rank(1), "f", ">");
    rc |= bx_call(job, name, "f", "iuwdfs>iuwdfs", kind, yes, byte, k, size, "x", &i, &u, &w, &d, &f, &text);
    rc |= bx_call(job, "w", "f", "sTRbi>TRbi", name, tensor, rref, bx_bytes(bytes, 2), 5, &tensors, &rrefs,
                  bx_into(bytes, 2), &same);
    rc |= bx_call(job, "w", "f", "iiiiiiiiiiiiiii>i", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, &i);
    rc |= bx_call_with(job, "w", "f", options, "d>i", 0.5f, &i);
    rc |= bx_call_async(job, "w", "f", options, &future, "i", UINT64_C(5));
    rc |= bx_rref_call(rref, "f", "i>i", 1, &i);
    rc |= bx_rref_call_with(rref, "f", options, "i>i", 1, &i);
    rc |= bx_rref_call_async(rref, "f", options, &future, "i", 1);
    rc |= bx_read(reader, "iuwdfsTRb", &i, &u, &w, &d, &f, &str, &tensors, &rrefs, bx_into(bytes, 2));
#ifdef WRONG
    rc |= WRONG;
#endif
    return rc;
}
