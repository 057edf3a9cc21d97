// The C interface of attn.cpp, C11 and C++: docs/c.md has a program. What a call computes, which
// shapes its tensors have and how accurate it is, is said where the C++ interface declares the
// same: attn/run.hpp, problem.hpp, plan.hpp, context.hpp and matmul.hpp. What holds for every
// function here:
//
// - It returns a status. ATTN_OK is 0; after any other, attn_last_error() has a sentence that names
//   the argument, its value and what is accepted. No C++ exception leaves a function.
// - A refused call (invalid_argument, unsupported, unavailable, out_of_memory) has written nothing:
//   no tensor, no handle, no structure, no text.
// - Memory of tensors, structures and texts is the caller's, and is read while the call runs. What
//   outlives it says so below. Handles (attn_plan, attn_expr, attn_executor, attn_matmul_plan) are
//   the caller's until given to their ..._free, which takes a null pointer too.
// - Functions may be called from several threads at once, also with the same handle, but for
//   ..._free, which must be the last use of it.
// - A structure begins with `struct_size`, which is sizeof of it where the program was compiled.
//   Zero is "not given" in every other member, so that {.struct_size = sizeof(attn_problem)} is a
//   whole one. A newer library takes the shorter structures of older programs, whose missing
//   members are zero; an older one takes a longer structure when what it does not know is zero.
//   Structures that are written (attn_plan_info, attn_machine) are written as far as the caller's
//   size goes. Integers that stand for a boolean are 0 or 1.
// - Names of backends, algorithms and the like are texts as C++ spells the enumerators; a null
//   pointer is the automatic choice.
#ifndef ATTN_ATTN_H_
#define ATTN_ATTN_H_

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): C
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#include "attn/version.hpp"

// As attn/export.hpp has it: an archive shows nothing to the users of a shared library that takes
// it in.
#if defined(ATTN_STATIC) || !defined(__GNUC__) || defined(_WIN32)
#define ATTN_C_API
#else
#define ATTN_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------- errors

// attn::ErrorCode with ATTN_OK before it.
typedef int32_t attn_status;
enum {
  ATTN_OK = 0,
  ATTN_INVALID_ARGUMENT = 1,  // an argument contradicts its contract; nothing was written
  ATTN_UNSUPPORTED = 2,       // well-formed, but no kernel takes it; nothing was written
  ATTN_UNAVAILABLE = 3,       // this machine lacks what was asked for; nothing was written
  ATTN_OUT_OF_MEMORY = 4,     // memory could not be allocated; nothing was written
  ATTN_DEVICE = 5,    // a device's driver refused a call or reports an error of earlier work;
                      // outputs may be written in part
  ATTN_IO = 6,        // a file could not be read or written
  ATTN_INTERNAL = 7,  // a broken invariant of the library: please report it
};

// What the last call of this thread that failed said; "" before the first. Calls that succeed leave
// it. Valid until the thread's next call that fails, or its end. Never null.
ATTN_C_API const char* attn_last_error(void);
// "ok", "invalid_argument", ...; "unknown" for other numbers. Never freed.
ATTN_C_API const char* attn_status_name(attn_status status);
// The library's own ATTN_VERSION_STRING. Never freed.
ATTN_C_API const char* attn_version(void);

// --------------------------------------------------------------------------------------- tensors

// A view of memory in the layout of DLPack's DLTensor; where <dlpack/dlpack.h> was included before
// this header, it is that type. Where it is included later, or not at all, a pointer to a DLTensor
// may be cast: the bytes mean the same.
#if defined(DLPACK_VERSION) || defined(DLPACK_MAJOR_VERSION)
typedef DLDevice attn_device;
typedef DLDataType attn_dtype;
typedef DLTensor attn_tensor;
#else
// Where memory lies. device_type: 1 is the CPU, whose device_id is 0; 2 is CUDA, whose device_id
// counts devices as the driver does. 3 (pinned memory) counts as 1, 13 (managed memory) as 2.
// {0, 0} is "not given".
typedef struct attn_device {
  int32_t device_type;
  int32_t device_id;
} attn_device;

// The type of an element, lanes 1. f16, f32, f64: code 2, bits 16, 32, 64. bf16: code 4, bits 16.
// i32, i64: code 0. u8: code 1 or 6, bits 8. {0, 0, 0} is "not given".
typedef struct attn_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} attn_dtype;

