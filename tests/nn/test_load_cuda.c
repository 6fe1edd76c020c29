/* SPDX-License-Identifier: MIT */
/*
 * What lib/nn loads: errors if a device or a library is missing, how it finds NVRTC's builtins, and that it passes over
 * libraries that are too new for the driver; mostly on the tests' driver and its NVRTC. That NVRTC opens its builtins
 * by name only where FAKE_NVRTC_BUILTINS is set, and the dynamic linker does not find them.
 */
#include "boxcar_cuda.h"
#include "tests/device/device_fixture.h"

#include <dlfcn.h>
#include <sys/sendfile.h>

#define BUILTINS "libnvrtc-builtins.so.12.4"

static struct bx_cuda *cuda;

static void expect_text(const char *part)
{
    cr_expect_not_null(strstr(bx_error_text(), part), "it says \"%s\", and nothing of \"%s\"", bx_error_text(), part);
}

static void opens(void)
{
    cr_assert_eq(bx_cuda_open(0, &cuda), 0, "%s", bx_error_text());
    bx_cuda_close(cuda);
    cuda = NULL;
}

/* All that the device took is given back. */
static void closes(void)
{
    bx_cuda_close(cuda);
    if (!device_is_real())
        cr_assert_eq(device_figure("used", 0), 0, "something was not given back");
}

static void want_builtins(void)
{
    device_world(DEVICE_FAKE);
    if (dlopen(BUILTINS, RTLD_LAZY) != NULL)
        cr_skip_test("the dynamic linker finds builtins of the same version");
    setenv("FAKE_NVRTC_BUILTINS", "1", 1);
}

/* ---- A folder with a copy of NVRTC ----------------------------------------------------------------- */

static char dir[] = "/tmp/bx-nvrtc-XXXXXX";
static char path[sizeof(dir) + 64];

