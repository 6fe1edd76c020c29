# SPDX-License-Identifier: MIT
#
# Builds Boxcar. `make help` lists what can be asked for.
#
# One file, not recursive: every object is made by one rule and lies under $(B)/obj at its source's
# path. `demo`, `test`, its parts and `lint` call make once more, because what they install must be
# there before the compiler is asked for it.

# ---- What the caller may set ---------------------------------------------------------------------

CONFIG  ?= release
CUDA    ?= auto
WERROR  ?= 0
BUILD   ?= build
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
DESTDIR ?=
V       ?= 0
# Boxcar's own copy of jemalloc, one for every CONFIG and BUILD; tools/jemalloc.sh says what is in it.
JEMALLOC ?= $(CURDIR)/build/jemalloc

PKG_CONFIG ?= pkg-config
INSTALL    ?= install

ifeq ($(filter $(CONFIG),release debug asan ubsan tsan cov sim),)
$(error CONFIG=$(CONFIG) is not one of release, debug, asan, ubsan, tsan, cov, sim)
endif
ifeq ($(filter $(CUDA),auto 0 1),)
$(error CUDA=$(CUDA) is not one of auto, 0, 1)
endif
# The driver is loaded at run time and its prototypes are our own: no toolkit is needed. Its cuda.h is compared
# with them where there is one; CUDA=1 wants that.
CUDA_H := $(firstword $(wildcard $(CUDA_HOME:%=%/include/cuda.h) /usr/local/cuda/include/cuda.h \
	/usr/local/cuda-*/include/cuda.h /usr/include/cuda.h))
ifeq ($(CUDA)$(CUDA_H),1)
$(error CUDA=1 compares the prototypes in gpu/cuda_api.h with cuda.h, which is not found: set CUDA_HOME, or leave \
	CUDA at auto)
endif

# release lies in build/ itself, so that its programs are build/bin/*; the others have their own.
B := $(BUILD)$(if $(filter-out release,$(CONFIG)),/$(CONFIG))
O := $(B)/obj

ifneq ($(V),1)
Q := @
say = @printf '  %-8s %s\n' $(1) $(2)
endif

# ---- Flags ---------------------------------------------------------------------------------------

# The caller's CPPFLAGS, CFLAGS and LDFLAGS come after ours, so they add to them and win over them.
# gcc's link-time optimisation takes a tenth off an empty call; fat objects, so that libboxcar.a serves
# any compiler.
LTO := $(shell echo | $(CC) -dM -E - 2>/dev/null | grep -q __clang__ || echo -flto=auto -ffat-lto-objects)
OPTIMISE_release := -O2 -g $(LTO)
OPTIMISE_debug   := -O0 -g3
# Undefined behaviour is a trap here, and a sentence in ubsan: the data for the sentences would double what a test
# process takes to start.
OPTIMISE_asan    := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fsanitize-undefined-trap-on-error
OPTIMISE_ubsan   := -O1 -g -fno-omit-frame-pointer -fsanitize=undefined -fno-sanitize-recover=all
# ThreadSanitizer sees a copy only where it is a call.
OPTIMISE_tsan    := -O1 -g -fno-omit-frame-pointer -fsanitize=thread -fno-builtin-memcpy
# tests/sim/ has the functions that the compiler calls, so that each copy and each fence has to be a call too.
OPTIMISE_sim     := -O1 -g -fno-omit-frame-pointer -fsanitize=thread --param tsan-instrument-func-entry-exit=0 \
	-fno-builtin-memcpy -fno-builtin-memmove -fno-builtin-memset -include tests/sim/before.h
ifneq ($(COUNTS),)
OPTIMISE_sim     += -O0 --coverage -fdata-sections
endif
# See tests/cov/exit.c.
OPTIMISE_cov     := -O0 -g --coverage -Wl,--wrap=_exit -Wl,--wrap=__gcov_fork -Wl,--wrap=raise

WARNINGS := -Wall -Wextra -Wshadow -Wpedantic -Wstrict-prototypes -Wmissing-prototypes
ifeq ($(WERROR),1)
WARNINGS += -Werror
endif

ALL_CPPFLAGS := -D_GNU_SOURCE $(if $(filter tsan,$(CONFIG)),-isystem tests/tsan) -I. -Ilib -I$(O)/text \
	-isystem $(JEMALLOC)/include -DBXI_CUDA=$(if $(filter 0,$(CUDA)),0,1) \
	$(if $(filter release,$(CONFIG)),,-DBXI_LOCK_OWNERS) $(CPPFLAGS)
ALL_CFLAGS   := -std=gnu11 $(OPTIMISE_$(CONFIG)) -fPIC -fvisibility=hidden -ftls-model=initial-exec \
	-fno-semantic-interposition -pthread $(WARNINGS)
ALL_LDFLAGS  := -pthread $(filter -fsanitize=% --coverage -Wl% -flto% -O2,$(OPTIMISE_$(CONFIG))) $(CFLAGS) $(LDFLAGS)

# Flags of single objects. EXACT ones come last and so win over the caller's: they are about
# results, not speed. Contraction of a*b+c would change the last bits from one processor to the
# next.
EXACT := -ffp-contract=off -fno-fast-math
$(O)/demos/reinforce/cartpole.o: FLAGS_EXACT := $(EXACT)
$(O)/demos/reinforce/policy.o $(O)/demos/reinforce/mlp.o $(O)/demos/reinforce/product.o: FLAGS_EXACT := $(EXACT)
$(O)/demos/reinforce/learner.o:  FLAGS_EXACT := $(EXACT)
$(O)/lib/nn/optim.o:   FLAGS_EXACT := $(EXACT)
$(O)/demos/reinforce/policy.o $(O)/demos/reinforce/mlp.o $(O)/demos/reinforce/product.o: FLAGS_OWN := -O3
$(O)/gpu/cuda_check.o $(O)/lib/nn/cuda_check.o: FLAGS_OWN := $(CUDA_H:%/cuda.h=-isystem %) \
	$(if $(filter 1,$(CUDA)),-DBXI_CUDA_CHECKED)