// Element (i0, i1, ...) lies at data + byte_offset + size of an element * sum(ik * strides[k]).
typedef struct attn_tensor {
  void* data;  // of inputs never written
  attn_device device;
  int32_t ndim;  // 0 to 4; 0 is a scalar, as of expressions
  attn_dtype dtype;
  int64_t* shape;    // ndim sizes; may be null where ndim is 0
  int64_t* strides;  // ndim distances in elements; null: row-major without gaps
  uint64_t byte_offset;
} attn_tensor;
#endif

// A tensor for the name that an expression reads it by. This structure has no size and never
// changes. A scalar is a tensor of no dimensions, i32 or f32, in memory of the CPU.
typedef struct attn_named_tensor {
  const char* name;
  const attn_tensor* tensor;
} attn_named_tensor;

// ----------------------------------------------------------------------------------- expressions

// A mask or a change of scores (attn/expr.hpp, docs/expressions.md).
typedef struct attn_expr attn_expr;

// *expr <- what the text says, as "query >= key && query - key < width". buffers: the tensors and
// scalars that it may read, by name; `data` may be null, and the tensor then comes with each call
// (attn_inputs.buffers). Memory behind `data` is not copied: it must live as long as calls read it.
ATTN_C_API attn_status attn_expr_parse(const char* text, const attn_named_tensor* buffers,
                                       size_t num_buffers, attn_expr** expr);
// The text of an expression, as all functions give texts: at most `capacity` bytes are written, the
// last of them 0, and *length <- bytes of the whole text without that 0. So a capacity of 0, with
// which `text` may be null, asks for the length. `length` may be null.
ATTN_C_API attn_status attn_expr_text(const attn_expr* expr, char* text, size_t capacity,
                                      size_t* length);
ATTN_C_API void attn_expr_free(attn_expr* expr);

// -------------------------------------------------------------------------------------- problems

// attn::Layout: how sequences lie in a tensor.
enum {
  ATTN_DENSE = 0,   // [batch, seqlen, heads, head_dim]
  ATTN_PACKED = 1,  // [total, heads, head_dim], with cu_seqlens
  ATTN_PAGED = 2,   // K and V only: [pages, page_size, heads, head_dim], with page_table
};

// attn::Problem: what is to be computed. By text, by members, or both: the text is read first, and
// what a member says beside it must not contradict it. Masks of both must hold, and `score` is
// applied to what the text's score gives. Sizes that neither says are those of the tensors.
typedef struct attn_problem {
  uint64_t struct_size;
  const char* text;  // a descriptor, as "causal_softcap30" (docs/descriptors.md)
  int64_t batch;
  int64_t seqlen_q;
  int64_t seqlen_k;
  int64_t heads_q;
  int64_t heads_k;
  int64_t head_dim;
  int64_t head_dim_v;
  attn_dtype dtype;  // of Q, K, V, O: f32, bf16, f16, f64
  int32_t layout_q;  // ATTN_DENSE, ATTN_PACKED
  int32_t layout_k;  // and ATTN_PAGED
  int32_t paged_prefix;
  int64_t page_size;
  int64_t seqlen_prefix;
  int64_t key_list;
  double softmax_scale;    // 0: 1 / sqrt(head_dim); a scale of zero is the text "scale0"
  const attn_expr* mask;   // boolean
  const attn_expr* score;  // float32
  double dropout;          // the probability
  uint64_t seed;
  uint64_t offset;
  int32_t sink;
  int32_t rng_state;  // seed and offset come with the call, in attn_inputs.rng_state
} attn_problem;

// The descriptor of a problem, as attn_expr_text gives texts. A null pointer is plain attention.
ATTN_C_API attn_status attn_problem_text(const attn_problem* problem, char* text, size_t capacity,
                                         size_t* length);

// ------------------------------------------------------------------------------ where work is done

// attn::Executor: threads that run the work of a call on a CPU.
typedef struct attn_executor attn_executor;

// *executor <- a pool of `threads` workers, the caller of a function being one of them; 0: one for
// each CPU that this process may run on.
ATTN_C_API attn_status attn_executor_make(int32_t threads, attn_executor** executor);

