#include "ops/length_checks.hpp"

#include <string>

#include "ops/tensor_checks.hpp"

namespace tilewright {

void check_range(const char* argument, std::int64_t value, const std::string& where,
                 std::int64_t least, std::int64_t most, const char* of) {
  if (value < least || value > most) {
    fail(argument, "is " + std::to_string(value) + " for " + where + ", must be from " +
                       std::to_string(least) + " to " + std::to_string(most) + ", the " + of);
  }
}

void check_ascends_from_0(const char* argument, const std::vector<int>& values) {
  if (values.front() != 0) {
    fail(argument, "starts with " + std::to_string(values.front()) + ", must start with 0");
  }
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1]) {
      fail(argument, "falls from " + std::to_string(values[i - 1]) + " to " +
                         std::to_string(values[i]) + " at element " + std::to_string(i) +
                         ", must ascend");
    }
  }
}

void check_cu_seqlens(const char* argument, const std::vector<int>& values, std::int64_t rows,
                      const char* rows_of) {
  check_ascends_from_0(argument, values);
  if (values.back() > rows) {
    fail(argument, "ends with " + std::to_string(values.back()) + ", must be at most " +
                       std::to_string(rows) + ", the tokens of " + rows_of);
  }
}

}  // namespace tilewright
