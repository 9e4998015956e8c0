#include "reference/parallel_for.hpp"

#include <exception>

namespace tilewright::reference {

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 16)
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      body(i);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace tilewright::reference
