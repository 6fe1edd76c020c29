/* SPDX-License-Identifier: MIT */
/*
 * shm/segment.c: what create leaves in the file, what attach refuses, and a full /dev/shm (a small tmpfs in a mount
 * namespace of its own).
 */
#include "segment_fixture.h"

#include <sys/eventfd.h>

static struct bxi_segment_view view;

static uint64_t blocks_bytes(int fd)
{
    struct stat status;

    cr_assert_eq(fstat(fd, &status), 0);
    return (uint64_t)status.st_blocks * 512;
}

/* ---- create, open_ring, destroy -------------------------------------------------------------- */

TestSuite(segment, .timeout = 120);

Test(segment, writes_its_identity_when_it_is_created, .fini = remove_names)
{
    create_one(3, 5);
    const struct bxi_header *header = &segment.control->header;

    cr_assert_eq(header->magic, BXI_MAGIC);
    cr_assert_arr_eq(&header->magic, "BOXCAR\0", 8);
    cr_assert_eq(header->layout_version, BXI_LAYOUT_VERSION);
    cr_assert_eq(header->uid, geteuid());
    cr_assert_eq(header->pid, (uint32_t)getpid());
    cr_assert_eq(header->rank, 3);
    cr_assert_eq(header->world_size, 5);
    cr_assert_eq(header->ring_bytes, BXI_RING_BYTES);
    cr_assert_eq(header->instance, INSTANCE);
    cr_assert_eq(header->segment_bytes, bxi_segment_bytes(5));
    cr_assert_gt(header->started_ns, 0);
    cr_assert_str_eq(header->name, "agent");
    cr_assert_str_eq(header->job, job);
    cr_assert_eq(bxi_load_relaxed(&header->state), BXI_STARTING);
    cr_assert_eq(bxi_load_relaxed(&header->function_count), 0);
    cr_assert_eq(bxi_load_relaxed(&header->armed), 0);
    cr_assert_eq(bxi_load_relaxed(&segment.truncated), 0);
}

Test(segment, allocates_its_control_pages_and_no_more, .init = create_first_of_two,
     .fini = remove_names)
{
    struct stat status;

    cr_assert_eq(fstat(segment.fd, &status), 0);
    cr_assert_eq((uint64_t)status.st_size, bxi_segment_bytes(2));
    cr_assert_eq(status.st_mode & 07777, 0600);
    cr_assert_eq(blocks_bytes(segment.fd), 57344);
    for (size_t i = 0; i < BXI_WORKERS_MAX; i++)
        cr_assert_eq(bxi_load_relaxed(&segment.control->pair[i].open), 0);
}

/* Allocated with the ring: a full /dev/shm is an error then, and not a SIGBUS at the first lease. A peer sees them. */
Test(segment, has_lease_words_behind_each_ring, .init = create_first_of_two, .fini = remove_names)
{
    cr_assert_eq(bxi_segment_open_ring(&segment, 1), 0);
    bxi_a64 *words = bxi_segment_leases(&segment, 1);
    cr_assert_eq((uint64_t)((unsigned char *)words - (unsigned char *)segment.control), bxi_lease_offset(1));
    for (int slot = 0; slot < BXI_LEASE_MAX; slot++) {
        cr_assert_eq(bxi_load_relaxed(&words[slot]), 0);
        bxi_store_relaxed(&words[slot], (uint64_t)slot + 1);
    }
    cr_assert_eq(blocks_bytes(segment.fd), 57344 + 144 * 1024);
    cr_assert_eq(bxi_segment_open_ring(&segment, 1), 0, "opening it again is harmless");
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 2), 0);
    cr_assert_eq(view.bytes, segment.bytes);
    cr_assert_str_eq(view.control->header.name, "agent");
    const bxi_a64 *seen = bxi_segment_view_at(&view, bxi_lease_offset(1));
    cr_assert_neq((const void *)seen, (const void *)words);
    cr_assert_eq(bxi_load_relaxed(&seen[0]), 1);
    cr_assert_eq(bxi_load_relaxed(&seen[BXI_LEASE_MAX - 1]), BXI_LEASE_MAX);
    bxi_segment_detach(&view);
    cr_assert_null(view.control);
    bxi_segment_detach(&view);          /* twice is once */
}

