// Loops over all cores, which every CPU kernel uses.
#pragma once

#include <cfenv>
#include <cstdint>
#include <exception>

namespace tilewright::cpu {

// How many threads a loop may have: as many as OpenMP says, but 1 in a forked process, where GNU's
// OpenMP runtime waits forever for threads that only the parent has.
int thread_count();

// While it lives, the floating-point environment is the default one: it rounds to nearest, and does
// not flush subnormal numbers to zero. At its end it restores the caller's.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&callers_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t callers_{};
};

// Calls f(i) for every i of [0, count); a thread takes `chunk` neighbours at a time. First every
// thread calls prepare() once. If one of these throws std::bad_alloc, f is never called, and this
// function throws the exception. f must not throw.
template <typename Prepare, typename F>
void parallel_for(std::int64_t count, std::int64_t chunk, Prepare prepare, F f) {
  std::exception_ptr error;
#pragma omp parallel num_threads(thread_count())
  {
    const DefaultFloatingPoint environment;
    try {
      prepare();
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
#pragma omp barrier
    if (!error) {
#pragma omp for schedule(dynamic, chunk)
      for (std::int64_t i = 0; i < count; ++i) {
        f(i);
      }
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

// The same for rows or tiles that take little time each and need no preparation.
template <typename F>
void parallel_for_rows(std::int64_t count, F f) {
  constexpr std::int64_t kRowsAtATime = 16;
  parallel_for(
      count, kRowsAtATime, [] {}, f);
}

}  // namespace tilewright::cpu
