// The tests' own tools: they make a test fail when they must.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <functional>

#include "bad_call.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

void run_cases(int count, int least) {
  Ran ran("cases", least);
  for (int i = 0; i < count; ++i) {
    ++ran;
  }
}

TEST(Ran, FailsWhereTooFewCasesHaveRun) {
  EXPECT_NONFATAL_FAILURE(run_cases(0, 1), "too few cases have run");
  EXPECT_NONFATAL_FAILURE(run_cases(2, 3), "too few cases have run");
  run_cases(3, 3);
}

const BadCallOf<int> kBad{"a case", {}, "q", {"is 3", "must be 4"}};

std::function<void()> throwing(ErrorCode code, const char* argument, const char* message) {
  return [=] { throw Error(code, argument, message); };
}

TEST(BadCall, IsRefusedInTheseWordsAlone) {
  constexpr ErrorCode kCode = ErrorCode::invalid_argument;
  expect_throws(kBad, throwing(kCode, "q", "is 3, must be 4"));
  EXPECT_NONFATAL_FAILURE(expect_throws(kBad, throwing(kCode, "q", "is 3, must be 5")),
                          "must be 4");
  EXPECT_NONFATAL_FAILURE(
      expect_throws(kBad, throwing(ErrorCode::unsupported, "q", "is 3, must be 4")), "code()");
  EXPECT_FATAL_FAILURE(expect_throws(kBad, [] {}), "no exception");
}

}  // namespace
}  // namespace tilewright::test
