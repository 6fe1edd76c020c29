/* SPDX-License-Identifier: MIT */
/*
 * gpu/: finding a driver and a device, or an error with advice; devices by UUID; the order that the probe chooses;
 * fork. Mostly with the fake driver, on any machine: a real one cannot be configured to be too old.
 */
#include "fake_library.h"
#include "gpu_fixture.h"

static int try_open(const char *driver)
{
    struct bxi_gpu_options options = { .driver = driver, .region = &gpu_shared->region[0],
                                       .slab_bytes = 2 * GPU_MIB };

    return bxi_gpu_open(&options, &gpu);
}

/* ---- No GPU: reason -------------------------------------------------------------------------- */

GPU_ALONE(gpu_load, says_that_there_is_no_driver, 60, GPU_FAKE)
{
    GPU_EQ(try_open("/nonexistent/libcuda.so.1"), -ENODEV);
    GPU_SAYS("no GPU: no CUDA driver");
    GPU_SAYS("--gpus");
    GPU_EQ(try_open("libm.so.6"), -ENODEV);
    GPU_SAYS("has no function cu");
    GPU_CHECK(gpu == NULL);
    setenv("BX_CUDA_DRIVER", "/nonexistent/other", 1);
    GPU_EQ(try_open(NULL), -ENODEV);
    GPU_SAYS("/nonexistent/other");
    GPU_EQ(bxi_gpu_open(NULL, &gpu), -EINVAL);
    GPU_EQ(bxi_gpu_open(&(struct bxi_gpu_options){ .order = 9, .region = &gpu_shared->region[0] }, &gpu), -EINVAL);
}

GPU_ALONE(gpu_load, says_that_the_driver_is_too_old_and_that_no_device_is_seen, 60, GPU_FAKE)
{
    setenv("FAKE_CUDA_VERSION", "11020", 1);
    GPU_EQ(try_open(gpu_driver_path()), -ENODEV);
    GPU_SAYS("driver is too old: it is for CUDA 11.2");
    unsetenv("FAKE_CUDA_VERSION");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    GPU_EQ(try_open(gpu_driver_path()), -ENODEV);
    GPU_SAYS("sees no device");
    GPU_SAYS("CUDA_VISIBLE_DEVICES");
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    setenv("BX_GPU_ORDER", "sideways", 1);
    GPU_EQ(try_open(gpu_driver_path()), -EINVAL);
    GPU_SAYS("BX_GPU_ORDER=sideways");
    unsetenv("BX_GPU_ORDER");
    GPU_EQ(try_open(gpu_driver_path()), 0);
    GPU_CHECK(bxi_gpu_is_fake(gpu));
    GPU_EQ(bxi_gpu_device_open(gpu, 2, &gpu_device), -EINVAL);
    GPU_SAYS("this process sees 2");
    GPU_EQ(bxi_gpu_device_open(gpu, -1, &gpu_device), -EINVAL);
    GPU_EQ(try_open(gpu_driver_path()), -EBUSY);
    bxi_gpu_close(gpu);
    GPU_EQ(try_open(gpu_driver_path()), 0);
    bxi_gpu_close(gpu);
}

static void mode(const char *variable, int expected, const char *part)
{
    setenv(variable, "1", 1);
    GPU_EQ(try_open(gpu_driver_path()), 0);
    GPU_EQ(bxi_gpu_device_open(gpu, 0, &gpu_device), expected);
    GPU_SAYS(part);
    GPU_CHECK(gpu_device == NULL);
    bxi_gpu_close(gpu);
    GPU_EQ(gpu_figure("used", 0), 0);
}

static void mig(void)
{
    mode("FAKE_CUDA_MIG", -EOPNOTSUPP, "is a MIG instance");
}

static void prohibited(void)
{
    mode("FAKE_CUDA_PROHIBITED", -ENODEV, "nvidia-smi -c DEFAULT");
}

Test(gpu_load, says_that_a_device_is_mig_or_prohibited, .timeout = 60)
{
    gpu_world(GPU_FAKE);
    gpu_fork(0, mig);
    gpu_join(0);
    gpu_fork(0, prohibited);
    gpu_join(0);
}

static void first_in(void)
{
    setenv("FAKE_CUDA_EXCLUSIVE", "1", 1);
    gpu_start(0);
    gpu_post(0);
    gpu_await(1, 1);
    gpu_end();
}

static void second_in(void)
{
    setenv("FAKE_CUDA_EXCLUSIVE", "1", 1);
    gpu_await(0, 1);
    GPU_EQ(try_open(gpu_driver_path()), 0);
    GPU_EQ(bxi_gpu_device_open(gpu, 0, &gpu_device), -ENODEV);
    GPU_SAYS("exclusive-process mode and another process has it");
    GPU_SAYS("MPS");
    bxi_gpu_close(gpu);
    gpu_post(1);
}

GPU_PAIR(gpu_load, says_that_a_device_in_exclusive_mode_is_taken, 60, GPU_FAKE, first_in, second_in);

/* ---- Between containers ---------------------------------------------------------------------- */

static void other_container(void)
{
    gpu_start(0);
    gpu_shared->region[0].head.pid_namespace ^= 1;
    gpu_shared->ref[0] = (struct bxi_gpu_ref){ .generation = 1, .bytes = 1 };
    gpu_post(0);
    gpu_await(1, 1);
    gpu_end();
}

