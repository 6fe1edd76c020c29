/* SPDX-License-Identifier: MIT */
/*
 * Static probes (USDT) of provider `boxcar`, if <sys/sdt.h> is installed (Debian: systemtap-sdt-dev); else nothing. A
 * probe is one nop and a note in the ELF file with the places of its arguments; bpftrace, perf and gdb turn it into a
 * breakpoint (`readelf -n` lists them).
 *
 *     call_send      rank, peer, function, id             a request is in the ring, or queued for it
 *     call_done      rank, peer, function, id, code       its future is about to be completed, with any result
 *     handler_begin  rank, caller, name, id
 *     handler_end    rank, caller, name, id, code
 *     batch_begin    rank, name, rows
 *     batch_end      rank, name, rows, code
 *     sleep          rank, who                            enum bxi_sleeps
 *     wake           rank, who, rung                      rung: not by the time alone
 *
 * function is the index in the callee's table, name the function's name, terminated by a zero; id is the caller's
 * (generation << 16 | slot), 0 of a one-way call. Together with the two ranks it names the call, as `shmstat calls`
 * does.
 *
 * Not DTRACE_PROBE itself: its asm has many lines, so a compiler estimates the functions around it as large and inlines
 * less. `asm inline` declares it small; that makes an empty call 9 ns shorter.
 */
#ifndef BXI_PROBE_H
#define BXI_PROBE_H

#if defined(__has_include)
#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#endif
#endif

#ifdef STAP_PROBE_ASM
#define BXI_PROBE(name, n, ...)                                                                     \
    __asm__ __volatile__ __inline__(STAP_PROBE_ASM(boxcar, name, STAP_PROBE_ASM_TEMPLATE(n))       \
                                    : : STAP_PROBE_ASM_OPERANDS(n, __VA_ARGS__))
#define BXI_PROBE2(name, a, b) BXI_PROBE(name, 2, a, b)
#define BXI_PROBE3(name, a, b, c) BXI_PROBE(name, 3, a, b, c)
#define BXI_PROBE4(name, a, b, c, d) BXI_PROBE(name, 4, a, b, c, d)
#define BXI_PROBE5(name, a, b, c, d, e) BXI_PROBE(name, 5, a, b, c, d, e)
#else
#define BXI_PROBE2(name, a, b) ((void)0)
#define BXI_PROBE3(name, a, b, c) ((void)0)
#define BXI_PROBE4(name, a, b, c, d) ((void)0)
#define BXI_PROBE5(name, a, b, c, d, e) ((void)0)
#endif

#endif
