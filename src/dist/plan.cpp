// Plans of several ranks: chunks, areas, the deal, and this rank's own problem.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <utility>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/ceil_div.hpp"
#include "core/made_for.hpp"
#include "core/problem/costs.hpp"
#include "core/text/echo.hpp"
#include "core/validate/validate.hpp"
#include "cpu/cpu.hpp"
#include "dist/chunk_set.hpp"
#include "dist/deal.hpp"
#include "dist/device.hpp"
#include "dist/greeting.hpp"
#include "dist/plan_data.hpp"

namespace attn::dist {
namespace {

// Chunks of a rank, fewer where there are many ranks, as deals are judged by all pairs of chunks.
constexpr std::int64_t kChunksOfRank = 8, kChunksOfAll = 2048;
// That a caller may ask for.
constexpr std::int64_t kMostChunks = 4096;
// Sequences whose places every rank lists.
constexpr std::int64_t kMostSequences = std::int64_t{1} << 20;
// A chunk of a long sequence: whole tiles of rows and keys of every kernel.
constexpr std::int64_t kChunkMultiple = 128;
constexpr std::int64_t kLeastChunk = 16;
// A CPU core's f32 products, and what a 40 Gbit/s link carries.
constexpr Rates kCpuRates{.flops = 5e10, .bytes = 5e9};
// A GPU's 16-bit products, and what goes through memory of the host, or from GPU to GPU.
constexpr Rates kGpuRates{.flops = 5e14, .bytes = 1e10};
constexpr double kPeerBytes = 3e11;

void refuse_features(const Problem& p, const PlanOptions& local) {
  const core::ArgumentCheck check(&p);
  const auto refuse = [&](const std::string& what, const char* accepted) {
    throw Error(ErrorCode::unsupported, fmt::format("{}; accepted by attn::dist is {} (problem {})",
                                                    what, accepted, core::echo(p)));
  };
  if (p.batch > kMostSequences) {
    refuse(fmt::format("batch is {}", p.batch), "a batch of up to 1048576");
  }
  if (p.layout_k == Layout::paged) refuse("layout_k is paged", "dense or packed");
  if (p.seqlen_prefix != 0) refuse(fmt::format("seqlen_prefix is {}", p.seqlen_prefix), "0");
  if (p.key_list != 0) refuse(fmt::format("key_list is {}", p.key_list), "0");
  if (local.batch_invariant) refuse("batch_invariant is true", "false");
  const bool on_gpu = local.device.type == DeviceType::cuda;
  const Backend own = on_gpu ? Backend::cuda : Backend::cpu;
  if (on_gpu && is_forward_alone(p)) {
    refuse(fmt::format("type_q is {}, type_k is {}, type_v is {} and type_o is {} on {}",
                       name(p.type_q), name(p.type_k), name(p.type_v), name(core::type_of_o(p)),
                       to_string(local.device)),
           "as_q, and type_o as dtype, on GPUs");
  }
  if (local.backend != Backend::automatic && local.backend != own) {
    refuse(fmt::format("backend is {} on {}", name(local.backend), to_string(local.device)),
           on_gpu ? "automatic or cuda" : "automatic or cpu");
  }
  for (const expr::Expr* e : {&p.mask, &p.score}) {
    if (e->empty()) continue;
    for (const auto& buffer : expr::buffers(*e)) {
      if (!buffer->name().starts_with(kOwnBuffers)) continue;
      check.refuse(fmt::format("buffer '{}' begins with {}; accepted are other names",
                               buffer->name(), kOwnBuffers));
    }
  }
}

std::int64_t choose_chunk(std::int64_t asked, std::int64_t rows, int ranks) {
  if (asked < 0) {
    core::ArgumentCheck().refuse(
        fmt::format("chunk is {}; accepted are 0, for a choice, and more", asked));
  }
  if (asked > 0 && core::ceil_div(rows, asked) > kMostChunks) {
    core::ArgumentCheck().refuse(
        fmt::format("chunk is {} of {} rows; accepted are chunks of which there are {} at most",
                    asked, rows, kMostChunks));
  }
  if (asked > 0) return asked;
  const std::int64_t of_rank = std::clamp<std::int64_t>(kChunksOfAll / ranks, 2, kChunksOfRank);
  const std::int64_t wanted = core::ceil_div(rows, of_rank * ranks);
  std::int64_t chunk =
      std::max<std::int64_t>(1, core::ceil_div(wanted, kChunkMultiple)) * kChunkMultiple;
  while (chunk > kLeastChunk && chunk * 2 * ranks > rows) chunk /= 2;
  return chunk;
}

// A buffer of the mask that the CPU cannot read; empty: it reads all.
std::string unreadable_buffer(const expr::Expr& mask, const expr::Bindings& bindings) {
  if (mask.empty()) return {};
  for (const auto& buffer : expr::buffers(mask)) {
    const auto bound = std::find_if(bindings.begin(), bindings.end(), [&](const auto& binding) {
      return binding.first == buffer->name();
    });
    const Tensor& t = bound != bindings.end() ? bound->second : buffer->tensor();
    if (t.data == nullptr || t.device.type != DeviceType::cpu) return buffer->name();
  }
  return {};
}

// Of K and V as they are stored.
double key_bytes(const Problem& p) {
  return static_cast<double>(p.heads_k * (core::row_bytes(core::type_of_k(p), p.head_dim) +
                                          core::row_bytes(core::type_of_v(p), p.head_dim_v)));
}
double sum_bytes(const Problem& p) {
  if (is_forward_alone(p)) return 0;
  return static_cast<double>(p.heads_k * (p.head_dim + p.head_dim_v)) *
         static_cast<double>(size_of(sum_dtype(p)));
}
double sequences_of(const Problem& p, const Side& side) {
  return side.packed ? 1 : static_cast<double>(p.batch);
}

void deal_chunks(PlanData& plan) {
  const Problem& p = plan.problem;
  const bool one_line = plan.q == plan.k;
  if (!one_line) {
    const std::size_t n = chunks(plan.cuts_k);
    const auto room = core::ceil_div(static_cast<std::int64_t>(n), plan.ranks);
    for (std::size_t k = 0; k < n; ++k) {
      plan.owner_k.push_back(static_cast<int>(static_cast<std::int64_t>(k) / room));
    }
  }
  const bool trains = !is_forward_alone(p);
  const double row_bytes =
      sequences_of(p, plan.k) * ((trains ? 2 : 1) * key_bytes(p) + sum_bytes(p));
  const double flops = core::flops_per_element(p, Phase::forward) +
                       (trains ? core::flops_per_element(p, Phase::backward) : 0);
  const DealInput input{.areas = plan.areas,
                        .ranks = plan.ranks,
                        .cuts_k = plan.cuts_k,
                        .seconds_per_element = flops / plan.rates.flops,
                        .seconds_per_row = row_bytes / plan.rates.bytes,
                        .owner_k = plan.owner_k};
  Dealt dealt = deal(input, plan.options.deal);
  plan.owner_q = std::move(dealt.owner);
  if (one_line) plan.owner_k = plan.owner_q;
  plan.reasons.push_back(fmt::format("{} chunks of {} rows, dealt {}{}", chunks(plan.cuts_q),
                                     chunks(plan.cuts_q) == 0 ? 0 : plan.cuts_q[1],
                                     name(plan.options.deal),
                                     dealt.by.empty() ? "" : ": " + dealt.by));
  if (!one_line) {
    plan.reasons.emplace_back(
        "Q and K have other lengths, so K and V are dealt apart: equal parts, in order");
  }
}

void list_rows(PlanData& plan) {
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  plan.rows.resize(ranks);
  plan.keys.resize(ranks);
  plan.gathered.resize(ranks);
  plan.area.assign(ranks, 0);
  std::vector<ChunkSet> sees(ranks, ChunkSet(chunks(plan.cuts_k)));
  for (std::size_t q = 0; q < chunks(plan.cuts_q); ++q) {
    const auto r = static_cast<std::size_t>(plan.owner_q[q]);
    append(plan.rows[r], {plan.cuts_q[q], plan.cuts_q[q + 1]});
    for (const Areas::Run& run : plan.areas.rows[q]) {
      plan.area[r] += run.area * static_cast<double>(run.size());
      sees[r].insert(run.begin, run.end);
    }
  }
  for (std::size_t k = 0; k < chunks(plan.cuts_k); ++k) {
    append(plan.keys[static_cast<std::size_t>(plan.owner_k[k])],
           {plan.cuts_k[k], plan.cuts_k[k + 1]});
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    sees[r].visit_ranges([&](std::size_t begin, std::size_t end) {
      append(plan.gathered[r], {plan.cuts_k[begin], plan.cuts_k[end]});
    });
  }
  for (RowList& list : plan.gathered) list = whole_blocks(list, plan.k);
}

// peers: ranks are GPUs that read each other's memory.
PlanData make_data(const Problem& problem, int ranks, const Options& options,
                   const attn::Context& context, bool peers) {
  if (ranks < 1) {
    core::ArgumentCheck().refuse(fmt::format("ranks is {}; accepted are 1 and more", ranks));
  }
  core::validate_problem(problem);
  core::validate_declarations(problem);
  core::validate_options(problem, Phase::forward, options.local, context);
  refuse_features(problem, options.local);
  PlanData plan;
  plan.problem = problem;
  plan.options = options;
  plan.ranks = ranks;
  const Rates& known = options.local.device.type == DeviceType::cuda ? kGpuRates : kCpuRates;
  plan.rates = {.flops = options.rates.flops > 0 ? options.rates.flops : known.flops,
                .bytes = options.rates.bytes > 0 ? options.rates.bytes
                         : peers                 ? kPeerBytes
                                                 : known.bytes};
  plan.q = side_of_q(problem, options.lengths);
  plan.k = side_of_k(problem, options.lengths);
  const std::int64_t chunk = choose_chunk(options.chunk, plan.q.rows, ranks);
  plan.cuts_q = equal_cuts(plan.q.rows, chunk);
  plan.cuts_k = plan.q == plan.k
                    ? plan.cuts_q
                    : equal_cuts(plan.k.rows, choose_chunk(options.chunk, plan.k.rows, ranks));
  const std::string unreadable = unreadable_buffer(problem.mask, options.buffers);
  if (!unreadable.empty()) {
    plan.reasons.push_back(fmt::format(
        "the mask reads '{}', which the CPU cannot read: every key counts as seen", unreadable));
  }
  plan.areas = count_areas(problem, unreadable.empty() ? problem.mask : expr::Expr{},
                           options.buffers, plan.q, plan.k, plan.cuts_q, plan.cuts_k);
  deal_chunks(plan);
  list_rows(plan);
  if (options.local.device.type == DeviceType::cuda) {
    plan.reasons.push_back(
        fmt::format("K, V and partial sums go {}; sums in f32",
                    peers ? "from GPU to GPU, beside the work" : "through memory of the host"));
  }
  return plan;
}

// The rank's own plan, by the algorithm that one rank would take for the whole.
attn::Plan plan_of(const PlanData& plan, const LocalProblem& part, Phase phase, PlanOptions options,
                   const attn::Context& context) {
  if (options.device.type == DeviceType::cuda) {
    attn::Plan local = plan_on_device(part.problem, phase, options, context);
    auto* const made = static_cast<core::MadeFor*>(local.state.get());
    made->record = core::PlanRecord(local);
    if (plan.problem.dropout.probability > 0) {
      made->places = part.places;
      made->starts_q = part.cu_q;
      made->starts_k = part.cu_k;
    }
    return local;
  }
  if (options.algorithm == Algorithm::automatic) {
    options.algorithm = cpu::plan(plan.problem, phase, options, context).algorithm;
  }
  attn::Plan local = cpu::plan(part.problem, phase, options, context);
  auto* const made = static_cast<core::MadeFor*>(local.state.get());
  made->places = part.places;
  made->record = core::PlanRecord(local);
  return local;
}

bool are_peers(const Group& group, const Options& options) {
  return group.engine().shares_memory() && group.size() <= kMostPeers &&
         options.local.device.type == DeviceType::cuda &&
         group.engine().carries(options.local.device);
}

// Groups of heads, each with its own plan where the rank has queries.
std::vector<HeadGroup> planned_groups(const PlanData& plan, int rank, Phase phase,
                                      const attn::Context& context) {
  std::vector<HeadGroup> groups = head_groups(plan, phase);
  if (plan.rows[static_cast<std::size_t>(rank)].empty()) return groups;
  const attn::Plan whole = plan_of(plan, plan.work.part, phase, plan.options.local, context);
  for (HeadGroup& group : groups) {
    LocalProblem part = plan.work.part;
    part.problem.heads_q = group.count * (plan.problem.heads_q / plan.problem.heads_k);
    part.problem.heads_k = group.count;
    group.plan =
        groups.size() == 1 ? whole : plan_of(plan, part, phase, plan.options.local, context);
    if (group.plan->num_splits == whole.num_splits || whole.num_splits > 1) continue;
    // Other groups fill the GPU: keys are not split, and bits are those of one call.
    PlanOptions unsplit = plan.options.local;
    unsplit.algorithm = Algorithm::flash_attention_2;
    group.plan = plan_of(plan, part, phase, unsplit, context);
  }
  return groups;
}

void plan_work(PlanData& plan, int rank, const attn::Context& context) {
  const auto r = static_cast<std::size_t>(rank);
  plan.work.part = local_problem(plan.problem, plan.q, plan.k, plan.rows[r], plan.gathered[r]);
  if (are_peers(*plan.group, plan.options)) {
    plan.work.forward_groups = planned_groups(plan, rank, Phase::forward, context);
    plan.work.backward_groups = planned_groups(plan, rank, Phase::backward, context);
    plan.work.memory = make_peer_memory(plan.options.local.device);
    return;
  }
  if (plan.rows[r].empty()) return;
  plan.work.forward = plan_of(plan, plan.work.part, Phase::forward, plan.options.local, context);
  if (is_forward_alone(plan.problem)) return;
  plan.work.backward = plan_of(plan, plan.work.part, Phase::backward, plan.options.local, context);
}

std::string numbers(const std::vector<std::int32_t>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

// The buffers of the mask that are counted by, with what they hold.
std::string contents(const expr::Expr& mask, const expr::Bindings& bindings) {
  if (mask.empty()) return {};
  std::string text;
  for (const auto& buffer : expr::buffers(mask)) {
    const auto bound = std::find_if(bindings.begin(), bindings.end(), [&](const auto& binding) {
      return binding.first == buffer->name();
    });
    const Tensor& t = bound != bindings.end() ? bound->second : buffer->tensor();
    std::uint64_t hash = 0;
    if (t.data != nullptr && t.device.type == DeviceType::cpu && t.contiguous()) {
      hash = hash_of({static_cast<const char*>(t.data),
                      static_cast<std::size_t>(t.size()) * size_of(t.dtype)});
    }
    text += fmt::format("{} {} {:016x} ", buffer->name(),
                        fmt::join(t.shape.begin(), t.shape.begin() + t.rank, "x"), hash);
  }
  return text;
}

void describe(const Problem& p, const Options& o, Greeting& greeting) {
  const auto text = [](const expr::Expr& e) { return e.empty() ? "" : expr::to_string(e); };
  const Lengths& n = o.lengths;
  greeting.add("dtype", name(p.dtype));
  greeting.add("types", fmt::format("q {} k {} v {} o {}", name(p.type_q), name(p.type_k),
                                    name(p.type_v), name(core::type_of_o(p))));
  greeting.add("sizes", fmt::format("b{} sq{} sk{} hq{} hk{} d{} dv{}", p.batch, p.seqlen_q,
                                    p.seqlen_k, p.heads_q, p.heads_k, p.head_dim, p.head_dim_v));
  greeting.add("layouts", fmt::format("q {} k {}", static_cast<int>(p.layout_q),
                                      static_cast<int>(p.layout_k)));
  greeting.add("mask", text(p.mask));
  greeting.add("score", text(p.score));
  greeting.add("softmax",
               fmt::format("scale {} sink {} dropout {} {} {} {}",
                           p.softmax_scale ? *p.softmax_scale : 0, p.sink, p.dropout.probability,
                           p.dropout.seed, p.dropout.offset, p.dropout.rng_state));
  greeting.add("lengths", numbers(n.cu_seqlens_q) + ";" + numbers(n.cu_seqlens_k) + ";" +
                              numbers(n.seqused_q) + ";" + numbers(n.seqused_k));
  greeting.add("options",
               fmt::format("deal {} chunk {} flops {} bytes {} algorithm {}", name(o.deal), o.chunk,
                           o.rates.flops, o.rates.bytes, name(o.local.algorithm)));
  greeting.add("buffers", contents(p.mask, o.buffers));
}

std::string identity_of(const Problem& p, const Options& o) {
  const auto text = [](const expr::Expr& e) { return e.empty() ? "" : expr::to_string(e); };
  std::uint64_t hash = hash_of(text(p.mask) + "|" + text(p.score));
  for (const auto* lengths : {&o.lengths.cu_seqlens_q, &o.lengths.cu_seqlens_k,
                              &o.lengths.seqused_q, &o.lengths.seqused_k}) {
    hash = hash_of(numbers(*lengths) + ";", hash);
  }
  return fmt::format("{:016x} {} deal {} chunk {}", hash, core::echo(to_string(p)), name(o.deal),
                     o.chunk);
}

}  // namespace

std::string_view name(Deal deal) noexcept {
  switch (deal) {
    case Deal::by_area:
      return "by_area";
    case Deal::contiguous:
      return "contiguous";
    case Deal::zigzag:
      return "zigzag";
    case Deal::striped:
      return "striped";
  }
  return "unknown";
}

Deal parse_deal(std::string_view text) {
  std::string names;
  for (const Deal deal : {Deal::by_area, Deal::contiguous, Deal::zigzag, Deal::striped}) {
    if (name(deal) == text) return deal;
    names += (names.empty() ? "" : ", ") + std::string(name(deal));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("deal '{}' is unknown; accepted are {}", core::echo(text), names));
}

RowList moved_rows(const PlanData& plan, int from, int to) {
  return common(plan.keys[static_cast<std::size_t>(from)],
                plan.gathered[static_cast<std::size_t>(to)]);
}

Plan make_plan(const Problem& problem, const Group& group, const Options& options,
               const Context& context) {
  Greeting greeting("make_plan");
  auto data = std::make_shared<PlanData>();
  try {
    describe(problem, options, greeting);
    const bool peers = are_peers(group, options);
    greeting.add("traffic", peers ? "from GPU to GPU" : "by messages");
    *data = make_data(problem, group.size(), options, context.local, peers);
    data->group = group;
    data->identity = identity_of(problem, options);
    plan_work(*data, group.rank(), context.local);
  } catch (const Error& error) {
    greeting.refuse(error.code(), error.what());
  }
  agree(group, greeting, context.timeout);
  return Plan(std::move(data));
}

Plan make_plan(const Problem& problem, int ranks, const Options& options) {
  return Plan(std::make_shared<PlanData>(make_data(problem, ranks, options, {}, false)));
}

Plan::Plan(std::shared_ptr<const PlanData> data) : data_(std::move(data)) {}

const Problem& Plan::problem() const { return data_->problem; }
int Plan::rank() const { return data_->group ? data_->group->rank() : -1; }
int Plan::ranks() const { return data_->ranks; }

namespace {

std::size_t checked(int rank, int ranks) {
  if (rank < 0 || rank >= ranks) {
    core::ArgumentCheck().refuse(fmt::format("rank is {}; accepted are 0 to {}", rank, ranks - 1));
  }
  return static_cast<std::size_t>(rank);
}

}  // namespace

const std::vector<Rows>& Plan::rows(int rank) const { return data_->rows[checked(rank, ranks())]; }
const std::vector<Rows>& Plan::keys(int rank) const { return data_->keys[checked(rank, ranks())]; }
const std::vector<Rows>& Plan::gathered(int rank) const {
  return data_->gathered[checked(rank, ranks())];
}
double Plan::area(int rank) const { return data_->area[checked(rank, ranks())]; }
const std::vector<std::string>& Plan::reasons() const { return data_->reasons; }

double Plan::balance() const {
  const double largest = *std::max_element(data_->area.begin(), data_->area.end());
  const double all = std::accumulate(data_->area.begin(), data_->area.end(), 0.0);
  return largest == 0 ? 1 : all / static_cast<double>(data_->ranks) / largest;
}

double Plan::bytes(int from, int to, Phase phase) const {
  checked(from, ranks());
  checked(to, ranks());
  if (from == to) return 0;
  const Problem& p = data_->problem;
  const double rows = sequences_of(p, data_->k);
  const auto moved = [&](int owner, int reader) {
    return rows * static_cast<double>(count(moved_rows(*data_, owner, reader)));
  };
  double bytes = moved(from, to) * key_bytes(p);
  if (phase == Phase::backward) bytes += moved(to, from) * sum_bytes(p);
  return bytes;
}

}  // namespace attn::dist
