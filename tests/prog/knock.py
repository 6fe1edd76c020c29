#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
#
# Who knocks at BX_ROOT and is no worker, for tests/e2e/net.sh. ADDRESS is of IPv4. It ends when its input ends; replay
# sends again then, and goes on until the worker or rank 0 hangs up.
#
#     knock.py silent ADDRESS PORT COUNT          COUNT connections that send nothing
#     knock.py noise ADDRESS PORT COUNT           connections that send random bytes of several lengths
#     knock.py endless ADDRESS PORT COUNT         as silent, and each that is closed is made anew, while rank 0 listens
#     knock.py replay ADDRESS PORT LISTEN         listens at the port LISTEN and passes one worker's connection on to
#                                                 ADDRESS PORT; then it sends what that worker had sent once more
#
#     knock.py between ADDRESS PORT LISTEN        listens at the port LISTEN and passes connections on to ADDRESS PORT;
#                                                 of the first, nothing that the worker sends, until rank 0 has dropped
#                                                 it for a crowd of silent ones
#
#     knock.py close ADDRESS PORT LISTEN          likewise, and hangs up when the worker has sent something
#     knock.py delay ADDRESS PORT LISTEN          passes on one connection, each piece after 20 ms
#     knock.py cut ADDRESS PORT LISTEN            passes on one connection, until its input ends
#     knock.py half ADDRESS PORT LISTEN           likewise; then it sends half a message both ways, and nothing more
#     knock.py garbage ADDRESS PORT LISTEN        likewise; then it sends noise both ways
#
# It prints "ready" when the connections are there (replay: when it listens); replay prints "refused" or "let in".
import os
import select
import signal
import socket
import struct
import sys
import time

# Each with its head: a nonce of rank 0, and the worker's proof. Bytes that nobody has read would make the hang-up a
# reset.
NONCE_BYTES = 56
PROOF_BYTES = 80

HOW, ADDRESS, PORT, NUMBER = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def say(text):
    print(text, flush=True)


def knock(tries=500):
    """A connection to rank 0, which may not listen yet; a try takes 10 ms."""
    for left in range(tries, 0, -1):
        try:
            return socket.create_connection((ADDRESS, PORT))
        except OSError:
            if left > 1:
                time.sleep(0.01)
    return None


def input_has_ended(timeout_s):
    return bool(select.select([0], [], [], timeout_s)[0]) and os.read(0, 1) == b""


def send_noise(to, which):
    noise = os.urandom(which * 97 % 8192)
    if which % 3 == 1:                          # as if it were a message: its kind, and an honest length or a lie
        noise = (struct.pack("<4I", 2, 64 if which % 2 == 0 else 4000000000, 0, 0) + noise[16:])[:len(noise)]
    try:
        to.send(noise, socket.MSG_DONTWAIT)
    except OSError:
        pass


def crowd():
    sockets = [knock() for _ in range(NUMBER)]
    for which, one in enumerate(sockets):
        if HOW == "noise" and one:
            send_noise(one, which)
    say("ready")
    while not input_has_ended(0.001 if HOW == "endless" else None):
        for which, one in enumerate(sockets if HOW == "endless" else []):
            try:
                if one and one.recv(64, socket.MSG_DONTWAIT) == b"":
                    one.close()
                    sockets[which] = knock(1)
            except OSError:
                pass


def pass_on(worker, to, looks_at_input, delay_s=0.0):
    """Passes bytes on in both directions, each after a delay, until one side hangs up: False; or the input ends: True.
    And what the worker has sent."""
    kept = b""
    while True:
        readable = select.select([worker, to] + [0] * looks_at_input, [], [])[0]
        if 0 in readable:
            return True, kept
        time.sleep(delay_s)
        for one in readable:
            try:
                got = one.recv(8192)
                (to if one is worker else worker).sendall(got)
            except OSError:
                got = b""
            if not got:
                return False, kept
            kept += got if one is worker else b""


def come_between(listener):
    """A worker that comes, and a connection of its to rank 0."""
    return listener.accept()[0], knock()


def replay(listener):
    worker, to = come_between(listener)
    _, kept = pass_on(worker, to, True)
    again, answer = knock(), b""
    again.sendall(kept)
    while len(answer) < 256 and (got := receive(again, 256 - len(answer))):
        answer += got
    # The nonce, of less than 80 bytes, and then nothing.
    say("refused" if 0 < len(answer) < 80 else f"let in: {len(answer)} bytes")
    pass_on(worker, to, False)


def receive(one, count, flags=0):
    try:
        return one.recv(count, flags)
    except OSError:
        return b""


def between(listener):
    worker, to = come_between(listener)
    silent = [knock() for _ in range(200)]
    while got := receive(to, 8192):
        worker.sendall(got)
    say("dropped")
    for one in silent + [to]:
        one.close()
    worker.shutdown(socket.SHUT_WR)
    pass_on(*come_between(listener), False)


def close_early(listener):
    worker, to = come_between(listener)
    worker.sendall(receive(to, NONCE_BYTES, socket.MSG_WAITALL))
    receive(worker, PROOF_BYTES, socket.MSG_WAITALL)


def disturb(listener):
    worker, to = come_between(listener)
    if not pass_on(worker, to, HOW != "delay", 0.02 if HOW == "delay" else 0.0)[0]:
        return
    if HOW == "half":
        worker.sendall(bytes(8))
        to.sendall(bytes(8))
        say("sent")
        signal.pause()
    if HOW == "garbage":
        send_noise(worker, 10)
        send_noise(to, 10)
        pass_on(worker, to, False)


if HOW in ("silent", "noise", "endless"):
    crowd()
else:
    with socket.create_server((ADDRESS, NUMBER), backlog=1) as at:
        say("ready")
        {"replay": replay, "between": between, "close": close_early}.get(HOW, disturb)(at)
