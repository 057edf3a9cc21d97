// One sequence over several ranks: forward and backward, with every mask and score.
//
//   attn::dist::Group group = attn::dist::mpi(MPI_COMM_WORLD);  // attn/dist/mpi.hpp; or in_process
//   attn::dist::Plan plan = attn::dist::make_plan(problem, group);
//   plan.rows(group.rank());  // which rows of the sequence this rank holds
//   attn::dist::forward(plan, inputs, outputs);  // tensors of those rows
//   attn::dist::backward(plan, inputs, outputs, d_o, gradients);
//
// The queries of a sequence are cut into chunks, which are dealt to the ranks by how many keys they
// see, and stay where they are. A rank is sent the keys and values that its queries see and nothing
// else, and then does the work of one attn call, whose mask and score are written anew so that
// `query`, `key`, `position`, `seqlen_q` and `seqlen_k` mean those of the whole sequence. Partial
// sums of dK and dV go home in f32 (f64 of an f64 problem), are added there in the order of the
// ranks and rounded once. docs/scale-out.md explains it.
//
// Bits: the same inputs give the same bits each time, on any machine's number of threads (on GPUs
// dQ and gradients of buffers with shared elements only with PlanOptions::deterministic). Dropout
// drops the elements that one rank would drop. O and LSE are those of one rank, where both run
// PlanOptions::algorithm flash_attention_2 on a CPU.
//
// make_plan, forward and backward are collective: every rank of the group calls them, in one order.
// Before anything is sent the ranks compare what each is about to do. A rank that refuses its
// arguments, or comes with another problem, length, dtype or call, is an Error on every rank, which
// names the rank and the cause. One that leaves, or does not come within Context::timeout, is an
// Error on all others, and the group is of no use afterwards.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/kept_vector.hpp"
#include "attn/plan.hpp"
#include "attn/problem.hpp"
#include "attn/run.hpp"

namespace ATTN_API attn {  // NOLINT(modernize-concat-nested-namespaces): not with an attribute
namespace dist {

// ---- Groups ----

// Bytes for another rank, and from one. Of two ranks, messages arrive in the order in which they
// were sent; both sides know their sizes.
struct Send {
  int to = 0;
  const void* data = nullptr;
  std::size_t bytes = 0;
  // Keeps data alive, where a message that failed cannot be taken back.
  std::shared_ptr<const void> owner{};
  Device device{};  // where data lies: the CPU, or what Engine::carries() takes
};
struct Receive {
  int from = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> owner{};  // likewise
  Device device{};
};

// What carries bytes between ranks. Replace it to put the traffic on a transport of your own, as
// attn/dist/mpi.hpp does. One call of a rank runs at a time.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  // Sends and receives, and returns when all is done. Throws Error(unavailable) that names the rank
  // and the cause where one left, failed or did not come within the time; then no memory is read or
  // written any more but what owners keep.
  virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives,
                        std::chrono::milliseconds timeout) = 0;
  // Whether messages may lie in memory of the device. Where they may not, those of a GPU go through
  // memory of the host.
  virtual bool carries(Device device) const noexcept { return device.type == DeviceType::cpu; }
  // Whether ranks are threads of one process whose GPUs read each other's memory: then addresses
  // and events are sent, and each rank fetches what it needs by copies of its own.
  virtual bool shares_memory() const noexcept { return false; }
  // Tells the others that this rank failed: their exchange() throws with the cause from now on.
  virtual void fail(const std::string& cause) noexcept = 0;
};

