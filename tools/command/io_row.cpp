#include "command/io_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "command/command.hpp"
#include "command/timing.hpp"
#include "core/cache_type.hpp"
#include "core/text/echo.hpp"
#include "traffic/cache.hpp"
#include "traffic/model.hpp"

namespace attn::command {
namespace {

constexpr std::int64_t kLineBytes = 64;
// Some 30 s of simulation.
constexpr double kMostLineAccesses = 3e9;
// Some 7 s of counting for an algorithm.
constexpr double kMostTiles = 1e8;
// Pairs of a sequence and a K, V head, which the plan of the CPU visits one by one: some
// 3 s and 300 MB.
constexpr double kMostPairs = 1e6;
// Tiles of all pairs that the plan of the CPU visits, of some 20 ns each: some 10 s for all
// algorithms, and more where the mask is hard to bound.
constexpr double kMostPlanTiles = 3e8;
constexpr double kPlanRows = 16, kPlanKeys = 64;  // of a tile, at most

bool has_pass(const IoChoice& choice) {
  for (const Algorithm algorithm : algorithms(choice.phase)) {
    if (algorithm == choice.algorithm) return true;
  }
  return false;
}

void add_plan(IoRow& row, const Problem& problem) {
  const IoChoice& choice = row.choice;
  if (!choice.arch.empty()) {
    if (choice.algorithm == Algorithm::memory_efficient) {
      row.no_plan = fmt::format("the cuda backend has no {} pass of {}", name(choice.phase),
                                name(choice.algorithm));
      return;
    }
    try {
      row.plan =
          traffic::cuda_plan_traffic(problem, choice.phase, cuda::parse_arch(choice.arch),
                                     choice.multiprocessors, choice.algorithm, choice.kernel);
    } catch (const Error& error) {
      if (choice.phase == Phase::forward || error.code() != ErrorCode::unsupported) throw;
      row.no_plan = error.what();  // no such pass, or its kernel has no count
    }
    return;
  }
  if (!has_pass(choice)) {
    row.no_plan = fmt::format("the cpu backend has no {} pass of {}", name(choice.phase),
                              name(choice.algorithm));
    return;
  }
  if (problem.dtype == DType::f64) {
    row.no_plan = "the cpu backend's passes in f64 have no count";
    return;
  }
  const auto batch = static_cast<double>(problem.batch);
  const double rows =
      batch * static_cast<double>(problem.heads_q) * static_cast<double>(problem.seqlen_q);
  const double tiles = std::max(batch * static_cast<double>(problem.heads_k), rows / kPlanRows) *
                       std::ceil(static_cast<double>(problem.seqlen_k) / kPlanKeys);
  if (tiles > kMostPlanTiles) {
    row.no_plan = fmt::format(
        "{:.2g} tiles of {:.0f} rows and {:.0f} keys would take long; "
        "counted are at most {:.2g}",
        tiles, kPlanRows, kPlanKeys, kMostPlanTiles);
    return;
  }
  // One thread: more divide the last tasks, so that the count would depend on the machine.
  row.plan = traffic::cpu_plan_traffic(
      make_plan(problem, choice.phase, {.algorithm = choice.algorithm, .threads = 1}));
}

// Heads that are counted by themselves.
double counted_heads(const Problem& problem) {
  double heads = 0;
  traffic::for_each_head(problem, [&](std::int64_t, std::int64_t, double) { ++heads; });
  return heads;
}

traffic::Blocks blocks_of(const Problem& problem, const IoChoice& choice) {
  traffic::Blocks blocks =
      traffic::paper_blocks(problem, choice.phase, choice.algorithm, choice.fast_bytes);
  if (choice.block_q > 0) blocks.q = choice.block_q;
  if (choice.block_k > 0) blocks.k = choice.block_k;
  return blocks;
}

void simulate(IoRow& row, const Problem& problem) {
  const IoChoice& choice = row.choice;
  const double lines =
      counted_heads(problem) *
      traffic::line_accesses(problem, choice.phase, choice.algorithm, row.blocks, kLineBytes);
  if (lines > kMostLineAccesses) {
    row.no_simulation =
        fmt::format("{:.2g} accesses of cache lines would take long; simulated are at most {:.2g}",
                    lines, kMostLineAccesses);
    return;
  }
  try {
    row.simulated = traffic::simulate(problem, choice.phase, choice.algorithm, row.blocks,
                                      {choice.fast_bytes, kLineBytes});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    row.no_simulation = error.what();
  }
}

Json moved_json(const traffic::Traffic& traffic) {
  Json operands = Json::object();
  for (std::size_t i = 0; i < traffic::kOperands; ++i) {
    const auto operand = static_cast<traffic::Operand>(i);
    const traffic::Moved& moved = traffic[operand];
    if (moved.bytes() == 0) continue;
    operands[std::string(name(operand))] = {{"read_bytes", moved.read},
                                            {"written_bytes", moved.written}};
  }
  return {{"read_bytes", traffic.read()},
          {"written_bytes", traffic.written()},
          {"bytes", traffic.bytes()},
          {"operands", operands}};
}

Json plan_json(const traffic::PlanTraffic& plan) {
  Json json = moved_json(plan.traffic);
  json["backend"] = name(plan.backend);
  json["algorithm"] = name(plan.algorithm);
  json["target"] = plan.target;
  json["block_q"] = plan.block_q;
  json["block_k"] = plan.block_k;
  json["rows_per_task"] = plan.rows_per_task;
  json["num_splits"] = plan.num_splits;
  return json;
}

Json gpu_counts_json(const IoRow& row) {
  if (!row.gpu) return {{"counters", nullptr}, {"no_counters", row.no_gpu}};
  const auto bytes = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  return {{"counters",
           {{"launches", row.gpu->launches},
            {"l2_read_bytes", bytes(row.gpu->l2_read)},
            {"l2_written_bytes", bytes(row.gpu->l2_written)},
            {"dram_read_bytes", bytes(row.gpu->dram_read)},
            {"dram_written_bytes", bytes(row.gpu->dram_written)},
            {"shared_bytes", bytes(row.gpu->shared)}}}};
}

Json measured_json(const IoRow& row) {
  if (row.choice.on_gpu) return gpu_counts_json(row);
  Json json = Json::object();
  json["simulator"] = row.simulated ? moved_json(*row.simulated) : Json(nullptr);
  if (!row.simulated) json["no_simulator"] = row.no_simulation;
  const bool counted = row.counted && row.counted->missing.empty();
  json["counters"] = nullptr;
  if (counted) {
    json["counters"] = {{"l2_miss_bytes", row.counted->references * kLineBytes},
                        {"l3_miss_bytes", row.counted->misses * kLineBytes}};
  } else {
    json["no_counters"] = row.counted ? row.counted->missing : "there is no such pass to run";
  }
  json["seconds_median"] = row.seconds > 0 ? Json(row.seconds) : Json(nullptr);
  return json;
}

}  // namespace

void check_io_size(const std::string& descriptor, const Problem& p, const IoChoice& choice) {
  if (p.seqlen_prefix > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} has a shared prefix of {} keys; counted are problems without one",
                            core::echo(descriptor), p.seqlen_prefix));
  }
  if (p.key_list > 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} has lists of {} keys; counted are problems without lists",
                            core::echo(descriptor), p.key_list));
  }
  if (core::has_own_type_o(p)) {
    throw Error(ErrorCode::unsupported, fmt::format("{} has O of type {}; counted is O of dtype",
                                                    core::echo(descriptor), name(p.type_o)));
  }
  if (core::has_own_types(p) || core::has_own_type_q(p)) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} has Q of type {}, K of type {} and V of type {}; counted are those "
                    "of as_q",
                    core::echo(descriptor), name(p.type_q), name(p.type_k), name(p.type_v)));
  }
  // Plans have tiles of this size or larger ones, whatever the model's are.
  constexpr double kPlanTile = 512 * 64;
  const traffic::Blocks blocks = blocks_of(p, choice);
  const double tile =
      std::min(kPlanTile, static_cast<double>(blocks.q) * static_cast<double>(blocks.k));
  const double tiles =
      counted_heads(p) * static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_k) / tile;
  if (tiles > kMostTiles) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has {:.2g} tiles of {:.0f} scores; counted are at most {:.2g}",
                            core::echo(descriptor), tiles, tile, kMostTiles));
  }
  const double pairs = static_cast<double>(p.batch) * static_cast<double>(p.heads_k);
  if (choice.arch.empty() && pairs > kMostPairs) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has {:.2g} pairs of a sequence and a K, V head; counted for the "
                            "CPU are at most {:.2g}",
                            core::echo(descriptor), pairs, kMostPairs));
  }
}