Test(segment, forgets_what_it_told_a_dead_peer, .init = create_first_of_two, .fini = remove_names)
{
    struct bxi_pair *pair = &segment.control->pair[1];
    static const struct bxi_pair zero;
    unsigned char *ring = bxi_segment_at(&segment, bxi_ring_offset(1));

    cr_assert_eq(bxi_segment_open_ring(&segment, 1), 0);
    memset(ring, 1, BXI_RING_BYTES);
    bxi_store_relaxed(&bxi_segment_leases(&segment, 1)[BXI_LEASE_MAX - 1], 7);
    for (size_t word = 0; word < 6; word++)
        bxi_store_relaxed((bxi_a64 *)pair + word, word + 1);
    bxi_store_relaxed(&segment.control->credit[1].position, 64);
    cr_assert_eq(bxi_segment_forget_peer(&segment, 1), 0);
    cr_assert_eq(memcmp(pair, &zero, sizeof zero), 0);
    cr_assert_eq(bxi_load_relaxed(&segment.control->credit[1].position), 0);
    cr_assert_eq(blocks_bytes(segment.fd), 57344, "the pages are given back");
    cr_assert_eq(bxi_segment_open_ring(&segment, 1), 0);
    cr_assert_eq(blocks_bytes(segment.fd), 57344 + 144 * 1024);
    for (size_t i = 0; i < BXI_RING_BYTES; i++)
        cr_assert_eq(ring[i], 0);
    cr_assert_eq(bxi_load_relaxed(&bxi_segment_leases(&segment, 1)[BXI_LEASE_MAX - 1]), 0);
    cr_assert_eq(bxi_segment_forget_peer(&segment, 2), -EINVAL);
    cr_assert_eq(bxi_segment_forget_peer(&segment, -1), -EINVAL);
}

Test(segment, has_no_ring_for_a_rank_outside_the_world, .init = create_first_of_two,
     .fini = remove_names)
{
    cr_assert_eq(bxi_segment_open_ring(&segment, 2), -EINVAL);
    cr_assert_eq(bxi_segment_open_ring(&segment, -1), -EINVAL);
}

Test(segment, is_not_created_over_another_of_its_name, .init = create_first_of_two,
     .fini = remove_names)
{
    struct bxi_segment second;

    cr_assert_eq(bxi_segment_create(&second, job, "other", INSTANCE, 0, 2), -EEXIST);
    cr_assert(is_in_shm(segment.shm_name));
    cr_assert_str_eq(segment.control->header.name, "agent");
}

Test(segment, refuses_a_rank_a_world_and_names_out_of_range, .init = make_job_name,
     .fini = remove_names)
{
    const char *long_name = "12345678901234567890123456789012";

    cr_assert_eq(bxi_segment_create(&segment, job, "a", INSTANCE, -1, 2), -EINVAL);
    cr_assert_eq(bxi_segment_create(&segment, job, "a", INSTANCE, 2, 2), -EINVAL);
    cr_assert_eq(bxi_segment_create(&segment, job, "a", INSTANCE, 0, 0), -EINVAL);
    cr_assert_eq(bxi_segment_create(&segment, job, "a", INSTANCE, 0, BXI_WORKERS_MAX + 1), -EINVAL);
    cr_assert_eq(bxi_segment_create(&segment, job, long_name, INSTANCE, 0, 2), -ENAMETOOLONG);
    cr_assert_eq(bxi_segment_create(&segment, long_name, "a", INSTANCE, 0, 2), -ENAMETOOLONG);
}

Test(segment, leaves_nothing_behind_when_it_is_destroyed, .init = create_first_of_two)
{
    char shm_name[BXI_OBJECT_NAME_BYTES];
    int fd = segment.fd;

    memcpy(shm_name, segment.shm_name, sizeof(shm_name));
    cr_assert(is_in_shm(shm_name));
    bxi_segment_destroy(&segment);
    cr_assert_not(is_in_shm(shm_name));
    cr_assert_eq(fcntl(fd, F_GETFD), -1);
    cr_assert_null(segment.control);
    bxi_segment_destroy(&segment);      /* twice is once */
}

Test(segment, holds_the_owner_lock_while_it_lives, .init = create_first_of_two,
     .fini = remove_names)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    int fd = shm_open(segment.shm_name, O_RDONLY, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(fcntl(fd, F_OFD_GETLK, &lock), 0);
    cr_assert_eq(lock.l_type, F_WRLCK);
    cr_assert_eq(lock.l_len, 0, "the whole file");
    bxi_segment_destroy(&segment);
    lock = (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET };
    cr_assert_eq(fcntl(fd, F_OFD_GETLK, &lock), 0);
    cr_assert_eq(lock.l_type, F_UNLCK);
    close(fd);
}

static int write_view(void)
{
    ((volatile char *)(uintptr_t)view.control->header.name)[0] = 'x';
    return 0;
}

/* ---- attach ---------------------------------------------------------------------------------- */

static int passed_fd;                   /* as a peer gets it: the owner's own is closed in a child */

/* The child reads it first, so the fault is due to the write. */
static int attach_and_write(void)
{
    if (bxi_segment_attach(&view, passed_fd, INSTANCE, 0, 2) != 0)
        return 1;
    if (view.control->header.name[0] != 'a')
        return 2;
    return write_view();
}

Test(segment, cannot_be_written_by_a_peer, .init = create_first_of_two, .fini = remove_names)
{
    passed_fd = dup(segment.fd);
    cr_assert_eq(in_child(attach_and_write), 256 + SIGSEGV);
    close(passed_fd);
}

Test(segment, is_not_taken_for_another, .init = create_first_of_two, .fini = remove_names)
{
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE + 1, 0, 2), -EPROTO);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 1, 2), -EPROTO);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 3), -EPROTO);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 2, 2), -EINVAL);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, BXI_WORKERS_MAX + 1), -EINVAL);
    cr_assert_null(view.control);
}

