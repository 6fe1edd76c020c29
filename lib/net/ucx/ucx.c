/* SPDX-License-Identifier: MIT */
/*
 * The plug-in: active messages of UCX (ucp), and HMAC of OpenSSL. net/wire.h has its table.
 *
 * UCX's transports through shared memory are left out: workers of one host talk through rings. UCX_TLS and
 * UCX_NET_DEVICES choose among the others. Its keepalive is off: UCX drives it by progress, and would take a worker
 * that computes or is stopped for dead. It connects without waiting: whoever sends first to a host that is silent would
 * wait for minutes, with the progress role.
 *
 * UCX 1.13 aborts this process ("got REP message") when a worker dies while UCX connects it and this one: an assertion
 * of its own, which openucx/ucx pull request 8175 has removed. Nothing here prevents that.
 *
 * No memory is registered with UCX before it is sent (ucp_mem_map): TCP has no use for that, and an arena has 64 GiB of
 * addresses, most of them without pages. A transport that needs it, RDMA's, registers each tensor on its way, for UCX
 * has no cache of what it has registered (load.c). None but TCP has been run.
 *
 * What else UCX 1.13 is known for, and where it is looked after:
 *
 *     eager data lies in memory of UCX's       it is copied out before the callback returns (net/in.c, net/landing.c).
 *                                              UCX is given host memory alone
 *     the first message is always eager        data of any size may come so (net_meet `first`)
 *     after a FORCE close some callbacks do    what is not done is told when the wire is closed (wire_close; net_full
 *     not come                                 `stuck`, `halved`, `silenced`)
 *     a flush that is left out at the end      the ends are flushed before they are closed (close_end; net `pairs`, its
 *     loses messages over TCP                  last notes)
 *     the event descriptor fires for ever      it is watched for one event, behind an arm that found nothing
 *                                              (net/source.c; net.sh, a worker that sleeps)
 *     a fork                                   a child closes the links and does not use the wire, whose sockets it
 *                                              keeps: the links tell its parent's death (shm/fork.h; net_end `fork`)
 */
#include "net/wire.h"

#include <errno.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

#define AM_ID 7u

struct bxi_wire {
    ucp_context_h context;
    ucp_worker_h worker;
    struct bxi_wire_events events;
    int fd;
    struct bxi_wire_end *ends;
    struct bxi_wire_operation *sends;   /* messages that are not done */
    bool closes;
};

struct bxi_wire_end {
    struct bxi_wire_end *next;
    struct bxi_wire *wire;
    ucp_ep_h ep;                        /* NULL: cut */
    void *peer;
    bool is_lost;
};

static int code_of(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return 0;
    case UCS_ERR_NO_MEMORY:
        return -ENOMEM;
    case UCS_ERR_CANCELED:
        return -ECANCELED;
    case UCS_ERR_NO_DEVICE:
        return -ENODEV;
    case UCS_ERR_INVALID_PARAM:
        return -EINVAL;
    default:
        return -ECONNRESET;
    }
}

/* ---- the wire ------------------------------------------------------------------------------------ */

static ucs_status_t arrived(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                            const ucp_am_recv_param_t *param)
{
    struct bxi_wire *wire = argument;

    if (wire->closes)
        return UCS_OK;                  /* of a large one too: UCX drops it */
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
        wire->events.arrived(wire->events.context, header, header_bytes, data, bytes, NULL);
        return UCS_OK;
    }
    wire->events.arrived(wire->events.context, header, header_bytes, NULL, bytes, data);
    return UCS_INPROGRESS;
}

