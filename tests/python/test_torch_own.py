# SPDX-License-Identifier: MIT
"""Torch's own tests of its RPC, which torch installs, with boxcar's modules in the place of torch's. Those of torch
1.13 are known; the tests of other versions are not run. The workers of each test are forked for it."""
import os
import re
import signal
import sys
import tempfile
import traceback
import types
import unittest

try:
    import torch
    import torch.distributed.autograd
    import torch.distributed.nn
    import torch.distributed.optim
    import torch.distributed.rpc.api
except ImportError:
    print("skip torch is not installed")
    sys.exit(0)
if not torch.__version__.startswith("1.13"):
    print(f"skip of torch {torch.__version__} it is not known which of its own tests ask for what only torch has")
    sys.exit(0)
sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).__dict__.setdefault("ACCEPT", True)
sys.modules["expecttest"].__dict__.setdefault("TestCase", unittest.TestCase)

import boxcar
import boxcar.autograd
import boxcar.nn
import boxcar.optim
import boxcar.rpc

SECONDS = 60            # for a test

# What is not run: tests that look into torch's agent, its contexts, its profiler or TorchScript's references;
INTERNALS = ("profil|record_function|graph_for|no_graph_with|complex_args|debug_info|rref_type|get_type|get_future|"
             "gil_|rref_timeout|proxy_timeout|rpc_timeout|worker_infos|timeout_used|default_timeout|worker_threads|"
             "register_rpc|backend_from|for_options|options_throw|dynamic|node_failure|autograd_context$|ids_recorded|"
             "during_backward|send_exceptions|test_rref_leak|shutdown_errors|duplicate_name$|unused_send|cuda|"
             "ps_torchscript|forward_a?sync(_script)?$|over_the_wire|wait_all$|"
             "wait_all_(multiple|timeout|raise_in_user|exit_early_script)")
# those that expect torch's sentences, or another class of exception;
SENTENCES = ("gather_timeout|workers_timeout|wrong_return_type|callback_none|callback_wrong|on_callee|invalid_names|"
             "not_on_owner|mark_future|duplicate_name_2|invalid_args|pg_init_no|pickle_not_supported|reinit|"
             "rref_str$|send_to_rank$|by_rpc|after_shutdown|worker_id$|wrong_types|engine_error|udf_error|with_errors|"
             "nested_context|in_user_func$|bad_module|unsupported_methods|py_pickle")
# those of what lib/python/README.md says is different.
DIFFERS = "non_cont|proxy_non_exist|rrefs_confirmed|post_hooks|no_grad_copy"
NOT_RUN = re.compile("|".join((INTERNALS, SENTENCES, DIFFERS)))


def replace_torch():
    """By boxcar's names in torch's modules, of which the tests import them."""
    rpc = torch.distributed.rpc
    for ours, theirs in ((boxcar.rpc, rpc), (boxcar.rpc, rpc.api), (boxcar.autograd, torch.distributed.autograd)):
        vars(theirs).update((name, getattr(ours, name)) for name in ours.__all__ if name not in ("api", "functions"))
    for name in "_all_gather", "_barrier", "_get_current_rpc_agent", "_wait_all_workers":
        setattr(rpc.api, name, getattr(boxcar.rpc.api, name))
    rpc._get_current_rpc_agent = boxcar.rpc.api._get_current_rpc_agent
    rpc.functions.async_execution = boxcar.rpc.functions.async_execution
    torch.distributed.optim.DistributedOptimizer = boxcar.optim.DistributedOptimizer
    torch.distributed.nn.RemoteModule = boxcar.nn.RemoteModule
    # Its destructor has the GIL while it waits for threads that may want it (torch 1.13): of such tests beside each
    # other one in eight hung.
    destroy, kept = torch.distributed.destroy_process_group, []
    torch.distributed.destroy_process_group = lambda *group: (
        kept.extend(torch.distributed.distributed_c10d._pg_map), destroy(*group))


replace_torch()
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed.ddp_under_dist_autograd_test import DdpComparisonTest, DdpUnderDistAutogradTest
from torch.testing._internal.distributed.nn.api import remote_module_test
from torch.testing._internal.distributed.rpc import dist_autograd_test, dist_optimizer_test, rpc_test
from torch.testing._internal.distributed.rpc.examples import parameter_server_test, reinforcement_learning_rpc_test

for module in rpc_test, dist_autograd_test:     # waits until torch's agent has forgotten all references
    for name in "wait_until_pending_futures_and_users_flushed", "wait_until_owners_and_forks_on_rank":
        setattr(module, name, lambda *_: None)


class Worker:
    """What torch's tests ask of the class that they are mixed into."""
    rpc_backend = None

    def __init__(self, rank, file_name):
        TestCase.__init__(self, "run")
        self.rank, self.file_name = rank, file_name

    @property
    def rpc_backend_options(self):
        return boxcar.rpc.RpcBackendOptions(init_method=self.init_method, num_worker_threads=8)

    def get_shutdown_error_regex(self):
        return "left|shut"

    def get_timeout_error_regex(self):
        return "did not answer"


def run_worker(suite, test, rank, file_name, output):
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.alarm(SECONDS)
    torch.set_num_threads(1)        # makes torch's pool anew behind the fork, which threads at a time do wrong
    try:
        getattr(suite(rank, file_name), test)()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def run(case, suite, test):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        workers = []
        for rank in range(suite(0, None).world_size):
            workers.append(os.fork())
            if workers[-1] == 0:
                run_worker(suite, test, rank, os.path.join(folder, "f"), output.fileno())
        ended = [os.waitpid(worker, 0)[1] for worker in workers]
        output.seek(0)
        case.assertEqual(ended, [0] * len(workers), output.read())


class Tests(unittest.TestCase):
    pass


for suite in (rpc_test.RpcTest, rpc_test.TensorPipeAgentRpcTest, dist_autograd_test.DistAutogradTest,
              dist_autograd_test.TensorPipeAgentDistAutogradTest, dist_optimizer_test.DistOptimizerTest,
              DdpUnderDistAutogradTest, DdpComparisonTest, parameter_server_test.ParameterServerTest,
              reinforcement_learning_rpc_test.ReinforcementLearningRpcTest, remote_module_test.RemoteModuleTest,
              remote_module_test.ThreeWorkersRemoteModuleTest):
    suite = type(suite.__name__, (Worker, suite, TestCase), {})
    for name in dir(suite):
        if name.startswith("test_") and NOT_RUN.search(name) is None:
            setattr(Tests, name, lambda self, suite=suite, name=name: run(self, suite, name))

if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main(defaultTest="Tests")