IoRow make_io_row(const std::string& descriptor, const Problem& problem, const IoChoice& choice) {
  IoRow row{.descriptor = descriptor, .choice = choice};
  row.blocks = blocks_of(problem, choice);
  row.compulsory = traffic::compulsory(problem, choice.phase);
  if (traffic::is_modelled(choice.algorithm)) {
    row.tiles = traffic::tile_sums(problem, choice.algorithm, row.blocks);
    row.model = traffic::model(problem, choice.phase, choice.algorithm, row.blocks);
    row.flops = traffic::model_flops(problem, choice.phase, choice.algorithm, row.blocks);
  }
  add_plan(row, problem);
  return row;
}

void measure_io(IoRow& row, verify::CaseData& data) {
  const IoChoice& choice = row.choice;
  if (row.model) {
    simulate(row, data.problem);
  } else {
    row.no_simulation = "the simulator knows the orders of the models only";
  }
  if (!has_pass(choice) || !choice.arch.empty()) return;
  Context context;
  context.executor = make_thread_pool(1);
  const PlanOptions options{.algorithm = choice.algorithm};
  const auto call = [&] {
    if (choice.phase == Phase::forward) {
      forward(data.problem, data.inputs, data.outputs, options, context);
    } else {
      backward(data.problem, data.inputs, data.outputs, data.d_o, data.gradients, options, context);
    }
  };
  if (choice.phase == Phase::backward) {
    forward(data.problem, data.inputs, data.outputs, {}, context);
  }
  row.seconds = time_calls(call, {.min_calls = 3, .seconds = 0.3}).median();
  row.counted = traffic::count_caches(call);
}

