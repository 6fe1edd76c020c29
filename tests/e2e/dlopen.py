# SPDX-License-Identifier: MIT
"""One of the two workers of dlopen.sh: dlopen.py LIBRARY RANK JOB [first|late]

Opens the library, runs a job with it, closes it, and does so once more. "first" imports torch before that, "late" after
the library is open; then the tensor goes through torch by DLPack. Prints the step that failed.
"""
import ctypes
import os
import sys
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int64, c_longlong, c_size_t, c_uint64, c_void_p

LIBRARY, RANK, JOB = sys.argv[1], int(sys.argv[2]), sys.argv[3]
TORCH = sys.argv[4] if len(sys.argv) > 4 else None
ELEMENTS = 1 << 20          # of 4 bytes: more than glibc's malloc takes from its heap
F32 = 1
INLINE = 1
process = ctypes.CDLL(None)
torch = None


class Options(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("job", c_char_p), ("name", c_char_p), ("rank", c_int),
                ("world_size", c_int)]


class Reader(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("pos", c_size_t), ("error", c_int), ("tensors", c_void_p),
                ("tensor_count", c_size_t), ("rrefs", c_void_p), ("rref_count", c_size_t)]


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


HANDLER = CFUNCTYPE(c_int, c_void_p, POINTER(Reader), c_void_p, c_void_p)
process.mallinfo2.restype = Mallinfo
process.malloc.restype = c_void_p
process.malloc.argtypes = [c_size_t]
process.free.argtypes = [c_void_p]


def check(what, is_true):
    if not is_true:
        print("rank", RANK, "failed:", what, flush=True)
        os._exit(1)


def in_use():
    """What glibc's malloc has given out, in bytes."""
    info = process.mallinfo2()
    return info.uordblks + info.hblkhd


def addresses():
    """Where the process finds the functions of its allocator."""
    return [ctypes.cast(getattr(process, name), c_void_p).value
            for name in ("malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign")]


def check_malloc(before):
    check("malloc and free are the process's own", addresses() == before)
    bytes_before = in_use()
    block = process.malloc(4 << 20)
    check("glibc gives out what malloc returns", in_use() >= bytes_before + (4 << 20))
    process.free(block)


def declare(lib):
    for name, restype, argtypes in (
            ("bx_error_text", c_char_p, []),
            ("bx_job_create", c_int, [POINTER(Options), POINTER(c_void_p)]),
            ("bx_register", c_int, [c_void_p, c_char_p, c_int, HANDLER, c_void_p]),
            ("bx_job_start", c_int, [c_void_p]),
            ("bx_job_shutdown", c_int, [c_void_p, c_uint64]),
            ("bx_job_destroy", None, [c_void_p]),
            ("bx_msg_create", c_void_p, [c_size_t]),
            ("bx_msg_destroy", None, [c_void_p]),
            ("bx_msg_put_i64", c_int, [c_void_p, c_int64]),
            ("bx_msg_put_tensor", c_int, [c_void_p, c_void_p]),
            ("bx_msg_reader", Reader, [c_void_p]),
            ("bx_read_i64", c_longlong, [POINTER(Reader)]),
            ("bx_read_tensor", c_void_p, [POINTER(Reader)]),
            ("bx_rpc_sync", c_int, [c_void_p, c_char_p, c_char_p, c_void_p, c_void_p, POINTER(c_void_p)]),
            ("bx_tensor_create", c_int, [c_void_p, c_int, c_int, POINTER(c_int64), POINTER(c_void_p)]),
            ("bx_tensor_data", c_void_p, [c_void_p]),
            ("bx_tensor_data_mut", c_void_p, [c_void_p]),
            ("bx_tensor_release", None, [c_void_p]),
            ("bx_tensor_to_dlpack", c_int, [c_void_p, POINTER(c_void_p)])):
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes


def torch_view(lib, tensor):
    """The tensor's memory as torch sees it; torch drops it by the library's deleter."""
    managed = c_void_p()
    check("bx_tensor_to_dlpack", lib.bx_tensor_to_dlpack(tensor, byref(managed)) == 0)
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
    return torch.utils.dlpack.from_dlpack(capsule(managed, b"dltensor", None))


def total(lib, tensor):
    if torch is not None:
        return int(torch_view(lib, tensor).sum())
    return int(sum((ctypes.c_float * ELEMENTS).from_address(lib.bx_tensor_data(tensor))))


def fill(lib, tensor, value):
    if torch is not None:
        torch_view(lib, tensor).fill_(value)
        return
    elements = (ctypes.c_float * ELEMENTS).from_address(lib.bx_tensor_data_mut(tensor))
    elements[:] = [value] * ELEMENTS


def call(lib, job, turn):
    tensor, reply, shape = c_void_p(), c_void_p(), (c_int64 * 1)(ELEMENTS)
    bytes_before = in_use()
    check("bx_tensor_create", lib.bx_tensor_create(job, F32, 1, shape, byref(tensor)) == 0)
    check("a tensor of the arena is not malloc's", in_use() < bytes_before + ELEMENTS)
    fill(lib, tensor, turn + 1)
    args = lib.bx_msg_create(0)
    check("bx_msg_put_tensor", lib.bx_msg_put_tensor(args, tensor) == 0)
    check("bx_rpc_sync: " + str(lib.bx_error_text()),
          lib.bx_rpc_sync(job, b"worker1", b"total", args, None, byref(reply)) == 0)
    reader = lib.bx_msg_reader(reply)
    check("the callee's sum", lib.bx_read_i64(byref(reader)) == (turn + 1) * ELEMENTS)
    check("an unknown function is refused",
          lib.bx_rpc_sync(job, b"worker1", b"none", None, None, None) < 0 and b"none" in lib.bx_error_text())
    lib.bx_msg_destroy(reply)
    lib.bx_msg_destroy(args)
    lib.bx_tensor_release(tensor)


def run(lib, turn):
    def handle(_request, args, reply, _context):
        return lib.bx_msg_put_i64(reply, total(lib, lib.bx_read_tensor(args)))

    handler, job = HANDLER(handle), c_void_p()
    options = Options(ctypes.sizeof(Options), f"{JOB}.{turn}".encode(), None, RANK, 2)
    check("bx_job_create", lib.bx_job_create(byref(options), byref(job)) == 0)
    check("bx_register", lib.bx_register(job, b"total", INLINE, handler, None) == 0)
    check("bx_job_start: " + str(lib.bx_error_text()), lib.bx_job_start(job) == 0)
    if RANK == 0:
        call(lib, job, turn)
    check("bx_job_shutdown: " + str(lib.bx_error_text()), lib.bx_job_shutdown(job, 0) == 0)
    lib.bx_job_destroy(job)


def import_torch():
    global torch
    import torch as imported
    import torch.utils.dlpack
    imported.set_num_threads(1)
    torch = imported


def left():
    """Threads, and what the open descriptors are, of this process."""
    files = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                   if os.path.exists(f"/proc/self/fd/{fd}"))
    return len(os.listdir("/proc/self/task")), files


def main():
    import _ctypes
    if TORCH == "first":
        import_torch()
    before, was_left = addresses(), None
    for turn in range(2):
        lib = ctypes.CDLL(LIBRARY)
        declare(lib)
        check_malloc(before)
        if TORCH == "late" and torch is None:
            import_torch()
        run(lib, turn)
        check_malloc(before)
        check("dlclose", _ctypes.dlclose(lib._handle) is None)
        if was_left is not None:
            check(f"the second turn leaves no thread and no descriptor: {was_left}, {left()}", left() == was_left)
        was_left = left()
    check_malloc(before)
    with open("/proc/self/maps") as maps:
        check("no shared memory is left mapped", not any(f"{JOB}." in line for line in maps))


main()