// A rank's end of the group. Copies share it; one thread at a time may use it.
class Group {
 public:
  explicit Group(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  // Without moves: one that was moved from is still of the group.
  Group(const Group&) = default;
  Group& operator=(const Group&) = default;
  ~Group() = default;
  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  Engine& engine() const { return *engine_; }

 private:
  std::shared_ptr<Engine> engine_;
};

// `ranks` ranks in this process, each for a thread of the caller's: a program runs on it as it runs
// on MPI, and a rank that fails can be tried out. When the last copy of a rank's Group, and of
// plans made with it, is gone, the rank has left. Throws Error(invalid_argument) for less than 1 or
// more than 256.
std::vector<Group> in_process(int ranks);

// The same with GPUs of this machine, whose K, V and partial sums of dK and dV (of up to 16 ranks)
// are copied from one's memory to another's while kernels work on heads that have come: rank
// r is for devices[r], which Options::local of its plans names; one device may have several ranks.
// Throws Error(unavailable) without a driver, Error(invalid_argument) for what is no GPU.
std::vector<Group> local(const std::vector<Device>& devices);

// ---- Plans ----

// Rows [begin, end): of each sequence where the layout is dense, of the tensor where it is packed.
struct Rows {
  std::int64_t begin = 0, end = 0;
  bool operator==(const Rows&) const = default;
};

enum class Deal : std::uint8_t {
  by_area,     // whichever is expected to take least: of the others, and of dealing the chunk with
               // most work to the rank with least, each improved by swaps
  contiguous,  // rank 0 has the first chunks
  zigzag,      // rank r has the r-th and the r-th last of 2 * ranks parts
  striped,     // rank r has every ranks-th chunk
};
std::string_view name(Deal deal) noexcept;
// Its inverse. Throws Error(invalid_argument) that lists the names.
Deal parse_deal(std::string_view text);

// What the ranks have to know of the sequences' lengths before they deal. The members are as the
// tensors of Inputs of the same names, which are not given to calls; of packed tensors cu_seqlens
// is needed and ends with the number of rows.
struct Lengths {
  KeptVector<std::int32_t> cu_seqlens_q{}, cu_seqlens_k{};
  KeptVector<std::int32_t> seqused_q{}, seqused_k{};
};

// How fast things are, for dealing. 0: some numbers of the kind of device.
struct Rates {
  double flops = 0;  // of a rank, a second
  double bytes = 0;  // from one rank to another, a second
};

struct Options {
  Deal deal = Deal::by_area;
  // Rows of a chunk, of which there may be 4096. 0: such that a rank has up to eight, in multiples
  // of 128 where the sequence is long enough.
  std::int64_t chunk = 0;
  Lengths lengths{};
  // Tensors of the mask's buffers, where the problem's Buffers hold none: areas are counted by
  // them, and the calls get the same, so they live as long as the plan. A mask with a buffer that
  // the CPU cannot read counts as full.
  expr::Bindings buffers{};
  Rates rates{};
  // Of each rank's own call: its device, algorithm, kernel, deterministic and threads. An automatic
  // algorithm of a CPU is what one rank would take for the whole problem.
  PlanOptions local{};
};

struct PlanData;

// Who holds which rows, and what goes from whom to whom. Copies share it. Thread-safe to read.
class Plan {
 public:
  explicit Plan(std::shared_ptr<const PlanData> data);
  // Without moves: one that was moved from is still a plan.
  Plan(const Plan&) = default;
  Plan& operator=(const Plan&) = default;
  ~Plan() = default;
  const Problem& problem() const;  // complete, of all ranks
  int rank() const;                // this rank; -1 of a plan without a group
  int ranks() const;
  // Rows of Q, O, dO and LSE that a rank holds, ascending: its tensors have these rows in this
  // order. Dense: [batch, rows held, heads, head_dim], LSE [batch, heads, rows held].
  const std::vector<Rows>& rows(int rank) const;
  // Rows of K, V, dK and dV. Where Q and K have the same rows, those of rows().
  const std::vector<Rows>& keys(int rank) const;
  // Rows of K and V that a rank's queries see, its own among them, in whole blocks: each sequence
  // is cut every 64 rows.
  const std::vector<Rows>& gathered(int rank) const;
  // Visible (query, key) pairs of a rank, summed over batch and query heads; an upper bound, exact
  // to tiles of 128.
  double area(int rank) const;
  // Mean over largest area: 1 is an even deal.
  double balance() const;
  // Bytes that one pass sends from a rank to another, without scales of K and V.
  double bytes(int from, int to, Phase phase) const;
  const std::vector<std::string>& reasons() const;

  const PlanData& data() const { return *data_; }

 private:
  std::shared_ptr<const PlanData> data_;
};

struct Context {
  attn::Context local{};  // of each rank's own call
  // How long a rank waits for others in one step before it gives them up: longer than they may be
  // behind in their work.
  std::chrono::milliseconds timeout{60'000};
};

// The plan of a problem that has every size set; the ranks compare what they were given. Refused
// with Error(unsupported): paged K and V, a shared prefix, lists of keys, batch_invariant, and on
// GPUs types of their own of Q, K, V and O.
Plan make_plan(const Problem& problem, const Group& group, const Options& options = {},
               const Context& context = {});
// The plan that a group of so many ranks would have, to look at: no call takes it.
Plan make_plan(const Problem& problem, int ranks, const Options& options = {});
// Some lines for people: the owners of rows, areas, bytes from -> to, and the reasons.
std::string to_string(const Plan& plan);

// ---- Calls ----

// As attn::forward with the tensors of this rank's rows; cu_seqlens and seqused are not given.
// Buffers are those of the whole problem on every rank, as a bias of [seqlen_q, seqlen_k], and the
// sink, rng_state and scales of rank 1 as well; scales of rows are of the rank's rows. Tensors are
// on the device of Options::local. Of a GPU, K, V and sums travel through memory of the host where
// the engine does not carry its memory; the call waits for the context's stream before it returns.
// Takes memory for the gathered K and V and for what is sent, of a GPU also for the workspace; by
// local() the plan keeps it for the next call. max_logit is that of the whole problem, the same
// bits on each rank; all ranks ask for it, or none.
void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context = {});
// As attn::backward, which takes no types of their own. dK and dV are those of this rank's rows,
// complete. dsink and the gradients of buffers are sums over all ranks, the same bits on each. All
// ranks ask for the same gradients.
void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const Context& context = {});

// Decoding with a cache whose pages lie on several ranks, forward alone: page p of a sequence is on
// rank p % size, which has it as page p / size in its own Inputs::page_table. Every rank gives the
// whole of Q and gets the whole of O and LSE. It attends to the keys that it has; each rank's O and
// LSE go to all others and are merged by LSE in double, in the order of the ranks, so that all have
// the same bits. max_logit is that of the whole sequences; all ranks ask for it, or none. k, v and
// page_table are the rank's own; seqused_k, which is needed, says how long the whole sequences are,
// and mask and score see these. seqlen_k is taken from the page table. Without a shared prefix,
// lists of keys and dropout: Error(unsupported). Collective, as forward. Example: of 5 pages, rank
// 0 of 2 has pages 0, 2 and 4, and rank 1 pages 1 and 3.
void forward_cached(const Problem& problem, const Group& group, const Inputs& inputs,
                    const Outputs& outputs, const PlanOptions& options = {},
                    const Context& context = {});

}  // namespace dist
}  // namespace attn
