#include "dist/peers.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <type_traits>
#include <utility>

#include "cuda/copy_rows.hpp"
#include "cuda/cuda.hpp"
#include "dist/device_rows.hpp"
#include "dist/peer_memory.hpp"

namespace attn::dist {
namespace {

// What a rank tells the others of a call: addresses, which all can read, and the events after which
// they hold what is promised. Those of sums are recorded before the ranks meet for the second time.
struct Letter {
  Tensor k{}, v{};  // of the rank's keys and all heads
  void* ready = nullptr;
  struct OfGroup {
    Tensor k{}, v{};  // packed
    void* packed = nullptr;
    Tensor dk{}, dv{};  // partial sums, of the rows that the rank gathered
    void* summed = nullptr;
  };
  std::array<OfGroup, kMostHeadGroups> groups{};
};
static_assert(std::is_trivially_copyable_v<Letter>);

struct KeysAndValues {
  RowTensor k{}, v{};
};

// The heads [first, first + count) of [.., heads, columns], or of LSE's [.., heads, rows].
Tensor heads_of(Tensor t, std::int64_t first, std::int64_t count) {
  if (!t.given()) return t;
  const auto axis = static_cast<std::size_t>(t.rank - 2);
  t.data = at(t, first * t.strides[axis]);
  t.shape[axis] = count;
  return t;
}

bool has_whole_rows(const Tensor& t) {
  const auto heads = static_cast<std::size_t>(t.rank - 2);
  return t.strides[heads + 1] == 1 && t.strides[heads] == t.shape[heads + 1];
}

// A call's work as it is put into streams.
class Call {
 public:
  Call(const PlanData& plan, const std::vector<HeadGroup>& groups, const Traffic& traffic,
       const attn::Context& context, PeerMemory& memory)
      : plan_(plan),
        groups_(groups),
        traffic_(traffic),
        context_(context),
        memory_(memory),
        guard_(memory.device().index),
        me_(static_cast<std::size_t>(traffic.rank())) {
    memory_.begin();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // Where another rank failed the caller may free at once what this rank's streams still work on.
  ~Call() {
    if (std::uncaught_exceptions() == exceptions_) return;
    try {
      memory_.copies.synchronize();
      memory_.second.synchronize();
      finish();
    } catch (...) {  // the error that is under way says more
    }
  }

  // This rank's letter: its K and V, and those of packed groups by themselves, but for the first:
  // kernels of the others read its heads where they are.
  Letter share(const Inputs& inputs) {
    Letter letter{.k = whole(inputs.k), .v = whole(inputs.v)};
    letter.ready = memory_.record(context_.stream);
    for (std::size_t g = 1; g < groups_.size(); ++g) {
      if (!groups_[g].packed) continue;
      Letter::OfGroup& of = letter.groups[g];
      of.k = packed(heads_of(letter.k, groups_[g].first, groups_[g].count));
      of.v = packed(heads_of(letter.v, groups_[g].first, groups_[g].count));
      of.packed = memory_.record(context_.stream);
    }
    return letter;
  }

  // Memory for the partial sums of a rank that gathered rows; called before tell().
  void promise_sums(Letter& letter, const Gradients& gradients) {
    const RowList& rows = plan_.gathered[me_];
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::int64_t heads = groups_[g].count;
      if (gradients.dk.given()) letter.groups[g].dk = sums_like(gradients.dk, count(rows), heads);
      if (gradients.dv.given()) letter.groups[g].dv = sums_like(gradients.dv, count(rows), heads);
    }
  }

  // Letters of all ranks.
  void tell(const Letter& own) {
    const auto ranks = static_cast<std::size_t>(plan_.ranks);
    const auto all = std::make_shared<std::vector<Letter>>(ranks, own);
    const auto sent = std::make_shared<const Letter>(own);
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r == me_) continue;
      sends.push_back({static_cast<int>(r), sent.get(), sizeof(Letter), sent});
      receives.push_back({static_cast<int>(r), &(*all)[r], sizeof(Letter), all});
    }
    traffic_.exchange(sends, receives);
    letters_ = *all;
    wait(memory_.copies.handle(), own.ready);
  }