// Threads of the caller's own.
typedef struct attn_executor_functions {
  uint64_t struct_size;
  void* data;           // handed to parallel_for; must live as long as the executor
  int32_t concurrency;  // workers that may call a body at the same time, 1 and up
  int32_t reserved;     // 0
  // Calls body(body_data, index, worker) once for each index in [0, count), with 0 <= worker <
  // concurrency, no two at the same time with the same worker, and returns when all are done.
  // Indices start in increasing order. May be called from several threads at once and from within a
  // body; such a loop may run on its caller alone. `body` does not throw.
  void (*parallel_for)(void* data, int64_t count,
                       void (*body)(void* body_data, int64_t index, int32_t worker),
                       void* body_data);
} attn_executor_functions;
// *executor <- one that uses these functions, which are copied.
ATTN_C_API attn_status attn_executor_wrap(const attn_executor_functions* functions,
                                          attn_executor** executor);
// No call may be using it.
ATTN_C_API void attn_executor_free(attn_executor* executor);

// The number of workers of the executor that calls use which name none (attn/context.hpp).
ATTN_C_API attn_status attn_set_num_threads(int32_t threads);
ATTN_C_API attn_status attn_get_num_threads(int32_t* threads);

// attn::Context. A null pointer in its place is one of zeros. It may serve calls at the same time,
// but for its workspace.
typedef struct attn_context {
  uint64_t struct_size;
  const attn_executor* executor;  // null: that of the process
  const char* isa;                // an instruction set of the CPU, as "avx2"
  // Receives warnings, one sentence each; perhaps from a thread that compiles for the call.
  void (*log)(void* log_data, const char* message);
  void* log_data;
  void* stream;                  // a GPU's: CUstream or cudaStream_t
  const attn_tensor* workspace;  // u8, of attn_plan_info.workspace_bytes at least, aligned to 128
                                 // bytes; a GPU needs it, on a CPU it is optional
} attn_context;

// attn::Machine, and the best instruction set that it has.
typedef struct attn_machine {
  uint64_t struct_size;
  char cpu[64];  // the model's name, cut where it is longer; ends with 0
  int64_t cpus;  // that this process may run on
  int64_t l1d_bytes;
  int64_t l2_bytes;
  int64_t l3_bytes;
  int64_t memory_bytes;  // sizes are 0 where they are unknown
  const char* isa;       // never freed
} attn_machine;
ATTN_C_API attn_status attn_describe_machine(attn_machine* machine);

// --------------------------------------------------------------------------------------- attention

// attn::Inputs; shapes are said in attn/run.hpp. Null: not given. q, k and v are needed.
typedef struct attn_inputs {
  uint64_t struct_size;
  const attn_tensor* q;
  const attn_tensor* k;
  const attn_tensor* v;
  const attn_tensor* cu_seqlens_q;
  const attn_tensor* cu_seqlens_k;
  const attn_tensor* seqused_q;
  const attn_tensor* seqused_k;
  const attn_tensor* page_table;
  const attn_tensor* prefix_k;
  const attn_tensor* prefix_v;
  const attn_tensor* prefix_page_table;
  const attn_tensor* key_list;
  const attn_tensor* sink;
  const attn_tensor* rng_state;
  const attn_named_tensor* buffers;  // what mask and score read, of this call
  uint64_t num_buffers;
  const attn_tensor* scale_k;  // of caches in 8-bit types, as the text "kv(i8)" says them
  const attn_tensor* scale_v;
  const attn_tensor* scale_q;  // of Q in 8 bits, as the text "q(e4m3)" or "q(e5m2)" says it
} attn_inputs;

// attn::Outputs. Every element of what is given is written, but in backward calls, which read them.
typedef struct attn_outputs {
  uint64_t struct_size;
  const attn_tensor* o;
  const attn_tensor* lse;        // optional in forward calls
  const attn_tensor* max_logit;  // [heads_q], the largest score of each head; optional, of forward
                                 // calls alone
} attn_outputs;

// attn::OutputGradients: of a loss, with respect to O and LSE. Read.
typedef struct attn_output_gradients {
  uint64_t struct_size;
  const attn_tensor* o;
  const attn_tensor* lse;  // optional
} attn_output_gradients;

// attn::Gradients. Each is optional, and every element of what is given is written.
typedef struct attn_gradients {
  uint64_t struct_size;
  const attn_tensor* dq;
  const attn_tensor* dk;
  const attn_tensor* dv;
  const attn_tensor* dsink;
  const attn_named_tensor* buffers;  // f32, for buffers that the score reads
  uint64_t num_buffers;
} attn_gradients;

