#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "verify/cases.hpp"
#include "verify/storage.hpp"

namespace attn::verify {
namespace {

constexpr std::int64_t kMaxScores = 20'000;           // expressions cost about 1 us a score
constexpr std::int64_t kMaxMultiplyAdds = 3'000'000;  // of Q K^T and P V together
// Of every kLongEvery problems one has up to kLongKeys keys or, as rarely, as many queries: more
// than a task takes, so that splits and chunks meet masks, dropout, pages and sinks. The other side
// is then short: these have up to kMaxLongScores scores.
constexpr std::uint64_t kLongEvery = 8;
constexpr std::int64_t kLongKeys = 8192;
constexpr std::int64_t kMaxLongScores = 50'000;
constexpr std::int64_t kMaxLongMultiplyAdds = 6'000'000;
constexpr std::uint64_t kListEvery = 8, kMaxLogitEvery = 4, kWideEvery = 4, kOutputEvery = 16;

class Generator {
 public:
  explicit Generator(std::uint64_t seed)
      : random_(seed ^ 0x6174746e2e637070u),
        lengths_(seed ^ 0x6c6f6e67u),
        lists_(seed ^ 0x6c697374u),
        shared_(seed ^ 0x73686172u),
        caches_(seed ^ 0x63616368u),
        logits_(seed ^ 0x6d61786cu),
        integers_(seed ^ 0x69363400u),
        outputs_(seed ^ 0x6f757470u) {}

  Case generate() {
    sizes();
    layouts();
    masks();
    scores();
    options();
    if (lists_() % kListEvery == 0) key_list();
    shared_prefix();
    cache_types();
    if (chance(25)) hint("loose");  // last: earlier draws stay those of a seed
    if (logits_() % kMaxLogitEvery == 0) hint("maxlogit");
    if (integers_() % kWideEvery == 0) hint("i64");
    return parse_case(hints_.empty() ? text_ : text_ + "/" + hints_);
  }

 private:
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  bool chance(int percent) { return below(100) < percent; }
  template <class List>
  auto pick(const List& list) {
    return *(std::begin(list) + below(static_cast<std::int64_t>(std::size(list))));
  }
  template <class... Value>
  void put(const Value&... value) {
    if (!text_.empty()) text_ += '_';
    (text_.append(fmt::format("{}", value)), ...);
  }
  void hint(std::string_view token) {
    if (!hints_.empty()) hints_ += '_';
    hints_ += token;
  }

  std::int64_t seqlen() {
    const std::int64_t kind = below(10);
    if (kind < 2) return 1;
    if (kind < 6) return 1 + below(40);
    return 1 + below(300);
  }

  void sizes() {
    constexpr std::int64_t kHeadDims[] = {1,  3,  8,  16, 16, 32,  32,  40,  59,
                                          64, 64, 64, 80, 96, 111, 128, 200, 512};
    batch_ = 1 + below(3);
    const std::int64_t heads_k = 1 + below(3);
    heads_q_ = heads_k * pick(std::initializer_list<std::int64_t>{1, 1, 1, 2, 3, 4, 8});
    const std::int64_t d = pick(kHeadDims);
    const std::int64_t dv = chance(70) ? d : pick(kHeadDims);
    seqlen_q_ = seqlen();
    seqlen_k_ = chance(3) ? 0 : chance(40) ? seqlen_q_ : seqlen();
    const auto too_large = [&] {
      const std::int64_t scores = batch_ * heads_q_ * seqlen_q_ * seqlen_k_;
      return scores > kMaxScores || scores * (d + dv) > kMaxMultiplyAdds;
    };
    while (too_large()) {
      std::int64_t& longer = seqlen_q_ > seqlen_k_ ? seqlen_q_ : seqlen_k_;
      longer = (longer + 1) / 2;
    }
    std::int64_t used_heads_k = heads_k, used_d = d, used_dv = dv;
    // From a generator of its own, so that the other problems are those that their seeds have had.
    if (lengths_() % kLongEvery == 0) lengthen(used_heads_k, used_d, used_dv);
    put("b", batch_);
    put("sq", seqlen_q_);
    put("sk", seqlen_k_);
    put("hq", heads_q_);
    put("hk", used_heads_k);
    d_ = used_d;
    dv_ = used_dv;
    put("d", used_d);
    put("dv", used_dv);
  }

