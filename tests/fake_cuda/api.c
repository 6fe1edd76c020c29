/* SPDX-License-Identifier: MIT */
/*
 * cuInit, devices, contexts, names of errors; and the fake's own functions for tests.
 */
#include "fake.h"

FAKE_EXPORT const char *bx_fake_cuda(void);
FAKE_EXPORT uint64_t bx_fake_figure(const char *name, int device);
struct fake_options fake_options;
static struct CUctx_st contexts[FAKE_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ready_pid;
static _Thread_local struct CUctx_st *stack[16];
static _Thread_local int depth;

/* ---- Start ----------------------------------------------------------------------------------- */

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text == NULL || text[0] == '\0' ? otherwise : atoi(text);
}

static void read_peers(void)
{
    const char *text = getenv("FAKE_CUDA_NO_PEER");
    int a, b, used;

    for (int i = 0; i < FAKE_DEVICES; i++)
        for (int j = 0; j < FAKE_DEVICES; j++)
            fake_options.reaches[i][j] = i == j || text == NULL || strcmp(text, "all") != 0;
    while (text != NULL && sscanf(text, "%d-%d%n", &a, &b, &used) == 2) {
        if (a >= 0 && a < FAKE_DEVICES && b >= 0 && b < FAKE_DEVICES)
            fake_options.reaches[a][b] = fake_options.reaches[b][a] = false;
        text += used;
        text += *text == ',';
    }
}

static void read_visible(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int device, used;

    fake_options.visible_count = 0;
    for (int i = 0; text == NULL && i < fake_options.devices; i++)
        fake_options.visible[fake_options.visible_count++] = i;
    while (text != NULL && sscanf(text, "%d%n", &device, &used) == 1) {
        if (device < 0 || device >= fake_options.devices || fake_options.visible_count == FAKE_DEVICES)
            break;                      /* the rest is hidden, as by the real driver */
        fake_options.visible[fake_options.visible_count++] = device;
        text += used;
        text += *text == ',';
    }
}

static void read_options(void)
{
    fake_options = (struct fake_options){
        .devices = number("FAKE_CUDA_DEVICES", 2),
        .delay_us = number("FAKE_CUDA_DELAY_US", 300),
        .open_ms = number("FAKE_CUDA_OPEN_MS", 0),
        .open_gate = number("FAKE_CUDA_OPEN_GATE", -1),
        .version = number("FAKE_CUDA_VERSION", 12040),
        .memory_bytes = (uint64_t)number("FAKE_CUDA_MEMORY_MB", 1024) << 20,
        .mig = number("FAKE_CUDA_MIG", 0),
        .exclusive = number("FAKE_CUDA_EXCLUSIVE", 0),
        .prohibited = number("FAKE_CUDA_PROHIBITED", 0),
        .no_ipc = number("FAKE_CUDA_NO_IPC", 0),
        .no_stream_ops = number("FAKE_CUDA_NO_STREAM_OPS", 0),
        .no_host_register = number("FAKE_CUDA_NO_HOST_REGISTER", 0),
        .no_read_only = number("FAKE_CUDA_NO_READ_ONLY", 0),
        .lost_writes = number("FAKE_CUDA_LOST_WRITES", 0),
        .dirty = number("FAKE_CUDA_DIRTY", 0),
        .queues = number("FAKE_CUDA_QUEUES", number("CUDA_DEVICE_MAX_CONNECTIONS", 0)),
        .blocking = number("FAKE_CUDA_BLOCKING", 0),
        .same_open = number("FAKE_CUDA_SAME_OPEN", 0),
        .drop_dead = number("FAKE_CUDA_DROP_DEAD", 0),
        .open_205 = number("FAKE_CUDA_OPEN_205", 0),
        .no_vmm = number("FAKE_CUDA_NO_VMM", 0),
    };
    if (fake_options.devices > FAKE_DEVICES)
        fake_options.devices = FAKE_DEVICES;
    if (fake_options.queues < 0 || fake_options.queues > FAKE_QUEUES)
        fake_options.queues = fake_options.queues < 0 ? 0 : FAKE_QUEUES;
    read_peers();
    read_visible();
}

