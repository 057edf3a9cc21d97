// Pathfinder (Linsley and others 2018) as Long Range Arena uses it: two dashed curves among shorter
// ones, and two discs. Class 1: both discs are at the ends of one curve.
//
//   c++ -O3 -std=c++20 pathfinder.cpp -o pathfinder
//   ./pathfinder OUT COUNT SEED SIZE [DASHES [even]]
//
// SIZE is 32, 64, 128 or 256, DASHES of a curve are 14 unless said. OUT.images has SIZE x SIZE
// bytes for each image, OUT.labels a byte, OUT.discs four floats: x and y of both discs in pixels.
//
// A curve grows dash by dash: the next begins a gap behind the end of the last one and turns by an
// angle that is drawn by cos(continuity * angle)^2, so that curves are smooth, three times at most
// until it touches nothing; where it does touch, up to four dashes of both curves are taken back.
// 14 dashes is the hard level of Long Range Arena; 6 and 9 are the easier ones. Curves start
// `seeds` pixels from each other: of class 0 one disc is at the start of one curve, the other at
// the end of the other. So how far the discs are from each other tells something of the class. Of
// `even` images it tells nothing: there are as many of both classes at each distance, in 64ths of
// the size.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numbers>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

struct Setting {
  int size;
  double length, thickness, margin;  // of a dash, in pixels; and how far curves stay apart
  double seeds, disc, continuity;
  int distractors;
};

constexpr Setting kSettings[] = {
    {32, 2, 0.5, 1, 7, 1.5, 1.0, 5},
    {64, 5, 1, 1, 12, 2.5, 1.8, 5},
    {128, 5, 1.5, 2, 20, 3, 1.8, 8},
    {256, 5, 2, 3, 27, 5, 1.8, 7},
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }

 private:
  std::mt19937_64 engine_;
};

struct Point {
  double x, y;
};

struct Dash {
  Point from;
  int degrees;
  [[nodiscard]] Point along(double distance) const {
    const double angle = degrees * std::numbers::pi / 180;
    return {from.x + distance * std::cos(angle), from.y + distance * std::sin(angle)};
  }
};

double distance(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y, squared = dx * dx + dy * dy;
  const double t =
      squared == 0 ? 0 : std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / squared, 0.0, 1.0);
  return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

struct Made {
  int label;                         // 0 or 1
  std::vector<std::uint8_t> pixels;  // [size][size]
  std::array<Point, 2> discs;

  // In 64ths of the image's size.
  [[nodiscard]] std::size_t distance_of_discs(int size) const {
    const double apart = std::hypot(discs[0].x - discs[1].x, discs[0].y - discs[1].y);
    return std::min<std::size_t>(63, static_cast<std::size_t>(64 * apart / size));
  }
};

class Files {
 public:
  explicit Files(const std::string& out)
      : images_(out + ".images", std::ios::binary),
        labels_(out + ".labels", std::ios::binary),
        discs_(out + ".discs", std::ios::binary) {}

  void write(const Made& made) {
    images_.write(reinterpret_cast<const char*>(made.pixels.data()),
                  static_cast<std::streamsize>(made.pixels.size()));
    labels_.put(static_cast<char>(made.label));
    for (const Point disc : made.discs) {
      const std::array<float, 2> xy{static_cast<float>(disc.x), static_cast<float>(disc.y)};
      discs_.write(reinterpret_cast<const char*>(xy.data()), sizeof xy);
    }
  }

  // Whether all was written.
  bool close() {
    images_.close();
    labels_.close();
    discs_.close();
    return images_ && labels_ && discs_;
  }

 private:
  std::ofstream images_, labels_, discs_;
};

class Image {
 public:
  Image(const Setting& setting, int dashes, Random& random)
      : setting_(setting), dashes_(dashes), random_(random) {}

  Made make(int label) {
    while (true) {
      taken_.assign(static_cast<std::size_t>(setting_.size * setting_.size), 0);
      drawn_.clear();
      if (!targets()) continue;
      if (!distractors()) continue;
      return draw(label);
    }
  }

