# SPDX-License-Identifier: MIT
"""boxcar and boxcar.rpc from the outside; jobs.py runs the classes Run*."""
import asyncio
import concurrent.futures
import ctypes
import gc
import importlib.util
import math
import os
import pickle
import signal
import sys
import threading
import time
import types
import unittest
from unittest import mock

import boxcar
import boxcar.rpc as rpc
from boxcar import _boxcar
from jobs import CASE, Large, Run, figures, has_net, hosts, main, segments


# ---- What workers call -------------------------------------------------------------------------------------------

class Plain(Exception):
    """Its constructor wants two arguments, so it cannot be pickled by `args`."""

    def __init__(self, row, column):
        super().__init__(f"row {row}, column {column}")


class NoException(Exception):
    """Its pickle is of no exception."""

    def __reduce__(self):
        return str, ("text",)


class Fixed(Exception):
    """Its args cannot be set."""
    args = property(lambda self: ("fixed",))


class Unpicklable(Exception):
    def __reduce__(self):
        raise SystemExit("no pickle")


class Obscure(Exception):
    """Its traceback cannot be written."""

    def __getattr__(self, name):
        raise RuntimeError(name)


class Ends:
    """To read its pickle ends the thread."""

    def __reduce__(self):
        return sys.exit, (3,)