static const char *in_dir(const char *name)
{
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

/* A copy, not a link: the dynamic linker knows a file that it has loaded by its inode, and keeps its first path. */
static void make_dir(void)
{
    const char *from = getenv("BX_NVRTC");
    struct stat status;
    int in, out;

    cr_assert_not_null(mkdtemp(dir));
    in = open(from, O_RDONLY | O_CLOEXEC);
    out = open(in_dir("libnvrtc.so.12"), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    cr_assert(in >= 0 && out >= 0 && fstat(in, &status) == 0);
    cr_assert_eq(sendfile(out, in, NULL, (size_t)status.st_size), status.st_size);
    close(in);
    close(out);
    setenv("BX_NVRTC", in_dir("libnvrtc.so.12"), 1);
}

static void remove_dir(void)
{
    static const char *const names[] = { "link/libnvrtc.so.12", BUILTINS, "libnvrtc.so.12" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)unlink(in_dir(names[i]));
    (void)rmdir(in_dir("link"));
    (void)rmdir(dir);
}

TestSuite(load_cuda, .timeout = 60);

/* Where the first open is not gpu/'s: CUDA reads the variable when it starts. */
Test(load_cuda, asks_for_as_many_connections_as_there_can_be)
{
    device_world(DEVICE_FAKE);
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    opens();
    cr_expect_str_eq(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

Test(load_cuda, an_nvrtc_off_the_linkers_path_finds_its_builtins)
{
    want_builtins();
    opens();
}

Test(load_cuda, an_nvrtc_that_is_a_link_finds_the_builtins_beside_its_target, .fini = remove_dir)
{
    char built[PATH_MAX];

    want_builtins();
    snprintf(built, sizeof(built), "%s", getenv("BX_NVRTC"));
    make_dir();
    strcpy(strrchr(built, '/') + 1, BUILTINS);
    cr_assert_eq(symlink(built, in_dir(BUILTINS)), 0);
    cr_assert_eq(mkdir(in_dir("link"), 0700), 0);
    cr_assert_eq(symlink("../libnvrtc.so.12", in_dir("link/libnvrtc.so.12")), 0);
    setenv("BX_NVRTC", path, 1);
    opens();
}

Test(load_cuda, an_nvrtc_without_builtins_is_told_with_its_log, .fini = remove_dir)
{
    want_builtins();
    make_dir();
    cr_expect_eq(bx_cuda_open(0, &cuda), -EIO);
    expect_text("NVRTC did not compile kernels.cu: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: nvrtc: error: failed to open "
                BUILTINS);
}

Test(load_cuda, an_nvrtc_newer_than_the_driver_is_refused)
{
    device_world(DEVICE_FAKE);
    setenv("FAKE_CUDA_VERSION", "11080", 1);
    cr_expect_eq(bx_cuda_open(0, &cuda), -ENOTSUP);
    expect_text("NVRTC 12.4 is too new: the driver is for CUDA 11");
    setenv("FAKE_CUDA_VERSION", "12000", 1);
    opens();
}

/* Shows nothing where NVRTC 12 or cuBLAS 12 is installed. */
Test(load_cuda, libraries_newer_than_the_driver_are_not_tried)
{
    struct bx_net *net = NULL;

    device_world(DEVICE_FAKE);
    if (dlopen("libcublas.so.12", RTLD_LAZY) != NULL || dlopen("libcublas.so.11", RTLD_LAZY) != NULL ||
        dlopen("libnvrtc.so.12", RTLD_LAZY) != NULL || dlopen("libnvrtc.so.11.2", RTLD_LAZY) != NULL)
        cr_skip_test("libraries for an older driver are installed here");
    unsetenv("BX_CUBLAS");
    cr_assert_eq(bx_cuda_open(0, &cuda), 0, "%s", bx_error_text());
    cr_expect_eq(bx_net_create(&(struct bx_net_options){ .cuda = cuda }, &net), -ENOTSUP);
    expect_text("no cuBLAS: libcublas.so.12: ");
    bx_cuda_close(cuda);

    unsetenv("BX_NVRTC");
    cr_expect_eq(bx_cuda_open(0, &cuda), -ENOTSUP);
    expect_text("no NVRTC: libnvrtc.so.12: ");
    setenv("FAKE_CUDA_VERSION", "11080", 1);
    cr_expect_eq(bx_cuda_open(0, &cuda), -ENOTSUP);
    expect_text("no NVRTC: libnvrtc.so.11.2: ");
}

/* ---- Missing devices and libraries ------------------------------------------------------------------ */

Test(load_cuda, a_device_that_does_not_exist_is_refused)
{
    int count;

    device_world(DEVICE_ANY);
    count = bx_cuda_count();
    cr_assert_gt(count, 0);
    cr_assert_eq(bx_cuda_open(count, &cuda), -ENODEV);
    expect_text("there is no device");
    cr_assert_eq(bx_cuda_open(-1, &cuda), -ENODEV);
    cr_assert_eq(bx_cuda_wait(NULL), -EINVAL);
    expect_text("bx_cuda_wait was given no device");
}

Test(load_cuda, without_a_driver_or_nvrtc_no_device_is_opened)
{
    device_world(DEVICE_ANY);
    setenv("BX_NVRTC", "/nonexistent/libnvrtc.so", 1);
    cr_assert_eq(bx_cuda_open(0, &cuda), -ENOTSUP);
    expect_text("no NVRTC, where BX_NVRTC names it: /nonexistent/libnvrtc.so");
    setenv("BX_NVRTC", "libm.so.6", 1);
    cr_assert_eq(bx_cuda_open(0, &cuda), -ENOTSUP);
    expect_text("libm.so.6 has no function nvrtcVersion");
    setenv("BX_CUDA_DRIVER", "/nonexistent/libcuda.so", 1);
    cr_assert_eq(bx_cuda_open(0, &cuda), -ENODEV);
    expect_text("no CUDA driver, where BX_CUDA_DRIVER names it: /nonexistent/libcuda.so");
    cr_assert_eq(bx_cuda_count(), -ENODEV);
    setenv("BX_CUDA_DRIVER", "libm.so.6", 1);
    cr_assert_eq(bx_cuda_open(0, &cuda), -ENODEV);
    expect_text("libm.so.6 has no function cuInit");
    cr_assert_null(cuda);
}

/* The device is opened without them. */
Test(load_cuda, without_cublas_or_cudnn_no_net_is_made)
{
    struct bx_net_options options = { 0 };
    const char *cublas;
    struct bx_net *net = NULL;

    device_world(DEVICE_ANY);
    cublas = getenv("BX_CUBLAS");
    cublas = cublas == NULL ? NULL : strdup(cublas);
    setenv("BX_CUBLAS", "/nonexistent/libcublas.so", 1);
    cr_assert_eq(bx_cuda_open(0, &cuda), 0, "%s", bx_error_text());
    options.cuda = cuda;
    cr_assert_eq(bx_net_create(&options, &net), -ENOTSUP);
    expect_text("no cuBLAS, where BX_CUBLAS names it: /nonexistent/libcublas.so");
    if (cublas == NULL)
        unsetenv("BX_CUBLAS");
    else
        setenv("BX_CUBLAS", cublas, 1);
    setenv("BX_CUDNN", "/nonexistent/libcudnn.so", 1);
    cr_assert_eq(bx_net_create(&options, &net), -ENOTSUP);
    expect_text("no cuDNN, where BX_CUDNN names it: /nonexistent/libcudnn.so");
    setenv("BX_CUDNN", "libm.so.6", 1);
    cr_assert_eq(bx_net_create(&options, &net), -ENOTSUP);
    expect_text("libm.so.6 has no function cudnnGetVersion: it is too old");
    cr_assert_null(net);
    free((char *)cublas);
    closes();
}

/* The file names that are tried without environment variables. */
Test(load_cuda, a_library_that_is_not_installed_is_told_with_what_to_do)
{
    struct bx_net *net = NULL;

    device_world(DEVICE_ANY);
    unsetenv("BX_CUDNN");
    if (dlopen("libcudnn.so.9", RTLD_LAZY) != NULL || dlopen("libcudnn.so.8", RTLD_LAZY) != NULL)
        cr_skip_test("cuDNN is installed here");
    cr_assert_eq(bx_cuda_open(0, &cuda), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_create(&(struct bx_net_options){ .cuda = cuda }, &net), -ENOTSUP);
    expect_text("no cuDNN: libcudnn.so.9:");
    expect_text("LD_LIBRARY_PATH");
    closes();
}

Test(load_cuda, an_nvrtc_that_does_not_know_the_device_is_too_old)
{
    device_world(DEVICE_ANY);
    if (device_is_real())
        cr_skip_test("only the tests' NVRTC can be told to be old");
    setenv("FAKE_NVRTC_NEWEST", "86", 1);
    cr_assert_eq(bx_cuda_open(0, &cuda), -ENOTSUP);
    expect_text("NVRTC 12.4 does not know device 0");
    expect_text("sm_90");
    cr_assert_eq(device_figure("used", 0), 0);
}