static void this_container(void)
{
    setenv("FAKE_CUDA_NO_IPC", "1", 1);
    gpu_await(0, 1);
    gpu_start_beside(1, 0);
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EIO);
    GPU_CHECK(strstr(gpu_map_text, "another PID namespace") != NULL);
    GPU_CHECK(strstr(gpu_map_text, "--ipc=host --pid=host") != NULL);
    GPU_EQ(gpu_counters().open_failures, 1);
    GPU_EQ(gpu_shared->held[1][0].generation[0], 0);
    gpu_post(1);
    gpu_end();
}

GPU_PAIR(gpu_load, fails_to_open_across_namespaces_and_holds_nothing, 60,
         (setenv("BX_GPU_EXPORT", "handle", 1), GPU_FAKE), other_container, this_container);

/* ---- Devices by UUID ------------------------------------------------------------------------- */

GPU_ALONE(gpu_load, lists_devices_by_uuid, 60, GPU_ANY)
{
    struct bxi_gpu_info info;
    uint8_t unknown[BXI_GPU_UUID_BYTES] = { 1 };

    GPU_EQ(try_open(gpu_driver_path()), 0);
    GPU_CHECK(bxi_gpu_device_count(gpu) >= 1);
    for (int i = 0; i < bxi_gpu_device_count(gpu); i++) {
        GPU_EQ(bxi_gpu_device_info(gpu, i, &info), 0);
        GPU_EQ(bxi_gpu_ordinal(gpu, info.uuid), i);
        GPU_CHECK(info.bytes > 0 && info.name[0] != '\0');
        GPU_EQ(strncmp(info.name, "FAKE", 4) == 0, bxi_gpu_is_fake(gpu));
    }
    GPU_EQ(bxi_gpu_ordinal(gpu, unknown), -ENODEV);
    GPU_SAYS("CUDA_VISIBLE_DEVICES");
    GPU_EQ(bxi_gpu_device_info(gpu, bxi_gpu_device_count(gpu), &info), -EINVAL);
    bxi_gpu_close(gpu);
}

/* ---- Orders ---------------------------------------------------------------------------------- */

static void expect_order(enum bxi_gpu_order order, uint64_t fallbacks)
{
    gpu_start(0);
    GPU_EQ(gpu_device->order, order);
    GPU_EQ(gpu_counters().fallbacks, fallbacks);
    gpu_end();
}

GPU_ALONE(gpu_load, chooses_the_first_order_that_works, 60,
          (fake_skip_without_words("the first order that works is another"), GPU_FAKE))
{
    expect_order(BXI_GPU_HOST_WORDS, 0);
    setenv("FAKE_CUDA_NO_READ_ONLY", "1", 1);
    expect_order(BXI_GPU_HOST_WORDS, 0);
    unsetenv("FAKE_CUDA_NO_READ_ONLY");
    setenv("FAKE_CUDA_NO_HOST_REGISTER", "1", 1);
    expect_order(BXI_GPU_EVENTS, 1);
    unsetenv("FAKE_CUDA_NO_HOST_REGISTER");
    setenv("FAKE_CUDA_NO_STREAM_OPS", "1", 1);
    expect_order(BXI_GPU_EVENTS, 1);
    setenv("BX_GPU_ORDER", "events", 1);
    expect_order(BXI_GPU_EVENTS, 0);
    setenv("BX_GPU_ORDER", "host", 1);
    GPU_EQ(try_open(gpu_driver_path()), 0);
    GPU_EQ(bxi_gpu_device_open(gpu, 0, &gpu_device), -ENOTSUP);
    bxi_gpu_close(gpu);
}

/* ---- Fork ------------------------------------------------------------------------------------ */

static void in_forked_child(void)
{
    struct bxi_gpu_block *block = NULL;
    struct bxi_gpu_point point;
    struct bxi_gpu_lane *lane;

    GPU_EQ(bxi_gpu_alloc(gpu_device, 1, &block), -EPERM);
    GPU_SAYS("fork the workers first");
    GPU_EQ(bxi_gpu_device_open(gpu, 0, &gpu_device), -EPERM);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &point), -EPERM);
    GPU_EQ(bxi_gpu_after(gpu_lane, NULL, &point), -EPERM);
    GPU_EQ(bxi_gpu_passed(gpu, NULL, &point), -EPERM);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &lane), -EPERM);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), -EPERM);
    GPU_EQ(bxi_gpu_poll(gpu), -EPERM);
    GPU_EQ(bxi_gpu_trim(gpu_device), -EPERM);
    GPU_EQ(bxi_gpu_copy(gpu_lane, 0, 0, 1), -EPERM);
    GPU_EQ(bxi_gpu_stage_out(gpu_lane, &point, 0, 1), -EPERM);
    GPU_EQ(try_open(gpu_driver_path()), -EPERM);
    bxi_gpu_lane_close(gpu_lane);
    bxi_gpu_close(gpu);
    _exit(0);
}

GPU_ALONE(gpu_load, refuses_a_forked_child, 60, GPU_ANY)
{
    int status = 0;
    pid_t child;

    gpu_start(0);
    child = fork();
    GPU_CHECK(child >= 0);
    if (child == 0)
        in_forked_child();
    GPU_EQ(waitpid(child, &status, 0), child);
    GPU_EQ(status, 0);
    bxi_gpu_free(gpu_block(1));                 /* the parent is unaffected */
    gpu_end();
}