$(O)/lib/nn/optim.o:   FLAGS_OWN := -O3
$(O)/lib/autograd/loops_f32.o $(O)/lib/autograd/loops_f64.o: FLAGS_OWN := -O3
# Link-time optimisation compiles the library once more for each program: 17 s of a core. Only those have it whose
# figures count single calls. The others and the tests link with the library's machine code.
NO_LTO := $(if $(filter release,$(CONFIG)),-fno-lto)
# The tests themselves are compiled in less than half of the time without optimisation; what they test is not.
FAST   := $(if $(filter release,$(CONFIG)),-fno-lto) $(if $(filter release asan tsan,$(CONFIG)),-O0)
$(O)/tests/%.o:  FLAGS_OWN := $(FAST)
# Those of tests/prog make and check payloads: a third to a half of their time, without optimisation.
$(O)/tests/prog/%.o: FLAGS_OWN := $(NO_LTO)
$(O)/tests/fake_cuda/%.o:     FLAGS_OWN := -O3 $(NO_LTO)
$(O)/tests/fake_cuda/%.o:     FLAGS_EXACT := $(EXACT)
# Arithmetic in memory that a sanitizer has no bounds of, since the driver maps it: that took more than half of the time
# of the tests on GPUs.
$(patsubst %,$(O)/tests/fake_cuda/%.o,multiply cudnn_conv cudnn_layers): FLAGS_EXACT := $(EXACT) \
	$(if $(filter asan,$(CONFIG)),-fno-sanitize=all)

PACKAGES := liburing

# Expanded when something is linked, not before: `make deps` may just have installed them.
LIBS = $(shell $(PKG_CONFIG) --libs $(PACKAGES)) -lm
# What the networks need; oneDNN's OpenMP is gcc's, whoever compiles.
NN_LIBS := -Wl,--as-needed -ldnnl -l:libgomp.so.1

# ---- What is built from what ---------------------------------------------------------------------

VERSION := $(shell awk '/define BX_VERSION_(MAJOR|MINOR|PATCH)/ { v = v dot $$3; dot = "." } \
	END { print v }' lib/boxcar.h)
SONAME  := libboxcar.so.$(firstword $(subst ., ,$(VERSION)))