  // Returns when all ranks have come here.
  void meet() const {
    const auto bytes = std::make_shared<std::vector<char>>(static_cast<std::size_t>(plan_.ranks));
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int r = 0; r < plan_.ranks; ++r) {
      if (r == traffic_.rank()) continue;
      char* const byte = bytes->data() + r;
      sends.push_back({r, bytes->data() + me_, 1, bytes});
      receives.push_back({r, byte, 1, bytes});
    }
    traffic_.exchange(sends, receives);
  }

  // Room for the keys of each group, with the rank's own rows in it, and the others' of the first
  // group, all by one kernel: multiprocessors have nothing else to do yet. A copy within a GPU that
  // comes later would wait for a kernel that fills them all to end.
  void gather_first() {
    std::vector<cuda::RowCopy> copies;
    reads_peers_ = memory_.reads(letters_, [](const Letter& l) { return l.k.device; });
    gathered_.resize(groups_.size());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const HeadGroup& group = groups_[g];
      if (group.packed && (g > 0 || reads_peers_)) {
        gathered_[g] = with_own(group, copies);
        continue;
      }
      if (!all_.k.tensor.given()) all_ = with_own(all_heads(), copies);
      gathered_[g] = {{heads_of(all_.k.tensor, group.first, group.count), all_.k.rows},
                      {heads_of(all_.v.tensor, group.first, group.count), all_.v.rows}};
    }
    const HeadGroup& first = groups_.front();
    for (std::size_t r = 0; r < letters_.size() && reads_peers_; ++r) {
      if (r == me_ || !sees(r)) continue;
      wait(context_.stream, letters_[r].ready);
      add_common(of_rank(r, first.packed ? first : all_heads()), first.packed ? gathered_[0] : all_,
                 copies);
    }
    cuda::copy_rows(copies, context_);
    first_arrived_ = memory_.record(context_.stream);
    if (reads_peers_ && !first.packed) all_arrived_ = first_arrived_;
    wait(memory_.second.handle(), first_arrived_);
  }

  // Runs work(group's number, its plan, inputs, context) for each group once copies of the others'
  // K and V have come: those of a packed group by itself, or all heads for the first of the rest.
  // The second and fourth group run beside the others, so that one fills multiprocessors that
  // another leaves. A group's copies are asked for once the kernels of the one before it are.
  template <class Work>
  void compute(const Inputs& inputs, const Work& work) {
    std::size_t workspace_bytes = 0;
    for (const HeadGroup& group : groups_) {
      const std::int64_t bytes = group.plan ? group.plan->workspace_bytes : 0;
      workspace_bytes = std::max(workspace_bytes, static_cast<std::size_t>(bytes));
    }
    const std::array<void*, 2> streams{context_.stream, memory_.second.handle()};
    std::array<void*, 2> workspaces{};
    for (void*& workspace : workspaces) {
      if (workspace_bytes > 0) workspace = memory_.take(workspace_bytes);
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const HeadGroup& group = groups_[g];
      void* const arrived = fetch(g);
      if (!group.plan) continue;
      attn::Context context = context_;
      context.stream = streams[g % 2];
      wait(context.stream, arrived);
      const std::int64_t bytes = group.plan->workspace_bytes;
      if (bytes > 0) {
        context.workspace = tensor(workspaces[g % 2], DType::u8, {bytes}, memory_.device());
      }
      work(g, *group.plan, inputs_of(inputs, g), context);
    }
    wait(context_.stream, memory_.record(memory_.second.handle()));
  }

  Tensor query_heads(const Tensor& t, std::size_t g) const {
    const std::int64_t of_one = plan_.problem.heads_q / plan_.problem.heads_k;
    return heads_of(t, groups_[g].first * of_one, groups_[g].count * of_one);
  }
  // sink, dsink or max_logit: [heads].
  Tensor numbers_of_heads(Tensor t, std::size_t g) const {
    if (!t.given()) return t;
    const std::int64_t of_one = plan_.problem.heads_q / plan_.problem.heads_k;
    t.data = at(t, groups_[g].first * of_one * t.strides[0]);
    t.shape[0] = groups_[g].count * of_one;
    return t;
  }

  // dk or dv, `member` of letters' groups, <- partial sums of all ranks, in their order. Others
  // have recorded that theirs are there.
  void add_sums(const Tensor& result, Tensor Letter::OfGroup::*member) {
    if (!result.given()) return;
    const RowList& own = plan_.keys[me_];
    std::vector<RowList> had(letters_.size());  // rows of mine that each rank gathered
    for (std::size_t r = 0; r < letters_.size(); ++r) had[r] = common(own, plan_.gathered[r]);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const HeadGroup& group = groups_[g];
      std::vector<RowTensor> terms(letters_.size());
      for (std::size_t r = 0; r < letters_.size(); ++r) {
        if (had[r].empty()) continue;
        const RowTensor partial{letters_[r].groups[g].*member, plan_.gathered[r]};
        if (r == me_) {
          terms[r] = partial;
          continue;
        }
        terms[r] = {sums_like(result, count(had[r]), group.count), had[r]};
        wait(memory_.copies.handle(), letters_[r].groups[g].summed);
        copy_common(Copies(memory_.device(), memory_.copies.handle()), partial, terms[r]);
      }
      last_copy_ = memory_.record(memory_.copies.handle());
      wait(context_.stream, last_copy_);
      add_terms(terms, {heads_of(result, group.first, group.count), own}, context_);
    }
  }

  // Until K and V have come.
  void wait_for_copies() const {
    wait(memory_.copies.handle(), first_arrived_);
    cuda::check(
        cuda::api().cuStreamSynchronize(static_cast<cuda::CUstream>(memory_.copies.handle())),
        "waiting for copies between ranks");
  }
  void finish() const { Copies(memory_.device(), context_.stream).wait(); }

  const Letter& own() const { return letters_[me_]; }

 private:
  HeadGroup all_heads() const { return {0, plan_.problem.heads_k, false}; }
  bool sees(std::size_t r) const { return !common(plan_.keys[r], plan_.gathered[me_]).empty(); }
  KeysAndValues of_rank(std::size_t r, const HeadGroup& group) const {
    const Letter& l = letters_[r];
    return {{heads_of(l.k, group.first, group.count), plan_.keys[r]},
            {heads_of(l.v, group.first, group.count), plan_.keys[r]}};
  }
  // Room for the gathered rows of some heads, and copies of the rank's own rows into it.
  KeysAndValues with_own(const HeadGroup& group, std::vector<cuda::RowCopy>& copies) {
    const RowList& rows = plan_.gathered[me_];
    const KeysAndValues to{{rows_like(letters_[me_].k, count(rows), group.count), rows},
                           {rows_like(letters_[me_].v, count(rows), group.count), rows}};
    add_common(of_rank(me_, group), to, copies);
    return to;
  }
  static void add_common(const KeysAndValues& from, const KeysAndValues& to,
                         std::vector<cuda::RowCopy>& copies) {
    for (const auto& [a, b] : {std::pair{&from.k, &to.k}, std::pair{&from.v, &to.v}}) {
      for (const Rows& rows : common(a->rows, b->rows)) {
        copies.push_back({rows_of(*a, rows), rows_of(*b, rows)});
      }
    }
  }

  // Has copies of others' K and V of a group come in, unless they have; the event after which they
  // are there.
  void* fetch(std::size_t g) {
    if (g == 0 && reads_peers_) return first_arrived_;
    if (groups_[g].packed && g > 0) {
      return fetch(
          gathered_[g],
          [&](const Letter& l) {
            return std::pair{l.groups[g].k, l.groups[g].v};
          },
          [&](const Letter& l) { return l.groups[g].packed; });
    }
    if (all_arrived_ == nullptr) {
      all_arrived_ = fetch(
          all_,
          [](const Letter& l) {
            return std::pair{l.k, l.v};
          },
          [](const Letter& l) { return l.ready; });
    }
    return all_arrived_;
  }
  // from(letter) is what to copy after event(letter). Each rank takes from another one at first.
  template <class From, class Event>
  void* fetch(const KeysAndValues& to, const From& from, const Event& event) {
    void* const stream = memory_.copies.handle();
    const Copies copies(memory_.device(), stream);
    for (std::size_t i = 1; i < letters_.size(); ++i) {
      const std::size_t r = (me_ + i) % letters_.size();
      if (!sees(r)) continue;
      wait(stream, event(letters_[r]));
      const auto [k, v] = from(letters_[r]);
      copy_common(copies, {k, plan_.keys[r]}, to.k);
      copy_common(copies, {v, plan_.keys[r]}, to.v);
    }
    return memory_.record(stream);
  }

  static void wait(void* stream, void* event) {
    cuda::check(cuda::api().cuStreamWaitEvent(static_cast<cuda::CUstream>(stream),
                                              static_cast<cuda::CUevent>(event), 0),
                "cuStreamWaitEvent");
  }
  // Row-major, with so many rows and heads of [.., rows, heads, columns].
  Tensor rows_like(const Tensor& t, std::int64_t rows, std::int64_t heads) {
    std::vector<std::int64_t> shape(t.shape.begin(), t.shape.begin() + t.rank);
    shape[shape.size() - 3] = rows;
    shape[shape.size() - 2] = heads;
    return memory_.take(t.dtype, std::move(shape));
  }
  // The same for partial sums.
  Tensor sums_like(Tensor t, std::int64_t rows, std::int64_t heads) {
    t.dtype = traffic_.sum_dtype();
    return rows_like(t, rows, heads);
  }
  Tensor packed(const Tensor& t) {
    const auto rows = static_cast<std::size_t>(t.rank - 3);
    const Tensor to = rows_like(t, t.shape[rows], t.shape[rows + 1]);
    const cuda::RowCopy copy{t, to};
    cuda::copy_rows({&copy, 1}, context_);
    return to;
  }
  Tensor whole(const Tensor& t) { return has_whole_rows(t) ? t : packed(t); }

  Inputs inputs_of(const Inputs& inputs, std::size_t g) {
    const Inputs& tables = memory_.tables(plan_);
    Inputs local = inputs;
    local.q = query_heads(inputs.q, g);
    local.k = gathered_[g].k.tensor;
    local.v = gathered_[g].v.tensor;
    local.sink = numbers_of_heads(inputs.sink, g);
    local.cu_seqlens_q = tables.cu_seqlens_q;
    local.cu_seqlens_k = tables.cu_seqlens_k;
    local.seqused_q = tables.seqused_q;
    local.seqused_k = tables.seqused_k;
    local.buffers.insert(local.buffers.end(), tables.buffers.begin(), tables.buffers.end());
    return local;
  }

  const PlanData& plan_;
  const std::vector<HeadGroup>& groups_;
  const Traffic& traffic_;
  const attn::Context& context_;
  PeerMemory& memory_;
  cuda::ContextGuard guard_;
  const int exceptions_ = std::uncaught_exceptions();
  std::size_t me_;
  std::vector<Letter> letters_{};
  std::vector<KeysAndValues> gathered_{};  // of each group
  KeysAndValues all_{};                    // of all heads, for groups that are not packed
  bool reads_peers_ = false;               // kernels read the others' memory
  void *first_arrived_ = nullptr, *all_arrived_ = nullptr;  // events
  void* last_copy_ = nullptr;
};

}  // namespace