// attn::PlanOptions.
typedef struct attn_options {
  uint64_t struct_size;
  const char* backend;    // "cpu", "cuda", "reference"
  const char* algorithm;  // "flash_attention_2", ...
  const char* kernel;     // of a GPU
  attn_device device;     // of a plan without tensors; calls take that of q
  int32_t threads;        // that a call uses at most; 0: as many as there is work for
  int32_t deterministic;
  int32_t batch_invariant;
  int32_t reserved;  // 0
} attn_options;

// Writes outputs->o and, where they are given, outputs->lse and max_logit. Finds the plan of an
// earlier call like it (docs/plan-cache.md). Null pointers in the place of problem, options and
// context are those of zeros.
ATTN_C_API attn_status attn_forward(const attn_problem* problem, const attn_inputs* inputs,
                                    const attn_outputs* outputs, const attn_options* options,
                                    const attn_context* context);
// Writes the gradients that are given, from those of O and LSE, and from O and LSE as the forward
// call wrote them.
ATTN_C_API attn_status attn_backward(const attn_problem* problem, const attn_inputs* inputs,
                                     const attn_outputs* outputs,
                                     const attn_output_gradients* d_outputs,
                                     const attn_gradients* gradients, const attn_options* options,
                                     const attn_context* context);

// attn::Phase.
enum { ATTN_FORWARD = 0, ATTN_BACKWARD = 1 };

// attn::Plan: made once, run many times, also at the same time. It copies the problem with its
// expressions, and remembers memory that these hold (attn_expr_parse), no other tensor.
typedef struct attn_plan attn_plan;

// *plan <- the plan of a problem. inputs: tensors from which sizes, dtype and device are taken that
// the problem and options leave out; null where nothing is.
ATTN_C_API attn_status attn_plan_make(const attn_problem* problem, int32_t phase,
                                      const attn_inputs* inputs, const attn_options* options,
                                      const attn_context* context, attn_plan** plan);
ATTN_C_API attn_status attn_run_forward(const attn_plan* plan, const attn_inputs* inputs,
                                        const attn_outputs* outputs, const attn_context* context);
ATTN_C_API attn_status attn_run_backward(const attn_plan* plan, const attn_inputs* inputs,
                                         const attn_outputs* outputs,
                                         const attn_output_gradients* d_outputs,
                                         const attn_gradients* gradients,
                                         const attn_context* context);
ATTN_C_API void attn_plan_free(attn_plan* plan);

// Members of attn::Plan. Texts live as long as the plan.
typedef struct attn_plan_info {
  uint64_t struct_size;
  int64_t workspace_bytes;  // of attn_context.workspace
  int64_t tasks;
  double bytes;  // inputs and outputs, each moved once
  int64_t batch;
  int64_t seqlen_q;
  int64_t seqlen_k;
  int64_t heads_q;
  int64_t heads_k;
  int64_t head_dim;
  int64_t head_dim_v;
  attn_device device;
  int32_t phase;
  int32_t threads;
  int32_t num_splits;
  int32_t block_q;
  int32_t block_k;
  int32_t reserved;  // 0
  const char* backend;
  const char* algorithm;
  const char* isa;
  const char* kernel;  // of a GPU; "" elsewhere
} attn_plan_info;
ATTN_C_API attn_status attn_plan_get(const attn_plan* plan, attn_plan_info* info);
// Lines for people: what runs the problem, and why. As attn_expr_text gives texts.
ATTN_C_API attn_status attn_plan_text(const attn_plan* plan, char* text, size_t capacity,
                                      size_t* length);
// *flops <- useful floating-point operations of a call; counted anew each time, in milliseconds.
ATTN_C_API attn_status attn_plan_flops(const attn_plan* plan, double* flops);

// Writes result->o and, where it is given, result->lse: partial results over disjoint sets of keys
// as one (attn::merge). parts: count pointers, to outputs of forward calls with their LSE, on a GPU
// up to 32; the result may be one of the parts.
ATTN_C_API attn_status attn_merge(const attn_outputs* const* parts, size_t count,
                                  const attn_outputs* result, const attn_context* context);

// -------------------------------------------------------------------------------------- caches