GPU_SRCS := $(if $(filter 0,$(CUDA)),gpu/stub.c,$(filter-out gpu/stub.c,$(wildcard gpu/*.c)))
# The engine's rooms; lib/README.md says what each is.
ROOMS    := base run rref rpc lend device net job observe
LIB_SRCS := $(wildcard shm/*.c $(ROOMS:%=lib/%/*.c)) $(GPU_SRCS) $(if $(filter cov,$(CONFIG)),tests/cov/exit.c) \
	$(if $(filter tsan,$(CONFIG)),tests/tsan/jemalloc.c)
NN_SRCS  := $(if $(filter 0,$(CUDA)),$(filter-out lib/nn/cuda_%.c,$(wildcard lib/nn/*.c)) lib/nn/cuda_stub.c,\
	$(filter-out lib/nn/cuda_stub.c,$(wildcard lib/nn/*.c)) gpu/cuda_driver.c)
AUTOGRAD_SRCS := $(wildcard lib/autograd/*.c)

# Kernels are compiled when they are wanted, by NVRTC: their text is part of the program. What a text is made of;
# NVRTC finds no headers, so they stand before it.
kernels_TEXT := lib/nn/kernels.h lib/nn/kernels.cu
policy_TEXT  := demos/reinforce/policy_kernels.h demos/reinforce/policy.cu
bench_gpu_TEXT := tools/bxbench/gpu_kernels.h tools/bxbench/gpu.cu

# Programs: each has a list of sources, of which the first holds main().
sources = $(1)/$(2) $(filter-out $(1)/$(2),$(wildcard $(1)/*.c))
PROGRAMS          := hello cartpole reinforce param_server rnn pipeline tensor_ipc bxbench shmstat gpucheck
RESNET            := demos/common/resnet.c
COMMON            := $(filter-out $(RESNET),$(wildcard demos/common/*.c))
hello_SRCS        := demos/hello/hello.c
cartpole_SRCS     := $(call sources,demos/cartpole,cartpole.c) demos/reinforce/cartpole.c demos/reinforce/policy.c \
	$(COMMON)
reinforce_SRCS    := $(call sources,demos/reinforce,reinforce.c) $(COMMON)
param_server_SRCS := $(call sources,demos/param_server,param_server.c) $(COMMON) $(RESNET)
rnn_SRCS          := $(call sources,demos/rnn,rnn.c) $(COMMON)
pipeline_SRCS     := $(call sources,demos/pipeline,pipeline.c) $(COMMON) $(RESNET)
tensor_ipc_SRCS   := demos/tensor_ipc/tensor_ipc.c $(COMMON)
bxbench_SRCS      := $(call sources,tools/bxbench,bxbench.c)
shmstat_SRCS      := $(call sources,tools/shmstat,shmstat.c)
gpucheck_SRCS     := $(call sources,tools/gpucheck,gpucheck.c) lib/nn/cuda_load.c gpu/cuda_driver.c \
	$(if $(filter cov,$(CONFIG)),tests/cov/exit.c)
# Need no library of the machine's but the C library, so that they run where there is nothing but the driver.
BARE_PROGRAMS     := gpucheck
LTO_PROGRAMS      := bxbench cartpole reinforce
NN_PROGRAMS       := cartpole reinforce param_server rnn pipeline bxbench
AUTOGRAD_PROGRAMS := cartpole rnn pipeline

# Tests: unit holds every Criterion test, with the parts of the programs that they test; prog_* are programs that the
# shell tests run.
# Criterion does not start under ThreadSanitizer: there tests/tsan/ runs the tests.
RUNNER_SRCS := $(if $(filter tsan,$(CONFIG)),tests/tsan/criterion.c)
RUNNER_LIBS  = $(if $(filter tsan,$(CONFIG)),,$(shell $(PKG_CONFIG) --libs criterion))
# Without GPU code the tests of it have nothing to link with.
GPU_TESTS   := $(wildcard tests/gpu/*.c tests/device/*.c tests/*/test_*_cuda.c tests/tools/test_shmstat_gpu_check.c)
unit_SRCS   := $(filter-out $(if $(filter 0,$(CUDA)),$(GPU_TESTS)),\
	$(wildcard $(patsubst %,tests/%/*.c,shm gpu $(ROOMS) nn autograd demos tools harness))) \
	$(filter-out $(foreach p,$(PROGRAMS),$(firstword $($(p)_SRCS))),$(wildcard demos/*/*.c)) \
	$(filter-out $(patsubst %,tools/shmstat/%.c,shmstat top screen),$(shmstat_SRCS)) $(RUNNER_SRCS)
# What runs on a bare machine with a GPU: linked statically but for the C library, whose dlopen loads the driver.
# Criterion's own libraries are many, so tests/tsan/ runs these tests too. oneDNN has no static library in Debian, so
# the networks are not here.
BARE_SRCS   := $(if $(filter 0,$(CUDA)),, \
	$(wildcard tests/gpu/*.c tests/device/*.c) \
	$(filter-out tests/harness/twin.c tests/harness/test_%,$(wildcard tests/harness/*.c)) tests/tsan/criterion.c)
BARE_LIBS   := -static-libgcc -l:liburing.a -lm
BARE        := $(if $(and $(BARE_SRCS),$(filter release debug,$(CONFIG))),$(B)/gpu/unit $(B)/gpu/tensor_ipc)
PROG_SRCS   := $(wildcard tests/prog/*.c)
# tests/fuzz/fuzz_stat.c includes jobs.c, with another shm_open.
fuzz_SRCS   := $(wildcard tests/fuzz/*.c) tests/harness/json.c \
	$(filter-out tools/shmstat/shmstat.c tools/shmstat/jobs.c,$(shmstat_SRCS))
# A CUDA driver that is none, for the tests of gpu/, and NVRTC, cuBLAS and cuDNN likewise for those of lib/nn.
FAKE_SRCS   := $(wildcard tests/fake_cuda/*.c)
FAKE_CUDA    = $(B)/tests/libfakecuda.so
# What that NVRTC opens by name when it compiles; empty.
FAKE_BUILTINS = $(B)/tests/libnvrtc-builtins.so.12.4

# The simulator: copies of the library, each with the programs, linked with what stands for the C library.
SIM_SRCS   := $(filter-out tests/sim/room%.c tests/sim/copy_%.c,$(wildcard tests/sim/*.c))
SIM_GRADS  := $(filter-out %/linear.c %/lstm.c %/matmul.c %/net.c,$(AUTOGRAD_SRCS))    # these compute by lib/nn
COPY_SRCS  := tests/sim/copy_begin.c $(LIB_SRCS) $(SIM_GRADS) $(wildcard tests/sim/room*.c) tests/sim/copy_end.c
SIM_COPIES := 0 1 2 3 4
SIM_NAMES  := sim_programs sim_data_begin sim_data_end sim_bss_begin sim_bss_end

objects = $(patsubst %.c,$(O)/%.o,$(1))

# Not compiled for the sanitizers, nor for coverage; tests/tsan/jemalloc.c says why it has other mutexes for one.
JEMALLOC_OBJ := $(if $(filter tsan,$(CONFIG)),$(O)/jemalloc.o,$(JEMALLOC)/jemalloc.o)
STATIC_LIB := $(B)/lib/libboxcar.a
SHARED_LIB := $(B)/lib/libboxcar.so.$(VERSION)
STATIC_NN  := $(B)/lib/libboxcar_nn.a
SHARED_NN  := $(B)/lib/libboxcar_nn.so.$(VERSION)
SONAME_NN  := libboxcar_nn.so.$(firstword $(subst ., ,$(VERSION)))
STATIC_AUTOGRAD := $(B)/lib/libboxcar_autograd.a
SHARED_AUTOGRAD := $(B)/lib/libboxcar_autograd.so.$(VERSION)
SONAME_AUTOGRAD := libboxcar_autograd.so.$(firstword $(subst ., ,$(VERSION)))
# kill_steps is the library once more, with a hook at every step of a worker's start, end and comeback.
steps_OBJS := $(patsubst %.c,$(O)/steps/%.o,$(LIB_SRCS) tests/harness/harness.c tests/harness/crash.c \
	tests/shm/test_kill_steps.c)
# What `make test` needs, and what is left for `make check-all`.
TESTS_FIRST := $(B)/tests/unit $(B)/tests/prog_worker $(FAKE_CUDA)
TESTS      := $(TESTS_FIRST) $(B)/tests/kill_steps $(PROG_SRCS:tests/prog/%.c=$(B)/tests/%) $(BARE)

ALL_SRCS := $(sort $(LIB_SRCS) $(NN_SRCS) $(AUTOGRAD_SRCS) \
	$(foreach p,$(PROGRAMS) unit fuzz,$($(p)_SRCS)) $(PROG_SRCS) $(FAKE_SRCS))

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all tests demo test check-all unit e2e check sim sim-built sim-schedules sim-fails fuzz fuzz-replay soak \
	switches test-gpu test-reference mutants \
	lint size coverage deps deps-unit deps-test deps-python deps-wheel deps-test-python deps-lint python \
	wheel test-python man built install uninstall deb test-deb clean help FORCE

# The plug-in of lib/net, where what it needs is installed.
NET_PLUGIN := $(B)/lib/libboxcar_net.so.0
HAS_NET    := $(if $(wildcard /usr/include/ucp/api/ucp.h),$(wildcard /usr/include/openssl/hmac.h))
all: $(if $(HAS_NET),$(NET_PLUGIN)) $(STATIC_LIB) $(SHARED_LIB) $(STATIC_NN) $(SHARED_NN) $(STATIC_AUTOGRAD) \
	$(SHARED_AUTOGRAD) $(PROGRAMS:%=$(B)/bin/%)

tests: $(TESTS)

# ---- Compiling and linking -----------------------------------------------------------------------

# Rewritten only when it would change; every object depends on it, so a change of flags rebuilds
# all.
FLAGS_LINE = $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(CFLAGS) / $(ALL_LDFLAGS) $(PACKAGES)
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(FLAGS_LINE))' | cmp -s - $@ || { \
		CC='$(CC)' JEMALLOC='$(JEMALLOC)' tools/install_deps.sh --look build && \
		printf '%s\n' '$(subst ','\'',$(FLAGS_LINE))' > $@; }

# Every object waits for it: jemalloc's header comes with it.
$(JEMALLOC)/jemalloc.o: tools/jemalloc.sh | $(B)/flags
	$(call say,CC,$@)
	$(Q)CC='$(CC)' MAKE='$(MAKE)' tools/jemalloc.sh build $(JEMALLOC)

$(O)/jemalloc.o: $(JEMALLOC)/jemalloc.o
	@mkdir -p $(@D)
	$(Q)objcopy $(foreach f,lock trylock unlock init,--redefine-sym pthread_mutex_$(f)=bxi_plain_mutex_$(f)) $< $@

$(O)/steps/%.o: %.c $(B)/flags | $(JEMALLOC_OBJ)
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(ALL_CPPFLAGS) -DBXI_STEPS $(ALL_CFLAGS) $(NO_LTO) $(CFLAGS) -MMD -MP -c -o $@ $<

# Without -Wpedantic: macros of tests/tsan/criterion get no argument for their `...`, which C allows from C23 on.
$(O)/bare/%.o: %.c $(B)/flags | $(JEMALLOC_OBJ)
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) -isystem tests/tsan $(ALL_CPPFLAGS) $(filter-out -Wpedantic,$(ALL_CFLAGS)) $(FAST) $(CFLAGS) -MMD -MP \
		-c -o $@ $<

$(O)/%.o: %.c $(B)/flags | $(JEMALLOC_OBJ)
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(FLAGS_OWN) $(CFLAGS) $(FLAGS_EXACT) -MMD -MP -c -o $@ $<

# As the bytes of an array: a string of this length is longer than ISO C promises, and the compilers say so.
TEXTS := kernels policy bench_gpu
$(foreach t,$(TEXTS),$(eval $(O)/text/$(t).inc: $($(t)_TEXT)))
$(TEXTS:%=$(O)/text/%.inc):
	@mkdir -p $(@D)
	$(call say,TEXT,$@)
	$(Q){ echo '{'; cat $^ | od -An -v -td1 | sed 's/[0-9-][0-9]*/&,/g'; echo '0 }'; } > $@
$(O)/lib/nn/cuda_kernels.o: $(O)/text/kernels.inc
$(O)/demos/reinforce/policy_cuda.o: $(O)/text/policy.inc
$(O)/tools/bxbench/gpu.o: $(O)/text/bench_gpu.inc

# Calls of all functions that the public headers declare.
$(O)/text/null_cases.inc: $(wildcard lib/boxcar*.h)
$(O)/text/forked_cases.inc: $(addprefix lib/,boxcar.h boxcar_tensor.h boxcar_rref.h)
$(O)/text/forked_cases.inc: FORKED := -v forked=1
$(O)/text/%_cases.inc: tests/base/cases.awk
	@mkdir -p $(@D)
	$(call say,TEXT,$@)
	$(Q)awk $(FORKED) -f $^ >$@
$(O)/tests/base/test_null.o: $(O)/text/null_cases.inc
$(O)/tests/base/test_forked.o: $(O)/text/forked_cases.inc

-include $(patsubst %.o,%.d,$(call objects,$(ALL_SRCS) $(SIM_SRCS) $(COPY_SRCS)) $(steps_OBJS) $(BARE_SRCS:%.c=$(O)/bare/%.o))

# Made anew each time: ar would keep the members of files that are no more.
$(STATIC_LIB): $(call objects,$(LIB_SRCS)) $(JEMALLOC_OBJ)
	@mkdir -p $(@D)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# nodelete: a dlclose must not take its code from its threads, from its SIGBUS handler (which a handler that came later
# may chain to), from the destructors of threads' data that pthread_key_create got, nor from DLPack structs that others
# still hold. jemalloc also has no way to give all of its memory back.
$(SHARED_LIB): $(call objects,$(LIB_SRCS)) $(JEMALLOC_OBJ) lib/libboxcar.map
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=lib/libboxcar.map \
		-Wl,-z,nodelete $(if $(filter asan tsan ubsan,$(CONFIG)),,-Wl,-z,defs) \
		-o $@ $(filter %.o,$^) $(ALL_LDFLAGS) $(LIBS)
	$(Q)ln -sf $(@F) $(@D)/$(SONAME) && ln -sf $(SONAME) $(@D)/libboxcar.so

$(STATIC_NN): $(call objects,$(NN_SRCS))
	@mkdir -p $(@D)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(SHARED_NN): $(call objects,$(NN_SRCS)) lib/libboxcar_nn.map $(SHARED_LIB)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(SONAME_NN) -Wl,--version-script=lib/libboxcar_nn.map \
		$(if $(filter asan tsan ubsan,$(CONFIG)),,-Wl,-z,defs) \
		-o $@ $(filter %.o,$^) $(ALL_LDFLAGS) -L$(@D) -lboxcar $(NN_LIBS) -lm
	$(Q)ln -sf $(@F) $(@D)/$(SONAME_NN) && ln -sf $(SONAME_NN) $(@D)/libboxcar_nn.so

$(STATIC_AUTOGRAD): $(call objects,$(AUTOGRAD_SRCS))
	@mkdir -p $(@D)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(SHARED_AUTOGRAD): $(call objects,$(AUTOGRAD_SRCS)) lib/libboxcar_autograd.map $(SHARED_NN)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,$(SONAME_AUTOGRAD) -Wl,--version-script=lib/libboxcar_autograd.map \
		$(if $(filter asan tsan ubsan,$(CONFIG)),,-Wl,-z,defs) \
		-o $@ $(filter %.o,$^) $(ALL_LDFLAGS) -L$(@D) -Wl,-rpath-link,$(@D) -lboxcar_nn -lboxcar -lm
	$(Q)ln -sf $(@F) $(@D)/$(SONAME_AUTOGRAD) && ln -sf $(SONAME_AUTOGRAD) $(@D)/libboxcar_autograd.so

# RTLD_LOCAL keeps its libraries' names away from the program's; it uses none of libboxcar's.
$(NET_PLUGIN): $(O)/lib/net/ucx/ucx.o
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) -shared -Wl,-soname,$(@F) -o $@ $^ $(ALL_LDFLAGS) $(NO_LTO) -lucp -lucs -lcrypto

# Autograd and the networks come before what they use.
link = $(Q)mkdir -p $(@D) && $(CC) -o $@ $(filter %.o,$^) $(filter $(STATIC_AUTOGRAD),$^) $(filter $(STATIC_NN),$^) \
	$(STATIC_LIB) $(ALL_LDFLAGS) \
	$(if $(filter $(STATIC_NN),$^),$(NN_LIBS))

define PROGRAM_RULE
$(B)/bin/$(1): $(call objects,$($(1)_SRCS)) $(STATIC_LIB) $(if $(filter $(1),$(NN_PROGRAMS)),$(STATIC_NN)) \
	$(if $(filter $(1),$(AUTOGRAD_PROGRAMS)),$(STATIC_AUTOGRAD))
endef
$(foreach p,$(filter-out $(BARE_PROGRAMS),$(PROGRAMS)),$(eval $(call PROGRAM_RULE,$(p))))
$(patsubst %,$(B)/bin/%,$(filter-out $(BARE_PROGRAMS),$(PROGRAMS))):
	$(call say,LINK,$@)
	$(link) $(if $(filter $(LTO_PROGRAMS),$(@F)),,$(NO_LTO)) $(LIBS)

$(foreach p,$(BARE_PROGRAMS),$(eval $(B)/bin/$(p): $(call objects,$($(p)_SRCS)) $(STATIC_LIB)))
$(BARE_PROGRAMS:%=$(B)/bin/%):
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) -o $@ $^ $(ALL_LDFLAGS) $(NO_LTO)

$(B)/tests/kill_steps: $(steps_OBJS) $(JEMALLOC_OBJ)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) -o $@ $^ $(ALL_LDFLAGS) $(NO_LTO) $(RUNNER_LIBS) $(LIBS)

# tests/harness/memory.c lets single allocations fail.
WRAPPED := $(patsubst %,-Xlinker --wrap=%,malloc calloc realloc aligned_alloc strdup strndup)
$(B)/tests/unit: $(call objects,$(unit_SRCS)) $(STATIC_LIB) $(STATIC_NN) $(STATIC_AUTOGRAD)
	$(call say,LINK,$@)
	$(link) $(NO_LTO) $(WRAPPED) $(RUNNER_LIBS) $(LIBS)

# For tests/mutants/mutants.py: these sources of the unit tests alone are compiled for gcov.
ifneq ($(COVERED),)
$(COVERED:%.c=$(O)/%.o): FLAGS_EXACT += --coverage
$(B)/tests/unit: $(O)/tests/mutants/reach.o
$(B)/tests/unit: WRAPPED += --coverage -Wl,--wrap=_exit,--wrap=criterion_internal_test_setup
endif

$(B)/gpu/unit: $(BARE_SRCS:%.c=$(O)/bare/%.o) $(STATIC_LIB)
	$(call say,LINK,$@)
	$(link) $(NO_LTO) $(WRAPPED) $(BARE_LIBS)

$(B)/gpu/tensor_ipc: $(call objects,$(tensor_ipc_SRCS)) $(STATIC_LIB)
	$(call say,LINK,$@)
	$(link) $(NO_LTO) $(BARE_LIBS)

$(FAKE_CUDA): $(call objects,$(FAKE_SRCS)) | $(FAKE_BUILTINS)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) -shared -o $@ $^ $(ALL_LDFLAGS) -lm