  // One side becomes long; batch, heads, the other side and then the heads' sizes shrink until the
  // problem is small enough.
  void lengthen(std::int64_t& heads_k, std::int64_t& d, std::int64_t& dv) {
    const bool keys = lengths_() % 4 != 0;
    std::int64_t& length = keys ? seqlen_k_ : seqlen_q_;
    std::int64_t& other = keys ? seqlen_q_ : seqlen_k_;
    length = 301 + static_cast<std::int64_t>(lengths_() % (kLongKeys - 300));
    const auto scores = [&] { return batch_ * heads_q_ * seqlen_q_ * seqlen_k_; };
    while (scores() > kMaxLongScores) {
      if (other > 4) {
        other = (other + 1) / 2;
      } else if (heads_k > 1) {
        heads_q_ /= heads_k;
        heads_k = 1;
      } else if (batch_ > 1) {
        batch_ = 1;
      } else if (heads_q_ > 2) {
        heads_q_ /= 2;
      } else {
        other = 1;
      }
    }
    while (scores() * (d + dv) > kMaxLongMultiplyAdds) {
      std::int64_t& wider = d > dv ? d : dv;
      wider = (wider + 1) / 2;
    }
  }

  void layouts() {
    if (chance(25)) put("packedq");
    const std::int64_t kind = below(10);
    if (kind < 2) put("packedk");
    paged_ = kind == 2 && seqlen_k_ > 0;
    if (paged_) {
      put("paged", pick(std::initializer_list<int>{1, 3, 7, 16, 64, 128}));
    }
    if (chance(25)) hint("padded");
    if (chance(25)) hint("strided");
    if (chance(15)) hint("headmajor");
    if (chance(10)) hint("bcastq");
    if (chance(10)) hint("bcastk");
    if (chance(10)) hint("bcastv");
    if (chance(10)) hint("bcastdo");
    if (chance(10)) hint("dotransposed");
  }

  void masks() {
    constexpr std::string_view kMasks[] = {
        "mask((query+key)%3!=0)",
        "mask(key<seqlen_k/2||query==key)",
        "mask(abs(query-key)%4<2)",
        "mask(head%2==0||key<=query)",
        "mask(query/8==key/8)",
        "mask(key*key>query*3)",
        "mask(to_float(key)*0.5<to_float(query)+3.0)",
        "mask(batch+1<2&&query>=key-5)",
        "mask(min(query,key)>=max(query,key)-20)",
        "mask(select(query%2==0,key%2,1)==1)",
        "mask(floor(query/3.7)>=to_int(0.3*key))",
    };
    bool butterfly_used = false;
    for (int left = chance(30) ? 0 : chance(75) ? 1 : 2; left > 0; --left) {
      const std::int64_t kind = below(10);
      if (kind < 3) {
        put("causal");
      } else if (kind == 3) {
        put("causaltl");
      } else if (kind == 4) {
        const std::int64_t one_sided = below(4);
        put("window", one_sided == 0 ? -1 : below(60), "x", one_sided == 1 ? -1 : below(30));
      } else if (kind == 5) {
        put("prefix", below(seqlen_k_ + 2));
      } else if (kind == 6) {
        put("documents");
      } else if (kind == 7 && seqlen_k_ > 0 && !butterfly_used) {
        butterfly_used = true;
        put("butterfly", pick(std::initializer_list<int>{1, 5, 8, 16, 32}));
      } else {
        put(pick(kMasks));
      }
    }
  }

  void scores() {
    constexpr std::string_view kScores[] = {
        "score(score+0.1*to_float(key%7))",
        "score(score*(1.0+0.1*to_float(head)))",
        "score(select(query>key,score,score-1.0))",
        "score(score-0.01*score*score)",
        "score(max(score,-3.0))",
        "score(sqrt(abs(score)+1.0))",
        "score(log(1.0+exp(min(score,20.0))))",
        "score(score/(1.0+0.1*abs(score)))",
        "score(score-0.25*floor(abs(query-key)/1.7))",
    };
    bool bias_used = false;
    bool alibi_used = false;
    for (int left = chance(55) ? 0 : chance(75) ? 1 : 2; left > 0; --left) {
      const std::int64_t kind = below(8);
      if (kind < 2) {
        put("softcap", pick(std::initializer_list<int>{2, 10, 30}));
      } else if (kind < 4 && !alibi_used) {
        put("alibi");
        alibi_used = true;
      } else if (kind < 6 && !bias_used) {
        bias();
        bias_used = true;
      } else {
        put(pick(kScores));
      }
    }
  }

