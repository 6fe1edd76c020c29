/* SPDX-License-Identifier: MIT */
/*
 * NVRTC, cuBLAS and cuDNN, which Boxcar's networks use on a GPU: whether the networks find them, with all that they
 * call (lib/nn/cuda_load.c). A library that is not installed is absent, which is no failure.
 */
#include "gpucheck.h"

#include "boxcar.h"
#include "nn/cuda.h"

enum library { NVRTC, CUBLAS, CUDNN };

static void ask_library(void)
{
    static const char *const names[] = { [NVRTC] = "NVRTC", [CUBLAS] = "cuBLAS", [CUDNN] = "cuDNN" };
    enum library library = (enum library)check_question->variant;
    struct bx_cuda cuda = { .stream = NULL };
    int rc;

    if (bxi_cuda_load_driver(&cuda.cu) < 0)
        check_skip("%s", bx_error_text());
    rc = library == NVRTC ? bxi_cuda_load_nvrtc(&cuda) : bxi_cuda_load_networks(&cuda);
    if (rc < 0 && (library != CUBLAS || cuda.cublas.cublasSgemm_v2 == NULL))
        check_skip("%s is not found: %s", names[library], bx_error_text());
    check_answer(check_question->name, CHECK_GOOD, "%s is found, with all functions.", names[library]);
}

#define NETWORKS(name_, library, good)                                                          \
    {                                                                                           \
        .name = (name_), .ask = ask_library, .is_bare = true, .limit_ms = 12000, .variant = (library), \
        .lines = { { name_, good, NULL } },                                                     \
    }

const struct check_question check_nvrtc = NETWORKS("nvrtc", NVRTC, "Boxcar compiles its kernels with it.");
const struct check_question check_cublas = NETWORKS("cublas", CUBLAS, "Networks multiply with it.");
const struct check_question check_cudnn =
    NETWORKS("cudnn", CUDNN, "Networks use it for convolution, normalisation and pooling.");
