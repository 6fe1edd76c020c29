/* SPDX-License-Identifier: MIT */
/*
 * Runs the program's handlers, batch bodies and callbacks so that a thread may end in one (pthread_exit, or a
 * cancellation that its code allows).
 *
 * pthread_exit unwinds the stack by force. If it unwound the engine, the progress role, locks and half-handled frames
 * would stay behind. So call_stopped stops the unwinding. The engine continues as if the function had failed, and gives
 * back what it holds; then the public function that the program called, or the thread's own loop, ends the thread
 * (bxi_out, bxi_leaving). A thread of the library that no other can replace continues instead: it clears bxi_leaving
 * (pool.c, background.c). All this costs no time unless a thread ends.
 *
 * On x86-64 call_stopped is a call with a personality routine, which the unwinder calls for each frame, as for a C++
 * catch. _Unwind_Resume continues the same unwinding later, from further out. On other machines setjmp and a cleanup do
 * it, for a few nanoseconds a call, and the thread's exit value is lost.
 */
#include "usercall.h"

_Thread_local void *bxi_leaving;

#define LEFT INT32_MIN
/* fn(a, b, c, d), or LEFT and bxi_leaving is set. */
static int call_stopped(const void *a, void *b, void *c, void *d, bxi_user_fn fn);

int bxi_call_user_with(const void *a, void *b, void *c, void *d, bxi_user_fn fn)
{
    void *leaving = bxi_leaving;
    int rc;

    bxi_leaving = NULL;             /* a public function that fn calls must not end the thread */
    rc = call_stopped(a, b, c, d, fn);
    if (__builtin_expect(leaving != NULL, 0))
        bxi_leaving = leaving;
    if (__builtin_expect(rc != LEFT, 1))
        return rc;
    return bx_fail(BX_E_HANDLER, "its thread ended in it (pthread_exit, or it was cancelled)");
}

int bxi_call_user(int (*fn)(void *), void *context)
{
    return bxi_call_user_with(context, NULL, NULL, NULL, (bxi_user_fn)fn);
}

#if defined(__x86_64__) && defined(__ELF__)

#include <stdlib.h>
#include <unwind.h>

_Unwind_Reason_Code bxi_user_personality(int version, _Unwind_Action actions,
                                         _Unwind_Exception_Class exception_class,
                                         struct _Unwind_Exception *exception, struct _Unwind_Context *context);
extern const char bxi_user_left[];

/* gcc must not infer from the visible body of a naked function which registers it keeps. */
#if __has_attribute(noipa)
#define OPAQUE __attribute__((noipa))
#else
#define OPAQUE __attribute__((noinline))
#endif

/* Naked: the compiler adds only the frame's description. The unwinder continues at bxi_user_left with the registers as
 * they were at the call. 0x1b: the address that follows is relative to itself. */
OPAQUE __attribute__((naked, used)) static int call_stopped(const void *a __attribute__((unused)),
                                                            void *b __attribute__((unused)),
                                                            void *c __attribute__((unused)),
                                                            void *d __attribute__((unused)),
                                                            bxi_user_fn fn __attribute__((unused)))
{
    __asm__(".cfi_personality 0x1b, bxi_user_personality\n\t"
            "subq $8, %rsp\n\t"
            ".cfi_adjust_cfa_offset 8\n\t"
            "call *%r8\n\t"
            "addq $8, %rsp\n\t"
            ".cfi_adjust_cfa_offset -8\n\t"
            "ret\n"
            ".globl bxi_user_left\n\t"
            ".hidden bxi_user_left\n"
            "bxi_user_left:\n\t"
            ".cfi_adjust_cfa_offset 8\n\t"
            "endbr64\n\t"
            "movl $0x80000000, %eax\n\t"          /* LEFT */
            "addq $8, %rsp\n\t"
            ".cfi_adjust_cfa_offset -8\n\t"
            "ret");
}

/* A C++ exception is not stopped here: a program must not throw one past the engine. */
__attribute__((used)) _Unwind_Reason_Code bxi_user_personality(int version, _Unwind_Action actions,
                                                               _Unwind_Exception_Class exception_class,
                                                               struct _Unwind_Exception *exception,
                                                               struct _Unwind_Context *context)
{
    (void)version;
    (void)exception_class;
    if (!(actions & _UA_FORCE_UNWIND))
        return _URC_CONTINUE_UNWIND;
    bxi_leaving = exception;
    _Unwind_SetIP(context, (_Unwind_Ptr)bxi_user_left);
    return _URC_INSTALL_CONTEXT;
}

void bxi_leave_now(void)
{
    struct _Unwind_Exception *exception = bxi_leaving;

    bxi_leaving = NULL;
    _Unwind_Resume(exception);
    abort();                    /* it does not return */
}

#else

#include <setjmp.h>

static void stop_unwinding(void *before)
{
    longjmp(*(jmp_buf *)before, 1);
}

static int call_stopped(const void *a, void *b, void *c, void *d, bxi_user_fn fn)
{
    static char leaves;
    volatile int rc = LEFT;
    jmp_buf before;

    pthread_cleanup_push(stop_unwinding, &before);
    if (setjmp(before) == 0)
        rc = ((int (*)(const void *, void *, void *, void *))fn)(a, b, c, d);
    else
        bxi_leaving = &leaves;
    pthread_cleanup_pop(0);
    return rc;
}

void bxi_leave_now(void)
{
    bxi_leaving = NULL;
    pthread_exit(NULL);
}

#endif
