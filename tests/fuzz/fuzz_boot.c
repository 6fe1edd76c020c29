/* SPDX-License-Identifier: MIT */
/*
 * The target boot: packets as another process may send them, at each state of a connection. Rank 0's side of a start
 * and that of a worker that asks are taken with their static functions, so that no socket and no time is in the way.
 * The descriptors of a JOIN and of a TABLE are good or of another kind, as the input says.
 */
#include "job/bootstrap_root.c"
enum { CONNECTIONS = CONNECTIONS_MAX };
#include "job/bootstrap.c"

#include "fuzz.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define WORLD 4
#define INSTANCE 77

static struct bx_job *made[2];      /* rank 0 and rank 1 */
static int good[WORLD][BXI_BOOT_FDS];
static int closed_socket;           /* nobody is at its other end */

static void make(void)
{
    int pair[2];

    for (int rank = 0; rank < 2; rank++) {
        struct bx_options options = { .job = "fuzz", .rank = rank, .world_size = WORLD, .arena_bytes = 1 << 20,
                                      .own_loop = true };

        FUZZ_CHECK(bx_job_create(&options, &made[rank]) == 0);
        bxi_boot_fill_self(made[rank]);
    }
    for (int rank = 0; rank < WORLD; rank++) {
        static struct bxi_segment segment[WORLD];
        struct bxi_arena *arena;
        char name[BXI_OBJECT_NAME_BYTES];
        char job[BX_NAME_MAX];

        snprintf(job, sizeof job, "fuzz-%d", (int)getpid());
        FUZZ_CHECK(bxi_segment_create(&segment[rank], job, "w", INSTANCE, rank, WORLD) == 0);
        bxi_object_arena_name(name, (uint32_t)geteuid(), job, INSTANCE, rank);
        FUZZ_CHECK(bxi_arena_create(name, 1 << 20, NULL, &arena) == 0);
        segment[rank].control->header.arena_bytes = bxi_arena_bytes(arena);
        good[rank][BXI_BOOT_SEGMENT] = shm_open(segment[rank].shm_name, O_RDONLY, 0);
        good[rank][BXI_BOOT_ARENA] = shm_open(name, O_RDONLY, 0);
        shm_unlink(segment[rank].shm_name);
        shm_unlink(name);
        good[rank][BXI_BOOT_BELL] = made[0]->run->bell_fd[0];
        good[rank][BXI_BOOT_BELL_LEADER] = made[0]->run->bell_fd[1];
        good[rank][BXI_BOOT_PIDFD] = made[0]->boot->pidfd;
    }
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    close(pair[1]);
    closed_socket = pair[0];
}

/* A packet: its kind, how its head is wrong, how many descriptors come, of which worker, its bytes behind the head (0:
 * as many as one of its kind has); then these. */
static void take_input(struct fuzz_input *input, struct bxi_boot_packet *packet)
{
    static const size_t sizes[BXI_BOOT_NOTE + 2] = {
        [BXI_BOOT_HELLO] = sizeof packet->as.hello - sizeof packet->as.head,
        [BXI_BOOT_WELCOME] = sizeof packet->as.welcome - sizeof packet->as.head,
        [BXI_BOOT_JOIN] = sizeof packet->as.hello - sizeof packet->as.head,
        [BXI_BOOT_FAIL] = sizeof packet->as.fail - sizeof packet->as.head,
        [BXI_BOOT_NOTE] = sizeof packet->as.note - sizeof packet->as.head,
    };
    struct { uint8_t kind, wrong, fds, of; uint16_t bytes; } how;

    fuzz_take(input, &how, sizeof how);
    memset(packet, 0, sizeof *packet);
    packet->as.head = bxi_boot_head(how.kind % (BXI_BOOT_NOTE + 2));
    size_t bytes = how.bytes != 0 ? bxi_least(how.bytes, sizeof packet->as - sizeof packet->as.head)
                                  : sizes[packet->as.head.kind];
    fuzz_take(input, (char *)&packet->as + sizeof packet->as.head, bytes);
    packet->bytes = sizeof packet->as.head + bytes;
    switch (how.wrong) {
    case 1: packet->as.head.magic++; break;
    case 2: packet->as.head.protocol++; break;
    case 3: packet->as.head.layout++; break;
    case 4: packet->bytes = how.of % sizeof packet->as.head; break;
    default: break;
    }
    packet->fd_count = how.fds % (3 * BXI_BOOT_FDS + 1);
    for (int i = 0; i < packet->fd_count; i++) {
        int swap = how.wrong >= 16 && how.wrong % 16 == i;

        packet->fds[i] = fcntl(good[(how.of + i / BXI_BOOT_FDS) % WORLD][(i + swap) % BXI_BOOT_FDS],
                               F_DUPFD_CLOEXEC, 0);
        FUZZ_CHECK(packet->fds[i] >= 0);
    }
}

