/* SPDX-License-Identifier: MIT */
/*
 * The structs of DLPack as they lie in memory, written from its specification, under names of our own so
 * that a program may include <dlpack/dlpack.h> of any version beside boxcar.h: the unversioned struct of
 * 0.6 (DLManagedTensor), and the one that 1.0 puts beside it (DLManagedTensorVersioned). Layout only;
 * tests/lend/test_dlpack.c compares it with that header.
 */
#ifndef BXI_DLPACK_ABI_H
#define BXI_DLPACK_ABI_H

#include <stdint.h>

#define BXI_DL_MAJOR 1u
#define BXI_DL_MINOR 1u

enum bxi_dl_device { BXI_DL_CPU = 1, BXI_DL_CUDA = 2, BXI_DL_CUDA_HOST = 3 };

enum bxi_dl_code {
    BXI_DL_INT = 0,
    BXI_DL_UINT = 1,
    BXI_DL_FLOAT = 2,
    BXI_DL_BFLOAT = 4,
    BXI_DL_COMPLEX = 5,
    BXI_DL_BOOL = 6,            /* since 1.0 */
    BXI_DL_FLOAT8_E4M3FN = 10,  /* since 1.1, as the next; the codes between are other formats */
    BXI_DL_FLOAT8_E5M2 = 12,
};

#define BXI_DL_READ_ONLY (UINT64_C(1) << 0)

struct bxi_dl_type {
    uint8_t code;               /* enum bxi_dl_code */
    uint8_t bits;
    uint16_t lanes;             /* 1; more: an element is a vector */
};

struct bxi_dl_tensor {
    void *data;
    int32_t device_type;        /* enum bxi_dl_device */
    int32_t device_id;
    int32_t ndim;
    struct bxi_dl_type dtype;
    int64_t *shape;
    int64_t *strides;           /* in elements; NULL: row-major */
    uint64_t byte_offset;       /* from data to the first element */
};

struct bxi_dl_managed {         /* struct DLManagedTensor */
    struct bxi_dl_tensor tensor;
    void *context;
    void (*deleter)(struct bxi_dl_managed *self);   /* NULL: nobody needs to know */
};

struct bxi_dl_versioned {       /* struct DLManagedTensorVersioned */
    uint32_t major, minor;      /* another major: nothing behind `deleter` is known */
    void *context;
    void (*deleter)(struct bxi_dl_versioned *self);
    uint64_t flags;
    struct bxi_dl_tensor tensor;
};

#endif