$(FAKE_BUILTINS):
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) -shared -nostdlib -Wl,-soname,$(@F) -o $@ -x c /dev/null

# Without libFuzzer, whose `make fuzz` says so, it replays the corpus.
FUZZER := $(filter -fsanitize=fuzzer-no-link,$(CFLAGS))
$(O)/tests/fuzz/%.o: FLAGS_OWN := $(if $(FUZZER),,-DFUZZ_REPLAY)
$(B)/tests/fuzz: $(call objects,$(fuzz_SRCS)) $(STATIC_LIB)
	$(call say,LINK,$@)
	$(link) $(NO_LTO) $(FUZZER:%-no-link=%) -Wl,--wrap=nanosleep $(LIBS)

$(call objects,$(SIM_SRCS)): FLAGS_EXACT := -fno-sanitize=thread -O2 $(if $(COUNTS),-fno-profile-arcs -fno-test-coverage)

# All of its names become local but that of its programs, and those of the C library that world.syms replaces.
$(SIM_COPIES:%=$(O)/sim_copy_%.o): $(call objects,$(COPY_SRCS)) tests/sim/world.syms $(JEMALLOC_OBJ)
	$(call say,COPY,$@)
	$(Q)$(CC) -nostdlib -r $(if $(COUNTS),-T tests/sim/counters.ld) -o $@ $(firstword $^) $(JEMALLOC_OBJ) \
		$(filter-out $(firstword $^) $(JEMALLOC_OBJ),$(filter %.o,$^))
	$(Q)objcopy --redefine-syms=tests/sim/world.syms $(SIM_NAMES:%=--keep-global-symbol=%) $@
	$(Q)objcopy $(foreach n,$(SIM_NAMES),--redefine-sym $(n)=$(n)$(patsubst $(O)/sim_copy%.o,%,$@)) $@