Test(segment, is_refused_when_a_word_of_its_identity_is_nonsense, .init = create_first_of_two,
     .fini = remove_names)
{
    struct bxi_header *header = &segment.control->header;
    const struct bxi_header whole = *header;

#define REFUSED_WITH(change, error)                                                                \
    do {                                                                                           \
        change;                                                                                    \
        cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 2), (error), #change);     \
        memcpy(header, &whole, offsetof(struct bxi_header, state));                                \
    } while (0)
    REFUSED_WITH(header->magic ^= 1, -EPROTO);
    REFUSED_WITH(header->layout_version++, -EPROTONOSUPPORT);
    REFUSED_WITH(header->uid++, -EPROTO);
    REFUSED_WITH(header->rank = UINT32_MAX, -EPROTO);
    REFUSED_WITH(header->world_size = 0, -EPROTO);
    REFUSED_WITH(header->ring_bytes *= 2, -EPROTO);
    REFUSED_WITH(header->instance = 0, -EPROTO);
    REFUSED_WITH(header->segment_bytes = UINT64_MAX, -EPROTO);
    REFUSED_WITH(memset(header->name, 'x', BXI_NAME_BYTES), -EPROTO);
    REFUSED_WITH(memset(header->job, 'x', BXI_NAME_BYTES), -EPROTO);
#undef REFUSED_WITH
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 2), 0);
    bxi_segment_detach(&view);
}

Test(segment, is_refused_when_the_file_has_another_size, .init = create_first_of_two,
     .fini = remove_names)
{
    cr_assert_eq(ftruncate(segment.fd, (off_t)segment.bytes - 1), 0);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 2), -EPROTO);
    cr_assert_eq(ftruncate(segment.fd, (off_t)segment.bytes + 4096), 0);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 2), -EPROTO);
    cr_assert_eq(ftruncate(segment.fd, 0), 0);
    cr_assert_eq(bxi_segment_attach(&view, segment.fd, INSTANCE, 0, 2), -EPROTO);
}

Test(segment, is_refused_when_the_descriptor_is_no_file)
{
    int fd = eventfd(0, EFD_CLOEXEC);

    cr_assert_eq(bxi_segment_attach(&view, fd, INSTANCE, 0, 2), -EPROTO);
    close(fd);
    cr_assert_eq(bxi_segment_attach(&view, fd, INSTANCE, 0, 2), -EBADF);
}

/* ---- A full /dev/shm ------------------------------------------------------------------------- */

/* SIGXFSZ would end the process. */
static int create_beyond_the_file_limit(void)
{
    struct rlimit limit;

    signal(SIGXFSZ, SIG_DFL);
    if (getrlimit(RLIMIT_FSIZE, &limit) < 0)
        return 1;
    limit.rlim_cur = bxi_segment_bytes(2) - 1;
    if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
        return 1;
    if (bxi_segment_create(&segment, job, "agent", INSTANCE, 0, 2) != -EFBIG)
        return 2;
    if (segment.fd != -1 || segment.control != NULL || is_in_shm(segment.shm_name))
        return 3;
    limit.rlim_cur = bxi_segment_bytes(2);
    if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
        return 1;
    return bxi_segment_create(&segment, job, "agent", INSTANCE, 0, 2) == 0 &&
           bxi_segment_open_ring(&segment, 1) == 0 ? 0 : 4;
}

Test(segment, larger_than_a_file_may_be_is_not_created, .init = make_job_name, .fini = remove_names)
{
    cr_assert_eq(in_child(create_beyond_the_file_limit), 0);
}

static int create_without_room(void)
{
    if (!mount_small("size=32k,mode=1777"))
        return CHILD_SKIPS;
    if (bxi_segment_create(&segment, job, "agent", INSTANCE, 0, 128) != -ENOSPC)
        return 1;
    if (segment.fd != -1 || segment.control != NULL)
        return 2;
    return count_names("/dev/shm") == 2 ? 0 : 3;
}

static int open_ring_without_room(void)
{
    if (!mount_small("size=256k,mode=1777"))
        return CHILD_SKIPS;
    if (bxi_segment_create(&segment, job, "agent", INSTANCE, 0, 128) != 0)
        return 1;
    if (bxi_segment_open_ring(&segment, 7) != 0)
        return 2;
    if (bxi_segment_open_ring(&segment, 8) != -ENOSPC)
        return 3;
    memset(bxi_segment_at(&segment, bxi_ring_offset(7)), 1, BXI_RING_BYTES);
    bxi_segment_destroy(&segment);
    return count_names("/dev/shm") == 2 ? 0 : 4;
}

static void expect_in_own_shm(int (*body)(void))
{
    make_job_name();
    expect_in_child(body, "a mount namespace is unavailable here");
}

Test(segment, without_room_for_its_control_pages_fails_and_leaves_nothing) { expect_in_own_shm(create_without_room); }
Test(segment, without_room_for_a_ring_goes_on_with_those_it_has) { expect_in_own_shm(open_ring_without_room); }
