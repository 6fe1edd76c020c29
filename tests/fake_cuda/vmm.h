/* SPDX-License-Identifier: MIT */
/* What a test sees of vmm.c in its own process: bx_fake_vmm of the library. */
#ifndef TESTS_FAKE_VMM_H
#define TESTS_FAKE_VMM_H

struct fake_vmm {
    const char *fails;                  /* this function returns 700, as in a context that has failed; NULL: none */
    int left;                           /* after so many of its calls */
    int handles, reserved, mapped;      /* what is there; handles: made, imported and retained ones */
};

#endif