  void bias() {
    const std::string_view dtype = pick(std::initializer_list<std::string_view>{"", "bf16", "f16"});
    if (chance(20)) {
      put("bias", seqlen_q_, "x", seqlen_k_, dtype);
      return;
    }
    put("bias", chance(50) ? 1 : batch_, "x", chance(50) ? 1 : heads_q_, "x",
        chance(30) ? 1 : seqlen_q_, "x", chance(30) ? 1 : seqlen_k_, dtype);
  }

  // Lists up to as long as there are keys, and a few more. Numbers of their own, as for long
  // lengths.
  void key_list() {
    if (dropout_) return;
    constexpr std::int64_t kMost = 200;
    const std::int64_t longest = std::min(seqlen_k_ + 5, kMost);
    put("list", 1 + lists_() % static_cast<std::uint64_t>(longest));
  }

  void options() {
    if (chance(20)) put("sink");
    dropout_ = chance(20);
    if (dropout_) {
      put("dropout", pick(std::initializer_list<double>{0.1, 0.5, 0.9}));
      const std::uint64_t seed = random_();
      put("seed", seed);
      if (chance(50)) put("offset", random_());
      // This is not drawn, so that later numbers, and so the rest of the problem, are as they were
      // before it was added.
      if (seed % 4 == 0) put("rngstate");
    }
    if (chance(10)) put("scale", pick(std::initializer_list<double>{-0.3, 0.0, 0.05, 1.0}));
    const std::string_view dtype =
        pick(std::initializer_list<std::string_view>{"f32", "bf16", "f16"});
    put(dtype);
    if (outputs_() % kOutputEvery == 0 && dtype != "f32") put("o(f32)");  // forward alone
    if (chance(10)) hint("q5_k3");
    if (chance(5)) hint("negative_q10_k10");
    if (chance(5)) hint("nodq");
    if (chance(5)) hint("nodk");
    if (chance(5)) hint("nodv");
    if (chance(15)) hint("dlse");
  }

  // K and V in types of their own, which have no backward pass, from a generator of its own.
  void cache_types() {
    constexpr std::string_view kTypes[] = {"f32", "bf16", "f16", "e4m3", "i8", "q8_0", "q4_0"};
    constexpr std::size_t kUnblocked = 5;  // of them, for any head size
    if (caches_() % 8 != 0) return;
    const auto type = [&](std::int64_t dim) {
      const std::string_view drawn =
          kTypes[caches_() % (dim % 32 == 0 ? std::size(kTypes) : kUnblocked)];
      return drawn == "e4m3" && caches_() % 2 == 0 ? std::string_view("e5m2") : drawn;
    };
    if (caches_() % 4 != 0) put("k(", type(d_), ")");
    if (caches_() % 4 != 0) put("v(", type(dv_), ")");
  }

  // Keys that all sequences share, from a generator of its own as lengths_ is. Such problems have
  // no dropout, no lists of keys and no backward pass.
  void shared_prefix() {
    const auto has = [&](std::string_view word) { return text_.find(word) != std::string::npos; };
    if (shared_() % 8 != 0 || has("dropout") || has("bias") || has("_list")) return;
    const std::int64_t keys = 1 + static_cast<std::int64_t>(shared_() % 400);
    if (batch_ * heads_q_ * seqlen_q_ * keys > kMaxScores) return;
    put("sp", keys);
    if (paged_ && shared_() % 2 == 0) put("pagedprefix");
  }

  Random random_, lengths_, lists_, shared_, caches_, logits_, integers_, outputs_;
  bool paged_ = false;
  bool dropout_ = false;
  std::int64_t batch_ = 0, heads_q_ = 0, seqlen_q_ = 0, seqlen_k_ = 0, d_ = 0, dv_ = 0;
  std::string text_, hints_;
};

}  // namespace

Case random_case(std::uint64_t seed) { return Generator(seed).generate(); }

}  // namespace attn::verify
