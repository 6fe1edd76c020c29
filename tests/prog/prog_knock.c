/* SPDX-License-Identifier: MIT */
/*
 * Who knocks at BX_ROOT and is no worker, for tests/e2e/net.sh. ADDRESS is of IPv4. It ends when its input ends; replay
 * sends again then, and goes on until the worker or rank 0 hangs up.
 *
 *     prog_knock silent ADDRESS PORT COUNT        COUNT connections that send nothing
 *     prog_knock noise ADDRESS PORT COUNT         connections that send random bytes of several lengths
 *     prog_knock endless ADDRESS PORT COUNT       as silent, and each that is closed is made anew, while rank 0 listens
 *     prog_knock replay ADDRESS PORT LISTEN       listens at the port LISTEN and passes one worker's connection on to
 *                                                 ADDRESS PORT; then it sends what that worker had sent once more
 *
 *     prog_knock between ADDRESS PORT LISTEN      listens at the port LISTEN and passes connections on to ADDRESS PORT;
 *                                                 of the first, nothing that the worker sends, until rank 0 has dropped
 *                                                 it for a crowd of silent ones
 *
 *     prog_knock close ADDRESS PORT LISTEN        likewise, and hangs up when the worker has sent something
 *     prog_knock delay ADDRESS PORT LISTEN        passes on one connection, each piece after 20 ms
 *     prog_knock cut ADDRESS PORT LISTEN          passes on one connection, until its input ends
 *     prog_knock half ADDRESS PORT LISTEN         likewise; then it sends half a message both ways, and nothing more
 *     prog_knock garbage ADDRESS PORT LISTEN      likewise; then it sends noise both ways
 *
 * It prints "ready" when the connections are there (replay: when it listens); replay prints "refused" or "let in".
 */
#include <arpa/inet.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 1000

#define PATIENT 500             /* tries, of 10 ms each: rank 0 may not listen yet */

static struct sockaddr_in root;

static int knock(int tries)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    for (int i = 0; i < tries; i++) {
        if (connect(fd, (struct sockaddr *)&root, sizeof root) == 0)
            return fd;
        if (tries > 1)
            usleep(10000);
    }
    close(fd);
    return -1;
}

static bool input_has_ended(int timeout_ms)
{
    struct pollfd entry = { .fd = 0, .events = POLLIN };
    char byte;

    return poll(&entry, 1, timeout_ms) > 0 && read(0, &byte, 1) <= 0;
}

static void send_noise(int fd, int which)
{
    unsigned char bytes[8192];
    size_t length = (size_t)(which * 97 % (int)sizeof bytes);

    if (getrandom(bytes, sizeof bytes, 0) < 0)
        return;
    if (which % 3 == 1)                         /* as if it were a message: its kind, and an honest length or a lie */
        memcpy(bytes, (uint32_t[]){ 2, which % 2 == 0 ? 64 : 4000000000u, 0, 0 }, 16);
    (void)!send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static int crowd(const char *how, int count)
{
    int fds[MOST];

    for (int i = 0; i < count; i++) {
        fds[i] = knock(PATIENT);
        if (fds[i] >= 0 && strcmp(how, "noise") == 0)
            send_noise(fds[i], i);
    }
    printf("ready\n");
    while (!input_has_ended(strcmp(how, "endless") == 0 ? 1 : -1))
        for (int i = 0; i < count && strcmp(how, "endless") == 0; i++) {
            char byte[64];

            if (fds[i] >= 0 && recv(fds[i], byte, sizeof byte, MSG_DONTWAIT) == 0) {
                close(fds[i]);
                fds[i] = knock(1);
            }
        }
    return 0;
}

struct kept {
    size_t length;
    unsigned char bytes[65536];
};

/* Passes bytes on in both directions, each after delay_us, until one side hangs up, or the input ends: true. Keeps what
 * the worker sends, unless kept is NULL. */
static bool pass_on(int worker, int to, bool looks_at_input, unsigned delay_us, struct kept *kept)
{
    for (;;) {
        struct pollfd entries[] = { { .fd = worker, .events = POLLIN }, { .fd = to, .events = POLLIN },
                                    { .fd = looks_at_input ? 0 : -1, .events = POLLIN } };

        if (poll(entries, 3, -1) < 0 || entries[2].revents != 0)
            return true;
        if (delay_us > 0)
            usleep(delay_us);
        for (int i = 0; i < 2; i++) {
            unsigned char bytes[8192];
            ssize_t got = entries[i].revents != 0 ? recv(entries[i].fd, bytes, sizeof bytes, 0) : 0;

            if (entries[i].revents != 0 && got <= 0)
                return false;
            if (got > 0 && send(entries[1 - i].fd, bytes, (size_t)got, MSG_NOSIGNAL) != got)
                return false;
            for (ssize_t b = 0; kept != NULL && i == 0 && b < got && kept->length < sizeof kept->bytes; b++)
                kept->bytes[kept->length++] = bytes[b];
        }
    }
}

static int listen_at(int port)
{
    struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_ANY) };
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return bind(listener, (struct sockaddr *)&own, sizeof own) < 0 || listen(listener, 1) < 0 ? -1 : listener;
}

