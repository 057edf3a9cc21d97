// Refusals of what append_kv is given.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "attn/error.hpp"
#include "core/append/append.hpp"
#include "core/cache_type.hpp"
#include "core/text/enum_names.hpp"
#include "core/validate/enumerator.hpp"
#include "core/validate/validate_parts.hpp"

namespace attn {
namespace {

constexpr core::EnumName<RopePairs> kRopePairs[] = {{RopePairs::halves, "halves"},
                                                    {RopePairs::interleaved, "interleaved"}};

}  // namespace

std::string_view name(RopePairs pairs) noexcept { return core::name_of(kRopePairs, pairs); }
RopePairs parse_rope_pairs(std::string_view text) {
  return core::parse_name(kRopePairs, "rope_pairs", text);
}

namespace core {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

void check_append_problem(const ArgumentCheck& check, const AppendProblem& p) {
  check_enumerator(check, "type_k", p.type_k, "CacheType");
  check_enumerator(check, "type_v", p.type_v, "CacheType");
  check_enumerator(check, "rope_pairs", p.rope_pairs, "RopePairs");
  check_enumerator(check, "backend", p.backend, "Backend");
  if (!(p.norm_eps >= 0 && p.norm_eps <= std::numeric_limits<double>::max())) {
    check.refuse(
        fmt::format("norm_eps is {}; accepted are finite numbers of at least 0", p.norm_eps));
  }
}

// The new rows of Q, K or V. The first of them sets the sizes that all have.
void check_new_rows(const ArgumentCheck& check, AppendCall& call, const char* name,
                    const Tensor& t) {
  check.view(name, t);
  const std::int32_t rank = call.packed ? 3 : 4;
  if (t.rank != rank || !is_float(t.dtype)) {
    check.refuse(fmt::format("{} is {}; accepted are f32, bf16 and f16 {}", name, to_string(t),
                             call.packed
                                 ? "[total, heads, head_dim], as cu_seqlens is given"
                                 : "[batch, seqlen, heads, head_dim], as cu_seqlens is not given"));
  }
  check.contiguous_rows(name, t);
  if (call.count == 0) {
    call.batch = call.packed ? 0 : t.shape[0];
    call.seqlen = call.packed ? 0 : t.shape[1];
    call.rows = call.packed ? t.shape[0] : t.shape[0] * t.shape[1];
  }
  const AppendPart& first = call.all[0];
  const bool same =
      call.packed ? t.shape[0] == call.rows : t.shape[0] == call.batch && t.shape[1] == call.seqlen;
  if (!same) {
    check.refuse(fmt::format("{} is {}; accepted are the tokens of {}, {}", name, to_string(t),
                             first.name, to_string(first.from)));
  }
  const std::int64_t dim = t.shape[static_cast<std::size_t>(rank - 1)];
  if (dim < 1 || dim > kMaxHeadDim) {
    check.refuse(fmt::format("{} is {}; accepted are head sizes of 1 to {}", name, to_string(t),
                             kMaxHeadDim));
  }
}

// Null where the input is not given, and then the output is not either.
AppendPart* add_part(const ArgumentCheck& check, AppendCall& call, const char* name,
                     const Tensor& from, const Tensor& to) {
  if (!from.given()) {
    check.not_given(fmt::format("{} of the outputs", name), to, fmt::format("{} is not", name));
    return nullptr;
  }
  check_new_rows(check, call, name, from);
  AppendPart& part = call.all[call.count++];
  part.name = name;
  part.from = from;
  part.to = to;
  return &part;
}

void check_same_rows(const ArgumentCheck& check, const AppendPart* q, const AppendPart* k,
                     const AppendPart* v) {
  if (q != nullptr && k != nullptr && q->dim() != k->dim()) {
    check.refuse(fmt::format("k is {}; accepted is the head size of q, {}", to_string(k->from),
                             to_string(q->from)));
  }
  if (k != nullptr && v != nullptr && k->heads() != v->heads()) {
    check.refuse(fmt::format("v is {}; accepted are the heads of k, {}", to_string(v->from),
                             to_string(k->from)));
  }
}

// How a cache, or what Q is written to, stores its elements.
CacheType type_of_result(const ArgumentCheck& check, const char* name, CacheType asked,
                         const Tensor& t) {
  if (asked == CacheType::f64) {
    check.refuse(fmt::format("type_{} is f64; accepted are all other types of caches", name));
  }
  const CacheType type = asked == CacheType::as_q ? cache_type(t.dtype) : asked;
  if (t.dtype != storage_dtype(type) || (asked == CacheType::as_q && !is_float(t.dtype))) {
    check.refuse(fmt::format("{} of the outputs is {}; accepted are {}", name, to_string(t),
                             asked == CacheType::as_q
                                 ? std::string("f32, bf16 and f16, as no type is given")
                                 : fmt::format("elements of {}, as the type is {}",
                                               attn::name(storage_dtype(type)), attn::name(type))));
  }
  return type;
}

void check_q(const ArgumentCheck& check, AppendPart& part) {
  check.view("q of the outputs", part.to);
  part.type = type_of_result(check, "q", CacheType::as_q, part.to);
  check.tensor("q of the outputs", part.to, part.to.dtype, Shape(part.from));
  check.contiguous_rows("q of the outputs", part.to);
}

// K or V, whose cache is of `asked`. The first of them sets the sizes of the caches.
void check_cache(const ArgumentCheck& check, AppendCall& call, AppendPart& part, CacheType asked) {
  const std::string label = fmt::format("{} of the outputs", part.name);
  check.view(label, part.to);
  part.type = type_of_result(check, part.name, asked, part.to);
  if (is_blocked(part.type) && part.dim() % kCacheBlock != 0) {
    check.refuse(fmt::format("{} is {} and its type {}; accepted are head sizes that {} divides",
                             part.name, to_string(part.from), name(part.type), kCacheBlock));
  }
  if (!call.cached && part.to.rank == 4) {
    call.blocks = part.to.shape[0];
    call.block_rows = part.to.shape[1];
  }
  check.tensor(label, part.to, part.to.dtype,
               {call.paged ? call.blocks : call.batch, call.block_rows, part.heads(),
                row_size(part.type, part.dim())});
  check.contiguous_rows(label, part.to);
  part.cached = call.cached = true;
}

// part: K or V, null where it is not given.
void check_scales(const ArgumentCheck& check, const AppendCall& call, AppendPart* part,
                  const std::string& name, const Tensor& read, const Tensor& written) {
  const std::string label = "scale_" + name, label_written = label + " of the outputs";
  if (part == nullptr || !is_scaled(part->type)) {
    const std::string because = part == nullptr
                                    ? name + " is not"
                                    : fmt::format("the type of {} is {}, not e4m3, e5m2 or i8",
                                                  name, attn::name(part->type));
    check.not_given(label, read, because);
    check.not_given(label_written, written, because);
    return;
  }
  if (written.given()) {
    check.not_given(label, read, label_written + " is given");
    check.tensor(label_written, written, DType::f32, {call.blocks, call.block_rows, part->heads()});
    part->scale = written;
    part->writes_scale = true;
  } else if (read.given()) {
    check.tensor(label, read, DType::f32, {kAnySize});
    if (read.shape[0] != 1 && read.shape[0] != part->heads()) {
      check.refuse(fmt::format("{} is {}; accepted are 1 and {} elements, the heads of {}", label,
                               to_string(read), part->heads(), name));
    }
    part->scale = read;
  }
}

// part: Q or K, null where it is not given.
void check_norm(const ArgumentCheck& check, const AppendProblem& p, AppendPart* part,
                const std::string& name, const Tensor& weight) {
  const std::string label = "norm_weight_" + name;
  if (part == nullptr) return check.not_given(label, weight, name + " is not");
  if (!p.norm) return check.not_given(label, weight, "norm is false");
  part->norm = true;
  if (!weight.given()) return;
  check.view(label, weight);
  if (!is_float(weight.dtype)) {
    check.refuse(fmt::format("{} is {}; accepted are f32, bf16 and f16", label, to_string(weight)));
  }
  check.tensor(label, weight, weight.dtype, {part->dim()});
  check.contiguous(label, weight);
  part->weight = weight;
}

// What a position is counted modulo.
void check_ring(const ArgumentCheck& check, const AppendCall& call) {
  if (!call.ring || !call.cached || call.rows == 0 || call.capacity > 0) return;
  check.refuse(
      "ring is true and a sequence has 0 rows in the caches; accepted are rings of 1 row or more");
}

void check_pages(const ArgumentCheck& check, AppendCall& call, const Tensor& table) {
  call.capacity = call.block_rows;
  if (!call.paged) return;
  if (!call.cached) check.not_given("page_table", table, "k and v are not");
  check.integers("page_table", table, {call.batch, kAnySize});
  check.contiguous_rows("page_table", table);
  if (__builtin_mul_overflow(call.block_rows, table.shape[1], &call.capacity)) {
    check.refuse(fmt::format("page_table is {}; accepted are fewer than 2^63 rows in its pages",
                             to_string(table)));
  }
}

void check_rope(const ArgumentCheck& check, AppendCall& call, AppendPart* q, AppendPart* k) {
  const AppendInputs& in = call.inputs;
  if (in.cos.given() != in.sin.given()) {
    check.refuse(fmt::format("cos is {} and sin is {}; accepted are both or none",
                             to_string(in.cos), to_string(in.sin)));
  }
  const Tensor& of = in.inv_freq.given() ? in.inv_freq : in.cos;
  if (!of.given()) return;
  if (in.inv_freq.given()) {
    check.not_given("cos", in.cos, "inv_freq is given");
    check.tensor("inv_freq", in.inv_freq, DType::f32, {kAnySize});
    check.contiguous("inv_freq", in.inv_freq);
  } else {
    check.tensor("cos", in.cos, DType::f32, {kAnySize, kAnySize});
    check.tensor("sin", in.sin, DType::f32, {in.cos.shape[0], in.cos.shape[1]});
    check.contiguous_rows("cos", in.cos);
    check.contiguous_rows("sin", in.sin);
  }
  const std::int64_t pairs = of.shape[static_cast<std::size_t>(of.rank - 1)];
  for (AppendPart* const part : {q, k}) {
    if (part == nullptr) continue;
    part->rope = true;
    if (pairs < 1 || pairs > part->dim() / 2) {
      check.refuse(fmt::format("{} is {}; accepted are 1 to {} pairs of columns of {}, {}",
                               in.inv_freq.given() ? "inv_freq" : "cos", to_string(of),
                               part->dim() / 2, part->name, to_string(part->from)));
    }
    call.rope_dim = 2 * pairs;
  }
}

void check_positions(const ArgumentCheck& check, const AppendCall& call) {
  const AppendInputs& in = call.inputs;
  const Shape of_rows = call.packed ? Shape{call.rows} : Shape{call.batch, call.seqlen};
  if (in.seqused.given()) check.integers("seqused", in.seqused, {call.batch});
  if (in.cache_seqlens.given()) {
    check.not_given("positions", in.positions, "cache_seqlens is given");
    check.integers("cache_seqlens", in.cache_seqlens, {call.batch});
  } else if (in.positions.given()) {
    check.integers("positions", in.positions, of_rows);
  } else if (call.cached || (call.rope_dim > 0 && !in.rope_positions.given())) {
    check.refuse(
        fmt::format("cache_seqlens and positions are not given; accepted is one of them, as {}",
                    call.cached ? "rows go to a cache" : "rows are rotated by their positions"));
  }
  if (call.rope_dim == 0) {
    check.not_given("rope_positions", in.rope_positions, "there is no rotary embedding");
  } else if (in.rope_positions.given()) {
    check.integers("rope_positions", in.rope_positions, of_rows);
  }
}

void check_overlap(const ArgumentCheck& check, const AppendCall& call, const AppendOutputs& out) {
  const AppendInputs& in = call.inputs;
  const bool in_place = in.q.given() && in.q.data == out.q.data && in.q.dtype == out.q.dtype &&
                        in.q.strides == out.q.strides;
  const auto read = named(in);
  const auto written = named(out);
  const std::span<const NamedTensor> reads(read), writes(written);
  check.disjoint(writes, reads.first(reads.size() - 1));
  check.disjoint(in_place ? writes.first(writes.size() - 1) : writes, reads.last(1));
}

}  // namespace

std::array<NamedTensor, 16> named(const AppendInputs& in) {
  return {{{"k", in.k},
           {"v", in.v},
           {"cu_seqlens", in.cu_seqlens},
           {"seqused", in.seqused},
           {"cache_seqlens", in.cache_seqlens},
           {"positions", in.positions},
           {"rope_positions", in.rope_positions},
           {"page_table", in.page_table},
           {"inv_freq", in.inv_freq},
           {"cos", in.cos},
           {"sin", in.sin},
           {"norm_weight_q", in.norm_weight_q},
           {"norm_weight_k", in.norm_weight_k},
           {"scale_k", in.scale_k},
           {"scale_v", in.scale_v},
           {"q", in.q}}};
}
std::array<NamedTensor, 5> named(const AppendOutputs& out) {
  return {{{"k of the outputs", out.k},
           {"v of the outputs", out.v},
           {"scale_k of the outputs", out.scale_k},
           {"scale_v of the outputs", out.scale_v},
           {"q of the outputs", out.q}}};
}

AppendCall check_append(const AppendProblem& p, const AppendInputs& in, const AppendOutputs& out) {
  const Tensor& first = in.q.given() ? in.q : in.k.given() ? in.k : in.v;
  const ArgumentCheck check(nullptr, first.device);
  check_append_problem(check, p);
  if (!first.given()) {
    check.refuse("q, k and v are not given; accepted are one or more of them");
  }
  AppendCall call;
  call.inputs = in;
  call.ring = p.ring;
  call.packed = in.cu_seqlens.given();
  call.paged = in.page_table.given();
  call.norm_eps = p.norm_eps;
  call.interleaved = p.rope_pairs == RopePairs::interleaved;
  AppendPart* const q = add_part(check, call, "q", in.q, out.q);
  AppendPart* const k = add_part(check, call, "k", in.k, out.k);
  AppendPart* const v = add_part(check, call, "v", in.v, out.v);
  check_same_rows(check, q, k, v);
  if (call.packed) {
    call.batch = in.cu_seqlens.rank == 1 ? in.cu_seqlens.shape[0] - 1 : 0;
    check_cu_seqlens(check, "cu_seqlens", in.cu_seqlens, call.batch, call.rows);
  }
  if (q != nullptr) check_q(check, *q);
  if (k != nullptr) check_cache(check, call, *k, p.type_k);
  if (v != nullptr) check_cache(check, call, *v, p.type_v);
  check_pages(check, call, in.page_table);
  check_ring(check, call);
  check_norm(check, p, q, "q", in.norm_weight_q);
  check_norm(check, p, k, "k", in.norm_weight_k);
  check_rope(check, call, q, k);
  if (q != nullptr) q->hadamard = p.hadamard;
  if (k != nullptr) k->hadamard = p.hadamard;
  if (v != nullptr) v->hadamard = p.hadamard_v;
  check_scales(check, call, k, "k", in.scale_k, out.scale_k);
  check_scales(check, call, v, "v", in.scale_v, out.scale_v);
  check_positions(check, call);
  check_overlap(check, call, out);
  return call;
}

}  // namespace core
}  // namespace attn