/* UCX_TLS without shared memory, which other programs of the user may want. */
static ucs_status_t choose_transports(ucp_config_t *config)
{
    static const char *const local[] = { "all", "sm", "shm", "mm", "posix", "sysv", "xpmem", "cma", "knem", "self" };
    const char *given = secure_getenv("UCX_TLS");
    char names[512], list[600] = "", *rest = names;

    snprintf(names, sizeof names, "%s", given != NULL ? given : "all");
    if (names[0] == '^' || strcmp(names, "all") == 0) {
        snprintf(list, sizeof list, "%s,sm,self,cma", names[0] == '^' ? names : "^sm");
        return ucp_config_modify(config, "TLS", list);
    }
    for (char *name; (name = strtok_r(rest, ",", &rest)) != NULL;) {
        bool is_local = false;

        for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
            is_local = is_local || strcmp(name, local[i]) == 0;
        if (!is_local)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", list[0] != '\0' ? "," : "", name);
    }
    return ucp_config_modify(config, "TLS", list[0] != '\0' ? list : "none");
}

/* A key that no transport takes is warned of, as is the other one's form: since 1.17 it has the transport's name. */
static ucs_status_t set_of_tcp(ucp_config_t *config, const char *key, const char *value)
{
    unsigned major, minor, release;
    char name[64];

    ucp_get_version(&major, &minor, &release);
    snprintf(name, sizeof name, "%s%s", major == 1 && minor < 17 ? "" : "TCP_", key);
    return ucp_config_modify(config, name, value);
}

/* With error mode PEER large data goes by copies of a segment, with no write into the receiver's memory. A segment of
 * UCX's 64 KiB is a packet of loopback's and a second one of 50 bytes; 512 KiB take a quarter to a third of the
 * processor time off both sides, and more takes no more off. The receiver has a buffer of a segment for each peer that
 * is sending. */
static ucs_status_t configure_tcp(ucp_config_t *config)
{
    const char *given = secure_getenv("UCX_TLS");
    ucs_status_t status;

    if (given != NULL && strcmp(given, "all") != 0 && (given[0] == '^') == (strstr(given, "tcp") != NULL))
        return UCS_OK;
    status = set_of_tcp(config, "CONN_NB", "y");
    if (status == UCS_OK && secure_getenv("UCX_TCP_RX_SEG_SIZE") == NULL)
        status = set_of_tcp(config, "RX_SEG_SIZE", "512k");
    return status;
}

static ucs_status_t configure(ucp_config_t *config)
{
    ucs_status_t status = choose_transports(config);

    if (status == UCS_OK)
        status = ucp_config_modify(config, "KEEPALIVE_INTERVAL", "inf");
    return status == UCS_OK ? configure_tcp(config) : status;
}

static ucs_status_t make_context(struct bxi_wire *wire)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
    };
    ucp_config_t *config = NULL;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);

    if (status != UCS_OK)
        return status;
    status = configure(config);
    if (status == UCS_OK)
        status = ucp_init(&params, config, &wire->context);
    ucp_config_release(config);
    return status;
}

static ucs_status_t make_worker(struct bxi_wire *wire)
{
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = arrived,
        .arg = wire,
    };
    ucs_status_t status = ucp_worker_create(wire->context, &params, &wire->worker);

    if (status == UCS_OK)
        status = ucp_worker_set_am_recv_handler(wire->worker, &handler);
    return status == UCS_OK ? ucp_worker_get_efd(wire->worker, &wire->fd) : status;
}

static int wire_open(const struct bxi_wire_events *events, struct bxi_wire **out, char *why, size_t why_bytes)
{
    struct bxi_wire *wire = calloc(1, sizeof *wire);
    ucs_status_t status;

    if (wire == NULL)
        return -ENOMEM;
    wire->events = *events;
    status = make_context(wire);
    if (status == UCS_OK)
        status = make_worker(wire);
    if (status == UCS_OK) {
        *out = wire;
        return 0;
    }
    snprintf(why, why_bytes, "%s", ucs_status_string(status));
    if (wire->worker != NULL)
        ucp_worker_destroy(wire->worker);
    if (wire->context != NULL)
        ucp_cleanup(wire->context);
    free(wire);
    return code_of(status);
}