class Lenient:
    """A mock: it has every attribute."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return "any"

    def __call__(self):
        return 5


class Counter:
    living = 0

    def __init__(self, value=0):
        self.value = value
        Counter.living += 1

    def __del__(self):
        Counter.living -= 1

    def add(self, n=1):
        self.value += n
        return self.value

    @boxcar.async_function
    def later(self):
        return after(0.01, self.value)

    @staticmethod
    @rpc.functions.async_execution
    def static_later(ref, n):
        return after(0.01, ref.local_value().value + n)

    @classmethod
    @rpc.functions.async_execution
    def class_later(cls, n):
        return after(0.01, cls.__name__ * n)


def after(seconds, value):
    future = boxcar.Future()
    threading.Timer(seconds, lambda: future.set_result(value)).start()
    return future


def add(a, b=1):
    return a + b


def echo(value):
    return value


def raises(error):
    raise error


def makes_lambda():
    return lambda: 1


def raises_plain():
    raise Plain(1, 2)


def raises_new(type):
    raise type()


def makes(type):
    return type()


@boxcar.async_function
def much_later():
    """Its value has more references than a message may."""
    return after(0.01, [boxcar.ref(1) for _ in range(1025)])


def forks(leaves):
    """What a child of a handler ends with: it leaves, or returns from the handler."""
    child = os.fork()
    if child == 0:
        if not leaves:
            return None
        try:
            boxcar.leave()
        finally:
            os._exit(5 if sys.exc_info()[0] is None else 6)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def living():
    gc.collect()
    return Counter.living


def add_on(ref, n):
    return ref.call("add", (n,))


def nested(depth):
    other = (boxcar.rank() + 1) % boxcar.world_size()
    return depth if depth == 0 else boxcar.call(other, nested, (depth - 1,)) + 1


@boxcar.async_function
def forgets():
    return 1


# ---- Jobs -----------------------------------------------------------------------------------------------------------

class RunCalls(Run):
    def first(self):
        CASE.assertEqual(boxcar.call("worker1", add, (1, 2)), 3)
        CASE.assertEqual(boxcar.call("worker0", calls_itself, (2,)), 3)
        CASE.assertEqual(boxcar.call(1, add, ["a"], {"b": "b"}), "ab")
        CASE.assertEqual(boxcar.call(0, add, (1,)), 2)
        CASE.assertEqual(boxcar.call(1, max, ([3, 5],)), 5)
        CASE.assertEqual(boxcar.call(1, nested, (8,)), 8)
        knot = []
        knot.append(knot)
        back = boxcar.call(1, echo, (knot,))
        CASE.assertIs(back[0], back)
        futures = [boxcar.call_async(1, add, (i, i)) for i in range(2000)]
        CASE.assertEqual([future.result() for future in futures], [2 * i for i in range(2000)])
        CASE.assertGreaterEqual(boxcar.counter("calls_sent"), 2000)
        CASE.assertTrue(boxcar.is_alive("worker1"))
        with CASE.assertRaisesRegex(RuntimeError, "in a job already"):
            boxcar.init()


class RunErrors(Run):
    def first(self):
        for error in (KeyError("key"), OSError(2, "no file"), StopIteration(), KeyError(3), SystemExit(3)):
            with CASE.assertRaises(type(error)) as raised:
                boxcar.call(1, raises, (error,))
            CASE.assertIn("in raises", str(raised.exception.__cause__))
        for error in (KeyError(3), OSError(2, "no file", "here"), ArithmeticError(1, 2)):
            got = pickle.loads(pickle.dumps(boxcar.call_async(1, raises, (error,)).exception()))
            CASE.assertEqual((type(got), got.args, str(got)), (type(error), error.args, str(error)))
        with CASE.assertRaisesRegex(ValueError, "(?s)^row 3\n.*On worker 1:.*in raises"):
            boxcar.call(1, raises, (ValueError("row 3"),))
        with CASE.assertRaisesRegex(RuntimeError, "Plain: row 1, column 2"):
            boxcar.call(1, raises_plain)
        for type_ in (NoException, Fixed, Unpicklable):
            failing = boxcar.call_async(1, raises_new, (type_,))
            done = threading.Event()
            failing.add_done_callback(lambda future: done.set())
            CASE.assertTrue(done.wait(5))
            with CASE.assertRaisesRegex(RuntimeError, "in raises_new"):
                failing.result()
        with CASE.assertRaisesRegex((Obscure, RuntimeError), "Obscure, whose traceback cannot be written"):
            boxcar.call(1, raises_new, (Obscure,))
        with CASE.assertRaises(SystemExit):
            boxcar.call_async(1, makes, (Ends,)).then(lambda future: future.result()).result(5)
        with CASE.assertRaisesRegex(boxcar.NoWorker, "has no worker"):
            boxcar.call("\u00e9" * 500, add, (1,))         # the engine cuts its sentence inside a character
        with CASE.assertRaisesRegex((boxcar.TooLarge, RuntimeError), "1024 references"):
            boxcar.call(1, much_later)
        CASE.assertEqual(boxcar.call(1, Lenient()), 5)
        if importlib.util.find_spec("cloudpickle"):
            CASE.assertEqual(boxcar.call(1, lambda: boxcar.call(0, makes_lambda)()), 1)
        else:
            for send in (lambda: boxcar.call(1, makes_lambda), lambda: boxcar.call(1, lambda: 1)):
                with CASE.assertRaisesRegex((AttributeError, pickle.PicklingError), "lambda"):
                    send()
        here = types.ModuleType("here")         # the other worker has no such module, and then not this function
        for module, error in (here, ModuleNotFoundError), (sys.modules[__name__], AttributeError):
            only = types.FunctionType(add.__code__, {}, "only")
            only.__module__, only.__qualname__, module.only = module.__name__, "only", only
            sys.modules[module.__name__] = module
            with CASE.assertRaisesRegex(error, "here|only"):
                boxcar.call(1, only, (1,))
        with CASE.assertRaisesRegex(TypeError, "positional argument"):
            boxcar.call(1, add, ())
        with CASE.assertRaisesRegex(TypeError, "not callable"):
            boxcar.call(1, ("os", "getpid"))        # a name is no function
        with CASE.assertRaisesRegex(TypeError, "returned no future"):
            boxcar.call(1, forgets)
        with CASE.assertRaisesRegex(boxcar.NoWorker, "nobody"):
            boxcar.call("nobody", add, (1,))
        for use in (lambda: boxcar.call(1, time.sleep, (2,), timeout=0.1),
                    lambda: boxcar.call_async(1, time.sleep, (0.5,)).result(0.05)):
            with CASE.assertRaises(boxcar.Timeout) as raised:
                use()
            CASE.assertEqual((raised.exception.worker, raised.exception.function), (1, time.sleep))
        with CASE.assertRaisesRegex(ValueError, "negative"):
            boxcar.call(1, add, (1,), timeout=-2)
        with CASE.assertRaises(boxcar.Timeout):
            boxcar.Future().result(0.05)
        late = boxcar.call_async(1, time.sleep, (5,))
        CASE.assertTrue(late.cancel())
        with CASE.assertRaises(boxcar.Cancelled):
            late.result()
        with CASE.assertRaisesRegex(boxcar.WouldDeadlock, "handler"):
            boxcar.call(1, boxcar.shutdown)


class RunForbidsTorch(Run):
    def init(self):
        sys.modules["torch"] = None
        super().init()

    def first(self):
        CASE.assertEqual(boxcar.call(1, add, (1, 2)), 3)


class RunFutures(Run):
    def awaits(self):
        async def one():
            return await boxcar.call_async(1, add, (1,))

        async def sleeps():
            await boxcar.call_async(1, time.sleep, (0.02,))

        async def fails():
            await boxcar.call_async(1, raises, (KeyError("k"),))

        async def gives_up():
            sleeping = boxcar.call_async(1, time.sleep, (0.5,))
            with CASE.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(sleeping, 0.05)
            with CASE.assertRaises(concurrent.futures.CancelledError):
                sleeping.result(5)
            done = boxcar.call_async(1, add, (2,))
            done.result()
            return await done + await done

        with CASE.assertRaises(KeyError):
            asyncio.run(fails())
        CASE.assertEqual(asyncio.run(gives_up()), 6)
        before = figures()[1]
        CASE.assertEqual({asyncio.run(one()) for _ in range(50)}, {2})
        for _ in range(50):                 # loops that are closed before the answers come
            loop = asyncio.new_event_loop()
            waits = loop.create_task(sleeps())
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            waits._log_destroy_pending = False
        del loop, waits
        until = time.monotonic() + 10
        while figures()[1] >= before + 10 and time.monotonic() < until:     # each loop has one descriptor of Boxcar's
            asyncio.run(one())
            gc.collect()
        CASE.assertLess(figures()[1], before + 10)

    def first(self):
        async def gather():
            return await asyncio.gather(*[boxcar.call_async(1, add, (i,)) for i in range(50)])

        CASE.assertEqual(asyncio.run(gather()), list(range(1, 51)))
        self.awaits()
        CASE.assertEqual(boxcar.call(1, after_all, (20,)), 20)
        CASE.assertEqual(boxcar.call_async(1, add, (1,)).then(lambda future: future.result() * 10).result(5), 20)
        for wait in (concurrent.futures.wait, lambda futures, timeout: [set(
                concurrent.futures.as_completed(futures, timeout))]):
            futures = {boxcar.call_async(1, time.sleep, (0.1,)) for _ in range(3)}
            CASE.assertEqual(wait(futures, timeout=5)[0], futures)
        for waits in (lambda n: add_later(n).result(), lambda n: boxcar.call(1, boxcar.call, (0, add_later, (n,))),
                      lambda n: concurrent.futures.wait([add_later(n)]).done.pop().result(),
                      lambda n: completed_later(n).result()):
            CASE.assertEqual(boxcar.call_async(1, add, (1,)).then(lambda future: waits(future.result())).result(10), 4,
                             "a callback waits for another one")
        threads = {boxcar.call_async(1, time.sleep, (0.005,)).then(lambda future: threading.current_thread()).result(5)
                   for _ in range(20)}
        CASE.assertEqual(len(threads), 1, "callbacks that do not wait run on one thread")
        with mock.patch.object(boxcar.threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            CASE.assertEqual(boxcar.call_async(1, add, (1,)).then(
                lambda future: boxcar.call(1, time.sleep, (0.01,)) or future.result()).result(10), 2)
        with CASE.assertRaisesRegex(TypeError, "callable, not None"):
            boxcar.call_async(1, add, (1,)).then(None)
        boxcar.call_async(1, time.sleep, (0.1,)).add_done_callback(lambda future: sys.exit(1))
        time.sleep(0.2)
        CASE.assertEqual(boxcar.call_async(1, add, (1,)).result(math.inf), 2)
        done = threading.Event()
        kept = Counter()
        boxcar.call_async(1, time.sleep, (0.02,)).add_done_callback(lambda future, kept=kept: None)
        del kept
        until = time.monotonic() + 10
        while living() > 0:             # the thread of the callbacks does not keep the last one
            CASE.assertLess(time.monotonic(), until)
        failing = boxcar.call_async(1, raises, (KeyError("k"),))
        failing.add_done_callback(lambda future: done.set())
        CASE.assertTrue(done.wait(5))
        CASE.assertIsInstance(failing.exception(), KeyError)


@boxcar.async_function
def add_later(n):
    return boxcar.call_async(1, add, (n,)).then(lambda future: future.result() + 1)


def completed_later(n):
    whole = boxcar.Future()
    boxcar.call_async(1, add, (n,)).add_done_callback(lambda future: whole.set_result(future.result() + 1))
    return whole


@boxcar.async_function
def after_all(n):
    """Its future is done when `n` calls of its own are."""
    futures = [boxcar.call_async(0, add, (0,)) for _ in range(n)]
    whole = boxcar.Future()
    left = [n]

    def one(future):
        left[0] -= 1
        if left[0] == 0:
            whole.set_result(sum(future.result() for future in futures))

    for future in futures:
        future.add_done_callback(one)
    return whole


class RunReferences(Run):
    size = 3

    def first(self):
        counter = boxcar.remote(1, Counter, (5,))
        CASE.assertEqual(counter.call("add"), 6)
        CASE.assertEqual(boxcar.call(2, add_on, (counter, 10)), 16)
        CASE.assertEqual(boxcar.call(1, add_on, (counter, 10)), 26)
        CASE.assertEqual(boxcar.call(2, echo, ([counter],))[0].call("add", kwargs={"n": 4}), 30)
        CASE.assertEqual(counter.call("later"), 30)
        CASE.assertEqual(counter.get().value, 30)
        CASE.assertEqual(counter.owner, 1)
        with CASE.assertRaisesRegex(AttributeError, "no_method"):
            counter.call("no_method")
        with CASE.assertRaises(boxcar.Error):
            counter.local()
        with CASE.assertRaisesRegex(TypeError, "only be pickled in"):
            pickle.dumps(counter)
        mine = boxcar.ref([1, 2])
        CASE.assertEqual(boxcar.call(1, echo, (mine,)).local(), [1, 2])
        failed = boxcar.remote(1, raises, (KeyError("unmade"),))
        for use in (failed.get, lambda: failed.call("add")):
            with CASE.assertRaisesRegex(KeyError, "unmade"):
                use()
        failed = boxcar.remote(0, raises, (ValueError("unmade"),))
        with CASE.assertRaises(ValueError):
            failed.get()
        for _ in range(2):
            with CASE.assertRaises(ValueError) as raised:
                failed.local()
            CASE.assertEqual(str(raised.exception).count("On this worker"), 1)
        CASE.assertEqual(boxcar.call(1, living), 1)
        del counter
        deadline = time.monotonic() + 10
        while boxcar.call(1, living) > 0:
            CASE.assertLess(time.monotonic(), deadline)


class RunRpc(Run):
    size = 3

    def init(self):
        rank = int(os.environ["BX_RANK"])
        options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=20,
                                                  init_method=f"tcp://localhost:{os.environ['BX_JOB']}")
        rpc.init_rpc(("agent", "obs1", "obs2")[rank], rank=rank, world_size=3, rpc_backend_options=options)

    def first(self):
        obs1 = rpc.get_worker_info("obs1")
        CASE.assertEqual((obs1, rpc.get_worker_info(1)), (rpc.WorkerInfo("obs1", 1),) * 2)
        CASE.assertEqual((rpc.get_worker_info().name, rpc.get_rpc_timeout()), ("agent", 20))
        CASE.assertEqual(rpc.api._require_initialized(add)(1), 2)
        for to in ("obs1", 1, obs1):
            CASE.assertEqual(rpc.rpc_sync(to, add, args=(1,), kwargs={"b": 2}), 3)
        CASE.assertEqual(rpc.rpc_async("obs2", add, args=(1, 1)).wait(), 2)
        mine = rpc.RRef(Counter(1))
        CASE.assertTrue(mine.is_owner())
        CASE.assertEqual(mine.local_value().value, 1)
        CASE.assertIs(mine.to_here(), mine.local_value())
        CASE.assertEqual(rpc.rpc_sync("obs1", on_proxy, args=(mine,)), 3)
        counter = rpc.remote("obs1", Counter, args=(10,))
        CASE.assertEqual(counter.to_here().value, 10)
        CASE.assertEqual((counter.owner_name(), counter.owner(), counter.is_owner()), ("obs1", obs1, False))
        CASE.assertEqual(counter.rpc_sync().add(), 11)
        CASE.assertEqual(counter.rpc_async(timeout=5).add(n=2).wait(), 13)
        CASE.assertEqual(counter.remote().add(2).to_here(), 15)
        CASE.assertTrue(counter.confirmed_by_owner())
        CASE.assertEqual(rpc.rpc_sync("obs1", Counter.static_later, args=(counter, 5)), 20)
        CASE.assertEqual(rpc.rpc_sync("obs1", Counter.class_later, args=(2,)), "CounterCounter")
        CASE.assertEqual(rpc.rpc_sync("obs1", add, args=(1,), timeout=0), 2)
        with CASE.assertRaisesRegex(RuntimeError, "for the owner, worker obs1"):
            counter.local_value()
        with CASE.assertRaisesRegex(ValueError, "unmade"):
            rpc.remote("obs2", raises, args=(ValueError("unmade"),)).to_here()
        with CASE.assertRaises(boxcar.Timeout):
            rpc.rpc_sync("obs1", time.sleep, args=(3,), timeout=0.1)
        rpc.shutdown()
        for use in (counter.to_here, counter.rpc_sync().add, counter.owner, mine.local_value, lambda: rpc.RRef(1)):
            with CASE.assertRaises(boxcar.Shutdown):
                use()

    def leave(self):
        if os.environ["BX_RANK"] != "0":
            rpc.shutdown()


def on_proxy(rref: rpc.RRef[Counter]) -> int:
    rref.rpc_sync().add()
    return rref.rpc_sync().add()


class RunNames(Run):
    """A trace shows the names of Python functions from their second call on."""

    def init(self):
        self.trace = os.environ["BX_TRACE"] = f"/tmp/{os.environ['BX_JOB']}.trace"
        super().init()

    def first(self):
        for _ in range(2):
            CASE.assertEqual(boxcar.remote(1, Counter, (4,)).call("add"), 5)
        for i in range(130):                    # more than the engine has room for
            for _ in range(2):
                CASE.assertEqual(boxcar.call(1, Named(f"f{i}"), (i,)), i)
        CASE.assertEqual([boxcar.call(1, add, (1,)) for _ in range(2)], [2, 2])

    def leave(self):
        super().leave()
        if os.environ["BX_RANK"] == "0":
            with open(self.trace) as file:
                text = file.read()
            os.unlink(self.trace)
            names = ["py.call", "new Counter()", ".add()", "f0()", "f99()", "f129()", "add()"]
            CASE.assertEqual([name for name in names if f'"{name}"' in text], names[:5])


class Named:
    """A function of a name of its own."""

    def __init__(self, name):
        self.__qualname__ = name

    def __call__(self, value):
        return value


class RunAlone(Run):
    """A world of one, which calls itself; twice, and by boxcar.rpc."""
    size = 1

    def init(self):
        boxcar.init(world_size=1)

    def first(self):
        for init in (lambda: boxcar.init(world_size=1), lambda: rpc.init_rpc(
                "me", rank=0, world_size=1, rpc_backend_options=rpc.RpcBackendOptions(
                    init_method=f"tcp://{os.environ['BX_JOB']}:1"))):
            CASE.assertEqual(boxcar.call(0, calls_itself, (3,)), 6)
            CASE.assertEqual(boxcar.call_async(boxcar.name(), after_all, (20,)).result(), 20)
            CASE.assertEqual(boxcar.remote(0, Counter, (5,)).call("add"), 6)
            with CASE.assertRaises(KeyError):
                boxcar.call(0, raises, (KeyError("k"),))
            boxcar.shutdown()
            CASE.assertEqual(segments(f"alone-{os.getpid()}"), [])
            init()
        CASE.assertEqual(rpc.rpc_sync("me", add, args=(1,)), 2)


def calls_itself(n):
    return n + boxcar.call(boxcar.rank(), calls_itself, (n - 1,)) if n > 0 else 0


class EndsLate:
    """Notes whether the thread that ends it has the GIL and is known to have it."""
    ended = []

    def __del__(self):
        self.ended.append(ctypes.pythonapi.PyGILState_Check())


def leaves_local():
    local.value = EndsLate()


local = threading.local()


class RunLocals(Run):
    """What a handler leaves in thread-locals ends with its thread."""
    size = 1

    def first(self):
        boxcar.call(0, leaves_local)
        CASE.assertEqual(EndsLate.ended, [])

    def leave(self):
        super().leave()
        CASE.assertEqual(EndsLate.ended, [1])


class RunDeath(Run):
    size = 3
    status = {1: -signal.SIGKILL}

    def first(self):
        pid = boxcar.call(1, os.getpid)
        counter = boxcar.remote(1, Counter)
        pending = boxcar.call_async(1, time.sleep, (60,))
        os.kill(pid, signal.SIGKILL)
        for use, called in ((pending.result, time.sleep), (lambda: counter.call("add"), "add"),
                            (lambda: boxcar.call(1, add), add), (lambda: boxcar.remote(1, Counter), Counter)):
            with CASE.assertRaisesRegex(boxcar.PeerDead, "worker1") as raised:
                use()
            CASE.assertEqual((raised.exception.worker, raised.exception.function), (1, called))
        CASE.assertFalse(boxcar.is_alive(1))
        CASE.assertEqual(boxcar.call(2, add, (1,)), 2)


class RunLog(Run):
    """What no call reports; lines may come from threads that must not wait for Python."""
    size = 3
    status = {1: -signal.SIGKILL}

    def init(self):
        self.lines, self.came = [], threading.Event()
        boxcar.init(call_timeout=20, log=self.log)

    def log(self, level, line):
        self.lines.append((level, line, boxcar.call(2, add, (1,)) if boxcar.rank() == 0 else 2))
        self.came.set()

    def first(self):
        os.kill(boxcar.call(1, os.getpid), signal.SIGKILL)
        CASE.assertTrue(self.came.wait(10))
        CASE.assertRegex(self.lines[0][1], "worker1")
        CASE.assertIn(self.lines[0][0], (0, 1, 2))
        CASE.assertEqual(self.lines[0][2], 2)


class RunLeaves(Run):
    """Calls whose handlers wait for the GIL when their worker leaves raise Shutdown."""

    def first(self):
        time.sleep(0.2)
        futures = [boxcar.call_async(1, add, (1,)) for _ in range(100)]
        CASE.assertEqual({type(future.exception()) for future in futures}, {boxcar.Shutdown})

    def other(self):
        sys.setswitchinterval(10)
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            pass
        boxcar.leave()

    def leave(self):
        if os.environ["BX_RANK"] == "0":
            boxcar.shutdown()


class RunEnds(Run):
    """Ends with calls in flight, on threads that are not joined; a forked child; a second job; Ctrl-C."""

    def first(self):
        counter = boxcar.remote(1, Counter)
        large = boxcar.call_async(1, echo, (Large(bytearray(1 << 20)),))
        while not large._engine.done():
            time.sleep(0.01)
        pending = boxcar.call_async(1, time.sleep, (0.5,))
        child = os.fork()
        if child == 0:
            for future in (large, pending):
                with CASE.assertRaises(boxcar.Shutdown):
                    future.result(1)
            with CASE.assertRaises(boxcar.Shutdown):
                boxcar.call(1, add, (1,))
            with CASE.assertRaises(boxcar.Shutdown):
                counter.call("add")
            raise SystemExit(5)
        CASE.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 5)
        CASE.assertEqual(counter.call("add"), 1)
        CASE.assertEqual([boxcar.call(1, forks, (leaves,)) for leaves in (True, False)], [5, 1])
        pending.result()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with CASE.assertRaises(KeyboardInterrupt):
            boxcar.call(1, time.sleep, (5,))
        CASE.assertLess(time.monotonic() - began, 4)
        boxcar.shutdown()
        with CASE.assertRaises(boxcar.Shutdown):
            boxcar.rank()
        boxcar.init(os.environ["BX_JOB"] + ".2", rank=0, world_size=2)
        threading.Thread(target=boxcar.call, args=(1, time.sleep, (3,)), daemon=True).start()
        boxcar.call_async(1, time.sleep, (3,)).add_done_callback(print)
        time.sleep(0.2)

    def other(self):
        boxcar.shutdown()
        boxcar.init(os.environ["BX_JOB"] + ".2", rank=1, world_size=2)
        time.sleep(0.5)

    def leave(self):
        pass


class RunInterrupts(Run):
    """Ctrl-C ends a wait for room, and a shutdown to which nobody comes."""

    def first(self):
        def call_often():
            while True:
                boxcar.call_async(1, time.sleep, (1.5,))

        for wait in (call_often, rpc.shutdown):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            with CASE.assertRaises(KeyboardInterrupt):
                wait()
            CASE.assertLess(time.monotonic() - began, 1.5)
        with CASE.assertRaises(boxcar.Shutdown):
            boxcar.rank()

    def other(self):
        time.sleep(2)

    def leave(self):
        pass


# ---- The tests ------------------------------------------------------------------------------------------------------

class Tests(unittest.TestCase):
    def test_without_a_job(self):
        for use in (boxcar.rank, lambda: boxcar.call(0, add, (1,)), boxcar.shutdown,
                    rpc.api._require_initialized(add)):
            with self.assertRaisesRegex(boxcar.Shutdown, "has not been called"):
                use()
        with self.assertRaisesRegex(boxcar.Error, "at most 128 workers"):
            boxcar.init("many", world_size=129)
        with self.assertRaises(boxcar.RankMissing):
            boxcar.init(f"alone{os.getpid()}", world_size=2, start_timeout=0.2)
        with self.assertRaisesRegex(ValueError, "MASTER_ADDR"):
            rpc.init_rpc("agent", rank=0, world_size=2)
        places = [f"tcp://{host}.ec2.internal:{port}" for host in ("ip-172-31-45-12", "ip-172-31-45-123")
                  for port in (29500, 29501)] + ["tcp://localhost:29500"]
        names = {rpc._job_name(place) for place in places}
        self.assertEqual(len(names), len(places))
        self.assertLessEqual(max(map(len, names)), 31)
        for endless in (math.inf, sys.maxsize):
            self.assertEqual(boxcar.nanoseconds(endless), boxcar._messages.FOREVER)

    def test_a_job_that_ends_leaves_the_log_of_the_next_one(self):
        first, second = [_boxcar.Job(print, f"log{os.getpid()}-{i}", rank=0, world_size=1, log=print) for i in range(2)]
        first.destroy()
        with mock.patch.dict(os.environ, BX_TRACE="/nowhere/trace"):
            second.start()
        second.destroy()
        self.assertIn("/nowhere/trace", second.next()[1][1])

    def test_one_of_many_threads_begins_the_job(self):
        outcomes = []

        def begin():
            try:
                outcomes.append(boxcar.init(world_size=1))
            except RuntimeError as error:
                outcomes.append(str(error)[:32])

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(20):
                threads = [threading.Thread(target=begin) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(outcomes.count("this process is in a job already"), 3, outcomes)
                self.assertEqual(boxcar.call(0, add, (1,)), 2)
                boxcar.shutdown()
                outcomes.clear()
        finally:
            sys.setswitchinterval(before)

    @unittest.skipUnless(importlib.util.find_spec("_xxsubinterpreters"), "Python 3.9 to 3.12 has that module")
    def test_another_interpreter_leaves_the_errors_of_this_one(self):
        import _xxsubinterpreters as interpreters
        other = interpreters.create()
        with self.assertRaisesRegex(interpreters.RunFailedError, "main interpreter"):
            interpreters.run_string(other, "import boxcar")
        interpreters.destroy(other)
        with self.assertRaises(boxcar.RankMissing):
            boxcar.init(f"main{os.getpid()}", world_size=2, start_timeout=0.2)

    @unittest.skipUnless(has_net(), "the plug-in is not built")
    def test_ctrl_c_ends_a_start_that_waits_for_another_host(self):
        for rank, host in enumerate(hosts(types.SimpleNamespace(size=2, is_apart=True))):
            with mock.patch.dict(os.environ, host):
                timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                began = time.monotonic()
                with self.assertRaises(KeyboardInterrupt):
                    boxcar.init(f"hosts{os.getpid()}", rank=rank, world_size=2, start_timeout=20)
                self.assertLess(time.monotonic() - began, 10)
                timer.join()


if __name__ == "__main__":
    main(Tests)
