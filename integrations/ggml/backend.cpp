// The tables of functions by which ggml finds and runs a backend. The device is of type ACCEL: a
// host such as llama.cpp puts it before the CPU, which does what this refuses, and nothing is
// copied between them.
#include <cstring>
#include <new>
#include <string>

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "openmp_executor.hpp"
#include "operation.hpp"

namespace attn_ggml {
namespace {

constexpr const char* kName = "attn";

// Of a backend, which one thread uses at a time.
struct State {
  attn::Context context{.executor = make_executor(GGML_DEFAULT_N_THREADS)};
};

State& state_of(ggml_backend_t backend) { return *static_cast<State*>(backend->context); }

bool moves_nothing(ggml_op op) {
  return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW ||
         op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  for (int i = 0; i < graph->n_nodes; ++i) {
    const ggml_tensor& op = *graph->nodes[i];
    if (moves_nothing(op.op) || (op.flags & GGML_TENSOR_FLAG_COMPUTE) == 0) continue;
    if (const std::string why = refusal(op); !why.empty()) {
      GGML_LOG_ERROR("attn: %s: %s\n", ggml_op_desc(&op), why.c_str());
      return GGML_STATUS_FAILED;
    }
    try {
      run(describe(op), state_of(backend).context);
    } catch (const attn::Error& error) {
      GGML_LOG_ERROR("attn: %s\n", error.what());
      return error.code() == attn::ErrorCode::out_of_memory ? GGML_STATUS_ALLOC_FAILED
                                                            : GGML_STATUS_FAILED;
    } catch (const std::bad_alloc&) {
      return GGML_STATUS_ALLOC_FAILED;
    }
  }
  return GGML_STATUS_SUCCESS;
}

void set_n_threads(ggml_backend_t backend, int threads) {
  attn::Context& context = state_of(backend).context;
  if (threads >= 1 && threads != context.executor->concurrency()) {
    context.executor = make_executor(threads);
  }
}

ggml_backend_reg_t registry();

ggml_backend_t init_backend(ggml_backend_dev_t device, const char* /*params*/) {
  static ggml_guid guid = {0x61, 0x74, 0x74, 0x6e, 0x2e, 0x63, 0x70, 0x70,
                           0x67, 0x67, 0x6d, 0x6c, 0x00, 0x00, 0x00, 0x01};
  ggml_backend_i calls{};
  calls.get_name = [](ggml_backend_t) { return kName; };
  calls.free = [](ggml_backend_t backend) {
    delete &state_of(backend);
    delete backend;
  };
  calls.graph_compute = compute;
  return new ggml_backend{.guid = &guid, .iface = calls, .device = device, .context = new State};
}

void device_memory(ggml_backend_dev_t /*device*/, std::size_t* free, std::size_t* total) {
  *free = *total = 0;  // it has none of its own
}

void device_properties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  *properties = {};
  properties->name = device->iface.get_name(device);
  properties->description = device->iface.get_description(device);
  properties->type = device->iface.get_type(device);
  properties->caps.buffer_from_host_ptr = true;
}

ggml_backend_device make_device() {
  ggml_backend_device_i calls{};
  calls.get_name = [](ggml_backend_dev_t) { return kName; };
  calls.get_description = [](ggml_backend_dev_t) { return "attention of attn.cpp on the CPU"; };
  calls.get_memory = device_memory;
  calls.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; };
  calls.get_props = device_properties;
  calls.init_backend = init_backend;
  calls.get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); };
  calls.buffer_from_host_ptr = [](ggml_backend_dev_t, void* data, std::size_t size, std::size_t) {
    return ggml_backend_cpu_buffer_from_ptr(data, size);
  };
  calls.supports_op = [](ggml_backend_dev_t, const ggml_tensor* op) {
    return moves_nothing(op->op) || refusal(*op).empty();
  };
  calls.supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return ggml_backend_buft_is_host(type);
  };
  return {.iface = calls, .reg = registry(), .context = nullptr};
}

ggml_backend_reg make_registry() {
  ggml_backend_reg_i calls{};
  calls.get_name = [](ggml_backend_reg_t) { return kName; };
  calls.get_device_count = [](ggml_backend_reg_t) -> std::size_t { return 1; };
  calls.get_device = [](ggml_backend_reg_t, std::size_t) -> ggml_backend_dev_t {
    static ggml_backend_device device = make_device();
    return &device;
  };
  calls.get_proc_address = [](ggml_backend_reg_t, const char* name) -> void* {
    const bool known = std::strcmp(name, "ggml_backend_set_n_threads") == 0;
    return known ? reinterpret_cast<void*>(set_n_threads) : nullptr;
  };
  return {.api_version = GGML_BACKEND_API_VERSION, .iface = calls, .context = nullptr};
}

ggml_backend_reg_t registry() {
  static ggml_backend_reg made = make_registry();
  return &made;
}

}  // namespace
}  // namespace attn_ggml

GGML_BACKEND_DL_IMPL(attn_ggml::registry)