PeerCall::PeerCall(const PlanData& plan, const Traffic& traffic, const attn::Context& context)
    : plan_(plan), traffic_(traffic), context_(context), memory_(*plan.work.memory) {}

void PeerCall::forward(const Inputs& inputs, const Outputs& outputs) const {
  Call call(plan_, plan_.work.forward_groups, traffic_, context_, memory_);
  call.tell(call.share(inputs));
  call.gather_first();
  call.compute(inputs, [&](std::size_t g, const attn::Plan& plan, const Inputs& local,
                           const attn::Context& context) {
    const Outputs part{.o = call.query_heads(outputs.o, g),
                       .lse = call.query_heads(outputs.lse, g),
                       .max_logit = call.numbers_of_heads(outputs.max_logit, g)};
    cuda::forward(plan, local, part, context);
  });
  call.wait_for_copies();
  call.meet();
  call.finish();
}

void PeerCall::backward(const Inputs& inputs, const Outputs& outputs,
                        const OutputGradients& d_outputs, const Gradients& gradients) const {
  const std::vector<HeadGroup>& groups = plan_.work.backward_groups;
  Call call(plan_, groups, traffic_, context_, memory_);
  Letter letter = call.share(inputs);
  call.promise_sums(letter, gradients);
  std::vector<cuda::Event*> summed;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    letter.groups[g].summed = summed.emplace_back(&memory_.event())->handle();
  }
  call.tell(letter);
  call.gather_first();
  // Results that go to the host.
  std::vector<std::pair<Tensor, Tensor>> results;
  const auto result = [&](const Tensor& host) {
    if (!host.given()) return host;
    const std::vector<std::int64_t> shape(host.shape.begin(), host.shape.begin() + host.rank);
    results.emplace_back(host, memory_.take(host.dtype, shape));
    return results.back().second;
  };
  Gradients here;
  if (groups.front().plan) {
    here.dsink = result(gradients.dsink);
    for (const auto& [name, host] : gradients.buffers) {
      here.buffers.emplace_back(name, result(host));
    }
  }
  call.compute(inputs, [&](std::size_t g, const attn::Plan& plan, const Inputs& local,
                           const attn::Context& context) {
    Gradients part;
    part.dq = call.query_heads(gradients.dq, g);
    part.dk = letter.groups[g].dk;
    part.dv = letter.groups[g].dv;
    part.dsink = call.numbers_of_heads(here.dsink, g);
    part.buffers = here.buffers;
    const Outputs of{.o = call.query_heads(outputs.o, g), .lse = call.query_heads(outputs.lse, g)};
    const OutputGradients d_of{call.query_heads(d_outputs.o, g),
                               call.query_heads(d_outputs.lse, g)};
    cuda::backward(plan, local, of, d_of, part, context);
    summed[g]->record(context.stream);
  });
  call.wait_for_copies();
  call.meet();
  call.add_sums(gradients.dk, &Letter::OfGroup::dk);
  call.add_sums(gradients.dv, &Letter::OfGroup::dv);
  {
    const Copies copies(memory_.device(), context_.stream);
    for (const auto& [host, device] : results) {
      copies.copy(host.data, device.data,
                  static_cast<std::size_t>(host.size()) * size_of(host.dtype));
    }
  }
  call.wait_for_copies();
  call.meet();
  call.finish();
}

}  // namespace attn::dist