/* A worker that comes to the port, and a connection of its to rank 0. The port's socket, or -1. */
static int come_between(int port, int *worker, int *to)
{
    int listener = listen_at(port);

    if (listener < 0)
        return -1;
    printf("ready\n");
    *worker = accept(listener, NULL, NULL);
    *to = knock(PATIENT);
    return listener;
}

static int replay(int port)
{
    static struct kept kept;
    unsigned char answer[256];
    int worker, to, again;
    size_t came = 0;
    ssize_t got;

    if (come_between(port, &worker, &to) < 0)
        return 1;
    pass_on(worker, to, true, 0, &kept);
    again = knock(PATIENT);
    if (send(again, kept.bytes, kept.length, MSG_NOSIGNAL) != (ssize_t)kept.length)
        return 1;
    while (came < sizeof answer && (got = recv(again, answer + came, sizeof answer - came, 0)) > 0)
        came += (size_t)got;
    /* The nonce, of less than 80 bytes, and then nothing. */
    printf(came > 0 && came < 80 ? "refused\n" : "let in: %zu bytes\n", came);
    pass_on(worker, to, false, 0, NULL);
    return 0;
}

static int between(int port)
{
    int worker, to, listener = come_between(port, &worker, &to), silent[200];
    unsigned char bytes[8192];
    ssize_t got;

    if (listener < 0)
        return 1;
    for (int i = 0; i < 200; i++)
        silent[i] = knock(PATIENT);
    while ((got = recv(to, bytes, sizeof bytes, 0)) > 0 && send(worker, bytes, (size_t)got, MSG_NOSIGNAL) == got)
        ;
    printf("dropped\n");
    for (int i = 0; i < 200; i++)
        close(silent[i]);
    close(to);
    shutdown(worker, SHUT_WR);
    worker = accept(listener, NULL, NULL);
    to = knock(PATIENT);
    pass_on(worker, to, false, 0, NULL);
    return 0;
}

/* Each with its head: a nonce of rank 0, and the worker's proof. Bytes that nobody has read would make the hang-up a
 * reset. */
#define NONCE_BYTES 56
#define PROOF_BYTES 80

static int close_early(int port)
{
    unsigned char bytes[PROOF_BYTES];
    int worker, to;

    if (come_between(port, &worker, &to) < 0 || recv(to, bytes, NONCE_BYTES, MSG_WAITALL) != NONCE_BYTES)
        return 1;
    return send(worker, bytes, NONCE_BYTES, MSG_NOSIGNAL) == NONCE_BYTES &&
                   recv(worker, bytes, PROOF_BYTES, MSG_WAITALL) == PROOF_BYTES
               ? 0 : 1;
}

static int disturb(const char *how, int port)
{
    const bool delays = strcmp(how, "delay") == 0;
    int worker, to;

    if (come_between(port, &worker, &to) < 0)
        return 1;
    if (!pass_on(worker, to, !delays, delays ? 20000 : 0, NULL))
        return 0;
    if (strcmp(how, "half") == 0) {
        for (int i = 0; i < 2; i++)
            if (send(i == 0 ? worker : to, (char[8]){ 0 }, 8, MSG_NOSIGNAL) != 8)
                return 1;
        printf("sent\n");
        pause();
    }
    if (strcmp(how, "garbage") == 0) {
        send_noise(worker, 10);
        send_noise(to, 10);
        pass_on(worker, to, false, 0, NULL);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int number = argc == 5 ? atoi(argv[4]) : 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (number <= 0 || inet_pton(AF_INET, argv[2], &root.sin_addr) != 1) {
        fprintf(stderr, "usage: prog_knock silent|noise|endless|replay|between|close|delay|cut|half|garbage "
                        "ADDRESS "
                        "PORT NUMBER\n");
        return 2;
    }
    root.sin_family = AF_INET;
    root.sin_port = htons((uint16_t)atoi(argv[3]));
    if (strcmp(argv[1], "delay") == 0 || strcmp(argv[1], "cut") == 0 || strcmp(argv[1], "half") == 0 ||
        strcmp(argv[1], "garbage") == 0)
        return disturb(argv[1], number);
    if (strcmp(argv[1], "close") == 0)
        return close_early(number);
    if (strcmp(argv[1], "between") == 0)
        return between(number);
    return strcmp(argv[1], "replay") == 0 ? replay(number) : crowd(argv[1], number < MOST ? number : MOST);
}
