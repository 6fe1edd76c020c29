/* SPDX-License-Identifier: MIT */
/*
 * The driver, the device, and the box: versions, functions, attributes, the compute mode, MPS, the container. Asked
 * first; what it finds decides whether there is anything else to ask.
 */
#include "side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MPS_ENABLED 133                 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, of CUDA 12.6 */

/* Of a driver that may have failed to load. */
static void answer_version(struct check_side *side)
{
    int version = 0;

    if (side->cu->cuDriverGetVersion != NULL)
        (void)side->cu->cuDriverGetVersion(&version);
    check_answer(side, "driver.version", version < BXI_CU_OLDEST ? CHECK_BAD : CHECK_GOOD,
                 "The driver is for CUDA %d.%d.", version / 1000, version % 1000 / 10);
    if (side->cu->missing != NULL)
        check_answer(side, "driver.functions", CHECK_BAD, "The driver has no function %s.", side->cu->missing);
    else if (side->cu->cuStreamWaitValue64_v2 == NULL || side->cu->cuStreamWriteValue64_v2 == NULL)
        check_answer(side, "driver.functions", CHECK_BAD, "The driver has all functions but waits for words.");
    else
        check_answer(side, "driver.functions", CHECK_GOOD, "The driver has every function.");
}

/* ---- The box --------------------------------------------------------------------------------- */

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void answer_box(struct check_side *side)
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
    check_answer(side, "box", CHECK_NOTE, "%s, uid %u, /dev/shm of %.0f MiB; the kernel's driver: %s.",
                 in_container ? "In a container" : "No container is seen", (unsigned)getuid(), mib,
                 module[0] != '\0' ? module : "nothing in /proc/driver/nvidia/version");
}

static void answer_mps(struct check_side *side, int device)
{
    static const char variable[] = "CUDA_MPS_PIPE_DIRECTORY";
    const char *folder = secure_getenv(variable);
    char path[256];
    int enabled = 0;
    bool is_known = side->cu->cuDeviceGetAttribute(&enabled, MPS_ENABLED, device) == CUDA_SUCCESS;

    snprintf(path, sizeof(path), "%s/control", folder != NULL ? folder : "/tmp/nvidia-mps");
    check_answer(side, "driver.mps", CHECK_NOTE, "MPS: %s; its control pipe %s %s.",
                 !is_known ? "the driver does not say" : enabled != 0 ? "contexts are shared" : "no", path,
                 exists(path) ? "is there" : "is not there");
}

/* ---- The device ------------------------------------------------------------------------------ */

static int attribute(struct check_side *side, unsigned number, int device)
{
    int value = -1;

    return side->cu->cuDeviceGetAttribute(&value, number, device) == CUDA_SUCCESS ? value : -1;
}

static void answer_attributes(struct check_side *side, int device)
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
        { "events between processes", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED },
        { "MPS", MPS_ENABLED },
    };
    char text[CHECK_TEXT_BYTES - 8] = "";
    size_t bytes = 0;

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        int value = attribute(side, attributes[i].number, device);
        int added = value < 0
            ? snprintf(text + bytes, sizeof(text) - bytes, "%s%s ?", i > 0 ? ", " : "", attributes[i].name)
            : snprintf(text + bytes, sizeof(text) - bytes, "%s%s %d", i > 0 ? ", " : "", attributes[i].name, value);

        if (added < 0 || (size_t)added >= sizeof(text) - bytes)
            break;
        bytes += (size_t)added;
    }
    check_answer(side, "driver.attributes", CHECK_NOTE, "%s.", text);
}

static void answer_mode(struct check_side *side, int device)
{
    switch (attribute(side, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device)) {
    case 0: check_answer(side, "driver.mode", CHECK_GOOD, "Several processes may open the device."); return;
    case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
        check_answer(side, "driver.mode", CHECK_BAD, "The device is in exclusive-process mode.");
        return;
    case CU_COMPUTEMODE_PROHIBITED:
        check_answer(side, "driver.mode", CHECK_BAD, "The device is in prohibited mode.");
        return;
    default: check_answer(side, "driver.mode", CHECK_NOTE, "The driver does not tell the device's mode."); return;
    }
}

static void answer_device(struct check_side *side, int device)
{
    struct check_found *found = &side->shared->found;
    size_t bytes = 0;

    (void)side->cu->cuDeviceGetName(found->name, (int)sizeof(found->name), device);
    (void)side->cu->cuDeviceTotalMem_v2(&bytes, device);
    check_answer(side, "driver.device", CHECK_GOOD, "Device %d of %d: %.100s, compute capability %d.%d, %.1f GiB%s.",
                 side->device, found->devices, found->name,
                 attribute(side, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
                 attribute(side, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device), (double)bytes / 1073741824.0,
                 strstr(found->name, "MIG") != NULL ? ", a part of a GPU (MIG), which may refuse to export memory"
                 : "");
}

static void ask_driver(struct check_side *side)
{
    struct check_found *found = &side->shared->found;
    char text[BXI_CU_TEXT_BYTES];
    int device = 0;
    int rc;

    answer_box(side);
    rc = check_load(side, text);
    if (side->cu->library != NULL)
        answer_version(side);
    if (rc < 0) {
        snprintf(found->reason, sizeof(found->reason), "%.350s", text);
        check_give_up(side, "%s", text);
    }
    found->is_fake = bxi_cu_is_fake(side->cu);
    check_need(side, side->cu->cuDeviceGetCount(&found->devices), "cuDeviceGetCount");
    if (side->cu->cuDeviceGet(&device, side->device) != CUDA_SUCCESS) {
        snprintf(found->reason, sizeof(found->reason), "there is no device %d: this process sees %d", side->device,
                 found->devices);
        check_give_up(side, "%s", found->reason);
    }
    answer_device(side, device);
    answer_mode(side, device);
    answer_mps(side, device);
    answer_attributes(side, device);
    found->has_driver = true;
}

const struct check_question check_driver_question = {
    .name = "driver", .limit_ms = 20000, .owner = ask_driver,
    .lines = {
        { "box", "Workers must see one another's processes and /dev/shm: containers need shared IPC and PID "
          "namespaces.", NULL },
        { "driver.version", "Boxcar needs 11.4 or later.", "Boxcar needs 11.4 (470.42) or later, and uses no GPU "
          "here." },
        { "driver.functions", "Boxcar finds what it calls.", "Boxcar uses EVENTS or HOST_SYNC, or no GPU if a "
          "required function is missing." },
        { "driver.device", "Boxcar can open it.", NULL },
        { "driver.mode", "Each worker opens it for itself.", "Only one worker can open it: \"nvidia-smi -c DEFAULT\" "
          "lets several in, or run the MPS daemon." },
        { "driver.mps", "With MPS the workers' streams run at the same time; without, the GPU divides its time between "
          "processes (see share).", NULL },
        { "driver.attributes", "Boxcar trusts none of them: what they promise is tried below.", NULL },
        { NULL, NULL, NULL },
    },
};
