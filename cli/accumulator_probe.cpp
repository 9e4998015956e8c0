#include "cli/accumulator_probe.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace tilewright::cli {
namespace {

// The large product is far enough from the powers of two below and above it that no part of a unit
// in the last place changes its exponent. The small ones are powers of two down to 2^-12, whose
// factors are normal numbers of E4M3.
constexpr double kLarge = 1.5 * 65536;
constexpr int kLargeExponent = 16;
constexpr int kSmallestExponent = kLargeExponent + 1 - kMostBits;
constexpr int kEqualProducts = 8;  // of which a sum is made that is larger than each
constexpr int kSumExponent = kLargeExponent + 3;

// A rounding, and what it makes of a part of a unit beside a large number that is a multiple of two
// units.
struct Candidate {
  Rounding rounding;
  double (*rounded)(double part, double large);
};

constexpr std::array<Candidate, 6> kCandidates = {{
    {Rounding::toward_zero, [](double part, double) { return std::trunc(part); }},
    {Rounding::sum_toward_zero,
     [](double part, double large) { return large > 0 ? std::floor(part) : std::ceil(part); }},
    {Rounding::down, [](double part, double) { return std::floor(part); }},
    {Rounding::up, [](double part, double) { return std::ceil(part); }},
    {Rounding::nearest_even, [](double part, double) { return std::nearbyint(part); }},
    {Rounding::nearest_away, [](double part, double) { return std::round(part); }},
}};

// A chain's sum, as it is put together.
class Sum {
 public:
  Sum(int products, int instructions) : products_(products), instructions_(instructions) {
    const auto count = static_cast<std::size_t>(products * instructions);
    summands_.x.assign(count, 0.0f);
    summands_.y.assign(count, 0.0f);
  }

  Sum& start(double value) {
    summands_.start = static_cast<float>(value);
    return *this;
  }

  // Adds a product at a place of an instruction's products, which are counted modulo their number.
  // Its value is a significand of at most four bits times a power of two.
  Sum& first(int place, double value) { return set(0, place, value); }
  Sum& halfway(int place, double value) { return set(instructions_ / 2, place, value); }
  Sum& last(int place, double value) { return set(instructions_ - 1, place, value); }

  const Summands& summands() const { return summands_; }

 private:
  Sum& set(int instruction, int place, double value) {
    const auto at = static_cast<std::size_t>(instruction * products_ + place % products_);
    const int exponent = std::ilogb(value);
    const int of_y = exponent >> 1;
    summands_.x[at] = static_cast<float>(std::ldexp(value, -of_y));
    summands_.y[at] = static_cast<float>(std::ldexp(1.0, of_y));
    return *this;
  }

  int products_;
  int instructions_;
  Summands summands_;
};

// Of a small product, and how far the two large ones, which follow it, are from each other. For
// some place they are in one group, and the small one in none of theirs, if the hardware adds its
// products in groups and not all at once.
struct Place {
  int small;
  int distance;
};

std::vector<Place> places_of(int products) {
  std::vector<Place> places;
  for (int distance = 1; distance < products; distance *= 2) {
    for (int small = 0; small < products; ++small) {
      places.push_back({small, distance});
    }
  }
  return places;
}

class Probe {
 public:
  Probe(int products, int instructions, const AddUp& add_up)
      : products_(products), instructions_(instructions), add_up_(add_up) {}

  AccumulatorFindings findings() const {
    AccumulatorFindings found;
    const std::vector<Place> places = places_of(products_);
    const std::vector<int> beside_product = widths_beside_product(places);
    const auto fewest = std::ranges::min_element(beside_product);
    found.bits = *fewest;
    found.most_bits = std::ranges::max(beside_product);
    found.bits_beside_c = std::ranges::min(widths_beside_c());
    found.bits_of_c = std::ranges::min(widths_of_c());
    found.bits_of_sum = std::ranges::min(widths_of_sum()) + kSumExponent - kLargeExponent;
    const int last_place = kLargeExponent + 1 - found.bits;  // the exponent of its unit
    if (found.bits > 2 && last_place - 2 >= kSmallestExponent) {
      const Place narrowest = places[static_cast<std::size_t>(fewest - beside_product.begin())];
      const double unit = std::ldexp(1.0, last_place);
      const Candidate* const candidate = rounding(narrowest, unit);
      found.rounding = candidate == nullptr ? Rounding::none_of_these : candidate->rounding;
      if (candidate != nullptr) {
        found.rounds_each_product = rounds_each_product(*candidate, unit);
      }
    }
    return found;
  }

 private:
  Sum sum() const { return {products_, instructions_}; }

  Sum beside_product(Place place, double large, double small) const {
    return sum()
        .first(place.small + 1, large)
        .halfway(place.small, small)
        .last(place.small + 1 + place.distance, -large);
  }

