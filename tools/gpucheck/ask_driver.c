/* SPDX-License-Identifier: MIT */
/*
 * The driver, the device, and the box: versions, functions, attributes, the compute mode, MPS, the container. Asked
 * first; what it finds decides whether there is anything else to ask.
 */
#include "gpucheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MPS_ENABLED 133                 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, of CUDA 12.6 */

/* Of a driver that may have failed to load. */
static void answer_version(void)
{
    int version = 0;

    if (cu.cuDriverGetVersion != NULL)
        (void)cu.cuDriverGetVersion(&version);
    check_answer("driver.version", version < BXI_CU_OLDEST ? CHECK_BAD : CHECK_GOOD,
                 "The driver is for CUDA %d.%d.", version / 1000, version % 1000 / 10);
    if (cu.missing != NULL)
        check_answer("driver.functions", CHECK_BAD, "The driver has no function %s.", cu.missing);
    else if (cu.cuStreamWaitValue64_v2 == NULL || cu.cuStreamWriteValue64_v2 == NULL)
        check_answer("driver.functions", CHECK_BAD, "The driver has all functions but waits for words.");
    else
        check_answer("driver.functions", CHECK_GOOD, "The driver has every function.");
}

/* ---- The box --------------------------------------------------------------------------------- */

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void answer_box(void)
{
    struct statvfs shm;
    char module[128] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
    bool in_container = exists("/.dockerenv") || exists("/run/.containerenv");
    double mib = statvfs("/dev/shm", &shm) == 0 ? (double)shm.f_blocks * (double)shm.f_frsize / 1048576.0 : 0;

    if (file != NULL) {
        if (fgets(module, sizeof(module), file) != NULL)
            module[strcspn(module, "\n")] = '\0';
        fclose(file);
    }
    check_answer("box", CHECK_NOTE, "%s, uid %u, /dev/shm of %.0f MiB; the kernel's driver: %s.",
                 in_container ? "In a container" : "No container is seen", (unsigned)getuid(), mib,
                 module[0] != '\0' ? module : "nothing in /proc/driver/nvidia/version");
}

static void answer_mps(int device)
{
    static const char variable[] = "CUDA_MPS_PIPE_DIRECTORY";
    const char *folder = secure_getenv(variable);
    char path[256];
    int enabled = 0;
    bool is_known = cu.cuDeviceGetAttribute(&enabled, MPS_ENABLED, device) == CUDA_SUCCESS;

    snprintf(path, sizeof(path), "%s/control", folder != NULL ? folder : "/tmp/nvidia-mps");
    check_answer("driver.mps", CHECK_NOTE, "MPS: %s; its control pipe %s %s.",
                 !is_known ? "the driver does not say" : enabled != 0 ? "contexts are shared" : "no", path,
                 exists(path) ? "is there" : "is not there");
}

/* ---- The device ------------------------------------------------------------------------------ */

static int attribute(unsigned number, int device)
{
    int value = -1;

    return cu.cuDeviceGetAttribute(&value, number, device) == CUDA_SUCCESS ? value : -1;
}

static void answer_attributes(int device)
{
    static const struct {
        const char *name;
        unsigned number;
    } attributes[] = {
        { "integrated", CU_DEVICE_ATTRIBUTE_INTEGRATED },
        { "unified addressing", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING },
        { "preemption", CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED },
        { "host pointers for registered memory", CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM },
        { "host register", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED },
        { "virtual memory management", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED },
        { "memory as file descriptors", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED },
        { "read-only host register", CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED },
        { "64-bit stream operations", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS },
        { "dma-buf", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED },
        { "MPS", MPS_ENABLED },
    };
    char text[CHECK_TEXT_BYTES - 8] = "";
    size_t bytes = 0;

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && bytes < sizeof(text); i++) {
        int value = attribute(attributes[i].number, device);
        char number[16] = "?";

        if (value >= 0)
            snprintf(number, sizeof(number), "%d", value);
        bytes += (size_t)snprintf(text + bytes, sizeof(text) - bytes, "%s%s %s", i > 0 ? ", " : "",
                                  attributes[i].name, number);
    }
    check_answer("driver.attributes", CHECK_NOTE, "%s.", text);
}

static void answer_mode(int device)
{
    switch (attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device)) {
    case 0: check_answer("driver.mode", CHECK_GOOD, "Several processes may open the device."); return;
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
        check_answer("driver.mode", CHECK_BAD, "The device is in exclusive-process mode.");
        return;
    case CU_COMPUTEMODE_PROHIBITED:
        check_answer("driver.mode", CHECK_BAD, "The device is in prohibited mode.");
        return;
    default: check_answer("driver.mode", CHECK_NOTE, "The driver does not tell the device's mode."); return;
    }
}

static void answer_device(int device, int devices)
{
    char name[100] = "";
    size_t bytes = 0;

    (void)cu.cuDeviceGetName(name, (int)sizeof(name), device);
    (void)cu.cuDeviceTotalMem_v2(&bytes, device);
    check_answer("driver.device", CHECK_GOOD, "Device %d of %d: %s, compute capability %d.%d, %.1f GiB%s.",
                 check_device, devices, name,
                 attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
                 attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device), (double)bytes / 1073741824.0,
                 strstr(name, "MIG") != NULL ? ", a part of a GPU (MIG), which may refuse to export memory" : "");
    check_name_device(name, bxi_cu_is_fake(&cu));
}

static void ask_driver(void)
{
    char text[BXI_CU_TEXT_BYTES];
    int device = 0, devices = 0;
    int rc;

    answer_box();
    rc = bxi_cu_load(&cu, NULL, text);
    if (cu.library != NULL)
        answer_version();
    if (rc < 0)
        check_give_up("%s", text);
    check_need(cu.cuDeviceGetCount(&devices), "cuDeviceGetCount");
    if (cu.cuDeviceGet(&device, check_device) != CUDA_SUCCESS)
        check_give_up("there is no device %d: this process sees %d", check_device, devices);
    answer_mode(device);
    answer_mps(device);
    answer_attributes(device);
    answer_device(device, devices);
}

const struct check_question check_driver = {
    .name = "driver", .ask = ask_driver, .is_bare = true, .limit_ms = 20000,
    .lines = {
        { "box", "Workers must see one another's processes and /dev/shm: containers need shared IPC and PID "
          "namespaces.", NULL },
        { "driver.version", "Boxcar needs 11.4 or later.", "Boxcar needs 11.4 (470.42) or later, and uses no GPU "
          "here." },
        { "driver.functions", "Boxcar finds what it calls.", "Boxcar uses EVENTS, or no GPU if a "
          "required function is missing." },
        { "driver.device", "Boxcar can open it.", NULL },
        { "driver.mode", "Each worker opens it for itself.", "Only one worker can open it: \"nvidia-smi -c DEFAULT\" "
          "lets several in, or run the MPS daemon." },
        { "driver.mps", "With MPS the workers' streams run at the same time; without, the GPU divides its time between "
          "processes, and a hand-over to one waits for its turn, 1 ms or so.", NULL },
        { "driver.attributes", "Boxcar trusts none of them: what they promise is tried below.", NULL },
    },
};
