// ListOps as Long Range Arena makes it (Tay and others 2020; Nangia and Bowman 2018): nested
// operations on lists of digits, as [MAX 4 3 [MIN 2 3 ] 1 0 ], whose value is the class.
//
//   c++ -O3 -std=c++20 listops.cpp -o listops
//   ./listops OUT COUNT SEED [SHORTEST LONGEST]      COUNT different ones; OUT.tokens, OUT.index
//
// OUT.tokens has a byte for each token, one list after the other: 0 to 9 are digits, 10 MIN, 11
// MAX, 12 MED, 13 SM, 14 the closing bracket. OUT.index has two int32 for each list: how many
// tokens, and its value. On standard output stand the counts behind what is known of the data set.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace {

constexpr int kDeepest = 10, kMostArguments = 10;
enum Token : std::uint8_t { kMin = 10, kMax, kMed, kSum, kClose };

// The same numbers with every standard library, as its distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }

 private:
  std::mt19937_64 engine_;
};

int apply(int operation, std::vector<int> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  switch (operation) {
    case kMin:
      return values.front();
    case kMax:
      return values.back();
    case kMed:  // of an even number the mean of the two in the middle, rounded down
      return (values[(n - 1) / 2] + values[n / 2]) / 2;
    default: {
      int sum = 0;
      for (const int value : values) sum += value;
      return sum % 10;
    }
  }
}

struct Lists {
  Random random;
  std::size_t longest;
  std::string tokens;  // of the list that is being made

  // The value; tokens are appended. Past `longest` tokens what is made is thrown away anyway.
  int make(int depth) {
    const bool is_digit = depth >= kDeepest || random.below(4) != 0;
    if (is_digit || tokens.size() > longest) {
      const int digit = random.below(10);
      tokens.push_back(static_cast<char>(digit));
      return digit;
    }
    const int arguments = 2 + random.below(kMostArguments - 1);
    const int operation = kMin + random.below(4);
    tokens.push_back(static_cast<char>(operation));
    std::vector<int> values;
    for (int i = 0; i < arguments; ++i) values.push_back(make(depth + 1));
    tokens.push_back(static_cast<char>(kClose));
    return apply(operation, std::move(values));
  }
};

// How often the most frequent value of each key is right: what who knows only the key can reach.
class Known {
 public:
  void add(int key, int value) {
    ++counts_[static_cast<std::size_t>(key)][static_cast<std::size_t>(value)];
  }
  [[nodiscard]] double accuracy() const {
    double best = 0, all = 0;
    for (const auto& row : counts_) {
      best += *std::max_element(row.begin(), row.end());
      for (const int count : row) all += count;
    }
    return best / all;
  }

 private:
  std::array<std::array<int, 10>, 40> counts_{};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 6) {
    std::fprintf(stderr, "usage: listops OUT COUNT SEED [SHORTEST LONGEST]\n");
    return 2;
  }
  const std::string out = argv[1];
  const long count = std::atol(argv[2]);
  const std::size_t shortest = argc == 6 ? std::strtoul(argv[4], nullptr, 10) : 500;
  const std::size_t longest = argc == 6 ? std::strtoul(argv[5], nullptr, 10) : 2000;
  Lists lists{Random(std::strtoull(argv[3], nullptr, 10)), longest, {}};
  std::ofstream tokens(out + ".tokens", std::ios::binary);
  std::ofstream index(out + ".index", std::ios::binary);
  std::unordered_set<std::string> seen;
  Known nothing, root, extreme;
  double length = 0;
  for (long made = 0; made < count;) {
    lists.tokens.clear();
    const int value = lists.make(1);
    const std::size_t n = lists.tokens.size();
    if (n <= shortest || n >= longest || !seen.insert(lists.tokens).second) continue;
    ++made;
    length += static_cast<double>(n);
    tokens.write(lists.tokens.data(), static_cast<std::streamsize>(n));
    const std::array<std::int32_t, 2> row{static_cast<std::int32_t>(n), value};
    index.write(reinterpret_cast<const char*>(row.data()), sizeof row);
    const int operation = lists.tokens.front() - kMin;
    nothing.add(0, value);
    root.add(operation, value);
    // The least or the largest digit among the operation's own arguments, that of no nested one.
    int own_least = 9, own_most = 0, depth = 0;
    for (const char token : lists.tokens) {
      depth += token == kClose ? -1 : token >= kMin ? 1 : 0;
      if (depth != 1 || token >= kMin) continue;
      own_least = std::min<int>(own_least, token);
      own_most = std::max<int>(own_most, token);
    }
    extreme.add(operation * 10 + (operation == 0 ? own_least : own_most), value);
  }
  tokens.close();
  index.close();
  if (!tokens || !index) {
    std::fprintf(stderr, "listops: %s could not be written\n", out.c_str());
    return 1;
  }
  std::printf(
      "{\"lists\": %ld, \"mean_length\": %.1f, \"most_frequent\": %.4f, \"root_operator\": %.4f, "
      "\"root_operator_and_its_digits\": %.4f}\n",
      count, length / static_cast<double>(count), nothing.accuracy(), root.accuracy(),
      extreme.accuracy());
  return 0;
}