 private:
  // Calls what(index, distance) for pixels closer to the dash than `reach`.
  template <class What>
  void near(const Dash& dash, double reach, const What& what) const {
    const Point a = dash.from, b = dash.along(setting_.length);
    const auto first = [&](double u, double v) {
      return std::max(0, static_cast<int>(std::floor(std::min(u, v) - reach)));
    };
    const auto last = [&](double u, double v) {
      return std::min(setting_.size - 1, static_cast<int>(std::ceil(std::max(u, v) + reach)));
    };
    for (int y = first(a.y, b.y); y <= last(a.y, b.y); ++y) {
      for (int x = first(a.x, b.x); x <= last(a.x, b.x); ++x) {
        const double d = distance({x + 0.5, y + 0.5}, a, b);
        if (d < reach) what(static_cast<std::size_t>(y * setting_.size + x), d);
      }
    }
  }

  void take(const Dash& dash, int sign = 1) {
    near(dash, setting_.thickness / 2 + 0.5,
         [&](std::size_t i, double) { taken_[i] = static_cast<std::uint8_t>(taken_[i] + sign); });
  }

  // Whether the curve got one more dash. Its last one is not in the way of the next, which begins
  // nearer to it than other curves may come.
  bool extend(std::vector<Dash>& curve) {
    take(curve.back(), -1);
    const std::optional<Dash> made = next(curve.back());
    take(curve.back());
    if (!made) return false;
    take(*made);
    curve.push_back(*made);
    return true;
  }

  [[nodiscard]] bool is_free(const Dash& dash) const {
    const double edge = setting_.margin + setting_.thickness / 2;
    for (const Point p : {dash.from, dash.along(setting_.length)}) {
      if (std::min(p.x, p.y) < edge || std::max(p.x, p.y) > setting_.size - edge) return false;
    }
    bool is_free = true;
    near(dash, edge, [&](std::size_t i, double) { is_free = is_free && taken_[i] == 0; });
    return is_free;
  }

  [[nodiscard]] bool is_open(Point p) const {
    const double edge = setting_.margin + setting_.thickness / 2;
    if (std::min(p.x, p.y) < edge || std::max(p.x, p.y) > setting_.size - edge) return false;
    return taken_[static_cast<std::size_t>(static_cast<int>(p.y) * setting_.size +
                                           static_cast<int>(p.x))] == 0;
  }