static int wire_address(struct bxi_wire *wire, unsigned char address[BXI_WIRE_ADDRESS_MAX], size_t *bytes)
{
    ucp_address_t *own;
    ucs_status_t status = ucp_worker_get_address(wire->worker, &own, bytes);
    int rc = code_of(status);

    if (status != UCS_OK)
        return rc;
    if (*bytes <= BXI_WIRE_ADDRESS_MAX)
        memcpy(address, own, *bytes);
    else
        rc = -EMSGSIZE;
    ucp_worker_release_address(wire->worker, own);
    return rc;
}

static unsigned wire_progress(struct bxi_wire *wire)
{
    return ucp_worker_progress(wire->worker);
}

static bool wire_arm(struct bxi_wire *wire)
{
    return ucp_worker_arm(wire->worker) == UCS_OK;
}

static int wire_descriptor(const struct bxi_wire *wire)
{
    return wire->fd;
}

/* ---- ends ------------------------------------------------------------------------------------------ */

static void lost(void *argument, ucp_ep_h ep, ucs_status_t status)
{
    struct bxi_wire_end *end = argument;

    (void)ep, (void)status;
    if (end->is_lost)
        return;
    end->is_lost = true;
    if (!end->wire->closes)
        end->wire->events.lost(end->wire->events.context, end->peer);
}

static int wire_connect(struct bxi_wire *wire, const void *address, void *peer, struct bxi_wire_end **out)
{
    struct bxi_wire_end *end = calloc(1, sizeof *end);
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = lost, .arg = end },
    };
    ucs_status_t status;

    if (end == NULL)
        return -ENOMEM;
    end->wire = wire;
    end->peer = peer;
    status = ucp_ep_create(wire->worker, &params, &end->ep);
    if (status != UCS_OK) {
        free(end);
        return code_of(status);
    }
    end->next = wire->ends;
    wire->ends = end;
    *out = end;
    return 0;
}

/* UCX 1.13 has it only in what it prints: "lane[0]:  0:tcp/lo.0 md[0] ...". */
static void wire_transport(struct bxi_wire_end *end, char *text, size_t bytes)
{
    char *printed = NULL, *lane;
    size_t printed_bytes = 0;
    FILE *file = open_memstream(&printed, &printed_bytes);

    if (file == NULL)
        return;
    ucp_ep_print_info(end->ep, file);
    fclose(file);
    lane = printed != NULL ? strstr(printed, "lane[") : NULL;
    lane = lane != NULL ? strstr(lane, "]:") : NULL;
    lane = lane != NULL ? strchr(lane + 2, ':') : NULL;
    if (lane != NULL)
        snprintf(text, bytes, "%.*s", (int)strcspn(lane + 1, " \n"), lane + 1);
    lane = strrchr(text, '.');          /* the number of a path */
    if (lane != NULL)
        *lane = '\0';
    free(printed);
}

/* ---- messages --------------------------------------------------------------------------------------- */

static void begin_send(struct bxi_wire_operation *operation)
{
    struct bxi_wire *wire = operation->wire;

    operation->next = wire->sends;
    operation->place = &wire->sends;
    if (operation->next != NULL)
        operation->next->place = &operation->next;
    wire->sends = operation;
}

static void end_send(struct bxi_wire_operation *operation, int rc)
{
    *operation->place = operation->next;
    if (operation->next != NULL)
        operation->next->place = operation->place;
    operation->done(operation->context, rc);
}

static void sent(void *request, ucs_status_t status, void *argument)
{
    ucp_request_free(request);
    end_send(argument, code_of(status));
}

static void wire_send(struct bxi_wire_end *end, const void *head, size_t head_bytes, const void *data, size_t bytes,
                      struct bxi_wire_operation *operation)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = sent,
        .user_data = operation,
    };
    ucs_status_ptr_t request;

    operation->wire = end->wire;
    if (end->is_lost) {
        operation->done(operation->context, -ECONNRESET);
        return;
    }
    request = ucp_am_send_nbx(end->ep, AM_ID, head, head_bytes, data, bytes, &param);
    if (UCS_PTR_IS_PTR(request))
        begin_send(operation);
    else
        operation->done(operation->context, code_of(UCS_PTR_RAW_STATUS(request)));
}