// attn::AppendInputs; shapes are said in attn/append_kv.hpp. Null: not given. One or more of q, k
// and v are needed.
typedef struct attn_append_inputs {
  uint64_t struct_size;
  const attn_tensor* q;
  const attn_tensor* k;
  const attn_tensor* v;
  const attn_tensor* cu_seqlens;
  const attn_tensor* cache_seqlens;
  const attn_tensor* positions;
  const attn_tensor* rope_positions;
  const attn_tensor* page_table;
  const attn_tensor* inv_freq;
  const attn_tensor* cos;
  const attn_tensor* sin;
  const attn_tensor* norm_weight_q;
  const attn_tensor* norm_weight_k;
  const attn_tensor* scale_k;
  const attn_tensor* scale_v;
  const attn_tensor* seqused;
} attn_append_inputs;

// attn::AppendOutputs. Of the caches only the rows that the positions name are written.
typedef struct attn_append_outputs {
  uint64_t struct_size;
  const attn_tensor* q;
  const attn_tensor* k;
  const attn_tensor* v;
  const attn_tensor* scale_k;
  const attn_tensor* scale_v;
} attn_append_outputs;

// attn::AppendProblem.
typedef struct attn_append_options {
  uint64_t struct_size;
  const char* type_k;  // "q8_0", "i8", ...; null: the floats of the cache's dtype
  const char* type_v;
  const char* rope_pairs;  // "halves" (null), "interleaved"
  const char* backend;
  double norm_eps;  // 0: 1e-6
  int32_t ring;
  int32_t norm;
  int32_t hadamard;
  int32_t hadamard_v;
} attn_append_options;

// Writes new rows of K and V to their places in the caches, and of Q to outputs->q, with what the
// options ask for on the way. A null pointer in the place of options is one of zeros.
ATTN_C_API attn_status attn_append_kv(const attn_append_inputs* inputs,
                                      const attn_append_outputs* outputs,
                                      const attn_append_options* options,
                                      const attn_context* context);

// --------------------------------------------------------------------------------- matrix products

// attn::MatmulInputs; shapes are said in attn/matmul.hpp. a and b are needed.
typedef struct attn_matmul_inputs {
  uint64_t struct_size;
  const attn_tensor* a;     // [m, k] or [batch, m, k]
  const attn_tensor* b;     // [k, n] or [batch, k, n]; of weights [n, k] with exchanged strides
  const attn_tensor* bias;  // [n]
  const attn_tensor* scale_a;
  const attn_tensor* scale_b;
  const attn_tensor* block_mask;
} attn_matmul_inputs;

typedef struct attn_matmul_options {
  uint64_t struct_size;
  const char* activation;  // "relu", "gelu", "gelu_tanh", "silu"
  const char* backend;
  const char* rung;
  const char* float8;  // what a and b of u8 hold: "e4m3", "e5m2"
  const char* masked;  // what block_mask leaves blocks out of: "b", "c"
  int64_t block;       // rows and columns of such a block
  int32_t accumulate;  // the product is added to what C holds
  int32_t threads;
  const char* format_b;  // blocks of a b of u8: "q8_0", "q4_0", "q4_1"
} attn_matmul_options;

// C <- activation(A B + bias). Finds the plan of an earlier call like it. A null pointer in the
// place of options is one of zeros.
ATTN_C_API attn_status attn_matmul(const attn_matmul_inputs* inputs, const attn_tensor* c,
                                   const attn_matmul_options* options, const attn_context* context);

// attn::MatmulPlan, of products of tensors like these, whose elements are not read.
typedef struct attn_matmul_plan attn_matmul_plan;
ATTN_C_API attn_status attn_matmul_plan_make(const attn_matmul_inputs* inputs, const attn_tensor* c,
                                             const attn_matmul_options* options,
                                             const attn_context* context, attn_matmul_plan** plan);
ATTN_C_API attn_status attn_run_matmul(const attn_matmul_plan* plan,
                                       const attn_matmul_inputs* inputs, const attn_tensor* c,
                                       const attn_context* context);
// *bytes <- what attn_context.workspace must have; on a CPU an upper bound of what is used.
ATTN_C_API attn_status attn_matmul_plan_workspace_bytes(const attn_matmul_plan* plan,
                                                        int64_t* bytes);
ATTN_C_API attn_status attn_matmul_plan_text(const attn_matmul_plan* plan, char* text,
                                             size_t capacity, size_t* length);
ATTN_C_API void attn_matmul_plan_free(attn_matmul_plan* plan);

#ifdef __cplusplus
}
#endif

#endif  // ATTN_ATTN_H_
