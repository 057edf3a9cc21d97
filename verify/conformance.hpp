// The one driver that compares the library with the reference.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "attn/error.hpp"
#include "attn/plan.hpp"
#include "verify/case.hpp"
#include "verify/compare.hpp"
#include "verify/data.hpp"
#include "verify/ranks.hpp"

namespace attn::verify {

// What is compared with the reference.
struct Subject {
  Phase phase = Phase::forward;
  Backend backend = Backend::automatic;
  Algorithm algorithm = Algorithm::automatic;
  InstructionSet isa = InstructionSet::automatic;
  std::shared_ptr<Executor> executor{};  // null: the default one
  Device device{};                       // cuda: the data is copied there and back
  std::string kernel{};                  // cuda: PlanOptions::kernel
  bool deterministic = false;            // PlanOptions::deterministic
  bool batch_invariant = false;          // PlanOptions::batch_invariant
  RankOptions ranks{};                   // over ranks of this process, on the CPU
  // Changes the results before they are compared: tests of the comparison itself.
  std::function<void(CaseData&)> tamper{};
};
std::string to_string(const Subject& subject);

enum class Status : std::uint8_t { passed, failed, unsupported };

struct Report {
  std::string descriptor;
  std::uint64_t seed = 0;
  Subject subject;
  Status status = Status::passed;
  std::string message;                  // why not passed
  std::optional<ErrorCode> refusal{};   // of the Error that the call threw
  std::vector<Comparison> comparisons;  // one a tensor
  std::string command() const;          // repeats the check
};
std::string to_string(const Report& report);

// A case with its reference results: made once, compared with many subjects. A case with few
// elements is drawn several times, seed, seed + 1, ...: the error rule is about errors of random
// numbers, which mean little over a handful.
class Conformance {
 public:
  // Backward results are only computed when asked for.
  Conformance(const Case& c, std::uint64_t seed, bool backward);
  // Runs the public API and compares. An attn::Error with code `unsupported` gives
  // Status::unsupported; any other exception is a failure. Not thread-safe.
  Report check(const Subject& subject);
  int draws() const { return static_cast<int>(draws_.size()); }

 private:
  struct Draw;
  static void run(Draw& draw, const Subject& subject);
  void add_draws(std::size_t count);  // up to `count` in all
  void compare_draws(const Subject& subject, Report& report);

  Case case_;
  std::uint64_t seed_;
  bool backward_;
  std::vector<std::shared_ptr<Draw>> draws_;
};

// One check on its own.
Report check(const Case& c, const Subject& subject, std::uint64_t seed);

}  // namespace attn::verify