$(B)/tests/sim: $(call objects,$(SIM_SRCS)) $(SIM_COPIES:%=$(O)/sim_copy_%.o)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) -no-pie $(if $(COUNTS),--coverage) -o $@ $^ -pthread $(CFLAGS) $(LDFLAGS) $(LIBS)

$(B)/tests/prog_%: $(O)/tests/prog/prog_%.o $(STATIC_LIB)
	$(call say,LINK,$@)
	$(link) $(NO_LTO) $(LIBS)

# The extension of Python and the package around it; PYTHONPATH=build/python finds it. The extension looks for libboxcar
# beside itself, where this package has a link to it, and then where the loader does; libboxcar for its plug-in likewise. What apt-get installs is for
# the distribution's Python.
PYTHON     ?= $(firstword $(wildcard /usr/bin/python3) python3)
PYTHON_SRCS := $(wildcard lib/python/boxcar/*.[ch])
PYTHON_FILES := lib/python/boxcar/py.typed $(foreach e,py pyi,$(wildcard lib/python/boxcar/*.$(e) \
	lib/python/boxcar/*/*.$(e)))
python: deps-python
	@$(MAKE) --no-print-directory $(B)/python/made

$(B)/python/made: Makefile $(PYTHON_SRCS) $(PYTHON_FILES) $(SHARED_LIB) $(if $(HAS_NET),$(NET_PLUGIN))
	$(call say,PYTHON,$(@D)/boxcar)
	$(Q)rm -rf $(@D)
	$(Q)for file in $(PYTHON_FILES:lib/python/%=%); do $(INSTALL) -D -m 644 lib/python/$$file $(@D)/$$file || \
		exit 1; done
	$(Q)$(CC) -shared -o $(@D)/boxcar/_boxcar$$($(PYTHON) -c 'import sysconfig as s; print(s.get_config_var("EXT_SUFFIX"))') \
		-isystem $$($(PYTHON) -c 'import sysconfig as s; print(s.get_paths()["include"])') \
		$(ALL_CPPFLAGS) $(ALL_CFLAGS) $(NO_LTO) $(filter %.c,$^) $(ALL_LDFLAGS) \
		-L$(B)/lib -lboxcar -Wl,-rpath,'$$ORIGIN'
	$(Q)for library in $(SONAME) $(if $(HAS_NET),$(notdir $(NET_PLUGIN))); do \
		ln -s ../../lib/$$library $(@D)/boxcar || exit 1; done
	$(Q)echo '$(PYTHON)' >$@
# For another interpreter it is made anew.
ifneq ($(PYTHON),$(file <$(B)/python/made))
$(B)/python/made: FORCE
endif

wheel: deps-wheel
	@$(MAKE) --no-print-directory $(B)/python/made
	@JEMALLOC='$(JEMALLOC)' PYTHON='$(PYTHON)' tools/build_wheel.sh $(B)/python/boxcar $(B)/wheel

# ---- The two commands ----------------------------------------------------------------------------

DEMO_FLAGS ?= --min-world-size 11 --max-world-size 11 --mode batch --max-episodes 60

demo: deps
	@$(MAKE) --no-print-directory all
	$(B)/bin/reinforce $(DEMO_FLAGS)

test: deps-test
	@$(MAKE) --no-print-directory all $(TESTS_FIRST)
	@$(TEST_ENV) tests/run_all.sh $@

# The manual pages, which two of the scripts make that run at a time, are there before.
check-all: deps-test
	@$(MAKE) --no-print-directory all tests man
	@$(TEST_ENV) tests/run_all.sh $@

# ---- Parts of the tests --------------------------------------------------------------------------