unsigned cuInit(unsigned flags)
{
    unsigned result = CUDA_SUCCESS;

    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (ready_pid != 0 && ready_pid != getpid()) {
        result = CUDA_ERROR_NOT_INITIALIZED;
    } else {
        read_options();
        if (ready_pid == 0 && fake_machine_open() < 0)
            result = CUDA_ERROR_OPERATING_SYSTEM;
        else if (fake_options.visible_count == 0)
            result = CUDA_ERROR_NO_DEVICE;
        if (result != CUDA_ERROR_OPERATING_SYSTEM)
            ready_pid = getpid();
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned fake_ready(void)
{
    return ready_pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

unsigned cuDriverGetVersion(int *version)
{
    *version = number("FAKE_CUDA_VERSION", 12040);
    return CUDA_SUCCESS;
}

/* Of results that gpu/ does not tell apart. */
static const char *other_name(unsigned error)
{
    static const struct {
        unsigned error;
        const char *name;
    } names[] = {
        { 200, "CUDA_ERROR_INVALID_IMAGE" },
        { 208, "CUDA_ERROR_ALREADY_MAPPED" },
        { 209, "CUDA_ERROR_NO_BINARY_FOR_GPU" },
        { 401, "CUDA_ERROR_ILLEGAL_STATE" },
        { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" },
        { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" },
        { 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" },
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].error == error)
            return names[i].name;
    return NULL;
}

unsigned cuGetErrorName(unsigned error, const char **text)
{
    switch (error) {
    case CUDA_SUCCESS: *text = "CUDA_SUCCESS"; return CUDA_SUCCESS;
#define NAME(name, value) case value: *text = #name; return CUDA_SUCCESS;
    BXI_CU_RESULTS(NAME)
#undef NAME
    default: *text = other_name(error); return *text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
}

unsigned cuGetErrorString(unsigned error, const char **text)
{
    return cuGetErrorName(error, text) == CUDA_SUCCESS ? (*text = "as the fake driver says", CUDA_SUCCESS)
        : CUDA_ERROR_INVALID_VALUE;
}

/* ---- Devices --------------------------------------------------------------------------------- */

static bool is_device(int device)
{
    return fake_ready() == CUDA_SUCCESS && device >= 0 && device < fake_options.visible_count;
}

unsigned cuDeviceGetCount(int *count)
{
    *count = fake_options.visible_count;
    return fake_ready();
}

unsigned cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

unsigned cuDeviceGetName(char *name, int length, int device)
{
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "FAKE %d%s", fake_options.visible[device],
             fake_options.mig ? " MIG 1g.5gb" : "");
    return CUDA_SUCCESS;
}

unsigned cuDeviceGetUuid_v2(struct CUuuid_st *uuid, int device)
{
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memset(uuid, 0, sizeof(*uuid));
    memcpy(uuid->bytes, "FAKE", 4);
    uuid->bytes[15] = (char)(fake_options.visible[device] + 1);
    return CUDA_SUCCESS;
}

unsigned cuDeviceGetAttribute(int *value, unsigned attribute, int device)
{
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        *value = fake_options.prohibited ? CU_COMPUTEMODE_PROHIBITED
            : fake_options.exclusive ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS : 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = number("FAKE_CUDA_MINOR", 0);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: *value = 1; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: *value = !fake_options.no_host_register; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = !fake_options.no_vmm;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
        *value = !fake_options.no_host_register && !fake_options.no_read_only;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: *value = !fake_options.no_stream_ops; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

unsigned cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = fake_options.memory_bytes;
    return is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

unsigned cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!is_device(device) || !is_device(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && fake_options.reaches[fake_options.visible[device]][fake_options.visible[peer]];
    return CUDA_SUCCESS;
}

/* ---- Contexts -------------------------------------------------------------------------------- */

/* The machine is locked. */
static unsigned add_context(int device)
{
    struct fake_process self = fake_self();
    int vacant = -1;

    for (int i = FAKE_CONTEXTS - 1; i >= 0; i--) {
        if (fake_machine->context[i].owner.pid == 0)
            vacant = i;
        else if (fake_options.exclusive && fake_machine->context[i].device == device &&
                 !fake_same(&fake_machine->context[i].owner, &self))
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    if (vacant < 0 || fake_used_bytes(device) + FAKE_CONTEXT_BYTES > fake_options.memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fake_machine->context[vacant].owner = self;
    fake_machine->context[vacant].device = device;
    return CUDA_SUCCESS;
}

unsigned cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device)
{
    unsigned result = CUDA_SUCCESS;

    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (fake_options.prohibited)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    device = fake_options.visible[device];
    fake_lock();
    if (contexts[device].users == 0)
        result = add_context(device);
    if (result == CUDA_SUCCESS) {
        contexts[device].users++;
        contexts[device].device = device;
        *context = &contexts[device];
    }
    fake_unlock();
    return result;
}

unsigned cuDevicePrimaryCtxRelease_v2(int device)
{
    struct fake_process self = fake_self();
    unsigned result = CUDA_SUCCESS;

    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    device = fake_options.visible[device];
    fake_lock();
    if (contexts[device].users == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--contexts[device].users == 0)
        for (int i = 0; i < FAKE_CONTEXTS; i++)
            if (fake_same(&fake_machine->context[i].owner, &self) && fake_machine->context[i].device == device)
                fake_machine->context[i].owner.pid = 0;
    fake_unlock();
    return result;
}

unsigned cuCtxPushCurrent_v2(struct CUctx_st *context)
{
    if (fake_ready() != CUDA_SUCCESS)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (context == NULL || context->users == 0 || depth == (int)(sizeof(stack) / sizeof(stack[0])))
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

unsigned cuCtxPopCurrent_v2(struct CUctx_st **context)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

unsigned fake_current(struct CUctx_st **context)
{
    if (fake_ready() != CUDA_SUCCESS)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[depth - 1];
    return CUDA_SUCCESS;
}

/* ---- For tests ------------------------------------------------------------------------------- */

const char *bx_fake_cuda(void)
{
    return "FAKE";
}

/* A figure of the machine; device is a physical one. */
uint64_t bx_fake_figure(const char *name, int device)
{
    uint64_t value = UINT64_MAX;

    fake_lock();
    if (strcmp(name, "used") == 0)
        value = fake_used_bytes(device);
    else if (strcmp(name, "freed_while_open") == 0)
        value = fake_machine->freed_while_open;
    else if (strcmp(name, "opens") == 0)
        value = fake_machine->opens;
    else if (strcmp(name, "closes") == 0)
        value = fake_machine->closes;
    fake_unlock();
    return value;
}