bool measure_io_on_gpu(IoRow& row, const GpuPass& pass, verify::CaseData& data, const Ncu& ncu) {
  try {
    const std::string wrong = why_wrong(pass, data);
    if (!wrong.empty()) {
      row.no_gpu = "the results are wrong, so nothing is counted: " + wrong;
      return false;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    row.no_gpu = error.what();
    return true;
  }
  row.gpu = ncu.count(pass);
  return true;
}

std::string io_table_header(bool on_gpu) {
  return fmt::format("{:<18} {:>11} {:>13} {:>10} {:>10} {:>11} {:>10} {}", "algorithm", "blocks",
                     "tiles", "FLOP", "model", "of inputs", "plan",
                     on_gpu ? fmt::format("{:>10} {:>10} {:>10}", "L2", "DRAM", "shared")
                            : fmt::format("{:>10} {:>10}", "simulated", "L2 misses"));
}

std::string io_table_line(const IoRow& row) {
  const auto bytes = [](bool is_there, double value) {
    return is_there ? format_bytes(value) : std::string("-");
  };
  const double compulsory = row.compulsory.bytes();
  const bool counted = row.counted && row.counted->missing.empty();
  const auto of_gpu = [&](const std::optional<double>& value) {
    return bytes(value.has_value(), value.value_or(0));
  };
  const traffic::GpuCounts gpu = row.gpu.value_or(traffic::GpuCounts());
  const std::string measured =
      row.choice.on_gpu
          ? fmt::format("{:>10} {:>10} {:>10}", of_gpu(gpu.l2()), of_gpu(gpu.dram()),
                        of_gpu(gpu.shared))
          : fmt::format(
                "{:>10} {:>10}",
                bytes(row.simulated.has_value(), row.simulated ? row.simulated->bytes() : 0),
                bytes(counted, counted ? row.counted->references * kLineBytes : 0));
  return fmt::format(
      "{:<18} {:>11} {:>13} {:>10} {:>10} {:>11} {:>10} {}", name(row.choice.algorithm),
      row.model ? fmt::format("{}x{}", row.blocks.q, row.blocks.k) : "-",
      row.model ? fmt::format("{:.0f}/{:.0f}", row.tiles.visited, row.tiles.tiles) : "-",
      row.model ? fmt::format("{:.3g}", row.flops) : "-",
      bytes(row.model.has_value(), row.model ? row.model->bytes() : 0),
      row.model && compulsory > 0 ? fmt::format("{:.3g} x", row.model->bytes() / compulsory) : "-",
      bytes(row.plan.has_value(), row.plan ? row.plan->traffic.bytes() : 0), measured);
}

std::vector<std::string> io_notes(const IoRow& row) {
  std::vector<std::string> notes;
  if (!row.plan) notes.push_back("no plan: " + row.no_plan);
  if (!row.no_simulation.empty()) {
    notes.push_back(
        fmt::format("no simulation of {}: {}", name(row.choice.algorithm), row.no_simulation));
  }
  if (row.counted && !row.counted->missing.empty()) {
    notes.push_back("no counters of the processor: " + row.counted->missing);
  }
  if (!row.no_gpu.empty()) {
    notes.push_back(fmt::format("no counters of {}: {}", name(row.choice.algorithm), row.no_gpu));
  }
  return notes;
}

Json io_json(const IoRow& row) {
  Json json{{"problem", row.descriptor},
            {"phase", name(row.choice.phase)},
            {"algorithm", name(row.choice.algorithm)},
            {"fast_bytes", row.choice.fast_bytes},
            {"block_q", row.blocks.q},
            {"block_k", row.blocks.k},
            {"tiles", row.tiles.tiles},
            {"tiles_visited", row.tiles.visited},
            {"flops", row.flops},
            {"compulsory", moved_json(row.compulsory)},
            {"model", row.model ? moved_json(*row.model) : Json(nullptr)},
            {"plan", row.plan ? plan_json(*row.plan) : Json(nullptr)}};
  if (!row.plan) json["no_plan"] = row.no_plan;
  const bool on_cpu = row.simulated || !row.no_simulation.empty();
  if (on_cpu || row.gpu || !row.no_gpu.empty()) json["measured"] = measured_json(row);
  return json;
}

}  // namespace attn::command