  std::vector<int> widths_beside_product(const std::vector<Place>& places) const {
    return widths(places.size(), 0, [&](std::size_t i, double small) {
      return beside_product(places[i], kLarge, small);
    });
  }

  std::vector<int> widths_beside_c() const {
    return widths(static_cast<std::size_t>(products_), 0, [&](std::size_t i, double small) {
      const int place = static_cast<int>(i);
      return sum().start(kLarge).halfway(place, small).last(place + 1, -kLarge);
    });
  }

  std::vector<int> widths_of_c() const {
    return widths(static_cast<std::size_t>(products_), 0, [&](std::size_t i, double small) {
      const int place = static_cast<int>(i);
      return sum().start(small).first(place, kLarge).last(place + 1, -kLarge);
    });
  }

  // Nothing is taken away: what is read is the large sum and the small product.
  std::vector<int> widths_of_sum() const {
    return widths(static_cast<std::size_t>(products_), kEqualProducts * kLarge,
                  [&](std::size_t i, double small) {
                    Sum equal = sum();
                    for (int j = 1; j <= kEqualProducts; ++j) {
                      equal.first(static_cast<int>(i) + j, kLarge);
                    }
                    return equal.halfway(static_cast<int>(i), small);
                  });
  }

  // For each of `count` arrangements, how many small products survive: from the one with the large
  // product's exponent down to the last before one is missing in `rest` + small, the exact sum.
  template <typename Arrange>
  std::vector<int> widths(std::size_t count, double rest, Arrange arrange) const {
    std::vector<Summands> sums;
    for (std::size_t i = 0; i < count; ++i) {
      for (int bit = 0; bit < kMostBits; ++bit) {
        sums.push_back(arrange(i, std::ldexp(1.0, kLargeExponent - bit)).summands());
      }
    }
    const std::vector<float> results = add_up_(sums);
    std::vector<int> widths(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      const auto survives = [&](int bit) {
        return results[i * kMostBits + static_cast<std::size_t>(bit)] ==
               rest + std::ldexp(1.0, kLargeExponent - bit);
      };
      while (widths[i] < kMostBits && survives(widths[i])) {
        ++widths[i];
      }
    }
    return widths;
  }

  // Adds parts of a unit in the last place, of both signs, beside large products of both signs, and
  // looks for the rounding that gives all results; null if none does.
  const Candidate* rounding(Place place, double unit) const {
    constexpr std::array kParts = {0.5, 0.75, 1.25, 1.5, 1.75};
    std::vector<Summands> sums;
    std::vector<std::array<double, 2>> parts;  // with the sign of the large product beside it
    for (const double large : {kLarge, -kLarge}) {
      for (const double magnitude : kParts) {
        for (const double part : {magnitude, -magnitude}) {
          sums.push_back(beside_product(place, large, part * unit).summands());
          parts.push_back({part, large});
        }
      }
    }
    const std::vector<float> results = add_up_(sums);
    const auto explains_all = [&](const Candidate& candidate) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (results[i] != candidate.rounded(parts[i][0], parts[i][1]) * unit) {
          return false;
        }
      }
      return true;
    };
    const auto found = std::ranges::find_if(kCandidates, explains_all);
    return found == kCandidates.end() ? nullptr : &*found;
  }

  // Adds quarters of a unit, of which each by itself becomes nothing, or one unit, and all together
  // several.
  bool rounds_each_product(const Candidate& rounding, double unit) const {
    Sum quarters = sum();
    for (int place = 1; place + 1 < products_; ++place) {
      quarters.halfway(place, unit / 4);
    }
    quarters.first(0, kLarge).last(products_ - 1, -kLarge);
    const double of_each = rounding.rounded(0.25, kLarge) * unit;
    return add_up_({quarters.summands()})[0] == (products_ - 2) * of_each;
  }

  int products_;
  int instructions_;
  const AddUp& add_up_;
};

}  // namespace

std::string_view name(Rounding rounding) {
  switch (rounding) {
    case Rounding::toward_zero:
      return "toward_zero";
    case Rounding::sum_toward_zero:
      return "sum_toward_zero";
    case Rounding::down:
      return "down";
    case Rounding::up:
      return "up";
    case Rounding::nearest_even:
      return "nearest_even";
    case Rounding::nearest_away:
      return "nearest_away";
    case Rounding::none_of_these:
      return "none_of_these";
    case Rounding::beyond_measurement:
      return "beyond_measurement";
  }
  return "";
}

AccumulatorFindings probe_accumulator(int products, int instructions, const AddUp& add_up) {
  return Probe(products, instructions, add_up).findings();
}

}  // namespace tilewright::cli