# The threads of OpenMP that find nothing to do sleep: tests run beside one another, and would wait for cores on which
# others' threads spin.
TEST_ENV = OMP_WAIT_POLICY=passive BX_SOURCE_DIR='$(CURDIR)' BX_BUILD_DIR='$(abspath $(B))' BX_CONFIG='$(CONFIG)' \
	CC='$(CC)' MAKE='$(MAKE)' JEMALLOC='$(JEMALLOC)'

# Each installs what it needs first, as `test` does; what is there already costs two looks.
unit: deps-unit
	@$(MAKE) --no-print-directory $(B)/tests/unit $(B)/bin/shmstat $(FAKE_CUDA)
	@$(TEST_ENV) tests/run_unit.sh

test-reference: deps-unit
	@$(MAKE) --no-print-directory $(B)/tests/unit
	@$(TEST_ENV) tests/run_unit.sh --filter 'reference/*'

# New seeds each time. SIM_ARGS='--program ring --seed 7 --trace' replays one. Each run has one core: with -j they run
# beside one another.
SIM_S ?= 300
SIM_FAIL_S ?= 60
sim: sim-schedules $(if $(SIM_ARGS),,sim-fails)

sim-built: deps
	@$(MAKE) --no-print-directory CONFIG=sim CUDA=0 $(BUILD)/sim/tests/sim

sim-schedules: sim-built
	@$(BUILD)/sim/tests/sim $(or $(SIM_ARGS),--seconds $(SIM_S))

sim-fails: sim-built
	@$(BUILD)/sim/tests/sim --fail all $(or $(SIM_FAIL_ARGS),--seconds $(SIM_FAIL_S))

# Each target for so long; what it finds beyond the corpus stays in build/fuzz. A finding is a file there, too.
FUZZ_S ?= 600
FUZZ   ?= boot frame lease stat
FUZZ_CC ?= $(or $(firstword $(shell command -v clang-19 clang)),clang)
fuzz: deps
	@$(MAKE) --no-print-directory CONFIG=asan CC='$(FUZZ_CC)' BUILD='$(BUILD)/clang' CFLAGS=-fsanitize=fuzzer-no-link \
		$(BUILD)/clang/asan/tests/fuzz
	@mkdir -p $(BUILD)/fuzz && tar xzf tests/fuzz/corpus.tar.gz -C $(BUILD)/fuzz
	@for target in $(FUZZ); do mkdir -p $(BUILD)/fuzz/$$target && echo "== $$target" && \
		ASAN_OPTIONS=quarantine_size_mb=1:thread_local_quarantine_size_kb=64 BX_FUZZ=$$target \
		$(BUILD)/clang/asan/tests/fuzz -max_total_time=$(FUZZ_S) -max_len=4096 -detect_leaks=0 -print_final_stats=1 \
		-artifact_prefix=$(BUILD)/fuzz/$$target- $(BUILD)/fuzz/$$target $(BUILD)/fuzz/corpus/$$target || exit 1; done

fuzz-replay: deps
	@$(MAKE) --no-print-directory $(B)/tests/fuzz
	@mkdir -p $(B)/fuzz && tar xzf tests/fuzz/corpus.tar.gz -C $(B)/fuzz
	@$(TEST_ENV) tests/run_scripts.sh $(B)/tests/fuzz

# Whether something grows for ever, or a payload changes: an hour, beside other work.
SOAK_S ?= 3600
soak: deps
	@$(MAKE) --no-print-directory all tests
	@$(TEST_ENV) BX_NET_ROUNDS=200 BX_NET_SEEDS="$$(seq -s ' ' 100)" tests/e2e/net_hard.sh
	@$(TEST_ENV) nice -n 19 tests/prog/soak.sh $(SOAK_S)

# The driver of the tests can refuse more than it does by default.
switches: deps-unit
	@$(MAKE) --no-print-directory $(B)/tests/unit $(B)/bin/shmstat $(FAKE_CUDA)
	@$(TEST_ENV) tests/run_scripts.sh tests/gpu/switches.sh

test-gpu: deps-unit
	@$(MAKE) --no-print-directory all tests
	@$(TEST_ENV) tests/gpu/run.sh