  // The next dash of a curve, that is free.
  std::optional<Dash> next(const Dash& dash) {
    const Point from = dash.along(setting_.length + 2 * setting_.margin);
    const int widest = std::min(180, static_cast<int>(90 / setting_.continuity));
    weights_.clear();
    double total = 0;
    for (int turn = -widest; turn <= widest; ++turn) {
      const double cosine = std::cos(setting_.continuity * turn * std::numbers::pi / 180);
      // A dash that ends where none can follow is not drawn.
      const Point end =
          Dash{from, dash.degrees + turn}.along(setting_.length + 2 * setting_.margin);
      weights_.push_back(total += is_open(end) ? cosine * cosine : 0);
    }
    if (total == 0) return std::nullopt;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const auto drawn =
          std::upper_bound(weights_.begin(), weights_.end() - 1, random_.uniform() * total);
      const Dash made{from, dash.degrees + static_cast<int>(drawn - weights_.begin()) - widest};
      if (is_free(made)) return made;
    }
    return std::nullopt;
  }

  Dash seed(double border) {
    const double room = setting_.size - 2 * border;
    return {{border + room * random_.uniform(), border + room * random_.uniform()},
            random_.below(360)};
  }

  bool targets() {
    const Dash first =
        seed(2 * setting_.seeds > 0.45 * setting_.size ? 0.3 * setting_.size : 2 * setting_.seeds);
    const Dash aside{first.from, random_.below(360)};
    const Dash second{aside.along(setting_.seeds), random_.below(360)};
    if (!is_free(first)) return false;
    take(first);
    if (!is_free(second)) return false;
    take(second);
    std::vector<Dash> curves[2] = {{first}, {second}};
    for (int failures = 0; static_cast<int>(curves[1].size()) < dashes_;) {
      const std::size_t length = curves[1].size();
      if (extend(curves[0]) && extend(curves[1])) continue;
      if (++failures > 200) return false;
      // The last dashes of both, so that both are of one length again.
      const auto back = static_cast<std::size_t>(1 + random_.below(4));
      const std::size_t left = length > back ? length - back : 1;
      for (auto& curve : curves) {
        for (; curve.size() > left; curve.pop_back()) take(curve.back(), -1);
      }
    }
    for (auto& curve : curves) drawn_.push_back(std::move(curve));
    return true;
  }

  bool distractors() {
    const int length = std::max(1, dashes_ / 3);
    for (int i = 0; i < setting_.distractors; ++i) {
      bool is_made = false;
      for (int attempt = 0; attempt < 50 && !is_made; ++attempt) {
        std::vector<std::uint8_t> before = taken_;
        std::vector<Dash> curve{seed(setting_.margin + setting_.thickness)};
        is_made = is_free(curve.front());
        if (is_made) take(curve.front());
        while (is_made && static_cast<int>(curve.size()) < length) {
          is_made = extend(curve);
        }
        if (is_made)
          drawn_.push_back(std::move(curve));
        else
          taken_ = std::move(before);
      }
      if (!is_made) return false;
    }
    return true;
  }

  Made draw(int label) {
    std::vector<std::uint8_t> pixels(taken_.size(), 0);
    const auto ink = [&](std::size_t i, double covered) {
      const auto value =
          static_cast<std::uint8_t>(std::lround(255 * std::clamp(covered, 0.0, 1.0)));
      pixels[i] = std::max(pixels[i], value);
    };
    for (const auto& curve : drawn_) {
      for (const Dash& dash : curve) {
        const double reach = setting_.thickness / 2 + 0.5;
        near(dash, reach, [&](std::size_t i, double d) {
          ink(i, std::min(reach - d, setting_.thickness + 0.25));
        });
      }
    }
    const int one = random_.below(2);
    const auto start = [&](int curve) {
      return drawn_[static_cast<std::size_t>(curve)].front().from;
    };
    const auto end = [&](int curve) {
      return drawn_[static_cast<std::size_t>(curve)].back().along(setting_.length);
    };
    const std::array<Point, 2> discs{start(one), end(label == 1 ? one : 1 - one)};
    for (const Point centre : discs) {
      for (int y = 0; y < setting_.size; ++y) {
        for (int x = 0; x < setting_.size; ++x) {
          const double d = std::hypot(x + 0.5 - centre.x, y + 0.5 - centre.y);
          if (d < setting_.disc + 0.5)
            ink(static_cast<std::size_t>(y * setting_.size + x), setting_.disc + 0.5 - d);
        }
      }
    }
    return {label, std::move(pixels), discs};
  }

  const Setting& setting_;
  int dashes_;
  Random& random_;
  std::vector<std::uint8_t> taken_;       // [size][size], by how many dashes
  std::vector<std::vector<Dash>> drawn_;  // the two targets, then distractors
  std::vector<double> weights_;
};

}  // namespace

int main(int argc, char** argv) {
  const int size = argc >= 5 ? std::atoi(argv[4]) : 0;
  const auto* const setting = std::find_if(std::begin(kSettings), std::end(kSettings),
                                           [&](const Setting& s) { return s.size == size; });
  const bool is_even = argc == 7 && std::string_view(argv[6]) == "even";
  if (argc < 5 || (argc > 6 && !is_even) || setting == std::end(kSettings)) {
    std::fprintf(stderr,
                 "usage: pathfinder OUT COUNT SEED SIZE [DASHES [even]]     SIZE: 32, 64, 128 or "
                 "256\n");
    return 2;
  }
  const std::string out = argv[1];
  Random random(std::strtoull(argv[3], nullptr, 10));
  Image image(*setting, argc >= 6 ? std::atoi(argv[5]) : 14, random);
  Files files(out);
  const long count = std::atol(argv[2]);
  // Of even images: those that wait for one of the other class and the same distance, by distance.
  std::vector<std::vector<Made>> waiting(64);
  for (long i = 0; i < count;) {
    Made made = image.make(random.below(2));
    if (!is_even) {
      files.write(made);
      ++i;
      continue;
    }
    auto& alike = waiting[made.distance_of_discs(size)];
    if (alike.empty() || alike.back().label == made.label) {
      alike.push_back(std::move(made));
      continue;
    }
    files.write(alike.back());
    alike.pop_back();
    if (++i < count) files.write(made);
    ++i;
  }
  if (!files.close()) {
    std::fprintf(stderr, "pathfinder: %s could not be written\n", out.c_str());
    return 1;
  }
  return 0;
}
