// What a loop over cases has run: a test that has run none of them has shown nothing.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace tilewright::test {

// Counts cases. In the end it writes their number into the test's report, as a property of that
// name, and fails the test where there were fewer than `least`, unless the test is skipped.
class Ran {
 public:
  explicit Ran(std::string name = "cases", int least = 1) : name_(std::move(name)), least_(least) {}
  ~Ran() {
    testing::Test::RecordProperty(name_, count_);
    if (!testing::Test::IsSkipped()) {
      EXPECT_GE(count_, least_) << "too few " << name_ << " have run";
    }
  }
  Ran(const Ran&) = delete;
  Ran& operator=(const Ran&) = delete;

  void operator++() { ++count_; }

 private:
  std::string name_;
  int least_;
  int count_ = 0;
};

}  // namespace tilewright::test