test-python: deps-test-python
	@$(MAKE) --no-print-directory $(B)/python/made $(FAKE_CUDA)
	@$(TEST_ENV) PYTHON='$(PYTHON)' tests/run_scripts.sh tests/python/*.sh

e2e: deps-test
	@$(MAKE) --no-print-directory all tests
	@$(TEST_ENV) tests/run_e2e.sh

# KEPT names mutants of the list kept by hand, or all; else generated ones of FILES.
SINCE ?= HEAD
FILES ?= $(shell git diff --name-only --diff-filter=d $(SINCE) -- 'shm/*.c' 'lib/*.c' 'gpu/*.c' 'tools/*.c' 'demos/*.c')
mutants: deps-test
	@BX_SOURCE_DIR='$(CURDIR)' BX_BUILD_DIR='$(abspath $(BUILD))' CC='$(CC)' JEMALLOC='$(JEMALLOC)' \
		tests/mutants/mutants.py $(if $(KEPT),--kept $(filter-out all,$(KEPT)),$(FILES))

# Calls fail from seed 7 on: it and each eighth one behind it run with BX_TRACE and BX_CHECKED, so the trace counts too.
coverage: deps-unit
	-@find $(BUILD)/cov -name '*.gcda' -exec rm -f {} +
	-@$(MAKE) --no-print-directory CONFIG=cov unit
	@$(MAKE) --no-print-directory CONFIG=sim CUDA=0 COUNTS=1 BUILD=$(BUILD)/cov $(BUILD)/cov/sim/tests/sim
	@$(BUILD)/cov/sim/tests/sim --seconds $(SIM_S) & other=$$!; \
		$(BUILD)/cov/sim/tests/sim --fail all --seed 7 --schedules 1000000 --seconds $(SIM_S); \
		rc=$$?; wait $$other && exit $$rc
	@tests/coverage.py $(BUILD)/cov/obj $(BUILD)/cov/sim/obj

check: deps
	@$(MAKE) --no-print-directory all
	@$(TEST_ENV) tests/run_scripts.sh tests/check/*.sh

lint: deps-lint
	@$(TEST_ENV) tests/lint.sh

size:
	@awk -f tests/size.awk $(sort $(shell find shm lib gpu tools demos tests -name '*.[ch]' -o -name '*.cu' \
		-o -name '*.cpp' -o -name '*.pml' -o -name '*.sh' -o -name '*.awk' -o -name '*.py' -o -name '*.mut'))

deps:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' tools/install_deps.sh build

deps-unit:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' tools/install_deps.sh build unit

deps-test:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' tools/install_deps.sh build test

deps-python:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' PYTHON='$(PYTHON)' tools/install_deps.sh build python

deps-wheel:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' PYTHON='$(PYTHON)' tools/install_deps.sh build python wheel

deps-test-python:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' PYTHON='$(PYTHON)' tools/install_deps.sh build python test-python

deps-lint:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' tools/install_deps.sh build test lint

# ---- Manual pages --------------------------------------------------------------------------------

# Sections 3 and 7 are made from the headers in one run. Section 1: what the programs print for --help.
MAN := $(B)/man
MAN_AWK = awk -f lib/man/text.awk -v version=$(VERSION) -v date="$$(sed -n 's/^\.Dd //p' lib/man/boxcar.7)"
man: $(MAN)/made $(patsubst %,$(MAN)/man1/%.1,$(filter-out shmstat,$(PROGRAMS)))

$(MAN)/made: lib/man/text.awk lib/man/pages.awk lib/man/boxcar.7 $(wildcard lib/boxcar*.h) tools/shmstat/shmstat.1
	$(call say,MAN,$(MAN))
	$(Q)rm -rf $(@D) && mkdir -p $(@D)/man1 $(@D)/man3 $(@D)/man7
	$(Q)$(MAN_AWK) -f lib/man/pages.awk -v out=$(@D) -v words=lib/man/boxcar.7 $(filter %.h,$^)
	$(Q)cp tools/shmstat/shmstat.1 $(@D)/man1 && touch $@

$(MAN)/man1/%.1: $(B)/bin/% lib/man/program.awk lib/man/programs $(MAN)/made
	$(Q)$< --help | $(MAN_AWK) -f lib/man/program.awk -v name=$* -v programs=lib/man/programs > $@

# ---- Installing ----------------------------------------------------------------------------------

# One list serves install and uninstall: {source}={where it goes}.
HEADERS   := $(wildcard lib/boxcar*.h)
CMAKE_FILES := BoxcarConfig.cmake BoxcarConfigVersion.cmake
DOCDIR    := $(PREFIX)/share/doc/boxcar
INSTALLED := $(STATIC_LIB)=$(LIBDIR)/libboxcar.a \
	$(SHARED_LIB)=$(LIBDIR)/$(notdir $(SHARED_LIB)) \
	$(STATIC_NN)=$(LIBDIR)/libboxcar_nn.a \
	$(SHARED_NN)=$(LIBDIR)/$(notdir $(SHARED_NN)) \
	$(STATIC_AUTOGRAD)=$(LIBDIR)/libboxcar_autograd.a \
	$(if $(HAS_NET),$(NET_PLUGIN)=$(LIBDIR)/$(notdir $(NET_PLUGIN))) \
	$(SHARED_AUTOGRAD)=$(LIBDIR)/$(notdir $(SHARED_AUTOGRAD)) \
	$(B)/boxcar.pc=$(LIBDIR)/pkgconfig/boxcar.pc \
	$(B)/boxcar_nn.pc=$(LIBDIR)/pkgconfig/boxcar_nn.pc \
	$(B)/boxcar_autograd.pc=$(LIBDIR)/pkgconfig/boxcar_autograd.pc \
	$(foreach c,$(CMAKE_FILES),$(B)/$(c)=$(LIBDIR)/cmake/Boxcar/$(c)) \
	$(foreach h,$(HEADERS),$(h)=$(PREFIX)/include/$(notdir $(h))) \
	$(B)/bin/shmstat=$(PREFIX)/bin/shmstat \
	$(B)/bin/gpucheck=$(PREFIX)/bin/gpucheck \
	lib/LICENSE=$(DOCDIR)/LICENSE \
	$(JEMALLOC)/source/COPYING=$(DOCDIR)/LICENSE.jemalloc \
	lib/CHANGELOG.md=$(DOCDIR)/CHANGELOG.md \
	lib/tsan.supp=$(PREFIX)/share/boxcar/tsan.supp \
	$(foreach e,$(wildcard lib/examples/*),$(e)=$(DOCDIR)/examples/$(notdir $(e)))
# For the shell: the pages of functions and words, and those of the programs that are installed.
PAGES     := $(MAN)/man1/shmstat.1 $(MAN)/man1/gpucheck.1 $(MAN)/man3/*.3 $(MAN)/man7/*.7
OWN_DIRS  := $(LIBDIR)/cmake/Boxcar $(DOCDIR)/examples $(DOCDIR) $(PREFIX)/share/boxcar
# The package of Python is installed if it was built: into the directory under the prefix where that Python looks, or
# would if the prefix were its own.
PYTHON_DIR = $(if $(wildcard $(B)/python/made),$(shell $(PYTHON) -c 'import site, sysconfig; \
	print(next((d for d in site.getsitepackages() if d.startswith("$(PREFIX)/lib")), \
	sysconfig.get_path("platlib", "posix_prefix", {"platbase": "$(PREFIX)"})))'))
LINKS     := $(SONAME) libboxcar.so $(SONAME_NN) libboxcar_nn.so $(SONAME_AUTOGRAD) libboxcar_autograd.so

$(B)/%.pc: lib/%.pc.in FORCE
	@mkdir -p $(@D)
	@sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR:$(PREFIX)%=$${prefix}%)|' \
		-e 's|@VERSION@|$(VERSION)|' $< > $@

# The words of a field of a library's .pc file, without those that name the library: CMake links what pkg-config says.
pc_words = $(filter-out -L% -l$(1),$(shell sed -n 's/^$(2)://p' lib/$(1).pc.in))
$(B)/%.cmake: lib/%.cmake.in FORCE
	@mkdir -p $(@D)
	@sed -e 's|@VERSION@|$(VERSION)|' -e 's|@VERSION_MAJOR@|$(firstword $(subst ., ,$(VERSION)))|' \
		-e 's|@LIBDIR_TO_INCLUDE@|$(shell realpath -ms --relative-to='$(LIBDIR)' '$(PREFIX)/include')|' \
		-e 's|@BOXCAR_PRIVATE@|$(shell $(PKG_CONFIG) --libs $(PACKAGES)) $(call pc_words,boxcar,Libs.private)|' \
		-e 's|@NN_PUBLIC@|$(call pc_words,boxcar_nn,Libs)|' \
		-e 's|@NN_PRIVATE@|$(call pc_words,boxcar_nn,Libs.private)|' \
		-e 's|@AUTOGRAD_PUBLIC@|$(call pc_words,boxcar_autograd,Libs)|' \
		-e 's|@AUTOGRAD_PRIVATE@|$(call pc_words,boxcar_autograd,Libs.private)|' $< > $@

# Everything that is built and then installed.
built: $(MAN)/made $(MAN)/man1/gpucheck.1 $(wildcard $(B)/python/made) $(filter $(B)/%,$(foreach i,$(INSTALLED),$(firstword $(subst =, ,$(i)))))

install: built
	$(foreach i,$(INSTALLED),@$(INSTALL) -D -m 644 $(subst =, '$(DESTDIR),$(i))'$(newline))
	@chmod 755 '$(DESTDIR)$(PREFIX)/bin/shmstat' '$(DESTDIR)$(PREFIX)/bin/gpucheck'
	@for page in $(PAGES); do \
		$(INSTALL) -D -m 644 "$$page" '$(DESTDIR)$(PREFIX)/share/man'/"$${page#$(MAN)/}" || exit 1; done
	@ln -sf $(notdir $(SHARED_LIB)) '$(DESTDIR)$(LIBDIR)/$(SONAME)'
	@ln -sf $(SONAME) '$(DESTDIR)$(LIBDIR)/libboxcar.so'
	@ln -sf $(notdir $(SHARED_NN)) '$(DESTDIR)$(LIBDIR)/$(SONAME_NN)'
	@ln -sf $(SONAME_NN) '$(DESTDIR)$(LIBDIR)/libboxcar_nn.so'
	@ln -sf $(notdir $(SHARED_AUTOGRAD)) '$(DESTDIR)$(LIBDIR)/$(SONAME_AUTOGRAD)'
	@ln -sf $(SONAME_AUTOGRAD) '$(DESTDIR)$(LIBDIR)/libboxcar_autograd.so'
	$(if $(PYTHON_DIR),@for file in $$(cd $(B)/python && find boxcar -type f ! -name '*.pyc'); do \
		$(INSTALL) -D -m 644 $(B)/python/"$$file" '$(DESTDIR)$(PYTHON_DIR)'/"$$file" || exit 1; done)
	@echo 'installed under $(DESTDIR)$(PREFIX)'

uninstall: $(MAN)/made $(MAN)/man1/gpucheck.1
	$(foreach i,$(INSTALLED),@rm -f '$(DESTDIR)$(lastword $(subst =, ,$(i)))'$(newline))
	@for page in $(PAGES); do rm -f '$(DESTDIR)$(PREFIX)/share/man'/"$${page#$(MAN)/}"; done
	@rm -f $(LINKS:%='$(DESTDIR)$(LIBDIR)/%')
	$(if $(PYTHON_DIR),@rm -rf '$(DESTDIR)$(PYTHON_DIR)/boxcar')
	@for dir in $(OWN_DIRS:%='$(DESTDIR)%'); do if test -d "$$dir"; then rmdir "$$dir"; fi; done

define newline


endef

# ---- Debian packages -----------------------------------------------------------------------------

deb:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' tools/install_deps.sh build deb
	@tools/build_deb.sh '$(BUILD)/deb'

test-deb:
	@CC='$(CC)' JEMALLOC='$(JEMALLOC)' tools/install_deps.sh build deb test-deb
	@$(TEST_ENV) tests/run_scripts.sh tests/deb/check.sh

# The source of jemalloc came over the network, and stays.
clean:
	@test ! -d $(BUILD) || find $(BUILD) -mindepth 1 -maxdepth 1 ! -path '$(BUILD)/jemalloc' -exec rm -rf {} +

help:
	@sed -n 's/^#? \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

#? make demo            installs what is missing, builds, trains CartPole with ten simulators
#? make test            installs what is missing, builds, tests what a user needs to know: the units, a program
#?                      against the installed library, each demo and tool once; 5 minutes
#? make check-all       all other tests: those on the simulated GPU driver, the programs from end to end, kills,
#?                      models, static checks
#? make                 builds build/bin/* and the library; installs nothing
#?
#? make deps            installs what the build needs (apt-get, by sudo if not root)
#? make unit            the Criterion tests alone; UNIT_ARGS='--filter ring/*' picks some
#? make test-reference  the tests against reference numbers alone
#? make test-gpu        the GPU tests and benches on a real GPU; a dated transcript into tests/gpu/transcripts/.
#?                      tests/gpu/run.sh and build/gpu/ also serve on a machine with a driver and nothing else
#? make switches        tests of GPU memory with a simulated driver that refuses more; no GPU needed
#? make e2e             the end-to-end tests alone
#? make python          the package boxcar of Python, in build/python; PYTHON=/usr/bin/python3
#? make wheel           a wheel of it, with the library, in build/wheel
#? make test-python     its tests
#? make sim             the engine in a simulator: schedules that a seed chooses, for SIM_S=300 seconds, and calls that
#?                      fail, for SIM_FAIL_S=60; prints the seeds. tests/sim/README.md
#? make fuzz            fuzzes what reads other workers' memory, with libFuzzer (clang): FUZZ='boot frame lease stat',
#?                      each for FUZZ_S=600 seconds; tests/fuzz/fuzz.c
#? make fuzz-replay     the corpus of these once, without clang
#? make soak            all demos for SOAK_S=3600 seconds: do memory, descriptors, arenas or /dev/shm grow, does a
#?                      payload change?
#? make mutants         puts faults into FILES (those that differ from SINCE, HEAD): do the tests notice? KEPT=all
#?                      those of tests/mutants/*.mut; see tests/mutants/README.md
#? make coverage        the lines and branches of lib/ and shm/ that the unit tests and the simulator run, a line a file
#?                      (gcov); LINES=1 prints the lines that they do not
#? make check           static checks: layers, atomics, kill steps, style, top level, documents, manual pages,
#?                      exported symbols, ABI
#? make lint            clang with warnings as errors, clang-tidy, cppcheck, clang-format
#? make size            lines of code by room, without comments and blanks
#? make man             manual pages of functions (3), words (7) and programs (1), in build/man
#? make install         into $(DESTDIR)$(PREFIX), by default /usr/local; run ldconfig afterwards. After `make python`
#?                      the package of Python too
#? make uninstall       takes the same files away
#? make deb             Debian packages in build/deb: libboxcar0, libboxcar-dev, python3-boxcar and others
#? make test-deb        builds them, runs lintian, installs them into a directory, builds the examples, removes them
#? make clean           removes what is in build/, but for jemalloc's source and what is made of it
#?
#? CONFIG=release|debug|asan|ubsan|tsan|cov|sim   each but release has a directory of its own in build/
#? CUDA=auto|0|1        GPU code: auto builds it, no toolkit needed; 1 compares it with cuda.h besides
#?                      (CUDA_HOME); 0 leaves it out. The driver is looked for when a program wants it
#? WERROR=1             warnings are errors
#? V=1                  shows the commands
#? CC, CPPFLAGS, CFLAGS, LDFLAGS   are added to the project's own