static void fetched(void *request, ucs_status_t status, size_t bytes, void *argument)
{
    struct bxi_wire_operation *operation = argument;

    (void)bytes;
    ucp_request_free(request);
    if (!operation->wire->closes)
        operation->done(operation->context, code_of(status));
}

static void wire_fetch(struct bxi_wire *wire, struct bxi_wire_large *large, void *to, size_t bytes,
                       struct bxi_wire_operation *operation)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = fetched,
        .user_data = operation,
    };
    ucs_status_ptr_t request;

    operation->wire = wire;
    request = ucp_am_recv_data_nbx(wire->worker, large, to, bytes, &param);
    if (!UCS_PTR_IS_PTR(request))
        operation->done(operation->context, code_of(UCS_PTR_RAW_STATUS(request)));
}

static void wire_drop(struct bxi_wire *wire, struct bxi_wire_large *large)
{
    ucp_am_data_release(wire->worker, large);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static const ucp_request_param_t at_once = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
    .flags = UCP_EP_CLOSE_FLAG_FORCE,
};

/* What is left of it goes when the wire is closed. */
static void wire_cut(struct bxi_wire_end *end)
{
    ucs_status_ptr_t request;

    end->is_lost = true;
    request = ucp_ep_close_nbx(end->ep, &at_once);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
    end->ep = NULL;
}

/* What is sent over TCP is lost if the process ends first, so the ends are flushed before they are closed. */
static void close_end(struct bxi_wire_end *end, uint64_t until_ns)
{
    const ucp_request_param_t param = { 0 };
    ucs_status_ptr_t request = end->is_lost ? NULL : ucp_ep_flush_nbx(end->ep, &param);

    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS && now_ns() < until_ns)
        ucp_worker_progress(end->wire->worker);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
    request = end->ep == NULL ? NULL : ucp_ep_close_nbx(end->ep, &at_once);
    while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS && now_ns() < until_ns)
        ucp_worker_progress(end->wire->worker);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
    free(end);
}

static void wire_close(struct bxi_wire *wire, uint64_t timeout_ns)
{
    const uint64_t until_ns = now_ns() + timeout_ns;

    wire->closes = true;                /* nothing arrives any more */
    while (wire->sends != NULL && now_ns() < until_ns)
        ucp_worker_progress(wire->worker);
    while (wire->ends != NULL) {
        struct bxi_wire_end *end = wire->ends;

        wire->ends = end->next;
        close_end(end, until_ns);
    }
    ucp_worker_destroy(wire->worker);
    ucp_cleanup(wire->context);
    /* To a worker that is stopped. UCX 1.13 has forgotten them. It could end them, in more passes, but crashes there if
     * the network is gone. */
    while (wire->sends != NULL)
        end_send(wire->sends, -ECANCELED);
    free(wire);
}

static bool wire_mac(const char *secret, const void *data, size_t bytes, unsigned char mac[BXI_WIRE_MAC_BYTES])
{
    unsigned length = 0;

    return HMAC(EVP_sha256(), secret, (int)strlen(secret), data, bytes, mac, &length) != NULL &&
           length == BXI_WIRE_MAC_BYTES;
}

__attribute__((visibility("default"))) const struct bxi_wire_ops *bxi_wire_plugin(void)
{
    static const struct bxi_wire_ops ops = {
        .version = BXI_WIRE_VERSION,
        .open = wire_open,
        .address = wire_address,
        .connect = wire_connect,
        .send = wire_send,
        .fetch = wire_fetch,
        .drop = wire_drop,
        .transport = wire_transport,
        .cut = wire_cut,
        .progress = wire_progress,
        .arm = wire_arm,
        .descriptor = wire_descriptor,
        .close = wire_close,
        .mac = wire_mac,
    };

    return &ops;
}