/* Rank 0: connections, and a packet on one of them. */
static void run_root(struct fuzz_input *input)
{
    static struct root root;
    struct bx_job *job = made[0];
    uint8_t which;

    memset(&root, 0, sizeof root);
    root.job = job;
    root.paths = &job->boot->paths;
    root.deadline_ns = BX_FOREVER;
    for (int rank = 0; rank < WORLD; rank++)
        for (int i = 0; i < BXI_BOOT_FDS; i++)
            root.fds[rank][i] = -1;
    while (fuzz_take(input, &which, 1) > 0) {
        struct connection *connection = &root.connection[which % 6];

        if (connection->state == UNUSED)
            *connection = (struct connection){ .state = NEW, .pid = 1 + which % 6, .arrival = root.arrivals++,
                                               .fd = BXI_UNSHARED(fcntl(closed_socket, F_DUPFD_CLOEXEC, 0)) };
        if (connection->state == JOINED && which >= 128)
            connection->state = TABLED;
        take_input(input, &root.packet);
        int rc = take_packet(&root, connection);
        bxi_boot_packet_close(&root.packet);
        FUZZ_CHECK(rc <= 0);
        if (rc < 0)
            break;
    }
    for (int i = 0; i < CONNECTIONS; i++)
        if (root.connection[i].state != UNUSED)
            bxi_unshared_close(root.connection[i].fd);
    for (int rank = 0; rank < WORLD; rank++)
        for (int i = BXI_BOOT_SEGMENT; i <= BXI_BOOT_ARENA; i++)
            bxi_unshared_close(root.fds[rank][i]);
}

/* Rank 1: what it gets of rank 0. */
static void run_joiner(struct fuzz_input *input)
{
    static struct joiner joiner;
    struct bxi_boot_packet *packet = &joiner.packet;
    uint8_t which;

    joiner = (struct joiner){ .job = made[1], .paths = &made[1]->boot->paths, .root = { .fd = -1, .who = "rank 0" } };
    while (fuzz_take(input, &which, 1) > 0) {
        take_input(input, packet);
        int rc = bxi_boot_packet_failure(packet);
        if (rc == 0 && which % 2 == 0)
            rc = bxi_boot_check_welcome(made[1], &joiner.root, packet, which / 2 % WORLD);
        else if (rc == 0 && bxi_boot_packet_is(packet, BXI_BOOT_TABLE, 0))
            rc = take_table(&joiner) < 0 ? -1 : 0;
        bxi_boot_packet_close(packet);
        if (rc < 0)
            break;
    }
}

void fuzz_boot(struct fuzz_input input)
{
    uint8_t side;

    if (made[0] == NULL)
        make();
    made[0]->instance = made[1]->instance = INSTANCE;
    fuzz_take(&input, &side, 1);
    if (side % 2 == 0)
        run_root(&input);
    else
        run_joiner(&input);
    for (int rank = 0; rank < 2; rank++) {
        bxi_boot_undo(made[rank]);
        bxi_boot_fill_self(made[rank]);
    }
}
