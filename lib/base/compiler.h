/* SPDX-License-Identifier: MIT */
/*
 * What gcc and clang are told of functions and variables.
 */
#ifndef BXI_COMPILER_H
#define BXI_COMPILER_H

/* Called seldom: never inlined, and optimised for size. */
#define BXI_COLD __attribute__((cold, noinline))

/* Never inlined: another way than the plain call's, and not a cold one. */
#define BXI_APART __attribute__((noinline))

/* All that it calls is inlined into it, but for what is BXI_COLD or BXI_APART. For the stages of a call (rpc/submit.h,
 * rpc/reply.c, rpc/dispatch.c): they are some twenty small functions in six files, and the entries and exits of these
 * were a sixth of a call's instructions. */
#define BXI_FLAT __attribute__((flatten))

#endif
